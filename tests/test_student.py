"""Students: what agreeing costs, what is read and what is not, and who can be a student."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn

from heedful.attributions.gradient import InputXGradient
from heedful.attributions.perturbation import Random
from heedful.core.tasks import Binary, Classes, Regression
from heedful.core.types import Batch, UserError
from heedful.core.workspace import Silent, Workspace
from heedful.data.batching import Words
from heedful.data.images import Digits
from heedful.data.sampling import Sampled
from heedful.data.vectors import RandomVectors
from heedful.models.attention import Additive
from heedful.models.encoders import BiLSTM
from heedful.models.planted import SpeakingHeads
from heedful.models.pooled import Pooled
from heedful.recipes.banks import HeadBank
from heedful.recipes.explanations import Explanation, Learned, Mixed, Ridged, Static
from heedful.recipes.fit import SGD, Adam, Fit, Select
from heedful.recipes.schooling import SCHOOLING, School
from heedful.recipes.simulating import explained_loss, simulation
from heedful.recipes.student import Student
from heedful.recipes.subject import Subject
from heedful.recipes.teaching import Classroom, Maps, answers
from heedful.recipes.training import Lesson, train
from tests.model_laws import LAWS, TEXT_LAWS, Case, Law, law_name, real_units
from tests.networks import texts
from tests.schools import FIT, PLAN, ROOM, TEACHER, Dying, Killed, Pairs, same, weights

STUDENT = Student(TEACHER, PLAN, classroom=ROOM, fit=FIT)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("students"), batch_size=16)


def test_hard_soft_and_squared_simulation_cost_what_they_cost_by_hand() -> None:
    student, teacher = torch.tensor([[0.3], [-1.2]]), torch.tensor([[2.0], [0.5]])
    p_student, p_teacher = (1 / (1 + np.exp(-values.numpy()[:, 0].astype(float))) for values in (student, teacher))
    hard, soft = simulation(Binary(), student, teacher, "hard"), simulation(Binary(), student, teacher, "soft")
    np.testing.assert_allclose(hard, -np.log(p_student), rtol=1e-5)
    cross = -p_teacher * np.log(p_student) - (1 - p_teacher) * np.log(1 - p_student)
    np.testing.assert_allclose(soft, cross, rtol=1e-5)
    three, told = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.0, 2.0, 1.0]])
    logs = three.double().numpy()[0] - np.log(np.exp(three.double().numpy()).sum())
    shares = np.exp(told.numpy()[0]) / np.exp(told.numpy()).sum()
    np.testing.assert_allclose(simulation(Classes(3), three, told, "hard"), [-logs[1]], rtol=1e-5)
    np.testing.assert_allclose(simulation(Classes(3), three, told, "soft"), [-(shares * logs).sum()], rtol=1e-5)
    for labels in ("hard", "soft"):
        assert simulation(Regression(), student, teacher, labels).tolist() == pytest.approx([1.7**2, 1.7**2])


def test_an_excluded_class_costs_a_soft_student_nothing() -> None:
    barred = torch.tensor([[1.0, -torch.inf, 0.0]], requires_grad=True)
    found = simulation(Classes(3), barred, barred.detach(), "soft")
    p = 1 / (1 + np.exp(-1.0))
    assert found.item() == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))
    (slope,) = torch.autograd.grad(found.sum(), barred)
    assert torch.isfinite(slope).all()


def kl(teacher: Tensor, student: Tensor) -> float:
    one, other = (values.double().numpy().clip(1e-7, 1 - 1e-7) for values in (teacher, student))
    return float((one * np.log(one / other)).sum())


def test_the_loss_is_simulation_plus_beta_times_the_divergence_of_explanations(workspace: Workspace) -> None:
    school = School(replace(STUDENT, explanation=Mixed()), workspace)
    batch = school.batches["train"].rows(torch.arange(6))
    assert school.teaching is not None
    found = explained_loss(school.train.logits, "hard", school.teaching, 3.0)(school.model, batch).detach()
    with torch.no_grad():
        trace = school.model.network(batch)
        teacher = school.trained.model(batch)
    for row in range(6):
        words = batch.scored[row]
        explained = []
        for each in (teacher, trace):
            assert each.scores is not None
            real = each.scores[row][..., batch.mask[row], :].mean((0, 1, 2))
            explained.append(real[words].softmax(0))
        told = int(teacher.logits[row] > 0)
        cost = float(Binary().losses(trace.logits[row : row + 1], torch.tensor([told])))
        assert float(found[row]) == pytest.approx(cost + 3.0 * kl(*explained), rel=1e-4)


def test_without_explanations_none_is_made_or_read(workspace: Workspace) -> None:
    assert all(need.bank is None for need in STUDENT.needs if isinstance(need, Maps))
    plain = workspace.get(STUDENT)
    assert plain.tensors["student/phi"].tolist() == [0.25] * 4
    weightless = workspace.get(replace(STUDENT, explanation=Mixed(), beta=0.0))
    assert same(plain.tensors, weightless.tensors)
    assert not same(plain.tensors, workspace.get(replace(STUDENT, explanation=Mixed())).tensors)


def test_the_same_recipe_gives_the_same_numbers_and_another_seed_others(workspace: Workspace, tmp_path: Path) -> None:
    recipe = replace(STUDENT, explanation=Mixed())
    first, again = workspace.get(recipe), Workspace(tmp_path, batch_size=16).get(recipe)
    assert same(first.tensors, again.tensors)
    assert first.table.equals(again.table)
    assert first.notes == again.notes
    assert not same(first.tensors, workspace.get(replace(recipe, seed=1)).tensors)


def test_a_student_leaves_its_teacher_as_it_was(workspace: Workspace) -> None:
    before = weights(workspace)
    for explanation in (Mixed(), Static(InputXGradient(), 0.1)):
        workspace.get(replace(STUDENT, explanation=explanation, seed=7))
    assert same(weights(workspace), before)


def test_simulability_is_agreement_with_the_teacher_and_not_with_the_gold_labels(workspace: Workspace) -> None:
    made = workspace.get(STUDENT)
    trained = TEACHER.restore(workspace)
    batch = trained.batch("test")
    with torch.no_grad():
        teacher = answers(Binary(), trained.model(batch).logits)
        student = answers(Binary(), STUDENT.restore(workspace)(batch).logits)
    assert made.table["uid"].tolist() == list(batch.uids)
    assert made.table["teacher"].tolist() == teacher.tolist()
    assert made.table["student"].tolist() == student.tolist()
    assert made.notes["simulability"] == pytest.approx(float((teacher == student).float().mean()))
    assert batch.labels is not None
    assert made.notes["scores"]["teacher"]["accuracy"] == pytest.approx(float((teacher == batch.labels).float().mean()))  # type: ignore[index,call-overload]
    history = made.notes["history"]
    assert isinstance(history, list)
    assert len(history) == made.notes["epochs"] == 3
    assert made.notes["dev"] == max(row["simulability"] for row in history)  # type: ignore[index,call-overload,type-var]


@pytest.mark.parametrize("moment", [2, 5])
def test_a_student_that_was_killed_goes_on_bit_by_bit(moment: int, workspace: Workspace, tmp_path: Path) -> None:
    recipe = replace(STUDENT, explanation=Mixed())
    with pytest.raises(Killed):
        Workspace(tmp_path, batch_size=16, progress=Dying("student", moment)).get(recipe)
    resumed = Workspace(tmp_path, batch_size=16).get(recipe)
    assert same(resumed.tensors, workspace.get(recipe).tensors)
    assert resumed.notes == workspace.get(recipe).notes


@pytest.mark.parametrize(
    "explanation",
    [Mixed(HeadBank(-1)), Mixed(specials=True), Ridged(), Static(Random()), Static(InputXGradient(), 0.1)],
    ids=lambda each: each.called,
)
def test_students_learn_from_every_kind_of_explanation(explanation: Explanation, workspace: Workspace) -> None:
    recipe = replace(STUDENT, explanation=explanation)
    made = workspace.get(recipe)
    assert made.notes["beta"] == (0.2 if isinstance(explanation, Static) else 5.0)
    heads = 2 if explanation.last else 4
    assert made.tensors["student/phi"].shape == (heads,)
    assert made.tensors["student/phi"].tolist() != [1 / heads] * heads


def test_two_texts_soft_labels_and_a_shared_dev_split(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    teacher = replace(TEACHER, corpus=Pairs())
    room = Classroom(size=10, draw="fixed", shared=True)
    soft = Student(teacher, PLAN, Mixed(), room, labels="soft", fit=FIT)
    made, hard = workspace.get(soft), workspace.get(replace(soft, labels="hard"))
    assert made.notes["sizes"] == {"train": 10, "outer": 24, "judge": 24, "test": 24}
    assert made.notes["measure"] == "accuracy"
    assert not same(made.tensors, hard.tensors), "a distribution teaches otherwise than its likeliest class"
    apart = workspace.get(replace(soft, classroom=replace(room, shared=False)))
    assert apart.notes["sizes"] == {"train": 10, "outer": 12, "judge": 12, "test": 24}
    assert made.notes["simulability"] == pytest.approx(float((made.table["teacher"] == made.table["student"]).mean()))


def test_a_number_is_simulated_by_squared_error_and_judged_by_pearson(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    teacher = replace(TEACHER, corpus=Pairs(number=True))
    made = workspace.get(Student(teacher, PLAN, Mixed(), Classroom(size=20), fit=replace(FIT, optimiser=SGD(0.02))))
    assert made.notes["measure"] == "pearson"
    expected = stats.pearsonr(made.table["teacher"], made.table["student"]).statistic
    assert made.notes["simulability"] == pytest.approx(expected, abs=1e-5)


def test_patches_of_images_are_simulated_by_a_student_with_fewer_layers(tmp_path: Path) -> None:
    from heedful.models.transformer import TinyTransformer

    workspace = Workspace(tmp_path, batch_size=64)
    vit = TinyTransformer("vit", patch=2)
    corpus = Sampled(Digits(), 60)
    teacher = Subject(corpus, Digits.batching, vit, Fit(2, 16, Adam(rate=0.01, undecayed=())), vectors=None)
    recipe = Student(teacher, replace(vit, layers=1), Mixed(), Classroom(size=20), fit=replace(FIT, epochs=2))
    made = workspace.get(recipe)
    assert made.tensors["student/phi"].shape == (2,)
    batch = teacher.restore(workspace).batch("test")
    with torch.no_grad():
        said = [
            model(batch).logits.argmax(1) for model in (teacher.restore(workspace).model, recipe.restore(workspace))
        ]
    assert made.table["student"].tolist() == said[1].tolist()
    assert made.notes["simulability"] == pytest.approx(float((said[0] == said[1]).float().mean()))


def test_a_recurrent_student_has_one_head_to_explain_with(workspace: Workspace) -> None:
    made = workspace.get(replace(STUDENT, plan=Pooled(BiLSTM(4), Additive()), explanation=Mixed()))
    assert made.tensors["student/phi"].shape == (1,)


def test_gradient_descent_shrinks_by_the_decay_and_steps_by_the_clipped_gradient() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -2.0]]))
    optimiser = SGD(rate=0.1, decay=0.5).build(layer)
    layer.weight.grad = torch.tensor([[30.0, 40.0]])
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 5.0)
    optimiser.step()
    # The decay is not clipped with the gradient: 1 (1 - .05) - .1 x 3 and -2 (1 - .05) - .1 x 4.
    assert layer.weight.detach().flatten().tolist() == pytest.approx([0.65, -2.3], rel=1e-5)
    assert SGD().rate_at(7, 10) == 5e-3


def test_the_defaults_are_those_of_the_paper() -> None:
    assert (SCHOOLING.optimiser, SCHOOLING.clip, SCHOOLING.batch) == (SGD(5e-3, 0.01), 5.0, 32)
    assert [kind.beta for kind in (Mixed, Learned, Static)] == [5.0, 5.0, 0.2]
    assert Learned().rate == 5e-4


def test_a_student_that_reads_other_units_is_refused(workspace: Workspace) -> None:
    from heedful.models.transformer import TinyTransformer

    teacher = replace(TEACHER, vectors=None, model=TinyTransformer(vocabulary=30))
    with pytest.raises(UserError, match="students read with the teacher's batching"):
        workspace.get(Student(teacher, TinyTransformer(vocabulary=5), classroom=ROOM, fit=FIT))


def test_students_that_cannot_be_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="use Scaffolded"):
        replace(STUDENT, explanation=Learned())
    with pytest.raises(UserError, match="hard"):
        replace(STUDENT, labels="firm")  # type: ignore[arg-type]
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"beta must be a number from 0, not {wrong}"):
            replace(STUDENT, beta=wrong)
    with pytest.raises(UserError, match="which epoch of a student is kept is decided on the dev split"):
        replace(STUDENT, fit=replace(FIT, select=Select(on="test")))
    with pytest.raises(UserError, match="only 60 to draw from"):
        workspace.get(replace(STUDENT, classroom=Classroom(size=61)))


class Counting:
    """Learns beside a model by counting its steps."""

    def __init__(self) -> None:
        self.count = torch.zeros(())

    def step(self, model: nn.Module, batch: Batch, rate: float) -> None:
        self.count = self.count + len(batch)

    def close_epoch(self) -> dict[str, float]:
        return {"seen": float(self.count)}

    def tensors(self) -> dict[str, Tensor]:
        return {"count": self.count}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.count = tensors["count"]


def test_what_learns_beside_a_model_steps_with_it_and_is_kept_at_the_best_epoch(
    workspace: Workspace, tmp_path: Path
) -> None:
    school = School(STUDENT, workspace)
    batch = TEACHER.restore(workspace).batch("train")
    counting = Counting()
    lesson = Lesson(
        model=school.model,
        loss=lambda model, part: model(part).logits.squeeze(-1).square(),
        train=batch,
        judge=batch,
        fit=replace(FIT, epochs=2, select=replace(FIT.select, by="training_loss")),
        seed=0,
        outer=counting,  # type: ignore[arg-type]
    )
    state = train(lesson, tmp_path, Silent(), 16)
    assert [row["seen"] for row in state.history] == [60.0, 120.0]
    assert float(state.best_outer["count"]) == 60.0 * state.best_epoch
    again = Counting()
    train(replace(lesson, outer=again), tmp_path, Silent(), 16)  # type: ignore[arg-type]
    assert float(again.count) == 120.0


VOICES = Case(
    lambda seed: (
        SpeakingHeads(2, 2)
        .build(Binary(), torch.randn(50, 8, generator=Generator().manual_seed(seed)), Generator().manual_seed(seed))
        .double()
    ),
    texts(),
    real_units,
)


@pytest.mark.parametrize("law", [*LAWS, *TEXT_LAWS], ids=law_name)
def test_voices_obey_the_law(law: Law) -> None:
    law(VOICES)


def test_only_the_head_that_speaks_is_heard() -> None:
    table = torch.randn(50, 8, generator=Generator().manual_seed(1))
    model, batch = SpeakingHeads(2, 2, (1, 0), 2.0).build(Binary(), table, Generator().manual_seed(1)).double(), texts()
    attention = model(batch).attention
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        uniform = attention.clone()
        uniform[:, layer, head] = batch.mask.double()[:, None] / batch.lengths[:, None, None]
        changed = (model(batch, attention=uniform).logits - model(batch).logits).abs().max() > 1e-6
        assert bool(changed) == ((layer, head) == (1, 0))


def test_speaking_heads_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="no head"):
        SpeakingHeads(2, 2, (2, 0))
    with pytest.raises(UserError, match="divided among"):
        SpeakingHeads(1, 3).build(Binary(), torch.zeros(5, 8), Generator())
    with pytest.raises(UserError, match="Words"):
        SpeakingHeads().build(Binary(), None, Generator())


def test_a_teacher_of_words_gives_its_student_fresh_vectors(workspace: Workspace) -> None:
    assert TEACHER.vectors == RandomVectors(8)
    tables = [School(replace(STUDENT, seed=seed), workspace).model.state_dict()["network.table"] for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert isinstance(TEACHER.batching, Words)
