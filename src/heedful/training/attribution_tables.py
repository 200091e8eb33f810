"""Attributions of a method over a split, computed once for all trials, the report and the study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions._base import CompleteAttribution
from heedful.data.tokenization import SPECIAL_TOKENS, UNK
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe, to_json
from heedful.training.trainer import inference_batches
from heedful.types import Batch, Method, Split, SupportsPreparation, UserError, method_name, read_heads

COMPLETENESS_NOTE = "missed"
"""The key of `completeness_error` in the notes of an attribution table."""


@dataclass(frozen=True)
class AttributionTable(Recipe):
    """Scores of one method for the class that the model predicts; one row per example.

    Args:
        limit: at most this many examples, drawn at random but the same for every model; None takes all.
    """

    revision: ClassVar[int] = 2
    kind: ClassVar[str] = "attributions"

    subject: ModelRecipe
    method: Method
    split: Split = "test"
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    def describe(self) -> dict[str, Json]:
        method = method_name(self.method)
        return {**self.subject.describe(), "method": method, "split": self.split, "limit": self.limit}

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, units with scores, words and segments, predicted class, its probability and the label.

        For methods whose scores should add up to a known number the column `gap` has what they miss it by, and the
        notes have `completeness_error`.
        """
        loaded = self.subject.restore(workspace)
        batch = sample_rows(loaded.batch(self.split), self.limit)
        method = self.method.prepare(loaded.model) if isinstance(self.method, SupportsPreparation) else self.method
        rows: list[dict[str, object]] = []
        with workspace.progress.task(f"{type(self.method).__name__} {self.subject.title}", len(batch)) as step:
            for _, part in inference_batches(batch, workspace.batch_size):
                rows += self._rows(loaded, part.to(workspace.device), method)
                step(len(part))
        table = pd.DataFrame(rows)
        notes: dict[str, Json] = {
            "about": dict(self.subject.about),
            "method": type(self.method).__name__,
            "n": len(rows),
            "of": len(loaded.examples(self.split)),
        }
        return Artefact(table=table, notes=notes | completeness_error(table))

    def _rows(self, loaded: LoadedModel, batch: Batch, method: Method) -> list[dict[str, object]]:
        with torch.no_grad():
            probabilities = loaded.model.task.probabilities(loaded.model(batch).logits)
        target = probabilities.argmax(-1)
        attribution = method(loaded.model, batch, target)
        texts = _unit_texts(loaded, batch, self.split)
        labels = [None] * len(batch) if batch.labels is None else batch.labels.tolist()
        rows: list[dict[str, object]] = []
        for row, uid in enumerate(batch.uids):
            mask = batch.mask[row]
            rows.append(
                {
                    "uid": uid,
                    "units": texts[row],
                    "scores": attribution.scores[row][mask].double().tolist(),
                    "scored": batch.content_mask[row][mask].tolist(),
                    "words": batch.words[row][mask].tolist(),
                    "segments": batch.segments[row][mask].tolist(),
                    "predicted": int(target[row]),
                    "probability": float(probabilities[row, target[row]]),
                    "label": labels[row],
                }
            )
            if isinstance(attribution, CompleteAttribution):
                rows[-1]["gap"] = float(attribution.convergence_delta[row])
        return rows


def _unit_texts(loaded: LoadedModel, batch: Batch, split: Split) -> list[list[str]]:
    """The text of each unit; a word outside the vocabulary is shown as it is written in the example."""
    examples = {example.uid: example for example in loaded.splits[split]}
    texts = loaded.tokenizer.unit_texts(batch)
    for row, uid in enumerate(batch.uids):
        words = [word for part in examples[uid].parts if isinstance(part, str) for word in part.split()]
        for unit, text in enumerate(texts[row]):
            if text == SPECIAL_TOKENS[UNK]:
                texts[row][unit] = words[int(batch.words[row, unit])]
    return texts


def completeness_error(table: pd.DataFrame) -> dict[str, Json]:
    """The `largest` and the `mean` |gap| over examples, as shares of the mean |difference| from the baseline's output.

    DeepLIFT and integrated gradients should have none; an operation without a rule, or too few steps, leaves one. The
    scores of an example sum to difference + gap. The mean difference is the unit because single ones may be near 0;
    where it is 0, any gap counts as 1. Empty for methods without the completeness property.

    >>> completeness_error(pd.DataFrame({"scores": [[1.0, 1.5], [-1.0, -1.0]], "gap": [0.5, 0.0]}))
    {'missed': {'largest': 0.25, 'mean': 0.125}}
    """
    if "gap" not in table.columns:
        return {}
    gap = table["gap"].to_numpy(np.float64)
    total = np.array([np.sum(scores) for scores in table["scores"]], dtype=np.float64)
    difference = float(np.abs(total - gap).mean())
    shares = (gap != 0).astype(np.float64) if difference == 0 else np.abs(gap) / difference
    return {COMPLETENESS_NOTE: to_json({"largest": float(shares.max()), "mean": float(shares.mean())})}


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} leaves no example: give 1 or more, or None for all of them")


def sample_rows(batch: Batch, limit: int | None) -> Batch:
    """At most `limit` rows, the same ones for every model on this split; all rows where there is no limit."""
    _check_limit(limit)
    if limit is None or limit >= len(batch):
        return batch
    generator = Generator().manual_seed(derive_seed("limit", len(batch)))
    return batch.rows(torch.randperm(len(batch), generator=generator)[:limit].sort().values)


@dataclass(frozen=True)
class ImageSample(Recipe):
    """Pixels, predictions and head maps of some images, the same that `AttributionTable` takes with this limit.

    Attribution tables know patches by their positions only; the report shows them on the images.
    """

    kind: ClassVar[str] = "images"

    subject: ModelRecipe
    split: Split = "test"
    limit: int = 4

    def describe(self) -> dict[str, Json]:
        return {**self.subject.describe(), "split": self.split, "limit": self.limit}

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `images` `[image channel height width]` in bytes and `heads` `[image layer head patch]`.

        The table has uid, label, predicted class and its probability; `rows` and `columns` in the notes are the grid of
        patches.
        """
        loaded = self.subject.restore(workspace)
        batch = sample_rows(loaded.batch(self.split), self.limit)
        examples = {example.uid: example for example in loaded.examples(self.split)}
        images = [image for uid in batch.uids for image in examples[uid].parts[:1] if isinstance(image, Tensor)]
        if len(images) < len(batch):
            raise UserError(f"{self.subject.corpus.name} has an example that is not an image: choose an image corpus")
        pixels = (255 * torch.stack(images).clamp(0, 1)).round().to(torch.uint8)
        with torch.no_grad():
            heads = read_heads(loaded.model, batch.to(workspace.device))
        best = loaded.model.task.probabilities(heads.logits).cpu().max(-1)
        table = pd.DataFrame({"uid": batch.uids, "label": [to_json(examples[uid].label) for uid in batch.uids]})
        table = table.assign(predicted=best.indices.tolist(), probability=best.values.tolist())
        maps = heads.scores.cpu().float()[..., batch.content_mask[0]]
        # Patches are called "row,column"; other units are special tokens.
        positions = [text.split(",") for text in loaded.tokenizer.unit_texts(batch)[0] if "," in text]
        rows, columns = (max(int(position[axis]) for position in positions) + 1 for axis in (0, 1))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "classes": to_json(loaded.splits.class_names)}
        return Artefact({"images": pixels, "heads": maps}, table, notes | {"rows": rows, "columns": columns})
