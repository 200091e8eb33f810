"""How well students answer as their teacher does, resampled over examples and over students.

Simulability is the share of equal answers, or for numbers Pearson's correlation. Both are functions of means over
examples, so that all students of all arms are resampled by one matrix product, with the same draws.

What the numbers of a simulability trial come to, in plain words.

Simulability (Fernandes et al. 2022, tables 1, 3, 5): do explanations help students to answer as their teacher does?

Students see few examples with the teacher's answers, and in each arm another kind of explanation. On unseen examples
they have nothing but the input. What an arm gains over "no explanation" must come from its explanations, unless random
ones gain as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.figures import Axis, Bars, Figure, Lines, Scatter, Series
from heedful.measures.bootstrap import bootstrap_means, percentile_bounds, resample_counts
from heedful.store.recipe import Artefact, Json, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import ModelRecipe
from heedful.training.student import StudentRecipe
from heedful.trials._trial import Trial
from heedful.types import UserError

SimulabilityMetric = Literal["accuracy", "pearson"]


def simulability(teacher: Tensor, students: Tensor, metric: SimulabilityMetric) -> Tensor:
    """Of each student `[student]`, from answers `[example]` and `[student example]`; NaN for a constant correlation.

    >>> simulability(torch.tensor([0, 1, 1]), torch.tensor([[0, 1, 1], [0, 1, 0]]), "accuracy").tolist()
    [1.0, 0.6666666666666666]
    """
    return _simulability_from_means(
        _moment_columns(teacher, students, metric).mean(0, keepdim=True), len(students), metric
    )[0]


def bootstrap_simulability(
    teacher: Tensor, students: Tensor, metric: SimulabilityMetric, *, resamples: int = 1000, generator: Generator
) -> Tensor:
    """Mean simulability of each arm over resampled examples and seeds, `[resample arm]`.

    Seeds are few, so one less of them is drawn than there are, which makes the variance of their mean unbiased. The
    same examples and seeds are drawn for all arms: differences of columns are paired.

    Args:
        students: answers `[arm seed example]`, the same seed at the same place in every arm; two seeds at least.
    """
    arms, seeds = students.shape[:2]
    means = bootstrap_means(
        _moment_columns(teacher, students.flatten(0, 1), metric), resamples=resamples, generator=generator
    )
    reached = _simulability_from_means(means, arms * seeds, metric).reshape(resamples, arms, seeds)
    weights = resample_counts(seeds, resamples, generator, seeds - 1) / (seeds - 1)
    return torch.einsum("ras,rs->ra", reached, weights)


def _moment_columns(teacher: Tensor, students: Tensor, metric: SimulabilityMetric) -> Tensor:
    """What is averaged over examples, `[example column]`: hits, or the moments of a correlation."""
    if metric == "accuracy":
        return (students == teacher).double().mT
    # Moments about the means lose no digits where numbers are large and close together.
    one = teacher.double() - teacher.double().mean()
    other = students.double() - students.double().mean(-1, keepdim=True)
    both = torch.stack((one, one.square()))
    return torch.cat((both, other, other.square(), one * other)).mT


def _simulability_from_means(means: Tensor, students: int, metric: SimulabilityMetric) -> Tensor:
    """Simulability `[resample student]` from means `[resample column]`."""
    if metric == "accuracy":
        return means
    one, one_squared = means[:, :1], means[:, 1:2]
    other, other_squared, product = torch.split(means[:, 2:], students, dim=1)
    spread = (one_squared - one.square()).clamp(min=0) * (other_squared - other.square()).clamp(min=0)
    # Rounding can push a perfect correlation a hair over one; a constant has none.
    found = ((product - one * other) / spread.sqrt()).clamp(-1.0, 1.0)
    return found.masked_fill(spread == 0, torch.nan)


def simulability_sentences(summary: Mapping[str, float], baseline_arm: str) -> str:
    """What students reach without explanations and with each kind, and whether it helps; one class size after another.

    Args:
        plain: the arm without explanations.
    """
    sizes = [name.rsplit(".", 1)[1] for name in summary if name.startswith(f"median.{baseline_arm}.")]
    words = [_sentences_of_size(summary, baseline_arm, size) for size in sizes]
    if not math.isnan(summary["commonest"]):
        words.append(f"Always giving the teacher's commonest answer would reach {summary['commonest']:.1%}.")
    return " ".join(words)


def _sentences_of_size(summary: Mapping[str, float], baseline_arm: str, size: str) -> str:
    start, end = "median.", f".{size}"
    arms = [name[len(start) : -len(end)] for name in summary if name.startswith(start) and name.endswith(end)]
    # Explanations that know nothing come last: they are what the others are measured by.
    others = sorted((arm for arm in arms if arm != baseline_arm), key=lambda arm: summary[f"null.{arm}.{size}"])
    reached = _result_clause(summary, summary[f"median.{baseline_arm}.{size}"])
    alone = "students that see the teacher's answers alone"
    words = [f"From {size} examples, {alone} {reached} (median of {summary['seeds']:.0f} seeds)."]
    words += [_arm_sentence(summary, arm, size) for arm in others]
    if any(summary[f"null.{arm}.{size}"] and summary[f"helps.{arm}.{size}"] for arm in others):
        words.append("Explanations that know nothing help here: only what others gain over them is evidence.")
    return " ".join(words)


def _arm_sentence(summary: Mapping[str, float], arm: str, size: str) -> str:
    at = f"{arm}.{size}"
    gain, low, high = (summary[f"{name}.{at}"] for name in ("difference", "difference_low", "difference_high"))
    called = f"{arm} (which knows nothing)" if summary[f"null.{at}"] else arm
    median = _format_value(summary, summary[f"median.{at}"])
    if math.isnan(low):
        return (
            f"{called}: {median}, {_format_gain(summary, gain)}, undecided; train more seeds, or test on more examples."
        )
    verdict = "helps" if summary[f"helps.{at}"] else "does not help" if summary[f"does_not_help.{at}"] else "undecided"
    interval = (
        f"{_format_gain(summary, gain)}, 95 % interval {_format_gain(summary, low)} to {_format_gain(summary, high)}"
    )
    return f"{called}: {median}, {interval}: {verdict}{_paper_rule_clause(summary, at)}."


def _paper_rule_clause(summary: Mapping[str, float], at: str) -> str:
    """The paper's rule where it says something else, or the same; nothing where it is undefined."""
    if math.isnan(summary[f"paper_helps.{at}"]):
        return ""
    helps, harms, ours = (bool(summary[f"{name}.{at}"]) for name in ("paper_helps", "paper_harms", "helps"))
    rule = "by the paper's rule (quartiles apart)"
    if helps:
        return f", and helps {rule}" if not ours else f", also {rule}"
    return f", and harms {rule}" if harms else f", not {rule}" if ours else ""


