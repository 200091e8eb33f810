"""The workspace: where artefacts are kept, each under the name of its recipe, made once.

`get` is the only verb. An artefact is written aside and renamed into its place, so it is complete if and only
if it exists; a kill leaves at most rubbish in the hidden folders `.aside` (half-written artefacts) and
`.partial` (unfinished work to resume from). Locks spare two processes the same work; correctness does not
hang on them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import overload

from filelock import FileLock, Timeout

from heedful.core.aside import new_aside, sweep
from heedful.core.progress import Progress, Silent, Step
from heedful.core.recipe import Artefact, Json, Recipe, canonical, derived_seed, described, fingerprint
from heedful.core.sealed import (
    CorruptError,
    Finished,
    described_in,
    flush,
    named,
    unsealed,
    write_sealed,
    writing,
)
from heedful.core.types import UserError

__all__ = [
    "Artefact",
    "CorruptArtefact",
    "CorruptError",
    "Finished",
    "Json",
    "Progress",
    "Recipe",
    "Silent",
    "Step",
    "Workspace",
    "canonical",
    "derived_seed",
    "fingerprint",
]

_SILENT = Silent()
_under_way: ContextVar[tuple[Path, ...]] = ContextVar("_under_way", default=())


class CorruptArtefact(UserWarning):
    """A folder of the workspace is not what it should be; the message names it and says what was done."""


class _DataFolder:
    """A field that takes a folder or None and gives a folder; None means `HEEDFUL_DATA`, else the cache."""

    @overload
    def __get__(self, instance: None, owner: type) -> None: ...
    @overload
    def __get__(self, instance: Workspace, owner: type) -> Path: ...
    def __get__(self, instance: Workspace | None, owner: type) -> Path | None:
        return None if instance is None else vars(instance)["data"]

    def __set__(self, instance: Workspace, value: Path | None) -> None:
        vars(instance)["data"] = _usual_data() if value is None else Path(value)


def _usual_data() -> Path:
    if given := os.environ.get("HEEDFUL_DATA"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "heedful" / "data"


@dataclass(eq=False)
class Workspace:
    """A folder of artefacts, and what making them needs from this machine.

    Nothing is written before the first artefact is made: finished work can be read from a read-only disk.
    """

    root: Path
    _: KW_ONLY
    data: _DataFolder = _DataFolder()
    device: str = "cpu"
    batch_size: int = 256
    progress: Progress = _SILENT

    def __post_init__(self) -> None:
        self.root = Path(self.root)

    def get(self, recipe: Recipe) -> Artefact:
        """The artefact of a recipe, read from the disk; made first where it is missing or damaged."""
        description = described(recipe, self.data)
        folder = self.root / named(description)
        if folder.exists():
            try:
                return unsealed(folder)
            except CorruptError:
                pass  # looked at again below, where nobody else can be mending it
        with self._alone(folder):
            if not self._intact(folder):
                self._make(recipe, description)
        return unsealed(folder)

    def has(self, recipe: Recipe) -> bool:
        """Whether the artefact is there, by its seal and file sizes; only `get` looks at every byte."""
        return _whole(self.root / self.name(recipe))

    def name(self, recipe: Recipe) -> str:
        """The name of the recipe's artefact: `<ClassName>-<12 hex of its fingerprint>`."""
        return named(described(recipe, self.data))

    def partial(self, recipe: Recipe) -> Path:
        """An existing folder for unfinished work on this recipe: survives a kill, goes with completion."""
        folder = self._hidden("partial") / self.name(recipe)
        with writing(self.root):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finished(self) -> list[Finished]:
        """All complete artefacts by name; damaged and foreign folders are skipped with a warning."""
        found = []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                description = described_in(folder)
            except CorruptError as damage:
                warnings.warn(f"skipped: {damage}", CorruptArtefact, stacklevel=2)
                continue
            found.append(Finished(folder.name, str(description["type"]), description, folder))
        return found

    def _hidden(self, purpose: str) -> Path:
        return self.root / f".{purpose}"

    def _intact(self, folder: Path) -> bool:
        """Whether a complete artefact is there; a damaged one is moved away with a warning."""
        if not folder.exists():
            return False
        try:
            unsealed(folder)
        except CorruptError as damage:
            self._remove_damaged(folder, damage)
            return False
        return True

    def _remove_damaged(self, folder: Path, damage: CorruptError) -> None:
        grave = self._hidden("damaged") / f"{folder.name}.{secrets.token_hex(4)}"
        with writing(self.root):
            grave.parent.mkdir(exist_ok=True)
            folder.rename(grave)
        warnings.warn(f"{damage} (moved to {grave}; made again now)", CorruptArtefact, stacklevel=4)

    def _make(self, recipe: Recipe, description: dict[str, Json]) -> None:
        name = named(description)
        self._tidy()
        artefact = recipe.make(self)
        if not isinstance(artefact, Artefact):
            raise TypeError(f"{type(recipe).__name__}.make gave a {type(artefact).__name__}, not an Artefact")
        if self.name(recipe) != name:
            raise UserError(f"the data in {self.data} changed while {name} was being made; run it again")
        aside = new_aside(self._hidden("aside"), name)
        try:
            with writing(self.root):
                aside.mkdir(parents=True)
                write_sealed(aside, description, artefact)
                self._publish(aside, self.root / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(self._hidden("partial") / name, ignore_errors=True)

    def _tidy(self) -> None:
        """Delete what killed processes left: half-written artefacts, partial work of complete ones."""
        sweep(self._hidden("aside"))
        partial = self._hidden("partial")
        for folder in sorted(partial.iterdir()) if partial.is_dir() else ():
            if _whole(self.root / folder.name):
                with suppress(Timeout), self._lock(folder.name).acquire(timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, aside: Path, folder: Path) -> None:
        try:
            aside.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            return  # somebody without our lock was quicker with the same work: theirs is as good
        flush(self.root)

    @contextmanager
    def _alone(self, folder: Path) -> Iterator[None]:
        """Hold the lock of one artefact; say so where another process has it."""
        if folder in _under_way.get():
            raise RuntimeError(f"the recipe {folder.name} asks for itself while it is being made")
        with writing(self.root):
            self._hidden("locks").mkdir(parents=True, exist_ok=True)
        lock = self._lock(folder.name)
        self._acquire(lock, folder.name)
        token = _under_way.set((*_under_way.get(), folder))
        try:
            yield
        finally:
            _under_way.reset(token)
            lock.release()

    def _lock(self, name: str) -> FileLock:
        return FileLock(self._hidden("locks") / f"{name}.lock")

    def _acquire(self, lock: FileLock, name: str) -> None:
        with writing(self.root), suppress(Timeout):
            lock.acquire(timeout=0)
            return
        with self.progress.task(f"waiting for another process that makes {name}", 1) as step:
            lock.acquire()
            step()


def _whole(folder: Path) -> bool:
    try:
        described_in(folder)
    except CorruptError:
        return False
    return True
