"""The user's own data: a CSV, TSV, JSONL or Parquet file, a saved `datasets` folder, or an id of the hub.

Rows become examples in one way, whatever they come from; every mistake in them gets one line that names file,
line and remedy. Splits that are not given are carved: deterministic, class by class, no text in two of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from heedful.core.types import Corpus, Split, Splits, UserError
from heedful.data.batching import Words
from heedful.data.hub import Repository, class_names, downloaded, parts, saved
from heedful.data.layout import Stamp, digest, named, stamp
from heedful.data.reading import Reading, interpreted
from heedful.data.records import Record, is_table, records

__all__ = ["Hub", "Reading", "Saved", "Table", "own"]

PLAIN = Words("english", lower=True)


@dataclass(frozen=True)
class Table(Corpus):
    """One file, or one for each split.

    Args:
        path: the training rows, or all rows if no other file is given.
        dev: file of the dev split; carved from `path` if None.
        test: file of the test split; carved from `path` if None.
    """

    path: str
    reading: Reading = field(default_factory=Reading)
    dev: str | None = None
    test: str | None = None
    name: ClassVar[str] = "table"
    batching: ClassVar[Words] = PLAIN

    def __post_init__(self) -> None:
        named(self, Path(self.path).stem.split(".")[0] or "table")

    def read(self, data: Path) -> Splits:
        files = self._files(data)
        return _table(self.name, self.reading, tuple(files.items()), tuple(stamp(path) for path in files.values()))

    def digest(self, data: Path) -> str:
        files = self._files(data)
        return digest(files.values(), type(self).__name__, *files)

    def _files(self, data: Path) -> dict[Split, Path]:
        given: dict[Split, str | None] = {"train": self.path, "dev": self.dev, "test": self.test}
        return {split: _located(name, data) for split, name in given.items() if name is not None}


def _located(name: str, data: Path) -> Path:
    for path in (Path(name), data / name):
        if path.is_file():
            return path
    raise UserError(f"{name}: no such file, neither here nor in the data folder {data}; check the path")


@lru_cache(maxsize=4)
def _table(name: str, reading: Reading, files: tuple[tuple[Split, Path], ...], stamps: tuple[Stamp, ...]) -> Splits:
    return interpreted(name, reading, {split: records(path) for split, path in files})


@dataclass(frozen=True)
class Saved(Corpus):
    """A folder that `save_to_disk` of the `datasets` library wrote."""

    folder: str
    reading: Reading = field(default_factory=Reading)
    name: ClassVar[str] = "saved"
    batching: ClassVar[Words] = PLAIN

    def __post_init__(self) -> None:
        named(self, Path(self.folder).name or "saved")

    def read(self, data: Path) -> Splits:
        folder = self._folder(data)
        return _saved(self.name, self.reading, folder, tuple(stamp(path) for path in _inside(folder)))

    def digest(self, data: Path) -> str:
        folder = self._folder(data)
        names = (str(path.relative_to(folder)) for path in _inside(folder))
        return digest(_inside(folder), type(self).__name__, *names)

    def _folder(self, data: Path) -> Path:
        for path in (Path(self.folder), data / self.folder):
            if path.is_dir():
                return path
        raise UserError(f"{self.folder}: no such folder, neither here nor in the data folder {data}; check the path")


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@lru_cache(maxsize=4)
def _saved(name: str, reading: Reading, folder: Path, stamps: tuple[Stamp, ...]) -> Splits:
    found = saved(folder)
    return interpreted(name, _named_classes(reading, class_names(found["train"])), parts(found, str(folder)))


@dataclass(frozen=True)
class Hub(Corpus):
    """A dataset of the Hugging Face hub; pin `revision` to be sure to read the same rows tomorrow."""

    repository: str
    config: str | None = None
    revision: str | None = None
    reading: Reading = field(default_factory=Reading)
    name: ClassVar[str] = "hub"
    batching: ClassVar[Words] = PLAIN

    def __post_init__(self) -> None:
        named(self, self.repository.split("/")[-1] + (f"-{self.config}" if self.config else ""))

    def read(self, data: Path) -> Splits:
        found, names = _hub(Repository(self.repository, self.config, self.revision))
        return interpreted(self.name, _named_classes(self.reading, names), found)

    def digest(self, data: Path) -> str:
        found, _ = _hub(Repository(self.repository, self.config, self.revision))
        return _content(found)


@lru_cache(maxsize=2)
def _hub(repository: Repository) -> tuple[Mapping[Split, Sequence[Record]], Mapping[str, tuple[str, ...]]]:
    found = downloaded(repository)
    return parts(found, repository.name), class_names(next(iter(found.values())))


def _content(found: Mapping[Split, Sequence[Record]]) -> str:
    whole = hashlib.sha256()
    for split in sorted(found):
        for record in found[split]:
            whole.update(json.dumps([split, dict(record.values)], sort_keys=True, default=repr).encode())
    return whole.hexdigest()


def _named_classes(reading: Reading, names: Mapping[str, tuple[str, ...]]) -> Reading:
    """The reading with the classes that the dataset declares, so that indices are those of its models."""
    return reading.with_classes(names[reading.label]) if reading.label in names and not reading.classes else reading


def own(source: str, reading: Reading | None = None) -> Table | Saved | Hub:
    """The corpus that a word on the command line means: a file, a saved folder, or an id of the hub."""
    chosen = reading or Reading()
    if is_table(source):
        return Table(source, chosen)
    if Path(source).is_dir():
        return Saved(source, chosen)
    if Path(source).exists() or source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise UserError(
            f"{source}: neither a table (.csv, .tsv, .jsonl, .parquet), nor a saved datasets folder, "
            "nor a hub id; check the path"
        )
    return Hub(source, reading=chosen)
