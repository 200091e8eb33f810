"""Kendall's tau where the top counts more: of the k best only, or with every exchange weighed by its ranks.

Top-k is the bucket form of "A Song of (Dis)agreement" (Neely et al. 2022); weighted is Vigna's tau with hyperbolic
weights (2015), as `scipy.stats.weightedtau` has it. Neither has a p-value: it is NaN. A constant row, or fewer than
two units, is undefined here as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.core.correlations import Correlation, paired, real_units
from heedful.core.ranks import dense_ranks

_BLOCK = 2**20
"""Pairs of units held at a time."""


def top_k_kendall(x: Tensor, y: Tensor, k: int | Tensor, mask: Tensor | None = None) -> Correlation:
    """Agreement of the k best of x and y `[... unit]`, `[...]`, as `top_k_kendall_matrix` gives it.

    >>> x, y = torch.tensor([1, 2, 3, 1, 1, 2, 2]), torch.tensor([3, 2, 1, 2, 1, 2, 1])
    >>> [round(top_k_kendall(x, y, k).value.item(), 4) for k in (3, 2, 1)]
    [-0.2381, -0.5385, -1.0]
    """
    sizes = k if isinstance(k, int) else k[..., None, None]
    return top_k_kendall_matrix(paired(x, y), sizes, mask)[..., 0, 1]


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
    real = real_units(scores, mask)
    methods, width = scores.shape[-2:]
    # The best come first, units off the mask last, so that no bucket among the real ones is empty.
    values = (-scores.double()).masked_fill(~real.unsqueeze(-2), math.inf)
    places, sizes = dense_ranks(values, real.unsqueeze(-2))
    varied = (sizes > 0).sum(-1) > 1
    counts = torch.as_tensor(k, device=scores.device).clamp(1, max(width, 1)).expand(*scores.shape[:-1], methods)
    one, other = torch.triu_indices(methods, methods, device=scores.device)
    flat = places.reshape(-1, methods, width)
    tops = _Tops(flat[:, one].flatten(0, 1), flat[:, other].flatten(0, 1), counts[..., one, other].flatten())
    found = _top_values(tops).reshape(*scores.shape[:-2], len(one))
    value = found.new_empty(*scores.shape[:-1], methods)
    value[..., one, other] = found
    value[..., other, one] = found
    return _without_p_value(value, varied.unsqueeze(-1) & varied.unsqueeze(-2))


def units_in_share(mask: Tensor, share: float) -> Tensor:
    """k for a share of the real units, `[... 1 1]`: `max(1, floor(share * units))`.

    >>> units_in_share(torch.ones(7, dtype=torch.bool), 0.5).item()
    3
    """
    return (share * mask.sum(-1).double()).floor().clamp(min=1).long()[..., None, None]


def units_not_zero(scores: Tensor, mask: Tensor) -> Tensor:
    """k from the units that have a score at all, `[... method method]`, for sparse attention, the first method.

    Attention and another method: the smaller of their counts of scores that are not zero. Two others: half the sum of
    what each has with attention, rounded down. At least 1.

    >>> scores = torch.tensor([[0.0, 0.4, 0.6, 0.0], [1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0]])
    >>> units_not_zero(scores, torch.ones(4, dtype=torch.bool))[1:, 1:].tolist()
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
    return weighted_kendall_matrix(paired(x, y), mask)[..., 0, 1]


