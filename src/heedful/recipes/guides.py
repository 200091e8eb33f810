"""Guides: where imposed attention comes from, as weights `[batch layer head query unit]` for a batch.

`Uniform` weighs all units alike, `Borrowed` takes another subject's attention; `Shuffled` and `Scattered` are nulls
that a guide worth its name must beat. Every weight depends on its text alone, never on the company in a batch, so a
text is weighted alike in every epoch and in the test. Scores of attribution methods as guides: `recipes.scored`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from heedful.core.randomness import hashed_uniform, random_orders
from heedful.core.types import SPLITS, Batch, Model, UserError
from heedful.core.workspace import Workspace, derived_seed
from heedful.models.pooled import Pooled, PooledModel

if TYPE_CHECKING:
    from heedful.recipes.subject import Subject, Trained

Weights = Callable[[Batch], Tensor]
"""Attention to be imposed on a batch."""


class Guide(ABC):
    """Where imposed attention comes from; a `null` guide knows nothing that could help."""

    null: ClassVar[bool] = False

    @abstractmethod
    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """The attention that `model` is to use for a batch."""

    def silent(self, workspace: Workspace) -> int:
        """On how many texts of all splits the guide has nothing to say, so that they are weighted uniformly."""
        return 0


@dataclass(frozen=True)
class Uniform(Guide):
    """The same weight on every unit that may be attended to."""

    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """One over the number of units, on each row of the model's attention."""
        places = Places(model)

        def uniform(batch: Batch) -> Tensor:
            return places.filled(evenly(places.rows(batch)))

        return uniform


@dataclass(frozen=True)
class Borrowed(Guide):
    """The attention of another subject on the same examples, in training and in test."""

    subject: Subject

    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """What the other subject attends to; it is asked once about each text of its corpus and never trained."""
        other = self.subject.restore(workspace)
        other.model.eval().requires_grad_(False)
        stored = _Stored(self.subject, other, workspace) if isinstance(self.subject.model, Pooled) else None
        places = Places(model)

        def borrowed(batch: Batch) -> Tensor:
            found = None if stored is None else stored.look_up(batch)
            if found is None:
                with torch.no_grad():
                    found = other.model(batch).attention
            return _fitting(found, places, batch)

        return borrowed


@dataclass(frozen=True)
class Shuffled(Guide):
    """Another guide's weights dealt to other units of the same text, by an order drawn from (seed, uid): a null.

    It keeps how unequal the weights are and forgets where they belong.
    """

    guide: Guide
    seed: int = 0
    null: ClassVar[bool] = True

    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """The guide's weights in a random order of the units that may be attended to, the same in every epoch."""
        given, places = self.guide.weights(model, workspace), Places(model)

        def shuffled(batch: Batch) -> Tensor:
            weights = given(batch)
            support = places.rows(batch)
            drawn, there = _orders(_seeds("shuffled", self.seed, batch), support)
            # Unit `there` gets the weight of unit `drawn`; both lists begin with the same supported units.
            order, target = places.filled(drawn), places.filled(there)
            dealt = torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, order))
            return dealt * places.filled(support)

        return shuffled

    def silent(self, workspace: Workspace) -> int:
        """As the guide itself."""
        return self.guide.silent(workspace)


@dataclass(frozen=True)
class Scattered(Guide):
    """Random weights: the softmax of standard normal numbers drawn from (seed, uid), a null."""

    seed: int = 0
    null: ClassVar[bool] = True

    def weights(self, model: Model, workspace: Workspace) -> Weights:
        """exp(z_t) / sum_u exp(z_u) over the units that may be attended to, the same in every epoch."""
        places = Places(model)

        def scattered(batch: Batch) -> Tensor:
            support = places.rows(batch)
            uniform = hashed_uniform(_seeds("scattered", self.seed, batch), support.shape[1], support.shape[2])
            normal = torch.special.ndtri(uniform.clamp(min=2.0**-54))
            return places.filled(torch.softmax(normal.masked_fill(~support, -torch.inf), -1).nan_to_num(0.0))

        return scattered


