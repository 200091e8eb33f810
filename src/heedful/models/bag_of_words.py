"""A linear bag of words: the model on which every attribution is known.

logit = sum over words of n a_t (v . e_t) with n words and attention a, which is uniform unless another is passed in.
Shapley values, integrated gradients and gradient x input are then v . e_t itself, up to a common factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from heedful.tasks import BinaryClassification
from heedful.types import Architecture, Attribution, Batch, Model, Task, Trace, UserError

VOCAB_SIZE = 30
PAD, UNK, SOS, EOS, MASK, FIRST_WORD = range(6)


@dataclass(frozen=True)
class WordWeightSum(Architecture):
    """logit of class 1 = sum of the weights of all words, where a word's weight is the first number of its vector."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> LinearBagOfWords:
        """The model over these vectors, zero for padding; nothing is trained."""
        if embeddings is None or not len(embeddings):
            raise UserError("WordWeightSum needs word vectors that hold the weights, as GroundTruthEmbeddings gives")
        if task != BinaryClassification():
            raise UserError("WordWeightSum needs two classes")
        table = embeddings.clone()
        table[0] = 0
        return LinearBagOfWords(task, table, torch.eye(1, table.shape[1], dtype=table.dtype)[0])


class LinearBagOfWords(Model):
    """Adds up `v . e_t` over the words; special tokens count nothing.

    Args:
        table: word vectors e `[vocabulary width]`.
        direction: v `[width]`.
    """

    direction: Tensor

    def __init__(self, task: Task, table: Tensor, direction: Tensor) -> None:
        super().__init__()
        self.task = task
        self.table = nn.Parameter(table)
        self.register_buffer("direction", direction, persistent=False)

    @staticmethod
    def random(task: Task, seed: int = 0) -> LinearBagOfWords:
        """A model with random weights of alternating sign for the words of `random_texts`."""
        signs = 1.0 - 2.0 * (torch.arange(VOCAB_SIZE) % 2)
        weights = signs * (0.2 + torch.rand(VOCAB_SIZE, generator=Generator().manual_seed(seed)))
        weights[:FIRST_WORD] = 0.0
        direction = torch.tensor([0.6, 0.8])
        return LinearBagOfWords(task, weights.unsqueeze(1) * direction, direction)

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The sum; attention `[batch 1 1 1 unit]` that is passed in weighs each word times the number of words."""
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        content = batch.content_mask.to(embeddings.dtype)
        count = content.sum(1, keepdim=True).clamp(min=1)
        if attention is None:
            attention = (content / count)[:, None, None, None]
        shares = attention.mean((1, 2, 3)) * count
        logits = ((embeddings @ self.direction) * shares * content).sum(1, keepdim=True)
        return Trace(embeddings, embeddings, attention, logits)

    def ground_truth(self, batch: Batch, target: Tensor) -> Attribution:
        """The contribution of each word to the logit of the target, or to the predicted number."""
        sign = (2.0 * target - 1.0 if self.task.num_classes > 1 else torch.ones(len(batch))).unsqueeze(1)
        scores = sign * (self.table.detach() @ self.direction)[batch.inputs]
        return Attribution(scores.double().masked_fill(~batch.content_mask, 0.0), batch.content_mask)


def random_texts(lengths: Iterable[int], seed: int = 0) -> Batch:
    """Texts of random words between a start and an end token."""
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
