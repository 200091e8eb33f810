"""The one training loop, for every subject and objective.

Everything random in an epoch comes from (seed, epoch), so a training that was killed goes on after its last finished
epoch and ends with bit-identical weights. The global generator, which dropout draws from, is borrowed and given back.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Generator, Tensor

from heedful.core.types import Batch, Model, UserError
from heedful.core.workspace import Progress, Step, derived_seed
from heedful.recipes.fit import Fit

Loss = Callable[[Model, Batch], Tensor]
"""Losses of a batch's examples, `[batch]`."""

Judge = Callable[[Model, Batch, int], dict[str, float]]
"""Scores of a model on a labelled batch, asked about so many rows at once."""

CELLS = 1 << 21
"""Pairs of units, rows x units x units, that are read at once at most."""

TRAINING_LOSS = "training_loss"
"""In `Select.by`: the epoch with the lowest training loss is kept (Wiegreffe & Pinter's released code)."""


class Outer(Protocol):
    """Something that learns beside the model, one step after each of the model's; the checkpoint holds its tensors."""

    def step(self, model: Model, batch: Batch, rate: float) -> None:
        """Learns after the model's step on this batch at this learning rate."""
        ...

    def close_epoch(self) -> dict[str, float]:
        """What the epoch brought, for the history; called once, before the checkpoint is written."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that `restore` needs to go on bit by bit."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up where `tensors` was asked."""
        ...


@dataclass(frozen=True)
class Lesson:
    """What one training is about; `seed` decides every random choice of it.

    Args:
        judge: the examples that decide which epoch is kept.
        scores: what is measured on them; None takes the task's own scores.
        outer: what learns beside the model; None for the usual training.
    """

    model: Model
    loss: Loss
    train: Batch
    judge: Batch
    fit: Fit
    seed: int
    name: str = "training"
    scores: Judge | None = None
    outer: Outer | None = None


