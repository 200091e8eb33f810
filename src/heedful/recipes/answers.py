"""What a trained subject says about a whole split, computed once and kept: probabilities and attention.

Adversaries, guides and comparisons of seeds all ask the same frozen model about the same texts; nine adversaries of
eighty epochs would ask it 720 times. Here it is asked once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from heedful.core.types import Batch, Split
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.models.pooled import Pooled
from heedful.recipes.subject import Subject
from heedful.recipes.training import inference_batches


@dataclass(frozen=True)
class Said:
    """A base's answers to one batch: probabilities `[batch classes]`, attention `[batch layer head query unit]`."""

    probabilities: Tensor
    attention: Tensor


Answering = Callable[[Batch], Said]
"""A base's answers to any batch of the texts that it was asked about."""


@dataclass(frozen=True)
class Answers(Recipe):
    """Probabilities and attention of a pooled subject on every example of a split, in the batch's order."""

    subject: Subject
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


def answering(subject: Subject, split: Split, workspace: Workspace) -> Answering:
    """The subject's answers on a split: looked up for pooled models, asked anew for others.

    A transformer's attention grows with the square of the length and would not fit on the disk.
    """
    if not isinstance(subject.model, Pooled):
        return _asked_anew(subject, workspace)
    artefact = workspace.get(Answers(subject, split))
    places = {uid: place for place, uid in enumerate(artefact.table["uid"])}
    probabilities, attention = artefact.tensors["probabilities"], artefact.tensors["attention"]

    def looked_up(batch: Batch) -> Said:
        rows = torch.tensor([places[uid] for uid in batch.uids])
        device = batch.mask.device
        units = batch.mask.shape[1]
        return Said(probabilities[rows].to(device), attention[rows, ..., :units].to(device))

    return looked_up


def _asked_anew(subject: Subject, workspace: Workspace) -> Answering:
    model = subject.restore(workspace).model.requires_grad_(False)

    def asked(batch: Batch) -> Said:
        with torch.no_grad():
            trace = model(batch)
        return Said(model.task.probabilities(trace.logits), trace.attention)

    return asked
