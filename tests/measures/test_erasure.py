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
    ErasureOutputs,
    bin_counts,
    decision_flip,
    monotonicity,
    relative_infidelity,
    score_ranks,
    step_counts,
)

NAN = math.nan


def test_bins_hold_a_share_of_the_units_rounded_up() -> None:
    literal = [[math.ceil(round(share * units, 9)) for share in AOPC_FRACTIONS] for units in range(1, 121)]
    assert bin_counts(torch.arange(1, 121)).tolist() == literal
    assert bin_counts(torch.tensor([100]), (0.07,)).item() == 7


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
    flips = decision_flip(replace(outputs, fractions=fractions, decision_changed=changed))
    assert flips.tolist() == pytest.approx([0.2, 1.0, 1.0])
    assert decision_flip(outputs).isnan().all()


def test_relative_infidelity_is_captums_on_the_best_scale_over_that_of_zero_scores() -> None:
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
    assert torch.allclose(relative_infidelity(sums, changes), expected, rtol=1e-6)


def test_relative_infidelity_is_the_best_of_all_scales_and_keeps_the_sign() -> None:
    generator = Generator().manual_seed(1)
    sums = torch.randn(6, 12, generator=generator, dtype=torch.float64)
    changes = sums + torch.randn(6, 12, generator=generator, dtype=torch.float64)
    scales = torch.linspace(0, 4, 40001, dtype=torch.float64).unsqueeze(1)
    for row in range(6):
        tried = (scales * sums[row] - changes[row]).square().mean(-1).min() / changes[row].square().mean()
        assert relative_infidelity(sums[row], changes[row]).item() == pytest.approx(tried.item(), abs=1e-6)
    assert torch.allclose(relative_infidelity(100 * sums, changes), relative_infidelity(sums, changes))
    assert relative_infidelity(-changes, changes).tolist() == [1.0] * 6
    assert relative_infidelity(torch.zeros(2, 3), torch.tensor([[1.0, 0, 0], [0, 0, 0]])).tolist() == pytest.approx(
        [1.0, NAN], nan_ok=True
    )


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
