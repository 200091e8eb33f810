"""Pages for looking up any text: a file for each subject beside the report, which loads when a reader opens it.

The page holds its texts as data; a small script searches, sorts and sets those that the reader asks for. Without a
script the first texts are shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from heedful.figures import Heatmap, Series
from heedful.report.collecting import collect_texts
from heedful.report.content import Link
from heedful.report.document import HtmlDocument, write_atomically
from heedful.report.numbers import format_number
from heedful.report.packing import texts_json
from heedful.report.shelves import TEXTS_FOLDER, ModelArtefacts
from heedful.report.texts import ExplorerText, ExplorerTexts

TEXTS_PER_PAGE = 20
"""Texts that are shown without a script, and on one page with it if they are short."""
LONG_TEXT_LENGTH = 100
"""Mean number of units from which on a page shows half as many texts."""
_EXPLORER_DOCUMENT = HtmlDocument("lookup.html", ("style.css", "lookup.css"), ("frame.js", "lookup.js"))
_FILE_PATTERN = re.compile(r"[a-z0-9-]+-[0-9a-f]{12}\.html")
_GENERATOR_TAG = '<meta name="generator" content="heedful">'


@dataclass(frozen=True)
class ClassOption:
    """A class that readers can choose, with the number of texts that have it."""

    value: int
    name: str
    count: int


def write_explorers(shelves: Sequence[ModelArtefacts], folder: Path) -> tuple[Path, ...]:
    """Writes a page for each subject whose texts are stored, and removes pages of subjects that are gone."""
    written = []
    readable = [shelf for shelf in shelves if shelf.attributions]
    for shelf in readable:
        others = tuple(
            _explorer_link(other) for other in readable if other is not shelf and _is_same_corpus(shelf, other)
        )
        written.append(write_atomically(explorer_html(collect_texts(shelf), others), folder / shelf.address))
    _remove_stale_pages(folder / TEXTS_FOLDER, {path.name for path in written})
    return tuple(written)


def _is_same_corpus(one: ModelArtefacts, other: ModelArtefacts) -> bool:
    return one.about.get("corpus") == other.about.get("corpus") and one.split == other.split


def _explorer_link(shelf: ModelArtefacts) -> Link:
    """The way to another subject's page from one beside it."""
    names = [str(value) for name, value in shelf.about.items() if name not in ("corpus", "seed")]
    return Link(", ".join([*names, f"seed {shelf.about.get('seed', 0)}"]), Path(shelf.address).name)


def _remove_stale_pages(folder: Path, kept: set[str]) -> None:
    """Removes pages that an earlier report left; other files stay: only what we wrote has our name and our mark."""
    for path in sorted(folder.glob("*.html")) if folder.is_dir() else ():
        if path.name not in kept and _FILE_PATTERN.fullmatch(path.name) and path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                is_ours = _GENERATOR_TAG in file.read(2000)
            if is_ours:
                path.unlink()


def explorer_html(texts: ExplorerTexts, others: Sequence[Link] = ()) -> str:
    """The page about the texts of one subject; `others` lead to the same texts under other models."""
    units = sum(len(text.units) for text in texts.texts) / max(1, len(texts.texts))
    names = [str(texts.about[name]) for name in ("corpus", "encoder", "attention") if name in texts.about]
    names += [f"seed {texts.about['seed']}"] if "seed" in texts.about else []
    values = {
        "title": f"Texts: {', '.join(names)}",
        "texts": texts,
        "others": others,
        "predicted": _class_options([text.predicted for text in texts.texts], texts),
        "labels": _class_options([text.label for text in texts.texts], texts),
        "first": tuple(_text_heatmap(text, texts) for text in texts.texts[:TEXTS_PER_PAGE]),
        "size": TEXTS_PER_PAGE if units < LONG_TEXT_LENGTH else TEXTS_PER_PAGE // 2,
        # Safe: whatever could end the element is escaped in the strings of the JSON.
        "data": Markup(texts_json(texts)),
    }
    return _EXPLORER_DOCUMENT.render(values)


def _class_options(numbers: Sequence[float | None], texts: ExplorerTexts) -> tuple[ClassOption, ...]:
    counts = Counter(int(value) for value in numbers if value is not None and value == int(value))
    return tuple(ClassOption(value, texts.class_name(value), counts[value]) for value in sorted(counts))


def _text_heatmap(text: ExplorerText, texts: ExplorerTexts) -> Heatmap:
    """The text as it is shown without a script: the rows that are shown at first."""
    shown = [(row, weights) for row, weights in zip(texts.rows, text.weights, strict=True) if row.is_shown]
    rows = tuple(Series(row.name, tuple(weights.values.tolist())) for row, weights in shown if weights is not None)
    told = [f"predicted {texts.class_name(text.predicted)} ({format_number(text.probability)})"]
    told += [] if text.label is None else [f"truly {texts.class_name(text.label)}"]
    told += [f"{name} {format_number(value)}" for name, value in zip(texts.figures, text.figures, strict=True)]
    for row, weights in shown:
        if weights is not None and (found := weights.adversary) is not None:
            reached = f"divergence {format_number(found.divergence)} of at most {format_number(found.bound)}"
            told.append(f"{row.name}: {reached}, output moved by {format_number(found.change)}")
    return Heatmap(text.uid, text.units, rows, "; ".join(told))
