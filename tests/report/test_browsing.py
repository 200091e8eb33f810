"""Choosing among many sections: what is offered, and what a reader of the page can do with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heedful.figures import Heatmap, Series
from heedful.report.browsing import Facet, facet_index
from heedful.papers._chapter import Comparison, TableView
from heedful.report.content import Chapter, Page, Section
from heedful.report.page import page_html, write_page
from tests.tabs import LEAST_CONTRAST, UNBROKEN, launched, opened
from tests.report.test_page import CHART, HEATMAP, TABLE, Reader

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator
    from playwright.sync_api import Page as Tab

MANY = tuple(
    Section(
        f"{trial}-{corpus}", f"{trial} {corpus}", "c", about={"corpus": corpus, "encoder": "BiLSTM"}, experiment=trial
    )
    for corpus in ("sst", "imdb", "agnews")
    for trial in ("permutation", "adversarial")
)


def test_many_sections_are_chosen_by_what_tells_them_apart() -> None:
    found = facet_index(MANY)
    assert found.facets == (
        Facet("corpus", ("sst", "imdb", "agnews")),
        Facet("experiment", ("permutation", "adversarial")),
    )
    named = [tuple(c.options[n] for c, n in zip(found.facets, picks, strict=True)) for picks in found.positions]
    assert named == [(section.about["corpus"], section.experiment) for section in MANY]


def test_few_sections_or_sections_all_alike_offer_no_choice() -> None:
    assert facet_index(MANY[:4]).facets == ()
    assert facet_index((MANY[0],) * 9).facets == ()
    assert Reader(page_html(Page("r", papers=(Chapter("c", "c", "q", MANY[:4]),)))).named("select") == []


def test_a_section_that_does_not_state_something_can_be_chosen_by_that() -> None:
    bare = replace(MANY[0], about={"corpus": 7}, experiment="")
    found = facet_index((*MANY[1:], bare))
    assert [choice.options[-1] for choice in found.facets] == ["7", "not stated", "not stated"]


def test_a_long_chapter_has_short_names_in_its_contents_and_keeps_its_sections_whole() -> None:
    twice = (*MANY, replace(MANY[0], anchor="again", about={**MANY[0].about, "limit": 500}))
    page = page_html(Page("r", papers=(Chapter("c", "c", "q", twice),)))
    names = re.findall(r'<li><a href="#at-(?:permu|adver|again)[^>]*>(.*?)</a>', page)
    assert names[1:3] == [
        "sst · BiLSTM <small>adversarial</small>",
        "imdb · BiLSTM <small>permutation</small>",
    ]
    assert names[6] == "sst · BiLSTM <small>permutation · BiLSTM · limit\u00a0500</small>"
    reader = Reader(page)
    assert [a["data-picks"] for a in reader.named("section") if "data-picks" in a] == [
        "0 0", "0 1", "1 0", "1 1", "2 0", "2 1", "0 0"
    ]  # fmt: skip
    assert not [a for a in reader.named("section") if "hidden" in a]
    assert [("hidden" in a) for a in reader.named("div") if a.get("class") == "browse"] == [True]


def test_tables_and_figures_of_a_chapter_are_found_from_the_contents() -> None:
    page = page_html(Page("r", papers=(Chapter("c", "c", "q", MANY, (TABLE, TABLE), (HEATMAP, CHART)),)))
    reader = Reader(page)
    anchors = ["at-c-scores", "at-c-scores-2", "at-c-text-7", "at-c-bars"]
    assert [a["href"][1:] for a in reader.named("a") if a["href"].startswith("#at-c-")] == anchors
    found = {a["id"]: a["class"] for a in reader.named("figure") if "id" in a}
    assert found == dict(zip(anchors, ("table", "table", "heat", "chart"), strict=True))


@pytest.mark.parametrize("text", ['"><img src=x onerror=alert(1)>', "</option></select><b>"])
def test_markup_in_a_name_to_choose_by_is_text(text: str) -> None:
    def elements(word: str) -> list[str]:
        sections = tuple(
            replace(
                each, about=dict.fromkeys(("corpus", "encoder", "attention"), f"{word}{n % 3}"), experiment=word * n
            )
            for n, each in enumerate(MANY)
        )
        reader = Reader(page_html(Page("r", papers=(Chapter("c", word, word, sections),))))
        assert len(reader.named("select")) == 4
        return [tag for tag, _ in reader.elements]

    assert elements(text) == elements(re.sub(r"\S", "p", text))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    fresh = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield fresh
    fresh.close()


LAID_OUT = "getComputedStyle(document.querySelector('.trial')).contentVisibility"
CORPORA = ("sst", "imdb", "agnews", UNBROKEN)


def chapter(name: str) -> Chapter:
    """Four corpora, three encoders, two trials; the second trial was not made for the last corpus."""
    sections = tuple(
        Section(
            f"{trial}-{place}-{encoder}",
            f"{trial} {corpus} {encoder}",
            "It matters.",
            about={"corpus": corpus, "encoder": encoder, "attention": "additive"},
            tables=(TableView("Numbers", ("row", "tau"), (("all", Comparison(0.5, 0.4, 0.02)),) * 12),),
            heatmaps=(Heatmap("Text", ("a", "b") * 8, (Series("attention", (0.1, 0.2) * 8),) * 3),),
            experiment=trial,
        )
        for place, corpus in enumerate(CORPORA)
        for encoder in ("BiLSTM", "Convolution", "Average")
        for trial in ("permutation", "adversarial")
        if (corpus, trial) != (UNBROKEN, "adversarial")
    )
    wide = TableView("Overview", ("corpus", *(f"column {n}" for n in range(15))), (("sst", *((0.5,) * 15)),))
    return Chapter(name, name, "Is it so?", sections, (wide,))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = Page("Many", papers=(chapter("First paper"), chapter("Second paper")))
    return write_page(page, tmp_path_factory.mktemp("many")).as_uri()


def bar(tab: Tab, name: str = "First paper") -> Locator:
    return tab.get_by_role("group", name=f"Choose what is shown of {name}")


def top(tab: Tab, name: str) -> float:
    """Where the first of that name stands in the window once the page has come to rest."""
    rest = """(name) => new Promise((tell) => {
      const look = (frames) => frames ? requestAnimationFrame(() => look(frames - 1))
        : tell(document.querySelector(name).getBoundingClientRect().top);
      look(10);
    })"""
    return float(tab.evaluate(rest, name))


def shown(tab: Tab) -> list[str]:
    """The headings of the first chapter's sections that are shown."""
    titles = tab.locator(".paper").first.locator("h3").all()
    return [title.text_content() or "" for title in titles if title.is_visible()]


