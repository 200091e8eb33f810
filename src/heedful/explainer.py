"""A model that explains its predictions: `load` opens it, `Explainer.explain` gives scores of words.

Words, not tokens: the score of a word is the sum of the scores of its tokens where scores are contributions to the
output, and their mean where they are weights without sign, so that long words are not favoured.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, runtime_checkable

from torch import Generator, nn

from heedful.attributions.attention import (
    AttentionXGradient,
    Flow,
    HeadAttention,
    KobayashiNorm,
    RawAttention,
    Relevance,
    Rollout,
    ValueNorm,
)
from heedful.attributions.controls import PermutedAttention, Random, RandomizedModel
from heedful.attributions.gradient import GradientNorm
from heedful.attributions.head_mix import HeadMix, StaticAttention
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.attributions.shapley import KernelShap, Shapley
from heedful.catalogue import METHODS
from heedful.data.tokenization import Subwords, wrap_tokenizer
from heedful.models._attention_hooks import copy_sharing_weights
from heedful.models.transformer import (
    Transformer,
    TransformerModel,
    check_model_source,
    max_tokens,
    output_names,
    read_output_labels,
    reads_images,
)
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.checkpoint import (
    Checkpoint,
    GivenModel,
    align_labels,
    check_trained_head,
    model_in_memory,
    negated_name,
)
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trained_model import OnOtherData
from heedful.types import (
    Attribution,
    Batch,
    Corpus,
    Method,
    Model,
    Pooling,
    Task,
    Tokenizer,
    UserError,
    check_methods,
    hash_model_folder,
    method_name,
    pool_by_word,
)

if TYPE_CHECKING:  # as in models: its import takes seconds
    from transformers import PreTrainedModel as Network

# Methods on words


@runtime_checkable
class DeclaresWordPooling(Protocol):
    """A method that says itself how the scores of a word's tokens become the score of the word."""

    @property
    def word_pooling(self) -> Pooling: ...


WEIGHTS = (
    RawAttention,
    HeadAttention,
    StaticAttention,
    HeadMix,
    Rollout,
    Flow,
    ValueNorm,
    KobayashiNorm,
    Relevance,
    GradientNorm,
    Random,
    PermutedAttention,
)
"""Methods whose scores are weights without sign."""
SAME_FOR_EVERY_TARGET = tuple(kind for kind in WEIGHTS if kind not in (Relevance, GradientNorm))
"""Methods that read attention, or nothing, and never the output."""


def word_pooling(method: Method) -> Pooling:
    """How the scores of a word's tokens become the score of the word.

    >>> word_pooling(Lime()), word_pooling(RawAttention()), word_pooling(RandomizedModel(Lime()))
    ('sum', 'mean', 'sum')
    """
    if isinstance(method, RandomizedModel):
        return word_pooling(method.method)
    if isinstance(method, DeclaresWordPooling):
        return method.word_pooling
    is_weight = (
        isinstance(method, WEIGHTS)
        or (isinstance(method, AttentionXGradient) and method.positive)
        or (isinstance(method, LeaveOneOut) and method.output == "distribution")
        or (isinstance(method, LayerMix) and method.score_type == "distribution")
    )
    return "mean" if is_weight else "sum"


def depends_on_target(method: Method) -> bool:
    """Whether the scores of a method can differ between two classes of the same text.

    >>> depends_on_target(Lime()), depends_on_target(RawAttention()), depends_on_target(RandomizedModel())
    (True, False, False)
    """
    if isinstance(method, RandomizedModel):
        return depends_on_target(method.method)
    of_all_classes = isinstance(method, LeaveOneOut) and method.output == "distribution"
    return not isinstance(method, SAME_FOR_EVERY_TARGET) and not of_all_classes


def word_scores(method: Method, attribution: Attribution, batch: Batch) -> Attribution:
    """Scores of words `[batch word]` from the scores that the method gave to their tokens; words without one are off.

    A word is a whitespace word of the text, counted over both texts of a pair.
    """
    words = batch.words.masked_fill(~attribution.mask, -1)
    return Attribution(*pool_by_word(attribution.scores, words, word_pooling(method)))


