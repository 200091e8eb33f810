"""The table of texts: every text of a model and split with every stored explanation, as a value and as a Parquet file.

The file stands beside the page that `explorer` renders from the same table; studies and pandas read it. It has one row
per text, one column of scores per explanation and one column per number of a text; its schema metadata hold the rest as
JSON. An explanation that is not stored for a text is missing there.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from heedful.formatting import page_text
from heedful.report.html import write_atomically
from heedful.types import Pooling, UserError, pool_by_word

FOLDER = "texts"
"""Folder of the tables and their pages beside the report."""
NAMING_FACTS = ("corpus", "model", "encoder", "attention")
"""Facts of a model that name its table and page."""
LEAST_FAITHFUL, MOST_MANIPULABLE = "Least faithful", "Most manipulable"
"""Selections of texts that a page offers where there is a number for them."""
_STEPS, _OCTAVE = 255, 16
"""Steps of a weight in a map of a head, and steps of the scale of a map in an octave."""
_PATCH_NAME = re.compile(r"[0-9]{1,6},[0-9]{1,6}")
_METADATA = b"heedful"

Fact: TypeAlias = str | int | float


@dataclass(frozen=True)
class ScoreColumn:
    """One explanation, the same for all texts.

    Args:
        is_visible: whether a page shows it before the reader selects rows.
        is_adversarial: whether its weights were searched far from attention; they come with a divergence.
        pooling: how the score of a word comes from those of its tokens.
    """

    name: str
    note: str = ""
    is_visible: bool = True
    is_adversarial: bool = False
    pooling: Pooling = "mean"


@dataclass(frozen=True)
class TextMetric:
    """A number of each text to sort by.

    Args:
        finding: name of a button that shows the texts with the extreme numbers first; empty for none.
        is_descending: whether the extreme numbers are the largest.
    """

    name: str
    finding: str = ""
    is_descending: bool = False


class ScoreCell(NamedTuple):
    """One explanation of one text, NaN where a weight is undefined; the last four fields are for adversarial attention.

    A report has half a million of them, and a named tuple is made in a third of the time of a dataclass.
    """

    weights: NDArray[np.float64]
    divergence: float | None = None
    bound: float | None = None
    change: float | None = None
    certified: bool = False


class TextRow(NamedTuple):
    """One text.

    Args:
        tokens: the tokens that can receive a score, without marks of the tokenizer.
        joined: indices of tokens without a space before them.
        second: index of the first token of the second part (question, hypothesis); 0 for single texts.
        label: class, or a number for regression; None where unknown.
        metrics: one number for each of `TextTable.metrics`.
        rows: one cell for each of `TextTable.rows`; None where it is not stored.
        words: number of the word of each token; empty if every token is a word.
        marked: indices of the tokens that people marked as reasons for the label; None if nobody was asked.
        maps: the attention on words in each layer and head as by `encode_head_maps`; empty if it is not stored.
        image: a PNG image in base64; empty for a text.
    """

    uid: str
    tokens: tuple[str, ...]
    joined: tuple[int, ...]
    second: int
    predicted: int | None
    probability: float | None
    label: float | None
    metrics: tuple[float | None, ...]
    rows: tuple[ScoreCell | None, ...]
    words: tuple[int, ...] = ()
    marked: tuple[int, ...] | None = None
    maps: str = ""
    image: str = ""

    @property
    def word_numbers(self) -> NDArray[np.int64]:
        """The word of each token, numbered from 0 in text order."""
        words = np.asarray(self.words or range(len(self.tokens)))
        return np.concatenate([np.zeros(min(1, len(words)), dtype=int), np.cumsum(words[1:] != words[:-1])])

    @property
    def word_groups(self) -> list[list[int]]:
        """The indices of the tokens of each word, in text order."""
        pairs = itertools.groupby(enumerate(self.word_numbers.tolist()), key=lambda pair: pair[1])
        return [[token for token, _ in group] for _, group in pairs]

    def pool(self, weights: NDArray[np.float64], pooling: Pooling) -> NDArray[np.float64]:
        """The scores of the words from those of their tokens; NaN for a word without a finite one."""
        numbers = self.word_numbers
        words = torch.from_numpy(np.where(np.isfinite(weights), numbers, -1))[None]
        count = int(numbers[-1]) + 1 if len(numbers) else 0
        scores, is_known = pool_by_word(torch.tensor(weights, dtype=torch.float64)[None], words, pooling, count)
        return scores[0].where(is_known[0], math.nan).numpy()


@dataclass(frozen=True)
class TableHeader:
    """What a table holds beside its texts.

    Args:
        heads: layers, and heads of a layer, of the maps of the texts; zeros if there are none.
        patches: rows and columns of the patches of images; None for texts.
    """

    facts: Mapping[str, Fact]
    classes: tuple[str, ...]
    rows: tuple[ScoreColumn, ...]
    metrics: tuple[TextMetric, ...]
    warnings: tuple[str, ...] = ()
    heads: tuple[int, int] = (0, 0)
    patches: tuple[int, int] | None = None

    @property
    def noun(self) -> str:
        return "texts" if self.patches is None else "images"

    @property
    def title(self) -> str:
        """What the texts are of and who read them."""
        names = [str(self.facts[name]) for name in NAMING_FACTS if name in self.facts]
        names += [f"seed {self.facts['seed']}"] if "seed" in self.facts else []
        return f"{self.noun.capitalize()}: {', '.join(names)}"

    def class_name(self, number: float | None) -> str:
        """The name of a class; a number that is not whole, as in regression, is shown itself."""
        if number is None:
            return "unknown"
        if number != int(number):
            return f"{number:.3g}"
        return self.classes[int(number)] if 0 <= number < len(self.classes) else f"class {int(number)}"


@dataclass(frozen=True)
class TextTable(TableHeader):
    """All texts of one model and split, with all their explanations."""

    texts: tuple[TextRow, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes that occur, known or not."""
        numbers = (number for text in self.texts for number in (text.predicted, text.label) if number is not None)
        highest = max((int(number) for number in numbers if number == int(number)), default=-1)
        return tuple(page_text(self.class_name(number)) for number in range(max(len(self.classes), highest + 1)))


