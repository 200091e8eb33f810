"""Runs recipes in the order of their needs, each once: in this process, or on all cores with one torch thread each.

A recipe that fails is written down with its traceback and the others go on; what needs it is not tried. A worker that
is killed from outside costs its recipe a second attempt, nobody else anything. An interrupt keeps all that is finished.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import platform
import signal
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType

import torch

from heedful.progress import Progress, StepCallback
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.types import UserError

MAX_ATTEMPTS = 2
"""So many workers may end under a recipe before it counts as failed."""
WORKER_DIED = "a worker process ended without an answer, perhaps out of memory; run again with --workers 1"
MIN_PACE_SHARE = 0.25
"""The share of the expected work after which the pace so far is believed more than the expectation."""


MAX_RETAINED_BYTES = 512 << 20
"""Bytes that a worker may keep though nothing needs them at the moment."""
# Names of glibc's malloc.h, which Python does not know.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Outcome:
    """How one recipe went; `error` is None where its artefact exists, `trace` is the file with the traceback."""

    recipe: Recipe
    error: str | None = None
    traceback_file: Path | None = None


def topological_order(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The recipes and all that they need, each once, needs first."""
    found: dict[Recipe, None] = {}

    def visit(recipe: Recipe) -> None:
        if recipe not in found:
            for need in recipe.dependencies:
                visit(need)
            found[recipe] = None

    for recipe in recipes:
        visit(recipe)
    return list(found)


def run(
    recipes: Iterable[Recipe],
    workspace: Workspace,
    *,
    workers: int = 1,
    expected_seconds: Mapping[Recipe, float] | None = None,
) -> list[Outcome]:
    """The outcome of every recipe and of all that they need, in the order in which they were started.

    Args:
        expected: seconds that recipes may take one by one, for the remaining time that is shown.
    """
    plan = topological_order(recipes)
    waiting = [recipe for recipe in plan if not workspace.has(recipe)]
    workers = min(workers, len(waiting))
    with workspace.progress.task("all recipes", len(plan)) as step:
        overall = _OverallProgress(step, waiting, expected_seconds or {}, max(1, workers))
        alone = workers <= 1
        outcomes = _run_in_process(plan, workspace, overall) if alone else _run_pool(plan, workspace, workers, overall)
    return [outcomes[recipe] for recipe in plan]


class _OverallProgress:
    """The one bar for all recipes; its note tells the time that is left."""

    def __init__(
        self, step: StepCallback, waiting: Sequence[Recipe], expected_seconds: Mapping[Recipe, float], workers: int
    ) -> None:
        self.step, self.workers, self.has_estimate = step, workers, bool(expected_seconds)
        self.remaining = {recipe: expected_seconds.get(recipe, 0.0) if expected_seconds else 1.0 for recipe in waiting}
        self.total = sum(self.remaining.values())
        self.start = time.monotonic()
        step(0, self._note())

    def mark_done(self, recipe: Recipe) -> None:
        """One recipe more is finished, or given up."""
        self.remaining.pop(recipe, None)
        self.step(1, self._note())

    def _note(self) -> str:
        left, spent = sum(self.remaining.values()), time.monotonic() - self.start
        done = self.total - left
        if self.has_estimate and done < MIN_PACE_SHARE * self.total:
            return f"about {format_duration(left / self.workers)} left"
        return f"about {format_duration(left * spent / done)} left" if done and self.remaining else ""


def format_duration(seconds: float) -> str:
    """A length of time for people, no finer than an estimate can be.

    >>> [format_duration(seconds) for seconds in (5, 400, 4200, 71_000)]
    ['1 min', '7 min', '1 h 10 min', '20 h']
    """
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(round(minutes, -1), 60)
    if hours >= 10:
        return f"{round(minutes / 60)} h"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def _run_in_process(plan: list[Recipe], workspace: Workspace, overall: _OverallProgress) -> dict[Recipe, Outcome]:
    outcomes: dict[Recipe, Outcome] = {}
    for recipe in plan:
        missing = _failed_need(recipe, outcomes, workspace)
        outcomes[recipe] = missing or attempt(recipe, workspace)
        overall.mark_done(recipe)
    return outcomes


