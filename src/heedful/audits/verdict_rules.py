"""The rules of an audit: how numbers become verdicts, tiers and decisions. They are the same for every method.

- *faithful*: better than random scores on every measure that counts, under every way of deletion (Holm over methods).
- *model-dependent*: the scores change when the weights are randomised (1 - rank correlation above .5 on average).
- *stable*: another seed and a tiny edit keep the ranking of the words (mean rank correlation above .7).
- *complete*: scores add up to the output, where the method claims that (mean error at most 5 %).
- *agrees*: its ranking of words correlates with those of the other methods.
- *plausible*: ranks words that people marked above others, where the model is right.

Texts are drawn before any result is seen. An audit that goes on after a look at its results tests at .05 / 2^look, so
that all looks together err with probability .05 at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator

from heedful.audits.audit_result import Answer, Decision, Measurement, MethodAudit, Question
from heedful.measures.bootstrap import MIN_EXAMPLES, bootstrap_interval
from heedful.measures.hypothesis_tests import adjust_holm, sample_size, studentised_p_values
from heedful.store.recipe import derive_seed
from heedful.trials._trial import Verdict

ALPHA = 0.05
MODEL_CHANGE = 0.5
"""A method whose scores change less than this under a randomised model (1 - rank correlation) does not depend on it."""
STABLE_CORRELATION = 0.7
COMPLETE_ERROR = 0.05
MIN_SHARE = 0.1
"""An explanation below this share of the achievable is not faithful, even if it is better than random."""
TIER_MARGIN = 0.05
"""A method is in a lower tier if it is clearly this share of the achievable, or more, below the best of a tier."""
CHANCE_AUC = 0.5
SIGNS: Mapping[str, int] = {"comprehensiveness": 1, "sufficiency": -1, "flip": -1}
"""The measures of faithfulness, and whether more or less is better."""
NULL, BEST = "(null)", "(best)"
"""Columns of erasure tables: the mean of several random orders, and the best that was found."""

Key = tuple[str, str]
"""A measure and a way of deletion."""


@dataclass(frozen=True)
class AuditEvidence:
    """The numbers of an audit, text by text; in tables rows are texts and columns methods, NaN where undefined.

    Args:
        methods: audited methods, controls included.
        erasure: by measure and way of deletion, with the columns `NULL` and `BEST` beside the methods.
        randomised: 1 - rank correlation with the scores on a model with random weights.
        edits: rank correlation with the scores of a slightly edited text, under another seed if the method samples.
        agreement: rank correlation of each two methods.
        plausibility: AUC of the ranking of marked words, on texts that are predicted right.
        gaps: error of the sum of the scores, as a share of the mean difference to the baseline.
        seconds: per text.
        teaches: the answers of students, by method.
        unasked: why a question was not asked of a method, or, under the name "", of any method.
    """

    methods: tuple[str, ...]
    controls: frozenset[str]
    erasure: Mapping[Key, pd.DataFrame]
    randomised: pd.DataFrame
    edits: pd.DataFrame
    agreement: Mapping[tuple[str, str], NDArray[np.float64]]
    plausibility: pd.DataFrame
    gaps: pd.DataFrame
    seconds: Mapping[str, float]
    optimised_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unasked: Mapping[tuple[Question, str], str] = field(default_factory=dict)
    teaches: Mapping[str, Answer] = field(default_factory=dict)


def level_of_look(look: int) -> float:
    """The error probability that the tests of a look may use: .05 / 2^look.

    >>> level_of_look(1), level_of_look(2)
    (0.025, 0.0125)
    """
    return ALPHA * 0.5**look


class Rules:
    """Answers and decisions from evidence, tested at one level."""

    def __init__(self, evidence: AuditEvidence, alpha: float) -> None:
        self.evidence, self.alpha = evidence, alpha
        self.struck = self._strike()
        self.kept = [key for key in evidence.erasure if key not in self.struck]
        self.composite = self._composite()

    # Faithfulness

    def _strike(self) -> dict[Key, str]:
        """Measures that cannot tell explanations from controls on this data, with the reason."""
        struck = {}
        for key, table in self.evidence.erasure.items():
            sign = SIGNS[key[0]]
            best = _defined(sign * (table[BEST] - table[NULL]))
            if len(best) < MIN_EXAMPLES:
                struck[key] = f"it is defined on {len(best)} texts, and {MIN_EXAMPLES} are needed"
            elif _p_value(best, f"best {key}") > self.alpha:
                struck[key] = "even the best explanation that was found is not better than random scores"
            else:
                others = [name for name in self.evidence.methods if name not in self.evidence.controls]
                found = [_p_value(_defined(sign * (table[name] - table[NULL])), f"{name} {key}") for name in others]
                if others and min(adjust_holm(found)) > self.alpha:
                    struck[key] = "no explanation is better than random scores"
        return struck

    def _composite(self) -> pd.DataFrame:
        """Faithfulness of each method and text as a share of the achievable: mean over the measures that count.

        The share of one measure is (value - random) / mean(best - random), so that its mean is 0 for random scores and
        1 for the best explanations that were found.
        """
        parts = []
        for key in self.kept:
            table, sign = self.evidence.erasure[key], SIGNS[key[0]]
            scale = float((sign * (table[BEST] - table[NULL])).mean())
            own = table[list(self.evidence.methods)]
            parts.append(sign * own.sub(table[NULL], axis=0) / scale)
        if not parts:
            return pd.DataFrame(columns=list(self.evidence.methods), dtype=float)
        return sum(parts[1:], parts[0]) / len(parts)

    def faithful(self) -> dict[str, Answer]:
        """Whether each method is better than random scores wherever a measure counts."""
        if not self.kept:
            reason = "no measure counts on this data: " + "; ".join(dict.fromkeys(self.struck.values()))
            return {name: _unasked(Question.FAITHFUL, name, reason) for name in self.evidence.methods}
        rows: dict[str, list[Measurement]] = {name: [] for name in self.evidence.methods}
        for key in self.evidence.erasure:
            for row in self._erasure_rows(key):
                rows[row.method].append(row)
        return {name: self._faithful_answer(name, rows[name]) for name in self.evidence.methods}

    def _erasure_rows(self, key: Key) -> list[Measurement]:
        """The share of the achievable of each method on one measure, tested against random scores."""
        table, sign = self.evidence.erasure[key], SIGNS[key[0]]
        scale = float((sign * (table[BEST] - table[NULL])).mean())
        excess = {name: _defined(sign * (table[name] - table[NULL])) for name in self.evidence.methods}
        p_values = adjust_holm([_p_value(values, f"{name} {key}") for name, values in excess.items()])
        rows = []
        for (name, values), p in zip(excess.items(), p_values, strict=True):
            shares = values / scale if scale > 0 else np.full_like(values, math.nan)
            value, low, high = mean_interval(shares, self.alpha, f"{name} {key}")
            rows.append(
                Measurement(
                    Question.FAITHFUL.value, key[0], name, key[1], value, low, high, len(values), 0.0, p,
                    self.struck.get(key, ""),
                )
            )  # fmt: skip
        return rows

    def _faithful_answer(self, name: str, rows: Sequence[Measurement]) -> Answer:
        counted = [row for row in rows if not row.struck]
        shares = _defined(self.composite[name])
        value, low, high = mean_interval(shares, self.alpha, f"composite {name}")
        better = [row for row in counted if row.p_value <= self.alpha]
        worse = [row for row in counted if row.high < 0]
        verdict, needed = Verdict.UNDECIDED, None
        reason = f"better than random scores on {len(better)} of {len(counted)} measures"
        if worse:
            verdict, reason = Verdict.NOT_SUPPORTED, f"worse than random scores on {_names(worse)}"
        elif high < MIN_SHARE:
            verdict, reason = Verdict.NOT_SUPPORTED, f"less than {MIN_SHARE:.0%} of what is achievable"
        elif len(better) == len(counted) and low > 0:
            verdict, reason = Verdict.SUPPORTED, f"better than random scores on all {len(counted)} measures"
        else:
            unclear = [row for row in counted if row not in better]
            reason += f", not clearly on {_names(unclear)}" if unclear else ""
            needed = self._faithful_size(name, unclear, shares)
        reason += f"; reaches {value:.0%} of what is achievable"
        return Answer(
            Question.FAITHFUL, name, verdict, value, low, high, len(shares), 0.0, reason, needed, tuple(rows)
        )  # fmt: skip

    def _faithful_size(self, name: str, unclear: Sequence[Measurement], shares: NDArray[np.float64]) -> int | None:
        """Texts that would show the method to be better on every unclear measure, or to be below the least share."""
        alpha = self.alpha / max(1, len(self.evidence.methods))
        sizes = []
        for row in unclear:
            if row.value <= 0:
                return sample_size(MIN_SHARE - float(shares.mean()), float(shares.std()), self.alpha)
            table, sign = self.evidence.erasure[row.measure, row.subset], SIGNS[row.measure]
            excess = _defined(sign * (table[name] - table[NULL]))
            sizes.append(sample_size(float(excess.mean()), float(excess.std()), alpha))
        return max((size for size in sizes if size is not None), default=None)

    def tiers(self) -> dict[str, int]:
        """1 for the methods that are not clearly below the best one by `TIER_MARGIN`, 2 for the best of the rest ..."""
        left = [name for name in self.evidence.methods if name not in self.evidence.controls]
        tiers: dict[str, int] = dict.fromkeys(self.evidence.methods, 0)
        if self.composite.empty:
            return tiers
        means = self.composite.mean()
        tier = 0
        while left:
            tier += 1
            best = max(left, key=lambda name: (means[name], name))
            others = [name for name in left if name != best]
            below = [
                _p_value(_defined(self.composite[best] - self.composite[name] - TIER_MARGIN), f"{best} {name}")
                for name in others
            ]
            adjusted = adjust_holm(below)
            clearly = {name for name, p in zip(others, adjusted, strict=True) if p <= self.alpha}
            for name in left:
                if name not in clearly:
                    tiers[name] = tier
            left = [name for name in left if name in clearly]
        return tiers

    # The other questions

    def model_dependent(self) -> dict[str, Answer]:
        """Whether the scores change with the weights: 1 - rank correlation with those on a randomised model."""
        return self._correlation_answers(
            Question.MODEL,
            self.evidence.randomised,
            MODEL_CHANGE,
            null=0.0,
            sentence="changes by {value:.2f} when the weights are randomised (0: not at all, 1: unrelated)",
        )

    def stable(self) -> dict[str, Answer]:
        """Whether the ranking of words survives a tiny edit of the text and, if the method samples, another seed."""
        return self._correlation_answers(
            Question.STABLE,
            self.evidence.edits,
            STABLE_CORRELATION,
            null=0.0,
            sentence="rank correlation under another seed and a tiny edit {value:.2f}",
        )

    def plausible(self) -> dict[str, Answer]:
        """Whether marked words rank above others, on texts that are predicted right; .5 by chance."""
        return self._correlation_answers(
            Question.PLAUSIBLE,
            self.evidence.plausibility,
            CHANCE_AUC,
            null=CHANCE_AUC,
            sentence="AUC of the words that people marked {value:.2f}, .50 by chance",
        )

    def agrees(self) -> dict[str, Answer]:
        """Whether a method's ranking correlates with those of the others, controls apart."""
        others = [name for name in self.evidence.methods if name not in self.evidence.controls]
        columns, ends = {}, {}
        for name in self.evidence.methods:
            pairs = {
                other: self.evidence.agreement[_pair(name, other)]
                for other in others
                if other != name and _pair(name, other) in self.evidence.agreement
            }
            if pairs:
                columns[name] = np.nanmean(np.stack(list(pairs.values())), 0) if pairs else np.array([])
                means = {other: float(np.nanmean(values)) for other, values in pairs.items()}
                ends[name] = (max(means, key=lambda key: means[key]), min(means, key=lambda key: means[key]), means)
        answers = self._correlation_answers(
            Question.AGREES,
            pd.DataFrame(columns),
            0.0,
            null=0.0,
            sentence="mean rank correlation with the other methods {value:.2f}",
        )
        for name, (most, least, means) in ends.items():
            reason = (
                f"{answers[name].reason}; most with {most} ({means[most]:.2f}), least with {least} ({means[least]:.2f})"
            )
            answers[name] = replace(answers[name], reason=reason)
        return answers

    def complete(self) -> dict[str, Answer]:
        """Whether the scores add up to the output, for methods that claim it."""
        answers = {}
        for name in self.evidence.methods:
            if name not in self.evidence.gaps:
                answers[name] = self._not_asked(Question.COMPLETE, name, "it does not claim that its scores add up")
                continue
            gaps = _defined(self.evidence.gaps[name])
            value, low, high = mean_interval(gaps, self.alpha, f"gap {name}")
            verdict = Verdict.SUPPORTED if value <= COMPLETE_ERROR else Verdict.NOT_SUPPORTED
            reason = f"the sum of the scores misses the output by {value:.1%} on average, at most {gaps.max():.1%}"
            row = Measurement(
                Question.COMPLETE.value, "error", name, "", value, low, high, len(gaps), COMPLETE_ERROR
            )  # fmt: skip
            answers[name] = Answer(
                Question.COMPLETE, name, verdict, value, low, high, len(gaps), COMPLETE_ERROR, reason, None, (row,)
            )  # fmt: skip
        return answers

    def _correlation_rows(
        self, question: Question, table: pd.DataFrame, threshold: float, *, null: float
    ) -> list[Measurement]:
        """The mean of each method's column, tested against a threshold (Holm over methods)."""
        names = [name for name in self.evidence.methods if name in table and len(_defined(table[name]))]
        columns = {name: _defined(table[name]) for name in names}
        p_values = adjust_holm(
            [_p_value(values - threshold, f"{question.value} {name}") for name, values in columns.items()]
        )
        rows = []
        for (name, values), p in zip(columns.items(), p_values, strict=True):
            value, low, high = mean_interval(values, self.alpha, f"{question.value} {name}")
            measure = "AUC" if question is Question.PLAUSIBLE else "rank correlation"
            rows.append(
                Measurement(question.value, measure, name, "", value, low, high, len(values), null, p)
            )  # fmt: skip
        return rows

    def _correlation_answers(
        self,
        question: Question,
        table: pd.DataFrame,
        threshold: float,
        *,
        null: float,
        sentence: str,
    ) -> dict[str, Answer]:
        """Supported where the mean is clearly on the right side of the threshold, not supported on the wrong side."""
        rows = {row.method: row for row in self._correlation_rows(question, table, threshold, null=null)}
        answers = {}
        for name in self.evidence.methods:
            row = rows.get(name)
            if row is None:
                answers[name] = self._not_asked(question, name, "no text gave a number")
                continue
            verdict, needed, reason = Verdict.UNDECIDED, None, sentence.format(value=row.value)
            if row.n < MIN_EXAMPLES:
                needed, reason = MIN_EXAMPLES, f"{reason}, on {row.n} texts"
            elif row.p_value <= self.alpha:
                verdict = Verdict.SUPPORTED
            elif row.high <= threshold:
                verdict = Verdict.NOT_SUPPORTED
            else:
                deviation = float(_defined(table[name]).std())
                needed = sample_size(row.value - threshold, deviation, self.alpha / max(1, len(rows)))
            answers[name] = Answer(
                question, name, verdict, row.value, row.low, row.high, row.n, null, reason, needed, (row,)
            )  # fmt: skip
        return answers

    def _not_asked(self, question: Question, name: str, reason: str) -> Answer:
        given = self.evidence.unasked.get((question, name)) or self.evidence.unasked.get((question, ""))
        return _unasked(question, name, given or reason)

    # Everything together

    def methods(self) -> tuple[MethodAudit, ...]:
        """Every method with its answers and its decision, the best first, controls last."""
        answers = {
            Question.FAITHFUL: self.faithful(),
            Question.MODEL: self.model_dependent(),
            Question.STABLE: self.stable(),
            Question.COMPLETE: self.complete(),
            Question.AGREES: self.agrees(),
            Question.PLAUSIBLE: self.plausible(),
            Question.TEACHES: {
                name: self.evidence.teaches.get(name) or self._not_asked(Question.TEACHES, name, "not trained")
                for name in self.evidence.methods
            },
        }
        tiers = self.tiers()
        audits = []
        for name in self.evidence.methods:
            own = tuple(answers[question][name] for question in Question)
            share = own[0]
            decision, reason = (None, "a control, which must do badly")
            if name not in self.evidence.controls:
                decision, reason = decide({answer.question: answer for answer in own}, tiers[name])
            audits.append(
                MethodAudit(
                    name,
                    name in self.evidence.controls,
                    own,
                    share.value,
                    share.low,
                    share.high,
                    tiers[name],
                    self.evidence.seconds.get(name, math.nan),
                    decision,
                    reason,
                    self.evidence.optimised_for.get(name, ()),
                )
            )
        return tuple(sorted(audits, key=_order))


