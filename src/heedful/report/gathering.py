"""From a workspace to the page that tells about it. Only what is on disk is read; nothing is trained or computed anew.

Runs of one trial that differ in nothing but the seed are told together, with the spread over seeds beside the mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from heedful import __version__, catalogue, papers
from heedful.figures import Axis, Figure, Heatmap, Lines, Series
from heedful.measures.feature_agreement import TopKAgreement
from heedful.papers import published
from heedful.papers._chapter import Cell, Comparison, TableView
from heedful.report import averaging, chapters, deceived, scaffold_figures, scaffold_numbers
from heedful.report.averaging import combine_seeds, defined_values
from heedful.report.beside import trained_adversary_table
from heedful.report.content import Chapter, Link, Page, Section
from heedful.report.examples import TRIALS_WITH_EXAMPLES, ExampleScores, example_heatmaps
from heedful.report.incomplete import completeness_warnings
from heedful.report.lookup import write_explorers
from heedful.report.page import write_page
from heedful.report.runs import Run, finished_runs, json_object, result_row
from heedful.report.shelves import describe_training, group_by_model
from heedful.report.tabulating import ResultRow
from heedful.store.recipe import Json, dump_compact_json
from heedful.store.workspace import IndexEntry, Workspace
from heedful.trials import _trial as tidy
from heedful.types import SPLITS


def write_report(workspace: Workspace, folder: Path) -> Path:
    """Writes `folder/index.html` about all finished work, pages about its texts beside it, and gives its path."""
    write_explorers(group_by_model(workspace.entries()), folder)
    return write_page(build_page(workspace), folder)


def build_page(workspace: Workspace) -> Page:
    """The page's content."""
    finished = workspace.entries()
    runs = sorted(finished_runs(finished), key=_sort_key)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group_key, []).append(run)
    homes = _papers_by_subject(runs)
    all_told = [
        result_row(group, combine_seeds(_seed_summaries(group)), _find_paper(group[0], homes))
        for group in groups.values()
    ]
    known = _ReportData(finished, all_told, homes)
    found = [_build_chapter(name, list(groups.values()), known) for name in papers.PAPERS]
    return Page(
        title="Does attention explain this model?",
        lead=(
            "Each section puts one claim to the test on one trained model: what was tested, what came out, what it "
            "means and what it does not mean. Published numbers stand beside ours where there are any."
        ),
        provenance={"heedful": __version__, "workspace": workspace.root.name, "finished trials": len(runs)},
        papers=tuple(chapter for chapter in found if chapter.sections),
    )


@dataclass(frozen=True)
class _ReportData:
    """All that is finished, what the tables over all corpora are made from, and the chapter of each subject."""

    finished: Sequence[IndexEntry]
    results: Sequence[ResultRow]
    papers_by_subject: Mapping[str, str]

    def chapter(self, run: Run) -> str:
        """The paper under which a run is told."""
        return _find_paper(run, self.papers_by_subject)


SHARED_TRIALS = ("performance", "agreement")
"""Trials that several papers have: they are told with what else was done to the same model."""
REPEATED_TRIALS = frozenset({("necessity", published.DISAGREEMENT_PAPER)})
"""Trials of one paper that a later one repeats on models of its own, and that paper."""


def _find_paper(run: Run, homes: Mapping[str, str]) -> str:
    """A model's performance stands with what was done to that model; most trials stand under their own paper."""
    home = homes.get(dump_compact_json(run.recipe["subject"]), run.trial.paper)
    return home if run.trial.name in SHARED_TRIALS or (run.trial.name, home) in REPEATED_TRIALS else run.trial.paper


def _papers_by_subject(runs: Sequence[Run]) -> dict[str, str]:
    """The last paper whose trials examine each subject: later papers use trials of earlier ones, not the reverse."""
    order = list(papers.PAPERS)
    examined = [run for run in runs if run.trial.name not in SHARED_TRIALS]
    return {
        dump_compact_json(run.recipe["subject"]): run.trial.paper
        for run in sorted(examined, key=lambda run: order.index(run.trial.paper))
    }


