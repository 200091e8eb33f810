"""Models that were trained elsewhere as model recipes, in a folder or in memory; the weights stay where they are.

Trials that examine a model accept them; trials that train variants of a model (other seeds, imposed or adversarial
attention) need a `TrainedModel`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Generator, Tensor

from heedful.data.prompt import Prompted, PromptTokenizer, has_mask_token, read_prompt
from heedful.data.splitting import DerivedCorpus
from heedful.data.stored_examples import change_examples
from heedful.data.tokenization import PatchTokenizer, Subwords, Words, drop_empty
from heedful.devices import Precision
from heedful.models.label_words import LabelWords
from heedful.models.language_model import LanguageModel, read_language_head
from heedful.models.model_files import NetworkHead, read_output_labels
from heedful.models.transformer import Transformer, TransformerModel
from heedful.store.recipe import Artefact, Json, code_digest
from heedful.store.state_digest import digest_state, is_library, module_state, tensor_bytes, without_noise
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.model_recipe import LoadedModel, ModelRecipe, build_model
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
    """A fine-tuned transformer with its own head on a corpus, with or without labels, of which a test split is enough.

    `checkpoint(...)` makes one and brings the corpus's classes into the order of the model's outputs.

    Args:
        scored: whether it is scored on all labelled texts; an audit reads only some of them.
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
        task, classes = splits.task, [_normalize_name(name) for name in splits.class_names]
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
        own = [_normalize_name(name) for name in outputs.names]
        if len(own) == 1 and len(classes) == 2 and own[0] == classes[0] and not _are_placeholders(classes):
            raise UserError(
                f"the one output of {source} is the logit of {outputs.names[0]}, but {self.corpus.name} has the "
                f"classes {', '.join(splits.class_names)}, and one logit stands for the second: give them in the other "
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


def check_trained_head(model: Model, source: str) -> None:
    """Raise a `UserError` for a model from a folder or the hub that got a new head."""
    if not any(note.endswith("head included") for note in model.notes):
        raise UserError(f"{source} has no trained head ({'; '.join(model.notes)}): fine-tune it as a TrainedModel")


PromptText: TypeAlias = "str | Sequence[Mapping[str, str]]"
"""A prompt with `{text}` where the text stands, or the messages of a chat, each with `role` and `content`."""


@dataclass(frozen=True)
class PromptedModel:
    """A language model in a folder or on the hub that is read as a classifier: its tokens, and its label words."""

    tokenization: Prompted
    architecture: LanguageModel


def prompted_model(
    source: str,
    prompt: PromptText | None,
    labels: Mapping[str, str],
    *,
    chat: bool = False,
    precision: Precision = "float32",
) -> PromptedModel:
    """A language model with a prompt and a label word for each class.

    Args:
        labels: the label word of each class, as it stands behind the prompt: a space before it belongs to it.
        chat: whether the prompt is the turn of a user in the chat template of the tokenizer.
        precision: of weights and states.
    """
    check_label_words(labels)
    parsed = read_prompt(prompt, chat=chat)
    is_masked = has_mask_token(source, parsed)
    check_language_model(source, read_language_head(source), is_masked=is_masked)
    tokenizer = Prompted(source, parsed, int(is_masked)).restore({"answers": 0})
    words = LabelWords(tokenizer.label_tokens(labels), tokenizer.mask_id)
    longest = max(map(len, words.words))
    # With the chat as it was rendered: every process that reads the recipe gives the model the same prompt.
    tokenization = Prompted(source, tokenizer.prompt, longest if is_masked else 0, 0 if is_masked else longest - 1)
    return PromptedModel(tokenization, LanguageModel(source, tuple(labels), words, precision))


def check_label_words(labels: object) -> None:
    """Raise a `UserError` unless these are the label words of at least two classes."""
    if not isinstance(labels, Mapping) or len(labels) < 2 or not all(isinstance(name, str) for name in labels):
        raise UserError(
            "labels need a label word for each of at least two classes, for instance "
            "{'negative': ' bad', 'positive': ' good'}"
        )


def check_language_model(source: str, head: NetworkHead, *, is_masked: bool) -> None:
    """Raise a `UserError` for a prompt that does not fit the kind of model."""
    if head == "masked" and not is_masked:
        raise UserError(f"{source} is a masked language model: write [MASK] in the prompt where the label word stands")
    if head == "causal" and is_masked:
        raise UserError(f"{source} is a causal language model: leave the mask token out of the prompt")


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
        model = prompted_model(source, prompt, labels, chat=chat)
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
        output_names: the model's names of its outputs. Names are matched without regard to case; where they only count
            (LABEL_0, LABEL_1 ... or 0, 1 ...) the corpus's own order is taken, and the notes say so. Of ("not x", "x")
            the second decides alone. A corpus without labels takes these names.
    """

    output_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.output_names) < 2:
            raise UserError("a label-aligned corpus needs a model with one output per class: give at least two names")

    def read(self, data: Path) -> Splits:
        """The corpus's splits with labels, candidates and class names in the model's order."""
        splits = self.corpus.read(data)
        if len(splits.class_names) in (0, len(self.output_names)) and _is_unlabelled(splits):
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
        outputs = [_normalize_name(name) for name in self.output_names]
        labels = [_normalize_name(name) for name in classes]
        if sorted(outputs) == sorted(labels) and len(set(outputs)) == len(outputs):
            return tuple(outputs.index(name) for name in labels), f"{in_model}, matched with the classes by name"
        if outputs[0] == negated_name(outputs[-1]) and outputs[-1] == labels[0]:
            return (1, 0), f"{in_model}, matched with the class {classes[0]} by name"
        if _are_placeholders(outputs) or _are_placeholders(labels) or outputs[0] == negated_name(outputs[-1]):
            return tuple(range(len(classes))), f"{in_model}, taken to be {in_corpus} in this order"
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


def negated_name(name: str) -> str:
    """The name of the other class of a model whose one output stands for the class of this name."""
    return f"not {name}"


def _is_unlabelled(splits: Splits) -> bool:
    examples = (example for split in SPLITS for example in splits[split])
    return all(example.label is None and example.candidates is None for example in examples)


def _normalize_name(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _are_placeholders(names: list[str]) -> bool:
    """Whether the names only count: LABEL_0, LABEL_1 ... or 0, 1 ..."""
    return all(name in (f"label {index}", str(index)) for index, name in enumerate(names))


def _reorder_classes(example: Example, output_index: tuple[int, ...]) -> Example:
    candidates, truth = example.candidates, example.ground_truth
    if truth is not None and output_index[1] != 1:
        # What each word adds to class 1: of two classes that changed places the opposite, else unknown.
        truth = tuple(-value for value in truth) if len(output_index) == 2 else None
    return replace(
        example,
        label=None if example.label is None else output_index[int(example.label)],
        candidates=None if candidates is None else tuple(sorted(output_index[each] for each in candidates)),
        ground_truth=truth,
    )


class GivenModel:
    """A model in memory and its tokenizer; recipes of the same process find them by their digest.

    Args:
        version: a name that the user gave to what the model does. It stands for everything but weights, structure, code
            and tokenizer.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, version: str = "") -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.version = version
        self.recorded: dict[str, str] = {}
        """By each digest that a recipe has, that of the weights alone."""
        self._hashed: tuple[tuple[tuple[int, int], ...], str] | None = None
        self._session = secrets.token_hex(16)
        self._is_announced = False
        self.refresh()

    def refresh(self) -> None:
        """Look again at what decides outputs beside the weights: a user may have changed an attribute."""
        state: dict[str, object] = {**module_state(self.model)}
        if not is_library(type(self.tokenizer)):
            state["tokenizer"] = self.tokenizer
        if self.version:
            kinds = [type(module) for module in self.model.modules() if not is_library(type(module))]
            state = {"version": self.version, "code": [code_digest(kind) for kind in dict.fromkeys(kinds)]}
        self._state = digest_state(state) if state else None

    @property
    def digest(self) -> str:
        """SHA-256 of weights, structure and tokenizer, and of the code and attributes of classes of the user.

        Weights count as they are now, everything else as it was when it was last looked at. Where an attribute cannot
        be told and no version is named, no other object has this digest.
        """
        if self._state is None:
            return self.weights_digest
        session = self._session if self._state.unknown else ""
        return hashlib.sha256(f"{self.weights_digest} {self._state.digest} {session}".encode()).hexdigest()

    @property
    def weights_digest(self) -> str:
        """SHA-256 of weights, structure and tokenizer; computed anew when a weight has changed."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        state = tuple((id(tensor), tensor._version) for tensor in tensors)
        if self._hashed is None or self._hashed[0] != state:
            self._hashed = state, hash_model(self.model, self.tokenizer)
        return self._hashed[1]

    def is_changed(self, digest: str) -> bool:
        """Whether the weights are others than when a recipe got this digest."""
        return self.weights_digest != self.recorded.get(digest)

    @property
    def device(self) -> torch.device:
        """That of the weights; the CPU if there are none."""
        return next((weight.device for weight in self.model.parameters()), torch.device("cpu"))

    def announce_unknown(self, name: str) -> None:
        """Warn once if results cannot be reused, because nobody can tell whether two such models are the same."""
        if self._state is not None and self._state.unknown and not self._is_announced:
            self._is_announced = True
            classes = ", ".join(self._state.unknown[:MAX_LISTED_CLASSES])
            warnings.warn(
                f"{name} holds objects that cannot be compared with those of another session ({classes}): its results "
                "are used as long as this object exists, and not again; to reuse them later, name what it does: "
                f'heedful.load(..., version="{datetime.datetime.now(datetime.UTC).date().isoformat()}")',
                stacklevel=4,
            )


MAX_LISTED_CLASSES = 3
_models_in_memory: WeakValueDictionary[str, GivenModel] = WeakValueDictionary()
"""Models by their digest. They are not kept alive: a notebook may load many."""


def hash_model(model: Model, tokenizer: Tokenizer) -> str:
    """SHA-256 of the names and numbers of all weights and buffers, of the structure, and of the tokenizer."""
    structure = f"{type(model).__qualname__} {model.architecture_summary} {model.task} {model}"
    if isinstance(model, TransformerModel):
        # The number of heads and the like are in no weight.
        structure += json.dumps(without_noise(json.loads(model.network.config.to_json_string())), sort_keys=True)
        if isinstance(model.readout, LabelWords):
            structure += repr(model.readout)
    digest = hashlib.sha256(f"{structure}\n{tokenizer.definition()}\n".encode("utf-8", "surrogatepass"))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def model_in_memory(given: GivenModel, corpus: Corpus, name: str, *, scored: bool = True) -> ModelInMemory:
    """A recipe of a model in memory on a corpus whose classes are in the order of the model's."""
    given.refresh()
    given.announce_unknown(name)
    digest = given.digest
    _models_in_memory[digest] = given
    given.recorded[digest] = given.weights_digest
    return ModelInMemory(corpus, name, digest, scored)


