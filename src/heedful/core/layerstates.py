"""What flows into each layer of a model, and what the model answers when something else flows into one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from heedful.core.carrying import check_own
from heedful.core.types import Batch, Model


@dataclass(frozen=True)
class Given:
    """States `[batch unit width]` that take the place of a layer's input; layers are counted from 0."""

    layer: int
    states: Tensor


@dataclass(frozen=True)
class Layers:
    """The input `[batch unit width]` of each layer from the first up, and the logits `[batch output]`."""

    inputs: tuple[Tensor, ...]
    logits: Tensor


@runtime_checkable
class ReadsLayers(Protocol):
    """A model made of layers whose inputs can be read and replaced."""

    def read_layers(self, batch: Batch, embeddings: Tensor, given: Given | None = None) -> Layers:
        """One reading from these embeddings, with one layer's input replaced if it is given.

        Whatever lies below that layer is left as the embeddings make it.
        """
        ...


def read_layers(model: Model, batch: Batch, embeddings: Tensor, given: Given | None = None) -> Layers:
    """Inputs of all layers and logits; a model that shows no layers counts as one, whose input is the embeddings."""
    if isinstance(model, ReadsLayers):
        check_own(model)
        return model.read_layers(batch, embeddings, given)
    inputs = embeddings if given is None else given.states
    return Layers((inputs,), model(batch, embeddings=inputs).logits)
