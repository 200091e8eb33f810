"""Charts as SVG: rendered by matplotlib without its global state, then made safe and theme-aware for an HTML page.

The same chart always gives the same bytes. Text stays text, in the font of the page, and is never read as mathematics.
Black becomes `currentColor`, the two heat colours become classes; no style attribute and no foreign id is left, because
the security policy of the page refuses the first and several charts share one page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from heedful.figures import INK, NEGATIVE, NO_NUMBERS, POSITIVE, Chart, printable

_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "heedful",
    "image.composite_image": False,
    "text.parse_math": False,
    "text.usetex": False,
    "path.simplify": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 11.5,
    "axes.labelsize": 11.5,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.borderpad": 0.1,
    "figure.facecolor": "none",
}
_PAINT = {INK: "currentColor"}
_CLASSES = {POSITIVE: "positive", NEGATIVE: "negative"}
_MAX_WIDTH = 420
"""Wider drawings (in points) keep their size and scroll."""
_LINE, _LETTER = 0.22, 0.082
"""Height of a line of labels and mean width of a letter, in inches."""
_PROPERTIES = re.compile(
    "(fill|stroke)(-opacity)?|stroke-(width|dasharray|dashoffset|linecap|linejoin)"
    "|opacity|font-size|font-weight|text-anchor|image-rendering"
)
_REFERENCE = re.compile(r"url\(#([^)]+)\)|^#(.+)$")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def svg(chart: Chart, prefix: str = "figure") -> str:
    """The chart as an `<svg>` element for an HTML page; ids inside it start with `prefix`."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", prefix):
        raise ValueError(f"the prefix of ids must be lower-case letters, digits and hyphens, not {prefix!r}")
    with style.context(["default", _STYLE]):  # "default": settings of the user must not change the report
        source = ElementTree.fromstring(_draw(chart))
    width, height = (float(number) for number in source.attrib["viewBox"].split()[2:])
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:.0f}",
        "height": f"{height:.0f}",
        "role": "img",
        "aria-labelledby": f"{prefix}-title",
        "stroke-linejoin": "round",
        **({"class": "wide"} if width > _MAX_WIDTH else {}),
    }
    root = ElementTree.Element("svg", attributes)
    ElementTree.SubElement(root, "title", {"id": f"{prefix}-title"}).text = printable(chart.title)
    references = [found for each in source.iter() for value in each.attrib.values() for found in _references(value)]
    ids = {name: f"{prefix}-{place}" for place, name in enumerate(dict.fromkeys(references))}
    root.extend(part for child in source for part in _clean(child, ids))
    return ElementTree.tostring(root, encoding="unicode")


def _draw(chart: Chart) -> str:
    remarks = chart.remarks()
    empty = NO_NUMBERS in remarks
    width, height = (chart.size[0], 1.2) if empty else chart.size
    canvas = Canvas(figsize=(width, height))
    axes = canvas.add_subplot()
    if empty:
        axes.set_axis_off()
        axes.text(0.5, 0.5, NO_NUMBERS, transform=axes.transAxes, ha="center", va="center", fontsize=12)
    else:
        chart.draw(axes)
        left, right, bottom, top = _margins(axes)
        handles, labels = axes.get_legend_handles_labels()
        if len(labels) > 1:
            columns = max(1, min(4, 60 // (6 + max(map(len, labels)))))
            canvas.legend(handles, labels, loc="upper left", ncols=columns, handlelength=1.8)
            top += _LINE * -(-len(labels) // columns)
        if remarks:
            canvas.text(0.01, 0.02, "; ".join(remarks), ha="left", va="bottom", fontsize=9.5)
            bottom += _LINE
        inside = max(0.2 * width, width - left - right)
        axes.set_position((left / width, bottom / height, inside / width, max(0.2, 1 - (bottom + top) / height)))
        if _LETTER * max(map(len, axes.get_xlabel().split("\n"))) > inside:
            axes.xaxis.label.set(x=1.0, ha="right")
    text = io.BytesIO()
    with warnings.catch_warnings():  # the browser has the fonts for emoji and other scripts
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().decode()


def _margins(axes: Axes) -> tuple[float, float, float, float]:
    """Inches left, right, below and above the axes, estimated from the lengths of the labels.

    The browser chooses the font, so that measuring the labels (a second pass over the drawing) would gain nothing.
    """

    def extent(labels: Iterable[Text]) -> float:
        return max((_LETTER * len(line) for each in labels for line in each.get_text().splitlines()), default=0.0)

    across, down = axes.get_xticklabels(), axes.get_yticklabels()
    on_top = bool(axes.xaxis.get_tick_params().get("labeltop"))
    lines = max((each.get_text().count("\n") + 1 for each in across), default=1)
    steep = any(each.get_rotation() for each in across)
    ticks = 0.7 * extent(across) if steep else _LINE * lines
    beside = extent(
        each for each in axes.texts if each.get_position()[0] > 1 and each.get_transform() != axes.transData
    )
    left = 0.2 + extent(down) + _LINE * (axes.get_ylabel().count("\n") + 1 if axes.get_ylabel() else 0)
    right = max(0.15, beside + 0.1, 0.6 * extent(across[-1:]) if steep else 0.0)
    labelled = _LINE * (axes.get_xlabel().count("\n") + 1) if axes.get_xlabel() else 0.0
    below, above = (labelled, ticks) if on_top else (labelled + ticks, 0.0)
    return left, right, below + 0.15, above + 0.15


def _references(value: str) -> Iterator[str]:
    if match := _REFERENCE.search(value):
        yield match[1] or match[2]


def _clean(element: ElementTree.Element, ids: dict[str, str]) -> Iterator[ElementTree.Element]:
    """The element with safe attributes; metadata, styles, unpainted paths and groups without attributes are dropped."""
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return
    attributes = _attributes(element, ids)
    children = [part for child in element for part in _clean(child, ids)]
    unpainted = attributes.get("fill") == "none" and "stroke" not in attributes
    unpainted = tag == "path" and (unpainted or "d" not in attributes)
    if unpainted or (tag in ("g", "defs") and not children):
        return
    if tag == "g" and not attributes:
        yield from children
        return
    clean = ElementTree.Element(tag, attributes)
    clean.text = element.text.replace("\u200b", "") if tag == "text" and element.text else None
    clean.extend(children)
    yield clean


def _attributes(element: ElementTree.Element, ids: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if name == "style":
            declared = (part.partition(":") for part in value.split(";"))
            found |= {key.strip(): text.strip() for key, _, text in declared if _PROPERTIES.fullmatch(key.strip())}
        elif name == "id":
            found |= {"id": ids[value]} if value in ids else {}
        elif reference := next(_references(value), None):
            found[name] = value.replace(f"#{reference}", f"#{ids[reference]}")
        elif not value.startswith("rotate(-0 "):
            found[name] = _round_numbers(value)
    classes = [f"{name}-{_CLASSES[found[name]]}" for name in ("fill", "stroke") if found.get(name) in _CLASSES]
    found = {name: _PAINT.get(value, value) for name, value in found.items()}
    return found | ({"class": " ".join(classes)} if classes else {})


def _round_numbers(value: str) -> str:
    """Two decimals, one in long paths: finer than a screen shows, a third of the bytes."""
    decimals = 1 if len(value) > 600 else 2
    text = _LONG_NUMBER.sub(lambda m: f"{float(m[0]):.{decimals}f}".rstrip("0").rstrip("."), value)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", text).rstrip() if text.startswith("M ") else text
