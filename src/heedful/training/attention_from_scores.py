"""Scores of any attribution method as imposed attention: do they help a model that cannot look at context?

The scores may be of any subject, also of a transformer that reads other units: words are what both have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heedful.store.workspace import Workspace
from heedful.training.attention_sources import AttentionFunction, AttentionLayout, AttentionSource, uniform_weights
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.types import SPLITS, Batch, Method, Model, UserError


@dataclass(frozen=True)
class FromScores(AttentionSource):
    """|scores| of a method on a trained subject, summed for each word and normalised over the learner's words.

    A word's weight is shared equally by the units that the learner reads it as. A text whose scores are all zero, or
    not all finite, is weighted uniformly.

    Args:
        attributed: the scores on each split, which every recipe under this guide needs; made of the other two.
    """

    subject: TrainedModel
    method: Method
    tables: tuple[AttributionTable, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        recipes = tuple(AttributionTable(self.subject, self.method, split) for split in SPLITS)
        object.__setattr__(self, "tables", recipes)

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """w_t = s(word of t) / units of that word, divided by its sum over the units that may be attended to."""
        known = dict(self._scores_by_text(workspace))
        places = AttentionLayout(model)

        def scored(batch: Batch) -> Tensor:
            support = places.support(batch) & batch.content_mask.unsqueeze(1)
            shares = _unit_shares(known, batch).unsqueeze(1) * support
            total = shares.sum(-1, keepdim=True)
            return places.expand_rows(torch.where(total > 0, shares / total, uniform_weights(support)))

        return scored

    def count_uniform_fallbacks(self, workspace: Workspace) -> int:
        """Texts without a score other than zero, or with one that is no finite number."""
        return sum(float(np.nansum(words)) == 0 for _, words in self._scores_by_text(workspace))

    def _scores_by_text(self, workspace: Workspace) -> Iterable[tuple[str, np.ndarray]]:
        for recipe in self.tables:
            yield from _word_scores(workspace.get(recipe).table)


def _word_scores(table: pd.DataFrame) -> Iterable[tuple[str, np.ndarray]]:
    """Each text's uid and the score of each of its words; NaN for a word that was not read."""
    columns = ("uid", "scores", "words", "scored")
    for uid, scores, words, scored in zip(*(table[column].tolist() for column in columns), strict=True):
        kept = np.asarray(scored, dtype=bool)
        places = np.asarray(words)[kept]
        sizes = np.abs(np.asarray(scores, dtype=np.float64)[kept])
        sizes = sizes if np.isfinite(sizes).all() else np.zeros_like(sizes)
        totals = np.bincount(places, weights=sizes)
        yield uid, np.where(np.bincount(places) > 0, totals, np.nan)


def _unit_shares(known: dict[str, np.ndarray], batch: Batch) -> Tensor:
    """Each unit's share of its word's score `[batch unit]`, in float64; zero on units that belong to no word."""
    words = batch.words.cpu()
    width = int(words.max()) + 1 if words.numel() else 0
    scores = torch.full((len(batch), max(1, width)), torch.nan, dtype=torch.float64)
    for row, uid in enumerate(batch.uids):
        if uid not in known:
            raise UserError(f"the guide has no scores of example {uid!r}: give both subjects the same corpus")
        own = torch.from_numpy(known[uid])[:width]
        scores[row, : len(own)] = own
    slot, scored = words.clamp(min=0), words >= 0
    counts = torch.zeros_like(scores).scatter_add(1, slot, scored.double())
    shares = (scores / counts.clamp(min=1)).gather(1, slot)
    _check_all_words_scored(shares.isnan() & scored, batch)
    return shares.masked_fill(~scored, 0.0).to(batch.mask.device)


def _check_all_words_scored(unread: Tensor, batch: Batch) -> None:
    if bool(unread.any()):
        row, unit = (int(place) for place in unread.nonzero()[0])
        raise UserError(
            f"word {int(batch.words[row, unit]) + 1} of example {batch.uids[row]!r} has no score from the guide, which "
            "read other words of this text: give both subjects the same corpus, or cut long texts for both"
        )
