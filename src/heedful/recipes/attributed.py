"""A method run over a split, kept for all trials, the report and the study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions.references import Explained
from heedful.core.remembering import remembering
from heedful.core.types import Batch, Method, Prepares, Split, UserError
from heedful.core.workspace import Artefact, Json, Recipe, Workspace, derived_seed
from heedful.data.batching import SPECIALS, UNK
from heedful.recipes.completeness import missed
from heedful.recipes.subject import Subject, Trained
from heedful.recipes.training import inference_batches

UNKNOWN = SPECIALS[UNK]


@dataclass(frozen=True)
class Attributed(Recipe):
    """Scores of one method for the class that the subject predicts; one row per instance.

    Args:
        limit: at most this many instances, drawn at random but the same for every subject; None takes all.
    """

    revision: ClassVar[int] = 2

    subject: Subject
    method: Method
    split: Split = "test"
    limit: int | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, units with scores, words and parts, predicted class, its probability and the label.

        Methods whose scores should add up to a known number also say by how much they miss it (`gap`; over all texts
        in the notes, see `missed`).
        """
        trained = self.subject.restore(workspace)
        batch = sampled(trained.batch(self.split), self.limit)
        method = self.method.prepared(trained.model) if isinstance(self.method, Prepares) else self.method
        rows: list[dict[str, object]] = []
        title = f"{type(self.method).__name__} {' '.join(map(str, self.subject.about.values()))}"
        with workspace.progress.task(title, len(batch)) as step:
            for _, part in inference_batches(batch, workspace.batch_size):
                # What a method asks twice about the same text is answered once.
                with remembering(trained.model):
                    rows += self._rows(trained, part.to(workspace.device), method)
                step(len(part))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "method": type(self.method).__name__}
        counts: dict[str, Json] = {"n": len(rows), "of": len(trained.examples(self.split))}
        table = pd.DataFrame(rows)
        return Artefact(table=table, notes=notes | counts | missed(table))

    def _rows(self, trained: Trained, batch: Batch, method: Method) -> list[dict[str, object]]:
        with torch.no_grad():
            probabilities = trained.model.task.probabilities(trained.model(batch).logits)
        target = probabilities.argmax(-1)
        found = method(trained.model, batch, target)
        texts = _readable(trained, batch, self.split)
        labels = [None] * len(batch) if batch.labels is None else batch.labels.tolist()
        return [
            {
                "uid": uid,
                "units": texts[row],
                "scores": _real(found.scores[row], batch.mask[row]),
                "scored": batch.scored[row][batch.mask[row]].tolist(),
                "words": batch.words[row][batch.mask[row]].tolist(),
                "segments": batch.segments[row][batch.mask[row]].tolist(),
                "predicted": int(target[row]),
                "probability": float(probabilities[row, target[row]]),
                "label": labels[row],
                **({"gap": float(found.gap[row])} if isinstance(found, Explained) else {}),
            }
            for row, uid in enumerate(batch.uids)
        ]


def _readable(trained: Trained, batch: Batch, split: Split) -> list[list[str]]:
    """The text of each unit; a word that the vocabulary does not know is shown as it stands in the example."""
    examples = {example.uid: example for example in trained.splits[split]}
    found = trained.batcher.texts(batch)
    for row, uid in enumerate(batch.uids):
        words = [word for part in examples[uid].parts if isinstance(part, str) for word in part.split()]
        for unit, text in enumerate(found[row]):
            if text == UNKNOWN:
                found[row][unit] = words[int(batch.words[row, unit])]
    return found


def _real(values: Tensor, mask: Tensor) -> list[float]:
    return [float(value) for value in values[mask].double().tolist()]


def check_limit(limit: int | None) -> None:
    """Refuses a limit that leaves no instance."""
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} leaves no instance: give 1 or more, or None for all of them")


def sampled(batch: Batch, limit: int | None) -> Batch:
    """At most `limit` rows, the same ones for every subject on this split; all rows where there is no limit."""
    check_limit(limit)
    if limit is None or limit >= len(batch):
        return batch
    generator = Generator().manual_seed(derived_seed("limit", len(batch)))
    return batch.rows(torch.randperm(len(batch), generator=generator)[:limit].sort().values)
