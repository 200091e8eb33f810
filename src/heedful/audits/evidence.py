"""The work of an audit as recipes: one piece per method and block of texts, stored and never made twice.

The texts are drawn once, in an order in which every beginning is a random sample stratified by predicted class, and cut
into blocks. More time means more blocks; a finished block is never looked at again, and all methods see the same texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from heedful.attributions.controls import randomize_weights
from heedful.attributions.method import (
    Baseline,
    Feature,
    feature_counts,
    feature_index,
    feature_owners,
    method_name,
    option_values,
    tags_of,
)
from heedful.audits.best_explanation import BestErasure, search_best_erasure, word_erasure
from heedful.audits.blind_scores import BlindScores, document_counts
from heedful.audits.external_attributions import ExternalAttributions
from heedful.audits.random_orders import RandomErasure, random_erasure
from heedful.audits.rare_classes import missing_texts, take_rare_classes
from heedful.capabilities import ExposesLayers, mean_over_queries
from heedful.data.subwords import N_CHECKED_TEXTS
from heedful.data.tokenization import with_breaks
from heedful.measures.erasure import ErasureOutputs
from heedful.measures.rank_correlation import spearman
from heedful.models.attentive import AttentiveModel
from heedful.store.recipe import Artefact, Json, Recipe, added_field, derive_seed, to_json
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import attribution_rows
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trainer import device_batches
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversary_search import AdversarySearchSettings
from heedful.trials.permutation import Permutation
from heedful.types import (
    Attribution,
    Batch,
    Example,
    Method,
    Model,
    SupportsPreparation,
    Tokenizer,
    UserError,
    pool_by_word,
)

POOL_SIZE = 1000
"""Texts that are read to draw the sample; of a larger file as many are drawn at random first."""
FURTHER_POOLS = 2
"""So many times as many texts are read, at most, to find those of classes that are predicted rarely; of long texts
fewer, see `pool_size`."""
READ_AT_ONCE = 100
"""Further texts that are read together."""
POOL_WORDS, MIN_POOL = 40_000, 200
"""Of long texts fewer are read to draw the sample: so many words, but not fewer than so many texts."""
FIRST_BLOCKS: tuple[int, ...] = (1, 2, 4, 8, 12)
"""Where the first blocks end; from the very first one the time of the others is estimated."""
BLOCK_TEXTS = 8
"""Texts of every other block. All methods finish a block before the next one, so small blocks lose little when the time
is up; a recipe takes some hundredths of a second to be stored."""
MIN_WORDS = 3
"""A text of fewer words, or sentences where these are explained, has no order of them to speak of."""
MAX_EDIT_CHANGE = 0.05
"""Largest change of the predicted probability under an edit that counts as tiny."""
N_TYPOS = 3
_PERMUTATIONS = 10
TRANSFORMER_SEARCH = AdversarySearchSettings(steps=100)
"""The search for other attention in a transformer: .2 seconds per short text, a quarter of the permutations' time."""

_Texts = Literal["original", "edited"]


def block_range(block: int) -> range:
    """The places in the sample that a block holds.

    >>> [block_range(block) for block in range(6)]
    [range(0, 1), range(1, 2), range(2, 4), range(4, 8), range(8, 12), range(12, 20)]
    """
    ends = (0, *FIRST_BLOCKS)
    if block < len(FIRST_BLOCKS):
        return range(ends[block], ends[block + 1])
    start = ends[-1] + BLOCK_TEXTS * (block - len(FIRST_BLOCKS))
    return range(start, start + BLOCK_TEXTS)


