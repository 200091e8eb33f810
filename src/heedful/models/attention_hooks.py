"""Access to the attention, embeddings and layers of a Hugging Face network, without a fork and without state.

A network is never modified: we work on a *copy* with its own modules and configuration but the same tensors. In the
copy every layer calls our attention function, or has its softmax intercepted (`_softmax_hooks`); hooks on the layers
pass their inputs through. All of them read and write the `ForwardPass` that runs in their thread, so that nothing is
stored on modules between calls, and threads do not interfere.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from heedful.capabilities import LayerInput, query_weights, requires_unfused_attention
from heedful.types import UserError

if TYPE_CHECKING:  # transformers is imported where it is used: its import costs 100 MB, and reports do without it
    from transformers import PreTrainedModel as Network

ATTENTION_IMPLEMENTATION = "heedful"
HIDDEN_SCORE = -1e4
"""Scores and masks below this hide a unit: libraries use the lowest number, minus infinity, -1e30 or -65500."""
NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of the attention function of one layer.

    Args:
        query: `[batch head query dim]`, as key and value, whose heads are repeated where several queries share one.
        mask: added to the scaled scores, the lowest number where attention may not be; None adds nothing.
        dropout: rate of dropout on the weights; 0 outside training.
        softcap: c of c tanh(score / c), where a network limits its scores.
        bias: added to the scores, for instance by relative position.
        sink: the score of each head `[head]` of a unit that is not there and takes a share of the attention.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    dropout: float
    softcap: float | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether scores are queries times keys, but for the scale."""
        return self.softcap is None and self.bias is None

    def scores(self) -> Tensor:
        """q k scale, capped and with its bias, without the mask, `[batch head query unit]`."""
        scores = torch.matmul(self.query, self.key.transpose(2, 3)).mul_(self.scale)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores if self.bias is None else scores + self.bias

    def masked_scores(self) -> Tensor:
        """Scores with the mask added."""
        scores = self.scores()
        return scores if self.mask is None else scores.add_(self.mask)

    def normalize(self, scores: Tensor) -> Tensor:
        """softmax of the masked scores over the units, and over the sink where there is one, which is then cut off."""
        if self.sink is None:
            return scores.softmax(-1)
        sink = self.sink.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]

    def hidden(self) -> Tensor | None:
        """True where the mask hides a unit, broadcastable to the scores."""
        return None if self.mask is None else self.mask < HIDDEN_SCORE


