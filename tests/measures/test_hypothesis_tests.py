"""One-sided tests: p-values beside the t-test, their error rates in simulations, Holm by hand, sample sizes by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from heedful.measures.bootstrap import MIN_EXAMPLES, bootstrap_interval
from heedful.measures.hypothesis_tests import adjust_holm, poisson_binomial_tail, studentised_p_values


def p_values(columns: Tensor, seed: int = 0, resamples: int = 10_000) -> list[float]:
    return studentised_p_values(columns, resamples=resamples, generator=Generator().manual_seed(seed)).tolist()


def test_the_tail_of_a_count_is_that_of_all_outcomes_and_of_scipy() -> None:
    shares = [0.1, 0.5, 0.03, 0.9, 0.4]
    for least in range(7):
        expected = math.fsum(
            math.prod(share if happens else 1 - share for share, happens in zip(shares, events, strict=True))
            for events in itertools.product((0, 1), repeat=5)
            if sum(events) >= least
        )
        assert poisson_binomial_tail(shares, least) == pytest.approx(expected)
    assert poisson_binomial_tail([0.05] * 40, 20) == pytest.approx(stats.binom.sf(19, 40, 0.05), rel=1e-9)


def test_p_values_of_normal_data_are_those_of_the_t_test() -> None:
    noise = torch.randn(60, 1, generator=Generator().manual_seed(1), dtype=torch.float64)
    columns = noise + torch.linspace(-0.5, 0.5, 9, dtype=torch.float64)
    expected = [float(stats.ttest_1samp(column.numpy(), 0, alternative="greater").pvalue) for column in columns.T]
    assert max(expected) > 0.99
    assert min(expected) < 0.01
    assert p_values(columns) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("kind", "highest"),
    [("normal", 0.035), ("skewed", 0.035), ("skewed to the left", 0.04), ("mostly zero", 0.05)],
)
def test_a_true_hypothesis_is_rejected_as_often_as_the_level_says(kind: str, highest: float) -> None:
    draws, level = 2000, 0.025
    generator = Generator().manual_seed(2)
    uniform = torch.rand(28, draws, generator=generator, dtype=torch.float64)
    sign = torch.randint(2, (28, draws), generator=generator) * 2.0 - 1
    columns = {
        "normal": torch.randn(28, draws, generator=generator, dtype=torch.float64),
        "skewed": -uniform.log() - 1,
        "skewed to the left": uniform.log() + 1,
        # As differences of flips: nine texts of ten have none.
        "mostly zero": torch.where(uniform < 0.1, sign, 0.0),
    }[kind]
    found = torch.cat(
        [studentised_p_values(part, resamples=1000, generator=generator) for part in columns.tensor_split(10, 1)]
    )
    # The standard error of this rate is .0035.
    assert 0.012 < (found <= level).double().mean() < highest


def test_a_test_rejects_where_the_interval_of_twice_the_level_lies_above_zero() -> None:
    draw = Generator().manual_seed(3)
    for shift in (0.0, 0.2, 0.4, 0.6):
        values = torch.randn(30, generator=draw, dtype=torch.float64) + shift
        interval = bootstrap_interval(values, level=0.95, resamples=10_000, generator=Generator().manual_seed(0))
        p = p_values(values.unsqueeze(1))[0]
        assert (interval.low > 0) == (p <= 0.025), (interval, p)


def test_columns_that_cannot_be_tested_have_stated_p_values() -> None:
    constants = torch.tensor([[-1.0, 0.0, 1.0, 1e-300, 3e8]], dtype=torch.float64).expand(MIN_EXAMPLES, 5)
    smallest = 1 / 1001
    assert p_values(constants, resamples=1000) == pytest.approx([1, 1, smallest, smallest, smallest])
    assert all(math.isnan(p) for p in p_values(torch.ones(MIN_EXAMPLES - 1, 2)))
    # A text without a value is no evidence.
    with_gap = torch.full((MIN_EXAMPLES, 2), 1.0).index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(math.nan))
    assert [math.isnan(p) for p in p_values(with_gap)] == [False, True]
    # The same scaled by any factor: a test has no unit.
    values = torch.randn(40, 1, generator=Generator().manual_seed(4), dtype=torch.float64) + 0.2
    assert p_values(values * 1e-9) == p_values(values) == p_values(values * 1e9)


def test_a_p_value_depends_on_its_column_and_generator_only() -> None:
    columns = torch.randn(40, 3, generator=Generator().manual_seed(5), dtype=torch.float64) + 0.2
    together = p_values(columns)
    assert [p_values(columns[:, [place]])[0] for place in range(3)] == pytest.approx(together)
    assert p_values(columns) == together


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # statsmodels.stats.multitest.multipletests(..., method="holm")
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.05, 0.04, 0.03, 0.02, 0.01], [0.09, 0.09, 0.09, 0.08, 0.05]),
        ([0.001, 0.9, 0.5], [0.003, 1.0, 1.0]),
        ([0.3, 0.3], [0.6, 0.6]),
        ([0.04], [0.04]),
        ([], []),
    ],
)
def test_holm_by_hand(given: list[float], expected: list[float]) -> None:
    assert adjust_holm(given) == pytest.approx(expected)


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    """A hypothesis is rejected if every set of hypotheses that contains it is rejected by Bonferroni's test."""
    draw = Generator().manual_seed(6)
    for _ in range(20):
        found = (torch.rand(4, generator=draw) ** 3).tolist()
        closed = [
            max(
                min(1.0, size * min(found[each] for each in chosen))
                for size in range(1, 5)
                for chosen in itertools.combinations(range(4), size)
                if place in chosen
            )
            for place in range(4)
        ]
        assert adjust_holm(found) == pytest.approx(closed)


def test_holm_leaves_out_what_was_not_tested() -> None:
    adjusted = adjust_holm([math.nan, 0.02, math.nan, 0.5])
    assert [adjusted[1], adjusted[3]] == pytest.approx([0.04, 0.5])
    assert math.isnan(adjusted[0])
    assert math.isnan(adjusted[2])
