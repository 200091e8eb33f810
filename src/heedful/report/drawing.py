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

from heedful.figures import Axis, Bars, Histogram, ImageGrid, Lines, Matrix, Pixels, Scatter, Series, Violin
from heedful.report import mosaic
from heedful.report.ink import FOREGROUND_COLOR, NEGATIVE_COLOR, POSITIVE_COLOR, replace_unprintable, series_color
from heedful.report.numbers import format_number
from heedful.report.spoken import NO_NUMBERS, figure_remarks, finite_values

Chart = Violin | Histogram | Scatter | Bars | Lines | Matrix | ImageGrid
Legend = list[tuple[Artist, str]]
Points = NDArray[np.float64]
_QuartileMark = tuple[float, float, float]
"""Where a quartile stands: its value, the middle of its violin, half the violin's height there."""

Dash = tuple[float, tuple[float, ...]]

_SOLID: Dash = (0, ())
_DOTTED: Dash = (0, (1.5, 1.5))
_DASHES: tuple[Dash, ...] = (_SOLID, (0, (5, 2)), _DOTTED, (0, (6, 2, 1.5, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DENSITY_STEPS = 48
_MAX_MARKERS = 400
_MAX_POINTS = 4000
_MAX_LABEL_CHARS = 26
_WIDTH_INCHES = 5.6


def draw_chart(chart: Chart, axes: Axes) -> Legend:
    """Draws the chart and gives back its legend: a sample and a name for each series."""
    match chart:
        case Violin():
            return _draw_violin(chart, axes)
        case Histogram():
            return _draw_histogram(chart, axes)
        case Scatter():
            return _draw_scatter(chart, axes)
        case Bars():
            return _draw_bars(chart, axes)
        case Lines():
            return _draw_lines(chart, axes)
        case Matrix():
            return _draw_matrix(chart, axes)
        case ImageGrid():
            return _draw_mosaic(chart, axes)


def figure_size(chart: Chart) -> tuple[float, float]:
    """Width and height with room for every row; as wide as a text column unless a matrix needs more."""
    match chart:
        case _ if NO_NUMBERS in figure_remarks(chart):
            return _WIDTH_INCHES, 1.2
        case Violin(bins=bins, groups=groups):
            return _WIDTH_INCHES, 1.2 + max(1.4, 0.36 * len(bins) * max((len(g) for g in groups), default=1))
        case Bars(labels=labels, series=series):
            return _WIDTH_INCHES, 1.2 + max(0.8, len(labels) * (0.14 + 0.2 * len(series)))
        case Matrix(rows=rows, columns=columns):
            return max(_WIDTH_INCHES, 1.9 + 0.5 * len(columns)), 1.0 + max(0.8, 0.38 * len(rows))
        case ImageGrid():
            return mosaic.mosaic_size(chart)
        case _:
            return _WIDTH_INCHES, 3.7


def shorten_label(text: str) -> str:
    """A label that fits: one line, a long one without its middle (the words below the figure have all)."""
    line = " ".join(replace_unprintable(text).split())
    return line if len(line) <= _MAX_LABEL_CHARS else f"{line[: _MAX_LABEL_CHARS - 9]}…{line[-8:]}"


@dataclass(frozen=True)
class _ViolinPlacement:
    """Where a violin stands: its middle on the y axis, half its height, its colour."""

    middle: float
    half_height: float
    color: str


def _draw_violin(chart: Violin, axes: Axes) -> Legend:
    marks: list[_QuartileMark] = []
    for row, group in enumerate(chart.groups):
        height = 0.84 / max(1, len(group))
        for place, series in enumerate(group):
            middle = row + 0.42 - height * (place + 0.5)
            values = np.asarray(finite_values(series.values))
            marks += _draw_violin_body(axes, values, _ViolinPlacement(middle, 0.44 * height, series_color(place)))
            _annotate_margin(axes, middle, f"n={format_number(len(values))}")
    _draw_quartiles(axes, [mark for place, mark in enumerate(marks) if place % 3 == 1], _SOLID)
    _draw_quartiles(axes, [mark for place, mark in enumerate(marks) if place % 3 != 1], _DOTTED)
    _label_rows(axes, chart.bins)
    _label_axes(axes, chart.x, chart.y)
    axes.grid(visible=True, axis="x")
    return _legend_patches(chart.groups[0] if chart.groups else ())


def _draw_violin_body(axes: Axes, values: Points, spot: _ViolinPlacement) -> list[_QuartileMark]:
    """Draws a violin and gives back where its quartiles are to be marked.

    Fewer than three values are dots, values that are all the same a stroke, both without marks.
    """
    if len(values) < 3:
        axes.plot(values, np.full(len(values), spot.middle), "o", color=spot.color, markersize=5)
        return []
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        axes.vlines(low, spot.middle - spot.half_height, spot.middle + spot.half_height, colors=spot.color, linewidth=3)
        return []
    grid = np.linspace(low, high, _DENSITY_STEPS)
    density = _kernel_density(values, grid)
    width = spot.half_height * density / density.max()
    outline = np.column_stack([np.r_[grid, grid[::-1]], spot.middle + np.r_[width, -width[::-1]]])
    # As an artist, because a patch is searched for its extremes curve by curve, which takes most of the time.
    axes.add_artist(Polygon(outline, facecolor=(spot.color, 0.6), edgecolor=spot.color, linewidth=1.2))
    axes.update_datalim(outline)
    quartiles = np.percentile(values, (25, 50, 75))
    return [(float(at), spot.middle, float(np.interp(at, grid, width))) for at in quartiles]


def _draw_quartiles(axes: Axes, marks: list[_QuartileMark], dash: Dash) -> None:
    """The marks as upright strokes in one path."""
    across = [x for at, _, _ in marks for x in (at, at, np.nan)]
    up = [y for _, middle, half in marks for y in (middle - half, middle + half, np.nan)]
    axes.add_line(Line2D(across, up, color=FOREGROUND_COLOR, linestyle=dash, linewidth=1.3, solid_capstyle="butt"))


def _kernel_density(values: Points, grid: Points) -> Points:
    """Gaussian kernel density on the grid, up to a factor, with Scott's bandwidth: std * n^(-1/5)."""
    bandwidth = float(values.std(ddof=1)) * len(values) ** -0.2
    steps = (grid[:, None] - values[None, :]) / bandwidth
    total: Points = np.exp(-0.5 * steps**2).sum(axis=1)
    return total


def _draw_histogram(chart: Histogram, axes: Axes) -> Legend:
    known = [np.asarray(finite_values(series.values)) for series in chart.series]
    low, high = chart.x.limits or _bin_range(np.concatenate(known))
    edges = np.linspace(low, high, chart.bins + 1)
    for place, values in enumerate(known):
        counts = np.histogram(values, bins=edges)[0]
        full = np.flatnonzero(counts)
        axes.bar(
            edges[full],
            counts[full] / max(1, counts.sum()),
            width=np.diff(edges)[full],
            align="edge",
            color=series_color(place),
            edgecolor=FOREGROUND_COLOR,
            linewidth=0.6,
            alpha=0.6,
        )
    _label_axes(axes, chart.x, chart.y)
    axes.grid(visible=True, axis="y")
    return _legend_patches(chart.series)


def _bin_range(values: Points) -> tuple[float, float]:
    """The range of the values, with room around them if it is too narrow to be cut into bins."""
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    room = max(0.5, 1e-3 * size) if high - low <= 1e-6 * size else 0.0
    return low - room, high + room


def _draw_scatter(chart: Scatter, axes: Axes) -> Legend:
    legend: Legend = []
    for place, (across, up) in enumerate(chart.points):
        sample = Line2D([], [], color=series_color(place), marker=_MARKERS[place % 8], markersize=5, linewidth=0)
        x, y = _finite_points(across, up)
        if {across.name, up.name} & chart.connected:
            sample.set(linestyle=_DOTTED, linewidth=1.4)
        if len(x) > _MAX_MARKERS:
            _draw_point_cloud(axes, x, y, series_color(place))
        else:
            drawn = Line2D(x, y)
            drawn.update_from(sample)
            axes.add_line(drawn)
        legend.append((sample, up.name or across.name))
    axes.autoscale_view()
    _label_axes(axes, chart.x, chart.y)
    axes.grid(visible=True)
    return legend


def _draw_point_cloud(axes: Axes, x: Points, y: Points, colour: str) -> None:
    """Many points as one path of round dots: a tenth of the size of as many markers."""
    step = -(-len(x) // _MAX_POINTS)
    if step > 1:
        axes.set_title(f"one point in {step} is drawn", fontsize=9, loc="right")
    nothing = np.full(len(x[::step]), np.nan)
    across, up = (np.stack([v[::step], v[::step], nothing], 1).ravel() for v in (x, y))
    axes.plot(across, up, color=colour, linewidth=3.5, solid_capstyle="round", alpha=0.55)


def _draw_lines(chart: Lines, axes: Axes) -> Legend:
    legend: Legend = []
    for place, (across, up) in enumerate(chart.curves):
        x, y = (np.asarray([np.nan if v is None else v for v in s.values], dtype=float) for s in (across, up))
        x, y = np.where(np.isfinite(x), x, np.nan), np.where(np.isfinite(y), y, np.nan)
        marker = _MARKERS[place % 8] if len(x) <= 30 else ""
        look = Line2D([], [], color=series_color(place), marker=marker, markersize=4, linewidth=1.8)
        look.set_linestyle(_DASHES[place % 4])
        drawn = Line2D(x, y)
        drawn.update_from(look)
        axes.add_line(drawn)
        legend.append((look, up.name or across.name))
    axes.autoscale_view()
    _label_axes(axes, chart.x, chart.y)
    axes.grid(visible=True)
    return legend


def _draw_bars(chart: Bars, axes: Axes) -> Legend:
    height = 0.8 / max(1, len(chart.series))
    margins = {series.name: series.values for series in chart.errors}
    for place, series in enumerate(chart.series):
        errors = margins.get(series.name, (0.0,) * len(series.values))
        for row, (value, error) in enumerate(zip(series.values, errors, strict=True)):
            middle = len(chart.labels) - 1 - row + 0.4 - height * (place + 0.5)
            _annotate_margin(axes, middle, format_number(value))
            if finite_values((value,)):
                axes.barh(middle, value, height * 0.86, color=series_color(place), alpha=0.85)
            if finite_values((value, error)) == [value, error] and error:
                axes.errorbar(value, middle, xerr=error, ecolor=FOREGROUND_COLOR, elinewidth=1.2, capsize=2.5)
    _label_rows(axes, chart.labels[::-1])
    axes.axvline(0, color=FOREGROUND_COLOR, linewidth=0.8)
    _label_axes(axes, chart.x, Axis(""))
    axes.grid(visible=True, axis="x")
    return _legend_patches(chart.series)


def _draw_matrix(chart: Matrix, axes: Axes) -> Legend:
    size = 9.5 if len(chart.columns) <= 14 else 8
    for row, values in enumerate(chart.values):
        for column, value in enumerate(values):
            shade = _cell_shade(value, chart.limits)
            colour = NEGATIVE_COLOR if shade < 0 else POSITIVE_COLOR
            cell = Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=colour, alpha=abs(shade))
            cell.set_linewidth(0)
            axes.add_patch(cell)
            known = finite_values((value,))
            text = f"{known[0]:.2f}".replace("-", "−") if known else "–"
            axes.text(column, row, text, ha="center", va="center", fontsize=size)
    axes.set(xlim=(-0.5, len(chart.columns) - 0.5), ylim=(len(chart.rows) - 0.5, -0.5))
    steep = max((len(shorten_label(name)) for name in chart.columns), default=0) * len(chart.columns) > 60
    axes.set_xticks(range(len(chart.columns)), [shorten_label(name) for name in chart.columns])
    axes.set_yticks(range(len(chart.rows)), [shorten_label(name) for name in chart.rows])
    # Moved to the top before they are turned: moving makes new labels.
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    for label in axes.get_xticklabels():
        label.set(rotation=40 if steep else 0, ha="left" if steep else "center", rotation_mode="anchor")
    axes.spines[:].set_visible(False)
    return []


def _draw_mosaic(chart: ImageGrid, axes: Axes) -> Legend:
    for tile, (left, top, right, bottom) in mosaic.tile_boxes(chart):
        if isinstance(tile, Pixels):
            # One by one and as they are: several put together would be drawn anew, at the size of the page.
            axes.get_figure(root=True).suppressComposite = True  # type: ignore[union-attr]
            axes.imshow(mosaic.picture_pixels(tile), extent=(left, right, bottom, top), interpolation="none")
        frame = Rectangle(
            (left, top), right - left, bottom - top, fill=False, edgecolor=FOREGROUND_COLOR, linewidth=0.5
        )
        axes.add_patch(frame)
    for step, corners in mosaic.patches_by_shade(chart).items():
        path = Path.make_compound_path(*(_rectangle_path(*corner) for corner in corners))
        colour = NEGATIVE_COLOR if step < 0 else POSITIVE_COLOR
        axes.add_patch(PathPatch(path, facecolor=colour, alpha=abs(step) / mosaic.SHADE_STEPS, linewidth=0, zorder=0.5))
    rows, columns, size = mosaic.mosaic_labels(chart)
    down, across = ([place + mosaic.TILE_SIDE / 2 for place in range(len(names))] for names in (rows, columns))
    axes.set_xticks(across, columns, fontsize=size)
    axes.set_yticks(down, rows, fontsize=size)
    axes.set(xlim=(-0.05, len(columns)), ylim=(len(rows), -0.05), aspect="equal")
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    return []


def _rectangle_path(left: float, top: float, right: float, bottom: float) -> Path:
    return Path([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], closed=True)


def _cell_shade(value: float | None, limits: tuple[float, float]) -> float:
    """Strength of a cell's colour in [-1, 1], from zero if the limits enclose it, else from the lower one."""
    low, high = limits
    if not finite_values((value,)) or value is None or high <= low:
        return 0.0
    strength = value / max(abs(low), abs(high)) if low < 0 else (value - low) / (high - low)
    return float(np.clip(strength, -1.0, 1.0))


def _finite_points(across: Series, up: Series) -> tuple[Points, Points]:
    both = [(a, b) for a, b in zip(across.values, up.values, strict=True) if len(finite_values((a, b))) == 2]
    points = np.asarray(both, dtype=float).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def _legend_patches(series: Sequence[Series]) -> Legend:
    return [(Patch(facecolor=series_color(place), alpha=0.7), one.name) for place, one in enumerate(series)]


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [shorten_label(name) for name in names])
    axes.set_ylim(-0.55, max(0, len(names) - 1) + 0.55)
    axes.tick_params(axis="y", length=0)


def _annotate_margin(axes: Axes, height: float, text: str) -> None:
    """A number in the right margin of a row."""
    axes.text(1.012, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)


def _label_axes(axes: Axes, x: Axis, y: Axis) -> None:
    axes.set_xlabel(_wrap_label(x.label, 56))
    axes.set_ylabel(_wrap_label(y.label, 24))
    if x.limits and x.limits[0] < x.limits[1]:
        axes.set_xlim(x.limits)
    if y.limits and y.limits[0] < y.limits[1]:
        axes.set_ylim(y.limits)


def _wrap_label(label: str, letters: int) -> str:
    """The label in at most two lines, cut with an ellipsis where they are not enough."""
    return textwrap.fill(replace_unprintable(label), letters, max_lines=2, placeholder="…", break_on_hyphens=False)
