"""The report: a description of content becomes one self-contained `index.html`.

Everything is inside the file: styles, the small script and the drawings. Its security policy lets only that
style and that script work, so that even a fault in escaping could not run a text that came from data.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from heedful.core.figures import Figure, Heatmap
from heedful.core.types import UserError
from heedful.report.browsing import FACETS, LONG, Choice, browsing, fact
from heedful.report.charts import svg
from heedful.report.content import Chapter, Page, Section
from heedful.report.heat import heat
from heedful.report.ink import printable
from heedful.report.numbers import number
from heedful.report.spoken import sentences
from heedful.report.tables import grid

_HEADING = 60


def write(page: Page, folder: Path) -> Path:
    """Writes `folder/index.html` (all of it or nothing) and gives back its path."""
    text = html(page)
    target = folder / "index.html"
    aside = folder / f".index.html.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8", newline="\n")
        aside.replace(target)
    except OSError as error:
        if aside.is_file():
            aside.unlink()
        raise UserError(f"cannot write the report to {target}: {error.strerror}; choose another folder") from error
    return target


def html(page: Page) -> str:
    """The page as one HTML document."""
    style, script = _asset("style.css"), _asset("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = lambda value: value if isinstance(value, str) else number(value)
    environment.tests["text_figure"] = lambda figure: isinstance(figure, Heatmap)
    template = environment.from_string(_asset("page.html"))
    text = template.render(
        page=page,
        places=_places(page.papers),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        chart=_numbered_charts(),
        sentences=sentences,
        grid=grid,
        heat=heat,
        long=LONG,
    )
    return printable(text.strip() + "\n")


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


def _asset(name: str) -> str:
    return resources.files("heedful.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The text's hash as a Content-Security-Policy wants it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
