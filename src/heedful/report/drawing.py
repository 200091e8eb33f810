"""How each kind of figure is drawn on matplotlib axes: a function per kind, in colours with meanings."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from heedful.core.figures import Axis, Bars, Histogram, Lines, Matrix, Mosaic, Pixels, Scatter, Series, Violin
from heedful.report import mosaic
from heedful.report.ink import INK, NEGATIVE, POSITIVE, printable, series_colour
from heedful.report.numbers import number
from heedful.report.spoken import NOTHING, finite, remarks

Chart = Violin | Histogram | Scatter | Bars | Lines | Matrix | Mosaic
Legend = list[tuple[Artist, str]]
Points = NDArray[np.float64]
_Mark = tuple[float, float, float]
"""Where a quartile stands: its value, the middle of its violin, half the violin's height there."""

Dash = tuple[float, tuple[float, ...]]

_SOLID: Dash = (0, ())
_DOTTED: Dash = (0, (1.5, 1.5))
_DASHES: tuple[Dash, ...] = (_SOLID, (0, (5, 2)), _DOTTED, (0, (6, 2, 1.5, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STEPS = 48
_MANY = 400
_MOST = 4000
_LABEL = 26
_WIDTH = 5.6


def draw(chart: Chart, axes: Axes) -> Legend:
    """Draws the chart and gives back its legend: a sample and a name for each series."""
    match chart:
        case Violin():
            return _violin(chart, axes)
        case Histogram():
            return _histogram(chart, axes)
        case Scatter():
            return _scatter(chart, axes)
        case Bars():
            return _bars(chart, axes)
        case Lines():
            return _lines(chart, axes)
        case Matrix():
            return _matrix(chart, axes)
        case Mosaic():
            return _mosaic(chart, axes)


def inches(chart: Chart) -> tuple[float, float]:
    """Width and height with room for every row; as wide as a text column unless a matrix needs more."""
    match chart:
        case _ if NOTHING in remarks(chart):
            return _WIDTH, 1.2
        case Violin(bins=bins, groups=groups):
            return _WIDTH, 1.2 + max(1.4, 0.36 * len(bins) * max((len(g) for g in groups), default=1))
        case Bars(labels=labels, series=series):
            return _WIDTH, 1.2 + max(0.8, len(labels) * (0.14 + 0.2 * len(series)))
        case Matrix(rows=rows, columns=columns):
            return max(_WIDTH, 1.9 + 0.5 * len(columns)), 1.0 + max(0.8, 0.38 * len(rows))
        case Mosaic():
            return mosaic.inches(chart)
        case _:
            return _WIDTH, 3.7


def short(text: str) -> str:
    """A label that fits: one line, a long one without its middle (the words below the figure have all)."""
    line = " ".join(printable(text).split())
    return line if len(line) <= _LABEL else f"{line[: _LABEL - 9]}…{line[-8:]}"


@dataclass(frozen=True)
class _Spot:
    """Where a violin stands: its middle on the y axis, half its height, its colour."""

    middle: float
    reach: float
    colour: str


def _violin(chart: Violin, axes: Axes) -> Legend:
    marks: list[_Mark] = []
    for row, group in enumerate(chart.groups):
        height = 0.84 / max(1, len(group))
        for place, series in enumerate(group):
            middle = row + 0.42 - height * (place + 0.5)
            values = np.asarray(finite(series.values))
            marks += _body(axes, values, _Spot(middle, 0.44 * height, series_colour(place)))
            _margin(axes, middle, f"n={number(len(values))}")
    _ticked(axes, [mark for place, mark in enumerate(marks) if place % 3 == 1], _SOLID)
    _ticked(axes, [mark for place, mark in enumerate(marks) if place % 3 != 1], _DOTTED)
    _rows(axes, chart.bins)
    _labelled(axes, chart.x, chart.y)
    axes.grid(visible=True, axis="x")
    return _patches(chart.groups[0] if chart.groups else ())


def _body(axes: Axes, values: Points, spot: _Spot) -> list[_Mark]:
    """Draws a violin and gives back where its quartiles are to be marked.

    Fewer than three values are dots, values that are all the same a stroke, both without marks.
    """
    if len(values) < 3:
        axes.plot(values, np.full(len(values), spot.middle), "o", color=spot.colour, markersize=5)
        return []
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        axes.vlines(low, spot.middle - spot.reach, spot.middle + spot.reach, colors=spot.colour, linewidth=3)
        return []
    grid = np.linspace(low, high, _STEPS)
    density = _density(values, grid)
    width = spot.reach * density / density.max()
    outline = np.column_stack([np.r_[grid, grid[::-1]], spot.middle + np.r_[width, -width[::-1]]])
    # As an artist, because a patch is searched for its extremes curve by curve, which takes most of the time.
    axes.add_artist(Polygon(outline, facecolor=(spot.colour, 0.6), edgecolor=spot.colour, linewidth=1.2))
    axes.update_datalim(outline)
    quartiles = np.percentile(values, (25, 50, 75))
    return [(float(at), spot.middle, float(np.interp(at, grid, width))) for at in quartiles]


def _ticked(axes: Axes, marks: list[_Mark], dash: Dash) -> None:
    """The marks as upright strokes in one path."""
    across = [x for at, _, _ in marks for x in (at, at, np.nan)]
    up = [y for _, middle, half in marks for y in (middle - half, middle + half, np.nan)]
    axes.add_line(Line2D(across, up, color=INK, linestyle=dash, linewidth=1.3, solid_capstyle="butt"))


def _density(values: Points, grid: Points) -> Points:
    """Gaussian kernel density on the grid, up to a factor, with Scott's bandwidth: std * n^(-1/5)."""
    bandwidth = float(values.std(ddof=1)) * len(values) ** -0.2
    steps = (grid[:, None] - values[None, :]) / bandwidth
    total: Points = np.exp(-0.5 * steps**2).sum(axis=1)
    return total


def _histogram(chart: Histogram, axes: Axes) -> Legend:
    known = [np.asarray(finite(series.values)) for series in chart.series]
    low, high = chart.x.limits or _spread(np.concatenate(known))
    edges = np.linspace(low, high, chart.bins + 1)
    for place, values in enumerate(known):
        counts = np.histogram(values, bins=edges)[0]
        full = np.flatnonzero(counts)
        axes.bar(
            edges[full],
            counts[full] / max(1, counts.sum()),
            width=np.diff(edges)[full],
            align="edge",
            color=series_colour(place),
            edgecolor=INK,
            linewidth=0.6,
            alpha=0.6,
        )
    _labelled(axes, chart.x, chart.y)
    axes.grid(visible=True, axis="y")
    return _patches(chart.series)


def _spread(values: Points) -> tuple[float, float]:
    """The range of the values, with room around them if it is too narrow to be cut into bins."""
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    room = max(0.5, 1e-3 * size) if high - low <= 1e-6 * size else 0.0
    return low - room, high + room


def _scatter(chart: Scatter, axes: Axes) -> Legend:
    legend: Legend = []
    for place, (across, up) in enumerate(chart.points):
        sample = Line2D([], [], color=series_colour(place), marker=_MARKERS[place % 8], markersize=5, linewidth=0)
        x, y = _pairs(across, up)
        if {across.name, up.name} & chart.joined:
            sample.set(linestyle=_DOTTED, linewidth=1.4)
        if len(x) > _MANY:
            _cloud(axes, x, y, series_colour(place))
        else:
            drawn = Line2D(x, y)
            drawn.update_from(sample)
            axes.add_line(drawn)
        legend.append((sample, up.name or across.name))
    axes.autoscale_view()
    _labelled(axes, chart.x, chart.y)
    axes.grid(visible=True)
    return legend


def _cloud(axes: Axes, x: Points, y: Points, colour: str) -> None:
    """Many points as one path of round dots: a tenth of the size of as many markers."""
    step = -(-len(x) // _MOST)
    if step > 1:
        axes.set_title(f"one point in {step} is drawn", fontsize=9, loc="right")
    nothing = np.full(len(x[::step]), np.nan)
    across, up = (np.stack([v[::step], v[::step], nothing], 1).ravel() for v in (x, y))
    axes.plot(across, up, color=colour, linewidth=3.5, solid_capstyle="round", alpha=0.55)


def _lines(chart: Lines, axes: Axes) -> Legend:
    legend: Legend = []
    for place, (across, up) in enumerate(chart.curves):
        x, y = (np.asarray([np.nan if v is None else v for v in s.values], dtype=float) for s in (across, up))
        x, y = np.where(np.isfinite(x), x, np.nan), np.where(np.isfinite(y), y, np.nan)
        marker = _MARKERS[place % 8] if len(x) <= 30 else ""
        look = Line2D([], [], color=series_colour(place), marker=marker, markersize=4, linewidth=1.8)
        look.set_linestyle(_DASHES[place % 4])
        drawn = Line2D(x, y)
        drawn.update_from(look)
        axes.add_line(drawn)
        legend.append((look, up.name or across.name))
    axes.autoscale_view()
    _labelled(axes, chart.x, chart.y)
    axes.grid(visible=True)
    return legend


def _bars(chart: Bars, axes: Axes) -> Legend:
    height = 0.8 / max(1, len(chart.series))
    margins = {series.name: series.values for series in chart.errors}
    for place, series in enumerate(chart.series):
        errors = margins.get(series.name, (0.0,) * len(series.values))
        for row, (value, error) in enumerate(zip(series.values, errors, strict=True)):
            middle = len(chart.labels) - 1 - row + 0.4 - height * (place + 0.5)
            _margin(axes, middle, number(value))
            if finite((value,)):
                axes.barh(middle, value, height * 0.86, color=series_colour(place), alpha=0.85)
            if finite((value, error)) == [value, error] and error:
                axes.errorbar(value, middle, xerr=error, ecolor=INK, elinewidth=1.2, capsize=2.5)
    _rows(axes, chart.labels[::-1])
    axes.axvline(0, color=INK, linewidth=0.8)
    _labelled(axes, chart.x, Axis(""))
    axes.grid(visible=True, axis="x")
    return _patches(chart.series)


def _matrix(chart: Matrix, axes: Axes) -> Legend:
    size = 9.5 if len(chart.columns) <= 14 else 8
    for row, values in enumerate(chart.values):
        for column, value in enumerate(values):
            shade = _shade(value, chart.limits)
            colour = NEGATIVE if shade < 0 else POSITIVE
            cell = Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=colour, alpha=abs(shade))
            cell.set_linewidth(0)
            axes.add_patch(cell)
            known = finite((value,))
            text = f"{known[0]:.2f}".replace("-", "−") if known else "–"
            axes.text(column, row, text, ha="center", va="center", fontsize=size)
    axes.set(xlim=(-0.5, len(chart.columns) - 0.5), ylim=(len(chart.rows) - 0.5, -0.5))
    steep = max((len(short(name)) for name in chart.columns), default=0) * len(chart.columns) > 60
    axes.set_xticks(range(len(chart.columns)), [short(name) for name in chart.columns])
    axes.set_yticks(range(len(chart.rows)), [short(name) for name in chart.rows])
    # Moved to the top before they are turned: moving makes new labels.
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    for label in axes.get_xticklabels():
        label.set(rotation=40 if steep else 0, ha="left" if steep else "center", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    return []


def _mosaic(chart: Mosaic, axes: Axes) -> Legend:
    for tile, (left, top, right, bottom) in mosaic.frames(chart):
        if isinstance(tile, Pixels):
            # One by one and as they are: several put together would be drawn anew, at the size of the page.
            axes.get_figure(root=True).suppressComposite = True  # type: ignore[union-attr]
            axes.imshow(mosaic.colours(tile), extent=(left, right, bottom, top), interpolation="none")
        frame = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=INK, linewidth=0.5)
        axes.add_patch(frame)
    for step, corners in mosaic.shades(chart).items():
        path = Path.make_compound_path(*(_rectangle(*corner) for corner in corners))
        colour = NEGATIVE if step < 0 else POSITIVE
        axes.add_patch(PathPatch(path, facecolor=colour, alpha=abs(step) / mosaic.STEPS, linewidth=0, zorder=0.5))
    rows, columns, size = mosaic.names(chart)
    down, across = ([place + mosaic.TILE / 2 for place in range(len(names))] for names in (rows, columns))
    axes.set_xticks(across, columns, fontsize=size)
    axes.set_yticks(down, rows, fontsize=size)
    axes.set(xlim=(-0.05, len(columns)), ylim=(len(rows), -0.05), aspect="equal")
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    return []


def _rectangle(left: float, top: float, right: float, bottom: float) -> Path:
    return Path([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], closed=True)


def _shade(value: float | None, limits: tuple[float, float]) -> float:
    """Strength of a cell's colour in [-1, 1], from zero if the limits enclose it, else from the lower one."""
    low, high = limits
    if not finite((value,)) or value is None or high <= low:
        return 0.0
    strength = value / max(abs(low), abs(high)) if low < 0 else (value - low) / (high - low)
    return float(np.clip(strength, -1.0, 1.0))


def _pairs(across: Series, up: Series) -> tuple[Points, Points]:
    both = [(a, b) for a, b in zip(across.values, up.values, strict=True) if len(finite((a, b))) == 2]
    points = np.asarray(both, dtype=float).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def _patches(series: Sequence[Series]) -> Legend:
    return [(Patch(facecolor=series_colour(place), alpha=0.7), one.name) for place, one in enumerate(series)]


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(-0.55, max(0, len(names) - 1) + 0.55)
    axes.tick_params(axis="y", length=0)


def _margin(axes: Axes, height: float, text: str) -> None:
    """A number in the right margin of a row."""
    axes.text(1.012, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)


def _labelled(axes: Axes, x: Axis, y: Axis) -> None:
    axes.set_xlabel(_folded(x.label, 56))
    axes.set_ylabel(_folded(y.label, 24))
    if x.limits and x.limits[0] < x.limits[1]:
        axes.set_xlim(x.limits)
    if y.limits and y.limits[0] < y.limits[1]:
        axes.set_ylim(y.limits)


def _folded(label: str, letters: int) -> str:
    """The label in at most two lines, cut with an ellipsis where they are not enough."""
    return textwrap.fill(printable(label), letters, max_lines=2, placeholder="…", break_on_hyphens=False)
