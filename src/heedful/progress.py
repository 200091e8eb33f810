"""Progress of long work: a recipe opens a task and steps through it; the command line shows a bar.

From the nodes of a cluster it is reported at intervals to one object, `ProgressReports`. This module imports nothing
heavy: the process of that object starts in a moment and stays small.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

MAX_BARS = 8
"""Recipes of a cluster whose progress is shown."""


class StepCallback(Protocol):
    """Reports that `advance` more parts of a task are done; `note` is a short remark, such as the loss."""

    def __call__(self, advance: int = 1, note: str = "") -> None: ...


class Progress(Protocol):
    """Displays the progress of tasks."""

    def task(self, title: str, total: int) -> AbstractContextManager[StepCallback]:
        """A context for a task of `total` parts; it gives the callback to call after each."""
        ...


class SilentProgress:
    """A progress display that shows nothing."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A context whose callback does nothing."""
        yield lambda advance=1, note="": None


@dataclass(frozen=True)
class Bar:
    """The state of one task of a recipe: `done` of `total` parts."""

    title: str
    total: int
    done: int = 0
    note: str = ""


TaskKey = tuple[int, int]
"""A run of a driver, and a recipe that it has submitted, both counted from 0."""


class ProgressReports:
    """What the recipes at work have reported last, by run. It holds no more than the recipes that are running."""

    def __init__(self) -> None:
        self.latest: dict[int, dict[TaskKey, Mapping[int, Bar]]] = {}

    def report(self, key: TaskKey, bars: Mapping[int, Bar]) -> None:
        """Replace what is known of one recipe; reports of a run that nobody reads are not kept."""
        if key[0] in self.latest:
            self.latest[key[0]][key] = bars

    def read(self, run: int, finished: Sequence[TaskKey]) -> dict[TaskKey, Mapping[int, Bar]]:
        """The reports of the recipes of a run that were begun first, a few of them; forgets those that are finished."""
        latest = self.latest.setdefault(run, {})
        for key in finished:
            latest.pop(key, None)
        return {key: latest[key] for key in sorted(latest)[:MAX_BARS]}

    def close(self, run: int) -> None:
        """Forget a run that has ended."""
        self.latest.pop(run, None)


class SendReport(Protocol):
    """Sends the state of all tasks of one recipe, without waiting."""

    def remote(self, key: TaskKey, bars: Mapping[int, Bar]) -> object: ...


class IntervalProgress(ABC):
    """Progress that is passed on at intervals, whenever a task takes a step or ends.

    A run that does nothing else for minutes needs no thread for that.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.bars: dict[int, Bar] = {}
        self.numbers, self.start = count(), time.monotonic()
        self.last = self.start

    @abstractmethod
    def pass_on(self, bars: Mapping[int, Bar]) -> None:
        """Take the state of all tasks that have not ended."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A task whose steps are counted here."""
        number = next(self.numbers)
        self.bars[number] = Bar(title, total)

        def step(advance: int = 1, note: str = "") -> None:
            bar = self.bars[number]
            self.bars[number] = replace(bar, done=bar.done + advance, note=note)
            self._pass_on()

        try:
            yield step
        finally:
            del self.bars[number]
            self._pass_on()

    def _pass_on(self) -> None:
        now = time.monotonic()
        if now - self.last >= self.interval:
            self.last = now
            self.pass_on(dict(self.bars))


class ReportedProgress(IntervalProgress):
    """The progress of one recipe on a node, reported at intervals."""

    def __init__(self, key: TaskKey, interval: float, send: SendReport) -> None:
        super().__init__(interval)
        self.key, self.send = key, send

    def pass_on(self, bars: Mapping[int, Bar]) -> None:
        """Send the report."""
        self.send.remote(self.key, bars)


_interrupts: list[KeyboardInterrupt] = []
"""Those that the command has received: a library may swallow one, or make another error of it."""


def note_interrupt(interrupt: KeyboardInterrupt) -> None:
    """Remember an interrupt that is about to be raised in the middle of any code."""
    _interrupts.append(interrupt)


def raise_lost_interrupt() -> None:
    """Raise an interrupt that was received and did not get here; torch swallows one while it looks at a tensor."""
    if _interrupts:
        raise _interrupts[0]


def find_interrupt(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that an error arose from, the error itself included; None if there was none.

    Code of libraries that is interrupted while it takes something back may fail in its turn: torch, for instance, with
    "RuntimeError: trying to pop from empty mode stack".
    """
    errors: list[BaseException] = [error]
    for known in errors:
        if isinstance(known, KeyboardInterrupt):
            return known
        errors += [other for other in (known.__cause__, known.__context__) if other is not None and other not in errors]
    return _interrupts[0] if _interrupts else None
