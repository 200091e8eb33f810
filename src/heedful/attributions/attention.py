"""Attributions read from attention: raw weights, norms, gradients, rollout and flow.

Attention is `[batch layer head query unit]`. In self-attention every token is a query; the row of the class token, or
the mean over all real rows, gives one weight per token. A model with one attention layer over its encoder (a *pooled*
model) has one query, or one for each text of a pair; the methods for transformers then reduce to its attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from heedful.attributions._base import Output, masked_attribution, scored_units, target_output
from heedful.attributions._max_flow import MaxFlows, max_flows
from heedful.types import (
    Attribution,
    Batch,
    ExposesValues,
    Model,
    UserError,
    ValueTrace,
    check_attention_not_imposed,
    check_choice,
    mean_over_queries,
)

QueryRow = Literal["mean", "class"]
"""The query rows to read: the mean over all real rows, or the class token's row (where a text has one)."""


@dataclass(frozen=True)
class RawAttention:
    """Attention weights, averaged over layers, heads and query rows.

    The two rows of a pair of texts are averaged too, so that both texts share one axis.

    Args:
        layer: one layer only; None averages all.
        head: one head only; None averages all.
        special_tokens: score special tokens too.
    """

    layer: int | None = None
    head: int | None = None
    special_tokens: bool = False

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored tokens; the weight of unscored special tokens is not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        layers = attention[:, index_slice(self.layer, attention.shape[1], "layer")]
        heads = layers[:, :, index_slice(self.head, attention.shape[2], "head")]
        scores = mean_over_queries(heads, batch.mask).mean((1, 2))
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class HeadAttention:
    """Attention weights of one layer in the class token's row: the usual heat map.

    A text without a class token is read in all its rows. For pooled models the same as `RawAttention`.

    Args:
        layer: counted from 0, or from the last with -1; None averages all.
        head: one head only; None averages all.
        special_tokens: score special tokens too.
    """

    layer: int | None = -1
    head: int | None = None
    row: QueryRow = "class"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_choice("row", self.row, QueryRow)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored tokens, in float64; the weight of unscored special tokens is not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        chosen = attention[:, index_slice(self.layer, attention.shape[1], "layer")]
        chosen = chosen[:, :, index_slice(self.head, attention.shape[2], "head")]
        scores = torch.einsum("bq,blhqu->bu", query_weights(batch, self.row), chosen.double())
        scores = scores / (chosen.shape[1] * chosen.shape[2])
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


def is_self_attention(attention: Tensor, batch: Batch) -> bool:
    """True where every token is a query; False for the one or two queries of a pooled model."""
    return attention.shape[3] == batch.mask.shape[1]


def query_weights(batch: Batch, row: QueryRow) -> Tensor:
    """Weights of the query rows `[batch unit]`, in float64: only the class token's row, or all real rows alike."""
    uniform = batch.mask.double() / batch.lengths.clamp(min=1).unsqueeze(1)
    if row == "mean":
        return uniform
    first = torch.zeros_like(uniform)
    first[:, 0] = 1.0
    has_class_token = batch.mask[:, :1] & ~batch.content_mask[:, :1]
    return torch.where(has_class_token, first, uniform)


def index_slice(number: int | None, count: int, kind: str) -> slice:
    """The slice of one layer or head, or of all; numbers run from -count to count - 1."""
    if number is None:
        return slice(None)
    if not -count <= number < count:
        raise UserError(f"there is no {kind} {number}: this model has {count}, counted from 0")
    number %= count
    return slice(number, number + 1)


@dataclass(frozen=True)
class ValueNorm:
    """Attention weight x value norm, a ||v||, averaged over heads, layers and rows (Kobayashi et al. 2020).

    For pooled models a_t ||h_t||, with the hidden states as values (Neely et al. 2022).

    Args:
        layer: counted from 0, or from the last with -1; None averages all.
        special_tokens: score special tokens too.
    """

    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_choice("row", self.row, QueryRow)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weighted norms of the scored tokens, in float64."""

        def norms(values: ValueTrace, layer: int, rows: Tensor) -> Tensor:
            weights = torch.einsum("bq,bhqu->bhu", rows, values.attention[layer].double())
            lengths: Tensor = values.values[layer].double().norm(dim=-1)
            return (weights * lengths).mean(1)

        scores = _mean_norms(model, batch, target, self.layer, self.row, norms)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class KobayashiNorm:
    """Norm of the vector that each token adds to each row of attention, || sum_heads a f(x) ||, averaged over layers.

    f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020). For pooled models a_t ||h_t||.

    Args:
        layer: counted from 0, or from the last with -1; None averages all.
        special_tokens: score special tokens too.
    """

    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_choice("row", self.row, QueryRow)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the scored tokens, in float64."""

        def norms(values: ValueTrace, layer: int, rows: Tensor) -> Tensor:
            return torch.einsum("bq,bqu->bu", rows, contribution_norms(values, layer))

        scores = _mean_norms(model, batch, target, self.layer, self.row, norms)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


