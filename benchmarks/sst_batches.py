"""The work of the benchmarks: SST as Jain & Wallace read it, or generated sentences of the same lengths."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Generator, Tensor

from heedful.data.text_corpora import SST
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import BiLSTM
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.types import Batch, UserError

VOCABULARY = 13_826
WIDTH = 300


def sst() -> tuple[str, dict[str, Batch]]:
    """The name of the data and its train and test split."""
    corpus = SST()
    try:
        splits = corpus.read(Workspace(Path("workspace")).data_dir)
    except UserError:
        return "generated sentences of SST's lengths", {"train": generated(6355, 0), "test": generated(1725, 1)}
    batching = corpus.tokenization
    batcher = batching.fit(splits.train)
    return "SST", {split: batcher(batching.select(splits[split]).examples) for split in ("train", "test")}


def generated(count: int, seed: int) -> Batch:
    """Rows of 6 to 50 random words, 19 on average, in the order of no length."""
    generator = Generator().manual_seed(seed)
    lengths = (6 + torch.rand(count, generator=generator).pow(1.8) * 38).long()
    width = int(lengths.max()) + 2
    inputs = torch.randint(4, VOCABULARY, (count, width), generator=generator)
    place = torch.arange(width)
    real = place < (lengths + 2).unsqueeze(1)
    inputs[:, 0] = 2
    inputs[torch.arange(count), lengths + 1] = 3
    words = (place - 1).expand(count, width).masked_fill((place == 0) | (place >= (lengths + 1).unsqueeze(1)), -1)
    labels = torch.randint(0, 2, (count,), generator=generator)
    uids = tuple(f"row-{number}" for number in range(count))
    return Batch(uids, inputs.masked_fill(~real, 0), real, torch.zeros_like(inputs), words, labels)


def bilstm() -> AttentiveModel:
    """The paper's BiLSTM with additive attention, freshly built."""
    generator = Generator().manual_seed(0)
    table: Tensor = torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.1
    return Attentive(BiLSTM(128), Additive()).build(BinaryClassification(), table, generator)
