"""Students: models trained to simulate a teacher from few examples, with or without its explanations.

A student's own explainer mixes its heads with a phi that is trained with its weights. The loss of an example is the
simulation loss (cross-entropy with the teacher's prediction, squared error for a number) plus
beta KL(e_T || e_S). Simulability is agreement with the teacher on test examples (Fernandes et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import pandas as pd
import torch
from torch import Generator, Tensor, nn

from heedful.attributions import head_mix
from heedful.capabilities import read_heads
from heedful.measures.classification import accuracy
from heedful.measures.rank_correlation import pearson
from heedful.option_bounds import Bounds, check_options
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed, to_json
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe, build_model
from heedful.training.teacher import (
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
    Loss,
    OuterOptimizer,
    Training,
    TrainingRun,
    TrainingState,
    map_batches,
    tensors_with_prefix,
    train,
)
from heedful.types import SPLITS, Architecture, Batch, Model, Task, Trace, UserError, evaluation_mode

SIMULABILITY = "simulability"

# The paper's code waits one epoch longer than its patience of 10 says, and has no maximum number of epochs.
STUDENT_TRAINING: Training = Training(
    epochs=200,
    batch_size=32,
    optimizer=SGD(),
    selection=EpochSelection(),
    patience=11,
    max_grad_norm=5.0,
    reduction="mean",
)
"""The paper's training of a student, but for ties: an epoch that equals the best one on dev at a lower training loss is
the new best, and patience starts again."""


@dataclass(frozen=True)
class StudentRecipe(Recipe):
    """A student of this architecture, trained to predict as its teacher does: `Student` or `SMaT`.

    Args:
        architecture: uses the teacher's tokenization; may have fewer layers or heads than the teacher.
        beta: weight of explanations beside the simulation loss; None takes the paper's: 5 for attention, .2 for other
            methods.
        seed: decides weights, batches, dropout and, where they are redrawn, the training examples.
    """

    kind: ClassVar[str] = "student"

    teacher: ModelRecipe
    architecture: Architecture
    explanation: TeacherExplanation = NoExplanation()
    data: StudentData = StudentData()
    beta: Annotated[float, Bounds(at_least=0)] | None = None
    training: Training = STUDENT_TRAINING
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self)
        if self.training.selection.split != "dev":
            raise UserError("the epoch of a student is selected on the dev split: use EpochSelection(split='dev')")

    @property
    def explanation_weight(self) -> float:
        """beta as it is used; 0 without an explanation."""
        if not self.explanation.map_sources:
            return 0.0
        return self.explanation.beta if self.beta is None else self.beta

    @property
    def about(self) -> dict[str, str | int]:
        """Corpus, architecture, explanation, number of training examples and seed, for tables and file names."""
        return {
            "corpus": self.teacher.corpus.name,
            **self.architecture.describe(),
            "explanation": self.explanation.display_name,
            "size": self.data.train_size,
            "seed": self.seed,
        }

    def describe(self) -> dict[str, Json]:
        """`about`, how examples are drawn, the normalizer of a learned mix, and whether the corpus is a subsample."""
        return {
            **self.about,
            "normalizer": self.explanation.normalizer if isinstance(self.explanation, LearnedExplanation) else None,
            "sampling": self.data.sampling,
            "share_dev": self.data.share_dev,
            "quick": self.teacher.describe()["quick"],
        }

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return (self.teacher, *self.teacher_outputs.values(), *self.teacher_maps)

    @property
    def teacher_outputs(self) -> dict[str, TeacherOutputs]:
        """The teacher's logits by split."""
        return {split: TeacherOutputs(self.teacher, self.data.subset(split, self.seed)) for split in SPLITS}

    @property
    def teacher_maps(self) -> tuple[TeacherOutputs, ...]:
        """The teacher's maps on the training examples, one recipe per source of the explanation."""
        subset = self.data.subset("train", self.seed)
        return tuple(TeacherOutputs(self.teacher, subset, source) for source in self.explanation.map_sources)

    def restore(self, workspace: Workspace) -> StudentModel:
        """The trained student."""
        artefact = workspace.get(self)
        model = StudentTraining(self, workspace).model
        model.load_state_dict(tensors_with_prefix("student/", artefact.tensors))
        return model.eval()


