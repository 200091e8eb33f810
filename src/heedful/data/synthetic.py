"""Texts with a planted truth: the Mock corpora of AtteFa, generated from a seed.

Every word is a filler except k informative ones, drawn with replacement from the positive words (label 1) or
the negative words (label 0) of the VADER lexicon; the rationale marks them. Position, strength, fillers,
balance and noise are controls. All words of the lexicon are in the vocabulary, seen in training or not: else no model
could reach the published F1 of .97 where one word decides. Each split has a generator of its own, so the size of one
changes nothing in another.

Corpora whose right explanation is known, because they were made so: a court that knows the truth.

`Known` generates texts under five laws: every word adds its own weight (then Shapley values are those weights), a
majority of signed words decides, two words decide together (exclusive or), the order of two words decides, or one
word decides among words that only hint. The truth
of each example has one number per word; the rationale marks the words where it is not zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator, default_rng

from heedful.data.embeddings import EmbeddingTable, WordEmbeddings
from heedful.data.tokenization import Words
from heedful.tasks import BinaryClassification
from heedful.types import SPLITS, Corpus, Example, Split, Splits, UserError

LEXICON_FILE = "vader_lexicon.txt"
FILLER_WORD = "something"
Position = Literal["uniform", "start", "middle", "end", "clustered"]


@lru_cache(maxsize=1)
def vader_lexicon() -> Mapping[str, float]:
    """The valence of each plain word of the VADER lexicon (-4 to 4), read without importing the package."""
    try:
        files = metadata.files("vaderSentiment") or []
    except metadata.PackageNotFoundError as error:
        raise UserError("mock: the package vaderSentiment is not installed: pip install vaderSentiment") from error
    paths = [Path(str(file.locate())) for file in files if file.name == LEXICON_FILE]
    if not paths or not paths[0].is_file():
        raise UserError(
            f"mock: the package vaderSentiment has no {LEXICON_FILE}: pip install --force-reinstall vaderSentiment"
        )
    rows = (line.split("\t") for line in paths[0].read_text(encoding="utf-8").splitlines())
    # Emoticons and abbreviations with signs in them would be taken apart by tokenisers.
    return {row[0]: float(row[1]) for row in rows if row[0].isascii() and row[0].isalpha() and row[0].islower()}


@dataclass(frozen=True)
class Mock(Corpus):
    """AtteFa's Mock corpora: a few words decide, all others say nothing.

    Args:
        informative: number of informative words of a text.
        informative_share: informative words as a share of the length, instead of `informative`.
        position: where they stand: anywhere, in the first, middle or last third, or side by side anywhere.
        strength: least absolute valence of an informative word (0 to 4).
        fillers: number of different filler words.
        balance: share of label 1, exact in each split.
        noise: share of labels turned round in train and dev; test keeps the truth.
        shortest: least number of words; lengths are uniform up to `longest`.
    """

    informative: int = 1
    informative_share: float | None = None
    position: Position = "uniform"
    strength: float = 0.0
    fillers: int = 1
    balance: float = 0.5
    noise: float = 0.0
    shortest: int = 50
    longest: int = 100
    train: int = 8000
    dev: int = 1000
    test: int = 1000
    seed: int = 0
    revision: ClassVar[int] = 2
    tokenization: ClassVar[Words] = Words()

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise UserError(f"mock: {problem}")

    def read(self, data: Path) -> Splits:
        return _generate_mock(self)

    def digest(self, data: Path) -> str:
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Mock {self.revision} {' '.join(values)}".encode()).hexdigest()

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that can occur, also those that a split happens not to show."""
        return tuple(
            sorted(
                {
                    *_informative_words(0, self.strength),
                    *_informative_words(1, self.strength),
                    *_filler_words(self.fillers),
                }
            )
        )

    @property
    def name(self) -> str:
        quarters = {0.25: "1q", 0.5: "2q", 0.75: "3q", 1.0: "4q"}
        size = (
            str(self.informative)
            if self.informative_share is None
            else quarters.get(self.informative_share, f"{self.informative_share:g}")
        )
        controls = ("position", "strength", "fillers", "balance", "noise")
        chosen = {field.name: field.default for field in fields(self) if field.name in controls}
        turned = [f"-{name}-{getattr(self, name)}" for name, usual in chosen.items() if getattr(self, name) != usual]
        return f"mock-{size}" + "".join(turned)

    def _problem(self) -> str:
        checks = {
            "give informative or informative_share, not both": self.informative != 1
            and self.informative_share is not None,
            "informative must lie between 1 and shortest": not 1 <= self.informative <= self.shortest,
            "informative_share must be above 0 and at most 1": not 0
            < (1 if self.informative_share is None else self.informative_share)
            <= 1,
            "shortest must be at least 1 and at most longest": not 1 <= self.shortest <= self.longest,
            "balance must lie between 0 and 1": not 0 < self.balance < 1,
            "noise must lie between 0 and 0.5": not 0 <= self.noise <= 0.5,
            "fillers must be at least 1": self.fillers < 1,
            "each split needs at least 2 examples": min(self.train, self.dev, self.test) < 2,
        }
        return next((problem for problem, holds in checks.items() if holds), "")


