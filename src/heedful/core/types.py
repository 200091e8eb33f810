"""The vocabulary of the house: examples, batches, tasks, traces, models, attributions.

Data, models and attributions meet only here: a method knows that a model turns a batch into a trace, never which
class of model it is. Every tensor stands on one *unit* axis (tokens or image patches); attention is always
`[batch layer head query unit]`. What comes out of a model may be put back in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
Number = int | float


class UserError(Exception):
    """A mistake that the user can mend: one plain line that says what is wrong and what to do about it."""


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
    truth: tuple[float, ...] | None = None


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
    filler: int = 0
    unknown: int | None = None
    masker: int | None = None

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def scored(self) -> Tensor:
        """True on the units that can receive a score: neither padding nor special symbols."""
        return self.words >= 0

    @property
    def deletable(self) -> Tensor:
        """True on the scored units whose part has another scored unit: deleting them empties no part."""
        both = [self.scored & (self.segments == part) for part in (0, 1)]
        first, second = (part & (part.sum(1, keepdim=True) > 1) for part in both)
        return first | second

    @property
    def lengths(self) -> Tensor:
        """Real units of each row, special symbols included."""
        return self.mask.sum(1)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def rows(self, index: Tensor) -> Batch:
        """The rows at `index` (int64), in that order, without padding that no row needs any more."""
        picked = self._map(lambda tensor: tensor[index])
        picked = replace(picked, uids=tuple(self.uids[i] for i in index.tolist()))
        return picked._trimmed()

    def repeat(self, times: int) -> Batch:
        """Each row `times` times, copies side by side."""
        repeated = self._map(lambda tensor: tensor.repeat_interleave(times, dim=0))
        return replace(repeated, uids=tuple(uid for uid in self.uids for _ in range(times)))

    def keep(self, units: Tensor) -> Batch:
        """Only the marked units `[batch unit]`: text closes the gap, an image blanks its patch.

        Word numbers are not renumbered: a unit keeps the word that it had.
        """
        if self.inputs.dim() > 2:
            return replace(self, inputs=self.inputs * units.unsqueeze(-1))
        return self._gathered(units & self.mask)

    def segment(self, part: int) -> Batch:
        """One part of every example as a batch of its own, left-aligned."""
        return self._gathered(self.mask & (self.segments == part))

    def _gathered(self, units: Tensor) -> Batch:
        width = max(1, int(units.sum(1).max())) if len(self) else 0
        order = torch.argsort((~units).to(torch.int8), dim=1, stable=True)[:, :width]
        mask = units.gather(1, order)
        return replace(
            self,
            inputs=self.inputs.gather(1, order).masked_fill(~mask, self.filler),
            mask=mask,
            segments=self.segments.gather(1, order).masked_fill(~mask, 0),
            words=self.words.gather(1, order).masked_fill(~mask, -1),
        )

    def _trimmed(self) -> Batch:
        width = max(1, int(self.mask.sum(1).max())) if len(self) else 0
        return replace(
            self,
            inputs=self.inputs[:, :width],
            mask=self.mask[:, :width],
            segments=self.segments[:, :width],
            words=self.words[:, :width],
        )

    def _map(self, change: _Change) -> Batch:
        return replace(
            self,
            inputs=change(self.inputs),
            mask=change(self.mask),
            segments=change(self.segments),
            words=change(self.words),
            labels=None if self.labels is None else change(self.labels),
            candidates=None if self.candidates is None else change(self.candidates),
        )


class _Change(Protocol):
    def __call__(self, tensor: Tensor, /) -> Tensor: ...


class Task(ABC):
    """What a model is asked for; removes every "if classification, elif regression".

    `headline` names the score that picks the best epoch; larger is better for every headline.
    """

    headline: ClassVar[str]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Logits that a model gives for one example."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """Columns of `probabilities`: classes, or 1 for regression."""

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """What the model says `[... classes]`: a distribution over classes, or the number itself for regression."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of each example `[batch]`."""

    @abstractmethod
    def score(self, probabilities: Tensor, labels: Tensor) -> dict[str, float]:
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
    imposed: bool = False

    @abstractmethod
    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace: ...

    if TYPE_CHECKING:

        def __call__(
            self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None
        ) -> Trace: ...


@runtime_checkable
class Deletes(Protocol):
    """A model that knows a faster way than one reading per deletion, while its attention is its own, not imposed."""

    def without_each(self, batch: Batch) -> Tensor:
        """Logits `[batch unit output]` of each text without each of its `deletable` units, read anew.

        At all other units stand the logits of the whole text. No gradient is kept.
        """
        ...


class Plan(ABC):
    """A frozen description of a model that can be built, for instance `Pooled(BiLSTM(128), Additive())`."""

    @abstractmethod
    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> Model:
        """A fresh model; `embeddings` is the starting table `[vocabulary width]` where inputs are word ids."""


class Batcher(ABC):
    """Turns examples into batches; made by `Batching.fit` or brought back by `Batching.restore`."""

    @abstractmethod
    def __call__(self, examples: Sequence[Example]) -> Batch:
        """The examples in this order as one batch."""

    @abstractmethod
    def texts(self, batch: Batch) -> list[list[str]]:
        """The text of each real unit of each row, for people to read; special symbols in angle brackets."""

    @abstractmethod
    def saved(self) -> dict[str, object]:
        """What `Batching.restore` needs, as plain JSON values."""

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """The word of each id; empty where a tokenizer of its own or pixels are used."""

    def remarks(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        """What batching does to these examples that people should know: texts cut, words unknown."""
        return {}


@dataclass(frozen=True)
class Selection:
    """Examples that a batching keeps, and how many it left out, by reason in plain words."""

    examples: tuple[Example, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


class Batching(ABC):
    """A frozen description of preprocessing: `Words`, `Subwords` or `Patches`."""

    @abstractmethod
    def fit(self, examples: Sequence[Example]) -> Batcher:
        """A batcher whose vocabulary comes from these (training) examples."""

    @abstractmethod
    def restore(self, saved: Mapping[str, object]) -> Batcher:
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
    classes: tuple[str, ...]
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    notes: Mapping[str, int | float | str] = field(default_factory=dict)
    lexicon: tuple[str, ...] = ()

    def __getitem__(self, split: Split) -> tuple[Example, ...]:
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]


class Content(ABC):
    """A frozen description of something kept on disk, whose content is part of every fingerprint it enters."""

    @abstractmethod
    def digest(self, data: Path) -> str:
        """A hash of the content: the same recipe on other data is other work."""


class Corpus(Content):
    """A frozen description of where examples come from.

    `batching` is the preprocessing of the paper that brought the corpus into the debate, or a sensible one; `width`
    is the size of the word vectors that go with it.
    """

    name: ClassVar[str]
    batching: ClassVar[Batching]
    width: ClassVar[int] = 300

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

    def by_word(self, words: Tensor) -> Attribution:
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
class Prepares(Protocol):
    """A method with work to do once for a model, before it is run on many batches."""

    def prepared(self, model: Model) -> Method:
        """The method made ready for this model as it is now; called with it, it gives the same scores."""
        ...