@dataclass(frozen=True)
class TextSample(Recipe):
    """The texts of an audit in the order in which they are taken, with the model's predictions.

    Args:
        seed: of the draw.
        pool: texts that are read at most; of long texts, see `pool_size`.
        scores: scores made elsewhere; only texts that all of them have are taken.
        feature: what is explained and removed together: words in short texts, segments of about twenty in long ones.
    """

    kind: ClassVar[str] = "audit sample"
    revision: ClassVar[int] = 3

    subject: ModelRecipe
    seed: int = 0
    pool: int = POOL_SIZE
    scores: tuple[ExternalAttributions, ...] = ()
    feature: Feature = "segment"

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, number of words and of features that are read, predicted class and more.

        The column `turn` is the place of a text in an order that represents the data: texts of rarely predicted classes
        are taken out of turn.
        """
        loaded = self.subject.restore(workspace)
        examples = loaded.examples("test")
        if not examples:
            raise UserError(
                f"{self.subject.corpus.name} has no text in its test split; choose data with texts to explain"
            )
        generator = Generator().manual_seed(derive_seed("audit", self.seed, len(examples)))
        shuffled = [examples[index] for index in torch.randperm(len(examples), generator=generator).tolist()]
        size = pool_size(len(example.words) for example in shuffled[: self.pool])
        drawn = shuffled[:size]
        table = self._read(loaded, drawn, workspace)
        kept = stratify(table[table["long_enough"] & table["has_scores"]])
        others = shuffled[size : (1 + FURTHER_POOLS) * size]
        others = others[: pool_size(len(example.words) for example in others)]
        further = self._find_rare(loaded, kept, others, workspace)
        notes: dict[str, Json] = {
            "classes": list(loaded.splits.class_names),
            "rows": len(examples),
            "read": len(table),
            "too short": int((~table["long_enough"]).sum()),
            "without scores": int((~table["has_scores"]).sum()),
            "rare": len(further),
            **count_predictions(table, loaded.model.task.num_classes),
            "remarks": to_json(loaded.tokenizer.preprocessing_notes(drawn)),
            "truncated": loaded.tokenizer.count_truncated(drawn),
            "unknown words": _unknown_share(loaded.tokenizer, drawn),
            "corpus": to_json(dict(loaded.splits.notes)),
            "architecture": loaded.model.architecture_summary,
            "rationales": sum(any(example.rationale or ()) for example in drawn),
        }
        if not bool(table["has_scores"].any()):
            raise UserError("no text has scores for its predicted class; add scores of that class")
        if kept.empty:
            unit = "sentences" if self.feature == "sentence" else "words"
            raise UserError(f"no text has {MIN_WORDS} {unit} or more; give longer texts, or choose another text column")
        kept = take_rare_classes(kept, further)
        return Artefact(table=kept.drop(columns=["long_enough", "has_scores"]), notes=notes)

    def _find_rare(
        self, loaded: LoadedModel, order: pd.DataFrame, examples: Sequence[Example], workspace: Workspace
    ) -> pd.DataFrame:
        """Texts of rarely predicted classes among further ones, which are read until each class has enough."""
        missing = missing_texts(order["predicted"])
        parts = [order.iloc[:0]]
        for start in range(0, len(examples), READ_AT_ONCE):
            if not any(missing.values()):
                break
            table = self._read(loaded, examples[start : start + READ_AT_ONCE], workspace)
            for label, count in missing.items():
                rare = table[table["long_enough"] & table["has_scores"] & (table["predicted"] == label)][:count]
                missing[label] -= len(rare)
                parts.append(rare)
        return pd.concat(parts, ignore_index=True)

    def _read(self, loaded: LoadedModel, examples: Sequence[Example], workspace: Workspace) -> pd.DataFrame:
        """The predictions on texts, a row each in their order, and whether each is long enough and has scores."""
        batch = with_breaks(loaded.tokenizer(examples), examples)
        rows: list[dict[str, object]] = []
        for positions, part in device_batches(batch, workspace, f"predictions {self.subject.title}"):
            with torch.no_grad():
                probabilities = loaded.model.task.probabilities(loaded.model.read_logits(part)).cpu()
            words = feature_counts(feature_index(part, "word")).tolist()
            features = feature_counts(feature_index(part, self.feature)).tolist()
            best = probabilities.max(-1)
            for row, position in enumerate(positions.tolist()):
                rows.append(
                    {
                        "uid": examples[position].uid,
                        "place": position,
                        "words": int(words[row]),
                        "features": int(features[row]),
                        "predicted": int(best.indices[row]),
                        "probability": float(best.values[row]),
                        "label": to_json(examples[position].label),
                    }
                )
        table = pd.DataFrame(rows).sort_values("place", ignore_index=True)
        finite = table["probability"].map(math.isfinite)
        if not bool(finite.all()):
            raise UserError(f"the output of {self.subject.title} is not a number on {int((~finite).sum())} texts")
        predicted = {str(uid): int(output) for uid, output in zip(table["uid"], table["predicted"], strict=True)}
        covered = [scores.covered_uids(predicted) for scores in self.scores]
        has_scores = table["uid"].map(lambda uid: all(uid in uids for uids in covered)).astype(bool)
        return table.assign(long_enough=table["features"] >= MIN_WORDS, has_scores=has_scores)


def count_predictions(table: pd.DataFrame, classes: int) -> dict[str, Json]:
    """Predictions by class, and labels and right predictions, of texts as they were drawn: none was selected by them.

    >>> count_predictions(pd.DataFrame({"predicted": [0, 2, 2], "label": [0, 1, None]}), 3)
    {'predicted': [1, 0, 2], 'labeled': 2, 'right': 1}
    """
    counts, labeled = table["predicted"].value_counts(), table[table["label"].notna()]
    return {
        "predicted": [int(counts.get(number, 0)) for number in range(classes)],
        "labeled": len(labeled),
        "right": int((labeled["predicted"] == labeled["label"].astype(float)).sum()),
    }


def pool_size(words: Iterable[int]) -> int:
    """How many texts of these lengths are read to draw the sample.

    >>> pool_size([20] * 900), pool_size([160] * 900), pool_size([1000] * 900)
    (900, 250, 200)
    """
    return max(sum(total <= POOL_WORDS for total in accumulate(words)), MIN_POOL)


def _unknown_share(tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """The share of the words of the first examples that the tokenizer does not know."""
    unknown, words = tokenizer.count_unknown_words(examples[:N_CHECKED_TEXTS])
    return unknown / max(1, words)


def stratify(table: pd.DataFrame) -> pd.DataFrame:
    """The rows in an order of which every beginning has the classes of the whole in proportion.

    >>> stratify(pd.DataFrame({"predicted": [0, 0, 0, 0, 1, 1], "uid": list("abcdef")}))["uid"].tolist()
    ['a', 'e', 'b', 'c', 'f', 'd']
    """
    groups = table.groupby("predicted")["predicted"]
    share = (groups.cumcount() + 0.5) / groups.transform("size")
    order = table.assign(_share=share).sort_values(["_share", "predicted"], kind="stable")
    return order.drop(columns="_share").reset_index(drop=True)


def representative_uids(sample: TextSample, texts: int, workspace: Workspace) -> list[str]:
    """The first texts of a sample in the order that represents the data."""
    return workspace.get(sample).table.sort_values("turn")["uid"].tolist()[:texts]


@dataclass(frozen=True)
class BlockTexts:
    """The examples of one block as a batch, with the predicted classes."""

    loaded: LoadedModel
    examples: Mapping[str, Example]
    batch: Batch
    target: Tensor


def read_block(
    sample: TextSample, block: int, workspace: Workspace, texts: _Texts = "original", only: int | None = None
) -> BlockTexts:
    """The texts of a block, as they are or slightly edited; texts without a tiny edit are left out of the latter.

    Args:
        only: the place in the sample of the only text that is read.
    """
    loaded = sample.subject.restore(workspace)
    rows = block_range(block) if only is None else range(only, only + 1)
    table = workspace.get(sample).table.iloc[rows.start : rows.stop]
    wanted = set(table["uid"])
    by_uid = {example.uid: example for example in loaded.splits["test"] if example.uid in wanted}
    examples = {uid: by_uid[uid] for uid in table["uid"]}
    if texts == "edited":
        edits = workspace.get(BlockEdits(sample, block)).table
        examples = {
            uid: replace(by_uid[uid], parts=tuple(parts))
            for uid, parts in zip(edits["uid"], edits["parts"], strict=True)
        }
    batch = _read_texts(loaded, tuple(examples.values()))
    if texts == "edited" and batch.breaks is not None:
        # An edit that cuts off another word must not move the borders of segments, which are compared by number.
        batch = replace(batch, breaks=_read_texts(loaded, tuple(by_uid[uid] for uid in examples)).breaks)
    batch = batch.to(workspace.device)
    predicted = dict(zip(table["uid"], table["predicted"], strict=True))
    target = torch.tensor([predicted[uid] for uid in examples], device=batch.mask.device)
    return BlockTexts(loaded, examples, batch, target)


def _read_texts(loaded: LoadedModel, examples: Sequence[Example]) -> Batch:
    return with_breaks(loaded.tokenizer(examples), examples)


@dataclass(frozen=True)
class BlockEdits(Recipe):
    """A tiny change of each text that keeps the prediction: a full stop more or less, or a typing error.

    Every edit keeps the number of whitespace words, so that scores are compared word by word.
    """

    kind: ClassVar[str] = "audit edits"

    sample: TextSample
    block: int

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, the edited parts and the change of the predicted probability."""
        block = read_block(self.sample, self.block, workspace)
        task, rows = block.loaded.model.task, []
        with torch.no_grad():
            before = task.probabilities(block.loaded.model.read_logits(block.batch)).cpu()
        for row, example in enumerate(block.examples.values()):
            edits = [replace(example, parts=parts) for parts in text_edits(example, self.sample.seed)]
            if not edits:
                continue
            batch = block.loaded.tokenizer(edits).to(workspace.device)
            with torch.no_grad():
                after = task.probabilities(block.loaded.model.read_logits(batch)).cpu()
            target = int(block.target[row])
            change = (after[:, target] - before[row, target]).abs()
            # An edit that the tokenizer does not see is none.
            original = block.batch.inputs[row][block.batch.mask[row]].tolist()
            seen = torch.tensor(
                [ids[mask].tolist() != original for ids, mask in zip(batch.inputs, batch.mask, strict=True)]
            )
            tiny = seen & (change <= _edit_limit(before[row, target], task.num_classes))
            if task.num_classes > 1:
                tiny &= after.argmax(1) == target
            if bool(tiny.any()):
                chosen = int(tiny.int().argmax())
                rows.append({"uid": example.uid, "parts": list(edits[chosen].parts), "change": float(change[chosen])})
        table = pd.DataFrame(rows, columns=["uid", "parts", "change"])
        return Artefact(table=table, notes={"texts": len(block.examples), "edited": len(table)})


