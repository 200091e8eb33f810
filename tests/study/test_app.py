"""The application: a whole session, blindness as a symmetry, and what hostile people and texts cannot do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from heedful.study import app as application
from heedful.study.answers import Occasion, competition_ranks
from heedful.study.app import RateLimit, create_app, explain_ranks, render_markdown
from heedful.study.design import CONTROL, Study, StudyOptions, StudyTask, read_study, token_digest, write_study
from heedful.study.items import build_study
from heedful.study.storage import load_answers
from tests.invented_studies import METHODS, image_page, read_links, text_page

HOSTILE = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"'><svg/onload=alert(1)>", "{{7*7}}",
    "${7*7}", "javascript:alert(1)", "&lt;b&gt;", "\u202eabc", "\x00\x08", "' OR 1=1 --", "=HYPERLINK(1)", "a" * 300,
    "👩‍👩‍👧", "</p></main>",
)  # fmt: skip
OPTIONS = StudyOptions(items=8, per_person=10, people=3, task="both", checks=2, repeats=2)


@dataclass(frozen=True)
class Served:
    folder: Path
    client: TestClient
    links: dict[str, str]

    @property
    def study(self) -> Study:
        return read_study(self.folder)

    def fields(self, page: str) -> dict[str, str]:
        """The hidden fields of the form for an answer."""
        form = page.partition('id="answer"')[2] or page.partition('<form method="post"')[2]
        return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))

    def consent(self, person: str) -> str:
        """The page of instructions, after consent."""
        page = self.client.get(self.links[person]).text
        form = {**self.fields(page), "agree": "yes"}
        return self.client.post(f"{self.links[person]}/consent", data=form).text

    def answer(self, person: str, number: int, **given: str) -> str:
        """Open a page and answer it; the page that follows."""
        address = f"{self.links[person]}/{number}"
        form = {**self.fields(self.client.get(address).text), **given}
        return self.client.post(address, data=form).text

    def right_answer(self, person: str, number: int) -> dict[str, str]:
        slot = self.study.plans[person][number - 1]
        if slot.task is StudyTask.SIMULATE:
            return {"guess": "0"}
        return {f"a{place}": str(place + 1) for place in range(len(slot.maps))}


def serve(folder: Path, study: Study) -> Served:
    write_study(study, folder, "")
    return Served(folder, TestClient(create_app(folder), raise_server_exceptions=False), read_links(folder))


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return serve(tmp_path / "study", build_study(text_page(tmp_path / "p.html"), METHODS, OPTIONS))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask more quickly than people."""
    monkeypatch.setattr(application, "PERSON_BURST", 1e6)
    monkeypatch.setattr(application, "STRANGER_BURST", 1e6)


@pytest.mark.parametrize("make", [text_page, image_page])
def test_a_whole_session_gives_exactly_the_answers_that_were_given(tmp_path: Path, make: object) -> None:
    assert callable(make)
    served = serve(tmp_path / "study", build_study(make(tmp_path / "p.html"), METHODS, OPTIONS))
    assert "Instructions" in served.consent("p1")
    plan = served.study.plans["p1"]
    for number in range(1, len(plan) + 1):
        page = served.answer("p1", number, **served.right_answer("p1", number))
    assert "Thank you" in page
    answers = load_answers(served.folder)
    assert len(answers.rankings) + len(answers.simulations) == len(plan)
    ranked = [slot for slot in plan if slot.task is StudyTask.RANK]
    assert [dict(each.ranks) for each in answers.rankings] == [
        {str(name): place + 1 for place, name in enumerate(slot.maps)} for slot in ranked
    ]
    assert {(each.occasion, each.method) for each in answers.simulations} == {
        (slot.occasion, slot.maps[0]) for slot in plan if slot.task is StudyTask.SIMULATE
    }


def _neutral(page: str) -> str:
    """A page without what differs between any two pages: codes, times and tokens."""
    return re.sub(r'(name="(?:code|began)" value|action|href)="[^"]*"', r'\1=""', page)


