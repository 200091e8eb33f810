"""Tables made ready for the page: cells as text, our numbers beside the published ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from heedful.report.content import Cell, Pair, TableView
from heedful.report.numbers import difference, number

Kind = Literal["text", "number", "missing", "ours", "published", "difference"]
_BESIDE: tuple[Kind, ...] = ("published", "difference")


@dataclass(frozen=True)
class Shown:
    """The text of a cell and what kind of thing it is."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class Heading:
    """A column's name, how many columns of the page it spans, and the kind of what stands below it."""

    name: str
    span: int
    kind: Kind


@dataclass(frozen=True)
class Grid:
    """A table as it is set: headings (a second line stands below those that span three) and rows of cells."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Shown, ...], ...]

    @property
    def is_compared(self) -> bool:
        """Whether published numbers stand in the table."""
        return any(heading.span > 1 for heading in self.headings)


def grid(table: TableView) -> Grid:
    """The table as it is to be set."""
    headings = tuple(_heading(name, [row[place] for row in table.rows]) for place, name in enumerate(table.columns))
    return Grid(headings, tuple(_row(row, headings) for row in table.rows))


def _heading(name: str, cells: list[Cell]) -> Heading:
    printed = any(isinstance(cell, Pair) and cell.published is not None for cell in cells)
    words = any(isinstance(cell, str) and cell for cell in cells)
    return Heading(name, 3 if printed else 1, "text" if words and not printed else "number")


def _row(row: tuple[Cell, ...], headings: tuple[Heading, ...]) -> tuple[Shown, ...]:
    named = [cell for cell, heading in zip(row, headings, strict=True) if heading.name == "n"]
    counts = [int(cell) for cell in named if not isinstance(cell, str | Pair | None) and math.isfinite(cell)]
    count = counts[0] if counts else None
    return tuple(shown for cell, h in zip(row, headings, strict=True) for shown in _cells(cell, h.span, count))


def _cells(cell: Cell, span: int, count: int | None) -> tuple[Shown, ...]:
    """One cell, or three below a heading that spans three."""
    if isinstance(cell, str):
        shown = [Shown(cell, "text")]
    elif not isinstance(cell, Pair):
        shown = [_number(cell, count, "number")]
    else:
        printed = "–" if cell.published is None else number(cell.published)
        apart = difference(cell.ours, cell.published) or "–"
        shown = [_number(cell.ours, count, "ours"), Shown(printed, "published"), Shown(apart, "difference")]
    shown += [Shown("–", kind) for kind in _BESIDE[len(shown) - 1 : span - 1]]
    return tuple(shown[:span])


def _number(value: float | None, count: int | None, kind: Kind) -> Shown:
    missing = value is None or math.isnan(value)
    return Shown(number(value, count), "missing" if missing else kind)
