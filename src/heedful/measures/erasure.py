"""Faithfulness: does the output follow the units that an explanation names? Pure functions from outputs to numbers.

`Evidence` is what a model said about texts with units taken away in the order of their scores, highest first, ties in
the order of a lot. Each `Measure` makes one number per text of it and says which direction is better, in which range
it lies (of a probability) and what it means; `MEASURES` is the index. What is undefined is NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from heedful.measures.rank_correlation import spearman
from heedful.seeding import random_permutations

Direction = Literal["higher", "lower"]

AOPC_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the units that ERASER takes away or leaves (DeYoung et al. 2020)."""


@dataclass(frozen=True)
class ErasureOutputs:
    """Outputs of one explained class, in float64; a row is a text under one explanation.

    Args:
        scores: `[row unit]`, positive for what speaks for the output.
        mask: scored units `[row unit]`.
        whole: output of the whole text `[row]`.
        shares: share of the scored units taken at each step `[row step]`, from 0 to 1, never falling.
        deleted: output without the highest share `[row step]`.
        inserted: output with nothing but the highest share `[row step]`.
        flipped: whether the decision without the highest share is another one `[row step]`; None where the output is a
            number and nothing is decided.
        without: output without the highest units of each bin `[row bin]`.
        only: output with nothing but the highest units of each bin `[row bin]`.
        removed: units taken away together by chance `[row sample unit]`.
        after: output without these `[row sample]`.
        shaken: scores under small changes of the input `[row change unit]`; None where nobody asked.
    """

    scores: Tensor
    mask: Tensor
    full_output: Tensor
    fractions: Tensor
    deletion_outputs: Tensor
    insertion_outputs: Tensor
    decision_changed: Tensor | None
    comprehensiveness_outputs: Tensor
    sufficiency_outputs: Tensor
    removal_masks: Tensor
    removal_outputs: Tensor
    perturbed_scores: Tensor | None = None


@dataclass(frozen=True)
class FaithfulnessMeasure:
    """One number per row of evidence.

    Args:
        direction: which numbers are better.
        range: the least and the greatest number, where outputs are probabilities.
        meaning: the measure in one plain sentence.
        of: the numbers `[row]`; NaN where undefined.
        against_null: whether random scores are a fair opponent.
    """

    name: str
    direction: Direction
    value_range: tuple[float, float]
    description: str
    compute: Callable[[ErasureOutputs], Tensor]
    has_random_control: bool = True

    @property
    def sign(self) -> int:
        """1 where higher is better, -1 where lower is."""
        return 1 if self.direction == "higher" else -1


def score_ranks(scores: Tensor, mask: Tensor, seeds: Tensor) -> Tensor:
    """The place of each scored unit `[row unit]`, 0 for the highest score; units off the mask stand behind all.

    Ties are put in an order drawn from the row's seed: neither early nor late words gain by them.

    >>> scores, mask = torch.tensor([[0.1, 0.5, -2.0, 9.0]]), torch.tensor([[True, True, True, False]])
    >>> score_ranks(scores, mask, torch.tensor([3]))
    tensor([[1, 0, 2, 3]])
    """
    lot = random_permutations(seeds, 1, mask)[:, 0]
    values = scores.double().masked_fill(~mask, -math.inf).gather(1, lot)
    order = lot.gather(1, values.argsort(dim=1, descending=True, stable=True))
    place = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, place)


def bin_counts(units: Tensor, bins: Sequence[float] = AOPC_FRACTIONS) -> Tensor:
    """How many units each bin holds `[row bin]`: `ceil(share * units)`, so at least one where there is one.

    >>> bin_counts(torch.tensor([3, 40])).tolist()
    [[1, 1, 1, 1, 2], [1, 2, 4, 8, 20]]
    """
    exact = units.double().unsqueeze(1) * torch.tensor(bins, dtype=torch.float64, device=units.device)
    # 0.07 * 100 is a little above 7 in binary: that must not make it 8.
    return (exact - 1e-9).ceil().long()


