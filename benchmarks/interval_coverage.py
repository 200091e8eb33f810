"""How often the interval of a mean misses the true mean, for populations like those that trials average over.

Run `python -m benchmarks.interval_coverage [samples]`: a line per population and sample size with the share of samples
that get an interval, and among these the misses in per cent (nominal 5), with the mean below and above the interval.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from heedful.measures.bootstrap import studentised_bounds

SIZES = (25, 30, 50, 100)
AT_ONCE = 50
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]

POPULATIONS: Mapping[str, tuple[Draw, float]] = {
    "normal": (lambda rng, size: rng.normal(size=size), 0.0),
    "uniform": (lambda rng, size: rng.random(size), 0.5),
    "exponential": (lambda rng, size: rng.exponential(size=size), 1.0),
    "beta(1/2, 2)": (lambda rng, size: rng.beta(0.5, 2.0, size), 0.2),
    "half right": (lambda rng, size: (rng.random(size) < 0.5).astype(float), 0.5),
    "four fifths right": (lambda rng, size: (rng.random(size) < 0.8).astype(float), 0.8),
    "most near 0, some near 1": (
        lambda rng, size: np.where(rng.random(size) < 0.15, rng.normal(1.0, 0.3, size), rng.normal(0.0, 0.1, size)),
        0.15,
    ),
    "difference of areas": (lambda rng, size: rng.beta(4.0, 2.0, size) - rng.beta(2.0, 2.0, size), 2 / 3 - 1 / 2),
    "steps of a quarter": (lambda rng, size: rng.binomial(4, 0.6, size) / 4 - rng.binomial(4, 0.5, size) / 4, 0.1),
}


def misses(population: str, size: int, samples: int, seed: int = 0) -> tuple[float, float, float]:
    """The share of samples with an interval, and among these the shares with the mean below and above it."""
    draw, mean = POPULATIONS[population]
    rng, generator = np.random.default_rng([seed, size]), Generator().manual_seed(seed)
    low, high = [], []
    for _ in range(samples // AT_ONCE):
        bounds = studentised_bounds(torch.from_numpy(draw(rng, (size, AT_ONCE))), generator=generator)
        low.append(bounds[0])
        high.append(bounds[1])
    lows, highs = torch.cat(low), torch.cat(high)
    given = ~lows.isnan()
    below, above = ((side & given).sum().item() / max(1, int(given.sum())) for side in (mean < lows, mean > highs))
    return given.double().mean().item(), below, above


if __name__ == "__main__":
    drawn = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for name in POPULATIONS:
        for count in SIZES:
            given_share, below_share, above_share = misses(name, count, drawn)
            rates = (given_share, below_share + above_share, below_share, above_share)
            given_text, total, left, right = (f"{100 * rate:5.1f}" for rate in rates)
            print(f"{name:26} n = {count:3}: interval {given_text} %, misses {total} % ({left} below, {right} above)")
