"""Scores of several methods beside the words that people marked: lined up by text and word, and judged all at once.

The best layer and the best head: chosen with the marks of the same texts, and, honestly, with those of others.

An oracle tells what could be reached if one knew which head to look at; nobody can who has no marks. The same choice
made on one half of the texts and judged on the other tells how much of that is luck.

Plausibility: do explanations name the words that people marked as evidence (Fernandes et al. 2022, tables 2 and 6)?

People say what convinces people, not what moves a model: a plausible explanation need not be a faithful one. Every
number stands beside that of random scores, and beside the best layer and head, chosen with the answer known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.attributions.controls import Random
from heedful.figures import Axis, Bars, Figure, Histogram, Series
from heedful.measures.bootstrap import bootstrap_means, percentile_bounds
from heedful.measures.rationale_agreement import (
    PLAUSIBILITY_MEASURES,
    RankBy,
    TopK,
    check_top_k,
    plausibility_metrics,
    ranking_key,
)
from heedful.models.attentive import Attentive
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import ModelRecipe
from heedful.training.rationales import RATIONALE_STATUS, HeadPlausibility, RationaleBatch, Rationales
from heedful.trials._trial import Trial
from heedful.types import Method, Pooling, Split, UserError, check_choice, method_name, pool_by_word

_TEXTS_PER_CHUNK = 256


@dataclass(frozen=True)
class PlausibilityEvaluator:
    """How scores are compared with marks.

    Args:
        pooling: how a word's score comes from its pieces.
        top: words that are picked for F1 and IOU.
    """

    pooling: Pooling = "sum"
    rank: RankBy = "score"
    top: TopK = "rationale"

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, Pooling)
        check_top_k(self.top)
        check_choice("rank", self.rank, RankBy)

    def __call__(self, tables: Mapping[str, pd.DataFrame], rationales: Rationales) -> pd.DataFrame:
        """A row per text, part and method, in the order of `tables`: words, marked ones, status and every measure.

        Args:
            tables: what `Attributed` made, by the method's name.
        """
        lined = _align_texts(tables)
        texts: list[pd.DataFrame] = []
        found: list[Tensor] = []
        for rows in lined.chunks():
            uids, scores, words = lined.pad(rows)
            marked = rationales.select(uids, words)
            found.append(self._measures(scores, words, marked))
            texts.append(_text_rows(uids, marked, rationales.parts))
        return _long_table(pd.concat(texts, ignore_index=True), torch.cat(found), list(tables))

    def _measures(self, scores: Tensor, words: Tensor, marked: RationaleBatch) -> Tensor:
        """Every measure `[batch part method measure]` of scores `[batch method unit]`."""
        pooled, _ = pool_by_word(scores, words, self.pooling, marked.mask.shape[-1])
        spread = ranking_key(pooled, self.rank).unsqueeze(1).expand(-1, marked.mask.shape[1], -1, -1)
        numbers = plausibility_metrics(spread, marked.rationale.unsqueeze(2), marked.mask.unsqueeze(2), self.top)
        return torch.stack([numbers[name] for name in PLAUSIBILITY_MEASURES], -1)


def _text_rows(uids: Sequence[str], marked: RationaleBatch, parts: Sequence[str]) -> pd.DataFrame:
    """A row per text and part."""
    return pd.DataFrame(
        {
            "uid": np.repeat(np.array(uids, dtype=object), len(parts)),
            "part": np.tile(np.array(parts, dtype=object), len(uids)),
            "length": marked.mask.sum(-1).flatten().numpy(),
            "marked": (marked.rationale & marked.mask).sum(-1).flatten().numpy(),
            "status": np.array(RATIONALE_STATUS, dtype=object)[marked.status.flatten().numpy()],
        }
    )


def _long_table(texts: pd.DataFrame, numbers: Tensor, methods: Sequence[str]) -> pd.DataFrame:
    by_row = numbers.flatten(0, 1).numpy()
    found = [
        texts.assign(
            method=name,
            place=place,
            **{measure: by_row[:, place, column] for column, measure in enumerate(PLAUSIBILITY_MEASURES)},
        )
        for place, name in enumerate(methods)
    ]
    return pd.concat(found, ignore_index=True)


@dataclass(frozen=True)
class _AlignedTexts:
    """Scores `[method unit]` and words `[unit]` of all texts one after the other; `lengths` are units of each."""

    uids: tuple[str, ...]
    lengths: NDArray[np.int64]
    words: NDArray[np.int64]
    scores: NDArray[np.float64]

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Texts of about equal length, shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        return (order[start : start + _TEXTS_PER_CHUNK] for start in range(0, len(order), _TEXTS_PER_CHUNK))

    def pad(self, rows: NDArray[np.int64]) -> tuple[list[str], Tensor, Tensor]:
        """The texts' uids, scores `[batch method unit]` and words `[batch unit]`."""
        unit = np.arange(max(1, int(self.lengths[rows].max())))
        inside = unit < self.lengths[rows][:, None]
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.where(inside, starts[rows][:, None] + unit, 0)
        words = torch.from_numpy(np.where(inside, self.words[places], -1))
        scores = torch.from_numpy(self.scores[:, places].swapaxes(0, 1).copy())
        return [self.uids[row] for row in rows], scores, words


