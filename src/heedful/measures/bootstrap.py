"""Studentised bootstrap intervals of means (bootstrap-t: Efron 1979, Hall 1988).

A percentile interval of few or skewed values is too narrow: it misses the mean up to three times as often as it should.
Here each resampled mean is divided by the resample's own standard error, as in a t statistic. From `MIN_EXAMPLES` on,
such an interval misses the mean in 5 +- 1 % of samples, also for skewed values and for rare large ones; less often if
there are two values only (right or wrong); up to 8 % with tails as heavy as those of a lognormal or t(3). There is none
for fewer examples. These are shares of the samples that have an interval: of values that are 0 but for 5 % (10 %) of
examples, 28 % (8 %) of the samples of 25 are constant and have none, and where the others differ by noise, their
interval misses the mean as often: no sample tells what is not in it. `bounded_mean` has bounds for that case. A rule by
the skewness of the sample would make it worse: samples that miss the mean are the ones that happen to look symmetric.
`benchmarks/interval_coverage.py` measures all of this.

A resample is a count of how often each example is drawn, so the moments of many columns over all resamples are matrix
products.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

_MAX_DRAWS = 2**23
"""Drawn examples held at a time."""
LEVEL = 0.95
MIN_EXAMPLES = 25
"""With fewer examples than this a mean has no interval."""


class Interval(NamedTuple):
    """A mean with the bounds of its interval; NaN where it has none."""

    estimate: float
    low: float
    high: float


def bootstrap_interval(
    values: Tensor, *, level: float = LEVEL, resamples: int = 1000, generator: Generator
) -> Interval:
    """The mean of values `[example]` with its interval; for a paired comparison, pass the differences.

    >>> interval = bootstrap_interval(torch.arange(25.0), generator=torch.Generator().manual_seed(0))
    >>> interval.estimate, 7.0 < interval.low < 10.0 < 14.0 < interval.high < 17.0
    (12.0, True)
    """
    if bool(values.isnan().any()):
        raise ValueError(f"NaN among the values to resample: {int(values.isnan().sum())} of {values.numel()}")
    low, high = studentised_bounds(values.unsqueeze(1), level=level, resamples=resamples, generator=generator)
    return Interval(values.double().mean().item(), low.item(), high.item())


def studentised_bounds(
    columns: Tensor, *, level: float = LEVEL, resamples: int = 1000, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Bounds `[column]` of the intervals of the means of columns `[example column]`.

    With t* = (mean* - mean) / error* over resamples, the bounds are mean - q(t*) error for upper and lower quantiles.
    Each resample's variance is averaged with that of the sample as one more example, since a resample of few different
    values may have none. NaN for fewer than `MIN_EXAMPLES`, for constant columns, and with NaN in a column.
    """
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval must lie between 0 and 1, found {level}")
    mean, deviation, statistics = studentised_means(columns, resamples=resamples, generator=generator)
    ordered = statistics.sort(0).values
    tail = max(0, math.ceil((1 - level) / 2 * resamples) - 1)
    # Both standard errors are divided by the same number of examples.
    low, high = (mean - ordered[place] * deviation for place in (-1 - tail, tail))
    known = (deviation > 0) & (len(columns) >= MIN_EXAMPLES)
    return low.masked_fill(~known, math.nan), high.masked_fill(~known, math.nan)


def studentised_means(columns: Tensor, *, resamples: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and standard deviation of columns `[example column]`, and (mean* - mean) / deviation* `[resample column]`.

    The deviation of a constant column is 0, whatever rounding leaves of it.
    """
    count, mean = len(columns), columns.double().mean(0)
    centered = columns.double() - mean
    moments = bootstrap_means(torch.cat((centered, centered.square()), 1), resamples=resamples, generator=generator)
    means, squares = moments.chunk(2, 1)
    variance = centered.square().mean(0)
    resampled = ((squares - means.square()).clamp(min=0) * count + variance) / (count + 1)
    constant = variance.sqrt() <= 1e-12 * columns.double().abs().amax(0)
    return mean, variance.sqrt().masked_fill(constant, 0.0), means / resampled.sqrt()


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
