"""A small vision transformer, trained from scratch on small images: a teacher where no pretrained weights are at hand.

It is the library's own ViT (class unit, learned positions, normalisation before each block), only smaller.

Students with fewer layers: the first layers of a transformer, under a head of the same kind.

The layers that are kept have the weights that the plan gives them, pretrained ones included; the rest is cut off
before anything is trained or saved.

Scalar mix pooling: a transformer that decides on the means of all its layers, not on its first unit alone.

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

from heedful.models._attention_hooks import Network, NetworkConfig
from heedful.models.encoders import meta_device
from heedful.models.transformer import TinyTransformer, TransformerModel, find_layers, reads_images
from heedful.types import Architecture, Task, UserError


@dataclass(frozen=True)
class SmallViT(Architecture):
    """A vision transformer with fresh weights.

    Args:
        image: channels, height and width of the images that `Patches` cuts.
        patch: side of a patch in pixels, the same as that of `Patches`.
        dropout: share of states and attention weights dropped in training.
        spread: standard deviation of its weights; with the usual 0.02, chosen for large widths, learning starts slowly.
    """

    image_shape: tuple[int, int, int] = (1, 28, 28)
    patch_size: int = 4
    layers: int = 4
    heads: int = 4
    width: int = 64
    dropout: float = 0.1
    initializer_range: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"SmallViT: a width of {self.width} cannot be divided among {self.heads} heads")
        _, height, width = self.image_shape
        if height % self.patch_size or width % self.patch_size:
            raise UserError(f"SmallViT: {height} x {width} pixels do not part into patches of {self.patch_size}")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        plan = TinyTransformer(
            "vit",
            self.layers,
            self.heads,
            self.width,
            image_shape=self.image_shape,
            patch_size=self.patch_size,
            initializer_range=self.initializer_range,
        )
        drawn = plan.build(task, embeddings, generator).network
        drawn.config.hidden_dropout_prob = drawn.config.attention_probs_dropout_prob = self.dropout
        # Layers learn their dropout when they are made: made again, they take over the weights drawn before.
        with torch.random.fork_rng(devices=[]):
            network = type(drawn)(drawn.config)
        network.load_state_dict(drawn.state_dict())
        return TransformerModel.wrap(network, task).eval()


@dataclass(frozen=True)
class TruncatedTransformer(Architecture):
    """The plan's transformer with only its first `layers` layers.

    Below a scalar mix it stands inside: `ScalarMix(Shortened(plan, 4))`.
    """

    architecture: Architecture
    layers: int

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise UserError(f"a transformer cannot be shortened to {self.layers} layers: keep at least 1")

    def describe(self) -> dict[str, str]:
        """The name of the whole transformer and the number of layers kept."""
        return {"encoder": f"{self.architecture.describe()['encoder']}-{self.layers}-layers", "attention": "self"}

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The plan's model without its upper layers, in eval mode; the notes say how many there were."""
        model = self.architecture.build(task, embeddings, generator)
        name = type(self.architecture).__name__
        if not isinstance(model, TransformerModel):
            raise UserError(f"{name} is no transformer, so that it has no layers to leave out; shorten its plan itself")
        network = model.network
        if "mix" in dict(network.named_children()):
            raise UserError("a scalar mix weighs all layers: write ScalarMix(Shortened(plan, n)), not the reverse")
        stack = find_layers(network)
        if self.layers > len(stack):
            raise UserError(f"{name} has {len(stack)} layers: it cannot be shortened to {self.layers}")
        model.notes = (*model.notes, f"only the first {self.layers} of {len(stack)} layers are kept")
        del stack[self.layers :]
        network.config.num_hidden_layers = self.layers
        return model


_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"electra": nn.GELU, "distilbert": nn.ReLU}
"""What the library's own heads of these families use; all others use tanh."""
_DROPOUT_SETTINGS = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
"""Where configurations say how much their head drops, most specific first."""

# States of the call that runs in this thread, from the first layer's input up to the layer that ran last. The trunk of
# the library hands on the last ones only, and hooks of its own would stay on the modules.
_layer_states: ContextVar[tuple[Tensor, ...]] = ContextVar("states", default=())


