"""Digests of files, computed once per process as long as a file does not change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from heedful.types import UserError

FileState = tuple[str, int, int, int]
_last_states: dict[str, FileState] = {}
_changed_states: list[FileState] = []


def file_state(path: Path) -> FileState:
    """Path, modification time, size and inode: a file with the same state has not changed."""
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the file and its permissions") from error
    state = (str(path), status.st_mtime_ns, status.st_size, status.st_ino)
    if _last_states.setdefault(state[0], state) != state:
        _last_states[state[0]] = state
        _changed_states.append(state)
    return state


def count_file_changes() -> int:
    """How often this process has found a file changed since it last looked; changing it back counts as well."""
    return len(_changed_states)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, computed once per process unless the file changes."""
    return _file_sha256(file_state(path))


@lru_cache(maxsize=1024)
def _file_sha256(state: FileState) -> str:
    try:
        return content_sha256(Path(state[0]))
    except OSError as error:
        raise UserError(f"{state[0]}: {error.strerror}; check the file and its permissions") from error


def content_sha256(path: Path) -> str:
    """SHA-256 of a file as it is now."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_files(paths: Iterable[Path]) -> str:
    """SHA-256 of the names and contents of files, in this order."""
    text = "".join(f"{path.name}:{file_sha256(path)}" for path in paths)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