def _result_clause(summary: Mapping[str, float], value: float) -> str:
    if summary["pearson"]:
        return f"correlate with it at {value:.3f} on unseen examples"
    return f"answer as it does on {value:.1%} of unseen examples"


def _format_value(summary: Mapping[str, float], value: float) -> str:
    return f"{value:.3f}" if summary["pearson"] else f"{value:.1%}"


def _format_gain(summary: Mapping[str, float], value: float) -> str:
    """A gain with its sign: in hundredths of a correlation, or in points of a percentage."""
    return f"{value + 0.0:+.3f}" if summary["pearson"] else f"{100 * value + 0.0:+.1f} points"


NO_EXPLANATION = "no explanation"
MIN_EXAMPLES = 10
"""With fewer examples than this there is no interval."""
MIN_SEEDS = 5
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
    limits: ClassVar[str] = (
        "An explanation that helps a student need not be true: it may give away the answer, or make the student a "
        "better reader of any such text. One that does not help may be true, if this kind of student cannot use it. "
        "Students are networks here, not people."
    )

    subject: ModelRecipe
    arms: tuple[tuple[str, tuple[StudentRecipe, ...]], ...]
    controls: tuple[str, ...] = ("random",)
    margin: float = 0.01

    def __post_init__(self) -> None:
        names = [name for name, _ in self.arms]
        if NO_EXPLANATION not in names or len(names) < 2 or len(set(names)) < len(names):
            raise UserError(f"give each arm a name of its own, at least two arms, one of them {NO_EXPLANATION!r}")
        if any(student.teacher != self.subject for _, students in self.arms for student in students):
            raise UserError("a student has another teacher: all students must be taught by the trial's subject")
        if self.margin < 0:
            raise UserError(f"margin is {self.margin}: the least gain that matters cannot be negative")
        classes = {name: sorted((each.data.train_size, each.seed) for each in students) for name, students in self.arms}
        if not classes[NO_EXPLANATION] or any(each != classes[NO_EXPLANATION] for each in classes.values()):
            raise UserError("every arm needs the same seeds in classes of the same sizes: arms are compared by pairs")
        if len(set(classes[NO_EXPLANATION])) < len(classes[NO_EXPLANATION]):
            raise UserError("a seed stands twice in an arm; a training that is repeated tells nothing new")

    def describe(self) -> Mapping[str, Json]:
        """The facts of every trial, and by arm those of its students: explanation, normalizer, examples."""
        names = ("explanation", "normalizer", "sampling", "share_dev")
        students = {arm: students[0].describe() for arm, students in self.arms}
        arms: dict[str, Json] = {arm: {name: facts[name] for name in names} for arm, facts in students.items()}
        return {**super().describe(), "arms": arms}

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
                        "size": student.data.train_size,
                        "seed": student.seed,
                        "null": arm in self.controls,
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
        table["simulability"] = [_simulability_of_row(row) for _, row in table.iterrows()]
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": count, "of": count})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
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
            "commonest": _majority_share(table),
        }
        for size, rows in table.sort_values(["size", "place", "seed"]).groupby("size"):
            arms = [(str(arm), each) for arm, each in rows.groupby("arm", sort=False)]
            for number, values in {**_seed_statistics(arms), **_compare_arms(arms)}.items():
                found |= {f"{number}.{arm}.{size}": value for (arm, _), value in zip(arms, values, strict=True)}
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Every student as a point beside its arm's median, means with intervals, gains, and medians by size."""
        summary = Simulability.flat_summary(table)
        ordered = table.sort_values(["size", "place", "seed"])
        sizes = [int(size) for size in ordered["size"].unique()]
        arms = [str(arm) for arm in ordered.sort_values("place")["arm"].unique()]
        axis = "correlation with the teacher" if summary["pearson"] else "share of answers that are the teacher's"
        points = (
            _student_scatter(f"Every student, {size} examples", axis, rows) for size, rows in ordered.groupby("size")
        )
        drawing = _ArmFigures(summary, arms, sizes)
        gained = _ArmFigures(summary, [arm for arm in arms if arm != NO_EXPLANATION], sizes)
        return (
            *points,
            drawing.bars("Students by explanation", f"{axis}, mean with 95 % interval", "mean", ""),
            gained.bars(
                f"Better than {NO_EXPLANATION}", "gain within seeds, with 95 % interval", "difference", "difference_"
            ),
            *((drawing.curves(axis),) if len(sizes) > 1 else ()),
        )

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """What each arm reaches, whether it helps by our rule and by the paper's, nulls named as such."""
        return simulability_sentences(summary, NO_EXPLANATION)