@lru_cache(maxsize=8)
def _generate_mock(corpus: Mock) -> Splits:
    parts = {split: _generate_mock_split(corpus, split) for split in SPLITS}
    turned = sum(round(corpus.noise * len(parts[split])) for split in SPLITS if split != "test")
    notes: dict[str, int | float | str] = {"labels turned round in train and dev": turned} if turned else {}
    classes = ("negative", "positive")
    return Splits(
        BinaryClassification(), classes, parts["train"], parts["dev"], parts["test"], notes, corpus.vocabulary
    )


def _generate_mock_split(corpus: Mock, split: Split) -> tuple[Example, ...]:
    random = default_rng((corpus.seed, SPLITS.index(split)))
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    truth = np.arange(count) < round(corpus.balance * count)
    random.shuffle(truth)
    given = truth.copy()
    if split != "test":
        given[random.permutation(count)[: round(corpus.noise * count)]] ^= True
    texts = [_mock_text(corpus, int(label), random) for label in truth]
    return tuple(
        Example(f"{corpus.name}-{split}-{place}", (" ".join(words),), int(label), rationale)
        for place, ((words, rationale), label) in enumerate(zip(texts, given, strict=True))
    )


def _mock_text(corpus: Mock, label: int, random: Generator) -> tuple[list[str], tuple[bool, ...]]:
    length = int(random.integers(corpus.shortest, corpus.longest + 1))
    count = corpus.informative if corpus.informative_share is None else max(1, round(corpus.informative_share * length))
    slots = _informative_positions(corpus.position, length, count, random)
    fillers, pool = _filler_words(corpus.fillers), _informative_words(label, corpus.strength)
    words = [fillers[index] for index in random.integers(len(fillers), size=length)]
    for slot, index in zip(slots, random.integers(len(pool), size=len(slots)), strict=True):
        words[slot] = pool[index]
    return words, tuple(place in slots for place in range(length))


