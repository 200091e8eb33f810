"""The tables and figures over all corpora of each paper, by the paper's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from heedful import catalogue
from heedful.figures import Figure
from heedful.papers import published
from heedful.papers._chapter import TableView
from heedful.report import attefa, scaffold, song, tabulating, wiegreffe
from heedful.report.tabulating import ResultRow
from heedful.trials._trial import Trial

_PAPER_TABLES: Mapping[str, Callable[[Sequence[ResultRow]], tuple[TableView, ...]]] = {
    "jain-wallace": tabulating.jain_wallace_tables,
    "wiegreffe-pinter": wiegreffe.wiegreffe_pinter_tables,
    "attefa": attefa.attefa_tables,
    published.DISAGREEMENT_PAPER: song.disagreement_tables,
    scaffold.PAPER_NAME: scaffold.scaffold_tables,
}
_PAPER_FIGURES: Mapping[str, Callable[[Sequence[ResultRow]], tuple[Figure, ...]]] = {
    "jain-wallace": tabulating.jain_wallace_figures,
    "wiegreffe-pinter": wiegreffe.wiegreffe_pinter_figures,
    "attefa": attefa.attefa_figures,
    published.DISAGREEMENT_PAPER: song.disagreement_figures,
    scaffold.PAPER_NAME: scaffold.scaffold_figures,
}


def paper_tables(paper: str, told: Sequence[ResultRow]) -> tuple[TableView, ...]:
    """The paper's tables, as far as there is something to tell; `told` may hold trials of all papers."""
    if paper not in _PAPER_TABLES:
        return ()
    short, dropped = _drop_common_embeddings(paper, _select_paper_results(paper, told))
    found = _PAPER_TABLES[paper](short)
    return tuple(replace(table, note=f"{table.note} Word vectors: {dropped}.") for table in found) if dropped else found


def trial_source(paper: str, trial: type[Trial]) -> str:
    """Where the paper has this trial; trials that the Song borrows have a place of their own there."""
    return song.TRIAL_SOURCES.get(trial.name, trial.source) if paper == published.DISAGREEMENT_PAPER else trial.source


def paper_figures(paper: str, told: Sequence[ResultRow]) -> tuple[Figure, ...]:
    """The paper's figures over all corpora, as far as there is something to draw."""
    return (
        _PAPER_FIGURES[paper](_drop_common_embeddings(paper, _select_paper_results(paper, told))[0])
        if paper in _PAPER_FIGURES
        else ()
    )


def _select_paper_results(paper: str, told: Sequence[ResultRow]) -> list[ResultRow]:
    """Without what is told under the last two papers, which have models of their own; these without all others.

    The papers before them examine the same models, so that each has a use for what is told under another.
    """
    return [
        each
        for each in told
        if (each.paper == paper if paper in PAPERS_WITH_OWN_MODELS else each.paper not in PAPERS_WITH_OWN_MODELS)
    ]


PAPERS_WITH_OWN_MODELS = (published.DISAGREEMENT_PAPER, scaffold.PAPER_NAME)
"""Papers with models of their own."""


def _drop_common_embeddings(paper: str, told: Sequence[ResultRow]) -> tuple[Sequence[ResultRow], str]:
    """The same without the vectors' name in labels where all trials of a later paper have the same vectors."""
    several = {each.embeddings for each in told if each.trial in LATER_TRIALS}
    if paper == "jain-wallace" or len(several) != 1:
        return told, ""
    return [replace(each, embeddings="") for each in told], several.pop()


LATER_TRIALS = frozenset(trial.name for trial in catalogue.TRIALS.values() if trial.paper != "jain-wallace")
"""Trials of all papers but the first."""
