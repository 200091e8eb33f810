"""A model whose workings are known in full: it adds up one number per word, and nothing else.

The first number of each word's vector is what the word adds to the logit of class 1. Shapley values, integrated
gradients and the slope times the vector are then that number itself, up to a common factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Generator, Tensor, nn

from heedful.core.tasks import Binary
from heedful.core.types import Batch, Model, Plan, Task, Trace, UserError


@dataclass(frozen=True)
class Tally(Plan):
    """logit = sum of the weights of all words; attention, which is uniform, weighs them if another is given."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TallyModel:
        """The model over these vectors, zero for padding."""
        if embeddings is None or not len(embeddings):
            raise UserError("Tally adds up numbers of words: give word vectors that hold them, as PlantedWeights does")
        if task != Binary():
            raise UserError("Tally tells two classes apart")
        return TallyModel(task, embeddings)


class TallyModel(Model):
    """Adds up the words; its one table is a parameter, so that it can be saved and loaded as any other model."""

    def __init__(self, task: Task, table: Tensor) -> None:
        super().__init__()
        self.task = task
        weights = table.clone()
        weights[0] = 0
        self.table = nn.Parameter(weights)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The sum; with attention given, the sum of each word's number times its weight times the number of words."""
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        scored = batch.scored.to(embeddings.dtype)
        count = scored.sum(1, keepdim=True).clamp(min=1)
        if attention is None:
            attention = (scored / count)[:, None, None, None]
        shares = attention.mean((1, 2, 3)) * count
        logits = (embeddings[..., 0] * shares * scored).sum(1, keepdim=True)
        return Trace(embeddings, embeddings, attention, logits)

    if TYPE_CHECKING:

        def __call__(
            self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None
        ) -> Trace: ...
