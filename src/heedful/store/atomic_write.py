"""Files that are written completely or not at all, whatever happens meanwhile; disk errors in one line."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from heedful.types import UserError

_DRAFT = ".draft"


class WriteError(UserError):
    """A workspace cannot be written: missing, read-only, full or out of reach. No other work in it can succeed."""


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that a power cut does not leave a name without its content."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_to_write(folder: Path) -> None:
    """Write one block to a file without a name; OSError if that is impossible. Nothing stays behind.

    A folder that does not exist is not created, because another process may be about to write in it: the file is
    written where it would be created.
    """
    there = next(candidate for candidate in (folder, *folder.parents) if candidate.exists() or candidate.is_symlink())
    if not there.exists():
        raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link to nothing", str(there))
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def translate_write_errors(folder: Path) -> Iterator[None]:
    """Turn disk errors into a `WriteError` of one line."""
    remedy = "make room there or choose another workspace"
    with refuse_write_errors(f"in the workspace ({folder})", remedy, error_class=WriteError):
        yield


@contextmanager
def refuse_write_errors(what: str, remedy: str, *, error_class: type[UserError] = UserError) -> Iterator[None]:
    """Turn disk errors into an error of one line: what cannot be written, why, and the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = os.strerror(error.errno) if error.errno else error.strerror or reason
        raise error_class(f"cannot write {what}: {' '.join(reason.split())}; {remedy}") from error


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """A path to write a file or folder to; renamed to `target` on success, removed on failure.

    It lies in a new folder with a random name, under a lock: what a killed process left is removed by the next one that
    writes to the same target.
    """
    with draft_folder(target) as folder:
        draft = folder / target.name
        yield draft
        try:
            draft.replace(target)
        except OSError:
            if not (draft.is_dir() and target.is_dir()):
                raise  # else another process completed the same folder first


def replace_text(target: Path, text: str | Iterable[str]) -> None:
    """Write a text file completely or not at all."""
    with atomic_path(target) as draft, draft.open("x", encoding="utf-8", newline="\n") as file:
        file.writelines([text] if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A new folder beside the target, under a lock; earlier ones of killed processes are removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    delete_drafts(target)
    lock = _new_draft(target)
    folder = Path(lock.lock_file).parent
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _draft_prefix(target: Path) -> str:
    return f".{target.name[:50]}."


def _new_draft(target: Path) -> FileLock:
    """The lock, held, of a new folder for a draft."""
    while True:
        folder = tempfile.mkdtemp(prefix=_draft_prefix(target), suffix=_DRAFT, dir=target.parent)
        lock = FileLock(Path(folder) / "lock")
        try:
            lock.acquire()
        except OSError:
            if Path(folder).exists():
                shutil.rmtree(folder, ignore_errors=True)
                raise
            continue  # another process took it for one that a killed process left
        return lock


def delete_drafts(target: Path) -> None:
    """Delete drafts of this target that killed processes left: those whose lock is free."""
    prefix = _draft_prefix(target)
    for left in [*os.scandir(target.parent)] if target.parent.is_dir() else ():
        if left.name.startswith(prefix) and left.name.endswith(_DRAFT) and left.is_dir(follow_symlinks=False):
            with suppress(OSError), FileLock(Path(left) / "lock", timeout=0):
                shutil.rmtree(left, ignore_errors=True)
