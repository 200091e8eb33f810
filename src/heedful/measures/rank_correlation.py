"""Ranks of many rows at once, ties included: what Kendall, Spearman and the ROC area have in common.

Correlations of many rows at once, each with a two-sided p-value, and the honest average of them.

A correlation without a meaning (a constant row, fewer than two units) is *undefined*: its value is NaN,
`defined` is False, and `mean_defined` counts it instead of averaging it.
Everything is computed in float64, whatever comes in.

Kendall's tau-b of many rows, and of all pairs of methods, as products of sign matrices.

The order of a row is the vector of the signs of all its differences; two orders agree as far as these vectors
do. So one matrix product of the sign vectors of M methods gives all M² correlations of an example. Values and
p-values are those of `scipy.stats.kendalltau` with its default settings.

Kendall's tau where the top counts more: of the k best only, or with every exchange weighed by its ranks.

Top-k is the bucket form of "A Song of (Dis)agreement" (Neely et al. 2022); weighted is Vigna's tau with hyperbolic
weights (2015), as `scipy.stats.weightedtau` has it. Neither has a p-value: it is NaN. A constant row, or fewer than
two units, is undefined here as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType
from typing import NamedTuple

import torch
from scipy import special
from torch import Tensor


class DenseRanks(NamedTuple):
    """Ties of a row share one *place*, places are counted from 0.

    Args:
        places: place of each unit `[... unit]`; units off the mask stand behind all others, on place `unit`.
        sizes: how many real units share each place `[... unit]`; the places of no unit have 0.
    """

    ranks: Tensor
    tie_sizes: Tensor


def dense_ranks(values: Tensor, mask: Tensor) -> DenseRanks:
    """Places in ascending order along the last axis, and how many real units share each.

    >>> dense_ranks(torch.tensor([3.0, 1.0, 3.0]), torch.tensor([True, True, True])).ranks
    tensor([1, 0, 1])
    """
    ordered, order = values.sort(-1)
    steps = torch.zeros_like(order)
    # Values off the mask may open places of their own: these have size 0, and gaps disturb nobody.
    steps[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    places = torch.empty_like(order).scatter_(-1, order, steps.cumsum(-1))
    weight = mask.to(torch.int64).expand(places.shape)
    sizes = torch.zeros_like(places).scatter_add_(-1, places, weight)
    return DenseRanks(places.masked_fill_(~mask, values.shape[-1]), sizes)


def midranks(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Ranks from 1 in float64, ties sharing the mean of their ranks; 0 off the mask.

    >>> midranks(torch.tensor([20, 10, 30, 20]))
    tensor([2.5000, 1.0000, 4.0000, 2.5000], dtype=torch.float64)
    """
    real = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    places, sizes = dense_ranks(values, real)
    middle = sizes.cumsum(-1).double() - (sizes - 1).double() / 2
    last = max(values.shape[-1] - 1, 0)
    return middle.gather(-1, places.clamp(max=last)).masked_fill(~real, 0.0)


@dataclass(frozen=True)
class Correlation:
    """Correlations with their two-sided p-values, all float64; NaN in both where `defined` is False."""

    value: Tensor
    p_value: Tensor
    defined: Tensor

    def __getitem__(self, index: Tensor | tuple[int | slice | EllipsisType, ...]) -> Correlation:
        return Correlation(self.value[index], self.p_value[index], self.defined[index])


@dataclass(frozen=True)
class MeanStd:
    """Mean and population standard deviation of the `n` defined numbers, and how many were undefined.

    Mean and deviation are NaN where nothing is defined.
    """

    mean: float
    std: float
    n: int
    num_undefined: int


def nan_mean_std(values: Tensor) -> MeanStd:
    """Mean and spread of all numbers that are not NaN, with the count of those that are.

    >>> nan_mean_std(torch.tensor([1.0, 3.0, math.nan]))
    MeanStd(mean=2.0, std=1.0, n=2, num_undefined=1)
    """
    numbers = values.flatten().double()
    defined = numbers[~numbers.isnan()]
    undefined = numbers.numel() - defined.numel()
    if not defined.numel():
        return MeanStd(math.nan, math.nan, 0, undefined)
    return MeanStd(defined.mean().item(), defined.std(correction=0).item(), defined.numel(), undefined)


