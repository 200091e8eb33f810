"""Attentive classifiers: embed, encode, attend, decode, for one text, a pair of texts or a question over a document.

`Attentive(BiLSTM(128), Additive())` is the architecture, `AttentiveModel` the model that it builds. With H the size of
the hidden states (Jain & Wallace), additive attention is u_t = v . tanh(W h_t + b [+ W2 Q + b2]) with W: H -> H/2, and
dot attention u_t = q . h_t / sqrt(H), or Q instead of q. A normalizer turns the scores u into weights that are exactly
zero off the mask and sum to one on it.

`LinearBagOfWords` is the model on which every attribution is known: logit = sum over words of n a_t (v . e_t) with n
words and attention a, which is uniform unless another is passed in. Shapley values, integrated gradients and gradient x
input are then v . e_t itself, up to a common factor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from math import sqrt
from typing import Annotated, cast

import entmax
import torch
from torch import Generator, Tensor, nn

from heedful.models.encoders import Encoder, EncoderModule, gather_vectors, initialize_weights
from heedful.models.fast_leave_one_out import fast_leave_one_out_logits
from heedful.models.input_forms import AttentionReadout, DecoderInput, InputFormat, SingleInput, encode_part, left_order
from heedful.option_bounds import Bounds, check_options
from heedful.tasks import BinaryClassification
from heedful.types import Architecture, Attribution, Batch, Model, Task, Trace, UserError


class Attention(ABC):
    """A frozen description of an attention mechanism."""

    @abstractmethod
    def build(self, dim: int, *, with_question: bool) -> nn.Module:
        """A module from states `[batch unit dim]`, and the question `[batch dim]` if any, to scores `[batch unit]`."""


@dataclass(frozen=True)
class Additive(Attention):
    """u_t = v . tanh(W h_t + b), and with a question u_t = v . tanh(W h_t + b + W2 Q + b2)."""

    def build(self, dim: int, *, with_question: bool) -> nn.Module:
        if dim < 2:
            raise UserError("additive attention halves the hidden size: set the width of the encoder to at least 2")
        return _AdditiveModule(dim, with_question=with_question)


@dataclass(frozen=True)
class Dot(Attention):
    """u_t = q . h_t / sqrt(H) with a learned q; a question Q replaces q."""

    def build(self, dim: int, *, with_question: bool) -> nn.Module:
        return _DotModule(dim, with_question=with_question)


class _AdditiveModule(nn.Module):
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


class _DotModule(nn.Module):
    def __init__(self, dim: int, *, with_question: bool) -> None:
        super().__init__()
        self.score = None if with_question else nn.Linear(dim, 1, bias=False)

    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        if self.score is not None:
            scores: Tensor = self.score(hidden)
        elif question is not None:
            scores = torch.bmm(hidden, question.unsqueeze(-1))
        else:
            raise ValueError("this attention needs a question and got none")
        return scores.squeeze(-1) / sqrt(hidden.shape[-1])


class Normalizer(ABC):
    """A frozen map from scores to weights."""

    @abstractmethod
    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Weights `[... unit]`, exactly zero off the mask, for a mask with a real unit in every row."""


@dataclass(frozen=True)
class Softmax(Normalizer):
    """a_t = exp(u_t / temperature) / sum over real tokens."""

    temperature: Annotated[float, Bounds(above=0)] = 1.0

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores / self.temperature).masked_fill(~mask, -torch.inf).softmax(-1)


@dataclass(frozen=True)
class Sparsemax(Normalizer):
    """Euclidean projection of the scores onto the simplex (Martins & Astudillo 2016); many weights are zero."""

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights: Tensor = entmax.sparsemax(scores.masked_fill(~mask, -torch.inf), dim=-1)
        return weights


@dataclass(frozen=True)
class Entmax(Normalizer):
    """Between softmax (alpha -> 1) and sparsemax (alpha = 2); Peters, Niculae & Martins 2019."""

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not self.alpha > 1:
            raise UserError(f"Entmax(alpha={self.alpha}): alpha must be above 1; use Softmax() for alpha = 1")

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        real = scores.masked_fill(~mask, -torch.inf)
        exact = self.alpha == 1.5
        weights: Tensor = entmax.entmax15(real, dim=-1) if exact else entmax.entmax_bisect(real, self.alpha, dim=-1)
        return weights


