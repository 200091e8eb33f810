"""Arms of an experiment: the same model from the same seeds, trained in several ways, its test scores paired by seed.

Seeds are what varies by chance here, and they are few: the interval of a mean paired difference is Student's t.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from scipy import special

from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Workspace
from heedful.recipes.guides import Guide
from heedful.recipes.objectives import Imposed, Supervised
from heedful.recipes.subject import Subject

LEVEL = 0.95
_DECISIVE = {"f1": "F1 of class 1", "accuracy": "accuracy", "pearson": "correlation with the truth"}
"""The score that decides, the first that the task has (Wiegreffe & Pinter: F1 of class 1), in plain words."""


@dataclass(frozen=True)
class Difference:
    """A mean paired difference and Student's interval; NaN bounds where fewer than two pairs are defined."""

    mean: float
    low: float
    high: float


def difference(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Difference:
    """How much larger the first is: mean(d) ± t(n - 1) sd(d) / sqrt(n), over the pairs where both are defined.

    >>> found = difference([0.83, 0.82, 0.84], [0.81, 0.82, 0.80])
    >>> f"{found.mean:.4f} {found.low:.4f} {found.high:.4f}"
    '0.0200 -0.0297 0.0697'
    """
    paired = [one - other for one, other in zip(first, second, strict=True)]
    paired = [value for value in paired if math.isfinite(value)]
    if len(paired) < 2:
        return Difference(paired[0] if paired else math.nan, math.nan, math.nan)
    mean, deviation = statistics.fmean(paired), statistics.stdev(paired)
    half = float(special.stdtrit(len(paired) - 1, (1 + level) / 2)) * deviation / math.sqrt(len(paired))
    return Difference(mean, mean - half, mean + half)


def imposed(subject: Subject, guide: Guide) -> Subject:
    """The subject trained and tested under a guide's weights, its classes weighted as before."""
    if not isinstance(subject.objective, Supervised):
        raise UserError(
            f"{type(subject.objective).__name__} is no objective to compare guides on: "
            "give a subject that learns its labels and its own attention (objective=Supervised())"
        )
    return replace(subject, objective=Imposed(guide, subject.objective.weighted))


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuses no seeds, and the same seed twice."""
    if not seeds:
        raise UserError("give at least one seed, better five")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"a seed stands twice in {tuple(seeds)}; a training that is repeated tells nothing new")


def scores(workspace: Workspace, subject: Subject) -> dict[str, float]:
    """The test scores that the subject's training wrote down; NaN where one is undefined."""
    found = _of_test(workspace.get(subject), "scores")
    return {name: math.nan if value is None else float(str(value)) for name, value in found.items()}


def scored_on(workspace: Workspace, subject: Subject) -> int:
    """How many test examples the subject was scored on."""
    return sum(int(str(count)) for count in _of_test(workspace.get(subject), "sizes").values())


def _of_test(artefact: Artefact, what: str) -> Mapping[str, object]:
    splits = artefact.notes[what]
    assert isinstance(splits, dict)
    found = splits["test"]
    assert isinstance(found, dict)
    return found


def decisive(names: Sequence[str]) -> str:
    """The score that a verdict rests on."""
    return next(name for name in _DECISIVE if name in names)


def spoken(score: str) -> str:
    """A score's name for people."""
    return _DECISIVE.get(score, score.replace("_", " "))


def signed(value: float) -> str:
    """A difference for people, with its sign.

    >>> signed(0.0123), signed(-1e-9)
    ('+0.012', '+0.000')
    """
    return f"{round(value, 3) + 0.0:+.3f}"


def mean(values: pd.Series[float]) -> float:
    """The mean over the seeds where a score is defined."""
    return float(values.mean())


def deviation(values: pd.Series[float]) -> float:
    """The sample deviation over seeds; NaN for one seed."""
    return float(values.std(ddof=1))