def _simulability_of_row(row: pd.Series) -> float:
    return float(simulability(torch.tensor(row["teacher"]), torch.tensor([row["student"]]), row["measure"])[0])


def _majority_share(table: pd.DataFrame) -> float:
    """The share of the teacher's commonest answer; NaN for numbers."""
    if table["measure"].iloc[0] == "pearson":
        return math.nan
    answers = np.asarray(table["teacher"].iloc[0], dtype=np.int64)
    return float(np.bincount(answers).max() / len(answers))


_Arms = Sequence[tuple[str, pd.DataFrame]]


def _seed_statistics(arms: _Arms) -> dict[str, list[float]]:
    """What the paper prints of each arm, and more, over its seeds."""
    reached = [rows["simulability"].to_numpy(np.float64) for _, rows in arms]
    quantiles = {"median": 0.5, "q25": 0.25, "q75": 0.75, "min": 0.0, "max": 1.0}
    found = {name: [float(np.quantile(values, share)) for values in reached] for name, share in quantiles.items()}
    plain = [arm for arm, _ in arms].index(NO_EXPLANATION)
    found["mean"] = [float(values.mean()) for values in reached]
    found["null"] = [float(rows["null"].max()) for _, rows in arms]
    found["paper_helps"] = [float(low > found["q75"][plain]) for low in found["q25"]]
    found["paper_harms"] = [float(high < found["q25"][plain]) for high in found["q75"]]
    for rule in ("paper_helps", "paper_harms"):
        found[rule] = [
            told if len(values) >= MIN_SEEDS else math.nan for told, values in zip(found[rule], reached, strict=True)
        ]
    return found


