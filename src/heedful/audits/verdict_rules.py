"""How the numbers of an audit become verdicts and tiers, by the same rules for every method.

The rule of faithfulness is here: better than random scores on every measure that counts, of which every way of deletion
must have one, and on all measures together, whether they count or not (Holm over methods). The rules of the other
questions are in `questions`, from the tests of means here.

Texts are drawn before any result is seen. An audit that goes on after a look at its results tests at .05 / 2^look, so
that all looks together err with probability .05 at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Generator

from heedful.measures.bootstrap import MIN_EXAMPLES, Interval
from heedful.measures.hypothesis_tests import RESAMPLES, adjust_holm, sample_size, studentised_p_values
from heedful.measures.intervals import mean_intervals, resample_by_length
from heedful.results import Finding, Statistic, Verdict
from heedful.store.recipe import derive_seed

ALPHA = 0.05
MIN_SHARE = 0.1
"""An explanation below this share of the achievable is not faithful, even if it is better than random."""
TIER_MARGIN = 0.05
"""A method is in a lower tier if it is clearly this share of the achievable, or more, below the best of a tier."""
SIGNS: Mapping[str, int] = {"comprehensiveness": 1, "sufficiency": -1, "flip": -1}
"""The measures of faithfulness, and whether more or less is better."""
SHARE = "share of the achievable"
"""The metric over all measures of faithfulness that count."""
FAITHFUL = "faithful"
"""The question that the erasures answer."""
NULL, BEST = "(null)", "(best)"
"""Columns of erasure tables: the mean of several random orders, and the best that was found."""

ErasureKey = tuple[str, str]
"""A measure and a way of deletion."""


@dataclass(frozen=True)
class AuditEvidence:
    """The numbers of an audit, text by text; in tables rows are texts and columns methods, NaN where undefined.

    Args:
        methods: audited methods, controls included.
        erasure: by measure and way of deletion, with the columns `NULL` and `BEST` beside the methods.
        tables: by question, what its `read` returned.
        unasked: why a question has no numbers for a method, by question and method.
        seconds: per text.
        optimized_for: by method, the measures that it optimizes itself, as `measure_label` names them.
    """

    methods: tuple[str, ...]
    controls: frozenset[str]
    erasure: Mapping[ErasureKey, pd.DataFrame]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    unasked: Mapping[tuple[str, str], str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    optimized_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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

    def _excess(self, key: ErasureKey, name: str) -> NDArray[np.float64]:
        """How much better a method is than random scores on each text where that is defined."""
        table = self.evidence.erasure[key]
        return defined(SIGNS[key[0]] * (table[name] - table[NULL]))

    def _scale(self, key: ErasureKey) -> float:
        """How much better the best explanation that was found is than random scores, on average; NaN if undefined."""
        best = self._excess(key, BEST)
        return float(best.mean()) if len(best) else math.nan

    def _erasure_tests(self, key: ErasureKey) -> dict[str, float]:
        """The p-value of each method, and of `BEST`, against random scores."""
        names = (*self.evidence.methods, BEST)
        return dict(
            zip(names, _p_values([self._excess(key, name) for name in names], self.alpha, f"{key}"), strict=True)
        )

    def _short(self) -> list[ErasureKey]:
        """Measures that are defined on some texts, but on too few."""
        return [key for key in self.evidence.erasure if 0 < len(self._excess(key, BEST)) < MIN_EXAMPLES]

    def _strike(self) -> dict[ErasureKey, str]:
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
                struck[key] = "no explanation is better than random scores"
        return struck

    def _composite(self, keys: Sequence[ErasureKey]) -> pd.DataFrame:
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

    def faithful(self) -> dict[str, Finding]:
        """Whether each method is better than random scores wherever a measure counts."""
        if not self.kept and not self._short():
            reason = "no measure counts on this data: " + "; ".join(dict.fromkeys(self.struck.values()))
            return {
                name: Finding(Verdict.NOT_TESTED, name, reason=reason, question=FAITHFUL)
                for name in self.evidence.methods
            }
        rows: dict[str, list[Statistic]] = {name: [] for name in self.evidence.methods}
        for key in self.evidence.erasure:
            for row in self._erasure_rows(key):
                rows[row.method].append(row)
        shares = [defined(self.composite[name]) for name in rows]
        intervals = audit_intervals(shares, self.alpha, "composite")
        # With many measures something is better than random on one of them by chance, and then that measure counts. The
        # test of all of them together errs with probability alpha whatever is struck.
        short = self._short()
        sensitive = [key for key, p in self.p_values.items() if key not in short and p[BEST] <= self.alpha]
        together = self._composite(sensitive)
        p_values = adjust_holm(_p_values([defined(together[name]) for name in rows], self.alpha, "all measures"))
        return {
            name: self._faithful_answer(name, rows[name], values, interval, p_value)
            for name, values, interval, p_value in zip(rows, shares, intervals, p_values, strict=True)
        }

    def _erasure_rows(self, key: ErasureKey) -> list[Statistic]:
        """The share of the achievable of each method on one measure, tested against random scores."""
        scale = self._scale(key)
        excess = {name: self._excess(key, name) for name in self.evidence.methods}
        p_values = adjust_holm([self.p_values[key][name] for name in excess])
        shares = [values / scale if scale > 0 else np.full_like(values, math.nan) for values in excess.values()]
        intervals = audit_intervals(shares, self.alpha, f"{key}")
        rows = []
        for (name, values), p, (value, low, high) in zip(excess.items(), p_values, intervals, strict=True):
            rows.append(Statistic(key[0], name, key[1], value, low, high, len(values), null=0.0, p_value=p))
        return rows

    def _faithful_answer(
        self,
        name: str,
        rows: Sequence[Statistic],
        shares: NDArray[np.float64],
        interval: tuple[float, float, float],
        p_value: float,
    ) -> Finding:
        """Args:
        shares: of the achievable, by text; with the interval of their mean.
        p_value: of the test of all measures together.
        """
        counted, (value, low, high) = [row for row in rows if (row.metric, row.subset) not in self.struck], interval
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
        share = Statistic(SHARE, name, "", value, low, high, len(shares), null=0.0, p_value=p_value)
        return Finding(verdict, name, (share, *rows), reason, FAITHFUL, needed)

    def _faithful_size(self, name: str, unclear: Sequence[Statistic], shares: NDArray[np.float64]) -> int | None:
        """Texts that would show the method to be better on every unclear measure, or not faithful."""

        def texts(effects: NDArray[np.float64], alpha: float) -> int | None:
            return _more_texts(float(effects.mean()) if len(effects) else 0.0, effects, alpha)

        if all(row.value > 0 for row in unclear):
            alpha = self.alpha / max(1, len(self.evidence.methods))
            sizes = [texts(self._excess((row.metric, row.subset), name), alpha) for row in unclear]
            return max((size for size in sizes if size is not None), default=texts(shares, self.alpha))
        # Worse than random on one measure, or below the least share, is enough.
        sizes = [texts(self._excess((row.metric, row.subset), name), self.alpha) for row in unclear if row.value <= 0]
        if len(shares) and float(shares.mean()) < MIN_SHARE:
            sizes.append(texts(MIN_SHARE - shares, self.alpha))
        return min((size for size in sizes if size is not None), default=None)

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
            below = [defined(self.composite[best] - self.composite[name] - TIER_MARGIN) for name in others]
            adjusted = adjust_holm(_p_values(below, self.alpha, f"below {best}"))
            clearly = {name for name, p in zip(others, adjusted, strict=True) if p <= self.alpha}
            for name in left:
                if name not in clearly:
                    tiers[name] = tier
            left = [name for name in left if name in clearly]
        return tiers

    # The other questions

    def table(self, question: str) -> pd.DataFrame:
        """The numbers of a question; empty if there are none."""
        return self.evidence.tables.get(question, pd.DataFrame())

    def judge_means(
        self, question: str, table: pd.DataFrame, metric: str, threshold: float, *, null: float, sentence: str
    ) -> dict[str, Finding]:
        """Supported where the mean of a method's column is clearly above the threshold, not supported below it.

        The tests are adjusted over methods (Holm).

        Args:
            sentence: the reason, with `{value}` for the mean.
        """
        columns = {
            name: values for name in self.evidence.methods if name in table and len(values := defined(table[name]))
        }
        p_values = adjust_holm(_p_values([values - threshold for values in columns.values()], self.alpha, question))
        intervals = audit_intervals(list(columns.values()), self.alpha, question)
        tests = dict(zip(columns, zip(p_values, intervals, strict=True), strict=True))
        answers = {}
        for name in self.evidence.methods:
            if name not in tests:
                answers[name] = self.not_asked(question, name)
                continue
            values, (p_value, (value, low, high)) = columns[name], tests[name]
            verdict, needed, reason = Verdict.UNDECIDED, None, sentence.format(value=value)
            if len(values) < MIN_EXAMPLES:
                needed, reason = MIN_EXAMPLES, f"{reason}, on {len(values)} texts"
            elif p_value <= self.alpha:
                verdict = Verdict.SUPPORTED
            elif high <= threshold:
                verdict = Verdict.NOT_SUPPORTED
            else:
                needed = _more_texts(value - threshold, values, self.alpha / max(1, len(columns)))
            row = Statistic(metric, name, "", value, low, high, len(values), null, p_value)
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


def _p_values(columns: Sequence[NDArray[np.float64]], alpha: float, purpose: str) -> list[float]:
    """P-values of the hypotheses that the mean of each column is at most 0; NaN for too few values.

    There are enough resamples for the smallest p-value to be below alpha after Holm's correction, at any look.
    """
    resamples = max(RESAMPLES, math.ceil(2 * len(columns) / alpha))
    p_values = resample_by_length(
        columns,
        lambda values, generator: (studentised_p_values(values, resamples=resamples, generator=generator),),
        partial(_generator, f"test {purpose}"),
    )
    return [p_value[0] if p_value else math.nan for p_value in p_values]


def _more_texts(effect: float, values: NDArray[np.float64], alpha: float) -> int | None:
    """Texts that would show an effect of this size with the spread of these values; more than there are."""
    needed = sample_size(effect, float(values.std()), alpha) if len(values) else None
    return None if needed is None else max(needed, len(values) + 1)


def audit_intervals(columns: Sequence[NDArray[np.float64]], alpha: float, purpose: str) -> list[Interval]:
    """The mean of each column and its interval at level 1 - 2 alpha, so that a bound beyond 0 is a test at alpha."""
    return mean_intervals(
        columns,
        partial(_generator, f"interval {purpose}"),
        level=1 - 2 * alpha,
        resamples=max(4000, math.ceil(10 / alpha)),
    )
