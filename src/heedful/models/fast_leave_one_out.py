"""Fast leave-one-out for attentive models: the logits without each token, without encoding every shortened text.

A deletion is a hole in the mask: the other tokens keep their positions, and the model's own attention and decoder do
the rest. A recurrent encoder continues from the state before the gap, and states on the near side of the gap are
reused; all deletions of a text advance together, one *lane* per deleted position plus one lane without deletion, from
which each lane starts. Where a state depends on near neighbours only (convolution, token-wise), scores and contexts are
updated at the few tokens whose state changes. Any other encoder reads the shortened texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from heedful.models.encoders import BidirectionalEncoder, ConvolutionalEncoder, TokenwiseEncoder, gather_vectors
from heedful.models.input_forms import DecoderInput, encode_part, left_order
from heedful.types import Batch, Trace

if TYPE_CHECKING:
    from heedful.models.attentive import AttentiveModel


MAX_ELEMENTS = 1 << 22
"""Numbers in the hidden states held at a time: rows x deletions x units x dim."""


@torch.no_grad()
def fast_leave_one_out_logits(model: AttentiveModel, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` without each deletable token; elsewhere the logits of the unchanged text."""
    if model.has_imposed_attention:
        raise ValueError(
            "imposed attention exists for unchanged texts only: run the model on the shortened texts instead"
        )
    weight = next(model.parameters())
    logits = torch.zeros(*batch.mask.shape, model.task.num_outputs, dtype=weight.dtype, device=weight.device)
    for rows in _length_buckets(batch, model.get_encoder(0).dim):
        texts = batch.rows(rows)
        trace = model(texts)
        logits[rows] = trace.logits.unsqueeze(1)
        for number in range(len(model.input_format.part_encoders)):
            for row, unit, without in _leave_one_out_part(_LeftAlignedPart(model, texts, trace, number)):
                logits[rows[row], unit] = without
    # Rounding must not tell deletions apart that leave one text, or one bag of tokens, since scores are ranked.
    is_bag = len(model.input_format.part_encoders) == 1 and isinstance(model.get_encoder(0), TokenwiseEncoder)
    first = _first_of_equals(batch) if is_bag else _first_of_run(batch)
    return logits.gather(1, first.unsqueeze(-1).expand_as(logits))


def _first_of_equals(batch: Batch) -> Tensor:
    """The first deletable unit with the same token as each unit, `[batch unit]`."""
    is_equal = (batch.inputs.unsqueeze(1) == batch.inputs.unsqueeze(2)) & batch.deletable_mask.unsqueeze(1)
    units = torch.arange(batch.mask.shape[1], device=batch.mask.device)
    return torch.where(batch.deletable_mask, is_equal.int().argmax(2), units)


def _first_of_run(batch: Batch) -> Tensor:
    """The first unit of the run of equal deletable tokens that each unit belongs to, `[batch unit]`."""
    keys = torch.stack((batch.inputs, batch.segments))
    continues = (keys[..., 1:] == keys[..., :-1]).all(0) & batch.deletable_mask[:, 1:] & batch.deletable_mask[:, :-1]
    starts = torch.arange(batch.mask.shape[1], device=batch.mask.device).expand_as(batch.mask).clone()
    starts[:, 1:].masked_fill_(continues, 0)
    return starts.cummax(1).values


