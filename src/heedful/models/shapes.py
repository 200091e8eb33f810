"""Shapes of pooled models: which encoder reads which part, what is attended to, and how logits are decoded.

`OneText`: one text, linear decoder. `Asked`: a document under a question (Jain & Wallace). `Compared`: two
texts of equal standing (Neely et al.). A decoder reads attention two ways: in the forward pass through
contexts, and through a `Readout`, made once per batch, that answers for many attentions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from heedful.core.types import Batch
from heedful.models.initialising import unfilled


@dataclass(frozen=True)
class Reading:
    """What stays the same while attention changes.

    Args:
        hidden: `[batch unit dim]`.
        question: summary of the question `[batch dim]`, for `Asked` only.
        candidates: answers admitted `[batch output]`; None admits all.
    """

    hidden: Tensor
    question: Tensor | None
    candidates: Tensor | None

    def contexts(self, attention: Tensor) -> Tensor:
        """c = sum_t a_t h_t, `[batch ... dim]` for attention `[batch ... unit]`."""
        rows = attention.flatten(1, -2)
        return torch.bmm(rows, self.hidden).reshape(*attention.shape[:-1], -1)

    def admitted(self, logits: Tensor) -> Tensor:
        """Logits `[batch ... output]` with -inf on the answers that an example does not admit."""
        if self.candidates is None:
            return logits
        between = (1,) * (logits.dim() - 2)
        refused = ~self.candidates.bool().reshape(len(logits), *between, -1)
        return logits.masked_fill(refused, -torch.inf)


class Readout(ABC):
    """Logits for many attentions over the same hidden states."""

    @abstractmethod
    def __call__(self, attention: Tensor) -> Tensor:
        """Logits `[batch count output]` of attentions `[batch count query unit]`."""


class Decoder(nn.Module, ABC):
    """Turns hidden states and attention into logits."""

    @abstractmethod
    def forward(self, reading: Reading, attention: Tensor) -> Tensor:
        """Logits `[batch output]` under attention `[batch query unit]`."""

    @abstractmethod
    def readout(self, reading: Reading) -> Readout:
        """The same map for many attentions at once."""

    if TYPE_CHECKING:

        def __call__(self, reading: Reading, attention: Tensor) -> Tensor: ...


class Shape(ABC):
    """A frozen description of how a model reads the parts of an example.

    `readers` says which (embedding table, encoder) reads each part; equal numbers share one. `asks`: the last
    part is a question that conditions attention and decoder.
    """

    readers: ClassVar[tuple[int, ...]]
    asks: ClassVar[bool]

    @abstractmethod
    def parts(self, batch: Batch) -> tuple[Tensor, ...]:
        """The units of each part that is encoded by itself `[batch unit]`, special symbols included."""

    @abstractmethod
    def support(self, batch: Batch) -> Tensor:
        """Where attention may be, `[batch query unit]`."""

    @abstractmethod
    def build(self, dim: int, outputs: int) -> Decoder:
        """The decoder for hidden states of size `dim`, without weights."""


@dataclass(frozen=True)
class OneText(Shape):
    """All parts read as one text; logits = W sum_t a_t h_t + b."""

    readers: ClassVar[tuple[int, ...]] = (0,)
    asks: ClassVar[bool] = False

    def parts(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.mask,)

    def support(self, batch: Batch) -> Tensor:
        return batch.scored.unsqueeze(1)

    def build(self, dim: int, outputs: int) -> Decoder:
        with unfilled():
            return _LinearDecoder(dim, outputs)


@dataclass(frozen=True)
class Asked(Shape):
    """Attention over part 0 under the summary Q of part 1; logits = V tanh(Wp c + Wq Q), Wp and Wq: H -> H/2.

    Each part has its own embedding table and encoder. Jain & Wallace read SNLI so: premise under hypothesis.
    """

    readers: ClassVar[tuple[int, ...]] = (0, 1)
    asks: ClassVar[bool] = True

    def parts(self, batch: Batch) -> tuple[Tensor, ...]:
        return _both(batch)

    def support(self, batch: Batch) -> Tensor:
        return (batch.scored & (batch.segments == 0)).unsqueeze(1)

    def build(self, dim: int, outputs: int) -> Decoder:
        with unfilled():
            return _AskedDecoder(dim, outputs)


@dataclass(frozen=True)
class Compared(Shape):
    """One table, encoder and attention for both parts; logits = W [c1; c2; |c1 - c2|; c1 * c2] + b.

    Attention has two queries: row 0 is a distribution over part 0, row 1 over part 1.
    """

    readers: ClassVar[tuple[int, ...]] = (0, 0)
    asks: ClassVar[bool] = False

    def parts(self, batch: Batch) -> tuple[Tensor, ...]:
        return _both(batch)

    def support(self, batch: Batch) -> Tensor:
        return torch.stack([batch.scored & (batch.segments == part) for part in (0, 1)], dim=1)

    def build(self, dim: int, outputs: int) -> Decoder:
        with unfilled():
            return _ComparingDecoder(dim, outputs)


@dataclass(frozen=True)
class LinearReadout(Readout):
    """logit(a) = sum_t a_t scores_t + offset: what counterfactual attention costs is units, not units x dim.

    Args:
        scores: W h_t, `[batch unit output]`.
        offset: b, `[output]`.
    """

    scores: Tensor
    offset: Tensor
    reading: Reading

    def __call__(self, attention: Tensor) -> Tensor:
        return self.reading.admitted(torch.bmm(attention[:, :, 0], self.scores) + self.offset)


@dataclass(frozen=True)
class AskedReadout(Readout):
    """logits(a) = V tanh(sum_t a_t inner_t + question).

    Args:
        inner: Wp h_t, `[batch unit inner]`.
        question: Wq Q, `[batch inner]`.
        answer: V and its bias.
    """

    inner: Tensor
    question: Tensor
    answer: nn.Linear
    reading: Reading

    def __call__(self, attention: Tensor) -> Tensor:
        inner = torch.bmm(attention[:, :, 0], self.inner) + self.question.unsqueeze(1)
        logits: Tensor = self.answer(torch.tanh(inner))
        return self.reading.admitted(logits)


@dataclass(frozen=True)
class ComparedReadout(Readout):
    """Features of two contexts are not linear in attention: contexts first, then the linear layer."""

    answer: nn.Linear
    reading: Reading

    def __call__(self, attention: Tensor) -> Tensor:
        contexts = self.reading.contexts(attention)
        logits: Tensor = self.answer(compared(contexts))
        return self.reading.admitted(logits)


class _LinearDecoder(Decoder):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.answer = nn.Linear(dim, outputs)

    def forward(self, reading: Reading, attention: Tensor) -> Tensor:
        return reading.admitted(self.answer(reading.contexts(attention[:, 0:1]).squeeze(1)))

    def readout(self, reading: Reading) -> Readout:
        return LinearReadout(reading.hidden @ self.answer.weight.t(), self.answer.bias, reading)


class _AskedDecoder(Decoder):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.document = nn.Linear(dim, dim // 2)
        self.question = nn.Linear(dim, dim // 2)
        self.answer = nn.Linear(dim // 2, outputs)

    def forward(self, reading: Reading, attention: Tensor) -> Tensor:
        context = reading.contexts(attention[:, 0:1]).squeeze(1)
        inner = self.document(context) + self.question(reading.question)
        return reading.admitted(self.answer(torch.tanh(inner)))

    def readout(self, reading: Reading) -> Readout:
        # The bias counts once, not once per unit: a given attention need not sum to one.
        inner = reading.hidden @ self.document.weight.t()
        question = self.question(reading.question) + self.document.bias
        return AskedReadout(inner, question, self.answer, reading)


class _ComparingDecoder(Decoder):
    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.answer = nn.Linear(4 * dim, outputs)

    def forward(self, reading: Reading, attention: Tensor) -> Tensor:
        return reading.admitted(self.answer(compared(reading.contexts(attention))))

    def readout(self, reading: Reading) -> Readout:
        return ComparedReadout(self.answer, reading)


def compared(contexts: Tensor) -> Tensor:
    """Features [c1; c2; |c1 - c2|; c1 * c2] of contexts `[... 2 dim]`."""
    first, second = contexts.unbind(-2)
    return torch.cat([first, second, (first - second).abs(), first * second], dim=-1)


def _both(batch: Batch) -> tuple[Tensor, ...]:
    return tuple(batch.mask & (batch.segments == part) for part in (0, 1))
