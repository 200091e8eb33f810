"""Agreement of attributions (Jain & Wallace 2019, algorithm 1): do attention and other methods rank the words alike?

Every pair of methods is correlated on every text. Controls show what chance gives and what a second training of the
same model gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Literal, cast, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.attributions.controls import default_controls
from heedful.attributions.method import method_name, option_values, tags_of, with_special_tokens
from heedful.attributions.perturbation import LeaveOneOut
from heedful.figures import Axis, Figure, Histogram, Matrix, Series
from heedful.formatting import two_decimals
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
from heedful.option_bounds import check_options
from heedful.results import Claim, Finding, Statistic, Verdict, find_statistic, mean_of_defined, select_statistics
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import ModelRecipe
from heedful.trials.trial import ShardedTrial
from heedful.types import Method, Pooling, Split, UserError, check_methods, pool_by_word

CorrelationFunction = Callable[[Tensor, Tensor], Correlation]
"""Scores `[batch method unit]` and mask `[batch unit]` -> the correlation of all pairs `[batch method method]`."""
AgreementMeasure = Literal[
    "kendall", "spearman", "pearson", "top-k", "weighted", "feature", "rank", "sign", "signed-rank", "pairwise-rank"
]
TopK = int | float | Literal["nonzero"]
Level = Literal["unit", "word"]

OTHER_SEED_SUFFIX = "-of-another-seed"
"""Ends the name of the attention of another training of the same model."""
RESOLUTION = 1e-9
"""Scores closer than this fraction of the largest are ties, so that noise is not ranked."""
SIGNIFICANCE_LEVEL = 0.05
SMALL_DIFFERENCE = 0.1
"""Mean agreements that differ by less than this count as equal."""
OTHER_LIMITS = (
    "Agreement is not truth: the methods may agree and all be wrong. A significant correlation is merely above "
    "chance, and in long texts nearly every correlation is significant."
)
"""What agreement does not mean, whatever methods were compared."""
NO_OTHER_MEASURE = "Attention was not compared with any other measure of importance."
MANY_CLASSES = 4
"""From this many predicted classes on, numbers are not split by class, as in the paper's code."""
COMPARISON_NOTES = {
    "by_word": ("by word", "Whole words were compared: token contributions were summed, token weights averaged."),
    "special_tokens": ("with special tokens", "Special tokens were ranked among the words, as in Neely et al."),
}
"""Settings that are not the default, by their metric in summaries: for the label of a figure, and as a sentence."""
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
    **{measure: {"lowest": 0.0} for measure in get_args(TopKAgreement)},
    "pairwise-rank": {"lowest": 0.0, "no_relation": 0.5},
}
"""The scale of measures that are shares; all others run from -1 through 0 to 1. The chance level of a share of the top
depends on the length of the text: the controls show it."""
_SIGNED_MEASURES = ("sign", "signed-rank")
_CORRELATIONS: Mapping[str, CorrelationFunction] = {
    "kendall": kendall_matrix,
    "spearman": spearman_matrix,
    "pearson": pearson_matrix,
    "weighted": weighted_kendall_matrix,
    "pairwise-rank": pairwise_rank_agreement_matrix,
}
TEXTS_PER_CHUNK = 256
MEASURES_OF_TOP = ("top-k", *get_args(TopKAgreement))
"""Measures for which `k` counts."""


