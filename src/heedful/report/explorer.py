"""The explorer of texts: the page of a `TextTable`, with every explanation of every text side by side.

The page holds its texts as JSON; a script searches, filters and sorts them, and pools the scores of a word's tokens.
Without a script the first texts are shown. Images are shown under the scores of their patches. The table itself stands
beside the page as a Parquet file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from markupsafe import Markup

from heedful import __version__
from heedful.figures import Heatmap, ImageGrid, PatchScores, Pixels, Series
from heedful.formatting import format_number, page_text
from heedful.report.charts import png_pixels, svg
from heedful.report.heatmap import heatmap_view
from heedful.report.html import HtmlDocument, write_atomically
from heedful.report.page import Link
from heedful.report.text_sources import ModelTexts, Open, collect_texts
from heedful.report.text_table import (
    LEAST_FAITHFUL,
    MOST_MANIPULABLE,
    TextRow,
    TextTable,
    decode_head_maps,
    write_text_table,
)
from heedful.store.recipe import json_digest
from heedful.table_view import Cell, TableView

TEXTS_PER_PAGE = 20
TEXTS_WITHOUT_SCRIPT = 20
LONG_TEXT = 100
"""Mean number of tokens above which a page shows half as many texts."""
MARKED = "marked by people"
ALL_HEADS = "attention, all layers, all heads"
_DOCUMENT = HtmlDocument("explorer.html", ("style.css", "heatmap.css", "explorer.css"), ("frame.js", "explorer.js"))
_FILE_NAME = re.compile(r"[a-z0-9-]+-[0-9a-f]{12}\.html")
_GENERATOR = '<meta name="generator" content="heedful">'


def write_explorer(source: ModelTexts, all_sources: Sequence[ModelTexts], folder: Path, open_artefact: Open) -> Path:
    """Write table and page of one model and split, with links to other models on the same texts, unless up to date."""
    others = [other.link for other in all_sources if other.corpus == source.corpus and other.address != source.address]
    entries = [entry.name for entry in (*source.attributions, *source.trials)]
    stamp = json_digest(
        [__version__, source.address, *sorted(entries), *(f"{link.label} {link.address}" for link in others)]
    )
    target = folder / source.address
    if stamp in _head(target) and table_beside(target).is_file():
        return target
    return write_text_page(collect_texts(source, open_artefact), target, others, stamp)


def write_text_page(table: TextTable, target: Path, others: Sequence[Link] = (), stamp: str = "") -> Path:
    """Write the page of a table, and before it the table beside it; see `explorer_parts`."""
    write_text_table(table, table_beside(target))
    return write_atomically(explorer_parts(table, others, stamp), target)


def table_beside(page: Path) -> Path:
    """The file of the table that a page shows."""
    return page.with_suffix(".parquet")


def _head(path: Path) -> str:
    """The first characters of a page; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(2000)


def delete_stale_pages(folder: Path, kept: Collection[str]) -> None:
    """Delete pages of an earlier report and tables beside them, recognized by name and generator; other files stay."""
    for path in sorted(folder.glob("*.html")):
        if path.name not in kept and _FILE_NAME.fullmatch(path.name) and _GENERATOR in _head(path):
            path.unlink()
            table_beside(path).unlink(missing_ok=True)


def explorer_parts(data: TextTable, others: Sequence[Link] = (), stamp: str = "") -> Iterator[str]:
    """The explorer as one HTML document.

    Args:
        others: links to the same texts under other models.
        stamp: digest of all that the page depends on, by which an existing page is recognised as up to date.
    """
    tokens = sum(len(text.tokens) for text in data.texts) / max(1, len(data.texts))
    values = {
        "stamp": stamp,
        "title": data.title,
        "noun": data.noun,
        "data": data,
        "others": others,
        "predicted": _class_options([text.predicted for text in data.texts], data),
        "labels": _class_options([text.label for text in data.texts], data),
        "selections": _selections(data),
        "outcomes": outcome_table(data),
        "has_pieces": any(text.words for text in data.texts),
        **_view_without_script(data),
        "size": TEXTS_PER_PAGE if tokens < LONG_TEXT else TEXTS_PER_PAGE // 2,
        "json": Markup(data_json(data)),  # safe: everything that could end the script element is escaped
    }
    return _DOCUMENT.render(values)


def data_json(data: TextTable) -> str:
    """The data as JSON that cannot end or open an HTML element, whatever the texts contain."""
    adversarial = [row.is_adversarial for row in data.rows]
    content = {
        "classes": data.class_names,
        "rows": [
            {"name": page_text(row.name), "adversarial": row.is_adversarial, "summed": row.pooling == "sum"}
            for row in data.rows
        ],
        "metrics": [page_text(metric.name) for metric in data.metrics],
        "marked": MARKED,
        "heads": data.heads,
        "patches": data.patches,
        "texts": [
            text._asdict()
            | {"rows": [row and (row._asdict() if more else {"weights": row.weights}) for row, more in rows]}
            for text in data.texts
            for rows in [zip(text.rows, adversarial, strict=True)]
        ],
    }
    encoded = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    for letter in "<>&\u2028\u2029":
        encoded = encoded.replace(letter.encode(), f"\\u{ord(letter):04x}".encode())
    return encoded.decode()


@dataclass(frozen=True)
class TextSelection:
    """A button that selects and sorts texts: values of the fields `outcome`, `order` and `direction`, and a hint."""

    label: str
    outcome: str
    order: str
    direction: str
    hint: str = ""


