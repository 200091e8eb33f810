"""The vocabulary of results: what every trial, audit and study returns, and every report reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

import pandas as pd

from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.store.recipe import Json

SUMMARY_COLUMNS = ("metric", "method", "subset", "value", "low", "high", "n")
EXPLANATION = "explanation"
"""The note under which a result that is not of a trial of the package stores its texts and verdicts."""
NO_INTERVAL = f"no interval: fewer than {MIN_EXAMPLES} texts, or all equal"
"""Why a mean over texts has no interval."""


@dataclass(frozen=True)
class Statistic:
    """One number with its interval: a row of a summary.

    Args:
        metric: what was measured, for instance "median_change".
        method: the method, pair of methods or arm it belongs to; empty for the whole trial.
        subset: the part of the data, for instance "class 1", or what the metric was computed with, for instance the
            way of deletion; empty for all of it.
        value: NaN where it is undefined.
        low: lower bound of its confidence interval, of 95 % unless the result states another level; NaN if none.
        high: upper bound.
        n: number of observations behind it; NaN where that has no meaning.
        null: the value that it is tested against, or that of a control; NaN if there is none.
        p_value: adjusted over methods (Holm); NaN if there is no test.
    """

    metric: str
    method: str = ""
    subset: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: float = math.nan
    null: float = math.nan
    p_value: float = math.nan


def summary_frame(statistics: Iterable[Statistic]) -> pd.DataFrame:
    """The statistics as a table with the columns of `SUMMARY_COLUMNS`, in the order given."""
    frame = pd.DataFrame(list(statistics), columns=list(SUMMARY_COLUMNS))
    return frame.astype({name: "str" if name in SUMMARY_COLUMNS[:3] else "float64" for name in SUMMARY_COLUMNS})


def find_statistic(summary: pd.DataFrame, metric: str, method: str = "", subset: str = "") -> Statistic | None:
    """The row of a summary with this metric, method and subset; None if there is none.

    >>> found = find_statistic(summary_frame([Statistic("accuracy", value=0.8)]), "accuracy")
    >>> found.value
    0.8
    """
    rows = select_statistics(summary, metric)
    return next((row for row in rows if (row.method, row.subset) == (method, subset)), None)


def get_statistic(summary: pd.DataFrame, metric: str, method: str = "", subset: str = "") -> Statistic:
    """The row of a summary with this metric, method and subset; its numbers are NaN if there is none."""
    return find_statistic(summary, metric, method, subset) or Statistic(metric, method, subset)


def value_of(summary: pd.DataFrame, metric: str, method: str = "", subset: str = "") -> float:
    """The value of one statistic; NaN if the summary has no such row."""
    return get_statistic(summary, metric, method, subset).value


def select_statistics(summary: pd.DataFrame, metric: str) -> list[Statistic]:
    """All rows of a metric in the order of the summary, for every method and subset."""
    if metric not in (metrics := summary["metric"].tolist()):
        return []
    columns = (summary[name].tolist() for name in SUMMARY_COLUMNS[1:])
    return [Statistic(*row) for row in zip(metrics, *columns, strict=True) if row[0] == metric]


def excess_metric(measure: str) -> str:
    """The metric under which a summary holds how much better a method is than random scores on this measure."""
    return f"{measure}_excess"


def combine_seeds(summaries: Sequence[pd.DataFrame | Mapping[str, list[object]]]) -> pd.DataFrame:
    """Summaries of several seeds as one: the mean of the defined values and the outermost bounds.

    A verdict that rests on a bound then holds on every seed. `n` is the mean number of observations, and the extra
    columns `std` and `seeds` hold the standard deviation over seeds and the number of seeds with a defined value.
    """
    grouped: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for summary in summaries:
        for row in zip(*(list(summary[name]) for name in SUMMARY_COLUMNS), strict=True):
            grouped.setdefault(row[:3], []).append(row[3:])
    rows = []
    for key, statistics in grouped.items():
        value, low, high, n = (
            [each for each in column if not math.isnan(each)] for column in zip(*statistics, strict=True)
        )
        mean, deviation = mean_of_defined(value), math.nan
        if len(value) > 1:
            deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in value) / (len(value) - 1))
        bounds = min(low, default=math.nan), max(high, default=math.nan)
        rows.append((*key, mean, *bounds, mean_of_defined(n), deviation, len(value)))
    return pd.DataFrame(rows, columns=[*SUMMARY_COLUMNS, "std", "seeds"])


def mean_of_defined(values: Iterable[float]) -> float:
    """The mean of the values that are not NaN; NaN if there are none."""
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


class Verdict(Enum):
    """Whether the data supports a claim."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"


class Decision(Enum):
    """Whether an explanation may be shown to people."""

    SHOW = "may be shown"
    NOT_ALONE = "not alone"
    BEATEN = "another is better"
    UNDECIDED = "undecided, do not show yet"
    MISLEADING = "looks right but is not"
    HIDE = "not to be shown"


def interval_verdict(low: float, high: float, margin: float = 0.0) -> Verdict:
    """SUPPORTED if the interval lies above 0, NOT_SUPPORTED if it lies below the margin, else UNDECIDED.

    Args:
        margin: the smallest gain that matters.
    """
    if low > 0:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if high < margin else Verdict.UNDECIDED


@dataclass(frozen=True)
class Finding:
    """A verdict on one claim, with the statistics it rests on.

    Args:
        verdict: whether the claim is supported; NOT_TESTED where it was not asked or does not apply, as `reason` says.
        method: the method, pair or arm that it is about; empty for the whole trial.
        evidence: the statistics that decided, the most important first.
        reason: why, in a few words, where the verdict and the evidence do not tell.
        question: the question of an audit that it answers; empty for the claim of a trial.
        texts_needed: how many texts in all would probably decide it; None unless undecided.
    """

    verdict: Verdict
    method: str = ""
    evidence: tuple[Statistic, ...] = ()
    reason: str = ""
    question: str = ""
    texts_needed: int | None = None

    @property
    def statistic(self) -> Statistic:
        """The first of the evidence; its numbers are NaN if there is none."""
        return self.evidence[0] if self.evidence else Statistic("", self.method)


@dataclass(frozen=True)
class Claim:
    """What was tested, for readers who do not know the papers, and what a verdict on it does not mean (`limits`)."""

    title: str
    claim: str = ""
    source: str = ""
    limits: str = ""


def stored_texts(
    claim: Claim, interpretation: str, findings: Iterable[Finding], charts: Sequence[tuple[str, str, str]] = ()
) -> dict[str, Json]:
    """The note that lets a report show a result without importing its class.

    Args:
        charts: metric, title and label of the axis of each chart.
    """
    verdicts: list[Json] = [[finding.verdict.name, finding.method, finding.reason] for finding in findings]
    texts: dict[str, Json] = {**asdict(claim), "interpretation": interpretation, "findings": verdicts}
    return {EXPLANATION: {**texts, "charts": [list(chart) for chart in charts]} if charts else texts}


def interval_finding(row: Statistic, margin: float = 0.0, *, no_interval: str) -> Finding:
    """The verdict of one statistic by its interval; `no_interval` is the reason where it has none."""
    reason = no_interval if math.isnan(row.low) else ""
    return Finding(interval_verdict(row.low, row.high, margin), row.method, (row,), reason)


def group_by_verdict(named: Iterable[tuple[Verdict, str]]) -> dict[Verdict, list[str]]:
    """The names under each verdict, with an empty list where there are none."""
    groups: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for verdict, name in named:
        groups[verdict].append(name)
    return groups
