"""What a training strives for: the right labels (`Supervised`), or the right labels under given weights (`Imposed`).

Uniform attention and the guided MLP of Wiegreffe & Pinter are both imposed attention; only the guide differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.core.tasks import Binary, Regression
from heedful.core.types import Batch, Model, Task
from heedful.core.workspace import Workspace
from heedful.models.pooled import PooledModel
from heedful.recipes.training import Loss

if TYPE_CHECKING:
    from heedful.recipes.subject import Subject

Weights = Callable[[Batch], Tensor]
"""Attention to be imposed on a batch."""


class Objective(ABC):
    """A frozen value: prepares the model, then says what each example costs."""

    @abstractmethod
    def arrange(self, model: Model, workspace: Workspace) -> None:
        """Changes the freshly built model where the objective asks for it; also done when it is loaded again."""

    @abstractmethod
    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The cost of each example of a batch; `train` is the whole training split."""


@dataclass(frozen=True)
class Supervised(Objective):
    """The gold labels; `weighted` makes the classes count alike (J&W: positives times negatives per positive)."""

    weighted: bool = True

    def arrange(self, model: Model, workspace: Workspace) -> None:
        """Leaves the model as it is."""

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The task's own loss, times the weight of the example's class."""
        weights = class_weights(train, task) if self.weighted else None

        def losses(model: Model, batch: Batch) -> Tensor:
            assert batch.labels is not None
            found = task.losses(model(batch).logits, batch.labels)
            return found if weights is None else found * weights.to(found)[batch.labels]

        return losses


class Guide(ABC):
    """Where imposed attention comes from."""

    @abstractmethod
    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """The attention that `model` is to use for a batch."""


@dataclass(frozen=True)
class Uniform(Guide):
    """The same weight on every unit that may be attended to."""

    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """One over the number of units, on each row of the model's attention."""

        def uniform(batch: Batch) -> Tensor:
            support = _support(model, batch)
            return support / support.sum(-1, keepdim=True).clamp(min=1)

        return uniform


@dataclass(frozen=True)
class Borrowed(Guide):
    """The attention of another subject on the same examples, in training and in test."""

    subject: Subject

    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """What the other subject attends to; it is loaded once and never trained."""
        other = self.subject.restore(workspace).model.eval().requires_grad_(False)

        def borrowed(batch: Batch) -> Tensor:
            with torch.no_grad():
                return other(batch).attention

        return borrowed


@dataclass(frozen=True)
class Imposed(Objective):
    """The gold labels, under attention that a guide imposes wherever nobody gives another."""

    guide: Guide
    weighted: bool = True

    def arrange(self, model: Model, workspace: Workspace) -> None:
        """Makes the guide's weights the model's attention."""
        impose(model, self.guide.weights(model, workspace))

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """As `Supervised`."""
        return Supervised(self.weighted).loss(train, task, workspace)


def impose(model: Model, weights: Weights) -> None:
    """Lets the model use these weights in every call that is given no attention."""

    def give(
        module: torch.nn.Module, args: tuple[Batch], doors: dict[str, Tensor | None]
    ) -> tuple[tuple[Batch], dict[str, Tensor | None]]:
        if doors.get("attention") is not None:
            return args, doors
        return args, {**doors, "attention": weights(args[0])}

    model.register_forward_pre_hook(give, with_kwargs=True)


def class_weights(train: Batch, task: Task) -> Tensor | None:
    """A weight per class: for two classes 1 and negatives/positives (J&W), else examples/(classes x of the class)."""
    if isinstance(task, Regression):
        return None
    assert train.labels is not None
    counts = torch.bincount(train.labels, minlength=task.classes).double()
    if isinstance(task, Binary):
        return torch.stack([torch.ones(()).double(), counts[0] / counts[1].clamp(min=1)])
    return counts.sum() / (task.classes * counts.clamp(min=1))


def _support(model: Model, batch: Batch) -> Tensor:
    if isinstance(model, PooledModel):
        return model.shape.support(batch).float()[:, None, None]
    with torch.no_grad():
        shape = model(batch).attention.shape
    return batch.mask.float()[:, None, None, None].expand(shape)
