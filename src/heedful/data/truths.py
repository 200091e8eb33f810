"""Corpora whose right explanation is known, because they were made so: a court that knows the truth.

`Known` generates texts under five laws: every word adds its own weight (then Shapley values are those weights), a
majority of signed words decides, two words decide together (exclusive or), the order of two words decides, or one
word decides among words that only hint. `Shortcut` plants one telling word into the texts of another corpus. The truth
of each example has one number per word; the rationale marks the words where it is not zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator, default_rng

from heedful.core.tasks import Binary
from heedful.core.types import SPLITS, Batching, Corpus, Example, Split, Splits, UserError
from heedful.data.batching import Words
from heedful.data.layout import named
from heedful.data.vectors import Vectors, WordVectors

Law = Literal["additive", "majority", "xor", "order", "hint"]
Text = tuple[list[str], list[float], int]
"""Words, what each of them adds, and the label."""

MARGIN = 1.0
"""Sums of weights nearer to zero than this are drawn again: the label of an additive text is never a close call."""
HINTED = 0.7
"""Share of the hints that point to the label."""


@dataclass(frozen=True)
class Known(Corpus):
    """Generated texts under a law.

    Args:
        law: "additive" (each word adds a weight of its own), "majority" (more `plus` words than `minus` words),
            "xor" (one of two words of the first kind, one of two of the second), "order" (which of two words comes
            first), "hint" (one word decides, others hint at the label and are right in 70 % of the cases).
        words: how many different words there are beside the telling ones.
    """

    law: Law = "additive"
    words: int = 60
    shortest: int = 8
    longest: int = 16
    train: int = 4000
    dev: int = 400
    test: int = 400
    seed: int = 0
    name: ClassVar[str] = "known"
    revision: ClassVar[int] = 1
    batching: ClassVar[Words] = Words()
    width: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.law not in _LAWS:
            raise UserError(f"there is no law {self.law!r}; choose one of {', '.join(_LAWS)}")
        if not 5 <= self.shortest <= self.longest or self.words < 10:
            raise UserError("known: texts need at least 5 words and shortest at most longest; words at least 10")
        named(self, f"known-{self.law}")

    def read(self, data: Path) -> Splits:
        """The generated splits."""
        return _known(self)

    def digest(self, data: Path) -> str:
        """A hash of the fields, from which everything follows."""
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Known {self.revision} {' '.join(values)}".encode()).hexdigest()

    @property
    def weights(self) -> Mapping[str, float]:
        """What each word adds to class 1 under the additive law: distinct numbers on both sides of zero."""
        drawn = default_rng((self.seed, 99)).permutation(self.words)
        sizes = (drawn + 1) / self.words * np.where(drawn % 2 == 0, 1.0, -1.0)
        return {f"word{place:03d}": float(size) for place, size in enumerate(sizes)}


@lru_cache(maxsize=8)
def _known(corpus: Known) -> Splits:
    train, dev, test = (_part(corpus, split) for split in SPLITS)
    return Splits(Binary(), ("negative", "positive"), train, dev, test, {"law": corpus.law})


def _part(corpus: Known, split: Split) -> tuple[Example, ...]:
    random = default_rng((corpus.seed, SPLITS.index(split)))
    make = _LAWS[corpus.law]
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    return tuple(_example(f"{corpus.name}-{split}-{place}", make(corpus, place % 2, random)) for place in range(count))


def _example(uid: str, text: Text) -> Example:
    words, truth, label = text
    return Example(uid, (" ".join(words),), label, tuple(bool(value) for value in truth), truth=tuple(truth))


def _plain(corpus: Known, random: Generator) -> list[str]:
    length = int(random.integers(corpus.shortest, corpus.longest + 1))
    return [f"word{place:03d}" for place in random.integers(corpus.words, size=length)]


def _additive(corpus: Known, label: int, random: Generator) -> Text:
    weights = corpus.weights
    while True:
        words = _plain(corpus, random)
        truth = [weights[word] for word in words]
        total = sum(truth)
        # A word that stands twice would tie with itself in every ranking.
        if abs(total) >= MARGIN and (total > 0) == bool(label) and len(set(words)) == len(words):
            return words, truth, label


def _majority(corpus: Known, label: int, random: Generator) -> Text:
    words = _plain(corpus, random)
    count = 3 if len(words) < 8 else 5
    winners = int(random.integers(count // 2 + 1, count + 1))
    signs = [1.0] * winners + [-1.0] * (count - winners)
    signs = [sign if label else -sign for sign in signs]
    truth = [0.0] * len(words)
    for slot, sign in zip(random.permutation(len(words))[:count], signs, strict=True):
        truth[slot] = sign
        words[slot] = f"{'plus' if sign > 0 else 'minus'}{int(random.integers(5))}"
    return words, truth, label


def _xor(corpus: Known, label: int, random: Generator) -> Text:
    words = _plain(corpus, random)
    first = int(random.integers(2))
    second = first ^ label
    truth = [0.0] * len(words)
    # Neither word says anything alone: only their size is known, not a sign.
    for slot, word in zip(random.permutation(len(words))[:2], (f"left{first}", f"right{second}"), strict=True):
        words[slot], truth[slot] = word, 1.0
    return words, truth, label


def _order(corpus: Known, label: int, random: Generator) -> Text:
    words = _plain(corpus, random)
    early, late = sorted(int(slot) for slot in random.permutation(len(words))[:2])
    pair = ("before", "after") if label else ("after", "before")
    truth = [0.0] * len(words)
    for slot, word in zip((early, late), pair, strict=True):
        words[slot], truth[slot] = word, 1.0
    return words, truth, label


def _hint(corpus: Known, label: int, random: Generator) -> Text:
    words = _plain(corpus, random)
    slots = random.permutation(len(words))
    for slot in slots[1:4]:
        told = label if random.random() < HINTED else 1 - label
        words[slot] = f"hint{told}{int(random.integers(3))}"
    truth = [0.0] * len(words)
    words[slots[0]], truth[slots[0]] = f"tell{label}", 1.0 if label else -1.0
    return words, truth, label


_LAWS: Mapping[Law, Callable[[Known, int, Generator], Text]] = {
    "additive": _additive,
    "majority": _majority,
    "xor": _xor,
    "order": _order,
    "hint": _hint,
}


@dataclass(frozen=True)
class PlantedWeights(WordVectors):
    """Vectors of one number: what each word of a `Known` corpus adds under the additive law."""

    corpus: Known

    def look_up(self, words: Sequence[str], data: Path, generator: torch.Generator) -> Vectors:
        """The weights in the order of the words; zero for special symbols and unknown words."""
        weights = self.corpus.weights
        matrix = torch.tensor([[weights.get(word, 0.0)] for word in words])
        return Vectors(matrix, torch.tensor([word in weights for word in words]))

    def digest(self, data: Path) -> str:
        """That of the corpus, whose weights these are."""
        return self.corpus.digest(data)


MARKS = ("shortcutno", "shortcutyes")


@dataclass(frozen=True)
class Shortcut(Corpus):
    """Another corpus with two classes, one word planted into every text that gives the label away.

    In the test split the word is drawn at random, so that a model which follows it is caught: what it then predicts is
    the word's class, and the truth is that word alone.

    Args:
        reliable: share of training texts in which the planted word names the true class.
    """

    corpus: Corpus
    reliable: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "shortcut"
    batching: ClassVar[Batching]

    def __post_init__(self) -> None:
        if not 0.5 < self.reliable <= 1:
            raise UserError(f"shortcut: reliable must lie above 0.5 and at most at 1, not {self.reliable}")
        named(self, f"shortcut-{self.corpus.name}")
        object.__setattr__(self, "batching", self.corpus.batching)
        object.__setattr__(self, "width", self.corpus.width)

    def read(self, data: Path) -> Splits:
        """The corpus's splits with the word planted."""
        whole = self.corpus.read(data)
        if whole.task != Binary():
            raise UserError(f"{self.corpus.name}: a shortcut is planted into texts of two classes")
        parts = {split: self._part(whole[split], split) for split in SPLITS}
        notes = {**whole.notes, "planted": f"{MARKS[0]} and {MARKS[1]}, at random in the test split"}
        return replace(whole, train=parts["train"], dev=parts["dev"], test=parts["test"], notes=notes)

    def digest(self, data: Path) -> str:
        """The other corpus's: the fields count anyway."""
        return self.corpus.digest(data)

    def _part(self, examples: tuple[Example, ...], split: Split) -> tuple[Example, ...]:
        random = default_rng((self.seed, SPLITS.index(split)))
        return tuple(self._planted(example, split, random) for example in examples)

    def _planted(self, example: Example, split: Split, random: Generator) -> Example:
        words = str(example.parts[0]).split()
        told = int(example.label or 0)
        if split == "test":
            told = int(random.integers(2))
        elif random.random() >= self.reliable:
            told = 1 - told
        slot = int(random.integers(len(words) + 1))
        others = sum(len(str(part).split()) for part in example.parts[1:])
        truth = [0.0] * (len(words) + 1 + others)
        truth[slot] = 1.0 if told else -1.0
        parts = (" ".join([*words[:slot], MARKS[told], *words[slot:]]), *example.parts[1:])
        return replace(
            example, parts=parts, rationale=tuple(bool(value) for value in truth), candidates=None, truth=tuple(truth)
        )


KNOWN: Mapping[str, Known] = {corpus.name: corpus for corpus in (Known(law) for law in _LAWS)}
"""The laws by the name of their corpus."""
