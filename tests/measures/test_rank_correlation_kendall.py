"""Kendall's tau-b against SciPy, pair by pair, value and p-value, and against the specification's numbers."""

from __future__ import annotations

import math
import warnings
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from heedful.measures import rank_correlation
from heedful.measures.rank_correlation import Correlation, kendall_matrix, stack_pair

TOLERANCE = 1e-9


def kendall_tau(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    return kendall_matrix(stack_pair(x, y), mask)[..., 0, 1]


def oracle(x: Tensor, y: Tensor) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = stats.kendalltau(x.numpy(), y.numpy())
    return float(result.statistic), float(result.pvalue)


def assert_equals_scipy(scores: Tensor, mask: Tensor) -> None:
    result = kendall_matrix(scores, mask)
    for row in range(len(scores)):
        for i in range(scores.shape[1]):
            for j in range(scores.shape[1]):
                value, p_value = oracle(scores[row, i, mask[row]], scores[row, j, mask[row]])
                at = (row, i, j)
                assert bool(result.defined[at]) is not math.isnan(value)
                assert result.value[at].item() == pytest.approx(value, abs=TOLERANCE, nan_ok=True)
                assert result.p_value[at].item() == pytest.approx(p_value, abs=TOLERANCE, nan_ok=True)


def test_five_units_have_the_tau_and_the_p_value_of_the_specification() -> None:
    result = kendall_tau(torch.arange(1, 6), torch.tensor([3, 4, 1, 2, 5]))
    assert result.value.item() == pytest.approx(0.2, abs=1e-12)
    assert result.p_value.item() == pytest.approx(0.8167, abs=5e-5)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ((1.0, 2.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0), 0.912871),
        ((0.5, 0.3, 0.1, 0.1), (0.4, 0.4, 0.1, 0.1), 0.894427),
        ((0.7, 0.2, 0.05, 0.05), (0.302184, 0.015391, 0.019283, 0.034202), 0.182574),
    ],
)
def test_ties_give_the_tau_b_of_the_specification(x: tuple[float, ...], y: tuple[float, ...], expected: float) -> None:
    assert kendall_tau(torch.tensor(x), torch.tensor(y)).value.item() == pytest.approx(expected, abs=5e-7)


def test_a_constant_row_is_undefined() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
    y = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    result = kendall_tau(x, y)
    assert result.defined.tolist() == [True, False, True]
    assert result.value.tolist() == pytest.approx([1.0, math.nan, -1.0], nan_ok=True)


@pytest.mark.parametrize(
    ("units", "smallest"),
    [(5, 1.0), (6, 0.867), (8, 0.643), (10, 0.511), (15, 0.390), (20, 0.326), (30, 0.255)],
)
def test_the_smallest_significant_tau_without_ties_is_that_of_pitfall_5(units: int, smallest: float) -> None:
    significant = taus_without_ties(units)[p_values_without_ties(units) <= 0.05]
    assert significant.min().item() == pytest.approx(smallest, abs=5e-4)


@pytest.mark.parametrize("units", [2, 3, 4])
def test_four_units_or_fewer_are_never_significant(units: int) -> None:
    assert p_values_without_ties(units).min().item() > 0.05


def chains(units: int) -> Tensor:
    """Orders with 0, 1, 2 ... discordant pairs, each from the one before by exchanging two neighbours."""
    order, found = list(range(units)), [list(range(units))]
    for end in range(units - 1, 0, -1):
        for i in range(end):
            order[i], order[i + 1] = order[i + 1], order[i]
            found.append(list(order))
    return torch.tensor(found)


def taus_without_ties(units: int) -> Tensor:
    orders = chains(units)
    return kendall_tau(torch.arange(units).expand(orders.shape), orders).value.abs()


def p_values_without_ties(units: int) -> Tensor:
    orders = chains(units)
    return kendall_tau(torch.arange(units).expand(orders.shape), orders).p_value


@pytest.mark.parametrize("units", [2, 3, 4, 5, 6])
def test_exact_p_values_are_shares_of_all_orders(units: int) -> None:
    orders = torch.tensor(list(permutations(range(units))))
    result = kendall_tau(torch.arange(units).expand(orders.shape), orders)
    strength = result.value.abs()
    shares = (strength.unsqueeze(0) >= strength.unsqueeze(1) - 1e-12).double().mean(1)
    assert torch.allclose(result.p_value, shares, atol=1e-12)


