"""Faithfulness measures by hand and against captum, SciPy and scikit-learn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from captum.metrics import infidelity as captum_infidelity
from scipy import stats
from sklearn.metrics import auc
from torch import Generator, Tensor

from heedful.measures.erasure import (
    AOPC_FRACTIONS,
    FAITHFULNESS_MEASURES,
    INFIDELITY,
    ErasureOutputs,
    bin_counts,
    monotonicity,
    normalized_infidelity,
    normalized_infidelity_error,
    paired_removals,
    removal_sizes,
    score_ranks,
    step_counts,
)

NAN = math.nan


def test_bins_hold_a_share_of_the_units_rounded_up() -> None:
    literal = [[math.ceil(round(share * units, 9)) for share in AOPC_FRACTIONS] for units in range(1, 121)]
    assert bin_counts(torch.arange(1, 121)).tolist() == literal
    assert bin_counts(torch.tensor([100]), (0.07,)).item() == 7


def test_sizes_are_all_up_to_half_of_a_short_text_and_the_first_middle_and_last_of_a_long_one() -> None:
    rows = removal_sizes(torch.arange(201)).tolist()
    assert rows[0] == [0] * 5
    assert [[size for size in row if size] for row in rows[1:11]] == [
        [*range(1, math.ceil(units / 2) + 1)] for units in range(1, 11)
    ]
    for units, row in enumerate(rows[11:], start=11):
        half = math.ceil(units / 2)
        assert row == [0, 0, 1, math.ceil((1 + half) / 2 - 0.5), half]
        assert len({*row}) == 4
    assert rows[20] == [0, 0, 1, 5, 10]


def test_bins_without_units_do_not_count() -> None:
    """A text of three words has two sizes: drops of .2 and .4; that of a bin without words would be 0 or the whole."""
    outputs = replace(
        outputs_of([0.9] * 2, [0.0]),
        bins=torch.tensor([[0, 1, 2]]),
        comprehensiveness_outputs=torch.tensor([[0.9, 0.7, 0.5]], dtype=torch.float64),
        sufficiency_outputs=torch.tensor([[0.1, 0.8, 0.7]], dtype=torch.float64),
    )
    assert outputs.comprehensiveness.tolist() == pytest.approx([0.3])
    assert outputs.sufficiency.tolist() == pytest.approx([0.15])
    assert replace(outputs, bins=torch.zeros(1, 3).long()).comprehensiveness.tolist() == [0.0]


@pytest.mark.parametrize("units", [0, 1, 3, 20, 37])
def test_steps_rise_from_none_to_all_and_miss_no_count_of_a_short_text(units: int) -> None:
    counts = step_counts(torch.tensor([units]), 20)[0].tolist()
    assert counts[0] == 0
    assert counts[-1] == units
    assert counts == sorted(counts)
    assert all(abs(count - step * units / 20) <= 0.5 for step, count in enumerate(counts))
    assert units > 20 or set(counts) == set(range(units + 1))


def test_ties_are_broken_at_random_independently_of_the_batch() -> None:
    seeds = torch.arange(4000) * 7919
    mask = torch.tensor([[True, True, True, False]]).expand(4000, 4)
    places = score_ranks(torch.tensor([[1.0, 1.0, 5.0, 9.0]]).expand(4000, 4), mask, seeds)
    assert (places[:, 2] == 0).all()
    assert (places[:, 3] == 3).all()
    first = (places[:, 0] == 1).double().mean().item()
    assert first == pytest.approx(0.5, abs=0.04)
    wider = score_ranks(torch.zeros(1, 9), torch.arange(9).unsqueeze(0) < 4, seeds[:1])
    assert torch.equal(wider[:, :4], score_ranks(torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool), seeds[:1]))


def test_the_area_is_that_of_scikit_learn_and_steps_that_take_nothing_add_nothing() -> None:
    shares, outputs = [0.0, 0.0, 0.25, 0.25, 0.75, 1.0], [0.9, 0.9, 0.7, 0.7, 0.1, 0.4]
    fractions = torch.tensor([shares], dtype=torch.float64)
    erased = replace(outputs_of(outputs, [0.0] * 5), fractions=fractions)
    for name in ("deletion_auc", "insertion_auc"):
        found = FAITHFULNESS_MEASURES[name].compute(erased).item()
        assert found == pytest.approx(auc(shares, outputs))
        assert found == pytest.approx(auc([0, 0.25, 0.75, 1], [0.9, 0.7, 0.1, 0.4]))


def test_the_decision_flips_at_the_first_step_that_changes_it_and_at_one_if_none_does() -> None:
    fractions = torch.tensor([[0.0, 0.2, 0.6, 1.0]]).expand(3, 4)
    changed = torch.tensor([[False, True, False, True], [False, False, False, True], [False] * 4])
    outputs = outputs_of([0.5] * 4, [0.0] * 3)
    flips = replace(outputs, fractions=fractions, decision_changed=changed).flip
    assert flips.tolist() == pytest.approx([0.2, 1.0, 1.0])
    assert outputs.flip.isnan().all()


def test_normalized_infidelity_is_captums_on_the_best_scale_over_that_of_zero_scores() -> None:
    generator = Generator().manual_seed(0)
    inputs, scores = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).unbind()
    moves = torch.randn(3 * 8, 5, generator=generator, dtype=torch.float64)

    def squared(x: Tensor) -> Tensor:
        return x.square().sum(1)

    def moved(x: Tensor) -> tuple[Tensor, Tensor]:
        return moves, x - moves

    def captum(scale: Tensor) -> Tensor:
        found: Tensor = captum_infidelity(squared, moved, inputs, scale * scores, n_perturb_samples=8)
        return found

    by_row = moves.reshape(3, 8, 5)
    sums = torch.einsum("ru,rsu->rs", scores, by_row)
    changes = squared(inputs).unsqueeze(1) - (inputs.unsqueeze(1) - by_row).square().sum(-1)
    best = ((sums * changes).sum(1, keepdim=True) / sums.square().sum(1, keepdim=True)).clamp(min=0)
    expected = captum(best) / captum(torch.zeros(3, 1))
    assert torch.allclose(normalized_infidelity(sums, changes), expected, rtol=1e-6)


def removed_units(units: int, samples: int) -> tuple[Tensor, Tensor]:
    """Scores and random removals of one text."""
    generator = Generator().manual_seed(3)
    scores = torch.randn(1, units, generator=generator, dtype=torch.float64)
    return scores, torch.rand(1, samples, units, generator=generator) < 0.5


def test_infidelity_is_that_of_captum() -> None:
    """Attributions of inputs that are 1, perturbed by setting some of them to 0."""
    scores, masks = removed_units(6, 10)

    def squared(x: Tensor) -> Tensor:
        return (x * torch.arange(1.0, 7.0, dtype=torch.float64)).sum(1).square()

    def removal(x: Tensor) -> tuple[Tensor, Tensor]:
        return masks[0].double(), x * ~masks[0]

    whole = torch.ones(1, 6, dtype=torch.float64)
    expected = captum_infidelity(squared, removal, whole, scores, n_perturb_samples=10)
    outputs = replace(
        outputs_of([0.0] * 2, [0.0]),
        scores=scores,
        mask=torch.ones_like(masks[:, 0]),
        full_output=squared(whole),
        removal_masks=masks,
        removal_outputs=squared((~masks[0]).double()).unsqueeze(0),
    )
    assert INFIDELITY.compute(outputs).item() == pytest.approx(expected.item(), rel=1e-9)
    padded = replace(
        outputs,
        removal_masks=torch.cat((masks, torch.zeros_like(masks)), 1),
        removal_outputs=torch.cat((outputs.removal_outputs, outputs.full_output.expand(1, 10)), 1),
        removal_counts=torch.tensor([10]),
    )
    assert INFIDELITY.compute(padded).item() == pytest.approx(expected.item(), rel=1e-9)


def test_normalized_infidelity_is_the_best_of_all_scales_and_keeps_the_sign() -> None:
    generator = Generator().manual_seed(1)
    sums = torch.randn(6, 12, generator=generator, dtype=torch.float64)
    changes = sums + torch.randn(6, 12, generator=generator, dtype=torch.float64)
    scales = torch.linspace(0, 4, 40001, dtype=torch.float64).unsqueeze(1)
    for row in range(6):
        tried = (scales * sums[row] - changes[row]).square().mean(-1).min() / changes[row].square().mean()
        assert normalized_infidelity(sums[row], changes[row]).item() == pytest.approx(tried.item(), abs=1e-6)
    assert torch.allclose(normalized_infidelity(100 * sums, changes), normalized_infidelity(sums, changes))
    assert normalized_infidelity(-changes, changes).tolist() == [1.0] * 6
    assert normalized_infidelity(torch.zeros(2, 3), torch.tensor([[1.0, 0, 0], [0, 0, 0]])).tolist() == pytest.approx(
        [1.0, NAN], nan_ok=True
    )


def test_removals_come_in_pairs_and_those_of_a_short_text_all_once() -> None:
    seeds, mask = torch.tensor([5, 6, 7]), torch.arange(14) < torch.tensor([[4], [14], [1]])
    mask[0, :6] = torch.tensor([True, False, True, True, False, True])
    found = paired_removals(seeds, mask, 0, 40)
    assert not (found & ~mask.unsqueeze(1)).any()
    assert torch.equal(found[1, ::2] ^ found[1, 1::2], mask[1].expand(20, -1))
    assert len(torch.unique(found[0, :16], dim=0)) == 16
    assert torch.equal(found[0, :16:2] ^ found[0, 1:16:2], mask[0].expand(8, -1))
    assert not found[0, 16:].any()
    assert found[2].sum() == 1
    parts = [paired_removals(seeds, mask, first, count) for first, count in ((0, 10), (10, 30))]
    assert torch.equal(torch.cat(parts, 1), found)
    assert torch.equal(paired_removals(seeds[:1], mask[:1, :6], 0, 40)[0], found[0, :, :6])
    assert not torch.equal(found[1], paired_removals(seeds + 1, mask, 0, 40)[1])


def removals(outputs: Tensor, scores: Tensor, masks: Tensor, count: int) -> ErasureOutputs:
    """One text whose output without a set of units is at the number of the set."""
    numbers = (masks.long() << torch.arange(masks.shape[1])).sum(1)
    return replace(
        outputs_of([0.0] * (len(scores) + 1), scores.tolist()),
        full_output=outputs[:1],
        removal_masks=masks.unsqueeze(0),
        removal_outputs=outputs[numbers].unsqueeze(0),
        removal_counts=torch.tensor([count]),
    )


@pytest.mark.parametrize(("units", "count"), [(12, 20), (5, 20), (5, 32), (12, 2)])
def test_the_standard_error_of_infidelity_is_that_of_values_without_each_pair(units: int, count: int) -> None:
    generator = Generator().manual_seed(units)
    outputs = torch.rand(1 << units, generator=generator, dtype=torch.float64)
    scores = torch.randn(units, generator=generator, dtype=torch.float64)
    masks = paired_removals(torch.tensor([3]), torch.ones(1, units, dtype=torch.bool), 0, count)[0]
    padding = torch.zeros(6, units, dtype=torch.bool)
    found = normalized_infidelity_error(removals(outputs, scores, torch.cat((masks, padding)), count)).item()

    def cosine(kept: Tensor) -> float:
        part = removals(outputs, scores, kept, count)
        return torch.cosine_similarity(part.removal_sums[0], part.removal_changes[0], dim=0).item()

    rest = [cosine(torch.cat((masks[: 2 * pair], masks[2 * pair + 2 :]))) for pair in range(count // 2)]
    m, share = count // 2, count / (1 << units) if units <= 10 else 0.0
    if m == 1:
        assert math.isinf(found)
        return
    variance = (m - 1) / m * sum((each - sum(rest) / m) ** 2 for each in rest) * (1 - share)
    expected = math.sqrt(4 * max(0.0, cosine(masks)) ** 2 * variance + 2 * variance**2)
    assert found == pytest.approx(expected, abs=1e-12)
    assert (found == 0) == (share == 1)


def test_infidelity_of_unchanged_outputs_has_no_error_and_single_draws_have_none_either() -> None:
    masks = paired_removals(torch.tensor([3]), torch.ones(1, 12, dtype=torch.bool), 0, 20)[0]
    constant = removals(torch.ones(1 << 12).double(), torch.ones(12), masks, 20)
    assert math.isnan(normalized_infidelity_error(constant).item())
    with pytest.raises(ValueError, match="pairs"):
        normalized_infidelity_error(replace(constant, removal_counts=None))


def test_two_standard_errors_cover_the_infidelity_over_all_removals() -> None:
    """Outputs that add up, that saturate, and in which pairs of units decide; scores right and wrong."""
    every = (torch.arange(1 << 12).unsqueeze(1) >> torch.arange(12)) & 1
    inside = []
    for seed in range(60):
        generator = Generator().manual_seed(seed)
        weights = torch.randn(12, generator=generator, dtype=torch.float64)
        pairs = torch.randn(12, 12, generator=generator, dtype=torch.float64).triu(1)
        kept = (1 - every).double()
        logits = kept @ weights
        logits = (logits, 4 * logits, torch.einsum("si,ij,sj->s", kept, pairs, kept))[seed % 3]
        outputs = torch.sigmoid(logits)
        noise = torch.randn(12, generator=generator, dtype=torch.float64)
        scores = weights + noise * (seed % 2)
        exact = (
            FAITHFULNESS_MEASURES["normalized_infidelity"]
            .compute(removals(outputs, scores, every.bool(), 1 << 12))
            .item()
        )
        masks = paired_removals(torch.tensor([seed]), torch.ones(1, 12, dtype=torch.bool), 0, 64)[0]
        sample = removals(outputs, scores, masks, 64)
        found = FAITHFULNESS_MEASURES["normalized_infidelity"].compute(sample).item()
        inside.append(abs(found - exact) <= 2 * normalized_infidelity_error(sample).item())
    assert sum(inside) / len(inside) > 0.88


def outputs_of(deleted: list[float], scores: list[float]) -> ErasureOutputs:
    """Outputs for one text of as many units as steps; only those of deletion matter."""
    curve = torch.tensor([deleted], dtype=torch.float64)
    units = len(scores)
    none = torch.zeros(1, 0, dtype=torch.float64)
    return ErasureOutputs(
        scores=torch.tensor([scores], dtype=torch.float64),
        mask=torch.ones(1, units, dtype=torch.bool),
        full_output=curve[:, 0],
        fractions=torch.linspace(0, 1, units + 1, dtype=torch.float64).unsqueeze(0),
        deletion_outputs=curve,
        insertion_outputs=curve,
        decision_changed=None,
        bins=torch.zeros(1, 0).long(),
        comprehensiveness_outputs=none,
        sufficiency_outputs=none,
        removal_masks=torch.zeros(1, 0, units, dtype=torch.bool),
        removal_outputs=none,
    )


def test_monotonicity_is_the_rank_correlation_of_losses_with_the_scores_in_their_order() -> None:
    scores, deleted = [0.1, 0.9, -0.3, 0.5], [0.9, 0.5, 0.4, 0.1, 0.3]
    losses = [0.4, 0.1, 0.3, -0.2]
    expected = stats.spearmanr(losses, [0.9, 0.5, 0.1, -0.3]).statistic
    assert monotonicity(outputs_of(deleted, scores)).item() == pytest.approx(expected)
    assert math.isnan(monotonicity(outputs_of(deleted, [0.3] * 4)).item())
    assert math.isnan(monotonicity(outputs_of([0.9] * 5, scores)).item())
    assert math.isnan(monotonicity(outputs_of([0.9, 0.1], [1.0])).item())


@pytest.mark.parametrize("odd", [math.inf, -math.inf, NAN])
def test_monotonicity_is_undefined_where_a_score_is_not_finite(odd: float) -> None:
    assert math.isnan(monotonicity(outputs_of([0.9, 0.5, 0.4, 0.1, 0.3], [0.1, odd, -0.3, 0.5])).item())


def test_monotonicity_takes_the_mean_score_of_a_step_and_leaves_empty_steps_out() -> None:
    outputs = outputs_of([0.9, 0.8, 0.3, 0.2, 0.1], [4.0, 3.0, 2.0, 1.0])
    coarse = replace(
        outputs,
        fractions=torch.tensor([[0.0, 0.5, 0.5, 0.75, 1.0]], dtype=torch.float64),
        deletion_outputs=torch.tensor([[0.9, 0.6, 0.6, 0.1, 0.0]], dtype=torch.float64),
    )
    expected = stats.spearmanr([0.3, 0.5, 0.1], [3.5, 2.0, 1.0]).statistic
    assert monotonicity(coarse).item() == pytest.approx(expected)
