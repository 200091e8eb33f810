"""Integrated gradients at the input of every layer, mixed by learned weights.

At layer l with input h_l on the text and b_l on the baseline, score_t = (h_l,t - b_l,t) . mean gradient on the path
from b_l to h_l. The scores of a layer sum to g_l(h_l) - g_l(b_l), where g_l is the output as a function of that
input with everything below unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from heedful.attributions.head_mix import LearnedMix, MixNormalizer, ScoreType, mix_attribution, mix_maps, uniform_phi
from heedful.attributions.integrated_gradients import gauss_legendre, integrate_path
from heedful.attributions.method import (
    Background,
    FixedLengthBaseline,
    MethodTags,
    Output,
    Steps,
    baseline_vectors,
    in_evaluation_mode,
    register,
    scored_units,
    target_output,
)
from heedful.capabilities import LayerInput, read_layers
from heedful.option_bounds import Bounds
from heedful.types import Attribution, Batch, Model, UserError


@register("layer-mix")
@dataclass(frozen=True)
class LayerMix(LearnedMix):
    """Integrated gradients at the input of each layer, averaged with weights over layers.

    A model that does not expose layers has one map, at its embeddings. In deep layers special tokens carry much of the
    text; without `special_tokens` their scores are left out, not redistributed.

    Args:
        phi: one number per layer; empty averages all layers.
        normalizer: maps phi to weights; "none" uses phi itself.
        temperature: divides the mix before a softmax over tokens.
        n_steps: points on the path (Gauss-Legendre).
        score_type: the mixed scores ("logits"), or their softmax over tokens ("distribution").
        special_tokens: replace and score special tokens too.
        architecture: of the model that phi was learned for; empty fits every model of this shape.
    """

    background: ClassVar[Background] = Background(
        formula="s = Σ_l w_l · integrated gradients at the input of layer l,  w = normalize(φ)",
        avoid="untrained (`phi` empty) as anything but a baseline of `heedful learn`: deep layers "
        "have mixed the tokens",
        references=("fernandes-2022",),
    )

    mixed: ClassVar[str] = "layers"

    phi: tuple[float, ...] = ()
    normalizer: MixNormalizer = "softmax"
    temperature: Annotated[float, Bounds(above=0)] = 1.0
    n_steps: Steps = 10
    baselines: FixedLengthBaseline = "pad"
    output: Output = "logit"
    score_type: ScoreType = "logits"
    special_tokens: bool = False
    architecture: str = ""

    @property
    def tags(self) -> MethodTags:
        """A distribution over tokens has no sign."""
        note = ""
        if self.phi:
            note = "integrated gradients of all layers, mixed by weights that were learned for this model"
        if self.score_type == "distribution":
            return MethodTags(signed=False, pooling="mean", reads="gradient", note=note)
        return MethodTags(reads="gradient", note=note)

    def with_parameters(self, parameters: Tensor, model: Model) -> LayerMix:
        """The same with parameters learned for a model: phi and, last, the log of the temperature, `[layer + 1]`."""
        *phi, log_temperature = parameters.detach().double().tolist()
        architecture = model.architecture_summary
        return replace(self, phi=tuple(phi), temperature=math.exp(log_temperature), architecture=architecture)

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed scores, or a distribution over tokens, in float64."""
        self.check_architecture(model)
        maps, _ = self.maps(model, batch, target)
        if self.phi and len(self.phi) != maps.shape[1]:
            raise UserError(
                f"this LayerMix has weights for {len(self.phi)} layers, but the model has {maps.shape[1]}: "
                "learn one for this model"
            )
        phi = torch.tensor(self.phi, dtype=torch.float64) if self.phi else uniform_phi(maps.shape[1]).double()
        logits = mix_maps(maps, phi.to(maps.device), self.normalizer if self.phi else "sparsemax") / self.temperature
        return mix_attribution(logits, batch, self.score_type, special_tokens=self.special_tokens)

    def maps(self, model: Model, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of each layer `[batch layer unit]`, and the error of their sums `[batch layer]`.

        The error is the sum over all tokens, special tokens included, minus g_l(h_l) - g_l(b_l).
        """
        units = scored_units(batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            embeddings = model.read_embeddings(batch)
            baseline = baseline_vectors(model, batch, self.baselines, units)
            text_inputs, baseline_inputs = (
                read_layers(model, batch, vectors).inputs for vectors in (embeddings, baseline)
            )
        points, weights = gauss_legendre(self.n_steps)
        points = points.expand(len(batch), -1)
        all_rows = torch.arange(len(batch), device=embeddings.device)
        scores, errors = [], []
        for layer, (text, reference) in enumerate(zip(text_inputs, baseline_inputs, strict=True)):

            def output_at(row: Tensor, states: Tensor, layer: int = layer) -> Tensor:
                single = batch.rows(row)
                width = single.mask.shape[1]
                replacement = LayerInput(layer, states[:, :width])
                logits = read_layers(model, single, embeddings[row, :width], replacement).logits
                return target_output(model.task, logits, target[row], self.output)

            scores.append(integrate_path(output_at, batch, (reference, text), points, weights.unsqueeze(1)).squeeze(2))
            with torch.no_grad():
                errors.append(scores[-1].sum(1) - (output_at(all_rows, text) - output_at(all_rows, reference)))
        return torch.stack(scores, 1).masked_fill(~units.unsqueeze(1), 0.0), torch.stack(errors, 1)
