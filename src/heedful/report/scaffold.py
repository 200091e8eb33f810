"""Learning to Scaffold over all corpora: simulability and plausibility in the paper's form, print beside ours.

Tables 1, 3 and 5 (students by explanation and size of their class), 2 and 6 (words that people marked), 7 (what makes
weights of phi). The study with people (table 4) is not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import pandas as pd

from heedful.core.figures import Axis, Bars, Figure, Series
from heedful.core.workspace import Json
from heedful.report import scaffold_print as printed
from heedful.report.content import Cell, Pair, TableView
from heedful.report.scaffold_print import NORMALISERS, SMAT, Spread, doubtful, doubts, method_row, row_of
from heedful.report.tabulating import Told, known

NAME = "scaffold"
UNSOUND = "†"
"""Marks what print cannot mean."""
_NO_EXPLANATION = "no explanation"
_ORDERS = {"size": ", ranked by the size of their scores", "against": ", lowest scores first"}
_VERDICTS = {"helps": "helps", "does_not_help": "does not help", "undecided": "undecided"}


def tables(told: Sequence[Told]) -> tuple[TableView, ...]:
    """All tables as far as there is something to tell, and what is doubtful in print."""
    taught = _taught(told)
    marked = [each for each in told if each.trial == "plausibility"]
    found = [
        *chain.from_iterable((_by_size(each), _judged(each)) for each in taught),
        *(_normalisers(each) for each in taught),
        *(_plausible(each) for each in marked),
        _doubts(taught, marked),
    ]
    return tuple(table for table in found if table.rows)


def figures(told: Sequence[Told]) -> tuple[Figure, ...]:
    """What each explanation that is on all corpora is worth on each, where there are several."""
    taught = _taught(told)
    if len(taught) < 2:
        return ()
    shared = set.intersection(*(set(arms_of(each)) for each in taught)) - {_NO_EXPLANATION}
    arms = [arm for arm in arms_of(taught[0]) if arm in shared]
    if not arms:
        return ()
    series, errors = [], []
    for each in taught:
        size = sizes_of(each)[-1]
        name = f"{each.label}, {size} examples"
        gains, lows, highs = (
            [each.summary.get(f"{number}.{arm}.{size}", math.nan) for arm in arms]
            for number in ("difference", "difference_low", "difference_high")
        )
        series.append(Series(name, tuple(gains)))
        errors.append(Series(name, tuple((high - low) / 2 for low, high in zip(lows, highs, strict=True))))
    axis = Axis("gain over no explanation, with 95 % interval")
    return (Bars("What explanations are worth to a student", axis, tuple(arms), tuple(series), tuple(errors)),)


def _taught(told: Sequence[Told]) -> list[Told]:
    """Trials of simulability in the order of print's tables, those that print has nothing like last."""
    found = [each for each in told if each.trial == "simulability"]
    return sorted(found, key=lambda each: printed.table_of(each.corpus) or math.inf)


def arms_of(each: Told) -> dict[str, Mapping[str, Json]]:
    """The arms of a simulability trial by name, with what each explains as its recipe describes it."""
    found: dict[str, Mapping[str, Json]] = {}
    for name, students in _pairs(each.recipe.get("arms")):
        assert isinstance(students, list)
        explanation = _object(_object(students[0])["explanation"])
        found[str(name)] = explanation
    return found


def sizes_of(each: Told) -> list[int]:
    """The sizes of the classes, smallest first."""
    start = f"median.{_NO_EXPLANATION}."
    return sorted(int(name.removeprefix(start)) for name in each.summary if name.startswith(start))


def _called(each: Told) -> str:
    return f"{each.label}, {each.encoder}"


