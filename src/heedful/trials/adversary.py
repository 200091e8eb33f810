"""Adversarial attention (Jain & Wallace, algorithm 3): how different could attention be for the same prediction?

For each instance the attention is sought that is farthest from the model's own while the output moves by at most
epsilon: exactly where that is possible, by the paper's search elsewhere. Only weights change; what a real attention
module could learn to give is the question of another trial (trained adversaries, Wiegreffe & Pinter).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from heedful.core.divergences import jensen_shannon, jensen_shannon_bound
from heedful.core.figures import Axis, Figure, Histogram, Series, Violin
from heedful.core.searching import Descent
from heedful.core.types import Batch, Model, UserError
from heedful.core.workspace import Artefact, Workspace, derived_seed
from heedful.models.opposing import Opposed, opposed, posed
from heedful.models.pooled import PooledModel
from heedful.recipes.attributed import sampled
from heedful.recipes.subject import Subject
from heedful.recipes.training import inference_batches
from heedful.trials.permutation import BINS
from heedful.trials.trial import Trial

Solver = Literal["exact", "search"]

FAR = 0.595
"""Divergence from which an instance counts as far: the last six of the forty bins of the paper's figure 4."""

RANGE = (0.0, 0.7)
"""Divergences are at most ln 2 = .693."""