def _length_buckets(batch: Batch, dim: int) -> Iterator[Tensor]:
    """Row numbers of texts of similar length, as many as fit in memory."""
    order = torch.argsort(batch.lengths, descending=True, stable=True)
    lengths = batch.lengths[order].tolist()
    start = 0
    while start < len(order):
        count = max(1, MAX_ELEMENTS // (max(1, lengths[start]) ** 2 * dim))
        yield order[start : start + count]
        start += count


class _RecurrentCell(ABC):
    """A recurrent cell over inputs `[batch position width]`, one position at a time for many lanes."""

    state_count: int

    def __init__(self, cell: nn.LSTM | nn.GRU, inputs: Tensor) -> None:
        self.width = cell.hidden_size
        self.weight = cast(Tensor, cell.weight_hh_l0).t()
        self.recurrent_bias = cast(Tensor, cell.bias_hh_l0)
        self.inputs = nn.functional.linear(inputs, cast(Tensor, cell.weight_ih_l0), cast(Tensor, cell.bias_ih_l0))
        self.inputs = self.inputs.transpose(0, 1).contiguous()

    @abstractmethod
    def __call__(self, state: Tensor, position: int) -> None:
        """Advance `[state lane batch width]` by one position, in place; state 0 is the hidden state."""

    def recurrent_gates(self, state: Tensor) -> Tensor:
        """The recurrent contribution to the gates, `[lane batch gate]`."""
        gates = torch.addmm(self.recurrent_bias, state[0].flatten(0, 1), self.weight)
        return gates.view(*state.shape[1:3], -1)


class _LSTMCell(_RecurrentCell):
    state_count = 2

    def __call__(self, state: Tensor, position: int) -> None:
        gates = self.recurrent_gates(state).add_(self.inputs[position])
        input_gate, forget_gate, new, output_gate = gates.chunk(4, dim=-1)
        state[1].mul_(forget_gate.sigmoid_()).addcmul_(input_gate.sigmoid_(), new.tanh_())
        torch.tanh(state[1], out=state[0]).mul_(output_gate.sigmoid_())


class _GRUCell(_RecurrentCell):
    state_count = 1

    def __call__(self, state: Tensor, position: int) -> None:
        recurrent, inputs = self.recurrent_gates(state), self.inputs[position]
        reset, update = (recurrent[..., : 2 * self.width] + inputs[:, : 2 * self.width]).sigmoid_().chunk(2, dim=-1)
        new = torch.addcmul(inputs[:, 2 * self.width :], reset, recurrent[..., 2 * self.width :]).tanh_()
        # (1 - update) * new + update * old
        state[0].sub_(new).mul_(update).add_(new)


class RecurrentLeaveOneOut:
    """States of a recurrent encoder with one token missing; the inputs of both cells are computed once.

    Args:
        states: of the unchanged text `[batch position dim]`.
        real: which positions hold a token `[batch position]`; texts are left-aligned.
    """

    def __init__(self, encoder: BidirectionalEncoder, embeddings: Tensor, states: Tensor, real: Tensor) -> None:
        kind = _LSTMCell if isinstance(encoder.forward_cell, nn.LSTM) else _GRUCell
        self.forward_cell = kind(encoder.forward_cell, embeddings)
        self.backward_cell = kind(encoder.backward_cell, embeddings)
        self.states, self.real = states, real

    def __call__(self, lanes: range) -> Tensor:
        """States `[lane batch position dim]` without the token at each position of `lanes`, undefined there."""
        states = self.states.expand(len(lanes), *self.states.shape).clone()
        width = self.forward_cell.width
        for position, behind, state in self._run_forward(lanes):
            states[:behind, :, position, :width] = state
        for position, before, state in self._run_backward(lanes):
            states[before:, :, position, width:] = state
        return states

    def _run_forward(self, lanes: range) -> Iterator[tuple[int, int, Tensor]]:
        """Each position with the number of lanes whose gap is before it, and their states."""
        state = self._initial_state(lanes)
        for position in range(self.real.shape[1]):
            begun = min(max(position - lanes.start, 0), len(lanes))
            if position in lanes:
                state[:, begun + 1] = state[:, 0]
            self.forward_cell(state[:, : begun + 1], position)
            yield position, begun, state[0, 1 : begun + 1]

    def _run_backward(self, lanes: range) -> Iterator[tuple[int, int, Tensor]]:
        """Each position, from the last, with the first lane whose gap is behind it, and the states from it on."""
        state = self._initial_state(lanes)
        full = self.real.all(0).tolist()
        for position in reversed(range(self.real.shape[1])):
            begun = min(max(position + 1 - lanes.start, 0), len(lanes))
            if position in lanes:
                state[:, begun - 1] = state[:, -1]
            active = state[:, begun:]
            self.backward_cell(active, position)
            if not full[position]:
                # Read from the end, a text starts at its last real token, in the zero state.
                active.mul_(self.real[:, position, None])
            yield position, begun, active[0, :-1]

    def _initial_state(self, lanes: range) -> Tensor:
        shape = (self.forward_cell.state_count, len(lanes) + 1, len(self.real), self.forward_cell.width)
        return self.states.new_zeros(shape)


def convolution_leave_one_out(encoder: ConvolutionalEncoder, embeddings: Tensor, real: Tensor) -> Tensor:
    """States `[batch position neighbour dim]` of the `context_radius` tokens on each side of each deleted position.

    The product of each kernel tap with each token is computed once; a window over a gap adds up other taps.
    """
    inputs = embeddings * real.unsqueeze(-1)
    kernels = [
        _kernel_leave_one_out(cast(nn.Conv1d, window), inputs, encoder.context_radius)
        for window in encoder.convolutions
    ]
    return torch.relu(torch.cat(kernels, dim=-1))


def neighbor_offsets(radius: int) -> list[int]:
    """Offsets of the tokens whose states a deletion may change, in the order of `convolution_leave_one_out`.

    >>> neighbor_offsets(2)
    [-2, -1, 1, 2]
    """
    return [*range(-radius, 0), *range(1, radius + 1)]


def _kernel_leave_one_out(convolution: nn.Conv1d, inputs: Tensor, radius: int) -> Tensor:
    positions, kernel = inputs.shape[1], convolution.kernel_size[0]
    taps = torch.einsum("bpi,fit->tbpf", inputs, convolution.weight)
    taps = nn.functional.pad(taps, (0, 0, 2 * radius, 2 * radius))
    states = taps.new_zeros(len(inputs), positions, 2 * radius, convolution.out_channels)
    if convolution.bias is not None:
        states += convolution.bias
    for number, offset in enumerate(neighbor_offsets(radius)):
        for tap in range(kernel):
            target = offset + tap - kernel // 2
            if offset < 0 <= target:  # the window reaches across the gap from the left
                target += 1
            elif target <= 0 < offset:
                target -= 1
            first = 2 * radius + target
            states[:, :, number] += taps[tap, :, first : first + positions]
    return states


class _LeftAlignedPart:
    """One part of some texts, left-aligned: position p of a row is its unit `order[row, p]`.

    Attributes:
        mask: units of the part `[batch unit]`.
        real: which positions hold a unit `[batch position]`.
        deletable: positions whose unit is deleted `[batch position]`.
        is_question: whether attention and decoder read a summary of this part.
    """

    def __init__(self, model: AttentiveModel, texts: Batch, trace: Trace, number: int) -> None:
        self.model, self.texts, self.trace = model, texts, trace
        shape = model.input_format
        self.encoder = model.get_encoder(shape.part_encoders[number])
        self.mask = shape.part_masks(texts)[number]
        self.order, self.real = left_order(self.mask)
        self.deletable = texts.deletable_mask.gather(1, self.order) & self.real
        self.is_question = shape.has_question and number == len(shape.part_encoders) - 1

    def lane_ranges(self) -> Iterator[range]:
        """The positions to delete, as many at a time as fit in memory."""
        wanted = self.deletable.any(0).nonzero()
        if not len(wanted):
            return
        start, stop = int(wanted[0, 0]), int(wanted[-1, 0]) + 1
        size = max(1, MAX_ELEMENTS // (self.texts.mask.numel() * self.encoder.dim))
        for first in range(start, stop, size):
            yield range(first, min(first + size, stop))

    def deletion_mask(self, lanes: range) -> Tensor:
        """The unit that each lane deletes from each text, `[lane batch unit]`, if it is deletable."""
        here = slice(lanes.start, lanes.stop)
        position = self.order[:, here].t().unsqueeze(-1)
        none = torch.zeros(len(lanes), *self.texts.mask.shape, dtype=torch.bool, device=position.device)
        return none.scatter(2, position, self.deletable[:, here].t().unsqueeze(-1))


def _leave_one_out_part(part: _LeftAlignedPart) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, units and logits of the deletions from one part."""
    local = isinstance(part.encoder, ConvolutionalEncoder | TokenwiseEncoder) and not part.is_question
    strategy: _LocalUpdate | _FullRecomputation | None = None
    for lanes in part.lane_ranges():
        strategy = strategy or (_LocalUpdate(part) if local else _FullRecomputation(part))
        lane, row = part.deletable[:, lanes.start : lanes.stop].t().nonzero(as_tuple=True)
        yield row, part.order[row, lane + lanes.start], strategy(lanes)[lane, row]


class _FullRecomputation:
    """All states of each shortened text, then the model's own attention and decoder."""

    def __init__(self, part: _LeftAlignedPart) -> None:
        self.part, self.recurrent = part, None
        if isinstance(part.encoder, BidirectionalEncoder):
            embeddings, states = (
                gather_vectors(states, part.order) for states in (part.trace.embeddings, part.trace.hidden)
            )
            self.recurrent = RecurrentLeaveOneOut(part.encoder, embeddings, states, part.real)

    def __call__(self, lanes: range) -> Tensor:
        """Logits `[lane batch output]` without the unit at each of these positions."""
        part, rows = self.part, len(self.part.texts)
        holes = part.deletion_mask(lanes).flatten(0, 1)
        index = torch.arange(rows, device=holes.device).repeat(len(lanes))
        copies = part.texts.rows(index)
        copies = replace(copies, mask=copies.mask & ~holes, words=copies.words.masked_fill(holes, -1))
        hidden = self._hidden(lanes, index, holes)
        # With hidden states passed in, embeddings are unused: any tensor saves the lookup.
        return part.model.forward(copies, embeddings=hidden, hidden=hidden).logits.view(len(lanes), rows, -1)

    def _hidden(self, lanes: range, index: Tensor, holes: Tensor) -> Tensor:
        part = self.part
        others = part.trace.hidden * ~part.mask.unsqueeze(-1)
        if self.recurrent is None:
            mask = part.mask[index] & ~holes
            return others[index] + encode_part(part.encoder, part.trace.embeddings[index], mask)
        states = self.recurrent(lanes)
        if len(part.model.input_format.part_encoders) == 1:
            return states.flatten(0, 1)
        position = part.order.unsqueeze(-1).expand_as(states)
        hidden = others.expand(len(lanes), *others.shape).clone()
        return hidden.scatter_add_(2, position, states * part.real.unsqueeze(-1)).flatten(0, 1)


class _LocalUpdate:
    """Scores and contexts of the unchanged text, updated at the units whose state changes.

    Attributes:
        decoder_input: of the unchanged text.
        new_states: states of the neighbours of each deleted position `[batch position neighbour dim]`.
        new_scores: their attention scores `[batch position neighbour]`.
    """

    def __init__(self, part: _LeftAlignedPart) -> None:
        encoder, hidden = part.encoder, part.trace.hidden
        self.part, self.decoder_input = part, part.model.decoder_input(part.texts, hidden)
        if isinstance(encoder, ConvolutionalEncoder):
            embeddings = gather_vectors(part.trace.embeddings, part.order)
            self.new_states = convolution_leave_one_out(encoder, embeddings, part.real)
        else:
            self.new_states = hidden.new_zeros(*part.order.shape, 0, encoder.dim)
        scores = part.model.attention(self.new_states.flatten(1, 2), self.decoder_input.question)
        self.new_scores = scores.view(self.new_states.shape[:3])

    def __call__(self, lanes: range) -> Tensor:
        """Logits `[lane batch output]` without the unit at each of these positions."""
        here, hidden = slice(lanes.start, lanes.stop), self.decoder_input.hidden
        units = self._neighbor_units(lanes)
        weights = self._weights(lanes, units)
        old = gather_vectors(hidden, units.flatten(1).clamp(max=hidden.shape[1] - 1)).view(
            *units.shape, hidden.shape[-1]
        )
        # A column of zeros represents neighbours that do not exist.
        index = units.unsqueeze(2).expand(-1, -1, weights.shape[2], -1)
        changed_weights = nn.functional.pad(weights, (0, 1)).gather(-1, index)
        update = torch.einsum("blqm,blmd->blqd", changed_weights, self.new_states[:, here] - old)
        return self._decode(self.decoder_input.context_vectors(weights) + update).transpose(0, 1)

    def _neighbor_units(self, lanes: range) -> Tensor:
        """The neighbours of each lane's unit `[batch lane neighbour]`; one past the last unit where there is none."""
        part, positions = self.part, self.part.real.shape[1]
        count = self.new_states.shape[2]
        offsets = torch.tensor(neighbor_offsets(count // 2), dtype=torch.int64, device=part.real.device)
        position = torch.arange(lanes.start, lanes.stop, device=offsets.device).unsqueeze(1) + offsets
        inside = position.clamp(0, positions - 1)
        exists = part.real[:, inside] & (position == inside)
        return part.order[:, inside].masked_fill(~exists, part.texts.mask.shape[1])

    def _weights(self, lanes: range, units: Tensor) -> Tensor:
        """Attention after each deletion `[batch lane query unit]`."""
        part, text_scores = self.part, self.part.trace.scores
        if text_scores is None:
            raise ValueError("the attention scores of the unchanged text are missing")
        # A unit is in the support of one query at most, and scores are zero off the support.
        old = nn.functional.pad(text_scores[:, 0, 0].sum(1), (0, 1)).unsqueeze(1).expand(-1, len(lanes), -1)
        scores = old.scatter(2, units, self.new_scores[:, lanes.start : lanes.stop])[..., :-1].unsqueeze(2)
        deleted = part.deletion_mask(lanes).transpose(0, 1).unsqueeze(2)
        support = part.model.input_format.support(part.texts).unsqueeze(1) & ~deleted
        return part.model.normalizer(scores.expand_as(support), support)

    def _decode(self, contexts: Tensor) -> Tensor:
        """Logits of contexts `[batch lane query dim]`: each context is a state that receives all attention."""
        rows, lanes, queries = contexts.shape[:3]
        question, candidates = (
            None if tensor is None else tensor.repeat_interleave(lanes, dim=0)
            for tensor in (self.decoder_input.question, self.decoder_input.candidates)
        )
        attention = torch.eye(queries, dtype=contexts.dtype, device=contexts.device).expand(rows * lanes, -1, -1)
        logits: Tensor = self.part.model.decoder(DecoderInput(contexts.flatten(0, 1), question, candidates), attention)
        return logits.view(rows, lanes, -1)
