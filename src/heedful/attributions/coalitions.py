"""Coalitions for KernelSHAP: all of the sizes that count most, and fair draws of the others.

The Shapley kernel gives size k of n features the mass (n - 1) / (k (n - k)), shared by its C(n, k) coalitions. Sizes k
and n - k form a level. Level 1 is always taken whole, so that there is always one solution, further levels while as
many draws would fall on them as they have coalitions. The mass of the levels left goes to draws from them, each with
its complement, which cancels errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from heedful.core.randomness import hashed_uniform, random_orders


def kernel_coalitions(seeds: Tensor, counts: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Coalitions `[batch sample feature]`, neither empty nor whole, and their weights `[batch sample]`.

    A sample that is not needed keeps all features and has weight 0. Weights of a row of two features or more sum to 1,
    also where no pair of samples is left to be drawn for the smaller levels.

    Args:
        seeds: `[batch]`.
        counts: features of each row `[batch]`.
    """
    width = max(1, int(counts.max()))
    place = torch.arange(width, device=counts.device)
    coalitions = (place < counts.unsqueeze(1)).unsqueeze(1).repeat(1, samples, 1)
    weights = torch.zeros(len(counts), samples, dtype=torch.float64, device=counts.device)
    for count in sorted(set(counts.tolist())):
        rows = (counts == count).nonzero().flatten()
        plan = _plan(count, samples)
        whole, drawn = len(plan.coalitions), 2 * plan.pairs
        coalitions[rows, :whole, :count] = plan.coalitions.to(counts.device)
        weights[rows, :whole] = plan.weights.to(counts.device)
        if drawn:
            coalitions[rows, whole : whole + drawn, :count] = _drawn(seeds[rows], count, plan)
            weights[rows, whole : whole + drawn] = plan.left / drawn
    return coalitions, weights


@dataclass(frozen=True)
class _Plan:
    """Coalitions taken whole with their weights, and pairs to draw for the mass that is left.

    Args:
        sizes: chances of the sizes 1 to n - 1 of a draw.
    """

    coalitions: Tensor
    weights: Tensor
    pairs: int
    left: float
    sizes: Tensor


@lru_cache(maxsize=256)
def _plan(count: int, samples: int) -> _Plan:
    if count < 2:
        return _Plan(
            torch.zeros(0, count, dtype=torch.bool), torch.zeros(0, dtype=torch.float64), 0, 0.0, torch.ones(0)
        )
    size = torch.arange(1, count, dtype=torch.float64)
    mass = 1 / (size * (count - size))
    mass = mass / mass.sum()
    levels: list[Tensor] = []
    weights: list[Tensor] = []
    budget, rest = samples, mass.clone()
    for level in range(1, count // 2 + 1):
        pair = sorted({level, count - level})
        needed = comb(count, level) * len(pair)
        if level == 1 and needed > samples:
            raise ValueError(f"{count} features need at least {needed} samples, not {samples}")
        share = float(rest[[k - 1 for k in pair]].sum() / rest.sum())
        if level > 1 and budget * share < needed * (1 - 1e-9):
            break
        for k in pair:
            levels.append(_of_size(count, k))
            weights.append(mass[k - 1].expand(len(levels[-1])) / len(levels[-1]))
            rest[k - 1] = 0
        budget -= needed
    left = float(rest.sum())
    empty = torch.zeros(0, count, dtype=torch.bool)
    sizes = rest / left if left else rest
    pairs = budget // 2 if left else 0
    whole = torch.cat(weights)
    return _Plan(torch.cat([empty, *levels]), whole / whole.sum() if left and not pairs else whole, pairs, left, sizes)


def _of_size(count: int, size: int) -> Tensor:
    """All coalitions of this many features `[coalition feature]`."""
    small = min(size, count - size)
    members = torch.combinations(torch.arange(count), small)
    found = torch.zeros(len(members), count, dtype=torch.bool).scatter_(1, members, value=True)
    return found if small == size else ~found


def _drawn(seeds: Tensor, count: int, plan: _Plan) -> Tensor:
    """Coalitions drawn from the sizes left, then their complements `[batch sample feature]`."""
    chance = hashed_uniform(seeds, plan.pairs, 1)
    bounds = plan.sizes.cumsum(0).to(chance.device)
    size = torch.searchsorted(bounds / bounds[-1], chance, right=True).clamp(max=count - 2) + 1
    orders = random_orders(seeds + 1, plan.pairs, torch.ones(len(seeds), count, dtype=torch.bool, device=seeds.device))
    first = torch.arange(count, device=seeds.device) < size
    half = torch.zeros_like(first).scatter_(2, orders, first)
    return torch.cat((half, ~half), dim=1)
