"""Figures as data: each type holds its numbers, says what is drawn of them, and gives the same numbers as a table.

Trials and papers return these; `report.charts` writes the drawings as SVG. A new chart is one class here with `draw`,
`cells` and `numbers`.
"""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from heedful.formatting import page_text, short_number, two_decimals

INK = "#010203"
"""Text, axes and outlines; the report replaces it by the text colour of the page."""
SERIES_COLORS = ("#7a72c9", "#d9711c", "#189a58", "#2a8bd0", "#c9549a", "#a38413", "#159aa3", "#858c99")
"""Colours of series: at least 3 to 1 against a light and a dark background."""
POSITIVE, NEGATIVE = "#ff9a47", "#7fa8ff"
"""The two ends of the colour scale of matrices and images; the report replaces them by theme."""
NO_NUMBERS = "no numbers to draw"

DOT = -1
DOTTED = (1.5, 1.5)
_DASHES = ((), (5.0, 2.0), DOTTED, (6.0, 2.0, 1.5, 2.0))
_WIDTH = 5.6
_MAX_LABEL = 26
_MATRIX_CELL = (36.0, 26.0)
"""Width and height in points: "−0.01" with space on all sides."""
_MAX_MARKERS, _MAX_POINTS = 400, 4000
_MAX_LISTED_POINTS = 60

Values: TypeAlias = Sequence[float | None]
Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """A labelled axis; without `limits` it spans the data."""

    label: str
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """Named numbers.

    Args:
        is_signed: whether a negative number speaks against what a heat-map explains.
        remark: about these numbers, behind their name in a heat-map.
    """

    name: str
    values: tuple[float, ...]
    is_signed: bool = True
    remark: str = ""

    @property
    def peak(self) -> float:
        """The largest absolute number; 0 if there is none."""
        return max((abs(value) for value in self.values if value is not None and math.isfinite(value)), default=0.0)


@dataclass(frozen=True)
class Shape:
    """A path in data coordinates, or markers at its points; NaN starts a new part.

    Args:
        marker: number of a marker that is drawn at each point in the colour of `fill`, or `DOT`, which is drawn by the
            stroke and small in bytes; None draws the path.
        is_closed: whether the end of each part is joined to its start.
        dashes: lengths of strokes and gaps as multiples of the width.
    """

    xs: Array
    ys: Array
    fill: str = "none"
    stroke: str = "none"
    width: float = 1.2
    dashes: tuple[float, ...] = ()
    opacity: float = 1.0
    marker: int | None = None
    is_closed: bool = False


@dataclass(frozen=True)
class Note:
    """Text at a point in data coordinates; without `x` it stands in the right margin."""

    text: str
    x: float | None
    y: float


@dataclass(frozen=True)
class Picture:
    """Red, green, blue and perhaps opacity of pixels, from one corner in data coordinates to the opposite one."""

    pixels: NDArray[np.uint8]
    left: float
    top: float
    side: float


Ticks: TypeAlias = Sequence[tuple[float, str]]
Entry: TypeAlias = tuple[str, tuple[Shape, ...]]
"""A name in a legend with the shapes that explain it."""
_Row: TypeAlias = tuple[str | float | None, ...]
Cells: TypeAlias = tuple[Sequence[str], Sequence[_Row]]
"""Names of columns, and rows: a data frame for each of the hundreds of figures of a report takes half a second."""


@dataclass(frozen=True)
class Drawing:
    """What a chart draws, in data coordinates.

    Args:
        legend: it is shown if it has at least two entries.
        x_ticks: places and labels; None for round numbers.
        grid: the axes, of "x" and "y", whose ticks have lines across the drawing.
        is_table: whether columns are labelled above and there are no axes.
        corner: a remark above the drawing.
        is_square: whether both axes have the same scale.
        cell: least width and height of a cell of a table in points, which decide the size of the drawing.
    """

    shapes: tuple[Shape, ...]
    x: Axis
    y: Axis
    legend: tuple[Entry, ...] = ()
    notes: tuple[Note, ...] = ()
    pictures: tuple[Picture, ...] = ()
    x_ticks: Ticks | None = None
    y_ticks: Ticks | None = None
    grid: str = "xy"
    is_table: bool = False
    corner: str = ""
    is_square: bool = False
    cell: tuple[float, float] | None = None


