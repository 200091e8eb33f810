"""What is in the folder of a pretrained model: its settings, the model an adapter belongs to, and its digest."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heedful.store.file_digest import FileState, file_state, hash_files
from heedful.store.recipe import Json, json_digest
from heedful.types import UserError, first_line, user_path

_UNREAD_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".md", ".py", ".log")
"""Files of a model folder that are never read: weights in other formats than safetensors, code and documentation."""


def hash_model_folder(folder: Path, *, with_weights: bool) -> str:
    """A hash of every file of a model folder that a loader may read, whatever its name; weights are optional.

    Each family of tokenizers has its own file names (`merges.txt`, `spiece.model`, `added_tokens.json`), so that only
    files that are certainly not read are left out.
    """
    with _translate_read_errors(folder):
        digest, base = hash_files(_list_read_files(folder, with_weights=with_weights)), _base_folder(folder)
        if base is None:
            return digest
        return hashlib.sha256(f"{digest}{hash_model_folder(base, with_weights=with_weights)}".encode()).hexdigest()


def hash_model_source(source: str, *, with_weights: bool) -> str:
    """The `hash_model_folder` of a folder, or the name of a model on the hub."""
    folder = user_path(source)
    return hash_model_folder(folder, with_weights=with_weights) if folder.is_dir() else source


def _list_read_files(folder: Path, *, with_weights: bool) -> list[Path]:
    unread = _UNREAD_SUFFIXES if with_weights else (*_UNREAD_SUFFIXES, ".safetensors", ".safetensors.index.json")
    names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [path for path in names if path.is_file() and not path.name.lower().endswith(unread)]


def _base_folder(folder: Path) -> Path | None:
    """The folder of the model that an adapter belongs to; None for other models and for hub ids."""
    base = user_path(read_adapter_base(folder) or "")
    return None if base == Path() or not base.is_dir() or base.resolve() == folder.resolve() else base


@contextmanager
def _translate_read_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} cannot be read ({error.strerror}): check its permissions"
        ) from error


class ModelIdentity(ABC):
    """What tells a model from others; two are equal if their digests are."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of weights and tokenizer, and of how they are read."""

    @abstractmethod
    def read_as(self, reading: tuple[Json, ...]) -> ModelIdentity:
        """The same model read in a certain way: in half precision, or by a prompt."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelIdentity) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True, eq=False)
class KnownIdentity(ModelIdentity):
    """A model with a digest that is known, or with the id of a hub in its place."""

    value: str

    @property
    def digest(self) -> str:
        return self.value

    def read_as(self, reading: tuple[Json, ...]) -> KnownIdentity:
        return KnownIdentity(json_digest([self.digest, *reading]))


@dataclass(frozen=True, eq=False)
class FolderIdentity(ModelIdentity):
    """The files of a model folder as they were when it was opened; they are hashed when the digest is first needed.

    Args:
        states: of the files, which say without reading them whether one has changed since.
    """

    folder: Path
    states: tuple[FileState, ...]
    reading: tuple[Json, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Raises a `UserError` if the files changed before anybody asked."""
        if _file_states(self.folder) != self.states:
            raise self._changed()
        return self._hash()

    def read_as(self, reading: tuple[Json, ...]) -> FolderIdentity:
        return FolderIdentity(self.folder, self.states, (*self.reading, *reading))

    def check(self) -> None:
        """Raise a `UserError` if the folder has other files than when it was opened."""
        if _file_states(self.folder) == self.states:
            return
        # Files may have been written again with the same content.
        if "digest" not in vars(self) or self._hash() != self.digest:
            raise self._changed()

    def _hash(self) -> str:
        files = hash_model_folder(self.folder, with_weights=True)
        return json_digest([files, *self.reading]) if self.reading else files

    def _changed(self) -> UserError:
        return UserError(f"the model ({self.folder}) changed after it was loaded: load it again")


def identify_source(source: str) -> FolderIdentity | KnownIdentity:
    """The identity of a model in a folder, as it is now, or on the hub."""
    folder = user_path(source)
    return FolderIdentity(folder, _file_states(folder)) if folder.is_dir() else KnownIdentity(source)


def _file_states(folder: Path) -> tuple[FileState, ...]:
    """The states of all files that decide the digest of a folder."""
    with _translate_read_errors(folder):
        states = tuple(file_state(path) for path in _list_read_files(folder, with_weights=True))
        base = _base_folder(folder)
        return states if base is None else (*states, *_file_states(base))


def read_model_settings(path: Path) -> dict[str, object]:
    """The JSON object in a file of a model folder; UserError where it cannot be read or names code of its own."""
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as JSON ({first_line(error)}): save the model again with save_pretrained"
        ) from error
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds no JSON object: save the model again with save_pretrained")
    check_model_code(str(path), settings)
    return settings


ADAPTER_SETTINGS = "adapter_config.json"


def read_adapter_base(folder: Path) -> str | None:
    """The folder or hub id of the model that an adapter (PEFT) in a folder belongs to; None for another folder."""
    path = folder / ADAPTER_SETTINGS
    if not path.is_file():
        return None
    base = read_model_settings(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base or (Path(base) / ADAPTER_SETTINGS).is_file():
        raise UserError(f"{path} names no model that the adapter belongs to: set base_model_name_or_path there")
    return base


def check_model_code(source: str, settings: Mapping[str, object]) -> None:
    """Raise a `UserError` for the settings of a model or tokenizer that needs code of its own."""
    if settings.get("auto_map"):
        raise UserError(
            f"{source} names code of its own (auto_map), which is never run here: use a model of a family that "
            "transformers has, saved without auto_map"
        )
