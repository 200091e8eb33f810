"""The training loop of every model and objective, and its hyper-parameters.

The defaults are Jain & Wallace's for one text: AMSGrad with coupled (L2-in-gradient) decay everywhere but on the
attention, losses summed over batches of 32, eight epochs, the first never eligible. Everything random in an epoch comes
from (seed, epoch), so that an interrupted training resumes after its last finished epoch with bit-identical weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from heedful.devices import device_of
from heedful.option_bounds import check_options
from heedful.progress import Progress, StepCallback, raise_lost_interrupt
from heedful.seeding import temporary_seed
from heedful.store.atomic_write import flush_to_disk, translate_write_errors
from heedful.store.file_digest import content_sha256
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.types import Batch, Model, UserError, evaluation_mode

SelectionSplit = Literal["dev", "test"]
Reduction = Literal["sum", "mean"]

Loss = Callable[[Model, Batch], Tensor]
"""Losses of a batch's examples, `[batch]`."""

Evaluator = Callable[[Model, Batch, int], dict[str, float]]
"""Metrics of a model on a labeled batch, with this many rows at a time."""

LENGTH_JITTER = 0.1
"""Batches are cut from examples sorted by length plus noise of this share of the length."""

INFERENCE_CELLS = 1 << 21
"""Rows x units x units of one forward pass at most."""

TRAINING_LOSS = "training_loss"
"""In `EpochSelection.metric`: the epoch with the lowest training loss is kept (Wiegreffe & Pinter's released code)."""


