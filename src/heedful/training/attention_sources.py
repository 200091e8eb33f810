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

from heedful.models.attentive import Attentive, AttentiveModel
from heedful.seeding import random_permutations, sample_uniform
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.types import SPLITS, Batch, Model, UserError

if TYPE_CHECKING:
    from heedful.training.trained_model import LoadedModel, TrainedModel

AttentionFunction = Callable[[Batch], Tensor]
"""Attention to be imposed on a batch."""


class AttentionSource(ABC):
    """Where imposed attention comes from; a `null` guide knows nothing that could help."""

    is_control: ClassVar[bool] = False

    @abstractmethod
    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """The attention that `model` is to use for a batch."""

    def count_uniform_fallbacks(self, workspace: Workspace) -> int:
        """On how many texts of all splits the guide has nothing to say, so that they are weighted uniformly."""
        return 0


@dataclass(frozen=True)
class UniformAttention(AttentionSource):
    """The same weight on every unit that may be attended to."""

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """One over the number of units, on each row of the model's attention."""
        places = AttentionLayout(model)

        def uniform(batch: Batch) -> Tensor:
            return places.expand_rows(uniform_weights(places.support(batch)))

        return uniform


@dataclass(frozen=True)
class FromModel(AttentionSource):
    """The attention of another subject on the same examples, in training and in test."""

    subject: TrainedModel

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """What the other subject attends to; it is asked once about each text of its corpus and never trained."""
        other = self.subject.restore(workspace)
        other.model.eval().requires_grad_(False)
        stored = (
            _AttentionCache(self.subject, other, workspace)
            if isinstance(self.subject.architecture, Attentive)
            else None
        )
        places = AttentionLayout(model)

        def borrowed(batch: Batch) -> Tensor:
            found = None if stored is None else stored.look_up(batch)
            if found is None:
                with torch.no_grad():
                    found = other.model(batch).attention
            return _check_attention_shape(found, places, batch)

        return borrowed


@dataclass(frozen=True)
class ShuffledAttention(AttentionSource):
    """Another guide's weights dealt to other units of the same text, by an order drawn from (seed, uid): a null.

    It keeps how unequal the weights are and forgets where they belong.
    """

    source: AttentionSource
    seed: int = 0
    is_control: ClassVar[bool] = True

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """The guide's weights in a random order of the units that may be attended to, the same in every epoch."""
        given, places = self.source.attention_function(model, workspace), AttentionLayout(model)

        def shuffled(batch: Batch) -> Tensor:
            weights = given(batch)
            support = places.support(batch)
            drawn, there = _random_unit_orders(_example_seeds("shuffled", self.seed, batch), support)
            # Unit `there` gets the weight of unit `drawn`; both lists begin with the same supported units.
            order, target = places.expand_rows(drawn), places.expand_rows(there)
            dealt = torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, order))
            return dealt * places.expand_rows(support)

        return shuffled

    def count_uniform_fallbacks(self, workspace: Workspace) -> int:
        """As the guide itself."""
        return self.source.count_uniform_fallbacks(workspace)


@dataclass(frozen=True)
class RandomAttention(AttentionSource):
    """Random weights: the softmax of standard normal numbers drawn from (seed, uid), a null."""

    seed: int = 0
    is_control: ClassVar[bool] = True

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """exp(z_t) / sum_u exp(z_u) over the units that may be attended to, the same in every epoch."""
        places = AttentionLayout(model)

        def scattered(batch: Batch) -> Tensor:
            support = places.support(batch)
            uniform = sample_uniform(_example_seeds("scattered", self.seed, batch), support.shape[1], support.shape[2])
            normal = torch.special.ndtri(uniform.clamp(min=2.0**-54))
            return places.expand_rows(torch.softmax(normal.masked_fill(~support, -torch.inf), -1).nan_to_num(0.0))

        return scattered


