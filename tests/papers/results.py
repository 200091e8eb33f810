"""Results for tests of chapters: numbers by (metric, method, subset), and index entries that hold their artefact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

import pandas as pd

from heedful import papers
from heedful.papers.chapter import CorpusStatistics, Result
from heedful.papers.published import NumberKey
from heedful.results import Statistic, combine_seeds, summary_frame
from heedful.store.artefact_files import IndexEntry
from heedful.store.recipe import Artefact, Json
from heedful.store.workspace import Workspace
from heedful.table_view import TableView

Number = float | tuple[float, float, float]
"""A value, or a value with the bounds of its interval."""


def summary(numbers: Mapping[NumberKey, Number], n: float = 40.0) -> pd.DataFrame:
    """A summary over one seed."""
    rows = []
    for key, number in numbers.items():
        value, low, high = number if isinstance(number, tuple) else (number, math.nan, math.nan)
        rows.append(Statistic(*key, value, low, high, n))
    return combine_seeds([summary_frame(rows)])


def named(metric: str, numbers: Mapping[str, Number], subset: str = "") -> dict[NumberKey, Number]:
    """One metric of several methods."""
    return {(metric, method, subset): number for method, number in numbers.items()}


def plain(numbers: Mapping[str, Number]) -> dict[NumberKey, Number]:
    """Metrics of the whole trial."""
    return {(metric, "", ""): number for metric, number in numbers.items()}


@dataclass(frozen=True)
class StoredEntry(IndexEntry):
    """An index entry whose artefact is not on disk."""

    artefact: Artefact = field(default_factory=Artefact)

    def load(self, *, tensors: bool = True, table: bool = True) -> Artefact:
        return self.artefact


def entry(
    name: str,
    kind: str = "trial",
    artefact: Artefact | None = None,
    facts: Mapping[str, Json] | None = None,
    settings: Mapping[str, Json] | None = None,
    links: Mapping[str, list[str]] | None = None,
) -> StoredEntry:
    return StoredEntry(
        name=name,
        kind=kind,
        recipe_class="",
        facts=facts or {},
        settings=settings or {},
        links=links or {},
        path=Path(),
        group=name,
        artefact=artefact or Artefact(),
    )


def result(
    paper: str,
    trial: str,
    numbers: Mapping[NumberKey, Number] | pd.DataFrame,
    corpus: str = "sst",
    encoder: str = "bilstm",
    attention: str = "additive",
    statistics: CorpusStatistics | None = None,
) -> Result:
    frame = numbers if isinstance(numbers, pd.DataFrame) else summary(numbers)
    return Result(trial, paper, corpus, encoder, attention, frame, corpus_statistics=statistics or CorpusStatistics())


def stored_results(workspace: Workspace) -> list[Result]:
    """A result for each trial of a workspace, seeds apart."""
    entries = [each for each in workspace.entries() if each.kind == "trial"]
    assigned = papers.assign_papers(entries)
    return [
        Result(
            str(each.facts["trial"]),
            assigned[each.name],
            str(each.facts["corpus"]),
            str(each.facts["encoder"]),
            str(each.facts["attention"]),
            combine_seeds([each.load().summary]),
            entries=(each,),
            settings=each.settings,
        )
        for each in entries
    ]


SST_SIZES = CorpusStatistics({"train": (3034, 3321), "dev": (400, 421), "test": (863, 862)}, 13826, 19.2)


def table(paper: str, start: str, *results: Result) -> TableView:
    """The table of a chapter whose caption starts like this."""
    (found,) = [each for each in papers.PAPERS[paper].tables(results) if each.caption.startswith(start)]
    return found


def to_stored(value: object) -> Json:
    """The fields of a recipe as they are stored, without digests of data."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_stored(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [to_stored(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