@pytest.mark.browser
def test_choosing_hides_the_other_sections_and_their_entries_and_tells_how_many_are_left(
    context: BrowserContext, many: str
) -> None:
    tab, faults = opened(context, many)
    status, choose = bar(tab).get_by_role("status"), bar(tab).get_by_role("combobox")
    assert [box.count() for box in (choose, tab.get_by_role("combobox"))] == [3, 6]
    assert (status.inner_text(), status.get_attribute("aria-live")) == ("21 of 21 shown", "polite")
    bar(tab).get_by_role("combobox", name="corpus").select_option("imdb")
    assert status.inner_text() == "6 of 21 shown"
    bar(tab).get_by_role("combobox", name="experiment").select_option("adversarial")
    assert status.inner_text() == "3 of 21 shown"
    assert shown(tab) == ["adversarial imdb BiLSTM", "adversarial imdb Convolution", "adversarial imdb Average"]
    entries = [entry.inner_text() for entry in tab.locator("nav a").all() if entry.is_visible()]
    named = [f"imdb · {encoder} · additive\nadversarial" for encoder in ("BiLSTM", "Convolution", "Average")]
    assert entries[2:6] == [*named, "Second paper"]
    assert bar(tab, "Second paper").get_by_role("status").inner_text() == "21 of 21 shown"
    bar(tab).get_by_role("button", name="Show all").click()
    assert (status.inner_text(), len(shown(tab))) == ("21 of 21 shown", 21)
    assert bar(tab).get_by_role("button").is_disabled()
    assert faults == []


