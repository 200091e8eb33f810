"""The findings: the page is what `benchmarks/findings.py` renders from its data file, and says what the file holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.findings import (
    DATA_FILE,
    PAGE_FILE,
    MethodRecord,
    ModelRecord,
    findings_list,
    matrix,
    read_records,
    record_audit,
    render,
    write_records,
)
from benchmarks.planted_audits import MODELS, audit_planted
from heedful.results import Decision, Verdict


def method(name: str, faithful: Verdict, share: float | None, *, shown: bool = False) -> MethodRecord:
    """A method that an audit could have judged like this."""
    decision = Decision.SHOW if shown else Decision.HIDE
    is_control = name == "random"
    return MethodRecord(name, is_control, share, None, None, faithful, "", None if is_control else decision, 1, 0.5)


def model(name: str, *methods: MethodRecord) -> ModelRecord:
    """A model with these methods."""
    return ModelRecord(
        name, "", "texts", 28, 0, 0.75, 100, 0.95, 1, 0, 2.0, methods, {}, "abc", "2026-01-31", {"heedful": "0"}
    )


FIRST = model(
    "average",
    method("lime", Verdict.SUPPORTED, 0.914, shown=True),
    method("rollout", Verdict.SUPPORTED, 0.5),
    method("random", Verdict.NOT_SUPPORTED, 0.0),
)
SECOND = model(
    "vit",
    method("lime", Verdict.SUPPORTED, 0.855),
    method("rollout", Verdict.NOT_SUPPORTED, -0.074),
    method("raw-attention", Verdict.UNDECIDED, None),
)


def numbers(cell: str) -> list[int]:
    """The whole numbers of a cell, with typographic signs."""
    return [int(number.replace("−", "-")) for number in re.findall(r"[−-]?\d+", cell)]


def rows_of(section: str) -> dict[str, list[str]]:
    """The cells of the rows of a table by the name of the method."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {row[0].split("`")[1]: row[1:] for row in rows if "`" in row[0]}


def test_the_page_is_rendered_from_the_data_file() -> None:
    assert PAGE_FILE.read_text(encoding="utf-8") == render(read_records())


def test_every_number_of_the_page_is_in_the_data_file() -> None:
    page = PAGE_FILE.read_text(encoding="utf-8")
    records = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    overview, *_ = page.split("\n### ")
    table = rows_of(overview.split("## Methods and models")[1])
    assert records
    for column, record in enumerate(records):
        rows = rows_of(page.split(f"\n### {record['name']}\n")[1].split("\n### ")[0])
        assert [*rows] == [entry["name"] for entry in record["methods"]]
        for entry in record["methods"]:
            share, interval, verdict, decision, seconds = rows[entry["name"]]
            assert numbers(share) == [round(100 * entry["share"])]
            assert numbers(interval) == [round(100 * entry["low"]), round(100 * entry["high"])]
            assert verdict.split(": ", 1)[1] == entry["reason"]
            assert decision == (entry["decision"] or "")
            assert float(seconds) == pytest.approx(entry["seconds"], abs=6e-4)
            assert numbers(table[entry["name"]][column]) == [round(100 * entry["share"])]


def test_the_matrix_has_a_mark_and_a_share_for_each_method_and_model() -> None:
    table = rows_of(matrix([FIRST, SECOND]))
    assert table["lime"] == ["✓ 91 %", "✓ 86 %"]
    assert table["rollout"] == ["✓ 50 %", "✗ −7 %"]
    assert table["raw-attention"] == ["", "?"]
    assert table["random"] == ["✗ 0 %", ""]


def test_methods_are_grouped_by_their_verdicts_on_all_models() -> None:
    lines = findings_list([FIRST, SECOND]).splitlines()
    groups: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("- "):
            groups[line] = []
        else:
            groups[[*groups][-1]].append(line.split("`")[1])
    certain, undecided, refuted, controls, *shown = groups
    assert (re.findall("`(.*?)`", certain), groups[undecided], groups[refuted], groups[controls]) == (
        ["lime"],
        ["raw-attention"],
        ["rollout"],
        ["random"],
    )
    assert [re.findall("`(.*?)`", line) for line in shown] == [["average", "lime"], ["vit"]]


def test_a_new_record_replaces_that_of_its_model_alone(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    assert read_records(path) == ()
    write_records([SECOND], path)
    write_records([FIRST], path)
    later = replace(SECOND, texts=60)
    write_records([later], path)
    assert read_records(path) == (FIRST, later)


def test_a_record_holds_the_numbers_of_its_audit() -> None:
    (audit,) = audit_planted(MODELS["decorative"](2), 2, (28,))
    record = record_audit("bilstm", audit)
    frame = audit.to_frame().set_index("method")
    assert (record.texts, record.look, record.level) == (28, 1, 0.95)
    assert [entry.name for entry in record.methods] == list(frame.index)
    for entry in record.methods:
        row = frame.loc[entry.name]
        assert entry.share == pytest.approx(row["faithfulness"], abs=5e-5)
        assert (entry.low, entry.high) == pytest.approx((row["faithfulness_low"], row["faithfulness_high"]), abs=5e-5)
        assert entry.faithful.value == row["faithful"]
        assert ("" if entry.decision is None else entry.decision.value) == row["decision"]