@dataclass(frozen=True)
class Agreement(ShardedTrial):
    """Agreement of each pair of methods on each text, with controls.

    Args:
        methods: the one in question first, as a rule attention; its units are compared. A model that does not show its
            attention is asked about other methods.
        controls: methods that know nothing of the model or of the text; None takes random scores and, if a method
            reads attention, permuted attention.
        other_seed_model: the same model from another seed, for the scores of the first method.
        measure: correlations from -1 to 1, or shares from 0 to 1 (Krishna et al. 2022), which compare magnitudes.
        absolute: compare magnitudes, as both papers do; "sign" and "signed-rank" always use the signed scores.
        k: for "top-k" and the shares of the top: a whole number of units, a fraction of the units, or "nonzero" for
            the units with a nonzero score (for sparse attention).
        level: "unit" compares tokens, as the papers do; "word" whole words, by the pooling of each
            method: contributions of tokens are added, weights averaged.
        special_tokens: rank special tokens too, as in Neely et al.; every method and control must score them.
    """

    revision: ClassVar[int] = 4
    name: ClassVar[str] = "agreement"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Does attention agree with other measures of importance?"
    claim: ClassVar[str] = (
        "If attention shows which words matter, it should rank the words of a text like other measures of "
        "importance, such as the gradient or leave-one-out."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.1, table 2, figures 2 and 6 to 8"
    limits: ClassVar[str] = (
        f"{OTHER_LIMITS} If a model encodes each word by itself, the gradient contains the attention weight as a "
        "factor, so part of the agreement is built in."
    )

    statistics_columns: ClassVar[tuple[str, ...]] = (
        *("uid", "predicted", "place", "first", "second", "control", "value", "p_value", "tied", "defined"),
        *("first_is_attention", "second_is_attention", "variants", "measure", "level", "special_tokens"),
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    controls: tuple[Method, ...] | None = None
    other_seed_model: ModelRecipe | None = None
    measure: AgreementMeasure = "kendall"
    absolute: bool = True
    k: TopK = 10
    limit: int | None = None
    split: Split = "test"
    level: Level = "unit"
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_options(self)
        check_methods(self.methods)
        controls = self.compared_controls
        check_methods(controls, "controls")
        if self.special_tokens:
            check_special_tokens((*self.methods, *controls))
        if len(self.methods) < 2:
            raise UserError("agreement needs at least two methods; put attention, or the method in question, first")
        if len(self._attribution_tables) < len(self.methods) + len(controls) + (self.other_seed_model is not None):
            raise UserError("agreement got the same method twice; omit one, or use another seed")
        whole = isinstance(self.k, int) and not isinstance(self.k, bool) and self.k >= 1
        if not (whole or (isinstance(self.k, float) and 0 < self.k <= 1) or self.k == "nonzero"):
            raise UserError(f"k is {self.k!r}; pass a positive integer, a fraction up to 1.0, or 'nonzero'")

    @property
    def compared_controls(self) -> tuple[Method, ...]:
        """The controls as given, or those that fit the methods."""
        return default_controls(self.methods) if self.controls is None else self.controls

    @property
    def _attribution_tables(self) -> dict[str, AttributionTable]:
        """The attributions to compare by name: methods, controls, the first method on the other seed."""
        named = [(method_name(method), self.subject, method) for method in (*self.methods, *self.compared_controls)]
        if self.other_seed_model is not None:
            name = method_name(self.methods[0]) + OTHER_SEED_SUFFIX
            named.append((name, self.other_seed_model, self.methods[0]))
        if self.special_tokens:
            named = [(name, model, with_special_tokens(method)) for name, model, method in named]
        return {name: AttributionTable(model, method, self.split, self.limit) for name, model, method in named}

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return tuple(self._attribution_tables.values())

    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        """A row per text and pair of methods: uid, length, predicted class, both names, value, p-value, ties."""
        recipes = self._attribution_tables
        tables = {name: self._read_scores(recipe, block, workspace) for name, recipe in recipes.items()}
        correlate = _correlation_function(self.measure, self.k)
        absolute = self.absolute and self.measure not in _SIGNED_MEASURES
        weighted = self._weighted_parts(next(iter(tables.values())), block, workspace)
        table = correlate_attributions(tables, correlate, absolute=absolute, weighted=weighted)
        methods = [method_name(method) for method in self.methods]
        # Controls come after all methods, so a pair has a control if its second one is.
        table["control"] = ~table["second"].isin(methods)
        forms = [name for name, recipe in recipes.items() if tags_of(recipe.method).is_form_of_attention]
        kinds = {name: type(recipe.method).__name__ for name, recipe in recipes.items()}
        table["first_is_attention"], table["second_is_attention"] = (
            table[column].isin(forms) for column in ("first", "second")
        )
        table["variants"] = table["first"].map(kinds) == table["second"].map(kinds)
        table["measure"], table["level"], table["special_tokens"] = self.measure, self.level, self.special_tokens
        notes = workspace.read_notes(recipes[methods[0]])
        return self.artefact(table, table["uid"].nunique(), int(str(notes["of"])))

    def _read_scores(self, recipe: AttributionTable, block: range, workspace: Workspace) -> pd.DataFrame:
        table, pooling = recipe.read_block(workspace, block), tags_of(recipe.method).pooling
        return aggregate_to_level(table, self.level, pooling, special_tokens=self.special_tokens)

    def _weighted_parts(self, scores: pd.DataFrame, block: range, workspace: Workspace) -> set[float]:
        """The parts of these texts that have weight in any text of the corpus; other blocks are read if need be.

        Args:
            scores: the scores of the first method.
        """
        present, weighted = (
            set(np.unique(parts).tolist()) for parts in (flatten(scores["segments"]), _weighted(scores))
        )
        first = next(iter(self._attribution_tables.values()))
        if not present <= weighted and first.may_have_blocks:
            for start in range(0, first.count_examples(workspace), len(block)):
                other = self._read_scores(first, range(start, start + len(block)), workspace)
                weighted |= set(np.unique(_weighted(other)).tolist())
                if present <= weighted:
                    break
        return weighted

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Mean, deviation, significance, ties and undefined values of each pair, also by predicted class.

        `excess` is the mean over texts of how much more one pair agrees than another.
        """
        pairs = _find_pairs(table)
        attention = pairs[0].first
        yield Statistic("texts", value=float(table["uid"].nunique()))
        settings = dict.fromkeys(_comparison_settings(table), 1.0)
        for name, value in {**_SHARE_SCALES.get(table["measure"].iloc[0], {}), **settings}.items():
            yield Statistic(name, value=value)
        for name in dict.fromkeys(pair.second for pair in pairs if pair.has_control):
            yield Statistic("control", name, value=1.0)
        for name in dict.fromkeys(chain.from_iterable(pair.forms_of_attention for pair in pairs)):
            yield Statistic("form_of_attention", name, value=1.0)
        for pair in pairs:
            if pair.are_variants:
                yield Statistic("variants", pair.name, value=1.0)
        by_class = table["predicted"].nunique() < MANY_CLASSES
        for pair, rows in _group_by_pair(table):
            yield from _pair_statistics(rows, pair.name, "")
            if by_class and (pair.first == attention or not pair.has_control):
                for predicted, of_class in rows.groupby("predicted"):
                    yield from _pair_statistics(of_class, pair.name, f"class {predicted}")
        yield from _excesses(table)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 2 of the paper with controls, and all methods against each other."""
        notes = (COMPARISON_NOTES[name][0] for name in _comparison_settings(table))
        measure = table["measure"].iloc[0]
        label = ", ".join((_MEASURE_LABELS[measure], *notes))
        limits = _SHARE_SCALES.get(measure, {}).get("lowest", -1.0), 1.0
        pairs = list(_group_by_pair(table))
        attention = pairs[0][0].first
        groups = [(pair, rows) for pair, rows in pairs if pair.first == attention]
        values = {pair.second: tuple(rows["value"].astype(float)) for pair, rows in groups if pair.has_control}
        # Attention of another seed is a reference, not a control for chance.
        labels = {name: name if name.endswith(OTHER_SEED_SUFFIX) else f"{name} (control)" for name in values}
        controls = tuple(Series(labels[name], numbers) for name, numbers in values.items())
        axis = Axis(label, limits)
        # All controls in every histogram would hide the methods; the first one shows the chance level.
        histograms = (
            Histogram(
                f"{attention} against {pair.second}", axis, (*_series_by_class(rows), *controls[:1]), source=pair.name
            )
            for pair, rows in groups
            if not pair.has_control
        )
        beside = (Histogram(f"{attention} against controls", axis, controls),) if controls else ()
        return (*histograms, *beside, _matrix(axis, pairs))

    @classmethod
    def texts(cls, summary: pd.DataFrame) -> Claim:
        """As the paper asks where the first method is attention, else about that method."""
        first = _first_method(summary)
        if first in _forms_of_attention(summary):
            return super().texts(summary)
        return replace(
            super().texts(summary),
            title=f"Does {first} agree with other measures of importance?",
            claim=f"If {first} shows which words matter, it should rank the words of a text like other measures.",
            limits=OTHER_LIMITS,
        )

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Supported where attention agrees with the methods as much as these agree with each other."""
        groups = _group_means(summary)
        compared = [groups[name].values() for name in ("methods", "chance", "others")]
        attention, chance, others = (mean_of_defined(mean.value for mean in group) for group in compared)
        evidence = tuple(chain.from_iterable(compared))
        verdict, reason = Verdict.UNDECIDED, "as shown; there is nothing to compare it with"
        # Comparisons with NaN are false.
        if not groups["methods"]:
            reason = "only kinds of attention were compared"
        elif math.isnan(attention):
            reason = "to an undefined degree"
        elif attention - chance < SMALL_DIFFERENCE:
            verdict, reason = Verdict.NOT_SUPPORTED, "hardly more than chance"
        elif others - attention > SMALL_DIFFERENCE:
            verdict, reason = Verdict.NOT_SUPPORTED, "less than they agree with each other"
        elif others - attention <= SMALL_DIFFERENCE:
            verdict, reason = Verdict.SUPPORTED, "as much as they agree with each other"
        elif attention - chance >= SMALL_DIFFERENCE:
            reason = "more than chance"
        return (Finding(verdict, "", evidence, reason),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        groups = _group_means(summary)
        lowest, no_relation = find_statistic(summary, "lowest"), find_statistic(summary, "no_relation")
        scale = "1: same order of words, 0: no relation, -1: reverse order"
        if no_relation is not None:
            scale = f"1: same order of words, {no_relation.value:g}: no relation, 0: reverse order"
        elif lowest is not None:
            scale = "1: the same top words, 0: no top word in common"
        # The first method may be another kind of attention, such as rollout, and raw attention one of the others.
        first = _first_method(summary)
        listed = _format_means(groups["methods"])
        words = [f"On average, {first} agrees with {listed} ({scale})." if groups["methods"] else NO_OTHER_MEASURE]
        if groups["attention"]:
            words.append(f"Other kinds of attention: {_format_means(groups['attention'])}.")
        if groups["chance"]:
            words.append(f"Controls agree with it by chance: {_format_means(groups['chance'])}.")
        if groups["other seed"]:
            words.append(f"Another training run of the same model: {_format_means(groups['other seed'])}.")
        if groups["others"]:
            mean = mean_of_defined(other.value for other in groups["others"].values())
            words.append(f"The other methods agree with each other at {two_decimals(mean)}.")
        if groups["methods"]:
            words.append(f"So {first} agrees with them {cls.findings(summary)[0].reason}.")
        notes = [sentence for name, (_, sentence) in COMPARISON_NOTES.items() if find_statistic(summary, name)]
        return " ".join([*words, *notes])


@dataclass(frozen=True)
class AlignedScores:
    """Scores of several methods for the same units, text after text.

    Args:
        lengths: number of units of each text.
        scores: `[method unit]`, the units of all texts one after another.
    """

    uids: tuple[str, ...]
    lengths: NDArray[np.int64]
    scores: NDArray[np.float64]

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Row numbers of texts of similar length, shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        return (order[start : start + TEXTS_PER_CHUNK] for start in range(0, len(order), TEXTS_PER_CHUNK))

    def mask(self, rows: NDArray[np.int64]) -> Tensor:
        """Which units of the padded texts exist, `[text unit]`."""
        return torch.from_numpy(np.arange(max(1, int(self.lengths[rows].max()))) < self.lengths[rows][:, None])

    def pad(self, values: NDArray[np.generic], rows: NDArray[np.int64], fill: float = 0) -> Tensor:
        """Values `[... unit]` of these texts as `[text ... unit]`, with `fill` where a text has ended."""
        mask = self.mask(rows).numpy()
        starts = np.cumsum(self.lengths) - self.lengths
        positions = np.where(mask, starts[rows][:, None] + np.arange(mask.shape[1]), 0)
        padded = np.where(mask, values[..., positions], np.array(fill, values.dtype))
        return torch.from_numpy(np.moveaxis(padded, -2, 0).copy())


def align_tables(tables: Mapping[str, pd.DataFrame], kept: NDArray[np.bool_]) -> AlignedScores:
    """The scores of all tables on the kept units, in the order of the first table.

    Args:
        tables: tables of `AttributionTable` by the method's name.
        kept: one entry per unit of the first table, text after text.
    """
    first = next(iter(tables.values()))
    uids = first["uid"].tolist()
    lengths = first["scores"].map(len).to_numpy(np.int64)
    scores = []
    for name, table in tables.items():
        rows = dict(zip(table["uid"].tolist(), table["scores"].tolist(), strict=True))
        if rows.keys() != set(uids):
            raise UserError(f"{name} was computed on other texts; use the same corpus, split and limit for all methods")
        ordered = [rows[uid] for uid in uids]
        if [len(row) for row in ordered] != lengths.tolist():
            raise UserError(f"{name} scores other tokens of the same texts; use the same tokenization for all methods")
        flat = flatten(ordered)
        if not np.isfinite(flat).all():
            raise UserError(f"{name} gave {int((~np.isfinite(flat)).sum())} scores that are not finite; omit it")
        scores.append(flat[kept])
    kept_lengths = np.bincount(np.repeat(np.arange(len(uids)), lengths)[kept], minlength=len(uids))
    return AlignedScores(tuple(uids), kept_lengths, np.stack(scores))


def flatten(column: Iterable[Iterable[float]]) -> NDArray[np.float64]:
    """The entries of all rows of a column of lists, one after another."""
    return np.fromiter(chain.from_iterable(column), dtype=np.float64)


def correlate_attributions(
    tables: Mapping[str, pd.DataFrame],
    correlate: CorrelationFunction,
    *,
    absolute: bool,
    weighted: Collection[float] | None = None,
) -> pd.DataFrame:
    """A row for each text and each unordered pair of methods, in the order of `tables`, with their correlation.

    `place` counts the pairs. `tied` is the share of units whose score another unit has too, in either method.

    Args:
        tables: tables of `AttributionTable` by the method's name; the first one decides which units are compared.
        weighted: the parts of texts that have weight in any text of the corpus; by default in any of these.
    """
    first = next(iter(tables.values()))
    # Attention over a document never weighs its question: a part without weight in every text is left out. Sparse
    # attention may leave a part without weight in one text, and there the zeros count.
    scored, parts = (flatten(first[column]) for column in ("scored", "segments"))
    compared = _weighted(first) if weighted is None else [*weighted]
    aligned = align_tables(tables, (scored != 0) & np.isin(parts, compared))
    one, other = np.triu_indices(len(tables), k=1)
    chunks_of_columns: dict[str, list[NDArray[np.generic]]] = {"value": [], "p_value": [], "tied": [], "defined": []}
    chunks = list(aligned.chunks())
    for rows in chunks:
        scores, mask = aligned.pad(aligned.scores, rows), aligned.mask(rows)
        scores = quantize_scores(scores.abs() if absolute else scores, mask)
        result = correlate(scores, mask)
        numbers = (result.value, result.p_value, tied_share(scores, mask).float(), result.defined)
        for column, matrix in zip(chunks_of_columns, numbers, strict=True):
            chunks_of_columns[column].append(matrix[:, one, other].numpy())
    back = np.argsort(np.concatenate(chunks), kind="stable")
    columns = {column: np.concatenate(parts)[back].ravel() for column, parts in chunks_of_columns.items()}
    names = np.array(list(tables), dtype=object)
    texts, pairs = len(aligned.uids), len(one)
    return pd.DataFrame(
        {
            "uid": np.repeat(np.array(aligned.uids, dtype=object), pairs),
            "length": np.repeat(aligned.lengths.astype(np.int32), pairs),
            "predicted": np.repeat(first["predicted"].to_numpy(np.int32), pairs),
            "place": np.tile(np.arange(pairs, dtype=np.int16), texts),
            "first": np.tile(names[one], texts),
            "second": np.tile(names[other], texts),
            **columns,
        }
    )


def _weighted(table: pd.DataFrame) -> NDArray[np.float64]:
    """The part of each unit with a score other than 0."""
    parts: NDArray[np.float64] = flatten(table["segments"])[flatten(table["scores"]) != 0]
    return parts


def quantize_scores(scores: Tensor, mask: Tensor, resolution: float = RESOLUTION) -> Tensor:
    """Scores `[batch method unit]` in whole steps of `resolution` times the largest of their row; zero off the mask.

    >>> import torch
    >>> scores = torch.tensor([[[0.5, 0.25 + 1e-12, 0.25, 9.0]]], dtype=torch.float64)
    >>> quantize_scores(scores, torch.tensor([[True, True, True, False]]), 0.25).tolist()
    [[[4.0, 2.0, 2.0, 0.0]]]
    """
    real = scores.double().masked_fill(~mask.unsqueeze(-2), 0.0)
    largest = real.abs().amax(-1, keepdim=True)
    return (real / largest.masked_fill(largest == 0, 1.0) / resolution).round()


def tied_share(scores: Tensor, mask: Tensor) -> Tensor:
    """The share of units that have the score of another unit in either method, `[batch method method]`.

    >>> import torch
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


def aggregate_to_level(table: pd.DataFrame, level: Level, pooling: Pooling, *, special_tokens: bool) -> pd.DataFrame:
    """An attribution table with one score per unit, or per word: the sum or the mean over its units.

    Special tokens are left out, or are units and words of their own.

    >>> row = {"uid": ["a"], "predicted": [1], "segments": [[0, 0, 0, 0]]}
    >>> row |= {"scores": [[9.0, 1.0, -3.0, 5.0]], "scored": [[False, True, True, True]], "words": [[-1, 0, 0, 1]]}
    >>> aggregate_to_level(pd.DataFrame(row), "word", "sum", special_tokens=False)["scores"].tolist()
    [[-2.0, 5.0]]
    >>> aggregate_to_level(pd.DataFrame(row), "word", "mean", special_tokens=True)["scores"].tolist()
    [[-1.0, 5.0, 9.0]]
    """
    if level == "unit":
        every = table["scored"].map(lambda row: [True] * len(row))
        return table.assign(scored=every) if special_tokens else table
    pooled, parts = [], []
    for _, row in table.iterrows():
        words, scored = np.asarray(row["words"]), np.asarray(row["scored"], dtype=bool)
        # Special tokens are numbered after all words, each by itself.
        special = words.max(initial=-1) + 1 + np.arange(len(words)) if special_tokens else -1
        words = np.where(scored, words, special)
        kept = words >= 0
        _, first, number = np.unique(words[kept], return_index=True, return_inverse=True)
        scores, present = pool_by_word(
            torch.tensor(np.asarray(row["scores"], dtype=np.float64)[kept])[None], torch.tensor(number)[None], pooling
        )
        pooled.append(scores[present].tolist())
        parts.append(np.asarray(row["segments"])[kept][first].tolist())
    scored_words = [[True] * len(scores) for scores in pooled]
    known = {name: table[name].tolist() for name in ("uid", "predicted")}
    return pd.DataFrame({**known, "scores": pooled, "scored": scored_words, "segments": parts})


def check_special_tokens(methods: Sequence[Method]) -> None:
    """Raise `UserError` for methods that cannot score special tokens: zeros would rank them last."""
    silent = [method for method in methods if True not in option_values(with_special_tokens(method), "special_tokens")]
    if silent:
        wrapped = [option for method in silent for option in option_values(method, "method")]
        deletes = any(isinstance(method, LeaveOneOut) for method in (*silent, *wrapped))
        hint = "; instead of LeaveOneOut, which cannot delete them, use Occlusion(special_tokens=True)"
        raise UserError(
            f"{', '.join(map(method_name, silent))}: no scores for special tokens; omit these methods, pass "
            f"special_tokens=True to them, or compare without special tokens{hint if deletes else ''}"
        )


def _correlation_function(measure: AgreementMeasure, k: TopK) -> CorrelationFunction:
    if measure in _CORRELATIONS:
        return _CORRELATIONS[measure]

    def correlate(scores: Tensor, mask: Tensor) -> Correlation:
        if k == "nonzero":
            count: int | Tensor = k_from_nonzero(scores, mask)
        else:
            count = k if isinstance(k, int) else k_from_fraction(mask, k)
        if measure == "top-k":
            return top_k_kendall_matrix(scores, count, mask)
        return top_k_agreement_matrix(cast(TopKAgreement, measure), scores, count, mask)

    return correlate


def _comparison_settings(table: pd.DataFrame) -> list[str]:
    settings = {"by_word": table["level"].iloc[0] == "word", "special_tokens": bool(table["special_tokens"].iloc[0])}
    return [name for name, enabled in settings.items() if enabled]


@dataclass(frozen=True)
class _MethodPair:
    """Two methods that are compared; controls always come second."""

    first: str
    second: str
    has_control: bool
    forms_of_attention: tuple[str, ...]
    are_variants: bool

    @staticmethod
    def of_row(row: pd.Series) -> _MethodPair:
        """The pair of a row of the table."""
        first, second = str(row["first"]), str(row["second"])
        flags = zip((first, second), (row["first_is_attention"], row["second_is_attention"]), strict=True)
        forms = tuple(name for name, is_attention in flags if is_attention)
        return _MethodPair(first, second, bool(row["control"]), forms, bool(row["variants"]))

    @property
    def name(self) -> str:
        return f"{self.first}~{self.second}"


def _find_pairs(table: pd.DataFrame) -> list[_MethodPair]:
    """All pairs in the order of the methods."""
    firsts = table.drop_duplicates("place").sort_values("place")
    return [_MethodPair.of_row(row) for _, row in firsts.iterrows()]


def _group_by_pair(table: pd.DataFrame) -> Iterator[tuple[_MethodPair, pd.DataFrame]]:
    """All pairs in the order of the methods; the first method of the first pair is attention."""
    for _, rows in table.groupby("place"):
        yield _MethodPair.of_row(rows.iloc[0]), rows


def _pair_statistics(rows: pd.DataFrame, pair: str, subset: str) -> list[Statistic]:
    """The numbers of the paper's table 2, and more; significance is two-sided and among defined values."""
    defined = rows[rows["defined"]]
    value, p_value = defined["value"], defined["p_value"].dropna()
    sign = value[p_value.index]
    significant = p_value <= SIGNIFICANCE_LEVEL
    numbers = {
        "mean": (value.mean(), len(defined)),
        "std": (_spread(value), len(defined)),
        "significant": (significant.mean(), len(defined)),
        "significant_positive": ((significant & (sign > 0)).mean(), len(defined)),
        "significant_negative": ((significant & (sign < 0)).mean(), len(defined)),
        "tied": (rows["tied"].mean(), len(rows)),
        "undefined": (len(rows) - len(defined), len(rows)),
    }
    return [Statistic(name, pair, subset, value=float(number), n=n) for name, (number, n) in numbers.items()]


def _excesses(table: pd.DataFrame) -> Iterator[Statistic]:
    """How much more other methods agree than attention does (figures 6 and 7), and attention than each control."""
    pairs = _find_pairs(table)
    attention = pairs[0].first
    values = {pair.name: part.set_index("uid")["value"].sort_index() for pair, part in _group_by_pair(table)}
    beside = [pair for pair in pairs if pair.first == attention]
    compared = [
        (pair.name, f"{attention}~{end}")
        for pair in pairs
        if pair.first != attention and not pair.has_control
        for end in (pair.second, pair.first)
    ]
    compared += [
        (pair.name, control.name)
        for pair in beside
        for control in beside
        if control.has_control and not pair.has_control
    ]
    for one, other in compared:
        gap, name = values[one] - values[other], f"{one} over {other}"
        yield Statistic("excess", name, value=float(gap.mean()), n=int(gap.count()))
        yield Statistic("excess_std", name, value=_spread(gap), n=int(gap.count()))


def _spread(values: pd.Series[float]) -> float:
    """The population standard deviation; NaN for a single value, which has no spread."""
    return float(values.std(ddof=0)) if values.count() > 1 else math.nan


def _group_means(summary: pd.DataFrame) -> dict[str, dict[str, Statistic]]:
    """Mean agreements of attention with methods, controls and another seed, and of the other methods in pairs.

    Variants of one method, which differ in their settings alone, do not count as two methods that agree. Other kinds of
    attention are not other measures of importance: where the first method is one, they are a group of their own.
    """
    means = {tuple(mean.method.split("~")): mean for mean in select_statistics(summary, "mean") if not mean.subset}
    attention = next(iter(means))[0]
    forms = _forms_of_attention(summary)
    forms = forms if attention in forms else set()
    controls = {mean.method for mean in select_statistics(summary, "control")}
    variants = {mean.method for mean in select_statistics(summary, "variants")}
    groups: dict[str, dict[str, Statistic]] = {
        name: {} for name in ("methods", "attention", "chance", "other seed", "others")
    }
    for (first, second), mean in means.items():
        if first == attention:
            chance = "other seed" if second.endswith(OTHER_SEED_SUFFIX) else "chance"
            group = "attention" if second in forms else "methods"
            groups[chance if second in controls else group][second] = mean
        elif not (controls | forms) & {first, second} and mean.method not in variants:
            groups["others"][mean.method] = mean
    return groups


def _first_method(summary: pd.DataFrame) -> str:
    """The name of the method in question."""
    return select_statistics(summary, "mean")[0].method.partition("~")[0]


def _forms_of_attention(summary: pd.DataFrame) -> set[str]:
    """The names of methods that are the attention of the model in another form."""
    return {form.method for form in select_statistics(summary, "form_of_attention")}


def _format_means(statistics: Mapping[str, Statistic]) -> str:
    return ", ".join(f"{name} at {two_decimals(mean.value)}" for name, mean in statistics.items())


def _series_by_class(rows: pd.DataFrame) -> tuple[Series, ...]:
    if rows["predicted"].nunique() >= MANY_CLASSES:
        return (Series("all texts", tuple(rows["value"].astype(float))),)
    classes = rows.groupby("predicted")["value"]
    return tuple(Series(f"predicted class {name}", tuple(values.astype(float))) for name, values in classes)


def _matrix(axis: Axis, pairs: Sequence[tuple[_MethodPair, pd.DataFrame]]) -> Matrix:
    names = tuple(dict.fromkeys(name for pair, _ in pairs for name in (pair.first, pair.second)))
    limits = axis.limits or (-1.0, 1.0)
    # A correlation with itself is 1; a share of the top is not where a method has ties.
    means: dict[frozenset[str], float | None] = {frozenset((name,)): 1.0 if limits[0] else None for name in names}
    means |= {frozenset((pair.first, pair.second)): float(rows["value"].mean()) for pair, rows in pairs}
    values = tuple(tuple(means[frozenset((row, column))] for column in names) for row in names)
    return Matrix(f"{axis.label}, mean over texts", names, names, values, limits)
