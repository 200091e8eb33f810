"""From the stored evidence of an audit to its result: statistics, examples and sentences."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from heedful.attributions._base import Baseline
from heedful.attributions.controls import PermutedAttention, Random
from heedful.attributions.deeplift import DeepShap
from heedful.attributions.integrated_gradients import GradientShap
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.attributions.shapley import KernelShap
from heedful.audits.audit_result import (
    Answer,
    Audit,
    AuditedData,
    AuditedModel,
    Decision,
    FailureExample,
    Measurement,
    MethodAudit,
    Question,
)
from heedful.audits.evidence import (
    BlockAttention,
    BlockAttributions,
    BlockErasure,
    BlockSearch,
    TextSample,
    block_range,
    concatenate,
)
from heedful.audits.external_attributions import ExternalAttributions
from heedful.audits.verdict_rules import BEST, NULL, SIGNS, AuditEvidence, Key, Rules, level_of_look, mean_interval
from heedful.data.evaluation_table import EvaluationTable
from heedful.data.tokenization import TRUNCATED
from heedful.devices import arithmetic_notes
from heedful.explainer import Explainer, software_versions, word_pooling
from heedful.measures.rank_correlation import spearman
from heedful.measures.rationale_agreement import plausibility_metrics
from heedful.report.charts import png_base64
from heedful.report.explorer import (
    LEAST_FAITHFUL,
    MOST_MANIPULABLE,
    ExplanationRow,
    TextMetric,
    explorer_html,
    tabulate_texts,
)
from heedful.store.recipe import Json
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import gap_shares
from heedful.trials.simulability import Simulability
from heedful.types import REFUSED, Corpus, Example, Method, Model

CONTROL_METHODS: Mapping[str, Method] = {"random": Random(seed=1_000_003), "permuted-attention": PermutedAttention()}
NULL_METHODS = tuple(Random(seed=seed) for seed in range(3))
"""Random orders whose mean is what every explanation is compared with."""
RANDOMISED_SEED = 0


@dataclass(frozen=True)
class AuditAnalysis:
    """Everything that an audit has stored, ready to be put together.

    Args:
        methods: audited methods by name, without controls.
        ways: ways of deletion.
        left_out: methods and pieces of work that were left out, with the reason.
        main: blocks whose scores and erasures are finished.
        full: blocks of these where all questions are.
        costs: seconds per text of each kind of work.
        students: the finished trial of students, or why there is none.
        look: the number of this look at the growing evidence.
    """

    explainer: Explainer
    corpus: Corpus
    source: str
    sample: TextSample
    methods: Mapping[str, Method]
    ways: tuple[Baseline, ...]
    left_out: Mapping[str, str]
    main: Sequence[int]
    full: Sequence[int]
    costs: Mapping[str, float]
    students: Simulability | str
    look: int
    workspace: Workspace

    @property
    def table(self) -> pd.DataFrame:
        """The audited texts."""
        return self.workspace.get(self.sample).table.iloc[: block_range(self.main[-1]).stop]

    @property
    def notes(self) -> Mapping[str, Json]:
        """What the sample says of model and data."""
        return self.workspace.get(self.sample).notes

    @property
    def noun(self) -> str:
        """What is audited."""
        return "images" if self.explainer.reads_images else "texts"

    @functools.cached_property
    def _collected(self) -> tuple[AuditEvidence, Mapping[str, pd.DataFrame]]:
        return self._evidence(self.main, self.full)

    @functools.cached_property
    def _rules(self) -> Rules:
        return Rules(self._collected[0], level_of_look(self.look))

    def result(self, *, minutes: float, seconds: float, finished: bool) -> Audit:
        """The whole result."""
        evidence, tables = self._collected
        texts, rules = self.table, self._rules
        methods = rules.methods()
        recommended = tuple(each.name for each in methods if each.decision is Decision.SHOW)
        reference = recommended[0] if recommended else next((each.name for each in methods if not each.control), "")
        methods = tuple(
            replace(each, failure=self._failure(each.name, reference, tables, texts))
            if each.decision not in (None, Decision.SHOW)
            else each
            for each in methods
        )
        measurements = tuple(
            dict.fromkeys(row for each in methods for answer in each.answers for row in answer.measurements)
        )
        attention = self._attention(self.full, rules.alpha)
        return Audit(
            model=self._audited_model(),
            data=self._audited_data(texts),
            methods=methods,
            attention=attention,
            measurements=(*measurements, *attention),
            pairs=self._pairs(evidence, rules.alpha),
            struck={f"{measure} ({way})": reason for (measure, way), reason in rules.struck.items()},
            untested=self._untested(),
            recommended=recommended,
            sentence=answer_sentence(methods, len(texts), self.noun),
            caution=caution(self.noun),
            caption=caption(methods, len(texts), self.source, self.noun),
            level=1 - 2 * rules.alpha,
            look=self.look,
            seed=self.sample.seed,
            minutes=minutes,
            seconds=seconds,
            finished=finished,
            versions=dict(software_versions()),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )

    def texts_page(self, audit: Audit) -> str:
        """The explorer of the audited texts with every explanation, sortable by faithfulness and manipulability."""
        _, tables = self._collected
        everything = {**self.methods, **CONTROL_METHODS}
        rows = [
            ExplanationRow(
                each.name,
                each.reason,
                is_visible=each.name in (audit.recommended or [method.name for method in audit.methods[:2]]),
                is_summed=word_pooling(everything[each.name]) == "sum",
            )
            for each in audit.methods
        ]
        first = audit.methods[0].name
        composite = self._rules.composite
        metrics, head_maps = {}, dict[str, NDArray[np.floating]]()
        if first in composite and len(composite):
            share = TextMetric(f"share of the achievable: {first}", LEAST_FAITHFUL)
            metrics[share] = {str(uid): float(value) for uid, value in composite[first].items()}
        if "attention" not in self.left_out and self.full:
            recipes = [BlockAttention(self.sample, block) for block in self.full]
            head_maps = self._head_maps(recipes)
            attention = concatenate(recipes, self.workspace)
            change = TextMetric("change when attention is permuted", MOST_MANIPULABLE, is_descending=True)
            metrics[change] = {
                str(uid): float(value) for uid, value in zip(attention["uid"], attention["median_change"], strict=True)
            }
        marked = {
            uid: [number for number, mark in enumerate(example.rationale or ()) if mark]
            for uid, example in self._marked_examples().items()
        }
        facts = {"model": self.explainer.name, "data": self.corpus.name}
        images = self._images(self.table["uid"].tolist())
        data = tabulate_texts(tables, rows, facts, self.explainer.class_names, metrics, marked, head_maps, images)
        return explorer_html(data)

    def _head_maps(self, recipes: Sequence[BlockAttention]) -> dict[str, NDArray[np.floating]]:
        """By uid the attention on words in each layer and head, without the padding of its block."""
        counts = dict(zip(self.table["uid"], self.table["words"], strict=True))
        artefacts = [self.workspace.get(recipe) for recipe in recipes]
        return {
            uid: maps[..., : counts[uid]].numpy()
            for each in artefacts
            for uid, maps in zip(each.table["uid"], each.tensors["head_maps"], strict=True)
        }

    def _evidence(self, main: Sequence[int], full: Sequence[int]) -> tuple[AuditEvidence, Mapping[str, pd.DataFrame]]:
        everything = {
            **self.methods,
            **{name: each for name, each in CONTROL_METHODS.items() if name not in self.left_out},
        }
        tables = {name: self._scores(method, main) for name, method in everything.items()}
        side = {name: method for name, method in everything.items() if not isinstance(method, ExternalAttributions)}
        randomised = {
            name: 1 - _correlations(tables[name], self._scores(method, full, randomised=RANDOMISED_SEED))
            for name, method in (side.items() if has_weights(self.explainer.model) else ())
        }
        repeated = {
            name: [
                recipe
                for block in full
                if (recipe := repeated_scores(self.sample, method, block, images=self.explainer.reads_images))
            ]
            for name, method in side.items()
        }
        edits = {name: _correlations(tables[name], self._indexed(recipes)) for name, recipes in repeated.items()}
        gaps = {
            name: pd.Series(gap_shares(table), index=table.index) for name, table in tables.items() if "gap" in table
        }
        seconds = {name: self.costs[label] for name in everything if (label := f"{name} scores") in self.costs}
        evidence = AuditEvidence(
            methods=tuple(everything),
            controls=frozenset(CONTROL_METHODS),
            erasure=self._erasure(everything, main),
            randomised=pd.DataFrame(randomised),
            edits=pd.DataFrame(edits),
            agreement=_agreement(tables),
            plausibility=self._plausibility(tables),
            gaps=pd.DataFrame(gaps),
            seconds=seconds,
            optimised_for={name: self._optimised_for(method) for name, method in everything.items()},
            unasked=self._unasked(everything),
            teaches=self._teaches(),
            repetition="another seed" if self.explainer.reads_images else "another seed and a tiny edit",
        )
        return evidence, tables

    def _scores(self, method: Method, blocks: Sequence[int], *, randomised: int | None = None) -> pd.DataFrame:
        return self._indexed([BlockAttributions(self.sample, method, block, randomised=randomised) for block in blocks])

    def _indexed(self, recipes: Sequence[BlockAttributions]) -> pd.DataFrame:
        """The tables of finished recipes one below the other, by uid."""
        table = concatenate(recipes, self.workspace)
        return table.set_index("uid") if len(table) else table

    def _erasure(self, methods: Mapping[str, Method], blocks: Sequence[int]) -> dict[Key, pd.DataFrame]:
        nulls = {f"{NULL} {seed}": each for seed, each in enumerate(NULL_METHODS)}
        tables = {
            name: concatenate(
                [BlockErasure(BlockAttributions(self.sample, method, block), self.ways) for block in blocks],
                self.workspace,
            )
            for name, method in {**methods, **nulls}.items()
        }
        searched = concatenate([BlockSearch(self.sample, block, self.ways) for block in blocks], self.workspace)
        found: dict[Key, pd.DataFrame] = {}
        for way in self.ways:
            columns = {name: table[table["deletion"] == way].set_index("uid") for name, table in tables.items()}
            best = searched[searched["deletion"] == way].set_index("uid")
            for measure, sign in SIGNS.items():
                table = pd.DataFrame({name: frame[measure] for name, frame in columns.items()})
                # The search is a lower bound, and so is every explanation.
                table[BEST] = sign * pd.concat([sign * table, sign * best[measure]], axis=1).max(axis=1)
                table[NULL] = table[list(nulls)].mean(axis=1)
                found[measure, way] = table.drop(columns=list(nulls))
        return found

    def _plausibility(self, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """AUC of the marked words by method, on texts that are predicted right or have no label."""
        examples = self._marked_examples()
        columns = {}
        for name, table in tables.items():
            values: dict[str, float] = {}
            cells = (table[column].tolist() for column in ("label", "predicted", "word_numbers", "word_scores"))
            for uid, label, predicted, numbers, scores in zip(table.index.tolist(), *cells, strict=True):
                if uid not in examples or (label is not None and label == label and label != predicted):
                    continue
                marks = examples[uid].rationale or ()
                marked = torch.tensor([[number < len(marks) and marks[number] for number in numbers]])
                found = plausibility_metrics(torch.tensor([list(scores)]), marked, torch.ones_like(marked))
                values[uid] = float(found["auc"])
            columns[name] = pd.Series(values, dtype=float)
        return pd.DataFrame(columns)

    @functools.cached_property
    def _examples(self) -> dict[str, Example]:
        """By uid all texts of the corpus, which is read once."""
        return {example.uid: example for example in self.corpus.read(self.workspace.data_dir)["test"]}

    def _marked_examples(self) -> dict[str, Example]:
        return {uid: example for uid, example in self._examples.items() if any(example.rationale or ())}

    def _optimised_for(self, method: Method) -> tuple[str, ...]:
        """The measures that a method itself measures on single words."""
        if isinstance(method, LeaveOneOut):
            return ("comprehensiveness (delete)",)
        if isinstance(method, Occlusion) and method.baselines in self.ways:
            return (f"comprehensiveness ({method.baselines})",)
        return ()

    def _unasked(self, methods: Mapping[str, Method]) -> dict[tuple[Question, str], str]:
        elsewhere = "its scores were made elsewhere and cannot be computed again"
        found = {
            (question, name): elsewhere
            for name, method in methods.items()
            if isinstance(method, ExternalAttributions)
            for question in (Question.MODEL, Question.STABLE, Question.COMPLETE)
        }
        if self.explainer.reads_images:
            found[Question.STABLE, ""] = "there are no tiny edits of images, and it draws no random numbers"
        if not has_weights(self.explainer.model):
            found[Question.MODEL, ""] = "the model has no weights that could be randomized"
        found[Question.PLAUSIBLE, ""] = "no words are marked: give a column of rationales (--rationale-column)"
        taught = "students were not trained with it, only with some methods"
        found[Question.TEACHES, ""] = self.students if isinstance(self.students, str) else taught
        return found

    def _teaches(self) -> dict[str, Answer]:
        """Whether students that see the scores of a method predict more as the model does than those that do not."""
        if isinstance(self.students, str):
            return {}
        summary = self.workspace.get(self.students).summary
        answers = {}
        for finding in Simulability.findings(summary):
            gain = finding.evidence[0]
            reason = (
                f"students that see it agree with the model {100 * gain.value:+.1f} points more than students that see "
                "no explanation"
            )
            row = Measurement(
                Question.TEACHES.value, "gain", finding.method, "", gain.value, gain.low, gain.high, int(gain.n), 0.0
            )  # fmt: skip
            answers[finding.method] = Answer(
                Question.TEACHES, finding.method, finding.verdict, gain.value, gain.low, gain.high, int(gain.n), 0.0,
                reason, None, (row,),
            )  # fmt: skip
        return answers

    def _untested(self) -> dict[str, str]:
        untested = {
            name: reason if reason.startswith(REFUSED) else f"left out: {reason}"
            for name, reason in self.left_out.items()
        }
        if not self._marked_examples():
            untested[Question.PLAUSIBLE.value] = "no words are marked: give a column of rationales (--rationale-column)"
        if isinstance(self.students, str):
            untested[Question.TEACHES.value] = self.students
        refusal = self.explainer.model.attention_refusal
        untested["attention is necessary"] = (
            "that needs trainings with uniform attention: `heedful run wiegreffe-pinter --data FILE`"
            if refusal is None
            else f"{REFUSED} {refusal}"
        )
        return untested

    def _attention(self, blocks: Sequence[int], alpha: float) -> tuple[Measurement, ...]:
        if "attention" in self.left_out:
            return ()
        table = concatenate([BlockAttention(self.sample, block) for block in blocks], self.workspace)
        rows = []
        for column, measure in ATTENTION_MEASURES.items():
            if column in table:
                values = table[column].to_numpy(np.float64)
                value, low, high = mean_interval(values[np.isfinite(values)], alpha, column)
                rows.append(
                    Measurement("attention", measure, "attention", "", value, low, high, int(np.isfinite(values).sum()))
                )
        return tuple(rows)

    def _pairs(self, evidence: AuditEvidence, alpha: float) -> tuple[Measurement, ...]:
        rows = []
        for (first, second), values in evidence.agreement.items():
            defined = values[np.isfinite(values)]
            value, low, high = mean_interval(defined, alpha, f"{first} {second}")
            rows.append(Measurement("agrees", "rank correlation", first, second, value, low, high, len(defined), 0.0))
        return tuple(rows)

    def _failure(
        self, name: str, reference: str, tables: Mapping[str, pd.DataFrame], texts: pd.DataFrame
    ) -> FailureExample:
        """The text on which removing the method's highest words does least, compared with a better explanation."""
        # Half of the words, the last bin, are too many to be looked at.
        (own, drops), (other, other_drops) = self._drops(name), self._drops(reference)
        drops, other_drops = drops[:, :-1], other_drops[:, :-1] if reference != name else np.ones_like(drops)[:, :-1]
        row, place = (int(each) for each in np.unravel_index(int(np.argmax(other_drops - drops)), drops.shape))
        uid, count = str(own["uid"].tolist()[row]), int(own["counts"].tolist()[row][place])
        full = float(own["full"].tolist()[row])
        chosen = texts[texts["uid"] == uid]
        names = self.explainer.class_names
        label = names[int(chosen["predicted"].tolist()[0])] if names else "the number"
        words, scores = self._words(uid, tables[name]), _cell(tables[name], uid, "word_scores")
        highest, gap = _removed(own, row, count), "; " if self.explainer.reads_images else ", "
        sentence = (
            f"Without {format_count(count, self.noun)} that {name} ranks highest "
            f"({gap.join(words[each] for each in highest)}) the output for {label} goes from {full:.2f} to "
            f"{full - drops[row, place]:.2f}"
        )
        other_scores: list[float] = []
        if reference != name:
            other_scores = _cell(tables[reference], uid, "word_scores")
            better = gap.join(words[each] for each in _removed(other, row, count))
            sentence += f"; without those of {reference} ({better}) to {full - other_drops[row, place]:.2f}"
        return FailureExample(
            uid=uid,
            predicted=label,
            probability=float(chosen["probability"].tolist()[0]),
            words=tuple(words),
            scores=tuple(scores),
            highest=tuple(highest),
            sentence=f"{sentence}.",
            other_method=reference if other_scores else "",
            other_scores=tuple(other_scores),
            image="".join(map(png_base64, self._images([uid]).values())),
        )

    def _drops(self, name: str) -> tuple[pd.DataFrame, NDArray[np.float64]]:
        """The erasure table of a method under the first way of deletion, and the drop of the output by text and bin."""
        method = {**self.methods, **CONTROL_METHODS}[name]
        recipes = [BlockErasure(BlockAttributions(self.sample, method, block), self.ways) for block in self.main]
        table = concatenate(recipes, self.workspace)
        table = table[table["deletion"] == self.ways[0]]
        removed = np.array(table["removed"].tolist(), dtype=np.float64)
        return table, table["full"].to_numpy(np.float64)[:, None] - removed

    def _words(self, uid: str, table: pd.DataFrame) -> list[str]:
        """The whitespace words of a text that the model sees, in order; of an image its patches as "row,column"."""
        if self.explainer.reads_images:
            row = table.index.tolist().index(uid)
            units, scored = (table[name].tolist()[row] for name in ("units", "scored"))
            return [str(unit) for unit, is_scored in zip(units, scored, strict=True) if is_scored]
        words = [word for part in self._examples[uid].parts if isinstance(part, str) for word in part.split()]
        numbers = [int(number) for number in _cell(table, uid, "word_numbers")]
        return [words[number] if number < len(words) else str(number) for number in numbers]

    def _images(self, uids: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
        """By uid the audited images; none if texts are audited."""
        if not self.explainer.reads_images:
            return {}
        parts = {uid: self._examples[uid].parts[0] for uid in uids}
        return {uid: image_pixels(part) for uid, part in parts.items() if isinstance(part, Tensor)}

    def _audited_model(self) -> AuditedModel:
        remarks, unknown, read = self.notes["remarks"], self.notes["unknown words"], int(str(self.notes["read"]))
        truncated = (
            sum(int(str(value)) for name, value in remarks.items() if name.startswith(TRUNCATED))
            if isinstance(remarks, dict)
            else 0
        )
        arithmetic = arithmetic_notes(self.workspace.device, self.explainer.precision)
        return AuditedModel(
            name=self.explainer.name,
            source=shown_path(self.explainer.source),
            architecture="; ".join((str(self.notes["architecture"]), *arithmetic)),
            outputs=self.explainer.class_names,
            tokenizer=type(self.explainer.tokenizer).__name__,
            unknown_words=float(str(unknown)),
            truncated=truncated / max(1, read),
            digest=self.explainer.digest,
        )

    def _audited_data(self, texts: pd.DataFrame) -> AuditedData:
        corpus = self.corpus
        labels = texts["label"]
        labelled = texts[labels.notna()]
        accuracy = math.nan
        if len(labelled) and self.explainer.class_names:
            accuracy = float((labelled["predicted"] == labelled["label"].astype(float)).mean())
        marked = self._marked_examples()
        corpus_notes = self.notes["corpus"]
        remarks = (
            [f"{name}: {format_note(value)}" for name, value in corpus_notes.items()]
            if isinstance(corpus_notes, dict)
            else []
        )
        table = isinstance(corpus, EvaluationTable)
        return AuditedData(
            name=corpus.name,
            source=shown_path(self.source),
            columns=corpus.columns.roles if isinstance(corpus, EvaluationTable) else {},
            rows=int(str(self.notes["rows"])),
            texts=len(texts),
            accuracy=accuracy,
            rationales=sum(uid in marked for uid in texts["uid"]),
            classes=class_counts(texts, self.explainer.class_names),
            notes=(*(corpus.columns.notes if table and isinstance(corpus, EvaluationTable) else ()), *remarks),
            digest=corpus.digest(self.workspace.data_dir),
            noun=self.noun,
            assumptions=assumptions(corpus, self.workspace.get(self.sample).table, self.explainer.class_names),
        )


UNITS: Mapping[str, tuple[str, str]] = {"texts": ("word", "words"), "images": ("patch", "patches")}
"""What has a score in a text or an image."""
BELOW_CHANCE = 0.001
"""Probability of so few right predictions by chance, below which the order of the labels is doubtful."""
MAX_IMAGE_SIDE = 96
"""Pixels of an image that is shown."""
TEACHES_UNTESTED = "that needs students that are trained: give texts for them (--train-data FILE)"
ATTENTION_MEASURES: Mapping[str, str] = {
    "median_change": "change of the output when attention is permuted (median of 10 permutations)",
    "special_share": "share of attention on special tokens",
    "first_share": "share of attention on the first token",
    "adversary_share": "distance of the most different attention with the same output, as a share of the largest",
}


def caution(noun: str) -> str:
    """The sentence that must go with every heat-map."""
    where = "parts of the image" if noun == "images" else "words"
    return (
        f"The colours show which {where} the prediction depends on, as far as this method can tell; they do not show "
        "why, and they do not show that the prediction is right."
    )


def format_count(count: int, noun: str = "texts") -> str:
    """
    >>> format_count(1), format_count(3, "images")
    ('the word', 'the 3 patches')
    """
    return f"the {UNITS[noun][0]}" if count == 1 else f"the {count} {UNITS[noun][1]}"


def image_pixels(image: Tensor) -> NDArray[np.uint8]:
    """An image `[channel height width]` in [0, 1] as bytes `[height width 3]`; a large one is made smaller."""
    height, width = image.shape[1:]
    factor = max(1.0, max(height, width) / MAX_IMAGE_SIDE)
    small = adaptive_avg_pool2d(image, (max(1, round(height / factor)), max(1, round(width / factor))))
    colours = small if len(small) == 3 else small.mean(0, keepdim=True).expand(3, -1, -1)
    pixels: NDArray[np.uint8] = (255 * colours.clamp(0, 1)).round().byte().permute(1, 2, 0).contiguous().numpy()
    return pixels


def class_counts(table: pd.DataFrame, names: Sequence[str]) -> dict[str, int]:
    """Number of texts by predicted class."""
    if not names:
        return {"numbers": len(table)}
    counts = table["predicted"].value_counts()
    return {name: int(counts.get(index, 0)) for index, name in enumerate(names)}


def assumptions(corpus: Corpus, table: pd.DataFrame, outputs: Sequence[str]) -> tuple[str, ...]:
    """What was assumed about the columns and labels of the data, and whether the labels contradict the model.

    Args:
        table: label and predicted class of the texts that were read.
    """
    stated = corpus.columns.assumptions if isinstance(corpus, EvaluationTable) else ()
    labelled = table[table["label"].notna()]
    if not outputs or labelled.empty:
        return stated
    right = int((labelled["predicted"] == labelled["label"].astype(float)).sum())
    # A model that is right less often than by chance usually has its outputs in another order.
    if binomtest(right, len(labelled), 1 / len(outputs), "less").pvalue >= BELOW_CHANCE:
        return stated
    return (
        *stated,
        f"the labels are those of the outputs, although only {right} of {len(labelled)} are predicted, less "
        "than by chance: labels and outputs may be in another order",
    )


def answer_sentence(methods: Sequence[MethodAudit], texts: int, noun: str = "texts") -> str:
    """The answer of an audit in one sentence."""
    shown = [each for each in methods if each.decision is Decision.SHOW]
    hidden = [each.name for each in methods if each.decision in (Decision.HIDE, Decision.MISLEADING)]
    not_shown = f" Do not show {_join(hidden)}." if hidden else ""
    if not shown:
        candidates = [each for each in methods if each.decision is Decision.NOT_ALONE]
        best = f" The best so far is {candidates[0].name}: {candidates[0].reason}." if candidates else ""
        return f"On {texts} {noun} no explanation is good enough to be shown alone.{best}{not_shown}"
    first = shown[0]
    others = [each.name for each in shown[1:]]
    more = f" {_join(others)} may be shown too." if others else ""
    return (
        f"Show {first.name}: on {texts} {noun} it reaches {first.achievable:.0%} of the achievable faithfulness, and "
        f"no method is clearly better.{more}{not_shown}"
    )


def caption(methods: Sequence[MethodAudit], texts: int, source: str, noun: str = "texts") -> str:
    """The text under a heat-map of the first method that may be shown; empty if there is none."""
    shown = next((each for each in methods if each.decision is Decision.SHOW), None)
    if shown is None:
        return ""
    unit, several = UNITS[noun]
    return (
        f"{unit.capitalize()} scores by {shown.name} for the predicted class. On {texts} {noun} of "
        f"{Path(source).name} removing the {several} that it ranks highest had {shown.achievable:.0%} of the effect "
        f"that the best explanation found has; random {several} have 0 %. {caution(noun)}"
    )


def _join(names: Sequence[str]) -> str:
    """
    >>> _join(["a"]), _join(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _cell(table: pd.DataFrame, uid: str, column: str) -> list[float]:
    """The list of numbers of one text."""
    return [float(value) for value in table[column].tolist()[table.index.tolist().index(uid)]]


def _removed(erasure: pd.DataFrame, row: int, count: int) -> list[int]:
    """The words that were removed from one text: those with the highest scores, ties as they were broken."""
    return [int(word) for word in erasure["order"].tolist()[row][:count]]


def format_note(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def has_weights(model: Model) -> bool:
    """Whether there are weights to randomize: a model may wrap something else, such as a scikit-learn pipeline."""
    return next(model.parameters(), None) is not None


def with_other_seed(method: Method) -> Method:
    """The same method with another seed; itself if it draws nothing."""
    if isinstance(method, Lime | KernelShap | GradientShap | DeepShap | Random | PermutedAttention):
        return replace(method, seed=method.seed + 1)
    return method


def repeated_scores(
    sample: TextSample, method: Method, block: int, *, images: bool = False
) -> BlockAttributions | None:
    """Scores that should be the same: of slightly edited texts, and with another seed if the method draws.

    There are no tiny edits of images: a method that draws nothing is then not computed again.
    """
    other = with_other_seed(method)
    if not images:
        return BlockAttributions(sample, other, block, "edited")
    return None if other == method else BlockAttributions(sample, other, block)


def _correlations(first: pd.DataFrame, second: pd.DataFrame) -> pd.Series:
    """Spearman's correlation of the scores of the words that both tables have of a text; NaN for constant scores.

    An edit keeps the number of words, but a text that is cut off may lose its last ones.
    """
    ours, theirs = (
        {
            str(uid): dict(zip(numbers, scores, strict=True))
            for uid, numbers, scores in zip(each.index, each["word_numbers"], each["word_scores"], strict=True)
        }
        if len(each)
        else {}
        for each in (first, second)
    )
    common = {uid: [word for word in ours[uid] if word in theirs[uid]] for uid in theirs if uid in ours}
    if not common:
        return pd.Series(dtype=float)
    x, mask = _padded([[ours[uid][word] for word in words] for uid, words in common.items()])
    y, _ = _padded([[theirs[uid][word] for word in words] for uid, words in common.items()])
    return pd.Series(spearman(x, y, mask).value.numpy(), index=list(common))


def _padded(lists: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(list(each), dtype=torch.float64) for each in lists]
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), mask


def _agreement(tables: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], NDArray[np.float64]]:
    names = sorted(tables)
    return {
        (first, second): _correlations(tables[first], tables[second]).to_numpy(np.float64)
        for place, first in enumerate(names)
        for second in names[place + 1 :]
    }
