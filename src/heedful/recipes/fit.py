"""How a model is trained, as frozen values: optimiser, epochs, batches, and which epoch is kept.

The defaults are Jain & Wallace's for one text: AMSGrad with coupled (L2-in-gradient) decay everywhere but on the
attention, losses summed over batches of 32, eight epochs, the first never eligible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from heedful.core.types import UserError

Judged = Literal["dev", "test"]
Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class Adam:
    """Adam with coupled decay; parameters with a name part in `undecayed` get none."""

    rate: float = 1e-3
    decay: float = 1e-5
    amsgrad: bool = True
    undecayed: tuple[str, ...] = ("attention",)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over this model's trainable parameters."""
        groups = _groups(model, self.decay, self.undecayed)
        return torch.optim.Adam(groups, lr=self.rate, amsgrad=self.amsgrad, fused=_fusible(model))

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of this step: constant."""
        return self.rate


@dataclass(frozen=True)
class AdamW:
    """AdamW for transformers: linear warm-up over a share of all steps, then linear descent to zero."""

    rate: float = 5e-5
    decay: float = 0.01
    warm_up: float = 0.1
    undecayed: tuple[str, ...] = ("bias", "LayerNorm", "layer_norm", "norm")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over this model's trainable parameters."""
        groups = _groups(model, self.decay, self.undecayed)
        return torch.optim.AdamW(groups, lr=self.rate, fused=_fusible(model))

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ... of `steps`."""
        warm = int(self.warm_up * steps)
        if step < warm:
            return self.rate * (step + 1) / warm
        return self.rate * (steps - step) / max(1, steps - warm)


@dataclass(frozen=True)
class SGD:
    """Plain gradient descent with decoupled decay, at a constant rate: theta (1 - rate decay) - rate gradient.

    Without momentum torch's own decay, which enters behind the clipping, is the decoupled one.
    """

    rate: float = 5e-3
    decay: float = 0.01
    undecayed: tuple[str, ...] = ()

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over this model's trainable parameters."""
        return torch.optim.SGD(_groups(model, self.decay, self.undecayed), lr=self.rate)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of this step: constant."""
        return self.rate


def _groups(model: nn.Module, decay: float, undecayed: Iterable[str]) -> list[dict[str, object]]:
    spared = set(undecayed)
    decayed: list[Tensor] = []
    free: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (free if spared & set(name.split(".")) else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _fusible(model: nn.Module) -> bool:
    return all(parameter.is_floating_point() for parameter in model.parameters())


@dataclass(frozen=True)
class Select:
    """Which epoch is kept: the one with the best score.

    Args:
        on: "dev"; "test" exists only to replicate papers that peeked, and the report says so.
        by: a score of the task; None takes the task's headline.
        first: the first epoch that may be kept (J&W's code never saved epoch 1).
    """

    on: Judged = "dev"
    by: str | None = None
    first: int = 1

    def __post_init__(self) -> None:
        if self.on not in get_args(Judged):
            raise UserError(f"no epoch can be selected on {self.on!r}: choose 'dev', or 'test' to replicate a paper")


@dataclass(frozen=True)
class Fit:
    """A whole training.

    Args:
        batch: examples in one step.
        patience: epochs without a better score, or an equal one at a lower training loss, before training stops; None
            trains all epochs.
        clip: largest norm of a step's gradient; None leaves it.
        reduction: how the losses of a batch become one number.
        jitter: batches are cut from examples sorted by length plus noise of this share of the length.
    """

    epochs: int = 8
    batch: int = 32
    optimiser: Adam | AdamW | SGD = Adam()
    select: Select = Select(first=2)
    patience: int | None = None
    clip: float | None = None
    reduction: Reduction = "sum"
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < self.select.first:
            raise UserError(
                f"{self.epochs} epochs end before the first that may be kept, {self.select.first}: train longer, or "
                "give Select a smaller first"
            )
        if self.reduction not in get_args(Reduction):
            raise UserError(f"losses cannot be reduced by {self.reduction!r}: choose 'sum' or 'mean'")
