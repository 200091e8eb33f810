"""Exact adversarial attention: the attention farthest from a given one that nearly keeps the output.

With one score per unit, the attentions that keep the output are simplex ∩ slab. Jensen-Shannon divergence is convex, so
its maximum is at a vertex: one unit inside the slab, or a mixture of two units on one of its sides. All vertices are
tried, so the solution is certified. With several classes, a walk to a vertex of equal output never lowers the
divergence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.measures.divergence import jensen_shannon

_CHUNK = 1 << 17
"""Pairs in memory at once: few enough for the processor's cache."""

_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Slab:
    """All attentions whose weighted mean of the scores lies between two bounds.

    Args:
        attention: what divergence is measured from `[batch unit]`, zero off its support.
        scores: what each unit adds to the logit `[batch unit]`, NaN off the support.
        low: lower bound `[batch]`, -inf where that side is open.
        high: upper bound `[batch]`, +inf where that side is open.
    """

    attention: Tensor
    scores: Tensor
    low: Tensor
    high: Tensor

    def rows(self, index: slice) -> Slab:
        """Some of the texts."""
        return Slab(self.attention[index], self.scores[index], self.low[index], self.high[index])

    @property
    def inside_mask(self) -> Tensor:
        """The units that keep the output with all the weight `[batch unit]`."""
        return (self.scores >= self.low[:, None]) & (self.scores <= self.high[:, None])


def build_slab(scores: Tensor, attention: Tensor, support: Tensor, epsilon: float) -> Slab:
    """The attentions that change `p = sigmoid(Σ a·scores)` by at most `epsilon`; a bias belongs to every score.

    The bounds are the logits of `p ± epsilon`; a side beyond [0, 1] is open. Both `p` and `1 - p` are computed from the
    logit, so that a saturated output keeps its precision.

    >>> even = build_slab(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]), torch.ones(1, 2, dtype=torch.bool), 0.25)
    >>> even.low, even.high
    (tensor([-1.0986], dtype=torch.float64), tensor([1.0986], dtype=torch.float64))
    """
    attention, scores = attention.double(), scores.double()
    logit = (attention * torch.where(support, scores, 0.0)).sum(-1)
    yes, no = torch.sigmoid(logit), torch.sigmoid(-logit)
    low = torch.log((yes - epsilon).clamp(min=0.0)) - torch.log(no + epsilon)
    high = torch.log(yes + epsilon) - torch.log((no - epsilon).clamp(min=0.0))
    return Slab(attention, scores.masked_fill(~support, math.nan), low, high)


