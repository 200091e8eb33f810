"""Attributions that read attention itself, and who reads: which query rows of a layer count.

Attention weighed by what it carries: a large weight on a short vector moves little (Kobayashi et al. 2020).

Attention times the slope of the output along it, in one place or followed through all layers.

The slope is that of the whole network: a weight of a lower layer also moves what higher layers attend to.

Attention followed down through all layers: rollout (Abnar & Zuidema 2020).

Attention as pipes: the maximum flow from the class symbol on top to each unit (Abnar & Zuidema 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions._base import Output, check_output, target_output
from heedful.attributions._max_flow import MaxFlows, max_flows
from heedful.store.recipe import OMIT_IF_DEFAULT
from heedful.types import Attribution, Batch, ExposesValues, Model, UserError, ValueTrace, check_attention_not_imposed

QueryRow = Literal["mean", "class"]


@dataclass(frozen=True)
class RawAttention:
    """The model's weights: mean over the chosen layers and heads, and over the query rows.

    A compared pair has one row per text; their mean puts the two texts side by side on one axis.

    Args:
        layer: one layer only, counted from 0; None takes all.
        head: one head only; None takes all.
        specials: special symbols are scored too.
    """

    layer: int | None = None
    head: int | None = None
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored units; where special symbols are left out, what they receive is not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        layers = attention[:, index_slice(self.layer, attention.shape[1], "layer")]
        heads = layers[:, :, index_slice(self.head, attention.shape[2], "head")]
        rows = batch.mask[:, None, None, :] if attention.shape[3] == batch.mask.shape[1] else None
        return masked_attribution(
            _mean_over_queries(heads, rows).mean((1, 2)), batch, special_tokens=self.special_tokens
        )


def _mean_over_queries(attention: Tensor, rows: Tensor | None) -> Tensor:
    """Mean over the query axis, over real rows only where rows are units."""
    if rows is None:
        return attention.mean(3)
    weights = rows.to(attention) / rows.sum(-1, keepdim=True)
    return torch.einsum("blhqu,blhq->blhu", attention, weights.expand(attention.shape[:4]))


@dataclass(frozen=True)
class HeadAttention:
    """What the class symbol looks at in one layer: the heat-map that is shown most often.

    A text without a class symbol is read by all its units alike. A pooled model has one row: the answer is its
    attention, as for `RawAttention`.

    Args:
        layer: counted from 0, or from the last with -1; None takes the mean of all.
        head: one head only; None takes the mean of all.
        row: "class" reads the first unit's row where that unit is a special symbol, "mean" the mean of real rows.
        specials: special symbols are scored too.
    """

    layer: int | None = -1
    head: int | None = None
    row: QueryRow = "class"
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_row(self.row)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights of the scored units; where special symbols are left out, what they receive is not redistributed."""
        with torch.no_grad():
            attention = model(batch).attention
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        chosen = attention[:, index_slice(self.layer, attention.shape[1], "layer")]
        chosen = chosen[:, :, index_slice(self.head, attention.shape[2], "head")]
        scores = torch.einsum("bq,blhqu->bu", query_weights(batch, self.row), chosen.double())
        return masked_attribution(
            scores / (chosen.shape[1] * chosen.shape[2]), batch, special_tokens=self.special_tokens
        )


def scored_units(batch: Batch, *, special_tokens: bool) -> Tensor:
    """The units that get a score `[batch unit]`: words, and with `specials` all real units."""
    return batch.mask if special_tokens else batch.content_mask


def masked_attribution(scores: Tensor, batch: Batch, *, special_tokens: bool) -> Attribution:
    """The scores of words, or with `specials` of all real units; zero elsewhere."""
    units = scored_units(batch, special_tokens=special_tokens)
    return Attribution(scores.masked_fill(~units, 0), units)


def is_self_attention(attention: Tensor, batch: Batch) -> bool:
    """True where queries are units (self-attention), False for the one or two queries of a pooled model."""
    return attention.shape[3] == batch.mask.shape[1]


def check_row(row: str) -> None:
    """Refuses a choice of rows that there is not."""
    if row not in get_args(QueryRow):
        raise UserError(
            f"there is no row {row!r} to read attention from; choose one of {', '.join(get_args(QueryRow))}"
        )


