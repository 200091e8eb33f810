"""What commands print and write: lines, warnings, progress bars and the files of their options."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from heedful.formatting import format_duration, terminal_line
from heedful.progress import MAX_BARS, Bar, IntervalProgress, Progress, SilentProgress, StepCallback

if TYPE_CHECKING:
    from heedful.store.workspace import Workspace

LINE_SECONDS = 180.0
"""Between two lines about the progress of a run whose output goes to a file."""
OPEN_SECONDS = 0.1
"""What is done within this time after a bar was opened was done before, or takes no time."""
STANDARD_OUTPUT = Path("-")
"""As the file of an option; all other lines of the command then go to standard error."""
errors = Console(stderr=True, highlight=False, soft_wrap=True)
screen = Console(highlight=False, soft_wrap=True)
_output: ContextVar[TextIO | None] = ContextVar("_output", default=None)
"""Standard output, while everything but the file of an option is printed to standard error."""
command_start: ContextVar[float | None] = ContextVar("command_start", default=None)
"""When the command began, on the clock of `time.monotonic`."""


def say(text: str, style: str | None = None) -> None:
    """Print a line without markup, unless the command is quiet."""
    screen.print(terminal_line(text), markup=False, style=style)


def complain(text: str) -> None:
    """Print a line about an error."""
    errors.print(f"heedful: {terminal_line(text)}", markup=False)


class RemainingTime(ProgressColumn):
    """The remaining time of a bar, from all parts that were finished since it was opened.

    A run of long recipes finishes several at once and then none for minutes: a rate over the last seconds, as rich has
    it, would say nothing or nonsense. What was done when the bar was opened, on a node of a cluster, does not count.
    """

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Hours, minutes and seconds, which pass between two steps; dashes until something is known."""
        seconds = remaining_seconds(task)
        if seconds is None:
            return Text("-:--:--", style="progress.remaining")
        minutes, seconds = divmod(math.ceil(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours:d}:{minutes:02d}:{seconds:02d}", style="progress.remaining")


def remaining_seconds(task: Task) -> float | None:
    """The expected time until a bar is full: parts that are left, at the mean speed until its last step."""
    stepped: float | None = task.fields["stepped"]
    done: float = task.completed - task.fields["before"]
    if task.total is None or task.start_time is None or stepped is None or done <= 0:
        return None
    expected = (stepped - task.start_time) * (task.total - task.completed) / done
    return max(0.0, expected - (task.get_time() - stepped))


class ScreenProgress:
    """Progress bars with loss, score and remaining time."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """One bar, removed when its task ends."""
        key = self.bars.add_task(terminal_line(title), total=total, note="", stepped=None, before=0)
        clock, before = self.bars.get_time, 0
        opened, stepped = clock(), None

        def step(advance: int = 1, note: str = "") -> None:
            nonlocal before, stepped
            if advance:
                stepped = clock()
                before += advance if stepped - opened < OPEN_SECONDS else 0
            self.bars.update(key, advance=advance, note=terminal_line(note), before=before, stepped=stepped)

        try:
            yield step
        finally:
            self.bars.remove_task(key)


class LineProgress(IntervalProgress):
    """A line on standard error every few minutes, for output that goes to a file."""

    def __init__(self, interval: float = LINE_SECONDS) -> None:
        super().__init__(interval)

    def pass_on(self, bars: Mapping[int, Bar]) -> None:
        """Print the line."""
        states = [f"{bar.title} {bar.done} of {bar.total}{bar.note and f' ({bar.note})'}" for bar in bars.values()]
        if states:
            complain(f"after {format_duration(time.monotonic() - self.start)}: {'; '.join(states[:MAX_BARS])}")


@contextmanager
def progress_display(*, visible: bool = True) -> Iterator[Progress]:
    """Progress bars on a terminal, a line every few minutes elsewhere; nothing from a quiet command."""
    if not visible or screen.quiet:
        yield SilentProgress()
        return
    if not errors.is_terminal:
        yield LineProgress()
        return
    title, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
    columns = (SpinnerColumn(), title, BarColumn(), MofNCompleteColumn(), note, RemainingTime())
    with Bars(*columns, console=errors) as bars:
        yield ScreenProgress(bars)


@contextmanager
def progress_of(workspace: Workspace) -> Iterator[None]:
    """Show the progress of a workspace within this block."""
    with progress_display() as workspace.progress:
        try:
            yield
        finally:
            workspace.progress = SilentProgress()


def check_files(files: Mapping[str, Path | None]) -> None:
    """Try whether the files of these options can be written; UserError if two of them are one file."""
    from heedful.types import UserError

    options: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        write_file(path, None, option)
        other_option = options.setdefault(path if path == STANDARD_OUTPUT else Path(os.path.realpath(path)), option)
        if other_option != option:
            raise UserError(f"{other_option} and {option} are both {path}; choose another file for one of them")


def check_folder(folder: Path) -> None:
    """UserError if `--out`, which is a folder, is to be standard output."""
    from heedful.types import UserError

    if folder == STANDARD_OUTPUT:
        raise UserError("--out is a folder, which cannot be standard output; write ./- for a folder of this name")


def print_text(text: str) -> None:
    """Print lines as they are into a file or pipe, and without characters that would steer it to a terminal."""
    output = _output.get() or sys.stdout
    lines = text.splitlines() if output.isatty() else ()
    output.write("".join(f"{terminal_line(line)}\n" for line in lines) or text)
    output.flush()


def write_file(path: Path, text: str | None, option: str = "--json") -> None:
    """Write the file of an option, or only try whether that is possible; devices and pipes are written directly."""
    from heedful.store.atomic_write import replace_text, try_to_write
    from heedful.types import UserError

    if path == STANDARD_OUTPUT:
        print_text(text or "")
        return
    special = path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir())
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if special and text is None:
            path.open("a").close()
        elif special:
            path.write_text(text or "", encoding="utf-8")
        elif text is None:
            try_to_write(path.parent)
        else:
            replace_text(path, text)
    except OSError as error:
        raise UserError(f"{option} {path}: cannot be written ({error.strerror}); choose another file") from error
