"""Studies with known answers: does the planted order come out, and do intervals cover the truth at their level?

`python -m benchmarks.study_coverage coverage [studies]`: a crowd ranks four maps by a model with ties, and guesses with
and without a map. People and items differ as much as the line says. The truth of a crowd whose members differ is what
an endless study would find: it is computed from 100 000 rankings by as many people of as many items. The line says how
many of the 95 % intervals of worths contain the truth, one by one, and how often all six of the differences of a study
do at once; the same for the four gains in accuracy; how often the estimated order is the planted one; how many ranks
are decided; and how often the ranks that the intervals allow do not include the true rank.

`... power [studies]`: how often `rate` finds a preference that `study build --dry-run` says is found with 80 %.

`... table-4 [studies]`: three people rank four methods on 100 images, as in Fernandes et al. (2022), by worths for
which TrueSkill with the paper's settings gives the published ratings on average (found by stochastic approximation).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from heedful.results import Statistic
from heedful.study.answers import Occasion, Ranking, Simulation
from heedful.study.plackett_luce import TiedRankings, draw_ranks
from heedful.study.power import ASSUMED_SD, StudyShape, _mixed_logit, people_needed, preference_power
from heedful.study.rating import (
    SkillRating,
    accuracy_statistics,
    partial_order,
    ranking_statistics,
    trueskill_statistics,
)

METHODS = ("a", "b", "c", "d")
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
    log_worths: tuple[float, ...] = (0.8, 0.3, -0.3, -0.8)

    def rankings(self, rng: np.random.Generator) -> list[Ranking]:
        """A study: everybody ranks the maps of `per_person` items."""
        of_people = rng.normal(0, self.person_sd, (self.n_people, len(METHODS)))
        of_items = rng.normal(0, self.item_sd, (self.n_items, len(METHODS)))
        people = np.repeat(np.arange(self.n_people), self.per_person)
        items = np.concatenate([rng.permutation(self.n_items)[: self.per_person] for _ in range(self.n_people)])
        ranks = draw_ranks(self.log_worths + of_people[people] + of_items[items], LOG_DELTAS, rng)
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

    def true_worths(self) -> Array:
        """Log worths that an endless study would find."""
        rng = np.random.default_rng(1)
        spread = np.hypot(self.person_sd, self.item_sd)
        drawn = draw_ranks(self.log_worths + rng.normal(0, spread, (LARGE, len(METHODS))), LOG_DELTAS, rng)
        patterns, counts = np.unique(drawn, axis=0, return_counts=True)
        tied = TiedRankings.from_ranks([dict(enumerate(row)) for row in patterns.tolist()], len(METHODS))
        worths = tied.fit(counts[None].astype(float))[0][: len(METHODS)]
        found: Array = worths - worths.mean()
        return found

    def true_gains(self) -> dict[str, float]:
        """Gains in accuracy that an endless study would find."""
        noise = np.random.default_rng(1).normal(size=LARGE * 10)
        spread = np.sqrt(self.person_sd**2 * 1.25 + self.item_sd**2)
        right = {arm: float(expit(odds + spread * noise).mean()) for arm, odds in LOG_ODDS_RIGHT.items()}
        return {arm: right[arm] - right[None] for arm in METHODS}


CROWDS = (
    Crowd(8, 20, 20),
    Crowd(8, 20, 20, 0.5, 0.5),
    Crowd(15, 50, 20),
    Crowd(15, 50, 20, 0.5, 0.5),
    Crowd(15, 50, 20, 1.0, 1.0),
    Crowd(40, 15, 10, 0.5, 0.5),
    Crowd(40, 50, 20, 0.5, 0.5),
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
    worths, gains = crowd.true_worths(), crowd.true_gains()
    differences = {(i, j): float(worths[i] - worths[j]) for i, j in combinations(range(len(METHODS)), 2)}
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
        for row in rows:
            if row.metric == "log_worth":
                one.add(contains(row, worths[METHODS.index(row.method)]))
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


PAPER_METHODS = ("GxI", "IG", "attention, all layers", "SMaT")
PAPER_CROWD = Crowd(3, 100, 100, log_worths=(-0.95, -0.74, 0.23, 1.46))
PUBLISHED = {"GxI": (-2.7, 0.67), "IG": (-2.1, 0.67), "attention, all layers": (0.7, 0.67), "SMaT": (4.3, 0.7)}


def reproduce_table_4(studies: int) -> Iterator[str]:
    """What `rate` says of studies like that of the paper."""
    ratings: dict[str, list[tuple[float, float]]] = {name: [] for name in PUBLISHED}
    published_order = partial_order({name: SkillRating(*pair) for name, pair in PUBLISHED.items()})
    same_order, decided, correct = Tally(), Tally(), Tally()
    for study in range(studies):
        rng = np.random.default_rng(study)
        drawn = PAPER_CROWD.rankings(rng)
        given = [replace(each, ranks=dict(zip(PAPER_METHODS, each.ranks.values(), strict=True))) for each in drawn]
        rows = [*ranking_statistics(given, PAPER_METHODS, rng), *trueskill_statistics(given, PAPER_METHODS, rng)]
        found = {(row.metric, row.method): row for row in rows}
        for name, pairs in ratings.items():
            pairs.append((found["trueskill", name].value, found["trueskill_sigma", name].value))
        order = {name: (found["trueskill_rank", name].low, found["trueskill_rank", name].high) for name in PUBLISHED}
        same_order.add(order == published_order)
        for row in rows:
            if row.metric == "log_worth_difference":
                decided.add(row.low > 0)
                correct.add(row.method in (f"{one}~{other}" for one, other in combinations(PAPER_METHODS[::-1], 2)))
    for name, pairs in ratings.items():
        (mu, sigma), spread = np.mean(pairs, 0), np.std([mu for mu, _ in pairs])
        ours = f"mu {mu:5.2f} (SD over studies {spread:.2f}), sigma {sigma:.3f}"
        yield f"{name:22} {ours}; published {PUBLISHED[name][0]}, {PUBLISHED[name][1]}"
    yield f"the published ranks {same_order}; differences decided with three people {decided}, in order {correct}"


def check_power(studies: int) -> Iterator[str]:
    """How often a preference is found by as many people as are said to find it with 80 %."""
    shape = StudyShape(len(METHODS), 50, 16, 0)
    for share in (0.65, 0.7, 0.8):
        needed = people_needed(lambda people, share=share: preference_power(shape, people, share))  # type: ignore[misc]
        assert needed is not None
        odds = _mixed_logit(share, 4 * ASSUMED_SD**2)
        crowd = Crowd(needed, 50, 16, ASSUMED_SD, ASSUMED_SD, (odds, 0.0, 0.0, 0.0))
        found = Tally()
        for study in range(studies):
            rng = np.random.default_rng([study, needed])
            rows = ranking_statistics(crowd.rankings(rng), METHODS, rng)
            found.add(any(row.low > 0 for row in rows if (row.metric, row.method) == ("log_worth_difference", "a~b")))
        yield f"preferred in {share:.0%}: {needed} people are said to be enough; found in {found} of {studies} studies"


if __name__ == "__main__":
    what, count = (*sys.argv[1:], "coverage")[0], int((*sys.argv[2:], "100")[0])
    lines = {
        "coverage": (examine(each, count) for each in CROWDS),
        "power": check_power(count),
        "table-4": reproduce_table_4(count),
    }
    for line in lines[what]:
        print(line, flush=True)
