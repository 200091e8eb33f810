"""What self-attention carries beside its weights: norms and gradients of attention, read without knowing the model.

Like `core.types.Deletes`, `Carries` is a shape that a model may have; a method asks for it with `isinstance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from heedful.core.types import Batch, Model, UserError


@dataclass(frozen=True)
class Carried:
    """What attention carries in each layer, from the first up; tensors stay in the graph of `logits`.

    A layer's attention gives to query q the sum over heads and units of a_qu (v_u P), plus the offset.

    Args:
        attention: the weights that each layer used `[batch head query unit]`.
        values: v, what each unit offers to each head `[batch head unit dim]`.
        projections: P, from a head's values to the states of the layer `[head dim width]`.
        offsets: what the layer adds `[width]`.
    """

    attention: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    projections: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    logits: Tensor


@runtime_checkable
class Carries(Protocol):
    """A model of self-attention layers that shows what they carry."""

    def carried(self, batch: Batch, *, embeddings: Tensor | None = None) -> Carried:
        """Weights, values and projections of every layer; where gradients are on, the weights take one.

        Given embeddings are taken as they are.
        """
        ...


def check_own(model: Model) -> None:
    """Refuses a model under imposed attention: its layers, read by themselves, would attend in their own way."""
    if model.imposed:
        raise UserError(
            "attention is imposed on this model, and this method reads that of its own layers: choose one that "
            "reads its answers, such as Lime, LeaveOneOut or IntegratedGradients"
        )
