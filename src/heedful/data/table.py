"""The user's own texts, for every command: a CSV, TSV, JSON, JSONL or Parquet file.

`detect_columns` finds the columns, and all rows become examples in the same way. `Table` is what a model is trained on:
every mistake in a row is refused with file, line and remedy, and missing splits are held out from train.
`EvaluationTable` is what a given model is tested on: rows without a text and repeated texts are counted and left out.
The bytes of each format are read by `data.io`.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heedful.data.columns import (
    MAX_NUMERIC_CLASSES,
    DetectedColumns,
    RowSource,
    TableColumns,
    detect_columns,
    detect_in_rows,
)
from heedful.data.io import FileCorpus, Row, SplitRows, check_fields, find_path, shorten_name
from heedful.data.rationales import read_rationale, read_rationale_cell
from heedful.data.rows import (
    NO_LABEL,
    StandardRow,
    files_of_table,
    finite_number,
    label_text,
    required_text,
    standard_rows,
    text_of_row,
)
from heedful.data.splitting import DEV_SHARE, Notes, finalize_splits, hold_out, normalized_content
from heedful.data.stored_examples import ExampleWriter
from heedful.data.words import Words
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import SPLITS, Example, Number, Split, Splits, Task, UserError, shorten, user_path

MAX_TEXTS = 20_000
"""Texts that are kept for an audit; more are kept on disk."""
MIN_UNLABELLED_TEXTS = 40
"""With fewer different texts the dev and test splits would be too small to say anything."""
COLUMNS, ASSUMED = "columns", "assumed of the columns"
"""The notes about what was detected."""
_WHOLE_NUMBER = re.compile(r"-?\d{1,300}")
DEFAULT_WORDS = Words("english", lowercase=True)


def read_texts(path: str, columns: TableColumns) -> tuple[list[tuple[str, ...]], list[int]]:
    """The text of each row of a file, with the second text of pairs, and its line or row."""
    detected = detect_columns(path, outputs=None, columns=replace(columns, label="none", rationale="none", uid="none"))
    rows = [standard.row for standard in standard_rows(user_path(path))]
    return [required_text(row, detected.texts) for row in rows], [row.line for row in rows]


@dataclass(frozen=True)
class _RowReader:
    """What a row of the table says."""

    columns: DetectedColumns

    def example(self, row: Row, parts: tuple[str, ...]) -> tuple[Example, bool]:
        """The example, and whether its marks are not in its text."""
        rationale, lost = self._rationale(row, parts)
        texts = tuple(part.strip() for part in parts)
        return Example(self.uid(row) or str(row.line), texts, self.label(row), rationale), lost

    def uid(self, row: Row) -> str | None:
        """The id of a row; None if there is none."""
        column = self.columns.uid
        return label_text(row, column) if column is not None and column in row.values else None

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


def _read_sample(
    rows: Callable[[], Iterator[StandardRow]], reader: _RowReader, seed: int, limit: int | None
) -> tuple[Sequence[Example], Notes]:
    """The first row of each text in the order of the file, and what was left out.

    The rows are read twice: first the hashes of their texts, which choose the rows, then those rows. About 50 bytes of
    each row are in memory at most; more than `MAX_TEXTS` examples are written to disk.

    Args:
        seed: of the hash.
        limit: of more texts those with the smallest hashes are kept.
    """
    keys, ids, counts = array("Q"), array("Q"), Counter[str]()
    has_ids = reader.columns.uid is not None
    for standard in rows():
        counts["wrong lengths"] += len(standard.wrong_lengths)
        parts = text_of_row(standard.row, reader.columns.texts)
        counts["rows"] += 1
        if parts is None:
            counts["empty"] += 1
            continue
        text = "\x1f".join((str(seed), *(part.strip() for part in parts)))
        keys.append(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))
        if has_ids:
            uid = (reader.uid(standard.row) or str(standard.row.line)).encode()
            ids.append(int.from_bytes(hashlib.blake2b(uid, digest_size=8).digest()))
    first_rows = _first_rows(np.frombuffer(keys, np.uint64), limit)
    is_kept = first_rows == np.arange(len(first_rows))
    sampled = bool((first_rows < 0).any())
    repeated = _repeated(np.frombuffer(ids, np.uint64), is_kept) if has_ids else np.zeros(len(is_kept), np.bool_)
    num_kept = int(is_kept.sum())
    writer = ExampleWriter() if num_kept > MAX_TEXTS else None
    examples: list[Example] = []
    labels, uids = array("d", [math.nan]) * len(is_kept), set[str]()
    number = -1
    for standard in rows():
        row = standard.row
        parts = text_of_row(row, reader.columns.texts)
        if parts is None:
            continue
        number += 1
        if number == len(first_rows):
            raise UserError(f"{row.source}: changed while it was read; run the command again")
        first = int(first_rows[number])
        if first < 0:
            continue
        if first < number:
            label = reader.label(row)
            value = math.nan if label is None else float(label)
            counts["copies"] += 1
            counts["contradictions"] += value != labels[first] and not (math.isnan(value) and math.isnan(labels[first]))
            continue
        example, lost = reader.example(row, parts)
        if repeated[number]:
            if example.uid in uids:
                example = replace(example, uid=f"{example.uid}#{row.line}")
            uids.add(example.uid)
        labels[number] = math.nan if example.label is None else float(example.label)
        counts["unlabelled"] += example.label is None
        counts["marked"] += any(example.rationale or ())
        counts["lost"] += lost
        examples.append(example) if writer is None else writer.add(example)
    remarks = {
        "rows without a text, left out": counts["empty"],
        "rows with the text of another row, left out": counts["copies"],
        "of these with another label than the first": counts["contradictions"],
        "texts without a label": counts["unlabelled"] if reader.columns.label else 0,
        "texts with marked words": counts["marked"],
        "lists of marks with a wrong length, left out": counts["wrong lengths"],
        "rationales whose words are not in the text": counts["lost"],
        "texts kept by a random choice": num_kept if sampled else 0,
    }
    notes: Notes = {"rows": counts["rows"], **{name: count for name, count in remarks.items() if count}}
    return tuple(examples) if writer is None else writer.finish(), notes


def _first_rows(keys: NDArray[np.uint64], limit: int | None) -> NDArray[np.int64]:
    """For each row the first row with the same key; -1 for those that are not among the `limit` smallest keys."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_first)
    if limit is not None and len(starts) > limit:
        order, is_first = order[: starts[limit]], is_first[: starts[limit]]
    first_rows = np.full(len(keys), -1, np.int64)
    first_rows[order] = order[is_first][np.cumsum(is_first) - 1]
    return first_rows


