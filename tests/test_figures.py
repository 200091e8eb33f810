"""The numbers of figures as tables, by hand values."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.figures import (
    Axis,
    Bars,
    Figure,
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
    columns, rows = Violin("v", X, Y, ("low",), groups).cells()
    assert columns == ["bin", "series", "n", "25 %", "median", "75 %"]
    assert [*rows[0]] == ["low", "no", 3, pytest.approx(0.15), 0.2, pytest.approx(0.3)]
    assert [row[2] for row in rows] == [3, 1]
    [empty] = Histogram("h", X, (Series("a", ()),)).cells()[1]
    assert [*empty] == pytest.approx(["a", 0, NAN, NAN, NAN], nan_ok=True)


def test_few_points_are_listed_and_many_are_summarised() -> None:
    few = Scatter("s", X, Axis("y"), ((Series("x", (0.1, 0.4)), Series("seeds", (0.2, 0.3))),))
    assert few.cells()[1] == [("seeds", 0.1, 0.2), ("seeds", 0.4, 0.3)]
    values = tuple(np.linspace(0, 1, 100))
    many = Scatter("s", X, Axis("y"), ((Series("x", values), Series("cloud", values)),))
    assert many.cells()[1] == [("cloud", 100, 0.0, 1.0, 0.0, 1.0)]


def test_curves_share_their_x() -> None:
    curves = ((Series("e", (1, 2)), Series("train", (3.0, 2.0))), (Series("e", (2, 3)), Series("dev", (9.0, 8.0))))
    columns, rows = Lines("l", Axis("epoch"), Y, curves).cells()
    assert columns == ["epoch", "train", "dev"]
    assert rows == [(1, 3.0, None), (2, 2.0, 9.0), (3, None, 8.0)]


TILES = ((Pixels((((0.0, 0.0, 0.0),),)), PatchScores(((0.1, NAN), (0.7, -0.9)))),)


@pytest.mark.parametrize(
    ("figure", "rows"),
    [
        (
            Bars("b", X, ("one", "two"), (Series("m", (0.4, -0.2)),), (Series("m", (0.1, 0.3)),)),
            [("one", 0.4, 0.1), ("two", -0.2, 0.3)],
        ),
        (Matrix("m", ("r",), ("a", "a"), ((1.0, None),)), [("r", 1.0, None)]),
        (ImageGrid("i", ("r",), ("picture", "scores"), TILES), [("r", "scores", 2, 1, 0.7)]),
        (Heatmap("t", ("a", "b"), (Series("attention", (0.2, 0.8)),)), [("a", 0.2), ("b", 0.8)]),
        (Intervals("i", X, (IntervalPoint("one", "a", 0.5, 0.4, 0.7, 0.1),)), [("one", "a", 0.5, 0.4, 0.7, 0.1)]),
    ],
    ids=lambda figure: type(figure).__name__,
)
def test_the_rows_of_a_figure(figure: Figure, rows: list[tuple[str | float | None, ...]]) -> None:
    assert figure.cells()[1] == rows


def test_published_quartiles_stand_beside_ours_and_are_missing_where_there_are_none() -> None:
    groups = ((Series("class 0", (1.0, 2.0, 3.0)), Series("class 1", (2.0,))),)
    chart = Violin("v", Axis("x"), Axis("bin"), ("a",), groups, published=(((0.5, 1.5, 2.5), ()),))
    names, rows = chart.cells()
    assert len(names) == 9
    assert rows[0][-3:] == (0.5, 1.5, 2.5)
    assert rows[1][-3:] == (None, None, None)
    assert any(1.5 in shape.xs.tolist() for shape in chart.draw().shapes)


def test_published_shares_are_drawn_at_their_height() -> None:
    chart = Histogram("h", Axis("x", (0.0, 1.0)), (Series("ours", (0.1,)),), 2, published=(Series("p", (0.25, 0.75)),))
    assert chart.draw().shapes[-1].ys.tolist() == [0.0, 0.25, 0.25, 0.75, 0.75, 0.0]
    assert len(chart.draw().legend) == 2
