"""From a workspace to its report: the index is read once, each artefact at most once, and nothing is computed again.

Runs of one trial that differ only in the seeds of their models share one section.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from heedful import __version__, catalogue
from heedful.figures import Axis, Figure, Heatmap, IntervalPoint, Intervals, Lines, Series
from heedful.formatting import format_number
from heedful.papers import PAPERS, assign_papers
from heedful.papers.chapter import Result, SectionExtras, flat_settings, training_rules
from heedful.papers.example_texts import EXAMPLE_COLUMNS, example_heatmaps
from heedful.papers.published import setting_label
from heedful.papers.workspace_results import OTHER_CHAPTER, combine_runs, model_key, trial_groups
from heedful.report.explorer import delete_stale_pages, write_explorer
from heedful.report.html import check_report_folder, write_atomically
from heedful.report.page import MODEL_FOLDER, Chapter, Link, Page, Section, report_pages
from heedful.report.summaries import Variant, explained_metrics, join_variants, summary_tables
from heedful.report.text_sources import (
    ATTENTION,
    ModelTexts,
    choose_texts,
    find_model_texts,
    page_file,
    read_chosen_texts,
)
from heedful.report.text_table import FOLDER
from heedful.results import EXPLANATION, SUMMARY_COLUMNS, Claim, Finding, Verdict
from heedful.store.artefact_files import CorruptArtefactError, CorruptArtefactWarning, IndexEntry, StoredArtefact
from heedful.store.recipe import Json, json_digest
from heedful.store.workspace import Workspace
from heedful.table_view import TableView
from heedful.training.attribution_tables import COMPLETENESS_NOTE, read_tags
from heedful.trials.agreement import MEASURES_OF_TOP
from heedful.trials.performance import Performance
from heedful.types import SPLITS, UserError, user_path

NO_TEXTS = "No explorer: the workspace has no attributions of this model. Trials that compare methods add them."
_MAX_LISTED_CLASSES = 10
"""More classes are not listed with their numbers."""
_EXAMPLE_METHODS = (ATTENTION, "gradient")
_EXAMPLE_TEXT_COLUMNS = ("uid", "units", "scores", "scored", "probability", "label")
_SHOWN_NOTES = ("classes", "sizes", "dropped", "remarks", "corpus", "vocabulary", "parameters")
_SHOWN_DAMAGES = 10


def write_report(workspace: Workspace, folder: Path | str) -> Path:
    """Write `folder/index.html` about all finished work, a page and an explorer per model beside it; returns its path.

    UserError if there is no finished trial; an existing report stays as it is.
    """
    folder = user_path(folder)
    with _garbage_collection_paused():
        page = build_page(workspace, folder)
        if not page.papers:
            raise UserError(
                f"there is no finished trial in the workspace {workspace}: run `heedful demo` or a paper first, "
                "or choose the folder with --workspace"
            )
        for address, parts in report_pages(page):
            written = write_atomically(parts, folder / address)
        delete_stale_pages(
            folder / MODEL_FOLDER, {section.model for chapter in page.papers for section in chapter.sections}
        )
        return written


def build_page(workspace: Workspace, folder: Path | None = None) -> Page:
    """The content of the page; writes explorers into `folder` if given, but nothing if there is no trial."""
    entries, damages = workspace.scan()
    if not any(entry.kind == "trial" for entry in entries):
        folder = None
    if folder is not None:
        check_report_folder(folder)
    damaged = {damage.name: str(damage) for damage in damages}
    page = None
    while page is None:
        builder = _Builder([entry for entry in entries if entry.name not in damaged], damaged)
        page = builder.page(Path(workspace.location).name, folder)
        damaged |= builder.damages
    for reason in damaged.values():
        warnings.warn(f"not in the report: {reason}", CorruptArtefactWarning, stacklevel=3)
    return page


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """No automatic search for reference cycles, which costs a quarter: tables make millions of lists but no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class _Run:
    """One finished trial: what the page needs of its artefact, but for the summary, which is read where it is used.

    Args:
        recipe: its settings by dotted paths, of the first seed only.
        model_notes: those of its model that the page shows, of the first seed only, as figures and examples.
        incomplete: the largest completeness error of each attribution of its model that exceeds its tolerance.
    """

    entry: IndexEntry
    notes: Mapping[str, Json]
    recipe: Mapping[str, Json] = field(default_factory=dict)
    model_notes: Mapping[str, Json] = field(default_factory=dict)
    model_warnings: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    heatmaps: tuple[Heatmap, ...] = ()
    mean_length: float | None = None
    incomplete: Mapping[str, float] = field(default_factory=dict)

    @property
    def model_label(self) -> str:
        """The seed, or that the model has none because it was not trained here."""
        seed = self.entry.facts.get("seed")
        return str(self.entry.facts.get("training") or "this model") if seed is None else f"seed {seed}"


