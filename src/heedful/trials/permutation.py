"""Shuffled attention and what it does to the output: through the readout of pooled models, through the door of others.

A pooled model's hidden states do not depend on its attention, so a hundred shuffled weightings are one product. A
transformer's do: every shuffled attention is sent through the network, many at a time.

Permuted attention (Jain & Wallace, algorithm 2): shuffle the weights, keep all else, and watch the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Figure, Series, Violin
from heedful.measures.divergence import total_variation
from heedful.models.attentive import AttentiveModel
from heedful.seeding import random_permutations
from heedful.store.recipe import Artefact, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import sample_rows
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.trials._trial import Trial
from heedful.types import Batch, Model, Trace, UserError

MAX_WEIGHTS_AT_ONCE = 2**24
"""Attention weights that are held at once while going through a transformer: 64 MB in float32."""


@dataclass(frozen=True)
class AttentionShuffler:
    """How attention is shuffled.

    Args:
        permutations: shuffled attentions per instance.
        layer: only this layer of a transformer, counted from 0; None takes all.
        head: only this head of each chosen layer; None takes all.
    """

    permutations: int = 100
    seed: int = 0
    layer: int | None = None
    head: int | None = None

    def output_changes(self, model: Model, batch: Batch, trace: Trace) -> Tensor:
        """Total variation between the output and that under each shuffled attention, `[batch permutation]`."""
        seeds = torch.tensor([derive_seed("permutation", self.seed, uid) for uid in batch.uids])
        with torch.no_grad():
            before = model.task.probabilities(trace.logits)[:, None]
            if isinstance(model, AttentiveModel):
                shuffled = shuffle_attention(
                    trace.attention[:, 0, 0], model.input_format.support(batch), seeds, self.permutations
                )
                logits = model.readout(batch, trace.hidden)(shuffled)
            else:
                logits = self._logits_by_forward_pass(model, batch, trace.attention, seeds)
            return total_variation(model.task.probabilities(logits), before)

    def _logits_by_forward_pass(self, model: Model, batch: Batch, attention: Tensor, seeds: Tensor) -> Tensor:
        """Logits `[batch permutation output]`; what is not shuffled stays as it was."""
        chosen = self._layer_head_slice(attention)
        at_once = max(1, MAX_WEIGHTS_AT_ONCE // attention.numel())
        found = []
        for first in range(0, self.permutations, at_once):
            count = min(at_once, self.permutations - first)
            rows = attention[chosen].flatten(1, -2)
            support = batch.mask.unsqueeze(1).expand_as(rows)
            shuffled = shuffle_attention(rows, support, seeds + (first << 20), count)
            given = attention.unsqueeze(1).repeat(1, count, *([1] * (attention.dim() - 1)))
            given[:, :, *chosen[1:]] = shuffled.reshape(len(batch), count, *attention[chosen].shape[1:])
            logits = model(batch.repeat(count), attention=given.flatten(0, 1)).logits
            found.append(logits.reshape(len(batch), count, -1))
        return torch.cat(found, dim=1)

    def _layer_head_slice(self, attention: Tensor) -> tuple[slice, slice, slice]:
        layers, heads = attention.shape[1:3]
        for name, wanted, count in (("layer", self.layer, layers), ("head", self.head, heads)):
            if wanted is not None and not 0 <= wanted < count:
                raise UserError(f"there is no {name} {wanted}: this model has {count}, counted from 0")
        return slice(None), _slice_at(self.layer), _slice_at(self.head)


def _slice_at(place: int | None) -> slice:
    return slice(None) if place is None else slice(place, place + 1)


def shuffle_attention(attention: Tensor, support: Tensor, seeds: Tensor, count: int) -> Tensor:
    """`count` random permutations of each row of attention `[batch query unit]` inside its support.

    Given back as `[batch count query unit]`: the supported units are read in random order and written to the supported
    places in their own order.
    """
    batch, queries, units = attention.shape
    own = (seeds.to(attention.device)[:, None] + torch.arange(queries, device=attention.device)).flatten()
    reach = support.flatten(0, 1)
    drawn = random_permutations(own, count, reach)
    places = torch.argsort((~reach).to(torch.int8), dim=-1, stable=True).unsqueeze(1).expand_as(drawn)
    weights = attention.flatten(0, 1).unsqueeze(1).expand(drawn.shape).gather(-1, drawn)
    shuffled = torch.empty_like(weights).scatter_(-1, places, weights)
    return shuffled.view(batch, queries, count, units).transpose(1, 2)


ATTENTION_BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Bins of maximum attention, closed below, open above but for the last."""


