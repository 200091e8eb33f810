"""Confidence intervals of means over texts and over seeds, at 95 % unless a level is passed.

Texts are many, and are drawn again (`bootstrap`). Seeds are few, and have the quantiles of Student's t. Intervals over
people and items, which are crossed, are in `crossed_bootstrap`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.measures.bootstrap import LEVEL, MIN_EXAMPLES, Interval, bootstrap_interval, studentised_bounds

_Array = NDArray[np.float64]
UNDEFINED = Interval(math.nan, math.nan, math.nan)


def paired_excess(values: _Array, control: _Array, seed: int) -> tuple[float, float, float, int]:
    """Mean of values - control over the texts where both are defined, its 95 % interval, and the number of texts.

    The interval is from bootstrap resamples of the texts; NaN where that gives none.
    """
    differences = torch.from_numpy(values - control)
    differences = differences[differences.isfinite()]
    if not len(differences):
        return (*UNDEFINED, 0)
    return (*bootstrap_interval(differences, generator=Generator().manual_seed(seed)), len(differences))


def resample_by_length(
    columns: Sequence[_Array],
    compute: Callable[[Tensor, Generator], tuple[Tensor, ...]],
    generator_of: Callable[[int], Generator],
) -> list[tuple[float, ...]]:
    """The numbers that `compute` returns for each column; none for a column of too few values.

    Columns of one length share their resamples, which are most of the work.

    Args:
        compute: from columns `[example column]` to numbers `[column]`.
        generator_of: the generator for columns of this length.
    """
    numbers: list[tuple[float, ...]] = [()] * len(columns)
    for count in sorted({len(values) for values in columns if len(values) >= MIN_EXAMPLES}):
        members = [index for index, values in enumerate(columns) if len(values) == count]
        together = torch.from_numpy(np.stack([columns[index] for index in members], 1))
        computed = torch.stack(compute(together, generator_of(count)), 1).tolist()
        for index, row in zip(members, computed, strict=True):
            numbers[index] = tuple(row)
    return numbers


def mean_intervals(
    columns: Sequence[_Array], generator_of: Callable[[int], Generator], *, level: float, resamples: int
) -> list[Interval]:
    """The mean of each column with its interval; that of a constant column is the constant itself."""
    bounds = resample_by_length(
        columns,
        lambda values, generator: studentised_bounds(values, level=level, resamples=resamples, generator=generator),
        generator_of,
    )
    intervals = []
    for values, ends in zip(columns, bounds, strict=True):
        mean = float(values.mean()) if len(values) else math.nan
        is_constant = bool(ends) and float(np.ptp(values)) <= 1e-12 * max(1.0, abs(mean))
        intervals.append(Interval(mean, *((mean, mean) if is_constant else ends or (math.nan, math.nan))))
    return intervals


def _student_interval(mean: float, deviation: float, seeds: int, divisor: float = 1.0) -> Interval:
    """mean ± t(seeds - 1) deviation / divisor."""
    from scipy import special  # its import costs 10 MB, and reports do without it

    half = float(special.stdtrit(seeds - 1, (1 + LEVEL) / 2)) * deviation / divisor
    return Interval(mean, mean - half, mean + half)


def seed_interval(mean: float, resampled: Tensor, seeds: int) -> Interval:
    """The interval of a mean over this many seeds, from the spread of its resamples `[resample]`.

    A percentile interval would be far too narrow for few seeds. The bounds are those of Student's t with one degree of
    freedom fewer than seeds, which is cautious where the examples vary more than the seeds do; NaN for NaN resamples.
    """
    return _student_interval(mean, math.sqrt(float(resampled.var(correction=0))), seeds)


def paired_seed_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Mean of first - second with its interval, mean(d) ± t(n - 1) sd(d) / sqrt(n), over pairs of defined scores.

    The bounds are NaN for fewer than two pairs.

    >>> [round(value, 4) for value in paired_seed_difference([0.83, 0.82, 0.84], [0.81, 0.82, 0.80])]
    [0.02, -0.0297, 0.0697]
    """
    differences = [one - other for one, other in zip(first, second, strict=True)]
    differences = [value for value in differences if math.isfinite(value)]
    if len(differences) < 2:
        return UNDEFINED._replace(estimate=differences[0]) if differences else UNDEFINED
    seeds = len(differences)
    return _student_interval(statistics.fmean(differences), statistics.stdev(differences), seeds, math.sqrt(seeds))


def spread_interval(mean: float, deviation: float, count: float) -> Interval:
    """The interval of a mean of so many values from their standard deviation; NaN bounds for fewer than two.

    >>> [round(value, 4) for value in spread_interval(0.5, 0.1, 4)]
    [0.5, 0.3409, 0.6591]
    """
    if not (count >= 2 and math.isfinite(deviation)):
        return UNDEFINED._replace(estimate=mean)
    return _student_interval(mean, deviation, int(count), math.sqrt(int(count)))


def share_interval(share: float, count: float) -> Interval:
    """The interval of a share of so many texts (Clopper & Pearson 1934); NaN bounds if there are none.

    >>> [round(value, 4) for value in share_interval(0.5, 10)]
    [0.5, 0.1871, 0.8129]
    """
    if not (count >= 1 and math.isfinite(share)):
        return UNDEFINED._replace(estimate=share)
    from scipy import special  # its import costs 10 MB, and reports do without it

    tail, hits = (1 - LEVEL) / 2, share * count
    misses = count - hits
    low = float(special.betaincinv(hits, misses + 1, tail)) if hits > 0 else 0.0
    high = float(special.betaincinv(hits + 1, misses, 1 - tail)) if misses > 0 else 1.0
    return Interval(share, low, high)
