"""Integrated gradients at the input of every layer, mixed: how deep inside the model should one ask?

At layer l with input h_l on the text and r_l on the reference, share_t = (h_l,t - r_l,t) . mean slope on the way from
r_l to h_l. The shares of a layer add up to g_l(h_l) - g_l(r_l), where g_l is the model's output as a function of that
input, all below it left as it is on the text; where the head reads the last layer only, g_l(r_l) = f(reference).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from heedful.attributions._base import (
    Baseline,
    Output,
    baseline_trace,
    check_baseline,
    check_internal_batch_size,
    check_output,
    replaced_units,
    run_in_blocks,
    target_output,
)
from heedful.attributions.gradient import embedding_gradients
from heedful.attributions.head_mix import (
    MixNormalizer,
    ScoreType,
    check_normalizer,
    check_score_type,
    mix_attribution,
    mix_maps,
    mixing_weights,
    read_explainer,
    uniform_phi,
    write_explainer,
)
from heedful.types import Attribution, Batch, LayerInput, Model, UserError, architecture_summary, read_layers


@dataclass(frozen=True)
class LayerMix:
    """Integrated gradients at the input of each layer, averaged with weights over layers.

    A transformer has as many maps as layers; a model that shows no layers has one, its embeddings. Deep inside, special
    symbols carry much of the text: their shares are left out, not redistributed.

    Args:
        phi: one number per layer; empty stands for the plain mean.
        normaliser: what makes weights of phi; "none" takes phi itself.
        temperature: what the mix is divided by, which a softmax over units sees.
        n_steps: points on the way (Gauss-Legendre).
        baselines: what stands for each word in the reference: the padding, mask or unknown symbol, or a zero vector.
        explains: the target's "logit", or its "probability".
        output: the "logits" are the mixed shares, "distribution" their softmax over units.
        specials: special symbols are replaced in the reference and scored too.
        internal_batch_size: points that are computed at once; None chooses, and halves where memory does not suffice.
        architecture: what the model is built like that phi was learned for; empty fits every model of this shape.
    """

    phi: tuple[float, ...] = ()
    normalizer: MixNormalizer = "softmax"
    temperature: float = 1.0
    n_steps: int = 10
    baselines: Baseline = "pad"
    output: Output = "logit"
    score_type: ScoreType = "logits"
    special_tokens: bool = False
    internal_batch_size: int | None = None
    architecture: str = ""

    def __post_init__(self) -> None:
        check_normalizer(self.normalizer)
        check_score_type(self.score_type)
        check_output(self.output)
        check_baseline(self.baselines)
        check_internal_batch_size(self.internal_batch_size)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"LayerMix(temperature={self.temperature}): the temperature must be above 0")
        if self.n_steps < 1:
            raise UserError(f"LayerMix(n_steps={self.n_steps}): at least 1 is needed")
        if not all(math.isfinite(value) for value in self.phi):
            raise UserError("LayerMix: phi holds a number that is not finite")

    def with_parameters(self, parameters: Tensor, model: Model) -> LayerMix:
        """The same with what was learned for a model: phi and, last, the log of the temperature, `[layer + 1]`."""
        *phi, log_temperature = parameters.detach().double().tolist()
        built = architecture_summary(model)
        return replace(self, phi=tuple(phi), temperature=math.exp(log_temperature), architecture=built)

    @property
    def coefficients(self) -> Tensor:
        """The weight of each layer, `[layer]`, in float64; empty for the plain mean."""
        phi = torch.tensor(self.phi, dtype=torch.float64)
        return mixing_weights(phi, self.normalizer) if self.phi else phi

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed shares of the units, or a distribution, in float64."""
        self.check_model(model)
        maps, _ = self.maps(model, batch, target)
        if self.phi and len(self.phi) != maps.shape[1]:
            raise UserError(
                f"this LayerMix has weights for {len(self.phi)} layers, but the model has {maps.shape[1]}: "
                "learn one for this model"
            )
        phi = torch.tensor(self.phi, dtype=torch.float64) if self.phi else uniform_phi(maps.shape[1]).double()
        normaliser = self.normalizer if self.phi else "sparsemax"
        logits = mix_maps(maps, phi.to(maps.device), normaliser) / self.temperature
        return mix_attribution(logits, batch, self.score_type, special_tokens=self.special_tokens)

    def maps(self, model: Model, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """The bank that is mixed, `[batch layer unit]`, and what each layer's shares miss, `[batch layer]`.

        What is missing is the sum of all units' shares, special symbols included, minus g_l(h_l) - g_l(r_l): the error
        of the quadrature.
        """
        units = replaced_units(batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            embeddings = model(batch).embeddings
            reference = baseline_trace(model, batch, self.baselines, units).embeddings
            ends = (read_layers(model, batch, vectors).inputs for vectors in (embeddings, reference))
            ways = [_LayerPath(number, *pair) for number, pair in enumerate(zip(*ends, strict=True))]
        asked = _LayerFunction(model, batch, target, embeddings, self.output)
        shares = torch.stack([_integrate_layer(asked, way, self.n_steps, self.internal_batch_size) for way in ways], 1)
        changes = torch.stack([asked.output_difference(way) for way in ways], 1)
        return shares.masked_fill(~units.unsqueeze(1), 0.0), shares.sum(2) - changes

    def check_model(self, model: Model) -> None:
        """Raises a `UserError` where the model is built otherwise than the one that phi was learned for."""
        if self.architecture and architecture_summary(model) != self.architecture:
            raise UserError(
                f"this LayerMix was learned for {self.architecture}, but the model is {architecture_summary(model)}: "
                "learn one for this model"
            )

    def save(self, folder: Path | str) -> None:
        """Writes explainer.safetensors (phi `[layer]`) and explainer.json into the folder."""
        settings = {name: value for name, value in vars(self).items() if name != "phi"}
        write_explainer(Path(folder), torch.tensor(self.phi, dtype=torch.float64), {"kind": "LayerMix", **settings})

    @staticmethod
    def load(folder: Path | str) -> LayerMix:
        """The mix that was saved into the folder; raises a `UserError` for anything else."""
        phi, about = read_explainer(Path(folder), _LayerMixSettings)
        if phi.dim() != 1:
            raise UserError(f"{folder} holds phi of shape {tuple(phi.shape)}, not one number per layer: save it anew")
        settings = {name: value for name, value in vars(about).items() if name != "kind"}
        return LayerMix(tuple(phi.tolist()), **settings)


@dataclass(frozen=True)
class _LayerMixSettings:
    kind: Literal["LayerMix"]
    normalizer: MixNormalizer
    temperature: float
    n_steps: int
    baselines: Baseline
    output: Output
    score_type: ScoreType
    special_tokens: bool
    internal_batch_size: int | None
    architecture: str


@dataclass(frozen=True)
class _LayerPath:
    """From the input of a layer on the reference to that on the text, both `[batch unit width]`."""

    layer: int
    text: Tensor
    reference: Tensor

    def interpolate(self, row: Tensor, point: Tensor, width: int) -> Tensor:
        """States of these rows at these points on the way, the first `width` units."""
        covered = point[:, None, None] * self.difference(row, width)
        return (self.reference[row, :width] + covered).to(self.text.dtype)

    def difference(self, row: Tensor, width: int) -> Tensor:
        """The whole way of these rows, in float64."""
        return self.text[row, :width].double() - self.reference[row, :width].double()


@dataclass(frozen=True)
class _LayerFunction:
    """What is asked of a model: the target's output as a function of the input of one layer."""

    model: Model
    batch: Batch
    target: Tensor
    embeddings: Tensor
    output: Output

    def rows(self, row: Tensor) -> _LayerFunction:
        """The same for some rows of the batch."""
        part = self.batch.rows(row)
        return _LayerFunction(
            self.model, part, self.target[row], self.embeddings[row, : part.mask.shape[1]], self.output
        )

    def output_at(self, layer: int, states: Tensor) -> Tensor:
        """g_l(states) `[batch]`, in float64."""
        logits = read_layers(self.model, self.batch, self.embeddings, LayerInput(layer, states)).logits
        return target_output(self.model.task, logits, self.target, self.output)

    @torch.no_grad()
    def output_difference(self, way: _LayerPath) -> Tensor:
        """g_l(h_l) - g_l(r_l) `[batch]`."""
        return self.output_at(way.layer, way.text) - self.output_at(way.layer, way.reference)


def _integrate_layer(function: _LayerFunction, path: _LayerPath, steps: int, size: int | None) -> Tensor:
    """The mean slope on the way times the way, for all units `[batch unit]`, in float64."""
    places, weights = (
        torch.from_numpy(values / 2).to(path.text.device) for values in np.polynomial.legendre.leggauss(steps)
    )
    shares = torch.zeros(path.text.shape[:2], dtype=torch.float64, device=path.text.device)

    def work(block: Tensor) -> None:
        row, point = block // steps, block % steps
        part = function.rows(row)
        width = part.batch.mask.shape[1]
        slope = embedding_gradients(
            lambda at: part.output_at(path.layer, at), path.interpolate(row, places[point] + 0.5, width)
        )
        share = (slope.double() * path.difference(row, width)).sum(-1) * weights[point, None]
        shares[:, :width].index_add_(0, row, share)

    run_in_blocks(work, function.batch, steps, size)
    return shares
