"""Plausibility: do explanations name the words that people marked as evidence (Fernandes et al. 2022, tables 2 and 6)?

People say what convinces people, not what moves a model: a plausible explanation need not be a faithful one. Every
number stands beside that of random scores, and beside the best layer and head, chosen with the answer known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions.perturbation import Random
from heedful.core.figures import Axis, Bars, Figure, Histogram, Series
from heedful.core.plausibility import MEASURES, Pooling, Rank, Top
from heedful.core.resampling import bounds, resampled_means
from heedful.core.types import Method, Split, UserError
from heedful.core.workspace import Artefact, Recipe, Workspace, derived_seed
from heedful.models.pooled import Pooled
from heedful.recipes.attributed import Attributed
from heedful.recipes.headscored import HeadScored
from heedful.recipes.rationales import STATUS, Rationales
from heedful.recipes.subject import Subject
from heedful.trials.agreement import named
from heedful.trials.marking import Judging
from heedful.trials.oracles import ELSEWHERE, ORACLE, oracles
from heedful.trials.trial import Trial

FEWEST = 10
"""With fewer texts than this there is no interval."""
_FLAGS = {"null": "null", "oracle": ORACLE, "elsewhere": ELSEWHERE}
_ORDERS: Mapping[str, str] = {
    "score": "is scored above another",
    "size": "has a larger score than another, whatever the sign",
    "against": "speaks more against the answer than another",
}
"""What the chance is of, by the trial's rank."""
_EXCLUDED = {status: status.replace(" ", "_") for status in STATUS if status != "judged"}


