"""Scores of predictions over a whole split: accuracy, F1 and ROC-AUC of scikit-learn, squared error.

A score that the data cannot define (a ROC curve of one class) is NaN; an empty split is an error. scikit-learn is
imported on first use, because it loads pandas and most of SciPy, which a single explanation does not need.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Share of predictions `[batch]` that equal their label; with one label per example, also the micro F1.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 0, 2]))
    0.75
    """
    _check_labels(predicted, labels)
    return (predicted == labels).double().mean().item()


def f1(predicted: Tensor, labels: Tensor) -> float:
    """F1 of class 1, `2 TP / (2 TP + FP + FN)`; 0 where the class is neither predicted nor present.

    >>> f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0]))
    0.5
    """
    from sklearn.metrics import f1_score

    _check_labels(predicted, labels)
    return float(f1_score(labels.cpu() == 1, predicted.cpu() == 1, zero_division=0.0))


def f1_macro(predicted: Tensor, labels: Tensor) -> float:
    """Mean of the F1 of every class that is predicted or present.

    >>> round(f1_macro(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0])), 6)
    0.733333
    """
    from sklearn.metrics import f1_score

    _check_labels(predicted, labels)
    return float(f1_score(labels.cpu(), predicted.cpu(), average="macro", zero_division=0.0))


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of scores `[batch]` for labels 0 and 1; NaN where only one class is present.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    _check_labels(scores, labels)
    if bool(torch.isnan(scores).any()):
        raise ValueError(f"NaN among the scores: {int(scores.isnan().sum())} of {scores.numel()}")
    if bool(((labels != 0) & (labels != 1)).any()):
        raise ValueError("ROC-AUC needs labels 0 and 1")
    if bool((labels == labels[0]).all()):
        return math.nan
    # Rounded, so that equal areas tie when epochs are compared: trapezoids add up in a different order for each curve.
    return round(float(roc_auc_score(labels.cpu(), scores.detach().cpu())), 12)


def mean_squared_error(predicted: Tensor, labels: Tensor) -> float:
    """Mean of `(predicted - label)²`, in float64.

    >>> mean_squared_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    2.0
    """
    _check_labels(predicted, labels)
    return (predicted.double() - labels.double()).square().mean().item()


def _check_labels(predicted: Tensor, labels: Tensor) -> None:
    if predicted.shape != labels.shape or labels.dim() != 1:
        shapes = f"{tuple(predicted.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"predictions and labels must be two vectors of one length, found {shapes}")
    if not len(labels):
        raise ValueError("no example to score")
