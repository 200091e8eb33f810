"""Human rationales aligned with the words that a model sees, and the plausibility of single heads and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.head_mix import masked_softmax
from heedful.measures.rationale_agreement import (
    PLAUSIBILITY_MEASURES,
    RankBy,
    TopK,
    has_partial_rationale,
    plausibility_metrics,
    ranking_key,
)
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import sample_rows
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.types import Batch, Example, Pooling, Split, UserError, check_choice, pool_by_word, read_heads

RATIONALE_STATUS = ("judged", "no rationale", "all rationale", "cut off")
"""Whether an example, or one part of it, can be judged: not where no word, or every word, is marked, and not where the
marked words were truncated."""

_SCORES_PER_CHUNK = 2**22


@dataclass(frozen=True)
class RationaleBatch:
    """Rationales of a batch of examples, by part.

    Args:
        rationale: True on marked words, `[batch part word]`.
        mask: True on the words of the part that the model sees, `[batch part word]`.
        status: indices of `RATIONALE_STATUS`, `[batch part]`.
    """

    rationale: Tensor
    mask: Tensor
    status: Tensor


class Rationales:
    """The rationales of all examples of a split.

    Args:
        parts: names of the parts that are judged separately; none judges an example as a whole, without the parts that
            have no mark in any example (a question is not evidence).
    """

    def __init__(self, examples: Sequence[Example], parts: Sequence[str], corpus: str) -> None:
        counts = [
            tuple(len(part.split()) if isinstance(part, str) else 0 for part in example.parts) for example in examples
        ]
        most = max((len(count) for count in counts), default=0)
        if parts and len(parts) != most:
            raise UserError(f"{corpus}: examples have {most} parts, but {len(parts)} names are given")
        if not any(any(example.rationale or ()) for example in examples):
            raise UserError(f"{corpus}: no word of these examples is marked; choose a corpus with rationales")
        self.parts = tuple(parts) or ("",)
        self._positions = {example.uid: position for position, example in enumerate(examples)}
        self._lengths = np.array([sum(count) for count in counts], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        marks = chain.from_iterable(
            (False,) * length if example.rationale is None else example.rationale
            for example, length in zip(examples, self._lengths.tolist(), strict=True)
        )
        self._marks = np.fromiter(marks, dtype=bool, count=int(self._lengths.sum()))
        padded = [[*count, *[0] * (most - len(count))] for count in counts]
        self._part = np.repeat(np.arange(most).tolist() * len(counts), list(chain.from_iterable(padded)))
        if not parts:
            self._part = np.where(np.isin(self._part, self._part[self._marks]), 0, -1)

    def select(self, uids: Sequence[str], words: Tensor) -> RationaleBatch:
        """The rationales of these examples, whose units belong to `words` `[batch unit]`."""
        rows = np.array([self._positions[uid] for uid in uids], dtype=np.int64)
        word = np.arange(max(1, int(self._lengths[rows].max())))
        inside = word < self._lengths[rows][:, None]
        positions = np.where(inside, self._starts[rows][:, None] + word, 0)
        part = torch.from_numpy(np.where(inside, self._part[positions], -1))
        own = part.unsqueeze(1) == torch.arange(len(self.parts)).unsqueeze(1)
        seen = torch.zeros(len(rows), len(word) + 1, dtype=torch.bool)
        seen.scatter_(1, torch.where(words >= 0, words, len(word)).cpu(), True)
        rationale = own & torch.from_numpy(self._marks[positions]).unsqueeze(1)
        mask = own & seen[:, :-1].unsqueeze(1)
        status = torch.full(mask.shape[:2], RATIONALE_STATUS.index("all rationale"), dtype=torch.int64)
        status[has_partial_rationale(rationale, mask)] = RATIONALE_STATUS.index("judged")
        status[~(rationale & mask).any(-1)] = RATIONALE_STATUS.index("cut off")
        status[~rationale.any(-1)] = RATIONALE_STATUS.index("no rationale")
        return RationaleBatch(rationale, mask, status)


@dataclass(frozen=True)
class HeadPlausibility(Recipe):
    """Every measure of plausibility for every layer and head, one row per example.

    A map is the softmax over words of a head's mean score (of the mean of a layer's heads): the explanation of
    Fernandes et al. with all weight on one head or one layer. The maps themselves are not stored.

    Args:
        parts: names of the parts that are judged separately; none judges an example as a whole.
        pooling: how a word's score comes from its units.
        top: words that are picked for F1 and IOU.
        rank: what words are ranked by; maps are never negative, so that size and score are the same.
    """

    kind: ClassVar[str] = "head plausibility"

    subject: ModelRecipe
    split: Split = "test"
    limit: int | None = None
    parts: tuple[str, ...] = ()
    pooling: Pooling = "sum"
    top: TopK = "rationale"
    rank: RankBy = "score"

    def __post_init__(self) -> None:
        check_choice("rank", self.rank, RankBy)

    def describe(self) -> dict[str, Json]:
        return {**self.subject.describe(), "split": self.split, "limit": self.limit}

    def make(self, workspace: Workspace) -> Artefact:
        """The tensor `plausibility` `[example part map measure]`, all layers before all heads, and the uids."""
        loaded = self.subject.restore(workspace)
        rationales = Rationales(loaded.examples(self.split), self.parts, self.subject.corpus.name)
        batch = sample_rows(loaded.batch(self.split), self.limit)
        measures: list[Tensor] = []
        uids: list[str] = []
        shape = (0, 0)
        with workspace.progress.task(f"heads {self.subject.corpus.name}", len(batch)) as step:
            for _, part in inference_batches(batch, workspace.batch_size):
                moved = part.to(workspace.device)
                with torch.no_grad():
                    scores = read_heads(loaded.model, moved).scores.double()
                shape = scores.shape[1], scores.shape[2]
                mixes = torch.cat((scores.mean(2), scores.flatten(1, 2)), 1)
                maps = masked_softmax(mixes, moved.content_mask.unsqueeze(1)).cpu()
                measures.append(self._measure_maps(maps, part, rationales))
                uids += part.uids
                step(len(part))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "layers": shape[0], "heads": shape[1]}
        return Artefact({"plausibility": torch.cat(measures)}, pd.DataFrame({"uid": uids}), notes)

    def _measure_maps(self, maps: Tensor, batch: Batch, rationales: Rationales) -> Tensor:
        """`[batch part map measure]` of maps `[batch map unit]`, some rows at a time where there are many heads."""
        selected = rationales.select(batch.uids, batch.words)
        scores, _ = pool_by_word(maps, batch.words, self.pooling, selected.mask.shape[-1])
        size = max(1, _SCORES_PER_CHUNK // max(1, scores[0].numel() * len(rationales.parts)))
        measures = []
        for start in range(0, len(batch), size):
            rows = slice(start, start + size)
            rationale, mask = selected.rationale[rows].unsqueeze(2), selected.mask[rows].unsqueeze(2)
            expanded = scores[rows].unsqueeze(1).expand(-1, len(rationales.parts), -1, -1)
            values = plausibility_metrics(ranking_key(expanded, self.rank), rationale, mask, self.top)
            measures.append(torch.stack([values[name] for name in PLAUSIBILITY_MEASURES], -1).float())
        return torch.cat(measures)
