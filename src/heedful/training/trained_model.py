"""A corpus as a given model answers it: a logit for each class, in the order of the model's outputs.

A corpus of two classes is read for one logit, which a model trained here has; a checkpoint from elsewhere has two, and
perhaps in another order. Names decide, whatever their case; where the model has no names, the order does, and the notes
say so.

Short names of models, the same in tables, options, file names and the report.

Subjects: models trained by us, to be examined. A subject is a recipe; its artefact holds weights and history.

A model that somebody else trained, as a subject: nothing is trained, and its weights stay where they are.

Everything that examines a subject examines a given one; only what would train it anew (other seeds, imposed or
deceiving attention) is refused.

A given model on texts without labels: it answers and explains, and nobody can say how often it is right.

A trained subject among texts of another corpus: a film model asked about reviews in which people marked evidence.

Nothing is trained again, so that all splits of the visited corpus are unseen and may be pooled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Generator

from heedful.data.embeddings import EmbeddingTable, RandomEmbeddings, WordEmbeddings
from heedful.data.tokenization import Subwords, Words
from heedful.models.attentive import Attentive
from heedful.models.transformer import OutputLabels, Transformer, read_output_labels
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
from heedful.training.objectives import Objective, Supervised
from heedful.training.trainer import Training, TrainingRun, TrainingState, evaluate, train
from heedful.types import (
    SPLITS,
    Architecture,
    Batch,
    Corpus,
    Example,
    Model,
    Split,
    Splits,
    Task,
    Tokenization,
    Tokenizer,
    UserError,
)


@dataclass(frozen=True)
class LabelAlignedCorpus(Corpus):
    """The examples of another corpus for a model with these outputs.

    Args:
        outputs: what the model calls its outputs, in their order; LABEL_0, LABEL_1 ... say nothing, and the classes
            are then taken in the corpus's order, as they are where the corpus calls them 0, 1 ...
    """

    corpus: Corpus
    output_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.output_names) < 2:
            raise UserError("a corpus is recast for a model with an output for each class: give at least two names")

    @property
    def name(self) -> str:
        return self.corpus.name

    @property
    def tokenization(self) -> Tokenization:
        return self.corpus.tokenization

    @property
    def embedding_dim(self) -> int:
        return self.corpus.embedding_dim

    def read(self, data: Path) -> Splits:
        """The corpus's splits with the labels, candidates and class names in the model's order."""
        whole = self.corpus.read(data)
        place, remark = self._output_indices(whole.class_names)
        parts = {split: tuple(_remap_example(example, place) for example in whole[split]) for split in SPLITS}
        classes = tuple(whole.class_names[place.index(output)] for output in range(len(place)))
        return replace(
            whole,
            task=MulticlassClassification(len(classes)),
            class_names=classes,
            train=parts["train"],
            dev=parts["dev"],
            test=parts["test"],
            notes={**whole.notes, "outputs of the model": remark},
        )

    def digest(self, data: Path) -> str:
        """The other corpus's: the outputs are a field and count anyway."""
        return self.corpus.digest(data)

    def _output_indices(self, classes: tuple[str, ...]) -> tuple[tuple[int, ...], str]:
        """The model's output for each class of the corpus, and how it was found, in plain words."""
        ours, theirs = ", ".join(classes), ", ".join(self.output_names)
        if len(classes) != len(self.output_names):
            has = f"{len(classes)} classes ({ours})" if classes else "a number for each example and no classes"
            raise UserError(
                f"{self.corpus.name} has {has}, but the model has {len(self.output_names)} outputs ({theirs})"
            )
        known = [_normalize_name(name) for name in self.output_names]
        asked = [_normalize_name(name) for name in classes]
        if sorted(known) == sorted(asked) and len(set(known)) == len(known):
            return tuple(known.index(name) for name in asked), f"{theirs}, matched with the classes by name"
        if _are_placeholders(known) or _are_placeholders(asked):
            return tuple(range(len(classes))), f"{theirs}, taken to be {ours} in this order"
        raise UserError(
            f"{self.corpus.name} has the classes {ours}, but the model calls its outputs {theirs}: say which is which "
            "by giving the names of the classes in the order of the model's outputs"
        )


