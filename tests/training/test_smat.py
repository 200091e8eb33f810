"""SMaT: phi and its hypergradient steps, resumption, learned mixes as methods, and the planted head."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.hypergradient import double_backward
from heedful.attributions.head_mix import HeadMix, mixing_weights
from heedful.attributions.layer_mix import LayerMix
from heedful.data.images import Digits
from heedful.data.splitting import SubsampledCorpus
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.training import smat
from heedful.training.hypergradient import BilevelProblem, Hypergradient, Parameters, hypergradient
from heedful.training.smat import ExplainerOptimizer, LearnedAttributionTable, SMaT
from heedful.training.student import Student, StudentTraining
from heedful.training.teacher import (
    AttentionExplanation,
    HeadMaps,
    LayerMaps,
    LearnedExplanation,
    NoExplanation,
    StudentData,
)
from heedful.training.trainer import SGD
from heedful.types import UserError
from tests.planted_head import outcome
from tests.students import ARCHITECTURE, DATA, TEACHER, TRAINING, Dying, Killed, Pairs, same, weights

SMAT = SMaT(TEACHER, ARCHITECTURE, LearnedExplanation(lr=0.02), DATA, training=TRAINING)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("scaffolded"), batch_size=16)


@pytest.mark.slow
def test_learning_rate_0_gives_the_student_of_static_attention(workspace: Workspace) -> None:
    still = workspace.get(replace(SMAT, explanation=LearnedExplanation(lr=0.0)))
    static = workspace.get(Student(TEACHER, ARCHITECTURE, AttentionExplanation(), DATA, training=TRAINING))
    assert all(torch.equal(still.tensors[name], value) for name, value in static.tensors.items())
    assert still.tensors["phi"].tolist() == [0.25] * 4
    assert still.notes["simulability"] == static.notes["simulability"]


def test_with_beta_0_phi_does_not_move(workspace: Workspace) -> None:
    artefact = workspace.get(replace(SMAT, beta=0.0))
    assert artefact.tensors["phi"].tolist() == [0.25] * 4
    plain = workspace.get(Student(TEACHER, ARCHITECTURE, NoExplanation(), DATA, training=TRAINING))
    network = {name: value for name, value in plain.tensors.items() if name.startswith("student/network")}
    assert all(torch.equal(artefact.tensors[name], value) for name, value in network.items())


def test_phi_moves_and_its_history_is_kept(workspace: Workspace) -> None:
    artefact = workspace.get(SMAT)
    history = artefact.tensors["phi_history"]
    assert history.shape == (3, 4)
    best = artefact.notes["best_epoch"]
    assert isinstance(best, int)
    assert torch.equal(history[best - 1], artefact.tensors["phi"])
    assert artefact.tensors["phi"].tolist() != [0.25] * 4
    torch.testing.assert_close(artefact.tensors["coefficients"], mixing_weights(artefact.tensors["phi"], "sparsemax"))
    rows = artefact.notes["history"]
    assert isinstance(rows, list)
    for row, phi in zip(rows, history, strict=True):
        mix = mixing_weights(phi, "sparsemax")
        assert isinstance(row, dict)
        assert row["support"] == float((mix > 0).sum())
        assert row["largest"] == pytest.approx(float(mix.max()))
    # Three steps an epoch, each of at most the rate of AdamW.
    assert float((history[0] - 0.25).abs().max()) <= 3 * 0.02 * 1.01


@pytest.mark.slow
def test_double_backward_and_a_central_difference_lead_to_the_same_phi(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = workspace.get(SMAT).tensors["phi_history"]

    def by_double_backward(problem: BilevelProblem, theta: Parameters, phi: Tensor) -> Hypergradient:
        gradient, loss = double_backward(problem, theta, phi)
        return Hypergradient(gradient, loss, 0.0, clipped=False)

    for name, slow in (("double", by_double_backward), ("difference", partial(hypergradient, forward_mode=False))):
        monkeypatch.setattr(smat, "hypergradient", slow)
        found = Workspace(tmp_path / name, batch_size=16).get(SMAT).tensors["phi_history"]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_first_step_goes_down_the_loss_after_the_pilot_step(workspace: Workspace) -> None:
    training = StudentTraining(SMAT, workspace)
    optimizer = ExplainerOptimizer(SMAT, training)
    batch = training.batches["train"].rows(torch.arange(8))
    problem = optimizer.bilevel_problem(training.model, batch, 0.2)
    theta = {f"student.{name}": value.detach() for name, value in training.model.named_parameters()}

    def after(phi: torch.Tensor) -> float:
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        loss, explained = problem.inner(leaves)
        loss = loss + 5.0 * problem.divergence(problem.teacher_explanation(phi), explained)
        slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        factor = min(1.0, 5.0 / (float(torch.cat([slope.flatten() for slope in slopes]).norm()) + 1e-6))
        moved = {
            name: (leaf - 0.2 * factor * g).detach() for (name, leaf), g in zip(leaves.items(), slopes, strict=True)
        }
        return float(problem.outer(moved))

    start = optimizer.phi.detach().clone()
    expected = [(after(start + 0.05 * unit) - after(start - 0.05 * unit)) / 0.1 for unit in torch.eye(4)]
    optimizer.step(training.model, batch, 0.2)
    assert optimizer.phi.grad is not None
    np.testing.assert_allclose(optimizer.phi.grad, expected, rtol=0.05, atol=1e-5)
    # The first step of AdamW goes by its rate against the sign of each slope.
    torch.testing.assert_close(optimizer.phi.detach(), start - 0.02 * optimizer.phi.grad.sign(), rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_numbers_and_the_teacher_stays(workspace: Workspace, tmp_path: Path) -> None:
    before = weights(workspace)
    first, again = workspace.get(SMAT), Workspace(tmp_path, batch_size=16).get(SMAT)
    assert same(first.tensors, again.tensors)
    assert first.notes == again.notes
    assert same(weights(workspace), before)
    assert not same(first.tensors, workspace.get(replace(SMAT, seed=1)).tensors)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 5, 8])
def test_a_killed_training_resumes_bit_for_bit_with_phi_and_its_optimiser(
    step: int, workspace: Workspace, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        Workspace(tmp_path, batch_size=16, progress=Dying("student", step)).get(SMAT)
    resumed, whole = Workspace(tmp_path, batch_size=16).get(SMAT), workspace.get(SMAT)
    assert same(resumed.tensors, whole.tensors)
    assert resumed.table.equals(whole.table)
    assert resumed.notes == whole.notes


@pytest.mark.slow
def test_a_transformer_with_dropout_resumes_bit_for_bit(tmp_path: Path) -> None:
    from tests.networks import TinyTransformer

    teacher = replace(TEACHER, embeddings=None, architecture=TinyTransformer(vocab_size=30, layers=2))
    recipe = SMaT(teacher, TinyTransformer(vocab_size=30, layers=1), SMAT.explanation, DATA, training=TRAINING)
    whole = Workspace(tmp_path / "whole").get(recipe)
    with pytest.raises(Killed):
        Workspace(tmp_path / "killed", progress=Dying("student", 4)).get(recipe)
    resumed = Workspace(tmp_path / "killed").get(recipe)
    assert same(resumed.tensors, whole.tensors)
    assert resumed.notes == whole.notes
    assert whole.notes["hypergradient"] == "exact"
    assert (whole.tensors["phi"].shape, whole.tensors["student/phi"].shape) == ((4,), (2,))


def test_held_out_batches_are_not_those_of_early_stopping(workspace: Workspace) -> None:
    training = StudentTraining(SMAT, workspace)
    optimizer = ExplainerOptimizer(SMAT, training)
    judged = set(training.batches["judge"].uids)
    cycle = [uid for step in range(2) for uid in optimizer.held_out_batch(step).uids]
    # Eight held-out examples in batches of eight: each step is a whole cycle.
    assert sorted(cycle) == sorted(2 * list(training.batches["outer"].uids))
    assert not judged & set(cycle)
    shared = StudentTraining(replace(SMAT, data=replace(DATA, share_dev=True)), workspace)
    assert shared.batches["outer"].uids == shared.batches["judge"].uids


def test_the_learned_mix_can_be_saved_and_applied(workspace: Workspace, tmp_path: Path) -> None:
    training = StudentTraining(SMAT, workspace)
    phi = workspace.get(SMAT).tensors["phi"]
    explainer = SMAT.explainer(workspace)
    assert isinstance(explainer, HeadMix)
    explainer.save(tmp_path)
    loaded = HeadMix.load(tmp_path)
    assert loaded == explainer
    batch = training.batches["train"]
    found = loaded(training.teacher.model, batch, torch.zeros(len(batch), dtype=torch.int64)).scores
    assert training.explainer is not None
    torch.testing.assert_close(found.float(), training.explainer.distribution_at(phi, batch), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_layers_of_integrated_gradients_are_mixed_with_a_learned_temperature(tmp_path: Path) -> None:
    from tests.networks import TinyTransformer

    workspace = Workspace(tmp_path)
    teacher = replace(TEACHER, embeddings=None, architecture=TinyTransformer(vocab_size=30))
    learned = LearnedExplanation(
        LayerMaps(LayerMix(n_steps=3)), "softmax", lr=0.05, temperature=0.5, learn_temperature=True
    )
    recipe = SMaT(teacher, teacher.architecture, learned, DATA, training=TRAINING)
    phi = workspace.get(recipe).tensors["phi"]
    assert phi.shape == (3,)
    assert float(phi[-1]) != 0
    explainer = recipe.explainer(workspace)
    assert isinstance(explainer, LayerMix)
    assert explainer.temperature == pytest.approx(0.5 * float(phi[-1].exp()))
    training = StudentTraining(recipe, workspace)
    batch = training.batches["train"]
    target = training.teacher.model.task.probabilities(training.teacher.model(batch).logits).argmax(-1)
    found = replace(explainer, score_type="distribution")(training.teacher.model, batch, target).scores
    assert training.explainer is not None
    torch.testing.assert_close(found.float(), training.explainer.distribution_at(phi, batch), rtol=1e-3, atol=1e-5)


RECURRENT = Attentive(BiLSTM(4), Additive())


@pytest.mark.slow
def test_regression_pairs_images_and_recurrent_students(tmp_path: Path) -> None:
    from tests.networks import TinyTransformer

    workspace = Workspace(tmp_path)
    fit = replace(TRAINING, epochs=2, optimizer=SGD(0.02))
    teacher = replace(TEACHER, corpus=Pairs(number=True))
    number = workspace.get(
        SMaT(teacher, ARCHITECTURE, LearnedExplanation(lr=0.02), StudentData(train_size=10), training=fit)
    )
    assert number.notes["measure"] == "pearson"
    pairs = replace(SMAT, teacher=replace(TEACHER, corpus=Pairs()), data=StudentData(train_size=10), training=fit)
    assert workspace.get(pairs).tensors["phi"].tolist() != [0.25] * 4
    vit = TinyTransformer("vit", patch_size=2)
    seeing = replace(
        TEACHER,
        corpus=SubsampledCorpus(Digits(), 40, 20, 20),
        tokenization=Digits.tokenization,
        architecture=vit,
        embeddings=None,
    )
    image = workspace.get(SMaT(seeing, vit, LearnedExplanation(lr=0.02), StudentData(train_size=16), training=fit))
    assert image.notes["hypergradient"] == "exact"
    assert image.tensors["phi"].tolist() != [0.25] * 4
    recurrent = workspace.get(replace(SMAT, architecture=RECURRENT, training=fit))
    # One layer and one head on its side, four maps on the teacher's.
    assert (recurrent.tensors["student/phi"].shape, recurrent.tensors["phi"].shape) == ((1,), (4,))


def test_invalid_recipes_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="reduction='mean'"):
        replace(SMAT, training=replace(TRAINING, reduction="sum"))
    with pytest.raises(UserError, match="used as a method"):
        replace(SMAT, explanation=LearnedExplanation(HeadMaps(-1), lr=0.02)).explainer(workspace)


@pytest.mark.slow
def test_smat_finds_the_planted_head_and_students_learn_most_from_it(tmp_path: Path) -> None:
    found = outcome(Workspace(tmp_path), seeds=2, epochs=10)
    assert min(found.masses) > 0.5
    assert max(found.supports) < 4
    none, static, learned = (found.quartiles(kind)[1] for kind in ("none", "static", "SMaT"))
    assert none < static < learned
    assert min(found.simulability["SMaT"]) > max(found.simulability["static"])


@pytest.mark.parametrize(
    ("reached", "seed"),
    [
        ({0: 0.9, 1: 0.1, 2: 0.5, 3: 0.7, 4: 0.3}, 2),
        ({0: 0.9, 1: 0.1, 2: 0.5, 3: 0.7}, 2),
        ({3: 0.5, 1: 0.5, 2: 0.5}, 2),
    ],
)
def test_the_median_student_is_the_lower_of_two_in_the_middle_and_ties_go_by_seed(
    reached: dict[int, float], seed: int
) -> None:
    students = tuple(replace(SMAT, seed=each) for each in reached)
    stored = SimpleNamespace(get=lambda student: Artefact(notes={"simulability": reached[student.seed]}))
    table = LearnedAttributionTable(TEACHER, students)
    assert table.median_student(cast("Workspace", stored)).seed == seed
    unknown = SimpleNamespace(get=lambda student: Artefact(notes={"simulability": None}))
    with pytest.raises(UserError, match="undefined"):
        table.median_student(cast("Workspace", unknown))