def weighted_kendall_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Vigna's weighted tau of all pairs of methods, shapes as in `top_k_kendall_matrix`.

    `<x, y> / sqrt(<x, x> <y, y>)` with `<x, y> = sum over pairs of sign(x_i - x_j) sign(y_i - y_j) (w_i + w_j)`, where
    `w = 1 / (rank + 1)` and rank 0 is the highest score; once ranked by x (ties by y), once by y, and the mean of both.

    >>> weighted_kendall_matrix(torch.tensor([[0.1, 0.2, 0.7], [3.0, 2.0, 1.0]])).value
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """
    real = real_units(scores, mask)
    methods, width = scores.shape[-2:]
    places = dense_ranks(scores, real.unsqueeze(-2)).places.reshape(-1, methods, width)
    mask = real.reshape(-1, width)
    value = torch.zeros(len(places), methods, methods, dtype=torch.float64, device=scores.device)
    for rows in _slices(len(places), methods * max(width, methods) * width):
        value[rows] = _weighted_values(places[rows], mask[rows])
    value = value.reshape(*scores.shape[:-1], methods)
    return _without_p_value(value.clamp(-1.0, 1.0), ~value.isnan())


class _Tops(NamedTuple):
    """Two methods on each row: places of the units `[row unit]`, best first, and how many places count `[row]`."""

    first: Tensor
    second: Tensor
    k: Tensor

    def rows(self, rows: slice) -> _Tops:
        return _Tops(self.first[rows], self.second[rows], self.k[rows])


def _top_values(tops: _Tops) -> Tensor:
    value = torch.ones(len(tops.k), dtype=torch.float64, device=tops.k.device)
    if not tops.first.numel():
        return value
    widest = [int((places < tops.k[:, None]).sum(1).max()) for places in (tops.first, tops.second)]
    for rows in _slices(len(value), widest[0] * widest[1]):
        value[rows] = _top_block(tops.rows(rows))
    return value


def _top_block(tops: _Tops) -> Tensor:
    first, second, k = tops.first, tops.second, tops.k[:, None]
    left, right = _members(first, k), _members(second, k)
    above = _signs(first.gather(1, left), first.gather(1, right))
    below = _signs(second.gather(1, left), second.gather(1, right))
    agreement = torch.where((above == 0) & (below == 0), 1.0, above * below)
    one = ((first < k).gather(1, left), (second < k).gather(1, right))
    other = ((second < k).gather(1, left), (first < k).gather(1, right))
    visited = one[0][:, :, None] & one[1][:, None] & (left[:, :, None] != right[:, None])
    # A pair whose units both stand in both tops is met twice, once in each order.
    twice = other[0][:, :, None] & other[1][:, None]
    weight = visited.double() * (1.0 - 0.5 * twice)
    pairs = weight.sum((1, 2))
    return torch.where(pairs > 0, (weight * agreement).sum((1, 2)) / pairs.clamp(min=1.0), 1.0)


def _members(places: Tensor, k: Tensor) -> Tensor:
    """The units of each row on its first k places, filled up with others to the widest row."""
    return places.argsort(1)[:, : int((places < k).sum(1).max())]


def _signs(left: Tensor, right: Tensor) -> Tensor:
    return (left[:, :, None] - right[:, None]).sign().float()


def _weighted_values(places: Tensor, real: Tensor) -> Tensor:
    """The value for all pairs of methods, NaN where a method is constant, `[batch method method]`."""
    width = places.shape[-1]
    key = places[:, :, None] * (width + 1) + places[:, None]
    order = key.masked_fill(~real[:, None, None], -1).argsort(-1, descending=True)
    weights = torch.empty_like(key, dtype=torch.float64)
    hyperbolic = 1.0 / torch.arange(1, width + 1, dtype=torch.float64, device=places.device)
    weights.scatter_(-1, order, hyperbolic.expand(order.shape))
    agreement = _agreement_of_units(places, real)
    own = agreement.diagonal(dim1=1, dim2=2)
    x_norm = torch.einsum("bxyu,bux->bxy", weights, own)
    y_norm = torch.einsum("bxyu,buy->bxy", weights, own)
    by_first = (weights * agreement).sum(-1) / (x_norm * y_norm).sqrt()
    return (by_first + by_first.mT) / 2


def _agreement_of_units(places: Tensor, real: Tensor) -> Tensor:
    """For each unit, the sum over all others of the product of both methods' signs, `[batch method method unit]`."""
    batch, methods, width = places.shape
    found = torch.zeros(batch, methods, methods, width, dtype=torch.float64, device=places.device)
    numbers = places.float()
    for units in _slices(width, batch * methods * width):
        signs = (numbers[:, :, units, None] - numbers[:, :, None]).sign()
        signs = (signs * (real[:, None, units, None] & real[:, None, None])).transpose(1, 2)
        found[..., units] = (signs @ signs.mT).permute(0, 2, 3, 1).double()
    return found


def _slices(count: int, each: int) -> Iterator[slice]:
    """All of `count` things in turn, as many at a time as fit, `each` being the size of one."""
    step = max(1, _BLOCK // max(each, 1))
    return (slice(start, start + step) for start in range(0, count, step))


def _without_p_value(value: Tensor, defined: Tensor) -> Correlation:
    return Correlation(value.masked_fill(~defined, math.nan), torch.full_like(value, math.nan), defined)
