"""AtteFa: one number for the faithfulness of attention, from an adversary that is trained once.

The adversary learns to predict as the base does while attending elsewhere, both scaled to [0, 1] and equally heavy.
AtteFa is the price in predictions for a unit of difference in attention: min(mean sTVD / mean sJSD, 1). Beside it
stand what a constant prediction would score, how much of the possible divergence was reached, and what two honest
trainings of the base score against each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.core.figures import Axis, Bars, Figure, Scatter, Series
from heedful.core.heads import scaled
from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.recipes.deceiving import Rival, Start
from heedful.recipes.differing import differences
from heedful.recipes.fit import Fit, Select
from heedful.recipes.subject import Subject
from heedful.trials.arms import check_seeds
from heedful.trials.scoring import right
from heedful.trials.trial import Trial

PAPER_SEEDS = (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
"""The seeds of Wiegreffe & Pinter, which AtteFa took over; the first is the base's."""

ONE_SHOT = Fit(epochs=80, select=Select(by="deception"), patience=10, reduction="mean")
"""The adversary's training: at most 80 epochs, 10 without a better one."""

NEAR = 1.5
"""Up to so many times the change of an honest retraining, a change of predictions is called no larger than that."""
CONSTANT = 0.05
"""Below this mean distance from the best constant a base hardly predicts anything."""
UNMOVED = (
    "AtteFa is not defined here: no adversary's attention moved away from the base's, so there is no price to tell. "
    "Train the adversaries longer, or ask about a model whose attention can move."
)
COLLAPSED = 0.05
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
    not_meaning: ClassVar[str] = (
        "A low number does not say that this model's attention is wrong, only that another model can predict the same "
        "with another attention. A high number may only say that the adversary gave up predicting: compare it with "
        "the value of a constant prediction."
    )

    subject: Subject
    adversaries: tuple[int, ...] = PAPER_SEEDS
    bases: tuple[int, ...] = ()
    crossed: bool = False
    fit: Fit = ONE_SHOT
    start: Start = "fresh"

    def __post_init__(self) -> None:
        if not self.adversaries:
            raise UserError("AtteFa needs at least one adversary: give a seed")
        for seeds in (self.adversaries, self.bases):
            if seeds:
                check_seeds(seeds)

    @property
    def honest(self) -> tuple[Subject, ...]:
        """The base, then the further ones."""
        seeds = (self.subject.seed, *(seed for seed in self.bases if seed != self.subject.seed))
        return tuple(replace(self.subject, seed=seed) for seed in seeds)

    def rival(self, base: Subject, seed: int) -> Subject:
        """The adversary of a base: the same architecture, trained against it."""
        return replace(base, seed=seed, objective=Rival(base, self.start), fit=self.fit)

    @property
    def pairs(self) -> tuple[tuple[Subject, Subject, str], ...]:
        """Base, other subject, and whether the other is an adversary or another honest base."""
        attacked = self.honest if self.crossed else self.honest[:1]
        fought = tuple((base, self.rival(base, seed), "adversary") for base in attacked for seed in self.adversaries)
        floor = tuple((base, other, "honest") for base in self.honest for other in self.honest if base != other)
        return fought + floor

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """All bases and adversaries."""
        return (*self.honest, *(other for _, other, kind in self.pairs if kind == "adversary"))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per pair, from means over the test instances."""
        rows: list[dict[str, object]] = []
        with workspace.progress.task(f"attefa {self.subject.about['corpus']}", len(self.pairs)) as step:
            for base, other, kind in self.pairs:
                table = differences(other, base, workspace)
                epoch = workspace.get(other).notes["best_epoch"]
                rows.append({"kind": kind, "base": base.seed, "seed": other.seed, "epoch": epoch, **_row(table)})
                step()
        n = len(table)
        return Artefact(table=pd.DataFrame(rows), notes={"about": dict(self.subject.about), "n": n, "of": n})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
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
    def reading(summary: Mapping[str, float]) -> str:
        """The number, its noise floor and what it means, in three sentences."""
        value, collapse, floor = summary["attefa"], summary["collapse"], summary["floor"]
        if summary["constant"] < CONSTANT:
            would = "it is not even defined" if math.isnan(value) else f"it would be {value:.3f}"
            return (
                f"AtteFa says nothing here ({would}): the base predicts almost the same for every text, so no "
                "attention could change it. Train a better base, then ask again."
            )
        if math.isnan(value):
            return UNMOVED
        spread = summary["sample_std_attefa"]
        wide = "" if math.isnan(spread) else f" (deviation over adversaries {spread:.3f})"
        first = f"AtteFa is {value:.3f}{wide}: {_priced(value)}."
        gave_up = value >= collapse * (1 - COLLAPSED)
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
            f"differ by {2 * summary['tvd']:.3f} and {summary['jsd']:.3f}, {_against(summary)}."
        )
        return f"{first} {second} {third}"


def attefa(stvd: float, sjsd: float) -> float:
    """`min(sTVD / sJSD, 1)`, a ratio of means; undefined where attention did not move at all.

    >>> round(attefa(0.3, 0.384349 / math.log(2)), 4)
    0.541
    """
    return min(stvd / sjsd, 1.0) if sjsd > 0 else math.nan


def best_constant(probabilities: Tensor) -> float:
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


def _row(table: pd.DataFrame) -> dict[str, float]:
    """The numbers of one pair from its instances."""
    stvd, jsd, bound = (float(table[name].mean()) for name in ("stvd", "jsd", "bound"))
    sjsd = float(scaled(torch.tensor(jsd, dtype=torch.float64)))
    constant = best_constant(torch.tensor(table["probabilities"].tolist(), dtype=torch.float64))
    return {
        **right(table["answered"], table["label"]),
        **{f"base_{name}": value for name, value in right(table["predicted"], table["label"]).items()},
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


def _priced(value: float) -> str:
    if value < 0.1:
        return "attention can be almost anything without changing what the model predicts"
    if value < 0.5:
        return "another attention costs some of the predictions, not all"
    return "attending elsewhere costs most of the predictions"


def _against(summary: Mapping[str, float]) -> str:
    if summary["tvd"] <= NEAR * summary["floor_tvd"]:
        return "so their predictions are hardly farther from the base than those of a retraining"
    return "so they pay in predictions for what a retraining does not change"