def pearson(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Pearson's correlation of x and y `[... unit]` over the real units, `[...]`.

    The p-value is that of a t-test with `n - 2` degrees of freedom; for two units it is 1.

    >>> pearson(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 4.0, 8.0])).value
    tensor(1., dtype=torch.float64)
    """
    return pearson_matrix(stack_pair(x, y), mask)[..., 0, 1]


def spearman(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Spearman's rank correlation of x and y `[... unit]` over the real units, `[...]`; ties by midranks.

    The p-value is the one of `pearson` on the ranks.

    >>> result = spearman(torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([0.3, 0.2, 0.1, 0.4]))
    >>> round(result.value.item(), 4), round(result.p_value.item(), 4)
    (0.2, 0.8)
    """
    return spearman_matrix(stack_pair(x, y), mask)[..., 0, 1]


def pearson_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Pearson's correlation of all pairs of methods, `[... method method]`.

    Args:
        scores: `[... method unit]`.
        mask: `[... unit]`.

    >>> pearson_matrix(torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 2.0]])).value.round(decimals=6)
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    if bool((scores.isinf() & real.unsqueeze(-2)).any()):
        raise ValueError("an infinite score has no Pearson correlation: use spearman or kendall_tau")
    return _product_moment(scores.double(), real)


def spearman_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Spearman's rank correlation of all pairs of methods, shapes as in `pearson_matrix`.

    >>> spearman_matrix(torch.tensor([[1.0, 2.0, 9.0], [8.0, 4.0, 5.0]])).value.round(decimals=6)
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    return _product_moment(midranks(scores, real.unsqueeze(-2)), real)


def stack_pair(x: Tensor, y: Tensor) -> Tensor:
    """x and y as two methods, `[... 2 unit]`.

    >>> stack_pair(torch.tensor([1, 2]), torch.tensor([0.5, 0.0])).shape
    torch.Size([2, 2])
    """
    if x.shape != y.shape:
        raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)} differ in shape")
    dtype = torch.promote_types(x.dtype, y.dtype)
    return torch.stack((x.to(dtype), y.to(dtype)), dim=-2)


