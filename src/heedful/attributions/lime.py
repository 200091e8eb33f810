"""LIME, and the batched linear regressions that it shares with KernelSHAP and the head mix.

All instances of a block are solved in one call: each has its own samples, weights and number of features, and a feature
that an instance lacks is a column of zeros with coefficient 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from heedful.attributions._coalition_process import MIN_SAMPLES, fit_process, is_reached, next_count
from heedful.attributions.method import (
    MAX_SAMPLES,
    Background,
    Baseline,
    CheckedOptions,
    Feature,
    MethodTags,
    Output,
    divide_among_units,
    example_seeds,
    expand_to_units,
    feature_counts,
    feature_index,
    in_evaluation_mode,
    register,
    sampled_measures,
)
from heedful.attributions.perturbation import (
    CoalitionReader,
    baseline_embeddings,
    explain_alone,
    outputs_without,
    sample_texts,
    score_features,
)
from heedful.option_bounds import Bounds
from heedful.seeding import sample_uniform
from heedful.types import Attribution, Batch, Model


def centered_moments(features: Tensor, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """X'WX `[batch feature feature]` and X'Wy `[batch feature]`, with X and y centered at their weighted means.

    Args:
        features: X `[batch sample feature]`.
        values: y `[batch sample]`.
        weights: the diagonal of W `[batch sample]`, not normalized.
    """
    total = weights.sum(1, keepdim=True)
    shares = weights / torch.where(total > 0, total, 1)
    centered = features - torch.einsum("bs,bsf->bf", shares, features).unsqueeze(1)
    values = values - (shares * values).sum(1, keepdim=True)
    weighted = centered * weights.unsqueeze(-1)
    return weighted.transpose(1, 2) @ centered, torch.einsum("bsf,bs->bf", weighted, values)


def solve_ridge(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(gram + ridge I)^-1 cross per instance `[batch feature]`; with ridge 0 the minimum-norm solution.

    Of one instance, cross may have several columns `[feature column]`.

    With `centered_moments` it minimises sum_s w_s (y_s - c - x_s b)^2 + ridge |b|^2 with a free intercept c:

    >>> moments = centered_moments(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[3.0, 5.0]]), torch.ones(1, 2))
    >>> solve_ridge(*moments, ridge=0.5)
    tensor([[1.]])
    """
    if ridge == 0:
        inverse: Tensor = torch.linalg.pinv(gram, hermitian=True)
        return inverse @ cross if gram.dim() == 2 else (inverse @ cross.unsqueeze(-1)).squeeze(-1)
    damped = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    solution: Tensor = torch.linalg.solve(damped, cross)
    return solution


def solve_sum_constrained(gram: Tensor, cross: Tensor, total: Tensor, present: Tensor) -> Tensor:
    """The b `[batch feature]` that minimises b'Gb/2 - b'c subject to sum(b) = total.

    With P = I - 11'/n the projection on sums of zero, b = (total/n) 1 + (PGP + 11'/n)^-1 P (c - G 1 total/n).

    Args:
        gram: G `[batch feature feature]`, positive definite on sums of zero.
        cross: c `[batch feature]`.
        total: `[batch]`.
        present: the features that an instance has `[batch feature]`; others get 0.
    """
    ones = present.to(gram)
    share = ones / ones.sum(1, keepdim=True).clamp(min=1)
    mean = ones.unsqueeze(2) * share.unsqueeze(1)
    project = torch.diag_embed(ones) - mean
    level = share * total.unsqueeze(1)
    rest = (project @ (cross.unsqueeze(-1) - gram @ level.unsqueeze(-1))).squeeze(-1)
    # Any positive value does for the mean and the absent features, on which the right-hand side is zero.
    scale = gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)[:, None, None]
    filled = project @ gram @ project + scale * (mean + torch.diag_embed(1 - ones))
    solution: Tensor = torch.linalg.solve(filled, rest)
    return level + solution * ones


