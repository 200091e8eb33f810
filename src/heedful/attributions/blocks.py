"""Work on many rows in blocks that fit into memory: a block that does not is halved and tried again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heedful.core.types import Batch, UserError

CELLS = 1 << 18
"""Cells of one attention matrix in a block: rows x units x units, with short texts counted as 128 units wide."""

_FULL = ("out of memory", "can't allocate memory", "not enough memory")


def in_blocks(work: Callable[[Tensor], None], batch: Batch, copies: int, size: int | None) -> None:
    """Has the numbers 0 ... len(batch) copies - 1 done, block by block, in order.

    A block that runs out of memory must have left nothing behind: it is done again in halves, and the blocks after it
    are as small.

    Args:
        copies: rows made of each row of the batch.
        size: rows of a block at the start; None takes what should fit.
    """
    units, count, start = batch.mask.shape[1], len(batch) * copies, 0
    size = max(1, CELLS // max(1, units * max(units, 128))) if size is None else size
    while start < count:
        block = torch.arange(start, min(start + size, count), device=batch.mask.device)
        if _fits(work, block):
            start += len(block)
        elif len(block) > 1:
            size = len(block) // 2
        else:
            raise UserError(
                f"not even one text of {units} units fits into memory: cut the texts, or use a smaller model"
            )


def _fits(work: Callable[[Tensor], None], block: Tensor) -> bool:
    # By returning, all that the failed attempt still holds is set free before the next.
    try:
        work(block)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in _FULL):
            raise
        if block.is_cuda:
            torch.cuda.empty_cache()
        return False
    return True


def check_size(internal_batch_size: int | None) -> None:
    """Refuses a block without rows."""
    if internal_batch_size is not None and internal_batch_size < 1:
        raise UserError(f"internal_batch_size={internal_batch_size}: give at least 1, or None to have it chosen")
