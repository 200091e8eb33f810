"""Attributions that read attention itself, and who reads: which query rows of a layer count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.core.recipe import LATER
from heedful.core.types import Attribution, Batch, Model, UserError

Row = Literal["mean", "class"]


@dataclass(frozen=True)
class RawAttention:
    """The model's weights: mean over the chosen layers and heads, and over the query rows.

    A compared pair has one row per text; their mean puts the two texts side by side on one axis.

    Args:
        layer: one layer only, counted from 0; None takes all.
        head: one head only; None takes all.
        specials: special symbols are scored too.
    """

    layer: int | None = None
    head: int | None = None
    specials: bool = field(default=False, metadata=LATER)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored units; where special symbols are left out, what they receive is not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        layers = attention[:, numbered(self.layer, attention.shape[1], "layer")]
        heads = layers[:, :, numbered(self.head, attention.shape[2], "head")]
        rows = batch.mask[:, None, None, :] if attention.shape[3] == batch.mask.shape[1] else None
        return on_scored(_row_mean(heads, rows).mean((1, 2)), batch, specials=self.specials)


def _row_mean(attention: Tensor, rows: Tensor | None) -> Tensor:
    """Mean over the query axis, over real rows only where rows are units."""
    if rows is None:
        return attention.mean(3)
    weights = rows.to(attention) / rows.sum(-1, keepdim=True)
    return torch.einsum("blhqu,blhq->blhu", attention, weights.expand(attention.shape[:4]))


@dataclass(frozen=True)
class HeadAttention:
    """What the class symbol looks at in one layer: the heat-map that is shown most often.

    A text without a class symbol is read by all its units alike. A pooled model has one row: the answer is its
    attention, as for `RawAttention`.

    Args:
        layer: counted from 0, or from the last with -1; None takes the mean of all.
        head: one head only; None takes the mean of all.
        row: "class" reads the first unit's row where that unit is a special symbol, "mean" the mean of real rows.
        specials: special symbols are scored too.
    """

    layer: int | None = -1
    head: int | None = None
    row: Row = "class"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_row(self.row)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored units; where special symbols are left out, what they receive is not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        if not looks_at_units(attention, batch):
            return RawAttention(specials=self.specials)(model, batch, target)
        chosen = attention[:, numbered(self.layer, attention.shape[1], "layer")]
        chosen = chosen[:, :, numbered(self.head, attention.shape[2], "head")]
        scores = torch.einsum("bq,blhqu->bu", readers(batch, self.row), chosen.double())
        return on_scored(scores / (chosen.shape[1] * chosen.shape[2]), batch, specials=self.specials)


def scored_units(batch: Batch, *, specials: bool) -> Tensor:
    """The units that get a score `[batch unit]`: words, and with `specials` all real units."""
    return batch.mask if specials else batch.scored


def on_scored(scores: Tensor, batch: Batch, *, specials: bool) -> Attribution:
    """The scores of words, or with `specials` of all real units; zero elsewhere."""
    units = scored_units(batch, specials=specials)
    return Attribution(scores.masked_fill(~units, 0), units)


def looks_at_units(attention: Tensor, batch: Batch) -> bool:
    """True where queries are units (self-attention), False for the one or two queries of a pooled model."""
    return attention.shape[3] == batch.mask.shape[1]


def check_row(row: str) -> None:
    """Refuses a choice of rows that there is not."""
    if row not in get_args(Row):
        raise UserError(f"there is no row {row!r} to read attention from; choose one of {', '.join(get_args(Row))}")


def readers(batch: Batch, row: Row) -> Tensor:
    """Weights of the query rows `[batch unit]`, in float64: the class symbol's row alone, or all real rows alike."""
    alike = batch.mask.double() / batch.lengths.clamp(min=1).unsqueeze(1)
    if row == "mean":
        return alike
    first = torch.zeros_like(alike)
    first[:, 0] = 1.0
    has_class = batch.mask[:, :1] & ~batch.scored[:, :1]
    return torch.where(has_class, first, alike)


def numbered(number: int | None, count: int, kind: str) -> slice:
    """The one layer or head with this number, or all; a number from -count to count - 1."""
    if number is None:
        return slice(None)
    if not -count <= number < count:
        raise UserError(f"there is no {kind} {number}: this model has {count}, numbered from 0")
    number %= count
    return slice(number, number + 1)
