"""Shapley values of units: what a unit adds to the output, averaged over all orders in which units could join."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.attributions.asking import Baselines, check_baselines, lacking, row_blocks
from heedful.attributions.coalitions import kernel_coalitions
from heedful.attributions.features import Feature, among_units, check_feature, counts_of, feature_index, gone
from heedful.attributions.output import Output, check_output, explained
from heedful.core.recipe import LATER
from heedful.core.ridge import summing_solution
from heedful.core.types import Attribution, Batch, Model, UserError
from heedful.core.workspace import derived_seed

MOST = 12
"""Features whose 2^n coalitions are all asked for."""


@dataclass(frozen=True)
class KernelShap:
    """Shapley values by a weighted regression on sampled coalitions (Lundberg & Lee 2017).

    Scores sum exactly to the output of the text minus that of the text with all units taken away: this is a constraint
    of the regression, not a large weight. With 2^n - 2 samples or more the values are the exact ones.

    Args:
        n_samples: coalitions asked for beside the empty and the whole one; at least two per unit. Draws belong to
            (seed, uid).
        baselines: what stands in the place of a unit taken away; see `asking.Baselines`.
        feature: "word" keeps or removes all pieces of a word together and shares its score equally among them.
        specials: special symbols are features too, each by itself, and may be taken away as words are.
    """

    n_samples: int = 1000
    baselines: Baselines = "pad"
    seed: int = 0
    feature: Feature = "unit"
    output: Output = "probability"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_baselines(self.baselines, specials=self.specials)
        check_feature(self.feature)
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed values in float64."""
        index = feature_index(batch, self.feature, specials=self.specials)
        counts = counts_of(index)
        needed = torch.where(counts < 31, (1 << counts.clamp(max=31)) - 2, 2 * counts).minimum(2 * counts)
        if bool((needed > self.n_samples).any()):
            row = int(needed.argmax())
            raise UserError(
                f"example {batch.uids[row]!r} has {int(counts[row])} features, too many for "
                f"KernelShap(n_samples={self.n_samples}): give n_samples={int(needed[row])} or more"
            )
        scores = torch.zeros(index.shape, dtype=torch.float64, device=index.device)
        for rows in row_blocks(batch, self.n_samples):
            found = self._solved(model, batch, target, rows)
            scores[rows] = among_units(found, index[rows])
        return Attribution(scores, index >= 0)

    def seeds(self, batch: Batch) -> Tensor:
        """The seed of each row `[batch]`."""
        return torch.tensor([derived_seed("kernel", self.seed, uid) for uid in batch.uids], device=batch.mask.device)

    def _solved(self, model: Model, batch: Batch, target: Tensor, rows: Tensor) -> Tensor:
        """Values `[row feature]` of some rows, whose systems are solved in one call."""
        part = batch.rows(rows)
        index = feature_index(part, self.feature, specials=self.specials)
        counts = counts_of(index)
        coalitions, weights = kernel_coalitions(self.seeds(part), counts, self.n_samples)
        present = torch.arange(coalitions.shape[2], device=index.device) < counts.unsqueeze(1)
        ends = torch.stack((torch.zeros_like(present), present), dim=1)
        out = gone(torch.cat((ends, coalitions), dim=1), index)
        values = explained(model.task, lacking(model, part, out, self.baselines), target[rows], self.output)
        weighted = coalitions.double() * weights.unsqueeze(-1)
        gram = weighted.transpose(1, 2) @ coalitions.double()
        cross = torch.einsum("bsf,bs->bf", weighted, values[:, 2:] - values[:, :1])
        return summing_solution(gram, cross, values[:, 1] - values[:, 0], present)


@dataclass(frozen=True)
class Shapley:
    """Exact Shapley values, from all 2^n coalitions of up to 12 features.

    phi_i = sum over coalitions S without i of |S|! (n - |S| - 1)! / n! (v(S and i) - v(S)). They sum to the output of
    the text minus that of the text with all units taken away.

    Args:
        baselines: what stands in the place of a unit taken away; see `asking.Baselines`.
        feature: "word" keeps or removes all pieces of a word together and shares its score equally among them.
        specials: special symbols are features too, each by itself, and may be taken away as words are.
    """

    baselines: Baselines = "pad"
    feature: Feature = "unit"
    output: Output = "probability"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_baselines(self.baselines, specials=self.specials)
        check_feature(self.feature)
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed values in float64."""
        index = feature_index(batch, self.feature, specials=self.specials)
        counts = counts_of(index)
        if bool((counts > MOST).any()):
            row = int(counts.argmax())
            raise UserError(
                f"example {batch.uids[row]!r} has {int(counts[row])} features, exact Shapley values take at most "
                f"{MOST}: use KernelShap, or leave longer texts out"
            )
        width = max(1, int(counts.max()))
        scores = torch.zeros(index.shape, dtype=torch.float64, device=index.device)
        for rows in row_blocks(batch, 1 << width):
            part = batch.rows(rows)
            coalitions = all_coalitions(width, index.device)
            own = index[rows][:, : part.mask.shape[1]]
            out = gone(coalitions.expand(len(rows), -1, -1), own)
            values = explained(model.task, lacking(model, part, out, self.baselines), target[rows], self.output)
            found = (marginal_weights(coalitions, counts[rows]) @ values.unsqueeze(-1)).squeeze(-1)
            scores[rows] = among_units(found, index[rows])
        return Attribution(scores, index >= 0)


def all_coalitions(count: int, device: torch.device) -> Tensor:
    """All coalitions of `count` features `[2^count feature]`: the bits of their numbers, lowest first."""
    numbers = torch.arange(1 << count, device=device).unsqueeze(1)
    return (numbers >> torch.arange(count, device=device)).bitwise_and_(1).bool()


def marginal_weights(coalitions: Tensor, counts: Tensor) -> Tensor:
    """The matrix `[batch feature coalition]` that turns values of coalitions into Shapley values.

    Entry (i, S) is (|S| - 1)! (n - |S|)! / n! where i is in S and -|S|! (n - |S| - 1)! / n! where it is not; 0 for
    features and coalitions beyond the n features of a row.
    """
    width = coalitions.shape[1]
    factorial = torch.ones(width + 1, dtype=torch.float64, device=coalitions.device)
    factorial[1:] = torch.arange(1, width + 1, dtype=torch.float64, device=coalitions.device).cumprod(0)
    n = counts[:, None, None]
    member = coalitions.t().unsqueeze(0)
    before = coalitions.sum(1) - member.long()
    after = n - 1 - before
    valid = (torch.arange(1 << width, device=n.device) < (1 << n)) & (torch.arange(width, device=n.device)[:, None] < n)
    weight = factorial[before] * factorial[after.clamp(min=0)] / factorial[n]
    return torch.where(valid, torch.where(member, weight, -weight), 0.0)