def _failed_need(recipe: Recipe, outcomes: Mapping[Recipe, Outcome], workspace: Workspace) -> Outcome | None:
    for need in recipe.dependencies:
        if outcomes[need].error is not None:
            return Outcome(recipe, f"not tried, because {workspace.artefact_name(need)} failed")
    return None


def attempt(recipe: Recipe, workspace: Workspace) -> Outcome:
    """Makes one recipe; an error is an outcome, an interrupt is not."""
    try:
        workspace.get(recipe)
    except UserError as error:
        return Outcome(recipe, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a recipe does wrong, the others go on and the traceback is kept
        return Outcome(recipe, f"{type(error).__name__}: {error}", _write_traceback(recipe, workspace))
    return Outcome(recipe)


def _write_traceback(recipe: Recipe, workspace: Workspace) -> Path:
    folder = workspace.root / ".failures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{workspace.artefact_name(recipe)}.txt"
    path.write_text(f"{recipe!r}\n\n{traceback.format_exc()}", encoding="utf-8")
    return path


def _run_pool(
    plan: list[Recipe], workspace: Workspace, workers: int, overall: _OverallProgress
) -> dict[Recipe, Outcome]:
    outcomes: dict[Recipe, Outcome] = {}
    waiting = list(plan)
    with _Pool(workspace, workers) as pool:
        while len(outcomes) < len(plan):
            told = []
            for recipe in [r for r in waiting if all(need in outcomes for need in r.dependencies)]:
                missing = _failed_need(recipe, outcomes, workspace)
                if missing is not None:
                    told.append(missing)
                elif not pool.assign(recipe):
                    continue
                waiting.remove(recipe)
            for outcome in told or pool.wait_for_outcomes():
                outcomes[outcome.recipe] = outcome
                overall.mark_done(outcome.recipe)
    return outcomes


@dataclass(frozen=True)
class _WorkerSettings:
    root: Path
    data: Path
    device: str
    batch_size: int


@dataclass(frozen=True)
class _ProgressMessage:
    """What a worker's progress says to the one on the screen; a title opens a task, no advance closes it."""

    task: str
    title: str = ""
    total: int = 0
    advance: int | None = None
    note: str = ""


class _Worker:
    """A process with one torch thread, the line to it, and the recipe that it works on."""

    def __init__(self, settings: _WorkerSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work_loop, args=(theirs, settings))
        self.process.start()
        theirs.close()
        self.recipe: Recipe | None = None
        self.ready = False
        self.tasks: dict[str, tuple[AbstractContextManager[StepCallback], StepCallback]] = {}

    def assign(self, recipe: Recipe) -> None:
        """Lets it work on a recipe; that it is not there any more is seen where its answer is awaited."""
        self.recipe = recipe
        with suppress(BrokenPipeError):
            self.connection.send(recipe)

    def show_progress(self, message: _ProgressMessage, progress: Progress) -> None:
        """Shows what it says about its progress."""
        if message.title:
            task = progress.task(message.title, message.total)
            self.tasks[message.task] = (task, task.__enter__())
        elif message.advance is not None:
            self.tasks[message.task][1](message.advance, message.note)
        else:
            self.tasks.pop(message.task)[0].__exit__(None, None, None)

    def close(self) -> None:
        """Takes its bars from the screen and the line from it: at the end of the line it ends."""
        for task, _ in self.tasks.values():
            task.__exit__(None, None, None)
        self.tasks.clear()
        self.connection.close()


class _Pool:
    """So many worker processes, all started at once: the second gets ready while the first has the only recipe whose
    needs are there. When one ends without an answer, the others do not notice.
    """

    def __init__(self, workspace: Workspace, max_workers: int) -> None:
        self.progress, self.max_workers = workspace.progress, max_workers
        self.settings = _WorkerSettings(workspace.root, workspace.data_dir, workspace.device, workspace.batch_size)
        self.workers = [_Worker(self.settings) for _ in range(max_workers)]
        self.crash_counts: Counter[Recipe] = Counter()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self.workers:
            worker.close()
            # Without an error all are idle, and what they made is sealed: nobody need wait for them to clear up.
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join()

    def assign(self, recipe: Recipe) -> bool:
        """Whether a worker was free, or could be started, and has taken the recipe."""
        free = next((worker for worker in self.workers if worker.recipe is None), None)
        if free is None and len(self.workers) < self.max_workers:
            free = _Worker(self.settings)
            self.workers.append(free)
        if free is not None:
            free.assign(recipe)
        return free is not None

    def wait_for_outcomes(self) -> Iterator[Outcome]:
        """Waits until workers say something, and gives the outcomes among it."""
        speaking = wait([worker.connection for worker in self.workers])
        for worker in [each for each in self.workers if each.connection in speaking]:
            try:
                said: Outcome | _ProgressMessage | None = worker.connection.recv()
            except (EOFError, OSError):
                yield from self._retry_or_fail(worker)
                continue
            if isinstance(said, _ProgressMessage):
                worker.show_progress(said, self.progress)
            elif said is None:
                worker.ready = True
            else:
                worker.recipe = None
                yield said

    def _retry_or_fail(self, worker: _Worker) -> Iterator[Outcome]:
        """Forgets a worker that has ended and gives its recipe to another, unless that was to blame too often."""
        worker.close()
        worker.process.join()
        self.workers.remove(worker)
        if not worker.ready:
            raise UserError("a worker process ended before it could begin; run again with --workers 1")
        if worker.recipe is None:
            return
        self.crash_counts[worker.recipe] += 1
        if self.crash_counts[worker.recipe] < MAX_ATTEMPTS:
            self.assign(worker.recipe)
        else:
            yield Outcome(worker.recipe, WORKER_DIED)


class _ProgressSender:
    """The progress of a worker: everything goes through its line."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A task whose steps are sent on."""
        key = uuid.uuid4().hex
        self._send(_ProgressMessage(key, title, total))

        def step(advance: int = 1, note: str = "") -> None:
            self._send(_ProgressMessage(key, advance=advance, note=note))

        try:
            yield step
        finally:
            self._send(_ProgressMessage(key))

    def _send(self, message: _ProgressMessage) -> None:
        try:
            self.connection.send(message)
        except OSError as gone:
            # Nobody is there any more who could use the result.
            raise SystemExit(1) from gone


def _work_loop(connection: Connection, settings: _WorkerSettings) -> None:
    """A worker's life: recipes one by one, on one thread, as oversubscribed threads cost five times their gain."""
    # An interrupt goes to all processes of a terminal; the one that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _retain_freed_memory()
    workspace = Workspace(
        settings.root,
        data_dir=settings.data,
        device=settings.device,
        batch_size=settings.batch_size,
        progress=_ProgressSender(connection),
    )
    _warm_up_optimizer()
    with suppress(EOFError, OSError):
        connection.send(None)
        while True:
            connection.send(attempt(connection.recv(), workspace))


def _retain_freed_memory() -> None:
    """Lets glibc keep what a step of training frees for the next one, up to KEPT bytes.

    Usually it gives large blocks back at once and takes them again, page by page, in every step; two processes at it
    hinder each other: trainings of a BiLSTM side by side take a tenth less time without.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(_TRIM_THRESHOLD, MAX_RETAINED_BYTES)


def _warm_up_optimizer() -> None:
    """Lets torch import now what it imports for the first step of an optimiser: more than a second."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.Adam([weight]).step()
