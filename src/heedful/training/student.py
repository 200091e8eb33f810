"""A student at work: its network with an explainer of its own, and what agreeing with a teacher costs it.

The student's explainer is a mix of its own heads with a phi of its own, trained with its weights. The loss of an
example is the simulation loss (cross-entropy with the teacher's answer or distribution, squared error for a number)
plus beta KL(e_T || e_S); simulability is agreement with the teacher on examples that nobody has learned from.

What all students have in common: a teacher, a plan, a class, an explanation, and how they are trained and examined.

`School` puts one training together for the one loop of `recipes.training`; the artefact has the student's and the
teacher's answer to each test example, so that a trial can draw its own samples from them.

Students: models that simulate a teacher from few examples, with or without explanations of a fixed kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Generator, Tensor, nn

from heedful.attributions import head_mix
from heedful.attributions.head_mix import MixNormalizer
from heedful.measures.classification import accuracy
from heedful.measures.rank_correlation import pearson
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe, build_model, to_json
from heedful.training.teacher import (
    ExampleSubset,
    HeadMaps,
    LearnedExplanation,
    NoExplanation,
    StudentData,
    TeacherExplainer,
    TeacherExplanation,
    TeacherLookup,
    TeacherOutputs,
    point_predictions,
)
from heedful.training.trainer import (
    SGD,
    EpochSelection,
    Evaluator,
    Loss,
    OuterOptimizer,
    Training,
    TrainingRun,
    TrainingState,
    evaluation_mode,
    inference_batches,
    train,
)
from heedful.types import Architecture, Batch, Example, Model, Task, Trace, UserError, read_heads

Labels = Literal["hard", "soft"]
TeacherLogits = Callable[[Batch], Tensor]
"""A teacher's logits for a batch."""

SIMULABILITY = "simulability"


