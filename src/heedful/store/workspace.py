"""Folders of unfinished writing, and how to tell that nobody writes in them any more.

A folder is called `<name>.<pid>.<random>`; the first half of the random part stands for this machine and its
process numbers: a number means nothing on another host, or in another container, that shares the disk.

Artefacts as folders: five files, the last of which seals the others with size and SHA-256.

`tensors.safetensors`, `table.parquet`, `notes.json`, `recipe.json` and `seal.json`. Whatever byte changes
later, the seal tells, and the folder bears the name of its recipe. No format here can hold code: nothing is
unpickled.

The workspace: where artefacts are kept, each under the name of its recipe, made once.

`get` is the only verb. An artefact is written aside and renamed into its place, so it is complete if and only
if it exists; a kill leaves at most rubbish in the hidden folders `.aside` (half-written artefacts) and
`.partial` (unfinished work to resume from). Locks spare two processes the same work; correctness does not
hang on them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import overload

import numpy
import pandas
import pyarrow
import pyarrow.parquet
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.progress import Progress, SilentProgress
from heedful.store.recipe import Artefact, Json, Recipe, describe_recipe, dump_compact_json, json_digest
from heedful.types import UserError

_MACHINE_ID_DIGITS = 8


def new_staging_folder(parent: Path, name: str) -> Path:
    """A path below `parent` that only this process writes to; not yet created."""
    return parent / f"{name}.{os.getpid()}.{_machine_id()}{secrets.token_hex(_MACHINE_ID_DIGITS // 2)}"


def delete_abandoned_folders(parent: Path) -> None:
    """Delete the folders of dead processes of this machine; those of others and unclear ones stay."""
    if not parent.is_dir():
        return
    for folder in sorted(parent.iterdir()):
        if _is_abandoned(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(name: str) -> bool:
    parts = name.rsplit(".", 2)
    if os.name != "posix" or len(parts) != 3 or not parts[1].isdecimal():
        return False  # elsewhere, signal 0 is no harmless question
    return parts[2][:_MACHINE_ID_DIGITS] == _machine_id() and not _is_process_alive(int(parts[1]))


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's process, or no process number at all
        return True
    return True


def _machine_id() -> str:
    """Eight digits for this host and process-number space."""
    space = Path("/proc/self/ns/pid")
    number = space.stat().st_ino if space.exists() else 0
    return hashlib.sha256(f"{platform.node()}/{number}".encode()).hexdigest()[:_MACHINE_ID_DIGITS]


TENSORS_FILE, TABLE_FILE, NOTES_FILE, RECIPE_FILE = SEALED_FILES = (
    "tensors.safetensors",
    "table.parquet",
    "notes.json",
    "recipe.json",
)
SEAL_FILE = "seal.json"
_DAMAGE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)


class CorruptArtefactError(UserError):
    """An artefact on disk is not what was sealed."""


@dataclass(frozen=True)
class StoredArtefact:
    """A complete artefact found on disk.

    Args:
        name: `<ClassName>-<12 hex>`, the name of its folder.
        kind: the class name of its recipe.
        recipe: the canonical form of its recipe.
    """

    name: str
    recipe_class: str
    recipe: Mapping[str, Json]
    path: Path

    def load(self) -> Artefact:
        """The artefact; `CorruptError` where a checksum differs."""
        return read_artefact(self.path)


def artefact_folder_name(description: Mapping[str, Json]) -> str:
    """The name of the artefact of a recipe in canonical form: `<ClassName>-<12 hex of the fingerprint>`."""
    return f"{description['type']}-{json_digest(dict(description))[:12]}"


def write_artefact(folder: Path, description: Mapping[str, Json], artefact: Artefact) -> None:
    """Write an artefact with its recipe into the empty `folder`, the seal last, all flushed to the disk."""
    tensors, table = _to_storable_tensors(artefact.tensors), _to_arrow(artefact.table)
    notes = _note_to_json(artefact.notes, "notes")
    save_file(tensors, folder / TENSORS_FILE)
    pyarrow.parquet.write_table(table, folder / TABLE_FILE)
    (folder / NOTES_FILE).write_text(dump_compact_json(notes))
    (folder / RECIPE_FILE).write_text(dump_compact_json(dict(description)))
    (folder / SEAL_FILE).write_text(_seal_text(folder))
    for name in (*SEALED_FILES, SEAL_FILE):
        fsync_path(folder / name)
    fsync_path(folder)


@contextmanager
def translate_write_errors(folder: Path) -> Iterator[None]:
    """Turn what goes wrong on the disk into one line for the user."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = " ".join(
            (os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)).split()
        )
        raise UserError(
            f"cannot write in the workspace ({folder}): {reason}; make room there or choose another workspace"
        ) from error


