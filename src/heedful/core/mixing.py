"""Mixing a bank of maps into one explanation: sum_h lambda_h map_h, lambda = normalise(phi) (Fernandes et al. 2022).

Pure functions of tensors, written from plain operations only: gradients, second derivatives and forward-mode
derivatives pass through all of them. A *map* is one score per unit, for instance a head's mean score row; explanations
live on a *support* of units and are exactly zero off it.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.core.types import UserError

Normaliser = Literal["sparsemax", "softmax", "entmax15", "none"]

LEAST = 1e-7
"""Probabilities count as at least this and at most 1 - this in a divergence, as in the paper's code."""


def check_normaliser(normaliser: str) -> None:
    """Refuses a normaliser that there is not."""
    if normaliser not in get_args(Normaliser):
        raise UserError(f"there is no normaliser {normaliser!r}; choose one of {', '.join(get_args(Normaliser))}")


def uniform(count: int) -> Tensor:
    """The phi `[map]` that every normaliser turns into the plain mean of `count` maps: 1 / count each.

    >>> coefficients(uniform(4), "sparsemax")
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    if count < 1:
        raise UserError(f"a mix of {count} maps cannot be made: at least one is needed")
    return torch.full((count,), 1 / count)


def coefficients(phi: Tensor, normaliser: Normaliser) -> Tensor:
    """The weight lambda of each map `[map]`; all but "none" (lambda = phi) are never negative and sum to 1.

    Equal entries of phi give exactly equal weights 1 / count, bit for bit.

    >>> coefficients(torch.tensor([1.0, 0.6, -2.0]), "sparsemax")
    tensor([0.7000, 0.3000, 0.0000])
    """
    check_normaliser(normaliser)
    if normaliser == "none":
        return phi
    if normaliser == "softmax":
        return phi.softmax(-1)
    # The largest entry is moved to 0: nothing changes, and equal entries are then exactly 0.
    away = phi - phi.detach().amax(-1, keepdim=True)
    return _sparsemax(away) if normaliser == "sparsemax" else _entmax15(away / 2)


def mixed(maps: Tensor, phi: Tensor, normaliser: Normaliser) -> Tensor:
    """sum_h lambda_h maps_h, `[batch unit]` from maps `[batch map unit]`."""
    return torch.einsum("bmu,m->bu", maps, coefficients(phi, normaliser).to(maps.dtype))


def log_distribution(logits: Tensor, support: Tensor) -> Tensor:
    """The log of softmax over the support, `[batch unit]`; 0 off the support, in value and gradient never infinite."""
    # The least number and not minus infinity: a row without support would be NaN before it is masked.
    inside = logits.masked_fill(~support, torch.finfo(logits.dtype).min)
    return inside.log_softmax(-1).masked_fill(~support, 0.0)


def distribution(logits: Tensor, support: Tensor) -> Tensor:
    """Softmax over the support `[batch unit]`, exactly 0 off it.

    >>> distribution(torch.tensor([[0.0, 9.0, 0.0]]), torch.tensor([[True, False, True]]))
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    return log_distribution(logits, support).exp().masked_fill(~support, 0.0)


def peak(logits: Tensor, support: Tensor) -> float:
    """How many times an even share the largest share of softmax over the support is, on average over texts.

    >>> peak(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 40.0]]), torch.ones(2, 3, dtype=torch.bool))
    2.0
    """
    filled = support.any(-1)
    largest = distribution(logits[filled], support[filled]).amax(-1)
    return float((largest * support[filled].sum(-1)).mean())


def as_peaked(logits: Tensor, support: Tensor, wanted: float) -> float:
    """The temperature at which softmax(logits / temperature) has this `peak`, or the least one more: by halving.

    The peak never falls when the temperature does. 1 where no temperature from 1e-6 to 1e6 reaches it, since what is
    the same for all units cannot be made to point anywhere.
    """
    cold, hot = -6.0, 6.0
    if not peak(logits / 10**cold, support) >= wanted:
        return 1.0
    for _ in range(50):
        middle = (cold + hot) / 2
        cold, hot = (middle, hot) if peak(logits / 10**middle, support) >= wanted else (cold, middle)
    return float(10**cold)


def divergence(teacher_probabilities: Tensor, student_log_probabilities: Tensor, support: Tensor) -> Tensor:
    """KL(e_T || e_S) = sum_t e_T (log e_T - log e_S) over the support, in nats `[batch]`.

    Both sides are clamped as in the paper (`LEAST`); what is clamped has no gradient.
    """
    teacher = clamped(teacher_probabilities)
    terms = teacher * (teacher.log() - clamped_log(student_log_probabilities))
    return terms.masked_fill(~support, 0.0).sum(-1)


def clamped(probabilities: Tensor) -> Tensor:
    """Probabilities moved into [1e-7, 1 - 1e-7]."""
    return probabilities.clamp(LEAST, 1 - LEAST)


def clamped_log(log_probabilities: Tensor) -> Tensor:
    """Log-probabilities moved into [log 1e-7, log(1 - 1e-7)]: the log of `clamped`."""
    least = torch.tensor((LEAST, 1 - LEAST), dtype=torch.float64).log().tolist()
    return log_probabilities.clamp(*least)


def _sparsemax(scores: Tensor) -> Tensor:
    """The point of the simplex nearest to the scores: max(0, z - tau), tau = (sum over the support - 1) / its size."""
    with torch.no_grad():
        ordered = scores.sort(-1, descending=True).values
        inside = 1 + _ranks(scores) * ordered > ordered.cumsum(-1)
        support = scores >= ordered.gather(-1, inside.sum(-1, keepdim=True) - 1)
    count = support.sum(-1, keepdim=True)
    tau = (scores.masked_fill(~support, 0.0).sum(-1, keepdim=True) - 1) / count
    return (scores - tau).clamp(min=0.0).masked_fill(~support, 0.0)


def _entmax15(halves: Tensor) -> Tensor:
    """max(0, z/2 - tau)^2 with the tau that makes it sum to 1 (Peters et al. 2019), from halved scores.

    With m and s the mean and the sum of squared differences of the support's k entries, tau = m - sqrt((1 - s) / k).
    """
    with torch.no_grad():
        ordered = halves.sort(-1, descending=True).values
        ranks = _ranks(halves)
        mean = ordered.cumsum(-1) / ranks
        spread = (ordered.square().cumsum(-1) - ranks * mean.square()).clamp(min=0.0)
        tau = mean - ((1 - spread).clamp(min=0.0) / ranks).sqrt()
        support = halves >= ordered.gather(-1, (tau <= ordered).sum(-1, keepdim=True) - 1)
    count = support.sum(-1, keepdim=True)
    mean = halves.masked_fill(~support, 0.0).sum(-1, keepdim=True) / count
    away = (halves - mean).masked_fill(~support, 0.0)
    level = (1 - away.square().sum(-1, keepdim=True)) / count
    # (away + sqrt(level))^2 written out: equal scores then give exactly 1 / count.
    return (away.square() + 2 * away * level.sqrt() + level).clamp(min=0.0).masked_fill(~support, 0.0)


def _ranks(scores: Tensor) -> Tensor:
    return torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
