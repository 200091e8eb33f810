"""A linear bag of words over invented words: the model on which every explanation is known.

It is what methods and measures are checked on; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Generator, Tensor, nn

from heedful.core.types import Attribution, Batch, Model, Task, Trace
from heedful.models.initialising import unfilled

VOCABULARY = 30
PAD, UNK, SOS, EOS, MASK, FIRST = range(6)


class Bag(Model):
    """A linear bag of words, logit = sum over the units of their word's weight: here every explanation is known.

    Special symbols weigh nothing. Attention is uniform; a given one weighs the units.
    """

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__()
        self.task = task
        generator = Generator().manual_seed(seed)
        signs = 1.0 - 2.0 * (torch.arange(VOCABULARY) % 2)
        self.weights = signs * (0.2 + torch.rand(VOCABULARY, generator=generator))
        self.weights[:FIRST] = 0.0
        direction = torch.tensor([0.6, 0.8])
        with unfilled():
            self.table, self.answer = nn.Embedding(VOCABULARY, 2), nn.Linear(2, 1, bias=False)
        self.to_empty(device="cpu")
        with torch.no_grad():
            self.table.weight.copy_(self.weights.unsqueeze(1) * direction)
            self.answer.weight.copy_(direction)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """What happened."""
        embeddings = self.table(batch.inputs) if embeddings is None else embeddings
        count = batch.scored.sum(1, keepdim=True).clamp(min=1)
        if attention is None:
            attention = (batch.scored.to(embeddings) / count)[:, None, None, None]
        spoken = self.answer(embeddings) * batch.mask.unsqueeze(-1)
        logits = (count * attention[:, 0, 0, 0]).unsqueeze(-1) * spoken
        return Trace(embeddings, embeddings, attention, logits.sum(1))

    def truth(self, batch: Batch, target: Tensor) -> Attribution:
        """What each unit adds to the logit of the target, or to the number: the right explanation."""
        sign = (2.0 * target - 1.0 if self.task.classes > 1 else torch.ones(len(batch))).unsqueeze(1)
        scores = sign * self.weights[batch.inputs]
        return Attribution(scores.double().masked_fill(~batch.scored, 0.0), batch.scored)


def some_texts(lengths: Iterable[int], seed: int = 0) -> Batch:
    """Texts of invented words between a first and a last special symbol."""
    counts = list(lengths)
    generator = Generator().manual_seed(seed)
    inputs = torch.zeros(len(counts), max(counts) + 2, dtype=torch.int64)
    words = torch.full_like(inputs, -1)
    for row, count in enumerate(counts):
        ids = torch.randint(FIRST, VOCABULARY, (count,), generator=generator)
        inputs[row, : count + 2] = torch.cat((torch.tensor([SOS]), ids, torch.tensor([EOS])))
        words[row, 1 : count + 1] = torch.arange(count)
    uids = tuple(f"text-{row}" for row in range(len(counts)))
    return Batch(uids, inputs, inputs != PAD, torch.zeros_like(inputs), words, unknown=UNK, masker=MASK)
