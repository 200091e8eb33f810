"""Simulability (Fernandes et al. 2022, tables 1, 3, 5): do explanations help students to answer as their teacher does?

Students see few examples with the teacher's answers, and in each arm another kind of explanation. On unseen examples
they have nothing but the input. What an arm gains over "no explanation" must come from its explanations, unless random
ones gain as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.core import agreeing
from heedful.core.agreeing import Measure
from heedful.core.figures import Axis, Bars, Figure, Lines, Scatter, Series
from heedful.core.resampling import bounds
from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Workspace, derived_seed
from heedful.recipes.schooling import Schooling
from heedful.recipes.subject import Subject
from heedful.trials.trial import Trial
from heedful.trials.tutored import told

PLAIN = "no explanation"
FEWEST = 10
"""With fewer examples than this there is no interval."""
FEWEST_SEEDS = 5
"""The paper's rule is about quartiles of so many seeds; of fewer it says nothing."""
VERDICTS = ("helps", "does_not_help", "undecided")


@dataclass(frozen=True)
class Simulability(Trial):
    """Agreement of students with their teacher on unseen examples, one row per arm, size of the class and seed.

    Args:
        subject: the teacher.
        arms: named students, the same seeds in each arm; classes of several sizes may stand in one arm. The arm that
            all others are compared with has the name "no explanation".
        nulls: names of arms whose explanations know nothing.
        margin: a gain below this is of no use.
    """

    name: ClassVar[str] = "simulability"
    paper: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "Do explanations help a student to answer as its teacher does?"
    claim: ClassVar[str] = (
        "If explanations tell how a model decides, students that are shown them should come to answer as the model "
        "does from fewer examples than students that see its answers alone."
    )
    source: ClassVar[str] = "Fernandes et al. 2022, sections 2 and 4, tables 1, 3, 5 and 7"
    not_meaning: ClassVar[str] = (
        "An explanation that helps a student need not be true: it may give away the answer, or make the student a "
        "better reader of any such text. One that does not help may be true, if this kind of student cannot use it. "
        "Students are networks here, not people."
    )

    subject: Subject
    arms: tuple[tuple[str, tuple[Schooling, ...]], ...]
    nulls: tuple[str, ...] = ("random",)
    margin: float = 0.01

    def __post_init__(self) -> None:
        names = [name for name, _ in self.arms]
        if PLAIN not in names or len(names) < 2 or len(set(names)) < len(names):
            raise UserError(f"give each arm a name of its own, at least two arms, one of them {PLAIN!r}")
        if any(student.teacher != self.subject for _, students in self.arms for student in students):
            raise UserError("a student has another teacher: all students must be taught by the trial's subject")
        if self.margin < 0:
            raise UserError(f"margin is {self.margin}: the least gain that matters cannot be negative")
        classes = {name: sorted((each.classroom.size, each.seed) for each in students) for name, students in self.arms}
        if not classes[PLAIN] or any(each != classes[PLAIN] for each in classes.values()):
            raise UserError("every arm needs the same seeds in classes of the same sizes: arms are compared by pairs")
        if len(set(classes[PLAIN])) < len(classes[PLAIN]):
            raise UserError("a seed stands twice in an arm; a training that is repeated tells nothing new")

    def make(self, workspace: Workspace) -> Artefact:
        """A row per student with teacher's and student's answers to all test examples, in the order of their uids."""
        rows: list[dict[str, object]] = []
        uids: set[tuple[str, ...]] = set()
        for place, (arm, students) in enumerate(self.arms):
            for student in students:
                artefact = workspace.get(student)
                answers = artefact.table.sort_values("uid")
                uids.add(tuple(answers["uid"]))
                rows.append(
                    {
                        "arm": arm,
                        "place": place,
                        "size": student.classroom.size,
                        "seed": student.seed,
                        "null": arm in self.nulls,
                        "margin": self.margin,
                        "measure": artefact.notes["measure"],
                        "teacher": answers["teacher"].astype(float).tolist(),
                        "student": answers["student"].astype(float).tolist(),
                    }
                )
        if len(uids) > 1:
            raise UserError(
                "students were examined on different examples: give all the same classroom but for its size"
            )
        table, count = pd.DataFrame(rows), len(next(iter(uids)))
        table["simulability"] = [_simulability(row) for _, row in table.iterrows()]
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": count, "of": count})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """By arm and size, at the place `arm.size`: what the paper prints, an interval, and whether it helps.

        `median`, `q25`, `q75`, `mean`, `min` and `max` are over seeds; `low` and `high` bound the mean over resampled
        seeds and examples. `difference` is the mean gain over no explanation within seeds, with `difference_low` and
        `difference_high`, and `over_null` the gain over the first arm that knows nothing. Exactly one of `helps` (the
        interval is above 0), `does_not_help` (it is below the margin) and `undecided` is 1. `paper_helps` is the
        paper's rule: quartiles that do not overlap, of five seeds; NaN with fewer. `commonest` is what a student
        reaches that always gives the teacher's commonest answer.
        """
        found = {
            "seeds": float(table["seed"].nunique()),
            "margin": float(table["margin"].max()),
            "pearson": float(table["measure"].iloc[0] == "pearson"),
            "commonest": _commonest(table),
        }
        for size, rows in table.sort_values(["size", "place", "seed"]).groupby("size"):
            arms = [(str(arm), each) for arm, each in rows.groupby("arm", sort=False)]
            for number, values in {**_over_seeds(arms), **_compared(arms)}.items():
                found |= {f"{number}.{arm}.{size}": value for (arm, _), value in zip(arms, values, strict=True)}
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Every student as a point beside its arm's median, means with intervals, gains, and medians by size."""
        summary = Simulability.summary(table)
        ordered = table.sort_values(["size", "place", "seed"])
        sizes = [int(size) for size in ordered["size"].unique()]
        arms = [str(arm) for arm in ordered.sort_values("place")["arm"].unique()]
        axis = "correlation with the teacher" if summary["pearson"] else "share of answers that are the teacher's"
        points = (_points(f"Every student, {size} examples", axis, rows) for size, rows in ordered.groupby("size"))
        drawing = _Drawing(summary, arms, sizes)
        gained = _Drawing(summary, [arm for arm in arms if arm != PLAIN], sizes)
        return (
            *points,
            drawing.bars("Students by explanation", f"{axis}, mean with 95 % interval", "mean", ""),
            gained.bars(f"Better than {PLAIN}", "gain within seeds, with 95 % interval", "difference", "difference_"),
            *((drawing.curves(axis),) if len(sizes) > 1 else ()),
        )

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """What each arm reaches, whether it helps by our rule and by the paper's, nulls named as such."""
        return told(summary, PLAIN)