class Chart(ABC):
    """A figure that is drawn on axes. Concrete charts are frozen dataclasses with a field `title`."""

    title: str

    @abstractmethod
    def draw(self) -> Drawing:
        """The shapes and labels."""

    @abstractmethod
    def cells(self) -> Cells:
        """The numbers of the figure, aggregated where a reader would not read them one by one."""

    @abstractmethod
    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        """All numbers with the axis on which they are drawn."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return _WIDTH, 3.7

    def remarks(self) -> tuple[str, ...]:
        """How many numbers the drawing leaves out, and why."""
        undefined = drawn = outside = 0
        for axis, values in self.numbers():
            usable = finite(values)
            low, high = axis.limits or (-math.inf, math.inf)
            drawn += len(usable)
            undefined += len(values) - len(usable)
            outside += int(((usable < low) | (usable > high)).sum())
        if not drawn:
            return (NO_NUMBERS,)
        counted = ((undefined, "undefined, not drawn"), (outside, "beyond the limits of the axis"))
        return tuple(f"{count} value{'s' * (count > 1)} {what}" for count, what in counted if count)


def finite(values: Iterable[float | None]) -> Array:
    """The values that are neither missing nor infinite."""
    numbers = _with_gaps(values)
    drawn: Array = numbers[np.isfinite(numbers)]
    return drawn


def _with_gaps(values: Iterable[float | None]) -> Array:
    """The values, NaN where they are missing or infinite."""
    numbers = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def short_label(text: str) -> str:
    """One line of at most 26 characters; the middle of a longer one is left out."""
    line = " ".join(page_text(text).split())
    return line if len(line) <= _MAX_LABEL else f"{line[: _MAX_LABEL - 9]}…{line[-8:]}"


@dataclass(frozen=True)
class Violin(Chart):
    """Horizontal violins with quartile lines: one row per bin, one violin per series.

    Args:
        bins: labels of the rows, bottom to top.
        groups: the series of each bin, with the same names in the same order; empty ones are not drawn.
        source: metric of the numbers, by which published ones are found.
        published: quartiles of the same, by bin and place of the series; empty where there are none.
    """

    title: str
    x: Axis
    y: Axis
    bins: tuple[str, ...]
    groups: tuple[tuple[Series, ...], ...]
    source: str = ""
    published: tuple[tuple[tuple[float, ...], ...], ...] = ()

    def draw(self) -> Drawing:
        """Violins where there are three different values, else dots or a stroke."""
        shapes: list[Shape] = []
        notes = []
        for row, group in enumerate(self.groups):
            height = 0.84 / max(1, len(group))
            for lane, series in enumerate(group):
                middle, numbers = row + 0.42 - height * (lane + 0.5), finite(series.values)
                shapes += _violin(numbers, middle, height, _series_color(lane))
                shapes += _published_quartiles(self._published(row, lane), middle - 0.49 * height)
                notes.append(Note(f"n={len(numbers)}", None, middle))
        legend = _legend_boxes(self.groups[0] if self.groups else ())
        if any(map(any, self.published)):
            legend.append(("published quartiles", tuple(_published_quartiles((0.0, 0.0, 0.0), 0.0))))
        return _row_drawing(shapes, self.x, self.bins, notes, legend, self.y.label)

    def cells(self) -> Cells:
        """Number of values and quartiles by bin and series, and the published quartiles."""
        has_published = any(map(any, self.published))
        rows: list[_Row] = []
        for row, (name, group) in enumerate(zip(self.bins, self.groups, strict=True)):
            for lane, series in enumerate(group):
                theirs: _Row = (self._published(row, lane) or (None, None, None)) if has_published else ()
                rows.append((name, series.name, *_quartiles(series), *theirs))
        further = [f"published {name}" for name in _QUARTILES[1:]] if has_published else []
        return [self.y.label or "group", "series", *_QUARTILES, *further], rows

    def _published(self, row: int, lane: int) -> tuple[float, ...]:
        """The published quartiles of a series in a bin; empty where there are none."""
        lanes = self.published[row] if row < len(self.published) else ()
        return lanes[lane] if lane < len(lanes) else ()

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((self.x, series.values) for group in self.groups for series in group)

    @property
    def size(self) -> tuple[float, float]:
        return _WIDTH, 1.2 + max(1.4, 0.36 * len(self.bins) * max((len(group) for group in self.groups), default=1))


@dataclass(frozen=True)
class Histogram(Chart):
    """Overlaid histograms on common bins, each series normalised to sum 1.

    Args:
        source: metric or pair of methods of the numbers, by which published ones are found.
        published: published shares of instances in the same bins, drawn as lines.
    """

    title: str
    x: Axis
    series: tuple[Series, ...]
    bins: int = 30
    y: Axis = Axis("share of instances")
    source: str = ""
    published: tuple[Series, ...] = ()

    def draw(self) -> Drawing:
        """Filled steps."""
        numbers = [finite(series.values) for series in self.series]
        edges = np.linspace(*(self.x.limits or _bin_range(np.concatenate(numbers))), self.bins + 1)
        shapes = []
        for number, values in enumerate(numbers):
            counts = np.histogram(values, bins=edges)[0]
            shares = (counts / max(1, counts.sum())).repeat(2)
            xs, ys = edges.repeat(2), np.concatenate([[0.0], shares, [0.0]])
            shapes.append(Shape(xs, ys, fill=_series_color(number), opacity=0.5, is_closed=True))
            shapes.append(Shape(xs, ys, stroke=_series_color(number), width=1.0))
        legend = _legend_boxes(self.series)
        for number, outline in enumerate(self.published):
            xs, ys = edges.repeat(2), np.concatenate([[0.0], np.asarray(outline.values).repeat(2), [0.0]])
            dashes = _DASHES[number % len(_DASHES)]
            shapes.append(Shape(xs, ys, stroke=INK, width=1.3, dashes=dashes))
            legend.append((outline.name, (replace(_line((0.0, 0.0), (0.0, 0.0), INK, 1.3), dashes=dashes),)))
        return Drawing(tuple(shapes), self.x, self.y, tuple(legend), grid="y")

    def cells(self) -> Cells:
        """Number of values and quartiles by series."""
        rows: list[_Row] = [(series.name, *_quartiles(series)) for series in self.series]
        return ["series", *_QUARTILES], rows

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((self.x, series.values) for series in self.series)


@dataclass(frozen=True)
class Scatter(Chart):
    """Named point clouds; series named in `connected` are joined by a dotted line."""

    title: str
    x: Axis
    y: Axis
    points: tuple[tuple[Series, Series], ...]
    connected: frozenset[str] = frozenset()

    def draw(self) -> Drawing:
        """Markers; many points as one path of round dots, which is a tenth of the size."""
        series: list[Entry] = []
        corner = ""
        for number, (across, up) in enumerate(self.points):
            xs, ys = _finite_points(across, up)
            if len(xs) > _MAX_MARKERS:
                step = -(-len(xs) // _MAX_POINTS)
                if step > 1:
                    corner = f"one point in {step} is drawn"
                dots = Shape(xs[::step], ys[::step], stroke=_series_color(number), width=3.5, opacity=0.55, marker=DOT)
                shapes: tuple[Shape, ...] = (dots,)
            else:
                is_joined = bool({across.name, up.name} & self.connected)
                shapes = _curve(xs, ys, number, line=DOTTED if is_joined else None, width=1.4)
            series.append((up.name or across.name, shapes))
        return _series_drawing(series, self.x, self.y, corner)

    def cells(self) -> Cells:
        """The points; above 60 of them, their number and range by series."""
        names = [self.x.label or "x", self.y.label or "y"]
        clouds = [(up.name or across.name, *_finite_points(across, up)) for across, up in self.points]
        if sum(len(xs) for _, xs, _ in clouds) <= _MAX_LISTED_POINTS:
            rows = [(name, x, y) for name, xs, ys in clouds for x, y in zip(xs, ys, strict=True)]
            return ["series", *names], rows
        spans = [(name, len(xs), *_span(xs), *_span(ys)) for name, xs, ys in clouds]
        columns = ["series", "n", *(f"{end} {name}" for name in names for end in ("smallest", "largest"))]
        return columns, spans

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((axis, part.values) for pair in self.points for axis, part in zip((self.x, self.y), pair, strict=True))


@dataclass(frozen=True)
class Lines(Chart):
    """Curves over a common x: training histories, deletion curves."""

    title: str
    x: Axis
    y: Axis
    curves: tuple[tuple[Series, Series], ...]

    def draw(self) -> Drawing:
        """One line per curve, with markers where there are at most 30 points; undefined values leave gaps."""
        series = []
        for number, (across, up) in enumerate(self.curves):
            dashes = _DASHES[number % len(_DASHES)]
            shapes = _curve(_with_gaps(across.values), _with_gaps(up.values), number, line=dashes, width=1.8)
            series.append((up.name or across.name, shapes if len(across.values) <= 30 else shapes[:1]))
        return _series_drawing(series, self.x, self.y)

    def cells(self) -> Cells:
        """One row per x, one column per curve."""
        curves = [dict(zip(across.values, up.values, strict=True)) for across, up in self.curves]
        xs = sorted({x for curve in curves for x in curve if x is not None and math.isfinite(x)})
        rows = [(x, *(curve.get(x) for curve in curves)) for x in xs]
        names = [up.name or across.name for across, up in self.curves]
        return [self.x.label or "x", *names], rows

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((axis, part.values) for pair in self.curves for axis, part in zip((self.x, self.y), pair, strict=True))


@dataclass(frozen=True)
class Bars(Chart):
    """Horizontal bars, one per label and series, with optional error bars.

    Args:
        errors: half-widths of the error bars of a series, under its name.
        intervals: lower and upper ends of the error bars of a series, which need not be equally far, under its name.
    """

    title: str
    x: Axis
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    errors: tuple[Series, ...] = ()
    intervals: tuple[tuple[Series, Series], ...] = ()

    def draw(self) -> Drawing:
        """Bars with their values in the right margin."""
        height = 0.8 / max(1, len(self.series))
        shapes, notes = [_line((0.0, 0.0), (-9.0, len(self.labels) + 9.0), INK, 0.8)], []
        for lane, series in enumerate(self.series):
            for row, (value, ends) in enumerate(zip(series.values, self._ends(series), strict=True)):
                middle = len(self.labels) - 1 - row + 0.4 - height * (lane + 0.5)
                notes.append(Note(short_number(value), None, middle))
                if math.isfinite(value):
                    half = 0.43 * height
                    shapes.append(_box(0.0, middle - half, value, middle + half, _series_color(lane), 0.85))
                    if ends[0] < ends[1] and all(map(math.isfinite, ends)):
                        shapes.append(_line(ends, (middle, middle), INK, 1.2))
                        shapes += [_line((x, x), (middle - 0.06, middle + 0.06), INK, 1.1) for x in ends]
        return _row_drawing(shapes, self.x, self.labels[::-1], notes, _legend_boxes(self.series))

    def cells(self) -> Cells:
        """One row per label; a column per series, and those of its error or interval."""
        columns: list[Sequence[str | float]] = [self.labels]
        names = [""]
        for series in self.series:
            columns.append(series.values)
            names.append(series.name)
            for error in self.errors:
                if error.name == series.name:
                    columns.append(error.values)
                    names.append(f"± {series.name}")
            for low, high in self.intervals:
                if low.name == series.name:
                    columns += [low.values, high.values]
                    names += [f"{series.name}, from", f"{series.name}, to"]
        return names, list(zip(*columns, strict=True))

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((self.x, series.values) for series in self.series)

    @property
    def size(self) -> tuple[float, float]:
        return _WIDTH, 1.2 + max(0.8, len(self.labels) * (0.14 + 0.2 * len(self.series)))

    def _ends(self, series: Series) -> list[tuple[float, float]]:
        """The two ends of each error bar, both at the value where there is none."""
        for low, high in self.intervals:
            if low.name == series.name:
                return list(zip(low.values, high.values, strict=True))
        errors = next((error.values for error in self.errors if error.name == series.name), (0.0,) * len(self.labels))
        return [(value - error, value + error) for value, error in zip(series.values, errors, strict=True)]


@dataclass(frozen=True)
class IntervalPoint:
    """A value with its interval.

    Args:
        label: the row that it stands in.
        series: what its colour and marker mean.
        null: the value without merit, drawn as a short line across; NaN if there is none.
    """

    label: str
    series: str
    value: float
    low: float = math.nan
    high: float = math.nan
    null: float = math.nan


@dataclass(frozen=True)
class Intervals(Chart):
    """Points with their intervals, one row per label (a forest plot).

    Args:
        points: rows in the order in which their labels appear, from the top; points of one row stand below each other.
        references: names and values of dashed lines across all rows.
        colors: colours of series by name, where the order of series shall not decide.
    """

    title: str
    x: Axis
    points: tuple[IntervalPoint, ...]
    references: tuple[tuple[str, float], ...] = ()
    colors: tuple[tuple[str, str], ...] = ()

    def draw(self) -> Drawing:
        """A marker and a line per point, with the values in the right margin."""
        rows = self._rows()
        series = list(dict.fromkeys(point.series for point in self.points))
        colors = {name: _series_color(number) for number, name in enumerate(series)} | dict(self.colors)
        height = 0.84 / self._lanes()
        shapes = [self._reference(value, (-9.0, len(rows) + 9.0)) for _, value in self.references]
        notes = []
        for row, points in enumerate(rows.values()):
            for lane, point in enumerate(points):
                middle = len(rows) - 1 - row + height * ((len(points) - 1) / 2 - lane)
                color, at = colors[point.series], np.asarray([middle])
                if math.isfinite(point.low) and math.isfinite(point.high):
                    shapes.append(_line((point.low, point.high), (middle, middle), color, 2.2))
                if math.isfinite(point.null):
                    shapes.append(
                        _line((point.null, point.null), (middle - 0.4 * height, middle + 0.4 * height), INK, 1.4)
                    )
                value = point.value if math.isfinite(point.value) else math.nan
                shapes.append(Shape(np.asarray([value]), at, fill=color, marker=series.index(point.series)))
                notes.append(Note(short_number(point.value), None, middle))
        legend = [
            (name, (Shape(np.zeros(1), np.zeros(1), fill=colors[name], marker=number),))
            for number, name in enumerate(series)
        ]
        legend += [(name, (self._reference(0.0, (0.0, 0.0)),)) for name, _ in self.references]
        if any(math.isfinite(point.null) for point in self.points):
            legend.append(("null", (_line((0.0, 0.0), (0.0, 0.0), INK, 1.4),)))
        return _row_drawing(shapes, self.x, list(rows)[::-1], notes, legend)

    def cells(self) -> Cells:
        """One row per point."""
        return ["", "series", "value", "from", "to", "null"], [*map(astuple, self.points)]

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        yield self.x, [point.value for point in self.points]

    @property
    def size(self) -> tuple[float, float]:
        return _WIDTH, 1.2 + max(0.8, len(self._rows()) * (0.1 + 0.16 * self._lanes()))

    def _rows(self) -> dict[str, list[IntervalPoint]]:
        rows: dict[str, list[IntervalPoint]] = {}
        for point in self.points:
            rows.setdefault(point.label, []).append(point)
        return rows

    def _lanes(self) -> int:
        return max(map(len, self._rows().values()), default=1)

    @staticmethod
    def _reference(value: float, ends: tuple[float, float]) -> Shape:
        return replace(_line((value, value), ends, INK, 1.0), dashes=(4.0, 3.0), opacity=0.6)


@dataclass(frozen=True)
class Matrix(Chart):
    """Numbers as shaded cells with the number in each; None is an empty cell."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    limits: tuple[float, float] = (-1.0, 1.0)

    def draw(self) -> Drawing:
        """Orange for positive and blue for negative cells, as strong as their share of the limits.

        Methods against themselves have numbers over the columns, which the names of the rows explain.
        """
        shapes, notes = [], []
        for row, values in enumerate(self.values):
            for column, value in enumerate(values):
                if shade := self._shade(value):
                    color = NEGATIVE if shade < 0 else POSITIVE
                    shapes.append(_box(column - 0.48, row - 0.46, column + 0.48, row + 0.46, color, abs(shade)))
                notes.append(Note(two_decimals(value, missing="–"), column, row))
        across, down = ([*enumerate(map(short_label, names))] for names in (self.columns, self.rows))
        if self.rows == self.columns and len(self.rows) > 1:
            down = [(row, f"{name}  {row + 1}") for row, name in down]
            across = [(column, str(column + 1)) for column, _ in across]
        x, y = Axis("", (-0.5, len(across) - 0.5)), Axis("", (len(down) - 0.5, -0.5))
        table = Drawing(tuple(shapes), x, y, (), tuple(notes), x_ticks=across, y_ticks=down, grid="", is_table=True)
        return replace(table, cell=_MATRIX_CELL)

    def cells(self) -> Cells:
        """The cells."""
        rows = [(name, *values) for name, values in zip(self.rows, self.values, strict=True)]
        return ["", *self.columns], rows

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((Axis(""), row) for row in self.values)

    def _shade(self, value: float | None) -> float:
        """Strength in [-1, 1], measured from zero if the limits enclose it, else from the lower limit."""
        low, high = self.limits
        if value is None or not math.isfinite(value) or high <= low:
            return 0.0
        strength = value / max(abs(low), abs(high)) if low < 0 else (value - low) / (high - low)
        return float(np.clip(strength, -1.0, 1.0))


