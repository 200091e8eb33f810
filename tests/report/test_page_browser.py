"""The page in a real browser: what data cannot do to it, and what a reader can do with it without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heedful.figures import Axis, Bars, Heatmap, Histogram, Lines, Matrix, Scatter, Series, Violin
from heedful.papers._chapter import Comparison, TableView
from heedful.report.content import Chapter, Page, Section
from heedful.report.page import write_page
from tests.tabs import LEAST_CONTRAST, UNBROKEN, launched, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "'><svg onload=alert(3)>",
    "</style><style>body{display:none}</style>",
    "</script><script>alert(4)</script>",
    "$x_1$ \\frac{1}{2}",
    "{{ page }} {% raw %}",
    "<!-- --><!DOCTYPE html>",
    "שלום עולם \u202eevil",
    "👩‍🔬 日本語",
)


def section(name: str) -> Section:
    """A section that says `name` wherever data can stand, with every kind of figure."""
    axis, some = Axis(name), Series(name, (0.1, 0.2, 0.7))
    wide = TableView(name, (name, "n", *(f"column {n}" for n in range(12))), ((name, 3, *((0.5,) * 11), None),), name)
    pairs = TableView(name, ("row", name), ((name, Comparison(0.5, 0.25, 0.1)), (name, Comparison(0.5, 0.5, 0.1))))
    units = (name, "fine", "film", *(f"w{n}" for n in range(150)))
    steps = tuple((n - 20) / 20 for n in range(41))
    weights = (steps * 4)[: len(units)]
    figures = (
        Violin(name, axis, axis, (name,), ((some, some),)),
        Histogram(name, axis, (some, some)),
        Scatter(name, axis, axis, ((some, some),) * 2, frozenset({name})),
        Bars(name, axis, (name,) * 3, (some, some)),
        Lines(name, axis, axis, ((some, some),) * 2),
        Matrix(name, (name,) * 2, (name,) * 20, ((0.5,) * 20, (-1.0,) * 20)),
    )
    heatmap = Heatmap(name, units, (Series(name, weights), Series("attention", tuple(map(abs, weights)))), name)
    return Section(name, name, name, name, {name: name}, name, name, (wide, pairs), figures, (heatmap,), (name,))


def content(names: tuple[str, ...]) -> Page:
    """A page with a chapter for each name; many names share the six figures among them, which saves time."""
    sections = [section(name) for name in names]
    if len(names) > 2:
        sections = [replace(each, figures=each.figures[place % 3 :: 3]) for place, each in enumerate(sections)]
    chapters = tuple(Chapter(name, name, name, (each,)) for name, each in zip(names, sections, strict=True))
    return Page(names[0], names[0], {name: name for name in names}, chapters)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(content(("A plain name",)), tmp_path_factory.mktemp("calm")).as_uri()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(content(HOSTILE), tmp_path_factory.mktemp("hostile")).as_uri()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    fresh = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield fresh
    fresh.close()


def open_all(tab: Tab) -> None:
    tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def test_hostile_text_is_shown_literally_and_does_nothing(context: BrowserContext, hostile: str) -> None:
    tab, faults = opened(context, hostile)
    open_all(tab)
    shown = tab.evaluate("document.body.innerText")
    counts = [shown.count(text) for text in HOSTILE]
    assert min(counts) > 20
    assert tab.title() == HOSTILE[0]
    assert tab.locator("h2").first.inner_text() == HOSTILE[0]
    tags = tab.evaluate(
        "['script', 'style', 'img', 'iframe', 'object'].map((t) => document.querySelectorAll(t).length)"
    )
    assert tags == [1, 1, 0, 0, 0]
    assert tab.evaluate("[...document.querySelectorAll('svg')].every((s) => s.closest('.chart') && !s.onload)")
    assert tab.evaluate(
        "[...document.querySelectorAll('svg text')].filter((t) => t.textContent.includes('$x_1$')).length"
    )
    assert faults == []


def test_even_a_script_that_got_in_would_not_run(context: BrowserContext, calm: str) -> None:
    tab, faults = opened(context, calm)
    tab.evaluate(
        """() => { for (const text of ["window.ran = true"]) {
             const script = document.createElement("script"); script.textContent = text; document.body.append(script); }
             document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = true'>"); }"""
    )
    tab.wait_for_function("() => true")
    assert tab.evaluate("window.ran") is None
    assert any("Content Security Policy" in fault for fault in faults)


