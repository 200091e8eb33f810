"""How plausible every single layer and head of a model is: what the best of them would score if one knew which.

Only the numbers are kept, not the maps. A map is the softmax over words of a head's mean score (of the mean of a
layer's heads), the explanation of Fernandes et al. with all weight on one head or one layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Tensor

from heedful.core.headscores import read_heads
from heedful.core.mixing import distribution
from heedful.core.plausibility import MEASURES, Pooling, Rank, Top, by_word, check_rank, ordered, plausibility
from heedful.core.recipe import LATER
from heedful.core.types import Batch, Model, Split
from heedful.core.workspace import Artefact, Json, Recipe, Workspace
from heedful.recipes.attributed import sampled
from heedful.recipes.rationales import Rationales
from heedful.recipes.subject import Subject
from heedful.recipes.training import inference_batches

_NUMBERS = 2**22
"""Scores that are ranked at a time."""


@dataclass(frozen=True)
class HeadScored(Recipe):
    """Every measure of plausibility for every layer and head, one row per text.

    Args:
        parts: names of the parts that are judged apart; none judges a text as a whole.
        pooling: how a word's score comes from its pieces.
        top: words that are picked for F1 and IOU.
        rank: what words are ranked by. Maps are never negative, so that their size is their score.
    """

    subject: Subject
    split: Split = "test"
    limit: int | None = None
    parts: tuple[str, ...] = ()
    pooling: Pooling = "sum"
    top: Top = "rationale"
    rank: Rank = field(default="score", metadata=LATER)

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def make(self, workspace: Workspace) -> Artefact:
        """The tensor `plausibility` `[text part map measure]`, all layers before all heads, and the texts' uids."""
        trained = self.subject.restore(workspace)
        rationales = Rationales(trained.examples(self.split), self.parts, self.subject.corpus.name)
        batch = sampled(trained.batch(self.split), self.limit)
        found: list[Tensor] = []
        uids: list[str] = []
        shape = (0, 0)
        with workspace.progress.task(f"heads {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, workspace.batch_size):
                maps, shape = _maps(trained.model, part.to(workspace.device))
                found.append(self._judged(maps, part, rationales))
                uids += part.uids
                step(len(part))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "layers": shape[0], "heads": shape[1]}
        return Artefact({"plausibility": torch.cat(found)}, pd.DataFrame({"uid": uids}), notes)

    def _judged(self, maps: Tensor, batch: Batch, rationales: Rationales) -> Tensor:
        """`[batch part map measure]`, some rows at a time where there are many heads."""
        marked = rationales.of(batch.uids, batch.words)
        scores, _ = by_word(maps, batch.words, self.pooling, marked.mask.shape[-1])
        rows = max(1, _NUMBERS // max(1, scores[0].numel() * len(rationales.parts)))
        found = []
        for start in range(0, len(batch), rows):
            some = slice(start, start + rows)
            rationale, mask = marked.rationale[some].unsqueeze(2), marked.mask[some].unsqueeze(2)
            spread = scores[some].unsqueeze(1).expand(-1, len(rationales.parts), -1, -1)
            numbers = plausibility(ordered(spread, self.rank), rationale, mask, self.top)
            found.append(torch.stack([numbers[name] for name in MEASURES], -1).float())
        return torch.cat(found)


@torch.no_grad()
def _maps(model: Model, batch: Batch) -> tuple[Tensor, tuple[int, int]]:
    """Distributions over the scored units, each layer's and each head's, `[batch map unit]`; how many of both."""
    scores = read_heads(model, batch).scores.double()
    logits = torch.cat((scores.mean(2), scores.flatten(1, 2)), 1)
    return distribution(logits, batch.scored.unsqueeze(1)).cpu(), (scores.shape[1], scores.shape[2])
