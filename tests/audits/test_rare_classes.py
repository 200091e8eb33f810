"""Texts of rarely predicted classes: how they are drawn, what rests on them, and verdicts by predicted class."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from heedful.attributions.perturbation import LeaveOneOut
from heedful.audits import evidence
from heedful.audits.audit_page import answer_html
from heedful.audits.audit_result import Audit
from heedful.audits.audit_run import AuditRun
from heedful.audits.audit_tables import basis, classes_table
from heedful.audits.decisions import answer_sentence
from heedful.audits.evidence import MIN_POOL, TextSample, stratify
from heedful.audits.rare_classes import (
    RARE_CLASS_TEXTS,
    RARE_SHARE,
    count_representative,
    missing_texts,
    rare_classes,
    take_rare_classes,
    texts_with,
)
from heedful.audits.schedule import AuditOptions, audit
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.recommendation import find_recommendation
from heedful.results import Decision, Verdict
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel
from heedful.types import Attribution, Batch, Example, Method, Model, Splits
from tests.audits.test_schedule import NAMES, VOCABULARY, Sums, additive, weight

POSITIVE, NEGATIVE, REPRESENTATIVE = 400, 40, 45


def sample(*counts: int) -> pd.DataFrame:
    """Texts of classes with so many texts, in an order that represents them."""
    predicted = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    return stratify(pd.DataFrame({"predicted": predicted, "uid": [f"t{place}" for place in range(len(predicted))]}))


# The order


def test_classes_with_less_than_half_of_an_equal_share_are_rare() -> None:
    assert rare_classes(sample(50, 50)["predicted"]) == []
    assert rare_classes(sample(79, 21)["predicted"]) == []
    assert rare_classes(sample(81, 19)["predicted"]) == [1]
    assert rare_classes(sample(10, 44, 46)["predicted"]) == [0]
    assert rare_classes(sample(*[10] * 20)["predicted"]) == []
    assert RARE_SHARE == 0.2


def test_without_rare_classes_the_order_is_the_representative_one() -> None:
    order = sample(30, 20, 25)
    taken = take_rare_classes(order)
    assert taken["turn"].tolist() == [*range(len(order))]
    assert taken["uid"].tolist() == order["uid"].tolist()


@pytest.mark.parametrize("counts", [(970, 30), (300, 250, 26, 25), (5, 60), (2000, 31), (1, 1, 1, 300)])
def test_every_third_text_is_of_a_rare_class_until_there_are_enough(counts: tuple[int, ...]) -> None:
    order = sample(*counts)
    taken = take_rare_classes(order)
    rare = [label for label in rare_classes(order["predicted"]) if counts[label] >= MIN_EXAMPLES]
    assert sorted(taken["turn"]) == [*range(len(order))]
    assert taken["uid"].tolist() == order["uid"][taken["turn"]].tolist()
    ends = [count_representative(taken["turn"][:size]) for size in range(len(taken) + 1)]
    assert ends[-1] == len(order)
    for representative in (0, 1, 5, min(28, len(order)), len(order)):
        texts = texts_with(taken["turn"], representative)
        assert ends[texts] >= representative
        assert not texts or ends[texts - 1] < representative
    # A third of the texts at most is added, and the rarest classes are not passed over.
    for size, end in enumerate(ends):
        assert size - end <= size / 3
    for label in rare:
        places = np.flatnonzero(taken["predicted"] == label)
        assert places[0] <= 3 * len(rare) - 1
        assert len(places) == counts[label]


def test_a_class_without_enough_texts_for_a_verdict_changes_nothing() -> None:
    order = sample(200, MIN_EXAMPLES - 1)
    assert missing_texts(order["predicted"]) == {1: RARE_CLASS_TEXTS - MIN_EXAMPLES + 1}
    pd.testing.assert_frame_equal(take_rare_classes(order).drop(columns="turn"), order)


def test_further_texts_of_a_rare_class_come_first_and_never_represent_the_data() -> None:
    order, found = sample(200, 10), pd.DataFrame({"predicted": [1] * 18, "uid": [f"f{place}" for place in range(18)]})
    taken = take_rare_classes(order, found)
    rare = taken[taken["predicted"] == 1]
    assert len(rare) == RARE_CLASS_TEXTS
    assert {*found["uid"]} <= {*taken["uid"][:60]}
    is_further = taken["uid"].isin(found["uid"])
    assert count_representative(taken["turn"]) == len(order)
    assert taken["turn"][is_further].min() > len(order)
    assert taken["uid"][~is_further].tolist()[0] == order["uid"].tolist()[0]


def test_representative_texts_are_in_proportion_whatever_is_added() -> None:
    order = sample(960, 40)
    taken = take_rare_classes(order)
    for size in (12, 42, 84, 300):
        turns = taken["turn"][:size]
        kept = taken[:size][turns < count_representative(turns)]
        assert kept["uid"].tolist() == order["uid"][: len(kept)].tolist()


def test_of_long_texts_fewer_further_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 900 texts of 300 words 200 are read, and then no more than 200 to find those of a rare class."""

    @dataclass(frozen=True)
    class Long(Sums):
        name: ClassVar[str] = "long"

        def read(self, data: Path) -> Splits:
            words = [word for word in VOCABULARY if weight(VOCABULARY.index(word)) > 0]
            text = " ".join([*words, *words][:15] * 20)
            examples = tuple(Example(f"t{number}", (text,), 1) for number in range(900))
            return replace(super().read(data), test=examples)

    read, original = list[int](), TextSample._read

    def count(self: TextSample, loaded: LoadedModel, examples: Sequence[Example], workspace: Workspace) -> pd.DataFrame:
        read.append(len(examples))
        return original(self, loaded, examples, workspace)

    monkeypatch.setattr(TextSample, "_read", count)
    monkeypatch.setattr(evidence, "missing_texts", lambda predicted: {0: 1})
    explainer = additive()
    Workspace(tmp_path).get(TextSample(explainer.recipe(Long())))
    assert read == [200, 100, 100]


