"""The shared vocabulary: examples and batches, tasks, models and traces, tokenizations, corpora, attributions.

Data, models and attributions meet only here: a method knows that a model turns a batch into a trace, not which class of
model it is. Every tensor lies on one *unit* axis (tokens or image patches); attention is always
`[batch layer head query unit]`. Every field of a trace can be passed back into the model.
"""

from __future__ import annotations

import json
import os
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Generator, Tensor, nn

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
Number = int | float


class UserError(Exception):
    """An error that the user can fix: one line that says what is wrong and how to fix it."""


class NotApplicable(UserError):
    """A method or a question does not apply to a model.

    Args:
        reason: what the model lacks.
        remedy: what to choose instead.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        sentence = f"not available for this model: {self.reason}"
        return f"{sentence}; {self.remedy}" if self.remedy else sentence


def shorten(value: object) -> str:
    """A value of a user for a message or a note: the start and the end of its `repr`, at any size and depth.

    >>> shorten("a" * 1000)
    "'aaaaaaaaaaaa...aaaaaaaaaaaaa'"
    """
    return reprlib.repr(value)


def first_line(error: Exception) -> str:
    """What an error says, in one line without a full stop."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.rstrip(".:")


OWN_MODELS_PAGE = "docs/own_models.md"
"""The page about networks that heedful does not know by itself."""


def check_choice(name: str, value: str, choices: object) -> None:
    """Raise a `UserError` unless the value is a member of a Literal type.

    >>> check_choice("split", "middle", Split)
    Traceback (most recent call last):
    heedful.types.UserError: unknown split 'middle'; choose one of train, dev, test
    """
    if value not in get_args(choices):
        raise UserError(f"unknown {name} {shorten(value)}; choose one of {', '.join(map(str, get_args(choices)))}")


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user gave, with `~` as the home folder; UserError for a value that cannot be a path.

    >>> user_path("~nobody-at-all/model")
    Traceback (most recent call last):
    heedful.types.UserError: ~nobody-at-all/model: no such file or folder, because user 'nobody-at-all' does not...
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        raise UserError(f"{shorten(path)} is not a path; give a string or a Path")
    if "\0" in text:
        raise UserError(f"{shorten(text)}: a path cannot contain a zero byte; correct it")
    expanded = os.path.expanduser(text)
    if text.startswith("~") and expanded == text:
        user = text[1:].partition("/")[0]
        reason = f"user {user!r} does not exist" if user else "the home folder is not known (set HOME)"
        raise UserError(f"{text}: no such file or folder, because {reason}; write ./{text} for a name with ~")
    return Path(expanded)


# Examples and batches


@dataclass(frozen=True)
class Example:
    """One example in plain Python.

    Args:
        uid: unique within its corpus.
        parts: one text, two texts, a document and its question, or one image `[channel height width]` in [0, 1].
        label: class index, or a real number for regression; None if unknown.
        rationale: words that annotators marked as evidence, one entry per word over all parts, in order.
        candidates: the classes that this example admits; None admits all.
        ground_truth: the known contribution of each word to class 1 (or to the label), for synthetic corpora.
    """

    uid: str
    parts: tuple[str | Tensor, ...]
    label: Number | None = None
    rationale: tuple[bool, ...] | None = None
    candidates: tuple[int, ...] | None = None
    ground_truth: tuple[float, ...] | None = None

    @property
    def words(self) -> list[str]:
        """The whitespace words of all texts, in order; images have none.

        >>> Example("a", ("Who won?", "Ann won.")).words
        ['Who', 'won?', 'Ann', 'won.']
        """
        return [word for part in self.parts if isinstance(part, str) for word in part.split()]


