"""Seconds of a training epoch, against the plain loop that most research code has.

The peer: rows in random order padded to the longest of their batch, `nn.LSTM` on packed sequences, Adam as PyTorch
gives it by default (neither fused nor over all parameters at once). Both do the same number of steps; a sample of steps
is timed and scaled to the epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn

from benchmarks.sst_batches import VOCABULARY, WIDTH, bilstm, sst
from benchmarks.timing import Row
from heedful.training.trainer import Adam, length_sorted_batches
from heedful.types import Batch

BATCH = 32
SAMPLE = 60
"""Steps that are timed after three that are not."""


class PlainLoop(nn.Module):
    """The same network written plainly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.encoder = nn.LSTM(WIDTH, 128, batch_first=True, bidirectional=True)
        self.inner, self.outer = nn.Linear(256, 128), nn.Linear(128, 1, bias=False)
        self.decoder = nn.Linear(256, 1)

    def forward(self, batch: Batch) -> Tensor:
        """The logit of each row."""
        lengths = batch.lengths.cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(batch.inputs), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=batch.mask.shape[1]
        )
        scores = self.outer(torch.tanh(self.inner(states))).squeeze(-1).masked_fill(~batch.content_mask, -math.inf)
        context = (torch.softmax(scores, 1).unsqueeze(-1) * states).sum(1)
        logits: Tensor = self.decoder(context)
        return logits.squeeze(-1)


def rows() -> Iterator[Row]:
    """One row: an epoch on SST."""
    name, splits = sst()
    train = splits["train"]
    steps = math.ceil(len(train) / BATCH)
    ours, peer = _ours(train), _peer(train)
    yield Row(
        f"training epoch, BiLSTM, {name}",
        ours * steps,
        peer * steps,
        "plain PyTorch loop: no length buckets, packed nn.LSTM, default Adam (AMSGrad)",
    )


def _ours(train: Batch) -> float:
    model = bilstm().train()
    optimiser = Adam().build(model)
    order = length_sorted_batches(train.lengths, BATCH, 0.1, Generator().manual_seed(0))

    def step(index: int) -> None:
        batch = train.rows(order[index])
        assert batch.labels is not None
        loss = model.task.losses(model(batch).logits, batch.labels).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return _per_step(step)


def _peer(train: Batch) -> float:
    model = PlainLoop()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5, amsgrad=True)
    order = torch.split(torch.randperm(len(train), generator=Generator().manual_seed(0)), BATCH)
    loss_of = nn.BCEWithLogitsLoss(reduction="sum")

    def step(index: int) -> None:
        batch = train.rows(order[index])
        assert batch.labels is not None
        optimiser.zero_grad()
        loss_of(model(batch), batch.labels.float()).backward()
        optimiser.step()

    return _per_step(step)


def _per_step(step: object) -> float:
    assert callable(step)
    for index in range(3):
        step(index)
    start = time.perf_counter()
    for index in range(3, 3 + SAMPLE):
        step(index)
    return (time.perf_counter() - start) / SAMPLE
