"""Base class of trials: a recipe that tests one claim about one model, with a tidy summary and verdicts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.attributions.attention import largest_weights
from heedful.attributions.method import method_name
from heedful.figures import Axis, Bars, Figure, Series, Violin
from heedful.results import Claim, Finding, Statistic, stored_texts, summary_frame
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.shard import ShardedRecipe, block_label, join_columns
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import sample_places
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import device_batches
from heedful.types import Batch, Method, Model, Split, Task, Trace, UserError, check_methods

MIN_TEXTS = 10
"""With fewer texts than this a bin is not compared with another."""
SMALL_SHARE, LARGE_SHARE = 0.1, 0.4
"""Mean divergence of attention as a share of the largest possible one: small below the first, large from the second."""
ATTENTION_BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Bins of the maximum attention weight of a text (Jain & Wallace, figure 3): open above, except the last."""
ATTENTION_BIN_LABELS = tuple(f"{low:.2f} to {high:.2f}" for low, high in ATTENTION_BINS)


def check_distinct_methods(methods: Sequence[Method]) -> None:
    """Raise `UserError` for no methods, for two of the same name, and for anything else than a method."""
    check_methods(methods)
    if not methods:
        raise UserError("pass at least one method")
    if len({method_name(method) for method in methods}) < len(methods):
        raise UserError("the same method is passed twice; omit one, or use another seed")


def _attention_bins(table: pd.DataFrame) -> list[NDArray[np.bool_]]:
    """The rows in each bin of `maximum_attention`; rounding may put a maximum slightly above 1."""
    maximum, last = table["maximum_attention"].to_numpy(float), ATTENTION_BINS[-1]
    return [(maximum >= low) & ((maximum < high) | ((low, high) == last)) for low, high in ATTENTION_BINS]


