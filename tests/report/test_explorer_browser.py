"""Looking up texts in a real browser: what a reader finds, with mouse, keyboard, phone or no script at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from heedful.store.workspace import Workspace
from heedful.report.collecting import collect_texts
from heedful.report.lookup import explorer_html, write_explorers
from heedful.report.numbers import format_number
from heedful.report.shelves import group_by_model
from heedful.report.texts import AdversaryResult, ExplanationRow, ExplorerText, ExplorerTexts, TokenWeights
from tests.stored import HOSTILE, SCORES, TEXTS, films
from tests.tabs import LEAST_CONTRAST, UNBROKEN, launched, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.browser

ROWS = (ExplanationRow("attention"), ExplanationRow("other weights", is_adversarial=True), ExplanationRow("gradient"), ExplanationRow("random", is_shown=False))
WORDS = ("plain", "story", "told", "with", "care", "and", "warmth")


COUNT = 400


def made(count: int, length: int) -> ExplorerTexts:
    """Many texts: text n has the word `seldom` if n is a multiple of 20, and its divergence falls with n."""
    generator = np.random.default_rng(1)
    texts = []
    for n in range(count):
        units = [WORDS[place % len(WORDS)] for place in range(length)]
        units[n % length] = "seldom" if n % 20 == 0 else f"word{n}"
        attention = generator.dirichlet(np.ones(length))
        one = np.zeros(length)
        one[n % length] = 1.0
        found = AdversaryResult(0.69 * (1 - n / count), 0.69, 0.05, certified=True)
        gradient = attention * generator.choice((-1.0, 1.0), length)
        weights = (TokenWeights(attention), TokenWeights(one, found), TokenWeights(gradient), TokenWeights(attention[::-1]))
        texts.append(ExplorerText(f"t-{n}", tuple(units), 0, n % 2, 0.75, float(n % 3 == 0), (n / count,), weights))
    return ExplorerTexts({"corpus": "made", "seed": 0}, ("bad", "good"), ROWS, ("largest attention",), tuple(texts))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    fresh = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield fresh
    fresh.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("many") / "many.html"
    path.write_text(explorer_html(made(COUNT, 30)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("few")
    [path] = write_explorers(group_by_model(Workspace(films(root / "w")).entries()), root / "report")
    return path.as_uri()


def shown(tab: Tab) -> list[str]:
    """The uids on the page, in order."""
    return tab.locator("#list .uid").all_inner_texts()


def numbered(*numbers: int) -> list[str]:
    return [f"t-{n}" for n in numbers]


def test_a_word_or_a_uid_finds_its_texts_and_quotes_keep_words_together(
    context: BrowserContext, tmp_path: Path
) -> None:
    texts = made(2000, 30)
    (tmp_path / "t.html").write_text(explorer_html(texts), encoding="utf-8")
    tab, faults = opened(context, (tmp_path / "t.html").as_uri())
    assert tab.inner_text("#count") == "1 to 20 of 2000 texts"
    tab.fill("#words", "SELDOM")
    assert tab.inner_text("#count") == "1 to 20 of 100 texts (of 2000)"
    assert shown(tab) == numbered(*range(0, 400, 20))
    assert tab.locator(".hit").first.inner_text() == "seldom"
    tab.fill("#words", "seldom t-1980")
    assert shown(tab) == ["t-1980"]
    tab.fill("#words", '"told with word19"')
    found = [each.uid for each in texts.texts if "told with word19" in " ".join(each.units)]
    assert 0 < len(found) < 20
    assert shown(tab) == found
    tab.fill("#words", "care with nowhere")
    assert tab.inner_text("#list") == "No text fits this choice."
    tab.get_by_role("button", name="Show all").click()
    assert tab.inner_text("#count") == "1 to 20 of 2000 texts"
    assert faults == []


def test_texts_are_filtered_by_class_and_outcome_and_sorted_by_any_number(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    tab.select_option("#order", label="divergence: other weights")
    assert shown(tab) == numbered(*range(COUNT - 1, COUNT - 21, -1))
    tab.select_option("#direction", "-1")
    assert shown(tab) == numbered(*range(20))
    tab.select_option("#predicted", "1")
    tab.select_option("#outcome", "wrong")
    wrong = [n for n in range(COUNT) if n % 2 and n % 3]
    assert shown(tab) == numbered(*wrong[:20])
    assert tab.inner_text("#count") == f"1 to 20 of {len(wrong)} texts (of {COUNT})"
    tab.select_option("#truly", "1")
    assert shown(tab) == []


def test_a_text_without_the_number_comes_last_in_either_order(context: BrowserContext, few: str) -> None:
    tab, _ = opened(context, few)
    tab.select_option("#order", label="median change when shuffled")
    rising = shown(tab)
    tab.select_option("#direction", "-1")
    assert (rising, shown(tab)) == (["t-2", "t-10", f"t-3 {HOSTILE}"], ["t-10", "t-2", f"t-3 {HOSTILE}"])


def test_pages_are_turned_by_buttons_and_by_number_and_stay_in_range(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    below = tab.locator(".pager").nth(1)
    below.get_by_role("button", name="Next").click()
    assert shown(tab)[0] == "t-20"
    assert tab.evaluate("document.activeElement.id") == "list"
    page = below.get_by_role("spinbutton")
    page.fill("9999")
    page.press("Enter")
    assert shown(tab) == numbered(*range(COUNT - 20, COUNT))
    assert below.get_by_role("button", name="Next").is_disabled()


def test_a_link_to_a_text_shows_it_whatever_was_chosen(context: BrowserContext, many: str) -> None:
    tab, faults = opened(context, f"{many}#t-234")
    target = tab.locator(".target")
    assert target.get_attribute("data-uid") == "t-234"
    assert target.evaluate("(box) => box.getBoundingClientRect().top < innerHeight && box === document.activeElement")
    tab.fill("#words", "seldom")
    tab.evaluate("location.hash = '#t-77'")
    tab.locator('.target[data-uid="t-77"]').wait_for()
    assert tab.input_value("#words") == ""
    tab.evaluate("location.hash = '#nobody%'")
    tab.locator("#count", has_text="There is no text “nobody%” here").wait_for()
    assert set(faults) <= {many}


def test_markup_in_texts_is_shown_literally_and_does_nothing(context: BrowserContext, few: str) -> None:
    tab, faults = opened(context, few)
    tab.fill("#words", HOSTILE)
    assert shown(tab) == ["t-2", f"t-3 {HOSTILE}"]
    tab.get_by_role("link", name=f"t-3 {HOSTILE}").click()
    tab.locator(".target").wait_for()
    for fold in tab.locator("details").all():
        fold.evaluate("(fold) => { fold.open = true; }")
    assert f"good {HOSTILE}" in tab.inner_text("#list")
    assert tab.evaluate("document.querySelectorAll('img, #list script').length") == 0
    assert faults == []


def test_the_weights_in_figures_are_the_stored_ones(context: BrowserContext, few: str) -> None:
    tab, _ = opened(context, f"{few}#t-2")
    text = tab.locator(".target")
    text.locator("summary", has_text="The weights as numbers").click()
    text.locator("table").wait_for()
    cells = text.locator("tbody tr").evaluate_all("(rows) => rows.map((row) => [...row.cells].map((c) => c.innerText))")
    assert tuple(row[0] for row in cells) == TEXTS["t-2"]
    for place, (_, *values) in enumerate(cells):
        score, last = SCORES["t-2"][place], float(place == 4)
        found = [float(value.replace("−", "-")) for value in values]
        assert found == pytest.approx([score, last, last, score * (-1) ** place, score], abs=1e-3)
    told = "divergence 0.500 of at most 0.600, not proven to be the farthest; moves the output by 0.0123"
    assert text.locator(".told").first.inner_text() == told
    assert "wrong: truly\nbad" in text.inner_text()


def test_rows_can_be_chosen_and_all_stand_side_by_side(context: BrowserContext, few: str) -> None:
    tab, _ = opened(context, few)
    rows = tab.locator("#list figure").first.locator(".strip-name bdi")
    exact = ["other weights, exact, epsilon 0.05", "other weights, exact, epsilon 0.01"]
    assert rows.all_inner_texts() == ["attention", *exact, "gradient", "leave one out"]
    tab.get_by_role("checkbox", name="gradient").uncheck()
    tab.get_by_role("checkbox", name="search").check()
    last = "other weights, search, epsilon 0.05"
    assert rows.all_inner_texts() == ["attention", *exact, "leave one out", last]


def test_numbers_read_as_in_the_rest_of_the_report(browser: Browser, tmp_path: Path) -> None:
    values = (0.81249, -0.5, 0.05, 0.0000123, -0.00071, 0.9996, 1.0, 0.0, 12.345, 863.0)
    row = TokenWeights(np.asarray([1.0]))
    texts = tuple(ExplorerText(f"t-{n}", ("w",), 0, 0, 0.5, None, (v,), (row,)) for n, v in enumerate(values))
    (tmp_path / "n.html").write_text(explorer_html(ExplorerTexts({}, (), ROWS[:1], ("f",), texts)), encoding="utf-8")
    tab = browser.new_page()
    tab.goto((tmp_path / "n.html").as_uri())
    found = tab.locator("#list .about div", has=tab.locator("dt", has_text="f")).locator("dd").all_inner_texts()
    assert found[: len(values)] == [format_number(value) for value in values]
    assert tab.locator("#truly").count() == 0
    tab.close()


def test_long_texts_are_folded_and_nothing_of_them_is_lost(context: BrowserContext, tmp_path: Path) -> None:
    texts = made(500, 400)
    (tmp_path / "long.html").write_text(explorer_html(texts), encoding="utf-8")
    assert (tmp_path / "long.html").stat().st_size < 6e6
    tab, faults = opened(context, (tmp_path / "long.html").as_uri())
    assert tab.inner_text("#count") == "1 to 10 of 500 texts"
    first = tab.locator("#list figure").first
    assert first.locator("summary").first.inner_text() == "310 more units"
    whole = first.evaluate(
        "(f) => [...f.querySelectorAll('.strips')].flatMap("
        "(s) => [...s.querySelector('.tokens').children].map((t) => t.textContent))"
    )
    assert tuple(whole) == texts.texts[0].units
    assert faults == []


def test_without_a_script_the_page_says_so_and_shows_the_first_texts(browser: Browser, many: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(many)
    assert tab.locator("noscript .warning").is_visible()
    assert tab.locator("figure.heat").count() == 20
    assert not tab.locator("#choose").is_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(browser: Browser, many: str, scheme: str) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    tab, _ = opened(context, f"{many}#t-7")
    tab.fill("#words", "seldom")
    texts, least, where, holder = tab.evaluate(LEAST_CONTRAST)
    assert texts > 500
    assert least >= 4.5, (where, holder)
    context.close()


def test_nothing_makes_the_page_scroll_sideways_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    found = collect_texts(group_by_model(Workspace(films(tmp_path / "w")).entries())[0])
    wide = tuple(replace(each, uid=UNBROKEN + each.uid, units=(UNBROKEN,) * len(each.units)) for each in found.texts)
    named = replace(found, about={"corpus": UNBROKEN}, classes=(UNBROKEN, UNBROKEN), texts=wide)
    (tmp_path / "w.html").write_text(explorer_html(named), encoding="utf-8")
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab, faults = opened(context, (tmp_path / "w.html").as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    tab.locator("#list table").first.wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert faults == []
    context.close()


def test_the_keyboard_reaches_search_rows_pages_and_texts(context: BrowserContext, many: str) -> None:
    tab, _ = opened(context, many)
    seen = []
    for _ in range(20):
        tab.keyboard.press("Tab")
        seen.append(tab.evaluate("((e) => e.id || e.className || e.type)(document.activeElement)"))
    order = ["skip", "theme", "words", "predicted", "truly", "outcome", "order", "direction", "checkbox", "uid"]
    places = [seen.index(name) for name in order]
    assert places == sorted(places)
    tab.focus("#words")
    tab.keyboard.type("t-399")
    assert shown(tab) == ["t-399"]
