"""Checks for others: a fault of each kind is found under its own name, nothing raises, and good ones pass."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from heedful import catalogue
from heedful.attributions.controls import Random
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.measures.erasure import FAITHFULNESS_MEASURES, Direction
from heedful.models.bag_of_words import LinearBagOfWords, random_texts
from heedful.tasks import BinaryClassification
from heedful.testing.checks import CheckReport, CheckResult, check_explainer, check_measure
from heedful.types import Attribution, Batch, Method, Model, UserError

RUNS = "runs"
FINITE = "scores are finite numbers, one per unit"
OFF = "special symbols and padding score zero"
AGAIN = "the same call gives the same scores"
COMPANY = "padding and company change nothing"
MODEL = "the model is left as it was"
FAILING = "the model is left as it was when it fails"
SIGN = "positive scores speak for the target"


def failed(findings: CheckReport) -> set[str]:
    return {finding.law for finding in findings.results if not finding.passed}


@pytest.mark.parametrize("name", ["raw-attention", "gradient", "leave-one-out"])
def test_methods_of_the_house_keep_all_laws(name: str) -> None:
    findings = check_explainer(catalogue.METHODS[name]())
    assert findings, findings
    assert [finding.law for finding in findings.results] == [RUNS, FINITE, OFF, AGAIN, COMPANY, MODEL, FAILING, SIGN]


def good(model: Model, batch: Batch, target: Tensor) -> Attribution:
    return LeaveOneOut("logit")(model, batch, target)


def infinite(model: Model, batch: Batch, target: Tensor) -> Attribution:
    found = Random()(model, batch, target)
    return replace(found, scores=found.scores.masked_fill(batch.words == 1, torch.inf))


def flattened(model: Model, batch: Batch, target: Tensor) -> Attribution:
    return Attribution(torch.zeros(3), torch.zeros(3, dtype=torch.bool))


def special(model: Model, batch: Batch, target: Tensor) -> Attribution:
    found = Random()(model, batch, target)
    return replace(found, scores=found.scores + 1.0)


def drawing(model: Model, batch: Batch, target: Tensor) -> Attribution:
    with torch.random.fork_rng():
        torch.default_generator.seed()
        return Attribution(torch.rand(batch.mask.shape) * batch.content_mask, batch.content_mask)


def gregarious(model: Model, batch: Batch, target: Tensor) -> Attribution:
    return Attribution(batch.content_mask.float() / batch.content_mask.sum(), batch.content_mask)


def heavy_handed(model: Model, batch: Batch, target: Tensor) -> Attribution:
    with torch.no_grad():
        next(iter(model.parameters())).mul_(1.0 + 1e-3)
    return Random()(model, batch, target)


def waking(model: Model, batch: Batch, target: Tensor) -> Attribution:
    model.train()
    return Random()(model, batch, target)


def grasping(model: Model, batch: Batch, target: Tensor) -> Attribution:
    torch.autograd.backward(model(batch).logits.sum())
    return Random()(model, batch, target)


def gambling(model: Model, batch: Batch, target: Tensor) -> Attribution:
    random.random()
    return Random()(model, batch, target)


def hooking(model: Model, batch: Batch, target: Tensor) -> Attribution:
    handle = model.register_forward_pre_hook(lambda *_: None)
    model(batch)
    handle.remove()
    return Random()(model, batch, target)


def hooking_later(model: Model, batch: Batch, target: Tensor) -> Attribution:
    model(batch)
    return hooking(model, batch, target)


def reversed_signs(model: Model, batch: Batch, target: Tensor) -> Attribution:
    found = good(model, batch, target)
    return replace(found, scores=-found.scores)


@pytest.mark.parametrize(
    ("method", "laws", "words"),
    [
        (infinite, {FINITE, COMPANY}, "no finite numbers"),
        (flattened, {FINITE, OFF, COMPANY}, "scores have the shape (3,)"),
        (special, {OFF}, "have a score"),
        (drawing, {AGAIN, COMPANY}, "scores differ by up to"),
        (gregarious, {COMPANY}, "text-0 has other scores alone than beside longer texts"),
        (heavy_handed, {MODEL, FAILING}, "weights changed"),
        (waking, {MODEL, FAILING}, "the mode changed"),
        (grasping, {MODEL}, "gradients changed"),
        (gambling, {MODEL, FAILING}, "Python's random state changed"),
        (hooking, {FAILING}, "hooks changed after an error"),
        (hooking_later, {FAILING}, "hooks changed after an error in call"),
        (reversed_signs, {SIGN}, "have the wrong sign: positive is what speaks for the target"),
    ],
)
def test_each_fault_is_found_under_its_own_name(method: Method, laws: set[str], words: str) -> None:
    state = random.getstate()
    findings = check_explainer(method)
    random.setstate(state)
    assert not findings
    assert laws <= failed(findings), findings
    assert failed(findings) - laws <= ({SIGN, AGAIN} if method in (infinite, flattened) else set()), findings
    assert words in str(findings)


def test_a_method_that_breaks_is_told_of_and_not_raised() -> None:
    def broken(model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise KeyError("no such layer")

    findings = check_explainer(broken)
    assert findings.results == (CheckResult(RUNS, passed=False, reason=findings.results[0].reason),)
    assert "a small BiLSTM breaks it (KeyError: 'no such layer')" in findings.results[0].reason
    assert "works on no model" in str(findings)


def test_a_method_that_gives_something_else_does_not_run() -> None:
    findings = check_explainer(lambda model, batch, target: batch.mask)
    assert "gave Tensor, not an Attribution" in str(findings)
    assert not findings


def test_a_model_may_be_refused_in_plain_words_but_not_every_model() -> None:
    findings = check_explainer(Gradient(keep_attention_factor=False))
    assert findings, findings
    assert "a small transformer is refused (Gradient(keep_attention_factor=False)" in findings.results[0].reason
    assert "transformer" not in findings.results[1].reason

    def choosy(model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise UserError("only for models of my own")

    assert not check_explainer(choosy)


def test_an_interrupt_is_not_swallowed() -> None:
    def stopping(model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_explainer(stopping)


def test_findings_read_as_lines_also_where_pytest_prints_them() -> None:
    findings = CheckReport(
        "mine", (CheckResult("law", passed=True, reason="so"), CheckResult("other", passed=False, reason="because"))
    )
    assert str(findings) == repr(findings) == "mine:\n  passed  law: so\n  FAILED  other: because"
    assert not findings
    assert CheckReport("mine", findings.results[:1])


def test_a_check_draws_nothing_from_the_generators_of_the_process() -> None:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    check_explainer(Random())
    check_measure(FAITHFULNESS_MEASURES["deletion_auc"])
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


@pytest.mark.parametrize(
    "name", [name for name, measure in FAITHFULNESS_MEASURES.items() if measure.has_random_control]
)
def test_measures_of_faithfulness_know_the_truth_from_chance_and_from_its_reverse(name: str) -> None:
    findings = check_measure(FAITHFULNESS_MEASURES[name])
    assert findings, findings
    assert len(findings.results) == 3
    assert findings.name == name


def test_a_measure_that_points_the_wrong_way_is_found() -> None:
    turned = replace(FAITHFULNESS_MEASURES["aopc_comprehensiveness"], direction="lower")
    assert failed(check_measure(turned)) == {
        "ranks the truth above random scores",
        "ranks the truth above the truth turned round",
    }


def test_sensitivity_alone_says_nothing_about_truth() -> None:
    assert "0 of 40 texts" in str(check_measure(FAITHFULNESS_MEASURES["sensitivity"]))
    assert not check_measure(FAITHFULNESS_MEASURES["sensitivity"])


@dataclass(frozen=True)
class Sizes:
    """The mean size of the scores: blind to their order."""

    direction: Direction = "higher"

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        return attribution.scores.abs().sum(1)


@dataclass(frozen=True)
class Own:
    """A measure of one's own: what the logit loses without the highest unit, by the weights themselves."""

    direction: Direction = "higher"

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        assert isinstance(model, LinearBagOfWords)
        best = attribution.scores.masked_fill(~attribution.mask, -torch.inf).argmax(1, keepdim=True)
        return model.ground_truth(batch, target).scores.gather(1, best).squeeze(1)


