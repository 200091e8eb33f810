"""What the answers of a study say: worths of methods, gains in accuracy, agreement between people, and verdicts.

Rankings are rated by Plackett-Luce with ties, with intervals from a bootstrap over people and items, and beside it by
TrueSkill as Fernandes et al. (2022) did. People who failed more attention checks than the study allowed beforehand are
left out. Repeated items measure reliability and practice items nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful import __version__
from heedful.formatting import join_names
from heedful.measures.bootstrap import LEVEL
from heedful.measures.crossed_bootstrap import CrossedBootstrap, crossed_bootstrap, share_bounds
from heedful.report.build import build_page
from heedful.report.html import write_atomically
from heedful.report.page import page_parts
from heedful.results import (
    SUMMARY_COLUMNS,
    Claim,
    Finding,
    Statistic,
    Verdict,
    find_statistic,
    get_statistic,
    interval_verdict,
    select_statistics,
    stored_texts,
    summary_frame,
)
from heedful.store.recipe import Artefact, Json, Recipe, to_json
from heedful.store.workspace import Workspace
from heedful.study.answers import Occasion, Ranking, Simulation, StudyAnswers, competition_ranks
from heedful.study.plackett_luce import TiedRankings
from heedful.trials.simulability import NO_EXPLANATION
from heedful.types import UserError

_Array = NDArray[np.float64]
MeasurementLevel = Literal["nominal", "ordinal"]
Unit = tuple[str, ...]
"""What several answers are about; the item first."""

EVEN_MARGIN = math.log(0.55 / 0.45)
"""Two methods are as good as each other if neither is ranked above the other more often than 55 to 45."""
DERIVATIVE_STEP = 1e-5
GAIN_MARGIN = 0.01
"""The smallest gain in accuracy that matters, as in simulability trials."""
PAPER_MU, PAPER_SIGMA = 0.0, 0.5
"""Initial ratings of Fernandes et al. (2022); the other constants are those of the package, as in their code."""
NORMAL_QUANTILE = 1.959963984540054
MAX_ORDERS, MAX_GAMES = 10, 3000
"""TrueSkill depends on the order of games: it is averaged over so many orders, of about so many games in all."""
ALPHA_RESAMPLES = 400
MIN_ALPHA_ITEMS = 5
"""With fewer items Krippendorff's alpha has no interval."""
INSTALL = "pip install 'heedful[study]'"


def count_failed_checks(answers: StudyAnswers) -> Counter[str]:
    """How many attention checks each person failed.

    A ranking passes if the map that is known to be bad is last, perhaps with others, but not level with all; a guess
    passes if it is the one that was asked for.
    """
    failed: Counter[str] = Counter(dict.fromkeys(people_of(answers), 0))
    for ranking in answers.rankings:
        if ranking.occasion is Occasion.CHECK and ranking.worst is not None:
            ranks = ranking.ranks.values()
            failed[ranking.person] += not max(ranks) == ranking.ranks[ranking.worst] > min(ranks)
    for guess in answers.simulations:
        if guess.occasion is Occasion.CHECK:
            failed[guess.person] += guess.guess != guess.predicted
    return failed


def people_of(answers: StudyAnswers) -> list[str]:
    """Everybody who answered anything but practice items."""
    return sorted({answer.person for answer in answers.all_answers if answer.occasion is not Occasion.PRACTICE})


def leave_out_careless_people(answers: StudyAnswers) -> StudyAnswers:
    """The answers of those who failed no more checks than the rule of the study allows."""
    failed = count_failed_checks(answers)
    kept = {person for person, count in failed.items() if count <= answers.max_failed_checks}
    return replace(
        answers,
        rankings=tuple(ranking for ranking in answers.rankings if ranking.person in kept),
        simulations=tuple(guess for guess in answers.simulations if guess.person in kept),
    )


def rate_study(answers: StudyAnswers, study: str, *, seed: int = 0, origin: str = "") -> StudyRating:
    """Everything that the answers say, as a tidy table; UserError if nobody's answers count."""
    kept = leave_out_careless_people(answers)
    if not people_of(answers):
        raise UserError(f"nobody has answered the study {study} yet: give people its links, then rate it again")
    if not people_of(kept):
        raise UserError(
            f"all {len(people_of(answers))} people of the study {study} failed more than {answers.max_failed_checks} "
            "attention checks: nobody is left to rate the methods"
        )
    rng, methods = np.random.default_rng(seed), tuple(dict.fromkeys(answers.methods))
    rankings = [ranking for ranking in kept.rankings if ranking.occasion is Occasion.MAIN]
    guesses = [guess for guess in kept.simulations if guess.occasion is Occasion.MAIN]
    rows = [
        *participation_statistics(answers, kept),
        *ranking_statistics(rankings, methods, rng),
        *trueskill_statistics(rankings, methods, rng),
        *accuracy_statistics(guesses, methods, rng),
        *agreement_statistics(kept, rng),
    ]
    return StudyRating(study, tuple(rows), seed, origin)


