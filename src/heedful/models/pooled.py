"""Pooled models: embed, encode, attend, decode, for one text, a compared pair, or a question over a document.

`Pooled(BiLSTM(128), Additive())` is the plan, `PooledModel` what it builds. All parts of an example stand on
one unit axis; each part is shifted to the left, encoded by itself, and its states are put back in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Generator, Tensor, nn

from heedful.core.types import Batch, Model, Plan, Task, Trace, UserError
from heedful.models.aligning import encoded_in_place, to_the_left
from heedful.models.attention import Attention, Normaliser, Softmax
from heedful.models.deletion import without_each
from heedful.models.encoders import Encoder, EncoderModule
from heedful.models.initialising import initialised, unfilled
from heedful.models.shapes import OneText, Reading, Readout, Shape

PADDING = 0


@dataclass(frozen=True)
class Pooled(Plan):
    """Embed, encode, attend, decode (Jain & Wallace 2019, Wiegreffe & Pinter 2019, Neely et al. 2022)."""

    encoder: Encoder
    attention: Attention
    normaliser: Normaliser = field(default_factory=Softmax)
    shape: Shape = field(default_factory=OneText)

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> PooledModel:
        """A fresh model whose embedding tables start at `embeddings`, with a zero row for padding."""
        if embeddings is None:
            raise UserError("Pooled models read word ids and need a starting table of vectors: batch with Words()")
        model = initialised(PooledModel(task, self, embeddings.shape), generator)
        model.start_tables(embeddings)
        return model


class PooledModel(Model):
    """A pooled model; parameters are named `tables.`, `encoders.`, `attention.` and `decoder.`."""

    def __init__(self, task: Task, plan: Pooled, table: Iterable[int]) -> None:
        super().__init__()
        vocabulary, width = table
        shape = plan.shape
        readers = range(len(set(shape.readers)))
        encoders = [plan.encoder.build(width) for _ in readers]
        dim = encoders[0].dim
        self.task, self.shape, self.normaliser = task, shape, plan.normaliser
        with unfilled():
            self.tables = nn.ModuleList(nn.Embedding(vocabulary, width, padding_idx=PADDING) for _ in readers)
        self.encoders = nn.ModuleList(encoders)
        self.attention = plan.attention.build(dim, asked=shape.asks)
        self.decoder = shape.build(dim, task.outputs)

    @torch.no_grad()
    def start_tables(self, embeddings: Tensor) -> None:
        """Sets every embedding table to these vectors; the row of padding is zero."""
        for table in self.tables:
            weight = cast(nn.Embedding, table).weight
            weight.copy_(embeddings)
            weight[PADDING].zero_()

    def forward(
        self,
        batch: Batch,
        *,
        embeddings: Tensor | None = None,
        hidden: Tensor | None = None,
        attention: Tensor | None = None,
    ) -> Trace:
        """What happened; with `hidden` given the encoder rests, with `attention` the attention module."""
        embeddings = self.embed(batch) if embeddings is None else embeddings
        hidden = self.encode(batch, embeddings) if hidden is None else hidden
        reading = self.reading(batch, hidden)
        scores = None
        if attention is None:
            scores, attention = self._attend(batch, reading)
        logits = self.decoder(reading, attention[:, 0, 0])
        return Trace(embeddings, hidden, attention, logits, scores)

    if TYPE_CHECKING:

        def __call__(
            self,
            batch: Batch,
            *,
            embeddings: Tensor | None = None,
            hidden: Tensor | None = None,
            attention: Tensor | None = None,
        ) -> Trace: ...

    def readout(self, batch: Batch, hidden: Tensor) -> Readout:
        """The map from attention to logits over these hidden states, to be asked many times."""
        return self.decoder.readout(self.reading(batch, hidden))

    def without_each(self, batch: Batch) -> Tensor:
        """Logits `[batch unit output]` of each text without each of its `deletable` units; states are reused."""
        return without_each(self, batch)

    def embed(self, batch: Batch) -> Tensor:
        """Word vectors `[batch unit width]`, zero on padding."""
        parts = zip(self.shape.readers, self.shape.parts(batch), strict=True)
        # Outside its part a table looks up padding, which is zero and takes no gradient: parts simply add up.
        return _total(self.tables[reader](batch.inputs.masked_fill(~mask, PADDING)) for reader, mask in parts)

    def encode(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """Hidden states `[batch unit dim]`, each part encoded by itself; zero on padding."""
        parts = self.shape.parts(batch)
        if len(parts) == 1:
            return self.encoder_of(0)(embeddings, batch.mask)
        return _total(
            encoded_in_place(self.encoder_of(reader), embeddings, mask)
            for reader, mask in zip(self.shape.readers, parts, strict=True)
        )

    def encoder_of(self, reader: int) -> EncoderModule:
        """The encoder with this number; `shape.readers` says which part it reads."""
        return cast(EncoderModule, self.encoders[reader])

    def reading(self, batch: Batch, hidden: Tensor) -> Reading:
        """What the decoder reads beside attention: states, the question's summary, candidates."""
        question = None
        if self.shape.asks:
            mask = self.shape.parts(batch)[-1]
            _refuse_empty(mask, batch, "a question")
            left, real = to_the_left(hidden, mask)
            question = self.encoder_of(self.shape.readers[-1]).summary(left, real)
        return Reading(hidden, question, batch.candidates)

    def _attend(self, batch: Batch, reading: Reading) -> tuple[Tensor, Tensor]:
        """Scores, zero off the support, and weights, both `[batch 1 1 query unit]`."""
        support = self.shape.support(batch)
        _refuse_empty(support, batch, "a word to attend to")
        scores = self.attention(reading.hidden, reading.question).unsqueeze(1).expand_as(support)
        weights = self.normaliser(scores, support)
        return scores.masked_fill(~support, 0.0)[:, None, None], weights[:, None, None]


def _total(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    for other in others:
        first = first + other
    return first


def _refuse_empty(mask: Tensor, batch: Batch, what: str) -> None:
    empty = (~mask.any(-1)).nonzero()
    if len(empty):
        uid = batch.uids[int(empty[0, 0])]
        raise UserError(f"example {uid!r} has not got {what}: leave it out, or mend its text")
