"""A small corpus of separable sentences, a shortcut in it, and models on it, shared by many tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from numpy.random import default_rng
from torch import Generator

from heedful.data.embeddings import RandomEmbeddings
from heedful.data.splitting import DerivedCorpus
from heedful.data.words import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.tasks import BinaryClassification
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.types import SPLITS, Corpus, Example, Split, Splits, UserError

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


SHORTCUT_WORDS = ("shortcutno", "shortcutyes")


@dataclass(frozen=True)
class Shortcut(DerivedCorpus):
    """A binary corpus with one word inserted into every text that gives the label away.

    In the test split the word is random: a model that relies on it predicts the class of the word, and the ground truth
    is that word alone.

    Args:
        reliability: share of training texts in which the inserted word names the true class.
    """

    reliability: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 < self.reliability <= 1:
            raise UserError(f"reliability is {self.reliability}: it must be above 0.5 and at most 1")

    @property
    def name(self) -> str:
        return f"shortcut-{self.corpus.name}"

    def read(self, data: Path) -> Splits:
        whole = self.corpus.read(data)
        if whole.task != BinaryClassification():
            raise UserError(f"{self.corpus.name}: a shortcut needs a corpus of two classes")
        train, dev, test = (self._insert(whole[split], split) for split in SPLITS)
        notes = {**whole.notes, "inserted": f"{SHORTCUT_WORDS[0]} and {SHORTCUT_WORDS[1]}, random in the test split"}
        return replace(whole, train=train, dev=dev, test=test, notes=notes)

    def _insert(self, examples: Sequence[Example], split: Split) -> tuple[Example, ...]:
        random = default_rng((self.seed, SPLITS.index(split)))
        changed = []
        for example in examples:
            words = str(example.parts[0]).split()
            label = int(example.label or 0)
            if split == "test":
                label = int(random.integers(2))
            elif random.random() >= self.reliability:
                label = 1 - label
            slot = int(random.integers(len(words) + 1))
            others = sum(len(str(part).split()) for part in example.parts[1:])
            truth = [0.0] * (len(words) + 1 + others)
            truth[slot] = 1.0 if label else -1.0
            text = " ".join([*words[:slot], SHORTCUT_WORDS[label], *words[slot:]])
            rationale = tuple(bool(value) for value in truth)
            changed.append(
                Example(example.uid, (text, *example.parts[1:]), example.label, rationale, ground_truth=tuple(truth))
            )
        return tuple(changed)


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
