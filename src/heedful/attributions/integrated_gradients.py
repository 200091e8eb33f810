"""Integrated Gradients and GradientSHAP: gradients along the straight path from a baseline to the text.

Both are score_t = (e_t - b_t) . sum_k w_k df/de_t at b + a_k (e - b); they differ in the points a_k and weights w_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.attributions.gradient import embedding_gradients
from heedful.attributions.method import (
    MAX_SAMPLES,
    CheckedOptions,
    CompleteAttribution,
    FixedLengthBaseline,
    MethodTags,
    Output,
    Steps,
    baseline_vectors,
    complete_attribution,
    example_seeds,
    in_evaluation_mode,
    register,
    run_copies,
    scored_units,
    target_output,
)
from heedful.option_bounds import Bounds
from heedful.seeding import sample_uniform
from heedful.types import Batch, Model


@register("integrated-gradients")
@dataclass(frozen=True)
class IntegratedGradients(CheckedOptions):
    """Mean gradient on the path from a baseline to the text, times the difference (Sundararajan et al. 2017).

    `convergence_delta` of the result is the error of the Gauss-Legendre quadrature.

    Args:
        n_steps: points on the path; exact for gradients that are polynomials of degree 2 n_steps - 1.
        special_tokens: replace and score special tokens too, as in Neely et al. (2022).
    """

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient", completeness_tolerance=1e-3)

    n_steps: Steps = 50
    baselines: FixedLengthBaseline = "pad"
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        points, weights = gauss_legendre(self.n_steps)
        return self.along(model, batch, target, points.expand(len(batch), -1), weights)

    def along(self, model: Model, batch: Batch, target: Tensor, points: Tensor, weights: Tensor) -> CompleteAttribution:
        """Scores for points `[batch point]` on the path and their weights `[point]`."""
        units = scored_units(batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            text, baseline = model.read_embeddings(batch), baseline_vectors(model, batch, self.baselines, units)
            both = torch.stack((text, baseline), 1).flatten(0, 1)
            logits = model.read_logits(batch.repeat(2), embeddings=both).reshape(len(batch), 2, -1)

        def output_at(row: Tensor, embeddings: Tensor) -> Tensor:
            logits = model.read_logits(batch.rows(row), embeddings=embeddings)
            return target_output(model.task, logits, target[row], self.output)

        scores = integrate_path(output_at, batch, (baseline.detach(), text.detach()), points, weights)
        outputs = target_output(model.task, logits, target, self.output)
        return complete_attribution(scores, units, outputs[:, 0] - outputs[:, 1])


@register("gradient-shap")
@dataclass(frozen=True)
class GradientShap(CheckedOptions):
    """Integrated gradients at uniformly sampled points: GradientSHAP with one baseline (Lundberg & Lee 2017).

    Points depend on (seed, uid, sample); `convergence_delta` falls with the square root of `n_samples`.

    Args:
        n_samples: points drawn on the path.
    """

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient")

    n_samples: Annotated[int, Bounds(1, MAX_SAMPLES)] = 5
    seed: int = 0
    baselines: FixedLengthBaseline = "pad"
    output: Output = "probability"
    special_tokens: bool = False

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        points = sample_uniform(example_seeds("gradient-shap", self.seed, batch), self.n_samples, 1).squeeze(-1)
        weights = torch.full((self.n_samples,), 1 / self.n_samples, dtype=torch.float64)
        path = IntegratedGradients(baselines=self.baselines, output=self.output, special_tokens=self.special_tokens)
        return path.along(model, batch, target, points, weights)


def gauss_legendre(n_steps: int) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Legendre quadrature on [0, 1], in float64."""
    points, weights = np.polynomial.legendre.leggauss(n_steps)
    return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)


def integrate_path(
    output_at: Callable[[Tensor, Tensor], Tensor],
    batch: Batch,
    ends: tuple[Tensor, Tensor],
    points: Tensor,
    weights: Tensor,
) -> Tensor:
    """(end_t - start_t) . sum_k w_k d output / d states_t at start + a_k (end - start), `[batch unit]` in float64.

    Args:
        output_at: the explained output `[row]` of these rows of the batch, given states `[row unit width]`.
        ends: start and end of the path, `[batch unit width]`.
        points: a `[batch point]`.
        weights: w `[point]`.
    """
    start, end = ends
    difference = end.double() - start.double()
    points, weights = points.to(end.device), weights.to(end.device)
    scores = difference.new_zeros(difference.shape[:2])

    def work(row: Tensor, point: Tensor) -> None:
        width = max(1, int(batch.lengths[row].max()))
        path = difference[row, :width]
        states = (start[row, :width] + points[row, point, None, None] * path).to(end.dtype)
        gradients = embedding_gradients(lambda at: output_at(row, at), states)
        scores[:, :width].index_add_(0, row, (gradients.double() * path).sum(-1) * weights[point, None])

    run_copies(work, batch, points.shape[1])
    return scores
