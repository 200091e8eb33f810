"""How a Hugging Face network is opened without a fork and without state.

A network is never touched: we work on its *twin*, which has modules and a configuration of its own but the
same tensors. In the twin every layer calls our attention function, which reads and writes the `Tap` of the
running call; the embedding block and the trunk are *doors* that hand on what they are given, so that what
they compute can be read, replaced and put back. Nothing stays on modules between calls; threads do not meet.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask
from transformers.utils.generic import ModelOutput

from heedful.types import UserError

ATTENTION_IMPLEMENTATION = "heedful"
Network = PreTrainedModel
NetworkConfig = PreTrainedConfig


@dataclass(frozen=True)
class AttentionInputs:
    """What the attention function of one layer is given.

    Args:
        query: `[batch head query dim]`, as key and value.
        mask: what is added to scaled scores, the lowest number where attention may not be; None adds nothing.
        rate: share of weights that fall to dropout; 0 outside training.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    dropout: float

    def scores(self) -> Tensor:
        """q k scale, `[batch head query unit]`."""
        return torch.matmul(self.query, self.key.transpose(2, 3)).mul_(self.scale)


class AttentionHook(ABC):
    """What sits at the attention function of every layer during one call, lowest layer first."""

    @property
    @abstractmethod
    def layers_run(self) -> int:
        """Layers that have run so far."""

    @abstractmethod
    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """What the layer takes from its values `[batch head query dim]`, and its attention where it is known."""


