"""The numbers of an audit in the terminal: they fit any width, and page, terminal and JSON agree number by number."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from heedful.attributions.method import Feature
from heedful.audits.audit_page import answer_html, question_html
from heedful.audits.audit_tables import basis, distance_sentence
from heedful.audits.questions import QUESTIONS
from heedful.results import Decision, Statistic
from tests.audits.sample_audit import sample_audit

AUDIT = sample_audit()
CONTENT: dict[str, Any] = json.loads(AUDIT.to_json())
METHODS: dict[str, dict[str, Any]] = {method["name"]: method for method in CONTENT["methods"]}
NUMBER = r"[−-]?\d+(?:\.\d+)?"


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """What the terminal shows in this width; None is a log file."""
    if request.param is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(request.param))
    AUDIT.show()
    return capsys.readouterr().out


def blocks(shown: str) -> dict[str, str]:
    """By method, its line and the indented lines below it, as one line."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in shown.splitlines():
        if not line.startswith(" "):
            name = line.split()[0] if line.split() and line.split()[0] in METHODS else ""
        if name:
            found.setdefault(name, []).append(line)
    return {name: " ".join(" ".join(lines).split()) for name, lines in found.items()}


def plain(page: str) -> str:
    """The text of a page in one line."""
    body = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def matches(text: str, value: float | None) -> bool:
    """Whether a printed number is this one, rounded to as many digits as are printed."""
    if value is None:
        return False
    digits = len(text.partition(".")[2])
    return math.isclose(float(text.replace("−", "-")), value, rel_tol=0, abs_tol=0.5 * 10**-digits + 1e-9)


def share(text: str) -> tuple[str, str, str]:
    """The share and its interval in percent from the first "78 % (73 to 83 %)"."""
    found = re.search(rf"({NUMBER}) % \(({NUMBER}) to ({NUMBER}) %\)", text)
    assert found, text
    return found[1], found[2], found[3]


def decision(method: Mapping[str, Any]) -> str:
    return "control" if method["decision"] is None else str(method["decision"])


WIDTHS = (None, 60, 72, 80, 100, 120, 160, 200)


@pytest.mark.parametrize("shown", WIDTHS, indirect=True)
def test_the_terminal_has_every_decision_unbroken_and_the_reason_of_every_refusal(
    shown: str, request: pytest.FixtureRequest
) -> None:
    width = request.node.callspec.params["shown"] or 80
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]
    found = blocks(shown)
    assert [*found] == [*METHODS]
    whole = " ".join(shown.split())
    assert whole.startswith(f"{AUDIT.sentence} {basis(AUDIT)}")
    for name, method in METHODS.items():
        assert decision(method) in found[name]
        assert any(decision(method) in line for line in lines)
        if method["decision"] not in (None, Decision.SHOW.value):
            assert " ".join(method["reason"].split()) in found[name]


@pytest.mark.parametrize("shown", [None, 60, 200], indirect=True)
def test_page_terminal_and_json_agree_on_every_method(shown: str) -> None:
    page, terminal = answer_html(AUDIT), blocks(shown)
    rows = {row[0]: row for row in table_rows(page)}
    for name, method in METHODS.items():
        shares = [100 * method[key] for key in ("achievable", "achievable_low", "achievable_high")]
        row = rows.get(name) or rows[f"{name} (control)"]
        for text in (terminal[name], row[2]):
            assert all(map(matches, share(text), shares)), (name, text)
        assert row[1] == ("" if method["decision"] is None else method["decision"])
        [seconds] = re.findall(rf"({NUMBER}) s(?: |;|$)", terminal[name])
        assert matches(seconds, method["seconds"])
        assert matches(row[-2], method["seconds"])


def table_rows(page: str) -> list[list[str]]:
    """The cells of the table with one row per method."""
    [table] = [part for part in re.findall(r"<table.*?</table>", page, re.S) if "seconds per text" in part]
    rows = re.findall(r"<tr.*?</tr>", table, re.S)
    return [[plain(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)] for row in rows]


