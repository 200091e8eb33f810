"""Attention that opposes the model's own: one batch of a pooled model, put so that either solver can answer.

Hidden states are projected once to what each unit adds to each class; from there on no network is needed. The exact
solver applies to two classes behind a linear decoder. Elsewhere the search is made, then improved: what was found is
pulled outwards until the output moves by epsilon, a walk leads from there to a vertex (linear decoder), and the
lightest unit that keeps the output alone is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.core.divergences import total_variation
from heedful.core.searching import Change, Descent, LinearChange, RecordedChange, best, searched, starts, stretched
from heedful.core.types import Batch, Trace, UserError
from heedful.core.vertices import Slab, farthest, slab, walked
from heedful.models.pooled import PooledModel
from heedful.models.shapes import LinearReadout

SLACK = 1e-9
"""What rounding may add to epsilon."""

_NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class _Projected:
    """Class logits as a weighted mean: `a·scores + offset`, `[batch unit class]` and `[batch class]`."""

    scores: Tensor
    offset: Tensor

    def __call__(self, attention: Tensor) -> Tensor:
        return torch.softmax(torch.bmm(attention[:, :, 0], self.scores) + self.offset[:, None], -1)

    @property
    def scalar(self) -> Tensor | None:
        """One score per unit `[batch unit]`, bias included, where two classes are all there is."""
        if self.scores.shape[-1] != 2 or not self.offset.isfinite().all():
            return None
        both = self.scores + self.offset[:, None]
        return both[..., 1] - both[..., 0]


@dataclass(frozen=True)
class Case:
    """A batch as the solvers see it.

    Args:
        attention: the model's own `[batch query unit]`, each row a distribution in float64.
        outputs: probabilities `[batch count class]` of attentions `[batch count query unit]`.
        before: probabilities under the model's own attention `[batch class]`.
        scale: ½ where the paper's hinge is on one probability, 1 where it is on the L1 norm over classes.
    """

    attention: Tensor
    support: Tensor
    outputs: Callable[[Tensor], Tensor]
    before: Tensor
    scale: float

    def moved(self, candidates: Tensor) -> Tensor:
        """Total variation of the output `[batch count]` under candidates `[batch count query unit]`."""
        return total_variation(self.outputs(candidates), self.before[:, None])

    @property
    def change(self) -> Change:
        """The change that the search holds against its hinge."""
        if isinstance(self.outputs, _Projected):
            return LinearChange(self.outputs.scores, self.outputs.offset, self.before, self.scale)
        return RecordedChange(self.outputs, self.before, self.scale)


@dataclass(frozen=True)
class Opposed:
    """What a solver found.

    Args:
        adversary: `[batch query unit]`.
        certified: proven to be the farthest `[batch]`; False means a lower bound.
        alone: units that keep the output by themselves `[batch unit]`; None where attention has several rows.
        within: the slab of all equivalent attentions, where the exact solver applies.
    """

    case: Case
    adversary: Tensor
    certified: Tensor
    alone: Tensor | None
    within: Slab | None

    @property
    def moved(self) -> Tensor:
        """Total variation of the output under the adversary `[batch]`."""
        return self.case.moved(self.adversary[:, None])[:, 0]


@torch.no_grad()
def opposed(case: Case, epsilon: float, descent: Descent, seeds: Tensor, *, exact: bool) -> Opposed:
    """The attention farthest from the model's own that moves the output by at most epsilon, by the wanted solver."""
    within = _slab(case, epsilon)
    alone = _alone(case, epsilon) if within is None else within.inside
    if exact and within is not None:
        adversary = farthest(within).unsqueeze(1)
        certified = case.moved(adversary.unsqueeze(1))[:, 0] <= epsilon + SLACK
        return Opposed(case, adversary, certified, alone, within)
    found = searched(case.attention, case.change, starts(case.support, seeds, descent), descent)
    adversary = best(found, case.attention, case.moved(found), epsilon)
    if exact:
        adversary = _improved(case, found, alone, epsilon)
    return Opposed(case, adversary, torch.zeros_like(seeds, dtype=torch.bool), alone, within)


