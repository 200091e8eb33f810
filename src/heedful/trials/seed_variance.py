"""Seed variance (Wiegreffe & Pinter, section 3.3): how far is attention from that of the same model trained again?

Nothing but chance tells these trainings apart, so their divergence is the floor that every other one must be compared
with: an adversary that stays below it has shown nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Figure, Scatter, Series, Violin
from heedful.measures.attention_distance import MATCHING_BATCH_SIZE, attention_distance, attention_jsd_bound
from heedful.measures.divergence import total_variation
from heedful.models.attentive import Attentive, AttentiveModel
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import sample_rows
from heedful.training.predictions import BatchPredictions, Predictions, Predictor, load_predictor
from heedful.training.trained_model import TrainedModel, check_trained_here
from heedful.training.trainer import inference_batches
from heedful.trials._trial import Trial
from heedful.trials.imposed_attention import check_seeds
from heedful.trials.permutation import ATTENTION_BINS
from heedful.types import Batch, Model, UserError

JSD_RANGE = (-0.05, 0.7)
"""Divergences are at most ln 2 = .693."""


@dataclass(frozen=True)
class SeedVariance(Trial):
    """Jensen-Shannon divergence between the subject's attention and that of other seeds, one row per instance.

    With several rows or heads it is the mean over them, heads of two transformers being matched first.

    Args:
        subject: the base.
        seeds: the trainings that it is compared with; the paper has eight.
        limit: at most this many test instances.
    """

    name: ClassVar[str] = "seeds"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "How much does attention change when the same model is trained again?"
    claim: ClassVar[str] = (
        "If attention is a property of the data and the model, the same model trained again from another random start "
        "should attend to the same words."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.3, figure 3"
    limits: ClassVar[str] = (
        "Stable attention need not be a faithful explanation: the same bias may come out of every training. Unstable "
        "attention may still tell what each of the models does."
    )

    subject: TrainedModel
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    limit: int | None = None

    def __post_init__(self) -> None:
        check_trained_here(self.subject)
        check_seeds(self.seeds)
        if self.subject.seed in self.seeds:
            raise UserError(f"seed {self.subject.seed} is the base's own; compare it with others")

    @property
    def other_seed_models(self) -> tuple[TrainedModel, ...]:
        """The same subject from each of the other seeds."""
        return tuple(replace(self.subject, seed=seed) for seed in self.seeds)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """All trainings, and what pooled ones say about the test split."""
        subjects = (self.subject, *self.other_seed_models)
        stored = isinstance(self.subject.architecture, Attentive)
        return (*subjects, *(Predictions(subject, "test") for subject in subjects if stored))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance with its divergence from each seed."""
        trained = self.subject.restore(workspace)
        whole = trained.batch("test")
        batch = sample_rows(whole, self.limit)
        base, *others = (
            load_predictor(subject, "test", workspace) for subject in (self.subject, *self.other_seed_models)
        )
        rows: list[pd.DataFrame] = []
        with workspace.progress.task(f"seeds {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, MATCHING_BATCH_SIZE):
                rows.append(self._rows(trained.model, part.to(workspace.device), (base, *others)))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(whole)})

    def _rows(self, model: Model, batch: Batch, predictions: tuple[Predictor, ...]) -> pd.DataFrame:
        """The trial's rows for one batch: `jsd` is the median over seeds, `bound` the largest one possible."""
        base, *others = (_to_double(answer(batch)) for answer in predictions)
        jsd = torch.stack([attention_distance(base.attention, other.attention, batch.mask).jsd for other in others], 1)
        support = model.input_format.support(batch) if isinstance(model, AttentiveModel) else batch.mask.unsqueeze(1)
        predicted = base.probabilities.argmax(1)
        return pd.DataFrame(
            {
                "uid": batch.uids,
                "length": batch.content_mask.sum(1).tolist(),
                "predicted": predicted.tolist(),
                "probability": base.probabilities.gather(1, predicted.unsqueeze(1)).squeeze(1).tolist(),
                "maximum_attention": base.attention.amax((1, 2, 3, 4)).tolist(),
                "jsd": jsd.quantile(0.5, dim=1).tolist(),
                "bound": attention_jsd_bound(base.attention, support, batch.mask).tolist(),
                "seeds": [list(self.seeds)] * len(batch),
                "jsd_by_seed": jsd.tolist(),
                "tvd_by_seed": torch.stack([_half_total_variation(base, other) for other in others], 1).tolist(),
            }
        )

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """`jsd` is always a mean over instances, `median_jsd` a median: overall, by class, by class and attention bin.

        An instance counts with its median over seeds; `jsd.seed_1` and `tvd.seed_1` are the means of one seed, `tvd`
        being half the total variation, as the paper prints it.
        """
        shares = (table["jsd"] / table["bound"])[table["bound"] > 0]
        by_seed = _means_by_seed(table)
        found = {
            "n": float(len(table)),
            **_jsd_statistics(table["jsd"], ""),
            "tvd": _mean([tvd for _, tvd in by_seed.values()]),
            "bound": float(table["bound"].mean()),
            "share_of_bound": float(shares.mean()),
            **{f"jsd.seed_{seed}": jsd for seed, (jsd, _) in by_seed.items()},
            **{f"tvd.seed_{seed}": tvd for seed, (_, tvd) in by_seed.items()},
        }
        for predicted, of_class in table.groupby("predicted"):
            found |= {f"n.class_{predicted}": float(len(of_class))} | _jsd_statistics(
                of_class["jsd"], f".class_{predicted}"
            )
            for (low, high), inside in _jsd_by_bin(of_class):
                key = f".class_{predicted}.attention_{low:.2f}_to_{high:.2f}"
                found |= {f"n{key}": float(len(inside))} | _jsd_statistics(inside, key)
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 3 of the paper, and each seed's mean divergences of attention and of predictions."""
        classes = [(f"class {predicted}", dict(_jsd_by_bin(rows))) for predicted, rows in table.groupby("predicted")]
        groups = tuple(tuple(Series(name, tuple(bins[each])) for name, bins in classes) for each in ATTENTION_BINS)
        labels = tuple(f"{low:.2f} to {high:.2f}" for low, high in ATTENTION_BINS)
        axis = Axis("divergence from the base, median over seeds", JSD_RANGE)
        jsd, tvd = zip(*_means_by_seed(table).values(), strict=True)
        seeds = ((Series("other seeds", jsd), Series("other seeds", tvd)),)
        attention = Axis("mean divergence of attention (JSD)", (0.0, math.log(2)))
        violin = Violin(
            "Attention of other seeds, by maximum attention", axis, Axis("maximum attention"), labels, groups
        )
        if math.isnan(tvd[0]):
            return (violin,)
        return (
            violin,
            Scatter("Each seed against the base", attention, Axis("mean change of the output (TVD)"), seeds),
        )

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """The noise floor, and how large it is."""
        share = summary["share_of_bound"]
        if math.isnan(share):
            return "There was no text of more than one word: attention cannot change."
        size = "hardly changes" if share < 0.1 else "changes" if share < 0.4 else "changes strongly"
        found = f"Attention {size} when the same model is trained again: by {summary['jsd']:.3f} on average, "
        found += f"{share:.0%} of what would be possible"
        moved = summary["tvd"]
        found += "." if math.isnan(moved) else f", while the output moves by {2 * moved:.3f} (0 nothing, 1 everything)."
        floor = f" This is the noise floor: other attention that is less than {summary['jsd']:.3f} away is no more "
        return found + floor + "different than chance makes it."


