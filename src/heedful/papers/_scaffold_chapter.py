"""The chapter of "Learning to Scaffold" (Fernandes et al. 2022): its tables, figures and examples beside ours.

Tables 1, 3 and 5 (students by explanation and training size), 2 and 6 (agreement with rationales), 7 (normalizers of
head coefficients); figures 3 (texts), 4, 7 and 8 (images) and 5 (head coefficients); table 4 (people) beside a
study of one's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.head_mix import StaticAttention
from heedful.attributions.method import method_name
from heedful.figures import Axis, Figure, Heatmap, ImageGrid, Lines, Matrix, PatchScores, Pixels, Series
from heedful.papers import published
from heedful.papers.chapter import (
    Measurement,
    Result,
    SectionExtras,
    class_name,
    class_names,
    distinguish,
    find_attributions,
    prediction_text,
    rows_by_uid,
    token_heatmap,
)
from heedful.papers.example_texts import readable_texts
from heedful.papers.published import CellName, NumberKey
from heedful.papers.published_cells import SCAFFOLD_CORPORA
from heedful.papers.scaffold import (
    GRADIENT_NORM,
    IMAGE_INTEGRATED_GRADIENTS,
    INPUT_X_GRADIENT,
    INTEGRATED_GRADIENTS,
    N_IMAGES_SHOWN,
    NORMALIZERS,
)
from heedful.results import Statistic, Verdict, excess_metric
from heedful.store.artefact_files import IndexEntry
from heedful.store.recipe import Artefact, Json
from heedful.table_view import Cell, Comparison, TableView
from heedful.training.attribution_tables import true_class_name
from heedful.training.student_arms import SMAT
from heedful.trials.plausibility import POOLING_LABELS, RANK_CLAUSES, RIGHT_AREA, WRONG_AREA
from heedful.trials.simulability import NO_EXPLANATION, Simulability
from heedful.trials.trial import interval_bars

STUDY = "study"
"""The name of the results of a study with people."""
DOUBT_MARK = "†"
"""Marks published numbers that are not reliable."""
_IG_ROW, _NORM_ROW, SMAT_ROW = "Integrated Gradients", "Gradient L2", "Attention (SMaT)"
PUBLISHED_ROWS = {
    "none": "No Explainer",
    method_name(GRADIENT_NORM): _NORM_ROW,
    method_name(INPUT_X_GRADIENT): "Gradient x Input",
    method_name(INTEGRATED_GRADIENTS): _IG_ROW,
    method_name(IMAGE_INTEGRATED_GRADIENTS): _IG_ROW,
    "attention, all layers": "Attention (all layers)",
    method_name(StaticAttention()): "Attention (all layers)",
    "attention, last layer": "Attention (last layer)",
    method_name(StaticAttention(-1)): "Attention (last layer)",
    SMAT: SMAT_ROW,
    "best-layer (oracle)": "Attention (best layer)*",
    "best-head (oracle)": "Attention (best head)*",
}
"""The paper's rows by our names of explanations and methods."""
STUDY_ROWS = {
    "input-x-gradient": "Gradient x Input",
    "integrated-gradients": _IG_ROW,
    "learned-head-mix": SMAT_ROW,
}
"""The paper's rows by the names of methods without their settings."""
ROW_LABELS = {
    _NORM_ROW: "gradient norm",
    "Gradient x Input": "gradient x input",
    _IG_ROW: "integrated gradients",
    "Attention (all layers)": "attention, all layers",
    "Attention (last layer)": "attention, last layer",
}
"""Our labels of the paper's rows."""
PUBLISHED_NORMALIZERS = {"sparsemax": "sparsemax", "softmax": "softmax", "entmax15": "1.5-entmax", "none": "none"}
PUBLISHED_CORPORA = {"imdb": 1, "imdb-raw": 1, "cifar100": 3, "mlqe": 5}
"""Corpora of the paper, and their tables."""
SIMILAR_CORPORA = {"sst": 1, "rotten-tomatoes": 1, "cifar10": 3, "fashion-mnist": 3, "digits": 3}
"""Corpora with the same kind of task as one of the paper."""
PUBLISHED_MODELS = {
    1: "IMDB with ELECTRA-small",
    3: "CIFAR-100 with ViT-B/16",
    5: "MLQE-PE, six language pairs, with XLM-R",
}
_PAPER_SETTINGS = {"rank": "score", "pooling": "sum", "target": "predicted"}
"""How the paper judges plausibility."""
_RANK_CAPTIONS = {"size": ", ranked by the size of their scores", "against": ", lowest scores first"}
_VERDICTS = {Verdict.SUPPORTED: "helps", Verdict.NOT_SUPPORTED: "does not help", Verdict.UNDECIDED: "undecided"}


