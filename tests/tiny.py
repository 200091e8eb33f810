"""A small corpus of separable sentences and models on it, shared by many tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator

from heedful.data.embeddings import RandomEmbeddings
from heedful.data.tokenization import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.tasks import BinaryClassification
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.types import Corpus, Example, Splits

WORDS = ("good", "bad", "film", "plot", "very", "the", "a", "dull", "fine", "scene", "actor", "long")


@dataclass(frozen=True)
class Sentences(Corpus):
    """Generated sentences; the word good or bad decides the class."""

    count: int = 40
    name: ClassVar[str] = "sentences"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        train, dev, test = (self._part(split, seed) for seed, split in enumerate(("train", "dev", "test")))
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test)

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


def subject(*, seed: int = 0, epochs: int = 3, count: int = 40) -> TrainedModel:
    """A BiLSTM that trains in under a second."""
    return TrainedModel(
        corpus=Sentences(count),
        tokenization=Words(),
        architecture=Attentive(BiLSTM(4), Additive()),
        training=Training(epochs, 8, Adam(lr=0.02)),
        seed=seed,
        embeddings=RandomEmbeddings(6),
    )
