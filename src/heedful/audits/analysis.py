"""From the stored evidence of an audit to its result: statistics, examples and sentences."""

from __future__ import annotations

import datetime
import functools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from heedful.attributions.method import Feature, MethodTags, tags_of
from heedful.audits.audit_result import Audit, AuditedData, AuditedModel, FailureExample, WordUse
from heedful.audits.decisions import (
    NO_EFFECT,
    UNITS,
    answer_sentence,
    caption,
    caution,
    judge_methods,
    no_effect_p_value,
    nothing_sentence,
    other_thresholds,
    removal_sentence,
)
from heedful.audits.evidence import BlockAttention, BlockNull, block_range
from heedful.audits.questions import AGREES, ATTENTION_FINDINGS, QUESTIONS, TOPICS, UNDER_INFILL
from heedful.audits.rare_classes import count_representative
from heedful.audits.verdict_rules import (
    BEST,
    FAITHFUL,
    NULL,
    SIGNS,
    AuditEvidence,
    ErasureKey,
    Rules,
    defined,
    level_of_look,
    measure_label,
)
from heedful.audits.work_list import AuditPlan, FinishedWork
from heedful.data.table import EvaluationTable
from heedful.devices import arithmetic_notes
from heedful.explainer import software_versions
from heedful.formatting import join_names
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.measures.bounded_mean import mean_interval
from heedful.measures.hypothesis_tests import poisson_binomial_tail
from heedful.report.charts import png_base64
from heedful.report.text_sources import tabulate_texts
from heedful.report.text_table import LEAST_FAITHFUL, MOST_MANIPULABLE, ScoreColumn, TextMetric, TextTable
from heedful.results import Decision, Finding, Statistic
from heedful.segmentation import MAX_WORDS
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.shown_path import shown_path
from heedful.types import Corpus, Method


