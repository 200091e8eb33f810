"""Learning to Scaffold over all corpora: simulability and plausibility in the paper's form, print beside ours.

Tables 1, 3 and 5 (students by explanation and size of their class), 2 and 6 (words that people marked), 7 (what makes
weights of phi). The study with people (table 4) is not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import pandas as pd

from heedful.figures import Axis, Bars, Figure, Series
from heedful.papers._chapter import Cell, Comparison, TableView
from heedful.report import scaffold_print
from heedful.report.scaffold_print import (
    NORMALIZER_NAMES,
    SMAT,
    Spread,
    explanation_row,
    is_doubtful,
    method_row,
    table_doubts,
)
from heedful.report.tabulating import ResultRow, summary_value
from heedful.store.recipe import Json

PAPER_NAME = "scaffold"
DOUBT_MARK = "†"
"""Marks what print cannot mean."""
_NO_EXPLANATION = "no explanation"
_RANKING_NOTES = {"size": ", ranked by the size of their scores", "against": ", lowest scores first"}
_VERDICT_WORDS = {"helps": "helps", "does_not_help": "does not help", "undecided": "undecided"}


def scaffold_tables(told: Sequence[ResultRow]) -> tuple[TableView, ...]:
    """All tables as far as there is something to tell, and what is doubtful in print."""
    taught = _simulability_results(told)
    marked = [each for each in told if each.trial == "plausibility"]
    found = [
        *chain.from_iterable((_size_table(each), _verdict_table(each)) for each in taught),
        *(_normalizer_table(each) for each in taught),
        *(_plausibility_table(each) for each in marked),
        _doubt_table(taught, marked),
    ]
    return tuple(table for table in found if table.rows)


def scaffold_figures(told: Sequence[ResultRow]) -> tuple[Figure, ...]:
    """What each explanation that is on all corpora is worth on each, where there are several."""
    taught = _simulability_results(told)
    if len(taught) < 2:
        return ()
    shared = set.intersection(*(set(arm_explanations(each)) for each in taught)) - {_NO_EXPLANATION}
    arms = [arm for arm in arm_explanations(taught[0]) if arm in shared]
    if not arms:
        return ()
    series, errors = [], []
    for each in taught:
        size = training_sizes(each)[-1]
        name = f"{each.label}, {size} examples"
        gains, lows, highs = (
            [each.summary.get(f"{number}.{arm}.{size}", math.nan) for arm in arms]
            for number in ("difference", "difference_low", "difference_high")
        )
        series.append(Series(name, tuple(gains)))
        errors.append(Series(name, tuple((high - low) / 2 for low, high in zip(lows, highs, strict=True))))
    axis = Axis("gain over no explanation, with 95 % interval")
    return (Bars("What explanations are worth to a student", axis, tuple(arms), tuple(series), tuple(errors)),)


def _simulability_results(told: Sequence[ResultRow]) -> list[ResultRow]:
    """Trials of simulability in the order of print's tables, those that print has nothing like last."""
    found = [each for each in told if each.trial == "simulability"]
    return sorted(found, key=lambda each: scaffold_print.simulability_table_number(each.corpus) or math.inf)


def arm_explanations(each: ResultRow) -> dict[str, Mapping[str, Json]]:
    """The arms of a simulability trial by name, with what each explains as its recipe describes it."""
    found: dict[str, Mapping[str, Json]] = {}
    for name, students in _named_pairs(each.recipe.get("arms")):
        assert isinstance(students, list)
        explanation = _json_object(_json_object(students[0])["explanation"])
        found[str(name)] = explanation
    return found


def training_sizes(each: ResultRow) -> list[int]:
    """The sizes of the classes, smallest first."""
    start = f"median.{_NO_EXPLANATION}."
    return sorted(int(name.removeprefix(start)) for name in each.summary if name.startswith(start))


def _result_label(each: ResultRow) -> str:
    return f"{each.label}, {each.encoder}"


