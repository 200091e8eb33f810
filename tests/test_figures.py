"""The numbers of figures as tables, by hand values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heedful.figures import (
    NO_NUMBERS,
    Axis,
    Bars,
    Chart,
    Heatmap,
    Histogram,
    ImageGrid,
    IntervalPoint,
    Intervals,
    Lines,
    Matrix,
    PatchScores,
    Pixels,
    Scatter,
    Series,
    Violin,
)

NAN = float("nan")
X, Y = Axis("share", (0.0, 1.0)), Axis("bin")


def test_violins_and_histograms_have_quartiles() -> None:
    groups = ((Series("no", (0.1, 0.2, 0.4)), Series("yes", (0.5, NAN))),)
    table = Violin("v", X, Y, ("low",), groups).to_table()
    assert list(table.columns) == ["bin", "series", "n", "25 %", "median", "75 %"]
    assert table.iloc[0].tolist() == ["low", "no", 3, pytest.approx(0.15), 0.2, pytest.approx(0.3)]
    assert table["n"].tolist() == [3, 1]
    empty = Histogram("h", X, (Series("a", ()),)).to_table()
    assert empty.iloc[0].tolist()[:2] == ["a", 0]
    assert math.isnan(empty["median"][0])


def test_few_points_are_listed_and_many_are_summarised() -> None:
    few = Scatter("s", X, Axis("y"), ((Series("x", (0.1, 0.4)), Series("seeds", (0.2, 0.3))),))
    assert few.to_table().to_numpy().tolist() == [["seeds", 0.1, 0.2], ["seeds", 0.4, 0.3]]
    values = tuple(np.linspace(0, 1, 100))
    many = Scatter("s", X, Axis("y"), ((Series("x", values), Series("cloud", values)),)).to_table()
    assert many.to_numpy().tolist() == [["cloud", 100, 0.0, 1.0, 0.0, 1.0]]


def test_curves_share_their_x() -> None:
    curves = ((Series("e", (1, 2)), Series("train", (3.0, 2.0))), (Series("e", (2, 3)), Series("dev", (9.0, 8.0))))
    table = Lines("l", Axis("epoch"), Y, curves).to_table()
    assert list(table.columns) == ["epoch", "train", "dev"]
    assert table.iloc[1].tolist() == [2, 2.0, 9.0]
    assert table.iloc[0, 2] is None


def test_bars_matrices_and_images() -> None:
    bars = Bars("b", X, ("one", "two"), (Series("m", (0.4, -0.2)),), (Series("m", (0.1, 0.3)),)).to_table()
    assert bars.to_numpy().tolist() == [["one", 0.4, 0.1], ["two", -0.2, 0.3]]
    matrix = Matrix("m", ("r",), ("a", "a"), ((1.0, None),)).to_table()
    assert matrix.to_numpy().tolist() == [["r", 1.0, None]]
    tiles = ((Pixels((((0.0, 0.0, 0.0),),)), PatchScores(((0.1, NAN), (0.7, -0.9)))),)
    images = ImageGrid("i", ("r",), ("picture", "scores"), tiles).to_table()
    assert images.to_numpy().tolist() == [["r", "scores", 2, 1, 0.7]]


def test_a_heatmap_has_a_row_per_unit() -> None:
    table = Heatmap("t", ("a", "b"), (Series("attention", (0.2, 0.8)),)).to_table()
    assert table.to_numpy().tolist() == [["a", 0.2], ["b", 0.8]]


@pytest.mark.parametrize("chart", [Violin("v", X, Y, (), ()), Lines("l", X, Y, ()), Matrix("m", (), (), ())])
def test_empty_charts_say_so(chart: Chart) -> None:
    assert chart.remarks() == (NO_NUMBERS,)
    assert chart.to_table().empty


def test_numbers_that_are_not_drawn_are_counted() -> None:
    undefined, outside = Histogram("h", X, (Series("a", (0.5, NAN, math.inf, 7.0)),)).remarks()
    assert undefined.startswith("2 ")
    assert outside.startswith("1 value ")


def test_intervals_are_listed_point_by_point() -> None:
    chart = Intervals("i", X, (IntervalPoint("one", "a", 0.5, 0.4, 0.7, 0.1), IntervalPoint("two", "a", 0.6, 0.5, 0.8)))
    table = chart.to_table()
    assert table.iloc[0].tolist() == ["one", "a", 0.5, 0.4, 0.7, 0.1]
    assert math.isnan(table["null"][1])
    assert chart.remarks() == ()
