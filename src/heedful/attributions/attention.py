"""Attributions read from attention: raw weights, norms, gradients, rollout and flow.

Attention is `[batch layer head query unit]`. In self-attention every token is a query; the row that the head of the
model reads (that of a class token, or of the last token), or the mean over all real rows, gives one weight per token.
Rollout, flow and relevance multiply layers and refuse a model that mixes tokens outside attention.

A model with one attention layer over its encoder (a *pooled* model) has one query, or one for each text of a pair; the
methods for transformers then reduce to its attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from heedful.attributions._max_flow import MaxFlows, max_flows
from heedful.attributions.method import (
    Background,
    CheckedOptions,
    MethodTags,
    Output,
    in_evaluation_mode,
    masked_attribution,
    register,
    scored_units,
    target_output,
)
from heedful.capabilities import (
    ExposesValues,
    ValueTrace,
    check_attention,
    check_attention_not_imposed,
    mean_over_queries,
    query_weights,
)
from heedful.types import Attribution, Batch, DecidingRow, Model, NotApplicable, UserError

ATTENTION_WEIGHTS = MethodTags(signed=False, pooling="mean", reads="attention", target_specific=False)
"""Tags of methods that show attention itself, whatever the output."""
QueryRow = Literal["mean", "class"]
"""The query rows to read: the mean over all real rows, or the row that the head of the model reads."""


def read_attention(model: Model, batch: Batch) -> Tensor:
    """Attention without gradient; a `UserError` for a model that does not show it."""
    check_attention(model)
    with torch.no_grad():
        return model(batch).attention


def check_paths(model: Model) -> None:
    """Raise `NotApplicable` for a model whose layers mix tokens outside attention too."""
    check_attention(model)
    if model.path_refusal is not None:
        raise NotApplicable(
            model.path_refusal,
            "choose a method that does not multiply layers, such as RawAttention or AttentionXGradient",
        )


@register("raw-attention")
@dataclass(frozen=True)
class RawAttention(CheckedOptions):
    """Attention weights, averaged over layers, heads and query rows.

    The two rows of a pair of texts are averaged too, so that both texts share one axis.

    Args:
        layer: one layer only; None averages all.
        head: one head only; None averages all.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean of a_qt over layers, heads and query rows q",
        avoid="to say why the prediction is what it is: attention can be changed without changing the prediction",
        references=("bahdanau-2015", "jain-2019"),
    )

    tags: ClassVar[MethodTags] = replace(
        ATTENTION_WEIGHTS,
        note="attention weights, mean over layers, heads and queries; special tokens get the rest",
    )

    layer: int | None = None
    head: int | None = None
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored tokens; the weight of unscored special tokens is not redistributed."""
        attention = read_attention(model, batch)
        layers = attention[:, index_slice(self.layer, attention.shape[1], "layer")]
        heads = layers[:, :, index_slice(self.head, attention.shape[2], "head")]
        scores = mean_over_queries(heads, batch.mask).mean((1, 2))
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


@register("head-attention")
@dataclass(frozen=True)
class HeadAttention(CheckedOptions):
    """Attention weights of one layer in the row that the head reads, a class token's or the last: the usual heat-map.

    All rows are read where the head reads all, or where a text has no class token. For pooled models the same as
    `RawAttention`.

    Args:
        layer: counted from 0, or from the last with -1; None averages all.
        head: one head only; None averages all.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean over heads of a_qt in the last layer,\nq the row that the head of the model reads",
        avoid="as the only explanation: one row of one layer leaves out what the layers below have mixed",
        references=("vaswani-2017",),
    )

    tags: ClassVar[MethodTags] = ATTENTION_WEIGHTS

    layer: int | None = -1
    head: int | None = None
    row: QueryRow = "class"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored tokens, in float64; the weight of unscored special tokens is not redistributed."""
        attention = read_attention(model, batch)
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        chosen = attention[:, index_slice(self.layer, attention.shape[1], "layer")]
        chosen = chosen[:, :, index_slice(self.head, attention.shape[2], "head")]
        rows = row_weights(batch, self.row, attention.shape[3], model.deciding_row)
        scores = torch.einsum("bq,blhqu->bu", rows, chosen.double())
        scores = scores / (chosen.shape[1] * chosen.shape[2])
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


def is_self_attention(attention: Tensor, batch: Batch) -> bool:
    """True where every token is a query; False for the one or two queries of a pooled model."""
    return attention.shape[3] == batch.mask.shape[1]


def largest_weights(attention: Tensor, batch: Batch) -> Tensor:
    """The largest attention weight of a content token `[batch]` in the attention that is shown of each text.

    Self-attention is averaged over layers, heads and query rows as by `RawAttention`: some row of some head is nearly
    always one-hot. Of the queries of a pooled model, each a distribution over its own text, the largest counts. NaN for
    a model that does not show its attention.
    """
    if not attention.shape[1]:
        return attention.new_full((len(batch),), torch.nan)
    shown = attention.flatten(1, 3)
    if is_self_attention(attention, batch):
        shown = mean_over_queries(attention, batch.mask).mean((1, 2)).unsqueeze(1)
    return shown.masked_fill(~batch.content_mask.unsqueeze(1), 0).amax((1, 2))


def first_token_shares(attention: Tensor, batch: Batch) -> Tensor:
    """The share of self-attention on the first token `[batch]`, over all layers, heads and real rows; NaN without it.

    Many transformers put attention that has nowhere to go on the first token (an *attention sink*). Of a causal model
    the first row has no other choice: uniform attention gives (1 + 1/2 + ... + 1/n) / n.
    """
    if not attention.shape[1] or not is_self_attention(attention, batch):
        return attention.new_full((len(batch),), torch.nan, dtype=torch.float64)
    return mean_over_queries(attention, batch.mask).double().mean((1, 2))[:, 0]


def row_weights(batch: Batch, row: QueryRow, queries: int, deciding_row: DecidingRow = "first") -> Tensor:
    """Weights of the query rows `[batch query]`, in float64: only the row that the head reads, or all real rows alike.

    Args:
        deciding_row: what the head of the model reads; the first row counts where it is that of a class token.
    """
    uniform = query_weights(batch.mask, queries, torch.float64)
    if row == "mean" or queries != batch.mask.shape[1] or deciding_row == "all":
        return uniform
    if deciding_row == "mask":
        masks = (batch.inputs == batch.mask_id) & batch.mask & ~batch.content_mask
        return masks.double() / masks.sum(1, keepdim=True).clamp(min=1)
    places = (batch.lengths - 1).clamp(min=0) if deciding_row == "last" else torch.zeros_like(batch.lengths)
    one = torch.zeros_like(uniform).scatter(1, places.unsqueeze(1), 1.0)
    if deciding_row == "last":
        return one
    has_class_token = batch.mask[:, :1] & ~batch.content_mask[:, :1]
    return torch.where(has_class_token, one, uniform)


def index_slice(number: int | None, count: int, kind: str) -> slice:
    """The slice of one layer or head, or of all; numbers run from -count to count - 1."""
    if number is None:
        return slice(None)
    if not -count <= number < count:
        raise UserError(f"{kind} {number} does not exist; this model has {count}, counted from 0")
    number %= count
    return slice(number, number + 1)


@dataclass(frozen=True)
class _ContributionNorm(CheckedOptions, ABC):
    """The norm of what each token contributes to a row of attention, averaged over layers and rows.

    For pooled models a_t ||h_t||, with the hidden states as values (Neely et al. 2022).

    Args:
        layer: counted from 0, or from the last with -1; None averages all.
    """

    tags: ClassVar[MethodTags] = ATTENTION_WEIGHTS

    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = False
    needs_projections: ClassVar[bool]

    @torch.no_grad()
    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the scored tokens, in float64."""
        if isinstance(model, ExposesValues):
            check_attention_not_imposed(model)
            values = model.read_values(batch, with_projections=self.needs_projections)
            if len(values.values) != len(values.attention):
                raise UserError(f"{type(model).__name__} does not expose its values: choose AttentionXGradient")
            rows = row_weights(batch, self.row, batch.mask.shape[1], model.deciding_row)
            layers = range(len(values.attention))[index_slice(self.layer, len(values.attention), "layer")]
            norms = [torch.einsum("bq,bqu->bu", rows, self.pair_norms(values, layer)) for layer in layers]
            scores = torch.stack(norms).mean(0)
        else:
            check_attention(model)
            trace = model(batch)
            if is_self_attention(trace.attention, batch) and trace.attention.shape[1] > 1:
                raise UserError(f"{type(model).__name__} exposes no values: wrap it with TransformerModel.wrap")
            weights = RawAttention(special_tokens=True)(model, batch, target).scores.double()
            scores = weights * trace.hidden.double().norm(dim=-1)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)

    @abstractmethod
    def pair_norms(self, values: ValueTrace, layer: int) -> Tensor:
        """The norm of each token's contribution to each row of a layer, `[batch query unit]`, in float64."""


