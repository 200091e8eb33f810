"""A model whose workings are known in full: it adds up one number per word, and nothing else.

The first number of each word's vector is what the word adds to the logit of class 1. Shapley values, integrated
gradients and the slope times the vector are then that number itself, up to a common factor.

A linear bag of words over invented words: the model on which every explanation is known.

It is what methods and measures are checked on; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from heedful.models.encoders import meta_device
from heedful.tasks import BinaryClassification
from heedful.types import Architecture, Attribution, Batch, Model, Task, Trace, UserError


@dataclass(frozen=True)
class WordWeightSum(Architecture):
    """logit = sum of the weights of all words; attention, which is uniform, weighs them if another is given."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> WordWeightSumModel:
        """The model over these vectors, zero for padding."""
        if embeddings is None or not len(embeddings):
            raise UserError("Tally adds up numbers of words: give word vectors that hold them, as PlantedWeights does")
        if task != BinaryClassification():
            raise UserError("Tally tells two classes apart")
        return WordWeightSumModel(task, embeddings)


class WordWeightSumModel(Model):
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
        scored = batch.content_mask.to(embeddings.dtype)
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


VOCAB_SIZE = 30
PAD, UNK, SOS, EOS, MASK, FIRST_WORD = range(6)


class LinearBagOfWords(Model):
    """A linear bag of words, logit = sum over the units of their word's weight: here every explanation is known.

    Special symbols weigh nothing. Attention is uniform; a given one weighs the units.
    """

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__()
        self.task = task
        generator = Generator().manual_seed(seed)
        signs = 1.0 - 2.0 * (torch.arange(VOCAB_SIZE) % 2)
        self.weights = signs * (0.2 + torch.rand(VOCAB_SIZE, generator=generator))
        self.weights[:FIRST_WORD] = 0.0
        direction = torch.tensor([0.6, 0.8])
        with meta_device():
            self.embedding, self.output_layer = nn.Embedding(VOCAB_SIZE, 2), nn.Linear(2, 1, bias=False)
        self.to_empty(device="cpu")
        with torch.no_grad():
            self.embedding.weight.copy_(self.weights.unsqueeze(1) * direction)
            self.output_layer.weight.copy_(direction)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """What happened."""
        embeddings = self.embedding(batch.inputs) if embeddings is None else embeddings
        count = batch.content_mask.sum(1, keepdim=True).clamp(min=1)
        if attention is None:
            attention = (batch.content_mask.to(embeddings) / count)[:, None, None, None]
        spoken = self.output_layer(embeddings) * batch.mask.unsqueeze(-1)
        logits = (count * attention[:, 0, 0, 0]).unsqueeze(-1) * spoken
        return Trace(embeddings, embeddings, attention, logits.sum(1))

    def ground_truth(self, batch: Batch, target: Tensor) -> Attribution:
        """What each unit adds to the logit of the target, or to the number: the right explanation."""
        sign = (2.0 * target - 1.0 if self.task.num_classes > 1 else torch.ones(len(batch))).unsqueeze(1)
        scores = sign * self.weights[batch.inputs]
        return Attribution(scores.double().masked_fill(~batch.content_mask, 0.0), batch.content_mask)


def random_texts(lengths: Iterable[int], seed: int = 0) -> Batch:
    """Texts of invented words between a first and a last special symbol."""
    counts = list(lengths)
    generator = Generator().manual_seed(seed)
    inputs = torch.zeros(len(counts), max(counts) + 2, dtype=torch.int64)
    words = torch.full_like(inputs, -1)
    for row, count in enumerate(counts):
        ids = torch.randint(FIRST_WORD, VOCAB_SIZE, (count,), generator=generator)
        inputs[row, : count + 2] = torch.cat((torch.tensor([SOS]), ids, torch.tensor([EOS])))
        words[row, 1 : count + 1] = torch.arange(count)
    uids = tuple(f"text-{row}" for row in range(len(counts)))
    return Batch(uids, inputs, inputs != PAD, torch.zeros_like(inputs), words, unk_id=UNK, mask_id=MASK)
