"""Attributions that change the input and watch the output, and the null that watches nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from heedful.attributions.asking import Baselines, check_baselines, lacking, row_blocks
from heedful.attributions.features import Feature, among_units, check_feature, counts_of, feature_index, units_of
from heedful.attributions.output import Output, check_output, explained
from heedful.attributions.references import replaced_units
from heedful.core.recipe import LATER
from heedful.core.types import Attribution, Batch, Model, UserError
from heedful.core.workspace import derived_seed


@dataclass(frozen=True)
class Occlusion:
    """How much the output loses when a window of units is taken away, averaged over the windows that cover a unit.

    Windows slide by one and stay inside their part of an example; a part shorter than the window is one window.

    Args:
        window: features taken away together.
        baselines: what stands in the place of a unit taken away; see `asking.Baselines`.
        feature: "word" takes all pieces of a word away together and shares its score equally among them.
        specials: special symbols are features too, each by itself, and may be taken away as words are.
    """

    window: int = 1
    baselines: Baselines = "pad"
    feature: Feature = "unit"
    output: Output = "probability"
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_baselines(self.baselines, specials=self.specials)
        check_feature(self.feature)
        check_output(self.output)
        if self.window < 1:
            raise UserError(f"Occlusion(window={self.window}): a window takes away 1 unit or more")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Signed losses in float64: a positive unit speaks for the target."""
        index = feature_index(batch, self.feature, specials=self.specials)
        scores = torch.zeros(index.shape, dtype=torch.float64, device=index.device)
        for rows in row_blocks(batch, batch.mask.shape[1]):
            part = batch.rows(rows)
            own = index[rows][:, : part.mask.shape[1]]
            covered = windows(part, own, self.window)
            out = units_of(torch.cat((torch.zeros_like(covered[:, :1]), covered), dim=1), own)
            values = explained(model.task, lacking(model, part, out, self.baselines), target[rows], self.output)
            cover = covered.double()
            loss = torch.einsum("bsf,bs->bf", cover, values[:, :1] - values[:, 1:]) / cover.sum(1).clamp(min=1)
            scores[rows] = among_units(loss, index[rows])
        return Attribution(scores, index >= 0)


def windows(batch: Batch, index: Tensor, window: int) -> Tensor:
    """The features that each window covers `[batch start feature]`; a window that leaves its part covers nothing."""
    width = max(1, int(counts_of(index).max()))
    part = torch.full((len(batch), width + 1), -1, device=index.device)
    # Units without a feature write their part into a last column that nobody reads.
    part.scatter_(1, index.masked_fill(index < 0, width), batch.segments)
    part = part[:, :width].masked_fill(torch.arange(width, device=index.device) >= counts_of(index).unsqueeze(1), -1)
    same = (part.unsqueeze(1) == part.unsqueeze(2)) & (part >= 0).unsqueeze(1)
    place = torch.arange(width, device=index.device)
    step = place - place.unsqueeze(1)  # from a window's start to a feature
    covered = same & (step >= 0) & (step < window)
    first = ~(same & (step < 0)).any(2)
    whole = covered.sum(2) == window
    return covered & (whole | first).unsqueeze(2)


@dataclass(frozen=True)
class Random:
    """Scores that know nothing: uniform on [0, 1), drawn from (seed, uid). The null of every comparison.

    Args:
        specials: special symbols are scored too.
    """

    seed: int = 0
    specials: bool = field(default=False, metadata=LATER)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The same scores for an example whatever stands beside it in the batch."""
        units = replaced_units(batch, specials=self.specials)
        scores = torch.zeros(units.shape)
        for row, uid in enumerate(batch.uids):
            generator = Generator().manual_seed(derived_seed("random", self.seed, uid))
            count = int(units[row].sum())
            scores[row, units[row].cpu()] = torch.rand(count, generator=generator)
        return Attribution(scores.to(batch.mask.device), units)
