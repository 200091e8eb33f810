"""The API reference: a page for every public name of every public package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

from docs.builder.reference_pages import markdown_text, paragraphs, table

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


def write_api_pages(folder: Path) -> dict[str, list[str]]:
    """A page per package with its names, and one per name; returns the pages below each page of `folder`.

    A name that several packages offer has its page below the last of them, which is the most specific.
    """
    (folder / "names").mkdir(parents=True)
    packages = (*PACKAGES, *MODULES)
    homes = {
        id(getattr(importlib.import_module(package), name)): package
        for package in packages
        for name in public_names(package)
    }
    children: dict[str, list[str]] = {"index": list(packages)}
    for package in packages:
        module, rows = importlib.import_module(package), []
        children[package] = []
        for name in public_names(package):
            member: object = getattr(module, name)
            home = homes[id(member)]
            rows.append((f"[{name}](names/{home}.{name}.md)", markdown_text(paragraphs(member)[0])))
            if home == package:
                (folder / "names" / f"{package}.{name}.md").write_text(
                    _name_page(package, name, member), encoding="utf-8"
                )
                children[package].append(f"names/{package}.{name}")
        text = f"# {package}\n\n{_first_paragraph(package)}\n\n" + table(("name", "what it is"), rows)
        (folder / f"{package}.md").write_text(text, encoding="utf-8")
    text = "# API reference\n\nThe public names. Everything else may change without notice.\n\n"
    text += "".join(f"- [{package}]({package}.md): {_first_paragraph(package)}\n" for package in packages)
    (folder / "index.md").write_text(text, encoding="utf-8")
    return children


def _name_page(package: str, name: str, member: object) -> str:
    directive = "autoclass" if inspect.isclass(member) else "autofunction"
    options = "   :members:\n" if inspect.isclass(member) else ""
    source = f".. currentmodule:: {package}\n\n.. {directive}:: {name}\n{options}"
    return f"# {name}\n\n```{{eval-rst}}\n{source}```\n"


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
