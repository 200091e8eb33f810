"""Correlations of many rows at once, each with a two-sided p-value, and the honest average of them.

A correlation without a meaning (a constant row, fewer than two units) is *undefined*: its value is NaN,
`defined` is False, and `mean_defined` counts it instead of averaging it.
Everything is computed in float64, whatever comes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType

import torch
from scipy import special
from torch import Tensor

from heedful.core.ranks import midranks


@dataclass(frozen=True)
class Correlation:
    """Correlations with their two-sided p-values, all float64; NaN in both where `defined` is False."""

    value: Tensor
    p_value: Tensor
    defined: Tensor

    def __getitem__(self, index: Tensor | tuple[int | slice | EllipsisType, ...]) -> Correlation:
        return Correlation(self.value[index], self.p_value[index], self.defined[index])


@dataclass(frozen=True)
class Average:
    """Mean and population standard deviation of the `n` defined numbers, and how many were undefined.

    Mean and deviation are NaN where nothing is defined.
    """

    mean: float
    std: float
    n: int
    undefined: int


def mean_defined(values: Tensor) -> Average:
    """Mean and spread of all numbers that are not NaN, with the count of those that are.

    >>> mean_defined(torch.tensor([1.0, 3.0, math.nan]))
    Average(mean=2.0, std=1.0, n=2, undefined=1)
    """
    numbers = values.flatten().double()
    defined = numbers[~numbers.isnan()]
    undefined = numbers.numel() - defined.numel()
    if not defined.numel():
        return Average(math.nan, math.nan, 0, undefined)
    return Average(defined.mean().item(), defined.std(correction=0).item(), defined.numel(), undefined)


def pearson(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Pearson's correlation of x and y `[... unit]` over the real units, `[...]`.

    The p-value is that of a t-test with `n - 2` degrees of freedom; for two units it is 1.

    >>> pearson(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 4.0, 8.0])).value
    tensor(1., dtype=torch.float64)
    """
    return pearson_matrix(paired(x, y), mask)[..., 0, 1]


def spearman(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    """Spearman's rank correlation of x and y `[... unit]` over the real units, `[...]`; ties by midranks.

    The p-value is the one of `pearson` on the ranks.

    >>> result = spearman(torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([0.3, 0.2, 0.1, 0.4]))
    >>> round(result.value.item(), 4), round(result.p_value.item(), 4)
    (0.2, 0.8)
    """
    return spearman_matrix(paired(x, y), mask)[..., 0, 1]


def pearson_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Pearson's correlation of all pairs of methods, `[... method method]`.

    Args:
        scores: `[... method unit]`.
        mask: `[... unit]`.

    >>> pearson_matrix(torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 2.0]])).value.round(decimals=6)
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    real = real_units(scores, mask)
    if bool((scores.isinf() & real.unsqueeze(-2)).any()):
        raise ValueError("an infinite score has no Pearson correlation: use spearman or kendall_tau")
    return _product_moment(scores.double(), real)


def spearman_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """Spearman's rank correlation of all pairs of methods, shapes as in `pearson_matrix`.

    >>> spearman_matrix(torch.tensor([[1.0, 2.0, 9.0], [8.0, 4.0, 5.0]])).value.round(decimals=6)
    tensor([[ 1.0000, -0.5000],
            [-0.5000,  1.0000]], dtype=torch.float64)
    """
    real = real_units(scores, mask)
    return _product_moment(midranks(scores, real.unsqueeze(-2)), real)


def paired(x: Tensor, y: Tensor) -> Tensor:
    """x and y as two methods, `[... 2 unit]`.

    >>> paired(torch.tensor([1, 2]), torch.tensor([0.5, 0.0])).shape
    torch.Size([2, 2])
    """
    if x.shape != y.shape:
        raise ValueError(f"x {tuple(x.shape)} and y {tuple(y.shape)} differ in shape")
    dtype = torch.promote_types(x.dtype, y.dtype)
    return torch.stack((x.to(dtype), y.to(dtype)), dim=-2)


def real_units(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The mask `[... unit]` of scores `[... method unit]`; raises ValueError on wrong shapes and on NaN.

    >>> real_units(torch.tensor([[1.0, 2.0], [3.0, math.nan]]), torch.tensor([True, False]))
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
    varied = (largest > 0) & ~_constant(scores, inside)
    defined = varied & varied.mT & (count >= 2)
    value = (unit @ unit.mT).clamp(-1.0, 1.0).masked_fill(~defined, math.nan)
    return Correlation(value, _two_sided(value, count), defined)


def _constant(scores: Tensor, inside: Tensor) -> Tensor:
    # Asked of the scores themselves: the rounded mean of equal numbers may differ from them.
    if not scores.shape[-1]:
        return torch.ones_like(scores.sum(-1, keepdim=True), dtype=torch.bool)
    highest = scores.masked_fill(~inside, -math.inf).amax(-1, keepdim=True)
    return highest <= scores.masked_fill(~inside, math.inf).amin(-1, keepdim=True)


def _two_sided(value: Tensor, count: Tensor) -> Tensor:
    # P(|T| > t) for t = r sqrt(df / (1 - r²)) is the regularised incomplete beta function at 1 - r².
    freedom = (count - 2).clamp(min=1).double().cpu().numpy()
    rest = ((1 - value) * (1 + value)).detach().cpu().numpy()
    tail = special.betainc(freedom / 2, 0.5, rest)
    p_value = torch.as_tensor(tail, dtype=torch.float64, device=value.device)
    # Two points always lie on a line: nothing is learnt. SciPy's pearsonr says 1 too, its spearmanr NaN.
    return torch.where((count == 2) & ~value.isnan(), torch.ones_like(p_value), p_value)
