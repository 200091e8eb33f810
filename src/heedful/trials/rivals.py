"""Adversarial attention as an explanation: weights that the model would have predicted the same with, and that are not
its own.

What such weights say is wrong as far as they differ from what decides; a measure of explanations that likes them as
much as the truth cannot tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.core.searching import Descent
from heedful.core.types import Attribution, Batch, Method, Model, Plan, Trace, UserError
from heedful.core.vertices import farthest, slab
from heedful.core.workspace import derived_seed
from heedful.models.opposing import opposed, posed
from heedful.models.pooled import Pooled, PooledModel
from heedful.models.tally import Tally, TallyModel


@dataclass(frozen=True)
class AdversarialAttention:
    """The weights farthest from the model's own that leave its prediction as it is (Jain & Wallace, algorithm 3).

    Exact for two classes behind a linear decoder, searched and improved for other pooled models.

    Args:
        epsilon: change of the output, as total variation, up to which a prediction counts as the same.
        seed: of the search.
    """

    epsilon: float = 0.05
    seed: int = 0

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights in float64; which class is explained makes no difference to them."""
        with torch.no_grad():
            trace = model(batch)
        if isinstance(model, TallyModel):
            weights = self._of_sum(batch, trace)
        elif isinstance(model, PooledModel):
            weights = self._of_pooled(model, batch, trace)
        else:
            raise UserError("adversarial attention is for pooled models; for a transformer choose another method")
        return Attribution(weights.masked_fill(~batch.scored, 0.0), batch.scored)

    def _of_pooled(self, model: PooledModel, batch: Batch, trace: Trace) -> Tensor:
        seeds = [derived_seed("adversary", self.seed, uid) for uid in batch.uids]
        given = torch.tensor(seeds, device=trace.logits.device)
        return opposed(posed(model, batch, trace), self.epsilon, Descent(), given, exact=True).adversary.sum(1)

    def _of_sum(self, batch: Batch, trace: Trace) -> Tensor:
        """A sum over words is a mean weighted by attention, of each word's number times their count."""
        count = batch.scored.sum(1, keepdim=True).clamp(min=1)
        scores = trace.embeddings[..., 0].double() * count
        return farthest(slab(scores, trace.attention[:, 0, 0, 0].double(), batch.scored, self.epsilon))


def opponents(plan: Plan) -> tuple[Method, ...]:
    """Adversarial attention for models that have one, nothing for others."""
    return (AdversarialAttention(),) if isinstance(plan, Pooled | Tally) else ()
