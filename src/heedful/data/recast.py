"""A corpus as a given model answers it: a logit for each class, in the order of the model's outputs.

A corpus of two classes is read for one logit, which a model trained here has; a checkpoint from elsewhere has two, and
perhaps in another order. Names decide, whatever their case; where the model has no names, the order does, and the notes
say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from heedful.core.tasks import Classes
from heedful.core.types import SPLITS, Batching, Corpus, Example, Splits, UserError
from heedful.data.layout import named


@dataclass(frozen=True)
class Recast(Corpus):
    """The examples of another corpus for a model with these outputs.

    Args:
        outputs: what the model calls its outputs, in their order; LABEL_0, LABEL_1 ... say nothing, and the classes
            are then taken in the corpus's order, as they are where the corpus calls them 0, 1 ...
    """

    corpus: Corpus
    outputs: tuple[str, ...]
    name: ClassVar[str] = "recast"
    batching: ClassVar[Batching]

    def __post_init__(self) -> None:
        if len(self.outputs) < 2:
            raise UserError("a corpus is recast for a model with an output for each class: give at least two names")
        named(self, self.corpus.name)
        object.__setattr__(self, "batching", self.corpus.batching)
        object.__setattr__(self, "width", self.corpus.width)

    def read(self, data: Path) -> Splits:
        """The corpus's splits with the labels, candidates and class names in the model's order."""
        whole = self.corpus.read(data)
        place, remark = self._places(whole.classes)
        parts = {split: tuple(_moved(example, place) for example in whole[split]) for split in SPLITS}
        classes = tuple(whole.classes[place.index(output)] for output in range(len(place)))
        return replace(
            whole,
            task=Classes(len(classes)),
            classes=classes,
            train=parts["train"],
            dev=parts["dev"],
            test=parts["test"],
            notes={**whole.notes, "outputs of the model": remark},
        )

    def digest(self, data: Path) -> str:
        """The other corpus's: the outputs are a field and count anyway."""
        return self.corpus.digest(data)

    def _places(self, classes: tuple[str, ...]) -> tuple[tuple[int, ...], str]:
        """The model's output for each class of the corpus, and how it was found, in plain words."""
        ours, theirs = ", ".join(classes), ", ".join(self.outputs)
        if len(classes) != len(self.outputs):
            has = f"{len(classes)} classes ({ours})" if classes else "a number for each example and no classes"
            raise UserError(f"{self.corpus.name} has {has}, but the model has {len(self.outputs)} outputs ({theirs})")
        known = [_plain(name) for name in self.outputs]
        asked = [_plain(name) for name in classes]
        if sorted(known) == sorted(asked) and len(set(known)) == len(known):
            return tuple(known.index(name) for name in asked), f"{theirs}, matched with the classes by name"
        if _nameless(known) or _nameless(asked):
            return tuple(range(len(classes))), f"{theirs}, taken to be {ours} in this order"
        raise UserError(
            f"{self.corpus.name} has the classes {ours}, but the model calls its outputs {theirs}: say which is which "
            "by giving the names of the classes in the order of the model's outputs"
        )


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _nameless(names: list[str]) -> bool:
    """Whether the names only count: LABEL_0, LABEL_1 ... or 0, 1 ..."""
    return all(name in (f"label {place}", str(place)) for place, name in enumerate(names))


def _moved(example: Example, place: tuple[int, ...]) -> Example:
    if place == tuple(range(len(place))):
        return example
    return replace(
        example,
        label=None if example.label is None else place[int(example.label)],
        candidates=None if example.candidates is None else tuple(sorted(place[each] for each in example.candidates)),
        truth=_moved_truth(example.truth, place),
    )


def _moved_truth(truth: tuple[float, ...] | None, place: tuple[int, ...]) -> tuple[float, ...] | None:
    """What each word adds to the new class 1: of two classes that changed places the opposite, else unknown."""
    if truth is None or place[1] == 1:
        return truth
    return tuple(-value for value in truth) if len(place) == 2 else None