@register("value-norm")
@dataclass(frozen=True)
class ValueNorm(_ContributionNorm):
    """Attention weight x value norm, a ||v||, averaged over heads, layers and rows (Kobayashi et al. 2020).

    The values are those that the weights multiply: heads that share them (grouped queries) have the same ones.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean over layers, heads and rows q of a_qt ‖v_t‖",
        avoid="where the projection after attention matters: kobayashi-norm includes it",
        references=("kobayashi-2020",),
    )

    needs_projections: ClassVar[bool] = False

    def pair_norms(self, values: ValueTrace, layer: int) -> Tensor:
        """The mean of a ||v|| over heads."""
        lengths: Tensor = values.values[layer].double().norm(dim=-1)
        return torch.einsum("bhqu,bhu->bqu", values.attention[layer].double(), lengths) / lengths.shape[1]


@register("kobayashi-norm")
@dataclass(frozen=True)
class KobayashiNorm(_ContributionNorm):
    """Norm of the vector that each token adds to each row of attention, || sum_heads a f(x) ||, averaged over layers.

    f(x) = (x W_V + b_V) W_O (Kobayashi et al. 2020), with x normalized first where the layer does so (pre-norm). Heads
    that share values (grouped queries) have the same f. It is what attention adds before any normalization that
    follows. A model whose values pass a gate, a norm or a convolution before W_O is refused.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean over layers and rows q of ‖Σ_h a_hqt f_h(x_t)‖,  f_h(x) = (x W_V + b_V) W_O",
        avoid="to compare classes: it measures how much a token contributes, not to which output",
        references=("kobayashi-2020",),
    )

    needs_projections: ClassVar[bool] = True

    def pair_norms(self, values: ValueTrace, layer: int) -> Tensor:
        """|| sum_h a_h,qu f_h(x_u) || as a' G_u a with the Gram matrix of heads G_u = f(x_u) f(x_u)'.

        That costs heads² per pair of tokens, not heads x width.
        """
        vectors, weights = transformed_values(values, layer), values.attention[layer].double()
        products = torch.einsum("bhuw,bguw->bhgu", vectors, vectors)
        half = torch.einsum("bhqu,bhgu->bgqu", weights, products)
        # Rounding may push the square of a sum that cancels below zero.
        return (half * weights).sum(1).clamp(min=0).sqrt()


