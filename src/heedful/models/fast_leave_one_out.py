"""Hidden states on both sides of a deleted unit, from what was computed for the whole text.

A recurrent cell that meets a gap goes on from the state before it; states on its near side stay as they were. What a
cell or a window makes of each input is computed once for all deletions. All deletions of a text advance together: one
*lane* per deleted place, and one lane that deletes nothing and hands its state to each lane as that begins.

What a pooled model says of a text without one of its units, for all units, without reading every text anew.

A deletion is a hole in the mask: the other units keep their places, and the model's own attention and decoder do the
rest. Recurrent encoders go on behind the gap (`gaps`); where a state depends on near neighbours only, scores and
contexts are mended at the few units whose state changes. Any other encoder reads the shortened texts in lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from heedful.models.encoders import BidirectionalEncoder, ConvolutionalEncoder, EncoderModule, TokenwiseEncoder
from heedful.models.input_forms import DecoderInput, encode_part, gather_vectors, left_order
from heedful.types import Batch, Trace

if TYPE_CHECKING:
    from heedful.models.attentive import AttentiveModel


class _RecurrentCell(ABC):
    """A recurrent cell over given inputs `[batch place width]`, one place at a time for many lanes."""

    state_count: int

    def __init__(self, cell: nn.LSTM | nn.GRU, inputs: Tensor) -> None:
        self.width = cell.hidden_size
        self.weight = cast(Tensor, cell.weight_hh_l0).t()
        self.recurrent_bias = cast(Tensor, cell.bias_hh_l0)
        self.inputs = nn.functional.linear(inputs, cast(Tensor, cell.weight_ih_l0), cast(Tensor, cell.bias_ih_l0))
        self.inputs = self.inputs.transpose(0, 1).contiguous()

    @abstractmethod
    def __call__(self, state: Tensor, place: int) -> None:
        """Advances `[memory lane batch width]` over one place, in place; memory 0 is the hidden state."""

    def recurrent_gates(self, state: Tensor) -> Tensor:
        """What the hidden states say to the gates, `[lane batch gate]`."""
        gates = torch.addmm(self.recurrent_bias, state[0].flatten(0, 1), self.weight)
        return gates.view(*state.shape[1:3], -1)


class _LSTMCell(_RecurrentCell):
    state_count = 2

    def __call__(self, state: Tensor, place: int) -> None:
        gates = self.recurrent_gates(state).add_(self.inputs[place])
        entry, forget, new, leave = gates.chunk(4, dim=-1)
        state[1].mul_(forget.sigmoid_()).addcmul_(entry.sigmoid_(), new.tanh_())
        torch.tanh(state[1], out=state[0]).mul_(leave.sigmoid_())


class _GRUCell(_RecurrentCell):
    state_count = 1

    def __call__(self, state: Tensor, place: int) -> None:
        again, given = self.recurrent_gates(state), self.inputs[place]
        reset, update = (again[..., : 2 * self.width] + given[:, : 2 * self.width]).sigmoid_().chunk(2, dim=-1)
        new = torch.addcmul(given[:, 2 * self.width :], reset, again[..., 2 * self.width :]).tanh_()
        # (1 - update) * new + update * old
        state[0].sub_(new).mul_(update).add_(new)


@dataclass(frozen=True)
class RecurrentLeaveOneOut:
    """States of a recurrent encoder when one unit is missing; the inputs of both cells are prepared once.

    Args:
        states: of the whole text `[batch place dim]`.
        real: which places hold a unit `[batch place]`; texts are left-aligned.
    """

    forward_cell: _RecurrentCell
    backward_cell: _RecurrentCell
    states: Tensor
    real: Tensor

    @staticmethod
    def of(encoder: BidirectionalEncoder, embeddings: Tensor, states: Tensor, real: Tensor) -> RecurrentLeaveOneOut:
        """The gaps of these left-aligned texts."""
        kind = _LSTMCell if isinstance(encoder.forward_cell, nn.LSTM) else _GRUCell
        return RecurrentLeaveOneOut(
            kind(encoder.forward_cell, embeddings), kind(encoder.backward_cell, embeddings), states, real
        )

    def __call__(self, lanes: range) -> Tensor:
        """States `[lane batch place dim]` without the unit at each place of `lanes`; no meaning at that place."""
        found = self.states.expand(len(lanes), *self.states.shape).clone()
        width = self.forward_cell.width
        for place, behind, state in self._run_forward(lanes):
            found[:behind, :, place, :width] = state
        for place, before, state in self._run_backward(lanes):
            found[before:, :, place, width:] = state
        return found

    def _run_forward(self, lanes: range) -> Iterator[tuple[int, int, Tensor]]:
        """Each place with the number of lanes whose gap is before it, and their states."""
        state = self._initial_state(lanes)
        for place in range(self.real.shape[1]):
            begun = min(max(place - lanes.start, 0), len(lanes))
            if place in lanes:
                state[:, begun + 1] = state[:, 0]
            self.forward_cell(state[:, : begun + 1], place)
            yield place, begun, state[0, 1 : begun + 1]

    def _run_backward(self, lanes: range) -> Iterator[tuple[int, int, Tensor]]:
        """Each place, from the last, with the first lane whose gap is behind it, and the states from there on."""
        state = self._initial_state(lanes)
        full = self.real.all(0).tolist()
        for place in reversed(range(self.real.shape[1])):
            begun = min(max(place + 1 - lanes.start, 0), len(lanes))
            if place in lanes:
                state[:, begun - 1] = state[:, -1]
            active = state[:, begun:]
            self.backward_cell(active, place)
            if not full[place]:
                # Reading from the end, a text begins at its last real unit, in the state zero.
                active.mul_(self.real[:, place, None])
            yield place, begun, active[0, :-1]

    def _initial_state(self, lanes: range) -> Tensor:
        shape = (self.forward_cell.state_count, len(lanes) + 1, len(self.real), self.forward_cell.width)
        return self.states.new_zeros(shape)


def convolution_leave_one_out(encoder: ConvolutionalEncoder, embeddings: Tensor, real: Tensor) -> Tensor:
    """States `[batch place neighbour dim]` of the `reach` units before and behind each place when that is deleted.

    What each tap of a window makes of each unit is computed once; a window over a gap adds up other taps.
    """
    inputs = embeddings * real.unsqueeze(-1)
    kernels = [
        _kernel_leave_one_out(cast(nn.Conv1d, window), inputs, encoder.context_radius)
        for window in encoder.convolutions
    ]
    return torch.relu(torch.cat(kernels, dim=-1))


def neighbor_offsets(radius: int) -> list[int]:
    """Offsets of the units that a deletion may change, in the order of `window_gaps`.

    >>> neighbor_offsets(2)
    [-2, -1, 1, 2]
    """
    return [*range(-radius, 0), *range(1, radius + 1)]


def _kernel_leave_one_out(convolution: nn.Conv1d, inputs: Tensor, radius: int) -> Tensor:
    places, kernel = inputs.shape[1], convolution.kernel_size[0]
    taps = torch.einsum("bpi,fit->tbpf", inputs, convolution.weight)
    taps = nn.functional.pad(taps, (0, 0, 2 * radius, 2 * radius))
    found = taps.new_zeros(len(inputs), places, 2 * radius, convolution.out_channels)
    if convolution.bias is not None:
        found += convolution.bias
    for number, offset in enumerate(neighbor_offsets(radius)):
        for tap in range(kernel):
            first = 2 * radius + _offset_across_gap(offset, tap - kernel // 2)
            found[:, :, number] += taps[tap, :, first : first + places]
    return found


def _offset_across_gap(offset: int, step: int) -> int:
    """Where a unit at `offset` from a gap at 0 finds its neighbour `step` places on, once the gap is closed."""
    there = offset + step
    if offset < 0 <= there:
        return there + 1
    return there - 1 if there <= 0 < offset else there


MAX_ELEMENTS = 1 << 22
"""Numbers in the hidden states that are held at once: rows x deletions x units x dim."""


@torch.no_grad()
def leave_one_out_logits(model: AttentiveModel, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` without each `deletable` unit; elsewhere the logits of the whole text."""
    if model.has_imposed_attention:
        raise ValueError("imposed attention is given to whole texts only: read the shortened texts anew")
    weight = next(model.parameters())
    found = torch.zeros(*batch.mask.shape, model.task.num_outputs, dtype=weight.dtype, device=weight.device)
    for rows in _length_buckets(batch, model.get_encoder(0).dim):
        texts = batch.rows(rows)
        trace = model(texts)
        found[rows] = trace.logits.unsqueeze(1)
        for number in range(len(model.input_format.part_encoders)):
            for row, unit, logits in _leave_one_out_part(_LeftAlignedPart.of(model, texts, trace, number)):
                found[rows[row], unit] = logits
    return found


