"""How a model is trained, as frozen values: optimiser, epochs, batches, and which epoch is kept.

The defaults are Jain & Wallace's for one text: AMSGrad with coupled (L2-in-gradient) decay everywhere but on the
attention, losses summed over batches of 32, eight epochs, the first never eligible.

The one training loop, for every subject and objective.

Everything random in an epoch comes from (seed, epoch), so a training that was killed goes on after its last finished
epoch and ends with bit-identical weights. The global generator, which dropout draws from, is borrowed and given back.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from heedful.progress import Progress, StepCallback
from heedful.store.recipe import derive_seed
from heedful.types import Batch, Model, UserError

SelectionSplit = Literal["dev", "test"]
Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class Adam:
    """Adam with coupled decay; parameters with a name part in `undecayed` get none."""

    lr: float = 1e-3
    weight_decay: float = 1e-5
    amsgrad: bool = True
    no_decay: tuple[str, ...] = ("attention",)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over this model's trainable parameters."""
        groups = _parameter_groups(model, self.weight_decay, self.no_decay)
        return torch.optim.Adam(groups, lr=self.lr, amsgrad=self.amsgrad, fused=_supports_fused(model))

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of this step: constant."""
        return self.lr


@dataclass(frozen=True)
class AdamW:
    """AdamW for transformers: linear warm-up over a share of all steps, then linear descent to zero."""

    lr: float = 5e-5
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    no_decay: tuple[str, ...] = ("bias", "LayerNorm", "layer_norm", "norm")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over this model's trainable parameters."""
        groups = _parameter_groups(model, self.weight_decay, self.no_decay)
        return torch.optim.AdamW(groups, lr=self.lr, fused=_supports_fused(model))

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ... of `steps`."""
        warm = int(self.warmup_ratio * steps)
        if step < warm:
            return self.lr * (step + 1) / warm
        return self.lr * (steps - step) / max(1, steps - warm)


@dataclass(frozen=True)
class SGD:
    """Plain gradient descent with decoupled decay, at a constant rate: theta (1 - rate decay) - rate gradient.

    Without momentum torch's own decay, which enters behind the clipping, is the decoupled one.
    """

    lr: float = 5e-3
    weight_decay: float = 0.01
    no_decay: tuple[str, ...] = ()

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over this model's trainable parameters."""
        return torch.optim.SGD(_parameter_groups(model, self.weight_decay, self.no_decay), lr=self.lr)

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of this step: constant."""
        return self.lr


def _parameter_groups(model: nn.Module, weight_decay: float, no_decay: Iterable[str]) -> list[dict[str, object]]:
    spared = set(no_decay)
    decayed: list[Tensor] = []
    free: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (free if spared & set(name.split(".")) else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _supports_fused(model: nn.Module) -> bool:
    return all(parameter.is_floating_point() for parameter in model.parameters())


@dataclass(frozen=True)
class EpochSelection:
    """Which epoch is kept: the one with the best score.

    Args:
        on: "dev"; "test" exists only to replicate papers that peeked, and the report says so.
        by: a score of the task; None takes the task's headline.
        first: the first epoch that may be kept (J&W's code never saved epoch 1).
    """

    split: SelectionSplit = "dev"
    metric: str | None = None
    first_epoch: int = 1

    def __post_init__(self) -> None:
        if self.split not in get_args(SelectionSplit):
            raise UserError(f"no epoch can be selected on {self.split!r}: choose 'dev', or 'test' to replicate a paper")


@dataclass(frozen=True)
class Training:
    """A whole training.

    Args:
        batch: examples in one step.
        patience: epochs without a better score, or an equal one at a lower training loss, before training stops; None
            trains all epochs.
        clip: largest norm of a step's gradient; None leaves it.
        reduction: how the losses of a batch become one number.
        jitter: batches are cut from examples sorted by length plus noise of this share of the length.
    """

    epochs: int = 8
    batch_size: int = 32
    optimizer: Adam | AdamW | SGD = Adam()
    selection: EpochSelection = EpochSelection(first_epoch=2)
    patience: int | None = None
    max_grad_norm: float | None = None
    reduction: Reduction = "sum"
    length_jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < self.selection.first_epoch:
            raise UserError(
                f"{self.epochs} epochs end before the first that may be kept, {self.selection.first_epoch}: "
                "train longer, or give EpochSelection a smaller first_epoch"
            )
        if self.reduction not in get_args(Reduction):
            raise UserError(f"losses cannot be reduced by {self.reduction!r}: choose 'sum' or 'mean'")


Loss = Callable[[Model, Batch], Tensor]
"""Losses of a batch's examples, `[batch]`."""

Evaluator = Callable[[Model, Batch, int], dict[str, float]]
"""Scores of a model on a labelled batch, asked about so many rows at once."""

INFERENCE_CELLS = 1 << 21
"""Pairs of units, rows x units x units, that are read at once at most."""

TRAINING_LOSS = "training_loss"
"""In `Select.by`: the epoch with the lowest training loss is kept (Wiegreffe & Pinter's released code)."""


class OuterOptimizer(Protocol):
    """Something that learns beside the model, one step after each of the model's; the checkpoint holds its tensors."""

    def step(self, model: Model, batch: Batch, lr: float) -> None:
        """Learns after the model's step on this batch at this learning rate."""
        ...

    def end_epoch(self) -> dict[str, float]:
        """What the epoch brought, for the history; called once, before the checkpoint is written."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that `restore` needs to go on bit by bit."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up where `tensors` was asked."""
        ...


@dataclass(frozen=True)
class TrainingRun:
    """What one training is about; `seed` decides every random choice of it.

    Args:
        judge: the examples that decide which epoch is kept.
        scores: what is measured on them; None takes the task's own scores.
        outer: what learns beside the model; None for the usual training.
    """

    model: Model
    loss: Loss
    train_batch: Batch
    evaluation_batch: Batch
    training: Training
    seed: int
    name: str = "training"
    evaluator: Evaluator | None = None
    outer: OuterOptimizer | None = None


@dataclass
class TrainingState:
    """Where a training stands after a number of finished epochs; written to disk after each of them.

    `best` holds the model's weights at the best epoch, `best_outer` the tensors of what learned beside it.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    best_loss: float = math.inf
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_outer: dict[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)

    def out_of_patience(self, patience: int | None) -> bool:
        """Whether patience has run out."""
        return patience is not None and self.best_epoch > 0 and self.epoch - self.best_epoch >= patience


def train(run: TrainingRun, checkpoint_folder: Path, progress: Progress, batch_size: int) -> TrainingState:
    """The state after training, with the best epoch's weights in `best`; also loaded into the model.

    Args:
        keep: folder for the checkpoint.
        inference: rows judged at once.
    """
    optimiser = run.training.optimizer.build(run.model)
    checkpoint = checkpoint_folder / "checkpoint.safetensors"
    state = _resume_checkpoint(checkpoint, run, optimiser)
    mode = run.model.training
    steps = run.training.epochs * math.ceil(len(run.train_batch) / run.training.batch_size)
    with progress.task(run.name, steps) as step:
        step(state.epoch * math.ceil(len(run.train_batch) / run.training.batch_size))
        while state.epoch < run.training.epochs and not state.out_of_patience(run.training.patience):
            loss = _train_epoch(run, optimiser, state, step)
            _evaluate_epoch(run, state, loss, batch_size)
            _save_checkpoint(checkpoint, state, run, optimiser)
    run.model.load_state_dict(state.best_weights)
    run.model.train(mode)
    return state


def _train_epoch(run: TrainingRun, optimizer: torch.optim.Optimizer, state: TrainingState, step: StepCallback) -> float:
    fit, epoch = run.training, state.epoch
    best = "" if state.best_score == -math.inf else f", best score {state.best_score:.3f}"
    run.model.train()
    generator = Generator().manual_seed(derive_seed("batches", run.seed, epoch))
    order = length_sorted_batches(run.train_batch.lengths, fit.batch_size, fit.length_jitter, generator)
    steps = fit.epochs * len(order)
    total = 0.0
    with temporary_seed(derive_seed("dropout", run.seed, epoch)):
        for index, rows in enumerate(order):
            rate = fit.optimizer.lr_at(epoch * len(order) + index, steps)
            batch = run.train_batch.rows(rows)
            loss = _train_step(run, optimizer, batch, rate)
            if run.outer is not None:
                run.outer.step(run.model, batch, rate)
            total += loss
            step(note=f"epoch {epoch + 1}/{fit.epochs}, loss {total / (index + 1):.3f}{best}")
    return total / max(1, len(order))


def _train_step(run: TrainingRun, optimizer: torch.optim.Optimizer, batch: Batch, lr: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr
    losses = run.loss(run.model, batch)
    loss = losses.sum() if run.training.reduction == "sum" else losses.mean()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise UserError(f"{run.name}: the loss became {value}; try a smaller learning rate or gradient clipping")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if run.training.max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.training.max_grad_norm)
    optimizer.step()
    return value


def _evaluate_epoch(run: TrainingRun, state: TrainingState, loss: float, batch_size: int) -> None:
    scores = (run.evaluator or evaluate)(run.model, run.evaluation_batch, batch_size)
    select = run.training.selection
    name = select.metric or run.model.task.primary_metric
    ranked = {**scores, TRAINING_LOSS: -loss}
    if name not in ranked:
        raise UserError(f"there is no score {name!r} for this task; choose one of {', '.join(sorted(scores))}")
    state.epoch += 1
    beside = {} if run.outer is None else run.outer.end_epoch()
    state.history.append({"epoch": state.epoch, "loss": loss, **scores, **beside})
    # An undefined score (one class only in a tiny dev part) must not keep training from choosing an epoch at all.
    score = ranked[name] if math.isfinite(ranked[name]) else -math.inf
    # Small dev parts tie often (a perfect score from the second epoch on): then the lower training loss decides.
    rank = (score, -loss)
    if state.epoch >= select.first_epoch and (rank > (state.best_score, -state.best_loss) or not state.best_weights):
        state.best_epoch, state.best_score, state.best_loss = state.epoch, score, loss
        state.best_weights = _copy_tensors(run.model.state_dict())
        state.best_outer = {} if run.outer is None else _copy_tensors(run.outer.tensors())


def length_sorted_batches(lengths: Tensor, batch_size: int, jitter: float, generator: Generator) -> list[Tensor]:
    """Row numbers of each batch of an epoch: rows of about equal length together, batches in random order.

    Rows are sorted by length plus integer noise from [floor(-jitter n), ceil(jitter n)) (J&W's released code), so that
    little is padded and yet batches differ between epochs.
    """
    low, high = torch.floor(-jitter * lengths), torch.ceil(jitter * lengths)
    noise = low + torch.floor(torch.rand(len(lengths), generator=generator) * (high - low).clamp(min=1))
    shuffled = torch.randperm(len(lengths), generator=generator)
    order = shuffled[torch.argsort((lengths + noise)[shuffled], stable=True)]
    cut = list(torch.split(order, batch_size))
    return [cut[i] for i in torch.randperm(len(cut), generator=generator).tolist()]


def inference_batches(batch: Batch, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Row numbers and rows of about equal length, shortest first; together they are the whole batch.

    Fewer than `size` rows where texts are long: the attention of 200 reviews of 256 units alone takes 4 GB.
    """
    order = torch.argsort(batch.lengths, stable=True)
    start = 0
    while start < len(order):
        some = order[start : start + batch_size]
        cells = torch.arange(1, len(some) + 1, device=some.device) * batch.lengths[some] ** 2
        rows = some[: max(1, int((cells <= INFERENCE_CELLS).sum()))]
        yield rows, batch.rows(rows)
        start += len(rows)


def evaluate(model: Model, batch: Batch, batch_size: int) -> dict[str, float]:
    """The task's scores on a labelled batch; the model's mode is left as it was."""
    if batch.labels is None:
        raise UserError("these examples have no labels to compare with")
    return model.task.compute_metrics(predict(model, batch, batch_size), batch.labels)


def predict(model: Model, batch: Batch, batch_size: int) -> Tensor:
    """Probabilities `[batch classes]`, row by row as in the batch."""
    device = next(model.parameters()).device
    found = torch.zeros(len(batch), model.task.num_classes)
    with evaluation_mode(model), torch.no_grad():
        for rows, part in inference_batches(batch, batch_size):
            found[rows] = model.task.probabilities(model(part.to(device)).logits).cpu().to(found.dtype)
    return found


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """The model in evaluation mode for a while, then each of its parts as it was."""
    modes = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        yield
    finally:
        for name, module in model.named_modules():
            module.training = modes[name]


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """The global generators seeded for a while, for layers that can draw from nothing else, and then given back."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _save_checkpoint(path: Path, state: TrainingState, run: TrainingRun, optimizer: torch.optim.Optimizer) -> None:
    tensors = {f"model/{key}": value for key, value in run.model.state_dict().items()}
    tensors |= {f"best/{key}": value for key, value in state.best_weights.items()}
    if run.outer is not None:
        tensors |= {f"outer/{key}": value for key, value in run.outer.tensors().items()}
        tensors |= {f"best_outer/{key}": value for key, value in state.best_outer.items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{key}": value for key, value in slots.items()}
    notes = {"epoch": state.epoch, "best_epoch": state.best_epoch, "history": state.history}
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    best = {"best_score": repr(state.best_score), "best_loss": repr(state.best_loss)}
    save_file(contiguous, aside, metadata={"state": json.dumps(notes), **best})
    os.replace(aside, path)


def _resume_checkpoint(path: Path, run: TrainingRun, optimizer: torch.optim.Optimizer) -> TrainingState:
    if not path.exists():
        return TrainingState()
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - a file, not a dict
    except SafetensorError:
        warnings.warn(f"the checkpoint {path} is damaged; training starts again", stacklevel=2)
        return TrainingState()
    run.model.load_state_dict(_tensors_with_prefix("model/", tensors))
    if run.outer is not None:
        run.outer.restore(_tensors_with_prefix("outer/", tensors))
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in _tensors_with_prefix("optimiser/", tensors).items():
        index, slot = key.split("/")
        slots.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    notes = json.loads(metadata["state"])
    score, loss = float(metadata["best_score"]), float(metadata["best_loss"])
    best, best_outer = _tensors_with_prefix("best/", tensors), _tensors_with_prefix("best_outer/", tensors)
    return TrainingState(best_score=score, best_loss=loss, best_weights=best, best_outer=best_outer, **notes)


def _copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in tensors.items()}


def _tensors_with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