def query_weights(batch: Batch, row: QueryRow) -> Tensor:
    """Weights of the query rows `[batch unit]`, in float64: the class symbol's row alone, or all real rows alike."""
    alike = batch.mask.double() / batch.lengths.clamp(min=1).unsqueeze(1)
    if row == "mean":
        return alike
    first = torch.zeros_like(alike)
    first[:, 0] = 1.0
    has_class = batch.mask[:, :1] & ~batch.content_mask[:, :1]
    return torch.where(has_class, first, alike)


def index_slice(number: int | None, count: int, kind: str) -> slice:
    """The one layer or head with this number, or all; a number from -count to count - 1."""
    if number is None:
        return slice(None)
    if not -count <= number < count:
        raise UserError(f"there is no {kind} {number}: this model has {count}, numbered from 0")
    number %= count
    return slice(number, number + 1)


@dataclass(frozen=True)
class ValueNorm:
    """Attention times the length of the value that it weighs, a ||v||: mean over heads, layers and rows.

    For pooled models a_t ||h_t||, the hidden state being what attention weighs (Neely et al. 2022).

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes the mean of all.
        row: "mean" takes all real rows, "class" the class symbol's, where there is one.
        specials: special symbols are scored too.
    """

    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_row(self.row)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the scored units, in float64."""
        if not isinstance(model, ExposesValues):
            return masked_attribution(
                _attention_weighted_norms(model, batch, target), batch, special_tokens=self.special_tokens
            )
        check_attention_not_imposed(model)
        carried, rows = model.read_values(batch), query_weights(batch, self.row)
        found = []
        for layer in range(len(carried.attention))[index_slice(self.layer, len(carried.attention), "layer")]:
            weights = torch.einsum("bq,bhqu->bhu", rows, carried.attention[layer].double())
            found.append((weights * carried.values[layer].double().norm(dim=-1)).mean(1))
        return masked_attribution(torch.stack(found).mean(0), batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class KobayashiNorm:
    """The length of what each unit adds to each row of a layer's attention, || sum_heads a f(x) ||: mean over layers.

    f is the value transform and the head's part of the output projection; over all units the vectors add up to what
    the attention gives out, but for its bias. For pooled models a_t ||h_t||.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes the mean of all.
        row: "mean" takes all real rows, "class" the class symbol's, where there is one.
        specials: special symbols are scored too.
    """

    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_row(self.row)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Norms of the scored units, in float64."""
        if not isinstance(model, ExposesValues):
            return masked_attribution(
                _attention_weighted_norms(model, batch, target), batch, special_tokens=self.special_tokens
            )
        check_attention_not_imposed(model)
        carried, rows = model.read_values(batch), query_weights(batch, self.row)
        found = []
        for layer in range(len(carried.attention))[index_slice(self.layer, len(carried.attention), "layer")]:
            found.append(torch.einsum("bq,bqu->bu", rows, contribution_norms(carried, layer)))
        return masked_attribution(torch.stack(found).mean(0), batch, special_tokens=self.special_tokens)


def transformed_values(carried: ValueTrace, layer: int) -> Tensor:
    """f(x) = (x W_V + b_V) W_O `[batch head unit width]` of a layer, in float64."""
    return torch.einsum("bhud,hdw->bhuw", carried.values[layer].double(), carried.projections[layer].double())


def contribution_norms(carried: ValueTrace, layer: int) -> Tensor:
    """|| sum_h a_h,qu f_h(x_u) || `[batch query unit]` of a layer.

    By the products of heads, a' G_u a with G_u = f(x_u) f(x_u)': the cost is heads² and not heads x width per pair.
    """
    vectors, weights = transformed_values(carried, layer), carried.attention[layer].double()
    products = torch.einsum("bhuw,bguw->bhgu", vectors, vectors)
    half = torch.einsum("bhqu,bhgu->bgqu", weights, products)
    # Rounding may push the square of a sum that cancels below zero.
    return (half * weights).sum(1).clamp(min=0).sqrt()


def _attention_weighted_norms(model: Model, batch: Batch, target: Tensor) -> Tensor:
    """a_t ||h_t|| of all real units `[batch unit]` of a pooled model."""
    trace = model(batch)
    if is_self_attention(trace.attention, batch) and trace.attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not show its values: wrap it with TransformerModel.wrap")
    weights = RawAttention(special_tokens=True)(model, batch, target).scores.double()
    lengths: Tensor = trace.hidden.double().norm(dim=-1)
    return weights * lengths


