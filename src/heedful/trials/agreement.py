"""Attributions of several methods side by side: lined up by instance and unit, and correlated all pairs at once.

On what attributions are compared: units or whole words, with special symbols or without.

Tables as `Attributed` makes them come in and go out; what leaves has one entry per unit or word that is compared.

What the numbers of an agreement come to, in plain words.

Agreement of attributions (Jain & Wallace, algorithm 1): do attention and other measures rank the words alike?

Every pair of methods is correlated on every instance. Nulls stand beside them, so that a reader sees what chance gives
and what a second training of the same model gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import chain
from typing import ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.attributions.controls import PermutedAttention, Random, RandomizedModel
from heedful.attributions.perturbation import LeaveOneOut
from heedful.figures import Axis, Bars, Figure, Histogram, Matrix, Series
from heedful.measures.feature_agreement import TopKAgreement, pairwise_rank_agreement_matrix, top_k_agreement_matrix
from heedful.measures.rank_correlation import (
    Correlation,
    dense_ranks,
    k_from_fraction,
    k_from_nonzero,
    kendall_matrix,
    pearson_matrix,
    spearman_matrix,
    top_k_kendall_matrix,
    weighted_kendall_matrix,
)
from heedful.store.recipe import OMIT_IF_DEFAULT, Artefact, Json, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import ModelRecipe
from heedful.trials._trial import Trial
from heedful.types import Method, Split, UserError, method_name

CorrelationFunction = Callable[[Tensor, Tensor], Correlation]
"""Scores `[batch method unit]` and mask `[batch unit]` -> the correlation of all pairs `[batch method method]`."""

_ROWS_PER_CHUNK = 256
_Integers = NDArray[np.int64]


def correlate_attributions(
    tables: Mapping[str, pd.DataFrame], correlate: CorrelationFunction, *, absolute: bool, resolution: float
) -> pd.DataFrame:
    """A row for each instance and each unordered pair of methods, in the order of `tables`, with their correlation.

    `place` counts the pairs. `tied` is the share of units whose score is shared by another unit, by either method.

    Args:
        tables: what `Attributed` made, by the method's name; the first says which units are compared.
        absolute: whether signs are dropped.
        resolution: scores are rounded to this share of the largest of their row, so that noise is not ranked.
    """
    aligned = _align_scores(tables)
    one, other = np.triu_indices(len(tables), k=1)
    found: dict[str, list[NDArray[np.generic]]] = {"value": [], "p_value": [], "tied": [], "defined": []}
    order = np.argsort(aligned.lengths, kind="stable")
    for rows in _chunks(order):
        scores, mask = aligned.pad(rows)
        scores = quantize_scores(scores.abs() if absolute else scores, mask, resolution)
        result = correlate(scores, mask)
        numbers = (result.value, result.p_value, tied_share(scores, mask).float(), result.defined)
        for column, matrix in zip(found, numbers, strict=True):
            found[column].append(matrix[:, one, other].numpy())
    back = np.argsort(order, kind="stable")
    columns = {column: np.concatenate(parts)[back].ravel() for column, parts in found.items()}
    names = np.array(list(tables), dtype=object)
    instances, pairs = len(aligned.uids), len(one)
    return pd.DataFrame(
        {
            "uid": np.repeat(np.array(aligned.uids, dtype=object), pairs),
            "length": np.repeat(aligned.lengths.astype(np.int32), pairs),
            "predicted": np.repeat(aligned.predicted.astype(np.int32), pairs),
            "place": np.tile(np.arange(pairs, dtype=np.int16), instances),
            "first": np.tile(names[one], instances),
            "second": np.tile(names[other], instances),
            **columns,
        }
    )


def quantize_scores(scores: Tensor, mask: Tensor, resolution: float) -> Tensor:
    """Scores `[batch method unit]` in whole steps of `resolution` times the largest of their row; zero off the mask.

    >>> scores = torch.tensor([[[0.5, 0.25 + 1e-12, 0.25, 9.0]]], dtype=torch.float64)
    >>> quantize_scores(scores, torch.tensor([[True, True, True, False]]), 0.25).tolist()
    [[[4.0, 2.0, 2.0, 0.0]]]
    """
    real = scores.double().masked_fill(~mask.unsqueeze(-2), 0.0)
    largest = real.abs().amax(-1, keepdim=True)
    return (real / largest.masked_fill(largest == 0, 1.0) / resolution).round()


def tied_share(scores: Tensor, mask: Tensor) -> Tensor:
    """The share of units that share their score with another one in either method, `[batch method method]`.

    >>> tied_share(torch.tensor([[[1.0, 1.0, 2.0, 3.0], [5.0, 6.0, 6.0, 7.0]]]), torch.ones(1, 4, dtype=torch.bool))
    tensor([[[0.5000, 0.7500],
             [0.7500, 0.5000]]])
    """
    places, sizes = dense_ranks(scores, mask.unsqueeze(-2))
    last = scores.shape[-1] - 1
    shared = ((sizes.gather(-1, places.clamp(max=last)) > 1) & mask.unsqueeze(-2)).float()
    count = shared.sum(-1)
    either = count.unsqueeze(-1) + count.unsqueeze(-2) - shared @ shared.mT
    return either / mask.sum(-1).clamp(min=1)[:, None, None]


@dataclass(frozen=True)
class _AlignedScores:
    """Scores of all methods for the same units, instance after instance.

    Args:
        scores: `[method unit]`, the compared units of all instances one after the other.
        lengths: compared units of each instance.
    """

    uids: tuple[str, ...]
    predicted: _Integers
    lengths: _Integers
    scores: NDArray[np.float64]

    def pad(self, rows: _Integers) -> tuple[Tensor, Tensor]:
        """Scores `[batch method unit]` and mask `[batch unit]` of these instances."""
        unit = np.arange(max(1, int(self.lengths[rows].max())))
        mask = unit < self.lengths[rows][:, None]
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.where(mask, starts[rows][:, None] + unit, 0)
        scores = self.scores[:, places].swapaxes(0, 1)
        return torch.from_numpy(scores.copy()), torch.from_numpy(mask)


def _align_scores(tables: Mapping[str, pd.DataFrame]) -> _AlignedScores:
    first = next(iter(tables.values()))
    uids = first["uid"].tolist()
    units = _row_lengths(first["scored"])
    kept = _reachable_units(first)
    scores = [_flatten_scores(name, table, uids, units)[kept] for name, table in tables.items()]
    lengths = np.add.reduceat(kept.astype(np.int64), np.cumsum(units) - units)
    return _AlignedScores(tuple(uids), first["predicted"].to_numpy(np.int64), lengths, np.stack(scores))


def _reachable_units(table: pd.DataFrame) -> NDArray[np.bool_]:
    """The scored units of the parts that the method can reach, instance after instance.

    Attention over a document never weighs its question: a part without weight in every instance is left out. A
    sparse attention may leave a part without weight in one instance, and there the zeros count.
    """
    scored, parts, weights = (_concatenate(table[column].tolist()) for column in ("scored", "segments", "scores"))
    found: NDArray[np.bool_] = (scored != 0) & np.isin(parts, parts[weights != 0])
    return found


def _flatten_scores(name: str, table: pd.DataFrame, uids: list[str], units: _Integers) -> NDArray[np.float64]:
    """The scores of all instances one after the other, in the order of `uids`."""
    rows = dict(zip(table["uid"].tolist(), table["scores"].tolist(), strict=True))
    if rows.keys() != set(uids):
        raise UserError(f"{name} was run on other instances: give both subjects the same corpus and preprocessing")
    ordered = [rows[uid] for uid in uids]
    if not np.array_equal(_row_lengths(ordered), units):
        raise UserError(f"{name} scores other units of the same texts: give both subjects the same preprocessing")
    scores = _concatenate(ordered)
    if not np.isfinite(scores).all():
        raise UserError(f"{name} gave {int((~np.isfinite(scores)).sum())} scores that are no finite numbers")
    return scores


def _concatenate(rows: Iterable[Iterable[float]]) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(rows), dtype=np.float64)


def _row_lengths(rows: Iterable[Sized]) -> _Integers:
    return np.fromiter(map(len, rows), dtype=np.int64)


def _chunks(order: _Integers) -> Iterator[_Integers]:
    return (order[start : start + _ROWS_PER_CHUNK] for start in range(0, len(order), _ROWS_PER_CHUNK))


Level = Literal["unit", "word"]


def check_level(level: str) -> None:
    """Refuses a level that there is not."""
    if level not in get_args(Level):
        raise UserError(f"there is no level {level!r} to compare scores on; choose one of {', '.join(get_args(Level))}")


def check_special_tokens(names: Sequence[str], methods: Sequence[Method]) -> None:
    """Refuses methods that give special symbols no score: zeros would rank them last, which nobody found out."""
    silent = [name for name, method in zip(names, methods, strict=True) if not _scores_special_tokens(method)]
    if silent:
        deletes = any(isinstance(_scoring_method(method), LeaveOneOut) for method in methods)
        raise UserError(
            f"special symbols get no score from {', '.join(silent)}: leave these out, give them "
            f"special_tokens=True where they have it, or leave special tokens out{_DELETION_HINT if deletes else ''}"
        )


_DELETION_HINT = (
    "; leave-one-out deletes, and a text without its class symbol is none that the model knows: "
    "Occlusion(special_tokens=True) puts another symbol there instead"
)


def with_special_tokens(methods: Sequence[Method]) -> tuple[Method, ...]:
    """The methods with special symbols scored by all that have the option; others as they are.

    >>> with_special_tokens((RandomizedModel(), LeaveOneOut()))
    (RandomizedModel(method=RawAttention(layer=None, head=None, special_tokens=True), seed=0),
     LeaveOneOut(output='probability'))
    """
    return tuple(_enable_special_tokens(method) for method in methods)


def _enable_special_tokens(method: Method) -> Method:
    if isinstance(method, RandomizedModel):
        return replace(method, method=_enable_special_tokens(method.method))
    return (
        replace(method, special_tokens=True) if is_dataclass(method) and _has_special_tokens_option(method) else method
    )


def _scoring_method(method: Method) -> Method:
    """The method whose scores are given back: that of a randomised model speaks for its own."""
    return _scoring_method(method.method) if isinstance(method, RandomizedModel) else method


def _has_special_tokens_option(method: Method) -> bool:
    return is_dataclass(method) and "special_tokens" in {each.name for each in fields(method)}


def _scores_special_tokens(method: Method) -> bool:
    found = _scoring_method(method)
    return _has_special_tokens_option(found) and bool(getattr(found, "special_tokens", False))


def aggregate_to_level(table: pd.DataFrame, level: Level, *, special_tokens: bool) -> pd.DataFrame:
    """The table with one score per compared unit, or per word: the sum of its units'.

    Special symbols are left out, or are units and words of their own.

    >>> row = {"uid": ["a"], "predicted": [1], "segments": [[0, 0, 0, 0]]}
    >>> row |= {"scores": [[9.0, 1.0, -3.0, 5.0]], "scored": [[False, True, True, True]], "words": [[-1, 0, 0, 1]]}
    >>> aggregate_to_level(pd.DataFrame(row), "word", special_tokens=False)["scores"].tolist()
    [[-2.0, 5.0]]
    >>> aggregate_to_level(pd.DataFrame(row), "word", special_tokens=True)["scores"].tolist()
    [[-2.0, 5.0, 9.0]]
    """
    if level == "unit":
        every = table["scored"].map(lambda row: [True] * len(row))
        return table.assign(scored=every) if special_tokens else table
    columns = ("scores", "scored", "words", "segments")
    rows = zip(*(table[name].tolist() for name in columns), strict=True)
    found = [
        _sum_by_word(
            np.asarray(scores, dtype=np.float64),
            _word_ids(scored, words, special_tokens=special_tokens),
            np.asarray(parts),
        )
        for scores, scored, words, parts in rows
    ]
    return pd.DataFrame(
        {
            "uid": table["uid"].tolist(),
            "predicted": table["predicted"].tolist(),
            "scores": [scores.tolist() for scores, _ in found],
            "scored": [[True] * len(scores) for scores, _ in found],
            "segments": [parts.tolist() for _, parts in found],
        }
    )


def _word_ids(scored: Sequence[bool], words: Sequence[int], *, special_tokens: bool) -> NDArray[np.int64]:
    """The word of each unit; special symbols stand behind all words, each by itself, or are -1."""
    known, number = np.asarray(scored, dtype=bool), np.asarray(words, dtype=np.int64)
    behind = number.max(initial=-1) + 1 + np.arange(len(number))
    return np.where(known, number, behind if special_tokens else -1)


def _sum_by_word(
    scores: NDArray[np.float64], words: NDArray[np.int64], parts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    kept = words >= 0
    _, first, place = np.unique(words[kept], return_index=True, return_inverse=True)
    sums = np.zeros(len(first))
    np.add.at(sums, place, scores[kept])
    return sums, parts[kept][first]


OTHER_SEED_SUFFIX = "-of-another-seed"
"""Ends the name of attention that another training of the same model gave."""

LOWEST, NO_RELATION = "lowest", "no_relation"
"""Numbers in the summary of a measure that does not run from -1 by 0 to 1."""

LEAST_DIFFERENCE = 0.1
"""Differences of correlations or shares below this are not spoken of."""


def agreement_sentences(summary: Mapping[str, float]) -> str:
    """How strongly attention agrees with each measure, beside chance, another training and the measures themselves."""
    means = _mean_by_pair(summary)
    attention = next(iter(means))[0]
    nulls = {name.rsplit("~", 1)[1] for name in summary if name.startswith(f"excess.{attention}~")}
    beside = {second: value for (first, second), value in means.items() if first == attention}
    methods = {name: value for name, value in beside.items() if name not in nulls}
    again = {name: value for name, value in beside.items() if name.endswith(OTHER_SEED_SUFFIX)}
    chance = {name: value for name, value in beside.items() if name in nulls - again.keys()}
    own = [value for pair, value in means.items() if not {attention, *nulls} & set(pair) and not _is_same_method(*pair)]
    words = [f"On average over texts, {attention} agrees with {_format_list(methods)}, {_scale_clause(summary)}."]
    words += [f"What knows nothing agrees with it as chance has it: {_format_list(chance)}."] if chance else []
    words += [
        f"The same model trained from another seed agrees with it at {_format_number(v)}." for v in again.values()
    ]
    words += [f"The other measures agree with each other at {_format_number(_mean_of_defined(own))}."] if own else []
    return " ".join(
        [
            *words,
            _agreement_verdict(
                _mean_of_defined([*methods.values()]), _mean_of_defined([*chance.values()]), _mean_of_defined(own)
            ),
        ]
    )


def _mean_by_pair(summary: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """The mean of each pair over all classes."""
    found = {}
    for name, value in summary.items():
        if name.startswith("mean.") and not re.search(r"\.class_-?\d+$", name):
            first, second = name.removeprefix("mean.").split("~")
            found[first, second] = value
    return found


def _scale_clause(summary: Mapping[str, float]) -> str:
    """What the ends of the measure's scale mean; `LOWEST` stands in summaries of shares only."""
    if LOWEST not in summary:
        return "where 1 is the same order of words, 0 no relation and -1 the reverse order"
    if NO_RELATION in summary:
        return f"where 1 is the same order of words, {summary[NO_RELATION]:g} no relation and 0 the reverse order"
    return "where 1 is agreement on all of the words that each puts first and 0 on none of them"


