"""The sections of the site: which pages stand where. A page that does not exist yet is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Section:
    """A caption in the sidebar with the names of its pages, without suffix."""

    caption: str
    pages: tuple[str, ...]


SECTIONS = (
    Section(
        "Tutorials",
        (
            "tutorials",
            "tutorials/audit_your_classifier",
            "tutorials/explain_one_text",
            "tour",
            "audit",
            "language_models",
            "own_models",
            "own_methods",
            "own_trials",
            "scaffold",
            "study",
            "cluster",
        ),
    ),
    Section("Reproduce", ("papers", "reproduction")),
    Section(
        "Reference",
        ("methods/index", "trials/index", "measures/index", "models", "commands", "api/index", "bibliography"),
    ),
    Section("Understand", ("questions/index", "findings", "gallery", "coming_from", "faq")),
    Section("Operate", ("workspace", "devices", "speed")),
    Section("Project", ("CONTRIBUTING", "roadmap", "SECURITY", "CHANGELOG")),
)


CARDS = {
    "methods/index": (
        "Methods",
        "What each is made of, costs, promises and cannot show, with a picture of the same sentence.",
    ),
    "questions/index": (
        "How to read a verdict",
        "Every question of an audit with its null, its picture and its literature.",
    ),
    "gallery": (
        "Gallery",
        "Real pages: audits of three models, explained texts, a report, the ledger, the rating of a study.",
    ),
    "trials/index": ("Trials", "One claim each, from the papers of the debate."),
    "commands": ("Commands", "All commands and options."),
    "api/index": ("API reference", "The public names of the library."),
}
"""Title and text of the cards on the start page, by page."""


def cards() -> str:
    """A grid of cards that lead to the generated pages."""
    lines = ["## Look up", "", "::::{grid} 1 2 2 3", ":gutter: 2", ""]
    for page, (title, text) in CARDS.items():
        lines += [f":::{{grid-item-card}} {title}", f":link: {page}", ":link-type: doc", "", text, ":::", ""]
    return "\n".join([*lines, "::::", ""])


def toctree(pages: Sequence[str], *, caption: str = "", hidden: bool = True) -> str:
    """The directive that places pages below the page that it stands in."""
    options = [f":caption: {caption}"] if caption else []
    options += [":hidden:"] if hidden else []
    return "\n".join(["```{toctree}", *options, "", *pages, "```", ""])


def write_navigation(source: Path, children: Mapping[str, Sequence[str]]) -> None:
    """Add the tree of pages to the start page, and to each index page the pages of its folder.

    Args:
        children: names of the pages below each index page.
    """
    start = source / "index.md"
    trees = []
    for section in SECTIONS:
        pages = [page for page in section.pages if (source / f"{page}.md").exists()]
        trees.append(toctree(pages, caption=section.caption))
    start.write_text("\n".join((start.read_text(encoding="utf-8"), cards(), *trees)), encoding="utf-8")
    for index, names in children.items():
        path = source / f"{index}.md"
        path.write_text(path.read_text(encoding="utf-8") + "\n" + toctree(names), encoding="utf-8")
