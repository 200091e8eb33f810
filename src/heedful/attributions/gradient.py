"""Attributions from the slope of the output along the embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.output import Output, check_output, explained
from heedful.core.types import Attribution, Batch, Model, Trace, UserError


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
    cut: bool = True
    factor: bool = True

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed slopes of the scored units, in float64."""
        with torch.no_grad():
            trace = model(batch)
        weights = None if self.factor else _weights(trace)
        scores = (trace.embeddings.double() * self._slopes(model, batch, target, trace).double()).sum(-1)
        if weights is not None:
            scores = torch.where(weights > 0, scores / weights, 0.0)
        return Attribution(scores.masked_fill(~batch.scored, 0), batch.scored)

    def _slopes(self, model: Model, batch: Batch, target: Tensor, trace: Trace) -> Tensor:
        """d output / d embeddings `[batch unit width]`."""
        attention = trace.attention.detach() if self.cut else None
        with torch.enable_grad():
            embeddings = trace.embeddings.detach().clone().requires_grad_()
            logits = model(batch, embeddings=embeddings, attention=attention).logits
            total = explained(model.task, logits, target, self.output).sum()
            # Asked for embeddings only, autograd leaves no gradient on the parameters.
            return torch.autograd.grad(total, embeddings)[0]


def _weights(trace: Trace) -> Tensor:
    """The one weight of each unit `[batch unit]`, in float64: a unit of a pair is attended to by its own part's row."""
    layers, heads, queries = trace.attention.shape[1:4]
    if layers > 1 or heads > 1 or queries > 2:
        raise UserError(
            "Gradient(factor=False) divides by a unit's one attention weight, which only pooled models have: "
            "use factor=True for a transformer"
        )
    return trace.attention[:, 0, 0].sum(1).double()
