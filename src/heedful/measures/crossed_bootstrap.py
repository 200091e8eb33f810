"""Intervals for answers of people about items: a bootstrap over both, which are crossed.

Answers of one person resemble each other, and so do answers about one item; conclusions are about other people and
other items. Three bootstraps give the covariances V of the statistics if people, items or single answers are drawn
again, and

    V(people) + V(items) - V(answers)

is the covariance with both (Cameron, Gelbach & Miller 2011). Drawing people and items at once instead (the pigeonhole
bootstrap, Owen 2007) counts the noise of single answers three times. Bounds are those of Student's t with as many
degrees of freedom as there are people or items, whichever is less, minus 1: one person says nothing about others, and
the interval is unbounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heedful.measures.bootstrap import LEVEL

_Array = NDArray[np.float64]
Statistics = Callable[[_Array], _Array]
"""From weights `[resample answer]` to numbers `[resample statistic]`; NaN where they are undefined."""

_RESAMPLES = 1000
"""Of each of the three bootstraps: a standard error is then known within 2 %."""
MIN_DEFINED = 100
"""With fewer resamples in which all statistics are defined there is no interval."""
SIMULTANEOUS_DRAWS = 20_000
_MAX_CELLS = 4_000_000


@dataclass(frozen=True, eq=False)
class CrossedBootstrap:
    """Estimates `[statistic]` with their covariances `[statistic statistic]` over people, items and answers.

    Args:
        known: statistics that are defined in enough resamples, `[statistic]`; the others have no bounds.
    """

    estimate: _Array
    people: _Array
    items: _Array
    answers: _Array
    known: NDArray[np.bool_]
    n_people: int
    n_items: int

    @property
    def degrees_of_freedom(self) -> int:
        """One less than there are people or items, whichever is less."""
        return min(self.n_people, self.n_items) - 1

    def variances(self, contrasts: _Array, floor: _Array | float = 0.0) -> _Array:
        """The variance of each linear contrast of the statistics, `[contrast]`, given one row of coefficients for each.

        At least that over people alone, that over items alone, and `floor`: the difference may come out too small.
        """
        if self.degrees_of_freedom < 1:
            return np.full(len(contrasts), np.inf)
        people, items, answers = (
            np.einsum("ij,jk,ik->i", contrasts, covariance, contrasts)
            for covariance in (self.people, self.items, self.answers)
        )
        parts = [people, items, people + items - answers, np.broadcast_to(floor, people.shape)]
        touched = (contrasts[:, ~self.known] != 0).any(1)
        variances: _Array = np.where(touched, np.inf, np.maximum.reduce(parts))
        return variances

    def bounds(
        self,
        contrasts: _Array,
        floor: _Array | float = 0.0,
        *,
        level: float = LEVEL,
        rng: np.random.Generator | None = None,
    ) -> tuple[_Array, _Array, _Array]:
        """Value, lower and upper bound of each contrast.

        Args:
            floor: smallest variances.
            rng: if given, all intervals hold at once with probability `level` (the largest |t| of all contrasts).
        """
        values, variances = contrasts @ self.estimate, self.variances(contrasts, floor)
        if self.degrees_of_freedom < 1:
            return values, np.full(len(values), -np.inf), np.full(len(values), np.inf)
        quantile = stats.t.ppf((1 + level) / 2, self.degrees_of_freedom)
        if rng is not None and len(contrasts):
            quantile = max(quantile, self._simultaneous_quantile(contrasts, level, rng))
        half = quantile * np.sqrt(variances)
        return values, values - half, values + half

    def _simultaneous_quantile(self, contrasts: _Array, level: float, rng: np.random.Generator) -> float:
        """Of the largest of correlated |t|; draws share one estimate of the scale, as in Tukey's test."""
        covariance = contrasts @ (self.people + self.items - self.answers) @ contrasts.T
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values.clip(min=0.0))
        scale = np.sqrt((root**2).sum(1)).clip(min=1e-300)
        normal = rng.standard_normal((SIMULTANEOUS_DRAWS, root.shape[1])) @ (root / scale[:, None]).T
        chi = np.sqrt(rng.chisquare(self.degrees_of_freedom, SIMULTANEOUS_DRAWS) / self.degrees_of_freedom)
        return float(np.quantile(np.abs(normal).max(1) / chi, level))


