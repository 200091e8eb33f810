"""From a workspace to the page that tells about it. Only what is on disk is read; nothing is trained or computed anew.

Runs of one trial that differ in nothing but the seed are told together, with the spread over seeds beside the mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from heedful import __version__, catalogue, papers, printed
from heedful.core.disagreement import TopAgreement
from heedful.core.figures import Axis, Figure, Heatmap, Lines, Series
from heedful.core.recipe import compact
from heedful.core.types import SPLITS
from heedful.core.workspace import Finished, Json, Workspace
from heedful.report import averaging, chapters, deceived, scaffold_figures, scaffold_numbers
from heedful.report.averaging import defined, over_seeds
from heedful.report.beside import beside
from heedful.report.content import Cell, Chapter, Link, Page, Pair, Section, TableView
from heedful.report.examples import EXAMPLES, Scores, heatmaps
from heedful.report.incomplete import incomplete
from heedful.report.lookup import write_lookups
from heedful.report.page import write
from heedful.report.runs import Run, finished_runs, mapping, told
from heedful.report.shelves import shelves, training
from heedful.report.tabulating import Told


def write_report(workspace: Workspace, folder: Path) -> Path:
    """Writes `folder/index.html` about all finished work, pages about its texts beside it, and gives its path."""
    write_lookups(shelves(workspace.finished()), folder)
    return write(page(workspace), folder)


def page(workspace: Workspace) -> Page:
    """The page's content."""
    finished = workspace.finished()
    runs = sorted(finished_runs(finished), key=_place)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    homes = _homes(runs)
    all_told = [told(group, over_seeds(_summaries(group)), _paper(group[0], homes)) for group in groups.values()]
    known = _Known(finished, all_told, homes)
    found = [_chapter(name, list(groups.values()), known) for name in papers.PAPERS]
    return Page(
        title="Does attention explain this model?",
        lead=(
            "Each section puts one claim to the test on one trained model: what was tested, what came out, what it "
            "means and what it does not mean. Published numbers stand beside ours where there are any."
        ),
        made_from={"heedful": __version__, "workspace": workspace.root.name, "finished trials": len(runs)},
        papers=tuple(chapter for chapter in found if chapter.sections),
    )


@dataclass(frozen=True)
class _Known:
    """All that is finished, what the tables over all corpora are made from, and the chapter of each subject."""

    finished: Sequence[Finished]
    told: Sequence[Told]
    homes: Mapping[str, str]

    def chapter(self, run: Run) -> str:
        """The paper under which a run is told."""
        return _paper(run, self.homes)


GUESTS = ("performance", "agreement")
"""Trials that several papers have: they are told with what else was done to the same model."""
BORROWED = frozenset({("necessity", printed.SONG)})
"""Trials of one paper that a later one repeats on models of its own, and that paper."""


def _paper(run: Run, homes: Mapping[str, str]) -> str:
    """A model's performance stands with what was done to that model; most trials stand under their own paper."""
    home = homes.get(compact(run.recipe["subject"]), run.trial.paper)
    return home if run.trial.name in GUESTS or (run.trial.name, home) in BORROWED else run.trial.paper


def _homes(runs: Sequence[Run]) -> dict[str, str]:
    """The last paper whose trials examine each subject: later papers use trials of earlier ones, not the reverse."""
    order = list(papers.PAPERS)
    examined = [run for run in runs if run.trial.name not in GUESTS]
    return {
        compact(run.recipe["subject"]): run.trial.paper
        for run in sorted(examined, key=lambda run: order.index(run.trial.paper))
    }


def _chapter(name: str, groups: Sequence[list[Run]], known: _Known) -> Chapter:
    paper = papers.PAPERS[name]
    sections = tuple(_section(group, known) for group in groups if known.chapter(group[0]) == name)
    if not sections:
        return Chapter(name, paper.title, paper.question)
    found = chapters.tables(name, known.told), chapters.figures(name, known.told)
    return Chapter(name, paper.title, paper.question, sections, *found)


def _summaries(runs: Sequence[Run]) -> list[dict[str, float]]:
    return [run.trial.summary(run.artefact.table) for run in runs]


def _place(run: Run) -> tuple[str, str, str, int, int]:
    about = run.about
    order = list(catalogue.TRIALS.values()).index(run.trial)
    return str(about["corpus"]), str(about["encoder"]), str(about["attention"]), order, run.seed


def _section(runs: list[Run], known: _Known) -> Section:
    first, trial = runs[0], runs[0].trial
    summaries, only = _summaries(runs), _only(runs)
    names = {key: str(first.about[key]) for key in ("corpus", "encoder", "attention")}
    return Section(
        anchor="-".join([trial.name, *names.values()]),
        experiment=trial.name,
        title=f"{trial.title} {names['corpus']}: {', '.join([names['encoder'], names['attention'], *_variant(first)])}",
        claim=trial.claim,
        source=chapters.source(known.chapter(first), trial),
        about={**names, **_circumstances(runs)},
        meaning=" ".join(filter(None, [trial.reading(over_seeds(summaries)), averaging.told(summaries)])),
        not_meaning=trial.not_meaning,
        tables=(*_tables(runs, summaries, known.chapter(first)), *_beside(runs, known.finished), *_data_table(first)),
        figures=_figures(runs, known.finished),
        heatmaps=tuple(replace(each, title=each.title + only) for each in _heatmaps(first, known.finished)),
        warnings=(*dict.fromkeys(each for run in runs for each in _warnings(run)), *incomplete(runs, known.finished)),
        texts=_texts(runs),
        texts_note=NO_TEXTS if trial.name in EXAMPLES else "",
    )


