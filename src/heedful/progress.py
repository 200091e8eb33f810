"""How long work tells people where it stands, without knowing whether anybody looks.

A make opens a task and steps through it; the command puts a bar behind it, a library call nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class StepCallback(Protocol):
    """Says that `advance` more parts of a task are done; `note` is a short remark, such as the loss."""

    def __call__(self, advance: int = 1, note: str = "") -> None: ...


class Progress(Protocol):
    """Shows tasks to somebody."""

    def task(self, title: str, total: int) -> AbstractContextManager[StepCallback]:
        """A context in which `total` parts get done; it gives the step to call after each."""
        ...


class SilentProgress:
    """The progress that shows nothing."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """A context whose step does nothing."""
        yield _do_nothing


def _do_nothing(advance: int = 1, note: str = "") -> None:
    """The step of nobody."""
