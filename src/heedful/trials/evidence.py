"""From scores to evidence: which units are taken away in which order, and the model's answers to all of it at once.

The answers come from the one engine of everything that perturbs, `attributions.asking`: what curves of several methods
ask alike is read once. What a method itself asked is not asked again where one `core.remembering.remembering` is open
around both; recipes open none for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.asking import Baselines, asked
from heedful.core.faithfulness import MEASURES, Direction, Evidence, Measure, bin_counts, places_by_score, step_counts
from heedful.core.randomness import hashed_uniform
from heedful.core.types import Attribution, Batch, Model, UserError
from heedful.core.workspace import derived_seed
from heedful.trials.comparing import quantised

RESOLUTION = 1e-9
"""Scores closer than this share of the largest are ties, as in agreement."""


@dataclass(frozen=True)
class Probing:
    """How a model is asked.

    Args:
        remove: what becomes of a unit that is taken away: another symbol, the zero vector, or the gap is closed.
        steps: points of a curve beside its beginning.
        samples: random removals, each unit with a chance of one half, the same ones for every method.
        seed: of the random removals and of the order of ties, together with each text's uid.
    """

    remove: Baselines = "delete"
    steps: int = 20
    samples: int = 32
    seed: int = 0

    def __call__(self, model: Model, batch: Batch, target: Tensor, scores: Tensor) -> Evidence:
        """Evidence for scores `[method batch unit]` of the outputs `target` `[batch]`; rows method after method."""
        questions = self._questions(batch, scores)
        said = model.task.probabilities(asked(model, batch, questions.kept, self.remove).double())
        values = said.gather(2, target.reshape(-1, 1, 1).expand(-1, said.shape[1], 1)).squeeze(2)
        answers = questions.sorted(values)
        decisions = said.argmax(-1)
        flipped = questions.sorted(decisions != decisions[:, -1:]).deleted if said.shape[2] > 1 else None
        methods, units = len(scores), batch.scored.sum(1, keepdim=True)
        return Evidence(
            scores=scores.double().masked_fill(~batch.scored, 0.0).flatten(0, 1),
            mask=batch.scored.repeat(methods, 1),
            whole=values[:, -1].repeat(methods),
            shares=(questions.steps.double() / units.clamp(min=1)).repeat(methods, 1),
            deleted=answers.deleted,
            inserted=answers.inserted,
            flipped=flipped,
            without=answers.without,
            only=answers.only,
            removed=questions.removed.repeat(methods, 1, 1),
            after=answers.after.repeat(methods, 1),
        )

    def _questions(self, batch: Batch, scores: Tensor) -> _Questions:
        units, seeds = batch.scored.sum(1), _seeds("ties", self.seed, batch)
        ranked = quantised(scores.transpose(0, 1), batch.scored, RESOLUTION).transpose(0, 1)
        # The lot that orders ties is the same for every method.
        places = torch.stack([places_by_score(each, batch.scored, seeds) for each in ranked])
        drawn = hashed_uniform(_seeds("removed", self.seed, batch), self.samples, batch.mask.shape[1])
        removed = (drawn < 0.5) & batch.scored.unsqueeze(1)
        return _Questions(places, step_counts(units, self.steps), bin_counts(units), removed)


@dataclass(frozen=True)
class _Answers:
    """Answers to deletions and insertions, `[method * batch ...]`, and to random removals `[batch sample]`."""

    deleted: Tensor
    inserted: Tensor
    without: Tensor
    only: Tensor
    after: Tensor


@dataclass(frozen=True)
class _Questions:
    """What a model is asked about a batch.

    Args:
        places: `[method batch unit]`, 0 for the unit that goes first.
        steps: units taken at each step of a curve `[batch step]`.
        bins: units in each bin `[batch bin]`.
        removed: units taken away by chance `[batch sample unit]`.
    """

    places: Tensor
    steps: Tensor
    bins: Tensor
    removed: Tensor

    @property
    def kept(self) -> Tensor:
        """All methods' questions in one `[batch question unit]`, so that what coincides is asked once.

        Deletions and insertions of each method, at steps and bins; random removals; the whole text.
        """
        counts = torch.cat((self.steps, self.bins), dim=1)
        top = self.places.unsqueeze(2) < counts.unsqueeze(-1)
        asked = torch.stack((~top, top), dim=2).transpose(0, 1).flatten(1, 3)
        return torch.cat((asked, ~self.removed, torch.ones_like(self.removed[:, :1])), dim=1)

    def sorted(self, values: Tensor) -> _Answers:
        """The answers `[batch question]`, told apart."""
        methods, steps, samples = len(self.places), self.steps.shape[1], self.removed.shape[1]
        by_method, after = values[:, : -samples - 1], values[:, -samples - 1 : -1]
        apart = by_method.reshape(len(values), methods, 2, -1).permute(2, 1, 0, 3).flatten(1, 2)
        (deleted, without), (inserted, only) = (each.tensor_split([steps], dim=1) for each in apart)
        return _Answers(deleted, inserted, without, only, after)


@dataclass(frozen=True)
class Judge:
    """A measure of faithfulness as one question: how good is this explanation of this model?

    `heedful.checking.check_measure` puts it to the test; a measure of one's own needs no more than these two: a
    `direction`, and the call.
    """

    measure: Measure = MEASURES["aopc_comprehensiveness"]
    probing: Probing = Probing()

    @property
    def direction(self) -> Direction:
        """Which numbers are better."""
        return self.measure.direction

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        """One number per text `[batch]`; NaN where undefined."""
        evidence = self.probing(model, batch, target, attribution.scores.unsqueeze(0))
        return self.measure.of(evidence)


def looked_up(tables: Mapping[str, pd.DataFrame], batch: Batch) -> Tensor:
    """The scores of each method's table, indexed by uid, for the texts of a batch: `[method batch unit]`."""
    scores = torch.zeros(len(tables), *batch.mask.shape, dtype=torch.float64)
    for place, (name, table) in enumerate(tables.items()):
        for row, values in enumerate(table.loc[list(batch.uids), "scores"]):
            scores[place, row, : len(values)] = torch.as_tensor(values, dtype=torch.float64)
        odd = (~scores[place].isfinite()).sum(1)
        if bool(odd.any()):
            row = int(odd.argmax())
            raise UserError(
                f"{name} gave scores of {batch.uids[row]!r} that are no finite numbers ({int(odd[row])} of them): mend "
                "the method or leave it out"
            )
    return scores.to(batch.mask.device)


def _seeds(kind: str, seed: int, batch: Batch) -> Tensor:
    numbers = [derived_seed(kind, seed, uid) for uid in batch.uids]
    return torch.tensor(numbers, device=batch.mask.device)
