"""The bootstrap over people and items against closed forms, and its answers to degenerate data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from heedful.measures.crossed_bootstrap import CrossedBootstrap, crossed_bootstrap


def grid(n_people: int, n_items: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    people, items = np.divmod(np.arange(n_people * n_items), n_items)
    return people, items


def bootstrap_mean(
    values: NDArray[np.float64], people: NDArray[np.int64], items: NDArray[np.int64]
) -> CrossedBootstrap:
    return crossed_bootstrap(
        people, items, lambda w: (w @ values / w.sum(1))[:, None], rng=np.random.default_rng(0), resamples=4000
    )


def test_variances_of_a_mean_are_those_of_group_means() -> None:
    rng, (people, items) = np.random.default_rng(1), grid(6, 9)
    values = rng.normal(size=6)[people] + 2 * rng.normal(size=9)[items] + rng.normal(size=54)
    found = bootstrap_mean(values, people, items)
    table = values.reshape(6, 9)
    by_hand = (table.mean(1).var(ddof=1) / 6, table.mean(0).var(ddof=1) / 9, values.var(ddof=1) / 54)
    assert [found.people.item(), found.items.item(), found.answers.item()] == pytest.approx(by_hand, rel=0.1)
    variance = by_hand[0] + by_hand[1] - by_hand[2]
    assert found.variances(np.eye(1)) == pytest.approx([variance], rel=0.1)
    value, low, high = (each.item() for each in found.bounds(np.eye(1)))
    assert value == pytest.approx(values.mean())
    assert high - value == pytest.approx(value - low)
    assert high - value == pytest.approx(stats.t.ppf(0.975, 5) * math.sqrt(variance), rel=0.05)


def test_the_variance_is_at_least_each_part_and_the_floor() -> None:
    found = CrossedBootstrap(
        np.zeros(1), np.full((1, 1), 2.0), np.full((1, 1), 1.0), np.full((1, 1), 3.0), np.ones(1, bool), 5, 8
    )
    assert found.variances(np.eye(1)) == pytest.approx([2.0])
    assert found.variances(np.eye(1), floor=7.0) == pytest.approx([7.0])


@pytest.mark.parametrize(("n_people", "n_items"), [(1, 12), (12, 1), (1, 1)])
def test_one_person_or_one_item_says_nothing_about_others(n_people: int, n_items: int) -> None:
    people, items = grid(n_people, n_items)
    values = np.random.default_rng(0).normal(size=len(people))
    value, low, high = bootstrap_mean(values, people, items).bounds(np.eye(1))
    assert value == pytest.approx([values.mean()])
    assert (low.item(), high.item()) == (-math.inf, math.inf)


def test_a_statistic_that_is_mostly_undefined_has_no_bounds_and_spoils_no_other() -> None:
    people, items = grid(5, 5)
    values = np.random.default_rng(0).normal(size=25)

    def statistics(w: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([w @ values / w.sum(1), np.full(len(w), np.nan)], 1)

    found = crossed_bootstrap(people, items, statistics, rng=np.random.default_rng(0), resamples=4000)
    alone, undefined, difference = found.variances(np.array([[1.0, 0], [0, 1], [1, -1]]))
    assert alone == pytest.approx(bootstrap_mean(values, people, items).variances(np.eye(1)).item())
    assert (undefined, difference) == (math.inf, math.inf)


def test_simultaneous_bounds_are_those_of_tukey() -> None:
    """Three independent means with equal variances: the quantile is that of the studentised range over sqrt(2)."""
    third = np.eye(3)
    found = CrossedBootstrap(np.zeros(3), third, third, third, np.ones(3, bool), 21, 50)
    pairs = np.array([[1.0, -1, 0], [1, 0, -1], [0, 1, -1]])
    _, _, high = found.bounds(pairs, rng=np.random.default_rng(0))
    assert high / math.sqrt(2) == pytest.approx(
        np.full(3, stats.studentized_range.ppf(0.95, 3, 20) / math.sqrt(2)), rel=0.02
    )
    _, _, single = found.bounds(pairs)
    assert (single < high).all()


def test_nothing_to_resample_is_refused() -> None:
    none = np.array([], np.int64)
    with pytest.raises(ValueError, match="no answers"):
        crossed_bootstrap(none, none, lambda w: w, rng=np.random.default_rng(0))
