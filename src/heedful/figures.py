"""Figures as data: each type holds its numbers, draws itself on matplotlib axes, and gives the same numbers as a table.

Trials and papers return these; `report.charts` renders them. A new chart is one class here with `draw`, `to_table` and
`numbers`. Matplotlib is not imported: the axes are passed in.
"""

from __future__ import annotations

import math
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"
"""Text, axes and outlines; the report replaces it by the text colour of the page."""
SERIES_COLORS = ("#7a72c9", "#d9711c", "#189a58", "#2a8bd0", "#c9549a", "#a38413", "#159aa3", "#858c99")
"""Colours of series: at least 3 to 1 against a light and a dark background."""
POSITIVE, NEGATIVE = "#ff9a47", "#7fa8ff"
"""The two ends of the colour scale of matrices and images; the report replaces them by theme."""
NO_NUMBERS = "no numbers to draw"

_MARKERS = "os^DvPX*"
_DASHES = ((0, ()), (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_WIDTH = 5.6
_MAX_LABEL = 26
_MAX_MARKERS, _MAX_POINTS = 400, 4000
_MAX_LISTED_POINTS = 60
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Values: TypeAlias = Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    """A labelled axis; without `limits` it spans the data."""

    label: str
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """Named numbers."""

    name: str
    values: tuple[float, ...]


class Chart(ABC):
    """A figure that is drawn on axes. Concrete charts are frozen dataclasses with a field `title`."""

    title: str

    @abstractmethod
    def draw(self, axes: Axes) -> None:
        """Draw on empty matplotlib axes; artists with a label appear in the legend."""

    @abstractmethod
    def to_table(self) -> pd.DataFrame:
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


def finite(values: Iterable[float | None]) -> NDArray[np.float64]:
    """The values that are neither missing nor infinite."""
    numbers = np.asarray([np.nan if value is None else value for value in values], dtype=float)
    drawn: NDArray[np.float64] = numbers[np.isfinite(numbers)]
    return drawn


def printable(text: str) -> str:
    """The text with U+FFFD for every character that XML or UTF-8 cannot represent."""
    return _UNPRINTABLE.sub("\ufffd", text)


def short_label(text: str) -> str:
    """One line of at most 26 characters; the middle of a longer one is left out."""
    line = " ".join(printable(text).split())
    return line if len(line) <= _MAX_LABEL else f"{line[: _MAX_LABEL - 9]}…{line[-8:]}"


@dataclass(frozen=True)
class Violin(Chart):
    """Horizontal violins with quartile lines: one row per bin, one violin per series.

    Args:
        bins: labels of the rows, bottom to top.
        groups: the series of each bin, with the same names in the same order; empty ones are not drawn.
    """

    title: str
    x: Axis
    y: Axis
    bins: tuple[str, ...]
    groups: tuple[tuple[Series, ...], ...]

    def draw(self, axes: Axes) -> None:
        """Violins where there are three different values, else dots or a stroke."""
        for row, group in enumerate(self.groups):
            height = 0.84 / max(1, len(group))
            for place, series in enumerate(group):
                middle, numbers = row + 0.42 - height * (place + 0.5), finite(series.values)
                _draw_violin(axes, numbers, middle, height, color=_series_color(place))
                _write_in_margin(axes, middle, f"n={len(numbers)}")
        _add_legend_patches(axes, self.groups[0] if self.groups else ())
        _label_rows(axes, self.bins)
        _label_axes(axes, self.x, self.y)
        axes.grid(visible=True, axis="x")

    def to_table(self) -> pd.DataFrame:
        """Number of values and quartiles by bin and series."""
        rows = [
            (name, series.name, *_quartiles(series))
            for name, group in zip(self.bins, self.groups, strict=True)
            for series in group
        ]
        return pd.DataFrame(rows, columns=[self.y.label or "group", "series", *_QUARTILES])

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((self.x, series.values) for group in self.groups for series in group)

    @property
    def size(self) -> tuple[float, float]:
        return _WIDTH, 1.2 + max(1.4, 0.36 * len(self.bins) * max((len(group) for group in self.groups), default=1))


@dataclass(frozen=True)
class Histogram(Chart):
    """Overlaid histograms on common bins, each series normalised to sum 1."""

    title: str
    x: Axis
    series: tuple[Series, ...]
    bins: int = 30
    y: Axis = Axis("share of instances")

    def draw(self, axes: Axes) -> None:
        """Filled steps."""
        numbers = [finite(series.values) for series in self.series]
        edges = np.linspace(*(self.x.limits or _bin_range(np.concatenate(numbers))), self.bins + 1)
        for place, (series, values) in enumerate(zip(self.series, numbers, strict=True)):
            counts = np.histogram(values, bins=edges)[0]
            shares, color = counts / max(1, counts.sum()), _series_color(place)
            axes.stairs(shares, edges, fill=True, color=color, alpha=0.5, label=_legend_label(series.name))
            axes.stairs(shares, edges, color=color, linewidth=1.0)
        _label_axes(axes, self.x, self.y)
        axes.grid(visible=True, axis="y")

    def to_table(self) -> pd.DataFrame:
        """Number of values and quartiles by series."""
        rows = [(series.name, *_quartiles(series)) for series in self.series]
        return pd.DataFrame(rows, columns=["series", *_QUARTILES])

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

    def draw(self, axes: Axes) -> None:
        """Markers; many points as one path of round dots, which is a tenth of the size."""
        for place, (across, up) in enumerate(self.points):
            xs, ys = _finite_points(across, up)
            color, marker = _series_color(place), _MARKERS[place % len(_MARKERS)]
            label = _legend_label(up.name or across.name)
            if len(xs) > _MAX_MARKERS:
                step = -(-len(xs) // _MAX_POINTS)
                if step > 1:
                    axes.set_title(f"one point in {step} is drawn", fontsize=9, loc="right")
                gaps = np.full(len(xs[::step]), np.nan)
                dots = [np.stack([each[::step], each[::step], gaps], 1).ravel() for each in (xs, ys)]
                axes.plot(*dots, color=color, linewidth=3.5, solid_capstyle="round", alpha=0.55, label=label)
            else:
                joined = bool({across.name, up.name} & self.connected)
                style = (0, (1.5, 1.5)) if joined else "none"
                axes.plot(xs, ys, color=color, marker=marker, markersize=5, linestyle=style, linewidth=1.4, label=label)
        _label_axes(axes, self.x, self.y)
        axes.grid(visible=True)

    def to_table(self) -> pd.DataFrame:
        """The points; above 60 of them, their number and range by series."""
        names = [self.x.label or "x", self.y.label or "y"]
        clouds = [(up.name or across.name, *_finite_points(across, up)) for across, up in self.points]
        if sum(len(xs) for _, xs, _ in clouds) <= _MAX_LISTED_POINTS:
            rows = [(name, x, y) for name, xs, ys in clouds for x, y in zip(xs, ys, strict=True)]
            return pd.DataFrame(rows, columns=["series", *names])
        spans = [(name, len(xs), *_span(xs), *_span(ys)) for name, xs, ys in clouds]
        columns = ["series", "n", *(f"{end} {name}" for name in names for end in ("smallest", "largest"))]
        return pd.DataFrame(spans, columns=columns)

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((axis, part.values) for pair in self.points for axis, part in zip((self.x, self.y), pair, strict=True))


@dataclass(frozen=True)
class Lines(Chart):
    """Curves over a common x: training histories, deletion curves."""

    title: str
    x: Axis
    y: Axis
    curves: tuple[tuple[Series, Series], ...]

    def draw(self, axes: Axes) -> None:
        """One line per curve, with markers where there are at most 30 points; undefined values leave gaps."""
        for place, (across, up) in enumerate(self.curves):
            xs, ys = _with_gaps(across), _with_gaps(up)
            style, marker = _DASHES[place % len(_DASHES)], _MARKERS[place % len(_MARKERS)] if len(xs) <= 30 else ""
            axes.plot(
                *(xs, ys),
                color=_series_color(place),
                linestyle=style,
                linewidth=1.8,
                marker=marker,
                markersize=4,
                label=_legend_label(up.name or across.name),
            )
        _label_axes(axes, self.x, self.y)
        axes.grid(visible=True)

    def to_table(self) -> pd.DataFrame:
        """One row per x, one column per curve."""
        curves = [dict(zip(across.values, up.values, strict=True)) for across, up in self.curves]
        places = sorted({x for curve in curves for x in curve if x is not None and math.isfinite(x)})
        rows = [(x, *(curve.get(x) for curve in curves)) for x in places]
        names = [up.name or across.name for across, up in self.curves]
        return pd.DataFrame(rows, columns=[self.x.label or "x", *names], dtype=object)

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((axis, part.values) for pair in self.curves for axis, part in zip((self.x, self.y), pair, strict=True))


@dataclass(frozen=True)
class Bars(Chart):
    """Horizontal bars, one per label and series, with optional half-widths of error bars."""

    title: str
    x: Axis
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    errors: tuple[Series, ...] = ()

    def draw(self, axes: Axes) -> None:
        """Bars with their values in the right margin."""
        height = 0.8 / max(1, len(self.series))
        for place, series in enumerate(self.series):
            errors = self._errors(series.name)
            for row, (value, error) in enumerate(zip(series.values, errors, strict=True)):
                middle = len(self.labels) - 1 - row + 0.4 - height * (place + 0.5)
                _write_in_margin(axes, middle, _short_number(value))
                if math.isfinite(value):
                    axes.barh(middle, value, height * 0.86, color=_series_color(place), alpha=0.85)
                    if error and math.isfinite(error):
                        axes.errorbar(value, middle, xerr=error, ecolor=INK, elinewidth=1.2, capsize=2.5)
        _add_legend_patches(axes, self.series)
        _label_rows(axes, self.labels[::-1])
        axes.axvline(0, color=INK, linewidth=0.8)
        _label_axes(axes, self.x, Axis(""))
        axes.grid(visible=True, axis="x")

    def to_table(self) -> pd.DataFrame:
        """One row per label; a column per series, and one for its error."""
        columns: list[Sequence[str | float]] = [self.labels]
        names = [""]
        for series in self.series:
            columns.append(series.values)
            names.append(series.name)
            if any(each.name == series.name for each in self.errors):
                columns.append(self._errors(series.name))
                names.append(f"± {series.name}")
        return pd.DataFrame(list(zip(*columns, strict=True)), columns=names)

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((self.x, series.values) for series in self.series)

    @property
    def size(self) -> tuple[float, float]:
        return _WIDTH, 1.2 + max(0.8, len(self.labels) * (0.14 + 0.2 * len(self.series)))

    def _errors(self, name: str) -> tuple[float, ...]:
        return next((each.values for each in self.errors if each.name == name), (0.0,) * len(self.labels))


@dataclass(frozen=True)
class Matrix(Chart):
    """Numbers as shaded cells with the number in each; None is an empty cell."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    limits: tuple[float, float] = (-1.0, 1.0)

    def draw(self, axes: Axes) -> None:
        """Orange for positive and blue for negative cells, as strong as their share of the limits."""
        size = 9.5 if len(self.columns) <= 14 else 8
        for row, values in enumerate(self.values):
            for column, value in enumerate(values):
                shade = self._shade(value)
                color = NEGATIVE if shade < 0 else POSITIVE
                axes.bar(column, 0.92, 0.96, row - 0.46, color=color, alpha=abs(shade), linewidth=0)
                axes.text(column, row, _two_decimals(value), ha="center", va="center", fontsize=size)
        labels = [short_label(name) for name in self.columns]
        steep = max(map(len, labels), default=0) * len(labels) > 60
        axes.set(xlim=(-0.5, len(self.columns) - 0.5), ylim=(len(self.rows) - 0.5, -0.5))
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.set_xticks(range(len(labels)), labels)
        for label in axes.get_xticklabels() if steep else ():
            label.set(rotation=40, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(self.rows)), [short_label(name) for name in self.rows])
        axes.spines[:].set_visible(False)

    def to_table(self) -> pd.DataFrame:
        """The cells."""
        rows = [(name, *values) for name, values in zip(self.rows, self.values, strict=True)]
        return pd.DataFrame(rows, columns=["", *self.columns], dtype=object)

    def numbers(self) -> Iterator[tuple[Axis, Values]]:
        return ((Axis(""), row) for row in self.values)

    @property
    def size(self) -> tuple[float, float]:
        return max(_WIDTH, 1.9 + 0.5 * len(self.columns)), 1.0 + max(0.8, 0.38 * len(self.rows))

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

    def draw(self, axes: Axes) -> None:
        """Every tile as an image; scores orange where positive and blue where negative."""
        for row, tiles in enumerate(self.tiles):
            for column, tile in enumerate(tiles):
                pixels = _image_pixels(tile) if isinstance(tile, Pixels) else _patch_colors(tile)
                axes.imshow(pixels, extent=(column, column + 0.9, row + 0.9, row), interpolation="none")
        lefts = [column for tiles in self.tiles for column in range(len(tiles))]
        tops = [row for row, tiles in enumerate(self.tiles) for _ in tiles]
        axes.bar(lefts, 0.9, 0.9, tops, align="edge", fill=False, edgecolor=INK, linewidth=0.5)
        few = len(self.columns) <= 8
        across = [textwrap.fill(printable(name), 14, max_lines=3, placeholder="…") for name in self.columns]
        down = [textwrap.fill(printable(name), 14, max_lines=3, placeholder="…") for name in self.rows]
        axes.set_xticks(np.arange(len(across)) + 0.45, across, fontsize=9.5 if few else 8)
        axes.set_yticks(np.arange(len(down)) + 0.45, down, fontsize=9.5 if few else 8)
        axes.set(xlim=(-0.05, len(across)), ylim=(len(down), -0.05), aspect="equal")
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)

    def to_table(self) -> pd.DataFrame:
        """The patch with the largest score of each grid of scores."""
        found = []
        for name, tiles in zip(self.rows, self.tiles, strict=True):
            for column, tile in zip(self.columns, tiles, strict=True):
                if isinstance(tile, PatchScores):
                    scores = np.nan_to_num(np.asarray(tile.values, dtype=float), nan=-np.inf)
                    down, across = np.unravel_index(int(scores.argmax()), scores.shape)
                    found.append((name, column, int(down) + 1, int(across) + 1, float(scores[down, across])))
        return pd.DataFrame(found, columns=["row", "column", "largest in row", "and column", "score"])

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
    """

    title: str
    units: tuple[str, ...]
    rows: tuple[Series, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.values) != len(self.units):
                raise ValueError(f"heat-map row {row.name!r}: {len(row.values)} weights for {len(self.units)} units")

    def to_table(self) -> pd.DataFrame:
        """One row per unit, one column per row of weights."""
        rows = zip(self.units, *(row.values for row in self.rows), strict=True)
        return pd.DataFrame(list(rows), columns=["unit", *(row.name for row in self.rows)])


Figure: TypeAlias = Chart | Heatmap

_QUARTILES = ("n", "25 %", "median", "75 %")


def _quartiles(series: Series) -> tuple[float, ...]:
    numbers = finite(series.values)
    quartiles = np.percentile(numbers, (25, 50, 75)) if len(numbers) else (math.nan,) * 3
    return (len(numbers), *map(float, quartiles))


def _span(values: NDArray[np.float64]) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (math.nan, math.nan)


def _series_color(place: int) -> str:
    return SERIES_COLORS[place % len(SERIES_COLORS)]


def _legend_label(name: str) -> str:
    """The short label; matplotlib leaves labels with an underscore in front out of the legend."""
    return re.sub("^(?=_|$)", "\u200b", short_label(name))


def _add_legend_patches(axes: Axes, series: Iterable[Series]) -> None:
    for place, each in enumerate(series):
        axes.fill([], [], color=_series_color(place), alpha=0.7, label=_legend_label(each.name))


def _draw_violin(axes: Axes, numbers: NDArray[np.float64], middle: float, height: float, *, color: str) -> None:
    if len(numbers) < 3:
        axes.plot(numbers, np.full(len(numbers), middle), "o", color=color, markersize=5)
        return
    low, high = _span(numbers)
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        axes.vlines(low, middle - 0.44 * height, middle + 0.44 * height, colors=color, linewidth=3)
        return
    parts = axes.violinplot(
        *([numbers], [middle]),
        orientation="horizontal",
        widths=0.88 * height,
        points=48,
        showextrema=False,
        quantiles=[[0.25, 0.5, 0.75]],
    )
    for body in parts["bodies"]:  # type: ignore[attr-defined]
        body.set(facecolor=color, edgecolor=color, linewidth=1.2, alpha=0.65)
    parts["cquantiles"].set(color=INK, linewidth=1.3, linestyle=[_DASHES[2], _DASHES[0], _DASHES[2]])


def _bin_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """The range of the values, widened if it is too narrow to be divided into bins."""
    low, high = _span(values)
    size = max(abs(low), abs(high))
    margin = max(0.5, 1e-3 * size) if high - low <= 1e-6 * size else 0.0
    return low - margin, high + margin


def _with_gaps(series: Series) -> NDArray[np.float64]:
    numbers = np.asarray([np.nan if value is None else value for value in series.values], dtype=float)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _finite_points(across: Series, up: Series) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    xs, ys = _with_gaps(across), _with_gaps(up)
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
    hues = np.asarray([[int(color[place : place + 2], 16) for place in (1, 3, 5)] for color in (NEGATIVE, POSITIVE)])
    opacity = (255 * np.abs(shares)).round()[..., None]
    colors: NDArray[np.uint8] = np.concatenate([hues[(scores >= 0).astype(int)], opacity], -1).astype(np.uint8)
    return colors


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short_label(name) for name in names])
    axes.set_ylim(-0.55, max(0, len(names) - 1) + 0.55)
    axes.tick_params(axis="y", length=0)


def _write_in_margin(axes: Axes, height: float, text: str) -> None:
    axes.text(1.012, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)


def _label_axes(axes: Axes, x: Axis, y: Axis) -> None:
    for axis, width, set_label, set_limits in (
        (x, 56, axes.set_xlabel, axes.set_xlim),
        (y, 24, axes.set_ylabel, axes.set_ylim),
    ):
        label = textwrap.fill(printable(axis.label), width, max_lines=2, placeholder="…", break_on_hyphens=False)
        set_label(label)
        if axis.limits and axis.limits[0] < axis.limits[1]:
            set_limits(*axis.limits)


def _short_number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−") if math.isfinite(value) else "undefined"


def _two_decimals(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}".replace("-", "−")
