"""Several adversaries side by side (Wiegreffe & Pinter's future work): how many different stories fit one prediction?

The adversaries are trained together, to predict as the base does while attending away from it and from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Figure, Matrix, Scatter, Series
from heedful.measures.attention_distance import MATCHING_BATCH_SIZE, attention_distance
from heedful.measures.divergence import total_variation
from heedful.models.chorus import Chorus, ChorusModel
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.adversarial_objectives import Disperse
from heedful.training.predictions import BatchPredictions, load_predictor
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Training, inference_batches
from heedful.trials._trial import Trial
from heedful.trials.adversarial_training import ATTEFA_TRAINING
from heedful.types import Batch, UserError

FAR = 0.35
"""Half of what is possible: from here on attentions are called quite different."""
STORIES = ": quite different attentions go with the same predictions."
ALIKE = ": they end up attending much alike."
GAVE_UP = ", but they no longer predict alike: they gave up predictions for distance."
NEITHER = ", but they no longer predict alike, and they end up attending much alike."
SAME = 0.9
"""From this share of equal predictions on, models are said to predict alike."""


@dataclass(frozen=True)
class Dispersal(Trial):
    """Adversaries that are far from the base and from each other; one row per instance.

    Args:
        members: how many adversaries are trained together.
        apart: the weight of their distance from each other.
        adversary_seed: decides their weights and the order of batches.
    """

    name: ClassVar[str] = "dispersal"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "How many different attentions lead to the same predictions?"
    claim: ClassVar[str] = (
        "If there is one right explanation, models that predict alike cannot all attend to different words: trained to "
        "differ, they should end up alike, or predict differently."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 6 (future work)"
    limits: ClassVar[str] = (
        "That several models predict alike with different attention says nothing about which of them is right about "
        "itself: each may use what it attends to."
    )

    subject: TrainedModel
    members: int = 3
    apart: float = 1.0
    adversary_seed: int = 0
    fit: Training = ATTEFA_TRAINING

    def __post_init__(self) -> None:
        if self.members < 2:
            raise UserError("dispersal compares adversaries with each other: choose at least two members")

    @property
    def chorus(self) -> TrainedModel:
        """The adversaries, trained together."""
        plan = Chorus(self.subject.architecture, self.members)
        objective = Disperse(self.subject, apart=self.apart)
        return replace(
            self.subject, architecture=plan, objective=objective, seed=self.adversary_seed, training=self.fit
        )

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The base and its adversaries."""
        return (self.subject, self.chorus)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per test instance: each member's distance from the base, and from each other member."""
        trained = self.chorus.restore(workspace)
        base = load_predictor(self.subject, "test", workspace)
        batch = trained.batch("test")
        assert isinstance(trained.model, ChorusModel)
        rows: list[pd.DataFrame] = []
        with workspace.progress.task(f"dispersal {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, MATCHING_BATCH_SIZE):
                moved = part.to(workspace.device)
                rows.append(self.rows(trained.model, moved, base(moved)))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(table)})

    @torch.no_grad()
    def rows(self, model: ChorusModel, batch: Batch, said: BatchPredictions) -> pd.DataFrame:
        """The trial's rows for one batch; `jsd` and `stvd` list the members, `between` all of their pairs by rows."""
        traces = model.each(batch)
        outputs = [model.task.probabilities(trace.logits).double() for trace in traces]
        far = [attention_distance(trace.attention, said.attention, batch.mask).jsd for trace in traces]
        moved = [total_variation(each, said.probabilities.double()) for each in outputs]
        pairs = [
            attention_distance(one.attention, other.attention, batch.mask).jsd for one in traces for other in traces
        ]
        return pd.DataFrame(
            {
                "uid": batch.uids,
                "predicted": said.probabilities.argmax(1).tolist(),
                "jsd": _listed(far),
                "stvd": _listed(moved),
                "answered": _listed([each.argmax(1) for each in outputs]),
                "between": _listed(pairs),
            }
        )

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Mean distance from the base and from each other, change of output, share of equal predictions."""
        jsd, stvd, between = (_stacked(table, name) for name in ("jsd", "stvd", "between"))
        answered = _stacked(table, "answered")
        members = jsd.shape[1]
        alike = (answered == torch.tensor(table["predicted"].tolist())[:, None]).double()
        found = {
            "members": float(members),
            "diversity": float(between.sum(1).mean() / (members * (members - 1))),
            "jsd": float(jsd.mean()),
            "tvd": float(stvd.mean() / 2),
            "same_prediction": float(alike.mean()),
        }
        for member in range(members):
            place = f"member_{member}"
            numbers = {"jsd": jsd, "tvd": stvd / 2, "same_prediction": alike}
            found |= {f"{name}.{place}": float(values[:, member].mean()) for name, values in numbers.items()}
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Who is how far from whom, and the members in the plane of divergence and change."""
        jsd, stvd, between = (_stacked(table, name) for name in ("jsd", "stvd", "between"))
        members = jsd.shape[1]
        names = ("base", *(f"adversary {member}" for member in range(members)))
        inner = between.mean(0).reshape(members, members).tolist()
        to_base = jsd.mean(0).tolist()
        values = ((None, *to_base), *((to_base[place], *_off_diagonal(row, place)) for place, row in enumerate(inner)))
        x, y = Axis("mean divergence of attention (JSD)", (0.0, math.log(2))), Axis("mean change of output (TVD)")
        points = ((Series("adversaries", tuple(to_base)), Series("adversaries", tuple((stvd / 2).mean(0).tolist()))),)
        return (
            Matrix("Divergence between the base and its adversaries", names, names, values, (0.0, math.log(2))),
            Scatter("What the adversaries pay", x, y, points),
        )

    @staticmethod
    def interpretation(summary: Mapping[str, float]) -> str:
        """How far from each other models are that predict alike."""
        members, alike = summary["members"], summary["same_prediction"]
        apart = summary["diversity"]
        found = (
            f"{members:.0f} models that agree with the base on {alike:.0%} of its predictions attend "
            f"{summary['jsd']:.2f} away from it and {apart:.2f} away from each other (JSD, at most .69)"
        )
        if alike < SAME:
            return found + (GAVE_UP if apart > FAR else NEITHER)
        return found + (STORIES if apart > FAR else ALIKE)


def _listed(columns: list[Tensor]) -> list[list[float]]:
    """A list per row from a tensor per column."""
    rows: list[list[float]] = torch.stack([column.cpu() for column in columns], 1).tolist()
    return rows


def _stacked(table: pd.DataFrame, name: str) -> Tensor:
    return torch.tensor([list(row) for row in table[name]], dtype=torch.float64)


def _off_diagonal(row: list[float], place: int) -> tuple[float | None, ...]:
    return tuple(None if index == place else value for index, value in enumerate(row))