@dataclass(frozen=True)
class Adversary(Trial):
    """The largest divergence of attention at nearly equal output (epsilon-max JSD), one row per instance.

    Args:
        epsilon: change of the output, as total variation, up to which a prediction counts as the same (.05 in the
            released code, which made the figures; the text says .01).
        hinge: change that the search does not punish (.01 in the released code); the exact solver has no use for it.
        solver: "exact" is certified for two classes behind a linear decoder; for any other model it searches and then
            improves what it found, marked as not certified. "search" is the paper's algorithm and nothing else.
        adversaries: how many the search tries at once for each instance.
        limit: at most this many test instances.
    """

    name: ClassVar[str] = "adversary"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Could quite another attention have given the same prediction?"
    claim: ClassVar[str] = (
        "If attention is the explanation of a prediction, no very different attention should lead to the same "
        "prediction."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.2.2, figures 4 and 5"
    not_meaning: ClassVar[str] = (
        "That other weights lead to the same prediction does not make the model's own weights wrong: it makes them one "
        "explanation of several. Nor could a trained attention module necessarily give the weights found here."
    )

    subject: Subject
    epsilon: float = 0.05
    hinge: float = 0.01
    solver: Solver = "exact"
    adversaries: int = 5
    steps: int = 500
    seed: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.solver not in ("exact", "search"):
            raise UserError(f"solver {self.solver!r} is not known: choose exact or search")
        if not 0 < self.epsilon <= 1:
            raise UserError(f"epsilon is a change of probability: choose it above 0 and up to 1, not {self.epsilon}")
        if self.adversaries < 1 or self.steps < 0:
            raise UserError("the search needs at least one adversary and no negative number of steps")

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance, with both attentions over the units that may be attended to."""
        trained = self.subject.restore(workspace)
        whole = trained.batch("test")
        batch = sampled(whole, self.limit)
        rows: list[pd.DataFrame] = []
        with workspace.progress.task(f"adversary {self.subject.about['corpus']}", len(batch)) as step:
            # Small batches stay in the processor's cache, which the search visits once per step.
            for _, part in inference_batches(batch, min(64, workspace.batch_size)):
                rows.append(self.rows(trained.model, part.to(workspace.device)))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(whole)})

    def rows(self, model: Model, batch: Batch) -> pd.DataFrame:
        """The trial's rows for one batch.

        `epsilon_max` is the divergence found, `bound` what any attention on these units could reach, `share` their
        quotient (undefined for a single unit). `alone` are places, in the lists over units, of the units that keep the
        output by themselves, `singles` their number, `pairs` how many pairs of units have a mix that does (undefined
        off the exact solver's reach, as is `reach`: the largest weight that an equivalent attention gives each unit).
        """
        if not isinstance(model, PooledModel):
            raise UserError("adversarial attention is for pooled models; for a transformer choose another trial")
        with torch.no_grad():
            trace = model(batch)
            case = posed(model, batch, trace)
        seeds = [derived_seed("adversary", self.seed, uid) for uid in batch.uids]
        descent = Descent(self.adversaries, self.steps, self.hinge)
        exact = self.solver == "exact"
        found = opposed(case, self.epsilon, descent, torch.tensor(seeds, device=trace.logits.device), exact=exact)
        known = {
            "uid": batch.uids,
            "length": batch.scored.sum(1).tolist(),
            "predicted": model.task.probabilities(trace.logits).argmax(1).tolist(),
            "maximum_attention": trace.attention.amax((1, 2, 3, 4)).tolist(),
            "epsilon": self.epsilon,
        }
        return pd.DataFrame({**known, **_columns(found)})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Medians and means of the divergence, overall and by predicted class; medians by class and attention bin."""
        found = {
            "n": float(len(table)),
            "epsilon": float(table["epsilon"].max()),
            **_described(table["epsilon_max"], ""),
            "share_of_bound": float(table["share"].mean()),
            "certified": float(table["certified"].mean()),
            "not_certified": float((~table["certified"].astype(bool)).sum()),
            "singles": float(table["singles"].median()),
            "with_single": float((table["singles"].dropna() > 0).mean()),
            "single_share": float((table["singles"] / table["attention"].map(len)).mean()),
        }
        for predicted, of_class in table.groupby("predicted"):
            found |= _described(of_class["epsilon_max"], f".class_{predicted}")
            for (low, high), inside in _binned(of_class):
                key = f"class_{predicted}.attention_{low:.2f}_to_{high:.2f}"
                found[f"n.{key}"] = float(len(inside))
                found[f"epsilon_max.{key}"] = float(inside.median())
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figures 4 and 5 of the paper: how often each divergence occurs, and how it goes with maximum attention."""
        axis = Axis("largest divergence at equal output", RANGE)
        classes = table.groupby("predicted")
        series = tuple(Series(f"class {predicted}", tuple(rows["epsilon_max"])) for predicted, rows in classes)
        by_class = [(f"class {predicted}", [inside for _, inside in _binned(rows)]) for predicted, rows in classes]
        groups = tuple(tuple(Series(name, tuple(bins[b])) for name, bins in by_class) for b in range(len(BINS)))
        labels = tuple(f"{low:.2f} to {high:.2f}" for low, high in BINS)
        return (
            Histogram("How far attention can go without changing the output", axis, series, bins=40),
            Violin("The same by maximum attention", axis, Axis("maximum attention"), labels, groups),
        )

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """How far attention can go, and how sure that is."""
        share, single = summary["share_of_bound"], summary["with_single"]
        if math.isnan(share):
            return "There was no text of more than one word: no other weights exist."
        found = f"On average, weights that are {share:.0%} as far from the model's own as any weights could be leave "
        within = f"the prediction within {summary['epsilon']:g} of what it was."
        alone = f" In {single:.0%} of the texts it is enough to give all the weight to one word."
        return found + within + ("" if math.isnan(single) else alone) + _sureness(summary)


def _columns(found: Opposed) -> dict[str, list[float] | list[bool] | list[list[float]] | list[list[int]]]:
    case = found.case
    support = case.support.any(1)
    divergence = jensen_shannon(found.adversary, case.attention).mean(-1)
    bound = jensen_shannon_bound(case.attention, case.support).mean(-1)
    undefined = torch.full_like(bound, torch.nan)
    return {
        "epsilon_max": divergence.tolist(),
        "bound": bound.tolist(),
        "share": torch.where(bound > 0, divergence / bound, undefined).tolist(),
        "change": found.moved.tolist(),
        "certified": found.certified.tolist(),
        "singles": (undefined if found.alone is None else found.alone.sum(-1).double()).tolist(),
        "pairs": (undefined if found.within is None else found.within.pairs.double()).tolist(),
        "units": _places(support, torch.ones_like(support)),
        "attention": _listed(case.attention.sum(1), support),
        "adversary": _listed(found.adversary.sum(1), support),
        "reach": _listed(None if found.within is None else found.within.reach, support),
        "alone": _places(found.alone, support),
    }


def _sureness(summary: Mapping[str, float]) -> str:
    if not summary["not_certified"]:
        return " These are proven to be the farthest."
    if summary["not_certified"] == summary["n"]:
        return " They were found by search: even farther ones may exist."
    return f" For {summary['not_certified']:.0f} texts they were found by search, and even farther ones may exist."


def _described(values: pd.Series[float], of: str) -> dict[str, float]:
    return {
        f"epsilon_max{of}": float(values.median()),
        f"mean_epsilon_max{of}": float(values.mean()),
        f"far{of}": float((values >= FAR).mean()),
    }


def _binned(table: pd.DataFrame) -> Iterator[tuple[tuple[float, float], pd.Series[float]]]:
    """The divergences in each bin of maximum attention; rounding may put a maximum above 1."""
    for low, high in BINS:
        inside = (table["maximum_attention"] >= low) & ((table["maximum_attention"] < high) | (high == BINS[-1][1]))
        yield (low, high), table["epsilon_max"][inside]


def _listed(values: Tensor | None, support: Tensor) -> list[list[float]]:
    """Each row's values on its supported units; empty lists where there are none."""
    if values is None:
        return [[] for _ in support]
    return [row[real].tolist() for row, real in zip(values, support, strict=True)]


def _places(marked: Tensor | None, support: Tensor) -> list[list[int]]:
    if marked is None:
        return [[] for _ in support]
    return [row[real].nonzero().squeeze(1).tolist() for row, real in zip(marked, support, strict=True)]