def _only(runs: Sequence[Run]) -> str:
    """What follows the name of something that shows the first of several seeds."""
    return f", seed {runs[0].seed} only" if len(runs) > 1 else ""


def _beside(runs: Sequence[Run], finished: Sequence[Finished]) -> tuple[TableView, ...]:
    return tuple(replace(each, caption=each.caption + _only(runs)) for each in beside(runs[0], finished))


def _figures(runs: Sequence[Run], finished: Sequence[Finished]) -> tuple[Figure, ...]:
    """What is drawn of the first seed, which the titles name where there are more."""
    first = runs[0]
    drawn = (*first.trial.figures(first.artefact.table), *_history(first), *scaffold_figures.of(first, finished))
    return tuple(replace(each, title=each.title + _only(runs)) for each in drawn)


NO_TEXTS = (
    "Texts cannot be looked up here: their words are not in the workspace, or were stored by an older version. "
    "Run the paper again, which makes only what is missing."
)


def _texts(runs: list[Run]) -> tuple[Link, ...]:
    """Where the texts of each seed can be looked up."""
    found = [(run.seed, run.shelf.address) for run in runs if run.shelf is not None and run.shelf.methods]
    return tuple(Link(f"seed {seed}", address) for seed, address in found)


def _variant(run: Run) -> list[str]:
    """What tells runs of one trial on one subject apart, for the title."""
    epsilon, solver = run.recipe.get("epsilon"), run.recipe.get("solver")
    if run.measure != "kendall":
        return [f"{run.measure}, k {run.recipe['k']}" if run.recipe["measure"] in TOPS else run.measure]
    if run.recipe.get("rank", "score") != "score":
        return ["ranked by size" if run.recipe["rank"] == "size" else "what speaks against first"]
    return [] if solver is None else [str(solver), f"epsilon {epsilon}"]


TOPS = ("top-k", *get_args(TopAgreement))
"""Measures of agreement that look at the first k units."""


def _circumstances(runs: list[Run]) -> dict[str, str]:
    first = runs[0]
    fit = mapping(mapping(first.recipe["subject"])["fit"])
    notes = first.artefact.notes
    found = {"seeds": ", ".join(str(run.seed) for run in runs), "instances": f"{notes['n']} of {notes['of']}"}
    for option in ("epsilon", "solver", "layer", "head", "measure"):
        if first.recipe.get(option) is not None:
            found[option] = str(first.recipe[option])
    return {**found, **training(first.recipe["subject"]), "epochs": str(fit["epochs"])}


def _tables(runs: list[Run], summaries: Sequence[Mapping[str, float]], paper: str) -> tuple[TableView, ...]:
    """The summary with print beside it: numbers of the whole, then those that stand at several places."""
    first = runs[0]
    if first.trial.name in scaffold_numbers.TABLES:
        found = scaffold_numbers.TABLES[first.trial.name](over_seeds(summaries))
        return tuple(replace(each, note=f"{each.note}{averaging.NOTE}") for each in found) if len(runs) > 1 else found
    about = {key: str(value) for key, value in first.about.items()}
    published = printed.published(first.trial.name, {**about, "measure": first.measure}, paper)
    cells = {name: _Cell(mean, published.get(name), summaries, name) for name, mean in over_seeds(summaries).items()}
    placed = {name.split(".", 1)[0] for name in cells if "." in name}
    whole = {name: cell for name, cell in cells.items() if name not in placed and "." not in name}
    note = printed.provenance(first.trial.name, paper) if published else ""
    spread = len(runs) > 1
    of_bounds = "; of intervals, the outermost bounds" if averaging.told(summaries) else ""
    caption = f"Summary (mean of {len(runs)} seeds{of_bounds})" if spread else "Summary (one seed)"
    if not placed:
        return (replace(_by_number(whole, caption, spread=spread), note=note),)
    parts = _by_place({name: cell for name, cell in cells.items() if name not in whole}, caption, spread=spread)
    if len(whole) < FEW:
        return (replace(_by_place(cells, caption, spread=spread), note=note),)
    rest = replace(parts, caption="The same in parts", note=note)
    return (_by_number(whole, caption, spread=spread), rest)


FEW = 3
"""So few numbers of the whole stand in one table with those of its parts."""


def _by_number(cells: Mapping[str, _Cell], caption: str, *, spread: bool) -> TableView:
    rows = tuple((plain_name(name), cell.pair, cell.spread)[: 3 if spread else 2] for name, cell in cells.items())
    columns = ("number", "value", "deviation over seeds")[: 3 if spread else 2]
    return TableView(caption, columns, rows)


