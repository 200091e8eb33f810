"""Trained adversaries: what does a model pay in predictions for attending elsewhere?

`AdversarialTradeoff` (Wiegreffe & Pinter 2019, section 4) trains, for each lambda, a model of the base's architecture
to predict as the base does while attending elsewhere. It draws the change of predictions over the divergence of
attention, beside other seeds of the base, uniform attention, and the free weights of Jain & Wallace.

`AtteFa` is one number from adversaries that are trained once, with both terms scaled to [0, 1]:
min(mean sTVD / mean sJSD, 1). References are the value of a constant prediction and of two trainings of the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Bars, Figure, Scatter, Series
from heedful.measures.classification import accuracy, f1
from heedful.measures.divergence import scaled_jsd
from heedful.models.attentive import Attentive
from heedful.results import Finding, Statistic, Verdict, get_statistic, select_statistics, value_of
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import UniformAttention
from heedful.training.objectives import AdversarialTraining, Initialization, TrainedAdversary
from heedful.training.predictions import compare_predictions
from heedful.training.trained_model import TrainedModel, check_trained_here
from heedful.training.trainer import EpochSelection, Training
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.imposed_attention import check_seeds, with_imposed_attention
from heedful.trials.trial import Trial
from heedful.types import UserError

LAMBDAS = (0.0, 1e-4, 5e-4, 1e-3, 1e-2)
TRADEOFF_TRAINING = Training(epochs=80, selection=EpochSelection(metric="deception"), patience=10)
"""The adversary's training on SST; other corpora have 40 epochs in the paper."""
POINT_LABELS = {
    "lambda": "trained adversaries",
    "seed": "other seeds",
    "uniform": "uniform attention",
    "search": "free weights, searched",
    "exact": "free weights, exact",
}
"""The kinds of points of the trade-off, and their labels in the figure."""
CHEAP_TVD_RISE = 0.05
"""Change of predictions along the curve below which divergence is free: the epsilon of Jain & Wallace."""
DIFFERENT_JSD = 0.4
"""Mean divergence from which an adversary of the paper's table 4 counts as different."""