def _edit_limit(value: Tensor, classes: int) -> float:
    """The largest tiny change: of a probability, or of a predicted number relative to its size."""
    return MAX_EDIT_CHANGE if classes > 1 else MAX_EDIT_CHANGE * max(1.0, abs(float(value)))


def text_edits(example: Example, seed: int) -> list[tuple[str | Tensor, ...]]:
    """The parts of a text under each edit: a full stop more or less, and two letters swapped in some words."""
    if not isinstance(example.parts[0], str) or not example.parts[0].strip():
        return []
    first, rest = example.parts[0], example.parts[1:]
    words = first.split()
    stop = [*words[:-1], words[-1][:-1] if words[-1].endswith(".") and len(words[-1]) > 1 else f"{words[-1]}."]
    edits = [stop]
    long = [index for index, word in enumerate(words) if len(word) >= 5 and word.isalpha() and word[2] != word[3]]
    generator = Generator().manual_seed(derive_seed("edit", seed, example.uid))
    for index in (long[draw] for draw in torch.randperm(len(long), generator=generator)[:N_TYPOS].tolist()):
        word = words[index]
        edits.append([*words[:index], f"{word[:2]}{word[3]}{word[2]}{word[4:]}", *words[index + 1 :]])
    return [(" ".join(edit), *rest) for edit in edits]