@dataclass(frozen=True)
class ScalarMix(Architecture):
    """The plan's transformer with a scalar mix of all layers and a new head in place of its own.

    The head is dense, activation, dropout and output, drawn from the generator; for images one linear map.
    """

    architecture: Architecture

    def describe(self) -> dict[str, str]:
        """As the transformer whose layers are mixed."""
        return self.architecture.describe()

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The plan's model with the other head, in eval mode."""
        model = self.architecture.build(task, embeddings, generator)
        if not isinstance(model, TransformerModel):
            raise UserError(f"{type(self.architecture).__name__} is no transformer, so that it has no layers to mix")
        network = model.network
        if "mix" in dict(network.named_children()):
            raise UserError("a scalar mix stands in this plan already: one is enough")
        head = build_scalar_mix_head(network, task.num_outputs, generator).eval()
        _remove_head(network)
        network.add_module("mix", head)
        for layer in find_layers(network):
            # On the instance, as the doors of tapping: a twin's layers are nobody else's.
            vars(layer)["forward"] = MethodType(_record_layer_output, layer)
        vars(network)["forward"] = MethodType(_scalar_mix_forward, network)
        model.notes = (*model.notes, "in place of its own head: a scalar mix of all layers and a head drawn at random")
        return model


class ScalarMixHead(nn.Module):
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
        stacked = torch.stack([_masked_mean(state, mask) for state in states])
        pooled = torch.einsum("l,lbd->bd", self.weights.softmax(0), stacked)
        logits: Tensor = self.head(self.gamma * pooled)
        return logits


def build_scalar_mix_head(network: Network, outputs: int, generator: Generator) -> ScalarMixHead:
    """A head with w = 0, gamma = 1, weights ~ N(0, initializer_range) and biases 0."""
    config = network.config
    with meta_device():
        head = nn.Sequential(*_head_layers(config, outputs, images=reads_images(network)))
    head.to_empty(device=generator.device)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.endswith("weight"):
                parameter.normal_(0.0, config.initializer_range, generator=generator)
            else:
                parameter.zero_()
    return ScalarMixHead(config.num_hidden_layers + 1, head).to(network.device, network.dtype)


def _head_layers(config: NetworkConfig, outputs: int, *, images: bool) -> list[nn.Module]:
    width = config.hidden_size
    if images:
        return [nn.Linear(width, outputs)]
    activation = _ACTIVATIONS.get(config.model_type, nn.Tanh)
    rates = (getattr(config, name, None) for name in _DROPOUT_SETTINGS)
    rate = next((rate for rate in rates if rate is not None), 0.1)
    return [nn.Linear(width, width), activation(), nn.Dropout(rate), nn.Linear(width, outputs)]


def _remove_head(network: Network) -> None:
    """Takes away what only the old head used, so that nothing untrained is kept or counted."""
    for name, part in list(network.named_children()):
        if part is not network.base_model:
            delattr(network, name)
    if "pooler" in dict(network.base_model.named_children()):
        network.base_model.register_module("pooler", None)


def _masked_mean(state: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return state.mean(1)
    real = mask.to(state.dtype).unsqueeze(-1)
    return (state * real).sum(1) / real.sum(1)


def _record_layer_output(
    layer: nn.Module, states: Tensor, *inputs: object, **named: object
) -> Tensor | tuple[Tensor, ...]:
    """What the layer gives, also noted; the first layer notes its input beforehand."""
    found: Tensor | tuple[Tensor, ...] = type(layer).forward(layer, states, *inputs, **named)
    before = _layer_states.get()
    # A layer goes on where the one below ended; whatever else was noted belongs to a call that failed.
    before = before if before and before[-1] is states else (states,)
    _layer_states.set((*before, found if isinstance(found, Tensor) else found[0]))
    return found


@dataclass(frozen=True)
class _LogitsOutput:
    logits: Tensor


def _scalar_mix_forward(network: Network, *, given: object, attention_mask: Tensor | None = None) -> _LogitsOutput:
    """The forward of a network whose trunk has run just before."""
    states, mix = _layer_states.get(), network.get_submodule("mix")
    _layer_states.set(())
    needed = network.config.num_hidden_layers + 1
    if len(states) != needed:
        raise RuntimeError(f"{len(states)} states were noted instead of {needed}: layers do not follow each other")
    return _LogitsOutput(mix(states, attention_mask))