def _size_table(each: ResultRow) -> TableView:
    """Rows are explanations, columns the sizes of classes, each with the nearest that print has."""
    table, sizes, arms = (
        scaffold_print.simulability_table_number(each.corpus),
        training_sizes(each),
        arm_explanations(each),
    )
    beside = [] if table is None else list(dict.fromkeys(scaffold_print.nearest_column(table, size) for size in sizes))
    ours, theirs = ([f"{size} examples" for size in some] for some in (sizes, beside))
    rows: list[tuple[Cell, ...]] = []
    for arm, explanation in arms.items():
        mine = [_simulability_cell(each, arm, size) for size in sizes]
        row = "" if explanation.get("normalizer", "sparsemax") != "sparsemax" else explanation_row(explanation)
        print_row = [_published_cell(table or 0, row, size) for size in beside]
        rows.append((_arm_label(each, arm, sizes[0]), *mine, *print_row))
    number = "" if table is None else f"Table {table}: "
    columns = ("explanation", *ours, *(f"published, {size}" for size in theirs))
    seeds = each.summary["seeds"]
    over = f"median [quartiles] over {seeds:.0f} seeds" if seeds > 1 else "one seed"
    note = f"{_metric_label(each)[0].upper()}{_metric_label(each)[1:]}, {over}. {_comparison_note(each, table)}"
    return TableView(f"{number}students by explanation, {_result_label(each)}", columns, tuple(rows), note)


def _metric_label(each: ResultRow) -> str:
    return "correlation with the teacher" if each.summary.get("pearson") else "percentage of the teacher's answers"


def _comparison_note(each: ResultRow, table: int | None) -> str:
    """What must be known before our numbers are set beside print's."""
    if table is None:
        return "Print has no such task."
    same = scaffold_print.PUBLISHED_CORPORA.get(each.corpus) == table
    data = "the same corpus" if same else "other data, so that only the order of the rows can be compared"
    found = (
        f"Published: {scaffold_print.PUBLISHED_MODELS[table]}, five seeds; ours: {each.corpus} with {each.encoder}, {data}. In print "
        "all seeds learn from the same examples, and early stopping sees those that SMaT is trained on; here "
        f"{_student_data_note(each)}. {DOUBT_MARK} Doubtful, see below."
    )
    return f"{found} A quick version, not to be compared with print." if each.quick else found


def _student_data_note(each: ResultRow) -> str:
    """How the examples of a class were drawn and divided, as the recipe of a student has it."""
    _, students = _named_pairs(each.recipe.get("arms"))[0]
    room = _json_object(_json_object(_list_or_empty(students)[0])["data"])
    drawn = "each seed learns from others" if room["draw"] == "redrawn" else "all seeds learn from the same"
    return f"{drawn}, and early stopping sees {'the same' if room['shared'] else 'others'}"


def _arm_label(each: ResultRow, arm: str, size: int) -> str:
    return f"{arm} (knows nothing)" if each.summary.get(f"null.{arm}.{size}") else arm


def _simulability_cell(each: ResultRow, arm: str, size: int) -> str:
    names = ("median", "q25", "q75")
    median, low, high = (each.summary.get(f"{name}.{arm}.{size}", math.nan) for name in names)
    pearson = bool(each.summary.get("pearson"))
    if each.summary.get("seeds") == 1:
        return _format_share(median, pearson=pearson)
    return _format_spread(Spread(median, low, high), pearson=pearson)


def _published_cell(table: int, row: str, column: str) -> str:
    cell = scaffold_print.published_simulability(table).get(row, {}).get(column)
    if cell is None:
        return "–"
    mark = f" {DOUBT_MARK}" if is_doubtful(table, row, column) else ""
    return _format_spread(cell, pearson=table in (5, 7)) + mark


def _format_spread(cell: Spread, *, pearson: bool) -> str:
    median, low, high = (_format_share(value, pearson=pearson) for value in (cell.median, cell.q25, cell.q75))
    return f"{median} [{low}, {high}]"


def _format_share(value: float, *, pearson: bool, sign: str = "") -> str:
    """Correlations with three digits, shares in per cent as print has them."""
    if math.isnan(value):
        return "undefined"
    text = f"{value + 0.0:{sign}.3f}" if pearson else f"{100 * value + 0.0:{sign}.2f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _verdict_table(each: ResultRow) -> TableView:
    """For each explanation and size: the mean, what it gains, and the verdict by our rule and by the paper's."""
    knows_nothing = any(name.startswith("over_null.") for name in each.summary)
    columns = ["explanation", "examples", "mean [95 % interval]", "gain over no explanation"]
    columns += [*(["gain over random"] if knows_nothing else []), "verdict", "quartiles apart (the paper's rule)"]
    rows: list[tuple[Cell, ...]] = []
    for size in training_sizes(each):
        for arm in arm_explanations(each):
            place, is_plain = f"{arm}.{size}", arm == _NO_EXPLANATION
            told = ["–" if is_plain else _format_gain(each, "difference", place)]
            if knows_nothing:
                told.append("–" if each.summary.get(f"null.{place}") else _format_gain(each, "over_null", place))
            verdicts = ("–", "–") if is_plain else (_our_verdict(each, place), _paper_verdict(each, place))
            rows.append((_arm_label(each, arm, size), size, _format_gain(each, "mean", place), *told, *verdicts))
    margin = _format_share(each.summary.get("margin", math.nan), pearson=bool(each.summary.get("pearson")))
    note = (
        f"In {_metric_label(each)}. Intervals come from seeds and examples drawn anew, within seeds for gains. Helps: the "
        "interval of the gain lies above 0; does not help: it lies below the least gain that matters "
        f"({margin}); else undecided. The paper's rule is about five seeds; with fewer there is a dash. "
        "Helping a student is not being true: an explanation may give the answer away, "
        "and one that random scores match has taught nothing of its own."
    )
    caption = f"Do explanations help? {_result_label(each)}"
    return TableView(caption, tuple(columns), tuple(rows), note)