def test_measures_of_others_are_judged_by_their_direction_and_call() -> None:
    assert check_measure(Own()), check_measure(Own())
    blind = check_measure(Sizes())
    assert "ranks the truth above the truth turned round" in failed(blind)
    assert str(blind).startswith("Sizes(direction='higher'):")


def test_measures_that_fail_or_give_another_shape_are_told_of() -> None:
    class Whole:
        direction: Direction = "higher"

        def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
            return attribution.scores.mean()

    class Broken:
        direction: Direction = "higher"

        def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
            raise ZeroDivisionError("nothing there")

    assert "shape ()" in str(check_measure(Whole()))
    assert str(check_measure(Broken())) == "Broken:\n  FAILED  runs: ZeroDivisionError: nothing there"


def test_a_bag_of_words_adds_up_what_its_truth_says() -> None:
    model, batch = LinearBagOfWords.random(BinaryClassification()).double().eval(), random_texts((4, 9))
    for label, sign in ((0, -1), (1, 1)):
        target = torch.full((2,), label)
        total = model.ground_truth(batch, target).scores.sum(1)
        assert torch.allclose(total, sign * model(batch).logits[:, 0])
    left_out = LeaveOneOut("logit")(model, batch, torch.ones(2, dtype=torch.int64)).scores
    assert torch.allclose(left_out, model.ground_truth(batch, torch.ones(2)).scores)
