"""Learned explainers on disk: numbers in safetensors, settings in JSON, nothing that could run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from heedful.core.types import UserError

SETTINGS, NUMBERS = "explainer.json", "explainer.safetensors"
Setting = str | int | float | bool | None
Kept = TypeVar("Kept")


def write_explainer(folder: Path, phi: Tensor, settings: Mapping[str, Setting]) -> None:
    """Writes phi and the settings into a folder, which is made where it is missing; both aside first, then renamed."""
    numbers = save({"phi": phi.detach().cpu().contiguous()})
    files = {NUMBERS: numbers, SETTINGS: (json.dumps(dict(settings), indent=1) + "\n").encode("utf-8")}
    with _writing(folder):
        for name, content in files.items():
            _aside(folder, name).write_bytes(content)
        for name in files:
            os.replace(_aside(folder, name), folder / name)


def check_folder(folder: Path) -> None:
    """Makes the folder where it is missing; refuses one that an explainer could not be written to."""
    with _writing(folder):
        for name in (NUMBERS, SETTINGS):
            _aside(folder, name).write_bytes(b"")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Complains in one line about what cannot be written, and leaves nothing lying aside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (NUMBERS, SETTINGS):
            if (folder / name).is_dir():
                raise IsADirectoryError(0, f"{name} is a folder there")
        yield
    except OSError as error:
        raise UserError(
            f"the explainer could not be written to {folder} ({error.strerror}): choose another folder"
        ) from error
    finally:
        if folder.is_dir():
            for name in (NUMBERS, SETTINGS):
                _aside(folder, name).unlink(missing_ok=True)


def _aside(folder: Path, name: str) -> Path:
    return folder / f".{name}.{os.getpid()}"


def read_explainer(folder: Path, settings: type[Kept]) -> tuple[Tensor, Kept]:
    """Phi in float64 and the settings, checked against their types; refuses what is missing or broken in one line."""
    for name in (SETTINGS, NUMBERS):
        if not (folder / name).is_file():
            raise UserError(
                f"there is no explainer in {folder} ({name} is missing): give the folder that it was saved to"
            )
    try:
        about = TypeAdapter(settings).validate_json((folder / SETTINGS).read_bytes(), strict=True)
    except OSError as error:
        raise _broken(folder / SETTINGS, error.strerror or type(error).__name__) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise _broken(folder / SETTINGS, reason) from error
    return _phi(folder / NUMBERS), about


def _phi(file: Path) -> Tensor:
    try:
        tensors = load_file(str(file))
    except (SafetensorError, OSError) as error:
        raise _broken(file, str(error).splitlines()[0]) from error
    if set(tensors) != {"phi"}:
        raise _broken(file, f"it holds {sorted(tensors)} instead of phi")
    if not bool(torch.isfinite(tensors["phi"]).all()):
        raise _broken(file, "phi is not finite")
    return tensors["phi"].double()


def _broken(file: Path, reason: str) -> UserError:
    return UserError(f"{file} is no explainer that can be read ({reason}): save it anew")
