"""What all students have in common: a teacher, a plan, a class, an explanation, and how they are trained and examined.

`School` puts one training together for the one loop of `recipes.training`; the artefact has the student's and the
teacher's answer to each test example, so that a trial can draw its own samples from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.core.headscores import read_heads
from heedful.core.types import Batch, Example, Plan, UserError
from heedful.core.workspace import Artefact, Json, Recipe, Workspace, derived_seed
from heedful.recipes.banks import HeadBank
from heedful.recipes.describing import named
from heedful.recipes.explanations import Explanation, Teaching, Unexplained
from heedful.recipes.fit import SGD, Fit, Select
from heedful.recipes.simulating import (
    SIMULABILITY,
    Labels,
    Simulator,
    agreement,
    answers_of,
    judge,
    measure_of,
    silenced,
)
from heedful.recipes.subject import Subject, Trained, plain
from heedful.recipes.teaching import Classroom, Maps, Part, Taught, answers
from heedful.recipes.training import Lesson, Loss, Outer, State, train

SAMPLE = 2
"""Examples that a student is tried on before it is trained."""

# The paper's code waits one epoch longer than its patience of 10 says, and its epochs have no end.
SCHOOLING = Fit(epochs=200, batch=32, optimiser=SGD(), select=Select(), patience=11, clip=5.0, reduction="mean")
"""The paper's training of a student, but for ties: an epoch that equals the best one on dev at a lower training loss is
the new best, and patience begins anew with it."""


@dataclass(frozen=True)
class Schooling(Recipe):
    """A student of this plan, trained to answer as its teacher does.

    Args:
        teacher: stays as it is.
        plan: reads with the teacher's batching; may be another architecture with fewer layers or heads.
        beta: how heavily explanations weigh beside the simulation; None takes what the paper gives this kind: 5 for
            attention, .2 for other methods.
        labels: whether the teacher's answer or its whole distribution is simulated; for numbers there is one way.
        seed: decides weights, batches, dropout and, where it is redrawn, the class.
    """

    teacher: Subject
    plan: Plan
    explanation: Explanation = Unexplained()
    classroom: Classroom = Classroom()
    beta: float | None = None
    labels: Labels = "hard"
    fit: Fit = SCHOOLING
    seed: int = 0

    def __post_init__(self) -> None:
        if self.labels not in ("hard", "soft"):
            raise UserError(f"labels are 'hard' or 'soft', not {self.labels!r}")
        if self.beta is not None and not (math.isfinite(self.beta) and self.beta >= 0):
            raise UserError(f"beta must be a number from 0, not {self.beta}")
        if self.fit.select.on != "dev":
            raise UserError("which epoch of a student is kept is decided on the dev split: leave select.on as 'dev'")

    @property
    def strength(self) -> float:
        """beta as it is used; nothing to weigh where nothing is explained."""
        if not self.explanation.banks:
            return 0.0
        return self.explanation.beta if self.beta is None else self.beta

    @property
    def about(self) -> dict[str, str | int]:
        """Corpus, student, explanation, size of the class and seed, for tables and file names."""
        kind = {"corpus": self.teacher.corpus.name, **named(self.plan), "explanation": self.explanation.called}
        return {**kind, "size": self.classroom.size, "seed": self.seed}

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """The teacher, and its words to this class."""
        return (self.teacher, *self._words.values())

    @property
    def _words(self) -> dict[str, Maps]:
        pupils, room = self.classroom.pupils(self.seed), self.classroom
        parts = {"train": pupils, "dev": room.dev, "test": room.test}
        found = {name: Maps(self.teacher, part) for name, part in parts.items()}
        banks = enumerate(self.explanation.banks)
        return found | {f"maps {place}": Maps(self.teacher, pupils, bank) for place, bank in banks}

    def restore(self, workspace: Workspace) -> Simulator:
        """The trained student."""
        artefact = workspace.get(self)
        model = School(self, workspace).model
        own = {name.removeprefix("student/"): value for name, value in artefact.tensors.items() if "/" in name}
        model.load_state_dict(own)
        return model.eval()


class School:
    """One training, from the teacher's words to the student's examination."""

    def __init__(self, recipe: Schooling, workspace: Workspace) -> None:
        self.recipe, self.workspace = recipe, workspace
        self.trained = recipe.teacher.restore(workspace)
        words = {name: Taught(workspace.get(maps)) for name, maps in recipe._words.items()}
        self.train, self.dev, self.test = words["train"], words["dev"], words["test"]
        banks = tuple(taught for name, taught in words.items() if name.startswith("maps "))
        self.teaching: Teaching | None = recipe.explanation.teaching(banks) if banks else None
        self.batches = _batches(self.trained, recipe)
        self.model = self._built()

    def _built(self) -> Simulator:
        recipe, trained = self.recipe, self.trained
        generator = Generator().manual_seed(derived_seed("student", recipe.seed))
        vocabulary, table = trained.batcher.vocabulary, None
        if recipe.teacher.vectors is not None and vocabulary:
            table = recipe.teacher.vectors.look_up(vocabulary, self.workspace.data, generator).matrix
        network = recipe.plan.build(trained.model.task, table, generator).to(self.workspace.device)
        bank = HeadBank(-1) if recipe.explanation.last else HeadBank()
        sample = self.batches["train"].rows(torch.arange(min(SAMPLE, len(self.batches["train"]))))
        return Simulator(network, bank, "sparsemax", sample)

    @property
    def layers(self) -> int:
        """Layers of the teacher."""
        sample = self.batches["train"].rows(torch.arange(1)).to(self.workspace.device)
        with torch.no_grad():
            return read_heads(self.trained.model, sample).scores.shape[1]

    def taught(self, loss: Loss, outer: Outer | None = None) -> State:
        """Trains the student; the state tells how it went."""
        recipe, fit = self.recipe, self.recipe.fit
        select = fit.select if fit.select.by is not None else replace(fit.select, by=SIMULABILITY)
        lesson = Lesson(
            model=self.model,
            loss=loss,
            train=self.batches["train"].to(self.workspace.device),
            judge=self.batches["judge"],
            fit=replace(fit, select=select),
            seed=recipe.seed,
            name="student " + " ".join(str(value) for value in recipe.about.values()),
            scores=judge(self.dev.logits, recipe.labels),
            outer=outer,
        )
        return train(lesson, self.workspace.partial(recipe), self.workspace.progress, self.workspace.batch_size)

    def artefact(self, state: State) -> Artefact:
        """Weights of the best epoch, one row per test example, and what the report says about this student."""
        task, test = self.trained.model.task, self.batches["test"]
        teacher = self.test.logits(test)
        student = answers_of(self.model, silenced(test), self.workspace.batch_size)
        said, answered = answers(task, teacher), answers(task, student)
        gold = [None] * len(test) if test.labels is None else test.labels.tolist()
        columns = {"uid": test.uids, "gold": gold, "teacher": said.tolist(), "student": answered.tolist()}
        scores = {"teacher": teacher, "student": student} if test.labels is not None else {}
        notes: dict[str, Json] = {
            **self._notes(state),
            SIMULABILITY: plain(agreement(task, said, answered)),
            "commonest": plain(_commonest(said) if task.classes > 1 else None),
            "scores": plain({who: task.score(task.probabilities(one), _labels(test)) for who, one in scores.items()}),
        }
        tensors = {f"student/{name}": value for name, value in self.model.state_dict().items()}
        return Artefact(tensors, pd.DataFrame(columns), notes)

    def _notes(self, state: State) -> dict[str, Json]:
        recipe, task = self.recipe, self.trained.model.task
        # A score that was undefined in every epoch is minus infinity, for which JSON has no word.
        return {
            "about": dict(recipe.about),
            "explanation": recipe.explanation.called,
            "measure": measure_of(task),
            "dev": plain(state.best_score),
            "best_epoch": state.best_epoch,
            "epochs": state.epoch,
            "history": plain(state.history),
            "beta": recipe.strength,
            "labels": recipe.labels,
            "sizes": plain({name: len(batch) for name, batch in self.batches.items()}),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "model": plain(self.model.notes),
        }


def _batches(trained: Trained, recipe: Schooling) -> Mapping[str, Batch]:
    """What is learned from, what trains an explainer, what decides early stopping, and what is examined."""
    room = recipe.classroom
    pupils = _whole(room.pupils(recipe.seed), trained)
    outer, judged = room.divided(room.dev.of(trained))
    parts = {"train": pupils, "outer": outer, "judge": judged}
    batches = {name: silenced(trained.batcher(examples)) for name, examples in parts.items()}
    return batches | {"test": trained.batcher(room.test.of(trained))}


def _whole(part: Part, trained: Trained) -> tuple[Example, ...]:
    found = part.of(trained)
    if part.limit is not None and len(found) < part.limit:
        raise UserError(f"a class of {part.limit} examples was asked for, but there are only {len(found)} to draw from")
    return found


def _labels(batch: Batch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


def _commonest(said: Tensor) -> float:
    """The share of the answer that the teacher gives most often: what a student without a thought would reach."""
    return float(said.bincount().max()) / len(said)
