"""A small vision transformer, trained from scratch on small images: a teacher where no pretrained weights are at hand.

It is the library's own ViT (class unit, learned positions, normalisation before each block), only smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from heedful.core.types import Plan, Task, UserError
from heedful.models.transformer import TinyTransformer, TransformerModel


@dataclass(frozen=True)
class SmallViT(Plan):
    """A vision transformer with fresh weights.

    Args:
        image: channels, height and width of the images that `Patches` cuts.
        patch: side of a patch in pixels, the same as that of `Patches`.
        dropout: share of states and attention weights dropped in training.
        spread: standard deviation of its weights; with the usual 0.02, chosen for large widths, learning starts slowly.
    """

    image: tuple[int, int, int] = (1, 28, 28)
    patch: int = 4
    layers: int = 4
    heads: int = 4
    width: int = 64
    dropout: float = 0.1
    spread: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"SmallViT: a width of {self.width} cannot be divided among {self.heads} heads")
        _, height, width = self.image
        if height % self.patch or width % self.patch:
            raise UserError(f"SmallViT: {height} x {width} pixels do not part into patches of {self.patch}")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        """A model with weights drawn from the generator, in eval mode."""
        plan = TinyTransformer(
            "vit", self.layers, self.heads, self.width, image=self.image, patch=self.patch, spread=self.spread
        )
        drawn = plan.build(task, embeddings, generator).network
        drawn.config.hidden_dropout_prob = drawn.config.attention_probs_dropout_prob = self.dropout
        # Layers learn their dropout when they are made: made again, they take over the weights drawn before.
        with torch.random.fork_rng(devices=[]):
            network = type(drawn)(drawn.config)
        network.load_state_dict(drawn.state_dict())
        return TransformerModel.wrap(network, task).eval()
