"""Attributions that change the input and watch the output, and the null that watches nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from heedful.core.types import Attribution, Batch, Model
from heedful.core.workspace import derived_seed


@dataclass(frozen=True)
class Random:
    """Scores that know nothing: uniform on [0, 1), drawn from (seed, uid). The null of every comparison."""

    seed: int = 0

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same scores for an example whatever stands beside it in the batch."""
        scores = torch.zeros(batch.scored.shape)
        for row, uid in enumerate(batch.uids):
            generator = Generator().manual_seed(derived_seed("random", self.seed, uid))
            count = int(batch.scored[row].sum())
            scores[row, batch.scored[row].cpu()] = torch.rand(count, generator=generator)
        return Attribution(scores.to(batch.mask.device), batch.scored)
