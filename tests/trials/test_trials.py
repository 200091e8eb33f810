"""The laws of trials, over every trial of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.figures import Heatmap
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Average
from heedful.papers import PAPERS
from heedful.report.charts import svg
from heedful.runner import run
from heedful.store import shard
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import FromModel
from heedful.training.student import Student
from heedful.training.teacher import AttentionExplanation, NoExplanation, StudentData, TeacherExplanation
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials._trial import (
    SUMMARY_COLUMNS,
    Trial,
    combine_seeds,
)
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.trials.seed_variance import SeedVariance
from heedful.trials.simulability import NO_EXPLANATION, Simulability
from tests.small_shards import SIZE, ShardedSentences, small_shards, table_digest
from tests.tiny import Sentences, Shortcut, subject
from tests.trials.summaries import values

__all__ = ["small_shards"]
pytestmark = pytest.mark.slow

LEARNER = replace(subject(), architecture=Attentive(Average(4), Additive()))
SHORT = Training(2, 8, Adam(lr=0.02), EpochSelection(metric="deception"))


def students(explanation: TeacherExplanation) -> tuple[Student, ...]:
    """Two students of the tiny subject, each from eight of its texts."""
    fit = Training(2, 8, Adam(lr=0.02), reduction="mean")
    taught = Student(subject(), subject().architecture, explanation, StudentData(8), training=fit)
    return tuple(replace(taught, seed=seed) for seed in (0, 1))


TRIALS: Mapping[str, Trial] = {
    "performance": Performance(subject()),
    "agreement": Agreement(subject(), (RawAttention(), Gradient(), LeaveOneOut())),
    "permutation": Permutation(subject()),
    "adversarial-attention": AdversarialAttention(subject()),
    "uniform-baseline": UniformBaseline(subject(), (0, 1)),
    "seed-variance": SeedVariance(subject(), (1, 2)),
    "adversarial-tradeoff": AdversarialTradeoff(subject(), (0.0, 0.1), (1,), adversary_training=SHORT),
    "guided-model": GuidedModel(LEARNER, (("base", FromModel(subject())),), (0, 1)),
    "attefa": AtteFa(subject(), (1, 2), (1,), adversary_training=SHORT),
    "faithfulness": Faithfulness(subject(), (RawAttention(), Gradient())),
    "ground-truth": GroundTruth(replace(subject(), corpus=Shortcut(Sentences())), (RawAttention(), Gradient())),
    "simulability": Simulability(
        subject(), ((NO_EXPLANATION, students(NoExplanation())), ("attention", students(AttentionExplanation())))
    ),
    "plausibility": Plausibility(replace(subject(), corpus=Shortcut(Sentences())), (RawAttention(), Gradient())),
}
"""One of each kind on a tiny subject; a new trial needs a line here."""
OVER_SEEDS = {"uniform-baseline": 4, "guided-model": 6, "attefa": 4, "simulability": 4}
"""Trials whose rows are trainings, not instances, and how many rows they have here."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def test_every_trial_of_the_catalogue_is_under_these_laws() -> None:
    assert TRIALS.keys() == catalogue.TRIALS.keys()
    assert all(type(TRIALS[name]) is trial and trial.name == name for name, trial in catalogue.TRIALS.items())


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_records_its_subject_and_its_number_of_texts(name: str, workspace: Workspace) -> None:
    artefact = workspace.get(TRIALS[name])
    trial = TRIALS[name]
    assert artefact.notes["about"] == vars(trial)["subject"].about
    assert artefact.notes["n"] == artefact.notes["of"] == 40
    if name in OVER_SEEDS:
        assert len(artefact.table) == OVER_SEEDS[name]
    else:
        assert artefact.table["uid"].nunique() == 40
        assert len(artefact.table) % 40 == 0


