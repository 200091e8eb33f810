"""Trained adversaries (Wiegreffe & Pinter, section 4): what does a really trained attention pay for being different?

For each lambda a model of the base's architecture is trained to predict as the base does while attending elsewhere.
The curve of change in predictions over divergence of attention is drawn with what else is known about the base: other
seeds of it, the same model under uniform attention, and the free weights of Jain & Wallace, which no module learned.

AtteFa: one number for the faithfulness of attention, from an adversary that is trained once.

The adversary learns to predict as the base does while attending elsewhere, both scaled to [0, 1] and equally heavy.
AtteFa is the price in predictions for a unit of difference in attention: min(mean sTVD / mean sJSD, 1). Beside it
stand what a constant prediction would score, how much of the possible divergence was reached, and what two honest
trainings of the base score against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Bars, Figure, Scatter, Series
from heedful.measures.attention_distance import scaled_jsd
from heedful.measures.classification import accuracy, f1
from heedful.models.attentive import Attentive
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import UniformAttention
from heedful.training.objectives import (
    AdversarialTraining,
    ImposedAttention,
    Initialization,
    Supervised,
    TrainedAdversary,
)
from heedful.training.predictions import compare_predictions
from heedful.training.trained_model import TrainedModel, check_trained_here
from heedful.training.trainer import EpochSelection, Training
from heedful.trials._trial import Trial
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.imposed_attention import check_seeds
from heedful.types import UserError

LAMBDAS = (0.0, 1e-4, 5e-4, 1e-3, 1e-2)
TRADEOFF_TRAINING = Training(epochs=80, selection=EpochSelection(metric="deception"), patience=10)
"""The adversary's training on SST; other corpora have 40 epochs in the paper."""
FREE_WEIGHTS = {"search": "free weights, searched", "exact": "free weights, exact"}
POINT_LABELS = {"lambda": "trained adversaries", "seed": "other seeds", "uniform": "uniform attention", **FREE_WEIGHTS}
"""The kinds of rows, and what the figure calls them."""
CHEAP_TVD_RISE = 0.05
"""A rise of the mean change of predictions along the curve up to which distance is called cheap: J&W's epsilon."""
CHEAP_SENTENCE = "So distance is cheap: predictions hardly suffer however far attention moves."
ONE_POINT_SENTENCE = "The curve has one point only: give more lambdas to see its shape."
DIFFERENT_JSD = 0.4
"""Mean divergence from which an adversary of the paper's table 4 counts as different."""


