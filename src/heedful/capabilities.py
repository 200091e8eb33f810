"""What a model may show or do beyond its trace, and how to ask for it: faster passes, heads, values, layers.

A model has a capability if it has the methods of its protocol. Callers go through the functions here where a model
without it has another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from heedful.types import Batch, Model, NotApplicable, UserError


def check_attention_not_imposed(model: Model) -> None:
    """Raise a `UserError` for a model under imposed attention, whose layers would run with their own attention."""
    if model.has_imposed_attention:
        raise UserError(
            "attention is imposed on this model and this method reads the attention of its own layers: "
            "choose a method that reads outputs only"
        )


def check_attention(model: Model) -> None:
    """Raise `NotApplicable` for a model whose attention can be neither read nor replaced."""
    if model.attention_refusal is not None:
        raise NotApplicable(model.attention_refusal, "choose a method that reads outputs or gradients")


def check_embeddings(model: Model) -> None:
    """Raise `NotApplicable` for a model whose embeddings can be neither read nor replaced."""
    if model.embedding_refusal is not None:
        raise NotApplicable(model.embedding_refusal, "choose a method that reads outputs only")


@runtime_checkable
class SupportsLeaveOneOut(Protocol):
    """A model with a faster way to leave-one-out than one forward pass per deletion (if attention is not imposed)."""

    def leave_one_out_logits(self, batch: Batch) -> Tensor:
        """Logits `[batch unit output]` of each text without each of its deletable units, without gradient.

        All other units have the logits of the unchanged text.
        """
        ...


@dataclass(frozen=True)
class TextPrefix:
    """All that the later units of one text see of its earlier ones in a causal model.

    Args:
        layers: keys and values `[1 head unit dim]` of each layer, lowest first.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]


@runtime_checkable
class SupportsPrefixes(Protocol):
    """A model that can read texts with the same beginning without reading the beginning again.

    Attributes:
        reuses_prefixes: whether it can, because it is causal and its logits are the same so.
    """

    @property
    def reuses_prefixes(self) -> bool: ...

    def read_prefix(self, text: Batch) -> TextPrefix:
        """The keys and values of a batch of one text, without gradient."""
        ...

    def read_logits_after(self, prefix: TextPrefix, shared: int, batch: Batch) -> Tensor:
        """The logits `[batch output]` of texts whose first `shared` units, fewer than all, are those of the prefix."""
        ...


@dataclass(frozen=True)
class ValueTrace:
    """Values and output projections of each self-attention layer, lowest first, in the graph of `logits`.

    The attention of a layer adds `Σ over heads and units of a_qu (v_u P)` + offset to query q.

    Args:
        attention: the weights of each layer `[batch head query unit]`.
        values: v, `[batch head unit dim]`.
        projections: P, from a head's values to the states of the layer `[head dim width]`; empty if not asked for.
        offsets: the bias of the projection `[width]`; empty if not asked for.
    """

    attention: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    projections: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    logits: Tensor


@runtime_checkable
class ExposesValues(Protocol):
    """A model of self-attention layers that exposes their values and projections."""

    def read_values(
        self, batch: Batch, *, embeddings: Tensor | None = None, with_projections: bool = True
    ) -> ValueTrace:
        """Weights, values and projections of every layer; with gradients enabled, the weights can take one."""
        ...


@dataclass(frozen=True)
class HeadTrace:
    """The mean scores of all heads, and the logits, of one forward pass.

    Args:
        scores: `s_k = mean_i q_i · k_k / sqrt(dim)` over the real query rows i, special tokens included (Fernandes et
            al. 2022), `[batch layer head unit]`; 0 on padding. A pair that a causal or local mask hides counts as 0.
        logits: `[batch output]`.
    """

    scores: Tensor
    logits: Tensor

    @property
    def maps(self) -> Tensor:
        """The scores as maps `[batch map unit]`, layer by layer: map = layer * heads + head."""
        return self.scores.flatten(1, 2)


@runtime_checkable
class ExposesHeads(Protocol):
    """A model that computes head scores without a score for each pair of units."""

    def read_heads(self, batch: Batch) -> HeadTrace:
        """Head scores and logits of a batch."""
        ...


def read_heads(model: Model, batch: Batch) -> HeadTrace:
    """Head scores and logits of a batch: by the model's fast path if it has one, else from the scores of its trace."""
    check_attention(model)
    if isinstance(model, ExposesHeads):
        check_attention_not_imposed(model)
        return model.read_heads(batch)
    trace = model(batch)
    if trace.scores is None:
        raise UserError(f"{type(model).__name__} exposes no attention scores, so its heads cannot be read")
    return HeadTrace(mean_over_queries(trace.scores, batch.mask), trace.logits)


def real_queries(mask: Tensor, queries: int) -> Tensor:
    """Which query rows count, `[batch query]`: those of real units in self-attention, else all rows."""
    return mask if queries == mask.shape[1] else torch.ones_like(mask[:, :1]).expand(-1, queries)


def query_weights(mask: Tensor, queries: int, dtype: torch.dtype) -> Tensor:
    """Uniform weights over the query rows that count, `[batch query]`."""
    real = real_queries(mask, queries)
    return real.to(dtype) / real.sum(1, keepdim=True).clamp(min=1)


def mean_over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    """The mean over real query rows of `[batch layer head query unit]`, `[batch layer head unit]`; 0 on padding."""
    means = torch.einsum("blhqu,bq->blhu", scores, query_weights(mask, scores.shape[3], scores.dtype))
    return means.masked_fill(~mask[:, None, None], 0.0)


_unfused_attention: ContextVar[bool] = ContextVar("unfused_attention", default=False)


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Read heads and logits with attention as plain matrix products, for callers that need second derivatives.

    Fused attention has first derivatives only. Forward-mode differentiation is detected without this context.
    """
    token = _unfused_attention.set(True)
    try:
        yield
    finally:
        _unfused_attention.reset(token)


def requires_unfused_attention() -> bool:
    """True inside `unfused_attention()`, in the same thread."""
    return _unfused_attention.get()


@dataclass(frozen=True)
class LayerInput:
    """States `[batch unit width]` that replace the input of a layer; layers are counted from 0."""

    layer: int
    states: Tensor


@dataclass(frozen=True)
class LayerTrace:
    """The input `[batch unit width]` of each layer, lowest first, and the logits `[batch output]`."""

    inputs: tuple[Tensor, ...]
    logits: Tensor


@runtime_checkable
class ExposesLayers(Protocol):
    """A model made of layers whose inputs can be read and replaced."""

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """One forward pass from these embeddings, optionally with the input of one layer replaced."""
        ...


def read_layers(model: Model, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
    """Inputs of all layers and logits; a model without layers counts as one whose input is the embeddings."""
    if isinstance(model, ExposesLayers):
        check_attention_not_imposed(model)
        return model.read_layers(batch, embeddings, replacement)
    inputs = embeddings if replacement is None else replacement.states
    return LayerTrace((inputs,), model(batch, embeddings=inputs).logits)


@runtime_checkable
class SupportsPartialRun(Protocol):
    """A model of self-attention layers that can be run from one of its layers on."""

    def layers_from(self, layer: int) -> Model:
        """A model of the layers from this one on, with shared weights: its embeddings are the input of that layer."""
        ...

    def decode_attended(self, batch: Batch, states: Tensor, attended: Tensor) -> Tensor:
        """Logits of a model of one layer whose attention gives these values `[batch head query dim]`."""
        ...
