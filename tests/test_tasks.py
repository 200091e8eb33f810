"""Tasks: what they make of logits, their losses against hand values, their scores against scikit-learn."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics

from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import Task

TASKS: list[Task] = [BinaryClassification(), MulticlassClassification(3), Regression()]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_the_widths_that_it_announces(task: Task) -> None:
    logits = torch.randn(5, 4, task.num_outputs, generator=torch.Generator().manual_seed(0))
    assert task.probabilities(logits).shape == (5, 4, task.num_classes)
    labels = torch.zeros(5, dtype=torch.int64)
    assert task.losses(logits[:, 0], labels).shape == (5,)


@pytest.mark.parametrize("task", TASKS)
def test_the_headline_is_among_the_scores_and_best_for_perfect_predictions(task: Task) -> None:
    labels = torch.tensor([0, 1, 1, 0, 1])
    logits = 8.0 * labels[:, None] - 4 if task.num_outputs == 1 else 9.0 * torch.eye(3)[labels]
    good = task.compute_metrics(task.probabilities(logits), labels)
    bad = task.compute_metrics(task.probabilities(-logits), labels)
    assert good[task.primary_metric] == pytest.approx(1.0)
    assert bad[task.primary_metric] < good[task.primary_metric]


def test_a_binary_logit_gives_both_classes() -> None:
    logit = math.log(0.9 / 0.1)
    assert BinaryClassification().probabilities(torch.tensor([[logit]])).tolist()[0] == pytest.approx([0.1, 0.9])


def test_an_extreme_logit_keeps_the_small_probability() -> None:
    low, high = BinaryClassification().probabilities(torch.tensor([[50.0]]))[0].tolist()
    assert low == pytest.approx(math.exp(-50), rel=1e-5, abs=0.0)
    assert high == 1.0


def test_binary_loss_is_the_negative_logarithm_of_the_true_class_and_stays_finite() -> None:
    logits = torch.tensor([[0.3], [-2.0], [500.0]], dtype=torch.float64)
    labels = torch.tensor([1, 0, 0])
    expected = [-math.log(1 / (1 + math.exp(-0.3))), -math.log(1 / (1 + math.exp(-2.0))), 500.0]
    assert BinaryClassification().losses(logits, labels).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_of_classes_equal_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, classes, size=60)
    shift = labels[:, None] if classes == 2 else np.eye(classes)[labels]
    logits = torch.tensor(generator.normal(size=(60, shift.shape[1])) + shift)
    predicted = (logits[:, 0] > 0).numpy() if classes == 2 else logits.argmax(1).numpy()
    expected = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "f1_micro": metrics.f1_score(labels, predicted, average="micro"),
        "f1_macro": metrics.f1_score(labels, predicted, average="macro"),
    }
    if classes == 2:
        expected |= {"f1": metrics.f1_score(labels, predicted), "roc_auc": metrics.roc_auc_score(labels, logits[:, 0])}
    task = BinaryClassification() if classes == 2 else MulticlassClassification(classes)
    scores = task.compute_metrics(task.probabilities(logits), torch.tensor(labels))
    assert scores == pytest.approx(expected)


def test_a_probability_of_one_half_is_the_negative_class_as_rounding_would_have_it() -> None:
    score = BinaryClassification().compute_metrics(torch.tensor([[0.5, 0.5], [0.4, 0.6]]), torch.tensor([0, 1]))
    assert score["accuracy"] == 1.0


def test_one_class_only_leaves_the_binary_area_undefined() -> None:
    assert math.isnan(BinaryClassification().compute_metrics(torch.tensor([[0.2, 0.8]]), torch.tensor([1]))["roc_auc"])


def test_excluded_candidates_have_probability_zero_finite_loss_and_finite_gradients() -> None:
    logits = torch.tensor([[1.0, -math.inf, 0.0], [-math.inf, 2.0, -math.inf]], requires_grad=True)
    task, labels = MulticlassClassification(3), torch.tensor([0, 1])
    probabilities = task.probabilities(logits)
    assert probabilities[0, 1].item() == 0.0
    assert probabilities[1].tolist() == [0.0, 1.0, 0.0]
    losses = task.losses(logits, labels)
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-1)), 0.0])
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert bool(gradient.isfinite().all())
    assert gradient[0].tolist() == pytest.approx([probabilities[0, 0].item() - 1, 0.0, probabilities[0, 2].item()])


def test_a_label_among_the_excluded_candidates_costs_infinitely_much() -> None:
    assert MulticlassClassification(2).losses(torch.tensor([[0.0, -math.inf]]), torch.tensor([1])).item() == math.inf


def test_class_losses_equal_the_cross_entropy_of_torch() -> None:
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 3, 3, 2, 0])
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(MulticlassClassification(4).losses(logits, labels), expected)


def test_regression_scores_equal_scipy_and_scikit_learn() -> None:
    generator = np.random.default_rng(2)
    labels = generator.normal(size=30)
    values = torch.tensor(labels[:, None] + generator.normal(size=(30, 1)))
    assert Regression().compute_metrics(values, torch.tensor(labels)) == pytest.approx(
        {
            "pearson": stats.pearsonr(values[:, 0], labels).statistic,
            "mean_squared_error": metrics.mean_squared_error(labels, values[:, 0]),
        }
    )


def test_regression_loss_is_the_squared_error_for_whole_numbers_too() -> None:
    assert Regression().losses(torch.tensor([[1.5], [2.0]]), torch.tensor([1, 4])).tolist() == [0.25, 4.0]


def test_constant_predictions_leave_the_correlation_undefined() -> None:
    assert math.isnan(Regression().compute_metrics(torch.ones(4, 1), torch.arange(4.0))["pearson"])


def test_tasks_are_values() -> None:
    assert MulticlassClassification(3) == MulticlassClassification(3) != MulticlassClassification(4)
    assert len({BinaryClassification(), BinaryClassification(), Regression()}) == 2
    with pytest.raises(FrozenInstanceError):
        MulticlassClassification(3).count = 4  # type: ignore[misc]
    with pytest.raises(ValueError, match="two classes"):
        MulticlassClassification(1)
