"""Models that were trained elsewhere as model recipes, in a folder or in memory; the weights stay where they are.

Trials that examine a model accept them; trials that train variants of a model (other seeds, imposed or adversarial
attention) need a `TrainedModel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Generator, Tensor

from heedful.data.label_match import CERTAIN_MATCHES, MATCH_NAMES, are_placeholders, match_classes, match_labels
from heedful.data.patches import PatchTokenizer
from heedful.data.prompt import PromptTokenizer, read_prompt
from heedful.data.splitting import DerivedCorpus
from heedful.data.stored_examples import change_examples
from heedful.data.subwords import Subwords
from heedful.data.tokenization import drop_empty
from heedful.data.words import Words
from heedful.model_loader import PromptText, prompted_model
from heedful.models.given_model import GivenModel
from heedful.models.language_model import LanguageModel
from heedful.models.model_files import read_output_labels
from heedful.models.transformer import Transformer, check_trained_head
from heedful.store.recipe import Artefact, Json
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.model_recipe import LoadedModel, ModelRecipe, build_model, check_task
from heedful.training.trained_model import PreparedCorpus
from heedful.types import (
    SPLITS,
    Architecture,
    Corpus,
    Example,
    Model,
    Selection,
    Splits,
    Task,
    Tokenization,
    Tokenizer,
    UserError,
)

NOT_TRAINED_HERE = "given, not trained here"


@dataclass(frozen=True)
class Checkpoint(ModelRecipe):
    """A fine-tuned transformer with its own head on a corpus, with or without labels; a test split is enough.

    `checkpoint(...)` makes one and brings the corpus's classes into the order of the model's outputs.

    Args:
        scored: whether it is scored on all labeled texts; an audit reads only some of them.
    """

    corpus: Corpus
    tokenization: Tokenization
    architecture: Transformer | LanguageModel
    scored: bool = True
    seed: ClassVar[None] = None
    embeddings: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not isinstance(self.architecture, Transformer | LanguageModel):
            name = type(self.architecture).__name__
            raise UserError(f"{name} has no trained weights: train it as a TrainedModel")
        if isinstance(self.tokenization, Words):
            raise UserError(f"{self.architecture.source} has its own tokenizer: use Subwords, not Words")

    def describe(self) -> dict[str, Json]:
        return {**super().describe(), "training": NOT_TRAINED_HERE}

    def make(self, workspace: Workspace) -> Artefact:
        """Scores and counts, and the digest of the weights in place of the weights."""
        source = self.architecture.source
        outputs, splits = self.architecture.read_outputs(), self.corpus.read(workspace.data_dir)
        task, classes = splits.task, splits.class_names
        if task.num_outputs != len(outputs.names) or isinstance(task, Regression) != outputs.is_regression:
            if outputs.is_regression and task.num_outputs == 1:
                raise UserError(
                    f"{source} has one output, which its config.json takes for a number, but {self.corpus.name} has "
                    "classes: if the output is the logit of the second class, set problem_type to "
                    "'multi_label_classification' there"
                )
            expected = "a number" if isinstance(task, Regression) else f"{task.num_outputs} outputs for its classes"
            names = f"has {len(outputs.names)} outputs ({', '.join(outputs.names)})"
            raise UserError(
                f"{self.corpus.name} needs a model with {expected}, but {source} "
                f"{'gives a number' if outputs.is_regression else names}; heedful.checkpoint(...) adapts a corpus to a "
                "model with one output per class"
            )
        match = match_labels(outputs.names, classes) if len(outputs.names) == 1 and len(classes) == 2 else None
        if match == ("name", ((outputs.names[0], 0),)) and not are_placeholders(classes):
            raise UserError(
                f"the one output of {source} is the logit of {outputs.names[0]}, but {self.corpus.name} has the "
                f"classes {', '.join(classes)}, and one logit stands for the second: give them in the other "
                "order"
            )
        corpus = PreparedCorpus(self, workspace, required=("test",))
        # Nothing is drawn: a checkpoint without a head of its own is refused.
        model, _ = build_model(self.architecture, corpus.splits.task, (), None, workspace, Generator().manual_seed(0))
        check_trained_head(model, source)
        if isinstance(self.architecture, LanguageModel) and isinstance(corpus.tokenizer, PromptTokenizer):
            words = zip(self.architecture.names, self.architecture.words.words, strict=True)
            spelled = ", ".join(f"{name} {corpus.tokenizer.spell(word)!r}" for name, word in words)
            prompt = corpus.tokenizer.prompt.summary
            model.notes = (*model.notes, f"a language model read by label words: {spelled}; prompt: {prompt!r}")
        weights = {"source": source, "digest": self.architecture.digest(workspace.data_dir)}
        scores = corpus.evaluate(model, workspace) if self.scored else {}
        return Artefact(notes=corpus.notes(model, scores, None) | {"weights": {**weights}})

    def load_model(self, workspace: Workspace) -> LoadedModel:
        state = workspace.get(self).notes["tokenizer"]
        assert isinstance(state, Mapping)
        splits = self.corpus.read(workspace.data_dir)
        model, _ = build_model(self.architecture, splits.task, (), None, workspace, Generator().manual_seed(0))
        return LoadedModel(model.eval(), self.tokenization.restore(state), splits, self.tokenization)


def checkpoint(
    source: str,
    corpus: Corpus,
    tokenization: Tokenization | None = None,
    class_names: tuple[str, ...] = (),
    *,
    prompt: PromptText | None = None,
    labels: Mapping[str, str] | None = None,
    chat: bool = False,
) -> Checkpoint:
    """A fine-tuned checkpoint on this corpus, whose classes are brought into the order of the model's outputs.

    Args:
        source: a folder or a hub name, of model and tokenizer.
        tokenization: by default the checkpoint's own tokenizer; a vision model needs its `Patches`.
        class_names: the corpus's classes in the order of the model's outputs, where the checkpoint has other names.
        prompt: in which a language model reads a text, with `{text}` where it stands; `[MASK]` asks a masked one.
        labels: the label word of each class, which makes a classifier of a language model.
        chat: whether the prompt is the turn of a user in the chat template of the tokenizer.
    """
    if labels is not None:
        if tokenization is not None or class_names:
            raise UserError(
                "labels name the classes and the prompt is tokenized: leave tokenization and class_names out"
            )
        model = prompted_model(source, read_prompt(prompt, chat=chat), labels)
        return Checkpoint(LabelAlignedCorpus(corpus, tuple(labels)), model.tokenization, model.architecture)
    if prompt is not None or chat:
        raise UserError(
            "a prompt needs label words: give labels, for instance {'negative': ' bad', 'positive': ' good'}"
        )
    outputs = read_output_labels(source).names
    if class_names and len(class_names) != len(outputs):
        raise UserError(
            f"{source} has {len(outputs)} outputs ({', '.join(outputs)}), but {len(class_names)} class names are given"
        )
    # One output is a number, or the one logit of a binary task.
    aligned = corpus if len(outputs) == 1 else LabelAlignedCorpus(corpus, class_names or outputs)
    return Checkpoint(aligned, tokenization or Subwords(source), Transformer(source))


@dataclass(frozen=True)
class LabelAlignedCorpus(DerivedCorpus):
    """Another corpus with its classes in the order of a model's outputs, one logit per class.

    Args:
        output_names: the model's names of its outputs, with which `match_classes` matches the classes; the notes say
            how. A corpus without labels takes these names.
    """

    output_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.output_names) < 2:
            raise UserError("a label-aligned corpus needs a model with one output per class: give at least two names")

    def read(self, data: Path) -> Splits:
        """The corpus's splits with labels, candidates and class names in the model's order."""
        splits = self.corpus.read(data)
        if len(splits.class_names) in (0, len(self.output_names)) and _is_unlabeled(splits):
            task = MulticlassClassification(len(self.output_names))
            notes = {**splits.notes, "outputs of the model": ", ".join(self.output_names)}
            return replace(splits, task=task, class_names=self.output_names, notes=notes)
        output_index, note = self._output_index(splits.class_names)
        train, dev, test = (splits[split] for split in SPLITS)
        if output_index != tuple(range(len(output_index))):
            reorder = partial(_reorder_classes, output_index=output_index)
            train, dev, test = (change_examples(splits[split], reorder) for split in SPLITS)
        classes = tuple(splits.class_names[output_index.index(output)] for output in range(len(output_index)))
        task, notes = MulticlassClassification(len(classes)), {**splits.notes, "outputs of the model": note}
        return replace(splits, task=task, class_names=classes, train=train, dev=dev, test=test, notes=notes)

    def _output_index(self, classes: tuple[str, ...]) -> tuple[tuple[int, ...], str]:
        """The model's output for each class of the corpus, and a note on how they were matched."""
        in_corpus, in_model = ", ".join(classes), ", ".join(self.output_names)
        if len(classes) != len(self.output_names):
            has = f"{len(classes)} classes ({in_corpus})" if classes else "a number for each example and no classes"
            raise UserError(
                f"{self.corpus.name} has {has}, but the model has {len(self.output_names)} outputs ({in_model})"
            )
        match = match_classes(classes, self.output_names)
        if match is not None:
            how, pairs = match
            note = f"{in_model}, matched with the classes {MATCH_NAMES[how]}"
            note += "" if how in CERTAIN_MATCHES else f", which is an assumption ({in_corpus})"
            return tuple(index for _, index in pairs), note
        raise UserError(
            f"{self.corpus.name} has the classes {in_corpus}, but the model's outputs are {in_model}: give the class "
            "names in the order of the model's outputs"
        )