@dataclass(frozen=True)
class UniformWeights(Normalizer):
    """a_t = 1 / number of real tokens, for any scores."""

    def __call__(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights = mask.to(scores.dtype)
        return weights / weights.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Attentive(Architecture):
    """Embed, encode, attend, decode (Jain & Wallace 2019, Wiegreffe & Pinter 2019, Neely et al. 2022)."""

    encoder: Encoder
    attention: Attention
    normalizer: Normalizer = field(default_factory=Softmax)
    input_format: InputFormat = field(default_factory=SingleInput)

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> AttentiveModel:
        """A new model whose embedding tables are initialised with `embeddings`, with a zero row for padding."""
        if embeddings is None:
            raise UserError("attentive models read word ids and need word vectors: use the tokenization Words()")
        with torch.device("meta"):
            model = AttentiveModel(task, self, embeddings.shape)
        initialize_weights(model, generator)
        model.initialize_embeddings(embeddings)
        return model

    def describe(self) -> dict[str, str]:
        """The class names of encoder and attention in lower case."""
        return {"encoder": type(self.encoder).__name__.lower(), "attention": type(self.attention).__name__.lower()}


class AttentiveModel(Model):
    """Embedding tables, encoders, attention and decoder."""

    def __init__(self, task: Task, architecture: Attentive, table: Iterable[int]) -> None:
        super().__init__()
        vocabulary, width = table
        self.task, self.input_format, self.normalizer = task, architecture.input_format, architecture.normalizer
        count = len(set(self.input_format.part_encoders))
        encoders = [architecture.encoder.build(width) for _ in range(count)]
        self.embedding_tables = nn.ModuleList(nn.Embedding(vocabulary, width, padding_idx=_PAD) for _ in range(count))
        self.encoders = nn.ModuleList(encoders)
        self.attention = architecture.attention.build(encoders[0].dim, with_question=self.input_format.has_question)
        self.decoder = self.input_format.decoder(encoders[0].dim, task.num_outputs)

    @torch.no_grad()
    def initialize_embeddings(self, embeddings: Tensor) -> None:
        """Set every embedding table to these vectors; the row of padding is zero."""
        for table in self.embedding_tables:
            weight = cast(nn.Embedding, table).weight
            weight.copy_(embeddings)
            weight[_PAD].zero_()

    def forward(
        self,
        batch: Batch,
        *,
        embeddings: Tensor | None = None,
        hidden: Tensor | None = None,
        attention: Tensor | None = None,
    ) -> Trace:
        """The trace of a batch; `hidden` skips the encoder, `attention` the attention module."""
        embeddings = self.embed(batch) if embeddings is None else embeddings
        hidden = self.encode(batch, embeddings) if hidden is None else hidden
        inputs = self.decoder_input(batch, hidden)
        scores = None
        if attention is None:
            scores, attention = self._attend(batch, inputs)
        logits = self.decoder(inputs, attention[:, 0, 0])
        return Trace(embeddings, hidden, attention, logits, scores)

    def readout(self, batch: Batch, hidden: Tensor) -> AttentionReadout:
        """The map from attention to logits over these hidden states, for many attention distributions."""
        return self.decoder.readout(self.decoder_input(batch, hidden))

    def leave_one_out_logits(self, batch: Batch) -> Tensor:
        """Logits `[batch unit output]` of each text without each of its deletable tokens; states are reused."""
        return fast_leave_one_out_logits(self, batch)

    def embed(self, batch: Batch) -> Tensor:
        """Word vectors `[batch unit width]`, zero on padding."""
        parts = zip(self.input_format.part_encoders, self.input_format.part_masks(batch), strict=True)
        # Outside its part a table looks up padding, which is zero and takes no gradient, so parts add up.
        vectors: Iterable[Tensor] = (
            self.embedding_tables[number](batch.inputs.masked_fill(~mask, _PAD)) for number, mask in parts
        )
        return reduce(torch.add, vectors)

    def encode(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """Hidden states `[batch unit dim]`, each part encoded separately; zero on padding."""
        parts = self.input_format.part_masks(batch)
        if len(parts) == 1:
            return self.get_encoder(0)(embeddings, batch.mask)
        numbered = zip(self.input_format.part_encoders, parts, strict=True)
        return reduce(torch.add, (encode_part(self.get_encoder(number), embeddings, mask) for number, mask in numbered))

    def get_encoder(self, index: int) -> EncoderModule:
        """The encoder with this number of `InputFormat.part_encoders`."""
        return cast(EncoderModule, self.encoders[index])

    def decoder_input(self, batch: Batch, hidden: Tensor) -> DecoderInput:
        """What the decoder reads besides attention: states, summary of the question, candidates."""
        question = None
        if self.input_format.has_question:
            mask = self.input_format.part_masks(batch)[-1]
            _require_nonempty(mask, batch, "question")
            order, real = left_order(mask)
            question = self.get_encoder(self.input_format.part_encoders[-1]).summary(
                gather_vectors(hidden, order), real
            )
        return DecoderInput(hidden, question, batch.candidates)

    def _attend(self, batch: Batch, decoder_input: DecoderInput) -> tuple[Tensor, Tensor]:
        """Scores, zero off the support, and weights, both `[batch 1 1 query unit]`."""
        support = self.input_format.support(batch)
        _require_nonempty(support, batch, "word to attend to")
        scores = self.attention(decoder_input.hidden, decoder_input.question).unsqueeze(1).expand_as(support)
        weights = self.normalizer(scores, support)
        return scores.masked_fill(~support, 0.0)[:, None, None], weights[:, None, None]


def _require_nonempty(mask: Tensor, batch: Batch, what: str) -> None:
    empty = (~mask.any(-1)).nonzero()
    if len(empty):
        uid = batch.uids[int(empty[0, 0])]
        raise UserError(f"example {uid!r} has no {what}: remove it or correct its text")


VOCAB_SIZE = 30
_PAD, _UNK, _SOS, _EOS, MASK, FIRST_WORD = range(6)


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
        inputs[row, : count + 2] = torch.cat((torch.tensor([_SOS]), ids, torch.tensor([_EOS])))
        words[row, 1 : count + 1] = torch.arange(count)
    uids = tuple(f"text-{row}" for row in range(len(counts)))
    return Batch(uids, inputs, inputs != _PAD, torch.zeros_like(inputs), words, unk_id=_UNK, mask_id=MASK)
