"""Whether a method shares out what it promises: the difference between the output and that of its reference.

DeepLIFT and integrated gradients promise it; an operation that no rule covers, or too few steps, leaves a gap.

A method run over a split, kept for all trials, the report and the study.

What people marked as evidence in the texts of a split, lined up with the words that a model sees.

A text may be left out for three reasons, which are told apart because they mean different things: nobody marked a
word, all words are marked, or what was marked was cut off with the end of the text.

How plausible every single layer and head of a model is: what the best of them would score if one knew which.

Only the numbers are kept, not the maps. A map is the softmax over words of a head's mean score (of the mean of a
layer's heads), the explanation of Fernandes et al. with all weight on one head or one layer.

Scores of an explainer that was learned with students: that of the median student, as the paper judges it.

A few pictures of a split, kept for the report: their pixels, what was predicted, and the maps of all heads.

Attributions know patches by their places only; without these nobody could see what stands there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.attributions._base import CompleteAttribution
from heedful.attributions.head_mix import masked_softmax
from heedful.data.tokenization import SPECIAL_TOKENS, UNK
from heedful.measures.rationale_agreement import (
    PLAUSIBILITY_MEASURES,
    RankBy,
    TopK,
    has_partial_rationale,
    plausibility_metrics,
    ranking_key,
)
from heedful.store.recipe import OMIT_IF_DEFAULT, Artefact, Json, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe, to_json
from heedful.training.trainer import inference_batches
from heedful.types import (
    Batch,
    Example,
    Method,
    Model,
    Pooling,
    Split,
    SupportsPreparation,
    UserError,
    check_choice,
    method_name,
    pool_by_word,
    read_heads,
)

COMPLETENESS_NOTE = "missed"
"""The name in the notes of an attribution."""


def completeness_error(table: pd.DataFrame) -> dict[str, Json]:
    """The `largest` and the `mean` |gap| over texts, as shares of the mean |difference|; nothing without a promise.

    The scores of a text sum to difference + gap. The mean difference is the measure of all, because single ones may be
    near 0. Where nothing is to be shared out, whatever is shared out counts as 1.

    >>> completeness_error(pd.DataFrame({"scores": [[1.0, 1.5], [-1.0, -1.0]], "gap": [0.5, 0.0]}))
    {'missed': {'largest': 0.25, 'mean': 0.125}}
    """
    if "gap" not in table.columns:
        return {}
    gap = table["gap"].to_numpy(np.float64)
    shared_out = np.array([np.sum(scores) for scores in table["scores"]], dtype=np.float64)
    difference = float(np.abs(shared_out - gap).mean())
    shares = (gap != 0).astype(np.float64) if difference == 0 else np.abs(gap) / difference
    return {
        COMPLETENESS_NOTE: {
            "largest": _finite_or_none(float(shares.max())),
            "mean": _finite_or_none(float(shares.mean())),
        }
    }


def _finite_or_none(value: float) -> float | None:
    """The number; None where a score was no finite number, which notes cannot hold."""
    return value if math.isfinite(value) else None


UNK_TEXT = SPECIAL_TOKENS[UNK]


@dataclass(frozen=True)
class AttributionTable(Recipe):
    """Scores of one method for the class that the subject predicts; one row per instance.

    Args:
        limit: at most this many instances, drawn at random but the same for every subject; None takes all.
    """

    revision: ClassVar[int] = 2
    kind: ClassVar[str] = "attributions"

    subject: ModelRecipe
    method: Method
    split: Split = "test"
    limit: int | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)

    def describe(self) -> dict[str, Json]:
        """The facts of the model, the display name of the method, the split and the limit."""
        method = method_name(self.method)
        return {**self.subject.describe(), "method": method, "split": self.split, "limit": self.limit}

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, units with scores, words and parts, predicted class, its probability and the label.

        Methods whose scores should add up to a known number also say by how much they miss it (`gap`; over all texts
        in the notes, see `missed`).
        """
        trained = self.subject.restore(workspace)
        batch = sample_rows(trained.batch(self.split), self.limit)
        method = self.method.prepare(trained.model) if isinstance(self.method, SupportsPreparation) else self.method
        rows: list[dict[str, object]] = []
        title = f"{type(self.method).__name__} {' '.join(map(str, self.subject.about.values()))}"
        with workspace.progress.task(title, len(batch)) as step:
            for _, part in inference_batches(batch, workspace.batch_size):
                rows += self._rows(trained, part.to(workspace.device), method)
                step(len(part))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "method": type(self.method).__name__}
        counts: dict[str, Json] = {"n": len(rows), "of": len(trained.examples(self.split))}
        table = pd.DataFrame(rows)
        return Artefact(table=table, notes=notes | counts | completeness_error(table))

    def _rows(self, trained: LoadedModel, batch: Batch, method: Method) -> list[dict[str, object]]:
        with torch.no_grad():
            probabilities = trained.model.task.probabilities(trained.model(batch).logits)
        target = probabilities.argmax(-1)
        found = method(trained.model, batch, target)
        texts = _unit_texts(trained, batch, self.split)
        labels = [None] * len(batch) if batch.labels is None else batch.labels.tolist()
        return [
            {
                "uid": uid,
                "units": texts[row],
                "scores": _unpadded_scores(found.scores[row], batch.mask[row]),
                "scored": batch.content_mask[row][batch.mask[row]].tolist(),
                "words": batch.words[row][batch.mask[row]].tolist(),
                "segments": batch.segments[row][batch.mask[row]].tolist(),
                "predicted": int(target[row]),
                "probability": float(probabilities[row, target[row]]),
                "label": labels[row],
                **({"gap": float(found.convergence_delta[row])} if isinstance(found, CompleteAttribution) else {}),
            }
            for row, uid in enumerate(batch.uids)
        ]


