"""How many people a study needs: the power to tell two methods apart, or a method from no explanation, by simulation.

Studies of the planned shape are drawn from a population in which people and items differ, and a difference counts as
found if its interval, made as in `rating` and as wide as intervals that hold all at once, excludes 0. To be quick, the
variance over people and items is that of a mean in closed form, which the bootstrap estimates, and Bonferroni's level
stands for that of the largest t: the numbers of people are a little too large rather than too small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit

from heedful.study.answers import Occasion
from heedful.study.design import Study, StudyTask

_Array = NDArray[np.float64]

ASSUMED_SD = 0.5
"""Standard deviation over people, and over items, of a method's log worth and of the log odds of a right guess."""
ASSUMED_TIES = 0.1
ASSUMED_ACCURACY = 0.6
"""Of guesses without an explanation."""
TARGET = 0.8
_LEVEL = 0.95
SHARES = (0.55, 0.6, 0.65, 0.7, 0.8)
"""Shares of decided comparisons in which the better method is above the other."""
GAINS = (0.05, 0.1, 0.15, 0.2, 0.3)
PEOPLE = (3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, 500)
STUDIES = 300


@dataclass(frozen=True)
class StudyShape:
    """The numbers that decide about power; answers are those of one person that count."""

    n_methods: int
    n_items: int
    n_rankings: int
    n_guesses: int

    @staticmethod
    def of(study: Study) -> StudyShape:
        """Of a study that was designed."""
        plan = next(iter(study.plans.values()))
        main = [slot for slot in plan if slot.occasion is Occasion.MAIN]
        items = {slot.item for slots in study.plans.values() for slot in slots if slot.occasion is Occasion.MAIN}
        n_rankings = sum(slot.task is StudyTask.RANK for slot in main)
        return StudyShape(len(study.methods), len(items), n_rankings, len(main) - n_rankings)


def preference_power(shape: StudyShape, n_people: int, share: float, *, seed: int = 0) -> float:
    """The probability that a preference of this share is found between two of the methods."""
    rng = np.random.default_rng(seed)
    people, items = _drawn_answers(shape.n_items, shape.n_rankings, n_people, rng)
    # A comparison has the differences of two methods.
    spread = ASSUMED_SD * np.sqrt(2.0)
    odds = _mixed_logit(share, 2 * spread**2) + _effects(people, items, n_people, shape.n_items, spread, rng)
    above = np.where(rng.random(odds.shape) < expit(odds), 1.0, -1.0)
    scores = np.where(rng.random(odds.shape) < ASSUMED_TIES, 0.0, above)
    mean = scores.mean(1)
    residuals = (scores - mean[:, None]) / scores.shape[1]
    detected = _is_found(mean, residuals, people, items, n_people, shape.n_items, comb(shape.n_methods, 2))
    return float(detected.mean())


def gain_power(shape: StudyShape, n_people: int, gain: float, *, seed: int = 0) -> float:
    """The probability that a gain in accuracy of this size is found for one of the methods."""
    rng = np.random.default_rng(seed)
    people, items = _drawn_answers(shape.n_items, shape.n_guesses, n_people, rng)
    arms = rng.permuted(np.broadcast_to(np.arange(people.shape[1]) % (shape.n_methods + 1), people.shape), axis=1)
    with_method, without = arms == 1, arms == 0
    without_odds, with_odds = (
        _mixed_logit(share, 2 * ASSUMED_SD**2) for share in (ASSUMED_ACCURACY, ASSUMED_ACCURACY + gain)
    )
    odds = np.where(with_method, with_odds, without_odds)
    odds = odds + _effects(people, items, n_people, shape.n_items, ASSUMED_SD, rng)
    right = (rng.random(odds.shape) < expit(odds)).astype(float)
    means, residuals = [], np.zeros_like(right)
    for sign, arm in ((1.0, with_method), (-1.0, without)):
        count = arm.sum(1, keepdims=True).clip(min=1)
        mean = (right * arm).sum(1, keepdims=True) / count
        means.append(sign * mean[:, 0])
        residuals += sign * arm * (right - mean) / count
    detected = _is_found(means[0] + means[1], residuals, people, items, n_people, shape.n_items, shape.n_methods)
    return float((detected & (with_method.sum(1) > 1) & (without.sum(1) > 1)).mean())