@dataclass(frozen=True)
class Batch:
    """Examples as tensors on one unit axis, left-aligned, the parts of an example one after the other.

    Args:
        inputs: token ids `[batch unit]`, or flattened image patches `[batch unit dim]`.
        mask: True on real units, special tokens included; False on padding.
        segments: the part of the example that a unit belongs to (0, 1).
        words: the word that a unit belongs to, counted over all parts; -1 for special tokens and padding.
        labels: class indices (int64) or real numbers (float); None if unknown.
        candidates: admitted classes `[batch output]`; None admits all.
        pad_id: id of the pad token.
        unk_id: id of the unknown token; None if there is none.
        mask_id: id of the mask token of a masked language model; None if there is none.
        breaks: what ends behind each word `[batch word]`, see `segmentation.Break`; None for images and where the
            sentences of the texts are not known.
    """

    uids: tuple[str, ...]
    inputs: Tensor
    mask: Tensor
    segments: Tensor
    words: Tensor
    labels: Tensor | None = None
    candidates: Tensor | None = None
    pad_id: int = 0
    unk_id: int | None = None
    mask_id: int | None = None
    breaks: Tensor | None = None

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def content_mask(self) -> Tensor:
        """True on the units that can receive a score: neither padding nor special tokens."""
        return self.words >= 0

    @property
    def deletable_mask(self) -> Tensor:
        """True on the content units whose part has another content unit: deleting them leaves no part empty."""
        parts = [self.content_mask & (self.segments == part) for part in (0, 1)]
        first, second = (part & (part.sum(1, keepdim=True) > 1) for part in parts)
        return first | second

    @property
    def lengths(self) -> Tensor:
        """Number of real units of each row, special tokens included."""
        return self.mask.sum(1)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._map_tensors(lambda tensor: tensor.to(device))

    def rows(self, index: Tensor) -> Batch:
        """The rows at `index` (int64), in that order, without padding that no row needs."""
        selected = self._map_tensors(lambda tensor: tensor[index])
        width = max(1, int(selected.mask.sum(1).max())) if len(index) else 0
        return replace(selected._slice_units(0, width), uids=tuple(self.uids[row] for row in index.tolist()))

    def drop_units(self, count: int) -> Batch:
        """Without the first `count` units."""
        return self._slice_units(count, None)

    def _slice_units(self, start: int, end: int | None) -> Batch:
        units = slice(start, end)
        return replace(
            self,
            inputs=self.inputs[:, units],
            mask=self.mask[:, units],
            segments=self.segments[:, units],
            words=self.words[:, units],
        )

    def repeat(self, times: int) -> Batch:
        """Each row `times` times, copies next to each other."""
        repeated = self._map_tensors(lambda tensor: tensor.repeat_interleave(times, dim=0))
        return replace(repeated, uids=tuple(uid for uid in self.uids for _ in range(times)))

    def keep_units(self, units: Tensor) -> Batch:
        """Only the selected units `[batch unit]`: text closes the gap, an image blanks the patch.

        Units keep their word numbers.
        """
        if self.inputs.dim() > 2:
            return replace(self, inputs=self.inputs * units.unsqueeze(-1))
        is_kept = units & self.mask
        width = max(1, int(is_kept.sum(1).max())) if len(self) else 0
        order = torch.argsort((~is_kept).to(torch.int8), dim=1, stable=True)[:, :width]
        mask = is_kept.gather(1, order)
        return replace(
            self,
            inputs=self.inputs.gather(1, order).masked_fill(~mask, self.pad_id),
            mask=mask,
            segments=self.segments.gather(1, order).masked_fill(~mask, 0),
            words=self.words.gather(1, order).masked_fill(~mask, -1),
        )

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            inputs=function(self.inputs),
            mask=function(self.mask),
            segments=function(self.segments),
            words=function(self.words),
            labels=None if self.labels is None else function(self.labels),
            candidates=None if self.candidates is None else function(self.candidates),
            breaks=None if self.breaks is None else function(self.breaks),
        )


# Tasks and models


