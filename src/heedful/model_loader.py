"""Opening a model and its tokenizer together: from a folder, from the hub, or from objects in memory.

Networks come from `models`, tokenizers from `data`; what is opened here is explained (`explainer`) or examined
(`training.checkpoint`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Generator, nn

from heedful.data.label_match import negated_name
from heedful.data.patches import PatchTokenizer, read_patches
from heedful.data.prompt import Prompt, Prompted, PromptTokenizer, has_mask_token, render_chat
from heedful.data.subwords import Subwords, copy_tokenizer, load_tokenizer, wrap_tokenizer
from heedful.devices import Precision, arithmetic_of, device_of, is_same_device
from heedful.models.attention_hooks import copy_sharing_weights
from heedful.models.given_model import GivenModel
from heedful.models.label_words import LabelWords, Vocabulary
from heedful.models.language_model import LanguageModel, check_language_head, language_head, read_language_head
from heedful.models.model_files import (
    NetworkHead,
    check_explained_task,
    check_model_source,
    load_network,
    read_output_labels,
)
from heedful.models.network_anatomy import image_layout, reads_images
from heedful.models.transformer import Transformer, TransformerModel, check_trained_head, output_names
from heedful.store.model_folder import FolderIdentity, KnownIdentity, ModelIdentity, identify_source
from heedful.store.recipe import to_json
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import OWN_MODELS_PAGE, Model, Task, Tokenizer, UserError, user_path

if TYPE_CHECKING:  # as in models: its import takes seconds
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network
    from transformers import PreTrainedTokenizerBase

    from heedful.training.model_recipe import ModelRecipe

PromptText: TypeAlias = "str | Sequence[Mapping[str, str]]"
"""A prompt with `{text}` where the text stands, or the messages of a chat, each with `role` and `content`."""
ACCEPTED = (
    "a folder or hub id, (network, tokenizer) of transformers, (model, tokenizer) of heedful, a LoadedModel, or "
    f"(recipe of a model, workspace); {OWN_MODELS_PAGE} shows how to make a heedful model of any PyTorch network"
)


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model in evaluation mode with its tokenizer and the names of its classes.

    The model shares the weights of an object of the user and nothing else, so that the object stays as it is.

    Args:
        class_names: in the order of the outputs; empty for regression.
        name: short, for tables and file names.
        source: folder, hub id, or the class of an object in memory.
        origin: what recipes refer to: a folder or hub id, a prompted model, a recipe, or None for an object in memory.
        files: what identifies a model from a folder, or a language model from the hub; None for other models, whose
            weights in memory count.
        next_words: of a language model without label words, which explains any token that may follow a text.
        precision: of the weights of a folder or hub id as they were loaded; models in memory are left as they are.
    """

    given: GivenModel
    class_names: tuple[str, ...]
    name: str
    source: str
    origin: str | PromptedModel | ModelRecipe | None = None
    files: ModelIdentity | None = None
    next_words: NextWords | None = None
    precision: Precision = "float32"

    @property
    def model(self) -> Model:
        """The network in evaluation mode."""
        return self.given.model

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns texts, or images, into its batches."""
        return self.given.tokenizer

    @property
    def identity(self) -> ModelIdentity:
        """What the digest is that of: the files as they were read, or what is in memory now."""
        return KnownIdentity(self.given.digest) if self.files is None else self.files

    @property
    def digest(self) -> str:
        """SHA-256 of weights and tokenizer: of the files of a folder and the precision, else of what is in memory."""
        return self.identity.digest

    def check_folder(self) -> None:
        """UserError if the folder of a classifier has other files than when it was loaded: recipes read it again."""
        if isinstance(self.origin, str) and isinstance(self.files, FolderIdentity):
            self.files.check()

    @property
    def reads_images(self) -> bool:
        """Whether the model reads patches of images, not texts."""
        return isinstance(self.tokenizer, PatchTokenizer)

    @property
    def device(self) -> torch.device:
        """That of the weights."""
        return self.given.device


# Language models


@dataclass(frozen=True)
class PromptedModel:
    """A language model in a folder or on the hub that is read as a classifier: its tokens, and its label words."""

    tokenization: Prompted
    architecture: LanguageModel


def prompted_model(
    source: str, prompt: Prompt, labels: Mapping[str, str], precision: Precision = "float32"
) -> PromptedModel:
    """A language model with a prompt and a label word for each class.

    Args:
        labels: the label word of each class, as it stands behind the prompt: a space before it belongs to it.
        precision: of weights and states.
    """
    check_label_words(labels)
    is_masked = has_mask_token(source, prompt)
    check_language_model(source, read_language_head(source), is_masked=is_masked)
    tokenizer = Prompted(source, prompt, int(is_masked)).restore({"answers": 0})
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


@dataclass(frozen=True, eq=False)
class NextWords:
    """A causal language model that can be asked about any word that may follow a text.

    Args:
        opened: classifiers of words that were asked about before, each with the names of its classes.
    """

    network: Network
    tokenizer: PreTrainedTokenizerBase
    prompt: Prompt
    opened: dict[tuple[str | None, str | None, int], tuple[GivenModel, tuple[str, ...]]] = field(default_factory=dict)

    def classifier(
        self, target: str | None, contrast: str | None, likeliest: int
    ) -> tuple[GivenModel, tuple[str, ...]]:
        """The classifier of these words, by default of the likeliest token against everything else."""
        key = (target, contrast, -1 if target is not None else likeliest)
        if key not in self.opened:
            if target is None:
                words, names = LabelWords(((likeliest,),)), [str(self.tokenizer.decode([likeliest]))]
            else:
                names = [target] if contrast is None else [target, contrast]
                words = LabelWords(self._tokens(names))
            model = TransformerModel.wrap_language_model(self.network, words).eval()
            tokenizer = _prompt_tokenizer(self.tokenizer, self.prompt, words, model)
            classes = (negated_name(names[0]), names[0]) if len(names) == 1 else tuple(names)
            self.opened[key] = GivenModel(model, tokenizer), classes
        return self.opened[key]

    def _tokens(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return PromptTokenizer(self.tokenizer, self.prompt).label_tokens({name: name for name in names})


def _prompt_tokenizer(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, words: LabelWords | None, model: TransformerModel
) -> PromptTokenizer:
    """The tokenizer of a prompt that leaves room for label words within the positions of a model."""
    longest = 1 if words is None else max(map(len, words.words))
    is_masked = words is not None and words.mask_id is not None
    limit = model.max_tokens
    room = None if limit is None else limit - (0 if is_masked else longest - 1)
    return PromptTokenizer(tokenizer, prompt, longest if is_masked else 0, room)


def open_language_network(
    network: Network,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    labels: Mapping[str, str] | None,
    *,
    source: str,
    name: str,
    version: str = "",
) -> OpenedModel:
    """A language model in memory, with label words or without.

    Args:
        version: what the user calls the present state of the model.
    """
    prompt = render_chat(tokenizer, prompt)
    is_masked = has_mask_token(tokenizer, prompt)
    check_language_model(source, language_head(type(network).__name__), is_masked=is_masked)
    words: LabelWords | None = None
    class_names: tuple[str, ...]
    if labels is None:
        if is_masked:
            raise UserError(f"{source} is read at its mask token: give labels with a label word for each class")
        model = TransformerModel.wrap_language_model(network, Vocabulary())
        class_names = tuple(str(number) for number in range(model.task.num_classes))
    else:
        check_label_words(labels)
        reader = PromptTokenizer(tokenizer, prompt, int(is_masked))
        words, class_names = LabelWords(reader.label_tokens(labels), reader.mask_id), tuple(labels)
        model = TransformerModel.wrap_language_model(network, words)
    model = copy_sharing_weights(model).eval()
    reader = _prompt_tokenizer(tokenizer, prompt, words, model)
    return OpenedModel(
        given=GivenModel(model, reader, version),
        class_names=class_names,
        name=name,
        source=source,
        next_words=None if words is not None else NextWords(network, tokenizer, prompt),
    )


def open_language_folder(
    source: str, prompt: Prompt, labels: Mapping[str, str] | None, *, precision: Precision, device: torch.device
) -> OpenedModel:
    """A language model in a folder or on the hub, with label words or without."""
    if labels is None:
        return _open_next_words(source, prompt, precision=precision, device=device)
    prompted = prompted_model(source, prompt, labels, precision)
    architecture = prompted.architecture
    files = identify_source(source)
    model = architecture.build(architecture.words.task, None, Generator().manual_seed(0)).to(device)
    tokenizer = prompted.tokenization.restore({"answers": 0})
    reading = (precision, tokenizer.definition(), to_json(architecture.words.words))
    return OpenedModel(
        given=GivenModel(model, tokenizer),
        class_names=tuple(labels),
        name=architecture.describe()["encoder"],
        source=source,
        origin=prompted,
        files=files.read_as(reading),
        precision=precision,
    )


def _open_next_words(source: str, prompt: Prompt, *, precision: Precision, device: torch.device) -> OpenedModel:
    """A causal language model in a folder or on the hub that is asked about the words that may follow a text."""
    if read_language_head(source) != "causal":
        raise UserError(
            f"{source} is not a causal language model: give labels with a label word for each class, and [MASK] in "
            "the prompt of a masked one"
        )
    files = identify_source(source)
    loaded = load_network(source, None, "causal", precision)
    check_language_head(source, loaded)
    nn.Module.to(loaded.network, device)
    name = Transformer(source).describe()["encoder"]
    with arithmetic_of(device):
        opened = open_language_network(loaded.network, load_tokenizer(source), prompt, None, source=source, name=name)
    reading = (precision, opened.tokenizer.definition())
    return replace(opened, files=files.read_as(reading), precision=precision)


# Classifiers


def check_folder_exists(source: str) -> None:
    """Raise a `UserError` for a path without a folder; only other names can be ids of the hub, which answers slowly."""
    if not user_path(source).is_dir() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        raise UserError(f"{source}: no such folder; give the folder that save_pretrained has written, or a hub id")


def open_folder(source: str, task: Task | None, *, precision: Precision, device: torch.device) -> OpenedModel:
    """A classifier in a folder or on the hub.

    Args:
        task: by default that of its configuration.
    """
    folder = user_path(source)
    labels, architecture = read_output_labels(source), Transformer(source, precision)
    if task is None:
        several = MulticlassClassification(len(labels.names)) if len(labels.names) > 1 else BinaryClassification()
        task = Regression() if labels.is_regression else several
    # What a folder holds is checked before its weights are read.
    config = check_model_source(source)
    files = identify_source(source) if folder.is_dir() else None
    tokenizer = _patch_tokenizer(source, config) or Subwords(source).restore({"answers": 0})
    model = architecture.build(task, None, Generator().manual_seed(0)).to(device)
    check_trained_head(model, source)
    tokenizer = _with_special_tokens(tokenizer, model)
    return OpenedModel(
        given=GivenModel(model, tokenizer),
        class_names=_class_names(task, labels.names),
        name=architecture.describe()["encoder"],
        source=source,
        origin=source,
        files=files if files is None or precision == "float32" else files.read_as((precision,)),
        precision=precision,
    )


def _patch_tokenizer(source: str, config: NetworkConfig) -> Tokenizer | None:
    """The tokenizer of a model that reads square images in square patches; None for models of texts."""
    layout = image_layout(config)
    if layout is None:
        return None
    patch, side, channels = layout
    return read_patches(source, patch, side).restore({"channels": channels, "height": side, "width": side})


def _with_special_tokens(tokenizer: Tokenizer, model: TransformerModel) -> Tokenizer:
    """A tokenizer of images with as many special tokens before the patches as the model has."""
    if not isinstance(tokenizer, PatchTokenizer):
        return tokenizer
    count = model.stack.inputs.prefix
    tokenization = replace(tokenizer.tokenization, class_token=count > 0, registers=max(0, count - 1))
    return tokenization.restore(tokenizer.state())


def copy_to_device(network: object, tokenizer: object, device: torch.device | None) -> nn.Module:
    """A network in memory, or a copy of it where it is on another device: moving weights would move the user's."""
    if not isinstance(network, nn.Module):
        pair = f"({type(network).__name__}, {type(tokenizer).__name__})"
        raise UserError(f"{pair} is not a model and its tokenizer: give {ACCEPTED}")
    if device is None or is_same_device(device_of(network), device):
        return network
    return copy.deepcopy(network).to(device)


