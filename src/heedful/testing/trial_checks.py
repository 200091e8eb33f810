"""A check for your own trials; heedful's own tests run it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from heedful.results import SUMMARY_COLUMNS
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.testing.checks import STABLE_SEED, CheckReport, other_hash, run_law
from heedful.trials.trial import Trial

TrialLaw = Callable[[Trial, Artefact, Workspace], Iterator[str]]
"""The problems of a trial and what it made."""


def check_trial(trial: Trial, workspace: Workspace) -> CheckReport:
    """Check that a trial says what it tests, gives the same rows again, and can be read by the report.

    Args:
        workspace: where its models are stored; nothing of the trial itself is stored or read.
    """
    made: list[Artefact] = []

    def check_making() -> Iterator[str]:
        made.append(trial.make(workspace))
        if not len(made[0].table.columns) and not made[0].shards:
            yield "make returned an artefact without a table"

    results = [run_law("it runs and makes a table", "done", check_making)]
    for law, check in _TRIAL_LAWS.items() if results[0].passed else ():
        results.append(run_law(law, "holds", check, trial, made[0], workspace))
    return CheckReport(type(trial).__name__, tuple(results))


def _check_texts(trial: Trial, artefact: Artefact, workspace: Workspace) -> Iterator[str]:
    texts = trial.texts(trial.summarize(artefact))
    yield from (f"{name} is empty" for name, text in vars(texts).items() if not text)


def _check_summary(trial: Trial, artefact: Artefact, workspace: Workspace) -> Iterator[str]:
    summary = trial.summarize(artefact)
    if [*summary.columns] != [*SUMMARY_COLUMNS]:
        yield f"the columns are {', '.join(map(str, summary.columns))}, not {', '.join(SUMMARY_COLUMNS)}"
    elif summary.duplicated(["metric", "method", "subset"]).any():
        yield "two rows have the same metric, method and subset"


def _check_verdicts(trial: Trial, artefact: Artefact, workspace: Workspace) -> Iterator[str]:
    summary = trial.summarize(artefact)
    if not trial.interpretation(summary).strip():
        yield "the interpretation is empty"
    trial.findings(summary)
    trial.figures(artefact.table)


def _check_repeated(trial: Trial, artefact: Artefact, workspace: Workspace) -> Iterator[str]:
    if difference := _difference(artefact.table, trial.make(workspace).table):
        yield f"{difference} when it is made again"


def _check_hash_independence(trial: Trial, artefact: Artefact, workspace: Workspace) -> Iterator[str]:
    def table(salt: int) -> pd.DataFrame:
        with other_hash(trial, salt):
            return trial.make(workspace).table

    # Rows that differ anyway are the fault of another law.
    first = table(1)
    if _difference(first, table(2)) and not _difference(first, table(1)):
        yield f"rows would differ between processes: {STABLE_SEED}"


def _difference(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """The first column in which two tables differ, in words; empty if they are equal."""
    if [*first.columns] != [*second.columns] or len(first) != len(second):
        return "there are other rows or columns"
    differing = [name for name in first.columns if first[name].map(repr).tolist() != second[name].map(repr).tolist()]
    return f"the column {differing[0]!r} differs" if differing else ""


_TRIAL_LAWS: dict[str, TrialLaw] = {
    "title, claim, source and limits are given": _check_texts,
    "the summary is tidy": _check_summary,
    "findings, figures and interpretation can be made": _check_verdicts,
    "it gives the same rows again": _check_repeated,
    "rows do not depend on hash()": _check_hash_independence,
}
