"""Attributions from the slope of the output along the embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions._base import Output, check_output, target_output
from heedful.types import Attribution, Batch, Model, Trace, UserError


@dataclass(frozen=True)
class Gradient:
    """The slope of the output along each unit's own embedding, e_t . dp/de_t, with attention held fixed.

    It is the derivative for the one-hot entry of the present word. Jain & Wallace (algorithm 1) take the absolute
    value; scores here keep their sign, and a trial that follows the paper drops it.

    Args:
        output: "probability" as in the paper, or "logit", which does not flatten out where the model is sure.
        cut: attention is a constant, as in the paper; False lets the slope pass through attention too.
        factor: False divides by the unit's attention weight (0 where that is 0), which the slope of a token-wise
            encoder contains by construction; for pooled models only.
    """

    output: Output = "probability"
    detach_attention: bool = True
    keep_attention_factor: bool = True

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed slopes of the scored units, in float64."""
        with torch.no_grad():
            trace = model(batch)
        weights = None if self.keep_attention_factor else _attention_weights(trace)
        scores = (trace.embeddings.double() * self._gradients(model, batch, target, trace).double()).sum(-1)
        if weights is not None:
            scores = torch.where(weights > 0, scores / weights, 0.0)
        return Attribution(scores.masked_fill(~batch.content_mask, 0), batch.content_mask)

    def _gradients(self, model: Model, batch: Batch, target: Tensor, trace: Trace) -> Tensor:
        """d output / d embeddings `[batch unit width]`."""
        attention = trace.attention.detach() if self.detach_attention else None

        def read(embeddings: Tensor) -> Tensor:
            logits = model(batch, embeddings=embeddings, attention=attention).logits
            return target_output(model.task, logits, target, self.output)

        return embedding_gradients(read, trace.embeddings)


@dataclass(frozen=True)
class InputXGradient:
    """The slope along each unit's own embedding, e_t . df/de_t, through attention and all.

    It is the output's linear part that is due to the unit, and what `Gradient(cut=False)` gives.

    Args:
        output: "probability", or "logit", which does not flatten out where the model is sure.
        specials: special symbols are scored too.
    """

    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed products of the units, in float64."""
        embeddings, slope = _input_gradients(model, batch, target, self.output)
        return _masked_attribution((embeddings * slope).sum(-1), batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class GradientNorm:
    """The size of the slope along each unit's embedding, |df/de_t|_1 or |df/de_t|_2, never negative.

    Args:
        order: 1, as captum's saliency summed over its entries, or 2.
        output: "probability" or "logit".
        specials: special symbols are scored too.
    """

    order: int = 2
    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.order not in (1, 2):
            raise UserError(f"GradientNorm(order={self.order}): choose 1 or 2; GradientSum() keeps the sign")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the units' slopes, in float64."""
        _, slope = _input_gradients(model, batch, target, self.output)
        return _masked_attribution(slope.norm(p=self.order, dim=-1), batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class GradientSum:
    """The signed sum of the entries of the slope along each unit's embedding, sum_d df/de_td.

    Args:
        output: "probability" or "logit".
        specials: special symbols are scored too.
    """

    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Sums of the units' slopes, in float64."""
        _, slope = _input_gradients(model, batch, target, self.output)
        return _masked_attribution(slope.sum(-1), batch, special_tokens=self.special_tokens)


def embedding_gradients(read: Callable[[Tensor], Tensor], embeddings: Tensor) -> Tensor:
    """The slopes of the values `[batch]` that are read off embeddings `[batch unit width]`, of the same shape."""
    with torch.enable_grad():
        at = embeddings.detach().clone().requires_grad_()
        # Asked for embeddings only, autograd leaves no gradient on the parameters.
        return torch.autograd.grad(read(at).sum(), at)[0]


def _input_gradients(model: Model, batch: Batch, target: Tensor, output: Output) -> tuple[Tensor, Tensor]:
    """The embeddings of the texts and the slopes at them, in float64."""
    with torch.no_grad():
        embeddings = model(batch).embeddings

    def read(at: Tensor) -> Tensor:
        return target_output(model.task, model(batch, embeddings=at).logits, target, output)

    return embeddings.double(), embedding_gradients(read, embeddings).double()


def _masked_attribution(scores: Tensor, batch: Batch, *, special_tokens: bool) -> Attribution:
    units = batch.mask if special_tokens else batch.content_mask
    return Attribution(scores.masked_fill(~units, 0), units)


def _attention_weights(trace: Trace) -> Tensor:
    """The one weight of each unit `[batch unit]`, in float64: a unit of a pair is attended to by its own part's row."""
    layers, heads, queries = trace.attention.shape[1:4]
    if layers > 1 or heads > 1 or queries > 2:
        raise UserError(
            "Gradient(factor=False) divides by a unit's one attention weight, which only pooled models have: "
            "use factor=True for a transformer"
        )
    return trace.attention[:, 0, 0].sum(1).double()
