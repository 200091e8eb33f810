"""A few pictures of a split, kept for the report: their pixels, what was predicted, and the maps of all heads.

Attributions know patches by their places only; without these nobody could see what stands there.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from heedful.core.headscores import read_heads
from heedful.core.types import Example, Split, UserError
from heedful.core.workspace import Artefact, Json, Recipe, Workspace
from heedful.recipes.attributed import sampled
from heedful.recipes.subject import Subject, plain


@dataclass(frozen=True)
class Pictured(Recipe):
    """Some images of a subject's corpus, the same that `Attributed` takes with this limit or with a larger one."""

    subject: Subject
    split: Split = "test"
    limit: int = 4

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `images` `[image channel height width]` in bytes and `heads` `[image layer head patch]`.

        The table has uid, label, predicted class and its probability; `rows` and `columns` in the notes say how many
        patches there are.
        """
        trained = self.subject.restore(workspace)
        batch = sampled(trained.batch(self.split), self.limit)
        examples = {example.uid: example for example in trained.examples(self.split)}
        images = torch.stack([_bytes(examples[uid]) for uid in batch.uids])
        with torch.no_grad():
            heads = read_heads(trained.model, batch.to(workspace.device))
        probabilities = trained.model.task.probabilities(heads.logits).cpu()
        best = probabilities.max(-1)
        table = pd.DataFrame({"uid": batch.uids, "label": [plain(examples[uid].label) for uid in batch.uids]})
        table = table.assign(predicted=best.indices.tolist(), probability=best.values.tolist())
        maps = heads.scores.cpu().float()[..., batch.scored[0]]
        rows, columns = _patches(trained.batcher.texts(batch)[0])
        notes: dict[str, Json] = {"about": dict(self.subject.about), "classes": plain(trained.splits.classes)}
        return Artefact({"images": images, "heads": maps}, table, notes | {"rows": rows, "columns": columns})


def _bytes(example: Example) -> Tensor:
    image = example.parts[0]
    if not isinstance(image, Tensor):
        raise UserError(f"example {example.uid} is not a picture: only corpora of images can be pictured")
    return (255 * image.clamp(0, 1)).round().to(torch.uint8)


def _patches(texts: list[str]) -> tuple[int, int]:
    """Rows and columns of a grid whose patches are called "row,column"; other units are symbols."""
    places = [text.split(",") for text in texts if "," in text]
    return max(int(row) for row, _ in places) + 1, max(int(column) for _, column in places) + 1