class _Builder:
    """Builds the page from the index entries.

    Args:
        left_out: by name the artefacts that are damaged and not among the entries.
    """

    def __init__(self, entries: Sequence[IndexEntry], left_out: Mapping[str, str]) -> None:
        self.entries, self.left_out = entries, left_out
        self.damages: dict[str, str] = {}
        self.by_name = {entry.name: entry for entry in entries}
        self.sources = find_model_texts(entries)
        self.texts = {source.model: source for source in self.sources if source.split == "test"}
        self.groups = trial_groups(entries)
        self.trials = [entry for runs in self.groups.values() for entry in runs]
        self.rivals: dict[tuple[str, ...], list[IndexEntry]] = {}
        for entries_of_group in self.groups.values():
            self.rivals.setdefault(model_key(entries_of_group[0]), []).append(entries_of_group[0])
        self.opened: dict[str, StoredArtefact] = {}
        self.chosen: dict[str, frozenset[str] | None] = {}
        self.runs: dict[str, _Run] = {}
        self.papers: Mapping[str, str] = {}

    def open(self, entry: IndexEntry) -> StoredArtefact:
        """The artefact, kept while its model is read."""
        if entry.name not in self.opened:
            self.opened[entry.name] = entry.open()
        return self.opened[entry.name]

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        """Remember an artefact that turns out to be damaged; the page is built again without it."""
        try:
            yield
        except CorruptArtefactError as damage:
            if damage.name not in self.by_name:
                raise
            self.damages[damage.name] = str(damage)

    def _read_runs(self, folder: Path | None) -> None:
        """Read model by model, so that the explorer and the sections of a model share its artefacts."""
        trials_by_model: dict[str, list[IndexEntry]] = {}
        for entry in self.trials:
            trials_by_model.setdefault(entry.link("subject") or "", []).append(entry)
        sources_by_model: dict[str, list[ModelTexts]] = {}
        for source in self.sources:
            sources_by_model.setdefault(source.model, []).append(source)
        written: set[str] = set()
        for model in dict.fromkeys([*sources_by_model, *trials_by_model]):
            if folder is not None:
                for source in sources_by_model.get(model, ()):
                    with self._noting_damage():
                        written.add(write_explorer(source, self.sources, folder, self.open).name)
            for entry in trials_by_model.get(model, ()):
                with self._noting_damage():
                    self.runs[entry.name] = self._read_run(entry)
            self.opened.clear()
            gc.collect(0)  # templates leave cycles that hold the texts of this model
        if folder is not None and not self.damages:
            delete_stale_pages(folder / FOLDER, written)

    def _read_run(self, entry: IndexEntry) -> _Run:
        is_first = entry is self.groups[entry.group][0]
        artefact = self.open(entry)
        artefact.verify()  # also what only papers read
        model_name = entry.link("subject") or ""
        model = self.open(self.by_name[model_name]) if model_name in self.by_name else None
        if model is not None:
            model.verify()
        run = _Run(
            entry,
            artefact.notes,
            model_warnings=() if model is None else _model_warnings(model.notes),
            incomplete=self._incomplete_attributions(model_name),
        )
        if not is_first:
            return run
        trial = catalogue.TRIALS.get(str(entry.facts["trial"]))
        figures = _stored_charts(artefact) if trial is None else trial.figures(artefact.table)
        if trial is Performance and model is not None:
            figures = (*figures, *_training_curves(model))
        classes = [] if model is None else _as_list(model.notes.get("classes"))
        tables = {
            name: {column: cells[column] for column in _EXAMPLE_TEXT_COLUMNS if column in cells}
            for name, entry in self._attributions(model_name).items()
            if name in _EXAMPLE_METHODS and {*artefact.table.columns} >= EXAMPLE_COLUMNS
            for cells in [read_chosen_texts(entry, self._chosen_texts(model_name), self.open)]
        }
        return replace(
            run,
            recipe=flat_settings(dict(artefact.recipe)),
            # Among the other notes is the whole vocabulary.
            model_notes={} if model is None else {name: model.notes.get(name) for name in _SHOWN_NOTES},
            figures=figures,
            heatmaps=example_heatmaps(artefact.table, tables, [str(name) for name in classes]),
            mean_length=float(artefact.table["length"].mean()) if "length" in artefact.table else None,
        )

    def _chosen_texts(self, model: str) -> frozenset[str] | None:
        """The texts of a model that are shown; None if all are."""
        if model not in self.chosen:
            source = self.texts.get(model)
            self.chosen = {model: None if source is None else choose_texts(source, self.open)}
        return self.chosen[model]

    def _attributions(self, model: str) -> dict[str, IndexEntry]:
        source = self.texts.get(model)
        return {} if source is None else {str(entry.facts["method"]): entry for entry in source.attributions}

    def _incomplete_attributions(self, model: str) -> dict[str, float]:
        """The largest completeness error of each method that exceeds its tolerance."""
        gaps = {}
        for name, entry in self._attributions(model).items():
            notes = self.open(entry).notes
            limit = read_tags(notes).completeness_tolerance
            if limit is not None:
                largest = _as_dict(notes.get(COMPLETENESS_NOTE)).get("largest")
                if isinstance(largest, float) and largest > limit:
                    gaps[name] = largest
        return gaps

    def page(self, workspace_name: str, folder: Path | None) -> Page | None:
        """The whole page; None if an artefact turned out to be damaged. Writes explorers into `folder` if given."""
        with self._noting_damage():
            self._read_runs(folder)
            if not self.damages:
                return self._page(workspace_name)
        return None

    def _page(self, workspace_name: str) -> Page:
        recipes = {group: self.runs[runs[0].name].recipe for group, runs in self.groups.items()}
        self.papers = assign_papers(self.trials, recipes)
        results = {group: self._result(group) for group in self.groups}
        chapters = []
        for name, paper in PAPERS.items():
            sections = self._sections({group: result for group, result in results.items() if result.paper == name})
            if sections:
                everything = list(results.values())
                tables, figures = paper.tables(everything), paper.figures(everything)
                chapters.append(Chapter(name, paper.title, paper.question, sections, tables, figures))
        others = {group: result for group, result in results.items() if result.paper not in PAPERS}
        if others:
            sections = self._sections(others)
            chapters.append(Chapter(OTHER_CHAPTER, "Other trials", "", sections))
        return Page(
            title="Does attention explain this model?",
            lead=(
                "Each section tests one claim on one model: the verdict, what was measured, what it means and what it "
                "does not mean. Published numbers are shown beside ours where they exist."
            ),
            provenance={
                "heedful": __version__,
                "workspace": workspace_name,
                "finished trials": sum(map(len, self.groups.values())),
            },
            papers=tuple(chapters),
            warnings=_damage_notes(self.left_out),
        )

    def _result(self, group: str) -> Result:
        runs = self.groups[group]
        first = self.runs[runs[0].name]
        paper = self.papers.get(first.entry.name, OTHER_CHAPTER)
        return combine_runs(runs, paper, first.recipe, first.model_notes, first.mean_length)

    def _sections(self, results: Mapping[str, Result]) -> tuple[Section, ...]:
        """The sections of a chapter; runs of one trial on one model that differ in their settings share one."""
        questions: dict[tuple[str, ...], list[Variant]] = {}
        for group, result in results.items():
            section = self._section(group, result)
            variant = Variant(", ".join(self._variant(group)), section, result)
            questions.setdefault((section.model, result.trial, section.claim), []).append(variant)
        return tuple(join_variants(variants) for variants in questions.values())

    def _page_name(self, group: str, names: Iterable[str]) -> str:
        """The file of the model's page: the same for all seeds of a model, another one for another training."""
        subject = self.groups[group][0].link("subject") or ""
        model = self.by_name[subject].group if subject in self.by_name else subject
        return page_file(" ".join(filter(None, names)), (), json_digest(model)[:12])

    def _section(self, group: str, result: Result) -> Section:
        runs = [self.runs[entry.name] for entry in self.groups[group]]
        first, paper = runs[0], PAPERS.get(result.paper)
        texts = _trial_texts(runs, result)
        only = f", {first.model_label} only" if len(runs) > 1 else ""
        extras = SectionExtras() if paper is None else paper.section(result, self.entries)
        tables = (*summary_tables(result), *extras.tables)
        drawn = first.figures if paper is None else [paper.beside_distribution(result, each) for each in first.figures]
        figures, heatmaps = (*drawn, *extras.figures), (*first.heatmaps, *extras.heatmaps)
        if result.trial == Performance.name and first.model_notes:
            tables = (*tables, _data_table(first.model_notes))
        names = {"corpus": result.corpus, "encoder": result.encoder, "attention": result.attention}
        if first.entry.facts.get("training") and first.entry.facts.get("seed") is None:  # a given model has a name only
            names = {"corpus": result.corpus, "model": result.encoder}
        model = ", ".join(filter(None, list(names.values())[1:]))
        links = tuple(
            Link("this model" if run.entry.facts.get("seed") is None else run.model_label, self.texts[name].address)
            for run in runs
            if (name := run.entry.link("subject") or "") in self.texts
        )
        return Section(
            anchor="-".join([result.trial, *names.values()]),
            title=f"{texts.claim.title} {': '.join(filter(None, (result.corpus, model)))}",
            claim=texts.claim.claim,
            source=texts.claim.source if paper is None else paper.sources.get(result.trial, texts.claim.source),
            about={
                **{name: value for name, value in names.items() if value},
                **_settings(runs),
                **{f"epoch of {name}": rule for name, (rule, _, _) in training_rules(result).items()},
                **_classes(first.model_notes),
            },
            findings=texts.findings,
            interpretation=texts.interpretation,
            limits=texts.claim.limits,
            tables=tables,
            figures=tuple(replace(figure, title=figure.title + only) for figure in figures),
            heatmaps=tuple(replace(figure, title=figure.title + only) for figure in heatmaps),
            warnings=_warnings(runs, {part for name in result.summary["method"] for part in str(name).split("~")}),
            experiment=result.trial,
            texts=links,
            model=self._page_name(group, names.values()),
            metrics=explained_metrics(result),
            texts_note=NO_TEXTS if first.mean_length is not None and not links else "",
        )

    def _variant(self, group: str) -> list[str]:
        """The settings by which this group differs from others of the same trial on models of the same kind."""
        first = self.groups[group][0]
        rivals = self.rivals[model_key(first)]
        settings = [
            f"{name.replace('_', ' ')} {_format_setting(value)}"
            for name, value in first.settings.items()
            if len({str(rival.settings.get(name)) for rival in rivals}) > 1
        ]
        recipes = [self.runs[rival.name].recipe for rival in rivals]
        return settings + [
            setting_label(path, value)
            for path, value in self.runs[first.name].recipe.items()
            if path.endswith("selection.split") and len({str(recipe.get(path)) for recipe in recipes}) > 1
        ]


