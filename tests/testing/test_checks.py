"""The checks of heedful.testing: each fault is found under its own law, nothing raises, and correct code passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful import catalogue
from heedful.attributions.controls import Random
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.text_corpora import SST
from heedful.data.words import Words
from heedful.measures.erasure import FAITHFULNESS_MEASURES, Direction
from heedful.models.attentive import LinearBagOfWords, random_texts
from heedful.seeding import sample_uniform
from heedful.tasks import BinaryClassification
from heedful.testing import check_corpus, check_measure, check_method, check_model
from heedful.testing.checks import CheckReport, CheckResult
from heedful.types import SPLITS, Attribution, Batch, Corpus, Example, Method, Model, Splits, Trace, UserError

RUNS = "runs"
FINITE = "scores are finite, one per token"
OFF = "special tokens and padding score zero"
AGAIN = "repeated calls give equal scores"
HASH = "scores do not depend on hash()"
COMPANY = "the rest of the batch and padding change nothing"
MODEL = "the model is unchanged"
FAILING = "the model is unchanged after an error"
SIGN = "positive scores support the target"
DIFFER = "scores differ between targets"
REFUSED = "a model that hides its attention is refused"


def failed(findings: CheckReport) -> set[str]:
    return {finding.law for finding in findings.results if not finding.passed}


def test_a_method_is_checked_for_every_law() -> None:
    findings = check_method(catalogue.METHODS["gradient"]())
    assert findings, findings
    assert [finding.law for finding in findings.results] == [
        RUNS,
        FINITE,
        OFF,
        AGAIN,
        HASH,
        COMPANY,
        MODEL,
        FAILING,
        SIGN,
        DIFFER,
        REFUSED,
    ]


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


def seeded_from_hash(model: Model, batch: Batch, target: Tensor) -> Attribution:
    seeds = torch.tensor([hash(uid) % 2**31 for uid in batch.uids])
    scores = sample_uniform(seeds, 1, batch.mask.shape[1])[:, 0].float()
    return Attribution(scores * batch.content_mask, batch.content_mask)


def reversed_signs(model: Model, batch: Batch, target: Tensor) -> Attribution:
    found = good(model, batch, target)
    return replace(found, scores=-found.scores)


@pytest.mark.parametrize(
    ("method", "laws", "words"),
    [
        (infinite, {FINITE, COMPANY}, "not finite"),
        (flattened, {FINITE, OFF, COMPANY}, "scores have shape (3,)"),
        (special, {OFF}, "have a score"),
        (drawing, {AGAIN, COMPANY}, "scores differ by up to"),
        (gregarious, {COMPANY}, "text-0 alone and in a batch differ"),
        (heavy_handed, {MODEL, FAILING}, "weights changed"),
        (waking, {MODEL, FAILING}, "training mode changed"),
        (grasping, {MODEL}, "gradients changed"),
        (gambling, {MODEL, FAILING}, "Python's random state changed"),
        (hooking, {FAILING}, "hooks changed after an error"),
        (hooking_later, {FAILING}, "hooks changed after an error in call"),
        (seeded_from_hash, {HASH}, "differ between processes"),
        (reversed_signs, {SIGN}, "have the wrong sign"),
    ],
)
def test_each_fault_is_found_under_its_own_name(method: Method, laws: set[str], words: str) -> None:
    state = random.getstate()
    findings = check_method(method)
    random.setstate(state)
    assert not findings
    assert laws <= failed(findings), findings
    # Most of them draw scores that are the same for every target.
    assert failed(findings) - laws - {DIFFER} <= ({SIGN, AGAIN} if method in (infinite, flattened) else set()), findings
    assert words in str(findings)


def test_a_method_that_breaks_is_reported_and_not_raised() -> None:
    def broken(model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise KeyError("no such layer")

    findings = check_method(broken)
    assert findings.results == (CheckResult(RUNS, passed=False, reason=findings.results[0].reason),)
    assert "fails on BiLSTM (KeyError: 'no such layer')" in findings.results[0].reason
    assert "works on no model" in str(findings)


def test_a_method_that_gives_something_else_does_not_run() -> None:
    findings = check_method(lambda model, batch, target: batch.mask)
    assert "returned Tensor, not an Attribution" in str(findings)
    assert not findings


def test_a_model_may_be_refused_in_plain_words_but_not_every_model() -> None:
    def pooled_only(model: Model, batch: Batch, target: Tensor) -> Attribution:
        if model(batch).attention.shape[1] > 1:
            raise UserError("only for models with one layer")
        return LeaveOneOut()(model, batch, target)

    findings = check_method(pooled_only)
    assert findings, findings
    assert "refuses transformer (only for models with one layer)" in findings.results[0].reason
    assert "transformer" not in findings.results[1].reason

    def choosy(model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise UserError("only for models of my own")

    assert not check_method(choosy)


def test_an_interrupt_is_not_swallowed() -> None:
    def stopping(model: Model, batch: Batch, target: Tensor) -> Attribution:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_method(stopping)


def test_findings_read_as_lines_also_where_pytest_prints_them() -> None:
    findings = CheckReport(
        "mine", (CheckResult("law", passed=True, reason="so"), CheckResult("other", passed=False, reason="because"))
    )
    assert str(findings) == repr(findings) == "mine:\n  passed  law: so\n  FAILED  other: because"
    assert not findings
    assert CheckReport("mine", findings.results[:1])


def test_a_check_draws_nothing_from_the_generators_of_the_process() -> None:
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    check_method(Random())
    check_measure(FAITHFULNESS_MEASURES["deletion_auc"])
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


@pytest.mark.parametrize("name", FAITHFULNESS_MEASURES)
def test_measures_of_faithfulness_separate_the_truth_from_chance_and_from_its_reverse(name: str) -> None:
    findings = check_measure(FAITHFULNESS_MEASURES[name])
    assert findings, findings
    assert len(findings.results) == 3
    assert findings.name == name


def test_a_measure_that_points_the_wrong_way_is_found() -> None:
    turned = replace(FAITHFULNESS_MEASURES["aopc_comprehensiveness"], direction="lower")
    assert failed(check_measure(turned)) == {
        "ranks the true attribution above random scores",
        "ranks the true attribution above reversed scores",
    }


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
    assert "ranks the true attribution above reversed scores" in failed(blind)
    assert str(blind).startswith("Sizes(direction='higher'):")


def test_measures_that_fail_or_give_another_shape_are_reported() -> None:
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


class FaultyBag(LinearBagOfWords):
    """A linear bag of words with one fault."""

    fault = ""

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        if self.fault == "ignores attention":
            attention = None
        if self.fault == "changes its weights":
            self.table.data[6] += 0.1
        trace = super().forward(batch, embeddings=embeddings, attention=attention)
        scores = torch.zeros_like(trace.attention) if attention is None else None
        logits = trace.logits + 0.0
        if self.fault == "mixes rows":
            logits = logits + logits.mean()
        if self.fault == "counts padding":
            logits = logits + 0.1 * batch.mask.shape[1]
        weights = trace.attention * 2 if self.fault == "sums to two" else trace.attention
        return replace(trace, logits=logits, scores=scores, attention=weights)


def faulty(fault: str) -> Callable[[int], Model]:
    def build(seed: int) -> Model:
        model = FaultyBag.random(BinaryClassification(), seed).double()
        other = FaultyBag(model.task, model.table.detach(), model.direction)
        other.fault = fault
        return other

    return build


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("", set()),
        ("ignores attention", {"attention passed in is used", "gradients reach embeddings and attention"}),
        ("changes its weights", {"a forward pass leaves no trace"}),
        ("mixes rows", {"the rest of the batch changes nothing"}),
        ("counts padding", {"more padding changes nothing", "the rest of the batch changes nothing"}),
        ("sums to two", {"attention is a distribution over its support"}),
    ],
)
def test_each_fault_of_a_model_is_found(fault: str, laws: set[str]) -> None:
    report = check_model(faulty(fault), random_texts((5, 3, 7)), lambda batch: batch.content_mask[:, None, None, None])
    assert laws <= failed(report), report
    assert bool(report) == (not fault), report


def test_a_model_that_cannot_be_built_fails_every_law() -> None:
    def build(seed: int) -> Model:
        raise ZeroDivisionError("no seed")

    report = check_model(build, random_texts((5, 3)))
    assert len(failed(report)) == len(report.results) == 13
    assert "ZeroDivisionError: no seed" in str(report)


@dataclass(frozen=True)
class TwoWords(Corpus):
    """Two words a text; `change` puts a fault into the first test example."""

    change: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        return "two-words"

    @property
    def tokenization(self) -> Words:
        return Words()

    def digest(self, data: Path) -> str:
        return "two-words"

    def read(self, data: Path) -> Splits:
        train, dev, test = (
            tuple(Example(f"{split}-{n}", ("good film",), n % 2, (True, False)) for n in range(3)) for split in SPLITS
        )
        if self.change:
            test = (replace(test[0], **dict(self.change)), *test[1:])  # type: ignore[arg-type]
        return Splits(BinaryClassification(), ("no", "yes"), train, dev, test)


@pytest.mark.parametrize(
    ("field", "value", "law"),
    [
        ("uid", "train-0", "uids are unique"),
        ("label", 2, "labels fit the task"),
        ("label", None, "labels fit the task"),
        ("candidates", (1,), "labels fit the task"),
        ("rationale", (True,), "rationales and ground truth have one entry per word"),
        ("ground_truth", (1.0, 2.0, 3.0), "rationales and ground truth have one entry per word"),
    ],
)
def test_each_fault_of_a_corpus_is_found(field: str, value: object, law: str) -> None:
    assert check_corpus(TwoWords(), Path("nowhere"))
    report = check_corpus(TwoWords(((field, value),)), Path("nowhere"))
    assert failed(report) == {law}, report


def test_a_corpus_that_cannot_be_read_is_reported() -> None:
    report = check_corpus(SST(), Path("nowhere"))
    assert [result.law for result in report.results] == ["reads"]
    assert not report
