"""Ranks of many rows at once, ties included: what Kendall, Spearman and the ROC area have in common."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class DenseRanks(NamedTuple):
    """Ties of a row share one *place*, places are counted from 0.

    Args:
        places: place of each unit `[... unit]`; units off the mask stand behind all others, on place `unit`.
        sizes: how many real units share each place `[... unit]`; the places of no unit have 0.
    """

    places: Tensor
    sizes: Tensor


def dense_ranks(values: Tensor, mask: Tensor) -> DenseRanks:
    """Places in ascending order along the last axis, and how many real units share each.

    >>> dense_ranks(torch.tensor([3.0, 1.0, 3.0]), torch.tensor([True, True, True])).places
    tensor([1, 0, 1])
    """
    ordered, order = values.sort(-1)
    steps = torch.zeros_like(order)
    # Values off the mask may open places of their own: these have size 0, and gaps disturb nobody.
    steps[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    places = torch.empty_like(order).scatter_(-1, order, steps.cumsum(-1))
    weight = mask.to(torch.int64).expand(places.shape)
    sizes = torch.zeros_like(places).scatter_add_(-1, places, weight)
    return DenseRanks(places.masked_fill_(~mask, values.shape[-1]), sizes)


def midranks(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Ranks from 1 in float64, ties sharing the mean of their ranks; 0 off the mask.

    >>> midranks(torch.tensor([20, 10, 30, 20]))
    tensor([2.5000, 1.0000, 4.0000, 2.5000], dtype=torch.float64)
    """
    real = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    places, sizes = dense_ranks(values, real)
    middle = sizes.cumsum(-1).double() - (sizes - 1).double() / 2
    last = max(values.shape[-1] - 1, 0)
    return middle.gather(-1, places.clamp(max=last)).masked_fill(~real, 0.0)
