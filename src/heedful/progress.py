"""Progress of long work: a recipe opens a task and steps through it; the command line shows a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


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
        yield _do_nothing


def _do_nothing(advance: int = 1, note: str = "") -> None:
    """No-op."""


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
    found: list[BaseException] = [error]
    for each in found:
        if isinstance(each, KeyboardInterrupt):
            return each
        found += [other for other in (each.__cause__, each.__context__) if other is not None and other not in found]
    return _interrupts[0] if _interrupts else None
