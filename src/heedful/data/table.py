"""How the rows of a user's table become examples, and every complaint about their content.

Rows of a user's table with the place where they stand, out of CSV, TSV, JSONL or Parquet.

Everything that can be wrong with a file as such is said here, in one line with file, line and remedy.

Texts that nobody has labelled: enough where a model's own answers are the labels.

Datasets through the `datasets` library: a saved folder, or an id of the hub.

Only data is loaded, never code.

The user's own data: a CSV, TSV, JSONL or Parquet file, a saved `datasets` folder, or an id of the hub.

Rows become examples in one way, whatever they come from; every mistake in them gets one line that names file,
line and remedy. Splits that are not given are carved: deterministic, class by class, no text in two of them.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from heedful.data.io import FileState, file_state, hash_files
from heedful.data.splitting import count_overlap, hold_out, normalized_content
from heedful.data.text_corpora import classification_task
from heedful.data.tokenization import Words
from heedful.tasks import MulticlassClassification, Regression
from heedful.types import SPLITS, Corpus, Example, Split, Splits, Task, UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Notes = dict[str, int | float | str]
MAX_NUMERIC_CLASSES = 20


@dataclass(frozen=True)
class TableColumns:
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
    second_text: str | None = None
    uid: str | None = None
    task: Literal["auto", "classes", "regression"] = "auto"
    classes: tuple[str, ...] = ()
    dev_share: float = 0.15
    test_share: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.dev_share < 1 and 0 < self.test_share < 1 and self.dev_share + self.test_share < 1):
            raise UserError(
                f"shares of dev ({self.dev_share}) and test ({self.test_share}) must be positive and sum to less than 1"
            )

    def with_classes(self, classes: tuple[str, ...]) -> TableColumns:
        """The same reading with these classes."""
        return replace(self, classes=classes)


def splits_from_records(name: str, columns: TableColumns, records: Mapping[Split, Sequence[Record]]) -> Splits:
    """The examples of all splits, missing splits carved from train."""
    notes: Notes = {}
    labelled = _drop_unlabelled_splits(columns, records, notes)
    real = _is_regression(columns, labelled["train"])
    classes = () if real else _class_names(columns, labelled)
    task: Task = Regression() if real else classification_task(classes)
    index = {label: place for place, label in enumerate(classes)}
    examples = {
        split: [_record_example(columns, split, row, index) for row in rows] for split, rows in labelled.items()
    }
    _check_unique_ids(columns, labelled)
    _check_enough_texts(columns, labelled, examples["train"], classes)
    if real and columns.task == "auto":
        notes["task"] = "regression, because the labels look continuous"
    train, dev, test = (tuple(examples.get(split, ())) for split in SPLITS)
    return _carve_missing_splits(Splits(task, classes, train, dev, test, notes), columns)


def _drop_unlabelled_splits(
    columns: TableColumns, records: Mapping[Split, Sequence[Record]], notes: Notes
) -> dict[Split, Sequence[Record]]:
    """The splits with labels; one whose labels are hidden, as often on the hub, is left out, and said."""
    kept: dict[Split, Sequence[Record]] = {}
    for split, rows in records.items():
        if split != "train" and all(row.value(columns.label) in (None, -1) for row in rows):
            notes[f"{split} split left out, it has no labels"] = len(rows)
        else:
            kept[split] = rows
    return kept


def _label_text(columns: TableColumns, row: Record) -> str:
    """The label as a word; whole numbers are spelled without a point, so that 1 and 1.0 are one class."""
    value = row.value(columns.label)
    if (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    ):
        raise UserError(f"{row.location}: no label in column '{columns.label}'; fill it in or delete the row")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise UserError(f"{row.location}: the label {value!r} is neither a word nor a number; give one label per row")
    return str(value).strip()


def _parse_number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_regression(columns: TableColumns, train: Sequence[Record]) -> bool:
    words = [_label_text(columns, row) for row in train]
    numbers = [_parse_number(word) for word in words]
    if columns.task == "regression":
        for row, word, number in zip(train, words, numbers, strict=True):
            if number is None:
                raise UserError(f"{row.location}: the label {word!r} is not a number; regression needs numbers")
        if len(set(numbers)) == 1:
            raise UserError(f"{train[0].source}: all labels are {words[0]}; regression needs different ones")
        return True
    if columns.classes or None in numbers:
        return False
    distinct = {number for number in numbers if number is not None}
    continuous = any(not number.is_integer() for number in distinct) or len(distinct) > max(
        MAX_NUMERIC_CLASSES, len(words) / 3
    )
    if continuous and columns.task == "classes":
        raise UserError(
            f"{train[0].source}: the labels in column '{columns.label}' look continuous "
            f"({len(distinct)} different numbers in {len(words)} rows); choose regression or another column"
        )
    return continuous


def _class_names(columns: TableColumns, records: Mapping[Split, Sequence[Record]]) -> tuple[str, ...]:
    train = records["train"]
    present = {_label_text(columns, row) for row in train}
    if len(present) == 1:
        raise UserError(
            f"{train[0].source}: only one class ({next(iter(present))!r}) in column '{columns.label}'; "
            "at least two are needed"
        )
    numeric = all(word.lstrip("-").isdigit() for word in present)
    classes = columns.classes or tuple(sorted(present, key=int) if numeric else sorted(present))
    for split, rows in records.items():
        for row in rows:
            word = _label_text(columns, row)
            if word not in classes:
                raise UserError(
                    f"{row.location}: the label {word!r} of split {split} is unseen in train "
                    f"({', '.join(classes)}); correct it or add it to train"
                )
    return classes


def _record_example(reading: TableColumns, split: Split, row: Record, index: Mapping[str, int]) -> Example:
    columns = [reading.text] if reading.second_text is None else [reading.text, reading.second_text]
    word = _label_text(reading, row)
    label: int | float | None = index[word] if index else _parse_number(word)
    if label is None:
        raise UserError(f"{row.location}: the label {word!r} is not a number; regression needs numbers")
    return Example(_record_uid(reading, split, row), tuple(row.text(column) for column in columns), label)


def _record_uid(columns: TableColumns, split: Split, row: Record) -> str:
    if columns.uid is None:
        return f"{split}-{row.line}"
    value = row.value(columns.uid)
    if value is None or not str(value).strip():
        raise UserError(f"{row.location}: no id in column '{columns.uid}'; fill it in, or leave the id column out")
    return str(value).strip()


def _check_unique_ids(columns: TableColumns, records: Mapping[Split, Sequence[Record]]) -> None:
    first: dict[str, str] = {}
    for split, rows in records.items():
        for row in rows:
            uid = _record_uid(columns, split, row)
            if uid in first:
                raise UserError(
                    f"{row.location}: the id {uid!r} stands already at {first[uid]}; "
                    "make ids unique or leave the id column out"
                )
            first[uid] = row.location


def _check_enough_texts(
    reading: TableColumns,
    records: Mapping[Split, Sequence[Record]],
    train: Iterable[Example],
    classes: tuple[str, ...],
) -> None:
    """Each class must be able to send a text to every split that is carved."""
    needed = 1 + sum(split not in records for split in SPLITS)
    groups: dict[int | float | None, set[str]] = defaultdict(set)
    for example in train:
        groups[example.label if classes else None].add(normalized_content(example))
    for label, texts in groups.items():
        if len(texts) < needed:
            whose = f"class {classes[int(label)]!r}" if label is not None else "the table"
            raise UserError(
                f"{records['train'][0].source}: {whose} has {len(texts)} different texts, "
                f"but carving dev and test needs {needed}; add rows, or give files for dev and test"
            )


def _carve_missing_splits(splits: Splits, columns: TableColumns) -> Splits:
    notes: Notes = dict(splits.notes)
    train, dev, test = splits.train, splits.dev, splits.test
    whole = len(train)
    if not test:
        train, test = hold_out(train, columns.test_share, columns.seed)
        notes["test carved from train"] = len(test)
    if not dev:
        share = columns.dev_share * whole / len(train)
        train, dev = hold_out(train, min(share, 0.5), columns.seed + 1)
        notes["dev carved from train"] = len(dev)
    leaked = count_overlap(train, test)
    if leaked:
        notes["test texts that also stand in train"] = leaked
    torn = _count_conflicting_labels((*train, *dev, *test))
    if torn:
        notes["texts that stand there with different labels"] = torn
    return replace(splits, train=train, dev=dev, test=test, notes=notes)


def _count_conflicting_labels(examples: Iterable[Example]) -> int:
    seen = {(normalized_content(example), example.label) for example in examples}
    return sum(count > 1 for count in Counter(text for text, _ in seen).values())


MAX_FIELD_SIZE = 1 << 30


@dataclass(frozen=True)
class Record:
    """One row of a table.

    Args:
        source: the file, for people.
        line: line of a text file, row of a Parquet file or dataset, counted from 1.
    """

    source: str
    line: int
    values: Mapping[str, object]
    line_name: str = "line"

    @property
    def location(self) -> str:
        """File and line, for people."""
        return f"{self.source}, {self.line_name} {self.line}"

    def value(self, column: str) -> object:
        """What stands in a column; complains with the columns that there are."""
        if column not in self.values:
            present = ", ".join(str(name) for name in self.values)
            raise UserError(f"{self.location}: no column '{column}'; the columns are {present}")
        return self.values[column]

    def text(self, column: str) -> str:
        """The text in a column; complains if there is none."""
        value = self.value(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{self.location}: the text in column '{column}' is empty; fill it in or delete the row")
        if not isinstance(value, str):
            raise UserError(
                f"{self.location}: column '{column}' holds {value!r}, not a text; name the column of the texts"
            )
        return value.strip()


def read_records(path: Path) -> list[Record]:
    """The rows of a file whose name says what it is."""
    reader = _READERS.get(_file_type(path))
    if reader is None:
        raise UserError(f"{path}: unknown kind of file; known are {', '.join(sorted(_READERS))} (also .gz)")
    if not path.is_file():
        raise UserError(f"{path}: no such file; check the path")
    found = list(reader(path))
    if not found:
        raise UserError(f"{path}: the file is empty or has no rows; give one row per example")
    return found


def is_table(name: str) -> bool:
    """Whether the name of a file promises a table that `records` can read."""
    return _file_type(Path(name)) in _READERS


def _file_type(path: Path) -> str:
    return path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _read_text(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: unreadable ({error}); check the file") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8, "
            f"for instance: iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from error


def _delimited_reader(separator: str) -> Callable[[Path], Iterator[Record]]:
    def read(path: Path) -> Iterator[Record]:
        limit = csv.field_size_limit(MAX_FIELD_SIZE)
        try:
            lines = csv.reader(io.StringIO(_read_text(path), newline=""), delimiter=separator, strict=True)
            yield from _delimited_records(path, lines)
        except csv.Error as error:
            raise UserError(f"{path}, line {lines.line_num}: {error}; check the quotes on this line") from error
        finally:
            csv.field_size_limit(limit)

    return read


def _delimited_records(path: Path, lines: _CsvReader) -> Iterator[Record]:
    header = [name.strip() for name in next(lines, [])]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise UserError(f"{path}, line 1: the column '{twice[0]}' stands there twice; rename one of them")
    line = lines.line_num + 1
    for fields in lines:
        if fields and len(fields) != len(header):
            raise UserError(
                f"{path}, line {line}: {len(fields)} fields, but the header has {len(header)}; "
                "put quotes around texts that hold the separator"
            )
        if fields:
            yield Record(str(path), line, dict(zip(header, fields, strict=True)))
        line = lines.line_num + 1


def _read_json_lines(path: Path) -> Iterator[Record]:
    for line, content in enumerate(_read_text(path).split("\n"), start=1):
        if not content.strip():
            continue
        try:
            value = json.loads(content)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {line}: not JSON ({error.msg}); give one JSON object per line") from error
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {line}: not a JSON object; give one JSON object per line")
        yield Record(str(path), line, value)


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a Parquet file ({reason}); check the file") from error
    for line, values in enumerate(table.to_pylist(), start=1):
        yield Record(str(path), line, values, line_name="row")


class _CsvReader(Protocol):
    """The part of `csv.reader` that is used here."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".csv": _delimited_reader(","),
    ".tsv": _delimited_reader("\t"),
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json_lines,
    ".parquet": _read_parquet,
}


