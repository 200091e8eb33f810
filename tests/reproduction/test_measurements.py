"""The options that are derived from a stored result give the artefact of that result again."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from heedful.cli.run_command import PaperChoice
from heedful.papers.chapter import Result, flat_settings
from heedful.reproduction.ledger import Settings
from heedful.reproduction.measurements import FLAGS, derive_settings, make_options, paper_command
from heedful.store.recipe import plain_settings
from heedful.trials.trial import Trial
from tests.papers.results import to_stored

UNPUBLISHED = ("faithfulness",)
"""Trials without published numbers or claims, which the ledger does not read."""


def derived(trial: Trial, paper: str, n_seeds: int, data_dir: Path) -> Settings:
    facts = trial.describe()
    corpus, encoder, attention = (str(facts.get(name) or "") for name in ("corpus", "encoder", "attention"))
    recipe = flat_settings(to_stored(trial))
    result = Result(
        trial.name, paper, corpus, encoder, attention, pd.DataFrame(), n_seeds, (), plain_settings(trial), recipe
    )
    return derive_settings(result, data_dir)


@pytest.mark.parametrize(
    ("paper", "settings"),
    [
        ("jain-wallace", {"corpora": ["babi-1", "sst"], "limit": 500}),
        ("jain-wallace", {"corpora": ["sst"], "n_seeds": 3}),
        ("jain-wallace", {"corpora": ["sst"], "encoders": ["average"], "without_control": True}),
        ("wiegreffe-pinter", {"corpora": ["sst"]}),
        ("wiegreffe-pinter", {"corpora": ["20news"], "lambdas": [1e-4, 1e-3], "n_seeds": 2}),
        ("wiegreffe-pinter", {"corpora": ["sst"], "select": "dev"}),
        ("wiegreffe-pinter", {"corpora": ["sst"], "select": "paper"}),
        ("attefa", {"corpora": ["mock-1", "sst"]}),
        ("attefa", {"corpora": ["mock-3q"], "n_seeds": 4}),
        ("attefa", {"corpora": ["mock-3q"], "select": "code"}),
        ("disagreement", {"corpora": ["sst", "snli"]}),
        ("disagreement", {"corpora": ["imdb"], "limit": 100, "n_seeds": 2}),
    ],
)
def test_the_command_of_a_result_gives_its_recipe(paper: str, settings: Settings, tmp_path: Path) -> None:
    trials = [trial for trial in make_options(paper, settings, tmp_path).recipes() if isinstance(trial, Trial)]
    counts = {"jain-wallace": 1, "disagreement": 3}
    n_seeds = int(str(settings.get("n_seeds", counts.get(paper, 1))))
    published = [trial for trial in trials if trial.name not in UNPUBLISHED]
    assert published
    for trial in published:
        again = derived(trial, paper, n_seeds, tmp_path)
        assert trial in make_options(paper, again, tmp_path).recipes(), (trial.name, again)


def test_a_command_has_the_flags_of_its_settings() -> None:
    settings: Settings = {"corpora": ["sst"], "lambdas": [0.000525, 1e-05], "divide_dev": True}
    assert paper_command("wiegreffe-pinter", settings) == (
        "heedful run wiegreffe-pinter --only sst --lambda 0.000525 --lambda 1e-05 --divide-dev"
    )


def test_every_option_of_a_paper_has_its_flag() -> None:
    assert set(FLAGS) | {"quick"} == {entry.name for entry in fields(PaperChoice)}
