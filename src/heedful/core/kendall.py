"""Kendall's tau-b of many rows, and of all pairs of methods, as products of sign matrices.

The order of a row is the vector of the signs of all its differences; two orders agree as far as these vectors
do. So one matrix product of the sign vectors of M methods gives all M² correlations of an example. Values and
p-values are those of `scipy.stats.kendalltau` with its default settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.core.correlations import Correlation, paired, real_units
from heedful.core.ranks import dense_ranks

EXACT_UNITS = 33
"""Longest row whose p-value without ties is exact, as in SciPy."""

_BLOCK = 2**20
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
    return kendall_matrix(paired(x, y), mask)[..., 0, 1]


def kendall_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Kendall's tau-b of all pairs of methods, `[... method method]`, as `kendall_tau` gives it for each.

    Args:
        scores: `[... method unit]`.
        mask: `[... unit]`.

    >>> kendall_matrix(torch.tensor([[0.1, 0.2, 0.7], [3.0, 2.0, 1.0]])).value
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """
    real = real_units(scores, mask)
    methods, width = scores.shape[-2:]
    places, sizes = dense_ranks(scores, real.unsqueeze(-2))
    batch = math.prod(scores.shape[:-2])
    agreement = _agreement(places.reshape(batch, methods, width), real.reshape(batch, width))
    agreement = agreement.reshape(*scores.shape[:-1], methods)
    return _correlation(agreement, sizes.double(), real.sum(-1).double()[..., None, None])


class _Block(NamedTuple):
    """Rows of the batch that are counted together, on their first `width` units (an odd number)."""

    rows: slice
    width: int


def _agreement(places: Tensor, real: Tensor) -> Tensor:
    """Concordant minus discordant pairs of real units, of each two methods `[batch method method]`."""
    lengths, order = real.sum(1).sort(descending=True)
    units = torch.argsort(real[order].to(torch.int8), dim=1, descending=True, stable=True)
    places = places[order].gather(2, units[:, None].expand(places.shape)).float()
    methods, width = places.shape[1:]
    total = torch.zeros(len(places), methods, methods, dtype=torch.float64, device=places.device)
    # One buffer for all blocks: fresh memory for each would cost as much as the arithmetic.
    buffer = torch.empty(max(_BLOCK, methods * (width + 1)), device=places.device)
    for block in _blocks(lengths.tolist(), methods):
        total[order[block.rows]] = _signs_product(places[block.rows], block.width, buffer)
        padding = block.width - lengths[block.rows].double()
        # A unit off the mask stands behind every real one for all methods: such pairs count as concordant.
        total[order[block.rows]] -= (padding * lengths[block.rows])[:, None, None]
    return total


def _blocks(lengths: list[int], methods: int) -> Iterator[_Block]:
    start = 0
    while start < len(lengths):
        width = lengths[start] | 1
        rows = max(1, _BLOCK // (max(methods, 1) * width * (width // 2 + 1)))
        yield _Block(slice(start, start + rows), width)
        start += rows


def _signs_product(places: Tensor, width: int, buffer: Tensor) -> Tensor:
    """Sum over unordered pairs of units of the product of both methods' signs, `[batch method method]`."""
    batch, methods, given = places.shape
    places = torch.nn.functional.pad(places, (0, max(0, width - given)), value=given)[..., :width]
    # On a circle of an odd number of units each unordered pair is met once at the distances 1 ... width // 2.
    circle = torch.cat((places, places[..., : width // 2]), dim=-1).unfold(-1, width, 1)
    step = max(1, _BLOCK // (batch * max(methods, 1) * width))
    total = torch.zeros(batch, methods, methods, dtype=torch.float64, device=places.device)
    for start in range(1, width // 2 + 1, step):
        later = circle[:, :, start : start + step]
        signs = buffer[: later.numel()].view(later.shape)
        torch.sub(later, places.unsqueeze(2), out=signs).clamp_(-1, 1)
        total += signs.flatten(2) @ signs.flatten(2).mT
    return total


def _correlation(agreement: Tensor, sizes: Tensor, units: Tensor) -> Correlation:
    pairs = units * (units - 1) / 2
    untied = agreement.diagonal(dim1=-2, dim2=-1)
    row, column = untied.unsqueeze(-1), untied.unsqueeze(-2)
    defined = (row > 0) & (column > 0)
    value = (agreement / row.sqrt() / column.sqrt()).clamp(-1.0, 1.0).masked_fill(~defined, math.nan)
    discordant = (pairs - agreement.abs()) / 2
    exact = (row == pairs) & (column == pairs) & ((units <= EXACT_UNITS) | (discordant <= 1))
    normal = torch.special.erfc(agreement.abs() / (2 * _variance(untied, sizes, units)).sqrt())
    p_value = torch.where(exact, _exact_p_value(discordant, units), normal)
    return Correlation(value, p_value.masked_fill(~defined, math.nan), defined)


def _variance(untied: Tensor, sizes: Tensor, units: Tensor) -> Tensor:
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
    table = _exact_table().to(discordant.device)
    column = discordant.clamp(0, table.shape[1] - 1).long()
    short = table[units.clamp(max=EXACT_UNITS).long().expand(discordant.shape), column]
    # One order has no discordant pair, n - 1 orders have one: n of n! at most one.
    few = 2 * torch.exp(-torch.lgamma(units + 1 - discordant.clamp(0, 1)))
    return torch.where(units <= EXACT_UNITS, short, few)


@lru_cache(maxsize=1)
def _exact_table() -> Tensor:
    """Two-sided p-values `[units discordant]` up to 33 units; the rarer kind of pair is counted."""
    most = EXACT_UNITS * (EXACT_UNITS - 1) // 2
    table = torch.ones(EXACT_UNITS + 1, most // 2 + 1, dtype=torch.float64)
    share = torch.zeros(most + 1, dtype=torch.float64)
    share[0] = 1.0
    for units in range(2, EXACT_UNITS + 1):
        # The last unit can be put before 0 ... units - 1 of the others, each equally likely.
        below = share.cumsum(0)
        share = below / units
        share[units:] -= below[:-units] / units
        table[units] = (2 * share.cumsum(0)[: most // 2 + 1]).clamp(max=1.0)
    return table
