"""Charts are read back from their SVG: positions, colours, labels and safety."""

from __future__ import annotations

import base64
import io
import re
from inspect import isabstract, isclass
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from heedful import figures
from heedful.figures import (
    NO_NUMBERS,
    SERIES_COLORS,
    Axis,
    Bars,
    Chart,
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
from heedful.report.charts import svg, svg_file

NAN = float("nan")
UNIT = Axis("share", (0.0, 1.0))
SVG = "{http://www.w3.org/2000/svg}"
EMPTY = Series("a", ())


def series(name: str, *values: float) -> Series:
    return Series(name, values)


def violin(*groups: tuple[Series, ...]) -> Violin:
    return Violin("Violins", UNIT, Axis("bin"), tuple(f"bin {n}" for n in range(len(groups))), groups)


CHARTS: dict[str, Chart] = {
    "violin": violin((series("no", 0.1, 0.2, 0.4), series("yes", 0.5, 0.5, 0.9))),
    "histogram": Histogram("Histogram", UNIT, (series("no", 0.1, 0.1, 0.9), series("yes", 0.5))),
    "scatter": Scatter("Scatter", UNIT, UNIT, ((series("x", 0.1, 0.4), series("seeds", 0.2, 0.3)),)),
    "bars": Bars("Bars", Axis("tau"), ("one", "two"), (series("mean", 0.4, -0.2),), (series("mean", 0.1, 0.1),)),
    "lines": Lines("Lines", Axis("epoch"), Axis("loss"), ((series("e", 1, 2, 3), series("train", 3, 2, 1)),)),
    "intervals": Intervals("Intervals", UNIT, (IntervalPoint("one", "a", 0.5, 0.4, 0.7, 0.1),), (("chance", 0.2),)),
    "matrix": Matrix("Matrix", ("r",), ("a", "b", "c"), ((1.0, -0.25, None),)),
    "images": ImageGrid("Images", ("r",), ("a", "b"), ((Pixels((((1.0, 0.0, 0.0),),)), PatchScores(((0.5, -1.0),))),)),
}
EMPTIES: dict[str, Chart] = {
    "violin": violin((EMPTY, EMPTY)),
    "no bins": violin(),
    "histogram": Histogram("h", Axis("x"), (EMPTY, series("b", NAN))),
    "scatter": Scatter("s", UNIT, UNIT, ((EMPTY, EMPTY),)),
    "bars": Bars("b", Axis("x"), ("one",), (series("mean", NAN),)),
    "no bars": Bars("b", Axis("x"), (), ()),
    "lines": Lines("l", UNIT, UNIT, ()),
    "intervals": Intervals("i", UNIT, (IntervalPoint("one", "a", NAN),)),
    "no intervals": Intervals("i", UNIT, ()),
    "matrix": Matrix("m", ("r",), ("a",), ((None,),)),
    "no cells": Matrix("m", (), (), ()),
}


def parsed(chart: Chart, prefix: str = "figure") -> ElementTree.Element:
    return ElementTree.fromstring(svg(chart, prefix))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def shapes(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Shapes of a class, or painted in the colour of a series: "fill 0", "stroke 1"."""
    kind, _, place = name.partition(" ")
    if place:
        return [e for e in root.iter() if e.get(kind) == SERIES_COLORS[int(place)] and "d" in e.attrib]
    return [e for e in root.iter() if name in e.get("class", "").split()]


def points(path: ElementTree.Element) -> np.ndarray:
    numbers = re.findall(r"-?[\d.]+", path.attrib["d"])
    return np.asarray([float(v) for v in numbers]).reshape(-1, 2)


def axes_box(root: ElementTree.Element) -> tuple[float, float]:
    """Left edge and width of the axes, from the rectangle that clips the drawing."""
    rectangle = next(root.iter(f"{SVG}clipPath"))[0]
    return float(rectangle.attrib["x"]), float(rectangle.attrib["width"])


def text_height(root: ElementTree.Element, text: str) -> float:
    return next(float(e.attrib["y"]) for e in root.iter(f"{SVG}text") if e.text == text)


def test_every_kind_of_chart_is_tested() -> None:
    kinds = [each for each in vars(figures).values() if isclass(each) and issubclass(each, Chart)]
    tested = {type(chart) for chart in CHARTS.values()}
    missing = [each.__name__ for each in kinds if not isabstract(each) and each not in tested]
    assert not missing, f"add an instance of {missing} to CHARTS in tests/report/test_charts.py"


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_has_a_text_alternative_only_ids_of_its_own_and_no_style(name: str) -> None:
    root = parsed(CHARTS[name], "chart-7")
    assert svg(CHARTS[name], "chart-7") == svg(CHARTS[name], "chart-7")
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("chart-7-") for name in ids)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"] == "chart-7-title"
    assert (root[0].tag, root[0].text) == (f"{SVG}title", CHARTS[name].title)
    used = {
        v for e in root.iter() for k, v in e.attrib.items() if k in {"href", "clip-path"} and not v.startswith("data:")
    }
    assert used <= {f"#{i}" for i in ids} | {f"url(#{i})" for i in ids}
    assert {e.tag for e in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "g", "path", "text", "clipPath", "rect", "image")
    }
    assert not [e for e in root.iter() if "style" in e.attrib]
    assert not [e for e in root.iter() if e.get("fill") in {"#ffffff", "white"}]
    assert {e.get("fill") for e in root.iter(f"{SVG}text")} == {"currentColor"}


def test_prefixes_that_are_no_names_are_refused() -> None:
    with pytest.raises(ValueError, match="lower-case"):
        svg(CHARTS["bars"], 'x" onload="alert(1)')


@pytest.mark.parametrize(
    "label", ["$x_1$", "<script>a</script>", "a & b", "cost: $5 or $6", "\\frac", "%d {}", "_x", "שלום", "😀"]
)
def test_labels_are_shown_literally(label: str) -> None:
    drawings = [
        parsed(Bars("b", Axis(label), (label,), (series(label, 1.0), series("other", 2.0)))),
        parsed(violin((series(label, 0.1, 0.2), series("b", 0.3)))),
        parsed(Matrix("m", (label,), (label,), ((0.5,),))),
    ]
    assert [texts(root).count(label) for root in drawings] == [3, 1, 2]


@pytest.mark.parametrize("label", ["a\x00b", "a\x1bb", "a\ud800b", "a\uffffb"])
def test_characters_that_xml_cannot_carry_are_replaced(label: str) -> None:
    assert "a\ufffdb" in texts(parsed(Bars(label, Axis("x"), (label,), (series("s", 1.0),))))


def test_a_long_label_is_shortened_in_the_drawing_and_whole_in_the_table() -> None:
    label = "w" * 300
    chart = Bars("b", Axis("x"), (label,), (series("s", 1.0),))
    assert max(len(text) for text in texts(parsed(chart))) == 26
    assert chart.cells()[1][0][0] == label


def test_class_0_is_above_class_1_and_the_first_bin_at_the_bottom() -> None:
    root = parsed(violin(*(((series("no", 0.1, 0.2, 0.4), series("yes", 0.3, 0.5, 0.9)),) * 2)))
    first, second = ([float(points(s)[:, 1].mean()) for s in shapes(root, f"stroke {n}")[:2]] for n in (0, 1))
    assert len(first) == len(second) == 2
    assert all(above < below for above, below in zip(first, second, strict=True))
    assert text_height(root, "bin 0") > text_height(root, "bin 1")


def test_a_violin_spans_its_data_and_its_lines_are_at_the_quartiles() -> None:
    root = parsed(violin((series("a", 0.1, 0.2, 0.3, 0.6, 0.8),)))
    left, width = axes_box(root)
    outline = points(shapes(root, "stroke 0")[0])
    assert outline[:, 0].min() == pytest.approx(left + 0.1 * width, abs=0.1)
    assert outline[:, 0].max() == pytest.approx(left + 0.8 * width, abs=0.1)
    lines = [e for e in root.iter(f"{SVG}path") if e.get("stroke-width") == "1.3"]
    assert [points(e)[0, 0] for e in lines] == pytest.approx([left + q * width for q in (0.2, 0.3, 0.6)], abs=0.1)
    assert [bool(e.get("stroke-dasharray")) for e in lines] == [True, False, True]


def test_a_violin_for_each_of_eight_groups_stays_small() -> None:
    values = np.random.default_rng(0).beta(2, 5, (8, 300)).tolist()
    groups = tuple(
        (Series("no", tuple(a)), Series("yes", tuple(b))) for a, b in zip(values[::2], values[1::2], strict=True)
    )
    assert len(svg(violin(*groups))) < 24_000


def test_a_violin_is_widest_where_the_kernel_density_is_highest() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).beta(2, 5, 200)
    root = parsed(violin((series("a", *values.tolist()),)))
    left, width = axes_box(root)
    outline = points(shapes(root, "stroke 0")[0])[2:48]
    middle = points(shapes(root, "stroke 0")[0])[:, 1].mean()
    half = np.abs(outline[:, 1] - middle)
    oracle = stats.gaussian_kde(values)((outline[:, 0] - left) / width)
    assert half / half.max() == pytest.approx(oracle / oracle.max(), abs=0.02)


def test_two_values_are_dots_and_equal_values_a_stroke() -> None:
    dots = parsed(violin((series("a", 0.25, 0.5),)))
    left, width = axes_box(dots)
    [path] = shapes(dots, "fill 0")
    at = [float(x) for x in re.findall(r"M([\d.]+),", path.attrib["d"])]
    assert at == pytest.approx([left + 0.25 * width, left + 0.5 * width], abs=0.1)
    stroke = shapes(parsed(violin((series("a", 0.5, 0.5, 0.5, 0.5),))), "stroke 0")
    assert len(stroke) == 1
    assert np.ptp(points(stroke[0])[:, 0]) == 0


def test_each_violin_shows_its_number_of_values() -> None:
    root = parsed(violin((series("a", 0.1, 0.2, 0.3), EMPTY)))
    assert [text for text in texts(root) if text.startswith("n=")] == ["n=3", "n=0"]


def test_each_histogram_sums_to_one_however_many_values_it_has() -> None:
    chart = Histogram("h", UNIT, (series("a", 0.1, 0.1, 0.1, 0.9), series("b", 0.55)), bins=10)
    first, second = (points(shapes(parsed(chart), f"fill {n}")[0])[:, 1] for n in (0, 1))
    assert np.ptp(first) == pytest.approx(0.75 * np.ptp(second), abs=0.2)


def test_bars_are_as_long_as_their_values_and_the_first_label_is_on_top() -> None:
    root = parsed(Bars("b", Axis("x"), ("one", "two", "three"), (series("s", 0.4, -0.2, NAN),)))
    long, short = (points(e) for e in shapes(root, "fill 0"))
    assert np.ptp(long[:, 0]) == pytest.approx(2 * np.ptp(short[:, 0]), abs=0.1)
    assert long[:, 0].min() == pytest.approx(short[:, 0].max(), abs=0.05)
    assert text_height(root, "one") < text_height(root, "two") < text_height(root, "three")
    assert {"0.4", "−0.2", "undefined"} <= set(texts(root))


@pytest.mark.parametrize(
    ("chart", "ends", "cells"),
    [
        (Bars("b", UNIT, ("one",), (series("s", 0.5),), (series("s", 0.125),)), (0.375, 0.625), (0.5, 0.125)),
        (
            Bars("b", UNIT, ("one",), (series("s", 0.95),), intervals=((series("s", 0.6), series("s", 0.99)),)),
            (0.6, 0.99),
            (0.95, 0.6, 0.99),
        ),
    ],
    ids=["half-width", "interval"],
)
def test_error_bars_are_drawn_from_end_to_end(chart: Bars, ends: tuple[float, float], cells: tuple[float, ...]) -> None:
    root = parsed(chart)
    left, width = axes_box(root)
    whisker = next(e for e in root.iter(f"{SVG}path") if e.get("stroke-width") == "1.2")
    assert points(whisker)[:, 0] == pytest.approx([left + end * width for end in ends], abs=0.1)
    assert chart.cells()[1] == [("one", *cells)]


def test_points_stand_in_their_rows_with_intervals_nulls_and_references() -> None:
    points_of_two = (
        IntervalPoint("one", "a", 0.5, 0.4, 0.7, 0.1),
        IntervalPoint("one", "b", 0.25, NAN, NAN),
        IntervalPoint("two", "b", 0.75, 0.7, 0.8),
    )
    colors = (("b", "#d9485f"),)
    root = parsed(Intervals("i", UNIT, points_of_two, (("best", 1.0),), colors))
    left, width = axes_box(root)
    lines = [points(e) for e in root.iter(f"{SVG}path") if e.get("stroke-width") == "2.2"]
    assert [line[:, 0].tolist() for line in lines] == [
        pytest.approx([left + at * width for at in ends], abs=0.1) for ends in ((0.4, 0.7), (0.7, 0.8))
    ]
    [null] = [points(e) for e in root.iter(f"{SVG}path") if e.get("stroke-width") == "1.4"][:1]
    assert null[:, 0] == pytest.approx([left + 0.1 * width] * 2, abs=0.1)
    markers = [e for e in root.iter(f"{SVG}path") if e.get("fill") == "#d9485f"]
    places = [tuple(float(v) for v in re.findall(r"[\d.]+", e.attrib["d"])[:2]) for e in markers][:2]
    assert [x for x, _ in places] == pytest.approx([left + at * width for at in (0.25, 0.75)], abs=0.1)
    assert lines[0][0, 1] < places[0][1] < places[1][1] == pytest.approx(lines[1][0, 1])
    assert {"0.5", "0.25", "0.75", "a", "b", "best", "null"} <= set(texts(root))


def test_a_chart_as_a_file_has_its_own_colours() -> None:
    root = ElementTree.fromstring(svg_file(CHARTS["matrix"]))
    [style] = [e.text or "" for e in root.iter(f"{SVG}style")]
    assert ".fill-positive{fill:#ff9a47}" in style
    assert root.get("xmlns", SVG) == SVG


def test_only_joined_points_are_joined_by_a_dotted_line() -> None:
    clouds = tuple((series("x", 0.1, 0.5, 0.9), series(name, 0.2, 0.4, 0.3)) for name in ("table", "seeds"))
    root = parsed(Scatter("s", UNIT, UNIT, clouds, frozenset({"table"})))
    dotted = [e for e in root.iter(f"{SVG}path") if "stroke-dasharray" in e.attrib]
    assert {e.get("stroke") for e in dotted} == {SERIES_COLORS[0]}
    left, width = axes_box(root)
    through = next(points(e) for e in dotted if len(points(e)) == 3)
    assert through[:, 0] == pytest.approx([left + x * width for x in (0.1, 0.5, 0.9)], abs=0.1)


def test_many_points_stay_small_and_are_counted_when_thinned() -> None:
    many = np.linspace(0, 1, 10_000).tolist()
    text = svg(Scatter("s", UNIT, UNIT, ((Series("x", tuple(many)), Series("y", tuple(many))),)))
    assert len(text) < 120_000
    assert "one point in 3 is drawn" in text


def test_an_undefined_value_leaves_a_gap_in_a_line() -> None:
    chart = Lines("l", Axis("x"), Axis("y"), ((series("x", 1, 2, 3, 4, 5), series("y", 1, 2, NAN, 2, 1)),))
    line = next(e for e in shapes(parsed(chart), "stroke 0") if "d" in e.attrib and len(points(e)) == 4)
    assert line.attrib["d"].count("M") == 2


def test_cells_of_a_matrix_are_as_strong_as_their_numbers() -> None:
    root = parsed(CHARTS["matrix"])
    assert [e.get("opacity", "1") for e in shapes(root, "fill-positive")][:1] == ["1"]
    assert [e.get("opacity") for e in shapes(root, "fill-negative")] == ["0.25"]
    assert {"1.00", "−0.25", "–"} <= set(texts(root))


@pytest.mark.parametrize("name", EMPTIES)
def test_an_empty_figure_says_that_it_is_empty(name: str) -> None:
    assert texts(parsed(EMPTIES[name])) == [NO_NUMBERS]


def test_what_is_left_out_is_told_in_the_drawing() -> None:
    chart = Histogram("h", UNIT, (series("a", 0.5, NAN, float("inf"), 7.0), series("b", 0.5, -1.0)))
    [remark] = [text for text in texts(parsed(chart)) if "undefined" in text]
    assert remark.startswith("2 values undefined")
    assert "2 values beyond" in remark


def test_images_are_embedded_with_their_pixels_and_scores_with_their_signs() -> None:
    images = [e.attrib["href"] for e in parsed(CHARTS["images"]).iter(f"{SVG}image")]
    assert len(images) == 2
    picture, scores = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(image.partition(",")[2])))) for image in images
    )
    assert picture[0, 0, :3].tolist() == [255, 0, 0]
    assert scores[0, :, 3].tolist() == [128, 255]
    assert scores[0, 0, 0] > scores[0, 0, 2]
    assert scores[0, 1, 2] > scores[0, 1, 0]


values = st.lists(st.floats(width=32) | st.sampled_from([0.0, 0.5, NAN]), max_size=6).map(tuple)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
@example("a", "b", (281474976710656.0,))
@example("", "", (3e38, -3e38, 1e-30))
@given(st.text(max_size=40), st.text(max_size=40), values)
def test_no_name_and_no_number_breaks_a_drawing(label: str, name: str, numbers: tuple[float, ...]) -> None:
    one = Series(name, numbers)
    several: tuple[Chart, ...] = (
        Violin(label, Axis(label), Axis(name), (label,), ((one, one),)),
        Histogram(label, Axis(label), (one,)),
        Scatter(label, Axis(label), Axis(name), ((one, one),)),
        Lines(label, Axis(label), Axis(name), ((one, one),)),
        Bars(label, Axis(label), (name,) * len(numbers), (one,)),
        Matrix(label, (name,), (label,) * len(numbers), (numbers,)),
    )
    for chart in several:
        assert parsed(chart)[0].tag == f"{SVG}title"
