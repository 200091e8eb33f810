"""Explanations as a mix of what the heads say: fixed, learned, or fitted by ridge regression.

A head's map is the mean over query rows of its scores before softmax; an explanation is the softmax over units of
sum_h lambda_h map_h, lambda = normalise(phi) (SMaT, Fernandes et al. 2022). With equal phi it is static attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions.attention import numbered
from heedful.attributions.keeping import read_explainer, write_explainer
from heedful.core.headscores import architecture, read_heads
from heedful.core.mixing import Normaliser, check_normaliser, coefficients, distribution, mixed, uniform
from heedful.core.ridge import centred_moments, ridge_solution
from heedful.core.types import Attribution, Batch, Model, UserError

Gives = Literal["distribution", "logits"]

OUT = -1e10
"""The phi of a map that is left out, as in the paper's code: every normaliser but "none" gives it weight 0."""


@dataclass(frozen=True)
class StaticAttention:
    """Where attention points before softmax: the mean of the maps of all heads, or of one layer's.

    Args:
        layer: one layer only, counted from 0, or from the last with -1; None takes all.
        specials: special symbols take part in the softmax over units and are scored too, as in the paper.
        output: "distribution" over units, or the "logits" that it is the softmax of.
    """

    layer: int | None = None
    specials: bool = False
    output: Gives = "distribution"

    def __post_init__(self) -> None:
        check_gives(self.output)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same for every target."""
        scores = read_heads(model, batch).scores
        maps = scores[:, numbered(self.layer, scores.shape[1], "layer")].flatten(1, 2).double()
        logits = mixed(maps, uniform(maps.shape[1]).to(maps), "sparsemax")
        return on_support(logits, batch, self.output, specials=self.specials)


@dataclass(frozen=True)
class HeadMix:
    """A weighted mean of the maps of all heads, with weights that were learned for one model.

    Args:
        phi: one number per head, layer by layer.
        normaliser: what makes weights of phi; "none" takes phi itself.
        specials: see StaticAttention, as for `output`.
        architecture: what the model is built like that phi was learned for; empty fits every model of this shape.
    """

    phi: tuple[float, ...]
    layers: int
    heads: int
    normaliser: Normaliser = "sparsemax"
    specials: bool = False
    output: Gives = "distribution"
    architecture: str = ""

    def __post_init__(self) -> None:
        check_normaliser(self.normaliser)
        check_gives(self.output)
        if self.layers < 1 or self.heads < 1 or len(self.phi) != self.layers * self.heads:
            raise UserError(
                f"HeadMix: {len(self.phi)} numbers were given for {self.layers} layers of {self.heads} heads, "
                "which need one each"
            )
        if not all(math.isfinite(value) for value in self.phi):
            raise UserError("HeadMix: phi holds a number that is not finite")

    @staticmethod
    def uniform(layers: int, heads: int) -> HeadMix:
        """The plain mean of all heads: where learning starts, and `StaticAttention()` bit for bit."""
        return HeadMix(tuple(uniform(max(1, layers * heads)).tolist()), layers, heads)

    @staticmethod
    def only_layer(layers: int, heads: int, layer: int) -> HeadMix:
        """The plain mean of one layer's heads; -1 is the last layer."""
        phi = torch.full((layers, heads), OUT)
        phi[numbered(layer, layers, "layer")] = 1 / heads
        return HeadMix.of(phi)

    @staticmethod
    def only_head(layers: int, heads: int, layer: int, head: int) -> HeadMix:
        """One head alone."""
        phi = torch.full((layers, heads), OUT)
        phi[numbered(layer, layers, "layer"), numbered(head, heads, "head")] = 1.0
        return HeadMix.of(phi)

    @staticmethod
    def of(
        phi: Tensor, model: Model | None = None, normaliser: Normaliser = "sparsemax", *, specials: bool = False
    ) -> HeadMix:
        """The mix with this phi `[layer head]`, tied to the architecture of the model if one is given."""
        layers, heads = phi.shape
        values = tuple(phi.detach().double().flatten().tolist())
        built = "" if model is None else architecture(model)
        return HeadMix(values, layers, heads, normaliser, specials=specials, architecture=built)

    @property
    def coefficients(self) -> Tensor:
        """The weight of each head, `[layer head]`, in float64."""
        return coefficients(self._phi(), self.normaliser).reshape(self.layers, self.heads)

    @torch.no_grad()
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same for every target."""
        self.fits(model)
        heads = read_heads(model, batch)
        found = (heads.scores.shape[1], heads.scores.shape[2])
        if found != (self.layers, self.heads):
            raise UserError(
                f"this HeadMix has weights for {self.layers} layers of {self.heads} heads, but the model has "
                f"{found[0]} of {found[1]}: learn one for this model"
            )
        maps = heads.maps.double()
        logits = mixed(maps, self._phi().to(maps.device), self.normaliser)
        return on_support(logits, batch, self.output, specials=self.specials)

    def fits(self, model: Model) -> None:
        """Raises a `UserError` where the model is built otherwise than the one that phi was learned for."""
        if self.architecture and architecture(model) != self.architecture:
            raise UserError(
                f"this HeadMix was learned for {self.architecture}, but the model is {architecture(model)}: "
                "learn one for this model"
            )

    def save(self, folder: Path | str) -> None:
        """Writes explainer.safetensors (phi `[layer head]`) and explainer.json into the folder."""
        settings = {name: value for name, value in vars(self).items() if name != "phi"}
        write_explainer(Path(folder), self._phi().reshape(self.layers, self.heads), {"kind": "HeadMix", **settings})

    @staticmethod
    def load(folder: Path | str) -> HeadMix:
        """The mix that was saved into the folder; raises a `UserError` for anything else."""
        phi, about = read_explainer(Path(folder), _Settings)
        if phi.shape != (about.layers, about.heads):
            raise UserError(
                f"{folder} holds phi of shape {tuple(phi.shape)}, but its settings say {about.layers} layers of "
                f"{about.heads} heads: the two files do not belong together"
            )
        settings = {name: value for name, value in vars(about).items() if name != "kind"}
        return HeadMix(tuple(phi.flatten().tolist()), **settings)

    def _phi(self) -> Tensor:
        return torch.tensor(self.phi, dtype=torch.float64)


@dataclass(frozen=True)
class _Settings:
    kind: Literal["HeadMix"]
    layers: int
    heads: int
    normaliser: Normaliser
    specials: bool
    output: Gives
    architecture: str


def check_gives(output: str) -> None:
    """Refuses an output that a mix does not give."""
    if output not in get_args(Gives):
        raise UserError(f"a mix does not give {output!r}; choose one of {', '.join(get_args(Gives))}")


def on_support(logits: Tensor, batch: Batch, output: Gives, *, specials: bool) -> Attribution:
    """Mixed logits `[batch unit]` as scores of the words, or with `specials` of all real units."""
    units = batch.mask if specials else batch.scored
    scores = distribution(logits, units) if output == "distribution" else logits.masked_fill(~units, 0.0)
    return Attribution(scores, units)


def ridge_mix(maps: Tensor, effects: Tensor, support: Tensor, strength: float) -> Tensor:
    """The phi `[map]` whose mix, with normaliser "none", comes nearest to the effects: the cheap rival of learning.

    It minimises sum over texts b and units t of the support (y_bt - c_b - sum_h phi_h m_bht)^2 + strength |phi|^2, in
    float64. Each text has a constant c_b of its own: the softmax over units does not see it.

    Args:
        maps: `[batch map unit]`.
        effects: what each unit is worth, `[batch unit]`, for instance by leaving it out.
        support: the units that count, `[batch unit]`.
    """
    if not strength >= 0:
        raise UserError(f"ridge_mix(strength={strength}): give 0 or a positive number")
    features = maps.detach().double().masked_fill(~support.unsqueeze(1), 0.0).transpose(1, 2)
    values = effects.detach().double().masked_fill(~support, 0.0)
    gram, cross = centred_moments(features, values, support.double())
    return ridge_solution(gram.sum(0, keepdim=True), cross.sum(0, keepdim=True), strength).squeeze(0)