def step_counts(units: Tensor, steps: int) -> Tensor:
    """How many units are taken at each of the steps 0 ... `steps` `[row step]`: round(j * units / steps).

    Where a text has fewer units than steps, every count is met and some twice.

    >>> step_counts(torch.tensor([2, 8]), 4).tolist()
    [[0, 0, 1, 1, 2], [0, 2, 4, 6, 8]]
    """
    numbers = torch.arange(steps + 1, device=units.device)
    # Whole numbers, halves down: no rounding that differs between machines.
    return (2 * numbers * units.unsqueeze(1) + steps - 1) // (2 * steps)


def area_under_curve(fractions: Tensor, outputs: Tensor) -> Tensor:
    """The area under outputs over shares `[... step]`, by trapezes; steps that take nothing add nothing.

    >>> area_under_curve(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 0.5, 0.5]))
    tensor(0.6250)
    """
    return torch.trapezoid(outputs, fractions, dim=-1)


def decision_flip_fraction(fractions: Tensor, decision_changed: Tensor) -> Tensor:
    """The least share `[...]` whose removal changes the decision; 1 where none does.

    >>> shares = torch.tensor([0.0, 0.25, 0.5, 1.0])
    >>> decision_flip_fraction(shares, torch.tensor([False, False, True, False]))
    tensor(0.5000)
    """
    return fractions.masked_fill(~decision_changed, 1.0).amin(-1)


def monotonicity(evidence: ErasureOutputs) -> Tensor:
    """Spearman's correlation of what each step of deletion takes from the output with the mean score that it takes.

    Steps that take no unit are left out. Losses are ranked to five decimals and mean scores to nine digits: what is
    closer is tied. Undefined where fewer than two steps are left, all scores or all losses are equal, or a score is
    no finite number. `[row]`, from -1 to 1.
    """
    units = evidence.mask.sum(1, keepdim=True)
    counts = (evidence.fractions * units).round().long()
    taken = counts.diff(dim=1)
    odd = ~evidence.scores.isfinite() & evidence.mask
    scores = evidence.scores.double().masked_fill(odd, 0.0).masked_fill(~evidence.mask, -math.inf)
    ordered = scores.sort(1, descending=True).values
    totals = torch.nn.functional.pad(ordered.masked_fill(ordered.isinf(), 0.0).cumsum(1), (1, 0))
    means = totals.gather(1, counts).diff(dim=1) / taken.clamp(min=1)
    means = means / means.abs().amax(1, keepdim=True).clamp(min=torch.finfo(means.dtype).tiny)
    losses = -evidence.deletion_outputs.diff(dim=1)
    found = spearman((losses * 1e5).round(), (means * 1e9).round(), taken > 0).value
    return found.masked_fill(odd.any(1), math.nan)


def infidelity(sums: Tensor, changes: Tensor) -> Tensor:
    """Yeh et al. (2019): the mean over samples of `(sum of scores removed - change of the output)²`, `[...]`.

    Args:
        sums: the sum of the scores of the units removed together `[... sample]`.
        changes: output of the whole minus output without them `[... sample]`.

    >>> infidelity(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]))
    tensor(0.5000)
    """
    return (sums - changes).square().mean(-1)


def relative_infidelity(sums: Tensor, changes: Tensor) -> Tensor:
    """Infidelity on the best scale, as a share of what scores of zero leave unexplained, `[...]`, from 0 to 1.

    `min over b >= 0 of mean (b sum - change)² / mean change²`: methods differ in scale, and attention has none, so
    scale is forgiven, but not the wrong sign. Undefined where nothing changes at all.

    >>> relative_infidelity(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), torch.tensor([[5.0, 10.0], [5.0, 10.0]]))
    tensor([0., 1.])
    """
    size, along = changes.square().sum(-1), (sums * changes).sum(-1).clamp(min=0.0)
    explained = along.square() / sums.square().sum(-1).clamp(min=torch.finfo(sums.dtype).tiny)
    return torch.where(size > 0, (1 - explained / size).clamp(0.0, 1.0), math.nan)


