"""Evaluation on data with known ground truth: do methods find the words that decide, and do measures know it?

The corpus says what each word contributes. Only texts count whose relevant words the model uses: without them it must
predict something else. A method is right as far as its scores rank these words first. A measure of explanations is
right as far as it rates the ground truth above random scores and adversarial attention (proposed as future work by
Neely et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator
from torch.nn.utils.rnn import pad_sequence

from heedful.attributions.controls import Random
from heedful.attributions.method import method_name
from heedful.figures import Axis, Bars, Figure, Series
from heedful.measures.bootstrap import bootstrap_interval
from heedful.measures.classification import roc_auc
from heedful.measures.erasure import FAITHFULNESS_MEASURES
from heedful.measures.intervals import paired_excess
from heedful.measures.rank_correlation import kendall_matrix
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
    interval_verdict,
    select_statistics,
    value_of,
)
from heedful.store.recipe import Artefact, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable, sample_rows
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.trials.adversarial_attention import adversarial_methods
from heedful.trials.agreement import correlate_attributions
from heedful.trials.faithfulness import ErasureEvaluator
from heedful.trials.trial import Trial, check_distinct_methods, rows_by_batch
from heedful.types import Example, Method, UserError

TRUTH, CHANCE = "truth", "random"
CONTROL_LABELS = {CHANCE: "random", "adversarial-attention": "adversarial"}
"""Attributions that are wrong on purpose, and their labels in metrics."""
ALL_MEASURES = (*FAITHFULNESS_MEASURES, "agreement", "agreement_with_attention")
"""The measures that are evaluated."""
RECOVERY_MEASURES = {
    "precision": "share of the relevant words among the first",
    "auc": "probability that a relevant word is scored above another",
    "tau": "agreement of magnitudes with the true order (Kendall)",
    "signed_tau": "agreement of signed scores with the true order (Kendall)",
}
USED_THRESHOLD = 0.2
"""A text counts if the prediction changes by this much when the relevant words are removed."""
TOP_K = 3
"""Number of relevant words where every word contributes."""
_MAX_BATCH_SIZE = 64


@dataclass(frozen=True)
class GroundTruth(Trial):
    """How well each method finds the words that are known to decide; one row per text and method.

    The ground truth has rows too; its rows and those of the controls hold every measure.

    Args:
        subject: a model on a corpus whose examples have a `ground_truth`.
        methods: random scores, and adversarial attention where the model has it, are always added.
    """

    revision: ClassVar[int] = 3

    name: ClassVar[str] = "ground-truth"
    paper: ClassVar[str] = "disagreement"
    title: ClassVar[str] = "Which methods find the words that are known to decide the label?"
    claim: ClassVar[str] = (
        "If a method shows which words a model uses, it should find them where they are known by construction and the "
        "model was verified to use them."
    )
    source: ClassVar[str] = "Neely et al. 2022, section 6 (future work: data with a known ranking)"
    limits: ClassVar[str] = (
        "A method that finds planted words may still fail on real texts, where many words act together. A method "
        "that fails here, where the answer is known, should not be trusted there."
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        check_distinct_methods(self.methods)

    @property
    def attribution_tables(self) -> dict[str, AttributionTable]:
        """The attributions by the method's name, adversarial attention and random scores last."""
        controls = (*adversarial_methods(self.subject.architecture), Random())
        methods = [method for method in self.methods if method not in controls]
        return {
            method_name(method): AttributionTable(self.subject, method, limit=self.limit)
            for method in (*methods, *controls)
        }

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return tuple(self.attribution_tables.values())

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and method with its recovery scores; of ground truth and controls also every measure."""
        trained = self.subject.restore(workspace)
        known = {example.uid: example for example in trained.examples("test")}
        if any(example.ground_truth is None for example in known.values()):
            raise UserError(f"{self.subject.corpus.name} has no ground truth; use a corpus from data.synthetic")
        used = _uses_relevant_words(trained, known, self.limit, workspace)
        tables = {name: workspace.get(recipe).table for name, recipe in self.attribution_tables.items()}
        explanations = {TRUTH: ground_truth_table(tables[CHANCE], known)}
        explanations |= {name: tables[name] for name in reversed(CONTROL_LABELS) if name in tables}
        rows = [
            {"method": name, "used": used[uid], **row}
            for name, table in {**tables, TRUTH: explanations[TRUTH]}.items()
            for uid, row in _recovery_rows(table, known)
        ]
        methods = {name: table for name, table in tables.items() if name not in CONTROL_LABELS}
        indexed = {name: table.set_index("uid") for name, table in explanations.items()}
        batch, size = (
            sample_rows(trained.batch("test"), len(indexed[TRUTH])),
            min(_MAX_BATCH_SIZE, workspace.batch_size),
        )
        evaluate = partial(ErasureEvaluator().rows, indexed, trained.model)
        erased = rows_by_batch(batch, size, workspace, "ground truth", evaluate)
        measured = erased[["uid", "method", *FAITHFULNESS_MEASURES]].merge(
            _agreement_rows(explanations, methods), on=["uid", "method"], how="left"
        )
        table = pd.DataFrame(rows).merge(measured, on=["uid", "method"], how="left")
        return self.artefact(table, table["uid"].nunique(), len(known))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Recovery of each method over the texts whose relevant words are used, and each measure's rating of the truth.

        `above_random` and `above_adversarial` say how much better a measure rates the ground truth than these controls
        on the texts where they are wrong, and the metrics with `_share` on which share of these texts it does.
        """
        judged = table[table["used"]]
        texts = table["uid"].nunique()
        yield Statistic("texts", value=float(texts))
        yield Statistic("used", value=float(judged["uid"].nunique()), n=texts)
        by_chance = judged[judged["method"] == CHANCE].set_index("uid")["precision"]
        for method, rows in judged[judged["method"] != TRUTH].groupby("method", sort=False):
            for measure in RECOVERY_MEASURES:
                values = torch.tensor(rows[measure].dropna().to_numpy(np.float64))
                low, high = math.nan, math.nan
                if measure == "precision" and len(values) > 1:
                    interval = bootstrap_interval(values, generator=Generator().manual_seed(0))
                    low, high = interval.low, interval.high
                yield Statistic(measure, str(method), "", float(values.mean()), low, high, len(values))
            if method in CONTROL_LABELS:
                yield Statistic("control", str(method), value=1.0)
            elif len(by_chance):
                precision, chance = rows["precision"], by_chance.reindex(rows["uid"])
                excess = paired_excess(precision.to_numpy(np.float64), chance.to_numpy(np.float64), 0)
                yield Statistic(excess_metric("precision"), str(method), "", *excess)
        yield from compare_with_controls(judged)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Each recovery score by method; for each measure how often it rates the ground truth above the controls."""
        summary = GroundTruth.summary(table)
        figures: list[Figure] = []
        for measure, meaning in RECOVERY_MEASURES.items():
            rows = select_statistics(summary, measure)
            if any(math.isfinite(row.value) for row in rows):
                series = Series(measure, tuple(row.value for row in rows))
                figures.append(Bars(meaning.capitalize(), Axis(measure), tuple(row.method for row in rows), (series,)))
        measures = list(measure_verdicts(summary))
        shares = {
            label: tuple(value_of(summary, f"above_{label}_share", measure) for measure in measures)
            for label in CONTROL_LABELS.values()
        }
        bars = tuple(
            Series(f"above {label}", values) for label, values in shares.items() if any(map(math.isfinite, values))
        )
        if bars:
            title = "How often each measure rates the ground truth above a control"
            labels = tuple(measure.replace("_", " ") for measure in measures)
            figures.append(Bars(title, Axis("share of texts", (0.0, 1.0)), labels, bars))
        return tuple(figures)

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """First the methods, by their precision against random scores; then the measures, in `method`."""
        chance = find_statistic(summary, "precision", CHANCE)
        if chance is None:
            return ()
        methods = [
            precision for precision in select_statistics(summary, "precision") if precision.method not in CONTROL_LABELS
        ]
        findings = []
        for precision in sorted(methods, key=lambda row: -row.value):
            excess = get_statistic(summary, excess_metric("precision"), precision.method)
            finding = interval_finding(excess, no_interval=NO_INTERVAL)
            findings.append(replace(finding, evidence=(precision, chance, excess)))
        for measure, verdicts in measure_verdicts(summary).items():
            rows = (find_statistic(summary, f"above_{label}", measure) for label in verdicts)
            order = (Verdict.NOT_SUPPORTED, Verdict.UNDECIDED, Verdict.SUPPORTED)
            worst = min(verdicts.values(), key=order.index)
            findings.append(Finding(worst, measure, tuple(row for row in rows if row is not None)))
        return tuple(findings)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        used, texts = value_of(summary, "used"), value_of(summary, "texts")
        if not used:
            return "The model does not use the relevant words in any text, so there is no result for any method."
        words = [
            f"On {used:.0f} of {texts:.0f} texts, the model uses the words that are known to decide the label. "
            f"Random scores find {value_of(summary, 'precision', CHANCE):.2f} of them."
        ]
        rows = [(finding.verdict, finding.evidence[0]) for finding in cls.findings(summary)]
        of_method = [(verdict, row) for verdict, row in rows if row.metric == "precision"]
        methods = group_by_verdict((verdict, f"{row.method} ({row.value:.2f})") for verdict, row in of_method)
        measures = group_by_verdict(
            (verdict, row.method.replace("_", " ")) for verdict, row in rows if row.metric != "precision"
        )
        labels = {
            Verdict.SUPPORTED: ("Better than chance", "Measures that rate the ground truth above all controls"),
            Verdict.UNDECIDED: ("Not clearly different from chance", "Measures without enough texts"),
            Verdict.NOT_SUPPORTED: ("Worse than chance", "Measures that do not rate it above all controls"),
        }
        for column, groups in enumerate((methods, measures)):
            words += [f"{labels[verdict][column]}: {', '.join(names)}." for verdict, names in groups.items() if names]
        return " ".join(words)


def measure_verdicts(summary: pd.DataFrame) -> dict[str, dict[str, Verdict]]:
    """For each measure and control: supported if the ground truth is rated above it, undecided without an interval."""
    verdicts: dict[str, dict[str, Verdict]] = {}
    for measure in ALL_MEASURES:
        for label in CONTROL_LABELS.values():
            row = find_statistic(summary, f"above_{label}", measure)
            if row is not None:
                verdicts.setdefault(measure, {})[label] = interval_verdict(row.low, row.high, margin=math.inf)
    return verdicts


def compare_with_controls(table: pd.DataFrame) -> Iterable[Statistic]:
    """Each measure's rating of the ground truth against each control, on the texts where the control is wrong."""
    by_method = {str(name): rows.set_index("uid") for name, rows in table.groupby("method")}
    for control in (name for name in CONTROL_LABELS if name in by_method and TRUTH in by_method):
        wrong = by_method[control][by_method[control]["precision"] < 1]
        right = by_method[TRUTH].loc[wrong.index]
        for measure in (name for name in ALL_MEASURES if name in table.columns):
            truth, other = (rows[measure].to_numpy(np.float64) for rows in (right, wrong))
            yield from compare_with_control(measure, truth, other, CONTROL_LABELS[control])


