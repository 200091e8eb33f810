"""The API reference: an autosummary of every public name of every public package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

PACKAGES = (
    "heedful",
    "heedful.attributions",
    "heedful.trials",
    "heedful.audits",
    "heedful.measures",
    "heedful.models",
    "heedful.data",
    "heedful.training",
    "heedful.store",
    "heedful.execution",
    "heedful.report",
    "heedful.study",
    "heedful.testing",
)
"""Packages with an `__init__.pyi`, which lists their public names."""
MODULES = ("heedful.types", "heedful.results", "heedful.tasks")
"""Modules of the ground floor, whose names others use in signatures."""


def write_api_pages(folder: Path) -> list[str]:
    """A page per package with its first paragraph and its names; Sphinx writes the pages of the names."""
    folder.mkdir(parents=True)
    pages = []
    for package in (*PACKAGES, *MODULES):
        names = public_names(package)
        text = f"# {package}\n\n{_first_paragraph(package)}\n\n```{{eval-rst}}\n.. currentmodule:: {package}\n\n"
        text += ".. autosummary::\n   :toctree: names\n   :nosignatures:\n\n"
        text += "".join(f"   {name}\n" for name in names) + "```\n"
        (folder / f"{package}.md").write_text(text, encoding="utf-8")
        pages.append(package)
    text = "# API reference\n\nThe public names. Everything else may change without notice.\n\n"
    text += "".join(f"- [{page}]({page}.md): {_first_paragraph(page)}\n" for page in pages)
    (folder / "index.md").write_text(text, encoding="utf-8")
    return pages


def public_names(package: str) -> Sequence[str]:
    """The classes and functions that a package or module offers, in alphabetical order."""
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    members = {name: getattr(module, name) for name in listed}
    return sorted(
        name
        for name, member in members.items()
        if (inspect.isclass(member) or inspect.isfunction(member))
        and (member.__module__ == package or hasattr(module, "__all__"))
    )


def _first_paragraph(package: str) -> str:
    text = inspect.cleandoc(importlib.import_module(package).__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())
