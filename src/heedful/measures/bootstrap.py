"""How sure a number is: percentile intervals from resampled examples, for one sample or for a paired one.

Many numbers resampled together: every column is a mean over the same examples, drawn with the same draws.

A resample is a count of how often each example is drawn, so that all means of all resamples are one matrix product.
Differences of columns are paired differences; whatever is a function of means (a correlation) can be made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

Statistic = Literal["mean"] | Callable[[Tensor], Tensor]
"""The mean over examples, or a function from resamples `[resample example ...]` to numbers `[resample]`."""

_MAX_RESAMPLED_VALUES = 2**22
"""Drawn examples held at a time."""


@dataclass(frozen=True)
class Interval:
    """An estimate from the sample itself with the bounds of its percentile interval."""

    estimate: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class PairedDifference:
    """How much larger the first is than the second, and the two-sided p-value of no difference."""

    interval: Interval
    p_value: float


def bootstrap_interval(
    values: Tensor,
    statistic: Statistic = "mean",
    *,
    level: float = 0.95,
    resamples: int = 1000,
    generator: Generator,
) -> Interval:
    """The statistic of values `[example ...]` with its percentile bootstrap interval (Efron, 1979).

    Whole examples are drawn with replacement; the bounds are the quantiles `(1 ∓ level) / 2`.

    >>> values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> interval = bootstrap_interval(values, generator=torch.Generator().manual_seed(0))
    >>> interval.estimate, 1.0 <= interval.low < 2.5 < interval.high <= 4.0
    (2.5, True)
    """
    measure = _statistic_function(statistic)
    _check_resampling(values, level, resamples)
    drawn = _resample_statistic(values, measure, resamples, generator)
    return _percentile_interval(measure(values.unsqueeze(0)), drawn, level)


def paired_bootstrap(
    first: Tensor,
    second: Tensor,
    statistic: Statistic = "mean",
    *,
    resamples: int = 1000,
    generator: Generator,
) -> PairedDifference:
    """statistic(first) - statistic(second) over the same examples, with its 95 % interval and p-value.

    Both are resampled by the same draws; `p = 2 (min(#{d ≤ 0}, #{d ≥ 0}) + 1) / (resamples + 1)`, at most 1.

    >>> better, worse = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0])
    >>> paired_bootstrap(better, worse, resamples=99, generator=torch.Generator().manual_seed(0))
    PairedDifference(interval=Interval(estimate=1.0, low=1.0, high=1.0, level=0.95), p_value=0.02)
    """
    if first.shape != second.shape:
        raise ValueError(f"paired values must have one shape, found {tuple(first.shape)} and {tuple(second.shape)}")
    measure, pairs = _statistic_function(statistic), torch.stack((first, second), dim=1)
    _check_resampling(pairs, 0.95, resamples)

    def difference(drawn: Tensor) -> Tensor:
        return measure(drawn[:, :, 0]) - measure(drawn[:, :, 1])

    drawn = _resample_statistic(pairs, difference, resamples, generator)
    fewer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    interval = _percentile_interval(difference(pairs.unsqueeze(0)), drawn, 0.95)
    return PairedDifference(interval, min(1.0, 2 * (fewer + 1) / (resamples + 1)))


def _statistic_function(statistic: Statistic) -> Callable[[Tensor], Tensor]:
    return _mean_per_resample if statistic == "mean" else statistic


def _mean_per_resample(drawn: Tensor) -> Tensor:
    return drawn.double().flatten(1).mean(1)


def _resample_statistic(
    values: Tensor, measure: Callable[[Tensor], Tensor], resamples: int, generator: Generator
) -> Tensor:
    """The measure of each resample, in blocks that bound the memory."""
    examples = len(values)
    rows = max(1, _MAX_RESAMPLED_VALUES // values.numel())
    found = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), examples)
        draws = torch.randint(examples, shape, generator=generator, device=generator.device)
        found.append(measure(values[draws.to(values.device)]).double())
    return torch.cat(found)


def _percentile_interval(estimate: Tensor, drawn: Tensor, level: float) -> Interval:
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=drawn.device)
    # A statistic that some resamples leave undefined (NaN) has no honest interval: the NaN is passed on.
    low, high = torch.quantile(drawn, tails).tolist()
    return Interval(estimate.double().item(), low, high, level)


def _check_resampling(values: Tensor, level: float, resamples: int) -> None:
    if not values.numel():
        raise ValueError("there is nothing to resample: no values")
    if bool(values.isnan().any()):
        raise ValueError(f"NaN among the values to resample: {int(values.isnan().sum())} of {values.numel()}")
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, found {level}")
    if resamples < 1:
        raise ValueError(f"an interval needs at least one resample, found {resamples}")


_MAX_DRAWS = 2**23
"""Drawn examples held at a time."""


def bootstrap_means(columns: Tensor, *, resamples: int = 1000, generator: Generator) -> Tensor:
    """Means of columns `[example column]` over each resample of the examples, `[resample column]` in float64.

    >>> means = bootstrap_means(torch.tensor([[1.0, 5.0], [3.0, 7.0]]), resamples=4, generator=Generator())
    >>> (means[:, 1] - means[:, 0]).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    if not len(columns):
        raise ValueError("there is nothing to resample: no examples")
    values = columns.double()
    rows = max(1, _MAX_DRAWS // len(values))
    found = [
        resample_counts(len(values), min(rows, resamples - start), generator) @ values / len(values)
        for start in range(0, resamples, rows)
    ]
    return torch.cat(found)


def resample_counts(count: int, resamples: int, generator: Generator, size: int | None = None) -> Tensor:
    """How often each of `count` things is drawn in each resample, `[resample thing]`; every row sums to `size`.

    Args:
        size: things drawn for a resample, by default as many as there are. With one less, the variance of a mean is
            that of the unbiased estimate (Rao & Wu 1988), which matters where things are few, as seeds are.
    """
    places = torch.randint(count, (resamples, count if size is None else size), generator=generator)
    found = torch.zeros(resamples, count, dtype=torch.float64)
    return found.scatter_add_(1, places, torch.ones_like(places, dtype=torch.float64))


def percentile_bounds(drawn: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """The percentile interval of each number from its resamples `[resample ...]`; NaN where some are undefined."""
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype)
    low, high = torch.quantile(drawn, tails, dim=0)
    return low, high
