"""Notebooks as pages: each is run, and its cells and their outputs become Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

import nbformat
from nbclient import NotebookClient

from docs.builder.markdown import raw_html

SECONDS_PER_CELL = 1200
NOTEBOOK_LINK = re.compile(r"\]\((?:notebooks/)?(\w+)\.ipynb\)")
"""A link to another notebook, in a notebook or in a page of `docs`."""
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


class Cell(Protocol):
    """What is read of a cell of a notebook."""

    cell_type: str
    source: str
    outputs: list[Mapping[str, object]]


class Notebook(Protocol):
    """What is read of a notebook."""

    cells: list[Cell]


def run_notebook(path: Path, folder: Path) -> Notebook:
    """The notebook with its outputs, run in a folder; an error in a cell is an error here."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    folder.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        notebook, timeout=SECONDS_PER_CELL, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env={**os.environ, "HEEDFUL_DATA": str(folder / "data")})
    return cast("Notebook", notebook)


def notebook_page(notebook: Notebook, download: str) -> str:
    """The notebook as Markdown.

    Args:
        download: address of the notebook, relative to the page.
    """
    title, _, first = notebook.cells[0].source.partition("\n")
    parts = [title, f"\nThis page is a [notebook]({download}), run when the site was built.\n", first.strip()]
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown":
            parts.append(NOTEBOOK_LINK.sub(r"](\1.md)", cell.source))
        else:
            parts.append(f"```python\n{cell.source}\n```")
            parts += _outputs(cell)
    return "\n\n".join(part for part in parts if part) + "\n"


def _outputs(cell: Cell) -> Iterator[str]:
    """What a cell printed and returned; HTML where there is some."""
    for output in cell.outputs:
        if "text" in output:
            if output.get("name") == "stdout":
                yield f"```text\n{_TERMINAL_CODES.sub('', str(output['text'])).rstrip()}\n```"
            continue
        data = cast("Mapping[str, str]", output.get("data", {}))
        if "text/html" in data:
            yield raw_html(f'<div class="output">{data["text/html"]}</div>')
        elif "text/plain" in data:
            yield f"```text\n{data['text/plain']}\n```"