class AttentionHook(ABC):
    """Replaces the attention function of every layer during one call, lowest layer first.

    Attributes:
        reads_maps: whether it needs attention over all units, where a layer attends within windows of them.
    """

    layers_run: int = 0
    reads_maps: ClassVar[bool] = True

    @property
    def gives_weights(self) -> bool:
        """Whether it replaces attention weights by others."""
        return False

    @abstractmethod
    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """The attended values `[batch head query dim]`, and the attention weights if they are computed."""

    @abstractmethod
    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The attention to use `[batch head query unit]` where a network normalises masked scores to weights itself."""

    def keep_values(self, values: Tensor, attended: Tensor) -> Tensor:
        """Take note of the values `[batch head unit dim]` that the last weights multiply; their product, to be used."""
        return attended


@dataclass
class AttentionRecorder(AttentionHook):
    """Records the attention of one call, or replaces it.

    Args:
        replacement: attention `[batch layer head query unit]` to use in place of the network's own.
        scores: scaled scores of each layer so far, zero where attention may not be; empty under a replacement.
        attention: the attention of each layer so far, before dropout.
        values: the values `[batch head unit dim]` of each layer so far.
    """

    replacement: Tensor | None = None
    scores: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """In training, dropout is applied to the weights as in the library's eager function, not to a replacement."""
        self.values.append(inputs.value)
        if self.replacement is not None:
            weights = dropped = self._replace(self.replacement)
        else:
            scores, hidden = inputs.masked_scores(), inputs.hidden()
            weights = inputs.normalize(scores)
            self.scores.append(scores if hidden is None else scores.masked_fill_(hidden, 0.0))
            dropped = nn.functional.dropout(weights, inputs.dropout)
        self.attention.append(weights)
        return torch.matmul(dropped, inputs.value), weights

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The network's own weights, or those of the replacement."""
        if self.replacement is not None:
            weights = self._replace(self.replacement).to(weights.dtype).contiguous()
        else:
            self.scores.append(scores.masked_fill(scores < HIDDEN_SCORE, 0.0))
        self.attention.append(weights)
        return weights

    def keep_values(self, values: Tensor, attended: Tensor) -> Tensor:
        self.values.append(values)
        return attended

    @property
    def gives_weights(self) -> bool:
        return self.replacement is not None

    def _replace(self, replacement: Tensor) -> Tensor:
        if self.layers_run >= replacement.shape[1]:
            raise UserError(f"attention has {replacement.shape[1]} layers, but the network has more")
        return replacement[:, self.layers_run]

    def stack_layers(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and attention of all layers, `[batch layer head query unit]`, zero in the query rows of padding."""
        scores, attention = torch.stack(self.scores, 1), torch.stack(self.attention, 1)
        if not bool(mask.all()):
            queries = mask[:, None, None, :, None].to(attention.dtype)
            scores, attention = scores.mul_(queries), attention.mul_(queries)
        return scores, attention


def fused_attention(inputs: AttentionInputs, mask: Tensor | None, *, is_causal: bool = False) -> Tensor:
    """The attended values `[batch head query dim]` by the fused kernel of torch, which keeps no weights.

    The kernel has neither forward-mode nor second derivatives, and no cap and no sink: with tangents on the queries,
    inside `unfused_attention()`, and where a network has one of these, attention is computed by plain matrix products.

    Args:
        mask: that of the inputs; None where it hides nothing, or only what `is_causal` hides.
    """
    tensors = (inputs.query, inputs.key, inputs.value)
    if (
        requires_unfused_attention()
        or not inputs.is_plain
        or inputs.sink is not None
        or any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)  # type: ignore[no-untyped-call]
    ):
        weights = inputs.normalize(inputs.masked_scores())
        return torch.matmul(nn.functional.dropout(weights, inputs.dropout), inputs.value)
    return nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, dropout_p=inputs.dropout, scale=inputs.scale, is_causal=is_causal
    )


@dataclass
class FusedAttention(AttentionHook):
    """Attention that stores nothing.

    A mask that hides nothing is left out, and one that hides exactly what comes later is named, which are cheaper in
    the kernel. The mask of a layer is mostly that of the layer below and is looked at once.

    Args:
        seen: the last mask as it was given.
        mask: the same as the kernel gets it.
    """

    reads_maps: ClassVar[bool] = False

    seen: Tensor | None = None
    mask: Tensor | None = None
    is_causal: bool = False

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, None]:
        """The attended values."""
        if inputs.mask is not self.seen:
            self.seen = self.mask = inputs.mask
            self.is_causal = False
            if inputs.mask is not None and inputs.mask.dim() == 4 and not inputs.mask.requires_grad:
                self.is_causal = _is_causal(inputs.mask)
                self.mask = inputs.mask if inputs.mask.any() and not self.is_causal else None
        return fused_attention(inputs, self.mask, is_causal=self.is_causal), None

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The network's own weights."""
        return weights


def _is_causal(mask: Tensor) -> bool:
    """Whether a mask hides exactly the units behind each query, of more than one."""
    queries, units = mask.shape[-2:]
    later = torch.ones(units, units, dtype=torch.bool, device=mask.device).triu(1)
    return 1 < queries == units and bool(torch.where(later, mask < HIDDEN_SCORE, mask == 0).all())


@dataclass
class HeadScoreRecorder(AttentionHook):
    """Records the mean scores `[batch head unit]` of each layer, without a score for each pair of units.

    The mean over query rows of q k is mean(q) k, and attention itself is `fused_attention`.

    Args:
        mask: real units `[batch unit]`.
    """

    mask: Tensor
    scores: list[Tensor] = field(default_factory=list)

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, None]:
        """The attended values; weights are not kept, and get dropout in training."""
        self.scores.append(self._mean_scores(inputs).masked_fill(~self.mask[:, None], 0.0))
        return fused_attention(inputs, inputs.mask), None

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The network's own weights."""
        rows = query_weights(self.mask, scores.shape[2], scores.dtype)
        seen = scores.masked_fill(scores < HIDDEN_SCORE, 0.0)
        self.scores.append(torch.einsum("bq,bhqu->bhu", rows, seen).masked_fill(~self.mask[:, None], 0.0))
        return weights

    def _mean_scores(self, inputs: AttentionInputs) -> Tensor:
        rows, mask = query_weights(self.mask, inputs.query.shape[2], inputs.query.dtype), inputs.mask
        if inputs.is_plain and (
            mask is None or bool(((mask == mask[:, :, :1]) & ((mask == 0) | (mask < HIDDEN_SCORE))).all())
        ):
            query = torch.einsum("bq,bhqd->bhd", rows, inputs.query)
            return torch.einsum("bhd,bhud->bhu", query, inputs.key) * inputs.scale
        # Causal or sliding-window attention: rows differ in the units that they see; a score not seen counts as 0.
        scores, hidden = inputs.masked_scores(), inputs.hidden()
        return torch.einsum("bq,bhqu->bhu", rows, scores if hidden is None else scores.masked_fill(hidden, 0.0))


