"""LIME: a linear model of what the model says when each unit is kept or taken away by the toss of a coin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions.asking import Baselines, baseline_vectors, check_baselines, lacking, row_blocks
from heedful.attributions.features import (
    Feature,
    among_units,
    check_feature,
    counts_of,
    feature_index,
    gone,
    on_units,
    shared_index,
)
from heedful.attributions.output import Output, check_output, explained
from heedful.core.randomness import hashed_uniform
from heedful.core.recipe import LATER
from heedful.core.ridge import centred_moments, ridge_solution
from heedful.core.types import Attribution, Batch, Model, UserError
from heedful.core.workspace import derived_seed

Distance = Literal["cosine", "hamming"]


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
    baselines: Baselines = "pad"
    kernel_width: float = 1.0
    distance: Distance = "cosine"
    ridge: float = 1.0
    seed: int = 0
    legacy: bool = False
    feature: Feature = "unit"
    output: Output = "probability"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_baselines(self.baselines, specials=self.specials)
        check_feature(self.feature)
        check_output(self.output)
        if self.distance not in get_args(Distance):
            raise UserError(f"there is no distance {self.distance!r}; choose one of {', '.join(get_args(Distance))}")
        if self.n_samples < 2 or self.kernel_width <= 0 or self.ridge < 0:
            raise UserError("Lime needs n_samples of 2 or more, a kernel_width above 0 and a ridge of 0 or more")
        if self.legacy and self.feature == "word":
            raise UserError("Lime(legacy=True) numbers units as Neely et al. did: leave feature='unit'")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed coefficients in float64; the systems of all instances are solved in one call."""
        index = self._index(batch)
        blocks = [self._moments(model, batch, target, rows) for rows in row_blocks(batch, self.n_samples)]
        width = max((gram.shape[-1] for gram, _ in blocks), default=1)
        grams = torch.cat([_widened(gram, width, 2) for gram, _ in blocks])
        crosses = torch.cat([_widened(cross, width, 1) for _, cross in blocks])
        found = ridge_solution(grams, crosses, self.ridge)
        scores = among_units(found, index) if self.feature == "word" else on_units(found, index)
        return Attribution(scores, index >= 0)

    def coalitions(self, batch: Batch) -> Tensor:
        """The features that each sample keeps `[batch sample feature]`; False where a row has no such feature."""
        index = self._index(batch)
        counts = counts_of(index)
        width = max(1, int(counts.max()))
        seeds = torch.tensor([derived_seed("lime", self.seed, uid) for uid in batch.uids], device=index.device)
        present = torch.arange(width, device=index.device) < counts.unsqueeze(1)
        return (hashed_uniform(seeds, self.n_samples, width) < 0.5) & present.unsqueeze(1)

    def weights(self, model: Model, batch: Batch, coalitions: Tensor) -> Tensor:
        """How much each sample counts `[batch sample]`, in float64."""
        index = self._index(batch)
        if self.distance == "hamming":
            far = 1 - coalitions.sum(2) / counts_of(index).clamp(min=1).unsqueeze(1)
        else:
            empty = baseline_vectors(model, batch, self.baselines, specials=self.specials)
            far = 1 - _cosines(model, batch, ~gone(coalitions, index), empty)
        return torch.exp(-far.double().square() / (2 * self.kernel_width**2))

    def _index(self, batch: Batch) -> Tensor:
        if self.legacy:
            return shared_index(batch, specials=self.specials)
        return feature_index(batch, self.feature, specials=self.specials)

    def _moments(self, model: Model, batch: Batch, target: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        part = batch.rows(rows)
        coalitions = self.coalitions(part)
        logits = lacking(model, part, gone(coalitions, self._index(part)), self.baselines)
        values = explained(model.task, logits, target[rows], self.output)
        return centred_moments(coalitions.double(), values, self.weights(model, part, coalitions))


def _cosines(model: Model, batch: Batch, kept: Tensor, empty: Tensor) -> Tensor:
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
    inner = _mixture(inside, own, across)
    lengths = own.sum(1, keepdim=True).sqrt() * _mixture(inside, own, other).sqrt()
    return inner / lengths.clamp(min=1e-8)


def _mixture(inside: Tensor, kept: Tensor, removed: Tensor) -> Tensor:
    """Sum over units of `kept` where a sample keeps a unit and of `removed` where it does not, `[batch sample]`."""
    return torch.einsum("bsu,bu->bs", inside, kept) + torch.einsum("bsu,bu->bs", 1 - inside, removed)


def _widened(values: Tensor, width: int, axes: int) -> Tensor:
    """Zeros behind the last features, along the last `axes` axes."""
    return torch.nn.functional.pad(values, (0, width - values.shape[-1]) * axes)