@pytest.mark.parametrize("make", [text_page, image_page])
def test_a_page_does_not_change_when_methods_get_other_names(tmp_path: Path, make: object) -> None:
    """Blindness as a symmetry: whatever a page, an address or a header says, it does not depend on a name."""
    assert callable(make)
    study = build_study(make(tmp_path / "p.html"), METHODS, OPTIONS)
    names: dict[str | None, str | None] = {name: f"{name[::-1]}-{place}" for place, name in enumerate(METHODS)}
    names |= {None: None, CONTROL: CONTROL}
    renamed = replace(
        study,
        methods=tuple(str(names[name]) for name in study.methods),
        items=tuple(
            replace(i, maps={str(names[n]): i.maps[n] for n in sorted(i.maps, reverse=True)}) for i in study.items
        ),
        plans={
            person: tuple(replace(slot, maps=tuple(names[name] for name in slot.maps)) for slot in plan)
            for person, plan in study.plans.items()
        },
    )
    first, second = serve(tmp_path / "1", study), serve(tmp_path / "2", renamed)
    for person, plan in [*study.plans.items()][:1]:
        for served in (first, second):
            served.consent(person)
        for number, slot in enumerate(plan, 1):
            pages = [served.client.get(f"{served.links[person]}/{number}") for served in (first, second)]
            assert _neutral(pages[0].text) == _neutral(pages[1].text)
            assert not any(name in pages[0].text.lower() for name in ("lime", "gradient"))
            assert {**pages[0].headers, "content-length": ""} == {**pages[1].headers, "content-length": ""}
            assert not pages[0].cookies
            assert slot.item not in pages[0].text
            for served in (first, second):
                served.answer(person, number, **first.right_answer(person, number))


def test_checks_and_repeats_look_like_any_other_ranking(served: Served) -> None:
    """Practice and checks say what they are; else the only differences are the words and their levels."""
    served.consent("p1")
    frames: dict[Occasion, set[str]] = {}
    for number, slot in enumerate(served.study.plans["p1"], 1):
        page = served.client.get(f"{served.links['p1']}/{number}").text
        if slot.task is StudyTask.RANK:
            bare = re.sub(
                r'(?s)<div class="(plain|drawing) text".*?</div>|<summary.*?</details>|<bdi>.*?</bdi>', "", page
            )
            asked = re.search(r"please give map ([A-D]) the last place", page)
            assert (asked is not None) == (slot.occasion is Occasion.CHECK)
            assert asked is None or slot.maps["ABCD".index(asked[1])] == CONTROL
            bare = re.sub(r'\d+|<p class="lead">.*', "", _neutral(bare))
            frames.setdefault(slot.occasion, set()).add(bare)
        served.answer("p1", number, **served.right_answer("p1", number))
    assert frames[Occasion.CHECK] == frames[Occasion.REPEAT] == frames[Occasion.MAIN]
    assert len(frames[Occasion.MAIN]) == 1


def _rank_page(served: Served, person: str = "p1") -> int:
    """Answer up to the first ranking; its number."""
    served.consent(person)
    plan = served.study.plans[person]
    number = next(place for place, slot in enumerate(plan, 1) if slot.task is StudyTask.RANK)
    for before in range(1, number):
        served.answer(person, before, **served.right_answer(person, before))
    return number


def test_competition_rankings_are_stored(served: Served) -> None:
    number = _rank_page(served)
    for ranks in ((1, 1, 3, 4), (1, 2, 2, 4), (1, 1, 1, 1), (4, 3, 2, 1), (1, 2, 3, 3)):
        served.answer("p1", number, **{f"a{place}": str(rank) for place, rank in enumerate(ranks)})
        assert tuple(load_answers(served.folder).rankings[0].ranks.values()) == ranks


def test_other_rankings_are_refused_with_a_reason_and_a_remedy(served: Served) -> None:
    number = _rank_page(served)
    for ranks, reason in (
        ((1, 2, 2, 3), "2 maps share place 2, so the next place is 4, not 3"),
        ((1, 1, 2, 3), "2 maps share place 1, so the next place is 3, not 2"),
        ((1, 3, 3, 4), "after place 1 the next place is 2, not 3"),
        ((2, 2, 3, 4), "place 1"),
        ((1, 1, 1, 2), "3 maps share place 1, so the next place is 4, not 2"),
    ):
        page = served.answer("p1", number, **{f"a{place}": str(rank) for place, rank in enumerate(ranks)})
        assert reason in page
        assert reason in explain_ranks(ranks)
        assert load_answers(served.folder).rankings == ()
        assert f"Save it as {' '.join(map(str, competition_ranks(ranks)))}" in page
        # What the person chose is still there.
        for place, rank in enumerate(ranks):
            assert re.search(rf'name="a{place}" value="{rank}"[^>]* checked', page)


