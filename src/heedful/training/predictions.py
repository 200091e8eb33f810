"""Predictions and attention of a model on a whole split, computed once; the distance of two models, example by example.

Adversaries, attention sources and comparisons of seeds all need the same frozen model on the same texts: nine
adversaries of eighty epochs would run it 720 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.attention import is_self_attention, largest_weights
from heedful.measures.divergence import (
    attention_distance,
    attention_jsd_bound,
    head_matching_costs,
    match_heads,
    total_variation,
)
from heedful.models.attentive import Attentive, AttentiveModel
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import device_batches, inference_batches
from heedful.types import Batch, Model, Split


@dataclass(frozen=True)
class BatchPredictions:
    """A model on one batch: probabilities `[batch classes]`, attention `[batch layer head query unit]`."""

    probabilities: Tensor
    attention: Tensor


Predictor = Callable[[Batch], BatchPredictions]


@dataclass(frozen=True)
class Predictions(Recipe):
    """Probabilities and attention of a pooled model on every example of a split, in the batch's order."""

    kind: ClassVar[str] = "predictions"

    subject: ModelRecipe
    split: Split = "train"

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `probabilities` and `attention` (padded with zeros), and a table with the uid of each row."""
        loaded = self.subject.restore(workspace)
        model, batch = loaded.model, loaded.batch(self.split)
        tensors: dict[str, Tensor] = {}
        for rows, texts in device_batches(batch, workspace, f"predictions {self.subject.title}"):
            with torch.no_grad():
                trace = model(texts)
            attention = trace.attention.cpu().float()
            if not tensors:
                shape = (len(batch), *attention.shape[1:4], batch.mask.shape[1])
                probabilities = torch.zeros(len(batch), model.task.num_classes)
                tensors = {"probabilities": probabilities, "attention": torch.zeros(shape)}
            tensors["probabilities"][rows] = model.task.probabilities(trace.logits).cpu().float()
            tensors["attention"][rows, ..., : attention.shape[-1]] = attention
        return Artefact(tensors, pd.DataFrame({"uid": batch.uids}), {"about": dict(self.subject.about)})


def load_predictor(subject: ModelRecipe, split: Split, workspace: Workspace) -> Predictor:
    """The model's predictions on a split: looked up for pooled models, computed at each call for others.

    A transformer's attention grows with the square of the length and would not fit on the disk.
    """
    if not isinstance(subject.architecture, Attentive):
        model = subject.restore(workspace).model

        def predict(batch: Batch) -> BatchPredictions:
            with torch.no_grad():
                trace = model(batch)
            return BatchPredictions(model.task.probabilities(trace.logits), trace.attention)

        return predict

    artefact = workspace.get(Predictions(subject, split))
    positions = {uid: position for position, uid in enumerate(artefact.table["uid"])}
    probabilities, attention = artefact.tensors["probabilities"], artefact.tensors["attention"]

    def look_up(batch: Batch) -> BatchPredictions:
        rows = torch.tensor([positions[uid] for uid in batch.uids])
        device, units = batch.mask.device, batch.mask.shape[1]
        return BatchPredictions(probabilities[rows].to(device), attention[rows, ..., :units].to(device))

    return look_up


def compare_predictions(other: ModelRecipe, base: ModelRecipe, workspace: Workspace) -> pd.DataFrame:
    """A row per test example.

    `predicted` and `maximum_attention` are the base's, `answered` is the class that the other predicts, `stvd` the
    total variation of their predictions (0 to 1), `jsd` and `kl` the divergence of the other's attention from the
    base's in nats, `bound` the largest JSD that any attention could have to the base's on the same text.
    """
    loaded = base.restore(workspace)
    batch = loaded.batch("test")
    predict_base, predict_other = (load_predictor(subject, "test", workspace) for subject in (base, other))

    def predictions() -> Iterator[tuple[Batch, BatchPredictions, BatchPredictions]]:
        for _, texts in inference_batches(batch, workspace.batch_size):
            texts = texts.to(workspace.device)
            yield texts, predict_base(texts), predict_other(texts)

    # Heads are matched over the whole split; one head needs no matching.
    costs: Tensor | None = None
    for texts, ours, theirs in predictions():
        if ours.attention.shape[2] == 1:
            break
        added = head_matching_costs(theirs.attention, ours.attention, texts.mask)
        costs = added if costs is None else costs + added
    order = None if costs is None else match_heads(costs)
    tables = []
    for texts, ours, theirs in predictions():
        support = attention_support(loaded.model, texts, ours.attention)
        distance = attention_distance(theirs.attention.double(), ours.attention.double(), texts.mask, order)
        columns = {
            "uid": texts.uids,
            "length": texts.content_mask.sum(1).tolist(),
            "label": [None] * len(texts) if texts.labels is None else texts.labels.tolist(),
            "predicted": ours.probabilities.argmax(1).tolist(),
            "answered": theirs.probabilities.argmax(1).tolist(),
            "probabilities": ours.probabilities.double().tolist(),
            "maximum_attention": largest_weights(ours.attention, texts).tolist(),
            "stvd": total_variation(theirs.probabilities.double(), ours.probabilities.double()).tolist(),
            "jsd": distance.jsd.tolist(),
            "kl": distance.kl.tolist(),
            "bound": attention_jsd_bound(ours.attention.double(), support, texts.mask).tolist(),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


_UNDERFLOW = 1e3
"""Scores farther below the largest one of a row are those of a mask: a softmax of float64 underflows at 745."""


def attention_support(model: Model, batch: Batch, attention: Tensor, scores: Tensor | None = None) -> Tensor:
    """The units that take part in attention, `[batch layer head query unit]`: only they may be given weight.

    A word may have a weight of 0 and still take part, under sparse attention or where the weight underflows. A start,
    end or other special symbol without weight does not take part, nor does a text that a query gives no weight at all.
    In self-attention the mask of a model may hide words, those of the future for instance: there a unit without weight
    takes part only if its score shows an underflow.

    Args:
        attention: the model's own.
        scores: its attention before normalizing, where known; 0 or far below all others where a mask hides a unit.
    """
    if isinstance(model, AttentiveModel):
        return model.input_format.support(batch)[:, None, None].expand(attention.shape)
    has_weight = batch.mask[:, None, None, None] & (attention > 0)
    if not is_self_attention(attention, batch):
        parts = sorted({*batch.segments.flatten().tolist()})
        texts = [(batch.content_mask & (batch.segments == part))[:, None, None, None] for part in parts]
        words = [text & (has_weight & text).any(-1, keepdim=True) for text in texts]
        return reduce(torch.logical_or, words, has_weight)
    if scores is None:
        return has_weight
    low, high = (
        scores.masked_fill(~has_weight, torch.inf).amin(-1),
        scores.masked_fill(~has_weight, -torch.inf).amax(-1),
    )
    underflows = (scores < low.unsqueeze(-1)) & (scores > high.unsqueeze(-1) - _UNDERFLOW) & (scores != 0)
    return has_weight | (underflows & batch.mask[:, None, None, None])
