"""Random numbers per example: a hash of (seed, draw, unit), so the other examples of a batch change nothing.

SplitMix64 (Steele, Lea & Flood 2014) on int64 tensors, whose products wrap around as the algorithm requires. Numbers
are drawn on the CPU and moved to the device of the seeds, so that samples are the same on every device.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15
_MULTIPLIER_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = -7723592293110705685  # 0x94D049BB133111EB

_UNIT_MASK = (1 << 16) - 1
_KEY_MASK = (1 << 62) - (1 << 16)
_OFF_SUPPORT = 1 << 62


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch shifts arithmetically."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_bits(values: Tensor) -> Tensor:
    values = values.bitwise_xor(_shift_right(values, 30)).mul_(_MULTIPLIER_1)
    values = values.bitwise_xor_(_shift_right(values, 27)).mul_(_MULTIPLIER_2)
    return values.bitwise_xor_(_shift_right(values, 31))


def _hash_bits(seeds: Tensor, draws: int, units: int, first: int = 0) -> Tensor:
    """64 random bits for each row, draw and unit, `[batch draw unit]`, on the CPU."""
    draw = torch.arange(first + 1, first + draws + 1)
    unit = torch.arange(1, units + 1)
    row = _mix_bits(seeds.cpu()[:, None] + draw * _GAMMA)
    return _mix_bits(row[:, :, None] + unit * _GAMMA)


def sample_uniform(seeds: Tensor, draws: int, units: int, first: int = 0) -> Tensor:
    """Numbers uniform on [0, 1), `[batch draw unit]`, each a function of its row's seed, its draw and its unit only.

    Args:
        first: number of the first draw; the draws before it are left out.

    >>> seeds = torch.tensor([7, 8])
    >>> torch.equal(sample_uniform(seeds, 3, 5)[1, :, :2], sample_uniform(seeds[1:], 3, 2)[0])
    True
    """
    return (_shift_right(_hash_bits(seeds, draws, units, first), 11).double() * 2.0**-53).to(seeds.device)


def random_permutations(seeds: Tensor, draws: int, support: Tensor, first: int = 0) -> Tensor:
    """Random orders of each row's supported units `[batch draw unit]`; the other units follow.

    Units are sorted by random keys of 46 bits with the unit's number in the lowest 16 bits; NumPy's sort is several
    times faster than torch's.

    Args:
        support: `[batch unit]`.
        first: number of the first draw; the draws before it are left out.

    >>> random_permutations(torch.tensor([7]), 1, torch.tensor([[False, True, True, False]]))[0, 0, :2].sort().values
    tensor([1, 2])
    """
    units = support.shape[-1]
    if units > _UNIT_MASK:
        raise ValueError(f"cannot permute {units} units: at most {_UNIT_MASK}")
    keys = _hash_bits(seeds, draws, units, first).bitwise_and_(_KEY_MASK)
    keys |= torch.arange(units) + (~support[:, None].cpu()).long() * _OFF_SUPPORT
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)).bitwise_and_(_UNIT_MASK).to(seeds.device)


def permute_within(values: Tensor, support: Tensor, seeds: Tensor) -> Tensor:
    """Values `[batch ... unit]` in a random order of each row's supported units; the other units keep theirs.

    Args:
        support: `[batch unit]`.
        seeds: `[batch]`.
    """
    shape = (len(support), *[1] * (values.dim() - 2), support.shape[-1])
    source = random_permutations(seeds, 1, support)[:, 0].reshape(shape).expand_as(values)
    target = torch.argsort((~support).to(torch.int8), dim=-1, stable=True).reshape(shape).expand_as(values)
    permuted = torch.empty_like(values).scatter_(-1, target, values.gather(-1, source))
    return torch.where(support.reshape(shape), permuted, values)


@contextmanager
def fork_generators() -> Iterator[None]:
    """Restores the generators of torch afterwards, on the CPU and on every GPU, whatever its kind."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        with torch.random.fork_rng(devices=[]):
            yield
        return
    with torch.random.fork_rng(devices=range(torch.accelerator.device_count()), device_type=accelerator.type):
        yield


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restores the global generators of Python, NumPy and torch, which a few networks seed or draw from."""
    python_state, others = random.getstate(), np.random.get_state()  # noqa: NPY002 - read, not drawn from
    try:
        with fork_generators():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(others)  # noqa: NPY002


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seeds the global generators, which dropout draws from, and restores them afterwards."""
    with fork_generators():
        torch.manual_seed(seed)
        yield