PAPER_SEEDS = (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
"""The seeds of Wiegreffe & Pinter and of AtteFa; the first is the base's."""
ATTEFA_TRAINING = Training(epochs=80, selection=EpochSelection(metric="deception"), patience=10, reduction="mean")
"""The adversary's training: at most 80 epochs, 10 without improvement."""
LOW_ATTEFA, HIGH_ATTEFA = 0.1, 0.5
"""Below the first, other attention is free; from the second on, it costs most of the predictions."""
RETRAINING_FACTOR = 1.5
"""A change of predictions up to this many times that of a retraining counts as no larger than it."""
CONSTANT_THRESHOLD = 0.05
"""A base with a smaller mean distance from the best constant prediction is degenerate."""
COLLAPSE_MARGIN = 0.05
"""Relative distance from the value of a constant prediction below which an adversary has given up predicting."""

_JSD_AXIS = Axis("mean divergence of attention (JSD)", (0.0, math.log(2)))
_TVD_AXIS = Axis("mean change in output (TVD, 0 to 0.5)")


@dataclass(frozen=True)
class AdversarialTradeoff(Trial):
    """Change of predictions against divergence of attention; one row per text and compared model.

    Args:
        subject: the base.
        lambdas: one adversary is trained for each.
        seeds: other seeds of the base, the noise floor.
        adversary_seed: the seed of every adversary.
        adversary_training: hyper-parameters of the adversaries.
        rescale_class_weights: follow the class weights of the released code, see `AdversarialTraining`.
    """

    revision: ClassVar[int] = 2
    name: ClassVar[str] = "adversarial-tradeoff"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "What does it cost a trained model to attend elsewhere?"
    claim: ClassVar[str] = (
        "If attention is not an explanation, a model trained to attend elsewhere can make the same predictions as "
        "the base model: the change in predictions stays near zero until attention is as different as possible."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 4, tables 4 and 5, figures 5 and 6"
    limits: ClassVar[str] = (
        "If another model makes the same predictions with different attention, the attention of the base model can "
        "still be right for the base model. If one training run fails, such a model may still exist."
    )

    subject: TrainedModel
    lambdas: tuple[float, ...] = LAMBDAS
    seeds: tuple[int, ...] = ()
    adversary_seed: int = 0
    adversary_training: Training = TRADEOFF_TRAINING
    start: Initialization = "fresh"
    rescale_class_weights: bool = False

    def __post_init__(self) -> None:
        with_imposed_attention(self.subject, UniformAttention())
        if not self.lambdas or not all(0 <= strength < math.inf for strength in self.lambdas):
            raise UserError(f"lambdas are {self.lambdas}; pass at least one, all finite and not negative")

    def adversary(self, strength: float) -> TrainedModel:
        """The adversary at this lambda: the base's architecture, trained against it."""
        objective = AdversarialTraining(self.subject, self.start, strength, self.rescale_class_weights)
        return replace(self.subject, seed=self.adversary_seed, objective=objective, training=self.adversary_training)

    @property
    def compared_models(self) -> tuple[tuple[str, float, TrainedModel], ...]:
        """Kind, lambda or seed, and recipe of every model that is compared with the base."""
        fought = tuple(("lambda", strength, self.adversary(strength)) for strength in self.lambdas)
        honest = tuple(("seed", float(seed), replace(self.subject, seed=seed)) for seed in self.seeds)
        return (*fought, *honest, ("uniform", 0.0, with_imposed_attention(self.subject, UniformAttention())))

    @property
    def free_adversaries(self) -> tuple[AdversarialAttention, ...]:
        """The adversarial attention of each text at epsilon .05, by search and exact; none for a transformer."""
        if not isinstance(self.subject.architecture, Attentive):
            return ()
        return AdversarialAttention(self.subject, solver="search"), AdversarialAttention(self.subject)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return (self.subject, *(other for _, _, other in self.compared_models), *self.free_adversaries)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and compared model."""
        parts: list[pd.DataFrame] = []
        with workspace.progress.task(f"{self.name} {self.subject.about['corpus']}", len(self.dependencies)) as step:
            for kind, setting, other in self.compared_models:
                table = compare_predictions(other, self.subject, workspace).drop(columns="probabilities")
                epoch = int(str(workspace.get(other).notes["best_epoch"]))
                parts.append(table.assign(kind=kind, setting=setting, best_epoch=epoch))
                step()
        for trial in self.free_adversaries:
            free = workspace.get(trial).table.rename(columns={"epsilon_max": "jsd", "change": "stvd"})
            kept = free[["uid", "length", "predicted", "maximum_attention", "bound", "jsd", "stvd"]]
            parts.append(kept.assign(kind=trial.solver, setting=0.0))
        return self.artefact(pd.concat(parts, ignore_index=True), len(table))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Scores, TVD (the paper's scale) and JSD of every point, also by class; numbers of the whole curve."""
        for name, value in _curve_numbers(table).items():
            yield Statistic(name, value=value)
        for (kind, setting), rows in _group_by_point(table):
            method = {"lambda": f"lambda {setting:g}", "seed": f"seed {setting:.0f}"}.get(kind, kind)
            if kind == "lambda":
                yield Statistic("lambda", method, value=setting)
            for name, value in _point_numbers(rows).items():
                yield Statistic(name, method, value=value, n=len(rows))
            for predicted, of_class in rows.groupby("predicted"):
                for name, value in (("jsd", of_class["jsd"].mean()), ("tvd", of_class["stvd"].mean() / 2)):
                    yield Statistic(name, method, f"class {predicted}", float(value), n=len(of_class))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 5 of the paper, and figure 6: the same for each predicted class."""
        titles = {"Change in predictions by divergence of attention": table}
        classes = table.groupby("predicted")
        titles |= {f"The same where the base predicts class {name}": rows for name, rows in classes}
        figures = []
        for title, rows in titles.items():
            means = rows.assign(tvd=rows["stvd"] / 2).groupby(["kind", "setting"])[["jsd", "tvd"]].mean().reset_index()
            figures.append(_jsd_tvd_scatter(title, means, POINT_LABELS))
        return tuple(figures)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Supported where an adversary attends far from the base at nearly no change of predictions."""
        names = ("reached_jsd", "reached_tvd", "least_tvd", "convexity")
        evidence = tuple(get_statistic(summary, name) for name in names)
        jsd, tvd, least, convexity = (statistic.value for statistic in evidence)
        lambdas = [statistic.method for statistic in select_statistics(summary, "lambda")]
        points = {(value_of(summary, "jsd", method), value_of(summary, "tvd", method)) for method in lambdas}
        verdict, reason = Verdict.UNDECIDED, "no adversary attends far from the base model; use larger lambdas"
        if len(points) < 2:
            reason = "the curve has a single point; use more lambdas"
        elif 2 * (tvd - least) >= CHEAP_TVD_RISE and not math.isnan(convexity):
            verdict, reason = Verdict.NOT_SUPPORTED, ""
        elif jsd >= DIFFERENT_JSD:
            verdict, reason = Verdict.SUPPORTED, ""
        return (Finding(verdict, "", evidence, reason),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        (finding,) = cls.findings(summary)
        jsd, tvd, least, convexity = (statistic.value for statistic in finding.evidence)
        shape = (
            "falls below a straight line: attention moves far before predictions suffer"
            if convexity < 0.9
            else "rises above a straight line: predictions suffer as soon as attention moves"
            if convexity > 1.1
            else "is nearly straight: predictions suffer in proportion to the divergence of attention"
        )
        verdict = {
            Verdict.SUPPORTED: "So other attention is free: predictions hardly change, however far attention moves.",
            Verdict.NOT_SUPPORTED: f"The curve {shape}.",
            Verdict.UNDECIDED: f"Undecided: {finding.reason}.",
        }[finding.verdict]
        seed_jsd, seed_tvd = value_of(summary, "seed_jsd"), value_of(summary, "seed_tvd")
        seeds = f" Other seeds of the base model diverge by {seed_jsd:.2f} and change predictions by {seed_tvd:.3f}."
        return (
            f"The most distant adversary diverges by {jsd:.2f} in attention (JSD, at most 0.69) and changes "
            f"predictions by {tvd:.3f} (TVD, at most 0.5); the closest copy of the base changes them by {least:.3f}. "
            f"{verdict}{'' if math.isnan(seed_jsd) else seeds}"
        )


@dataclass(frozen=True)
class AtteFa(Trial):
    """The price in predictions for attending elsewhere; one row per pair of a base and another model.

    Args:
        subject: the base.
        adversary_seeds: one adversary is trained from each.
        base_seeds: further trainings of the base; their AtteFa against each other is the noise floor.
        adversary_training: hyper-parameters of the adversaries.
    """

    revision: ClassVar[int] = 2
    name: ClassVar[str] = "attefa"
    paper: ClassVar[str] = "attefa"
    title: ClassVar[str] = "What does it cost to attend elsewhere?"
    claim: ClassVar[str] = (
        "If attention is faithful, a model that attends to other words cannot make the same predictions: AtteFa "
        "near 1 means that every change in attention costs predictions, and near 0 that it is free."
    )
    source: ClassVar[str] = "AtteFa, sections 3 to 5, tables 2 to 5, figures 1 and 2"
    limits: ClassVar[str] = (
        "A low value does not mean that this model's attention is wrong, only that another model can make the same "
        "predictions with different attention. A high value may only mean that the adversary gave up predicting, so "
        "compare it with the value of a constant prediction."
    )

    subject: TrainedModel
    adversary_seeds: tuple[int, ...] = PAPER_SEEDS
    base_seeds: tuple[int, ...] = ()
    adversary_training: Training = ATTEFA_TRAINING
    start: Initialization = "fresh"

    def __post_init__(self) -> None:
        check_trained_here(self.subject)
        if not self.adversary_seeds:
            raise UserError("AtteFa needs at least one adversary; pass a seed")
        for seeds in (self.adversary_seeds, self.base_seeds):
            if seeds:
                check_seeds(seeds)

    @property
    def base_models(self) -> tuple[TrainedModel, ...]:
        """The base, then its further trainings."""
        seeds = (self.subject.seed, *(seed for seed in self.base_seeds if seed != self.subject.seed))
        return tuple(replace(self.subject, seed=seed) for seed in seeds)

    @property
    def adversaries(self) -> tuple[TrainedModel, ...]:
        """Models of the base's architecture that are trained against it, from each seed."""
        against = replace(
            self.subject, objective=TrainedAdversary(self.subject, self.start), training=self.adversary_training
        )
        return tuple(replace(against, seed=seed) for seed in self.adversary_seeds)

    @property
    def model_pairs(self) -> tuple[tuple[TrainedModel, TrainedModel, str], ...]:
        """Base, other model, and whether that is an "adversary" or an "honest" training of the base."""
        fought = tuple((self.subject, other, "adversary") for other in self.adversaries)
        return fought + tuple((base, other, "honest") for base, other in permutations(self.base_models, 2))

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return self.base_models + self.adversaries

    def make(self, workspace: Workspace) -> Artefact:
        """A row per pair, from means over the test examples."""
        rows: list[dict[str, object]] = []
        with workspace.progress.task(f"{self.name} {self.subject.about['corpus']}", len(self.model_pairs)) as step:
            for base, other, kind in self.model_pairs:
                table = compare_predictions(other, base, workspace)
                facts = {"kind": kind, "base": base.seed, "seed": other.seed}
                epoch = workspace.get(other).notes["best_epoch"]
                rows.append({**facts, "epoch": epoch, **_pair_numbers(table)})
                step()
        return self.artefact(pd.DataFrame(rows), len(table))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Means over adversaries with population (as the paper prints) and sample deviation, floor and collapse.

        `share_of_mean_bound` is a ratio of means, as AtteFa is; other trials take the mean of each text's share.
        """
        fought, honest = (table[table["kind"] == kind] for kind in ("adversary", "honest"))
        n = len(fought)
        for name in ("attefa", "tvd", "jsd", "f1", "accuracy", "epoch"):
            yield Statistic(name, value=float(fought[name].mean()), n=n)
            # One adversary has no spread, which is not a spread of 0.
            spread = float(fought[name].std(ddof=0)) if n > 1 else math.nan
            yield Statistic(f"population_std_{name}", value=spread, n=n)
            yield Statistic(f"sample_std_{name}", value=float(fought[name].std()), n=n)
        for name in ("constant", "collapse", "attefa_of_bound", "base_f1", "base_accuracy"):
            yield Statistic(name, value=float(fought[name].mean()), n=n)
        yield Statistic("share_of_mean_bound", value=float(fought["share_of_bound"].mean()), n=n)
        for name, column in {"floor": "attefa", "floor_jsd": "jsd", "floor_tvd": "tvd"}.items():
            yield Statistic(name, value=float(honest[column].mean()), n=len(honest))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 2 of the paper with a point per adversary, and AtteFa of each beside the value of a constant."""
        kinds = {"adversary": "adversaries", "honest": "other training runs of the base"}
        fought = table[table["kind"] == "adversary"]
        labels = tuple(
            f"base {base}, adversary {seed}" for base, seed in zip(fought["base"], fought["seed"], strict=True)
        )
        series = (Series("AtteFa", tuple(fought["attefa"])), Series("a constant prediction", tuple(fought["collapse"])))
        return (
            _jsd_tvd_scatter("How far attention moved, and what it cost", table, kinds),
            Bars("AtteFa of each adversary", Axis("AtteFa", (0.0, 1.0)), labels, series),
        )

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Supported where other attention costs most of the predictions of adversaries that still predict."""
        evidence = tuple(get_statistic(summary, name) for name in ("attefa", "collapse", "constant"))
        value, collapse, constant = (statistic.value for statistic in evidence)
        if constant < CONSTANT_THRESHOLD:
            reason = "the base model predicts almost the same for every text; train a better one"
        elif math.isnan(value):
            reason = "no adversary moved its attention away from that of the base model; train the adversaries longer"
        elif value >= collapse * (1 - COLLAPSE_MARGIN):
            reason = "the adversaries gave up predicting; start them from the base model (--start base)"
        elif value < LOW_ATTEFA:
            return (Finding(Verdict.NOT_SUPPORTED, "", evidence),)
        elif value >= HIGH_ATTEFA:
            return (Finding(Verdict.SUPPORTED, "", evidence),)
        else:
            reason = "other attention costs some of the predictions"
        return (Finding(Verdict.UNDECIDED, "", evidence, reason),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        (finding,) = cls.findings(summary)
        value, collapse, _ = (statistic.value for statistic in finding.evidence)
        verdict = {
            Verdict.SUPPORTED: "attending elsewhere costs most of the predictions",
            Verdict.NOT_SUPPORTED: "attention can be almost anything without changing the predictions",
            Verdict.UNDECIDED: f"undecided, because {finding.reason}",
        }[finding.verdict]
        if math.isnan(value):
            return f"AtteFa is undefined: {verdict}."
        spread = value_of(summary, "sample_std_attefa")
        deviation = "" if math.isnan(spread) else f" (standard deviation over adversaries {spread:.3f})"
        first = f"AtteFa is {value:.3f}{deviation}: {verdict}. A constant prediction would score {collapse:.3f}."
        names = ("floor", "floor_tvd", "floor_jsd", "tvd", "jsd")
        floor, floor_tvd, floor_jsd, tvd, jsd = (value_of(summary, name) for name in names)
        if math.isnan(floor):
            return f"{first} There is no noise floor with one base model; use more."
        more = "no more" if tvd <= RETRAINING_FACTOR * floor_tvd else "more"
        return (
            f"{first} The adversaries change predictions by {tvd:.3f} (TVD, at most 0.5) and attention by {jsd:.3f} "
            f"(JSD, at most 0.69), {more} in predictions than another training run of the base model "
            f"({floor_tvd:.3f} and {floor_jsd:.3f}, AtteFa {floor:.3f})."
        )


def accuracy_and_f1(predicted: pd.Series[int], label: pd.Series[int]) -> dict[str, float]:
    """Accuracy, and F1 of class 1: NaN for more than two classes, or if class 1 is neither predicted nor present."""
    one, other = (torch.tensor(values.to_numpy()) for values in (predicted, label))
    largest = int(torch.maximum(one, other).max())
    return {"accuracy": accuracy(one, other), "f1": f1(one, other) if largest == 1 else math.nan}


def pareto_frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one dominates (as far for less change), from zero divergence at the least change on.

    A second training never predicts exactly as the base does: the least change is the cost of any copy.
    """
    kept: list[tuple[float, float]] = []
    for jsd, tvd in sorted(points, key=lambda point: (-point[0], point[1])):
        if not kept or tvd < kept[-1][1]:
            kept.append((jsd, tvd))
    return [(0.0, kept[-1][1]), *(point for point in reversed(kept) if point[0] > 0)]


def _group_by_point(table: pd.DataFrame) -> list[tuple[tuple[str, float], pd.DataFrame]]:
    order = list(POINT_LABELS)
    groups = (((str(kind), float(str(setting))), rows) for (kind, setting), rows in table.groupby(["kind", "setting"]))
    return sorted(groups, key=lambda group: (order.index(group[0][0]), group[0][1]))


def _point_numbers(rows: pd.DataFrame) -> dict[str, float]:
    numbers = {"jsd": float(rows["jsd"].mean()), "tvd": float(rows["stvd"].mean() / 2)}
    if rows["kind"].iloc[0] in ("search", "exact"):
        return numbers
    # In a text of one word attention cannot move.
    share = float((rows["jsd"] / rows["bound"])[rows["bound"] > 0].mean())
    epoch = float(rows["best_epoch"].iloc[0])
    return {**accuracy_and_f1(rows["answered"], rows["label"]), **numbers, "share_of_bound": share, "epoch": epoch}


def _curve_numbers(table: pd.DataFrame) -> dict[str, float]:
    """Numbers of the whole curve: area in scaled units, shape, most distant point, lambda of the paper's table 4."""
    points = {key: _point_numbers(rows) for key, rows in _group_by_point(table)}
    curve = {setting: numbers for (kind, setting), numbers in points.items() if kind == "lambda"}
    seeds = pd.DataFrame([numbers for (kind, _), numbers in points.items() if kind == "seed"], columns=["jsd", "tvd"])
    edge = pareto_frontier((numbers["jsd"] / math.log(2), 2 * numbers["tvd"]) for numbers in curve.values())
    (far, high), least = edge[-1], edge[0][1]
    area, triangle = float(np.trapezoid([y for _, y in edge], [x for x, _ in edge])), far * (high - least) / 2
    farthest = max(curve.values(), key=lambda numbers: numbers["jsd"])
    different = [strength for strength, numbers in curve.items() if numbers["jsd"] > DIFFERENT_JSD]
    score = "f1" if all(not math.isnan(numbers["f1"]) for numbers in curve.values()) else "accuracy"
    return {
        "area": area,
        "convexity": (area - far * least) / triangle if triangle > 0 else math.nan,
        "least_tvd": least / 2,
        "reached_jsd": farthest["jsd"],
        "reached_tvd": farthest["tvd"],
        "seed_jsd": float(seeds["jsd"].mean()),
        "seed_tvd": float(seeds["tvd"].mean()),
        "chosen_lambda": max(different, key=lambda strength: curve[strength][score], default=math.nan),
    }


def _jsd_tvd_scatter(title: str, means: pd.DataFrame, labels: Mapping[str, str]) -> Scatter:
    """A point per row; the adversaries of several lambdas are connected."""
    points = tuple(
        (Series(label, tuple(rows["jsd"])), Series(label, tuple(rows["tvd"])))
        for kind, label in labels.items()
        if len(rows := means[means["kind"] == kind])
    )
    return Scatter(title, _JSD_AXIS, _TVD_AXIS, points, frozenset({POINT_LABELS["lambda"]}))


def attefa(stvd: float, sjsd: float) -> float:
    """`min(sTVD / sJSD, 1)`, a ratio of means; NaN where attention did not move.

    >>> round(attefa(0.3, 0.384349 / math.log(2)), 4)
    0.541
    """
    return min(stvd / sjsd, 1.0) if sjsd > 0 else math.nan


def distance_to_best_constant(probabilities: Tensor) -> float:
    """Mean total variation between predictions `[text class]` and the best constant prediction.

    For two classes that is the median, which is exact; for more it is the best of the mean, the scaled medians and each
    single class, an upper bound of the minimum.
    """
    middle = probabilities.median(0).values
    if probabilities.shape[1] == 2:
        middle = torch.stack([1 - middle[1], middle[1]])
    # Medians of confident predictions of several classes may all be 0, which is not a prediction.
    candidates = [probabilities.mean(0), *([middle / middle.sum()] if middle.sum() > 0 else [])]
    distances = [0.5 * (probabilities - candidate).abs().sum(1).mean() for candidate in candidates]
    # The total variation between a prediction p and the single class k is 1 - p_k, here with the rounded sum of p.
    single = 0.5 * (1 + probabilities.sum(1)).mean() - probabilities.mean(0).max()
    return float(torch.stack([*distances, single]).min())


def _pair_numbers(table: pd.DataFrame) -> dict[str, float]:
    """The numbers of one pair of models from its texts."""
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