@dataclass(frozen=True)
class Plausibility(Trial):
    """How well each method's scores put the words first that people marked; one row per instance, part and method.

    Args:
        subject: trained on a corpus with rationales, or `visiting` one.
        methods: the methods on trial; random scores are always added.
        learned: named recipes whose table is that of `Attributed`, for explainers that have to be trained first.
        parts: names of the parts that are judged apart, for instance ("source", "target"); none judges a text as a
            whole, without the parts in which people never marked a word.
        pooling: how a word's score comes from its pieces: the sum as in the paper, the mean or the maximum.
        rank: words by their score, by its "size", or those first that speak most "against" the prediction. Where
            people marked what is wrong with a text and the answer is how good it is, a true signed score is negative.
        top: words that are picked for F1 and IOU: a whole number, a share of the words, or as many as people marked.
        oracles: whether the best layer and head of a transformer are looked for.
    """

    name: ClassVar[str] = "plausibility"
    paper: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "Does an explanation name the words that people would name?"
    claim: ClassVar[str] = (
        "If an explanation is plausible, it gives the words that people marked as evidence higher scores than the "
        "other words of the text."
    )
    source: ClassVar[str] = "Fernandes et al. 2022, section 4.2 and 4.4, tables 2 and 6; DeYoung et al. 2020 (ERASER)"
    not_meaning: ClassVar[str] = (
        "Plausible is not faithful: people marked what convinces people, and a model may decide by other words. An "
        "explanation that shows this truly scores low here, one that flatters our expectations scores high. The best "
        "layer and head marked as oracles were chosen with the answer known; nobody can choose them so in earnest."
    )

    subject: Subject
    methods: tuple[Method, ...]
    learned: tuple[tuple[str, Recipe], ...] = ()
    parts: tuple[str, ...] = ()
    pooling: Pooling = "sum"
    rank: Rank = "score"
    top: Top = "rationale"
    oracles: bool = True
    limit: int | None = None
    split: Split = "test"

    def __post_init__(self) -> None:
        Judging(self.pooling, self.rank, self.top)
        names = [*(named(method) for method in self.methods), *(name for name, _ in self.learned)]
        if not names:
            raise UserError("plausibility needs a method at least")
        if len(set(names)) < len(names) or len(set(self.parts)) < len(self.parts):
            raise UserError("a method or a part stands twice in plausibility: give each a name of its own")
        null = named(Random())
        if any(isinstance(each, Random) and each != Random() for each in self.methods):
            raise UserError("random scores are always added, from a seed of their own: leave Random(...) out")
        if null in (name for name, _ in self.learned):
            raise UserError(f"{null!r} is the name of the random scores that are always added: choose another")

    @property
    def columns(self) -> dict[str, Recipe]:
        """The recipes of all scores by name, random ones last."""
        methods = [*(each for each in self.methods if not isinstance(each, Random)), Random()]
        *given, null = ((named(each), Attributed(self.subject, each, self.split, self.limit)) for each in methods)
        return dict((*given, *self.learned, null))

    @property
    def heads(self) -> HeadScored | None:
        """All layers and heads by themselves; None where there is only one, or nobody asked."""
        if not self.oracles or isinstance(self.subject.model, Pooled):
            return None
        rank: Rank = "against" if self.rank == "against" else "score"
        return HeadScored(self.subject, self.split, self.limit, self.parts, self.pooling, self.top, rank)

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials share, and the heads' numbers."""
        return (*self.columns.values(), *(() if self.heads is None else (self.heads,)))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance, part and method with every measure; `status` says why a text is not judged."""
        tables = {name: workspace.get(recipe).table for name, recipe in self.columns.items()}
        examples = self.subject.restore(workspace).examples(self.split)
        rationales = Rationales(examples, self.parts, self.subject.corpus.name)
        table = Judging(self.pooling, self.rank, self.top)(tables, rationales)
        null = named(Random())
        table["kind"] = table["method"].map(lambda name: "null" if name == null else "method")
        table["which"] = ""
        if self.heads is not None:
            texts = table[table["place"] == 0].drop(columns=list(MEASURES))
            found = oracles(workspace.get(self.heads), texts)
            added = [rows.assign(place=len(tables) + place) for place, rows in enumerate(found)]
            table = pd.concat([table, *added], ignore_index=True)
        if self.rank != "score":
            table["rank"] = self.rank
        n = int(table["uid"].nunique())
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": n, "of": len(examples)})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Means of each measure by method, with `low` and `high` of their 95 % intervals, and the `excess` over random.

        With parts, a method's place is `method (part)`. `judged` texts count; `no_rationale` (nobody marked a word),
        `all_rationale` (every word is marked) and `cut_off` (the marks were cut off with the text's end) do not.
        `null` is 1 for random scores, `oracle` for what was chosen with the marks of the same texts, `elsewhere` with
        those of other texts. Intervals come from resampled texts, the same draws for all methods; with fewer than ten
        texts there are none. `ranked.size` or `ranked.against` is there, and 1, where words are not ranked by score.
        """
        found = {"n": float(table["uid"].nunique())}
        if "rank" in table:
            found[f"ranked.{table['rank'].iloc[0]}"] = 1.0
        for part, rows in _parts(table):
            counts = rows[rows["place"] == rows["place"].min()]["status"].value_counts()
            found[_placed("judged", part)] = float(counts.get("judged", 0))
            found |= {_placed(name, part): float(counts.get(status, 0)) for status, name in _EXCLUDED.items()}
            found |= _numbers(rows[rows["status"] == "judged"], part)
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Areas and other measures by method with their intervals, and the areas of single texts."""
        summary = Plausibility.summary(table)
        found: list[Figure] = []
        for part, rows in _parts(table):
            places = [_at(_label(each), part) for each in _by_method(rows)]
            names = [_at(str(each["method"].iloc[0]), part) for each in _by_method(rows)]
            within = f", {part}" if part else ""
            found += [
                _bars(f"Marked words come first{within}", ("auc",), names, places, summary),
                _bars(
                    f"Marked words among the first{within}", ("average_precision", "f1", "iou"), names, places, summary
                ),
                _histogram(f"The same text by text{within}", rows),
            ]
        return tuple(found)

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """The methods in order, who is better than random, and what that does not mean."""
        parts = [name.removeprefix("judged.") for name in summary if name.startswith("judged.")]
        told = [_told(summary, part) for part in parts or [""]]
        return f"{' '.join(told)} Plausible is not faithful: this says what people expect, not what the model does."


def _placed(number: str, part: str) -> str:
    return f"{number}.{part}" if part else number


def _at(method: str, part: str) -> str:
    return f"{method} ({part})" if part else method


def _parts(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    ordered = table.sort_values(["place", "uid"])
    for part in sorted(ordered["part"].unique()):
        yield str(part), ordered[ordered["part"] == part]


def _by_method(rows: pd.DataFrame) -> list[pd.DataFrame]:
    return [each for _, each in rows.groupby("place")]


def _numbers(rows: pd.DataFrame, part: str) -> dict[str, float]:
    """Means, intervals and what each method is better than random by, over texts that are judged."""
    methods = _by_method(rows)
    if not methods:
        return {}
    values = torch.stack([torch.tensor(each[list(MEASURES)].to_numpy(float)) for each in methods], 1)
    null = next(place for place, each in enumerate(methods) if each["kind"].iloc[0] == "null")
    means, drawn = values.mean(0), _drawn(values, part)
    interval, better = bounds(drawn), bounds(drawn - drawn[:, null : null + 1])
    numbers = {"": means, "low": interval[0], "high": interval[1], "excess": means - means[null]}
    numbers |= {"excess_low": better[0], "excess_high": better[1]}
    found: dict[str, float] = {}
    for place, each in enumerate(methods):
        name = _at(str(each["method"].iloc[0]), part)
        found |= {f"{flag}.{name}": float(each["kind"].iloc[0] == kind) for flag, kind in _FLAGS.items()}
        for column, measure in enumerate(MEASURES):
            of_it = {number: float(table[place, column]) for number, table in numbers.items()}
            found |= {f"{number}.{measure}.{name}".lstrip("."): value for number, value in of_it.items()}
    return found


def _drawn(values: Tensor, part: str) -> Tensor:
    """Means over resampled texts `[resample method measure]` of values `[text method measure]`."""
    if len(values) < FEWEST:
        return torch.full((1, *values.shape[1:]), math.nan, dtype=torch.float64)
    generator = Generator().manual_seed(derived_seed("plausibility", part, len(values)))
    return resampled_means(values.flatten(1), generator=generator).reshape(-1, *values.shape[1:])


def _label(rows: pd.DataFrame) -> str:
    kind, method = str(rows["kind"].iloc[0]), str(rows["method"].iloc[0])
    return f"{method} (null)" if kind == "null" else method


def _bars(
    title: str, measures: Sequence[str], names: Sequence[str], labels: Sequence[str], summary: Mapping[str, float]
) -> Bars:
    series, errors = [], []
    for measure in measures:
        low, high = ([summary.get(f"{end}.{measure}.{name}", math.nan) for name in names] for end in ("low", "high"))
        means = tuple(summary.get(f"{measure}.{name}", math.nan) for name in names)
        series.append(Series(measure.replace("_", " "), means))
        errors.append(Series(measure.replace("_", " "), tuple((b - a) / 2 for a, b in zip(low, high, strict=True))))
    axis = Axis("mean over texts, with 95 % interval", (0.0, 1.0))
    return Bars(title, axis, tuple(labels), tuple(series), tuple(errors))


def _histogram(title: str, rows: pd.DataFrame) -> Histogram:
    """The areas of single texts, without the oracles."""
    own = [each for each in _by_method(rows) if each["kind"].iloc[0] in ("method", "null")]
    series = tuple(Series(_label(each), tuple(each["auc"].dropna().astype(float))) for each in own)
    return Histogram(title, Axis(MEASURES["auc"], (0.0, 1.0)), series)


def _told(summary: Mapping[str, float], part: str) -> str:
    counts = {name: summary[_placed(name, part)] for name in ("judged", *_EXCLUDED.values())}
    within = f" Of the {part}:" if part else ""
    left = f"{counts['no_rationale']:.0f} without marks, {counts['all_rationale']:.0f} all marked"
    left += f", {counts['cut_off']:.0f} with their marks cut off"
    found = f"{within} {counts['judged']:.0f} texts are judged (left out: {left})."
    methods = _methods(summary, part)
    if not methods:
        return f"{found} So nothing can be said.".strip()
    areas = {name: summary[f"auc.{name}"] for name in methods}
    ranked = sorted(methods, key=lambda name: math.inf if math.isnan(areas[name]) else -areas[name])
    kinds = {flag: [name for name in ranked if summary[f"{flag}.{name}"]] for flag in ("elsewhere", "oracle")}
    own = [name for name in ranked if not any(name in names for names in kinds.values())]
    listed = {kind: _listed(summary, names, part) for kind, names in {"own": own, **kinds}.items()}
    found += f" The chance that a marked word {_order(summary)} (.5 by chance): {listed['own']}."
    found += f" Chosen with the marks of other texts: {listed['elsewhere']}." if kinds["elsewhere"] else ""
    found += f" Chosen with the answer known (oracles): {listed['oracle']}." if kinds["oracle"] else ""
    return f"{found} {_verdict(summary, own, part)}".strip()


def _listed(summary: Mapping[str, float], names: Sequence[str], part: str) -> str:
    areas = {_bare(name, part): summary[f"auc.{name}"] for name in names}
    return ", ".join(f"{name} {'undefined' if math.isnan(area) else f'{area:.2f}'}" for name, area in areas.items())


def _order(summary: Mapping[str, float]) -> str:
    return next((words for rank, words in _ORDERS.items() if f"ranked.{rank}" in summary), _ORDERS["score"])


def _bare(name: str, part: str) -> str:
    """A method's name where the part is spoken of already."""
    return name.removesuffix(f" ({part})")


