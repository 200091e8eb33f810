"""Random numbers of an example depend on nothing but the example."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from heedful.seeding import permute_within, random_permutations, sample_uniform


def literal(seed: int, draw: int, unit: int) -> float:
    """SplitMix64 in Python's own integers."""

    def mixed(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
        return value ^ (value >> 31)

    gamma = 0x9E3779B97F4A7C15
    row = mixed((seed + (draw + 1) * gamma) % 2**64)
    return (mixed((row + (unit + 1) * gamma) % 2**64) >> 11) / 2**53


def test_numbers_equal_a_literal_splitmix() -> None:
    found = sample_uniform(torch.tensor([0, 1, 2**62 + 5]), 3, 4)
    expected = [[[literal(s, d, u) for u in range(4)] for d in range(3)] for s in (0, 1, 2**62 + 5)]
    assert found.tolist() == expected


def test_numbers_are_uniform_and_their_neighbours_unrelated() -> None:
    found = sample_uniform(torch.arange(50), 40, 50).numpy()
    assert stats.kstest(found.ravel(), "uniform").pvalue > 0.01
    for axis in range(3):
        first, second = np.take(found, range(39), axis), np.take(found, range(1, 40), axis)
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02


def test_other_rows_and_padding_change_nothing() -> None:
    alone = sample_uniform(torch.tensor([7]), 5, 6)
    together = sample_uniform(torch.tensor([3, 7, 9]), 8, 11)
    assert torch.equal(alone[0], together[1, :5, :6])


def test_orders_hold_every_unit_once_with_the_supported_ones_in_front() -> None:
    support = torch.tensor([[False, True, True, True, False], [True, False, True, False, False]])
    found = random_permutations(torch.tensor([3, 4]), 100, support)
    assert torch.equal(found.sort(-1).values, torch.arange(5).expand(2, 100, 5))
    assert set(found[0, :, :3].flatten().tolist()) == {1, 2, 3}
    assert set(found[1, :, :2].flatten().tolist()) == {0, 2}


def test_orders_depend_on_nothing_but_seed_draw_and_support() -> None:
    support = torch.tensor([[True] * 6])
    alone = random_permutations(torch.tensor([9]), 4, support)
    wider = torch.tensor([[True] * 8, [True] * 6 + [False] * 2])
    assert torch.equal(random_permutations(torch.tensor([1, 9]), 9, wider)[1, :4, :6], alone[0])


def test_values_are_permuted_within_their_support_only() -> None:
    support = torch.tensor([[False, True, True, True, False], [True, False, True, True, True]])
    values = torch.arange(20.0).reshape(2, 2, 5)
    for seed in range(20):
        permuted = permute_within(values, support, torch.tensor([seed, 99]))
        for row in range(2):
            kept = ~support[row]
            assert torch.equal(permuted[row][:, kept], values[row][:, kept])
            assert torch.equal(permuted[row].sort(-1).values, values[row])
            assert torch.equal(permuted[row, 1] - 5, permuted[row, 0]), "one order per row"
    orders = {tuple(permute_within(values, support, torch.tensor([seed, 0]))[0, 0].tolist()) for seed in range(60)}
    assert len(orders) == 6


def test_too_many_units_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        random_permutations(torch.tensor([1]), 1, torch.ones(1, 70_000).bool())
