"""Checks for your own methods, measures, models and corpora; heedful's own tests run them too.

Each check runs all its laws, raises nothing and returns a `CheckReport` that is true if every law holds. In a test one
line is enough: `assert check_method(MyMethod())`. A law is a function that yields problems; the tables
`_METHOD_LAWS`, `_MODEL_LAWS`, `_BUILD_LAWS`, `_PADDING_LAWS` and `_CORPUS_LAWS` say what each checks.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Generator, Tensor, nn

from heedful.attributions.method import (
    change_option,
    feature_owners,
    is_stochastic,
    option_values,
    tags_of,
    with_other_seed,
)
from heedful.capabilities import check_attention
from heedful.measures.bootstrap import bootstrap_interval
from heedful.measures.erasure import Direction, FaithfulnessMeasure
from heedful.models.attentive import VOCAB_SIZE, Additive, Attentive, LinearBagOfWords, random_texts
from heedful.models.encoders import BiLSTM
from heedful.models.small_transformers import SmallTransformer
from heedful.segmentation import Break
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.trials.faithfulness import FaithfulnessMetric
from heedful.types import (
    SPLITS,
    Attribution,
    Batch,
    Corpus,
    Method,
    Model,
    NotApplicable,
    Splits,
    Trace,
    UserError,
    first_line,
    pool_by_word,
)

_TOLERANCE = 1e-5
"""Largest difference between scores of a text alone and in a batch, relative to the largest score."""
STABLE_SEED = "hash() of a text is another number in each; seed from derive_seed(...) of heedful.store.recipe"
MAX_FAILURE_POINTS = 6
"""Number of module calls at which a model is made to fail."""


@dataclass(frozen=True)
class CheckResult:
    """One law, whether it holds, and the evidence."""

    law: str
    passed: bool
    reason: str

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.law}: {self.reason}"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The results of all laws; true if every law holds."""

    name: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every law holds."""
        return all(result.passed for result in self.results)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join((f"{self.name}:", *(f"  {result}" for result in self.results)))

    # pytest prints the repr of an asserted value.
    __repr__ = __str__


def run_law(law: str, evidence: str, check: Callable[..., Iterable[str]], *arguments: object) -> CheckResult:
    """The result of a law whose check lists problems; an exception is a problem."""
    try:
        problems = list(check(*arguments))
    except Exception as error:  # noqa: BLE001 - the code under check may raise anything
        problems = [_describe(error)]
    return CheckResult(law, not problems, "; ".join(problems) or evidence)


def _describe(error: Exception) -> str:
    line = first_line(error)
    return line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"


def _display_name(thing: object) -> str:
    if isinstance(thing, FunctionType):
        return thing.__name__
    return repr(thing) if is_dataclass(thing) else type(thing).__name__


MethodLaw = Callable[[Method, Model, Batch, Tensor], Iterator[str]]
"""The problems of a method on a model with texts and targets to explain."""


def _toy_cases() -> dict[str, tuple[Model, Batch]]:
    task, generator = BinaryClassification(), Generator().manual_seed(0)
    table = torch.randn(VOCAB_SIZE, 5, generator=generator)
    transformer = SmallTransformer(2, 2, 16, initializer_range=0.2)  # the usual .02 gives nearly uniform attention
    models: dict[str, Model] = {
        "bag of words": LinearBagOfWords.random(task),
        "BiLSTM": Attentive(BiLSTM(3), Additive()).build(task, table, generator),
        "transformer": transformer.build(MulticlassClassification(3), table, Generator().manual_seed(0)),
    }
    return {name: (model.eval(), random_texts((5, 3, 7))) for name, model in models.items()}


def check_method(method: Method, cases: Mapping[str, tuple[Model, Batch]] | None = None) -> CheckReport:
    """Check that a method obeys the laws of attributions and does what its tags say (`heedful.attributions.method`).

    A model that the method refuses by a `UserError` is left out; a method that refuses all of them fails. What a tag
    says that can happen, for instance that scores differ between classes, must happen on one of the models.

    Args:
        cases: models by name, each with a batch that it reads; None takes three toy models.

    >>> from heedful.attributions.attention import RawAttention
    >>> check_method(RawAttention()).passed
    True
    """
    chosen = _toy_cases() if cases is None else cases

    def case(name: str) -> tuple[Model, Batch, Tensor]:
        # A fresh copy of the model: a method that breaks one law must not fail the next for the same reason.
        model, batch = chosen[name]
        return copy.deepcopy(model), batch, torch.arange(1, len(batch) + 1) // 2 % 2

    def on_each(check: MethodLaw, names: list[str]) -> Iterator[str]:
        for name in names:
            result = run_law("", "", check, method, *case(name))
            yield from () if result.passed else (f"{name}: {result.reason}",)

    usable, problems, works = [], [], True
    for name in chosen:
        try:
            attribution: object = method(*case(name))
            if not isinstance(attribution, Attribution):
                raise TypeError(f"returned {type(attribution).__name__}, not an Attribution")
            usable.append(name)
        except UserError as error:
            problems.append(f"refuses {name} ({error})")
        except Exception as error:  # noqa: BLE001 - the code under check may raise anything
            problems.append(f"fails on {name} ({_describe(error)})")
            works = False
    reason = "; ".join((*problems, f"works on {', '.join(usable) or 'no model'}"))
    results, evidence = [CheckResult("runs", works and bool(usable), reason)], f"on {', '.join(usable)}"
    for law, check in _METHOD_LAWS.items():
        linear = [name for name in usable if isinstance(chosen[name][0], LinearBagOfWords)]
        names = linear if check is _check_sign else usable
        results += [run_law(law, evidence, on_each, check, names)] if names else []
    for law, check_tag in _tag_laws(method).items() if usable else ():
        results.append(run_law(law, evidence, check_tag, method, [case(name) for name in usable]))
    return CheckReport(_display_name(method), tuple(results))


def _check_finite(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    scores = method(model, batch, target).scores
    if scores.shape != batch.mask.shape:
        yield f"scores have shape {tuple(scores.shape)}, the texts {tuple(batch.mask.shape)}"
    elif not torch.isfinite(scores).all():
        yield f"{int((~torch.isfinite(scores)).sum())} scores are not finite"


def _check_zero_elsewhere(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    attribution = method(model, batch, target)
    special_tokens = is_dataclass(method) and vars(method).get("special_tokens") is True
    if not special_tokens and not torch.equal(attribution.mask, batch.content_mask):
        yield "the mask is not batch.content_mask"
    off = int((attribution.scores[~attribution.mask] != 0).sum())
    if off:
        yield f"{off} special tokens or padding positions have a score"


def _check_deterministic(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    scores = []
    with torch.random.fork_rng():
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            scores.append(method(model, batch, target).scores)
    if not torch.equal(*scores):
        yield f"scores differ by up to {float((scores[0] - scores[1]).abs().max()):.2g}"


@contextmanager
def other_hash(thing: object, salt: int) -> Iterator[None]:
    """`hash` of the modules that define a class, or a function, gives other numbers for texts.

    Python draws these numbers anew in every process: whoever seeds from them gets other results in the next one.
    """
    kinds = type(thing).__mro__ if not isinstance(thing, FunctionType) else (thing,)
    names = {kind.__module__ for kind in kinds if kind.__module__.split(".")[0] not in sys.stdlib_module_names}
    scopes = [vars(sys.modules[name]) for name in sorted(names) if name in sys.modules]
    before = [scope.get("hash", hash) for scope in scopes]

    def salted(value: object) -> int:
        return hash((salt, hash(value)))

    try:
        for scope in scopes:
            scope["hash"] = salted
        yield
    finally:
        for scope, function in zip(scopes, before, strict=True):
            if function is hash:
                del scope["hash"]
            else:
                scope["hash"] = function


def _check_hash_independence(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    def scores(salt: int) -> Tensor:
        with other_hash(method, salt):
            return method(model, batch, target).scores

    # Scores that differ anyway are the fault of another law.
    first = scores(1)
    if not torch.equal(first, scores(2)) and torch.equal(first, scores(1)):
        yield f"scores would differ between processes: {STABLE_SEED}"


def _check_batch_invariance(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    together = method(model, batch, target).scores
    largest = max(float(together.abs().max()), torch.finfo(torch.float32).tiny)
    for row in range(len(batch)):
        index = torch.tensor([row])
        alone = method(model, batch.rows(index), target[index]).scores[0]
        difference = float((alone - together[row, : len(alone)]).abs().max()) / largest
        if not difference <= _TOLERANCE:
            yield f"scores of {batch.uids[row]} alone and in a batch differ by {difference:.2g} of the largest"
            return


def _check_model_unchanged(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    before = _model_state(model)
    method(model, batch, target)
    yield from _changes(before, _model_state(model))


def _check_model_unchanged_after_error(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    """The model fails at some of the module calls that a run makes."""
    calls = fail_at = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise RuntimeError("failed by check_method")

    unused = copy.deepcopy(model)
    for module in (*model.modules(), *unused.modules()):
        module.register_forward_hook(count)
    method(unused, batch, target)
    steps = torch.linspace(1, max(1, calls), MAX_FAILURE_POINTS).round().long().tolist()
    for step in sorted(set(steps)):
        before = _model_state(model)
        calls, fail_at = 0, step
        with suppress(Exception):
            method(model, batch, target)
        problems = [f"{change} after an error in call {step}" for change in _changes(before, _model_state(model))]
        if problems:
            yield from problems
            return


def _check_sign(method: Method, model: Model, batch: Batch, target: Tensor) -> Iterator[str]:
    """Only for methods with negative scores: others give magnitudes."""
    assert isinstance(model, LinearBagOfWords)
    wrong = negative = 0
    for label in (0, 1):
        target = torch.full_like(target, label)
        scores = method(model, batch, target).scores
        truth = model.ground_truth(batch, target).scores
        wrong += int((scores.sign() * truth.sign() < 0).sum())
        negative += int((scores < 0).sum())
    if wrong and negative:
        yield f"{wrong} scores have the wrong sign"


_METHOD_LAWS: dict[str, MethodLaw] = {
    "scores are finite, one per token": _check_finite,
    "special tokens and padding score zero": _check_zero_elsewhere,
    "repeated calls give equal scores": _check_deterministic,
    "scores do not depend on hash()": _check_hash_independence,
    "the rest of the batch and padding change nothing": _check_batch_invariance,
    "the model is unchanged": _check_model_unchanged,
    "the model is unchanged after an error": _check_model_unchanged_after_error,
    "positive scores support the target": _check_sign,
}


TagLaw = Callable[[Method, Sequence[tuple[Model, Batch, Tensor]]], Iterator[str]]
"""The problems of a method with one of its tags on several models, each with texts and targets."""


def _tag_laws(method: Method) -> dict[str, TagLaw]:
    """The laws that follow from the tags of a method; those that promise something must see it on one model."""
    tags = tags_of(method)
    laws: dict[str, TagLaw] = {}
    if not tags.signed:
        laws["scores without a sign are never negative"] = _check_unsigned
    if tags.target_specific:
        laws["scores differ between targets"] = _check_target_specific
    else:
        laws["scores are the same for every target"] = _check_same_for_targets
    if tags.needs_attention:
        laws["a model that hides its attention is refused"] = _check_needs_attention
    else:
        laws["a model that hides its attention is explained"] = _check_needs_no_attention
    if any(option_values(method, "feature")):
        laws["tokens of a sentence that is removed as one have equal scores"] = _check_sentences
    if is_stochastic(method):
        laws["another seed gives other scores"] = _check_other_seed
    return laws


def _check_unsigned(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    negative = sum(int((method(*case).scores < 0).sum()) for case in cases)
    if negative:
        yield f"{negative} scores are negative: give tags with signed=True"


def _target_differences(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[tuple[Model, bool]]:
    """Each classifier, and whether the scores of its first two classes differ."""
    for model, batch, target in cases:
        if model.task.num_classes > 1:
            first, second = (method(model, batch, torch.full_like(target, label)).scores for label in (0, 1))
            yield model, not torch.equal(first, second)


def _check_target_specific(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    differences = list(_target_differences(method, cases))
    # The size of a change of one of two probabilities is that of the other.
    comparable = [model for model, _ in differences if tags_of(method).signed or model.task.num_classes > 2]
    if comparable and not any(differs for _, differs in differences):
        yield "two classes have the same scores: give tags with target_specific=False"


def _check_same_for_targets(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    if any(differs for _, differs in _target_differences(method, cases)):
        yield "two classes have other scores: give tags with target_specific=True"


class _Hidden(Model):
    """A model that neither shows its attention nor lets it be replaced."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.task, self.attention_refusal = model, model.task, "it is hidden"
        self.embedding_refusal, self.deciding_row = model.embedding_refusal, model.deciding_row
        self.has_rows_first, self.tokens_per_pass = model.has_rows_first, model.tokens_per_pass

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        if attention is not None:
            check_attention(self)
        trace = self.model(batch, embeddings=embeddings)
        return replace(trace, attention=trace.attention[:, :0], scores=None)


