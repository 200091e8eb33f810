"""Units moved to the left of their rows, and back to their own places: encoders read left-aligned texts."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.models.encoders import EncoderModule


def encoded_in_place(encoder: EncoderModule, embeddings: Tensor, mask: Tensor) -> Tensor:
    """Hidden states of one part on the unit axis of the batch, zero elsewhere."""
    order, real = left_order(mask)
    states = encoder(vectors_at(embeddings, order), real)
    place = order.unsqueeze(-1).expand_as(states)
    return states.new_zeros(*mask.shape, encoder.dim).scatter(1, place, states)


def to_the_left(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors of the marked units, left-aligned `[batch place dim]`, and which places are real."""
    order, real = left_order(mask)
    return vectors_at(values, order), real


def left_order(mask: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the places of its marked units, in order, and which of these places are real."""
    width = max(1, int(mask.sum(1).max()))
    order = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)[:, :width]
    return order, mask.gather(1, order)


def vectors_at(values: Tensor, order: Tensor) -> Tensor:
    """The vectors of each row at its own places `[batch place]`."""
    return values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
