"""What a trained subject says about a whole split, computed once and kept: probabilities and attention.

Adversaries, guides and comparisons of seeds all ask the same frozen model about the same texts; nine adversaries of
eighty epochs would ask it 720 times. Here it is asked once.

How far one subject is from another on the test split, instance by instance: predictions and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from heedful.measures.attention_distance import (
    attention_distance,
    attention_jsd_bound,
    head_matching_costs,
    match_heads,
)
from heedful.measures.divergence import total_variation
from heedful.models.attentive import Attentive, AttentiveModel
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import inference_batches
from heedful.types import Batch, Split


@dataclass(frozen=True)
class BatchPredictions:
    """A base's answers to one batch: probabilities `[batch classes]`, attention `[batch layer head query unit]`."""

    probabilities: Tensor
    attention: Tensor


Predictor = Callable[[Batch], BatchPredictions]
"""A base's answers to any batch of the texts that it was asked about."""


@dataclass(frozen=True)
class Predictions(Recipe):
    """Probabilities and attention of a pooled subject on every example of a split, in the batch's order."""

    subject: TrainedModel
    split: Split = "train"

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `probabilities` and `attention` (padded with zeros), and a table with the uid of each row."""
        trained = self.subject.restore(workspace)
        whole = trained.batch(self.split)
        kept: dict[str, Tensor] = {}
        with workspace.progress.task(f"answers {' '.join(map(str, self.subject.about.values()))}", len(whole)) as step:
            for rows, part in inference_batches(whole, workspace.batch_size):
                with torch.no_grad():
                    trace = trained.model(part.to(workspace.device))
                probabilities = trained.model.task.probabilities(trace.logits).cpu().float()
                attention = trace.attention.cpu().float()
                if not kept:
                    shape = (len(whole), *attention.shape[1:4], whole.mask.shape[1])
                    kept = {
                        "probabilities": torch.zeros(len(whole), probabilities.shape[1]),
                        "attention": torch.zeros(shape),
                    }
                kept["probabilities"][rows] = probabilities
                kept["attention"][rows, ..., : attention.shape[-1]] = attention
                step(len(part))
        return Artefact(kept, pd.DataFrame({"uid": whole.uids}), {"about": dict(self.subject.about)})


def load_predictor(subject: TrainedModel, split: Split, workspace: Workspace) -> Predictor:
    """The subject's answers on a split: looked up for pooled models, asked anew for others.

    A transformer's attention grows with the square of the length and would not fit on the disk.
    """
    if not isinstance(subject.architecture, Attentive):
        return _live_predictor(subject, workspace)
    artefact = workspace.get(Predictions(subject, split))
    places = {uid: place for place, uid in enumerate(artefact.table["uid"])}
    probabilities, attention = artefact.tensors["probabilities"], artefact.tensors["attention"]

    def looked_up(batch: Batch) -> BatchPredictions:
        rows = torch.tensor([places[uid] for uid in batch.uids])
        device = batch.mask.device
        units = batch.mask.shape[1]
        return BatchPredictions(probabilities[rows].to(device), attention[rows, ..., :units].to(device))

    return looked_up


def _live_predictor(subject: TrainedModel, workspace: Workspace) -> Predictor:
    model = subject.restore(workspace).model.requires_grad_(False)

    def asked(batch: Batch) -> BatchPredictions:
        with torch.no_grad():
            trace = model(batch)
        return BatchPredictions(model.task.probabilities(trace.logits), trace.attention)

    return asked


@dataclass(frozen=True)
class _PredictionPair:
    """What two subjects say about the same batch."""

    batch: Batch
    base: BatchPredictions
    other: BatchPredictions


def compare_predictions(other: TrainedModel, base: TrainedModel, workspace: Workspace) -> pd.DataFrame:
    """A row per test instance.

    `predicted` and `maximum_attention` are the base's, `answered` is the class that the other predicts, `stvd` the
    total variation of their predictions (0 to 1), `jsd` and `kl` the divergence of the other's attention from the
    base's in nats, `bound` the largest JSD that any attention could have to the base's on the same text.
    """
    trained = base.restore(workspace)
    batch = trained.batch("test")
    ask_base, ask_other = (load_predictor(subject, "test", workspace) for subject in (base, other))

    def both() -> Iterator[_PredictionPair]:
        for _, part in inference_batches(batch, workspace.batch_size):
            moved = part.to(workspace.device)
            yield _PredictionPair(moved, ask_base(moved), ask_other(moved))

    order = _match_heads(both())
    pooled = trained.model if isinstance(trained.model, AttentiveModel) else None
    return pd.concat(
        [_comparison_rows(each, order, _attention_support(pooled, each.batch)) for each in both()], ignore_index=True
    )


def _match_heads(pairs: Iterator[_PredictionPair]) -> Tensor | None:
    """The matching of heads over the whole split; None where there is one head."""
    total: Tensor | None = None
    for each in pairs:
        if each.base.attention.shape[2] == 1:
            return None
        found = head_matching_costs(each.other.attention, each.base.attention, each.batch.mask)
        total = found if total is None else total + found
    return None if total is None else match_heads(total)


def _attention_support(model: AttentiveModel | None, batch: Batch) -> Tensor:
    return batch.mask.unsqueeze(1) if model is None else model.input_format.support(batch)


def _comparison_rows(pair: _PredictionPair, order: Tensor | None, support: Tensor) -> pd.DataFrame:
    batch, base, other = pair.batch, pair.base, pair.other
    far = attention_distance(other.attention.double(), base.attention.double(), batch.mask, order)
    labels = [None] * len(batch) if batch.labels is None else batch.labels.tolist()
    return pd.DataFrame(
        {
            "uid": batch.uids,
            "length": batch.content_mask.sum(1).tolist(),
            "label": labels,
            "predicted": base.probabilities.argmax(1).tolist(),
            "answered": other.probabilities.argmax(1).tolist(),
            "probabilities": base.probabilities.double().tolist(),
            "maximum_attention": base.attention.amax((1, 2, 3, 4)).tolist(),
            "stvd": total_variation(other.probabilities.double(), base.probabilities.double()).tolist(),
            "jsd": far.jsd.tolist(),
            "kl": far.kl.tolist(),
            "bound": attention_jsd_bound(base.attention.double(), support, batch.mask).tolist(),
        }
    )
