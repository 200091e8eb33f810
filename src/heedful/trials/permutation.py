"""Permuted attention (Jain & Wallace 2019, algorithm 2): shuffle the attention weights and watch the output.

The hidden states of an attentive model do not depend on its attention, so that a hundred permutations are one matrix
product. Those of a transformer do: every permuted attention needs a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.attention import first_token_shares
from heedful.attributions.method import example_seeds
from heedful.capabilities import check_attention
from heedful.figures import Axis, Figure
from heedful.measures.divergence import total_variation
from heedful.models.attentive import AttentiveModel
from heedful.option_bounds import Bounds, check_options
from heedful.results import Finding, Statistic, Verdict, get_statistic, select_statistics
from heedful.seeding import random_permutations
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import ModelRecipe
from heedful.training.predictions import attention_support
from heedful.trials.trial import (
    ATTENTION_BIN_LABELS,
    MIN_TEXTS,
    ShardedTrial,
    attention_violins,
    bin_subset,
    split_by_class_and_attention,
    text_columns,
)
from heedful.types import Batch, Model, Split, Trace, UserError

MAX_WEIGHTS_AT_ONCE = 2**24
"""Attention weights in memory during the forward passes of a transformer: 64 MB in float32."""
SMALL_CHANGE, LARGE_CHANGE = 0.05, 0.25
"""A median change of the output below the first contradicts the claim, from the second on it supports it."""
FEWEST_PERMUTATIONS = 20
"""Of a text whose median change shall have a given standard error."""


@dataclass(frozen=True)
class Permutation(ShardedTrial):
    """Median change of the output over random permutations of the attention weights of each text.

    Args:
        permutations: permutations per text (100 in the paper).
        limit: at most this many test examples.
        layer: permute only this layer of a transformer, counted from 0; None permutes all.
        head: permute only this head of each chosen layer; None permutes all.
        error: stop with fewer permutations of a text, but at least 20, when the standard error of its median change is
            at most this. The column `median_error` has what was reached and `permutations` what it took.
    """

    revision: ClassVar[int] = 4
    name: ClassVar[str] = "permutation"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Does it matter which words receive the attention?"
    claim: ClassVar[str] = (
        "If attention explains a prediction, permuting the attention weights should change the prediction, "
        "especially if one word has nearly all the weight."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.2.1, figure 3"
    limits: ClassVar[str] = (
        "A small change does not prove that attention is meaningless: neighboring words may carry the same "
        "information, and permuted weights are unlike those the model was trained with. A large change does not "
        "prove that attention shows the reasons."
    )

    split: ClassVar[Split] = "test"
    statistics_columns: ClassVar[tuple[str, ...]] = (
        *("predicted", "maximum_attention", "median_change", "first_token_share"),
        *("permutations", "median_error", "accurate"),
    )

    subject: ModelRecipe
    permutations: int = 100
    seed: int = 0
    limit: int | None = None
    layer: int | None = None
    head: int | None = None
    error: Annotated[float, Bounds(above=0, below=1)] | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        """A row per text: uid, length, predicted class, maximum attention, median change."""
        size = max(1, min(workspace.batch_size, 6400 // max(1, self.permutations)))
        return self.tabulate_texts(workspace, self.rows, self.limit, size, block=block)

    def rows(self, model: Model, batch: Batch) -> pd.DataFrame:
        """The trial's rows for one batch."""
        check_attention(model)
        with torch.no_grad():
            trace = model(batch)
        changes = self._changes(model, batch, trace)
        median = [float(text_changes.double().quantile(0.5)) for text_changes in changes]
        sampled: dict[str, object] = {}
        if self.error is not None:
            errors = [float(median_error(text_changes)) for text_changes in changes]
            accurate = [error <= self.error for error in errors]
            sampled = {"permutations": [*map(len, changes)], "median_error": errors, "accurate": accurate}
        shares = first_token_shares(trace.attention, batch)
        sink = {} if bool(shares.isnan().any()) else {"first_token_share": shares.tolist()}
        return pd.DataFrame({**text_columns(model.task, batch, trace), "median_change": median, **sink, **sampled})

    def _changes(self, model: Model, batch: Batch, trace: Trace) -> list[Tensor]:
        """The changes of each text `[permutation]`, with `error` as many as it needs."""
        known = self.permutations if self.error is None else min(self.permutations, FEWEST_PERMUTATIONS)
        changes = [*output_changes(model, batch, trace, known, self.seed, self.layer, self.head)]
        while self.error is not None and known < self.permutations:
            rows = [row for row, text_changes in enumerate(changes) if float(median_error(text_changes)) > self.error]
            if not rows:
                break
            open_texts = batch.rows(torch.tensor(rows, device=batch.mask.device))
            count = min(self.permutations, 3 * known // 2)
            with torch.no_grad():
                open_trace = model(open_texts)
            further = output_changes(
                model, open_texts, open_trace, range(known, count), self.seed, self.layer, self.head
            )
            for row, text_changes in zip(rows, further, strict=True):
                changes[row] = torch.cat((changes[row], text_changes))
            known = count
        return changes

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Median over texts of the median change: overall, by predicted class, and by class and maximum attention.

        For a transformer, also the mean share of attention on the first token. Where texts have as many permutations
        as their medians need: the mean number, the largest standard error, and the number of texts that had too few.
        """
        for subset, rows in split_by_class_and_attention(table):
            yield Statistic("median_change", subset=subset, value=float(rows["median_change"].median()), n=len(rows))
        if "first_token_share" in table:
            yield Statistic("first_token_share", value=float(table["first_token_share"].mean()), n=len(table))
        if "median_error" in table:
            yield Statistic("permutations", value=float(table["permutations"].mean()), n=len(table))
            yield Statistic("median_error", value=float(table["median_error"].max()), n=len(table))
            yield Statistic("inaccurate", value=float((~table["accurate"]).sum()), n=len(table))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 3 of the paper: the median change by maximum attention and predicted class."""
        axis = Axis("median change of the output", (-0.05, 1.05))
        return (attention_violins("Change of the output when attention is permuted", axis, table, "median_change"),)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """First the size of the change, then whether it grows with the maximum attention weight."""
        overall = get_statistic(summary, "median_change")
        verdict, reason = Verdict.UNDECIDED, "the change is moderate"
        if not SMALL_CHANGE <= overall.value < LARGE_CHANGE:
            verdict, reason = (Verdict.SUPPORTED if overall.value >= LARGE_CHANGE else Verdict.NOT_SUPPORTED), ""
        return Finding(verdict, "", (overall,), reason), _concentration_finding(summary)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        size, concentration = cls.findings(summary)
        words = {Verdict.SUPPORTED: "strongly", Verdict.NOT_SUPPORTED: "only slightly", Verdict.UNDECIDED: "moderately"}
        trend = {
            Verdict.SUPPORTED: "In every predicted class, it changes more where attention is more concentrated.",
            Verdict.NOT_SUPPORTED: "In at least one predicted class, it does not change more where attention is "
            "more concentrated.",
            Verdict.UNDECIDED: "In every predicted class, too few texts differ in the concentration of attention to "
            "tell whether it matters.",
        }
        sinks = select_statistics(summary, "first_token_share")
        sink = f" The first token receives {sinks[0].value:.2f} of all attention." if sinks else ""
        for statistic in select_statistics(summary, "inaccurate"):
            if statistic.value > 0:
                count = f"{statistic.value:.0f} of {statistic.n:.0f} texts"
                sink += f" In {count}, the change has a larger error than requested."
        return (
            f"Permuting the attention weights changes the output {words[size.verdict]}: for half of the texts, by "
            f"{size.evidence[0].value:.3f} or less, on a scale from 0 to 1. {trend[concentration.verdict]}{sink}"
        )


def _concentration_finding(summary: pd.DataFrame) -> Finding:
    """Whether the change grows from the lowest to the highest bin with enough texts, in every class."""
    rows = {row.subset: row for row in select_statistics(summary, "median_change")}
    evidence: list[Statistic] = []
    for subset in rows:
        bins = [rows[name] for label in ATTENTION_BIN_LABELS if (name := bin_subset(subset, label)) in rows]
        filled = [row for row in bins if row.n >= MIN_TEXTS]
        evidence += [filled[0], filled[-1]] if len(filled) > 1 else []
    if not evidence:
        return Finding(Verdict.UNDECIDED, reason="too few texts differ in the concentration of attention")
    rises = all(high.value > low.value for low, high in zip(evidence[::2], evidence[1::2], strict=True))
    return Finding(Verdict.SUPPORTED if rises else Verdict.NOT_SUPPORTED, "", tuple(evidence))


def output_changes(
    model: Model,
    batch: Batch,
    trace: Trace,
    permutations: int | range,
    seed: int = 0,
    layer: int | None = None,
    head: int | None = None,
) -> Tensor:
    """Total variation between the output and the output under each permutation, `[batch permutation]`.

    Args:
        permutations: how many, or which ones of the sequence of permutations of a text.
    """
    draws = range(permutations) if isinstance(permutations, int) else permutations
    seeds = example_seeds("permutation", seed, batch)
    with torch.no_grad():
        before = model.task.probabilities(trace.logits)[:, None]
        if isinstance(model, AttentiveModel):
            support = attention_support(model, batch, trace.attention)
            shuffled = shuffle_attention(trace.attention, support, seeds, draws)
            shuffled = shuffled[:, :, 0, 0]
            logits = model.readout(batch, trace.hidden)(shuffled)
        else:
            chosen = _layer_head_slice(trace.attention, layer, head)
            logits = _logits_by_forward_pass(model, batch, trace, chosen, seeds, draws)
        return total_variation(model.task.probabilities(logits), before)


def median_error(values: Tensor) -> Tensor:
    """Standard error of the median of n values `[value]`: half the distance of the order statistics n/2 ± sqrt(n)/2.

    Between these two the median of the distribution is with a probability of 68 %, whatever the distribution.

    >>> median_error(torch.arange(100.0))
    tensor(5.)
    """
    count = len(values)
    low, high = (round(count / 2 + side * count**0.5 / 2) for side in (-1, 1))
    ordered = values.sort().values
    return (ordered[min(high, count) - 1] - ordered[max(low, 1) - 1]) / 2


def _layer_head_slice(attention: Tensor, layer: int | None, head: int | None) -> tuple[slice, slice, slice]:
    layers, heads = attention.shape[1:3]
    for name, wanted, count in (("layer", layer, layers), ("head", head, heads)):
        if wanted is not None and not 0 <= wanted < count:
            raise UserError(f"{name} {wanted} does not exist; this model has {count}, counted from 0")
    layer_slice, head_slice = (slice(None) if number is None else slice(number, number + 1) for number in (layer, head))
    return slice(None), layer_slice, head_slice


def _logits_by_forward_pass(
    model: Model, batch: Batch, trace: Trace, chosen: tuple[slice, ...], seeds: Tensor, permutations: range
) -> Tensor:
    """Logits `[batch permutation output]`; other layers and heads than the chosen ones keep their attention."""
    attention, support = trace.attention, attention_support(model, batch, trace.attention, trace.scores)
    at_once = max(1, MAX_WEIGHTS_AT_ONCE // attention.numel())
    chunks = []
    for first in range(0, len(permutations), at_once):
        draws = permutations[first : first + at_once]
        imposed = attention.unsqueeze(1).repeat(1, len(draws), *([1] * (attention.dim() - 1)))
        imposed[:, :, *chosen[1:]] = shuffle_attention(attention, support, seeds, draws, chosen)
        logits = model(batch.repeat(len(draws)), attention=imposed.flatten(0, 1)).logits
        chunks.append(logits.reshape(len(batch), len(draws), -1))
    return torch.cat(chunks, dim=1)


def shuffle_attention(
    attention: Tensor, support: Tensor, seeds: Tensor, draws: range, chosen: tuple[slice, ...] = ()
) -> Tensor:
    """Random permutations `[batch draw layer head query unit]` of the weights in each row of attention.

    A permutation is a function of (seed, draw, layer, head, query): not of the width of the batch, nor of what else is
    permuted.

    Args:
        attention: `[batch layer head query unit]`.
        support: the units that are permuted, broadcast to the shape of attention.
        seeds: `[batch]`.
        draws: consecutive numbers of the permutations.
        chosen: the layers and heads to permute; all by default.
    """
    layers, heads, queries, units = attention.shape[1:]
    layer, head, query = (torch.arange(count, device=attention.device) for count in (layers, heads, queries))
    number = (layer[:, None, None] << 32) + (head[:, None] << 16) + query
    row_seeds = (seeds.to(attention.device)[:, None, None, None] + number)[chosen]
    weights, reach = attention[chosen], support.expand_as(attention)[chosen].flatten(0, -2)
    drawn = random_permutations(row_seeds.flatten(), len(draws), reach, draws.start)
    places = torch.argsort((~reach).to(torch.int8), dim=-1, stable=True).unsqueeze(1).expand_as(drawn)
    moved = weights.flatten(0, -2).unsqueeze(1).expand(drawn.shape).gather(-1, drawn)
    shuffled = torch.empty_like(moved).scatter_(-1, places, moved)
    return shuffled.view(*weights.shape[:-1], len(draws), units).movedim(-2, 1)
