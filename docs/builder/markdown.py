"""Markdown from objects: tables, text of docstrings, options with their values, and HTML that is passed on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

from heedful.option_bounds import Bounds


def raw_html(html: str) -> str:
    """HTML that Sphinx passes on unchanged."""
    fence = "`" * (3 + max((len(run) for run in re.findall("`+", html)), default=0))
    return f"{fence}{{raw}} html\n{html}\n{fence}\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; pipes and line breaks in cells are escaped."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for row in rows:
        lines.append("| " + " | ".join(" ".join(cell.replace("|", r"\|").split()) for cell in row) + " |")
    return "\n".join(lines) + "\n"


def paragraphs(documented: object) -> tuple[str, str, dict[str, str]]:
    """First sentence, further text and documented arguments of a docstring."""
    text, _, listed = inspect.cleandoc(inspect.getdoc(documented) or "").partition("\nArgs:\n")
    first, _, rest = text.partition("\n\n")
    arguments: dict[str, str] = {}
    block, _, after = listed.partition("\n\n")
    for entry in re.split(r"\n(?=    \S)", block):
        name, _, meaning = entry.strip().partition(":")
        if meaning:
            arguments[name] = " ".join(meaning.split())
    examples = rest.find(">>>")
    rest = rest if examples < 0 else rest[:examples]
    return " ".join(first.split()), "\n\n".join(filter(None, (rest.strip(), after.strip()))), arguments


def markdown_text(text: str) -> str:
    """The plain text of a docstring in Markdown: what would be markup is escaped outside of code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_|<>\[\]\\$#])", r"\\\1", part) for part in parts)


def describe_type(hint: object) -> str:
    """A type hint in words: choices, numbers with their bounds, or its name."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if members:
        return " or ".join("None" if member is type(None) else describe_type(member) for member in members)
    if get_origin(hint) is Annotated:
        kind, bounds = get_args(hint)[:2]
        words = {int: "whole number", float: "number"}
        return words.get(kind, describe_type(kind)) + (str(bounds) if isinstance(bounds, Bounds) else "")
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    words = {int: "whole number", float: "number", bool: "yes or no", str: "text"}
    return words[hint] if isinstance(hint, type) and hint in words else f"`{_short_name(hint)}`"


def _short_name(hint: object) -> str:
    name = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", name)


def option_rows(options: object, documented: object) -> list[tuple[str, str, str, str]]:
    """Name, default, allowed values and meaning of each option of a dataclass."""
    if not is_dataclass(options):
        return []
    kind = options if isinstance(options, type) else type(options)
    hints, meanings = get_type_hints(kind, include_extras=True), paragraphs(documented)[2]
    rows = []
    for field in fields(kind):
        default = "required" if "MISSING" in repr(field.default) else f"`{field.default!r}`"
        default = "see the signature" if "MISSING" not in repr(field.default_factory) else default
        meaning = markdown_text(meanings.get(field.name, ""))
        rows.append((f"`{field.name}`", default, describe_type(hints[field.name]), meaning))
    return rows
