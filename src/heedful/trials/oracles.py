"""The best layer and the best head: chosen with the marks of the same texts, and, honestly, with those of others.

An oracle tells what could be reached if one knew which head to look at; nobody can who has no marks. The same choice
made on one half of the texts and judged on the other tells how much of that is luck.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.core.plausibility import MEASURES
from heedful.core.workspace import Artefact, derived_seed

ORACLE, ELSEWHERE = "oracle", "chosen on other texts"
_AUC = list(MEASURES).index("auc")
_Numbers = NDArray[np.float64]


def oracles(artefact: Artefact, texts: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each kind of choice the rows of its layer or head: `texts` with method, kind, which one, and every measure.

    Args:
        artefact: what `HeadScored` made.
        texts: a row per text and part, with `uid` and `part`, all parts of a text in the order of the artefact's.
    """
    numbers = artefact.tensors["plausibility"].double().numpy()
    layers, heads = (int(str(artefact.notes[name])) for name in ("layers", "heads"))
    order = {str(uid): place for place, uid in enumerate(artefact.table["uid"])}
    parts = {part: place for place, part in enumerate(texts["part"].drop_duplicates())}
    uids = list(order)
    halves = np.array([derived_seed("half", uid) % 2 for uid in uids], dtype=bool)
    at = (texts["uid"].map(order).to_numpy(np.int64), texts["part"].map(parts).to_numpy(np.int64))
    for name, first, last in (("best-layer", 0, layers), ("best-head", layers, layers + layers * heads)):
        bank = numbers[:, :, first:last]
        for kind, chosen in ((ORACLE, _best(bank, np.ones_like(halves))), (ELSEWHERE, _crossed(bank, halves))):
            picked = np.take_along_axis(bank, np.maximum(chosen, 0)[:, :, None, None], 2)[:, :, 0]
            picked = np.where(chosen[:, :, None] < 0, np.nan, picked)[at]
            which = [_called(name, int(place), heads) for place in chosen[at]]
            columns = {measure: picked[:, column] for column, measure in enumerate(MEASURES)}
            yield texts.assign(method=f"{name} ({kind})", kind=kind, which=which, **columns)


def _best(numbers: _Numbers, judges: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The map with the highest mean area among the judges, in each part `[text part]`; -1 where nothing is judged."""
    areas = numbers[judges][..., _AUC]
    known = np.isfinite(areas)
    count = known.sum(0)
    means = np.where(known, areas, 0.0).sum(0) / np.maximum(count, 1)
    best = np.where(count.any(-1), means.argmax(-1), -1)
    return np.broadcast_to(best, numbers.shape[:2])


def _crossed(numbers: _Numbers, halves: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For the texts of each half the map that is best on the other half, `[text part]`."""
    return np.where(halves[:, None], _best(numbers, ~halves), _best(numbers, halves))


def _called(name: str, place: int, heads: int) -> str:
    if place < 0:
        return ""
    return f"layer {place}" if name == "best-layer" else f"layer {place // heads}, head {place % heads}"
