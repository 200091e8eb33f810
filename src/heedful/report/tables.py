"""Tables made ready for the page: cells as text, our numbers beside the published ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from heedful.report.content import Cell, Pair, TableView
from heedful.report.numbers import difference, number

Kind = Literal["text", "number", "missing", "ours", "published", "difference", "inside", "outside", "judged"]
_BESIDE: tuple[Kind, ...] = ("published", "difference", "judged")
# A tolerance is written in decimals: 0.34 - 0.32 must be inside 0.02, whatever its binary digits say.
_SLACK = 1e-9


@dataclass(frozen=True)
class Shown:
    """The text of a cell and what kind of thing it is."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class Heading:
    """A column's name, the kind of what stands below it, and the names of the columns it is split into, if it is."""

    name: str
    kind: Kind
    parts: tuple[Shown, ...] = ()

    @property
    def span(self) -> int:
        """How many columns of the page it spans."""
        return max(1, len(self.parts))


@dataclass(frozen=True)
class Grid:
    """A table as it is set: headings (a second line stands below those that are split) and rows of cells."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Shown, ...], ...]

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


def grid(table: TableView) -> Grid:
    """The table as it is to be set."""
    headings = tuple(_heading(name, [row[place] for row in table.rows]) for place, name in enumerate(table.columns))
    return Grid(headings, tuple(_row(row, headings) for row in table.rows))


def within(pair: Pair) -> bool | None:
    """Whether the two numbers lie no further apart than the tolerance; None if there is nothing to judge.

    >>> within(Pair(0.34, 0.32, 0.02)), within(Pair(0.34, 0.31, 0.02)), within(Pair(0.34, None, 0.02))
    (True, False, None)
    """
    numbers = (pair.ours, pair.published, pair.tolerance)
    known = [value for value in numbers if value is not None and math.isfinite(value)]
    return None if len(known) < 3 else abs(known[0] - known[1]) <= known[2] + _SLACK


def _heading(name: str, cells: list[Cell]) -> Heading:
    printed = [cell for cell in cells if isinstance(cell, Pair) and cell.published is not None]
    if printed:
        return Heading(name, "number", _parts(printed))
    return Heading(name, "text" if any(isinstance(cell, str) and cell for cell in cells) else "number")


def _parts(printed: list[Pair]) -> tuple[Shown, ...]:
    parts = [Shown("ours", "ours"), Shown("published", "published"), Shown("difference", "difference")]
    tolerances = {pair.tolerance for pair in printed if pair.tolerance is not None}
    if tolerances:
        parts.append(Shown(f"within ±{tolerances.pop():g}" if len(tolerances) == 1 else "within tolerance", "judged"))
    return tuple(parts)


def _row(row: tuple[Cell, ...], headings: tuple[Heading, ...]) -> tuple[Shown, ...]:
    named = [cell for cell, heading in zip(row, headings, strict=True) if heading.name == "n"]
    counts = [int(cell) for cell in named if not isinstance(cell, str | Pair | None) and math.isfinite(cell)]
    count = counts[0] if counts else None
    return tuple(shown for cell, h in zip(row, headings, strict=True) for shown in _cells(cell, h, count))


def _cells(cell: Cell, heading: Heading, count: int | None) -> tuple[Shown, ...]:
    """One cell, or as many as the heading is split into."""
    if isinstance(cell, str):
        shown = [Shown(cell, "text")]
    elif not isinstance(cell, Pair):
        shown = [_number(cell, count, "number")]
    else:
        printed = "–" if cell.published is None else number(cell.published)
        apart = difference(cell.ours, cell.published) or "–"
        shown = [_number(cell.ours, count, "ours"), Shown(printed, "published"), Shown(apart, "difference")]
        shown.append(_verdict(cell, named=heading.parts[-1:] == (Shown("within tolerance", "judged"),)))
    shown += [Shown("–", kind) for kind in _BESIDE[len(shown) - 1 : heading.span - 1]]
    return tuple(shown[: heading.span])


def _verdict(pair: Pair, *, named: bool) -> Shown:
    """In a word; with the tolerance where the heading does not name it."""
    judged = within(pair)
    if judged is None:
        return Shown("–", "judged")
    limit = f" ±{pair.tolerance:g}" if named else ""
    return Shown(f"{'inside' if judged else 'outside'}{limit}", "inside" if judged else "outside")


def _number(value: float | None, count: int | None, kind: Kind) -> Shown:
    missing = value is None or math.isnan(value)
    return Shown(number(value, count), "missing" if missing else kind)
