"""Attention sources: where imposed attention comes from, as weights `[batch layer head query unit]` for a batch.

`ShuffledAttention` and `RandomAttention` are controls that an informative source must beat. Every weight depends on its
example alone, never on the rest of the batch, so an example has the same weights in every epoch and in the test.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.attributions.attention import is_self_attention
from heedful.attributions.method import example_seeds
from heedful.models.attentive import Attentive, AttentiveModel
from heedful.seeding import permute_within, sample_uniform
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.predictions import Predictions, attention_support
from heedful.types import SPLITS, Batch, Method, Model, UserError, evaluation_mode, pool_by_word

AttentionFunction = Callable[[Batch], Tensor]
"""The attention imposed on a batch."""


class AttentionSource(ABC):
    """Where imposed attention comes from; `is_control` marks sources without information about the example."""

    is_control: ClassVar[bool] = False

    @abstractmethod
    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """The attention that `model` uses for a batch."""

    def count_uniform_fallbacks(self, workspace: Workspace) -> int:
        """How many examples of all splits get uniform weights because the source has no usable scores for them."""
        return 0


@dataclass(frozen=True)
class UniformAttention(AttentionSource):
    """The same weight on every unit that takes part in the model's attention."""

    revision: ClassVar[int] = 2

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        layout = AttentionLayout(model)
        return lambda batch: layout.expand_rows(uniform_weights(layout.support(batch)))


@dataclass(frozen=True)
class FromModel(AttentionSource):
    """The attention of another model on the same examples."""

    subject: ModelRecipe

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """The other model's attention: looked up for known texts of pooled models, else computed."""
        other = self.subject.restore(workspace)
        pooled = isinstance(self.subject.architecture, Attentive)
        look_up = _attention_lookup(self.subject, other, workspace) if pooled else None
        layout = AttentionLayout(model)

        def attention(batch: Batch) -> Tensor:
            weights = None if look_up is None else look_up(batch)
            if weights is None:
                with torch.no_grad():
                    weights = other.model(batch).attention
            expected = layout.expand_rows(layout.support(batch)).shape
            if weights.shape != expected:
                raise UserError(
                    f"attention of shape {tuple(weights.shape)} cannot be imposed on a model whose own is "
                    f"{tuple(expected)}; use the other model's word scores: FromScores(subject, RawAttention())"
                )
            return weights.to(next(model.parameters()).dtype)

        return attention


@dataclass(frozen=True)
class FromScores(AttentionSource):
    """|scores| of an attribution method on a model, summed by word and normalized over the learner's words.

    The model may have another tokenizer, a transformer for instance: words are what both have in common. A word's
    weight is shared equally by the learner's units of that word. An example whose scores are all zero, or not all
    finite, gets uniform weights.
    """

    revision: ClassVar[int] = 2

    subject: ModelRecipe
    method: Method

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return (self.subject, *self._tables)

    @property
    def _tables(self) -> tuple[AttributionTable, ...]:
        return tuple(AttributionTable(self.subject, self.method, split) for split in SPLITS)

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """w_t = s(word of t) / units of that word, divided by its sum over the units that take part in attention."""
        scores = dict(self._word_scores(workspace))
        layout = AttentionLayout(model)

        def attention(batch: Batch) -> Tensor:
            support, content = layout.support(batch), batch.content_mask.unsqueeze(1)
            words = torch.where((support & content).any(-1, keepdim=True), support & content, support)
            shares = _unit_shares(scores, batch).unsqueeze(1) * words
            total = shares.sum(-1, keepdim=True)
            return layout.expand_rows(torch.where(total > 0, shares / total, uniform_weights(words)))

        return attention

    def count_uniform_fallbacks(self, workspace: Workspace) -> int:
        return sum(float(np.nansum(words)) == 0 for _, words in self._word_scores(workspace))

    def _word_scores(self, workspace: Workspace) -> Iterator[tuple[str, NDArray[np.float64]]]:
        for recipe in self._tables:
            table = workspace.get(recipe).table
            for uid, scores, words, scored in zip(
                table["uid"], table["scores"], table["words"], table["scored"], strict=True
            ):
                yield str(uid), word_magnitudes(scores, words, scored)


