"""A small transformer of which it is known who speaks: only what attention carries reaches the answer.

With `speaking` one head alone is heard, so that after training it carries all the evidence, while the others look about
at random: a teacher on which a learned mix of heads can be put to the test. Without it the plan is its student's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from heedful.core.types import Batch, Model, Plan, Task, Trace, UserError


class Voices(Model):
    """Layers of self-attention on word vectors: h <- h + W [heads], answer = W mean_t (h_t - embedding_t) + b.

    Each head reads its own share of the vectors, so that a head that is not heard learns nothing by the way either.
    """

    def __init__(self, plan: SpeakingHeads, task: Task, table: Tensor, generator: Generator) -> None:
        super().__init__()
        self.task, self.plan = task, plan
        width, share = table.shape[1], table.shape[1] // plan.heads

        def drawn(*shape: int, spread: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * spread)

        self.table = nn.Parameter(table.clone())
        self.queries, self.keys, self.values = (
            drawn(plan.layers, plan.heads, share, share, spread=share**-0.5) for _ in range(3)
        )
        # What a head asks whatever stands there: the louder, the more its map tells apart, evidence or not.
        self.leaning = drawn(plan.layers, plan.heads, share)
        with torch.no_grad():
            self.leaning[plan.heard() == 0] *= plan.noise
        self.carried = drawn(plan.layers, width, width, spread=width**-0.5)
        self.answer = drawn(task.outputs, width, spread=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(task.outputs))

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The trace of a batch; padding is neither attended to nor averaged."""
        embeddings = self.table[batch.inputs] if embeddings is None else embeddings
        scores: list[Tensor] = []
        weights: list[Tensor] = []
        states = embeddings
        for layer in range(self.plan.layers):
            if attention is None:
                scores.append(self._scores(layer, states, batch.mask))
                weights.append(self._weights(scores[-1], batch.mask))
            else:
                weights.append(attention[:, layer])
            states = states + self._read(layer, states, weights[-1])
        rows = batch.mask.to(states) / batch.mask.sum(1, keepdim=True).clamp(min=1)
        logits = torch.einsum("bud,bu->bd", states - embeddings, rows) @ self.answer.T + self.bias
        seen = torch.stack(scores, 1) if scores else None
        return Trace(embeddings, states, torch.stack(weights, 1), logits, seen)

    def _scores(self, layer: int, states: Tensor, mask: Tensor) -> Tensor:
        shares = self._shares(states)
        queries = shares @ self.queries[layer] + self.leaning[layer].unsqueeze(1)
        keys = shares @ self.keys[layer]
        found: Tensor = queries @ keys.transpose(2, 3) * keys.shape[-1] ** -0.5
        return found.masked_fill(~(mask[:, None, None, :] & mask[:, None, :, None]), 0.0)

    def _weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        attended = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min).softmax(-1)
        return attended.masked_fill(~(mask[:, None, None, :] & mask[:, None, :, None]), 0.0)

    def _read(self, layer: int, states: Tensor, weights: Tensor) -> Tensor:
        heard = self.plan.heard()[layer].to(states)
        spoken = weights @ (self._shares(states) @ self.values[layer]) * heard[:, None, None]
        return spoken.transpose(1, 2).flatten(2) @ self.carried[layer]

    def _shares(self, states: Tensor) -> Tensor:
        """Each head's share of the states, `[batch head unit dim]`."""
        rows, units, width = states.shape
        return states.reshape(rows, units, self.plan.heads, width // self.plan.heads).transpose(1, 2)


@dataclass(frozen=True)
class SpeakingHeads(Plan):
    """Layers of attention on word vectors and nothing else, all heads heard or one alone.

    Args:
        speaking: layer and head, counted from 0, of the one head that is heard; None lets all speak.
        noise: how loudly the heads that are not heard look about.
    """

    layers: int = 2
    heads: int = 4
    speaking: tuple[int, int] | None = None
    noise: float = 1.0

    def __post_init__(self) -> None:
        here = self.speaking or (0, 0)
        if not (0 <= here[0] < self.layers and 0 <= here[1] < self.heads):
            raise UserError(f"there is no head {here}: the plan has {self.layers} layers of {self.heads} heads")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Voices:
        """A model on the given word vectors; the other weights are drawn."""
        if embeddings is None or not len(embeddings):
            raise UserError("SpeakingHeads reads word ids and needs a starting table of vectors: batch with Words()")
        if embeddings.shape[1] % self.heads:
            raise UserError(f"vectors of {embeddings.shape[1]} numbers cannot be divided among {self.heads} heads")
        return Voices(self, task, embeddings, generator)

    def heard(self) -> Tensor:
        """1 for the heads that are heard, 0 for the others, `[layer head]`."""
        if self.speaking is None:
            return torch.ones(self.layers, self.heads)
        heard = torch.zeros(self.layers, self.heads)
        heard[self.speaking] = 1.0
        return heard