def patch_grid(names: Iterable[str]) -> tuple[int, int]:
    """Rows and columns of patches, which are called "row,column" from 0.

    >>> patch_grid(["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"])
    (2, 3)
    """
    rows, columns = zip(*(map(int, name.split(",")) for name in names), strict=True)
    return 1 + max(rows), 1 + max(columns)


def encode_head_maps(maps: NDArray[np.floating]) -> str:
    """Maps `[layer head word]` of weights in [0, 1] in base64: per head a byte s, then a byte w per word.

    A weight is w / 255 of the scale 2^(-s / 16), which is at least the largest weight of its head and 4.4 % more at
    most: every weight is right to 1/488 of the largest one of its head.
    """
    values = np.asarray(maps, dtype=np.float64)
    peaks = values.max(-1, initial=0.0, keepdims=True)
    scales = np.clip(np.floor(-_OCTAVE * np.log2(np.maximum(peaks, 1e-30))), 0, _STEPS)
    weights = np.clip(np.round(_STEPS * values * 2 ** (scales / _OCTAVE)), 0, _STEPS)
    return base64.b64encode(np.concatenate([scales, weights], -1).astype(np.uint8).tobytes()).decode()


def decode_head_maps(encoded: str, heads: tuple[int, int]) -> NDArray[np.float64]:
    """The maps `[layer head word]` again."""
    levels = np.frombuffer(base64.b64decode(encoded), dtype=np.uint8).reshape(*heads, -1).astype(np.float64)
    return levels[..., 1:] / _STEPS * 2 ** (-levels[..., :1] / _OCTAVE)


# The file

_HEADER = TypeAdapter(TableHeader)
_NUMBERS = pa.list_(pa.int64())
_DISTANCE = ("divergence", "bound", "change")
_FIXED = {
    "uid": pa.string(),
    "tokens": pa.list_(pa.string()),
    "joined": _NUMBERS,
    "second": pa.int64(),
    "predicted": pa.int64(),
    "probability": pa.float64(),
    "label": pa.float64(),
    "words": _NUMBERS,
    "marked": _NUMBERS,
    "maps": pa.string(),
    "image": pa.string(),
}
_NULLABLE = frozenset({"predicted", "probability", "label", "marked"})


