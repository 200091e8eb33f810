"""Models whose Shapley values are known by hand: weights of words that add up, and words that act together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.tasks import Regression
from heedful.types import Batch, Model, Task, Trace


class Game(Model):
    """A number: the sum of its words' weights, plus `bond` for each pair of neighbours in one text, plus `bias`.

    A word's vector is its weight, that of the pad token `weights[0]`. Neighbours that weigh 0 have no bond.
    """

    def __init__(self, weights: Tensor, *, bond: float = 0.0, bias: float = 0.0, task: Task | None = None) -> None:
        super().__init__()
        self.task = Regression() if task is None else task
        self.weights = nn.Parameter(weights.double())
        self.bond, self.bias = bond, bias
        self.read: list[int] = []

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        self.read.append(len(batch))
        if embeddings is None:
            embeddings = self.weights[batch.inputs].unsqueeze(-1)
        worth = embeddings.squeeze(-1) * batch.mask
        there = (worth != 0) & batch.content_mask
        together = (there[:, 1:] & there[:, :-1] & (batch.segments[:, 1:] == batch.segments[:, :-1])).sum(1)
        total = worth.sum(1) + self.bond * together + self.bias
        logits = torch.stack([total * (place + 1) for place in range(self.task.num_outputs)], dim=1)
        weights = (batch.mask / batch.mask.sum(1, keepdim=True))[:, None, None, None]
        return Trace(embeddings, embeddings, weights, logits)


def words(*rows: tuple[int, ...], pieces: tuple[int, ...] = ()) -> Batch:
    """Rows of word ids without special tokens; `pieces` gives the word of each token of every row."""
    width = max(map(len, rows))
    inputs = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
    number = torch.tensor(pieces or tuple(range(width))).expand(len(rows), width).masked_fill(~mask, -1)
    uids = tuple(f"text {' '.join(map(str, row))}" for row in rows)
    return Batch(uids, inputs, mask, torch.zeros_like(inputs), number)
