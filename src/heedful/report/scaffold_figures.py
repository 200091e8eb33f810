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

from heedful.core.figures import Axis, Figure, Heatmap, Lines, Matrix, Series
from heedful.core.sealed import Finished, named
from heedful.core.workspace import Artefact, Json
from heedful.report import scaffold_pictures
from heedful.report.examples import FEWEST
from heedful.report.runs import Run, mapping
from heedful.report.scaffold import methods_of
from heedful.report.scaffold_print import INTEGRATED, METHODS, SMAT, WORDS, method_row, row_of
from heedful.report.shelves import NEEDED

LONGEST = 60
"""Words of the longest text that is shown, if there are shorter ones."""


@dataclass(frozen=True)
class Student:
    """One student of a trial, and what it left."""

    arm: str
    seed: int
    reached: float
    found: Finished
    is_learned: bool

    @cached_property
    def artefact(self) -> Artefact:
        """Opened when it is asked for: a student's weights may be large."""
        return self.found.open()

    @property
    def history(self) -> pd.DataFrame:
        """A row per epoch."""
        rows = self.artefact.notes.get("history")
        return pd.DataFrame(rows if isinstance(rows, list) else [])


def of(run: Run, finished: Sequence[Finished]) -> tuple[Figure, ...]:
    """Curves, weights of heads and pictures for a simulability trial; nothing for others."""
    if run.trial.name != "simulability":
        return ()
    students = _students(run, finished)
    learned = [each for each in students if each.is_learned and _whole(each.artefact)]
    first = _medians(learned)[:1]
    weights = [Mix(each.arm, _weights(each.artefact)) for each in first]
    return (
        *_agreement(_medians(students)),
        *_heads_in_use(learned),
        *_maps(learned),
        *scaffold_pictures.mosaics(run.recipe["subject"], weights[0] if weights else None, finished),
    )


Mix = scaffold_pictures.Mix


def _whole(artefact: Artefact) -> bool:
    return "coefficients" in artefact.tensors


def _students(run: Run, finished: Sequence[Finished]) -> list[Student]:
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
        for student in map(mapping, students):
            key, stored = (arm, int(str(student["seed"]))), by_name.get(named(student))
            is_largest = mapping(student["classroom"])["size"] == int(largest["size"].iloc[0])
            if stored is not None and is_largest and key in reached:
                is_learned = row_of(mapping(student["explanation"])) == SMAT
                found.append(Student(*key, reached[key], stored, is_learned))
    return found