def simulability_table_number(corpus: str) -> int | None:
    """The paper's table of simulability that has this corpus or a similar one; None if there is none.

    >>> simulability_table_number("imdb-raw"), simulability_table_number("mlqe-en-de"), simulability_table_number("own")
    (1, 5, None)
    """
    return PUBLISHED_CORPORA.get(corpus, SIMILAR_CORPORA.get(corpus, 5 if corpus.startswith("mlqe-") else None))


def nearest_column(number: int, size: int) -> str:
    """The column of a table whose training size is nearest, by ratio.

    >>> nearest_column(1, 500), nearest_column(1, 150), nearest_column(3, 5000)
    ('500', '500', '4500')
    """
    columns = published.published_simulability(number)["No Explainer"]
    return min(columns, key=lambda column: max(int(column) / size, size / int(column)))


@cache
def table_doubts(number: int) -> tuple[tuple[tuple[tuple[str, str], ...], str], ...]:
    """Cells of a table that are not reliable, and why, from the published numbers, the text and the code.

    Cells are rows and columns; an empty column is the whole row, no cells at all the whole table.
    """
    rows = [row for row in published.published_json("scaffold_doubts")["doubts"] if row["table"] == number]
    return tuple((tuple((row, column) for row, column in doubt["cells"]), doubt["reason"]) for doubt in rows)


def find_doubt(number: int, row: str, column: str = "") -> str:
    """Why a published cell is not reliable; empty if nothing is known against it."""
    return next((why for cells, why in table_doubts(number) if {(row, column), (row, "")} & set(cells)), "")


def tables(results: Sequence[Result]) -> tuple[TableView, ...]:
    """All tables of the paper, and what is doubtful in the published ones."""
    taught = _simulability_results(results)
    rated = distinguish([result for result in results if result.trial == "plausibility"])
    studies = [result for result in results if result.trial == STUDY]
    return (
        *chain.from_iterable((_size_table(result), _verdict_table(result)) for result in taught),
        *(_normalizer_table(result) for result in taught),
        *(_plausibility_table(result) for result in rated),
        *(_study_table(result) for result in studies),
        _doubt_table(taught, rated, studies),
    )


def _simulability_results(results: Sequence[Result]) -> list[Result]:
    """Simulability trials in the order of the paper's tables."""
    distinct = distinguish([result for result in results if result.trial == "simulability"])
    return sorted(distinct, key=lambda result: simulability_table_number(result.corpus) or math.inf)


def student_arms(result: Result) -> dict[str, Mapping[str, Json]]:
    """Facts about the students of each arm: `explanation`, `normalizer` of learned mixes, `sampling`, `share_dev`."""
    arms = result.entries[0].facts["arms"]
    return {arm: facts for arm, facts in arms.items() if isinstance(facts, dict)} if isinstance(arms, dict) else {}


def training_sizes(result: Result) -> dict[str, int]:
    """Training sizes by subset, smallest first."""
    rows = result.summary[result.summary["metric"] == "size"]
    return dict(sorted(zip(rows["subset"], rows["value"].astype(int), strict=True), key=lambda item: item[1]))


def _arm_label(result: Result, arm: str) -> str:
    return f"{arm} (control)" if result.value("control", arm) else arm


def _size_table(result: Result) -> TableView:
    """Tables 1, 3 and 5: rows are explanations, columns training sizes, with the nearest ones of the paper."""
    number, sizes = simulability_table_number(result.corpus), training_sizes(result)
    columns = [] if number is None else list(dict.fromkeys(nearest_column(number, size) for size in sizes.values()))
    rows: list[tuple[Cell, ...]] = []
    for arm, facts in student_arms(result).items():
        is_published = facts["normalizer"] in (None, NORMALIZERS[0])
        row = PUBLISHED_ROWS.get(str(facts["explanation"]), "") if is_published else ""
        theirs = [_published_cell(number or 0, row, column) for column in columns]
        rows.append((_arm_label(result, arm), *(_spread_cell(result, arm, subset) for subset in sizes), *theirs))
    seeds = result.value("seeds") or 0
    over = f"median [quartiles] over {seeds:.0f} seeds" if seeds > 1 else "one seed"
    title = "Students by explanation" if number is None else f"Table {number}: students by explanation"
    source = "" if number is None else PUBLISHED_MODELS[number]
    header = ("explanation", *sizes, *(f"published for {source}, {column} examples" for column in columns))
    note = f"{_metric_label(result)}, {over}. {_comparison_note(result, number)}"
    return TableView(f"{title}, {result.model_label}", header, tuple(rows), note)


def _metric_label(result: Result) -> str:
    return "Correlation with the teacher" if result.value("pearson") else "Percentage of the teacher's predictions"


