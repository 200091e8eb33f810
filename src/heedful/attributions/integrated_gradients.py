"""Slopes along the straight line from a reference to the text: Integrated Gradients and Grad-SHAP.

Both are score_t = (e_t - r_t) . mean_k w_k df/de_t at r + a_k (e - r); they differ in the points a_k and weights w_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from heedful.attributions._base import (
    Baseline,
    CompleteAttribution,
    Output,
    baseline_trace,
    check_baseline,
    check_internal_batch_size,
    check_output,
    complete_attribution,
    output_difference,
    replaced_units,
    run_in_blocks,
    target_output,
)
from heedful.attributions.gradient import embedding_gradients
from heedful.seeding import sample_uniform
from heedful.store.recipe import derive_seed
from heedful.types import Batch, Model, UserError


@dataclass(frozen=True)
class IntegratedGradients:
    """The mean slope on the way from a reference to the text, times the way (Sundararajan et al. 2017).

    The integral is taken by Gauss-Legendre quadrature; `gap` in the result is what its error leaves of the difference
    f(text) - f(reference).

    Args:
        n_steps: points on the way; the quadrature is exact for slopes that are polynomials of degree 2 n_steps - 1.
        baselines: what stands for each word in the reference: the padding, mask or unknown symbol, or a zero vector.
        internal_batch_size: points that are computed at once; None chooses, and halves where memory does not suffice.
        specials: special symbols are replaced and scored too, as in Neely et al.; they then share in the difference.
    """

    n_steps: int = 50
    baselines: Baseline = "pad"
    internal_batch_size: int | None = None
    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        _check_settings(self, "n_steps", self.n_steps)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed shares of the units, in float64."""
        places, weights = np.polynomial.legendre.leggauss(self.n_steps)
        points, shares = torch.from_numpy((places + 1) / 2), torch.from_numpy(weights / 2)
        return _integrate_path(model, batch, target, points.expand(len(batch), -1), (self, shares))


@dataclass(frozen=True)
class GradientShap:
    """Integrated gradients by chance: the mean slope at points drawn evenly on the way (Lundberg & Lee 2017).

    With one reference this is all that Grad-SHAP does. Points are drawn from (seed, uid, sample); `gap` in the result
    falls with the root of `n_samples`.

    Args:
        n_samples: points drawn on the way.
        baselines: see IntegratedGradients, as for the fields below.
    """

    n_samples: int = 5
    seed: int = 0
    baselines: Baseline = "pad"
    internal_batch_size: int | None = None
    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        _check_settings(self, "n_samples", self.n_samples)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed shares of the units, in float64."""
        seeds = torch.tensor([derive_seed("gradient-shap", self.seed, uid) for uid in batch.uids])
        points = sample_uniform(seeds, self.n_samples, 1).squeeze(-1)
        shares = torch.full((self.n_samples,), 1 / self.n_samples, dtype=torch.float64)
        return _integrate_path(model, batch, target, points, (self, shares))


class _PathMethod(Protocol):
    @property
    def baselines(self) -> Baseline: ...
    @property
    def internal_batch_size(self) -> int | None: ...
    @property
    def output(self) -> Output: ...
    @property
    def special_tokens(self) -> bool: ...


def _check_settings(method: _PathMethod, name: str, count: int) -> None:
    check_output(method.output)
    check_baseline(method.baselines)
    check_internal_batch_size(method.internal_batch_size)
    if count < 1:
        raise UserError(f"{type(method).__name__}({name}={count}): at least 1 is needed")


def _integrate_path(
    model: Model, batch: Batch, target: Tensor, points: Tensor, method_and_weights: tuple[_PathMethod, Tensor]
) -> CompleteAttribution:
    """The shares for points `[batch point]` on the way and their weights `[point]`."""
    method, weights = method_and_weights
    units = replaced_units(batch, special_tokens=method.special_tokens)
    with torch.no_grad():
        ends = model(batch), baseline_trace(model, batch, method.baselines, units)
    given, reference = (trace.embeddings.detach() for trace in ends)
    way = given.double() - reference.double()
    points, weights = points.to(given.device), weights.to(given.device)
    shares = way.new_zeros(way.shape[:2])

    def work(block: Tensor) -> None:
        row, point = block // points.shape[1], block % points.shape[1]
        part = batch.rows(row)
        width = part.mask.shape[1]
        covered = points[row, point, None, None] * way[row, :width]

        def read(at: Tensor) -> Tensor:
            return target_output(model.task, model(part, embeddings=at).logits, target[row], method.output)

        slope = embedding_gradients(read, (reference[row, :width] + covered).to(given.dtype))
        share = (slope.double() * way[row, :width]).sum(-1) * weights[point, None]
        shares[:, :width].index_add_(0, row, share)

    run_in_blocks(work, batch, points.shape[1], method.internal_batch_size)
    return complete_attribution(shares, units, output_difference(model, ends, target, method.output))
