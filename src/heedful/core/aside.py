"""Folders of unfinished writing, and how to tell that nobody writes in them any more.

A folder is called `<name>.<pid>.<random>`; the first half of the random part stands for this machine and its
process numbers: a number means nothing on another host, or in another container, that shares the disk.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
from pathlib import Path

_DIGITS = 8


def new_aside(parent: Path, name: str) -> Path:
    """A path below `parent` that only this process writes to; not yet created."""
    return parent / f"{name}.{os.getpid()}.{_machine()}{secrets.token_hex(_DIGITS // 2)}"


def sweep(parent: Path) -> None:
    """Delete the folders of dead processes of this machine; those of others and unclear ones stay."""
    if not parent.is_dir():
        return
    for folder in sorted(parent.iterdir()):
        if _abandoned(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _abandoned(name: str) -> bool:
    parts = name.rsplit(".", 2)
    if os.name != "posix" or len(parts) != 3 or not parts[1].isdecimal():
        return False  # elsewhere, signal 0 is no harmless question
    return parts[2][:_DIGITS] == _machine() and not _alive(int(parts[1]))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's process, or no process number at all
        return True
    return True


def _machine() -> str:
    """Eight digits for this host and process-number space."""
    space = Path("/proc/self/ns/pid")
    number = space.stat().st_ino if space.exists() else 0
    return hashlib.sha256(f"{platform.node()}/{number}".encode()).hexdigest()[:_DIGITS]