def _align_texts(tables: Mapping[str, pd.DataFrame]) -> _AlignedTexts:
    first = next(iter(tables.values()))
    uids = first["uid"].tolist()
    lengths = np.fromiter(map(len, first["words"]), dtype=np.int64)
    words = _concatenate(first["words"]).astype(np.int64)
    scores = np.stack([_flatten_scores(name, table, uids, lengths) for name, table in tables.items()])
    # What a method says of special symbols is about no word.
    return _AlignedTexts(tuple(uids), lengths, np.where(_concatenate(first["scored"]) != 0, words, -1), scores)


def _flatten_scores(name: str, table: pd.DataFrame, uids: list[str], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    if set(table["uid"]) != set(uids):
        raise UserError(f"{name} was run on other texts: give all methods the same subject, split and limit")
    rows = table.set_index("uid").loc[uids, "scores"].tolist()
    if not np.array_equal(np.fromiter(map(len, rows), dtype=np.int64), lengths):
        raise UserError(f"{name} scores other units of the same texts: give all methods the same subject")
    scores = _concatenate(rows)
    if not np.isfinite(scores).all():
        raise UserError(f"{name} gave {int((~np.isfinite(scores)).sum())} scores that are no finite numbers")
    return scores


def _concatenate(rows: Iterable[Iterable[float]]) -> NDArray[np.float64]:
    return np.fromiter(chain.from_iterable(rows), dtype=np.float64)


ORACLE, HELD_OUT = "oracle", "chosen on other texts"
_AUC = list(PLAUSIBILITY_MEASURES).index("auc")
_FloatArray = NDArray[np.float64]


def best_head_rows(artefact: Artefact, texts: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each kind of choice the rows of its layer or head: `texts` with method, kind, which one, and every measure.

    Args:
        artefact: what `HeadScored` made.
        texts: a row per text and part, with `uid` and `part`, all parts of a text in the order of the artefact's.
    """
    numbers = artefact.tensors["plausibility"].double().numpy()
    layers, heads = (int(str(artefact.notes[name])) for name in ("layers", "heads"))
    order = {str(uid): place for place, uid in enumerate(artefact.table["uid"])}
    parts = {part: place for place, part in enumerate(texts["part"].drop_duplicates())}
    uids = list(order)
    halves = np.array([derive_seed("half", uid) % 2 for uid in uids], dtype=bool)
    at = (texts["uid"].map(order).to_numpy(np.int64), texts["part"].map(parts).to_numpy(np.int64))
    for name, first, last in (("best-layer", 0, layers), ("best-head", layers, layers + layers * heads)):
        bank = numbers[:, :, first:last]
        for kind, chosen in (
            (ORACLE, _best_map(bank, np.ones_like(halves))),
            (HELD_OUT, _best_map_on_other_half(bank, halves)),
        ):
            picked = np.take_along_axis(bank, np.maximum(chosen, 0)[:, :, None, None], 2)[:, :, 0]
            picked = np.where(chosen[:, :, None] < 0, np.nan, picked)[at]
            which = [_map_label(name, int(place), heads) for place in chosen[at]]
            columns = {measure: picked[:, column] for column, measure in enumerate(PLAUSIBILITY_MEASURES)}
            yield texts.assign(method=f"{name} ({kind})", kind=kind, which=which, **columns)


def _best_map(numbers: _FloatArray, selection: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The map with the highest mean area among the judges, in each part `[text part]`; -1 where nothing is judged."""
    areas = numbers[selection][..., _AUC]
    known = np.isfinite(areas)
    count = known.sum(0)
    means = np.where(known, areas, 0.0).sum(0) / np.maximum(count, 1)
    best = np.where(count.any(-1), means.argmax(-1), -1)
    return np.broadcast_to(best, numbers.shape[:2])


def _best_map_on_other_half(numbers: _FloatArray, halves: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For the texts of each half the map that is best on the other half, `[text part]`."""
    return np.where(halves[:, None], _best_map(numbers, ~halves), _best_map(numbers, halves))


def _map_label(name: str, place: int, heads: int) -> str:
    if place < 0:
        return ""
    return f"layer {place}" if name == "best-layer" else f"layer {place // heads}, head {place % heads}"


MIN_TEXTS = 10
"""With fewer texts than this there is no interval."""
_KIND_FLAGS = {"null": "null", "oracle": ORACLE, "elsewhere": HELD_OUT}
_RANK_CLAUSES: Mapping[str, str] = {
    "score": "is scored above another",
    "size": "has a larger score than another, whatever the sign",
    "against": "speaks more against the answer than another",
}
"""What the chance is of, by the trial's rank."""
_EXCLUSION_KEYS = {status: status.replace(" ", "_") for status in RATIONALE_STATUS if status != "judged"}


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
    limits: ClassVar[str] = (
        "Plausible is not faithful: people marked what convinces people, and a model may decide by other words. An "
        "explanation that shows this truly scores low here, one that flatters our expectations scores high. The best "
        "layer and head marked as oracles were chosen with the answer known; nobody can choose them so in earnest."
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    learned_explainers: tuple[tuple[str, Recipe], ...] = ()
    parts: tuple[str, ...] = ()
    pooling: Pooling = "sum"
    rank: RankBy = "score"
    top: TopK = "rationale"
    oracles: bool = True
    limit: int | None = None
    split: Split = "test"

    def __post_init__(self) -> None:
        PlausibilityEvaluator(self.pooling, self.rank, self.top)
        names = [*(method_name(method) for method in self.methods), *(name for name, _ in self.learned_explainers)]
        if not names:
            raise UserError("plausibility needs a method at least")
        if len(set(names)) < len(names) or len(set(self.parts)) < len(self.parts):
            raise UserError("a method or a part stands twice in plausibility: give each a name of its own")
        null = method_name(Random())
        if any(isinstance(each, Random) and each != Random() for each in self.methods):
            raise UserError("random scores are always added, from a seed of their own: leave Random(...) out")
        if null in (name for name, _ in self.learned_explainers):
            raise UserError(f"{null!r} is the name of the random scores that are always added: choose another")

    @property
    def score_recipes(self) -> dict[str, Recipe]:
        """The recipes of all scores by name, random ones last."""
        methods = [*(each for each in self.methods if not isinstance(each, Random)), Random()]
        *given, null = (
            (method_name(each), AttributionTable(self.subject, each, self.split, self.limit)) for each in methods
        )
        return dict((*given, *self.learned_explainers, null))

    @property
    def head_scores(self) -> HeadPlausibility | None:
        """All layers and heads by themselves; None where there is only one, or nobody asked."""
        if not self.oracles or isinstance(self.subject.architecture, Attentive):
            return None
        rank: RankBy = "against" if self.rank == "against" else "score"
        return HeadPlausibility(self.subject, self.split, self.limit, self.parts, self.pooling, self.top, rank)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials share, and the heads' numbers."""
        return (*self.score_recipes.values(), *(() if self.head_scores is None else (self.head_scores,)))

    def describe(self) -> Mapping[str, Json]:
        """The facts of every trial, and the explanations of the learned explainers by name."""
        learned = {name: table.describe().get("method", name) for name, table in self.learned_explainers}
        return {**super().describe(), "learned_explainers": learned}

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance, part and method with every measure; `status` says why a text is not judged."""
        tables = {name: workspace.get(recipe).table for name, recipe in self.score_recipes.items()}
        examples = self.subject.restore(workspace).examples(self.split)
        rationales = Rationales(examples, self.parts, self.subject.corpus.name)
        table = PlausibilityEvaluator(self.pooling, self.rank, self.top)(tables, rationales)
        null = method_name(Random())
        table["kind"] = table["method"].map(lambda name: "null" if name == null else "method")
        table["which"] = ""
        if self.head_scores is not None:
            texts = table[table["place"] == 0].drop(columns=list(PLAUSIBILITY_MEASURES))
            found = best_head_rows(workspace.get(self.head_scores), texts)
            added = [rows.assign(place=len(tables) + place) for place, rows in enumerate(found)]
            table = pd.concat([table, *added], ignore_index=True)
        if self.rank != "score":
            table["rank"] = self.rank
        n = int(table["uid"].nunique())
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": n, "of": len(examples)})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
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
        for part, rows in _split_by_part(table):
            counts = rows[rows["place"] == rows["place"].min()]["status"].value_counts()
            found[_part_key("judged", part)] = float(counts.get("judged", 0))
            found |= {_part_key(name, part): float(counts.get(status, 0)) for status, name in _EXCLUSION_KEYS.items()}
            found |= _method_statistics(rows[rows["status"] == "judged"], part)
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Areas and other measures by method with their intervals, and the areas of single texts."""
        summary = Plausibility.flat_summary(table)
        found: list[Figure] = []
        for part, rows in _split_by_part(table):
            places = [_method_in_part(_method_label(each), part) for each in _split_by_method(rows)]
            names = [_method_in_part(str(each["method"].iloc[0]), part) for each in _split_by_method(rows)]
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
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """The methods in order, who is better than random, and what that does not mean."""
        parts = [name.removeprefix("judged.") for name in summary if name.startswith("judged.")]
        told = [_part_sentences(summary, part) for part in parts or [""]]
        return f"{' '.join(told)} Plausible is not faithful: this says what people expect, not what the model does."


def _part_key(number: str, part: str) -> str:
    return f"{number}.{part}" if part else number


def _method_in_part(method: str, part: str) -> str:
    return f"{method} ({part})" if part else method


def _split_by_part(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    ordered = table.sort_values(["place", "uid"])
    for part in sorted(ordered["part"].unique()):
        yield str(part), ordered[ordered["part"] == part]


def _split_by_method(rows: pd.DataFrame) -> list[pd.DataFrame]:
    return [each for _, each in rows.groupby("place")]


def _method_statistics(rows: pd.DataFrame, part: str) -> dict[str, float]:
    """Means, intervals and what each method is better than random by, over texts that are judged."""
    methods = _split_by_method(rows)
    if not methods:
        return {}
    values = torch.stack([torch.tensor(each[list(PLAUSIBILITY_MEASURES)].to_numpy(float)) for each in methods], 1)
    null = next(place for place, each in enumerate(methods) if each["kind"].iloc[0] == "null")
    means, drawn = values.mean(0), _resample_means(values, part)
    interval, better = percentile_bounds(drawn), percentile_bounds(drawn - drawn[:, null : null + 1])
    numbers = {"": means, "low": interval[0], "high": interval[1], "excess": means - means[null]}
    numbers |= {"excess_low": better[0], "excess_high": better[1]}
    found: dict[str, float] = {}
    for place, each in enumerate(methods):
        name = _method_in_part(str(each["method"].iloc[0]), part)
        found |= {f"{flag}.{name}": float(each["kind"].iloc[0] == kind) for flag, kind in _KIND_FLAGS.items()}
        for column, measure in enumerate(PLAUSIBILITY_MEASURES):
            of_it = {number: float(table[place, column]) for number, table in numbers.items()}
            found |= {f"{number}.{measure}.{name}".lstrip("."): value for number, value in of_it.items()}
    return found


def _resample_means(values: Tensor, part: str) -> Tensor:
    """Means over resampled texts `[resample method measure]` of values `[text method measure]`."""
    if len(values) < MIN_TEXTS:
        return torch.full((1, *values.shape[1:]), math.nan, dtype=torch.float64)
    generator = Generator().manual_seed(derive_seed("plausibility", part, len(values)))
    return bootstrap_means(values.flatten(1), generator=generator).reshape(-1, *values.shape[1:])


def _method_label(rows: pd.DataFrame) -> str:
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
    own = [each for each in _split_by_method(rows) if each["kind"].iloc[0] in ("method", "null")]
    series = tuple(Series(_method_label(each), tuple(each["auc"].dropna().astype(float))) for each in own)
    return Histogram(title, Axis(PLAUSIBILITY_MEASURES["auc"], (0.0, 1.0)), series)


def _part_sentences(summary: Mapping[str, float], part: str) -> str:
    counts = {name: summary[_part_key(name, part)] for name in ("judged", *_EXCLUSION_KEYS.values())}
    within = f" Of the {part}:" if part else ""
    left = f"{counts['no_rationale']:.0f} without marks, {counts['all_rationale']:.0f} all marked"
    left += f", {counts['cut_off']:.0f} with their marks cut off"
    found = f"{within} {counts['judged']:.0f} texts are judged (left out: {left})."
    methods = _methods_in_part(summary, part)
    if not methods:
        return f"{found} So nothing can be said.".strip()
    areas = {name: summary[f"auc.{name}"] for name in methods}
    ranked = sorted(methods, key=lambda name: math.inf if math.isnan(areas[name]) else -areas[name])
    kinds = {flag: [name for name in ranked if summary[f"{flag}.{name}"]] for flag in ("elsewhere", "oracle")}
    own = [name for name in ranked if not any(name in names for names in kinds.values())]
    listed = {kind: _format_areas(summary, names, part) for kind, names in {"own": own, **kinds}.items()}
    found += f" The chance that a marked word {_rank_clause(summary)} (.5 by chance): {listed['own']}."
    found += f" Chosen with the marks of other texts: {listed['elsewhere']}." if kinds["elsewhere"] else ""
    found += f" Chosen with the answer known (oracles): {listed['oracle']}." if kinds["oracle"] else ""
    return f"{found} {_verdict(summary, own, part)}".strip()


def _format_areas(summary: Mapping[str, float], names: Sequence[str], part: str) -> str:
    areas = {_without_part(name, part): summary[f"auc.{name}"] for name in names}
    return ", ".join(f"{name} {'undefined' if math.isnan(area) else f'{area:.2f}'}" for name, area in areas.items())


def _rank_clause(summary: Mapping[str, float]) -> str:
    return next((words for rank, words in _RANK_CLAUSES.items() if f"ranked.{rank}" in summary), _RANK_CLAUSES["score"])


def _without_part(name: str, part: str) -> str:
    """A method's name where the part is spoken of already."""
    return name.removesuffix(f" ({part})")


def _methods_in_part(summary: Mapping[str, float], part: str) -> list[str]:
    names = [name.removeprefix("auc.") for name in summary if name.startswith("auc.")]
    return [name for name in names if name.endswith(f" ({part})")] if part else names


def _verdict(summary: Mapping[str, float], methods: Sequence[str], part: str) -> str:
    """Who is better than random scores beyond doubt."""
    others = {
        _without_part(name, part): (summary[f"excess_low.auc.{name}"], summary[f"excess_high.auc.{name}"])
        for name in methods
        if not summary[f"null.{name}"]
    }
    if summary[_part_key("judged", part)] < MIN_TEXTS:
        return f"With fewer than {MIN_TEXTS} texts there is no interval, so no verdict: judge more texts."
    better = [name for name, (low, _) in others.items() if low > 0]
    worse = [name for name, (_, high) in others.items() if high < 0]
    found = (
        f"More plausible than random scores: {', '.join(better)}." if better else "None is more plausible than random."
    )
    if not worse:
        return found
    return f"{found} Less than random: {', '.join(worse)}{_sign_caveat(summary)}."


def _sign_caveat(summary: Mapping[str, float]) -> str:
    """What is to be borne in mind before a score is called wrong that puts marked words last."""
    if _rank_clause(summary) != _RANK_CLAUSES["score"]:
        return ""
    return " (right of a signed score where people marked what speaks against the answer)"
