"""Training objectives: gold labels, gold labels under imposed attention, and adversaries of a base model.

An adversary keeps the base's predictions under attention as different from the base's as possible. Gold labels are not
used: the base's predictions, computed once, are the targets. `AdversarialTraining` (Wiegreffe & Pinter) weighs the two
by lambda, `TrainedAdversary` (AtteFa) scales both to [0, 1]. Total variation over two classes is |Δp|; Wiegreffe &
Pinter count half of that, which is the scale of their lambda.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from heedful.measures.divergence import (
    MATCHING_BATCH_SIZE,
    AttentionDistance,
    attention_distance,
    scaled_jsd,
    total_variation,
)
from heedful.models.attentive import AttentiveModel
from heedful.option_bounds import Bounds, check_options
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, Regression
from heedful.training.attention_sources import AttentionSource, impose_attention
from heedful.training.model_recipe import ModelRecipe
from heedful.training.predictions import BatchPredictions, load_predictor
from heedful.training.trainer import Evaluator, Loss, inference_batches
from heedful.types import Batch, Model, Split, Task, Trace, UserError, evaluation_mode

Initialization = Literal["fresh", "base"]


class Objective(ABC):
    """What a training minimises."""

    def prepare_model(self, model: Model, workspace: Workspace) -> None:  # noqa: B027 - most leave it as it is
        """Changes a freshly built model where the objective requires it; also done when it is loaded again."""

    @abstractmethod
    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The loss of each example of a batch; `train` is the whole training split."""

    def evaluator(self, split: Split, workspace: Workspace) -> Evaluator | None:
        """What is measured on a split in place of the task's metrics; None takes those."""
        return None

    def check(self, recipe: ModelRecipe) -> None:  # noqa: B027 - most objectives fit every model
        """Raises `UserError` for a model that this objective cannot train."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """A few words for tables and the progress display."""


@dataclass(frozen=True)
class Supervised(Objective):
    """The gold labels; `balance_classes` gives every class the same total weight (see `class_weights`)."""

    balance_classes: bool = True
    display_name: ClassVar[str] = "supervised"

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The task's own loss times the weight of the example's class."""
        weights = class_weights(train, task) if self.balance_classes else None

        def losses(model: Model, batch: Batch) -> Tensor:
            assert batch.labels is not None
            losses = task.losses(model(batch).logits, batch.labels)
            return losses if weights is None else losses * weights.to(losses)[batch.labels]

        return losses


def class_weights(train: Batch, task: Task) -> Tensor | None:
    """A weight per class: for two classes 1 and negatives/positives (J&W), else examples/(classes x of the class)."""
    if isinstance(task, Regression):
        return None
    assert train.labels is not None
    counts = torch.bincount(train.labels, minlength=task.num_classes).double()
    if isinstance(task, BinaryClassification):
        return torch.stack([torch.ones_like(counts[0]), counts[0] / counts[1].clamp(min=1)])
    return counts.sum() / (task.num_classes * counts.clamp(min=1))


@dataclass(frozen=True)
class ImposedAttention(Objective):
    """The gold labels, under attention from a source wherever a call passes none.

    Uniform attention and the guided MLP of Wiegreffe & Pinter differ in the source only.
    """

    source: AttentionSource
    balance_classes: bool = True

    @property
    def display_name(self) -> str:
        return f"imposed {type(self.source).__name__}"

    def prepare_model(self, model: Model, workspace: Workspace) -> None:
        impose_attention(model, self.source.attention_function(model, workspace))

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        return Supervised(self.balance_classes).loss(train, task, workspace)


def adversary_distance(
    task: Task, trace: Trace, base: BatchPredictions, mask: Tensor
) -> tuple[Tensor, AttentionDistance]:
    """Total variation `[batch]` of an adversary's predictions from its base's, and the distance of its attention."""
    variation = total_variation(task.probabilities(trace.logits), base.probabilities)
    return variation, attention_distance(trace.attention, base.attention, mask)


