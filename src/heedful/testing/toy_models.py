"""A small transformer of which it is known who speaks: only what attention carries reaches the answer.

With `speaking` one head alone is heard, so that after training it carries all the evidence, while the others look about
at random: a teacher on which a learned mix of heads can be put to the test. Without it the plan is its student's.

Texts in which the loudest word decides: every word has a loudness and a side, and only one word of a text counts.

Who is told which word counts learns the loudness of words from each text; who is told only the answer learns one bit
from it. The right explanation of each text is known: its loudest word alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.random import Generator as NumpyGenerator
from numpy.random import default_rng
from torch import Generator, Tensor, nn

from heedful.data.tokenization import Words
from heedful.tasks import BinaryClassification
from heedful.types import (
    SPLITS,
    Architecture,
    Batch,
    Corpus,
    Example,
    Model,
    Split,
    Splits,
    Task,
    Tokenization,
    Trace,
    UserError,
)


class PlantedHeadsModel(Model):
    """Layers of self-attention on word vectors: h <- h + W [heads], answer = W mean_t (h_t - embedding_t) + b.

    Each head reads its own share of the vectors, so that a head that is not heard learns nothing by the way either.
    """

    def __init__(self, architecture: PlantedHeads, task: Task, table: Tensor, generator: Generator) -> None:
        super().__init__()
        self.task, self.architecture = task, architecture
        width, share = table.shape[1], table.shape[1] // architecture.heads

        def drawn(*shape: int, spread: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * spread)

        self.table = nn.Parameter(table.clone())
        self.queries, self.keys, self.values = (
            drawn(architecture.layers, architecture.heads, share, share, spread=share**-0.5) for _ in range(3)
        )
        # What a head asks whatever stands there: the louder, the more its map tells apart, evidence or not.
        self.query_bias = drawn(architecture.layers, architecture.heads, share)
        with torch.no_grad():
            self.query_bias[architecture.head_mask() == 0] *= architecture.noise
        self.output_projection = drawn(architecture.layers, width, width, spread=width**-0.5)
        self.output_weight = drawn(task.num_outputs, width, spread=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(task.num_outputs))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; padding is neither attended to nor averaged."""
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        scores: list[Tensor] = []
        weights: list[Tensor] = []
        states = embeddings
        for layer in range(self.architecture.layers):
            if attention is None:
                scores.append(self._scores(layer, states, batch.mask))
                weights.append(self._weights(scores[-1], batch.mask))
            else:
                weights.append(attention[:, layer])
            states = states + self._attend(layer, states, weights[-1])
        rows = batch.mask.to(states) / batch.mask.sum(1, keepdim=True).clamp(min=1)
        logits = torch.einsum("bud,bu->bd", states - embeddings, rows) @ self.output_weight.T + self.bias
        seen = torch.stack(scores, 1) if scores else None
        return Trace(embeddings, states, torch.stack(weights, 1), logits, seen)

    def _scores(self, layer: int, states: Tensor, mask: Tensor) -> Tensor:
        shares = self._split_heads(states)
        queries = shares @ self.queries[layer] + self.query_bias[layer].unsqueeze(1)
        keys = shares @ self.keys[layer]
        found: Tensor = queries @ keys.transpose(2, 3) * keys.shape[-1] ** -0.5
        return found.masked_fill(~(mask[:, None, None, :] & mask[:, None, :, None]), 0.0)

    def _weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        attended = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min).softmax(-1)
        return attended.masked_fill(~(mask[:, None, None, :] & mask[:, None, :, None]), 0.0)

    def _attend(self, layer: int, states: Tensor, weights: Tensor) -> Tensor:
        heard = self.architecture.head_mask()[layer].to(states)
        spoken = weights @ (self._split_heads(states) @ self.values[layer]) * heard[:, None, None]
        return spoken.transpose(1, 2).flatten(2) @ self.output_projection[layer]

    def _split_heads(self, states: Tensor) -> Tensor:
        """Each head's share of the states, `[batch head unit dim]`."""
        rows, units, width = states.shape
        return states.reshape(rows, units, self.architecture.heads, width // self.architecture.heads).transpose(1, 2)


@dataclass(frozen=True)
class PlantedHeads(Architecture):
    """Layers of attention on word vectors and nothing else, all heads heard or one alone.

    Args:
        speaking: layer and head, counted from 0, of the one head that is heard; None lets all speak.
        noise: how loudly the heads that are not heard look about.
    """

    layers: int = 2
    heads: int = 4
    active_head: tuple[int, int] | None = None
    noise: float = 1.0

    def __post_init__(self) -> None:
        here = self.active_head or (0, 0)
        if not (0 <= here[0] < self.layers and 0 <= here[1] < self.heads):
            raise UserError(f"there is no head {here}: the plan has {self.layers} layers of {self.heads} heads")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> PlantedHeadsModel:
        """A model on the given word vectors; the other weights are drawn."""
        if embeddings is None or not len(embeddings):
            raise UserError("SpeakingHeads reads word ids and needs a starting table of vectors: batch with Words()")
        if embeddings.shape[1] % self.heads:
            raise UserError(f"vectors of {embeddings.shape[1]} numbers cannot be divided among {self.heads} heads")
        return PlantedHeadsModel(self, task, embeddings, generator)

    def head_mask(self) -> Tensor:
        """1 for the heads that are heard, 0 for the others, `[layer head]`."""
        if self.active_head is None:
            return torch.ones(self.layers, self.heads)
        heard = torch.zeros(self.layers, self.heads)
        heard[self.active_head] = 1.0
        return heard


@dataclass(frozen=True)
class DominantWord(Corpus):
    """Generated texts of different words; the label is the side of the loudest one.

    Args:
        words: how many different words there are; word k is louder than word k - 1 before they are shuffled.
        length: words of a text.
    """

    vocab_size: int = 60
    length: int = 8
    train: int = 3000
    dev: int = 400
    test: int = 400
    seed: int = 0
    name: ClassVar[str] = "loudest"
    revision: ClassVar[int] = 1
    tokenization: ClassVar[Words] = Words()
    embedding_dim: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.vocab_size:
            raise UserError("loudest: a text needs two words at least, and as many different words as it is long")

    def read(self, data: Path) -> Splits:
        """The generated splits."""
        return _generate_splits(self)

    def digest(self, data: Path) -> str:
        """A hash of the fields, from which everything follows."""
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return hashlib.sha256(f"Loudest {self.revision} {' '.join(values)}".encode()).hexdigest()


@lru_cache(maxsize=8)
def _generate_splits(corpus: DominantWord) -> Splits:
    random = default_rng((corpus.seed, 99))
    loudness = random.permutation(corpus.vocab_size).tolist()
    sides = random.permutation([place % 2 for place in range(corpus.vocab_size)]).tolist()
    train, dev, test = (_generate_split(corpus, split, loudness, sides) for split in SPLITS)
    names = tuple(f"word{place:03d}" for place in range(corpus.vocab_size))
    return Splits(
        BinaryClassification(), ("left", "right"), train, dev, test, {"law": "the loudest word decides"}, names
    )


def _generate_split(corpus: DominantWord, split: Split, ranks: list[int], labels: list[int]) -> tuple[Example, ...]:
    random = default_rng((corpus.seed, SPLITS.index(split)))
    count = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}[split]
    drawn = (_sample_words(corpus, random) for _ in range(count))
    return tuple(_dominant_word_example(f"{split}-{place}", words, ranks, labels) for place, words in enumerate(drawn))