def crossed_bootstrap(
    people: NDArray[np.int64],
    items: NDArray[np.int64],
    statistics: Statistics,
    *,
    rng: np.random.Generator,
    resamples: int = _RESAMPLES,
) -> CrossedBootstrap:
    """Bootstrap the statistics of answers over the people and items, given as numbers `[answer]`.

    One less is drawn than there are, which makes the variance of a mean unbiased (Rao & Wu 1988).
    """
    if not len(people):
        raise ValueError("nothing to resample: no answers")
    estimate = statistics(np.ones((1, len(people))))[0]
    covariances: list[_Array] = []
    sizes, known = [], np.ones(len(estimate), bool)
    for groups in (people, items, np.arange(len(people))):
        names, members = np.unique(groups, return_inverse=True)
        sizes.append(len(names))
        if len(names) < 2:
            covariances.append(np.zeros((len(estimate), len(estimate))))
            continue
        rows = max(1, _MAX_CELLS // len(people))
        parts = [
            statistics(_resampled_weights(len(names), min(rows, resamples - start), rng)[:, members])
            for start in range(0, resamples, rows)
        ]
        covariance, is_known = _covariance_of_defined(np.concatenate(parts))
        covariances.append(covariance)
        known &= is_known
    return CrossedBootstrap(estimate, covariances[0], covariances[1], covariances[2], known, sizes[0], sizes[1])


def _covariance_of_defined(draws: _Array) -> tuple[_Array, NDArray[np.bool_]]:
    """The covariance of draws `[resample statistic]` where they are defined, and which statistics mostly are."""
    defined = np.isfinite(draws)
    counts = defined.sum(0)
    mean = np.where(defined, draws, 0.0).sum(0) / counts.clip(min=1)
    centered = np.where(defined, draws - mean, 0.0)
    pairs = (defined.T.astype(float) @ defined.astype(float)).clip(min=2)
    return centered.T @ centered / (pairs - 1), counts >= min(MIN_DEFINED, len(draws))


def _resampled_weights(count: int, resamples: int, rng: np.random.Generator) -> _Array:
    """How often each of `count` groups is drawn, scaled to a mean of 1, `[resample group]`."""
    drawn = rng.multinomial(count - 1, np.full(count, 1 / count), size=resamples)
    return drawn.astype(np.float64) * (count / (count - 1))


def share_bounds(
    people: NDArray[np.int64],
    items: NDArray[np.int64],
    *,
    hits: _Array,
    tries: _Array,
    contrasts: _Array,
    rng: np.random.Generator,
    at_once: bool,
) -> tuple[list[float], list[float], list[float]]:
    """Contrasts of shares hits / tries `[answer share]` with bounds over people and items `[answer]`.

    Variances are at least those of independent answers with two more of each kind (Agresti & Coull 1998): that nobody
    erred in ten answers does not mean that nobody will. A share of the answers of few people or about few items has
    their degrees of freedom, and of one person or item no bounds.

    Args:
        at_once: whether all intervals hold together with probability .95, or each of them.
    """

    def shares(weights: _Array) -> _Array:
        with np.errstate(invalid="ignore"):
            ratio: _Array = (weights @ hits) / (weights @ tries)
        return ratio

    sample = crossed_bootstrap(people, items, shares, rng=rng)
    count = tries.sum(0) + 4
    smoothed = (hits.sum(0) + 2) / count
    floor = contrasts**2 @ (smoothed * (1 - smoothed) / count)
    values, _, highs = sample.bounds(contrasts, floor, level=LEVEL, rng=rng if at_once else None)
    groups = np.array([min(len(set(people[tried])), len(set(items[tried]))) for tried in tries.T > 0])
    half = (highs - values) * _few_groups_factor(np.where(contrasts != 0, groups, len(people)).min(1) - 1, sample)
    return values.tolist(), (values - half).tolist(), (values + half).tolist()


def _few_groups_factor(degrees: NDArray[np.int64], sample: CrossedBootstrap) -> _Array:
    """How much wider intervals are whose shares have fewer people or items than the whole study."""
    if sample.degrees_of_freedom < 1:
        return np.ones(len(degrees))
    quantiles = stats.t.ppf((1 + LEVEL) / 2, degrees.clip(1, sample.degrees_of_freedom))
    factor: _Array = np.where(degrees < 1, np.inf, quantiles / stats.t.ppf((1 + LEVEL) / 2, sample.degrees_of_freedom))
    return factor
