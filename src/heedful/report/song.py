"""The Song of (Dis)agreement over all corpora: tables 1 to 4 with print beside ours, its claims, what was expected.

Who can be trusted, which the paper could not say, is told by `report.trusted`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from heedful.figures import Axis, Bars, Figure, Series
from heedful.papers._chapter import Cell, TableView
from heedful.papers.published import DISAGREEMENT_LABELS, DISAGREEMENT_METHODS
from heedful.report import trusted
from heedful.report.claims import claim_table, mean_tau, method_pairs, result_label, select_agreements
from heedful.report.judging import Band, Check, check_table
from heedful.report.tabulating import ResultRow, compare_to_published, subtract, summary_value
from heedful.trials.agreement import COMPARISON_NOTES

SST_ACCURACY, ACCURACY_TOLERANCE, UNIFORM_TOLERANCE = 0.826, 0.02, 0.015
ATTENTION_BAND = Band(0.05, 0.25)
PATH_TOLERANCE, DEEPLIFT_TOLERANCE, LIME_TOLERANCE = 0.03, 0.07, 0.12
ATTENTION_TOLERANCE = 0.1
"""Check 11 of our specification, set from print for the BiLSTM on SST before our runs: accuracy .826 within .02, and
with uniform attention within .015 of that; tau of the two path methods .97 within .03, of DeepLIFT with them .87 within
.07, of LIME .50 within .12, of attention .05 to .25, which is .1 on either side. Other corpora only borrow them."""
UNTRUSTED_METHOD = "deep-shap"
"""Its cells in print come, as far as can be told, from a fault of the library of that day: they are not judged."""
TRIAL_SOURCES = {
    "agreement": "Neely et al. 2022, sections 3.3 and 5, tables 1, 2 and 4 to 6, figure 1",
    "performance": "Neely et al. 2022, tables 3 and 9",
    "necessity": "Neely et al. 2022, appendix, table 3",
}
"""Where the Song has what are trials of earlier papers."""
_PATH_METHODS = frozenset({"integrated-gradients", "gradient-shap"})
_PAIR_COLUMNS = ("corpus", "pair", "mean tau", "deviation over texts")


def disagreement_tables(told: Sequence[ResultRow]) -> tuple[TableView, ...]:
    """Tables 1 to 4, the claims, the bands, and who can be trusted, as far as there is something to tell."""
    told = largest_runs(told)
    found = (
        _table_1(told),
        _table_2(told),
        _table_3(told),
        _table_4(told),
        claim_table(told),
        _expectation_table(told),
    )
    return tuple(table for table in (*found, *trusted.ground_truth_tables(told)) if table.rows)


def disagreement_figures(told: Sequence[ResultRow]) -> tuple[Figure, ...]:
    """The mean over all pairs of methods by corpus and model, print beside ours; and who finds the truth."""
    told = largest_runs(told)
    return (*_mean_tau_bars([each for each in told if not each.quick]), *trusted.ground_truth_figures(told))


def largest_runs(told: Sequence[ResultRow]) -> list[ResultRow]:
    """Of runs that differ in the number of texts or seeds alone, that with most of them; corpora in print's order.

    Agreement by word, or with special symbols, is told in its own sections only.
    """
    found: dict[tuple[object, ...], ResultRow] = {}
    for each in _drop_single_embeddings([each for each in told if not COMPARISON_NOTES.keys() & each.summary.keys()]):
        key = (each.trial, each.label, each.encoder, each.attention, each.measure)
        if key not in found or _run_size(each) > _run_size(found[key]):
            found[key] = each
    order = list(DISAGREEMENT_LABELS)
    return sorted(found.values(), key=lambda each: order.index(each.corpus) if each.corpus in order else len(order))


def _drop_single_embeddings(told: Sequence[ResultRow]) -> Iterable[ResultRow]:
    """The same without the vectors' name in labels where a model has them with one kind of vectors only."""
    kinds: dict[tuple[object, ...], set[str]] = {}
    for each in told:
        kinds.setdefault(_model_key(each), set()).add(each.embeddings)
    return (replace(each, embeddings="") if len(kinds[_model_key(each)]) == 1 else each for each in told)


