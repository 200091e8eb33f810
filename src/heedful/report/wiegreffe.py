"""Wiegreffe & Pinter's tables 1 to 5 and figure 5 over all corpora, print beside ours, and what was expected of SST.

Figures 3 and 6 are drawn in the sections of their trials; figure 2 is made by `report.deceived`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from heedful.figures import Axis, Figure, Scatter, Series
from heedful.papers import published
from heedful.papers._chapter import Cell, Comparison, TableView
from heedful.report.judging import Band, Check, check_table
from heedful.report.tabulating import (
    ENCODER_NAMES,
    ResultRow,
    compare_to_published,
    round_count,
    subtract,
    summary_value,
)

F1_BAND, GUIDED_BAND = Band(0.80, 0.85), Band(0.79, 0.84)
SMALL_LAMBDA, LARGE_LAMBDA = 1e-4, 1e-3
"""The jump of SST's curve lies between these two lambdas; on either side the specification has bands."""
SMALL_LAMBDA_JSD_BAND, LARGE_LAMBDA_JSD_BAND, LARGE_LAMBDA_TVD_BAND = Band(high=0.2), Band(0.5), Band(0.03, 0.05)
"""JSD at small lambdas; JSD and TVD at large ones."""
F1_TOLERANCE, JSD_TOLERANCE, TVD_TOLERANCE = 0.025, 0.1, 0.01
"""Half the width of the bands of our specification's check 13, which were set from the authors' runs before ours: F1
.80 to .85 (and .79 to .84 under guides); JSD 0 to .2 at lambdas up to 1e-4 and .5 to .69 from 1e-3 on; TVD .03 to .05.
They were set for SST and are only borrowed for other corpora."""
MIN_ADVERSARY_F1_DROP = 0.1
"""The adversary's guide is at least so much worse than uniform weights; print has .22 on SST."""
_TOLERANCE_NOTE = (
    "A tolerance is half the width of the band that was expected on SST, laid around the printed number; quick "
    "versions are not judged."
)
_ATTENTION_SOURCES = ("uniform", "trained", "base", "adversary")


def wiegreffe_pinter_tables(told: Sequence[ResultRow]) -> tuple[TableView, ...]:
    """Tables 1 to 5 and the bands, as far as there is something to tell."""
    found = (_table_1(told), _table_2(told), _table_3(told), _table_4(told), _table_5(told), _expectation_table(told))
    return tuple(table for table in found if table.rows)


def wiegreffe_pinter_figures(told: Sequence[ResultRow]) -> tuple[Figure, ...]:
    """Figure 5, one for each corpus: our curve, the printed one, and other seeds of the base."""
    return tuple(_tradeoff_scatter(each) for each in _select_results(told, "tradeoff"))


def _select_results(told: Sequence[ResultRow], trial: str) -> list[ResultRow]:
    chosen = [each for each in told if (each.trial, each.attention) == (trial, "additive")]
    order = list(published.ATTEFA_TABLE_CORPORA)
    return sorted(chosen, key=lambda each: order.index(each.corpus) if each.corpus in order else len(order))


def _result_label(each: ResultRow) -> str:
    """The corpus, and the encoder where it is not the paper's."""
    return each.label if each.encoder == "bilstm" else f"{each.label}, {ENCODER_NAMES.get(each.encoder, each.encoder)}"


def _table_1(told: Sequence[ResultRow]) -> TableView:
    """Sizes; every trial of a corpus has the same base, so one of them tells."""
    rows: dict[str, list[tuple[Cell, ...]]] = {}
    for each in (*_select_results(told, "tradeoff"), *_select_results(told, "necessity")):
        row = published.corpus_row("wp_table1", each.corpus)
        mean = Comparison(mean_test_length(each, told), row.get("avg_len"))
        rows.setdefault(each.label, [*corpus_size_rows(each, row), (each.label, "mean length, test", mean)])
    note = "Print counts IMDb's training texts before its filter by length, and does not say whose mean length it has."
    return corpus_size_table(rows, note)


