"""Attention weighed by what it carries: a large weight on a short vector moves little (Kobayashi et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention, Row, check_row, looks_at_units, numbered, on_scored, readers
from heedful.core.carrying import Carried, Carries, check_own
from heedful.core.recipe import LATER
from heedful.core.types import Attribution, Batch, Model, UserError


@dataclass(frozen=True)
class ValueNorm:
    """Attention times the length of the value that it weighs, a ||v||: mean over heads, layers and rows.

    For pooled models a_t ||h_t||, the hidden state being what attention weighs (Neely et al. 2022).

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes the mean of all.
        row: "mean" takes all real rows, "class" the class symbol's, where there is one.
        specials: special symbols are scored too.
    """

    layer: int | None = None
    row: Row = "mean"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_row(self.row)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the scored units, in float64."""
        if not isinstance(model, Carries):
            return on_scored(_weighed_states(model, batch, target), batch, specials=self.specials)
        check_own(model)
        carried, rows = model.carried(batch), readers(batch, self.row)
        found = []
        for layer in range(len(carried.attention))[numbered(self.layer, len(carried.attention), "layer")]:
            weights = torch.einsum("bq,bhqu->bhu", rows, carried.attention[layer].double())
            found.append((weights * carried.values[layer].double().norm(dim=-1)).mean(1))
        return on_scored(torch.stack(found).mean(0), batch, specials=self.specials)


@dataclass(frozen=True)
class KobayashiNorm:
    """The length of what each unit adds to each row of a layer's attention, || sum_heads a f(x) ||: mean over layers.

    f is the value transform and the head's part of the output projection; over all units the vectors add up to what
    the attention gives out, but for its bias. For pooled models a_t ||h_t||.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes the mean of all.
        row: "mean" takes all real rows, "class" the class symbol's, where there is one.
        specials: special symbols are scored too.
    """

    layer: int | None = None
    row: Row = "mean"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_row(self.row)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the scored units, in float64."""
        if not isinstance(model, Carries):
            return on_scored(_weighed_states(model, batch, target), batch, specials=self.specials)
        check_own(model)
        carried, rows = model.carried(batch), readers(batch, self.row)
        found = []
        for layer in range(len(carried.attention))[numbered(self.layer, len(carried.attention), "layer")]:
            found.append(torch.einsum("bq,bqu->bu", rows, added_lengths(carried, layer)))
        return on_scored(torch.stack(found).mean(0), batch, specials=self.specials)


def transformed(carried: Carried, layer: int) -> Tensor:
    """f(x) = (x W_V + b_V) W_O `[batch head unit width]` of a layer, in float64."""
    return torch.einsum("bhud,hdw->bhuw", carried.values[layer].double(), carried.projections[layer].double())


def added_lengths(carried: Carried, layer: int) -> Tensor:
    """|| sum_h a_h,qu f_h(x_u) || `[batch query unit]` of a layer.

    By the products of heads, a' G_u a with G_u = f(x_u) f(x_u)': the cost is heads² and not heads x width per pair.
    """
    vectors, weights = transformed(carried, layer), carried.attention[layer].double()
    products = torch.einsum("bhuw,bguw->bhgu", vectors, vectors)
    half = torch.einsum("bhqu,bhgu->bgqu", weights, products)
    # Rounding may push the square of a sum that cancels below zero.
    return (half * weights).sum(1).clamp(min=0).sqrt()


def _weighed_states(model: Model, batch: Batch, target: Tensor) -> Tensor:
    """a_t ||h_t|| of all real units `[batch unit]` of a pooled model."""
    trace = model(batch)
    if looks_at_units(trace.attention, batch) and trace.attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not show its values: wrap it with TransformerModel.wrap")
    weights = RawAttention(specials=True)(model, batch, target).scores.double()
    lengths: Tensor = trace.hidden.double().norm(dim=-1)
    return weights * lengths