def _by_size(each: Told) -> TableView:
    """Rows are explanations, columns the sizes of classes, each with the nearest that print has."""
    table, sizes, arms = printed.table_of(each.corpus), sizes_of(each), arms_of(each)
    beside = [] if table is None else list(dict.fromkeys(printed.nearest(table, size) for size in sizes))
    ours, theirs = ([f"{size} examples" for size in some] for some in (sizes, beside))
    rows: list[tuple[Cell, ...]] = []
    for arm, explanation in arms.items():
        mine = [_reached(each, arm, size) for size in sizes]
        row = "" if explanation.get("normaliser", "sparsemax") != "sparsemax" else row_of(explanation)
        print_row = [_published(table or 0, row, size) for size in beside]
        rows.append((_named(each, arm, sizes[0]), *mine, *print_row))
    number = "" if table is None else f"Table {table}: "
    columns = ("explanation", *ours, *(f"published, {size}" for size in theirs))
    seeds = each.summary["seeds"]
    over = f"median [quartiles] over {seeds:.0f} seeds" if seeds > 1 else "one seed"
    note = f"{_what(each)[0].upper()}{_what(each)[1:]}, {over}. {_difference(each, table)}"
    return TableView(f"{number}students by explanation, {_called(each)}", columns, tuple(rows), note)


def _what(each: Told) -> str:
    return "correlation with the teacher" if each.summary.get("pearson") else "percentage of the teacher's answers"


def _difference(each: Told, table: int | None) -> str:
    """What must be known before our numbers are set beside print's."""
    if table is None:
        return "Print has no such task."
    same = printed.SAME.get(each.corpus) == table
    data = "the same corpus" if same else "other data, so that only the order of the rows can be compared"
    found = (
        f"Published: {printed.MODELS[table]}, five seeds; ours: {each.corpus} with {each.encoder}, {data}. In print "
        "all seeds learn from the same examples, and early stopping sees those that SMaT is trained on; here "
        f"{_class(each)}. {UNSOUND} Doubtful, see below."
    )
    return f"{found} A quick version, not to be compared with print." if each.quick else found


def _class(each: Told) -> str:
    """How the examples of a class were drawn and divided, as the recipe of a student has it."""
    _, students = _pairs(each.recipe.get("arms"))[0]
    room = _object(_object(_list(students)[0])["classroom"])
    drawn = "each seed learns from others" if room["draw"] == "redrawn" else "all seeds learn from the same"
    return f"{drawn}, and early stopping sees {'the same' if room['shared'] else 'others'}"


def _named(each: Told, arm: str, size: int) -> str:
    return f"{arm} (knows nothing)" if each.summary.get(f"null.{arm}.{size}") else arm


def _reached(each: Told, arm: str, size: int) -> str:
    names = ("median", "q25", "q75")
    median, low, high = (each.summary.get(f"{name}.{arm}.{size}", math.nan) for name in names)
    pearson = bool(each.summary.get("pearson"))
    if each.summary.get("seeds") == 1:
        return _number(median, pearson=pearson)
    return _spread(Spread(median, low, high), pearson=pearson)


def _published(table: int, row: str, column: str) -> str:
    cell = printed.simulability(table).get(row, {}).get(column)
    if cell is None:
        return "–"
    mark = f" {UNSOUND}" if doubtful(table, row, column) else ""
    return _spread(cell, pearson=table in (5, 7)) + mark


def _spread(cell: Spread, *, pearson: bool) -> str:
    median, low, high = (_number(value, pearson=pearson) for value in (cell.median, cell.q25, cell.q75))
    return f"{median} [{low}, {high}]"


def _number(value: float, *, pearson: bool, sign: str = "") -> str:
    """Correlations with three digits, shares in per cent as print has them."""
    if math.isnan(value):
        return "undefined"
    text = f"{value + 0.0:{sign}.3f}" if pearson else f"{100 * value + 0.0:{sign}.2f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _judged(each: Told) -> TableView:
    """For each explanation and size: the mean, what it gains, and the verdict by our rule and by the paper's."""
    knows_nothing = any(name.startswith("over_null.") for name in each.summary)
    columns = ["explanation", "examples", "mean [95 % interval]", "gain over no explanation"]
    columns += [*(["gain over random"] if knows_nothing else []), "verdict", "quartiles apart (the paper's rule)"]
    rows: list[tuple[Cell, ...]] = []
    for size in sizes_of(each):
        for arm in arms_of(each):
            place, is_plain = f"{arm}.{size}", arm == _NO_EXPLANATION
            told = ["–" if is_plain else _gain(each, "difference", place)]
            if knows_nothing:
                told.append("–" if each.summary.get(f"null.{place}") else _gain(each, "over_null", place))
            verdicts = ("–", "–") if is_plain else (_verdict(each, place), _by_paper(each, place))
            rows.append((_named(each, arm, size), size, _gain(each, "mean", place), *told, *verdicts))
    margin = _number(each.summary.get("margin", math.nan), pearson=bool(each.summary.get("pearson")))
    note = (
        f"In {_what(each)}. Intervals come from seeds and examples drawn anew, within seeds for gains. Helps: the "
        "interval of the gain lies above 0; does not help: it lies below the least gain that matters "
        f"({margin}); else undecided. The paper's rule is about five seeds; with fewer there is a dash. "
        "Helping a student is not being true: an explanation may give the answer away, "
        "and one that random scores match has taught nothing of its own."
    )
    caption = f"Do explanations help? {_called(each)}"
    return TableView(caption, tuple(columns), tuple(rows), note)