@dataclass(frozen=True)
class _TrialTexts:
    """What the class of a trial says about it, and its verdicts."""

    claim: Claim
    interpretation: str
    findings: tuple[Finding, ...]


def _trial_texts(runs: Sequence[_Run], result: Result) -> _TrialTexts:
    """From the class in the catalogue, else from what the trial stored when it ran: no code is looked for and run."""
    trial = catalogue.TRIALS.get(result.trial)
    if trial is not None:
        summary = result.summary
        return _TrialTexts(trial.texts(summary), trial.interpretation(summary), trial.findings(summary))
    stored = [_as_dict(run.notes.get(EXPLANATION)) for run in runs]
    title, *others = (str(stored[0].get(field.name, "")) for field in fields(Claim))
    meanings = dict.fromkeys(str(texts.get("interpretation", "")) for texts in stored)
    findings = tuple(
        Finding(Verdict[str(verdict)], str(method), reason=str(reason))
        for texts in stored
        for verdict, method, reason in map(_as_list, _as_list(texts.get("findings")))
    )
    return _TrialTexts(Claim(title or result.trial, *others), "\n".join(meanings), findings)


def _stored_charts(artefact: StoredArtefact) -> tuple[Figure, ...]:
    """The charts that a trial outside the catalogue asks for by metric, title and axis: its methods with their intervals."""
    charts = _as_list(_as_dict(artefact.notes.get(EXPLANATION)).get("charts"))
    rows = list(zip(*(artefact.summary[name] for name in SUMMARY_COLUMNS), strict=True)) if charts else []
    drawn = []
    for metric, title, axis in map(_as_list, charts):
        points = tuple(
            IntervalPoint(str(row[1]), str(axis), *(float(str(number)) for number in row[3:6]))
            for row in rows
            if row[0] == metric and row[1] and not row[2]
        )
        if points:
            drawn.append(Intervals(str(title), Axis(str(axis)), points))
    return tuple(drawn)