def posed(model: PooledModel, batch: Batch, trace: Trace) -> Case:
    """The batch as a case for the solvers."""
    if model.task.classes < 2:
        raise UserError("adversarial attention is for classifiers: epsilon is a change of probability")
    readout, support = model.readout(batch, trace.hidden), model.shape.support(batch)
    attention = torch.where(support, trace.attention[:, 0, 0].double(), 0.0)
    attention = attention / attention.sum(-1, keepdim=True)
    dtype = trace.hidden.dtype

    def through_decoder(candidates: Tensor) -> Tensor:
        return model.task.probabilities(readout(candidates.to(dtype))).double()

    outputs = _projected(readout) if isinstance(readout, LinearReadout) else through_decoder
    before = outputs(attention.unsqueeze(1))[:, 0]
    return Case(attention, support, outputs, before, 0.5 if model.task.outputs == 1 else 1.0)


def _projected(readout: LinearReadout) -> _Projected:
    scores = readout.scores.double()
    offset = readout.reading.admitted(readout.offset.double().expand(len(scores), 1, -1)).squeeze(1)
    if scores.shape[-1] == 1:
        # One logit is the second of two classes; that of the first is zero.
        scores, offset = (torch.cat([torch.zeros_like(each), each], -1) for each in (scores, offset))
    return _Projected(scores, offset)


def _slab(case: Case, epsilon: float) -> Slab | None:
    scalar = case.outputs.scalar if isinstance(case.outputs, _Projected) else None
    return None if scalar is None else slab(scalar, case.attention[:, 0], case.support[:, 0], epsilon)


def _alone(case: Case, epsilon: float) -> Tensor | None:
    """Units that keep the output by themselves, each tried."""
    batch, queries, units = case.attention.shape
    if queries > 1:
        return None
    size = max(1, _NUMBERS_AT_ONCE // max(1, batch * units))
    single = torch.eye(units, dtype=case.attention.dtype, device=case.attention.device)[None, :, None]
    some = torch.split(single.expand(batch, -1, -1, -1), size, dim=1)
    moved = torch.cat([case.moved(candidates) for candidates in some], 1)
    return (moved <= epsilon) & case.support[:, 0]


def _improved(case: Case, found: Tensor, alone: Tensor | None, epsilon: float) -> Tensor:
    """The best of what was found, of what lies beyond it on the rays and walks, and of single units."""
    rays = torch.cat([found, _lightest(case, found.shape[1])], 1)
    candidates = [found, stretched(rays, case.attention, case.moved, epsilon)]
    if isinstance(case.outputs, _Projected):
        candidates.append(_walked(case, case.outputs, torch.cat(candidates, 1)))
    if alone is not None:
        candidates.append(_alone_lightest(case.attention, alone).unsqueeze(1))
    everything = torch.cat(candidates, 1)
    return best(everything, case.attention, case.moved(everything), epsilon + SLACK)


def _lightest(case: Case, count: int) -> Tensor:
    """All weight of each query on one of its lightest units, `[batch count query unit]`; the heaviest where few are."""
    ordered = case.attention.masked_fill(~case.support, torch.inf).argsort(-1)
    last = case.support.sum(-1, keepdim=True) - 1
    places = torch.minimum(torch.arange(count, device=ordered.device), last)
    units = ordered.gather(-1, places).transpose(1, 2)[..., None]
    return torch.zeros_like(case.attention).unsqueeze(1).repeat(1, count, 1, 1).scatter(3, units, 1.0)


def _alone_lightest(attention: Tensor, alone: Tensor) -> Tensor:
    """All weight on the lightest of the units that keep the output, `[batch 1 unit]`; attention where there is none."""
    unit = attention[:, 0].masked_fill(~alone, torch.inf).argmin(-1)
    single = torch.zeros_like(attention).scatter(2, unit[:, None, None], 1.0)
    return torch.where(alone.any(-1)[:, None, None], single, attention)


def _walked(case: Case, outputs: _Projected, points: Tensor) -> Tensor:
    """A vertex of equal output for each point and for attention itself, `[batch count 1 unit]`."""
    points = torch.cat([case.attention.unsqueeze(1), points], 1)[:, :, 0]
    count = points.shape[1]
    scores, attention = (
        each.unsqueeze(1).expand(-1, count, *each.shape[1:]).flatten(0, 1)
        for each in (outputs.scores, case.attention[:, 0])
    )
    ends = walked(points.flatten(0, 1), scores, attention)
    return ends.reshape(-1, count, 1, ends.shape[-1])
