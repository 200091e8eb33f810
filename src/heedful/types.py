"""The vocabulary of the house: examples, batches, tasks, traces, models, attributions.

Data, models and attributions meet only here: a method knows that a model turns a batch into a trace, never which
class of model it is. Every tensor stands on one *unit* axis (tokens or image patches); attention is always
`[batch layer head query unit]`. What comes out of a model may be put back in.

What self-attention carries beside its weights: norms and gradients of attention, read without knowing the model.

Like `core.types.Deletes`, `Carries` is a shape that a model may have; a method asks for it with `isinstance`.

What the heads of a model say of each unit, before normalising: the maps that a learned explainer mixes.

A head's map is the mean over the real query rows of its scaled scores: s_k = mean_i q_i . k_k / sqrt(dim), special
symbols among the rows (Fernandes et al. 2022). A model may know a faster way than by scores of all pairs of units:
the mean of products is the product with the mean, s_k = mean(q) . k_k / sqrt(dim).

What flows into each layer of a model, and what the model answers when something else flows into one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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


def check_choice(name: str, value: str, choices: object) -> None:
    """Raise a `UserError` unless the value is a member of a Literal type.

    >>> check_choice("split", "middle", Split)
    Traceback (most recent call last):
    heedful.types.UserError: unknown split 'middle'; choose one of train, dev, test
    """
    if value not in get_args(choices):
        raise UserError(f"unknown {name} {value!r}; choose one of {', '.join(map(str, get_args(choices)))}")


@dataclass(frozen=True)
class Example:
    """One thing to be judged, in plain Python.

    Args:
        uid: unique within its corpus.
        parts: one text, two texts, a document and its question, or one image `[channel height width]` in [0, 1].
        label: class index, or a real number for regression; None where nobody knows.
        rationale: what people marked as evidence, one entry per word over all parts, in order.
        candidates: the answers (class indices) that this example admits; None admits all.
        truth: what each word is known to add to class 1 (or to the label), where the corpus was made so.
    """

    uid: str
    parts: tuple[str | Tensor, ...]
    label: Number | None = None
    rationale: tuple[bool, ...] | None = None
    candidates: tuple[int, ...] | None = None
    ground_truth: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Batch:
    """Examples as tensors on one unit axis, left-aligned, the parts of an example one after the other.

    Args:
        inputs: token ids `[batch unit]`, or flattened image patches `[batch unit dim]`.
        mask: True on real units, special symbols included; False on padding.
        segments: which part of its example a unit belongs to (0, 1).
        words: the word that a unit belongs to, counted over all parts; -1 for special symbols and padding.
        labels: class indices (int64) or real numbers (float); None where unknown.
        candidates: answers admitted `[batch output]`; None admits all.
        filler: id that stands on padding.
        unknown: id of the symbol for words outside the vocabulary; None where there is no such symbol.
        masker: id of the symbol that hides a word from a masked language model; None where there is no such symbol.
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

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def content_mask(self) -> Tensor:
        """True on the units that can receive a score: neither padding nor special symbols."""
        return self.words >= 0

    @property
    def deletable_mask(self) -> Tensor:
        """True on the scored units whose part has another scored unit: deleting them empties no part."""
        both = [self.content_mask & (self.segments == part) for part in (0, 1)]
        first, second = (part & (part.sum(1, keepdim=True) > 1) for part in both)
        return first | second

    @property
    def lengths(self) -> Tensor:
        """Real units of each row, special symbols included."""
        return self.mask.sum(1)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._map_tensors(lambda tensor: tensor.to(device))

    def rows(self, index: Tensor) -> Batch:
        """The rows at `index` (int64), in that order, without padding that no row needs any more."""
        picked = self._map_tensors(lambda tensor: tensor[index])
        picked = replace(picked, uids=tuple(self.uids[i] for i in index.tolist()))
        return picked._trim_padding()

    def repeat(self, times: int) -> Batch:
        """Each row `times` times, copies side by side."""
        repeated = self._map_tensors(lambda tensor: tensor.repeat_interleave(times, dim=0))
        return replace(repeated, uids=tuple(uid for uid in self.uids for _ in range(times)))

    def keep_units(self, units: Tensor) -> Batch:
        """Only the marked units `[batch unit]`: text closes the gap, an image blanks its patch.

        Word numbers are not renumbered: a unit keeps the word that it had.
        """
        if self.inputs.dim() > 2:
            return replace(self, inputs=self.inputs * units.unsqueeze(-1))
        return self._gather_units(units & self.mask)

    def select_segment(self, part: int) -> Batch:
        """One part of every example as a batch of its own, left-aligned."""
        return self._gather_units(self.mask & (self.segments == part))

    def _gather_units(self, units: Tensor) -> Batch:
        width = max(1, int(units.sum(1).max())) if len(self) else 0
        order = torch.argsort((~units).to(torch.int8), dim=1, stable=True)[:, :width]
        mask = units.gather(1, order)
        return replace(
            self,
            inputs=self.inputs.gather(1, order).masked_fill(~mask, self.pad_id),
            mask=mask,
            segments=self.segments.gather(1, order).masked_fill(~mask, 0),
            words=self.words.gather(1, order).masked_fill(~mask, -1),
        )

    def _trim_padding(self) -> Batch:
        width = max(1, int(self.mask.sum(1).max())) if len(self) else 0
        return replace(
            self,
            inputs=self.inputs[:, :width],
            mask=self.mask[:, :width],
            segments=self.segments[:, :width],
            words=self.words[:, :width],
        )

    def _map_tensors(self, function: _TensorFunction) -> Batch:
        return replace(
            self,
            inputs=function(self.inputs),
            mask=function(self.mask),
            segments=function(self.segments),
            words=function(self.words),
            labels=None if self.labels is None else function(self.labels),
            candidates=None if self.candidates is None else function(self.candidates),
        )


