"""Explained texts as HTML without scripts: a fragment for a notebook, or a page of its own.

Shades are classes in tenths of the largest score of a row over the reader's own background, so that text keeps its
contrast in light and dark themes. Words that speak against the class are underlined; weights without sign have a colour
of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heedful.report.html import HtmlDocument, format_number
from heedful.scored_text import ScoredText, ScoreRow

STEPS = 10
_FRAGMENT = HtmlDocument("explanation_fragment.html", ("explanation.css",), ())
_PAGE = HtmlDocument("explanation_page.html", ("explanation.css",), ())


@dataclass(frozen=True)
class UnitView:
    """One word or token: its text, the CSS class of its shade, and its score as text."""

    text: str
    shade: str
    score: str


def explanation_fragment(texts: Sequence[ScoredText]) -> str:
    """Explained texts as HTML for a notebook; everything is escaped."""
    return "".join(_FRAGMENT.render({"texts": [_text_view(text) for text in texts]}))


def explanation_page(texts: Sequence[ScoredText], title: str) -> str:
    """Explained texts as a self-contained page, which can neither run nor load anything."""
    return "".join(_PAGE.render({"texts": [_text_view(text) for text in texts], "title": title}))


def step_class(share: float, *, is_signed: bool = True) -> str:
    """The CSS class of a share of the largest score; empty for no shade.

    >>> [step_class(share) for share in (1.0, -0.31, 0.04, math.nan)]
    ['p10', 'n3', '', 'hx-unread']
    >>> step_class(0.5, is_signed=False)
    'w5'
    """
    if math.isnan(share):
        return "hx-unread"
    step = round(STEPS * abs(share))
    sign = "n" if share < 0 else "p" if is_signed else "w"
    return f"{sign}{step}" if step else ""


def _text_view(text: ScoredText) -> Mapping[str, object]:
    numbers = [
        {"text": unit, "scores": [format_number(row.values[place]) for row in text.rows]}
        for place, unit in enumerate(text.units)
    ]
    return {
        "heading": text.heading,
        "positive": text.positive,
        "negative": text.negative,
        "is_signed": any(row.is_signed for row in text.rows),
        "has_weights": not all(row.is_signed for row in text.rows),
        "rows": [_row_view(text, row) for row in text.rows],
        "notes": text.notes,
        "facts": text.facts,
        "numbers": numbers,
    }


def _row_view(text: ScoredText, row: ScoreRow) -> Mapping[str, object]:
    units = [
        UnitView(unit, step_class(share, is_signed=row.is_signed), _score_text(value))
        for unit, share, value in zip(text.units, row.shares(), row.values, strict=True)
    ]
    parts = [
        [unit for unit, _ in group]
        for _, group in itertools.groupby(zip(units, text.parts, strict=True), key=lambda pair: pair[1])
    ]
    return {"name": row.name, "remark": row.remark, "peak": format_number(row.peak), "parts": parts}


def _score_text(value: float) -> str:
    if math.isnan(value):
        return "no score"
    return f"{'+' if value > 0 else ''}{format_number(value)}"
