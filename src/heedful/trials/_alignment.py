"""Attribution tables of several methods, aligned by text and unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.types import UserError

TEXTS_PER_CHUNK = 256


@dataclass(frozen=True)
class AlignedScores:
    """Scores of several methods for the same units, text after text.

    Args:
        lengths: number of units of each text.
        scores: `[method unit]`, the units of all texts one after another.
    """

    uids: tuple[str, ...]
    lengths: NDArray[np.int64]
    scores: NDArray[np.float64]

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Row numbers of texts of similar length, shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        return (order[start : start + TEXTS_PER_CHUNK] for start in range(0, len(order), TEXTS_PER_CHUNK))

    def mask(self, rows: NDArray[np.int64]) -> Tensor:
        """Which units of the padded texts exist, `[text unit]`."""
        return torch.from_numpy(np.arange(max(1, int(self.lengths[rows].max()))) < self.lengths[rows][:, None])

    def pad(self, values: NDArray[np.generic], rows: NDArray[np.int64], fill: float = 0) -> Tensor:
        """Values `[... unit]` of these texts as `[text ... unit]`, with `fill` where a text has ended."""
        mask = self.mask(rows).numpy()
        starts = np.cumsum(self.lengths) - self.lengths
        positions = np.where(mask, starts[rows][:, None] + np.arange(mask.shape[1]), 0)
        padded = np.where(mask, values[..., positions], np.array(fill, values.dtype))
        return torch.from_numpy(np.moveaxis(padded, -2, 0).copy())


def align_scores(tables: Mapping[str, pd.DataFrame], kept: NDArray[np.bool_]) -> AlignedScores:
    """The scores of all tables on the kept units, in the order of the first table.

    Args:
        tables: tables of `AttributionTable` by the method's name.
        kept: one entry per unit of the first table, text after text.
    """
    first = next(iter(tables.values()))
    uids = first["uid"].tolist()
    lengths = _row_lengths(first["scores"])
    scores = np.stack([_flatten_scores(name, table, uids, lengths)[kept] for name, table in tables.items()])
    kept_lengths = np.bincount(np.repeat(np.arange(len(uids)), lengths)[kept], minlength=len(uids))
    return AlignedScores(tuple(uids), kept_lengths, scores)


def flatten(column: Iterable[Iterable[float]]) -> NDArray[np.float64]:
    """The entries of all rows of a column of lists, one after another."""
    return np.fromiter(chain.from_iterable(column), dtype=np.float64)


def _row_lengths(column: Iterable[list[float]]) -> NDArray[np.int64]:
    return np.fromiter(map(len, column), dtype=np.int64)


def _flatten_scores(name: str, table: pd.DataFrame, uids: list[str], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    rows = dict(zip(table["uid"].tolist(), table["scores"].tolist(), strict=True))
    if rows.keys() != set(uids):
        raise UserError(f"{name} was computed on other texts: give all methods the same corpus, split and limit")
    ordered = [rows[uid] for uid in uids]
    if not np.array_equal(_row_lengths(ordered), lengths):
        raise UserError(f"{name} scores other tokens of the same texts: give all methods the same tokenization")
    scores = flatten(ordered)
    if not np.isfinite(scores).all():
        raise UserError(f"{name} gave {int((~np.isfinite(scores)).sum())} scores that are not finite: leave it out")
    return scores
