"""Deterministic splits, and random subsamples of a corpus.

Examples are ordered by a hash of (seed, content) within each class, so neither the order of the rows nor the size of
another class changes a split. Examples with the same content stay together, so no text is in two splits.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from heedful.types import SPLITS, Corpus, Example, Number, Splits, Tokenization, UserError

DEV_SHARE = 0.15
"""Share of train that becomes dev where a corpus has no dev split."""
Notes = dict[str, int | float | str]


def normalized_content(example: Example) -> str:
    """The content that makes two examples equal: texts without case and spacing, or pixels."""
    parts = [
        " ".join(content.casefold().split())
        if isinstance(content, str)
        else hashlib.sha256(content.contiguous().numpy().tobytes()).hexdigest()
        for content in example.parts
    ]
    return "\x1f".join(parts)


def hold_out(
    examples: Sequence[Example], share: float, seed: int = 0
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The rest and the held-out part, both in the given order; the part has round(share x n) examples of each class.

    Groups of equal content are held out as a whole, so the last one may exceed the share. Real-valued labels count as
    one class. A class with two or more groups gives at least one and keeps at least one.
    """
    groups: dict[Number | None, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    class_of: dict[str, Number | None] = {}
    for index, example in enumerate(examples):
        key = normalized_content(example)
        label = None if isinstance(example.label, float) else example.label
        groups[class_of.setdefault(key, label)][key].append(index)
    held_out = {index for group in groups.values() for index in _choose_groups(group, share, seed)}
    rest = tuple(example for index, example in enumerate(examples) if index not in held_out)
    return rest, tuple(example for index, example in enumerate(examples) if index in held_out)


def _choose_groups(groups: dict[str, list[int]], share: float, seed: int) -> list[int]:
    wanted = round(share * sum(map(len, groups.values())))
    if share > 0 and len(groups) > 1:
        wanted = max(1, wanted)
    order = sorted(groups, key=lambda key: hashlib.sha256(f"{seed}\x1f{key}".encode()).digest())
    indices: list[int] = []
    for key in order[: len(groups) - 1]:
        if len(indices) >= wanted:
            break
        indices.extend(groups[key])
    return indices


def finalize_splits(name: str, splits: Splits) -> Splits:
    """Hold out a dev split where there is none, check uids and sizes, and note test texts that are also in train."""
    notes: Notes = dict(splits.notes)
    if not splits.dev:
        train, dev = hold_out(splits.train, DEV_SHARE)
        splits = replace(splits, train=train, dev=dev)
        notes["dev held out from train"] = len(dev)
    counts = Counter(example.uid for split in SPLITS for example in splits[split])
    repeated = [uid for uid, count in counts.items() if count > 1]
    if repeated:
        raise UserError(f"{name}: two rows have the id {repeated[0]}; fix or refetch the corpus")
    for split in SPLITS:
        if not splits[split]:
            raise UserError(f"{name}: the split {split} has no examples; fix or refetch the corpus")
    known = {normalized_content(example) for example in splits.train}
    overlap = sum(normalized_content(example) in known for example in splits.test)
    if overlap:
        notes["test texts that are also in train"] = overlap
    return replace(splits, notes=notes)


@dataclass(frozen=True)
class DerivedCorpus(Corpus):
    """A corpus that changes or selects examples of another one; `read` says how."""

    corpus: Corpus

    @property
    def name(self) -> str:
        return self.corpus.name

    @property
    def tokenization(self) -> Tokenization:
        return self.corpus.tokenization

    @property
    def embedding_dim(self) -> int:
        return self.corpus.embedding_dim

    def digest(self, data: Path) -> str:
        """The digest of the other corpus: the fields are part of every fingerprint anyway."""
        return self.corpus.digest(data)


@dataclass(frozen=True)
class SubsampledCorpus(DerivedCorpus):
    """A fixed random subsample of another corpus, with at most so many examples of each split."""

    train: int = 1000
    dev: int = 300
    test: int = 300

    def __post_init__(self) -> None:
        if min(self.train, self.dev, self.test) < 1:
            raise UserError("a subsample needs at least one example in each split")

    def read(self, data: Path) -> Splits:
        whole = self.corpus.read(data)
        samples = []
        for number, (split, size) in enumerate(zip(SPLITS, (self.train, self.dev, self.test), strict=True)):
            count = len(whole[split])
            random = np.random.default_rng((number, count, size))
            rows = np.sort(random.choice(count, size, replace=False)) if size < count else range(count)
            samples.append(tuple(whole[split][row] for row in rows))
        counts = ", ".join(
            f"{len(sample)} of {len(whole[split])} {split}" for split, sample in zip(SPLITS, samples, strict=True)
        )
        notes = {**whole.notes, "a random part only": counts}
        return replace(whole, train=samples[0], dev=samples[1], test=samples[2], notes=notes)
