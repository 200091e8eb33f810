"""Base class of trials: a recipe that tests one claim about one model, with a tidy summary and verdicts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator

from heedful.attributions.attention import largest_weights
from heedful.figures import Axis, Bars, Figure, Series, Violin
from heedful.measures.bootstrap import MIN_EXAMPLES, bootstrap_interval
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.shard import ShardedRecipe, block_label, join_columns
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import sample_places
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import device_batches
from heedful.types import Batch, Model, Split, Task, Trace

SUMMARY_COLUMNS = ("metric", "method", "subset", "value", "low", "high", "n")
EXPLANATION = "explanation"
"""The note under which a trial that is not part of the package stores its texts and verdicts."""
MIN_TEXTS = 10
"""With fewer texts than this a bin is not compared with another."""
NO_INTERVAL = f"no interval: fewer than {MIN_EXAMPLES} texts, or all equal"
"""Why a mean over texts has no interval."""
SMALL_SHARE, LARGE_SHARE = 0.1, 0.4
"""Mean divergence of attention as a share of the largest possible one: small below the first, large from the second."""
ATTENTION_BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Bins of the maximum attention weight of a text (Jain & Wallace, figure 3): open above, except the last."""
ATTENTION_BIN_LABELS = tuple(f"{low:.2f} to {high:.2f}" for low, high in ATTENTION_BINS)


@dataclass(frozen=True)
class Statistic:
    """One row of a summary.

    Args:
        metric: what was measured, for instance "median_change".
        method: the method, pair of methods or arm it belongs to; empty for the whole trial.
        subset: the part of the data, for instance "class 1" or "attention 0.25 to 0.50"; empty for all of it.
        value: NaN where it is undefined.
        low: lower bound of its 95 % confidence interval; NaN where it has none.
        high: upper bound.
        n: number of observations behind it; NaN where that has no meaning.
    """

    metric: str
    method: str = ""
    subset: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: float = math.nan


def summary_frame(statistics: Iterable[Statistic]) -> pd.DataFrame:
    """The statistics as a table with the columns of `SUMMARY_COLUMNS`, in the order given."""
    frame = pd.DataFrame(list(statistics), columns=list(SUMMARY_COLUMNS))
    return frame.astype({name: "str" if name in SUMMARY_COLUMNS[:3] else "float64" for name in SUMMARY_COLUMNS})


def find_statistic(summary: pd.DataFrame, metric: str, method: str = "", subset: str = "") -> Statistic | None:
    """The row of a summary with this metric, method and subset; None if there is none.

    >>> found = find_statistic(summary_frame([Statistic("accuracy", value=0.8)]), "accuracy")
    >>> found.value
    0.8
    """
    rows = select_statistics(summary, metric)
    return next((row for row in rows if (row.method, row.subset) == (method, subset)), None)


def get_statistic(summary: pd.DataFrame, metric: str, method: str = "", subset: str = "") -> Statistic:
    """The row of a summary with this metric, method and subset; its numbers are NaN if there is none."""
    return find_statistic(summary, metric, method, subset) or Statistic(metric, method, subset)


def value_of(summary: pd.DataFrame, metric: str, method: str = "", subset: str = "") -> float:
    """The value of one statistic; NaN if the summary has no such row."""
    return get_statistic(summary, metric, method, subset).value


def excess_metric(measure: str) -> str:
    """The metric under which a summary holds how much better a method is than random scores on this measure."""
    return f"{measure}_excess"


def select_statistics(summary: pd.DataFrame, metric: str) -> list[Statistic]:
    """All rows of a metric in the order of the summary, for every method and subset."""
    if metric not in (metrics := summary["metric"].tolist()):
        return []
    columns = (summary[name].tolist() for name in SUMMARY_COLUMNS[1:])
    return [Statistic(*row) for row in zip(metrics, *columns, strict=True) if row[0] == metric]