def test_double_clicks_and_repeated_requests_are_one_answer_and_back_changes_it(served: Served) -> None:
    served.consent("p1")
    address = f"{served.links['p1']}/1"
    form = {**served.fields(served.client.get(address).text), "guess": "0"}
    for _ in range(3):
        assert "2 of" in served.client.post(address, data=form).text
    late = served.client.post(address, data={**form, "guess": "1"})  # another tab that was open before
    assert "that answer was kept" in late.text
    refused = served.client.post(address, data={**form, "guess": ""})  # neither after a correction in that tab
    corrected = served.client.post(address, data={**served.fields(refused.text), "guess": "1"})
    assert "that answer was kept" in corrected.text
    answers = load_answers(served.folder).simulations
    assert [each.guess for each in answers] == ["negative"]
    assert "Save the change" in served.client.get(address).text
    served.answer("p1", 1, guess="1")
    assert [each.guess for each in load_answers(served.folder).simulations] == ["positive"]


def test_two_people_and_two_devices_do_not_disturb_each_other(served: Served) -> None:
    for person in ("p1", "p2"):
        served.consent(person)
    for number in (1, 2, 3):
        for person in ("p1", "p2"):
            served.answer(person, number, **served.right_answer(person, number))
    other_device = TestClient(create_app(served.folder))
    assert "4 of" in other_device.get(served.links["p1"]).text
    assert len(load_answers(served.folder).simulations) == 6


def test_nobody_jumps_ahead_or_answers_without_consent(served: Served) -> None:
    link = served.links["p1"]
    assert "I have read this" in served.client.get(f"{link}/5").text
    assert "I have read this" in served.client.get(f"{link}/instructions").text
    served.consent("p1")
    assert "Page 1 of" not in served.client.get(f"{link}/5").text
    form = served.fields(served.client.get(f"{link}/1").text)
    served.client.post(f"{link}/5", data={**form, "guess": "0"})
    assert load_answers(served.folder).simulations == ()


def test_withdrawing_deletes_everything_and_ends_the_link(served: Served) -> None:
    served.consent("p1")
    served.answer("p1", 1, guess="0")
    page = served.client.get(f"{served.links['p1']}/withdraw").text
    assert len(load_answers(served.folder).simulations) == 1
    assert "deleted" in served.client.post(f"{served.links['p1']}/withdraw", data=served.fields(page)).text
    assert load_answers(served.folder).simulations == ()
    for path in ("", "/1", "/instructions", "/withdraw"):
        assert served.client.get(served.links["p1"] + path).status_code == 404


def test_the_owner_sees_progress_and_exports_and_nobody_else_does(served: Served) -> None:
    served.consent("p1")
    served.consent("p2")
    for number in range(1, 13):
        served.answer("p1", number, **served.right_answer("p1", number))
    admin = served.links["admin"]
    page = served.client.get(admin).text
    counts = dict(re.findall(r"<dt>([\w ]+)</dt><dd>(\d+)</dd>", page))
    assert counts == {
        "not begun": "1", "at work": "1", "finished": "1", "dropped out": "0", "withdrawn": "0", "answers": "12",
    }  # fmt: skip
    assert not any(name in page for name in METHODS)
    assert served.client.get(f"{admin}/answers.json").text == load_answers(served.folder).to_json()
    table = served.client.get(f"{admin}/answers.csv").text.splitlines()
    assert len(table) == 1 + 4 * 6 + 6
    token = served.links["p1"].rpartition("/")[2]
    for path in (
        f"/admin/{token}",
        f"/admin/{token}/answers.json",
        "/admin",
        "/admin/",
        f"/s/{admin.rpartition('/')[2]}",
    ):
        assert served.client.get(path).status_code == 404


def test_a_damaged_answer_is_asked_for_again_and_the_owner_sees_it(served: Served) -> None:
    served.consent("p1")
    for number in (1, 2):
        served.answer("p1", number, **served.right_answer("p1", number))
    connection = sqlite3.connect(served.folder / "answers.sqlite")
    with connection:
        connection.execute("UPDATE heedful_answers SET content = 'no answer' WHERE slot = 0")
    connection.close()
    assert load_answers(served.folder).damaged == 1
    assert "Damaged" in served.client.get(served.links["admin"]).text
    assert str(served.client.get(served.links["p1"]).url).endswith("/1")
    served.answer("p1", 1, **served.right_answer("p1", 1))
    assert load_answers(served.folder).damaged == 0
    assert "Damaged" not in served.client.get(served.links["admin"]).text
    assert str(served.client.get(served.links["p1"]).url).endswith("/3")


