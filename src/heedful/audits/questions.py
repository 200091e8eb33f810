"""The questions of an audit, one class each: its texts, the work it needs, how that is read, and its rule.

To add a question, write its class and add an instance to `QUESTIONS`. Planning, running, the verdict matrix, its page,
the downloads and `--require` follow from the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
import torch

from heedful.attributions.method import with_other_seed
from heedful.audits.evidence import (
    BlockAttention,
    BlockAttributions,
    BlockErasure,
    BlockNull,
    BlockSearch,
    block_range,
    plain_word_scores,
    rank_correlations,
)
from heedful.audits.evidence_charts import attention_chart, measure_charts, pair_matrix, share_chart, verdict_chart
from heedful.audits.map_questions import ClassSensitive, Polarity
from heedful.audits.removal import HoldsUnderInfill
from heedful.audits.topics import SIDE_TEXTS, MeanQuestion, Question, Role, Topic
from heedful.audits.verdict_rules import FAITHFUL, THRESHOLDS, MeanScale, Rules, Thresholds, defined
from heedful.figures import Chart
from heedful.formatting import format_share, format_small_share
from heedful.measures.bounded_mean import mean_interval
from heedful.measures.rationale_agreement import plausibility_metrics
from heedful.results import Finding, Statistic, Verdict
from heedful.store.recipe import Recipe
from heedful.training.attribution_tables import gap_shares
from heedful.trials.simulability import Simulability
from heedful.types import Method, NotApplicable

if TYPE_CHECKING:  # both import this module
    from heedful.audits.audit_result import Audit
    from heedful.audits.work_list import AuditPlan, FinishedWork

MODEL_DEPENDENT = "model-dependent"
"""The question that randomized weights answer."""
STABLE = "stable"
"""The question that other seeds and tiny edits answer."""
CHANCE_AUC = 0.5
MOST = 0.5
NO_MARKS = "no words are marked; add a column of rationales (--rationale-column)"


class Faithful(Question):
    """Scores, erasures in the order of these scores, and a search for the best order."""

    name = FAITHFUL
    label = "faithful"
    title = "Does the prediction depend on the words that the explanation names?"
    measured = (
        "The words that the explanation ranks highest are deleted, or all others are; the number is how much the "
        "prediction changes. Each value is placed between random scores (0 %) and the best explanation that a search "
        "found for the same text and measure (100 %). The search is exact for texts of up to eight words; in longer "
        "ones it may miss a better explanation, so that 100 % is a lower bound of what is achievable: on generated "
        "texts of ten words it reached 84 to 100 % of the exact optimum, on sentences of film reviews 95 to 100 %."
    )
    null = (
        "Random scores on the same texts, text by text; and the best of the orders that ignore the model: by word "
        "length, rarity and position (from the start or from the end)."
    )
    rule = (
        "Supported if the method is better than random scores on every measure that counts, under every way of "
        "deletion, clearly above 10 % of the achievable, and clearly better than the best order that ignores the "
        "model: paired tests, adjusted over methods (Holm). Not supported "
        "if it is clearly worse than random scores on one of them, or clearly below 10 % of the achievable. "
        "Tier 1 holds the best method and all that paired tests (Holm) do not place 5 % "
        "of the achievable or more below it; tier 2 the same of the rest."
    )
    limits = (
        "A text without some of its words is unlike the texts that the model was trained on, so part of a change may "
        "come from the deletion itself: that is why two ways of deletion must agree. A faithful explanation of a wrong "
        "prediction names the words that misled the model."
    )
    references = ("deyoung-2020", "jacovi-2020", "zhou-2023", "edin-2025", "hase-2021", "hsia-2024", "basu-2026")
    axis = "% of the achievable"
    role = Role.REQUIRED
    is_share = True
    meaning = "share of the achievable (0 %: random scores, 100 %: the best explanation found)"

    def threshold(self, thresholds: Thresholds) -> float:
        return thresholds.least_share

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        yield "", BlockSearch(plan.sample, block, plan.ways)
        yield "", BlockNull(plan.sample, block, plan.ways)
        for name, method in plan.scored.items():
            scores = BlockAttributions(plan.sample, method, block)
            yield name, scores
            yield name, BlockErasure(scores, plan.ways)

    def answers(self, rules: Rules) -> dict[str, Finding]:
        return rules.faithful()

    def statistics(self, audit: Audit) -> tuple[Statistic, ...]:
        by_class = (row for method in audit.methods for answer in method.by_class.values() for row in answer.evidence)
        return (*super().statistics(audit), *audit.distances, *by_class)

    def charts(self, audit: Audit) -> list[Chart]:
        is_measured = any(math.isfinite(method.achievable) for method in audit.methods)
        return [*([share_chart(audit)] if is_measured else []), *measure_charts(audit, self)]


class ModelDependent(MeanQuestion):
    """Scores on copies of the model with random weights: 1 - their rank correlation with the scores."""

    name = MODEL_DEPENDENT
    label = "depends on the model"
    title = "Does the explanation change when the model changes?"
    measured = (
        "The weights of the model are replaced by random ones, and the same texts are explained again. The number is 1 "
        "minus the rank correlation of the two explanations: 0 if nothing changed, 1 if they are unrelated or opposed. "
        "Every text has a random copy of its own, so that the interval covers texts and copies; the first texts and a "
        "third of the later ones are used. The second number is how much more this is, text by text, than the change "
        "under another seed and a tiny edit, which should change nothing."
    )
    null = "The change of the same explanation under another seed and a tiny edit of the text."
    rule = (
        "Supported if the mean change is clearly above 0.5, and clearly more than 0.1 above the change under another "
        "seed and a tiny edit; not supported if it clearly misses one of them (Holm over methods)."
    )
    limits = "An explanation that changes with the model may still be wrong; one that does not change must be."
    references = ("adebayo-2018", "hedstrom-2024")
    axis = "change under the randomized model"
    role = Role.REQUIRED
    recomputes = True
    optional = (BlockAttributions,)
    texts = SIDE_TEXTS
    limit = THRESHOLDS.model_change
    metric = "1 - rank correlation"
    reason = "changes by {value:.2f} when the weights are randomized (0: not at all, 1: unrelated)"
    column = "change under randomized model"
    meaning = "change of the scores when the weights are randomized (0: none, 1: unrelated)"

    def threshold(self, thresholds: Thresholds) -> float:
        return thresholds.model_change

    def thresholds_used(self, thresholds: Thresholds) -> tuple[float, ...]:
        return thresholds.model_change, thresholds.model_excess

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        # The methods follow one another: a copy is made once for all of them. Other texts count for their class only.
        for place in filter(plan.represents, block_range(block)) if plan.has_weights else ():
            for name, method in plan.recomputable.items():
                yield name, BlockAttributions(plan.sample, method, block, randomized=place)

    def read(self, work: FinishedWork) -> pd.DataFrame:
        # Opposed scores are no more than unrelated ones.
        return pd.DataFrame({name: (1 - column).clip(upper=1.0) for name, column in _correlations(self, work).items()})

    def answers(self, rules: Rules) -> dict[str, Finding]:
        changes, stable = rules.table(self.name), rules.table(STABLE)
        excess = {}
        for name in rules.evidence.methods:
            if name in changes and name in stable:
                excess[name] = changes[name] - (1 - stable[name])
            elif name in changes and rules.evidence.unasked.get((STABLE, name)):
                excess[name] = changes[name]  # nothing could change its scores of the same image
        fixed = MeanScale(self.metric, self.lowest, self.highest, self.threshold(rules.thresholds), self.chance)
        own = MeanScale("change beyond its own", -1.0, 1.0, rules.thresholds.model_excess, 0.0)
        # Each of the two may refute a method, so each has half of the error.
        answers = rules.judge_means(self.name, changes, fixed, self.reason, refutations=2)
        others = rules.judge_means(self.name, pd.DataFrame(excess), own, OWN_REASON, refutations=2)
        return self.in_all_texts({name: _both(answer, others[name]) for name, answer in answers.items()}, rules)

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        return super().unasked(plan, method) or ("" if plan.has_weights else "the model has no weights to randomize")

    def untested(self, work: FinishedWork) -> dict[str, str]:
        failed = {name: pieces for (topic, name), pieces in work.plan.failed.items() if topic == self.name}
        return {
            f"{self.label}: {name}": f"{len(pieces)} random copies gave no scores: {work.plan.failure(self.name, name)}"
            for name, pieces in failed.items()
        }


class Stable(MeanQuestion):
    """Scores that should be the same: of slightly edited texts, and with another seed if the method draws."""

    name = STABLE
    label = "stable"
    title = "Is the explanation the same when nothing that matters has changed?"
    measured = (
        "Rank correlation of the explanations of a text before and after a tiny change that keeps the prediction (a "
        "full stop, two letters swapped), unrelated and opposed ones counted as 0; where the method draws random "
        "numbers, with another seed as well. Images "
        "are not changed, so only methods that draw random numbers are tested on them."
    )
    null = "Two unrelated orders have correlation 0."
    rule = "Supported if the mean is clearly above 0.7, not supported if it is clearly below (Holm over methods)."
    limits = "A constant explanation is perfectly stable. Stability counts only together with faithfulness."
    references = ("alvarez-melis-2018",)
    axis = "rank correlation"
    role = Role.DESIRED
    recomputes = True
    texts = SIDE_TEXTS
    limit = THRESHOLDS.stable_correlation
    metric = "rank correlation"
    reason = "rank correlation {value:.2f} with scores that should be the same"
    column = "stability"
    meaning = "rank correlation under tiny changes of the text (1: the same order)"

    def threshold(self, thresholds: Thresholds) -> float:
        return thresholds.stable_correlation

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        for name, method in plan.recomputable.items():
            reseeded = with_other_seed(method)
            if not plan.reads_images:
                yield name, BlockAttributions(plan.sample, reseeded, block, "edited")
            elif reseeded != method:
                yield name, BlockAttributions(plan.sample, reseeded, block)

    def read(self, work: FinishedWork) -> pd.DataFrame:
        return pd.DataFrame({name: column.clip(lower=0.0) for name, column in _correlations(self, work).items()})

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        no_edits = "images have no tiny edits, and the method draws no random numbers" if plan.reads_images else ""
        return super().unasked(plan, method) or no_edits


class Complete(Question):
    """How often the sum of the scores misses more of the mean difference from the baseline than the limit."""

    name = "complete"
    label = "complete"
    title = "Do the scores add up to what they claim to explain?"
    measured = (
        "Some methods promise that the scores of a text sum to the difference between the output and that of a "
        "baseline, the text with nothing but padding. The number is the share of texts in which they miss more than "
        "5 % of the mean difference."
    )
    null = "Half of the texts: the method keeps its promise in most of them, or breaks it in most."
    rule = (
        "Supported if the scores miss more than 5 % in clearly fewer than half of the texts, not supported if in "
        "clearly more (Holm over methods). Methods without such a promise are not asked. The reason says how much is "
        "missed on average: a few texts may miss much although most do not."
    )
    limits = "Scores can add up and still be given to the wrong words."
    references = ("sundararajan-2017",)
    axis = "share of texts whose scores miss more than 5 %"
    role = Role.DESIRED
    recomputes = True
    limit = MOST
    column = "completeness"
    meaning = "share of texts whose scores miss more than 5 % of the output (0: they add up in all)"

    def threshold(self, thresholds: Thresholds) -> float:
        return thresholds.complete_error

    def read(self, work: FinishedWork) -> pd.DataFrame:
        tables = {name: table for name, table in work.scores.items() if "gap" in table}
        return pd.DataFrame({name: pd.Series(gap_shares(table), table.index) for name, table in tables.items()})

    def answers(self, rules: Rules) -> dict[str, Finding]:
        table, limit = rules.table(self.name), self.threshold(rules.thresholds)
        # The largest possible error is not known, but whether an error is within the limit is a number of 0 or 1.
        within = (table <= limit).astype(float).where(table.notna())
        answers = rules.judge_means(self.name, within, MeanScale("share of texts", 0.0, 1.0, MOST, MOST), "")
        for name, answer in answers.items():
            if name not in table:
                answers[name] = rules.not_asked(self.name, name, "it does not claim that its scores add up")
            elif answer.evidence:
                gaps = defined(table[name])
                value, low, high = mean_interval(gaps, 0.0, float(gaps.max()), rules.alpha)
                share = answer.statistic
                average, most = format_small_share(value), format_small_share(float(gaps.max()))
                reason = f"the sum of the scores misses the output by {average} on average, at most {most}"
                reason += f", and by more than {format_share(limit)} in {format_share(1 - share.value)} of the texts"
                missed = replace(
                    share,
                    metric="share of texts beyond the limit",
                    value=1 - share.value,
                    low=1 - share.high,
                    high=1 - share.low,
                    null=1 - MOST,
                )
                error = Statistic("error", name, "", value, low, high, len(gaps), limit)
                answers[name] = replace(answer, evidence=(missed, error), reason=reason)
        return answers


class Agrees(MeanQuestion):
    """Rank correlation of each two methods; a column per pair, in alphabetical order."""

    name = "agrees"
    label = "agrees"
    title = "Does it rank the words as the other methods do?"
    measured = "Mean rank correlation with the other methods on the same texts, controls left out."
    null = "Random scores have correlation 0 with everything."
    rule = "Supported if the mean is clearly above 0 (Holm over methods). No decision rests on this question."
    limits = "Methods may agree because they are built alike, and all be wrong. Agreement alone decides nothing."
    references = ("neely-2022", "jain-2019")
    axis = "mean rank correlation with the others"
    limit, lowest = 0.0, -1.0
    metric = "rank correlation"
    reason = "mean rank correlation with the other methods {value:.2f}"
    meaning = "mean rank correlation with the other methods (0: unrelated, 1: the same order)"

    def read(self, work: FinishedWork) -> pd.DataFrame:
        return pd.DataFrame(
            {
                (first, second): rank_correlations(work.scores[first], work.scores[second]).to_numpy()
                for first, second in combinations(sorted(work.scores), 2)
            }
        )

    def answers(self, rules: Rules) -> dict[str, Finding]:
        methods, controls = rules.evidence.methods, rules.evidence.controls
        table = rules.table(self.name)
        columns, means = {}, {}
        for name in methods:
            pairs = {other: _pair(name, other) for other in methods if other != name and other not in controls}
            correlations = pd.DataFrame({other: table[pair] for other, pair in pairs.items() if pair in table})
            defined_means = {str(other): mean for other, mean in correlations.mean().items() if not math.isnan(mean)}
            if defined_means:
                columns[name], means[name] = correlations.mean(axis=1), defined_means
        answers = self.judge(rules, pd.DataFrame(columns))
        for name, by_method in means.items():
            most, least = max(by_method, key=by_method.__getitem__), min(by_method, key=by_method.__getitem__)
            ends = f"most with {most} ({by_method[most]:.2f}), least with {least} ({by_method[least]:.2f})"
            answers[name] = replace(answers[name], reason=f"{answers[name].reason}; {ends}")
        return answers

    def pair_statistics(self, rules: Rules) -> tuple[Statistic, ...]:
        """The mean rank correlation of each two methods, one as `method` and the other as `subset`."""
        table, rows = rules.table(self.name), []
        for first, second in combinations(sorted(rules.evidence.methods), 2):
            values = defined(table[first, second])
            value, low, high = mean_interval(values, self.lowest, self.highest, rules.alpha)
            rows.append(Statistic("rank correlation", first, second, value, low, high, len(values), null=0.0))
        return tuple(rows)

    def statistics(self, audit: Audit) -> tuple[Statistic, ...]:
        return (*super().statistics(audit), *audit.pairs)

    def charts(self, audit: Audit) -> list[Chart]:
        pairs = [pair_matrix(audit.pairs)] if audit.pairs else []
        return [*verdict_chart(audit, self), *pairs, *measure_charts(audit, self)]


class Plausible(MeanQuestion):
    """AUC of the marked words, on texts that are predicted right or have no label."""

    name = "plausible"
    label = "plausible"
    title = "Does it name the words that people name?"
    measured = (
        "How well the scores tell the words that people marked from the others (AUC), on texts where the model is "
        "right: where it is wrong, the words that people name are not the reason for its prediction."
    )
    null = "Random scores have AUC 0.5."
    rule = "Supported if the mean AUC is clearly above 0.5, not supported if it is clearly below (Holm over methods)."
    limits = (
        "People find plausible what they would have said themselves. Plausible and not faithful is the dangerous case: "
        "it looks right but is not."
    )
    references = ("deyoung-2020", "jacovi-2020", "basu-2026")
    axis = "AUC of the marked words"
    role = Role.APPEARANCE
    limit = chance = CHANCE_AUC
    metric = "AUC"
    reason = "AUC of the words that people marked {value:.2f}, .50 by chance"
    column = "plausibility where right"
    meaning = "AUC of the words that people marked, where the model is right (0.5: chance)"

    def read(self, work: FinishedWork) -> pd.DataFrame:
        examples, columns = work.marked_examples, {}
        for name, table in work.scores.items():
            values: dict[str, float] = {}
            cells = (table[column].tolist() for column in ("label", "predicted"))
            by_word = plain_word_scores(table, work.plan.answered[name])
            for uid, label, predicted, scores, numbers in zip(table.index.tolist(), *cells, *by_word, strict=True):
                if uid not in examples or (label is not None and label == label and label != predicted):
                    continue
                marks = examples[uid].rationale or ()
                marked = torch.tensor([[number < len(marks) and marks[number] for number in numbers]])
                metrics = plausibility_metrics(torch.tensor([list(scores)]), marked, torch.ones_like(marked))
                values[uid] = float(metrics["auc"])
            columns[name] = pd.Series(values, dtype=float)
        return pd.DataFrame(columns)

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        return NO_MARKS

    def untested(self, work: FinishedWork) -> dict[str, str]:
        return {} if work.marked_examples else {self.name: NO_MARKS}


class Teaches(Question):
    """Whether students that see the scores of a method predict more as the model does than those that do not."""

    name = "teaches"
    label = "teaches"
    title = "Does it help anyone predict what the model will do?"
    measured = (
        "A student model is trained to predict what the model predicts, with and without the explanations. The number "
        "is what the explanations add to its agreement with the model on new texts."
    )
    null = "The same student without explanations."
    rule = "Supported if the interval of the gain lies above 0."
    limits = "The student is a network; people may learn from other things."
    references = ("fernandes-2022",)
    axis = "gain of the student"
    limit = 0.0
    meaning = "what it adds to the agreement of a student with the model (0: nothing)"

    def read(self, work: FinishedWork) -> pd.DataFrame:
        students = work.plan.students
        return pd.DataFrame() if isinstance(students, str) else work.workspace.get(students).summary

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        return plan.students if isinstance(plan.students, str) else "no students were trained with it"

    def untested(self, work: FinishedWork) -> dict[str, str]:
        return {self.name: work.plan.students} if isinstance(work.plan.students, str) else {}

    def answers(self, rules: Rules) -> dict[str, Finding]:
        summary = rules.table(self.name)
        answers = {name: rules.not_asked(self.name, name) for name in rules.evidence.methods}
        for finding in Simulability.findings(summary) if len(summary) else ():
            if finding.method in answers:
                gain = finding.statistic
                points = f"{100 * gain.value:+.1f} points"
                reason = f"students that see it agree with the model {points} more than students without explanations"
                row = replace(gain, metric="gain", subset="", n=int(gain.n), null=0.0)
                answers[finding.method] = replace(finding, evidence=(row,), reason=reason, question=self.name)
        return answers


@dataclass(frozen=True)
class AttentionMeasure:
    """A finding about attention itself: what is measured, in a few words for a chart, and what it means."""

    label: str
    short: str
    meaning: str


class AttentionFindings(Topic):
    """Findings about attention itself, which have no verdict."""

    name = "attention"
    label = "attention"
    title = "Can the attention weights of this model be read as reasons?"
    measured = "Findings about the weights themselves, whatever method makes a heat-map of them."
    null = "Stated with each of them."
    rule = "These findings give no verdict of their own; they explain the verdicts on methods that use attention."
    limits = (
        "That other weights would give the same prediction does not mean that the model ignores its own: it means that "
        "the weights do not single out one reason."
    )
    references = ("jain-2019", "wiegreffe-2019", "liu-2022")
    axis = "value"
    cost = 1 / 4
    texts = SIDE_TEXTS
    measures: ClassVar[Mapping[str, AttentionMeasure]] = {
        "median_change": AttentionMeasure(
            "change of the output when attention is permuted (median of 10 permutations)",
            "permutation",
            "How much the prediction changes when the weights are given to other words at random. Near 0: it hardly "
            "matters which word gets which weight.",
        ),
        "special_share": AttentionMeasure(
            "share of attention on special tokens",
            "special tokens",
            "Special tokens are not words of the text: what falls on them is not in any heat-map of words.",
        ),
        "first_share": AttentionMeasure(
            "share of attention on the first token",
            "first token",
            "Many models park attention that they do not need on the first token; a heat-map cannot tell it from a "
            "reason.",
        ),
        "adversary_share": AttentionMeasure(
            "distance of the most different attention with the same output, as a share of the largest",
            "adversary",
            "How different other weights can be while the prediction stays the same. Near 1: very different weights "
            "would have given the same prediction. Of a transformer, the weights of the token that the prediction is "
            "read from, in the last layer.",
        ),
    }
    """By metric, which is the column of `BlockAttention`."""

    def measure(self, row: Statistic) -> AttentionMeasure:
        """The texts of a statistic."""
        return self.measures.get(row.metric) or AttentionMeasure(row.metric, row.metric, "")

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        yield "", BlockAttention(plan.sample, block)

    def untested(self, work: FinishedWork) -> dict[str, str]:
        refusal = work.plan.explainer.model.attention_refusal
        remedy = "that needs trainings with uniform attention: `heedful run wiegreffe-pinter --data FILE`"
        return {"attention is necessary": remedy if refusal is None else str(NotApplicable(refusal))}

    def findings(self, work: FinishedWork, alpha: float) -> tuple[Statistic, ...]:
        """The mean of each measure over texts; none if attention was left out."""
        table, rows = work.table(self, kind=BlockAttention), []
        for metric in self.measures:
            if metric in table:
                values = defined(table[metric])
                value, low, high = mean_interval(values, 0.0, 1.0, alpha)
                rows.append(Statistic(metric, self.name, "", value, low, high, len(values)))
        return tuple(rows)

    def statistics(self, audit: Audit) -> tuple[Statistic, ...]:
        return audit.attention

    def charts(self, audit: Audit) -> list[Chart]:
        return attention_chart([(self.measure(row).short, row) for row in audit.attention])


OWN_REASON = "{value:.2f} more than under another seed and a tiny edit"


def _both(answer: Finding, other: Finding) -> Finding:
    """Supported if both answers are, not supported if one of them is not."""
    verdicts = {answer.verdict, other.verdict}
    if answer.verdict is Verdict.NOT_TESTED:
        return answer
    if other.verdict is Verdict.NOT_TESTED:
        reason = f"{answer.reason}; how much it changes by itself was not measured"
        undecided = Verdict.UNDECIDED if answer.verdict is Verdict.SUPPORTED else answer.verdict
        return replace(answer, verdict=undecided, reason=reason)
    evidence, reason = (*answer.evidence, *other.evidence), f"{answer.reason}; {other.reason}"
    verdict = Verdict.SUPPORTED if verdicts == {Verdict.SUPPORTED} else Verdict.UNDECIDED
    verdict = Verdict.NOT_SUPPORTED if Verdict.NOT_SUPPORTED in verdicts else verdict
    sizes = [each.texts_needed for each in (answer, other) if each.verdict is Verdict.UNDECIDED]
    known = [size for size in sizes if size is not None]
    needed = max(known) if verdict is Verdict.UNDECIDED and len(known) == len(sizes) else None
    return replace(answer, verdict=verdict, evidence=evidence, reason=reason, texts_needed=needed)


AGREES, ATTENTION_FINDINGS, UNDER_INFILL = Agrees(), AttentionFindings(), HoldsUnderInfill()
QUESTIONS: tuple[Question, ...] = (
    Faithful(),
    UNDER_INFILL,
    ModelDependent(),
    Stable(),
    Complete(),
    Polarity(),
    ClassSensitive(),
    AGREES,
    Plausible(),
    Teaches(),
)
"""What is asked of every method, in the order of the verdict matrix."""
TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in (*QUESTIONS, ATTENTION_FINDINGS)}
"""The pages of an audit by name."""


def _correlations(question: Question, work: FinishedWork) -> dict[str, pd.Series]:
    """Of each text, the rank correlation of a method's scores with those that a question computed again."""
    return {name: rank_correlations(work.scores[name], work.table(question, name)) for name in work.plan.recomputable}


def _pair(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first <= second else (second, first)
