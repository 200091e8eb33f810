"""Run recipes in the order of their dependencies, each once: in this process, or in a pool with one torch thread each.

A recipe that fails is recorded with its traceback; what depends on it is skipped and all other recipes go on. A recipe
whose worker process dies is tried once more. An interrupt keeps everything that is finished.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import multiprocessing
import os
import pickle
import reprlib
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import TracebackType

import torch
from pebble import ProcessExpired, ProcessFuture, ProcessPool

from heedful.progress import StepCallback, find_interrupt, raise_lost_interrupt
from heedful.store.recipe import Recipe, RecipeError, check_recipe
from heedful.store.workspace import Workspace, WriteError
from heedful.types import UserError

MAX_ATTEMPTS = 2
OUT_OF_TIME = "not finished when the time was up"
WORKER_DIED = "its worker process died twice, perhaps out of memory; run again with --workers 1"
POOL_BROKEN = (
    "the worker processes could not start; run again with --workers 1 "
    "(a script that calls run() needs `if __name__ == '__main__':` around the call)"
)
MAX_BROKEN_POOLS = 3
"""A pool whose workers die before they start a recipe is replaced this often in a row."""
MAX_START_SECONDS = 300.0
"""Workers that have begun no recipe after this time are replaced."""
POLL_SECONDS = 0.05
MAX_MESSAGE_CHARACTERS = 100
MAX_WARNING_CHARACTERS = 900
"""In UTF-8 still short enough to be written to a pipe at once."""
_WARNING = -1
"""In place of the task number: the title is a warning."""
_START = -2
"""In place of the task number: the worker has started."""

_Message = tuple[int, int, str, int, str]
"""Process id, task number, title (opens the task), parts done or in all (-1 closes the task), note."""


@dataclass(frozen=True)
class Outcome:
    """The result of one recipe: `error` is None where its artefact exists.

    `cause` is the failed recipe for which this one was skipped; None if it was tried.
    """

    recipe: Recipe
    error: str | None = None
    traceback_file: Path | None = None
    cause: Recipe | None = None


def topological_order(recipes: Iterable[Recipe] | Recipe) -> list[Recipe]:
    """The recipes and all their dependencies, each once, dependencies first."""
    order: dict[Recipe, None] = {}

    def visit(recipe: Recipe) -> None:
        check_recipe(recipe)
        if recipe not in order:
            for dependency in recipe.dependencies:
                visit(dependency)
            order[recipe] = None

    for recipe in [recipes] if isinstance(recipes, Recipe) else recipes:
        visit(recipe)
    return list(order)


def run(
    recipes: Iterable[Recipe] | Recipe, workspace: Workspace, *, workers: int = 1, deadline: float | None = None
) -> list[Outcome]:
    """Make the recipes and all their dependencies; one outcome for each, dependencies first.

    `WriteError` if the workspace cannot be written, at once or when its disk is full; what is finished is kept.

    Args:
        deadline: on the clock of `time.monotonic`; recipes that are not finished by then have the error `OUT_OF_TIME`.
            Worker processes are stopped at that moment, this process after the recipe that it is making.
    """
    if not isinstance(workspace, Workspace):
        raise UserError(f"give a workspace, for instance run(recipes, Workspace({str(workspace)!r}))")
    plan = topological_order(recipes)
    outcomes = {recipe: Outcome(recipe) for recipe in plan if workspace.has(recipe)}
    waiting = [recipe for recipe in plan if recipe not in outcomes]
    workspace.delete_leftovers()
    if waiting:
        workspace.check_writable()
    finished: Iterable[Outcome]
    end = math.inf if deadline is None else deadline
    if workers > 1 and len(waiting) > 1:
        for recipe in waiting:
            _check_sendable(recipe)
        finished = _run_in_pool(list(waiting), outcomes, workspace, min(workers, len(waiting)), end)
    else:
        finished = (_failed_dependency(each, outcomes, workspace) or attempt(each, workspace) for each in waiting)
    workspace.model_cache = {}
    try:
        with workspace.progress.task("all recipes", len(waiting)) as step:
            if time.monotonic() < end:
                for outcome in finished:
                    outcomes[outcome.recipe] = outcome
                    step()
                    raise_lost_interrupt()
                    if time.monotonic() >= end:
                        break
    finally:
        workspace.model_cache = None
        if isinstance(finished, Generator):
            finished.close()  # ends the worker processes
    return [outcomes.get(recipe, Outcome(recipe, OUT_OF_TIME)) for recipe in plan]


def recipes_from_file(path: Path | str) -> list[Recipe]:
    """The recipes that the function `recipes()` of a Python file returns; UserError with the line of a mistake."""
    path = Path(path)
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}")
    if path.stem in sys.modules and path.stem not in _imported_files:
        raise UserError(f"{path.name} has the name of a module that is already imported; rename the file")
    if "." in path.stem:
        raise UserError(f"{path.name}: a module's name has no dot; rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Worker processes import the file by its name, and the file may import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    _imported_files.add(path.stem)
    with _mistakes_of(path):
        spec.loader.exec_module(module)
    function = vars(module).get("recipes")
    if not callable(function):
        raise UserError(f"{path} has no function recipes(); write one that returns a list of recipes")
    with _mistakes_of(path):
        returned = function()
        if inspect.iscoroutine(returned):
            returned.close()
        found = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if not found:
        raise UserError(
            f"{path}: recipes() returned {reprlib.repr(returned)}; it must return a list of recipes, at least one"
        )
    for recipe in found:
        try:
            check_recipe(recipe)
        except RecipeError as error:
            raise UserError(f"{path}: recipes() returned a list with a mistake: {error}") from error
    return found


@contextmanager
def _mistakes_of(path: Path) -> Iterator[None]:
    """Whatever the code of a user's file raises, as one line with the file and its line number."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else (lines or [None])[-1]
        where = f"{path}, line {line}" if line is not None else str(path)
        raise UserError(f"{where}: {describe_exception(error)}; correct the file") from error


