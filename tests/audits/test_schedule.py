"""Audits from end to end on models whose explanations are known: answers, going on, deadlines, interrupts, data."""

from __future__ import annotations

import errno
import html
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock
from torch import Generator, Tensor

from heedful.attributions.controls import PermutedAttention
from heedful.attributions.perturbation import LeaveOneOut
from heedful.audits import evidence, schedule
from heedful.audits.analysis import assumptions
from heedful.audits.audit_result import Audit
from heedful.audits.audit_run import CORE_METHODS, AuditRun, read_state
from heedful.audits.audit_tables import basis
from heedful.audits.evidence import BlockAttention, BlockAttributions, BlockErasure, BlockSearch
from heedful.audits.model_card import escape_markdown, model_card
from heedful.audits.questions import QUESTIONS
from heedful.audits.schedule import AuditOptions, audit
from heedful.audits.time_budget import FURTHER_METHODS, PASS, LeaveOut, TimeBudget
from heedful.audits.topics import SIDE_TEXTS, VERDICTS
from heedful.audits.work_list import WorkItem
from heedful.data.columns import TableColumns
from heedful.data.words import Words
from heedful.explainer import Explainer, load
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.models.attentive import LinearBagOfWords
from heedful.recommendation import Recommendation, find_recommendation
from heedful.results import Decision, Verdict
from heedful.store import workspace as workspace_module
from heedful.store.atomic_write import WriteError
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, Regression
from heedful.types import Attribution, Batch, Corpus, Example, Model, Splits, Task, UserError
from tests.given import CLASSES, EVIDENCE, OTHERS, Verdicts, save_model

YES, NO, OPEN = Verdict.SUPPORTED, Verdict.NOT_SUPPORTED, Verdict.UNDECIDED
METHODS = ("input-x-gradient", "leave-one-out", "raw-attention")
NAMES = ("negative", "positive")
VOCABULARY = tuple(f"word{number:02d}" for number in range(30))


@dataclass(frozen=True)
class Sums(Corpus):
    """Texts whose class is the sign of the sum of their words' weights; the words for that class are marked."""

    count: int = 60
    labelled: bool = True
    name: ClassVar[str] = "sums"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        return Splits(BinaryClassification(), NAMES, (), (), tuple(self._text(number) for number in range(self.count)))

    def _text(self, number: int) -> Example:
        draw = Generator().manual_seed(number)
        words = torch.randperm(len(VOCABULARY), generator=draw)[: 6 + number % 5].tolist()
        label = int(sum(weight(word) for word in words) > 0)
        marks = tuple((weight(word) > 0) == bool(label) for word in words)
        text = " ".join(VOCABULARY[word] for word in words)
        return Example(f"t{number}", (text,), label if self.labelled else None, marks if self.labelled else None)

    def digest(self, data: Path) -> str:
        return "generated"


def weight(word: int) -> float:
    return (1 if word % 2 else -1) * (0.3 + (7 * word % 30) / 15)


def additive(task: Task | None = None) -> Explainer:
    """A model whose logit is the sum of the weights."""
    tokenizer = Words().fit([Example("all", (" ".join(VOCABULARY),))])
    batch = tokenizer([Example(word, (word,)) for word in VOCABULARY])
    table = torch.zeros(int(batch.inputs.max()) + 1, 1)
    for row, own in enumerate(batch.inputs):
        table[own[batch.content_mask[row]], 0] = weight(row)
    model = LinearBagOfWords(task or BinaryClassification(), table, torch.ones(1))
    return load((model, tokenizer), class_names=NAMES if task is None else ())


def options(texts: int = 28, methods: tuple[str, ...] = METHODS, minutes: float = 5.0) -> AuditOptions:
    return AuditOptions(minutes=minutes, texts=texts, methods=methods, workers=1, only_methods=True)


def made(workspace: Workspace) -> dict[Path, int]:
    """The finished recipes, and when each was made."""
    return {path: path.stat().st_mtime_ns for path in workspace.root.rglob("recipe.json")}


@dataclass(frozen=True)
class Done:
    """Two audits one after the other: 28 texts, then 44."""

    workspace: Workspace
    first: Audit
    second: Audit
    after_first: dict[Path, int]
    lines: list[str]
    recommendation: Recommendation | None


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return additive()


@pytest.fixture(scope="module")
def done(explainer: Explainer, tmp_path_factory: pytest.TempPathFactory) -> Done:
    workspace, lines = Workspace(tmp_path_factory.mktemp("audit")), list[str]()
    first = audit(explainer, Sums(), options=options(), workspace=workspace, say=lines.append)
    after_first = made(workspace)
    second = audit(explainer, Sums(), options=options(44), workspace=workspace)
    return Done(workspace, first, second, after_first, lines, find_recommendation(explainer.identity, workspace.root))


def values(result: Audit) -> dict[tuple[str, str, str, str], tuple[str, int]]:
    """Every mean and the number of its texts."""
    return {
        (row["question"], row["metric"], row["method"], row["subset"]): (f"{row['value']:.9f}", row["n"])
        for row in result.measurements_frame().to_dict("records")
    }


def numbers(result: Audit) -> str:
    """Everything that does not depend on the clock."""
    methods = tuple(replace(each, seconds=0.0) for each in result.methods)
    ordered = tuple(sorted(methods, key=lambda each: each.name))
    return replace(result, methods=ordered, seconds=0.0, recommended=(), sentence="", caption="").to_json()


# Answers


