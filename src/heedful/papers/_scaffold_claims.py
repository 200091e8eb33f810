"""What "Learning to Scaffold" claims, tested on students and on the words that people marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heedful.measures.intervals import paired_seed_difference
from heedful.papers._scaffold_chapter import PUBLISHED_ROWS, SMAT_ROW, published_row, student_arms, training_sizes
from heedful.papers.chapter import Result, distinguish
from heedful.papers.claims import Criterion, Evidence, PaperClaim, cautious_difference, model_name
from heedful.papers.scaffold import NORMALIZERS
from heedful.results import Statistic, get_statistic

STATIC_ROWS = {
    row for name, row in PUBLISHED_ROWS.items() if row != SMAT_ROW and name != "none" and "oracle" not in name
}
"""The paper's rows of explanations that are not learned."""


def _select(results: Sequence[Result], trial: str) -> list[Result]:
    return distinguish([result for result in results if result.trial == trial and result.entries])


def _student_rows(results: Sequence[Result]) -> Iterator[tuple[str, Result, str, dict[str, str]]]:
    """For each model and training size: its name, the trial, the size, and the paper's row of each arm.

    Of several learned mixes, that with the paper's normalizer is kept.
    """
    for result in _select(results, "simulability"):
        rows = {
            arm: PUBLISHED_ROWS.get(str(facts["explanation"]), "")
            for arm, facts in student_arms(result).items()
            if facts["normalizer"] in (None, NORMALIZERS[0])
        }
        for size in training_sizes(result):
            yield f"{model_name(result)}, {size}", result, size, rows


def _measure_help(results: Sequence[Result]) -> Evidence:
    """The gain of students with learned explanations over students without any."""
    return {
        name: (get_statistic(result.summary, "difference", arm, size),)
        for name, result, size, rows in _student_rows(results)
        for arm, row in rows.items()
        if row == SMAT_ROW
    }


def _measure_gains(results: Sequence[Result]) -> Evidence:
    """The gain of students with learned explanations over students with each static one, paired by seed."""
    evidence = {}
    for name, result, size, rows in _student_rows(results):
        table = result.table()
        scores = {
            str(arm): arm_rows.sort_values("seed")["simulability"].tolist()
            for arm, arm_rows in table[table["size"] == training_sizes(result)[size]].groupby("arm")
        }
        learned = [arm for arm, row in rows.items() if row == SMAT_ROW]
        evidence[name] = tuple(
            Statistic("gain", f"{arm} over {other}", size, *paired_seed_difference(scores[arm], scores[other]))
            for arm in learned[:1]
            for other, row in rows.items()
            if row in STATIC_ROWS
        )
    return evidence


def _measure_plausibility(results: Sequence[Result]) -> Evidence:
    """How much better learned explanations find the marked words than each static one, in each part of the texts."""
    evidence = {}
    for result in _select(results, "plausibility"):
        rows = {method: published_row(result, method) for method in result.methods("auc")}
        for part in dict.fromkeys(subset for method in rows for subset in result.subsets("auc", method)):
            areas = {method: get_statistic(result.summary, "auc", method, part) for method in rows}
            learned = [areas[method] for method, row in rows.items() if row == SMAT_ROW]
            evidence[", ".join(filter(None, (model_name(result), part)))] = tuple(
                cautious_difference(area, areas[other], "gain")
                for area in learned[:1]
                for other, row in rows.items()
                if row in STATIC_ROWS
            )
    return evidence


_NEEDED_STUDENTS = "students with learned and with static explanations, three seeds or more"
CLAIMS = (
    PaperClaim(
        "learned-explanations-help",
        "Learned explanations help a student to predict what its teacher predicts.",
        "section 5, tables 1, 3 and 5",
        {"difference": Criterion("the gain over students without explanations", "above", 0.0)},
        _measure_help,
        _NEEDED_STUDENTS,
    ),
    PaperClaim(
        "learned-explanations-help-more",
        "Learned explanations help a student more than any static one.",
        "section 5, tables 1, 3 and 5",
        {"gain": Criterion("the smallest gain over students with a static explanation", "above", 0.0)},
        _measure_gains,
        _NEEDED_STUDENTS,
    ),
    PaperClaim(
        "learned-explanations-are-plausible",
        "Learned explanations find the words that people marked better than static ones.",
        "section 5, tables 2 and 6",
        {"gain": Criterion("the smallest gain in AUC over a static explanation", "above", 0.0)},
        _measure_plausibility,
        "plausibility of learned and of static explanations on texts with marked words",
    ),
)
