"""What a pooled model says of a text without one of its units, for all units, without reading every text anew.

A deletion is a hole in the mask: the other units keep their places, and the model's own attention and decoder do the
rest. Recurrent encoders go on behind the gap (`gaps`); where a state depends on near neighbours only, scores and
contexts are mended at the few units whose state changes. Any other encoder reads the shortened texts in lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.core.types import Batch, Trace
from heedful.models.aligning import encoded_in_place, left_order, vectors_at
from heedful.models.encoders import BothWays, EncoderModule, SideBySide, TokenWise
from heedful.models.gaps import RecurrentGaps, neighbours, window_gaps
from heedful.models.shapes import Reading

if TYPE_CHECKING:
    from heedful.models.pooled import PooledModel

NUMBERS = 1 << 22
"""Numbers in the hidden states that are held at once: rows x deletions x units x dim."""


@torch.no_grad()
def without_each(model: PooledModel, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` without each `deletable` unit; elsewhere the logits of the whole text."""
    if model.imposed:
        raise ValueError("imposed attention is given to whole texts only: read the shortened texts anew")
    weight = next(model.parameters())
    found = torch.zeros(*batch.mask.shape, model.task.outputs, dtype=weight.dtype, device=weight.device)
    for rows in _buckets(batch, model.encoder_of(0).dim):
        texts = batch.rows(rows)
        trace = model(texts)
        found[rows] = trace.logits.unsqueeze(1)
        for number in range(len(model.shape.readers)):
            for row, unit, logits in _deleted(_Part.of(model, texts, trace, number)):
                found[rows[row], unit] = logits
    return found