def describe_exception(error: BaseException) -> str:
    """Type and message of an exception in one line.

    >>> describe_exception(ValueError("not", "good"))
    "ValueError: ('not', 'good')"
    """
    try:
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    except Exception:  # noqa: BLE001 - an exception of the user's own that cannot be printed
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


_imported_files: set[str] = set()
"""Module names of users' files; another file of the same name may replace them."""


def attempt(recipe: Recipe, workspace: Workspace) -> Outcome:
    """Make one recipe; an exception becomes an outcome, an interrupt and a `WriteError` do not."""
    try:
        workspace.get(recipe)
    except WriteError:
        raise  # no other recipe could be stored either
    except Exception as error:  # noqa: BLE001 - other recipes go on, and the traceback is kept
        if (stop := find_interrupt(error)) is not None:
            raise stop from None
        if isinstance(error, UserError):
            return Outcome(recipe, str(error))
        path = workspace.write_failure(workspace.artefact_name(recipe), f"{recipe!r}\n\n{traceback.format_exc()}")
        return Outcome(recipe, describe_exception(error), path)
    return Outcome(recipe)


def _check_sendable(recipe: Recipe) -> None:
    """UserError for a recipe that cannot be sent to a worker process."""
    try:
        pickle.dumps(recipe)
    except Exception as error:
        code = inspect.unwrap(type(recipe).make).__code__
        raise UserError(
            f"{code.co_filename}, line {code.co_firstlineno}: {type(recipe).__name__} cannot be sent to a worker "
            f"process ({describe_exception(error)}); define it at the top level of the file, or run with --where here"
        ) from error


