"""What a method explains: the probability of the target, or its logit."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.core.types import Task, UserError

Output = Literal["probability", "logit"]


def check_output(output: str) -> None:
    """Refuses an output that no method explains."""
    if output not in get_args(Output):
        raise UserError(f"there is no output {output!r} to explain; choose one of {', '.join(get_args(Output))}")


def explained(task: Task, logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """The target's probability or logit in float64, `[batch ...]` for logits `[batch ... output]`.

    In float32 a confident probability rounds to 1, and all differences and slopes to 0. Of two classes that share one
    logit z, class 1 has z and class 0 has -z.

    Args:
        target: class indices `[batch]`.
    """
    logits = logits.double()
    if output == "probability":
        values = task.probabilities(logits)
    else:
        values = logits if logits.shape[-1] == task.classes else torch.cat((-logits, logits), dim=-1)
    index = target.reshape(-1, *(1,) * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)
