"""What every command shares: its options, its lines on the screen, one line for an error, interrupts, progress bars."""

from __future__ import annotations

import _thread
import functools
import io
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from heedful.progress import Progress, SilentProgress, StepCallback, find_interrupt, note_interrupt
from heedful.terminal import printable

if TYPE_CHECKING:
    from heedful.store.workspace import Workspace

MAX_SEED = 2**32 - 1
SECONDS_TO_NEXT_INTERRUPT = 0.01
OPEN_SECONDS = 0.1
"""What is done within this time after a bar was opened was done before, or takes no time."""
DEFAULT_WORKSPACE = "workspace"
STANDARD_OUTPUT = Path("-")
"""As the file of an option; all other lines of the command then go to standard error."""
BROKEN_PIPE_CODE = 128 + 13
"""As of a command that SIGPIPE has ended, in `heedful list | head -1`."""
WorkspaceOption = Annotated[
    str,
    typer.Option(
        "--workspace",
        "-w",
        envvar="HEEDFUL_WORKSPACE",
        help="Where finished work is kept: folder or s3://bucket/folder.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Where networks run: cpu, cuda, cuda:1, mps.")]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="bfloat16 or float16: half the memory, and other numbers.")
]
BatchSizeOption = Annotated[
    str, typer.Option("--batch-size", help="Texts at once; auto: 256, halved when memory runs out.")
]
DEFAULT_DEVICE, DEFAULT_PRECISION, DEFAULT_BATCH_SIZE = "cpu", "float32", "256"
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
P = ParamSpec("P")

errors = Console(stderr=True, highlight=False, soft_wrap=True)
screen = Console(highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a line without markup."""
    screen.print(printable(text), markup=False)


def silent(_: str) -> None:
    """Print nothing."""


def complain(text: str) -> None:
    """Print a line about an error."""
    errors.print(f"heedful: {printable(text)}", markup=False)


def _show_warning(message: Warning | str, *_: object, quiet: bool) -> None:
    if not quiet:
        complain(f"warning: {message}")


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does, with another exit code."""


def _interrupt(number: int, _: object) -> None:
    """Handle a signal: raise it, and remember it for the case that a library swallows what is raised in it."""
    interrupt = _TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt()
    note_interrupt(interrupt)
    raise interrupt


def _show_unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Deliver an interrupt again that came while a finalizer ran, where Python prints exceptions and goes on."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGTERM if isinstance(lost.exc_value, _TerminatedError) else signal.SIGINT
    # A signal to this thread also ends its sleep; Windows has none.
    send = (
        _thread.interrupt_main
        if sys.platform == "win32"
        else functools.partial(signal.pthread_kill, threading.get_ident())
    )
    again = threading.Timer(SECONDS_TO_NEXT_INTERRUPT, send, (number,))
    again.daemon = True
    with suppress(RuntimeError):  # the process ends anyway
        again.start()


def _interrupt_code(stop: KeyboardInterrupt) -> int:
    return 128 + (signal.SIGTERM if isinstance(stop, _TerminatedError) else signal.SIGINT)


def command(body: Callable[P, int | None]) -> Callable[P, None]:
    """A command that prints errors as one line: exit code 2 for what the user can change, 130 for an interrupt."""

    @functools.wraps(body)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        warnings.showwarning = functools.partial(_show_warning, quiet=bool(options.get("quiet")))
        try:
            import torch

            from heedful.types import UserError, user_path

            torch.set_num_threads(1)
            try:
                for name, value in options.items():
                    if isinstance(value, Path):
                        options[name] = user_path(value)
                with _output_alone() if STANDARD_OUTPUT in options.values() else nullcontext():
                    code = body(*args, **options)
            except BrokenPipeError as error:
                _close_output()
                raise typer.Exit(BROKEN_PIPE_CODE) from error
            except (UserError, OSError) as error:
                if find_interrupt(error) is not None:
                    raise
                if options.get("debug"):
                    errors.print_exception()
                complain(str(error) if isinstance(error, UserError) else _describe_os_error(error))
                raise typer.Exit(2) from error
        except BaseException as error:
            stop = find_interrupt(error)
            if stop is None:
                raise
            complain("interrupted; finished work is kept, run the same command to continue")
            raise typer.Exit(_interrupt_code(stop)) from stop
        raise typer.Exit(code or 0)

    return guarded


_output: ContextVar[TextIO | None] = ContextVar("_output", default=None)
"""Standard output, while everything but the file of an option is printed to standard error."""


@contextmanager
def _output_alone() -> Iterator[None]:
    """Keep standard output for the file of an option that is `-`; all other lines go to standard error."""
    token = _output.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _output.reset(token)


def _close_output() -> None:
    """Give up standard output, whose reader has ended: what is left in its buffer must not be written at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe_os_error(error: OSError) -> str:
    """A file or folder that cannot be used, in one line."""
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}; check the path, its permissions and the space on the disk"


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
        key = self.bars.add_task(printable(title), total=total, note="", stepped=None, before=0)
        clock, before = self.bars.get_time, 0
        opened, stepped = clock(), None

        def step(advance: int = 1, note: str = "") -> None:
            nonlocal before, stepped
            if advance:
                stepped = clock()
                before += advance if stepped - opened < OPEN_SECONDS else 0
            self.bars.update(key, advance=advance, note=printable(note), before=before, stepped=stepped)

        try:
            yield step
        finally:
            self.bars.remove_task(key)


@contextmanager
def progress_display(*, quiet: bool) -> Iterator[Progress]:
    """Progress bars on a terminal, nothing elsewhere."""
    if quiet or not errors.is_terminal:
        yield SilentProgress()
        return
    title, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
    columns = (SpinnerColumn(), title, BarColumn(), MofNCompleteColumn(), note, RemainingTime())
    with Bars(*columns, console=errors) as bars:
        yield ScreenProgress(bars)


def open_workspace(place: str, device: str, batch_size: str) -> Workspace:
    """The workspace of a command with what it was told about the machine."""
    from heedful.devices import read_batch_size
    from heedful.store.workspace import Workspace

    size = read_batch_size(batch_size)
    if size is None:
        return Workspace(place, device=device, automatic_batch_size=True)
    return Workspace(place, device=device, batch_size=size)


@contextmanager
def progress_of(workspace: Workspace, *, quiet: bool) -> Iterator[None]:
    """Shows the progress of a workspace within this block."""
    with progress_display(quiet=quiet) as workspace.progress:
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
        other = options.setdefault(path if path == STANDARD_OUTPUT else Path(os.path.realpath(path)), option)
        if other != option:
            raise UserError(f"{other} and {option} are both {path}; choose another file for one of them")


def check_folder(folder: Path) -> None:
    """UserError if `--out`, which is a folder, is to be standard output."""
    from heedful.types import UserError

    if folder == STANDARD_OUTPUT:
        raise UserError("--out is a folder, which cannot be standard output; write ./- for a folder of this name")


def print_text(text: str) -> None:
    """Print lines as they are into a file or pipe, and without characters that would steer it to a terminal."""
    output = _output.get() or sys.stdout
    lines = text.splitlines() if output.isatty() else ()
    output.write("".join(f"{printable(line)}\n" for line in lines) or text)
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


def run_app(app: typer.Typer) -> None:
    """Run the command of this process; SIGTERM ends it as an interrupt does, and its worker processes with it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or locale without these characters
            stream.reconfigure(errors="backslashreplace")
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a command in the background ignores it
            signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _show_unraisable
        sys.exit(app())
    except KeyboardInterrupt as stop:
        complain("interrupted")
        sys.exit(_interrupt_code(stop))
