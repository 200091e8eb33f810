"""Nulls: attributions that look like real ones and know nothing of the example, to say how much agreement is chance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention
from heedful.core.randomness import random_orders
from heedful.core.types import Attribution, Batch, Model
from heedful.core.workspace import derived_seed


@dataclass(frozen=True)
class PermutedAttention:
    """The model's own weights, dealt to other units by chance: as peaked as attention, but blind.

    Each part of an example keeps its weights, so a part that attention cannot reach stays at zero. The deal is drawn
    from (seed, uid).
    """

    seed: int = 0
    attention: RawAttention = RawAttention()

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The weights of `attention`, permuted within each part."""
        scores = self.attention(model, batch, target).scores
        seeds = torch.tensor([derived_seed("permuted", self.seed, uid) for uid in batch.uids], device=scores.device)
        for part in range(int(batch.segments.max()) + 1):
            scores = _dealt(scores, batch.scored & (batch.segments == part), seeds + part)
        return Attribution(scores, batch.scored)


def _dealt(scores: Tensor, units: Tensor, seeds: Tensor) -> Tensor:
    """The scores of the marked units read in random order and written back in their own; other units as they are."""
    drawn = random_orders(seeds, 1, units)[:, 0]
    places = torch.argsort((~units).to(torch.int8), dim=-1, stable=True)
    dealt = torch.empty_like(scores).scatter_(-1, places, scores.gather(-1, drawn))
    return torch.where(units, dealt, scores)
