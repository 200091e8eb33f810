"""Shuffled attention and what it does to the output: through the readout of pooled models, through the door of others.

A pooled model's hidden states do not depend on its attention, so a hundred shuffled weightings are one product. A
transformer's do: every shuffled attention is sent through the network, many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.core.measures import total_variation
from heedful.core.randomness import random_orders
from heedful.core.types import Batch, Model, Trace, UserError
from heedful.core.workspace import derived_seed
from heedful.models.pooled import PooledModel

NUMBERS_AT_ONCE = 2**24
"""Attention weights that are held at once while going through a transformer: 64 MB in float32."""


@dataclass(frozen=True)
class Shuffling:
    """How attention is shuffled.

    Args:
        permutations: shuffled attentions per instance.
        layer: only this layer of a transformer, counted from 0; None takes all.
        head: only this head of each chosen layer; None takes all.
    """

    permutations: int = 100
    seed: int = 0
    layer: int | None = None
    head: int | None = None

    def changes(self, model: Model, batch: Batch, trace: Trace) -> Tensor:
        """Total variation between the output and that under each shuffled attention, `[batch permutation]`."""
        seeds = torch.tensor([derived_seed("permutation", self.seed, uid) for uid in batch.uids])
        with torch.no_grad():
            before = model.task.probabilities(trace.logits)[:, None]
            if isinstance(model, PooledModel):
                shuffled = shuffle(trace.attention[:, 0, 0], model.shape.support(batch), seeds, self.permutations)
                logits = model.readout(batch, trace.hidden)(shuffled)
            else:
                logits = self._through_the_door(model, batch, trace.attention, seeds)
            return total_variation(model.task.probabilities(logits), before)

    def _through_the_door(self, model: Model, batch: Batch, attention: Tensor, seeds: Tensor) -> Tensor:
        """Logits `[batch permutation output]`; what is not shuffled stays as it was."""
        chosen = self._chosen(attention)
        at_once = max(1, NUMBERS_AT_ONCE // attention.numel())
        found = []
        for first in range(0, self.permutations, at_once):
            count = min(at_once, self.permutations - first)
            rows = attention[chosen].flatten(1, -2)
            support = batch.mask.unsqueeze(1).expand_as(rows)
            shuffled = shuffle(rows, support, seeds + (first << 20), count)
            given = attention.unsqueeze(1).repeat(1, count, *([1] * (attention.dim() - 1)))
            given[:, :, *chosen[1:]] = shuffled.reshape(len(batch), count, *attention[chosen].shape[1:])
            logits = model(batch.repeat(count), attention=given.flatten(0, 1)).logits
            found.append(logits.reshape(len(batch), count, -1))
        return torch.cat(found, dim=1)

    def _chosen(self, attention: Tensor) -> tuple[slice, slice, slice]:
        layers, heads = attention.shape[1:3]
        for name, wanted, count in (("layer", self.layer, layers), ("head", self.head, heads)):
            if wanted is not None and not 0 <= wanted < count:
                raise UserError(f"there is no {name} {wanted}: this model has {count}, counted from 0")
        return slice(None), _one(self.layer), _one(self.head)


def _one(place: int | None) -> slice:
    return slice(None) if place is None else slice(place, place + 1)


def shuffle(attention: Tensor, support: Tensor, seeds: Tensor, count: int) -> Tensor:
    """`count` random permutations of each row of attention `[batch query unit]` inside its support.

    Given back as `[batch count query unit]`: the supported units are read in random order and written to the supported
    places in their own order.
    """
    batch, queries, units = attention.shape
    own = (seeds.to(attention.device)[:, None] + torch.arange(queries, device=attention.device)).flatten()
    reach = support.flatten(0, 1)
    drawn = random_orders(own, count, reach)
    places = torch.argsort((~reach).to(torch.int8), dim=-1, stable=True).unsqueeze(1).expand_as(drawn)
    weights = attention.flatten(0, 1).unsqueeze(1).expand(drawn.shape).gather(-1, drawn)
    shuffled = torch.empty_like(weights).scatter_(-1, places, weights)
    return shuffled.view(batch, queries, count, units).transpose(1, 2)