def _buckets(batch: Batch, dim: int) -> Iterator[Tensor]:
    """Row numbers of texts of about equal length, as many as may be held at once."""
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    lengths = batch.lengths[order].tolist()
    start = 0
    while start < len(order):
        count = max(1, NUMBERS // (max(1, lengths[start]) ** 2 * dim))
        yield order[start : start + count]
        start += count


@dataclass(frozen=True)
class _Part:
    """One part of some texts, left-aligned: place p of a row is its unit `order[row, p]`.

    Args:
        deletable: places whose unit is to be deleted `[batch place]`.
        question: whether attention and decoder read a summary of this part.
    """

    model: PooledModel
    texts: Batch
    trace: Trace
    encoder: EncoderModule
    mask: Tensor
    order: Tensor
    real: Tensor
    deletable: Tensor
    question: bool

    @staticmethod
    def of(model: PooledModel, texts: Batch, trace: Trace, number: int) -> _Part:
        shape = model.shape
        mask = shape.parts(texts)[number]
        order, real = left_order(mask)
        deletable = texts.deletable.gather(1, order) & real
        question = shape.asks and number == len(shape.readers) - 1
        encoder = model.encoder_of(shape.readers[number])
        return _Part(model, texts, trace, encoder, mask, order, real, deletable, question)

    def lanes(self) -> Iterator[range]:
        """The places to be deleted, as many at a time as may be held."""
        wanted = self.deletable.any(0).nonzero()
        if not len(wanted):
            return
        start, stop = int(wanted[0, 0]), int(wanted[-1, 0]) + 1
        size = max(1, NUMBERS // (self.texts.mask.numel() * self.encoder.dim))
        for first in range(start, stop, size):
            yield range(first, min(first + size, stop))

    def holes(self, lanes: range) -> Tensor:
        """The unit that each lane deletes from each text, `[lane batch unit]`; none where none may be deleted."""
        here = slice(lanes.start, lanes.stop)
        place = self.order[:, here].t().unsqueeze(-1)
        none = torch.zeros(len(lanes), *self.texts.mask.shape, dtype=torch.bool, device=place.device)
        return none.scatter(2, place, self.deletable[:, here].t().unsqueeze(-1))


def _deleted(part: _Part) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, units and logits of the deletions from one part."""
    near = isinstance(part.encoder, SideBySide | TokenWise) and not part.question
    route: _Route | None = None
    for lanes in part.lanes():
        route = route or (_Near.of(part) if near else _Whole.of(part))
        lane, row = part.deletable[:, lanes.start : lanes.stop].t().nonzero(as_tuple=True)
        yield row, part.order[row, lane + lanes.start], route(lanes)[lane, row]


class _Route(ABC):
    """A way to the logits of deletions."""

    @abstractmethod
    def __call__(self, lanes: range) -> Tensor:
        """Logits `[lane batch output]` without the unit at each of these places."""


@dataclass(frozen=True)
class _Whole(_Route):
    """All states of each shortened text, then the model's own attention and decoder."""

    part: _Part
    gaps: RecurrentGaps | None

    @staticmethod
    def of(part: _Part) -> _Whole:
        if not isinstance(part.encoder, BothWays):
            return _Whole(part, None)
        embeddings = vectors_at(part.trace.embeddings, part.order)
        states = vectors_at(part.trace.hidden, part.order)
        return _Whole(part, RecurrentGaps.of(part.encoder, embeddings, states, part.real))

    def __call__(self, lanes: range) -> Tensor:
        part, rows = self.part, len(self.part.texts)
        holes = part.holes(lanes).flatten(0, 1)
        index = torch.arange(rows, device=holes.device).repeat(len(lanes))
        copies = part.texts.rows(index)
        copies = replace(copies, mask=copies.mask & ~holes, words=copies.words.masked_fill(holes, -1))
        hidden = self._hidden(lanes, index, holes)
        # Where hidden states are given, embeddings only pass through: any tensor saves looking them up.
        return part.model(copies, embeddings=hidden, hidden=hidden).logits.view(len(lanes), rows, -1)

    def _hidden(self, lanes: range, index: Tensor, holes: Tensor) -> Tensor:
        part = self.part
        others = part.trace.hidden * ~part.mask.unsqueeze(-1)
        if self.gaps is None:
            mask = part.mask[index] & ~holes
            return others[index] + encoded_in_place(part.encoder, part.trace.embeddings[index], mask)
        states = self.gaps(lanes)
        if len(part.model.shape.readers) == 1:
            return states.flatten(0, 1)
        place = part.order.unsqueeze(-1).expand_as(states)
        mended = others.expand(len(lanes), *others.shape).clone()
        return mended.scatter_add_(2, place, states * part.real.unsqueeze(-1)).flatten(0, 1)


@dataclass(frozen=True)
class _Near(_Route):
    """Scores and contexts of the whole text, mended at the units whose state changes.

    Args:
        reading: of the whole text.
        changed: new states of the neighbours of each place `[batch place neighbour dim]`.
        scores: their attention before normalising `[batch place neighbour]`.
    """

    part: _Part
    reading: Reading
    changed: Tensor
    scores: Tensor

    @staticmethod
    def of(part: _Part) -> _Near:
        model, encoder, rows = part.model, part.encoder, len(part.texts)
        reading = model.reading(part.texts, part.trace.hidden)
        changed = part.trace.hidden.new_zeros(rows, part.order.shape[1], 0, encoder.dim)
        if isinstance(encoder, SideBySide):
            changed = window_gaps(encoder, vectors_at(part.trace.embeddings, part.order), part.real)
        scores = model.attention(changed.flatten(1, 2), reading.question).view(changed.shape[:3])
        return _Near(part, reading, changed, scores)

    def __call__(self, lanes: range) -> Tensor:
        here, hidden = slice(lanes.start, lanes.stop), self.reading.hidden
        units = self._units(lanes)
        weights = self._weights(lanes, units)
        old = vectors_at(hidden, units.flatten(1).clamp(max=hidden.shape[1] - 1)).view(*units.shape, hidden.shape[-1])
        # A column of zeros stands for neighbours that do not exist.
        of_changed = torch.nn.functional.pad(weights, (0, 1)).gather(-1, _per_query(units, weights))
        mended = torch.einsum("blqm,blmd->blqd", of_changed, self.changed[:, here] - old)
        return self._decoded(self.reading.contexts(weights) + mended).transpose(0, 1)

    def _units(self, lanes: range) -> Tensor:
        """The neighbours of each lane's unit `[batch lane neighbour]`; one past the last where there is none."""
        part, places = self.part, self.part.real.shape[1]
        count = self.changed.shape[2]
        offsets = torch.tensor(neighbours(count // 2), dtype=torch.int64, device=part.real.device)
        place = torch.arange(lanes.start, lanes.stop, device=offsets.device).unsqueeze(1) + offsets
        inside = place.clamp(0, places - 1)
        exists = part.real[:, inside] & (place == inside)
        return part.order[:, inside].masked_fill(~exists, part.texts.mask.shape[1])

    def _weights(self, lanes: range, units: Tensor) -> Tensor:
        """Attention after each deletion `[batch lane query unit]`."""
        part, given = self.part, self.part.trace.scores
        if given is None:
            raise ValueError("scores of the whole text are needed")
        # A unit is supported by one query at most, and scores are zero off the support.
        old = torch.nn.functional.pad(given[:, 0, 0].sum(1), (0, 1)).unsqueeze(1).expand(-1, len(lanes), -1)
        scores = old.scatter(2, units, self.scores[:, lanes.start : lanes.stop])[..., :-1].unsqueeze(2)
        support = part.model.shape.support(part.texts).unsqueeze(1) & ~part.holes(lanes).transpose(0, 1).unsqueeze(2)
        return part.model.normaliser(scores.expand_as(support), support)

    def _decoded(self, contexts: Tensor) -> Tensor:
        """Logits of contexts `[batch lane query dim]`: each context is a state that gets all the attention."""
        rows, lanes, queries = contexts.shape[:3]
        question, candidates = (
            None if each is None else each.repeat_interleave(lanes, dim=0)
            for each in (self.reading.question, self.reading.candidates)
        )
        attention = torch.eye(queries, dtype=contexts.dtype, device=contexts.device).expand(rows * lanes, -1, -1)
        logits: Tensor = self.part.model.decoder(Reading(contexts.flatten(0, 1), question, candidates), attention)
        return logits.view(rows, lanes, -1)


def _per_query(units: Tensor, weights: Tensor) -> Tensor:
    return units.unsqueeze(2).expand(-1, -1, weights.shape[2], -1)