def _comparison_note(result: Result, number: int | None) -> str:
    """What limits the comparison with the published numbers."""
    if number is None:
        return "The paper has no such task."
    is_same = PUBLISHED_CORPORA.get(result.corpus) == number
    data = "the same corpus" if is_same else "other data, so only the order of the rows can be compared"
    facts = next(iter(student_arms(result).values()))
    examples = "each seed learns from its own" if facts["sampling"] == "redrawn" else "all seeds learn from the same"
    stopping = "the same" if facts["share_dev"] else "different ones"
    note = (
        f"Published: {PUBLISHED_MODELS[number]}, five seeds; ours: {result.corpus} with {result.encoder}, {data}. "
        "In the paper, all seeds learn from the same examples, and early stopping uses those that SMaT is trained on; "
        f"here {examples}, and early stopping uses {stopping}. {DOUBT_MARK} Doubtful, see below."
    )
    return f"{note} A quick version, not comparable with the paper." if result.quick else note


def _spread_cell(result: Result, arm: str, subset: str) -> str:
    numbers = [result.value(metric, arm, subset) for metric in ("median", "q25", "q75")]
    has_quartiles = result.value("seeds") != 1 and None not in numbers[1:]
    return _format(numbers if has_quartiles else numbers[:1], is_correlation=bool(result.value("pearson")))


def _published_cell(number: int, row: str, column: str) -> str:
    cell = published.published_simulability(number).get(row, {}).get(column) if row else None
    if cell is None:
        return "–"
    mark = f" {DOUBT_MARK}" if find_doubt(number, row, column) else ""
    return _format(cell, is_correlation=number in (5, 7)) + mark


def _format(numbers: Sequence[float | None], *, is_correlation: bool, sign: str = "") -> str:
    """A number, with quartiles or an interval if given; correlations with three digits, shares in percent."""
    scale, digits = (1, 3) if is_correlation else (100, 2)
    texts = [
        "undefined" if number is None or math.isnan(number) else f"{scale * number + 0.0:{sign}.{digits}f}"
        for number in numbers
    ]
    text = texts[0] if len(texts) == 1 else f"{texts[0]} [{texts[1]}, {texts[2]}]"
    return text.replace("-", "\N{MINUS SIGN}")


def _verdict_table(result: Result) -> TableView:
    """For each explanation and size: the mean, its gains, and the verdict by our rule and by the paper's."""
    is_correlation, has_control = bool(result.value("pearson")), bool(result.methods("over_control"))
    verdicts = {
        (finding.method, finding.evidence[0].subset): _VERDICTS[finding.verdict]
        for finding in Simulability.findings(result.summary)
        if finding.evidence
    }

    def interval(metric: str, arm: str, subset: str, sign: str = "+") -> str:
        row = result.statistic(metric, arm, subset) or Statistic(metric)
        numbers = (row.value,) if math.isnan(row.low) else (row.value, row.low, row.high)
        text = _format(numbers, is_correlation=is_correlation, sign=sign)
        return f"{text} (no interval)" if math.isnan(row.low) else text

    rows: list[tuple[Cell, ...]] = []
    for subset, size in training_sizes(result).items():
        for arm in student_arms(result):
            is_baseline = arm == NO_EXPLANATION
            gains = ["–" if is_baseline else interval("difference", arm, subset)]
            if has_control:
                gains.append("–" if result.value("control", arm) else interval("over_control", arm, subset))
            helps, harms = (result.value(metric, arm, subset) for metric in ("paper_helps", "paper_harms"))
            paper = "–" if is_baseline or helps is None else "better" if helps else "worse" if harms else "no"
            ours = "–" if is_baseline else verdicts.get((arm, subset), "undecided")
            rows.append((_arm_label(result, arm), size, interval("mean", arm, subset, sign=""), *gains, ours, paper))
    margin = _format([result.value("margin")], is_correlation=is_correlation)
    columns = ["explanation", "examples", "mean [95 % interval]", "gain over no explanation"]
    columns += [*(["gain over random"] if has_control else []), "verdict", "quartiles apart (the paper's rule)"]
    note = (
        f"{_metric_label(result)}. Intervals resample seeds and examples, for gains within seeds. Helps: the "
        "interval of the gain is above 0; does not help: it is below the smallest gain that matters "
        f"({margin}); otherwise undecided. The paper's rule needs five seeds; a dash means fewer. "
        "An explanation that helps a student need not be faithful: it may give the answer away, and one that "
        "is not better than random scores taught nothing of its own."
    )
    return TableView(f"Do explanations help? {result.model_label}", tuple(columns), tuple(rows), note)


