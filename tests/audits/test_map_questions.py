"""Polarity and class sensitivity by hand, and the facts about methods that stand in for computing them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pandas as pd
import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import GradientNorm, InputXGradient
from heedful.attributions.lime import Lime
from heedful.attributions.method import MethodTags
from heedful.attributions.perturbation import LeaveOneOut
from heedful.attributions.registry import METHODS
from heedful.audits.evidence import BlockAttributions, TextSample, _Explained
from heedful.audits.map_questions import CLASS_CHANGE, CLASS_TEXTS, ClassSensitive, Polarity, known_difference
from heedful.audits.questions import TOPICS
from heedful.audits.schedule import AuditOptions, audit
from heedful.audits.topics import SIDE_STRIDE, SIDE_TEXTS, Question, texts_in_all
from heedful.audits.verdict_rules import NULL
from heedful.audits.work_list import FinishedWork
from heedful.models.attentive import VOCAB_SIZE, random_texts
from heedful.models.small_transformers import SmallTransformer
from heedful.results import Verdict
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification
from heedful.types import Attribution, Batch, Method, Model, UserError
from tests.audits.test_schedule import VOCABULARY, Sums, additive, weight
from tests.audits.test_verdict_rules import ask
from tests.small_models import small_models, some_batch

YES, NO, OPEN, UNTESTED = Verdict
CLASSIFIER = SimpleNamespace(class_names=("negative", "positive"))


# Polarity


def test_the_first_word_speaks_against_the_prediction_by_hand() -> None:
    """Three words of text a, four of text b; the second way of deletion disagrees on one word of a."""
    searched = pd.DataFrame(
        {
            "uid": ["a", "b", "a", "b"],
            "deletion": ["delete", "delete", "mask", "mask"],
            "full": [0.8, 0.6, 0.8, 0.6],
            "without_each": [
                [0.9, 0.3, 0.8],
                [0.7, 0.7, 0.5, 0.6],
                [0.7, 0.2, 0.8],
                [0.7, 0.6 + 1e-12, 0.5, 0.6],  # equal but for rounding
            ],
        }
    )
    orders = {"best": [[1, 0], [2, 3]], "worst": [[0, 2], [0, 1]]}
    erased = {name: pd.DataFrame({"uid": ["a", "b"] * 2, "order": [*order, *order]}) for name, order in orders.items()}
    plan = SimpleNamespace(answered=orders, explainer=CLASSIFIER)
    work = SimpleNamespace(searched=searched, erasures=erased.__getitem__, plan=plan)
    table = Polarity().read(cast(FinishedWork, work))
    assert table["best"].to_dict() == {"a": 0.0, "b": 0.0}
    assert table["worst"].to_dict() == {"a": 0.5, "b": 1.0}
    assert table[NULL].to_dict() == pytest.approx({"a": 0.5 / 3, "b": (1.0 + 0.5) / 4})


def test_polarity_is_judged_against_any_word_of_the_same_text() -> None:
    texts = 40
    table = pd.DataFrame({"for": [0.0] * texts, "like": [0.0, 1.0] * 20, "against": [1.0] * texts, NULL: [0.5] * texts})
    found = ask("polarity", ("for", "like", "against", "none"), table)
    assert [found[name].verdict for name in ("for", "like", "against", "none")] == [YES, OPEN, NO, UNTESTED]
    row = found["like"].statistic
    assert (row.value, row.null, row.n) == (0.5, 0.5, texts)
    assert row.low < 0.5 < row.high
    assert (found["against"].statistic.value, found["against"].statistic.high) == (1.0, 1.0)


def test_shares_in_reasons_are_written_alike_and_small_ones_do_not_vanish() -> None:
    texts = 40
    polarity = ask("polarity", ("like",), pd.DataFrame({"like": [0.0, 1.0] * 20, NULL: [0.25] * texts}))
    assert "in 50 % of the texts, any word in 25 %" in polarity["like"].reason
    complete = ask("complete", ("sum",), pd.DataFrame({"sum": [0.002, 0.006] * 20}))
    assert "0.4 % on average, at most 0.6 %" in complete["sum"].reason
    assert "more than 5 % in 0 % of" in complete["sum"].reason


@dataclass(frozen=True)
class WorstFirst:
    """Ranks the words by what they take from the prediction of a sum: the word that speaks against it comes first."""

    tags: ClassVar[MethodTags] = MethodTags()

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        scores = LeaveOneOut("logit", feature="word")(model, batch, target)
        return replace(scores, scores=-scores.scores)


def test_the_polarity_on_a_sum_is_that_of_its_weights(tmp_path: Path) -> None:
    workspace, explainer = Workspace(tmp_path), additive()
    options = AuditOptions(texts=28, workers=1, only_methods=True, methods=("leave-one-out", WorstFirst()))
    result = audit(explainer, Sums(), options=options, workspace=workspace)
    best, worst = (next(each for each in result.methods if name in each.name) for name in ("leave", "worst"))
    assert (best.answer("polarity").statistic.value, best.answer("polarity").verdict) == (0.0, YES)
    assert worst.answer("polarity").verdict is NO
    sample = workspace.get(TextSample(explainer.recipe(Sums()))).table[:28]
    texts = {example.uid: str(example.parts[0]).split() for example in Sums().read(tmp_path).test}
    shares = []
    for uid, predicted in zip(sample["uid"], sample["predicted"], strict=True):
        against = [(weight(VOCABULARY.index(word)) > 0) != bool(predicted) for word in texts[uid]]
        shares.append(sum(against) / len(against))
    assert best.answer("polarity").statistic.null == pytest.approx(sum(shares) / 28)
    assert worst.answer("polarity").statistic.value == pytest.approx(sum(share > 0 for share in shares) / 28)


def test_a_number_is_neither_spoken_for_nor_against() -> None:
    plan = SimpleNamespace(explainer=SimpleNamespace(class_names=()), answered={}, recomputable={})
    work = cast(FinishedWork, SimpleNamespace(plan=plan, searched=pd.DataFrame()))
    for question in (Polarity(), ClassSensitive()):
        assert question.read(work).empty
        assert question.unasked(plan, LeaveOneOut())  # type: ignore[arg-type]


# Class sensitivity


@pytest.mark.parametrize("name", METHODS)
def test_what_is_said_of_the_maps_of_two_classes_without_computing_is_true(name: str) -> None:
    method: Method = METHODS[name]()
    known = known_difference(method, 2)
    if known is None:
        pytest.skip("it is computed")
    checked = 0
    for model in small_models().values():
        batch = some_batch((3, 5))
        try:
            one, other = (method(model, batch, torch.full((2,), target)).scores.double() for target in (0, 1))
        except UserError:
            continue
        checked += 1
        assert torch.allclose(other, one * (1 - 2 * known), atol=1e-5 * float(one.abs().max()))
    assert checked


def test_which_maps_are_computed_for_another_class() -> None:
    assert [known_difference(method, 2) for method in (RawAttention(), Lime(), GradientNorm())] == [0.0, 1.0, None]
    assert [known_difference(method, 3) for method in (RawAttention(), Lime(), GradientNorm())] == [0.0, None, None]
    assert known_difference(InputXGradient("logit"), 2) is None
    question = ClassSensitive()
    methods = {"attention": RawAttention(), "lime": Lime(), "norm": GradientNorm()}
    for classes, expected in ((2, ["norm"]), (3, ["lime", "norm"])):
        plan = SimpleNamespace(
            explainer=SimpleNamespace(class_names=("a", "b", "c")[:classes]),
            recomputable=methods,
            sample=cast(TextSample, None),
        )
        work = [*question.work(plan, 0)]  # type: ignore[arg-type]
        assert [name for name, _ in work] == expected
        assert all(isinstance(recipe, BlockAttributions) and recipe.runner_up for _, recipe in work)


def test_side_questions_are_asked_of_the_first_texts_and_a_third_of_the_others() -> None:
    sensitive = [block for block in range(15) if TOPICS["class-sensitive"].is_asked(block, CLASS_TEXTS)]
    assert sensitive == [0, 1, 2, 3, 4, 5, 8, 11, 14]
    stable = [block for block in range(12) if TOPICS["stable"].is_asked(block, SIDE_TEXTS)]
    assert stable == [0, 1, 2, 3, 4, 5, 5 + SIDE_STRIDE, 5 + 2 * SIDE_STRIDE]
    assert CLASS_TEXTS < SIDE_TEXTS


def test_texts_that_would_decide_count_those_that_are_not_asked_and_those_that_give_no_number() -> None:
    stable = TOPICS["stable"]
    assert isinstance(stable, Question)
    assert texts_in_all(12, 2, 2, stable) == 30  # as many as any verdict needs, to one digit
    assert texts_in_all(40, 20, 20, stable) == SIDE_TEXTS + SIDE_STRIDE * (40 - SIDE_TEXTS)
    assert texts_in_all(12, 6, 30, stable) == 200  # 60 asked, which are 20 and a third of 120 more
    assert texts_in_all(12, 0, 30, stable) is None


def test_maps_that_differ_little_do_not_tell_classes_apart() -> None:
    texts = CLASS_TEXTS
    values = {"blind": 0.0, "alike": CLASS_CHANGE - 0.1, "unrelated": 1.0}
    found = ask("class-sensitive", tuple(values), pd.DataFrame({name: [each] * texts for name, each in values.items()}))
    assert [found[name].verdict for name in values] == [NO, OPEN, YES]
    assert [found[name].statistic.value for name in values] == pytest.approx([*values.values()])


def test_the_runner_up_is_the_class_with_the_second_highest_output(tmp_path: Path) -> None:
    """Of two classes it is the other one, whose logit has the opposite sign."""
    workspace, explainer = Workspace(tmp_path), additive()  # the model lives as long as its explainer
    sample = TextSample(explainer.recipe(Sums()))
    method = LeaveOneOut("logit", feature="word")
    own, other = (
        workspace.get(BlockAttributions(sample, method, 2, runner_up=runner_up)).table for runner_up in (False, True)
    )
    assert own["predicted"].tolist() == other["predicted"].tolist()
    for one, opposite in zip(own["word_scores"], other["word_scores"], strict=True):
        assert list(one) == pytest.approx([-score for score in opposite])


def test_the_runner_up_of_three_classes() -> None:
    model = SmallTransformer(2, 2, 16, initializer_range=0.2).build(
        MulticlassClassification(3), torch.randn(VOCAB_SIZE, 5), Generator().manual_seed(0)
    )
    batch, seen = random_texts((5, 3, 7)), list[Tensor]()

    def method(model: Model, batch: Batch, target: Tensor) -> Attribution:
        seen.append(target)
        return Attribution(torch.zeros(batch.mask.shape), batch.content_mask)

    with torch.no_grad():
        ranked = model.task.probabilities(model.read_logits(batch)).argsort(1, descending=True)
    _Explained(method, model, runner_up=True)(model, batch, ranked[:, 0])
    _Explained(method, model, runner_up=False)(model, batch, ranked[:, 0])
    assert torch.equal(seen[0], ranked[:, 1])
    assert torch.equal(seen[1], ranked[:, 0])