def _build_chapter(name: str, groups: Sequence[list[Run]], known: _ReportData) -> Chapter:
    paper = papers.PAPERS[name]
    sections = tuple(_build_section(group, known) for group in groups if known.chapter(group[0]) == name)
    if not sections:
        return Chapter(name, paper.title, paper.question)
    found = chapters.paper_tables(name, known.results), chapters.paper_figures(name, known.results)
    return Chapter(name, paper.title, paper.question, sections, *found)


def _seed_summaries(runs: Sequence[Run]) -> list[dict[str, float]]:
    return [run.trial.flat_summary(run.artefact.table) for run in runs]


def _interpretation(runs: Sequence[Run], summaries: Sequence[Mapping[str, float]]) -> str:
    trial = runs[0].trial
    if trial.tidy:
        return trial.interpretation(tidy.combine_seeds([trial.summary(run.artefact.table) for run in runs]))
    return trial.flat_interpretation(combine_seeds(summaries))


def _sort_key(run: Run) -> tuple[str, str, str, int, int]:
    about = run.about
    order = list(catalogue.TRIALS.values()).index(run.trial)
    return str(about["corpus"]), str(about["encoder"]), str(about["attention"]), order, run.seed


def _build_section(runs: list[Run], known: _ReportData) -> Section:
    first, trial = runs[0], runs[0].trial
    summaries, only = _seed_summaries(runs), _seed_suffix(runs)
    names = {key: str(first.about[key]) for key in ("corpus", "encoder", "attention")}
    return Section(
        anchor="-".join([trial.name, *names.values()]),
        experiment=trial.name,
        title=f"{trial.title} {names['corpus']}: {', '.join([names['encoder'], names['attention'], *_title_variant(first)])}",
        claim=trial.claim,
        source=chapters.trial_source(known.chapter(first), trial),
        about={**names, **_section_settings(runs)},
        interpretation=" ".join(filter(None, [_interpretation(runs, summaries), averaging.interval_caveat(summaries)])),
        limits=trial.limits,
        tables=(
            *_summary_tables(runs, summaries, known.chapter(first)),
            *_trained_adversary_tables(runs, known.finished),
            *_data_table(first),
        ),
        figures=_section_figures(runs, known.finished),
        heatmaps=tuple(replace(each, title=each.title + only) for each in _section_heatmaps(first, known.finished)),
        warnings=(
            *dict.fromkeys(each for run in runs for each in _run_warnings(run)),
            *completeness_warnings(runs, known.finished),
        ),
        texts=_text_links(runs),
        texts_note=NO_TEXTS_NOTE if trial.name in TRIALS_WITH_EXAMPLES else "",
    )


def _seed_suffix(runs: Sequence[Run]) -> str:
    """What follows the name of something that shows the first of several seeds."""
    return f", seed {runs[0].seed} only" if len(runs) > 1 else ""


def _trained_adversary_tables(runs: Sequence[Run], finished: Sequence[IndexEntry]) -> tuple[TableView, ...]:
    return tuple(
        replace(each, caption=each.caption + _seed_suffix(runs)) for each in trained_adversary_table(runs[0], finished)
    )


def _section_figures(runs: Sequence[Run], finished: Sequence[IndexEntry]) -> tuple[Figure, ...]:
    """What is drawn of the first seed, which the titles name where there are more."""
    first = runs[0]
    drawn = (
        *first.trial.figures(first.artefact.table),
        *_training_curves(first),
        *scaffold_figures.simulability_figures(first, finished),
    )
    return tuple(replace(each, title=each.title + _seed_suffix(runs)) for each in drawn)


NO_TEXTS_NOTE = (
    "Texts cannot be looked up here: their words are not in the workspace, or were stored by an older version. "
    "Run the paper again, which makes only what is missing."
)


def _text_links(runs: list[Run]) -> tuple[Link, ...]:
    """Where the texts of each seed can be looked up."""
    found = [
        (run.seed, run.model_artefacts.address)
        for run in runs
        if run.model_artefacts is not None and run.model_artefacts.attributions
    ]
    return tuple(Link(f"seed {seed}", address) for seed, address in found)


def _title_variant(run: Run) -> list[str]:
    """What tells runs of one trial on one subject apart, for the title."""
    epsilon, solver = run.recipe.get("epsilon"), run.recipe.get("solver")
    if run.measure != "kendall":
        return [f"{run.measure}, k {run.recipe['k']}" if run.recipe["measure"] in TOP_K_MEASURES else run.measure]
    if run.recipe.get("rank", "score") != "score":
        return ["ranked by size" if run.recipe["rank"] == "size" else "what speaks against first"]
    return [] if solver is None else [str(solver), f"epsilon {epsilon}"]


