"""Exact adversarial attention: the attention farthest from a given one that nearly keeps the output.

With one score per unit, the attentions that keep the output are simplex ∩ slab. Jensen-Shannon divergence is convex, so
its maximum is at a vertex: one unit inside the slab, or a mixture of two units on one of its sides. All vertices are
tried, so the solution is certified.

With K classes, `Σ w·scores = z` and `Σ w = 1` are K conditions, so for every attention there is one with the same
output, at no smaller divergence, on at most K units. The outputs within epsilon form a star around the original in
logit space: along a ray, the softmax is an exponential family, whose total variation from its start grows. So each
ray has one boundary point, which each support of K units reaches by at most one mixture. All supports are tried for
many rays, and the best are refined; a slab around the ratio of two classes gives an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from heedful.measures.divergence import jensen_shannon, total_variation

_CHUNK = 1 << 17
"""Pairs in memory at once: few enough for the processor's cache."""

_TINY = torch.finfo(torch.float64).tiny

MAX_SUPPORT_CLASSES = 4
"""With more classes, the supports of as many units are too many to search."""
_MAX_MIXTURES = 1 << 24
"""Mixtures (supports times rays) that are tried for a text; units with most attention are left out beyond that."""
_NUM_REFINED = 24
_REFINEMENT_ROUNDS = 25
_PAIR_POINTS = 33
_BISECTION_STEPS = 48
_ROUNDING = 1e-12


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
    entropy_terms = 0.5 * _x_log_x(attention)
    value = (_jsd_gain(torch.ones_like(attention), attention) + entropy_terms).masked_fill(~slab.inside_mask, -math.inf)
    best, unit = value.max(-1)
    alone = torch.zeros_like(value).scatter(1, unit[:, None], 1.0)
    adversary = torch.where(best[:, None] > -math.inf, alone, attention)
    bounds = torch.stack([slab.low, slab.high], 1)[:, :, None]
    for i, j in torch.split(torch.triu_indices(units, units, 1, device=attention.device), _CHUNK, dim=1):
        # A pair is on a bound where j has the share (bound - s_i) / (s_j - s_i): NaN or outside [0, 1] if it never is.
        start, end = slab.scores[:, None, i], slab.scores[:, None, j]
        shares = (bounds - start) / (end - start)
        row, side, pair = ((shares >= 0) & (shares <= 1)).nonzero(as_tuple=True)
        share, first, second = shares[row, side, pair], (row, i[pair]), (row, j[pair])
        value = (
            _jsd_gain(1 - share, attention[first])
            + entropy_terms[first]
            + _jsd_gain(share, attention[second])
            + entropy_terms[second]
        )
        chosen = _argmax_per_row(value, row, best)
        mixed = adversary.new_zeros(len(chosen), units)
        for (_, places), weight in ((first, 1 - share), (second, share)):
            mixed = mixed.scatter(1, places[chosen][:, None], weight[chosen][:, None])
        adversary = adversary.index_copy(0, row[chosen], mixed)
        best = best.scatter_reduce(0, row, value, "amax")
    return adversary


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
    start, observed = weights.gather(1, picked), attention.gather(1, picked)
    forth, back = (_step_until_zero(start, way) for way in (direction, -direction))
    farther = jensen_shannon(forth, observed) >= jensen_shannon(back, observed)
    return weights.scatter(1, picked, torch.where(farther[:, None], forth, back))


def _step_until_zero(start: Tensor, direction: Tensor) -> Tensor:
    room, first = torch.where(direction < 0, start / -direction, math.inf).min(-1, keepdim=True)
    return (start + room * direction).clamp(min=0.0).scatter(1, first, 0.0)


