"""The charts of an audit: faithfulness between random scores and the best found, verdicts, measures and pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heedful.figures import Axis, Chart, IntervalPoint, Intervals, Matrix
from heedful.results import Statistic, Verdict

if TYPE_CHECKING:  # the questions import this module
    from heedful.audits.audit_result import Audit, MethodAudit
    from heedful.audits.topics import Question

CONTROL_COLOR = ("control", "#858c99")
VERDICT_COLORS = (
    (Verdict.SUPPORTED.value, "#189a58"),
    (Verdict.NOT_SUPPORTED.value, "#d9485f"),
    (Verdict.UNDECIDED.value, "#858c99"),
    CONTROL_COLOR,
)
SHARE_AXIS = Axis("% of the achievable")


def _percent(share: float) -> float:
    """A share in percent as a chart shows it: one digit after the point says more than its interval allows.

    >>> _percent(0.8642), _percent(-0.00003)
    (86.4, 0.0)
    """
    return round(100 * share, 1) + 0.0


def _chart_values(row: Statistic, *, is_share: bool) -> tuple[float, float, float, float]:
    """Value, bounds and null of a statistic; of a share in percent."""
    if not is_share:
        return row.value, row.low, row.high, row.null
    return _percent(row.value), _percent(row.low), _percent(row.high), _percent(row.null)


def share_chart(audit: Audit) -> Intervals:
    """Faithfulness of each method as a share of the achievable; the color is the tier."""
    points = tuple(
        IntervalPoint(
            f"{method.name} *" if method.optimized_for else method.name,
            "control" if method.control else f"tier {method.tier}" if method.tier else "no tier",
            *map(_percent, (method.achievable, method.achievable_low, method.achievable_high)),
        )
        for method in audit.methods
    )
    references = (("random scores", 0.0), ("best found by search", 100.0))
    return Intervals("Faithfulness as a share of the achievable", SHARE_AXIS, points, references, (CONTROL_COLOR,))


def verdict_chart(audit: Audit, question: Question) -> list[Chart]:
    """The answers to a question as points whose color and marker are the verdict; no chart without numbers."""
    points: list[IntervalPoint] = []
    for method in audit.methods:
        answer = method.answer(question.name)
        row, series = answer.statistic, "control" if method.control else answer.verdict.value
        if math.isfinite(row.value):
            points.append(IntervalPoint(method.name, series, *_chart_values(row, is_share=question.is_share)))
    colors = tuple(pair for pair in VERDICT_COLORS if any(point.series == pair[0] for point in points))
    references = (("limit", question.limit),) if math.isfinite(question.limit) else ()
    return [Intervals(question.title, Axis(question.axis), tuple(points), references, colors)] if points else []


def measure_charts(audit: Audit, question: Question) -> list[Chart]:
    """A chart of all methods for each further metric of a question; the first is in the chart of the verdicts."""
    groups: dict[str, list[tuple[MethodAudit, Statistic]]] = {}
    for method in audit.methods:
        for row in method.answer(question.name).evidence[1:]:
            if math.isfinite(row.value):
                groups.setdefault(row.metric, []).append((method, row))
    return [_measure_chart(audit, question, metric, rows) for metric, rows in groups.items()]


def _measure_chart(
    audit: Audit, question: Question, metric: str, rows: Sequence[tuple[MethodAudit, Statistic]]
) -> Intervals:
    """One metric for all methods; the color is the subset, for instance the way of deletion."""
    points = tuple(
        IntervalPoint(
            f"{method.name} *" if method.optimizes(row) else method.name,
            " ".join(filter(None, (row.subset or "all", "(struck out)" if audit.struck_reason(row) else ""))),
            # The null of a share is a line of the chart.
            *_chart_values(replace(row, null=math.nan) if question.is_share else row, is_share=question.is_share),
        )
        for method, row in rows
    )
    if question.is_share:
        references = (("random scores", 0.0), ("best found", 100.0))
        return Intervals(f"{metric}: share of the achievable", SHARE_AXIS, points, references)
    return Intervals(metric, Axis(metric), points)


def pair_matrix(pairs: Sequence[Statistic]) -> Matrix:
    """Rank correlations of each two methods."""
    values: dict[tuple[str, str], float] = {}
    for row in pairs:
        values[row.method, row.subset] = values[row.subset, row.method] = row.value
    names = tuple(dict.fromkeys(name for pair in values for name in pair))
    values |= {(name, name): 1.0 for name in names}
    cells = tuple(tuple(values.get((one, other)) for other in names) for one in names)
    return Matrix("Rank correlation of each two methods", names, names, cells)


def attention_chart(rows: Sequence[tuple[str, Statistic]]) -> list[Chart]:
    """The findings about attention by their short names; no chart without findings."""
    points = tuple(IntervalPoint(name, row.method, row.value, row.low, row.high, row.null) for name, row in rows)
    return [Intervals("What is known about the attention weights", Axis("value"), points)] if points else []
