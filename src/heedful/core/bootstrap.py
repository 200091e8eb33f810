"""How sure a number is: percentile intervals from resampled examples, for one sample or for a paired one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

Statistic = Literal["mean"] | Callable[[Tensor], Tensor]
"""The mean over examples, or a function from resamples `[resample example ...]` to numbers `[resample]`."""

_DRAWS = 2**22
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
    measure = _measure(statistic)
    _check(values, level, resamples)
    drawn = _resampled(values, measure, resamples, generator)
    return _interval(measure(values.unsqueeze(0)), drawn, level)


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
    measure, pairs = _measure(statistic), torch.stack((first, second), dim=1)
    _check(pairs, 0.95, resamples)

    def difference(drawn: Tensor) -> Tensor:
        return measure(drawn[:, :, 0]) - measure(drawn[:, :, 1])

    drawn = _resampled(pairs, difference, resamples, generator)
    fewer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    interval = _interval(difference(pairs.unsqueeze(0)), drawn, 0.95)
    return PairedDifference(interval, min(1.0, 2 * (fewer + 1) / (resamples + 1)))


def _measure(statistic: Statistic) -> Callable[[Tensor], Tensor]:
    return _mean if statistic == "mean" else statistic


def _mean(drawn: Tensor) -> Tensor:
    return drawn.double().flatten(1).mean(1)


def _resampled(values: Tensor, measure: Callable[[Tensor], Tensor], resamples: int, generator: Generator) -> Tensor:
    """The measure of each resample, in blocks that bound the memory."""
    examples = len(values)
    rows = max(1, _DRAWS // values.numel())
    found = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), examples)
        draws = torch.randint(examples, shape, generator=generator, device=generator.device)
        found.append(measure(values[draws.to(values.device)]).double())
    return torch.cat(found)


def _interval(estimate: Tensor, drawn: Tensor, level: float) -> Interval:
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=drawn.device)
    # A statistic that some resamples leave undefined (NaN) has no honest interval: the NaN is passed on.
    low, high = torch.quantile(drawn, tails).tolist()
    return Interval(estimate.double().item(), low, high, level)


def _check(values: Tensor, level: float, resamples: int) -> None:
    if not values.numel():
        raise ValueError("there is nothing to resample: no values")
    if bool(values.isnan().any()):
        raise ValueError(f"NaN among the values to resample: {int(values.isnan().sum())} of {values.numel()}")
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, found {level}")
    if resamples < 1:
        raise ValueError(f"an interval needs at least one resample, found {resamples}")
