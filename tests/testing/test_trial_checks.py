"""`check_trial` finds each fault under its own name, and none in heedful's own trials."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import pytest

from heedful.figures import Figure
from heedful.results import Statistic
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.testing import check_trial
from heedful.training.model_recipe import ModelRecipe
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.trial import Trial
from tests.tiny import subject


@dataclass(frozen=True)
class Coin(Trial):
    """Tosses a coin for each text."""

    name: ClassVar[str] = "coin"
    paper: ClassVar[str] = "own"
    title: ClassVar[str] = "Heads?"
    claim: ClassVar[str] = "Heads."
    source: ClassVar[str] = "Own work"
    limits: ClassVar[str] = "Nothing follows from it."

    subject: ModelRecipe
    toss: str = "fixed"

    def make(self, workspace: Workspace) -> Artefact:
        side = {"fixed": 1, "hash": hash(self.toss) % 1000, "global": random.random()}[self.toss.partition(" ")[0]]
        return self.artefact(pd.DataFrame({"side": [side]}), 1)

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        return [Statistic("side", value=float(table["side"][0]))]

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        return ()

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        return "A coin was tossed."


class Silent(Coin):
    limits = ""

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        return " "


class Twice(Coin):
    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        return [Statistic("side"), Statistic("side")]


class Broken(Coin):
    def make(self, workspace: Workspace) -> Artefact:
        raise ZeroDivisionError


RUNS = "it runs and makes a table"
FAULTS = {
    "hash": (Coin(subject(), "hash"), {"rows do not depend on hash()"}),
    "global": (Coin(subject(), "global"), {"it gives the same rows again"}),
    "silent": (
        Silent(subject()),
        {"title, claim, source and limits are given", "findings, figures and interpretation can be made"},
    ),
    "twice": (Twice(subject()), {"the summary is tidy"}),
    "broken": (Broken(subject()), {RUNS}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_under_its_own_name(fault: str, workspace: Workspace) -> None:
    trial, laws = FAULTS[fault]
    report = check_trial(trial, workspace)
    assert {result.law for result in report.results if not result.passed} == laws, report


@pytest.mark.parametrize("trial", [Coin(subject()), Performance(subject()), Permutation(subject(), permutations=5)])
def test_a_trial_without_faults_passes_and_leaves_nothing(trial: Trial, workspace: Workspace) -> None:
    report = check_trial(trial, workspace)
    assert report, report
    assert len(report.results) == 6
    assert not workspace.has(trial)
