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

from heedful.report.shelves import REQUIRED_COLUMNS, ModelArtefacts, method_type, natural_sort_key
from heedful.report.texts import AdversaryResult, ExplanationRow, ExplorerText, ExplorerTexts, TokenWeights
from heedful.store.recipe import Artefact, Json, dump_compact_json
from heedful.store.workspace import IndexEntry

MAX_ATTENTION_LABEL = "largest attention"
PERMUTATION_LABEL = "median change when shuffled"
_ADVERSARY_COLUMNS = frozenset({"uid", "units", "adversary"})
_CONTROLS = ("PermutedAttention", "Random")
_METHOD_NAMES = {"RawAttention": "attention"}
_METHOD_NOTES = {
    "RawAttention": "the model's own weights, which sum to 1",
    "Gradient": "how the model's answer reacts to each word, to first order; negative where the word speaks against it",
    "LeaveOneOut": "how the model's answer changes when the word is deleted and the rest is read anew",
    "PermutedAttention": "the model's own weights dealt to the words at random, for comparison",
    "Random": "random numbers, for comparison",
}
_ADVERSARY_NOTE = "weights as far from attention as possible that move the output by at most epsilon"
_HIDDEN_OPTIONS = ("subject", "limit", "revision", "type", "split", "method", "solver", "epsilon")
_ROW_ORDER = ("RawAttention", "exact", "Gradient", "LeaveOneOut", "other", "search", "null")
"""Rows stand in this order."""

OpenedArtefact = tuple[IndexEntry, Artefact]


@dataclass(frozen=True)
class _Instance:
    """One text as the attributions tell it; `kept` are the units that can receive a score."""

    units: tuple[str, ...]
    scored: NDArray[np.int64]
    second_start: int
    predicted: int | None
    probability: float | None
    label: float | None


@dataclass(frozen=True)
class _TextScores:
    """The scores of one text: of all its units, or of those at `places` and zero elsewhere."""

    values: NDArray[np.float64]
    positions: NDArray[np.int64] | None = None
    adversary: AdversaryResult | None = None

    def to_weights(self, text: _Instance) -> TokenWeights | None:
        """The weights of the units that can receive one; None where these scores are of another text."""
        whole = self.values
        if self.positions is not None:
            if len(self.positions) != len(whole) or self.positions.max(initial=-1) >= len(text.units):
                return None
            whole = np.zeros(len(text.units))
            whole[self.positions] = self.values
        return TokenWeights(whole[text.scored], self.adversary) if len(whole) == len(text.units) else None


@dataclass(frozen=True)
class _RowSource:
    """One row over all texts; `rank` sorts rows."""

    row: ExplanationRow
    rank: tuple[int, float, str]
    scores: Mapping[str, _TextScores]


def collect_texts(shelf: ModelArtefacts) -> ExplorerTexts:
    """The texts of one subject with every stored row and number, sorted by uid."""
    opened = [(each, each.load()) for each in (*shelf.attributions, *shelf.trials)]
    methods = [
        each
        for each in opened
        if each[0].recipe_class == "AttributionTable" and set(each[1].table.columns) >= REQUIRED_COLUMNS
    ]
    known: dict[str, _Instance] = {}
    for _, artefact in methods:
        known |= _read_instances(artefact.table[~artefact.table["uid"].isin(list(known))])
    sources = _row_sources(methods, [each for each in opened if each[0].recipe_class == "AdversarialAttention"])
    figures = _text_metrics([each for each in opened if each[0].recipe_class != "AttributionTable"], sources)
    return ExplorerTexts(
        about=shelf.about,
        classes=_class_names(shelf.model),
        rows=tuple(source.row for source in sources),
        figures=tuple(figures),
        texts=tuple(
            _build_text(uid, known[uid], sources, figures) for uid in sorted(sorted(known), key=natural_sort_key)
        ),
        remarks=_text_remarks(opened, len(known), sources),
    )


def _build_text(
    uid: str, text: _Instance, sources: Sequence[_RowSource], figures: Mapping[str, Mapping[str, float]]
) -> ExplorerText:
    scores = [source.scores.get(uid) for source in sources]
    return ExplorerText(
        uid,
        tuple(text.units[place] for place in text.scored),
        int(np.searchsorted(text.scored, text.second_start)) if text.second_start else 0,
        text.predicted,
        text.probability,
        text.label,
        tuple(column.get(uid) for column in figures.values()),
        tuple(None if each is None else each.to_weights(text) for each in scores),
    )


def _read_instances(table: pd.DataFrame) -> dict[str, _Instance]:
    columns = [
        _column_values(table, name) for name in ("units", "scored", "segments", "predicted", "probability", "label")
    ]
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


def _column_values(table: pd.DataFrame, name: str) -> list[object]:
    """The column's values, None where undefined or where there is no such column."""
    if name not in table:
        return [None] * len(table)
    return [None if isinstance(value, float) and value != value else value for value in table[name].tolist()]


def _row_sources(methods: Sequence[OpenedArtefact], adversaries: Sequence[OpenedArtefact]) -> list[_RowSource]:
    usable = [each for each in adversaries if set(each[1].table.columns) >= _ADVERSARY_COLUMNS]
    found = _attribution_sources(methods) + _adversary_sources(usable)
    if usable and not any(method_type(each) == "RawAttention" for each, _ in methods):
        # The adversary was sought against the model's own attention, which was kept beside it.
        table = usable[0][1].table
        if "attention" in table:
            row = ExplanationRow("attention", _METHOD_NOTES["RawAttention"])
            found.append(_RowSource(row, (0, 0.0, ""), _scores_by_uid(table, "attention")))
    found.sort(key=lambda source: source.rank)
    if not any(source.row.is_adversarial and source.row.is_shown for source in found):
        return [
            replace(each, row=replace(each.row, is_shown=True)) if each.row.is_adversarial else each for each in found
        ]
    return found


