"""Shapley values: the mean contribution of a token over all orders in which tokens can join, exact or by KernelSHAP.

The Shapley kernel gives size k of n features the mass (n - 1) / (k (n - k)), shared by its C(n, k) coalitions. Sizes k
and n - k form a level. KernelSHAP enumerates level 1, so that the solution is unique, and further levels while at least
as many samples would fall on them as they have coalitions. The mass of the other levels goes to coalitions sampled from
them, each with its complement, which reduces the variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from heedful.attributions._base import (
    Baseline,
    CheckedOptions,
    Feature,
    Output,
    divide_among_units,
    example_seeds,
    expand_to_units,
    feature_counts,
    feature_index,
    in_evaluation_mode,
)
from heedful.attributions.lime import solve_sum_constrained
from heedful.attributions.perturbation import outputs_without, score_features
from heedful.seeding import random_permutations, sample_uniform
from heedful.types import Attribution, Batch, Model, UserError

MAX_EXACT_FEATURES = 12
"""Features whose 2^n coalitions `Shapley` enumerates."""


@dataclass(frozen=True)
class KernelShap(CheckedOptions):
    """Shapley values by a weighted regression on sampled coalitions (Lundberg & Lee 2017).

    Scores sum exactly to f(text) - f(all features removed), a constraint of the regression. With 2^n - 2 samples or
    more the values are exact.

    Args:
        n_samples: coalitions besides the empty and the full one, at least two per feature; drawn from (seed, uid).
        feature: "word" keeps or removes all tokens of a word together and divides its score among them.
        special_tokens: remove and score special tokens too, each as its own feature.
    """

    n_samples: int = 1000
    baselines: Baseline = "pad"
    seed: int = 0
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed values in float64."""
        index = feature_index(batch, self.feature, special_tokens=self.special_tokens)
        counts = feature_counts(index)
        needed = torch.where(counts < 31, (1 << counts.clamp(max=31)) - 2, 2 * counts).minimum(2 * counts)
        if bool((needed > self.n_samples).any()):
            row = int(needed.argmax())
            raise UserError(
                f"example {batch.uids[row]!r} has {int(counts[row])} features, too many for "
                f"KernelShap(n_samples={self.n_samples}): give n_samples={int(needed[row])} or more"
            )

        def solve(rows: Tensor, part: Batch, own: Tensor) -> Tensor:
            seeds = example_seeds("kernel", self.seed, part)
            coalitions, weights = kernel_coalitions(seeds, counts[rows], self.n_samples)
            present = torch.arange(coalitions.shape[2], device=own.device) < counts[rows].unsqueeze(1)
            ends = torch.stack((torch.zeros_like(present), present), dim=1)
            removed = expand_to_units(~torch.cat((ends, coalitions), dim=1), own)
            values = outputs_without(model, part, target[rows], removed, self.baselines, self.output)
            weighted = coalitions.double() * weights.unsqueeze(-1)
            gram = weighted.transpose(1, 2) @ coalitions.double()
            cross = torch.einsum("bsf,bs->bf", weighted, values[:, 2:] - values[:, :1])
            return solve_sum_constrained(gram, cross, values[:, 1] - values[:, 0], present)

        scores = score_features(solve, batch, index, self.n_samples)
        return Attribution(divide_among_units(scores, index), index >= 0)


