"""Explained texts as HTML without scripts: a fragment for a notebook, or a page of its own.

Words that speak against the class are underlined; weights without sign have a color of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heedful.figures import Heatmap
from heedful.report.heatmap import heatmap_view
from heedful.report.html import HtmlDocument

_STYLES = ("heatmap.css", "explanation.css")
_FRAGMENT = HtmlDocument("explanation_fragment.html", _STYLES, ())
_PAGE = HtmlDocument("explanation_page.html", _STYLES, ())

Facts = Mapping[str, str]
"""Model, versions and other things to trace the scores of a text by."""


def explanation_fragment(texts: Sequence[tuple[Heatmap, Facts]]) -> str:
    """Explained texts as HTML for a notebook; everything is escaped."""
    return "".join(_FRAGMENT.render({"texts": [(heatmap_view(figure), facts) for figure, facts in texts]}))


def explanation_page(texts: Sequence[tuple[Heatmap, Facts]], title: str) -> str:
    """Explained texts as a self-contained page, which can neither run nor load anything."""
    views = [(heatmap_view(figure), facts) for figure, facts in texts]
    return "".join(_PAGE.render({"texts": views, "title": title}))
