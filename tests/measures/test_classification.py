"""Scores of predictions against scikit-learn, and the stated answers of the degenerate cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from heedful.measures.classification import (
    accuracy,
    average_precision,
    f1,
    f1_macro,
    f1_micro,
    mean_squared_error,
    roc_auc,
    roc_auc_macro,
)

classes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)
scored = st.lists(st.tuples(st.sampled_from([-1.0, 0.1, 0.2, 0.2, 3.0]), st.integers(0, 1)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(classes)
def test_class_scores_equal_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, labels = torch.tensor(pairs).unbind(1)
    assert accuracy(predicted, labels) == pytest.approx(metrics.accuracy_score(labels, predicted))
    for average, ours in (("micro", f1_micro), ("macro", f1_macro)):
        assert ours(predicted, labels) == pytest.approx(metrics.f1_score(labels, predicted, average=average))
    for positive in (1, 3):
        expected = metrics.f1_score(labels == positive, predicted == positive, zero_division=0.0)
        assert f1(predicted, labels, positive) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(scored)
def test_areas_equal_scikit_learn_ties_included(pairs: list[tuple[float, int]]) -> None:
    scores, labels = torch.tensor([s for s, _ in pairs]), torch.tensor([c for _, c in pairs])
    if labels.unique().numel() == 2:  # type: ignore[no-untyped-call]
        assert roc_auc(scores, labels) == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
    else:
        assert math.isnan(roc_auc(scores, labels))
    if bool(labels.any()):
        expected = metrics.average_precision_score(labels, scores)
        assert average_precision(scores, labels) == pytest.approx(expected, abs=1e-12)
    else:
        assert math.isnan(average_precision(scores, labels))


def test_the_area_of_many_classes_is_the_mean_of_one_against_the_rest() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, size=200)
    logits = torch.tensor(generator.normal(size=(200, 4)) + 2 * np.eye(4)[labels]).round(decimals=1)
    expected = metrics.roc_auc_score(labels, torch.softmax(logits, -1), multi_class="ovr", average="macro")
    assert roc_auc_macro(torch.softmax(logits, -1), torch.tensor(labels)) == pytest.approx(expected, abs=1e-12)


def test_the_area_of_many_classes_is_nan_where_a_class_is_absent() -> None:
    assert math.isnan(roc_auc_macro(torch.eye(3)[:2], torch.tensor([0, 1])))


def test_f1_counts_by_hand() -> None:
    predicted, labels = torch.tensor([1, 1, 1, 0, 0, 0]), torch.tensor([1, 1, 0, 1, 0, 0])
    assert f1(predicted, labels) == pytest.approx(4 / 6)
    assert f1(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)) == 0.0


def test_perfect_and_reversed_rankings_have_area_one_and_zero() -> None:
    scores, labels = torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([0, 0, 1, 1])
    assert roc_auc(scores, labels) == 1.0
    assert roc_auc(-scores, labels) == 0.0
    assert roc_auc(torch.ones(4), labels) == 0.5


def test_infinite_scores_are_ranked() -> None:
    scores, labels = torch.tensor([-math.inf, 0.0, math.inf]), torch.tensor([0, 1, 1])
    assert roc_auc(scores, labels) == 1.0
    assert average_precision(scores, labels) == 1.0


def test_squared_error_is_taken_in_double_precision() -> None:
    predicted, labels = torch.tensor([16_777_216.0, 1.0]), torch.tensor([16_777_217, 1])
    assert mean_squared_error(predicted, labels) == 0.5


def test_bad_input_is_refused_in_plain_words() -> None:
    labels = torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="0 and 1"):
        roc_auc(torch.rand(3, generator=torch.Generator()), labels)
    with pytest.raises(ValueError, match="NaN"):
        average_precision(torch.tensor([math.nan, 1.0]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="one length"):
        accuracy(torch.tensor([0, 1]), labels)
    with pytest.raises(ValueError, match="no example"):
        f1(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="below 2"):
        roc_auc_macro(torch.zeros(3, 2), labels)