def _medians(students: Sequence[Student]) -> list[Student]:
    """The student of each arm in the middle, the lower one of two."""
    arms: dict[str, list[Student]] = {}
    for each in students:
        arms.setdefault(each.arm, []).append(each)
    ranked = (sorted(several, key=lambda each: (each.reached, each.seed)) for several in arms.values())
    return [several[(len(several) - 1) // 2] for several in ranked]


def _agreement(students: Sequence[Student]) -> Iterable[Lines]:
    """Agreement with the teacher on dev, epoch by epoch."""
    curves = [_curve(each.arm, each.history, "simulability") for each in students]
    known = tuple(curve for curve in curves if curve is not None)
    if known:
        title = "Learning curves: agreement with the teacher on held-out examples, the median student of each kind"
        yield Lines(title, Axis("epoch"), Axis("agreement"), known)


def _heads_in_use(students: Sequence[Student]) -> Iterable[Lines]:
    """How many heads have weight, and the heaviest weight, epoch by epoch, for every seed of every learned mix."""
    for title, axis, column in (
        ("Learning curves of the explainer: heads in use", "heads with weight", "support"),
        ("Learning curves of the explainer: the heaviest head", "largest weight", "largest"),
    ):
        curves = [_curve(f"{each.arm}, seed {each.seed}", each.history, column) for each in students]
        known = tuple(curve for curve in curves if curve is not None)
        if known:
            yield Lines(title, Axis("epoch"), Axis(axis), known)


def _curve(name: str, history: pd.DataFrame, column: str) -> tuple[Series, Series] | None:
    if column not in history or not len(history):
        return None
    epochs, values = (tuple(history[each].astype(float)) for each in ("epoch", column))
    return Series(name, epochs), Series(name, values)


def _maps(students: Sequence[Student]) -> Iterable[Matrix]:
    """Figure 5: the weight of each head, layer by layer, of the median seed and on average."""
    arms: dict[str, list[Student]] = {}
    for each in students:
        arms.setdefault(each.arm, []).append(each)
    for arm, several in arms.items():
        (middle,) = _medians(several)
        weights = _weights(middle.artefact)
        used = f"{int((weights != 0).sum())} of {weights.numel()} heads in use"
        yield _matrix(f"Figure 5: weights of the heads, {arm}, seed {middle.seed} (the median); {used}", weights)
        if len(several) > 1:
            mean = torch.stack([_weights(each.artefact) for each in several]).mean(0)
            yield _matrix(f"Figure 5: the same, mean of {len(several)} seeds", mean)


def _matrix(title: str, weights: Tensor) -> Matrix:
    layers, heads = weights.shape
    values = tuple(tuple(row) for row in weights.tolist())
    low, high = min(0.0, float(weights.min())), float(weights.max())
    rows = tuple(f"layer {place}" for place in range(layers))
    return Matrix(title, rows, tuple(f"head {place}" for place in range(heads)), values, (low, high or 1.0))


def _weights(artefact: Artefact) -> Tensor:
    """Coefficients `[layer head]`."""
    layers = artefact.notes["layers"]
    assert isinstance(layers, int)
    return artefact.tensors["coefficients"].double().reshape(layers, -1)


def heatmaps(run: Run, finished: Sequence[Finished]) -> tuple[Heatmap, ...]:
    """Figure 3: three explanations of the same texts side by side, where they and the texts' words are stored."""
    found = _explained(run, finished)
    table = run.artefact.table
    if not found or not len(table):
        return ()
    last = table[(table["method"] == list(found)[-1]) & (table["status"] == "judged")]
    areas = last.groupby("uid", sort=True)["auc"].mean().dropna()
    words = next(iter(found.values())).set_index("uid")
    scored = words["scored"].map(sum)
    short = areas[areas.index.map(scored.get).isin(range(FEWEST, LONGEST + 1))]
    ordered = (short if len(short) else areas).sort_values(kind="stable")
    classes = None if run.subject is None else run.subject.notes.get("classes")
    names = [str(name) for name in classes] if isinstance(classes, list) else None
    told = _Told(table, names, methods_of(run.recipe, table))
    return tuple(_heatmap(title, str(uid), found, told) for title, uid in _chosen(ordered))


def _explained(run: Run, finished: Sequence[Finished]) -> dict[str, pd.DataFrame]:
    """Up to three tables by method: a gradient, static attention, and what was learned."""
    places = run.artefact.table.sort_values("place").drop_duplicates("place")["method"].astype(str).tolist()
    rows: list[tuple[str, str, Finished | None]] = []
    by_name = {each.name: each for each in finished}
    methods = [mapping(method) for method in _list(run.recipe.get("methods"))]
    for method in (each for each in methods if each["type"] != "Random"):
        rows.append((places[len(rows)], method_row(method), _attributed(run.recipe, method, finished)))
    for pair in _list(run.recipe.get("learned")):
        assert isinstance(pair, list)
        rows.append((places[len(rows)], SMAT, by_name.get(named(mapping(pair[1])))))
    stored = [(name, each.open().table) for name, _, each in _picked(rows) if each is not None]
    return {name: table for name, table in stored if set(table.columns) >= NEEDED}


def _picked(rows: Sequence[tuple[str, str, Finished | None]]) -> list[tuple[str, str, Finished | None]]:
    """One of each kind that is stored; of gradients integrated ones first."""
    stored = [row for row in rows if row[2] is not None]
    gradients = [row for row in stored if row[1] in METHODS.values()]
    learned = [row for row in stored if row[1] == SMAT]
    others = [row for row in stored if row not in gradients and row not in learned]
    gradients.sort(key=lambda row: row[1] != INTEGRATED)
    others.sort(key=lambda row: row[1] == "")
    return [*gradients[:1], *others[:1], *learned[:1]]


def _attributed(
    recipe: Mapping[str, Json], method: Mapping[str, Json], finished: Sequence[Finished]
) -> Finished | None:
    wanted = {name: recipe.get(name) for name in ("subject", "split", "limit")} | {"method": dict(method)}
    same = (each for each in finished if each.kind == "Attributed")
    return next((each for each in same if all(each.recipe.get(name) == value for name, value in wanted.items())), None)


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _chosen(areas: pd.Series) -> list[tuple[str, object]]:
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
class _Told:
    """The rows of a plausibility trial, the names of the classes, and print's rows by method.

    Args:
        classes: none of a model that gives a number; None where the model is not there to tell.
    """

    table: pd.DataFrame
    classes: Sequence[str] | None
    rows: Mapping[str, str]

    def words(self, method: str) -> str:
        """What a method is called."""
        return WORDS.get(self.rows.get(method, ""), method)


def _heatmap(title: str, uid: str, found: Mapping[str, pd.DataFrame], told: _Told) -> Heatmap:
    rows = {name: table[table["uid"] == uid].iloc[0] for name, table in found.items()}
    first = next(iter(rows.values()))
    kept = [place for place, scored in enumerate(first["scored"]) if scored]
    series = tuple(
        _series(told.words(name), [float(row["scores"][place]) for place in kept]) for name, row in rows.items()
    )
    return Heatmap(title, tuple(str(first["units"][place]) for place in kept), series, _caption(uid, first, told))


def _series(name: str, scores: Sequence[float]) -> Series:
    """Scores as they are; shares that add up to 1 as what they are above and below an even share."""
    if min(scores, default=-1.0) < 0 or not math.isclose(sum(scores), 1.0, rel_tol=1e-3):
        return Series(name, tuple(scores))
    return Series(f"{name} (over an even share)", tuple(score - 1 / len(scores) for score in scores))


def _answer(row: pd.Series, classes: Sequence[str] | None) -> str:
    """The class and how sure the model is of it, or its number."""
    shown = f"{row['probability']:.2f}".replace("-", "\N{MINUS SIGN}")
    if classes is None:
        return f"output {int(row['predicted'])} ({shown})"
    return f"{classes[int(row['predicted'])]} ({shown})" if classes else shown


def _caption(uid: str, row: pd.Series, told: _Told) -> str:
    own = told.table[(told.table["uid"] == uid) & (told.table["status"] == "judged")]
    areas = own.drop_duplicates(["method", "part"])
    words = [
        " ".join(filter(None, (told.words(str(each.method)), str(each.part), f"{float(str(each.auc)):.2f}")))
        for each in areas.itertuples()
        if each.kind in ("method", "null")
    ]
    return f"the teacher says {_answer(row, told.classes)}; AUC with what people marked: {', '.join(words)}"
