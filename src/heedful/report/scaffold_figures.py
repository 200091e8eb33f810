"""What students and explainers did, drawn from what they left: curves, weights of heads, texts and pictures.

Students are found by the recipe of the trial that examined them. Of each arm the student with the median simulability
in the largest class is shown, as the paper does; of learned mixes all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Figure, Heatmap, Lines, Matrix, Series
from heedful.report import scaffold_pictures
from heedful.report.examples import MIN_EXAMPLE_WORDS
from heedful.report.runs import Run, json_object
from heedful.report.scaffold import published_rows_by_method
from heedful.report.scaffold_print import (
    INTEGRATED_GRADIENTS,
    ROW_LABELS,
    ROWS_BY_METHOD,
    SMAT,
    explanation_row,
    method_row,
)
from heedful.report.shelves import REQUIRED_COLUMNS
from heedful.store.recipe import Artefact, Json, artefact_name
from heedful.store.workspace import IndexEntry

MAX_TEXT_WORDS = 60
"""Words of the longest text that is shown, if there are shorter ones."""


@dataclass(frozen=True)
class StudentResult:
    """One student of a trial, and what it left."""

    arm: str
    seed: int
    simulability: float
    stored: IndexEntry
    is_learned: bool

    @cached_property
    def artefact(self) -> Artefact:
        """Opened when it is asked for: a student's weights may be large."""
        return self.stored.load()

    @property
    def history(self) -> pd.DataFrame:
        """A row per epoch."""
        rows = self.artefact.notes.get("history")
        return pd.DataFrame(rows if isinstance(rows, list) else [])


def simulability_figures(run: Run, finished: Sequence[IndexEntry]) -> tuple[Figure, ...]:
    """Curves, weights of heads and pictures for a simulability trial; nothing for others."""
    if run.trial.name != "simulability":
        return ()
    students = _students_of_largest_size(run, finished)
    learned = [each for each in students if each.is_learned and _has_coefficients(each.artefact)]
    first = _median_students(learned)[:1]
    weights = [Mix(each.arm, _head_weights(each.artefact)) for each in first]
    return (
        *_agreement_curves(_median_students(students)),
        *_head_use_curves(learned),
        *_head_weight_matrices(learned),
        *scaffold_pictures.picture_mosaics(run.recipe["subject"], weights[0] if weights else None, finished),
    )


Mix = scaffold_pictures.HeadWeights


def _has_coefficients(artefact: Artefact) -> bool:
    return "coefficients" in artefact.tensors


def _students_of_largest_size(run: Run, finished: Sequence[IndexEntry]) -> list[StudentResult]:
    """All students of the largest class that are still in the workspace."""
    by_name = {each.name: each for each in finished}
    table = run.artefact.table
    largest = table[table["size"] == table["size"].max()]
    reached = {(str(r.arm), int(str(r.seed))): float(str(r.simulability)) for r in largest.itertuples()}
    found = []
    arms = run.recipe["arms"]
    assert isinstance(arms, list)
    for pair in arms:
        assert isinstance(pair, list)
        arm, students = str(pair[0]), pair[1]
        assert isinstance(students, list)
        for student in map(json_object, students):
            key, stored = (arm, int(str(student["seed"]))), by_name.get(artefact_name(student))
            is_largest = json_object(student["data"])["train_size"] == int(largest["size"].iloc[0])
            if stored is not None and is_largest and key in reached:
                is_learned = explanation_row(json_object(student["explanation"])) == SMAT
                found.append(StudentResult(*key, reached[key], stored, is_learned))
    return found


