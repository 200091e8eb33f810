"""Explanations in a terminal: words colored by their scores, or marked with + and - where there is no color.

Shades are steps, not a gradient: a weak score colors the letters and a strong one the background, which reads alike on
light and on dark terminals. Words that speak against the class are also underlined.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
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


LOG_WIDTH = 80
"""Columns of a log file, which has no width of its own."""
_INDENT, _GAP = "    ", 2


@dataclass(frozen=True)
class TableRow:
    """A row for the terminal.

    Args:
        cells: one per column; the first is the name of the row.
        style: one of `STYLES`.
        details: sentences below the row, indented.
    """

    cells: tuple[str, ...]
    style: str = ""
    details: tuple[str, ...] = ()


def print_table(
    headings: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[TableRow],
    notes: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print sentences, the first in bold, then a table and notes.

    Cells are never folded: where a row does not fit the width, its cells are below its name, with the names of their
    columns. Lines are folded between words.
    """
    console = console or _table_console()
    for number, heading in enumerate(headings):
        _print_wrapped(heading, "" if number else "bold", console)
    console.print()
    names, cells = [terminal_line(column) for column in columns], [[*map(terminal_line, row.cells)] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    fits = sum(widths) + _GAP * (len(widths) - 1) <= console.width
    if fits:
        console.print(Text(_spread(names, widths), style="bold"))
        console.print(Text("─" * (sum(widths) + _GAP * (len(widths) - 1))))
    for row, texts in zip(rows, cells, strict=True):
        style = STYLES[row.style]
        if fits:
            console.print(Text(_spread(texts, widths), style=style))
        else:
            _print_wrapped(texts[0], f"bold {style}", console)
            parts = [f"{name}: {text}" for name, text in zip(names[1:], texts[1:], strict=True) if text]
            _print_wrapped("; ".join(parts), style, console, _INDENT)
        for detail in row.details:
            _print_wrapped(detail, "dim", console, _INDENT)
    console.print()
    for note in notes:
        _print_wrapped(note, "", console)


def _table_console() -> Console:
    """The standard output, of `LOG_WIDTH` columns if it is not a terminal and `COLUMNS` does not name another width."""
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(highlight=False, width=LOG_WIDTH)


def _spread(texts: Sequence[str], widths: Sequence[int]) -> str:
    """The texts in columns of these widths, without spaces at the end."""
    padded = (text + " " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True))
    return (" " * _GAP).join(padded).rstrip()


def _print_wrapped(text: str, style: str, console: Console, indent: str = "") -> None:
    """The text in lines that fit the width, broken between words, without spaces at their ends."""
    wrapped = Text(terminal_line(text), style=style).wrap(console, max(1, console.width - len(indent)), overflow="fold")
    for line in wrapped:
        line.rstrip()
        console.print(Text(indent) + line)


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