@dataclass(frozen=True)
class BlockAttributions(Recipe):
    """Scores of one method for the predicted classes of the texts of a block, by token and by word.

    Args:
        texts: the texts as they are, or with a tiny edit each.
        randomized: explain the text at this place of the sample only, by a copy of the model whose random weights are
            drawn with the place as seed; None explains the model.
        runner_up: explain the class with the second highest output in place of the predicted one.
    """

    kind: ClassVar[str] = "audit attributions"
    revision: ClassVar[int] = 2

    sample: TextSample
    method: Method
    block: int
    texts: _Texts = "original"
    randomized: int | None = None
    runner_up: bool = added_field(default=False)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        edits = (BlockEdits(self.sample, self.block),) if self.texts == "edited" else ()
        return (self.sample, *edits)

    def describe(self) -> dict[str, Json]:
        return {**self.sample.subject.describe(), "method": method_name(self.method), "block": self.block}

    def make(self, workspace: Workspace) -> Artefact:
        """The rows of `attribution_rows`, with the score of each feature in text order (`word_scores`).

        A feature has the number of its first word (`word_numbers`): `features` has it for each unit, as `words` has
        that of its own word. Where words are explained both are the same.
        """
        block = read_block(self.sample, self.block, workspace, self.texts, self.randomized)
        model = block.loaded.model
        if self.randomized is not None and block.examples:
            model = _randomized_copy(self.sample.subject, model, self.randomized, workspace)
        method = self.method.prepare(model) if isinstance(self.method, SupportsPreparation) else self.method
        if isinstance(method, BlindScores):
            method = method.of_texts(block.examples.values(), _document_counts(self.sample.subject, block, workspace))
        explained = _Explained(method, model, self.runner_up)
        rows = list(attribution_rows(block.loaded, block.batch, explained, block.examples)) if block.examples else []
        table = pd.DataFrame(rows)
        if rows:
            table["features"] = _first_words(block.batch, self.sample.feature)
            scores, numbers = words_of_rows(table, self.method, "features")
            table["word_scores"], table["word_numbers"] = scores, numbers
        return Artefact(table=table, notes={"n": len(table)})