def participation_statistics(answers: StudyAnswers, kept: StudyAnswers) -> Iterator[Statistic]:
    """Numbers of people, checks and answers, and how long an answer took."""
    failed = count_failed_checks(answers)
    everybody, counted = len(people_of(answers)), len(people_of(kept))
    checks = [answer for answer in answers.all_answers if answer.occasion is Occasion.CHECK]
    numbers = {
        "people": everybody,
        "people_left_out": everybody - counted,
        "people_who_count": counted,
        "checks": len(checks),
        "checks_failed": failed.total(),
        "failed_checks_allowed": answers.max_failed_checks,
        "answers_damaged": answers.damaged,
    }
    yield from (Statistic(name, value=float(number)) for name, number in numbers.items())
    by_kind: dict[str, Sequence[Ranking | Simulation]] = {"rankings": kept.rankings, "guesses": kept.simulations}
    for name, each_of in by_kind.items():
        seconds = [answer.seconds for answer in each_of if answer.occasion is Occasion.MAIN]
        if seconds:
            yield Statistic("answers", subset=name, value=float(len(seconds)))
            yield Statistic("median_seconds", subset=name, value=float(np.median(seconds)), n=len(seconds))


def _groups(answers: Sequence[Ranking | Simulation]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The people and the items of answers as numbers `[answer]`."""
    return _numbers(answer.person for answer in answers), _numbers(answer.item for answer in answers)


def _numbers(names: Iterable[str]) -> NDArray[np.int64]:
    """Each name's number in alphabetical order."""
    return np.unique(list(names), return_inverse=True)[1].astype(np.int64)


def ranking_statistics(
    rankings: Sequence[Ranking], methods: Sequence[str], rng: np.random.Generator
) -> Iterator[Statistic]:
    """Log worths and ranks of the methods, and how pairs compare, best first; rows for methods that were ranked."""
    if not rankings:
        return
    rankings = _with_several(rankings, methods)
    times = Counter(method for ranking in rankings for method in ranking.ranks)
    ranked = [method for method in methods if times[method]]
    if len(ranked) < 2:
        yield from (Statistic("times_ranked", method, value=float(times[method])) for method in methods)
        return
    numbers = {method: number for number, method in enumerate(ranked)}
    tied = TiedRankings.from_ranks(
        [{numbers[name]: rank for name, rank in ranking.ranks.items()} for ranking in rankings], len(ranked)
    )
    fitted = tied.fit()[0]
    best_first = np.argsort(-fitted[: len(ranked)], kind="stable")
    pairs = list(combinations(best_first.tolist(), 2))

    def worths_and_odds(parameters: _Array) -> _Array:
        """Log worths, then the log odds that the first of a pair is ranked above the second, by row of parameters."""
        first, second = np.array(pairs).T
        return np.hstack([parameters[:, : len(ranked)], tied.preference_log_odds(parameters)[:, first, second]])

    sample = crossed_bootstrap(*_groups(rankings), lambda weights: worths_and_odds(tied.fit(weights, fitted)), rng=rng)
    covariance = _model_covariance(tied, fitted, worths_and_odds)
    in_order = sorted(methods, key=lambda name: -fitted[numbers[name]] if name in numbers else math.inf)
    yield from (Statistic("times_ranked", method, value=float(times[method])) for method in in_order)
    odds, differences = _pair_statistics(rankings, ranked, pairs, tied, sample, covariance, rng)
    yield from _worth_statistics(ranked, best_first, tied, sample, covariance, times)
    names = [ranked[method] for method in best_first]
    yield from _rank_statistics(names, odds)
    yield from odds.values()
    yield from differences.values()
    yield from _preference_statistics(rankings, names, rng)


def _with_several(rankings: Iterable[Ranking], methods: Sequence[str]) -> list[Ranking]:
    """The rankings that compare methods of the study, without anything else."""
    comparing = []
    for ranking in rankings:
        names = [name for name in ranking.ranks if name in methods]
        if len(names) > 1:
            places = competition_ranks([ranking.ranks[name] for name in names])
            comparing.append(replace(ranking, ranks=dict(zip(names, places, strict=True)), worst=None))
    return comparing


def _model_covariance(tied: TiedRankings, fitted: _Array, statistics: Callable[[_Array], _Array]) -> _Array:
    """Of the statistics if all answers were independent and the model true: the smallest that is believed.

    The information of the fit, carried over by the derivatives of the statistics (the delta method).
    """
    steps = DERIVATIVE_STEP * np.eye(len(fitted))
    slopes = (statistics(fitted + steps) - statistics(fitted - steps)) / (2 * DERIVATIVE_STEP)
    covariance: _Array = slopes.T @ np.linalg.inv(tied.information(fitted)) @ slopes
    return covariance


def _quadratic(contrasts: _Array, covariance: _Array) -> _Array:
    values: _Array = np.einsum("ij,jk,ik->i", contrasts, covariance, contrasts)
    return values


def _worth_statistics(
    ranked: Sequence[str],
    best_first: NDArray[np.int64],
    tied: TiedRankings,
    sample: CrossedBootstrap,
    covariance: _Array,
    times: Counter[str],
) -> Iterator[Statistic]:
    """The log worth of each method, of which the mean is 0, with its own interval."""
    size = len(ranked)
    contrasts = np.zeros((size, len(covariance)))
    contrasts[:, :size] = np.eye(size) - 1 / size
    values, lows, highs = sample.bounds(contrasts, _quadratic(contrasts, covariance), level=LEVEL)
    comparable = tied.comparability
    for one in best_first:
        others = [other for other in range(size) if other != one]
        low = lows[one] if all(comparable.is_bounded_below(one, other) for other in others) else -math.inf
        high = highs[one] if all(comparable.is_bounded_above(one, other) for other in others) else math.inf
        name = ranked[one]
        yield Statistic("log_worth", name, "", float(values[one]), float(low), float(high), float(times[name]))


def _pair_statistics(
    rankings: Sequence[Ranking],
    ranked: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    tied: TiedRankings,
    sample: CrossedBootstrap,
    covariance: _Array,
    rng: np.random.Generator,
) -> tuple[dict[tuple[str, str], Statistic], dict[tuple[str, str], Statistic]]:
    """Log odds of each pair, and differences of log worths, better first, each with intervals that hold all at once.

    Where one method was never ranked below the other, even through others, neither has an upper bound. The lower bound
    is then also at most the one of as many unanimous votes as there are people or items, whichever is less: the
    bootstrap sees no doubt where everybody agrees.
    """
    size = len(ranked)
    odds, differences = (np.zeros((len(pairs), len(covariance))) for _ in range(2))
    odds[:, size:] = np.eye(len(pairs))
    for row, (one, other) in enumerate(pairs):
        differences[row, one], differences[row, other] = 1.0, -1.0
    tail = (1 - LEVEL) / 2 / len(pairs)
    by_scale: list[dict[tuple[str, str], Statistic]] = []
    for metric, contrasts in (("log_odds", odds), ("log_worth_difference", differences)):
        bounded = sample.bounds(contrasts, _quadratic(contrasts, covariance), level=LEVEL, rng=rng)
        rows = {}
        for (one, other), value, low, high in zip(pairs, *(bounds.tolist() for bounds in bounded), strict=True):
            above, below, n = _strict_preferences(rankings, ranked[one], ranked[other])
            if not tied.comparability.is_bounded_above(one, other):
                low, high = min(low, _unanimous_bound(above, tail)), math.inf
            if not tied.comparability.is_bounded_below(one, other):
                low, high = -math.inf, max(high, -_unanimous_bound(below, tail))
            name = f"{ranked[one]}~{ranked[other]}"
            rows[ranked[one], ranked[other]] = Statistic(metric, name, "", value, low, high, n)
        by_scale.append(rows)
    return by_scale[0], by_scale[1]


def _strict_preferences(
    rankings: Sequence[Ranking], one: str, other: str
) -> tuple[list[Ranking], list[Ranking], float]:
    """The rankings with the first method above and below the second, and the number of those that have both."""
    both = [ranking for ranking in rankings if one in ranking.ranks and other in ranking.ranks]
    above = [ranking for ranking in both if ranking.ranks[one] < ranking.ranks[other]]
    below = [ranking for ranking in both if ranking.ranks[one] > ranking.ranks[other]]
    return above, below, float(len(both))


def _unanimous_bound(votes: Sequence[Ranking], tail: float) -> float:
    """The log odds that are still likely if all these rankings prefer the same method, one vote a person or item."""
    count = min(len({vote.person for vote in votes}), len({vote.item for vote in votes}))
    if not count:
        return -math.inf
    share = tail ** (1 / count)
    return math.log(share / (1 - share))


def _rank_statistics(best_first: Sequence[str], odds: Mapping[tuple[str, str], Statistic]) -> Iterator[Statistic]:
    """The place of each method, and the best and worst that the log odds of pairs allow."""
    sure = {pair for pair, row in odds.items() if row.low > 0}
    for rank, name in enumerate(best_first, start=1):
        better = sum((other, name) in sure for other in best_first)
        worse = sum((name, other) in sure for other in best_first)
        yield Statistic("rank", name, "", float(rank), 1.0 + better, float(len(best_first) - worse))


def _preference_statistics(
    rankings: Sequence[Ranking], best_first: Sequence[str], rng: np.random.Generator
) -> Iterator[Statistic]:
    """The share of rankings that have one method above the other, ties as halves: no model is needed for it."""
    pairs = list(combinations(best_first, 2))
    won, both = (np.zeros((len(rankings), len(pairs))) for _ in range(2))
    n_tied = 0
    for row, ranking in enumerate(rankings):
        for column, (one, other) in enumerate(pairs):
            if one in ranking.ranks and other in ranking.ranks:
                rank, other_rank = ranking.ranks[one], ranking.ranks[other]
                both[row, column] = 1.0
                won[row, column] = (rank < other_rank) + 0.5 * (rank == other_rank)
                n_tied += rank == other_rank
    seen = both.sum(0) > 0
    pairs, won, both = [pair for pair, has in zip(pairs, seen, strict=True) if has], won[:, seen], both[:, seen]
    each_pair = np.eye(len(pairs))
    bounded = share_bounds(*_groups(rankings), hits=won, tries=both, contrasts=each_pair, rng=rng, at_once=False)
    for (one, other), n, value, low, high in zip(pairs, both.sum(0), *bounded, strict=True):
        yield Statistic("preferred", f"{one}~{other}", "", value, max(low, 0.0), min(high, 1.0), float(n))
    yield Statistic("tied_share", value=n_tied / float(both.sum()), n=float(both.sum()))


def accuracy_statistics(
    guesses: Sequence[Simulation], methods: Sequence[str], rng: np.random.Generator
) -> Iterator[Statistic]:
    """How often people guess the model's prediction with each method, and the gain over no explanation."""
    arms = [arm for arm in (None, *methods) if any(guess.method == arm for guess in guesses)]
    if not arms:
        return
    tries = np.array([[float(guess.method == arm) for arm in arms] for guess in guesses])
    hits = tries * np.array([[float(guess.guess == guess.predicted)] for guess in guesses])
    counts, groups = tries.sum(0).tolist(), _groups(guesses)
    bounded = share_bounds(*groups, hits=hits, tries=tries, contrasts=np.eye(len(arms)), rng=rng, at_once=False)
    for arm, n, value, low, high in zip(arms, counts, *bounded, strict=True):
        yield Statistic("accuracy", arm or NO_EXPLANATION, "", value, max(low, 0.0), min(high, 1.0), n)
    if None not in arms or len(arms) < 2:
        return
    contrasts = np.hstack([np.full((len(arms) - 1, 1), -1.0), np.eye(len(arms) - 1)])
    bounded = share_bounds(*groups, hits=hits, tries=tries, contrasts=contrasts, rng=rng, at_once=True)
    for arm, n, value, low, high in zip(arms[1:], counts[1:], *bounded, strict=True):
        yield Statistic("accuracy_gain", arm or "", "", value, max(low, -1.0), min(high, 1.0), n)


@dataclass(frozen=True)
class SkillRating:
    """A rating of TrueSkill."""

    mu: float
    sigma: float

    @property
    def interval(self) -> tuple[float, float]:
        """mu ± 1.96 sigma, which the paper takes for a 95 % interval."""
        return self.mu - NORMAL_QUANTILE * self.sigma, self.mu + NORMAL_QUANTILE * self.sigma


def rate_by_trueskill(games: Iterable[Mapping[str, int]], methods: Sequence[str]) -> dict[str, SkillRating]:
    """The ratings after these games, in this order, with the settings of Fernandes et al. (2022)."""
    try:
        import trueskill
    except ImportError as error:
        raise UserError(f"rating a study needs the package trueskill: {INSTALL}") from error
    environment = trueskill.TrueSkill(mu=PAPER_MU, sigma=PAPER_SIGMA)
    ratings = {method: environment.create_rating() for method in methods}
    for ranks in games:
        rated = environment.rate([(ratings[name],) for name in ranks], ranks=[*ranks.values()])
        ratings.update({name: rating for name, (rating,) in zip(ranks, rated, strict=True)})
    return {name: SkillRating(float(rating.mu), float(rating.sigma)) for name, rating in ratings.items()}


def partial_order(ratings: Mapping[str, SkillRating]) -> dict[str, tuple[int, int]]:
    """First and last place of each method by the paper's rule.

    Methods are sorted by the upper ends of their intervals; where one is below all lower ends so far, a group begins.

    >>> table_4 = {"GxI": (-2.7, 0.67), "IG": (-2.1, 0.67), "all": (0.7, 0.67), "SMaT": (4.3, 0.7)}
    >>> partial_order({name: SkillRating(*rating) for name, rating in table_4.items()})
    {'SMaT': (1, 1), 'all': (2, 2), 'IG': (3, 4), 'GxI': (3, 4)}
    """
    groups: list[list[str]] = []
    lowest = math.inf
    for name in sorted(ratings, key=lambda each: -ratings[each].interval[1]):
        low, high = ratings[name].interval
        if high < lowest or not groups:
            groups.append([])
        groups[-1].append(name)
        lowest = min(lowest, low)
    ranges: dict[str, tuple[int, int]] = {}
    first = 1
    for group in groups:
        ranges |= {name: (first, first + len(group) - 1) for name in group}
        first += len(group)
    return ranges


def trueskill_statistics(
    rankings: Sequence[Ranking], methods: Sequence[str], rng: np.random.Generator
) -> Iterator[Statistic]:
    """Ratings as in the paper, averaged over random orders of the rankings, because they depend on the order."""
    rankings = _with_several(rankings, methods)
    ranked = [method for method in methods if any(method in ranking.ranks for ranking in rankings)]
    if not rankings:
        return
    orders = min(MAX_ORDERS, max(1, MAX_GAMES // len(rankings)))
    runs = [
        rate_by_trueskill((rankings[game].ranks for game in rng.permutation(len(rankings)).tolist()), ranked)
        for _ in range(orders)
    ]
    means = {
        name: SkillRating(fmean(run[name].mu for run in runs), fmean(run[name].sigma for run in runs))
        for name in ranked
    }
    places = partial_order(means)
    for name in sorted(ranked, key=lambda each: -means[each].mu):
        rating, (first, last) = means[name], places[name]
        yield Statistic("trueskill", name, "", rating.mu, *rating.interval, float(len(rankings)))
        yield Statistic("trueskill_sigma", name, "", rating.sigma)
        yield Statistic("trueskill_rank", name, "", float(first), float(first), float(last))
        mus = [run[name].mu for run in runs]
        yield Statistic("trueskill_range_over_orders", name, "", max(mus) - min(mus), n=float(orders))


def agreement_statistics(kept: StudyAnswers, rng: np.random.Generator) -> Iterator[Statistic]:
    """Krippendorff's alpha between people, and between the first and the second answer of one person to one item.

    Ranks are ordinal, and what is ranked is a method on an item; guesses are nominal, and what is guessed is an item
    with the map of one method. Where nothing was answered twice, or all answers are equal, alpha is undefined and has
    no row.
    """
    levels: tuple[MeasurementLevel, ...] = ("ordinal", "nominal")
    for metric, repeated in (("alpha_between_people", False), ("alpha_of_repeated_items", True)):
        for subset, level, units in zip(
            ("rankings", "guesses"), levels, _by_unit(kept, repeated=repeated), strict=True
        ):
            alpha = _alpha_with_interval(units, level, rng)
            if alpha is not None:
                yield Statistic(metric, "", subset, *alpha, float(sum(len(values) > 1 for values in units.values())))


def _by_unit(kept: StudyAnswers, *, repeated: bool) -> tuple[dict[Unit, list[str]], dict[Unit, list[str]]]:
    """Ranks and guesses by what they are about: all people's first answers, or each person's to repeated items."""
    wanted = {Occasion.MAIN, Occasion.REPEAT} if repeated else {Occasion.MAIN}
    ranks: dict[Unit, list[str]] = {}
    guesses: dict[Unit, list[str]] = {}
    for ranking in kept.rankings:
        if ranking.occasion in wanted:
            who = (ranking.person,) if repeated else ()
            for method, rank in ranking.ranks.items():
                ranks.setdefault((ranking.item, *who, method), []).append(f"{rank:03}")
    for guess in kept.simulations:
        if guess.occasion in wanted:
            who = (guess.person,) if repeated else ()
            guesses.setdefault((guess.item, *who, guess.method or ""), []).append(guess.guess)
    return ranks, guesses


def _alpha_with_interval(
    units: Mapping[Unit, Sequence[str]], level: MeasurementLevel, rng: np.random.Generator
) -> tuple[float, float, float] | None:
    """Alpha with percentile bounds over resampled items, which are unbounded for few items; None if it is undefined."""
    several = {unit: values for unit, values in units.items() if len(values) > 1}
    domain = sorted({value for values in several.values() for value in values})
    if len(domain) < 2:
        return None
    counts = np.array([[values.count(value) for value in domain] for values in several.values()])
    items = _numbers(unit[0] for unit in several)
    value, n_items = krippendorff_alpha(counts, level), items.max() + 1
    if value is None:
        return None
    if n_items < MIN_ALPHA_ITEMS:
        return value, -math.inf, 1.0
    of_item = [np.flatnonzero(items == number) for number in range(n_items)]
    drawn = (
        krippendorff_alpha(
            counts[np.concatenate([of_item[item] for item in rng.integers(n_items, size=n_items)])], level
        )
        for _ in range(ALPHA_RESAMPLES)
    )
    low, high = np.quantile([alpha for alpha in drawn if alpha is not None], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return value, float(low), float(high)


def krippendorff_alpha(counts: NDArray[np.int64], level: MeasurementLevel) -> float | None:
    """Krippendorff's alpha of counts `[unit value]`, values in order; None if all answers are equal.

    1 is perfect agreement, 0 that of answers drawn at random from all of them; below 0 people disagree systematically.
    """
    try:
        import krippendorff
    except ImportError as error:
        raise UserError(f"rating a study needs the package krippendorff: {INSTALL}") from error
    counts = counts[:, counts.any(0)]
    if counts.shape[1] < 2:
        return None
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement=level))


@dataclass(frozen=True)
class StudyRating(Recipe):
    """What a study found; stored in a workspace it is a section of the report.

    It holds no answers, only numbers about them: who is erased from the study is in none of its results once it is
    rated again.

    Args:
        study: its name.
        statistics: rows of the summary.
        seed: of the bootstrap and of the orders of TrueSkill.
        origin: tells it apart from other studies of the same name; empty if unknown.
    """

    study: str
    statistics: tuple[Statistic, ...]
    seed: int = 0
    origin: str = ""

    kind: ClassVar[str] = "trial"
    name: ClassVar[str] = "study"
    paper: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "What people say about explanations:"
    claim: ClassVar[str] = (
        "People rank one explanation above the others, and explanations help them to guess what the model predicts."
    )
    source: ClassVar[str] = (
        "The study with people of Fernandes et al. (2022), appendix B. Worths are those of Plackett-Luce with ties "
        "(Davidson 1970; Firth, Kosmidis & Turner 2019), intervals are over people and items (Cameron, Gelbach & "
        "Miller 2011), agreement is Krippendorff's alpha."
    )
    limits: ClassVar[str] = (
        "What people like is not what the model did: an explanation may please and be wrong about the model, which the "
        "faithfulness trials examine. The answers are those of these people about these items, models and maps; "
        "intervals say what to expect of others like them."
    )

    def make(self, workspace: Workspace) -> Artefact:
        """Nothing to compute: the recipe is the result."""
        return Artefact()

    def describe(self) -> Mapping[str, Json]:
        """The facts by which the report places it."""
        return {"trial": self.name, "paper": self.paper, "corpus": self.study}

    def summarize(self, artefact: Artefact) -> pd.DataFrame:
        """The tidy table that is stored."""
        return self.summary

    @property
    def summary(self) -> pd.DataFrame:
        """The statistics as a tidy table."""
        return summary_frame(self.statistics)

    def explain(self, summary: pd.DataFrame) -> Mapping[str, Json]:
        """Texts, verdicts and charts for the report, which does not import this class."""
        claim = Claim(self.title, self.claim, self.source, self.limits)
        return stored_texts(claim, "\n".join(interpretation(summary)), findings(summary), CHARTS)

    def to_record(self) -> dict[str, Json]:
        """For `--json`: verdicts, sentences and the rows of the summary; undefined and unbounded numbers are null."""
        summary = self.summary
        rows: list[Json] = [{name: to_json(getattr(row, name)) for name in SUMMARY_COLUMNS} for row in self.statistics]
        verdicts: list[Json] = [
            {"verdict": finding.verdict.value, "about": finding.method, "reason": finding.reason}
            for finding in findings(summary)
        ]
        return {
            **self.describe(),
            "seed": self.seed,
            "verdicts": verdicts,
            "sentences": [*interpretation(summary)],
            "summary": rows,
        }


def store_rating(rating: StudyRating, workspace: Workspace) -> None:
    """Keep the rating for the report, in place of earlier ones of the same study; UserError for another of its name."""
    named_alike = [
        entry
        for entry in workspace.scan()[0]
        if entry.recipe_class == StudyRating.__name__ and entry.facts.get("corpus") == rating.study
    ]
    if rating.origin and any(entry.settings.get("origin") not in (None, "", rating.origin) for entry in named_alike):
        raise UserError(
            f"{workspace} has the rating of another study that is called {rating.study}: rename this one, or "
            "choose another --workspace"
        )
    workspace.get(rating)
    kept = workspace.artefact_name(rating)
    for entry in named_alike:
        if entry.name != kept:
            workspace.delete(entry.name)


def write_rating_page(rating: StudyRating, path: Path) -> Path:
    """The section of the report as a page of its own."""
    with TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        workspace.get(rating)
        page = build_page(workspace)
    people = int(get_statistic(rating.summary, "people_who_count").value)
    page = replace(
        page,
        title=f"What people say about explanations: {rating.study}",
        lead="How people rank the explanations of a model, and whether these help them to guess its predictions.",
        provenance={"heedful": __version__, "study": rating.study, "people": people, "seed": rating.seed},
    )
    return write_atomically(page_parts(page), path)


CHARTS = (
    ("log_worth", "How people rank the methods", "log worth, mean 0, with 95 % interval"),
    ("trueskill", "TrueSkill with the settings of Fernandes et al. (2022)", "mu, with mu ± 1.96 sigma"),
    ("accuracy", "How often people guess the model's prediction", "accuracy, with 95 % interval"),
    ("accuracy_gain", "What a method adds to the accuracy of guesses", "gain over no explanation, with 95 % interval"),
)
"""Metric, title and axis of the charts in the report, with one row per method."""


def findings(summary: pd.DataFrame) -> tuple[Finding, ...]:
    """Verdicts: is the best method ranked above each other one, and does each method help people to guess?"""
    places = select_statistics(summary, "rank")
    verdicts = []
    for other in places[1:]:
        row = get_statistic(summary, "log_odds", f"{places[0].method}~{other.method}")
        verdicts.append(_preference_finding(row, f"{places[0].method} above {other.method}"))
    for row in select_statistics(summary, "accuracy_gain"):
        reason = "too few people or items for an interval" if row.low <= -1 and row.high >= 1 else ""
        verdict = interval_verdict(row.low, row.high, GAIN_MARGIN)
        verdicts.append(Finding(verdict, f"guesses with {row.method}", (row,), reason))
    return tuple(verdicts)


def _preference_finding(row: Statistic, about: str) -> Finding:
    if row.low > 0:
        return Finding(Verdict.SUPPORTED, about, (row,), "" if math.isfinite(row.high) else "never ranked below it")
    if row.low > -EVEN_MARGIN and row.high < EVEN_MARGIN:
        return Finding(Verdict.NOT_SUPPORTED, about, (row,), "no difference that matters")
    bounded = math.isfinite(row.low) or math.isfinite(row.high)
    return Finding(Verdict.UNDECIDED, about, (row,), "" if bounded else "too few people, items or preferences")


def interpretation(summary: pd.DataFrame) -> tuple[str, ...]:
    """What came out, in sentences."""
    parts = (_participation_sentences, _order_sentences, _gain_sentences, _agreement_sentences, _trueskill_sentences)
    return tuple(sentence for part in parts for sentence in part(summary))


def _participation_sentences(summary: pd.DataFrame) -> Iterator[str]:
    names = ("people", "people_left_out", "people_who_count", "checks", "failed_checks_allowed")
    people, left_out, counted, checks, allowed = (int(get_statistic(summary, name).value) for name in names)
    start = f"The answers of {counted} of {people} people count"
    if checks:
        rule = f"failed more attention checks than the {allowed} that the rule stated beforehand allows"
        yield f"{start}; {left_out or 'nobody'} {rule}."
    else:
        yield f"{start}. Nobody has answered an attention check."
    damaged = find_statistic(summary, "answers_damaged")
    if damaged is not None and damaged.value:
        yield (
            f"{damaged.value:.0f} stored answers are damaged and are not counted: restore a backup of the database, or "
            "ask people to open their links again, which shows them these pages once more."
        )
    if counted == 1:
        yield "One person says nothing about other people: there are no intervals and no verdicts."


def _order_sentences(summary: pd.DataFrame) -> Iterator[str]:
    unranked = [row.method for row in select_statistics(summary, "times_ranked") if not row.value]
    if unranked:
        yield f"Nobody ranked {join_names(unranked)}: nothing can be said about it."
    places = select_statistics(summary, "rank")
    if not places:
        return
    rows = {row.method: row for row in select_statistics(summary, "log_odds")}
    names = [row.method for row in places]
    pairs = {(one, other): rows[f"{one}~{other}"] for one, other in combinations(names, 2)}
    for name in names:
        below = [other for (one, other), row in pairs.items() if one == name and row.low > 0]
        if below:
            yield f"People rank {name} above {join_names(below)}."
    undecided = [f"{one} and {other}" for (one, other), row in pairs.items() if row.low <= 0]
    if len(undecided) == len(pairs):
        yield "No order is decided: every interval of the log odds of a preference includes 0."
    elif undecided:
        yield f"Not decided: {'; '.join(undecided)}."
    yield f"Ranks that the answers allow, all at once with 95 % confidence: {_spans(places)}."
    if get_statistic(summary, "tied_share").value == 1:
        yield "Everybody ranked all methods level: the answers do not order them."
        return
    for (one, other), row in pairs.items():
        if row.low > -math.inf and row.high == math.inf:
            yield f"{one} was never ranked below {other}, even through others: nothing limits how much better it is."


def _spans(places: Sequence[Statistic]) -> str:
    ranges = (f"{row.low:.0f}" if row.low == row.high else f"{row.low:.0f} to {row.high:.0f}" for row in places)
    return "; ".join(f"{row.method} {span}" for row, span in zip(places, ranges, strict=True))


def _gain_sentences(summary: pd.DataFrame) -> Iterator[str]:
    base = get_statistic(summary, "accuracy", NO_EXPLANATION)
    gains = select_statistics(summary, "accuracy_gain")
    if gains:
        yield f"Without an explanation people guess {base.value:.0%} of the predictions."
    elif select_statistics(summary, "accuracy"):
        yield "No gain can be computed: nobody guessed without an explanation, or nobody with one."
    words = {Verdict.SUPPORTED: "helps", Verdict.NOT_SUPPORTED: "does not help", Verdict.UNDECIDED: "is undecided"}
    for row in gains:
        verdict = interval_verdict(row.low, row.high, GAIN_MARGIN)
        value, low, high = (
            f"{100 * number:.1f}".replace("-", "\N{MINUS SIGN}") for number in (row.value, row.low, row.high)
        )
        yield f"{row.method} {words[verdict]}: it adds {value} points ({low} to {high})."


def _agreement_sentences(summary: pd.DataFrame) -> Iterator[str]:
    for row in select_statistics(summary, "alpha_between_people"):
        yield f"Agreement of different people on {row.subset}: {_alpha_words(row.value)}."
    for row in select_statistics(summary, "alpha_of_repeated_items"):
        yield f"Agreement of people with their own earlier {row.subset}: {_alpha_words(row.value)}."


def _alpha_words(value: float) -> str:
    """With the bounds that Krippendorff (2004) recommends for data to rely on."""
    strength = "high" if value >= 0.8 else "moderate" if value >= 2 / 3 else "low" if value > 0 else "none"
    return f"{strength}, Krippendorff's alpha {value:.2f}"


def _trueskill_sentences(summary: pd.DataFrame) -> Iterator[str]:
    places = select_statistics(summary, "trueskill_rank")
    if places:
        spread = max(row.value for row in select_statistics(summary, "trueskill_range_over_orders"))
        yield (
            f"Ranks by TrueSkill with the paper's settings: {_spans(places)}. Its intervals do not shrink with more "
            f"answers, and another order of the same answers moves a rating by up to {spread:.1f}."
        )
