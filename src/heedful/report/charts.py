"""Figure descriptions to SVG text, through matplotlib but without its global state.

The same figure always gives the same bytes. Text stays text (selectable, in the page's font); data strings
are never read as mathematics; the colours follow the page's theme (`report.ink`). A `Heatmap` is text and is
set in HTML by `report.heat`.
"""

from __future__ import annotations

import io
import re
import warnings

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from heedful.report.drawing import Chart, Legend, draw_chart, figure_size, shorten_label
from heedful.report.ink import FOREGROUND_COLOR, SvgCaption, theme_svg
from heedful.report.spoken import NO_NUMBERS, describe_figure, figure_remarks

_MATPLOTLIB_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "heedful",
    "text.parse_math": False,
    "text.usetex": False,
    "path.simplify": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 11.5,
    "axes.labelsize": 11.5,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10.5,
    "text.color": FOREGROUND_COLOR,
    "axes.labelcolor": FOREGROUND_COLOR,
    "axes.edgecolor": FOREGROUND_COLOR,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FOREGROUND_COLOR,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.8,
    "xtick.color": FOREGROUND_COLOR,
    "ytick.color": FOREGROUND_COLOR,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.borderpad": 0.1,
    "figure.facecolor": "none",
}


def svg(chart: Chart, prefix: str = "figure") -> str:
    """The chart as an `<svg>` element for an HTML page; ids inside it start with `prefix`."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", prefix):
        raise ValueError(f"the prefix of ids must be small letters, digits and hyphens: {prefix!r}")
    caption = SvgCaption(prefix, chart.title, " ".join(describe_figure(chart)))
    # "default" first: a user's own matplotlib settings must not change the report.
    with style.context(["default", _MATPLOTLIB_STYLE]):
        return theme_svg(_draw_svg(chart), caption)


def _draw_svg(chart: Chart) -> str:
    canvas = Canvas(figsize=figure_size(chart), layout="constrained")
    axes = canvas.add_subplot()
    notes = figure_remarks(chart)
    if NO_NUMBERS in notes:
        _draw_message(axes, NO_NUMBERS)
    else:
        _add_legend(canvas, draw_chart(chart, axes))
        if notes:
            canvas.supxlabel(" ".join(notes), x=0.01, ha="left", fontsize=9.5)
    text = io.BytesIO()
    with warnings.catch_warnings():
        # The browser brings the fonts: what matplotlib's own lacks (emoji, other scripts) is no concern here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().decode()


def _draw_message(axes: Axes, text: str) -> None:
    """The text in the middle of bare axes: an empty figure must say that it is empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=12)


def _add_legend(canvas: Canvas, legend: Legend) -> None:
    if len(legend) < 2:
        return
    samples, names = zip(*legend, strict=True)
    labels = [shorten_label(name) for name in names]
    columns = max(1, min(4, 60 // (6 + max(len(label) for label in labels))))
    canvas.legend(samples, labels, loc="outside upper left", ncols=columns, handlelength=1.8)