@dataclass(frozen=True)
class _Explained:
    """A method that explains this model for the classes that the given one predicts, or for their runners-up."""

    method: Method
    model: Model
    runner_up: bool

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        if self.runner_up:
            with torch.no_grad():
                probabilities = model.task.probabilities(model.read_logits(batch))
            target = probabilities.scatter(1, target.unsqueeze(1), -1.0).argmax(-1)
        return self.method(self.model, batch, target)


def _randomized_copy(subject: ModelRecipe, model: Model, seed: int, workspace: Workspace) -> Model:
    """A copy with random weights; the latest one is kept, because the methods of a block follow one another."""
    cache, kept = workspace.model_cache, f"{workspace.artefact_name(subject)} randomized "
    copy = None if cache is None else cache.get(f"{kept}{seed}")
    if not isinstance(copy, Model):
        copy = randomize_weights(model, seed)
        if cache is not None:
            for name in [name for name in cache if name.startswith(kept)]:
                del cache[name]
            cache[f"{kept}{seed}"] = copy
    return copy


def _document_counts(subject: ModelRecipe, block: BlockTexts, workspace: Workspace) -> Mapping[str, int]:
    """How many texts of the whole data each word is in; counted once for all blocks."""
    cache, name = workspace.model_cache, f"{workspace.artefact_name(subject)} document counts"
    counts = None if cache is None else cache.get(name)
    if not isinstance(counts, Mapping):
        counts = document_counts(block.loaded.splits["test"])
        if cache is not None:
            cache[name] = counts
    return counts


def _first_words(batch: Batch, feature: Feature) -> list[list[int]]:
    """The first word of the feature of each real unit of each text; -1 where there is none."""
    columns = (batch.words.tolist(), feature_owners(batch, feature).tolist(), batch.lengths.tolist())
    rows = []
    for words, owners, length in zip(*columns, strict=True):
        first: dict[int, int] = {}
        for word, owner in zip(words, owners, strict=True):
            first[owner] = min(word, first.get(owner, word))
        rows.append([first[owner] for owner in owners[:length]])
    return rows


