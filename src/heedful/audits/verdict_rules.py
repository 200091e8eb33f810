"""How the numbers of an audit become verdicts and tiers, by the same rules for every method.

The rule of faithfulness is here: better than random scores on every measure that counts, of which every way of deletion
must have one, and clearly above a least share of the achievable (Holm over methods). The rules of the other questions
are in `questions`, from the tests of means here; what may be shown follows from all of them in `decisions`.

That a method is better is tested by the studentized bootstrap, and beside it against failures that were not seen: a
method that fails on every twentieth text fails on none of 28 texts in 24 % of samples, and a bootstrap knows nothing of
that. A text that was not drawn may lose as much as the best explanation gains on any text, since random orders gain
nothing on average. That a method is not better is tested by bounds of means of bounded values
(`measures.bounded_mean`), where such a text may gain as much. Every test has Holm's correction. An interval has the
bounds of the bootstrap and of the bounded mean: its lower end speaks of texts like those that were drawn.

The level does not hold where texts of a kind that was not drawn have more at stake than all that were: no sample tells.

Texts are drawn before any result is seen. An audit that goes on after a look at its results tests at .05 / 2^look, so
that all looks together err with probability .05 at most.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Generator

from heedful.attributions.method import MethodTags
from heedful.formatting import format_share
from heedful.measures.bootstrap import MIN_EXAMPLES, Interval
from heedful.measures.bounded_mean import (
    mean_interval,
    p_value,
    ratio_bound,
    sample_size,
    unseen_p_value,
)
from heedful.measures.hypothesis_tests import RESAMPLES, adjust_holm, studentised_p_values
from heedful.measures.intervals import mean_intervals, resample_by_length
from heedful.results import Finding, Statistic, Verdict
from heedful.store.recipe import derive_seed

ALPHA = 0.05
OUT_OF_REACH = 10
"""How many times the texts that were audited nobody waits for."""
MIN_ANSWER_TEXTS = 12
"""Fewer texts decide no question. There are no verdicts, and no look is counted, before an audit has `MIN_EXAMPLES`."""
EQUAL_OUTPUTS = 1e-9
"""Smaller differences of outputs are none."""
SIGNS: Mapping[str, int] = {"comprehensiveness": 1, "sufficiency": -1, "flip": -1}
"""The measures of faithfulness, and whether more or less is better."""
SHARE = "share of the achievable"
"""The metric over all measures of faithfulness that count."""
FAITHFUL = "faithful"
"""The question that the erasures answer."""
BEHIND = "behind the most faithful method"
"""The metric of how far one method is behind another, as a share of the achievable; the other one is the subset."""
NULL, BEST = "(null)", "(best)"
"""Columns of erasure tables: the mean over random orders, and the best that was found."""


@dataclass(frozen=True)
class Thresholds:
    """The numbers that are judgments, not facts: a page shows what would be decided with others.

    Args:
        least_share: of the achievable, which a faithful explanation clearly exceeds; one clearly below is not faithful.
        tier_margin: share of the achievable that a method of a lower tier is clearly below the best of a tier.
        lead: share of the achievable; one that is clearly further behind the most faithful method is not shown, and one
            that is clearly not may be shown.
        model_change: 1 - rank correlation with the scores on a randomized model; a method that changes less does not
            depend on the model.
        model_excess: the same beyond what another seed or a tiny edit changes.
        stable_correlation: rank correlation of scores that should be the same.
        complete_error: share of the output that the sum of the scores may miss.
    """

    least_share: float = 0.1
    tier_margin: float = 0.05
    lead: float = 0.15
    model_change: float = 0.5
    model_excess: float = 0.1
    stable_correlation: float = 0.7
    complete_error: float = 0.05

    def others(self) -> Iterator[tuple[str, float, Thresholds]]:
        """Each threshold halved and doubled, all others as they are; half the way to 1 where doubling goes beyond it.

        >>> [round(value, 3) for name, value, _ in Thresholds().others() if name in ("least_share", "model_change")]
        [0.05, 0.2, 0.25, 0.75]
        """
        for entry in fields(self):
            value: float = getattr(self, entry.name)
            for other in (value / 2, min(2 * value, (1 + value) / 2)):
                yield entry.name, other, replace(self, **{entry.name: other})


NO_EXPLANATION_IS_BETTER = "no explanation is better than random scores"
"""Why a measure does not count, unless there is no other."""
THRESHOLDS = Thresholds()
"""Those of every audit."""
ErasureKey = tuple[str, str]
"""A measure and a way of deletion."""


@dataclass(frozen=True)
class AuditEvidence:
    """The numbers of an audit, text by text; in tables rows are texts and columns methods, NaN where undefined.

    Args:
        methods: audited methods, controls included.
        erasure: by measure and way of deletion, with columns for `NULL`, `BEST` and `blind` beside the methods.
        blind: names of orders that ignore the model, and that an explanation must beat to say anything about it.
        tables: by question, what its `read` returned.
        unasked: why a question has no numbers for a method, by question and method.
        seconds: per text.
        optimized_for: by method, the measures that it optimizes itself, as `measure_label` names them.
        tags: by method, what its heat-maps can show.
        asked: of how many texts each question was asked that is not asked of all.
    """

    methods: tuple[str, ...]
    controls: frozenset[str]
    erasure: Mapping[ErasureKey, pd.DataFrame]
    blind: tuple[str, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    unasked: Mapping[tuple[str, str], str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    optimized_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tags: Mapping[str, MethodTags] = field(default_factory=dict)
    asked: Mapping[str, int] = field(default_factory=dict)

    @property
    def texts(self) -> int:
        """How many texts were audited."""
        return max(map(len, self.erasure.values()), default=0)


@dataclass(frozen=True)
class WayShare:
    """Faithfulness under one way of removing words.

    Args:
        share: of the achievable, over the measures that count; `subset` is the way of removal.
        tier: 1 for the methods that no other beats under this way of removal; 0 where tiers were not formed.
    """

    share: Statistic
    tier: int


@dataclass(frozen=True)
class MeanScale:
    """The numbers of a question: what they are, how they lie and which mean decides.

    Args:
        lowest: no value is below; `highest`: none is above.
        threshold: the mean that must be exceeded.
        null: what a method without merit reaches.
    """

    metric: str
    lowest: float
    highest: float
    threshold: float
    null: float

    def p_value(self, values: NDArray[np.float64], sign: int) -> float:
        """Of a mean above the threshold, or below it with a sign of -1."""
        return p_value(sign * values, self.lowest if sign > 0 else -self.highest, sign * self.threshold)

    def texts_needed(self, values: NDArray[np.float64], alpha: float) -> int | None:
        """Texts that would probably show on which side of the threshold the mean is."""
        return sample_size(values, self.lowest, self.threshold, alpha) or sample_size(
            -values, -self.highest, -self.threshold, alpha
        )


def more_texts(needed: int, texts: int, noun: str = "texts") -> str:
    """How many texts would decide something; an estimate of more than `OUT_OF_REACH` times those there are is not told.

    >>> more_texts(200, 28), more_texts(2000, 28)
    ('about 200 texts', 'more than 10 times as many texts')
    """
    is_far = needed > OUT_OF_REACH * texts > 0
    return f"more than {OUT_OF_REACH} times as many {noun}" if is_far else f"about {needed} {noun}"


def level_of_look(look: int) -> float:
    """The error probability that the tests of a look may use: .05 / 2^look.

    >>> level_of_look(1), level_of_look(2)
    (0.025, 0.0125)
    """
    return ALPHA * 0.5**look


class Rules:
    """Answers and decisions from evidence, tested at one level."""

    def __init__(self, evidence: AuditEvidence, alpha: float, thresholds: Thresholds = THRESHOLDS) -> None:
        self.evidence, self.alpha, self.thresholds = evidence, alpha, thresholds
        self.gains = {key: self._gains(key) for key in evidence.erasure}
        self.p_values = {key: self._better_than_random(key) for key in evidence.erasure}
        sizes = [len(gains) for gains in self.gains.values()]
        self.is_early = 0 < max(sizes, default=0) < MIN_EXAMPLES
        """Whether there are too few texts for any verdict."""
        self.struck = self._strike()
        self.kept = [key for key in evidence.erasure if key not in self.struck]
        self.composite = self._composite(self.kept or self._short())

    def with_thresholds(self, thresholds: Thresholds) -> Rules:
        """The same evidence with other thresholds; what does not use them is not computed again."""
        other = copy.copy(self)
        other.thresholds = thresholds
        return other

    # Faithfulness

    def _gains(self, key: ErasureKey) -> pd.DataFrame:
        """How much better each method, and `BEST`, is than random scores on each text where that is defined."""
        table = self.evidence.erasure[key]
        gains = SIGNS[key[0]] * table[[*self.evidence.methods, *self.evidence.blind, BEST]].sub(table[NULL], axis=0)
        # Equal outputs differ from their mean by rounding, which may have the same sign on every text.
        rounded: pd.DataFrame = gains.mask(gains.abs() < EQUAL_OUTPUTS, 0.0)[np.isfinite(gains[BEST])]
        return rounded

    def _better_than_random(self, key: ErasureKey) -> dict[str, float]:
        """The p-value of each method, and of `BEST`, against random scores, not adjusted."""
        gains = self.gains[key]
        p_values = _p_values([defined(gains[name]) for name in gains], -_largest_loss(gains), self.alpha, f"{key}")
        # The best order never loses: random ones gain nothing on average.
        best = _p_values([defined(gains[BEST])], 0.0, self.alpha, f"{key}")
        return dict(zip(map(str, gains), p_values, strict=True)) | {BEST: best[0]}

    def _short(self) -> list[ErasureKey]:
        """Measures that are defined on some texts, but on too few."""
        return [key for key, gains in self.gains.items() if 0 < len(gains) < MIN_EXAMPLES]

    def _strike(self) -> dict[ErasureKey, str]:
        """Measures that cannot tell explanations from controls on this data, with the reason."""
        struck, short = {}, self._short()
        others = [name for name in self.evidence.methods if name not in self.evidence.controls]
        for key, p_values in self.p_values.items():
            if key in short:
                struck[key] = f"it is defined on {len(self.gains[key])} texts, and {MIN_EXAMPLES} are needed"
            elif math.isnan(p_values[BEST]):
                struck[key] = "it is not defined for this model"
            elif p_values[BEST] > self.alpha:
                struck[key] = "even the best explanation that was found is not better than random scores"
            elif others and not any(p <= self.alpha for p in adjust_holm([p_values[name] for name in others])):
                struck[key] = NO_EXPLANATION_IS_BETTER
        if len(struck) == len(self.p_values):
            # Where no explanation is better on any measure the explanations fail, not the measures.
            struck = {key: reason for key, reason in struck.items() if reason != NO_EXPLANATION_IS_BETTER}
        return struck

    def _composite(self, keys: Sequence[ErasureKey]) -> pd.DataFrame:
        """Faithfulness of each method and text as a share of the achievable: mean over these measures.

        The share of one measure is (value - random) / mean(best - random), so that its mean is 0 for random scores and
        1 for `BEST`, the best explanations that were found.
        """
        parts = [gains / scale for key in keys if (scale := float((gains := self.gains[key])[BEST].mean())) > 0]
        if not parts:
            return pd.DataFrame(columns=[*self.evidence.methods, *self.evidence.blind, BEST], dtype=float)
        return sum(parts[1:], parts[0]) / len(parts)

    def faithful(self) -> dict[str, Finding]:
        """Whether each method is better than random scores wherever a measure counts, and reaches the least share."""
        if not self.kept and not self._short():
            reason = "no measure counts on this data: " + "; ".join(dict.fromkeys(self.struck.values()))
            return {
                name: Finding(Verdict.NOT_TESTED, name, reason=reason, question=FAITHFUL)
                for name in self.evidence.methods
            }
        rows = self._measure_rows
        # With many measures something is better than random on one of them by chance, and then that measure counts. The
        # test of all that can tell the best explanations from random scores errs with its level whatever is struck.
        short = self._short()
        sensitive = [key for key, p in self.p_values.items() if key not in short and p[BEST] <= self.alpha]
        above, below = self._above_least_share(self._composite(sensitive)), self._below_least_share()
        worse, shares = self._worse_than_random(), self._composite_shares
        blind, beats = self._beats_blind_orders()
        answers = {}
        for name in rows:
            texts = int(self.composite[name].notna().sum())
            share = Statistic(
                SHARE, name, "", *shares[name], texts, null=self.thresholds.least_share, p_value=above[name]
            )
            answer = self._faithful_answer(name, rows[name], share, below[name], worse[name])
            if answer.verdict is Verdict.SUPPORTED and blind and not beats[name] <= self.alpha:
                reason = f"{answer.reason}, but not clearly more than ranking by {blind}, which ignores the model"
                answer = replace(answer, verdict=Verdict.UNDECIDED, reason=reason)
            answers[name] = answer
        return answers

    @cached_property
    def _composite_shares(self) -> dict[str, Interval]:
        return self._shares(self.composite, "composite")

    @cached_property
    def _measure_rows(self) -> dict[str, list[Statistic]]:
        """By method, its statistic on each measure."""
        rows: dict[str, list[Statistic]] = {name: [] for name in self.evidence.methods}
        for key in self.evidence.erasure:
            for row in self._erasure_rows(key):
                rows[row.method].append(row)
        return rows

    def _erasure_rows(self, key: ErasureKey) -> list[Statistic]:
        """The share of the achievable of each method on one measure, tested against random scores."""
        names = self.evidence.methods
        p_values = adjust_holm([self.p_values[key][name] for name in names])
        shares = self._shares(self.gains[key], f"{key}")
        return [
            Statistic(key[0], name, key[1], *shares[name], n, null=0.0, p_value=p)
            for name, p in zip(names, p_values, strict=True)
            for n in [int(self.gains[key][name].notna().sum())]
        ]

    def _shares(self, gains: pd.DataFrame, purpose: str) -> dict[str, Interval]:
        """The mean gain of each method as a share of that of the best explanations, with its interval."""
        pairs = {name: gains[[name, BEST]].dropna() for name in self.evidence.methods}
        shares = {
            name: float(pair[name].mean() / scale) if (scale := float(pair[BEST].mean())) > 0 else math.nan
            for name, pair in pairs.items()
        }
        # The variance of a ratio of means is that of the mean of these residuals, which is 0.
        residuals = [
            defined((pair[name] - shares[name] * pair[BEST]) / pair[BEST].mean()) for name, pair in pairs.items()
        ]
        bounds = dict(zip(pairs, audit_intervals(residuals, self.alpha, purpose), strict=True))
        intervals = {}
        for name, share in shares.items():
            low = high = math.nan
            if len(pairs[name]) >= MIN_EXAMPLES and not math.isnan(share):
                low = share + bounds[name].low
                high = ratio_bound(defined(pairs[name][name]), defined(pairs[name][BEST]), self.alpha)
            intervals[name] = Interval(share, low, high)
        return intervals

    def _above_least_share(self, table: pd.DataFrame) -> dict[str, float]:
        """P-values (Holm over methods) of shares above the least one."""
        names, least = self.evidence.methods, self.thresholds.least_share
        lowest = -(1 + least) * _largest_loss(table)
        excess = [defined(table[name] - least * table[BEST]) for name in names]
        return dict(zip(names, adjust_holm(_p_values(excess, lowest, self.alpha, "least share")), strict=True))

    def _below_least_share(self) -> dict[str, float]:
        """P-values (Holm over methods) of shares below the least one."""
        table, names = self.composite, self.evidence.methods
        missing = [defined(self.thresholds.least_share * table[BEST] - table[name]) for name in names]
        lowest = (self.thresholds.least_share - 1) * float(table[BEST].max()) if len(table) else math.nan
        return dict(zip(names, adjust_holm([p_value(values, lowest) for values in missing]), strict=True))

    def _beats_blind_orders(self) -> tuple[str, dict[str, float]]:
        """The best of the orders that ignore the model, and the p-values (Holm) of the methods against it."""
        table, names = self.composite, self.evidence.methods
        if not self.evidence.blind or not len(table):
            return "", {}
        means = table.mean()
        best = max(self.evidence.blind, key=lambda name: (means[name], name))
        excess, lowest = [defined(table[name] - table[best]) for name in names], -_largest_loss(table)
        return best, dict(zip(names, adjust_holm(_p_values(excess, lowest, self.alpha, "blind orders")), strict=True))

    def _worse_than_random(self) -> dict[str, dict[ErasureKey, float]]:
        """By method and measure that counts, the p-value of being worse than random scores (Holm over all of them)."""
        tests = [(name, key) for name in self.evidence.methods for key in self.kept]
        p_values = adjust_holm(
            [p_value(-defined(self.gains[key][name]), -float(self.gains[key][BEST].max())) for name, key in tests]
        )
        worse: dict[str, dict[ErasureKey, float]] = {name: {} for name in self.evidence.methods}
        for (name, key), p in zip(tests, p_values, strict=True):
            worse[name][key] = p
        return worse

    def _faithful_answer(
        self,
        name: str,
        rows: Sequence[Statistic],
        share: Statistic,
        below: float,
        worse: Mapping[ErasureKey, float],
    ) -> Finding:
        """Args:
        share: of the achievable, tested against the least one.
        below: p-value of a share below the least one.
        worse: p-values of being worse than random scores, by measure.
        """
        counted = [row for row in rows if (row.metric, row.subset) not in self.struck]
        uncounted = sorted({row.subset for row in rows} - {row.subset for row in counted})
        better = [row for row in counted if row.p_value <= self.alpha]
        # Each of the two may refute a method, so each has half of the error.
        bad = [row for row in counted if worse[row.metric, row.subset] <= self.alpha / 2]
        is_clear, least = share.p_value <= self.alpha, format_share(self.thresholds.least_share)
        verdict, needed = Verdict.UNDECIDED, None
        reason = f"clearly better than random scores on {len(better)} of {len(counted)} measures"
        if not counted:
            needed, reason = MIN_EXAMPLES, f"{share.n} texts are too few to tell it from random scores"
        elif bad:
            verdict, reason = Verdict.NOT_SUPPORTED, f"worse than random scores on {_names(bad)}"
        elif below <= self.alpha / 2:
            verdict, reason = Verdict.NOT_SUPPORTED, f"less than {least} of what is achievable"
        elif len(better) == len(counted) and is_clear and not uncounted:
            verdict, reason = Verdict.SUPPORTED, f"better than random scores on all {len(counted)} measures"
        else:
            unclear = [row for row in counted if row not in better]
            reason += f"; no measure counts under {', '.join(uncounted)}" if uncounted else ""
            needed = self._faithful_size(name, unclear, uncounted)
        if math.isfinite(share.value):
            reason += f"; reaches {format_share(share.value)} of what is achievable"
            reason += "" if is_clear or verdict is not Verdict.UNDECIDED else f", not clearly more than {least}"
        return Finding(verdict, name, (share, *rows), reason, FAITHFUL, needed)

    def _faithful_size(self, name: str, unclear: Sequence[Statistic], uncounted: Sequence[str]) -> int | None:
        """Texts that would probably show the method to be faithful, or else that it is not; None if neither is near.

        Args:
            uncounted: ways of deletion of which no measure counts yet; one of each must.
        """
        alpha, table = self.alpha / max(1, len(self.evidence.methods)), self.composite
        excess = defined(table[name] - self.thresholds.least_share * table[BEST])
        tests = [(excess, -(1 + self.thresholds.least_share) * _largest_loss(table))]
        for row in unclear:
            gains = self.gains[row.metric, row.subset]
            tests.append((defined(gains[name]), -_largest_loss(gains)))
        sizes = [sample_size(values, lowest, 0.0, alpha) for values, lowest in tests if len(values)]
        for way in uncounted:
            gains_of_way = [gains for (_, removal), gains in self.gains.items() if removal == way]
            of_measures = [
                sample_size(defined(gains[name]), -_largest_loss(gains), 0.0, alpha) for gains in gains_of_way
            ]
            sizes.append(min((size for size in of_measures if size is not None), default=None))
        enough = [size for size in sizes if size is not None]
        if len(enough) == len(sizes):
            return max(enough, default=None)
        # To be clearly below the least share is enough.
        return sample_size(-excess, (self.thresholds.least_share - 1) * float(table[BEST].max()), 0.0, alpha)

    def tiers(self) -> dict[str, int]:
        """1 for the methods that are not clearly below the best one by the margin, 2 for the best of the rest ..."""
        return self._tiers(self.composite) if self.kept else dict.fromkeys(self.evidence.methods, 0)

    def by_way(self) -> dict[str, dict[str, WayShare]]:
        """By way of removal of which a measure counts, the share of the achievable and the tier of each method."""
        answers = {}
        for way in dict.fromkeys(way for _, way in self.kept):
            table = self._composite([key for key in self.kept if key[1] == way])
            shares, tiers = self._shares(table, f"way {way}"), self._tiers(table)
            answers[way] = {
                name: WayShare(Statistic(SHARE, name, way, *shares[name], int(table[name].notna().sum())), tiers[name])
                for name in self.evidence.methods
            }
        return answers

    def _tiers(self, table: pd.DataFrame) -> dict[str, int]:
        """The tiers by a table of shares of the achievable."""
        tiers: dict[str, int] = dict.fromkeys(self.evidence.methods, 0)
        means, tier = table.mean(), 0
        left = [
            name for name in self.evidence.methods if name not in self.evidence.controls and not math.isnan(means[name])
        ]
        while left:
            tier += 1
            best = max(left, key=lambda name: (means[name], name))
            others = [name for name in left if name != best]
            clearly = self._clearly_below(table, best, others, self.thresholds.tier_margin)
            for name in left:
                if name not in clearly:
                    tiers[name] = tier
            left = [name for name in left if name in clearly]
        return tiers

    def behind(self, best: str) -> dict[str, Finding]:
        """How far each other method is behind this one: supported if clearly not by the lead, controls left out.

        Not supported: clearly further behind, also if failures of this one were not seen. That one is *not* further
        behind is tested by the bootstrap alone, which speaks of texts like those that were drawn.
        """
        table, lead = self.composite, self.thresholds.lead
        others = [name for name in self.evidence.methods if name != best and name not in self.evidence.controls]
        if not self.kept or not others:
            return {}
        clearly = self._clearly_below(table, best, others, lead)
        gaps = {name: defined(table[best] - table[name]) for name in others}
        closer = [defined(table[name] - table[best] + lead * table[BEST]) for name in others]
        close = adjust_holm(_p_values(closer, 0.0, self.alpha, f"close to {best}"))
        bounds = audit_intervals(list(gaps.values()), self.alpha, f"behind {best}")
        findings = {}
        for name, values, p, interval in zip(others, closer, close, bounds, strict=True):
            verdict, needed = Verdict.UNDECIDED, None
            if name in clearly:
                verdict = Verdict.NOT_SUPPORTED
            elif p <= self.alpha:
                verdict = Verdict.SUPPORTED
            elif len(values):
                alpha = self.alpha / len(others)
                needed = sample_size(values, float(values.min()), 0.0, alpha) or sample_size(
                    -values, -(1 + lead) * _largest_loss(table), 0.0, alpha
                )
            row = Statistic(BEHIND, name, best, *interval, len(values), null=lead, p_value=p)
            reason = f"behind {best} by {format_share(row.value)} of the achievable"
            findings[name] = Finding(verdict, name, (row,), reason, BEHIND, needed)
        return findings

    def _clearly_below(self, table: pd.DataFrame, best: str, others: Sequence[str], margin: float) -> set[str]:
        """On a text that was not drawn another may be the best explanation where this one is like random scores."""
        lowest = -(1 + margin) * _largest_loss(table)
        below = [defined(table[best] - table[name] - margin * table[BEST]) for name in others]
        adjusted = adjust_holm(_p_values(below, lowest, self.alpha, f"below {best}"))
        return {name for name, p in zip(others, adjusted, strict=True) if p <= self.alpha}

    # The other questions

    def table(self, question: str) -> pd.DataFrame:
        """The numbers of a question; empty if there are none."""
        return self.evidence.tables.get(question, pd.DataFrame())

    def judge_means(
        self, question: str, table: pd.DataFrame, scale: MeanScale, sentence: str, refutations: int = 1
    ) -> dict[str, Finding]:
        """Supported where the mean of a method's column is clearly above the threshold, not supported clearly below it.

        Both are adjusted over methods (Holm).

        Args:
            sentence: the reason, with `{value}` for the mean.
            refutations: tests of which any may refute a method; each has this part of the error.
        """
        columns = {
            name: values for name in self.evidence.methods if name in table and len(values := defined(table[name]))
        }
        above, below = (
            dict(zip(columns, adjust_holm([scale.p_value(values, sign) for values in columns.values()]), strict=True))
            for sign in (1, -1)
        )
        answers = {}
        for name in self.evidence.methods:
            if name not in columns:
                answers[name] = self.not_asked(question, name)
                continue
            values = columns[name]
            value, low, high = mean_interval(values, scale.lowest, scale.highest, self.alpha)
            verdict, needed, reason = Verdict.UNDECIDED, None, sentence.format(value=value)
            if self.is_early or len(values) < MIN_ANSWER_TEXTS:
                needed = MIN_EXAMPLES if self.is_early else MIN_ANSWER_TEXTS
                reason = f"{reason}, on {len(values)} texts"
            elif above[name] <= self.alpha:
                verdict = Verdict.SUPPORTED
            elif below[name] <= self.alpha / refutations:
                verdict = Verdict.NOT_SUPPORTED
            else:
                needed = scale.texts_needed(values, self.alpha / max(1, len(columns)))
            row = Statistic(scale.metric, name, "", value, low, high, len(values), scale.null, above[name])
            answers[name] = Finding(verdict, name, (row,), reason, question, needed)
        return answers

    def not_asked(self, question: str, name: str, reason: str = "no text gave a number") -> Finding:
        """The answer without numbers; `reason` is for a method that has no reason of its own."""
        reason = self.evidence.unasked.get((question, name)) or reason
        return Finding(Verdict.NOT_TESTED, name, reason=reason, question=question)


def measure_label(row: Statistic) -> str:
    """The name of a measure, with what it was computed with."""
    return f"{row.metric} ({row.subset})" if row.subset else row.metric


def _names(rows: Sequence[Statistic]) -> str:
    return ", ".join(map(measure_label, rows))


def defined(values: pd.Series | NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite numbers among these."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def _generator(purpose: str, count: int) -> Generator:
    return Generator().manual_seed(derive_seed("audit", purpose, count))


def _p_values(columns: Sequence[NDArray[np.float64]], lowest: float, alpha: float, purpose: str) -> list[float]:
    """P-values of the hypotheses that the mean of each column is at most 0; NaN for too few values.

    The larger one of two: of the bootstrap, and that failures, of which none is below `lowest`, were not seen. There
    are enough resamples for the smallest p-value to be below alpha after Holm's correction, at any look.
    """
    resamples = max(RESAMPLES, math.ceil(2 * len(columns) / alpha))
    p_values = resample_by_length(
        columns,
        lambda values, generator: (studentised_p_values(values, resamples=resamples, generator=generator),),
        partial(_generator, f"test {purpose}"),
    )
    return [
        max(numbers[0], unseen_p_value(values, lowest)) if numbers else math.nan
        for values, numbers in zip(columns, p_values, strict=True)
    ]


def audit_intervals(columns: Sequence[NDArray[np.float64]], alpha: float, purpose: str) -> list[Interval]:
    """The mean of each column and its interval at level 1 - 2 alpha, so that a bound beyond 0 is a test at alpha."""
    return mean_intervals(
        columns,
        partial(_generator, f"interval {purpose}"),
        level=1 - 2 * alpha,
        resamples=max(4000, math.ceil(10 / alpha)),
    )


def _largest_loss(gains: pd.DataFrame) -> float:
    """As much as the best explanation gains on any text, or more if an order has lost more."""
    return max(float(gains[BEST].max()), -float(gains.min().min())) if len(gains) else math.nan
