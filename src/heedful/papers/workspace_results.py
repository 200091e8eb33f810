"""The results of a workspace, as the report and the ledger read them: one per trial and model, its seeds combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heedful import catalogue
from heedful.papers import assign_papers
from heedful.papers.chapter import CorpusStatistics, Result, flat_settings
from heedful.results import combine_seeds
from heedful.store.artefact_files import IndexEntry
from heedful.store.recipe import Json

OTHER_CHAPTER = "other"
"""In place of a paper, for trials that belong to none."""


def model_key(entry: IndexEntry) -> tuple[str, ...]:
    """Corpus, encoder, attention and trial of an artefact."""
    return tuple(str(entry.facts.get(name) or "") for name in ("corpus", "encoder", "attention", "trial"))


def trial_groups(entries: Sequence[IndexEntry]) -> dict[str, list[IndexEntry]]:
    """The finished trials by group: runs that differ only in the seeds of their models."""
    groups: dict[str, list[IndexEntry]] = {}
    for entry in sorted((entry for entry in entries if entry.kind == "trial"), key=_sort_key):
        groups.setdefault(entry.group, []).append(entry)
    return groups


def _sort_key(entry: IndexEntry) -> tuple[object, ...]:
    *model, trial = model_key(entry)
    order = list(catalogue.TRIALS)
    rank = order.index(trial) if trial in order else len(order)
    seed = entry.facts.get("seed")
    return *model, rank, str(entry.settings), entry.group, seed if isinstance(seed, int) else 0


def combine_runs(
    runs: Sequence[IndexEntry],
    paper: str,
    recipe: Mapping[str, Json],
    model_notes: Mapping[str, Json],
    mean_length: float | None,
) -> Result:
    """The runs of one trial as one result.

    Args:
        paper: whose chapter shows it.
        recipe: the flat recipe of the first run.
        model_notes: those of its model, with the sizes of its corpus.
        mean_length: of the test texts; None where the trial stored no lengths.
    """
    first = runs[0]
    facts, counts, vocabulary = first.facts, model_notes.get("sizes"), model_notes.get("vocabulary")
    sizes = {
        split: tuple(int(str(count)) for count in by_class.values()) if isinstance(by_class, dict) else ()
        for split, by_class in (counts.items() if isinstance(counts, dict) else ())
    }
    summaries = [run.open().summary for run in runs]
    return Result(
        str(facts["trial"]),
        paper,
        corpus=str(facts.get("corpus") or ""),
        encoder=str(facts.get("encoder") or ""),
        attention=str(facts.get("attention") or ""),
        summary=combine_seeds([summary for summary in summaries if summary]),
        n_seeds=len(summaries),
        entries=tuple(runs),
        settings=first.settings,
        recipe=recipe,
        embeddings=str(facts.get("embeddings") or ""),
        quick=bool(facts.get("quick")),
        corpus_statistics=CorpusStatistics(sizes, vocabulary if isinstance(vocabulary, int) else None, mean_length),
    )


def workspace_results(entries: Sequence[IndexEntry], papers: Mapping[str, str] | None = None) -> list[Result]:
    """The results of finished trials, from the index of a workspace.

    Args:
        papers: the paper that each trial belongs to, by artefact name; others are left out. By default all are read,
            with the paper whose model they examine.
    """
    if papers is not None:
        entries = [entry for entry in entries if entry.kind != "trial" or entry.name in papers]
    groups, by_name = trial_groups(entries), {entry.name: entry for entry in entries}
    firsts = {group: runs[0].open() for group, runs in groups.items()}
    recipes = {group: flat_settings(dict(artefact.recipe)) for group, artefact in firsts.items()}
    papers = papers or assign_papers([run for runs in groups.values() for run in runs], recipes)
    results = []
    for group, runs in groups.items():
        model = by_name.get(runs[0].link("subject") or "")
        table = firsts[group].table
        length = float(table["length"].mean()) if "length" in table else None
        paper = papers.get(runs[0].name, OTHER_CHAPTER)
        results.append(combine_runs(runs, paper, recipes[group], {} if model is None else model.open().notes, length))
    return results
