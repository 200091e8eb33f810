"""Percentile bootstrap intervals of means (Efron 1979).

A resample is a count of how often each example is drawn, so the means of many columns over all resamples are one matrix
product. Columns share their draws: differences of columns are paired differences, and any function of means (such as a
correlation) has an interval too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

_MAX_DRAWS = 2**23
"""Drawn examples held at a time."""


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds of its percentile interval."""

    estimate: float
    low: float
    high: float


def bootstrap_interval(values: Tensor, *, level: float = 0.95, resamples: int = 1000, generator: Generator) -> Interval:
    """The mean of values `[example]` with its interval; for a paired comparison, pass the differences.

    >>> values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> interval = bootstrap_interval(values, generator=torch.Generator().manual_seed(0))
    >>> interval.estimate, 1.0 <= interval.low < 2.5 < interval.high <= 4.0
    (2.5, True)
    """
    if bool(values.isnan().any()):
        raise ValueError(f"NaN among the values to resample: {int(values.isnan().sum())} of {values.numel()}")
    means = bootstrap_means(values.unsqueeze(1), resamples=resamples, generator=generator)
    low, high = percentile_bounds(means[:, 0], level)
    return Interval(values.double().mean().item(), low.item(), high.item())


def bootstrap_means(columns: Tensor, *, resamples: int = 1000, generator: Generator) -> Tensor:
    """Means of columns `[example column]` over each resample of the examples, `[resample column]` in float64.

    >>> means = bootstrap_means(torch.tensor([[1.0, 5.0], [3.0, 7.0]]), resamples=4, generator=Generator())
    >>> (means[:, 1] - means[:, 0]).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    if not len(columns):
        raise ValueError("nothing to resample: no examples")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, found {resamples}")
    values = columns.double()
    rows = max(1, _MAX_DRAWS // len(values))
    means = [
        resample_counts(len(values), min(rows, resamples - start), generator) @ values / len(values)
        for start in range(0, resamples, rows)
    ]
    return torch.cat(means)


def resample_counts(count: int, resamples: int, generator: Generator, size: int | None = None) -> Tensor:
    """How often each of `count` items is drawn in each resample, `[resample item]`; every row sums to `size`.

    Args:
        size: items drawn for a resample, by default `count`. With one less, the variance of a mean is that of the
            unbiased estimate (Rao & Wu 1988), which matters for few items, such as seeds.
    """
    drawn = torch.randint(count, (resamples, count if size is None else size), generator=generator)
    counts = torch.zeros(resamples, count, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


def percentile_bounds(resampled: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Bounds of the percentile interval of each number from its resamples `[resample ...]`; NaN if any is NaN."""
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval must lie between 0 and 1, found {level}")
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=resampled.dtype)
    low, high = torch.quantile(resampled, tails, dim=0)
    return low, high