def _damage_notes(damages: Mapping[str, str]) -> tuple[str, ...]:
    """Remarks on what the page leaves out; of many damages the first."""
    notes = [f"Not in this report: {damage}." for damage in list(damages.values())[:_SHOWN_DAMAGES]]
    more = len(damages) - len(notes)
    return (*notes, f"{more} more artefacts are damaged.") if more else tuple(notes)


def _readable(name: str) -> str:
    return name.replace("_", " ")


def _settings(runs: Sequence[_Run]) -> dict[str, str]:
    """Seeds, instances, settings of the trial, embeddings, objective and training of the model, as far as it has them."""
    first = runs[0]
    seeds = [str(seed) for run in runs if (seed := run.entry.facts.get("seed")) is not None]
    counts = {"seeds": ", ".join(seeds)} if seeds else {}
    if "n" in first.notes:
        counts["instances"] = f"{first.notes['n']} of {first.notes.get('of', first.notes['n'])}"
    shown = {name: first.entry.facts.get(name) for name in ("embeddings", "objective", "training")}
    settings = first.entry.settings
    hidden = {"limit", "seed"} | (
        {"k"} if settings.get("measure", MEASURES_OF_TOP[0]) not in MEASURES_OF_TOP else set()
    )
    named = first.entry.facts.get("corpus")  # the name of a study is shown in place of that of a corpus
    shown |= {name: value for name, value in settings.items() if name not in hidden and value != named}
    return counts | {
        name.replace("_", " "): _format_setting(value)
        for name, value in shown.items()
        if value not in (None, "", [], False)
    }