@dataclass(frozen=True)
class Shapley(CheckedOptions):
    """Exact Shapley values from all 2^n coalitions of up to 12 features.

    phi_i = sum over coalitions S without i of |S|! (n - |S| - 1)! / n! (v(S and i) - v(S)). They sum to f(text) -
    f(all features removed).

    Args:
        feature: "word" keeps or removes all tokens of a word together and divides its score among them.
        special_tokens: remove and score special tokens too, each as its own feature.
    """

    baselines: Baseline = "pad"
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed values in float64."""
        index = feature_index(batch, self.feature, special_tokens=self.special_tokens)
        counts = feature_counts(index)
        if bool((counts > MAX_EXACT_FEATURES).any()):
            row = int(counts.argmax())
            raise UserError(
                f"example {batch.uids[row]!r} has {int(counts[row])} features, exact Shapley values allow at most "
                f"{MAX_EXACT_FEATURES}: use KernelShap, or leave out longer texts"
            )
        width = max(1, int(counts.max()))
        coalitions = all_coalitions(width, index.device)

        def solve(rows: Tensor, part: Batch, own: Tensor) -> Tensor:
            removed = expand_to_units(~coalitions.expand(len(rows), -1, -1), own)
            values = outputs_without(model, part, target[rows], removed, self.baselines, self.output)
            return (marginal_weights(coalitions, counts[rows]) @ values.unsqueeze(-1)).squeeze(-1)

        scores = score_features(solve, batch, index, 1 << width)
        return Attribution(divide_among_units(scores, index), index >= 0)


def all_coalitions(count: int, device: torch.device) -> Tensor:
    """All coalitions of `count` features `[2^count feature]`: the bits of their numbers, lowest first."""
    numbers = torch.arange(1 << count, device=device).unsqueeze(1)
    return (numbers >> torch.arange(count, device=device)).bitwise_and_(1).bool()


def marginal_weights(coalitions: Tensor, counts: Tensor) -> Tensor:
    """The matrix `[batch feature coalition]` that maps values of coalitions to Shapley values.

    Entry (i, S) is (|S| - 1)! (n - |S|)! / n! where i is in S and -|S|! (n - |S| - 1)! / n! where it is not; 0 for
    features and coalitions beyond the n features of a row.
    """
    width = coalitions.shape[1]
    factorial = torch.ones(width + 1, dtype=torch.float64, device=coalitions.device)
    factorial[1:] = torch.arange(1, width + 1, dtype=torch.float64, device=coalitions.device).cumprod(0)
    n = counts[:, None, None]
    member = coalitions.t().unsqueeze(0)
    before = coalitions.sum(1) - member.long()
    after = n - 1 - before
    valid = (torch.arange(1 << width, device=n.device) < (1 << n)) & (torch.arange(width, device=n.device)[:, None] < n)
    weight = factorial[before] * factorial[after.clamp(min=0)] / factorial[n]
    return torch.where(valid, torch.where(member, weight, -weight), 0.0)


def kernel_coalitions(seeds: Tensor, counts: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Coalitions `[batch sample feature]`, neither empty nor full, and their weights `[batch sample]`.

    A sample that is not needed keeps all features and has weight 0. The weights of a row with two or more features sum
    to 1, also where no samples are left for the inner levels.

    Args:
        seeds: `[batch]`.
        counts: features of each row `[batch]`.
    """
    width = max(1, int(counts.max()))
    place = torch.arange(width, device=counts.device)
    coalitions = (place < counts.unsqueeze(1)).unsqueeze(1).repeat(1, samples, 1)
    weights = torch.zeros(len(counts), samples, dtype=torch.float64, device=counts.device)
    for count in sorted(set(counts.tolist()) - {0, 1}):
        rows = (counts == count).nonzero().flatten()
        enumerated, own_weights, pairs, rest = _plan_sampling(count, samples)
        end = len(enumerated)
        coalitions[rows, :end, :count] = enumerated.to(counts.device)
        weights[rows, :end] = own_weights.to(counts.device)
        if pairs:
            drawn = slice(end, end + 2 * pairs)
            coalitions[rows, drawn, :count] = _sample_coalitions(seeds[rows], pairs, rest.to(seeds.device))
            weights[rows, drawn] = float(rest.sum()) / (2 * pairs)
    return coalitions, weights


@lru_cache(maxsize=256)
def _plan_sampling(count: int, samples: int) -> tuple[Tensor, Tensor, int, Tensor]:
    """Enumerated coalitions, their weights, the pairs to sample, and the mass left for sizes 1 to count - 1."""
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
            levels.append(_coalitions_of_size(count, k))
            weights.append(mass[k - 1].expand(len(levels[-1])) / len(levels[-1]))
            rest[k - 1] = 0
        budget -= needed
    pairs = budget // 2 if bool(rest.any()) else 0
    whole = torch.cat(weights)
    return torch.cat(levels), whole if pairs else whole / whole.sum(), pairs, rest


def _coalitions_of_size(count: int, size: int) -> Tensor:
    """All coalitions of this size `[coalition feature]`."""
    small = min(size, count - size)
    members = torch.combinations(torch.arange(count), small)
    coalitions = torch.zeros(len(members), count, dtype=torch.bool).scatter_(1, members, value=True)
    return coalitions if small == size else ~coalitions


def _sample_coalitions(seeds: Tensor, pairs: int, mass: Tensor) -> Tensor:
    """Coalitions sampled by the mass of their sizes `[size]`, then their complements `[batch sample feature]`."""
    bounds = mass.cumsum(0)
    count = len(mass) + 1
    size = 1 + torch.searchsorted(bounds / bounds[-1], sample_uniform(seeds, pairs, 1), right=True).clamp(max=count - 2)
    every = torch.ones(len(seeds), count, dtype=torch.bool, device=seeds.device)
    orders = random_permutations(seeds + 1, pairs, every)
    first = torch.arange(count, device=seeds.device) < size
    half = torch.zeros_like(first).scatter_(2, orders, first)
    return torch.cat((half, ~half), dim=1)