def _compare_arms(arms: _Arms) -> dict[str, list[float]]:
    """Intervals of each arm, its gains over no explanation and over the null, and the verdict."""
    means = torch.tensor([float(rows["simulability"].mean()) for _, rows in arms], dtype=torch.float64)
    drawn = _resample_means([rows for _, rows in arms], len(arms))
    plain = [arm for arm, _ in arms].index(NO_EXPLANATION)
    nulls = [place for place, (_, rows) in enumerate(arms) if bool(rows["null"].iloc[0])]
    found = _interval_columns("", drawn)
    for name, other in (("difference", plain), *(("over_null", null) for null in nulls[:1])):
        found[name] = (means - means[other]).tolist()
        found |= _interval_columns(f"{name}_", drawn - drawn[:, other : other + 1])
    margin = float(arms[0][1]["margin"].iloc[0])
    ends = zip(found["difference_low"], found["difference_high"], strict=True)
    verdicts = [_gain_verdict(low, high, margin) for low, high in ends]
    return found | {each: [float(verdict == each) for verdict in verdicts] for each in VERDICTS}


def _interval_columns(prefix: str, resampled: Tensor) -> dict[str, list[float]]:
    low, high = percentile_bounds(resampled)
    return {f"{prefix}low": low.tolist(), f"{prefix}high": high.tolist()}


def _resample_means(arms: Sequence[pd.DataFrame], count: int) -> Tensor:
    """Mean simulability over resampled seeds and examples `[resample arm]`; NaN where there are too few of either."""
    teacher = torch.tensor(arms[0]["teacher"].iloc[0], dtype=torch.float64)
    seeds = len(arms[0])
    if seeds < 2 or len(teacher) < MIN_EXAMPLES:
        return torch.full((1, count), math.nan, dtype=torch.float64)
    students = torch.tensor([[list(each) for each in rows["student"]] for rows in arms], dtype=torch.float64)
    measure: SimulabilityMetric = "pearson" if arms[0]["measure"].iloc[0] == "pearson" else "accuracy"
    generator = Generator().manual_seed(derive_seed("simulability", seeds, len(teacher)))
    return bootstrap_simulability(teacher, students, measure, generator=generator)


def _gain_verdict(low: float, high: float, margin: float) -> str:
    """The interval above zero, below the margin, or neither; with undefined bounds neither."""
    if low > 0:
        return "helps"
    return "does_not_help" if high < margin else "undecided"


def _student_scatter(title: str, label: str, rows: pd.DataFrame) -> Scatter:
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
class _ArmFigures:
    """Figures of some arms in classes of some sizes."""

    summary: Mapping[str, float]
    arms: Sequence[str]
    sizes: Sequence[int]

    def bars(self, title: str, label: str, number: str, ends: str) -> Bars:
        """A bar per arm and size with half of its interval's width."""
        series = tuple(Series(f"{size} examples", self._numbers_of_size(number, size)) for size in self.sizes)
        errors = tuple(Series(f"{size} examples", self._half_widths(ends, size)) for size in self.sizes)
        return Bars(title, Axis(label), tuple(self.arms), series, errors)

    def curves(self, label: str) -> Lines:
        """The median of each arm over the size of the class."""
        across = tuple(float(size) for size in self.sizes)
        up = {arm: tuple(self.summary[f"median.{arm}.{size}"] for size in self.sizes) for arm in self.arms}
        curves = tuple((Series(arm, across), Series(arm, values)) for arm, values in up.items())
        return Lines("Students by the size of their class", Axis("examples"), Axis(f"{label}, median"), curves)

    def _numbers_of_size(self, number: str, size: int) -> tuple[float, ...]:
        return tuple(self.summary[f"{number}.{arm}.{size}"] for arm in self.arms)

    def _half_widths(self, ends: str, size: int) -> tuple[float, ...]:
        pairs = zip(self._numbers_of_size(f"{ends}low", size), self._numbers_of_size(f"{ends}high", size), strict=True)
        return tuple((high - low) / 2 for low, high in pairs)
