"""Figures in words: the sentences that stand for a chart where it cannot be seen, with its numbers.

They are the text alternative of every SVG and can be opened below it by everybody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from heedful.figures import (
    Axis,
    Bars,
    Figure,
    Heatmap,
    Histogram,
    ImageGrid,
    Lines,
    Matrix,
    PatchScores,
    Pixels,
    Scatter,
    Series,
    Violin,
)
from heedful.report.numbers import format_number

NO_NUMBERS = "There are no numbers to draw."


def finite_values(values: Iterable[float | None]) -> list[float]:
    """The values that can be drawn: neither missing nor infinite."""
    return [float(v) for v in values if v is not None and math.isfinite(v)]


def describe_figure(figure: Figure) -> tuple[str, ...]:
    """What the figure shows, a sentence per row, series or curve, and what had to be left out."""
    return (*_describe_content(figure), *figure_remarks(figure))


def figure_remarks(figure: Figure) -> tuple[str, ...]:
    """What a reader of the drawing must know: undefined numbers, numbers beyond the limits of an axis."""
    shown, everything = 0, 0
    outside = 0
    for axis, values in _axis_values(figure):
        usable = finite_values(values)
        everything += len(values)
        shown += len(usable)
        low, high = axis.limits or (-math.inf, math.inf)
        outside += sum(not low <= v <= high for v in usable)
    if not shown:
        return (NO_NUMBERS,)
    undefined = f"{_pluralize(everything - shown, 'undefined value')} left out." if shown < everything else ""
    beyond = f"{_pluralize(outside, 'value')} beyond the limits of the axis." if outside else ""
    return tuple(remark for remark in (undefined, beyond) if remark)


def _axis_values(figure: Figure) -> list[tuple[Axis, Sequence[float | None]]]:
    free = Axis("")
    match figure:
        case Violin(x=x, groups=groups):
            return [(x, series.values) for group in groups for series in group]
        case Histogram(x=x, series=several):
            return [(x, series.values) for series in several]
        case Bars(x=x, series=several):
            return [(x, series.values) for series in several]
        case Scatter(x=x, y=y, points=pairs) | Lines(x=x, y=y, curves=pairs):
            return [(axis, s.values) for pair in pairs for axis, s in zip((x, y), pair, strict=True)]
        case Matrix(values=rows):
            return [(free, row) for row in rows]
        case ImageGrid(tiles=tiles):
            grids = [tile for row in tiles for tile in row if isinstance(tile, PatchScores)]
            return [(free, values) for tile in grids for values in tile.values]
        case Heatmap(rows=several):
            return [(free, series.values) for series in several]


def _describe_content(figure: Figure) -> list[str]:
    match figure:
        case Violin():
            return [
                f"{figure.y.label} {name}: {'; '.join(_describe_quartiles(series) for series in group)}."
                for name, group in zip(figure.bins, figure.groups, strict=True)
            ]
        case Histogram():
            return [f"{_describe_quartiles(series)}." for series in figure.series]
        case Scatter():
            return [_describe_scatter(*pair) for pair in figure.points]
        case Lines():
            return [_describe_curve(*pair) for pair in figure.curves]
        case Bars():
            return [_describe_bar(figure, place) for place in range(len(figure.labels))]
        case Matrix():
            return [
                f"{name}: {', '.join(f'{c} {format_number(v)}' for c, v in zip(figure.columns, row, strict=True))}."
                for name, row in zip(figure.rows, figure.values, strict=True)
            ]
        case ImageGrid():
            return [
                f"{name}: {'; '.join(_describe_tile(c, t) for c, t in zip(figure.columns, row, strict=True))}."
                for name, row in zip(figure.rows, figure.tiles, strict=True)
            ]
        case Heatmap():
            return [_describe_weights(series, figure.units) for series in figure.rows]


def _describe_quartiles(series: Series) -> str:
    values = finite_values(series.values)
    if not values:
        return f"{series.name}, no values"
    low, middle, high = (format_number(float(q)) for q in np.percentile(values, (25, 50, 75)))
    return f"{series.name}, {_pluralize(len(values), 'value')}, median {middle}, quartiles {low} and {high}"


def _describe_range(values: Sequence[float]) -> str:
    return f"{format_number(min(values))} to {format_number(max(values))}"


def _describe_scatter(x: Series, y: Series) -> str:
    pairs = [(a, b) for a, b in zip(x.values, y.values, strict=True) if finite_values((a, b)) == [a, b]]
    if not pairs:
        return f"{y.name}: no points."
    across, up = zip(*pairs, strict=True)
    return (
        f"{y.name}: {_pluralize(len(pairs), 'point')}, x from {_describe_range(across)}, y from {_describe_range(up)}."
    )


def _describe_curve(x: Series, y: Series) -> str:
    values = finite_values(y.values)
    if not values:
        return f"{y.name}: no points."
    ends = f"starts at {format_number(values[0])}, ends at {format_number(values[-1])}"
    return f"{y.name}: {_pluralize(len(values), 'point')}, {ends}, range {_describe_range(values)}."


def _describe_bar(figure: Bars, place: int) -> str:
    errors = {series.name: series.values[place] for series in figure.errors}
    parts = []
    for series in figure.series:
        margin = finite_values((errors.get(series.name),))
        spread = f" ± {format_number(margin[0])}" if margin else ""
        parts.append(f"{series.name} {format_number(series.values[place])}{spread}")
    return f"{figure.labels[place]}: {', '.join(parts)}."


def _describe_weights(series: Series, units: tuple[str, ...]) -> str:
    known = [(abs(v), unit, v) for unit, v in zip(units, series.values, strict=True) if finite_values((v,))]
    if not known:
        return f"{series.name}: no weights."
    _, unit, value = max(known, key=lambda entry: entry[0])
    return f"{series.name}: the heaviest unit is “{unit}” with {format_number(value)}."


def _describe_tile(name: str, tile: Pixels | PatchScores) -> str:
    if isinstance(tile, Pixels):
        return f"{name}, a picture"
    known = [(v, r, c) for r, row in enumerate(tile.values) for c, v in enumerate(row) if finite_values((v,))]
    if not known:
        return f"{name}, no numbers"
    value, row, column = max(known, key=lambda entry: entry[0])
    return f"{name}, most at row {row + 1}, column {column + 1} ({format_number(value)})"


def _pluralize(count: int, noun: str) -> str:
    return f"{format_number(count)} {noun}{'' if count == 1 else 's'}"