def split_by_class_and_attention(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Subset names and rows: all, of each predicted class, and of each class in each bin of maximum attention."""
    yield "", table
    for predicted, rows in table.groupby("predicted"):
        yield f"class {predicted}", rows
        for label, inside in zip(ATTENTION_BIN_LABELS, _attention_bins(rows), strict=True):
            yield bin_subset(f"class {predicted}", label), rows[inside]


def bin_subset(class_subset: str, label: str) -> str:
    """The subset of a class whose maximum attention lies in the bin with this label."""
    return f"{class_subset}, attention {label}"


def attention_violins(title: str, axis: Axis, table: pd.DataFrame, column: str) -> Violin:
    """A column of the table in each bin of maximum attention, with a violin for each predicted class."""
    predicted, values = table["predicted"].to_numpy(), table[column].to_numpy(float)
    groups = tuple(
        tuple(
            Series(f"class {label}", tuple(values[inside & (predicted == label)].tolist()))
            for label in sorted({*predicted.tolist()})
        )
        for inside in _attention_bins(table)
    )
    return Violin(title, axis, Axis("maximum attention"), ATTENTION_BIN_LABELS, groups, column)


def interval_bars(title: str, axis: Axis, names: Sequence[str], rows: Mapping[str, Sequence[Statistic]]) -> Bars:
    """Bars with their intervals: the rows of each series, one for each of the names."""
    series = tuple(Series(label, tuple(row.value for row in statistics)) for label, statistics in rows.items())
    intervals = tuple(
        (Series(label, tuple(row.low for row in statistics)), Series(label, tuple(row.high for row in statistics)))
        for label, statistics in rows.items()
    )
    return Bars(title, axis, tuple(names), series, intervals=intervals)


def rows_by_batch(
    batch: Batch, batch_size: int, workspace: Workspace, title: str, rows: Callable[[Batch], pd.DataFrame]
) -> pd.DataFrame:
    """The table of a whole batch, computed in parts of similar length on the workspace's device."""
    parts = device_batches(batch, workspace, title, batch_size)
    return pd.concat([rows(part) for _, part in parts], ignore_index=True)


def text_columns(task: Task, batch: Batch, trace: Trace) -> dict[str, Sequence[object]]:
    """The columns that describe each text of a batch."""
    return {
        "uid": batch.uids,
        "length": batch.content_mask.sum(1).tolist(),
        "predicted": task.probabilities(trace.logits).argmax(1).tolist(),
        "maximum_attention": largest_weights(trace.attention, batch).tolist(),
    }


class Trial(Recipe):
    """A test of one claim on one model.

    Concrete trials are frozen dataclasses with a field `subject`. The texts are for readers who do not know the papers:
    what was tested (`claim`), what came out (`interpretation`), what it does not mean (`limits`).
    """

    kind: ClassVar[str] = "trial"
    name: ClassVar[str]
    paper: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    source: ClassVar[str]
    limits: ClassVar[str]

    subject: ModelRecipe

    def describe(self) -> Mapping[str, Json]:
        """The facts of the subject, and the names of the trial and its paper."""
        return {**self.subject.describe(), "trial": self.name, "paper": self.paper}

    def tabulate_texts(
        self,
        workspace: Workspace,
        rows: Callable[[Model, Batch], pd.DataFrame],
        limit: int | None,
        batch_size: int,
        split: Split = "test",
        block: range | None = None,
    ) -> Artefact:
        """The rows of at most `limit` texts of a split, computed in batches.

        Args:
            block: places among these texts; None takes all.
        """
        trained = self.subject.restore(workspace)
        whole = trained.examples(split)
        places = sample_places(len(whole), limit)
        selected = places if block is None else places[block.start : block.stop]
        label = "" if block is None else block_label(block, len(places))
        batch = trained.tokenizer(tuple(whole[place] for place in selected))
        title = f"{self.name} {self.subject.about['corpus']}{label}"
        table = rows_by_batch(batch, batch_size, workspace, title, partial(rows, trained.model))
        return self.artefact(table, len(batch), len(whole))

    def artefact(self, table: pd.DataFrame, n: int, of: int | None = None) -> Artefact:
        """The table of `n` texts out of `of`, by default all, with the facts of the subject."""
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": n, "of": n if of is None else of})

    def summarize(self, artefact: Artefact) -> pd.DataFrame:
        """The tidy summary that the workspace stores with the artefact."""
        return self.summary(artefact.table)

    def explain(self, summary: pd.DataFrame) -> Mapping[str, Json]:
        """The texts and verdicts of a class outside the package, which the report cannot import."""
        if type(self).__module__.startswith("heedful."):
            return {}
        return stored_texts(self.texts(summary), self.interpretation(summary), self.findings(summary))

    @classmethod
    def texts(cls, summary: pd.DataFrame) -> Claim:
        """Title, claim, source and limits of what was tested."""
        return Claim(*(str(getattr(cls, field.name, "")) for field in fields(Claim)))

    @classmethod
    def summary(cls, table: pd.DataFrame) -> pd.DataFrame:
        """What the paper reports, as a tidy table with the columns of `SUMMARY_COLUMNS`."""
        return summary_frame(cls.statistics(table))

    @classmethod
    @abstractmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """The rows of the summary."""

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """The verdicts on the claim, from the summary of one seed or of several combined; none if it only describes."""
        return ()

    @staticmethod
    @abstractmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """The figures of the paper."""

    @classmethod
    @abstractmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        """The findings in a few plain sentences."""


class ShardedTrial(Trial, ShardedRecipe):
    """A trial whose rows are computed text by text, a block of a large corpus at a time; verdicts are on all rows.

    The rows of several blocks are never in memory together, except for the columns that the summary is computed from.
    """

    statistics_columns: ClassVar[tuple[str, ...]]
    """The columns that `statistics` reads, as far as they exist."""

    if TYPE_CHECKING:  # a field in one trial, a constant in another

        @property
        def split(self) -> Split: ...

    def count_examples(self, workspace: Workspace) -> int:
        return len(sample_places(self.subject.count_examples(workspace, self.split), self.limit))

    def make(self, workspace: Workspace) -> Artefact:
        """The rows of all texts."""
        shards = self.shards(workspace)
        if not shards:
            [whole] = self.parts(workspace, shards)
            if not whole.blocks:
                return whole
            return replace(whole, summary=self.summary(join_columns([whole.table], self.statistics_columns)))
        notes, n = dict[str, Json](), 0

        def tables() -> Iterator[pd.DataFrame]:
            nonlocal n
            for part in self.parts(workspace, shards):
                notes.update(part.notes)
                n += int(str(part.notes["n"]))
                yield part.table

        summary = self.summary(join_columns(tables(), self.statistics_columns))
        return Artefact(notes={**notes, "n": n}, summary=summary, shards=shards)

    def summarize(self, artefact: Artefact) -> pd.DataFrame:
        """Computed by `make` where there are several blocks."""
        return artefact.summary if len(artefact.summary.columns) else super().summarize(artefact)