@dataclass
class AttentionRecorder(AttentionHook):
    """What one call shows of its attention, and what it is given in its place.

    Args:
        given: attention `[batch layer head query unit]` to be taken as it is.
        scores: scaled scores of each layer so far, zero where attention may not be; none where it is given.
        attention: the attention of each layer so far, before dropout.
        carried: the module and the values `[batch head unit dim]` of each layer so far.
    """

    replacement: Tensor | None = None
    scores: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    values: list[tuple[nn.Module, Tensor]] = field(default_factory=list)

    @property
    def layers_run(self) -> int:
        """Layers whose attention was read or given."""
        return len(self.attention)

    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """Dropout falls on the weights in training, as in the library's eager function; a given attention is spared."""
        self.values.append((module, inputs.value))
        if self.replacement is not None:
            weights = dropped = self.replace_layer(self.replacement)
        else:
            weights = self.record(inputs.scores(), inputs.mask)
            dropped = nn.functional.dropout(weights, inputs.dropout)
        return torch.matmul(dropped, inputs.value), weights

    def record(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(scores + mask); scores, overwritten where they are masked, and weights are kept."""
        attention = (scores if mask is None else scores + mask).softmax(-1)
        if mask is not None:
            scores.mul_((mask > torch.finfo(mask.dtype).min).to(scores.dtype))
        self.scores.append(scores)
        self.attention.append(attention)
        return attention

    def replace_layer(self, replacement: Tensor) -> Tensor:
        """The attention given for the layer that is running now."""
        layer = len(self.attention)
        if layer >= replacement.shape[1]:
            raise UserError(f"attention was given for {replacement.shape[1]} layers, but the network has more")
        self.attention.append(replacement[:, layer])
        return self.attention[-1]

    def stack_layers(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and attention of all layers, `[batch layer head query unit]`, for the real units `mask`."""
        scores, attention = torch.stack(self.scores, 1), torch.stack(self.attention, 1)
        if not bool(mask.all()):
            # Whoever averages over queries must not hear what padding looks at.
            queries = mask[:, None, None, :, None].to(attention.dtype)
            scores, attention = scores.mul_(queries), attention.mul_(queries)
        return scores, attention


# The tap of the call that runs in this thread. A keyword would do as well, if every family handed keywords on to its
# layers: the ViT of transformers 5.0 to 5.4 drops them.
_current_hook: ContextVar[AttentionHook] = ContextVar("running")


def hooked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """What the layer reads `[batch query head dim]`, and the attention: softmax(q k / sqrt(dim) + mask).

    The signature is the library's; `options` hold its dropout rate and scaling.
    """
    scaling = cast("float | None", options.get("scaling"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rate = cast("float", options.get("dropout", 0.0)) if module.training else 0.0
    reading = AttentionInputs(query, key, value, attention_mask, scale, rate)
    taken, weights = _current_hook.get().attend(module, reading)
    return taken.transpose(1, 2).contiguous(), weights


AttentionInterface.register(ATTENTION_IMPLEMENTATION, hooked_attention)
# Without a mask function of the same name the library makes no mask, and padding is silently attended.
AttentionMaskInterface.register(ATTENTION_IMPLEMENTATION, eager_mask)


def copy_sharing_weights(network: Network) -> Network:
    """The same network with modules and configuration of its own; parameters and buffers are shared."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, shared)


def set_attention_implementation(network: Network, implementation: str) -> None:
    """Makes every layer of a twin use this attention implementation and give back plain outputs."""
    for module in network.modules():
        config = vars(module).get("config")
        if isinstance(config, NetworkConfig):
            config._attn_implementation = implementation
            config.output_attentions = config.output_hidden_states = config.use_cache = False
            config.return_dict = True
    # Recomputing a layer in the backward pass would run its tap twice.
    if network.is_gradient_checkpointing:
        network._set_gradient_checkpointing(enable=False)


def hook_network(network: Network) -> Network:
    """A network's twin with our attention and its doors; what cannot be opened is refused by name."""
    name = type(network).__name__
    if not network._supports_attention_backend:
        raise UserError(
            f"{name} computes attention in its own way, out of our reach: use a family that goes through "
            "transformers' AttentionInterface, such as BERT, DistilBERT, RoBERTa, XLM-R, ELECTRA or ViT"
        )
    if network.base_model is network:
        raise UserError(
            f"{name} has no head: load it with AutoModelForSequenceClassification or ...ImageClassification"
        )
    if "embeddings" not in dict(network.base_model.named_children()):
        raise UserError(f"{name} has no embedding block apart from its layers, so that it cannot be opened")
    own = copy_sharing_weights(network)
    set_attention_implementation(own, ATTENTION_IMPLEMENTATION)
    # On the instance and not as hooks: a hook could not keep a block from running on what it computed before.
    vars(embedding_block(own))["forward"] = _pass_through_embeddings
    vars(own.base_model)["forward"] = _pass_through_states
    return own


def embedding_block(network: Network) -> nn.Module:
    """The embedding block of a network."""
    return network.base_model.get_submodule("embeddings")


def compute_embeddings(network: Network, inputs: dict[str, Tensor]) -> Tensor:
    """Output of the whole embedding block `[batch unit width]`: words, positions and segments, normalised."""
    block = embedding_block(network)
    return cast("Tensor", type(block).forward(block, **inputs))


def run_layers(network: Network, inputs: dict[str, Tensor], hook: AttentionHook) -> ModelOutput:
    """States of the last layer, and whatever else the head of this family reads."""
    trunk = network.base_model
    token = _current_hook.set(hook)
    try:
        return cast("ModelOutput", type(trunk).forward(trunk, **inputs))
    finally:
        _current_hook.reset(token)


def compute_logits(network: Network, states: ModelOutput, inputs: dict[str, Tensor]) -> Tensor:
    """Logits `[batch output]` of the head on these states; heads that pool over units need the mask."""
    return cast("Tensor", network(**inputs, given=states).logits)


def _pass_through_embeddings(*inputs: object, **named: object) -> Tensor:
    """The one tensor of vectors among the arguments: `inputs_embeds`, or `pixel_values` in its place."""
    (given,) = (value for value in _tensors((*inputs, *named.values())) if value.is_floating_point())
    return given


def _pass_through_states(*inputs: object, given: ModelOutput, **named: object) -> ModelOutput:
    return given


def _tensors(values: Iterable[object]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]