class AttentionLayout:
    """Where a model's attention may be, and rows of weights brought into the shape of that attention."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._heads: tuple[int, int] | None = None

    def support(self, batch: Batch) -> Tensor:
        """Units that may be attended to, `[batch row unit]`; a transformer has one row, that of its real units."""
        if isinstance(self.model, AttentiveModel):
            return self.model.input_format.support(batch)
        if self._heads is None:
            # The method, not the module: hooks would ask for the very weights that are being made.
            with torch.no_grad():
                shape = self.model.forward(batch).attention.shape
            self._heads = shape[1], shape[2]
        return batch.mask.unsqueeze(1)

    def expand_rows(self, rows: Tensor) -> Tensor:
        """Values `[batch row unit]` as `[batch layer head query unit]`; real numbers in the model's own type."""
        if rows.is_floating_point():
            rows = rows.to(next(self.model.parameters()).dtype)
        if self._heads is None:
            return rows[:, None, None]
        batch, _, units = rows.shape
        return rows[:, None, None].expand(batch, *self._heads, units, units)


def uniform_weights(support: Tensor) -> Tensor:
    """The same weight on every supported unit of a row, in float64; zero where there is none."""
    return support / support.sum(-1, keepdim=True).clamp(min=1).double()


def impose_attention(model: Model, weights: AttentionFunction) -> None:
    """Lets the model use these weights in every call that is given no attention."""

    def give(
        module: torch.nn.Module, args: tuple[Batch], doors: dict[str, Tensor | None]
    ) -> tuple[tuple[Batch], dict[str, Tensor | None]]:
        if doors.get("attention") is not None:
            return args, doors
        return args, {**doors, "attention": weights(args[0])}

    model.register_forward_pre_hook(give, with_kwargs=True)
    model.has_imposed_attention = True


class _AttentionCache:
    """A pooled subject's attention on its corpus, kept by the content of each text.

    Methods that delete or replace words call a model with the same uid and another text, which must be asked anew.
    """

    def __init__(self, subject: TrainedModel, trained: LoadedModel, workspace: Workspace) -> None:
        # Only here: answers are made of subjects, and subjects of objectives that name guides.
        from heedful.training.predictions import Predictions

        self.attention: list[Tensor] = []
        self.positions: dict[bytes, tuple[int, int]] = {}
        for number, split in enumerate(SPLITS):
            self.attention.append(workspace.get(Predictions(subject, split)).tensors["attention"])
            contents = _text_digests(trained.batch(split))
            self.positions |= {content: (number, row) for row, content in enumerate(contents)}

    def look_up(self, batch: Batch) -> Tensor | None:
        """The attention on these texts; None where one of them is not of the corpus."""
        places = [self.positions.get(content) for content in _text_digests(batch)]
        units = batch.mask.shape[1]
        found = torch.zeros(len(batch), *self.attention[0].shape[1:4], units)
        for row, place in enumerate(places):
            if place is None:
                return None
            kept = self.attention[place[0]][place[1]][..., :units]
            found[row, ..., : kept.shape[-1]] = kept
        return found.to(batch.mask.device)


def _text_digests(batch: Batch) -> list[bytes]:
    """A digest of each text: its units and the parts that they belong to."""
    inputs, segments, lengths = batch.inputs.cpu().numpy(), batch.segments.cpu().numpy(), batch.lengths.tolist()
    rows = ((inputs[row, :length], segments[row, :length]) for row, length in enumerate(lengths))
    return [hashlib.blake2b(units.tobytes() + parts.tobytes(), digest_size=16).digest() for units, parts in rows]


def _check_attention_shape(found: Tensor, layout: AttentionLayout, batch: Batch) -> Tensor:
    """The weights, which must have the shape of the learner's own attention."""
    support = layout.expand_rows(layout.support(batch))
    if found.shape != support.shape:
        raise UserError(
            f"attention of shape {tuple(found.shape)} cannot be borrowed by a model whose own is "
            f"{tuple(support.shape)}; take the other subject's scores by word: Scored(subject, RawAttention())"
        )
    return found.to(next(layout.model.parameters()).dtype)


def _random_unit_orders(seeds: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """The supported units of each row `[batch row unit]` in a random order and in their own; the others follow."""
    drawn = [random_permutations(seeds + row, 1, support[:, row])[:, 0] for row in range(support.shape[1])]
    return torch.stack(drawn, 1), torch.argsort((~support).to(torch.int8), dim=-1, stable=True)


def _example_seeds(purpose: str, seed: int, batch: Batch) -> Tensor:
    """A seed for each text, `[batch]`."""
    return torch.tensor([derive_seed(purpose, seed, uid) for uid in batch.uids], device=batch.mask.device)