def _length_buckets(batch: Batch, dim: int) -> Iterator[Tensor]:
    """Row numbers of texts of about equal length, as many as may be held at once."""
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    lengths = batch.lengths[order].tolist()
    start = 0
    while start < len(order):
        count = max(1, MAX_ELEMENTS // (max(1, lengths[start]) ** 2 * dim))
        yield order[start : start + count]
        start += count


@dataclass(frozen=True)
class _LeftAlignedPart:
    """One part of some texts, left-aligned: place p of a row is its unit `order[row, p]`.

    Args:
        deletable: places whose unit is to be deleted `[batch place]`.
        question: whether attention and decoder read a summary of this part.
    """

    model: AttentiveModel
    texts: Batch
    trace: Trace
    encoder: EncoderModule
    mask: Tensor
    order: Tensor
    real: Tensor
    deletable: Tensor
    is_question: bool

    @staticmethod
    def of(model: AttentiveModel, texts: Batch, trace: Trace, number: int) -> _LeftAlignedPart:
        shape = model.input_format
        mask = shape.part_masks(texts)[number]
        order, real = left_order(mask)
        deletable = texts.deletable_mask.gather(1, order) & real
        question = shape.has_question and number == len(shape.part_encoders) - 1
        encoder = model.get_encoder(shape.part_encoders[number])
        return _LeftAlignedPart(model, texts, trace, encoder, mask, order, real, deletable, question)

    def lane_ranges(self) -> Iterator[range]:
        """The places to be deleted, as many at a time as may be held."""
        wanted = self.deletable.any(0).nonzero()
        if not len(wanted):
            return
        start, stop = int(wanted[0, 0]), int(wanted[-1, 0]) + 1
        size = max(1, MAX_ELEMENTS // (self.texts.mask.numel() * self.encoder.dim))
        for first in range(start, stop, size):
            yield range(first, min(first + size, stop))

    def deletion_mask(self, lanes: range) -> Tensor:
        """The unit that each lane deletes from each text, `[lane batch unit]`; none where none may be deleted."""
        here = slice(lanes.start, lanes.stop)
        place = self.order[:, here].t().unsqueeze(-1)
        none = torch.zeros(len(lanes), *self.texts.mask.shape, dtype=torch.bool, device=place.device)
        return none.scatter(2, place, self.deletable[:, here].t().unsqueeze(-1))


def _leave_one_out_part(part: _LeftAlignedPart) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, units and logits of the deletions from one part."""
    near = isinstance(part.encoder, ConvolutionalEncoder | TokenwiseEncoder) and not part.is_question
    route: _DeletionStrategy | None = None
    for lanes in part.lane_ranges():
        route = route or (_LocalUpdate.of(part) if near else _FullRecomputation.of(part))
        lane, row = part.deletable[:, lanes.start : lanes.stop].t().nonzero(as_tuple=True)
        yield row, part.order[row, lane + lanes.start], route(lanes)[lane, row]


class _DeletionStrategy(ABC):
    """A way to the logits of deletions."""

    @abstractmethod
    def __call__(self, lanes: range) -> Tensor:
        """Logits `[lane batch output]` without the unit at each of these places."""


@dataclass(frozen=True)
class _FullRecomputation(_DeletionStrategy):
    """All states of each shortened text, then the model's own attention and decoder."""

    part: _LeftAlignedPart
    recurrent: RecurrentLeaveOneOut | None

    @staticmethod
    def of(part: _LeftAlignedPart) -> _FullRecomputation:
        if not isinstance(part.encoder, BidirectionalEncoder):
            return _FullRecomputation(part, None)
        embeddings = gather_vectors(part.trace.embeddings, part.order)
        states = gather_vectors(part.trace.hidden, part.order)
        return _FullRecomputation(part, RecurrentLeaveOneOut.of(part.encoder, embeddings, states, part.real))

    def __call__(self, lanes: range) -> Tensor:
        part, rows = self.part, len(self.part.texts)
        holes = part.deletion_mask(lanes).flatten(0, 1)
        index = torch.arange(rows, device=holes.device).repeat(len(lanes))
        copies = part.texts.rows(index)
        copies = replace(copies, mask=copies.mask & ~holes, words=copies.words.masked_fill(holes, -1))
        hidden = self._hidden(lanes, index, holes)
        # Where hidden states are given, embeddings only pass through: any tensor saves looking them up.
        return part.model(copies, embeddings=hidden, hidden=hidden).logits.view(len(lanes), rows, -1)

    def _hidden(self, lanes: range, index: Tensor, holes: Tensor) -> Tensor:
        part = self.part
        others = part.trace.hidden * ~part.mask.unsqueeze(-1)
        if self.recurrent is None:
            mask = part.mask[index] & ~holes
            return others[index] + encode_part(part.encoder, part.trace.embeddings[index], mask)
        states = self.recurrent(lanes)
        if len(part.model.input_format.part_encoders) == 1:
            return states.flatten(0, 1)
        place = part.order.unsqueeze(-1).expand_as(states)
        mended = others.expand(len(lanes), *others.shape).clone()
        return mended.scatter_add_(2, place, states * part.real.unsqueeze(-1)).flatten(0, 1)


@dataclass(frozen=True)
class _LocalUpdate(_DeletionStrategy):
    """Scores and contexts of the whole text, mended at the units whose state changes.

    Args:
        reading: of the whole text.
        changed: new states of the neighbours of each place `[batch place neighbour dim]`.
        scores: their attention before normalising `[batch place neighbour]`.
    """

    part: _LeftAlignedPart
    decoder_input: DecoderInput
    new_states: Tensor
    new_scores: Tensor

    @staticmethod
    def of(part: _LeftAlignedPart) -> _LocalUpdate:
        model, encoder, rows = part.model, part.encoder, len(part.texts)
        reading = model.decoder_input(part.texts, part.trace.hidden)
        changed = part.trace.hidden.new_zeros(rows, part.order.shape[1], 0, encoder.dim)
        if isinstance(encoder, ConvolutionalEncoder):
            changed = convolution_leave_one_out(encoder, gather_vectors(part.trace.embeddings, part.order), part.real)
        scores = model.attention(changed.flatten(1, 2), reading.question).view(changed.shape[:3])
        return _LocalUpdate(part, reading, changed, scores)

    def __call__(self, lanes: range) -> Tensor:
        here, hidden = slice(lanes.start, lanes.stop), self.decoder_input.hidden
        units = self._neighbor_units(lanes)
        weights = self._weights(lanes, units)
        old = gather_vectors(hidden, units.flatten(1).clamp(max=hidden.shape[1] - 1)).view(
            *units.shape, hidden.shape[-1]
        )
        # A column of zeros stands for neighbours that do not exist.
        of_changed = torch.nn.functional.pad(weights, (0, 1)).gather(-1, _expand_to_queries(units, weights))
        mended = torch.einsum("blqm,blmd->blqd", of_changed, self.new_states[:, here] - old)
        return self._decode(self.decoder_input.context_vectors(weights) + mended).transpose(0, 1)

    def _neighbor_units(self, lanes: range) -> Tensor:
        """The neighbours of each lane's unit `[batch lane neighbour]`; one past the last where there is none."""
        part, places = self.part, self.part.real.shape[1]
        count = self.new_states.shape[2]
        offsets = torch.tensor(neighbor_offsets(count // 2), dtype=torch.int64, device=part.real.device)
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
        scores = old.scatter(2, units, self.new_scores[:, lanes.start : lanes.stop])[..., :-1].unsqueeze(2)
        support = part.model.input_format.support(part.texts).unsqueeze(1) & ~part.deletion_mask(lanes).transpose(
            0, 1
        ).unsqueeze(2)
        return part.model.normalizer(scores.expand_as(support), support)

    def _decode(self, contexts: Tensor) -> Tensor:
        """Logits of contexts `[batch lane query dim]`: each context is a state that gets all the attention."""
        rows, lanes, queries = contexts.shape[:3]
        question, candidates = (
            None if each is None else each.repeat_interleave(lanes, dim=0)
            for each in (self.decoder_input.question, self.decoder_input.candidates)
        )
        attention = torch.eye(queries, dtype=contexts.dtype, device=contexts.device).expand(rows * lanes, -1, -1)
        logits: Tensor = self.part.model.decoder(DecoderInput(contexts.flatten(0, 1), question, candidates), attention)
        return logits.view(rows, lanes, -1)


def _expand_to_queries(units: Tensor, weights: Tensor) -> Tensor:
    return units.unsqueeze(2).expand(-1, -1, weights.shape[2], -1)