def _normalizer_table(result: Result) -> TableView:
    """Table 7: SMaT by the normalizer of head coefficients, at the largest training size."""
    learned = {facts["normalizer"]: arm for arm, facts in student_arms(result).items() if facts["explanation"] == SMAT}
    subset = list(training_sizes(result))[-1]
    rows = tuple(
        (theirs, _spread_cell(result, learned[ours], subset), _published_cell(7, SMAT_ROW, theirs))
        for ours, theirs in PUBLISHED_NORMALIZERS.items()
        if ours in learned
    )
    note = (
        "Published: correlations on MLQE-PE from 4200 examples. Static explanations are not repeated: a plain mean is "
        "the same under every normalizer, and the published differences must come from the student's own mix, for "
        "which we always use sparsemax."
    )
    caption = f"Table 7: normalizers of head coefficients, {result.model_label}, {subset}"
    columns = ("normalizer of the teacher's heads", "SMaT, ours", "SMaT, published")
    return TableView(caption, columns, rows if len(rows) > 1 else (), note)


def _plausibility_table_number(result: Result) -> int:
    """The paper's table of plausibility with this corpus and these settings; 0 if there is none."""
    is_same = all(_plausibility_setting(result, name) == value for name, value in _PAPER_SETTINGS.items())
    return _plausibility_corpora_table(result) if is_same else 0


def _plausibility_setting(result: Result, name: str) -> str:
    return str(result.settings.get(name, _PAPER_SETTINGS[name]))


def _plausibility_corpora_table(result: Result) -> int:
    """The paper's table of plausibility with this corpus; 0 if there is none."""
    return 2 if result.corpus == "eraser-movies" else 6 if result.corpus.startswith("mlqe") else 0


def published_row(result: Result, method: str) -> str:
    """The paper's row of a method of a plausibility trial; empty if there is none."""
    learned = result.entries[0].facts.get("learned_explainers")
    explanation = learned.get(method, method) if isinstance(learned, dict) else method
    return PUBLISHED_ROWS.get(str(explanation), "")


def _plausibility_table(result: Result) -> TableView:
    """Tables 2 and 6: AUC of each method, in each part of the texts, and apart where texts are predicted right."""
    parts, number = result.subsets("judged") or [""], _plausibility_table_number(result)
    divided = [area for area in (RIGHT_AREA, WRONG_AREA) if result.methods(area)]
    columns = ["method"]
    for part in parts:
        within = f", {part}" if part else ""
        columns += [f"AUC{within}", f"95 % interval{within}", f"against random{within}"]
        for area in divided:
            texts = f"{area.removeprefix('auc_')} predictions{within}"
            columns += [f"AUC, {texts}", f"against random, {texts}"]
    rows: list[tuple[Cell, ...]] = []
    for method in result.methods("auc"):
        row = published_row(result, method)
        cells: list[Cell] = []
        for part in parts:
            auc = result.statistic("auc", method, part) or Statistic("auc")
            excess = result.statistic(excess_metric("auc"), method, part) or Statistic("auc")
            is_comparable = number and not result.quick
            theirs = published.published_plausibility(result.corpus, part).get(row) if is_comparable else None
            interval = "no interval" if math.isnan(auc.low) else f"{auc.low:.3f} to {auc.high:.3f}"
            doubt = "" if theirs is None else find_doubt(number, row)
            comparison = Comparison(result.value("auc", method, part), theirs, doubt=doubt)
            cells += [comparison, interval, _against_random(result, method, excess)]
            for area in divided:
                apart = result.statistic(excess_metric(area), method, part) or Statistic(area)
                cells += [result.value(area, method, part), _against_random(result, method, apart)]
        rows.append((ROW_LABELS.get(row, method), *cells))
    rank, pooling = _plausibility_setting(result, "rank"), POOLING_LABELS[_plausibility_setting(result, "pooling")]
    title = f"Table {number}: agreement with rationales" if number else "Agreement with rationales"
    target = ", scores for the true class" if _plausibility_setting(result, "target") == "label" else ""
    caption = f"{title}{_RANK_CAPTIONS.get(rank, '')}, {pooling} of a word's tokens{target}, {result.model_label}"
    return TableView(caption, tuple(columns), tuple(rows), _plausibility_note(result, number, rank))


def _against_random(result: Result, method: str, excess: Statistic) -> str:
    if result.value("control", method):
        return "–"
    if math.isnan(excess.low):
        return "undecided"
    return "above" if excess.low > 0 else "below" if excess.high < 0 else "no different"


