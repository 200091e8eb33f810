"""Banks of maps: what a teacher can show of a batch before anything is chosen or mixed, `[batch map unit]`.

The heads of the teacher, one map each; any attribution method, one map; the layers of its integrated gradients. A bank
is frozen and the teacher too, so that the maps of an example are computed once, whoever learns to mix them later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.attention import numbered
from heedful.attributions.layermix import LayerMix
from heedful.core.headscores import Heads, read_heads
from heedful.core.types import Batch, Method, Model


@dataclass(frozen=True)
class Shown:
    """The maps of a batch `[batch map unit]` and the logits that the model gave `[batch output]`."""

    maps: Tensor
    logits: Tensor


class Bank(ABC):
    """Maps of a model, none of them trained."""

    @abstractmethod
    def read(self, model: Model, batch: Batch) -> Shown:
        """The maps of a batch, and the model's answers to it."""

    @property
    @abstractmethod
    def called(self) -> str:
        """A word or two for people."""

    @property
    def specials(self) -> bool:
        """Whether the maps say something of special symbols too; attribution methods leave those out."""
        return False


@dataclass(frozen=True)
class HeadBank(Bank):
    """Mean pre-softmax scores of each attention head, layer by layer.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes all.
    """

    layer: int | None = None

    def read(self, model: Model, batch: Batch) -> Shown:
        """One map per head, without a gradient."""
        with torch.no_grad():
            heads = read_heads(model, batch)
        return Shown(self.chosen(heads), heads.logits)

    def chosen(self, heads: Heads) -> Tensor:
        """The maps of the layer that counts, `[batch map unit]`."""
        layers = heads.scores.shape[1]
        return heads.scores[:, numbered(self.layer, layers, "layer")].flatten(1, 2)

    @property
    def called(self) -> str:
        if self.layer is None:
            return "attention, all layers"
        return "attention, last layer" if self.layer == -1 else f"attention, layer {self.layer}"

    @property
    def specials(self) -> bool:
        return True


@dataclass(frozen=True)
class MethodBank(Bank):
    """The scores of one attribution method for the predicted output: a bank of one map."""

    method: Method

    def read(self, model: Model, batch: Batch) -> Shown:
        """The method's scores, zero off the scored units."""
        logits, target = _answered(model, batch)
        return Shown(self.method(model, batch, target).scores.unsqueeze(1), logits)

    @property
    def called(self) -> str:
        return type(self.method).__name__


@dataclass(frozen=True)
class LayerBank(Bank):
    """Integrated gradients of the predicted output at the input of each layer, one map per layer.

    Args:
        mix: how they are computed; its own phi and temperature do not count.
    """

    mix: LayerMix = LayerMix()

    def read(self, model: Model, batch: Batch) -> Shown:
        """Signed shares, zero off the units that the mix scores."""
        logits, target = _answered(model, batch)
        return Shown(self.mix.maps(model, batch, target)[0], logits)

    @property
    def called(self) -> str:
        return "integrated gradients of the layers"

    @property
    def specials(self) -> bool:
        return self.mix.specials


def _answered(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits, and the output that is predicted `[batch]`."""
    with torch.no_grad():
        logits = read_heads(model, batch).logits
    return logits, model.task.probabilities(logits).argmax(-1)
