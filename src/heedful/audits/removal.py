"""A third way of removal that no method uses, and how far each way of removal leads from real texts.

Words are replaced by words of other texts of the same data (`attributions.infill`). What holds under deletion and
masks, which some methods optimize, must hold there as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.attention import is_self_attention, row_weights
from heedful.attributions.infill import Infill, WordPool, draw_infill
from heedful.attributions.method import (
    Baseline,
    baseline_vectors,
    example_seeds,
    expand_to_units,
    feature_counts,
    feature_index,
    replace_units,
)
from heedful.audits.best_explanation import word_erasure
from heedful.audits.evidence import (
    BlockAttributions,
    BlockNull,
    BlockSearch,
    TextSample,
    read_block,
    representative_uids,
)
from heedful.audits.random_orders import random_order_scores
from heedful.audits.topics import Question, Role
from heedful.audits.verdict_rules import BEST, NULL, Rules, Thresholds, WayShare, defined
from heedful.data.tokenization import with_breaks
from heedful.formatting import format_share
from heedful.measures.bounded_mean import mean_interval
from heedful.results import Finding, Statistic, Verdict
from heedful.seeding import random_permutations
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.workspace import Workspace
from heedful.training.trainer import inference_batches
from heedful.trials.faithfulness import FeatureOutputs
from heedful.types import Batch, Method, Model, NotApplicable

if TYPE_CHECKING:  # both import this module
    from heedful.audits.work_list import AuditPlan, FinishedWork

INFILL = "infill"
"""The way of removal, and the question that it answers."""
DRAWS = 3
"""Other words that are filled in for each word, one after the other; the outputs are averaged."""
POOL_TEXTS = 200
"""The words of so many texts may be filled in."""
INFILL_TEXTS = 28
"""The first texts, whose words are replaced; faithfulness needs about as many."""
REAL_TEXTS = 50
"""Real texts, among which the distance of perturbed ones is judged."""
REAL_SHARE = 0.95
"""A perturbed text is far from real ones if this share of them are closer to their nearest neighbor."""
STATES_AT_ONCE = 8
"""Texts whose attention matrices are in memory together."""
FAR = "texts farther from real ones than 95 % of these"
NO_INFILL = "images have no words of other images to be filled in"


@dataclass(frozen=True)
class InfillWords(Recipe):
    """The words of the first texts of a sample, as often as they occur, to be filled in elsewhere."""

    kind: ClassVar[str] = "audit words"

    sample: TextSample
    texts: int = POOL_TEXTS

    def make(self, workspace: Workspace) -> Artefact:
        """Token ids, word numbers and mask of the texts `[text unit]`, with their uids."""
        loaded = self.sample.subject.restore(workspace)
        wanted = representative_uids(self.sample, self.texts, workspace)
        by_uid = {example.uid: example for example in loaded.splits["test"] if example.uid in {*wanted}}
        batch = loaded.tokenizer([by_uid[uid] for uid in wanted])
        if batch.inputs.dim() > 2:
            raise NotApplicable(NO_INFILL)
        tensors = {"inputs": batch.inputs, "mask": batch.mask, "segments": batch.segments, "words": batch.words}
        return Artefact(tensors, pd.DataFrame({"uid": list(batch.uids)}))

    def pool(self, workspace: Workspace) -> WordPool:
        """The stored words."""
        artefact = workspace.get(self)
        inputs, mask, segments, words = (artefact.tensors[name] for name in ("inputs", "mask", "segments", "words"))
        return WordPool.of_texts(Batch(tuple(artefact.table["uid"]), inputs, mask, segments, words))


@dataclass(frozen=True)
class BlockInfill(Recipe):
    """How much the outputs of a block fall when the words that an order names first are replaced by other words.

    Args:
        source: the order of the scores of a method; the orders that the search found, one for each way of deletion; or
            random orders in pairs of one and its reverse.
    """

    kind: ClassVar[str] = "audit infill"
    revision: ClassVar[int] = 2

    source: BlockAttributions | BlockSearch | BlockNull
    words: InfillWords

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and order with the comprehensiveness, and whether the order is a random one."""
        sample = self.source.sample
        block = read_block(sample, self.source.block, workspace)
        batch, target = block.batch, block.target
        scores = self._scores(workspace, batch).to(target.device)
        infill = draw_infill(batch, self.words.pool(workspace), sample.seed, DRAWS)
        evaluate = word_erasure("delete", sample.seed, sample.feature)
        ranks = evaluate.ranks(batch, scores)
        sizes = evaluate.sizes(feature_counts(feature_index(batch, sample.feature)))
        kept = (ranks.unsqueeze(2) >= sizes.unsqueeze(-1)).transpose(0, 1).flatten(1, 2)
        kept = torch.cat((torch.ones_like(kept[:, :1]), kept), 1)
        outputs, _ = FeatureOutputs(block.loaded.model, batch, target, infill, sample.feature)(kept)
        drops = (outputs[:, :1] - outputs[:, 1:]).reshape(len(batch), len(scores), -1)
        counted = (sizes > 0).unsqueeze(1)
        means = (drops * counted).sum(2) / counted.sum(2).clamp(min=1)
        columns = {"uid": list(batch.uids) * len(scores), "comprehensiveness": means.t().flatten().tolist()}
        return Artefact(table=pd.DataFrame(columns).assign(is_random=isinstance(self.source, BlockNull)))

    def _scores(self, workspace: Workspace, batch: Batch) -> Tensor:
        """Scores of the words `[order batch word]`, higher for those that come first."""
        sample = self.source.sample
        if isinstance(self.source, BlockNull):
            return random_order_scores(batch, sample.seed, feature=sample.feature)
        table = workspace.get(self.source).table
        width = max(1, int(feature_counts(feature_index(batch, sample.feature)).max()))
        if isinstance(self.source, BlockAttributions):
            rows = [list(row) for row in table["word_scores"]]
        else:
            rows = [_order_scores(list(order), width) for order in table["order"]]
        scores = torch.zeros(len(rows), width, dtype=torch.float64)
        for number, row in enumerate(rows):
            scores[number, : len(row)] = torch.tensor(row, dtype=torch.float64)
        return scores.reshape(-1, len(batch), width)


