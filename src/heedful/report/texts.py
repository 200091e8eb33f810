"""The texts of one subject with all that was stored about each: every row of weights, every number, as plain values.

A row of weights is one explanation, for instance attention or the gradient; a figure is one number per text. Where
something was not computed for a text, there is None in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ExplanationRow:
    """One explanation, the same for all texts of a page.

    Args:
        note: what the weights are, in plain words.
        is_shown: whether readers see it before they choose.
        is_opposed: whether its weights were sought as far as possible from attention, at nearly the same output.
    """

    name: str
    note: str = ""
    is_shown: bool = True
    is_adversarial: bool = False


@dataclass(frozen=True)
class AdversaryResult:
    """How far other weights are from attention, how far any could be, and how far they move the output."""

    divergence: float | None
    bound: float | None
    change: float | None
    certified: bool


@dataclass(frozen=True)
class TokenWeights:
    """One score per unit of one text, under one row."""

    values: NDArray[np.float64]
    adversary: AdversaryResult | None = None


@dataclass(frozen=True)
class ExplorerText:
    """One instance.

    Args:
        units: what can receive a score, in reading order.
        second: the place at which the second part starts (a question, a hypothesis); 0 where there is one part.
        label: the true class, or a real number for regression; None where nobody knows.
        figures: one number per name in `Texts.figures`.
        weights: one per row in `Texts.rows`.
    """

    uid: str
    units: tuple[str, ...]
    second_start: int
    predicted: int | None
    probability: float | None
    label: float | None
    figures: tuple[float | None, ...]
    weights: tuple[TokenWeights | None, ...]


@dataclass(frozen=True)
class ExplorerTexts:
    """All that a page for looking up texts says.

    Args:
        about: corpus, encoder, attention, seed and the like.
        classes: names of the classes; a class without a name is called by its number.
        figures: what the figures of each text are.
        remarks: what a reader must know.
    """

    about: Mapping[str, str | float]
    classes: tuple[str, ...]
    rows: tuple[ExplanationRow, ...]
    figures: tuple[str, ...]
    texts: tuple[ExplorerText, ...]
    remarks: tuple[str, ...] = field(default=())

    def class_name(self, number: float | None) -> str:
        """The name of a class; a real number, as a regression has it, is shown as it is."""
        if number is None:
            return "unknown"
        if number != int(number):
            return f"{number:.3g}"
        return self.classes[int(number)] if 0 <= number < len(self.classes) else f"class {int(number)}"
