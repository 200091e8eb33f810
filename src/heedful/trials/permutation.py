"""Permuted attention (Jain & Wallace, algorithm 2): shuffle the weights, keep all else, and watch the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch

from heedful.core.figures import Axis, Figure, Series, Violin
from heedful.core.types import Batch, Model
from heedful.core.workspace import Artefact, Workspace
from heedful.recipes.attributed import sampled
from heedful.recipes.subject import Subject
from heedful.recipes.training import inference_batches
from heedful.trials.shuffling import Shuffling
from heedful.trials.trial import Trial

BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Bins of maximum attention, closed below, open above but for the last."""


@dataclass(frozen=True)
class Permutation(Trial):
    """Median change of the output over random permutations of each instance's attention.

    Args:
        permutations: shuffled weightings per instance (the paper: 100).
        limit: at most this many test instances.
        layer: of a transformer, only this layer; None shuffles all.
        head: of a transformer, only this head of each chosen layer.
    """

    name: ClassVar[str] = "permutation"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Does it matter which words get the attention?"
    claim: ClassVar[str] = (
        "If attention explains a prediction, dealing the same weights to other words should change the prediction, "
        "most of all where one word holds nearly all the weight."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.2.1, figure 3"
    not_meaning: ClassVar[str] = (
        "A small change does not prove that attention is meaningless: neighbouring words may carry the same "
        "information, and the model was never trained with shuffled weights. A large change does not prove that "
        "attention shows the reasons."
    )

    subject: Subject
    permutations: int = 100
    seed: int = 0
    limit: int | None = None
    layer: int | None = None
    head: int | None = None

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance: uid, length, predicted class, maximum attention, median change."""
        trained = self.subject.restore(workspace)
        whole = trained.batch("test")
        batch = sampled(whole, self.limit)
        rows: list[pd.DataFrame] = []
        shuffling = Shuffling(self.permutations, self.seed, self.layer, self.head)
        size = max(1, min(workspace.batch_size, 6400 // max(1, self.permutations)))
        with workspace.progress.task(f"permutation {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, size):
                rows.append(permuted(trained.model, part.to(workspace.device), shuffling))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(whole)})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Median over instances of the median change: overall, by predicted class, and by class and attention bin."""
        found = {"n": float(len(table)), "median_change": float(table["median_change"].median())}
        for predicted, of_class in table.groupby("predicted"):
            found[f"n.class_{predicted}"] = float(len(of_class))
            found[f"median_change.class_{predicted}"] = float(of_class["median_change"].median())
            for low, high in BINS:
                inside = of_class[_within(of_class["maximum_attention"], low, high)]
                key = f"class_{predicted}.attention_{low:.2f}_to_{high:.2f}"
                found[f"n.{key}"] = float(len(inside))
                found[f"median_change.{key}"] = float(inside["median_change"].median())
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 3 of the paper: violins of the median change in four bins of maximum attention, by predicted class."""
        groups = tuple(
            tuple(
                Series(
                    f"class {predicted}", tuple(of_class["median_change"][_within(of_class["maximum_attention"], *b)])
                )
                for predicted, of_class in table.groupby("predicted")
            )
            for b in BINS
        )
        return (
            Violin(
                "Change of the output when attention is permuted",
                Axis("median change of the output", (-0.05, 1.05)),
                Axis("maximum attention"),
                tuple(f"{low:.2f} to {high:.2f}" for low, high in BINS),
                groups,
            ),
        )

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """How far the output moves, and whether it moves more where attention is concentrated."""
        change = summary["median_change"]
        size = "hardly moves" if change < 0.05 else "moves" if change < 0.25 else "moves strongly"
        typical = f"For half of the texts the output changes by {change:.3f} or less (0 nothing, 1 everything) when "
        meaning = f"their weights are dealt to other words: the prediction {size}."
        return typical + meaning + _trend(summary)


def _trend(summary: Mapping[str, float]) -> str:
    """Whether the change grows from the lowest to the highest bin that holds at least ten instances, class by class."""
    rises: list[bool] = []
    for name in summary:
        if name.startswith("n.class_") and name.endswith("0.00_to_0.25"):
            predicted = name.split(".")[1]
            keys = [f"{predicted}.attention_{low:.2f}_to_{high:.2f}" for low, high in BINS]
            filled = [summary[f"median_change.{key}"] for key in keys if summary[f"n.{key}"] >= 10]
            rises += [] if len(filled) < 2 else [filled[-1] > filled[0]]
    if not rises:
        return " There are too few texts with concentrated attention to say whether concentration matters."
    if all(rises):
        return " It changes more where one word holds much of the attention."
    return " It does not change more where one word holds much of the attention."


def _within(values: pd.Series[float], low: float, high: float) -> pd.Series[bool]:
    return (values >= low) & ((values < high) | (high == BINS[-1][1]))


def permuted(model: Model, batch: Batch, shuffling: Shuffling) -> pd.DataFrame:
    """The trial's rows for one batch."""
    with torch.no_grad():
        trace = model(batch)
    change = shuffling.changes(model, batch, trace)
    return pd.DataFrame(
        {
            "uid": batch.uids,
            "length": batch.scored.sum(1).tolist(),
            "predicted": model.task.probabilities(trace.logits).argmax(1).tolist(),
            "maximum_attention": trace.attention.amax((1, 2, 3, 4)).tolist(),
            "median_change": change.double().quantile(0.5, dim=1).tolist(),
        }
    )
