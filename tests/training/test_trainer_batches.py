"""How rows are put together when a model is only asked: all of them once, and few where they are long."""

from __future__ import annotations

import torch

from heedful.training.trainer import INFERENCE_CELLS, inference_batches
from heedful.types import Batch


def texts(lengths: list[int]) -> Batch:
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    words = torch.arange(max(lengths)).expand_as(mask).masked_fill(~mask, -1)
    uids = tuple(str(number) for number in range(len(lengths)))
    return Batch(uids, mask.long(), mask, torch.zeros_like(mask, dtype=torch.int64), words)


def test_every_row_is_asked_once_and_short_texts_go_as_many_at_a_time_as_was_said() -> None:
    found = list(inference_batches(texts([3, 1, 2, 5, 4]), 2))
    assert [rows.tolist() for rows, _ in found] == [[1, 2], [0, 4], [3]]
    assert [part.mask.shape[1] for _, part in found] == [2, 4, 5]


def test_long_texts_go_in_blocks_whose_attention_fits() -> None:
    batch = texts([10, 1000, 1000, 1000, 1000, 2000])
    found = list(inference_batches(batch, 256))
    assert sorted(number for rows, _ in found for number in rows.tolist()) == list(range(6))
    assert all(len(part) == 1 or len(part) * part.mask.shape[1] ** 2 <= INFERENCE_CELLS for _, part in found)
    assert max(len(part) for _, part in found) == 2
