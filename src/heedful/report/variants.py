"""Runs of one trial on one model that differ in their settings (epsilon, solver, measure), as one section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful.papers.chapter import Result
from heedful.report.page import Section
from heedful.results import SUMMARY_COLUMNS
from heedful.table_view import Cell, TableView
from heedful.trials.metric_names import MARKS, metric_name


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
