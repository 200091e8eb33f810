"""Attributions of a method over a split, computed once for all trials, the report and the study; human rationales
aligned with the words that a model sees, and the plausibility of single heads and layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Annotated, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Generator, Tensor

from heedful.attributions.method import CompleteAttribution, MethodTags, SampledAttribution, method_name, tags_of
from heedful.capabilities import read_heads
from heedful.data.words import SPECIAL_TOKENS, UNK
from heedful.option_bounds import Bounds, check_options
from heedful.store.recipe import Artefact, Json, Recipe, derive_seed, to_json
from heedful.store.shard import ShardedRecipe, block_label
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trainer import device_batches
from heedful.types import (
    Attribution,
    Batch,
    Example,
    Method,
    Model,
    Split,
    SupportsPreparation,
    UserError,
    check_attribution,
    check_methods,
)

TRUE_CLASS = "true-class"
"""Among the options in the name of a method: it explains the true class, not the predicted one."""
COMPLETENESS_NOTE = "missed"
"""The key of `completeness_error` in the notes of an attribution table."""
TAGS_NOTE = "tags"
"""The key of the method's tags in the notes of an attribution table."""


_STORED_TAGS = TypeAdapter(MethodTags)


@dataclass(frozen=True)
class AttributionTable(ShardedRecipe):
    """Scores of one method for the class that the model predicts; one row per example.

    Args:
        limit: at most this many examples, drawn at random but the same for every model; None takes all.
    """

    revision: ClassVar[int] = 4
    kind: ClassVar[str] = "attributions"

    subject: ModelRecipe
    method: Method
    split: Split = "test"
    limit: Annotated[int, Bounds(1)] | None = None

    def __post_init__(self) -> None:
        check_methods((self.method,), "method")
        check_options(self)

    def describe(self) -> dict[str, Json]:
        method = method_name(self.method)
        return {**self.subject.describe(), "method": method, "split": self.split, "limit": self.limit}

    def count_examples(self, workspace: Workspace) -> int:
        return len(sample_places(self.subject.count_examples(workspace, self.split), self.limit))

    def make(self, workspace: Workspace) -> Artefact:
        """A table with uid, units with scores, words and segments, predicted class, its probability and the label.

        For methods whose scores should add up to a known number the column `gap` has what they miss it by, and the
        notes have `completeness_error`. For methods that sample until their scores are accurate enough the columns
        `samples` and `posterior_errors` have what each text needed and what it reached, and the notes
        `sampling_effort`.
        """
        shards, n, of, facts, whole = self.shards(workspace), 0, 0, [], Artefact()
        for block in self.parts(workspace, shards):
            n, of, whole = n + len(block.table), int(str(block.notes["of"])), block
            facts.append(_numbers_of_texts(block.table))
        notes: dict[str, Json] = {
            "about": dict(self.subject.about),
            "method": type(self.method).__name__,
            TAGS_NOTE: to_json(asdict(tags_of(self.method))),
            "n": n,
            "of": of,
        }
        numbers = pd.concat(facts, ignore_index=True)
        notes |= completeness_error(numbers) | sampling_effort(numbers)
        return Artefact(notes=notes, shards=shards) if shards else replace(whole, notes=notes)

    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        """The rows of the examples at these places in the sample; the note `of` is the number of all examples."""
        loaded = self.subject.restore(workspace)
        whole = loaded.examples(self.split)
        places = sample_places(len(whole), self.limit)
        examples = {example.uid: example for example in (whole[place] for place in places[block.start : block.stop])}
        method = self.method.prepare(loaded.model) if isinstance(self.method, SupportsPreparation) else self.method
        title = f"{type(self.method).__name__} {self.subject.title}{block_label(block, len(places))}"
        parts = device_batches(loaded.tokenizer(tuple(examples.values())), workspace, title)
        rows = (attribution_rows(loaded, part, method, examples) for _, part in parts)
        table = pd.DataFrame(chain.from_iterable(rows))
        return Artefact(table=table, notes={"n": len(table), "of": len(whole)})


def read_tags(notes: Mapping[str, Json]) -> MethodTags:
    """The tags in the notes of an attribution table; the defaults where they are missing or damaged.

    >>> read_tags({TAGS_NOTE: {"pooling": "mean"}}).pooling, read_tags({TAGS_NOTE: {"pooling": 3}}).pooling
    ('mean', 'sum')
    """
    try:
        return _STORED_TAGS.validate_python(notes.get(TAGS_NOTE, {}))
    except ValidationError:
        return MethodTags()


