"""Seed variance (Wiegreffe & Pinter 2019, section 3.3): how far is attention from that of the same model trained again?

Such trainings differ by chance alone, so their divergence is the noise floor for every other comparison of attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pandas as pd
import torch

from heedful.attributions.attention import largest_weights
from heedful.figures import Axis, Figure, Scatter, Series
from heedful.measures.divergence import MATCHING_BATCH_SIZE, attention_distance, attention_jsd_bound, total_variation
from heedful.models.attentive import Attentive
from heedful.results import Finding, Statistic, Verdict, get_statistic, value_of
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.predictions import Predictions, Predictor, attention_support, load_predictor
from heedful.training.trained_model import TrainedModel, check_trained_here
from heedful.trials.imposed_attention import check_seeds
from heedful.trials.trial import LARGE_SHARE, SMALL_SHARE, Trial, attention_violins, split_by_class_and_attention
from heedful.types import Batch, Model, UserError


@dataclass(frozen=True)
class SeedVariance(Trial):
    """Jensen-Shannon divergence between the base's attention and that of other seeds, one row per text.

    It is the mean over query rows and heads; the heads of two transformers are matched first.

    Args:
        subject: the base.
        seeds: the other trainings; the paper has eight.
        limit: at most this many test examples.
    """

    revision: ClassVar[int] = 2
    name: ClassVar[str] = "seed-variance"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "How much does attention change when the same model is trained again?"
    claim: ClassVar[str] = (
        "If attention is a property of the data and the architecture, the same model trained from another random seed "
        "should attend to the same words."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.3, figure 3"
    limits: ClassVar[str] = (
        "Stable attention is not necessarily a faithful explanation, because every training run may have the same "
        "bias. Unstable attention may still explain each of the models."
    )

    subject: TrainedModel
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    limit: int | None = None

    def __post_init__(self) -> None:
        check_trained_here(self.subject)
        check_seeds(self.seeds)
        if self.subject.seed in self.seeds:
            raise UserError(f"seed {self.subject.seed} is that of the base model; compare it with other seeds")

    @property
    def other_seed_models(self) -> tuple[TrainedModel, ...]:
        """The base trained from each of the other seeds."""
        return tuple(replace(self.subject, seed=seed) for seed in self.seeds)

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        models = (self.subject, *self.other_seed_models)
        stored = isinstance(self.subject.architecture, Attentive)
        return (*models, *(Predictions(model, "test") for model in models if stored))

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text with its divergence from each seed."""
        predictors = [load_predictor(model, "test", workspace) for model in (self.subject, *self.other_seed_models)]
        return self.tabulate_texts(workspace, partial(self._rows, predictors), self.limit, MATCHING_BATCH_SIZE)

    def _rows(self, predictors: list[Predictor], model: Model, batch: Batch) -> pd.DataFrame:
        """The trial's rows for one batch: `jsd` is the median over seeds, `bound` the largest one possible."""
        base, *others = predictors
        base_trace = base(batch)
        attention, probabilities = base_trace.attention.double(), base_trace.probabilities.double()
        jsd, tvd = [], []
        for predictor in others:
            other = predictor(batch)
            jsd.append(attention_distance(attention, other.attention.double(), batch.mask).jsd)
            # Half the total variation, the scale of Wiegreffe & Pinter; regression has no distribution.
            half = 0.5 * total_variation(probabilities, other.probabilities.double())
            tvd.append(half if probabilities.shape[1] > 1 else torch.full_like(half, torch.nan))
        support = attention_support(model, batch, attention)
        predicted = probabilities.argmax(1)
        by_seed = torch.stack(jsd, 1)
        return pd.DataFrame(
            {
                "uid": batch.uids,
                "length": batch.content_mask.sum(1).tolist(),
                "predicted": predicted.tolist(),
                "probability": probabilities.gather(1, predicted.unsqueeze(1)).squeeze(1).tolist(),
                "maximum_attention": largest_weights(attention, batch).tolist(),
                "jsd": by_seed.quantile(0.5, dim=1).tolist(),
                "bound": attention_jsd_bound(attention, support, batch.mask).tolist(),
                "seeds": [list(self.seeds)] * len(batch),
                "jsd_by_seed": by_seed.tolist(),
                "tvd_by_seed": torch.stack(tvd, 1).tolist(),
            }
        )

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Mean (`jsd`) and median (`median_jsd`) over texts: overall, by class, by class and maximum attention.

        A text counts with its median over seeds. `tvd` is half the total variation, as the paper prints it.
        """
        jsd, tvd = _means_by_seed(table, "jsd_by_seed"), _means_by_seed(table, "tvd_by_seed")
        shares = (table["jsd"] / table["bound"])[table["bound"] > 0]
        yield Statistic("tvd", value=math.fsum(tvd.values()) / len(tvd), n=len(table))
        yield Statistic("bound", value=float(table["bound"].mean()), n=len(table))
        yield Statistic("share_of_bound", value=float(shares.mean()), n=len(table))
        for seed in jsd:
            yield Statistic("jsd", f"seed {seed}", value=jsd[seed], n=len(table))
            yield Statistic("tvd", f"seed {seed}", value=tvd[seed], n=len(table))
        for subset, rows in split_by_class_and_attention(table):
            yield Statistic("jsd", subset=subset, value=float(rows["jsd"].mean()), n=len(rows))
            yield Statistic("median_jsd", subset=subset, value=float(rows["jsd"].median()), n=len(rows))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figure 3 of the paper, and the mean divergences of attention and predictions of each seed."""
        axis = Axis("divergence from the base, median over seeds", (-0.05, 0.7))
        violin = attention_violins("Attention of other seeds, by maximum attention", axis, table, "jsd")
        jsd, tvd = (tuple(_means_by_seed(table, name).values()) for name in ("jsd_by_seed", "tvd_by_seed"))
        if math.isnan(tvd[0]):
            return (violin,)
        attention = Axis("mean divergence of attention (JSD)", (0.0, math.log(2)))
        points = ((Series("other seeds", jsd), Series("other seeds", tvd)),)
        return (
            violin,
            Scatter("Each seed against the base", attention, Axis("mean change in the output (TVD)"), points),
        )

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Whether the divergence is a small or a large share of the largest possible one."""
        share = get_statistic(summary, "share_of_bound")
        if math.isnan(share.value):
            return (Finding(Verdict.UNDECIDED, "", (share,), "no text has more than one word"),)
        if SMALL_SHARE <= share.value < LARGE_SHARE:
            return (Finding(Verdict.UNDECIDED, "", (share,), "the change is moderate"),)
        return (Finding(Verdict.SUPPORTED if share.value < SMALL_SHARE else Verdict.NOT_SUPPORTED, "", (share,)),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        (finding,) = cls.findings(summary)
        share = finding.evidence[0].value
        if math.isnan(share):
            return "No text has more than one word, so attention cannot change."
        words = {Verdict.SUPPORTED: "only slightly", Verdict.NOT_SUPPORTED: "strongly", Verdict.UNDECIDED: "moderately"}
        jsd, tvd = value_of(summary, "jsd"), value_of(summary, "tvd")
        output = "" if math.isnan(tvd) else f", while the output changes by {2 * tvd:.3f} on a scale from 0 to 1"
        return (
            f"Attention changes {words[finding.verdict]} when the same model is trained again: by {jsd:.3f} on "
            f"average, {share:.0%} of the largest possible divergence{output}. This is the noise floor: attention "
            f"that diverges by less than {jsd:.3f} differs no more than chance."
        )


def _means_by_seed(table: pd.DataFrame, column: str) -> dict[int, float]:
    """The mean over texts of a column with one number per seed."""
    means = (math.fsum(values) / len(values) for values in zip(*table[column], strict=True))
    return {int(seed): mean for seed, mean in zip(table["seeds"].iloc[0], means, strict=True)}
