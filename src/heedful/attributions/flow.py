"""Attention as pipes: the maximum flow from the class symbol on top to each unit (Abnar & Zuidema 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention, looks_at_units, readers, scored_units
from heedful.attributions.rollout import check_residual, mixed
from heedful.core.maxflow import Flows, max_flows
from heedful.core.recipe import LATER
from heedful.core.types import Attribution, Batch, Model, UserError


@dataclass(frozen=True)
class Flow:
    """The most that can flow from the class symbol on top to each unit, through edges as wide as the mixing weights.

    Capacities are B = (1 - residual) A + residual I with heads averaged, as in rollout. Where a text has no class
    symbol, the flow may enter at all units alike. Values are not divided by their sum, which ranks units alike. A
    pooled model has one layer: the answer is its attention. `flows` tells ties and which values a shortcut certified.

    Args:
        residual: share of a unit that goes past attention; one half in the paper.
        specials: special symbols are scored too.
    """

    residual: float = 0.5
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_residual(self.residual)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Flows to the scored units, in float64."""
        with torch.no_grad():
            attention = model(batch).attention
        if not looks_at_units(attention, batch):
            return RawAttention(specials=self.specials)(model, batch, target)
        scores = torch.zeros(batch.mask.shape, dtype=torch.float64)
        units = scored_units(batch, specials=self.specials)
        for row, found in enumerate(flows(attention, batch, self.residual, specials=self.specials)):
            scores[row, units[row].cpu()] = torch.from_numpy(found.values)
        return Attribution(scores.to(batch.mask.device), units)


def flows(attention: Tensor, batch: Batch, residual: float = 0.5, *, specials: bool = False) -> tuple[Flows, ...]:
    """For each example the flows to its scored units in order, with the shares certified and `tied` ones.

    Args:
        attention: of a transformer, `[batch layer head query unit]`.
        specials: flows to special symbols too.
    """
    if not looks_at_units(attention, batch):
        raise UserError("flow needs layers in which units look at units: a pooled model has only its one attention")
    layers, starts = mixed(attention, residual).cpu().numpy(), readers(batch, "class").cpu().numpy()
    units, found = scored_units(batch, specials=specials), []
    for row in range(len(batch)):
        real = batch.mask[row].cpu().numpy().nonzero()[0]
        scored = units[row].cpu().numpy()[real].nonzero()[0]
        found.append(max_flows(layers[row][:, real[:, None], real], starts[row, real], scored))
    return tuple(found)
