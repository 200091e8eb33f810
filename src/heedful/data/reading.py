"""How the rows of a user's table become examples, and every complaint about their content."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from heedful.core.tasks import Regression
from heedful.core.types import SPLITS, Example, Split, Splits, Task, UserError
from heedful.data.carving import carve, content, shared
from heedful.data.published import task_of
from heedful.data.records import Record

Notes = dict[str, int | float | str]
MANY = 20


@dataclass(frozen=True)
class Reading:
    """Which columns mean what, and how a single heap is split.

    Args:
        text: column of the text (or of the document, or the premise).
        second: column of the second text (question, hypothesis); None for single texts.
        uid: column of an id; None numbers the rows.
        task: "auto" takes real numbers for regression and everything else for classes.
        classes: class names in the order of their indices; empty takes the labels of train, sorted.
        dev: share of the training rows that becomes dev where none is given.
        test: share of the training rows that becomes test where none is given.
        seed: another seed carves another split.
    """

    text: str = "text"
    label: str = "label"
    second: str | None = None
    uid: str | None = None
    task: Literal["auto", "classes", "regression"] = "auto"
    classes: tuple[str, ...] = ()
    dev: float = 0.15
    test: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.dev < 1 and 0 < self.test < 1 and self.dev + self.test < 1):
            raise UserError(
                f"shares of dev ({self.dev}) and test ({self.test}) must be positive and sum to less than 1"
            )

    def with_classes(self, classes: tuple[str, ...]) -> Reading:
        """The same reading with these classes."""
        return replace(self, classes=classes)


def interpreted(name: str, reading: Reading, found: Mapping[Split, Sequence[Record]]) -> Splits:
    """The examples of all splits, missing splits carved from train."""
    notes: Notes = {}
    labelled = _labelled(reading, found, notes)
    real = _is_real(reading, labelled["train"])
    classes = () if real else _classes(reading, labelled)
    task: Task = Regression() if real else task_of(classes)
    index = {label: place for place, label in enumerate(classes)}
    examples = {split: [_example(reading, split, row, index) for row in rows] for split, rows in labelled.items()}
    _distinct(reading, labelled)
    _enough(reading, labelled, examples["train"], classes)
    if real and reading.task == "auto":
        notes["task"] = "regression, because the labels look continuous"
    train, dev, test = (tuple(examples.get(split, ())) for split in SPLITS)
    return _carved(Splits(task, classes, train, dev, test, notes), reading)


def _labelled(reading: Reading, found: Mapping[Split, Sequence[Record]], notes: Notes) -> dict[Split, Sequence[Record]]:
    """The splits with labels; one whose labels are hidden, as often on the hub, is left out, and said."""
    kept: dict[Split, Sequence[Record]] = {}
    for split, rows in found.items():
        if split != "train" and all(row.value(reading.label) in (None, -1) for row in rows):
            notes[f"{split} split left out, it has no labels"] = len(rows)
        else:
            kept[split] = rows
    return kept


def _label(reading: Reading, row: Record) -> str:
    """The label as a word; whole numbers are spelled without a point, so that 1 and 1.0 are one class."""
    value = row.value(reading.label)
    if (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    ):
        raise UserError(f"{row.where}: no label in column '{reading.label}'; fill it in or delete the row")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise UserError(f"{row.where}: the label {value!r} is neither a word nor a number; give one label per row")
    return str(value).strip()


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_real(reading: Reading, train: Sequence[Record]) -> bool:
    words = [_label(reading, row) for row in train]
    numbers = [_number(word) for word in words]
    if reading.task == "regression":
        for row, word, number in zip(train, words, numbers, strict=True):
            if number is None:
                raise UserError(f"{row.where}: the label {word!r} is not a number; regression needs numbers")
        if len(set(numbers)) == 1:
            raise UserError(f"{train[0].source}: all labels are {words[0]}; regression needs different ones")
        return True
    if reading.classes or None in numbers:
        return False
    distinct = {number for number in numbers if number is not None}
    continuous = any(not number.is_integer() for number in distinct) or len(distinct) > max(MANY, len(words) / 3)
    if continuous and reading.task == "classes":
        raise UserError(
            f"{train[0].source}: the labels in column '{reading.label}' look continuous "
            f"({len(distinct)} different numbers in {len(words)} rows); choose regression or another column"
        )
    return continuous


def _classes(reading: Reading, labelled: Mapping[Split, Sequence[Record]]) -> tuple[str, ...]:
    train = labelled["train"]
    present = {_label(reading, row) for row in train}
    if len(present) == 1:
        raise UserError(
            f"{train[0].source}: only one class ({next(iter(present))!r}) in column '{reading.label}'; "
            "at least two are needed"
        )
    numeric = all(word.lstrip("-").isdigit() for word in present)
    classes = reading.classes or tuple(sorted(present, key=int) if numeric else sorted(present))
    for split, rows in labelled.items():
        for row in rows:
            word = _label(reading, row)
            if word not in classes:
                raise UserError(
                    f"{row.where}: the label {word!r} of split {split} is unseen in train "
                    f"({', '.join(classes)}); correct it or add it to train"
                )
    return classes


def _example(reading: Reading, split: Split, row: Record, index: Mapping[str, int]) -> Example:
    columns = [reading.text] if reading.second is None else [reading.text, reading.second]
    word = _label(reading, row)
    label: int | float | None = index[word] if index else _number(word)
    if label is None:
        raise UserError(f"{row.where}: the label {word!r} is not a number; regression needs numbers")
    return Example(_uid(reading, split, row), tuple(row.text(column) for column in columns), label)


def _uid(reading: Reading, split: Split, row: Record) -> str:
    if reading.uid is None:
        return f"{split}-{row.line}"
    value = row.value(reading.uid)
    if value is None or not str(value).strip():
        raise UserError(f"{row.where}: no id in column '{reading.uid}'; fill it in, or leave the id column out")
    return str(value).strip()


def _distinct(reading: Reading, labelled: Mapping[Split, Sequence[Record]]) -> None:
    first: dict[str, str] = {}
    for split, rows in labelled.items():
        for row in rows:
            uid = _uid(reading, split, row)
            if uid in first:
                raise UserError(
                    f"{row.where}: the id {uid!r} stands already at {first[uid]}; "
                    "make ids unique or leave the id column out"
                )
            first[uid] = row.where


def _enough(
    reading: Reading,
    labelled: Mapping[Split, Sequence[Record]],
    train: Iterable[Example],
    classes: tuple[str, ...],
) -> None:
    """Each class must be able to send a text to every split that is carved."""
    needed = 1 + sum(split not in labelled for split in SPLITS)
    groups: dict[int | float | None, set[str]] = defaultdict(set)
    for example in train:
        groups[example.label if classes else None].add(content(example))
    for label, texts in groups.items():
        if len(texts) < needed:
            whose = f"class {classes[int(label)]!r}" if label is not None else "the table"
            raise UserError(
                f"{labelled['train'][0].source}: {whose} has {len(texts)} different texts, "
                f"but carving dev and test needs {needed}; add rows, or give files for dev and test"
            )


def _carved(splits: Splits, reading: Reading) -> Splits:
    notes: Notes = dict(splits.notes)
    train, dev, test = splits.train, splits.dev, splits.test
    whole = len(train)
    if not test:
        train, test = carve(train, reading.test, reading.seed)
        notes["test carved from train"] = len(test)
    if not dev:
        share = reading.dev * whole / len(train)
        train, dev = carve(train, min(share, 0.5), reading.seed + 1)
        notes["dev carved from train"] = len(dev)
    leaked = shared(train, test)
    if leaked:
        notes["test texts that also stand in train"] = leaked
    torn = _torn((*train, *dev, *test))
    if torn:
        notes["texts that stand there with different labels"] = torn
    return replace(splits, train=train, dev=dev, test=test, notes=notes)


def _torn(examples: Iterable[Example]) -> int:
    seen = {(content(example), example.label) for example in examples}
    return sum(count > 1 for count in Counter(text for text, _ in seen).values())
