"""`heedful models`: what heedful can do with a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.console import STANDARD_OUTPUT, check_files, progress_of, say, write_file
from heedful.cli.guard import command
from heedful.cli.options import (
    DEFAULT_DEVICE,
    TO_STDOUT,
    DeviceOption,
    JsonOption,
    ModelOptions,
    PoolOptions,
    WorkspaceOptions,
    output_option,
)

ALL_HELP = "Check every kind of network in transformers."
ONLY_HELP = "With --all: restrict to the kinds that match, for instance '*bert*'."
OUT_HELP = f"With --all: write the table to this file {TO_STDOUT}."


@command
def models(
    opening: ModelOptions,
    pool: PoolOptions,
    source: Annotated[
        str | None, typer.Argument(help="Model folder with its tokenizer, or a Hugging Face hub id.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    only: Annotated[str | None, typer.Option("--only", help=ONLY_HELP)] = None,
    out: Annotated[Path | None, output_option("--out", help=OUT_HELP)] = None,
    json_file: JsonOption = None,
    device: DeviceOption = DEFAULT_DEVICE,
) -> None:
    """Show what works on a model: its attention, each method (or why it does not work), and its speed."""
    from tempfile import TemporaryDirectory

    from heedful.devices import check_device
    from heedful.model_support import examine_explainer, examine_kinds, matching_kinds, summary_lines, support_page
    from heedful.types import UserError

    check_device(device)
    if (source is None) != every or (not every and (only is not None or out is not None)):
        raise UserError("give either a model or --all; --only and --out need --all")
    if every and opening != ModelOptions():
        raise UserError("--prompt, --label, --chat and --precision are for one model; give its folder instead of --all")
    check_files({"--out": out, "--json": json_file})
    if source is not None:
        rows = [examine_explainer(opening.load(source, device))]
        lines = list(rows[0].lines())
    else:
        kinds = matching_kinds(only or "*")
        with TemporaryDirectory() as folder:
            workspace = WorkspaceOptions(folder, device).open()
            with progress_of(workspace):
                rows = examine_kinds(kinds, workspace, where=pool.where, workers=pool.workers)
        lines = [f"{row.name} ({row.units}): {row.status}{f', {row.reason}' if row.reason else ''}" for row in rows]
        lines += summary_lines(rows)
    if json_file is not None:
        records = [row.to_record() for row in rows]
        content = json.dumps(records if every else records[0], indent=1) + "\n"
        write_file(json_file, content)
    if out is not None:
        write_file(out, support_page(rows), "--out")
    if STANDARD_OUTPUT not in (out, json_file):
        for line in lines:
            say(line)
