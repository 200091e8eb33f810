"""Test scores of a model from predictions set by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from heedful.figures import Histogram, Scatter
from heedful.results import value_of
from heedful.trials.performance import Performance


def predictions(probabilities: list[list[float]], labels: list[float], outputs: int) -> pd.DataFrame:
    return pd.DataFrame({"probabilities": probabilities, "label": labels, "outputs": outputs})


def test_two_classes_have_accuracy_and_f1_and_a_histogram_of_class_1() -> None:
    table = predictions([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]], [0, 1, 0, 1], 1)
    summary = Performance.summary(table)
    assert value_of(summary, "accuracy") == 0.5
    assert value_of(summary, "f1") == pytest.approx(0.5)
    assert set(summary["n"]) == {4}
    (figure,) = Performance.figures(table)
    assert isinstance(figure, Histogram)
    assert [series.values for series in figure.series] == [(0.1, 0.6), (0.8, 0.3)]
    assert "50.0%" in Performance.interpretation(summary)


def test_numbers_have_a_correlation_and_several_classes_no_figure() -> None:
    numbers = predictions([[1.0], [2.0], [4.0]], [1.0, 2.0, 4.0], 1)
    assert value_of(Performance.summary(numbers), "pearson") == pytest.approx(1.0)
    assert isinstance(Performance.figures(numbers)[0], Scatter)
    assert "1.000" in Performance.interpretation(Performance.summary(numbers))
    three = predictions([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], [0, 2], 3)
    assert value_of(Performance.summary(three), "accuracy") == 1.0
    assert Performance.figures(three) == ()
