"""Texts in which the loudest word decides: every word has a loudness and a side, and only one word of a text counts.

Who is told which word counts learns the loudness of words from each text; who is told only the answer learns one bit
from it. The right explanation of each text is known: its loudest word alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from numpy.random import Generator, default_rng

from heedful.core.tasks import Binary
from heedful.core.types import SPLITS, Corpus, Example, Split, Splits, UserError
from heedful.data.batching import Words


@dataclass(frozen=True)
class Loudest(Corpus):
    """Generated texts of different words; the label is the side of the loudest one.

    Args:
        words: how many different words there are; word k is louder than word k - 1 before they are shuffled.
        length: words of a text.
    """

    words: int = 60
    length: int = 8
    train: int = 3000
    dev: int = 400
    test: int = 400
    seed: int = 0
    name: ClassVar[str] = "loudest"
    revision: ClassVar[int] = 1
    batching: ClassVar[Words] = Words()
    width: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.words:
            raise UserError("loudest: a text needs two words at least, and as many different words as it is long")

    def read(self, data: Path) -> Splits:
        """The generated splits."""
        return _generated(self)

    def digest(self, data: Path) -> str:
        """A hash of the fields, from which everything follows."""
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Loudest {self.revision} {' '.join(values)}".encode()).hexdigest()


@lru_cache(maxsize=8)
def _generated(corpus: Loudest) -> Splits:
    random = default_rng((corpus.seed, 99))
    loudness = random.permutation(corpus.words).tolist()
    sides = random.permutation([place % 2 for place in range(corpus.words)]).tolist()
    train, dev, test = (_part(corpus, split, loudness, sides) for split in SPLITS)
    names = tuple(f"word{place:03d}" for place in range(corpus.words))
    return Splits(Binary(), ("left", "right"), train, dev, test, {"law": "the loudest word decides"}, names)


def _part(corpus: Loudest, split: Split, loudness: list[int], sides: list[int]) -> tuple[Example, ...]:
    random = default_rng((corpus.seed, SPLITS.index(split)))
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    drawn = (_drawn(corpus, random) for _ in range(count))
    return tuple(_example(f"{split}-{place}", words, loudness, sides) for place, words in enumerate(drawn))


def _drawn(corpus: Loudest, random: Generator) -> list[int]:
    return [int(word) for word in random.permutation(corpus.words)[: corpus.length]]


def _example(uid: str, words: list[int], loudness: list[int], sides: list[int]) -> Example:
    loudest = max(words, key=lambda word: loudness[word])
    truth = tuple((2.0 * sides[word] - 1.0) * (word == loudest) for word in words)
    text = " ".join(f"word{word:03d}" for word in words)
    return Example(uid, (text,), sides[loudest], tuple(bool(value) for value in truth), truth=truth)