def _run_in_pool(
    waiting: list[Recipe], outcomes: Mapping[Recipe, Outcome], workspace: Workspace, workers: int, end: float
) -> Iterator[Outcome]:
    """Submit no more recipes than there are workers, so that a model's trials come before the next model."""
    with _Pool(workspace, workers, {type(recipe).__module__ for recipe in waiting}) as pool:
        while (waiting or pool.running) and time.monotonic() < end:
            for recipe in list(waiting):
                if len(pool.running) == workers:
                    break
                if all(dependency in outcomes for dependency in recipe.dependencies):
                    waiting.remove(recipe)
                    failed = _failed_dependency(recipe, outcomes, workspace)
                    if failed is None:
                        pool.submit(recipe)
                    else:
                        yield failed
            yield from pool.wait()


def _failed_dependency(recipe: Recipe, outcomes: Mapping[Recipe, Outcome], workspace: Workspace) -> Outcome | None:
    for dependency in recipe.dependencies:
        if (failed := outcomes[dependency]).error is not None:
            cause = failed.cause or dependency
            return Outcome(recipe, f"skipped, because {workspace.artefact_name(cause)} failed", cause=cause)
    return None


def _start_quiet_resource_tracker() -> None:
    """Start the process of Python that deletes the pool's semaphores after a kill, without its warning about them."""
    quiet = "ignore:resource_tracker:UserWarning"
    sys.warnoptions.append(quiet)  # given to the process when it starts
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(quiet)


class _Worker(SpawnProcess):
    """A process without Ctrl-C from its first instruction on: the main process stops it."""

    def start(self) -> None:
        if sys.platform == "win32":
            super().start()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # inherited by the new process
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Worker


class _Pool:
    """Worker processes, what they are making, and their progress bars."""

    def __init__(self, workspace: Workspace, workers: int, modules: Iterable[str]) -> None:
        _start_quiet_resource_tracker()
        context = _Context()
        self.receiver, self.sender = context.Pipe(duplex=False)
        settings = (workspace.location, workspace.data_dir, workspace.device, workspace.batch_size)
        self.start = partial(
            ProcessPool,
            workers,
            initializer=_start_worker,
            initargs=(*settings, self.sender, tuple(modules)),
            context=context,
        )
        self.pool, self.broken, self.last_sign = self.start(), 0, time.monotonic()
        self.progress = workspace.progress
        self.started: set[int] = set()
        self.running: dict[ProcessFuture[Outcome], Recipe] = {}
        self.deaths: Counter[Recipe] = Counter()
        self.bars: dict[tuple[int, int], tuple[AbstractContextManager[StepCallback], StepCallback]] = {}

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self.receiver.close()
        self.sender.close()

    def submit(self, recipe: Recipe) -> None:
        """Let the next free worker make this recipe."""
        while True:
            try:
                self.running[self.pool.schedule(_make_in_worker, args=(recipe,))] = recipe
            except RuntimeError as error:  # the pool is broken
                self._restart(error)
            else:
                return

    def _stop(self) -> None:
        for process in multiprocessing.active_children():
            if isinstance(process, _Worker) and process.pid not in self.started:
                process.kill()  # it would miss the pool's locks, which are about to go, and say so in a traceback
        self.pool.stop()  # type: ignore[no-untyped-call]
        self.pool.join()
        for key in list(self.bars):
            self._close_bar(key)

    def _restart(self, error: BaseException) -> None:
        """Replace a broken pool: pebble gives up when a worker dies and none has begun a recipe."""
        if not self.pool.active:  # else it was replaced already, for another recipe of the broken pool
            self._replace(error)

    def _replace(self, error: BaseException | None = None) -> None:
        self._stop()
        self.broken += 1
        if self.broken == MAX_BROKEN_POOLS:
            raise UserError(POOL_BROKEN) from error
        self.pool, self.last_sign = self.start(), time.monotonic()

    def wait(self) -> list[Outcome]:
        """Wait for a moment, show the progress of the workers, and return the outcomes of those that are done."""
        if self.running:
            self.receiver.poll(POLL_SECONDS)
        done = [future for future in self.running if future.done()]
        if done or any(future.running() for future in self.running):
            self.last_sign = time.monotonic()
        elif self.running and time.monotonic() - self.last_sign > MAX_START_SECONDS:
            # A worker that was killed while it took a recipe keeps that recipe, and pebble's lock.
            lost = [*self.running.values()]
            self.running.clear()
            self._replace()
            for recipe in lost:
                self.submit(recipe)
        while self.receiver.poll():
            self._show(self.receiver.recv())
        return [outcome for future in done if (outcome := self._outcome(future)) is not None]

    def _outcome(self, future: ProcessFuture[Outcome]) -> Outcome | None:
        """The outcome of a finished task; None where the recipe is tried again."""
        recipe, error = self.running.pop(future), future.exception()
        if error is None:
            self.broken = 0
            return future.result()
        if isinstance(error, BrokenProcessPool):
            self._restart(error)
            self.submit(recipe)
            return None
        if isinstance(error, WriteError):
            raise error
        if not isinstance(error, ProcessExpired):
            return Outcome(recipe, describe_exception(error))
        for key in [key for key in self.bars if key[0] == error.pid]:
            self._close_bar(key)
        self.deaths[recipe] += 1
        if self.deaths[recipe] == MAX_ATTEMPTS:
            return Outcome(recipe, WORKER_DIED)
        self.submit(recipe)
        return None

    def _show(self, message: _Message) -> None:
        process, task, title, parts, note = message
        key = (process, task)
        if task == _WARNING:
            warnings.warn(title, stacklevel=2)
        elif task == _START:
            self.started.add(process)
        elif title:
            bar = self.progress.task(title, parts)
            self.bars[key] = (bar, bar.__enter__())
        elif parts >= 0:
            self.bars[key][1](parts, note)
        else:
            self._close_bar(key)

    def _close_bar(self, key: tuple[int, int]) -> None:
        self.bars.pop(key)[0].__exit__(None, None, None)


