"""Simulability (Fernandes et al. 2022, tables 1, 3, 5): do explanations help students to predict as their teacher does?

Students see few examples with the teacher's predictions, and in each arm another kind of explanation; at test time
they see the input alone. The gain of an arm over "no explanation" comes from its explanations, unless random ones gain
as much. Simulability is the share of equal predictions, or Pearson's correlation for regression.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.figures import Axis, Bars, Figure, Lines, Series
from heedful.measures.bootstrap import MIN_EXAMPLES, bootstrap_means, resample_counts
from heedful.measures.intervals import seed_interval
from heedful.option_bounds import Bounds, check_options
from heedful.results import Finding, Statistic, Verdict, get_statistic, interval_finding, select_statistics, value_of
from heedful.store.recipe import Artefact, Json, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import ModelRecipe
from heedful.training.student import StudentRecipe
from heedful.trials.trial import Trial, interval_bars
from heedful.types import UserError

SimulabilityMetric = Literal["accuracy", "pearson"]

NO_EXPLANATION = "no explanation"
MIN_SEEDS = 5
"""The paper's rule compares the quartiles of this many seeds; with fewer it says nothing."""
MIN_INTERVAL_SEEDS = 3
"""With fewer seeds than this a mean has no interval."""
_QUANTILES = {"median": 0.5, "q25": 0.25, "q75": 0.75, "min": 0.0, "max": 1.0}


