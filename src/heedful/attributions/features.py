"""What a perturbing method keeps or removes as one: a unit, or a word with all its pieces.

An *index* `[batch unit]` gives each scored unit the number of its feature, counted from 0 in each row; -1 elsewhere.
With `specials` each special symbol is a feature of its own.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions.references import replaced_units
from heedful.core.types import Batch, UserError

Feature = Literal["unit", "word"]


def check_feature(feature: str) -> None:
    """Refuses a kind of feature that there is not."""
    if feature not in get_args(Feature):
        raise UserError(f"there is no feature {feature!r}; choose one of {', '.join(get_args(Feature))}")


def feature_index(batch: Batch, feature: Feature, *, specials: bool = False) -> Tensor:
    """The feature of each scored unit `[batch unit]`, in the order of the text; -1 elsewhere."""
    units, scored = replaced_units(batch, specials=specials), batch.scored
    if feature == "unit":
        return (units.cumsum(1) - 1).masked_fill(~units, -1)
    places = torch.arange(units.shape[1], device=units.device)
    same = (batch.words.unsqueeze(2) == batch.words.unsqueeze(1)) & scored.unsqueeze(1) & scored.unsqueeze(2)
    same = same | (places == places.unsqueeze(1))
    leader = same.long().argmax(2)  # the first unit of one's word
    number = ((leader == places) & units).cumsum(1) - 1
    return number.gather(1, leader).masked_fill(~units, -1)


def shared_index(batch: Batch, *, specials: bool = False) -> Tensor:
    """The fault of Neely et al.'s pairs: unit i of the first text and unit i of the second are one feature."""
    index = torch.full_like(batch.words, -1)
    for part in (0, 1):
        units = replaced_units(batch, specials=specials) & (batch.segments == part)
        index = torch.where(units, units.cumsum(1) - 1, index)
    return index


def counts_of(index: Tensor) -> Tensor:
    """Features of each row `[batch]`."""
    return index.amax(1) + 1


def units_of(coalitions: Tensor, index: Tensor) -> Tensor:
    """Coalitions of features `[batch sample feature]` as coalitions of units `[batch sample unit]`."""
    place = index.clamp(min=0).unsqueeze(1).expand(-1, coalitions.shape[1], -1)
    return coalitions.gather(2, place) & (index >= 0).unsqueeze(1)


def gone(coalitions: Tensor, index: Tensor) -> Tensor:
    """The units `[batch sample unit]` of the features that coalitions `[batch sample feature]` leave out."""
    return units_of(~coalitions, index)


def on_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]`, each on all units of its feature `[batch unit]`; 0 elsewhere."""
    return scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)


def among_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]` in equal shares on their units `[batch unit]`, so that sums are kept."""
    sizes = torch.zeros_like(scores).scatter_add_(1, index.clamp(min=0), (index >= 0).to(scores))
    return on_units(scores / sizes.clamp(min=1), index)