def method_for_words(method: str | Method) -> Method:
    """A method by its name or itself; one that removes tokens removes whole words.

    >>> method_for_words("lime") == Lime(feature="word")
    True
    """
    found = find_method(method) if isinstance(method, str) else method
    check_methods((found,), "method")
    if isinstance(found, RandomizedModel):
        return replace(found, method=method_for_words(found.method))
    if isinstance(found, Lime | KernelShap | Shapley | Occlusion | LeaveOneOut):
        return replace(found, feature="word")
    return found


def find_method(name: str) -> Method:
    """The method of this name in the catalogue, with its default options; also by the name that reports show."""
    if name in METHODS:
        return METHODS[name]()
    for make in METHODS.values():
        if method_name(make()) == name:
            return make()
    near = difflib.get_close_matches(name.lower(), METHODS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"unknown method {name!r}: {hint}`heedful list` shows all methods")


def catalogue_name(method: Method) -> str:
    """The name of a method in the catalogue if it has the default options (words or tokens), else its display name.

    >>> catalogue_name(Lime(feature="word")), catalogue_name(RawAttention()), catalogue_name(Lime(seed=3))
    ('lime', 'raw-attention', 'lime(seed-3)')
    """
    for name, make in METHODS.items():
        if method in (make(), method_for_words(make())):
            return name
    for_tokens = method
    if isinstance(method, Lime | KernelShap | Shapley | Occlusion | LeaveOneOut):
        for_tokens = replace(method, feature="unit")
    return method_name(for_tokens)


# Models

ModelSource: TypeAlias = "str | Path | LoadedModel | tuple[object, object] | Explainer"
"""What `load` accepts."""
ACCEPTED = (
    "a folder or hub id, (network, tokenizer) of transformers, (model, tokenizer) of heedful, a LoadedModel, or "
    "(recipe of a model, workspace)"
)


@dataclass(frozen=True, eq=False)
class Explainer:
    """A model in evaluation mode with its tokenizer and the names of its classes; `load` makes one.

    The model shares the weights of an object of the user and nothing else, so that the object stays as it is.

    Args:
        class_names: in the order of the outputs; empty for regression.
        name: short, for tables and file names.
        source: folder, hub id, or the class of an object in memory.
        origin: what recipes refer to: a folder or hub id, a recipe, or None for an object in memory.
        folder_digest: of the folder when it was read; empty if the model does not come from a folder.
    """

    model: Model
    tokenizer: Tokenizer
    class_names: tuple[str, ...]
    name: str
    source: str
    given: GivenModel
    origin: str | ModelRecipe | None = None
    folder_digest: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of weights and tokenizer: of the files of a folder, else of what is in memory."""
        return self.folder_digest or self.given.digest

    def recipe(self, corpus: Corpus) -> ModelRecipe:
        """The model as subject of trials on a corpus, with or without labels, of which a test split is enough.

        The classes of the corpus are matched with the model's by name. A model in memory can be examined in this
        process only, as long as this explainer exists.
        """
        aligned = align_labels(corpus, self.model.task, self.class_names)
        if isinstance(self.origin, str):
            return Checkpoint(aligned, Subwords(self.origin), Transformer(self.origin))
        if self.origin is not None:
            return OnOtherData(self.origin, aligned)
        return model_in_memory(self.given, aligned, self.name)


def load(source: ModelSource, *, task: Task | None = None, class_names: Sequence[str] = ()) -> Explainer:
    """Open a model to explain and audit it; nothing is unpickled, and objects of the user stay unchanged.

    Args:
        source: a folder or hub id; `(network, tokenizer)` of transformers; `(model, tokenizer)` of heedful; a
            `LoadedModel`; `(recipe, workspace)`; or an explainer.
        task: by default that of the model's configuration.
        class_names: names of the classes in the order of the outputs; by default those of the model.
    """
    if isinstance(source, Explainer):
        explainer = source
    elif isinstance(source, str | Path):
        explainer = _load_folder(str(source), task)
    elif isinstance(source, LoadedModel):
        explainer = _load_objects(source.model, source.tokenizer, task)
        explainer = replace(explainer, class_names=source.splits.class_names)
    elif not isinstance(source, tuple) or len(source) != 2:
        raise UserError(f"{reprlib.repr(source)} is not a model: give {ACCEPTED}")
    elif isinstance(source[0], ModelRecipe) and isinstance(source[1], Workspace):
        explainer = load(source[0].restore(source[1]))
        explainer = replace(explainer, name=source[0].title, source=source[0].title, origin=source[0])
    else:
        explainer = _load_objects(source[0], source[1], task)
    if task is not None and task != explainer.model.task:
        raise UserError(f"{explainer.source} is a model for {explainer.model.task}, not for {task}: leave task out")
    return replace(explainer, class_names=_check_names(explainer, class_names)) if class_names else explainer


def _check_names(explainer: Explainer, class_names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; UserError unless there is one for each class."""
    count = explainer.model.task.num_classes
    if isinstance(class_names, str) or len(class_names) != count or count < 2:
        has = f"the classes {', '.join(explainer.class_names)}" if count > 1 else "no classes"
        raise UserError(
            f"{explainer.source} has {has}, but class_names is {reprlib.repr(class_names)}: give one name per class"
        )
    return tuple(class_names)


