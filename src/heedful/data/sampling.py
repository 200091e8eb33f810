"""A random part of a corpus, for quick versions that say what they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from heedful.core.types import SPLITS, Batching, Corpus, Example, Split, Splits, UserError
from heedful.data.layout import named


@dataclass(frozen=True)
class Sampled(Corpus):
    """At most so many examples of each split of another corpus, drawn at random but always the same."""

    corpus: Corpus
    train: int = 1000
    dev: int = 300
    test: int = 300
    name: ClassVar[str] = "sampled"
    batching: ClassVar[Batching]

    def __post_init__(self) -> None:
        if min(self.train, self.dev, self.test) < 1:
            raise UserError("a part of a corpus needs at least one example in each split")
        named(self, self.corpus.name)
        object.__setattr__(self, "batching", self.corpus.batching)
        object.__setattr__(self, "width", self.corpus.width)

    def read(self, data: Path) -> Splits:
        """The corpus's splits, cut to size; the notes say from what."""
        whole = self.corpus.read(data)
        sizes = {"train": self.train, "dev": self.dev, "test": self.test}
        parts = {split: _part(whole[split], split, sizes[split]) for split in SPLITS}
        told = ", ".join(f"{len(parts[split])} of {len(whole[split])} {split}" for split in SPLITS)
        notes = {**whole.notes, "a random part only": told}
        return Splits(whole.task, whole.classes, parts["train"], parts["dev"], parts["test"], notes, whole.lexicon)

    def digest(self, data: Path) -> str:
        """The whole corpus's: the sizes are fields and count anyway."""
        return self.corpus.digest(data)


def _part(examples: tuple[Example, ...], split: Split, size: int) -> tuple[Example, ...]:
    """The examples that are kept, in the corpus's order."""
    if size >= len(examples):
        return examples
    random = np.random.default_rng((SPLITS.index(split), len(examples), size))
    return tuple(examples[place] for place in np.sort(random.choice(len(examples), size, replace=False)))