@dataclass(frozen=True)
class AttentionXGradient:
    """Attention times the slope of the output along it, a dy/da: mean over layers, heads and rows.

    With the positive part only, it is Grad-SAM (Barkan et al. 2021).

    Args:
        output: "logit" as in the paper, or "probability".
        positive: a product that speaks against the target counts as 0; False keeps the sign.
        layer: one layer only, counted from 0, or from the last with -1; None takes the mean of all.
        row: "mean" takes all real rows, "class" the class symbol's, where there is one.
        specials: special symbols are scored too.
    """

    output: Output = "logit"
    positive: bool = True
    layer: int | None = None
    row: QueryRow = "mean"
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_output(self.output)
        check_row(self.row)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Products of the scored units, in float64."""
        found = attention_times_gradient(model, batch, target, self.output)
        found = found.clamp(min=0) if self.positive else found
        chosen = found[:, index_slice(self.layer, found.shape[1], "layer")].mean((1, 2))
        rows = query_weights(batch, self.row) if is_self_attention(found, batch) else _uniform_query_weights(chosen)
        return masked_attribution(torch.einsum("bq,bqu->bu", rows, chosen), batch, special_tokens=self.special_tokens)


@dataclass(frozen=True)
class Relevance:
    """How much of each unit arrives in the class symbol, layers weighed by their slopes (Chefer et al. 2021).

    R starts as I and becomes R + E R in each layer upwards, E = mean over heads of the positive part of a dy/da; given
    back is the class symbol's row of R - I, or the mean of all real rows where a text has no class symbol. A pooled
    model has one layer: the answer is the row of E.

    Args:
        output: "logit" as in the paper, or "probability".
        start_layer: layers below this one are left out; -1 leaves only the last.
        specials: special symbols are scored too.
    """

    output: Output = "logit"
    start_layer: int = 0
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Relevance of the scored units, in float64."""
        found = attention_times_gradient(model, batch, target, self.output)
        layers = found.clamp(min=0).mean(2)
        if not is_self_attention(found, batch):
            scores = torch.einsum("bq,bqu->bu", _uniform_query_weights(layers[:, 0]), layers[:, 0])
            return masked_attribution(scores, batch, special_tokens=self.special_tokens)
        layers = layers[:, index_slice(self.start_layer, layers.shape[1], "layer").start :]
        return masked_attribution(
            propagate_relevance(layers, query_weights(batch, "class")), batch, special_tokens=self.special_tokens
        )


def propagate_relevance(layers: Tensor, rows: Tensor) -> Tensor:
    """r (I + E_L) ... (I + E_1) - r `[batch unit]` for weights r of the rows; O(layers x units²), R is never made."""
    found = rows
    for layer in range(layers.shape[1] - 1, -1, -1):
        found = found + torch.einsum("bq,bqu->bu", found, layers[:, layer])
    return found - rows


def attention_times_gradient(model: Model, batch: Batch, target: Tensor, output: Output) -> Tensor:
    """a dy/da `[batch layer head query unit]`, in float64; zero where attention cannot be."""
    with torch.enable_grad():
        attention, logits = _differentiable_attention(model, batch)
        total = target_output(model.task, logits, target, output).sum()
        # Asked for attention only, autograd leaves no gradient on the parameters. Above the last layer that the
        # output reads, a weight may have no part in it.
        slopes = torch.autograd.grad(total, attention, allow_unused=True)
    pairs = zip(attention, slopes, strict=True)
    found = [weights.detach().double() * (0.0 if slope is None else slope.double()) for weights, slope in pairs]
    return torch.stack(found, dim=1)