def _unit_texts(trained: LoadedModel, batch: Batch, split: Split) -> list[list[str]]:
    """The text of each unit; a word that the vocabulary does not know is shown as it stands in the example."""
    examples = {example.uid: example for example in trained.splits[split]}
    found = trained.tokenizer.unit_texts(batch)
    for row, uid in enumerate(batch.uids):
        words = [word for part in examples[uid].parts if isinstance(part, str) for word in part.split()]
        for unit, text in enumerate(found[row]):
            if text == UNK_TEXT:
                found[row][unit] = words[int(batch.words[row, unit])]
    return found


def _unpadded_scores(values: Tensor, mask: Tensor) -> list[float]:
    return [float(value) for value in values[mask].double().tolist()]


def check_limit(limit: int | None) -> None:
    """Refuses a limit that leaves no instance."""
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} leaves no instance: give 1 or more, or None for all of them")


def sample_rows(batch: Batch, limit: int | None) -> Batch:
    """At most `limit` rows, the same ones for every subject on this split; all rows where there is no limit."""
    check_limit(limit)
    if limit is None or limit >= len(batch):
        return batch
    generator = Generator().manual_seed(derive_seed("limit", len(batch)))
    return batch.rows(torch.randperm(len(batch), generator=generator)[:limit].sort().values)


RATIONALE_STATUS = ("judged", "no rationale", "all rationale", "cut off")
"""What became of a text, or of one part of it."""


@dataclass(frozen=True)
class RationaleBatch:
    """Marks of a batch of texts, each of their parts by itself.

    Args:
        rationale: True on marked words, `[batch part word]`.
        mask: True on the words of the part that the model sees, `[batch part word]`.
        status: places in `STATUS`, `[batch part]`.
    """

    rationale: Tensor
    mask: Tensor
    status: Tensor