def _repeated(ids: NDArray[np.uint64], is_kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows have a hash of an id that several kept rows have: only their ids are compared."""
    values, counts = np.unique(ids[is_kept], return_counts=True)
    return np.isin(ids, values[counts > 1])


def _named_after(path: str | Path) -> str:
    return Path(path).stem.split(".")[0] or "table"


@dataclass(frozen=True)
class EvaluationTable(FileCorpus):
    """The texts of one file as the test split for a model that is given; train and dev are empty.

    Args:
        limit: most texts that are kept, chosen by a hash of (seed, text); None keeps all. Above `MAX_TEXTS` the texts
            are kept on disk.
    """

    path: str | Path
    columns: DetectedColumns
    limit: int | None = MAX_TEXTS
    seed: int = 0
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        check_fields(self)
        if self.limit is not None and self.limit < 1:
            raise UserError(f"EvaluationTable: limit is {self.limit}; give a number from 1, or None for all texts")

    @property
    def name(self) -> str:
        return _named_after(self.path)

    def files(self, data: Path) -> tuple[Path, ...]:
        return files_of_table(find_path(self.path, data))

    def load(self, data: Path) -> Splits:
        path, outputs = find_path(self.path, data), self.columns.outputs
        examples, notes = _read_sample(partial(standard_rows, path), _RowReader(self.columns), self.seed, self.limit)
        if not examples:
            raise UserError(
                f"{path}: no row has a text in column {shorten(self.columns.text)}; choose another with --text-column"
            )
        task = MulticlassClassification(len(outputs)) if outputs else Regression()
        return Splits(task, outputs, (), (), examples, notes)


@dataclass(frozen=True)
class Table(FileCorpus):
    """Texts to train a model on: one file, or one file per split.

    Args:
        path: the training rows, or all rows if no other file is given.
        dev: file of the dev split; None holds it out from `path`.
        test: file of the test split; None holds it out from `path`.
    """

    path: str | Path
    columns: TableColumns = field(default_factory=TableColumns)
    dev: str | Path | None = None
    test: str | Path | None = None
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        return _named_after(self.path)

    def files(self, data: Path) -> tuple[Path, ...]:
        names = [name for name in (self.path, self.dev, self.test) if name is not None]
        return tuple(file for name in names for file in files_of_table(find_path(name, data)))

    def load(self, data: Path) -> Splits:
        names: Mapping[Split, str | Path | None] = {"train": self.path, "dev": self.dev, "test": self.test}
        files = {split: find_path(name, data) for split, name in names.items() if name is not None}
        detected = detect_columns(files["train"], outputs=self.columns.classes or None, columns=self.columns)
        rows = {split: [standard.row for standard in standard_rows(file)] for split, file in files.items()}
        return _splits_from_rows(self.name, self.columns, detected, rows)


def splits_from_rows(
    name: str, columns: TableColumns, rows: SplitRows, declared: Mapping[str, tuple[str, ...]]
) -> Splits:
    """The examples of all splits of a dataset; missing splits are held out from train.

    Args:
        declared: class names by column, in the order of models that are trained on the dataset.
    """
    source = RowSource(rows["train"][0].source, lambda: map(StandardRow, rows["train"]))
    detected = detect_in_rows(source, outputs=columns.classes or None, columns=columns)
    classes = () if columns.classes or detected.label is None else declared.get(detected.label, ())
    if classes:
        index = tuple((word, number) for number, word in enumerate(classes))
        detected = replace(detected, outputs=classes, label_index=index, matching="name")
    return _splits_from_rows(name, columns, detected, rows)


def _splits_from_rows(name: str, columns: TableColumns, detected: DetectedColumns, rows: SplitRows) -> Splits:
    source = rows["train"][0].source
    notes: Notes = {COLUMNS: ", ".join(f"{role} {shorten_name(column)}" for role, column in detected.roles.items())}
    if detected.assumptions:
        notes[ASSUMED] = "; ".join(detected.assumptions)
    classes, task = columns.classes, _unlabelled_task(columns)
    if detected.label is None:
        if task is None:
            raise UserError(f"{source}: no label column found; name it with --label-column")
        notes["labels"] = "none are needed"
    else:
        rows = _drop_unlabelled_splits(detected.label, rows, notes)
        detected = _number_labels(columns, detected, rows["train"])
        classes, task = detected.outputs, Regression()
        if classes:
            task = BinaryClassification() if len(classes) == 2 else MulticlassClassification(len(classes))
        elif columns.task == "auto":
            notes["task"] = "regression, because the labels look continuous"
    reader = _RowReader(detected)
    examples: dict[Split, list[Example]] = {split: [] for split in SPLITS}
    for split, split_rows in rows.items():
        for row in split_rows:
            example, _ = reader.example(row, required_text(row, detected.texts))
            if detected.label is not None and example.label is None:
                raise _no_label(row, detected.label)
            # Files of several splits may count their rows alike.
            uid = example.uid if detected.uid is not None and len(rows) == 1 else f"{split}-{example.uid}"
            examples[split].append(replace(example, uid=uid))
    _check_enough_texts(detected, rows, examples["train"], classes)
    train, dev, test = (tuple(examples[split]) for split in SPLITS)
    return _hold_out_missing(name, columns.seed, Splits(task, classes, train, dev, test, notes))


def _unlabelled_task(columns: TableColumns) -> Task | None:
    """The task of a model whose predictions are the labels; None if it is not known."""
    if columns.classes:
        return MulticlassClassification(len(columns.classes))
    return Regression() if columns.task == "regression" else None


def _no_label(row: Row, column: str) -> UserError:
    return UserError(f"{row.location}: no label in column {shorten(column)}; fill it in or delete the row")


def _drop_unlabelled_splits(label: str, rows: SplitRows, notes: Notes) -> SplitRows:
    """The splits that have labels: on the hub those of test are often hidden."""
    labelled: dict[Split, Sequence[Row]] = {}
    for split, split_rows in rows.items():
        if split != "train" and all(row.value(label) in (None, -1) for row in split_rows):
            notes[f"{split} split left out, it has no labels"] = len(split_rows)
        else:
            labelled[split] = split_rows
    return labelled


def _number_labels(columns: TableColumns, detected: DetectedColumns, train: Sequence[Row]) -> DetectedColumns:
    """The columns with the class of each label of train, or with numbers."""
    assert detected.label is not None
    words = []
    for row in train:
        word = label_text(row, detected.label)
        if word is None:
            raise _no_label(row, detected.label)
        words.append(word)
    values, source = set(words), train[0].source
    if len(values) == 1:
        raise UserError(
            f"{source}: all labels in column {shorten(detected.label)} are {shorten(words[0])}; at least two different "
            "ones are needed"
        )
    if detected.label_index:
        return detected
    numbers = {finite_number(word) for word in values}
    real = {number for number in numbers if number is not None}
    many = len(real) > max(MAX_NUMERIC_CLASSES, len(words) / 3) or any(not number.is_integer() for number in real)
    if columns.task == "regression" or (None not in numbers and many):
        return replace(detected, matching="number")
    are_whole = all(map(_WHOLE_NUMBER.fullmatch, values))
    classes = tuple(sorted(values, key=lambda word: (int(word) if are_whole else 0, word)))
    index = tuple((word, number) for number, word in enumerate(classes))
    return replace(detected, outputs=classes, label_index=index, matching="name")


def _check_enough_texts(
    columns: DetectedColumns, rows: SplitRows, train: Sequence[Example], classes: tuple[str, ...]
) -> None:
    """Every class must have a text for each split that is held out."""
    groups: dict[Number | None, set[str]] = defaultdict(set)
    for example in train:
        groups[example.label if classes else None].add(normalized_content(example))
    needed = 1 + sum(split not in rows for split in SPLITS) if columns.label is not None else MIN_UNLABELLED_TEXTS
    for label, texts in groups.items():
        if len(texts) < needed:
            whose = f"class {shorten(classes[int(label)])}" if label is not None else "the table"
            raise UserError(
                f"{rows['train'][0].source}: {whose} has {len(texts)} different texts, "
                f"but at least {needed} are needed; add rows, or give files for dev and test"
            )


def _hold_out_missing(name: str, seed: int, splits: Splits) -> Splits:
    notes: Notes = dict(splits.notes)
    train, dev, test = splits.train, splits.dev, splits.test
    size = len(train)
    if not test:
        train, test = hold_out(train, DEV_SHARE, seed)
        notes["test held out from train"] = len(test)
    if not dev:
        train, dev = hold_out(train, min(DEV_SHARE * size / len(train), 0.5), seed + 1)
        notes["dev held out from train"] = len(dev)
    labelled = {(normalized_content(example), example.label) for example in (*train, *dev, *test)}
    conflicting = sum(count > 1 for count in Counter(text for text, _ in labelled).values())
    if conflicting:
        notes["texts with conflicting labels"] = conflicting
    return finalize_splits(name, replace(splits, train=train, dev=dev, test=test, notes=notes))
