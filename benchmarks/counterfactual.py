"""A hundred permuted attentions, against sending every one of them through the whole model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.sentences import bilstm, sst
from benchmarks.timing import Row, compared
from heedful.core.types import Batch
from heedful.models.pooled import PooledModel
from heedful.recipes.training import inference_batches
from heedful.trials.permutation import permuted, shuffle

PERMUTATIONS = 100
INSTANCES = 256


def rows() -> Iterator[Row]:
    """One row: the permutation trial on 256 test instances."""
    name, splits = sst()
    test = splits["test"]
    batch = test.rows(torch.arange(0, len(test), max(1, len(test) // INSTANCES))[:INSTANCES])
    model = bilstm().eval()

    def ours() -> None:
        for _, part in inference_batches(batch, 160):
            permuted(model, part, PERMUTATIONS, 0)

    peer_name = "the whole model once per permutation (re-encoding), same batches"
    yield compared(f"permutation trial, {name}", ours, lambda: _re_encoding(model, batch), peer_name, runs=2)


def _re_encoding(model: PooledModel, batch: Batch) -> None:
    seeds = torch.arange(len(batch))
    with torch.no_grad():
        for index, part in inference_batches(batch, 160):
            trace = model(part)
            shuffled = shuffle(trace.attention[:, 0, 0], part.scored.unsqueeze(1), seeds[index], PERMUTATIONS)
            before = model.task.probabilities(trace.logits)
            changes = [
                (model.task.probabilities(model(part, attention=shuffled[:, k][:, None, None]).logits) - before).abs()
                for k in range(PERMUTATIONS)
            ]
            torch.stack(changes).median(0)
