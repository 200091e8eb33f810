"""What the heads of a model say of each unit, before normalising: the maps that a learned explainer mixes.

A head's map is the mean over the real query rows of its scaled scores: s_k = mean_i q_i . k_k / sqrt(dim), special
symbols among the rows (Fernandes et al. 2022). A model may know a faster way than by scores of all pairs of units:
the mean of products is the product with the mean, s_k = mean(q) . k_k / sqrt(dim).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.core.carrying import check_own
from heedful.core.types import Batch, Model, UserError


@dataclass(frozen=True)
class Heads:
    """The maps of all heads of a batch, and what the model answers, from one reading.

    Args:
        scores: mean scaled scores over the real query rows, `[batch layer head unit]`; 0 on padding.
        logits: `[batch output]`.
    """

    scores: Tensor
    logits: Tensor

    @property
    def maps(self) -> Tensor:
        """The scores as a bank of maps `[batch map unit]`, layer by layer: map = layer * heads + head."""
        return self.scores.flatten(1, 2)


@runtime_checkable
class ReadsHeads(Protocol):
    """A model that gives its heads' maps without a score for each pair of units."""

    def read_heads(self, batch: Batch) -> Heads:
        """Maps and logits of a batch."""
        ...


@runtime_checkable
class Described(Protocol):
    """A model that says what it is built like, in words that two models share if and only if their heads match."""

    @property
    def architecture(self) -> str:
        """For instance "bert, 12 layers, 12 heads, width 768"."""
        ...


def architecture(model: Model) -> str:
    """What a model is built like: its own words, or the name of its class."""
    return model.architecture if isinstance(model, Described) else type(model).__name__


def read_heads(model: Model, batch: Batch) -> Heads:
    """Maps and logits of a batch: by the model's fast way where it has one, else from the scores of its trace.

    A pooled model has one layer and one head, and one query row (or two for a compared pair, where each text's row is
    0 on the other text): its map is the mean over these rows.
    """
    if isinstance(model, ReadsHeads):
        check_own(model)
        return model.read_heads(batch)
    trace = model(batch)
    if trace.scores is None:
        raise UserError(f"{type(model).__name__} shows no attention scores, so that its heads cannot be read")
    return Heads(row_mean(trace.scores, batch.mask), trace.logits)


def row_mean(scores: Tensor, mask: Tensor) -> Tensor:
    """The mean over real query rows `[batch layer head unit]` of scores `[batch layer head query unit]`; 0 on padding.

    Rows are units of the batch where there are as many, and then only real units count; else every row counts.
    """
    if scores.shape[3] == mask.shape[1]:
        rows = row_shares(mask, scores.dtype)
        means = torch.einsum("blhqu,bq->blhu", scores, rows)
    else:
        means = scores.mean(3)
    return means.masked_fill(~mask[:, None, None], 0.0)


def row_shares(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each unit as a query row `[batch unit]`: real units alike, padding 0."""
    return mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)


# A wish of the caller, who alone knows that derivatives of derivatives will be asked for.
_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Inside, models read heads with attention in plain products, through which second derivatives pass.

    Fused attention has a first derivative only. Forward-mode derivatives need no such wish: they are noticed.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def wants_plain_attention() -> bool:
    """True inside `plain_attention()`, in the same thread."""
    return _plain.get()
