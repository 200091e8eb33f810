"""Hidden states on both sides of a deleted unit, from what was computed for the whole text.

A recurrent cell that meets a gap goes on from the state before it; states on its near side stay as they were. What a
cell or a window makes of each input is computed once for all deletions. All deletions of a text advance together: one
*lane* per deleted place, and one lane that deletes nothing and hands its state to each lane as that begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from heedful.models.encoders import BothWays, SideBySide


class _Stepper(ABC):
    """A recurrent cell over given inputs `[batch place width]`, one place at a time for many lanes."""

    memories: int

    def __init__(self, cell: nn.LSTM | nn.GRU, inputs: Tensor) -> None:
        self.width = cell.hidden_size
        self.weight = cast(Tensor, cell.weight_hh_l0).t()
        self.again = cast(Tensor, cell.bias_hh_l0)
        self.inputs = nn.functional.linear(inputs, cast(Tensor, cell.weight_ih_l0), cast(Tensor, cell.bias_ih_l0))
        self.inputs = self.inputs.transpose(0, 1).contiguous()

    @abstractmethod
    def __call__(self, state: Tensor, place: int) -> None:
        """Advances `[memory lane batch width]` over one place, in place; memory 0 is the hidden state."""

    def recurrent(self, state: Tensor) -> Tensor:
        """What the hidden states say to the gates, `[lane batch gate]`."""
        gates = torch.addmm(self.again, state[0].flatten(0, 1), self.weight)
        return gates.view(*state.shape[1:3], -1)


class _LSTM(_Stepper):
    memories = 2

    def __call__(self, state: Tensor, place: int) -> None:
        gates = self.recurrent(state).add_(self.inputs[place])
        entry, forget, new, leave = gates.chunk(4, dim=-1)
        state[1].mul_(forget.sigmoid_()).addcmul_(entry.sigmoid_(), new.tanh_())
        torch.tanh(state[1], out=state[0]).mul_(leave.sigmoid_())


class _GRU(_Stepper):
    memories = 1

    def __call__(self, state: Tensor, place: int) -> None:
        again, given = self.recurrent(state), self.inputs[place]
        reset, update = (again[..., : 2 * self.width] + given[:, : 2 * self.width]).sigmoid_().chunk(2, dim=-1)
        new = torch.addcmul(given[:, 2 * self.width :], reset, again[..., 2 * self.width :]).tanh_()
        # (1 - update) * new + update * old
        state[0].sub_(new).mul_(update).add_(new)


@dataclass(frozen=True)
class RecurrentGaps:
    """States of a recurrent encoder when one unit is missing; the inputs of both cells are prepared once.

    Args:
        states: of the whole text `[batch place dim]`.
        real: which places hold a unit `[batch place]`; texts are left-aligned.
    """

    ahead: _Stepper
    back: _Stepper
    states: Tensor
    real: Tensor

    @staticmethod
    def of(encoder: BothWays, embeddings: Tensor, states: Tensor, real: Tensor) -> RecurrentGaps:
        """The gaps of these left-aligned texts."""
        kind = _LSTM if isinstance(encoder.ahead, nn.LSTM) else _GRU
        return RecurrentGaps(kind(encoder.ahead, embeddings), kind(encoder.back, embeddings), states, real)

    def __call__(self, lanes: range) -> Tensor:
        """States `[lane batch place dim]` without the unit at each place of `lanes`; no meaning at that place."""
        found = self.states.expand(len(lanes), *self.states.shape).clone()
        width = self.ahead.width
        for place, behind, state in self._ahead(lanes):
            found[:behind, :, place, :width] = state
        for place, before, state in self._back(lanes):
            found[before:, :, place, width:] = state
        return found

    def _ahead(self, lanes: range) -> Iterator[tuple[int, int, Tensor]]:
        """Each place with the number of lanes whose gap is before it, and their states."""
        state = self._start(lanes)
        for place in range(self.real.shape[1]):
            begun = min(max(place - lanes.start, 0), len(lanes))
            if place in lanes:
                state[:, begun + 1] = state[:, 0]
            self.ahead(state[:, : begun + 1], place)
            yield place, begun, state[0, 1 : begun + 1]

    def _back(self, lanes: range) -> Iterator[tuple[int, int, Tensor]]:
        """Each place, from the last, with the first lane whose gap is behind it, and the states from there on."""
        state = self._start(lanes)
        full = self.real.all(0).tolist()
        for place in reversed(range(self.real.shape[1])):
            begun = min(max(place + 1 - lanes.start, 0), len(lanes))
            if place in lanes:
                state[:, begun - 1] = state[:, -1]
            active = state[:, begun:]
            self.back(active, place)
            if not full[place]:
                # Reading from the end, a text begins at its last real unit, in the state zero.
                active.mul_(self.real[:, place, None])
            yield place, begun, active[0, :-1]

    def _start(self, lanes: range) -> Tensor:
        shape = (self.ahead.memories, len(lanes) + 1, len(self.real), self.ahead.width)
        return self.states.new_zeros(shape)


def window_gaps(encoder: SideBySide, embeddings: Tensor, real: Tensor) -> Tensor:
    """States `[batch place neighbour dim]` of the `reach` units before and behind each place when that is deleted.

    What each tap of a window makes of each unit is computed once; a window over a gap adds up other taps.
    """
    inputs = embeddings * real.unsqueeze(-1)
    kernels = [_kernel_gaps(cast(nn.Conv1d, window), inputs, encoder.reach) for window in encoder.windows]
    return torch.relu(torch.cat(kernels, dim=-1))


def neighbours(reach: int) -> list[int]:
    """Offsets of the units that a deletion may change, in the order of `window_gaps`.

    >>> neighbours(2)
    [-2, -1, 1, 2]
    """
    return [*range(-reach, 0), *range(1, reach + 1)]


def _kernel_gaps(window: nn.Conv1d, inputs: Tensor, reach: int) -> Tensor:
    places, kernel = inputs.shape[1], window.kernel_size[0]
    taps = torch.einsum("bpi,fit->tbpf", inputs, window.weight)
    taps = nn.functional.pad(taps, (0, 0, 2 * reach, 2 * reach))
    found = taps.new_zeros(len(inputs), places, 2 * reach, window.out_channels)
    if window.bias is not None:
        found += window.bias
    for number, offset in enumerate(neighbours(reach)):
        for tap in range(kernel):
            first = 2 * reach + _seen(offset, tap - kernel // 2)
            found[:, :, number] += taps[tap, :, first : first + places]
    return found


def _seen(offset: int, step: int) -> int:
    """Where a unit at `offset` from a gap at 0 finds its neighbour `step` places on, once the gap is closed."""
    there = offset + step
    if offset < 0 <= there:
        return there + 1
    return there - 1 if there <= 0 < offset else there
