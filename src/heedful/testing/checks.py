"""Checks for what others bring: does a method keep the laws of explainers, does a measure know truth from chance?

`check_explainer` and `check_measure` try everything on tiny built-in models, raise nothing, and give back findings in
plain lines. In a test of one's own a single line is enough: `assert check_explainer(MyMethod())`.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from types import FunctionType, TracebackType
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from heedful.measures.bootstrap import bootstrap_interval
from heedful.measures.erasure import Direction, FaithfulnessMeasure
from heedful.models.attentive import Additive, Attentive
from heedful.models.bag_of_words import VOCAB_SIZE, LinearBagOfWords, random_texts
from heedful.models.encoders import BiLSTM
from heedful.models.transformer import TinyTransformer
from heedful.tasks import BinaryClassification
from heedful.trials.faithfulness import FaithfulnessMetric
from heedful.types import Attribution, Batch, Method, Model, UserError

TOLERANCE = 1e-5
"""How far scores may differ, as a share of the largest, between a text alone and in company."""
MAX_FAILURE_POINTS = 6
"""At so many places at most a model is made to fail."""


@dataclass(frozen=True)
class CheckResult:
    """One law, whether it was kept, and why that is believed."""

    law: str
    passed: bool
    reason: str

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.law}: {self.reason}"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """All findings about one method or measure; true where every law was kept."""

    name: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every law was kept."""
        return all(finding.passed for finding in self.results)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join((f"{self.name}:", *(f"  {finding}" for finding in self.results)))

    # pytest prints the repr of what was asserted: the lines are what its reader needs.
    __repr__ = __str__


class AttributionMeasure(Protocol):
    """A measure of faithfulness: one number per text for an explanation of a model, and which numbers are better."""

    @property
    def direction(self) -> Direction:
        """Which numbers are better: "higher" or "lower"."""
        ...

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        """Numbers `[batch]`, NaN where undefined, for scores of the outputs `target` `[batch]`."""
        ...


@dataclass(frozen=True)
class _Case:
    """A fresh model with texts to explain."""

    model: Model
    batch: Batch
    target: Tensor


def _build_bag() -> Model:
    return LinearBagOfWords.random(BinaryClassification())


def _build_bilstm() -> Model:
    generator = Generator().manual_seed(0)
    table = torch.randn(VOCAB_SIZE, 5, generator=generator)
    return Attentive(BiLSTM(3), Additive()).build(BinaryClassification(), table, generator)


def _build_transformer() -> Model:
    plan = TinyTransformer("bert", vocab_size=VOCAB_SIZE)
    return plan.build(BinaryClassification(), None, Generator().manual_seed(0))


BAG_OF_WORDS = "a bag of words"
_MODEL_BUILDERS: dict[str, Callable[[], Model]] = {
    BAG_OF_WORDS: _build_bag,
    "a small BiLSTM": _build_bilstm,
    "a small transformer": _build_transformer,
}


def _make_case(name: str) -> _Case:
    return _Case(_MODEL_BUILDERS[name]().eval(), random_texts((5, 3, 7)), torch.tensor([0, 1, 1]))


class _CaughtError:
    """Lets other people's code fail: the error is kept as a plain line, and the check goes on."""

    error: str = ""
    is_user_error: bool = False

    def __enter__(self) -> _CaughtError:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        first = (str(error).strip().splitlines() or [""])[0]
        self.is_user_error = isinstance(error, UserError)
        self.error = first if self.is_user_error else f"{type(error).__name__}: {first}"
        return True


Law = Callable[[Method, _Case], str]
"""Says what is wrong with a method on a case; nothing where all is well."""


def check_explainer(method: Method) -> CheckReport:
    """Whether a method keeps the laws of explainers, on three tiny models.

    A model that the method refuses by a `UserError` is left out; a method that refuses all of them fails.

    >>> from heedful.attributions.attention import RawAttention
    >>> check_explainer(RawAttention()).passed
    True
    """
    runs, usable = _check_runs(method)
    laws = [_check_law(method, words, law, usable) for words, law in _LAWS.items() if usable]
    if BAG_OF_WORDS in usable:
        laws.append(_check_law(method, "positive scores speak for the target", _check_sign, [BAG_OF_WORDS]))
    return CheckReport(_display_name(method), (runs, *laws))