def _gain(each: Told, number: str, place: str) -> str:
    """A number with its interval; the mean's bounds have no prefix."""
    prefix, sign = ("", "") if number == "mean" else (f"{number}_", "+")
    value, low, high = (
        each.summary.get(f"{name}.{place}", math.nan) for name in (number, f"{prefix}low", f"{prefix}high")
    )
    pearson = bool(each.summary.get("pearson"))
    shown = _number(value, pearson=pearson, sign=sign)
    if math.isnan(low) or math.isnan(high):
        return f"{shown} (no interval)"
    return f"{shown} [{_number(low, pearson=pearson, sign=sign)}, {_number(high, pearson=pearson, sign=sign)}]"


def _verdict(each: Told, place: str) -> str:
    return next((words for name, words in _VERDICTS.items() if each.summary.get(f"{name}.{place}")), "undecided")


def _by_paper(each: Told, place: str) -> str:
    helps, harms = (each.summary.get(f"{name}.{place}", math.nan) for name in ("paper_helps", "paper_harms"))
    if math.isnan(helps) or math.isnan(harms):
        return "–"
    return "better" if helps else "worse" if harms else "no"


def _normalisers(each: Told) -> TableView:
    """Table 7: learned mixes by what makes weights of phi, in the largest class."""
    learned = {
        str(explanation["normaliser"]): arm for arm, explanation in arms_of(each).items() if row_of(explanation) == SMAT
    }
    size = sizes_of(each)[-1]
    rows: list[tuple[Cell, ...]] = [
        (NORMALISERS[ours], _reached(each, learned[ours], size), _published(7, SMAT, theirs))
        for ours, theirs in NORMALISERS.items()
        if ours in learned
    ]
    note = (
        "Published: correlations on MLQE-PE from 4200 examples (its caption says accuracy). Static explanations are "
        "not repeated: a plain mean is the same under every normaliser, and what print has there must come from the "
        "student's own mix, for which we always take sparsemax."
    )
    caption = f"Table 7: what makes weights of phi, {_called(each)}, {size} examples"
    columns = ("normaliser of the teacher's heads", "SMaT, ours", "SMaT, published")
    return TableView(caption, columns, tuple(rows) if len(rows) > 1 else (), note)


def _plausible(each: Told) -> TableView:
    """Tables 2 and 6: the area under the curve of each method, in each part of the texts."""
    parts = [name.removeprefix("judged.") for name in each.summary if name.startswith("judged.")] or [""]
    columns = ["method"]
    for part in parts:
        within = f", {part}" if part else ""
        columns += [f"AUC{within}", f"95 % interval{within}", f"against random{within}"]
    rows = []
    for method, row in methods_of(each.recipe, each.rows).items():
        name = printed.WORDS.get(row, method)
        marked = f"{name} {UNSOUND}" if row and doubtful(_table_of_marks(each), row) else name
        cells = chain.from_iterable(_area(each, method, part, row) for part in parts)
        rows.append((marked, *cells))
    number = {2: "Table 2: ", 6: "Table 6: "}.get(_table_of_marks(each), "")
    marked = f"{'w' if number else 'W'}ords that people marked{_ORDERS.get(_rank(each), '')}"
    caption = f"{number}{marked}, {_called(each)}"
    return TableView(caption, tuple(columns), tuple(rows), _plausible_note(each))


def _rank(each: Told) -> str:
    """What words are ranked by; print ranks by the score."""
    return str(each.recipe.get("rank", "score"))