@pytest.mark.parametrize("width", [400, 320])
def test_nothing_makes_the_page_scroll_sideways_on_a_phone(browser: Browser, tmp_path: Path, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    tab, faults = opened(context, write_page(content((UNBROKEN, HOSTILE[0])), tmp_path).as_uri())
    closed = tab.evaluate("document.documentElement.scrollWidth")
    open_all(tab)
    assert (closed, tab.evaluate("document.documentElement.scrollWidth")) == (width, width)
    table = tab.locator(".table .scroll").first
    assert table.evaluate("(box) => box.scrollWidth > box.clientWidth && box.tabIndex === 0")
    assert faults == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(browser: Browser, calm: str, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    tab, faults = opened(context, calm)
    open_all(tab)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 20, 27)" if scheme == "dark" else "rgb(252, 251, 248)")
    texts, least, where, holder = tab.evaluate(LEAST_CONTRAST)
    assert texts > 500
    assert least >= 4.5, (where, holder)
    shades = tab.evaluate("new Set([...document.querySelectorAll('.tokens span')].map((s) => s.className)).size")
    assert shades == 41
    assert faults == []
    context.close()


def test_drawings_follow_the_theme(context: BrowserContext, calm: str) -> None:
    tab, _ = opened(context, calm)
    look = """() => ["text", ".fill-series-0", ".fill-positive"].map(
        (name) => getComputedStyle(document.querySelector("svg " + name)).fill)"""
    assert tab.evaluate(look) == ["rgb(29, 28, 38)", "rgb(67, 64, 107)", "rgb(255, 154, 71)"]
    tab.get_by_role("button", name="Dark theme").click()
    assert tab.evaluate(look) == ["rgb(232, 230, 239)", "rgb(169, 164, 234)", "rgb(163, 68, 0)"]


def test_the_keyboard_reaches_the_skip_link_first_then_the_theme_and_the_folds(
    context: BrowserContext, calm: str
) -> None:
    tab, _ = opened(context, calm)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.get_by_role("button", name="Dark theme").get_attribute("aria-pressed") == "true"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 20, 27)"
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "content"
    weights = tab.get_by_text("The weights as numbers").first
    weights.focus()
    tab.keyboard.press("Enter")
    assert tab.get_by_role("table", name="Weights: A plain name").is_visible()


def test_a_drawing_is_an_image_with_its_numbers_in_words(context: BrowserContext, calm: str) -> None:
    tab, _ = opened(context, calm)
    images = tab.get_by_role("img", name="A plain name")
    assert images.count() == 6
    assert "median 0.200" in images.first.locator("desc").inner_html()
    landmarks = [tab.get_by_role(role).count() for role in ("banner", "main", "navigation", "contentinfo")]
    assert landmarks == [1, 1, 1, 1]


def test_print_opens_every_fold_leaves_out_the_contents_and_is_light(browser: Browser, calm: str) -> None:
    context = browser.new_context(color_scheme="dark")
    tab, faults = opened(context, calm)
    assert not tab.get_by_role("table", name="Weights: A plain name").is_visible()
    printed = tab.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.get_by_role("table", name="Weights: A plain name").is_visible()
    assert not tab.locator("nav").is_visible()
    assert tab.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(29, 28, 38)"
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.querySelectorAll('main details[open]').length") == 0
    assert faults == []
    context.close()


def test_without_script_the_page_is_whole_and_offers_no_dead_button(browser: Browser, calm: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab, faults = opened(context, calm)
    assert tab.locator("nav a").count() == 2
    assert not tab.locator("#theme").is_visible()
    assert tab.locator("h1").inner_text() == "A plain name"
    assert faults == []
    context.close()
