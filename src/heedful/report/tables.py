"""Tables made ready for the page: cells as text, our numbers beside the published ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from heedful.papers._chapter import Cell, Comparison, TableView
from heedful.report.numbers import format_difference, format_number

CellKind = Literal["text", "number", "missing", "ours", "published", "difference", "inside", "outside", "judged"]
_COMPARISON_KINDS: tuple[CellKind, ...] = ("published", "difference", "judged")
# A tolerance is written in decimals: 0.34 - 0.32 must be inside 0.02, whatever its binary digits say.
_ROUNDING_SLACK = 1e-9


@dataclass(frozen=True)
class DisplayCell:
    """The text of a cell and what kind of thing it is."""

    text: str
    kind: CellKind


@dataclass(frozen=True)
class Heading:
    """A column's name, the kind of what stands below it, and the names of the columns it is split into, if it is."""

    name: str
    kind: CellKind
    parts: tuple[DisplayCell, ...] = ()

    @property
    def span(self) -> int:
        """How many columns of the page it spans."""
        return max(1, len(self.parts))


@dataclass(frozen=True)
class DisplayTable:
    """A table as it is set: headings (a second line stands below those that are split) and rows of cells."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[DisplayCell, ...], ...]

    @property
    def is_compared(self) -> bool:
        """Whether published numbers stand in the table."""
        return any(heading.parts for heading in self.headings)

    @property
    def tally(self) -> str:
        """How many published numbers are met; empty where there was no tolerance to judge by."""
        kinds = [cell.kind for row in self.rows for cell in row]
        inside, judged = kinds.count("inside"), kinds.count("inside") + kinds.count("outside")
        return f"Inside the tolerance: {inside} of {judged}." if judged else ""


def display_table(table: TableView) -> DisplayTable:
    """The table as it is to be set."""
    headings = tuple(
        _column_heading(name, [row[place] for row in table.rows]) for place, name in enumerate(table.columns)
    )
    return DisplayTable(headings, tuple(_display_row(row, headings) for row in table.rows))


def is_within_tolerance(pair: Comparison) -> bool | None:
    """Whether the two numbers lie no further apart than the tolerance; None if there is nothing to judge.

    >>> is_within_tolerance(Comparison(0.34, 0.32, 0.02)), is_within_tolerance(Comparison(0.34, 0.31, 0.02)), is_within_tolerance(Comparison(0.34, None, 0.02))
    (True, False, None)
    """
    numbers = (pair.ours, pair.published, pair.tolerance)
    known = [value for value in numbers if value is not None and math.isfinite(value)]
    return None if len(known) < 3 else abs(known[0] - known[1]) <= known[2] + _ROUNDING_SLACK


def _column_heading(name: str, cells: list[Cell]) -> Heading:
    printed = [cell for cell in cells if isinstance(cell, Comparison) and cell.published is not None]
    if printed:
        return Heading(name, "number", _comparison_columns(printed))
    return Heading(name, "text" if any(isinstance(cell, str) and cell for cell in cells) else "number")


def _comparison_columns(printed: list[Comparison]) -> tuple[DisplayCell, ...]:
    parts = [
        DisplayCell("ours", "ours"),
        DisplayCell("published", "published"),
        DisplayCell("difference", "difference"),
    ]
    tolerances = {pair.tolerance for pair in printed if pair.tolerance is not None}
    if tolerances:
        parts.append(
            DisplayCell(f"within ±{tolerances.pop():g}" if len(tolerances) == 1 else "within tolerance", "judged")
        )
    return tuple(parts)


def _display_row(row: tuple[Cell, ...], headings: tuple[Heading, ...]) -> tuple[DisplayCell, ...]:
    named = [cell for cell, heading in zip(row, headings, strict=True) if heading.name == "n"]
    counts = [int(cell) for cell in named if not isinstance(cell, str | Comparison | None) and math.isfinite(cell)]
    count = counts[0] if counts else None
    return tuple(shown for cell, h in zip(row, headings, strict=True) for shown in _display_cells(cell, h, count))


def _display_cells(cell: Cell, heading: Heading, count: int | None) -> tuple[DisplayCell, ...]:
    """One cell, or as many as the heading is split into."""
    if isinstance(cell, str):
        shown = [DisplayCell(cell, "text")]
    elif not isinstance(cell, Comparison):
        shown = [_number_cell(cell, count, "number")]
    else:
        printed = "–" if cell.published is None else format_number(cell.published)
        apart = format_difference(cell.ours, cell.published) or "–"
        shown = [
            _number_cell(cell.ours, count, "ours"),
            DisplayCell(printed, "published"),
            DisplayCell(apart, "difference"),
        ]
        shown.append(_tolerance_verdict(cell, named=heading.parts[-1:] == (DisplayCell("within tolerance", "judged"),)))
    shown += [DisplayCell("–", kind) for kind in _COMPARISON_KINDS[len(shown) - 1 : heading.span - 1]]
    return tuple(shown[: heading.span])


def _tolerance_verdict(pair: Comparison, *, named: bool) -> DisplayCell:
    """In a word; with the tolerance where the heading does not name it."""
    judged = is_within_tolerance(pair)
    if judged is None:
        return DisplayCell("–", "judged")
    limit = f" ±{pair.tolerance:g}" if named else ""
    return DisplayCell(f"{'inside' if judged else 'outside'}{limit}", "inside" if judged else "outside")


def _number_cell(value: float | None, count: int | None, kind: CellKind) -> DisplayCell:
    missing = value is None or math.isnan(value)
    return DisplayCell(format_number(value, count), "missing" if missing else kind)
