"""Leave-one-out on 64 test sentences, against one forward pass per deletion, and against batches of shortened texts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator

from benchmarks.sst_batches import VOCABULARY, WIDTH, sst
from benchmarks.timing import Row, compared
from heedful.attributions.perturbation import leave_one_out_logits
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import Average, BiLSTM, Convolution, Encoder
from heedful.tasks import BinaryClassification
from heedful.types import Batch

INSTANCES = 64
ENCODERS: tuple[Encoder, ...] = (BiLSTM(128), Convolution(), Average(128))


def rows() -> Iterator[Row]:
    """Two rows per encoder."""
    name, splits = sst()
    test = splits["test"]
    batch = test.rows(torch.arange(0, len(test), max(1, len(test) // INSTANCES))[:INSTANCES])
    for encoder in ENCODERS:
        yield from _rows(_model(encoder), batch, f"leave-one-out, {INSTANCES} texts, {encoder}, {name}")


def _rows(model: AttentiveModel, batch: Batch, title: str) -> Iterator[Row]:
    def ours() -> None:
        model.leave_one_out_logits(batch)

    yield compared(title, ours, lambda: _one_by_one(model, batch), "one forward pass per deletion, one by one", runs=2)
    yield compared(
        title, ours, lambda: leave_one_out_logits(model, batch), "forward passes on shortened texts in length buckets"
    )


def _model(encoder: Encoder) -> AttentiveModel:
    generator = Generator().manual_seed(0)
    table = torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.1
    return Attentive(encoder, Additive()).build(BinaryClassification(), table, generator).eval()


@torch.no_grad()
def _one_by_one(model: AttentiveModel, batch: Batch) -> None:
    """The plain loop: one text at a time without one of its words."""
    for row in range(len(batch)):
        text = batch.rows(torch.tensor([row]))
        for unit in text.content_mask[0].nonzero().flatten().tolist():
            kept = torch.ones_like(text.mask)
            kept[0, unit] = False
            model(text.keep_units(kept))
