"""Integrated Gradients and GradientSHAP: gradients along the straight path from a baseline to the text.

Both are score_t = (e_t - b_t) . sum_k w_k df/de_t at b + a_k (e - b); they differ in the points a_k and weights w_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.attributions.gradient import embedding_gradients
from heedful.attributions.method import (
    MAX_SAMPLES,
    Background,
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

FIRST_INTERVALS = 8
"""Of the path, where points are read until the scores add up."""
OutputAt = Callable[[Tensor, Tensor], Tensor]
"""The explained output `[row]` of these rows of a batch, given states `[row unit width]`."""


@register("integrated-gradients")
@dataclass(frozen=True)
class IntegratedGradients(CheckedOptions):
    """Mean gradient on the path from a baseline to the text, times the difference (Sundararajan et al. 2017).

    `convergence_delta` of the result is the error of the Gauss-Legendre quadrature.

    Args:
        n_steps: points on the path; exact for gradients that are polynomials of degree 2 n_steps - 1.
        special_tokens: replace and score special tokens too, as in Neely et al. (2022).
        error: stop reading points of a text when its completeness error is at most this share of the sum of its
            absolute scores: 9 points are read first (Clenshaw-Curtis quadrature), then those between them, until there
            are `n_steps` or more. None reads `n_steps` points.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = (e_t − e'_t) · ∫₀¹ ∂f/∂e_t (e' + α (e − e')) dα",
        avoid="with a baseline that is not neutral: scores explain the difference from that baseline only",
        references=("sundararajan-2017",),
    )

    tags: ClassVar[MethodTags] = MethodTags(reads="gradient", completeness_tolerance=1e-3)
    word_options: ClassVar[Mapping[str, object]] = {"error": 0.02}

    n_steps: Steps = 50
    baselines: FixedLengthBaseline = "pad"
    output: Output = "probability"
    special_tokens: bool = False
    error: Annotated[float, Bounds(above=0, below=1)] | None = None

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        if self.error is not None:
            return self._until(self.error, model, batch, target)
        points, weights = gauss_legendre(self.n_steps)
        return self.along(model, batch, target, points.expand(len(batch), -1), weights)

    def _until(self, error: float, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Scores of each text from as few points as the error allows; none is read twice."""
        output_at, ends, difference = self._path(model, batch, target)
        scores = torch.zeros(batch.mask.shape, dtype=torch.float64, device=batch.mask.device)
        open_rows, intervals = torch.arange(len(batch), device=batch.mask.device), FIRST_INTERVALS

        def read(points: Tensor) -> Tensor:
            """What each point adds, with a weight of 1 `[open unit point]`."""
            texts = batch.rows(open_rows)
            width, rows = texts.mask.shape[1], open_rows
            return integrate_path(
                lambda row, states: output_at(rows[row], states),
                texts,
                (ends[0][rows, :width], ends[1][rows, :width]),
                points.expand(len(texts), -1),
                torch.eye(len(points), dtype=torch.float64),
            )

        points, weights = clenshaw_curtis(intervals)
        products = read(points)
        while True:
            open_scores = products @ weights.to(products.device)
            scores[open_rows, : products.shape[1]] = open_scores
            gaps = (open_scores.sum(1) - difference[open_rows]).abs()
            is_open = gaps > error * open_scores.abs().sum(1)
            if intervals + 1 >= self.n_steps or not bool(is_open.any()):
                break
            open_rows, products, intervals = open_rows[is_open], products[is_open], 2 * intervals
            points, weights = clenshaw_curtis(intervals)
            between = read(points[1::2])
            products = products[:, : between.shape[1]]
            products = torch.cat((torch.stack((products[..., :-1], between), 3).flatten(2), products[..., -1:]), 2)
        return complete_attribution(scores, scored_units(batch, special_tokens=self.special_tokens), difference)

    def along(self, model: Model, batch: Batch, target: Tensor, points: Tensor, weights: Tensor) -> CompleteAttribution:
        """Scores for points `[batch point]` on the path and their weights `[point]`."""
        output_at, ends, difference = self._path(model, batch, target)
        scores = integrate_path(output_at, batch, ends, points, weights.unsqueeze(1)).squeeze(2)
        return complete_attribution(scores, scored_units(batch, special_tokens=self.special_tokens), difference)

    def _path(self, model: Model, batch: Batch, target: Tensor) -> tuple[OutputAt, tuple[Tensor, Tensor], Tensor]:
        """The output at states, the ends of the path `[batch unit width]`, and f(text) - f(baseline) `[batch]`."""
        units = scored_units(batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            text, baseline = model.read_embeddings(batch), baseline_vectors(model, batch, self.baselines, units)
            both = torch.stack((text, baseline), 1).flatten(0, 1)
            logits = model.read_logits(batch.repeat(2), embeddings=both).reshape(len(batch), 2, -1)

        def output_at(row: Tensor, embeddings: Tensor) -> Tensor:
            logits = model.read_logits(batch.rows(row), embeddings=embeddings)
            return target_output(model.task, logits, target[row], self.output)

        outputs = target_output(model.task, logits, target, self.output)
        return output_at, (baseline.detach(), text.detach()), outputs[:, 0] - outputs[:, 1]


@register("gradient-shap")
@dataclass(frozen=True)
class GradientShap(CheckedOptions):
    """Integrated gradients at uniformly sampled points: GradientSHAP with one baseline (Lundberg & Lee 2017).

    Points depend on (seed, uid, sample); `convergence_delta` falls with the square root of `n_samples`.

    Args:
        n_samples: points drawn on the path.
    """

    background: ClassVar[Background] = Background(
        formula="s_t = (e_t − e'_t) · mean over α ~ Uniform[0, 1) of ∂f/∂e_t (e' + α (e − e'))",
        avoid="when scores must add up exactly: a handful of random points leaves an error; use integrated-gradients",
        references=("lundberg-2017",),
    )

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


def clenshaw_curtis(intervals: int) -> tuple[Tensor, Tensor]:
    """Points and weights of Clenshaw-Curtis quadrature on [0, 1], in float64; twice as many hold the same points.

    Args:
        intervals: an even number; there is one point more.

    >>> points, weights = clenshaw_curtis(2)  # Simpson's rule
    >>> [round(6 * weight) for weight in weights.tolist()], points.round(decimals=9).tolist()
    ([1, 4, 1], [0.0, 0.5, 1.0])
    """
    angles = torch.arange(intervals + 1, dtype=torch.float64) * (math.pi / intervals)
    numbers = torch.arange(1, intervals // 2 + 1, dtype=torch.float64)
    shares = torch.where(numbers < intervals // 2, 2.0, 1.0).double() / (4 * numbers.square() - 1)
    weights = (1 - torch.cos(2 * angles[:, None] * numbers) @ shares) / intervals
    weights[0] /= 2
    weights[-1] /= 2
    return (1 - torch.cos(angles)) / 2, weights


def integrate_path(
    output_at: OutputAt,
    batch: Batch,
    ends: tuple[Tensor, Tensor],
    points: Tensor,
    weights: Tensor,
) -> Tensor:
    """(end_t - start_t) . sum_k w_k d output / d states_t at start + a_k (end - start), `[batch unit sum]` in float64.

    Args:
        output_at: the explained output `[row]` of these rows of the batch, given states `[row unit width]`.
        ends: start and end of the path, `[batch unit width]`.
        points: a `[batch point]`.
        weights: w `[point sum]`, a column for each sum.
    """
    start, end = ends
    difference = end.double() - start.double()
    points, weights = points.to(end.device), weights.to(end.device)
    scores = difference.new_zeros(*difference.shape[:2], weights.shape[1])

    def work(row: Tensor, point: Tensor) -> None:
        width = max(1, int(batch.lengths[row].max()))
        path = difference[row, :width]
        states = (start[row, :width] + points[row, point, None, None] * path).to(end.dtype)
        gradients = embedding_gradients(lambda at: output_at(row, at), states)
        products = (gradients.double() * path).sum(-1, keepdim=True)
        scores[:, :width].index_add_(0, row, products * weights[point].unsqueeze(1))

    run_copies(work, batch, points.shape[1])
    return scores