@dataclass(frozen=True)
class Pixels:
    """An image: rows from the top, of pixels with red, green and blue in [0, 1]."""

    rows: tuple[tuple[tuple[float, float, float], ...], ...]


@dataclass(frozen=True)
class PatchScores:
    """One score per patch of an image, rows from the top; shaded relative to the largest absolute score."""

    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ImageGrid(Chart):
    """Images and the scores of their patches, in named rows and columns."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    tiles: tuple[tuple[Pixels | PatchScores, ...], ...]

    def draw(self) -> Drawing:
        """Every tile as an image; scores orange where positive and blue where negative."""
        pictures = [
            Picture(_image_pixels(tile) if isinstance(tile, Pixels) else _patch_colors(tile), column, row, 0.9)
            for row, tiles in enumerate(self.tiles)
            for column, tile in enumerate(tiles)
        ]
        frames = (_box(image.left, image.top, image.left + 0.9, image.top + 0.9, "none") for image in pictures)
        shapes = tuple(replace(frame, stroke=INK, width=0.5) for frame in frames)
        wrapped = textwrap.TextWrapper(14, max_lines=3, placeholder="…")
        across, down = (
            [(number + 0.45, wrapped.fill(page_text(name))) for number, name in enumerate(names)]
            for names in (self.columns, self.rows)
        )
        x, y = Axis("", (-0.05, max(1, len(across)))), Axis("", (max(1, len(down)), -0.05))
        table = Drawing(shapes, x, y, x_ticks=across, y_ticks=down, grid="", is_table=True)
        return replace(table, pictures=tuple(pictures), is_square=True)

    def cells(self) -> Cells:
        """The patch with the largest score of each grid of scores."""
        largest = []
        for name, tiles in zip(self.rows, self.tiles, strict=True):
            for column, tile in zip(self.columns, tiles, strict=True):
                if isinstance(tile, PatchScores):
                    scores = np.nan_to_num(np.asarray(tile.values, dtype=float), nan=-np.inf)
                    down, across = np.unravel_index(int(scores.argmax()), scores.shape)
                    largest.append((name, column, int(down) + 1, int(across) + 1, float(scores[down, across])))
        return ["row", "column", "largest in row", "and column", "score"], largest

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        for tile in (tile for tiles in self.tiles for tile in tiles):
            yield from ((Axis(""), row) for row in (tile.values if isinstance(tile, PatchScores) else ((1.0,),)))

    @property
    def size(self) -> tuple[float, float]:
        count = max(1, len(self.columns))
        side = min(1.25, max(0.85 if count <= 8 else 0.5, 4.2 / count))
        return max(_WIDTH, 1.4 + count * side), 0.6 + len(self.rows) * side


@dataclass(frozen=True)
class Heatmap:
    """One text with rows of weights over the same units; text, not a drawing.

    Args:
        rows: named weights, one per unit; negative weights get another hue.
        caption: label, prediction and numbers of this example.
        parts: of which text of a pair each unit is; empty for a single text.
        meanings: what positive and negative weights mean, for instance "for toxic" and "against toxic".
        notes: what the reader must know about these weights.
    """

    title: str
    units: tuple[str, ...]
    rows: tuple[Series, ...]
    caption: str = ""
    parts: tuple[int, ...] = ()
    meanings: tuple[str, str] = ("", "")
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.parts and len(self.parts) != len(self.units):
            raise ValueError(f"heat-map: {len(self.parts)} parts for {len(self.units)} units")
        for row in self.rows:
            if len(row.values) != len(self.units):
                raise ValueError(f"heat-map row {row.name!r}: {len(row.values)} weights for {len(self.units)} units")

    def cells(self) -> Cells:
        """One row per unit, one column per row of weights."""
        rows = zip(self.units, *(row.values for row in self.rows), strict=True)
        return ["unit", *(row.name for row in self.rows)], list(rows)


Figure: TypeAlias = Chart | Heatmap

_QUARTILES = ("n", "25 %", "median", "75 %")


def _quartiles(series: Series) -> tuple[float, ...]:
    numbers = finite(series.values)
    return (len(numbers), *(quartiles(numbers) if len(numbers) else (math.nan,) * 3))


def quartiles(numbers: Array) -> tuple[float, float, float]:
    """The quartiles with linear interpolation, as `np.percentile` gives them, ten times as fast for short arrays.

    >>> quartiles(np.asarray([3.0, 1.0, 2.0, 4.0]))
    (1.75, 2.5, 3.25)
    """
    ordered: list[float] = np.sort(numbers).tolist()

    def at(share: float) -> float:
        below, rest = divmod(share * (len(ordered) - 1), 1)
        low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
        return low + (high - low) * rest if rest < 0.5 else high - (high - low) * (1 - rest)

    return at(0.25), at(0.5), at(0.75)


def _span(values: Array) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (math.nan, math.nan)


def _series_color(number: int) -> str:
    return SERIES_COLORS[number % len(SERIES_COLORS)]


def _line(xs: tuple[float, float], ys: tuple[float, float], color: str, width: float) -> Shape:
    return Shape(np.asarray(xs, float), np.asarray(ys, float), stroke=color, width=width)


def _box(left: float, bottom: float, right: float, top: float, color: str, opacity: float = 1.0) -> Shape:
    xs, ys = np.asarray([left, right, right, left], float), np.asarray([bottom, bottom, top, top], float)
    return Shape(xs, ys, fill=color, opacity=opacity, is_closed=True)


def _curve(xs: Array, ys: Array, number: int, *, line: tuple[float, ...] | None, width: float) -> tuple[Shape, ...]:
    """A line with these dashes unless it is None, and markers at its points."""
    color = _series_color(number)
    path = () if line is None else (Shape(xs, ys, stroke=color, width=width, dashes=line),)
    return *path, Shape(xs, ys, fill=color, marker=number)


def _series_drawing(series: Sequence[Entry], x: Axis, y: Axis, corner: str = "") -> Drawing:
    """Named series, each of which explains itself in the legend."""
    return Drawing(tuple(shape for _, shapes in series for shape in shapes), x, y, tuple(series), corner=corner)


def _row_drawing(
    shapes: Sequence[Shape],
    x: Axis,
    names: Sequence[str],
    notes: Sequence[Note],
    legend: Sequence[Entry],
    label: str = "",
) -> Drawing:
    """Rows that are named from the bottom."""
    y, ticks = Axis(label, (-0.55, max(0, len(names) - 1) + 0.55)), [*enumerate(map(short_label, names))]
    return Drawing(tuple(shapes), x, y, tuple(legend), tuple(notes), y_ticks=ticks, grid="x")


def _legend_boxes(series: Iterable[Series]) -> list[Entry]:
    return [(named.name, (_box(0.0, 0.0, 1.0, 1.0, _series_color(lane), 0.7),)) for lane, named in enumerate(series)]


def _violin(numbers: Array, middle: float, height: float, color: str) -> Iterator[Shape]:
    """Gaussian kernel density with Scott's bandwidth, mirrored, and lines at the quartiles."""
    if len(numbers) < 3:
        yield Shape(numbers, np.full(len(numbers), middle), fill=color, marker=0)
        return
    low, high = _span(numbers)
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        yield _line((low, low), (middle - 0.44 * height, middle + 0.44 * height), color, 3)
        return
    shares = (numbers - low) / (high - low)
    grid = np.linspace(0.0, 1.0, 48)
    distances = (grid[:, None] - shares) / (shares.std(ddof=1) * len(shares) ** -0.2)
    density = np.exp(-0.5 * distances**2).sum(1)
    half = 0.44 * height * density / density.max()
    xs, ys = low + (high - low) * grid, np.concatenate([middle - half, (middle + half)[::-1]])
    yield Shape(np.concatenate([xs, xs[::-1]]), ys, color, color, opacity=0.65, is_closed=True)
    for quartile, dashes in zip(quartiles(numbers), (DOTTED, (), DOTTED), strict=True):
        ends = (middle - 0.22 * height, middle + 0.22 * height)
        yield replace(_line((quartile, quartile), ends, INK, 1.3), dashes=dashes)


