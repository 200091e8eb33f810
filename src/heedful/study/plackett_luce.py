"""Plackett-Luce with ties: worths of methods from rankings, after Davidson (1970) and Firth, Kosmidis & Turner (2019).

A ranking is a sequence of choices. From the methods A that are not placed yet, the set S comes next with probability

    delta_|S| (prod_{i in S} alpha_i)^(1/|S|)  /  sum over T in A of delta_|T| (prod_{i in T} alpha_i)^(1/|T|),

with delta_1 = 1. Without ties this is Plackett (1975) and Luce (1959); for two methods it is Davidson's model, in which
log alpha_i - log alpha_j = log P(i above j) - log P(j above i). With ties and three or more methods this difference is
larger than the log odds, because i may also come first together with a third method: `preference_log_odds` has the log
odds. In log worths and log deltas the likelihood is concave.

A method that is always first has no finite worth. As in the R package PlackettLuce, every method also wins and loses
half a comparison against a method of worth 1 that nobody saw: the estimate is then unique and finite for all answers,
even for none. The tie parameters are not part of these comparisons. `Comparability` says which differences the answers
themselves bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit, logsumexp

_Array = NDArray[np.float64]
Members = tuple[int, ...]
"""Methods by number, in ascending order."""

PSEUDO_COMPARISONS = 0.5
"""Wins and losses of every method against a method of worth 1: the default of the R package PlackettLuce."""
MAX_STEP = 1.0
"""Largest change of a log worth in one Newton step: far from the maximum, curvature does not help."""
MAX_ITERATIONS = 200
_TOLERANCE = 1e-15
"""Smallest gain in log likelihood for which another Newton step is taken."""
TIE_CURVATURE = 1e-6
"""Curvature of a parabola that keeps log deltas finite where the answers do not bound them; too flat to move others."""


@dataclass(frozen=True)
class TiedRankings:
    """Rankings as counted choices.

    Args:
        n_methods: methods are 0 to n_methods - 1.
        choices: each choice that occurs: the methods that were left, and those that came next.
        counts: how often each ranking has each choice, `[ranking choice]`.
    """

    n_methods: int
    choices: tuple[tuple[Members, Members], ...]
    counts: csr_array

    @staticmethod
    def from_ranks(ranks: Sequence[Mapping[int, int]], n_methods: int) -> TiedRankings:
        """From the rank of each ranked method; equal ranks are ties, a ranking may leave methods out."""
        numbers: dict[tuple[Members, Members], int] = {}
        rows, columns = [], []
        for row, ranking in enumerate(ranks):
            for choice in choices_of(ranking):
                rows.append(row)
                columns.append(numbers.setdefault(choice, len(numbers)))
        ones = np.ones(len(rows))
        counts = csr_array((ones, (rows, columns)), shape=(len(ranks), len(numbers)))
        return TiedRankings(n_methods, tuple(numbers), counts)

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    @cached_property
    def tie_sizes(self) -> tuple[int, ...]:
        """Sizes of ties that occur, ascending; the likelihood is largest if others are impossible."""
        return tuple(sorted({len(chosen) for _, chosen in self.choices if len(chosen) > 1}))

    @cached_property
    def _options(self) -> list[tuple[list[int], _Array, _Array]]:
        """For each set of methods: the numbers of its choices, what was chosen, and what could have been.

        A row of features gives the log of the numerator as its product with the parameters.
        """
        chosen_from: dict[Members, list[int]] = {}
        for number, (left, _) in enumerate(self.choices):
            chosen_from.setdefault(left, []).append(number)
        return [
            (
                numbers,
                np.array([self._features(self.choices[number][1]) for number in numbers]),
                np.array([self._features(choice) for choice in possible_choices(left, self.tie_sizes)]),
            )
            for left, numbers in chosen_from.items()
        ]

    def _features(self, chosen: Members) -> _Array:
        row = np.zeros(self.n_methods + len(self.tie_sizes))
        row[list(chosen)] = 1 / len(chosen)
        if len(chosen) > 1:
            row[self.n_methods + self.tie_sizes.index(len(chosen))] = 1.0
        return row

    def fit(self, weights: _Array | None = None, start: _Array | None = None) -> _Array:
        """Log worths, then log deltas of `tie_sizes`, `[resample parameter]`, for weights `[resample ranking]`.

        The maximum of the likelihood with half a pseudo-comparison, by Newton's method on all rows at once.
        """
        weights = np.ones((1, len(self))) if weights is None else weights
        counts: _Array = np.asarray(self.counts.T @ weights.T).T
        size = self.n_methods + len(self.tie_sizes)
        parameters = np.zeros((len(weights), size)) if start is None else np.tile(start, (len(weights), 1))
        active = np.arange(len(weights))
        for _ in range(MAX_ITERATIONS):
            gradient, information = self._derivatives(parameters[active], counts[active])
            step = np.linalg.solve(information, gradient[..., None])[..., 0]
            longest = np.abs(step).max(1, keepdims=True)
            parameters[active] += step * (MAX_STEP / np.maximum(longest, MAX_STEP))
            active = active[(gradient * step).sum(1) > _TOLERANCE]
            if not len(active):
                return parameters
        raise ArithmeticError(f"Newton's method did not converge on {len(active)} of {len(weights)} samples")

    def information(self, parameters: _Array) -> _Array:
        """Minus the second derivatives of the penalised log likelihood at the parameters of one fit."""
        matrix: _Array = self._derivatives(parameters[None], np.asarray(self.counts.sum(0))[None])[1][0]
        return matrix

    def preference_log_odds(self, parameters: _Array) -> _Array:
        """log P(i above j) - log P(j above i) in a ranking of all methods, `[row i j]`, for rows of parameters.

        The sum over all ways in which sets of methods come next; 0 on the diagonal.
        """
        every = tuple(range(self.n_methods))
        reached = {every: np.ones(len(parameters))}
        above = np.zeros((len(parameters), self.n_methods, self.n_methods))
        for size in range(self.n_methods, 1, -1):
            for left in [members for members in reached if len(members) == size]:
                options = possible_choices(left, self.tie_sizes)
                logits = parameters @ np.array([self._features(chosen) for chosen in options]).T
                shares = np.exp(logits - logsumexp(logits, axis=1, keepdims=True)) * reached[left][:, None]
                for share, chosen in zip(shares.T, options, strict=True):
                    rest = tuple(method for method in left if method not in chosen)
                    above[:, np.array(chosen)[:, None], np.array(rest, int)] += share[:, None, None]
                    reached[rest] = reached.get(rest, 0.0) + share
        above[:, every, every] = 1.0
        log_odds: _Array = np.log(above) - np.log(above.swapaxes(1, 2))
        return log_odds

    def _derivatives(self, parameters: _Array, counts: _Array) -> tuple[_Array, _Array]:
        """Gradient and information of the penalised log likelihood for each row of parameters and counts."""
        share = expit(parameters)
        diagonal = np.arange(parameters.shape[1])
        is_worth = diagonal < self.n_methods
        gradient = np.where(is_worth, PSEUDO_COMPARISONS * (1 - 2 * share), -TIE_CURVATURE * parameters)
        information = np.zeros((*parameters.shape, parameters.shape[1]))
        information[:, diagonal, diagonal] = np.where(
            is_worth, 2 * PSEUDO_COMPARISONS * share * (1 - share), TIE_CURVATURE
        )
        for numbers, chosen, possible in self._options:
            here = counts[:, numbers]
            total = here.sum(1)
            logits = parameters @ possible.T
            probability = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
            mean = probability @ possible
            gradient = gradient + here @ chosen - total[:, None] * mean
            squares = (probability * total[:, None]) @ (possible[:, :, None] * possible[:, None, :]).reshape(
                len(possible), -1
            )
            outer = (mean * total[:, None])[:, :, None] * mean[:, None, :]
            information += squares.reshape(information.shape) - outer
        return gradient, information

    @cached_property
    def comparability(self) -> Comparability:
        """Who was ranked above whom, directly or through others."""
        above = np.zeros((self.n_methods, self.n_methods), bool)
        tied = np.zeros_like(above)
        for left, chosen in self.choices:
            rest = [method for method in left if method not in chosen]
            above[np.ix_(list(chosen), rest)] = True
            tied[np.ix_(list(chosen), list(chosen))] = True
        reach = above | tied | np.eye(self.n_methods, dtype=bool)
        for _ in range(self.n_methods):
            reach = reach | (reach.astype(int) @ reach.astype(int) > 0)
        return Comparability(reach, bool(above.any()))


@dataclass(frozen=True, eq=False)
class Comparability:
    """Which differences of log worths the answers bound.

    Args:
        reaches: whether i was ranked above or level with j, or with some method of which this holds, `[i j]`.
        has_preference: whether any method was ever ranked above another.
    """

    reaches: NDArray[np.bool_]
    has_preference: bool

    def is_bounded_above(self, one: int, other: int) -> bool:
        """Whether a chain of rankings puts `other` above or level with `one`; else nothing limits `one`."""
        return self.has_preference and bool(self.reaches[other, one])

    def is_bounded_below(self, one: int, other: int) -> bool:
        return self.is_bounded_above(other, one)


def choices_of(ranks: Mapping[int, int]) -> list[tuple[Members, Members]]:
    """The choices of one ranking, best first; a last method that is left alone was not chosen.

    >>> choices_of({0: 2, 1: 1, 2: 2, 3: 4})
    [((0, 1, 2, 3), (1,)), ((0, 2, 3), (0, 2))]
    """
    left, choices = sorted(ranks), []
    for rank in sorted(set(ranks.values())):
        chosen = tuple(method for method in left if ranks[method] == rank)
        if len(left) > 1:
            choices.append((tuple(left), chosen))
        left = [method for method in left if ranks[method] != rank]
    return choices


def possible_choices(left: Members, tie_sizes: Sequence[int]) -> list[Members]:
    """Single methods, and ties of the given sizes.

    >>> possible_choices((0, 2, 3), (2,))
    [(0,), (2,), (3,), (0, 2), (0, 3), (2, 3)]
    """
    return [members for size in (1, *tie_sizes) for members in combinations(left, size)]


def draw_ranks(log_worths: _Array, log_deltas: Mapping[int, float], rng: np.random.Generator) -> NDArray[np.int64]:
    """A ranking for each row of log worths `[ranking method]`, as competition ranks `[ranking method]`.

    Args:
        log_deltas: by size of tie; ties of other sizes do not occur.
    """
    n_rankings, n_methods = log_worths.shape
    ranks = np.zeros((n_rankings, n_methods), np.int64)
    left = np.full(n_rankings, 2**n_methods - 1)
    while left.any():
        for members in np.unique(left[left > 0]).tolist():
            rows = np.flatnonzero(left == members)
            names = tuple(method for method in range(n_methods) if members >> method & 1)
            options = possible_choices(names, sorted(log_deltas))
            numerators = [
                log_worths[rows[:, None], np.array(option)].mean(1)
                + (log_deltas[len(option)] if len(option) > 1 else 0.0)
                for option in options
            ]
            # The largest of Gumbel-distributed utilities is a draw from the softmax.
            drawn = (np.stack(numerators, 1) + rng.gumbel(size=(len(rows), len(options)))).argmax(1)
            for number, option in enumerate(options):
                chosen = rows[drawn == number]
                ranks[chosen[:, None], np.array(option)] = n_methods - len(names) + 1
                left[chosen] &= ~sum(1 << method for method in option)
    return ranks
