"""Several models of one plan side by side, trained together: adversaries that differ from each other too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn

from heedful.types import Architecture, Batch, Model, Task, Trace, UserError


@dataclass(frozen=True)
class Chorus(Architecture):
    """So many fresh models of the same plan; the chorus predicts the mean of its members' logits."""

    plan: Architecture
    members: int = 2

    def __post_init__(self) -> None:
        if self.members < 1:
            raise UserError("a chorus needs at least one member")

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> ChorusModel:
        """Members with weights drawn one after the other from the generator."""
        return ChorusModel(task, [self.plan.build(task, embeddings, generator) for _ in range(self.members)])


class ChorusModel(Model):
    """Members that share nothing; attention has the members' heads one after the other on the head axis."""

    def __init__(self, task: Task, members: list[Model]) -> None:
        super().__init__()
        self.task = task
        self.members = nn.ModuleList(members)
        self.notes = tuple(dict.fromkeys(note for member in members for note in member.notes))

    def each(self, batch: Batch) -> list[Trace]:
        """What happened inside each member."""
        return [cast(Model, member)(batch) for member in self.members]

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """The mean of the members' logits, embeddings and states; the attention of all."""
        if embeddings is not None or attention is not None:
            raise UserError("a chorus takes no embeddings or attention: ask one of its members")
        traces = self.each(batch)
        return Trace(
            embeddings=torch.stack([trace.embeddings for trace in traces]).mean(0),
            hidden=torch.stack([trace.hidden for trace in traces]).mean(0),
            attention=torch.cat([trace.attention for trace in traces], 2),
            logits=torch.stack([trace.logits for trace in traces]).mean(0),
        )