def fsync_path(path: Path) -> None:
    """Wait until the file or folder is on the disk: a power cut must not leave a name without its content."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_artefact(folder: Path) -> Artefact:
    """The artefact in `folder`, tensors mapped from its file; `CorruptError` where the seal is broken."""
    read_recipe_json(folder)
    with _translate_read_errors(folder):
        _check_seal(folder, SEALED_FILES)
        tensors = load_file(folder / TENSORS_FILE)
        table = _read_table(folder / TABLE_FILE)
        notes = json.loads((folder / NOTES_FILE).read_bytes())
    return Artefact({name: tensors[name] for name in sorted(tensors)}, table, notes)


def read_recipe_json(folder: Path) -> dict[str, Json]:
    """The recipe of a sealed folder, at a glance: sizes of all files, checksum of the recipe only."""
    with _translate_read_errors(folder):
        _check_seal(folder, (RECIPE_FILE,))
        description: dict[str, Json] = json.loads((folder / RECIPE_FILE).read_bytes())
    if artefact_folder_name(description) != folder.name:
        raise _corrupt_error(folder, f"it holds {artefact_folder_name(description)}")
    return description


def _seal_text(folder: Path) -> str:
    files: dict[str, Json] = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in SEALED_FILES
    }
    content: dict[str, Json] = {"files": files, "heedful": _version()}
    return _add_checksum(content)


def _version() -> str:
    try:
        return version("heedful")
    except PackageNotFoundError:  # run from a bare checkout: no reason to lose finished work
        return "unknown"


def _check_seal(folder: Path, hashed_files: tuple[str, ...]) -> None:
    """Raise unless the seal is whole, all files have their sizes and those named their content."""
    files = _read_seal(folder)
    for name in SEALED_FILES:
        entry = files.get(name)
        if not isinstance(entry, dict) or (folder / name).stat().st_size != entry["bytes"]:
            raise _corrupt_error(folder, f"the size of {name} differs")
        if name in hashed_files and _sha256(folder / name) != entry["sha256"]:
            raise _corrupt_error(folder, f"the checksum of {name} differs")


def _read_seal(folder: Path) -> dict[str, Json]:
    written = (folder / SEAL_FILE).read_bytes()
    try:
        content = json.loads(written)
        stated = content.pop("seal") if isinstance(content, dict) and "seal" in content else None
        whole = stated == json_digest(content) and _add_checksum(content).encode("ascii") == written
    except ValueError as error:
        raise _corrupt_error(folder, f"{SEAL_FILE} is no seal") from error
    if not whole:
        raise _corrupt_error(folder, f"{SEAL_FILE} was altered")
    files: dict[str, Json] = content["files"]
    return files


def _add_checksum(content: dict[str, Json]) -> str:
    """The text of a seal: its content with a checksum of itself."""
    return dump_compact_json(content | {"seal": json_digest(content)})


@contextmanager
def _translate_read_errors(folder: Path) -> Iterator[None]:
    """Tell damage (a file is gone, the disk gives errors) from a door that is merely shut."""
    try:
        yield
    except OSError as error:
        reason = f"{Path(error.filename or folder).name}: {os.strerror(error.errno or 0)}"
        if error.errno in _DAMAGE_ERRNOS:
            raise _corrupt_error(folder, reason) from error
        raise UserError(f"cannot read the artefact {folder} ({reason}); see to its permissions") from error


def _corrupt_error(folder: Path, reason: str) -> CorruptArtefactError:
    return CorruptArtefactError(
        f"the artefact {folder} is damaged: {reason}; run its recipe again or delete the folder"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_storable_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as the format wants them: on the CPU, contiguous, none sharing memory (tied weights)."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        stored[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return stored


def _to_arrow(table: pandas.DataFrame) -> pyarrow.Table:
    odd = [column for column in table.columns if not isinstance(column, str)]
    if odd:
        raise ValueError(f"column names of a table must be strings, not {odd[0]!r}")
    return pyarrow.Table.from_pandas(table, preserve_index=False)


def _read_table(path: Path) -> pandas.DataFrame:
    with pyarrow.parquet.ParquetFile(path) as file:
        arrow = file.read(use_threads=False)  # threads would cost small tables more than they give, and forbid forks
    table: pandas.DataFrame = arrow.to_pandas(use_threads=False)
    for column, kind in zip(arrow.schema.names, arrow.schema.types, strict=True):
        if pyarrow.types.is_nested(kind):
            table[column] = pandas.Series([_arrays_to_lists(cell) for cell in table[column]], dtype=object)
    return table


def _arrays_to_lists(cell: object) -> object:
    """Arrays as lists at every depth: pandas would hand out arrays, whose `==` is no truth value."""
    if isinstance(cell, numpy.ndarray):
        return [_arrays_to_lists(part) for part in cell] if cell.dtype == object else cell.tolist()
    return cell


def _note_to_json(value: object, place: str) -> Json:
    """Notes as JSON can hold them; ValueError or TypeError names the key that it cannot."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}: notes hold finite numbers only; leave it out or say it in words")
        return float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_note_to_json(part, f"{place}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str)]
        if not odd:
            return {key: _note_to_json(part, f"{place}.{key}") for key, part in value.items()}
        raise TypeError(f"{place} has the key {odd[0]!r}: keys of notes are strings")
    raise TypeError(f"{place} is a {type(value).__name__}: notes hold plain JSON values only")


_SILENT = SilentProgress()
_recipes_in_progress: ContextVar[tuple[Path, ...]] = ContextVar("_under_way", default=())


class CorruptArtefactWarning(UserWarning):
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
        vars(instance)["data"] = _default_data_dir() if value is None else Path(value)


def _default_data_dir() -> Path:
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
    data_dir: _DataFolder = _DataFolder()
    device: str = "cpu"
    batch_size: int = 256
    progress: Progress = _SILENT

    def __post_init__(self) -> None:
        self.root = Path(self.root)

    def get(self, recipe: Recipe) -> Artefact:
        """The artefact of a recipe, read from the disk; made first where it is missing or damaged."""
        description = describe_recipe(recipe, self.data_dir)
        folder = self.root / artefact_folder_name(description)
        if folder.exists():
            try:
                return read_artefact(folder)
            except CorruptArtefactError:
                pass  # looked at again below, where nobody else can be mending it
        with self._hold_lock(folder):
            if not self._is_intact(folder):
                self._make(recipe, description)
        return read_artefact(folder)

    def has(self, recipe: Recipe) -> bool:
        """Whether the artefact is there, by its seal and file sizes; only `get` looks at every byte."""
        return _is_complete(self.root / self.artefact_name(recipe))

    def artefact_name(self, recipe: Recipe) -> str:
        """The name of the recipe's artefact: `<ClassName>-<12 hex of its fingerprint>`."""
        return artefact_folder_name(describe_recipe(recipe, self.data_dir))

    def partial_folder(self, recipe: Recipe) -> Path:
        """An existing folder for unfinished work on this recipe: survives a kill, goes with completion."""
        folder = self._hidden_folder("partial") / self.artefact_name(recipe)
        with translate_write_errors(self.root):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def list_artefacts(self) -> list[StoredArtefact]:
        """All complete artefacts by name; damaged and foreign folders are skipped with a warning."""
        found = []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                description = read_recipe_json(folder)
            except CorruptArtefactError as damage:
                warnings.warn(f"skipped: {damage}", CorruptArtefactWarning, stacklevel=2)
                continue
            found.append(StoredArtefact(folder.name, str(description["type"]), description, folder))
        return found

    def _hidden_folder(self, purpose: str) -> Path:
        return self.root / f".{purpose}"

    def _is_intact(self, folder: Path) -> bool:
        """Whether a complete artefact is there; a damaged one is moved away with a warning."""
        if not folder.exists():
            return False
        try:
            read_artefact(folder)
        except CorruptArtefactError as damage:
            self._quarantine_damaged(folder, damage)
            return False
        return True

    def _quarantine_damaged(self, folder: Path, damage: CorruptArtefactError) -> None:
        grave = self._hidden_folder("damaged") / f"{folder.name}.{secrets.token_hex(4)}"
        with translate_write_errors(self.root):
            grave.parent.mkdir(exist_ok=True)
            folder.rename(grave)
        warnings.warn(f"{damage} (moved to {grave}; made again now)", CorruptArtefactWarning, stacklevel=4)

    def _make(self, recipe: Recipe, description: dict[str, Json]) -> None:
        name = artefact_folder_name(description)
        self._delete_leftovers()
        artefact = recipe.make(self)
        if not isinstance(artefact, Artefact):
            raise TypeError(f"{type(recipe).__name__}.make gave a {type(artefact).__name__}, not an Artefact")
        if self.artefact_name(recipe) != name:
            raise UserError(f"the data in {self.data_dir} changed while {name} was being made; run it again")
        aside = new_staging_folder(self._hidden_folder("aside"), name)
        try:
            with translate_write_errors(self.root):
                aside.mkdir(parents=True)
                write_artefact(aside, description, artefact)
                self._publish(aside, self.root / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(self._hidden_folder("partial") / name, ignore_errors=True)

    def _delete_leftovers(self) -> None:
        """Delete what killed processes left: half-written artefacts, partial work of complete ones."""
        delete_abandoned_folders(self._hidden_folder("aside"))
        partial = self._hidden_folder("partial")
        for folder in sorted(partial.iterdir()) if partial.is_dir() else ():
            if _is_complete(self.root / folder.name):
                with suppress(Timeout), self._lock(folder.name).acquire(timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, staging: Path, folder: Path) -> None:
        try:
            staging.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            return  # somebody without our lock was quicker with the same work: theirs is as good
        fsync_path(self.root)

    @contextmanager
    def _hold_lock(self, folder: Path) -> Iterator[None]:
        """Hold the lock of one artefact; say so where another process has it."""
        if folder in _recipes_in_progress.get():
            raise RuntimeError(f"the recipe {folder.name} asks for itself while it is being made")
        with translate_write_errors(self.root):
            self._hidden_folder("locks").mkdir(parents=True, exist_ok=True)
        lock = self._lock(folder.name)
        self._acquire(lock, folder.name)
        token = _recipes_in_progress.set((*_recipes_in_progress.get(), folder))
        try:
            yield
        finally:
            _recipes_in_progress.reset(token)
            lock.release()

    def _lock(self, name: str) -> FileLock:
        return FileLock(self._hidden_folder("locks") / f"{name}.lock")

    def _acquire(self, lock: FileLock, name: str) -> None:
        with translate_write_errors(self.root), suppress(Timeout):
            lock.acquire(timeout=0)
            return
        with self.progress.task(f"waiting for another process that makes {name}", 1) as step:
            lock.acquire()
            step()


def _is_complete(folder: Path) -> bool:
    try:
        read_recipe_json(folder)
    except CorruptArtefactError:
        return False
    return True
