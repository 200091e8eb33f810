"""Generated corpora with known evidence: the Mock corpora of AtteFa, and corpora with a ground-truth attribution.

A generated corpus needs no files: its fields determine it. Each split has a random generator of its own, so the size of
one split changes nothing in another.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator, default_rng

from heedful.data.embeddings import EmbeddingTable, WordEmbeddings
from heedful.data.io import packaged_file
from heedful.data.splitting import Notes
from heedful.data.words import Words
from heedful.tasks import BinaryClassification
from heedful.types import SPLITS, Corpus, Example, Split, Splits, UserError, check_choice

FILLER_WORD = "something"
Position = Literal["uniform", "start", "middle", "end", "clustered"]


class GeneratedCorpus(Corpus):
    """A corpus that its fields determine; generated once per process."""

    revision: ClassVar[int] = 1

    @abstractmethod
    def generate(self) -> Splits:
        """The examples of all splits."""

    def read(self, data: Path) -> Splits:
        return _generate_once(self)

    def digest(self, data: Path) -> str:
        return hashlib.sha256(f"{self.revision} {self!r}".encode()).hexdigest()


@lru_cache(maxsize=8)
def _generate_once(corpus: GeneratedCorpus) -> Splits:
    return corpus.generate()


@lru_cache(maxsize=1)
def vader_lexicon() -> Mapping[str, float]:
    """The valence (-4 to 4) of each plain word of the VADER lexicon, read without importing the package."""
    path = packaged_file("vaderSentiment", "vader_lexicon.txt", "pip install --force-reinstall vaderSentiment")
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    # Tokenizers would split emoticons and abbreviations with punctuation.
    return {row[0]: float(row[1]) for row in rows if row[0].isascii() and row[0].isalpha() and row[0].islower()}


@dataclass(frozen=True)
class Mock(GeneratedCorpus):
    """AtteFa's Mock corpora: a few informative words decide, all others are fillers.

    The informative words are drawn with replacement from the positive (label 1) or negative (label 0) words of the
    VADER lexicon, and the rationale marks them. The whole lexicon is in the vocabulary, seen in training or not:
    otherwise no model could reach the published F1 of .97 where one word decides.

    Args:
        informative: number of informative words per text.
        informative_share: number of informative words as a share of the length, instead of `informative`.
        position: of the informative words: anywhere, in the first, middle or last third, or side by side anywhere.
        strength: minimum absolute valence of an informative word (0 to 4).
        fillers: number of different filler words.
        balance: share of label 1, exact in each split.
        noise: share of flipped labels in train and dev; test keeps the true labels.
        shortest: minimum number of words; lengths are uniform up to `longest`.
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
        check_choice("position", self.position, Position)
        share = self.informative_share
        checks = {
            "give informative or informative_share, not both": share is None or self.informative == 1,
            "informative must lie between 1 and shortest": 1 <= self.informative <= self.shortest,
            "informative_share must be above 0 and at most 1": share is None or 0 < share <= 1,
            "shortest must be at least 1 and at most longest": 1 <= self.shortest <= self.longest,
            "balance must lie between 0 and 1": 0 < self.balance < 1,
            "noise must lie between 0 and 0.5": 0 <= self.noise <= 0.5,
            "fillers must be at least 1": self.fillers >= 1,
            "each split needs at least 2 examples": min(self.train, self.dev, self.test) >= 2,
        }
        for requirement, holds in checks.items():
            if not holds:
                raise UserError(f"mock: {requirement}")

    @property
    def name(self) -> str:
        quarters = {0.25: "1q", 0.5: "2q", 0.75: "3q", 1.0: "4q"}
        share = self.informative_share
        size = str(self.informative) if share is None else quarters.get(share, f"{share:g}")
        controls = ("position", "strength", "fillers", "balance", "noise")
        defaults = {field.name: field.default for field in fields(self) if field.name in controls}
        changed = [f"-{name}-{getattr(self, name)}" for name, value in defaults.items() if getattr(self, name) != value]
        return f"mock-{size}" + "".join(changed)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that can occur, also those that no split contains."""
        informative = {word for label in (0, 1) for word in _informative_words(label, self.strength)}
        return tuple(sorted({*informative, *_filler_words(self.fillers)}))

    def generate(self) -> Splits:
        train, dev, test = (self._generate_split(split) for split in SPLITS)
        flipped = round(self.noise * len(train)) + round(self.noise * len(dev))
        notes: Notes = {"labels flipped in train and dev": flipped} if flipped else {}
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test, notes, self.vocabulary)

    def _generate_split(self, split: Split) -> tuple[Example, ...]:
        random = default_rng((self.seed, SPLITS.index(split)))
        count = {"train": self.train, "dev": self.dev, "test": self.test}[split]
        truth = np.arange(count) < round(self.balance * count)
        random.shuffle(truth)
        labels = truth.copy()
        if split != "test":
            labels[random.permutation(count)[: round(self.noise * count)]] ^= True
        texts = [self._generate_text(int(label), random) for label in truth]
        prefix = f"{self.name}-{split}"
        return tuple(
            Example(f"{prefix}-{number}", (" ".join(words),), int(label), rationale)
            for number, ((words, rationale), label) in enumerate(zip(texts, labels, strict=True))
        )

    def _generate_text(self, label: int, random: Generator) -> tuple[list[str], tuple[bool, ...]]:
        length = int(random.integers(self.shortest, self.longest + 1))
        share = self.informative_share
        count = self.informative if share is None else max(1, round(share * length))
        slots = _informative_positions(self.position, length, count, random)
        fillers, pool = _filler_words(self.fillers), _informative_words(label, self.strength)
        words = [fillers[index] for index in random.integers(len(fillers), size=length)]
        for slot, index in zip(slots, random.integers(len(pool), size=len(slots)), strict=True):
            words[slot] = pool[index]
        return words, tuple(index in slots for index in range(length))


def _informative_positions(position: Position, length: int, count: int, random: Generator) -> list[int]:
    """The indices of the informative words; a third that is too short for them is extended."""
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
    """`something`, then invented words that no lexicon holds: some + syllables."""
    words = [FILLER_WORD]
    size = 1
    while len(words) < count:
        syllables = tuple("".join(pair) for pair in product("bdfgklmnprstvz", "aeiou"))
        words += ["some" + "".join(parts) for parts in product(syllables, repeat=size)]
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


_Rule = Literal["additive", "majority", "xor", "order", "hint"]
_LabelledWords = tuple[list[str], list[float]]
"""Words and their ground-truth attributions."""

MIN_MARGIN = 1.0
"""Minimum absolute sum of weights of an additive text: no label is a close call."""
HINT_ACCURACY = 0.7
"""Share of the hints that point to the label."""


@dataclass(frozen=True)
class GroundTruthCorpus(GeneratedCorpus):
    """Generated texts whose label follows a known rule, so that the true attribution of each word is known.

    The rationale marks the words with an attribution that is not zero.

    Args:
        rule: "additive" (each word has a weight, which is its Shapley value), "majority" (more `plus` than `minus`
            words), "xor" (one of two `left` words and one of two `right` words), "order" (which of two words comes
            first) or "hint" (one word decides, others hint at the label and are right in 70 % of the cases).
        vocab_size: number of different words besides the decisive ones.
    """

    rule: _Rule = "additive"
    vocab_size: int = 60
    shortest: int = 8
    longest: int = 16
    train: int = 4000
    dev: int = 400
    test: int = 400
    seed: int = 0
    tokenization: ClassVar[Words] = Words()
    embedding_dim: ClassVar[int] = 50

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, _Rule)
        if not 5 <= self.shortest <= self.longest or self.vocab_size < 10:
            raise UserError(
                f"{self.name}: texts need at least 5 words, shortest at most longest, and vocab_size at least 10"
            )

    @property
    def name(self) -> str:
        return f"known-{self.rule}"

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each word for class 1 under the additive rule: distinct numbers of both signs."""
        drawn = default_rng((self.seed, 99)).permutation(self.vocab_size)
        sizes = (drawn + 1) / self.vocab_size * np.where(drawn % 2 == 0, 1.0, -1.0)
        return {f"word{index:03d}": float(size) for index, size in enumerate(sizes)}

    def generate(self) -> Splits:
        train, dev, test = (self._generate_split(split) for split in SPLITS)
        return Splits(BinaryClassification(), ("negative", "positive"), train, dev, test, {"rule": self.rule})

    def _generate_split(self, split: Split) -> tuple[Example, ...]:
        random = default_rng((self.seed, SPLITS.index(split)))
        examples = []
        for number in range({"train": self.train, "dev": self.dev, "test": self.test}[split]):
            words, truth = _RULES[self.rule](self, number % 2, random)
            rationale = tuple(bool(value) for value in truth)
            uid, text = f"{self.name}-{split}-{number}", " ".join(words)
            examples.append(Example(uid, (text,), number % 2, rationale, ground_truth=tuple(truth)))
        return tuple(examples)