@register("lime")
@dataclass(frozen=True)
class Lime(CheckedOptions):
    """Coefficients of a weighted ridge regression of the output on which tokens are kept (Ribeiro et al. 2016).

    Each feature is kept with probability 1/2; a sample has weight exp(-d² / (2 width²)), d its cosine distance from the
    text in the flattened embeddings. Samples depend on (seed, uid). Defaults are those of Neely et al. (2022).

    Args:
        n_samples: of a text; one that has more features than half as many has two per feature.
        ridge: penalty on the coefficients, not on the intercept.
        feature: "word" keeps or removes all tokens of a word together and divides its score among them; so do
            "sentence" and "segment".
        special_tokens: remove and score special tokens too, each as its own feature.
        error: stop reading samples when no posterior error of a text is larger than this share of its largest absolute
            score, after at least five per feature. The outputs of the other samples are then those that a Gaussian
            process predicts from the outputs so far, and the posterior errors are those of the prediction: with all
            samples read the scores are the same as without `error`. None reads all samples.
        paired: follow each sample by its complement. Scores of one seed then vary about as much as those of twice as
            many single samples.
    """

    background: ClassVar[Background] = Background(
        formula="min over s of Σ_z k(z) (f(z) − s₀ − s · z)² + ridge ‖s‖²,\n"
        "z random subsets of the features, k(z) = exp(−d(z)² / 2 width²)",
        avoid="with few samples on long texts: scores then change with the seed; see `error`",
        references=("ribeiro-2016",),
    )

    word_options: ClassVar[Mapping[str, object]] = {"n_samples": 100, "paired": True}

    revision: ClassVar[int] = 4

    n_samples: Annotated[int, Bounds(2, MAX_SAMPLES)] = 1000
    baselines: Baseline = "pad"
    kernel_width: Annotated[float, Bounds(above=0)] = 1.0
    ridge: Annotated[float, Bounds(at_least=0)] = 1.0
    seed: int = 0
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = False
    error: Annotated[float, Bounds(above=0, below=1)] | None = None
    paired: bool = False

    @property
    def tags(self) -> MethodTags:
        """Its samples are what comprehensiveness and sufficiency read: texts without, or with only, some features."""
        return MethodTags(optimizes=sampled_measures(self.baselines))

    @in_evaluation_mode
    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed coefficients in float64; with `error` a `SampledAttribution`."""
        index = feature_index(batch, self.feature, special_tokens=self.special_tokens)
        if self.error is not None:
            predict = partial(self._predict_coefficients, self.error, model)
            return sample_texts(predict, model, batch, target, index, self.baselines, self.output)
        needed = 2 * feature_counts(index)
        if bool((needed > self.n_samples).any()):
            return explain_alone(self, model, batch, target, needed.clamp(min=self.n_samples))
        return Attribution(divide_among_units(self.coefficients(model, batch, target, index), index), index >= 0)

    def coefficients(self, model: Model, batch: Batch, target: Tensor, index: Tensor) -> Tensor:
        """Coefficients `[batch feature]` for a feature index `[batch unit]`."""

        def fit(rows: Tensor, texts: Batch, indices: Tensor) -> Tensor:
            coalitions = self.coalitions(texts, indices)
            removed = expand_to_units(~coalitions, indices)
            values = outputs_without(model, texts, target[rows], removed, self.baselines, self.output)
            weights = self.sample_weights(model, texts, indices, coalitions)
            return solve_ridge(*centered_moments(coalitions.double(), values, weights), self.ridge)

        return score_features(fit, batch, index, self.n_samples)

    def _predict_coefficients(
        self, error: float, model: Model, read: CoalitionReader, text: Batch, index: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        samples = max(self.n_samples, 2 * int(feature_counts(index)))
        coalitions = replace(self, n_samples=samples, error=None).coalitions(text, index)
        weights = self.sample_weights(model, text, index, coalitions)
        return predict_coefficients(read, coalitions[0], weights[0], self.ridge, error)

    def coalitions(self, batch: Batch, index: Tensor) -> Tensor:
        """The features that each sample keeps `[batch sample feature]`; False where a row has no such feature."""
        counts = feature_counts(index)
        width = max(1, int(counts.max()))
        present = (torch.arange(width, device=index.device) < counts.unsqueeze(1)).unsqueeze(1)
        drawn = -(-self.n_samples // 2) if self.paired else self.n_samples
        kept = sample_uniform(example_seeds("lime", self.seed, batch), drawn, width) < 0.5
        if self.paired:
            kept = torch.stack((kept, ~kept), 2).flatten(1, 2)[:, : self.n_samples]
        return kept & present

    def sample_weights(self, model: Model, batch: Batch, index: Tensor, coalitions: Tensor) -> Tensor:
        """The weight of each sample in the regression `[batch sample]`, in float64."""
        baseline = baseline_embeddings(model, batch, self.baselines, special_tokens=self.special_tokens)
        distance = 1 - _cosine_similarities(model, batch, ~expand_to_units(~coalitions, index), baseline)
        return torch.exp(-distance.double().square() / (2 * self.kernel_width**2))


def predict_coefficients(
    read: CoalitionReader, coalitions: Tensor, weights: Tensor, ridge: float, error: float
) -> tuple[Tensor, Tensor, int]:
    """Coefficients `[feature]` of the regression, their posterior errors, and how many outputs were read for them.

    Args:
        coalitions: of all samples.
        weights: of the samples in the regression `[sample]`.
    """
    # A coalition that is drawn again has the output of the first time.
    distinct, group = torch.unique(coalitions, dim=0, return_inverse=True)
    first_row = torch.full((len(distinct),), len(group), device=group.device)
    order = first_row.scatter_reduce(0, group, torch.arange(len(group), device=group.device), "amin").argsort()
    distinct, group = distinct[order], order.argsort()[group]
    # The coefficients are linear in the outputs: what each output contributes to them.
    features = coalitions.double()
    shares = weights / weights.sum()
    centered = features - shares @ features
    gram = (centered * weights.unsqueeze(1)).t() @ centered
    identity = torch.eye(len(weights), dtype=torch.float64, device=weights.device)
    cross = (centered * weights.unsqueeze(1)).t() @ (identity - shares)
    per_sample = solve_ridge(gram, cross, ridge)
    parts = torch.zeros(len(gram), len(distinct), dtype=torch.float64, device=group.device)
    parts.index_add_(1, group, per_sample)
    known, outputs = 0, torch.zeros(0, dtype=torch.float64, device=group.device)
    count = min(len(distinct), max(2, MIN_SAMPLES * features.shape[1]))
    while True:
        outputs = torch.cat((outputs, read(distinct[known:count])))
        known = count
        if known == len(distinct):
            return parts @ outputs, torch.zeros(len(parts), dtype=torch.float64, device=group.device), known
        scores, errors = _predict_sums(distinct, outputs, parts)
        if is_reached(scores, errors, error):
            return scores, errors, known
        count = next_count(known, len(distinct))


def _predict_sums(coalitions: Tensor, outputs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Means and posterior errors of weighted sums `[sum]` of the outputs of coalitions; the first ones are known."""
    known, level = len(outputs), outputs.mean()
    effects = solve_ridge(
        *centered_moments(coalitions[None, :known].double(), outputs[None], torch.ones_like(outputs)[None]), 1.0
    )[0]
    process = fit_process(coalitions[:known], outputs - level, effects)
    rest, errors = process.combine_outputs(coalitions[known:], weights[:, known:])
    return weights[:, :known] @ outputs + rest + weights[:, known:].sum(1) * level, errors


def _cosine_similarities(model: Model, batch: Batch, kept: Tensor, baseline: Tensor) -> Tensor:
    """Cosine between the flattened embeddings of a text and of its samples `[batch sample]`.

    The products of two flattened texts are sums over tokens of e.e where a token is kept, and of e.b or b.b where its
    embedding e is replaced by b; no perturbed embeddings are built.
    """
    with torch.no_grad():
        text = model.read_embeddings(batch).double()
    baseline, real, inside = baseline.double(), batch.mask.double(), kept.double()
    text_norm, across, other = (
        (a * b).sum(-1) * real for a, b in ((text, text), (text, baseline), (baseline, baseline))
    )

    def total(kept: Tensor, removed: Tensor) -> Tensor:
        return torch.einsum("bsu,bu->bs", inside, kept) + torch.einsum("bsu,bu->bs", 1 - inside, removed)

    lengths = text_norm.sum(1, keepdim=True).sqrt() * total(text_norm, other).sqrt()
    return total(text_norm, across) / lengths.clamp(min=1e-8)
