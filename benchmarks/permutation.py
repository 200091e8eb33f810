"""A hundred permuted attentions, against sending every one of them through the whole model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.sst_batches import bilstm, sst
from benchmarks.timing import Row, compared
from heedful.models.attentive import AttentiveModel
from heedful.training.trainer import inference_batches
from heedful.trials.permutation import output_changes, shuffle_attention
from heedful.types import Batch

PERMUTATIONS = 100
INSTANCES = 256
SIZE = 64


def rows() -> Iterator[Row]:
    """The permutation trial on 256 test instances: as a whole, and without the one encoding that both sides need."""
    name, splits = sst()
    test = splits["test"]
    batch = test.rows(torch.arange(0, len(test), max(1, len(test) // INSTANCES))[:INSTANCES])
    model = bilstm().eval()
    parts = [part for _, part in inference_batches(batch, SIZE)]
    peer_name = "the whole model once per permutation (re-encoding), same batches"

    def trial() -> None:
        for part in parts:
            with torch.no_grad():
                trace = model(part)
            output_changes(model, part, trace, PERMUTATIONS).double().quantile(0.5, dim=1)

    yield compared(f"permutation trial, {name}", trial, lambda: _re_encoded(model, parts), peer_name, runs=2)
    with torch.no_grad():
        traces = [model(part) for part in parts]

    def counterfactuals() -> None:
        for part, trace in zip(parts, traces, strict=True):
            output_changes(model, part, trace, PERMUTATIONS)

    title = f"{PERMUTATIONS} permuted attentions an instance, hidden states at hand, {name}"
    yield compared(title, counterfactuals, lambda: _re_encoded(model, parts), peer_name, runs=2)


def _re_encoded(model: AttentiveModel, parts: list[Batch]) -> None:
    with torch.no_grad():
        for part in parts:
            trace = model(part)
            seeds, support = torch.arange(len(part)), part.content_mask[:, None, None, None]
            shuffled = shuffle_attention(trace.attention, support, seeds, range(PERMUTATIONS))
            before = model.task.probabilities(trace.logits)
            found = [
                (model.task.probabilities(model(part, attention=shuffled[:, k]).logits) - before).abs()
                for k in range(PERMUTATIONS)
            ]
            torch.stack(found).median(0)
