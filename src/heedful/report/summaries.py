"""Summaries as tables, and runs of one trial that differ in their settings (epsilon, solver, measure) side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from heedful.formatting import format_number
from heedful.papers.chapter import Result
from heedful.report.page import Section
from heedful.results import SUMMARY_COLUMNS
from heedful.table_view import Cell, Comparison, TableView
from heedful.trials.metric_names import MARKS, metric_name

_CONTROL = "control"


def explained_metrics(result: Result) -> dict[str, str]:
    """The meanings of the metrics of a summary by their headings, as far as the headings do not say them."""
    names = (metric_name(result.trial, str(metric)) for metric in dict.fromkeys(result.summary["metric"]))
    return {name.label: name.meaning for name in names if name.meaning}


def summary_tables(result: Result) -> tuple[TableView, ...]:
    """The summary as tables, published numbers beside ours.

    Numbers of the whole trial are rows of one table. Methods, subsets and both are rows of a table for each set of
    metrics, with one column per metric. The confidence interval and the standard deviation over seeds follow a number.
    """
    seeds = result.n_seeds
    caption = "Summary: one model" if result.encoder else "Summary"
    if seeds > 1:
        caption = f"Summary: mean and SD of {seeds} seeds, outermost bounds of intervals"
    published = result.published
    rows: dict[tuple[tuple[str, str], ...], dict[tuple[str, str], Cell]] = {}
    columns = [result.summary[name].astype(str).tolist() for name in SUMMARY_COLUMNS[:3]]
    numbers = result.summary[["value", "low", "high", "n", "std"]].to_numpy(float).tolist()
    controls = {method for metric, method in zip(*columns[:2], strict=True) if metric == _CONTROL}
    for metric, method, subset, (value, low, high, n, std) in zip(*columns, numbers, strict=True):
        if metric in MARKS:
            continue
        shown = f"{method} ({_CONTROL})" if method in controls else method
        keys = [(name, key) for name, key in (("method", shown), ("subset", subset)) if key]
        label = metric_name(result.trial, metric).label
        row = rows.setdefault(tuple(keys or [("metric", label)]), {})
        name = label if keys else "value"
        ours = None if math.isnan(value) else int(value) if value.is_integer() and abs(value) > 1 else value
        row[name, ""] = Comparison(ours, published.get((metric, method, subset)))
        if not (math.isnan(low) and math.isnan(high)):
            row[name, "95 % interval"] = f"{format_number(low)} to {format_number(high)}"
        if seeds > 1:
            row[name, "SD"] = "" if math.isnan(std) else std
        if not math.isnan(n):
            row[name, "n"] = int(n) if n.is_integer() else n
    tables: dict[tuple[object, ...], dict[tuple[tuple[str, str], ...], dict[tuple[str, str], Cell]]] = {}
    for row_key, row in rows.items():
        names = tuple(name for name, _ in row_key)
        # A row that counts its observations is not among those that do not.
        metrics = tuple(dict.fromkeys("n" if ending == "n" else name for name, ending in row))
        metrics = () if names == ("metric",) else metrics
        tables.setdefault((names, metrics), {})[row_key] = row
    compared = {key for key, table in tables.items() if any(map(_is_published, table.values()))} or {*[*tables][:1]}
    return tuple(
        _summary_table(caption, table, result.published_note if key in compared else "")
        for key, table in tables.items()
    )


def _is_published(row: Mapping[tuple[str, str], Cell]) -> bool:
    """Whether a row has a published number."""
    return any(isinstance(cell, Comparison) and cell.published is not None for cell in row.values())


def _summary_table(
    caption: str, rows: Mapping[tuple[tuple[str, str], ...], Mapping[tuple[str, str], Cell]], note: str
) -> TableView:
    """Rows with all columns that occur; a count that is the same everywhere moves into the caption.

    Neighbouring metrics that were taken over equally many observations share one column of counts, after the last.
    """
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    counts = {column: [row.get(column) for row in rows.values()] for column in columns if column[1] == "n"}
    for column, other in pairwise(list(counts)):
        if counts[column] == counts[other]:
            columns.remove(column)
    kept = [column for column in columns if column in counts]
    if len(kept) == 1:
        (column,) = kept
        columns.remove(column)
        same = {str(cell) for cell in counts[column]}
        caption, columns = (
            (f"{caption}, n = {same.pop()}", columns) if len(same) == 1 else (caption, [*columns, column])
        )
    elif kept:
        note = " ".join(filter(None, (note, "n: observations behind the numbers to its left.")))
    keys = [name for name, _ in next(iter(rows))]
    part = "" if keys == ["metric"] else f", by {' and '.join(keys)}"
    cells = tuple(
        (*(key for _, key in keyed), *(row.get(column, "") for column in columns)) for keyed, row in rows.items()
    )
    return TableView(f"{caption}{part}", (*keys, *(ending or name for name, ending in columns)), cells, note)


@dataclass(frozen=True)
class Variant:
    """One run: the settings that distinguish it from others in words, its section without them, and its result."""

    label: str
    section: Section
    result: Result


def join_variants(variants: Sequence[Variant]) -> Section:
    """A section with what the runs share, their numbers side by side, and a part for each of them.

    A run by the published protocol comes first. A single run keeps its section.
    """
    ordered = sorted(variants, key=lambda variant: bool(variant.result.protocol_differences))
    first = ordered[0].section
    if len(ordered) == 1:
        return replace(first, title=", ".join(filter(None, (first.title, ordered[0].label))))
    sections = [variant.section for variant in ordered]
    shared = {
        name: value for name, value in first.about.items() if all(each.about.get(name) == value for each in sections)
    }
    warnings = tuple(text for text in first.warnings if all(text in section.warnings for section in sections))
    findings = tuple(
        replace(finding, method=": ".join(filter(None, (variant.label, finding.method))))
        for variant in ordered
        for finding in variant.section.findings
    )
    parts = tuple(_without_shared(variant, shared, warnings) for variant in ordered)
    return replace(
        first,
        about=shared,
        findings=findings,
        interpretation="",
        tables=_side_by_side(ordered),
        figures=(),
        heatmaps=(),
        warnings=warnings,
        texts=tuple(dict.fromkeys(link for section in sections for link in section.texts)),
        variants=parts,
    )


def _without_shared(variant: Variant, shared: dict[str, str | float], warnings: Sequence[str]) -> Section:
    """The section of a run without what all runs have."""
    section = variant.section
    return replace(
        section,
        title=variant.label or variant.result.entries[0].group[:8],
        claim="",
        source="",
        limits="",
        about={name: value for name, value in section.about.items() if name not in shared},
        warnings=tuple(text for text in section.warnings if text not in warnings),
        texts=(),
        texts_note="",
        metrics={},
    )


def _side_by_side(variants: Sequence[Variant]) -> tuple[TableView, ...]:
    """The numbers of the whole trial, a row per metric and a column per run, published numbers beside them."""
    keys = (
        key
        for variant in variants
        for key in zip(*(variant.result.summary[name].astype(str) for name in SUMMARY_COLUMNS[:3]), strict=True)
    )
    metrics = dict.fromkeys(metric for metric, method, subset in keys if not (method or subset) and metric not in MARKS)
    trial = variants[0].result.trial
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (metric_name(trial, metric).label, *(variant.result.compare(metric) for variant in variants))
        for metric in metrics
    )
    columns = ("metric", *(variant.label for variant in variants))
    return (TableView("All settings side by side", columns, rows),) if rows else ()
