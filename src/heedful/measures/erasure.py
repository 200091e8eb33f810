"""Faithfulness by erasure: does the output follow the units that an explanation ranks highest?

`ErasureOutputs` holds the outputs of a model on texts whose units were removed in the order of their scores, highest
first, ties in random order. Each `FaithfulnessMeasure` computes one number per text from it. Undefined values are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from heedful.measures.rank_correlation import spearman
from heedful.seeding import random_permutations, sample_uniform

Direction = Literal["higher", "lower"]

AOPC_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the units that ERASER removes or keeps (DeYoung et al. 2020)."""
MAX_SIZES = 5
"""A text of up to twice as many units has every size up to half of it."""
LONG_SIZES = 3
"""So many sizes are removed from a longer text. Outputs at neighboring sizes say nearly the same: on film reviews
(MiniLM, 28 texts) the mean of a gain over three sizes has as many standard errors as that over five, within 5 %."""
MAX_ENUMERATED_UNITS = 10
"""A text of so many units has 1024 removals, which can all be made."""


@dataclass(frozen=True)
class ErasureOutputs:
    """Outputs for the explained class, in float64; a row is a text under one explanation.

    Args:
        scores: `[row unit]`, positive for evidence for the output.
        mask: scored units `[row unit]`.
        full_output: output of the unchanged text `[row]`.
        fractions: share of the scored units removed at each step `[row step]`, increasing from 0 to 1.
        deletion_outputs: output without the highest-ranked share `[row step]`.
        insertion_outputs: output with only the highest-ranked share `[row step]`.
        decision_changed: whether the predicted class differs without the highest-ranked share `[row step]`; None for
            regression.
        bins: how many units each bin holds `[row bin]`, increasing; 0 where a text has fewer bins than others.
        comprehensiveness_outputs: output without the highest-ranked units of each bin `[row bin]`.
        sufficiency_outputs: output with only the highest-ranked units of each bin `[row bin]`.
        removal_masks: units removed together at random `[row sample unit]`.
        removal_outputs: output without these `[row sample]`.
        removal_counts: how many were drawn `[row]`, where they are pairs of complements and texts need different
            numbers of them: the others remove nothing. None where all were drawn one by one.
    """

    scores: Tensor
    mask: Tensor
    full_output: Tensor
    fractions: Tensor
    deletion_outputs: Tensor
    insertion_outputs: Tensor
    decision_changed: Tensor | None
    bins: Tensor
    comprehensiveness_outputs: Tensor
    sufficiency_outputs: Tensor
    removal_masks: Tensor
    removal_outputs: Tensor
    removal_counts: Tensor | None = None

    @property
    def comprehensiveness(self) -> Tensor:
        """Mean drop of the output without the highest-ranked units of each bin `[row]`."""
        return self._mean_drop(self.comprehensiveness_outputs)

    @property
    def sufficiency(self) -> Tensor:
        """Mean drop of the output with only the highest-ranked units of each bin `[row]`."""
        return self._mean_drop(self.sufficiency_outputs)

    def _mean_drop(self, outputs: Tensor) -> Tensor:
        """The mean over bins `[row]` of how far the output falls; 0 for a text without units."""
        drops = (self.full_output.unsqueeze(1) - outputs).masked_fill(self.bins == 0, 0.0)
        return drops.sum(1) / (self.bins > 0).sum(1).clamp(min=1)

    @property
    def flip(self) -> Tensor:
        """Least share of the units whose removal changes the decision `[row]`; 1 if none does, NaN for regression."""
        if self.decision_changed is None:
            return torch.full_like(self.full_output, math.nan)
        return self.fractions.masked_fill(~self.decision_changed, 1.0).amin(-1)

    @property
    def removal_sums(self) -> Tensor:
        """The sum of the scores of the units removed together `[row sample]`."""
        return torch.einsum("ru,rsu->rs", self.scores.double(), self.removal_masks.double())

    @property
    def removal_changes(self) -> Tensor:
        """Output of the unchanged text minus the output without them `[row sample]`."""
        return self.full_output.unsqueeze(1) - self.removal_outputs


@dataclass(frozen=True)
class FaithfulnessMeasure:
    """One number per row of erasure outputs.

    Args:
        direction: which values are better.
        description: the measure in one sentence.
        compute: the values `[row]`; NaN where undefined.
    """

    name: str
    direction: Direction
    description: str
    compute: Callable[[ErasureOutputs], Tensor]

    @property
    def sign(self) -> int:
        """1 where higher is better, -1 where lower is."""
        return 1 if self.direction == "higher" else -1


