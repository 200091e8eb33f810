"""The pages in a browser: whole sessions by mouse, by keyboard, on a phone, without script and through a kill."""

from __future__ import annotations

import multiprocessing
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from heedful.study.answers import StudyAnswers
from heedful.study.app import serve
from heedful.study.design import Study, StudyOptions, StudyTask, write_study
from heedful.study.items import build_study
from heedful.study.storage import load_answers
from tests.invented_studies import METHODS, free_port, image_page, read_links, text_page
from tests.study.test_app import HOSTILE
from tests.tabs import LEAST_CONTRAST, launched, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OPTIONS = StudyOptions(items=4, per_person=2, people=6, task="both", checks=0, repeats=0)


def _run(folder: Path, port: int) -> None:
    # In a thread of its own: the forked main thread is inside of Playwright's event loop.
    running = threading.Thread(target=serve, args=(folder, "127.0.0.1", port))
    running.start()
    running.join()


class Server:
    """A study in a process of its own, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.study = folder, study
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        write_study(study, folder, self.address)
        self.links = read_links(folder)
        self.start()

    def start(self) -> None:
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=(self.folder, self.port))
        self.process.start()
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("the server does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def answers(self, person: str) -> StudyAnswers:
        found = load_answers(self.folder)
        own = tuple(each for each in found.rankings if each.person == person)
        return StudyAnswers(found.methods, own, tuple(e for e in found.simulations if e.person == person), 0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("texts")
    words = ("quiet", "film", "ending", "dull", *HOSTILE)
    server = Server(folder / "study", build_study(text_page(folder / "p.html", words=words), METHODS, OPTIONS))
    yield server
    server.kill()


@contextmanager
def tab_of(browser: Browser, server: Server, **settings: object) -> Iterator[tuple[Tab, list[str]]]:
    """A tab, and everything that it must not do; requests to the server are allowed."""
    context: BrowserContext = browser.new_context(**settings)  # type: ignore[arg-type]
    tab, faults = opened(context, server.address)
    faults.clear()  # the front page is not found, which the console says
    yield tab, faults
    context.close()


def agree(tab: Tab, link: str) -> None:
    tab.goto(link)
    tab.get_by_role("checkbox").check()
    tab.get_by_role("button", name="Continue").click()
    tab.get_by_role("link", name="Begin").click()


def expected(server: Server, person: str, ranks: list[int]) -> list[dict[str, int]]:
    plan = server.study.plans[person]
    return [dict(zip(map(str, s.maps), ranks, strict=True)) for s in plan if s.task is StudyTask.RANK]


def is_overflowing(tab: Tab) -> bool:
    return bool(tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_a_whole_session_by_mouse_with_a_tie_that_is_refused_and_repaired(texts: Server, browser: Browser) -> None:
    with tab_of(browser, texts, viewport={"width": 1200, "height": 850}) as (tab, faults):
        agree(tab, texts.links["p1"])
        for number, slot in enumerate(texts.study.plans["p1"], 1):
            tab.wait_for_url(f"**/{number}")
            assert not is_overflowing(tab)
            if number in (1, 3):  # the first page of each task
                count, ratio, *_ = tab.evaluate(LEAST_CONTRAST)
                assert count > 5
                assert ratio >= 4.5
            if slot.task is StudyTask.SIMULATE:
                tab.locator(".guess label").nth(1).click()
                tab.get_by_role("button", name="Save").click()
            else:
                for place, rank in enumerate((1, 2, 2, 3)):
                    tab.locator(".map").nth(place).locator(".places label").nth(rank - 1).click()
                assert "the next place is 4, not 3" in tab.locator("#hint").inner_text()
                tab.locator("#save").click()
                tab.get_by_role("button", name="Save it as 1 2 2 4").click()
        tab.wait_for_url("**/thanks")
        assert "Thank you" in tab.locator("h1").inner_text()
        # Undo: change the first answer afterwards.
        tab.get_by_role("link", name="Answer 1", exact=True).click()
        assert tab.locator(".guess input").nth(1).is_checked()
        tab.locator(".guess label").nth(0).click()
        tab.get_by_role("button", name="Save the change").click()
        tab.wait_for_url("**/thanks")
        assert not [fault for fault in faults if not fault.startswith(texts.address) and "422" not in fault]
    answers = texts.answers("p1")
    assert [dict(each.ranks) for each in answers.rankings] == expected(texts, "p1", [1, 2, 2, 4])
    assert [each.guess for each in answers.simulations] == ["negative", "positive"]


@pytest.mark.parametrize("person", ["p2"])
def test_a_whole_session_by_keyboard_alone_with_names_for_screen_readers(
    texts: Server, browser: Browser, person: str
) -> None:
    with tab_of(browser, texts) as (tab, _):
        tab.goto(texts.links[person])
        press = tab.keyboard.press
        for key in ("Tab", "Tab", "Space", "Tab", "Enter"):  # skip link, box, button
            press(key)
        tab.wait_for_url("**/instructions")
        tab.get_by_role("link", name="Begin").focus()
        press("Enter")
        for number, slot in enumerate(texts.study.plans[person], 1):
            tab.wait_for_url(f"**/{number}")
            if slot.task is StudyTask.SIMULATE:
                assert tab.get_by_role("radio", name="positive").count() == 1
                press("2")
            else:
                assert tab.get_by_role("group", name="Map A").count() == 1
                assert tab.get_by_role("radio", name="Map C: place 2").count() == 1
                for key in ("a", "4", "d", "1", "b", "2", "c", "2"):
                    press(key)
            press("Enter")
        tab.wait_for_url("**/thanks")
    assert [dict(each.ranks) for each in texts.answers(person).rankings] == expected(texts, person, [4, 2, 2, 1])


def test_a_whole_session_on_a_phone_without_script(texts: Server, browser: Browser) -> None:
    phone = {
        "viewport": {"width": 360, "height": 740},
        "has_touch": True,
        "is_mobile": True,
        "java_script_enabled": False,
    }
    with tab_of(browser, texts, **phone) as (tab, _):
        agree(tab, texts.links["p3"])
        for number, slot in enumerate(texts.study.plans["p3"], 1):
            tab.wait_for_url(f"**/{number}")
            for label in tab.locator(".places label, .guess label").all():
                box = label.bounding_box()
                assert box is not None
                assert min(box["width"], box["height"]) >= 44
                assert box["x"] + box["width"] <= 360
            if slot.task is StudyTask.SIMULATE:
                tab.locator(".guess label").nth(0).tap()
            else:
                for place in range(4):
                    tab.locator(".map").nth(place).locator(".places label").nth(0).tap()
            tab.locator("#save").tap()
        tab.wait_for_url("**/thanks")
    assert [dict(each.ranks) for each in texts.answers("p3").rankings] == expected(texts, "p3", [1, 1, 1, 1])


def test_a_session_goes_on_after_a_kill_and_on_another_device(texts: Server, browser: Browser) -> None:
    with tab_of(browser, texts) as (tab, _):
        agree(tab, texts.links["p4"])
        for guess in (0, 1):
            tab.locator(".guess label").nth(guess).click()
            if guess:  # the server is away when the answer is sent: it is sent again until it is stored
                texts.kill()
            tab.locator("#save").click()
            if guess:
                tab.wait_for_function("document.getElementById('hint').textContent.includes('connection')")
                texts.start()
            tab.wait_for_url(f"**/{guess + 2}", timeout=60_000)
        assert len(texts.answers("p4").simulations) == 2
    with tab_of(browser, texts) as (tab, _):
        tab.goto(texts.links["p4"])
        assert tab.url.endswith("/3")


def test_two_people_at_once(texts: Server, browser: Browser) -> None:
    with tab_of(browser, texts) as (one, _), tab_of(browser, texts) as (other, _):
        for tab, person in ((one, "p5"), (other, "p6")):
            agree(tab, texts.links[person])
        for number in (1, 2):
            for tab, guess in ((one, 0), (other, 1)):
                tab.locator(".guess label").nth(guess).click()
            for tab in (one, other):
                tab.locator("#save").dblclick(no_wait_after=True)
            for tab in (one, other):
                tab.wait_for_url(f"**/{number + 1}")
    assert [each.guess for each in texts.answers("p5").simulations] == ["negative"] * 2
    assert [each.guess for each in texts.answers("p6").simulations] == ["positive"] * 2


def test_images_are_drawn_under_the_policy(tmp_path: Path, browser: Browser) -> None:
    server = Server(tmp_path / "study", build_study(image_page(tmp_path / "p.html"), METHODS, OPTIONS))
    try:
        with tab_of(browser, server, viewport={"width": 1000, "height": 800}) as (tab, faults):
            agree(tab, server.links["p1"])
            for number, slot in enumerate(server.study.plans["p1"], 1):
                tab.wait_for_url(f"**/{number}")
                pictures = tab.locator("svg.picture")
                assert pictures.count() == (5 if slot.task is StudyTask.RANK else 1 + (slot.maps[0] is not None))
                names = [str(each.get_attribute("aria-label")) for each in pictures.all()]
                assert names[0] == "The image"
                assert all(re.match(r"Map [A-D]\. Strongest squares: row \d, column \d", name) for name in names[1:])
                shot = tab.screenshot()
                assert len(shot) > 5000
                for key in ("1",) if slot.task is StudyTask.SIMULATE else ("a", "1", "b", "2", "c", "3", "d", "4"):
                    tab.keyboard.press(key)
                tab.keyboard.press("Enter")
            tab.wait_for_url("**/thanks")
            assert not [fault for fault in faults if not fault.startswith(server.address)]
    finally:
        server.kill()
