"""Texts that nobody has labelled: enough where a model's own answers are the labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from heedful.core.tasks import Classes, Regression
from heedful.core.types import Corpus, Example, Splits, Task, UserError
from heedful.data.batching import Words
from heedful.data.carving import carve, content
from heedful.data.layout import Stamp, digest, named, stamp
from heedful.data.records import records

SHARE = 0.15
"""Of the texts, for dev and as many again for test."""
FEWEST = 40
"""With fewer different texts a class, what judges it and what tests it would be too small to say anything."""


@dataclass(frozen=True)
class Unlabelled(Corpus):
    """The texts of a CSV, TSV, JSONL or Parquet file, split as any other file; a text stands in one split only.

    Args:
        text: column of the texts.
        second: column of a second text, for pairs.
        classes: what the model that will be asked calls its outputs; none for a number.
    """

    path: str
    text: str = "text"
    second: str | None = None
    classes: tuple[str, ...] = ()
    name: ClassVar[str] = "unlabelled"
    batching: ClassVar[Words] = Words("english", lower=True)

    def __post_init__(self) -> None:
        named(self, Path(self.path).stem.split(".")[0] or "unlabelled")

    def read(self, data: Path) -> Splits:
        """Examples without labels, 70 % train and 15 % each dev and test."""
        file = self._file(data)
        return _read(self, file, stamp(file))

    def digest(self, data: Path) -> str:
        return digest([self._file(data)], type(self).__name__)

    def _file(self, data: Path) -> Path:
        for path in (Path(self.path), data / self.path):
            if path.is_file():
                return path
        raise UserError(f"{self.path}: no such file, neither here nor in the data folder {data}; check the path")


@lru_cache(maxsize=4)
def _read(corpus: Unlabelled, file: Path, state: Stamp) -> Splits:
    columns = [corpus.text] if corpus.second is None else [corpus.text, corpus.second]
    found = [Example(str(row.line), tuple(row.text(column) for column in columns)) for row in records(file)]
    different = len({content(example) for example in found})
    if different < FEWEST:
        raise UserError(f"{file}: there are {different} different texts, but at least {FEWEST} are needed; add some")
    rest, test = carve(found, SHARE)
    train, dev = carve(rest, SHARE / (1 - SHARE), seed=1)
    task: Task = Classes(len(corpus.classes)) if corpus.classes else Regression()
    return Splits(task, corpus.classes, train, dev, test, {"labels": "none are needed"})
