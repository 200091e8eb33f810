"""Token heat-maps: the text itself, each unit on a ground as strong as its weight.

Shades are steps of a twentieth of the heaviest weight in the row, named by class (`p20` ... `p01`, `n01` ...
`n20`), so that no style attribute is needed and every shade keeps its contrast in both themes.
"""

from __future__ import annotations

from dataclasses import dataclass

from heedful.figures import Heatmap, Series
from heedful.papers._chapter import TableView
from heedful.report.numbers import format_number
from heedful.report.spoken import describe_figure, finite_values

_SHADE_LEVELS = 20
_INITIAL_TOKENS = 90
_SHORT_TEXT = 30
_WORD_STARTS = ("Ġ", "▁", " ")


@dataclass(frozen=True)
class HeatmapToken:
    """A unit as it is set: the space before it, its letters, its shade and its weight in figures."""

    gap: str
    text: str
    shade: str
    weight: str


@dataclass(frozen=True)
class HeatmapRow:
    """The text under one row of weights: what is seen at first, and the rest of a long text."""

    name: str
    head: tuple[HeatmapToken, ...]
    rest: tuple[HeatmapToken, ...]
    peak: str
    is_signed: bool


@dataclass(frozen=True)
class HeatmapView:
    """A heat-map ready for the page, with its numbers as a table for those who cannot point at a word.

    Args:
        more: units that are folded away.
        is_short: whether rows are better compared one below the other than side by side.
    """

    title: str
    caption: str
    strips: tuple[HeatmapRow, ...]
    words: tuple[str, ...]
    numbers: TableView
    more: int
    is_short: bool


def heatmap_view(heatmap: Heatmap) -> HeatmapView:
    """The heat-map as it is to be set."""
    for row in heatmap.rows:
        if len(row.values) != len(heatmap.units):
            sizes = f"{len(row.values)} weights for {len(heatmap.units)} units"
            raise ValueError(f"heat-map {heatmap.title!r}, row {row.name!r}: {sizes}")
    letters = token_spacing(heatmap.units)
    numbers = TableView(
        f"Weights: {heatmap.title}",
        ("unit", *(row.name for row in heatmap.rows)),
        tuple((unit, *(row.values[place] for row in heatmap.rows)) for place, unit in enumerate(heatmap.units)),
    )
    strips = tuple(_heatmap_row(row, letters) for row in heatmap.rows)
    more = max((len(strip.rest) for strip in strips), default=0)
    is_short = len(heatmap.units) <= _SHORT_TEXT
    return HeatmapView(heatmap.title, heatmap.caption, strips, describe_figure(heatmap), numbers, more, is_short)


def token_spacing(units: tuple[str, ...]) -> list[tuple[str, str]]:
    """The space before each unit and its letters: words stand apart, pieces of a word stand together.

    Pieces are known by the marks of their tokenizer: `##` before a piece that continues a word, or `Ġ`, `▁`
    or a space before a piece that starts one.

    >>> token_spacing(("play", "##ing", "well"))
    [('', 'play'), ('', 'ing'), (' ', 'well')]
    >>> token_spacing(("Ġplay", "ing", "Ġwell"))
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


def _heatmap_row(row: Series, letters: list[tuple[str, str]]) -> HeatmapRow:
    known = finite_values(row.values)
    peak = max((abs(value) for value in known), default=0.0)
    tokens = tuple(
        HeatmapToken(gap, text, shade_class(value, peak), format_number(value))
        for (gap, text), value in zip(letters, row.values, strict=True)
    )
    # A rest of a few words is not worth a fold.
    cut = _INITIAL_TOKENS if len(tokens) > _INITIAL_TOKENS * 4 // 3 else len(tokens)
    return HeatmapRow(row.name, tokens[:cut], tokens[cut:], format_number(peak), min(known, default=0.0) < 0)


def shade_class(value: float | None, peak: float) -> str:
    """The class of a weight's shade, its share of the heaviest in twentieths; "" for none, "u" for undefined.

    >>> shade_class(0.5, 0.5), shade_class(-0.1, 0.5), shade_class(0.001, 0.5), shade_class(float("nan"), 0.5)
    ('p20', 'n04', '', 'u')
    """
    if value is None or not finite_values((value,)):
        return "u"
    step = round(_SHADE_LEVELS * abs(value) / peak) if peak else 0
    return f"{'n' if value < 0 else 'p'}{step:02d}" if step else ""