def corpus_size_table(rows: Mapping[str, Sequence[tuple[Cell, ...]]], note: str) -> TableView:
    """Table 1 of either paper; corpora whose sizes are not known are left out."""
    known_ones = tuple(row for several in rows.values() if len(several) > 1 for row in several)
    return TableView("Table 1: corpora", ("corpus", "what", "number"), known_ones, note)


def corpus_size_rows(each: ResultRow, row: Mapping[str, Sequence[int]]) -> list[tuple[Cell, ...]]:
    """The counts of examples by split and class, print beside ours."""
    return [
        (
            each.label,
            f"{split}, class {place}",
            Comparison(round_count(each.corpus_statistics[name]), row[split][place] if row else None),
        )
        for split, place in SIZE_COLUMNS
        if (name := f"{split}.{place}") in each.corpus_statistics
    ]


def mean_test_length(each: ResultRow, told: Sequence[ResultRow]) -> float | None:
    """The mean length of test texts, as this trial or the performance of the same base tells it."""
    if "length" in each.corpus_statistics:
        return each.corpus_statistics["length"]
    for other in told:
        same = (other.trial, other.corpus, other.quick) == ("performance", each.corpus, each.quick)
        if same and other.corpus_statistics.get("test") == each.corpus_statistics.get("test"):
            return other.corpus_statistics.get("length")
    return None


SIZE_COLUMNS = (("train", 0), ("train", 1), ("test", 0), ("test", 1))
"""The counts of examples that tables of sizes have: split and class."""


def _table_2(told: Sequence[ResultRow]) -> TableView:
    """Learned and uniform attention."""
    rows: list[tuple[Cell, ...]] = []
    for each in _select_results(told, "necessity"):
        reported = published.corpus_row("wp_table2", each.corpus).get("reported") if each.encoder == "bilstm" else None
        gain: list[Cell] = [summary_value(each, name) for name in ("difference", "low", "high")]
        for arm in ("learned", "uniform"):
            ours, learned = compare_to_published(each, f"f1.{arm}", F1_TOLERANCE), arm == "learned"
            before = float(reported) if learned and reported is not None else ""
            rows.append((_result_label(each), arm, ours, before, *(gain if learned else ("", "", ""))))
    columns = ("corpus", "attention", "F1", "in Jain & Wallace", "gain", "from", "to")
    note = "F1 of class 1, mean over seeds. The gain over uniform weights is paired by seed, with its 95 % interval."
    return TableView("Table 2: is attention needed?", columns, tuple(rows), f"{note} {_TOLERANCE_NOTE}")


def _table_3(told: Sequence[ResultRow]) -> TableView:
    """A row per guide; guides of ours that the paper lacks have no printed number."""
    rows: list[tuple[Cell, ...]] = []
    for each in _select_results(told, "guided"):
        names = [name.removeprefix("f1.") for name in each.summary if name.startswith("f1.")]
        for guide in sorted(
            names,
            key=lambda guide: (
                _ATTENTION_SOURCES.index(guide) if guide in _ATTENTION_SOURCES else len(_ATTENTION_SOURCES)
            ),
        ):
            # What the adversary lends depends on where its training ended: print has .59 on SST and .93 on Anemia.
            score = compare_to_published(each, f"f1.{guide}", None if guide == "adversary" else F1_TOLERANCE)
            gain: list[Cell] = [summary_value(each, f"{name}.{guide}") for name in ("difference", "low", "high")]
            rows.append((each.label, guide, score, *(("", "", "") if guide == "uniform" else gain)))
    columns = ("corpus", "guide", "F1", "gain over uniform", "from", "to")
    note = "F1 of class 1 of a token-wise model under imposed weights, mean over seeds; 95 % interval paired by seed."
    return TableView("Table 3: guides", columns, tuple(rows), f"{note} {_TOLERANCE_NOTE}")


