"""Encoders: word vectors in, one hidden state per token out, and a summary of the whole text.

A frozen description (`BiLSTM(128)`) builds a module. Hidden states are zero on padding and never depend on it, so the
states of a text do not depend on its batch. Rows are left-aligned: real tokens first, then padding.

`initialize_weights` fills a module from a passed generator with the distributions of PyTorch's defaults: PyTorch's own
constructors draw from the global random state, so models are built on the meta device, without weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, TypeVar

import torch
from torch import Generator, Tensor, nn

from heedful.option_bounds import Bounds, check_options
from heedful.types import UserError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def initialize_weights(module: ModuleT, generator: Generator) -> ModuleT:
    """The module with new weights on the generator's device, filled in the order of its submodules.

    Linear, Conv1d: weight and bias ~ U(±1/sqrt(fan in)); LSTM, GRU: all weights ~ U(±1/sqrt(hidden size)); Embedding:
    N(0, 1) with a zero row at its padding index.
    """
    module.to_empty(device=generator.device)
    with torch.no_grad():
        for layer in module.modules():
            parameters = list(layer.parameters(recurse=False))
            if isinstance(layer, nn.Embedding):
                layer.weight.normal_(generator=generator)
                if layer.padding_idx is not None:
                    layer.weight[layer.padding_idx].zero_()
                continue
            if isinstance(layer, nn.LSTM | nn.GRU):
                bound = 1 / sqrt(layer.hidden_size)
            elif isinstance(layer, nn.Linear | nn.Conv1d):
                bound = 1 / sqrt(layer.weight[0].numel())
            elif parameters:
                raise TypeError(f"no rule to initialise the weights of {type(layer).__name__}")
            for parameter in parameters:
                parameter.uniform_(-bound, bound, generator=generator)
    return module


class EncoderModule(nn.Module, ABC):
    """Turns embeddings into hidden states of size `dim`."""

    dim: int

    @abstractmethod
    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Hidden states `[batch unit dim]`, zero on padding."""

    @abstractmethod
    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """One vector per text `[batch dim]` from its hidden states; every row needs a real token."""

    if TYPE_CHECKING:

        def __call__(self, embeddings: Tensor, mask: Tensor) -> Tensor: ...


class Encoder(ABC):
    """A frozen description of an encoder."""

    @abstractmethod
    def build(self, input_size: int) -> EncoderModule:
        """The module for vectors of width `input_size`."""


@dataclass(frozen=True)
class _WideEncoder(Encoder):
    width: Annotated[int, Bounds(1)] = 128

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class BiLSTM(_WideEncoder):
    """One LSTM layer in each direction, `width` each; summary: the two final states."""

    def build(self, input_size: int) -> EncoderModule:
        return BidirectionalEncoder(*(nn.LSTM(input_size, self.width, batch_first=True) for _ in range(2)))


@dataclass(frozen=True)
class GRU(_WideEncoder):
    """One GRU layer in each direction, `width` each; summary: the two final states."""

    def build(self, input_size: int) -> EncoderModule:
        return BidirectionalEncoder(*(nn.GRU(input_size, self.width, batch_first=True) for _ in range(2)))


@dataclass(frozen=True)
class Convolution(Encoder):
    """Parallel convolutions of several odd widths, ReLU, same padding; summary: maximum over the text.

    Jain & Wallace print 64 filters; their released runs have 32, the default here.
    """

    filters: Annotated[int, Bounds(1)] = 32
    kernels: tuple[int, ...] = (1, 3, 5, 7)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.kernels or any(kernel < 1 or kernel % 2 == 0 for kernel in self.kernels):
            raise UserError(f"Convolution(kernels={self.kernels}): give one or more odd kernel widths, as (1, 3, 5)")

    def build(self, input_size: int) -> EncoderModule:
        return ConvolutionalEncoder(input_size, self)


@dataclass(frozen=True)
class Average(_WideEncoder):
    """A token-wise layer, h_t = tanh(W e_t + b); summary: mean over real tokens.

    Jain & Wallace call it "average" and include padding in the mean, so that predictions depend on the batch; Wiegreffe
    & Pinter call the same map "MLP", AtteFa calls it "Perceptron". One class, so that the papers share one trained
    model.
    """

    def build(self, input_size: int) -> EncoderModule:
        return TokenwiseEncoder(input_size, self.width)


Perceptron = Average


class BidirectionalEncoder(EncoderModule):
    """A recurrent layer in each direction, independent of padding without packed sequences.

    Padding follows the text, so the forward cell never reads it before a real token; for the backward cell each row is
    reversed within its own length. Equal to packed sequences, and 1.5 times as fast to train.
    """

    def __init__(self, forward_cell: nn.LSTM | nn.GRU, backward_cell: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.forward_cell, self.backward_cell = forward_cell, backward_cell
        self.dim = 2 * forward_cell.hidden_size

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        position = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        reversal = torch.where(mask, mask.sum(1, keepdim=True) - 1 - position, position)
        # cuDNN has no backward pass in evaluation mode, where attribution methods need gradients.
        no_cudnn = embeddings.is_cuda and torch.is_grad_enabled() and not self.training
        with torch.backends.cudnn.flags(enabled=False) if no_cudnn else nullcontext():
            ahead, _ = self.forward_cell(embeddings)
            back, _ = self.backward_cell(gather_vectors(embeddings, reversal))
        return torch.cat([ahead, gather_vectors(back, reversal)], dim=-1) * mask.unsqueeze(-1)

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        last = (mask.sum(1) - 1).clamp(min=0)
        ahead, back = hidden.chunk(2, dim=-1)
        return torch.cat([gather_vectors(ahead, last.unsqueeze(1)), back[:, :1]], dim=-1).squeeze(1)


class ConvolutionalEncoder(EncoderModule):
    """Convolutions of several widths; a state depends on `context_radius` neighbours on each side."""

    def __init__(self, input_size: int, encoder: Convolution) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, encoder.filters, kernel, padding=kernel // 2) for kernel in encoder.kernels
        )
        self.dim = encoder.filters * len(encoder.kernels)
        self.context_radius = max(encoder.kernels) // 2

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(-1)
        # Windows at the end of a text read padding: it must be zero, as beyond the end of the longest row.
        channels = (embeddings * real).transpose(1, 2)
        filtered = torch.cat([convolution(channels) for convolution in self.convolutions], dim=1)
        return torch.relu(filtered).transpose(1, 2) * real

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)


class TokenwiseEncoder(EncoderModule):
    """A state depends on its own token only."""

    def __init__(self, input_size: int, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(input_size, width)
        self.dim = width

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.projection(embeddings)) * mask.unsqueeze(-1)

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(-1)
        return (hidden * real).sum(1) / real.sum(1)


def gather_vectors(values: Tensor, positions: Tensor) -> Tensor:
    """The vectors of each row at its own `positions` `[batch position]`."""
    return values.gather(1, positions.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