def words_of_rows(
    table: pd.DataFrame, method: Method, column: Literal["words", "features"] = "words"
) -> tuple[list[list[float]], list[list[int]]]:
    """The score of each word, or feature, of each row of `attribution_rows`, in text order, and their numbers."""
    pooling = tags_of(method).pooling
    scores, numbers = [], []
    for units, words in zip(table["scores"], table[column], strict=True):
        index = torch.tensor([list(words)])
        pooled, present = pool_by_word(torch.tensor([list(units)], dtype=torch.float64), index, pooling)
        scores.append(pooled[0][present[0]].tolist())
        numbers.append(present[0].nonzero().flatten().tolist())
    return scores, numbers


def plain_word_scores(table: pd.DataFrame, method: Method) -> tuple[list[list[float]], list[list[int]]]:
    """The score of each word of each row of `BlockAttributions`, and their numbers, whatever was explained.

    Of a method that explains sentences or segments, all words of a segment have its score.
    """
    if all(feature == "word" for feature in option_values(method, "feature")):
        return words_of_rows(table, method)
    scores, numbers = [], []
    columns = (table[name].tolist() for name in ("words", "features", "word_numbers", "word_scores"))
    for words, features, firsts, values in zip(*columns, strict=True):
        by_first = dict(zip(firsts, values, strict=True))
        by_word = {int(word): by_first[first] for word, first in zip(words, features, strict=True) if word >= 0}
        numbers.append(sorted(by_word))
        scores.append([by_word[word] for word in numbers[-1]])
    return scores, numbers


@dataclass(frozen=True)
class BlockErasure(Recipe):
    """What happens when the words of the texts of a block are removed in the order of one method's scores.

    Args:
        deletions: ways of deletion, each with rows of its own.
    """

    kind: ClassVar[str] = "audit erasure"
    revision: ClassVar[int] = 4

    attributions: BlockAttributions
    deletions: tuple[Baseline, ...]

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and way of deletion: comprehensiveness, sufficiency, flip, and what is removed in each bin."""
        source = self.attributions
        block = read_block(source.sample, source.block, workspace, source.texts)
        lists = [torch.tensor(list(row), dtype=torch.float64) for row in workspace.get(source).table["word_scores"]]
        scores = pad_sequence(lists, batch_first=True).to(workspace.device)
        tables = []
        for deletion in self.deletions:
            evaluate = word_erasure(deletion, source.sample.seed, source.sample.feature)
            outputs = evaluate(block.loaded.model, block.batch, block.target, scores.unsqueeze(0))
            counts = outputs.bins
            orders = evaluate.ranks(block.batch, scores.unsqueeze(0))[0].argsort(1)
            details = {
                "full": outputs.full_output.tolist(),
                "order": [order[:most] for order, most in zip(orders.tolist(), counts.amax(1).tolist(), strict=True)],
                "counts": counts.tolist(),
                "removed": outputs.comprehensiveness_outputs.tolist(),
            }
            tables.append(_measure_table(block.batch, deletion, outputs).assign(**details))
        return Artefact(table=pd.concat(tables, ignore_index=True))


def _measure_table(
    batch: Batch, deletion: Baseline, erasure: ErasureOutputs | BestErasure | RandomErasure
) -> pd.DataFrame:
    """A row per text with the measures of faithfulness under one way of deletion."""
    columns = {"comprehensiveness": erasure.comprehensiveness, "sufficiency": erasure.sufficiency, "flip": erasure.flip}
    measures = {name: values.tolist() for name, values in columns.items()}
    return pd.DataFrame({"uid": list(batch.uids), "deletion": [deletion] * len(batch), **measures})


@dataclass(frozen=True)
class BlockSearch(Recipe):
    """The best explanations that a search finds for the texts of a block: lower bounds of the achievable."""

    kind: ClassVar[str] = "audit search"
    revision: ClassVar[int] = 5

    sample: TextSample
    block: int
    deletions: tuple[Baseline, ...]

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and way of deletion: the best value of each measure, and the order of the removed words.

        The columns `full` and `without_each` have the output of the whole text, and without each single word.
        """
        block = read_block(self.sample, self.block, workspace)
        tables = []
        for deletion in self.deletions:
            best = search_best_erasure(
                block.loaded.model, block.batch, block.target, deletion, feature=self.sample.feature
            )
            details = {
                "order": [list(order) for order in best.order],
                "passes": best.passes.tolist(),
                "full": best.full.tolist(),
                "without_each": [list(outputs) for outputs in best.without_each],
            }
            tables.append(_measure_table(block.batch, deletion, best).assign(**details))
        return Artefact(table=pd.concat(tables, ignore_index=True))