def test_an_audit_answers_every_question_about_every_method(done: Done) -> None:
    result = done.first
    assert {each.name for each in result.methods} == {*METHODS, "random", "permuted-attention"}
    for each in result.methods:
        assert [answer.question for answer in each.answers] == [question.name for question in QUESTIONS]
        for answer in each.answers:
            assert answer.reason
            assert answer.verdict is not OPEN or answer.texts_needed is None or answer.texts_needed > 0
        for question in ("faithful", "model-dependent", "stable", "agrees", "plausible"):
            # Uniform attention has no ranking of its own.
            assert each.answer(question).statistic.n > 0 or each.name in ("raw-attention", "permuted-attention")
        assert each.seconds > 0
    assert (result.data.texts, result.data.rows, result.data.accuracy, result.look) == (28, 60, 1.0, 1)
    assert result.data.rationales == 28
    assert sum(result.data.classes.values()) == 28
    assert result.level == pytest.approx(0.95)
    assert result.finished
    assert Audit.from_json(result.to_json()) == result
    assert done.lines


def test_the_verdicts_on_a_sum_are_right(done: Done) -> None:
    for result in (done.first, done.second):
        for name in ("input-x-gradient", "leave-one-out"):
            found = result.method(name)
            assert found.answer("faithful").verdict is YES
            assert found.achievable > 0.9
            assert found.tier == 1
            assert found.answer("plausible").statistic.value == pytest.approx(1.0)
            assert found.answer("model-dependent").verdict is not NO
        for name in ("raw-attention", "random", "permuted-attention"):  # attention is uniform
            assert result.method(name).answer("faithful").verdict is not YES
        assert result.method("random").answer("model-dependent").statistic.value == pytest.approx(0.0)
        assert result.method("random").answer("plausible").statistic.value == pytest.approx(0.5, abs=0.12)
        assert result.method("leave-one-out").optimized_for
        assert "raw-attention" not in result.recommended


@pytest.mark.slow
def test_a_model_that_does_not_show_its_attention_is_audited_by_all_other_methods(tmp_path: Path) -> None:
    unread = additive()
    unread.model.attention_refusal = "its attention is <hidden>"
    result = audit(unread, Sums(), options=options(), workspace=Workspace(tmp_path / "work"), out=tmp_path / "out")
    assert {each.name for each in result.methods} == {"input-x-gradient", "leave-one-out", "random"}
    for name in ("input-x-gradient", "leave-one-out"):
        assert result.method(name).answer("faithful").verdict is YES
        assert result.method(name).answer("plausible").statistic.value == pytest.approx(1.0)
        assert result.method(name).answer("agrees").statistic.n == 28
    refused = {name for name, why in result.untested.items() if "its attention is <hidden>" in why}
    assert refused == {"raw-attention", "permuted-attention", "attention", "attention is necessary"}
    assert result.untested.keys() - refused == {"teaches"}
    assert result.attention == ()
    for page in ("index.html", "attention.html"):
        assert "its attention is &lt;hidden&gt;." in (tmp_path / "out" / page).read_text(encoding="utf-8")


def test_the_failure_of_a_method_is_the_text_where_another_does_most_better(done: Done) -> None:
    failure = done.first.method("raw-attention").failure
    assert failure is not None
    assert failure.other_method in METHODS[:2]
    assert len(failure.words) == len(failure.scores) == len(failure.other_scores)
    weights = [
        weight(VOCABULARY.index(word)) * (1 if failure.predicted == "positive" else -1) for word in failure.words
    ]
    ranked = sorted(range(len(weights)), key=lambda place: -weights[place])
    assert [*failure.highest] != ranked[: len(failure.highest)]
    order = sorted(range(len(weights)), key=lambda place: -failure.other_scores[place])
    assert order[:2] == ranked[:2]
    # All attention is equal: the words that are named are those that were removed.
    assert len({*failure.scores}) == 1
    total = sum(weights)
    left = total - sum(weights[place] for place in failure.highest)
    full, without = (1 / (1 + math.exp(-value)) for value in (total, left))
    assert f"from {full:.2f} to {without:.2f}" in failure.sentence


# Going on


def test_a_second_call_adds_texts_and_repeats_nothing(done: Done, explainer: Explainer) -> None:
    now = made(done.workspace)
    assert done.after_first.items() <= now.items()
    assert done.second.data.texts == 44
    assert done.second.look == 2
    assert done.second.level == pytest.approx(0.975)
    for each in done.second.methods:
        answer, before = each.answer("faithful"), done.first.method(each.name).answer("faithful")
        assert (answer.statistic.n, before.statistic.n) == (44, 28)
    # Explanations are computed again of the first texts, and of the block that ends the 44.
    for result, asked in ((done.first, SIDE_TEXTS), (done.second, SIDE_TEXTS + 8)):
        assert result.method("random").answer("model-dependent").statistic.n == asked
        assert result.method("random").answer("stable").statistic.n <= asked
    again = audit(explainer, Sums(), options=options(44), workspace=done.workspace)
    assert made(done.workspace) == now
    assert again.look == 2
    assert numbers(again) == numbers(done.second)
    assert again.seconds > done.second.seconds


def test_other_methods_are_another_look_and_only_they_are_computed(done: Done, explainer: Explainer) -> None:
    before = made(done.workspace)
    result = audit(explainer, Sums(), options=options(28, METHODS[:2]), workspace=done.workspace)
    assert made(done.workspace) == before
    assert result.look == 3
    assert {each.name for each in result.methods if not each.control} == {*METHODS[:2]}


def test_the_result_is_where_explanations_look_for_it(done: Done) -> None:
    found = done.recommendation
    assert found is not None
    assert (found.methods, found.date) == (done.second.recommended, done.second.date)
    audited = {each.name for each in done.second.methods if not each.control}
    assert found.not_passed.keys() == audited - {*done.second.recommended}
    assert found.not_passed["raw-attention"] == done.second.method("raw-attention").reason


