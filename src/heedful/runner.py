"""Runs recipes in the order of their needs, each once: in this process, or on all cores with one torch thread each.

A recipe that fails is written down with its traceback and the others go on; what needs it is not tried. An interrupt
keeps all that is finished.
"""

from __future__ import annotations

import multiprocessing
import traceback
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from threading import Thread

import torch

from heedful.core.types import UserError
from heedful.core.workspace import Progress, Recipe, Step, Workspace


@dataclass(frozen=True)
class Outcome:
    """How one recipe went; `error` is None where its artefact exists, `trace` is the file with the traceback."""

    recipe: Recipe
    error: str | None = None
    trace: Path | None = None


def ordered(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The recipes and all that they need, each once, needs first."""
    found: dict[Recipe, None] = {}

    def visit(recipe: Recipe) -> None:
        if recipe not in found:
            for need in recipe.needs:
                visit(need)
            found[recipe] = None

    for recipe in recipes:
        visit(recipe)
    return list(found)


def run(recipes: Iterable[Recipe], workspace: Workspace, *, workers: int = 1) -> list[Outcome]:
    """The outcome of every recipe and of all that they need, in the order in which they were started."""
    plan = ordered(recipes)
    waiting = [recipe for recipe in plan if not workspace.has(recipe)]
    if workers <= 1 or len(waiting) <= 1:
        outcomes = _run_here(plan, workspace)
    else:
        outcomes = _run_pool(plan, workspace, min(workers, len(waiting)))
    return [outcomes[recipe] for recipe in plan]


def _run_here(plan: list[Recipe], workspace: Workspace) -> dict[Recipe, Outcome]:
    outcomes: dict[Recipe, Outcome] = {}
    for recipe in plan:
        missing = _failed_need(recipe, outcomes, workspace)
        outcomes[recipe] = missing or attempt(recipe, workspace)
    return outcomes


def _failed_need(recipe: Recipe, outcomes: Mapping[Recipe, Outcome], workspace: Workspace) -> Outcome | None:
    for need in recipe.needs:
        if outcomes[need].error is not None:
            return Outcome(recipe, f"not tried, because {workspace.name(need)} failed")
    return None


def attempt(recipe: Recipe, workspace: Workspace) -> Outcome:
    """Makes one recipe; an error is an outcome, an interrupt is not."""
    try:
        workspace.get(recipe)
    except UserError as error:
        return Outcome(recipe, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a recipe does wrong, the others go on and the traceback is kept
        return Outcome(recipe, f"{type(error).__name__}: {error}", _written(recipe, workspace))
    return Outcome(recipe)


def _written(recipe: Recipe, workspace: Workspace) -> Path:
    folder = workspace.root / ".failures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{workspace.name(recipe)}.txt"
    path.write_text(f"{recipe!r}\n\n{traceback.format_exc()}", encoding="utf-8")
    return path


def _run_pool(plan: list[Recipe], workspace: Workspace, workers: int) -> dict[Recipe, Outcome]:
    context = multiprocessing.get_context("spawn")
    queue: Queue[_Message | None] = context.Queue()
    relay = Thread(target=_relay, args=(queue, workspace.progress), daemon=True)
    relay.start()
    settings = _Settings(workspace.root, workspace.data, workspace.device, workspace.batch_size)
    pool = ProcessPoolExecutor(workers, context, initializer=_enter, initargs=(settings, queue))
    try:
        return _drive(plan, workspace, pool)
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        queue.put(None)
        relay.join(timeout=5)


def _drive(plan: list[Recipe], workspace: Workspace, pool: ProcessPoolExecutor) -> dict[Recipe, Outcome]:
    outcomes: dict[Recipe, Outcome] = {}
    running: dict[Future[Outcome], Recipe] = {}
    waiting = list(plan)
    while waiting or running:
        for recipe in [r for r in waiting if all(need in outcomes for need in r.needs)]:
            waiting.remove(recipe)
            missing = _failed_need(recipe, outcomes, workspace)
            if missing is not None:
                outcomes[recipe] = missing
            else:
                running[pool.submit(_work, recipe)] = recipe
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            outcomes[running.pop(future)] = future.result()
    return outcomes


@dataclass(frozen=True)
class _Settings:
    root: Path
    data: Path
    device: str
    batch_size: int


@dataclass(frozen=True)
class _Message:
    """What a worker's progress says to the one on the screen; a title opens a task, no advance closes it."""

    task: str
    title: str = ""
    total: int = 0
    advance: int | None = None
    note: str = ""


class _Sender:
    """The progress of a worker: everything goes through the queue."""

    def __init__(self, queue: Queue[_Message | None]) -> None:
        self.queue = queue

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Step]:
        """A task whose steps are sent on."""
        key = uuid.uuid4().hex
        self.queue.put(_Message(key, title, total))

        def step(advance: int = 1, note: str = "") -> None:
            self.queue.put(_Message(key, advance=advance, note=note))

        try:
            yield step
        finally:
            self.queue.put(_Message(key))


def _relay(queue: Queue[_Message | None], progress: Progress) -> None:
    steps: dict[str, tuple[AbstractContextManager[Step], Step]] = {}
    while (message := queue.get()) is not None:
        if message.title:
            task = progress.task(message.title, message.total)
            steps[message.task] = (task, task.__enter__())
        elif message.advance is not None:
            steps[message.task][1](message.advance, message.note)
        else:
            task, _ = steps.pop(message.task)
            task.__exit__(None, None, None)


_workspace: Workspace | None = None


def _enter(settings: _Settings, queue: Queue[_Message | None]) -> None:
    """A worker's beginning: one thread, because oversubscribed threads cost five times their gain."""
    global _workspace
    torch.set_num_threads(1)
    _workspace = Workspace(
        settings.root,
        data=settings.data,
        device=settings.device,
        batch_size=settings.batch_size,
        progress=_Sender(queue),
    )


def _work(recipe: Recipe) -> Outcome:
    assert _workspace is not None
    return attempt(recipe, _workspace)
