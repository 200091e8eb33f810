"""Colours by meaning instead of by value, so that one SVG serves the light and the dark page.

Drawings use the colours below as signs: `themed` turns the ink into `currentColor` and gives every other
coloured shape a class (`fill-series-0`, `stroke-positive`) that the style sheet overrides by theme; alone,
the SVG keeps the light theme's colours. No style attribute survives: the page's security policy refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

FOREGROUND_COLOR = "#010203"
# Jain & Wallace print class 0 purple, class 1 orange, class 2 green (darkened: #27f77d vanishes on white).
SERIES_COLORS = ("#43406b", "#d15a00", "#0b8f47", "#0072b2", "#b0307a", "#8a6d00", "#00808a", "#6b7280")
POSITIVE_COLOR = "#ff9a47"
NEGATIVE_COLOR = "#7fa8ff"
_CSS_CLASSES = {
    **{colour: f"series-{place}" for place, colour in enumerate(SERIES_COLORS)},
    POSITIVE_COLOR: "positive",
    NEGATIVE_COLOR: "negative",
}
# Wider than this (in points), a drawing keeps its size and is scrolled instead of shrunk.
_MAX_WIDTH_POINTS = 420
_SVG_PROPERTIES = re.compile(
    "(fill|stroke)(-opacity)?|stroke-(width|dasharray|dashoffset|linecap|linejoin)"
    "|opacity|font-size|font-weight|text-anchor"
)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)|^#(.+)$")


def replace_unprintable(text: str) -> str:
    """The text with the replacement character for every one that XML or UTF-8 cannot carry."""
    return _UNPRINTABLE.sub("\ufffd", text)


def series_color(place: int) -> str:
    """The colour of the series at this place; colours come round again after eight."""
    return SERIES_COLORS[place % len(SERIES_COLORS)]


@dataclass(frozen=True)
class SvgCaption:
    """The text alternative of an SVG, and the prefix that makes its ids its own."""

    prefix: str
    title: str
    description: str


def theme_svg(drawing: str, caption: SvgCaption) -> str:
    """A plotting library's SVG as a fragment for an HTML page: no ids but its own, no styles, no metadata."""
    source = ElementTree.fromstring(drawing)
    names = {name: f"{caption.prefix}-{place}" for place, name in enumerate(_referenced_ids(source))}
    width, height = (float(v) for v in source.attrib["viewBox"].split()[2:])
    root = ElementTree.Element("svg", _root_attributes(caption, width, height))
    for tag, text in (("title", caption.title), ("desc", caption.description)):
        ElementTree.SubElement(root, tag, {"id": f"{caption.prefix}-{tag}"}).text = replace_unprintable(text)
    root.extend(part for child in source for part in _clean_element(child, names))
    return ElementTree.tostring(root, encoding="unicode")


def _root_attributes(caption: SvgCaption, width: float, height: float) -> dict[str, str]:
    return {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:.0f}",
        "height": f"{height:.0f}",
        "role": "img",
        "aria-labelledby": f"{caption.prefix}-title {caption.prefix}-desc",
        **({"class": "wide"} if width > _MAX_WIDTH_POINTS else {}),
        "font-family": "system-ui, sans-serif",
        "stroke-linejoin": "round",
    }


def _referenced_ids(source: ElementTree.Element) -> list[str]:
    """Ids that something points to, in document order and once each."""
    found: dict[str, None] = {}
    for element in source.iter():
        for value in element.attrib.values():
            if match := _REFERENCE.search(value):
                found[match[1] or match[2]] = None
    return list(found)


def _clean_element(element: ElementTree.Element, names: dict[str, str]) -> Iterator[ElementTree.Element]:
    """The element in fresh form; a group that says nothing gives way to its children, metadata to nothing."""
    tag = element.tag.rpartition("}")[2]
    if tag in {"metadata", "style"}:
        return
    children = [part for child in element for part in _clean_element(child, names)]
    attributes = _clean_attributes(element, names)
    unpainted = tag == "path" and attributes.get("fill") == "none" and "stroke" not in attributes
    if unpainted or (tag in {"g", "defs"} and not children):
        return
    if tag == "g" and not attributes:
        yield from children
        return
    fresh = ElementTree.Element(tag, attributes)
    fresh.text = element.text if tag == "text" else None
    fresh.extend(children)
    yield fresh


def _clean_attributes(element: ElementTree.Element, names: dict[str, str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if name == "id":
            attributes |= {"id": names[value]} if value in names else {}
        elif name == "style":
            attributes |= _presentation_attributes(value)
        elif match := _REFERENCE.search(value):
            own = names[match[1] or match[2]]
            attributes[name] = f"url(#{own})" if match[1] else f"#{own}"
        elif not value.startswith("rotate(-0 "):
            attributes[name] = _round_numbers(value)
    return attributes


def _round_numbers(value: str) -> str:
    """Numbers with two decimals, one in long paths: finer than a screen shows, a third of the bytes."""
    decimals = 1 if len(value) > 600 else 2
    text = _LONG_NUMBER.sub(lambda m: f"{float(m[0]):.{decimals}f}".rstrip("0").rstrip("."), value)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", text).rstrip() if text.startswith("M ") else text


def _presentation_attributes(style: str) -> dict[str, str]:
    """Style declarations as presentation attributes, with a class for each colour that has a meaning."""
    declared = dict(part.split(":", 1) for part in style.split(";") if ":" in part)
    values = {name.strip(): value.strip() for name, value in declared.items()}
    if size := re.search(r"([\d.]+)px", values.get("font", "")):
        values["font-size"] = size[0]
    painted = {name: value for name, value in values.items() if value and _SVG_PROPERTIES.fullmatch(name)}
    classes = [
        f"{name}-{_CSS_CLASSES[painted[name]]}" for name in ("fill", "stroke") if painted.get(name) in _CSS_CLASSES
    ]
    painted = {name: "currentColor" if value == FOREGROUND_COLOR else value for name, value in painted.items()}
    return painted | ({"class": " ".join(classes)} if classes else {})
