"""Attributions of several methods side by side: lined up by instance and unit, and correlated all pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.core.correlations import Correlation
from heedful.core.ranks import dense_ranks
from heedful.core.types import UserError

Correlate = Callable[[Tensor, Tensor], Correlation]
"""Scores `[batch method unit]` and mask `[batch unit]` -> the correlation of all pairs `[batch method method]`."""

_ROWS = 256
_Integers = NDArray[np.int64]


def compared(
    tables: Mapping[str, pd.DataFrame], correlate: Correlate, *, absolute: bool, resolution: float
) -> pd.DataFrame:
    """A row for each instance and each unordered pair of methods, in the order of `tables`, with their correlation.

    `place` counts the pairs. `tied` is the share of units whose score is shared by another unit, by either method.

    Args:
        tables: what `Attributed` made, by the method's name; the first says which units are compared.
        absolute: whether signs are dropped.
        resolution: scores are rounded to this share of the largest of their row, so that noise is not ranked.
    """
    aligned = _aligned(tables)
    one, other = np.triu_indices(len(tables), k=1)
    found: dict[str, list[NDArray[np.generic]]] = {"value": [], "p_value": [], "tied": [], "defined": []}
    order = np.argsort(aligned.lengths, kind="stable")
    for rows in _chunks(order):
        scores, mask = aligned.padded(rows)
        scores = quantised(scores.abs() if absolute else scores, mask, resolution)
        result = correlate(scores, mask)
        numbers = (result.value, result.p_value, tied_units(scores, mask).float(), result.defined)
        for column, matrix in zip(found, numbers, strict=True):
            found[column].append(matrix[:, one, other].numpy())
    back = np.argsort(order, kind="stable")
    columns = {column: np.concatenate(parts)[back].ravel() for column, parts in found.items()}
    names = np.array(list(tables), dtype=object)
    instances, pairs = len(aligned.uids), len(one)
    return pd.DataFrame(
        {
            "uid": np.repeat(np.array(aligned.uids, dtype=object), pairs),
            "length": np.repeat(aligned.lengths.astype(np.int32), pairs),
            "predicted": np.repeat(aligned.predicted.astype(np.int32), pairs),
            "place": np.tile(np.arange(pairs, dtype=np.int16), instances),
            "first": np.tile(names[one], instances),
            "second": np.tile(names[other], instances),
            **columns,
        }
    )


def quantised(scores: Tensor, mask: Tensor, resolution: float) -> Tensor:
    """Scores `[batch method unit]` in whole steps of `resolution` times the largest of their row; zero off the mask.

    >>> scores = torch.tensor([[[0.5, 0.25 + 1e-12, 0.25, 9.0]]], dtype=torch.float64)
    >>> quantised(scores, torch.tensor([[True, True, True, False]]), 0.25).tolist()
    [[[4.0, 2.0, 2.0, 0.0]]]
    """
    real = scores.double().masked_fill(~mask.unsqueeze(-2), 0.0)
    largest = real.abs().amax(-1, keepdim=True)
    return (real / largest.masked_fill(largest == 0, 1.0) / resolution).round()


def tied_units(scores: Tensor, mask: Tensor) -> Tensor:
    """The share of units that share their score with another one in either method, `[batch method method]`.

    >>> tied_units(torch.tensor([[[1.0, 1.0, 2.0, 3.0], [5.0, 6.0, 6.0, 7.0]]]), torch.ones(1, 4, dtype=torch.bool))
    tensor([[[0.5000, 0.7500],
             [0.7500, 0.5000]]])
    """
    places, sizes = dense_ranks(scores, mask.unsqueeze(-2))
    last = scores.shape[-1] - 1
    shared = ((sizes.gather(-1, places.clamp(max=last)) > 1) & mask.unsqueeze(-2)).float()
    count = shared.sum(-1)
    either = count.unsqueeze(-1) + count.unsqueeze(-2) - shared @ shared.mT
    return either / mask.sum(-1).clamp(min=1)[:, None, None]


@dataclass(frozen=True)
class _Aligned:
    """Scores of all methods for the same units, instance after instance.

    Args:
        scores: `[method unit]`, the compared units of all instances one after the other.
        lengths: compared units of each instance.
    """

    uids: tuple[str, ...]
    predicted: _Integers
    lengths: _Integers
    scores: NDArray[np.float64]

    def padded(self, rows: _Integers) -> tuple[Tensor, Tensor]:
        """Scores `[batch method unit]` and mask `[batch unit]` of these instances."""
        unit = np.arange(max(1, int(self.lengths[rows].max())))
        mask = unit < self.lengths[rows][:, None]
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.where(mask, starts[rows][:, None] + unit, 0)
        scores = self.scores[:, places].swapaxes(0, 1)
        return torch.from_numpy(scores.copy()), torch.from_numpy(mask)


def _aligned(tables: Mapping[str, pd.DataFrame]) -> _Aligned:
    first = next(iter(tables.values()))
    uids = first["uid"].tolist()
    units = _counts(first["scored"])
    kept = _reached(first)
    scores = [_flat(name, table, uids, units)[kept] for name, table in tables.items()]
    lengths = np.add.reduceat(kept.astype(np.int64), np.cumsum(units) - units)
    return _Aligned(tuple(uids), first["predicted"].to_numpy(np.int64), lengths, np.stack(scores))


def _reached(table: pd.DataFrame) -> NDArray[np.bool_]:
    """The scored units of the parts that the method can reach, instance after instance.

    Attention over a document never weighs its question: a part without weight in every instance is left out. A
    sparse attention may leave a part without weight in one instance, and there the zeros count.
    """
    scored, parts, weights = (_joined(table[column].tolist()) for column in ("scored", "segments", "scores"))
    found: NDArray[np.bool_] = (scored != 0) & np.isin(parts, parts[weights != 0])
    return found


def _flat(name: str, table: pd.DataFrame, uids: list[str], units: _Integers) -> NDArray[np.float64]:
    """The scores of all instances one after the other, in the order of `uids`."""
    rows = dict(zip(table["uid"].tolist(), table["scores"].tolist(), strict=True))
    if rows.keys() != set(uids):
        raise UserError(f"{name} was run on other instances: give both subjects the same corpus and preprocessing")
    ordered = [rows[uid] for uid in uids]
    if not np.array_equal(_counts(ordered), units):
        raise UserError(f"{name} scores other units of the same texts: give both subjects the same preprocessing")
    scores = _joined(ordered)
    if not np.isfinite(scores).all():
        raise UserError(f"{name} gave {int((~np.isfinite(scores)).sum())} scores that are no finite numbers")
    return scores


def _joined(rows: Iterable[Iterable[float]]) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(rows), dtype=np.float64)


def _counts(rows: Iterable[Sized]) -> _Integers:
    return np.fromiter(map(len, rows), dtype=np.int64)


def _chunks(order: _Integers) -> Iterator[_Integers]:
    return (order[start : start + _ROWS] for start in range(0, len(order), _ROWS))