@dataclass(frozen=True)
class OneLogitCorpus(DerivedCorpus):
    """Another corpus of two classes, for a model that has one logit for both."""

    def read(self, data: Path) -> Splits:
        """The corpus's splits as binary classification."""
        return replace(self.corpus.read(data), task=BinaryClassification())


def align_labels(corpus: Corpus, task: Task, class_names: tuple[str, ...]) -> Corpus:
    """The corpus with its classes in the order of a model's, as that model predicts them; numbers as they are."""
    if task.num_classes < 2:
        return corpus
    aligned = LabelAlignedCorpus(corpus, class_names)
    return OneLogitCorpus(aligned) if task.num_outputs == 1 else aligned


def _is_unlabeled(splits: Splits) -> bool:
    examples = (example for split in SPLITS for example in splits[split])
    return all(example.label is None and example.candidates is None for example in examples)


def _reorder_classes(example: Example, output_index: tuple[int, ...]) -> Example:
    candidates, truth = example.candidates, example.ground_truth
    if truth is not None and output_index[1] != 1:
        # What each word adds to class 1: of two classes that changed places the opposite, else unknown.
        truth = tuple(-value for value in truth) if len(output_index) == 2 else None
    return replace(
        example,
        label=None if example.label is None else output_index[int(example.label)],
        candidates=None if candidates is None else tuple(sorted(output_index[candidate] for candidate in candidates)),
        ground_truth=truth,
    )