def _order_scores(order: Sequence[int], words: int) -> list[float]:
    """Scores of words by their place in an order.

    >>> _order_scores([2, 0], 4)
    [1.0, 0.0, 2.0, 0.0]
    """
    scores = [0.0] * words
    for place, word in enumerate(order):
        scores[word] = float(len(order) - place)
    return scores


@dataclass(frozen=True)
class PerturbedDistances(Recipe):
    """How far texts without half of their words are from real texts, in the state that the head of the model reads.

    Each of the first texts loses half of its words at random, the same ones under every way of removal. A perturbed
    text is compared with all real texts but its own; real texts with all others.
    """

    kind: ClassVar[str] = "audit distances"

    sample: TextSample
    ways: tuple[Baseline, ...]
    words: InfillWords | None
    texts: int = REAL_TEXTS

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and way, and one for the text as it is ("real"): its distance from the nearest real text.

        The column `far` says whether it is farther than `REAL_SHARE` of the real texts are. The note `refusal` says why
        there are no distances.
        """
        loaded = self.sample.subject.restore(workspace)
        wanted = representative_uids(self.sample, self.texts, workspace)
        by_uid = {example.uid: example for example in loaded.splits["test"] if example.uid in {*wanted}}
        model, states = loaded.model, dict[str, list[Tensor]]()
        pool = None if self.words is None else self.words.pool(workspace)
        examples, order = [by_uid[uid] for uid in wanted], list[Tensor]()
        batch = with_breaks(loaded.tokenizer(examples), examples)
        for rows, cpu_texts in inference_batches(batch, STATES_AT_ONCE):
            order.append(rows)
            texts = cpu_texts.to(workspace.device)
            for way, (perturbed, embeddings) in self.perturbed(model, texts, pool).items():
                found = deciding_states(model, perturbed, embeddings)
                if not found.shape[1]:
                    return Artefact(notes={"refusal": "the model shows no hidden states"})
                states.setdefault(way, []).append(found.cpu())
        places = torch.cat(order).argsort()
        return Artefact(table=distance_table(wanted, {way: torch.cat(parts)[places] for way, parts in states.items()}))

    def perturbed(self, model: Model, texts: Batch, pool: WordPool | None) -> dict[str, tuple[Batch, Tensor | None]]:
        """The texts as they are and without half of their words, with embeddings where these are what is replaced."""
        index = feature_index(texts, self.sample.feature)
        counts = feature_counts(index)
        present = torch.arange(max(1, int(counts.max())), device=index.device) < counts.unsqueeze(1)
        shuffled = random_permutations(example_seeds("halved", self.sample.seed, texts), 1, present)[:, 0]
        ranks = torch.empty_like(shuffled).scatter_(
            1, shuffled, torch.arange(shuffled.shape[1], device=index.device).expand_as(shuffled)
        )
        removed = expand_to_units((ranks < (counts // 2).unsqueeze(1)).unsqueeze(1), index)[:, 0]
        found: dict[str, tuple[Batch, Tensor | None]] = {REAL: (texts, None)}
        for way in self.ways:
            is_zeroed = way == "zero"
            vectors = baseline_vectors(model, texts, way, removed) if is_zeroed else None
            found[way] = (texts if is_zeroed else replace_units(texts, removed, way), vectors)
        if pool is not None:
            infill: Infill = draw_infill(texts, pool, self.sample.seed, 1)
            found[INFILL] = (replace(texts, inputs=torch.where(removed, infill.ids[0], texts.inputs)), None)
        return found


REAL = "real"
"""The texts as they are."""


@torch.no_grad()
def deciding_states(model: Model, batch: Batch, embeddings: Tensor | None = None) -> Tensor:
    """The last hidden state that the head of a model reads, `[batch dim]` in float64; of width 0 without hidden states.

    Of a transformer the state of its deciding row; of a pooled model the mean of its states, weighted by attention.
    """
    trace = model(batch, embeddings=embeddings)
    if is_self_attention(trace.attention, batch):
        weights = row_weights(batch, "class", batch.mask.shape[1], model.deciding_row)
    else:
        weights = trace.attention.double().mean((1, 2, 3))
    return torch.einsum("bu,bud->bd", weights.to(trace.hidden.device), trace.hidden.double())


def distance_table(uids: Sequence[str], states: dict[str, Tensor]) -> pd.DataFrame:
    """A row per text and way with the distance from the nearest other real text, and whether that is far."""
    real = states[REAL]
    own = torch.eye(len(real), dtype=torch.bool)
    nearest = {way: torch.cdist(rows, real).masked_fill(own, math.inf).amin(1) for way, rows in states.items()}
    limit = torch.quantile(nearest[REAL], REAL_SHARE)
    return pd.DataFrame(
        {
            "uid": [uid for _ in nearest for uid in uids],
            "way": [way for way in nearest for _ in uids],
            "distance": torch.cat([*nearest.values()]).tolist(),
            "far": (torch.cat([*nearest.values()]) > limit).tolist(),
        }
    )


class HoldsUnderInfill(Question):
    """Erasures by words of other texts in the order of the scores, and in the orders that the search found."""

    name = INFILL
    label = "holds under infill"
    title = "Does it hold when words are replaced by words of other texts?"
    measured = (
        "The words that the explanation ranks highest are replaced by words of other texts of the data, drawn by their "
        "frequency, with the same number of tokens, three times; the outputs are averaged. The number is how much the "
        "prediction falls, between random scores (0 %) and the best order known (100 %): of the audited methods and of "
        "those that the search found under the other ways of removal."
    )
    null = "Random scores on the same texts, text by text."
    rule = (
        "By the rule of faithfulness, under this way of removal alone: supported if better than random scores and "
        "clearly above 10 % of the best order known; not supported if clearly worse than random scores, or clearly "
        "below 10 %. No method optimizes this way of removal: one that clearly fails here is good only at the removal "
        "that it was tuned to, and must not be shown alone."
    )
    limits = (
        "Words that are filled in may speak for or against the prediction themselves. No search was made under this "
        "way of removal, so that a better order may exist, and 100 % is a lower bound of what is achievable."
    )
    references = ("deyoung-2020", "hase-2021", "hsia-2024", "basu-2026")
    axis = "% of the best order known"
    role = Role.DESIRED
    is_share = True
    cost = 1 / 20
    optional = (PerturbedDistances,)
    texts = INFILL_TEXTS
    column = "under infill"
    meaning = "share of the best order known when words are replaced by words of other texts"

    def work(self, plan: AuditPlan, block: int) -> Iterator[tuple[str, Recipe]]:
        words = None if plan.reads_images else InfillWords(plan.sample)
        if block == 0:
            yield "", PerturbedDistances(plan.sample, plan.ways, words)
        if words is not None:
            yield "", BlockInfill(BlockSearch(plan.sample, block, plan.ways), words)
            yield "", BlockInfill(BlockNull(plan.sample, block, plan.ways), words)
            for name, method in plan.answered.items():
                yield name, BlockInfill(BlockAttributions(plan.sample, method, block), words)

    def read(self, work: FinishedWork) -> pd.DataFrame:
        """A column per method, `NULL` and `BEST`: the comprehensiveness of each text."""
        columns = {}
        for name in work.plan.answered:
            rows = work.table(self, name, BlockInfill)
            columns[name] = rows.set_index("uid")["comprehensiveness"] if len(rows) else pd.Series(dtype=float)
        table, others = pd.DataFrame(columns), work.table(self, kind=BlockInfill)
        if table.empty or others.empty:
            return pd.DataFrame()
        orders = others.groupby(["is_random", "uid"])["comprehensiveness"]
        best, null = orders.max()[False].reindex(table.index), orders.mean()[True].reindex(table.index)
        return table.assign(**{BEST: pd.concat([table, best], axis=1).max(axis=1), NULL: null})

    def unasked(self, plan: AuditPlan, method: Method) -> str:
        return NO_INFILL if plan.reads_images else ""

    def threshold(self, thresholds: Thresholds) -> float:
        return thresholds.least_share

    def judge(self, rules: Rules) -> Rules | None:
        """The rules of faithfulness for this way of removal alone; None without numbers."""
        table = rules.table(self.name)
        if NULL not in table:
            return None
        evidence = replace(rules.evidence, blind=(), erasure={("comprehensiveness", INFILL): table})
        return Rules(evidence, rules.alpha, rules.thresholds)

    def answers(self, rules: Rules) -> dict[str, Finding]:
        judge = self.judge(rules)
        if judge is None:
            return {name: rules.not_asked(self.name, name) for name in rules.evidence.methods}
        answers = {name: self._answer(judge, answer) for name, answer in judge.faithful().items()}
        return self.in_all_texts(answers, rules)

    def _answer(self, judge: Rules, answer: Finding) -> Finding:
        """The answer in words of its own."""
        share = answer.statistic
        if not share.n:
            return Finding(Verdict.NOT_TESTED, answer.method, reason="no text gave a number", question=self.name)
        how = {
            Verdict.SUPPORTED: "better than random scores",
            Verdict.NOT_SUPPORTED: f"worse than random scores, or below {format_share(share.null)}",
        }.get(answer.verdict, "not clearly better than random scores")
        reason = f"{how} when words are replaced by those of other texts"
        reason += f"; reaches {format_share(share.value)} of the best order known"
        return replace(answer, question=self.name, evidence=(replace(share, subset=INFILL),), reason=reason)

    def shares(self, rules: Rules) -> dict[str, WayShare]:
        """The share of the best order known of each method, with its tier."""
        judge = self.judge(rules)
        return {} if judge is None else judge.by_way().get(INFILL, {})

    def distances(self, work: FinishedWork, alpha: float) -> tuple[Statistic, ...]:
        """By way of removal, the share of texts without half of their words that are far from real texts."""
        table = work.table(self, kind=PerturbedDistances)
        rows = []
        for way in dict.fromkeys(table["way"]) if "way" in table else ():
            if way != REAL:
                far = defined(table.loc[table["way"] == way, "far"].astype(float))
                interval = mean_interval(far, 0.0, 1.0, alpha)
                rows.append(Statistic(FAR, "", str(way), *interval, len(far), null=1 - REAL_SHARE))
        return tuple(rows)

    def untested(self, work: FinishedWork) -> dict[str, str]:
        refusals = [work.workspace.get(recipe).notes for recipe in work.recipes(self, kind=PerturbedDistances)]
        failed = work.plan.failure(self.name, "")
        reasons: list[Json] = [notes["refusal"] for notes in refusals if "refusal" in notes] + (
            [failed] if failed else []
        )
        return {"distance from real texts": str(reasons[0])} if reasons else {}