def _plausibility_note(result: Result, number: int, rank: str) -> str:
    comparison = {
        2: "Published: ELECTRA-small trained on IMDB, reviews of all splits, cut after 256 tokens.",
        6: "Published: XLM-R trained on six language pairs; sentences of the dev split. People marked errors in a "
        "translation, and the model predicts its quality: correct signed scores of marked words are negative, and so "
        "below random here, where words are ranked by score as in the paper. Another table ranks them by size; "
        "attention has no sign.",
    }.get(number, "The paper has no such corpus.")
    if not number and _plausibility_corpora_table(result):
        comparison = "The paper ranks words by score, sums those of their tokens, and explains the predicted class."
    pooling = _plausibility_setting(result, "pooling")
    # Random scores are uniform, so that the mean of several has the same chance against a single one.
    chance = (
        "Random scores reach .5 on average. "
        if pooling == "mean"
        else "Where marked words have more tokens than others, even random scores are above .5. "
    )
    oracles = "Oracles were chosen on the rationales of the same texts. " if result.methods("oracle") else ""
    apart = (
        "Scores explain the predicted class, but people marked evidence for the true one, so only correctly predicted "
        "texts show whether an explanation is plausible. "
        if result.methods(RIGHT_AREA) and _plausibility_setting(result, "target") == "predicted"
        else ""
    )
    return (
        f"AUC: the probability that a marked word {RANK_CLAUSES[rank]}; the score of a word is the "
        f"{POOLING_LABELS[pooling]} over its tokens. {chance}{apart}{comparison} {oracles}Plausible is not faithful: "
        "people marked what convinces people, and a model may depend on other words."
    )


def _study_table(result: Result) -> TableView:
    """Table 4: the ratings by people, with those of the paper for methods that it has."""
    theirs = published.published_json("scaffold_table4")["values"]
    pairs = [(method, _study_row(method)) for method in result.methods("trueskill")]
    pairs += [("", row) for row in theirs if row not in dict(pairs).values()]
    rows: list[tuple[Cell, ...]] = []
    for method, row in pairs:
        cells = theirs.get(row, {})
        mu = Comparison(result.value("trueskill", method), cells.get("mu"))
        sigma = Comparison(result.value("trueskill_sigma", method), cells.get("sigma"))
        published_rank = str(cells.get("rank", "")).replace("-", " to ")
        rows.append((method or row, mu, sigma, _rank_range(result, method), published_rank))
    columns = ("method", "TrueSkill mu", "sigma", "rank", "published rank")
    note = (
        "Published: four methods on about 100 images of CIFAR-100 with a ViT, ranked by three people. Ratings depend "
        "on the methods that are compared: those of two studies are comparable only if their methods are the same."
    )
    return TableView(f"Table 4: what people prefer, {result.corpus}", columns, tuple(rows), note)


def _study_row(method: str) -> str:
    """The paper's row of a method of a study, whatever its settings; empty if there is none."""
    return PUBLISHED_ROWS.get(method) or STUDY_ROWS.get(method.partition("(")[0], "")


def _rank_range(result: Result, method: str) -> str:
    rank = result.statistic("trueskill_rank", method)
    if rank is None or math.isnan(rank.value):
        return ""
    return f"{rank.low:.0f}" if rank.low == rank.high else f"{rank.low:.0f} to {rank.high:.0f}"


def _doubt_table(taught: Sequence[Result], rated: Sequence[Result], studies: Sequence[Result]) -> TableView:
    """What is wrong with the published tables beside ours."""
    shown = {simulability_table_number(result.corpus) or 0 for result in taught} | {4 for _ in studies}
    shown |= {_plausibility_table_number(result) for result in rated} | {
        7 for result in taught if _normalizer_table(result).rows
    }
    rows: list[tuple[Cell, ...]] = []
    for number in sorted(shown - {0}):
        for cells, reason in table_doubts(number):
            names = "; ".join(f"{row}, {column} examples" if column else row for row, column in cells)
            rows.append((f"table {number}", names or "the table", reason))
    note = "What we found in the published numbers, the text and the released code; our numbers do not depend on it."
    return TableView(f"{DOUBT_MARK} Doubtful published numbers", ("table", "cells", "why"), tuple(rows), note)


def measure(result: Result) -> dict[CellName, Measurement]:
    """Our numbers of the published cells on the same corpus and with the paper's settings."""
    names: dict[CellName, NumberKey] = {}
    if result.quick:
        return {}
    if result.trial == "plausibility" and _plausibility_table_number(result):
        for method in result.methods("auc"):
            for part in result.subsets("judged") or [""]:
                if (row := published_row(result, method)) in published.published_plausibility(result.corpus, part):
                    names[_cell("plausibility", result.corpus, "auc", row, part)] = ("auc", method, part)
    if result.trial == "simulability" and (number := PUBLISHED_CORPORA.get(result.corpus)):
        table = published.published_simulability(number)
        for arm, facts in student_arms(result).items():
            row = PUBLISHED_ROWS.get(str(facts["explanation"]), "")
            for subset, size in training_sizes(result).items():
                if facts["normalizer"] in (None, NORMALIZERS[0]) and str(size) in table.get(row, {}):
                    for metric in ("median", "q25", "q75"):
                        cell = _cell("simulability", SCAFFOLD_CORPORA[number], metric, row, str(size))
                        names[cell] = (metric, arm, subset)
    return {name: measured for name, key in names.items() if (measured := result.measurement(*key))}


