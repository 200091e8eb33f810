"""Students: losses by hand, simulability, explanations of every kind, resumption, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from heedful.attributions.controls import Random
from heedful.attributions.gradient import InputXGradient
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.images import Digits
from heedful.data.splitting import SubsampledCorpus
from heedful.data.words import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.progress import SilentProgress
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.student import STUDENT_TRAINING, Student, StudentTraining, build_student_loss, simulation_loss
from heedful.training.teacher import (
    AttentionExplanation,
    HeadMaps,
    LearnedExplanation,
    MethodExplanation,
    RidgeExplanation,
    StudentData,
    TeacherExplanation,
    TeacherOutputs,
    point_predictions,
)
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import SGD, Adam, EpochSelection, Training, TrainingRun, train
from heedful.types import Batch, UserError
from tests.students import ARCHITECTURE, DATA, TEACHER, TRAINING, Dying, Killed, Pairs, same, weights

pytestmark = pytest.mark.slow

STUDENT = Student(TEACHER, ARCHITECTURE, data=DATA, training=TRAINING)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("students"), batch_size=16)


def test_simulation_loss_by_hand() -> None:
    student, teacher = torch.tensor([[0.3], [-1.2]]), torch.tensor([[2.0], [0.5]])
    probability = 1 / (1 + np.exp(-student.numpy()[:, 0].astype(float)))
    loss = simulation_loss(BinaryClassification(), student, teacher)
    np.testing.assert_allclose(loss, -np.log(probability), rtol=1e-5)
    three, answer = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.0, 2.0, 1.0]])
    logs = three.double().numpy()[0] - np.log(np.exp(three.double().numpy()).sum())
    np.testing.assert_allclose(simulation_loss(MulticlassClassification(3), three, answer), [-logs[1]], rtol=1e-5)
    assert simulation_loss(Regression(), student, teacher).tolist() == pytest.approx([1.7**2, 1.7**2])


def kl(teacher: Tensor, student: Tensor) -> float:
    one, other = (values.double().numpy().clip(1e-7, 1 - 1e-7) for values in (teacher, student))
    return float((one * np.log(one / other)).sum())


def test_the_loss_is_simulation_plus_beta_times_the_divergence_of_explanations(workspace: Workspace) -> None:
    training = StudentTraining(replace(STUDENT, explanation=AttentionExplanation()), workspace)
    batch = training.batches["train"].rows(torch.arange(6))
    assert training.explainer is not None
    loss = build_student_loss(training.teacher_train.logits, training.explainer, 3.0)
    found = loss(training.model, batch).detach()
    with torch.no_grad():
        trace = training.model.network(batch)
        teacher = training.teacher.model(batch)
    for row in range(6):
        words = batch.content_mask[row]
        explained = []
        for each in (teacher, trace):
            assert each.scores is not None
            real = each.scores[row][..., batch.mask[row], :].mean((0, 1, 2))
            explained.append(real[words].softmax(0))
        answer = int(teacher.logits[row] > 0)
        cost = float(BinaryClassification().losses(trace.logits[row : row + 1], torch.tensor([answer])))
        assert float(found[row]) == pytest.approx(cost + 3.0 * kl(*explained), rel=1e-4)


def test_without_explanations_no_maps_are_computed(workspace: Workspace) -> None:
    assert all(need.map_source is None for need in STUDENT.dependencies if isinstance(need, TeacherOutputs))
    plain = workspace.get(STUDENT)
    assert plain.tensors["student/phi"].tolist() == [0.25] * 4
    weightless = workspace.get(replace(STUDENT, explanation=AttentionExplanation(), beta=0.0))
    assert same(plain.tensors, weightless.tensors)
    assert not same(plain.tensors, workspace.get(replace(STUDENT, explanation=AttentionExplanation())).tensors)


@pytest.mark.slow
def test_the_same_recipe_gives_the_same_numbers_and_another_seed_others(workspace: Workspace, tmp_path: Path) -> None:
    recipe = replace(STUDENT, explanation=AttentionExplanation())
    first, again = workspace.get(recipe), Workspace(tmp_path, batch_size=16).get(recipe)
    assert same(first.tensors, again.tensors)
    assert first.table.equals(again.table)
    assert first.notes == again.notes
    assert not same(first.tensors, workspace.get(replace(recipe, seed=1)).tensors)


def test_a_student_leaves_its_teacher_as_it_was(workspace: Workspace) -> None:
    before = weights(workspace)
    for explanation in (AttentionExplanation(), MethodExplanation(InputXGradient(), 0.1)):
        workspace.get(replace(STUDENT, explanation=explanation, seed=7))
    assert same(weights(workspace), before)


def test_simulability_is_agreement_with_the_teacher_and_not_with_the_gold_labels(workspace: Workspace) -> None:
    artefact = workspace.get(STUDENT)
    trained = TEACHER.restore(workspace)
    batch = trained.batch("test")
    with torch.no_grad():
        teacher = point_predictions(BinaryClassification(), trained.model(batch).logits)
        student = point_predictions(BinaryClassification(), STUDENT.restore(workspace)(batch).logits)
    assert artefact.table["uid"].tolist() == list(batch.uids)
    assert artefact.table["teacher"].tolist() == teacher.tolist()
    assert artefact.table["student"].tolist() == student.tolist()
    assert artefact.notes["simulability"] == pytest.approx(float((teacher == student).float().mean()))
    assert batch.labels is not None
    scores = artefact.notes["scores"]
    assert isinstance(scores, dict)
    assert isinstance(scores["teacher"], dict)
    assert scores["teacher"]["accuracy"] == pytest.approx(float((teacher == batch.labels).float().mean()))
    history = artefact.notes["history"]
    assert isinstance(history, list)
    assert len(history) == artefact.notes["epochs"] == 3
    assert artefact.notes["dev"] == max(row["simulability"] for row in history)  # type: ignore[index,call-overload,type-var]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 5])
def test_a_killed_student_resumes_bit_for_bit(step: int, workspace: Workspace, tmp_path: Path) -> None:
    recipe = replace(STUDENT, explanation=AttentionExplanation())
    with pytest.raises(Killed):
        Workspace(tmp_path, batch_size=16, progress=Dying("student", step)).get(recipe)
    resumed = Workspace(tmp_path, batch_size=16).get(recipe)
    assert same(resumed.tensors, workspace.get(recipe).tensors)
    assert resumed.notes == workspace.get(recipe).notes


@pytest.mark.parametrize(
    "explanation",
    [
        AttentionExplanation(HeadMaps(-1)),
        RidgeExplanation(),
        MethodExplanation(Random()),
        MethodExplanation(InputXGradient(), 0.1),
    ],
    ids=lambda each: each.display_name,
)
def test_students_learn_from_every_kind_of_explanation(explanation: TeacherExplanation, workspace: Workspace) -> None:
    recipe = replace(STUDENT, explanation=explanation)
    artefact = workspace.get(recipe)
    assert artefact.notes["beta"] == (0.2 if isinstance(explanation, MethodExplanation) else 5.0)
    heads = 2 if explanation.map_sources == (HeadMaps(-1),) else 4
    assert artefact.tensors["student/phi"].shape == (heads,)
    assert artefact.tensors["student/phi"].tolist() != [1 / heads] * heads


def test_two_texts_and_a_shared_dev_split(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    teacher = replace(TEACHER, corpus=Pairs())
    data = StudentData(train_size=10, sampling="fixed", share_dev=True)
    shared = Student(teacher, ARCHITECTURE, AttentionExplanation(), data, training=TRAINING)
    artefact = workspace.get(shared)
    assert artefact.notes["sizes"] == {"train": 10, "outer": 24, "judge": 24, "test": 24}
    assert artefact.notes["measure"] == "accuracy"
    apart = workspace.get(replace(shared, data=replace(data, share_dev=False)))
    assert apart.notes["sizes"] == {"train": 10, "outer": 12, "judge": 12, "test": 24}
    assert artefact.notes["simulability"] == pytest.approx(
        float((artefact.table["teacher"] == artefact.table["student"]).mean())
    )


def test_regression_is_simulated_by_squared_error_and_judged_by_pearson(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    teacher = replace(TEACHER, corpus=Pairs(number=True))
    artefact = workspace.get(
        Student(
            teacher,
            ARCHITECTURE,
            AttentionExplanation(),
            StudentData(train_size=20),
            training=replace(TRAINING, optimizer=SGD(0.02)),
        )
    )
    assert artefact.notes["measure"] == "pearson"
    expected = stats.pearsonr(artefact.table["teacher"], artefact.table["student"]).statistic
    assert artefact.notes["simulability"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_patches_of_images_are_simulated_by_a_student_with_fewer_layers(tmp_path: Path) -> None:
    from tests.networks import TinyTransformer

    workspace = Workspace(tmp_path, batch_size=64)
    vit = TinyTransformer("vit", patch_size=2)
    corpus = SubsampledCorpus(Digits(), 60)
    teacher = TrainedModel(
        corpus, Digits.tokenization, vit, Training(2, 16, Adam(lr=0.01, no_decay=())), embeddings=None
    )
    recipe = Student(
        teacher,
        replace(vit, layers=1),
        AttentionExplanation(),
        StudentData(train_size=20),
        training=replace(TRAINING, epochs=2),
    )
    artefact = workspace.get(recipe)
    assert artefact.tensors["student/phi"].shape == (2,)
    batch = teacher.restore(workspace).batch("test")
    with torch.no_grad():
        predicted = [
            model(batch).logits.argmax(1) for model in (teacher.restore(workspace).model, recipe.restore(workspace))
        ]
    assert artefact.table["student"].tolist() == predicted[1].tolist()
    assert artefact.notes["simulability"] == pytest.approx(float((predicted[0] == predicted[1]).float().mean()))


def test_a_recurrent_student_has_one_head(workspace: Workspace) -> None:
    artefact = workspace.get(
        replace(STUDENT, architecture=Attentive(BiLSTM(4), Additive()), explanation=AttentionExplanation())
    )
    assert artefact.tensors["student/phi"].shape == (1,)


def test_gradient_descent_shrinks_by_the_decay_and_steps_by_the_clipped_gradient() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -2.0]]))
    optimiser = SGD(lr=0.1, weight_decay=0.5).build(layer)
    layer.weight.grad = torch.tensor([[30.0, 40.0]])
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 5.0)
    optimiser.step()
    # The decay is not clipped with the gradient: 1 (1 - .05) - .1 x 3 and -2 (1 - .05) - .1 x 4.
    assert layer.weight.detach().flatten().tolist() == pytest.approx([0.65, -2.3], rel=1e-5)
    assert SGD().lr_at(7, 10) == 5e-3


def test_the_defaults_are_those_of_the_paper() -> None:
    assert (STUDENT_TRAINING.optimizer, STUDENT_TRAINING.max_grad_norm, STUDENT_TRAINING.batch_size) == (
        SGD(5e-3, 0.01),
        5.0,
        32,
    )
    assert [kind.beta for kind in (AttentionExplanation, LearnedExplanation, MethodExplanation)] == [5.0, 5.0, 0.2]
    assert LearnedExplanation().lr == 5e-4


def test_a_student_with_another_vocabulary_is_refused(workspace: Workspace) -> None:
    from tests.networks import TinyTransformer

    teacher = replace(TEACHER, embeddings=None, architecture=TinyTransformer(vocab_size=30))
    with pytest.raises(UserError, match="tokens of its teacher"):
        workspace.get(Student(teacher, TinyTransformer(vocab_size=5), data=DATA, training=TRAINING))


def test_invalid_students_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="use SMaT"):
        replace(STUDENT, explanation=LearnedExplanation())
    with pytest.raises(UserError, match="selected on the dev split"):
        replace(STUDENT, training=replace(TRAINING, selection=EpochSelection(split="test")))
    with pytest.raises(UserError, match="only 60 examples"):
        workspace.get(replace(STUDENT, data=StudentData(train_size=61)))


class Counting:
    """Learns beside a model by counting its steps."""

    def __init__(self) -> None:
        self.count = torch.zeros(())

    def step(self, model: nn.Module, batch: Batch, lr: float) -> None:
        self.count = self.count + len(batch)

    def end_epoch(self) -> dict[str, float]:
        return {"seen": float(self.count)}

    def tensors(self) -> dict[str, Tensor]:
        return {"count": self.count}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.count = tensors["count"]


def test_an_outer_optimizer_steps_with_the_model_and_is_kept_at_the_best_epoch(
    workspace: Workspace, tmp_path: Path
) -> None:
    training = StudentTraining(STUDENT, workspace)
    batch = TEACHER.restore(workspace).batch("train")
    counting = Counting()
    run = TrainingRun(
        model=training.model,
        loss=lambda model, part: model(part).logits.squeeze(-1).square(),
        train_batch=batch,
        evaluation_batch=batch,
        training=replace(TRAINING, epochs=2, selection=replace(TRAINING.selection, metric="training_loss")),
        seed=0,
        outer=counting,  # type: ignore[arg-type]
    )
    state = train(run, tmp_path, SilentProgress(), 16)
    assert [row["seen"] for row in state.history] == [60.0, 120.0]
    assert float(state.best_tensors["outer/count"]) == 60.0 * state.best_epoch
    again = Counting()
    train(replace(run, outer=again), tmp_path, SilentProgress(), 16)  # type: ignore[arg-type]
    assert float(again.count) == 120.0


def test_a_student_draws_its_own_word_vectors(workspace: Workspace) -> None:
    assert TEACHER.embeddings == RandomEmbeddings(8)
    tables = [
        StudentTraining(replace(STUDENT, seed=seed), workspace).model.state_dict()["network.table"]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert isinstance(TEACHER.tokenization, Words)