def split_by_attention(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows in each bin of `maximum_attention`; rounding may put a maximum slightly above 1."""
    return [table[inside] for inside in _attention_bins(table)]


def _attention_bins(table: pd.DataFrame) -> list[NDArray[np.bool_]]:
    maximum, last = table["maximum_attention"].to_numpy(float), ATTENTION_BINS[-1]
    return [(maximum >= low) & ((maximum < high) | ((low, high) == last)) for low, high in ATTENTION_BINS]


def split_by_class_and_attention(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Subset names and rows: all, of each predicted class, and of each class in each bin of maximum attention."""
    yield "", table
    for predicted, rows in table.groupby("predicted"):
        yield f"class {predicted}", rows
        for label, inside in zip(ATTENTION_BIN_LABELS, split_by_attention(rows), strict=True):
            yield f"class {predicted}, attention {label}", inside


def attention_violins(title: str, axis: Axis, table: pd.DataFrame, column: str) -> Violin:
    """A column of the table in each bin of maximum attention, with a violin for each predicted class."""
    predicted, values = table["predicted"].to_numpy(), table[column].to_numpy(float)
    groups = tuple(
        tuple(
            Series(f"class {each}", tuple(values[inside & (predicted == each)].tolist()))
            for each in sorted({*predicted.tolist()})
        )
        for inside in _attention_bins(table)
    )
    return Violin(title, axis, Axis("maximum attention"), ATTENTION_BIN_LABELS, groups)


def interval_bars(title: str, axis: Axis, names: Sequence[str], rows: Mapping[str, Sequence[Statistic]]) -> Bars:
    """Bars with their intervals: the rows of each series, one for each of the names."""
    series = tuple(Series(label, tuple(row.value for row in found)) for label, found in rows.items())
    intervals = tuple(
        (Series(label, tuple(row.low for row in found)), Series(label, tuple(row.high for row in found)))
        for label, found in rows.items()
    )
    return Bars(title, axis, tuple(names), series, intervals=intervals)


def paired_excess(
    values: NDArray[np.float64], control: NDArray[np.float64], seed: int
) -> tuple[float, float, float, int]:
    """Mean of values - control over the texts where both are defined, its 95 % interval, and the number of texts.

    The interval is from bootstrap resamples of the texts; NaN where that gives none.
    """
    differences = torch.from_numpy(values - control)
    differences = differences[differences.isfinite()]
    if not len(differences):
        return math.nan, math.nan, math.nan, 0
    interval = bootstrap_interval(differences, generator=Generator().manual_seed(seed))
    return interval.estimate, interval.low, interval.high, len(differences)


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


def combine_seeds(summaries: Sequence[pd.DataFrame | Mapping[str, list[object]]]) -> pd.DataFrame:
    """Summaries of several seeds as one: the mean of the defined values and the outermost bounds.

    A verdict that rests on a bound then holds on every seed. `n` is the mean number of observations, and the extra
    columns `std` and `seeds` hold the standard deviation over seeds and the number of seeds with a defined value.
    """
    grouped: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for summary in summaries:
        for row in zip(*(list(summary[name]) for name in SUMMARY_COLUMNS), strict=True):
            grouped.setdefault(row[:3], []).append(row[3:])
    rows = []
    for key, found in grouped.items():
        value, low, high, n = ([each for each in column if not math.isnan(each)] for column in zip(*found, strict=True))
        mean, deviation = mean_of_defined(value), math.nan
        if len(value) > 1:
            deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in value) / (len(value) - 1))
        bounds = min(low, default=math.nan), max(high, default=math.nan)
        rows.append((*key, mean, *bounds, mean_of_defined(n), deviation, len(value)))
    return pd.DataFrame(rows, columns=[*SUMMARY_COLUMNS, "std", "seeds"])


def mean_of_defined(values: Iterable[float]) -> float:
    """The mean of the values that are not NaN; NaN if there are none."""
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


class Verdict(Enum):
    """Whether the data supports a claim."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    UNDECIDED = "undecided"


def interval_verdict(low: float, high: float, margin: float = 0.0) -> Verdict:
    """SUPPORTED if the interval lies above 0, NOT_SUPPORTED if it lies below the margin, else UNDECIDED.

    Args:
        margin: the smallest gain that matters.
    """
    if low > 0:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if high < margin else Verdict.UNDECIDED


@dataclass(frozen=True)
class Finding:
    """A verdict on one claim, with the statistics it rests on.

    Args:
        verdict: whether the trial's claim is supported.
        method: the method, pair or arm that it is about; empty for the whole trial.
        evidence: the rows of the summary that decided.
        reason: why, in a few words, where the verdict and the evidence do not tell.
    """

    verdict: Verdict
    method: str = ""
    evidence: tuple[Statistic, ...] = ()
    reason: str = ""


def interval_finding(row: Statistic, margin: float = 0.0, *, no_interval: str) -> Finding:
    """The verdict of one statistic by its interval; `no_interval` is the reason where it has none."""
    reason = no_interval if math.isnan(row.low) else ""
    return Finding(interval_verdict(row.low, row.high, margin), row.method, (row,), reason)


def group_by_verdict(named: Iterable[tuple[Verdict, str]]) -> dict[Verdict, list[str]]:
    """The names under each verdict, with an empty list where there are none."""
    groups: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for verdict, name in named:
        groups[verdict].append(name)
    return groups


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
        own = places if block is None else places[block.start : block.stop]
        label = "" if block is None else block_label(block, len(places))
        batch = trained.tokenizer(tuple(whole[place] for place in own))
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
        texts: dict[str, Json] = {**self.texts(summary)}
        findings: list[Json] = [[each.verdict.name, each.method, each.reason] for each in self.findings(summary)]
        return {EXPLANATION: {**texts, "interpretation": self.interpretation(summary), "findings": findings}}

    @classmethod
    def texts(cls, summary: pd.DataFrame) -> Mapping[str, str]:
        """Title, claim, source and limits of what was tested."""
        return {name: str(getattr(cls, name, "")) for name in ("title", "claim", "source", "limits")}

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
