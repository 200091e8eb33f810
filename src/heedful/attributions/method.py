"""What every attribution method has: tags, a registered name, options; and what methods share to compute scores.

A new method is a frozen dataclass with `@register("its-name")`, `tags` and the `__call__` of `types.Method`. The rest
of the library asks its tags and its options; it never asks for its class or its name.

Tensors lie on the unit axis of a batch, one unit per token or image patch. A *feature* is what a perturbation method
removes as one: a token, a word with all its subword tokens, a sentence, or a segment of a long text (see
`heedful.segmentation`; in an image all are a patch). A feature index `[batch unit]` numbers the features of each row
from 0 and is -1 on tokens that are not scored.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from heedful.devices import free_cached_memory, is_out_of_memory
from heedful.option_bounds import Bounds, check_options, is_whole_number
from heedful.segmentation import group_words
from heedful.store.recipe import derive_seed
from heedful.types import (
    Attribution,
    Batch,
    Method,
    Model,
    Pooling,
    Task,
    UserError,
    evaluation_mode,
    shorten,
)

Output = Literal["probability", "logit"]
"""The explained number: the probability of the target, or its logit."""
Baseline = Literal["pad", "mask", "unk", "zero", "delete"]
"""What replaces a removed token: the pad token (still attended to), the mask token, the unknown token, a zero
embedding, or nothing ("delete" closes the gap). Of an image, "pad" and "delete" set the patch to 0."""
FixedLengthBaseline = Literal["pad", "mask", "unk", "zero"]
"""Baselines of gradient methods, which compare texts of equal length."""
Feature = Literal["unit", "word", "sentence", "segment"]

CHUNK_CELLS = 1 << 18
"""Cells of one attention matrix in a chunk: rows x units x units."""
MAX_SAMPLES, MAX_STEPS = 100_000, 1_000
"""Samples or steps of a text, which are held in memory together.

