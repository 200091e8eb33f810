"""The rules of an audit: how numbers become verdicts, tiers and decisions. They are the same for every method.

- *faithful*: better than random scores on every measure that counts, of which every way of deletion must have one, and
  on all measures together, whether they count or not (Holm over methods).
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.audits.audit_result import Answer, Decision, Measurement, MethodAudit, Question
from heedful.measures.bootstrap import MIN_EXAMPLES, studentised_bounds
from heedful.measures.hypothesis_tests import RESAMPLES, adjust_holm, sample_size, studentised_p_values
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
CHEAP_SECONDS = 0.1
MEASURE_NAMES: Mapping[Question, str] = {Question.PLAUSIBLE: "AUC", Question.MODEL: "1 - rank correlation"}
NO_EXPLANATION = "no explanation is better than random scores"
"""Why a measure does not count although better explanations exist."""
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
        edits: rank correlation with scores that should be the same, as `repetition` says.
        repetition: how they were computed again; a method that does not sample has no other seed.
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
    repetition: str = "another seed and a tiny edit"


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
        self.p_values = {key: self._erasure_tests(key) for key in evidence.erasure}
        self.struck = self._strike()
        self.kept = [key for key in evidence.erasure if key not in self.struck]
        self.composite = self._composite(self.kept or self._short())

    # Faithfulness

    def _excess(self, key: Key, name: str) -> NDArray[np.float64]:
        """How much better a method is than random scores on each text where that is defined."""
        table = self.evidence.erasure[key]
        return _defined(SIGNS[key[0]] * (table[name] - table[NULL]))

    def _scale(self, key: Key) -> float:
        """How much better the best explanation that was found is than random scores, on average; NaN if undefined."""
        best = self._excess(key, BEST)
        return float(best.mean()) if len(best) else math.nan

    def _erasure_tests(self, key: Key) -> dict[str, float]:
        """The p-value of each method, and of `BEST`, against random scores."""
        names = (*self.evidence.methods, BEST)
        return dict(
            zip(names, _p_values([self._excess(key, name) for name in names], self.alpha, f"{key}"), strict=True)
        )

    def _short(self) -> list[Key]:
        """Measures that are defined on some texts, but on too few."""
        return [key for key in self.evidence.erasure if 0 < len(self._excess(key, BEST)) < MIN_EXAMPLES]

    def _strike(self) -> dict[Key, str]:
        """Measures that cannot tell explanations from controls on this data, with the reason."""
        struck, short = {}, self._short()
        others = [name for name in self.evidence.methods if name not in self.evidence.controls]
        for key, p_values in self.p_values.items():
            if key in short:
                struck[key] = f"it is defined on {len(self._excess(key, BEST))} texts, and {MIN_EXAMPLES} are needed"
            elif math.isnan(p_values[BEST]):
                struck[key] = "it is not defined for this model"
            elif p_values[BEST] > self.alpha:
                struck[key] = "even the best explanation that was found is not better than random scores"
            elif others and not any(p <= self.alpha for p in adjust_holm([p_values[name] for name in others])):
                struck[key] = NO_EXPLANATION
        return struck

    def _composite(self, keys: Sequence[Key]) -> pd.DataFrame:
        """Faithfulness of each method and text as a share of the achievable: mean over these measures.

        The share of one measure is (value - random) / mean(best - random), so that its mean is 0 for random scores and
        1 for the best explanations that were found.
        """
        parts = []
        for key in keys:
            table, sign, scale = self.evidence.erasure[key], SIGNS[key[0]], self._scale(key)
            if scale > 0:
                parts.append(sign * table[list(self.evidence.methods)].sub(table[NULL], axis=0) / scale)
        if not parts:
            return pd.DataFrame(columns=list(self.evidence.methods), dtype=float)
        return sum(parts[1:], parts[0]) / len(parts)

    def faithful(self) -> dict[str, Answer]:
        """Whether each method is better than random scores wherever a measure counts."""
        if not self.kept and not self._short():
            reason = "no measure counts on this data: " + "; ".join(dict.fromkeys(self.struck.values()))
            return {name: _unasked(Question.FAITHFUL, name, reason) for name in self.evidence.methods}
        rows: dict[str, list[Measurement]] = {name: [] for name in self.evidence.methods}
        for key in self.evidence.erasure:
            for row in self._erasure_rows(key):
                rows[row.method].append(row)
        shares = [_defined(self.composite[name]) for name in rows]
        intervals = mean_intervals(shares, self.alpha, "composite")
        # With many measures something is better than random on one of them by chance, and then that measure counts. The
        # test of all of them together errs with probability alpha whatever is struck.
        sensitive = [key for key in self.evidence.erasure if self.struck.get(key, NO_EXPLANATION) == NO_EXPLANATION]
        together = self._composite(sensitive)
        p_values = adjust_holm(_p_values([_defined(together[name]) for name in rows], self.alpha, "all measures"))
        return {
            name: self._faithful_answer(name, rows[name], own, interval, p_value)
            for name, own, interval, p_value in zip(rows, shares, intervals, p_values, strict=True)
        }

    def _erasure_rows(self, key: Key) -> list[Measurement]:
        """The share of the achievable of each method on one measure, tested against random scores."""
        scale = self._scale(key)
        excess = {name: self._excess(key, name) for name in self.evidence.methods}
        p_values = adjust_holm([self.p_values[key][name] for name in excess])
        shares = [values / scale if scale > 0 else np.full_like(values, math.nan) for values in excess.values()]
        intervals = mean_intervals(shares, self.alpha, f"{key}")
        rows = []
        for (name, values), p, (value, low, high) in zip(excess.items(), p_values, intervals, strict=True):
            rows.append(
                Measurement(
                    Question.FAITHFUL.value, key[0], name, key[1], value, low, high, len(values), 0.0, p,
                    self.struck.get(key, ""),
                )
            )  # fmt: skip
        return rows

    def _faithful_answer(
        self,
        name: str,
        rows: Sequence[Measurement],
        shares: NDArray[np.float64],
        interval: tuple[float, float, float],
        p_value: float,
    ) -> Answer:
        """Args:
        shares: of the achievable, by text; with the interval of their mean.
        p_value: of the test of all measures together.
        """
        counted, (value, low, high) = [row for row in rows if not row.struck], interval
        uncounted = sorted({row.subset for row in rows} - {row.subset for row in counted})
        better = [row for row in counted if row.p_value <= self.alpha]
        worse = [row for row in counted if row.high < 0]
        verdict, needed = Verdict.UNDECIDED, None
        reason = f"better than random scores on {len(better)} of {len(counted)} measures"
        if not counted:
            needed, reason = MIN_EXAMPLES, f"{len(shares)} texts are too few to tell it from random scores"
        elif worse:
            verdict, reason = Verdict.NOT_SUPPORTED, f"worse than random scores on {_names(worse)}"
        elif high < MIN_SHARE:
            verdict, reason = Verdict.NOT_SUPPORTED, f"less than {MIN_SHARE:.0%} of what is achievable"
        elif len(better) == len(counted) and low > 0 and p_value <= self.alpha and not uncounted:
            verdict, reason = Verdict.SUPPORTED, f"better than random scores on all {len(counted)} measures"
        else:
            unclear = [row for row in counted if row not in better]
            reason += f", not clearly on {_names(unclear)}" if unclear else ""
            reason += "" if unclear or p_value <= self.alpha else ", not clearly on all measures together"
            reason += f"; no measure counts under {', '.join(uncounted)}" if uncounted else ""
            needed = self._faithful_size(name, unclear, shares) if unclear or not uncounted else None
        reason += f"; reaches {value:.0%} of what is achievable"
        return Answer(
            Question.FAITHFUL, name, verdict, value, low, high, len(shares), 0.0, reason, needed, tuple(rows)
        )  # fmt: skip

    def _faithful_size(self, name: str, unclear: Sequence[Measurement], shares: NDArray[np.float64]) -> int | None:
        """Texts that would show the method to be better on every unclear measure, or not faithful."""

        def size(effects: NDArray[np.float64], alpha: float) -> int | None:
            return _more_texts(float(effects.mean()) if len(effects) else 0.0, effects, alpha)

        if all(row.value > 0 for row in unclear):
            alpha = self.alpha / max(1, len(self.evidence.methods))
            sizes = [size(self._excess((row.measure, row.subset), name), alpha) for row in unclear]
            return max((each for each in sizes if each is not None), default=size(shares, self.alpha))
        # Worse than random on one measure, or below the least share, is enough.
        sizes = [size(self._excess((row.measure, row.subset), name), self.alpha) for row in unclear if row.value <= 0]
        if len(shares) and float(shares.mean()) < MIN_SHARE:
            sizes.append(size(MIN_SHARE - shares, self.alpha))
        return min((each for each in sizes if each is not None), default=None)

    def tiers(self) -> dict[str, int]:
        """1 for the methods that are not clearly below the best one by `TIER_MARGIN`, 2 for the best of the rest ..."""
        tiers: dict[str, int] = dict.fromkeys(self.evidence.methods, 0)
        if not self.kept:
            return tiers
        means, tier = self.composite.mean(), 0
        left = [
            name for name in self.evidence.methods if name not in self.evidence.controls and not math.isnan(means[name])
        ]
        while left:
            tier += 1
            best = max(left, key=lambda name: (means[name], name))
            others = [name for name in left if name != best]
            below = [_defined(self.composite[best] - self.composite[name] - TIER_MARGIN) for name in others]
            adjusted = adjust_holm(_p_values(below, self.alpha, f"below {best}"))
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
            sentence=f"rank correlation under {self.evidence.repetition} {{value:.2f}}",
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
            table = pd.DataFrame(pairs)
            means = {str(other): mean for other, mean in table.mean().items() if not math.isnan(mean)}
            if means:
                columns[name] = table.mean(axis=1)
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
            if not len(gaps):
                answers[name] = self._not_asked(Question.COMPLETE, name, "no text gave a number")
                continue
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
            _p_values([values - threshold for values in columns.values()], self.alpha, question.value)
        )
        intervals = mean_intervals(list(columns.values()), self.alpha, question.value)
        rows = []
        for (name, values), p, (value, low, high) in zip(columns.items(), p_values, intervals, strict=True):
            measure = MEASURE_NAMES.get(question, "rank correlation")
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
                needed = _more_texts(row.value - threshold, _defined(table[name]), self.alpha / max(1, len(rows)))
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
    """Decision first; among those that may be shown the cheapest, among equally cheap ones the most faithful first.

    Below a tenth of a second nobody waits; above it costs are equal up to a factor of 3.
    """
    place = len(_DECISIONS) if audit.decision is None else _DECISIONS.index(audit.decision)
    cost = 0.0
    if audit.decision is Decision.SHOW and audit.seconds > CHEAP_SECONDS:
        cost = 1.0 + math.floor(math.log(audit.seconds / CHEAP_SECONDS, 3))
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


def _resample(
    columns: Sequence[NDArray[np.float64]], purpose: str, compute: Callable[[Tensor, Generator], tuple[Tensor, ...]]
) -> list[tuple[float, ...]]:
    """The numbers that `compute` finds for each column; none for one of too few values.

    Columns of one length share their resamples, which are most of the work.
    """
    found: list[tuple[float, ...]] = [()] * len(columns)
    for count in sorted({len(values) for values in columns if len(values) >= MIN_EXAMPLES}):
        places = [place for place, values in enumerate(columns) if len(values) == count]
        together = torch.from_numpy(np.stack([columns[place] for place in places], 1))
        numbers = compute(together, Generator().manual_seed(derive_seed("audit", purpose, count)))
        for place, own in zip(places, torch.stack(numbers, 1).tolist(), strict=True):
            found[place] = tuple(own)
    return found


def _p_values(columns: Sequence[NDArray[np.float64]], alpha: float, purpose: str) -> list[float]:
    """P-values of the hypotheses that the mean of each column is at most 0; NaN for too few values.

    There are enough resamples for the smallest p-value to be below alpha after Holm's correction, at any look.
    """
    resamples = max(RESAMPLES, math.ceil(2 * len(columns) / alpha))
    found = _resample(
        columns,
        f"test {purpose}",
        lambda values, generator: (studentised_p_values(values, resamples=resamples, generator=generator),),
    )
    return [p_value[0] if p_value else math.nan for p_value in found]


def _more_texts(effect: float, values: NDArray[np.float64], alpha: float) -> int | None:
    """Texts that would show an effect of this size with the spread of these values; more than there are."""
    needed = sample_size(effect, float(values.std()), alpha) if len(values) else None
    return None if needed is None else max(needed, len(values) + 1)


def mean_intervals(
    columns: Sequence[NDArray[np.float64]], alpha: float, purpose: str
) -> list[tuple[float, float, float]]:
    """The mean of each column and its interval at level 1 - 2 alpha, so that a bound beyond 0 is a test at alpha."""
    level, resamples = 1 - 2 * alpha, max(4000, math.ceil(10 / alpha))
    bounds = _resample(
        columns,
        f"interval {purpose}",
        lambda values, generator: studentised_bounds(values, level=level, resamples=resamples, generator=generator),
    )
    found = []
    for values, own in zip(columns, bounds, strict=True):
        mean = float(values.mean()) if len(values) else math.nan
        is_constant = bool(own) and float(np.ptp(values)) <= 1e-12 * max(1.0, abs(mean))
        low, high = (mean, mean) if is_constant else own or (math.nan, math.nan)
        found.append((mean, low, high))
    return found


def mean_interval(values: NDArray[np.float64], alpha: float, purpose: str) -> tuple[float, float, float]:
    """The mean and its interval at level 1 - 2 alpha."""
    return mean_intervals([values], alpha, purpose)[0]
