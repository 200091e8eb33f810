"""AtteFa of a user's own texts: one number for a chosen encoder, with its noise floor and the value of a collapse.

The paper counts epochs, which on a few hundred texts are no training at all; here no training has fewer steps than on
the paper's smallest corpus.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from heedful import catalogue
from heedful.core.tasks import Regression
from heedful.core.types import Corpus, Splits, UserError
from heedful.data.tables import Reading, Saved, Table, own
from heedful.models.attention import Additive
from heedful.models.pooled import Pooled
from heedful.models.shapes import Compared, OneText
from heedful.papers.choosing import Choice, chosen, vectors_named
from heedful.papers.wiegreffe import ENCODERS, paced, quick_part
from heedful.recipes.fit import Fit
from heedful.recipes.subject import Subject
from heedful.trials.attefa import PAPER_SEEDS, AtteFa
from heedful.trials.performance import Performance

EPOCH = 39
"""Steps of an epoch on the paper's smallest corpus, the two groups of 20 Newsgroups."""
SMALL = 200
"""With fewer test texts the number is said to be rough."""


@dataclass(frozen=True)
class OwnData:
    """Where a user's texts are: files for each split or one that is carved, and the columns that matter."""

    path: str
    reading: Reading
    dev: str | None = None
    test: str | None = None

    @property
    def corpus(self) -> Table | Saved:
        """The texts as a corpus; a saved `datasets` folder brings its own splits."""
        if Path(self.path).is_dir() and self.dev is None and self.test is None:
            found = own(self.path, self.reading)
            assert isinstance(found, Saved)
            return found
        return Table(self.path, self.reading, self.dev, self.test)

    def read(self, data: Path) -> Splits:
        """The splits; complains where AtteFa is not defined for them."""
        splits = self.corpus.read(data)
        if isinstance(splits.task, Regression):
            raise UserError(
                f"{self.path}: the labels in column '{self.reading.label}' are real numbers, but adversaries need "
                "classes; name a column of classes"
            )
        return splits


def own_attefa(owned: OwnData, choice: Choice, data: Path, bases: int = 2) -> tuple[Performance, AtteFa]:
    """The base's scores and its AtteFa against `choice.seeds` adversaries.

    Args:
        bases: honest trainings, the attacked one among them; with two or more there is a noise floor.
    """
    (encoder,) = chosen("encoder", choice.encoders or ("bilstm",), ENCODERS)
    owned.read(data)
    corpus: Corpus = quick_part(owned.corpus) if choice.quick else owned.corpus
    texts = len(corpus.read(data).train)
    pace = paced(choice, 80)
    named = found_vectors(data) if choice.vectors == "auto" else choice.vectors
    shape = OneText() if owned.reading.second is None else Compared()
    base = Subject(
        corpus=corpus,
        batching=corpus.batching,
        model=Pooled(catalogue.ENCODERS[encoder](), Additive(), shape=shape),
        fit=lengthened(pace.base, texts),
        seed=PAPER_SEEDS[0],
        vectors=vectors_named(named, corpus.width),
    )
    seeds = PAPER_SEEDS[: choice.seeds or 3]
    fit = lengthened(replace(pace.adversary, reduction="mean"), texts)
    return Performance(base), AtteFa(base, seeds, PAPER_SEEDS[1:bases], fit=fit, start=choice.start)


def lengthened(fit: Fit, texts: int) -> Fit:
    """The same training with so many times more epochs, and patience, that an epoch's steps make up for it.

    >>> fit = lengthened(Fit(epochs=80, patience=10), texts=320)
    >>> fit.epochs, fit.patience
    (320, 40)
    """
    times = max(1, math.ceil(EPOCH / math.ceil(texts / fit.batch)))
    return replace(fit, epochs=times * fit.epochs, patience=None if fit.patience is None else times * fit.patience)


def cautions(splits: Splits, accuracy: float) -> tuple[str, ...]:
    """What a reader of the number must know about the data it is from: one sentence each, none if all is well.

    Args:
        accuracy: the base's, on the test split.
    """
    labels = [example.label for example in splits.test]
    commonest = max(labels.count(label) for label in set(labels)) / len(labels)
    found = []
    if len(labels) < SMALL:
        found.append(
            f"Only {len(labels)} texts were tested, so the number is rough: another split may give another one."
        )
    if accuracy <= commonest:
        found.append(
            f"The base is right on {accuracy:.0%} of them, no more often than the commonest class would be "
            f"({commonest:.0%}): it has learned nothing that its attention could explain."
        )
    return tuple(found)


def found_vectors(data: Path) -> str:
    """The largest file of vectors in the data folder, else random ones."""
    found = sorted((data / "vectors").glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))
    return found[-1].stem if found else "random"
