"""What is in a workspace: how large and how old each artefact is, and which others were made from it."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heedful.store.artefact_files import MANIFEST, IndexEntry, read_manifest, stored_size
from heedful.store.workspace import Workspace
from heedful.types import UserError, shorten


@dataclass(frozen=True)
class StoredItem:
    """One artefact.

    Args:
        size: bytes of its files.
        date: when it was written on this machine, as in 2026-01-31 12:00.
        needed_by: names of the artefacts that were made from it.
    """

    entry: IndexEntry
    size: int
    date: str
    needed_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its folder."""
        return self.entry.name

    @property
    def about(self) -> str:
        """What it is of, in a few words: corpus, model, method, seed."""
        facts = {
            name: str(value) for name, value in self.entry.facts.items() if value is not None and value is not False
        }
        return ", ".join(f"seed {value}" if name == "seed" else value for name, value in facts.items() if value)


def _date(path: Path) -> str:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M")


class Inventory:
    """The artefacts of a workspace by name."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        entries = workspace.entries()
        needed_by: dict[str, list[str]] = {entry.name: [] for entry in entries}
        for entry in entries:
            for name in {name for names in entry.links.values() for name in names}:
                needed_by.setdefault(name, []).append(entry.name)
        self.items: Mapping[str, StoredItem] = {
            entry.name: StoredItem(
                entry,
                stored_size(read_manifest(entry.path)),
                _date(entry.path / MANIFEST),
                tuple(sorted(needed_by[entry.name])),
            )
            for entry in entries
        }

    @cached_property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """The number of artefacts of each kind, and their bytes; the largest kind first."""
        kinds: dict[str, tuple[int, int]] = {}
        for item in self.items.values():
            count, size = kinds.get(item.entry.kind, (0, 0))
            kinds[item.entry.kind] = (count + 1, size + item.size)
        return dict(sorted(kinds.items(), key=lambda entry: (-entry[1][1], entry[0])))

    def find(self, name: str) -> StoredItem:
        """The artefact with this name, or the only one whose name begins so; UserError if there is none or several."""
        if name in self.items:
            return self.items[name]
        matches = [item for known, item in self.items.items() if known.startswith(name)] if name else []
        if len(matches) == 1:
            return matches[0]
        several = ", ".join(item.name for item in matches[:5])
        raise UserError(
            f"several artefacts begin with {name!r} ({several}): give more of the name"
            if matches
            else f"no artefact {shorten(name)} in {self.workspace}; `heedful workspace list` shows all names"
        )

    def dependents(self, names: Collection[str]) -> list[str]:
        """Every artefact that was made from one of these, directly or not, these left out."""
        found: dict[str, None] = {}
        waiting = [name for name in names if name in self.items]
        while waiting:
            for name in self.items[waiting.pop()].needed_by:
                if name not in found:
                    found[name] = None
                    waiting.append(name)
        return sorted(found.keys() - {*names})

    def remove(self, names: Sequence[str]) -> int:
        """Remove artefacts and return the bytes that this frees; UserError if one that stays was made from them.

        What was made from others goes first, so that an interrupt leaves nothing without what it was made from.
        """
        left = self.dependents(names)
        if left:
            raise UserError(
                f"{', '.join(left[:3])}{' and others' if len(left) > 3 else ''} were made from what would be removed: "
                "remove them as well (--with-dependents)"
            )
        order = sorted(dict.fromkeys(names), key=lambda name: len(self.dependents([name])))
        for name in order:
            self.workspace.delete(name)
        return sum(self.items[name].size for name in order)