TOP_K_MEASURES = ("top-k", *get_args(TopKAgreement))
"""Measures of agreement that look at the first k units."""


def _section_settings(runs: list[Run]) -> dict[str, str]:
    first = runs[0]
    fit = json_object(json_object(first.recipe["subject"])["training"])
    notes = first.artefact.notes
    found = {"seeds": ", ".join(str(run.seed) for run in runs), "instances": f"{notes['n']} of {notes['of']}"}
    for option in ("epsilon", "solver", "layer", "head", "measure"):
        if first.recipe.get(option) is not None:
            found[option] = str(first.recipe[option])
    return {**found, **describe_training(first.recipe["subject"]), "epochs": str(fit["epochs"])}


def _summary_tables(runs: list[Run], summaries: Sequence[Mapping[str, float]], paper: str) -> tuple[TableView, ...]:
    """The summary with print beside it: numbers of the whole, then those that stand at several places."""
    first = runs[0]
    if first.trial.name in scaffold_numbers.SUMMARY_TABLES:
        found = scaffold_numbers.SUMMARY_TABLES[first.trial.name](combine_seeds(summaries))
        return (
            tuple(replace(each, note=f"{each.note}{averaging.SEEDS_NOTE}") for each in found)
            if len(runs) > 1
            else found
        )
    about = {key: str(value) for key, value in first.about.items()}
    print_numbers = published.published_numbers(first.trial.name, {**about, "measure": first.measure}, paper)
    cells = {
        name: _SummaryCell(mean, print_numbers.get(name), summaries, name)
        for name, mean in combine_seeds(summaries).items()
    }
    placed = {name.split(".", 1)[0] for name in cells if "." in name}
    whole = {name: cell for name, cell in cells.items() if name not in placed and "." not in name}
    note = published.provenance(first.trial.name, paper) if published else ""
    spread = len(runs) > 1
    of_bounds = "; of intervals, the outermost bounds" if averaging.interval_caveat(summaries) else ""
    caption = f"Summary (mean of {len(runs)} seeds{of_bounds})" if spread else "Summary (one seed)"
    if not placed:
        return (replace(_overall_table(whole, caption, spread=spread), note=note),)
    parts = _subset_table({name: cell for name, cell in cells.items() if name not in whole}, caption, spread=spread)
    if len(whole) < MIN_OVERALL_NUMBERS:
        return (replace(_subset_table(cells, caption, spread=spread), note=note),)
    rest = replace(parts, caption="The same in parts", note=note)
    return (_overall_table(whole, caption, spread=spread), rest)


MIN_OVERALL_NUMBERS = 3
"""So few numbers of the whole stand in one table with those of its parts."""


def _overall_table(cells: Mapping[str, _SummaryCell], caption: str, *, spread: bool) -> TableView:
    rows = tuple(
        (readable_name(name), cell.comparison, cell.deviation)[: 3 if spread else 2] for name, cell in cells.items()
    )
    columns = ("number", "value", "deviation over seeds")[: 3 if spread else 2]
    return TableView(caption, columns, rows)


@dataclass(frozen=True)
class _SummaryCell:
    """One number of a summary over the seeds, and what was printed."""

    mean: float
    published: float | None
    summaries: Sequence[Mapping[str, float]]
    name: str

    @property
    def comparison(self) -> Comparison:
        return Comparison(self.mean if self.mean == self.mean else None, self.published)

    @property
    def deviation(self) -> float | str:
        values = defined_values(self.summaries, self.name)
        return statistics.stdev(values) if len(values) > 1 else ""


def _subset_table(cells: Mapping[str, _SummaryCell], caption: str, *, spread: bool) -> TableView:
    """A row for each place (overall, a class, a class and a bin), a column for each number."""
    split = {name: [*name.split(".", 1), "overall"][:2] for name in cells}
    numbers = list(dict.fromkeys(number for number, _ in split.values()))
    places = list(dict.fromkeys(place for _, place in split.values()))
    columns = ["where"]
    for number in numbers:
        columns += [readable_name(number), "deviation over seeds"][: 2 if spread and number != "n" else 1]
    rows = []
    for place in sorted(places, key=lambda place: place != "overall"):
        row: list[Cell] = [readable_name(place)]
        for number in numbers:
            cell = cells.get(number if place == "overall" else f"{number}.{place}")
            row += _subset_cells(cell, counted=number == "n")[: 2 if spread and number != "n" else 1]
        rows.append(tuple(row))
    return TableView(caption, tuple(columns), tuple(rows))