def _normalize_name(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _are_placeholders(names: list[str]) -> bool:
    """Whether the names only count: LABEL_0, LABEL_1 ... or 0, 1 ..."""
    return all(name in (f"label {place}", str(place)) for place, name in enumerate(names))


def _remap_example(example: Example, output_index: tuple[int, ...]) -> Example:
    if output_index == tuple(range(len(output_index))):
        return example
    return replace(
        example,
        label=None if example.label is None else output_index[int(example.label)],
        candidates=None
        if example.candidates is None
        else tuple(sorted(output_index[each] for each in example.candidates)),
        ground_truth=_remap_ground_truth(example.ground_truth, output_index),
    )


def _remap_ground_truth(truth: tuple[float, ...] | None, output_index: tuple[int, ...]) -> tuple[float, ...] | None:
    """What each word adds to the new class 1: of two classes that changed places the opposite, else unknown."""
    if truth is None or output_index[1] == 1:
        return truth
    return tuple(-value for value in truth) if len(output_index) == 2 else None


_GENERIC_FOLDER_NAMES = ("model", "checkpoint", "best", "final")
"""Folders that are called so say nothing about the model; the folder around them does."""


def describe_architecture(architecture: Architecture) -> dict[str, str]:
    """Encoder and attention of a plan in lower case, for instance bilstm and additive."""
    if isinstance(architecture, Attentive):
        return {
            "encoder": type(architecture.encoder).__name__.lower(),
            "attention": type(architecture.attention).__name__.lower(),
        }
    # Here and not above: the library behind it takes seconds to import, which every worker of a pool would pay.
    from heedful.models.small_transformers import ScalarMix, TruncatedTransformer
    from heedful.models.transformer import Transformer

    if isinstance(architecture, ScalarMix):
        return describe_architecture(architecture.architecture)
    if isinstance(architecture, TruncatedTransformer):
        return {
            "encoder": f"{describe_architecture(architecture.architecture)['encoder']}-{architecture.layers}-layers",
            "attention": "self",
        }
    if isinstance(architecture, Transformer):
        path = Path(architecture.source)
        return {"encoder": path.parent.name if path.name in _GENERIC_FOLDER_NAMES else path.name, "attention": "self"}
    return {"encoder": type(architecture).__name__.lower(), "attention": "self"}


@dataclass(frozen=True)
class LoadedModel:
    """A subject brought back: the model, ready to be asked, and the examples that its preprocessing keeps."""

    model: Model
    tokenizer: Tokenizer
    splits: Splits
    tokenization: Tokenization

    def examples(self, split: Split) -> tuple[Example, ...]:
        """The examples of a split that the preprocessing keeps, in the corpus's order."""
        return self.tokenization.select(self.splits[split]).examples

    def batch(self, split: Split) -> Batch:
        """A whole split as one batch."""
        return self.tokenizer(self.examples(split))


@dataclass(frozen=True)
class TrainedModel(Recipe):
    """A model of this plan, trained on this corpus."""

    corpus: Corpus
    tokenization: Tokenization
    architecture: Architecture
    training: Training = Training()
    seed: int = 0
    objective: Objective = Supervised()
    embeddings: WordEmbeddings | None = RandomEmbeddings()

    def __post_init__(self) -> None:
        self.objective.check(self)

    @property
    def about(self) -> dict[str, str | int]:
        """Corpus, encoder, attention and seed, for tables and file names."""
        return {"corpus": self.corpus.name, **describe_architecture(self.architecture), "seed": self.seed}

    def make(self, workspace: Workspace) -> Artefact:
        """Weights of the best epoch, the history of all epochs, scores and counts."""
        making = TrainingSession(self, workspace)
        state = making.train_model()
        table = pd.DataFrame(state.history)
        return Artefact(making.model.state_dict(), table, making.notes(state))

    def restore(self, workspace: Workspace) -> LoadedModel:
        """The trained model with its batcher; trains it first where it does not exist yet."""
        artefact = workspace.get(self)
        splits = self.corpus.read(workspace.data_dir)
        saved = artefact.notes["batcher"]
        assert isinstance(saved, Mapping)
        batcher = self.tokenization.restore(saved)
        generator = Generator().manual_seed(derive_seed("weights", self.seed))
        width = artefact.notes["width"]
        table = torch.zeros(len(batcher.vocabulary), width) if isinstance(width, int) else None
        model = self.architecture.build(splits.task, table, generator)
        self.objective.prepare_model(model, workspace)
        model.load_state_dict(dict(artefact.tensors))
        return LoadedModel(model.to(workspace.device).eval(), batcher, splits, self.tokenization)


class TrainingSession:
    """One training from reading the corpus to the final scores."""

    def __init__(self, recipe: TrainedModel, workspace: Workspace) -> None:
        self.recipe, self.workspace = recipe, workspace
        self.splits = recipe.corpus.read(workspace.data_dir)
        selections = {split: recipe.tokenization.select(self.splits[split]) for split in SPLITS}
        self.examples = {split: selection.examples for split, selection in selections.items()}
        self.left_out = {split: dict(selection.num_dropped) for split, selection in selections.items()}
        self.tokenizer = recipe.tokenization.fit((*self.splits.train, *_lexicon_example(self.splits.extra_vocabulary)))
        self.batches = {split: self._batch(split, selection.examples) for split, selection in selections.items()}
        self.embeddings: EmbeddingTable | None = None
        self.model = self._build_model()

    def _batch(self, split: Split, examples: Sequence[Example]) -> Batch:
        if not examples:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out[split].items()) or "it is empty"
            raise UserError(f"{self.recipe.corpus.name}: no example of the {split} split is left ({reasons})")
        return self.tokenizer(examples)

    def _build_model(self) -> Model:
        subject = self.recipe
        generator = Generator().manual_seed(derive_seed("weights", subject.seed))
        # Tokenizers and images have no vocabulary of ours to give vectors to.
        if subject.embeddings is not None and self.tokenizer.vocabulary:
            self.embeddings = subject.embeddings.look_up(self.tokenizer.vocabulary, self.workspace.data_dir, generator)
        table = None if self.embeddings is None else self.embeddings.matrix
        model = subject.architecture.build(self.splits.task, table, generator).to(self.workspace.device)
        subject.objective.prepare_model(model, self.workspace)
        return model

    def train_model(self) -> TrainingState:
        """Trains the model; the state tells how it went."""
        subject, device = self.recipe, self.workspace.device
        train_batch = self.batches["train"].to(device)
        lesson = TrainingRun(
            model=self.model,
            loss=subject.objective.loss(train_batch, self.splits.task, self.workspace),
            train_batch=train_batch,
            evaluation_batch=self.batches[subject.training.selection.split],
            training=subject.training,
            seed=subject.seed,
            name=" ".join(
                str(value) for value in (*subject.about.values(), subject.objective.display_name) if value != ""
            ),
            evaluator=subject.objective.evaluator(subject.training.selection.split, self.workspace),
        )
        return train(lesson, self.workspace.partial_folder(subject), self.workspace.progress, self.workspace.batch_size)

    def notes(self, state: TrainingState) -> dict[str, Json]:
        """What the report says about this training."""
        scores = {split: self._scores(split) for split in ("dev", "test")}
        counts = {split: self._counts(split) for split in SPLITS}
        return {
            "about": dict(self.recipe.about),
            "batcher": to_json(self.tokenizer.state()),
            "classes": list(self.splits.class_names),
            "scores": to_json(scores),
            "sizes": to_json(counts),
            "left_out": to_json(self.left_out),
            "remarks": to_json({split: self.tokenizer.preprocessing_notes(self.examples[split]) for split in SPLITS}),
            "corpus": to_json(dict(self.splits.notes)),
            "vocabulary": len(self.tokenizer.vocabulary),
            "width": None if self.embeddings is None else self.embeddings.matrix.shape[1],
            "vectors_found": None if self.embeddings is None else self.embeddings.coverage,
            "model": to_json(self.model.notes),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "best_epoch": state.best_epoch,
            "selected_on": self.recipe.training.selection.split,
        }

    def _scores(self, split: Split) -> dict[str, float]:
        judge = self.recipe.objective.evaluator(split, self.workspace) or evaluate
        return judge(self.model, self.batches[split], self.workspace.batch_size)

    def _counts(self, split: Split) -> dict[str, int]:
        labels, classes = self.batches[split].labels, self.splits.class_names
        if labels is None or not classes:
            return {"examples": len(self.batches[split])}
        counts = labels.bincount(minlength=len(classes)).tolist()
        return {name: int(count) for name, count in zip(classes, counts, strict=True) if count or len(classes) <= 10}


