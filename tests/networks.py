"""Tiny transformers and batches for tests: each family with random weights, texts of random ids, images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from heedful.data.patches import unfold
from heedful.models.acceptance import open_layers
from heedful.models.attention_hooks import set_attention_implementation
from heedful.models.network_anatomy import fold_images
from heedful.models.small_transformers import build_network
from heedful.models.transformer import TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.types import Architecture, Batch, Task

FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "electra", "vit")
"""Families on which every number is checked; `test_model_support` tries all that transformers knows."""
TEXT_FAMILIES = tuple(family for family in FAMILIES if family != "vit")


@dataclass(frozen=True)
class TinyTransformer(Architecture):
    """A tiny transformer with random weights, for tests and demonstrations.

    Args:
        max_positions: longest text in tokens, for text families.
        image_shape: channels, height and width of the images, for ViT, read in patches of `patch_size` x `patch_size`.
        initializer_range: standard deviation of the weights; the usual 0.02 would give nearly uniform attention.
    """

    family: str = "bert"
    layers: int = 2
    heads: int = 2
    width: int = 16
    vocab_size: int = 50
    max_positions: int = 32
    image_shape: tuple[int, int, int] = (1, 8, 8)
    patch_size: int = 4
    initializer_range: float = 0.2

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        # Not by `TransformerModel.wrap`: its check of the logits takes most of the time and has tests of its own.
        return TransformerModel(open_layers(build_network(self.config(task), generator), "interface"), task).eval()

    def config(self, task: Task) -> PreTrainedConfig:
        """The configuration of the network."""
        settings: dict[str, int | float | tuple[int, int]] = {
            "num_labels": task.num_outputs,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "hidden_dim" if self.family == "distilbert" else "intermediate_size": 2 * self.width,
            "initializer_range": self.initializer_range,
        }
        if self.family == "vit":
            settings |= {
                "num_channels": self.image_shape[0],
                "image_size": self.image_shape[1:],
                "patch_size": self.patch_size,
            }
        else:
            reserved = 2 if "roberta" in self.family else 0
            settings |= {"vocab_size": self.vocab_size, "max_position_embeddings": self.max_positions + reserved}
        if self.family == "electra":
            settings["embedding_size"] = 2 * self.width
        return AutoConfig.for_model(self.family, **settings)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal to 1e-8 in float64, 1e-5 in float32; infinities must agree."""
    tolerance = 1e-8 if expected.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def texts(vocabulary: int = 50) -> Batch:
    """Three pairs of random ids of length 7, 5 and 3, with two segments."""
    draw = Generator().manual_seed(3)
    mask = torch.arange(7) < torch.tensor([[7], [5], [3]])
    inputs = torch.randint(3, vocabulary, (3, 7), generator=draw).masked_fill(~mask, 0)
    words = torch.arange(7).sub(1).expand(3, 7).masked_fill(~mask, -1)
    return Batch(("a", "b", "c"), inputs, mask, ((words > 1) & mask).long(), words)


def pixels(channels: int = 1, size: tuple[int, int] = (8, 8)) -> Tensor:
    """Three images of noise."""
    return torch.rand(3, channels, *size, generator=Generator().manual_seed(4), dtype=torch.float64)


def images(channels: int = 1, size: tuple[int, int] = (8, 8)) -> Batch:
    """The same images as patches of 4 x 4 behind a class token."""
    inputs = nn.functional.pad(unfold(pixels(channels, size), 4), (0, 0, 1, 0))
    units = inputs.shape[1]
    words = torch.arange(units).sub(1).expand(3, units)
    mask = torch.ones(3, units, dtype=torch.bool)
    return Batch(("a", "b", "c"), inputs, mask, torch.zeros(3, units, dtype=torch.long), words)


def batch_of(family: str) -> Batch:
    """A batch that this family reads."""
    return images() if family == "vit" else texts()


def tiny(family: str, seed: int = 1) -> TransformerModel:
    """A `TransformerModel` in float64 with three classes."""
    return TinyTransformer(family).build(MulticlassClassification(3), None, Generator().manual_seed(seed)).double()


def network(family: str = "bert", **changes: int | str | float | None) -> PreTrainedModel:
    """A Hugging Face network with two layers and two heads, in eval mode."""
    settings: dict[str, int | str | float | None] = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "initializer_range": 0.2,
        "pad_token_id": 1 if "roberta" in family else 0,
    }
    config = AutoConfig.for_model(family, **(settings | changes))
    kinds = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING if family == "vit" else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    make = cast("Callable[[object], PreTrainedModel]", kinds[type(config)])
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        return nn.Module.eval(make(config))


def eager(model: TransformerModel) -> PreTrainedModel:
    """The library's own network with the weights of ours, in eager attention."""
    own = model.network
    plain = type(own)(own.config.__class__.from_dict(own.config.to_dict()))
    plain = nn.Module.to(plain, own.dtype)
    plain.load_state_dict(own.state_dict())
    set_attention_implementation(plain, "eager")
    return nn.Module.train(plain, model.training)


def library_inputs(family: str, batch: Batch) -> dict[str, Tensor]:
    """A batch as the library's own networks of this family take it."""
    if family == "vit":
        return {"pixel_values": fold_images(batch, tiny("vit").network.config)}
    inputs = {"input_ids": batch.inputs, "attention_mask": batch.mask.long()}
    if "roberta" in family:
        inputs["input_ids"] = batch.inputs.masked_fill(~batch.mask, 1)
    return inputs if family == "distilbert" else {**inputs, "token_type_ids": batch.segments}


@dataclass(frozen=True)
class TinyFNet(Architecture):
    """A tiny network without attention, trained from scratch: Fourier transforms mix its words."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 64}
        vocabulary = 50 if embeddings is None else len(embeddings)
        config = AutoConfig.for_model(
            "fnet", num_labels=task.num_outputs, vocab_size=vocabulary, pad_token_id=0, **sizes
        )
        return TransformerModel.wrap(build_network(config, generator), task).eval()
