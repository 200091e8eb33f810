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

from heedful.measures.attention_distance import MATCHING_BATCH_SIZE, AttentionDistance, attention_distance, scaled_jsd
from heedful.measures.divergence import total_variation
from heedful.models.attentive import AttentiveModel
from heedful.models.chorus import ChorusModel
from heedful.store.workspace import Workspace
from heedful.training.objectives import Objective, class_weights
from heedful.training.predictions import BatchPredictions, Predictor, load_predictor
from heedful.training.trainer import Evaluator, Loss, evaluation_mode, inference_batches
from heedful.types import Batch, Model, Split, Task, Trace, UserError

if TYPE_CHECKING:
    from heedful.training.trained_model import TrainedModel

Initialization = Literal["fresh", "base"]


@dataclass(frozen=True)
class AdversaryDistance:
    """How an adversary differs from its base on a batch, per example `[batch]`.

    Args:
        diversity: mean divergence (JSD) between the members of a chorus; None for a single adversary.
    """

    total_variation: Tensor
    attention_distance: AttentionDistance
    diversity: Tensor | None = None


def adversary_distance(task: Task, trace: Trace, base: BatchPredictions, mask: Tensor) -> AdversaryDistance:
    """The difference between what the adversary and its base say."""
    variation = total_variation(task.probabilities(trace.logits), base.probabilities)
    return AdversaryDistance(variation, attention_distance(trace.attention, base.attention, mask))


@dataclass(frozen=True)
class AdversarialObjective(Objective):
    """What both papers' adversaries share.

    Args:
        base: the subject whose predictions are kept and whose attention is left.
        start: "fresh" weights, as in both papers, or those of the "base" everywhere but in the attention module,
            which reaches the same trade-off in fewer epochs.
    """

    base: TrainedModel
    initialization: Initialization = "fresh"

    def __post_init__(self) -> None:
        if self.initialization not in get_args(Initialization):
            raise UserError(f"an adversary cannot start {self.initialization!r}: choose start='fresh' or start='base'")

    def check(self, recipe: TrainedModel) -> None:
        """Refuses a learner that reads other texts than the base, or the same ones as other units."""
        if self.base.corpus != recipe.corpus:
            raise UserError("the base was trained on another corpus than its adversary: give both the same")
        if self.base.tokenization != recipe.tokenization:
            raise UserError("the base reads other units than its adversary: give both the same preprocessing")

    @property
    def display_name(self) -> str:
        """That this is an adversary."""
        return "adversary"

    @abstractmethod
    def example_losses(self, distance: AdversaryDistance) -> Tensor:
        """What each example costs `[batch]`."""

    def prepare_model(self, model: Model, workspace: Workspace) -> None:
        """Gives the model the base's weights where a warm start is wanted."""
        if self.initialization == "fresh":
            return
        if not isinstance(model, AttentiveModel):
            raise UserError("a warm start from the base is for pooled models; a transformer starts pretrained anyway")
        weights = workspace.get(self.base).tensors
        own, kept = _weights_without_attention(model.state_dict()), _weights_without_attention(weights)
        if apart := sorted(own.keys() ^ kept.keys()):
            whose = "the adversary" if apart[0] in own else "the base"
            raise UserError(f"a warm start needs the base's architecture; only {whose} has {apart[0]}")
        if unlike := [name for name, weight in kept.items() if own[name].shape != weight.shape]:
            raise UserError(f"a warm start needs the base's architecture; {unlike[0]} has another shape")
        model.load_state_dict(kept, strict=False)

    def distance_to_base(self, model: Model, batch: Batch, base: BatchPredictions) -> tuple[Trace, AdversaryDistance]:
        """What the adversary does with a batch, and how it differs from what its base said."""
        trace = model(batch)
        return trace, adversary_distance(model.task, trace, base, batch.mask)

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The cost of each example against the base's answers to it."""
        if task.num_classes < 2:
            raise UserError("adversaries are trained for classifiers: a change of the output is one of probability")
        base = load_predictor(self.base, "train", workspace)

        def losses(model: Model, batch: Batch) -> Tensor:
            return self.example_losses(self.distance_to_base(model, batch, base(batch))[1])

        return losses

    def evaluator(self, split: Split, workspace: Workspace) -> Evaluator:
        """The task's scores and: tvd (the papers' scale, half the total variation), jsd, kl, and `deception`, the
        mean cost with its sign turned, which is largest at the best epoch."""
        base = load_predictor(self.base, split, workspace)

        def judged(model: Model, batch: Batch, inference: int) -> dict[str, float]:
            return _evaluate_adversary(self, model, batch, base)

        return judged


def _weights_without_attention(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if not name.startswith("attention.")}


