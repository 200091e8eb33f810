"""Linear surrogates of many instances at once: weighted ridge regression, and least squares whose sum is given.

Each instance has its own samples, weights and number of features; a feature that an instance lacks is a column of zeros
and gets coefficient 0. All systems are solved in one batched call.

LIME: a linear model of what the model says when each unit is kept or taken away by the toss of a coin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions._base import (
    Feature,
    Output,
    check_feature,
    check_output,
    copy_to_units,
    divide_among_units,
    feature_counts,
    feature_index,
    legacy_feature_index,
    removed_units,
    target_output,
)
from heedful.attributions.perturbation import (
    PerturbationBaseline,
    baseline_embeddings,
    check_perturbation_baseline,
    logits_without,
    row_blocks,
)
from heedful.seeding import sample_uniform
from heedful.store.recipe import OMIT_IF_DEFAULT, derive_seed
from heedful.types import Attribution, Batch, Model, UserError


def fit_weighted_ridge(features: Tensor, values: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Coefficients `[batch feature]` that minimise sum_s w_s (y_s - c - x_s b)^2 + ridge |b|^2, the intercept c free.

    Args:
        features: `[batch sample feature]`, real numbers.
        values: `[batch sample]`.
        weights: `[batch sample]`, not normalised: they weigh against `ridge`.

    >>> features = torch.tensor([[[0.0], [1.0]]])
    >>> fit_weighted_ridge(features, torch.tensor([[3.0, 5.0]]), torch.ones(1, 2), ridge=0.5)
    tensor([[1.]])
    """
    return solve_ridge(*centered_moments(features, values, weights), ridge)