class _SentProgress:
    """The progress of a worker, sent to the main process.

    All workers write to one pipe without a lock: short messages are written atomically, and a worker that is killed
    cannot leave a lock behind.
    """

    def __init__(self, sender: Connection) -> None:
        self.sender, self.numbers = sender, count()

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A task whose steps are sent."""
        number = next(self.numbers)
        self._send(number, title[:MAX_MESSAGE_CHARACTERS], total)

        def step(advance: int = 1, note: str = "") -> None:
            self._send(number, "", advance, note[:MAX_MESSAGE_CHARACTERS])

        try:
            yield step
        finally:
            self._send(number, "", -1)

    def warn(self, message: str) -> None:
        """Let the main process show a warning."""
        self._send(_WARNING, message[:MAX_WARNING_CHARACTERS], 0)

    def send_start(self) -> None:
        """Let the main process know that this worker has started."""
        self._send(_START, "", 0)

    def _send(self, number: int, title: str, parts: int, note: str = "") -> None:
        message: _Message = (os.getpid(), number, title, parts, note)
        try:
            self.sender.send(message)
        except OSError:
            os._exit(1)  # the main process has ended; an exception would be printed with its traceback


_worker_workspace: list[Workspace] = []
"""In a worker process, its one workspace."""


def _start_worker(
    location: str, data_dir: Path, device: str, batch_size: int, sender: Connection, modules: tuple[str, ...]
) -> None:
    """Prepare a worker process; imports now what its recipes need, because pebble holds a lock while it unpickles."""
    torch.set_num_threads(1)
    for module in modules:
        if module != "__main__":
            importlib.import_module(module)
    progress = _SentProgress(sender)
    progress.send_start()
    warnings.showwarning = lambda message, *_: progress.warn(str(message))
    workspace = Workspace(location, data_dir=data_dir, device=device, batch_size=batch_size, progress=progress)
    workspace.model_cache = {}
    _worker_workspace.append(workspace)


def _make_in_worker(recipe: Recipe) -> Outcome:
    return attempt(recipe, _worker_workspace[0])
