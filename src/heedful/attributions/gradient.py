"""Gradient methods: the gradient of the output with respect to the input embeddings, once per text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from heedful.attributions.method import (
    Background,
    CheckedOptions,
    MethodTags,
    Output,
    in_evaluation_mode,
    masked_attribution,
    register,
    target_output,
)
from heedful.types import Attribution, Batch, Model

ROUNDING_UNITS = 8
"""A sum of this many units of rounding of its terms, or fewer, is 0; on ViT sums have up to 0.5."""


@register("gradient")
@dataclass(frozen=True)
class Gradient(CheckedOptions):
    """Gradient x input per token with attention detached, e_t . dp/de_t (Jain & Wallace 2019, algorithm 1).

    It is the derivative along the one-hot entry of the token; `InputXGradient` does not detach attention. The paper
    takes the absolute value; scores here keep their sign.

    Args:
        output: "probability" as in the paper, or "logit", which does not saturate where the model is confident.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = e_t · ∂p/∂e_t,  attention held constant",
        avoid='where the model is confident: the gradient of a probability near 0 or 1 vanishes; use `output="logit"`',
        references=("jain-2019", "simonyan-2014"),
    )

    tags: ClassVar[MethodTags] = MethodTags(
        reads="gradient",
        fixes_attention=True,
        note="gradient of the predicted class times the embedding; negative where the token lowers the output",
    )

    output: Output = "probability"

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed products of the content tokens, in float64."""
        with torch.no_grad():
            trace = model(batch)

        def read(embeddings: Tensor) -> Tensor:
            logits = model(batch, embeddings=embeddings, attention=trace.attention).logits
            return target_output(model.task, logits, target, self.output)

        scores = (trace.embeddings.double() * embedding_gradients(read, trace.embeddings).double()).sum(-1)
        return masked_attribution(scores, batch, special_tokens=False)


@register("input-x-gradient")
@dataclass(frozen=True)
class InputXGradient(CheckedOptions):
    """Input x gradient per token, e_t . df/de_t, with the gradient through attention."""

    background: ClassVar[Background] = Background(
        formula="s_t = e_t · ∂f/∂e_t",
        avoid="where the model is confident or strongly nonlinear: one gradient describes the text only locally",
        references=("shrikumar-2016",),
    )

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient")

    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed products of the tokens, in float64."""
        embeddings, gradients = _input_gradients(model, batch, target, self.output)
        scores = (embeddings.double() * gradients).sum(-1)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


@register("gradient-norm")
@dataclass(frozen=True)
class GradientNorm(CheckedOptions):
    """Norm of the gradient per token, |df/de_t|_1 or |df/de_t|_2; never negative.

    Args:
        order: 1 (captum's saliency, summed over the embedding) or 2; `GradientSum` keeps the sign.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = ‖∂f/∂e_t‖",
        avoid="to tell words for the prediction from words against it: a norm has no sign",
        references=("simonyan-2014",),
    )

    tags: ClassVar[MethodTags] = MethodTags(signed=False, pooling="mean", reads="gradient")

    order: Literal[1, 2] = 2
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the tokens' gradients, in float64."""
        _, gradients = _input_gradients(model, batch, target, self.output)
        return masked_attribution(gradients.norm(p=self.order, dim=-1), batch, special_tokens=self.special_tokens)


@register("gradient-sum")
@dataclass(frozen=True)
class GradientSum(CheckedOptions):
    """Signed sum of the gradient over the embedding of each token, sum_d df/de_td.

    Where every layer normalises its input first (ViT), a constant added to an embedding changes nothing and the sum is
    0: a sum that is within rounding of 0 is exactly 0, so that rounding is not ranked.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = Σ_d ∂f/∂e_td",
        avoid="on networks that normalize their input first: a constant shift of an embedding "
        "changes nothing there, and the sum is 0",
        references=("simonyan-2014",),
    )

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient")

    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Sums of the tokens' gradients, in float64."""
        embeddings, gradients = _input_gradients(model, batch, target, self.output)
        sums, noise = gradients.sum(-1), ROUNDING_UNITS * torch.finfo(embeddings.dtype).eps
        scores = sums.masked_fill(sums.abs() <= noise * gradients.abs().sum(-1), 0)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


def embedding_gradients(function: Callable[[Tensor], Tensor], embeddings: Tensor) -> Tensor:
    """Gradients `[batch unit width]` of the values `[batch]` that a function computes from the embeddings."""
    with torch.enable_grad():
        inputs = embeddings.detach().clone().requires_grad_()
        # With inputs given, autograd leaves no gradient on the parameters.
        return torch.autograd.grad(function(inputs).sum(), inputs)[0]


def _input_gradients(model: Model, batch: Batch, target: Tensor, output: Output) -> tuple[Tensor, Tensor]:
    """The embeddings of the texts, and the gradients there `[batch unit width]` in float64."""

    def read(embeddings: Tensor) -> Tensor:
        return target_output(model.task, model.read_logits(batch, embeddings=embeddings), target, output)

    with torch.no_grad():
        embeddings = model.read_embeddings(batch)
    return embeddings, embedding_gradients(read, embeddings).double()
