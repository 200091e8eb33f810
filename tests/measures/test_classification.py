"""Scores of predictions: hand values, literal counts, and the stated answers of degenerate cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from heedful.measures.classification import accuracy, f1, f1_macro, mean_squared_error, roc_auc

classes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)
scored = st.lists(st.tuples(st.sampled_from([-1.0, 0.1, 0.2, 0.2, 3.0]), st.integers(0, 1)), min_size=1, max_size=30)


def literal_f1(pairs: list[tuple[int, int]], positive: int) -> float:
    hits = sum(predicted == label == positive for predicted, label in pairs)
    named = sum((predicted == positive) + (label == positive) for predicted, label in pairs)
    return 2 * hits / named if named else 0.0


@settings(max_examples=40, deadline=None)
@given(classes)
def test_class_scores_equal_literal_counts(pairs: list[tuple[int, int]]) -> None:
    predicted, labels = torch.tensor(pairs).unbind(1)
    named = {index for pair in pairs for index in pair}
    assert accuracy(predicted, labels) == pytest.approx(sum(one == other for one, other in pairs) / len(pairs))
    assert f1(predicted, labels) == pytest.approx(literal_f1(pairs, 1))
    mean = sum(literal_f1(pairs, index) for index in named) / len(named)
    assert f1_macro(predicted, labels) == pytest.approx(mean)


@settings(max_examples=40, deadline=None)
@given(scored)
def test_the_area_is_the_chance_that_a_positive_outranks_a_negative(pairs: list[tuple[float, int]]) -> None:
    scores, labels = torch.tensor([s for s, _ in pairs]), torch.tensor([c for _, c in pairs])
    positives = int(labels.sum())
    if 0 < positives < len(labels):
        ranks = rankdata(scores)[labels.numpy() == 1].sum() - positives * (positives + 1) / 2
        assert roc_auc(scores, labels) == pytest.approx(ranks / (positives * (len(labels) - positives)), abs=1e-12)
    else:
        assert math.isnan(roc_auc(scores, labels))


def test_equal_areas_of_different_rankings_are_equal_numbers() -> None:
    labels = torch.tensor([1, 0, 1, 0, 1, 0, 0])
    scores = [torch.randperm(7, generator=torch.Generator().manual_seed(seed)).float() for seed in range(200)]
    found = {roc_auc(each, labels) for each in scores}
    assert len(found) <= 13, "3 x 4 pairs allow 13 different areas"


def test_f1_counts_by_hand() -> None:
    predicted, labels = torch.tensor([1, 1, 1, 0, 0, 0]), torch.tensor([1, 1, 0, 1, 0, 0])
    assert f1(predicted, labels) == pytest.approx(4 / 6)
    assert f1(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)) == 0.0


def test_perfect_and_reversed_rankings_have_area_one_and_zero() -> None:
    scores, labels = torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([0, 0, 1, 1])
    assert roc_auc(scores, labels) == 1.0
    assert roc_auc(-scores, labels) == 0.0
    assert roc_auc(torch.ones(4), labels) == 0.5


def test_squared_error_is_taken_in_double_precision() -> None:
    predicted, labels = torch.tensor([16_777_216.0, 1.0]), torch.tensor([16_777_217, 1])
    assert mean_squared_error(predicted, labels) == 0.5


def test_bad_input_is_refused() -> None:
    labels = torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="0 and 1"):
        roc_auc(torch.rand(3, generator=torch.Generator()), labels)
    with pytest.raises(ValueError, match="NaN"):
        roc_auc(torch.tensor([math.nan, 1.0]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="one length"):
        accuracy(torch.tensor([0, 1]), labels)
    with pytest.raises(ValueError, match="no example"):
        f1(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
