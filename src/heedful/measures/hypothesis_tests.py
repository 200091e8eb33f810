"""One-sided tests of means by the studentised bootstrap, tails of counts, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from heedful.measures.bootstrap import MIN_EXAMPLES, studentised_means

RESAMPLES = 10_000
"""Enough to tell p-values of .001 apart."""


def studentised_p_values(columns: Tensor, *, resamples: int = RESAMPLES, generator: Generator) -> Tensor:
    """P-values `[column]` of the hypothesis that the mean of a column `[example column]` is at most 0.

    With t* = (mean* - mean) / error* over resamples, p = (1 + number of t* >= mean / error) / (1 + resamples). The
    variance of a resample is averaged with that of the sample as in `studentised_bounds`. NaN for fewer than
    `MIN_EXAMPLES` and with NaN in a column; for constant columns 1 if the constant is at most 0, else the smallest p.

    >>> columns = torch.stack((torch.arange(40.0) + 1, torch.arange(40.0) - 19.5), 1)
    >>> [round(p, 1) for p in studentised_p_values(columns, generator=Generator().manual_seed(0)).tolist()]
    [0.0, 0.5]
    """
    if len(columns) < MIN_EXAMPLES:
        return torch.full((columns.shape[1],), math.nan, dtype=torch.float64)
    mean, deviation, statistics = studentised_means(columns, resamples=resamples, generator=generator)
    p_values = (1.0 + (statistics >= mean / deviation).sum(0)) / (1.0 + resamples)
    of_constants = torch.where(mean > 0, 1.0 / (1.0 + resamples), torch.ones_like(mean))
    return torch.where(deviation > 0, p_values, of_constants).masked_fill(mean.isnan(), math.nan)


def poisson_binomial_tail(probabilities: Sequence[float], least: int) -> float:
    """The probability that at least so many of several independent events occur, each with a probability of its own.

    >>> poisson_binomial_tail([0.5, 0.25], 1), poisson_binomial_tail([0.5, 0.25], 2)
    (0.625, 0.125)
    """
    counts = np.ones(1)
    for probability in probabilities:
        counts = np.convolve(counts, (1 - probability, probability))
    return float(counts[least:].sum())


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979); NaN stays NaN and does not count.

    >>> adjust_holm([0.01, 0.04, 0.03, float("nan")])
    [0.03, 0.06, 0.06, nan]
    """
    places = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda index: p_values[index])
    adjusted, highest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(places):
        highest = max(highest, min(1.0, (len(places) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