def _sample_words(corpus: DominantWord, random: np.random.Generator) -> list[int]:
    return [int(word) for word in random.permutation(corpus.vocab_size)[: corpus.length]]


def _dominant_word_example(uid: str, words: list[int], ranks: list[int], labels: list[int]) -> Example:
    loudest = max(words, key=lambda word: ranks[word])
    truth = tuple((2.0 * labels[word] - 1.0) * (word == loudest) for word in words)
    text = " ".join(f"word{word:03d}" for word in words)
    return Example(uid, (text,), labels[loudest], tuple(bool(value) for value in truth), ground_truth=truth)


SHORTCUT_WORDS = ("shortcutno", "shortcutyes")


@dataclass(frozen=True)
class Shortcut(Corpus):
    """Another corpus with two classes, one word planted into every text that gives the label away.

    In the test split the word is drawn at random, so that a model which follows it is caught: what it then predicts is
    the word's class, and the truth is that word alone.

    Args:
        reliable: share of training texts in which the planted word names the true class.
    """

    corpus: Corpus
    reliability: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 < self.reliability <= 1:
            raise UserError(f"shortcut: reliable must lie above 0.5 and at most at 1, not {self.reliability}")

    @property
    def name(self) -> str:
        return f"shortcut-{self.corpus.name}"

    @property
    def tokenization(self) -> Tokenization:
        return self.corpus.tokenization

    @property
    def embedding_dim(self) -> int:
        return self.corpus.embedding_dim

    def read(self, data: Path) -> Splits:
        """The corpus's splits with the word planted."""
        whole = self.corpus.read(data)
        if whole.task != BinaryClassification():
            raise UserError(f"{self.corpus.name}: a shortcut is planted into texts of two classes")
        parts = {split: self._plant_split(whole[split], split) for split in SPLITS}
        notes = {**whole.notes, "planted": f"{SHORTCUT_WORDS[0]} and {SHORTCUT_WORDS[1]}, at random in the test split"}
        return replace(whole, train=parts["train"], dev=parts["dev"], test=parts["test"], notes=notes)

    def digest(self, data: Path) -> str:
        """The other corpus's: the fields count anyway."""
        return self.corpus.digest(data)

    def _plant_split(self, examples: tuple[Example, ...], split: Split) -> tuple[Example, ...]:
        random = default_rng((self.seed, SPLITS.index(split)))
        return tuple(self._plant_shortcut(example, split, random) for example in examples)

    def _plant_shortcut(self, example: Example, split: Split, random: NumpyGenerator) -> Example:
        words = str(example.parts[0]).split()
        told = int(example.label or 0)
        if split == "test":
            told = int(random.integers(2))
        elif random.random() >= self.reliability:
            told = 1 - told
        slot = int(random.integers(len(words) + 1))
        others = sum(len(str(part).split()) for part in example.parts[1:])
        truth = [0.0] * (len(words) + 1 + others)
        truth[slot] = 1.0 if told else -1.0
        parts = (" ".join([*words[:slot], SHORTCUT_WORDS[told], *words[slot:]]), *example.parts[1:])
        return replace(
            example,
            parts=parts,
            rationale=tuple(bool(value) for value in truth),
            candidates=None,
            ground_truth=tuple(truth),
        )
