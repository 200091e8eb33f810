"""Learned explainers on disk: numbers in safetensors, settings in JSON, nothing that could run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.core.types import UserError

SETTINGS, NUMBERS = "explainer.json", "explainer.safetensors"
Setting = str | int | float | bool | None
Kept = TypeVar("Kept")


def write_explainer(folder: Path, phi: Tensor, settings: Mapping[str, Setting]) -> None:
    """Writes phi and the settings into a folder, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"phi": phi.detach().cpu().contiguous()}, str(folder / NUMBERS))
        (folder / SETTINGS).write_text(json.dumps(dict(settings), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the explainer could not be written to {folder} ({error.strerror}): choose another folder"
        ) from error


def read_explainer(folder: Path, settings: type[Kept]) -> tuple[Tensor, Kept]:
    """Phi in float64 and the settings, checked against their types; refuses what is missing or broken in one line."""
    for name in (SETTINGS, NUMBERS):
        if not (folder / name).is_file():
            raise UserError(
                f"there is no explainer in {folder} ({name} is missing): give the folder that it was saved to"
            )
    try:
        about = TypeAdapter(settings).validate_json((folder / SETTINGS).read_bytes(), strict=True)
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