@dataclass(frozen=True)
class Adam:
    """Adam with coupled decay at a constant rate; parameters with a name part in `no_decay` get none."""

    lr: float = 1e-3
    weight_decay: float = 1e-5
    amsgrad: bool = True
    no_decay: tuple[str, ...] = ("attention",)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over this model's trainable parameters."""
        groups = _parameter_groups(model, self.weight_decay, self.no_decay)
        return torch.optim.Adam(groups, lr=self.lr, amsgrad=self.amsgrad, fused=True)

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ... of `steps`."""
        return self.lr


@dataclass(frozen=True)
class AdamW:
    """AdamW for transformers: linear warm-up over a share of all steps, then linear descent to zero.

    Normalization layers get no decay, whatever their names (`LayerNorm`, `sa_layer_norm`, `layernorm_before`).
    """

    lr: float = 5e-5
    weight_decay: float = 0.01
    warmup_ratio: float = 0.1
    no_decay: tuple[str, ...] = ("bias",)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = _parameter_groups(model, self.weight_decay, self.no_decay, decay_norms=False)
        return torch.optim.AdamW(groups, lr=self.lr, fused=True)

    def lr_at(self, step: int, steps: int) -> float:
        warmup = int(self.warmup_ratio * steps)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * (steps - step) / max(1, steps - warmup)


@dataclass(frozen=True)
class SGD:
    """Gradient descent with decoupled decay at a constant rate: theta (1 - rate decay) - rate gradient.

    Without momentum torch's own decay, which is added after clipping, is the decoupled one.
    """

    lr: float = 5e-3
    weight_decay: float = 0.01

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(_parameter_groups(model, self.weight_decay, ()), lr=self.lr)

    def lr_at(self, step: int, steps: int) -> float:
        return self.lr


def _parameter_groups(
    model: nn.Module, weight_decay: float, no_decay: Iterable[str], *, decay_norms: bool = True
) -> list[dict[str, object]]:
    norms = {
        f"{name}.{weight}" for name, part in model.named_modules() if _is_norm(part) for weight in part._parameters
    }
    groups: dict[float, list[Tensor]] = {weight_decay: [], 0.0: []}
    for name, parameter in model.named_parameters():
        exempt = set(no_decay) & set(name.split(".")) or (name in norms and not decay_norms)
        if parameter.requires_grad:
            groups[0.0 if exempt else weight_decay].append(parameter)
    return [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items() if parameters]


def _is_norm(module: nn.Module) -> bool:
    # Families of transformers have classes of their own, such as LlamaRMSNorm.
    known = isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.modules.batchnorm._BatchNorm)
    return known or type(module).__name__.endswith("Norm")


@dataclass(frozen=True)
class EpochSelection:
    """Which epoch is kept: the one with the best metric.

    Args:
        split: "dev"; "test" exists only to replicate papers that selected on it, and the report says so.
        metric: a metric of the task; None takes the task's primary one.
        first_epoch: the first epoch that may be kept (J&W's code never saved epoch 1).
    """

    split: SelectionSplit = "dev"
    metric: str | None = None
    first_epoch: int = 1

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Training:
    """The hyper-parameters of a training.

    Args:
        patience: epochs without a better metric, or an equal one at a lower training loss, before training stops; None
            trains all epochs.
        max_grad_norm: largest norm of a step's gradient; None does not clip.
        reduction: how the losses of a batch become one number.
    """

    epochs: int = 8
    batch_size: int = 32
    optimizer: Adam | AdamW | SGD = Adam()
    selection: EpochSelection = EpochSelection(first_epoch=2)
    patience: int | None = None
    max_grad_norm: float | None = None
    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        check_options(self)
        if self.epochs < self.selection.first_epoch:
            raise UserError(
                f"epochs={self.epochs}, but the first epoch that may be kept is {self.selection.first_epoch}: train "
                "longer, or give EpochSelection a smaller first_epoch"
            )


class OuterOptimizer(Protocol):
    """Something that is trained beside the model, one step after each of the model's."""

    def step(self, model: Model, batch: Batch, lr: float) -> None:
        """One step after the model's step on this batch at this learning rate."""

    def end_epoch(self) -> dict[str, float]:
        """Numbers for the history; called once per epoch, before the checkpoint is written."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `restore` needs to resume bit for bit."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resumes from `tensors`."""


@dataclass(frozen=True)
class TrainingRun:
    """The inputs of one training; `seed` decides every random choice.

    Args:
        evaluation_batch: the examples that decide which epoch is kept.
        evaluator: what is measured on them; None takes the task's metrics.
        outer: what is trained beside the model; None for the usual training.
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
    """The state of a training after a number of finished epochs, written to disk after each of them.

    `best_tensors` are those of the best epoch: `model/` weights, and `outer/` tensors of the outer optimizer.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    best_loss: float = math.inf
    best_tensors: dict[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def train(run: TrainingRun, checkpoint_folder: Path, progress: Progress, batch_size: int) -> TrainingState:
    """The state after training, with the best epoch's weights loaded into the model.

    Args:
        batch_size: rows evaluated at once.
    """
    training, model = run.training, run.model
    if any(weight.dtype in (torch.bfloat16, torch.float16) for weight in model.parameters()):
        raise UserError(f"{run.name}: nothing is trained in half precision; leave the precision out")
    optimizer = training.optimizer.build(model)
    fingerprint = _fingerprint(run, checkpoint_folder)
    state = _resume_checkpoint(checkpoint_folder, fingerprint, run, optimizer)
    mode = model.training
    steps_per_epoch = math.ceil(len(run.train_batch) / training.batch_size)
    with progress.task(run.name, training.epochs * steps_per_epoch) as step:
        step(state.epoch * steps_per_epoch)
        while state.epoch < training.epochs and (
            training.patience is None or not state.best_epoch or state.epoch - state.best_epoch < training.patience
        ):
            loss = _train_epoch(run, optimizer, state, step)
            _evaluate_epoch(run, state, loss, batch_size)
            _save_checkpoint(checkpoint_folder, fingerprint, state, run, optimizer)
    model.load_state_dict(tensors_with_prefix("model/", state.best_tensors))
    model.train(mode)
    return state


def _train_epoch(run: TrainingRun, optimizer: torch.optim.Optimizer, state: TrainingState, step: StepCallback) -> float:
    training, epoch = run.training, state.epoch
    best = "" if state.best_score == -math.inf else f", best score {state.best_score:.3f}"
    run.model.train()
    generator = Generator().manual_seed(derive_seed("batches", run.seed, epoch))
    batches = length_sorted_batches(run.train_batch.lengths, training.batch_size, LENGTH_JITTER, generator)
    steps = training.epochs * len(batches)
    total = 0.0
    with temporary_seed(derive_seed("dropout", run.seed, epoch)):
        for index, rows in enumerate(batches):
            lr = training.optimizer.lr_at(epoch * len(batches) + index, steps)
            batch = run.train_batch.rows(rows)
            for group in optimizer.param_groups:
                group["lr"] = lr
            losses = run.loss(run.model, batch)
            loss = losses.sum() if training.reduction == "sum" else losses.mean()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise UserError(
                    f"{run.name}: the loss became {value}; try a smaller learning rate or gradient clipping"
                )
            total += value
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if training.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(run.model.parameters(), training.max_grad_norm)
            optimizer.step()
            if run.outer is not None:
                run.outer.step(run.model, batch, lr)
            raise_lost_interrupt()
            step(note=f"epoch {epoch + 1}/{training.epochs}, loss {total / (index + 1):.3f}{best}")
    return total / max(1, len(batches))


def _evaluate_epoch(run: TrainingRun, state: TrainingState, loss: float, batch_size: int) -> None:
    metrics = (run.evaluator or evaluate)(run.model, run.evaluation_batch, batch_size)
    selection = run.training.selection
    name = selection.metric or run.model.task.primary_metric
    candidates = {**metrics, TRAINING_LOSS: -loss}
    if name not in candidates:
        raise UserError(f"unknown score {name!r} for this task; choose from {', '.join(sorted(metrics))}")
    state.epoch += 1
    outer = {} if run.outer is None else run.outer.end_epoch()
    state.history.append({"epoch": state.epoch, "loss": loss, **metrics, **outer})
    # An undefined metric (one class only in a tiny dev split) must not keep training from choosing an epoch at all.
    score = candidates[name] if math.isfinite(candidates[name]) else -math.inf
    # Small dev splits tie often (a perfect score from the second epoch on): then the lower training loss decides.
    better = (score, -loss) > (state.best_score, -state.best_loss)
    if state.epoch >= selection.first_epoch and (better or not state.best_tensors):
        state.best_epoch, state.best_score, state.best_loss = state.epoch, score, loss
        state.best_tensors = {key: value.detach().clone() for key, value in _current_tensors(run).items()}


def _current_tensors(run: TrainingRun) -> dict[str, Tensor]:
    outer = {} if run.outer is None else run.outer.tensors()
    weights = {f"model/{key}": value for key, value in run.model.state_dict().items()}
    return weights | {f"outer/{key}": value for key, value in outer.items()}


_STATE_NUMBERS = ("epoch", "best_epoch", "best_score", "best_loss", "history")


def _save_checkpoint(
    folder: Path, fingerprint: str, state: TrainingState, run: TrainingRun, optimizer: torch.optim.Optimizer
) -> None:
    """Write `epoch-<number>-<sha256 of the file>.safetensors`, flushed before it gets its name; delete older ones."""
    tensors = _current_tensors(run) | {f"best/{key}": value for key, value in state.best_tensors.items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{key}": value for key, value in slots.items()}
    numbers = {name: vars(state)[name] for name in _STATE_NUMBERS}
    contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    temporary = folder / f"new-{secrets.token_hex(8)}.safetensors"
    with translate_write_errors(folder):
        try:
            save_file(contiguous, temporary, metadata={"state": json.dumps(numbers), "fingerprint": fingerprint})
            flush_to_disk(temporary)
            path = folder / f"epoch-{state.epoch}-{content_sha256(temporary)}.safetensors"
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        flush_to_disk(folder)
        _delete_other_files(folder, path)


def _delete_other_files(folder: Path, kept: Path | None) -> None:
    for path in folder.glob("*.safetensors"):
        if path != kept:
            path.unlink(missing_ok=True)


def _resume_checkpoint(
    folder: Path, fingerprint: str, run: TrainingRun, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """The state of the latest checkpoint, loaded into model and optimizers; a new one if there is none to trust."""
    checkpoints = {int(path.name.split("-")[1]): path for path in folder.glob("epoch-*-*.safetensors")}
    path = checkpoints[max(checkpoints)] if checkpoints else None
    with translate_write_errors(folder):
        _delete_other_files(folder, path)
    if path is None:
        return TrainingState()
    try:
        if path.stem.split("-")[2] != content_sha256(path):
            raise _CheckpointError("is damaged")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - a file, not a dict
        if metadata.get("fingerprint") != fingerprint:
            raise _CheckpointError("is of other data")
        numbers = json.loads(metadata["state"])
        if numbers.keys() != set(_STATE_NUMBERS) or not _has_shapes_of(tensors, run, optimizer):
            raise _CheckpointError("is of another shape")
    except (_CheckpointError, SafetensorError, OSError) as error:
        reason = error if isinstance(error, _CheckpointError) else "cannot be read"
        warnings.warn(f"the checkpoint {path} {reason}; training starts again", stacklevel=2)
        with translate_write_errors(folder):
            _delete_other_files(folder, None)
        return TrainingState()
    run.model.load_state_dict(tensors_with_prefix("model/", tensors))
    if run.outer is not None:
        run.outer.restore(tensors_with_prefix("outer/", tensors))
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors_with_prefix("optimiser/", tensors).items():
        index, slot = key.split("/")
        slots.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return TrainingState(**numbers, best_tensors=tensors_with_prefix("best/", tensors))


class _CheckpointError(Exception):
    """A checkpoint that must not be resumed; the message says why."""


def _fingerprint(run: TrainingRun, folder: Path) -> str:
    """A digest of the recipe, whose name the folder bears, and of the very examples that are trained on."""
    digest = hashlib.sha256(f"{folder.name} {run.seed} {run.training!r}".encode())
    for batch in (run.train_batch, run.evaluation_batch):
        for name, value in vars(batch).items():
            digest.update(f"{name} {list(value.shape) if isinstance(value, Tensor) else value!r}".encode())
            if isinstance(value, Tensor):
                digest.update(value.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _has_shapes_of(tensors: Mapping[str, Tensor], run: TrainingRun, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the tensors of a checkpoint fit the model, its optimizer and the outer optimizer."""

    def layout(named: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (value.shape, value.dtype) for name, value in named.items()}

    expected = layout(run.model.state_dict())
    weights, best = (layout(tensors_with_prefix(prefix, tensors)) for prefix in ("model/", "best/model/"))
    outer = {} if run.outer is None else run.outer.tensors()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = [(key.split("/"), value) for key, value in tensors_with_prefix("optimiser/", tensors).items()]
    return (
        weights == expected
        and best in ({}, expected)
        and outer.keys() <= tensors_with_prefix("outer/", tensors).keys()
        and all(
            len(parts) == 2
            and parts[0].isdecimal()
            and int(parts[0]) < len(parameters)
            and value.shape in ((), parameters[int(parts[0])].shape)
            for parts, value in moments
        )
    )


def tensors_with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def length_sorted_batches(lengths: Tensor, batch_size: int, jitter: float, generator: Generator) -> list[Tensor]:
    """Row numbers of each batch of an epoch: rows of about equal length together, batches in random order.

    Rows are sorted by length plus integer noise from [floor(-jitter n), ceil(jitter n)) (J&W's released code), so that
    there is little padding and yet batches differ between epochs.
    """
    lengths = lengths.cpu()  # drawn there, whatever the device
    low, high = torch.floor(-jitter * lengths), torch.ceil(jitter * lengths)
    noise = low + torch.floor(torch.rand(len(lengths), generator=generator) * (high - low).clamp(min=1))
    shuffled = torch.randperm(len(lengths), generator=generator)
    order = shuffled[torch.argsort((lengths + noise)[shuffled], stable=True)]
    batches = list(torch.split(order, batch_size))
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def inference_batches(batch: Batch, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Row numbers and rows of about equal length, shortest first; together they are the whole batch.

    Fewer than `batch_size` rows where texts are long: the attention of 200 reviews of 256 units alone takes 4 GB.
    """
    order = torch.argsort(batch.lengths, stable=True)
    start = 0
    while start < len(order):
        rows = order[start : start + batch_size]
        cells = torch.arange(1, len(rows) + 1, device=rows.device) * batch.lengths[rows] ** 2
        rows = rows[: max(1, int((cells <= INFERENCE_CELLS).sum()))]
        yield rows, batch.rows(rows)
        start += len(rows)


def device_batches(
    batch: Batch, workspace: Workspace, title: str, batch_size: int = 0
) -> Iterator[tuple[Tensor, Batch]]:
    """`inference_batches` on the workspace's device with a progress bar; by default of the workspace's batch size."""
    with workspace.progress.task(title, len(batch)) as step:
        for rows, texts in inference_batches(batch, batch_size or workspace.batch_size):
            yield rows, texts.to(workspace.device)
            step(len(texts))


def evaluate(model: Model, batch: Batch, batch_size: int) -> dict[str, float]:
    """The task's metrics on a labeled batch."""
    if batch.labels is None:
        raise UserError("these examples have no labels to evaluate with")
    return model.task.compute_metrics(predict(model, batch, batch_size), batch.labels)


def predict(model: Model, batch: Batch, batch_size: int) -> Tensor:
    """Probabilities `[batch classes]` in evaluation mode."""
    return map_batches(lambda part: model.task.probabilities(model.read_logits(part)), model, batch, batch_size)


@torch.no_grad()
def map_batches(function: Callable[[Batch], Tensor], model: Model, batch: Batch, batch_size: int) -> Tensor:
    """The values `[batch ...]` of a function of the model in evaluation mode, on the CPU in single precision."""
    device, order, values = device_of(model), [], []
    with evaluation_mode(model):
        for rows, texts in inference_batches(batch, batch_size):
            order.append(rows.cpu())
            values.append(function(texts.to(device)).cpu().float())
    return torch.cat(values)[torch.cat(order).argsort()]
