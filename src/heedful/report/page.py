"""The report page: chapters (papers) of sections (trials) as plain values, rendered as one self-contained HTML file.

All strings are plain text and escaped when the page is rendered.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from heedful.figures import Figure, Heatmap
from heedful.formatting import format_number
from heedful.report.charts import svg
from heedful.report.heatmap import heatmap_view
from heedful.report.html import HtmlDocument
from heedful.results import Finding, Verdict
from heedful.table_view import TableView

FACETS = ("corpus", "encoder", "attention", "experiment")
"""What readers select sections by."""
MIN_SECTIONS_FOR_FACETS = 5
LONG_CHAPTER = 20
"""Sections from which the browser lays out only what is visible."""
SYMBOLS = {Verdict.SUPPORTED: "✓", Verdict.NOT_SUPPORTED: "✗", Verdict.UNDECIDED: "?", Verdict.NOT_TESTED: "–"}
INDEX_PAGE, MODEL_FOLDER = "index.html", "models"
_MAX_ANCHOR = 60
_DOCUMENT = HtmlDocument("page.html", ("style.css", "heatmap.css"), ("frame.js", "page.js"))


@dataclass(frozen=True)
class Link:
    """A link to another file of the report, relative to the page it is on."""

    label: str
    address: str


@dataclass(frozen=True)
class Section:
    """One trial on one model, or one question about it under several settings.

    Args:
        anchor: name of the section in links; the page makes it unique.
        experiment: short name of the trial.
        about: corpus, encoder, attention, seeds and settings.
        warnings: what limits the numbers: quick versions, samples, selection on the test split.
        texts: explorers of the texts, one per seed.
        texts_note: shown where there is no explorer.
        model: file name of the page of its model, without a folder.
        metrics: what the numbers of its tables mean, by their headings.
        variants: the same question under several settings, each as a section whose title is what differs; this section
            has what they share.
    """

    anchor: str
    title: str
    claim: str
    source: str = ""
    about: Mapping[str, str | float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    interpretation: str = ""
    limits: str = ""
    tables: tuple[TableView, ...] = ()
    figures: tuple[Figure, ...] = ()
    heatmaps: tuple[Heatmap, ...] = ()
    warnings: tuple[str, ...] = ()
    experiment: str = ""
    texts: tuple[Link, ...] = ()
    texts_note: str = ""
    model: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """One paper: its question, tables and figures over all trials, and a section per trial."""

    name: str
    title: str
    question: str
    sections: tuple[Section, ...] = ()
    tables: tuple[TableView, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Page:
    """A report; `provenance` holds workspace, version and counts, `warnings` what is left out, `home` its index."""

    title: str
    lead: str = ""
    provenance: Mapping[str, str | float] = field(default_factory=dict)
    papers: tuple[Chapter, ...] = ()
    warnings: tuple[str, ...] = ()
    home: str = ""


@dataclass(frozen=True)
class VerdictBadge:
    """One verdict, with the methods and the reasons it was given for."""

    verdict: Verdict
    details: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """The symbol beside the word."""
        return SYMBOLS[self.verdict]


def verdict_badges(findings: Sequence[Finding]) -> tuple[VerdictBadge, ...]:
    """One badge per verdict that occurs, with its methods."""
    badges = []
    for verdict in Verdict:
        matching = [finding for finding in findings if finding.verdict is verdict]
        details = [": ".join(filter(None, (finding.method, finding.reason))) for finding in matching]
        if matching:
            badges.append(VerdictBadge(verdict, tuple(dict.fromkeys(filter(None, details)))))
    return tuple(badges)


@dataclass(frozen=True)
class Facet:
    """A property to select sections by, with its values in order of appearance."""

    name: str
    options: tuple[str, ...]


def section_facets(sections: Sequence[Section]) -> tuple[tuple[Facet, ...], tuple[tuple[int, ...], ...]]:
    """The facets with more than one value, and for each section (of an index: model) the index of its value in each.

    The page compares these indices, never names from data. Few sections have no facets.
    """
    if len(sections) < MIN_SECTIONS_FOR_FACETS:
        return (), ((),) * len(sections)
    columns = {name: [_facet_value(section, name) or "not stated" for section in sections] for name in FACETS}
    facets = tuple(Facet(name, tuple(dict.fromkeys(column))) for name, column in columns.items())
    useful = tuple(facet for facet in facets if len(facet.options) > 1)
    picks = [[facet.options.index(value) for value in columns[facet.name]] for facet in useful]
    return useful, tuple(zip(*picks, strict=True)) if picks else ((),) * len(sections)


def _facet_value(section: Section, name: str) -> str:
    # A given model has a name in place of an encoder.
    name = "model" if name == "encoder" and "encoder" not in section.about else name
    value = section.experiment if name == "experiment" else section.about.get(name, "")
    return value if isinstance(value, str) else format_number(value)


@dataclass(frozen=True)
class SectionEntry:
    """A section with its place in the contents and in the facets; `page` is the file that has it, if another one."""

    anchor: str
    section: Section
    label: str
    hint: str
    picks: tuple[int, ...]
    badges: tuple[VerdictBadge, ...]
    page: str = ""

    @property
    def address(self) -> str:
        """The link to the section."""
        return f"{self.page}#{self.anchor}"


@dataclass(frozen=True)
class ModelEntry:
    """A model in an index: the link to its page, and its sections of one chapter."""

    anchor: str
    label: str
    hint: str
    address: str
    picks: tuple[int, ...]
    sections: tuple[SectionEntry, ...]


@dataclass(frozen=True)
class TrialVerdicts:
    """All sections of a chapter with verdicts on one trial, and how many verdicts there are of each kind."""

    experiment: str
    claim: str
    counts: tuple[tuple[Verdict, int], ...]
    sections: tuple[SectionEntry, ...]

    @property
    def badges(self) -> tuple[tuple[str, str, str, int], ...]:
        """Symbol, CSS class, word and number of each verdict."""
        return tuple((SYMBOLS[verdict], verdict.name.lower(), verdict.value, count) for verdict, count in self.counts)


@dataclass(frozen=True)
class ChapterEntry:
    """A chapter with its place in the contents; `tables` and `figures` are anchored.

    In an index, `models` have the sections on pages of their own.
    """

    anchor: str
    chapter: Chapter
    tables: tuple[tuple[str, TableView], ...]
    figures: tuple[tuple[str, Figure], ...]
    facets: tuple[Facet, ...]
    sections: tuple[SectionEntry, ...]
    models: tuple[ModelEntry, ...] = ()

    @property
    def verdicts(self) -> list[TrialVerdicts]:
        """What came out, trial by trial; trials that only describe are left out."""
        groups: dict[str, list[SectionEntry]] = {}
        for entry in self.sections:
            if entry.badges:
                groups.setdefault(entry.section.experiment or entry.section.title, []).append(entry)
        trials = []
        for name, entries in groups.items():
            findings = Counter(finding.verdict for entry in entries for finding in entry.section.findings)
            counts = tuple((verdict, findings[verdict]) for verdict in Verdict if findings[verdict])
            trials.append(TrialVerdicts(name, entries[0].section.claim, counts, tuple(entries)))
        return trials

    @property
    def overview(self) -> Iterator[tuple[str, str]]:
        """Anchor and heading of each table and figure of the chapter."""
        yield from ((anchor, table.caption) for anchor, table in self.tables)
        yield from ((anchor, figure.title) for anchor, figure in self.figures)


def page_parts(page: Page) -> Iterator[str]:
    """The page as one HTML document with all sections, part by part."""
    return _render(page, _contents(page.papers))


def report_pages(page: Page) -> Iterator[tuple[str, Iterator[str]]]:
    """The files of a report: a page per model, then the index with chapters and verdicts; one page for one model."""
    models = dict.fromkeys(section.model for chapter in page.papers for section in chapter.sections)
    if len(models) < 2:
        yield INDEX_PAGE, page_parts(page)
        return
    written: dict[str, list[tuple[str, ChapterEntry]]] = {chapter.name: [] for chapter in page.papers}
    for model in models:
        chapters = [
            replace(chapter, sections=sections, tables=(), figures=())
            for chapter in page.papers
            if (sections := tuple(map(_one_folder_down, (s for s in chapter.sections if s.model == model))))
        ]
        address, contents = f"{MODEL_FOLDER}/{model}", _contents(chapters)
        for chapter, entry in zip(chapters, contents, strict=True):
            written[chapter.name].append((address, entry))
        title = _model_label(chapters[0].sections[0])
        model_page = Page(title, "", page.provenance, tuple(chapters), home=f"../{INDEX_PAGE}")
        yield address, _render(model_page, contents)
    yield INDEX_PAGE, _render(page, _index_contents(page.papers, written))


def _render(page: Page, chapters: Sequence[ChapterEntry]) -> Iterator[str]:
    numbers = itertools.count(1)
    values = {
        "title": page.title,
        "page": page,
        "chapters": chapters,
        "chart": lambda chart: Markup(svg(chart, f"chart-{next(numbers)}")),  # safe: the text in a chart is escaped
        "heat": heatmap_view,
        "unanchored": lambda figures: [("", figure) for figure in figures],
        "verdict_badges": verdict_badges,
        "long": LONG_CHAPTER,
        "has_texts": any(section.texts for chapter in page.papers for section in chapter.sections),
    }
    return _DOCUMENT.render(values)


def _one_folder_down(section: Section) -> Section:
    """The section with links that lead from a page in a folder of the report."""
    links = tuple(Link(link.label, f"../{link.address}") for link in section.texts)
    return replace(section, texts=links, variants=tuple(map(_one_folder_down, section.variants)))


def _model_label(section: Section) -> str:
    """Corpus, encoder and attention."""
    return " · ".join(filter(None, (_facet_value(section, name) for name in FACETS[:-1]))) or section.title


class _Anchors:
    """Unique anchors of one page."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        """The name as an anchor, with a number if it is taken."""
        stem = "at-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part")
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        free = next(name for name in names if name not in self._taken)
        self._taken.add(free)
        return free


def _contents(papers: Sequence[Chapter]) -> list[ChapterEntry]:
    """All chapters and sections with unique anchors, in reading order."""
    anchor, entries = _Anchors(), []
    for chapter in papers:
        entry = _chapter_entry(chapter, anchor)
        facets, picks = section_facets(chapter.sections)
        sections = [
            SectionEntry(anchor(section.anchor), section, label, hint, picked, verdict_badges(section.findings))
            for section, (label, hint), picked in zip(
                chapter.sections, _labels(chapter.sections, short=bool(facets)), picks, strict=True
            )
        ]
        entries.append(replace(entry, facets=facets, sections=tuple(sections)))
    return entries


def _chapter_entry(chapter: Chapter, anchor: _Anchors) -> ChapterEntry:
    """A chapter with its tables and figures, without sections."""
    address = anchor(chapter.name)
    tables = [(anchor(f"{chapter.name} {table.caption[:_MAX_ANCHOR]}"), table) for table in chapter.tables]
    figures = [(anchor(f"{chapter.name} {figure.title[:_MAX_ANCHOR]}"), figure) for figure in chapter.figures]
    return ChapterEntry(address, chapter, tuple(tables), tuple(figures), (), ())


def _index_contents(
    papers: Sequence[Chapter], written: Mapping[str, Sequence[tuple[str, ChapterEntry]]]
) -> list[ChapterEntry]:
    """All chapters with their models, whose sections are on other pages.

    Args:
        written: by chapter the address of each model's page and the chapter as it is there.
    """
    anchor, entries = _Anchors(), []
    for chapter in papers:
        entry, pages = _chapter_entry(chapter, anchor), written[chapter.name]
        first = [replace(there.sections[0].section, experiment="") for _, there in pages]
        labels = [_model_label(section) for section in first]
        facets, picks = section_facets(first)
        models = tuple(
            ModelEntry(
                anchor(f"{chapter.name} {label}"),
                label,
                _section_hint(section) if labels.count(label) > 1 else "",
                f"{address}#{there.anchor}",
                picked,
                tuple(replace(inner, page=address) for inner in there.sections),
            )
            for (address, there), section, label, picked in zip(pages, first, labels, picks, strict=True)
        )
        sections = tuple(inner for model in models for inner in model.sections)
        entries.append(replace(entry, facets=facets, sections=sections, models=models))
    return entries


def _labels(sections: Sequence[Section], *, short: bool) -> list[tuple[str, str]]:
    """Label and hint of each section in the contents; short ones are the model and the trial."""
    if not short:
        return [(section.title, _section_hint(section)) for section in sections]
    names = [
        (
            " · ".join(filter(None, (_facet_value(section, name) for name in FACETS[:-1]))) or section.title,
            section.experiment,
        )
        for section in sections
    ]
    return [
        name if names.count(name) == 1 else (name[0], " · ".join(filter(None, (name[1], _section_hint(section)))))
        for name, section in zip(names, sections, strict=True)
    ]


def _section_hint(section: Section) -> str:
    """The facts that the title does not have."""
    facts = [
        str(value) if name in FACETS else f"{name}\u00a0{value if isinstance(value, str) else format_number(value)}"
        for name, value in section.about.items()
        if name not in ("n", "classes") and str(value) not in section.title
    ]
    return " · ".join(facts)