@dataclass(frozen=True)
class Permutation(Trial):
    """Median change of the output over random permutations of each instance's attention.

    Args:
        permutations: shuffled weightings per instance (the paper: 100).
        limit: at most this many test instances.
        layer: of a transformer, only this layer; None shuffles all.
        head: of a transformer, only this head of each chosen layer.
    """

    name: ClassVar[str] = "permutation"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Does it matter which words get the attention?"
    claim: ClassVar[str] = (
        "If attention explains a prediction, dealing the same weights to other words should change the prediction, "
        "most of all where one word holds nearly all the weight."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.2.1, figure 3"
    limits: ClassVar[str] = (
        "A small change does not prove that attention is meaningless: neighbouring words may carry the same "
        "information, and the model was never trained with shuffled weights. A large change does not prove that "
        "attention shows the reasons."
    )

    subject: ModelRecipe
    permutations: int = 100
    seed: int = 0
    limit: int | None = None
    layer: int | None = None
    head: int | None = None

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance: uid, length, predicted class, maximum attention, median change."""
        trained = self.subject.restore(workspace)
        whole = trained.batch("test")
        batch = sample_rows(whole, self.limit)
        rows: list[pd.DataFrame] = []
        shuffling = AttentionShuffler(self.permutations, self.seed, self.layer, self.head)
        size = max(1, min(workspace.batch_size, 6400 // max(1, self.permutations)))
        with workspace.progress.task(f"permutation {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, size):
                rows.append(permutation_rows(trained.model, part.to(workspace.device), shuffling))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(whole)})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Median over instances of the median change: overall, by predicted class, and by class and attention bin."""
        found = {"n": float(len(table)), "median_change": float(table["median_change"].median())}
        for predicted, of_class in table.groupby("predicted"):
            found[f"n.class_{predicted}"] = float(len(of_class))
            found[f"median_change.class_{predicted}"] = float(of_class["median_change"].median())
            for low, high in ATTENTION_BINS:
                inside = of_class[_in_bin(of_class["maximum_attention"], low, high)]
                key = f"class_{predicted}.attention_{low:.2f}_to_{high:.2f}"
                found[f"n.{key}"] = float(len(inside))
                found[f"median_change.{key}"] = float(inside["median_change"].median())
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 3 of the paper: violins of the median change in four bins of maximum attention, by predicted class."""
        groups = tuple(
            tuple(
                Series(
                    f"class {predicted}", tuple(of_class["median_change"][_in_bin(of_class["maximum_attention"], *b)])
                )
                for predicted, of_class in table.groupby("predicted")
            )
            for b in ATTENTION_BINS
        )
        return (
            Violin(
                "Change of the output when attention is permuted",
                Axis("median change of the output", (-0.05, 1.05)),
                Axis("maximum attention"),
                tuple(f"{low:.2f} to {high:.2f}" for low, high in ATTENTION_BINS),
                groups,
            ),
        )

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """How far the output moves, and whether it moves more where attention is concentrated."""
        change = summary["median_change"]
        size = "hardly moves" if change < 0.05 else "moves" if change < 0.25 else "moves strongly"
        typical = f"For half of the texts the output changes by {change:.3f} or less (0 nothing, 1 everything) when "
        meaning = f"their weights are dealt to other words: the prediction {size}."
        return typical + meaning + _trend_sentence(summary)


def _trend_sentence(summary: Mapping[str, float]) -> str:
    """Whether the change grows from the lowest to the highest bin that holds at least ten instances, class by class."""
    rises: list[bool] = []
    for name in summary:
        if name.startswith("n.class_") and name.endswith("0.00_to_0.25"):
            predicted = name.split(".")[1]
            keys = [f"{predicted}.attention_{low:.2f}_to_{high:.2f}" for low, high in ATTENTION_BINS]
            filled = [summary[f"median_change.{key}"] for key in keys if summary[f"n.{key}"] >= 10]
            rises += [] if len(filled) < 2 else [filled[-1] > filled[0]]
    if not rises:
        return " There are too few texts with concentrated attention to say whether concentration matters."
    if all(rises):
        return " It changes more where one word holds much of the attention."
    return " It does not change more where one word holds much of the attention."


def _in_bin(values: pd.Series[float], low: float, high: float) -> pd.Series[bool]:
    return (values >= low) & ((values < high) | (high == ATTENTION_BINS[-1][1]))


def permutation_rows(model: Model, batch: Batch, shuffler: AttentionShuffler) -> pd.DataFrame:
    """The trial's rows for one batch."""
    with torch.no_grad():
        trace = model(batch)
    change = shuffler.output_changes(model, batch, trace)
    return pd.DataFrame(
        {
            "uid": batch.uids,
            "length": batch.content_mask.sum(1).tolist(),
            "predicted": model.task.probabilities(trace.logits).argmax(1).tolist(),
            "maximum_attention": trace.attention.amax((1, 2, 3, 4)).tolist(),
            "median_change": change.double().quantile(0.5, dim=1).tolist(),
        }
    )
