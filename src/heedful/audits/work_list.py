"""The one list of work of an audit: what each question needs for each block of texts, and the finished part of it.

`AuditPlan.block_work` is planned, run and timed; `FinishedWork` reads the same items back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import pandas as pd

from heedful.attributions.controls import PermutedAttention, Random
from heedful.attributions.method import Baseline
from heedful.audits.blind_scores import BLIND_RULES, BlindScores
from heedful.audits.evidence import (
    BlockAttributions,
    BlockErasure,
    BlockSearch,
    TextSample,
    block_range,
    concatenate,
    read_block,
)
from heedful.audits.external_attributions import ExternalAttributions
from heedful.audits.questions import TOPICS
from heedful.audits.rare_classes import count_representative, texts_with
from heedful.audits.topics import Topic
from heedful.audits.verdict_rules import FAITHFUL
from heedful.explainer import Explainer
from heedful.models.transformer import TransformerModel
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.trials.simulability import Simulability
from heedful.types import Corpus, Example, Method

CONTROL_METHODS: Mapping[str, Method] = {"random": Random(seed=1_000_003), "permuted-attention": PermutedAttention()}
COPY = "random copy"
"""The cost of a copy of the model with random weights."""
NO_STUDENTS = "that needs students that are trained: give texts for them (--train-data FILE)"


@dataclass(frozen=True)
class WorkItem:
    """One recipe, and the question, method and block it is for; `method` is "" where it is for none."""

    recipe: Recipe
    topic: Topic
    method: str
    block: int

    @property
    def is_main(self) -> bool:
        """Whether nothing can be said about a block without it."""
        return self.topic.name == FAITHFUL

    @property
    def label(self) -> str:
        """Work of the same label takes the same time for a text."""
        return f"{self.method} scores" if isinstance(self.recipe, BlockAttributions) else self.recipe.kind

    @property
    def timed_as(self) -> str:
        """The label of the cost that its time tells: of scores of a random copy, that of the copy."""
        return self.label if self.randomized is None else COPY

    @property
    def randomized(self) -> int | None:
        """The place of the only text that it is for, which a random copy of the model reads; None for all others."""
        return self.recipe.randomized if isinstance(self.recipe, BlockAttributions) else None

    def seconds(self, costs: Mapping[str, float]) -> float:
        """The seconds that it takes for a text, by the label of what was timed."""
        return costs.get(self.label, self.topic.cost * costs.get(BlockSearch.kind, 0.0))


@dataclass
class AuditPlan:
    """What is audited, by which methods; methods and pieces of work that fail are left out as the audit goes on.

    Args:
        source: where the data are from, as the user wrote it.
        methods: audited methods by name, without controls.
        students: a trial of students, or why there is none.
        ways: ways of deletion.
        left_out: methods and questions that were left out, with the reason.
        turns: of each text of the sample, its place in the order that represents the data.
        refused: why a question cannot be asked of a method, by question and method.
        failed: pieces of work that failed and that the question goes on without, with the reason, by both as well.
    """

    explainer: Explainer
    corpus: Corpus
    source: str
    sample: TextSample
    methods: dict[str, Method]
    students: Simulability | str = NO_STUDENTS
    ways: tuple[Baseline, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    turns: pd.Series = field(default_factory=partial(pd.Series, dtype=int))
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[tuple[str, str], dict[Recipe, str]] = field(default_factory=dict)

    def first_texts(self, representative: float) -> float:
        """How many of the first texts of the sample hold so many that represent the data."""
        is_known = math.isfinite(representative) and len(self.turns)
        return texts_with(self.turns, int(representative)) if is_known else representative

    def represents(self, place: int) -> bool:
        """Whether the text at a place of the sample represents the data as soon as those before it are examined."""
        turns = self.turns[: place + 1]
        return not len(self.turns) or (len(turns) > place and turns.iloc[place] < count_representative(turns))

    @property
    def reads_images(self) -> bool:
        """Whether images are audited, in place of texts."""
        return self.explainer.reads_images

    @property
    def noun(self) -> str:
        """What is audited."""
        return "images" if self.reads_images else "texts"

    @cached_property
    def has_weights(self) -> bool:
        """Whether there are weights to randomize: a model may wrap something else, such as a scikit-learn pipeline."""
        return next(self.explainer.model.parameters(), None) is not None

    @property
    def answered(self) -> dict[str, Method]:
        """The methods that the questions are asked of: the audited ones and the controls."""
        return {**self.methods, **{name: each for name, each in CONTROL_METHODS.items() if name not in self.left_out}}

    @property
    def blind(self) -> dict[str, Method]:
        """Orders that ignore the model, which every explanation must beat; images have none."""
        rules = () if self.reads_images else (rule for rule in BLIND_RULES if rule not in self.left_out)
        return {rule: BlindScores(rule, self.sample.feature) for rule in rules}

    @property
    def scored(self) -> dict[str, Method]:
        """The methods that have scores, model-blind orders included."""
        return {**self.answered, **self.blind}

    @property
    def recomputable(self) -> dict[str, Method]:
        """The methods whose scores can be computed for other models and texts."""
        return {name: each for name, each in self.answered.items() if not isinstance(each, ExternalAttributions)}

    def deletion_ways(self, workspace: Workspace) -> tuple[Baseline, ...]:
        """Two ways of deletion: close the gap, and the best replacement token that the tokenizer has."""
        if self.explainer.reads_images:
            model = self.explainer.model
            # Where embeddings are the pixels themselves, both ways are the same.
            is_same = isinstance(model, TransformerModel) and model.embeddings_at == "pixels"
            return ("pad",) if is_same or model.embedding_refusal is not None else ("pad", "zero")
        block = read_block(self.sample, 0, workspace)
        replacement: Baseline = "pad"
        if block.batch.mask_id is not None:
            replacement = "mask"
        elif block.batch.unk_id is not None:
            replacement = "unk"
        return ("delete", replacement)

    def refuse(self, item: WorkItem, reason: str) -> None:
        """Go on without work that fails: this piece, the question for one method, or altogether if it is for none."""
        if isinstance(item.recipe, item.topic.optional):
            self.failed.setdefault((item.topic.name, item.method), {})[item.recipe] = reason
        elif item.method:
            self.refused.setdefault((item.topic.name, item.method), reason)
        else:
            self.left_out.setdefault(item.topic.name, reason)

    def failure(self, topic: str, method: str) -> str:
        """Why a question was not asked of a method, or not of all texts; empty if nothing failed."""
        pieces = self.failed.get((topic, method), {})
        return self.refused.get((topic, method)) or next(iter(pieces.values()), "")

    def is_left_out(self, item: WorkItem) -> bool:
        """Whether the method, the question or this piece of some work was left out since it was planned."""
        names, key = {item.method, item.topic.name}, (item.topic.name, item.method)
        return bool(names & self.left_out.keys()) or key in self.refused or item.recipe in self.failed.get(key, ())

    def block_work(self, block: int) -> Iterator[WorkItem]:
        """Everything that is done for one block, the most informative first."""
        for topic in TOPICS.values():
            if topic.is_asked(block, self.first_texts(topic.texts)) and topic.name not in self.left_out:
                items = (WorkItem(recipe, topic, method, block) for method, recipe in topic.work(self, block))
                yield from (item for item in items if not self.is_left_out(item))


@dataclass(frozen=True)
class FinishedWork:
    """The finished work of an audit, by question and method.

    Args:
        main: blocks whose scores and erasures are finished.
        full: those of them where the work of all questions is.
        whole: the work on all texts, where this is that on some of them; `uids` are these.
    """

    plan: AuditPlan
    workspace: Workspace
    main: Sequence[int]
    full: Sequence[int]
    whole: FinishedWork | None = None
    uids: frozenset[str] = frozenset()

    def restricted(self, uids: Iterable[str]) -> FinishedWork:
        """The same work on some of the texts."""
        return replace(self, whole=self, uids=frozenset(uids))

    @cached_property
    def _tables(self) -> dict[tuple[str, str, str], pd.DataFrame]:
        """What was read from the workspace, by question, method and kind of recipe."""
        return {}

    @cached_property
    def _recipes(self) -> dict[tuple[str, str, str], list[Recipe]]:
        recipes: dict[tuple[str, str, str], list[Recipe]] = {}
        for block in self.main:
            for item in self.plan.block_work(block):
                if item.is_main or block in self.full:
                    recipes.setdefault((item.topic.name, item.method, item.recipe.kind), []).append(item.recipe)
        return recipes

    def count_asked(self, topic: Topic) -> int:
        """The texts that represent the data of which a question was asked."""
        first, turns = self.plan.first_texts(topic.texts), self.plan.turns[: block_range(self.main[-1]).stop]
        blocks = (block_range(block) for block in self.full if topic.is_asked(block, first))
        held = turns < count_representative(turns)
        return sum(int(held[texts.start : texts.stop].sum()) for texts in blocks)

    def recipes(self, topic: Topic, method: str = "", kind: type[Recipe] = BlockAttributions) -> Sequence[Recipe]:
        """The recipes of one kind that a question has for a method, one per block or text."""
        return self._recipes.get((topic.name, method, kind.kind), ())

    def table(self, topic: Topic, method: str = "", kind: type[Recipe] = BlockAttributions) -> pd.DataFrame:
        """The tables of these recipes one below the other; scores are indexed by uid."""
        if self.whole is not None:
            table = self.whole.table(topic, method, kind)
            return table[table.get("uid", table.index).isin(self.uids)]
        key = topic.name, method, kind.kind
        if key not in self._tables:
            self._tables[key] = concatenate(self.recipes(topic, method, kind), self.workspace)
        table = self._tables[key]
        return table.set_index("uid") if kind is BlockAttributions and len(table) else table

    @cached_property
    def scores(self) -> dict[str, pd.DataFrame]:
        """The scores of each method, by uid."""
        return {name: self.table(TOPICS[FAITHFUL], name) for name in self.plan.answered}

    @cached_property
    def searched(self) -> pd.DataFrame:
        """What the search for the best explanation found: a row per text and way of deletion."""
        return self.table(TOPICS[FAITHFUL], kind=BlockSearch)

    def erasures(self, method: str) -> pd.DataFrame:
        """What the erasures of a method gave: a row per text and way of deletion."""
        return self.table(TOPICS[FAITHFUL], method, BlockErasure)

    @cached_property
    def examples(self) -> dict[str, Example]:
        """All texts of the corpus by uid."""
        if self.whole is not None:
            return self.whole.examples
        return {example.uid: example for example in self.plan.corpus.read(self.workspace.data_dir)["test"]}

    @cached_property
    def marked_examples(self) -> dict[str, Example]:
        """The texts with marked words by uid."""
        return {uid: example for uid, example in self.examples.items() if any(example.rationale or ())}