def _classes(model_notes: Mapping[str, Json]) -> dict[str, str]:
    """The number and the name of each class, because tables and figures have the numbers; empty for many classes."""
    names = [str(name) for name in _as_list(model_notes.get("classes"))]
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    return {"classes": listed} if 1 < len(names) <= _MAX_LISTED_CLASSES else {}


def _format_setting(value: Json) -> str:
    if isinstance(value, list):
        return ", ".join(map(_format_setting, value))
    return "yes" if value is True else "no" if value is False else "all" if value is None else str(value)


def _model_warnings(notes: Mapping[str, Json]) -> tuple[str, ...]:
    """What limits all numbers of a model."""
    is_test = notes.get("selected_on") == "test"
    chosen = ["The epoch was selected on the test split: the scores are too high."] if is_test else []
    return (*chosen, *map(str, _as_list(notes.get("model"))))


def _warnings(runs: Sequence[_Run], methods: Collection[str]) -> tuple[str, ...]:
    """What limits the numbers of any seed, given the methods of the trial."""
    warnings: list[str] = []
    worst: dict[str, float] = {}
    for run in runs:
        if run.entry.facts.get("quick"):
            warnings.append(
                "Quick version, with short trainings and a sample of a large corpus: not comparable with published numbers."
            )
        if run.notes.get("n") != run.notes.get("of"):
            warnings.append(f"Measured on {run.notes.get('n')} of {run.notes.get('of')} test instances.")
        warnings += run.model_warnings
        for name in run.incomplete.keys() & methods:
            worst[name] = max(run.incomplete[name], worst.get(name, 0.0))
    warnings += [
        f"{name} is not complete on this model: its scores miss up to {format_number(100 * error)} % of the mean "
        "difference between the output and that of the baseline."
        for name, error in sorted(worst.items())
    ]
    return tuple(dict.fromkeys(warnings))


def _data_table(notes: Mapping[str, Json]) -> TableView:
    """Sizes and remarks of the corpus as the model was trained on it."""
    columns = {"examples": "sizes", "left out": "dropped", "remarks": "remarks"}
    parts = {name: _as_dict(notes.get(key)) for name, key in columns.items()}
    rows = tuple((split, *(_format_counts(part.get(split)) for part in parts.values())) for split in SPLITS)
    facts = {
        **_as_dict(notes.get("corpus")),
        "vocabulary": notes.get("vocabulary"),
        "parameters": notes.get("parameters"),
    }
    known: dict[str, Json] = {name: value for name, value in facts.items() if value is not None}
    return TableView("Data", ("split", *columns), rows, f"{_format_counts(known)}.")


def _format_counts(value: Json) -> str:
    parts = (
        f"{name}: {count:.3g}" if isinstance(count, float) else f"{name}: {count}"
        for name, count in _as_dict(value).items()
    )
    return "; ".join(parts) or "none"


def _training_curves(model: StoredArtefact) -> tuple[Figure, ...]:
    """The scores after each epoch."""
    table = model.table
    if len(table) < 2 or "epoch" not in table:
        return ()
    epochs = Series("epoch", tuple(table["epoch"].astype(float)))
    names = [column for column in table.columns if column not in ("epoch", "loss")]
    curves = tuple((epochs, Series(_readable(name), tuple(table[name].astype(float)))) for name in names)
    return (Lines(f"Scores on {model.notes.get('selected_on')} during training", Axis("epoch"), Axis("score"), curves),)


def _as_dict(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _as_list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else []
