"""Examples from the rows of a user's table: the first of each text, sampled in memory, or all of them on disk."""

from __future__ import annotations

import hashlib
import heapq
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heedful.data.io import Row
from heedful.data.rationales import read_rationale, read_rationale_cell
from heedful.data.splitting import Notes
from heedful.data.stored_examples import ExampleWriter, StoredExamples
from heedful.data.table import label_text
from heedful.types import Example, Number, UserError, shorten

if TYPE_CHECKING:
    from heedful.data.evaluation_table import EvaluationColumns

NO_LABEL = ("-", "-1")
"""How SNLI and the hub write that a row has no label."""


def text_of_row(columns: EvaluationColumns, row: Row) -> tuple[str, ...] | None:
    """The texts of a row as they are; None if one is missing or blank."""
    parts = []
    for name in (columns.text, columns.second_text):
        if name is None:
            continue
        value = row.value(name) if name in row.values else None
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            value = " ".join(value)
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            return None
        # Text checks the type and half characters, which may also come from the words of a list.
        parts.append(Row(row.source, row.line, {name: value}, row.line_name).text(name))
    return tuple(parts)


def finite_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class RowReader:
    """What a row of the table says.

    Args:
        seed: of the hash that chooses texts.
    """

    columns: EvaluationColumns
    seed: int

    def key(self, parts: tuple[str, ...]) -> bytes:
        """A hash of the text; of too many texts those with the smallest ones are kept."""
        text = "\x1f".join((str(self.seed), *(part.strip() for part in parts)))
        return hashlib.sha256(text.encode()).digest()[:16]

    def example(self, row: Row, parts: tuple[str, ...]) -> tuple[Example, bool]:
        """The example, and whether its marks are not in its text."""
        rationale, lost = self._rationale(row, parts)
        uid = None if self.columns.uid is None else label_text(row, self.columns.uid)
        return Example(uid or str(row.line), tuple(part.strip() for part in parts), self.label(row), rationale), lost

    def label(self, row: Row) -> Number | None:
        """The output of the model that the label names, or the number that it is; None if there is none."""
        column = self.columns.label
        text = label_text(row, column) if column is not None and column in row.values else None
        if text is None or column is None:
            return None
        if self.columns.matching == "number":
            number = finite_number(text)
            if number is None:
                raise UserError(f"{row.location}: the label {shorten(text)} is not a number; the model gives numbers")
            return number
        if text not in self._label_index:
            if text in NO_LABEL:
                return None
            names = ", ".join(shorten(value) for value in list(self._label_index)[:6])
            raise UserError(f"{row.location}: the label {shorten(text)} is not one of {names}; correct the row")
        return self._label_index[text]

    @cached_property
    def _label_index(self) -> dict[str, int]:
        return dict(self.columns.label_index)

    def _rationale(self, row: Row, parts: tuple[str, ...]) -> tuple[tuple[bool, ...] | None, bool]:
        """The marked words, and whether there are marks that are not in the text."""
        column, form = self.columns.rationale, self.columns.rationale_form
        if column is None or form is None:
            return None, False
        cell = read_rationale_cell(row.values.get(column), parts, row.location)
        marks = read_rationale(cell, form)
        return marks, marks is None and cell.kind != "empty"


@dataclass(frozen=True)
class _KeptRow:
    """A row that is kept, and how many later rows have the same text."""

    line: int
    example: Example
    lost_rationale: bool = False
    copies: int = 0
    contradictions: int = 0


class SampleReader:
    """Examples of rows that come one at a time; the memory is bounded by the number of texts that are kept."""

    def __init__(self, reader: RowReader, limit: int) -> None:
        self.reader, self.limit = reader, limit
        self.rows = self.empty = self.wrong_lengths = 0
        self.sampled = False
        self.kept: dict[int, _KeptRow] = {}
        self._largest: list[int] = []

    def add(self, row: Row) -> None:
        """Keep the row, if its text is new and its hash is among the smallest."""
        self.rows += 1
        parts = text_of_row(self.reader.columns, row)
        if parts is None:
            self.empty += 1
            return
        key = int.from_bytes(self.reader.key(parts))
        if key not in self.kept and len(self.kept) == self.limit and key > -self._largest[0]:
            self.sampled = True
            return
        if key in self.kept:
            old = self.kept[key]
            differs = self.reader.label(row) != old.example.label
            self.kept[key] = replace(old, copies=old.copies + 1, contradictions=old.contradictions + differs)
            return
        example, lost = self.reader.example(row, parts)
        self.kept[key] = _KeptRow(row.line, example, lost)
        heapq.heappush(self._largest, -key)
        if len(self.kept) > self.limit:
            self.sampled = True
            del self.kept[-heapq.heappop(self._largest)]

    def examples(self) -> Sequence[Example]:
        """The examples in the order of the file; an id that is used again gets its line."""
        found: dict[str, Example] = {}
        for kept in sorted(self.kept.values(), key=lambda each: each.line):
            uid = kept.example.uid
            found[uid if uid not in found else f"{uid}#{kept.line}"] = kept.example
        return tuple(replace(example, uid=uid) for uid, example in found.items())

    def notes(self) -> Notes:
        """What was left out, and how many texts have a label and a rationale."""
        kept = self.kept.values()
        counts = _Counts(
            kept=len(kept),
            copies=sum(each.copies for each in kept),
            contradictions=sum(each.contradictions for each in kept),
            unlabelled=sum(each.example.label is None for each in kept),
            marked=sum(any(each.example.rationale or ()) for each in kept),
            lost=sum(each.lost_rationale for each in kept),
        )
        return _reader_notes(self, counts)


