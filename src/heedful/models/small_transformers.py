"""Variants of transformers: small ones for words or images, the first layers of one, and scalar mix pooling."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Annotated, cast

import torch
from torch import Generator, Tensor, nn

from heedful.models.model_files import network_class
from heedful.models.network_anatomy import reads_images
from heedful.models.transformer import TransformerModel
from heedful.option_bounds import Bounds, check_options
from heedful.seeding import temporary_seed
from heedful.types import Architecture, Task, UserError

if TYPE_CHECKING:  # imported where it is used: see attention_hooks
    from transformers import PreTrainedConfig as NetworkConfig
    from transformers import PreTrainedModel as Network
    from transformers.modeling_outputs import SequenceClassifierOutput


@dataclass(frozen=True)
class SmallViT(Architecture):
    """The library's ViT (class token, learned positions, pre-norm) in a small size, trained from scratch.

    Args:
        image_shape: channels, height and width of the images that `Patches` cuts.
        patch_size: side of a patch in pixels, the same as that of `Patches`.
        dropout: of states and attention weights, in training.
        initializer_range: standard deviation of the weights; the usual 0.02 suits large widths and learns slowly here.
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
            raise UserError(f"SmallViT: width {self.width} is not divisible by {self.heads} heads")
        _, height, width = self.image_shape
        if height % self.patch_size or width % self.patch_size:
            raise UserError(f"SmallViT: {height} x {width} pixels are not divisible into patches of {self.patch_size}")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        from transformers import AutoConfig

        config = AutoConfig.for_model(
            "vit",
            num_labels=task.num_outputs,
            num_channels=self.image_shape[0],
            image_size=self.image_shape[1:],
            patch_size=self.patch_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            initializer_range=self.initializer_range,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )
        return TransformerModel.wrap(build_network(config, generator), task).eval()


@dataclass(frozen=True)
class TruncatedTransformer(Architecture):
    """The first `layers` layers of a transformer, pretrained weights included, under its head.

    Combined with a scalar mix: `ScalarMix(TruncatedTransformer(architecture, 4))`.
    """

    architecture: Architecture
    layers: Annotated[int, Bounds(1)]

    def __post_init__(self) -> None:
        check_options(self)

    def describe(self) -> dict[str, str]:
        """The name of the whole transformer and the number of layers kept."""
        return {"encoder": f"{self.architecture.describe()['encoder']}-{self.layers}-layers", "attention": "self"}

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The model without its upper layers, in eval mode; the notes say how many there were."""
        model = self.architecture.build(task, embeddings, generator)
        name = type(self.architecture).__name__
        if not isinstance(model, TransformerModel):
            raise UserError(f"{name} is not a transformer: it has no layers to truncate")
        network = model.network
        if "mix" in dict(network.named_children()):
            raise UserError(
                "a scalar mix uses all layers: write ScalarMix(TruncatedTransformer(architecture, n)) instead"
            )
        model.check_single_stack()
        stack = model.layers
        if self.layers > len(stack):
            raise UserError(f"{name} has {len(stack)} layers: it cannot be truncated to {self.layers}")
        model.notes = (*model.notes, f"only the first {self.layers} of {len(stack)} layers are kept")
        del stack[self.layers :]
        network.config.num_hidden_layers = self.layers
        model.count_layers()
        return model


_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"electra": nn.GELU, "distilbert": nn.ReLU}
"""Activations of the library's own heads of these families; all others use tanh."""
_DROPOUT_SETTINGS = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
"""Names of the dropout rate of the head in configurations, most specific first."""

# States of the call that runs in this thread: the input of the first layer and the output of each layer so far. The
# library's trunk returns the last ones only, and its hooks would stay on the modules.
_layer_states: ContextVar[tuple[Tensor, ...]] = ContextVar("layer_states", default=())


@dataclass(frozen=True)
class ScalarMix(Architecture):
    """A transformer with a scalar mix of all layers and a new head in place of its own (Fernandes et al. 2022).

    The pooled state is gamma * sum_l softmax(w)_l * mean_t h_l,t over the layers l (and the input of the first) and
    the real units t; initially w = 0 and gamma = 1, the plain mean. The head is dense, activation, dropout and output;
    for images one linear layer.
    """

    architecture: Architecture

    def describe(self) -> dict[str, str]:
        """As the transformer whose layers are mixed."""
        return self.architecture.describe()

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """The model with the new head, in eval mode."""
        model = self.architecture.build(task, embeddings, generator)
        if not isinstance(model, TransformerModel):
            raise UserError(f"{type(self.architecture).__name__} is not a transformer: it has no layers to mix")
        network = model.network
        if "mix" in dict(network.named_children()):
            raise UserError("this architecture already has a scalar mix: use one")
        model.check_single_stack()
        head = build_scalar_mix_head(model, task.num_outputs, generator).eval()
        for name, child in list(network.named_children()):
            if child is not network.base_model:
                delattr(network, name)
        if "pooler" in dict(network.base_model.named_children()):
            network.base_model.register_module("pooler", None)
        network.add_module("mix", head)
        for layer in model.layers:
            # On the instance: the layers of a copy belong to this model only.
            vars(layer)["forward"] = MethodType(_record_layer_output, layer)
        vars(network)["forward"] = MethodType(_scalar_mix_forward, network)
        model.notes = (*model.notes, "its own head is replaced by a scalar mix of all layers and a new head")
        return model


