"""The page of all commands, from their declarations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from docs.builder.markdown import markdown_text, table
from heedful import cli


def commands_of(group: TyperGroup, name: str) -> Iterator[tuple[str, TyperCommand]]:
    """Every command that can be run, with its full name."""
    for word, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands_of(command, f"{name} {word}")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{name} {word}", command


def write_commands_page(path: Path) -> None:
    """A section per command: what it does, its arguments and its options."""
    sections = ["# Commands\n\n`heedful COMMAND --help` says the same in the terminal.\n"]
    group = get_command(cli.app)
    for name, command in commands_of(group, "heedful") if isinstance(group, TyperGroup) else ():
        sections.append(f"## {name}\n\n{markdown_text(command.help or '')}\n")
        arguments = [entry for entry in command.params if isinstance(entry, TyperArgument)]
        options = [entry for entry in command.params if isinstance(entry, TyperOption) and not entry.hidden]
        if arguments:
            rows = [(f"`{str(entry.name).upper()}`", markdown_text(entry.help or "")) for entry in arguments]
            sections.append(table(("argument", "meaning"), rows))
        if options:
            sections.append(table(("option", "default", "meaning"), map(_option_row, options)))
    path.write_text("\n".join(sections), encoding="utf-8")


def _option_row(option: TyperOption) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in option.opts)
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    default = "" if shown is None or shown is False or callable(shown) or shown == "" else f"`{shown}`"
    return names, default, markdown_text(option.help or "")
