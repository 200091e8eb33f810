"""How good predictions are: accuracy, F1, areas under curves, squared error; one float for a whole split.

A score that the data cannot define (a ROC curve of one class) is NaN; an empty split is an error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.measures.rank_correlation import midranks


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Share of predictions `[batch]` that equal their label.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 0, 2]))
    0.75
    """
    _check_labels(predicted, labels)
    return (predicted == labels).double().mean().item()


def f1(predicted: Tensor, labels: Tensor, positive: int = 1) -> float:
    """F1 of one class, `2 TP / (2 TP + FP + FN)`; 0 where the class is neither predicted nor present.

    >>> f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0]))
    0.5
    """
    _check_labels(predicted, labels)
    hits = int(((predicted == positive) & (labels == positive)).sum())
    named = int((predicted == positive).sum()) + int((labels == positive).sum())
    return 2 * hits / named if named else 0.0


def f1_micro(predicted: Tensor, labels: Tensor) -> float:
    """F1 of the hits and misses of all classes together: with one label per example it is the accuracy.

    >>> f1_micro(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 0, 2]))
    0.75
    """
    return accuracy(predicted, labels)


def f1_macro(predicted: Tensor, labels: Tensor) -> float:
    """Mean of the F1 of every class that is predicted or present.

    >>> f1_macro(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
    0.7333333333333334
    """
    _check_labels(predicted, labels)
    named = torch.cat((predicted, labels)).bincount().double()
    hits = labels[predicted == labels].bincount(minlength=len(named))
    return (2 * hits / named)[named > 0].mean().item()


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of scores `[batch]` for labels 0 and 1; NaN where only one class is present.

    It is the probability that a positive outranks a negative, ties counting one half:
    `(Σ midranks of positives - P (P + 1) / 2) / (P N)`.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    _check_binary(scores, labels)
    return _roc_auc_rows(scores.unsqueeze(0), labels.bool().unsqueeze(0)).item()


def roc_auc_macro(scores: Tensor, labels: Tensor) -> float:
    """Mean over classes of the ROC area of each against the rest; NaN where some class is absent.

    Args:
        scores: a column per class, `[batch classes]`.
        labels: class indices `[batch]`.

    >>> roc_auc_macro(torch.eye(3)[torch.tensor([0, 1, 2, 1])], torch.tensor([0, 1, 2, 2]))
    0.8611111111111112
    """
    _check_labels(scores[:, 0], labels)
    _check_not_nan(scores)
    members = labels == torch.arange(scores.shape[1], device=labels.device).unsqueeze(1)
    if not bool(members.any(0).all()):
        raise ValueError(f"labels must be class indices below {scores.shape[1]}, found {int(labels.max())}")
    return _roc_auc_rows(scores.mT.contiguous(), members).mean().item()


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """Area under the precision-recall steps, `Σ (R_k - R_{k-1}) P_k` over the distinct scores, highest first.

    NaN where there is no positive. Tied scores enter together.

    >>> average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.8333333333333333
    """
    _check_binary(scores, labels)
    ordered, order = scores.sort(descending=True)
    last = torch.ones_like(order, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    found = labels[order].double().cumsum(0)[last]
    named = torch.arange(1, len(labels) + 1, device=scores.device)[last]
    gained = torch.diff(found, prepend=found.new_zeros(1))
    return ((gained * found / named).sum() / found[-1]).item()


def mean_squared_error(predicted: Tensor, labels: Tensor) -> float:
    """Mean of `(predicted - label)²`.

    >>> mean_squared_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    2.0
    """
    _check_labels(predicted, labels)
    return (predicted.double() - labels.double()).square().mean().item()


def _roc_auc_rows(scores: Tensor, positive: Tensor) -> Tensor:
    """ROC area of each row `[classes batch]`; NaN for rows of one class."""
    positives = positive.sum(1).double()
    negatives = positive.shape[1] - positives
    ranked = (midranks(scores) * positive).sum(1)
    return (ranked - positives * (positives + 1) / 2) / (positives * negatives)


def _check_labels(predicted: Tensor, labels: Tensor) -> None:
    if predicted.shape != labels.shape or labels.dim() != 1:
        shapes = f"{tuple(predicted.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"predictions and labels must be two vectors of one length, found {shapes}")
    if not len(labels):
        raise ValueError("there is no example to score")


def _check_not_nan(scores: Tensor) -> None:
    if bool(scores.isnan().any()):
        raise ValueError(f"NaN among the scores: {int(scores.isnan().sum())} of {scores.numel()}")


def _check_binary(scores: Tensor, labels: Tensor) -> None:
    _check_labels(scores, labels)
    _check_not_nan(scores)
    if bool(((labels != 0) & (labels != 1)).any()):
        raise ValueError("labels must be 0 and 1; for more classes use roc_auc_macro, or one class against the rest")