@dataclass(frozen=True)
class AuditAnalysis:
    """Everything that an audit has stored, ready to be put together.

    Args:
        costs: seconds per text of each kind of work.
        look: the number of this look at the growing evidence.
        seconds: that all calls have taken.
    """

    work: FinishedWork
    costs: Mapping[str, float]
    look: int
    seconds: float

    @property
    def plan(self) -> AuditPlan:
        """What was audited."""
        return self.work.plan

    @functools.cached_property
    def _sample(self) -> Artefact:
        return self.work.workspace.get(self.plan.sample)

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """The audited texts."""
        return self._sample.table.iloc[: block_range(self.work.main[-1]).stop]

    @functools.cached_property
    def _representative(self) -> FinishedWork:
        """The work on the texts that represent the data, without those that were added for rare classes."""
        table = self.table
        return self.work.restricted(table["uid"][table["turn"] < count_representative(table["turn"])])

    @functools.cached_property
    def _rules(self) -> Rules:
        """The rules for all predictions."""
        return Rules(self._evidence(self._representative), level_of_look(self.look))

    @functools.cached_property
    def _by_class(self) -> dict[str, dict[str, Finding]]:
        """The answers on faithfulness by predicted class and method; empty if a single class is predicted.

        Of many classes the most frequent ones. Those with enough texts for a verdict share the error.
        """
        names, groups = self.plan.explainer.class_names, self.table.groupby("predicted")["uid"]
        if not names or groups.ngroups < 2:
            return {}
        sizes = groups.size().sort_values(ascending=False, kind="stable")[:MOST_CLASSES]
        alpha, answers = self._rules.alpha / max(1, int((sizes >= MIN_EXAMPLES).sum())), {}
        for number, uids in groups:
            if number not in sizes:
                continue
            evidence = replace(self._rules.evidence, erasure=self._erasure(self.work.restricted(uids)), tables={})
            by_method = Rules(evidence, alpha).faithful()
            label = names[int(str(number))]
            answers[label] = {name: _of_class(answer, label) for name, answer in by_method.items()}
        return answers

    def result(self, *, minutes: float, finished: bool) -> Audit:
        """The whole result."""
        plan, texts, rules = self.plan, self.table, self._rules
        effects = self._effects(rules)
        methods = tuple(
            replace(method, by_class={label: answers[method.name] for label, answers in self._by_class.items()})
            for method in judge_methods(rules, effects)
        )
        recommended = tuple(method.name for method in methods if method.decision is Decision.SHOW)
        reference = recommended[0] if recommended else next((each.name for each in methods if not each.control), "")
        methods = tuple(
            replace(method, failure=self._failure(method.name, reference))
            if method.decision not in (None, Decision.SHOW)
            else method
            for method in methods
        )
        untested = {name: reason for topic in TOPICS.values() for name, reason in topic.untested(self.work).items()}
        if never := self._never_predicted():
            untested[NEVER_PREDICTED] = never
        data = self._audited_data(texts)
        return Audit(
            model=self._audited_model(),
            data=data,
            methods=methods,
            attention=ATTENTION_FINDINGS.findings(self._representative, rules.alpha),
            pairs=AGREES.pair_statistics(rules),
            struck={f"{measure} ({way})": reason for (measure, way), reason in rules.struck.items()},
            untested={**plan.left_out, **untested},
            recommended=recommended,
            sentence=answer_sentence(methods) + nothing_sentence(effects, rules.alpha, plan.noun),
            caution=caution(plan.noun),
            caption=caption(methods, data.texts - data.added, plan.source, plan.noun, units=explained_units(data)),
            level=1 - 2 * rules.alpha,
            look=self.look,
            seed=plan.sample.seed,
            minutes=minutes,
            seconds=self.seconds,
            finished=finished,
            versions=dict(software_versions()),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            effects=effects,
            distances=UNDER_INFILL.distances(self.work, rules.alpha),
            other_thresholds=other_thresholds(rules, effects),
            word_use=() if plan.reads_images or not reference else self._word_use(reference),
        )

    def _effects(self, rules: Rules) -> tuple[Statistic, ...]:
        """How much the probability of the prediction falls without the best words found, overall and by class.

        The way of deletion with the smaller effect counts: what is removed must matter under both. None for regression,
        whose output has no scale.
        """
        names = self.plan.explainer.class_names
        if not names or not rules.evidence.erasure:
            return ()
        smallest = _smallest_drops(self._erasure(self.work))
        predicted = self.table.set_index("uid")["predicted"].reindex(smallest.index)
        by_class = [(name, smallest[predicted == index]) for index, name in enumerate(names)]
        groups = [
            ("", _smallest_drops(rules.evidence.erasure)),
            *((name, values) for name, values in by_class if len(values)),
        ]
        return tuple(
            Statistic(BEST_DROP, "", subset, *interval, len(values), NO_EFFECT, no_effect_p_value(values))
            for subset, column in groups
            for values in [defined(column)]
            for interval in [mean_interval(values, 0.0, 1.0, rules.alpha)]
        )

    def _never_predicted(self) -> str:
        """Which classes no text that was read is predicted as; empty if there are none."""
        names = self.plan.explainer.class_names
        never = [name for name, count in class_counts(self._sample.table, names).items() if not count]
        if not never:
            return ""
        listed = [*never[:MOST_NAMED], *([f"{len(never) - MOST_NAMED} more"] if len(never) > MOST_NAMED else [])]
        return (
            f"none of the {len(self._sample.table)} {self.plan.noun} that can be audited is predicted "
            f"{join_names(listed)}; "
            f"add {self.plan.noun} that are"
        )

    def _word_use(self, name: str) -> tuple[WordUse, ...]:
        """The words that a method ranks first in several texts of one predicted class, the most frequent first.

        Of texts that are explained by segments, the words of the segment that is ranked first, if they are there more
        often than chance has it.
        """
        table, classes = self.work.scores[name], self.plan.explainer.class_names
        short, long = list[RankedText](), list[RankedText]()
        for uid, outcome, scores in zip(table.index, table["predicted"], table["word_scores"], strict=True):
            runs = [[_bare_word(word) for word in run.split()] for run in self._words(str(uid), table)]
            first = int(np.argmax(scores)) if runs and max(scores) > 0 else None
            text = RankedText(classes[int(outcome)] if classes else "", runs, first)
            (long if any(len(run) > 1 for run in runs) else short).append(text)
        used = [*_first_words(short), *words_of_first_segments(long)]
        return tuple(sorted(used, key=lambda use: (use.by_chance - use.first, use.word, use.predicted))[:MOST_WORDS])

    def text_table(self, audit: Audit) -> TextTable:
        """The audited texts with every explanation, sortable by faithfulness and manipulability."""
        plan, work = self.plan, self.work
        rows = [
            ScoreColumn(
                method.name,
                "; ".join((method.tags.caption, method.reason)),
                is_visible=method.name in (audit.recommended or [method.name for method in audit.methods[:2]]),
                pooling=method.tags.pooling,
            )
            for method in audit.methods
        ]
        first = audit.methods[0].name
        composite = self._rules.composite
        metrics, head_maps = {}, dict[str, NDArray[np.floating]]()
        if first in composite and len(composite):
            share = TextMetric(f"share of the achievable: {first}", LEAST_FAITHFUL)
            metrics[share] = {str(uid): float(value) for uid, value in composite[first].items()}
        if recipes := work.recipes(ATTENTION_FINDINGS, kind=BlockAttention):
            head_maps = self._head_maps(recipes)
            attention = work.table(ATTENTION_FINDINGS, kind=BlockAttention)
            change = TextMetric("change when attention is permuted", MOST_MANIPULABLE, is_descending=True)
            metrics[change] = {
                str(uid): float(value) for uid, value in zip(attention["uid"], attention["median_change"], strict=True)
            }
        marked = {
            uid: [number for number, mark in enumerate(example.rationale or ()) if mark]
            for uid, example in work.marked_examples.items()
        }
        facts = {"model": plan.explainer.name, "data": plan.corpus.name}
        images = self._images(self.table["uid"].tolist())
        names = plan.explainer.class_names
        return tabulate_texts(work.scores, rows, facts, names, metrics, marked, head_maps, images)

    def _head_maps(self, recipes: Sequence[Recipe]) -> dict[str, NDArray[np.floating]]:
        """By uid the attention on words in each layer and head, without the padding of its block."""
        counts = dict(zip(self.table["uid"], self.table["words"], strict=True))
        artefacts = [self.work.workspace.get(recipe) for recipe in recipes]
        return {
            uid: maps[..., : counts[uid]].numpy()
            for artefact in artefacts
            for uid, maps in zip(artefact.table["uid"], artefact.tensors["head_maps"], strict=True)
        }

    def _evidence(self, work: FinishedWork) -> AuditEvidence:
        plan = self.plan
        methods = plan.answered
        return AuditEvidence(
            methods=tuple(methods),
            controls=frozenset(name for name, method in methods.items() if tags_of(method).is_control),
            erasure=self._erasure(work),
            blind=tuple(plan.blind),
            tables={question.name: question.read(work) for question in QUESTIONS},
            unasked={
                (question.name, name): question.unasked(plan, method) or plan.failure(question.name, name)
                for question in QUESTIONS
                for name, method in methods.items()
            },
            seconds={name: self.costs[label] for name in methods if (label := f"{name} scores") in self.costs},
            optimized_for={name: self._optimized_for(method) for name, method in methods.items()},
            tags={name: self._tags(method) for name, method in methods.items()},
            asked={question.name: work.count_asked(question) for question in QUESTIONS},
        )

    def _erasure(self, work: FinishedWork) -> dict[ErasureKey, pd.DataFrame]:
        tables = {name: work.erasures(name) for name in self.plan.scored}
        searched, random = work.searched, work.table(TOPICS[FAITHFUL], kind=BlockNull)
        by_key: dict[ErasureKey, pd.DataFrame] = {}
        for way in self.plan.ways:
            columns = {name: table[table["deletion"] == way].set_index("uid") for name, table in tables.items()}
            best, null = (table[table["deletion"] == way].set_index("uid") for table in (searched, random))
            for measure, sign in SIGNS.items():
                table = pd.DataFrame({name: frame[measure] for name, frame in columns.items()})
                # The search is a lower bound, and so is every explanation.
                table[BEST] = sign * pd.concat([sign * table, sign * best[measure]], axis=1).max(axis=1)
                by_key[measure, way] = table.assign(**{NULL: null[measure]})
        return by_key

    def _tags(self, method: Method) -> MethodTags:
        """The tags of a method; scores for a number cannot be those for another class."""
        tags = tags_of(method)
        return tags if self.plan.explainer.class_names else replace(tags, target_specific=True)

    def _optimized_for(self, method: Method) -> tuple[str, ...]:
        """The measures of this audit that a method computes itself."""
        measures: dict[str, str] = {}
        for measure in SIGNS:
            labels = {way: measure_label(Statistic(measure, subset=way)) for way in ("delete", *self.plan.ways)}
            measures |= {label: label for way, label in labels.items() if way in self.plan.ways}
            if self.plan.reads_images:  # a deleted patch of an image is blank
                measures[labels["delete"]] = labels["pad"]
        return tuple(measures[measure] for measure in tags_of(method).optimizes if measure in measures)

    def _failure(self, name: str, reference: str) -> FailureExample:
        """The text on which removing the method's highest words does least, compared with a better explanation."""
        # Half of the words, the last bin, are too many to be looked at.
        (erasures, drops), (other, other_drops) = self._drops(name), self._drops(reference)
        drops, other_drops = drops[:, :-1], other_drops[:, :-1] if reference != name else np.ones_like(drops)[:, :-1]
        row, size = (int(index) for index in np.unravel_index(int(np.nanargmax(other_drops - drops)), drops.shape))
        uid, count = str(erasures["uid"].tolist()[row]), int(erasures["counts"].tolist()[row][size])
        full = float(erasures["full"].tolist()[row])
        text = self.table[self.table["uid"] == uid]
        names, scores = self.plan.explainer.class_names, self.work.scores
        label = names[int(text["predicted"].tolist()[0])] if names else "the number"
        words = self._words(uid, scores[name])
        highest, gap = _removed(erasures, row, count), "; " if self.plan.reads_images else ", "
        named = [_short(words[word]) for word in highest]
        sentence = removal_sentence(name, named, label, full, full - drops[row, size], self.plan.noun)
        other_scores: list[float] = []
        if reference != name:
            other_scores = _cell(scores[reference], uid, "word_scores")
            better = gap.join(_short(words[word]) for word in _removed(other, row, count))
            sentence += f"; without those of {reference} ({better}), to {full - other_drops[row, size]:.2f}"
        return FailureExample(
            uid=uid,
            predicted=label,
            probability=float(text["probability"].tolist()[0]),
            words=tuple(words),
            scores=tuple(_cell(scores[name], uid, "word_scores")),
            highest=tuple(highest),
            sentence=f"{sentence}.",
            other_method=reference if other_scores else "",
            other_scores=tuple(other_scores),
            image="".join(map(png_base64, self._images([uid]).values())),
        )

    def _drops(self, name: str) -> tuple[pd.DataFrame, NDArray[np.float64]]:
        """The erasure table of a method under the first way of deletion, and the drop of the output by text and bin."""
        table = self.work.erasures(name)
        table = table[table["deletion"] == self.plan.ways[0]]
        removed = np.array(table["removed"].tolist(), dtype=np.float64)
        drops = table["full"].to_numpy(np.float64)[:, None] - removed
        # A bin without words, as short texts have, is none.
        return table, np.where(np.array(table["counts"].tolist()) > 0, drops, np.nan)

    def _words(self, uid: str, table: pd.DataFrame) -> list[str]:
        """The words, sentences or segments of a text that the model sees; of an image its patches as "row,column"."""
        if self.plan.reads_images:
            row = table.index.tolist().index(uid)
            units, scored = (table[name].tolist()[row] for name in ("units", "scored"))
            return [str(unit) for unit, is_scored in zip(units, scored, strict=True) if is_scored]
        words = self.work.examples[uid].words
        features: dict[int, list[str]] = {int(number): [] for number in _cell(table, uid, "word_numbers")}
        pairs = zip(_cell(table, uid, "words"), _cell(table, uid, "features"), strict=True)
        for word, feature in dict.fromkeys((int(word), int(feature)) for word, feature in pairs if word >= 0):
            features[feature].append(words[word] if word < len(words) else str(word))
        return [" ".join(run) for run in features.values()]

    def _images(self, uids: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
        """By uid the audited images; none if texts are audited."""
        if not self.plan.reads_images:
            return {}
        parts = {uid: self.work.examples[uid].parts[0] for uid in uids}
        return {uid: image_pixels(part) for uid, part in parts.items() if isinstance(part, Tensor)}

    def _audited_model(self) -> AuditedModel:
        notes, explainer = self._sample.notes, self.plan.explainer
        arithmetic = arithmetic_notes(self.work.workspace.device, explainer.precision)
        return AuditedModel(
            name=explainer.name,
            source=shown_path(explainer.source),
            architecture="; ".join((str(notes["architecture"]), *arithmetic)),
            outputs=explainer.class_names,
            tokenizer=type(explainer.tokenizer).__name__,
            unknown_words=float(str(notes["unknown words"])),
            truncated=int(str(notes["truncated"])) / max(1, int(str(notes["read"]))),
            digest=explainer.digest,
        )

    def _audited_data(self, texts: pd.DataFrame) -> AuditedData:
        corpus, names, notes = self.plan.corpus, self.plan.explainer.class_names, self._sample.notes
        right, labeled = (int(str(notes[name])) for name in ("right", "labeled"))
        columns = corpus.columns if isinstance(corpus, EvaluationTable) else None
        return AuditedData(
            name=corpus.name,
            source=shown_path(self.plan.source),
            columns={} if columns is None else columns.roles,
            rows=int(str(notes["rows"])),
            texts=len(texts),
            added=len(texts) - count_representative(texts["turn"]),
            accuracy=right / labeled if labeled and names else math.nan,
            labeled=labeled,
            rationales=sum(uid in self.work.marked_examples for uid in texts["uid"]),
            classes=class_counts(texts, names),
            notes=(
                *(() if columns is None else columns.notes),
                *note_lines(notes["corpus"]),
                *filter(None, [segment_note(texts, self.plan.sample.feature, self.plan.noun)]),
            ),
            digest=corpus.digest(self.work.workspace.data_dir),
            noun=self.plan.noun,
            assumptions=assumptions(corpus, right, labeled, names),
            feature=self.plan.sample.feature,
            segmented=int((texts["features"] < texts["words"]).sum()),
        )


NEVER_PREDICTED = "classes that are never predicted"
MOST_CLASSES = 20
"""Predicted classes that have answers of their own."""
MOST_NAMED = 5
"""Classes that are named in a sentence."""
MAX_NAMED = 45
"""Characters of a segment that is named in a sentence."""
BEST_DROP = "fall of the output without the best words found"
MOST_WORDS = 12
"""Words that are listed as used by the model."""
LEAST_TEXTS = 3
"""Texts whose first segment must have a word that is listed."""
BY_CHANCE = 0.01
"""Probability that any word is listed that is in first segments by chance."""
BELOW_CHANCE = 0.001
"""Probability of so few right predictions by chance, below which the order of the labels is doubtful."""
MAX_IMAGE_SIDE = 96
"""Pixels of an image that is shown."""


@dataclass(frozen=True)
class RankedText:
    """The words of a text in the runs that were explained, and the run that is ranked first for the predicted class.

    Args:
        first: its number; None if no score is positive.
    """

    predicted: str
    runs: Sequence[Sequence[str]]
    first: int | None


def _first_words(texts: Sequence[RankedText]) -> list[WordUse]:
    """The words that are ranked first in two texts or more, of texts that are explained word by word."""
    counts = Counter((text.runs[text.first][0], text.predicted) for text in texts if text.first is not None)
    texts_with = Counter((word, text.predicted) for text in texts for word in {run[0] for run in text.runs})
    return [WordUse(*use, count, texts_with[use]) for use, count in counts.items() if count > 1]


def words_of_first_segments(texts: Sequence[RankedText]) -> list[WordUse]:
    """The words that are in the segment ranked first in clearly more texts than by chance.

    By chance, the places of a word in a text of n words are random: a segment of m words has one of its k places with
    probability 1 - C(n - k, m) / C(n, m). The number of texts is Poisson binomial; error `BY_CHANCE` for all words.
    """
    chances, counts = dict[tuple[str, str], list[float]](), Counter[tuple[str, str]]()
    texts_with = Counter[tuple[str, str]]()
    for text in texts:
        places = Counter(word for run in text.runs for word in run)
        texts_with.update((word, text.predicted) for word in places)
        if text.first is None:
            continue
        segment = text.runs[text.first]
        counts.update((word, text.predicted) for word in {*segment})
        for word, number in places.items():
            missed = math.comb(places.total() - number, len(segment)) / math.comb(places.total(), len(segment))
            chances.setdefault((word, text.predicted), []).append(1 - missed)
    tested = [use for use, shares in chances.items() if len(shares) >= LEAST_TEXTS]
    return [
        WordUse(*use, counts[use], texts_with[use], math.fsum(chances[use]))
        for use in tested
        if counts[use] >= LEAST_TEXTS and poisson_binomial_tail(chances[use], counts[use]) <= BY_CHANCE / len(tested)
    ]


def _of_class(answer: Finding, label: str) -> Finding:
    """An answer on the texts of one class, with the share of the achievable only."""
    share = replace(answer.statistic, subset=f"predicted {label}")
    return replace(answer, evidence=(share,))


def _smallest_drops(erasure: Mapping[ErasureKey, pd.DataFrame]) -> pd.Series:
    """How much the output of each text falls without the best words found, by the way of deletion where it is less."""
    columns = [table[BEST] for (measure, _), table in erasure.items() if measure == "comprehensiveness"]
    return pd.concat(columns, axis=1).min(axis=1)


def image_pixels(image: Tensor) -> NDArray[np.uint8]:
    """An image `[channel height width]` in [0, 1] as bytes `[height width 3]`; a large one is made smaller."""
    height, width = image.shape[1:]
    factor = max(1.0, max(height, width) / MAX_IMAGE_SIDE)
    small = adaptive_avg_pool2d(image, (max(1, round(height / factor)), max(1, round(width / factor))))
    colors = small if len(small) == 3 else small.mean(0, keepdim=True).expand(3, -1, -1)
    pixels: NDArray[np.uint8] = (255 * colors.clamp(0, 1)).round().byte().permute(1, 2, 0).contiguous().numpy()
    return pixels


def class_counts(table: pd.DataFrame, names: Sequence[str]) -> dict[str, int]:
    """Number of texts by predicted class."""
    if not names:
        return {"numbers": len(table)}
    counts = table["predicted"].value_counts()
    return {name: int(counts.get(index, 0)) for index, name in enumerate(names)}


def segment_note(table: pd.DataFrame, feature: Feature, noun: str = "texts") -> str:
    """How many texts were not explained word by word, and how long their segments are; empty if there are none.

    >>> segment_note(pd.DataFrame({"words": [9, 100, 60], "features": [9, 20, 20]}), "segment")
    '2 of 3 texts have more than 40 words and are explained by segments of about 4 words'
    """
    long = table[table["features"] < table["words"]]
    if long.empty:
        return ""
    size = round(long["words"].sum() / long["features"].sum())
    which = f"have more than {MAX_WORDS} words and " if feature == "segment" else ""
    return f"{len(long)} of {len(table)} {noun} {which}are explained by {feature}s of about {size} words"


def explained_units(data: AuditedData) -> tuple[str, str]:
    """What has a score in the audited texts or images, one and several of them."""
    unit, several = UNITS[data.noun]
    if not data.segmented:
        return unit, several
    if data.segmented == data.texts:
        return data.feature, f"{data.feature}s"
    return f"{unit} or {data.feature}", f"{several} or {data.feature}s"


def assumptions(corpus: Corpus, right: int, labeled: int, outputs: Sequence[str]) -> tuple[str, ...]:
    """What was assumed about the columns and labels of the data, and whether the labels contradict the model.

    Args:
        right: predictions of the texts that were drawn that are their labels, of which there are `labeled`.
    """
    stated = corpus.columns.assumptions if isinstance(corpus, EvaluationTable) else ()
    # A model that is right less often than by chance usually has its outputs in another order.
    if not outputs or not labeled or binomtest(right, labeled, 1 / len(outputs), "less").pvalue >= BELOW_CHANCE:
        return stated
    return (
        *stated,
        f"the labels are those of the outputs, although only {right} of {labeled} are predicted, less "
        "than by chance: labels and outputs may be in another order",
    )


def _short(text: str) -> str:
    """A segment as it is named in a sentence.

    >>> _short("a very long segment of a very long text, which nobody reads")
    'a very long segment of a very long text...'
    """
    return textwrap.shorten(text, MAX_NAMED, placeholder="...") if " " in text else text


def _bare_word(word: str) -> str:
    """A word in lower case without the punctuation around it; as it is if there is nothing else.

    >>> _bare_word("Friday,"), _bare_word("n't"), _bare_word("...")
    ('friday', "n't", '...')
    """
    return re.sub(r"^\W+|\W+$", "", word.lower()) or word


def _cell(table: pd.DataFrame, uid: str, column: str) -> list[float]:
    """The list of numbers of one text."""
    return [float(value) for value in table[column].tolist()[table.index.tolist().index(uid)]]


def _removed(erasure: pd.DataFrame, row: int, count: int) -> list[int]:
    """The words that were removed from one text: those with the highest scores, ties as they were broken."""
    return [int(word) for word in erasure["order"].tolist()[row][:count]]


def note_lines(notes: Json) -> list[str]:
    """The notes of a corpus or a tokenizer, one line each."""
    if not isinstance(notes, dict):
        return []
    return [f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}" for name, value in notes.items()]
