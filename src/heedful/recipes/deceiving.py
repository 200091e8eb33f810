"""Adversaries that are trained: the base's predictions under attention as different from the base's as possible.

Wiegreffe & Pinter (`Deceive`) weigh the two by lambda, AtteFa (`Rival`) scales both to [0, 1] and weighs them alike.
Gold labels are not used: the base's own answers, computed once, are the truth of these trainings. Total variation
over two classes is |Δp|; Wiegreffe & Pinter count half of that, which is the scale of their lambda.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from heedful.core.divergences import total_variation
from heedful.core.heads import AT_ONCE, Distance, distance, scaled
from heedful.core.types import Batch, Model, Split, Task, Trace, UserError
from heedful.core.workspace import Workspace
from heedful.models.chorus import ChorusModel
from heedful.models.pooled import PooledModel
from heedful.recipes.answers import Answering, Said, answering
from heedful.recipes.objectives import Objective, class_weights
from heedful.recipes.training import Judge, Loss, evaluating, inference_batches

if TYPE_CHECKING:
    from heedful.recipes.subject import Subject

Start = Literal["fresh", "base"]


@dataclass(frozen=True)
class Told:
    """How an adversary differs from its base on a batch, per example `[batch]`.

    Args:
        diversity: mean divergence (JSD) between the members of a chorus; None for a single adversary.
    """

    variation: Tensor
    distance: Distance
    diversity: Tensor | None = None


def told(task: Task, trace: Trace, said: Said, mask: Tensor) -> Told:
    """The difference between what the adversary and its base say."""
    variation = total_variation(task.probabilities(trace.logits), said.probabilities)
    return Told(variation, distance(trace.attention, said.attention, mask))


@dataclass(frozen=True)
class Deceiving(Objective):
    """What both papers' adversaries share.

    Args:
        base: the subject whose predictions are kept and whose attention is left.
        start: "fresh" weights, as in both papers, or those of the "base" everywhere but in the attention module,
            which reaches the same trade-off in fewer epochs.
    """

    base: Subject
    start: Start = "fresh"

    def __post_init__(self) -> None:
        if self.start not in get_args(Start):
            raise UserError(f"an adversary cannot start {self.start!r}: choose start='fresh' or start='base'")

    def check(self, learner: Subject) -> None:
        """Refuses a learner that reads other texts than the base, or the same ones as other units."""
        if self.base.corpus != learner.corpus:
            raise UserError("the base was trained on another corpus than its adversary: give both the same")
        if self.base.batching != learner.batching:
            raise UserError("the base reads other units than its adversary: give both the same preprocessing")

    @property
    def called(self) -> str:
        """That this is an adversary."""
        return "adversary"

    @abstractmethod
    def costs(self, told: Told) -> Tensor:
        """What each example costs `[batch]`."""

    def arrange(self, model: Model, workspace: Workspace) -> None:
        """Gives the model the base's weights where a warm start is wanted."""
        if self.start == "fresh":
            return
        if not isinstance(model, PooledModel):
            raise UserError("a warm start from the base is for pooled models; a transformer starts pretrained anyway")
        weights = workspace.get(self.base).tensors
        own, kept = _but_attention(model.state_dict()), _but_attention(weights)
        if apart := sorted(own.keys() ^ kept.keys()):
            whose = "the adversary" if apart[0] in own else "the base"
            raise UserError(f"a warm start needs the base's architecture; only {whose} has {apart[0]}")
        if unlike := [name for name, weight in kept.items() if own[name].shape != weight.shape]:
            raise UserError(f"a warm start needs the base's architecture; {unlike[0]} has another shape")
        model.load_state_dict(kept, strict=False)

    def told(self, model: Model, batch: Batch, said: Said) -> tuple[Trace, Told]:
        """What the adversary does with a batch, and how it differs from what its base said."""
        trace = model(batch)
        return trace, told(model.task, trace, said, batch.mask)

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The cost of each example against the base's answers to it."""
        if task.classes < 2:
            raise UserError("adversaries are trained for classifiers: a change of the output is one of probability")
        base = answering(self.base, "train", workspace)

        def losses(model: Model, batch: Batch) -> Tensor:
            return self.costs(self.told(model, batch, base(batch))[1])

        return losses

    def judge(self, split: Split, workspace: Workspace) -> Judge:
        """The task's scores and: tvd (the papers' scale, half the total variation), jsd, kl, and `deception`, the
        mean cost with its sign turned, which is largest at the best epoch."""
        base = answering(self.base, split, workspace)

        def judged(model: Model, batch: Batch, inference: int) -> dict[str, float]:
            return _judged(self, model, batch, base)

        return judged