def _is_same_method(first: str, second: str) -> bool:
    """Whether two names are variants of one method, which agree because they are nearly the same."""
    return first.split("(")[0] == second.split("(")[0]


def _agreement_verdict(attention: float, chance: float, own: float) -> str:
    """What the mean agreements come to; comparisons with what is unknown (NaN) are not made."""
    if math.isnan(attention):
        return "No agreement of attention is defined, so nothing can be said."
    if attention - chance < LEAST_DIFFERENCE:
        return "So attention agrees with them hardly more than chance does."
    if own - attention > LEAST_DIFFERENCE:
        return "So attention agrees with them less than they do with each other."
    if own - attention <= LEAST_DIFFERENCE:
        return "So attention agrees with them no less than they do with each other."
    if attention - chance >= LEAST_DIFFERENCE:
        return "So attention agrees with them more than chance does."
    return "Nothing stands beside these numbers to say whether they are large."


def _format_list(numbers: Mapping[str, float]) -> str:
    *others, last = (f"{name} at {_format_number(value)}" for name, value in numbers.items())
    return f"{', '.join(others)} and {last}" if others else last


def _format_number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"


def _mean_of_defined(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


AgreementMeasure = Literal[
    "kendall", "spearman", "pearson", "top-k", "weighted", "feature", "rank", "sign", "signed-rank", "pairwise-rank"
]
TopK = int | float | Literal["nonzero"]

SIGNIFICANCE_LEVEL = 0.05
MANY_CLASSES = 4
"""From this many predicted classes on, numbers are not split by class, as in the paper's code."""

_MEASURE_LABELS = {
    "kendall": "Kendall's tau",
    "spearman": "Spearman's correlation",
    "pearson": "Pearson's correlation",
    "top-k": "Kendall's tau of the top",
    "weighted": "weighted Kendall's tau",
    "feature": "feature agreement of the top",
    "rank": "rank agreement of the top",
    "sign": "sign agreement of the top",
    "signed-rank": "signed-rank agreement of the top",
    "pairwise-rank": "pairwise rank agreement",
}
_SHARE_SCALES = {
    **{kind: {LOWEST: 0.0} for kind in get_args(TopKAgreement)},
    "pairwise-rank": {LOWEST: 0.0, NO_RELATION: 0.5},
}
"""Measures that are shares, and what their summaries say of their scale; all others run from -1 by 0 to 1. What chance
gives in the top depends on the length of a text: the nulls tell it."""
_SIGNED_MEASURES = ("sign", "signed-rank")
"""Measures that ask for signs."""


COMPARISON_NOTES = {
    "by_word": ("by word", "Compared were whole words, each with the sum of its pieces' scores."),
    "special_tokens": ("with special symbols", "Special symbols were ranked among the words, as Neely et al. do."),
}
"""What is not as usual, by its name in summaries: for a figure, and as a sentence."""


@dataclass(frozen=True)
class Agreement(Trial):
    """Correlation of every two methods on every instance, with nulls.

    Args:
        methods: the first one is attention; it says which units are compared.
        nulls: methods that know nothing, or nothing of the example.
        other: the same subject with another seed, for its attention.
        measure: correlations from -1 to 1, or the shares from 0 to 1 of `core.disagreement`, which go by sizes.
        absolute: compare sizes without signs, as both papers do. "sign" and "signed-rank" would say nothing then:
            they always compare the scores as they are, where attention speaks for the prediction with every weight.
        k: for "top-k" and the shares of the top: a whole number is that many places, a fraction that share of the
            units, "nonzero" the units that have a score at all (for sparse attention).
        resolution: scores closer than this share of the largest are ties.
        level: "unit" compares word pieces, as the papers do; "word" the sums of each word's pieces.
        specials: special symbols are ranked too, as in Neely et al.: all methods and nulls are asked to score them.
    """

    name: ClassVar[str] = "agreement"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Does attention agree with other measures of importance?"
    claim: ClassVar[str] = (
        "If attention shows which words matter, it should rank the words of a text much as other measures of their "
        "importance do: the gradient, or what changes when a word is left out."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.1, table 2, figures 2 and 6 to 8"
    limits: ClassVar[str] = (
        "Agreement is not truth: the measures may agree and be wrong together, and none of them is known to be right. "
        "A significant correlation is only more than chance, and in long texts nearly every correlation is. Where a "
        "model reads each word by itself, the gradient contains the attention weight as a factor, so that part of "
        "their agreement is built in."
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    controls: tuple[Method, ...] = (Random(), PermutedAttention())
    other_seed_model: ModelRecipe | None = None
    measure: AgreementMeasure = "kendall"
    absolute: bool = True
    k: TopK = 10
    resolution: float = 1e-9
    limit: int | None = None
    split: Split = "test"
    level: Level = field(default="unit", metadata=OMIT_IF_DEFAULT)
    special_tokens: bool = field(default=False, metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.special_tokens:
            methods = (*self.methods, *self.controls)
            check_special_tokens([method_name(method) for method in methods], with_special_tokens(methods))
        if self.measure not in _MEASURE_LABELS:
            raise UserError(
                f"there is no measure {self.measure!r} of agreement; choose one of {', '.join(_MEASURE_LABELS)}"
            )
        if len(self.methods) < 2:
            raise UserError("agreement needs two methods at least: attention first, then one to compare it with")
        if len(self._attribution_tables) < len(self.methods) + len(self.controls) + (self.other_seed_model is not None):
            raise UserError("a method is given twice to agreement: leave one of them out, or give it another seed")
        _check_top_k(self.k)
        if not 0 < self.resolution < math.inf:
            raise UserError(
                f"Agreement(resolution={self.resolution}): it must be above 0; scores closer than this share of the "
                "largest are ties"
            )

    @property
    def _attribution_tables(self) -> dict[str, AttributionTable]:
        """The attributions to compare, by name: methods, nulls, attention of the other subject."""
        found = {
            method_name(each): self._attribution_table(self.subject, each) for each in (*self.methods, *self.controls)
        }
        if self.other_seed_model is not None:
            found[method_name(self.methods[0]) + OTHER_SEED_SUFFIX] = self._attribution_table(
                self.other_seed_model, self.methods[0]
            )
        return found

    def _attribution_table(self, subject: ModelRecipe, method: Method) -> AttributionTable:
        asked = with_special_tokens((method,))[0] if self.special_tokens else method
        return AttributionTable(subject, asked, self.split, self.limit)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials and the report share."""
        return tuple(self._attribution_tables.values())

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and pair of methods: uid, length, predicted class, both names, value, p-value, ties."""
        made = {name: workspace.get(recipe) for name, recipe in self._attribution_tables.items()}
        tables = {
            name: aggregate_to_level(each.table, self.level, special_tokens=self.special_tokens)
            for name, each in made.items()
        }
        correlate = _correlation_function(self.measure, self.k)
        absolute = self.absolute and self.measure not in _SIGNED_MEASURES
        table = correlate_attributions(tables, correlate, absolute=absolute, resolution=self.resolution)
        methods = [method_name(method) for method in self.methods]
        # Nulls come after all methods, so a pair has a null if its second one is.
        table["null"] = ~table["second"].isin(methods)
        table["measure"], table["level"], table["special_tokens"] = self.measure, self.level, self.special_tokens
        counts: dict[str, Json] = {"n": int(table["uid"].nunique()), "of": made[methods[0]].notes["of"]}
        return Artefact(table=table, notes={"about": dict(self.subject.about), **counts})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """For each pair mean, deviation, significant shares, ties and undefined, by predicted class; differences.

        `excess.x~y over z~y` is the mean over instances of what x and y agree more than z and y. Shares also tell the
        `lowest` that there is, 0, and where it is known the share without any relation. `by_word` and `specials` are
        told, as 1, where sums over words were compared, and where special symbols were ranked too.
        """
        found = {
            "n": float(table["uid"].nunique()),
            **_SHARE_SCALES.get(_measure_name(table), {}),
            **_comparison_flags(table),
        }
        attention = _method_pairs(table)[0].first
        by_class = table["predicted"].nunique() < MANY_CLASSES
        for pair, rows in _group_by_pair(table):
            found |= _pair_statistics(rows, pair.name)
            if by_class and (pair.first == attention or not pair.has_control):
                for predicted, of_class in rows.groupby("predicted"):
                    found |= _pair_statistics(of_class, f"{pair.name}.class_{predicted}")
        return found | _excesses(table)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 2 with the nulls beside, how strong a correlation ought to be, and all methods against each other."""
        label, limits = _figure_label(table), _measure_range(_measure_name(table))
        attention = _method_pairs(table)[0].first
        groups = [(pair, rows) for pair, rows in _group_by_pair(table) if pair.first == attention]
        nulls = tuple(Series(_pair_label(pair), _values(rows)) for pair, rows in groups if pair.has_control)
        axis = Axis(label, limits)
        # All nulls in every histogram would hide what it is about; the first one shows where chance lies.
        of_paper = (
            Histogram(f"{attention} against {pair.second}", axis, (*_series_by_class(rows), *nulls[:1]))
            for pair, rows in groups
            if not pair.has_control
        )
        beside = (Histogram(f"{attention} against nulls", axis, nulls),) if nulls else ()
        return (*of_paper, *beside, _bars(label, groups), replace(_matrix(label, table), limits=limits))

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """How strongly attention agrees with each measure, beside chance, another training and the measures' own."""
        words = [sentence for name, (_, sentence) in COMPARISON_NOTES.items() if summary.get(name)]
        return " ".join([agreement_sentences(summary), *words])


def _check_top_k(k: object) -> None:
    """Refuses a top that there is not: whole numbers count places, fractions are shares."""
    whole = isinstance(k, int) and not isinstance(k, bool) and k >= 1
    if not (whole or (isinstance(k, float) and 0 < k <= 1) or k == "nonzero"):
        raise UserError(f"Agreement(k={k!r}): k must be a whole number from 1 on, a share above 0 to 1.0, or 'nonzero'")


def _correlation_function(measure: AgreementMeasure, k: TopK) -> CorrelationFunction:
    if measure == "top-k":
        return partial(_top_k_correlation, top_k_kendall_matrix, k)
    for kind in get_args(TopKAgreement):
        if kind == measure:
            return partial(_top_k_correlation, partial(top_k_agreement_matrix, kind), k)
    return {
        "kendall": kendall_matrix,
        "spearman": spearman_matrix,
        "pearson": pearson_matrix,
        "weighted": weighted_kendall_matrix,
        "pairwise-rank": pairwise_rank_agreement_matrix,
    }[measure]


def _top_k_correlation(
    correlation: Callable[[Tensor, int | Tensor, Tensor], Correlation], k: TopK, scores: Tensor, mask: Tensor
) -> Correlation:
    if k == "nonzero":
        return correlation(scores, k_from_nonzero(scores, mask), mask)
    return correlation(scores, k if isinstance(k, int) else k_from_fraction(mask, k), mask)


def _measure_name(table: pd.DataFrame) -> str:
    return str(table["measure"].iloc[0])


def _comparison_flags(table: pd.DataFrame) -> dict[str, float]:
    """What is not as usual; tables that were made before there was a choice are as usual."""
    there = {name: name in table.columns for name in ("level", "special_tokens")}
    found = {
        "by_word": there["level"] and table["level"].iloc[0] == "word",
        "special_tokens": there["special_tokens"] and bool(table["special_tokens"].iloc[0]),
    }
    return {name: 1.0 for name, so in found.items() if so}


def _figure_label(table: pd.DataFrame) -> str:
    """The measure's name for figures, and on what scores were compared where that is not as usual."""
    return ", ".join(
        [_MEASURE_LABELS[_measure_name(table)], *(COMPARISON_NOTES[name][0] for name in _comparison_flags(table))]
    )


def _measure_range(measure: str) -> tuple[float, float]:
    """The least and the greatest value that there is."""
    return _SHARE_SCALES.get(measure, {}).get(LOWEST, -1.0), 1.0


@dataclass(frozen=True)
class _MethodPair:
    """Two methods that are compared; `null`: at least one of them is a null."""

    first: str
    second: str
    has_control: bool

    @property
    def name(self) -> str:
        return f"{self.first}~{self.second}"


def _method_pairs(table: pd.DataFrame) -> list[_MethodPair]:
    """All pairs in the order of the methods; the first method of the first pair is attention."""
    rows = table.drop_duplicates("place").sort_values("place")
    return [_MethodPair(str(row["first"]), str(row["second"]), bool(row["null"])) for _, row in rows.iterrows()]


def _group_by_pair(table: pd.DataFrame) -> Iterator[tuple[_MethodPair, pd.DataFrame]]:
    return zip(_method_pairs(table), (rows for _, rows in table.groupby("place")), strict=True)


def _pair_statistics(rows: pd.DataFrame, place: str) -> dict[str, float]:
    """What the paper's table 2 prints, and more; significance is two-sided and among the defined."""
    defined = rows[rows["defined"]]
    value, p_value = defined["value"], defined["p_value"].dropna()
    sign = value[p_value.index]
    numbers = {
        "n": len(defined),
        "mean": value.mean(),
        "std": value.std(ddof=0),
        "significant": (p_value <= SIGNIFICANCE_LEVEL).mean(),
        "significant_positive": ((p_value <= SIGNIFICANCE_LEVEL) & (sign > 0)).mean(),
        "significant_negative": ((p_value <= SIGNIFICANCE_LEVEL) & (sign < 0)).mean(),
        "tied": rows["tied"].mean(),
        "undefined": len(rows) - len(defined),
    }
    return {f"{name}.{place}": float(number) for name, number in numbers.items()}


def _excesses(table: pd.DataFrame) -> dict[str, float]:
    """How much more others agree than attention does (figures 6, 7), and attention with them than with each null."""
    pairs = _method_pairs(table)
    attention = pairs[0].first
    wide = table.pivot(index="uid", columns="place", values="value")
    values = {pair.name: wide[place] for place, pair in enumerate(pairs)}
    beside = [pair for pair in pairs if pair.first == attention]
    others = [pair for pair in pairs if pair.first != attention and not pair.has_control]
    weighed = [(pair.name, f"{attention}~{end}") for pair in others for end in (pair.second, pair.first)]
    weighed += [
        (pair.name, null.name) for pair in beside for null in beside if null.has_control and not pair.has_control
    ]
    found = {}
    for one, other in weighed:
        gap = values[one] - values[other]
        found[f"excess.{one} over {other}"] = float(gap.mean())
        found[f"excess_std.{one} over {other}"] = float(gap.std(ddof=0))
    return found


def _values(rows: pd.DataFrame) -> tuple[float, ...]:
    return tuple(float(value) for value in rows["value"])


def _pair_label(pair: _MethodPair) -> str:
    """The method beside attention; attention of another seed is a measure of what to expect, not a null of its own."""
    return f"{pair.second} (null)" if pair.has_control and not pair.second.endswith(OTHER_SEED_SUFFIX) else pair.second


def _series_by_class(rows: pd.DataFrame) -> tuple[Series, ...]:
    if rows["predicted"].nunique() >= MANY_CLASSES:
        return (Series("all instances", _values(rows)),)
    return tuple(Series(f"predicted class {name}", _values(of_class)) for name, of_class in rows.groupby("predicted"))


def _bars(label: str, groups: Sequence[tuple[_MethodPair, pd.DataFrame]]) -> Bars:
    names = tuple(_pair_label(pair) for pair, _ in groups)
    means = Series("mean", tuple(float(rows["value"].mean()) for _, rows in groups))
    deviations = Series("mean", tuple(float(rows["value"].std(ddof=0)) for _, rows in groups))
    title = "How strong is the agreement with attention, and how strong ought it to be?"
    return Bars(title, Axis(f"{label}, mean and deviation over instances"), names, (means,), (deviations,))


def _matrix(label: str, table: pd.DataFrame) -> Matrix:
    means = {frozenset((pair.first, pair.second)): float(rows["value"].mean()) for pair, rows in _group_by_pair(table)}
    pairs = _method_pairs(table)
    names = (pairs[0].first, *(pair.second for pair in pairs if pair.first == pairs[0].first))
    # A correlation with itself is 1; a share of the top is not where a method has ties, and the table has no such rows.
    itself = None if _measure_name(table) in _SHARE_SCALES else 1.0
    values = tuple(
        tuple(itself if row == column else means[frozenset((row, column))] for column in names) for row in names
    )
    return Matrix(f"{label}, mean over instances", names, names, values)
