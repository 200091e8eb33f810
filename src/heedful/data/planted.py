"""Texts with a planted truth: the Mock corpora of AtteFa, generated from a seed.

Every word is a filler except k informative ones, drawn with replacement from the positive words (label 1) or
the negative words (label 0) of the VADER lexicon; the rationale marks them. Position, strength, fillers,
balance and noise are controls. All words of the lexicon are in the vocabulary, seen in training or not: else no model
could reach the published F1 of .97 where one word decides. Each split has a generator of its own, so the size of one
changes nothing in another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator, default_rng

from heedful.core.tasks import Binary
from heedful.core.types import SPLITS, Corpus, Example, Split, Splits, UserError
from heedful.data.batching import Words
from heedful.data.layout import named
from heedful.data.stories import Stories

__all__ = ["MOCKS", "PLANTED", "Mock", "Stories", "lexicon"]

LEXICON = "vader_lexicon.txt"
FILLER = "something"
Position = Literal["uniform", "start", "middle", "end", "clustered"]


@lru_cache(maxsize=1)
def lexicon() -> Mapping[str, float]:
    """The valence of each plain word of the VADER lexicon (-4 to 4), read without importing the package."""
    try:
        files = metadata.files("vaderSentiment") or []
    except metadata.PackageNotFoundError as error:
        raise UserError("mock: the package vaderSentiment is not installed: pip install vaderSentiment") from error
    paths = [Path(str(file.locate())) for file in files if file.name == LEXICON]
    if not paths or not paths[0].is_file():
        raise UserError(
            f"mock: the package vaderSentiment has no {LEXICON}: pip install --force-reinstall vaderSentiment"
        )
    rows = (line.split("\t") for line in paths[0].read_text(encoding="utf-8").splitlines())
    # Emoticons and abbreviations with signs in them would be taken apart by tokenisers.
    return {row[0]: float(row[1]) for row in rows if row[0].isascii() and row[0].isalpha() and row[0].islower()}


@dataclass(frozen=True)
class Mock(Corpus):
    """AtteFa's Mock corpora: a few words decide, all others say nothing.

    Args:
        informative: number of informative words; None where `share` says it.
        share: informative share of the length; None where `informative` says it.
        position: where they stand: anywhere, in the first, middle or last third, or side by side anywhere.
        strength: least absolute valence of an informative word (0 to 4).
        fillers: number of different filler words.
        balance: share of label 1, exact in each split.
        noise: share of labels turned round in train and dev; test keeps the truth.
        shortest: least number of words; lengths are uniform up to `longest`.
    """

    informative: int | None = None
    share: float | None = None
    position: Position = "uniform"
    strength: float = 0.0
    fillers: int = 1
    balance: float = 0.5
    noise: float = 0.0
    shortest: int = 50
    longest: int = 100
    train: int = 8000
    dev: int = 1000
    test: int = 1000
    seed: int = 0
    name: ClassVar[str] = "mock"
    revision: ClassVar[int] = 2
    batching: ClassVar[Words] = Words()

    def __post_init__(self) -> None:
        if self.informative is None and self.share is None:
            object.__setattr__(self, "informative", 1)
        problem = self._problem()
        if problem:
            raise UserError(f"mock: {problem}")
        named(self, self._called())

    def read(self, data: Path) -> Splits:
        return _mock(self)

    def digest(self, data: Path) -> str:
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Mock {self.revision} {' '.join(values)}".encode()).hexdigest()

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that can occur, also those that a split happens not to show."""
        return tuple(sorted({*_pool(0, self.strength), *_pool(1, self.strength), *_fillers(self.fillers)}))

    def _called(self) -> str:
        quarters = {0.25: "1q", 0.5: "2q", 0.75: "3q", 1.0: "4q"}
        size = str(self.informative) if self.share is None else quarters.get(self.share, f"{self.share:g}")
        controls = ("position", "strength", "fillers", "balance", "noise")
        chosen = {field.name: field.default for field in fields(self) if field.name in controls}
        turned = [f"-{name}-{getattr(self, name)}" for name, usual in chosen.items() if getattr(self, name) != usual]
        return f"mock-{size}" + "".join(turned)

    def _problem(self) -> str:
        checks = {
            "give either informative or share, not both": None not in (self.informative, self.share),
            "informative must lie between 1 and shortest": not 1
            <= (1 if self.informative is None else self.informative)
            <= self.shortest,
            "share must lie above 0 and at most at 1": not 0 < (self.share if self.share is not None else 1) <= 1,
            "shortest must be at least 1 and at most longest": not 1 <= self.shortest <= self.longest,
            "balance must lie between 0 and 1": not 0 < self.balance < 1,
            "noise must lie between 0 and 0.5": not 0 <= self.noise <= 0.5,
            "fillers must be at least 1": self.fillers < 1,
            "each split needs at least 2 examples": min(self.train, self.dev, self.test) < 2,
        }
        return next((problem for problem, holds in checks.items() if holds), "")