def _but_attention(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if not name.startswith("attention.")}


@dataclass(frozen=True)
class Deceive(Deceiving):
    """TVD(y, y_base) - lambda KL(a || a_base) (Wiegreffe & Pinter 2019, section 4), TVD being half of |Δp| summed.

    Args:
        strength: lambda.
        rescaled: multiply each batch by the sum of its class weights, as a broadcasting accident in the released
            code does.
    """

    strength: float = 1e-3
    rescaled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.strength < math.inf:
            raise UserError(f"lambda is {self.strength:g}: an adversary's strength is a number of 0 or more")

    @property
    def called(self) -> str:
        """The adversary's lambda."""
        return f"adversary, lambda {self.strength:g}"

    def costs(self, told: Told) -> Tensor:
        """½ TV - lambda KL."""
        return 0.5 * told.variation - self.strength * told.distance.kl

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """As for every adversary; rescaled where the released code is followed to the letter."""
        plain = super().loss(train, task, workspace)
        weights = class_weights(train, task) if self.rescaled else None
        if weights is None:
            return plain

        def rescaled(model: Model, batch: Batch) -> Tensor:
            assert batch.labels is not None
            losses = plain(model, batch)
            return losses * weights.to(losses)[batch.labels].sum()

        return rescaled


@dataclass(frozen=True)
class Rival(Deceiving):
    """sTVD - sJSD, both in [0, 1] and equally heavy (AtteFa)."""

    def costs(self, told: Told) -> Tensor:
        """TV - JSD / ln 2."""
        return told.variation - scaled(told.distance.jsd)


@dataclass(frozen=True)
class Disperse(Deceiving):
    """Several adversaries at once, far from the base and from each other, for a `Chorus` (W&P's future work).

    Per example: mean over members of sTVD - sJSD to the base, minus `apart` times the mean sJSD between members.
    """

    apart: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start != "fresh":
            raise UserError("members of a chorus start fresh: from one base they would all be the same")

    def told(self, model: Model, batch: Batch, said: Said) -> tuple[Trace, Told]:
        """Means over the members, and how far they are from each other."""
        if not isinstance(model, ChorusModel):
            raise UserError("Disperse trains several adversaries: give the subject the plan Chorus(plan, members)")
        traces = model.each(batch)
        found = [told(model.task, trace, said, batch.mask) for trace in traces]
        far = Distance(_mean([each.distance.kl for each in found]), _mean([each.distance.jsd for each in found]))
        apart = between([trace.attention for trace in traces], batch.mask)
        chorus = replace(traces[0], logits=_mean([trace.logits for trace in traces]))
        return chorus, Told(_mean([each.variation for each in found]), far, apart)

    def costs(self, told: Told) -> Tensor:
        """TV - JSD / ln 2 - apart x mean pairwise JSD / ln 2."""
        assert told.diversity is not None
        return told.variation - scaled(told.distance.jsd) - self.apart * scaled(told.diversity)


def between(attentions: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The mean divergence (JSD) over all pairs of attentions, per example `[batch]`; 0 for a single one."""
    pairs = list(combinations(attentions, 2))
    if not pairs:
        return torch.zeros(len(mask), device=mask.device)
    return torch.stack([distance(one, other, mask).jsd for one, other in pairs]).mean(0)


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)


@torch.no_grad()
def _judged(deceiving: Deceiving, model: Model, batch: Batch, base: Answering) -> dict[str, float]:
    device = next(model.parameters()).device
    probabilities = torch.zeros(len(batch), model.task.classes)
    sums = torch.zeros(4, dtype=torch.float64)
    with evaluating(model):
        for rows, part in inference_batches(batch, AT_ONCE):
            part = part.to(device)
            trace, found = deceiving.told(model, part, base(part))
            probabilities[rows] = model.task.probabilities(trace.logits).cpu().to(probabilities.dtype)
            parts = (0.5 * found.variation, found.distance.jsd, found.distance.kl, -deceiving.costs(found))
            sums += torch.stack([each.double().sum() for each in parts]).cpu()
    assert batch.labels is not None
    names = ("tvd", "jsd", "kl", "deception")
    means = dict(zip(names, (sums / len(batch)).tolist(), strict=True))
    return {**model.task.score(probabilities, batch.labels), **means}
