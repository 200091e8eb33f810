"""Test scores of the examined model, which every other trial must be read beside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch

from heedful.figures import Axis, Figure, Histogram, Scatter, Series
from heedful.results import Statistic, find_statistic, value_of
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import predict
from heedful.trials.trial import Trial
from heedful.types import Task


@dataclass(frozen=True)
class Performance(Trial):
    """Predictions on the whole test split, one row per example."""

    name: ClassVar[str] = "performance"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "How good is the model?"
    claim: ClassVar[str] = "There is no point in explaining a model that does not work, so its test scores come first."
    source: ClassVar[str] = "Jain & Wallace 2019, table 1"
    limits: ClassVar[str] = "A good score says nothing about whether attention explains the model."

    subject: ModelRecipe

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, length, label, predicted class and the probability of each class."""
        trained = self.subject.restore(workspace)
        batch = trained.batch("test")
        probabilities = predict(trained.model, batch, workspace.batch_size).double()
        regression = isinstance(trained.model.task, Regression)
        table = pd.DataFrame(
            {
                "uid": batch.uids,
                "length": batch.content_mask.sum(1).tolist(),
                "label": [None] * len(batch) if batch.labels is None else batch.labels.tolist(),
                "predicted": probabilities[:, 0].tolist() if regression else probabilities.argmax(1).tolist(),
                "probabilities": probabilities.tolist(),
                "outputs": trained.model.task.num_outputs,
            }
        )
        return self.artefact(table, len(table))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """All metrics of the task."""
        probabilities = torch.tensor(table["probabilities"].tolist(), dtype=torch.float64)
        scores = _infer_task(table).compute_metrics(probabilities, torch.tensor(table["label"].tolist()))
        return [Statistic(name, value=value, n=len(table)) for name, value in scores.items()]

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Two classes: the probability of class 1 by true class. Regression: predictions against labels."""
        probabilities = table["probabilities"].map(lambda row: row[-1])
        task = _infer_task(table)
        if isinstance(task, Regression):
            points = ((Series("label", tuple(table["label"])), Series("prediction", tuple(probabilities))),)
            return (Scatter("Prediction by label", Axis("label"), Axis("prediction"), points),)
        if not isinstance(task, BinaryClassification):
            return ()
        series = tuple(Series(f"true class {label}", tuple(probabilities[table["label"] == label])) for label in (0, 1))
        axis = Axis("predicted probability of class 1", (0.0, 1.0))
        return (Histogram("Predicted probability by true class", axis, series),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        pearson, f1 = find_statistic(summary, "pearson"), find_statistic(summary, "f1")
        if pearson is not None:
            return f"Predictions on the test split correlate with the labels at {pearson.value:.3f}."
        accuracy = f"The model is right on {value_of(summary, 'accuracy'):.1%} of the test examples"
        return f"{accuracy}." if f1 is None else f"{accuracy} (F1 of class 1: {f1.value:.3f})."


def _infer_task(table: pd.DataFrame) -> Task:
    classes = len(table["probabilities"].iloc[0])
    if int(table["outputs"].iloc[0]) == 1:
        return BinaryClassification() if classes == 2 else Regression()
    return MulticlassClassification(classes)