def _drawn_answers(
    n_items: int, n_answers: int, n_people: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """People and items of the answers of each study, `[study answer]`; nobody sees an item twice."""
    n_answers = min(n_answers, n_items)
    people = np.broadcast_to(np.repeat(np.arange(n_people), n_answers), (STUDIES, n_people * n_answers))
    # Everybody gets a run of items that begins anywhere; items have no order, so that this is as good as any draw.
    first = rng.integers(n_items, size=(STUDIES, n_people, 1))
    return people, ((first + np.arange(n_answers)) % n_items).reshape(STUDIES, -1)


def _effects(
    people: NDArray[np.int64],
    items: NDArray[np.int64],
    n_people: int,
    n_items: int,
    spread: float,
    rng: np.random.Generator,
) -> _Array:
    """What the person and the item of each answer add to the log odds."""
    of_people, of_items = (rng.normal(0.0, spread, (STUDIES, count)) for count in (n_people, n_items))
    effects: _Array = np.take_along_axis(of_people, people, 1) + np.take_along_axis(of_items, items, 1)
    return effects


def _mixed_logit(share: float, variance: float) -> float:
    """The log odds around which normal log odds of this variance give the share on average."""
    places, weights = np.polynomial.hermite_e.hermegauss(40)

    def excess(odds: float) -> float:
        return float(expit(odds + np.sqrt(variance) * places) @ weights / weights.sum()) - share

    return float(brentq(excess, -30.0, 30.0))


def _is_found(
    values: _Array,
    residuals: _Array,
    people: NDArray[np.int64],
    items: NDArray[np.int64],
    n_people: int,
    n_items: int,
    n_comparisons: int,
) -> NDArray[np.bool_]:
    """Whether the intervals of sums of residuals exclude 0, for each study."""
    freedom = min(n_people, n_items) - 1
    if freedom < 1:
        return np.zeros(len(values), bool)
    over_people, over_items = (
        _clustered_variance(residuals, members, count) for members, count in ((people, n_people), (items, n_items))
    )
    over_answers = (residuals**2).sum(1) * residuals.shape[1] / (residuals.shape[1] - 1)
    variance = np.maximum.reduce([over_people, over_items, over_people + over_items - over_answers])
    quantile = stats.t.ppf(1 - (1 - _LEVEL) / 2 / n_comparisons, freedom)
    detected: NDArray[np.bool_] = np.abs(values) > quantile * np.sqrt(variance)
    return detected


def _clustered_variance(residuals: _Array, members: NDArray[np.int64], count: int) -> _Array:
    """The sum over groups of the squared sum of their residuals, without the bias of few groups, for each study."""
    places = members + count * np.arange(len(residuals))[:, None]
    sums = np.bincount(places.ravel(), residuals.ravel(), len(residuals) * count).reshape(-1, count)
    variance: _Array = (sums**2).sum(1) * count / (count - 1)
    return variance


def people_needed(power: Callable[[int], float]) -> int | None:
    """The smallest number of `PEOPLE` that has the power `TARGET`; None if even the largest has not."""
    low, high = 0, len(PEOPLE)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(PEOPLE[middle]) >= TARGET else (middle + 1, high)
    return PEOPLE[low] if low < len(PEOPLE) else None


def describe_power(study: Study) -> list[str]:
    """For each difference, how many people would find it and how probably the planned ones do, in lines."""
    shape, planned = StudyShape.of(study), len(study.plans)
    lines = [
        f"Power, by simulation: people and items differ with a standard deviation of {ASSUMED_SD} in log worth, and in "
        "log odds of a right guess."
    ]
    if shape.n_rankings and shape.n_methods > 1:
        lines.append(f"A method is ranked above another; {ASSUMED_TIES:.0%} of comparisons are ties:")
        for share in SHARES:
            lines.append(
                _power_line(f"{share:.0%} of the time", partial(preference_power, shape, share=share), planned)
            )
    if shape.n_guesses:
        lines.append(f"A method adds to the accuracy of guesses, which is {ASSUMED_ACCURACY:.0%} without a map:")
        for gain in GAINS:
            lines.append(_power_line(f"{100 * gain:.0f} points", partial(gain_power, shape, gain=gain), planned))
    return lines


def _power_line(difference: str, power: Callable[[int], float], planned: int) -> str:
    needed = people_needed(power)
    people = f"{needed} people" if needed else f"more than {PEOPLE[-1]} people, or more items,"
    chance = f"{power(planned):.0%}"
    return f"  {difference}: {people} find it with probability {TARGET:.0%}, the {planned} planned with {chance}."
