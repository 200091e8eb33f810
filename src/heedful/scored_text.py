"""A text with the scores of several methods as plain values, for terminals, notebooks and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one method over the units of a text.

    Args:
        values: one per unit; NaN on units that have no score.
        is_signed: whether a negative score speaks against the explained class.
        remark: of this row, behind its name.
    """

    name: str
    values: tuple[float, ...]
    is_signed: bool = True
    remark: str = ""

    @property
    def peak(self) -> float:
        """The largest absolute score; 0 if there is none."""
        return max((abs(value) for value in self.values if math.isfinite(value)), default=0.0)

    def shares(self) -> tuple[float, ...]:
        """Each score relative to the largest, -1 to 1; NaN where there is no score.

        >>> ScoreRow("lime", (0.2, -0.4, math.nan)).shares()
        (0.5, -1.0, nan)
        """
        peak = self.peak
        return tuple(value / peak if peak else value for value in self.values)


@dataclass(frozen=True)
class ScoredText:
    """A text with the scores of several methods, to be shown to people: in a terminal, in a notebook, on a page.

    Args:
        heading: the explained class and its probability.
        positive: what a positive score means, for instance "for toxic".
        negative: what a negative score means.
        parts: of which text of a pair each unit is.
        notes: what the reader must know about these scores.
        facts: model, versions and other things to trace the scores by.
    """

    heading: str
    positive: str
    negative: str
    units: tuple[str, ...]
    parts: tuple[int, ...]
    rows: tuple[ScoreRow, ...]
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.units), len(self.parts), *(len(row.values) for row in self.rows)}
        if len(lengths) > 1:
            raise ValueError(f"units, parts and scores have different lengths: {sorted(lengths)}")
