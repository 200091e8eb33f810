"""The report: a description of content becomes one self-contained `index.html`, with its drawings inside."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from heedful.figures import Figure, Heatmap
from heedful.report.browsing import FACETS, MANY_SECTIONS, Facet, facet_index, facet_value
from heedful.report.charts import svg
from heedful.report.content import Chapter, Page, Section
from heedful.report.document import HtmlDocument, write_atomically
from heedful.report.numbers import format_number

_MAX_ANCHOR_CHARS = 60
_PAGE_DOCUMENT = HtmlDocument("page.html", ("style.css",), ("frame.js", "page.js"))


def write_page(page: Page, folder: Path) -> Path:
    """Writes `folder/index.html` (all of it or nothing) and gives back its path."""
    return write_atomically(page_html(page), folder / "index.html")


def page_html(page: Page) -> str:
    """The page as one HTML document."""
    values = {"title": page.title, "page": page, "places": _contents(page.papers), "chart": _chart_renderer()}
    has_texts = any(section.texts for chapter in page.papers for section in chapter.sections)
    return _PAGE_DOCUMENT.render({**values, "long": MANY_SECTIONS, "has_texts": has_texts})


@dataclass(frozen=True)
class OverviewEntry:
    """Where a table or a figure of a whole chapter is found."""

    anchor: str
    heading: str


@dataclass(frozen=True)
class ContentsEntry:
    """Where a chapter or a section is found, and how it is called in the contents.

    Args:
        hint: what tells a section from others of the same label.
        choices: what a reader can choose a chapter's sections by.
        picks: a section's number in each choice.
        overview: anchor and heading of each of a chapter's own tables, then of its figures.
    """

    anchor: str
    content: Chapter | Section
    label: str
    hint: str = ""
    choices: tuple[Facet, ...] = ()
    picks: tuple[int, ...] = ()
    overview: tuple[OverviewEntry, ...] = ()
    inner: tuple[ContentsEntry, ...] = ()


def _contents(papers: tuple[Chapter, ...]) -> tuple[ContentsEntry, ...]:
    """All chapters and sections with anchors that are clean and unique, in reading order."""
    taken: set[str] = set()
    return tuple(_chapter_entry(chapter, taken) for chapter in papers)


def _chapter_entry(chapter: Chapter, taken: set[str]) -> ContentsEntry:
    anchor = _unique_anchor(chapter.name, taken)
    headings = [view.caption for view in chapter.tables] + [figure.title for figure in chapter.figures]
    overview = tuple(
        OverviewEntry(_unique_anchor(f"{chapter.name} {name[:_MAX_ANCHOR_CHARS]}", taken), name) for name in headings
    )
    found = facet_index(chapter.sections)
    names = (
        _short_labels(chapter.sections)
        if found.facets
        else [(each.title, _section_hint(each)) for each in chapter.sections]
    )
    inner = tuple(
        ContentsEntry(_unique_anchor(section.anchor, taken), section, label, hint, picks=picks)
        for section, (label, hint), picks in zip(chapter.sections, names, found.positions, strict=True)
    )
    return ContentsEntry(anchor, chapter, chapter.title, choices=found.facets, overview=overview, inner=inner)


def _short_labels(sections: tuple[Section, ...]) -> list[tuple[str, str]]:
    """Labels and hints where titles would fill the screen: what the model is, and what was done to it."""
    models = [
        " · ".join(filter(None, (facet_value(each, name) for name in FACETS[:-1]))) or each.title for each in sections
    ]
    names = [(model, each.experiment) for model, each in zip(models, sections, strict=True)]
    # Where that is not enough to tell sections apart, everything else they say about themselves follows.
    return [
        name if names.count(name) == 1 else (name[0], " · ".join(filter(None, (name[1], _section_hint(each)))))
        for name, each in zip(names, sections, strict=True)
    ]


def _section_hint(section: Section) -> str:
    """What readers choose by as it is, the rest with its name; without n and what the title says."""
    facts = [
        str(value) if name in FACETS else f"{name}\u00a0{value if isinstance(value, str) else format_number(value)}"
        for name, value in section.about.items()
        if name != "n" and str(value) not in section.title
    ]
    return " · ".join(facts)


def _unique_anchor(name: str, taken: set[str]) -> str:
    """A name for links, never given before (`taken` remembers); the prefix avoids the page's own ids."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part"
    names = itertools.chain([f"at-{stem}"], (f"at-{stem}-{n}" for n in itertools.count(2)))
    anchor = next(name for name in names if name not in taken)
    taken.add(anchor)
    return anchor


def _chart_renderer() -> Callable[[Figure], Markup]:
    count = itertools.count(1)

    def chart(figure: Figure) -> Markup:
        if isinstance(figure, Heatmap):
            raise TypeError("a heat-map is text, not a chart")
        # Safe: the SVG was serialised from an element tree, which escapes every text in it.
        return Markup(svg(figure, f"chart-{next(count)}"))

    return chart
