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

Array = NDArray[np.float64]
Statistics = Callable[[Array], Array]
"""From weights `[resample answer]` to numbers `[resample statistic]`; NaN where they are undefined."""

RESAMPLES = 1000
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

    estimate: Array
    people: Array
    items: Array
    answers: Array
    known: NDArray[np.bool_]
    n_people: int
    n_items: int

    @property
    def degrees_of_freedom(self) -> int:
        """One less than there are people or items, whichever is less."""
        return min(self.n_people, self.n_items) - 1

    def variances(self, contrasts: Array, floor: Array | float = 0.0) -> Array:
        """The variance of each linear contrast of the statistics, `[contrast]`, of which a row is its coefficients.

        At least that over people alone, that over items alone, and `floor`: the difference may come out too small.
        """
        if self.degrees_of_freedom < 1:
            return np.full(len(contrasts), np.inf)
        people, items, answers = (
            np.einsum("ij,jk,ik->i", contrasts, each, contrasts) for each in (self.people, self.items, self.answers)
        )
        parts = [people, items, people + items - answers, np.broadcast_to(floor, people.shape)]
        touched = (contrasts[:, ~self.known] != 0).any(1)
        found: Array = np.where(touched, np.inf, np.maximum.reduce(parts))
        return found

    def bounds(
        self,
        contrasts: Array,
        floor: Array | float = 0.0,
        *,
        level: float = 0.95,
        rng: np.random.Generator | None = None,
    ) -> tuple[Array, Array, Array]:
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

    def _simultaneous_quantile(self, contrasts: Array, level: float, rng: np.random.Generator) -> float:
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
    resamples: int = RESAMPLES,
) -> CrossedBootstrap:
    """Bootstrap the statistics of answers over the people and items, given as numbers `[answer]`.

    One less is drawn than there are, which makes the variance of a mean unbiased (Rao & Wu 1988).
    """
    if not len(people):
        raise ValueError("nothing to resample: no answers")
    estimate = statistics(np.ones((1, len(people))))[0]
    covariances: list[Array] = []
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


def _covariance_of_defined(draws: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The covariance of draws `[resample statistic]` where they are defined, and which statistics mostly are."""
    defined = np.isfinite(draws)
    counts = defined.sum(0)
    mean = np.where(defined, draws, 0.0).sum(0) / counts.clip(min=1)
    centred = np.where(defined, draws - mean, 0.0)
    pairs = (defined.T.astype(float) @ defined.astype(float)).clip(min=2)
    return centred.T @ centred / (pairs - 1), counts >= min(MIN_DEFINED, len(draws))


def _resampled_weights(count: int, resamples: int, rng: np.random.Generator) -> Array:
    """How often each of `count` groups is drawn, scaled to a mean of 1, `[resample group]`."""
    drawn = rng.multinomial(count - 1, np.full(count, 1 / count), size=resamples)
    return drawn.astype(np.float64) * (count / (count - 1))