A text of 512 tokens with the most samples takes a few gigabytes, and points of quadrature a matrix of steps x steps.
"""
Steps = Annotated[int, Bounds(1, MAX_STEPS)]
MAX_PREDICTED = 4_000
"""Samples of a text whose outputs a Gaussian process goes through: it has several matrices of samples x samples."""
ExplainT = TypeVar("ExplainT", bound=Callable[..., Attribution])
OptionsT = TypeVar("OptionsT", bound="CheckedOptions")
KindT = TypeVar("KindT", bound=Callable[..., Method])

Reads = Literal["attention", "gradient", "output", "nothing"]
"""What scores are made of: attention weights, gradients, outputs of perturbed texts, or nothing of the model."""


NO_SIGN = "the scores have no sign, so that what speaks against the prediction looks like what speaks for it"
SAME_FOR_EVERY_CLASS = "the scores are the same for every class, so that they do not show why it is this one"


@dataclass(frozen=True)
class MethodTags:
    """What the rest of the library needs to know about a method; `heedful.testing.check_method` verifies it.

    Args:
        signed: scores can be negative, which counts against the target; scores without a sign are weights.
        pooling: how the scores of a word's tokens become the score of the word: contributions add up, weights are
            averaged so that long words are not favored.
        reads: what the scores are made of.
        fixes_attention: the method passes the model its own attention as a constant, so that the model must show it.
        target_specific: the scores of two classes of the same text can differ.
        is_control: the method must do badly: it knows nothing of the text or of the trained model.
        optimizes: measures that the method computes itself, on single words or on samples, where it has an advantage.
        completeness_tolerance: the largest completeness error, as a share of the difference of the outputs, that is
            within rounding; None if the scores do not have to add up.
        note: one line under its heat-map.
    """

    signed: bool = True
    pooling: Pooling = "sum"
    reads: Reads = "output"
    fixes_attention: bool = False
    target_specific: bool = True
    is_control: bool = False
    optimizes: tuple[str, ...] = ()
    completeness_tolerance: float | None = None
    note: str = ""

    @property
    def limits(self) -> tuple[str, ...]:
        """What its heat-map cannot show, a sentence without a full stop each."""
        blind = () if self.target_specific else (SAME_FOR_EVERY_CLASS,)
        return blind if self.signed else (NO_SIGN, *blind)

    @property
    def caption(self) -> str:
        """What goes under its heat-map: what the scores are, and what they cannot show."""
        return "; ".join(filter(None, (self.note, *self.limits)))

    @property
    def needs_attention(self) -> bool:
        """Whether a model must show its attention to be explained."""
        return self.reads == "attention" or self.fixes_attention

    @property
    def is_form_of_attention(self) -> bool:
        """Whether the scores are the attention of the model in another form, and not a measure of importance."""
        return self.reads == "attention" and not self.target_specific and not self.is_control


def sampled_measures(baselines: Baseline) -> tuple[str, ...]:
    """The measures of faithfulness that read the same texts as a method that removes features at random.

    >>> sampled_measures("pad")
    ('comprehensiveness (pad)', 'sufficiency (pad)')
    """
    return f"comprehensiveness ({baselines})", f"sufficiency ({baselines})"


@dataclass(frozen=True)
class Background:
    """What a reader asks before a method is used; its page is made of this, its tags and its docstring.

    Args:
        formula: the scores in one or two lines of plain text.
        avoid: when not to use it, as the end of a sentence that begins with "Do not use it".
        references: keys of `heedful.references.REFERENCES`, the most important first.
        adds_up: whether the scores sum, by construction, to the output minus that of the text without its features.
    """

    formula: str
    avoid: str
    references: tuple[str, ...] = ()
    adds_up: bool = False


@runtime_checkable
class SupportsBackground(Protocol):
    """A method that states its background, as every method of the catalogue does."""

    @property
    def background(self) -> Background:
        """Formula, limits and literature."""
        ...


@runtime_checkable
class SupportsTags(Protocol):
    """A method that states its tags."""

    @property
    def tags(self) -> MethodTags:
        """The tags of the method with its options."""
        ...


def tags_of(method: object) -> MethodTags:
    """The tags of a method; one without the property `tags` gets the defaults: signed contributions to the output.

    A method of your own needs no tags if its scores are signed, differ between classes and are read from outputs.
    Otherwise give it a class attribute or a property:

    >>> class Lengths:
    ...     tags = MethodTags(signed=False, pooling="mean", reads="nothing", target_specific=False)
    >>> tags_of(Lengths()).pooling, tags_of(lambda model, batch, target: None).pooling
    ('mean', 'sum')
    """
    if not isinstance(method, SupportsTags):
        return MethodTags()
    if not isinstance(method.tags, MethodTags):
        raise UserError(f"{shorten(method)} has tags={shorten(method.tags)}: give MethodTags(...)")
    return method.tags


def background_of(method: object) -> Background:
    """The background of a method; empty for one that states none."""
    return method.background if isinstance(method, SupportsBackground) else Background("", "")


_REGISTERED: dict[str, Callable[[], Method]] = {}


def register(name: str) -> Callable[[KindT], KindT]:
    """A decorator that lists a class of methods, whose options all have defaults, in the catalogue under this name."""

    def decorate(kind: KindT) -> KindT:
        if _REGISTERED.setdefault(name, kind) is not kind:
            raise UserError(f"the method {name} is registered twice: choose another name")
        return kind

    return decorate


def registered_methods() -> dict[str, Callable[[], Method]]:
    """Every registered method by its name, after all modules of this package have been imported; by file."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    return dict(sorted(_REGISTERED.items(), key=lambda entry: entry[1].__module__))


@runtime_checkable
class SupportsDisplayName(Protocol):
    """A method that names itself, because its fields would make too long a name."""

    @property
    def display_name(self) -> str:
        """A short name that differs from those of other methods."""
        ...


def method_name(method: object) -> str:
    """The display name of a method: its own, or that of its class and fields.

    >>> from heedful.attributions.controls import Random
    >>> method_name(Random()), method_name(Random(seed=3))
    ('random', 'random(seed-3)')
    """
    return method.display_name if isinstance(method, SupportsDisplayName) else name_by_fields(method, kind_name(method))


def kind_name(method: object) -> str:
    """The name of a method without its options: that of the catalogue, else its class name in lower case.

    Seeds of bootstrap intervals depend on these names.
    """
    kind = type(method)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", kind.__name__).lower()
    return next((name for name, other in _REGISTERED.items() if other is kind), words).removeprefix("raw-")


