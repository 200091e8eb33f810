"""Weights from a passed generator, with the distributions of PyTorch's defaults.

PyTorch's own constructors draw from the global random state. Here modules are made without weights (on the
meta device, see `unfilled`) and filled afterwards: the passed seed alone decides, nobody else's draws move.
"""

from __future__ import annotations

from math import sqrt
from typing import TypeVar

import torch
from torch import Generator, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def unfilled() -> torch.device:
    """A context in which modules are made without weights and random draws: `with unfilled(): ...`."""
    return torch.device("meta")


def initialised(module: AnyModule, generator: Generator) -> AnyModule:
    """The module with fresh weights on the generator's device, filled in the order of its sub-modules.

    Linear, Conv1d: weight and bias ~ U(±1/sqrt(fan in)); LSTM, GRU: everything ~ U(±1/sqrt(width));
    Embedding: N(0, 1) with a zero row at its padding index.
    """
    module.to_empty(device=generator.device)
    for part in module.modules():
        _fill(part, generator)
    return module


@torch.no_grad()
def _fill(module: nn.Module, generator: Generator) -> None:
    own = list(module.parameters(recurse=False))
    if isinstance(module, nn.Embedding):
        module.weight.normal_(generator=generator)
        if module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()
    elif own:
        bound = _bound(module)
        for parameter in own:
            parameter.uniform_(-bound, bound, generator=generator)


def _bound(module: nn.Module) -> float:
    if isinstance(module, nn.LSTM | nn.GRU):
        return 1 / sqrt(module.hidden_size)
    if isinstance(module, nn.Linear | nn.Conv1d):
        return 1 / sqrt(module.weight[0].numel())
    raise TypeError(f"no rule to initialise the weights of {type(module).__name__}")