def _table_4(told: Sequence[ResultRow]) -> TableView:
    """The adversary with the highest F1 among those whose mean divergence is above .4."""
    rows: list[tuple[Cell, ...]] = []
    for each in _select_results(told, "tradeoff"):
        row = published.corpus_row("wp_table4", each.corpus) if each.encoder == "bilstm" else {}
        strength = summary_value(each, "chosen_lambda")
        place = "" if strength is None else f"lambda_{strength:g}"
        rows.append((_result_label(each), "lambda", Comparison(strength, row.get("lambda"))))
        for name, tolerance in (("f1", F1_TOLERANCE), ("tvd", TVD_TOLERANCE), ("jsd", None)):
            pair = Comparison(summary_value(each, f"{name}.{place}"), row.get(name), each.tolerance(tolerance))
            rows.append((_result_label(each), name.upper(), pair))
    note = "The highest F1 among lambdas whose mean JSD is above .4; undefined where no lambda goes so far."
    caption = "Table 4: the best adversary that is different"
    return TableView(caption, ("corpus", "number", "value"), tuple(rows), f"{note} {_TOLERANCE_NOTE}")


def tradeoff_lambdas(each: ResultRow) -> list[float]:
    """The lambdas of a trade-off, in order."""
    places = [name.removeprefix("jsd.lambda_") for name in each.summary if name.startswith("jsd.lambda_")]
    return sorted(float(place) for place in places if ".class_" not in place)


def _table_5(told: Sequence[ResultRow]) -> TableView:
    """Every lambda that we have."""
    rows: list[tuple[Cell, ...]] = []
    for each in _select_results(told, "tradeoff"):
        for strength in tradeoff_lambdas(each):
            place = f"lambda_{strength:g}"
            jsd = compare_to_published(each, f"jsd.{place}", JSD_TOLERANCE if _has_jsd_band(each, strength) else None)
            f1, tvd = (
                compare_to_published(each, f"f1.{place}", F1_TOLERANCE),
                compare_to_published(each, f"tvd.{place}", TVD_TOLERANCE),
            )
            rows.append((_result_label(each), f"{strength:g}", jsd, tvd, f1))
    note = (
        "TVD on the paper's scale, 0 to .5. JSD is judged where the specification has a band: up to lambda 1e-4 while "
        "print is below .2, from 1e-3 on where print is above .5."
    )
    columns = ("corpus", "lambda", "JSD", "TVD", "F1")
    return TableView("Table 5: all lambdas", columns, tuple(rows), f"{note} {_TOLERANCE_NOTE}")


def _has_jsd_band(each: ResultRow, strength: float) -> bool:
    """Whether print lies in one of the two bands for JSD; near the jump between them chance decides."""
    there = each.published.get(f"jsd.lambda_{strength:g}")
    return (strength <= SMALL_LAMBDA and SMALL_LAMBDA_JSD_BAND.verdict(there) == "inside") or (
        strength >= LARGE_LAMBDA and LARGE_LAMBDA_JSD_BAND.verdict(there) == "inside"
    )


def _tradeoff_scatter(each: ResultRow) -> Scatter:
    ours = [
        (summary_value(each, f"jsd.lambda_{s:g}"), summary_value(each, f"tvd.lambda_{s:g}"))
        for s in tradeoff_lambdas(each)
    ]
    seeds = [name.removeprefix("jsd.") for name in each.summary if name.startswith("jsd.seed_") and "class" not in name]
    curves: dict[str, list[tuple[float | None, float | None]]] = {"ours": ours}
    if each.encoder == "bilstm":
        curves["published"] = [(jsd, tvd) for _, _, tvd, jsd in published.published_tradeoff(each.corpus)]
    curves["our other seeds"] = [
        (summary_value(each, f"jsd.{seed}"), summary_value(each, f"tvd.{seed}")) for seed in seeds
    ]
    title = f"Figure 5, {_result_label(each)}: what trained adversaries pay for attending elsewhere"
    jsd, tvd = Axis("mean divergence of attention (JSD)", (0.0, math.log(2))), Axis("mean change of output (TVD)")
    return Scatter(title, jsd, tvd, tuple(scatter_series(curves)), frozenset({"ours", "published"}))


