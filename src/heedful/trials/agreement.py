"""Agreement of attributions (Jain & Wallace, algorithm 1): do attention and other measures rank the words alike?

Every pair of methods is correlated on every instance. Nulls stand beside them, so that a reader sees what chance gives
and what a second training of the same model gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import ClassVar, Literal, get_args

import pandas as pd
from torch import Tensor

from heedful.attributions.nulls import PermutedAttention
from heedful.attributions.perturbation import Random
from heedful.core.correlations import Correlation, pearson_matrix, spearman_matrix
from heedful.core.disagreement import TopAgreement, pairwise_rank_agreement_matrix, top_agreement_matrix
from heedful.core.figures import Axis, Bars, Figure, Histogram, Matrix, Series
from heedful.core.kendall import kendall_matrix
from heedful.core.recipe import LATER
from heedful.core.topk import top_k_kendall_matrix, units_in_share, units_not_zero, weighted_kendall_matrix
from heedful.core.types import Method, Split, UserError
from heedful.core.workspace import Artefact, Json, Recipe, Workspace
from heedful.recipes.attributed import Attributed
from heedful.recipes.subject import Subject
from heedful.trials.comparing import Correlate, compared
from heedful.trials.levels import Level, check_level, check_specials, on_level, with_specials
from heedful.trials.trial import Trial
from heedful.trials.wording import ANOTHER_SEED, LOWEST, NO_RELATION, told

Measure = Literal[
    "kendall", "spearman", "pearson", "top-k", "weighted", "feature", "rank", "sign", "signed-rank", "pairwise-rank"
]
Top = int | float | Literal["nonzero"]

SIGNIFICANT = 0.05
MANY_CLASSES = 4
"""From this many predicted classes on, numbers are not split by class, as in the paper's code."""

