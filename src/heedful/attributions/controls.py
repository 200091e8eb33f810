"""Negative controls: attributions that know nothing of the example or of the trained model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from heedful.attributions.attention import ATTENTION_WEIGHTS, RawAttention
from heedful.attributions.method import (
    Background,
    CheckedOptions,
    MethodTags,
    example_seeds,
    in_evaluation_mode,
    method_name,
    register,
    scored_units,
    tags_of,
)
from heedful.seeding import permute_within
from heedful.store.recipe import derive_seed
from heedful.types import Attribution, Batch, Method, Model


@register("random")
@dataclass(frozen=True)
class Random(CheckedOptions):
    """Random scores, uniform on [0, 1), drawn from (seed, uid)."""

    background: ClassVar[Background] = Background(
        formula="s_t ~ Uniform[0, 1)",
        avoid="as an explanation: it is the control that every method must beat",
        references=(),
    )

    tags: ClassVar[MethodTags] = MethodTags(
        signed=False,
        pooling="mean",
        reads="nothing",
        target_specific=False,
        is_control=True,
        note="random scores, as a control",
    )

    seed: int = 0
    special_tokens: bool = False

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The scores of an example do not depend on the rest of the batch."""
        units = scored_units(batch, special_tokens=self.special_tokens)
        scores = torch.zeros(units.shape)
        for row, uid in enumerate(batch.uids):
            generator = Generator().manual_seed(derive_seed("random", self.seed, uid))
            scores[row, units[row].cpu()] = torch.rand(int(units[row].sum()), generator=generator)
        return Attribution(scores.to(batch.mask.device), units)


@register("permuted-attention")
@dataclass(frozen=True)
class PermutedAttention(CheckedOptions):
    """The model's attention weights, randomly permuted among the tokens: as peaked as attention, but uninformative.

    Weights are permuted within each text of a pair; the permutation is drawn from (seed, uid).

    Args:
        special_tokens: permute and score special tokens too.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = a_π(t),  π a random permutation of the tokens",
        avoid="as an explanation: it is a control with the distribution of attention and none of its information",
        references=("jain-2019",),
    )

    tags: ClassVar[MethodTags] = replace(
        ATTENTION_WEIGHTS, is_control=True, note="attention weights in random order, as a control"
    )

    seed: int = 0
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The weights of `RawAttention`, permuted within each text."""
        attention = RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        scores = attention.scores
        seeds = example_seeds("permuted", self.seed, batch)
        for segment in range(int(batch.segments.max()) + 1):
            scores = permute_within(scores, attention.mask & (batch.segments == segment), seeds + segment)
        return Attribution(scores, attention.mask)


@register("randomized")
@dataclass(frozen=True)
class RandomizedModel(CheckedOptions):
    """A method applied to a copy of the model with random weights (the sanity check of Adebayo et al. 2018).

    A method whose scores hardly change does not explain what the model has learned. Each weight tensor is drawn from a
    normal distribution with its own mean and standard deviation; weights that are exactly 0 stay 0, as on padding.

    Args:
        method: the method to apply.
        seed: of the weights, together with the name of each weight tensor.
    """

    background: ClassVar[Background] = Background(
        formula="s = method(model with random weights)",
        avoid="as an explanation: it is a control, which shows what a method says without a trained model",
        references=("adebayo-2018",),
    )

    revision: ClassVar[int] = 2

    method: Method = RawAttention()
    seed: int = 0

    @property
    def tags(self) -> MethodTags:
        """Those of the method that it applies, as a control."""
        note = f"{method_name(self.method)} of a copy of the model with random weights, as a control"
        return replace(tags_of(self.method), is_control=True, optimizes=(), note=note)

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The scores of `method` for the same targets on the randomized copy."""
        return self.prepare(model)(model, batch, target)

    def prepare(self, model: Model) -> Method:
        """The same method with the copy drawn once for all batches."""
        other = randomize_weights(model, self.seed)
        return lambda model, batch, target: self.method(other, batch, target)


def default_controls(methods: Sequence[Method]) -> tuple[Method, ...]:
    """Random scores, and permuted attention beside methods that read attention: other models may have none."""
    needs_attention = any(tags_of(method).needs_attention for method in methods)
    return (Random(), PermutedAttention()) if needs_attention else (Random(),)


@torch.no_grad()
def randomize_weights(model: Model, seed: int) -> Model:
    """A copy of the model with random weights; renaming a parameter changes its draw."""
    other = copy.deepcopy(model)
    for name, weights in other.named_parameters():
        # The spelling is part of the seed: another one would draw other weights.
        generator = Generator().manual_seed(derive_seed("randomised", seed, name))
        # In single precision for every model: drawing takes most of the time of a copy.
        drawn = torch.randn(weights.shape, generator=generator, dtype=torch.float32).to(weights.device)
        mean, std = weights.double().mean(), weights.double().std(correction=0)
        weights.copy_(drawn.mul_(std).add_(mean).masked_fill_(weights == 0, 0.0))
    return other
