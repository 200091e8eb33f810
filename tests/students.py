"""Small teachers, data and a progress that kills a training, shared by the tests of students."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from numpy.random import default_rng
from torch import Tensor

from heedful.data.embeddings import RandomEmbeddings
from heedful.data.words import Words
from heedful.progress import StepCallback
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
from heedful.training.teacher import StudentData
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import SGD, Adam, EpochSelection, Training
from heedful.types import SPLITS, Corpus, Example, Splits
from tests.planted_heads import DominantWord, PlantedHeads

torch.set_num_threads(1)

CORPUS = DominantWord(vocab_size=20, length=5, train=60, dev=16, test=30)
ARCHITECTURE = PlantedHeads(2, 2)
TEACHER = TrainedModel(
    CORPUS, Words(), ARCHITECTURE, Training(2, 16, Adam(lr=0.02, no_decay=())), embeddings=RandomEmbeddings(8)
)
DATA = StudentData(train_size=20)
TRAINING = Training(3, 8, SGD(0.2), EpochSelection(), max_grad_norm=5.0, reduction="mean")


@dataclass(frozen=True)
class Pairs(Corpus):
    """Two texts of different length; three classes, or a number: how many words of the first text the second has."""

    number: bool = False
    name: ClassVar[str] = "pairs"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        """Generated."""
        train, dev, test = (tuple(self._example(split, place) for place in range(24)) for split in SPLITS)
        task, names = (Regression(), ()) if self.number else (MulticlassClassification(3), ("none", "one", "more"))
        return Splits(task, names, train, dev, test)

    def digest(self, data: Path) -> str:
        """The fields determine the content."""
        return "generated"

    def _example(self, split: str, place: int) -> Example:
        random = default_rng((place, SPLITS.index(split)))
        first, second = (random.integers(9, size=random.integers(2, 6)).tolist() for _ in range(2))
        shared = len(set(first) & set(second))
        texts = tuple(" ".join(f"w{word}" for word in words) for words in (first, second))
        return Example(f"{split}-{place}", texts, float(shared) if self.number else min(shared, 2))


def weights(workspace: Workspace, teacher: TrainedModel = TEACHER) -> dict[str, Tensor]:
    """A copy of a teacher's stored weights."""
    return {name: value.clone() for name, value in workspace.get(teacher).tensors.items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Killed(Exception):
    """A simulated kill between two steps."""


class Dying:
    """A progress that raises `Killed` after `moment` steps of the tasks whose title begins with `title`."""

    def __init__(self, title: str, moment: int) -> None:
        self.title, self.left = title, moment

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A step that counts down."""

        def step(advance: int = 1, note: str = "") -> None:
            if title.startswith(self.title) and advance:
                self.left -= advance
                if self.left < 0:
                    raise Killed

        yield step
