"""Subjects: models trained by us, to be examined. A subject is a recipe; its artefact holds weights and history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Generator

from heedful.core.types import (
    SPLITS,
    Batch,
    Batcher,
    Batching,
    Corpus,
    Example,
    Model,
    Plan,
    Split,
    Splits,
    UserError,
)
from heedful.core.workspace import Artefact, Json, Recipe, Workspace, derived_seed
from heedful.data.vectors import RandomVectors, Vectors, WordVectors
from heedful.recipes.describing import named
from heedful.recipes.fit import Fit
from heedful.recipes.objectives import Objective, Supervised
from heedful.recipes.training import Lesson, State, evaluate, train


@dataclass(frozen=True)
class Trained:
    """A subject brought back: the model, ready to be asked, and the examples that its preprocessing keeps."""

    model: Model
    batcher: Batcher
    splits: Splits
    batching: Batching

    def examples(self, split: Split) -> tuple[Example, ...]:
        """The examples of a split that the preprocessing keeps, in the corpus's order."""
        return self.batching.select(self.splits[split]).examples

    def batch(self, split: Split) -> Batch:
        """A whole split as one batch."""
        return self.batcher(self.examples(split))


@dataclass(frozen=True)
class Subject(Recipe):
    """A model of this plan, trained on this corpus."""

    corpus: Corpus
    batching: Batching
    model: Plan
    fit: Fit = Fit()
    seed: int = 0
    objective: Objective = Supervised()
    vectors: WordVectors | None = RandomVectors()

    def __post_init__(self) -> None:
        self.objective.check(self)

    @property
    def about(self) -> dict[str, str | int]:
        """Corpus, encoder, attention and seed, for tables and file names."""
        return {"corpus": self.corpus.name, **named(self.model), "seed": self.seed}

    def make(self, workspace: Workspace) -> Artefact:
        """Weights of the best epoch, the history of all epochs, scores and counts."""
        making = Making(self, workspace)
        state = making.trained()
        table = pd.DataFrame(state.history)
        return Artefact(making.model.state_dict(), table, making.notes(state))

    def restore(self, workspace: Workspace) -> Trained:
        """The trained model with its batcher; trains it first where it does not exist yet."""
        artefact = workspace.get(self)
        splits = self.corpus.read(workspace.data)
        saved = artefact.notes["batcher"]
        assert isinstance(saved, Mapping)
        batcher = self.batching.restore(saved)
        generator = Generator().manual_seed(derived_seed("weights", self.seed))
        width = artefact.notes["width"]
        table = torch.zeros(len(batcher.vocabulary), width) if isinstance(width, int) else None
        model = self.model.build(splits.task, table, generator)
        self.objective.arrange(model, workspace)
        model.load_state_dict(dict(artefact.tensors))
        return Trained(model.to(workspace.device).eval(), batcher, splits, self.batching)


class Making:
    """One training from reading the corpus to the final scores."""

    def __init__(self, subject: Subject, workspace: Workspace) -> None:
        self.subject, self.workspace = subject, workspace
        self.splits = subject.corpus.read(workspace.data)
        selections = {split: subject.batching.select(self.splits[split]) for split in SPLITS}
        self.selected = {split: selection.examples for split, selection in selections.items()}
        self.left_out = {split: dict(selection.left_out) for split, selection in selections.items()}
        self.batcher = subject.batching.fit((*self.splits.train, *_shown_once(self.splits.lexicon)))
        self.batches = {split: self._batch(split, selection.examples) for split, selection in selections.items()}
        self.vectors: Vectors | None = None
        self.model = self._built()

    def _batch(self, split: Split, examples: Sequence[Example]) -> Batch:
        if not examples:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out[split].items()) or "it is empty"
            raise UserError(f"{self.subject.corpus.name}: no example of the {split} split is left ({reasons})")
        return self.batcher(examples)

    def _built(self) -> Model:
        subject = self.subject
        generator = Generator().manual_seed(derived_seed("weights", subject.seed))
        # Tokenizers and images have no vocabulary of ours to give vectors to.
        if subject.vectors is not None and self.batcher.vocabulary:
            self.vectors = subject.vectors.look_up(self.batcher.vocabulary, self.workspace.data, generator)
        table = None if self.vectors is None else self.vectors.matrix
        model = subject.model.build(self.splits.task, table, generator).to(self.workspace.device)
        subject.objective.arrange(model, self.workspace)
        return model

    def trained(self) -> State:
        """Trains the model; the state tells how it went."""
        subject, device = self.subject, self.workspace.device
        train_batch = self.batches["train"].to(device)
        lesson = Lesson(
            model=self.model,
            loss=subject.objective.loss(train_batch, self.splits.task, self.workspace),
            train=train_batch,
            judge=self.batches[subject.fit.select.on],
            fit=subject.fit,
            seed=subject.seed,
            name=" ".join(str(value) for value in (*subject.about.values(), subject.objective.called) if value != ""),
            scores=subject.objective.judge(subject.fit.select.on, self.workspace),
        )
        return train(lesson, self.workspace.partial(subject), self.workspace.progress, self.workspace.batch_size)

    def notes(self, state: State) -> dict[str, Json]:
        """What the report says about this training."""
        scores = {split: self._scores(split) for split in ("dev", "test")}
        counts = {split: self._counts(split) for split in SPLITS}
        return {
            "about": dict(self.subject.about),
            "batcher": plain(self.batcher.saved()),
            "classes": list(self.splits.classes),
            "scores": plain(scores),
            "sizes": plain(counts),
            "left_out": plain(self.left_out),
            "remarks": plain({split: self.batcher.remarks(self.selected[split]) for split in SPLITS}),
            "corpus": plain(dict(self.splits.notes)),
            "vocabulary": len(self.batcher.vocabulary),
            "width": None if self.vectors is None else self.vectors.matrix.shape[1],
            "vectors_found": None if self.vectors is None else self.vectors.coverage,
            "model": plain(self.model.notes),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "best_epoch": state.best_epoch,
            "selected_on": self.subject.fit.select.on,
        }

    def _scores(self, split: Split) -> dict[str, float]:
        judge = self.subject.objective.judge(split, self.workspace) or evaluate
        return judge(self.model, self.batches[split], self.workspace.batch_size)

    def _counts(self, split: Split) -> dict[str, int]:
        labels, classes = self.batches[split].labels, self.splits.classes
        if labels is None or not classes:
            return {"examples": len(self.batches[split])}
        counts = labels.bincount(minlength=len(classes)).tolist()
        return {name: int(count) for name, count in zip(classes, counts, strict=True) if count or len(classes) <= 10}


def _shown_once(words: Sequence[str]) -> tuple[Example, ...]:
    """The words as one more text to take a vocabulary from."""
    return (Example("lexicon", (" ".join(words),)),) if words else ()


def plain(value: object) -> Json:
    """The value in JSON's types, with undefined numbers as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} has no plain form")