class Rationales:
    """The marks of all texts of a split.

    Args:
        parts: names of the parts that are judged apart; none judges a text as a whole, without the parts in which
            people never marked a word (a question is asked, it is no evidence).
    """

    def __init__(self, examples: Sequence[Example], parts: Sequence[str], corpus: str) -> None:
        counts = [_words_per_part(example) for example in examples]
        most = max((len(count) for count in counts), default=0)
        if parts and len(parts) != most:
            raise UserError(f"{corpus}: texts have {most} parts, and the names of {len(parts)} are given")
        if not any(any(example.rationale or ()) for example in examples):
            raise UserError(f"{corpus}: people marked no words of these texts; take a corpus with rationales")
        self.parts = tuple(parts) or ("",)
        self._places = {example.uid: place for place, example in enumerate(examples)}
        self._lengths = np.array([sum(count) for count in counts], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._marks = _flat_marks(examples, self._lengths)
        self._part = np.repeat(np.arange(most).tolist() * len(counts), _padded_counts(counts, most).ravel())
        if not parts:
            self._part = np.where(np.isin(self._part, self._part[self._marks]), 0, -1)

    def select(self, uids: Sequence[str], words: Tensor) -> RationaleBatch:
        """The marks of these texts, whose units belong to `words` `[batch unit]`."""
        rows = np.array([self._places[uid] for uid in uids], dtype=np.int64)
        word = np.arange(max(1, int(self._lengths[rows].max())))
        inside = word < self._lengths[rows][:, None]
        places = np.where(inside, self._starts[rows][:, None] + word, 0)
        part = torch.from_numpy(np.where(inside, self._part[places], -1))
        own = part.unsqueeze(1) == torch.arange(len(self.parts)).unsqueeze(1)
        seen = torch.zeros(len(rows), len(word) + 1, dtype=torch.bool)
        seen.scatter_(1, torch.where(words >= 0, words, len(word)).cpu(), True)
        rationale = own & torch.from_numpy(self._marks[places]).unsqueeze(1)
        mask = own & seen[:, :-1].unsqueeze(1)
        return RationaleBatch(rationale, mask, _rationale_status(rationale, own, mask))


def _words_per_part(example: Example) -> tuple[int, ...]:
    """Words of each part."""
    return tuple(len(part.split()) if isinstance(part, str) else 0 for part in example.parts)


def _padded_counts(counts: Sequence[tuple[int, ...]], most: int) -> NDArray[np.int64]:
    return np.array([[*count, *[0] * (most - len(count))] for count in counts], dtype=np.int64).reshape(-1, most)


def _flat_marks(examples: Sequence[Example], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """All marks one after the other; a text that nobody read has none."""
    rows = zip(examples, lengths.tolist(), strict=True)
    found = chain.from_iterable((False,) * n if each.rationale is None else each.rationale for each, n in rows)
    return np.fromiter(found, dtype=bool, count=int(lengths.sum()))


def _rationale_status(rationale: Tensor, own: Tensor, mask: Tensor) -> Tensor:
    left = (rationale & mask).any(-1)
    status = torch.full_like(left, RATIONALE_STATUS.index("all rationale"), dtype=torch.int64)
    status[has_partial_rationale(rationale, mask)] = RATIONALE_STATUS.index("judged")
    status[~left] = RATIONALE_STATUS.index("cut off")
    status[~(rationale & own).any(-1)] = RATIONALE_STATUS.index("no rationale")
    return status


_SCORES_PER_BLOCK = 2**22
"""Scores that are ranked at a time."""


@dataclass(frozen=True)
class HeadPlausibility(Recipe):
    """Every measure of plausibility for every layer and head, one row per text.

    Args:
        parts: names of the parts that are judged apart; none judges a text as a whole.
        pooling: how a word's score comes from its pieces.
        top: words that are picked for F1 and IOU.
        rank: what words are ranked by. Maps are never negative, so that their size is their score.
    """

    subject: ModelRecipe
    split: Split = "test"
    limit: int | None = None
    parts: tuple[str, ...] = ()
    pooling: Pooling = "sum"
    top: TopK = "rationale"
    rank: RankBy = field(default="score", metadata=OMIT_IF_DEFAULT)

    def __post_init__(self) -> None:
        check_choice("rank", self.rank, RankBy)

    def make(self, workspace: Workspace) -> Artefact:
        """The tensor `plausibility` `[text part map measure]`, all layers before all heads, and the texts' uids."""
        trained = self.subject.restore(workspace)
        rationales = Rationales(trained.examples(self.split), self.parts, self.subject.corpus.name)
        batch = sample_rows(trained.batch(self.split), self.limit)
        found: list[Tensor] = []
        uids: list[str] = []
        shape = (0, 0)
        with workspace.progress.task(f"heads {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, workspace.batch_size):
                maps, shape = _layer_and_head_maps(trained.model, part.to(workspace.device))
                found.append(self._measure_maps(maps, part, rationales))
                uids += part.uids
                step(len(part))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "layers": shape[0], "heads": shape[1]}
        return Artefact({"plausibility": torch.cat(found)}, pd.DataFrame({"uid": uids}), notes)

    def _measure_maps(self, maps: Tensor, batch: Batch, rationales: Rationales) -> Tensor:
        """`[batch part map measure]`, some rows at a time where there are many heads."""
        marked = rationales.select(batch.uids, batch.words)
        scores, _ = pool_by_word(maps, batch.words, self.pooling, marked.mask.shape[-1])
        rows = max(1, _SCORES_PER_BLOCK // max(1, scores[0].numel() * len(rationales.parts)))
        found = []
        for start in range(0, len(batch), rows):
            some = slice(start, start + rows)
            rationale, mask = marked.rationale[some].unsqueeze(2), marked.mask[some].unsqueeze(2)
            spread = scores[some].unsqueeze(1).expand(-1, len(rationales.parts), -1, -1)
            numbers = plausibility_metrics(ranking_key(spread, self.rank), rationale, mask, self.top)
            found.append(torch.stack([numbers[name] for name in PLAUSIBILITY_MEASURES], -1).float())
        return torch.cat(found)


@torch.no_grad()
def _layer_and_head_maps(model: Model, batch: Batch) -> tuple[Tensor, tuple[int, int]]:
    """Distributions over the scored units, each layer's and each head's, `[batch map unit]`; how many of both."""
    scores = read_heads(model, batch).scores.double()
    logits = torch.cat((scores.mean(2), scores.flatten(1, 2)), 1)
    return masked_softmax(logits, batch.content_mask.unsqueeze(1)).cpu(), (scores.shape[1], scores.shape[2])


@dataclass(frozen=True)
class ImageSample(Recipe):
    """Some images of a subject's corpus, the same that `Attributed` takes with this limit or with a larger one."""

    subject: ModelRecipe
    split: Split = "test"
    limit: int = 4

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `images` `[image channel height width]` in bytes and `heads` `[image layer head patch]`.

        The table has uid, label, predicted class and its probability; `rows` and `columns` in the notes say how many
        patches there are.
        """
        trained = self.subject.restore(workspace)
        batch = sample_rows(trained.batch(self.split), self.limit)
        examples = {example.uid: example for example in trained.examples(self.split)}
        images = torch.stack([_image_bytes(examples[uid]) for uid in batch.uids])
        with torch.no_grad():
            heads = read_heads(trained.model, batch.to(workspace.device))
        probabilities = trained.model.task.probabilities(heads.logits).cpu()
        best = probabilities.max(-1)
        table = pd.DataFrame({"uid": batch.uids, "label": [to_json(examples[uid].label) for uid in batch.uids]})
        table = table.assign(predicted=best.indices.tolist(), probability=best.values.tolist())
        maps = heads.scores.cpu().float()[..., batch.content_mask[0]]
        rows, columns = _patch_grid(trained.tokenizer.unit_texts(batch)[0])
        notes: dict[str, Json] = {"about": dict(self.subject.about), "classes": to_json(trained.splits.class_names)}
        return Artefact({"images": images, "heads": maps}, table, notes | {"rows": rows, "columns": columns})


def _image_bytes(example: Example) -> Tensor:
    image = example.parts[0]
    if not isinstance(image, Tensor):
        raise UserError(f"example {example.uid} is not a picture: only corpora of images can be pictured")
    return (255 * image.clamp(0, 1)).round().to(torch.uint8)


def _patch_grid(texts: list[str]) -> tuple[int, int]:
    """Rows and columns of a grid whose patches are called "row,column"; other units are symbols."""
    places = [text.split(",") for text in texts if "," in text]
    return max(int(row) for row, _ in places) + 1, max(int(column) for _, column in places) + 1