def _model_key(each: ResultRow) -> tuple[object, ...]:
    return each.corpus, each.encoder, each.attention, each.quick


def _run_size(each: ResultRow) -> tuple[float, int]:
    """Texts or seeds; of equals the run that tells more, which is one of a later revision."""
    return each.summary.get("n", each.summary.get("seeds", 0.0)), len(each.summary)


def tau_tolerance(pair: str) -> float | None:
    """How far a BiLSTM's tau may be from print; None where print is not to be trusted.

    >>> tau_tolerance("attention~lime"), tau_tolerance("integrated-gradients~gradient-shap"), tau_tolerance("lime~deep-shap")
    (0.1, 0.03, None)
    """
    names = set(pair.split("~"))
    if UNTRUSTED_METHOD in names:
        return None
    if "attention" in names:
        return ATTENTION_TOLERANCE
    return LIME_TOLERANCE if "lime" in names else PATH_TOLERANCE if names == _PATH_METHODS else DEEPLIFT_TOLERANCE


def _pair_label(pair: str) -> str:
    return pair.replace("~", " and ")


def _table_1(told: Sequence[ResultRow]) -> TableView:
    rows: list[tuple[Cell, ...]] = [
        (
            result_label(each),
            _pair_label(pair),
            compare_to_published(each, f"mean.{pair}"),
            compare_to_published(each, f"std.{pair}"),
        )
        for each in select_agreements(told, "rollout")
        for pair in method_pairs("rollout")
    ]
    note = (
        "Not judged: print has DistilBERT with its attention's output projected by the transposed weights, special "
        "symbols in every ranking, and a Deep-SHAP that a fault of its library disturbed; ours is another transformer "
        "without these."
    )
    return TableView("Table 1: transformers, attention by rollout", _PAIR_COLUMNS, tuple(rows), note)


def _table_2(told: Sequence[ResultRow]) -> TableView:
    rows: list[tuple[Cell, ...]] = [
        (
            result_label(each),
            _pair_label(pair),
            compare_to_published(each, f"mean.{pair}", tau_tolerance(pair)),
            compare_to_published(each, f"std.{pair}"),
        )
        for each in select_agreements(told, "attention")
        for pair in method_pairs("attention")
    ]
    note = (
        f"Tolerances are those expected on SST: {ATTENTION_TOLERANCE} with attention, {LIME_TOLERANCE} with LIME, "
        f"{PATH_TOLERANCE} for the two path methods, {DEEPLIFT_TOLERANCE} for DeepLIFT. Pairs with Deep-SHAP are not "
        "judged: theirs was disturbed by a fault of its library. Print's DeepLIFT had no rule for any non-linearity "
        "and so was gradient times input; ours has such rules, and the difference is what they do. On pairs of texts "
        "print's LIME took words at the same place of both texts for one. How far LIME agrees with "
        "integrated gradients depends on how long a model was trained: on SST our tau fell from 0.86 at the epoch that "
        "dev chose to 0.72 after eight epochs of equal accuracy (60 texts). Print's random padding vector is not the "
        "reason: trained with one, our models gave 0.89 and 0.91, as decay brings it close to zero. "
        "Quick versions are not judged."
    )
    return TableView("Table 2: BiLSTM", _PAIR_COLUMNS, tuple(rows), note)


def _table_3(told: Sequence[ResultRow]) -> TableView:
    rows: list[tuple[Cell, ...]] = []
    for each in (each for each in told if each.trial == "necessity"):
        for arm in ("learned", "uniform"):
            rows.append((result_label(each), arm, compare_to_published(each, f"accuracy.{arm}", ACCURACY_TOLERANCE)))
    alone = (each for each in told if each.trial == "performance" and each.corpus in DISAGREEMENT_LABELS)
    weighed = {(each.label, each.encoder) for each in told if each.trial == "necessity"}
    for each in alone:
        if (each.label, each.encoder) not in weighed:
            given = ACCURACY_TOLERANCE if each.encoder == "bilstm" else None
            rows.append((result_label(each), "learned", compare_to_published(each, "accuracy", given)))
    note = (
        f"Inside: within {ACCURACY_TOLERANCE} of print, as was expected on SST. Transformers are not judged: print "
        "has DistilBERT, and below what is usual for it."
    )
    return TableView(
        "Table 3: accuracy with learned and uniform attention", ("corpus", "attention", "accuracy"), tuple(rows), note
    )