def _informative_positions(position: Position, length: int, count: int, random: Generator) -> list[int]:
    """The places of the informative words; a region too small for them grows to hold them."""
    if position == "clustered":
        start = int(random.integers(length - count + 1))
        return list(range(start, start + count))
    size = length if position == "uniform" else max(count, length // 3)
    start = {"uniform": 0, "start": 0, "middle": (length - size) // 2, "end": length - size}[position]
    return sorted(start + int(slot) for slot in random.choice(size, size=count, replace=False))


@lru_cache(maxsize=32)
def _informative_words(label: int, strength: float) -> tuple[str, ...]:
    sign = 1 if label else -1
    words = sorted(word for word, valence in vader_lexicon().items() if sign * valence > 0 and abs(valence) >= strength)
    if not words:
        raise UserError(f"mock: no word of the lexicon has a valence of {strength} or more; lower strength")
    return tuple(words)


@lru_cache(maxsize=32)
def _filler_words(count: int) -> tuple[str, ...]:
    """`something`, then made-up words that no lexicon holds: some + syllables."""
    words = [FILLER_WORD]
    size = 1
    while len(words) < count:
        syllables = ("".join(pair) for pair in product("bdfgklmnprstvz", "aeiou"))
        words += ["some" + "".join(parts) for parts in product(tuple(syllables), repeat=size)]
        size += 1
    return tuple(words[:count])


MOCK_CORPORA: Mapping[str, Mock] = {
    mock.name: mock
    for mock in (
        *(Mock(informative=count) for count in (1, 2, 5, 10)),
        *(Mock(informative_share=share) for share in (0.25, 0.5, 0.75, 1.0)),
    )
}
"""The eight corpora of AtteFa by name."""


Rule = Literal["additive", "majority", "xor", "order", "hint"]
_LabelledWords = tuple[list[str], list[float], int]
"""Words, what each of them adds, and the label."""

MIN_MARGIN = 1.0
"""Sums of weights nearer to zero than this are drawn again: the label of an additive text is never a close call."""
HINT_ACCURACY = 0.7
"""Share of the hints that point to the label."""


@dataclass(frozen=True)
class GroundTruthCorpus(Corpus):
    """Generated texts under a law.

    Args:
        law: "additive" (each word adds a weight of its own), "majority" (more `plus` words than `minus` words),
            "xor" (one of two words of the first kind, one of two of the second), "order" (which of two words comes
            first), "hint" (one word decides, others hint at the label and are right in 70 % of the cases).
        words: how many different words there are beside the telling ones.
    """

    rule: Rule = "additive"
    vocab_size: int = 60
    shortest: int = 8
    longest: int = 16
    train: int = 4000
    dev: int = 400
    test: int = 400
    seed: int = 0
    revision: ClassVar[int] = 1
    tokenization: ClassVar[Words] = Words()
    embedding_dim: ClassVar[int] = 50

    def __post_init__(self) -> None:
        if self.rule not in _RULES:
            raise UserError(f"there is no law {self.rule!r}; choose one of {', '.join(_RULES)}")
        if not 5 <= self.shortest <= self.longest or self.vocab_size < 10:
            raise UserError("known: texts need at least 5 words and shortest at most longest; words at least 10")

    @property
    def name(self) -> str:
        return f"known-{self.rule}"

    def read(self, data: Path) -> Splits:
        """The generated splits."""
        return _generate_ground_truth(self)

    def digest(self, data: Path) -> str:
        """A hash of the fields, from which everything follows."""
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Known {self.revision} {' '.join(values)}".encode()).hexdigest()

    @property
    def weights(self) -> Mapping[str, float]:
        """What each word adds to class 1 under the additive law: distinct numbers on both sides of zero."""
        drawn = default_rng((self.seed, 99)).permutation(self.vocab_size)
        sizes = (drawn + 1) / self.vocab_size * np.where(drawn % 2 == 0, 1.0, -1.0)
        return {f"word{place:03d}": float(size) for place, size in enumerate(sizes)}


@lru_cache(maxsize=8)
def _generate_ground_truth(corpus: GroundTruthCorpus) -> Splits:
    train, dev, test = (_generate_ground_truth_split(corpus, split) for split in SPLITS)
    return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test, {"law": corpus.rule})


def _generate_ground_truth_split(corpus: GroundTruthCorpus, split: Split) -> tuple[Example, ...]:
    random = default_rng((corpus.seed, SPLITS.index(split)))
    make = _RULES[corpus.rule]
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    return tuple(
        _ground_truth_example(f"{corpus.name}-{split}-{place}", make(corpus, place % 2, random))
        for place in range(count)
    )


def _ground_truth_example(uid: str, text: _LabelledWords) -> Example:
    words, truth, label = text
    return Example(uid, (" ".join(words),), label, tuple(bool(value) for value in truth), ground_truth=tuple(truth))


def _random_words(corpus: GroundTruthCorpus, random: Generator) -> list[str]:
    length = int(random.integers(corpus.shortest, corpus.longest + 1))
    return [f"word{place:03d}" for place in random.integers(corpus.vocab_size, size=length)]


def _additive_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    weights = corpus.weights
    while True:
        words = _random_words(corpus, random)
        truth = [weights[word] for word in words]
        total = sum(truth)
        # A word that stands twice would tie with itself in every ranking.
        if abs(total) >= MIN_MARGIN and (total > 0) == bool(label) and len(set(words)) == len(words):
            return words, truth, label


def _majority_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    count = 3 if len(words) < 8 else 5
    winners = int(random.integers(count // 2 + 1, count + 1))
    signs = [1.0] * winners + [-1.0] * (count - winners)
    signs = [sign if label else -sign for sign in signs]
    truth = [0.0] * len(words)
    for slot, sign in zip(random.permutation(len(words))[:count], signs, strict=True):
        truth[slot] = sign
        words[slot] = f"{'plus' if sign > 0 else 'minus'}{int(random.integers(5))}"
    return words, truth, label


def _xor_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    first = int(random.integers(2))
    second = first ^ label
    truth = [0.0] * len(words)
    # Neither word says anything alone: only their size is known, not a sign.
    for slot, word in zip(random.permutation(len(words))[:2], (f"left{first}", f"right{second}"), strict=True):
        words[slot], truth[slot] = word, 1.0
    return words, truth, label


def _order_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    early, late = sorted(int(slot) for slot in random.permutation(len(words))[:2])
    pair = ("before", "after") if label else ("after", "before")
    truth = [0.0] * len(words)
    for slot, word in zip((early, late), pair, strict=True):
        words[slot], truth[slot] = word, 1.0
    return words, truth, label


def _hint_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    slots = random.permutation(len(words))
    for slot in slots[1:4]:
        told = label if random.random() < HINT_ACCURACY else 1 - label
        words[slot] = f"hint{told}{int(random.integers(3))}"
    truth = [0.0] * len(words)
    words[slots[0]], truth[slots[0]] = f"tell{label}", 1.0 if label else -1.0
    return words, truth, label


_RULES: Mapping[Rule, Callable[[GroundTruthCorpus, int, Generator], _LabelledWords]] = {
    "additive": _additive_text,
    "majority": _majority_text,
    "xor": _xor_text,
    "order": _order_text,
    "hint": _hint_text,
}


@dataclass(frozen=True)
class GroundTruthEmbeddings(WordEmbeddings):
    """Vectors of one number: what each word of a `Known` corpus adds under the additive law."""

    corpus: GroundTruthCorpus

    @property
    def display_name(self) -> str:
        return "ground truth"

    def look_up(self, words: Sequence[str], data: Path, generator: torch.Generator) -> EmbeddingTable:
        """The weights in the order of the words; zero for special symbols and unknown words."""
        weights = self.corpus.weights
        matrix = torch.tensor([[weights.get(word, 0.0)] for word in words])
        return EmbeddingTable(matrix, torch.tensor([word in weights for word in words]))

    def digest(self, data: Path) -> str:
        """That of the corpus, whose weights these are."""
        return self.corpus.digest(data)


GROUND_TRUTH_CORPORA: Mapping[str, GroundTruthCorpus] = {
    corpus.name: corpus for corpus in (GroundTruthCorpus(law) for law in _RULES)
}
"""The laws by the name of their corpus."""
