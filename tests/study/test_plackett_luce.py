"""Plackett-Luce with ties against hand values, choix, a brute-force likelihood and its own draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import choix
import numpy as np
import pytest
from scipy.optimize import minimize

from heedful.study import plackett_luce
from heedful.study.answers import competition_ranks
from heedful.study.plackett_luce import TiedRankings, draw_ranks


def from_lists(rankings: Sequence[Sequence[int]]) -> TiedRankings:
    return TiedRankings.from_ranks([dict(enumerate(each)) for each in rankings], len(rankings[0]))


@pytest.fixture
def no_pseudo_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plackett_luce, "PSEUDO_COMPARISONS", 1e-9)


@pytest.mark.usefixtures("no_pseudo_comparisons")
def test_davidson_of_two_methods_by_hand() -> None:
    """12 wins, 3 losses, 5 ties: log alpha = log(12 / 3), delta = 5 / sqrt(12 x 3)."""
    rankings = from_lists([[1, 2]] * 12 + [[2, 1]] * 3 + [[1, 1]] * 5)
    first, second, delta = rankings.fit()[0]
    assert first - second == pytest.approx(math.log(4))
    assert delta == pytest.approx(math.log(5 / 6))


def test_half_a_comparison_is_added_to_each_side() -> None:
    """All n first: with x = alpha of the winner and 1 / x of the loser, n / (x^2 + 1) = (x - 1) / (x + 1) / 2."""
    n = 7
    winner, loser = from_lists([[1, 2]] * n).fit()[0]
    assert winner == pytest.approx(-loser)
    x = math.exp(winner)
    assert n / (x * x + 1) == pytest.approx(0.5 * (x - 1) / (x + 1))


@pytest.mark.parametrize("n", [1, 10])
def test_pseudo_comparisons_leave_the_share_of_ties_alone(n: int) -> None:
    """5 of 20 rankings are ties: at the maximum over delta the model has the same share, however few there are."""
    first, second, log_delta = from_lists(([[1, 2]] * 12 + [[2, 1]] * 3 + [[1, 1]] * 5) * n).fit()[0]
    tie = math.exp(log_delta + (first + second) / 2)
    assert tie / (tie + math.exp(first) + math.exp(second)) == pytest.approx(0.25, abs=1e-6)


def test_preference_log_odds_of_three_methods_by_hand() -> None:
    """Worths a = e^1.23, b = c = 1, delta_2 = d: who comes first, and if it is c alone, who comes next.

    P(a above b) = (a + d sqrt(a) + a / (a + 1 + d sqrt(a))) / (a + 2 + d (2 sqrt(a) + 1)), and P(b above a) likewise.
    """
    rankings = from_lists([[1, 1, 3], [1, 2, 3]])
    a, d = math.exp(1.23), math.exp(0.5)
    last_two = a + 1 + d * math.sqrt(a)
    above, below = a + d * math.sqrt(a) + a / last_two, 1 + d + 1 / last_two
    expected = math.log(above / below)
    assert expected == pytest.approx(0.91, abs=0.005), "not the difference of log worths"
    odds = rankings.preference_log_odds(np.array([[1.23, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.5]]))
    assert odds[0, 0, 1:] == pytest.approx([expected, expected])
    assert odds[0, 1:, 0] == pytest.approx([-expected, -expected])
    assert odds[1] == pytest.approx(np.zeros((3, 3)))


def test_preference_log_odds_are_differences_of_two_methods_or_without_ties() -> None:
    pair = from_lists([[1, 2], [1, 1]]).preference_log_odds(np.array([[0.7, -0.2, 1.3]]))
    assert pair[0, 0, 1] == pytest.approx(0.9)
    theta = np.array([0.5, -0.1, 0.3, -0.7])
    untied = from_lists([[1, 2, 3, 4]]).preference_log_odds(theta[None])[0]
    assert untied == pytest.approx(theta[:, None] - theta[None])


def test_preference_log_odds_are_those_of_all_weak_orders() -> None:
    theta, delta = [0.5, -0.1, 0.3, -0.7], {2: 0.4, 3: 0.2}
    odds = from_lists(TIED).preference_log_odds(np.array([[*theta, math.log(0.4), math.log(0.2)]]))[0]
    weak_orders = [each for each in product(range(1, 5), repeat=4) if competition_ranks(each) == list(each)]
    shares = [likelihood_by_brute_force(each, theta, delta) for each in weak_orders]
    for i, j in product(range(4), repeat=2):
        above, below = (
            math.fsum(share for ranks, share in zip(weak_orders, shares, strict=True) if ranks[one] < ranks[other])
            for one, other in ((i, j), (j, i))
        )
        assert odds[i, j] == pytest.approx(math.log(above / below) if i != j else 0.0)


@pytest.mark.usefixtures("no_pseudo_comparisons")
def test_without_ties_it_is_choix() -> None:
    rng = np.random.default_rng(0)
    ranks = draw_ranks(np.tile([0.8, 0.1, -0.2, -0.7, 0.0], (150, 1)), {}, rng)
    orders = [np.argsort(row).tolist() for row in ranks]
    expected = choix.opt_rankings(5, orders, alpha=1e-12, tol=1e-10)
    found = from_lists(ranks.tolist()).fit()[0]
    assert found - found.mean() == pytest.approx(expected - expected.mean(), abs=1e-4)


def likelihood_by_brute_force(ranks: Sequence[int], theta: Sequence[float], delta: dict[int, float]) -> float:
    """The probability of one ranking, written as in the paper, with sums over all subsets as bit patterns."""
    left, probability = set(range(len(ranks))), 1.0

    def strength(members: set[int]) -> float:
        tie = delta.get(len(members), 0.0) if len(members) > 1 else 1.0
        return tie * math.prod(math.exp(theta[i]) for i in members) ** (1 / len(members)) if members else 0.0

    while left:
        chosen = {i for i in left if ranks[i] == min(ranks[j] for j in left)}
        subsets = (
            {i for i, bit in zip(sorted(left), bits, strict=True) if bit} for bits in product((0, 1), repeat=len(left))
        )
        probability *= strength(chosen) / sum(map(strength, subsets))
        left -= chosen
    return probability


TIED = [[1, 1, 3, 4], [1, 2, 2, 4], [2, 1, 2, 4], [1, 2, 3, 3], [4, 1, 1, 1], [3, 2, 1, 4], [2, 3, 1, 3], [1, 4, 3, 2]]


def test_the_likelihood_by_brute_force_sums_to_one() -> None:
    weak_orders = [ranks for ranks in product(range(1, 4), repeat=3) if competition_ranks(ranks) == list(ranks)]
    assert len(weak_orders) == 13
    shares = [likelihood_by_brute_force(ranks, [0.5, -0.1, 0.3], {2: 0.4, 3: 0.2}) for ranks in weak_orders]
    assert sum(shares) == pytest.approx(1)


def test_fit_with_ties_is_the_maximum_of_the_likelihood_by_brute_force() -> None:
    rankings = from_lists(TIED)
    assert rankings.tie_sizes == (2, 3)

    def loss(x: np.ndarray) -> float:
        delta = {2: math.exp(x[4]), 3: math.exp(x[5])}
        likelihood = math.fsum(math.log(likelihood_by_brute_force(ranks, x[:4].tolist(), delta)) for ranks in TIED)
        return -likelihood - 0.5 * float(np.sum(x[:4] - 2 * np.logaddexp(0, x[:4])))

    best = minimize(loss, np.zeros(6), options={"gtol": 1e-9})
    assert rankings.fit()[0] == pytest.approx(best.x, abs=1e-5)


def test_weights_are_repetitions_and_rows_do_not_touch() -> None:
    weights = np.array([[1.0, 2, 0, 1, 1, 3, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    repeated = [row for row, count in zip(TIED, weights[0], strict=True) for _ in range(int(count))]
    found = from_lists(TIED).fit(weights)
    assert found[0] == pytest.approx(from_lists(repeated).fit()[0])
    assert found[1] == pytest.approx(np.zeros(6), abs=1e-9), "nobody answered: all worths are equal"
    assert found[2] == pytest.approx(from_lists(TIED).fit()[0])


def test_a_ranking_of_some_methods_says_nothing_of_the_others() -> None:
    rankings = TiedRankings.from_ranks([{0: 1, 1: 2}, {1: 1, 0: 2}, {0: 1, 1: 2}], 3)
    first, second, unseen = rankings.fit()[0]
    assert unseen == pytest.approx(0, abs=1e-9)
    assert first > 0 > second


@pytest.mark.parametrize("n", [1, 40, 5000])
def test_separated_rankings_have_finite_worths_and_are_known(n: int) -> None:
    rankings = from_lists([[1, 2, 3], [1, 3, 2]] * n)
    worths = rankings.fit()[0]
    assert np.isfinite(worths).all()
    assert worths[0] > worths[1] == pytest.approx(worths[2])
    comparable = rankings.comparability
    assert not comparable.is_bounded_above(0, 1)
    assert comparable.is_bounded_below(0, 1)
    assert comparable.is_bounded_above(1, 2)
    assert comparable.is_bounded_below(1, 2)


@pytest.mark.parametrize("n", [1, 9, 20_000])
def test_ties_alone_bound_nothing(n: int) -> None:
    rankings = from_lists([[1, 1, 1]] * n)
    assert rankings.fit()[0][:3] == pytest.approx(np.zeros(3), abs=1e-9)
    assert not rankings.comparability.is_bounded_above(0, 1)


def test_draws_have_the_probabilities_of_the_model() -> None:
    theta, delta = [0.6, 0.0, -0.4], {2: 0.5, 3: 0.1}
    drawn = draw_ranks(
        np.tile(theta, (40_000, 1)), {size: math.log(each) for size, each in delta.items()}, np.random.default_rng(1)
    )
    found, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(found) == 13
    for ranks, count in zip(found.tolist(), counts.tolist(), strict=True):
        expected = likelihood_by_brute_force(ranks, theta, delta)
        assert abs(count / 40_000 - expected) < 4 * math.sqrt(expected / 40_000)
