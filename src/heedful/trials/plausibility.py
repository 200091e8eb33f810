"""Plausibility: do explanations name the words that people marked as evidence (Fernandes et al. 2022, tables 2 and 6)?

Scores explain the class that the model predicts, and people marked evidence for the true one: the verdict is on the
texts where both are the same, or on all texts if the true class is explained (`target`). Random scores are the control.
For transformers, the best layer and head are shown too: chosen with the marks of the
same texts (an oracle), and chosen on one half of the texts and tested on the other, which shows how much is luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.attributions.controls import Random
from heedful.attributions.head_mix import masked_softmax
from heedful.attributions.method import method_name
from heedful.capabilities import read_heads
from heedful.figures import Axis, Figure, Histogram, Series
from heedful.formatting import two_decimals
from heedful.measures.bootstrap import MIN_EXAMPLES, studentised_bounds
from heedful.measures.rationale_agreement import (
    PLAUSIBILITY_MEASURES,
    PickedWords,
    RankBy,
    has_partial_rationale,
    iou_f1,
    plausibility_metrics,
    ranking_key,
)
from heedful.models.attentive import Attentive
from heedful.option_bounds import check_options
from heedful.results import (
    NO_INTERVAL,
    Finding,
    Statistic,
    Verdict,
    excess_metric,
    find_statistic,
    get_statistic,
    group_by_verdict,
    interval_finding,
    select_statistics,
    value_of,
)
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable, TrueClass, sample_rows
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import device_batches
from heedful.trials.agreement import align_tables, flatten
from heedful.trials.trial import Trial, interval_bars
from heedful.types import Batch, Example, Method, Pooling, Split, UserError, check_methods, pool_by_word

RATIONALE_STATUS = ("judged", "no rationale", "all rationale", "cut off")
"""Whether an example, or one part of it, can be judged: not where no word, or every word, is marked, and not where the
marked words were truncated."""

_SCORES_PER_CHUNK = 2**22
ORACLE, HELD_OUT = "oracle", "chosen on other texts"
_KIND_METRICS = {"control": "control", ORACLE: "oracle", HELD_OUT: "held_out"}
"""Rows of a table that are not candidate methods, and their metrics in summaries."""
RANK_CLAUSES: Mapping[str, str] = {
    "score": "is scored above another",
    "size": "has a larger magnitude than another",
    "against": "counts more against the prediction than another",
}
_FIGURE_MEASURES = {
    "Marked words come first": ("auc",),
    "Marked words among the first": ("average_precision", "auprc", "f1", "token_iou"),
}
_AUC = list(PLAUSIBILITY_MEASURES).index("auc")
ExplainedClass = Literal["predicted", "label"]
"""The class whose scores are compared with the marks: the predicted one or the true one."""
POOLING_LABELS: Mapping[str, str] = {"mean": "mean", "sum": "sum", "max": "maximum"}
RIGHT_AREA, WRONG_AREA = "auc_right", "auc_wrong"
"""The AUC on the texts that are predicted right and on the others."""


@dataclass(frozen=True)
class Plausibility(Trial):
    """How high the scores of each method rank the words that people marked; one row per text, part and method.

    Args:
        subject: a model on a corpus with rationales; see `OnOtherData` for another corpus.
        methods: random scores are always added.
        learned_explainers: named recipes with a table like that of `AttributionTable`.
        parts: names of the parts that are judged separately, for instance ("source", "target"); none judges a text as
            a whole, without the parts in which no word is ever marked.
        pooling: how the score of a word follows from its tokens. The sum, as in the paper, and the maximum favor words
            of many tokens: where people marked such words, even random scores reach an AUC of .6 to .7.
        rank: rank words by score, by magnitude ("size"), or those first that count most "against" the prediction.
            Where people marked errors and the model predicts quality, a correct signed score is negative.
        target: explain the "predicted" class, or the true class ("label"), for which people marked the evidence.
        oracles: whether to search for the best layer and head of a transformer.
    """

    revision: ClassVar[int] = 3
    name: ClassVar[str] = "plausibility"
    paper: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "Does an explanation highlight the words that people would highlight?"
    claim: ClassVar[str] = (
        "If an explanation is plausible, it gives higher scores to the words that people marked as evidence than to "
        "the other words of the text."
    )
    source: ClassVar[str] = "Fernandes et al. 2022, section 4.2 and 4.4, tables 2 and 6; DeYoung et al. 2020 (ERASER)"
    limits: ClassVar[str] = (
        "Plausible is not faithful: people marked what convinces people, and a model may use other words. An "
        "explanation that shows these has a low score here, and one that meets our expectations a high score. "
        "Oracles, if there are any, were chosen with the marks of the same texts, which are not available in "
        "practice."
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    learned_explainers: tuple[tuple[str, Recipe], ...] = ()
    parts: tuple[str, ...] = ()
    pooling: Pooling = "mean"
    rank: RankBy = "score"
    oracles: bool = True
    limit: int | None = None
    split: Split = "test"
    target: ExplainedClass = "predicted"

    def __post_init__(self) -> None:
        check_options(self)
        if self.target == "label" and self.learned_explainers:
            raise UserError("learned explainers explain the predicted class; omit either them or target")
        check_methods(self.methods)
        names = [*(method_name(method) for method in self.methods), *(name for name, _ in self.learned_explainers)]
        if not names:
            raise UserError("plausibility needs at least one method")
        if len(set(names)) < len(names) or len(set(self.parts)) < len(self.parts):
            raise UserError("plausibility got the same method or part twice; give each a different name")
        control = method_name(Random())
        if any(isinstance(method, Random) and method != Random() for method in self.methods):
            raise UserError("random scores are always added; omit Random(...)")
        if control in (name for name, _ in self.learned_explainers):
            raise UserError(f"{control!r} is the name of the random scores, which are always added; choose another")

    @property
    def score_recipes(self) -> dict[str, Recipe]:
        """The recipes of all scores by name, random scores last."""
        named = {method_name(method): method for method in self.methods if not isinstance(method, Random)}
        if self.target == "label":
            named = {name: TrueClass(method) for name, method in named.items()}
        *tables, control = (
            (name, AttributionTable(self.subject, method, self.split, self.limit))
            for name, method in {**named, method_name(Random()): Random()}.items()
        )
        return dict((*tables, *self.learned_explainers, control))

    @property
    def head_scores(self) -> HeadPlausibility | None:
        """The plausibility of every single layer and head; None without oracles or for attentive models."""
        if not self.oracles or isinstance(self.subject.architecture, Attentive):
            return None
        rank: RankBy = "against" if self.rank == "against" else "score"
        return HeadPlausibility(self.subject, self.split, self.limit, self.parts, self.pooling, rank=rank)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return (*self.score_recipes.values(), *(() if self.head_scores is None else (self.head_scores,)))

    def describe(self) -> Mapping[str, Json]:
        """The facts of every trial, and the explanations of the learned explainers by name."""
        learned = {name: table.describe().get("method", name) for name, table in self.learned_explainers}
        return {**super().describe(), "learned_explainers": learned}

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text, part and method with every measure; `status` says why a text is not judged."""
        tables = {name: workspace.get(recipe).table for name, recipe in self.score_recipes.items()}
        trained = self.subject.restore(workspace)
        examples = trained.examples(self.split)
        rationales = Rationales(examples, self.parts, self.subject.corpus.name)
        table = compare_with_rationales(tables, rationales, self.pooling, self.rank)
        control = method_name(Random())
        table["kind"] = table["method"].map(lambda name: "control" if name == control else "method")
        table["which"] = ""
        texts = next(iter(tables.values())).set_index("uid")
        if trained.model.task.num_classes > 1 and bool(texts["label"].notna().all()):
            table["right"] = table["uid"].map(texts["predicted"] == texts["label"])
        if self.head_scores is not None:
            texts = table[table["place"] == 0].drop(columns=[*PLAUSIBILITY_MEASURES, "rationale"])
            best_heads = best_head_rows(workspace.get(self.head_scores), texts)
            added = [rows.assign(place=len(tables) + place) for place, rows in enumerate(best_heads)]
            table = pd.concat([table, *added], ignore_index=True)
        if self.rank != "score":
            table["rank"] = self.rank
        table["pooling"], table["target"] = self.pooling, self.target
        return self.artefact(table, table["uid"].nunique(), len(examples))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Mean of each measure by method and part, and its excess over random scores, with 95 % intervals.

        `judged` texts count; `no_rationale` (no word marked), `all_rationale` (every word marked) and `cut_off` (the
        marks were truncated with the text) do not. People marked evidence for the true class and scores explain the
        predicted one: `auc_right` and `auc_wrong` are over the texts where both are the same and where they are not.
        `iou_f1` is ERASER's: the F1 of the mean `iou_precision` and the mean `iou_recall`, without an interval.
        With `explains_label` scores explain the true class everywhere. Intervals are over resampled texts, the same
        ones for all methods.
        """
        yield Statistic("texts", value=float(table["uid"].nunique()))
        yield Statistic(f"pooled_by_{table['pooling'].iloc[0]}", value=1.0)
        if table["target"].iloc[0] == "label":
            yield Statistic("explains_label", value=1.0)
        if "rank" in table:
            yield Statistic(f"ranked_by_{table['rank'].iloc[0]}", value=1.0)
        ordered = table.sort_values(["place", "uid"])
        for _, first in ordered.drop_duplicates("place").iterrows():
            if first["kind"] in _KIND_METRICS:
                yield Statistic(_KIND_METRICS[first["kind"]], str(first["method"]), value=1.0)
        for name, part_rows in ordered.groupby("part"):
            counts = part_rows.loc[part_rows["place"] == part_rows["place"].min(), "status"].value_counts()
            for status in RATIONALE_STATUS:
                yield Statistic(status.replace(" ", "_"), subset=str(name), value=float(counts.get(status, 0)))
            judged = part_rows[part_rows["status"] == "judged"]
            yield from _part_statistics(judged, str(name), {measure: measure for measure in PLAUSIBILITY_MEASURES})
            for _, rows in judged.groupby("place"):
                spans = iou_f1(float(rows["iou_precision"].mean()), float(rows["iou_recall"].mean()))
                yield Statistic("iou_f1", str(rows["method"].iloc[0]), str(name), spans, n=len(rows))
            for outcome, rows in judged.groupby("right") if "right" in judged else ():
                area = RIGHT_AREA if outcome else WRONG_AREA
                yield from _part_statistics(rows, str(name), {"auc": area})

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Each measure by method with its interval, and the areas of single texts."""
        summary = Plausibility.summary(table)
        pooling = f"{POOLING_LABELS[table['pooling'].iloc[0]]} of a word's tokens"
        figures: list[Figure] = []
        for name, rows in table.sort_values(["place", "uid"]).groupby("part"):
            part = str(name)
            within = f"{f', {part}' if part else ''} ({pooling})"
            labels = {
                str(method_rows["method"].iloc[0]): _method_label(method_rows)
                for _, method_rows in rows.groupby("place")
            }
            for title, measures in _FIGURE_MEASURES.items():
                bars = {
                    measure.replace("_", " "): [get_statistic(summary, measure, method, part) for method in labels]
                    for measure in measures
                }
                axis = Axis("mean over texts, with 95 % interval", (0.0, 1.0))
                figures.append(interval_bars(f"{title}{within}", axis, tuple(labels.values()), bars))
            groups = [
                method_rows
                for _, method_rows in rows.groupby("place")
                if method_rows["kind"].iloc[0] in ("method", "control")
            ]
            series = tuple(
                Series(_method_label(method_rows), tuple(method_rows["auc"].dropna().astype(float)))
                for method_rows in groups
            )
            axis = Axis(PLAUSIBILITY_MEASURES["auc"], (0.0, 1.0))
            figures.append(Histogram(f"The same text by text{within}", axis, series))
        return tuple(figures)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Whether each method is more plausible than random scores, by the area under its ROC curve, in each part.

        It rests on texts where scores and marks are about one class: those that are predicted right, or all if the
        true class is explained or there are no classes.
        """
        others = {row.method for metric in _KIND_METRICS.values() for row in select_statistics(summary, metric)}
        area = excess_metric(_judged_area(summary))
        return tuple(
            interval_finding(get_statistic(summary, area, row.method, row.subset), no_interval=NO_INTERVAL)
            for row in select_statistics(summary, excess_metric("auc"))
            if row.method not in others
        )

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        parts = [row.subset for row in select_statistics(summary, "judged")]
        return " ".join(_part_sentences(summary, part, cls.findings(summary)) for part in parts)


def _judged_area(summary: pd.DataFrame) -> str:
    """The metric of the area on which the verdict rests."""
    is_divided = any(select_statistics(summary, metric) for metric in (RIGHT_AREA, WRONG_AREA))
    return RIGHT_AREA if is_divided and find_statistic(summary, "explains_label") is None else "auc"


def compare_with_rationales(
    tables: Mapping[str, pd.DataFrame], rationales: Rationales, pooling: Pooling, rank: RankBy
) -> pd.DataFrame:
    """A row per text, part and method, in the order of `tables`: numbers of words, status and every measure.

    The rows of the first method have the numbers of the marked words (`rationale`), which the report shows.
    """
    first = next(iter(tables.values()))
    # Special tokens belong to no word.
    kept = flatten(first["scored"]) != 0
    aligned, words = align_tables(tables, kept), flatten(first["words"]).astype(np.int64)[kept]
    method_rows: list[pd.DataFrame] = []
    for rows in aligned.chunks():
        uids, word = [aligned.uids[row] for row in rows], aligned.pad(words, rows, fill=-1)
        marked = rationales.select(uids, word)
        marks = (marked.rationale & marked.mask).flatten(0, 1)
        texts = pd.DataFrame(
            {
                "uid": np.repeat(np.array(uids, dtype=object), len(rationales.parts)),
                "part": np.tile(np.array(rationales.parts, dtype=object), len(uids)),
                "length": marked.mask.sum(-1).flatten().numpy(),
                "marked": marks.sum(-1).numpy(),
                "status": np.array(RATIONALE_STATUS, dtype=object)[marked.status.flatten().numpy()],
            }
        )
        pooled, _ = pool_by_word(aligned.pad(aligned.scores, rows), word, pooling, marked.mask.shape[-1])
        keys = ranking_key(pooled, rank).unsqueeze(1).expand(-1, marked.mask.shape[1], -1, -1)
        metrics = plausibility_metrics(keys, marked.rationale.unsqueeze(2), marked.mask.unsqueeze(2))
        for number, name in enumerate(tables):
            columns = {measure: metrics[measure][:, :, number].flatten().numpy() for measure in PLAUSIBILITY_MEASURES}
            measured = texts.assign(method=name, place=number, **columns)
            method_rows.append(
                measured if number else measured.assign(rationale=[mark.nonzero().flatten().tolist() for mark in marks])
            )
    return pd.concat(method_rows).sort_values("place", kind="stable", ignore_index=True)


def best_head_rows(artefact: Artefact, texts: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of the best layer and head, by oracle and held out: `texts` with method, kind, choice and every measure.

    Args:
        artefact: of `HeadPlausibility`.
        texts: a row per text and part, with `uid` and `part`, all parts of a text in the order of the artefact's.
    """
    layers, heads = (int(str(artefact.notes[name])) for name in ("layers", "heads"))
    if not layers:
        return
    numbers = artefact.tensors["plausibility"].double().numpy()
    order = {str(uid): place for place, uid in enumerate(artefact.table["uid"])}
    parts = {part: place for place, part in enumerate(texts["part"].drop_duplicates())}
    uids = list(order)
    halves = np.array([derive_seed("half", uid) % 2 for uid in uids], dtype=bool)
    at = (texts["uid"].map(order).to_numpy(np.int64), texts["part"].map(parts).to_numpy(np.int64))
    layer_labels = [f"layer {layer}" for layer in range(layers)]
    head_labels = [f"{label}, head {head}" for label in layer_labels for head in range(heads)]
    for name, first, labels in (("best-layer", 0, layer_labels), ("best-head", layers, head_labels)):
        bank = numbers[:, :, first : first + len(labels)]
        for kind, chosen in (
            (ORACLE, _best_map(bank, np.ones_like(halves))),
            (HELD_OUT, np.where(halves[:, None], _best_map(bank, ~halves), _best_map(bank, halves))),
        ):
            picked = np.take_along_axis(bank, np.maximum(chosen, 0)[:, :, None, None], 2)[:, :, 0]
            picked = np.where(chosen[:, :, None] < 0, np.nan, picked)[at]
            which = [labels[place] if place >= 0 else "" for place in chosen[at]]
            columns = {measure: picked[:, column] for column, measure in enumerate(PLAUSIBILITY_MEASURES)}
            yield texts.assign(method=f"{name} ({kind})", kind=kind, which=which, **columns)