def name_by_fields(method: object, name: str, omitted: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """A name with options in brackets: the given ones, and fields that are neither at their defaults nor omitted."""
    shown = ",".join((*options, *_non_default_fields(method, omitted)))
    return f"{name}({shown})" if shown else name


def _non_default_fields(method: object, omitted: Sequence[str]) -> Iterator[str]:
    """Each field that is not at its default: `cut`, `no-cut`, `logit`, `seed-3`."""
    for field in _fields(method):
        value = getattr(method, field.name)
        if field.name in omitted or (field.default is not MISSING and value == field.default):
            continue
        if isinstance(value, bool):
            yield field.name if value else f"no-{field.name}"
        elif isinstance(value, str):
            yield value
        else:
            yield f"{field.name}-{method_name(value) if is_dataclass(value) else value}"


def _fields(method: object) -> tuple[Field[object], ...]:
    return fields(method) if is_dataclass(method) and not isinstance(method, type) else ()


def option_values(method: object, option: str) -> Iterator[object]:
    """The values of an option of a method and of the methods that it wraps; empty if none of them has it.

    >>> from heedful.attributions.controls import RandomizedModel
    >>> list(option_values(RandomizedModel(), "special_tokens"))
    [False]
    """
    for field in _fields(method):
        value = getattr(method, field.name)
        if field.name == option:
            yield value
        elif callable(value):
            yield from option_values(value, option)


def change_option(method: Method, option: str, change: Callable[[object], object]) -> Method:
    """The method with another value of an option, in it and in the methods that it wraps; itself if none has it."""
    changes: dict[str, object] = {}
    for field in _fields(method):
        value = getattr(method, field.name)
        if field.name == option:
            changes[field.name] = change(value)
        elif callable(value):
            changes[field.name] = change_option(value, option, change)
    return replace(method, **changes) if changes and is_dataclass(method) else method


def is_stochastic(method: Method) -> bool:
    """Whether a method draws random numbers: it, or a method that it wraps, has the option `seed`."""
    return any(map(is_whole_number, option_values(method, "seed")))


def with_other_seed(method: Method) -> Method:
    """The same method with every seed one higher; itself if it is not stochastic."""
    return change_option(method, "seed", lambda seed: cast("int", seed) + 1 if is_whole_number(seed) else seed)


def with_special_tokens(method: Method) -> Method:
    """The method with `special_tokens=True` if it has the option, else unchanged."""
    return change_option(method, "special_tokens", lambda _: True)


def on_features(method: Method, feature: Feature) -> Method:
    """The method that removes whole words, sentences or segments, if it removes tokens; else unchanged."""
    return change_option(method, "feature", lambda own: feature if own == "unit" else own)


def in_evaluation_mode(explain: ExplainT) -> ExplainT:
    """A method's call that explains the model in evaluation mode: with dropout it would explain each time another."""

    @functools.wraps(explain)
    def explain_in_evaluation_mode(method: object, model: Model, batch: Batch, target: Tensor) -> Attribution:
        with evaluation_mode(model):
            return explain(method, model, batch, target)

    return cast("ExplainT", explain_in_evaluation_mode)


def target_output(task: Task, logits: Tensor, target: Tensor, output: Output) -> Tensor:
    """The target's probability or logit in float64, `[batch ...]` for logits `[batch ... output]`.

    In float32 a confident probability rounds to 1 and its gradient to 0. Of two classes that share one logit z, class 1
    has logit z and class 0 has -z.

    Args:
        target: class indices `[batch]`.
    """
    logits = logits.double()
    if output == "probability":
        values = task.probabilities(logits)
    else:
        values = logits if logits.shape[-1] == task.num_classes else torch.cat((-logits, logits), dim=-1)
    index = target.reshape(-1, *(1,) * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)


def scored_units(batch: Batch, *, special_tokens: bool) -> Tensor:
    """The scored tokens `[batch unit]`: content tokens, or with `special_tokens` all real tokens."""
    return batch.mask if special_tokens else batch.content_mask


def masked_attribution(scores: Tensor, batch: Batch, *, special_tokens: bool) -> Attribution:
    """An attribution with these scores on the scored tokens and zero elsewhere."""
    units = scored_units(batch, special_tokens=special_tokens)
    return Attribution(scores.masked_fill(~units, 0), units)


@dataclass(frozen=True)
class CompleteAttribution(Attribution):
    """Scores of a method whose scores should sum to f(text) - f(baseline).

    Args:
        convergence_delta: sum of the scores minus that difference `[batch]`; 0 where the method is complete.
    """

    convergence_delta: Tensor

    @property
    def difference(self) -> Tensor:
        """f(text) - f(baseline) `[batch]`."""
        return self.scores.sum(1) - self.convergence_delta


@dataclass(frozen=True)
class SampledAttribution(Attribution):
    """Scores of a method that samples until their posterior errors are small enough.

    Args:
        posterior_errors: of the scores `[batch unit]`; two of them on either side hold the exact score in about 95 % of
            cases or more.
        samples: perturbed texts that were read for each text `[batch]`.
    """

    posterior_errors: Tensor
    samples: Tensor


def complete_attribution(scores: Tensor, units: Tensor, difference: Tensor) -> CompleteAttribution:
    """Scores of all tokens `[batch unit]`, cut to the scored ones, with their error against `difference` `[batch]`."""
    return CompleteAttribution(scores.masked_fill(~units, 0), units, scores.sum(1) - difference)


class CheckedOptions:
    """Base of methods that are dataclasses with options.

    Class variables:
        word_options: options of a method that explains words and is asked for by name: at least as certain as 200 plain
            samples or 50 points, in less time.
    """

    word_options: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def for_words(self: OptionsT) -> OptionsT:
        """The method with its options for words."""
        return replace(self, **self.word_options)  # type: ignore[type-var]

    def __post_init__(self) -> None:
        """Raise a `UserError` if a field is outside its type or contradicts another field."""
        check_options(self)
        values = vars(self)
        samples = values.get("n_samples", 0)
        if values.get("error") is not None and samples > MAX_PREDICTED:
            raise UserError(f"{type(self).__name__}(n_samples={samples}): give at most {MAX_PREDICTED} with error")
        if values.get("baselines") == "delete" and values.get("special_tokens"):
            raise UserError("baselines='delete' cannot remove special tokens: choose 'pad', 'mask', 'unk' or 'zero'")


def example_seeds(purpose: str, seed: int, batch: Batch) -> Tensor:
    """A seed for each example `[batch]`, whatever else is in its batch."""
    return torch.tensor([derive_seed(purpose, seed, uid) for uid in batch.uids], device=batch.mask.device)


def replace_units(batch: Batch, removed: Tensor, baselines: Baseline) -> Batch:
    """The batch with the tokens `removed` `[batch unit]` replaced by a token id, blanked (images) or deleted.

    A text that would lose all content tokens by "delete" keeps one pad token, since models need something to attend
    to; so does each text of a pair.
    """
    if batch.inputs.dim() > 2:
        if baselines not in ("pad", "delete"):
            raise UserError(f"an image has no {baselines} token: choose baselines='pad' or 'zero'")
        return batch.keep_units(~removed)
    if baselines == "delete":
        kept_pads = torch.zeros_like(removed)
        for segment in (0, 1):
            units = batch.content_mask & (batch.segments == segment)
            emptied = ~(units & ~removed).any(1, keepdim=True)
            kept_pads |= units & emptied & (units.cumsum(1) == 1)
        padded = replace(batch, inputs=batch.inputs.masked_fill(kept_pads, batch.pad_id))
        return padded.keep_units(~removed | kept_pads)
    token_id = {"pad": batch.pad_id, "mask": batch.mask_id, "unk": batch.unk_id}[baselines]
    if token_id is None:
        raise UserError(f"this vocabulary has no {baselines} token: choose baselines='pad' or 'zero'")
    return replace(batch, inputs=batch.inputs.masked_fill(removed, token_id))


@torch.no_grad()
def baseline_vectors(model: Model, batch: Batch, baselines: Baseline, removed: Tensor) -> Tensor:
    """The embeddings `[batch unit width]` of the baseline: the batch with the tokens `removed` `[batch unit]` replaced.

    Replaced ids pass through the model's own embedding block, so that a transformer's baseline keeps positions,
    segments and normalization.
    """
    if baselines == "zero":
        return model.read_embeddings(batch).masked_fill(removed.unsqueeze(-1), 0)
    return model.read_embeddings(replace_units(batch, removed, baselines))


def run_in_chunks(
    work: Callable[[Tensor], None], count: int, rows_at: Callable[[int], int], device: torch.device
) -> None:
    """Call `work` on the numbers 0 ... count - 1, chunk by chunk, in order.

    A chunk that runs out of memory is tried again in halves, and later chunks stay as small; `work` must leave nothing
    behind when it fails.

    Args:
        rows_at: the size of a chunk that starts at this number.
    """
    start, limit = 0, count
    while start < count:
        size = max(1, min(rows_at(start), limit, count - start))
        if _fits(work, torch.arange(start, start + size, device=device)):
            start += size
        elif size > 1:
            limit = size // 2
        else:
            raise UserError("a single text does not fit into memory: shorten the texts or use a smaller model")


def _fits(work: Callable[[Tensor], None], chunk: Tensor) -> bool:
    # Returning frees what the failed attempt still holds before the next one starts.
    try:
        work(chunk)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        free_cached_memory(chunk.device)
        return False
    return True


def run_copies(work: Callable[[Tensor, Tensor], None], batch: Batch, copies: int) -> None:
    """Call `work(row, copy)` for `copies` copies of each row of the batch, in chunks that fit into memory."""
    units = batch.mask.shape[1]
    size = CHUNK_CELLS // max(1, units * max(units, 128))
    device = batch.mask.device
    run_in_chunks(lambda chunk: work(chunk // copies, chunk % copies), len(batch) * copies, lambda _: size, device)


def feature_index(batch: Batch, feature: Feature, *, special_tokens: bool = False) -> Tensor:
    """The feature of each scored token `[batch unit]`, in text order; each special token is a feature of its own."""
    units, content = scored_units(batch, special_tokens=special_tokens), batch.content_mask
    if feature == "unit":
        return (units.cumsum(1) - 1).masked_fill(~units, -1)
    position, owners = torch.arange(units.shape[1], device=units.device), feature_owners(batch, feature)
    same = (owners.unsqueeze(2) == owners.unsqueeze(1)) & content.unsqueeze(1) & content.unsqueeze(2)
    same = same | (position == position.unsqueeze(1))
    first = same.long().argmax(2)  # the first token of the same word
    number = ((first == position) & units).cumsum(1) - 1
    return number.gather(1, first).masked_fill(~units, -1)


def feature_owners(batch: Batch, feature: Feature) -> Tensor:
    """The number of the word, sentence or segment of each content unit `[batch unit]`; -1 on other units.

    Of tokens, and of the patches of an image, it is the word.
    """
    if feature in ("unit", "word") or batch.inputs.dim() > 2:
        return batch.words
    if batch.breaks is None:
        raise UserError(f"this batch does not know its {feature}s: make it with a tokenizer of heedful")
    if not batch.breaks.shape[1]:
        return batch.words
    groups = group_words(batch.breaks, "sentence" if feature == "sentence" else "segment")
    return groups.gather(1, batch.words.clamp(min=0)).masked_fill(~batch.content_mask, -1)


def feature_counts(index: Tensor) -> Tensor:
    """Features of each row `[batch]`."""
    return index.amax(1) + 1


def expand_to_units(coalitions: Tensor, index: Tensor) -> Tensor:
    """Coalitions of features `[batch sample feature]` as coalitions of tokens `[batch sample unit]`."""
    feature = index.clamp(min=0).unsqueeze(1).expand(-1, coalitions.shape[1], -1)
    return coalitions.gather(2, feature) & (index >= 0).unsqueeze(1)


def copy_to_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]` copied to every token of the feature `[batch unit]`; 0 elsewhere."""
    return scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)


def divide_among_units(scores: Tensor, index: Tensor) -> Tensor:
    """Scores of features `[batch feature]` divided equally among their tokens `[batch unit]`; sums are kept."""
    sizes = torch.zeros_like(scores).scatter_add_(1, index.clamp(min=0), (index >= 0).to(scores))
    return copy_to_units(scores / sizes.clamp(min=1), index)