@dataclass(frozen=True)
class ModelInMemory(ModelRecipe):
    """A model that exists in this process only, on a corpus with or without labels; `model_in_memory` makes one.

    Args:
        name: for tables and file names.
        digest: of weights and tokenizer.
        scored: whether it is scored on all labelled texts.
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
        given, splits = _find_in_memory(self.name, self.digest), self.corpus.read(workspace.data_dir)
        if splits.task != given.model.task:
            raise UserError(
                f"{self.corpus.name} is for {splits.task}, but {self.name} is for {given.model.task}: choose a corpus "
                "with the same task"
            )
        device = given.device
        if device.type != torch.device(workspace.device).type:
            raise UserError(
                f"{self.name} is on {device}: give Workspace(..., device={str(device)!r}) or move the model"
            )
        return LoadedModel(given.model, given.tokenizer, splits, self.tokenization)


def _find_in_memory(name: str, digest: str) -> GivenModel:
    given = _models_in_memory.get(digest)
    if given is None:
        raise UserError(
            f"{name} is a model in the memory of another process, or its explainer is no longer there: save it to a "
            "folder with save_pretrained and give the folder"
        )
    if given.is_changed(digest):
        raise UserError(f"the weights of {name} have changed since it was loaded: load it again")
    return given


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
    """The architecture of a model in memory, of which there is one model only."""

    name: str

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        """Refused: nothing is known but the model itself."""
        raise UserError(f"{self.name} is a model in memory, so no other can be built like it: save it to a folder")

    def describe(self) -> dict[str, str]:
        """The name of the model in place of that of an encoder."""
        return {"encoder": self.name, "attention": "self"}