def validate_mask(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The mask `[... unit]` of scores `[... method unit]`; raises ValueError on wrong shapes and on NaN.

    >>> validate_mask(torch.tensor([[1.0, 2.0], [3.0, math.nan]]), torch.tensor([True, False]))
    tensor([ True, False])
    """
    shape = scores.shape[:-2] + scores.shape[-1:]
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool, device=scores.device)
    if mask.shape != shape:
        raise ValueError(
            f"a mask {tuple(mask.shape)} does not fit scores {tuple(scores.shape)}: expected {tuple(shape)}"
        )
    bad = (scores.isnan() & mask.unsqueeze(-2)).flatten(-2).any(-1).reshape(-1)
    if bool(bad.any()):
        first = int(bad.int().argmax())
        raise ValueError(f"NaN among the scores to correlate: {int(bad.sum())} of {len(bad)} rows, first row {first}")
    return mask


def _product_moment(scores: Tensor, real: Tensor) -> Correlation:
    inside = real.unsqueeze(-2)
    count = real.sum(-1)[..., None, None]
    filled = scores.masked_fill(~inside, 0.0)
    centred = (filled - filled.sum(-1, keepdim=True) / count.clamp(min=1)).masked_fill(~inside, 0.0)
    # Scaled by the largest deviation first: squares of tiny or huge scores would leave the range of float64.
    largest = centred.abs().amax(-1, keepdim=True) if scores.shape[-1] else centred.sum(-1, keepdim=True)
    unit = torch.nn.functional.normalize(centred / largest.masked_fill(largest == 0, 1.0), dim=-1)
    varied = (largest > 0) & ~_is_constant(scores, inside)
    defined = varied & varied.mT & (count >= 2)
    value = (unit @ unit.mT).clamp(-1.0, 1.0).masked_fill(~defined, math.nan)
    return Correlation(value, _two_sided_p_value(value, count), defined)


def _is_constant(scores: Tensor, inside: Tensor) -> Tensor:
    # Asked of the scores themselves: the rounded mean of equal numbers may differ from them.
    if not scores.shape[-1]:
        return torch.ones_like(scores.sum(-1, keepdim=True), dtype=torch.bool)
    highest = scores.masked_fill(~inside, -math.inf).amax(-1, keepdim=True)
    return highest <= scores.masked_fill(~inside, math.inf).amin(-1, keepdim=True)


def _two_sided_p_value(value: Tensor, count: Tensor) -> Tensor:
    # P(|T| > t) for t = r sqrt(df / (1 - r²)) is the regularised incomplete beta function at 1 - r².
    freedom = (count - 2).clamp(min=1).double().cpu().numpy()
    rest = ((1 - value) * (1 + value)).detach().cpu().numpy()
    tail = special.betainc(freedom / 2, 0.5, rest)
    p_value = torch.as_tensor(tail, dtype=torch.float64, device=value.device)
    # Two points always lie on a line: nothing is learnt. SciPy's pearsonr says 1 too, its spearmanr NaN.
    return torch.where((count == 2) & ~value.isnan(), torch.ones_like(p_value), p_value)


MAX_EXACT_UNITS = 33
"""Longest row whose p-value without ties is exact, as in SciPy."""

_MAX_SIGNS = 2**20
"""Signs held at a time (4 MB): beyond it nothing is gained, and every sum of signs is exact in float32."""


def kendall_tau(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Kendall's tau-b of x and y `[... unit]` over the real units, `[...]`.

    `(concordant - discordant) / sqrt(pairs untied in x * pairs untied in y)`. Without ties the two-sided
    p-value is exact up to 33 units, and beyond for at most one discordant (or one concordant) pair; else it
    is normal, with the variance corrected for ties.

    >>> result = kendall_tau(torch.tensor([1, 2, 3, 4, 5]), torch.tensor([3, 4, 1, 2, 5]))
    >>> round(result.value.item(), 4), round(result.p_value.item(), 4)
    (0.2, 0.8167)
    """
    return kendall_matrix(stack_pair(x, y), mask)[..., 0, 1]


def kendall_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Kendall's tau-b of all pairs of methods, `[... method method]`, as `kendall_tau` gives it for each.

    Args:
        scores: `[... method unit]`.
        mask: `[... unit]`.

    >>> kendall_matrix(torch.tensor([[0.1, 0.2, 0.7], [3.0, 2.0, 1.0]])).value
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    places, sizes = dense_ranks(scores, real.unsqueeze(-2))
    batch = math.prod(scores.shape[:-2])
    agreement = _concordance_matrix(places.reshape(batch, methods, width), real.reshape(batch, width))
    agreement = agreement.reshape(*scores.shape[:-1], methods)
    return _tau_b(agreement, sizes.double(), real.sum(-1).double()[..., None, None])


class _RowBlock(NamedTuple):
    """Rows of the batch that are counted together, on their first `width` units (an odd number)."""

    rows: slice
    width: int


def _concordance_matrix(places: Tensor, real: Tensor) -> Tensor:
    """Concordant minus discordant pairs of real units, of each two methods `[batch method method]`."""
    lengths, order = real.sum(1).sort(descending=True)
    units = torch.argsort(real[order].to(torch.int8), dim=1, descending=True, stable=True)
    places = places[order].gather(2, units[:, None].expand(places.shape)).float()
    methods, width = places.shape[1:]
    total = torch.zeros(len(places), methods, methods, dtype=torch.float64, device=places.device)
    # One buffer for all blocks: fresh memory for each would cost as much as the arithmetic.
    buffer = torch.empty(max(_MAX_SIGNS, methods * (width + 1)), device=places.device)
    for block in _row_blocks(lengths.tolist(), methods):
        total[order[block.rows]] = _sum_sign_products(places[block.rows], block.width, buffer)
        padding = block.width - lengths[block.rows].double()
        # A unit off the mask stands behind every real one for all methods: such pairs count as concordant.
        total[order[block.rows]] -= (padding * lengths[block.rows])[:, None, None]
    return total


def _row_blocks(lengths: list[int], methods: int) -> Iterator[_RowBlock]:
    start = 0
    while start < len(lengths):
        width = lengths[start] | 1
        rows = max(1, _MAX_SIGNS // (max(methods, 1) * width * (width // 2 + 1)))
        yield _RowBlock(slice(start, start + rows), width)
        start += rows


def _sum_sign_products(places: Tensor, width: int, buffer: Tensor) -> Tensor:
    """Sum over unordered pairs of units of the product of both methods' signs, `[batch method method]`."""
    batch, methods, given = places.shape
    places = torch.nn.functional.pad(places, (0, max(0, width - given)), value=given)[..., :width]
    # On a circle of an odd number of units each unordered pair is met once at the distances 1 ... width // 2.
    circle = torch.cat((places, places[..., : width // 2]), dim=-1).unfold(-1, width, 1)
    step = max(1, _MAX_SIGNS // (batch * max(methods, 1) * width))
    total = torch.zeros(batch, methods, methods, dtype=torch.float64, device=places.device)
    for start in range(1, width // 2 + 1, step):
        later = circle[:, :, start : start + step]
        signs = buffer[: later.numel()].view(later.shape)
        torch.sub(later, places.unsqueeze(2), out=signs).clamp_(-1, 1)
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
    """Variance of concordant minus discordant under independence, given the ties (Kendall, 1970)."""
    ordered = units * (units - 1)
    tied = ordered / 2 - untied.unsqueeze(-1)
    pairs = sizes * (sizes - 1)
    triples = (pairs * (sizes - 2)).sum(-1)[..., None]
    lost = (pairs * (2 * sizes + 5)).sum(-1)[..., None]
    independent = (ordered * (2 * units + 5) - lost - lost.mT) / 18
    return independent + 2 * tied * tied.mT / ordered + triples * triples.mT / (9 * ordered * (units - 2))


def _exact_p_value(discordant: Tensor, units: Tensor) -> Tensor:
    """P(at most `discordant` of all pairs) on both sides, for rows without ties; elsewhere meaningless."""
    table = _exact_p_value_table().to(discordant.device)
    column = discordant.clamp(0, table.shape[1] - 1).long()
    short = table[units.clamp(max=MAX_EXACT_UNITS).long().expand(discordant.shape), column]
    # One order has no discordant pair, n - 1 orders have one: n of n! at most one.
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
        # The last unit can be put before 0 ... units - 1 of the others, each equally likely.
        below = share.cumsum(0)
        share = below / units
        share[units:] -= below[:-units] / units
        table[units] = (2 * share.cumsum(0)[: most // 2 + 1]).clamp(max=1.0)
    return table


_MAX_PAIRS = 2**20
"""Pairs of units held at a time."""


def top_k_kendall(x: Tensor, y: Tensor, k: int | Tensor, mask: Tensor | None = None) -> Correlation:
    """Agreement of the k best of x and y `[... unit]`, `[...]`, as `top_k_kendall_matrix` gives it.

    >>> x, y = torch.tensor([1, 2, 3, 1, 1, 2, 2]), torch.tensor([3, 2, 1, 2, 1, 2, 1])
    >>> [round(top_k_kendall(x, y, k).value.item(), 4) for k in (3, 2, 1)]
    [-0.2381, -0.5385, -1.0]
    """
    sizes = k if isinstance(k, int) else k[..., None, None]
    return top_k_kendall_matrix(stack_pair(x, y), sizes, mask)[..., 0, 1]


def top_k_kendall_matrix(scores: Tensor, k: int | Tensor, mask: Tensor | None = None) -> Correlation:
    """Agreement of the k best of all pairs of methods, `[... method method]`.

    Equal scores share a bucket; the top of a method are all units in its k highest buckets. Over the unordered pairs
    {i, j} with i in the top of the one and j in the top of the other method: `1 - 2 sum of penalties / pairs`, where a
    pair costs 1 in opposite order, 1/2 if tied by exactly one of them, else 0. Without any such pair, because both
    have the same single unit on top, it is 1.

    Args:
        scores: `[... method unit]`.
        k: buckets, for all or for each pair of methods `[... method method]` (the upper triangle is read).
        mask: `[... unit]`.

    >>> top_k_kendall_matrix(torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.1, 0.7]]), 2).value
    tensor([[1.0000, 0.3333],
            [0.3333, 1.0000]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    # The best come first, units off the mask last, so that no bucket among the real ones is empty.
    values = (-scores.double()).masked_fill(~real.unsqueeze(-2), math.inf)
    places, sizes = dense_ranks(values, real.unsqueeze(-2))
    varied = (sizes > 0).sum(-1) > 1
    counts = torch.as_tensor(k, device=scores.device).clamp(1, max(width, 1)).expand(*scores.shape[:-1], methods)
    one, other = torch.triu_indices(methods, methods, device=scores.device)
    flat = places.reshape(-1, methods, width)
    tops = _TopPairs(flat[:, one].flatten(0, 1), flat[:, other].flatten(0, 1), counts[..., one, other].flatten())
    found = _top_k_tau(tops).reshape(*scores.shape[:-2], len(one))
    value = found.new_empty(*scores.shape[:-1], methods)
    value[..., one, other] = found
    value[..., other, one] = found
    return _without_p_value(value, varied.unsqueeze(-1) & varied.unsqueeze(-2))


def k_from_fraction(mask: Tensor, fraction: float) -> Tensor:
    """k for a share of the real units, `[... 1 1]`: `max(1, floor(share * units))`.

    >>> k_from_fraction(torch.ones(7, dtype=torch.bool), 0.5).item()
    3
    """
    return (fraction * mask.sum(-1).double()).floor().clamp(min=1).long()[..., None, None]


def k_from_nonzero(scores: Tensor, mask: Tensor) -> Tensor:
    """k from the units that have a score at all, `[... method method]`, for sparse attention, the first method.

    Attention and another method: the smaller of their counts of scores that are not zero. Two others: half the sum of
    what each has with attention, rounded down. At least 1.

    >>> scores = torch.tensor([[0.0, 0.4, 0.6, 0.0], [1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0]])
    >>> k_from_nonzero(scores, torch.ones(4, dtype=torch.bool))[1:, 1:].tolist()
    [[2, 1], [1, 1]]
    """
    counts = ((scores != 0) & mask.unsqueeze(-2)).sum(-1)
    beside = torch.minimum(counts, counts[..., :1])
    k = (beside.unsqueeze(-1) + beside.unsqueeze(-2)) // 2
    k[..., 0, :] = beside
    k[..., :, 0] = beside
    return k.clamp(min=1)


def weighted_kendall(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Vigna's weighted tau of x and y `[... unit]`, `[...]`, as `weighted_kendall_matrix` gives it.

    >>> round(weighted_kendall(torch.tensor([12, 2, 1, 12, 2]), torch.tensor([1, 4, 7, 1, 0])).value.item(), 4)
    -0.5669
    """
    return weighted_kendall_matrix(stack_pair(x, y), mask)[..., 0, 1]


def weighted_kendall_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Vigna's weighted tau of all pairs of methods, shapes as in `top_k_kendall_matrix`.

    `<x, y> / sqrt(<x, x> <y, y>)` with `<x, y> = sum over pairs of sign(x_i - x_j) sign(y_i - y_j) (w_i + w_j)`, where
    `w = 1 / (rank + 1)` and rank 0 is the highest score; once ranked by x (ties by y), once by y, and the mean of both.

    >>> weighted_kendall_matrix(torch.tensor([[0.1, 0.2, 0.7], [3.0, 2.0, 1.0]])).value
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    places = dense_ranks(scores, real.unsqueeze(-2)).ranks.reshape(-1, methods, width)
    mask = real.reshape(-1, width)
    value = torch.zeros(len(places), methods, methods, dtype=torch.float64, device=scores.device)
    for rows in _chunk_slices(len(places), methods * max(width, methods) * width):
        value[rows] = _weighted_tau(places[rows], mask[rows])
    value = value.reshape(*scores.shape[:-1], methods)
    return _without_p_value(value.clamp(-1.0, 1.0), ~value.isnan())


class _TopPairs(NamedTuple):
    """Two methods on each row: places of the units `[row unit]`, best first, and how many places count `[row]`."""

    first: Tensor
    second: Tensor
    k: Tensor

    def rows(self, rows: slice) -> _TopPairs:
        return _TopPairs(self.first[rows], self.second[rows], self.k[rows])


def _top_k_tau(tops: _TopPairs) -> Tensor:
    value = torch.ones(len(tops.k), dtype=torch.float64, device=tops.k.device)
    if not tops.first.numel():
        return value
    widest = [int((places < tops.k[:, None]).sum(1).max()) for places in (tops.first, tops.second)]
    for rows in _chunk_slices(len(value), widest[0] * widest[1]):
        value[rows] = _top_k_tau_block(tops.rows(rows))
    return value


def _top_k_tau_block(tops: _TopPairs) -> Tensor:
    first, second, k = tops.first, tops.second, tops.k[:, None]
    left, right = _top_units(first, k), _top_units(second, k)
    above = _pairwise_signs(first.gather(1, left), first.gather(1, right))
    below = _pairwise_signs(second.gather(1, left), second.gather(1, right))
    agreement = torch.where((above == 0) & (below == 0), 1.0, above * below)
    one = ((first < k).gather(1, left), (second < k).gather(1, right))
    other = ((second < k).gather(1, left), (first < k).gather(1, right))
    visited = one[0][:, :, None] & one[1][:, None] & (left[:, :, None] != right[:, None])
    # A pair whose units both stand in both tops is met twice, once in each order.
    twice = other[0][:, :, None] & other[1][:, None]
    weight = visited.double() * (1.0 - 0.5 * twice)
    pairs = weight.sum((1, 2))
    return torch.where(pairs > 0, (weight * agreement).sum((1, 2)) / pairs.clamp(min=1.0), 1.0)


def _top_units(places: Tensor, k: Tensor) -> Tensor:
    """The units of each row on its first k places, filled up with others to the widest row."""
    return places.argsort(1)[:, : int((places < k).sum(1).max())]


def _pairwise_signs(left: Tensor, right: Tensor) -> Tensor:
    return (left[:, :, None] - right[:, None]).sign().float()


def _weighted_tau(places: Tensor, real: Tensor) -> Tensor:
    """The value for all pairs of methods, NaN where a method is constant, `[batch method method]`."""
    width = places.shape[-1]
    key = places[:, :, None] * (width + 1) + places[:, None]
    order = key.masked_fill(~real[:, None, None], -1).argsort(-1, descending=True)
    weights = torch.empty_like(key, dtype=torch.float64)
    hyperbolic = 1.0 / torch.arange(1, width + 1, dtype=torch.float64, device=places.device)
    weights.scatter_(-1, order, hyperbolic.expand(order.shape))
    agreement = _unit_concordance(places, real)
    own = agreement.diagonal(dim1=1, dim2=2)
    x_norm = torch.einsum("bxyu,bux->bxy", weights, own)
    y_norm = torch.einsum("bxyu,buy->bxy", weights, own)
    by_first = (weights * agreement).sum(-1) / (x_norm * y_norm).sqrt()
    return (by_first + by_first.mT) / 2


def _unit_concordance(places: Tensor, real: Tensor) -> Tensor:
    """For each unit, the sum over all others of the product of both methods' signs, `[batch method method unit]`."""
    batch, methods, width = places.shape
    found = torch.zeros(batch, methods, methods, width, dtype=torch.float64, device=places.device)
    numbers = places.float()
    for units in _chunk_slices(width, batch * methods * width):
        signs = (numbers[:, :, units, None] - numbers[:, :, None]).sign()
        signs = (signs * (real[:, None, units, None] & real[:, None, None])).transpose(1, 2)
        found[..., units] = (signs @ signs.mT).permute(0, 2, 3, 1).double()
    return found


def _chunk_slices(count: int, item_size: int) -> Iterator[slice]:
    """All of `count` things in turn, as many at a time as fit, `each` being the size of one."""
    step = max(1, _MAX_PAIRS // max(item_size, 1))
    return (slice(start, start + step) for start in range(0, count, step))


def _without_p_value(value: Tensor, defined: Tensor) -> Correlation:
    return Correlation(value.masked_fill(~defined, math.nan), torch.full_like(value, math.nan), defined)