def _simulability(row: pd.Series) -> float:
    return float(agreeing.simulability(torch.tensor(row["teacher"]), torch.tensor([row["student"]]), row["measure"])[0])


def _commonest(table: pd.DataFrame) -> float:
    """The share of the teacher's commonest answer; NaN for numbers."""
    if table["measure"].iloc[0] == "pearson":
        return math.nan
    answers = np.asarray(table["teacher"].iloc[0], dtype=np.int64)
    return float(np.bincount(answers).max() / len(answers))


_Arms = Sequence[tuple[str, pd.DataFrame]]


def _over_seeds(arms: _Arms) -> dict[str, list[float]]:
    """What the paper prints of each arm, and more, over its seeds."""
    reached = [rows["simulability"].to_numpy(np.float64) for _, rows in arms]
    quantiles = {"median": 0.5, "q25": 0.25, "q75": 0.75, "min": 0.0, "max": 1.0}
    found = {name: [float(np.quantile(values, share)) for values in reached] for name, share in quantiles.items()}
    plain = [arm for arm, _ in arms].index(PLAIN)
    found["mean"] = [float(values.mean()) for values in reached]
    found["null"] = [float(rows["null"].max()) for _, rows in arms]
    found["paper_helps"] = [float(low > found["q75"][plain]) for low in found["q25"]]
    found["paper_harms"] = [float(high < found["q25"][plain]) for high in found["q75"]]
    for rule in ("paper_helps", "paper_harms"):
        found[rule] = [
            told if len(values) >= FEWEST_SEEDS else math.nan for told, values in zip(found[rule], reached, strict=True)
        ]
    return found


