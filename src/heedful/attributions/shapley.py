"""Shapley values: the mean contribution of a token over all orders in which tokens can join, exact or by KernelSHAP.

The Shapley kernel gives size k of n features the mass (n - 1) / (k (n - k)), shared by its C(n, k) coalitions. Sizes k
and n - k form a level. KernelSHAP enumerates level 1, so that the solution is unique, and further levels while at least
as many samples would fall on them as they have coalitions. The mass of the other levels goes to coalitions sampled from
them, each with its complement, which reduces the variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import comb
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from heedful.attributions._coalition_process import (
    MIN_SAMPLES,
    CoalitionProcess,
    choose_coalitions,
    fit_process,
    is_reached,
    next_count,
)
from heedful.attributions.lime import solve_sum_constrained
from heedful.attributions.method import (
    MAX_SAMPLES,
    Background,
    Baseline,
    CheckedOptions,
    Feature,
    MethodTags,
    Output,
    divide_among_units,
    example_seeds,
    expand_to_units,
    feature_counts,
    feature_index,
    in_evaluation_mode,
    register,
    sampled_measures,
)
from heedful.attributions.perturbation import (
    CoalitionReader,
    explain_alone,
    outputs_without,
    sample_texts,
    score_features,
)
from heedful.option_bounds import Bounds
from heedful.seeding import random_permutations, sample_uniform
from heedful.types import Attribution, Batch, Model, UserError

MAX_EXACT_FEATURES = 12
"""Features whose 2^n coalitions `Shapley` enumerates."""
CANDIDATES = 512
"""Coalitions that the next ones to be read are chosen from, or twice as many as are chosen."""
GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly however many there are."""


