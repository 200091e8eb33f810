"""How far one subject is from another on the test split, instance by instance: predictions and attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from heedful.core.divergences import total_variation
from heedful.core.heads import bound, costs, distance, matched
from heedful.core.types import Batch
from heedful.core.workspace import Workspace
from heedful.models.pooled import PooledModel
from heedful.recipes.answers import Said, answering
from heedful.recipes.subject import Subject
from heedful.recipes.training import inference_batches


@dataclass(frozen=True)
class _Both:
    """What two subjects say about the same batch."""

    batch: Batch
    base: Said
    other: Said


def differences(other: Subject, base: Subject, workspace: Workspace) -> pd.DataFrame:
    """A row per test instance.

    `predicted` and `maximum_attention` are the base's, `answered` is the class that the other predicts, `stvd` the
    total variation of their predictions (0 to 1), `jsd` and `kl` the divergence of the other's attention from the
    base's in nats, `bound` the largest JSD that any attention could have to the base's on the same text.
    """
    trained = base.restore(workspace)
    batch = trained.batch("test")
    ask_base, ask_other = (answering(subject, "test", workspace) for subject in (base, other))

    def both() -> Iterator[_Both]:
        for _, part in inference_batches(batch, workspace.batch_size):
            moved = part.to(workspace.device)
            yield _Both(moved, ask_base(moved), ask_other(moved))

    order = _order(both())
    pooled = trained.model if isinstance(trained.model, PooledModel) else None
    return pd.concat([_rows(each, order, _support(pooled, each.batch)) for each in both()], ignore_index=True)


def _order(both: Iterator[_Both]) -> Tensor | None:
    """The matching of heads over the whole split; None where there is one head."""
    total: Tensor | None = None
    for each in both:
        if each.base.attention.shape[2] == 1:
            return None
        found = costs(each.other.attention, each.base.attention, each.batch.mask)
        total = found if total is None else total + found
    return None if total is None else matched(total)


def _support(model: PooledModel | None, batch: Batch) -> Tensor:
    return batch.mask.unsqueeze(1) if model is None else model.shape.support(batch)


def _rows(both: _Both, order: Tensor | None, support: Tensor) -> pd.DataFrame:
    batch, base, other = both.batch, both.base, both.other
    far = distance(other.attention.double(), base.attention.double(), batch.mask, order)
    labels = [None] * len(batch) if batch.labels is None else batch.labels.tolist()
    return pd.DataFrame(
        {
            "uid": batch.uids,
            "length": batch.scored.sum(1).tolist(),
            "label": labels,
            "predicted": base.probabilities.argmax(1).tolist(),
            "answered": other.probabilities.argmax(1).tolist(),
            "probabilities": base.probabilities.double().tolist(),
            "maximum_attention": base.attention.amax((1, 2, 3, 4)).tolist(),
            "stvd": total_variation(other.probabilities.double(), base.probabilities.double()).tolist(),
            "jsd": far.jsd.tolist(),
            "kl": far.kl.tolist(),
            "bound": bound(base.attention.double(), support, batch.mask).tolist(),
        }
    )
