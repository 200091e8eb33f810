"""Attention followed down through all layers: rollout (Abnar & Zuidema 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention, looks_at_units, on_scored, readers
from heedful.core.recipe import LATER
from heedful.core.types import Attribution, Batch, Model, UserError


@dataclass(frozen=True)
class Rollout:
    """The share of each unit in the class symbol on top, if every layer mixes units by its mean attention.

    The class symbol's row of B_L ... B_1, B = (1 - residual) A + residual I with heads averaged; the mean of all rows
    where a text has no class symbol. A pooled model has one layer without a residual: the answer is its attention.

    Args:
        residual: share of a unit that goes past attention; one half in the paper.
        start_layer: layers below this one are left out.
        specials: special symbols are scored too.
    """

    residual: float = 0.5
    start_layer: int = 0
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_residual(self.residual)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Shares of the scored units, in float64; with special symbols a text's shares sum to 1."""
        with torch.no_grad():
            attention = model(batch).attention
        if not looks_at_units(attention, batch):
            return RawAttention(specials=self.specials)(model, batch, target)
        if not 0 <= self.start_layer < attention.shape[1]:
            raise UserError(
                f"there is no layer {self.start_layer} to start from: layers are 0 to {attention.shape[1] - 1}"
            )
        shares = rolled_out(mixed(attention, self.residual)[:, self.start_layer :], readers(batch, "class"))
        return on_scored(shares, batch, specials=self.specials)


def check_residual(residual: float) -> None:
    """Refuses a share that is none."""
    if not 0 <= residual < 1:
        raise UserError(f"residual={residual} is not a share: choose a number from 0 to below 1, 0.5 as in the paper")


def mixed(attention: Tensor, residual: float = 0.5) -> Tensor:
    """B `[batch layer query unit]`: heads averaged, the residual added, real rows sum to 1; in float64."""
    mean = attention.double().mean(2)
    mean = mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    return (1 - residual) * mean + residual * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)


def rolled_out(layers: Tensor, rows: Tensor) -> Tensor:
    """r B_L ... B_1 `[batch unit]` for weights r of the rows on top `[batch unit]`; O(layers x units²).

    >>> uniform = mixed(torch.full((1, 6, 1, 10, 10), 0.1))
    >>> rolled_out(uniform, torch.eye(10, dtype=torch.float64)[:1])[0, :2].numpy().round(9).tolist()
    [0.1140625, 0.0984375]
    """
    for layer in range(layers.shape[1] - 1, -1, -1):
        rows = torch.einsum("bq,bqu->bu", rows, layers[:, layer])
    return rows
