"""A toy model and a toy corpus with known explanations.

`PlantedHeads` is a small transformer in which only attention carries evidence to the output, and with `active_head`
only one head: a teacher on which learned mixes of heads can be tested. In `DominantWord` one word of a text determines
the label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from numpy.random import default_rng
from torch import Generator, Tensor, nn

from heedful.data.synthetic import GeneratedCorpus
from heedful.data.words import Words
from heedful.tasks import BinaryClassification
from heedful.types import SPLITS, Architecture, Batch, Example, Model, Split, Splits, Task, Trace, UserError


class PlantedHeadsModel(Model):
    """Layers of self-attention on word vectors: h <- h + W [heads], logits = W mean_t (h_t - embedding_t) + b.

    Each head reads its own slice of the vectors, so that an inactive head learns nothing.
    """

    def __init__(self, architecture: PlantedHeads, task: Task, table: Tensor, generator: Generator) -> None:
        super().__init__()
        self.task, self.architecture = task, architecture
        width, share = table.shape[1], table.shape[1] // architecture.heads

        def random(*shape: int, spread: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * spread)

        self.table = nn.Parameter(table.clone())
        self.queries, self.keys, self.values = (
            random(architecture.layers, architecture.heads, share, share, spread=share**-0.5) for _ in range(3)
        )
        # The larger the bias of the queries, the more peaked the map of a head, with or without evidence.
        self.query_bias = random(architecture.layers, architecture.heads, share)
        with torch.no_grad():
            self.query_bias[architecture.head_mask() == 0] *= architecture.noise
        self.output_projection = random(architecture.layers, width, width, spread=width**-0.5)
        self.output_weight = random(task.num_outputs, width, spread=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(task.num_outputs))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; padding is not attended to and not averaged."""
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
        products: Tensor = queries @ keys.transpose(2, 3) * keys.shape[-1] ** -0.5
        return products.masked_fill(~(mask[:, None, None, :] & mask[:, None, :, None]), 0.0)

    def _weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        attended = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min).softmax(-1)
        return attended.masked_fill(~(mask[:, None, None, :] & mask[:, None, :, None]), 0.0)

    def _attend(self, layer: int, states: Tensor, weights: Tensor) -> Tensor:
        active = self.architecture.head_mask()[layer].to(states)
        outputs = weights @ (self._split_heads(states) @ self.values[layer]) * active[:, None, None]
        return outputs.transpose(1, 2).flatten(2) @ self.output_projection[layer]

    def _split_heads(self, states: Tensor) -> Tensor:
        """Each head's slice of the states, `[batch head unit dim]`."""
        rows, units, width = states.shape
        return states.reshape(rows, units, self.architecture.heads, width // self.architecture.heads).transpose(1, 2)


@dataclass(frozen=True)
class PlantedHeads(Architecture):
    """Layers of attention on word vectors and nothing else, with all heads active or only one.

    Args:
        active_head: layer and head, counted from 0, of the only head that reaches the output; None keeps all.
        noise: scale of the query bias of inactive heads, which makes their attention peaked.
    """

    layers: int = 2
    heads: int = 4
    active_head: tuple[int, int] | None = None
    noise: float = 1.0

    def __post_init__(self) -> None:
        here = self.active_head or (0, 0)
        if not (0 <= here[0] < self.layers and 0 <= here[1] < self.heads):
            raise UserError(f"there is no head {here}: choose one of {self.layers} layers of {self.heads} heads")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> PlantedHeadsModel:
        """A model on these word vectors with random weights."""
        if embeddings is None or not len(embeddings):
            raise UserError("PlantedHeads reads word ids and needs a table of word vectors: tokenize with Words()")
        if embeddings.shape[1] % self.heads:
            raise UserError(f"word vectors of width {embeddings.shape[1]} cannot be divided among {self.heads} heads")
        return PlantedHeadsModel(self, task, embeddings, generator)

    def head_mask(self) -> Tensor:
        """1 for active heads, 0 for the others, `[layer head]`."""
        if self.active_head is None:
            return torch.ones(self.layers, self.heads)
        mask = torch.zeros(self.layers, self.heads)
        mask[self.active_head] = 1.0
        return mask


@dataclass(frozen=True)
class DominantWord(GeneratedCorpus):
    """Generated texts of distinct words; the label is the class of the word with the highest rank in the text.

    A model that sees labels learns one bit per text; one that also sees the ground truth learns the ranks of the words.

    Args:
        vocab_size: number of different words; ranks and classes of words are shuffled.
        length: words per text.
    """

    vocab_size: int = 60
    length: int = 8
    train: int = 3000
    dev: int = 400
    test: int = 400
    seed: int = 0
    name: ClassVar[str] = "dominant-word"
    tokenization: ClassVar[Words] = Words()
    embedding_dim: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.vocab_size:
            raise UserError(f"length is {self.length}: it must lie between 2 and vocab_size ({self.vocab_size})")

    def generate(self) -> Splits:
        random = default_rng((self.seed, 99))
        ranks = random.permutation(self.vocab_size).tolist()
        classes = random.permutation([word % 2 for word in range(self.vocab_size)]).tolist()
        train, dev, test = (self._generate_split(split, ranks, classes) for split in SPLITS)
        names = tuple(f"word{word:03d}" for word in range(self.vocab_size))
        notes = {"rule": "the word with the highest rank decides"}
        return Splits(BinaryClassification(), ("left", "right"), train, dev, test, notes, names)

    def _generate_split(self, split: Split, ranks: list[int], classes: list[int]) -> tuple[Example, ...]:
        random = default_rng((self.seed, SPLITS.index(split)))
        examples = []
        for number in range({"train": self.train, "dev": self.dev, "test": self.test}[split]):
            words = [int(word) for word in random.permutation(self.vocab_size)[: self.length]]
            dominant = max(words, key=lambda word: ranks[word])
            truth = tuple((2.0 * classes[word] - 1.0) * (word == dominant) for word in words)
            text = " ".join(f"word{word:03d}" for word in words)
            rationale = tuple(bool(value) for value in truth)
            examples.append(Example(f"{split}-{number}", (text,), classes[dominant], rationale, ground_truth=truth))
        return tuple(examples)
