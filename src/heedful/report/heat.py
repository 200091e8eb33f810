"""Token heat-maps: the text itself, each unit on a ground as strong as its weight.

Shades are steps of a twentieth of the heaviest weight in the row, named by class (`p20` ... `p01`, `n01` ...
`n20`), so that no style attribute is needed and every shade keeps its contrast in both themes.
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.core.figures import Heatmap, Series
from heedful.report.content import TableView
from heedful.report.numbers import number
from heedful.report.spoken import finite, sentences

_STEPS = 20
_AT_FIRST = 90
_SHORT = 30
_WORD_STARTS = ("Ġ", "▁", " ")


@dataclass(frozen=True)
class Token:
    """A unit as it is set: the space before it, its letters, its shade and its weight in figures."""

    gap: str
    text: str
    shade: str
    weight: str


@dataclass(frozen=True)
class Strip:
    """The text under one row of weights: what is seen at first, and the rest of a long text."""

    name: str
    head: tuple[Token, ...]
    rest: tuple[Token, ...]
    peak: str
    is_signed: bool


@dataclass(frozen=True)
class HeatView:
    """A heat-map ready for the page, with its numbers as a table for those who cannot point at a word.

    Args:
        more: units that are folded away.
        is_short: whether rows are better compared one below the other than side by side.
    """

    title: str
    caption: str
    strips: tuple[Strip, ...]
    words: tuple[str, ...]
    numbers: TableView
    more: int
    is_short: bool


def heat(heatmap: Heatmap) -> HeatView:
    """The heat-map as it is to be set."""
    for row in heatmap.rows:
        if len(row.values) != len(heatmap.units):
            sizes = f"{len(row.values)} weights for {len(heatmap.units)} units"
            raise ValueError(f"heat-map {heatmap.title!r}, row {row.name!r}: {sizes}")
    letters = spelled(heatmap.units)
    numbers = TableView(
        f"Weights: {heatmap.title}",
        ("unit", *(row.name for row in heatmap.rows)),
        tuple((unit, *(row.values[place] for row in heatmap.rows)) for place, unit in enumerate(heatmap.units)),
    )
    strips = tuple(_strip(row, letters) for row in heatmap.rows)
    more = max((len(strip.rest) for strip in strips), default=0)
    is_short = len(heatmap.units) <= _SHORT
    return HeatView(heatmap.title, heatmap.caption, strips, sentences(heatmap), numbers, more, is_short)


def spelled(units: tuple[str, ...]) -> list[tuple[str, str]]:
    """The space before each unit and its letters: words stand apart, pieces of a word stand together.

    Pieces are known by the marks of their tokenizer: `##` before a piece that continues a word, or `Ġ`, `▁`
    or a space before a piece that starts one.

    >>> spelled(("play", "##ing", "well"))
    [('', 'play'), ('', 'ing'), (' ', 'well')]
    >>> spelled(("Ġplay", "ing", "Ġwell"))
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
    return [("" if place == 0 else gap, text) for place, (gap, text) in enumerate(pairs)]


def _strip(row: Series, letters: list[tuple[str, str]]) -> Strip:
    known = finite(row.values)
    peak = max((abs(value) for value in known), default=0.0)
    tokens = tuple(
        Token(gap, text, shade(value, peak), number(value))
        for (gap, text), value in zip(letters, row.values, strict=True)
    )
    # A rest of a few words is not worth a fold.
    cut = _AT_FIRST if len(tokens) > _AT_FIRST * 4 // 3 else len(tokens)
    return Strip(row.name, tokens[:cut], tokens[cut:], number(peak), min(known, default=0.0) < 0)


def shade(value: float | None, peak: float) -> str:
    """The class of a weight's shade, its share of the heaviest in twentieths; "" for none, "u" for undefined.

    >>> shade(0.5, 0.5), shade(-0.1, 0.5), shade(0.001, 0.5), shade(float("nan"), 0.5)
    ('p20', 'n04', '', 'u')
    """
    if value is None or not finite((value,)):
        return "u"
    step = round(_STEPS * abs(value) / peak) if peak else 0
    return f"{'n' if value < 0 else 'p'}{step:02d}" if step else ""
