"""Kendall's tau of the top, and weighted: known answers, slow literal twins, and SciPy."""

from __future__ import annotations

import math
import warnings
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Generator, Tensor

from heedful.measures import rank_correlation
from heedful.measures.rank_correlation import (
    Correlation,
    k_from_fraction,
    k_from_nonzero,
    kendall_matrix,
    stack_pair,
    top_k_kendall_matrix,
    weighted_kendall_matrix,
)

X = torch.tensor([1, 2, 3, 1, 1, 2, 2])
Y = torch.tensor([3, 2, 1, 2, 1, 2, 1])


def kendall_tau(x: Tensor, y: Tensor) -> Correlation:
    return kendall_matrix(stack_pair(x, y))[..., 0, 1]


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


def test_what_stands_on_padding_changes_nothing() -> None:
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