@dataclass(frozen=True)
class Student(StudentRecipe):
    """A student whose teacher explains in a fixed way, or not at all; `SMaT` learns how to explain."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.explanation, LearnedExplanation):
            raise UserError("a learned explanation is trained together with its student: use SMaT")

    def make(self, workspace: Workspace) -> Artefact:
        """Weights of the best epoch, teacher's and student's predictions on each test example, history and scores."""
        training = StudentTraining(self, workspace)
        beta = self.explanation_weight
        explainer = training.explainer if beta else None
        loss = build_student_loss(training.teacher_train.logits, explainer, beta)
        return training.artefact(training.train_student(loss))


class StudentTraining:
    """One training of a student, from the teacher's outputs to the test."""

    def __init__(self, recipe: StudentRecipe, workspace: Workspace) -> None:
        self.recipe, self.workspace = recipe, workspace
        self.teacher = recipe.teacher.restore(workspace)
        lookups = {name: TeacherLookup(workspace.get(outputs)) for name, outputs in recipe.teacher_outputs.items()}
        self.teacher_train, self.teacher_dev, self.teacher_test = lookups["train"], lookups["dev"], lookups["test"]
        maps = tuple(TeacherLookup(workspace.get(outputs)) for outputs in recipe.teacher_maps)
        self.explainer: TeacherExplainer | None = None
        if not isinstance(recipe.explanation, NoExplanation):
            self.explainer = recipe.explanation.build_explainer(maps)
        self.batches = _student_batches(self.teacher, recipe)
        generator = Generator().manual_seed(derive_seed("student", recipe.seed))
        vocabulary, task = self.teacher.tokenizer.vocabulary, self.teacher.model.task
        network, _ = build_model(recipe.architecture, task, vocabulary, recipe.teacher.embeddings, workspace, generator)
        # A student of a teacher that explains by its last layer mixes the heads of its own last layer.
        head_maps = HeadMaps(-1) if recipe.explanation.map_sources == (HeadMaps(-1),) else HeadMaps()
        probe = self.batches["train"].rows(torch.arange(min(2, len(self.batches["train"]))))
        self.model = StudentModel(network, head_maps, probe)

    def train_student(self, loss: Loss, outer: OuterOptimizer | None = None) -> TrainingState:
        """Trains the student; the epoch with the best simulability on dev is kept unless the recipe says otherwise."""
        recipe, training = self.recipe, self.recipe.training
        if training.selection.metric is None:
            training = replace(training, selection=replace(training.selection, metric=SIMULABILITY))
        run = TrainingRun(
            model=self.model,
            loss=loss,
            train_batch=self.batches["train"].to(self.workspace.device),
            evaluation_batch=self.batches["judge"],
            training=training,
            seed=recipe.seed,
            name="student " + " ".join(str(value) for value in recipe.about.values()),
            evaluator=self._evaluate_simulability,
            outer=outer,
        )
        return train(run, self.workspace.partial_folder(recipe), self.workspace.progress, self.workspace.batch_size)

    def _evaluate_simulability(self, model: Model, batch: Batch, batch_size: int) -> dict[str, float]:
        """Simulability and the mean simulation loss on a batch of the dev split."""
        task, teacher = model.task, self.teacher_dev.logits(batch).cpu()
        student = map_batches(self.model.student_logits, model, batch, batch_size)
        return {
            SIMULABILITY: prediction_agreement(
                task, point_predictions(task, teacher), point_predictions(task, student)
            ),
            "simulation_loss": float(simulation_loss(task, student, teacher).mean()),
        }

    def artefact(self, state: TrainingState) -> Artefact:
        """Weights of the best epoch, one row per test example, and what the report says about this student."""
        recipe, task, test = self.recipe, self.teacher.model.task, self.batches["test"]
        student_logits = map_batches(self.model.student_logits, self.model, test, self.workspace.batch_size)
        logits = {"teacher": self.teacher_test.logits(test), "student": student_logits}
        teacher, student = (point_predictions(task, values) for values in logits.values())
        scores: dict[str, dict[str, float]] = {}
        gold: list[float | None] = [None] * len(test)
        if test.labels is not None:
            gold = test.labels.tolist()
            scores = {
                who: task.compute_metrics(task.probabilities(values), test.labels) for who, values in logits.items()
            }
        notes: dict[str, Json] = {
            "about": dict(recipe.about),
            "explanation": recipe.explanation.display_name,
            "measure": "pearson" if task.num_classes == 1 else "accuracy",
            SIMULABILITY: to_json(prediction_agreement(task, teacher, student)),
            "scores": to_json(scores),
            "dev": to_json(state.best_score),  # null where it was undefined in every epoch
            "best_epoch": state.best_epoch,
            "epochs": state.epoch,
            "history": to_json(state.history),
            "beta": recipe.explanation_weight,
            "sizes": to_json({name: len(batch) for name, batch in self.batches.items()}),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "model": to_json(self.model.notes),
        }
        columns = {"uid": test.uids, "gold": gold, "teacher": teacher.tolist(), "student": student.tolist()}
        tensors = {f"student/{name}": value for name, value in self.model.state_dict().items()}
        return Artefact(tensors, pd.DataFrame(columns), notes)


