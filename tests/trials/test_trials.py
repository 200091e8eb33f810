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
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut
from heedful.execution.runner import run
from heedful.figures import Heatmap
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Average
from heedful.papers import PAPERS
from heedful.report.charts import svg
from heedful.results import SUMMARY_COLUMNS, combine_seeds
from heedful.store.recipe import Recipe
from heedful.store.shard import ShardedRecipe
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import FromModel
from heedful.training.attribution_tables import AttributionTable
from heedful.training.student import Student
from heedful.training.teacher import AttentionExplanation, NoExplanation, StudentData, TeacherExplanation
from heedful.training.trainer import Adam, EpochSelection, Training
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
from heedful.trials.trial import ShardedTrial, Trial
from tests.small_shards import SIZE, ShardedSentences, file_digests, set_shards
from tests.tiny import Sentences, Shortcut, subject
from tests.trials.summaries import values

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


@pytest.fixture(scope="module")
def small_batches(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("small-batches"), batch_size=7)


@pytest.mark.parametrize("name", TRIALS)
def test_equal_recipes_give_equal_numbers_at_any_batch_size(
    name: str, workspace: Workspace, small_batches: Workspace
) -> None:
    one, other = (batches.get(TRIALS[name]).summary for batches in (workspace, small_batches))
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
            set_shards(patch, SIZE)
            found = parts.get(trial)
        assert found.notes == expected.notes
        keys = [name for name in ("uid", "place") if name in expected.table]
        one, other = (each.table.sort_values(keys, ignore_index=True) for each in (found, expected))
        pd.testing.assert_frame_equal(one, other, rtol=1e-3, atol=1e-5)
        assert trial.findings(found.summary)[0].verdict == trial.findings(expected.summary)[0].verdict
        assert found.table["uid"].tolist() != expected.table["uid"].tolist()


SIX_BLOCKS = replace(subject(), corpus=ShardedSentences(90))
IN_BLOCKS: tuple[ShardedRecipe, ...] = (
    AttributionTable(SIX_BLOCKS, IntegratedGradients(n_steps=4)),
    AttributionTable(SIX_BLOCKS, Lime(n_samples=40, error=0.2), limit=50),
    Agreement(SIX_BLOCKS, (RawAttention(), Gradient())),
    Faithfulness(SIX_BLOCKS, (RawAttention(), Gradient()), samples=8, error=0.1),
    Permutation(SIX_BLOCKS, permutations=30, error=0.05),
    Permutation(SIX_BLOCKS, permutations=30, limit=70),
)
"""On 90 texts, or some of them: up to six blocks of 16."""


@pytest.fixture(scope="module")
def unsharded(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Recipe, object]:
    """The digests of all files of these artefacts, made in one process without shards."""
    workspace = Workspace(tmp_path_factory.mktemp("unsharded"))
    with pytest.MonkeyPatch.context() as patch:
        set_shards(patch, 10 * SIZE)
        for recipe in IN_BLOCKS:
            assert recipe.shards(workspace) == ()
            workspace.get(recipe)
    return {recipe: file_digests(recipe, workspace) for recipe in IN_BLOCKS}


@pytest.mark.parametrize(("size", "where"), [(1, "here"), (2, "here"), (3, "here"), (2, "pool")])
def test_shards_of_any_size_give_the_bits_of_a_run_without_shards(
    size: int, where: str, unsharded: Mapping[Recipe, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_shards(monkeypatch, size * SIZE)
    workspace = Workspace(tmp_path)
    outcomes = run(IN_BLOCKS, workspace, where=where, workers=2 if where == "pool" else None)
    assert {outcome.error for outcome in outcomes} == {None}
    assert {recipe: file_digests(recipe, workspace) for recipe in IN_BLOCKS} == unsharded
    assert {entry.kind for entry in workspace.entries()} == {"model", "attributions", "trial"}
    for trial in (recipe for recipe in IN_BLOCKS if isinstance(recipe, ShardedTrial)):
        # Computed from some columns: one that is left out would be missed silently where it is optional.
        stored = workspace.get(trial)
        pd.testing.assert_frame_equal(stored.summary, trial.summary(stored.table), check_exact=True)


def test_shards_in_any_order_give_the_bits_of_a_run_without_shards(
    unsharded: Mapping[Recipe, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_shards(monkeypatch, SIZE)
    workspace = Workspace(tmp_path)
    for recipe in IN_BLOCKS:
        shards = recipe.shards(workspace)
        assert len(shards) > 2
        for shard in (*shards[1::2], *reversed(shards[::2])):
            Workspace(tmp_path).ensure(shard)
        Workspace(tmp_path).get(recipe)
    assert {recipe: file_digests(recipe, workspace) for recipe in IN_BLOCKS} == unsharded