def _lexicon_example(words: Sequence[str]) -> tuple[Example, ...]:
    """The words as one more text to take a vocabulary from."""
    return (Example("lexicon", (" ".join(words),)),) if words else ()


def to_json(value: object) -> Json:
    """The value in JSON's types, with undefined numbers as null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} has no plain form")


def checkpoint(
    source: str, corpus: Corpus, tokenization: Tokenization | None = None, class_names: tuple[str, ...] = ()
) -> Checkpoint:
    """A fine-tuned checkpoint with its own head as a subject on this corpus.

    Args:
        source: a folder or a hub name, of model and tokenizer.
        batching: by default the checkpoint's own tokenizer; a vision model needs its `Patches`.
        names: the corpus's classes in the order of the model's outputs, where the checkpoint names them otherwise.
    """
    outputs = read_output_labels(source).names
    if class_names and len(class_names) != len(outputs):
        raise UserError(
            f"{source} has {len(outputs)} outputs ({', '.join(outputs)}), but {len(class_names)} names are given"
        )
    # One output is a number, or the one logit that a corpus of two classes is read for anyway.
    recast = corpus if len(outputs) == 1 else LabelAlignedCorpus(corpus, class_names or outputs)
    return Checkpoint(recast, tokenization or Subwords(source), Transformer(source))


@dataclass(frozen=True)
class Checkpoint(TrainedModel):
    """A checkpoint with its own head, examined on a corpus; made by `given`, which reads the corpus in its order."""

    def __post_init__(self) -> None:
        if not isinstance(self.architecture, Transformer):
            raise UserError(f"{type(self.architecture).__name__} brings no trained weights: train it as a Subject")
        if isinstance(self.tokenization, Words):
            raise UserError(
                f"{self.architecture.source} reads ids of its own tokenizer: batch with Subwords, not Words"
            )
        if (self.training, self.seed, self.objective) != (Training(), 0, Supervised()):
            raise UserError(
                f"{self.architecture.source} is given and not trained here, so that it cannot be trained anew "
                "(with other seeds, imposed or adversarial attention): train a Subject from a checkpoint for that"
            )

    def make(self, workspace: Workspace) -> Artefact:
        """Scores and counts as of a subject, and the digest of the weights in place of the weights."""
        assert isinstance(self.architecture, Transformer)
        source = self.architecture.source
        _check_outputs(source, self.corpus.name, read_output_labels(source), self.corpus.read(workspace.data_dir).task)
        making = TrainingSession(self, workspace)
        _check_head(source, making.model.notes)
        digest = self.architecture.digest(workspace.data_dir)
        return Artefact(notes={**making.notes(TrainingState()), "weights": {"source": source, "digest": digest}})

    def restore(self, workspace: Workspace) -> LoadedModel:
        """The model as its checkpoint has it, with its batcher; scored first where it has not been yet."""
        saved = workspace.get(self).notes["batcher"]
        assert isinstance(saved, Mapping)
        splits = self.corpus.read(workspace.data_dir)
        # Nothing is drawn: a checkpoint without a head of its own was refused.
        model = self.architecture.build(splits.task, None, Generator().manual_seed(0))
        return LoadedModel(
            model.to(workspace.device).eval(), self.tokenization.restore(saved), splits, self.tokenization
        )


def _check_outputs(source: str, corpus: str, outputs: OutputLabels, task: Task) -> None:
    wanted = "a number" if isinstance(task, Regression) else f"{task.num_outputs} outputs for its classes"
    found = (
        "gives a number" if outputs.is_regression else f"has {len(outputs.names)} outputs ({', '.join(outputs.names)})"
    )
    if task.num_outputs != len(outputs.names) or isinstance(task, Regression) != outputs.is_regression:
        raise UserError(
            f"{corpus} needs a model with {wanted}, but {source} {found}; heedful.given(...) reads a corpus for a "
            "model with an output for each class"
        )


def _check_head(source: str, notes: tuple[str, ...]) -> None:
    if not any(note.endswith("head included") for note in notes):
        raise UserError(f"{source} has no head that was trained ({'; '.join(notes)}): fine-tune it first, as a Subject")


@dataclass(frozen=True)
class UnlabelledCheckpoint(Checkpoint):
    """A checkpoint with its own head that is asked about unlabelled texts."""

    def make(self, workspace: Workspace) -> Artefact:
        """The notes of a given model without scores."""
        assert isinstance(self.architecture, Transformer)
        making = _UnlabelledSession(self, workspace)
        _check_head(self.architecture.source, making.model.notes)
        digest = self.architecture.digest(workspace.data_dir)
        return Artefact(
            notes={**making.notes(TrainingState()), "weights": {"source": self.architecture.source, "digest": digest}}
        )


class _UnlabelledSession(TrainingSession):
    def _scores(self, split: Split) -> dict[str, float]:
        return {}


@dataclass(frozen=True, kw_only=True)
class OnOtherData(TrainedModel):
    """A subject whose weights come from another one; its corpus is where it is examined. Made by `visiting`.

    Args:
        home: the subject that was trained.
        pooled: the test split is the whole corpus.
    """

    trained_model: TrainedModel
    merge_splits: bool = False

    def __post_init__(self) -> None:
        if _training_settings(self) != _training_settings(self.trained_model):
            raise UserError("a visiting subject is its home's in all but the corpus: make it with visiting(home, ...)")

    def make(self, workspace: Workspace) -> Artefact:
        """The notes and history of the home; its weights stay where they are."""
        trained, artefact = self.restore(workspace), workspace.get(self.trained_model)
        sizes: dict[str, Json] = {split: {"examples": len(trained.splits[split])} for split in SPLITS}
        # Scores, remarks and what was left out are about the texts at home.
        told: dict[str, Json] = {"scores": {}, "remarks": {}, "left_out": {}, "corpus": to_json(trained.splits.notes)}
        about: dict[str, Json] = {"about": dict(self.about), "home": dict(self.trained_model.about), "sizes": sizes}
        return Artefact({}, artefact.table, {**artefact.notes, **told, **about})

    def restore(self, workspace: Workspace) -> LoadedModel:
        """The trained model, with the texts of the visited corpus."""
        trained = self.trained_model.restore(workspace)
        splits = self.corpus.read(workspace.data_dir)
        if splits.task != trained.splits.task:
            raise UserError(
                f"{self.corpus.name} asks for {splits.task}, but the model was trained on "
                f"{self.trained_model.corpus.name} for {trained.splits.task}: visit a corpus with the same question"
            )
        ours, theirs = ([name.casefold() for name in each.class_names] for each in (splits, trained.splits))
        if ours != theirs:
            raise UserError(
                f"{self.corpus.name} has the classes {', '.join(splits.class_names)}, but the model was trained on "
                f"{self.trained_model.corpus.name} with "
                f"{', '.join(trained.splits.class_names)}: name them alike, in the same order"
            )
        return replace(trained, splits=_merge_splits(splits) if self.merge_splits else splits)


def on_other_data(trained_model: TrainedModel, corpus: Corpus, *, merge_splits: bool = False) -> OnOtherData:
    """The subject, examined on another corpus."""
    return OnOtherData(
        corpus=corpus,
        tokenization=trained_model.tokenization,
        architecture=trained_model.architecture,
        training=trained_model.training,
        seed=trained_model.seed,
        objective=trained_model.objective,
        embeddings=trained_model.embeddings,
        trained_model=trained_model,
        merge_splits=merge_splits,
    )


def _training_settings(subject: TrainedModel) -> tuple[object, ...]:
    """What decides the weights, apart from the corpus."""
    return (
        subject.tokenization,
        subject.architecture,
        subject.training,
        subject.seed,
        subject.objective,
        subject.embeddings,
    )


def _merge_splits(splits: Splits) -> Splits:
    return replace(splits, train=(), dev=(), test=(*splits.train, *splits.dev, *splits.test))
