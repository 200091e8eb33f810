"""The API reference: a page per public package with all its public names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

from docs.builder.markdown import markdown_text, paragraphs, table

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
    """A page per package: a table of its names, then each of them; returns the names of the pages.

    A name that several packages offer is documented by the last of them, which is the most specific.
    """
    folder.mkdir(parents=True)
    packages = (*PACKAGES, *MODULES)
    homes = {id(_member(package, name)): f"{package}.{name}" for package in packages for name in public_names(package)}
    for package in packages:
        rows, sections = [], []
        for name in public_names(package):
            member = _member(package, name)
            home = homes[id(member)]
            rows.append((f"{{py:obj}}`{name} <{home}>`", markdown_text(paragraphs(member)[0])))
            if home == f"{package}.{name}":
                sections.append(_directive(name, member))
        text = f"# {package}\n\n{_first_paragraph(package)}\n\n" + table(("name", "what it is"), rows)
        if sections:
            source = f".. currentmodule:: {package}\n\n" + "\n".join(sections)
            text += f"\n```{{eval-rst}}\n{source}```\n"
        (folder / f"{package}.md").write_text(text, encoding="utf-8")
    text = "# API reference\n\nThe public names. Everything else may change without notice.\n\n"
    text += "".join(f"- [{package}]({package}.md): {_first_paragraph(package)}\n" for package in packages)
    (folder / "index.md").write_text(text, encoding="utf-8")
    return [*packages]


def _member(package: str, name: str) -> object:
    member: object = getattr(importlib.import_module(package), name)
    return member


def _directive(name: str, member: object) -> str:
    return f".. autoclass:: {name}\n   :members:\n" if inspect.isclass(member) else f".. autofunction:: {name}\n"


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
