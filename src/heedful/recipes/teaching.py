"""What a frozen teacher says to a class: who learns from which examples, and the maps and answers kept for them.

Students simulate their teacher on few examples (`Classroom.size`), drawn anew for each seed or once for all as in the
paper. What early stopping sees and what an explainer is trained on are different examples, unless the paper's shared
dev split is asked for. The teacher is asked once about each example (`Maps`); students look its words up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.core.headscores import read_heads
from heedful.core.types import Batch, Example, Split, Task, UserError
from heedful.core.workspace import Artefact, Json, Recipe, Workspace, derived_seed
from heedful.recipes.banks import Bank, Shown
from heedful.recipes.subject import Subject, Trained
from heedful.recipes.training import inference_batches

UNSEEN = (0.7, 0.1)
"""Shares of a test split that become the pupils' pool and dev part; the rest is their test (the paper's IMDB)."""


@dataclass(frozen=True)
class Part:
    """Some examples of a teacher's corpus.

    Args:
        limit: at most this many, drawn by `draw`; None takes all in the corpus's order.
        unseen: all splits are cut from the corpus's test split, which the teacher has never seen.
    """

    split: Split
    limit: int | None = None
    draw: int = 0
    unseen: bool = False

    def of(self, trained: Trained) -> tuple[Example, ...]:
        """The examples, those that the teacher's preprocessing keeps."""
        whole = _unseen(trained.examples("test"))[self.split] if self.unseen else trained.examples(self.split)
        if not whole:
            raise UserError(f"the {self.split} split has no examples for a class to work with")
        return shuffled(whole, self.split, self.draw)[: self.limit] if self.limit is not None else whole


@dataclass(frozen=True)
class Classroom:
    """Which examples a student learns from, is stopped by, and is examined on.

    Args:
        size: examples with the teacher's answers, and explanations, that a student learns from: its budget.
        draw: "redrawn" for each seed, or the same "fixed" ones for all seeds (the paper).
        pool: "train" draws them from the texts that the teacher learned from; "test" cuts the teacher's test split
            into the three splits of the class, so that the teacher has seen none of them.
        outer_share: share of the dev split that trains a learned explainer; the rest decides early stopping.
        shared: the whole dev split does both (the paper).
        limit: at most so many dev, and so many test, examples; None takes all.
    """

    size: int = 500
    draw: Literal["redrawn", "fixed"] = "redrawn"
    pool: Split = "train"
    outer_share: float = 0.5
    shared: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1 or (self.limit is not None and self.limit < 2):
            raise UserError("a classroom needs at least one example to learn from and two to be judged by")
        if self.draw not in ("redrawn", "fixed") or self.pool not in ("train", "test"):
            raise UserError("a classroom is drawn 'redrawn' or 'fixed', from the pool 'train' or 'test'")
        if not 0 < self.outer_share < 1:
            raise UserError(f"outer_share must lie between 0 and 1, not {self.outer_share}; shared=True shares all")

    def pupils(self, seed: int) -> Part:
        """The examples that a student of this seed learns from."""
        return self._part("train", self.size, seed if self.draw == "redrawn" else 0)

    @property
    def dev(self) -> Part:
        """The examples held out from learning."""
        return self._part("dev", self.limit, 0)

    @property
    def test(self) -> Part:
        """The examples that simulability is measured on."""
        return self._part("test", self.limit, 0)

    def divided(self, dev: Sequence[Example]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
        """What trains an explainer, and what decides early stopping."""
        if self.shared:
            return tuple(dev), tuple(dev)
        if len(dev) < 2:
            raise UserError("one dev example cannot be divided: say shared=True or give more")
        order = shuffled(dev, "divided", 0)
        cut = min(max(1, round(self.outer_share * len(order))), len(order) - 1)
        return order[:cut], order[cut:]

    def _part(self, split: Split, limit: int | None, draw: int) -> Part:
        return Part(split, limit, draw, unseen=self.pool == "test")


def shuffled(examples: Sequence[Example], purpose: str, draw: int) -> tuple[Example, ...]:
    """The examples in an order that depends on purpose, draw and their number alone."""
    generator = Generator().manual_seed(derived_seed("class", purpose, draw, len(examples)))
    return tuple(examples[place] for place in torch.randperm(len(examples), generator=generator).tolist())


def _unseen(examples: Sequence[Example]) -> dict[Split, tuple[Example, ...]]:
    order = shuffled(examples, "unseen", 0)
    first, second = (round(share * len(order)) for share in accumulate(UNSEEN))
    return {"train": order[:first], "dev": order[first:second], "test": order[second:]}


@dataclass(frozen=True)
class Maps(Recipe):
    """A teacher's logits and the maps of a bank on some examples, kept flat: one row per real unit.

    Args:
        bank: None keeps the logits alone.
    """

    teacher: Subject
    part: Part
    bank: Bank | None = None

    def make(self, workspace: Workspace) -> Artefact:
        """Tensors `logits` `[example output]`, `offsets` `[example + 1]`, `scored` `[unit]`, `maps` `[unit map]`."""
        trained = self.teacher.restore(workspace)
        batch = trained.batcher(self.part.of(trained))
        logits: list[Tensor] = []
        maps: list[Tensor] = []
        order: list[Tensor] = []
        title = f"{'answers' if self.bank is None else self.bank.called} of the teacher"
        with workspace.progress.task(title, len(batch)) as step:
            for rows, part in inference_batches(batch, workspace.batch_size):
                shown = self._shown(trained, part.to(workspace.device))
                order.append(rows)
                logits.append(shown.logits.detach().cpu().float())
                maps += [found[:, :length].T.detach().cpu().float() for found, length in _real(shown.maps, part)]
                step(len(part))
        places = torch.cat(order).argsort()
        flat = torch.cat([maps[place] for place in places.tolist()])
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), batch.lengths.cumsum(0)))
        tensors = {"logits": torch.cat(logits)[places], "offsets": offsets, "scored": batch.scored[batch.mask]}
        notes: dict[str, Json] = {"about": dict(self.teacher.about), "maps": flat.shape[1], "examples": len(batch)}
        return Artefact(tensors | {"maps": flat}, pd.DataFrame({"uid": batch.uids}), notes)

    def _shown(self, trained: Trained, part: Batch) -> Shown:
        if self.bank is not None:
            return self.bank.read(trained.model, part)
        with torch.no_grad():
            logits = read_heads(trained.model, part).logits
        return Shown(logits.new_zeros(len(part), 0, part.mask.shape[1]), logits)