def _mean_norms(
    model: Model,
    batch: Batch,
    target: Tensor,
    layer: int | None,
    row: QueryRow,
    norms: Callable[[ValueTrace, int, Tensor], Tensor],
) -> Tensor:
    """The mean over layers of their norms; attention weight x norm of the hidden state for a pooled model."""
    if isinstance(model, ExposesValues):
        check_attention_not_imposed(model)
        values, rows = model.read_values(batch), query_weights(batch, row)
        layers = range(len(values.attention))[index_slice(layer, len(values.attention), "layer")]
        return torch.stack([norms(values, number, rows) for number in layers]).mean(0)
    trace = model(batch)
    if is_self_attention(trace.attention, batch) and trace.attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not expose its values: wrap it with TransformerModel.wrap")
    weights = RawAttention(special_tokens=True)(model, batch, target).scores.double()
    lengths: Tensor = trace.hidden.double().norm(dim=-1)
    return weights * lengths


def transformed_values(values: ValueTrace, layer: int) -> Tensor:
    """f(x) = (x W_V + b_V) W_O of a layer `[batch head unit width]`, in float64."""
    return torch.einsum("bhud,hdw->bhuw", values.values[layer].double(), values.projections[layer].double())


def contribution_norms(values: ValueTrace, layer: int) -> Tensor:
    """|| sum_h a_h,qu f_h(x_u) || of a layer `[batch query unit]`.

    Computed as a' G_u a with the Gram matrix of heads G_u = f(x_u) f(x_u)': heads² per pair, not heads x width.
    """
    vectors, weights = transformed_values(values, layer), values.attention[layer].double()
    products = torch.einsum("bhuw,bguw->bhgu", vectors, vectors)
    half = torch.einsum("bhqu,bhgu->bgqu", weights, products)
    # Rounding may push the square of a sum that cancels below zero.
    return (half * weights).sum(1).clamp(min=0).sqrt()


@dataclass(frozen=True)
class AttentionXGradient:
    """Attention x gradient of the output with respect to it, a dy/da, averaged over layers, heads and rows.

    The positive part is Grad-SAM (Barkan et al. 2021).

    Args:
        output: "logit" as in the paper, or "probability".
        positive: count negative products as 0; False keeps the sign.
        layer: counted from 0, or from the last with -1; None averages all.
        special_tokens: score special tokens too.
    """

    output: Output = "logit"
    positive: bool = True
    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_choice("output", self.output, Output)
        check_choice("row", self.row, QueryRow)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Products of the scored tokens, in float64."""
        products = attention_times_gradient(model, batch, target, self.output)
        products = products.clamp(min=0) if self.positive else products
        chosen = products[:, index_slice(self.layer, products.shape[1], "layer")].mean((1, 2))
        rows = query_weights(batch, self.row) if is_self_attention(products, batch) else _uniform_rows(chosen)
        scores = torch.einsum("bq,bqu->bu", rows, chosen)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class Relevance:
    """Relevance propagated through all layers by attention x gradient (Chefer et al. 2021).

    R starts as I and becomes R + E R in each layer upwards, E = mean over heads of the positive part of a dy/da; the
    scores are the class token's row of R - I, or the mean of all rows where a text has no class token. For pooled
    models the row of E.

    Args:
        output: "logit" as in the paper, or "probability".
        start_layer: leave out the layers below this one; -1 keeps only the last.
        special_tokens: score special tokens too.
    """

    output: Output = "logit"
    start_layer: int = 0
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_choice("output", self.output, Output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Relevance of the scored tokens, in float64."""
        products = attention_times_gradient(model, batch, target, self.output)
        layers = products.clamp(min=0).mean(2)
        if is_self_attention(products, batch):
            layers = layers[:, index_slice(self.start_layer, layers.shape[1], "layer").start :]
            scores = propagate_relevance(layers, query_weights(batch, "class"))
        else:
            scores = torch.einsum("bq,bqu->bu", _uniform_rows(layers[:, 0]), layers[:, 0])
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


def propagate_relevance(layers: Tensor, rows: Tensor) -> Tensor:
    """r (I + E_L) ... (I + E_1) - r `[batch unit]` for weights r of the top rows, in O(layers x units²)."""
    relevance = rows
    for layer in range(layers.shape[1] - 1, -1, -1):
        relevance = relevance + torch.einsum("bq,bqu->bu", relevance, layers[:, layer])
    return relevance - rows


def attention_times_gradient(model: Model, batch: Batch, target: Tensor, output: Output) -> Tensor:
    """a dy/da `[batch layer head query unit]`, in float64, with the gradient through all higher layers."""
    with torch.enable_grad():
        attention, logits = _differentiable_attention(model, batch)
        total = target_output(model.task, logits, target, output).sum()
        # With inputs given, autograd leaves no gradient on the parameters. Weights above the last layer that the
        # output reads may have no part in it.
        gradients = torch.autograd.grad(total, attention, allow_unused=True)
    pairs = zip(attention, gradients, strict=True)
    products = [weights.detach().double() * (0.0 if slope is None else slope.double()) for weights, slope in pairs]
    return torch.stack(products, dim=1)