@lru_cache(maxsize=8)
def _mock(corpus: Mock) -> Splits:
    parts = {split: _part(corpus, split) for split in SPLITS}
    turned = sum(round(corpus.noise * len(parts[split])) for split in SPLITS if split != "test")
    notes: dict[str, int | float | str] = {"labels turned round in train and dev": turned} if turned else {}
    classes = ("negative", "positive")
    return Splits(Binary(), classes, parts["train"], parts["dev"], parts["test"], notes, corpus.vocabulary)


def _part(corpus: Mock, split: Split) -> tuple[Example, ...]:
    random = default_rng((corpus.seed, SPLITS.index(split)))
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    truth = np.arange(count) < round(corpus.balance * count)
    random.shuffle(truth)
    given = truth.copy()
    if split != "test":
        given[random.permutation(count)[: round(corpus.noise * count)]] ^= True
    texts = [_text(corpus, int(label), random) for label in truth]
    return tuple(
        Example(f"{corpus.name}-{split}-{place}", (" ".join(words),), int(label), rationale)
        for place, ((words, rationale), label) in enumerate(zip(texts, given, strict=True))
    )


def _text(corpus: Mock, label: int, random: Generator) -> tuple[list[str], tuple[bool, ...]]:
    length = int(random.integers(corpus.shortest, corpus.longest + 1))
    count = corpus.informative if corpus.share is None else max(1, round(corpus.share * length))
    slots = _slots(corpus.position, length, int(count or 1), random)
    fillers, pool = _fillers(corpus.fillers), _pool(label, corpus.strength)
    words = [fillers[index] for index in random.integers(len(fillers), size=length)]
    for slot, index in zip(slots, random.integers(len(pool), size=len(slots)), strict=True):
        words[slot] = pool[index]
    return words, tuple(place in slots for place in range(length))


def _slots(position: Position, length: int, count: int, random: Generator) -> list[int]:
    """The places of the informative words; a region too small for them grows to hold them."""
    if position == "clustered":
        start = int(random.integers(length - count + 1))
        return list(range(start, start + count))
    size = length if position == "uniform" else max(count, length // 3)
    start = {"uniform": 0, "start": 0, "middle": (length - size) // 2, "end": length - size}[position]
    return sorted(start + int(slot) for slot in random.choice(size, size=count, replace=False))


@lru_cache(maxsize=32)
def _pool(label: int, strength: float) -> tuple[str, ...]:
    sign = 1 if label else -1
    words = sorted(word for word, valence in lexicon().items() if sign * valence > 0 and abs(valence) >= strength)
    if not words:
        raise UserError(f"mock: no word of the lexicon has a valence of {strength} or more; lower strength")
    return tuple(words)


@lru_cache(maxsize=32)
def _fillers(count: int) -> tuple[str, ...]:
    """`something`, then made-up words that no lexicon holds: some + syllables."""
    words = [FILLER]
    size = 1
    while len(words) < count:
        syllables = ("".join(pair) for pair in product("bdfgklmnprstvz", "aeiou"))
        words += ["some" + "".join(parts) for parts in product(tuple(syllables), repeat=size)]
        size += 1
    return tuple(words[:count])


MOCKS: Mapping[str, Mock] = {
    mock.name: mock
    for mock in (
        *(Mock(informative=count) for count in (1, 2, 5, 10)),
        *(Mock(share=share) for share in (0.25, 0.5, 0.75, 1.0)),
    )
}
"""The eight corpora of AtteFa by name."""

PLANTED: tuple[type[Corpus], ...] = (Mock, Stories)