class ScalarMixHead(nn.Module):
    """Logits of a scalar mix of the means of all layers.

    Args:
        layers: number of mixed states, the input of the first layer included.
        head: from the pooled state to logits.
    """

    def __init__(self, layers: int, head: nn.Module) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.head = head

    def forward(self, states: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        """Logits `[batch output]` of the states `[batch unit dim]` of each layer on the real units `mask`."""
        stacked = torch.stack(states)
        if mask is None:
            means = stacked.mean(2)
        else:
            real = mask.to(stacked.dtype).unsqueeze(-1)
            means = (stacked * real).sum(2) / real.sum(1)
        pooled = torch.einsum("l,lbd->bd", self.weights.softmax(0), means)
        logits: Tensor = self.head(self.gamma * pooled)
        return logits


def build_scalar_mix_head(model: TransformerModel, outputs: int, generator: Generator) -> ScalarMixHead:
    """A head with w = 0, gamma = 1, weights ~ N(0, initializer_range) and biases 0."""
    network, width = model.network, model.stack.width
    config = network.config
    rates = (getattr(config, name, None) for name in _DROPOUT_SETTINGS)
    rate = next((rate for rate in rates if rate is not None), 0.1)
    with torch.device("meta"):
        head = nn.Sequential(nn.Linear(width, outputs))
        if not reads_images(network):
            activation = _ACTIVATIONS.get(config.model_type, nn.Tanh)
            head = nn.Sequential(nn.Linear(width, width), activation(), nn.Dropout(rate), *head)
    head.to_empty(device=generator.device)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.endswith("weight"):
                parameter.normal_(0.0, config.initializer_range, generator=generator)
            else:
                parameter.zero_()
    return ScalarMixHead(model.stack.layers + 1, head).to(network.device, network.dtype)


def _record_layer_output(
    layer: nn.Module, states: Tensor, *inputs: object, **named: object
) -> Tensor | tuple[Tensor, ...]:
    """The output of the layer, which is also recorded; the first layer records its input too."""
    output: Tensor | tuple[Tensor, ...] = type(layer).forward(layer, states, *inputs, **named)
    before = _layer_states.get()
    # The input of a layer is the output of the one below; other recorded states belong to a call that failed.
    before = before if before and before[-1] is states else (states,)
    _layer_states.set((*before, output if isinstance(output, Tensor) else output[0]))
    return output


def _scalar_mix_forward(network: Network, **inputs: Tensor) -> SequenceClassifierOutput:
    """The forward pass of a network whose trunk records the states of its layers."""
    from transformers.modeling_outputs import SequenceClassifierOutput

    mix = cast("ScalarMixHead", network.get_submodule("mix"))
    _layer_states.set(())
    network.base_model(**inputs)
    states = _layer_states.get()
    _layer_states.set(())
    if len(states) != len(mix.weights):
        raise RuntimeError(
            f"{len(states)} states were recorded instead of {len(mix.weights)}: the layers are not sequential"
        )
    return SequenceClassifierOutput(logits=mix(states, inputs.get("attention_mask")))


@dataclass(frozen=True)
class SmallTransformer(Architecture):
    """A small transformer trained from scratch on whole words, initialised with word vectors.

    Args:
        max_positions: longest text in tokens, special tokens included.
        dropout: of states and attention weights, in training.
        initializer_range: standard deviation of the weights.
    """

    layers: int = 1
    heads: int = 4
    width: int = 64
    max_positions: int = 512
    dropout: float = 0.1
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"SmallTransformer: width {self.width} is not divisible by {self.heads} heads")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model whose word table is `embeddings`, projected to `width`; the other weights are random."""
        from transformers import AutoConfig

        if embeddings is None or not len(embeddings):
            raise UserError("SmallTransformer reads word ids and needs word vectors: use the tokenization Words()")
        vocabulary, width = embeddings.shape
        # ELECTRA is the only family whose word vectors can differ in width from the states.
        config = AutoConfig.for_model(
            "electra",
            num_labels=task.num_outputs,
            vocab_size=vocabulary,
            embedding_size=width,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.max_positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            initializer_range=self.initializer_range,
        )
        network = build_network(config, generator)
        with torch.no_grad():
            table = network.get_input_embeddings().get_parameter("weight")
            table.copy_(embeddings)
            table[0].zero_()
        return TransformerModel.wrap(network, task).eval()


def build_network(config: NetworkConfig, generator: Generator) -> Network:
    """A classifier with this configuration and weights drawn from the generator."""
    with temporary_seed(int(torch.randint(2**62, (), generator=generator))):
        return network_class(config, config.model_type)(config)
