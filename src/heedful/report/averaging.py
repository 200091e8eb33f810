"""Numbers of several seeds as one: means, but of intervals the outermost bounds.

A verdict that rests on a bound then holds on every seed. The mean of bounds would be no bound of anything: one seed
that is far above zero could carry two that are not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

BOUND_FUNCTIONS = {"low": min, "high": max}
SEEDS_NOTE = " Of several seeds these are means, and of intervals the outermost bounds."


def combine_seeds(summaries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each number that any seed has, over the seeds where it is defined: the mean, or the outermost bound.

    >>> combine_seeds([{"excess.a": 0.12, "low.a": 0.1}, {"excess.a": 0.0, "low.a": -0.04, "n": 7.0}])
    {'excess.a': 0.06, 'low.a': -0.04, 'n': 7.0}
    """
    names = dict.fromkeys(name for summary in summaries for name in summary)
    return {name: _combine_values(name, defined_values(summaries, name)) for name in names}


def defined_values(summaries: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """The values of the seeds that have this number."""
    values = (summary.get(name, float("nan")) for summary in summaries)
    return [value for value in values if value == value]


def interval_end(name: str) -> str | None:
    """Which end of an interval a number is, if any: `low.auc.lime`, `above_random_high.auc`.

    >>> interval_end("low.auc.lime"), interval_end("above_random_high.auc"), interval_end("lowest"), interval_end("excess.low")
    ('low', 'high', None, None)
    """
    last = name.split(".", 1)[0].rsplit("_", 1)[-1]
    return last if last in BOUND_FUNCTIONS else None


def interval_caveat(summaries: Sequence[Mapping[str, float]]) -> str:
    """What a reader of a verdict must know where it rests on bounds of several seeds."""
    if len(summaries) < 2 or not any(interval_end(name) for summary in summaries for name in summary):
        return ""
    return f"A verdict that rests on an interval counts only where it holds on each of the {len(summaries)} seeds."


def _combine_values(name: str, values: Sequence[float]) -> float:
    if not values:
        return float("nan")
    end = interval_end(name)
    return statistics.fmean(values) if end is None else BOUND_FUNCTIONS[end](values)
