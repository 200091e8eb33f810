"""Correlations of many rows at once: Pearson, Spearman, Kendall's tau-b, top-k and weighted Kendall.

Functions take all methods of an example together, scores `[... method unit]` with a mask `[... unit]`, and return a
`Correlation` of all pairs of methods, `[... method method]`. A correlation of a constant row or of fewer than two units
is *undefined*: value and p-value are NaN and `defined` is False. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

MAX_EXACT_UNITS = 33
"""Longest row without ties whose Kendall p-value is exact, as in SciPy."""

MAX_CHUNK_ELEMENTS = 2**20
"""Pairs of units held at a time (4 MB): larger chunks gain nothing, and every sum of signs is exact in float32."""


@dataclass(frozen=True)
class Correlation:
    """Correlations with their two-sided p-values, all float64; NaN in both where `defined` is False."""

    value: Tensor
    p_value: Tensor
    defined: Tensor

    def __getitem__(self, index: Tensor | tuple[int | slice | EllipsisType, ...]) -> Correlation:
        return Correlation(self.value[index], self.p_value[index], self.defined[index])

    @staticmethod
    def without_p_value(value: Tensor, defined: Tensor) -> Correlation:
        """A correlation whose distribution is unknown: all p-values are NaN."""
        return Correlation(value.masked_fill(~defined, math.nan), torch.full_like(value, math.nan), defined)


def chunk_slices(count: int, item_size: int) -> Iterator[slice]:
    """Slices that cover `count` items of `item_size` elements each, as many at a time as memory allows."""
    step = max(1, MAX_CHUNK_ELEMENTS // max(item_size, 1))
    return (slice(start, start + step) for start in range(0, count, step))


def validate_mask(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The mask `[... unit]` of scores `[... method unit]`; raises ValueError on wrong shapes and on NaN."""
    shape = scores.shape[:-2] + scores.shape[-1:]
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool, device=scores.device)
    if mask.shape != shape:
        raise ValueError(f"mask {tuple(mask.shape)} does not fit scores {tuple(scores.shape)}: expected {tuple(shape)}")
    bad = (scores.isnan() & mask.unsqueeze(-2)).flatten(-2).any(-1).reshape(-1)
    if bool(bad.any()):
        first = int(bad.int().argmax())
        raise ValueError(f"NaN among the scores to correlate: {int(bad.sum())} of {len(bad)} rows, first row {first}")
    return mask


class DenseRanks(NamedTuple):
    """Ascending ranks from 0 in which ties share one rank.

    Args:
        ranks: rank of each unit `[... unit]`; units off the mask have the rank `unit`, behind all others.
        tie_sizes: how many real units share each rank `[... unit]`; 0 for unused ranks.
    """

    ranks: Tensor
    tie_sizes: Tensor

    @property
    def slots(self) -> Tensor:
        """The rank of each unit as an index; units off the mask get an unused rank."""
        return self.ranks.clamp(max=max(self.tie_sizes.shape[-1] - 1, 0))

    def midranks(self) -> Tensor:
        """Ranks from 1 in float64 `[... unit]`, ties sharing the mean of their ranks; meaningless off the mask."""
        middle = self.tie_sizes.cumsum(-1).double() - (self.tie_sizes - 1).double() / 2
        return middle.gather(-1, self.slots)