@dataclass
class AttendedValues(AttentionHook):
    """Gives these values in place of what attention would attend to, in a network of one layer.

    Args:
        values: `[batch head query dim]`.
    """

    values: Tensor

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, None]:
        """The given values; queries, keys and values of the layer are not used."""
        return self.values, None

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Refused: the values are not known where weights are normalised."""
        raise UserError("attended values can be given to networks that use transformers' attention interface")


class PlainAttention(AttentionHook):
    """Attention as the library computes it."""

    reads_maps: ClassVar[bool] = False

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        weights = inputs.normalize(inputs.masked_scores())
        return torch.matmul(nn.functional.dropout(weights, inputs.dropout), inputs.value), weights

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        return weights


class EmbeddingsReached(Exception):
    """Ends a forward pass at the input of the first layer, which is all that was asked for."""


@dataclass
class ForwardPass:
    """What one run of a network in one thread exchanges with the caller.

    Args:
        hook: replaces the attention of the layers.
        units: of the batch; further states of a layer are padding that the network has added.
        embeddings: input of the first layer `[batch unit width]`, given by the caller or seen by the run.
        transposed: whether the layers read `[unit batch width]`.
        ends_at_embeddings: stop at the embeddings.
        at_words: embeddings are the word vectors, and not the input of the first layer.
        replacement: states that replace the input of one layer.
        keeps_inputs: whether the inputs of all layers are kept.
        inputs: of the layers so far, if they are kept.
        states: output of the last layer that ran.
        hidden: output of the trunk of the network.
        other_maps: attention maps outside the layers, or of another shape.
    """

    hook: AttentionHook
    units: int
    embeddings: Tensor | None = None
    transposed: bool = False
    ends_at_embeddings: bool = False
    at_words: bool = False
    replacement: LayerInput | None = None
    keeps_inputs: bool = False
    inputs: list[Tensor] = field(default_factory=list)
    states: Tensor | None = None
    hidden: Tensor | None = None
    word_ids: Tensor | None = None
    layers_entered: int = 0
    depth: int = 0
    other_maps: int = 0

    def enter_layer(self, state: Tensor) -> Tensor:
        """Exchange the input of a layer with the caller; the layer is to read the result."""
        self.depth += 1
        if self.depth > 1:
            return state
        number, states = self.layers_entered, self._on_units(state)
        self.layers_entered += 1
        if number == 0 and self.embeddings is None:
            self.embeddings = states
        elif number == 0 and self.embeddings is not None and not self.at_words:
            if self.embeddings.shape[1] < states.shape[1]:
                return self.embeddings  # only the units that the head reads
            # In place: other holders of the tensor, such as a convolution beside the layer, must see the same states.
            states.copy_(self.embeddings)
        if number == 0 and self.ends_at_embeddings:
            raise EmbeddingsReached
        if self.replacement is not None and number == self.replacement.layer:
            states.copy_(self.replacement.states)
        if self.keeps_inputs:
            self.inputs.append(states)
        return state

    def leave_words(self, ids: Tensor, vectors: Tensor) -> Tensor:
        """Exchange word vectors with the caller the first time that ids are looked up, if embeddings are these.

        A decoder that reads the same text one token later gets them too.
        """
        if not self.at_words:
            return vectors
        if self.word_ids is None:
            self.word_ids = ids
            if self.embeddings is not None:
                return torch.cat([self.embeddings, vectors[:, self.units :]], 1)
            self.embeddings = vectors[:, : self.units]
            if self.ends_at_embeddings:
                raise EmbeddingsReached
        elif self.embeddings is not None and torch.equal(ids[:, 1:], self.word_ids[:, :-1]):
            return torch.cat([vectors[:, :1], self.embeddings[:, :-1]], 1)
        return vectors

    def leave_layer(self, output: object) -> None:
        """Take note of the output of a layer."""
        self.depth -= 1
        if self.depth == 0 and (state := first_float_tensor(output)) is not None:
            self.states = self._on_units(state)

    def _on_units(self, state: Tensor) -> Tensor:
        """The states of a layer, `[batch unit width]`."""
        states = state.transpose(0, 1) if self.transposed and state.dim() == 3 else state
        return states[:, : self.units] if states.dim() == 3 and states.shape[1] > self.units else states


_current_pass: ContextVar[ForwardPass | None] = ContextVar("current_pass", default=None)


@contextmanager
def running(forward_pass: ForwardPass) -> Iterator[ForwardPass]:
    """A context in which networks of this thread belong to this pass."""
    token = _current_pass.set(forward_pass)
    try:
        yield forward_pass
    finally:
        _current_pass.reset(token)


@contextmanager
def outside_pass() -> Iterator[None]:
    """A context in which networks of this thread belong to no pass, though one is running."""
    token = _current_pass.set(None)
    try:
        yield
    finally:
        _current_pass.reset(token)


def current_hook() -> AttentionHook | None:
    """The hook for attention that is computed now in this thread; None outside the layers of a hooked network."""
    running = _current_pass.get()
    if running is not None and running.depth:
        return running.hook
    count_other_map()
    return None


def count_other_map() -> None:
    """Take note of attention that is not that of the layers over the units."""
    running = _current_pass.get()
    if running is not None:
        running.other_maps += 1


def attention_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    dropout: float,
    options: Mapping[str, object] | None = None,
) -> AttentionInputs:
    """The inputs of attention as a library gives them: heads may be shared, and the mask may be true where one looks.

    Args:
        options: what single families add.
    """
    if mask is not None:
        # The same object for every layer where nothing is cut off: hooks look at it once.
        mask = mask if mask.shape[-1] <= key.shape[2] else mask[..., : key.shape[2]]
        if mask.dtype == torch.bool:
            lowest = torch.finfo(query.dtype).min
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest)
    more, groups = options or {}, query.shape[1] // key.shape[1]
    return AttentionInputs(
        query,
        key if groups == 1 else key.repeat_interleave(groups, 1),
        value if groups == 1 else value.repeat_interleave(groups, 1),
        mask,
        query.shape[-1] ** -0.5 if scale is None else scale,
        dropout,
        cast("float | None", more.get("softcap")),
        cast("Tensor | None", more.get("position_bias")),
        cast("Tensor | None", more.get("s_aux")),
    )


def hooked_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: object
) -> tuple[Tensor, Tensor | None]:
    """The attended values `[batch query head dim]` and the weights softmax(q k / sqrt(dim) + mask).

    The signature is the library's; `options` contain its dropout rate, its scaling and what single families add.
    """
    scaling = cast("float | None", options.get("scaling"))
    dropout = cast("float", options.get("dropout", 0.0)) if module.training else 0.0
    hook = current_hook() or PlainAttention()
    attended, weights = hook.attend(attention_inputs(query, key, value, attention_mask, scaling, dropout, options))
    hook.layers_run += 1
    return attended.transpose(1, 2).contiguous(), weights


def first_float_tensor(values: object) -> Tensor | None:
    """The value itself, or the first tensor of floats in a tuple or mapping."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else None
    if isinstance(values, Mapping):
        values = tuple(values.values())
    candidates = values if isinstance(values, tuple | list) else ()
    return next(
        (candidate for candidate in candidates if isinstance(candidate, Tensor) and candidate.is_floating_point()), None
    )


