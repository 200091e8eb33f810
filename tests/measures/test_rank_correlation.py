"""Pearson, Spearman, Kendall, top-k and weighted Kendall against SciPy, literal twins and hand values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Generator, Tensor

from heedful.measures import rank_correlation
from heedful.measures.rank_correlation import (
    Correlation,
    dense_ranks,
    k_from_fraction,
    k_from_nonzero,
    kendall_matrix,
    pearson,
    pearson_matrix,
    spearman,
    spearman_matrix,
    stack_pair,
    top_k_kendall_matrix,
    weighted_kendall_matrix,
)

Pair = Callable[[Tensor, Tensor, Tensor], Correlation]
PAIRS: list[tuple[Pair, str]] = [(pearson, "pearsonr"), (spearman, "spearmanr")]


def scipy_correlation(name: str, x: Tensor, y: Tensor) -> tuple[float, float]:
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
        value, p_value = scipy_correlation(name, x[row, mask[row]], y[row, mask[row]])
        assert bool(result.defined[row]) is not math.isnan(value)
        assert result.value[row].item() == pytest.approx(value, abs=1e-12, nan_ok=True)
        # Close to a perfect correlation of three units the p-value goes as the root of the rounding error.
        assert result.p_value[row].item() == pytest.approx(p_value, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize(("measure", "name"), PAIRS)
def test_a_clear_correlation_has_the_tiny_p_value_of_scipy(measure: Pair, name: str) -> None:
    x, noise = torch.tensor(np.random.default_rng(1).normal(size=(2, 60)))
    y = x + 0.3 * noise
    _, p_value = scipy_correlation(name, x, y)
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


def test_rounding_takes_no_correlation_beyond_one() -> None:
    scores = torch.rand(2000, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    opposed = spearman_matrix(torch.stack([scores, -scores], 1)).value
    assert opposed.min() == -1.0
    assert opposed.max() == 1.0


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
    everywhere = torch.ones(len(values), dtype=torch.bool)
    assert dense_ranks(torch.tensor(values), everywhere).midranks().tolist() == list(expected)


def test_units_off_the_mask_shift_no_midrank() -> None:
    mask = torch.tensor([True, False, True, True])
    ranks = dense_ranks(torch.tensor([5.0, -9.0, 5.0, 1.0]), mask).midranks()
    assert ranks[mask].tolist() == [2.5, 2.5, 1.0]


TOLERANCE = 1e-9


def kendall_tau(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Correlation:
    return kendall_matrix(stack_pair(x, y), mask)[..., 0, 1]


def scipy_kendall(x: Tensor, y: Tensor) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = stats.kendalltau(x.numpy(), y.numpy())
    return float(result.statistic), float(result.pvalue)


def assert_equals_scipy(scores: Tensor, mask: Tensor) -> None:
    result = kendall_matrix(scores, mask)
    for row in range(len(scores)):
        for i in range(scores.shape[1]):
            for j in range(scores.shape[1]):
                value, p_value = scipy_kendall(scores[row, i, mask[row]], scores[row, j, mask[row]])
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
        expected, likely = scipy_kendall(torch.arange(units), order)
        assert value.item() == pytest.approx(expected, abs=TOLERANCE)
        assert p_value.item() == pytest.approx(likely, abs=TOLERANCE)


@pytest.mark.parametrize("units", [34, 60, 170, 171, 200])
def test_long_rows_with_one_or_no_odd_pair_keep_the_exact_p_value(units: int) -> None:
    forward = torch.arange(units)
    swapped = forward.clone()
    swapped[:2] = torch.tensor([1, 0])
    for order in (forward, swapped, forward.flip(0), swapped.flip(0)):
        _, likely = scipy_kendall(forward, order)
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


def test_values_off_the_mask_change_nothing() -> None:
    scores = torch.randn(5, 3, 9, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([9, 4, 6, 1, 2])[:, None]
    clean = kendall_matrix(scores, mask)
    for rubbish in (math.nan, math.inf, -math.inf, 1e30):
        dirty = kendall_matrix(scores.masked_fill(~mask[:, None], rubbish), mask)
        assert torch.equal(clean.defined, dirty.defined)
        assert torch.equal(clean.value[clean.defined], dirty.value[clean.defined])
        assert torch.equal(clean.p_value[clean.defined], dirty.p_value[clean.defined])


row_pairs = st.integers(0, 9).flatmap(
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
@given(row_pairs)
def test_any_short_pair_equals_scipy(pair: list[list[float]]) -> None:
    x, y = torch.tensor(pair, dtype=torch.float64)
    value, p_value = scipy_kendall(x, y)
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
    value, p_value = scipy_kendall(x, x + 20 * y)
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


X = torch.tensor([1, 2, 3, 1, 1, 2, 2])
Y = torch.tensor([3, 2, 1, 2, 1, 2, 1])


def top_k_kendall(x: Tensor, y: Tensor, k: int) -> Correlation:
    return top_k_kendall_matrix(stack_pair(x, y), k)[..., 0, 1]


def weighted_kendall(x: Tensor, y: Tensor) -> Correlation:
    return weighted_kendall_matrix(stack_pair(x, y))[..., 0, 1]


def literal_top_k(x: list[float], y: list[float], k: int) -> float:
    """The definition, pair by pair: buckets of equal scores, penalties 1, 1/2 and 0."""
    best_x = set(sorted(set(x), reverse=True)[:k])
    best_y = set(sorted(set(y), reverse=True)[:k])
    penalty, pairs = 0.0, 0
    for i, j in combinations(range(len(x)), 2):
        if not ((x[i] in best_x and y[j] in best_y) or (x[j] in best_x and y[i] in best_y)):
            continue
        pairs += 1
        over, under = x[i] - x[j], y[i] - y[j]
        if over * under < 0:
            penalty += 1.0
        elif (over == 0) != (under == 0):
            penalty += 0.5
    return 1.0 if pairs == 0 else 1.0 - 2.0 * penalty / pairs


def scipy_weighted(x: Tensor, y: Tensor) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(stats.weightedtau(x.numpy(), y.numpy()).statistic)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, -1.0), (2, 1 - 2 * 10 / 13), (3, 1 - 2 * 13 / 21), (9, 1 - 2 * 13 / 21)]
)
def test_the_top_of_seven_units_has_the_value_of_the_specification(k: int, expected: float) -> None:
    assert top_k_kendall(X, Y, k).value.item() == pytest.approx(expected, abs=1e-12)
    assert literal_top_k(X.tolist(), Y.tolist(), k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 6, 11, 40])
def test_an_order_agrees_with_itself_and_is_reversed_by_its_reverse_whatever_k(k: int) -> None:
    x = torch.randperm(11, generator=Generator().manual_seed(k)).double()
    assert top_k_kendall(x, x, k).value.item() == 1.0
    assert top_k_kendall(x, -x, k).value.item() == -1.0


def test_without_ties_and_with_all_units_the_top_is_plain_kendall() -> None:
    x, y = torch.rand(2, 30, 17, generator=Generator().manual_seed(1)).unbind()
    assert torch.allclose(top_k_kendall(x, y, 17).value, kendall_tau(x, y).value, atol=1e-12)


def test_two_methods_with_the_same_single_best_unit_agree_fully_at_k_1() -> None:
    assert top_k_kendall(torch.tensor([9.0, 1.0, 2.0]), torch.tensor([7.0, 2.0, 1.0]), 1).value.item() == 1.0


def test_at_least_the_highest_bucket_is_compared() -> None:
    x, y = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 2.0, 3.0])
    assert top_k_kendall(x, y, 0).value.item() == top_k_kendall(x, y, 1).value.item() == -1.0


def some_rows(*, ties: bool) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(3)
    shape = (12, 4, 13)
    scores = torch.randint(0, 5, shape, generator=generator) if ties else torch.randn(shape, generator=generator)
    lengths = torch.randint(2, 14, (12,), generator=generator)
    return scores.double(), torch.arange(13) < lengths[:, None]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("block", [1, 50, 2**20])
def test_all_pairs_of_a_padded_batch_equal_the_literal_twin(
    *, ties: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_correlation, "MAX_CHUNK_ELEMENTS", block)
    scores, mask = some_rows(ties=ties)
    k = torch.randint(1, 8, (12, 4, 4), generator=Generator().manual_seed(4)).triu()
    k = k + k.triu(1).mT
    found = top_k_kendall_matrix(scores, k, mask)
    assert bool(found.p_value.isnan().all())
    for row in range(12):
        for i in range(4):
            for j in range(4):
                x, y = scores[row, i, mask[row]].tolist(), scores[row, j, mask[row]].tolist()
                assert bool(found.defined[row, i, j]) is (len(set(x)) > 1 and len(set(y)) > 1)
                if found.defined[row, i, j]:
                    expected = literal_top_k(x, y, int(k[row, i, j]))
                    assert found.value[row, i, j].item() == pytest.approx(expected, abs=1e-12)


def test_values_on_padding_change_nothing() -> None:
    scores, mask = some_rows(ties=True)
    loud = scores.masked_fill(~mask[:, None], 1e6)
    top, loud_top = (top_k_kendall_matrix(each, 2, mask).value for each in (scores, loud))
    weighted, loud_weighted = (weighted_kendall_matrix(each, mask).value for each in (scores, loud))
    assert torch.equal(top.nan_to_num(9.0), loud_top.nan_to_num(9.0))
    assert torch.equal(weighted.nan_to_num(9.0), loud_weighted.nan_to_num(9.0))


def test_a_constant_row_or_a_single_unit_is_undefined() -> None:
    constant, varied = torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    for found in (top_k_kendall(constant, varied, 2), weighted_kendall(constant, varied)):
        assert not found.defined
        assert math.isnan(found.value.item())
    alone = torch.tensor([1.0])
    assert not top_k_kendall(alone, alone, 1).defined
    assert not weighted_kendall(alone, alone).defined


def test_k_for_a_share_is_rounded_down_but_at_least_one() -> None:
    mask = torch.arange(9) < torch.tensor([1, 3, 4, 9])[:, None]
    assert k_from_fraction(torch.ones(100, dtype=torch.bool), 0.29).item() == 29
    assert k_from_fraction(mask, 0.25).flatten().tolist() == [1, 1, 1, 2]
    assert k_from_fraction(mask, 1.0).flatten().tolist() == [1, 3, 4, 9]


def test_k_for_sparse_attention_is_the_smaller_count_and_the_mean_of_both_for_two_others() -> None:
    attention = [0.2, 0.3, 0.5, 0.0, 0.0, 0.0]
    scores = torch.tensor([[attention, [1.0] * 6, [1.0, 0, 0, 0, 0, 0], [0.0] * 6]])
    k = k_from_nonzero(scores, torch.ones(1, 6, dtype=torch.bool))[0]
    assert k.tolist() == [[3, 3, 1, 1], [3, 3, 2, 1], [1, 2, 1, 1], [1, 1, 1, 1]]
    masked = k_from_nonzero(scores, torch.tensor([[True, True, False, True, True, True]]))[0]
    assert masked[0].tolist() == [2, 2, 1, 1]


def test_weighted_tau_has_the_value_that_scipy_documents() -> None:
    found = weighted_kendall(torch.tensor([12, 2, 1, 12, 2]), torch.tensor([1, 4, 7, 1, 0]))
    assert found.value.item() == pytest.approx(-0.56694968153682723, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("block", [1, 2000, 2**20])
def test_weighted_tau_of_all_pairs_equals_scipy(*, ties: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_correlation, "MAX_CHUNK_ELEMENTS", block)
    scores, mask = some_rows(ties=ties)
    found = weighted_kendall_matrix(scores, mask)
    for row in range(12):
        for i in range(4):
            for j in range(4):
                expected = scipy_weighted(scores[row, i, mask[row]], scores[row, j, mask[row]])
                assert found.value[row, i, j].item() == pytest.approx(expected, abs=1e-9, nan_ok=True)
                assert bool(found.defined[row, i, j]) is not math.isnan(expected)


def test_an_exchange_at_the_top_costs_more_than_one_at_the_bottom() -> None:
    order = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    at_top, at_bottom = torch.tensor([5.0, 6, 4, 3, 2, 1]), torch.tensor([6.0, 5, 4, 3, 1, 2])
    assert weighted_kendall(order, at_top).value < weighted_kendall(order, at_bottom).value
    assert top_k_kendall(order, at_top, 2).value < top_k_kendall(order, at_bottom, 2).value
    assert kendall_tau(order, at_top).value == kendall_tau(order, at_bottom).value


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=9), st.integers(1, 9))
def test_any_two_rows_of_integers_agree_with_the_oracles(pairs: list[tuple[int, int]], k: int) -> None:
    x, y = (torch.tensor(row).double() for row in zip(*pairs, strict=True))
    expected = scipy_weighted(x, y)
    assert weighted_kendall(x, y).value.item() == pytest.approx(expected, abs=1e-9, nan_ok=True)
    found = top_k_kendall(x, y, k)
    if found.defined:
        assert found.value.item() == pytest.approx(literal_top_k(x.tolist(), y.tolist(), k), abs=1e-12)
        assert found.value.item() == pytest.approx(top_k_kendall(y, x, k).value.item(), abs=1e-12)
