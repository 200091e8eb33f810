"""Artefacts as folders: five files, the last of which seals the others with size and SHA-256.

`tensors.safetensors`, `table.parquet`, `notes.json`, `recipe.json` and `seal.json`. Whatever byte changes
later, the seal tells, and the folder bears the name of its recipe. No format here can hold code: nothing is
unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy
import pandas
import pyarrow
import pyarrow.parquet
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.core.recipe import Artefact, Json, compact, digest_of
from heedful.core.types import UserError

TENSORS, TABLE, NOTES, RECIPE = FILES = ("tensors.safetensors", "table.parquet", "notes.json", "recipe.json")
SEAL = "seal.json"
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)


class CorruptError(UserError):
    """An artefact on disk is not what was sealed."""


@dataclass(frozen=True)
class Finished:
    """A complete artefact found on disk.

    Args:
        name: `<ClassName>-<12 hex>`, the name of its folder.
        kind: the class name of its recipe.
        recipe: the canonical form of its recipe.
    """

    name: str
    kind: str
    recipe: Mapping[str, Json]
    path: Path

    def open(self) -> Artefact:
        """The artefact; `CorruptError` where a checksum differs."""
        return unsealed(self.path)


def named(description: Mapping[str, Json]) -> str:
    """The name of the artefact of a recipe in canonical form: `<ClassName>-<12 hex of the fingerprint>`."""
    return f"{description['type']}-{digest_of(dict(description))[:12]}"


def write_sealed(folder: Path, description: Mapping[str, Json], artefact: Artefact) -> None:
    """Write an artefact with its recipe into the empty `folder`, the seal last, all flushed to the disk."""
    tensors, table = _storable(artefact.tensors), _tabular(artefact.table)
    notes = _plain_note(artefact.notes, "notes")
    save_file(tensors, folder / TENSORS)
    pyarrow.parquet.write_table(table, folder / TABLE)
    (folder / NOTES).write_text(compact(notes))
    (folder / RECIPE).write_text(compact(dict(description)))
    (folder / SEAL).write_text(_seal(folder))
    for name in (*FILES, SEAL):
        flush(folder / name)
    flush(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
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


def flush(path: Path) -> None:
    """Wait until the file or folder is on the disk: a power cut must not leave a name without its content."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unsealed(folder: Path) -> Artefact:
    """The artefact in `folder`, tensors mapped from its file; `CorruptError` where the seal is broken."""
    described_in(folder)
    with _reading(folder):
        _check(folder, FILES)
        tensors = load_file(folder / TENSORS)
        table = _read_table(folder / TABLE)
        notes = json.loads((folder / NOTES).read_bytes())
    return Artefact({name: tensors[name] for name in sorted(tensors)}, table, notes)


def described_in(folder: Path) -> dict[str, Json]:
    """The recipe of a sealed folder, at a glance: sizes of all files, checksum of the recipe only."""
    with _reading(folder):
        _check(folder, (RECIPE,))
        description: dict[str, Json] = json.loads((folder / RECIPE).read_bytes())
    if named(description) != folder.name:
        raise _damaged(folder, f"it holds {named(description)}")
    return description


def _seal(folder: Path) -> str:
    files: dict[str, Json] = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in FILES
    }
    content: dict[str, Json] = {"files": files, "heedful": _version()}
    return _stamped(content)


def _version() -> str:
    try:
        return version("heedful")
    except PackageNotFoundError:  # run from a bare checkout: no reason to lose finished work
        return "unknown"


def _check(folder: Path, thoroughly: tuple[str, ...]) -> None:
    """Raise unless the seal is whole, all files have their sizes and those named their content."""
    files = _sealed_files(folder)
    for name in FILES:
        entry = files.get(name)
        if not isinstance(entry, dict) or (folder / name).stat().st_size != entry["bytes"]:
            raise _damaged(folder, f"the size of {name} differs")
        if name in thoroughly and _sha256(folder / name) != entry["sha256"]:
            raise _damaged(folder, f"the checksum of {name} differs")


def _sealed_files(folder: Path) -> dict[str, Json]:
    written = (folder / SEAL).read_bytes()
    try:
        content = json.loads(written)
        stated = content.pop("seal") if isinstance(content, dict) and "seal" in content else None
        whole = stated == digest_of(content) and _stamped(content).encode("ascii") == written
    except ValueError as error:
        raise _damaged(folder, f"{SEAL} is no seal") from error
    if not whole:
        raise _damaged(folder, f"{SEAL} was altered")
    files: dict[str, Json] = content["files"]
    return files


def _stamped(content: dict[str, Json]) -> str:
    """The text of a seal: its content with a checksum of itself."""
    return compact(content | {"seal": digest_of(content)})


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Tell damage (a file is gone, the disk gives errors) from a door that is merely shut."""
    try:
        yield
    except OSError as error:
        reason = f"{Path(error.filename or folder).name}: {os.strerror(error.errno or 0)}"
        if error.errno in _DAMAGE:
            raise _damaged(folder, reason) from error
        raise UserError(f"cannot read the artefact {folder} ({reason}); see to its permissions") from error


def _damaged(folder: Path, reason: str) -> CorruptError:
    return CorruptError(f"the artefact {folder} is damaged: {reason}; run its recipe again or delete the folder")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as the format wants them: on the CPU, contiguous, none sharing memory (tied weights)."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        stored[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return stored


def _tabular(table: pandas.DataFrame) -> pyarrow.Table:
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
            table[column] = pandas.Series([_lists(cell) for cell in table[column]], dtype=object)
    return table


def _lists(cell: object) -> object:
    """Arrays as lists at every depth: pandas would hand out arrays, whose `==` is no truth value."""
    if isinstance(cell, numpy.ndarray):
        return [_lists(part) for part in cell] if cell.dtype == object else cell.tolist()
    return cell


def _plain_note(value: object, place: str) -> Json:
    """Notes as JSON can hold them; ValueError or TypeError names the key that it cannot."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}: notes hold finite numbers only; leave it out or say it in words")
        return float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain_note(part, f"{place}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str)]
        if not odd:
            return {key: _plain_note(part, f"{place}.{key}") for key, part in value.items()}
        raise TypeError(f"{place} has the key {odd[0]!r}: keys of notes are strings")
    raise TypeError(f"{place} is a {type(value).__name__}: notes hold plain JSON values only")
