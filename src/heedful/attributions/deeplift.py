"""DeepLIFT and DeepSHAP: differences from a baseline, propagated back through every operation.

Both are complete on every model whose attention is a softmax. An operation without a rule in `_deeplift_rules` keeps
its gradient; `convergence_delta` of the result then says how far the scores are from the difference of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from heedful.attributions._base import (
    CompleteAttribution,
    FixedLengthBaseline,
    Output,
    baseline_trace,
    check_options,
    complete_attribution,
    run_copies,
    scored_units,
    target_output,
)
from heedful.attributions._deeplift_rules import multipliers
from heedful.seeding import sample_uniform
from heedful.store.recipe import derive_seed
from heedful.types import Batch, Model, Trace, UserError

Noise = Callable[[Batch, Tensor, int], Tensor]
"""Noise `[row unit width]` on the baselines with these numbers `[row]`."""


@dataclass(frozen=True)
class DeepLift:
    """The difference from a baseline, attributed by secants in place of gradients (Shrikumar et al. 2017).

    Args:
        special_tokens: replace and score special tokens too, as in Neely et al. (2022).
    """

    baselines: FixedLengthBaseline = "pad"
    internal_batch_size: int | None = None
    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        return self.mean_over_baselines(model, batch, target)

    def mean_over_baselines(
        self, model: Model, batch: Batch, target: Tensor, n_baselines: int = 1, noise: Noise | None = None
    ) -> CompleteAttribution:
        """The mean over several baselines that differ by noise on the replaced tokens."""
        units = scored_units(batch, special_tokens=self.special_tokens)
        with torch.no_grad():
            text = model(batch).embeddings
            baseline = baseline_trace(model, batch, self.baselines, units).embeddings
        # Detached copies of the weights, so that only the embeddings require a gradient.
        weights = {name: value.detach() for name, value in model.named_parameters()}
        scores = torch.zeros(units.shape, dtype=torch.float64, device=units.device)
        differences = scores.new_zeros(len(units))

        def work(row: Tensor, number: Tensor) -> None:
            both = row.repeat(2)
            pair = batch.rows(both)
            width = pair.mask.shape[1]

            def read(embeddings: Tensor) -> Tensor:
                trace: Trace = functional_call(model, weights, (pair,), {"embeddings": embeddings})
                return target_output(model.task, trace.logits, target[both], self.output)

            own, other = text[row, :width], baseline[row, :width]
            if noise is not None:
                lift = noise(batch.rows(row), number, text.shape[2]) * units[row, :width, None]
                other = (other + lift).to(text)
            slopes, difference = multipliers(read, own, other)
            share = (slopes.double() * (own.double() - other.double())).sum(-1)
            scores[:, :width].index_add_(0, row, share / n_baselines)
            differences.index_add_(0, row, difference / n_baselines)

        run_copies(work, batch, n_baselines, self.internal_batch_size)
        return complete_attribution(scores, units, differences)


@dataclass(frozen=True)
class DeepShap:
    """The mean of DeepLIFT over several baselines (Lundberg & Lee 2017).

    Without noise all baselines are equal, and DeepSHAP is DeepLIFT.

    Args:
        stdevs: standard deviation of the Gaussian noise on the replaced tokens of each baseline, drawn from
            (seed, uid, baseline); 0 as in Neely et al. (2022).
    """

    n_baselines: int = 2
    stdevs: float = 0.0
    seed: int = 0
    baselines: FixedLengthBaseline = "pad"
    internal_batch_size: int | None = None
    output: Output = "probability"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        if self.n_baselines < 1 or self.stdevs < 0:
            raise UserError(
                f"DeepShap(n_baselines={self.n_baselines}, stdevs={self.stdevs}): give at least 1 baseline and a "
                "standard deviation of at least 0"
            )

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> CompleteAttribution:
        """Signed scores of the tokens, in float64."""
        if not self.stdevs:
            return self._deeplift()(model, batch, target)
        return self._deeplift().mean_over_baselines(model, batch, target, self.n_baselines, self._noise)

    def _deeplift(self) -> DeepLift:
        return DeepLift(self.baselines, self.internal_batch_size, self.output, self.special_tokens)

    def _noise(self, batch: Batch, number: Tensor, width: int) -> Tensor:
        keys = zip(batch.uids, number.tolist(), strict=True)
        seeds = torch.tensor([derive_seed("deep-shap", self.seed, uid, each) for uid, each in keys])
        uniform = sample_uniform(seeds, 1, batch.mask.shape[1] * width) + 2.0**-54
        noise: Tensor = self.stdevs * torch.special.ndtri(uniform).reshape(*batch.mask.shape, width)
        return noise.to(batch.mask.device)