def decide(answers: Mapping[Question, Answer], tier: int) -> tuple[Decision, str]:
    """Whether an explanation may be shown, and why.

    *may be shown*: faithful, dependent on the model, not unstable or incomplete, and no other method is clearly more
    faithful. *looks right but is not*: plausible to people, but not faithful or independent of the model. *not to be
    shown*: not faithful or independent of the model. *not alone*: everything else, with what is missing.
    """
    verdicts = {question: answer.verdict for question, answer in answers.items()}
    faults = [
        question for question in (Question.FAITHFUL, Question.MODEL) if verdicts[question] is Verdict.NOT_SUPPORTED
    ]
    if faults:
        reason = "; ".join(answers[question].reason for question in faults)
        if verdicts[Question.PLAUSIBLE] is Verdict.SUPPORTED:
            return Decision.MISLEADING, f"people find it plausible, but {reason}"
        return Decision.HIDE, reason
    missing = []
    for question in (Question.FAITHFUL, Question.MODEL):
        if verdicts[question] is not Verdict.SUPPORTED:
            answer = answers[question]
            more = f" (about {answer.texts_needed} texts would decide)" if answer.texts_needed else ""
            missing.append(f"{question.value}: {'undecided' if answer.verdict else 'not asked'}, {answer.reason}{more}")
    for question in (Question.STABLE, Question.COMPLETE):
        if verdicts[question] is Verdict.NOT_SUPPORTED:
            missing.append(f"not {question.value}: {answers[question].reason}")
    if tier > 1:
        missing.append("another explanation is clearly more faithful")
    if missing:
        return Decision.NOT_ALONE, "; ".join(missing)
    return Decision.SHOW, answers[Question.FAITHFUL].reason