def _random_words(corpus: GroundTruthCorpus, random: Generator) -> list[str]:
    length = int(random.integers(corpus.shortest, corpus.longest + 1))
    return [f"word{index:03d}" for index in random.integers(corpus.vocab_size, size=length)]


def _additive_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    weights = corpus.weights
    while True:
        words = _random_words(corpus, random)
        truth = [weights[word] for word in words]
        total = sum(truth)
        # A repeated word would tie with itself in every ranking.
        if abs(total) >= MIN_MARGIN and (total > 0) == bool(label) and len(set(words)) == len(words):
            return words, truth


def _majority_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    count = 3 if len(words) < 8 else 5
    winners = int(random.integers(count // 2 + 1, count + 1))
    signs = [1.0] * winners + [-1.0] * (count - winners)
    truth = [0.0] * len(words)
    for slot, sign in zip(random.permutation(len(words))[:count], signs, strict=True):
        truth[slot] = sign if label else -sign
        words[slot] = f"{'plus' if truth[slot] > 0 else 'minus'}{int(random.integers(5))}"
    return words, truth


def _xor_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    first = int(random.integers(2))
    truth = [0.0] * len(words)
    # Neither word is evidence alone: the size of its attribution is known, not its sign.
    for slot, word in zip(random.permutation(len(words))[:2], (f"left{first}", f"right{first ^ label}"), strict=True):
        words[slot], truth[slot] = word, 1.0
    return words, truth


def _order_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    slots = sorted(int(slot) for slot in random.permutation(len(words))[:2])
    truth = [0.0] * len(words)
    for slot, word in zip(slots, ("before", "after") if label else ("after", "before"), strict=True):
        words[slot], truth[slot] = word, 1.0
    return words, truth


def _hint_text(corpus: GroundTruthCorpus, label: int, random: Generator) -> _LabelledWords:
    words = _random_words(corpus, random)
    slots = random.permutation(len(words))
    for slot in slots[1:4]:
        hint = label if random.random() < HINT_ACCURACY else 1 - label
        words[slot] = f"hint{hint}{int(random.integers(3))}"
    truth = [0.0] * len(words)
    words[slots[0]], truth[slots[0]] = f"tell{label}", 1.0 if label else -1.0
    return words, truth


_RULES: Mapping[_Rule, Callable[[GroundTruthCorpus, int, Generator], _LabelledWords]] = {
    "additive": _additive_text,
    "majority": _majority_text,
    "xor": _xor_text,
    "order": _order_text,
    "hint": _hint_text,
}
GROUND_TRUTH_CORPORA: Mapping[str, GroundTruthCorpus] = {
    corpus.name: corpus for corpus in (GroundTruthCorpus(rule) for rule in _RULES)
}
"""One corpus per rule, by name."""


@dataclass(frozen=True)
class GroundTruthEmbeddings(WordEmbeddings):
    """One-dimensional embeddings: the weight of each word of a `GroundTruthCorpus` under the additive rule."""

    corpus: GroundTruthCorpus
    display_name: ClassVar[str] = "ground truth"

    def look_up(self, words: Sequence[str], data: Path, generator: torch.Generator) -> EmbeddingTable:
        weights = self.corpus.weights
        matrix = torch.tensor([[weights.get(word, 0.0)] for word in words])
        return EmbeddingTable(matrix, torch.tensor([word in weights for word in words]))

    def digest(self, data: Path) -> str:
        return self.corpus.digest(data)
