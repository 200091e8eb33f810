"""The verdicts of audits on models whose explanations are known.

`benchmarks/planted_audits.py` counts over many seeds; the model that adds up contributions is in test_schedule.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.planted_audits import MODELS, audit_planted
from heedful.audits.audit_result import Audit
from heedful.audits.work_list import CONTROL_METHODS
from heedful.results import Decision, Verdict

pytestmark = pytest.mark.slow
SEED, TEXTS = 2, 28


def planted_audit(name: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> Audit:
    """The audit of a few methods of a planted model, of which the right ones may be shown and the others not."""
    planted = replace(MODELS[name](SEED), right=right, wrong=wrong, other=(), noisy=())
    (result,) = audit_planted(planted, SEED, (TEXTS,))
    verdicts = {each.name: each.answer("faithful").verdict for each in result.methods}
    assert verdicts.keys() == {*right, *wrong, *CONTROL_METHODS}
    assert {method for method, verdict in verdicts.items() if verdict is Verdict.SUPPORTED} == {*right}
    assert {*result.recommended} == {*right}
    return result


def test_ignored_attention_that_points_at_what_people_marked_is_not_shown() -> None:
    attention = planted_audit("decorative", ("leave-one-out",), ("raw-attention",)).method("raw-attention")
    assert attention.answer("plausible").verdict is Verdict.SUPPORTED
    assert attention.decision is not Decision.SHOW


def test_a_method_that_finds_the_shortcut_of_a_transformer_is_supported() -> None:
    result = planted_audit("shortcut", ("leave-one-out",), ())
    assert result.method("leave-one-out").answer("plausible").statistic.value > 0.95


def test_every_measure_is_struck_where_no_word_matters() -> None:
    result = planted_audit("constant", (), ("leave-one-out",))
    assert len(result.struck) == 6
    assert {each.answer("faithful").verdict for each in result.methods} == {Verdict.NOT_TESTED}


def test_leave_one_out_is_not_faithful_where_it_knows_its_own_deletions_only() -> None:
    rows = planted_audit("chaotic", (), ("leave-one-out",)).statistics("faithful")
    own = {(row.metric, row.subset): row.low for row in rows if row.method == "leave-one-out"}
    assert own["comprehensiveness", "delete"] > 0 > own["comprehensiveness", "unk"]


def test_a_trigger_is_named_and_predictions_that_rest_on_no_word_are_too() -> None:
    result = planted_audit("trigger", ("leave-one-out",), ())
    assert (result.word_use[0].word, result.word_use[0].predicted) == ("friday", "positive")
    assert result.word_use[0].first == result.word_use[0].texts == result.data.classes["positive"]
    drops = {row.subset: row.value for row in result.effects}
    assert abs(drops["negative"]) < 0.02
    assert drops["positive"] > 0.8
    assert "negative" in result.sentence
    mean = sum(drops[name] * count for name, count in result.data.classes.items()) / TEXTS
    assert drops[""] == pytest.approx(mean)


def test_no_explanation_is_supported_where_every_erasure_looks_alike() -> None:
    result = planted_audit("evasive", (), ("leave-one-out",))
    assert {method.answer("faithful").verdict for method in result.methods} == {Verdict.NOT_TESTED}


def test_a_method_that_fails_where_most_is_at_stake_is_not_supported() -> None:
    """Its words are right on seven of eight texts, and the worst ones on those where the output can change."""
    planted = replace(MODELS["rare_failure"](SEED), right=("leave-one-out",), wrong=())
    first, last = audit_planted(planted, SEED, (TEXTS, 100))
    for result in (first, last):
        assert result.method("rare-failure").answer("faithful").verdict is not Verdict.SUPPORTED
    assert last.method("rare-failure").achievable < 0.05
    assert last.recommended == ("leave-one-out",)