def _selections(data: TextTable) -> list[TextSelection]:
    """What readers look for, as far as the page can show it."""
    selections = []
    if wrong := sum(is_right(text) is False for text in data.texts):
        selections.append(TextSelection(f"Wrong predictions, surest first ({wrong})", "wrong", "probability", "-1"))
    if sum(not row.is_adversarial for row in data.rows) > 1:
        hint = "1 minus the mean rank correlation of the rows that are shown"
        selections.append(TextSelection("Strongest disagreement", "", "disagreement", "-1", hint))
    orders = {
        metric.finding: TextSelection(
            metric.finding, "", f"metric {number}", "-1" if metric.is_descending else "1", metric.name
        )
        for number, metric in reversed([*enumerate(data.metrics)])
        if metric.finding
    }
    adversarial = [row_number for row_number, row in enumerate(data.rows) if row.is_adversarial]
    if adversarial and MOST_MANIPULABLE not in orders:
        orders[MOST_MANIPULABLE] = TextSelection(MOST_MANIPULABLE, "", f"row {adversarial[0]}", "-1")
    return [*selections, *(orders[name] for name in (LEAST_FAITHFUL, MOST_MANIPULABLE) if name in orders)]


def is_right(text: TextRow) -> bool | None:
    """Whether the prediction is the label; None where that is unknown, as for numbers."""
    if text.label is None or text.predicted is None or text.label != int(text.label):
        return None
    return text.predicted == text.label


def outcome_table(data: TextTable) -> TableView | None:
    """Means over the texts with right and with wrong predictions; None if one of them has no text."""
    groups = [[text for text in data.texts if is_right(text) is outcome] for outcome in (True, False)]
    if not all(groups):
        return None

    rows: list[tuple[Cell, ...]] = [("texts", *map(len, groups))]
    names = ("probability of the prediction", *(metric.name for metric in data.metrics))
    columns = [list(zip(*((text.probability, *text.metrics) for text in group), strict=True)) for group in groups]
    for number, name in enumerate(names):
        known = [[value for value in group[number] if value is not None] for group in columns]
        rows.append((name, *(math.fsum(values) / len(values) if values else None for values in known)))
    return TableView("Means over texts that are predicted right and wrong", ("", "right", "wrong"), tuple(rows))


def _class_options(numbers: Sequence[float | None], data: TextTable) -> list[tuple[int, str, int]]:
    """Value, name and number of texts of each class that occurs."""
    counts = Counter(int(value) for value in numbers if value is not None and value == int(value))
    return [(value, data.class_name(value), counts[value]) for value in sorted(counts)]


def _view_without_script(data: TextTable) -> dict[str, object]:
    """The first texts as heat-maps, or the first images with the scores of their patches as a drawing."""
    texts = data.texts[:TEXTS_WITHOUT_SCRIPT]
    heatmaps = [_text_heatmap(text, data) for text in texts]
    if data.patches is None:
        return {"first": [heatmap_view(heatmap) for heatmap in heatmaps], "pictures": ""}
    names = list(dict.fromkeys(row.name for heatmap in heatmaps for row in heatmap.rows))
    tiles = list[tuple[Pixels | PatchScores, ...]]()
    for text, heatmap in zip(texts, heatmaps, strict=True):
        scores = {row.name: np.reshape(row.values, data.patches) for row in heatmap.rows}
        blank = np.zeros(data.patches)
        maps = [PatchScores(tuple(map(tuple, scores.get(name, blank).tolist()))) for name in names]
        tiles.append((png_pixels(text.image), *maps))
    labels = tuple(f"{text.uid}, predicted {data.class_name(text.predicted)}" for text in texts)
    figure = ImageGrid("The first images", labels, ("image", *names), tuple(tiles))
    return {"first": texts, "pictures": Markup(svg(figure, "first"))}  # safe: the text in a chart is escaped


def _text_heatmap(text: TextRow, data: TextTable) -> Heatmap:
    """The text as it is shown without a script, with the rows that are visible at first."""
    visible = [
        (row, cell) for row, cell in zip(data.rows, text.rows, strict=True) if row.is_visible and cell is not None
    ]
    caption = [f"predicted {data.class_name(text.predicted)} ({format_number(text.probability)})"]
    caption += [] if text.label is None else [f"label {data.class_name(text.label)}"]
    caption += [
        f"{metric.name} {format_number(value)}" for metric, value in zip(data.metrics, text.metrics, strict=True)
    ]
    caption += [
        f"{row.name}: divergence {format_number(cell.divergence)} of at most {format_number(cell.bound)}, "
        f"output changes by {format_number(cell.change)}"
        for row, cell in visible
        if row.is_adversarial
    ]
    groups = text.word_groups
    # A space before each word keeps what looks like the mark of a tokenizer.
    words = tuple(" " + "".join(text.tokens[token] for token in group) for group in groups)
    rows = [Series(row.name, tuple(text.pool(cell.weights, row.pooling).tolist())) for row, cell in visible]
    if text.maps:
        means = decode_head_maps(text.maps, data.heads).mean((0, 1))
        rows.append(Series(ALL_HEADS, tuple(means.tolist())))
    if text.marked is not None:
        is_marked = tuple(float(any(token in text.marked for token in group)) for group in groups)
        rows = [Series(MARKED, is_marked), *rows]
    return Heatmap(text.uid, words, tuple(rows), "; ".join(caption))