def _best_map(numbers: NDArray[np.float64], selection: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The map with the highest mean AUC on the selected texts, in each part `[text part]`; -1 where none is judged."""
    areas = numbers[selection][..., _AUC]
    known = np.isfinite(areas)
    count = known.sum(0)
    means = np.where(known, areas, 0.0).sum(0) / np.maximum(count, 1)
    best = np.where(count.any(-1), means.argmax(-1), -1)
    return np.broadcast_to(best, numbers.shape[:2])


def _part_statistics(rows: pd.DataFrame, part: str, metrics: Mapping[str, str]) -> Iterator[Statistic]:
    """Means and excesses over random scores of every method on these texts: the columns under their metrics."""
    methods = [method_rows for _, method_rows in rows.groupby("place")]
    if not methods:
        return
    values = torch.stack([torch.tensor(method_rows[list(metrics)].to_numpy(float)) for method_rows in methods], 1)
    control = next(
        method_number for method_number, method_rows in enumerate(methods) if method_rows["kind"].iloc[0] == "control"
    )
    means = values.mean(0)
    generator = Generator().manual_seed(derive_seed("plausibility", part, len(values)))
    both = torch.stack((values, values - values[:, control : control + 1]), 1)
    bounds = (
        method_rows.view(both.shape[1:]) for method_rows in studentised_bounds(both.flatten(1), generator=generator)
    )
    intervals = list(zip(*bounds, strict=True))
    for method_number, method_rows in enumerate(methods):
        method = str(method_rows["method"].iloc[0])
        for column, measure in enumerate(metrics.values()):
            numbers = (means, means - means[control])
            for metric, number, interval in zip((measure, excess_metric(measure)), numbers, intervals, strict=True):
                low, high = (float(bound[method_number, column]) for bound in interval)
                yield Statistic(metric, method, part, float(number[method_number, column]), low, high, len(values))


def _method_label(rows: pd.DataFrame) -> str:
    return str(rows["method"].iloc[0]) + (" (control)" if rows["kind"].iloc[0] == "control" else "")


def _part_sentences(summary: pd.DataFrame, part: str, findings: Sequence[Finding]) -> str:
    judged, *left_out = (value_of(summary, status.replace(" ", "_"), subset=part) for status in RATIONALE_STATUS)
    within = f"{part}: " if part else ""
    pooling = next(
        (label for name, label in POOLING_LABELS.items() if find_statistic(summary, f"pooled_by_{name}")), ""
    )
    scored = f" The score of a word is the {pooling} over its tokens." if pooling else ""
    words = [
        f"{within}{judged:.0f} text{' is' if judged == 1 else 's are'} judged, {sum(left_out):.0f} left out.{scored}"
    ]
    areas = [area for area in select_statistics(summary, "auc") if area.subset == part]
    if not areas:
        return f"{words[0]} So there is no result."
    areas.sort(key=lambda row: math.inf if math.isnan(row.value) else -row.value)
    chance = next((row.value for row in areas if row.method == method_name(Random())), math.nan)
    rank = next((rank for rank in RANK_CLAUSES if find_statistic(summary, f"ranked_by_{rank}")), "score")
    labels = {
        "": f"Probability that a marked word {RANK_CLAUSES[rank]} ({two_decimals(chance)} for random scores)",
        "held_out": "Chosen with the marks of other texts",
        "oracle": "Chosen with the marks of the same texts (oracles)",
    }
    chosen = {row.method: metric for metric in labels if metric for row in select_statistics(summary, metric)}
    oracles = {method for method, metric in chosen.items() if metric}
    for metric, label in labels.items():
        listed = [f"{row.method} {two_decimals(row.value)}" for row in areas if chosen.get(row.method, "") == metric]
        words += [f"{label}: {', '.join(listed)}."] if listed else []
    explains_label = find_statistic(summary, "explains_label") is not None
    if explains_label:
        words.append("Scores explain the true class, for which people marked the evidence.")
    for metric, label in {RIGHT_AREA: "right", WRONG_AREA: "wrong"}.items():
        rows = [row for row in select_statistics(summary, metric) if row.subset == part]
        listed = [f"{row.method} {two_decimals(row.value)}" for row in rows if row.method not in oracles]
        other = ", as another class than that of the marks" if label == "wrong" else ""
        count = rows[0].n if rows else 0
        texts = "On the one text that is" if count == 1 else f"On the {count:.0f} texts that are"
        texts = f"{texts} predicted {label}"
        words += [f"{texts}{'' if explains_label else other}: {', '.join(listed)}."] if listed else []
    area = _judged_area(summary)
    compared = next((row.n for row in select_statistics(summary, area) if row.subset == part), 0)
    those = " that are predicted correctly" if area == RIGHT_AREA else ""
    if compared < MIN_EXAMPLES:
        fewer = f"With fewer than {MIN_EXAMPLES} texts{those}, there is no verdict; use more texts."
        return " ".join([*words, fewer])
    caveat = (
        " (correct for signed scores where people marked evidence against the prediction)" if rank == "score" else ""
    )
    groups = group_by_verdict(
        (finding.verdict, finding.method) for finding in findings if finding.evidence[0].subset == part
    )
    better, worse = groups[Verdict.SUPPORTED], groups[Verdict.NOT_SUPPORTED]
    on = f" on the texts{those}" if those else ""
    words.append(f"More plausible than random scores{on}: {', '.join(better) or 'none'}.")
    words += [f"Less plausible than random scores{on}: {', '.join(worse)}{caveat}."] if worse else []
    return " ".join(words)


@dataclass(frozen=True)
class RationaleBatch:
    """Rationales of a batch of examples, by part.

    Args:
        rationale: True on marked words, `[batch part word]`.
        mask: True on the words of the part that the model sees, `[batch part word]`.
        status: indices of `RATIONALE_STATUS`, `[batch part]`.
    """

    rationale: Tensor
    mask: Tensor
    status: Tensor


class Rationales:
    """The rationales of all examples of a split.

    Args:
        parts: names of the parts that are judged separately; none judges an example as a whole, without the parts that
            have no mark in any example (a question is not evidence).
    """

    def __init__(self, examples: Sequence[Example], parts: Sequence[str], corpus: str) -> None:
        counts = [[len(part.split()) if isinstance(part, str) else 0 for part in example.parts] for example in examples]
        most = max(map(len, counts), default=0)
        if parts and len(parts) != most:
            raise UserError(f"{corpus}: examples have {most} parts, but {len(parts)} names are given")
        if not any(any(example.rationale or ()) for example in examples):
            raise UserError(f"{corpus}: no word of these examples is marked; choose a corpus with rationales")
        self.parts = tuple(parts) or ("",)
        part_of = [torch.arange(len(count)).repeat_interleave(torch.tensor(count)) for count in counts]
        self._marks = {
            example.uid: torch.tensor(example.rationale or [False] * len(part), dtype=torch.bool)
            for example, part in zip(examples, part_of, strict=True)
        }
        if not parts:
            marked = torch.cat([part[mark] for part, mark in zip(part_of, self._marks.values(), strict=True)])
            has_marks = marked.bincount(minlength=most) > 0
            part_of = [torch.where(has_marks[part], 0, -1) for part in part_of]
        self._part_of = dict(zip(self._marks, part_of, strict=True))

    def select(self, uids: Sequence[str], words: Tensor) -> RationaleBatch:
        """The rationales of these examples, whose units belong to `words` `[batch unit]`."""
        part = pad_sequence([self._part_of[uid] for uid in uids], batch_first=True, padding_value=-1)
        marks = pad_sequence([self._marks[uid] for uid in uids], batch_first=True)
        in_part = part.unsqueeze(1) == torch.arange(len(self.parts)).unsqueeze(1)
        seen = torch.zeros(len(part), part.shape[1] + 1, dtype=torch.bool)
        seen.scatter_(1, torch.where(words >= 0, words, part.shape[1]).cpu(), True)
        rationale = in_part & marks.unsqueeze(1)
        mask = in_part & seen[:, :-1].unsqueeze(1)
        status = torch.full(mask.shape[:2], RATIONALE_STATUS.index("all rationale"), dtype=torch.int64)
        status[has_partial_rationale(rationale, mask)] = RATIONALE_STATUS.index("judged")
        status[~(rationale & mask).any(-1)] = RATIONALE_STATUS.index("cut off")
        status[~rationale.any(-1)] = RATIONALE_STATUS.index("no rationale")
        return RationaleBatch(rationale, mask, status)


@dataclass(frozen=True)
class HeadPlausibility(Recipe):
    """Every measure of plausibility for every layer and head, one row per example.

    A map is the softmax over words of a head's mean score (of the mean of a layer's heads): the explanation of
    Fernandes et al. with all weight on one head or one layer. The maps themselves are not stored.

    Args:
        parts: names of the parts that are judged separately; none judges an example as a whole.
        pooling: how a word's score comes from its units.
        top: words that are picked for F1 and IOU.
        rank: what words are ranked by; maps are never negative, so that size and score are the same.
    """

    revision: ClassVar[int] = 2
    kind: ClassVar[str] = "head plausibility"

    subject: ModelRecipe
    split: Split = "test"
    limit: int | None = None
    parts: tuple[str, ...] = ()
    pooling: Pooling = "mean"
    top: PickedWords = "rationale"
    rank: RankBy = "score"

    def make(self, workspace: Workspace) -> Artefact:
        """The tensor `plausibility` `[example part map measure]`, all layers before all heads, and the uids.

        A model that does not show its attention has no layers.
        """
        loaded = self.subject.restore(workspace)
        if loaded.model.attention_refusal is not None:
            return Artefact(notes={"about": dict(self.subject.about), "layers": 0, "heads": 0})
        rationales = Rationales(loaded.examples(self.split), self.parts, self.subject.corpus.name)
        batch = sample_rows(loaded.batch(self.split), self.limit)
        measures: list[Tensor] = []
        uids: list[str] = []
        shape = (0, 0)
        for _, texts in device_batches(batch, workspace, f"heads {self.subject.corpus.name}"):
            with torch.no_grad():
                scores = read_heads(loaded.model, texts).scores.double()
            shape = scores.shape[1], scores.shape[2]
            mixes = torch.cat((scores.mean(2), scores.flatten(1, 2)), 1)
            maps = masked_softmax(mixes, texts.content_mask.unsqueeze(1)).cpu()
            measures.append(self._measure_maps(maps, texts.to("cpu"), rationales))
            uids += texts.uids
        notes: dict[str, Json] = {"about": dict(self.subject.about), "layers": shape[0], "heads": shape[1]}
        return Artefact({"plausibility": torch.cat(measures)}, pd.DataFrame({"uid": uids}), notes)

    def _measure_maps(self, maps: Tensor, batch: Batch, rationales: Rationales) -> Tensor:
        """`[batch part map measure]` of maps `[batch map unit]`, some rows at a time where there are many heads."""
        selected = rationales.select(batch.uids, batch.words)
        scores, _ = pool_by_word(maps, batch.words, self.pooling, selected.mask.shape[-1])
        size = max(1, _SCORES_PER_CHUNK // max(1, scores[0].numel() * len(rationales.parts)))
        measures = []
        for start in range(0, len(batch), size):
            rows = slice(start, start + size)
            rationale, mask = selected.rationale[rows].unsqueeze(2), selected.mask[rows].unsqueeze(2)
            expanded = scores[rows].unsqueeze(1).expand(-1, len(rationales.parts), -1, -1)
            values = plausibility_metrics(ranking_key(expanded, self.rank), rationale, mask, self.top)
            measures.append(torch.stack([values[name] for name in PLAUSIBILITY_MEASURES], -1).float())
        return torch.cat(measures)
