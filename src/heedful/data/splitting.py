"""Deterministic splits of examples that come as one heap.

Examples are ordered by a hash of (seed, content), class by class, so neither the order of the rows nor the
size of another class changes a split; examples of one content stay together, so no text straddles two splits.

A random part of a corpus, for quick versions that say what they are.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heedful.types import SPLITS, Corpus, Example, Number, Split, Splits, Tokenization, UserError


def normalized_content(example: Example) -> str:
    """What makes two examples the same to a reader: the texts without case and spacing, or the pixels."""
    parts = [
        " ".join(part.casefold().split())
        if isinstance(part, str)
        else hashlib.sha256(part.contiguous().numpy().tobytes()).hexdigest()
        for part in example.parts
    ]
    return "\x1f".join(parts)


def hold_out(
    examples: Sequence[Example], share: float, seed: int = 0
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The rest and the carved part, both in the given order; the part holds round(share x n) examples of each
    class.

    A class is carved group by group (a group has one content), so the last group may exceed the share.
    Real-valued labels are one class. A class of two or more groups gives at least one and keeps at least one.
    """
    classes: dict[Number | None, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    home: dict[str, Number | None] = {}
    for place, example in enumerate(examples):
        key = normalized_content(example)
        stratum = None if isinstance(example.label, float) else example.label
        classes[home.setdefault(key, stratum)][key].append(place)
    taken: set[int] = set()
    for groups in classes.values():
        taken.update(_choose_held_out(groups, share, seed))
    rest = tuple(example for place, example in enumerate(examples) if place not in taken)
    return rest, tuple(example for place, example in enumerate(examples) if place in taken)


def _choose_held_out(groups: dict[str, list[int]], share: float, seed: int) -> list[int]:
    wanted = round(share * sum(len(places) for places in groups.values()))
    if share > 0 and len(groups) > 1:
        wanted = max(1, wanted)
    order = sorted(groups, key=lambda key: hashlib.sha256(f"{seed}\x1f{key}".encode()).digest())
    taken: list[int] = []
    for key in order[: len(groups) - 1]:
        if len(taken) >= wanted:
            break
        taken.extend(groups[key])
    return taken


def count_overlap(first: Iterable[Example], second: Iterable[Example]) -> int:
    """How many examples of `second` have the content of one of `first`."""
    known = {normalized_content(example) for example in first}
    return sum(normalized_content(example) in known for example in second)


@dataclass(frozen=True)
class SubsampledCorpus(Corpus):
    """At most so many examples of each split of another corpus, drawn at random but always the same."""

    corpus: Corpus
    train: int = 1000
    dev: int = 300
    test: int = 300

    def __post_init__(self) -> None:
        if min(self.train, self.dev, self.test) < 1:
            raise UserError("a part of a corpus needs at least one example in each split")

    @property
    def name(self) -> str:
        return self.corpus.name

    @property
    def tokenization(self) -> Tokenization:
        return self.corpus.tokenization

    @property
    def embedding_dim(self) -> int:
        return self.corpus.embedding_dim

    def read(self, data: Path) -> Splits:
        """The corpus's splits, cut to size; the notes say from what."""
        whole = self.corpus.read(data)
        sizes = {"train": self.train, "dev": self.dev, "test": self.test}
        parts = {split: _subsample(whole[split], split, sizes[split]) for split in SPLITS}
        told = ", ".join(f"{len(parts[split])} of {len(whole[split])} {split}" for split in SPLITS)
        notes = {**whole.notes, "a random part only": told}
        return Splits(
            whole.task, whole.class_names, parts["train"], parts["dev"], parts["test"], notes, whole.extra_vocabulary
        )

    def digest(self, data: Path) -> str:
        """The whole corpus's: the sizes are fields and count anyway."""
        return self.corpus.digest(data)


def _subsample(examples: tuple[Example, ...], split: Split, size: int) -> tuple[Example, ...]:
    """The examples that are kept, in the corpus's order."""
    if size >= len(examples):
        return examples
    random = np.random.default_rng((SPLITS.index(split), len(examples), size))
    return tuple(examples[place] for place in np.sort(random.choice(len(examples), size, replace=False)))