def _differentiable_attention(model: Model, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
    """The attention of each layer `[batch head query unit]`, and logits computed from it."""
    if isinstance(model, ExposesValues):
        check_attention_not_imposed(model)
        values = model.read_values(batch)
        return values.attention, values.logits
    with torch.no_grad():
        attention = model(batch).attention
    if attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not expose its layers: wrap it with TransformerModel.wrap")
    weights = attention[:, 0].detach().clone().requires_grad_()
    return (weights,), model(batch, attention=weights.unsqueeze(1)).logits


def _uniform_rows(rows: Tensor) -> Tensor:
    """Equal weights for the one or two queries of a pooled model."""
    return torch.full(rows.shape[:2], 1 / rows.shape[1], dtype=rows.dtype, device=rows.device)


@dataclass(frozen=True)
class Rollout:
    """Attention rollout: the class token's row of B_L ... B_1 (Abnar & Zuidema 2020).

    B = (1 - residual) A + residual I with heads averaged; the mean of all rows where a text has no class token. For
    pooled models the same as `RawAttention`.

    Args:
        residual: weight of the residual connection; one half in the paper.
        start_layer: leave out the layers below this one.
        special_tokens: score special tokens too.
    """

    residual: float = 0.5
    start_layer: int = 0
    special_tokens: bool = False

    def __post_init__(self) -> None:
        _check_residual(self.residual)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Shares of the scored tokens, in float64; with special tokens the shares of a text sum to 1."""
        with torch.no_grad():
            attention = model(batch).attention
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        if not 0 <= self.start_layer < attention.shape[1]:
            raise UserError(f"there is no layer {self.start_layer} to start from: choose 0 to {attention.shape[1] - 1}")
        layers = residual_attention(attention, self.residual)[:, self.start_layer :]
        shares = roll_out(layers, query_weights(batch, "class"))
        return masked_attribution(shares, batch, special_tokens=self.special_tokens)


def _check_residual(residual: float) -> None:
    if not 0 <= residual < 1:
        raise UserError(f"residual={residual}: give a number from 0 to below 1, 0.5 as in the paper")


def residual_attention(attention: Tensor, residual: float = 0.5) -> Tensor:
    """B `[batch layer query unit]`: heads averaged and the residual added; real rows sum to 1, in float64."""
    mean = attention.double().mean(2)
    mean = mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    return (1 - residual) * mean + residual * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)


def roll_out(layers: Tensor, rows: Tensor) -> Tensor:
    """r B_L ... B_1 `[batch unit]` for weights r of the top rows `[batch unit]`, in O(layers x units²).

    >>> uniform = residual_attention(torch.full((1, 6, 1, 10, 10), 0.1))
    >>> roll_out(uniform, torch.eye(10, dtype=torch.float64)[:1])[0, :2].numpy().round(9).tolist()
    [0.1140625, 0.0984375]
    """
    for layer in range(layers.shape[1] - 1, -1, -1):
        rows = torch.einsum("bq,bqu->bu", rows, layers[:, layer])
    return rows


@dataclass(frozen=True)
class Flow:
    """Attention flow: the maximum flow from the class token on top to each token (Abnar & Zuidema 2020).

    Capacities are those of rollout, B = (1 - residual) A + residual I. Without a class token the flow enters at all
    tokens alike. Flows are not normalised. For pooled models the same as `RawAttention`.

    Args:
        residual: weight of the residual connection; one half in the paper.
        special_tokens: score special tokens too.
    """

    residual: float = 0.5
    special_tokens: bool = False

    def __post_init__(self) -> None:
        _check_residual(self.residual)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Flows to the scored tokens, in float64."""
        with torch.no_grad():
            attention = model(batch).attention
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        scores = torch.zeros(batch.mask.shape, dtype=torch.float64)
        units = scored_units(batch, special_tokens=self.special_tokens)
        flows = attention_flows(attention, batch, self.residual, special_tokens=self.special_tokens)
        for row, flow in enumerate(flows):
            scores[row, units[row].cpu()] = torch.from_numpy(flow.values)
        return Attribution(scores.to(batch.mask.device), units)


def attention_flows(
    attention: Tensor, batch: Batch, residual: float = 0.5, *, special_tokens: bool = False
) -> tuple[MaxFlows, ...]:
    """The flows to the scored tokens of each example, in order, with their certificates.

    Args:
        attention: of a transformer, `[batch layer head query unit]`.
        special_tokens: compute flows to special tokens too.
    """
    if not is_self_attention(attention, batch):
        raise UserError("attention flow needs self-attention layers; a pooled model has a single attention: use it")
    layers, starts = residual_attention(attention, residual).cpu().numpy(), query_weights(batch, "class").cpu().numpy()
    units, flows = scored_units(batch, special_tokens=special_tokens), []
    for row in range(len(batch)):
        real = batch.mask[row].cpu().numpy().nonzero()[0]
        sinks = units[row].cpu().numpy()[real].nonzero()[0]
        flows.append(max_flows(layers[row][:, real[:, None], real], starts[row, real], sinks))
    return tuple(flows)