def dense_ranks(values: Tensor, mask: Tensor) -> DenseRanks:
    """Ranks in ascending order along the last axis, and how many real units share each.

    >>> dense_ranks(torch.tensor([3.0, 1.0, 3.0]), torch.tensor([True, True, True])).ranks
    tensor([1, 0, 1])
    """
    ordered, order = values.sort(-1)
    steps = torch.zeros_like(order)
    # Values off the mask may open ranks of their own: these have size 0, and gaps do no harm.
    steps[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ranks = torch.empty_like(order).scatter_(-1, order, steps.cumsum(-1))
    weight = mask.to(torch.int64).expand(ranks.shape)
    sizes = torch.zeros_like(ranks).scatter_add_(-1, ranks, weight)
    return DenseRanks(ranks.masked_fill_(~mask, values.shape[-1]), sizes)


def pearson(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Pearson's correlation of x and y `[... unit]` over the real units, `[...]`.

    >>> pearson(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 4.0, 8.0])).value
    tensor(1., dtype=torch.float64)
    """
    return pearson_matrix(stack_pair(x, y), mask)[..., 0, 1]


def spearman(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Spearman's rank correlation of x and y `[... unit]` over the real units, `[...]`.

    >>> result = spearman(torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([0.3, 0.2, 0.1, 0.4]))
    >>> round(result.value.item(), 4), round(result.p_value.item(), 4)
    (0.2, 0.8)
    """
    return spearman_matrix(stack_pair(x, y), mask)[..., 0, 1]


def stack_pair(x: Tensor, y: Tensor) -> Tensor:
    """x and y as two methods, `[... 2 unit]`."""
    if x.shape != y.shape:
        raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)} differ in shape")
    dtype = torch.promote_types(x.dtype, y.dtype)
    return torch.stack((x.to(dtype), y.to(dtype)), dim=-2)


def pearson_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Pearson's correlation of all pairs of methods.

    The p-value is that of a t-test with `n - 2` degrees of freedom; for two units it is 1.

    >>> pearson_matrix(torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 2.0]])).value.round(decimals=6)
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    if bool((scores.isinf() & real.unsqueeze(-2)).any()):
        raise ValueError("Pearson's correlation of an infinite score is undefined: use spearman or kendall_matrix")
    return _product_moment(scores.double(), real)


def spearman_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Spearman's rank correlation of all pairs of methods, ties by midranks; p-values as for Pearson's.

    >>> spearman_matrix(torch.tensor([[1.0, 2.0, 9.0], [8.0, 4.0, 5.0]])).value.round(decimals=6)
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    return _product_moment(dense_ranks(scores, real.unsqueeze(-2)).midranks(), real)


def _product_moment(scores: Tensor, real: Tensor) -> Correlation:
    inside = real.unsqueeze(-2)
    count = real.sum(-1)[..., None, None]
    filled = scores.masked_fill(~inside, 0.0)
    centered = (filled - filled.sum(-1, keepdim=True) / count.clamp(min=1)).masked_fill(~inside, 0.0)
    # Scaled by the largest deviation first: squares of tiny or huge scores would leave the range of float64.
    largest = centered.abs().amax(-1, keepdim=True) if scores.shape[-1] else centered.sum(-1, keepdim=True)
    unit = torch.nn.functional.normalize(centered / largest.masked_fill(largest == 0, 1.0), dim=-1)
    varied = (largest > 0) & ~_is_constant(scores, inside)
    defined = varied & varied.mT & (count >= 2)
    value = (unit @ unit.mT).clamp(-1.0, 1.0).masked_fill(~defined, math.nan)
    return Correlation(value, _t_test_p_value(value, count), defined)


def _is_constant(scores: Tensor, inside: Tensor) -> Tensor:
    # Compares the scores themselves: the rounded mean of equal numbers may differ from them.
    if not scores.shape[-1]:
        return torch.ones_like(scores.sum(-1, keepdim=True), dtype=torch.bool)
    highest = scores.masked_fill(~inside, -math.inf).amax(-1, keepdim=True)
    return highest <= scores.masked_fill(~inside, math.inf).amin(-1, keepdim=True)


