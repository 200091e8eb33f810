"""The texts of one subject, brought together by uid from all that is stored about them.

Nothing is computed: a row that was not stored for a text is missing there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.core.recipe import Artefact, compact
from heedful.core.sealed import Finished
from heedful.core.workspace import Json
from heedful.report.shelves import NEEDED, Shelf, method_of, natural
from heedful.report.texts import Opposition, Row, Text, Texts, Weights

LARGEST = "largest attention"
SHUFFLED = "median change when shuffled"
_OPPOSED = frozenset({"uid", "units", "adversary"})
_NULLS = ("PermutedAttention", "Random")
_NAMES = {"RawAttention": "attention"}
_NOTES = {
    "RawAttention": "the model's own weights, which sum to 1",
    "Gradient": "how the model's answer reacts to each word, to first order; negative where the word speaks against it",
    "LeaveOneOut": "how the model's answer changes when the word is deleted and the rest is read anew",
    "PermutedAttention": "the model's own weights dealt to the words at random, for comparison",
    "Random": "random numbers, for comparison",
}
_FAR = "weights as far from attention as possible that move the output by at most epsilon"
_UNTOLD = ("subject", "limit", "revision", "type", "split", "method", "solver", "epsilon")
_ORDER = ("RawAttention", "exact", "Gradient", "LeaveOneOut", "other", "search", "null")
"""Rows stand in this order."""

Opened = tuple[Finished, Artefact]


@dataclass(frozen=True)
class _Instance:
    """One text as the attributions tell it; `kept` are the units that can receive a score."""

    units: tuple[str, ...]
    kept: NDArray[np.int64]
    second: int
    predicted: int | None
    probability: float | None
    label: float | None


@dataclass(frozen=True)
class _Scores:
    """The scores of one text: of all its units, or of those at `places` and zero elsewhere."""

    values: NDArray[np.float64]
    places: NDArray[np.int64] | None = None
    opposition: Opposition | None = None

    def on(self, text: _Instance) -> Weights | None:
        """The weights of the units that can receive one; None where these scores are of another text."""
        whole = self.values
        if self.places is not None:
            if len(self.places) != len(whole) or self.places.max(initial=-1) >= len(text.units):
                return None
            whole = np.zeros(len(text.units))
            whole[self.places] = self.values
        return Weights(whole[text.kept], self.opposition) if len(whole) == len(text.units) else None


@dataclass(frozen=True)
class _Source:
    """One row over all texts; `rank` sorts rows."""

    row: Row
    rank: tuple[int, float, str]
    scores: Mapping[str, _Scores]


def collected(shelf: Shelf) -> Texts:
    """The texts of one subject with every stored row and number, sorted by uid."""
    opened = [(each, each.open()) for each in (*shelf.methods, *shelf.trials)]
    methods = [each for each in opened if each[0].kind == "Attributed" and set(each[1].table.columns) >= NEEDED]
    known: dict[str, _Instance] = {}
    for _, artefact in methods:
        known |= _instances(artefact.table[~artefact.table["uid"].isin(list(known))])
    sources = _sources(methods, [each for each in opened if each[0].kind == "Adversary"])
    figures = _figures([each for each in opened if each[0].kind != "Attributed"], sources)
    return Texts(
        about=shelf.about,
        classes=_classes(shelf.model),
        rows=tuple(source.row for source in sources),
        figures=tuple(figures),
        texts=tuple(_text(uid, known[uid], sources, figures) for uid in sorted(sorted(known), key=natural)),
        remarks=_remarks(opened, len(known), sources),
    )


def _text(uid: str, text: _Instance, sources: Sequence[_Source], figures: Mapping[str, Mapping[str, float]]) -> Text:
    scores = [source.scores.get(uid) for source in sources]
    return Text(
        uid,
        tuple(text.units[place] for place in text.kept),
        int(np.searchsorted(text.kept, text.second)) if text.second else 0,
        text.predicted,
        text.probability,
        text.label,
        tuple(column.get(uid) for column in figures.values()),
        tuple(None if each is None else each.on(text) for each in scores),
    )


def _instances(table: pd.DataFrame) -> dict[str, _Instance]:
    columns = [_column(table, name) for name in ("units", "scored", "segments", "predicted", "probability", "label")]
    return {
        str(uid): _Instance(
            tuple(map(str, units)),
            np.arange(len(units)) if scored is None else np.flatnonzero(np.asarray(scored, bool)),
            0 if segments is None or 1 not in segments else list(segments).index(1),
            None if predicted is None else int(predicted),
            probability,
            label,
        )
        for uid, units, scored, segments, predicted, probability, label in zip(table["uid"], *columns, strict=True)
    }


def _column(table: pd.DataFrame, name: str) -> list[object]:
    """The column's values, None where undefined or where there is no such column."""
    if name not in table:
        return [None] * len(table)
    return [None if isinstance(value, float) and value != value else value for value in table[name].tolist()]