def _methods(summary: Mapping[str, float], part: str) -> list[str]:
    names = [name.removeprefix("auc.") for name in summary if name.startswith("auc.")]
    return [name for name in names if name.endswith(f" ({part})")] if part else names


def _verdict(summary: Mapping[str, float], methods: Sequence[str], part: str) -> str:
    """Who is better than random scores beyond doubt."""
    others = {
        _bare(name, part): (summary[f"excess_low.auc.{name}"], summary[f"excess_high.auc.{name}"])
        for name in methods
        if not summary[f"null.{name}"]
    }
    if summary[_placed("judged", part)] < FEWEST:
        return f"With fewer than {FEWEST} texts there is no interval, so no verdict: judge more texts."
    better = [name for name, (low, _) in others.items() if low > 0]
    worse = [name for name, (_, high) in others.items() if high < 0]
    found = (
        f"More plausible than random scores: {', '.join(better)}." if better else "None is more plausible than random."
    )
    if not worse:
        return found
    return f"{found} Less than random: {', '.join(worse)}{_turned(summary)}."


def _turned(summary: Mapping[str, float]) -> str:
    """What is to be borne in mind before a score is called wrong that puts marked words last."""
    if _order(summary) != _ORDERS["score"]:
        return ""
    return " (right of a signed score where people marked what speaks against the answer)"
