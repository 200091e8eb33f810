"""Attributions that read attention itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.core.types import Attribution, Batch, Model


@dataclass(frozen=True)
class RawAttention:
    """The model's weights: mean over the chosen layers and heads, and over the query rows.

    A compared pair has one row per text; their mean puts the two texts side by side on one axis.

    Args:
        layer: one layer only, counted from 0; None takes all.
        head: one head only; None takes all.
    """

    layer: int | None = None
    head: int | None = None

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored units; what special symbols receive is left out, not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        layers = attention if self.layer is None else attention[:, [self.layer]]
        heads = layers if self.head is None else layers[:, :, [self.head]]
        rows = batch.mask[:, None, None, :] if attention.shape[3] == batch.mask.shape[1] else None
        scores = _row_mean(heads, rows).mean((1, 2))
        return Attribution(scores.masked_fill(~batch.scored, 0), batch.scored)


def _row_mean(attention: Tensor, rows: Tensor | None) -> Tensor:
    """Mean over the query axis, over real rows only where rows are units."""
    if rows is None:
        return attention.mean(3)
    weights = rows.to(attention) / rows.sum(-1, keepdim=True)
    return torch.einsum("blhqu,blhq->blhu", attention, weights.expand(attention.shape[:4]))