def _check_needs_attention(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    for model, batch, target in cases:
        with suppress(UserError):
            method(_Hidden(model), batch, target)
            yield "it explains a model that hides its attention: give tags with another value of reads"
            return


def _check_needs_no_attention(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    for model, batch, target in cases:
        try:
            method(_Hidden(model), batch, target)
        except NotApplicable as error:
            yield f"{error}: give tags with reads='attention'"
            return
        except UserError:
            continue  # it needs more of a model than attention


def _check_sentences(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    """Of texts of two words a sentence."""
    by_sentence = change_option(method, "feature", lambda _: "sentence")
    for model, batch, target in cases:
        whole = replace(batch, breaks=_sentences_of_two_words(batch))
        scores, owners = by_sentence(model, whole, target).scores, feature_owners(whole, "sentence")
        means, _ = pool_by_word(scores, owners, "mean")
        expected = means.gather(1, owners.clamp(min=0)).masked_fill(owners < 0, 0)
        if not _close(scores.masked_fill(owners < 0, 0), expected):
            yield "the tokens of a sentence have different scores"


def _sentences_of_two_words(batch: Batch) -> Tensor:
    """What ends behind each word `[batch word]`: every second word ends a sentence, and the last one of a part."""
    breaks = (
        torch.arange(max(1, int(batch.words.max()) + 1)).remainder(2).mul(int(Break.SENTENCE)).repeat(len(batch), 1)
    )
    for part in (0, 1):
        last = batch.words.masked_fill(batch.segments != part, -1).amax(1)
        breaks[(last >= 0).nonzero().flatten(), last[last >= 0]] = int(Break.PART)
    return breaks


def _check_other_seed(method: Method, cases: Sequence[tuple[Model, Batch, Tensor]]) -> Iterator[str]:
    other = with_other_seed(method)
    if all(torch.equal(method(*case).scores, other(*case).scores) for case in cases):
        yield "another seed gives the same scores: leave the option seed out"


def _model_state(model: Model) -> dict[str, object]:
    """What a method or a forward pass must leave unchanged, in comparable form."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "training mode": [module.training for module in model.modules()],
        "hooks": [len(vars(module)[kind]) for module in model.modules() for kind in hooks],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "gradients": {
            name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
        },
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "torch's random state": {"state": torch.get_rng_state()},
        "Python's random state": random.getstate(),
        "NumPy's random state": [
            np.asarray(part).tobytes()
            for part in np.random.get_state()  # noqa: NPY002 - read, not drawn from
        ],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def _changes(before: dict[str, object], after: dict[str, object]) -> Iterator[str]:
    for name, one in before.items():
        other = after[name]
        if isinstance(one, dict) and isinstance(other, dict):
            equal = one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
        else:
            equal = one == other
        if not equal:
            yield f"{name} changed"


class AttributionMeasure(Protocol):
    """A faithfulness measure: one number per text for an attribution of a model."""

    @property
    def direction(self) -> Direction:
        """Whether "higher" or "lower" numbers are better."""
        ...

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        """Numbers `[batch]`, NaN where undefined, for an attribution of the outputs `target` `[batch]`."""
        ...


def check_measure(measure: FaithfulnessMeasure | AttributionMeasure) -> CheckReport:
    """Check that a measure ranks the true attribution above random and above reversed scores, on a linear model.

    Forty texts of a linear bag of words are explained for the predicted class; the true attribution must be better by a
    95 % bootstrap interval that excludes zero, or on every text.

    >>> from heedful.measures.erasure import FAITHFULNESS_MEASURES
    >>> check_measure(FAITHFULNESS_MEASURES["aopc_comprehensiveness"]).passed
    True
    """
    judge: AttributionMeasure = FaithfulnessMetric(measure) if isinstance(measure, FaithfulnessMeasure) else measure
    name = measure.name if isinstance(measure, FaithfulnessMeasure) else _display_name(measure)
    try:
        return CheckReport(name, tuple(_ranking_results(judge)))
    except Exception as error:  # noqa: BLE001 - the code under check may raise anything
        return CheckReport(name, (CheckResult("runs", passed=False, reason=_describe(error)),))


def _ranking_results(judge: AttributionMeasure) -> Iterator[CheckResult]:
    model, batch = LinearBagOfWords.random(BinaryClassification()).eval(), random_texts(range(5, 45), seed=1)
    target = (model(batch).logits.detach()[:, 0] > 0).long()
    truth = model.ground_truth(batch, target)
    noise = torch.randn(truth.scores.shape, generator=Generator().manual_seed(2), dtype=torch.float64)
    right = judge(model, batch, target, truth).double()
    shaped = right.shape == (len(batch),)
    reason = f"{int(torch.isfinite(right).sum())} of {len(batch)} texts" if shaped else f"shape {tuple(right.shape)}"
    yield CheckResult("gives a number for each text", shaped and bool(torch.isfinite(right).all()), reason)
    if not shaped:
        return
    for name, scores in {"random scores": noise * truth.mask, "reversed scores": -truth.scores}.items():
        law = f"ranks the true attribution above {name}"
        wrong = judge(model, batch, target, Attribution(scores, truth.mask)).double()
        both = torch.isfinite(right) & torch.isfinite(wrong)
        if int(both.sum()) < 2:
            yield CheckResult(law, passed=False, reason="undefined for nearly every text")
            continue
        gain = (right - wrong)[both] * (1 if judge.direction == "higher" else -1)
        interval = bootstrap_interval(gain, generator=Generator().manual_seed(0))
        means = f"mean {float(right[both].mean()):.3f} against {float(wrong[both].mean()):.3f}"
        reason = f"{means}, {judge.direction} is better; better by {interval.low:.3f} to {interval.high:.3f}"
        yield CheckResult(law, interval.low > 0 or bool((gain > 0).all()), reason)


Build = Callable[[int], Model]
"""Builds a model from a seed: equal seeds give equal weights, other seeds other weights."""
ModelLaw = Callable[[Model, Batch, Tensor], Iterator[str]]
"""The problems of a model on a batch, with the support of its attention."""


def check_model(build: Build, batch: Batch, support: Callable[[Batch], Tensor] | None = None) -> CheckReport:
    """Check that a model obeys the laws that methods and trials rely on; best in float64.

    Args:
        build: a model from a seed: equal seeds give equal weights, other seeds other weights.
        batch: at least two rows of unequal length.
        support: the units that attention may attend to, broadcastable to `[batch layer head query unit]`; None means
            all real tokens.
    """
    where = batch.mask[:, None, None, None] if support is None else support(batch)

    def on_model(check: ModelLaw) -> Iterator[str]:
        yield from check(build(1).eval(), batch, where)

    laws = _MODEL_LAWS if batch.inputs.dim() > 2 else _MODEL_LAWS | _PADDING_LAWS
    evidence = f"on {len(batch)} examples"
    results = [run_law(law, evidence, on_model, check) for law, check in laws.items()]
    results += [run_law(law, evidence, check, build, batch) for law, check in _BUILD_LAWS.items()]
    return CheckReport(getattr(build, "__name__", "model"), tuple(results))


def add_padding(batch: Batch, columns: int, token_id: int | None = None) -> Batch:
    """The batch with more columns of padding; `token_id` replaces the pad token on all padding."""

    def wider(tensor: Tensor, value: int) -> Tensor:
        return nn.functional.pad(tensor, (0, columns), value=value)

    mask = wider(batch.mask, 0)
    inputs = wider(batch.inputs, batch.pad_id)
    inputs = inputs if token_id is None else inputs.masked_fill(~mask, token_id)
    return replace(batch, inputs=inputs, mask=mask, segments=wider(batch.segments, 0), words=wider(batch.words, -1))


def trace_differences(actual: Trace, expected: Trace, mask: Tensor) -> Iterator[str]:
    """Fields in which two traces differ on the real tokens of `mask` `[batch unit]`, whatever padding they have."""
    units = mask.shape[1]
    for name, one, other in (
        ("embeddings", actual.embeddings[:, :units][mask], expected.embeddings[:, :units][mask]),
        ("hidden", actual.hidden[:, :units][mask], expected.hidden[:, :units][mask]),
        ("attention", _real_attention(actual.attention, mask), _real_attention(expected.attention, mask)),
        ("logits", actual.logits, expected.logits),
    ):
        if not _close(one, other):
            yield f"{name} differ"


def _real_attention(attention: Tensor, mask: Tensor) -> Tensor:
    """Attention on the unit axis of `mask`; rows whose query is padding become zero."""
    units = mask.shape[1]
    if attention.shape[3] != attention.shape[4]:
        return attention[..., :units]
    return attention[:, :, :, :units, :units] * mask[:, None, None, :, None]


def _close(actual: Tensor, expected: Tensor) -> bool:
    """Equal to 1e-8 in float64 and 1e-5 in float32."""
    tolerance = 1e-8 if expected.dtype == torch.float64 else 1e-5
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def _weighted_sum(logits: Tensor) -> Tensor:
    """A scalar that depends on every finite logit, each with another weight."""
    weights = torch.arange(1, logits.shape[1] + 1, dtype=logits.dtype)
    return torch.where(torch.isfinite(logits), logits, 0.0).mul(weights).sum()


def _check_round_trip(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    original = model(batch)
    for name, trace in (
        ("embeddings", model(batch, embeddings=original.embeddings)),
        ("attention", model(batch, attention=original.attention)),
        ("both", model(batch, embeddings=original.embeddings, attention=original.attention)),
    ):
        yield from (f"{name} passed in: {problem}" for problem in trace_differences(trace, original, batch.mask))


def _check_given_attention(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    original = model(batch)
    if original.scores is None or original.scores.shape != original.attention.shape:
        yield "scores are missing or have another shape than attention"
    draw = torch.rand(original.attention.shape, generator=Generator().manual_seed(7), dtype=original.attention.dtype)
    weights = (draw + 0.1) * support
    weights = weights / weights.sum(-1, keepdim=True)
    trace = model(batch, attention=weights)
    if trace.scores is not None or not torch.equal(trace.attention, weights):
        yield "the trace does not hold the attention passed in, without scores"
    if torch.allclose(trace.logits, original.logits):
        yield "other attention does not change the logits"


def _check_given_embeddings(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    original = model(batch)
    other = original.embeddings.flip(2) * 0.5
    trace = model(batch, embeddings=other)
    if not torch.equal(trace.embeddings, other):
        yield "the trace does not hold the embeddings passed in"
    if torch.allclose(trace.logits, original.logits):
        yield "other embeddings do not change the logits"


def _check_logits_alone(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    trace = model(batch)
    if not _close(model.read_logits(batch), trace.logits):
        yield "read_logits gives other logits"
    vectors = model.read_embeddings(batch)
    if not _close(vectors[batch.mask], trace.embeddings[batch.mask]):
        yield "read_embeddings gives other embeddings"
    leaf = vectors.detach().requires_grad_()
    slopes = [
        torch.autograd.grad(_weighted_sum(logits), leaf)[0]
        for logits in (model.read_logits(batch, embeddings=leaf), model(batch, embeddings=leaf).logits)
    ]
    if not _close(*slopes):
        yield "read_logits has other gradients"


def _check_attention(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    attention = model(batch).attention
    if attention.dim() != 5:
        yield f"attention has {attention.dim()} axes, not batch, layer, head, query, unit"
        return
    if bool((attention < 0).any()):
        yield "attention is negative"
    if int(torch.count_nonzero(attention[~support.expand_as(attention)])):
        yield "attention is not zero off its support"
    total = torch.ones_like(attention[..., 0])
    if attention.shape[3] == batch.mask.shape[1]:
        total = total * batch.mask[:, None, None, :]
    if not _close(attention.sum(-1), total):
        yield "rows of attention do not sum to 1"


def _check_rows_alone(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    for row, uid in enumerate(batch.uids):
        problems = _selection_differences(model, batch, torch.tensor([row]))
        yield from (f"{problem} between {uid} alone and in a batch" for problem in problems)


def _check_row_order(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    yield from _selection_differences(model, batch, torch.arange(len(batch)).flip(0))


def _selection_differences(model: Model, batch: Batch, index: Tensor) -> Iterator[str]:
    """Differences between these rows of a batch, read on their own, and the same rows of the whole."""
    whole, selected = model(batch), batch.rows(index)
    picked = Trace(whole.embeddings[index], whole.hidden[index], whole.attention[index], whole.logits[index])
    yield from trace_differences(picked, model(selected), selected.mask)


def _check_gradients(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    trace = model(batch)
    embeddings = trace.embeddings.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(_weighted_sum(model(batch, embeddings=embeddings).logits), embeddings)
    if not bool((slopes.abs().sum((1, 2)) > 0).all()):
        yield "no gradient reaches the embeddings of some row"
    if int(torch.count_nonzero(slopes[~batch.mask])):
        yield "a gradient reaches padding"
    attention = trace.attention.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(_weighted_sum(model(batch, attention=attention).logits), attention)
    if not bool((slopes.abs().sum((2, 3, 4)) > 0).all()):
        yield "no gradient reaches the attention of some layer"


def _check_saving(build: Build, batch: Batch) -> Iterator[str]:
    model, other = build(1).eval(), build(2).eval()
    expected = model(batch).logits
    if torch.equal(other(batch).logits, expected):
        yield "models of two seeds are equal"
    other.load_state_dict(load(save({name: value.contiguous() for name, value in model.state_dict().items()})))
    if not torch.equal(other(batch).logits, expected):
        yield "logits differ after saving and loading the weights"


def _check_seed(build: Build, batch: Batch) -> Iterator[str]:
    before = torch.get_rng_state()
    first, second = build(1).eval(), build(1).eval()
    if not torch.equal(torch.get_rng_state(), before):
        yield "building changes torch's random state"
    if not torch.equal(first(batch).logits, second(batch).logits):
        yield "equal seeds give other weights"


def _check_forward_pass(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    before, inputs, mask = _model_state(model), batch.inputs.clone(), batch.mask.clone()
    first, second = model(batch), model(batch)
    if not torch.equal(first.logits, second.logits):
        yield "logits differ between two calls"
    yield from _changes(before, _model_state(model))
    if not (torch.equal(batch.inputs, inputs) and torch.equal(batch.mask, mask)):
        yield "the batch changed"


def _check_more_padding(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    wide = add_padding(batch, 3)
    trace = model(wide)
    yield from trace_differences(trace, model(batch), batch.mask)
    if trace.attention.shape[-1] != wide.mask.shape[1]:
        yield "attention does not cover the padding"


def _check_padding_ids(model: Model, batch: Batch, support: Tensor) -> Iterator[str]:
    token_id = int(batch.inputs[batch.content_mask].max())
    yield from trace_differences(model(add_padding(batch, 2, token_id)), model(add_padding(batch, 2)), batch.mask)


_MODEL_LAWS: dict[str, ModelLaw] = {
    "embeddings and attention can be passed back in": _check_round_trip,
    "attention passed in is used": _check_given_attention,
    "embeddings passed in are used": _check_given_embeddings,
    "logits and embeddings can be read alone": _check_logits_alone,
    "attention is a distribution over its support": _check_attention,
    "the rest of the batch changes nothing": _check_rows_alone,
    "the order of rows changes nothing": _check_row_order,
    "gradients reach embeddings and attention": _check_gradients,
    "a forward pass leaves no trace": _check_forward_pass,
}
_BUILD_LAWS: dict[str, Callable[[Build, Batch], Iterator[str]]] = {
    "weights can be saved as safetensors": _check_saving,
    "the seed determines the weights": _check_seed,
}
_PADDING_LAWS: dict[str, ModelLaw] = {
    "more padding changes nothing": _check_more_padding,
    "ids under padding change nothing": _check_padding_ids,
}


def check_corpus(corpus: Corpus, data: Path) -> CheckReport:
    """Check that a corpus obeys the laws that training and trials rely on.

    Args:
        data: the folder that the corpus is read from.
    """
    try:
        splits = corpus.read(data)
    except Exception as error:  # noqa: BLE001 - the code under check may raise anything
        return CheckReport(corpus.name, (CheckResult("reads", passed=False, reason=_describe(error)),))
    sizes = ", ".join(f"{len(splits[split])} {split}" for split in SPLITS)

    results = [run_law(law, sizes, check, splits) for law, check in _CORPUS_LAWS.items()]
    results.append(run_law("reading again gives the same examples", sizes, _check_repeated, corpus, data, splits))
    return CheckReport(corpus.name, tuple(results))


def _check_repeated(corpus: Corpus, data: Path, splits: Splits) -> Iterator[str]:
    if corpus.digest(data) != corpus.digest(data):
        yield "two digests of the same data differ"
    again = corpus.read(data)
    if any([example.uid for example in again[split]] != [example.uid for example in splits[split]] for split in SPLITS):
        yield "the uids or their order differ"


def _check_splits(splits: Splits) -> Iterator[str]:
    yield from (f"{split} is empty" for split in SPLITS if not splits[split])


def _check_uids(splits: Splits) -> Iterator[str]:
    uids = [example.uid for split in SPLITS for example in splits[split]]
    if len(set(uids)) < len(uids):
        yield f"{len(uids) - len(set(uids))} of {len(uids)} uids are repeated"


def _check_labels(splits: Splits) -> Iterator[str]:
    numeric = isinstance(splits.task, Regression)
    if len(splits.class_names) != (0 if numeric else splits.task.num_classes):
        yield f"{len(splits.class_names)} class names for {splits.task.num_classes} classes"
    examples = [example for split in SPLITS for example in splits[split]]
    if all(example.label is None for example in examples):
        return
    for example in examples:
        label = example.label
        fits = isinstance(label, float) if numeric else isinstance(label, int) and 0 <= label < len(splits.class_names)
        if not fits or (example.candidates is not None and label not in example.candidates):
            yield f"{example.uid} has label {label!r}"
            return


def _check_words(splits: Splits) -> Iterator[str]:
    for example in (example for split in SPLITS for example in splits[split]):
        for name, values in (("rationale", example.rationale), ("ground truth", example.ground_truth)):
            count = sum(len(part.split()) if isinstance(part, str) else 0 for part in example.parts)
            if values is not None and len(values) != count:
                yield f"{example.uid} has {count} words and {len(values)} entries in its {name}"
                return


_CORPUS_LAWS: dict[str, Callable[[Splits], Iterator[str]]] = {
    "every split has examples": _check_splits,
    "uids are unique": _check_uids,
    "labels fit the task": _check_labels,
    "rationales and ground truth have one entry per word": _check_words,
}
