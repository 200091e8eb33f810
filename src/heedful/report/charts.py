"""Charts as SVG elements for an HTML page.

The text is written directly: a report has hundreds of charts, and a plotting library takes a tenth of a second for each.
The same chart always gives the same bytes. Text stays text, in the font of the page. Ink becomes `currentColor`, the two
heat colours become classes; there is no style attribute, because the security policy of the page refuses it.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from heedful.figures import (
    DOT,
    INK,
    NEGATIVE,
    NO_NUMBERS,
    POSITIVE,
    Array,
    Axis,
    Chart,
    Drawing,
    Picture,
    Pixels,
    Shape,
    Ticks,
    short_label,
)
from heedful.formatting import page_text

_MAX_WIDTH = 420
"""Wider drawings (in points) scroll where there is less space."""
_FONT, _LINE, _LETTER = 10.5, 16.0, 5.9
"""Size of all text, height of a line and mean width of a letter, in points. The browser chooses the font."""
_SCALE = 1.125
"""Pixels per point: all drawings of a page are shown in one scale, so that their text has one size."""
_DIGIT = 6.7
"""Width of a digit in points in the widest font that a browser may choose."""
_MAX_CELL_WIDTH = 60.0
_MAX_TICKS = 7
_HANDLE = 22.0
_PAINT = {
    "none": 'fill="none"',
    INK: 'fill="currentColor"',
    POSITIVE: 'class="fill-positive"',
    NEGATIVE: 'class="fill-negative"',
}
_MARKERS = (
    "m-2.5,0a2.5,2.5 0 1 0 5,0a2.5,2.5 0 1 0-5,0",
    "m-2.3,-2.3h4.6v4.6h-4.6z",
    "m0,-2.9l2.9,5.3h-5.8z",
    "m0,-3.2l3.2,3.2l-3.2,3.2l-3.2,-3.2z",
    "m0,2.9l2.9,-5.3h-5.8z",
    "m-1,-3h2v2h2v2h-2v2h-2v-2h-2v-2h2z",
    "m0,-1.3l1.6,-1.6l1.3,1.3l-1.6,1.6l1.6,1.6l-1.3,1.3l-1.6,-1.6l-1.6,1.6l-1.3,-1.3l1.6,-1.6l-1.6,-1.6l1.3,-1.3z",
    "m0,-3.5l.9,2.4h2.5l-2,1.5l.8,2.4l-2.2,-1.5l-2.2,1.5l.8,-2.4l-2,-1.5h2.5z",
)


@dataclass(frozen=True)
class _Scale:
    """From data coordinates to points: `low` is at `start`, `high` at `start + length`."""

    low: float
    high: float
    start: float
    length: float

    def __call__(self, values: Array | float) -> Array:
        span = self.high / 2 - self.low / 2  # halves: the difference of two large numbers may be infinite
        return self.start + self.length * ((np.asarray(values) / 2 - self.low / 2) / span)


def svg(chart: Chart, prefix: str = "figure") -> str:
    """The chart as an `<svg>` element; ids inside it start with `prefix`."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", prefix):
        raise ValueError(f"the prefix of ids must be lower-case letters, digits and hyphens, not {prefix!r}")
    width, height = (72 * side for side in chart.size)
    remarks = chart.remarks()
    if NO_NUMBERS in remarks:
        height = 86.4
        parts: Iterable[str] = [_text(width / 2, height / 2, NO_NUMBERS, anchor="middle")]
    else:
        drawing = chart.draw()
        frame = _frame(drawing, width, height, "; ".join(remarks))
        width, height = frame.width, frame.height
        parts = _drawing_parts(drawing, frame, prefix)
    wide = ' class="wide"' if width > _MAX_WIDTH else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{_SCALE * width:.0f}" '
        f'height="{_SCALE * height:.0f}" role="img" aria-labelledby="{prefix}-title" stroke-linejoin="round"{wide}>'
        f'<title id="{prefix}-title">{escape(page_text(chart.title))}</title>{"".join(parts)}</svg>'
    )


_FILE_STYLE = (
    "<style>svg{color:#1d1c26;background:#fff;font-family:system-ui,'Liberation Sans',Arial,sans-serif}"
    f".fill-positive{{fill:{POSITIVE}}}.fill-negative{{fill:{NEGATIVE}}}</style>"
)