def score_ranks(scores: Tensor, mask: Tensor, seeds: Tensor) -> Tensor:
    """The rank of each scored unit `[row unit]`, 0 for the highest score; units off the mask rank last.

    Ties are broken at random from the row's seed, so that position in the text gives no advantage.

    >>> scores, mask = torch.tensor([[0.1, 0.5, -2.0, 9.0]]), torch.tensor([[True, True, True, False]])
    >>> score_ranks(scores, mask, torch.tensor([3]))
    tensor([[1, 0, 2, 3]])
    """
    shuffled = random_permutations(seeds, 1, mask)[:, 0]
    values = scores.double().masked_fill(~mask, -math.inf).gather(1, shuffled)
    order = shuffled.gather(1, values.argsort(dim=1, descending=True, stable=True))
    ranks = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks)


def bin_counts(units: Tensor, bins: Sequence[float] = AOPC_FRACTIONS) -> Tensor:
    """How many units each bin holds `[row bin]`: `ceil(share * units)`.

    >>> bin_counts(torch.tensor([3, 40])).tolist()
    [[1, 1, 1, 1, 2], [1, 2, 4, 8, 20]]
    """
    exact = units.double().unsqueeze(1) * torch.tensor(bins, dtype=torch.float64, device=units.device)
    # 0.07 * 100 is slightly above 7 in binary: that must not become 8.
    return (exact - 1e-9).ceil().long()