def _t_test_p_value(value: Tensor, count: Tensor) -> Tensor:
    from scipy import special  # its import costs 10 MB, and reports do without it

    # P(|T| > t) for t = r sqrt(df / (1 - r²)) is the regularized incomplete beta function at 1 - r².
    freedom = (count - 2).clamp(min=1).double().cpu().numpy()
    rest = ((1 - value) * (1 + value)).detach().cpu().numpy()
    p_value = torch.as_tensor(special.betainc(freedom / 2, 0.5, rest), dtype=torch.float64, device=value.device)
    # Two points always lie on a line: p = 1, as in SciPy's pearsonr (its spearmanr gives NaN).
    return torch.where((count == 2) & ~value.isnan(), torch.ones_like(p_value), p_value)


def kendall_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Kendall's tau-b of all pairs of methods, with the values and p-values of `scipy.stats.kendalltau`.

    `(concordant - discordant) / sqrt(pairs untied in x * pairs untied in y)`. The ranking of a row is the vector of the
    signs of all its differences, so one matrix product of the sign vectors of M methods gives all M² correlations.
    Without ties the two-sided p-value is exact up to 33 units, and beyond for at most one discordant (or one
    concordant) pair; else it is normal, with the variance corrected for ties.

    >>> result = kendall_matrix(torch.tensor([[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]]))[0, 1]
    >>> round(result.value.item(), 4), round(result.p_value.item(), 4)
    (0.2, 0.8167)
    """
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    ranks, sizes = dense_ranks(scores, real.unsqueeze(-2))
    batch = math.prod(scores.shape[:-2])
    agreement = _concordance_matrix(ranks.reshape(batch, methods, width), real.reshape(batch, width))
    agreement = agreement.reshape(*scores.shape[:-1], methods)
    return _tau_b(agreement, sizes.double(), real.sum(-1).double()[..., None, None])


def _concordance_matrix(ranks: Tensor, real: Tensor) -> Tensor:
    """Concordant minus discordant pairs of real units, for each two methods `[batch method method]`."""
    lengths, order = real.sum(1).sort(descending=True)
    units = torch.argsort(real[order].to(torch.int8), dim=1, descending=True, stable=True)
    ranks = ranks[order].gather(2, units[:, None].expand(ranks.shape)).float()
    methods, width = ranks.shape[1:]
    total = torch.zeros(len(ranks), methods, methods, dtype=torch.float64, device=ranks.device)
    # One buffer for all chunks: fresh memory for each would cost as much as the arithmetic.
    buffer = torch.empty(max(MAX_CHUNK_ELEMENTS, methods * (width + 1)), device=ranks.device)
    start = 0
    while start < len(ranks):
        odd_width = int(lengths[start]) | 1
        count = max(1, MAX_CHUNK_ELEMENTS // (max(methods, 1) * odd_width * (odd_width // 2 + 1)))
        rows = slice(start, start + count)
        # A unit off the mask ranks behind every real one in all methods: such pairs count as concordant.
        surplus = (odd_width - lengths[rows].double()) * lengths[rows]
        total[order[rows]] = _sum_sign_products(ranks[rows], odd_width, buffer) - surplus[:, None, None]
        start += count
    return total


def _sum_sign_products(ranks: Tensor, width: int, buffer: Tensor) -> Tensor:
    """Sum over unordered pairs of units of the product of both methods' signs, `[batch method method]`."""
    batch, methods, units = ranks.shape
    ranks = torch.nn.functional.pad(ranks, (0, max(0, width - units)), value=units)[..., :width]
    # On a circle of an odd number of units, the distances 1 ... width // 2 visit each unordered pair once.
    circle = torch.cat((ranks, ranks[..., : width // 2]), dim=-1).unfold(-1, width, 1)
    step = max(1, MAX_CHUNK_ELEMENTS // (batch * max(methods, 1) * width))
    total = torch.zeros(batch, methods, methods, dtype=torch.float64, device=ranks.device)
    for start in range(1, width // 2 + 1, step):
        later = circle[:, :, start : start + step]
        signs = buffer[: later.numel()].view(later.shape)
        torch.sub(later, ranks.unsqueeze(2), out=signs).clamp_(-1, 1)
        total += signs.flatten(2) @ signs.flatten(2).mT
    return total


def _tau_b(agreement: Tensor, sizes: Tensor, units: Tensor) -> Correlation:
    pairs = units * (units - 1) / 2
    untied = agreement.diagonal(dim1=-2, dim2=-1)
    row, column = untied.unsqueeze(-1), untied.unsqueeze(-2)
    defined = (row > 0) & (column > 0)
    value = (agreement / row.sqrt() / column.sqrt()).clamp(-1.0, 1.0).masked_fill(~defined, math.nan)
    discordant = (pairs - agreement.abs()) / 2
    exact = (row == pairs) & (column == pairs) & ((units <= MAX_EXACT_UNITS) | (discordant <= 1))
    normal = torch.special.erfc(agreement.abs() / (2 * _tau_variance(untied, sizes, units)).sqrt())
    p_value = torch.where(exact, _exact_p_value(discordant, units), normal)
    return Correlation(value, p_value.masked_fill(~defined, math.nan), defined)


def _tau_variance(untied: Tensor, sizes: Tensor, units: Tensor) -> Tensor:
    """Variance of concordant minus discordant under independence, given the ties (Kendall 1970)."""
    ordered = units * (units - 1)
    tied = ordered / 2 - untied.unsqueeze(-1)
    pairs = sizes * (sizes - 1)
    triples = (pairs * (sizes - 2)).sum(-1)[..., None]
    lost = (pairs * (2 * sizes + 5)).sum(-1)[..., None]
    independent = (ordered * (2 * units + 5) - lost - lost.mT) / 18
    return independent + 2 * tied * tied.mT / ordered + triples * triples.mT / (9 * ordered * (units - 2))


def _exact_p_value(discordant: Tensor, units: Tensor) -> Tensor:
    """P(at most `discordant` of all pairs) on both sides, for rows without ties; meaningless elsewhere."""
    table = _exact_p_value_table().to(discordant.device)
    column = discordant.clamp(0, table.shape[1] - 1).long()
    short = table[units.clamp(max=MAX_EXACT_UNITS).long().expand(discordant.shape), column]
    # One ranking has no discordant pair, n - 1 rankings have one: n of n! have at most one.
    few = 2 * torch.exp(-torch.lgamma(units + 1 - discordant.clamp(0, 1)))
    return torch.where(units <= MAX_EXACT_UNITS, short, few)


@lru_cache(maxsize=1)
def _exact_p_value_table() -> Tensor:
    """Two-sided p-values `[units discordant]` up to 33 units; the rarer kind of pair is counted."""
    most = MAX_EXACT_UNITS * (MAX_EXACT_UNITS - 1) // 2
    table = torch.ones(MAX_EXACT_UNITS + 1, most // 2 + 1, dtype=torch.float64)
    share = torch.zeros(most + 1, dtype=torch.float64)
    share[0] = 1.0
    for units in range(2, MAX_EXACT_UNITS + 1):
        # The last unit can be inserted before 0 ... units - 1 of the others, each equally likely.
        below = share.cumsum(0)
        share = below / units
        share[units:] -= below[:-units] / units
        table[units] = (2 * share.cumsum(0)[: most // 2 + 1]).clamp(max=1.0)
    return table


def top_k_kendall_matrix(scores: Tensor, k: int | Tensor, mask: Tensor | None = None) -> Correlation:
    """Agreement on the k highest scores of all pairs of methods, in the bucket form of Neely et al. (2022).

    Equal scores share a bucket; the top of a method is all units in its k highest buckets. Over the unordered pairs
    {i, j} with i in the top of one method and j in the top of the other: `1 - 2 sum of penalties / pairs`, where a pair
    costs 1 in opposite order, 1/2 if exactly one method ties it, else 0. Without any such pair, because both methods
    have the same single unit on top, the value is 1. There is no p-value.

    Args:
        k: buckets, for all or for each pair of methods `[... method method]` (the upper triangle is read).

    >>> scores = torch.tensor([[1, 2, 3, 1, 1, 2, 2], [3, 2, 1, 2, 1, 2, 1]])
    >>> [round(top_k_kendall_matrix(scores, k).value[0, 1].item(), 4) for k in (3, 2, 1)]
    [-0.2381, -0.5385, -1.0]
    """
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    # Highest first and units off the mask last, so that no bucket among the real ones is empty.
    values = (-scores.double()).masked_fill(~real.unsqueeze(-2), math.inf)
    ranks, sizes = dense_ranks(values, real.unsqueeze(-2))
    varied = (sizes > 0).sum(-1) > 1
    counts = torch.as_tensor(k, device=scores.device).clamp(1, max(width, 1)).expand(*scores.shape[:-1], methods)
    one, other = torch.triu_indices(methods, methods, device=scores.device)
    flat = ranks.reshape(-1, methods, width)
    taus = _top_k_tau(flat[:, one].flatten(0, 1), flat[:, other].flatten(0, 1), counts[..., one, other].flatten())
    taus = taus.reshape(*scores.shape[:-2], len(one))
    value = taus.new_empty(*scores.shape[:-1], methods)
    value[..., one, other] = taus
    value[..., other, one] = taus
    return Correlation.without_p_value(value, varied.unsqueeze(-1) & varied.unsqueeze(-2))


def k_from_fraction(mask: Tensor, fraction: float) -> Tensor:
    """k as a share of the real units, `[... 1 1]`: `max(1, floor(fraction * units))`.

    Products that rounding puts just below a whole number count as that number.

    >>> k_from_fraction(torch.ones(7, dtype=torch.bool), 0.5).item()
    3
    """
    return (fraction * mask.sum(-1).double() + 1e-9).floor().clamp(min=1).long()[..., None, None]


def k_from_nonzero(scores: Tensor, mask: Tensor) -> Tensor:
    """k from the units with a nonzero score, `[... method method]`, for sparse attention as the first method.

    Attention and another method: the smaller of their counts of nonzero scores. Two others: half the sum of what each
    shares with attention, rounded down. At least 1.

    >>> scores = torch.tensor([[0.0, 0.4, 0.6, 0.0], [1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0]])
    >>> k_from_nonzero(scores, torch.ones(4, dtype=torch.bool))[1:, 1:].tolist()
    [[2, 1], [1, 1]]
    """
    counts = ((scores != 0) & mask.unsqueeze(-2)).sum(-1)
    shared = torch.minimum(counts, counts[..., :1])
    k = (shared.unsqueeze(-1) + shared.unsqueeze(-2)) // 2
    k[..., 0, :] = shared
    k[..., :, 0] = shared
    return k.clamp(min=1)


def _top_k_tau(first: Tensor, second: Tensor, k: Tensor) -> Tensor:
    """The value for two methods with ranks `[row unit]`, highest first, on the first `k` ranks `[row]`."""
    value = torch.ones(len(k), dtype=torch.float64, device=k.device)
    if not first.numel():
        return value
    widest = [int((ranks < k[:, None]).sum(1).max()) for ranks in (first, second)]
    for rows in chunk_slices(len(value), widest[0] * widest[1]):
        value[rows] = _top_k_tau_chunk(first[rows], second[rows], k[rows, None])
    return value


def _top_k_tau_chunk(first: Tensor, second: Tensor, k: Tensor) -> Tensor:
    left, right = _top_units(first, k), _top_units(second, k)
    above = _pairwise_signs(first.gather(1, left), first.gather(1, right))
    below = _pairwise_signs(second.gather(1, left), second.gather(1, right))
    agreement = torch.where((above == 0) & (below == 0), 1.0, above * below)
    one = ((first < k).gather(1, left), (second < k).gather(1, right))
    other = ((second < k).gather(1, left), (first < k).gather(1, right))
    visited = one[0][:, :, None] & one[1][:, None] & (left[:, :, None] != right[:, None])
    # A pair whose units are both in both tops is visited twice, once in each order.
    twice = other[0][:, :, None] & other[1][:, None]
    weight = visited.double() * (1.0 - 0.5 * twice)
    pairs = weight.sum((1, 2))
    return torch.where(pairs > 0, (weight * agreement).sum((1, 2)) / pairs.clamp(min=1.0), 1.0)


def _top_units(ranks: Tensor, k: Tensor) -> Tensor:
    """The units of each row on its first k ranks, padded with others to the widest row."""
    return ranks.argsort(1)[:, : int((ranks < k).sum(1).max())]


def _pairwise_signs(left: Tensor, right: Tensor) -> Tensor:
    return (left[:, :, None] - right[:, None]).sign().float()


def weighted_kendall_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Vigna's weighted tau (2015) with hyperbolic weights of all pairs of methods, as `scipy.stats.weightedtau`.

    `<x, y> / sqrt(<x, x> <y, y>)` with `<x, y> = sum over pairs of sign(x_i - x_j) sign(y_i - y_j) (w_i + w_j)`, where
    `w = 1 / (rank + 1)` and rank 0 is the highest score; the mean of ranking by x (ties by y) and by y. No p-value.

    >>> scores = torch.tensor([[12, 2, 1, 12, 2], [1, 4, 7, 1, 0]])
    >>> round(weighted_kendall_matrix(scores).value[0, 1].item(), 4)
    -0.5669
    """
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    ranks = dense_ranks(scores, real.unsqueeze(-2)).ranks.reshape(-1, methods, width)
    flat_mask = real.reshape(-1, width)
    value = torch.zeros(len(ranks), methods, methods, dtype=torch.float64, device=scores.device)
    for rows in chunk_slices(len(ranks), methods * max(width, methods) * width):
        value[rows] = _weighted_tau(ranks[rows], flat_mask[rows])
    value = value.reshape(*scores.shape[:-1], methods)
    return Correlation.without_p_value(value.clamp(-1.0, 1.0), ~value.isnan())


def _weighted_tau(ranks: Tensor, real: Tensor) -> Tensor:
    """The value for all pairs of methods, NaN where a method is constant, `[batch method method]`."""
    width = ranks.shape[-1]
    key = ranks[:, :, None] * (width + 1) + ranks[:, None]
    order = key.masked_fill(~real[:, None, None], -1).argsort(-1, descending=True)
    weights = torch.empty_like(key, dtype=torch.float64)
    hyperbolic = 1.0 / torch.arange(1, width + 1, dtype=torch.float64, device=ranks.device)
    weights.scatter_(-1, order, hyperbolic.expand(order.shape))
    agreement = _unit_concordance(ranks, real)
    self_agreement = agreement.diagonal(dim1=1, dim2=2)
    x_norm = torch.einsum("bxyu,bux->bxy", weights, self_agreement)
    y_norm = torch.einsum("bxyu,buy->bxy", weights, self_agreement)
    by_first = (weights * agreement).sum(-1) / (x_norm * y_norm).sqrt()
    return (by_first + by_first.mT) / 2


def _unit_concordance(ranks: Tensor, real: Tensor) -> Tensor:
    """For each unit, the sum over all others of the product of both methods' signs, `[batch method method unit]`."""
    batch, methods, width = ranks.shape
    total = torch.zeros(batch, methods, methods, width, dtype=torch.float64, device=ranks.device)
    numbers = ranks.float()
    for units in chunk_slices(width, batch * methods * width):
        signs = (numbers[:, :, units, None] - numbers[:, :, None]).sign()
        signs = (signs * (real[:, None, units, None] & real[:, None, None])).transpose(1, 2)
        total[..., units] = (signs @ signs.mT).permute(0, 2, 3, 1).double()
    return total