def svg_file(chart: Chart) -> str:
    """The chart as an SVG file of its own, with the colours and the font that a page would give it."""
    return svg(chart).replace("</title>", f"</title>{_FILE_STYLE}", 1) + "\n"


@dataclass(frozen=True)
class _Frame:
    """The size of a drawing, its margins, ticks and labels, all lengths in points."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    limits: tuple[tuple[float, float], tuple[float, float]]
    x_ticks: Ticks
    y_ticks: Ticks
    x_label: Sequence[str]
    y_label: Sequence[str]
    is_steep: bool
    tick_height: float
    remark: str


def _frame(drawing: Drawing, width: float, height: float, remark: str) -> _Frame:
    """The margins that the labels need; cells of a table that must have some size change that of the drawing."""
    limits = _limits(drawing, drawing.x, "xs"), _limits(drawing, drawing.y, "ys")
    x_ticks, y_ticks = (
        _round_ticks(*ends) if ticks is None else ticks
        for ends, ticks in zip(limits, (drawing.x_ticks, drawing.y_ticks), strict=True)
    )
    x_label, y_label = (_wrap(axis.label, most) for axis, most in ((drawing.x, 56), (drawing.y, 24)))
    # Columns of a table whose labels would meet are written at an angle.
    is_steep = drawing.is_table and not drawing.is_square and _longest(x_ticks) * len(x_ticks) > 60
    tick_height = 0.7 * _LETTER * _longest(x_ticks) if is_steep else _LINE * _line_count(x_ticks)
    left = 14 + _LETTER * _longest(y_ticks) + _LINE * len(y_label)
    margin = _DIGIT * max((len(note.text) for note in drawing.notes if note.x is None), default=0)
    right = max(11.0, margin + 8, 0.75 * _LETTER * _longest(x_ticks[-1:]) if is_steep else 0.0)
    top = 11.0 + (tick_height if drawing.is_table else 0.0) + _LINE * _legend(drawing, width)[1]
    bottom = 11.0 + _LINE * (len(x_label) + bool(remark)) + (0.0 if drawing.is_table else tick_height)
    if drawing.cell is not None:
        columns, rows = max(1, len(x_ticks)), max(1, len(y_ticks))
        column = min(_MAX_CELL_WIDTH, max(drawing.cell[0], (width - left - right) / columns))
        right = max(right, width - left - column * columns)
        width, height = left + column * columns + right, top + drawing.cell[1] * rows + bottom
    return _Frame(
        *(width, height, left, right, top, bottom, limits),
        *(x_ticks, y_ticks, x_label, y_label, is_steep, tick_height, remark),
    )


def _drawing_parts(drawing: Drawing, frame: _Frame, prefix: str) -> Iterator[str]:
    width, left, top, limits = frame.width, frame.left, frame.top, frame.limits
    if frame.remark:
        yield _text(4, frame.height - 5, frame.remark)
    inside = (
        max(0.2 * width, width - left - frame.right),
        max(0.2 * frame.height, frame.height - frame.bottom - top),
    )
    if drawing.is_square:
        unit = min(side / abs(ends[1] - ends[0]) for side, ends in zip(inside, limits, strict=True))
        inside = unit * abs(limits[0][1] - limits[0][0]), unit * abs(limits[1][1] - limits[1][0])
    x, y = _Scale(*limits[0], left, inside[0]), _Scale(*limits[1], top + inside[1], -inside[1])
    yield (
        f'<clipPath id="{prefix}-clip"><rect x="{left:g}" y="{top:g}" width="{inside[0]:g}" height="{inside[1]:g}"/>'
        "</clipPath>"
    )
    yield from _axes(drawing, x, y, frame.x_ticks, frame.y_ticks, is_steep=frame.is_steep)
    if drawing.corner:
        yield _text(left + inside[0], top - 4, drawing.corner, anchor="end")
    yield f'<g clip-path="url(#{prefix}-clip)">'
    yield from (_image(picture, x, y) for picture in drawing.pictures)
    yield from (_shape(shape, x(shape.xs), y(shape.ys)) for shape in drawing.shapes)
    yield "</g>"
    for note in drawing.notes:
        anchor_x = left + inside[0] + 4 if note.x is None else float(x(note.x))
        yield _text(anchor_x, float(y(note.y)) + 0.35 * _FONT, note.text, "" if note.x is None else "middle")
    yield from _legend(drawing, width)[0]
    floor = top + inside[1] + (0.0 if drawing.is_table else frame.tick_height)
    for number, line in enumerate(frame.x_label):
        is_long = _LETTER * len(line) > inside[0]
        anchor_x = width - 11 if is_long else left + inside[0] / 2
        yield _text(anchor_x, floor + _LINE * (number + 0.9), line, "end" if is_long else "middle")
    for number, line in enumerate(frame.y_label):
        at, middle = _LINE * (number + 0.8), top + inside[1] / 2
        yield _text(at, middle, line, "middle", f"rotate(-90 {at:g} {middle:g})")


def _axes(drawing: Drawing, x: _Scale, y: _Scale, across: Ticks, down: Ticks, *, is_steep: bool) -> Iterator[str]:
    """Grid lines, spines, ticks and their labels."""
    floor, right, top = y.start, x.start + x.length, y.start + y.length
    columns = [(float(x(value)), label) for value, label in across]
    rows = [(float(y(value)), label) for value, label in down]
    grid = [f"M{_short(at)},{top:g}V{floor:g}" for at, _ in columns if "x" in drawing.grid]
    grid += [f"M{x.start:g},{_short(at)}H{right:g}" for at, _ in rows if "y" in drawing.grid]
    if grid:
        yield f'<path d="{"".join(grid)}" stroke="currentColor" stroke-opacity=".13" stroke-width=".8"/>'
    if not drawing.is_table:
        lines = [f"M{x.start:g},{top:g}V{floor:g}H{right:g}"]
        lines += [f"M{_short(at)},{floor:g}v3.5" for at, _ in columns]
        lines += [f"M{x.start:g},{_short(at)}h-3.5" for at, _ in rows if drawing.y_ticks is None]
        yield f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-width=".8"/>'
    for at, label in columns:
        lines = label.split("\n")
        first = top - 4 - _LINE * (len(lines) - 1) if drawing.is_table else floor + 14
        if is_steep:
            yield _text(at, top - 4, label, transform=f"rotate(-40 {at:.1f} {top - 4:.1f})")
        else:
            yield from (_text(at, first + _LINE * n, line, "middle") for n, line in enumerate(lines))
    for at, label in rows:
        lines = label.split("\n")
        first = at + 3.7 - 6 * (len(lines) - 1)
        yield from (_text(x.start - 6, first + 12 * n, line, "end") for n, line in enumerate(lines))


def _legend(drawing: Drawing, width: float) -> tuple[list[str], int]:
    """Handles and names in columns from the upper left, and the number of rows."""
    if len(drawing.legend) < 2:
        return [], 0
    names = [short_label(name) for name, _ in drawing.legend]
    column = _HANDLE + 14 + _LETTER * max(map(len, names))
    count = max(1, min(4, int((width - 8) // column)))
    elements = []
    for number, (name, (_, shapes)) in enumerate(zip(names, drawing.legend, strict=True)):
        left, middle = 5 + column * (number % count), 10 + _LINE * (number // count)
        for shape in shapes:
            ends = np.asarray([left, left + _HANDLE - 4])
            if shape.marker is not None:
                ends = ends.mean(keepdims=True)
            ys = np.full(len(ends), middle)
            if shape.is_closed:
                ends, ys = ends[[0, 1, 1, 0]], middle + np.asarray([-4.0, -4.0, 4.0, 4.0])
            elements.append(_shape(shape, ends, ys))
        elements.append(_text(left + _HANDLE, middle + 3.7, name))
    return elements, -(-len(names) // count)


def _limits(drawing: Drawing, axis: Axis, name: str) -> tuple[float, float]:
    """The limits of the axis, or the range of all shapes with a margin; areas stand on zero without one."""
    if axis.limits and axis.limits[0] != axis.limits[1]:
        return axis.limits
    values = np.concatenate([shape.xs if name == "xs" else shape.ys for shape in drawing.shapes] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = 0.05 * (high - low) or max(0.05, 0.05 * abs(high))
    has_areas = low < high and any(shape.is_closed for shape in drawing.shapes)
    return low - margin * (not has_areas or low != 0), high + margin * (not has_areas or high != 0)


def _round_ticks(low: float, high: float) -> Ticks:
    """At most seven round numbers between the limits.

    >>> [label for _, label in _round_ticks(-0.04, 1.0)]
    ['0.0', '0.2', '0.4', '0.6', '0.8', '1.0']
    """
    least = (high - low) / _MAX_TICKS
    power = math.floor(math.log10(least))
    factor = next(factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * 10.0**power >= least)
    step = factor * 10.0**power
    ticks = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    decimals = max(0, -power + (factor == 2.5) - (factor == 10.0))
    style = f".{decimals}f" if decimals < 5 and max(abs(low), abs(high)) < 1e6 else ".3g"
    return [(tick, f"{tick + 0.0:{style}}".replace("-", "−")) for tick in ticks]


def _wrap(label: str, width: int) -> list[str]:
    return textwrap.wrap(page_text(label), width, max_lines=2, placeholder="…", break_on_hyphens=False)


def _longest(ticks: Ticks) -> int:
    return max((len(line) for _, label in ticks for line in label.split("\n")), default=0)


def _line_count(ticks: Ticks) -> int:
    return max((label.count("\n") + 1 for _, label in ticks), default=1)


def _shape(shape: Shape, xs: Array, ys: Array) -> str:
    """A path through these points, or markers at them; undefined points are gaps."""
    steps, is_open = [], False
    decimals = 1 if len(xs) > 60 else 2
    mark = "" if shape.marker is None else "h0" if shape.marker == DOT else _MARKERS[shape.marker % len(_MARKERS)]
    for x, y in zip(np.round(xs, decimals).tolist(), np.round(ys, decimals).tolist(), strict=True):
        is_defined = math.isfinite(x) and math.isfinite(y)
        if is_defined:
            steps.append(f"{' ' if is_open else 'M'}{x:g},{y:g}{mark}")
        is_open = is_defined and not mark
    paint = _PAINT.get(shape.fill, f'fill="{shape.fill}"')
    if shape.stroke != "none":
        color = "currentColor" if shape.stroke == INK else shape.stroke
        paint += f' stroke="{color}" stroke-width="{shape.width:g}"'
        paint += ' stroke-linecap="round"' if shape.marker == DOT else ""
        if shape.dashes:
            paint += f' stroke-dasharray="{" ".join(f"{dash * shape.width:g}" for dash in shape.dashes)}"'
    opacity = f' opacity="{shape.opacity:.3g}"' if shape.opacity < 1 else ""
    return f'<path d="{"".join(steps)}{"Z" * shape.is_closed}" {paint}{opacity}/>' if steps else ""


def _image(picture: Picture, x: _Scale, y: _Scale) -> str:
    left, top = float(x(picture.left)), float(y(picture.top))
    size = (float(x(picture.left + picture.side)) - left, float(y(picture.top + picture.side)) - top)
    return (
        f'<image x="{left:.2f}" y="{top:.2f}" width="{size[0]:.2f}" height="{size[1]:.2f}" '
        f'preserveAspectRatio="none" image-rendering="pixelated" href="data:image/png;base64,{png_base64(picture.pixels)}"/>'
    )


def png_base64(pixels: NDArray[np.uint8]) -> str:
    """An image `[height width channel]` with 3 or 4 channels as a PNG file in base64."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def png_pixels(image: str) -> Pixels:
    """A PNG file in base64 as an image again; a grey pixel if it is empty."""
    if not image:
        return Pixels((((0.5, 0.5, 0.5),),))
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(image)), formats=["png"]) as opened:
        pixels = np.asarray(opened.convert("RGB"), dtype=np.float32) / np.float32(255)
    return Pixels(tuple(tuple((red, green, blue) for red, green, blue in row) for row in pixels.tolist()))


def _text(x: float, y: float, text: str, anchor: str = "", transform: str = "") -> str:
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    turned = f' transform="{transform}"' if transform else ""
    position = f'x="{_short(x)}" y="{_short(y)}" font-size="{_FONT:g}"'
    return f'<text {position} fill="currentColor"{anchored}{turned}>{escape(text)}</text>'


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
