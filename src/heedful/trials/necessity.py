"""Is attention needed (Wiegreffe & Pinter, section 3.2)? Learned weights against uniform ones, in training and test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd

from heedful.core.figures import Axis, Bars, Figure, Series
from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.recipes.guides import Uniform
from heedful.recipes.subject import Subject
from heedful.trials.arms import (
    check_seeds,
    decisive,
    deviation,
    difference,
    imposed,
    mean,
    scored_on,
    scores,
    signed,
    spoken,
)
from heedful.trials.trial import Trial

ARMS = ("learned", "uniform")


@dataclass(frozen=True)
class Necessity(Trial):
    """Test scores with learned and with uniform attention, one row per seed; the subject's own seed plays no part.

    Args:
        seeds: each trains both arms; the arms are compared within seeds.
        margin: a gain below this is of no use.
    """

    name: ClassVar[str] = "necessity"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "Does the model need its attention at all?"
    claim: ClassVar[str] = (
        "If attention is to explain a model, the model should need it: forced to weigh all words alike, in training "
        "and in test, it should do worse."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.2, table 2"
    not_meaning: ClassVar[str] = (
        "That a model does as well without attention does not make its attention a bad explanation of what it does "
        "with it: it says that this task is no place to judge attention. That attention helps does not show that it "
        "explains."
    )

    subject: Subject
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    margin: float = 0.01

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        imposed(self.subject, Uniform())
        if self.margin < 0:
            raise UserError(f"margin is {self.margin}: the least gain that matters cannot be negative")

    @property
    def arms(self) -> dict[str, tuple[Subject, ...]]:
        """The subjects of each arm, in the order of the seeds."""
        learned = tuple(replace(self.subject, seed=seed) for seed in self.seeds)
        return {"learned": learned, "uniform": tuple(imposed(subject, Uniform()) for subject in learned)}

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """Every training of both arms."""
        return tuple(subject for subjects in self.arms.values() for subject in subjects)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per seed with every test score of both arms, as the trainings wrote them down."""
        arms = self.arms
        rows: list[dict[str, float | int | str]] = []
        for place, seed in enumerate(self.seeds):
            row: dict[str, float | int | str] = {"seed": seed, "margin": self.margin}
            for arm, subjects in arms.items():
                row |= {f"{score}.{arm}": value for score, value in scores(workspace, subjects[place]).items()}
            rows.append(row)
        count = scored_on(workspace, arms["learned"][0])
        return Artefact(table=pd.DataFrame(rows), notes={"about": dict(self.subject.about), "n": count, "of": count})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Means and deviations over seeds, the mean paired difference with its 95 % interval, and the verdict.

        `difference`, `low` and `high` are of F1 of class 1, of accuracy where there are more classes, of Pearson's
        correlation for numbers. Exactly one of `helps`, `does_not_help` and `undecided` is 1.
        """
        table = table.sort_values("seed")
        names = _scores(table)
        one, other = (table[f"{decisive(names)}.{arm}"] for arm in ARMS)
        gain = difference(one.tolist(), other.tolist())
        margin = float(table["margin"].max())
        verdict = _verdict(gain.low, gain.high, margin)
        return {
            "seeds": float(len(table)),
            **{f"{name}.{arm}": mean(table[f"{name}.{arm}"]) for name in names for arm in ARMS},
            "deviation.learned": deviation(one),
            "deviation.uniform": deviation(other),
            "difference": gain.mean,
            "low": gain.low,
            "high": gain.high,
            "margin": margin,
            **{each: float(verdict == each) for each in ("helps", "does_not_help", "undecided")},
        }

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Each score under both kinds of weights, with its deviation over seeds."""
        names = [name for name in _scores(table) if name != "mean_squared_error"]
        titles = tuple(spoken(name) for name in names)
        bars = tuple(Series(arm, tuple(mean(table[f"{name}.{arm}"]) for name in names)) for arm in ARMS)
        errors = tuple(Series(arm, tuple(deviation(table[f"{name}.{arm}"]) for name in names)) for arm in ARMS)
        return (Bars("Learned and uniform attention", Axis("mean over seeds, on test"), titles, bars, errors),)

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """Both scores, their difference and what it comes to."""
        score = decisive([name.split(".")[0] for name in summary])
        learned, uniform = (summary[f"{score}.{arm}"] for arm in ARMS)
        found = f"With the attention that it learns the model's {spoken(score)} is {learned:.3f}, with all words "
        found += f"weighted alike {uniform:.3f}"
        if math.isnan(summary["low"]):
            return f"{found}. Undecided: with fewer than two seeds nothing is known about chance; train more seeds."
        low, high, margin = summary["low"], summary["high"], summary["margin"]
        found += (
            f"; the gain lies between {signed(low)} and {signed(high)} (95 % interval, {summary['seeds']:.0f} seeds). "
        )
        return found + _told(low, high, margin)


def _scores(table: pd.DataFrame) -> list[str]:
    return [str(column).removesuffix(".learned") for column in table.columns if str(column).endswith(".learned")]


def _verdict(low: float, high: float, margin: float) -> str:
    """The interval above zero, below the margin, or neither; with undefined bounds neither."""
    if low > 0:
        return "helps"
    return "does_not_help" if high < margin else "undecided"


def _told(low: float, high: float, margin: float) -> str:
    verdict = _verdict(low, high, margin)
    if verdict == "helps":
        return "Attention helps" + (f", if by less than {margin:g}." if high < margin else ".")
    if verdict == "does_not_help":
        worse = "the model is better without it." if high < 0 else f"a gain of {margin:g} or more can be ruled out."
        return f"Attention does not help: {worse}"
    return f"Undecided: no gain is possible, and so is one of {margin:g} or more; train more seeds."
