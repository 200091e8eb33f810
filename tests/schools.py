"""Tiny teachers and classes that the tests of students share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from numpy.random import default_rng
from torch import Tensor

from heedful.core.tasks import Classes, Regression
from heedful.core.types import SPLITS, Corpus, Example, Splits
from heedful.core.workspace import Step, Workspace
from heedful.data.batching import Words
from heedful.data.loudest import Loudest
from heedful.data.vectors import RandomVectors
from heedful.models.planted import SpeakingHeads
from heedful.recipes.fit import SGD, Adam, Fit, Select
from heedful.recipes.subject import Subject
from heedful.recipes.teaching import Classroom

torch.set_num_threads(1)

CORPUS = Loudest(words=20, length=5, train=60, dev=16, test=30)
PLAN = SpeakingHeads(2, 2)
TEACHER = Subject(CORPUS, Words(), PLAN, Fit(2, 16, Adam(rate=0.02, undecayed=())), vectors=RandomVectors(8))
ROOM = Classroom(size=20)
FIT = Fit(3, 8, SGD(0.2), Select(), clip=5.0, reduction="mean")


@dataclass(frozen=True)
class Pairs(Corpus):
    """Two texts of unlike length; three classes, or a number: how many of the first text's words the second has."""

    number: bool = False
    name: ClassVar[str] = "pairs"
    batching: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        """Generated."""
        train, dev, test = (tuple(self._example(split, place) for place in range(24)) for split in SPLITS)
        task, names = (Regression(), ()) if self.number else (Classes(3), ("none", "one", "more"))
        return Splits(task, names, train, dev, test)

    def digest(self, data: Path) -> str:
        """The fields say all."""
        return "generated"

    def _example(self, split: str, place: int) -> Example:
        random = default_rng((place, SPLITS.index(split)))
        first, second = (random.integers(9, size=random.integers(2, 6)).tolist() for _ in range(2))
        shared = len(set(first) & set(second))
        texts = tuple(" ".join(f"w{word}" for word in words) for words in (first, second))
        return Example(f"{split}-{place}", texts, float(shared) if self.number else min(shared, 2))


def weights(workspace: Workspace, teacher: Subject = TEACHER) -> dict[str, Tensor]:
    """A copy of a teacher's weights as they are kept."""
    return {name: value.clone() for name, value in workspace.get(teacher).tensors.items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Killed(Exception):
    """Stands for a kill between two steps."""


class Dying:
    """A progress that dies at a step of a training, counted over all its tasks whose title begins with `title`."""

    def __init__(self, title: str, moment: int) -> None:
        self.title, self.left = title, moment

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Step]:
        """A step that may be the last."""

        def step(advance: int = 1, note: str = "") -> None:
            if title.startswith(self.title) and advance:
                self.left -= advance
                if self.left < 0:
                    raise Killed

        yield step