UNLABELLED_HELD_OUT_SHARE = 0.15
"""Of the texts, for dev and as many again for test."""
MIN_UNLABELLED_TEXTS = 40
"""With fewer different texts a class, what judges it and what tests it would be too small to say anything."""


@dataclass(frozen=True)
class UnlabelledCorpus(Corpus):
    """The texts of a CSV, TSV, JSONL or Parquet file, split as any other file; a text stands in one split only.

    Args:
        text: column of the texts.
        second: column of a second text, for pairs.
        classes: what the model that will be asked calls its outputs; none for a number.
    """

    path: str
    text: str = "text"
    second_text: str | None = None
    classes: tuple[str, ...] = ()
    tokenization: ClassVar[Words] = Words("english", lowercase=True)

    @property
    def name(self) -> str:
        return Path(self.path).stem.split(".")[0] or "unlabelled"

    def read(self, data: Path) -> Splits:
        """Examples without labels, 70 % train and 15 % each dev and test."""
        file = self._file(data)
        return _read_unlabelled(self, file, file_state(file))

    def digest(self, data: Path) -> str:
        return hash_files([self._file(data)], type(self).__name__)

    def _file(self, data: Path) -> Path:
        for path in (Path(self.path), data / self.path):
            if path.is_file():
                return path
        raise UserError(f"{self.path}: no such file, neither here nor in the data folder {data}; check the path")


