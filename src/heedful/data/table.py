"""The user's own data: a CSV, TSV, JSONL or Parquet file, a saved `datasets` folder, or a dataset of the hub.

All rows become examples in the same way, and every mistake in them gets one line with file, line and remedy. Missing
splits are held out from train. Datasets are loaded as data; no code of theirs runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, ClassVar, Literal

from heedful.data.io import (
    OPTIONAL_TEXT,
    TEXT_OR_PATH,
    FileCorpus,
    Row,
    SplitRows,
    check_types,
    find_path,
    is_present,
    is_table,
    read_rows,
    shorten_name,
)
from heedful.data.splitting import DEV_SHARE, Notes, finalize_splits, hold_out, normalized_content
from heedful.data.tokenization import Words
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.types import SPLITS, Corpus, Example, Number, Split, Splits, Task, UserError, check_choice, shorten

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

TaskName = Literal["auto", "regression"]
MAX_NUMERIC_CLASSES = 20
MIN_UNLABELLED_TEXTS = 40
"""With fewer different texts the dev and test splits would be too small to say anything."""
RATIONALE = "rationale"
UNREAD = "column that is not read"
"""The note about a column of rationales: those of a user's table are not used."""
_WHOLE_NUMBER = re.compile(r"-?\d{1,300}")
DEFAULT_WORDS = Words("english", lowercase=True)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, and how missing splits are held out.

    Args:
        text: column of the text, the document or the premise.
        label: None for texts without labels; `classes` then names the outputs of the model, none for a number.
        second_text: column of the question or hypothesis; None for single texts.
        uid: column of an id; None numbers the rows.
        task: "auto" reads real numbers as regression and everything else as classes.
        classes: class names in the order of their indices; empty takes the labels of train, sorted.
        seed: chooses which 15 % of the training rows become dev, and which test, where these are not given.
    """

    text: str = "text"
    label: str | None = "label"
    second_text: str | None = None
    uid: str | None = None
    task: TaskName = "auto"
    classes: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(
            "TableColumns",
            {
                "text": (self.text, str),
                "label": (self.label, OPTIONAL_TEXT),
                "second_text": (self.second_text, OPTIONAL_TEXT),
                "uid": (self.uid, OPTIONAL_TEXT),
                "task": (self.task, str),
                "classes": (self.classes, tuple),
                "seed": (self.seed, int),
            },
        )
        check_types("TableColumns", {f"class {number}": (name, str) for number, name in enumerate(self.classes)})
        check_choice("task", self.task, TaskName)
        repeated = next((name for name, count in Counter(self.classes).items() if count > 1), None)
        if repeated is not None:
            raise UserError(f"TableColumns: the class {shorten(repeated)} is given twice; name each class once")


def splits_from_rows(name: str, columns: TableColumns, rows: SplitRows) -> Splits:
    """The examples of all splits; missing splits are held out from train."""
    notes: Notes = {}
    if RATIONALE in rows["train"][0].values and RATIONALE not in (columns.text, columns.label, columns.second_text):
        notes[UNREAD] = RATIONALE
    classes = columns.classes
    task: Task = MulticlassClassification(len(classes)) if classes else Regression()
    labels: Mapping[Split, Sequence[Number | None]] = {split: [None] * len(some) for split, some in rows.items()}
    if columns.label is None:
        notes["labels"] = "none are needed"
    else:
        rows = _drop_unlabelled_splits(columns.label, rows, notes)
        words = {split: [_label_text(columns.label, row) for row in some] for split, some in rows.items()}
        if _is_regression(columns, rows["train"], words["train"]):
            classes, task = (), Regression()
            labels = {split: _numbers(rows[split], words[split]) for split in rows}
            if columns.task == "auto":
                notes["task"] = "regression, because the labels look continuous"
        else:
            classes = _class_names(columns, rows, words)
            task = BinaryClassification() if len(classes) == 2 else MulticlassClassification(len(classes))
            index = {word: number for number, word in enumerate(classes)}
            labels = {split: [index[word] for word in some] for split, some in words.items()}
    examples: dict[Split, list[Example]] = {split: [] for split in SPLITS}
    locations: dict[str, str] = {}
    for split, some in rows.items():
        for row, label in zip(some, labels[split], strict=True):
            example = _example(columns, split, row, label)
            if example.uid in locations:
                raise UserError(
                    f"{row.location}: the id {shorten(example.uid)} is already used at {locations[example.uid]}; "
                    "make ids unique or choose no id column"
                )
            locations[example.uid] = row.location
            examples[split].append(example)
    _check_enough_texts(columns, rows, examples["train"], classes)
    train, dev, test = (tuple(examples[split]) for split in SPLITS)
    return _hold_out_missing(name, columns, Splits(task, classes, train, dev, test, notes))


def _drop_unlabelled_splits(label: str, rows: SplitRows, notes: Notes) -> SplitRows:
    """The splits that have labels: on the hub those of test are often hidden."""
    kept: dict[Split, Sequence[Row]] = {}
    for split, some in rows.items():
        if split != "train" and all(row.value(label) in (None, -1) for row in some):
            notes[f"{split} split left out, it has no labels"] = len(some)
        else:
            kept[split] = some
    return kept


def _label_text(label: str, row: Row) -> str:
    """The label of a row as text."""
    text = label_text(row, label)
    if text is None:
        raise UserError(f"{row.location}: no label in column '{label}'; fill it in or delete the row")
    return text


def label_text(row: Row, column: str) -> str | None:
    """The label of a row as text, None if it has none; integers have no decimal point: 1 and 1.0 are one class."""
    value = row.value(column)
    if value is None or value != value or (isinstance(value, str) and not value.strip()):  # NaN differs from itself
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{row.location}: the label {shorten(value)} is neither a text nor a number; give one label per row"
        )
    return str(value).strip()


def _parse_number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _numbers(rows: Sequence[Row], words: Sequence[str]) -> list[float]:
    numbers: list[float] = []
    for row, word in zip(rows, words, strict=True):
        number = _parse_number(word)
        if number is None:
            raise UserError(f"{row.location}: the label {shorten(word)} is not a number; regression needs numbers")
        numbers.append(number)
    return numbers


def _is_regression(columns: TableColumns, train: Sequence[Row], words: Sequence[str]) -> bool:
    if columns.task == "regression":
        if len(set(_numbers(train, words))) == 1:
            raise UserError(
                f"{train[0].source}: all labels are {shorten_name(words[0])}; regression needs different ones"
            )
        return True
    numbers = [_parse_number(word) for word in words]
    if columns.classes or None in numbers:
        return False
    distinct = {number for number in numbers if number is not None}
    most = max(MAX_NUMERIC_CLASSES, len(words) / 3)
    return len(distinct) > most or any(not number.is_integer() for number in distinct)


def _class_names(columns: TableColumns, rows: SplitRows, words: Mapping[Split, Sequence[str]]) -> tuple[str, ...]:
    present = set(words["train"])
    if len(present) == 1:
        raise UserError(
            f"{rows['train'][0].source}: only one class ({shorten(words['train'][0])}) in column "
            f"{shorten(columns.label)}; "
            "at least two are needed"
        )
    numeric = all(_WHOLE_NUMBER.fullmatch(word) for word in present)
    by_value = (lambda word: (int(word), word)) if numeric else (lambda word: (0, word))
    classes = columns.classes or tuple(sorted(present, key=by_value))
    for split, some in rows.items():
        for row, word in zip(some, words[split], strict=True):
            if word not in classes:
                raise UserError(
                    f"{row.location}: the label {shorten(word)} of split {split} is unseen in train "
                    f"({', '.join(map(shorten_name, classes[:12]))}); correct it or add it to train"
                )
    return classes


def _example(columns: TableColumns, split: Split, row: Row, label: Number | None) -> Example:
    uid = f"{split}-{row.line}"
    if columns.uid is not None:
        value = row.value(columns.uid)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{row.location}: no id in column '{columns.uid}'; fill it in or choose no id column")
        if not isinstance(value, str | int | float):
            raise UserError(
                f"{row.location}: the id {shorten(value)} is neither a text nor a number; choose another column"
            )
        uid = str(value).strip()
    names = [columns.text] if columns.second_text is None else [columns.text, columns.second_text]
    return Example(uid, tuple(row.text(name).strip() for name in names), label)


def _check_enough_texts(
    columns: TableColumns, rows: SplitRows, train: Sequence[Example], classes: tuple[str, ...]
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


def _hold_out_missing(name: str, columns: TableColumns, splits: Splits) -> Splits:
    notes: Notes = dict(splits.notes)
    train, dev, test = splits.train, splits.dev, splits.test
    size = len(train)
    if not test:
        train, test = hold_out(train, DEV_SHARE, columns.seed)
        notes["test held out from train"] = len(test)
    if not dev:
        train, dev = hold_out(train, min(DEV_SHARE * size / len(train), 0.5), columns.seed + 1)
        notes["dev held out from train"] = len(dev)
    labelled = {(normalized_content(example), example.label) for example in (*train, *dev, *test)}
    conflicting = sum(count > 1 for count in Counter(text for text, _ in labelled).values())
    if conflicting:
        notes["texts with conflicting labels"] = conflicting
    return finalize_splits(name, replace(splits, train=train, dev=dev, test=test, notes=notes))


@dataclass(frozen=True)
class Table(FileCorpus):
    """One file, or one file per split.

    Args:
        path: the training rows, or all rows if no other file is given.
        dev: file of the dev split; None holds it out from `path`.
        test: file of the test split; None holds it out from `path`.
    """

    path: str
    columns: TableColumns = field(default_factory=TableColumns)
    dev: str | None = None
    test: str | None = None
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        files = {"dev": (self.dev, (*TEXT_OR_PATH, NoneType)), "test": (self.test, (*TEXT_OR_PATH, NoneType))}
        check_types("Table", {"path": (self.path, TEXT_OR_PATH), "columns": (self.columns, TableColumns), **files})

    @property
    def name(self) -> str:
        return Path(self.path).stem.split(".")[0] or "table"

    def files(self, data: Path) -> tuple[Path, ...]:
        return tuple(find_path(name, data) for name in (self.path, self.dev, self.test) if name is not None)

    def load(self, data: Path) -> Splits:
        given: Mapping[Split, str | None] = {"train": self.path, "dev": self.dev, "test": self.test}
        rows = {split: read_rows(find_path(path, data)) for split, path in given.items() if path is not None}
        return splits_from_rows(self.name, self.columns, rows)


@dataclass(frozen=True)
class SavedDataset(FileCorpus):
    """A folder written by `save_to_disk` of the `datasets` library."""

    folder: str
    columns: TableColumns = field(default_factory=TableColumns)
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        check_types("SavedDataset", {"folder": (self.folder, TEXT_OR_PATH), "columns": (self.columns, TableColumns)})

    @property
    def name(self) -> str:
        return Path(self.folder).name or "saved"

    def files(self, data: Path) -> tuple[Path, ...]:
        folder = find_path(self.folder, data, "folder")
        try:
            found = [Path(place, name) for place, _, names in os.walk(folder, onerror=_fail) for name in names]
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; check the folder and its permissions") from error
        return tuple(sorted(path for path in found if path.is_file()))

    def load(self, data: Path) -> Splits:
        folder = find_path(self.folder, data, "folder")
        loaded = load_saved_dataset(folder)
        rows = _rows_by_split(loaded, str(folder))
        columns = _with_declared_classes(self.columns, class_names(next(iter(loaded.values()))))
        return splits_from_rows(self.name, columns, rows)


@dataclass(frozen=True)
class HubDataset(Corpus):
    """A dataset of the Hugging Face hub; set `revision` to read the same rows later."""

    repository: str
    config: str | None = None
    revision: str | None = None
    columns: TableColumns = field(default_factory=TableColumns)
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        names = {"config": (self.config, OPTIONAL_TEXT), "revision": (self.revision, OPTIONAL_TEXT)}
        columns = {"columns": (self.columns, TableColumns)}
        check_types("HubDataset", {"repository": (self.repository, str), **names, **columns})

    @property
    def name(self) -> str:
        return self.repository.split("/")[-1] + (f"-{self.config}" if self.config else "")

    def read(self, data: Path) -> Splits:
        rows, names, _ = _read_hub_dataset(Repository(self.repository, self.config, self.revision))
        return splits_from_rows(self.name, _with_declared_classes(self.columns, names), rows)

    def digest(self, data: Path) -> str:
        return _read_hub_dataset(Repository(self.repository, self.config, self.revision))[2]


def corpus_from_source(source: str | Path, columns: TableColumns | None = None) -> Table | SavedDataset | HubDataset:
    """The corpus of a command-line argument: a table, a saved dataset folder, or a hub id."""
    check_types(
        "corpus_from_source",
        {"source": (source, TEXT_OR_PATH), "columns": (columns, (TableColumns, NoneType))},
    )
    source, columns = str(source), columns or TableColumns()
    is_folder = is_present(Path(source), "folder")
    if is_table(source) and not is_folder:
        return Table(source, columns)
    if is_folder:
        return SavedDataset(source, columns)
    if Path(source).exists() or source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise UserError(
            f"{source}: neither a table (.csv, .tsv, .jsonl, .parquet), nor a saved datasets folder, "
            "nor a hub id; check the path"
        )
    return HubDataset(source, columns=columns)


@dataclass(frozen=True)
class Repository:
    """A dataset on the hub."""

    name: str
    config: str | None = None
    revision: str | None = None


def load_from_hub(repository: Repository) -> DatasetDict:
    """Load a dataset from the hub or from the library's cache."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        loaded = datasets.load_dataset(repository.name, repository.config, revision=repository.revision)
    except (OSError, ValueError, RuntimeError, HfHubHTTPError, HFValidationError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{repository.name}: could not be loaded from the hub ({reason}); check the id and the "
            "connection, or save the dataset elsewhere with save_to_disk and give that folder"
        ) from error
    return datasets.DatasetDict({"train": loaded}) if isinstance(loaded, datasets.Dataset) else loaded