class _TensorFunction(Protocol):
    def __call__(self, tensor: Tensor, /) -> Tensor: ...


class Task(ABC):
    """What a model is asked for; removes every "if classification, elif regression".

    `headline` names the score that picks the best epoch; larger is better for every headline.
    """

    primary_metric: ClassVar[str]

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Logits that a model gives for one example."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Columns of `probabilities`: classes, or 1 for regression."""

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """What the model says `[... classes]`: a distribution over classes, or the number itself for regression."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of each example `[batch]`."""

    @abstractmethod
    def compute_metrics(self, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
        """All the scores that papers print for this task, by name; `headline` is one of them."""


@dataclass(frozen=True)
class Trace:
    """What happened inside a model, each field on the unit axis of the batch.

    Args:
        embeddings: `[batch unit width]`.
        hidden: what attention reads, `[batch unit dim]` (transformers: the last layer's states).
        scores: attention before normalising, `[batch layer head query unit]`; None where attention was given.
        attention: `[batch layer head query unit]`, each row a distribution over real units.
        logits: `[batch output]`.
    """

    embeddings: Tensor
    hidden: Tensor
    attention: Tensor
    logits: Tensor
    scores: Tensor | None = None


class Model(nn.Module, ABC):
    """A network whose embeddings and attention can be read and replaced.

    A given field is taken as it is, and what only served to compute it is skipped. `notes` say in plain words what
    building the model had to decide, for instance that its head is new. Attention is `imposed` where every call that
    gives none gets it from outside: it may depend on an example's uid and word numbers, not on its text alone.
    """

    task: Task
    notes: tuple[str, ...] = ()
    has_imposed_attention: bool = False

    @abstractmethod
    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace: ...

    if TYPE_CHECKING:

        def __call__(
            self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None
        ) -> Trace: ...


@runtime_checkable
class SupportsLeaveOneOut(Protocol):
    """A model that knows a faster way than one reading per deletion, while its attention is its own, not imposed."""

    def leave_one_out_logits(self, batch: Batch) -> Tensor:
        """Logits `[batch unit output]` of each text without each of its `deletable` units, read anew.

        At all other units stand the logits of the whole text. No gradient is kept.
        """
        ...


class Architecture(ABC):
    """A frozen description of a model that can be built, for instance `Pooled(BiLSTM(128), Additive())`."""

    @abstractmethod
    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        """A fresh model; `embeddings` is the starting table `[vocabulary width]` where inputs are word ids."""

    def describe(self) -> dict[str, str]:
        """Short names of `encoder` and `attention` for tables and file names, for instance bilstm and additive."""
        return {"encoder": type(self).__name__.lower(), "attention": "self"}


class Tokenizer(ABC):
    """Turns examples into batches; made by `Batching.fit` or brought back by `Batching.restore`."""

    @abstractmethod
    def __call__(self, examples: Sequence[Example]) -> Batch:
        """The examples in this order as one batch."""

    @abstractmethod
    def unit_texts(self, batch: Batch) -> list[list[str]]:
        """The text of each real unit of each row, for people to read; special symbols in angle brackets."""

    @abstractmethod
    def state(self) -> dict[str, object]:
        """What `Batching.restore` needs, as plain JSON values."""

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each id; empty where a tokenizer of its own or pixels are used."""

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        """What batching does to these examples that people should know: texts cut, words unknown."""
        return {}


@dataclass(frozen=True)
class Selection:
    """Examples that a batching keeps, and how many it left out, by reason in plain words."""

    examples: tuple[Example, ...]
    num_dropped: Mapping[str, int] = field(default_factory=dict)


class Tokenization(ABC):
    """A frozen description of preprocessing: `Words`, `Subwords` or `Patches`."""

    @abstractmethod
    def fit(self, examples: Sequence[Example]) -> Tokenizer:
        """A batcher whose vocabulary comes from these (training) examples."""

    @abstractmethod
    def restore(self, saved: Mapping[str, object]) -> Tokenizer:
        """The batcher that gave `saved`."""

    def select(self, examples: Sequence[Example]) -> Selection:
        """The examples of one split that this preprocessing keeps; all of them unless it says otherwise."""
        return Selection(tuple(examples))


@dataclass(frozen=True)
class Splits:
    """A corpus that was read: the examples of each split and what reading did to them.

    Args:
        classes: names of the classes in the order of their indices; empty for regression.
        notes: counts and remarks for the report, in plain words: rows left out, parts carved, texts cut.
        lexicon: words that may occur although the training split does not show them, for a corpus that knows.
    """

    task: Task
    class_names: tuple[str, ...]
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    notes: Mapping[str, int | float | str] = field(default_factory=dict)
    extra_vocabulary: tuple[str, ...] = ()

    def __getitem__(self, split: Split) -> tuple[Example, ...]:
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]


class DiskResource(ABC):
    """A frozen description of something kept on disk, whose content is part of every fingerprint it enters."""

    @abstractmethod
    def digest(self, data: Path) -> str:
        """A hash of the content: the same recipe on other data is other work."""


class Corpus(DiskResource):
    """A frozen description of where examples come from; a class attribute may stand for each property."""

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
        """The examples, from the data folder; raises `UserError` in the user's words."""


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
        """The sum of its units' scores for each word, `[batch word]`; words without a scored unit are masked out."""
        count = int(words.max()) + 1 if words.numel() else 0
        scored = self.mask & (words >= 0)
        slot = words.clamp(min=0)
        scores = self.scores.new_zeros(len(words), count)
        present = torch.zeros(len(words), count, dtype=torch.int64, device=words.device)
        scores = scores.scatter_add(1, slot, self.scores * scored)
        present = present.scatter_add(1, slot, scored.long())
        return Attribution(scores, present > 0)


class Method(Protocol):
    """An attribution method: a frozen dataclass whose fields are its hyper-parameters, with one verb.

    Sampling methods draw per example from (seed, uid): the company in a batch changes nothing.
    """

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Scores of the units for the outputs `target` `[batch]` (class indices)."""
        ...


@runtime_checkable
class SupportsPreparation(Protocol):
    """A method with work to do once for a model, before it is run on many batches."""

    def prepare(self, model: Model) -> Method:
        """The method made ready for this model as it is now; called with it, it gives the same scores."""
        ...


@dataclass(frozen=True)
class ValueTrace:
    """What attention carries in each layer, from the first up; tensors stay in the graph of `logits`.

    A layer's attention gives to query q the sum over heads and units of a_qu (v_u P), plus the offset.

    Args:
        attention: the weights that each layer used `[batch head query unit]`.
        values: v, what each unit offers to each head `[batch head unit dim]`.
        projections: P, from a head's values to the states of the layer `[head dim width]`.
        offsets: what the layer adds `[width]`.
    """

    attention: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    projections: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    logits: Tensor


@runtime_checkable
class ExposesValues(Protocol):
    """A model of self-attention layers that shows what they carry."""

    def read_values(self, batch: Batch, *, embeddings: Tensor | None = None) -> ValueTrace:
        """Weights, values and projections of every layer; where gradients are on, the weights take one.

        Given embeddings are taken as they are.
        """
        ...


def check_attention_not_imposed(model: Model) -> None:
    """Refuses a model under imposed attention: its layers, read by themselves, would attend in their own way."""
    if model.has_imposed_attention:
        raise UserError(
            "attention is imposed on this model, and this method reads that of its own layers: choose one that "
            "reads its answers, such as Lime, LeaveOneOut or IntegratedGradients"
        )


@dataclass(frozen=True)
class HeadTrace:
    """The maps of all heads of a batch, and what the model answers, from one reading.

    Args:
        scores: mean scaled scores over the real query rows, `[batch layer head unit]`; 0 on padding.
        logits: `[batch output]`.
    """

    scores: Tensor
    logits: Tensor

    @property
    def maps(self) -> Tensor:
        """The scores as a bank of maps `[batch map unit]`, layer by layer: map = layer * heads + head."""
        return self.scores.flatten(1, 2)


@runtime_checkable
class ExposesHeads(Protocol):
    """A model that gives its heads' maps without a score for each pair of units."""

    def read_heads(self, batch: Batch) -> HeadTrace:
        """Maps and logits of a batch."""
        ...


@runtime_checkable
class ExposesArchitecture(Protocol):
    """A model that says what it is built like, in words that two models share if and only if their heads match."""

    @property
    def architecture_summary(self) -> str:
        """For instance "bert, 12 layers, 12 heads, width 768"."""
        ...


def architecture_summary(model: Model) -> str:
    """What a model is built like: its own words, or the name of its class."""
    return model.architecture_summary if isinstance(model, ExposesArchitecture) else type(model).__name__


def read_heads(model: Model, batch: Batch) -> HeadTrace:
    """Maps and logits of a batch: by the model's fast way where it has one, else from the scores of its trace.

    A pooled model has one layer and one head, and one query row (or two for a compared pair, where each text's row is
    0 on the other text): its map is the mean over these rows.
    """
    if isinstance(model, ExposesHeads):
        check_attention_not_imposed(model)
        return model.read_heads(batch)
    trace = model(batch)
    if trace.scores is None:
        raise UserError(f"{type(model).__name__} shows no attention scores, so that its heads cannot be read")
    return HeadTrace(mean_over_queries(trace.scores, batch.mask), trace.logits)


def mean_over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    """The mean over real query rows `[batch layer head unit]` of scores `[batch layer head query unit]`; 0 on padding.

    Rows are units of the batch where there are as many, and then only real units count; else every row counts.
    """
    if scores.shape[3] == mask.shape[1]:
        rows = query_weights(mask, scores.dtype)
        means = torch.einsum("blhqu,bq->blhu", scores, rows)
    else:
        means = scores.mean(3)
    return means.masked_fill(~mask[:, None, None], 0.0)


def query_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight of each unit as a query row `[batch unit]`: real units alike, padding 0."""
    return mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)


# A wish of the caller, who alone knows that derivatives of derivatives will be asked for.
_unfused_attention: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Inside, models read heads with attention in plain products, through which second derivatives pass.

    Fused attention has a first derivative only. Forward-mode derivatives need no such wish: they are noticed.
    """
    token = _unfused_attention.set(True)
    try:
        yield
    finally:
        _unfused_attention.reset(token)


def requires_unfused_attention() -> bool:
    """True inside `plain_attention()`, in the same thread."""
    return _unfused_attention.get()


@dataclass(frozen=True)
class LayerInput:
    """States `[batch unit width]` that take the place of a layer's input; layers are counted from 0."""

    layer: int
    states: Tensor


@dataclass(frozen=True)
class LayerTrace:
    """The input `[batch unit width]` of each layer from the first up, and the logits `[batch output]`."""

    inputs: tuple[Tensor, ...]
    logits: Tensor


@runtime_checkable
class ExposesLayers(Protocol):
    """A model made of layers whose inputs can be read and replaced."""

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """One reading from these embeddings, with one layer's input replaced if it is given.

        Whatever lies below that layer is left as the embeddings make it.
        """
        ...


def read_layers(model: Model, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
    """Inputs of all layers and logits; a model that shows no layers counts as one, whose input is the embeddings."""
    if isinstance(model, ExposesLayers):
        check_attention_not_imposed(model)
        return model.read_layers(batch, embeddings, replacement)
    inputs = embeddings if replacement is None else replacement.states
    return LayerTrace((inputs,), model(batch, embeddings=inputs).logits)
