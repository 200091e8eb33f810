"""Scalar mix pooling: a transformer that decides on the means of all its layers, not on its first unit alone.

The pooled state is gamma * sum_l softmax(w)_l * mean_t h_l,t over the layers l, the input of the first one included,
and the real units t (Fernandes et al. 2022). It starts as the plain mean of all layers, w = 0 and gamma = 1. Only the
head is another one: attention and embeddings are read and replaced as in any transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType

import torch
from torch import Generator, Tensor, nn

from heedful.core.types import Plan, Task, UserError
from heedful.models.initialising import unfilled
from heedful.models.layers import layers_of
from heedful.models.reading import reads_images
from heedful.models.tapping import Network, NetworkConfig
from heedful.models.transformer import TransformerModel

_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"electra": nn.GELU, "distilbert": nn.ReLU}
"""What the library's own heads of these families use; all others use tanh."""
_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
"""Where configurations say how much their head drops, most specific first."""

# States of the call that runs in this thread, from the first layer's input up to the layer that ran last. The trunk of
# the library hands on the last ones only, and hooks of its own would stay on the modules.
_states: ContextVar[tuple[Tensor, ...]] = ContextVar("states", default=())


@dataclass(frozen=True)
class ScalarMix(Plan):
    """The plan's transformer with a scalar mix of all layers and a new head in place of its own.

    The head is dense, activation, dropout and output, drawn from the generator; for images one linear map.
    """

    plan: Plan

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The plan's model with the other head, in eval mode."""
        model = self.plan.build(task, embeddings, generator)
        if not isinstance(model, TransformerModel):
            raise UserError(f"{type(self.plan).__name__} is no transformer, so that it has no layers to mix")
        network = model.network
        if "mix" in dict(network.named_children()):
            raise UserError("a scalar mix stands in this plan already: one is enough")
        head = mixed_head(network, task.outputs, generator).eval()
        _behead(network)
        network.add_module("mix", head)
        for layer in layers_of(network):
            # On the instance, as the doors of tapping: a twin's layers are nobody else's.
            vars(layer)["forward"] = MethodType(_noting, layer)
        vars(network)["forward"] = MethodType(_deciding, network)
        model.notes = (*model.notes, "in place of its own head: a scalar mix of all layers and a head drawn at random")
        return model


class MixedHead(nn.Module):
    """Logits of a scalar mix of the means of all layers.

    Args:
        layers: states that are mixed, the input of the first layer included.
        head: from the pooled state to logits.
    """

    def __init__(self, layers: int, head: nn.Module) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.head = head

    def forward(self, states: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        """Logits `[batch output]` of the states `[batch unit dim]` of each layer on the real units `mask`."""
        stacked = torch.stack([_mean(state, mask) for state in states])
        pooled = torch.einsum("l,lbd->bd", self.weights.softmax(0), stacked)
        logits: Tensor = self.head(self.gamma * pooled)
        return logits


def mixed_head(network: Network, outputs: int, generator: Generator) -> MixedHead:
    """A head with w = 0, gamma = 1, weights ~ N(0, initializer_range) and biases 0."""
    config = network.config
    with unfilled():
        head = nn.Sequential(*_parts(config, outputs, images=reads_images(network)))
    head.to_empty(device=generator.device)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.endswith("weight"):
                parameter.normal_(0.0, config.initializer_range, generator=generator)
            else:
                parameter.zero_()
    return MixedHead(config.num_hidden_layers + 1, head).to(network.device, network.dtype)


def _parts(config: NetworkConfig, outputs: int, *, images: bool) -> list[nn.Module]:
    width = config.hidden_size
    if images:
        return [nn.Linear(width, outputs)]
    activation = _ACTIVATIONS.get(config.model_type, nn.Tanh)
    rates = (getattr(config, name, None) for name in _DROPOUTS)
    rate = next((rate for rate in rates if rate is not None), 0.1)
    return [nn.Linear(width, width), activation(), nn.Dropout(rate), nn.Linear(width, outputs)]


def _behead(network: Network) -> None:
    """Takes away what only the old head used, so that nothing untrained is kept or counted."""
    for name, part in list(network.named_children()):
        if part is not network.base_model:
            delattr(network, name)
    if "pooler" in dict(network.base_model.named_children()):
        network.base_model.register_module("pooler", None)


def _mean(state: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return state.mean(1)
    real = mask.to(state.dtype).unsqueeze(-1)
    return (state * real).sum(1) / real.sum(1)


def _noting(layer: nn.Module, states: Tensor, *inputs: object, **named: object) -> Tensor | tuple[Tensor, ...]:
    """What the layer gives, also noted; the first layer notes its input beforehand."""
    found: Tensor | tuple[Tensor, ...] = type(layer).forward(layer, states, *inputs, **named)
    before = _states.get()
    # A layer goes on where the one below ended; whatever else was noted belongs to a call that failed.
    before = before if before and before[-1] is states else (states,)
    _states.set((*before, found if isinstance(found, Tensor) else found[0]))
    return found


@dataclass(frozen=True)
class _Decided:
    logits: Tensor


def _deciding(network: Network, *, given: object, attention_mask: Tensor | None = None) -> _Decided:
    """The forward of a network whose trunk has run just before."""
    states, mix = _states.get(), network.get_submodule("mix")
    _states.set(())
    needed = network.config.num_hidden_layers + 1
    if len(states) != needed:
        raise RuntimeError(f"{len(states)} states were noted instead of {needed}: layers do not follow each other")
    return _Decided(mix(states, attention_mask))