def test_nothing_else_is_reachable(served: Served) -> None:
    files = ("study.json", "answers.sqlite", "keys.json", "links.txt", "consent.md")
    tokens = ("x", "a" * 24, "a" * 5000, token_digest(served.links["p1"].rpartition("/")[2]))
    paths = ["/", "/s", "/s/", "/docs", "/openapi.json", "/static", "/study.css/", "/%2e%2e/keys.json", "//admin"]
    for path in (
        *paths,
        *(f"/{name}" for name in files),
        *(f"/../{name}" for name in files),
        *(f"/s/{t}" for t in tokens),
    ):
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"):
            assert served.client.request(method, path).status_code == 404, (method, path)


def test_every_answer_has_the_headers_and_loads_nothing_from_elsewhere(served: Served) -> None:
    page = served.consent("p1")
    for path in ("/", "/s/x", served.links["p1"], f"{served.links['p1']}/1", served.links["admin"], "/study.js"):
        answer = served.client.get(path)
        for name, value in application.HEADERS.items():
            if (path, name) != ("/study.js", "cache-control"):
                assert answer.headers[name] == value
        assert "set-cookie" not in answer.headers
        page += answer.text
    assert not re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", page)
    assert not re.findall(r"<[^>]+\s(?:style|on\w+)=", page)
    assert "'unsafe" not in application.HEADERS["content-security-policy"]


def _hostile_forms() -> list[tuple[str, dict[str, str] | bytes]]:
    """Answers to a ranking page that are none; `code` and the other hidden fields are right unless they are given."""
    good = {"a0": "1", "a1": "2", "a2": "3", "a3": "4"}
    found: list[tuple[str, dict[str, str] | bytes]] = [("nothing", {})]
    numbers = "0|5|-1|+1| 1|1 |1.0|1e0|0x1|٣|²||NaN|true|1;2|[1]|01x|one|IV|1\n"
    found += [(f"rank {value[:5]!r}", {**good, "a0": value}) for value in (*numbers.split("|"), "9" * 40, *HOSTILE)]
    found += [(f"without {name}", {key: value for key, value in good.items() if key != name}) for name in good]
    for name, value in (
        ("code", ""), ("code", "0" * 32), ("code", "é"), ("began", "0"), ("began", "nan"), ("began", "-1e308"),
        ("began", ""), ("revision", "1"), ("revision", "-1"), ("revision", "x"), ("revision", "9" * 99),
    ):  # fmt: skip
        found.append((f"{name} {value[:6]}", {**good, name: value}))
    found += [
        ("large", {**good, "x": "a" * 10_000}),
        ("many fields", {**good, **{f"x{place}": "1" for place in range(200)}}),
        ("json", b'{"a0": 1}'),
        ("bytes", bytes(range(256))),
        ("not utf-8", b"a0=%ff%fe&a1=2"),
        ("multipart", b"--x\r\nContent-Disposition: form-data; name=a0\r\n\r\n1\r\n--x--"),
        ("a guess", {"guess": "0"}),
        ("equal and too large", dict.fromkeys(good, "4")),
        ("other ranks", {"a4": "1", "a5": "2"}),
        ("a method", {**good, "method": "lime", "person": "p2", "slot": "0"}),
    ]
    return found


def test_sixty_hostile_answers_store_nothing_that_was_not_asked(served: Served) -> None:
    number = _rank_page(served)
    before = load_answers(served.folder)
    address = f"{served.links['p1']}/{number}"
    page = served.client.get(address).text
    hidden, forms = served.fields(page), _hostile_forms()
    assert len(forms) >= 60
    for name, form in forms:
        body = form if isinstance(form, bytes) else urlencode({**hidden, **form}, errors="surrogatepass").encode()
        kind = "application/json" if name == "json" else "application/x-www-form-urlencoded"
        answer = served.client.post(address, content=body, headers={"content-type": kind}, follow_redirects=False)
        if name == "a method":  # fields that nobody asked for are not read
            assert answer.status_code == 303
            continue
        assert answer.status_code in (400, 413, 422), (name, answer.status_code)
        assert load_answers(served.folder) == before, name
        assert "<script>alert" not in answer.text
        assert "onerror=alert(1)>" not in answer.text or "&lt;img" in answer.text
    after = load_answers(served.folder)
    assert len(after.rankings) == 1
    assert after.rankings[0].person == "p1"


def test_a_body_without_a_length_is_cut_off_at_the_limit(served: Served) -> None:
    served.consent("p1")
    address = f"{served.links['p1']}/1"
    form = {**served.fields(served.client.get(address).text), "guess": "0"}
    kind = {"content-type": "application/x-www-form-urlencoded"}

    def parts(padding: int) -> Iterator[bytes]:
        yield urlencode(form).encode()
        for _ in range(padding):
            yield b"&x=" + b"a" * 1000

    assert served.client.post(address, content=parts(100), headers=kind, follow_redirects=False).status_code == 400
    assert load_answers(served.folder).simulations == ()
    assert served.client.post(address, content=parts(1), headers=kind, follow_redirects=False).status_code == 303


