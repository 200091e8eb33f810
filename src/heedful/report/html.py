"""HTML of the report: numbers and tables as text, and self-contained documents with a strict security policy.

A document holds its own style, script and data and loads nothing. Its policy admits only that style and that script by
their hashes, so that even a mistake in escaping could not run text from a corpus.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from heedful.figures import Chart, Heatmap
from heedful.formatting import format_difference, format_number, page_text
from heedful.store.atomic_write import atomic_path, refuse_write_errors, replace_text, try_to_write
from heedful.table_view import Cell, Comparison, TableView

MIXED_TOLERANCES = "within tolerance"
"""The heading of judgements whose tolerances differ from row to row."""
WIDE = 7
"""Columns from which published numbers are shown below ours, so that no judgement is out of sight."""
_MARKS = {"inside": "✓", "outside": "✗", "judged": "○"}


class DisplayCell(NamedTuple):
    """The text of a cell and its CSS class: text, number, missing, ours, published, difference, inside, outside.

    `below` is the published number of a wide table.
    """

    text: str
    kind: str = "text"
    below: str = ""


@dataclass(frozen=True)
class Heading:
    """A column; one with published numbers is split into `parts`, or has its tolerance as `hint` in a wide table."""

    name: str
    kind: str
    parts: tuple[str, ...] = ()
    hint: str = ""

    @property
    def span(self) -> int:
        """Number of columns on the page."""
        return max(1, len(self.parts))


@dataclass(frozen=True)
class DisplayTable:
    """A table as text: headings, some of them split into a second line, rows of cells, and notes.

    Args:
        groups: headings above those of the columns with the number of columns below them.
        legend: how to read the cells of a wide table.
    """

    headings: tuple[Heading, ...]
    rows: tuple[tuple[DisplayCell, ...], ...]
    note: str
    groups: tuple[tuple[str, int], ...] = ()
    legend: str = ""

    @property
    def html_rows(self) -> Iterator[Markup]:
        """The rows as HTML: a long report has a hundred thousand cells, for which a template takes twice the time."""
        for row in self.rows:
            if row:
                cells = "".join(map(_cell_html, row[1:]))
                head = f'<th scope="row" class="{row[0].kind}"><div><bdi>{escape(row[0].text)}</bdi></div></th>'
                yield Markup(f"<tr>{head}{cells}</tr>\n")  # safe: all texts of cells are escaped

    @property
    def is_wide(self) -> bool:
        """Whether there are so many columns that they stand closer."""
        return len(self.headings) > WIDE

    @property
    def is_compared(self) -> bool:
        """Whether a column has published numbers beside ours."""
        return any(heading.parts for heading in self.headings)

    @property
    def tally(self) -> str:
        """How many numbers are inside their tolerance, and how many are not judged; empty if there is no tolerance."""
        kinds = [cell.kind for row in self.rows for cell in row]
        inside, outside, unjudged = (kinds.count(kind) for kind in ("inside", "outside", "judged"))
        if not inside + outside + unjudged:
            return ""
        return f"Inside the tolerance: {inside} of {inside + outside}." + (f" Not judged: {unjudged}." * bool(unjudged))


def _cell_html(cell: DisplayCell) -> str:
    text, kind, below = cell
    if below:
        mark = f" <i>{_MARKS[kind]}</i>" if kind in _MARKS else ""
        return f'<td class="both {kind}">{escape(text)}{mark}<small>{escape(below)}</small></td>'
    if kind == "text":
        return f"<td><div><bdi>{escape(text)}</bdi></div></td>"
    return f'<td class="{kind}">{escape(text)}</td>'


def display_table(table: TableView) -> DisplayTable:
    """The table as text, with our numbers beside the published ones."""
    headings = tuple(_heading(name, [row[index] for row in table.rows]) for index, name in enumerate(table.columns))
    doubts = dict.fromkeys(cell.doubt for row in table.rows for cell in row if isinstance(cell, Comparison))
    note = " ".join(filter(None, [table.note, *(f"† {doubt}." for doubt in doubts if doubt)]))
    is_wide = bool(table.groups) or sum(heading.span for heading in headings) > WIDE
    if not (is_wide and any(heading.parts for heading in headings)):
        rows = tuple(
            tuple(cell for value, heading in zip(row, headings, strict=True) for cell in _display_cells(value, heading))
            for row in table.rows
        )
        return DisplayTable(headings, rows, note)
    rows = tuple(
        tuple(_display_both(value, heading) for value, heading in zip(row, headings, strict=True)) for row in table.rows
    )
    groups = tuple((name, len([*columns])) for name, columns in itertools.groupby(table.groups))
    narrow = tuple(
        replace(heading, parts=(), hint=heading.parts[-1] if len(heading.parts) > _UNJUDGED_PARTS else "")
        for heading in headings
    )
    return DisplayTable(narrow, rows, note, groups, _legend({cell.kind for row in rows for cell in row}))


_UNJUDGED_PARTS = 3


def _legend(kinds: Collection[str]) -> str:
    """How to read a number with the published one below it."""
    meanings = {"inside": "inside the tolerance", "outside": "outside", "judged": "not judged"}
    marks = [f"{_MARKS[kind]} {meaning}" for kind, meaning in meanings.items() if kind in kinds]
    return " ".join(["Above: ours; below: published.", *([f"{', '.join(marks)}."] if marks else [])])


def _display_both(cell: Cell, heading: Heading) -> DisplayCell:
    """A cell of a wide table: our number with its judgement, and the published one."""
    shown = _display_cells(cell, heading)
    if not isinstance(cell, Comparison) or cell.published is None or not heading.parts:
        return shown[0]
    kind = shown[-1].kind if len(heading.parts) > _UNJUDGED_PARTS else "ours"
    return DisplayCell(shown[0].text, "ours" if kind == "published" else kind, shown[1].text)


def _heading(name: str, cells: Sequence[Cell]) -> Heading:
    compared = [cell for cell in cells if isinstance(cell, Comparison) and cell.published is not None]
    if not compared:
        return Heading(name, "text" if any(isinstance(cell, str) and cell for cell in cells) else "number")
    judged = [cell for cell in compared if cell.limits is not None]
    tolerances = {None if cell.band is not None else cell.tolerance for cell in judged}
    (only,) = tolerances if len(tolerances) == 1 else (None,)
    parts = [MIXED_TOLERANCES if only is None else f"within ±{only:g}"] if judged else []
    return Heading(name, "number", ("ours", "published", "difference", *parts))


def _display_cells(cell: Cell, heading: Heading) -> list[DisplayCell]:
    """One cell, or as many as the heading has parts."""
    if isinstance(cell, str):
        shown = [DisplayCell(cell)]
    elif not isinstance(cell, Comparison):
        shown = [_number_cell(cell, "number")]
    else:
        printed = "–" if cell.published is None else format_number(cell.published) + "†" * bool(cell.doubt)
        shown = [
            _number_cell(cell.ours, "ours" if heading.parts else "number"),
            DisplayCell(printed, "published"),
            DisplayCell(format_difference(cell.ours, cell.published), "difference"),
            _tolerance_cell(cell, heading),
        ]
    shown += [DisplayCell("–", "published")] * (heading.span - len(shown))
    return shown[: heading.span]


def _number_cell(value: float | None, kind: str) -> DisplayCell:
    return DisplayCell(format_number(value), "missing" if value is None or math.isnan(value) else kind)


def _tolerance_cell(cell: Comparison, heading: Heading) -> DisplayCell:
    if cell.published is None or cell.ours is None or not math.isfinite(cell.ours):
        return DisplayCell("–", "published")
    judgement = cell.judgement
    if judgement is None:
        return DisplayCell("not judged", "judged")
    if judgement == "powerless":
        return DisplayCell(f"not judged: ±{cell.tolerance:g} includes 0", "judged")
    if cell.band is not None:
        return DisplayCell(f"{judgement}: {cell.band}", judgement)
    limit = f" ±{cell.tolerance:g}" if heading.parts[-1:] == (MIXED_TOLERANCES,) else ""
    return DisplayCell(judgement + limit, judgement)


def figure_table(figure: Chart | Heatmap) -> TableView:
    """The numbers of a figure as a table."""
    columns, rows = figure.cells()
    return TableView(f"Numbers: {figure.title}", tuple(columns), tuple(tuple(map(_plain, row)) for row in rows))


def _plain(value: object) -> Cell:
    if value is None or isinstance(value, str | Integral):
        return value if not isinstance(value, Integral) else int(value)
    return float(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class HtmlDocument:
    """A kind of document: its template, and the files of its style and script."""

    template: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    def render(self, values: Mapping[str, object]) -> Iterator[str]:
        """The document as text, part by part; every string in `values` is escaped."""
        (style, style_hash), (script, script_hash) = map(_join_files, (self.styles, self.scripts))
        assets = {"style": style, "script": script, "style_hash": style_hash, "script_hash": script_hash}
        parts = _environment().get_template(self.template).stream({**values, **assets})
        parts.enable_buffering(5)  # a part may be a whole section: many of them would be megabytes
        yield from map(page_text, parts)
        yield "\n"


def check_report_folder(folder: Path) -> None:
    """UserError if no report can be written to the folder."""
    with refuse_write_errors(f"the report to {folder / 'index.html'}", "choose another folder"):
        try_to_write(folder)
        if (folder / "index.html").is_dir():
            raise IsADirectoryError(0, "it is a folder")


def write_atomically(parts: Iterable[str] | bytes, target: Path) -> Path:
    """Write a text or a binary file completely or not at all; UserError if that is impossible."""
    with refuse_write_errors(f"the report to {target}", "choose another folder"):
        if isinstance(parts, bytes):
            with atomic_path(target) as draft:
                draft.write_bytes(parts)
        else:
            replace_text(target, parts)
    return target


def template_environment(read: Callable[[str], str]) -> Environment:
    """Templates by name, in which every text is escaped and nothing may be undefined."""
    return Environment(
        loader=FunctionLoader(read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


@functools.cache
def _environment() -> Environment:
    environment = template_environment(read_template)
    environment.filters["display"] = lambda value: value if isinstance(value, str) else format_number(value)
    environment.tests["heatmap"] = lambda figure: isinstance(figure, Heatmap)
    environment.globals.update(display_table=display_table, figure_table=figure_table)
    return environment


def read_template(name: str) -> str:
    """A file of the package's templates of pages."""
    return resources.files("heedful.report").joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def _join_files(names: tuple[str, ...]) -> tuple[Markup, str]:
    """The files of a style or script as one, with its hash in a Content-Security-Policy."""
    text = "\n".join(map(read_template, names))
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"  # safe: these files are part of the package
