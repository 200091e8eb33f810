"""A model whose word vectors are a little off: what a steady explanation should not care about."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.attributions.nulls import Randomised, redrawn
from heedful.core.carrying import Carried, Carries
from heedful.core.layerstates import Given, Layers, read_layers
from heedful.core.randomness import hashed_uniform
from heedful.core.types import Attribution, Batch, Method, Model, Trace
from heedful.core.workspace import derived_seed

RADIUS = 0.02
"""How far each number of an embedding may move (captum's default)."""


class Shaken(Model):
    """The same model with noise, uniform within `radius`, on its embeddings; given embeddings are taken as they are.

    The noise belongs to a word, not to its place: a text that lost a unit, or stands in other company, has the same.
    """

    def __init__(self, model: Model, seed: int, radius: float = RADIUS) -> None:
        super().__init__()
        self.model, self.seed, self.radius = model, seed, radius
        self.task, self.notes, self.imposed = model.task, model.notes, model.imposed
        self.training = model.training

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """What happened under the noise."""
        embeddings = self.moved(batch) if embeddings is None else embeddings
        return self.model(batch, embeddings=embeddings, attention=attention)

    def moved(self, batch: Batch) -> Tensor:
        """The embeddings with their noise."""
        plain = self.model(batch).embeddings
        return plain + self._noise(batch, plain.shape[-1]).to(plain)

    def _noise(self, batch: Batch, width: int) -> Tensor:
        """`[batch unit width]`; patches of an image have no name but their place."""
        images = batch.inputs.dim() > 2
        names = torch.arange(batch.mask.shape[1]).expand_as(batch.mask) if images else batch.inputs
        drawn = hashed_uniform(names.flatten().to(batch.mask.device) + (self.seed >> 1), 1, width)
        noise = self.radius * (2 * drawn.reshape(*batch.mask.shape, width) - 1)
        return noise * batch.mask.unsqueeze(-1)


class ShakenLayers(Shaken):
    """A shaken model of self-attention layers, which still shows what they carry."""

    def carried(self, batch: Batch, *, embeddings: Tensor | None = None) -> Carried:
        """What each layer carries under the noise."""
        assert isinstance(self.model, Carries)
        return self.model.carried(batch, embeddings=self.moved(batch) if embeddings is None else embeddings)

    def read_layers(self, batch: Batch, embeddings: Tensor, given: Given | None = None) -> Layers:
        """What flows into each layer from these embeddings, which are taken as they are."""
        return read_layers(self.model, batch, embeddings, given)


def shaken(model: Model, seed: int, radius: float = RADIUS) -> Shaken:
    """The model with noise on its embeddings, which still shows the layers that the model shows."""
    return (ShakenLayers if isinstance(model, Carries) else Shaken)(model, seed, radius)


def shaken_scores(method: Method, model: Model, batch: Batch, target: Tensor, seeds: tuple[int, ...]) -> Tensor:
    """The method's scores `[batch change unit]` under one small change for each seed."""
    if isinstance(method, Randomised):
        # The redrawn model is shaken: weights are drawn by their names, and those of a shaken one have others.
        model, method = redrawn(model, method.seed), method.method
    found = [_scores(method, shaken(model, derived_seed("shaken", seed)), batch, target) for seed in seeds]
    return torch.stack(found, dim=1)


def _scores(method: Method, model: Model, batch: Batch, target: Tensor) -> Tensor:
    found: Attribution = method(model, batch, target)
    return found.scores.double()
