"""How often predicted classes are right: for trials whose tables keep classes, not probabilities.

How good the subject is: the number that every other trial must be read beside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch

from heedful.figures import Axis, Figure, Histogram, Scatter, Series
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import predict
from heedful.trials._trial import Trial
from heedful.types import Task


def accuracy_and_f1(predicted: pd.Series[int], label: pd.Series[int]) -> dict[str, float]:
    """Accuracy, and F1 of class 1 (undefined where there are more than two classes, or class 1 never occurs)."""
    accuracy = float((predicted == label).mean())
    if max(int(predicted.max()), int(label.max())) > 1:
        return {"accuracy": accuracy, "f1": math.nan}
    hits = int(((predicted == 1) & (label == 1)).sum())
    claimed = int((predicted == 1).sum()) + int((label == 1).sum())
    return {"accuracy": accuracy, "f1": 2 * hits / claimed if claimed else math.nan}


@dataclass(frozen=True)
class Performance(Trial):
    """Predictions on the test split, one row per instance; always on all of it."""

    name: ClassVar[str] = "performance"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "How good is the model?"
    claim: ClassVar[str] = (
        "Explanations of a model that does not work explain nothing, so its test scores come before everything else."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, table 1"
    limits: ClassVar[str] = "A good score says nothing about whether attention explains the model."

    subject: ModelRecipe

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, label, predicted class and the probability of each class."""
        trained = self.subject.restore(workspace)
        batch = trained.batch("test")
        found = predict(trained.model, batch, workspace.batch_size).double()
        regression = isinstance(trained.model.task, Regression)
        table = pd.DataFrame(
            {
                "uid": batch.uids,
                "length": batch.content_mask.sum(1).tolist(),
                "label": [None] * len(batch) if batch.labels is None else batch.labels.tolist(),
                "predicted": found[:, 0].tolist() if regression else found.argmax(1).tolist(),
                "probabilities": found.tolist(),
                "outputs": trained.model.task.num_outputs,
            }
        )
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(table)})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """All the task's scores."""
        probabilities = torch.tensor(table["probabilities"].tolist(), dtype=torch.float64)
        task = _infer_task(table, probabilities.shape[1])
        return task.compute_metrics(probabilities, torch.tensor(table["label"].tolist()))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """For two classes the probability of class 1 by true class; for regression the prediction against the truth."""
        probabilities = table["probabilities"].map(lambda row: row[-1])
        task = _infer_task(table, len(table["probabilities"].iloc[0]))
        if isinstance(task, Regression):
            points = ((Series("truth", tuple(table["label"])), Series("prediction", tuple(probabilities))),)
            return (Scatter("Prediction against truth", Axis("truth"), Axis("prediction"), points),)
        if not isinstance(task, BinaryClassification):
            return ()
        series = tuple(
            Series(f"truly class {label}", tuple(probabilities[table["label"] == label])) for label in (0, 1)
        )
        axis = Axis("predicted probability of class 1", (0.0, 1.0))
        return (Histogram("Predicted probability by true class", axis, series),)

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """The headline scores in a sentence."""
        if "pearson" in summary:
            return f"Predictions correlate with the truth at {summary['pearson']:.3f} on unseen examples."
        right = f"The model is right on {summary['accuracy']:.1%} of unseen examples"
        f1 = f" (F1 of class 1 {summary['f1']:.3f})." if "f1" in summary else "."
        return right + f1


def _infer_task(table: pd.DataFrame, classes: int) -> Task:
    if int(table["outputs"].iloc[0]) == 1:
        return BinaryClassification() if classes == 2 else Regression()
    return MulticlassClassification(classes)
