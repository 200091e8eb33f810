"""The report: a description of content becomes one self-contained `index.html`, with its drawings inside."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from heedful.core.figures import Figure, Heatmap
from heedful.report.browsing import FACETS, LONG, Choice, browsing, fact
from heedful.report.charts import svg
from heedful.report.content import Chapter, Page, Section
from heedful.report.document import Document, placed
from heedful.report.numbers import number

_HEADING = 60
_INDEX = Document("page.html", ("style.css",), ("frame.js", "page.js"))


def write(page: Page, folder: Path) -> Path:
    """Writes `folder/index.html` (all of it or nothing) and gives back its path."""
    return placed(html(page), folder / "index.html")


def html(page: Page) -> str:
    """The page as one HTML document."""
    values = {"title": page.title, "page": page, "places": _places(page.papers), "chart": _numbered_charts()}
    has_texts = any(section.texts for chapter in page.papers for section in chapter.sections)
    return _INDEX.html({**values, "long": LONG, "has_texts": has_texts})


@dataclass(frozen=True)
class Spot:
    """Where a table or a figure of a whole chapter is found."""

    anchor: str
    heading: str


@dataclass(frozen=True)
class Place:
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
    choices: tuple[Choice, ...] = ()
    picks: tuple[int, ...] = ()
    overview: tuple[Spot, ...] = ()
    inner: tuple[Place, ...] = ()


def _places(papers: tuple[Chapter, ...]) -> tuple[Place, ...]:
    """All chapters and sections with anchors that are clean and unique, in reading order."""
    taken: set[str] = set()
    return tuple(_chapter(chapter, taken) for chapter in papers)


def _chapter(chapter: Chapter, taken: set[str]) -> Place:
    anchor = _anchor(chapter.name, taken)
    headings = [view.caption for view in chapter.tables] + [figure.title for figure in chapter.figures]
    overview = tuple(Spot(_anchor(f"{chapter.name} {name[:_HEADING]}", taken), name) for name in headings)
    found = browsing(chapter.sections)
    names = _short(chapter.sections) if found.choices else [(each.title, _hint(each)) for each in chapter.sections]
    inner = tuple(
        Place(_anchor(section.anchor, taken), section, label, hint, picks=picks)
        for section, (label, hint), picks in zip(chapter.sections, names, found.places, strict=True)
    )
    return Place(anchor, chapter, chapter.title, choices=found.choices, overview=overview, inner=inner)


def _short(sections: tuple[Section, ...]) -> list[tuple[str, str]]:
    """Labels and hints where titles would fill the screen: what the model is, and what was done to it."""
    models = [" · ".join(filter(None, (fact(each, name) for name in FACETS[:-1]))) or each.title for each in sections]
    names = [(model, each.experiment) for model, each in zip(models, sections, strict=True)]
    # Where that is not enough to tell sections apart, everything else they say about themselves follows.
    return [
        name if names.count(name) == 1 else (name[0], " · ".join(filter(None, (name[1], _hint(each)))))
        for name, each in zip(names, sections, strict=True)
    ]


def _hint(section: Section) -> str:
    """What readers choose by as it is, the rest with its name; without n and what the title says."""
    facts = [
        str(value) if name in FACETS else f"{name}\u00a0{value if isinstance(value, str) else number(value)}"
        for name, value in section.about.items()
        if name != "n" and str(value) not in section.title
    ]
    return " · ".join(facts)


def _anchor(name: str, taken: set[str]) -> str:
    """A name for links, never given before (`taken` remembers); the prefix avoids the page's own ids."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "part"
    names = itertools.chain([f"at-{stem}"], (f"at-{stem}-{n}" for n in itertools.count(2)))
    anchor = next(name for name in names if name not in taken)
    taken.add(anchor)
    return anchor


def _numbered_charts() -> Callable[[Figure], Markup]:
    count = itertools.count(1)

    def chart(figure: Figure) -> Markup:
        if isinstance(figure, Heatmap):
            raise TypeError("a heat-map is text, not a chart")
        # Safe: the SVG was serialised from an element tree, which escapes every text in it.
        return Markup(svg(figure, f"chart-{next(count)}"))

    return chart
