"""All numbers of a trial of "Learning to Scaffold" in tables that a reader can take in, not one of all places."""

from __future__ import annotations

import math
from collections.abc import Mapping

from heedful.measures.rationale_agreement import PLAUSIBILITY_MEASURES
from heedful.papers._chapter import Cell, TableView

_SEED_STATISTICS = ("median", "q25", "q75", "min", "max", "mean", "low", "high")


def simulability_summary(summary: Mapping[str, float]) -> tuple[TableView, ...]:
    """A row per explanation and size of the class, with what came out over seeds and what it gained."""
    places = [name.removeprefix("median.") for name in summary if name.startswith("median.")]
    gains = [name for name in ("difference", "over_null") if any(each.startswith(f"{name}.") for each in summary)]
    numbers = [*_SEED_STATISTICS, *(f"{gain}{end}" for gain in gains for end in ("", "_low", "_high"))]
    rows: list[tuple[Cell, ...]] = []
    for place in places:
        arm, size = place.rsplit(".", 1)
        rows.append((arm, int(size), *(summary.get(f"{number}.{place}") for number in numbers)))
    commonest = summary.get("commonest", math.nan)
    note = f"{summary['seeds']:.0f} seeds. Low and high bound a 95 % interval; differences are to no explanation."
    if not math.isnan(commonest):
        note += f" Always giving the teacher's commonest answer would reach {commonest:.3f}."
    columns = ("explanation", "examples", *(number.replace("_", " ") for number in numbers))
    return (TableView("Summary over seeds", columns, tuple(rows), note),)


def plausibility_summary(summary: Mapping[str, float]) -> tuple[TableView, ...]:
    """A row per method (and part of the texts), with every measure and its interval."""
    methods = [name.removeprefix("auc.") for name in summary if name.startswith("auc.")]
    rows: list[tuple[Cell, ...]] = [
        (method, *(_format_interval(summary, f"{measure}.{method}") for measure in PLAUSIBILITY_MEASURES))
        for method in methods
    ]
    names = [
        name for name in summary if name.split(".")[0] in ("n", "judged", "no_rationale", "all_rationale", "cut_off")
    ]
    counts = [f"{name.replace('_', ' ').replace('.', ', ')}: {summary[name]:.0f}" for name in names]
    columns = ("method", *(name.replace("_", " ") for name in PLAUSIBILITY_MEASURES))
    note = f"Means over texts [95 % interval]. Texts: {'; '.join(counts)}."
    return (TableView("Summary over texts", columns, tuple(rows), note),)


def _format_interval(summary: Mapping[str, float], place: str) -> str:
    value, low, high = (summary.get(f"{end}{place}", math.nan) for end in ("", "low.", "high."))
    if math.isnan(value):
        return "undefined"
    return f"{value:.3f}" if math.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


SUMMARY_TABLES = {"simulability": simulability_summary, "plausibility": plausibility_summary}
"""By the trial's name."""