def _check_runs(method: Method) -> tuple[CheckResult, list[str]]:
    usable, told, broken = [], [], False
    for name in _MODEL_BUILDERS:
        case = _make_case(name)
        with _CaughtError() as watched:
            found = method(case.model, case.batch, case.target)
            if not isinstance(found, Attribution):
                raise TypeError(f"gave {type(found).__name__}, not an Attribution")
            usable.append(name)
        if watched.error:
            told.append(f"{name} {'is refused' if watched.is_user_error else 'breaks it'} ({watched.error})")
        broken |= bool(watched.error) and not watched.is_user_error
    told += [f"works on {', '.join(usable)}"] if usable else ["works on no model"]
    return CheckResult("runs", bool(usable) and not broken, "; ".join(told)), usable


def _check_law(method: Method, words: str, law: Law, names: Iterable[str]) -> CheckResult:
    wrong = []
    for name in names:
        with _CaughtError() as watched:
            problem = law(method, _make_case(name))
            wrong += [f"{name}: {problem}"] if problem else []
        wrong += [f"{name}: {watched.error}"] if watched.error else []
    return CheckResult(
        words, not wrong, "; ".join(wrong) or (f"on {', '.join(names)}" if names else "nothing to try it on")
    )


def _check_finite(method: Method, case: _Case) -> str:
    scores = method(case.model, case.batch, case.target).scores
    if scores.shape != case.batch.mask.shape:
        return f"scores have the shape {tuple(scores.shape)}, the texts {tuple(case.batch.mask.shape)}"
    bad = int((~torch.isfinite(scores)).sum())
    return f"{bad} scores are no finite numbers" if bad else ""


def _check_zero_off_content(method: Method, case: _Case) -> str:
    found = method(case.model, case.batch, case.target)
    if not torch.equal(found.mask, case.batch.content_mask):
        return "the mask is not batch.scored"
    off = int((found.scores[~case.batch.content_mask] != 0).sum())
    return f"{off} special symbols or padding units have a score" if off else ""


def _check_deterministic(method: Method, case: _Case) -> str:
    scores = []
    with torch.random.fork_rng():
        for seed in (1, 2):
            # Not by the generators of the process: a method draws from its own seed and the text's uid.
            torch.default_generator.manual_seed(seed)
            scores.append(method(case.model, case.batch, case.target).scores)
    return (
        ""
        if torch.equal(scores[0], scores[1])
        else f"scores differ by up to {_max_difference(scores[0], scores[1]):.2g}"
    )


def _check_batch_invariance(method: Method, case: _Case) -> str:
    together = method(case.model, case.batch, case.target).scores
    largest = max(float(together.abs().max()), torch.finfo(torch.float32).tiny)
    for row in range(len(case.batch)):
        index = torch.tensor([row])
        alone = method(case.model, case.batch.rows(index), case.target[index]).scores[0]
        gap = _max_difference(alone, together[row, : len(alone)]) / largest
        if not gap <= TOLERANCE:
            return (
                f"{case.batch.uids[row]} has other scores alone than beside longer texts, by {gap:.2g} of the largest"
            )
    return ""


def _check_model_unchanged(method: Method, case: _Case) -> str:
    before = _model_state(case.model)
    method(case.model, case.batch, case.target)
    return _describe_changes(before, _model_state(case.model), "")


def _check_model_unchanged_after_error(method: Method, case: _Case) -> str:
    """The model fails at some of all the calls of its modules that a run makes, each time a fresh copy of it."""
    with _fail_at_call(None, copy.deepcopy(case.model)) as (model, calls):
        method(model, case.batch, case.target)
    # A method that reads nothing has one try, at which nothing fails.
    for place in sorted(
        {1 + round(step * max(0, len(calls) - 1) / (MAX_FAILURE_POINTS - 1)) for step in range(MAX_FAILURE_POINTS)}
    ):
        with _fail_at_call(place, copy.deepcopy(case.model)) as (model, _):
            before = _model_state(model)
            with _CaughtError():
                method(model, case.batch, case.target)
            if problem := _describe_changes(
                before, _model_state(model), f" after an error in call {place} of {len(calls)}"
            ):
                return problem
    return ""


@contextmanager
def _fail_at_call(place: int | None, model: Model) -> Iterator[tuple[Model, list[None]]]:
    """The model, whose modules' call with this number fails; and a list that grows with each call."""
    calls: list[None] = []

    def stop(*_: object) -> None:
        calls.append(None)
        if len(calls) == place:
            raise RuntimeError("stopped on purpose")

    for module in model.modules():
        module.register_forward_hook(stop)
    yield model, calls


def _check_sign(method: Method, case: _Case) -> str:
    """Only where a method gives negative scores at all: others tell sizes, which have no direction."""
    assert isinstance(case.model, LinearBagOfWords)
    found = [(torch.full((3,), label), case.batch) for label in (0, 1)]
    pairs = [(method(case.model, batch, target), case.model.ground_truth(batch, target)) for target, batch in found]
    if not any(bool((ours.scores < 0).any()) for ours, _ in pairs):
        return ""
    wrong = sum(int((ours.scores.sign() * true.scores.sign() < 0).sum()) for ours, true in pairs)
    every = sum(int(true.mask.sum()) for _, true in pairs)
    return f"{wrong} of {every} scores have the wrong sign: positive is what speaks for the target" if wrong else ""


