"""Pearson and Spearman against SciPy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from heedful.measures.rank_correlation import (
    Correlation,
    midranks,
    pearson,
    pearson_matrix,
    spearman,
    spearman_matrix,
)

Pair = Callable[[Tensor, Tensor, Tensor], Correlation]
PAIRS: list[tuple[Pair, str]] = [(pearson, "pearsonr"), (spearman, "spearmanr")]


def oracle(name: str, x: Tensor, y: Tensor) -> tuple[float, float]:
    if len(x) < 2:
        return math.nan, math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = getattr(stats, name)(x.numpy(), y.numpy())
    p_value = float(result.pvalue)
    if len(x) == 2 and not math.isnan(result.statistic):
        p_value = 1.0
    return float(result.statistic), p_value


@pytest.mark.parametrize(("measure", "name"), PAIRS)
@pytest.mark.parametrize("levels", [2, 5, 100_000])
def test_rows_of_every_length_with_and_without_ties_equal_scipy(measure: Pair, name: str, levels: int) -> None:
    generator = np.random.default_rng(levels)
    x, y = torch.tensor(generator.integers(0, levels, size=(2, 40, 25)) / 7)
    mask = torch.arange(25) < torch.arange(40)[:, None] % 26
    result = measure(x, y, mask)
    for row in range(40):
        value, p_value = oracle(name, x[row, mask[row]], y[row, mask[row]])
        assert bool(result.defined[row]) is not math.isnan(value)
        assert result.value[row].item() == pytest.approx(value, abs=1e-12, nan_ok=True)
        # Close to a perfect correlation of three units the p-value goes as the root of the rounding error.
        assert result.p_value[row].item() == pytest.approx(p_value, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize(("measure", "name"), PAIRS)
def test_a_clear_correlation_has_the_tiny_p_value_of_scipy(measure: Pair, name: str) -> None:
    x, noise = torch.tensor(np.random.default_rng(1).normal(size=(2, 60)))
    y = x + 0.3 * noise
    _, p_value = oracle(name, x, y)
    assert p_value < 1e-20
    result = measure(x, y, torch.ones(60, dtype=torch.bool))
    assert result.p_value.item() == pytest.approx(p_value, rel=1e-8)


def test_the_matrices_hold_the_pairs() -> None:
    scores = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    mask = torch.arange(8) < torch.tensor([8, 5, 3])[:, None]
    for matrix, pair in ((pearson_matrix, pearson), (spearman_matrix, spearman)):
        all_pairs = matrix(scores, mask)
        for i in range(4):
            for j in range(4):
                one = pair(scores[:, i], scores[:, j], mask)
                assert torch.equal(one.defined, all_pairs.defined[:, i, j])
                assert torch.allclose(one.value, all_pairs.value[:, i, j], atol=1e-14, equal_nan=True)


def test_the_mean_of_equal_numbers_does_not_make_a_constant_row_vary() -> None:
    thirds = torch.full((7,), 0.1, dtype=torch.float64)
    assert not bool(pearson(thirds, torch.arange(7.0)).defined)
    assert not bool(spearman(thirds, torch.arange(7.0)).defined)


def test_scores_at_the_edge_of_float64_still_correlate() -> None:
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    y = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    expected = pearson(x, y).value.item()
    for scale in (1e-200, 1e200):
        assert pearson(x * scale, y / scale).value.item() == pytest.approx(expected, abs=1e-12)


def test_two_units_correlate_perfectly_but_prove_nothing() -> None:
    for measure in (pearson, spearman):
        result = measure(torch.tensor([1.0, 2.0]), torch.tensor([5.0, 3.0]))
        assert result.value.item() == pytest.approx(-1.0, abs=1e-15)
        assert result.p_value.item() == 1.0


def test_infinite_scores_have_ranks_but_no_moments() -> None:
    x, y = torch.tensor([1.0, math.inf, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    assert spearman(x, y).value.item() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="infinite"):
        pearson(x, y)
    assert bool(pearson(x, y, torch.tensor([True, False, True])).defined)


def test_nan_is_refused_on_real_units_and_ignored_elsewhere() -> None:
    x, y = torch.tensor([1.0, math.nan, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    for measure in (pearson, spearman):
        with pytest.raises(ValueError, match="NaN"):
            measure(x, y)
        kept = measure(x, y, torch.tensor([True, False, True]))
        assert kept.value.item() == pytest.approx(1.0)


def test_pearson_passes_gradients_that_equal_the_slope_between_two_near_points() -> None:
    x = torch.tensor([1.0, 2.0, 4.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, 3.0, 2.0, 2.5], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(pearson(x, y).value, x)
    step = 1e-6 * torch.eye(4, dtype=torch.float64)
    slope = (pearson(x.detach() + step, y.expand(4, 4)).value - pearson(x.detach() - step, y.expand(4, 4)).value) / 2e-6
    assert torch.allclose(gradient, slope, atol=1e-8)


def test_no_units_at_all_is_undefined() -> None:
    for measure in (pearson, spearman):
        result = measure(torch.zeros(2, 0), torch.zeros(2, 0))
        assert result.defined.tolist() == [False, False]
        assert bool(result.value.isnan().all())
        assert bool(result.p_value.isnan().all())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-2.0, 0.0, -0.0, 0.5, 0.5, 9.0, math.inf]), max_size=12))
def test_midranks_equal_scipy(values: list[float]) -> None:
    expected = stats.rankdata(np.array(values)) if values else []
    assert midranks(torch.tensor(values)).tolist() == list(expected)


def test_midranks_off_the_mask_are_zero_and_shift_no_other() -> None:
    ranks = midranks(torch.tensor([5.0, -9.0, 5.0, 1.0]), torch.tensor([True, False, True, True]))
    assert ranks.tolist() == [2.5, 0.0, 2.5, 1.0]