@dataclass(frozen=True)
class AdversarialObjective(Objective):
    """What both papers' adversaries share.

    Args:
        base: the model whose predictions are kept and whose attention is avoided.
        initialization: "fresh" weights, as in both papers, or those of the "base" everywhere but in the attention
            module, which reaches the same trade-off in fewer epochs.
    """

    base: ModelRecipe
    initialization: Initialization = "fresh"

    def __post_init__(self) -> None:
        check_options(self)

    def check(self, recipe: ModelRecipe) -> None:
        if self.base.corpus != recipe.corpus:
            raise UserError("the base was trained on another corpus than its adversary: give both the same")
        if self.base.tokenization != recipe.tokenization:
            raise UserError("the base has another tokenization than its adversary: give both the same")

    @property
    def display_name(self) -> str:
        return "adversary" if self.initialization == "fresh" else "adversary that starts from the base"

    @abstractmethod
    def example_losses(self, variation: Tensor, attention: AttentionDistance) -> Tensor:
        """The loss of each example `[batch]`, given its total variation and the distance of its attention."""

    def prepare_model(self, model: Model, workspace: Workspace) -> None:
        """Copies the base's weights, but for the attention module, for a warm start."""
        if self.initialization == "fresh":
            return
        if not isinstance(model, AttentiveModel):
            raise UserError("a warm start from the base is for pooled models; a transformer starts pretrained anyway")
        base, kept = (
            {name: weight for name, weight in weights.items() if not name.startswith("attention.")}
            for weights in (model.state_dict(), workspace.get(self.base).tensors)
        )
        if different := sorted(base.keys() ^ kept.keys()):
            owner = "the adversary" if different[0] in base else "the base"
            raise UserError(f"a warm start needs the base's architecture; only {owner} has {different[0]}")
        if different := [name for name, weight in kept.items() if base[name].shape != weight.shape]:
            raise UserError(f"a warm start needs the base's architecture; {different[0]} has another shape")
        model.load_state_dict(kept, strict=False)

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
        """The loss of each example against the base's predictions and attention."""
        if task.num_classes < 2:
            raise UserError("adversaries are trained for classifiers only: choose a classification corpus")
        base = load_predictor(self.base, "train", workspace)

        def losses(model: Model, batch: Batch) -> Tensor:
            return self.example_losses(*adversary_distance(model.task, model(batch), base(batch), batch.mask))

        return losses

    def evaluator(self, split: Split, workspace: Workspace) -> Evaluator:
        """The task's metrics and means of tvd (half the total variation), jsd, kl and `deception`, the negated loss."""
        base = load_predictor(self.base, split, workspace)

        @torch.no_grad()
        def evaluate_adversary(model: Model, batch: Batch, batch_size: int) -> dict[str, float]:
            device = next(model.parameters()).device
            probabilities = torch.zeros(len(batch), model.task.num_classes)
            sums = torch.zeros(4, dtype=torch.float64)
            with evaluation_mode(model):
                # Matching heads takes memory of its own, hence the fixed batch size.
                for rows, texts in inference_batches(batch, MATCHING_BATCH_SIZE):
                    texts = texts.to(device)
                    trace = model(texts)
                    variation, far = adversary_distance(model.task, trace, base(texts), texts.mask)
                    probabilities[rows] = model.task.probabilities(trace.logits).cpu().to(probabilities.dtype)
                    values = (0.5 * variation, far.jsd, far.kl, -self.example_losses(variation, far))
                    sums += torch.stack([value.double().sum() for value in values]).cpu()
            assert batch.labels is not None
            means = dict(zip(("tvd", "jsd", "kl", "deception"), (sums / len(batch)).tolist(), strict=True))
            return {**model.task.compute_metrics(probabilities, batch.labels), **means}

        return evaluate_adversary


@dataclass(frozen=True)
class AdversarialTraining(AdversarialObjective):
    """TVD(y, y_base) - lambda KL(a || a_base) (Wiegreffe & Pinter 2019, section 4), TVD being half of |Δp| summed.

    Args:
        kl_weight: lambda.
        rescale_by_class_weights: multiply each batch by the sum of its class weights, as a broadcasting accident in the
            released code does.
    """

    kl_weight: Annotated[float, Bounds(at_least=0)] = 1e-3
    rescale_by_class_weights: bool = False

    @property
    def display_name(self) -> str:
        return f"{super().display_name}, lambda {self.kl_weight:g}"

    def example_losses(self, variation: Tensor, attention: AttentionDistance) -> Tensor:
        return 0.5 * variation - self.kl_weight * attention.kl

    def loss(self, train: Batch, task: Task, workspace: Workspace) -> Loss:
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
    """sTVD - sJSD = TV - JSD / ln 2, both in [0, 1] and equally weighted (AtteFa)."""

    def example_losses(self, variation: Tensor, attention: AttentionDistance) -> Tensor:
        return variation - scaled_jsd(attention.jsd)