@pytest.mark.slow
def test_the_best_finished_audit_of_a_model_counts_whatever_ran_last(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two texts, other data, one method, an interrupt: none of them replaces the audit that has examined most."""
    best = audit(explainer, Sums(), options=options(), workspace=tmp_path)
    expected = find_recommendation(explainer.identity, tmp_path)
    assert expected is not None
    assert expected.methods == best.recommended
    for corpus, chosen in (
        (Sums(), options(2)),
        (Sums(31), options(2, ("raw-attention",))),
        (Sums(), options(28, ("raw-attention",))),
    ):
        other = audit(explainer, corpus, options=chosen, workspace=tmp_path)
        assert other.recommended == ()
        assert find_recommendation(explainer.identity, tmp_path) == expected
    with monkeypatch.context() as patch:
        interrupt(patch, 7)
        assert not audit(explainer, Sums(), options=options(44), workspace=tmp_path).finished
    assert find_recommendation(explainer.identity, tmp_path) == expected


# Looks


def prepared(explainer: Explainer, folder: Path, texts: int, methods: tuple[str, ...] = METHODS) -> AuditRun:
    """A call that has read what earlier ones remember, and has not looked yet."""
    return AuditRun(explainer, Sums(), Sums.name, options(texts, methods), Workspace(folder), lambda _: None)


def records(folder: Path) -> list[Path]:
    """The documents of the looks, in order."""
    found = (folder / ".audits").glob("state-*.json")
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def test_calls_side_by_side_lose_no_look(explainer: Explainer, tmp_path: Path) -> None:
    """Three calls begin before any of them has looked; their looks are at different evidence."""
    running = [prepared(explainer, tmp_path, 60) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        looks = list(pool.map(lambda pair: pair[1].count_look(28 + pair[0], 28), enumerate(running)))
    assert sorted(looks) == [1, 2, 3]
    known = prepared(explainer, tmp_path, 60).looks.state.looks
    assert sorted(look.texts for look in known if look is not None) == [28, 29, 30]
    assert running[0].count_look(28, 28) == looks[0]


def test_the_same_evidence_side_by_side_is_one_look(explainer: Explainer, tmp_path: Path) -> None:
    running = [prepared(explainer, tmp_path, 60) for _ in range(3)]
    assert [each.count_look(28, 28) for each in running] == [1, 1, 1]


def test_no_damage_of_a_record_gives_a_look_back(explainer: Explainer, tmp_path: Path) -> None:
    """Every flipped bit, every cut: the look still counts, and it is said which record is damaged."""
    first = prepared(explainer, tmp_path, 60)
    first.budget.costs = {"erasure": 0.125}
    assert (first.count_look(28, 28), first.count_look(44, 28)) == (1, 2)
    path = records(tmp_path)[0]
    written = path.read_bytes()
    damages = [written[:length] for length in range(len(written))]
    for place in range(len(written)):
        damages.append(written[:place] + bytes([written[place] ^ (1 << place % 8)]) + written[place + 1 :])
    journal = first.looks.journal
    for damaged in damages:
        path.write_bytes(damaged)
        state = read_state(journal)
        assert (state.damaged, state.looks[0], len(state.looks)) == ([f".audits/{path.name}"], None, 2)
    with pytest.warns(UserWarning, match=re.escape(path.name)):
        again = prepared(explainer, tmp_path, 60)
    # What was looked at is not known any more, so that the same evidence is another look.
    assert again.count_look(28, 28) == 3
    path.unlink()
    with pytest.warns(UserWarning, match=re.escape(path.name)):
        assert prepared(explainer, tmp_path, 60).count_look(30, 28) == 4


@pytest.mark.slow
def test_a_damaged_record_makes_the_tests_of_an_audit_stricter(explainer: Explainer, tmp_path: Path) -> None:
    first = audit(explainer, Sums(), options=options(28, METHODS[:1]), workspace=tmp_path)
    (path,) = records(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=re.escape(path.name)):
        second = audit(explainer, Sums(), options=options(28, METHODS[:1]), workspace=tmp_path)
    assert (first.look, second.look) == (1, 2)
    assert [first.level, second.level] == pytest.approx([0.95, 0.975])


# Workspaces that cannot be written


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every workspace one on a read-only disk; the user of the tests may write everywhere."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def apply() -> None:
        for name in ("try_to_write", "replace_text"):
            monkeypatch.setattr(workspace_module, name, refuse)
        monkeypatch.setattr(schedule, "replace_text", refuse)
        monkeypatch.setattr(FileLock, "acquire", refuse)

    return apply


@pytest.mark.slow
def test_a_finished_audit_is_shown_from_a_read_only_workspace(
    explainer: Explainer, tmp_path: Path, read_only: Callable[[], None]
) -> None:
    first = audit(explainer, Sums(), options=options(12, METHODS[:2]), workspace=tmp_path / "w")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "w").rglob("*")}
    read_only()
    # Further methods and texts are not finished.
    result = audit(explainer, Sums(), options=options(60), workspace=tmp_path / "w", out=None)
    assert numbers(replace(result, untested={})) == numbers(replace(first, untested={}))
    assert result.look == first.look
    assert result.untested.keys() - first.untested.keys() == {"raw-attention"}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "w").rglob("*")} == before
    with pytest.warns(UserWarning, match=re.escape(str(tmp_path / "w"))):
        # Of so few texts nothing is decided, and no look is spent.
        assert audit(explainer, Sums(), options=options(2, METHODS[:1]), workspace=tmp_path / "w").look == 1


def test_an_audit_that_is_not_begun_needs_a_workspace_that_can_be_written(
    explainer: Explainer, tmp_path: Path, read_only: Callable[[], None]
) -> None:
    audit(explainer, Sums(), options=options(2, METHODS[:1]), workspace=tmp_path)
    read_only()
    with pytest.raises(WriteError):
        audit(explainer, Sums(), options=options(2, METHODS[1:2]), workspace=tmp_path)
    with pytest.raises(WriteError):
        audit(explainer, Sums(33), options=options(2, METHODS[:1]), workspace=tmp_path)


# What changes meanwhile


@pytest.mark.parametrize("moment", [BlockErasure, BlockSearch])
def test_data_that_change_during_an_audit_are_the_reason_that_is_given(
    moment: type, explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original = table(tmp_path, Sums(), "text"), moment.make  # type: ignore[attr-defined]

    def make(self: object, workspace: Workspace) -> object:
        path.write_text(path.read_text() + '{"text": "word01 word02 word03 word05"}\n')
        return original(self, workspace)

    monkeypatch.setattr(moment, "make", make)
    with pytest.raises(UserError, match=re.escape(f"the data ({path}) changed")):
        audit(explainer, path, options=options(2, METHODS[:1], 1.0), workspace=tmp_path / "w")


def test_a_model_that_changes_during_an_audit_is_the_reason_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, original = additive(), BlockErasure.make

    def make(self: BlockErasure, workspace: Workspace) -> object:
        with torch.no_grad():
            next(own.model.parameters()).add_(1)
        return original(self, workspace)

    monkeypatch.setattr(BlockErasure, "make", make)
    with pytest.raises(UserError, match=re.escape(f"the model ({own.source}) changed")):
        audit(own, Sums(), options=options(2, METHODS[:1], 1.0), workspace=tmp_path)


def test_a_model_folder_that_changes_during_an_audit_is_the_reason_that_is_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, original = tmp_path / "model", BlockErasure.make
    shutil.copytree(folder, own)
    (tmp_path / "texts.csv").write_text(
        "text\n" + "".join(f"{each.parts[0]}\n" for each in Verdicts(30).read(own).test)
    )

    def make(self: BlockErasure, workspace: Workspace) -> object:
        config = json.loads((own / "config.json").read_text())
        (own / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-5}))
        return original(self, workspace)

    monkeypatch.setattr(BlockErasure, "make", make)
    with pytest.raises(UserError, match=re.escape(f"the model ({own}) changed")):
        audit(own, tmp_path / "texts.csv", options=options(2, METHODS[:1], 1.0), workspace=tmp_path / "w")


@pytest.mark.slow
def test_a_folder_that_changed_after_it_was_loaded_is_not_audited_as_another_model(
    folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    opened = load(own)
    audit(opened, Verdicts(30), options=options(2, METHODS[:1]), workspace=tmp_path / "w")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-5}))
    with pytest.raises(UserError, match=re.escape(str(own))):
        audit(opened, Verdicts(30), options=options(2, METHODS[:1]), workspace=tmp_path / "w")
    assert audit(own, Verdicts(30), options=options(2, METHODS[:1]), workspace=tmp_path / "w").look == 1


# Deadlines and interrupts


@pytest.mark.slow
def test_no_time_is_one_line_and_finished_work_is_a_result(done: Done, explainer: Explainer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too short") as error:
        audit(explainer, Sums(), minutes=0.001, workspace=tmp_path)
    assert "\n" not in str(error.value)
    before = made(done.workspace)
    result = audit(explainer, Sums(), options=options(60, minutes=0.001), workspace=done.workspace)
    assert result.data.texts == 44
    assert made(done.workspace) == before


def interrupt(monkeypatch: pytest.MonkeyPatch, block: int, error: BaseException | None = None) -> None:
    """Let the search of a block be interrupted."""
    original = BlockSearch.make

    def make(self: BlockSearch, workspace: Workspace) -> object:
        if self.block == block:
            raise error or KeyboardInterrupt
        return original(self, workspace)

    monkeypatch.setattr(BlockSearch, "make", make)


@pytest.mark.slow
def test_an_interrupt_keeps_finished_texts_and_gives_their_result(
    done: Done, explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        result = audit(explainer, Sums(), options=options(), workspace=tmp_path)
    assert not result.finished
    assert result.data.texts == 12
    for each in result.methods:
        answer = each.answer("faithful")
        assert (answer.verdict, answer.texts_needed) == (OPEN, MIN_EXAMPLES)
        assert each.decision in (None, Decision.UNDECIDED)
    assert result.recommended == ()
    before = made(Workspace(tmp_path))
    whole = audit(explainer, Sums(), options=options(), workspace=tmp_path)
    assert before.items() <= made(Workspace(tmp_path)).items()
    assert whole.finished
    assert whole.look == 1, "the interrupted call decided nothing"
    # The same numbers as in another workspace without an interrupt.
    assert values(whole) == values(done.first)


def test_an_interrupt_of_the_first_texts_is_an_interrupt(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        audit(explainer, Sums(), options=options(), workspace=tmp_path)


# What fails


@dataclass(frozen=True)
class Failing:
    """A method that does not know this model."""

    complaint: str = "only for images"

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise UserError(self.complaint)


def test_a_method_that_fails_is_left_out_with_the_reason(explainer: Explainer, tmp_path: Path) -> None:
    chosen = AuditOptions(texts=2, methods=(Failing(), LeaveOneOut("logit")), only_methods=True)
    result = audit(explainer, Sums(), options=chosen, workspace=tmp_path)
    assert [each.name for each in result.methods if not each.control] == ["leave-one-out(logit)"]
    assert any("only for images" in reason for reason in result.untested.values())
    with pytest.raises(UserError, match=r"no method works on this model.*only for images"):
        audit(explainer, Sums(), options=AuditOptions(methods=(Failing(),), only_methods=True), workspace=tmp_path)


@pytest.mark.slow
def test_a_control_or_attention_that_fails_does_not_end_the_audit(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, *_: object) -> None:
        raise UserError("no attention")

    monkeypatch.setattr(PermutedAttention, "__call__", fail)
    monkeypatch.setattr(BlockAttention, "make", fail)
    result = audit(explainer, Sums(), options=options(12, METHODS[:1]), workspace=tmp_path)
    assert {each.name for each in result.methods} == {"input-x-gradient", "random"}
    assert result.data.texts == 12
    assert result.attention == ()
    assert result.method("random").answer("model-dependent").statistic.n == 12
    assert {"permuted-attention", "attention"} <= result.untested.keys()


@pytest.mark.parametrize("recipe", [BlockSearch, BlockErasure])
def test_texts_that_cannot_be_erased_are_the_reason_that_is_given(
    recipe: type, explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, *_: object) -> None:
        raise UserError("no shorter texts")

    monkeypatch.setattr(recipe, "make", fail)
    with pytest.raises(UserError, match="no shorter texts"):
        audit(explainer, Sums(), options=options(2, METHODS[:1]), workspace=tmp_path)


def test_options_that_are_no_numbers_of_minutes_or_texts_are_refused() -> None:
    for minutes in (0, -1, math.nan, math.inf, 1e99):
        with pytest.raises(UserError, match="minutes"):
            AuditOptions(minutes=minutes)
    with pytest.raises(UserError, match="texts"):
        AuditOptions(texts=0)


@pytest.mark.parametrize(
    "given",
    [
        {"minutes": "5"}, {"minutes": None}, {"minutes": True}, {"minutes": 1j}, {"methods": 3},
        {"methods": [3]}, {"workspace": 3}, {"workspace": None}, {"options": 3}, {"options": {"minutes": 3}},
        {"out": 3}, {"data": 3}, {"data": None}, {"data": ["a"]}, {"data": Sums},
    ],
    ids=str,
)  # fmt: skip
def test_values_of_another_type_are_one_line(given: dict[str, object], explainer: Explainer, tmp_path: Path) -> None:
    settings: dict[str, object] = {"data": Sums(), "workspace": tmp_path / "w", "minutes": 0.001, **given}
    with pytest.raises(UserError, match=next(iter(given)).removesuffix("s")) as error:
        audit(explainer, settings.pop("data"), **settings)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "name", ["texts", "workers", "seed", "where", "columns", "attributions", "train_data", "methods"]
)
def test_options_of_another_type_are_one_line(name: str) -> None:
    with pytest.raises(UserError, match=name):
        AuditOptions(**{name: 1.5})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["random", "permuted-attention"])
def test_a_control_is_no_method_to_audit(name: str, explainer: Explainer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{name} is a control"):
        audit(explainer, Sums(), methods=[name], workspace=tmp_path)


# The plan


def planned(
    explainer: Explainer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cost: Callable[[str], float],
    options: AuditOptions | None = None,
) -> AuditRun:
    """An audit of five minutes before its first work, in which the scores of a text take this many seconds."""
    running = AuditRun(explainer, Sums(400), Sums.name, options or AuditOptions(), Workspace(folder), lambda _: None)
    running.budget.texts, running.plan.ways = 400, ("delete", "unk")
    running.budget.costs = {f"{name} scores": cost(name) for name in CORE_METHODS}

    def time_items(budget: TimeBudget, items: Sequence[WorkItem], leave_out: LeaveOut) -> None:
        budget.costs |= {item.label: cost(item.method) for item in items if isinstance(item.recipe, BlockAttributions)}

    monkeypatch.setattr(TimeBudget, "time_items", time_items)
    return running


def add_methods(running: AuditRun) -> list[str]:
    return running.budget.add_methods(running.further, running.leave_out, running.say)


def test_the_seconds_of_a_method_by_hand(explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """28 texts once; the first twenty once more after an edit, and under a copy with random weights."""
    running = planned(explainer, tmp_path, monkeypatch, lambda _: 0.1)
    items = [item for item in running.budget.missing(running.budget.target_blocks()) if item.method == "lime"]
    assert running.budget.seconds(items) == pytest.approx(0.1 * (28 + 20 + 20))
    running.budget.costs["audit erasure"] = 0.5
    assert running.budget.seconds(items) == pytest.approx(0.1 * (28 + 20 + 20) + 0.5 * 28)


def test_methods_are_added_to_the_core_while_the_time_allows(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = planned(explainer, tmp_path / "a", monkeypatch, lambda _: 0.1)
    assert add_methods(running) == [*FURTHER_METHODS]
    assert [*running.plan.methods] == [*CORE_METHODS, *FURTHER_METHODS]
    # 76 explanations of 1 s fit thrice beside the core's; the fourth is left out when it is timed, the fifth before.
    running = planned(explainer, tmp_path / "b", monkeypatch, lambda name: 0.1 if name in CORE_METHODS else 1.0)
    assert add_methods(running) == [*FURTHER_METHODS][:3]
    assert [*running.plan.methods] == [*CORE_METHODS, *[*FURTHER_METHODS][:3]]
    assert running.plan.left_out.keys() == {"leave-one-out", "kernel-shap"}
    # 30 s of the core, four times 76 s, and the seconds that are reserved.
    assert "about 6 more minutes" in running.plan.left_out["leave-one-out"]


def test_a_slow_core_has_fewer_texts_and_no_fewer_methods(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = planned(explainer, tmp_path, monkeypatch, lambda _: 20.0)
    assert add_methods(running) == []
    assert [*running.plan.methods] == [*CORE_METHODS]
    assert running.plan.left_out.keys() == FURTHER_METHODS.keys()


@pytest.mark.parametrize("only", [False, True])
def test_named_methods_and_scores_made_elsewhere_are_audited_beside_the_core_or_alone(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, only: bool
) -> None:
    chosen = AuditOptions(methods=("gradient", "leave-one-out"), required=("kernel-shap",), only_methods=only)
    running = planned(explainer, tmp_path, monkeypatch, lambda _: 1.0, chosen)
    named = ["gradient", "leave-one-out", "kernel-shap"]
    assert [*running.plan.methods] == (named if only else [*CORE_METHODS, *named])
    assert [*running.further] == ([] if only else ["gradient-norm", "attention-x-gradient", "rollout"])


def test_only_methods_without_methods_is_refused() -> None:
    with pytest.raises(UserError, match="only-methods"):
        AuditOptions(only_methods=True)


def test_times_of_an_earlier_call_are_scaled_to_how_fast_the_machine_is_now(
    explainer: Explainer, tmp_path: Path
) -> None:
    running = prepared(explainer, tmp_path, 28)
    running.budget.texts = len(running.workspace.get(running.plan.sample).table)
    running.budget.costs = {PASS: 1000.0, "lime scores": 50.0}
    running.budget.time_pass()
    now = running.budget.costs[PASS]
    assert now < 1
    assert running.budget.costs["lime scores"] == pytest.approx(50 * now / 1000)


def test_work_that_takes_longer_than_what_is_left_is_not_begun(explainer: Explainer, tmp_path: Path) -> None:
    running = prepared(explainer, tmp_path, 28)
    sample = running.workspace.get(running.plan.sample)
    running.budget.texts, running.plan.ways = len(sample.table), ("delete", "unk")
    first = running.budget.missing([0])
    running.budget.costs = {BlockSearch.kind: 400.0}  # 400 s in five minutes
    running._run_items(first)
    assert running.budget.missing([0]) == first
    running.budget.costs = {BlockSearch.kind: 1.0}
    running._run_items(first)
    assert running.budget.missing([0]) == []
    # The estimate is now the mean of the old one and what it took.
    assert 0.5 <= running.budget.costs[BlockSearch.kind] < 1.0


@pytest.mark.slow
def test_a_further_method_that_is_not_finished_takes_no_text_away(explainer: Explainer, tmp_path: Path) -> None:
    chosen = AuditOptions(texts=12, workers=1)
    running = AuditRun(explainer, Sums(), Sums.name, chosen, Workspace(tmp_path), lambda _: None)
    running.budget.texts = len(running.workspace.get(running.plan.sample).table)
    running.plan.ways = ("delete", "unk")
    running.plan.methods = {name: running.plan.methods[name] for name in METHODS[:1]}
    blocks = [*running.budget.blocks()]
    running._run_items(running.budget.missing(blocks))
    name = "gradient-norm"
    running.plan.methods[name] = running.further[name]
    running._run_items([item for item in running.budget.missing([0]) if item.method == name])
    main, full = running.budget.finished_blocks(running.further)
    assert (main, full) == (blocks, blocks)
    running.budget.drop_unfinished(main, full, running.further)
    assert [*running.plan.methods] == [*METHODS[:1]]
    assert "minute" in running.plan.left_out[name]
    # When it is finished, it counts.
    del running.plan.left_out[name]
    running.plan.methods[name] = running.further[name]
    running._run_items(running.budget.missing(blocks))
    assert running.budget.finished_blocks(running.further) == (blocks, blocks)
    running.budget.drop_unfinished(*running.budget.finished_blocks(running.further), running.further)
    assert name in running.plan.methods


@pytest.mark.slow
def test_too_little_time_for_verdicts_is_a_result_with_the_minutes_that_would_decide(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    original = AuditRun._run_items

    def run_first(running: AuditRun, items: Sequence[WorkItem]) -> None:
        original(running, [item for item in items if item.block == 0])

    monkeypatch.setattr(AuditRun, "_run_items", run_first)
    chosen = replace(options(), texts=None)
    result = audit(explainer, Sums(), options=chosen, workspace=tmp_path / "w", out=tmp_path / "o", say=lines.append)
    assert result.data.texts == 1
    assert result.finished
    note = result.untested[VERDICTS]
    assert re.search(r"about \d+ more minute.*minutes=\d+", note)
    assert any(note in line for line in lines)
    assert note in basis(result)
    assert html.escape(note) in (tmp_path / "o" / "index.html").read_text(encoding="utf-8")
    monkeypatch.undo()
    whole = audit(explainer, Sums(), options=options(), workspace=tmp_path / "w")
    assert whole.data.texts == 28
    assert VERDICTS not in whole.untested


def test_progress_goes_to_the_standard_error_unless_it_is_asked_for(
    explainer: Explainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit(explainer, Sums(), options=options(2, METHODS[:1]), workspace=tmp_path / "a")
    printed = capsys.readouterr()
    assert (printed.out, "2 texts" in printed.err) == ("", True)
    lines: list[str] = []
    audit(explainer, Sums(), options=options(2, METHODS[:1]), workspace=tmp_path / "b", say=lines.append)
    assert capsys.readouterr() == ("", "")
    assert len(lines) == len(printed.err.splitlines())


# Data


def table(folder: Path, corpus: Corpus, *names: str) -> Path:
    """The test split as JSONL with some of the columns text, label and rationale."""
    rows = []
    for example in corpus.read(folder).test:
        cells = {
            "text": example.parts[0],
            "label": example.label,
            "rationale": [int(m) for m in example.rationale or ()],
        }
        rows.append(json.dumps({name: cells[name] for name in names}))
    path = folder / "texts.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_texts_without_labels_and_marks_are_audited(explainer: Explainer, tmp_path: Path) -> None:
    path = table(tmp_path, Sums(), "text")
    result = audit(explainer, path, options=options(2, METHODS[1:2]), workspace=tmp_path / "w")
    assert math.isnan(result.data.accuracy)
    found = result.method("leave-one-out")
    assert found.achievable > 0.5
    assert found.answer("plausible").verdict is Verdict.NOT_TESTED
    assert "rationale" in found.answer("plausible").reason
    assert result.data.columns == {"text": "text"}


def frame(count: int = 60) -> pd.DataFrame:
    """Texts with a comma, their labels and marks in several forms."""
    examples = Sums(count).read(Path()).test
    return pd.DataFrame(
        {
            "text": [f"{example.parts[0]}, \u00e9t\u00e9" for example in examples],
            "label": [NAMES[int(example.label or 0)] for example in examples],
            "rationale": [np.array([*map(int, example.rationale or ()), 0]) for example in examples],
            "empty": [None] * count,
        },
        index=range(count, 2 * count),
    )


@pytest.mark.slow
def test_a_frame_is_audited_as_the_same_rows_in_a_file(explainer: Explainer, tmp_path: Path) -> None:
    rows, chosen = frame(), options(12, METHODS[1:2])
    lists = rows.assign(rationale=[str(marks.tolist()) for marks in rows["rationale"]])
    lists.to_csv(tmp_path / "texts.csv", index=False)
    expected = audit(explainer, tmp_path / "texts.csv", options=chosen, workspace=tmp_path / "a")
    found = audit(explainer, rows, options=chosen, workspace=tmp_path / "b")
    assert values(found) == values(expected)
    assert found.data.columns == expected.data.columns == {"text": "text", "label": "label", "rationale": "rationale"}
    (written,) = (tmp_path / "b").rglob("*.csv")
    assert written.read_bytes() == (tmp_path / "texts.csv").read_bytes()
    assert found.data.source == "DataFrame"
    assert found.data.accuracy == expected.data.accuracy > 0.5
    assert found.data.rationales == 12
    before = made(Workspace(tmp_path / "b"))
    again = audit(explainer, rows.copy(), options=chosen, workspace=tmp_path / "b")
    assert (again.look, made(Workspace(tmp_path / "b"))) == (1, before)  # known by its content
    other = audit(
        explainer, rows.assign(label=rows["label"].iloc[::-1].tolist()), options=chosen, workspace=tmp_path / "b"
    )
    assert other.data.accuracy < found.data.accuracy


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame(),
        pd.DataFrame({"text": []}),
        pd.DataFrame([["a b c", "d e f"]], columns=["text", "text"]),
        pd.DataFrame({("a", "b"): ["x y z"]}),
        pd.DataFrame({"text": ["a b \ud800"]}, dtype=object),
        pd.DataFrame({"text": ["a b c"], "label": [[object()]]}),
        pd.DataFrame({"number": [1.0, 2.0]}),
    ],
    ids=["nothing", "no rows", "one name twice", "two levels", "half a character", "objects", "no text"],
)
def test_a_frame_without_texts_is_one_line(rows: pd.DataFrame, explainer: Explainer, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        audit(explainer, rows, options=options(2, METHODS[:1]), workspace=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", [None, "", " ", -1, "-1", "-"])
@pytest.mark.slow
def test_rows_without_labels_are_left_out_of_the_accuracy_alone(
    missing: object, explainer: Explainer, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in table(tmp_path, Sums(), "text", "label").read_text().splitlines()]
    unlabelled = {row["text"] for row in rows[::3]}
    (tmp_path / "some.jsonl").write_text(
        "".join(json.dumps(row | ({"label": missing} if row["text"] in unlabelled else {})) + "\n" for row in rows)
    )
    lines: list[str] = []
    path, workspace = tmp_path / "some.jsonl", Workspace(tmp_path / "w")
    result = audit(explainer, path, options=options(2, METHODS[1:2]), workspace=workspace, say=lines.append)
    assert result.data.accuracy == 1.0, "the model is right on every text that has a label"
    assert result.data.texts == 2
    assert any(f": {len(unlabelled)}" in note for note in result.data.notes)
    assert any(f": {len(unlabelled)}" in line for line in lines)


@pytest.mark.parametrize("flipped", [False, True])
def test_assumptions_are_in_the_terminal_and_on_the_page(
    explainer: Explainer, tmp_path: Path, *, flipped: bool
) -> None:
    """Labels 1 and 2 in a column without a usual name; in the wrong order the model is never right."""
    rows = [json.loads(line) for line in table(tmp_path, Sums(), "text", "label").read_text().splitlines()]
    first = 2 if flipped else 1
    content = "".join(f"{row['text']},{first + (-1 if flipped else 1) * row['label']}\n" for row in rows)
    path = tmp_path / "texts.csv"
    path.write_text(f"text,is_train\n{content}")
    lines: list[str] = []
    given = replace(options(2, METHODS[1:2]), columns=TableColumns(label="is_train"))
    out = tmp_path / "pages"
    result = audit(explainer, path, options=given, workspace=tmp_path / "w", out=out, say=lines.append)
    assert result.data.accuracy == (0.0 if flipped else 1.0)
    listed = result.data.assumptions
    assert len(listed) == (2 if flipped else 1)
    assert "'1' is" in listed[0]
    assert not flipped or "0 of 60" in listed[1]
    assert Audit.from_json(result.to_json()).data.assumptions == listed
    page = html.unescape((out / "index.html").read_text())
    card = model_card(result)
    for each in listed:
        assert escape_markdown(each) in card
        assert any(each in line for line in lines)
        assert each[1:] in page


def test_a_model_that_is_sometimes_wrong_is_not_suspected() -> None:
    def suspected(right: int, count: int) -> bool:
        return bool(assumptions(Sums(), right, count, NAMES))

    # The binomial probability of so few: 2 ** -9 and 2 ** -10, and (1 + 20 + 190 + 1140) / 2 ** 20.
    assert [suspected(0, 9), suspected(0, 10), suspected(3, 20), suspected(2, 20)] == [False, True, False, True]
    assert not suspected(50, 100)
    assert not suspected(1, 2)


@pytest.mark.slow
def test_posts_of_hatexplain_without_a_majority_are_audited(folder: Path, tmp_path: Path) -> None:
    path = hatexplain(tmp_path / "dataset.json", 30)
    posts = json.loads(path.read_text())
    for post in list(posts.values())[:10]:
        for annotator, label in zip(post["annotators"], ("hatespeech", "normal", "offensive"), strict=True):
            annotator["label"] = label
    path.write_text(json.dumps(posts))
    given = load(str(folder))
    explainer = load((given.model, given.tokenizer), class_names=("hatespeech", "normal", "offensive"))
    result = audit(explainer, path, options=options(12, ("leave-one-out",)), workspace=tmp_path / "w")
    assert result.data.texts == 12
    assert result.data.accuracy > 0.9


@pytest.mark.slow
def test_scores_made_elsewhere_are_audited_as_they_are(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "FIRST_BLOCKS", (2, 28))  # fewer blocks take less time
    path = table(tmp_path, Sums(), "text", "label")
    rows = []
    for example in Sums(50).read(tmp_path).test:  # ten texts have no scores
        words = [VOCABULARY.index(word) for word in str(example.parts[0]).split()]
        sign = 1 if example.label else -1
        for method, scores in (
            ("mine", [sign * weight(word) for word in words]),
            ("turned", [-sign * weight(word) for word in words]),
        ):
            rows.append(json.dumps({"text": example.parts[0], "method": method, "scores": scores}))
    given = tmp_path / "scores.jsonl"
    given.write_text("\n".join(rows))
    lines: list[str] = []
    chosen = AuditOptions(texts=28, attributions=str(given), only_methods=True)
    result = audit(explainer, path, options=chosen, workspace=tmp_path / "w", say=lines.append)
    assert {each.name for each in result.methods if not each.control} == {"mine", "turned"}
    mine, turned = result.method("mine"), result.method("turned")
    assert mine.answer("faithful").verdict is YES
    assert mine.achievable > 0.9
    assert turned.answer("faithful").verdict is NO
    for question in ("model-dependent", "stable", "complete"):
        assert mine.answer(question).verdict is Verdict.NOT_TESTED
        assert "elsewhere" in mine.answer(question).reason
    assert (mine.decision, turned.decision) == (Decision.UNDECIDED, Decision.HIDE)
    assert any("50 of 60 texts" in line for line in lines)


def test_a_model_of_numbers_has_no_flips(tmp_path: Path) -> None:
    rows = [
        json.dumps({"text": example.parts[0], "rating": 0.5 * number})
        for number, example in enumerate(Sums(30).read(tmp_path).test)
    ]
    (tmp_path / "numbers.jsonl").write_text("\n".join(rows))
    chosen = options(12, ("leave-one-out",))
    result = audit(additive(Regression()), tmp_path / "numbers.jsonl", options=chosen, workspace=tmp_path / "w")
    found = result.method("leave-one-out")
    assert found.achievable == pytest.approx(1.0, abs=0.01)
    assert math.isnan(next(row.value for row in found.answer("faithful").evidence if row.metric == "flip"))
    assert {name for name in result.struck if name.startswith("flip")} == {"flip (delete)", "flip (unk)"}
    assert result.model.outputs == ()
    assert math.isnan(result.data.accuracy)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("given") / "model")


@pytest.mark.slow
def test_pairs_are_audited_over_the_words_of_both_texts(folder: Path, tmp_path: Path) -> None:
    texts = [str(example.parts[0]) for example in Verdicts(30).read(tmp_path).test]
    rows = [f"{text},{other}\n" for text, other in zip(texts, reversed(texts), strict=True)]
    (tmp_path / "pairs.csv").write_text("premise,hypothesis\n" + "".join(rows))
    given = load(str(folder))
    explainer = load((given.model, given.tokenizer), class_names=CLASSES)
    result = audit(explainer, tmp_path / "pairs.csv", options=options(2, ("raw-attention",)), workspace=tmp_path / "w")
    assert result.data.columns == {"text": "premise", "second text": "hypothesis"}
    assert result.data.texts == 2
    failure = result.method("raw-attention").failure
    assert failure is not None
    assert " ".join(failure.words) in {f"{text} {other}" for text, other in zip(texts, reversed(texts), strict=True)}


def hatexplain(path: Path, count: int) -> Path:
    """Posts in HateXplain's own form: three annotators, one list of 0 and 1 per token and annotator that marked."""
    draw, posts = Generator().manual_seed(0), {}
    classes = ("hatespeech", "normal", "offensive")
    for number in range(count):
        words = [OTHERS[place] for place in torch.randint(len(OTHERS), (8,), generator=draw).tolist()]
        label, place = number % 3, number % 8
        words[place] = EVIDENCE[label]
        marks = [int(each == place) for each in range(8)]
        posts[f"{number}_gab"] = {
            "post_id": f"{number}_gab",
            "annotators": [{"label": classes[label], "annotator_id": each, "target": ["None"]} for each in (1, 2, 3)],
            "rationales": [] if classes[label] == "normal" else [marks, marks],
            "post_tokens": words,
        }
    path.write_text(json.dumps(posts))
    return path


@pytest.mark.slow
def test_hatexplain_runs_from_its_own_file_and_long_words_are_not_favoured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marked words have two tokens, all others one: random scores of words still rank them in the middle."""
    monkeypatch.setattr(evidence, "FIRST_BLOCKS", (2, 44))
    given = load(str(folder))
    explainer = load((given.model, given.tokenizer), class_names=("hatespeech", "normal", "offensive"))
    path = hatexplain(tmp_path / "dataset.json", 60)
    result = audit(explainer, path, options=options(44, ("leave-one-out",)), workspace=tmp_path / "w")
    assert result.data.columns["rationale"]
    assert result.data.accuracy > 0.9
    assert 0.5 < result.data.rationales / result.data.texts < 0.8
    random, found = (result.method(name).answer("plausible") for name in ("random", "leave-one-out"))
    chance = random.statistic
    assert chance.low < 0.5 < chance.high
    assert chance.value == pytest.approx(0.5, abs=0.12)
    assert chance.n >= 25
    assert found.statistic.value > 0.9
    assert found.verdict is YES