_LAWS: dict[str, Law] = {
    "scores are finite numbers, one per unit": _check_finite,
    "special symbols and padding score zero": _check_zero_off_content,
    "the same call gives the same scores": _check_deterministic,
    "padding and company change nothing": _check_batch_invariance,
    "the model is left as it was": _check_model_unchanged,
    "the model is left as it was when it fails": _check_model_unchanged_after_error,
}


def _model_state(model: Model) -> dict[str, object]:
    """All that a method must leave as it was, in forms that can be compared."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "the mode": [module.training for module in model.modules()],
        "hooks": [len(vars(module)[kind]) for module in model.modules() for kind in hooks],
        "gradients": {name: each.grad for name, each in model.named_parameters() if each.grad is not None},
        "requires_grad": [each.requires_grad for each in model.parameters()],
        "torch's random state": {"state": torch.get_rng_state()},
        "Python's random state": random.getstate(),
        "NumPy's random state": str(np.random.get_state()),  # noqa: NPY002 - looked at, not drawn from
        "whether gradients are kept": torch.is_grad_enabled(),
    }


def _describe_changes(before: dict[str, object], after: dict[str, object], when: str) -> str:
    wrong = [name for name in before if not _is_equal(before[name], after[name])]
    return f"{', '.join(wrong)} changed{when}" if wrong else ""


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    return one == other


def _max_difference(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def _display_name(thing: object) -> str:
    if isinstance(thing, FunctionType):
        return thing.__name__
    return repr(thing) if is_dataclass(thing) else type(thing).__name__


def check_measure(measure: FaithfulnessMeasure | AttributionMeasure) -> CheckReport:
    """Whether a measure ranks the truth above random scores and above the truth turned round, on an additive model.

    Forty texts of a linear bag of words, explained for the class that it predicts; a difference counts where its 95 %
    interval, from resampled texts, leaves zero out.

    >>> from heedful.measures.erasure import MEASURES
    >>> print(check_measure(MEASURES["aopc_comprehensiveness"]).passed)
    True
    """
    judge: AttributionMeasure = FaithfulnessMetric(measure) if isinstance(measure, FaithfulnessMeasure) else measure
    name = measure.name if isinstance(measure, FaithfulnessMeasure) else _display_name(measure)
    with _CaughtError() as watched:
        return CheckReport(name, tuple(_check_ranking(judge)))
    return CheckReport(name, (CheckResult("runs", passed=False, reason=watched.error),))


def _check_ranking(judge: AttributionMeasure) -> Iterator[CheckResult]:
    model, batch = LinearBagOfWords.random(BinaryClassification()).eval(), random_texts(range(5, 45), seed=1)
    target = (model(batch).logits.detach()[:, 0] > 0).long()
    truth = model.ground_truth(batch, target)
    drawn = torch.randn(truth.scores.shape, generator=Generator().manual_seed(2), dtype=torch.float64)
    rivals = {"random scores": drawn * truth.mask, "the truth turned round": -truth.scores}
    right = judge(model, batch, target, truth)
    shaped = right.shape == (len(batch),)
    told = f"{int(torch.isfinite(right).sum())} of {len(batch)} texts" if shaped else f"shape {tuple(right.shape)}"
    yield CheckResult("gives a number for each text", shaped and bool(torch.isfinite(right).all()), told)
    if not shaped:
        return
    for name, scores in rivals.items():
        wrong = judge(model, batch, target, Attribution(scores, truth.mask))
        yield _compare_with_control(judge.direction, right.double(), wrong.double(), name)


def _compare_with_control(direction: Direction, right: Tensor, wrong: Tensor, name: str) -> CheckResult:
    law, both = f"ranks the truth above {name}", torch.isfinite(right) & torch.isfinite(wrong)
    if int(both.sum()) < 2:
        return CheckResult(law, passed=False, reason="it is undefined for nearly every text")
    sign = 1.0 if direction == "higher" else -1.0
    generator = Generator().manual_seed(0)
    interval = bootstrap_interval(sign * (right[both] - wrong[both]), generator=generator)
    means = f"mean {float(right[both].mean()):.3f} against {float(wrong[both].mean()):.3f}, {direction} is better"
    return CheckResult(law, interval.low > 0, f"{means}; better by {interval.low:.3f} to {interval.high:.3f}")