def word_magnitudes(scores: list[float], words: list[int], scored: list[bool]) -> NDArray[np.float64]:
    """The sum of |score| of each word's units; NaN for a word without scored units, all 0 where one is not finite."""
    index = torch.tensor([words], dtype=torch.int64).masked_fill(~torch.tensor([scored], dtype=torch.bool), -1)
    sums, present = pool_by_word(torch.tensor([scores], dtype=torch.float64).abs(), index)
    sums = sums if bool(sums.isfinite().all()) else torch.zeros_like(sums)
    magnitudes: NDArray[np.float64] = sums.masked_fill(~present, torch.nan)[0].numpy()
    return magnitudes


def _unit_shares(word_scores: dict[str, NDArray[np.float64]], batch: Batch) -> Tensor:
    """Each unit's share of its word's score `[batch unit]`, in float64; zero on units that belong to no word."""
    words = batch.words.cpu()
    width = int(words.max()) + 1 if words.numel() else 0
    scores = torch.full((len(batch), max(1, width)), torch.nan, dtype=torch.float64)
    for row, uid in enumerate(batch.uids):
        if uid not in word_scores:
            raise UserError(f"the attention source has no scores of example {uid!r}: give both models the same corpus")
        text_scores = torch.from_numpy(word_scores[uid])[:width]
        scores[row, : len(text_scores)] = text_scores
    slot, has_word = words.clamp(min=0), words >= 0
    counts = torch.zeros_like(scores).scatter_add(1, slot, has_word.double())
    shares = (scores / counts.clamp(min=1)).gather(1, slot)
    missing = (shares.isnan() & has_word).nonzero()
    if len(missing):
        row, unit = missing[0].tolist()
        raise UserError(
            f"word {int(words[row, unit]) + 1} of example {batch.uids[row]!r} has no score from the attention source: "
            "give both models the same corpus, or truncate long texts for both"
        )
    return shares.masked_fill(~has_word, 0.0).to(batch.mask.device)


@dataclass(frozen=True)
class ShuffledAttention(AttentionSource):
    """Control: another source's weights permuted within each example by an order drawn from (seed, uid).

    It keeps how unequal the weights are and loses where they belong.
    """

    source: AttentionSource
    seed: int = 0
    is_control: ClassVar[bool] = True
    revision: ClassVar[int] = 2

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        original, layout = self.source.attention_function(model, workspace), AttentionLayout(model)

        def attention(batch: Batch) -> Tensor:
            weights, support = original(batch), layout.support(batch)
            seeds = example_seeds("shuffled", self.seed, batch)
            rows = weights.chunk(support.shape[1], dim=3)  # one row of support may hold for all queries
            shuffled = [permute_within(row, support[:, index], seeds + index) for index, row in enumerate(rows)]
            return torch.cat(shuffled, dim=3) * layout.expand_rows(support)

        return attention

    def count_uniform_fallbacks(self, workspace: Workspace) -> int:
        return self.source.count_uniform_fallbacks(workspace)


@dataclass(frozen=True)
class RandomAttention(AttentionSource):
    """Control: the softmax of standard normal numbers drawn from (seed, uid)."""

    seed: int = 0
    is_control: ClassVar[bool] = True
    revision: ClassVar[int] = 2

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """exp(z_t) / sum_u exp(z_u) over the units that take part in attention, the same in every epoch."""
        layout = AttentionLayout(model)

        def attention(batch: Batch) -> Tensor:
            support = layout.support(batch)
            uniform = sample_uniform(example_seeds("scattered", self.seed, batch), support.shape[1], support.shape[2])
            normal = torch.special.ndtri(uniform.clamp(min=2.0**-54))
            return layout.expand_rows(torch.softmax(normal.masked_fill(~support, -torch.inf), -1).nan_to_num(0.0))

        return attention


