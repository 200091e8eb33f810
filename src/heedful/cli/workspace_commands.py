"""The commands for what is stored: `heedful workspace list | show | size | remove`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.console import say, screen
from heedful.cli.guard import command
from heedful.cli.options import DEFAULT_WORKSPACE, WorkspaceOption

if TYPE_CHECKING:
    from heedful.store.inventory import Inventory

NAME_HELP = "Name of an artefact (see `heedful workspace list`); its beginning is enough."
UNITS = ("B", "kB", "MB", "GB", "TB")

workspace_app = typer.Typer(no_args_is_help=True, help="See what is stored, and remove what is no longer needed.")


@workspace_app.command("list")
@command
def workspace_list(
    kind: Annotated[str, typer.Option("--kind", help="Only artefacts of this kind: model, trial, ...")] = "",
    sort: Annotated[str, typer.Option("--sort", help="Sort by name, size or date.")] = "name",
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
) -> None:
    """List everything that is stored: what it is of, its size and its date."""
    from heedful.terminal import TableRow, print_table
    from heedful.types import UserError

    inventory = _open(workspace)
    keys = {
        "name": lambda item: item.name,
        "size": lambda item: (-item.size, item.name),
        "date": lambda item: (item.date, item.name),
    }
    if sort not in keys:
        raise UserError(f"unknown order {sort!r}; choose from {', '.join(keys)}")
    kinds = inventory.sizes
    if kind and kinds and kind not in kinds:
        raise UserError(f"nothing of kind {kind!r} is stored; choose from {', '.join(kinds)}")
    items = sorted((item for item in inventory.items.values() if kind in ("", item.entry.kind)), key=keys[sort])
    rows = [TableRow((item.name, item.entry.kind, item.about, format_size(item.size), item.date)) for item in items]
    total = format_size(sum(item.size for item in items))
    if not screen.quiet:
        print_table((f"{len(items)} artefacts, {total}",), ("name", "kind", "of", "size", "date"), rows)


@workspace_app.command("show")
@command
def workspace_show(
    name: Annotated[str, typer.Argument(help=NAME_HELP)], workspace: WorkspaceOption = DEFAULT_WORKSPACE
) -> None:
    """Show the recipe of an artefact, what it was made from, what was made from it, and how long it took."""
    from heedful.formatting import format_duration

    item = (inventory := _open(workspace)).find(name)
    links = sorted({link for links in item.entry.links.values() for link in links})
    say(f"{item.name}: {item.entry.kind}, {item.about}", style="bold")
    say(f"Size: {format_size(item.size)} in {item.entry.path}")
    if (made := item.entry.made) is None:
        say(f"Date: {item.date}; how long it took is not recorded.")
    else:
        versions = f"heedful {made.heedful} and torch {made.torch}"
        say(f"Made: {made.date}, in {format_duration(made.seconds)}, with {versions}")
    for title, names in (("Made from", links), ("Needed by", item.needed_by)):
        say(f"{title}: {', '.join(names) or 'nothing'}.")
    missing = [link for link in links if link not in inventory.items]
    if missing:
        say(f"No longer stored: {', '.join(missing)}.")
    say("Recipe:")
    for line in json.dumps(dict(item.entry.open().recipe), indent=1).splitlines():
        say(line)


@workspace_app.command("size")
@command
def workspace_size(workspace: WorkspaceOption = DEFAULT_WORKSPACE) -> None:
    """Show how much is stored of each kind."""
    from heedful.terminal import TableRow, print_table

    inventory = _open(workspace)
    rows = [TableRow((kind, str(count), format_size(size))) for kind, (count, size) in inventory.sizes.items()]
    total = format_size(sum(item.size for item in inventory.items.values()))
    if not screen.quiet:
        print_table((f"{inventory.workspace}: {total}",), ("kind", "artefacts", "size"), rows)


@workspace_app.command("remove")
@command
def workspace_remove(
    names: Annotated[list[str], typer.Argument(help=NAME_HELP)],
    with_dependents: Annotated[
        bool, typer.Option("--with-dependents", help="Remove everything that was made from it as well.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, without removing it.")
    ] = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
) -> None:
    """Remove artefacts; nothing is removed that another artefact was made from."""
    inventory = _open(workspace)
    chosen = [inventory.find(name).name for name in names]
    if with_dependents:
        chosen += inventory.dependents(chosen)
    if dry_run:
        left = inventory.dependents(chosen)
        size = format_size(sum(inventory.items[name].size for name in {*chosen}))
        say(f"Would remove {', '.join(dict.fromkeys(chosen))}: {size}.")
        if left:
            say(f"Not possible without --with-dependents, because of {', '.join(left)}.")
        return
    freed, count = format_size(inventory.remove(chosen)), len({*chosen})
    say(f"Removed {count} artefact{'' if count == 1 else 's'}, {freed}.")


def _open(workspace: str) -> Inventory:
    from heedful.store.inventory import Inventory
    from heedful.store.workspace import Workspace

    return Inventory(Workspace(workspace))


def format_size(count: int) -> str:
    """
    >>> format_size(999), format_size(1500), format_size(2_340_000_000)
    ('999 B', '1.5 kB', '2.3 GB')
    """
    size, unit = float(count), 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if not unit else f"{size:.1f} {UNITS[unit]}"