def _table_of_marks(each: Told) -> int:
    if _rank(each) != "score":
        return 0
    return 2 if each.corpus == "eraser-movies" else 6 if each.corpus.startswith("mlqe") else 0


SUMMED = (
    "A word's score is the sum of its pieces', as in print: where marked words have more pieces than others, even "
    "random scores lie above .5. "
)


def _plausible_note(each: Told) -> str:
    published = {
        2: "Published: ELECTRA-small trained on IMDB, reviews of all splits, cut after 256 pieces.",
        6: "Published: XLM-R trained on six language pairs; sentences of the dev split. People marked what is wrong in "
        "a translation, and the model's answer is its quality: a true signed explanation gives marked words negative "
        "scores, and is below random here, where words are ranked by score as in print. By size they are ranked in a "
        "table of their own; attention has no sign.",
    }.get(_table_of_marks(each), "Print has no such corpus." if _rank(each) == "score" else "Print has no such order.")
    summed = SUMMED if each.recipe.get("pooling") == "sum" else ""
    above = {"size": "has a larger score than another, whatever the sign", "against": "has a lower score than another"}
    return (
        f"AUC: the chance that a marked word {above.get(_rank(each), 'is scored above another')}; .5 is chance. "
        f"{summed}{published} {UNSOUND} Print's number is doubtful, see below. Oracles were chosen with the marks of "
        "the same texts. Plausible is not faithful: people marked what convinces people, and a model may decide by "
        "other words."
    )


def methods_of(recipe: Mapping[str, Json], rows: pd.DataFrame | None) -> dict[str, str]:
    """Methods of a plausibility trial in the order of its rows, with print's rows (empty where print has none)."""
    if rows is None:
        return {}
    ordered = rows.sort_values("place").drop_duplicates("place")["method"].astype(str).tolist()
    methods = [_object(method) for method in _list(recipe.get("methods"))]
    described = [method_row(method) for method in methods if method["type"] != "Random"]
    described += [_learned_row(learned) for _, learned in _pairs(recipe.get("learned"))]
    found = dict(zip(ordered, described, strict=False))
    return {method: found.get(method, printed.ORACLES.get(method, "")) for method in ordered}


def _learned_row(recipe: Json) -> str:
    students = _list(_object(recipe).get("students"))
    return row_of(_object(_object(students[0])["explanation"])) if students else ""


def _area(each: Told, method: str, part: str, row: str) -> tuple[Cell, ...]:
    place = f"{method} ({part})" if part else method
    low, high, worse, better = (
        each.summary.get(f"{end}.auc.{place}", math.nan) for end in ("low", "high", "excess_low", "excess_high")
    )
    published = printed.plausibility(each.corpus, part) if _table_of_marks(each) else {}
    pair = Pair(known(each, f"auc.{place}"), published.get(row))
    interval = "no interval" if math.isnan(low) else f"{low:.3f} to {high:.3f}"
    return pair, interval, _against(worse, better)


def _against(low: float, high: float) -> str:
    if math.isnan(low):
        return "undecided"
    if (low, high) == (0.0, 0.0):
        return "–"
    return "above" if low > 0 else "below" if high < 0 else "no different"


def _doubts(taught: Sequence[Told], marked: Sequence[Told]) -> TableView:
    """What is wrong with the tables of print that ours stand beside."""
    shown = {printed.table_of(each.corpus) for each in taught} | {_table_of_marks(each) for each in marked}
    shown |= {7 for each in taught if _normalisers(each).rows}
    rows: list[tuple[Cell, ...]] = [
        (f"table {number}", _where(each.cells), each.why)
        for number in sorted(shown - {None, 0}, key=lambda number: number or 0)
        for each in doubts(number or 0)
    ]
    note = "Found by us from the printed numbers, the text and the released code; ours are not adjusted to any of it."
    return TableView(f"{UNSOUND} What is doubtful in print", ("table", "cells", "why"), tuple(rows), note)


def _where(cells: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{row}, {column} examples" if column else row for row, column in cells) or "the table"


def _object(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _pairs(value: Json) -> list[tuple[Json, Json]]:
    """Names with what they name, as a recipe writes them."""
    return [(pair[0], pair[1]) for pair in _list(value) if isinstance(pair, list)]
