"""Attention within windows of an image (Liu et al. 2021, Swin), as maps over all units of the image.

A layer cuts the grid of patches into windows, the next one into windows that are shifted, and attends within each:
`[batch x window head position position]`. As a map `[batch head unit unit]` the same attention is zero between windows.
Which unit stands where in which window is found by trying: `find_window_units`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from heedful.models.attention_hooks import AttentionHook, AttentionInputs
from heedful.types import UserError

MAX_WEIGHTS = 1 << 27
"""Attention weights of one image, of all layers with windows: 0.5 GB; Swin with patches of 4 pixels has 59 million."""
FAINT_SCORE = -50.0
"""Masks below this hide a unit of the same window: Swin adds -100, which leaves a weight of e^-100."""
NEGLIGIBLE_WEIGHT = 1e-20
"""Far below the rounding of a number of 64 bits: less than this on a unit that a mask hides counts as nothing."""
_SAME = 1e-3
"""Values that differ by less than this share of the difference of two probes are equal."""


@dataclass(frozen=True)
class WindowLayout:
    """Where the units of an image stand in the windows of each layer.

    Args:
        units: of each layer, the numbers `[window position]` of the units; every unit is there once.
    """

    units: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Windows of an image, and units of a window."""
        windows, positions = self.units[0].shape
        return windows, positions

    def merge(self, values: Tensor, layer: int) -> Tensor:
        """Values `[batch head unit dim]` from those of windows `[batch x window head position dim]`."""
        windows, positions = self.shape
        apart = values.reshape(-1, windows, values.shape[1], positions, values.shape[3])
        return apart.transpose(1, 2).flatten(2, 3)[:, :, self._places(layer, values)]

    def split(self, values: Tensor, layer: int) -> Tensor:
        """The inverse of `merge`."""
        order = self.units[layer].to(values.device)
        return values[:, :, order].transpose(1, 2).flatten(0, 1)

    def merge_maps(self, maps: Tensor, layer: int, between: float) -> Tensor:
        """Maps `[batch head unit unit]` from those of windows `[batch x window head position position]`.

        Args:
            between: the number between units of different windows.
        """
        units = self.units[layer].numel()
        order = self.units[layer].to(maps.device)
        cells = (order.unsqueeze(2) * units + order.unsqueeze(1)).flatten()
        apart = maps.reshape(-1, len(order), *maps.shape[1:]).transpose(1, 2).flatten(2)
        whole = maps.new_full((*apart.shape[:2], units**2), between)
        return whole.index_copy(2, cells, apart).reshape(*apart.shape[:2], units, units)

    def split_maps(self, maps: Tensor, layer: int) -> Tensor:
        """The part of maps `[batch head unit unit]` within windows `[batch x window head position position]`."""
        order = self.units[layer].to(maps.device)
        return maps[:, :, order.unsqueeze(2), order.unsqueeze(1)].transpose(1, 2).flatten(0, 1)

    def _places(self, layer: int, like: Tensor) -> Tensor:
        """The place of each unit in the row of all windows."""
        return self.units[layer].to(like.device).flatten().argsort()


