"""Explanations in a terminal: words colored by their scores, or marked with + and - where there is no color.

Shades are steps, not a gradient: a weak score colors the letters and a strong one the background, which reads alike on
light and on dark terminals. Words that speak against the class are also underlined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from heedful.figures import Heatmap, Series
from heedful.formatting import terminal_line

_LEVELS = (0.1, 0.35, 0.65)
"""Shares of the largest score of a row from which a word has one, two or three steps of shade."""
# Terminals of 16 colors show yellow and red, blue and cyan, magenta and white.
_SHADES = {
    "positive": ("#d75f00", "black on #ffaf5f", "bold black on #ff8700"),
    "negative": ("underline #5f87ff", "underline black on #5fafff", "underline bold black on #5f87ff"),
    "weight": ("#af5fd7", "black on #d7afff", "bold black on #d75fff"),
}
_MARKS = {"positive": "+", "negative": "-", "weight": "*"}


def print_heatmap(figure: Heatmap, console: Console | None = None) -> None:
    """Print a heading, one row of shaded words per method, a legend and the notes."""
    console = console or Console(highlight=False)
    has_color = console.color_system is not None and not console.no_color
    console.print(Text(terminal_line(figure.title), style="bold"))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True, max_width=max(12, console.width // 3), overflow="ellipsis")
    rows.add_column(overflow="fold")
    for row in figure.rows:
        name = Text(terminal_line(row.name), style="bold")
        name.append(f"\n{terminal_line(row.remark)}" if row.remark else "", style="not bold dim")
        rows.add_row(name, _shaded_units(figure, row, has_color=has_color))
    console.print(rows)
    console.print(_legend(figure, has_color=has_color))
    for note in figure.notes:
        console.print(Text(f"Note: {terminal_line(note)}", style="dim"))


STYLES = {"good": "green", "bad": "red", "partial": "yellow", "quiet": "dim", "": ""}
"""Styles of cells in tables; the words say the same without color."""


def print_table(
    heading: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[tuple[str, str]]],
    notes: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print a sentence, a table and notes.

    Args:
        rows: of cells, each a text and the name of one of `STYLES`.
    """
    console = console or Console(highlight=False)
    console.print(Text(terminal_line(heading), style="bold"))
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for position, column in enumerate(columns):
        # The names of rows stay whole as long as other columns can be folded.
        table.add_column(terminal_line(column), overflow="fold", no_wrap=position == 0)
    for row in rows:
        table.add_row(*(Text(terminal_line(text), style=STYLES[style]) for text, style in row))
    console.print(table)
    for note in notes:
        console.print(Text(terminal_line(note)))


def shade_level(share: float) -> int:
    """The step of shade of a score, from 0 to 3.

    >>> [shade_level(share) for share in (0.05, 0.1, -0.4, 1.0, math.nan)]
    [0, 1, 2, 3, 0]
    """
    return sum(abs(share) >= level for level in _LEVELS)


def _shaded_units(figure: Heatmap, row: Series, *, has_color: bool) -> Text:
    shown, parts, peak = Text(), figure.parts or (0,) * len(figure.units), row.peak
    for number, (unit, part, value) in enumerate(zip(figure.units, parts, row.values, strict=True)):
        if number:
            shown.append(" " if part == parts[number - 1] else "\n")
        share = value / peak if peak else value
        word = terminal_line(unit.removeprefix(" "))
        shown.append(_shaded(word, share, is_signed=row.is_signed, has_color=has_color))
    return shown


def _shaded(word: str, share: float, *, is_signed: bool, has_color: bool) -> Text:
    if math.isnan(share):
        return Text(word, style="dim")
    level = shade_level(share)
    sign = "negative" if share < 0 else "positive" if is_signed else "weight"
    if not level:
        return Text(word)
    if has_color:
        return Text(word, style=Style.parse(_SHADES[sign][level - 1]))
    return Text(word + level * _MARKS[sign])


def _legend(figure: Heatmap, *, has_color: bool) -> Text:
    meanings = []
    if any(row.is_signed for row in figure.rows):
        meanings += [(1.0, True, figure.meanings[0]), (-1.0, True, figure.meanings[1])]
    if not all(row.is_signed for row in figure.rows):
        meanings.append((1.0, False, "large weight, without sign"))
    shown = Text()
    for share, is_signed, meaning in meanings:
        shown.append("   " if shown else "")
        shown.append(_shaded("word", share, is_signed=is_signed, has_color=has_color))
        shown.append(f" {terminal_line(meaning)}")
    return shown
