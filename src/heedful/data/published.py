"""What all published corpora of the layout share: finding, hashing, reading once, carving, checking.

A corpus says how one row becomes an example; everything else happens here. Reading is kept for the process,
keyed by the state of the files, so that several recipes on one corpus read it once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from heedful.core.tasks import Binary, Classes
from heedful.core.types import SPLITS, Corpus, Example, Split, Splits, Task, UserError
from heedful.data.batching import Words
from heedful.data.carving import carve, shared
from heedful.data.layout import Row, Stamp, digest, named, rows, stamp

__all__ = ["DEV_SHARE", "Published", "missing", "named", "settled", "task_of"]

DEV_SHARE = 0.15
Notes = dict[str, int | float | str]


class Published(Corpus):
    """A corpus of the layout, one folder; the notes of its `Splits` say what reading did."""

    folder: ClassVar[str]
    batching: ClassVar[Words]

    @abstractmethod
    def splits(self, found: Mapping[Split, Sequence[Row]], data: Path) -> Splits:
        """The examples out of the rows of the files that are there."""

    def home(self, data: Path) -> Path:
        """The folder of this corpus."""
        return data / self.folder

    def fetchable(self) -> bool:
        """Whether `heedful fetch` can obtain it."""
        return True

    def paths(self, data: Path) -> dict[Split, Path]:
        """The file of each split that is there; train and test must be."""
        files = {split: self.home(data) / f"{split}.jsonl.gz" for split in SPLITS}
        for split in ("train", "test"):
            if not files[split].is_file():
                raise missing(self, files[split])
        return {split: path for split, path in files.items() if path.is_file()}

    def others(self, data: Path) -> tuple[Path, ...]:
        """Further files that `splits` looks into."""
        return ()

    def read(self, data: Path) -> Splits:
        paths = self.paths(data)
        stamps = tuple(stamp(path) for path in (*paths.values(), *self.others(data)))
        return _read(self, data, tuple(paths.items()), stamps)

    def digest(self, data: Path) -> str:
        return digest((*self.paths(data).values(), *self.others(data)), type(self).__name__)


@lru_cache(maxsize=4)
def _read(corpus: Published, data: Path, paths: tuple[tuple[Split, Path], ...], stamps: tuple[Stamp, ...]) -> Splits:
    return settled(corpus, corpus.splits({split: rows(path) for split, path in paths}, data))


def missing(corpus: Published, path: Path) -> UserError:
    """The complaint that a file of the corpus is not there."""
    fetch = f"run 'heedful fetch {corpus.name}' or " if corpus.fetchable() else ""
    return UserError(
        f"{corpus.name}: no file {path.name} in the folder {path.parent}; "
        f"{fetch}set HEEDFUL_DATA to the data folder that holds '{path.parent.name}'"
    )


def task_of(classes: Sequence[str]) -> Task:
    """The task that these classes make."""
    return Binary() if len(classes) == 2 else Classes(len(classes))


def settled(corpus: Corpus, splits: Splits) -> Splits:
    """The splits, checked, with a dev part (carved from train where there was none) and remarks."""
    notes: Notes = dict(splits.notes)
    if not splits.dev:
        train, dev = carve(splits.train, DEV_SHARE)
        splits = replace(splits, train=train, dev=dev)
        notes["dev carved from train"] = len(dev)
    _check(corpus, splits)
    leaked = shared(splits.train, splits.test)
    if leaked:
        notes["test texts that also stand in train"] = leaked
    return replace(splits, notes=notes)


def _check(corpus: Corpus, splits: Splits) -> None:
    everything: list[Example] = [example for split in SPLITS for example in splits[split]]
    twice = [uid for uid, count in Counter(example.uid for example in everything).items() if count > 1]
    if twice:
        raise UserError(f"{corpus.name}: the id {twice[0]} stands on two rows; mend or refetch the corpus")
    for split in SPLITS:
        if not splits[split]:
            raise UserError(f"{corpus.name}: the split {split} has no examples; mend or refetch the corpus")