@lru_cache(maxsize=4)
def _read_unlabelled(corpus: UnlabelledCorpus, file: Path, state: FileState) -> Splits:
    columns = [corpus.text] if corpus.second_text is None else [corpus.text, corpus.second_text]
    found = [Example(str(row.line), tuple(row.text(column) for column in columns)) for row in read_records(file)]
    different = len({normalized_content(example) for example in found})
    if different < MIN_UNLABELLED_TEXTS:
        raise UserError(
            f"{file}: there are {different} different texts, but at least {MIN_UNLABELLED_TEXTS} are needed; add some"
        )
    rest, test = hold_out(found, UNLABELLED_HELD_OUT_SHARE)
    train, dev = hold_out(rest, UNLABELLED_HELD_OUT_SHARE / (1 - UNLABELLED_HELD_OUT_SHARE), seed=1)
    task: Task = MulticlassClassification(len(corpus.classes)) if corpus.classes else Regression()
    return Splits(task, corpus.classes, train, dev, test, {"labels": "none are needed"})


_SPLIT_PREFIXES: tuple[tuple[str, Split], ...] = (
    ("train", "train"),
    ("val", "dev"),
    ("dev", "dev"),
    ("test", "test"),
)


@dataclass(frozen=True)
class Repository:
    """A dataset on the hub."""

    name: str
    config: str | None = None
    revision: str | None = None


