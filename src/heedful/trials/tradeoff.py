"""Trained adversaries (Wiegreffe & Pinter, section 4): what does a really trained attention pay for being different?

For each lambda a model of the base's architecture is trained to predict as the base does while attending elsewhere.
The curve of change in predictions over divergence of attention is drawn with what else is known about the base: other
seeds of it, the same model under uniform attention, and the free weights of Jain & Wallace, which no module learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pandas as pd

from heedful.core.figures import Axis, Figure, Scatter, Series
from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.models.pooled import Pooled
from heedful.recipes.deceiving import Deceive, Start
from heedful.recipes.differing import differences
from heedful.recipes.fit import Fit, Select
from heedful.recipes.guides import Uniform
from heedful.recipes.objectives import Imposed, Supervised
from heedful.recipes.subject import Subject
from heedful.trials.adversary import Adversary
from heedful.trials.scoring import right
from heedful.trials.trial import Trial

STRENGTHS = (0.0, 1e-4, 5e-4, 1e-3, 1e-2)
PATIENT = Fit(epochs=80, select=Select(by="deception"), patience=10)
"""The adversary's training on SST; other corpora have 40 epochs in the paper."""
FREE = {"search": "free weights, searched", "exact": "free weights, exact"}
MARKS = {"lambda": "trained adversaries", "seed": "other seeds", "uniform": "uniform attention", **FREE}
"""The kinds of rows, and what the figure calls them."""
DEAR = 0.05
"""A rise of the mean change of predictions along the curve up to which distance is called cheap: J&W's epsilon."""
CHEAP = "So distance is cheap: predictions hardly suffer however far attention moves."
ONE_POINT = "The curve has one point only: give more lambdas to see its shape."
DIFFERENT = 0.4
"""Mean divergence from which an adversary of the paper's table 4 counts as different."""


