"""Bounds of means of bounded values: exact binomial bounds, a literal twin, coverage, and the tests made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, t

from heedful.measures.bounded_mean import (
    end_weight,
    lower_bound,
    mean_interval,
    p_value,
    ratio_bound,
    sample_size,
    unseen_p_value,
    upper_bound,
)


@pytest.mark.parametrize("count", [2, 12, 28, 124, 1000])
@pytest.mark.parametrize("alpha", [0.025, 0.0025])
def test_without_spread_the_bound_is_the_exact_binomial_one(count: int, alpha: float) -> None:
    exact = binomtest(0, count).proportion_ci(1 - 2 * alpha, method="exact").high
    assert upper_bound(np.zeros(count), 1.0, alpha) == pytest.approx(exact, abs=1e-9)
    assert lower_bound(np.ones(count), 0.0, alpha) == pytest.approx(1 - exact, abs=1e-9)
    assert upper_bound(np.full(count, 3.0), 5.0, alpha) == pytest.approx(3 + 2 * exact)


def test_the_bound_is_that_of_student_for_the_sample_with_the_added_values() -> None:
    """A literal twin: the added values as so many observations, in a sample repeated until their number is whole."""
    values, weight = np.array([0.1, 0.4, 0.3, 0.2] * 7), end_weight(28, 0.025)
    copies = 1000
    added = round(copies * weight)
    sample = np.concatenate((np.tile(values, copies), np.full(added, 1.0)))
    total = 28 + added / copies
    literal = sample.mean() + t.ppf(0.975, 28) * sample.std() / math.sqrt(total - 1)
    assert upper_bound(values, 1.0, 0.025) == pytest.approx(literal, abs=1e-4)


def test_with_many_examples_the_interval_is_that_of_student() -> None:
    values = np.random.default_rng(0).beta(2, 2, 100_000)
    half = t.ppf(0.975, len(values) - 1) * values.std() / math.sqrt(len(values))
    low, high = mean_interval(values, 0.0, 1.0, 0.025)[1:]
    assert [values.mean() - low, high - values.mean()] == pytest.approx([half, half], rel=0.03)


def _draw(rng: np.random.Generator, count: int, share: float, size: tuple[float, float]) -> NDArray[np.float64]:
    return np.where(rng.random(count) < share, rng.uniform(*size, count), 0.0)


@pytest.mark.parametrize("count", [12, 28, 76])
@pytest.mark.parametrize(
    ("share", "size"), [(0.05, (1.0, 1.0)), (0.1, (1.0, 1.0)), (0.12, (1.0, 1.0)), (0.1, (0.3, 0.9)), (0.5, (1.0, 1.0))]
)
def test_the_mean_is_seldom_beyond_a_bound(count: int, share: float, size: tuple[float, float]) -> None:
    """Of 2000 samples at most 1.2 times the nominal number, and what chance adds to it."""
    rng, mean, alpha = np.random.default_rng(count), share * sum(size) / 2, 0.025
    samples = [_draw(rng, count, share, size) for _ in range(2000)]
    above = sum(upper_bound(sample, 1.0, alpha) < mean - 1e-12 for sample in samples)
    below = sum(lower_bound(sample, 0.0, alpha) > mean + 1e-12 for sample in samples)
    assert max(above, below) <= 2000 * alpha * 1.2 + 3 * math.sqrt(2000 * alpha)


def test_a_p_value_is_the_level_at_which_the_bound_reaches_the_threshold() -> None:
    values = np.array([0.2, 0.4, 0.6, 0.9] * 5)
    p = p_value(values, 0.0, 0.35)
    assert lower_bound(values, 0.0, p) == pytest.approx(0.35, abs=1e-6)
    assert p_value(values, 0.0, 0.6) == 1.0
    assert math.isnan(p_value(values[:1], 0.0))
    assert 0 < p_value(np.ones(1000), 0.0, 0.01) <= 1e-9


def test_a_ratio_is_bounded_by_one_and_by_what_was_seen() -> None:
    rng = np.random.default_rng(1)
    wholes = rng.uniform(0.2, 0.6, 50)
    parts = wholes * rng.uniform(0, 1, 50)
    bound = ratio_bound(parts, wholes, 0.025)
    assert parts.mean() / wholes.mean() < bound < 0.75
    # At the bound the mean of part - ratio whole is no longer clearly below 0.
    assert upper_bound(parts - bound * wholes, (1 - bound) * wholes.max(), 0.025) == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(ratio_bound(parts, np.zeros(50), 0.025))


def test_failures_that_were_not_seen_are_as_probable_as_the_binomial_says() -> None:
    """With failures of -1 in 10 % of values and 1/9 elsewhere the mean is 0; none is among 28 with .9^28."""
    values = np.full(28, 1 / 9)
    assert unseen_p_value(values, -1.0) == pytest.approx(binomtest(0, 28, 0.1, "less").pvalue)
    assert unseen_p_value(-values, -1.0) == unseen_p_value(np.zeros(28), -1.0) == 1.0
    assert unseen_p_value(np.ones(28), 0.0) == 0.0


def test_so_many_examples_show_it() -> None:
    values = np.array([-0.5, 1.5] * 12)
    count = sample_size(values, -1.0, 0.0, 0.025)
    assert count == 40
    assert lower_bound(np.resize(values, count) - 0.84 * values.std() / math.sqrt(count), -1.0, 0.025) > 0
    assert sample_size(-values, -2.0, 0.0, 0.025) is None
