"""Measures of the disagreement problem against literal twins, hand values and SciPy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, permutations, product

import pytest
import torch
from torch import Generator, Tensor

from heedful.measures.feature_agreement import TopKAgreement, pairwise_rank_agreement_matrix, top_k_agreement_matrix
from heedful.measures.rank_correlation import k_from_fraction, k_from_nonzero
from heedful.types import UserError

KINDS: tuple[TopKAgreement, ...] = ("feature", "rank", "sign", "signed-rank")


def orders(scores: list[float]) -> Iterator[tuple[int, ...]]:
    """Every order by falling size that the ties allow."""
    for order in permutations(range(len(scores))):
        sizes = [abs(scores[unit]) for unit in order]
        if sizes == sorted(sizes, reverse=True):
            yield order


def sign(number: float) -> int:
    return (number > 0) - (number < 0)


def literal(kind: TopKAgreement, x: list[float], y: list[float], k: int) -> float:
    """The paper's definition for each way to break ties, and the mean over all of them."""
    k = max(1, min(k, len(x)))
    found = []
    for one, other in product(orders(x), orders(y)):
        units = set(one[:k]) & set(other[:k])
        if "rank" in kind:
            units = {unit for unit in units if one.index(unit) == other.index(unit)}
        if "sign" in kind:
            units = {unit for unit in units if sign(x[unit]) == sign(y[unit])}
        found.append(len(units) / k)
    return sum(found) / len(found)


def some_scores(seed: int, methods: int = 4, units: int = 5) -> Tensor:
    """Small whole numbers of both signs: many ties, some zeros."""
    return torch.randint(-2, 3, (3, methods, units), generator=Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 4, 5, 9])
def test_agreement_of_the_top_is_the_mean_over_all_tie_breaks(kind: TopKAgreement, k: int) -> None:
    scores = some_scores(k)
    mask = torch.arange(5) < torch.tensor([[5], [4], [2]])
    found = top_k_agreement_matrix(kind, scores, k, mask)
    assert found.value.dtype == torch.float64
    assert bool(found.defined.all())
    assert bool(found.p_value.isnan().all())
    for row, real in enumerate((5, 4, 2)):
        for one, other in product(range(4), repeat=2):
            x, y = scores[row, one, :real].tolist(), scores[row, other, :real].tolist()
            assert found.value[row, one, other].item() == pytest.approx(literal(kind, x, y, k), abs=1e-12)


def test_hand_values_without_ties() -> None:
    x = [0.9, -0.8, 0.7, 0.1, 0.0]
    y = [0.9, 0.8, 0.1, -0.7, 0.0]
    scores = torch.tensor([x, y])
    found = {kind: top_k_agreement_matrix(kind, scores, 3).value[0, 1].item() for kind in KINDS}
    # In common: units 0 and 1, both on the same place; unit 1 with opposite signs.
    assert found == pytest.approx({"feature": 2 / 3, "rank": 2 / 3, "sign": 1 / 3, "signed-rank": 1 / 3})


def test_without_ties_a_method_agrees_with_itself_in_everything_and_with_its_negative_in_all_but_signs() -> None:
    scores = torch.tensor([3.0, -1.0, 2.0, 0.5])
    both = torch.stack((scores, -scores))
    for kind in KINDS:
        found = top_k_agreement_matrix(kind, both, 3).value
        assert found.diagonal().tolist() == [1.0, 1.0]
        assert found[0, 1] == (0.0 if "sign" in kind else 1.0)


def test_a_constant_method_agrees_with_every_other_at_chance_level() -> None:
    scores = torch.stack((torch.ones(10), torch.arange(10.0) + 1))
    assert top_k_agreement_matrix("feature", scores, 4).value[0, 1].item() == pytest.approx(4 / 10)
    assert top_k_agreement_matrix("rank", scores, 4).value[0, 1].item() == pytest.approx(1 / 10)
    assert pairwise_rank_agreement_matrix(scores).value[0, 1].item() == 0.5


def test_k_may_be_a_share_or_the_units_that_are_not_zero() -> None:
    scores = torch.tensor([[0.0, 0.0, 0.7, 0.3, 0.0], [0.1, 0.2, 0.9, 0.8, 0.3], [0.9, 0.2, 0.1, 0.0, 0.3]])
    mask = torch.ones(5, dtype=torch.bool)
    share = top_k_agreement_matrix("feature", scores, k_from_fraction(mask, 0.4), mask).value
    assert torch.equal(share, top_k_agreement_matrix("feature", scores, 2, mask).value)
    nonzero = top_k_agreement_matrix("feature", scores, k_from_nonzero(scores, mask), mask).value
    # Attention has two units: with both others k = 2, and for these two half of 2 + 2.
    assert nonzero[0].tolist() == [1.0, 1.0, 0.0]
    assert nonzero[1, 2].item() == literal("feature", scores[1].tolist(), scores[2].tolist(), 2)


def test_other_rows_padding_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, mask = some_scores(7), torch.arange(5) < torch.tensor([[5], [3], [1]])
    together = top_k_agreement_matrix("signed-rank", scores, 2, mask).value
    pairs = pairwise_rank_agreement_matrix(scores, mask).value
    for row, real in enumerate((5, 3, 1)):
        alone = scores[row, :, :real]
        assert torch.equal(top_k_agreement_matrix("signed-rank", alone, 2).value, together[row])
        assert torch.allclose(pairwise_rank_agreement_matrix(alone).value, pairs[row], equal_nan=True)
    monkeypatch.setattr("heedful.measures.rank_correlation.MAX_CHUNK_ELEMENTS", 1)
    assert torch.equal(top_k_agreement_matrix("signed-rank", scores, 2, mask).value, together)


def test_a_row_without_units_is_undefined_and_a_single_unit_agrees() -> None:
    mask = torch.tensor([[False, False], [True, False]])
    found = top_k_agreement_matrix("feature", torch.ones(2, 2, 2), 1, mask)
    assert found.defined[:, 0, 1].tolist() == [False, True]
    assert found.value[:, 0, 1].tolist() == pytest.approx([math.nan, 1.0], nan_ok=True)
    assert not pairwise_rank_agreement_matrix(torch.ones(2, 2, 2), mask).defined.any()


def test_wrong_kinds_and_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="signed-rank"):
        top_k_agreement_matrix("order", torch.ones(2, 3), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        top_k_agreement_matrix("rank", torch.tensor([[1.0, math.nan], [1.0, 2.0]]), 1)


@pytest.mark.parametrize("seed", range(3))
def test_pairwise_rank_agreement_counts_pairs_in_the_same_order_and_half_of_ties(seed: int) -> None:
    scores = some_scores(seed, units=6)
    found = pairwise_rank_agreement_matrix(scores).value
    for row, one, other in product(range(3), range(4), range(4)):
        x, y = scores[row, one].abs().tolist(), scores[row, other].abs().tolist()
        same = [
            0.5 if x[i] == x[j] or y[i] == y[j] else float((x[i] > x[j]) == (y[i] > y[j]))
            for i, j in combinations(range(6), 2)
        ]
        assert found[row, one, other].item() == pytest.approx(sum(same) / 15, abs=1e-12)
