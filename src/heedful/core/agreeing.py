"""How well students answer as their teacher does, resampled over examples and over students.

Simulability is the share of equal answers, or for numbers Pearson's correlation. Both are functions of means over
examples, so that all students of all arms are resampled by one matrix product, with the same draws.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

from heedful.core.resampling import draws, resampled_means

Measure = Literal["accuracy", "pearson"]


def simulability(teacher: Tensor, students: Tensor, measure: Measure) -> Tensor:
    """Of each student `[student]`, from answers `[example]` and `[student example]`; NaN for a constant correlation.

    >>> simulability(torch.tensor([0, 1, 1]), torch.tensor([[0, 1, 1], [0, 1, 0]]), "accuracy").tolist()
    [1.0, 0.6666666666666666]
    """
    return _from_means(_columns(teacher, students, measure).mean(0, keepdim=True), len(students), measure)[0]


def resampled(
    teacher: Tensor, students: Tensor, measure: Measure, *, resamples: int = 1000, generator: Generator
) -> Tensor:
    """Mean simulability of each arm over resampled examples and seeds, `[resample arm]`.

    Seeds are few, so one less of them is drawn than there are, which makes the variance of their mean unbiased. The
    same examples and seeds are drawn for all arms: differences of columns are paired.

    Args:
        students: answers `[arm seed example]`, the same seed at the same place in every arm; two seeds at least.
    """
    arms, seeds = students.shape[:2]
    means = resampled_means(
        _columns(teacher, students.flatten(0, 1), measure), resamples=resamples, generator=generator
    )
    reached = _from_means(means, arms * seeds, measure).reshape(resamples, arms, seeds)
    weights = draws(seeds, resamples, generator, seeds - 1) / (seeds - 1)
    return torch.einsum("ras,rs->ra", reached, weights)


def _columns(teacher: Tensor, students: Tensor, measure: Measure) -> Tensor:
    """What is averaged over examples, `[example column]`: hits, or the moments of a correlation."""
    if measure == "accuracy":
        return (students == teacher).double().mT
    # Moments about the means lose no digits where numbers are large and close together.
    one = teacher.double() - teacher.double().mean()
    other = students.double() - students.double().mean(-1, keepdim=True)
    both = torch.stack((one, one.square()))
    return torch.cat((both, other, other.square(), one * other)).mT


def _from_means(means: Tensor, students: int, measure: Measure) -> Tensor:
    """Simulability `[resample student]` from means `[resample column]`."""
    if measure == "accuracy":
        return means
    one, one_squared = means[:, :1], means[:, 1:2]
    other, other_squared, product = torch.split(means[:, 2:], students, dim=1)
    spread = (one_squared - one.square()).clamp(min=0) * (other_squared - other.square()).clamp(min=0)
    # Rounding can push a perfect correlation a hair over one; a constant has none.
    found = ((product - one * other) / spread.sqrt()).clamp(-1.0, 1.0)
    return found.masked_fill(spread == 0, torch.nan)