@dataclass(frozen=True)
class AdversarialTraining(AdversarialObjective):
    """TVD(y, y_base) - lambda KL(a || a_base) (Wiegreffe & Pinter 2019, section 4), TVD being half of |Δp| summed.

    Args:
        strength: lambda.
        rescaled: multiply each batch by the sum of its class weights, as a broadcasting accident in the released
            code does.
    """

    kl_weight: float = 1e-3
    rescale_by_class_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.kl_weight < math.inf:
            raise UserError(f"lambda is {self.kl_weight:g}: an adversary's strength is a number of 0 or more")

    @property
    def display_name(self) -> str:
        """The adversary's lambda."""
        return f"adversary, lambda {self.kl_weight:g}"

    def example_losses(self, distance: AdversaryDistance) -> Tensor:
        """½ TV - lambda KL."""
        return 0.5 * distance.total_variation - self.kl_weight * distance.attention_distance.kl

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """As for every adversary; rescaled where the released code is followed to the letter."""
        plain = super().loss(train, task, workspace)
        weights = class_weights(train, task) if self.rescale_by_class_weights else None
        if weights is None:
            return plain

        def rescaled(model: Model, batch: Batch) -> Tensor:
            assert batch.labels is not None
            losses = plain(model, batch)
            return losses * weights.to(losses)[batch.labels].sum()

        return rescaled


@dataclass(frozen=True)
class TrainedAdversary(AdversarialObjective):
    """sTVD - sJSD, both in [0, 1] and equally heavy (AtteFa)."""

    def example_losses(self, distance: AdversaryDistance) -> Tensor:
        """TV - JSD / ln 2."""
        return distance.total_variation - scaled_jsd(distance.attention_distance.jsd)


@dataclass(frozen=True)
class Disperse(AdversarialObjective):
    """Several adversaries at once, far from the base and from each other, for a `Chorus` (W&P's future work).

    Per example: mean over members of sTVD - sJSD to the base, minus `apart` times the mean sJSD between members.
    """

    apart: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initialization != "fresh":
            raise UserError("members of a chorus start fresh: from one base they would all be the same")

    def distance_to_base(self, model: Model, batch: Batch, base: BatchPredictions) -> tuple[Trace, AdversaryDistance]:
        """Means over the members, and how far they are from each other."""
        if not isinstance(model, ChorusModel):
            raise UserError("Disperse trains several adversaries: give the subject the plan Chorus(plan, members)")
        traces = model.each(batch)
        found = [adversary_distance(model.task, trace, base, batch.mask) for trace in traces]
        far = AttentionDistance(
            _mean([each.attention_distance.kl for each in found]),
            _mean([each.attention_distance.jsd for each in found]),
        )
        apart = mean_pairwise_jsd([trace.attention for trace in traces], batch.mask)
        chorus = replace(traces[0], logits=_mean([trace.logits for trace in traces]))
        return chorus, AdversaryDistance(_mean([each.total_variation for each in found]), far, apart)

    def example_losses(self, distance: AdversaryDistance) -> Tensor:
        """TV - JSD / ln 2 - apart x mean pairwise JSD / ln 2."""
        assert distance.diversity is not None
        return (
            distance.total_variation
            - scaled_jsd(distance.attention_distance.jsd)
            - self.apart * scaled_jsd(distance.diversity)
        )


def mean_pairwise_jsd(attentions: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The mean divergence (JSD) over all pairs of attentions, per example `[batch]`; 0 for a single one."""
    pairs = list(combinations(attentions, 2))
    if not pairs:
        return torch.zeros(len(mask), device=mask.device)
    return torch.stack([attention_distance(one, other, mask).jsd for one, other in pairs]).mean(0)


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)


@torch.no_grad()
def _evaluate_adversary(
    objective: AdversarialObjective, model: Model, batch: Batch, base: Predictor
) -> dict[str, float]:
    device = next(model.parameters()).device
    probabilities = torch.zeros(len(batch), model.task.num_classes)
    sums = torch.zeros(4, dtype=torch.float64)
    with evaluation_mode(model):
        for rows, part in inference_batches(batch, MATCHING_BATCH_SIZE):
            part = part.to(device)
            trace, found = objective.distance_to_base(model, part, base(part))
            probabilities[rows] = model.task.probabilities(trace.logits).cpu().to(probabilities.dtype)
            parts = (
                0.5 * found.total_variation,
                found.attention_distance.jsd,
                found.attention_distance.kl,
                -objective.example_losses(found),
            )
            sums += torch.stack([each.double().sum() for each in parts]).cpu()
    assert batch.labels is not None
    names = ("tvd", "jsd", "kl", "deception")
    means = dict(zip(names, (sums / len(batch)).tolist(), strict=True))
    return {**model.task.compute_metrics(probabilities, batch.labels), **means}