@pytest.mark.parametrize("name", TRIALS)
def test_a_second_get_makes_nothing(name: str, workspace: Workspace) -> None:
    workspace.get(TRIALS[name])
    seal = workspace.root / workspace.artefact_name(TRIALS[name]) / "recipe.json"
    before = seal.stat().st_mtime_ns
    workspace.get(TRIALS[name])
    assert seal.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", TRIALS)
def test_summary_figures_and_reading_come_from_the_table_alone(name: str, workspace: Workspace) -> None:
    trial = catalogue.TRIALS[name]
    table = workspace.get(TRIALS[name]).table
    summary = trial.summary(table)
    assert tuple(summary.columns) == SUMMARY_COLUMNS
    assert not summary.duplicated(["metric", "method", "subset"]).any()
    assert values(summary) == pytest.approx(values(trial.summary(table.sample(frac=1, random_state=1))), nan_ok=True)
    pd.testing.assert_frame_equal(workspace.get(TRIALS[name]).summary, summary)
    assert summary["value"].notna().any()
    assert not (summary["low"] > summary["high"]).any()
    drawn = [svg(figure) for figure in trial.figures(table) if not isinstance(figure, Heatmap)]
    assert all(text.startswith("<svg") for text in drawn)
    assert trial.interpretation(summary)
    combined = combine_seeds([summary, summary])
    assert [each.verdict for each in trial.findings(combined)] == [each.verdict for each in trial.findings(summary)]
    assert trial.interpretation(combined) == trial.interpretation(summary)


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_names_its_claim_its_source_its_paper_and_its_limits(name: str) -> None:
    trial = catalogue.TRIALS[name]
    assert trial.paper in PAPERS
    assert all(len(words) > 10 for words in (trial.title, trial.claim, trial.source, trial.limits))


@pytest.mark.parametrize("name", TRIALS)
def test_equal_recipes_give_equal_numbers_at_any_batch_size(name: str, workspace: Workspace, tmp_path: Path) -> None:
    one, other = (place.get(TRIALS[name]).summary for place in (workspace, Workspace(tmp_path, batch_size=7)))
    assert values(one) == pytest.approx(values(other), abs=1e-3, nan_ok=True)


SHARDED = replace(subject(), corpus=ShardedSentences())
SHARDED_TRIALS = (
    Agreement(SHARDED, (RawAttention(), Gradient(), LeaveOneOut())),
    Faithfulness(SHARDED, (RawAttention(), Gradient())),
    Permutation(SHARDED, limit=30),
)
"""On 40 texts, or 30 of them."""


def test_shards_give_the_rows_and_the_verdict_of_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may differ between batches; which texts and numbers there are may not."""
    whole, parts = Workspace(tmp_path / "whole"), Workspace(tmp_path / "parts")
    for trial in SHARDED_TRIALS:
        expected = whole.get(trial)
        with monkeypatch.context() as patch:
            patch.setattr(shard, "SHARD_ROWS", SIZE)
            found = parts.get(trial)
        assert found.notes == expected.notes
        keys = [name for name in ("uid", "place") if name in expected.table]
        one, other = (each.table.sort_values(keys, ignore_index=True) for each in (found, expected))
        pd.testing.assert_frame_equal(one, other, rtol=1e-3, atol=1e-5)
        assert trial.findings(found.summary)[0].verdict == trial.findings(expected.summary)[0].verdict
        assert found.table["uid"].tolist() != expected.table["uid"].tolist()


@pytest.mark.usefixtures("small_shards")
def test_sharded_trials_are_the_same_bits_in_processes(tmp_path: Path) -> None:
    here, there = Workspace(tmp_path / "here"), Workspace(tmp_path / "there")
    run(SHARDED_TRIALS, here)
    assert {outcome.error for outcome in run(SHARDED_TRIALS, there, workers=2)} == {None}
    for trial in SHARDED_TRIALS:
        assert table_digest(trial, here) == table_digest(trial, there)
    assert {entry.kind for entry in there.entries()} == {"model", "attributions", "trial"}