def load_from_hub(repository: Repository) -> DatasetDict:
    """The dataset from the hub or from the library's cache."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        found = datasets.load_dataset(repository.name, repository.config, revision=repository.revision)
    except (OSError, ValueError, RuntimeError, HfHubHTTPError, HFValidationError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{repository.name}: could not be loaded from the hub ({reason}); check the id and the "
            "connection, or save the dataset elsewhere with save_to_disk and give that folder"
        ) from error
    return _as_dataset_dict(found)


def load_saved_dataset(folder: Path) -> DatasetDict:
    """The dataset that `save_to_disk` wrote."""
    import datasets

    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: not a folder that datasets' save_to_disk wrote ({type(error).__name__}); "
            "give such a folder, or a CSV, TSV, JSONL or Parquet file"
        ) from error
    return _as_dataset_dict(found)


def _as_dataset_dict(found: Dataset | DatasetDict) -> DatasetDict:
    import datasets

    return found if isinstance(found, datasets.DatasetDict) else datasets.DatasetDict({"train": found})


def records_by_split(found: DatasetDict, source: str) -> dict[Split, list[Record]]:
    """The records of each split that has one of the usual names; the first of each kind counts."""
    chosen: dict[Split, list[Record]] = {}
    for prefix, split in _SPLIT_PREFIXES:
        for name, dataset in found.items():
            if str(name).startswith(prefix) and split not in chosen:
                chosen[split] = list(dataset_records(dataset, f"{source} ({name})"))
    if not chosen.get("train"):
        raise UserError(f"{source}: no split train with rows in it; the splits are {', '.join(map(str, found))}")
    return chosen


def dataset_records(dataset: Dataset, source: str) -> Iterator[Record]:
    """The rows, with class names in place of class numbers (None for -1, which means unlabelled)."""
    names = class_names(dataset)
    for line, values in enumerate(dataset, start=1):
        spelled = {column: _class_name(values[column], classes) for column, classes in names.items()}
        yield Record(source, line, {**values, **spelled}, line_name="row")


def class_names(dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """The class names of each column that has some."""
    import datasets

    return {
        column: tuple(feature.names)
        for column, feature in dataset.features.items()
        if isinstance(feature, datasets.ClassLabel)
    }


def _class_name(value: object, classes: tuple[str, ...]) -> str | None:
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else None


DEFAULT_WORDS = Words("english", lowercase=True)


@dataclass(frozen=True)
class Table(Corpus):
    """One file, or one for each split.

    Args:
        path: the training rows, or all rows if no other file is given.
        dev: file of the dev split; carved from `path` if None.
        test: file of the test split; carved from `path` if None.
    """

    path: str
    columns: TableColumns = field(default_factory=TableColumns)
    dev: str | None = None
    test: str | None = None
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    @property
    def name(self) -> str:
        return Path(self.path).stem.split(".")[0] or "table"

    def read(self, data: Path) -> Splits:
        files = self._files(data)
        return _read_table(
            self.name, self.columns, tuple(files.items()), tuple(file_state(path) for path in files.values())
        )

    def digest(self, data: Path) -> str:
        files = self._files(data)
        return hash_files(files.values(), type(self).__name__, *files)

    def _files(self, data: Path) -> dict[Split, Path]:
        given: dict[Split, str | None] = {"train": self.path, "dev": self.dev, "test": self.test}
        return {split: _find_file(name, data) for split, name in given.items() if name is not None}


def _find_file(name: str, data: Path) -> Path:
    for path in (Path(name), data / name):
        if path.is_file():
            return path
    raise UserError(f"{name}: no such file, neither here nor in the data folder {data}; check the path")


@lru_cache(maxsize=4)
def _read_table(
    name: str, columns: TableColumns, files: tuple[tuple[Split, Path], ...], stamps: tuple[FileState, ...]
) -> Splits:
    return splits_from_records(name, columns, {split: read_records(path) for split, path in files})


@dataclass(frozen=True)
class SavedDataset(Corpus):
    """A folder that `save_to_disk` of the `datasets` library wrote."""

    folder: str
    columns: TableColumns = field(default_factory=TableColumns)
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    @property
    def name(self) -> str:
        return Path(self.folder).name or "saved"

    def read(self, data: Path) -> Splits:
        folder = self._folder(data)
        return _read_saved_dataset(
            self.name, self.columns, folder, tuple(file_state(path) for path in _list_files(folder))
        )

    def digest(self, data: Path) -> str:
        folder = self._folder(data)
        names = (str(path.relative_to(folder)) for path in _list_files(folder))
        return hash_files(_list_files(folder), type(self).__name__, *names)

    def _folder(self, data: Path) -> Path:
        for path in (Path(self.folder), data / self.folder):
            if path.is_dir():
                return path
        raise UserError(f"{self.folder}: no such folder, neither here nor in the data folder {data}; check the path")


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@lru_cache(maxsize=4)
def _read_saved_dataset(name: str, columns: TableColumns, folder: Path, stamps: tuple[FileState, ...]) -> Splits:
    found = load_saved_dataset(folder)
    return splits_from_records(
        name, _add_declared_classes(columns, class_names(found["train"])), records_by_split(found, str(folder))
    )


@dataclass(frozen=True)
class HubDataset(Corpus):
    """A dataset of the Hugging Face hub; pin `revision` to be sure to read the same rows tomorrow."""

    repository: str
    config: str | None = None
    revision: str | None = None
    columns: TableColumns = field(default_factory=TableColumns)
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    @property
    def name(self) -> str:
        return self.repository.split("/")[-1] + (f"-{self.config}" if self.config else "")

    def read(self, data: Path) -> Splits:
        found, names = _read_hub_dataset(Repository(self.repository, self.config, self.revision))
        return splits_from_records(self.name, _add_declared_classes(self.columns, names), found)

    def digest(self, data: Path) -> str:
        found, _ = _read_hub_dataset(Repository(self.repository, self.config, self.revision))
        return _hash_records(found)


@lru_cache(maxsize=2)
def _read_hub_dataset(repository: Repository) -> tuple[Mapping[Split, Sequence[Record]], Mapping[str, tuple[str, ...]]]:
    found = load_from_hub(repository)
    return records_by_split(found, repository.name), class_names(next(iter(found.values())))


def _hash_records(found: Mapping[Split, Sequence[Record]]) -> str:
    whole = hashlib.sha256()
    for split in sorted(found):
        for record in found[split]:
            whole.update(json.dumps([split, dict(record.values)], sort_keys=True, default=repr).encode())
    return whole.hexdigest()


def _add_declared_classes(columns: TableColumns, names: Mapping[str, tuple[str, ...]]) -> TableColumns:
    """The reading with the classes that the dataset declares, so that indices are those of its models."""
    return columns.with_classes(names[columns.label]) if columns.label in names and not columns.classes else columns


def corpus_from_source(source: str, columns: TableColumns | None = None) -> Table | SavedDataset | HubDataset:
    """The corpus that a word on the command line means: a file, a saved folder, or an id of the hub."""
    chosen = columns or TableColumns()
    if is_table(source):
        return Table(source, chosen)
    if Path(source).is_dir():
        return SavedDataset(source, chosen)
    if Path(source).exists() or source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise UserError(
            f"{source}: neither a table (.csv, .tsv, .jsonl, .parquet), nor a saved datasets folder, "
            "nor a hub id; check the path"
        )
    return HubDataset(source, columns=chosen)