def _published_quartiles(quartiles: Sequence[float], at: float) -> Iterator[Shape]:
    """A thin line from the lower to the upper quartile with a dot at the median."""
    if len(quartiles) == 3:
        low, median, high = quartiles
        yield _line((low, high), (at, at), INK, 1.2)
        yield Shape(np.asarray([median]), np.asarray([at]), stroke=INK, width=4.0, marker=DOT)


def _bin_range(values: Array) -> tuple[float, float]:
    """The range of the values, widened if it is too narrow to be divided into bins."""
    low, high = _span(values)
    size = max(abs(low), abs(high))
    margin = max(0.5, 1e-3 * size) if high - low <= 1e-6 * size else 0.0
    return low - margin, high + margin


def _finite_points(across: Series, up: Series) -> tuple[Array, Array]:
    xs, ys = _with_gaps(across.values), _with_gaps(up.values)
    defined = np.isfinite(xs) & np.isfinite(ys)
    return xs[defined], ys[defined]


def _image_pixels(tile: Pixels) -> NDArray[np.uint8]:
    shares = np.nan_to_num(np.clip(np.asarray(tile.rows, dtype=float), 0.0, 1.0))
    pixels: NDArray[np.uint8] = (255 * shares).round().astype(np.uint8)
    return pixels


def _patch_colors(tile: PatchScores) -> NDArray[np.uint8]:
    """Red, green, blue and opacity: the hue is the sign, the opacity the share of the largest score."""
    scores = np.nan_to_num(np.asarray(tile.values, dtype=float), nan=0.0, posinf=0.0, neginf=0.0)
    shares = scores / (np.abs(scores).max(initial=0.0) or 1.0)
    hues = np.asarray([[*bytes.fromhex(color[1:])] for color in (NEGATIVE, POSITIVE)])
    opacity = (255 * np.abs(shares)).round()[..., None]
    colors: NDArray[np.uint8] = np.concatenate([hues[(scores >= 0).astype(int)], opacity], -1).astype(np.uint8)
    return colors
