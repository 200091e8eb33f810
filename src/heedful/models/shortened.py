"""Students with fewer layers: the first layers of a transformer, under a head of the same kind.

The layers that are kept have the weights that the plan gives them, pretrained ones included; the rest is cut off
before anything is trained or saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from heedful.core.types import Plan, Task, UserError
from heedful.models.layers import layers_of
from heedful.models.transformer import TransformerModel


@dataclass(frozen=True)
class Shortened(Plan):
    """The plan's transformer with only its first `layers` layers.

    Below a scalar mix it stands inside: `ScalarMix(Shortened(plan, 4))`.
    """

    plan: Plan
    layers: int

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise UserError(f"a transformer cannot be shortened to {self.layers} layers: keep at least 1")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The plan's model without its upper layers, in eval mode; the notes say how many there were."""
        model = self.plan.build(task, embeddings, generator)
        name = type(self.plan).__name__
        if not isinstance(model, TransformerModel):
            raise UserError(f"{name} is no transformer, so that it has no layers to leave out; shorten its plan itself")
        network = model.network
        if "mix" in dict(network.named_children()):
            raise UserError("a scalar mix weighs all layers: write ScalarMix(Shortened(plan, n)), not the reverse")
        stack = layers_of(network)
        if self.layers > len(stack):
            raise UserError(f"{name} has {len(stack)} layers: it cannot be shortened to {self.layers}")
        model.notes = (*model.notes, f"only the first {self.layers} of {len(stack)} layers are kept")
        del stack[self.layers :]
        network.config.num_hidden_layers = self.layers
        return model