def _sources(methods: Sequence[Opened], adversaries: Sequence[Opened]) -> list[_Source]:
    usable = [each for each in adversaries if set(each[1].table.columns) >= _OPPOSED]
    found = _attributions(methods) + _adversaries(usable)
    if usable and not any(method_of(each) == "RawAttention" for each, _ in methods):
        # The adversary was sought against the model's own attention, which was kept beside it.
        table = usable[0][1].table
        if "attention" in table:
            row = Row("attention", _NOTES["RawAttention"])
            found.append(_Source(row, (0, 0.0, ""), _placed(table, "attention")))
    found.sort(key=lambda source: source.rank)
    if not any(source.row.is_opposed and source.row.is_shown for source in found):
        return [replace(each, row=replace(each.row, is_shown=True)) if each.row.is_opposed else each for each in found]
    return found


def _attributions(methods: Sequence[Opened]) -> list[_Source]:
    found = []
    for (each, artefact), variant in zip(methods, _variants([_options(each) for each, _ in methods]), strict=True):
        method = method_of(each)
        name = _NAMES.get(method) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", method).lower()
        place = "null" if method in _NULLS else method if method in _ORDER else "other"
        row = Row(", ".join([name, *variant]), _NOTES.get(method, ""), is_shown=place != "null")
        values = zip(artefact.table["uid"], artefact.table["scores"], strict=True)
        scores = {str(uid): _Scores(np.asarray(list(some), float)) for uid, some in values}
        found.append(_Source(row, (_ORDER.index(place), 0.0, row.name), scores))
    return found


def _adversaries(adversaries: Sequence[Opened]) -> list[_Source]:
    found = []
    for (each, artefact), variant in zip(adversaries, _variants([_options(a) for a, _ in adversaries]), strict=True):
        solver, epsilon = str(each.recipe.get("solver", "exact")), each.recipe.get("epsilon")
        name = ", ".join(["other weights", solver, f"epsilon {epsilon}", *variant])
        how = "found by the paper's search" if solver == "search" else "proven where it says so"
        row = Row(name, f"{_FAR}, {how}", is_shown=solver == "exact", is_opposed=True)
        size = -float(epsilon) if isinstance(epsilon, int | float) else 0.0
        rank = (_ORDER.index("search" if solver == "search" else "exact"), size, name)
        found.append(_Source(row, rank, _placed(artefact.table, "adversary")))
    return found


def _placed(table: pd.DataFrame, column: str) -> dict[str, _Scores]:
    """Scores that were stored with the places of their units; those of an adversary with what it reached."""
    numbers = [_column(table, name) for name in ("epsilon_max", "bound", "change", "certified")]
    return {
        str(uid): _Scores(
            np.asarray(list(values), float),
            np.asarray(list(places), np.int64),
            None if column == "attention" else Opposition(divergence, bound, change, bool(certified)),
        )
        for uid, places, values, divergence, bound, change, certified in zip(
            table["uid"], table["units"], table[column], *numbers, strict=True
        )
    }


def _figures(trials: Sequence[Opened], sources: Sequence[_Source]) -> dict[str, dict[str, float]]:
    """Numbers that readers sort by, each by uid."""
    attention = [source.scores for source in sources if source.row.name == "attention"]
    largest = {uid: float(each.values.max(initial=0.0)) for scores in attention for uid, each in scores.items()}
    found = {LARGEST: largest} if largest else {}
    shufflings = [each for each in trials if each[0].kind == "Permutation" and "median_change" in each[1].table]
    for (_, artefact), variant in zip(shufflings, _variants([_options(each) for each, _ in shufflings]), strict=True):
        values = zip(artefact.table["uid"], _column(artefact.table, "median_change"), strict=True)
        found[", ".join([SHUFFLED, *variant])] = {str(uid): value for uid, value in values if isinstance(value, float)}
    return found


def _options(each: Finished) -> dict[str, Json]:
    """What a recipe was told, apart from what its name says anyhow."""
    method = each.recipe.get("method")
    own = {name: value for name, value in each.recipe.items() if name not in _UNTOLD}
    kind: list[Json] = [each.kind, each.recipe.get("solver"), each.recipe.get("epsilon")]
    return {**own, **(method if isinstance(method, dict) else {"type": compact(kind)})}


def _variants(recipes: Sequence[Mapping[str, Json]]) -> list[list[str]]:
    """For each recipe the options, in words, by which it differs from others of its type."""
    found = []
    for recipe in recipes:
        alike = [other for other in recipes if other["type"] == recipe["type"]]
        parting = [name for name in sorted(recipe) if any(other.get(name) != recipe[name] for other in alike)]
        found.append([f"{name} {_told(recipe[name])}" for name in parting])
    return found


def _told(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "all" if value is None else value if isinstance(value, str) else compact(value)


def _classes(model: Finished | None) -> tuple[str, ...]:
    names = None if model is None else model.open().notes.get("classes")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _remarks(opened: Iterable[Opened], count: int, sources: Sequence[_Source]) -> tuple[str, ...]:
    whole = [of for _, artefact in opened if isinstance(of := artefact.notes.get("of"), int)]
    found = (
        [f"These are {count} of {max(whole)} texts: the others were not examined."]
        if max(whole, default=0) > count
        else []
    )
    if not any(source.row.is_opposed for source in sources):
        found.append("No other weights with the same output are stored for this model: its trial has not run.")
    return tuple(found)