class Task(ABC):
    """What a model predicts; no other code branches on classification or regression.

    `primary_metric` selects the best epoch; larger is better for every primary metric.
    """

    primary_metric: ClassVar[str]

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Logits per example."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Columns of `probabilities`: classes, or 1 for regression."""

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """A distribution over classes `[... classes]`, or the predicted number itself for regression."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of each example `[batch]`."""

    @abstractmethod
    def compute_metrics(self, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
        """Every metric of this task by name; `primary_metric` is one of them."""


@dataclass(frozen=True)
class Trace:
    """The intermediate values of one forward pass, on the unit axis of the batch.

    Args:
        embeddings: `[batch unit width]`.
        hidden: the states that attention weighs, `[batch unit dim]` (transformers: the last layer's states).
        attention: `[batch layer head query unit]`, each row a distribution over real units (and over a sink beside the
            units, where a network has one); no layers where attention cannot be read, see `Model.attention_refusal`.
        logits: `[batch output]`.
        scores: attention before normalising, `[batch layer head query unit]`; None where attention was passed in.
    """

    embeddings: Tensor
    hidden: Tensor
    attention: Tensor
    logits: Tensor
    scores: Tensor | None = None


DecidingRow = Literal["first", "last", "mask", "all"]
"""The query rows whose state the head of a model reads: that of a class token, of the last real token, those of the
mask tokens outside the user's text, or all rows."""


class Model(nn.Module, ABC):
    """A network whose embeddings and attention can be read and replaced.

    A field that is passed in is used as it is, and the computation that only served it is skipped.

    Attributes:
        notes: remarks of building the model for the report, for instance that its head is new.
        has_imposed_attention: attention comes from outside in every call that passes none; it may depend on the uid and
            word numbers of an example, not on its text alone.
        attention_refusal: why attention can be neither read nor replaced; its traces then have no layer.
        embedding_refusal: why embeddings can be neither read nor replaced; its traces then have embeddings of width 0.
        path_refusal: why attention is not the only way between units, so that its layers cannot be multiplied.
        deciding_row: of self-attention in the last layer.
        has_rows_first: whether the batch is the first axis of the states in all layers.
        tokens_per_pass: how many units `read_logits` is best given at once.
    """

    task: Task
    notes: tuple[str, ...] = ()
    has_imposed_attention: bool = False
    attention_refusal: str | None = None
    embedding_refusal: str | None = None
    path_refusal: str | None = None
    deciding_row: DecidingRow = "first"
    has_rows_first: bool = True
    tokens_per_pass: int = 1 << 13

    @abstractmethod
    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace: ...

    def read_logits(self, batch: Batch, *, embeddings: Tensor | None = None) -> Tensor:
        """The logits `[batch output]` of `forward` and nothing else, for callers that need no other field.

        They are equal up to rounding. A model may compute them faster and in less memory, without attention matrices.
        Second derivatives need `unfused_attention()`.
        """
        return self(batch, embeddings=embeddings).logits

    def read_embeddings(self, batch: Batch) -> Tensor:
        """The embeddings `[batch unit width]` of `forward` and nothing else."""
        return self(batch).embeddings

    @property
    def architecture_summary(self) -> str:
        """A description of the architecture; two models have equal ones if and only if their heads match."""
        return type(self).__name__

    if TYPE_CHECKING:

        def __call__(
            self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None
        ) -> Trace: ...


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Every module of a network in evaluation mode, without dropout; at the end each has its own mode again."""
    modes = [(module, module.training) for module in network.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class Architecture(ABC):
    """A frozen description of a model that can be built, for instance `Attentive(BiLSTM(128), Additive())`."""

    @abstractmethod
    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        """A new model; `embeddings` initialises the word vectors `[vocabulary width]` of models on word ids."""

    def describe(self) -> dict[str, str]:
        """Short names of `encoder` and `attention` for tables and file names, for instance bilstm and additive."""
        return {"encoder": type(self).__name__.lower(), "attention": "self"}


# Tokenization


class Tokenizer(ABC):
    """Turns examples into batches; made by `Tokenization.fit` or `Tokenization.restore`."""

    @abstractmethod
    def __call__(self, examples: Sequence[Example]) -> Batch:
        """The examples in this order as one batch."""

    @abstractmethod
    def unit_texts(self, batch: Batch) -> list[list[str]]:
        """The text of each real unit of each row, for display; special tokens in angle brackets."""

    @abstractmethod
    def state(self) -> dict[str, object]:
        """What `Tokenization.restore` needs, as plain JSON values."""

    def definition(self) -> str:
        """All that decides which ids an example gets, as text: the digest of a model in memory includes it."""
        return json.dumps(self.state(), sort_keys=True)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each id; empty for pretrained tokenizers and for pixels."""
        return ()

    def count_truncated(self, examples: Sequence[Example]) -> int:
        """Number of examples that are longer than the limit; 0 without one."""
        return 0

    def count_unknown_words(self, examples: Sequence[Example]) -> tuple[int, int]:
        """Number of words without a known token, and of all words; nothing is truncated."""
        return 0, 0

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        """Effects of preprocessing on these examples for the report: truncated texts, unknown words."""
        return {}


@dataclass(frozen=True)
class Selection:
    """The examples that a tokenization keeps, and how many it dropped, by reason."""

    examples: Sequence[Example]
    num_dropped: Mapping[str, int] = field(default_factory=dict)


class Tokenization(ABC):
    """A frozen description of preprocessing: `Words`, `Subwords` or `Patches`."""

    @abstractmethod
    def fit(self, examples: Sequence[Example]) -> Tokenizer:
        """A tokenizer whose vocabulary comes from these (training) examples."""

    @abstractmethod
    def restore(self, saved: Mapping[str, object]) -> Tokenizer:
        """The tokenizer whose `state` is `saved`."""

    def select(self, examples: Sequence[Example]) -> Selection:
        """The examples of one split that this preprocessing keeps; all by default."""
        return Selection(examples)


# Corpora


@dataclass(frozen=True)
class Splits:
    """The examples of each split of a corpus: tuples, or sequences that read a large corpus from disk.

    Args:
        class_names: names of the classes in the order of their indices; empty for regression.
        notes: counts and remarks for the report, such as dropped rows.
        extra_vocabulary: words that can occur outside the training split, if the corpus knows them.
    """

    task: Task
    class_names: tuple[str, ...]
    train: Sequence[Example]
    dev: Sequence[Example]
    test: Sequence[Example]
    notes: Mapping[str, int | float | str] = field(default_factory=dict)
    extra_vocabulary: tuple[str, ...] = ()

    def __getitem__(self, split: Split) -> Sequence[Example]:
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]