def _cell(trial: str, corpus: str, metric: str, row: str, column: str) -> CellName:
    return CellName("scaffold", trial, corpus, "transformer", "self", metric, row, column)


def figures(results: Sequence[Result]) -> tuple[Figure, ...]:
    """The gain of each explanation that all corpora share, if there are several corpora."""
    taught = _simulability_results(results)
    if len(taught) < 2:
        return ()
    arms = [
        arm
        for arm in student_arms(taught[0])
        if arm != NO_EXPLANATION and all(arm in student_arms(result) for result in taught)
    ]
    if not arms:
        return ()
    rows = {}
    for result in taught:
        subset = list(training_sizes(result))[-1]
        gains = [result.statistic("difference", arm, subset) or Statistic("difference") for arm in arms]
        rows[f"{result.label}, {subset}"] = gains
    axis = Axis("gain over no explanation, with 95 % interval")
    return (interval_bars("What explanations are worth to a student", axis, arms, rows),)


def section(result: Result, entries: Sequence[IndexEntry]) -> SectionExtras:
    """Learning curves, head coefficients and images of a simulability trial, example texts of a plausibility trial."""
    if result.trial == "plausibility":
        return SectionExtras(heatmaps=_text_heatmaps(result, entries))
    if result.trial != "simulability":
        return SectionExtras()
    students = _students_of_largest_size(result.entries[0], entries)
    smat = [student for student in students if student.entry.facts["explanation"] == SMAT]
    learned = [student for student in smat if "coefficients" in student.artefact.tensors]
    images = _image_grids(result.entries[0].link("subject"), _median_students(learned)[:1], entries)
    return SectionExtras(figures=(*_learning_curves(students, learned), *_coefficient_matrices(learned), *images))


@dataclass(frozen=True)
class _StudentResult:
    """A stored student of a trial."""

    arm: str
    seed: int
    simulability: float
    entry: IndexEntry

    @cached_property
    def artefact(self) -> Artefact:
        """Read on demand: the weights may be large."""
        return self.entry.load()

    @property
    def coefficients(self) -> Tensor:
        """Head coefficients `[layer head]`."""
        return self.artefact.tensors["coefficients"].double().reshape(int(str(self.artefact.notes["layers"])), -1)

    def curve(self, name: str, column: str) -> tuple[Series, Series] | None:
        """Epochs and values of a column of the training history; None if it has none."""
        rows = self.artefact.notes.get("history")
        history = pd.DataFrame(rows if isinstance(rows, list) else [])
        if column not in history:
            return None
        return Series(name, tuple(history["epoch"].astype(float))), Series(name, tuple(history[column].astype(float)))


def _students_of_largest_size(trial: IndexEntry, entries: Sequence[IndexEntry]) -> list[_StudentResult]:
    """The stored students of the largest training size; the trial's rows are in the order of its students."""
    by_name, table = {entry.name: entry for entry in entries}, trial.load().table
    return [
        _StudentResult(str(row["arm"]), int(row["seed"]), float(row["simulability"]), by_name[name])
        for name, (_, row) in zip(trial.links["arms"], table.iterrows(), strict=True)
        if name in by_name and row["size"] == table["size"].max()
    ]


def _by_arm(students: Iterable[_StudentResult]) -> dict[str, list[_StudentResult]]:
    arms: dict[str, list[_StudentResult]] = {}
    for student in students:
        arms.setdefault(student.arm, []).append(student)
    return arms


