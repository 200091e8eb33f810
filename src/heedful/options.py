"""Options of the command, each with its words of help, and the words that may be given for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from heedful.core.types import UserError
from heedful.papers import Selecting
from heedful.recipes.deceiving import Start
from heedful.trials.attefa import PAPER_SEEDS

T = TypeVar("T")

WorkspaceOption = Annotated[
    Path, typer.Option("--workspace", "-w", envvar="HEEDFUL_WORKSPACE", help="Folder where finished work is kept.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of the report.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all summaries to this file.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="A small version in minutes; the report says so.")]
WhereOption = Annotated[
    str, typer.Option("--where", help="pool: one process per core, one thread each; here: in this process.")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default: one per core.")]
VectorsOption = Annotated[
    str, typer.Option("--vectors", help="auto, random, packaged, a name in the data folder, or a file.")
]
SizesOption = Annotated[
    list[int] | None, typer.Option("--size", min=1, help="Examples that a student learns from; may be repeated.")
]
StrengthsOption = Annotated[
    list[float] | None, typer.Option("--lambda", help="A lambda of the trained adversaries; may be repeated.")
]
TextOption = Annotated[str, typer.Option("--text-column", help="Column of the texts.")]
SecondOption = Annotated[str | None, typer.Option("--second-column", help="Column of a second text, for pairs.")]
WhatArgument = Annotated[
    str, typer.Argument(help="A paper (see `heedful list`) or a Python file with a function recipes().")
]
SelectOption = Annotated[
    str, typer.Option("--select", help="What chooses the epoch: dev, paper (the test split) or code.")
]
StartOption = Annotated[
    str, typer.Option("--start", help="Adversaries start fresh, as in the papers, or from the base: sooner far away.")
]
BasesOption = Annotated[
    int, typer.Option("--bases", min=1, max=len(PAPER_SEEDS), help="How many honest models, for the noise floor.")
]
SELECTING: Mapping[str, Selecting] = {"dev": "dev", "paper": "paper", "code": "code"}
STARTING: Mapping[str, Start] = {"fresh": "fresh", "base": "base"}


def one_of(option: str, word: str, known: Mapping[str, T]) -> T:
    """What a word stands for; other words are refused with those that there are."""
    if word not in known:
        *first, last = known
        raise UserError(f"{option} is {', '.join(first)} or {last}, not {word!r}")
    return known[word]