def compare_with_control(
    measure: str, truth: NDArray[np.float64], control: NDArray[np.float64], label: str
) -> tuple[Statistic, Statistic]:
    """How much better a measure rates the ground truth, and on which share of the texts (ties count half)."""
    sign = FAITHFULNESS_MEASURES[measure].sign if measure in FAITHFULNESS_MEASURES else 1
    excess = paired_excess(sign * truth, sign * control, derive_seed("measuring", measure))
    gap = sign * (truth - control)
    gap = gap[np.isfinite(gap)]
    share = float(((gap > 0) + 0.5 * (gap == 0)).mean()) if len(gap) else math.nan
    return (
        Statistic(f"above_{label}", measure, "", *excess),
        Statistic(f"above_{label}_share", measure, value=share, n=len(gap)),
    )


def ground_truth_table(table: pd.DataFrame, examples: Mapping[str, Example]) -> pd.DataFrame:
    """The ground truth as an attribution table for the same texts.

    It is for the predicted class; the contribution of a word is divided evenly among its units. Where the corpus has
    no negative contributions, it knows magnitudes only.
    """
    signed = any(value < 0 for example in examples.values() for value in example.ground_truth or ())
    columns = (table[name].tolist() for name in ("uid", "words", "scored", "predicted"))
    scores = []
    for uid, words, scored, predicted in zip(*columns, strict=True):
        truth = np.asarray(examples[uid].ground_truth, dtype=np.float64)
        truth = (truth if predicted == 1 else -truth) if signed else np.abs(truth)
        kept = np.asarray(scored, dtype=bool)
        word = np.where(kept, words, 0)
        units = np.bincount(word[kept], minlength=len(truth))
        scores.append(np.where(kept, truth[word] / np.maximum(units[word], 1), 0.0).tolist())
    return table.assign(scores=scores)