_ROW_FACTS = np.dtype([("key", ">u8"), ("label", "<f8"), ("marked", "?"), ("lost", "?")])
"""What is remembered of each row of a table on disk; the key is the hash of its text."""
_ROW_IDS = np.dtype([("uid", "<u8"), ("line", "<i8")])
"""And where a column has ids; a hash stands for an id."""


class DiskReader:
    """Examples of rows that come one at a time and are written to disk.

    18 bytes of each row stay in memory until all are read, 34 where they have ids; some 30 more while they are sorted.
    """

    def __init__(self, reader: RowReader, limit: int | None) -> None:
        self.reader, self.limit = reader, limit
        self.rows = self.empty = self.wrong_lengths = 0
        self.sampled = False
        self._writer, self._facts, self._ids = ExampleWriter(), bytearray(), bytearray()

    def add(self, row: Row) -> None:
        """Write the row, if it has a text."""
        self.rows += 1
        parts = text_of_row(self.reader.columns, row)
        if parts is None:
            self.empty += 1
            return
        example, lost = self.reader.example(row, parts)
        self._writer.add(example)
        label = math.nan if example.label is None else float(example.label)
        self._facts += self.reader.key(parts)[:8] + struct.pack("<d??", label, any(example.rationale or ()), lost)
        if self.reader.columns.uid is not None:
            uid = hashlib.blake2b(example.uid.encode(), digest_size=8).digest()
            self._ids += uid + struct.pack("<q", row.line)

    def examples(self) -> Sequence[Example]:
        """The examples in the order of the file, the first of each text; an id that is used again gets its line."""
        facts = np.frombuffer(self._facts, _ROW_FACTS)
        # Rows by the hash of their text, and of one text by their place. Of millions of rows a copy of one column is
        # 8 MB per million: few exist at a time.
        keys = facts["key"].astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = keys[1:] != keys[:-1]
        del keys
        texts = int(is_first.sum())
        self.sampled = self.limit is not None and texts > self.limit
        if self.sampled and self.limit is not None:
            end = int(np.flatnonzero(is_first)[self.limit])
            order, is_first = order[:end], is_first[:end]
        copies = np.flatnonzero(~is_first)
        kept = order[is_first]
        # The first row of the text of each copy: the last first one before it.
        originals = kept[copies - np.arange(len(copies)) - 1]
        label, own = facts["label"][originals], facts["label"][order[copies]]
        differs = (label != own) & ~(np.isnan(label) & np.isnan(own))
        del order, is_first
        kept.sort()
        self._counts = _Counts(
            kept=len(kept),
            copies=len(copies),
            contradictions=int(differs.sum()),
            unlabelled=int(np.isnan(facts["label"][kept]).sum()),
            marked=int(facts["marked"][kept].sum()),
            lost=int(facts["lost"][kept].sum()),
        )
        rows, ids = len(facts), np.frombuffer(self._ids, _ROW_IDS)
        del facts
        self._facts, self._ids = bytearray(), bytearray()
        examples = self._writer.finish()
        if len(kept) < rows:
            examples = examples.take(kept)
        return _rename_repeated(examples, ids, kept) if len(ids) else examples

    def notes(self) -> Notes:
        """As those of a sample."""
        return _reader_notes(self, self._counts)


def _rename_repeated(examples: StoredExamples, ids: NDArray[np.void], kept: NDArray[np.int64]) -> StoredExamples:
    """The examples with the line behind each id that an earlier one has; only ids with equal hashes are compared.

    Args:
        ids: of all rows.
        kept: the rows of the examples.
    """
    hashes = ids["uid"][kept]
    hashes.sort()
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(repeated):
        return examples
    seen: set[str] = set()
    names: dict[int, str] = {}
    for place in np.flatnonzero(np.isin(ids["uid"][kept], repeated)).tolist():
        uid = examples[place].uid
        if uid in seen:
            names[place] = f"{uid}#{ids['line'][kept[place]]}"
        seen.add(names.get(place, uid))
    return examples.rename(names) if names else examples


@dataclass(frozen=True)
class _Counts:
    """Texts that are kept, later rows with the same texts, those with another label, properties of the kept ones."""

    kept: int
    copies: int
    contradictions: int
    unlabelled: int
    marked: int
    lost: int


def _reader_notes(reader: SampleReader | DiskReader, counts: _Counts) -> Notes:
    """What was left out, and how many texts have a label and a rationale."""
    numbers = {
        "rows without a text, left out": reader.empty,
        "rows with the text of another row, left out": counts.copies,
        "of these with another label than the first": counts.contradictions,
        "texts without a label": counts.unlabelled if reader.reader.columns.label else 0,
        "texts with marked words": counts.marked,
        "lists of marks with a wrong length, left out": reader.wrong_lengths,
        "rationales whose words are not in the text": counts.lost,
    }
    notes: Notes = {"rows": reader.rows, **{name: count for name, count in numbers.items() if count}}
    if reader.sampled:
        notes["texts kept by a random choice"] = counts.kept
    return notes