@dataclass(frozen=True)
class AdversarialTradeoff(Trial):
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
    limits: ClassVar[str] = (
        "That a whole other model reaches the same predictions by another attention does not make the base's attention "
        "false for the base. Nor does the failure of one training prove that no such model exists."
    )

    subject: TrainedModel
    lambdas: tuple[float, ...] = LAMBDAS
    seeds: tuple[int, ...] = ()
    adversary_seed: int = 0
    adversary_training: Training = TRADEOFF_TRAINING
    start: Initialization = "fresh"
    rescale_class_weights: bool = False
    include_free_weights: bool = True

    def __post_init__(self) -> None:
        check_trained_here(self.subject)
        if not self.lambdas or min(self.lambdas) < 0:
            raise UserError("the trade-off needs at least one lambda, none of them below 0")

    def adversary(self, strength: float) -> TrainedModel:
        """The adversary at this lambda: the base's architecture, trained against it."""
        objective = AdversarialTraining(self.subject, self.start, strength, self.rescale_class_weights)
        return replace(self.subject, seed=self.adversary_seed, objective=objective, training=self.adversary_training)

    @property
    def uniform_model(self) -> TrainedModel:
        """The base's plan trained and tested under uniform attention."""
        objective = self.subject.objective
        weighted = isinstance(objective, Supervised) and objective.balance_classes
        return replace(self.subject, objective=ImposedAttention(UniformAttention(), weighted))

    @property
    def compared_models(self) -> tuple[tuple[str, float, TrainedModel], ...]:
        """Every subject that is compared with the base: its kind, its lambda or seed, itself."""
        fought = tuple(("lambda", strength, self.adversary(strength)) for strength in self.lambdas)
        honest = tuple(("seed", float(seed), replace(self.subject, seed=seed)) for seed in self.seeds)
        return (*fought, *honest, ("uniform", 0.0, self.uniform_model))

    @property
    def free_adversaries(self) -> tuple[AdversarialAttention, ...]:
        """The per-instance adversaries, paper's search and exact."""
        free = self.include_free_weights and isinstance(self.subject.architecture, Attentive)
        return (AdversarialAttention(self.subject, solver="search"), AdversarialAttention(self.subject)) if free else ()

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The base, all that is compared with it, and the free weights."""
        return (self.subject, *(other for _, _, other in self.compared_models), *self.free_adversaries)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and other attention."""
        parts: list[pd.DataFrame] = []
        with workspace.progress.task(f"trade-off {self.subject.about['corpus']}", len(self.dependencies)) as step:
            for kind, setting, other in self.compared_models:
                table = compare_predictions(other, self.subject, workspace).drop(columns="probabilities")
                parts.append(table.assign(kind=kind, setting=setting, best_epoch=_best_epoch(other, workspace)))
                step()
        n = len(table)
        parts += [_free_weight_rows(trial, workspace) for trial in self.free_adversaries]
        rows = pd.concat(parts, ignore_index=True)
        return Artefact(table=rows, notes={"about": dict(self.subject.about), "n": n, "of": n})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """F1, TVD (the paper's scale), JSD of every point, by class too; area under the curve; table 4's lambda."""
        found: dict[str, float] = {}
        for (kind, setting), rows in _group_by_point(table):
            place = _point_key(str(kind), float(setting))
            found |= {f"{name}.{place}": value for name, value in _point_numbers(rows).items()}
            for predicted, of_class in rows.groupby("predicted"):
                numbers = {"jsd": float(of_class["jsd"].mean()), "tvd": float(of_class["stvd"].mean() / 2)}
                found |= {f"{name}.{place}.class_{predicted}": value for name, value in numbers.items()}
        return {**_curve_numbers(table), **found}

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 5 of the paper, and figure 6: the same for each predicted class."""
        whole = _jsd_tvd_scatter("Change of predictions over divergence of attention", table)
        classes = table.groupby("predicted")
        return (
            whole,
            *(_jsd_tvd_scatter(f"The same where the base predicts class {name}", rows) for name, rows in classes),
        )

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """How far a trained adversary goes, what it pays, and how that compares with other seeds."""
        reached, paid, least = summary["reached_jsd"], summary["reached_tvd"], summary["least_tvd"]
        first = (
            f"The farthest trained adversary has a mean divergence of {reached:.2f} (at most .69) and changes "
            f"predictions by {2 * paid:.3f} on average; the truest copy of the base changes them by {2 * least:.3f}."
        )
        second = ONE_POINT_SENTENCE if _count_distinct_points(summary) < 2 else _shape_sentence(summary)
        jsd, tvd = summary["seed_jsd"], summary["seed_tvd"]
        seeds = f" Other seeds of the base, no adversaries, differ by {jsd:.2f} and change them by {2 * tvd:.3f}."
        return f"{first} {second}" + ("" if math.isnan(jsd) else seeds)


def accuracy_and_f1(predicted: pd.Series[int], label: pd.Series[int]) -> dict[str, float]:
    """Accuracy, and F1 of class 1: NaN for more than two classes, or if class 1 is neither predicted nor present."""
    one, other = (torch.tensor(values.to_numpy()) for values in (predicted, label))
    largest = int(torch.maximum(one, other).max())
    return {"accuracy": accuracy(one, other), "f1": f1(one, other) if largest == 1 else math.nan}


def pareto_frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that nothing beats (no other is as far for less), outwards from no divergence at the least change.

    A model trained anew never predicts quite as its base does: the least change is what any copy costs.
    """
    kept: list[tuple[float, float]] = []
    for jsd, tvd in sorted(points, key=lambda point: (-point[0], point[1])):
        if not kept or tvd < kept[-1][1]:
            kept.append((jsd, tvd))
    return [(0.0, kept[-1][1]), *(point for point in reversed(kept) if point[0] > 0)]


