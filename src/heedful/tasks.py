"""Tasks: binary classification, multiclass classification, regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from heedful.measures.classification import accuracy, f1, f1_macro, mean_squared_error, roc_auc
from heedful.measures.rank_correlation import pearson
from heedful.types import OWN_MODELS_PAGE, Task, UserError


@dataclass(frozen=True)
class BinaryClassification(Task):
    """Two classes from one logit; class 1 is the positive one.

    >>> BinaryClassification().probabilities(torch.tensor([[0.0]]))
    tensor([[0.5000, 0.5000]])
    """

    primary_metric: ClassVar[str] = "roc_auc"
    num_outputs: ClassVar[int] = 1
    num_classes: ClassVar[int] = 2

    def probabilities(self, logits: Tensor) -> Tensor:
        """`[1 - p, p]` with `p = sigmoid(logit)`, computed separately: neither is rounded to 0 early."""
        return torch.cat((torch.sigmoid(-logits), torch.sigmoid(logits)), dim=-1)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Binary cross-entropy of each example."""
        if logits.shape[-1] != self.num_outputs:
            raise UserError(
                f"the model gives {logits.shape[-1]} logits for two classes, and its task has one: give it the task "
                f"MulticlassClassification(2) (see {OWN_MODELS_PAGE})"
            )
        targets = labels.to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits.squeeze(-1), targets, reduction="none")

    def compute_metrics(self, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
        """Accuracy, micro and macro F1, F1 of class 1 and ROC-AUC (NaN where one class is absent)."""
        predicted = probabilities.argmax(-1)
        return {
            **_classification_metrics(predicted, labels),
            "f1": f1(predicted, labels),
            "roc_auc": roc_auc(probabilities[:, 1], labels),
        }


@dataclass(frozen=True)
class MulticlassClassification(Task):
    """One of `count` classes, from a logit each; a logit of -inf excludes its class.

    >>> MulticlassClassification(3).probabilities(torch.tensor([[0.0, -torch.inf, 0.0]]))
    tensor([[0.5000, 0.0000, 0.5000]])
    """

    count: int
    primary_metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"classification needs at least two classes, found {self.count}")

    @property
    def num_outputs(self) -> int:
        return self.count

    @property
    def num_classes(self) -> int:
        return self.count

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax over the classes."""
        return torch.softmax(logits, dim=-1)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of each example; infinite where the label itself is excluded."""
        # Gathered, not multiplied: 0 * -inf of an excluded class would be NaN.
        return -torch.log_softmax(logits, dim=-1).gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)

    def compute_metrics(self, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
        """Accuracy, micro and macro F1."""
        return _classification_metrics(probabilities.argmax(-1), labels)


@dataclass(frozen=True)
class Regression(Task):
    """A real number from one logit.

    >>> Regression().probabilities(torch.tensor([[2.5]]))
    tensor([[2.5000]])
    """

    primary_metric: ClassVar[str] = "pearson"
    num_outputs: ClassVar[int] = 1
    num_classes: ClassVar[int] = 1

    def probabilities(self, logits: Tensor) -> Tensor:
        """The number itself."""
        return logits

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Squared error of each example."""
        return (logits.squeeze(-1) - labels.to(logits.dtype)).square()

    def compute_metrics(self, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
        """Pearson's correlation (NaN where predictions or labels are constant) and the mean squared error."""
        values = probabilities.squeeze(-1)
        return {
            "pearson": pearson(values, labels).value.item(),
            "mean_squared_error": mean_squared_error(values, labels),
        }


def _classification_metrics(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "accuracy": accuracy(predicted, labels),
        "f1_micro": accuracy(predicted, labels),
        "f1_macro": f1_macro(predicted, labels),
    }
