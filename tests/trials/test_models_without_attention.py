"""Trials on a network that has no attention: all that need none are run, and nothing is said about attention."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import pytest

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import PermutedAttention, Random, RandomizedModel, default_controls
from heedful.attributions.gradient import InputXGradient
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.method import tags_of
from heedful.attributions.perturbation import LeaveOneOut
from heedful.catalogue import METHODS
from heedful.execution.runner import run
from heedful.results import Verdict, find_statistic, select_statistics
from heedful.store.workspace import Workspace
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.ground_truth import GroundTruth
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.trials.plausibility import Plausibility
from heedful.trials.trial import Trial
from tests.networks import TinyFNet
from tests.test_model_support import NEEDS_ATTENTION
from tests.tiny import Sentences, Shortcut, subject

OTHER_METHODS = (LeaveOneOut(), IntegratedGradients(n_steps=8), InputXGradient())


def unattentive() -> TrainedModel:
    return replace(
        subject(), corpus=Shortcut(Sentences()), architecture=TinyFNet(), training=Training(4, 8, Adam(lr=0.01))
    )


TRIALS: tuple[Trial, ...] = (
    Performance(unattentive()),
    Agreement(unattentive(), OTHER_METHODS),
    Faithfulness(unattentive(), OTHER_METHODS, limit=10, steps=2, samples=2),
    Plausibility(unattentive(), OTHER_METHODS),
    GroundTruth(unattentive(), OTHER_METHODS, limit=10),
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    place = Workspace(tmp_path_factory.mktemp("workspace"))
    assert [each.error for each in run(TRIALS, place) if each.error] == []
    return place


def test_the_methods_that_read_attention_are_those_that_such_a_network_refuses() -> None:
    """`test_model_support` tries all of them on FNet."""
    assert {name for name, make in METHODS.items() if tags_of(make()).needs_attention} == NEEDS_ATTENTION


def test_permuted_attention_is_a_control_of_methods_that_read_attention() -> None:
    assert default_controls(OTHER_METHODS) == (Random(),)
    for method in (RawAttention(), RandomizedModel()):
        assert default_controls((LeaveOneOut(), method)) == (Random(), PermutedAttention())
    assert default_controls((LeaveOneOut(), RandomizedModel(LeaveOneOut()))) == (Random(),)
    model = subject()
    both = (RawAttention(), LeaveOneOut())
    assert Agreement(model, both).compared_controls == (Random(), PermutedAttention())
    assert Agreement(model, both, ()).compared_controls == ()
    assert Agreement(model, OTHER_METHODS, (PermutedAttention(),)).compared_controls == (PermutedAttention(),)


def test_every_trial_that_needs_no_attention_has_numbers(workspace: Workspace) -> None:
    for trial in TRIALS:
        summary = workspace.get(trial).summary
        assert summary["value"].notna().any()
        assert trial.interpretation(summary)
    assert workspace.get(TRIALS[0]).notes["n"] == 40


def test_agreement_is_about_the_first_method_with_random_scores_beside_it(workspace: Workspace) -> None:
    artefact = workspace.get(TRIALS[1])
    assert [each.method for each in select_statistics(artefact.summary, "control")] == ["random"]
    agreed = find_statistic(artefact.summary, "mean", "leave-one-out~input-x-gradient")
    chance = find_statistic(artefact.summary, "mean", "leave-one-out~random")
    assert agreed is not None
    assert chance is not None
    assert agreed.n == chance.n == 40
    assert abs(chance.value) < 0.2
    [finding] = Agreement.findings(artefact.summary)
    assert finding.verdict in Verdict
    said = (*astuple(Agreement.texts(artefact.summary)), Agreement.interpretation(artefact.summary), finding.reason)
    assert not [sentence for sentence in said if "attention" in sentence.lower()]
    assert "leave-one-out" in Agreement.texts(artefact.summary).claim


def test_agreement_of_attention_keeps_the_texts_of_the_paper(tmp_path: Path) -> None:
    summary = Workspace(tmp_path).get(Agreement(subject(), (RawAttention(), InputXGradient()))).summary
    assert Agreement.texts(summary).claim == Agreement.claim
    assert Agreement.texts(summary).title == Agreement.title


def test_questions_about_attention_are_refused_with_the_reason(workspace: Workspace) -> None:
    asked = (Agreement(unattentive(), (RawAttention(), LeaveOneOut())), Permutation(unattentive()))
    errors = {outcome.recipe: str(outcome.error) for outcome in run(asked, workspace) if outcome.error is not None}
    assert errors.keys() >= {*asked}
    reasons = [error for error in errors.values() if not error.startswith("skipped, because")]
    assert len(reasons) == 3  # both tables of attention, and permutation
    assert all("the attention of FNetForSequenceClassification cannot be read" in reason for reason in reasons)