_DECISIONS = (Decision.SHOW, Decision.NOT_ALONE, Decision.MISLEADING, Decision.HIDE)


def _order(audit: MethodAudit) -> tuple[bool, int, float, float, str]:
    """Decision first; among those that may be shown the cheapest, among the others the most faithful first."""
    place = len(_DECISIONS) if audit.decision is None else _DECISIONS.index(audit.decision)
    cost = audit.seconds if audit.decision is Decision.SHOW and math.isfinite(audit.seconds) else 0.0
    share = audit.achievable if math.isfinite(audit.achievable) else -math.inf
    return audit.control, place, cost, -share, audit.name


def _unasked(question: Question, name: str, reason: str) -> Answer:
    return Answer(question, name, None, reason=reason)


def _pair(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first <= second else (second, first)


def _names(rows: Sequence[Measurement]) -> str:
    return ", ".join(f"{row.measure} ({row.subset})" if row.subset else row.measure for row in rows)


def _defined(values: pd.Series | NDArray[np.float64]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def _p_value(values: NDArray[np.float64], purpose: str) -> float:
    """The p-value of the hypothesis that the mean is at most 0; NaN for too few values."""
    if len(values) < MIN_EXAMPLES:
        return math.nan
    generator = Generator().manual_seed(derive_seed("audit test", purpose))
    return float(studentised_p_values(torch.from_numpy(values).unsqueeze(1), generator=generator))


def mean_interval(values: NDArray[np.float64], alpha: float, purpose: str) -> tuple[float, float, float]:
    """The mean and its interval at level 1 - 2 alpha, so that a bound beyond 0 is a one-sided test at alpha."""
    if not len(values):
        return math.nan, math.nan, math.nan
    mean = float(values.mean())
    if len(values) >= MIN_EXAMPLES and float(np.ptp(values)) <= 1e-12 * max(1.0, abs(mean)):
        return mean, mean, mean
    generator = Generator().manual_seed(derive_seed("audit interval", purpose))
    interval = bootstrap_interval(torch.from_numpy(values), level=1 - 2 * alpha, resamples=4000, generator=generator)
    return mean, interval.low, interval.high