def _format_gain(each: ResultRow, number: str, place: str) -> str:
    """A number with its interval; the mean's bounds have no prefix."""
    prefix, sign = ("", "") if number == "mean" else (f"{number}_", "+")
    value, low, high = (
        each.summary.get(f"{name}.{place}", math.nan) for name in (number, f"{prefix}low", f"{prefix}high")
    )
    pearson = bool(each.summary.get("pearson"))
    shown = _format_share(value, pearson=pearson, sign=sign)
    if math.isnan(low) or math.isnan(high):
        return f"{shown} (no interval)"
    return (
        f"{shown} [{_format_share(low, pearson=pearson, sign=sign)}, {_format_share(high, pearson=pearson, sign=sign)}]"
    )


def _our_verdict(each: ResultRow, place: str) -> str:
    return next((words for name, words in _VERDICT_WORDS.items() if each.summary.get(f"{name}.{place}")), "undecided")


def _paper_verdict(each: ResultRow, place: str) -> str:
    helps, harms = (each.summary.get(f"{name}.{place}", math.nan) for name in ("paper_helps", "paper_harms"))
    if math.isnan(helps) or math.isnan(harms):
        return "–"
    return "better" if helps else "worse" if harms else "no"


def _normalizer_table(each: ResultRow) -> TableView:
    """Table 7: learned mixes by what makes weights of phi, in the largest class."""
    learned = {
        str(explanation["normalizer"]): arm
        for arm, explanation in arm_explanations(each).items()
        if explanation_row(explanation) == SMAT
    }
    size = training_sizes(each)[-1]
    rows: list[tuple[Cell, ...]] = [
        (NORMALIZER_NAMES[ours], _simulability_cell(each, learned[ours], size), _published_cell(7, SMAT, theirs))
        for ours, theirs in NORMALIZER_NAMES.items()
        if ours in learned
    ]
    note = (
        "Published: correlations on MLQE-PE from 4200 examples (its caption says accuracy). Static explanations are "
        "not repeated: a plain mean is the same under every normaliser, and what print has there must come from the "
        "student's own mix, for which we always take sparsemax."
    )
    caption = f"Table 7: what makes weights of phi, {_result_label(each)}, {size} examples"
    columns = ("normaliser of the teacher's heads", "SMaT, ours", "SMaT, published")
    return TableView(caption, columns, tuple(rows) if len(rows) > 1 else (), note)


def _plausibility_table(each: ResultRow) -> TableView:
    """Tables 2 and 6: the area under the curve of each method, in each part of the texts."""
    parts = [name.removeprefix("judged.") for name in each.summary if name.startswith("judged.")] or [""]
    columns = ["method"]
    for part in parts:
        within = f", {part}" if part else ""
        columns += [f"AUC{within}", f"95 % interval{within}", f"against random{within}"]
    rows = []
    for method, row in published_rows_by_method(each.recipe, each.table).items():
        name = scaffold_print.ROW_LABELS.get(row, method)
        marked = f"{name} {DOUBT_MARK}" if row and is_doubtful(_plausibility_table_number(each), row) else name
        cells = chain.from_iterable(_auc_cells(each, method, part, row) for part in parts)
        rows.append((marked, *cells))
    number = {2: "Table 2: ", 6: "Table 6: "}.get(_plausibility_table_number(each), "")
    marked = f"{'w' if number else 'W'}ords that people marked{_RANKING_NOTES.get(_word_ranking(each), '')}"
    caption = f"{number}{marked}, {_result_label(each)}"
    return TableView(caption, tuple(columns), tuple(rows), _plausibility_note(each))


def _word_ranking(each: ResultRow) -> str:
    """What words are ranked by; print ranks by the score."""
    return str(each.recipe.get("rank", "score"))


