"""Many numbers resampled together: every column is a mean over the same examples, drawn with the same draws.

A resample is a count of how often each example is drawn, so that all means of all resamples are one matrix product.
Differences of columns are paired differences; whatever is a function of means (a correlation) can be made of them.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

_DRAWS = 2**23
"""Drawn examples held at a time."""


def resampled_means(columns: Tensor, *, resamples: int = 1000, generator: Generator) -> Tensor:
    """Means of columns `[example column]` over each resample of the examples, `[resample column]` in float64.

    >>> means = resampled_means(torch.tensor([[1.0, 5.0], [3.0, 7.0]]), resamples=4, generator=Generator())
    >>> (means[:, 1] - means[:, 0]).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    if not len(columns):
        raise ValueError("there is nothing to resample: no examples")
    values = columns.double()
    rows = max(1, _DRAWS // len(values))
    found = [
        draws(len(values), min(rows, resamples - start), generator) @ values / len(values)
        for start in range(0, resamples, rows)
    ]
    return torch.cat(found)


def draws(count: int, resamples: int, generator: Generator, size: int | None = None) -> Tensor:
    """How often each of `count` things is drawn in each resample, `[resample thing]`; every row sums to `size`.

    Args:
        size: things drawn for a resample, by default as many as there are. With one less, the variance of a mean is
            that of the unbiased estimate (Rao & Wu 1988), which matters where things are few, as seeds are.
    """
    places = torch.randint(count, (resamples, count if size is None else size), generator=generator)
    found = torch.zeros(resamples, count, dtype=torch.float64)
    return found.scatter_add_(1, places, torch.ones_like(places, dtype=torch.float64))


def bounds(drawn: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """The percentile interval of each number from its resamples `[resample ...]`; NaN where some are undefined."""
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype)
    low, high = torch.quantile(drawn, tails, dim=0)
    return low, high
