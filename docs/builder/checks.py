"""Checks of the built site: links, anchors, foreign hosts, headings, alternative texts and labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
"""Elements that make a browser load something, and the attribute with its address."""
LINKED = {"a": "href", **LOADED}
NAMELESS_LINKS = {"canonical", "search", "index", "next", "prev"}
"""Relations of `<link>` that load nothing."""


@dataclass
class PageElements(HTMLParser):
    """What the checks read of a page.

    Args:
        links: address of everything that the page links to or loads, with the element.
        anchors: ids and names.
        headings: levels in the order of the page.
        faults: what a page must not have.
        styles: style sheets and style attributes.
        scripts: the text of all scripts, with the data from which they make rows.
    """

    links: list[tuple[str, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    headings: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    _inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def has_anchor(self, name: str) -> bool:
        """Whether the page has an element of this id, or data of this id from which a script makes one."""
        return name in self.anchors or any(f'"{name}"' in script for script in self.scripts)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self.anchors |= {named[name] for name in ("id", "name") if named.get(name)}
        relations = set(named.get("rel", "").split())
        if tag in LINKED and named.get(LINKED[tag]) and not (tag == "link" and relations & NAMELESS_LINKS):
            self.links.append((tag, named[LINKED[tag]]))
        if tag == "img" and not named.get("alt", "").strip() and named.get("alt") != "":
            self.faults.append(f"a picture without alternative text: {named.get('src')}")
        if tag == "iframe" and not named.get("title"):
            self.faults.append(f"a frame without title: {named.get('src')}")
        if tag == "html" and not named.get("lang"):
            self.faults.append("no language")
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))
        if int(named.get("tabindex") or 0) > 0:
            self.faults.append("an element that changes the order of the keyboard")
        self._inside = tag
        self.styles.append(named.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("style", "script"):
            (self.styles if self._inside == "style" else self.scripts).append(data)


def read_page(path: Path) -> PageElements:
    """The elements of a page."""
    elements = PageElements()
    elements.feed(path.read_text(encoding="utf-8"))
    return elements


def check_site(site: Path) -> list[str]:
    """Every fault of the pages in a folder, with the page on which it stands."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html"))}
    faults = [
        f"{path.relative_to(site.resolve())}: {fault}"
        for path, page in pages.items()
        for fault in _page_faults(path, page, pages)
    ]
    for path in sorted(site.rglob("*.css")):
        faults += [f"{path.relative_to(site)}: {fault}" for fault in _style_faults(path.read_text(encoding="utf-8"))]
    return faults


def _page_faults(path: Path, page: PageElements, pages: dict[Path, PageElements]) -> Iterator[str]:
    yield from page.faults
    yield from _style_faults("\n".join(page.styles))
    if 1 not in page.headings and page.headings:
        yield "no heading of the first level"
    for before, after in zip(page.headings, page.headings[1:], strict=False):
        if after > before + 1:
            yield f"a heading of level {after} follows one of level {before}"
    for tag, address in page.links:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") or parts.netloc:
            if tag in LOADED:
                yield f"<{tag}> loads from a foreign host: {address}"
            continue
        if parts.scheme:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.exists():
            yield f"a link leads nowhere: {address}"
        elif parts.fragment and target in pages and not pages[target].has_anchor(unquote(parts.fragment)):
            yield f"a link leads to no anchor: {address}"


def _style_faults(style: str) -> Iterator[str]:
    for wanted in ("url(http", "url(//", "url('http", 'url("http', "@import"):
        if wanted in style.replace(" ", ""):
            yield f"a style loads from a foreign host: {wanted}"