def _median_students(students: Iterable[_StudentResult]) -> list[_StudentResult]:
    """The student of each arm with the median simulability, the lower one of two."""
    arms = _by_arm(students).values()
    ranked = (sorted(arm, key=attrgetter("simulability", "seed")) for arm in arms)
    return [arm[(len(arm) - 1) // 2] for arm in ranked]


def _learning_curves(students: Sequence[_StudentResult], learned: Sequence[_StudentResult]) -> Iterator[Lines]:
    """Agreement with the teacher of the median students, and the heads in use of every seed of SMaT."""
    median = [(student, student.arm) for student in _median_students(students)]
    seeds = [(student, f"{student.arm}, seed {student.seed}") for student in learned]
    for title, axis, column, chosen in (
        (
            "Learning curves: agreement with the teacher on dev, the median student of each arm",
            "agreement",
            "simulability",
            median,
        ),
        ("Learning curves of the explainer: heads in use", "heads with weight", "support", seeds),
        ("Learning curves of the explainer: the largest coefficient", "largest coefficient", "largest", seeds),
    ):
        curves = tuple(curve for student, name in chosen if (curve := student.curve(name, column)) is not None)
        if curves:
            yield Lines(title, Axis("epoch"), Axis(axis), curves)


def _coefficient_matrices(learned: Sequence[_StudentResult]) -> Iterator[Matrix]:
    """Figure 5: the coefficient of each head, of the median seed and on average."""
    for arm, students in _by_arm(learned).items():
        (median,) = _median_students(students)
        used, count = int((median.coefficients != 0).sum()), median.coefficients.numel()
        title = f"Figure 5: head coefficients, {arm}, seed {median.seed} (the median); {used} of {count} heads in use"
        yield _coefficient_matrix(title, median.coefficients)
        if len(students) > 1:
            mean = torch.stack([student.coefficients for student in students]).mean(0)
            yield _coefficient_matrix(f"Figure 5: head coefficients, {arm}, mean of {len(students)} seeds", mean)


def _coefficient_matrix(title: str, weights: Tensor) -> Matrix:
    rows, columns = _numbered("layer", weights.shape[0]), _numbered("head", weights.shape[1])
    limits = min(0.0, float(weights.min())), float(weights.max()) or 1.0
    return Matrix(title, rows, columns, tuple(map(tuple, weights.tolist())), limits)


def _image_grids(
    subject: str | None, smat: Sequence[_StudentResult], entries: Sequence[IndexEntry]
) -> tuple[ImageGrid, ...]:
    """Figures 4, 7 and 8 if images of the model's corpus are stored."""
    samples = [result for result in entries if result.kind == "images" and result.link("subject") == subject]
    sample = samples[0].load() if samples else Artefact()
    if not len(sample.table):
        return ()
    uids = sample.table["uid"].astype(str).tolist()[:N_IMAGES_SHOWN]
    maps: dict[str, list[Sequence[float]]] = {}
    for method in (INPUT_X_GRADIENT, IMAGE_INTEGRATED_GRADIENTS, INTEGRATED_GRADIENTS, GRADIENT_NORM):
        table = find_attributions(entries, subject, method_name(method))
        stored = {} if table is None else rows_by_uid(table)
        if set(uids) <= set(stored):
            maps[ROW_LABELS[PUBLISHED_ROWS[method_name(method)]]] = [_scored(stored[uid]) for uid in uids]
    heads = sample.tensors["heads"].double()
    mixes = {"attention, all layers": heads.mean((1, 2)), "attention, last layer": heads[:, -1].mean(1)}
    for result in smat:
        if result.coefficients.numel() == heads.shape[1] * heads.shape[2]:
            mixes[result.arm] = (heads * result.coefficients.reshape(1, *heads.shape[1:3], 1)).sum((1, 2))
    maps |= {name: _centered(mix) for name, mix in mixes.items()}
    tiles: list[tuple[Pixels | PatchScores, ...]] = [
        (_pixels(sample.tensors["images"][row]), *(_patches(scores[row], sample) for scores in maps.values()))
        for row in range(len(uids))
    ]
    labels = [_image_label(row, sample) for _, row in sample.table.iterrows()]
    title = "Figure 4: image explanations (orange: above the mean or for the prediction, blue: below or against)"
    explanations = ImageGrid(title, tuple(labels[: len(uids)]), ("image", *maps), tuple(tiles))
    title = f"Figures 7 and 8: all heads on the first image ({labels[0]}), mean over queries before softmax"
    head_tiles: list[tuple[Pixels | PatchScores, ...]] = [
        tuple(_patches(scores, sample) for scores in _centered(layer)) for layer in heads[0]
    ]
    return explanations, ImageGrid(
        title, _numbered("layer", heads.shape[1]), _numbered("head", heads.shape[2]), tuple(head_tiles)
    )


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name} {number}" for number in range(count))


def _centered(scores: Tensor) -> list[Sequence[float]]:
    """Scores minus their mean, which the softmax of an explanation ignores."""
    centered: list[Sequence[float]] = (scores - scores.mean(-1, keepdim=True)).tolist()
    return centered


def _patches(scores: Sequence[float], sample: Artefact) -> PatchScores:
    """The scores of patches, row by row from the top left."""
    columns = int(str(sample.notes["columns"]))
    return PatchScores(tuple(tuple(scores[start : start + columns]) for start in range(0, len(scores), columns)))


def _pixels(image: Tensor) -> Pixels:
    """An image `[channel height width]` in bytes; one channel is gray."""
    colors = image.double().div(255).expand(3, -1, -1) if image.shape[0] == 1 else image.double().div(255)[:3]
    rows = colors.permute(1, 2, 0).tolist()
    return Pixels(tuple(tuple((red, green, blue) for red, green, blue in row) for row in rows))


def _image_label(row: pd.Series, sample: Artefact) -> str:
    names = sample.notes.get("classes")
    classes = [str(name) for name in names] if isinstance(names, list) else []
    label, text = row["label"], prediction_text(row, classes)
    if label is None or label != label or int(label) == int(row["predicted"]):
        return text
    return f"{text}, label {class_name(label, classes)}"


def _text_heatmaps(result: Result, entries: Sequence[IndexEntry]) -> tuple[Heatmap, ...]:
    """Figure 3: a gradient, static attention and SMaT on texts with rationales, where they are stored."""
    trial = result.entries[0]
    table = trial.load().table
    methods = {published_row(result, method): method for method in result.methods("auc")}
    tables_by_text: dict[str, dict[str, pd.Series]] = {}
    for choices in (
        (_IG_ROW, "Gradient x Input", _NORM_ROW),
        ("Attention (all layers)", "Attention (last layer)"),
        (SMAT_ROW,),
    ):
        stored = [(methods[row], _stored_scores(trial, methods[row], entries)) for row in choices if row in methods]
        tables_by_text |= {method: rows_by_uid(scores) for method, scores in stored[:1] if scores is not None}
    if not tables_by_text or table.empty:
        return ()
    last, texts = list(tables_by_text)[-1], next(iter(tables_by_text.values()))
    judged = table[(table["method"] == last) & (table["status"] == "judged") & table["uid"].isin(list(texts))]
    areas = judged.groupby("uid", sort=True)["auc"].mean().dropna().reset_index()
    lengths = areas["uid"].map({uid: sum(text["scored"]) for uid, text in texts.items()})
    ordered = readable_texts(areas, lengths).sort_values("auc", kind="stable")["uid"].astype(str).tolist()
    chosen = {
        "Figure 3: people and the last explanation agree most here": ordered[-1:],
        "Figure 3: a typical text": ordered[len(ordered) // 2 :][:1] if len(ordered) > 1 else [],
        "Figure 3: they agree least here": ordered[:1] if len(ordered) > 2 else [],
    }
    classes = class_names(entries, trial.link("subject"))
    target = ", true class" if trial.settings.get("target") == "label" else ""
    labels = {method: ROW_LABELS.get(row, method) + target for row, method in methods.items()}
    heatmaps = []
    for title, uid in ((title, uid) for title, uids in chosen.items() for uid in uids):
        scores = dict(_shown_scores(labels.get(method, method), rows[uid]) for method, rows in tables_by_text.items())
        text_rows = table[(table["uid"] == uid) & (table["status"] == "judged")].drop_duplicates(["method", "part"])
        aucs = [
            " ".join(filter(None, (labels.get(row["method"], row["method"]), row["part"], f"{row['auc']:.2f}")))
            for _, row in text_rows[text_rows["kind"].isin(["method", "control"])].iterrows()
        ]
        caption = f"predicted {prediction_text(texts[uid], classes)}; AUC with the rationale: {', '.join(aucs)}"
        heatmaps.append(token_heatmap(title, texts[uid], scores, caption))
    return tuple(heatmaps)


def _stored_scores(trial: IndexEntry, method: str, entries: Sequence[IndexEntry]) -> pd.DataFrame | None:
    """The scores of a method of a plausibility trial: a learned explainer of the trial, or stored attributions."""
    learned = trial.facts.get("learned_explainers")
    if isinstance(learned, dict) and method in learned:
        name = trial.links["learned_explainers"][list(learned).index(method)]
        return next((entry.load().table for entry in entries if entry.name == name), None)
    stored = true_class_name(method) if trial.settings.get("target") == "label" else method
    return find_attributions(entries, trial.link("subject"), stored)


def _scored(row: pd.Series) -> list[float]:
    """The scores of the tokens or patches that have one."""
    return [float(score) for score, scored in zip(row["scores"], row["scored"], strict=True) if scored]


def _shown_scores(label: str, text: pd.Series) -> tuple[str, Sequence[float]]:
    """The scores as they are; shares, which sum to 1, as their difference from uniform."""
    values, scored = [float(score) for score in text["scores"]], _scored(text)
    if min(scored) < 0 or not math.isclose(sum(scored), 1.0, rel_tol=1e-3):
        return label, values
    return f"{label} (above uniform)", [value - 1 / len(scored) for value in values]