def removal_sizes(units: Tensor) -> Tensor:
    """How many units are removed, or kept, at each of the sizes over which an audit averages `[row size]`.

    Every number from 1 to half of the units (rounded up); if these are more than `MAX_SIZES`, the first, the middle and
    the last of them. All have the same weight, so that their mean is the area under the curve of removals: ERASER's
    bins count the first of ten units three times. What is left of a text without more than half of its units is hardly
    a text. Rows of fewer sizes begin with 0.

    >>> removal_sizes(torch.tensor([3, 10, 40])).tolist()
    [[0, 0, 0, 1, 2], [1, 2, 3, 4, 5], [0, 0, 1, 10, 20]]
    """
    half, places = ((units + 1) // 2).unsqueeze(1), torch.arange(MAX_SIZES, device=units.device)
    step = places - (MAX_SIZES - LONG_SIZES)
    # Integer arithmetic, halves down, as in `step_counts`.
    spread = 1 + (2 * step * (half - 1) + LONG_SIZES - 2) // (2 * (LONG_SIZES - 1))
    spread = spread.masked_fill(step < 0, 0)
    return torch.where(half > MAX_SIZES, spread, (half - MAX_SIZES + 1 + places).clamp(min=0))


def step_counts(units: Tensor, steps: int) -> Tensor:
    """How many units are removed at each of the steps 0 ... `steps` `[row step]`: round(j * units / steps).

    >>> step_counts(torch.tensor([2, 8]), 4).tolist()
    [[0, 0, 1, 1, 2], [0, 2, 4, 6, 8]]
    """
    numbers = torch.arange(steps + 1, device=units.device)
    # Integer arithmetic, halves down: no rounding that differs between machines.
    return (2 * numbers * units.unsqueeze(1) + steps - 1) // (2 * steps)


def monotonicity(outputs: ErasureOutputs) -> Tensor:
    """Spearman's correlation between the drop of the output at each deletion step and the mean score of its units.

    Steps that remove no unit are skipped. Drops are ranked to five decimals and mean scores to nine digits; closer
    values are tied. NaN for fewer than two steps, constant scores or drops, or a score that is not finite. `[row]`,
    from -1 to 1.
    """
    units = outputs.mask.sum(1, keepdim=True)
    counts = (outputs.fractions * units).round().long()
    removed = counts.diff(dim=1)
    not_finite = ~outputs.scores.isfinite() & outputs.mask
    scores = outputs.scores.double().masked_fill(not_finite, 0.0).masked_fill(~outputs.mask, -math.inf)
    ordered = scores.sort(1, descending=True).values
    totals = torch.nn.functional.pad(ordered.masked_fill(ordered.isinf(), 0.0).cumsum(1), (1, 0))
    means = totals.gather(1, counts).diff(dim=1) / removed.clamp(min=1)
    means = means / means.abs().amax(1, keepdim=True).clamp(min=torch.finfo(means.dtype).tiny)
    drops = -outputs.deletion_outputs.diff(dim=1)
    correlation = spearman((drops * 1e5).round(), (means * 1e9).round(), removed > 0).value
    return correlation.masked_fill(not_finite.any(1), math.nan)


def infidelity(outputs: ErasureOutputs) -> Tensor:
    """`mean (sum - change)²` over random removals `[row]` (Yeh et al. 2019), as `captum.metrics.infidelity` gives it.

    The sum of the scores of the removed units is compared with the change of the output, so scores on another scale
    than the output (attention, for instance) have a large infidelity, however well they rank: see
    `normalized_infidelity`.
    """
    squares = (outputs.removal_sums - outputs.removal_changes).square().sum(1)
    # Where texts have different numbers of removals, those beyond a text's own remove and change nothing.
    return squares / (outputs.removal_sums.shape[1] if outputs.removal_counts is None else outputs.removal_counts)


def normalized_infidelity(sums: Tensor, changes: Tensor) -> Tensor:
    """Infidelity on the best scale, relative to scores of zero, `[...]`, from 0 to 1.

    `min over b >= 0 of mean (b sum - change)² / mean change²`: methods differ in scale and attention has none, so the
    scale is fitted, but not the sign. captum's `normalize=True` fits the scale as well, but may turn the sign, and does
    not divide. NaN where no output changes.

    Args:
        sums: the sum of the scores of the units removed together `[... sample]`.
        changes: output of the unchanged text minus the output without them `[... sample]`.

    >>> normalized_infidelity(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), torch.tensor([[5.0, 10.0], [5.0, 10.0]]))
    tensor([0., 1.])
    """
    size, along = changes.square().sum(-1), (sums * changes).sum(-1).clamp(min=0.0)
    explained = along.square() / sums.square().sum(-1).clamp(min=torch.finfo(sums.dtype).tiny)
    return torch.where(size > 0, (1 - explained / size).clamp(0.0, 1.0), math.nan)


def _normalized_infidelity(outputs: ErasureOutputs) -> Tensor:
    return normalized_infidelity(outputs.removal_sums, outputs.removal_changes)


def removal_pairs(units: Tensor) -> Tensor:
    """Pairs of complementary removals that a text of so many units has, where all can be made; else infinity.

    >>> removal_pairs(torch.tensor([1, 10, 11])).tolist()
    [1.0, 512.0, inf]
    """
    return torch.where(units > MAX_ENUMERATED_UNITS, math.inf, torch.exp2((units.double() - 1).clamp(0.0)))


def paired_removals(seeds: Tensor, mask: Tensor, first: int, count: int) -> Tensor:
    """Random removals `[row sample unit]`, each unit with probability one half, each followed by its complement.

    A text of few units has all its removals in random order, none of them twice, and nothing is removed after the last.

    Args:
        seeds: `[row]`.
        mask: units that may be removed `[row unit]`.
        first: number of the first removal of the sequence, even like the count.
    """
    units, pairs = mask.sum(1), removal_pairs(mask.sum(1))
    half = sample_uniform(seeds, count // 2, mask.shape[1], first // 2) < 0.5
    most = 1 << (MAX_ENUMERATED_UNITS - 1)
    numbers = torch.arange(most, device=mask.device)
    orders = random_permutations(seeds, 1, numbers < pairs.unsqueeze(1))[:, 0, first // 2 : (first + count) // 2]
    bit = (mask.cumsum(1) - 1).clamp(0, MAX_ENUMERATED_UNITS)
    listed = torch.zeros_like(half)
    listed[:, : orders.shape[1]] = ((orders.unsqueeze(2) >> bit.unsqueeze(1)) & 1).bool()
    half = torch.where((units > MAX_ENUMERATED_UNITS)[:, None, None], half, listed)
    exists = torch.arange(first // 2, (first + count) // 2, device=mask.device) < pairs.unsqueeze(1)
    possible = mask.unsqueeze(1) & exists.unsqueeze(2)
    return torch.stack((half & possible, ~half & possible), 2).flatten(1, 2)


def normalized_infidelity_error(outputs: ErasureOutputs) -> Tensor:
    """Standard error of the normalized infidelity `[row]` from pairs of complementary removals; NaN where undefined.

    Normalized infidelity is 1 - max(0, c)², with c the cosine between sums of scores and changes of the output. The
    variance s² of c is that of the jackknife over pairs: with c_j the cosine without pair j of m, (m - 1) / m times the
    sum over j of (c_j - mean)², times 1 - m / M where the text has M pairs: 0 when all have been drawn. Infinity for
    one pair. The square of a normal c has the variance 4 c² s² + 2 s⁴, whose second term counts where c is nearly 0.
    """
    if outputs.removal_counts is None:
        raise ValueError("removals that are not pairs of complements have no standard error")
    drawn, pairs = outputs.removal_counts.double() / 2, removal_pairs(outputs.mask.sum(1))
    sums, changes = (each.reshape(len(each), -1, 2) for each in (outputs.removal_sums, outputs.removal_changes))
    products = torch.stack([(one * other).sum(2) for one, other in ((sums, sums), (sums, changes), (changes, changes))])
    totals = products.sum(2, keepdim=True)
    residual, along, size = totals - products
    # What is left of a sum after all of it is taken away is rounding.
    residual, size = (
        torch.where(left > 1e-12 * whole, left, 0.0) for left, whole in ((residual, totals[0]), (size, totals[2]))
    )
    cosines = along / (residual * size).sqrt()
    cosines = torch.where(totals[0] > 0, cosines, 0.0)
    is_drawn = torch.arange(cosines.shape[1], device=drawn.device) < drawn.unsqueeze(1)
    mean = cosines.masked_fill(~is_drawn, 0.0).sum(1) / drawn
    squares = (cosines - mean.unsqueeze(1)).square().masked_fill(~is_drawn, 0.0).sum(1)
    variance = (drawn - 1) / drawn * squares * (1 - drawn / pairs).clamp(0.0)
    cosine = (
        totals[1, :, 0].clamp(min=0.0)
        / (totals[0] * totals[2])[:, 0].clamp(min=torch.finfo(residual.dtype).tiny).sqrt()
    )
    error = (4 * cosine.square() * variance + 2 * variance.square()).sqrt()
    error = torch.where((drawn > 1) & error.isfinite(), error, math.inf).masked_fill(drawn >= pairs, 0.0)
    return torch.where(totals[2, :, 0] > 0, error, math.nan)


FAITHFULNESS_MEASURES: Mapping[str, FaithfulnessMeasure] = {
    measure.name: measure
    for measure in (
        FaithfulnessMeasure(
            "aopc_comprehensiveness",
            "higher",
            "Mean drop of the output when the top 1, 5, 10, 20 and 50 % of the units are removed.",
            lambda outputs: outputs.comprehensiveness,
        ),
        FaithfulnessMeasure(
            "aopc_sufficiency",
            "lower",
            "Mean drop of the output when only the top 1, 5, 10, 20 and 50 % of the units are kept.",
            lambda outputs: outputs.sufficiency,
        ),
        FaithfulnessMeasure(
            "decision_flip",
            "lower",
            "Share of the units, highest first, that must be removed to change the decision; 1 if it never changes.",
            lambda outputs: outputs.flip,
        ),
        FaithfulnessMeasure(
            "deletion_auc",
            "lower",
            "Mean output while the units are removed one by one, highest first.",
            lambda outputs: torch.trapezoid(outputs.deletion_outputs, outputs.fractions),
        ),
        FaithfulnessMeasure(
            "insertion_auc",
            "higher",
            "Mean output while the units are added to an empty text one by one, highest first.",
            lambda outputs: torch.trapezoid(outputs.insertion_outputs, outputs.fractions),
        ),
        FaithfulnessMeasure(
            "monotonicity",
            "higher",
            "Rank correlation between the scores of units and the drop of the output when they are removed.",
            monotonicity,
        ),
        FaithfulnessMeasure(
            "normalized_infidelity",
            "lower",
            "Share of the output changes under random removals that the scores of the removed units do not explain.",
            _normalized_infidelity,
        ),
    )
}
"""Every measure that judges faithfulness, by name; the scale of scores plays no part in any."""

INFIDELITY = FaithfulnessMeasure(
    "infidelity",
    "lower",
    "Mean squared difference between the change of the output under random removals and the scores of the removed "
    "units: only for scores on the scale of the output.",
    infidelity,
)
"""Reported beside the others as peers define it, but without a verdict: it depends on the scale of scores."""