def scatter_series(
    curves: Mapping[str, Sequence[tuple[float | None, float | None]]],
) -> Iterable[tuple[Series, Series]]:
    """Named points as a scatter wants them; undefined points and empty series are left out."""
    for name, points in curves.items():
        defined = [(x, y) for x, y in points if x is not None and y is not None]
        if defined:
            yield Series(name, tuple(x for x, _ in defined)), Series(name, tuple(y for _, y in defined))


def _expectation_table(told: Sequence[ResultRow]) -> TableView:
    """Check 13 of our specification, word by word."""
    sst = {
        trial: each
        for trial, encoder in (
            ("necessity", "bilstm"),
            ("guided", "average"),
            ("tradeoff", "bilstm"),
            ("seeds", "bilstm"),
        )
        for each in reversed(_select_results(told, trial))
        if (each.corpus, each.encoder, each.quick) == ("sst", encoder, False)
    }
    checks = [check for of in (_uniform_baseline_checks, _guided_checks, _tradeoff_checks) for check in of(sst)]
    note = (
        "Bands of our specification (check 13), set from the authors' runs before ours; not adjusted to what came out."
    )
    return check_table("What was expected of SST", checks, note)


def _uniform_baseline_checks(sst: Mapping[str, ResultRow]) -> Iterable[Check]:
    if each := sst.get("necessity"):
        yield "F1 with learned attention", summary_value(each, "f1.learned"), F1_BAND
        yield (
            "F1 with uniform attention, less that with learned",
            _summary_difference(each, "f1.uniform", "f1.learned"),
            Band(-0.02, 0.02),
        )


def _guided_checks(sst: Mapping[str, ResultRow]) -> Iterable[Check]:
    if each := sst.get("guided"):
        for guide in ("uniform", "trained", "base"):
            yield f"F1 under the guide {guide}", summary_value(each, f"f1.{guide}"), GUIDED_BAND
        yield (
            "F1 under the guide base, less that under uniform",
            _summary_difference(each, "f1.base", "f1.uniform"),
            Band(-0.005),
        )
        worse = _summary_difference(each, "f1.adversary", "f1.uniform")
        yield "F1 under the guide adversary, less that under uniform", worse, Band(high=-MIN_ADVERSARY_F1_DROP)


def _tradeoff_checks(sst: Mapping[str, ResultRow]) -> Iterable[Check]:
    each = sst.get("tradeoff")
    if each is None:
        return
    for strength in tradeoff_lambdas(each):
        place, what = f"lambda_{strength:g}", f"at lambda {strength:g}"
        if strength <= SMALL_LAMBDA:
            yield f"JSD {what}", summary_value(each, f"jsd.{place}"), SMALL_LAMBDA_JSD_BAND
        if strength >= LARGE_LAMBDA:
            yield f"JSD {what}", summary_value(each, f"jsd.{place}"), LARGE_LAMBDA_JSD_BAND
            yield f"TVD {what}", summary_value(each, f"tvd.{place}"), LARGE_LAMBDA_TVD_BAND
            if "necessity" in sst:
                lost = subtract(summary_value(sst["necessity"], "f1.learned"), summary_value(each, f"f1.{place}"))
                yield f"F1 lost {what}", lost, Band(high=0.03)
    nearest = [summary_value(each, f"jsd.lambda_{s:g}") for s in tradeoff_lambdas(each) if s >= LARGE_LAMBDA]
    if "seeds" in sst and nearest and nearest[0] is not None:
        what = "median JSD of other seeds, below the mean of the first adversary beyond the jump"
        yield what, summary_value(sst["seeds"], "median_jsd"), Band(high=nearest[0])


def _summary_difference(each: ResultRow, one: str, other: str) -> float | None:
    return subtract(summary_value(each, one), summary_value(each, other))
