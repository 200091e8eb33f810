"""Worker processes of this machine, one torch thread each, on pebble: a crashed worker does not affect other recipes.

A recipe whose worker process dies is tried once more; workers report their progress through one pipe.
Which recipes are next is decided by `execution.runner`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType

import torch
from pebble import ProcessExpired, ProcessFuture, ProcessPool

from heedful.execution.outcome import MAX_ATTEMPTS, WORKER_DIED, Outcome, attempt, describe_exception
from heedful.progress import StepCallback
from heedful.store.atomic_write import WriteError
from heedful.store.recipe import Recipe, Resources
from heedful.store.workspace import Workspace
from heedful.types import UserError

POOL_BROKEN = (
    "the worker processes could not start; run again with --workers 1 "
    "(a script that calls run() needs `if __name__ == '__main__':` around the call)"
)
MAX_BROKEN_POOLS = 3
"""A pool whose workers die before they start a recipe is replaced this often in a row."""
MAX_START_SECONDS = 300.0
"""Workers that have begun no recipe after this time are replaced."""
_POLL_SECONDS = 0.05
MAX_MESSAGE_CHARACTERS = 100
MAX_WARNING_CHARACTERS = 900
"""In UTF-8 still short enough to be written to a pipe at once."""
_WARNING = -1
"""In place of the task number: the title is a warning."""
_START = -2
"""In place of the task number: the worker has started."""

_Message = tuple[int, int, str, int, str]
"""Process id, task number, title (opens the task), parts done or in all (-1 closes the task), note."""


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


class LocalPool:
    """Worker processes, what they are making, and their progress bars."""

    def __init__(self, workspace: Workspace, workers: int, modules: Iterable[str]) -> None:
        _start_quiet_resource_tracker()
        context = _Context()
        self.receiver, self.sender = context.Pipe(duplex=False)
        open_workspace = partial(
            Workspace,
            workspace.location,
            data_dir=workspace.data_dir,
            device=workspace.device,
            batch_size=workspace.batch_size,
            automatic_batch_size=workspace.automatic_batch_size,
        )
        self.start = partial(
            ProcessPool,
            workers,
            initializer=_start_worker,
            initargs=(open_workspace, self.sender, tuple(modules)),
            context=context,
        )
        self.pool, self.broken, self.last_sign = self.start(), 0, time.monotonic()
        self.workers, self.progress, self.status = workers, workspace.progress, ""
        self.started: set[int] = set()
        self.running: dict[ProcessFuture[Outcome], Recipe] = {}
        self.deaths: Counter[Recipe] = Counter()
        self.split: set[Recipe] = set()
        """Recipes whose shards are known."""
        self.bars: dict[tuple[int, int], tuple[AbstractContextManager[StepCallback], StepCallback]] = {}

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self.receiver.close()
        self.sender.close()

    def has_room(self, needed: Resources) -> bool:
        """Whether a worker is free; every recipe takes one."""
        return len(self.running) < self.workers

    def submit(self, recipe: Recipe) -> None:
        """Let the next free worker make this recipe."""
        while True:
            try:
                future = self.pool.schedule(_make_in_worker, args=(recipe,), kwargs={"split": recipe not in self.split})
            except RuntimeError as error:  # the pool is broken
                self._restart(error)
            else:
                self.running[future] = recipe
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
            self.receiver.poll(_POLL_SECONDS)
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
            self.broken, outcome = 0, future.result()
            if outcome.shards:
                self.split.add(recipe)
            return outcome
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


def _start_worker(open_workspace: Callable[..., Workspace], sender: Connection, modules: tuple[str, ...]) -> None:
    """Prepare a worker process; imports now what its recipes need, because pebble holds a lock while it unpickles."""
    torch.set_num_threads(1)
    for module in modules:
        if module != "__main__":
            importlib.import_module(module)
    progress = _SentProgress(sender)
    progress.send_start()
    warnings.showwarning = lambda message, *_: progress.warn(str(message))
    _worker_workspace.append(open_workspace(progress=progress, model_cache={}))


def _make_in_worker(recipe: Recipe, *, split: bool) -> Outcome:
    return attempt(recipe, _worker_workspace[0], split=split)
