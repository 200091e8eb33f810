"""Input forms of attentive models: which encoder reads which part, what is attended to, how logits are decoded.

`SingleInput`: one text, linear decoder. `QuestionAnswering`: a document under a question (Jain & Wallace). `PairInput`:
two texts of equal rank (Neely et al.). A decoder has two interfaces: the forward pass, and an `AttentionReadout`,
made once per batch, that evaluates many attention distributions over the same hidden states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from heedful.models.encoders import EncoderModule, gather_vectors
from heedful.types import Batch


def left_order(mask: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the positions of its selected units, in order, and which of these positions are real."""
    width = max(1, int(mask.sum(1).max()))
    order = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)[:, :width]
    return order, mask.gather(1, order)


def encode_part(encoder: EncoderModule, embeddings: Tensor, mask: Tensor) -> Tensor:
    """Hidden states of one part on the unit axis of the batch, zero elsewhere."""
    order, real = left_order(mask)
    states = encoder(gather_vectors(embeddings, order), real)
    index = order.unsqueeze(-1).expand_as(states)
    return states.new_zeros(*mask.shape, encoder.dim).scatter(1, index, states)


@dataclass(frozen=True)
class DecoderInput:
    """What a decoder reads besides attention.

    Args:
        hidden: `[batch unit dim]`.
        question: summary of the question `[batch dim]`, for `QuestionAnswering` only.
        candidates: admitted classes `[batch output]`; None admits all.
    """

    hidden: Tensor
    question: Tensor | None
    candidates: Tensor | None

    def context_vectors(self, attention: Tensor) -> Tensor:
        """c = sum_t a_t h_t, `[batch ... dim]` for attention `[batch ... unit]`."""
        rows = attention.flatten(1, -2)
        return torch.bmm(rows, self.hidden).reshape(*attention.shape[:-1], -1)

    def mask_candidates(self, logits: Tensor) -> Tensor:
        """Logits `[batch ... output]` with -inf on the classes that an example does not admit."""
        if self.candidates is None:
            return logits
        between = (1,) * (logits.dim() - 2)
        excluded = ~self.candidates.bool().reshape(len(logits), *between, -1)
        return logits.masked_fill(excluded, -torch.inf)


AttentionReadout = Callable[[Tensor], Tensor]
"""Logits `[batch count output]` of attention `[batch count query unit]`, all over the same hidden states."""