@dataclass(frozen=True)
class Tradeoff(Trial):
    """Change of predictions against divergence of attention; one row per instance and adversary, seed or null.

    Args:
        subject: the base.
        strengths: the lambdas, one trained adversary each.
        seeds: other seeds of the base, the noise floor.
        adversary_seed: the seed of every adversary.
        fit: how adversaries are trained.
        rescaled: follow the released code's class weights to the letter, see `Deceive`.
        free: also the free weights of Jain & Wallace at epsilon .05, for two solvers; of pooled models, as no other
            model's attention can be set freely.
    """

    name: ClassVar[str] = "tradeoff"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "What does a trained model pay for attending elsewhere?"
    claim: ClassVar[str] = (
        "If attention is no explanation, a model trained to attend elsewhere should predict as the base does: its "
        "curve stays near zero until attention is as different as can be."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 4, tables 4 and 5, figures 5 and 6"
    not_meaning: ClassVar[str] = (
        "That a whole other model reaches the same predictions by another attention does not make the base's attention "
        "false for the base. Nor does the failure of one training prove that no such model exists."
    )

    subject: Subject
    strengths: tuple[float, ...] = STRENGTHS
    seeds: tuple[int, ...] = ()
    adversary_seed: int = 0
    fit: Fit = PATIENT
    start: Start = "fresh"
    rescaled: bool = False
    free: bool = True

    def __post_init__(self) -> None:
        if not self.strengths or min(self.strengths) < 0:
            raise UserError("the trade-off needs at least one lambda, none of them below 0")

    def adversary(self, strength: float) -> Subject:
        """The adversary at this lambda: the base's architecture, trained against it."""
        objective = Deceive(self.subject, self.start, strength, self.rescaled)
        return replace(self.subject, seed=self.adversary_seed, objective=objective, fit=self.fit)

    @property
    def uniform(self) -> Subject:
        """The base's plan trained and tested under uniform attention."""
        objective = self.subject.objective
        weighted = isinstance(objective, Supervised) and objective.weighted
        return replace(self.subject, objective=Imposed(Uniform(), weighted))

    @property
    def others(self) -> tuple[tuple[str, float, Subject], ...]:
        """Every subject that is compared with the base: its kind, its lambda or seed, itself."""
        fought = tuple(("lambda", strength, self.adversary(strength)) for strength in self.strengths)
        honest = tuple(("seed", float(seed), replace(self.subject, seed=seed)) for seed in self.seeds)
        return (*fought, *honest, ("uniform", 0.0, self.uniform))

    @property
    def opposed(self) -> tuple[Adversary, ...]:
        """The per-instance adversaries, paper's search and exact."""
        free = self.free and isinstance(self.subject.model, Pooled)
        return (Adversary(self.subject, solver="search"), Adversary(self.subject)) if free else ()

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """The base, all that is compared with it, and the free weights."""
        return (self.subject, *(other for _, _, other in self.others), *self.opposed)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and other attention."""
        parts: list[pd.DataFrame] = []
        with workspace.progress.task(f"trade-off {self.subject.about['corpus']}", len(self.needs)) as step:
            for kind, setting, other in self.others:
                table = differences(other, self.subject, workspace).drop(columns="probabilities")
                parts.append(table.assign(kind=kind, setting=setting, best_epoch=_epoch(other, workspace)))
                step()
        n = len(table)
        parts += [_free(trial, workspace) for trial in self.opposed]
        rows = pd.concat(parts, ignore_index=True)
        return Artefact(table=rows, notes={"about": dict(self.subject.about), "n": n, "of": n})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """F1, TVD (the paper's scale), JSD of every point, by class too; area under the curve; table 4's lambda."""
        found: dict[str, float] = {}
        for (kind, setting), rows in _points(table):
            place = _place(str(kind), float(setting))
            found |= {f"{name}.{place}": value for name, value in _told(rows).items()}
            for predicted, of_class in rows.groupby("predicted"):
                numbers = {"jsd": float(of_class["jsd"].mean()), "tvd": float(of_class["stvd"].mean() / 2)}
                found |= {f"{name}.{place}.class_{predicted}": value for name, value in numbers.items()}
        return {**_curve(table), **found}

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 5 of the paper, and figure 6: the same for each predicted class."""
        whole = _plane("Change of predictions over divergence of attention", table)
        classes = table.groupby("predicted")
        return (whole, *(_plane(f"The same where the base predicts class {name}", rows) for name, rows in classes))

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """How far a trained adversary goes, what it pays, and how that compares with other seeds."""
        reached, paid, least = summary["reached_jsd"], summary["reached_tvd"], summary["least_tvd"]
        first = (
            f"The farthest trained adversary has a mean divergence of {reached:.2f} (at most .69) and changes "
            f"predictions by {2 * paid:.3f} on average; the truest copy of the base changes them by {2 * least:.3f}."
        )
        second = ONE_POINT if _distinct(summary) < 2 else _shaped(summary)
        jsd, tvd = summary["seed_jsd"], summary["seed_tvd"]
        seeds = f" Other seeds of the base, no adversaries, differ by {jsd:.2f} and change them by {2 * tvd:.3f}."
        return f"{first} {second}" + ("" if math.isnan(jsd) else seeds)


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that nothing beats (no other is as far for less), outwards from no divergence at the least change.

    A model trained anew never predicts quite as its base does: the least change is what any copy costs.
    """
    kept: list[tuple[float, float]] = []
    for jsd, tvd in sorted(points, key=lambda point: (-point[0], point[1])):
        if not kept or tvd < kept[-1][1]:
            kept.append((jsd, tvd))
    return [(0.0, kept[-1][1]), *(point for point in reversed(kept) if point[0] > 0)]


def area(points: Sequence[tuple[float, float]]) -> float:
    """The area under the straight lines that join the points."""
    return sum((x - before) * (y + height) / 2 for (before, height), (x, y) in pairwise(points))


def _points(table: pd.DataFrame) -> Iterable[tuple[tuple[str, float], pd.DataFrame]]:
    order = {kind: place for place, kind in enumerate(MARKS)}
    groups = [
        ((str(rows["kind"].iloc[0]), float(rows["setting"].iloc[0])), rows)
        for _, rows in table.groupby(["kind", "setting"])
    ]
    return sorted(groups, key=lambda group: (order[group[0][0]], group[0][1]))


def _place(kind: str, setting: float) -> str:
    if kind == "lambda":
        return f"lambda_{setting:g}"
    return f"seed_{setting:.0f}" if kind == "seed" else kind


def _told(rows: pd.DataFrame) -> dict[str, float]:
    numbers = {"jsd": float(rows["jsd"].mean()), "tvd": float(rows["stvd"].mean() / 2)}
    if rows["kind"].iloc[0] in FREE:
        return numbers
    # In a text of one word attention cannot move: it has no share to count.
    share = float((rows["jsd"] / rows["bound"])[rows["bound"] > 0].mean())
    epoch = float(rows["best_epoch"].iloc[0])
    return {**right(rows["answered"], rows["label"]), **numbers, "share_of_bound": share, "epoch": epoch}


def _curve(table: pd.DataFrame) -> dict[str, float]:
    """Numbers over the whole curve: area in scaled units, its shape, the farthest point, table 4's lambda."""
    told = {key: _told(rows) for key, rows in _points(table)}
    curve = {setting: numbers for (kind, setting), numbers in told.items() if kind == "lambda"}
    honest = [numbers for (kind, _), numbers in told.items() if kind == "seed"]
    edge = frontier((numbers["jsd"] / math.log(2), 2 * numbers["tvd"]) for numbers in curve.values())
    (far, high), least = edge[-1], edge[0][1]
    triangle = far * (high - least) / 2
    farthest = max(curve.values(), key=lambda numbers: numbers["jsd"])
    best = [strength for strength, numbers in curve.items() if numbers["jsd"] > DIFFERENT]
    score = "f1" if all(not math.isnan(numbers["f1"]) for numbers in curve.values()) else "accuracy"
    chosen = max(best, key=lambda strength: curve[strength][score], default=math.nan)
    return {
        "area": area(edge),
        "convexity": (area(edge) - far * least) / triangle if triangle > 0 else math.nan,
        "least_tvd": least / 2,
        "reached_jsd": farthest["jsd"],
        "reached_tvd": farthest["tvd"],
        "seed_jsd": _mean([numbers["jsd"] for numbers in honest]),
        "seed_tvd": _mean([numbers["tvd"] for numbers in honest]),
        "chosen_lambda": chosen,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _plane(title: str, table: pd.DataFrame) -> Scatter:
    series: dict[str, list[tuple[float, float]]] = {}
    for (kind, _), rows in _points(table):
        series.setdefault(MARKS[kind], []).append((float(rows["jsd"].mean()), float(rows["stvd"].mean() / 2)))
    points = tuple(
        (Series(name, tuple(jsd for jsd, _ in found)), Series(name, tuple(tvd for _, tvd in found)))
        for name, found in series.items()
    )
    jsd, tvd = Axis("mean divergence of attention (JSD)", (0.0, math.log(2))), Axis("mean change of output (TVD)")
    return Scatter(title, jsd, tvd, points, frozenset({MARKS["lambda"]}))


def _free(trial: Adversary, workspace: Workspace) -> pd.DataFrame:
    """The per-instance adversaries under the names of this trial."""
    table = workspace.get(trial).table
    kept = table[["uid", "length", "predicted", "maximum_attention", "bound"]]
    named = {"jsd": table["epsilon_max"], "stvd": table["change"], "kind": trial.solver, "setting": 0.0}
    return kept.assign(**named)


def _epoch(subject: Subject, workspace: Workspace) -> int:
    epoch = workspace.get(subject).notes["best_epoch"]
    assert isinstance(epoch, int)
    return epoch


def _distinct(summary: Mapping[str, float]) -> int:
    """How many different points the trained adversaries make."""
    places = [name.removeprefix("jsd.") for name in summary if name.startswith("jsd.lambda_") and ".class_" not in name]
    return len({(summary[f"jsd.{place}"], summary[f"tvd.{place}"]) for place in places})


def _shaped(summary: Mapping[str, float]) -> str:
    """What distance costs; where predictions did not suffer, that says something only if attention went far."""
    reached, convexity = summary["reached_jsd"], summary["convexity"]
    if 2 * (summary["reached_tvd"] - summary["least_tvd"]) < DEAR or math.isnan(convexity):
        far = reached >= DIFFERENT
        return CHEAP if far else f"But no adversary went far (JSD {reached:.2f}): give larger lambdas."
    if convexity < 0.9:
        return "The curve sags below the straight line: attention moves a long way before predictions suffer."
    if convexity > 1.1:
        return "The curve bulges above the straight line: predictions suffer as soon as attention moves."
    return "The curve is nearly straight: predictions suffer in proportion to the move of attention."