# An audit


@dataclass(frozen=True)
class Unbalanced(Sums):
    """Sums of which one in eleven is negative."""

    name: ClassVar[str] = "unbalanced"

    def read(self, data: Path) -> Splits:
        left = {0: NEGATIVE, 1: POSITIVE}
        chosen: list[Example] = []
        number = 0
        while any(left.values()):
            text, number = self._text(number), number + 1
            label = int(str(text.label))
            if left[label]:
                left[label] -= 1
                chosen.append(text)
        return replace(super().read(data), test=tuple(chosen))


@dataclass(frozen=True)
class AlwaysPositive(Method):
    """Explains the second class whatever is predicted, so that it is reversed for the first one."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        return LeaveOneOut()(model, batch, target.new_ones(target.shape))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def result(workspace: Workspace) -> Audit:
    options = AuditOptions(texts=56, workers=1, only_methods=True, methods=("leave-one-out", AlwaysPositive()))
    return audit(additive(), Unbalanced(), options=options, workspace=workspace)


def test_the_figures_for_all_predictions_rest_on_representative_texts(result: Audit) -> None:
    assert result.data.texts == 84
    texts = result.data.texts - result.data.added
    assert MIN_EXAMPLES < texts < 84
    for method in result.methods:
        assert {row.n for row in method.answer("faithful").evidence} == {texts}
    assert result.method("leave-one-out").answer("agrees").statistic.n == texts
    assert result.data.classes["negative"] >= RARE_CLASS_TEXTS
    assert f"{result.data.added} of them" in basis(result)
    effects = {row.subset: row for row in result.effects}
    assert effects[""].n == texts
    assert [effects[name].n for name in NAMES] == [result.data.classes[name] for name in NAMES]


def test_the_model_is_randomized_for_representative_texts_only(result: Audit, workspace: Workspace) -> None:
    explainer = additive()
    running = AuditRun(explainer, Unbalanced(), "", AuditOptions(texts=56, workers=1), workspace, lambda _: None)
    turns = workspace.get(running.plan.sample).table["turn"]
    running.plan.turns = turns
    asked = [item.randomized for block in range(6) for item in running.plan.block_work(block) if item.method == "lime"]
    places = [place for place in asked if place is not None]
    assert len(places) < 20
    assert [turns[place] for place in places] == [*range(len(places))]
    assert result.method("random").answer("model-dependent").statistic.n < result.data.texts - result.data.added


def test_a_method_that_is_wrong_for_a_rare_class_is_refuted_for_that_class_only(result: Audit) -> None:
    blind = next(method for method in result.methods if method.name.startswith("always"))
    right = result.method("leave-one-out")
    assert blind.answer("faithful").verdict is not Verdict.NOT_SUPPORTED
    assert blind.by_class["positive"].verdict is Verdict.SUPPORTED
    assert blind.by_class["negative"].verdict is Verdict.NOT_SUPPORTED
    assert blind.refuted_classes == ("negative",)
    assert right.by_class["positive"].verdict is Verdict.SUPPORTED
    assert right.by_class["negative"].verdict is not Verdict.NOT_SUPPORTED
    assert right.refuted_classes == ()
    shown = [replace(method, decision=Decision.SHOW) for method in (right, blind)]
    assert [("negative" in answer_sentence([method])) for method in shown] == [False, True]
    for label, answer in right.by_class.items():
        assert answer.statistic.n == result.data.classes[label]
        assert answer.statistic.subset.endswith(label)
        assert 0.5 < answer.statistic.low <= answer.statistic.value <= answer.statistic.high <= 1
        assert answer.statistic.value > 0.8
    for control in ("random", "permuted-attention"):
        assert all(answer.verdict is not Verdict.SUPPORTED for answer in result.method(control).by_class.values())


def test_the_page_the_table_and_the_numbers_show_every_class(result: Audit) -> None:
    table = classes_table(result)
    assert [row[0] for row in table.rows] == ["negative", "positive"]
    assert [row[1] for row in table.rows] == [result.data.classes[name] for name in ("negative", "positive")]
    assert 'id="classes"' in answer_html(result)
    rows = result.measurements_frame()
    by_class = rows[rows["subset"].isin([f"predicted {name}" for name in NAMES])]
    assert len(by_class) == 2 * len(result.methods)
    assert Audit.from_json(result.to_json()) == result


def test_the_recommendation_names_the_classes_that_a_method_is_not_for(result: Audit, workspace: Workspace) -> None:
    found = find_recommendation(additive().identity, workspace.root)
    assert found is not None
    blind = next(method.name for method in result.methods if method.name.startswith("always"))
    assert found.exceptions[blind] == ("negative",)
    assert found.exceptions["leave-one-out"] == ()


@dataclass(frozen=True)
class Mislabeled(Unbalanced):
    """Wrong labels on all negative texts and on the 60 short ones, which are not audited."""

    name: ClassVar[str] = "mislabeled"

    def read(self, data: Path) -> Splits:
        splits = super().read(data)
        wrong = [replace(text, label=1 - int(str(text.label))) for text in splits.test]
        texts = [wrong[place] if text.label == 0 else text for place, text in enumerate(splits.test)]
        short = [replace(text, uid=f"s-{text.uid}", parts=(" ".join(text.words[:2]),)) for text in splits.test[:60]]
        return replace(splits, test=(*texts, *(replace(text, label=1 - int(predicted(text))) for text in short)))


def predicted(text: Example) -> bool:
    return sum(weight(VOCABULARY.index(word)) for word in text.words) > 0


def test_accuracy_and_predictions_are_those_of_the_texts_that_were_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 500 texts 200 are drawn; more are read to find negative ones, which are all wrong; short ones are left out."""
    monkeypatch.setattr(evidence, "POOL_WORDS", 1)
    lines: list[str] = []
    options = AuditOptions(texts=1, workers=1, only_methods=True, methods=("leave-one-out",))
    corpus, workspace = Mislabeled(), Workspace(tmp_path)
    result = audit(additive(), corpus, options=options, workspace=workspace, say=lines.append)
    sample = TextSample(additive().recipe(corpus))
    notes = workspace.get(sample).notes
    texts = corpus.read(tmp_path).test
    generator = torch.Generator().manual_seed(derive_seed("audit", 0, len(texts)))
    drawn = [texts[place] for place in torch.randperm(len(texts), generator=generator)[:MIN_POOL].tolist()]
    right = sum(int(predicted(text)) == text.label for text in drawn)
    assert int(str(notes["rare"])) > 0
    assert int(str(notes["too short"])) > 0
    assert result.data.labeled == notes["read"] == MIN_POOL
    assert result.data.accuracy == right / MIN_POOL
    [line] = [line for line in lines if "were read" in line]
    counts = {name: int(count) for name, count in re.findall(r"(negative|positive) (\d+)", line)}
    assert counts == {"negative": MIN_POOL - sum(map(predicted, drawn)), "positive": sum(map(predicted, drawn))}


def test_a_class_that_is_never_predicted_is_said_to_be_untested(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class OneClass(Unbalanced):
        name: ClassVar[str] = "one class"

        def read(self, data: Path) -> Splits:
            splits = super().read(data)
            return replace(splits, test=tuple(text for text in splits.test if text.label == 1)[:30])

    options = AuditOptions(texts=28, workers=1, only_methods=True, methods=("leave-one-out",))
    result = audit(additive(), OneClass(), options=options, workspace=tmp_path)
    assert [reason for name, reason in result.untested.items() if "never" in name and "negative" in reason]
    assert all(method.by_class == {} for method in result.methods)
    assert not any(math.isnan(row.value) for row in result.effects)