class Decoder(nn.Module, ABC):
    """Turns hidden states and attention into logits."""

    @abstractmethod
    def forward(self, inputs: DecoderInput, attention: Tensor) -> Tensor:
        """Logits `[batch output]` under attention `[batch query unit]`."""

    @abstractmethod
    def readout(self, inputs: DecoderInput) -> AttentionReadout:
        """The same map for many attention distributions at once."""

    if TYPE_CHECKING:

        def __call__(self, inputs: DecoderInput, attention: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LinearReadout:
    """logit(a) = sum_t a_t scores_t + offset: each attention costs units, not units x dim.

    Args:
        scores: W h_t, `[batch unit output]`.
        offset: b, `[output]`.
    """

    scores: Tensor
    offset: Tensor
    inputs: DecoderInput

    def __call__(self, attention: Tensor) -> Tensor:
        return self.inputs.mask_candidates(torch.bmm(attention[:, :, 0], self.scores) + self.offset)


class _LinearDecoder(Decoder):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.output_layer = nn.Linear(dim, outputs)

    def forward(self, inputs: DecoderInput, attention: Tensor) -> Tensor:
        return inputs.mask_candidates(self.output_layer(inputs.context_vectors(attention[:, 0:1]).squeeze(1)))

    def readout(self, inputs: DecoderInput) -> AttentionReadout:
        return LinearReadout(inputs.hidden @ self.output_layer.weight.t(), self.output_layer.bias, inputs)


class _QuestionDecoder(Decoder):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.document = nn.Linear(dim, dim // 2)
        self.question = nn.Linear(dim, dim // 2)
        self.output_layer = nn.Linear(dim // 2, outputs)

    def forward(self, inputs: DecoderInput, attention: Tensor) -> Tensor:
        context = inputs.context_vectors(attention[:, 0:1]).squeeze(1)
        inner = self.document(context) + self.question(inputs.question)
        return inputs.mask_candidates(self.output_layer(torch.tanh(inner)))

    def readout(self, inputs: DecoderInput) -> AttentionReadout:
        # The bias counts once, not once per unit: the attention need not sum to one.
        projected = inputs.hidden @ self.document.weight.t()
        question = (self.question(inputs.question) + self.document.bias).unsqueeze(1)

        def logits(attention: Tensor) -> Tensor:
            inner = torch.bmm(attention[:, :, 0], projected) + question
            return inputs.mask_candidates(self.output_layer(torch.tanh(inner)))

        return logits


class _PairDecoder(Decoder):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.output_layer = nn.Linear(4 * dim, outputs)

    def forward(self, inputs: DecoderInput, attention: Tensor) -> Tensor:
        first, second = inputs.context_vectors(attention).unbind(-2)
        features = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        return inputs.mask_candidates(self.output_layer(features))

    def readout(self, inputs: DecoderInput) -> AttentionReadout:
        # The features are not linear in attention; the forward pass takes any number of distributions.
        return partial(self, inputs)


class InputFormat(ABC):
    """A frozen description of how a model reads the parts of an example.

    `part_encoders` gives the number of the (embedding table, encoder) that reads each part; equal numbers share one.
    With `has_question`, the last part is a question that conditions attention and decoder. `decoder` is built with the
    size of the hidden states and the number of outputs.
    """

    part_encoders: ClassVar[tuple[int, ...]]
    has_question: ClassVar[bool] = False
    decoder: ClassVar[type[Decoder]]

    def part_masks(self, batch: Batch) -> tuple[Tensor, ...]:
        """The units of each part that is encoded separately `[batch unit]`, special tokens included."""
        if len(self.part_encoders) == 1:
            return (batch.mask,)
        return tuple(batch.mask & (batch.segments == part) for part in range(len(self.part_encoders)))

    @abstractmethod
    def support(self, batch: Batch) -> Tensor:
        """Where attention may be, `[batch query unit]`."""


@dataclass(frozen=True)
class SingleInput(InputFormat):
    """All parts read as one text; logits = W sum_t a_t h_t + b."""

    part_encoders: ClassVar[tuple[int, ...]] = (0,)
    decoder: ClassVar[type[Decoder]] = _LinearDecoder

    def support(self, batch: Batch) -> Tensor:
        return batch.content_mask.unsqueeze(1)


@dataclass(frozen=True)
class QuestionAnswering(InputFormat):
    """Attention over part 0 under the summary Q of part 1; logits = V tanh(Wp c + Wq Q), Wp and Wq: H -> H/2.

    Each part has its own embedding table and encoder. Jain & Wallace use it for SNLI: premise under hypothesis.
    """

    part_encoders: ClassVar[tuple[int, ...]] = (0, 1)
    has_question: ClassVar[bool] = True
    decoder: ClassVar[type[Decoder]] = _QuestionDecoder

    def support(self, batch: Batch) -> Tensor:
        return (batch.content_mask & (batch.segments == 0)).unsqueeze(1)


@dataclass(frozen=True)
class PairInput(InputFormat):
    """One table, encoder and attention for both parts; logits = W [c1; c2; |c1 - c2|; c1 * c2] + b.

    Attention has two queries: row 0 is a distribution over part 0, row 1 over part 1.
    """

    part_encoders: ClassVar[tuple[int, ...]] = (0, 0)
    decoder: ClassVar[type[Decoder]] = _PairDecoder

    def support(self, batch: Batch) -> Tensor:
        return torch.stack([batch.content_mask & (batch.segments == part) for part in (0, 1)], dim=1)
