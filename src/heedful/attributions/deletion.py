"""Attributions that delete a unit and read the text anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.output import Output, check_output, explained
from heedful.core.measures import total_variation
from heedful.core.types import Attribution, Batch, Deletes, Model

CELLS = 1 << 18
"""Cells of one attention matrix in a chunk of shortened texts: rows x units x units."""


@dataclass(frozen=True)
class LeaveOneOut:
    """How the output changes when a unit is deleted, the gap closed, and the text encoded and attended to anew.

    Special symbols stay. A patch of an image is blanked. The only scored unit of a part cannot be deleted and gets 0.

    Args:
        output: "probability" gives the total variation between the outputs: |dp| for two classes as Jain & Wallace
            have it, ½ sum_c |dp_c| for more (they take the mean or the sum over classes, which ranks units alike);
            half the change for a number. "logit" gives the signed loss of the target's logit, z(text) -
            z(text without unit): a positive unit speaks for the target.
    """

    output: Output = "probability"

    def __post_init__(self) -> None:
        check_output(self.output)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Changes of the output by unit, in float64."""
        with torch.no_grad():
            before = model(batch).logits.unsqueeze(1)
            # Imposed attention is asked for with each shortened text as it stands: no short cut knows it.
            own = not model.imposed
            after = model.without_each(batch) if isinstance(model, Deletes) and own else read_anew(model, batch)
        if self.output == "probability":
            sides = (model.task.probabilities(logits.double()) for logits in (before, after))
            change = total_variation(*sides)
        else:
            change = explained(model.task, before, target, "logit") - explained(model.task, after, target, "logit")
        return Attribution(change.masked_fill(~batch.deletable, 0), batch.scored)


@torch.no_grad()
def read_anew(model: Model, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` of each text without each `deletable` unit, by any model; see `Deletes`."""
    found = model(batch).logits.unsqueeze(1).repeat(1, batch.mask.shape[1], 1)
    for row, unit in _chunks(batch):
        copies = batch.rows(row)
        kept = torch.ones_like(copies.mask).scatter(1, unit.unsqueeze(1), value=False)
        found[row, unit] = model(copies.keep(kept)).logits
    return found


def _chunks(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and units of the deletions, texts of about equal length together, longest first."""
    row, unit = batch.deletable.nonzero(as_tuple=True)
    order = torch.argsort(batch.lengths[row], descending=True, stable=True)
    lengths = batch.lengths[row[order]].tolist()
    start = 0
    while start < len(order):
        chunk = order[start : start + max(1, CELLS // max(16, lengths[start]) ** 2)]
        yield row[chunk], unit[chunk]
        start += len(chunk)
