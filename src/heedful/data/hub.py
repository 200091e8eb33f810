"""Datasets through the `datasets` library: a saved folder, or an id of the hub.

Only data is loaded, never code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.core.types import Split, UserError
from heedful.data.records import Record

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_PREFIXES: tuple[tuple[str, Split], ...] = (
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


def downloaded(repository: Repository) -> DatasetDict:
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
    return _as_dict(found)


def saved(folder: Path) -> DatasetDict:
    """The dataset that `save_to_disk` wrote."""
    import datasets

    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: not a folder that datasets' save_to_disk wrote ({type(error).__name__}); "
            "give such a folder, or a CSV, TSV, JSONL or Parquet file"
        ) from error
    return _as_dict(found)


def _as_dict(found: Dataset | DatasetDict) -> DatasetDict:
    import datasets

    return found if isinstance(found, datasets.DatasetDict) else datasets.DatasetDict({"train": found})


def parts(found: DatasetDict, source: str) -> dict[Split, list[Record]]:
    """The records of each split that has one of the usual names; the first of each kind counts."""
    chosen: dict[Split, list[Record]] = {}
    for prefix, split in _PREFIXES:
        for name, dataset in found.items():
            if str(name).startswith(prefix) and split not in chosen:
                chosen[split] = list(rows(dataset, f"{source} ({name})"))
    if not chosen.get("train"):
        raise UserError(f"{source}: no split train with rows in it; the splits are {', '.join(map(str, found))}")
    return chosen


def rows(dataset: Dataset, source: str) -> Iterator[Record]:
    """The rows, with class names in place of class numbers (None for -1, which means unlabelled)."""
    names = class_names(dataset)
    for line, values in enumerate(dataset, start=1):
        spelled = {column: _spelled(values[column], classes) for column, classes in names.items()}
        yield Record(source, line, {**values, **spelled}, unit="row")


def class_names(dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """The class names of each column that has some."""
    import datasets

    return {
        column: tuple(feature.names)
        for column, feature in dataset.features.items()
        if isinstance(feature, datasets.ClassLabel)
    }


def _spelled(value: object, classes: tuple[str, ...]) -> str | None:
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else None
