"""What work is expected to take, by hand; and work that fails: what it costs, in this call and in the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from heedful.attributions.perturbation import LeaveOneOut
from heedful.audits.audit_run import CORE_METHODS, AuditRun
from heedful.audits.blind_scores import BLIND_RULES, BlindScores
from heedful.audits.evidence import BlockAttributions, BlockSearch, block_range
from heedful.audits.questions import MODEL_DEPENDENT
from heedful.audits.removal import INFILL, PerturbedDistances
from heedful.audits.schedule import AuditOptions, audit
from heedful.audits.time_budget import OVERHEAD
from heedful.audits.topics import Topic
from heedful.audits.work_list import COPY, AuditPlan, FinishedWork, WorkItem
from heedful.explainer import Explainer
from heedful.results import Verdict
from heedful.store.workspace import Workspace
from heedful.types import UserError
from tests.audits.test_schedule import METHODS, Sums, additive, made, options, planned, prepared

FAILING = 2
"""The place of a text whose random copy fails."""


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return additive()


def read_sample(running: AuditRun) -> AuditRun:
    """The call after it has read its texts."""
    table = running.workspace.get(running.plan.sample).table
    running.plan.turns, running.plan.ways = table["turn"], ("delete", "unk")
    running.budget.take_sample(table["words"].tolist())
    return running


# What work is expected to take


def test_stored_work_without_a_cost_is_timed_and_not_made_again(explainer: Explainer, tmp_path: Path) -> None:
    """As after a call that was killed before it had looked at anything."""
    first = read_sample(prepared(explainer, tmp_path, 2))
    for item in first.plan.block_work(0):
        first.workspace.get(item.recipe)
    before = made(first.workspace)
    second = read_sample(prepared(explainer, tmp_path, 2))
    assert second.budget.costs == {}
    second._probe()
    assert made(second.workspace) == before
    costs = second.budget.costs
    assert {f"{name} scores" for name in METHODS} | {BlockSearch.kind, OVERHEAD, COPY} <= costs.keys()
    assert {item.label for item in second.plan.block_work(0)} <= costs.keys()
    assert all(cost >= 0 for cost in costs.values())


def test_the_cost_of_a_further_method_is_a_guess_until_it_is_timed(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = planned(explainer, tmp_path, monkeypatch, lambda _: 0.1)
    (item, *_) = running.budget.with_method("leave-one-out", running.further["leave-one-out"])
    assert running.budget.cost(item) == pytest.approx(0.1)  # that of LIME
    assert item.label not in running.budget.costs, "a guess is not recorded"
    running.budget.costs[item.label] = 0.3
    assert running.budget.cost(item) == pytest.approx(0.3)


def test_work_takes_as_long_as_a_text_has_words_and_what_a_block_takes(explainer: Explainer, tmp_path: Path) -> None:
    running = read_sample(prepared(explainer, tmp_path, 28))
    budget = running.budget
    budget.words = [30, 10, 10, 10, *[20] * (budget.texts - 4)]
    mean = sum(budget.words) / budget.texts
    budget.costs = {"leave-one-out scores": 0.5, OVERHEAD: 0.25, COPY: 4.0}
    scores = {block: next(_scores(running, block)) for block in (0, 2, 3)}
    assert budget.cost(scores[0]) == pytest.approx(0.25 + 0.5 * 30 / mean)
    assert budget.cost(scores[2]) == pytest.approx(0.25 + 0.5 * 20 / mean)
    assert budget.cost(scores[3]) == pytest.approx(0.25 + 0.5 * 80 / mean)
    copies = [item for item in running.plan.block_work(2) if item.method == "leave-one-out" and item.timed_as == COPY]
    assert [item.randomized for item in copies] == [2, 3]
    expected = 2 * (4.0 + 0.25) + 0.5 * 20 / mean
    assert budget.seconds(copies) == pytest.approx(expected)
    assert budget.seconds([*copies, *copies]) == pytest.approx(2 * expected - 2 * 4.0), "methods share a copy"
    budget.learn(scores[3], 2.25)
    assert budget.costs["leave-one-out scores"] == pytest.approx((0.5 + 2.0 * mean / 80) / 2)


def _scores(running: AuditRun, block: int) -> Iterator[WorkItem]:
    items = running.plan.block_work(block)
    return (item for item in items if item.method == "leave-one-out" and isinstance(item.recipe, BlockAttributions))


def test_the_announced_texts_leave_time_for_the_further_methods_that_fit(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = planned(explainer, tmp_path, monkeypatch, lambda _: 0.25)
    core, honest = running.budget.planned_texts({}), running.budget.planned_texts(running.further)
    assert [*running.plan.methods] == [*CORE_METHODS]
    # Nine methods take nine quarters of what four take.
    assert honest == pytest.approx(core * 4 / 9, rel=0.2)
    assert running.budget.add_methods(running.further, running.leave_out, running.say) == [*running.further]
    assert running.budget.planned_texts({}) == honest


def test_the_minutes_begin_where_the_caller_says(explainer: Explainer, tmp_path: Path) -> None:
    chosen = options(2, METHODS[:1])
    with pytest.raises(UserError, match="too short"):
        audit(explainer, Sums(), options=chosen, workspace=tmp_path, start=time.monotonic() - 300)
    assert audit(explainer, Sums(), options=chosen, workspace=tmp_path, start=time.monotonic()).data.texts == 2
    with pytest.raises(UserError, match="start"):
        audit(explainer, Sums(), options=chosen, workspace=tmp_path, start=cast(float, "now"))


def test_the_texts_of_a_question_are_those_that_exist_and_represent_the_data() -> None:
    """Of 11 texts three are out of turn; the last block has places for one more, and blocks 0 and 1 are not asked."""
    turns = pd.Series([0, 1, 20, 2, 3, 21, 4, 5, 22, 6, 7])
    topic = SimpleNamespace(texts=8, is_asked=lambda block, first: block >= 2)
    plan = SimpleNamespace(turns=turns, first_texts=lambda texts: texts)
    work = FinishedWork(cast(AuditPlan, plan), cast(Workspace, None), [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert block_range(4).stop == len(turns) + 1
    assert work.count_asked(cast(Topic, topic)) == 6


# What fails


def test_a_model_blind_order_that_fails_is_left_out(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, original = next(iter(BLIND_RULES)), BlindScores.of_texts

    def of_texts(self: BlindScores, *arguments: object) -> object:
        if self.rule == failing:
            raise IndexError
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(BlindScores, "of_texts", of_texts)
    result = audit(explainer, Sums(), options=options(2, METHODS[:1]), workspace=tmp_path)
    assert result.data.texts == 2
    assert "IndexError" in result.untested[failing]


def fail(monkeypatch: pytest.MonkeyPatch, kind: type, where: Callable[[object], bool] = lambda _: True) -> None:
    """Let some recipes of a kind fail."""
    original = kind.make  # type: ignore[attr-defined]

    def make(self: object, workspace: Workspace) -> object:
        if where(self):
            raise ArithmeticError
        return original(self, workspace)

    monkeypatch.setattr(kind, "make", make)


def test_distances_that_fail_cost_only_themselves(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, PerturbedDistances)
    chosen = AuditOptions(texts=12, workers=1, only_methods=True, methods=("leave-one-out",))
    result = audit(explainer, Sums(), options=chosen, workspace=tmp_path)
    assert result.distances == ()
    assert [name for name, reason in result.untested.items() if "ArithmeticError" in reason] == [
        "distance from real texts"
    ]
    assert result.method("leave-one-out").answer(INFILL).statistic.n == 12


def test_a_random_copy_that_fails_costs_one_text(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, BlockAttributions, lambda recipe: getattr(recipe, "randomized", None) == FAILING)
    result = audit(explainer, Sums(), options=options(12, ("leave-one-out",)), workspace=tmp_path)
    for name in ("leave-one-out", "random"):
        assert result.method(name).answer(MODEL_DEPENDENT).statistic.n == 11
        assert any(name in key and "1 random copies" in reason for key, reason in result.untested.items())


def test_random_copies_that_all_fail_are_the_reason_that_is_given(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, BlockAttributions, lambda recipe: getattr(recipe, "randomized", None) is not None)
    result = audit(explainer, Sums(), options=options(2, ("leave-one-out",)), workspace=tmp_path)
    answer = result.method("leave-one-out").answer(MODEL_DEPENDENT)
    assert (answer.verdict, "ArithmeticError" in answer.reason) == (Verdict.NOT_TESTED, True)


@pytest.mark.parametrize("is_main", [False, True])
def test_what_failed_is_left_out_again_by_a_call_that_cannot_try_it(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_main: bool
) -> None:
    """Other answers do not disappear because the next call has no time; one that has time tries again."""
    with monkeypatch.context() as patch:
        texts = "original" if is_main else "edited"

        def is_failing(recipe: object) -> bool:
            assert isinstance(recipe, BlockAttributions)
            is_own = isinstance(recipe.method, LeaveOneOut) and recipe.randomized is None
            return is_own and recipe.texts == texts and recipe.block == 2

        fail(patch, BlockAttributions, is_failing)
        chosen = options(12, ("input-x-gradient", "leave-one-out"))
        first = audit(explainer, Sums(), options=chosen, workspace=tmp_path)
        short = audit(explainer, Sums(), options=options(12, chosen.methods, 0.001), workspace=tmp_path)  # type: ignore[arg-type]
    for result in (first, short):
        answers = {each.name: each.answer("stable") for each in result.methods}
        assert answers["input-x-gradient"].statistic.n > 0
        if is_main:
            assert "ArithmeticError" in result.untested["leave-one-out"]
        else:
            assert "ArithmeticError" in answers["leave-one-out"].reason
    again = audit(explainer, Sums(), options=chosen, workspace=tmp_path)
    assert again.method("leave-one-out").answer("stable").statistic.n > 0