def area_under_curve(points: Sequence[tuple[float, float]]) -> float:
    """The area under the straight lines that join the points."""
    return sum((x - before) * (y + height) / 2 for (before, height), (x, y) in pairwise(points))


def _group_by_point(table: pd.DataFrame) -> Iterable[tuple[tuple[str, float], pd.DataFrame]]:
    order = {kind: place for place, kind in enumerate(POINT_LABELS)}
    groups = [
        ((str(rows["kind"].iloc[0]), float(rows["setting"].iloc[0])), rows)
        for _, rows in table.groupby(["kind", "setting"])
    ]
    return sorted(groups, key=lambda group: (order[group[0][0]], group[0][1]))


def _point_key(kind: str, setting: float) -> str:
    if kind == "lambda":
        return f"lambda_{setting:g}"
    return f"seed_{setting:.0f}" if kind == "seed" else kind


def _point_numbers(rows: pd.DataFrame) -> dict[str, float]:
    numbers = {"jsd": float(rows["jsd"].mean()), "tvd": float(rows["stvd"].mean() / 2)}
    if rows["kind"].iloc[0] in FREE_WEIGHTS:
        return numbers
    # In a text of one word attention cannot move: it has no share to count.
    share = float((rows["jsd"] / rows["bound"])[rows["bound"] > 0].mean())
    epoch = float(rows["best_epoch"].iloc[0])
    return {**accuracy_and_f1(rows["answered"], rows["label"]), **numbers, "share_of_bound": share, "epoch": epoch}