@dataclass(frozen=True)
class BlockNull(Recipe):
    """What random orders of words reach on the texts of a block, which every explanation is compared with."""

    kind: ClassVar[str] = "audit null"
    revision: ClassVar[int] = 2

    sample: TextSample
    block: int
    deletions: tuple[Baseline, ...]

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text and way of deletion: the mean of each measure, and how many orders were read (0: all)."""
        block = read_block(self.sample, self.block, workspace)
        tables = []
        for deletion in self.deletions:
            null = random_erasure(
                block.loaded.model, block.batch, block.target, deletion, self.sample.seed, feature=self.sample.feature
            )
            tables.append(_measure_table(block.batch, deletion, null).assign(orders=null.orders.tolist()))
        return Artefact(table=pd.concat(tables, ignore_index=True))


@dataclass(frozen=True)
class BlockAttention(Recipe):
    """Facts about the attention of a model on the texts of a block: permutation, share on special tokens, adversary."""

    kind: ClassVar[str] = "audit attention"
    revision: ClassVar[int] = 4

    sample: TextSample
    block: int

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text: change under permuted attention, attention on special tokens and on the first token.

        The tensor `head_maps` `[text layer head word]` has the mean attention from real queries on the tokens of each
        word, in the order of the text; 0 beyond the last word of a text.
        """
        block = read_block(self.sample, self.block, workspace)
        model, batch = block.loaded.model, block.batch
        table = Permutation(self.sample.subject, permutations=_PERMUTATIONS).rows(model, batch)
        with torch.no_grad():
            maps = mean_over_queries(model(batch).attention, batch.mask)
        received = maps.double().mean((1, 2))
        by_word, _ = pool_by_word(maps, feature_index(batch, "word"), "mean")
        table["special_share"] = received.masked_fill(batch.content_mask, 0.0).sum(1).tolist()
        table["first_share"] = received[:, 0].tolist()
        layered = isinstance(model, ExposesLayers) and model.embedding_refusal is None
        if (isinstance(model, AttentiveModel) or layered) and model.task.num_classes > 1:
            search = AdversarySearchSettings() if isinstance(model, AttentiveModel) else TRANSFORMER_SEARCH
            adversary = AdversarialAttention(self.sample.subject, search=search).rows(model, batch)
            table["adversary_share"] = adversary["share"].to_numpy()
        # Half precision has more digits than any page shows.
        return Artefact({"head_maps": by_word.half()}, table)


def concatenate(recipes: Sequence[Recipe], workspace: Workspace) -> pd.DataFrame:
    """The tables of finished recipes one below the other."""
    tables = [table for recipe in recipes if len(table := workspace.get(recipe).table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def rank_correlations(first: pd.DataFrame, second: pd.DataFrame) -> pd.Series:
    """Spearman's correlation of the scores of the words that both tables have of a text; NaN for constant scores.

    An edit keeps the number of words, but a text that is cut off may lose its last ones.
    """
    ours, theirs = (
        {
            str(uid): dict(zip(numbers, scores, strict=True))
            for uid, numbers, scores in zip(table.index, table["word_numbers"], table["word_scores"], strict=True)
        }
        if len(table)
        else {}
        for table in (first, second)
    )
    common = {uid: [word for word in ours[uid] if word in theirs[uid]] for uid in theirs if uid in ours}
    if not common:
        return pd.Series(dtype=float)
    x, mask = _padded([[ours[uid][word] for word in words] for uid, words in common.items()])
    y, _ = _padded([[theirs[uid][word] for word in words] for uid, words in common.items()])
    return pd.Series(spearman(x, y, mask).value.numpy(), index=list(common))


def _padded(lists: Sequence[Sequence[float]]) -> tuple[Tensor, Tensor]:
    rows = [torch.tensor(list(values), dtype=torch.float64) for values in lists]
    mask = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True)
    return pad_sequence(rows, batch_first=True), mask
