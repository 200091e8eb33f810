"""The result of an audit as values: to JSON and back without loss, damaged files refused, one row per method."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from heedful.audits.audit_result import Audit, Requirement
from heedful.audits.audit_tables import decision_reason, download_files
from heedful.audits.questions import MODEL_DEPENDENT, QUESTIONS
from heedful.results import Verdict
from heedful.types import UserError
from tests.audits.sample_audit import SAMPLES, sample_audit

AUDIT = sample_audit()


def test_an_audit_is_equal_after_its_way_through_json() -> None:
    assert Audit.from_json(AUDIT.to_json()) == AUDIT
    undefined = replace(AUDIT, seconds=float("nan"))  # not the object math.nan
    assert Audit.from_json(undefined.to_json()) == undefined != AUDIT
    assert "NaN" not in undefined.to_json()


def test_the_minutes_that_would_decide_follow_from_the_texts_and_the_time_of_this_machine() -> None:
    # Of 740 texts 528 are missing, of 571 / 212 seconds each: 23.7 minutes.
    minutes = {method.name: AUDIT.minutes_to_decide(method) for method in AUDIT.methods}
    assert minutes.pop("gradient-norm") == 30
    assert {*minutes.values()} == {None}
    method = AUDIT.method("gradient-norm")
    assert method.texts_needed == 740
    assert "30 more minutes" in decision_reason(AUDIT, method)
    assert "minutes" not in AUDIT.to_json().replace('"minutes"', "")
    done = replace(AUDIT, data=replace(AUDIT.data, texts=800))
    assert done.minutes_to_decide(method) is None


def test_an_undefined_number_comes_back_as_nan_and_a_question_that_was_not_asked_as_such() -> None:
    answer = Audit.from_json(AUDIT.to_json()).method("lime").answer("complete")
    assert math.isnan(answer.statistic.value)
    assert answer.verdict is Verdict.NOT_TESTED
    assert answer.texts_needed is None


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    content = json.loads(AUDIT.to_json())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        AUDIT.to_json()[:-20],
        "[" * 100_000,
        AUDIT.to_json().replace("571.0", "NaN"),
        changed(lambda content: content.pop("schema")),
        changed(lambda content: content.update(schema=1)),
        changed(lambda content: content.pop("sentence")),
        changed(lambda content: content.update(extra=1)),
        changed(lambda content: content.update(look="2")),
        changed(lambda content: content.update(look=True)),
        changed(lambda content: content.update(seconds="1")),
        changed(lambda content: content.update(recommended=["no such method"])),
        changed(lambda content: content.update(methods={})),
        changed(lambda content: content["methods"][0].update(decision="perhaps")),
        changed(lambda content: content["methods"][0]["answers"].pop()),
        changed(lambda content: content["other_thresholds"][0]["decisions"].pop("lime")),
        changed(lambda content: content["methods"].append(content["methods"][0])),
        changed(lambda content: content["model"].update(outputs="positive")),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as refused:
        Audit.from_json(text)
    assert "\n" not in str(refused.value)
    assert "heedful audit" in str(refused.value)


def test_the_frame_has_one_row_per_method_with_the_numbers_of_its_answers() -> None:
    frame = AUDIT.to_frame()
    rows = {row["method"]: row for row in frame.to_dict("records")}
    assert frame["method"].tolist() == list(SAMPLES)
    for name, sample in SAMPLES.items():
        row = rows[name]
        columns = ["faithfulness", "faithfulness_low", "tier", "change_under_randomized_model", "stability"]
        expected = [sample.share, sample.share - 0.05, sample.tier, sample.change, sample.stability]
        assert [row[column] for column in columns] == pytest.approx(expected)
        assert row["decision"] == ("" if sample.decision is None else sample.decision.value)
    assert {question.name for question in QUESTIONS} <= {*frame.columns}
    verdicts = [rows["lime"][name] for name in ("faithful", "model-dependent", "stable", "complete", "plausible")]
    assert verdicts == ["supported", "supported", "not supported", "not tested", "supported"]
    assert rows["gradient-norm"]["model-dependent"] == "undecided"


def test_every_measurement_is_in_the_tidy_table_once() -> None:
    frame = AUDIT.measurements_frame()
    evidence = sum(len(answer.evidence) for each in AUDIT.methods for answer in each.answers)
    rows = {(row.question, row.metric, row.method, row.subset) for row in frame.itertuples()}
    assert len(rows) == len(frame) == evidence + len({*AUDIT.attention, *AUDIT.pairs})
    struck = frame[frame["struck"] != ""]
    assert {*zip(struck["metric"], struck["subset"], strict=True)} == {("flip", "masked")}


def test_a_measurement_without_a_number_of_texts_is_a_missing_value() -> None:
    row = replace(AUDIT.attention[0], n=math.nan)
    audit = Audit.from_json(replace(AUDIT, attention=(row,)).to_json())
    counts = audit.measurements_frame()["n"]
    assert counts.isna().sum() == 1
    assert counts.dropna().unique().tolist() == [212]
    assert download_files(audit)["measurements.parquet"]


def with_dependence(audit: Audit, verdict: Verdict) -> Audit:
    """The audit in which dependence on the model has this verdict for every method."""
    methods = tuple(
        replace(
            method,
            answers=tuple(
                replace(answer, verdict=verdict) if answer.question == MODEL_DEPENDENT else answer
                for answer in method.answers
            ),
        )
        for method in audit.methods
    )
    return replace(audit, methods=methods)


@pytest.mark.parametrize(
    ("verdict", "unmet", "caveats"),
    [(Verdict.SUPPORTED, 0, 0), (Verdict.NOT_SUPPORTED, 1, 0), (Verdict.UNDECIDED, 1, 0), (Verdict.NOT_TESTED, 0, 1)],
)
def test_faithful_scores_that_do_not_depend_on_the_model_meet_no_requirement(
    verdict: Verdict, unmet: int, caveats: int
) -> None:
    audit = with_dependence(sample_audit(), verdict)
    requirement = Requirement.parse("leave-one-out: faithful")
    assert (len(requirement.unmet(audit)), len(requirement.caveats(audit))) == (unmet, caveats)
    assert Requirement.parse("leave-one-out: stable").unmet(audit) == []
