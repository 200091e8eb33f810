"""The tables and figures over all corpora of each paper, by the paper's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from heedful import catalogue, printed
from heedful.core.figures import Figure
from heedful.report import attefa, scaffold, song, tabulating, wiegreffe
from heedful.report.content import TableView
from heedful.report.tabulating import Told
from heedful.trials.trial import Trial

_TABLES: Mapping[str, Callable[[Sequence[Told]], tuple[TableView, ...]]] = {
    "jain-wallace": tabulating.tables,
    "wiegreffe-pinter": wiegreffe.tables,
    "attefa": attefa.tables,
    printed.SONG: song.tables,
    scaffold.NAME: scaffold.tables,
}
_FIGURES: Mapping[str, Callable[[Sequence[Told]], tuple[Figure, ...]]] = {
    "jain-wallace": tabulating.figures,
    "wiegreffe-pinter": wiegreffe.figures,
    "attefa": attefa.figures,
    printed.SONG: song.figures,
    scaffold.NAME: scaffold.figures,
}


def tables(paper: str, told: Sequence[Told]) -> tuple[TableView, ...]:
    """The paper's tables, as far as there is something to tell; `told` may hold trials of all papers."""
    if paper not in _TABLES:
        return ()
    short, dropped = _shortened(paper, _own(paper, told))
    found = _TABLES[paper](short)
    return tuple(replace(table, note=f"{table.note} Word vectors: {dropped}.") for table in found) if dropped else found


def source(paper: str, trial: type[Trial]) -> str:
    """Where the paper has this trial; trials that the Song borrows have a place of their own there."""
    return song.SOURCES.get(trial.name, trial.source) if paper == printed.SONG else trial.source


def figures(paper: str, told: Sequence[Told]) -> tuple[Figure, ...]:
    """The paper's figures over all corpora, as far as there is something to draw."""
    return _FIGURES[paper](_shortened(paper, _own(paper, told))[0]) if paper in _FIGURES else ()


def _own(paper: str, told: Sequence[Told]) -> list[Told]:
    """Without what is told under the last two papers, which have models of their own; these without all others.

    The papers before them examine the same models, so that each has a use for what is told under another.
    """
    return [each for each in told if (each.paper == paper if paper in APART else each.paper not in APART)]


APART = (printed.SONG, scaffold.NAME)
"""Papers with models of their own."""


def _shortened(paper: str, told: Sequence[Told]) -> tuple[Sequence[Told], str]:
    """The same without the vectors' name in labels where all trials of a later paper have the same vectors."""
    several = {each.vectors for each in told if each.trial in LATER}
    if paper == "jain-wallace" or len(several) != 1:
        return told, ""
    return [replace(each, vectors="") for each in told], several.pop()


LATER = frozenset(trial.name for trial in catalogue.TRIALS.values() if trial.paper != "jain-wallace")
"""Trials of all papers but the first."""