def transformed_values(values: ValueTrace, layer: int) -> Tensor:
    """f(x) = (x W_V + b_V) W_O of a layer `[batch head unit width]`, in float64."""
    return torch.einsum("bhud,hdw->bhuw", values.values[layer].double(), values.projections[layer].double())


@register("attention-x-gradient")
@dataclass(frozen=True)
class AttentionXGradient(CheckedOptions):
    """Attention x gradient of the output with respect to it, a dy/da, averaged over layers, heads and rows.

    The positive part is Grad-SAM (Barkan et al. 2021).

    Args:
        output: "logit" as in the paper, or "probability".
        positive: count negative products as 0; False keeps the sign.
        layer: counted from 0, or from the last with -1; None averages all.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = mean over layers, heads and rows q of max(0, a_qt · ∂y/∂a_qt)",
        avoid="where attention is nearly uniform or the gradient is flat: scores are then products of small numbers",
        references=("barkan-2021",),
    )

    output: Output = "logit"
    positive: bool = True
    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = False

    @property
    def tags(self) -> MethodTags:
        """Grad-SAM counts no negative products: its scores are weights."""
        if self.positive:
            return MethodTags(signed=False, pooling="mean", reads="attention")
        return MethodTags(reads="attention")

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Products of the scored tokens, in float64."""
        products = attention_times_gradient(model, batch, target, self.output)
        products = products.clamp(min=0) if self.positive else products
        chosen = products[:, index_slice(self.layer, products.shape[1], "layer")].mean((1, 2))
        rows = row_weights(batch, self.row, products.shape[3], model.deciding_row)
        scores = torch.einsum("bq,bqu->bu", rows, chosen)
        return masked_attribution(scores, batch, special_tokens=self.special_tokens)