def _schema(header: TableHeader) -> pa.Schema:
    """The columns of a file: those of every table, then the metrics, then scores and distances of each explanation."""
    columns = [*_FIXED.items(), *((f"metric: {page_text(metric.name)}", pa.float64()) for metric in header.metrics)]
    distance = pa.struct([*((name, pa.float64()) for name in _DISTANCE), ("certified", pa.bool_())])
    for row in header.rows:
        columns.append((f"scores: {page_text(row.name)}", pa.list_(pa.float64())))
        columns += [(f"distance: {page_text(row.name)}", distance)] if row.is_adversarial else []
    text = json.dumps(_HEADER.dump_python(header, mode="json"), ensure_ascii=False)
    return pa.schema(columns, {_METADATA: page_text(text).encode()})


def write_text_table(table: TextTable, target: Path) -> Path:
    """Write the table as a Parquet file, completely or not at all."""
    schema, texts = _schema(table), table.texts
    cells: list[Sequence[object]] = [[getattr(text, name) for text in texts] for name in _FIXED]
    cells += [[text.metrics[number] for text in texts] for number in range(len(table.metrics))]
    for number, row in enumerate(table.rows):
        column = [text.rows[number] for text in texts]
        cells.append([cell and cell.weights for cell in column])
        if row.is_adversarial:
            cells.append([cell and dict(zip(cell._fields[1:], cell[1:], strict=True)) for cell in column])
    arrays = [pa.array(column, type) for column, type in zip(cells, schema.types, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    return write_atomically(sink.getvalue().to_pybytes(), target)


def read_table_header(path: Path) -> TableHeader:
    """What a table holds beside its texts; UserError if the file is not such a table."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        return _HEADER.validate_python(json.loads(metadata.get(_METADATA, b"")))
    except (OSError, pa.ArrowException, ValueError, RecursionError) as error:
        raise _refusal(path, error) from error


def read_text_table(path: Path) -> TextTable:
    """The table in a file; UserError if the file is not such a table, or damaged."""
    header = read_table_header(path)
    try:
        stored = pq.read_table(path)
        schema = _schema(header)
        if not stored.schema.equals(schema):
            raise ValueError("its columns are not those of its header")
        texts = tuple(_read_rows(stored, header))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _refusal(path, error) from error
    return TextTable(**vars(header), texts=texts)


def _refusal(path: Path, error: Exception) -> UserError:
    reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
    return UserError(
        f"{path} is not a table of texts ({' '.join(reason.split())[:200]}): give the folder of an audit or a report"
    )


def _read_rows(stored: pa.Table, header: TableHeader) -> Iterator[TextRow]:
    """The rows of a stored table; ValueError if one does not fit together."""
    columns = iter([column.to_pylist() for column in stored.columns])
    fixed = {name: next(columns) for name in _FIXED}
    if missing := [name for name, column in fixed.items() if None in column and name not in _NULLABLE]:
        raise ValueError(f"the column {missing[0]} has missing values")
    fixed |= {name: list(map(_read_number, fixed[name])) for name in ("probability", "label")}
    metrics = [list(map(_read_number, next(columns))) for _ in header.metrics]
    rows = []
    for row in header.rows:
        weights = next(columns)
        distances = next(columns) if row.is_adversarial else [None] * stored.num_rows
        rows.append([_read_cell(*pair) for pair in zip(weights, distances, strict=True)])
    for number, values in enumerate(zip(*fixed.values(), strict=True)):
        cells = {
            name: tuple(cell) if isinstance(cell, list) else cell for name, cell in zip(fixed, values, strict=True)
        }
        cells["metrics"] = tuple(column[number] for column in metrics)
        cells["rows"] = tuple(column[number] for column in rows)
        text = TextRow._make(cells[name] for name in TextRow._fields)
        lengths = {len(text.tokens), *(len(cell.weights) for cell in text.rows if cell is not None)}
        if len(lengths) > 1 or len(text.words) not in (0, len(text.tokens)) or None in (*text.tokens, *text.words):
            raise ValueError(f"tokens, words and scores of {text.uid!r} do not fit together")
        if header.patches is not None and not all(map(_PATCH_NAME.fullmatch, text.tokens)):
            raise ValueError(f"the patches of {text.uid!r} are not named row,column")
        yield text


def _read_cell(weights: list[float | None] | None, distance: Mapping[str, float | None] | None) -> ScoreCell | None:
    if weights is None:
        return None
    scores = np.asarray(weights, dtype=float)
    if distance is None:
        return ScoreCell(scores)
    numbers = (_read_number(distance[name]) for name in _DISTANCE)
    return ScoreCell._make((scores, *numbers, bool(distance["certified"])))


def _read_number(value: float | None) -> float | None:
    """The number, whole if it is; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