def test_a_code_of_one_page_or_person_is_worth_nothing_on_another(served: Served) -> None:
    number = _rank_page(served)
    served.consent("p2")
    form = {**served.fields(served.client.get(f"{served.links['p1']}/{number}").text), "guess": "0", "agree": "yes"}
    assert served.client.post(f"{served.links['p2']}/1", data=form).status_code == 400
    assert served.client.post(f"{served.links['p1']}/1", data=form).status_code == 400
    assert served.client.post(f"{served.links['p1']}/withdraw", data=form).status_code == 200  # asks again
    assert len(load_answers(served.folder).simulations) == number - 1


def test_hostile_texts_classes_and_titles_are_text(tmp_path: Path) -> None:
    study = build_study(text_page(tmp_path / "p.html", words=HOSTILE), METHODS, OPTIONS, title=HOSTILE[0])
    study = replace(
        study,
        items=tuple(
            replace(i, predicted=HOSTILE[1], choices=(HOSTILE[1], HOSTILE[2], *HOSTILE[3:6])) for i in study.items
        ),
    )
    served = serve(tmp_path / "study", study)
    served.consent("p1")
    for number in range(1, len(study.plans["p1"]) + 1):
        page = served.client.get(f"{served.links['p1']}/{number}").text
        assert page.count("<script") == 1
        assert "<img" not in page
        assert not re.search(r"<[^>]+\son\w+\s*=", re.sub(r'"[^"]*"', '""', page))
        assert "49" not in _neutral(page)
        served.answer("p1", number, **served.right_answer("p1", number))
    assert load_answers(served.folder).simulations[0].guess == HOSTILE[1]


def test_markdown_of_the_owner_cannot_load_or_run_anything(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(
        "# T\n\n<script>alert(1)</script>\n\n![x](http://elsewhere/p.png) [a](javascript:alert(1)) [b](https://ok.org)\n\n**b**\n"
    )
    html = str(render_markdown(path))
    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html
    assert '<a href="https://ok.org">' in html
    assert "<strong>b</strong>" in html


def test_a_rate_limit_allows_a_burst_and_then_a_rate() -> None:
    now = [0.0]
    limit = RateLimit(2.0, 3.0, lambda: now[0])
    assert [limit.allows("a") for _ in range(5)] == [True, True, True, False, False]
    assert limit.allows("b")
    now[0] = 0.5  # half a second is one request more
    assert [limit.allows("a") for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert [limit.allows("a") for _ in range(4)] == [True, True, True, False]


def test_requests_beyond_the_limit_are_refused_for_that_person_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "PERSON_BURST", 4.0)
    monkeypatch.setattr(application, "STRANGER_BURST", 4.0)
    monkeypatch.setattr(application, "STRANGER_RATE", 0.001)
    monkeypatch.setattr(application, "PERSON_RATE", 0.001)
    client = TestClient(create_app(served.folder))
    codes = [client.get(served.links["p1"], follow_redirects=False).status_code for _ in range(6)]
    assert codes == [200] * 4 + [429] * 2
    assert client.get(served.links["p2"]).status_code == 200
    assert [client.get("/s/guess").status_code for _ in range(6)] == [404] * 4 + [429] * 2
    assert client.get(served.links["p3"]).status_code == 200


def test_an_answer_that_cannot_be_stored_is_not_acknowledged(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    from heedful.study.storage import AnswerStore

    served.consent("p1")
    address = f"{served.links['p1']}/1"
    form = {**served.fields(served.client.get(address).text), "guess": "0"}

    def full(*_: object, **__: object) -> None:
        raise OperationalError("INSERT", {}, OSError("disk full"))

    with monkeypatch.context() as patched:
        patched.setattr(AnswerStore, "record", full)
        answer = served.client.post(address, data=form, follow_redirects=False)
    assert answer.status_code == 503
    assert "disk" not in answer.text
    assert served.client.post(address, data=form, follow_redirects=False).status_code == 303


def test_tokens_are_stored_as_digests_only(served: Served) -> None:
    served.consent("p1")
    served.answer("p1", 1, guess="0")
    token = served.links["p1"].rpartition("/")[2]
    held = b"".join(path.read_bytes() for path in served.folder.iterdir() if path.name != "links.txt")
    assert token.encode() not in held
    assert token_digest(token).encode() in held