def _differentiable_attention(model: Model, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
    """The attention of each layer `[batch head query unit]`, and logits that were computed from it."""
    if isinstance(model, ExposesValues):
        check_attention_not_imposed(model)
        carried = model.read_values(batch)
        return carried.attention, carried.logits
    with torch.no_grad():
        attention = model(batch).attention
    if attention.shape[1] > 1:
        raise UserError(f"{type(model).__name__} does not show its layers: wrap it with TransformerModel.wrap")
    given = attention[:, 0].detach().clone().requires_grad_()
    return (given,), model(batch, attention=given.unsqueeze(1)).logits


def _uniform_query_weights(rows: Tensor) -> Tensor:
    """Equal weights for the one or two queries of a pooled model."""
    return torch.full(rows.shape[:2], 1 / rows.shape[1], dtype=rows.dtype, device=rows.device)


@dataclass(frozen=True)
class Rollout:
    """The share of each unit in the class symbol on top, if every layer mixes units by its mean attention.

    The class symbol's row of B_L ... B_1, B = (1 - residual) A + residual I with heads averaged; the mean of all rows
    where a text has no class symbol. A pooled model has one layer without a residual: the answer is its attention.

    Args:
        residual: share of a unit that goes past attention; one half in the paper.
        start_layer: layers below this one are left out.
        specials: special symbols are scored too.
    """

    residual: float = 0.5
    start_layer: int = 0
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_residual(self.residual)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Shares of the scored units, in float64; with special symbols a text's shares sum to 1."""
        with torch.no_grad():
            attention = model(batch).attention
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        if not 0 <= self.start_layer < attention.shape[1]:
            raise UserError(
                f"there is no layer {self.start_layer} to start from: layers are 0 to {attention.shape[1] - 1}"
            )
        shares = roll_out(
            residual_attention(attention, self.residual)[:, self.start_layer :], query_weights(batch, "class")
        )
        return masked_attribution(shares, batch, special_tokens=self.special_tokens)


def check_residual(residual: float) -> None:
    """Refuses a share that is none."""
    if not 0 <= residual < 1:
        raise UserError(f"residual={residual} is not a share: choose a number from 0 to below 1, 0.5 as in the paper")


def residual_attention(attention: Tensor, residual: float = 0.5) -> Tensor:
    """B `[batch layer query unit]`: heads averaged, the residual added, real rows sum to 1; in float64."""
    mean = attention.double().mean(2)
    mean = mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    return (1 - residual) * mean + residual * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)


def roll_out(layers: Tensor, rows: Tensor) -> Tensor:
    """r B_L ... B_1 `[batch unit]` for weights r of the rows on top `[batch unit]`; O(layers x units²).

    >>> uniform = residual_attention(torch.full((1, 6, 1, 10, 10), 0.1))
    >>> roll_out(uniform, torch.eye(10, dtype=torch.float64)[:1])[0, :2].numpy().round(9).tolist()
    [0.1140625, 0.0984375]
    """
    for layer in range(layers.shape[1] - 1, -1, -1):
        rows = torch.einsum("bq,bqu->bu", rows, layers[:, layer])
    return rows


@dataclass(frozen=True)
class Flow:
    """The most that can flow from the class symbol on top to each unit, through edges as wide as the mixing weights.

    Capacities are B = (1 - residual) A + residual I with heads averaged, as in rollout. Where a text has no class
    symbol, the flow may enter at all units alike. Values are not divided by their sum, which ranks units alike. A
    pooled model has one layer: the answer is its attention. `flows` tells ties and which values a shortcut certified.

    Args:
        residual: share of a unit that goes past attention; one half in the paper.
        specials: special symbols are scored too.
    """

    residual: float = 0.5
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_residual(self.residual)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Flows to the scored units, in float64."""
        with torch.no_grad():
            attention = model(batch).attention
        if not is_self_attention(attention, batch):
            return RawAttention(special_tokens=self.special_tokens)(model, batch, target)
        scores = torch.zeros(batch.mask.shape, dtype=torch.float64)
        units = scored_units(batch, special_tokens=self.special_tokens)
        for row, found in enumerate(
            attention_flows(attention, batch, self.residual, special_tokens=self.special_tokens)
        ):
            scores[row, units[row].cpu()] = torch.from_numpy(found.values)
        return Attribution(scores.to(batch.mask.device), units)


def attention_flows(
    attention: Tensor, batch: Batch, residual: float = 0.5, *, special_tokens: bool = False
) -> tuple[MaxFlows, ...]:
    """For each example the flows to its scored units in order, with the shares certified and `tied` ones.

    Args:
        attention: of a transformer, `[batch layer head query unit]`.
        specials: flows to special symbols too.
    """
    if not is_self_attention(attention, batch):
        raise UserError("flow needs layers in which units look at units: a pooled model has only its one attention")
    layers, starts = residual_attention(attention, residual).cpu().numpy(), query_weights(batch, "class").cpu().numpy()
    units, found = scored_units(batch, special_tokens=special_tokens), []
    for row in range(len(batch)):
        real = batch.mask[row].cpu().numpy().nonzero()[0]
        scored = units[row].cpu().numpy()[real].nonzero()[0]
        found.append(max_flows(layers[row][:, real[:, None], real], starts[row, real], scored))
    return tuple(found)