@dataclass(frozen=True)
class Simulability(Trial):
    """Agreement of students with their teacher on unseen examples, one row per arm, training size and seed.

    Args:
        subject: the teacher.
        arms: students by the name of their explanation, with the same sizes and seeds in each arm. All others are
            compared with the arm "no explanation".
        controls: arms whose explanations know nothing.
        margin: the smallest gain that matters.
    """

    name: ClassVar[str] = "simulability"
    paper: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "Do explanations help a student predict what its teacher predicts?"
    claim: ClassVar[str] = (
        "If explanations show how a model decides, students that see them should need fewer examples to learn its "
        "predictions than students that see only the predictions."
    )
    source: ClassVar[str] = "Fernandes et al. 2022, sections 2 and 4, tables 1, 3, 5 and 7"
    limits: ClassVar[str] = (
        "An explanation that helps a student need not be true: it may reveal the prediction, or improve the student "
        "on any such text. An explanation that does not help may still be true if this kind of student cannot use "
        "it. The students are networks, not people."
    )

    subject: ModelRecipe
    arms: tuple[tuple[str, tuple[StudentRecipe, ...]], ...]
    controls: tuple[str, ...] = ("random",)
    margin: Annotated[float, Bounds(at_least=0)] = 0.01

    def __post_init__(self) -> None:
        check_options(self)
        names = [name for name, _ in self.arms]
        if NO_EXPLANATION not in names or len(names) < 2 or len(set(names)) < len(names):
            raise UserError(f"pass at least two arms with different names, one of them {NO_EXPLANATION!r}")
        if any(student.teacher != self.subject for _, students in self.arms for student in students):
            raise UserError("a student has a different teacher; all students need the trial's subject as teacher")
        classes = {
            name: sorted((student.data.train_size, student.seed) for student in students)
            for name, students in self.arms
        }
        if not classes[NO_EXPLANATION] or any(students != classes[NO_EXPLANATION] for students in classes.values()):
            raise UserError("every arm needs the same seeds and sizes, because arms are compared in pairs")
        if len(set(classes[NO_EXPLANATION])) < len(classes[NO_EXPLANATION]):
            raise UserError("an arm has a duplicate seed; pass each seed once")

    def describe(self) -> Mapping[str, Json]:
        """The facts of every trial, and by arm those of its students: explanation, normalizer, examples."""
        names = ("explanation", "normalizer", "sampling", "share_dev")
        students = {arm: students[0].describe() for arm, students in self.arms}
        arms: dict[str, Json] = {arm: {name: facts[name] for name in names} for arm, facts in students.items()}
        return {**super().describe(), "arms": arms}

    def make(self, workspace: Workspace) -> Artefact:
        """A row per student with the predictions of teacher and student on all test examples, in the order of uids."""
        rows: list[dict[str, object]] = []
        uids: set[tuple[str, ...]] = set()
        for number, (arm, students) in enumerate(self.arms):
            for student in students:
                artefact = workspace.get(student)
                answers = artefact.table.sort_values("uid")
                uids.add(tuple(answers["uid"]))
                teacher, student_answers = (answers[name].astype(float).tolist() for name in ("teacher", "student"))
                metric: SimulabilityMetric = "pearson" if artefact.notes["measure"] == "pearson" else "accuracy"
                rows.append(
                    {
                        "arm": arm,
                        "place": number,
                        "size": student.data.train_size,
                        "seed": student.seed,
                        "control": arm in self.controls,
                        "margin": self.margin,
                        "measure": metric,
                        "teacher": teacher,
                        "student": student_answers,
                        "simulability": simulability(
                            torch.tensor(teacher), torch.tensor([student_answers]), metric
                        ).item(),
                    }
                )
        if len(uids) > 1:
            raise UserError(
                "students were tested on different examples; use the same data for all, except for its size"
            )
        return self.artefact(pd.DataFrame(rows), len(next(iter(uids))))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Statistics over seeds by arm and training size, and gains over no explanation and over the first control.

        The intervals of `mean`, `difference` and `over_control` are over resampled seeds and examples. `paper_helps`
        and `paper_harms` follow the paper's rule: quartiles that do not overlap; NaN with fewer than five seeds.
        `commonest` is what a student reaches that always predicts the teacher's most frequent class.
        """
        pearson = table["measure"].iloc[0] == "pearson"
        yield Statistic("seeds", value=float(table["seed"].nunique()))
        yield Statistic("margin", value=float(table["margin"].max()))
        yield Statistic("pearson", value=float(pearson))
        shares = pd.Series(table["teacher"].iloc[0]).value_counts(normalize=True)
        yield Statistic("commonest", value=math.nan if pearson else float(shares.max()))
        ordered = table.sort_values(["size", "place", "seed"])
        for arm in ordered[ordered["control"]].sort_values("place")["arm"].unique():
            yield Statistic("control", str(arm), value=1.0)
        for size, rows in ordered.groupby("size"):
            yield Statistic("size", subset=size_label(int(str(size))), value=float(str(size)))
            arms = {str(arm): arm_rows for arm, arm_rows in rows.groupby("arm", sort=False)}
            yield from _arm_statistics(arms, size_label(int(str(size))))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Means with intervals, gains, and medians by size."""
        summary = Simulability.summary(table)
        sizes = sorted(int(size) for size in table["size"].unique())
        arms = [str(arm) for arm in table.sort_values("place")["arm"].unique()]
        pearson = value_of(summary, "pearson")
        axis = "correlation with the teacher" if pearson else "agreement with the teacher's predictions"
        gained = [arm for arm in arms if arm != NO_EXPLANATION]
        label = "gain within seeds, with 95 % interval"
        bars = (
            _arm_bars("Students by explanation", f"{axis}, mean with 95 % interval", summary, "mean", arms),
            _arm_bars(f"Better than {NO_EXPLANATION}", label, summary, "difference", gained),
        )
        if len(sizes) == 1:
            return bars
        medians = {arm: tuple(value_of(summary, "median", arm, size_label(size)) for size in sizes) for arm in arms}
        across = tuple(float(size) for size in sizes)
        curves = tuple((Series(arm, across), Series(arm, values)) for arm, values in medians.items())
        return (*bars, Lines("Students by training size", Axis("examples"), Axis(f"{axis}, median"), curves))

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Whether each arm helps, by training size; controls come last."""
        margin = value_of(summary, "margin")
        controls = {row.method for row in select_statistics(summary, "control")}
        gains = [gain for gain in select_statistics(summary, "difference") if gain.method != NO_EXPLANATION]
        sizes = [row.subset for row in select_statistics(summary, "size")]
        gains.sort(key=lambda gain: (sizes.index(gain.subset), gain.method in controls))
        too_few = f"no interval: fewer than {MIN_INTERVAL_SEEDS} seeds or {MIN_EXAMPLES} examples"
        return tuple(interval_finding(gain, margin, no_interval=too_few) for gain in gains)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        pearson = bool(value_of(summary, "pearson"))
        controls = {row.method for row in select_statistics(summary, "control")}
        verbs = {Verdict.SUPPORTED: "helps", Verdict.NOT_SUPPORTED: "does not help", Verdict.UNDECIDED: "undecided"}
        findings = cls.findings(summary)
        words = []
        for size in (row.subset for row in select_statistics(summary, "size")):
            alone = _format_value(value_of(summary, "median", NO_EXPLANATION, size), pearson=pearson)
            what = "correlate with the teacher at" if pearson else "agree with the teacher on"
            words.append(f"From {size}, students without explanations {what} {alone} (median over seeds).")
            of_size = [finding for finding in findings if finding.evidence[0].subset == size]
            for finding in of_size:
                arm, gain = finding.method, finding.evidence[0]
                name = f"{arm} (control)" if arm in controls else arm
                median = _format_value(value_of(summary, "median", arm, size), pearson=pearson)
                interval = _format_gain(gain, pearson=pearson)
                helps, harms = (value_of(summary, name, arm, size) for name in ("paper_helps", "paper_harms"))
                verb = "helps" if helps else "harms" if harms else "makes no difference"
                rule = "" if math.isnan(helps) else f"; by the paper's rule (separate quartiles), it {verb}"
                words.append(f"{name}: {median}, {interval}, {verbs[finding.verdict]}{rule}.")
            if any(finding.verdict is Verdict.SUPPORTED and finding.method in controls for finding in of_size):
                words.append("A control also helps, so only gains over it are evidence.")
        commonest = value_of(summary, "commonest")
        if not math.isnan(commonest):
            words.append(f"Always predicting the teacher's most frequent class would reach {commonest:.1%}.")
        return " ".join(words)


def size_label(size: int) -> str:
    """The subset of a summary for students with this many training examples."""
    return f"{size} examples"


def simulability(teacher: Tensor, students: Tensor, metric: SimulabilityMetric) -> Tensor:
    """Simulability of each student `[student]` from predictions `[example]` and `[student example]`; NaN for constants.

    >>> simulability(torch.tensor([0, 1, 1]), torch.tensor([[0, 1, 1], [0, 1, 0]]), "accuracy").tolist()
    [1.0, 0.6666666666666666]
    """
    means = _moment_columns(teacher, students, metric).mean(0, keepdim=True)
    return _simulability_from_means(means, len(students), metric)[0]


def bootstrap_simulability(
    teacher: Tensor, students: Tensor, metric: SimulabilityMetric, *, resamples: int = 1000, generator: Generator
) -> Tensor:
    """Mean simulability of each arm over resampled examples and seeds, `[resample arm]`.

    Seeds are few, so one fewer is drawn than there are, which makes the variance of their mean unbiased (Rao & Wu
    1988). The same examples and seeds are drawn for all arms: differences of columns are paired.

    Args:
        students: predictions `[arm seed example]` of at least two seeds, in the same order in every arm.
    """
    arms, seeds = students.shape[:2]
    columns = _moment_columns(teacher, students.flatten(0, 1), metric)
    means = bootstrap_means(columns, resamples=resamples, generator=generator)
    reached = _simulability_from_means(means, arms * seeds, metric).reshape(resamples, arms, seeds)
    weights = resample_counts(seeds, resamples, generator, seeds - 1) / (seeds - 1)
    return torch.einsum("ras,rs->ra", reached, weights)


def _moment_columns(teacher: Tensor, students: Tensor, metric: SimulabilityMetric) -> Tensor:
    """The columns to average over examples, `[example column]`: hits, or the moments of a correlation."""
    if metric == "accuracy":
        return (students == teacher).double().mT
    # Moments about the means keep precision where numbers are large and close together.
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
    # Rounding can push a perfect correlation slightly above one; a constant has none.
    correlation = ((product - one * other) / spread.sqrt()).clamp(-1.0, 1.0)
    return correlation.masked_fill(spread == 0, torch.nan)


def _arm_statistics(arms: dict[str, pd.DataFrame], subset: str) -> Iterator[Statistic]:
    """The statistics of each arm over seeds, and its gains over no explanation and over the first control."""
    names, plain_rows = list(arms), arms[NO_EXPLANATION]
    n, teacher = len(plain_rows), torch.tensor(plain_rows["teacher"].iloc[0], dtype=torch.float64)
    reached = {arm: rows["simulability"].to_numpy(np.float64) for arm, rows in arms.items()}
    quantiles = {arm: {name: np.quantile(reached[arm], at) for name, at in _QUANTILES.items()} for arm in names}
    means = [float(reached[arm].mean()) for arm in names]
    resampled = torch.full((1, len(arms)), math.nan, dtype=torch.float64)
    if n >= MIN_INTERVAL_SEEDS and len(teacher) >= MIN_EXAMPLES:
        students = torch.tensor([rows["student"].map(list).tolist() for rows in arms.values()], dtype=torch.float64)
        metric: SimulabilityMetric = "pearson" if plain_rows["measure"].iloc[0] == "pearson" else "accuracy"
        generator = Generator().manual_seed(derive_seed("simulability", n, len(teacher)))
        resampled = bootstrap_simulability(teacher, students, metric, generator=generator)
    controls = [number for number, arm in enumerate(names) if bool(arms[arm]["control"].iloc[0])]
    references = {"difference": names.index(NO_EXPLANATION), **({"over_control": controls[0]} if controls else {})}
    plain = quantiles[NO_EXPLANATION]
    for number, arm in enumerate(names):
        arm_quantiles = quantiles[arm]
        rules = {"paper_helps": arm_quantiles["q25"] > plain["q75"], "paper_harms": arm_quantiles["q75"] < plain["q25"]}
        rules = {rule: float(holds) if n >= MIN_SEEDS else math.nan for rule, holds in rules.items()}
        for name, value in {**arm_quantiles, **rules}.items():
            yield Statistic(name, arm, subset, float(value), n=n)
        yield Statistic("mean", arm, subset, *seed_interval(means[number], resampled[:, number], n), n)
        for name, other in references.items():
            gain, differences = means[number] - means[other], resampled[:, number] - resampled[:, other]
            yield Statistic(name, arm, subset, *seed_interval(gain, differences, n), n)


def _format_value(value: float, *, pearson: bool) -> str:
    return f"{value:.3f}" if pearson else f"{value:.1%}"


def _format_gain(gain: Statistic, *, pearson: bool) -> str:
    """A gain and its interval: as correlations, or in percentage points; `+ 0.0` turns -0.0 into 0.0."""
    values = (gain.value, gain.low, gain.high)
    mean, low, high = (f"{number + 0.0:+.3f}" if pearson else f"{100 * number + 0.0:+.1f} points" for number in values)
    return mean if math.isnan(gain.low) else f"{mean} (95 % interval {low} to {high})"


def _arm_bars(title: str, label: str, summary: pd.DataFrame, metric: str, arms: Sequence[str]) -> Bars:
    """A bar per arm and training size."""
    sizes = [row.subset for row in select_statistics(summary, "size")]
    rows = {size: [get_statistic(summary, metric, arm, size) for arm in arms] for size in sizes}
    return interval_bars(title, Axis(label), arms, rows)