def load_saved_dataset(folder: Path) -> DatasetDict:
    """Load a dataset that `save_to_disk` wrote."""
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise UserError(
            f"{folder}: not a folder that datasets' save_to_disk wrote ({type(error).__name__}); "
            "give such a folder, or a CSV, TSV, JSONL or Parquet file"
        ) from error
    return datasets.DatasetDict({"train": loaded}) if isinstance(loaded, datasets.Dataset) else loaded


def _fail(error: OSError) -> None:
    raise error


@lru_cache(maxsize=2)
def _read_hub_dataset(repository: Repository) -> tuple[SplitRows, Mapping[str, tuple[str, ...]], str]:
    """The rows of each split, the declared class names and a hash of the rows."""
    loaded = load_from_hub(repository)
    rows = _rows_by_split(loaded, repository.name)
    content = hashlib.sha256()
    for split in sorted(rows):
        for row in rows[split]:
            content.update(json.dumps([split, dict(row.values)], sort_keys=True, default=repr).encode())
    return rows, class_names(next(iter(loaded.values()))), content.hexdigest()


def _rows_by_split(loaded: DatasetDict, source: str) -> SplitRows:
    """The rows of each split with a usual name; the first split of each kind counts."""
    prefixes: Mapping[str, Split] = {"train": "train", "val": "dev", "dev": "dev", "test": "test"}
    chosen: dict[Split, Sequence[Row]] = {}
    for prefix, split in prefixes.items():
        for name, dataset in loaded.items():
            if str(name).startswith(prefix) and split not in chosen:
                try:
                    chosen[split] = list(dataset_rows(dataset, f"{source} ({name})"))
                except Exception as error:
                    reason = next(iter(str(error).splitlines()), type(error).__name__)
                    raise UserError(
                        f"{source}: split {name} cannot be read ({reason}); save the dataset again"
                    ) from error
    if not chosen.get("train"):
        raise UserError(f"{source}: no split train with rows; the splits are {', '.join(map(str, loaded)) or 'none'}")
    return chosen


def dataset_rows(dataset: Dataset, source: str) -> Iterator[Row]:
    """The rows with class names instead of class indices; -1 (unlabelled) becomes None."""
    names = class_names(dataset)
    for line, values in enumerate(dataset, start=1):
        labels = {
            column: classes[values[column]] if isinstance(values[column], int) and values[column] >= 0 else None
            for column, classes in names.items()
        }
        yield Row(source, line, {**values, **labels}, line_name="row")


def class_names(dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """The declared class names of each column that has them."""
    import datasets

    return {
        column: tuple(feature.names)
        for column, feature in dataset.features.items()
        if isinstance(feature, datasets.ClassLabel)
    }


def _with_declared_classes(columns: TableColumns, names: Mapping[str, tuple[str, ...]]) -> TableColumns:
    """Use the class order that the dataset declares, which is that of models trained on it."""
    if columns.label is None or columns.label not in names or columns.classes:
        return columns
    return replace(columns, classes=names[columns.label])
