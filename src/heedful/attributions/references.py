"""The reference that a text is compared with: what stands there when nothing is said.

References are built at the door of the embeddings: a symbol in the place of each word is read by the model's own
embedding block, so that a transformer's reference keeps positions, segments and normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.attributions.output import Output, explained
from heedful.core.types import Attribution, Batch, Model, Trace, UserError

Baselines = Literal["pad", "zero", "mask", "unk"]


@dataclass(frozen=True)
class Explained(Attribution):
    """Scores of a method that promises to share out the difference between an output and its reference.

    Args:
        gap: what is shared out minus the difference, `[batch]`; 0 where the method is complete.
    """

    gap: Tensor


def check_baselines(baselines: str) -> None:
    """Refuses a reference that nobody can build."""
    if baselines not in get_args(Baselines):
        raise UserError(f"there is no reference {baselines!r}; choose one of {', '.join(get_args(Baselines))}")


def replaced_units(batch: Batch, *, specials: bool) -> Tensor:
    """The units that the reference replaces and that are scored: words, and with `specials` all real units."""
    return batch.mask if specials else batch.scored


@torch.no_grad()
def reference_trace(model: Model, batch: Batch, baselines: Baselines, units: Tensor) -> Trace:
    """What the model does where a symbol stands on the marked units, or where their embeddings are zero.

    A blank patch is the symbol of images. The mask stays: the reference is as long as the text.
    """
    if baselines == "zero":
        embeddings = model(batch).embeddings
        return model(batch, embeddings=embeddings.masked_fill(units.unsqueeze(-1), 0.0))
    marked = units if batch.inputs.dim() == 2 else units.unsqueeze(-1)
    return model(replace(batch, inputs=batch.inputs.masked_fill(marked, _symbol(batch, baselines))))


def _symbol(batch: Batch, baselines: Baselines) -> int:
    image = batch.inputs.dim() > 2
    found = 0 if image else batch.filler
    if baselines != "pad":
        known = batch.masker if baselines == "mask" else batch.unknown
        if known is None or image:
            what = "images have" if image else "the vocabulary has"
            raise UserError(f"{what} no {baselines} symbol to stand in the reference: take baselines='pad' or 'zero'")
        found = known
    return found


def change(model: Model, traces: tuple[Trace, Trace], target: Tensor, output: Output) -> Tensor:
    """f(text) - f(reference) `[batch]`, in float64."""
    ends = [explained(model.task, trace.logits.detach(), target, output) for trace in traces]
    return ends[0] - ends[1]


def shared_out(shares: Tensor, units: Tensor, difference: Tensor) -> Explained:
    """The shares of all units `[batch unit]` as scores of the marked ones, with what is missing to the difference."""
    return Explained(shares.masked_fill(~units, 0), units, shares.sum(1) - difference)
