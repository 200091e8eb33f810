"""Scores of several methods beside the words that people marked: lined up by text and word, and judged all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.plausibility import (
    MEASURES,
    Pooling,
    Rank,
    Top,
    by_word,
    check_pooling,
    check_rank,
    check_top,
    ordered,
    plausibility,
)
from heedful.core.types import UserError
from heedful.recipes.rationales import STATUS, Marked, Rationales

_TEXTS = 256


@dataclass(frozen=True)
class Judging:
    """How scores are compared with marks.

    Args:
        pooling: how a word's score comes from its pieces.
        top: words that are picked for F1 and IOU.
    """

    pooling: Pooling = "sum"
    rank: Rank = "score"
    top: Top = "rationale"

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        check_top(self.top)
        check_rank(self.rank)

    def __call__(self, tables: Mapping[str, pd.DataFrame], rationales: Rationales) -> pd.DataFrame:
        """A row per text, part and method, in the order of `tables`: words, marked ones, status and every measure.

        Args:
            tables: what `Attributed` made, by the method's name.
        """
        lined = _lined_up(tables)
        texts: list[pd.DataFrame] = []
        found: list[Tensor] = []
        for rows in lined.chunks():
            uids, scores, words = lined.padded(rows)
            marked = rationales.of(uids, words)
            found.append(self._numbers(scores, words, marked))
            texts.append(_texts(uids, marked, rationales.parts))
        return _long(pd.concat(texts, ignore_index=True), torch.cat(found), list(tables))

    def _numbers(self, scores: Tensor, words: Tensor, marked: Marked) -> Tensor:
        """Every measure `[batch part method measure]` of scores `[batch method unit]`."""
        pooled, _ = by_word(scores, words, self.pooling, marked.mask.shape[-1])
        spread = ordered(pooled, self.rank).unsqueeze(1).expand(-1, marked.mask.shape[1], -1, -1)
        numbers = plausibility(spread, marked.rationale.unsqueeze(2), marked.mask.unsqueeze(2), self.top)
        return torch.stack([numbers[name] for name in MEASURES], -1)


def _texts(uids: Sequence[str], marked: Marked, parts: Sequence[str]) -> pd.DataFrame:
    """A row per text and part."""
    return pd.DataFrame(
        {
            "uid": np.repeat(np.array(uids, dtype=object), len(parts)),
            "part": np.tile(np.array(parts, dtype=object), len(uids)),
            "length": marked.mask.sum(-1).flatten().numpy(),
            "marked": (marked.rationale & marked.mask).sum(-1).flatten().numpy(),
            "status": np.array(STATUS, dtype=object)[marked.status.flatten().numpy()],
        }
    )


def _long(texts: pd.DataFrame, numbers: Tensor, methods: Sequence[str]) -> pd.DataFrame:
    by_row = numbers.flatten(0, 1).numpy()
    found = [
        texts.assign(
            method=name,
            place=place,
            **{measure: by_row[:, place, column] for column, measure in enumerate(MEASURES)},
        )
        for place, name in enumerate(methods)
    ]
    return pd.concat(found, ignore_index=True)


@dataclass(frozen=True)
class _Lined:
    """Scores `[method unit]` and words `[unit]` of all texts one after the other; `lengths` are units of each."""

    uids: tuple[str, ...]
    lengths: NDArray[np.int64]
    words: NDArray[np.int64]
    scores: NDArray[np.float64]

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Texts of about equal length, shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        return (order[start : start + _TEXTS] for start in range(0, len(order), _TEXTS))

    def padded(self, rows: NDArray[np.int64]) -> tuple[list[str], Tensor, Tensor]:
        """The texts' uids, scores `[batch method unit]` and words `[batch unit]`."""
        unit = np.arange(max(1, int(self.lengths[rows].max())))
        inside = unit < self.lengths[rows][:, None]
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.where(inside, starts[rows][:, None] + unit, 0)
        words = torch.from_numpy(np.where(inside, self.words[places], -1))
        scores = torch.from_numpy(self.scores[:, places].swapaxes(0, 1).copy())
        return [self.uids[row] for row in rows], scores, words


def _lined_up(tables: Mapping[str, pd.DataFrame]) -> _Lined:
    first = next(iter(tables.values()))
    uids = first["uid"].tolist()
    lengths = np.fromiter(map(len, first["words"]), dtype=np.int64)
    words = _joined(first["words"]).astype(np.int64)
    scores = np.stack([_scores(name, table, uids, lengths) for name, table in tables.items()])
    # What a method says of special symbols is about no word.
    return _Lined(tuple(uids), lengths, np.where(_joined(first["scored"]) != 0, words, -1), scores)


def _scores(name: str, table: pd.DataFrame, uids: list[str], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    if set(table["uid"]) != set(uids):
        raise UserError(f"{name} was run on other texts: give all methods the same subject, split and limit")
    rows = table.set_index("uid").loc[uids, "scores"].tolist()
    if not np.array_equal(np.fromiter(map(len, rows), dtype=np.int64), lengths):
        raise UserError(f"{name} scores other units of the same texts: give all methods the same subject")
    scores = _joined(rows)
    if not np.isfinite(scores).all():
        raise UserError(f"{name} gave {int((~np.isfinite(scores)).sum())} scores that are no finite numbers")
    return scores


def _joined(rows: Iterable[Iterable[float]]) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(rows), dtype=np.float64)