def _student_batches(teacher: LoadedModel, recipe: StudentRecipe) -> Mapping[str, Batch]:
    """Batches for training, for a learned explainer ("outer"), for early stopping ("judge") and for the test.

    A student sees its teacher's predictions only: all but the test batch have no gold labels.
    """
    data, size = recipe.data, recipe.data.train_size
    train_examples = data.subset("train", recipe.seed).select_examples(teacher)
    if len(train_examples) < size:
        raise UserError(f"train_size is {size}, but there are only {len(train_examples)} examples: choose fewer")
    outer, judge = data.divide_dev(data.subset("dev", recipe.seed).select_examples(teacher))
    parts = {"train": train_examples, "outer": outer, "judge": judge}
    batches = {name: replace(teacher.tokenizer(examples), labels=None) for name, examples in parts.items()}
    return batches | {"test": teacher.tokenizer(data.subset("test", recipe.seed).select_examples(teacher))}


class StudentModel(Model):
    """A network, and phi, which mixes its heads into its explanation.

    Args:
        probe: a few examples, to check that the network accepts the teacher's tokens and to count its heads.
    """

    def __init__(self, network: Model, head_maps: HeadMaps, probe: Batch) -> None:
        super().__init__()
        self.network, self.task, self.notes, self.head_maps = network, network.task, network.notes, head_maps
        device = next(network.parameters()).device
        try:
            with evaluation_mode(network):
                heads = head_maps.compute_maps(network, probe.to(device))[0].shape[1]
        except (IndexError, ValueError, RuntimeError, UserError) as error:
            raise UserError(
                f"the student does not accept the tokens of its teacher ({error}): give it an architecture for the "
                "teacher's tokenization"
            ) from error
        self.phi = nn.Parameter(head_mix.uniform_phi(heads).to(device))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        return self.network(batch, embeddings=embeddings, attention=attention)

    def student_logits(self, batch: Batch) -> Tensor:
        """Logits `[batch output]`."""
        return read_heads(self.network, batch).logits

    def logits_and_explanation(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and log e_S `[batch unit]`, from one pass."""
        heads = read_heads(self.network, batch)
        mix = head_mix.mix_maps(self.head_maps.select_maps(heads.scores), self.phi, "sparsemax")
        return heads.logits, head_mix.masked_log_softmax(mix, batch.content_mask)


def simulation_loss(task: Task, logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """The task's loss of each example `[batch]` with the teacher's prediction as the label."""
    return task.losses(logits, point_predictions(task, teacher_logits))


def build_student_loss(
    teacher_logits: Callable[[Batch], Tensor], explainer: TeacherExplainer | None, beta: float
) -> Loss:
    """Simulation loss + beta KL(e_T || e_S); without an explainer no explanation is computed."""

    def losses(model: Model, batch: Batch) -> Tensor:
        assert isinstance(model, StudentModel)
        if explainer is None:
            return simulation_loss(model.task, model.student_logits(batch), teacher_logits(batch))
        logits, log_student = model.logits_and_explanation(batch)
        teacher = explainer(batch).to(log_student.dtype)
        divergence = head_mix.clamped_kl_divergence(teacher, log_student, batch.content_mask)
        return simulation_loss(model.task, logits, teacher_logits(batch)) + beta * divergence

    return losses


def prediction_agreement(task: Task, teacher: Tensor, student: Tensor) -> float:
    """Agreement of predictions: the share of equal classes, or Pearson's correlation (NaN where one is constant)."""
    if task.num_classes == 1:
        return pearson(student, teacher).value.item()
    return accuracy(student, teacher)
