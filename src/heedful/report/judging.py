"""Bands that numbers were expected in before they were measured, and the table that says which were met."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from heedful.papers._chapter import Cell, TableView


@dataclass(frozen=True)
class Band:
    """From `low` to `high`, both included; open on a side that is not given.

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
        """Whether the number is inside, in a word.

        >>> Band(0.8, 0.85).judge(0.85), Band(high=0.2).judge(0.21), Band(0.5).judge(None)
        ('inside', 'outside', 'undefined')
        """
        if value is None or math.isnan(value):
            return "undefined"
        # Bands are written in decimals: .82 - .80 must be inside .02, whatever its binary digits say.
        return "inside" if self.low - 1e-9 <= value <= self.high + 1e-9 else "outside"


Check = tuple[str, float | None, Band]
"""What was expected, our number, and the band it was expected in."""


def check_table(caption: str, checks: Iterable[Check], note: str) -> TableView:
    """The checks with their verdicts, and how many were met."""
    rows: list[tuple[Cell, ...]] = [(what, value, str(band), band.verdict(value)) for what, value, band in checks]
    met = sum(row[-1] == "inside" for row in rows)
    return TableView(
        caption, ("check", "ours", "band", "verdict"), tuple(rows), f"Inside: {met} of {len(rows)}. {note}"
    )