def _plausibility_table_number(each: ResultRow) -> int:
    if _word_ranking(each) != "score":
        return 0
    return 2 if each.corpus == "eraser-movies" else 6 if each.corpus.startswith("mlqe") else 0


SUM_POOLING_NOTE = (
    "A word's score is the sum of its pieces', as in print: where marked words have more pieces than others, even "
    "random scores lie above .5. "
)


def _plausibility_note(each: ResultRow) -> str:
    published = {
        2: "Published: ELECTRA-small trained on IMDB, reviews of all splits, cut after 256 pieces.",
        6: "Published: XLM-R trained on six language pairs; sentences of the dev split. People marked what is wrong in "
        "a translation, and the model's answer is its quality: a true signed explanation gives marked words negative "
        "scores, and is below random here, where words are ranked by score as in print. By size they are ranked in a "
        "table of their own; attention has no sign.",
    }.get(
        _plausibility_table_number(each),
        "Print has no such corpus." if _word_ranking(each) == "score" else "Print has no such order.",
    )
    summed = SUM_POOLING_NOTE if each.recipe.get("pooling") == "sum" else ""
    above = {"size": "has a larger score than another, whatever the sign", "against": "has a lower score than another"}
    return (
        f"AUC: the chance that a marked word {above.get(_word_ranking(each), 'is scored above another')}; .5 is chance. "
        f"{summed}{published} {DOUBT_MARK} Print's number is doubtful, see below. Oracles were chosen with the marks of "
        "the same texts. Plausible is not faithful: people marked what convinces people, and a model may decide by "
        "other words."
    )


def published_rows_by_method(recipe: Mapping[str, Json], rows: pd.DataFrame | None) -> dict[str, str]:
    """Methods of a plausibility trial in the order of its rows, with print's rows (empty where print has none)."""
    if rows is None:
        return {}
    ordered = rows.sort_values("place").drop_duplicates("place")["method"].astype(str).tolist()
    methods = [_json_object(method) for method in _list_or_empty(recipe.get("methods"))]
    described = [method_row(method) for method in methods if method["type"] != "Random"]
    described += [_learned_row(learned) for _, learned in _named_pairs(recipe.get("learned_explainers"))]
    found = dict(zip(ordered, described, strict=False))
    return {method: found.get(method, scaffold_print.ORACLE_ROWS.get(method, "")) for method in ordered}


def _learned_row(recipe: Json) -> str:
    students = _list_or_empty(_json_object(recipe).get("students"))
    return explanation_row(_json_object(_json_object(students[0])["explanation"])) if students else ""


def _auc_cells(each: ResultRow, method: str, part: str, row: str) -> tuple[Cell, ...]:
    place = f"{method} ({part})" if part else method
    low, high, worse, better = (
        each.summary.get(f"{end}.auc.{place}", math.nan) for end in ("low", "high", "excess_low", "excess_high")
    )
    published = scaffold_print.published_plausibility(each.corpus, part) if _plausibility_table_number(each) else {}
    pair = Comparison(summary_value(each, f"auc.{place}"), published.get(row))
    interval = "no interval" if math.isnan(low) else f"{low:.3f} to {high:.3f}"
    return pair, interval, _verdict_against_random(worse, better)


def _verdict_against_random(low: float, high: float) -> str:
    if math.isnan(low):
        return "undecided"
    if (low, high) == (0.0, 0.0):
        return "–"
    return "above" if low > 0 else "below" if high < 0 else "no different"


def _doubt_table(taught: Sequence[ResultRow], marked: Sequence[ResultRow]) -> TableView:
    """What is wrong with the tables of print that ours stand beside."""
    shown = {scaffold_print.simulability_table_number(each.corpus) for each in taught} | {
        _plausibility_table_number(each) for each in marked
    }
    shown |= {7 for each in taught if _normalizer_table(each).rows}
    rows: list[tuple[Cell, ...]] = [
        (f"table {number}", _format_cells(each.cells), each.reason)
        for number in sorted(shown - {None, 0}, key=lambda number: number or 0)
        for each in table_doubts(number or 0)
    ]
    note = "Found by us from the printed numbers, the text and the released code; ours are not adjusted to any of it."
    return TableView(f"{DOUBT_MARK} What is doubtful in print", ("table", "cells", "why"), tuple(rows), note)


def _format_cells(cells: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{row}, {column} examples" if column else row for row, column in cells) or "the table"


def _json_object(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


def _list_or_empty(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _named_pairs(value: Json) -> list[tuple[Json, Json]]:
    """Names with what they name, as a recipe writes them."""
    return [(pair[0], pair[1]) for pair in _list_or_empty(value) if isinstance(pair, list)]
