"""Access to the attention, embeddings and states of a Hugging Face network, without a fork and without state.

A network is never modified: we work on a *copy* with its own modules and configuration but the same tensors. In the
copy every layer calls our attention function, which reads and writes the `AttentionHook` of the running call; the
forward methods of the embedding block and of the trunk pass their input through, so that what they compute can be read,
replaced and passed back. Nothing is stored on modules between calls, and threads do not interfere.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from heedful.types import UserError

if TYPE_CHECKING:  # transformers is imported where it is used: its import costs 100 MB, and reports do without it
    from transformers import PreTrainedModel as Network
    from transformers.utils.generic import ModelOutput

ATTENTION_IMPLEMENTATION = "heedful"
NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of the attention function of one layer.

    Args:
        query: `[batch head query dim]`, as key and value.
        mask: added to the scaled scores, the lowest number where attention may not be; None adds nothing.
        dropout: rate of dropout on the weights; 0 outside training.
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
    """Replaces the attention function of every layer during one call, lowest layer first."""

    layers_run: int = 0

    @abstractmethod
    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """The attended values `[batch head query dim]`, and the attention weights if they are computed."""


@dataclass
class AttentionRecorder(AttentionHook):
    """Records the attention of one call, or replaces it.

    Args:
        replacement: attention `[batch layer head query unit]` to use in place of the network's own.
        scores: scaled scores of each layer so far, zero where attention may not be; empty under a replacement.
        attention: the attention of each layer so far, before dropout.
        values: the module and the values `[batch head unit dim]` of each layer so far.
    """

    replacement: Tensor | None = None
    scores: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    values: list[tuple[nn.Module, Tensor]] = field(default_factory=list)

    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """In training, dropout is applied to the weights as in the library's eager function, not to a replacement."""
        self.values.append((module, inputs.value))
        if self.replacement is not None:
            if self.layers_run >= self.replacement.shape[1]:
                raise UserError(f"attention has {self.replacement.shape[1]} layers, but the network has more")
            weights = dropped = self.replacement[:, self.layers_run]
        else:
            scores, mask = inputs.scores(), inputs.mask
            weights = (scores if mask is None else scores + mask).softmax(-1)
            if mask is not None:
                scores.mul_((mask > torch.finfo(mask.dtype).min).to(scores.dtype))
            self.scores.append(scores)
            dropped = nn.functional.dropout(weights, inputs.dropout)
        self.attention.append(weights)
        return torch.matmul(dropped, inputs.value), weights

    def stack_layers(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and attention of all layers, `[batch layer head query unit]`, zero in the query rows of padding."""
        scores, attention = torch.stack(self.scores, 1), torch.stack(self.attention, 1)
        if not bool(mask.all()):
            queries = mask[:, None, None, :, None].to(attention.dtype)
            scores, attention = scores.mul_(queries), attention.mul_(queries)
        return scores, attention


@dataclass
class AttendedValues(AttentionHook):
    """Gives these values in place of what attention would attend to, in a network of one layer.

    Args:
        values: `[batch head query dim]`.
    """

    values: Tensor

    def attend(self, module: nn.Module, inputs: AttentionInputs) -> tuple[Tensor, None]:
        """The given values; queries, keys and values of the layer are not used."""
        return self.values, None


# The hook of the call that runs in this thread. Not a keyword: the ViT of transformers 5.0 to 5.4 drops keywords.
_current_hook: ContextVar[AttentionHook] = ContextVar("current_hook")


def hooked_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: object
) -> tuple[Tensor, Tensor | None]:
    """The attended values `[batch query head dim]` and the weights softmax(q k / sqrt(dim) + mask).

    The signature is the library's; `options` contain its dropout rate and scaling.
    """
    scaling = cast("float | None", options.get("scaling"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    dropout = cast("float", options.get("dropout", 0.0)) if module.training else 0.0
    inputs = AttentionInputs(query, key, value, attention_mask, scale, dropout)
    hook = _current_hook.get()
    attended, weights = hook.attend(module, inputs)
    hook.layers_run += 1
    return attended.transpose(1, 2).contiguous(), weights


def copy_sharing_weights(network: NetworkT) -> NetworkT:
    """The same network with its own modules and configuration, but shared parameters and buffers."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, shared)


def set_attention_implementation(network: Network, implementation: str) -> None:
    """Make every layer of a copy use this attention implementation and return plain outputs."""
    from transformers import PreTrainedConfig

    for module in network.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig):
            config._attn_implementation = implementation
            config.output_attentions = config.output_hidden_states = config.use_cache = False
            config.return_dict = True
    # Recomputing a layer in the backward pass would run its hook twice.
    if network.is_gradient_checkpointing:
        network._set_gradient_checkpointing(enable=False)