@register("kernel-shap")
@dataclass(frozen=True)
class KernelShap(CheckedOptions):
    """Shapley values by a weighted regression on sampled coalitions (Lundberg & Lee 2017).

    Scores sum exactly to f(text) - f(all features removed), a constraint of the regression. With 2^n - 2 samples or
    more the values are exact.

    Args:
        n_samples: coalitions besides the empty and the full one, drawn from (seed, uid); a text that has more features
            than half as many has two per feature.
        feature: "word" keeps or removes all tokens of a word together and divides its score among them; so do
            "sentence" and "segment".
        special_tokens: remove and score special tokens too, each as its own feature.
        error: stop when no posterior error of a text is larger than this share of its largest absolute score, after at
            least five samples per feature and at most `n_samples`. Scores are then Shapley values of a Gaussian process
            through all outputs read so far, and coalitions are chosen by what they tell about them, which needs fewer
            than a regression. None takes all samples.
    """

    background: ClassVar[Background] = Background(
        formula="min over s of Σ_S w(S) (v(S) − v(∅) − Σ_{i ∈ S} s_i)²  subject to  Σ_i s_i = v(all) − v(∅),\n"
        "w(S) = (n − 1) / (C(n, |S|) |S| (n − |S|))",
        avoid="with few samples on long texts: scores then change with the seed; see `error`",
        references=("lundberg-2017",),
        adds_up=True,
    )

    word_options: ClassVar[Mapping[str, object]] = {"n_samples": 200, "error": 0.2}

    revision: ClassVar[int] = 4

    n_samples: Annotated[int, Bounds(1, MAX_SAMPLES)] = 1000
    baselines: Baseline = "pad"
    seed: int = 0
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = False
    error: Annotated[float, Bounds(above=0, below=1)] | None = None

    @property
    def tags(self) -> MethodTags:
        """Its samples are what comprehensiveness and sufficiency read: texts without, or with only, some features."""
        return MethodTags(optimizes=sampled_measures(self.baselines))

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed values in float64; with `error` a `SampledAttribution`."""
        index = feature_index(batch, self.feature, special_tokens=self.special_tokens)
        if self.error is not None:
            sample = partial(self._sample_values, self.error)
            return sample_texts(sample, model, batch, target, index, self.baselines, self.output)
        counts = feature_counts(index)
        needed = torch.where(counts < 31, (1 << counts.clamp(max=31)) - 2, 2 * counts).minimum(2 * counts)
        if bool((needed > self.n_samples).any()):
            return explain_alone(self, model, batch, target, needed.clamp(min=self.n_samples))

        def solve(rows: Tensor, texts: Batch, features: Tensor) -> Tensor:
            seeds = example_seeds("kernel", self.seed, texts)
            coalitions, weights = kernel_coalitions(seeds, counts[rows], self.n_samples)
            present = torch.arange(coalitions.shape[2], device=features.device) < counts[rows].unsqueeze(1)
            ends = torch.stack((torch.zeros_like(present), present), dim=1)
            removed = expand_to_units(~torch.cat((ends, coalitions), dim=1), features)
            values = outputs_without(model, texts, target[rows], removed, self.baselines, self.output)
            weighted = coalitions.double() * weights.unsqueeze(-1)
            gram = weighted.transpose(1, 2) @ coalitions.double()
            cross = torch.einsum("bsf,bs->bf", weighted, values[:, 2:] - values[:, :1])
            return solve_sum_constrained(gram, cross, values[:, 1] - values[:, 0], present)

        scores = score_features(solve, batch, index, self.n_samples)
        return Attribution(divide_among_units(scores, index), index >= 0)

    def _sample_values(
        self, error: float, read: CoalitionReader, text: Batch, index: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        seeds = example_seeds("kernel", self.seed, text)
        features = int(feature_counts(index))
        return sample_shapley_values(read, seeds, features, max(self.n_samples, 2 * features), error)


def sample_shapley_values(
    read: CoalitionReader, seeds: Tensor, features: int, samples: int, error: float
) -> tuple[Tensor, Tensor, int]:
    """Shapley values `[feature]`, their posterior errors, and how many outputs were read for them.

    The values are those of a `CoalitionProcess`. They are exact, with error 0, when all coalitions have been read. The
    empty and the full coalition, single features and their complements are read first; then those that the process
    chooses, until it has `MIN_SAMPLES` per feature, and more of them until the errors are small enough.

    Args:
        seeds: of the text `[1]`.
        samples: outputs besides those of the empty and the full coalition, at most.
    """
    exact = features <= MAX_EXACT_FEATURES
    # Longer than what is read, so that there is something to choose from.
    others = paired_coalitions(seeds, features, 1 << features if exact else 2 * samples + CANDIDATES)
    most = min(samples + 2, len(others))
    least = min(most, MIN_SAMPLES * features)
    start = min(most, 2 * features + 2)
    known, others = others[:start], others[start:]
    outputs = read(known)
    while True:
        count = least
        if exact and len(known) == 1 << features:
            zeros = torch.zeros(features, dtype=torch.float64, device=known.device)
            return _exact_shapley_values(known, outputs), zeros, len(known)
        process = _fit_outputs(known, outputs)
        if len(known) >= least:
            scores, errors = process.shapley_values()
            # Both ends are known up to the jitter: the sum is exact.
            scores = scores + (outputs[1] - outputs[0] - scores.sum()) / features
            if len(known) == most or is_reached(scores, errors, error):
                return scores, errors, len(known)
            count = next_count(len(known), most)
        count -= len(known)
        candidates = others[: max(CANDIDATES, 2 * count)]
        chosen = choose_coalitions(known, candidates, process.relevance, count)
        left = torch.ones(len(others), dtype=torch.bool, device=known.device).scatter_(0, chosen, value=False)
        outputs = torch.cat((outputs, read(candidates[chosen])))
        known, others = torch.cat((known, candidates[chosen])), others[left]


def _exact_shapley_values(coalitions: Tensor, outputs: Tensor) -> Tensor:
    """From the outputs of all coalitions, in any order."""
    features = coalitions.shape[1]
    numbers = (coalitions.long() << torch.arange(features, device=coalitions.device)).sum(1)
    weights = marginal_weights(
        all_coalitions(features, coalitions.device), torch.tensor([features], device=coalitions.device)
    )
    return weights[0] @ torch.empty_like(outputs).scatter(0, numbers, outputs)


def _fit_outputs(coalitions: Tensor, outputs: Tensor) -> CoalitionProcess:
    """A process through the outputs, of the empty and the full coalition first."""
    sizes, features = coalitions.sum(1), coalitions.shape[1]
    single, without = ((sizes == size) for size in (1, features - 1))
    changes = torch.cat((outputs[single] - outputs[0], outputs[1] - outputs[without]))
    which = torch.cat((coalitions[single].long().argmax(1), (~coalitions[without]).long().argmax(1)))
    effects, counts = (outputs.new_zeros(features) for _ in range(2))
    effects.index_add_(0, which, changes.square())
    counts.index_add_(0, which, torch.ones_like(changes))
    effects = (effects / counts.clamp(min=1)).sqrt()
    # A feature that was not removed or kept alone is as important as the others on average.
    effects = effects.where(counts > 0, effects[counts > 0].mean() if bool(counts.any()) else 1.0)
    # Deviations from the mean of both ends: the prior is centered at 0.
    return fit_process(coalitions, outputs - outputs[:2].mean(), effects)


def paired_coalitions(seeds: Tensor, count: int, samples: int) -> Tensor:
    """Different coalitions `[sample feature]`: the empty and the full one, then `samples` in pairs of complements.

    First come the single features in random order, then coalitions of two and more features, whose sizes take turns by
    their mass in the Shapley kernel. A longer sequence begins as a shorter one.

    Args:
        seeds: of one text `[1]`.
        count: its features.
    """
    whole = torch.ones(1, count, dtype=torch.bool, device=seeds.device)
    singles = torch.eye(count, dtype=torch.bool, device=seeds.device)[random_permutations(seeds, 1, whole)[0, 0]]
    sizes = torch.arange(2, max(2, count // 2 + 1), device=seeds.device)
    sizes_drawn = [whole[:0], singles] if count > 1 else [whole[:0]]
    if len(sizes):
        mass = 1 / (sizes * (count - sizes)).double()
        draw = _shuffle_coalitions if count <= MAX_EXACT_FEATURES else _draw_coalitions
        sizes_drawn.append(draw(seeds + 1, count, mass / mass.sum(), samples))
    pairs = _with_complements(torch.cat(sizes_drawn))[: samples // 2 * 2]
    return torch.cat((torch.zeros_like(whole), whole, pairs))


def _shuffle_coalitions(seeds: Tensor, count: int, mass: Tensor, samples: int) -> Tensor:
    """All coalitions of two to half of the features; the j-th of a size comes at the time j / mass of the size."""
    drawn, times = [], []
    for size, share in enumerate(mass.tolist(), start=2):
        of_size = _coalitions_of_size(count, size).to(seeds.device)
        order = random_permutations(seeds + size, 1, torch.ones_like(of_size[:1, :1]).expand(1, len(of_size)))[0, 0]
        drawn.append(of_size[order])
        times.append((torch.arange(len(of_size), device=seeds.device) + 0.5) / share)
    return torch.cat(drawn)[torch.cat(times).argsort(stable=True)]


def _draw_coalitions(seeds: Tensor, count: int, mass: Tensor, samples: int) -> Tensor:
    """As many random coalitions as samples, twice the pairs that are wanted, because some come again."""
    step = sample_uniform(seeds, 1, 1)[0, 0] + torch.arange(samples, device=seeds.device) * GOLDEN_RATIO
    size = 2 + torch.searchsorted(mass.cumsum(0), step % 1, right=True).clamp(max=len(mass) - 1)
    orders = random_permutations(seeds, samples, torch.ones(1, count, dtype=torch.bool, device=seeds.device))[0]
    first = torch.arange(count, device=seeds.device) < size.unsqueeze(1)
    return torch.zeros_like(first).scatter_(1, orders, first)


def _with_complements(coalitions: Tensor) -> Tensor:
    """Each coalition followed by its complement, without those that have come before."""
    seen: set[bytes] = set()
    rows = []
    for row, (coalition, other) in enumerate(zip(coalitions.cpu().numpy(), (~coalitions).cpu().numpy(), strict=True)):
        if coalition.tobytes() not in seen:
            seen |= {coalition.tobytes(), other.tobytes()}
            rows.append(row)
    kept = coalitions[torch.tensor(rows, dtype=torch.long, device=coalitions.device)]
    return torch.stack((kept, ~kept), 1).flatten(0, 1)


@register("shapley")
@dataclass(frozen=True)
class Shapley(CheckedOptions):
    """Exact Shapley values from all 2^n coalitions of up to 12 features.

    phi_i = sum over coalitions S without i of |S|! (n - |S| - 1)! / n! (v(S and i) - v(S)). They sum to f(text) -
    f(all features removed).

    Args:
        feature: "word" keeps or removes all tokens of a word together and divides its score among them; so do
            "sentence" and "segment".
        special_tokens: remove and score special tokens too, each as its own feature.
    """

    background: ClassVar[Background] = Background(
        formula="s_i = Σ_{S without i} |S|! (n − |S| − 1)! / n! · (v(S ∪ {i}) − v(S))",
        avoid="on texts with more than 12 features, which it refuses: use kernel-shap",
        references=("shapley-1953", "lundberg-2017"),
        adds_up=True,
    )

    baselines: Baseline = "pad"
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = False

    @property
    def tags(self) -> MethodTags:
        """Its samples are what comprehensiveness and sufficiency read: texts without, or with only, some features."""
        return MethodTags(optimizes=sampled_measures(self.baselines))

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

        def solve(rows: Tensor, texts: Batch, features: Tensor) -> Tensor:
            removed = expand_to_units(~coalitions.expand(len(rows), -1, -1), features)
            values = outputs_without(model, texts, target[rows], removed, self.baselines, self.output)
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
    unit = torch.arange(width, device=counts.device)
    coalitions = (unit < counts.unsqueeze(1)).unsqueeze(1).repeat(1, samples, 1)
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


@lru_cache(maxsize=64)
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
    all_features = torch.ones(len(seeds), count, dtype=torch.bool, device=seeds.device)
    orders = random_permutations(seeds + 1, pairs, all_features)
    first = torch.arange(count, device=seeds.device) < size
    half = torch.zeros_like(first).scatter_(2, orders, first)
    return torch.cat((half, ~half), dim=1)
