"""Tiny real objects that several tests use: a corpus of separable sentences, and subjects on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator

from heedful.core.tasks import Binary
from heedful.core.types import Corpus, Example, Splits
from heedful.data.batching import Words
from heedful.data.vectors import RandomVectors
from heedful.models.attention import Additive
from heedful.models.encoders import BiLSTM
from heedful.models.pooled import Pooled
from heedful.recipes.fit import Adam, Fit
from heedful.recipes.subject import Subject

WORDS = ("good", "bad", "film", "plot", "very", "the", "a", "dull", "fine", "scene", "actor", "long")


@dataclass(frozen=True)
class Sentences(Corpus):
    """Generated sentences; the word good or bad decides the class."""

    count: int = 40
    name: ClassVar[str] = "sentences"
    batching: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        train, dev, test = (self._part(split, seed) for seed, split in enumerate(("train", "dev", "test")))
        return Splits(Binary(), ("negative", "positive"), train, dev, test)

    def digest(self, data: Path) -> str:
        return "generated"

    def _part(self, split: str, seed: int) -> tuple[Example, ...]:
        generator = Generator().manual_seed(seed)
        found = []
        for number in range(self.count):
            length = int(torch.randint(3, 9, (1,), generator=generator))
            words = [WORDS[i] for i in torch.randint(2, len(WORDS), (length,), generator=generator).tolist()]
            words.insert(number % length, "good" if number % 2 else "bad")
            found.append(Example(f"{split}-{number}", (" ".join(words),), number % 2))
        return tuple(found)


def subject(*, seed: int = 0, epochs: int = 3, count: int = 40) -> Subject:
    """A BiLSTM that trains in a moment."""
    return Subject(
        corpus=Sentences(count),
        batching=Words(),
        model=Pooled(BiLSTM(4), Additive()),
        fit=Fit(epochs, 8, Adam(rate=0.02)),
        seed=seed,
        vectors=RandomVectors(6),
    )