def attribution_rows(
    loaded: LoadedModel, batch: Batch, method: Method, examples: Mapping[str, Example]
) -> Iterator[dict[str, object]]:
    """A row per text of the batch with the scores of a method for the class that the model predicts.

    Args:
        examples: by uid, for the words that are not in the vocabulary, and for labels that only some of them have.
    """
    with torch.no_grad():
        probabilities = loaded.model.task.probabilities(loaded.model.read_logits(batch))
    target = probabilities.argmax(-1)
    attribution = check_attribution(method(loaded.model, batch, target), batch, method_name(method))
    texts = _unit_texts(loaded, batch, examples)
    columns: dict[str, Sequence[object]] = {
        "uid": batch.uids,
        "units": texts,
        "scores": _split_by_text(attribution.scores.double(), batch.mask),
        "scored": _split_by_text(batch.content_mask, batch.mask),
        "words": _split_by_text(batch.words, batch.mask),
        "segments": _split_by_text(batch.segments, batch.mask),
        "predicted": target.tolist(),
        "probability": probabilities.gather(1, target.unsqueeze(1)).squeeze(1).tolist(),
        "label": [examples[uid].label for uid in batch.uids] if batch.labels is None else batch.labels.tolist(),
        **_method_columns(attribution, batch.mask),
    }
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _split_by_text(values: Tensor, mask: Tensor) -> list[list[object]]:
    """The values `[batch unit]` of the real units of each text; one conversion for all texts, which are many."""
    real = values[mask].tolist()
    ends = mask.sum(1).cumsum(0).tolist()
    return [real[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _method_columns(attribution: Attribution, mask: Tensor) -> dict[str, Sequence[object]]:
    """What only some methods tell of a text."""
    if isinstance(attribution, CompleteAttribution):
        return {"gap": attribution.convergence_delta.tolist()}
    if isinstance(attribution, SampledAttribution):
        errors = _split_by_text(attribution.posterior_errors.double(), mask)
        return {"samples": attribution.samples.long().tolist(), "posterior_errors": errors}
    return {}


@dataclass(frozen=True)
class TrueClass:
    """A method that explains the true class of each example in place of the class that the model predicts."""

    method: Method

    def __post_init__(self) -> None:
        check_methods((self.method,), "method")

    @property
    def display_name(self) -> str:
        """The name of the method, with `true-class` among its options.

        >>> from heedful.attributions.gradient import Gradient
        >>> method_name(TrueClass(Gradient())), method_name(TrueClass(Gradient(output="logit")))
        ('gradient(true-class)', 'gradient(logit,true-class)')
        """
        return true_class_name(method_name(self.method))

    @property
    def tags(self) -> MethodTags:
        """Those of the method, but for the target, which does not count."""
        tags = tags_of(self.method)
        note = "; ".join(filter(None, (tags.note, "scores for the true class in place of the predicted one")))
        return replace(tags, target_specific=False, note=note)

    def prepare(self, model: Model) -> Method:
        """The same with the method prepared once for all batches."""
        return (
            replace(self, method=self.method.prepare(model)) if isinstance(self.method, SupportsPreparation) else self
        )

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The scores for the labels of the batch; the given target does not count."""
        if model.task.num_classes < 2 or batch.labels is None:
            raise UserError("only labeled examples of a classifier have a true class: explain the prediction")
        return self.method(model, batch, batch.labels.long())


def true_class_name(method: str) -> str:
    """The name of a method that explains the true class, from its name where it explains the predicted one."""
    name, _, options = method.removesuffix(")").partition("(")
    return f"{name}({','.join(filter(None, (options, TRUE_CLASS)))})"


def _unit_texts(loaded: LoadedModel, batch: Batch, examples: Mapping[str, Example]) -> list[list[str]]:
    """The text of each unit; a word outside the vocabulary is shown as it is written in the example."""
    texts = loaded.tokenizer.unit_texts(batch)
    unknown = SPECIAL_TOKENS[UNK]
    for row, uid in enumerate(batch.uids):
        if unknown in texts[row]:
            words = examples[uid].words
            for unit, text in enumerate(texts[row]):
                if text == unknown:
                    texts[row][unit] = words[int(batch.words[row, unit])]
    return texts


def completeness_error(table: pd.DataFrame) -> dict[str, Json]:
    """The `largest` and the `mean` |gap| over examples, as shares of the mean |difference| from the baseline's output.

    DeepLIFT and integrated gradients should have none; an operation without a rule, or too few steps, leaves one. The
    scores of an example sum to difference + gap. The mean difference is the unit because single ones may be near 0;
    where it is 0, any gap counts as 1. Empty for methods without the completeness property.

    >>> completeness_error(pd.DataFrame({"scores": [[1.0, 1.5], [-1.0, -1.0]], "gap": [0.5, 0.0]}))
    {'missed': {'largest': 0.25, 'mean': 0.125}}
    """
    if "gap" not in table.columns:
        return {}
    shares = gap_shares(table)
    return {COMPLETENESS_NOTE: to_json({"largest": float(shares.max()), "mean": float(shares.mean())})}


def sampling_effort(table: pd.DataFrame) -> dict[str, Json]:
    """The mean number of samples of a text, and the largest posterior error of any of its scores.

    Empty for methods that take the same samples of every text.

    >>> sampling_effort(pd.DataFrame({"samples": [40, 60], "posterior_errors": [[0.0, 0.02], [0.01, 0.01]]}))
    {'sampling': {'mean samples': 50.0, 'largest posterior error': 0.02}}
    """
    if "samples" not in table.columns:
        return {}
    largest = max((float(np.max(errors, initial=0.0)) for errors in table["posterior_errors"]), default=0.0)
    samples = float(table["samples"].mean())
    return {"sampling": to_json({"mean samples": samples, "largest posterior error": largest})}


def gap_shares(table: pd.DataFrame) -> NDArray[np.float64]:
    """|gap| of each example as a share of the mean |difference| from the baseline's output, as `completeness_error`."""
    gap, total = table["gap"].to_numpy(np.float64), _score_totals(table)
    difference = float(np.abs(total - gap).mean())
    shares: NDArray[np.float64] = (gap != 0).astype(np.float64) if difference == 0 else np.abs(gap) / difference
    return shares


def _numbers_of_texts(table: pd.DataFrame) -> pd.DataFrame:
    """What the notes need of a table: one number of a text in each column."""
    if "gap" in table:
        return pd.DataFrame({"gap": table["gap"], "total": _score_totals(table)})
    if "samples" in table:
        largest = [float(np.max(errors, initial=0.0)) for errors in table["posterior_errors"]]
        return pd.DataFrame({"samples": table["samples"], "posterior_errors": largest})
    return pd.DataFrame()


def _score_totals(table: pd.DataFrame) -> NDArray[np.float64]:
    """The sum of the scores of each example, in a column of its own where the scores are left out."""
    if "total" in table.columns:
        return table["total"].to_numpy(np.float64)
    return np.array([np.sum(scores) for scores in table["scores"]], dtype=np.float64)


def sample_rows(batch: Batch, limit: int | None) -> Batch:
    """At most `limit` rows, the same ones for every model on this split; all rows where there is no limit."""
    places = sample_places(len(batch), limit)
    return batch if len(places) == len(batch) else batch.rows(torch.tensor(places))


def sample_places(count: int, limit: int | None) -> Sequence[int]:
    """The places, in order, of at most `limit` of `count` examples: the same ones for every model."""
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit}: give at least 1, or None")
    if limit is None or limit >= count:
        return range(count)
    generator = Generator().manual_seed(derive_seed("limit", count))
    return torch.randperm(count, generator=generator)[:limit].sort().values.tolist()


@dataclass(frozen=True)
class ImageSample(Recipe):
    """Pixels, predictions and head maps of some test images, the same that `AttributionTable` takes with this limit.

    Attribution tables know patches by their positions only; the report shows them on the images.
    """

    kind: ClassVar[str] = "images"

    subject: ModelRecipe
    limit: int = 4

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `images` `[image channel height width]` in bytes and `heads` `[image layer head patch]`.

        The table has uid, label, predicted class and its probability; `rows` and `columns` in the notes are the grid of
        patches.
        """
        loaded = self.subject.restore(workspace)
        batch = sample_rows(loaded.batch("test"), self.limit)
        examples = {example.uid: example for example in loaded.examples("test")}
        images = [image for uid in batch.uids for image in examples[uid].parts[:1] if isinstance(image, Tensor)]
        if len(images) < len(batch):
            raise UserError(f"{self.subject.corpus.name} has an example that is not an image: choose an image corpus")
        pixels = (255 * torch.stack(images).clamp(0, 1)).round().to(torch.uint8)
        with torch.no_grad():
            heads = read_heads(loaded.model, batch.to(workspace.device))
        best = loaded.model.task.probabilities(heads.logits).cpu().max(-1)
        table = pd.DataFrame({"uid": batch.uids, "label": [to_json(examples[uid].label) for uid in batch.uids]})
        table = table.assign(predicted=best.indices.tolist(), probability=best.values.tolist())
        maps = heads.scores.cpu().float()[..., batch.content_mask[0]]
        # Patches are called "row,column"; other units are special tokens.
        positions = [text.split(",") for text in loaded.tokenizer.unit_texts(batch)[0] if "," in text]
        rows, columns = (max(int(position[axis]) for position in positions) + 1 for axis in (0, 1))
        notes: dict[str, Json] = {"about": dict(self.subject.about), "classes": to_json(loaded.splits.class_names)}
        return Artefact({"images": pixels, "heads": maps}, table, notes | {"rows": rows, "columns": columns})
