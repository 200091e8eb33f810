"""Attributions that delete a unit and read the text anew.

What other methods asked inside `core.remembering.remembering` is not read again, nor what is asked here by them; only a
model that `Deletes` by a short cut of its own neither looks into that memory nor adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.asking import answers, lacking
from heedful.attributions.output import Output, check_output, explained
from heedful.core.measures import total_variation
from heedful.core.remembering import remembering
from heedful.core.types import Attribution, Batch, Deletes, Model


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
        # Imposed attention is asked for with each shortened text as it stands: no short cut knows it.
        if isinstance(model, Deletes) and not model.imposed:
            with torch.no_grad():
                before, after = model(batch).logits, model.without_each(batch)
        else:
            with remembering(model):
                before, after = answers(model, batch), read_anew(model, batch)
        before = before.unsqueeze(1)
        if self.output == "probability":
            sides = (model.task.probabilities(logits.double()) for logits in (before, after))
            change = total_variation(*sides)
        else:
            change = explained(model.task, before, target, "logit") - explained(model.task, after, target, "logit")
        return Attribution(change.masked_fill(~batch.deletable, 0), batch.scored)


def read_anew(model: Model, batch: Batch) -> Tensor:
    """Logits `[batch unit output]` of each text without each `deletable` unit, by any model; see `Deletes`."""
    alone = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
    return lacking(model, batch, alone & batch.deletable.unsqueeze(-1), "delete")