class Places:
    """Where a model's attention may be, and rows of weights brought into the shape of that attention."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._heads: tuple[int, int] | None = None

    def rows(self, batch: Batch) -> Tensor:
        """Units that may be attended to, `[batch row unit]`; a transformer has one row, that of its real units."""
        if isinstance(self.model, PooledModel):
            return self.model.shape.support(batch)
        if self._heads is None:
            # The method, not the module: hooks would ask for the very weights that are being made.
            with torch.no_grad():
                shape = self.model.forward(batch).attention.shape
            self._heads = shape[1], shape[2]
        return batch.mask.unsqueeze(1)

    def filled(self, rows: Tensor) -> Tensor:
        """Values `[batch row unit]` as `[batch layer head query unit]`; real numbers in the model's own type."""
        if rows.is_floating_point():
            rows = rows.to(next(self.model.parameters()).dtype)
        if self._heads is None:
            return rows[:, None, None]
        batch, _, units = rows.shape
        return rows[:, None, None].expand(batch, *self._heads, units, units)


def evenly(support: Tensor) -> Tensor:
    """The same weight on every supported unit of a row, in float64; zero where there is none."""
    return support / support.sum(-1, keepdim=True).clamp(min=1).double()


def impose(model: Model, weights: Weights) -> None:
    """Lets the model use these weights in every call that is given no attention."""

    def give(
        module: torch.nn.Module, args: tuple[Batch], doors: dict[str, Tensor | None]
    ) -> tuple[tuple[Batch], dict[str, Tensor | None]]:
        if doors.get("attention") is not None:
            return args, doors
        return args, {**doors, "attention": weights(args[0])}

    model.register_forward_pre_hook(give, with_kwargs=True)
    model.imposed = True


class _Stored:
    """A pooled subject's attention on its corpus, kept by the content of each text.

    Methods that delete or replace words call a model with the same uid and another text, which must be asked anew.
    """

    def __init__(self, subject: Subject, trained: Trained, workspace: Workspace) -> None:
        # Only here: answers are made of subjects, and subjects of objectives that name guides.
        from heedful.recipes.answers import Answers

        self.attention: list[Tensor] = []
        self.places: dict[bytes, tuple[int, int]] = {}
        for number, split in enumerate(SPLITS):
            self.attention.append(workspace.get(Answers(subject, split)).tensors["attention"])
            contents = _contents(trained.batch(split))
            self.places |= {content: (number, row) for row, content in enumerate(contents)}

    def look_up(self, batch: Batch) -> Tensor | None:
        """The attention on these texts; None where one of them is not of the corpus."""
        places = [self.places.get(content) for content in _contents(batch)]
        units = batch.mask.shape[1]
        found = torch.zeros(len(batch), *self.attention[0].shape[1:4], units)
        for row, place in enumerate(places):
            if place is None:
                return None
            kept = self.attention[place[0]][place[1]][..., :units]
            found[row, ..., : kept.shape[-1]] = kept
        return found.to(batch.mask.device)


def _contents(batch: Batch) -> list[bytes]:
    """A digest of each text: its units and the parts that they belong to."""
    inputs, segments, lengths = batch.inputs.cpu().numpy(), batch.segments.cpu().numpy(), batch.lengths.tolist()
    rows = ((inputs[row, :length], segments[row, :length]) for row, length in enumerate(lengths))
    return [hashlib.blake2b(units.tobytes() + parts.tobytes(), digest_size=16).digest() for units, parts in rows]


def _fitting(found: Tensor, places: Places, batch: Batch) -> Tensor:
    """The weights, which must have the shape of the learner's own attention."""
    support = places.filled(places.rows(batch))
    if found.shape != support.shape:
        raise UserError(
            f"attention of shape {tuple(found.shape)} cannot be borrowed by a model whose own is "
            f"{tuple(support.shape)}; take the other subject's scores by word: Scored(subject, RawAttention())"
        )
    return found.to(next(places.model.parameters()).dtype)


def _orders(seeds: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """The supported units of each row `[batch row unit]` in a random order and in their own; the others follow."""
    drawn = [random_orders(seeds + row, 1, support[:, row])[:, 0] for row in range(support.shape[1])]
    return torch.stack(drawn, 1), torch.argsort((~support).to(torch.int8), dim=-1, stable=True)


def _seeds(purpose: str, seed: int, batch: Batch) -> Tensor:
    """A seed for each text, `[batch]`."""
    return torch.tensor([derived_seed(purpose, seed, uid) for uid in batch.uids], device=batch.mask.device)
