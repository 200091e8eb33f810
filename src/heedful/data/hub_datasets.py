"""Datasets of the `datasets` library as the user's own texts: a saved folder, or an id on the Hugging Face hub.

Datasets are loaded as data; no code of theirs runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from heedful.data.columns import TableColumns
from heedful.data.io import FileCorpus, Row, SplitRows, check_fields, find_path
from heedful.data.table import DEFAULT_WORDS, splits_from_rows
from heedful.data.words import Words
from heedful.types import Corpus, Split, Splits, UserError, first_line

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


@dataclass(frozen=True)
class SavedDataset(FileCorpus):
    """A folder written by `save_to_disk` of the `datasets` library."""

    folder: str | Path
    columns: TableColumns = field(default_factory=TableColumns)
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        return Path(self.folder).name or "saved"

    def files(self, data: Path) -> tuple[Path, ...]:
        folder = find_path(self.folder, data, "folder")
        try:
            paths = [Path(parent, name) for parent, _, names in os.walk(folder, onerror=_fail) for name in names]
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; check the folder and its permissions") from error
        return tuple(sorted(path for path in paths if path.is_file()))

    def load(self, data: Path) -> Splits:
        folder = find_path(self.folder, data, "folder")
        loaded = load_saved_dataset(folder)
        rows = _rows_by_split(loaded, str(folder))
        return splits_from_rows(self.name, self.columns, rows, hub_class_names(next(iter(loaded.values()))))


@dataclass(frozen=True)
class HubDataset(Corpus):
    """A dataset of the Hugging Face hub; set `revision` to read the same rows later."""

    repository: str
    config: str | None = None
    revision: str | None = None
    columns: TableColumns = field(default_factory=TableColumns)
    tokenization: ClassVar[Words] = DEFAULT_WORDS

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        return self.repository.split("/")[-1] + (f"-{self.config}" if self.config else "")

    def read(self, data: Path) -> Splits:
        rows, names, _ = _read_hub_dataset(Repository(self.repository, self.config, self.revision))
        return splits_from_rows(self.name, self.columns, rows, names)

    def digest(self, data: Path) -> str:
        return _read_hub_dataset(Repository(self.repository, self.config, self.revision))[2]


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
        raise UserError(
            f"{repository.name}: could not be loaded from the hub ({first_line(error)}); check the id and the "
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
    return rows, hub_class_names(next(iter(loaded.values()))), content.hexdigest()


def _rows_by_split(loaded: DatasetDict, source: str) -> SplitRows:
    """The rows of each split with a usual name; the first split of each kind counts."""
    prefixes: Mapping[str, Split] = {"train": "train", "val": "dev", "dev": "dev", "test": "test"}
    rows_by_split: dict[Split, Sequence[Row]] = {}
    for prefix, split in prefixes.items():
        for name, dataset in loaded.items():
            if str(name).startswith(prefix) and split not in rows_by_split:
                try:
                    rows_by_split[split] = list(dataset_rows(dataset, f"{source} ({name})"))
                except Exception as error:
                    raise UserError(
                        f"{source}: split {name} cannot be read ({first_line(error)}); save the dataset again"
                    ) from error
    if not rows_by_split.get("train"):
        raise UserError(f"{source}: no split train with rows; the splits are {', '.join(map(str, loaded)) or 'none'}")
    return rows_by_split


def dataset_rows(dataset: Dataset, source: str) -> Iterator[Row]:
    """The rows with class names instead of class indices; -1 (unlabelled) becomes None."""
    names = hub_class_names(dataset)
    for line, values in enumerate(dataset, start=1):
        labels = {
            column: classes[values[column]] if isinstance(values[column], int) and values[column] >= 0 else None
            for column, classes in names.items()
        }
        yield Row(source, line, {**values, **labels}, line_name="row")


def hub_class_names(dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """The declared class names of each column that has them."""
    import datasets

    return {
        column: tuple(feature.names)
        for column, feature in dataset.features.items()
        if isinstance(feature, datasets.ClassLabel)
    }
