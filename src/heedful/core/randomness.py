"""Random numbers that belong to an example: a hash of (seed, draw, unit), so the company in a batch changes nothing.

SplitMix64 (Steele, Lea & Flood 2014) on int64 tensors, whose products wrap around as the method wants.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch shifts arithmetically."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(values: Tensor) -> Tensor:
    values = (values ^ _shifted(values, 30)) * _FIRST
    values = (values ^ _shifted(values, 27)) * _SECOND
    return values ^ _shifted(values, 31)


def hashed_uniform(seeds: Tensor, draws: int, units: int) -> Tensor:
    """Numbers uniform on [0, 1), `[batch draw unit]`, each a function of its row's seed, its draw and its unit only.

    >>> seeds = torch.tensor([7, 8])
    >>> torch.equal(hashed_uniform(seeds, 3, 5)[1, :, :2], hashed_uniform(seeds[1:], 3, 2)[0])
    True
    """
    draw = torch.arange(1, draws + 1, device=seeds.device)
    unit = torch.arange(1, units + 1, device=seeds.device)
    row = _mixed(seeds[:, None] + draw * _GAMMA)
    cell = _mixed(row[:, :, None] + unit * _GAMMA)
    return _shifted(cell, 11).double() * 2.0**-53
