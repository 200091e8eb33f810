"""Texts with units taken away, and what a model says about them: pooled, each text read once, in batches of one length.

Special symbols always stay. A unit is deleted and the gap closed, or another symbol is put in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.core.types import Batch, Batcher, Model, UserError

Remove = Literal["delete", "pad", "unk", "mask"]

CELLS = 1 << 18
"""Cells of one attention matrix in a chunk of texts: rows x units x units."""


def check_remove(remove: str) -> None:
    """Refuses a way of taking units away that is not known."""
    if remove not in get_args(Remove):
        raise UserError(f"there is no way {remove!r} to take units away; choose one of {', '.join(get_args(Remove))}")


def symbol_for(remove: Remove, batcher: Batcher, batch: Batch) -> int | None:
    """The id that takes a removed unit's place; None deletes the unit, or blanks the patch of an image."""
    if remove == "delete":
        return None
    if batch.inputs.dim() > 2:
        raise UserError(f"remove={remove!r}: an image has no symbols to put in; use remove='delete', which blanks")
    if remove == "pad":
        return batch.filler
    name = f"<{remove}>"
    if name not in batcher.vocabulary:
        raise UserError(f"this vocabulary does not tell of a symbol {name}: use remove='delete' or remove='pad'")
    return batcher.vocabulary.index(name)


@torch.no_grad()
def outputs(model: Model, batch: Batch, kept: Tensor, symbol: int | None = None) -> Tensor:
    """What the model says, `[batch step classes]` in float64, of each text with nothing but the kept units.

    A part that would be left without a word keeps one blank: the filler's symbol in the place of its first unit. Texts
    that coincide are read once.

    Args:
        kept: units that stay `[batch step unit]`; special symbols stay in any case.
        symbol: see `symbol_for`.
    """
    steps = kept.shape[1]
    asked = (kept | ~batch.scored.unsqueeze(1)).flatten(0, 1)
    row = torch.arange(len(batch), device=asked.device).repeat_interleave(steps)
    keys = torch.cat((row.unsqueeze(1), asked.long()), dim=1)
    distinct, inverse = torch.unique(keys, dim=0, return_inverse=True)
    row, asked = distinct[:, 0], distinct[:, 1:].bool()
    found = torch.zeros(len(row), model.task.classes, dtype=torch.float64, device=batch.mask.device)
    # A deleted unit makes the text shorter, a replaced one does not.
    lengths = (asked & batch.mask[row]).sum(1) if symbol is None else batch.lengths[row]
    for chunk in _chunks(lengths):
        texts = _changed(batch.rows(row[chunk]), asked[chunk], symbol)
        found[chunk] = model.task.probabilities(model(texts).logits.double())
    return found[inverse].reshape(len(batch), steps, -1)


def _changed(batch: Batch, kept: Tensor, symbol: int | None) -> Batch:
    kept = kept[:, : batch.mask.shape[1]]
    if batch.inputs.dim() > 2:
        return batch.keep(kept)
    if symbol is not None:
        return replace(batch, inputs=torch.where(kept | ~batch.scored, batch.inputs, symbol))
    blank = torch.zeros_like(kept)
    for part in (0, 1):
        units = batch.scored & (batch.segments == part)
        empty = ~(units & kept).any(1, keepdim=True)
        blank |= units & empty & (units.cumsum(1) == 1)
    blanked = replace(batch, inputs=batch.inputs.masked_fill(blank, batch.filler))
    return blanked.keep(kept | blank)


def _chunks(lengths: Tensor) -> Iterator[Tensor]:
    """Numbers of texts of about equal length, longest first, as many as the memory bears."""
    order = torch.argsort(lengths, descending=True, stable=True)
    start = 0
    while start < len(order):
        longest = max(16, int(lengths[order[start]]))
        chunk = order[start : start + max(1, CELLS // longest**2)]
        yield chunk
        start += len(chunk)
