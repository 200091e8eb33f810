"""Token heat-maps: the text with each token shaded by its weight.

This, the macro in `templates/parts.html` and `heatmap.css` are the only HTML of a heat-map: reports, audits, explorers,
explained texts and studies use them.
A shade is the share of the heaviest weight of its row in twentieths, given as a class (`p01` ... `p20` for positive,
`n01` ... `n20` for negative weights, `w01` ... `w20` for weights without sign), so that no style attribute is needed and
text keeps its contrast in both themes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from heedful.figures import Heatmap, Series
from heedful.formatting import format_number

SHADES = 20
_SHADES = {sign: ("", *(f"{sign}{step:02d}" for step in range(1, SHADES + 1))) for sign in "pnw"}
_FOLD_AFTER = 90
"""Tokens of a long text that are visible at first."""
_ALIGNED_UP_TO = 30
"""Tokens up to which rows stand one below the other."""
_WORD_STARTS = ("Ġ", "▁", " ")


@dataclass(frozen=True)
class HeatmapRow:
    """The text under one row of weights.

    Args:
        texts: the visible text, one for each part of a pair; then the folded rest, if there is one.
    """

    series: Series
    texts: tuple[Markup, ...]

    @property
    def peak(self) -> str:
        return format_number(self.series.peak)

    @property
    def has_negative(self) -> bool:
        return any(value is not None and value < 0 for value in self.series.values)


@dataclass(frozen=True)
class HeatmapView:
    """A heat-map for the templates."""

    figure: Heatmap
    rows: tuple[HeatmapRow, ...]
    folded: int
    """Number of tokens in the folded part."""

    @property
    def layout(self) -> str:
        """CSS class: rows below each other for short texts, side by side for long ones."""
        if len(self.rows) < 2:
            return ""
        return "aligned" if len(self.figure.units) <= _ALIGNED_UP_TO else "beside"

    @property
    def is_signed(self) -> bool:
        return any(row.series.is_signed for row in self.rows)

    @property
    def has_weights(self) -> bool:
        """Whether some weights have no sign."""
        return not all(row.series.is_signed for row in self.rows)


def heatmap_view(figure: Heatmap, marked: Collection[int] = ()) -> HeatmapView:
    """Tokens, gaps and shades of a heat-map; a long single text is folded.

    Args:
        marked: numbers of the units that are underlined in the first row.
    """
    count = len(figure.units)
    cut = _FOLD_AFTER if not figure.parts and count > _FOLD_AFTER * 4 // 3 else count
    starts = [unit for unit in range(1, count) if figure.parts and figure.parts[unit] != figure.parts[unit - 1]]
    spaced = [("" if unit in starts else gap, text) for unit, (gap, text) in enumerate(token_spacing(figure.units))]
    ends = [0, *starts, cut, *([count] if cut < count else [])]
    rows = []
    for number, row in enumerate(figure.rows):
        spans = shaded_spans(spaced, row, () if number else marked)
        # Safe: the text is escaped.
        texts = (Markup("".join(spans[start:end])) for start, end in itertools.pairwise(ends))
        rows.append(HeatmapRow(row, tuple(texts)))
    return HeatmapView(figure, tuple(rows), count - cut)


def shaded_spans(
    spaced: Sequence[tuple[str, str]], row: Series, marked: Collection[int] = (), *, has_titles: bool = True
) -> list[str]:
    """Each token as escaped HTML, with its gap before it, the class of its shade and perhaps its weight as title."""
    spans, peak = [], row.peak
    for unit, ((gap, text), value) in enumerate(zip(spaced, row.values, strict=True)):
        shade = shade_class(value, peak, is_signed=row.is_signed) + (" hit" if unit in marked else "")
        name = f' class="{shade.lstrip()}"' if shade else ""
        title = f' title="{format_number(value)}"' if has_titles else ""
        spans.append(f"{gap}<span{name}{title}>{escape(text)}</span>")
    return spans


def token_spacing(units: Sequence[str]) -> list[tuple[str, str]]:
    """The space before each token and its text: pieces of one word stand together.

    Pieces are recognised by the marks of their tokenizer: `##` continues a word; `Ġ`, `▁` or a space starts one.

    >>> token_spacing(("play", "##ing", "well")) == token_spacing(("Ġplay", "ing", "Ġwell"))
    True
    >>> token_spacing(("play", "##ing", "well"))
    [('', 'play'), ('', 'ing'), (' ', 'well')]
    """
    marked = any(unit.startswith(_WORD_STARTS) and len(unit) > 1 for unit in units)
    pairs = []
    for unit in units:
        if len(unit) > 2 and unit.startswith("##"):
            pairs.append(("", unit[2:]))
        elif marked:
            starts = unit.startswith(_WORD_STARTS)
            pairs.append((" " if starts else "", unit[1:] if starts and len(unit) > 1 else unit))
        else:
            pairs.append((" ", unit))
    return [("" if number == 0 else gap, text) for number, (gap, text) in enumerate(pairs)]


def shade_class(value: float | None, peak: float, *, is_signed: bool = True) -> str:
    """The class of a shade; empty for no shade, "u" for an undefined weight.

    >>> shade_class(0.5, 0.5), shade_class(-0.1, 0.5), shade_class(0.001, 0.5), shade_class(float("nan"), 0.5)
    ('p20', 'n04', '', 'u')
    >>> shade_class(0.5, 1.0, is_signed=False)
    'w10'
    """
    if value is None or not math.isfinite(value):
        return "u"
    step = round(SHADES * abs(value) / peak) if peak else 0
    return _SHADES["n" if value < 0 else "p" if is_signed else "w"][step]
