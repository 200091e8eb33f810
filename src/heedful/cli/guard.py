"""What surrounds every command: one line for an error, interrupts, exit codes."""

from __future__ import annotations

import _thread
import functools
import inspect
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer

from heedful.cli.console import STANDARD_OUTPUT, _output, command_start, complain, errors, screen
from heedful.cli.options import CommonOptions
from heedful.progress import find_interrupt, note_interrupt

SECONDS_TO_NEXT_INTERRUPT = 0.01
BROKEN_PIPE_CODE = 128 + 13
"""As of a command that SIGPIPE has ended, in `heedful list | head -1`."""
T = TypeVar("T")


def _show_warning(message: Warning | str, *_: object) -> None:
    if not screen.quiet:
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


def command(body: Callable[..., int | None]) -> Callable[..., None]:
    """A command with the options of its parameters and groups, and errors as one line.

    The exit code is 2 for what the user can change and 130 for an interrupt. Every command has the `CommonOptions`.
    """
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(body, eval_str=True).parameters.items():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += _group_parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += _group_parameters(CommonOptions)

    @functools.wraps(body)
    def guarded(**options: Any) -> None:
        common = _take_group(CommonOptions, options)
        screen.quiet = common.quiet
        command_start.set(time.monotonic())
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            import torch

            from heedful.types import UserError, user_path

            torch.set_num_threads(1)
            try:
                for name, value in options.items():
                    if isinstance(value, Path):
                        options[name] = user_path(value)
                with _output_alone() if STANDARD_OUTPUT in options.values() else nullcontext():
                    code = body(**{name: _take_group(group, options) for name, group in groups.items()}, **options)
            except BrokenPipeError as error:
                _close_output()
                raise typer.Exit(BROKEN_PIPE_CODE) from error
            except (UserError, OSError) as error:
                if find_interrupt(error) is not None:
                    raise
                if common.debug:
                    errors.print_exception()
                complain(str(error) if isinstance(error, UserError) else _describe_os_error(error))
                raise typer.Exit(2) from error
        except BaseException as error:
            stop = find_interrupt(error)
            if stop is None:
                raise
            complain("interrupted; finished work is kept, run the same command to continue")
            raise typer.Exit(_interrupt_code(stop)) from stop
        finally:
            screen.quiet = False
        raise typer.Exit(code or 0)

    guarded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    guarded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return guarded


def _group_parameters(group: type) -> list[inspect.Parameter]:
    """A parameter for each field of a group of options."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def _take_group(group: type[T], options: dict[str, Any]) -> T:
    """A group with its values, which are removed from `options`."""
    return group(**{field.name: options.pop(field.name) for field in fields(group)})  # type: ignore[arg-type]


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