@dataclass(frozen=True)
class EquivalentOutputs:
    """The outputs of one text within epsilon of the original, behind a linear decoder with three or more classes.

    Args:
        scores: logits of each unit with all the weight, bias included, without excluded classes `[unit class]`.
        attention: what divergence is measured from `[unit]`.
        epsilon: total variation that is allowed.
    """

    scores: Tensor
    attention: Tensor
    epsilon: float

    @cached_property
    def logits(self) -> Tensor:
        """The original output `[class]`."""
        return self.attention @ self.scores

    @cached_property
    def probabilities(self) -> Tensor:
        """The original output `[class]`."""
        return torch.softmax(self.logits, -1)

    def contains(self, logits: Tensor) -> Tensor:
        """Whether logits `[... class]` are within epsilon."""
        change = total_variation(torch.softmax(logits, -1), self.probabilities)
        return change <= self.epsilon

    @cached_property
    def ratio_bounds(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest log ratio of a class to another within epsilon, `[other class]` each."""
        less = (self.probabilities - self.epsilon).clamp(min=0.0).log()
        more = (self.probabilities + self.epsilon).clamp(max=1.0).log()
        return less - more[:, None], more - less[:, None]

    @property
    def ratio_slabs(self) -> Slab:
        """For each pair of the likeliest classes, the attentions whose log ratio of both is possible within epsilon.

        Every equivalent attention is in all of them; with two classes there is one, and it has no other attention.
        """
        likely = self.probabilities.argsort(descending=True, stable=True)[:MAX_SUPPORT_CLASSES]
        first, second = (torch.combinations(likely) if len(likely) > 1 else likely.expand(1, 2)).T
        low, high = (bounds[first, second] for bounds in self.ratio_bounds)
        ratios = (self.scores[:, second] - self.scores[:, first]).T
        return Slab(self.attention.expand_as(ratios), ratios, low, high)

    @property
    def divergence_bound(self) -> float:
        """No equivalent attention is farther than the farthest one of any slab."""
        slabs = self.ratio_slabs
        return jensen_shannon(find_exact_adversary(slabs), slabs.attention).min().item()

    def boundary(self, directions: Tensor) -> Tensor:
        """Log ratios to the first class `[... class-1]` where rays from the original leave the region.

        Directions are relative to the reach of the scores; a ray that does not leave the region ends beyond all scores.
        """
        ratios = self.scores[:, 1:] - self.scores[:, :1]
        origin = self.logits[1:] - self.logits[0]
        rays = directions * (ratios - origin).abs().amax(0)
        low = torch.zeros_like(rays[..., :1])
        high = torch.full_like(low, math.sqrt(rays.shape[-1]))
        low = torch.where(self._contains_ratios(origin + high * rays), high, low)
        for _ in range(_BISECTION_STEPS):
            middle = (low + high) / 2
            kept = self._contains_ratios(origin + middle * rays)
            low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
        return origin + low * rays

    def _contains_ratios(self, ratios: Tensor) -> Tensor:
        return self.contains(torch.cat([torch.zeros_like(ratios[..., :1]), ratios], -1))[..., None]

    def mixtures(self, supports: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
        """Weights `[support ray class]` on supports `[support class]` with the given ratios, and their divergences.

        Ratios are `[ray class-1]`, or `[support ray class-1]`; the divergence is -inf where no mixture has them.
        """
        observed = self.attention[supports][:, None]
        conditions = torch.cat([self.scores[:, 1:] - self.scores[:, :1], torch.ones_like(self.scores[:, :1])], 1)
        inverse, _ = torch.linalg.inv_ex(conditions[supports])
        weights = torch.cat([ratios, torch.ones_like(ratios[..., :1])], -1) @ inverse
        impossible = ~((weights >= -_ROUNDING).all(-1) & inverse.isfinite().all(-1).all(-1)[:, None])
        weights = weights.clamp(min=0.0)
        weights = weights / weights.sum(-1, keepdim=True)
        gain = (_jsd_gain(weights, observed) + 0.5 * _x_log_x(observed)).sum(-1) + math.log(2)
        return weights, gain.masked_fill(impossible | gain.isnan(), -math.inf)


def search_supports(outputs: EquivalentOutputs) -> Tensor:
    """The farthest equivalent attention that is found on one unit, two units or as many as classes `[unit]`.

    Supports of as many units as classes are searched for at most `MAX_SUPPORT_CLASSES`.
    """
    attention, (units, classes) = outputs.attention, outputs.scores.shape
    if classes <= 2:
        return find_exact_adversary(outputs.ratio_slabs)[0]
    single = torch.eye(units, dtype=attention.dtype, device=attention.device)[outputs.contains(outputs.scores)]
    candidates = [attention[None], single, _pair_boundaries(outputs)]
    if classes <= min(units, MAX_SUPPORT_CLASSES):
        candidates.append(_refine(outputs, *_best_supports(outputs)))
    supports_found = torch.cat(candidates)
    return supports_found[jensen_shannon(supports_found, attention).argmax()]


def _pair_boundaries(outputs: EquivalentOutputs) -> Tensor:
    """Mixtures of two units where the output enters or leaves the region `[mixture unit]`."""
    device = outputs.scores.device
    first, second = torch.triu_indices(len(outputs.scores), len(outputs.scores), 1, device=device)
    start, step = outputs.scores[first], outputs.scores[second] - outputs.scores[first]
    # The bounds of the ratios limit the part of a segment where the region can be.
    origin, slope = start - start[:, :1], step - step[:, :1]
    ends = torch.stack([(bounds[0] - origin) / slope for bounds in outputs.ratio_bounds])
    low = torch.where(slope == 0, 0.0, ends.amin(0)).nan_to_num(0.0).amax(1).clamp(min=0.0)
    high = torch.where(slope == 0, 1.0, ends.amax(0)).nan_to_num(1.0).amin(1).clamp(max=1.0)
    steps = torch.linspace(0, 1, _PAIR_POINTS, dtype=low.dtype, device=device)
    share = low[:, None] + steps * (high - low)[:, None]
    kept = outputs.contains(start[:, None] + share[..., None] * step[:, None]) & (low < high)[:, None]
    pair, point = (kept[:, 1:] != kept[:, :-1]).nonzero(as_tuple=True)
    left, right, is_left = share[pair, point], share[pair, point + 1], kept[pair, point]
    inside, outside = torch.where(is_left, left, right), torch.where(is_left, right, left)
    for _ in range(_BISECTION_STEPS):
        middle = (inside + outside) / 2
        within = outputs.contains(start[pair] + middle[:, None] * step[pair])
        inside, outside = torch.where(within, middle, inside), torch.where(within, outside, middle)
    mixed = inside.new_zeros(len(pair), len(outputs.scores))
    mixed = mixed.scatter(1, first[pair][:, None], 1 - inside[:, None])
    return mixed.scatter(1, second[pair][:, None], inside[:, None])


def _best_supports(outputs: EquivalentOutputs) -> tuple[Tensor, Tensor]:
    """Supports `[candidate class]` and directions `[candidate class-1]` of the farthest mixtures on the boundary."""
    units, classes = outputs.scores.shape
    directions = _spread_directions(classes - 1).to(outputs.scores.device)
    count, num_units = len(directions), units
    while num_units > classes and math.comb(num_units, classes) * count > _MAX_MIXTURES:
        num_units -= 1
    kept = outputs.attention.argsort(stable=True)[:num_units].sort().values
    supports, ratios = kept[torch.combinations(torch.arange(num_units), classes)], outputs.boundary(directions)
    chosen, divergences_found = [], []
    for start in range(0, len(supports), max(1, _CHUNK // count)):
        _, divergence = outputs.mixtures(supports[start : start + max(1, _CHUNK // count)], ratios)
        values, index = divergence.flatten().topk(min(_NUM_REFINED, divergence.numel()))
        chosen.append(values)
        divergences_found.append(index + start * count)
    values, index = torch.cat(chosen).topk(min(_NUM_REFINED, sum(map(len, chosen))))
    index = torch.cat(divergences_found)[index[values > -math.inf]]
    return supports[index // count], directions[index % count]


def _spread_directions(dimensions: int) -> Tensor:
    """Unit vectors in all directions: even on a circle, drawn on a sphere."""
    if dimensions == 2:
        angles = torch.arange(192, dtype=torch.float64) * (2 * math.pi / 192)
        return torch.stack([angles.cos(), angles.sin()], 1)
    drawn = torch.randn(512, dimensions, generator=Generator().manual_seed(0), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn)


def _refine(outputs: EquivalentOutputs, supports: Tensor, directions: Tensor) -> Tensor:
    """Mixtures `[candidate unit]` after a pattern search over the directions, with each support kept."""
    step = directions.new_full((len(directions), 1, 1), 0.1)
    weights = directions.new_zeros(len(directions), supports.shape[1])
    for _ in range(_REFINEMENT_ROUNDS if len(supports) else 0):
        # All axes and the ways back, longer and shorter; the direction itself comes first and wins ties.
        axes = torch.eye(directions.shape[1], dtype=directions.dtype, device=directions.device)
        moves = torch.cat([torch.zeros_like(axes[:1]), axes, -axes, axes / 2, -axes / 2])
        tried = directions[:, None] + step * moves
        tried = torch.nn.functional.normalize(tried, dim=-1)
        mixed, divergence = outputs.mixtures(supports, outputs.boundary(tried))
        best = divergence.argmax(1)
        row = torch.arange(len(best))
        directions, weights = tried[row, best], mixed[row, best]
        step = torch.where((best == 0)[:, None, None], step / 3, step)
    return weights.new_zeros(len(weights), len(outputs.scores)).scatter(1, supports, weights)
