"""How often the bounds of a mean miss it, for populations like those that trials and audits average over.

Run `python -m benchmarks.interval_coverage [samples]`: a line per population and sample size. For each kind of bound it
gives the samples in per cent in which the true mean is below the lower and above the upper bound (nominal 2.5 each):

- studentized: the bootstrap of `measures.bootstrap`, with the share of samples that have an interval.
- bounded: `measures.bounded_mean`, whose range is known, or for unbounded populations that of the sample.
- audit: samples in which the test of an audit (studentized, and `unseen_p_value`) finds a mean above the true one, so
  that the lower bound of a share of the achievable is too high.

The upper bound of a share is the bounded one. Trials print studentized intervals.

A population "mirrored" has the opposite values: rare losses instead of rare gains.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from heedful.measures.bootstrap import studentised_bounds
from heedful.measures.bounded_mean import lower_bound, unseen_p_value, upper_bound

SIZES = (25, 28, 44, 76, 124)
AT_ONCE = 50
ALPHA = 0.025
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]


class Population(NamedTuple):
    """How samples are drawn, the true mean, and the range of the values; None if they have none."""

    draw: Draw
    mean: float
    ends: tuple[float, float] | None = (0.0, 1.0)


def _rare(share: float) -> Population:
    """Nothing on most texts, and a gain between .3 and .9 on the others."""
    return Population(
        lambda rng, size: np.where(rng.random(size) < share, rng.uniform(0.3, 0.9, size), 0.0), 0.6 * share
    )


def _flips(share: float) -> Population:
    return Population(lambda rng, size: (rng.random(size) < share).astype(float), share)


def _failures(share: float, noise: float = 0.0) -> Population:
    """Of mean 0: losses between .5 and 1 on a share of texts, and small gains on all others."""
    gain = 0.75 * share / (1 - share)
    return Population(
        lambda rng, size: np.where(
            rng.random(size) < share, -rng.uniform(0.5, 1.0, size), rng.normal(gain, noise, size)
        ),
        0.0,
        (-1.0, 1.0),
    )


def _mirrored(population: Population) -> Population:
    ends = None if population.ends is None else (-population.ends[1], -population.ends[0])
    return Population(lambda rng, size: -population.draw(rng, size), -population.mean, ends)


_POPULATIONS: Mapping[str, Population] = {
    "normal": Population(lambda rng, size: rng.normal(size=size), 0.0, None),
    "t(3)": Population(lambda rng, size: rng.standard_t(3, size=size), 0.0, None),
    "lognormal": Population(lambda rng, size: rng.lognormal(size=size), math.exp(0.5), None),
    "uniform": Population(lambda rng, size: rng.random(size), 0.5),
    "exponential": Population(lambda rng, size: rng.exponential(size=size), 1.0, None),
    "beta(1/2, 2)": Population(lambda rng, size: rng.beta(0.5, 2.0, size), 0.2),
    "zero but for 30 %": _rare(0.3),
    "zero but for 10 %": _rare(0.1),
    "zero but for 5 %": _rare(0.05),
    "one half flips": _flips(0.5),
    "10 % flip": _flips(0.1),
    "5 % flip": _flips(0.05),
    "most near 0, some near 1": Population(
        lambda rng, size: np.where(rng.random(size) < 0.15, rng.normal(1.0, 0.3, size), rng.normal(0.0, 0.1, size)),
        0.15,
        None,
    ),
    "difference of areas": Population(
        lambda rng, size: rng.beta(4.0, 2.0, size) - rng.beta(2.0, 2.0, size), 2 / 3 - 1 / 2, (-1.0, 1.0)
    ),
    "steps of a quarter": Population(
        lambda rng, size: rng.binomial(4, 0.6, size) / 4 - rng.binomial(4, 0.5, size) / 4, 0.1, (-1.0, 1.0)
    ),
    "failure on 5 %": _failures(0.05),
    "failure on 10 %": _failures(0.1),
    "failure on 30 %": _failures(0.3),
    "failure on 5 %, other gains vary": _failures(0.05, 0.15),
    "failure on 10 %, other gains vary": _failures(0.1, 0.15),
}
_SYMMETRIC = ("normal", "t(3)", "uniform", "one half flips")
POPULATIONS: Mapping[str, Population] = {
    **_POPULATIONS,
    **{
        f"mirrored {name}": _mirrored(population) for name, population in _POPULATIONS.items() if name not in _SYMMETRIC
    },
}


def misses(population: str, size: int, samples: int, seed: int = 0) -> tuple[float, float, float, float, float, float]:
    """The share of samples with a studentized interval; the shares of these with the mean below and above it; the
    shares of all samples with the mean below and above the bounded interval, and in which the test of an audit finds
    a higher one.
    """
    draw, mean, ends = POPULATIONS[population]
    rng, generator = np.random.default_rng([seed, size]), Generator().manual_seed(seed)
    low, high, bounded = [], [], np.zeros(3)
    for _ in range(samples // AT_ONCE):
        values = draw(rng, (size, AT_ONCE))
        bounds = studentised_bounds(torch.from_numpy(values), generator=generator)
        low.append(bounds[0])
        high.append(bounds[1])
        for column, start in zip(values.T, bounds[0].tolist(), strict=True):
            lowest, highest = ends or (float(column.min()), float(column.max()))
            bounded += (
                mean < lower_bound(column, lowest, ALPHA) - 1e-12,
                mean > upper_bound(column, highest, ALPHA) + 1e-12,
                # A constant sample has no interval, and its p-value is the smallest one.
                not mean >= start and unseen_p_value(column - mean, lowest - mean) <= ALPHA,
            )
    lows, highs = torch.cat(low), torch.cat(high)
    given = ~lows.isnan()
    below, above = ((side & given).sum().item() / max(1, int(given.sum())) for side in (mean < lows, mean > highs))
    return given.double().mean().item(), below, above, *(bounded / len(lows)).tolist()


if __name__ == "__main__":
    drawn = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for name in POPULATIONS:
        for count in SIZES:
            given_share, *rates = (100 * rate for rate in misses(name, count, drawn))
            below_share, above_share, bounded_below, bounded_above, audit_below = rates
            print(
                f"{name:34} n = {count:3}: studentized ({given_share:5.1f} %) {below_share:4.1f} {above_share:4.1f}, "
                f"bounded {bounded_below:4.1f} {bounded_above:4.1f}, audit {audit_below:4.1f}"
            )