def sensitivity(scores: Tensor, perturbed_scores: Tensor) -> Tensor:
    """Yeh et al. (2019): the largest `|scores under a change - scores| / |scores|` over small changes, `[row]`.

    Undefined where all scores are zero.

    Args:
        scores: `[row unit]`, zero off the mask.
        shaken: `[row change unit]`.

    >>> sensitivity(torch.tensor([[3.0, 4.0]]), torch.tensor([[[3.0, 4.0], [3.0, 3.0]]]))
    tensor([0.2000])
    """
    size = scores.norm(dim=-1)
    moved = (perturbed_scores - scores.unsqueeze(1)).norm(dim=-1).amax(1)
    return torch.where(size > 0, moved / size, math.nan)


def _comprehensiveness(evidence: ErasureOutputs) -> Tensor:
    return (evidence.full_output.unsqueeze(1) - evidence.comprehensiveness_outputs).mean(1)


def _sufficiency(evidence: ErasureOutputs) -> Tensor:
    return (evidence.full_output.unsqueeze(1) - evidence.sufficiency_outputs).mean(1)


def _decision_flip(evidence: ErasureOutputs) -> Tensor:
    if evidence.decision_changed is None:
        return torch.full_like(evidence.full_output, math.nan)
    return decision_flip_fraction(evidence.fractions, evidence.decision_changed)


def _infidelity(evidence: ErasureOutputs) -> Tensor:
    sums = torch.einsum("ru,rsu->rs", evidence.scores.double(), evidence.removal_masks.double())
    return relative_infidelity(sums, evidence.full_output.unsqueeze(1) - evidence.removal_outputs)


def _sensitivity(evidence: ErasureOutputs) -> Tensor:
    if evidence.perturbed_scores is None:
        return torch.full_like(evidence.full_output, math.nan)
    return sensitivity(evidence.scores.double(), evidence.perturbed_scores.double())


FAITHFULNESS_MEASURES: Mapping[str, FaithfulnessMeasure] = {
    measure.name: measure
    for measure in (
        FaithfulnessMeasure(
            "aopc_comprehensiveness",
            "higher",
            (-1.0, 1.0),
            "How much the output falls when the top 1, 5, 10, 20 and 50 % of the units are taken away, on average.",
            _comprehensiveness,
        ),
        FaithfulnessMeasure(
            "aopc_sufficiency",
            "lower",
            (-1.0, 1.0),
            "How much the output falls when only the top 1, 5, 10, 20 and 50 % of the units are left, on average.",
            _sufficiency,
        ),
        FaithfulnessMeasure(
            "decision_flip",
            "lower",
            (0.0, 1.0),
            "The share of the units, highest first, that must go before the decision changes; 1 if it never does.",
            _decision_flip,
        ),
        FaithfulnessMeasure(
            "deletion_auc",
            "lower",
            (0.0, 1.0),
            "The mean output while the units are taken away one after the other, highest first.",
            lambda evidence: area_under_curve(evidence.fractions, evidence.deletion_outputs),
        ),
        FaithfulnessMeasure(
            "insertion_auc",
            "higher",
            (0.0, 1.0),
            "The mean output while the units are put into an empty text one after the other, highest first.",
            lambda evidence: area_under_curve(evidence.fractions, evidence.insertion_outputs),
        ),
        FaithfulnessMeasure(
            "monotonicity",
            "higher",
            (-1.0, 1.0),
            "Whether units with higher scores take more of the output with them, as a rank correlation.",
            monotonicity,
        ),
        FaithfulnessMeasure(
            "infidelity",
            "lower",
            (0.0, 1.0),
            "The share of the changes under random removals that the removed units' scores do not account for.",
            _infidelity,
        ),
        FaithfulnessMeasure(
            "sensitivity",
            "lower",
            (0.0, math.inf),
            "How far the scores move, at most, when the input is changed by next to nothing.",
            _sensitivity,
            has_random_control=False,
        ),
    )
}
"""Every measure of faithfulness by name; `sensitivity` is about steadiness, and needs the method to be run anew."""
