"""Training adversaries: an epoch against a loop that runs the base model in every step, and a pool against one process.

The peer of the epoch does what research code does: rows in random order padded to the longest text of the corpus, and
the base's predictions and attention computed again for each batch. The pool trains eight seeds of a model in two
processes of one thread each, its peer one after the other in one: trainings of a quarter of a minute, where the five
seconds that a worker needs to start weigh, and trainings of the size and lengths of SST.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Generator

from benchmarks.sst_batches import bilstm, sst
from benchmarks.timing import Row
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.execution.runner import run
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.store.workspace import Workspace
from heedful.training.objectives import adversary_distance
from heedful.training.predictions import BatchPredictions
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training, inference_batches, length_sorted_batches
from heedful.types import Batch

BATCH = 32
SAMPLE = 40
"""Steps that are timed after three that are not."""
SEEDS = 8
PROCESSES = 2


def rows() -> Iterator[Row]:
    """An epoch of an adversary on SST, and eight seeds of a small model."""
    name, splits = sst()
    train = splits["train"]
    steps = math.ceil(len(train) / BATCH)
    peer = "loop that runs the base in every step and pads to the longest text"
    yield Row(f"adversary epoch, BiLSTM, {name}", _ours(train) * steps, _peer(train) * steps, peer)
    short = Mock(informative=5, train=3000, dev=200, test=200)
    usual = Mock(informative=5, shortest=5, longest=33, train=6920, dev=872, test=1821)
    for called, corpus, plan, fit in (
        ("Mock-5 of 3000 texts, 3 epochs", short, BiLSTM(64), Training(3)),
        ("Mock-5 of SST's size, 4 epochs", usual, BiLSTM(128), Training(4)),
    ):
        subject = TrainedModel(
            corpus, corpus.tokenization, Attentive(plan, Additive()), fit, embeddings=RandomEmbeddings(100)
        )
        alone, pooled = _seeds(subject, 1), _seeds(subject, PROCESSES)
        yield Row(f"{SEEDS} seeds, BiLSTM, {called}, {PROCESSES} processes", pooled, alone, "one process")


def _ours(train: Batch) -> float:
    base, model = bilstm().eval(), bilstm().train()
    attention = torch.zeros(len(train), 1, 1, 1, train.mask.shape[1])
    probabilities = torch.zeros(len(train), 2)
    with torch.no_grad():
        for rows, part in inference_batches(train, 256):
            trace = base(part)
            attention[rows, ..., : part.mask.shape[1]] = trace.attention
            probabilities[rows] = base.task.probabilities(trace.logits)
    optimiser = Adam().build(model)
    order = length_sorted_batches(train.lengths, BATCH, 0.1, Generator().manual_seed(0))

    def step(index: int) -> None:
        rows = order[index]
        batch = train.rows(rows)
        said = BatchPredictions(probabilities[rows], attention[rows, ..., : batch.mask.shape[1]])
        _learn(adversary_distance(model.task, model(batch), said, batch.mask)[0], optimiser)

    return _per_step(step)


def _peer(train: Batch) -> float:
    base, model = bilstm().eval(), bilstm().train()
    optimiser = Adam().build(model)
    order = torch.split(torch.randperm(len(train), generator=Generator().manual_seed(0)), BATCH)
    longest = train.mask.shape[1]

    def step(index: int) -> None:
        rows = order[index]
        batch = replace(
            train.rows(rows),
            inputs=train.inputs[rows, :longest],
            mask=train.mask[rows, :longest],
            segments=train.segments[rows, :longest],
            words=train.words[rows, :longest],
        )
        with torch.no_grad():
            trace = base(batch)
        said = BatchPredictions(base.task.probabilities(trace.logits), trace.attention)
        _learn(adversary_distance(model.task, model(batch), said, batch.mask)[0], optimiser)

    return _per_step(step)


def _learn(losses: torch.Tensor, optimiser: torch.optim.Optimizer) -> None:
    optimiser.zero_grad(set_to_none=True)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _per_step(step: Callable[[int], None]) -> float:
    for index in range(3):
        step(index)
    start = time.perf_counter()
    for index in range(3, 3 + SAMPLE):
        step(index)
    return (time.perf_counter() - start) / SAMPLE


def _seeds(subject: TrainedModel, workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        outcomes = run(
            [replace(subject, seed=seed) for seed in range(SEEDS)],
            Workspace(Path(folder)),
            where="pool",
            workers=workers,
        )
        seconds = time.perf_counter() - start
    assert all(outcome.error is None for outcome in outcomes)
    return seconds
