"""What a training strives for: the right labels (`Supervised`), or the right labels under given weights (`Imposed`).

Uniform attention and the guided MLP of Wiegreffe & Pinter are both imposed attention; only the guide differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, Regression
from heedful.training.attention_sources import AttentionSource, impose_attention
from heedful.training.trainer import Evaluator, Loss
from heedful.types import Batch, Model, Split, Task

if TYPE_CHECKING:
    from heedful.training.trained_model import TrainedModel


class Objective(ABC):
    """A frozen value: prepares the model, then says what each example costs."""

    @abstractmethod
    def prepare_model(self, model: Model, workspace: Workspace) -> None:
        """Changes the freshly built model where the objective asks for it; also done when it is loaded again."""

    @abstractmethod
    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The cost of each example of a batch; `train` is the whole training split."""

    def evaluator(self, split: Split, workspace: Workspace) -> Evaluator | None:
        """What is measured on a split beside or instead of the task's scores; None where those suffice."""
        return None

    def check(self, recipe: TrainedModel) -> None:  # noqa: B027 - most objectives can be learnt by everybody
        """Refuses a learner that this objective is not for."""

    @property
    def display_name(self) -> str:
        """A word or two for the progress display; empty for the usual training."""
        return ""


@dataclass(frozen=True)
class Supervised(Objective):
    """The gold labels; `weighted` makes the classes count alike (J&W: positives times negatives per positive)."""

    balance_classes: bool = True

    def prepare_model(self, model: Model, workspace: Workspace) -> None:
        """Leaves the model as it is."""

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The task's own loss, times the weight of the example's class."""
        weights = class_weights(train, task) if self.balance_classes else None

        def losses(model: Model, batch: Batch) -> Tensor:
            assert batch.labels is not None
            found = task.losses(model(batch).logits, batch.labels)
            return found if weights is None else found * weights.to(found)[batch.labels]

        return losses


@dataclass(frozen=True)
class ImposedAttention(Objective):
    """The gold labels, under attention that a guide imposes wherever nobody gives another."""

    source: AttentionSource
    balance_classes: bool = True

    @property
    def display_name(self) -> str:
        """Where the weights come from."""
        return f"under {type(self.source).__name__.lower()} attention"

    def prepare_model(self, model: Model, workspace: Workspace) -> None:
        """Makes the guide's weights the model's attention."""
        impose_attention(model, self.source.attention_function(model, workspace))

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """As `Supervised`."""
        return Supervised(self.balance_classes).loss(train, task, workspace)


def class_weights(train: Batch, task: Task) -> Tensor | None:
    """A weight per class: for two classes 1 and negatives/positives (J&W), else examples/(classes x of the class)."""
    if isinstance(task, Regression):
        return None
    assert train.labels is not None
    counts = torch.bincount(train.labels, minlength=task.num_classes).double()
    if isinstance(task, BinaryClassification):
        return torch.stack([torch.ones(()).double(), counts[0] / counts[1].clamp(min=1)])
    return counts.sum() / (task.num_classes * counts.clamp(min=1))
