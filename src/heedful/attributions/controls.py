"""Nulls: attributions that look like real ones and know nothing of the example, to say how much agreement is chance."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.seeding import permute_within
from heedful.store.recipe import OMIT_IF_DEFAULT, derive_seed
from heedful.types import Attribution, Batch, Method, Model


@dataclass(frozen=True)
class PermutedAttention:
    """The model's own weights, dealt to other units by chance: as peaked as attention, but blind.

    Each part of an example keeps its weights, so a part that attention cannot reach stays at zero. The deal is drawn
    from (seed, uid).

    Args:
        specials: special symbols take part in the deal and are scored too, whatever `attention` says of them.
    """

    seed: int = 0
    attention: RawAttention = RawAttention()
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The weights of `attention`, permuted within each part."""
        found = replace(self.attention, special_tokens=self.special_tokens)(model, batch, target)
        scores = found.scores
        seeds = torch.tensor([derive_seed("permuted", self.seed, uid) for uid in batch.uids], device=scores.device)
        for part in range(int(batch.segments.max()) + 1):
            scores = permute_within(scores, found.mask & (batch.segments == part), seeds + part)
        return Attribution(scores, found.mask)


@dataclass(frozen=True)
class RandomizedModel:
    """A method on a copy of the model whose weights were drawn afresh (the sanity check of Adebayo et al. 2018).

    A method whose scores hardly change says little about what the model has learnt. Every tensor of weights is drawn
    from a normal with its own mean and spread, so that the copy works on the same scale whatever its kind; weights
    that are exactly zero, as on padding, stay zero.

    Args:
        method: what is asked for its scores.
        seed: decides the draw, together with the name of each weight.
    """

    method: Method = RawAttention()
    seed: int = 0

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The scores of `method` for the same targets on the other model."""
        return self.prepare(model)(model, batch, target)

    def prepare(self, model: Model) -> Method:
        """The same with the other model drawn once and for all."""
        return _OnRandomizedModel(self.method, randomize_weights(model, self.seed))


@dataclass(frozen=True)
class _OnRandomizedModel:
    """A method that explains another model than it is given."""

    method: Method
    other: Model

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        return self.method(self.other, batch, target)


@torch.no_grad()
def randomize_weights(model: Model, seed: int) -> Model:
    """A copy of the model with fresh weights; the given one is not touched."""
    other = copy.deepcopy(model)
    for name, weights in other.named_parameters():
        generator = Generator().manual_seed(derive_seed("randomised", seed, name))
        drawn = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
        centre, spread = weights.double().mean(), weights.double().std(correction=0)
        fresh = centre + spread * drawn.to(weights.device)
        weights.copy_(torch.where(weights == 0, 0.0, fresh))
    return other