@pytest.mark.browser
def test_what_would_leave_nothing_cannot_be_chosen(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    corpus, experiment = (bar(tab).get_by_role("combobox", name=name) for name in ("corpus", "experiment"))
    able = "(box) => [...box.options].map((option) => !option.disabled)"
    assert corpus.evaluate(able) == [True] * 5
    experiment.select_option("adversarial")
    assert corpus.evaluate(able) == [True, True, True, True, False]
    assert experiment.evaluate(able) == [True] * 3
    experiment.select_option("all")
    corpus.select_option(UNBROKEN)
    assert experiment.evaluate(able) == [True, True, False]


@pytest.mark.browser
def test_sections_are_chosen_with_the_keyboard_alone(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    bar(tab).get_by_role("combobox", name="corpus").focus()
    tab.keyboard.press("i")
    tab.keyboard.press("Tab")
    tab.keyboard.press("A")
    tab.keyboard.press("v")
    assert shown(tab) == ["permutation imdb Average", "adversarial imdb Average"]
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Show all"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    assert len(shown(tab)) == 21
    assert tab.evaluate("document.activeElement.tagName") == "SELECT"


@pytest.mark.browser
def test_a_new_choice_is_read_from_its_first_result(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    tab.get_by_role("heading", name="permutation imdb Average").first.evaluate("(title) => title.scrollIntoView()")
    bar(tab).get_by_role("combobox", name="encoder").select_option("BiLSTM")
    title = top(tab, ".trial:not([hidden]) h3")
    covered = tab.evaluate("document.querySelector('.browse').getBoundingClientRect().bottom")
    assert 0 < covered <= title < covered + 150


@pytest.mark.browser
def test_a_link_leads_to_its_section_even_if_it_was_not_chosen(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    tab.locator("nav a[href='#at-adversarial-1-average']").click()
    assert 0 <= top(tab, "#at-adversarial-1-average") < 150
    bar(tab).get_by_role("combobox", name="corpus").select_option("sst")
    assert len(shown(tab)) == 6
    tab.evaluate("location.hash = 'at-permutation-3-bilstm'")
    tab.wait_for_function("document.querySelector('.count').textContent === '21 of 21 shown'")
    assert 0 <= top(tab, "#at-permutation-3-bilstm") < 150
    tab, _ = opened(context, f"{many}#at-permutation-3-average")
    assert 0 <= top(tab, "#at-permutation-3-average") < 150


@pytest.mark.browser
def test_what_is_chosen_is_printed_and_nothing_else(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    bar(tab).get_by_role("combobox", name="corpus").select_option("sst")
    tab.emulate_media(media="print")
    assert len(shown(tab)) == 6
    assert bar(tab).get_by_role("status").is_visible()
    assert not bar(tab).locator("button").is_visible()
    assert not tab.locator(".browse").nth(1).is_visible()
    assert tab.evaluate(LAID_OUT) == "visible"


@pytest.mark.browser
def test_only_a_long_chapter_is_laid_out_where_it_is_looked_at(
    context: BrowserContext, many: str, tmp_path: Path
) -> None:
    tab, _ = opened(context, many)
    assert tab.evaluate(LAID_OUT) == "auto"
    short = replace(chapter("Short"), sections=chapter("Short").sections[:19])
    tab, _ = opened(context, write_page(Page("Short", papers=(short,)), tmp_path).as_uri())
    assert tab.evaluate(LAID_OUT) == "visible"
    assert bar(tab, "Short").is_visible()


@pytest.mark.browser
def test_without_script_every_section_is_shown_and_nothing_is_offered_to_choose(browser: Browser, many: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab, _ = opened(context, many)
    assert len(shown(tab)) == 21
    assert not tab.locator(".browse").first.is_visible()
    context.close()


@pytest.mark.browser
def test_on_a_phone_neither_the_bar_nor_a_wide_table_reaches_beyond_the_page(browser: Browser, many: str) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800})
    tab, _ = opened(context, many)
    bar(tab).get_by_role("combobox", name="corpus").select_option(UNBROKEN)
    assert tab.evaluate("document.documentElement.scrollWidth") == 400
    # Sections clip what sticks out, so that the page's own width does not tell of it.
    assert tab.evaluate("[...document.querySelectorAll('.trial')].every((t) => t.scrollWidth <= t.clientWidth)")
    assert tab.get_by_role("group", name="Overview").first.evaluate("(box) => box.scrollWidth > box.clientWidth")
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_bar_and_verdicts_stand_out_from_their_grounds(browser: Browser, many: str, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    tab, _ = opened(context, many)
    bar(tab).get_by_role("combobox", name="corpus").select_option("sst")
    _, least, where, holder = tab.evaluate(LEAST_CONTRAST)
    assert least >= 4.5, (where, holder)
    context.close()


@pytest.mark.browser
def test_pointing_at_a_word_marks_it_in_every_row(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    marked = "[...document.querySelectorAll('.same')].map((t) => [...t.parentElement.children].indexOf(t))"
    tab.locator(".heat").first.locator(".tokens").nth(1).locator("span").nth(5).hover()
    assert tab.evaluate(marked) == [5, 5, 5]
    tab.locator("h1").hover()
    assert tab.evaluate(marked) == []