class AttentionLayout:
    """The shape and the support of a model's attention."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._shape: tuple[int, int, int | None] | None = None
        self._reaches_all = False

    def support(self, batch: Batch) -> Tensor:
        """Units that take part in attention, `[batch row unit]`: a row per query, or one row that holds for all."""
        if isinstance(self.model, AttentiveModel):
            return self.model.input_format.support(batch)
        everything = batch.mask.unsqueeze(1)
        if self._reaches_all:
            return everything
        # The method, not the module: a hook of the module would ask for the very weights that are being made.
        with torch.no_grad(), evaluation_mode(self.model):
            trace = self.model.forward(batch)
        rows = attention_support(self.model, batch, trace.attention, trace.scores).flatten(1, 2).any(1)
        layers, heads, queries = trace.attention.shape[1:4]
        pooled = not is_self_attention(trace.attention, batch)
        self._shape = layers, heads, queries if pooled else None
        # A transformer without a mask of its own needs no further pass to know its support.
        if not pooled and queries > 1 and bool((rows | ~batch.mask.unsqueeze(-1) | ~everything).all()):
            self._reaches_all, rows = True, everything
        return rows

    def expand_rows(self, rows: Tensor) -> Tensor:
        """Values `[batch row unit]` as `[batch layer head query unit]`; real numbers in the model's own type."""
        if rows.is_floating_point():
            rows = rows.to(next(self.model.parameters()).dtype)
        if self._shape is None:
            return rows[:, None, None]
        layers, heads, queries = self._shape
        batch, _, units = rows.shape
        return rows[:, None, None].expand(batch, layers, heads, queries or units, units)


def uniform_weights(support: Tensor) -> Tensor:
    """The same weight on every supported unit of a row, in float64; zero where there is none."""
    return support / support.sum(-1, keepdim=True).clamp(min=1).double()


def impose_attention(model: Model, weights: AttentionFunction) -> None:
    """Makes the model use these weights in every call that passes no attention."""

    def add_attention(
        module: torch.nn.Module, args: tuple[Batch], options: dict[str, Tensor | None]
    ) -> tuple[tuple[Batch], dict[str, Tensor | None]]:
        if options.get("attention") is not None:
            return args, options
        return args, {**options, "attention": weights(args[0])}

    model.register_forward_pre_hook(add_attention, with_kwargs=True)
    model.has_imposed_attention = True


def _attention_lookup(
    subject: ModelRecipe, loaded: LoadedModel, workspace: Workspace
) -> Callable[[Batch], Tensor | None]:
    """A pooled model's stored attention on the texts of its corpus; None where one of a batch is another text.

    By content, since methods that delete or replace words call a model with the same uid and another text.
    """
    known: dict[bytes, Tensor] = {}
    for split in SPLITS:
        attention = workspace.get(Predictions(subject, split)).tensors["attention"]
        known |= zip(_text_digests(loaded.batch(split)), attention, strict=True)

    def look_up(batch: Batch) -> Tensor | None:
        stored = [known.get(digest) for digest in _text_digests(batch)]
        rows_found = [
            row_attention[..., : batch.mask.shape[1]] for row_attention in stored if row_attention is not None
        ]
        if len(rows_found) < len(batch):
            return None
        weights = torch.zeros(len(batch), *rows_found[0].shape[:-1], batch.mask.shape[1])
        for row, row_attention in enumerate(rows_found):
            weights[row, ..., : row_attention.shape[-1]] = row_attention
        return weights.to(batch.mask.device)

    return look_up


def _text_digests(batch: Batch) -> list[bytes]:
    """A digest of each text: its units and their segments."""
    inputs, segments, lengths = batch.inputs.cpu().numpy(), batch.segments.cpu().numpy(), batch.lengths.tolist()
    rows = ((inputs[row, :length], segments[row, :length]) for row, length in enumerate(lengths))
    return [hashlib.blake2b(units.tobytes() + parts.tobytes(), digest_size=16).digest() for units, parts in rows]