def layer_input(inputs: tuple[object, ...], named: Mapping[str, object]) -> Tensor | None:
    """The states that a layer reads: its first tensor of floats."""
    positional = first_float_tensor(inputs)
    return first_float_tensor(named.get("hidden_states", named)) if positional is None else positional


def _enter_layer(
    layer: nn.Module, inputs: tuple[object, ...], named: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    running, state = _current_pass.get(), layer_input(inputs, named)
    if running is None or state is None or (new := running.enter_layer(state)) is state:
        return None
    return (
        tuple(new if value is state else value for value in inputs),
        {name: new if value is state else value for name, value in named.items()},
    )


def _leave_layer(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
    running = _current_pass.get()
    if running is not None:
        running.leave_layer(output)


def _leave_words(table: nn.Module, inputs: tuple[object, ...], output: object) -> Tensor | None:
    running, ids = _current_pass.get(), inputs[0] if inputs else None
    if running is None or not isinstance(ids, Tensor) or not isinstance(output, Tensor):
        return None
    return running.leave_words(ids, output)


def hook_words(network: Network, table: str) -> None:
    """Let the table of word vectors of a copy, under all its names, exchange them with the running pass."""
    weight = network.get_submodule(table).get_parameter("weight")
    for module in network.modules():
        if isinstance(module, nn.Embedding) and module.weight is weight:
            module.register_forward_hook(_leave_words)


def _leave_trunk(trunk: nn.Module, inputs: tuple[object, ...], output: object) -> None:
    running = _current_pass.get()
    if running is not None:
        running.hidden = first_float_tensor(output)


def hook_layers(network: Network, stack: str) -> None:
    """Let the layers of a copy, the members of this module list, exchange inputs and outputs with the running pass."""
    for layer in cast("nn.ModuleList", network.get_submodule(stack)):
        layer.register_forward_pre_hook(_enter_layer, with_kwargs=True)
        layer.register_forward_hook(_leave_layer)
    if network.base_model is not network:
        network.base_model.register_forward_hook(_leave_trunk)


def copy_sharing_weights(network: NetworkT) -> NetworkT:
    """The same network with its own modules and configuration, but shared parameters and buffers.

    UserError for a network with an attribute that Python cannot copy, such as a lock or an open connection.
    """
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    try:
        return copy.deepcopy(network, shared)
    except (TypeError, copy.Error) as error:
        name = type(network).__name__
        raise UserError(f"{name} cannot be copied ({error}): give the class a __deepcopy__ that shares it") from error


class WeightsRewritten(Exception):
    """A network is about to change its own weights while it runs."""


def _storage_identity(tensor: Tensor) -> int:
    """The same number for views of the same memory; unlike an address, wrapped and quantized tensors have it too."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


class WeightGuard(TorchFunctionMode):
    """Raises `WeightsRewritten` before a network changes one of its weights in place."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.storages = {_storage_identity(weight) for weight in network.parameters()}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name, first = str(getattr(func, "__name__", "")), args[0] if args else None
        in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        if in_place and isinstance(first, Tensor) and _storage_identity(first) in self.storages:
            raise WeightsRewritten
        return func(*args, **dict(kwargs or {}))


def set_attention_implementation(network: Network, implementation: str | None) -> None:
    """Make every layer of a copy use this attention implementation, None its own, and return plain outputs."""
    from transformers import PreTrainedConfig

    for module in network.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig):
            if implementation is not None:
                config._attn_implementation = implementation
            config.output_attentions = config.output_hidden_states = config.use_cache = False
            config.return_dict = True
    # Recomputing a layer in the backward pass would run its hook twice.
    if network.is_gradient_checkpointing:
        network._set_gradient_checkpointing(enable=False)


def register_attention() -> None:
    """Make our attention function known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION_IMPLEMENTATION, hooked_attention)
    # Without a mask function of the same name the library builds no mask, and padding is silently attended.
    AttentionMaskInterface.register(ATTENTION_IMPLEMENTATION, eager_mask)