def _to_double(said: BatchPredictions) -> BatchPredictions:
    return BatchPredictions(said.probabilities.double(), said.attention.double())


def _half_total_variation(base: BatchPredictions, other: BatchPredictions) -> Tensor:
    """Half the total variation (W&P's scale: 0 to .5); NaN for regression, which has no distribution."""
    found = 0.5 * total_variation(base.probabilities, other.probabilities)
    return found if base.probabilities.shape[1] > 1 else torch.full_like(found, torch.nan)


def _jsd_statistics(values: pd.Series[float], of: str) -> dict[str, float]:
    return {f"jsd{of}": float(values.mean()), f"median_jsd{of}": float(values.median())}


def _means_by_seed(table: pd.DataFrame) -> dict[int, tuple[float, float]]:
    """Mean divergence of attention and of predictions of each seed."""
    jsd, tvd = ([_mean(column) for column in zip(*table[name], strict=True)] for name in ("jsd_by_seed", "tvd_by_seed"))
    return {int(seed): (one, other) for seed, one, other in zip(table["seeds"].iloc[0], jsd, tvd, strict=True)}


def _mean(values: list[float] | tuple[float, ...]) -> float:
    return math.fsum(values) / len(values)


def _jsd_by_bin(table: pd.DataFrame) -> Iterator[tuple[tuple[float, float], pd.Series[float]]]:
    """The divergences in each bin of maximum attention; rounding may put a maximum above 1."""
    for low, high in ATTENTION_BINS:
        inside = (table["maximum_attention"] >= low) & (
            (table["maximum_attention"] < high) | (high == ATTENTION_BINS[-1][1])
        )
        yield (low, high), table["jsd"][inside]