@pytest.mark.parametrize("question", [question.name for question in QUESTIONS])
def test_the_page_of_a_question_and_the_json_agree_on_every_verdict_and_interval(question: str) -> None:
    page = question_html(AUDIT, question)
    compared = 0
    for name, method in METHODS.items():
        answer = next(each for each in method["answers"] if each["question"] == question)
        [entry] = re.findall(rf"<li id=\"m-{name}\">.*?</li>", page, re.S)
        text = plain(entry)
        assert f" {answer['verdict']} " in f"{text} "
        if not answer["evidence"]:
            continue
        row = answer["evidence"][0]
        percent = rf"({NUMBER}) % \(({NUMBER}) to ({NUMBER}) %\) of the achievable.*?; (\d+) texts"
        brief = rf"({NUMBER}) \(({NUMBER}) to ({NUMBER})\).*?; (\d+) texts"
        is_share = re.search(percent, text)
        found = is_share or re.search(brief, text)
        assert found, (name, text)
        factor = 100 if is_share else 1
        for printed, key in zip(found.groups()[:3], ("value", "low", "high"), strict=True):
            assert matches(printed, factor * row[key]), (name, key, printed, row[key])
        assert int(found[4]) == row["n"]
        compared += 1
    untested = all(
        not answer["evidence"]
        for each in METHODS.values()
        for answer in each["answers"]
        if answer["question"] == question
    )
    assert bool(compared) is not untested


@pytest.mark.parametrize("shown", [None, 120], indirect=True)
def test_page_terminal_and_json_agree_on_what_the_answer_rests_on(shown: str) -> None:
    terminal, page = " ".join(shown.split()), plain(answer_html(AUDIT))
    data = CONTENT["data"]
    methods = sum(not method["control"] for method in METHODS.values())
    for text in (terminal, page):
        [counts] = re.findall(r"Tested on (\d+) of (\d+) texts with (\d+) methods", text)
        assert [*map(int, counts)] == [data["texts"], data["rows"], methods]
        assert CONTENT["sentence"] in text
        untested = text.split("Not tested:")[1].split(".")[0]
        assert "teaches" in untested
        assert "stable" not in untested
    assert "cut off" not in terminal
    assert "texts cut off 0 %" in page


def test_texts_that_were_cut_off_are_in_the_headline() -> None:
    def with_truncated(truncated: float) -> str:
        return basis(replace(AUDIT, model=replace(AUDIT.model, truncated=truncated)))

    assert "12 % of the texts are longer" in with_truncated(0.12)
    assert "Fewer than 1 %" in with_truncated(0.001)
    assert "cut off" not in with_truncated(0.0)


def test_segments_and_sentences_are_named_in_the_headline() -> None:
    features: tuple[Feature, ...] = ("segment", "sentence")
    for feature in features:
        data = replace(AUDIT.data, feature=feature, segmented=3)
        assert f"3 of these {data.texts} texts were explained by {feature}s" in basis(replace(AUDIT, data=data))


def test_the_terminal_gives_a_reason_for_what_may_be_shown_only_if_it_says_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, *others = AUDIT.methods
    plain = replace(first, reason=first.answer("faithful").reason)
    qualified = replace(second, reason=f"{second.answer('faithful').reason}; rollout is clearly more faithful")
    replace(AUDIT, methods=(plain, qualified, *others)).show()
    shown = blocks(capsys.readouterr().out)
    assert "more faithful" in shown[second.name]
    assert first.answer("faithful").reason not in shown[first.name]


def test_distances_are_told_with_every_number_and_no_name_of_an_option() -> None:
    rows = tuple(
        Statistic("far", "", way, value, value - 0.05, value + 0.1, 50, null=0.05)
        for way, value in (("delete", 0.12), ("unk", 0.3), ("infill", 0.2))
    )
    text = distance_sentence(replace(AUDIT, distances=rows))
    for number in ("50 texts", "12 % (7 to 22 %)", "30 % (25 to 40 %)", "20 % (15 to 30 %)", "95 %", "5 %"):
        assert number in text
    assert not re.search(r"\b(delete|unk|infill)\b", text)
    assert distance_sentence(AUDIT) == ""


def test_the_downloaded_json_is_that_of_the_command(tmp_path: Path) -> None:
    AUDIT.to_html(tmp_path)
    assert (tmp_path / "audit.json").read_text(encoding="utf-8") == AUDIT.to_json() + "\n"