@register("relevance")
@dataclass(frozen=True)
class Relevance(CheckedOptions):
    """Relevance propagated through all layers by attention x gradient (Chefer et al. 2021).

    R starts as I and becomes R + E R in each layer upwards, E = mean over heads of the positive part of a dy/da; the
    scores are the row of R - I that the head reads (of the class token, or the last), or the mean of all rows where it
    reads all. For pooled models the row of E. I stands for the residual connection around attention, wherever the layer
    normalises. Models with paths between tokens beside attention, or a decoder of their own, are refused.

    Args:
        output: "logit" as in the paper, or "probability".
    """

    background: ClassVar[Background] = Background(
        formula="R ← R + E R in each layer,  E = mean over heads of max(0, A ⊙ ∂y/∂A),  R = I at first\n"
        "s_t = row of R − I that the head reads",
        avoid="to find words that speak against the prediction: negative products are dropped",
        references=("chefer-2021",),
    )

    tags: ClassVar[MethodTags] = MethodTags(signed=False, pooling="mean", reads="attention")

    output: Output = "logit"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Relevance of the scored tokens, in float64."""
        check_paths(model)
        products = attention_times_gradient(model, batch, target, self.output)
        layers = products.clamp(min=0).mean(2)
        rows = row_weights(batch, "class", products.shape[3], model.deciding_row)
        if is_self_attention(products, batch):
            scores = propagate_relevance(layers, rows)
        else:
            scores = torch.einsum("bq,bqu->bu", rows, layers[:, 0])
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
        values = model.read_values(batch, with_projections=False)
        return values.attention, values.logits
    attention = read_attention(model, batch)
    if attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not expose its layers: wrap it with TransformerModel.wrap")
    weights = attention[:, 0].detach().clone().requires_grad_()
    return (weights,), model(batch, attention=weights.unsqueeze(1)).logits


@register("rollout")
@dataclass(frozen=True)
class Rollout(CheckedOptions):
    """Attention rollout: the row of B_L ... B_1 that the head reads (Abnar & Zuidema 2020).

    B = (A + I) / 2 with heads averaged; the mean of all rows where the head reads all. For pooled models the same as
    `RawAttention`. I stands for the residual connection around attention, wherever the layer normalizes. A causal or
    local mask is kept: a token that no path leads to has 0. Weight on an attention sink, which is not a token, is
    divided among the tokens in proportion. Models with paths between tokens beside attention, or a decoder, are
    refused.
    """

    background: ClassVar[Background] = Background(
        formula="s = row of B_L … B_1 that the head reads,  B = (A + I) / 2,  A the mean over heads",
        avoid="where one head matters: the mean over heads hides it",
        references=("abnar-2020",),
    )

    tags: ClassVar[MethodTags] = ATTENTION_WEIGHTS

    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Shares of the scored tokens, in float64; with special tokens the shares of a text sum to 1."""
        check_paths(model)
        attention = read_attention(model, batch)
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        rows = row_weights(batch, "class", attention.shape[3], model.deciding_row)
        shares = roll_out(residual_attention(attention), rows)
        return masked_attribution(shares, batch, special_tokens=self.special_tokens)


def residual_attention(attention: Tensor) -> Tensor:
    """(A + I) / 2 `[batch layer query unit]`: heads averaged and the residual added, in float64; real rows sum to 1."""
    mean = attention.double().mean(2)
    mean = mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    return 0.5 * mean + 0.5 * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)


def roll_out(layers: Tensor, rows: Tensor) -> Tensor:
    """r B_L ... B_1 `[batch unit]` for weights r of the top rows `[batch unit]`, in O(layers x units²).

    >>> uniform = residual_attention(torch.full((1, 6, 1, 10, 10), 0.1))
    >>> roll_out(uniform, torch.eye(10, dtype=torch.float64)[:1])[0, :2].numpy().round(9).tolist()
    [0.1140625, 0.0984375]
    """
    for layer in range(layers.shape[1] - 1, -1, -1):
        rows = torch.einsum("bq,bqu->bu", rows, layers[:, layer])
    return rows


@register("flow")
@dataclass(frozen=True)
class Flow(CheckedOptions):
    """Attention flow: the maximum flow from the class token on top to each token (Abnar & Zuidema 2020).

    Capacities are those of rollout, B = (A + I) / 2, with its assumptions and refusals. The flow enters where the head
    reads: at the class token, at the last token, or at all tokens alike. Flows are not normalized. For pooled models
    the same as `RawAttention`.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = maximum flow from the row that the head reads to token t\n"
        "through the layers, with capacities B = (A + I) / 2",
        avoid="on long texts: a maximum flow is solved for every token",
        references=("abnar-2020",),
    )

    tags: ClassVar[MethodTags] = ATTENTION_WEIGHTS

    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Flows to the scored tokens, in float64."""
        check_paths(model)
        attention = read_attention(model, batch)
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        units = scored_units(batch, special_tokens=self.special_tokens)
        scores = torch.zeros(units.shape, dtype=torch.float64)
        for row, flow in enumerate(attention_flows(attention, batch, units, model.deciding_row)):
            scores[row, units[row].cpu()] = torch.from_numpy(flow.values)
        return Attribution(scores.to(units.device), units)


def attention_flows(
    attention: Tensor, batch: Batch, units: Tensor, deciding_row: DecidingRow = "first"
) -> Iterator[MaxFlows]:
    """The flows to the tokens `units` `[batch unit]` of each example, with their certificates.

    Args:
        attention: of a transformer, `[batch layer head query unit]`.
    """
    layers = residual_attention(attention).cpu().numpy()
    starts = row_weights(batch, "class", attention.shape[3], deciding_row).cpu().numpy()
    for row in range(len(batch)):
        real = batch.mask[row].cpu().numpy().nonzero()[0]
        sinks = units[row].cpu().numpy()[real].nonzero()[0]
        yield max_flows(layers[row][:, real[:, None], real], starts[row, real], sinks)
