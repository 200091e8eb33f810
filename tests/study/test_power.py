"""Power of studies: against the t test where that is exact, and its direction in every number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from heedful.study import power
from heedful.study.design import StudyOptions
from heedful.study.power import StudyShape, describe_power, gain_power, people_needed, preference_power
from tests.study.test_design import study

SHAPE = StudyShape(n_methods=2, n_items=50, n_rankings=20, n_guesses=18)


def test_power_without_differences_of_people_and_items_is_that_of_a_t_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer per person, each about another item: the t test of 40 signs rejects from 27 of one kind on.

    For k of them t = m sqrt(39 / (1 - m^2)) with m = (2 k - 40) / 40, which is 1.96 for 26 and 2.33 for 27.
    """
    monkeypatch.setattr(power, "ASSUMED_SD", 0.0)
    monkeypatch.setattr(power, "ASSUMED_TIES", 0.0)
    monkeypatch.setattr(power, "STUDIES", 1000)
    found = preference_power(StudyShape(2, 5000, 1, 0), 40, 0.65)
    assert found == pytest.approx(stats.binom.sf(26, 40, 0.65) + stats.binom.cdf(13, 40, 0.65), abs=0.03)


def test_no_difference_is_found_at_most_as_often_as_the_level_allows() -> None:
    assert preference_power(SHAPE, 15, 0.5) < 0.08
    assert gain_power(SHAPE, 15, 0.0) < 0.08


def test_power_grows_with_people_and_differences_and_falls_with_methods() -> None:
    assert preference_power(SHAPE, 8, 0.65) < preference_power(SHAPE, 24, 0.65)
    assert preference_power(SHAPE, 12, 0.6) < preference_power(SHAPE, 12, 0.7)
    assert preference_power(StudyShape(6, 50, 20, 0), 12, 0.65) < preference_power(SHAPE, 12, 0.65)
    assert gain_power(SHAPE, 10, 0.2) < gain_power(SHAPE, 40, 0.2)


def test_the_share_is_met_on_average() -> None:
    odds = power._mixed_logit(0.7, 1.0) + np.random.default_rng(0).normal(size=200_000)
    assert (1 / (1 + np.exp(-odds))).mean() == pytest.approx(0.7, abs=0.003)


def test_one_person_or_item_finds_nothing() -> None:
    assert preference_power(SHAPE, 1, 0.8) == 0
    assert preference_power(StudyShape(2, 1, 1, 1), 30, 0.8) == 0


def test_people_needed_are_the_first_with_enough_power() -> None:
    assert people_needed(lambda people: people / 100) == 80
    assert people_needed(lambda people: 1.0) == power.PEOPLE[0]
    assert people_needed(lambda people: 0.0) is None


def test_the_shape_of_a_design_counts_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "STUDIES", 10)
    designed = study(StudyOptions(items=12, per_person=14, people=5, task="both", checks=2, repeats=2))
    shape = StudyShape.of(designed)
    assert shape.n_methods == len(designed.methods)
    assert shape.n_rankings + shape.n_guesses == 10
    assert len(describe_power(designed)) == 1 + 1 + len(power.SHARES) + 1 + len(power.GAINS)