class DiskResource(ABC):
    """A frozen description of something on disk whose content enters every fingerprint that contains it."""

    @abstractmethod
    def digest(self, data: Path) -> str:
        """A hash of the content."""


class Corpus(DiskResource):
    """A frozen description of where examples come from; each property may be a class attribute."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in the catalogue, in reports and in uids; not a field, so equality ignores it."""

    @property
    @abstractmethod
    def tokenization(self) -> Tokenization:
        """The preprocessing of the paper that introduced the corpus here, or a sensible default."""

    @property
    def embedding_dim(self) -> int:
        """Width of the word vectors that the paper used with this corpus."""
        return 300

    @abstractmethod
    def read(self, data: Path) -> Splits:
        """The examples, from the data folder; raises `UserError` if they are missing."""


# Attributions

Pooling = Literal["sum", "mean", "max"]
"""How the scores of a word's tokens become the score of the word."""


def pool_by_word(
    scores: Tensor, words: Tensor, pooling: Pooling = "sum", count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Scores of words `[batch ... word]` from scores of their units `[batch ... unit]`, and which words have a unit.

    Args:
        words: the word, or another feature, of each unit `[batch unit]`; -1 for none.
        count: width of the result; by default the highest word number + 1, at least 1.

    >>> scores, words = torch.tensor([[0.5, 0.2, 0.1, 9.0]]), torch.tensor([[0, 0, 2, -1]])
    >>> pool_by_word(scores, words)
    (tensor([[0.7000, 0.0000, 0.1000]]), tensor([[ True, False,  True]]))
    """
    check_choice("pooling", pooling, Pooling)
    width = max(1, int(words.max()) + 1 if words.numel() else 0) if count is None else count
    # Units without a word go to one more slot, which is then cut off.
    slot = torch.where(words >= 0, words, width)
    index = slot.reshape(len(words), *[1] * (scores.dim() - 2), words.shape[1]).expand(scores.shape)
    reduce = {"sum": "sum", "mean": "mean", "max": "amax"}[pooling]
    empty = scores.new_zeros(*scores.shape[:-1], width + 1)
    pooled = empty.scatter_reduce(-1, index, scores, reduce, include_self=False)
    present = torch.zeros(len(words), width + 1, dtype=torch.bool, device=words.device).scatter(1, slot, True)
    return pooled[..., :width], present[:, :width]


@dataclass(frozen=True)
class Attribution:
    """One signed score per unit, zero off `mask`.

    Args:
        scores: `[batch unit]`.
        mask: the units that were scored, `[batch unit]`.
    """

    scores: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        if self.scores.shape != self.mask.shape:
            raise ValueError(f"scores {tuple(self.scores.shape)} and mask {tuple(self.mask.shape)} differ in shape")

    def sum_by_word(self, words: Tensor) -> Attribution:
        """The sum of the scores of each word's units, `[batch word]`; words without a scored unit are masked out."""
        count = int(words.max()) + 1 if words.numel() else 0
        return Attribution(*pool_by_word(self.scores, words.masked_fill(~self.mask, -1), count=count))


class Method(Protocol):
    """An attribution method: a frozen dataclass whose fields are its hyper-parameters.

    Methods that sample draw per example from (seed, uid), so the other examples of a batch change nothing.
    """

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Scores of the units for the outputs `target` `[batch]` (class indices)."""
        ...


@runtime_checkable
class SupportsPreparation(Protocol):
    """A method with work to do once per model, before it runs on many batches."""

    def prepare(self, model: Model) -> Method:
        """The method prepared for this model in its present state; it gives the same scores, faster."""
        ...


def check_methods(methods: object, field: str = "methods") -> None:
    """Raise a `UserError` unless this is a tuple of methods: no name, no class, no list and no method by itself.

    >>> check_methods(("lime",))
    Traceback (most recent call last):
    heedful.types.UserError: methods has the name 'lime': give the method itself, for instance Lime()
    """
    if not isinstance(methods, tuple):
        raise UserError(
            f"{field} is {shorten(methods)}: give a tuple of methods, for instance (RawAttention(), Gradient())"
        )
    for method in methods:
        if isinstance(method, str):
            raise UserError(f"{field} has the name {shorten(method)}: give the method itself, for instance Lime()")
        if isinstance(method, type):
            raise UserError(f"{field} has the class {method.__name__}: give an instance, {method.__name__}()")
        if not callable(method):
            raise UserError(f"{field} has {shorten(method)}, which is not a method: see heedful.attributions")


def check_attribution(attribution: object, batch: Batch, method: str) -> Attribution:
    """What a method returned; a `UserError` unless it is an attribution with one score per unit of the batch.

    Args:
        method: its name.
    """
    expected = "return an Attribution with scores and mask of the shape of batch.mask"
    if not isinstance(attribution, Attribution):
        raise UserError(f"{shorten(method)} returned {shorten(attribution)}: {expected}")
    scores, mask = attribution.scores, attribution.mask
    if not isinstance(scores, Tensor) or not isinstance(mask, Tensor):
        raise UserError(f"{shorten(method)} returned {shorten(attribution)}: {expected}")
    if scores.shape != batch.mask.shape or mask.dtype != torch.bool or scores.is_complex():
        raise UserError(
            f"{shorten(method)} returned scores {tuple(scores.shape)} in {scores.dtype} and a mask in {mask.dtype} "
            f"for a batch {tuple(batch.mask.shape)}: {expected}, a mask of booleans"
        )
    return attribution