def _agreement_rows(explanations: Mapping[str, pd.DataFrame], methods: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean Kendall's tau of magnitudes between each explanation and the methods, and that with attention."""
    tables = {f"explanation {name}": table for name, table in explanations.items()}
    table = correlate_attributions({**tables, **methods}, kendall_matrix, absolute=True)
    across = table[table["first"].isin(list(tables)) & table["second"].isin(list(methods)) & table["defined"]]
    across = across.assign(method=across["first"].str.removeprefix("explanation "))
    attention = across[across["second"] == "attention"]
    every, alone = (rows.groupby(["uid", "method"])["value"].mean() for rows in (across, attention))
    return pd.DataFrame({"agreement": every, "agreement_with_attention": alone}).reset_index()


def _recovery_rows(table: pd.DataFrame, examples: Mapping[str, Example]) -> Iterable[tuple[str, dict[str, object]]]:
    """The recovery scores of each text: scores by word, for class 1, against the ground truth."""
    columns = ("uid", "scores", "words", "scored", "predicted")
    for uid, scores, words, scored, predicted in zip(*(table[name].tolist() for name in columns), strict=True):
        truth, kept = np.asarray(examples[uid].ground_truth, dtype=np.float64), np.asarray(scored, dtype=bool)
        weights = np.asarray(scores, dtype=np.float64)[kept] * (1 if predicted == 1 else -1)
        by_word = np.bincount(np.asarray(words)[kept], weights, len(truth)).astype(np.float64)
        yield uid, {"uid": uid, "length": len(truth), "predicted": predicted, **recovery_scores(by_word, truth)}


def recovery_scores(scores: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    """Precision at the number of relevant words, ROC-AUC and Kendall's tau of one text; NaN where undefined.

    Signs count for `signed_tau` alone. Words tied at the cut-off count with their share of the places.
    """
    sizes, relevant = np.abs(scores), np.abs(truth) > 0
    everything = bool(relevant.all())
    if everything:
        relevant = np.zeros(len(truth), dtype=bool)
        relevant[np.argsort(-np.abs(truth), kind="stable")[:TOP_K]] = True
    count = int(relevant.sum())
    edge = np.sort(sizes)[-count]
    above, tied = sizes > edge, sizes == edge
    share = (count - above.sum()) / tied.sum()
    # Where every word contributes, the whole order is known; else only which words are relevant.
    return {
        "precision": float((relevant[above].sum() + share * relevant[tied].sum()) / count),
        "auc": roc_auc(torch.from_numpy(sizes), torch.from_numpy(relevant.astype(np.int64))),
        "tau": _tau(sizes, np.abs(truth)) if everything else math.nan,
        "signed_tau": _tau(scores, truth) if everything else math.nan,
    }


def _tau(scores: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    from scipy.stats import kendalltau  # its import costs 50 MB, and reports do without it

    return float(kendalltau(scores, truth).statistic) if len(scores) > 1 and np.ptp(scores) > 0 else math.nan


@torch.no_grad()
def _uses_relevant_words(
    loaded: LoadedModel, examples: Mapping[str, Example], limit: int | None, workspace: Workspace
) -> dict[str, bool]:
    """Whether the prediction changes when the relevant words are removed; always true where all are relevant."""
    used: dict[str, bool] = {}
    for _, cpu_batch in inference_batches(sample_rows(loaded.batch("test"), limit), workspace.batch_size):
        batch = cpu_batch.to(workspace.device)
        values = [torch.tensor(examples[uid].ground_truth or (0.0,)) for uid in batch.uids]
        truth = pad_sequence(values, batch_first=True).to(batch.mask.device)
        relevant = (truth.gather(1, batch.words.clamp(min=0)) != 0) & batch.content_mask
        all_relevant = (relevant == batch.content_mask).all(1)
        left = batch.keep_units(batch.mask & ~(relevant & ~all_relevant.unsqueeze(1)))
        before, after = (loaded.model.task.probabilities(loaded.model.read_logits(texts)) for texts in (batch, left))
        moved = 0.5 * (before - after).abs().sum(1) >= USED_THRESHOLD
        used |= dict(zip(batch.uids, (moved | all_relevant).tolist(), strict=True))
    return used
