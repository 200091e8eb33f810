"""Attention: one score per hidden state, with or without a question; normalisers turn scores into weights.

Weights are exactly zero off the mask and sum to one on it. With H the size of hidden states (Jain & Wallace):
additive u_t = v . tanh(W h_t + b [+ W2 Q + b2]), W: H -> H/2; dot u_t = q . h_t / sqrt(H), or Q instead of q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import entmax
import torch
from torch import Tensor, nn

from heedful.core.types import UserError
from heedful.models.initialising import unfilled


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
    def build(self, dim: int, *, asked: bool) -> AttentionModule:
        """The module for hidden states of size `dim`, without weights; `asked`: conditioned on a question."""


@dataclass(frozen=True)
class Additive(Attention):
    """u_t = v . tanh(W h_t + b), and with a question u_t = v . tanh(W h_t + b + W2 Q + b2)."""

    def build(self, dim: int, *, asked: bool) -> AttentionModule:
        if dim < 2:
            raise UserError("Additive attention halves the hidden size: give the encoder a width of at least 2")
        with unfilled():
            return _AdditiveModule(dim, asked=asked)


@dataclass(frozen=True)
class Dot(Attention):
    """u_t = q . h_t / sqrt(H) with a learned q; with a question Q takes the place of q."""

    def build(self, dim: int, *, asked: bool) -> AttentionModule:
        with unfilled():
            return _DotAsked() if asked else _DotLearned(dim)


class _AdditiveModule(AttentionModule):
    def __init__(self, dim: int, *, asked: bool) -> None:
        super().__init__()
        self.unit = nn.Linear(dim, dim // 2)
        self.question = nn.Linear(dim, dim // 2) if asked else None
        self.score = nn.Linear(dim // 2, 1, bias=False)

    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        inner: Tensor = self.unit(hidden)
        if self.question is not None:
            inner = inner + self.question(question).unsqueeze(1)
        scores: Tensor = self.score(torch.tanh(inner))
        return scores.squeeze(-1)


class _DotLearned(AttentionModule):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        scores: Tensor = self.score(hidden)
        return scores.squeeze(-1) / sqrt(hidden.shape[-1])


class _DotAsked(AttentionModule):
    def forward(self, hidden: Tensor, question: Tensor | None = None) -> Tensor:
        if question is None:
            raise ValueError("this attention was built with a question and was given none")
        return torch.bmm(hidden, question.unsqueeze(-1)).squeeze(-1) / sqrt(hidden.shape[-1])


class Normaliser(ABC):
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
class Softmax(Normaliser):
    """a_t = exp(u_t / temperature) / sum over real units."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"Softmax(temperature={self.temperature}): the temperature must be above 0")

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores / self.temperature).masked_fill(~mask, -torch.inf).softmax(-1)


@dataclass(frozen=True)
class Sparsemax(Normaliser):
    """The point of the simplex nearest to the scores (Martins & Astudillo 2016); many weights are zero."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights: Tensor = entmax.sparsemax(scores.masked_fill(~mask, -torch.inf), dim=-1)
        return weights


@dataclass(frozen=True)
class Entmax(Normaliser):
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
class UniformWeights(Normaliser):
    """a_t = 1 / number of real units, whatever the scores."""

    def weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights = mask.to(scores.dtype)
        return weights / weights.sum(-1, keepdim=True)
