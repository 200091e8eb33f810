"""Attention: one score per hidden state, with or without a question; normalisers turn scores into weights.

Weights are exactly zero off the mask and sum to one on it. With H the size of hidden states (Jain & Wallace):
additive u_t = v . tanh(W h_t + b [+ W2 Q + b2]), W: H -> H/2; dot u_t = q . h_t / sqrt(H), or Q instead of q.

Pooled models: embed, encode, attend, decode, for one text, a compared pair, or a question over a document.

`Pooled(BiLSTM(128), Additive())` is the plan, `PooledModel` what it builds. All parts of an example stand on
one unit axis; each part is shifted to the left, encoded by itself, and its states are put back in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, cast

import entmax
import torch
from torch import Generator, Tensor, nn

from heedful.models.encoders import Encoder, EncoderModule, initialize_weights, meta_device
from heedful.models.fast_leave_one_out import leave_one_out_logits
from heedful.models.input_forms import DecoderInput, InputFormat, Readout, SingleInput, encode_part, left_align
from heedful.types import Architecture, Batch, Model, Task, Trace, UserError


class AttentionModule(nn.Module, ABC):
    """Scores hidden states."""

    @abstractmethod
    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        """Scores `[batch unit]` of states `[batch unit dim]`, under the question `[batch dim]` if any."""

    if TYPE_CHECKING:

        def __call__(self, hidden: Tensor, question: Tensor | None = None) -> Tensor: ...


class Attention(ABC):
    """A frozen description of an attention mechanism."""

    @abstractmethod
    def build(self, dim: int, *, with_question: bool) -> AttentionModule:
        """The module for hidden states of size `dim`, without weights; `asked`: conditioned on a question."""


@dataclass(frozen=True)
class Additive(Attention):
    """u_t = v . tanh(W h_t + b), and with a question u_t = v . tanh(W h_t + b + W2 Q + b2)."""

    def build(self, dim: int, *, with_question: bool) -> AttentionModule:
        if dim < 2:
            raise UserError("Additive attention halves the hidden size: give the encoder a width of at least 2")
        with meta_device():
            return _AdditiveModule(dim, with_question=with_question)


@dataclass(frozen=True)
class Dot(Attention):
    """u_t = q . h_t / sqrt(H) with a learned q; with a question Q takes the place of q."""

    def build(self, dim: int, *, with_question: bool) -> AttentionModule:
        with meta_device():
            return _QuestionDotModule() if with_question else _LearnedDotModule(dim)


class _AdditiveModule(AttentionModule):
    def __init__(self, dim: int, *, with_question: bool) -> None:
        super().__init__()
        self.hidden_projection = nn.Linear(dim, dim // 2)
        self.question_projection = nn.Linear(dim, dim // 2) if with_question else None
        self.score = nn.Linear(dim // 2, 1, bias=False)

    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        inner: Tensor = self.hidden_projection(hidden)
        if self.question_projection is not None:
            inner = inner + self.question_projection(question).unsqueeze(1)
        scores: Tensor = self.score(torch.tanh(inner))
        return scores.squeeze(-1)


class _LearnedDotModule(AttentionModule):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        scores: Tensor = self.score(hidden)
        return scores.squeeze(-1) / sqrt(hidden.shape[-1])


class _QuestionDotModule(AttentionModule):
    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        if question is None:
            raise ValueError("this attention was built with a question and was given none")
        return torch.bmm(hidden, question.unsqueeze(-1)).squeeze(-1) / sqrt(hidden.shape[-1])


class Normalizer(ABC):
    """A frozen value that turns scores into weights."""

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights `[... unit]`: exactly zero off the mask, each row sums to one."""
        empty = (~mask.any(-1)).nonzero()
        if len(empty):
            row = empty[0].tolist()
            raise UserError(f"row {row} has no unit to attend to: leave out examples without a word")
        return self.weights(scores, mask)

    @abstractmethod
    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights where every row of the mask has a real unit."""


@dataclass(frozen=True)
class Softmax(Normalizer):
    """a_t = exp(u_t / temperature) / sum over real units."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"Softmax(temperature={self.temperature}): the temperature must be above 0")

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores / self.temperature).masked_fill(~mask, -torch.inf).softmax(-1)


@dataclass(frozen=True)
class Sparsemax(Normalizer):
    """The point of the simplex nearest to the scores (Martins & Astudillo 2016); many weights are zero."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights: Tensor = entmax.sparsemax(scores.masked_fill(~mask, -torch.inf), dim=-1)
        return weights


@dataclass(frozen=True)
class Entmax(Normalizer):
    """Between softmax (alpha -> 1) and sparsemax (alpha = 2); Peters, Niculae & Martins 2019."""

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not self.alpha > 1:
            raise UserError(f"Entmax(alpha={self.alpha}): alpha must be above 1; for alpha = 1 take Softmax()")

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        real = scores.masked_fill(~mask, -torch.inf)
        exact = self.alpha == 1.5
        weights: Tensor = entmax.entmax15(real, dim=-1) if exact else entmax.entmax_bisect(real, self.alpha, dim=-1)
        return weights


@dataclass(frozen=True)
class UniformWeights(Normalizer):
    """a_t = 1 / number of real units, whatever the scores."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights = mask.to(scores.dtype)
        return weights / weights.sum(-1, keepdim=True)