def centered_moments(features: Tensor, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """X'WX `[batch feature feature]` and X'Wy `[batch feature]`, with X and y taken about their weighted means."""
    total = weights.sum(1, keepdim=True)
    shares = weights / torch.where(total > 0, total, 1)
    away = features - torch.einsum("bs,bsf->bf", shares, features).unsqueeze(1)
    values = values - (shares * values).sum(1, keepdim=True)
    weighted = away * weights.unsqueeze(-1)
    return weighted.transpose(1, 2) @ away, torch.einsum("bsf,bs->bf", weighted, values)


def solve_ridge(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """(gram + ridge I)^-1 cross for each instance; without a ridge the shortest solution where there are many."""
    if ridge == 0:
        inverse: Tensor = torch.linalg.pinv(gram, hermitian=True)
        return (inverse @ cross.unsqueeze(-1)).squeeze(-1)
    damped = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    found: Tensor = torch.linalg.solve(damped, cross)
    return found


def solve_sum_constrained(gram: Tensor, cross: Tensor, total: Tensor, present: Tensor) -> Tensor:
    """The b `[batch feature]` that minimises b'Gb/2 - b'c among those whose sum is `total`.

    With P = I - 11'/n the projection on sums of zero, b = (total/n) 1 + (PGP + 11'/n)^-1 P (c - G 1 total/n).
    Features that are not `present` get 0.

    Args:
        gram: G, `[batch feature feature]`, positive on sums of zero.
        cross: c, `[batch feature]`.
        total: `[batch]`.
        present: which features an instance has, `[batch feature]`.
    """
    ones = present.to(gram)
    share = ones / ones.sum(1, keepdim=True).clamp(min=1)
    mean = ones.unsqueeze(2) * share.unsqueeze(1)
    project = torch.diag_embed(ones) - mean
    level = share * total.unsqueeze(1)
    rest = (project @ (cross.unsqueeze(-1) - gram @ level.unsqueeze(-1))).squeeze(-1)
    # The mean and the absent features, which rest has no part in, are given any positive value.
    scale = gram.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)[:, None, None]
    filled = project @ gram @ project + scale * (mean + torch.diag_embed(1 - ones))
    found: Tensor = torch.linalg.solve(filled, rest)
    return level + found * ones


LimeDistance = Literal["cosine", "hamming"]


@dataclass(frozen=True)
class Lime:
    """Coefficients of a weighted ridge regression of the output on which units are kept (Ribeiro et al. 2016).

    Each unit is kept with probability 1/2; a sample at distance d of the text weighs exp(-d^2 / (2 width^2)). Draws
    belong to (seed, uid). Defaults are those of Neely et al. (2022).

    Args:
        baselines: what stands in the place of a unit taken away; see `asking.Baselines`.
        distance: "cosine" of all the vectors of a text, flattened, or "hamming", the share of features taken away.
        ridge: penalty on the coefficients; the intercept has none.
        legacy: repeats a fault of Neely et al.: unit i of the first and unit i of the second text of a pair are one
            feature with one score.
        feature: "word" keeps or removes all pieces of a word together and shares its score equally among them.
        specials: special symbols are features too, each by itself, and may be taken away as words are.
    """

    n_samples: int = 1000
    baselines: PerturbationBaseline = "pad"
    kernel_width: float = 1.0
    distance: LimeDistance = "cosine"
    ridge: float = 1.0
    seed: int = 0
    legacy: bool = False
    feature: Feature = "unit"
    output: Output = "probability"
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_perturbation_baseline(self.baselines, special_tokens=self.special_tokens)
        check_feature(self.feature)
        check_output(self.output)
        if self.distance not in get_args(LimeDistance):
            raise UserError(
                f"there is no distance {self.distance!r}; choose one of {', '.join(get_args(LimeDistance))}"
            )
        if self.n_samples < 2 or self.kernel_width <= 0 or self.ridge < 0:
            raise UserError("Lime needs n_samples of 2 or more, a kernel_width above 0 and a ridge of 0 or more")
        if self.legacy and self.feature == "word":
            raise UserError("Lime(legacy=True) numbers units as Neely et al. did: leave feature='unit'")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed coefficients in float64; the systems of all instances are solved in one call."""
        index = self._index(batch)
        blocks = [self._moments(model, batch, target, rows) for rows in row_blocks(batch, self.n_samples)]
        width = max((gram.shape[-1] for gram, _ in blocks), default=1)
        grams = torch.cat([_pad_features(gram, width, 2) for gram, _ in blocks])
        crosses = torch.cat([_pad_features(cross, width, 1) for _, cross in blocks])
        found = solve_ridge(grams, crosses, self.ridge)
        scores = divide_among_units(found, index) if self.feature == "word" else copy_to_units(found, index)
        return Attribution(scores, index >= 0)

    def coalitions(self, batch: Batch) -> Tensor:
        """The features that each sample keeps `[batch sample feature]`; False where a row has no such feature."""
        index = self._index(batch)
        counts = feature_counts(index)
        width = max(1, int(counts.max()))
        seeds = torch.tensor([derive_seed("lime", self.seed, uid) for uid in batch.uids], device=index.device)
        present = torch.arange(width, device=index.device) < counts.unsqueeze(1)
        return (sample_uniform(seeds, self.n_samples, width) < 0.5) & present.unsqueeze(1)

    def sample_weights(self, model: Model, batch: Batch, coalitions: Tensor) -> Tensor:
        """How much each sample counts `[batch sample]`, in float64."""
        index = self._index(batch)
        if self.distance == "hamming":
            far = 1 - coalitions.sum(2) / feature_counts(index).clamp(min=1).unsqueeze(1)
        else:
            empty = baseline_embeddings(model, batch, self.baselines, special_tokens=self.special_tokens)
            far = 1 - _cosine_similarities(model, batch, ~removed_units(coalitions, index), empty)
        return torch.exp(-far.double().square() / (2 * self.kernel_width**2))

    def _index(self, batch: Batch) -> Tensor:
        if self.legacy:
            return legacy_feature_index(batch, special_tokens=self.special_tokens)
        return feature_index(batch, self.feature, special_tokens=self.special_tokens)

    def _moments(self, model: Model, batch: Batch, target: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        part = batch.rows(rows)
        coalitions = self.coalitions(part)
        logits = logits_without(model, part, removed_units(coalitions, self._index(part)), self.baselines)
        values = target_output(model.task, logits, target[rows], self.output)
        return centered_moments(coalitions.double(), values, self.sample_weights(model, part, coalitions))


def _cosine_similarities(model: Model, batch: Batch, kept: Tensor, empty: Tensor) -> Tensor:
    """Cosine between the vectors of a text and of its samples `[batch sample]`.

    Only inner products of each unit's vector e with itself and with what replaces it, b, are needed: the products of
    two flattened texts are sums of e.e over kept units, and of e.b or b.b over the others.
    """
    with torch.no_grad():
        whole = model(batch).embeddings.double()
    empty = empty.double()
    real = batch.mask.double()
    own, across, other = ((a * b).sum(-1) * real for a, b in ((whole, whole), (whole, empty), (empty, empty)))
    inside = kept.double()
    inner = _sum_by_membership(inside, own, across)
    lengths = own.sum(1, keepdim=True).sqrt() * _sum_by_membership(inside, own, other).sqrt()
    return inner / lengths.clamp(min=1e-8)


def _sum_by_membership(inside: Tensor, kept: Tensor, removed: Tensor) -> Tensor:
    """Sum over units of `kept` where a sample keeps a unit and of `removed` where it does not, `[batch sample]`."""
    return torch.einsum("bsu,bu->bs", inside, kept) + torch.einsum("bsu,bu->bs", 1 - inside, removed)


def _pad_features(values: Tensor, width: int, axes: int) -> Tensor:
    """Zeros behind the last features, along the last `axes` axes."""
    return torch.nn.functional.pad(values, (0, width - values.shape[-1]) * axes)