def _table_4(told: Sequence[ResultRow]) -> TableView:
    rows: list[tuple[Cell, ...]] = [
        (result_label(each), method, compare_to_published(each, f"mean.flow~{method}"))
        for each in select_agreements(told, "flow")
        for method in DISAGREEMENT_METHODS
    ]
    note = (
        "Not judged, for the reasons of table 1. Print's row of Quora most likely has Int-Grad and DeepLIFT in each "
        "other's place. Print has no IMDb: flow took too long there."
    )
    return TableView("Table 4: attention flow", ("corpus", "with", "mean tau"), tuple(rows), note)


def _expectation_table(told: Sequence[ResultRow]) -> TableView:
    sst = {
        each.trial: each
        for each in reversed(told)
        if (each.corpus, each.encoder, each.attention, each.measure, each.quick)
        == ("sst", "bilstm", "additive", "kendall", False)
    }
    note = (
        "Bands of our specification (check 11), set from print before our runs and for three seeds; not adjusted to "
        "what came out. That of DeepLIFT was set from print's, which was gradient times input."
    )
    checks = [check for of in (_accuracy_checks, _tau_checks) for check in of(sst)]
    return check_table("What was expected of SST with a BiLSTM", checks, note)


def _band_around(centre: float, width: float) -> Band:
    return Band(centre - width, min(1.0, centre + width))


def _accuracy_checks(sst: Mapping[str, ResultRow]) -> Iterable[Check]:
    if each := sst.get("necessity"):
        learned, uniform = (summary_value(each, f"accuracy.{arm}") for arm in ("learned", "uniform"))
        yield "accuracy", learned, _band_around(SST_ACCURACY, ACCURACY_TOLERANCE)
        yield (
            "accuracy with uniform attention, less that with learned",
            subtract(uniform, learned),
            Band(-UNIFORM_TOLERANCE, UNIFORM_TOLERANCE),
        )
    elif each := sst.get("performance"):
        yield "accuracy", summary_value(each, "accuracy"), _band_around(SST_ACCURACY, ACCURACY_TOLERANCE)


def _tau_checks(sst: Mapping[str, ResultRow]) -> Iterable[Check]:
    each = sst.get("agreement")
    if each is None:
        return
    for pair, band in (
        ("integrated-gradients~gradient-shap", _band_around(0.97, PATH_TOLERANCE)),
        ("integrated-gradients~deep-lift", _band_around(0.87, DEEPLIFT_TOLERANCE)),
        ("lime~integrated-gradients", _band_around(0.50, LIME_TOLERANCE)),
        *((f"attention~{method}", ATTENTION_BAND) for method in DISAGREEMENT_METHODS),
    ):
        yield f"tau of {_pair_label(pair)}", summary_value(each, f"mean.{pair}"), band


def _mean_tau_bars(told: Sequence[ResultRow]) -> Iterable[Bars]:
    """One bar chart: means over the fifteen pairs."""
    found = [
        (result_label(each), ours, mean_tau(each.published, attention))
        for attention in ("attention", "rollout")
        for each in select_agreements(told, attention)
        if (ours := mean_tau(each.summary, attention)) is not None
    ]
    if found:
        labels = tuple(label for label, _, _ in found)
        mine = Series("ours", tuple(value for _, value, _ in found))
        theirs = Series("published", tuple(math.nan if value is None else value for _, _, value in found))
        title = "How far methods agree: mean over all pairs of the paper's methods"
        yield Bars(title, Axis("mean tau of 15 pairs"), labels, (mine, theirs))
