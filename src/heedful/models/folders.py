"""Folders that hold a transformer: what may be read from them, and a hash of what they hold."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from heedful.core.types import UserError


def content_hash(folder: Path) -> str:
    """A hash of the configuration and the weights in a folder."""
    content = hashlib.sha256()
    for file in sorted((*folder.glob("config.json"), *folder.glob("*.safetensors*"))):
        state = file.stat()
        content.update(f"{file.name}:{_sha256(file, state.st_mtime_ns, state.st_size)}".encode())
    return content.hexdigest()


@lru_cache(maxsize=64)
def _sha256(file: Path, changed: int, size: int) -> str:
    """The hash of a file, read once as long as it is not `changed`."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_folder(folder: Path) -> None:
    """Refuses a folder with an adapter only, or with weights in a format that can run code."""
    names = sorted(path.name for path in folder.iterdir())
    if "adapter_config.json" in names:
        raise UserError(f"{folder} holds an adapter: merge it into its model and save that with save_pretrained")
    unsafe = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if unsafe and not any(name.endswith(".safetensors") for name in names):
        raise pickled(f"{folder / unsafe[0]}")


def pickled(source: str) -> UserError:
    """The refusal of weights that would have to be unpickled."""
    return UserError(
        f"the weights of {source} are pickled, a format that can run code and is never read here: "
        "convert them with save_pretrained (safetensors) in an environment that you trust"
    )
