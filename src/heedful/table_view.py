"""Tables as data: cells, our numbers beside published ones, and the bands in which they were expected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Band:
    """The interval in which a number was expected before it was measured; open on a side that is not given.

    >>> print(Band(0.8, 0.85), Band(high=0.2), Band(0.5), sep="; ")
    0.8 to 0.85; at most 0.2; at least 0.5
    """

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        low, high = (f"{bound:.4g}".replace("-", "\N{MINUS SIGN}") for bound in (self.low, self.high))
        if math.isinf(self.low):
            return f"at most {high}"
        return f"at least {low}" if math.isinf(self.high) else f"{low} to {high}"

    def verdict(self, value: float | None) -> str:
        """Whether the number is inside.

        >>> Band(0.8, 0.85).verdict(0.85), Band(high=0.2).verdict(0.21), Band(0.5).verdict(None)
        ('inside', 'outside', 'undefined')
        """
        if value is None or math.isnan(value):
            return "undefined"
        # Bands are decimal numbers: .82 - .80 must be inside .02 despite its binary rounding error.
        return "inside" if self.low - 1e-9 <= value <= self.high + 1e-9 else "outside"


Judgement = Literal["inside", "outside", "powerless"]


@dataclass(frozen=True)
class Comparison:
    """Our number (None: undefined) beside the published one (None: not published) and their difference.

    Args:
        tolerance: the largest acceptable difference; if given, the page shows "inside" or "outside".
        doubt: why the published number is not reliable; empty if it is.
        band: where our number was expected, in place of a tolerance.
    """

    ours: float | None
    published: float | None
    tolerance: float | None = None
    doubt: str = ""
    band: Band | None = None

    @property
    def limits(self) -> Band | None:
        """Where our number is acceptable; None where it is not judged."""
        if self.published is None or self.band is not None or self.tolerance is None:
            return self.band if self.published is not None else None
        return Band(self.published - self.tolerance, self.published + self.tolerance)

    @property
    def judgement(self) -> Judgement | None:
        """Whether our number is acceptable; None where it is undefined or not judged.

        A tolerance as large as the published number accepts 0, so that being inside it says nothing ("powerless");
        being outside is a miss all the same.

        >>> [Comparison(0.34, other, 0.02).judgement for other in (0.32, 0.31, None)]
        ['inside', 'outside', None]
        >>> Comparison(0.01, 0.05, 0.1).judgement, Comparison(0.3, 0.05, 0.1).judgement
        ('powerless', 'outside')
        """
        if self.limits is None or self.ours is None or not math.isfinite(self.ours):
            return None
        if self.limits.verdict(self.ours) == "outside":
            return "outside"
        is_powerless = self.band is None and self.published is not None and self.limits.low * self.limits.high <= 0
        return "powerless" if is_powerless else "inside"


Cell = str | float | Comparison | None


@dataclass(frozen=True)
class TableView:
    """A table of the report; the first column names the row.

    Args:
        rows: one cell per column; None is shown as "undefined". A column with published numbers is shown as three
            (ours, published, difference), and as four where there is a tolerance; in a wide table as one, with the
            published number below ours.
        note: a sentence or two below the table.
        groups: a heading for each column that neighbors share, empty for a column without one.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.groups and len(self.groups) != len(self.columns):
            raise ValueError(f"table {self.caption!r}: {len(self.groups)} groups over {len(self.columns)} columns")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.caption!r}: {len(row)} cells under {len(self.columns)} columns")