def _subset_cells(cell: _SummaryCell | None, *, counted: bool) -> list[Cell]:
    if cell is None:
        return ["", ""]
    whole = round(cell.mean) if counted and cell.mean == round(cell.mean) else cell.mean
    return [whole if counted else cell.comparison, cell.deviation]


def readable_name(name: str) -> str:
    """A summary's name for people: `median_change.class_0` becomes "median change, class 0"."""
    return name.replace(".class", ", class").replace(".attention", ", attention").replace("_", " ")


def _training_curves(run: Run) -> tuple[Figure, ...]:
    """Training history, shown once per subject, beside its performance."""
    if run.trial.name != "performance" or run.subject is None or len(run.subject.table) < 2:
        return ()
    table = run.subject.table
    epochs = Series("epoch", tuple(float(value) for value in table["epoch"]))
    scores = [column for column in table.columns if column not in ("epoch", "loss")]
    curves = tuple((epochs, Series(readable_name(name), tuple(table[name]))) for name in scores)
    selected = run.subject.notes["selected_on"]
    return (Lines(f"Scores on {selected} during training", Axis("epoch"), Axis("score"), curves),)


def _run_warnings(run: Run) -> list[str]:
    """What a reader must know before believing the numbers of one seed."""
    found: list[str] = []
    subject, notes = run.subject, run.artefact.notes
    if run.quick and subject is not None:
        part = json_object(subject.notes["corpus"]).get("a random part only", "")
        found.append(f"A quick version, not to be compared with print: a random part of the corpus ({part}).")
    if notes["n"] != notes["of"]:
        found.append(f"Measured on {notes['n']} of {notes['of']} test instances.")
    if subject is not None and subject.notes["selected_on"] == "test":
        found.append("The epoch was chosen on the test split, to replicate a paper: its scores are too good.")
    if subject is not None:
        found += [str(note) for note in _json_list(subject.notes["model"])]
    return found


def _data_table(run: Run) -> tuple[TableView, ...]:
    """What the model was trained and tested on, shown once per subject, beside its performance."""
    if run.trial.name != "performance" or run.subject is None:
        return ()
    notes = run.subject.notes
    sizes, left_out, remarks = (json_object(notes[key]) for key in ("sizes", "left_out", "remarks"))
    rows = tuple(
        (split, _format_counts(sizes[split]), _format_counts(left_out[split]), _format_counts(remarks[split]))
        for split in SPLITS
    )
    told = [f"{name}: {_format_value(value)}" for name, value in json_object(notes["corpus"]).items()]
    told.append(f"vocabulary: {notes['vocabulary']}; parameters of the model: {notes['parameters']}")
    return (TableView("The data", ("split", "examples", "left out", "remarks"), rows, "; ".join(told)),)


def _format_counts(value: Json) -> str:
    return "; ".join(f"{name}: {_format_value(count)}" for name, count in json_object(value).items()) or "none"


def _format_value(value: Json) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _section_heatmaps(run: Run, finished: Sequence[IndexEntry]) -> tuple[Heatmap, ...]:
    if run.trial.name == "tradeoff":
        return deceived.tradeoff_heatmaps(run.finished, finished)
    if run.trial.name == "plausibility":
        return scaffold_figures.plausibility_heatmaps(run, finished)
    attention = run.attributions.get("RawAttention")
    if run.trial.name not in TRIALS_WITH_EXAMPLES or attention is None or run.subject is None:
        return ()
    gradient = run.attributions.get("Gradient")
    classes = [str(name) for name in _json_list(run.subject.notes["classes"])]
    scores = ExampleScores(attention.table, None if gradient is None else gradient.table, classes)
    return example_heatmaps(run.trial.name, run.artefact.table, scores)


def _json_list(value: Json) -> list[Json]:
    assert isinstance(value, list)
    return value