PAD_ID = 0


@dataclass(frozen=True)
class Attentive(Architecture):
    """Embed, encode, attend, decode (Jain & Wallace 2019, Wiegreffe & Pinter 2019, Neely et al. 2022)."""

    encoder: Encoder
    attention: Attention
    normalizer: Normalizer = field(default_factory=Softmax)
    input_format: InputFormat = field(default_factory=SingleInput)

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> AttentiveModel:
        """A fresh model whose embedding tables start at `embeddings`, with a zero row for padding."""
        if embeddings is None:
            raise UserError("Pooled models read word ids and need a starting table of vectors: batch with Words()")
        model = initialize_weights(AttentiveModel(task, self, embeddings.shape), generator)
        model.initialize_embeddings(embeddings)
        return model

    def describe(self) -> dict[str, str]:
        """The class names of encoder and attention in lower case."""
        return {"encoder": type(self.encoder).__name__.lower(), "attention": type(self.attention).__name__.lower()}


class AttentiveModel(Model):
    """A pooled model; parameters are named `tables.`, `encoders.`, `attention.` and `decoder.`."""

    def __init__(self, task: Task, architecture: Attentive, table: Iterable[int]) -> None:
        super().__init__()
        vocabulary, width = table
        shape = architecture.input_format
        readers = range(len(set(shape.part_encoders)))
        encoders = [architecture.encoder.build(width) for _ in readers]
        dim = encoders[0].dim
        self.task, self.input_format, self.normalizer = task, shape, architecture.normalizer
        with meta_device():
            self.embedding_tables = nn.ModuleList(nn.Embedding(vocabulary, width, padding_idx=PAD_ID) for _ in readers)
        self.encoders = nn.ModuleList(encoders)
        self.attention = architecture.attention.build(dim, with_question=shape.has_question)
        self.decoder = shape.build(dim, task.num_outputs)

    @torch.no_grad()
    def initialize_embeddings(self, embeddings: Tensor) -> None:
        """Sets every embedding table to these vectors; the row of padding is zero."""
        for table in self.embedding_tables:
            weight = cast(nn.Embedding, table).weight
            weight.copy_(embeddings)
            weight[PAD_ID].zero_()

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
        reading = self.decoder_input(batch, hidden)
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
        return self.decoder.readout(self.decoder_input(batch, hidden))

    def leave_one_out_logits(self, batch: Batch) -> Tensor:
        """Logits `[batch unit output]` of each text without each of its `deletable` units; states are reused."""
        return leave_one_out_logits(self, batch)

    def embed(self, batch: Batch) -> Tensor:
        """Word vectors `[batch unit width]`, zero on padding."""
        parts = zip(self.input_format.part_encoders, self.input_format.part_masks(batch), strict=True)
        # Outside its part a table looks up padding, which is zero and takes no gradient: parts simply add up.
        return _sum_tensors(
            self.embedding_tables[reader](batch.inputs.masked_fill(~mask, PAD_ID)) for reader, mask in parts
        )

    def encode(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """Hidden states `[batch unit dim]`, each part encoded by itself; zero on padding."""
        parts = self.input_format.part_masks(batch)
        if len(parts) == 1:
            return self.get_encoder(0)(embeddings, batch.mask)
        return _sum_tensors(
            encode_part(self.get_encoder(reader), embeddings, mask)
            for reader, mask in zip(self.input_format.part_encoders, parts, strict=True)
        )

    def get_encoder(self, index: int) -> EncoderModule:
        """The encoder with this number; `shape.readers` says which part it reads."""
        return cast(EncoderModule, self.encoders[index])

    def decoder_input(self, batch: Batch, hidden: Tensor) -> DecoderInput:
        """What the decoder reads beside attention: states, the question's summary, candidates."""
        question = None
        if self.input_format.has_question:
            mask = self.input_format.part_masks(batch)[-1]
            _require_nonempty(mask, batch, "a question")
            left, real = left_align(hidden, mask)
            question = self.get_encoder(self.input_format.part_encoders[-1]).summary(left, real)
        return DecoderInput(hidden, question, batch.candidates)

    def _attend(self, batch: Batch, decoder_input: DecoderInput) -> tuple[Tensor, Tensor]:
        """Scores, zero off the support, and weights, both `[batch 1 1 query unit]`."""
        support = self.input_format.support(batch)
        _require_nonempty(support, batch, "a word to attend to")
        scores = self.attention(decoder_input.hidden, decoder_input.question).unsqueeze(1).expand_as(support)
        weights = self.normalizer(scores, support)
        return scores.masked_fill(~support, 0.0)[:, None, None], weights[:, None, None]


def _sum_tensors(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    for other in others:
        first = first + other
    return first


def _require_nonempty(mask: Tensor, batch: Batch, what: str) -> None:
    empty = (~mask.any(-1)).nonzero()
    if len(empty):
        uid = batch.uids[int(empty[0, 0])]
        raise UserError(f"example {uid!r} has not got {what}: leave it out, or mend its text")