def _curve_numbers(table: pd.DataFrame) -> dict[str, float]:
    """Numbers over the whole curve: area in scaled units, its shape, the farthest point, table 4's lambda."""
    told = {key: _point_numbers(rows) for key, rows in _group_by_point(table)}
    curve = {setting: numbers for (kind, setting), numbers in told.items() if kind == "lambda"}
    honest = [numbers for (kind, _), numbers in told.items() if kind == "seed"]
    edge = pareto_frontier((numbers["jsd"] / math.log(2), 2 * numbers["tvd"]) for numbers in curve.values())
    (far, high), least = edge[-1], edge[0][1]
    triangle = far * (high - least) / 2
    farthest = max(curve.values(), key=lambda numbers: numbers["jsd"])
    best = [strength for strength, numbers in curve.items() if numbers["jsd"] > DIFFERENT_JSD]
    score = "f1" if all(not math.isnan(numbers["f1"]) for numbers in curve.values()) else "accuracy"
    chosen = max(best, key=lambda strength: curve[strength][score], default=math.nan)
    return {
        "area": area_under_curve(edge),
        "convexity": (area_under_curve(edge) - far * least) / triangle if triangle > 0 else math.nan,
        "least_tvd": least / 2,
        "reached_jsd": farthest["jsd"],
        "reached_tvd": farthest["tvd"],
        "seed_jsd": _mean([numbers["jsd"] for numbers in honest]),
        "seed_tvd": _mean([numbers["tvd"] for numbers in honest]),
        "chosen_lambda": chosen,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _jsd_tvd_scatter(title: str, table: pd.DataFrame) -> Scatter:
    series: dict[str, list[tuple[float, float]]] = {}
    for (kind, _), rows in _group_by_point(table):
        series.setdefault(POINT_LABELS[kind], []).append((float(rows["jsd"].mean()), float(rows["stvd"].mean() / 2)))
    points = tuple(
        (Series(name, tuple(jsd for jsd, _ in found)), Series(name, tuple(tvd for _, tvd in found)))
        for name, found in series.items()
    )
    jsd, tvd = Axis("mean divergence of attention (JSD)", (0.0, math.log(2))), Axis("mean change of output (TVD)")
    return Scatter(title, jsd, tvd, points, frozenset({POINT_LABELS["lambda"]}))


def _free_weight_rows(trial: AdversarialAttention, workspace: Workspace) -> pd.DataFrame:
    """The per-instance adversaries under the names of this trial."""
    table = workspace.get(trial).table
    kept = table[["uid", "length", "predicted", "maximum_attention", "bound"]]
    named = {"jsd": table["epsilon_max"], "stvd": table["change"], "kind": trial.solver, "setting": 0.0}
    return kept.assign(**named)


def _best_epoch(subject: TrainedModel, workspace: Workspace) -> int:
    epoch = workspace.get(subject).notes["best_epoch"]
    assert isinstance(epoch, int)
    return epoch


def _count_distinct_points(summary: Mapping[str, float]) -> int:
    """How many different points the trained adversaries make."""
    places = [name.removeprefix("jsd.") for name in summary if name.startswith("jsd.lambda_") and ".class_" not in name]
    return len({(summary[f"jsd.{place}"], summary[f"tvd.{place}"]) for place in places})


def _shape_sentence(summary: Mapping[str, float]) -> str:
    """What distance costs; where predictions did not suffer, that says something only if attention went far."""
    reached, convexity = summary["reached_jsd"], summary["convexity"]
    if 2 * (summary["reached_tvd"] - summary["least_tvd"]) < CHEAP_TVD_RISE or math.isnan(convexity):
        far = reached >= DIFFERENT_JSD
        return CHEAP_SENTENCE if far else f"But no adversary went far (JSD {reached:.2f}): give larger lambdas."
    if convexity < 0.9:
        return "The curve sags below the straight line: attention moves a long way before predictions suffer."
    if convexity > 1.1:
        return "The curve bulges above the straight line: predictions suffer as soon as attention moves."
    return "The curve is nearly straight: predictions suffer in proportion to the move of attention."


PAPER_SEEDS = (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
"""The seeds of Wiegreffe & Pinter, which AtteFa took over; the first is the base's."""

ATTEFA_TRAINING = Training(epochs=80, selection=EpochSelection(metric="deception"), patience=10, reduction="mean")
"""The adversary's training: at most 80 epochs, 10 without a better one."""

RETRAINING_FACTOR = 1.5
"""Up to so many times the change of an honest retraining, a change of predictions is called no larger than that."""
CONSTANT_THRESHOLD = 0.05
"""Below this mean distance from the best constant a base hardly predicts anything."""
UNMOVED_SENTENCE = (
    "AtteFa is not defined here: no adversary's attention moved away from the base's, so there is no price to tell. "
    "Train the adversaries longer, or ask about a model whose attention can move."
)
COLLAPSE_MARGIN = 0.05
"""So near to the collapse value, relative to it, an adversary is said to have given up on predicting."""


@dataclass(frozen=True)
class AtteFa(Trial):
    """The price in predictions for attending elsewhere; one row per pair of a base and an adversary.

    Args:
        subject: the base.
        adversaries: seeds of the adversaries.
        bases: seeds of further bases: what they score against each other is the noise floor.
        crossed: whether every adversary attacks every base; the paper attacks one.
        fit: how adversaries are trained.
    """

    name: ClassVar[str] = "attefa"
    paper: ClassVar[str] = "attefa"
    title: ClassVar[str] = "What does it cost to attend elsewhere?"
    claim: ClassVar[str] = (
        "If attention is faithful, a model that attends to other words cannot go on making the same predictions: "
        "AtteFa near 1 says that every change of attention is paid for in predictions, near 0 that it is free."
    )
    source: ClassVar[str] = "AtteFa, sections 3 to 5, tables 2 to 5, figures 1 and 2"
    limits: ClassVar[str] = (
        "A low number does not say that this model's attention is wrong, only that another model can predict the same "
        "with another attention. A high number may only say that the adversary gave up predicting: compare it with "
        "the value of a constant prediction."
    )

    subject: TrainedModel
    adversary_seeds: tuple[int, ...] = PAPER_SEEDS
    base_seeds: tuple[int, ...] = ()
    attack_all_bases: bool = False
    adversary_training: Training = ATTEFA_TRAINING
    start: Initialization = "fresh"

    def __post_init__(self) -> None:
        check_trained_here(self.subject)
        if not self.adversary_seeds:
            raise UserError("AtteFa needs at least one adversary: give a seed")
        for seeds in (self.adversary_seeds, self.base_seeds):
            if seeds:
                check_seeds(seeds)

    @property
    def base_models(self) -> tuple[TrainedModel, ...]:
        """The base, then the further ones."""
        seeds = (self.subject.seed, *(seed for seed in self.base_seeds if seed != self.subject.seed))
        return tuple(replace(self.subject, seed=seed) for seed in seeds)

    def adversary(self, base: TrainedModel, seed: int) -> TrainedModel:
        """The adversary of a base: the same architecture, trained against it."""
        return replace(base, seed=seed, objective=TrainedAdversary(base, self.start), training=self.adversary_training)

    @property
    def model_pairs(self) -> tuple[tuple[TrainedModel, TrainedModel, str], ...]:
        """Base, other subject, and whether the other is an adversary or another honest base."""
        attacked = self.base_models if self.attack_all_bases else self.base_models[:1]
        fought = tuple(
            (base, self.adversary(base, seed), "adversary") for base in attacked for seed in self.adversary_seeds
        )
        floor = tuple(
            (base, other, "honest") for base in self.base_models for other in self.base_models if base != other
        )
        return fought + floor

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """All bases and adversaries."""
        return (*self.base_models, *(other for _, other, kind in self.model_pairs if kind == "adversary"))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per pair, from means over the test instances."""
        rows: list[dict[str, object]] = []
        with workspace.progress.task(f"attefa {self.subject.about['corpus']}", len(self.model_pairs)) as step:
            for base, other, kind in self.model_pairs:
                table = compare_predictions(other, base, workspace)
                epoch = workspace.get(other).notes["best_epoch"]
                rows.append(
                    {"kind": kind, "base": base.seed, "seed": other.seed, "epoch": epoch, **_pair_numbers(table)}
                )
                step()
        n = len(table)
        return Artefact(table=pd.DataFrame(rows), notes={"about": dict(self.subject.about), "n": n, "of": n})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Means over adversaries with population (as the paper prints) and sample deviation, floor and collapse.

        `share_of_mean_bound` is a ratio of means, as AtteFa is; other trials take the mean of each text's share.
        """
        fought = table[table["kind"] == "adversary"]
        honest = table[table["kind"] == "honest"]
        found = {"adversaries": float(len(fought)), "bases": float(fought["base"].nunique())}
        for name in ("attefa", "tvd", "jsd", "f1", "accuracy", "epoch"):
            found[name] = float(fought[name].mean())
            found[f"population_std_{name}"] = float(fought[name].std(ddof=0))
            found[f"sample_std_{name}"] = float(fought[name].std(ddof=1))
        for name in ("constant", "collapse", "share_of_bound", "attefa_of_bound", "base_f1", "base_accuracy"):
            found["share_of_mean_bound" if name == "share_of_bound" else name] = float(fought[name].mean())
        found["floor"] = float(honest["attefa"].mean())
        found["floor_jsd"] = float(honest["jsd"].mean())
        found["floor_tvd"] = float(honest["tvd"].mean())
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 2's plane with an adversary per point, and AtteFa seed by seed beside the collapse value."""
        kinds = {"adversary": "adversaries", "honest": "other trainings of the base"}
        points = tuple(
            (Series(label, tuple(rows["jsd"])), Series(label, tuple(rows["tvd"])))
            for kind, label in kinds.items()
            if len(rows := table[table["kind"] == kind])
        )
        fought = table[table["kind"] == "adversary"]
        labels = tuple(
            f"base {base}, adversary {seed}" for base, seed in zip(fought["base"], fought["seed"], strict=True)
        )
        series = (Series("AtteFa", tuple(fought["attefa"])), Series("a constant prediction", tuple(fought["collapse"])))
        jsd, tvd = Axis("mean divergence of attention (JSD)", (0.0, math.log(2))), Axis("mean change of output (TVD)")
        return (
            Scatter("How far attention went, and what it cost", jsd, tvd, points),
            Bars("AtteFa of each adversary", Axis("AtteFa", (0.0, 1.0)), labels, series),
        )

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """The number, its noise floor and what it means, in three sentences."""
        value, collapse, floor = summary["attefa"], summary["collapse"], summary["floor"]
        if summary["constant"] < CONSTANT_THRESHOLD:
            would = "it is not even defined" if math.isnan(value) else f"it would be {value:.3f}"
            return (
                f"AtteFa says nothing here ({would}): the base predicts almost the same for every text, so no "
                "attention could change it. Train a better base, then ask again."
            )
        if math.isnan(value):
            return UNMOVED_SENTENCE
        spread = summary["sample_std_attefa"]
        wide = "" if math.isnan(spread) else f" (deviation over adversaries {spread:.3f})"
        first = f"AtteFa is {value:.3f}{wide}: {_price_clause(value)}."
        gave_up = value >= collapse * (1 - COLLAPSE_MARGIN)
        second = f"A constant prediction would score {collapse:.3f}" + (
            ", so these adversaries gave up predicting and the number says nothing finer than that; others that start "
            "from the base (--start base) may not."
            if gave_up
            else ", so these adversaries did find other attention that predicts nearly the same."
        )
        if math.isnan(floor):
            return f"{first} {second} With one base there is no noise floor: give more bases."
        third = (
            f"Two honest trainings of the base differ by {2 * summary['floor_tvd']:.3f} in predictions and "
            f"{summary['floor_jsd']:.3f} in attention (their ratio, the noise floor, is {floor:.3f}); the adversaries "
            f"differ by {2 * summary['tvd']:.3f} and {summary['jsd']:.3f}, {_floor_clause(summary)}."
        )
        return f"{first} {second} {third}"


def attefa(stvd: float, sjsd: float) -> float:
    """`min(sTVD / sJSD, 1)`, a ratio of means; undefined where attention did not move at all.

    >>> round(attefa(0.3, 0.384349 / math.log(2)), 4)
    0.541
    """
    return min(stvd / sjsd, 1.0) if sjsd > 0 else math.nan


def distance_to_best_constant(probabilities: Tensor) -> float:
    """The mean total variation between these predictions `[instance class]` and the constant nearest to them.

    For two classes that constant is the median, which is exact; for more it is the best of the mean, the scaled
    medians and each single class, hence at most a little above the least.
    """
    middle = probabilities.median(0).values
    if probabilities.shape[1] == 2:
        middle = torch.stack([1 - middle[1], middle[1]])
    candidates = torch.cat(
        [
            probabilities.mean(0, keepdim=True),
            (middle / middle.sum().clamp(min=1e-12)).unsqueeze(0),
            torch.eye(probabilities.shape[1], dtype=probabilities.dtype),
        ]
    )
    return float((0.5 * (probabilities.unsqueeze(1) - candidates).abs().sum(-1)).mean(0).min())


def _pair_numbers(table: pd.DataFrame) -> dict[str, float]:
    """The numbers of one pair from its instances."""
    stvd, jsd, bound = (float(table[name].mean()) for name in ("stvd", "jsd", "bound"))
    sjsd = float(scaled_jsd(torch.tensor(jsd, dtype=torch.float64)))
    constant = distance_to_best_constant(torch.tensor(table["probabilities"].tolist(), dtype=torch.float64))
    return {
        **accuracy_and_f1(table["answered"], table["label"]),
        **{f"base_{name}": value for name, value in accuracy_and_f1(table["predicted"], table["label"]).items()},
        "tvd": stvd / 2,
        "jsd": jsd,
        "stvd": stvd,
        "sjsd": sjsd,
        "attefa": attefa(stvd, sjsd),
        "constant": constant,
        "collapse": attefa(constant, sjsd),
        "share_of_bound": jsd / bound if bound > 0 else math.nan,
        "attefa_of_bound": attefa(stvd, jsd / bound) if bound > 0 else math.nan,
    }


def _price_clause(value: float) -> str:
    if value < 0.1:
        return "attention can be almost anything without changing what the model predicts"
    if value < 0.5:
        return "another attention costs some of the predictions, not all"
    return "attending elsewhere costs most of the predictions"


def _floor_clause(summary: Mapping[str, float]) -> str:
    if summary["tvd"] <= RETRAINING_FACTOR * summary["floor_tvd"]:
        return "so their predictions are hardly farther from the base than those of a retraining"
    return "so they pay in predictions for what a retraining does not change"