_NAMES = {
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
_SCALES = {
    **{kind: {LOWEST: 0.0} for kind in get_args(TopAgreement)},
    "pairwise-rank": {LOWEST: 0.0, NO_RELATION: 0.5},
}
"""Measures that are shares, and what their summaries say of their scale; all others run from -1 by 0 to 1. What chance
gives in the top depends on the length of a text: the nulls tell it."""
_SIGNED = ("sign", "signed-rank")
"""Measures that ask for signs."""


COMPARED_ON = {
    "by_word": ("by word", "Compared were whole words, each with the sum of its pieces' scores."),
    "specials": ("with special symbols", "Special symbols were ranked among the words, as Neely et al. do."),
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
    not_meaning: ClassVar[str] = (
        "Agreement is not truth: the measures may agree and be wrong together, and none of them is known to be right. "
        "A significant correlation is only more than chance, and in long texts nearly every correlation is. Where a "
        "model reads each word by itself, the gradient contains the attention weight as a factor, so that part of "
        "their agreement is built in."
    )

    subject: Subject
    methods: tuple[Method, ...]
    nulls: tuple[Method, ...] = (Random(), PermutedAttention())
    other: Subject | None = None
    measure: Measure = "kendall"
    absolute: bool = True
    k: Top = 10
    resolution: float = 1e-9
    limit: int | None = None
    split: Split = "test"
    level: Level = field(default="unit", metadata=LATER)
    specials: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.specials:
            methods = (*self.methods, *self.nulls)
            check_specials([named(method) for method in methods], with_specials(methods))
        if self.measure not in _NAMES:
            raise UserError(f"there is no measure {self.measure!r} of agreement; choose one of {', '.join(_NAMES)}")
        if len(self.methods) < 2:
            raise UserError("agreement needs two methods at least: attention first, then one to compare it with")
        if len(self._columns) < len(self.methods) + len(self.nulls) + (self.other is not None):
            raise UserError("a method is given twice to agreement: leave one of them out, or give it another seed")
        _check_top(self.k)
        if not 0 < self.resolution < math.inf:
            raise UserError(
                f"Agreement(resolution={self.resolution}): it must be above 0; scores closer than this share of the "
                "largest are ties"
            )

    @property
    def _columns(self) -> dict[str, Attributed]:
        """The attributions to compare, by name: methods, nulls, attention of the other subject."""
        found = {named(each): self._attributed(self.subject, each) for each in (*self.methods, *self.nulls)}
        if self.other is not None:
            found[named(self.methods[0]) + ANOTHER_SEED] = self._attributed(self.other, self.methods[0])
        return found

    def _attributed(self, subject: Subject, method: Method) -> Attributed:
        asked = with_specials((method,))[0] if self.specials else method
        return Attributed(subject, asked, self.split, self.limit)

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials and the report share."""
        return tuple(self._columns.values())

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and pair of methods: uid, length, predicted class, both names, value, p-value, ties."""
        made = {name: workspace.get(recipe) for name, recipe in self._columns.items()}
        tables = {name: on_level(each.table, self.level, specials=self.specials) for name, each in made.items()}
        correlate = _correlate(self.measure, self.k)
        absolute = self.absolute and self.measure not in _SIGNED
        table = compared(tables, correlate, absolute=absolute, resolution=self.resolution)
        methods = [named(method) for method in self.methods]
        # Nulls come after all methods, so a pair has a null if its second one is.
        table["null"] = ~table["second"].isin(methods)
        table["measure"], table["level"], table["specials"] = self.measure, self.level, self.specials
        counts: dict[str, Json] = {"n": int(table["uid"].nunique()), "of": made[methods[0]].notes["of"]}
        return Artefact(table=table, notes={"about": dict(self.subject.about), **counts})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """For each pair mean, deviation, significant shares, ties and undefined, by predicted class; differences.

        `excess.x~y over z~y` is the mean over instances of what x and y agree more than z and y. Shares also tell the
        `lowest` that there is, 0, and where it is known the share without any relation. `by_word` and `specials` are
        told, as 1, where sums over words were compared, and where special symbols were ranked too.
        """
        found = {"n": float(table["uid"].nunique()), **_SCALES.get(_measure(table), {}), **_compared_on(table)}
        attention = _pairs(table)[0].first
        by_class = table["predicted"].nunique() < MANY_CLASSES
        for pair, rows in _grouped(table):
            found |= _numbers(rows, pair.name)
            if by_class and (pair.first == attention or not pair.null):
                for predicted, of_class in rows.groupby("predicted"):
                    found |= _numbers(of_class, f"{pair.name}.class_{predicted}")
        return found | _excesses(table)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 2 with the nulls beside, how strong a correlation ought to be, and all methods against each other."""
        label, limits = _labelled(table), _limits(_measure(table))
        attention = _pairs(table)[0].first
        groups = [(pair, rows) for pair, rows in _grouped(table) if pair.first == attention]
        nulls = tuple(Series(_label(pair), _values(rows)) for pair, rows in groups if pair.null)
        axis = Axis(label, limits)
        # All nulls in every histogram would hide what it is about; the first one shows where chance lies.
        of_paper = (
            Histogram(f"{attention} against {pair.second}", axis, (*_by_class(rows), *nulls[:1]))
            for pair, rows in groups
            if not pair.null
        )
        beside = (Histogram(f"{attention} against nulls", axis, nulls),) if nulls else ()
        return (*of_paper, *beside, _bars(label, groups), replace(_matrix(label, table), limits=limits))

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """How strongly attention agrees with each measure, beside chance, another training and the measures' own."""
        words = [sentence for name, (_, sentence) in COMPARED_ON.items() if summary.get(name)]
        return " ".join([told(summary), *words])


def named(method: object) -> str:
    """A short name for a method: its class in small letters, and the fields that are not at their default.

    >>> named(Random()), named(Random(seed=3)), named(PermutedAttention())
    ('random', 'random(seed-3)', 'permuted-attention')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", type(method).__name__)
    name = words.lower().removeprefix("raw-")
    differing = ",".join(_differing(method))
    return f"{name}({differing})" if differing else name


def _differing(method: object) -> Iterator[str]:
    """A field as people say it: `cut`, `no-cut`, `logit`, `seed-3`."""
    for each in fields(method) if is_dataclass(method) else ():
        value = getattr(method, each.name)
        if each.default is not MISSING and value == each.default:
            continue
        if isinstance(value, bool):
            yield each.name if value else f"no-{each.name}"
        elif isinstance(value, str):
            yield value
        else:
            yield f"{each.name}-{named(value) if is_dataclass(value) else value}"


def _check_top(k: object) -> None:
    """Refuses a top that there is not: whole numbers count places, fractions are shares."""
    whole = isinstance(k, int) and not isinstance(k, bool) and k >= 1
    if not (whole or (isinstance(k, float) and 0 < k <= 1) or k == "nonzero"):
        raise UserError(f"Agreement(k={k!r}): k must be a whole number from 1 on, a share above 0 to 1.0, or 'nonzero'")


def _correlate(measure: Measure, k: Top) -> Correlate:
    if measure == "top-k":
        return partial(_top, top_k_kendall_matrix, k)
    for kind in get_args(TopAgreement):
        if kind == measure:
            return partial(_top, partial(top_agreement_matrix, kind), k)
    return {
        "kendall": kendall_matrix,
        "spearman": spearman_matrix,
        "pearson": pearson_matrix,
        "weighted": weighted_kendall_matrix,
        "pairwise-rank": pairwise_rank_agreement_matrix,
    }[measure]


def _top(
    of_top: Callable[[Tensor, int | Tensor, Tensor], Correlation], k: Top, scores: Tensor, mask: Tensor
) -> Correlation:
    if k == "nonzero":
        return of_top(scores, units_not_zero(scores, mask), mask)
    return of_top(scores, k if isinstance(k, int) else units_in_share(mask, k), mask)


def _measure(table: pd.DataFrame) -> str:
    return str(table["measure"].iloc[0])


def _compared_on(table: pd.DataFrame) -> dict[str, float]:
    """What is not as usual; tables that were made before there was a choice are as usual."""
    there = {name: name in table.columns for name in ("level", "specials")}
    found = {
        "by_word": there["level"] and table["level"].iloc[0] == "word",
        "specials": there["specials"] and bool(table["specials"].iloc[0]),
    }
    return {name: 1.0 for name, so in found.items() if so}


def _labelled(table: pd.DataFrame) -> str:
    """The measure's name for figures, and on what scores were compared where that is not as usual."""
    return ", ".join([_NAMES[_measure(table)], *(COMPARED_ON[name][0] for name in _compared_on(table))])


def _limits(measure: str) -> tuple[float, float]:
    """The least and the greatest value that there is."""
    return _SCALES.get(measure, {}).get(LOWEST, -1.0), 1.0


@dataclass(frozen=True)
class _Pair:
    """Two methods that are compared; `null`: at least one of them is a null."""

    first: str
    second: str
    null: bool

    @property
    def name(self) -> str:
        return f"{self.first}~{self.second}"


def _pairs(table: pd.DataFrame) -> list[_Pair]:
    """All pairs in the order of the methods; the first method of the first pair is attention."""
    rows = table.drop_duplicates("place").sort_values("place")
    return [_Pair(str(row["first"]), str(row["second"]), bool(row["null"])) for _, row in rows.iterrows()]


def _grouped(table: pd.DataFrame) -> Iterator[tuple[_Pair, pd.DataFrame]]:
    return zip(_pairs(table), (rows for _, rows in table.groupby("place")), strict=True)


def _numbers(rows: pd.DataFrame, place: str) -> dict[str, float]:
    """What the paper's table 2 prints, and more; significance is two-sided and among the defined."""
    defined = rows[rows["defined"]]
    value, p_value = defined["value"], defined["p_value"].dropna()
    sign = value[p_value.index]
    numbers = {
        "n": len(defined),
        "mean": value.mean(),
        "std": value.std(ddof=0),
        "significant": (p_value <= SIGNIFICANT).mean(),
        "significant_positive": ((p_value <= SIGNIFICANT) & (sign > 0)).mean(),
        "significant_negative": ((p_value <= SIGNIFICANT) & (sign < 0)).mean(),
        "tied": rows["tied"].mean(),
        "undefined": len(rows) - len(defined),
    }
    return {f"{name}.{place}": float(number) for name, number in numbers.items()}


def _excesses(table: pd.DataFrame) -> dict[str, float]:
    """How much more others agree than attention does (figures 6, 7), and attention with them than with each null."""
    pairs = _pairs(table)
    attention = pairs[0].first
    wide = table.pivot(index="uid", columns="place", values="value")
    values = {pair.name: wide[place] for place, pair in enumerate(pairs)}
    beside = [pair for pair in pairs if pair.first == attention]
    others = [pair for pair in pairs if pair.first != attention and not pair.null]
    weighed = [(pair.name, f"{attention}~{end}") for pair in others for end in (pair.second, pair.first)]
    weighed += [(pair.name, null.name) for pair in beside for null in beside if null.null and not pair.null]
    found = {}
    for one, other in weighed:
        gap = values[one] - values[other]
        found[f"excess.{one} over {other}"] = float(gap.mean())
        found[f"excess_std.{one} over {other}"] = float(gap.std(ddof=0))
    return found


def _values(rows: pd.DataFrame) -> tuple[float, ...]:
    return tuple(float(value) for value in rows["value"])


def _label(pair: _Pair) -> str:
    """The method beside attention; attention of another seed is a measure of what to expect, not a null of its own."""
    return f"{pair.second} (null)" if pair.null and not pair.second.endswith(ANOTHER_SEED) else pair.second


def _by_class(rows: pd.DataFrame) -> tuple[Series, ...]:
    if rows["predicted"].nunique() >= MANY_CLASSES:
        return (Series("all instances", _values(rows)),)
    return tuple(Series(f"predicted class {name}", _values(of_class)) for name, of_class in rows.groupby("predicted"))


def _bars(label: str, groups: Sequence[tuple[_Pair, pd.DataFrame]]) -> Bars:
    names = tuple(_label(pair) for pair, _ in groups)
    means = Series("mean", tuple(float(rows["value"].mean()) for _, rows in groups))
    deviations = Series("mean", tuple(float(rows["value"].std(ddof=0)) for _, rows in groups))
    title = "How strong is the agreement with attention, and how strong ought it to be?"
    return Bars(title, Axis(f"{label}, mean and deviation over instances"), names, (means,), (deviations,))


def _matrix(label: str, table: pd.DataFrame) -> Matrix:
    means = {frozenset((pair.first, pair.second)): float(rows["value"].mean()) for pair, rows in _grouped(table)}
    pairs = _pairs(table)
    names = (pairs[0].first, *(pair.second for pair in pairs if pair.first == pairs[0].first))
    # A correlation with itself is 1; a share of the top is not where a method has ties, and the table has no such rows.
    itself = None if _measure(table) in _SCALES else 1.0
    values = tuple(
        tuple(itself if row == column else means[frozenset((row, column))] for column in names) for row in names
    )
    return Matrix(f"{label}, mean over instances", names, names, values)
