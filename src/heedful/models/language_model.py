"""`LanguageModel`: a causal or masked language model from a folder or the hub, read as a classifier by label words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from heedful.devices import Precision, arithmetic_notes
from heedful.models.label_words import LabelWords
from heedful.models.model_files import LoadedNetwork, NetworkHead, OutputLabels, load_network, read_class_name
from heedful.models.network_anatomy import text_config
from heedful.models.transformer import Transformer, TransformerModel
from heedful.seeding import temporary_seed
from heedful.store.model_folder import hash_model_folder
from heedful.store.recipe import added_field
from heedful.types import Architecture, DiskResource, Task, UserError, user_path

LANGUAGE_MODELS: Mapping[str, NetworkHead] = {
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
}
"""Kinds of language model by how the names of their classes end."""


@dataclass(frozen=True)
class LanguageModel(Architecture, DiskResource):
    """A language model whose classes are label words; only safetensors are read, and an adapter is merged.

    Args:
        source: a folder or a hub id.
        names: of the classes.
        words: the tokens of their label words.
        precision: of weights and states.
    """

    source: str
    names: tuple[str, ...]
    words: LabelWords
    precision: Precision = added_field("float32")

    def digest(self, data: Path) -> str:
        """A hash of all files in a folder that may be read; the name itself for a hub id."""
        folder = user_path(self.source)
        return hash_model_folder(folder, with_weights=True) if folder.is_dir() else self.source

    def describe(self) -> dict[str, str]:
        """The name of the folder, as of another transformer."""
        return Transformer(self.source).describe()

    def read_outputs(self) -> OutputLabels:
        """The classes in their order."""
        return OutputLabels(self.names)

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The language model, in eval mode."""
        if embeddings is not None and len(embeddings):
            raise UserError("a language model has its own word vectors: leave the word vectors out (embeddings=None)")
        if task != self.words.task:
            raise UserError(
                f"{self.source} with {len(self.names)} label words is for {self.words.task}, not for {task}"
            )
        with temporary_seed(int(torch.randint(2**62, (), generator=generator))):
            head: NetworkHead = "causal" if self.words.mask_id is None else "masked"
            loaded = load_network(self.source, None, head, self.precision)
        check_language_head(self.source, loaded)
        model = TransformerModel.wrap_language_model(loaded.network, self.words).eval()
        size = getattr(text_config(loaded.network), "vocab_size", None)
        highest = max(token for word in self.words.words for token in word)
        if isinstance(size, int) and highest >= size:
            raise UserError(f"label word token {highest} is outside the vocabulary of {size}: use its own tokenizer")
        model.notes = (*loaded.notes, *model.notes, *arithmetic_notes("cpu", self.precision))
        return model


def check_language_head(source: str, loaded: LoadedNetwork) -> None:
    """Raise a `UserError` for a model that got a new head."""
    if loaded.new_weights:
        notes = "; ".join(loaded.notes)
        raise UserError(
            f"{source} has no trained language-model head ({notes}): give a causal or masked language model"
        )


def read_language_head(source: str) -> NetworkHead:
    """What the configuration of a model in a folder or on the hub says it was saved with."""
    return language_head(read_class_name(source))


def language_head(class_name: str) -> NetworkHead:
    """The kind of a network by the name of its class.

    >>> language_head("GPT2LMHeadModel"), language_head("BertForMaskedLM"), language_head("ViTModel")
    ('causal', 'masked', 'classifier')
    """
    return next((kind for end, kind in LANGUAGE_MODELS.items() if class_name.endswith(end)), "classifier")