class StudentModel(Model):
    """A student: a network that answers, and phi, which mixes its heads into its explanation.

    Args:
        sample: a few examples, to see that the network can read them and how many heads it has.
    """

    def __init__(self, network: Model, head_maps: HeadMaps, normalizer: MixNormalizer, sample: Batch) -> None:
        super().__init__()
        self.network, self.task, self.notes = network, network.task, network.notes
        self.head_maps, self.normalizer = head_maps, normalizer
        device = next(network.parameters()).device
        try:
            with evaluation_mode(network):
                heads = head_maps.compute_maps(network, sample.to(device)).maps.shape[1]
        except (IndexError, ValueError, RuntimeError, UserError) as error:
            raise UserError(
                f"the student cannot read the units of its teacher ({error}); students read with the teacher's "
                "batching: give the student a plan for the same tokenizer, words or patches"
            ) from error
        self.phi = nn.Parameter(head_mix.uniform_phi(heads).to(device))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """As the network."""
        return self.network(batch, embeddings=embeddings, attention=attention)

    def student_logits(self, batch: Batch) -> Tensor:
        """Logits `[batch output]`."""
        return read_heads(self.network, batch).logits

    def logits_and_explanation(self, batch: Batch, support: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and log e_S `[batch unit]` on the support, from one reading."""
        heads = read_heads(self.network, batch)
        mix = head_mix.mix_maps(self.head_maps.select_maps(heads), self.phi, self.normalizer)
        return heads.logits, head_mix.masked_log_softmax(mix, support)


def simulation_loss(task: Task, logits: Tensor, teacher_logits: Tensor, labels: Labels) -> Tensor:
    """What each example costs a student that says `logits` where its teacher said `said`, `[batch]`.

    Hard: the task's loss with the teacher's answer as the label. Soft: - sum_c p_T(c) log p_S(c). For a number both
    are the squared error.
    """
    if labels == "hard" or task.num_classes == 1:
        return task.losses(logits, point_predictions(task, teacher_logits))
    # One logit stands for two classes: that of the other class is 0.
    whole = torch.cat((torch.zeros_like(logits), logits), -1) if task.num_outputs == 1 else logits
    teacher = task.probabilities(teacher_logits).to(logits.dtype)
    # An excluded class has no probability and a logarithm of minus infinity: it costs nothing.
    return -(teacher * whole.log_softmax(-1).masked_fill(teacher == 0, 0.0)).sum(-1)


def build_simulation_loss(teacher_logits: TeacherLogits, labels: Labels) -> Loss:
    """The simulation loss alone; no explanation is read on either side."""

    def losses(model: Model, batch: Batch) -> Tensor:
        return simulation_loss(model.task, require_student(model).student_logits(batch), teacher_logits(batch), labels)

    return losses


def build_explanation_loss(
    teacher_logits: TeacherLogits, labels: Labels, explainer: TeacherExplainer, beta: float
) -> Loss:
    """Simulation loss + beta KL(e_T || e_S)."""

    def losses(model: Model, batch: Batch) -> Tensor:
        support = explainer.support(batch)
        logits, explained = require_student(model).logits_and_explanation(batch, support)
        apart = head_mix.clamped_kl_divergence(explainer(batch).to(explained.dtype), explained, support)
        return simulation_loss(model.task, logits, teacher_logits(batch), labels) + beta * apart

    return losses


def require_student(model: Model) -> StudentModel:
    """The student, known as one."""
    assert isinstance(model, StudentModel)
    return model


@torch.no_grad()
def predict_student_logits(model: StudentModel, batch: Batch, batch_size: int) -> Tensor:
    """A student's logits on a whole batch `[batch output]`, row by row, on the CPU."""
    device = model.phi.device
    found = torch.zeros(len(batch), model.task.num_outputs)
    with evaluation_mode(model):
        for rows, part in inference_batches(batch, batch_size):
            found[rows] = model.student_logits(part.to(device)).cpu().float()
    return found


def simulability(task: Task, teacher: Tensor, student: Tensor) -> float:
    """Simulability from answers: the share of equal classes, or Pearson's correlation (NaN where one is constant)."""
    if task.num_classes == 1:
        return pearson(student, teacher).value.item()
    return accuracy(student, teacher)


def simulability_metric(task: Task) -> str:
    """What simulability is called for this task."""
    return "pearson" if task.num_classes == 1 else "accuracy"


def build_simulability_evaluator(teacher_logits: TeacherLogits, labels: Labels) -> Evaluator:
    """Simulability and the mean simulation loss on a batch."""

    def judged(model: Model, batch: Batch, inference: int) -> dict[str, float]:
        student, teacher = predict_student_logits(require_student(model), batch, inference), teacher_logits(batch).cpu()
        task = model.task
        loss = float(simulation_loss(task, student, teacher, labels).mean())
        return {
            SIMULABILITY: simulability(task, point_predictions(task, teacher), point_predictions(task, student)),
            "simulation_loss": loss,
        }

    return judged


def drop_labels(batch: Batch) -> Batch:
    """The batch without gold labels: a student knows its teacher's answers only."""
    return replace(batch, labels=None)


PROBE_SIZE = 2
"""Examples that a student is tried on before it is trained."""

# The paper's code waits one epoch longer than its patience of 10 says, and its epochs have no end.
STUDENT_TRAINING = Training(
    epochs=200,
    batch_size=32,
    optimizer=SGD(),
    selection=EpochSelection(),
    patience=11,
    max_grad_norm=5.0,
    reduction="mean",
)
"""The paper's training of a student, but for ties: an epoch that equals the best one on dev at a lower training loss is
the new best, and patience begins anew with it."""


@dataclass(frozen=True)
class StudentRecipe(Recipe):
    """A student of this plan, trained to answer as its teacher does.

    Args:
        teacher: stays as it is.
        plan: reads with the teacher's batching; may be another architecture with fewer layers or heads.
        beta: how heavily explanations weigh beside the simulation; None takes what the paper gives this kind: 5 for
            attention, .2 for other methods.
        labels: whether the teacher's answer or its whole distribution is simulated; for numbers there is one way.
        seed: decides weights, batches, dropout and, where it is redrawn, the class.
    """

    kind: ClassVar[str] = "student"

    teacher: ModelRecipe
    architecture: Architecture
    explanation: TeacherExplanation = NoExplanation()
    data: StudentData = StudentData()
    beta: float | None = None
    labels: Labels = "hard"
    training: Training = STUDENT_TRAINING
    seed: int = 0

    def __post_init__(self) -> None:
        if self.labels not in ("hard", "soft"):
            raise UserError(f"labels are 'hard' or 'soft', not {self.labels!r}")
        if self.beta is not None and not (math.isfinite(self.beta) and self.beta >= 0):
            raise UserError(f"beta must be a number from 0, not {self.beta}")
        if self.training.selection.split != "dev":
            raise UserError("which epoch of a student is kept is decided on the dev split: leave select.on as 'dev'")

    @property
    def explanation_weight(self) -> float:
        """beta as it is used; nothing to weigh where nothing is explained."""
        if not self.explanation.map_sources:
            return 0.0
        return self.explanation.beta if self.beta is None else self.beta

    @property
    def about(self) -> dict[str, str | int]:
        """Corpus, student, explanation, size of the class and seed, for tables and file names."""
        kind = {
            "corpus": self.teacher.corpus.name,
            **self.architecture.describe(),
            "explanation": self.explanation.display_name,
        }
        return {**kind, "size": self.data.train_size, "seed": self.seed}

    def describe(self) -> dict[str, Json]:
        """`about`, and whether the teacher's corpus is a subsample."""
        return {**self.about, "quick": self.teacher.describe()["quick"]}

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The teacher, and its words to this class."""
        return (self.teacher, *self._teacher_outputs.values())

    @property
    def _teacher_outputs(self) -> dict[str, TeacherOutputs]:
        pupils, room = self.data.train_subset(self.seed), self.data
        parts = {"train": pupils, "dev": room.dev, "test": room.test}
        found = {name: TeacherOutputs(self.teacher, part) for name, part in parts.items()}
        banks = enumerate(self.explanation.map_sources)
        return found | {f"maps {place}": TeacherOutputs(self.teacher, pupils, bank) for place, bank in banks}

    def restore(self, workspace: Workspace) -> StudentModel:
        """The trained student."""
        artefact = workspace.get(self)
        model = StudentTraining(self, workspace).model
        own = {name.removeprefix("student/"): value for name, value in artefact.tensors.items() if "/" in name}
        model.load_state_dict(own)
        return model.eval()


class StudentTraining:
    """One training, from the teacher's words to the student's examination."""

    def __init__(self, recipe: StudentRecipe, workspace: Workspace) -> None:
        self.recipe, self.workspace = recipe, workspace
        self.teacher = recipe.teacher.restore(workspace)
        words = {name: TeacherLookup(workspace.get(maps)) for name, maps in recipe._teacher_outputs.items()}
        self.teacher_train, self.teacher_dev, self.teacher_test = words["train"], words["dev"], words["test"]
        banks = tuple(taught for name, taught in words.items() if name.startswith("maps "))
        self.explainer: TeacherExplainer | None = recipe.explanation.build_explainer(banks) if banks else None
        self.batches = _student_batches(self.teacher, recipe)
        self.model = self._build_student()

    def _build_student(self) -> StudentModel:
        recipe, trained = self.recipe, self.teacher
        generator = Generator().manual_seed(derive_seed("student", recipe.seed))
        vocabulary, embeddings = trained.tokenizer.vocabulary, recipe.teacher.embeddings
        network, _ = build_model(
            recipe.architecture, trained.model.task, vocabulary, embeddings, self.workspace, generator
        )
        bank = HeadMaps(-1) if recipe.explanation.last_layer_only else HeadMaps()
        sample = self.batches["train"].rows(torch.arange(min(PROBE_SIZE, len(self.batches["train"]))))
        return StudentModel(network, bank, "sparsemax", sample)

    @property
    def teacher_layers(self) -> int:
        """Layers of the teacher."""
        sample = self.batches["train"].rows(torch.arange(1)).to(self.workspace.device)
        with torch.no_grad():
            return read_heads(self.teacher.model, sample).scores.shape[1]

    def train_student(self, loss: Loss, outer: OuterOptimizer | None = None) -> TrainingState:
        """Trains the student; the state tells how it went."""
        recipe, fit = self.recipe, self.recipe.training
        select = fit.selection if fit.selection.metric is not None else replace(fit.selection, metric=SIMULABILITY)
        lesson = TrainingRun(
            model=self.model,
            loss=loss,
            train_batch=self.batches["train"].to(self.workspace.device),
            evaluation_batch=self.batches["judge"],
            training=replace(fit, selection=select),
            seed=recipe.seed,
            name="student " + " ".join(str(value) for value in recipe.about.values()),
            evaluator=build_simulability_evaluator(self.teacher_dev.logits, recipe.labels),
            outer=outer,
        )
        return train(lesson, self.workspace.partial_folder(recipe), self.workspace.progress, self.workspace.batch_size)

    def artefact(self, state: TrainingState) -> Artefact:
        """Weights of the best epoch, one row per test example, and what the report says about this student."""
        task, test = self.teacher.model.task, self.batches["test"]
        teacher = self.teacher_test.logits(test)
        student = predict_student_logits(self.model, drop_labels(test), self.workspace.batch_size)
        said, answered = point_predictions(task, teacher), point_predictions(task, student)
        gold = [None] * len(test) if test.labels is None else test.labels.tolist()
        columns = {"uid": test.uids, "gold": gold, "teacher": said.tolist(), "student": answered.tolist()}
        scores = {"teacher": teacher, "student": student} if test.labels is not None else {}
        notes: dict[str, Json] = {
            **self._notes(state),
            SIMULABILITY: to_json(simulability(task, said, answered)),
            "commonest": to_json(_majority_share(said) if task.num_classes > 1 else None),
            "scores": to_json(
                {who: task.compute_metrics(task.probabilities(one), _gold_labels(test)) for who, one in scores.items()}
            ),
        }
        tensors = {f"student/{name}": value for name, value in self.model.state_dict().items()}
        return Artefact(tensors, pd.DataFrame(columns), notes)

    def _notes(self, state: TrainingState) -> dict[str, Json]:
        recipe, task = self.recipe, self.teacher.model.task
        # A score that was undefined in every epoch is minus infinity, for which JSON has no word.
        return {
            "about": dict(recipe.about),
            "explanation": recipe.explanation.display_name,
            "measure": simulability_metric(task),
            "dev": to_json(state.best_score),
            "best_epoch": state.best_epoch,
            "epochs": state.epoch,
            "history": to_json(state.history),
            "beta": recipe.explanation_weight,
            "labels": recipe.labels,
            "sizes": to_json({name: len(batch) for name, batch in self.batches.items()}),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "model": to_json(self.model.notes),
        }


def _student_batches(trained: LoadedModel, recipe: StudentRecipe) -> Mapping[str, Batch]:
    """What is learned from, what trains an explainer, what decides early stopping, and what is examined."""
    room = recipe.data
    pupils = _select_full_subset(room.train_subset(recipe.seed), trained)
    outer, judged = room.divide_dev(room.dev.select_examples(trained))
    parts = {"train": pupils, "outer": outer, "judge": judged}
    batches = {name: drop_labels(trained.tokenizer(examples)) for name, examples in parts.items()}
    return batches | {"test": trained.tokenizer(room.test.select_examples(trained))}


def _select_full_subset(subset: ExampleSubset, trained: LoadedModel) -> tuple[Example, ...]:
    found = subset.select_examples(trained)
    if subset.limit is not None and len(found) < subset.limit:
        raise UserError(
            f"a class of {subset.limit} examples was asked for, but there are only {len(found)} to draw from"
        )
    return found


def _gold_labels(batch: Batch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


def _majority_share(said: Tensor) -> float:
    """The share of the answer that the teacher gives most often: what a student without a thought would reach."""
    return float(said.bincount().max()) / len(said)


@dataclass(frozen=True)
class Student(StudentRecipe):
    """A student whose teacher explains in a fixed way, or not at all; `Scaffolded` learns how to explain."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.explanation, LearnedExplanation):
            raise UserError("an explanation that is learned is trained with its student: use Scaffolded")

    def make(self, workspace: Workspace) -> Artefact:
        """Weights of the best epoch, teacher's and student's answers to each test example, history and scores."""
        school = StudentTraining(self, workspace)
        said, teaching = school.teacher_train.logits, school.explainer
        if teaching is None or not self.explanation_weight:
            loss = build_simulation_loss(said, self.labels)
        else:
            loss = build_explanation_loss(said, self.labels, teaching, self.explanation_weight)
        return school.artefact(school.train_student(loss))