_models_in_memory: WeakValueDictionary[str, GivenModel] = WeakValueDictionary()
"""Models by their digest. They are not kept alive: a notebook may load many."""


def model_in_memory(network: GivenModel, corpus: Corpus, name: str, *, scored: bool = True) -> ModelInMemory:
    """A recipe of a model in memory on a corpus whose classes are in the order of the model's."""
    network.refresh()
    network.announce_unknown(name)
    digest = network.digest
    _models_in_memory[digest] = network
    network.recorded[digest] = network.weights_digest
    return ModelInMemory(corpus, name, digest, scored)


@dataclass(frozen=True)
class ModelInMemory(ModelRecipe):
    """A model that exists in this process only, on a corpus with or without labels; `model_in_memory` makes one.

    Args:
        name: for tables and file names.
        digest: of weights and tokenizer.
        scored: whether it is scored on all labeled texts.
    """

    corpus: Corpus
    name: str
    digest: str
    scored: bool = True
    seed: ClassVar[None] = None
    embeddings: ClassVar[None] = None

    @property
    def tokenization(self) -> Tokenization:
        return _GivenTokenization(self.name, self.digest)

    @property
    def architecture(self) -> Architecture:
        return _GivenArchitecture(self.name)

    def describe(self) -> dict[str, Json]:
        return {**super().describe(), "training": NOT_TRAINED_HERE}

    def make(self, workspace: Workspace) -> Artefact:
        """Scores and counts, and the digest of the weights in place of the weights."""
        model = self.load_model(workspace).model
        corpus = PreparedCorpus(self, workspace, required=("test",))
        notes = corpus.notes(model, corpus.evaluate(model, workspace) if self.scored else {}, None)
        return Artefact(notes=notes | {"weights": {"source": self.name, "digest": self.digest}})

    def load_model(self, workspace: Workspace) -> LoadedModel:
        """The model itself; UserError in another process, after a change of its weights, or for another task."""
        registered, splits = _find_in_memory(self.name, self.digest), self.corpus.read(workspace.data_dir)
        check_task(registered.model, splits.task)
        device = registered.device
        if device.type != torch.device(workspace.device).type:
            raise UserError(
                f"{self.name} is on {device}: give Workspace(..., device={str(device)!r}) or move the model"
            )
        return LoadedModel(registered.model, registered.tokenizer, splits, self.tokenization)


def _find_in_memory(name: str, digest: str) -> GivenModel:
    registered = _models_in_memory.get(digest)
    if registered is None:
        raise UserError(
            f"{name} is a model in the memory of another process, or its explainer is no longer there: save it to a "
            "folder with save_pretrained and give the folder"
        )
    if registered.is_changed(digest):
        raise UserError(f"the weights of {name} have changed since it was loaded: load it again")
    return registered


@dataclass(frozen=True)
class _GivenTokenization(Tokenization):
    """The tokenizer of a model in memory."""

    name: str
    digest: str

    def fit(self, examples: Sequence[Example]) -> Tokenizer:
        return _find_in_memory(self.name, self.digest).tokenizer

    def restore(self, saved: Mapping[str, object]) -> Tokenizer:
        return _find_in_memory(self.name, self.digest).tokenizer

    def select(self, examples: Sequence[Example]) -> Selection:
        reads_images = isinstance(_find_in_memory(self.name, self.digest).tokenizer, PatchTokenizer)
        return Selection(examples) if reads_images else drop_empty(examples)


@dataclass(frozen=True)
class _GivenArchitecture(Architecture):
    """The architecture of a model in memory; there is only one such model."""

    name: str

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        """Refused: nothing is known but the model itself."""
        raise UserError(f"{self.name} is a model in memory, so no other can be built like it: save it to a folder")

    def describe(self) -> dict[str, str]:
        """The name of the model in place of that of an encoder."""
        return {"encoder": self.name, "attention": "self"}
