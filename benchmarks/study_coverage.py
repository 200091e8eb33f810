"""Studies with known answers: does the planted order come out, and do intervals cover the truth at their level?

Run `python -m benchmarks.study_coverage [studies]`. A crowd ranks four maps by a model with ties, and guesses with and
without a map. People and items differ as much as the line says. The truth of a crowd whose members differ is what an
endless study would find: it is computed from 100 000 rankings by as many people of as many items. The line says how
many of the 95 % intervals of differences in worth contain the truth, one by one and all six of a study at once; the
same for the four gains in accuracy; how often the estimated order is the planted one; how many ranks are decided; and
how often the ranks that the intervals allow do not include the true rank.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from heedful.measures.crossed_bootstrap import crossed_bootstrap
from heedful.study.answers import Occasion, Ranking, Simulation
from heedful.study.plackett_luce import TiedRankings, draw_ranks
from heedful.study.rating import accuracy_statistics, ranking_statistics
from heedful.trials._trial import Statistic

METHODS = ("a", "b", "c", "d")
LOG_WORTHS = np.array([0.8, 0.3, -0.3, -0.8])
LOG_DELTAS = {2: -1.5, 3: -3.0}
LOG_ODDS_RIGHT = {None: 0.3, "a": 1.0, "b": 0.5, "c": 0.3, "d": 0.0}
LARGE = 100_000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Crowd:
    """A population of people and items, and the size of a study of it.

    Args:
        person_sd: standard deviation over people of the log worth of a method (and of the log odds of a right guess).
        item_sd: the same over items.
    """

    n_people: int
    n_items: int
    per_person: int
    person_sd: float = 0.0
    item_sd: float = 0.0

    def rankings(self, rng: np.random.Generator) -> list[Ranking]:
        """A study: everybody ranks the maps of `per_person` items."""
        of_people = rng.normal(0, self.person_sd, (self.n_people, len(METHODS)))
        of_items = rng.normal(0, self.item_sd, (self.n_items, len(METHODS)))
        people = np.repeat(np.arange(self.n_people), self.per_person)
        items = np.concatenate([rng.permutation(self.n_items)[: self.per_person] for _ in range(self.n_people)])
        ranks = draw_ranks(LOG_WORTHS + of_people[people] + of_items[items], LOG_DELTAS, rng)
        return [
            Ranking(f"p{person}", f"i{item}", Occasion.MAIN, dict(zip(METHODS, row, strict=True)), 10.0)
            for person, item, row in zip(people.tolist(), items.tolist(), ranks.tolist(), strict=True)
        ]

    def guesses(self, rng: np.random.Generator) -> list[Simulation]:
        """A study: everybody guesses `per_person` items, the same number with each method and with none."""
        arms = [*LOG_ODDS_RIGHT]
        of_people, of_items = rng.normal(0, self.person_sd, self.n_people), rng.normal(0, self.item_sd, self.n_items)
        likes = rng.normal(0, self.person_sd / 2, (self.n_people, len(arms)))
        found = []
        for person in range(self.n_people):
            for place, item in enumerate(rng.permutation(self.n_items)[: self.per_person].tolist()):
                arm = arms[place % len(arms)]
                odds = LOG_ODDS_RIGHT[arm] + of_people[person] + of_items[item] + likes[person, place % len(arms)]
                guess = "yes" if rng.random() < expit(odds) else "no"
                found.append(Simulation(f"p{person}", f"i{item}", Occasion.MAIN, arm, guess, "yes", 10.0))
        return found

    def true_differences(self) -> dict[tuple[int, int], float]:
        """Differences in log worth that an endless study would find."""
        rng = np.random.default_rng(1)
        spread = np.hypot(self.person_sd, self.item_sd)
        drawn = draw_ranks(LOG_WORTHS + rng.normal(0, spread, (LARGE, len(METHODS))), LOG_DELTAS, rng)
        patterns, counts = np.unique(drawn, axis=0, return_counts=True)
        tied = TiedRankings.from_ranks([dict(enumerate(row)) for row in patterns.tolist()], len(METHODS))
        worths = tied.fit(counts[None].astype(float))[0]
        return {(i, j): float(worths[i] - worths[j]) for i, j in combinations(range(len(METHODS)), 2)}

    def true_gains(self) -> dict[str, float]:
        """Gains in accuracy that an endless study would find."""
        noise = np.random.default_rng(1).normal(size=LARGE * 10)
        spread = np.sqrt(self.person_sd**2 * 1.25 + self.item_sd**2)
        right = {arm: float(expit(odds + spread * noise).mean()) for arm, odds in LOG_ODDS_RIGHT.items()}
        return {arm: right[arm] - right[None] for arm in METHODS}


CROWDS = (
    Crowd(8, 20, 20),
    Crowd(8, 20, 20, 0.5),
    Crowd(8, 20, 20, 0.0, 0.5),
    Crowd(8, 20, 20, 0.5, 0.5),
    Crowd(15, 50, 20),
    Crowd(15, 50, 20, 0.5, 0.5),
    Crowd(15, 50, 20, 1.0, 1.0),
    Crowd(40, 50, 20, 0.5, 0.5),
    Crowd(40, 15, 10, 0.5, 0.5),
)


@dataclass
class Tally:
    """How many of how many."""

    hits: int = 0
    total: int = 0

    def add(self, hit: bool) -> None:  # noqa: FBT001
        self.hits += hit
        self.total += 1

    def __str__(self) -> str:
        return f"{100 * self.hits / max(1, self.total):5.1f} %"


def contains(row: Statistic, truth: float) -> bool:
    return row.low <= truth <= row.high


def pigeonhole_covers(
    rankings: Sequence[Ranking], truths: dict[tuple[int, int], float], rng: np.random.Generator
) -> float:
    """The share of 95 % percentile intervals that cover if people and items are drawn at once (Owen 2007)."""
    tied = TiedRankings.from_ranks([dict(zip(range(4), each.ranks.values(), strict=True)) for each in rankings], 4)
    people, items = (
        np.unique([getattr(each, name) for each in rankings], return_inverse=True)[1] for name in ("person", "item")
    )
    n_people, n_items = people.max() + 1, items.max() + 1
    weights = (
        rng.multinomial(n_people, np.full(n_people, 1 / n_people), 400)[:, people]
        * rng.multinomial(n_items, np.full(n_items, 1 / n_items), 400)[:, items]
    ).astype(float)
    worths = tied.fit(weights, tied.fit()[0])
    low, high = np.quantile(np.stack([worths[:, i] - worths[:, j] for i, j in truths], 1), [0.025, 0.975], axis=0)
    return float(np.mean((low <= [*truths.values()]) & ([*truths.values()] <= high)))


def examine(crowd: Crowd, studies: int) -> str:
    """The line of one crowd."""
    differences, gains = crowd.true_differences(), crowd.true_gains()
    one, every, all_gains, order, wrong, decided = (Tally() for _ in range(6))
    pigeonhole = []
    for study in range(studies):
        rng = np.random.default_rng([study, crowd.n_people])
        rankings = crowd.rankings(rng)
        rows = list(ranking_statistics(rankings, METHODS, rng))
        pairs = {row.method: row for row in rows if row.metric == "log_worth_difference"}
        covered = []
        for (i, j), truth in differences.items():
            name, back = f"{METHODS[i]}~{METHODS[j]}", f"{METHODS[j]}~{METHODS[i]}"
            covered.append(contains(pairs[name], truth) if name in pairs else contains(pairs[back], -truth))
        every.add(all(covered))
        places = [row for row in rows if row.metric == "rank"]
        order.add([row.method for row in places] == [*METHODS])
        for row in places:
            wrong.add(not contains(row, METHODS.index(row.method) + 1))
            decided.add(row.low == row.high)
        for hit in _single_intervals(rankings, differences, rng):
            one.add(hit)
        if study % 4 == 0:
            pigeonhole.append(pigeonhole_covers(rankings, differences, rng))
        found = [row for row in accuracy_statistics(crowd.guesses(rng), METHODS, rng) if row.metric == "accuracy_gain"]
        hits = [contains(row, gains[row.method]) for row in found]
        all_gains.add(all(hits))
    return (
        f"{crowd.n_people:3} people, {crowd.n_items} items, {crowd.per_person} each, SD {crowd.person_sd} and "
        f"{crowd.item_sd}: worths {one} one by one (pigeonhole {100 * np.mean(pigeonhole):.1f} %), {every} at once; "
        f"gains {all_gains} at once; order {order}, ranks decided {decided}, excluded though true {wrong}"
    )


def _single_intervals(
    rankings: Sequence[Ranking], differences: dict[tuple[int, int], float], rng: np.random.Generator
) -> list[bool]:
    """Whether each interval, taken alone, covers its truth."""
    tied = TiedRankings.from_ranks([dict(zip(range(4), each.ranks.values(), strict=True)) for each in rankings], 4)
    people, items = (
        np.unique([getattr(each, name) for each in rankings], return_inverse=True)[1] for name in ("person", "item")
    )
    start = tied.fit()[0]
    sample = crossed_bootstrap(people, items, lambda weights: tied.fit(weights, start)[:, :4], rng=rng)
    contrasts = np.array([np.eye(4)[i] - np.eye(4)[j] for i, j in differences])
    model = np.linalg.inv(tied.information(start))[:4, :4]
    _, low, high = sample.bounds(contrasts, np.einsum("ij,jk,ik->i", contrasts, model, contrasts))
    return [bool(a <= truth <= b) for a, b, truth in zip(low, high, differences.values(), strict=True)]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    for each in CROWDS:
        print(examine(each, count), flush=True)