@pytest.mark.parametrize("units", [7, 12, 32, 33, 34, 40])
def test_every_number_of_discordant_pairs_has_the_p_value_of_scipy(units: int) -> None:
    orders = chains(units)[:: max(1, units // 8)]
    result = kendall_tau(torch.arange(units).expand(orders.shape), orders)
    for order, value, p_value in zip(orders, result.value, result.p_value, strict=True):
        expected, likely = oracle(torch.arange(units), order)
        assert value.item() == pytest.approx(expected, abs=TOLERANCE)
        assert p_value.item() == pytest.approx(likely, abs=TOLERANCE)


@pytest.mark.parametrize("units", [34, 60, 170, 171, 200])
def test_long_rows_with_one_or_no_odd_pair_keep_the_exact_p_value(units: int) -> None:
    forward = torch.arange(units)
    swapped = forward.clone()
    swapped[:2] = torch.tensor([1, 0])
    for order in (forward, swapped, forward.flip(0), swapped.flip(0)):
        _, likely = oracle(forward, order)
        assert kendall_tau(forward, order).p_value.item() == pytest.approx(likely, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("levels", [2, 3, 8, 10_000])
def test_random_rows_with_many_or_few_ties_equal_scipy(levels: int) -> None:
    generator = np.random.default_rng(levels)
    scores = torch.tensor(generator.integers(0, levels, size=(12, 4, 41)).astype(np.float64))
    lengths = torch.tensor([0, 1, 2, 3, 4, 7, 20, 33, 34, 39, 40, 41])
    assert_equals_scipy(scores, torch.arange(41) < lengths[:, None])


def test_a_mask_with_holes_equals_scipy_on_what_is_left() -> None:
    generator = np.random.default_rng(3)
    scores = torch.tensor(generator.normal(size=(6, 3, 15)).round(1))
    mask = torch.tensor(generator.random((6, 15)) < 0.6)
    assert_equals_scipy(scores, mask)


def test_whatever_stands_off_the_mask_changes_nothing() -> None:
    scores = torch.randn(5, 3, 9, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([9, 4, 6, 1, 2])[:, None]
    clean = kendall_matrix(scores, mask)
    for rubbish in (math.nan, math.inf, -math.inf, 1e30):
        dirty = kendall_matrix(scores.masked_fill(~mask[:, None], rubbish), mask)
        assert torch.equal(clean.defined, dirty.defined)
        assert torch.equal(clean.value[clean.defined], dirty.value[clean.defined])
        assert torch.equal(clean.p_value[clean.defined], dirty.p_value[clean.defined])


rows = st.integers(0, 9).flatmap(
    lambda units: st.lists(
        st.lists(
            st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 5e-324, 0.1, 0.2, 7.0]),
            min_size=units,
            max_size=units,
        ),
        min_size=2,
        max_size=2,
    )
)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_any_short_pair_equals_scipy(pair: list[list[float]]) -> None:
    x, y = torch.tensor(pair, dtype=torch.float64)
    value, p_value = oracle(x, y)
    result = kendall_tau(x, y)
    assert result.value.item() == pytest.approx(value, abs=TOLERANCE, nan_ok=True)
    assert result.p_value.item() == pytest.approx(p_value, abs=TOLERANCE, nan_ok=True)


def test_small_blocks_give_what_large_blocks_give(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(9, 4, 23, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    mask = torch.arange(23) < torch.tensor([23, 3, 9, 12, 23, 22, 1, 8, 15])[:, None]
    whole = kendall_matrix(scores, mask)
    for size in (1, 100, 700, 5000):
        monkeypatch.setattr(rank_correlation, "MAX_CHUNK_ELEMENTS", size)
        parts = kendall_matrix(scores, mask)
        assert torch.equal(whole.value.nan_to_num(9.0), parts.value.nan_to_num(9.0))


def test_a_row_of_thousands_of_units_equals_scipy() -> None:
    x, y = torch.tensor(np.random.default_rng(5).normal(size=(2, 3001)))
    value, p_value = oracle(x, x + 20 * y)
    result = kendall_tau(x, x + 20 * y)
    assert result.value.item() == pytest.approx(value, abs=TOLERANCE)
    assert result.p_value.item() == pytest.approx(p_value, abs=TOLERANCE)


def test_the_matrix_is_symmetric_with_ones_on_the_diagonal_and_holds_the_pairs() -> None:
    scores = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(4))
    matrix = kendall_matrix(scores)
    assert torch.equal(matrix.value, matrix.value.mT)
    assert torch.allclose(matrix.value.diagonal(dim1=1, dim2=2), torch.ones(3, 5).double(), atol=1e-15)
    for i, j in combinations(range(5), 2):
        assert torch.equal(matrix.value[:, i, j], kendall_tau(scores[:, i], scores[:, j]).value)


def test_any_leading_axes_are_batch_axes() -> None:
    x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(6))
    y = x.flip(-1)
    together = kendall_tau(x, y)
    assert together.value.shape == (2, 3)
    assert together.value[1, 2].item() == kendall_tau(x[1, 2], y[1, 2]).value.item()
    assert kendall_matrix(torch.zeros(0, 4, 6)).value.shape == (0, 4, 4)


def test_single_precision_scores_are_compared_without_rounding() -> None:
    close = torch.tensor([1.0, 1.0 + 2**-23, 1.0 + 2**-22])
    result = kendall_tau(close, torch.tensor([1.0, 2.0, 3.0]))
    assert result.value.item() == 1.0


def test_nan_scores_and_unfitting_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"NaN .* 1 of 2 rows, first row 1"):
        kendall_tau(torch.tensor([[1.0, 2.0], [math.nan, 2.0]]), torch.ones(2, 2))
    with pytest.raises(ValueError, match="differ in shape"):
        kendall_tau(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match="mask"):
        kendall_tau(torch.ones(3), torch.ones(3), torch.ones(4, dtype=torch.bool))