def open_language_objects(
    network: nn.Module, tokenizer: object, prompt: Prompt, labels: Mapping[str, str] | None, *, version: str
) -> OpenedModel:
    """A language model and a tokenizer of transformers in memory."""
    kind = type(network).__name__
    if isinstance(network, Model):
        raise UserError(
            f"({kind}, {type(tokenizer).__name__}): prompt, labels and chat are for a language model of transformers"
        )
    hugging_face = cast("Network", network)
    name = Path(hugging_face.config.name_or_path or "").name or kind
    return open_language_network(
        hugging_face, copy_tokenizer(tokenizer), prompt, labels, source=kind, name=name, version=version
    )


def open_objects(network: nn.Module, tokenizer: object, task: Task | None, *, version: str) -> OpenedModel:
    """A classifier and a tokenizer in memory, each of transformers or of heedful."""
    kind = type(network).__name__
    pair = f"({kind}, {type(tokenizer).__name__})"
    if not isinstance(network, Model):
        check_explained_task(pair, kind)
    model = network if isinstance(network, Model) else TransformerModel.wrap(cast("Network", network), task)
    model = copy_sharing_weights(model).eval()
    name, outputs = kind, tuple[str, ...]()
    if isinstance(model, TransformerModel):
        if reads_images(model.network) and not isinstance(tokenizer, PatchTokenizer):
            raise UserError(
                f"{pair}: {kind} reads images: give its patches in place of the tokenizer, for "
                "instance Patches(16, image_size=224).fit(images)"
            )
        name = Path(model.network.config.name_or_path or "").name or name
        outputs = output_names(model.network)
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = wrap_tokenizer(tokenizer, model.max_tokens)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"{pair}: a model of heedful needs the tokenizer of heedful that it was trained with")
    given = GivenModel(model, tokenizer, version)
    return OpenedModel(given=given, class_names=_class_names(model.task, outputs), name=name, source=kind)


def _class_names(task: Task, outputs: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes from the names of the outputs; a binary model has one output.

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