def _attribution_sources(methods: Sequence[OpenedArtefact]) -> list[_RowSource]:
    found = []
    for (each, artefact), variant in zip(
        methods, _distinctive_options([_recipe_options(each) for each, _ in methods]), strict=True
    ):
        method = method_type(each)
        name = _METHOD_NAMES.get(method) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", method).lower()
        place = "null" if method in _CONTROLS else method if method in _ROW_ORDER else "other"
        row = ExplanationRow(", ".join([name, *variant]), _METHOD_NOTES.get(method, ""), is_shown=place != "null")
        values = zip(artefact.table["uid"], artefact.table["scores"], strict=True)
        scores = {str(uid): _TextScores(np.asarray(list(some), float)) for uid, some in values}
        found.append(_RowSource(row, (_ROW_ORDER.index(place), 0.0, row.name), scores))
    return found


def _adversary_sources(adversaries: Sequence[OpenedArtefact]) -> list[_RowSource]:
    found = []
    for (each, artefact), variant in zip(
        adversaries, _distinctive_options([_recipe_options(a) for a, _ in adversaries]), strict=True
    ):
        solver, epsilon = str(each.recipe.get("solver", "exact")), each.recipe.get("epsilon")
        name = ", ".join(["other weights", solver, f"epsilon {epsilon}", *variant])
        how = "found by the paper's search" if solver == "search" else "proven where it says so"
        row = ExplanationRow(name, f"{_ADVERSARY_NOTE}, {how}", is_shown=solver == "exact", is_adversarial=True)
        size = -float(epsilon) if isinstance(epsilon, int | float) else 0.0
        rank = (_ROW_ORDER.index("search" if solver == "search" else "exact"), size, name)
        found.append(_RowSource(row, rank, _scores_by_uid(artefact.table, "adversary")))
    return found


def _scores_by_uid(table: pd.DataFrame, column: str) -> dict[str, _TextScores]:
    """Scores that were stored with the places of their units; those of an adversary with what it reached."""
    numbers = [_column_values(table, name) for name in ("epsilon_max", "bound", "change", "certified")]
    return {
        str(uid): _TextScores(
            np.asarray(list(values), float),
            np.asarray(list(places), np.int64),
            None if column == "attention" else AdversaryResult(divergence, bound, change, bool(certified)),
        )
        for uid, places, values, divergence, bound, change, certified in zip(
            table["uid"], table["units"], table[column], *numbers, strict=True
        )
    }


def _text_metrics(trials: Sequence[OpenedArtefact], sources: Sequence[_RowSource]) -> dict[str, dict[str, float]]:
    """Numbers that readers sort by, each by uid."""
    attention = [source.scores for source in sources if source.row.name == "attention"]
    largest = {uid: float(each.values.max(initial=0.0)) for scores in attention for uid, each in scores.items()}
    found = {MAX_ATTENTION_LABEL: largest} if largest else {}
    shufflings = [each for each in trials if each[0].recipe_class == "Permutation" and "median_change" in each[1].table]
    for (_, artefact), variant in zip(
        shufflings, _distinctive_options([_recipe_options(each) for each, _ in shufflings]), strict=True
    ):
        values = zip(artefact.table["uid"], _column_values(artefact.table, "median_change"), strict=True)
        found[", ".join([PERMUTATION_LABEL, *variant])] = {
            str(uid): value for uid, value in values if isinstance(value, float)
        }
    return found


def _recipe_options(each: IndexEntry) -> dict[str, Json]:
    """What a recipe was told, apart from what its name says anyhow."""
    method = each.recipe.get("method")
    own = {name: value for name, value in each.recipe.items() if name not in _HIDDEN_OPTIONS}
    kind: list[Json] = [each.recipe_class, each.recipe.get("solver"), each.recipe.get("epsilon")]
    return {**own, **(method if isinstance(method, dict) else {"type": dump_compact_json(kind)})}


def _distinctive_options(recipes: Sequence[Mapping[str, Json]]) -> list[list[str]]:
    """For each recipe the options, in words, by which it differs from others of its type."""
    found = []
    for recipe in recipes:
        alike = [other for other in recipes if other["type"] == recipe["type"]]
        parting = [name for name in sorted(recipe) if any(other.get(name) != recipe[name] for other in alike)]
        found.append([f"{name} {_format_option(recipe[name])}" for name in parting])
    return found


def _format_option(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "all" if value is None else value if isinstance(value, str) else dump_compact_json(value)


def _class_names(model: IndexEntry | None) -> tuple[str, ...]:
    names = None if model is None else model.load().notes.get("classes")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _text_remarks(opened: Iterable[OpenedArtefact], count: int, sources: Sequence[_RowSource]) -> tuple[str, ...]:
    whole = [of for _, artefact in opened if isinstance(of := artefact.notes.get("of"), int)]
    found = (
        [f"These are {count} of {max(whole)} texts: the others were not examined."]
        if max(whole, default=0) > count
        else []
    )
    if not any(source.row.is_adversarial for source in sources):
        found.append("No other weights with the same output are stored for this model: its trial has not run.")
    return tuple(found)