def _load_folder(source: str, task: Task | None) -> Explainer:
    folder = Path(source).expanduser()
    if not folder.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        # Only other names can be ids of the hub, which takes time to answer.
        raise UserError(f"{source}: no such folder; give the folder that save_pretrained has written, or a hub id")
    labels, architecture = read_output_labels(source), Transformer(source)
    if task is None:
        several = MulticlassClassification(len(labels.names)) if len(labels.names) > 1 else BinaryClassification()
        task = Regression() if labels.is_regression else several
    # What a folder holds is checked before its weights are read.
    check_model_source(source)
    tokenizer = Subwords(source).restore({"answers": 0})
    model = architecture.build(task, None, Generator().manual_seed(0))
    check_trained_head(model, source)
    return Explainer(
        model,
        tokenizer,
        _class_names(task, labels.names),
        architecture.describe()["encoder"],
        source,
        GivenModel(model, tokenizer),
        source,
        hash_model_folder(folder, with_weights=True) if folder.is_dir() else "",
    )


def _load_objects(network: object, tokenizer: object, task: Task | None) -> Explainer:
    """The explainer of a model and a tokenizer in memory, each of transformers or of heedful."""
    pair = f"({type(network).__name__}, {type(tokenizer).__name__})"
    if not isinstance(network, nn.Module):
        raise UserError(f"{pair} is not a model and its tokenizer: give {ACCEPTED}")
    model = network if isinstance(network, Model) else TransformerModel.wrap(cast("Network", network), task)
    model = copy_sharing_weights(model).eval()
    name, outputs = type(network).__name__, tuple[str, ...]()
    if isinstance(model, TransformerModel):
        if reads_images(model.network):
            raise UserError(f"{type(network).__name__} reads images: give a model that reads text")
        name = Path(model.network.config.name_or_path or "").name or name
        outputs = output_names(model.network)
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = wrap_tokenizer(tokenizer, max_tokens(model.network))
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"{pair}: a model of heedful needs the tokenizer of heedful that it was trained with")
    given = GivenModel(model, tokenizer)
    return Explainer(model, tokenizer, _class_names(model.task, outputs), name, type(network).__name__, given)


def _class_names(task: Task, outputs: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes from the names of the outputs, of which a binary model has one.

    >>> _class_names(BinaryClassification(), ("toxic",)), _class_names(BinaryClassification(), ("LABEL_0",))
    (('not toxic', 'toxic'), ('LABEL_0', 'LABEL_1'))
    """
    count = task.num_classes
    if count < 2:
        return ()
    if len(outputs) == count:
        return tuple(outputs)
    if count == 2 and len(outputs) == 1 and outputs[0] != "LABEL_0":
        return negated_name(outputs[0]), outputs[0]
    return tuple(f"LABEL_{number}" for number in range(count))