@dataclass
class State:
    """Where a training stands after a number of finished epochs; written to disk after each of them.

    `best` holds the model's weights at the best epoch, `best_outer` the tensors of what learned beside it.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = -math.inf
    best_loss: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    best_outer: dict[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)

    def stale(self, patience: int | None) -> bool:
        """Whether patience has run out."""
        return patience is not None and self.best_epoch > 0 and self.epoch - self.best_epoch >= patience


def train(lesson: Lesson, keep: Path, progress: Progress, inference: int) -> State:
    """The state after training, with the best epoch's weights in `best`; also loaded into the model.

    Args:
        keep: folder for the checkpoint.
        inference: rows judged at once.
    """
    optimiser = lesson.fit.optimiser.build(lesson.model)
    checkpoint = keep / "checkpoint.safetensors"
    state = _resumed(checkpoint, lesson, optimiser)
    mode = lesson.model.training
    steps = lesson.fit.epochs * math.ceil(len(lesson.train) / lesson.fit.batch)
    with progress.task(lesson.name, steps) as step:
        step(state.epoch * math.ceil(len(lesson.train) / lesson.fit.batch))
        while state.epoch < lesson.fit.epochs and not state.stale(lesson.fit.patience):
            loss = _epoch(lesson, optimiser, state, step)
            _judge(lesson, state, loss, inference)
            _save(checkpoint, state, lesson, optimiser)
    lesson.model.load_state_dict(state.best)
    lesson.model.train(mode)
    return state


def _epoch(lesson: Lesson, optimiser: torch.optim.Optimizer, state: State, step: Step) -> float:
    fit, epoch = lesson.fit, state.epoch
    best = "" if state.best_score == -math.inf else f", best score {state.best_score:.3f}"
    lesson.model.train()
    generator = Generator().manual_seed(derived_seed("batches", lesson.seed, epoch))
    order = batches(lesson.train.lengths, fit.batch, fit.jitter, generator)
    steps = fit.epochs * len(order)
    total = 0.0
    with dropout_from(derived_seed("dropout", lesson.seed, epoch)):
        for index, rows in enumerate(order):
            rate = fit.optimiser.rate_at(epoch * len(order) + index, steps)
            batch = lesson.train.rows(rows)
            loss = _step(lesson, optimiser, batch, rate)
            if lesson.outer is not None:
                lesson.outer.step(lesson.model, batch, rate)
            total += loss
            step(note=f"epoch {epoch + 1}/{fit.epochs}, loss {total / (index + 1):.3f}{best}")
    return total / max(1, len(order))


def _step(lesson: Lesson, optimiser: torch.optim.Optimizer, batch: Batch, rate: float) -> float:
    for group in optimiser.param_groups:
        group["lr"] = rate
    losses = lesson.loss(lesson.model, batch)
    loss = losses.sum() if lesson.fit.reduction == "sum" else losses.mean()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise UserError(f"{lesson.name}: the loss became {value}; try a smaller learning rate or gradient clipping")
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if lesson.fit.clip is not None:
        torch.nn.utils.clip_grad_norm_(lesson.model.parameters(), lesson.fit.clip)
    optimiser.step()
    return value


def _judge(lesson: Lesson, state: State, loss: float, inference: int) -> None:
    scores = (lesson.scores or evaluate)(lesson.model, lesson.judge, inference)
    select = lesson.fit.select
    name = select.by or lesson.model.task.headline
    ranked = {**scores, TRAINING_LOSS: -loss}
    if name not in ranked:
        raise UserError(f"there is no score {name!r} for this task; choose one of {', '.join(sorted(scores))}")
    state.epoch += 1
    beside = {} if lesson.outer is None else lesson.outer.close_epoch()
    state.history.append({"epoch": state.epoch, "loss": loss, **scores, **beside})
    # An undefined score (one class only in a tiny dev part) must not keep training from choosing an epoch at all.
    score = ranked[name] if math.isfinite(ranked[name]) else -math.inf
    # Small dev parts tie often (a perfect score from the second epoch on): then the lower training loss decides.
    rank = (score, -loss)
    if state.epoch >= select.first and (rank > (state.best_score, -state.best_loss) or not state.best):
        state.best_epoch, state.best_score, state.best_loss = state.epoch, score, loss
        state.best = _copied(lesson.model.state_dict())
        state.best_outer = {} if lesson.outer is None else _copied(lesson.outer.tensors())


def batches(lengths: Tensor, size: int, jitter: float, generator: Generator) -> list[Tensor]:
    """Row numbers of each batch of an epoch: rows of about equal length together, batches in random order.

    Rows are sorted by length plus integer noise from [floor(-jitter n), ceil(jitter n)) (J&W's released code), so that
    little is padded and yet batches differ between epochs.
    """
    low, high = torch.floor(-jitter * lengths), torch.ceil(jitter * lengths)
    noise = low + torch.floor(torch.rand(len(lengths), generator=generator) * (high - low).clamp(min=1))
    shuffled = torch.randperm(len(lengths), generator=generator)
    order = shuffled[torch.argsort((lengths + noise)[shuffled], stable=True)]
    cut = list(torch.split(order, size))
    return [cut[i] for i in torch.randperm(len(cut), generator=generator).tolist()]


def inference_batches(batch: Batch, size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Row numbers and rows of about equal length, shortest first; together they are the whole batch.

    Fewer than `size` rows where texts are long: the attention of 200 reviews of 256 units alone takes 4 GB.
    """
    order = torch.argsort(batch.lengths, stable=True)
    start = 0
    while start < len(order):
        some = order[start : start + size]
        cells = torch.arange(1, len(some) + 1, device=some.device) * batch.lengths[some] ** 2
        rows = some[: max(1, int((cells <= CELLS).sum()))]
        yield rows, batch.rows(rows)
        start += len(rows)


def evaluate(model: Model, batch: Batch, inference: int) -> dict[str, float]:
    """The task's scores on a labelled batch; the model's mode is left as it was."""
    if batch.labels is None:
        raise UserError("these examples have no labels to compare with")
    return model.task.score(predict(model, batch, inference), batch.labels)


def predict(model: Model, batch: Batch, inference: int) -> Tensor:
    """Probabilities `[batch classes]`, row by row as in the batch."""
    device = next(model.parameters()).device
    found = torch.zeros(len(batch), model.task.classes)
    with evaluating(model), torch.no_grad():
        for rows, part in inference_batches(batch, inference):
            found[rows] = model.task.probabilities(model(part.to(device)).logits).cpu().to(found.dtype)
    return found


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """The model in evaluation mode for a while, then each of its parts as it was."""
    modes = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        yield
    finally:
        for name, module in model.named_modules():
            module.training = modes[name]


@contextmanager
def dropout_from(seed: int) -> Iterator[None]:
    """The global generators seeded for a while, for layers that can draw from nothing else, and then given back."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _save(path: Path, state: State, lesson: Lesson, optimiser: torch.optim.Optimizer) -> None:
    tensors = {f"model/{key}": value for key, value in lesson.model.state_dict().items()}
    tensors |= {f"best/{key}": value for key, value in state.best.items()}
    if lesson.outer is not None:
        tensors |= {f"outer/{key}": value for key, value in lesson.outer.tensors().items()}
        tensors |= {f"best_outer/{key}": value for key, value in state.best_outer.items()}
    for index, slots in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{key}": value for key, value in slots.items()}
    notes = {"epoch": state.epoch, "best_epoch": state.best_epoch, "history": state.history}
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    best = {"best_score": repr(state.best_score), "best_loss": repr(state.best_loss)}
    save_file(contiguous, aside, metadata={"state": json.dumps(notes), **best})
    os.replace(aside, path)


def _resumed(path: Path, lesson: Lesson, optimiser: torch.optim.Optimizer) -> State:
    if not path.exists():
        return State()
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - a file, not a dict
    except SafetensorError:
        warnings.warn(f"the checkpoint {path} is damaged; training starts again", stacklevel=2)
        return State()
    lesson.model.load_state_dict(_under("model/", tensors))
    if lesson.outer is not None:
        lesson.outer.restore(_under("outer/", tensors))
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in _under("optimiser/", tensors).items():
        index, slot = key.split("/")
        slots.setdefault(int(index), {})[slot] = value
    optimiser.load_state_dict({"state": slots, "param_groups": optimiser.state_dict()["param_groups"]})
    notes = json.loads(metadata["state"])
    score, loss = float(metadata["best_score"]), float(metadata["best_loss"])
    best, best_outer = _under("best/", tensors), _under("best_outer/", tensors)
    return State(best_score=score, best_loss=loss, best=best, best_outer=best_outer, **notes)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