@dataclass
class WindowedAttention(AttentionHook):
    """Shows the attention of windows to another hook as maps over all units.

    Weights that are given are used as they are, between windows too, though the network itself has none there.

    Args:
        hook: what reads or replaces the maps.
    """

    hook: AttentionHook
    layout: WindowLayout
    given: Tensor | None = None

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """The attended values of windows `[batch x window head position dim]`."""
        if not self.hook.reads_maps:
            return self.hook.attend(inputs)
        scores = inputs.masked_scores()
        weights = inputs.normalize(scores)
        faint = None if inputs.mask is None else inputs.mask < FAINT_SCORE
        maps = self._exchange(scores, weights, faint)
        dropped = maps if self.gives_weights else nn.functional.dropout(maps, inputs.dropout)
        values = self.layout.merge(inputs.value, self.layers_run)
        attended = torch.matmul(dropped, values)
        self.hook.keep_values(values, attended)
        return self.layout.split(attended, self.layers_run), None

    def normalize(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The attention to use within windows; what is given between windows too is used by `keep_values`."""
        if not self.hook.reads_maps:
            return self.hook.normalize(scores, weights)
        maps = self._exchange(scores, weights, scores < FAINT_SCORE)
        self.given = maps if self.gives_weights else None
        return self.layout.split_maps(maps, self.layers_run)

    def _exchange(self, scores: Tensor, weights: Tensor, faint: Tensor | None) -> Tensor:
        """The maps that the hook wants for scores and weights of windows.

        Args:
            faint: where a mask hides units of the same window, broadcast to the weights.
        """
        layer, self.hook.layers_run = self.layers_run, self.layers_run
        if self.gives_weights:
            return self.hook.normalize(scores, weights)
        lowest = torch.finfo(scores.dtype).min
        if faint is not None:
            faint = faint & (weights < NEGLIGIBLE_WEIGHT)
            scores, weights = scores.masked_fill(faint, lowest), weights.masked_fill(faint, 0.0)
        maps = (self.layout.merge_maps(scores, layer, lowest), self.layout.merge_maps(weights, layer, 0.0))
        return self.hook.normalize(*maps)

    def keep_values(self, values: Tensor, attended: Tensor) -> Tensor:
        """The attended values of windows, under weights that are given those of all units."""
        if not self.hook.reads_maps:
            return self.hook.keep_values(values, attended)
        layer = self.layers_run - 1
        whole = self.layout.merge(values, layer)
        if self.given is not None:
            attended = self.layout.split(torch.matmul(self.given, whole), layer)
        self.hook.keep_values(whole, self.layout.merge(attended, layer))
        return attended

    @property
    def gives_weights(self) -> bool:
        return self.hook.gives_weights


def find_window_units(read_values: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """The unit `[window position]` at each position of the windows of an image, from the values of probes.

    Two vectors, one and other, stand for the digits of the number of each unit in base 2: a position that has the
    value of one in the probe of a digit belongs to a unit whose number has this digit. A `UserError` where a position
    depends on no unit (padding of the grid), on several, or where units are in several windows or in none.

    Args:
        read_values: the values `[batch x window position dim]` of a layer that reads these states.
        states: what the layer reads `[batch unit width]`, of more than one image.
    """
    rows, units, width = states.shape
    first_states, second_states = torch.randn(2, width, generator=Generator().manual_seed(0)).to(states)
    numbers = torch.arange(rows * units, device=states.device).reshape(rows, units)

    def probe(digits: Tensor) -> Tensor:
        return read_values(torch.where(digits.unsqueeze(-1), first_states, second_states))

    everywhere, nowhere = probe(numbers >= 0), probe(numbers < 0)
    difference = (everywhere - nowhere).norm(dim=-1)
    if not bool((difference > 0).all()):
        raise UserError("its windows have positions that are none of its units")
    unit_numbers = torch.zeros_like(difference, dtype=torch.long)
    for digit in range((rows * units - 1).bit_length()):
        values = probe((numbers >> digit) % 2 == 1)
        is_one, is_other = (
            (values - reference).norm(dim=-1) <= _SAME * difference for reference in (everywhere, nowhere)
        )
        if not bool((is_one != is_other).all()):
            raise UserError("a position in its windows has the value of several units")
        unit_numbers += is_one.long() << digit
    windows = unit_numbers.reshape(rows, -1, unit_numbers.shape[-1])
    if not torch.equal(unit_numbers.flatten().sort().values, numbers.flatten()) or not bool(
        (windows == windows[:1] + units * torch.arange(rows, device=states.device)[:, None, None]).all()
    ):
        raise UserError("its windows do not have each unit of an image once")
    return windows[0]