@dataclass(frozen=True)
class _Cell:
    """One number of a summary over the seeds, and what was printed."""

    mean: float
    published: float | None
    summaries: Sequence[Mapping[str, float]]
    name: str

    @property
    def pair(self) -> Pair:
        return Pair(self.mean if self.mean == self.mean else None, self.published)

    @property
    def spread(self) -> float | str:
        values = defined(self.summaries, self.name)
        return statistics.stdev(values) if len(values) > 1 else ""


def _by_place(cells: Mapping[str, _Cell], caption: str, *, spread: bool) -> TableView:
    """A row for each place (overall, a class, a class and a bin), a column for each number."""
    split = {name: [*name.split(".", 1), "overall"][:2] for name in cells}
    numbers = list(dict.fromkeys(number for number, _ in split.values()))
    places = list(dict.fromkeys(place for _, place in split.values()))
    columns = ["where"]
    for number in numbers:
        columns += [plain_name(number), "deviation over seeds"][: 2 if spread and number != "n" else 1]
    rows = []
    for place in sorted(places, key=lambda place: place != "overall"):
        row: list[Cell] = [plain_name(place)]
        for number in numbers:
            cell = cells.get(number if place == "overall" else f"{number}.{place}")
            row += _shown(cell, counted=number == "n")[: 2 if spread and number != "n" else 1]
        rows.append(tuple(row))
    return TableView(caption, tuple(columns), tuple(rows))


def _shown(cell: _Cell | None, *, counted: bool) -> list[Cell]:
    if cell is None:
        return ["", ""]
    whole = round(cell.mean) if counted and cell.mean == round(cell.mean) else cell.mean
    return [whole if counted else cell.pair, cell.spread]


def plain_name(name: str) -> str:
    """A summary's name for people: `median_change.class_0` becomes "median change, class 0"."""
    return name.replace(".class", ", class").replace(".attention", ", attention").replace("_", " ")


def _history(run: Run) -> tuple[Figure, ...]:
    """Training history, shown once per subject, beside its performance."""
    if run.trial.name != "performance" or run.subject is None or len(run.subject.table) < 2:
        return ()
    table = run.subject.table
    epochs = Series("epoch", tuple(float(value) for value in table["epoch"]))
    scores = [column for column in table.columns if column not in ("epoch", "loss")]
    curves = tuple((epochs, Series(plain_name(name), tuple(table[name]))) for name in scores)
    selected = run.subject.notes["selected_on"]
    return (Lines(f"Scores on {selected} during training", Axis("epoch"), Axis("score"), curves),)


def _warnings(run: Run) -> list[str]:
    """What a reader must know before believing the numbers of one seed."""
    found: list[str] = []
    subject, notes = run.subject, run.artefact.notes
    if run.quick and subject is not None:
        part = mapping(subject.notes["corpus"]).get("a random part only", "")
        found.append(f"A quick version, not to be compared with print: a random part of the corpus ({part}).")
    if notes["n"] != notes["of"]:
        found.append(f"Measured on {notes['n']} of {notes['of']} test instances.")
    if subject is not None and subject.notes["selected_on"] == "test":
        found.append("The epoch was chosen on the test split, to replicate a paper: its scores are too good.")
    if subject is not None:
        found += [str(note) for note in _list(subject.notes["model"])]
    return found


def _data_table(run: Run) -> tuple[TableView, ...]:
    """What the model was trained and tested on, shown once per subject, beside its performance."""
    if run.trial.name != "performance" or run.subject is None:
        return ()
    notes = run.subject.notes
    sizes, left_out, remarks = (mapping(notes[key]) for key in ("sizes", "left_out", "remarks"))
    rows = tuple((split, _counts(sizes[split]), _counts(left_out[split]), _counts(remarks[split])) for split in SPLITS)
    told = [f"{name}: {_short(value)}" for name, value in mapping(notes["corpus"]).items()]
    told.append(f"vocabulary: {notes['vocabulary']}; parameters of the model: {notes['parameters']}")
    return (TableView("The data", ("split", "examples", "left out", "remarks"), rows, "; ".join(told)),)


def _counts(value: Json) -> str:
    return "; ".join(f"{name}: {_short(count)}" for name, count in mapping(value).items()) or "none"


def _short(value: Json) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _heatmaps(run: Run, finished: Sequence[Finished]) -> tuple[Heatmap, ...]:
    if run.trial.name == "tradeoff":
        return deceived.heatmaps(run.finished, finished)
    if run.trial.name == "plausibility":
        return scaffold_figures.heatmaps(run, finished)
    attention = run.attributed.get("RawAttention")
    if run.trial.name not in EXAMPLES or attention is None or run.subject is None:
        return ()
    gradient = run.attributed.get("Gradient")
    classes = [str(name) for name in _list(run.subject.notes["classes"])]
    scores = Scores(attention.table, None if gradient is None else gradient.table, classes)
    return heatmaps(run.trial.name, run.artefact.table, scores)


def _list(value: Json) -> list[Json]:
    assert isinstance(value, list)
    return value