def _compared(arms: _Arms) -> dict[str, list[float]]:
    """Intervals of each arm, its gains over no explanation and over the null, and the verdict."""
    means = torch.tensor([float(rows["simulability"].mean()) for _, rows in arms], dtype=torch.float64)
    drawn = _drawn([rows for _, rows in arms], len(arms))
    plain = [arm for arm, _ in arms].index(PLAIN)
    nulls = [place for place, (_, rows) in enumerate(arms) if bool(rows["null"].iloc[0])]
    found = _bounded("", drawn)
    for name, other in (("difference", plain), *(("over_null", null) for null in nulls[:1])):
        found[name] = (means - means[other]).tolist()
        found |= _bounded(f"{name}_", drawn - drawn[:, other : other + 1])
    margin = float(arms[0][1]["margin"].iloc[0])
    ends = zip(found["difference_low"], found["difference_high"], strict=True)
    verdicts = [_verdict(low, high, margin) for low, high in ends]
    return found | {each: [float(verdict == each) for verdict in verdicts] for each in VERDICTS}


def _bounded(prefix: str, drawn: Tensor) -> dict[str, list[float]]:
    low, high = bounds(drawn)
    return {f"{prefix}low": low.tolist(), f"{prefix}high": high.tolist()}


def _drawn(arms: Sequence[pd.DataFrame], count: int) -> Tensor:
    """Mean simulability over resampled seeds and examples `[resample arm]`; NaN where there are too few of either."""
    teacher = torch.tensor(arms[0]["teacher"].iloc[0], dtype=torch.float64)
    seeds = len(arms[0])
    if seeds < 2 or len(teacher) < FEWEST:
        return torch.full((1, count), math.nan, dtype=torch.float64)
    students = torch.tensor([[list(each) for each in rows["student"]] for rows in arms], dtype=torch.float64)
    measure: Measure = "pearson" if arms[0]["measure"].iloc[0] == "pearson" else "accuracy"
    generator = Generator().manual_seed(derived_seed("simulability", seeds, len(teacher)))
    return agreeing.resampled(teacher, students, measure, generator=generator)


def _verdict(low: float, high: float, margin: float) -> str:
    """The interval above zero, below the margin, or neither; with undefined bounds neither."""
    if low > 0:
        return "helps"
    return "does_not_help" if high < margin else "undecided"


def _points(title: str, label: str, rows: pd.DataFrame) -> Scatter:
    """A row of points for each arm, in the order of the legend from above, and the medians."""
    arms = [(str(arm), each["simulability"].astype(float)) for arm, each in rows.groupby("arm", sort=False)]
    places = [float(-place) for place in range(1, len(arms) + 1)]
    points = [
        (Series(arm, tuple(values)), Series(arm, (place,) * len(values)))
        for (arm, values), place in zip(arms, places, strict=True)
    ]
    medians = (Series("median", tuple(float(each.median()) for _, each in arms)), Series("median", tuple(places)))
    limits = (-len(arms) - 0.5, -0.5)
    return Scatter(title, Axis(label), Axis("explanations, in the order of the legend", limits), (*points, medians))


@dataclass(frozen=True)
class _Drawing:
    """Figures of some arms in classes of some sizes."""

    summary: Mapping[str, float]
    arms: Sequence[str]
    sizes: Sequence[int]

    def bars(self, title: str, label: str, number: str, ends: str) -> Bars:
        """A bar per arm and size with half of its interval's width."""
        series = tuple(Series(f"{size} examples", self._of(number, size)) for size in self.sizes)
        errors = tuple(Series(f"{size} examples", self._halves(ends, size)) for size in self.sizes)
        return Bars(title, Axis(label), tuple(self.arms), series, errors)

    def curves(self, label: str) -> Lines:
        """The median of each arm over the size of the class."""
        across = tuple(float(size) for size in self.sizes)
        up = {arm: tuple(self.summary[f"median.{arm}.{size}"] for size in self.sizes) for arm in self.arms}
        curves = tuple((Series(arm, across), Series(arm, values)) for arm, values in up.items())
        return Lines("Students by the size of their class", Axis("examples"), Axis(f"{label}, median"), curves)

    def _of(self, number: str, size: int) -> tuple[float, ...]:
        return tuple(self.summary[f"{number}.{arm}.{size}"] for arm in self.arms)

    def _halves(self, ends: str, size: int) -> tuple[float, ...]:
        pairs = zip(self._of(f"{ends}low", size), self._of(f"{ends}high", size), strict=True)
        return tuple((high - low) / 2 for low, high in pairs)