def _real(maps: Tensor, part: Batch) -> list[tuple[Tensor, int]]:
    return list(zip(maps, part.lengths.tolist(), strict=True))


class Taught:
    """A teacher's words, looked up: logits and maps of any batch of the examples that it was asked about."""

    def __init__(self, artefact: Artefact) -> None:
        self._logits, self._maps = artefact.tensors["logits"], artefact.tensors["maps"]
        self._offsets, self._scored = artefact.tensors["offsets"], artefact.tensors["scored"]
        self._places = {str(uid): place for place, uid in enumerate(artefact.table["uid"])}

    @property
    def count(self) -> int:
        """How many maps there are for each example."""
        return self._maps.shape[1]

    def logits(self, batch: Batch) -> Tensor:
        """The teacher's logits `[batch output]`."""
        return self._logits[self._rows(batch)].to(batch.mask.device)

    def maps(self, batch: Batch) -> Tensor:
        """The maps on the batch's unit axis `[batch map unit]`, 0 on padding."""
        rows = self._rows(batch)
        starts, lengths = self._offsets[rows], self._offsets[rows + 1] - self._offsets[rows]
        mask = batch.mask.cpu()
        if not torch.equal(lengths, mask.sum(1)):
            raise UserError("student and teacher read other units of the same example: give both the same batching")
        places = starts.unsqueeze(1) + torch.arange(mask.shape[1])
        found = self._maps[places.masked_fill(~mask, 0)].masked_fill(~mask.unsqueeze(-1), 0.0)
        return found.transpose(1, 2).to(batch.mask.device)

    def every(self) -> tuple[Tensor, Tensor, Tensor]:
        """Maps of all examples `[example map unit]`, which units are scored, and which are real `[example unit]`."""
        lengths = self._offsets.diff()
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        maps = torch.zeros(*mask.shape, self.count)
        scored = torch.zeros_like(mask)
        maps[mask], scored[mask] = self._maps, self._scored.bool()
        return maps.transpose(1, 2), scored, mask

    def _rows(self, batch: Batch) -> Tensor:
        try:
            return torch.tensor([self._places[uid] for uid in batch.uids])
        except KeyError as error:
            raise UserError(f"the teacher was never asked about example {error}") from error


def answers(task: Task, logits: Tensor) -> Tensor:
    """What a model says `[batch]`: the index of its likeliest class, or its number."""
    said = task.probabilities(logits)
    return said.squeeze(-1) if task.classes == 1 else said.argmax(-1)