def _median_students(students: Sequence[StudentResult]) -> list[StudentResult]:
    """The student of each arm in the middle, the lower one of two."""
    arms: dict[str, list[StudentResult]] = {}
    for each in students:
        arms.setdefault(each.arm, []).append(each)
    ranked = (sorted(several, key=lambda each: (each.simulability, each.seed)) for several in arms.values())
    return [several[(len(several) - 1) // 2] for several in ranked]


def _agreement_curves(students: Sequence[StudentResult]) -> Iterable[Lines]:
    """Agreement with the teacher on dev, epoch by epoch."""
    curves = [_history_curve(each.arm, each.history, "simulability") for each in students]
    known = tuple(curve for curve in curves if curve is not None)
    if known:
        title = "Learning curves: agreement with the teacher on held-out examples, the median student of each kind"
        yield Lines(title, Axis("epoch"), Axis("agreement"), known)


def _head_use_curves(students: Sequence[StudentResult]) -> Iterable[Lines]:
    """How many heads have weight, and the heaviest weight, epoch by epoch, for every seed of every learned mix."""
    for title, axis, column in (
        ("Learning curves of the explainer: heads in use", "heads with weight", "support"),
        ("Learning curves of the explainer: the heaviest head", "largest weight", "largest"),
    ):
        curves = [_history_curve(f"{each.arm}, seed {each.seed}", each.history, column) for each in students]
        known = tuple(curve for curve in curves if curve is not None)
        if known:
            yield Lines(title, Axis("epoch"), Axis(axis), known)


def _history_curve(name: str, history: pd.DataFrame, column: str) -> tuple[Series, Series] | None:
    if column not in history or not len(history):
        return None
    epochs, values = (tuple(history[each].astype(float)) for each in ("epoch", column))
    return Series(name, epochs), Series(name, values)


def _head_weight_matrices(students: Sequence[StudentResult]) -> Iterable[Matrix]:
    """Figure 5: the weight of each head, layer by layer, of the median seed and on average."""
    arms: dict[str, list[StudentResult]] = {}
    for each in students:
        arms.setdefault(each.arm, []).append(each)
    for arm, several in arms.items():
        (middle,) = _median_students(several)
        weights = _head_weights(middle.artefact)
        used = f"{int((weights != 0).sum())} of {weights.numel()} heads in use"
        yield _head_weight_matrix(
            f"Figure 5: weights of the heads, {arm}, seed {middle.seed} (the median); {used}", weights
        )
        if len(several) > 1:
            mean = torch.stack([_head_weights(each.artefact) for each in several]).mean(0)
            yield _head_weight_matrix(f"Figure 5: the same, mean of {len(several)} seeds", mean)


def _head_weight_matrix(title: str, weights: Tensor) -> Matrix:
    layers, heads = weights.shape
    values = tuple(tuple(row) for row in weights.tolist())
    low, high = min(0.0, float(weights.min())), float(weights.max())
    rows = tuple(f"layer {place}" for place in range(layers))
    return Matrix(title, rows, tuple(f"head {place}" for place in range(heads)), values, (low, high or 1.0))


def _head_weights(artefact: Artefact) -> Tensor:
    """Coefficients `[layer head]`."""
    layers = artefact.notes["layers"]
    assert isinstance(layers, int)
    return artefact.tensors["coefficients"].double().reshape(layers, -1)


def plausibility_heatmaps(run: Run, finished: Sequence[IndexEntry]) -> tuple[Heatmap, ...]:
    """Figure 3: three explanations of the same texts side by side, where they and the texts' words are stored."""
    found = _attributions_by_method(run, finished)
    table = run.artefact.table
    if not found or not len(table):
        return ()
    last = table[(table["method"] == list(found)[-1]) & (table["status"] == "judged")]
    areas = last.groupby("uid", sort=True)["auc"].mean().dropna()
    words = next(iter(found.values())).set_index("uid")
    scored = words["scored"].map(sum)
    short = areas[areas.index.map(scored.get).isin(range(MIN_EXAMPLE_WORDS, MAX_TEXT_WORDS + 1))]
    ordered = (short if len(short) else areas).sort_values(kind="stable")
    classes = None if run.subject is None else run.subject.notes.get("classes")
    names = [str(name) for name in classes] if isinstance(classes, list) else None
    told = _PlausibilityContext(table, names, published_rows_by_method(run.recipe, table))
    return tuple(_text_heatmap(title, str(uid), found, told) for title, uid in _choose_texts(ordered))


def _attributions_by_method(run: Run, finished: Sequence[IndexEntry]) -> dict[str, pd.DataFrame]:
    """Up to three tables by method: a gradient, static attention, and what was learned."""
    places = run.artefact.table.sort_values("place").drop_duplicates("place")["method"].astype(str).tolist()
    rows: list[tuple[str, str, IndexEntry | None]] = []
    by_name = {each.name: each for each in finished}
    methods = [json_object(method) for method in _recipe_list(run.recipe.get("methods"))]
    for method in (each for each in methods if each["type"] != "Random"):
        rows.append((places[len(rows)], method_row(method), _find_attribution(run.recipe, method, finished)))
    for pair in _recipe_list(run.recipe.get("learned_explainers")):
        assert isinstance(pair, list)
        rows.append((places[len(rows)], SMAT, by_name.get(artefact_name(json_object(pair[1])))))
    stored = [(name, each.load().table) for name, _, each in _pick_one_per_kind(rows) if each is not None]
    return {name: table for name, table in stored if set(table.columns) >= REQUIRED_COLUMNS}


def _pick_one_per_kind(
    rows: Sequence[tuple[str, str, IndexEntry | None]],
) -> list[tuple[str, str, IndexEntry | None]]:
    """One of each kind that is stored; of gradients integrated ones first."""
    stored = [row for row in rows if row[2] is not None]
    gradients = [row for row in stored if row[1] in ROWS_BY_METHOD.values()]
    learned = [row for row in stored if row[1] == SMAT]
    others = [row for row in stored if row not in gradients and row not in learned]
    gradients.sort(key=lambda row: row[1] != INTEGRATED_GRADIENTS)
    others.sort(key=lambda row: row[1] == "")
    return [*gradients[:1], *others[:1], *learned[:1]]


def _find_attribution(
    recipe: Mapping[str, Json], method: Mapping[str, Json], finished: Sequence[IndexEntry]
) -> IndexEntry | None:
    wanted = {name: recipe.get(name) for name in ("subject", "split", "limit")} | {"method": dict(method)}
    same = (each for each in finished if each.recipe_class == "AttributionTable")
    return next((each for each in same if all(each.recipe.get(name) == value for name, value in wanted.items())), None)


def _recipe_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _choose_texts(areas: pd.Series) -> list[tuple[str, object]]:
    """Both ends and the middle, so that nothing is chosen to please."""
    if len(areas) < 3:
        return [("Figure 3: a text", uid) for uid in areas.index[:1]]
    uids = list(areas.index)
    return [
        ("Figure 3: people and the last explanation agree most here", uids[-1]),
        ("Figure 3: a typical text", uids[len(uids) // 2]),
        ("Figure 3: they agree least here", uids[0]),
    ]


@dataclass(frozen=True)
class _PlausibilityContext:
    """The rows of a plausibility trial, the names of the classes, and print's rows by method.

    Args:
        classes: none of a model that gives a number; None where the model is not there to tell.
    """

    table: pd.DataFrame
    classes: Sequence[str] | None
    published_rows: Mapping[str, str]

    def method_label(self, method: str) -> str:
        """What a method is called."""
        return ROW_LABELS.get(self.published_rows.get(method, ""), method)


def _text_heatmap(title: str, uid: str, found: Mapping[str, pd.DataFrame], told: _PlausibilityContext) -> Heatmap:
    rows = {name: table[table["uid"] == uid].iloc[0] for name, table in found.items()}
    first = next(iter(rows.values()))
    kept = [place for place, scored in enumerate(first["scored"]) if scored]
    series = tuple(
        _weight_series(told.method_label(name), [float(row["scores"][place]) for place in kept])
        for name, row in rows.items()
    )
    return Heatmap(title, tuple(str(first["units"][place]) for place in kept), series, _text_caption(uid, first, told))


def _weight_series(name: str, scores: Sequence[float]) -> Series:
    """Scores as they are; shares that add up to 1 as what they are above and below an even share."""
    if min(scores, default=-1.0) < 0 or not math.isclose(sum(scores), 1.0, rel_tol=1e-3):
        return Series(name, tuple(scores))
    return Series(f"{name} (over an even share)", tuple(score - 1 / len(scores) for score in scores))


def _format_prediction(row: pd.Series, classes: Sequence[str] | None) -> str:
    """The class and how sure the model is of it, or its number."""
    shown = f"{row['probability']:.2f}".replace("-", "\N{MINUS SIGN}")
    if classes is None:
        return f"output {int(row['predicted'])} ({shown})"
    return f"{classes[int(row['predicted'])]} ({shown})" if classes else shown


def _text_caption(uid: str, row: pd.Series, told: _PlausibilityContext) -> str:
    own = told.table[(told.table["uid"] == uid) & (told.table["status"] == "judged")]
    areas = own.drop_duplicates(["method", "part"])
    words = [
        " ".join(filter(None, (told.method_label(str(each.method)), str(each.part), f"{float(str(each.auc)):.2f}")))
        for each in areas.itertuples()
        if each.kind in ("method", "null")
    ]
    return f"the teacher says {_format_prediction(row, told.classes)}; AUC with what people marked: {', '.join(words)}"