def find_exact_adversary(slab: Slab) -> Tensor:
    """The attention of the slab with the largest Jensen-Shannon divergence `[batch unit]`, on at most two units.

    Ties go to the first unit, then to the first pair. Where rounding leaves no vertex, the result is attention itself.
    """
    batch, units = slab.scores.shape
    size = max(1, _CHUNK // max(1, units * (units - 1)))
    parts = [_find_exact_adversary_chunk(slab.rows(slice(start, start + size))) for start in range(0, batch, size)]
    return torch.cat(parts) if parts else slab.attention


def _find_exact_adversary_chunk(slab: Slab) -> Tensor:
    attention, units = slab.attention, slab.attention.shape[-1]
    own = 0.5 * _x_log_x(attention)
    value = (_jsd_gain(torch.ones_like(attention), attention) + own).masked_fill(~slab.inside_mask, -math.inf)
    best, unit = value.max(-1)
    alone = torch.zeros_like(value).scatter(1, unit[:, None], 1.0)
    found = torch.where(best[:, None] > -math.inf, alone, attention)
    bounds = torch.stack([slab.low, slab.high], 1)[:, :, None]
    for i, j in torch.split(torch.triu_indices(units, units, 1, device=attention.device), _CHUNK, dim=1):
        # A pair is on a bound where j has the share (bound - s_i) / (s_j - s_i): NaN or outside [0, 1] if it never is.
        start, end = slab.scores[:, None, i], slab.scores[:, None, j]
        shares = (bounds - start) / (end - start)
        row, side, pair = ((shares >= 0) & (shares <= 1)).nonzero(as_tuple=True)
        share, first, second = shares[row, side, pair], (row, i[pair]), (row, j[pair])
        value = _jsd_gain(1 - share, attention[first]) + own[first] + _jsd_gain(share, attention[second]) + own[second]
        chosen = _argmax_per_row(value, row, best)
        mixed = found.new_zeros(len(chosen), units)
        for (_, places), weight in ((first, 1 - share), (second, share)):
            mixed = mixed.scatter(1, places[chosen][:, None], weight[chosen][:, None])
        found = found.index_copy(0, row[chosen], mixed)
        best = best.scatter_reduce(0, row, value, "amax")
    return found


def _argmax_per_row(value: Tensor, row: Tensor, best: Tensor) -> Tensor:
    """The index of each row's first largest value; none for a row where `best` is larger."""
    most = best.scatter_reduce(0, row, value, "amax")
    leading = ((value >= most[row]) & (value > best[row])).nonzero().squeeze(1)
    _, counts = torch.unique_consecutive(row[leading], return_counts=True)
    return leading[counts.cumsum(0) - counts]


def _jsd_gain(weight: Tensor, attention: Tensor) -> Tensor:
    """Half of `w ln w - (w + a) ln (w + a)`.

    With ½ a ln a, this is what a unit of weight w adds to `JSD = ln 2 + Σ ½ (w ln w + a ln a - (w + a) ln (w + a))`;
    units without weight add nothing.
    """
    return 0.5 * (_x_log_x(weight) - _x_log_x(weight + attention))


def _x_log_x(value: Tensor) -> Tensor:
    return value * value.clamp(min=_TINY).log()


def walk_to_vertex(weights: Tensor, scores: Tensor, attention: Tensor) -> Tensor:
    """From each point to a vertex of the attentions with equal output, `[row unit]`, at no smaller divergence.

    Equal output means equal differences of the class logits: with the sum of the weights, one condition per class.
    Any further unit leaves a direction to move in, both ways until a weight is zero; the divergence is convex, so one
    of the two ends is at least as far as the start. At most as many units as classes remain.

    Args:
        weights: starting points `[row unit]`.
        scores: contribution of each unit to each class logit `[row unit class]`.
        attention: what divergence is measured from `[row unit]`.
    """
    classes, units = scores.shape[-1], scores.shape[-2]
    differences = scores[..., 1:] - scores[..., :1]
    size = differences.abs().amax((-2, -1), keepdim=True).clamp(min=_TINY)
    conditions = torch.cat([differences / size, torch.ones_like(scores[..., :1])], -1)
    for _ in range(units - classes):
        busy = ((weights > 0).sum(-1) > classes).nonzero().squeeze(1)
        if not len(busy):
            break
        weights = weights.index_copy(0, busy, _eliminate_unit(weights[busy], conditions[busy], attention[busy]))
    return weights


def _eliminate_unit(weights: Tensor, conditions: Tensor, attention: Tensor) -> Tensor:
    """The farther of the two points where a weight becomes zero; units with most attention are eliminated first."""
    picked = torch.where(weights > 0, attention, -1.0).topk(conditions.shape[-1] + 1, dim=-1).indices
    chosen = conditions.gather(1, picked[..., None].expand(-1, -1, conditions.shape[-1]))
    # The last column of a complete Q is orthogonal to all the conditions, whatever their rank.
    direction = torch.linalg.qr(chosen, mode="complete").Q[..., -1]
    start, own = weights.gather(1, picked), attention.gather(1, picked)
    forth, back = (_step_until_zero(start, way) for way in (direction, -direction))
    farther = jensen_shannon(forth, own) >= jensen_shannon(back, own)
    return weights.scatter(1, picked, torch.where(farther[:, None], forth, back))


def _step_until_zero(start: Tensor, direction: Tensor) -> Tensor:
    room, first = torch.where(direction < 0, start / -direction, math.inf).min(-1, keepdim=True)
    return (start + room * direction).clamp(min=0.0).scatter(1, first, 0.0)
