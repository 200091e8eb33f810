"""Attention times the slope of the output along it, in one place or followed through all layers.

The slope is that of the whole network: a weight of a lower layer also moves what higher layers attend to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.attributions.attention import Row, check_row, looks_at_units, numbered, on_scored, readers
from heedful.attributions.output import Output, check_output, explained
from heedful.core.carrying import Carries, check_own
from heedful.core.recipe import LATER
from heedful.core.types import Attribution, Batch, Model, UserError


@dataclass(frozen=True)
class AttentionXGradient:
    """Attention times the slope of the output along it, a dy/da: mean over layers, heads and rows.

    With the positive part only, it is Grad-SAM (Barkan et al. 2021).

    Args:
        output: "logit" as in the paper, or "probability".
        positive: a product that speaks against the target counts as 0; False keeps the sign.
        layer: one layer only, counted from 0, or from the last with -1; None takes the mean of all.
        row: "mean" takes all real rows, "class" the class symbol's, where there is one.
        specials: special symbols are scored too.
    """

    output: Output = "logit"
    positive: bool = True
    layer: int | None = None
    row: Row = "mean"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_output(self.output)
        check_row(self.row)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Products of the scored units, in float64."""
        found = products(model, batch, target, self.output)
        found = found.clamp(min=0) if self.positive else found
        chosen = found[:, numbered(self.layer, found.shape[1], "layer")].mean((1, 2))
        rows = readers(batch, self.row) if looks_at_units(found, batch) else _alike(chosen)
        return on_scored(torch.einsum("bq,bqu->bu", rows, chosen), batch, specials=self.specials)


@dataclass(frozen=True)
class Relevance:
    """How much of each unit arrives in the class symbol, layers weighed by their slopes (Chefer et al. 2021).

    R starts as I and becomes R + E R in each layer upwards, E = mean over heads of the positive part of a dy/da; given
    back is the class symbol's row of R - I, or the mean of all real rows where a text has no class symbol. A pooled
    model has one layer: the answer is the row of E.

    Args:
        output: "logit" as in the paper, or "probability".
        start_layer: layers below this one are left out; -1 leaves only the last.
        specials: special symbols are scored too.
    """

    output: Output = "logit"
    start_layer: int = 0
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Relevance of the scored units, in float64."""
        found = products(model, batch, target, self.output)
        layers = found.clamp(min=0).mean(2)
        if not looks_at_units(found, batch):
            scores = torch.einsum("bq,bqu->bu", _alike(layers[:, 0]), layers[:, 0])
            return on_scored(scores, batch, specials=self.specials)
        layers = layers[:, numbered(self.start_layer, layers.shape[1], "layer").start :]
        return on_scored(propagated(layers, readers(batch, "class")), batch, specials=self.specials)


def propagated(layers: Tensor, rows: Tensor) -> Tensor:
    """r (I + E_L) ... (I + E_1) - r `[batch unit]` for weights r of the rows; O(layers x units²), R is never made."""
    found = rows
    for layer in range(layers.shape[1] - 1, -1, -1):
        found = found + torch.einsum("bq,bqu->bu", found, layers[:, layer])
    return found - rows


def products(model: Model, batch: Batch, target: Tensor, output: Output) -> Tensor:
    """a dy/da `[batch layer head query unit]`, in float64; zero where attention cannot be."""
    with torch.enable_grad():
        attention, logits = _in_graph(model, batch)
        total = explained(model.task, logits, target, output).sum()
        # Asked for attention only, autograd leaves no gradient on the parameters. Above the last layer that the
        # output reads, a weight may have no part in it.
        slopes = torch.autograd.grad(total, attention, allow_unused=True)
    pairs = zip(attention, slopes, strict=True)
    found = [weights.detach().double() * (0.0 if slope is None else slope.double()) for weights, slope in pairs]
    return torch.stack(found, dim=1)


def _in_graph(model: Model, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
    """The attention of each layer `[batch head query unit]`, and logits that were computed from it."""
    if isinstance(model, Carries):
        check_own(model)
        carried = model.carried(batch)
        return carried.attention, carried.logits
    with torch.no_grad():
        attention = model(batch).attention
    if attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not show its layers: wrap it with TransformerModel.wrap")
    given = attention[:, 0].detach().clone().requires_grad_()
    return (given,), model(batch, attention=given.unsqueeze(1)).logits


def _alike(rows: Tensor) -> Tensor:
    """Equal weights for the one or two queries of a pooled model."""
    return torch.full(rows.shape[:2], 1 / rows.shape[1], dtype=rows.dtype, device=rows.device)
