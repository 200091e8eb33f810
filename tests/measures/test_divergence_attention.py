"""Attention of two models compared without an order of heads."""

from __future__ import annotations

import math
from itertools import permutations, product

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr
from torch import Generator, Tensor

from heedful.measures.divergence import (
    attention_distance,
    attention_jsd_bound,
    head_matching_costs,
    match_heads,
    scaled_jsd,
)


def attention(seed: int, *, layers: int = 2, heads: int = 3, queries: int = 4, units: int = 4) -> Tensor:
    draw = Generator().manual_seed(seed)
    return torch.randn(2, layers, heads, queries, units, generator=draw, dtype=torch.float64).mul(2).softmax(-1)


ALL = torch.ones(2, 4, dtype=torch.bool)


def test_one_head_gives_the_divergences_of_scipy() -> None:
    one, other = attention(1, layers=1, heads=1, queries=1), attention(2, layers=1, heads=1, queries=1)
    found = attention_distance(one, other, ALL)
    for row in range(2):
        p, q = one[row, 0, 0, 0].numpy(), other[row, 0, 0, 0].numpy()
        assert float(found.jsd[row]) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-12)
        assert float(found.kl[row]) == pytest.approx(rel_entr(p, q).sum(), abs=1e-12)


def test_exchanging_heads_within_layers_leaves_the_distance_at_zero() -> None:
    one = attention(1)
    turned = torch.stack((one[:, 0, [2, 0, 1]], one[:, 1, [1, 0, 2]]), dim=1)
    assert not torch.equal(one, turned)
    found = attention_distance(turned, one, ALL)
    assert float(found.jsd.abs().max()) < 1e-15
    assert float(found.kl.abs().max()) < 1e-15


def test_the_matching_costs_no_more_than_any_other_order() -> None:
    one, other = attention(1), attention(2)
    best = float(attention_distance(one, other, ALL).jsd.mean())
    every = [
        float(attention_distance(one, other, ALL, torch.tensor(orders)).jsd.mean())
        for orders in product(permutations(range(3)), repeat=2)
    ]
    assert best == pytest.approx(min(every), abs=1e-12)
    assert min(every) < max(every)


def test_costs_add_up_over_batches_so_that_a_split_is_matched_as_a_whole() -> None:
    one, other = attention(1), attention(2)
    halves = [head_matching_costs(one[row : row + 1], other[row : row + 1], ALL[:1]) for row in range(2)]
    torch.testing.assert_close(head_matching_costs(one, other, ALL), halves[0] + halves[1])
    assert match_heads(halves[0] + halves[1]).tolist() == match_heads(head_matching_costs(one, other, ALL)).tolist()


def test_query_rows_of_padding_do_not_count() -> None:
    one, other = attention(1, heads=1), attention(2, heads=1)
    mask = torch.tensor([[True, True, True, False]]).expand(2, 4)
    spoilt = other.clone()
    spoilt[:, :, :, 3] = torch.tensor([0.97, 0.01, 0.01, 0.01])
    torch.testing.assert_close(attention_distance(one, other, mask).jsd, attention_distance(one, spoilt, mask).jsd)
    assert not torch.allclose(attention_distance(one, other, ALL).jsd, attention_distance(one, spoilt, ALL).jsd)


def test_a_base_weight_that_underflowed_gives_a_finite_divergence_and_gradient() -> None:
    scores = torch.zeros(1, 1, 1, 1, 3, requires_grad=True)
    base = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 1, 1, 1, 3)
    found = attention_distance(scores.softmax(-1), base, torch.ones(1, 3, dtype=torch.bool))
    (found.kl.sum() + found.jsd.sum()).backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(found.kl).all()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_the_bound_is_that_of_the_lightest_unit() -> None:
    uniform = torch.full((1, 1, 1, 1, 5), 0.2, dtype=torch.float64)
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert float(attention_jsd_bound(uniform, mask.unsqueeze(1), mask)) == pytest.approx(0.422810, abs=1e-6)


def test_scaled_divergence_is_one_at_the_logarithm_of_two() -> None:
    assert float(scaled_jsd(torch.tensor(math.log(2)))) == pytest.approx(1.0)


def test_heads_of_one_query_are_matched_too() -> None:
    one = attention(3, heads=2, queries=1)
    mask = torch.ones(len(one), one.shape[-1], dtype=torch.bool)
    assert attention_distance(one.flip(2), one, mask).jsd.abs().max() < 1e-12