def hook_network(network: Network) -> Network:
    """A copy of the network with our attention; raises a `UserError` for networks that cannot be hooked."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(ATTENTION_IMPLEMENTATION, hooked_attention)
    # Without a mask function of the same name the library builds no mask, and padding is silently attended.
    AttentionMaskInterface.register(ATTENTION_IMPLEMENTATION, eager_mask)
    name = type(network).__name__
    if not network._supports_attention_backend:
        raise UserError(
            f"{name} does not use transformers' AttentionInterface: use a family that does, such as BERT, DistilBERT, "
            "RoBERTa, XLM-R, ELECTRA or ViT"
        )
    if network.base_model is network:
        raise UserError(
            f"{name} has no head: load it with AutoModelForSequenceClassification or AutoModelForImageClassification"
        )
    if "embeddings" not in dict(network.base_model.named_children()):
        raise UserError(f"{name} has no separate embedding block: this family is not supported")
    hooked = copy_sharing_weights(network)
    set_attention_implementation(hooked, ATTENTION_IMPLEMENTATION)
    # On the instance and not as module hooks, which could not keep a block from running.
    vars(embedding_block(hooked))["forward"] = _pass_through_embeddings
    if (projection := _embedding_projection(hooked)) is not None:
        vars(projection)["forward"] = _pass_through_embeddings
    vars(hooked.base_model)["forward"] = _pass_through_states
    return hooked


def embedding_block(network: Network) -> nn.Module:
    """The embedding block of a network."""
    return network.base_model.get_submodule("embeddings")


def _embedding_projection(network: Network) -> nn.Module | None:
    """The layer between narrow word vectors and the first layer of the stack, where a family has one."""
    modules = dict(network.base_model.named_modules())
    # ELECTRA and ALBERT.
    return modules.get("embeddings_project", modules.get("encoder.embedding_hidden_mapping_in"))


def compute_embeddings(network: Network, inputs: dict[str, Tensor]) -> Tensor:
    """The input of the first layer `[batch unit width]`: words, positions and segments, normalised and projected."""
    block, projection = embedding_block(network), _embedding_projection(network)
    embeddings = cast("Tensor", type(block).forward(block, **inputs))
    return embeddings if projection is None else cast("Tensor", type(projection).forward(projection, embeddings))


def run_layers(network: Network, inputs: dict[str, Tensor], hook: AttentionHook) -> ModelOutput:
    """States of the last layer, and other outputs that the head of this family reads."""
    trunk = network.base_model
    token = _current_hook.set(hook)
    try:
        return cast("ModelOutput", type(trunk).forward(trunk, **inputs))
    finally:
        _current_hook.reset(token)


def _pass_through_embeddings(*inputs: object, **named: object) -> Tensor:
    """The one tensor of floats among the arguments: `inputs_embeds`, or `pixel_values` in its place."""
    arguments = (*inputs, *named.values())
    (embeddings,) = (value for value in arguments if isinstance(value, Tensor) and value.is_floating_point())
    return embeddings


def _pass_through_states(*inputs: object, given: ModelOutput, **named: object) -> ModelOutput:
    return given
