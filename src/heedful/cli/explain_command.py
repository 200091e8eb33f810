"""`heedful explain`: the words that a prediction depends on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from heedful.cli.console import STANDARD_OUTPUT, check_files, print_text, progress_display, say, screen, write_file
from heedful.cli.guard import command
from heedful.cli.options import (
    DEFAULT_DEVICE,
    DEFAULT_WORKSPACE,
    TO_STDOUT,
    DeviceOption,
    JsonOption,
    ModelArgument,
    ModelOptions,
    SecondColumnOption,
    TextColumnOption,
    WorkspaceOption,
    output_option,
)

if TYPE_CHECKING:
    from heedful.explainer import ExplainedFeature

METHOD_HELP = (
    "Methods to use, separated by commas (repeatable; see `heedful list`), with options as in 'lime(error=0.05)'. "
    "Default: the method that an audit of this model recommends, else integrated gradients."
)
FEATURE_HELP = (
    "What has a score: token, word, sentence or segment (about 20 runs of words in a long text). Default: what the "
    "audit of this model tested, else word."
)
HTML_HELP = f"Write an HTML page to this file {TO_STDOUT}."
CSV_HELP = f"Write all scores to this file as CSV {TO_STDOUT}."


@command
def explain(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="A text, a table file, or - for one text per line of standard input.")],
    opening: ModelOptions,
    second: Annotated[str | None, typer.Argument(help="Second text of a pair.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", "-m", help=METHOD_HELP)] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Class or next token to explain (default: the predicted one).")
    ] = None,
    contrast: Annotated[
        str | None, typer.Option("--contrast", help="Explain the target rather than this class or token.")
    ] = None,
    feature: Annotated[str | None, typer.Option("--feature", help=FEATURE_HELP)] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show the model's tokens instead of words.")] = False,
    text_column: TextColumnOption = None,
    second_column: SecondColumnOption = None,
    html: Annotated[Path | None, output_option("--html", help=HTML_HELP)] = None,
    json_file: JsonOption = None,
    out: Annotated[Path | None, output_option("--out", help=CSV_HELP)] = None,
    device: DeviceOption = DEFAULT_DEVICE,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
) -> None:
    """Show which words a prediction depends on, according to one or more methods."""
    from heedful.attributions.registry import find_method
    from heedful.data.io import is_table
    from heedful.devices import check_device
    from heedful.explanation import explanations_frame, explanations_page
    from heedful.names import split_names
    from heedful.store.csv_text import csv_text

    check_device(device)
    is_file = is_table(text) and (Path(text).exists() or len(text.split()) < 2)
    if is_file:
        texts, seconds, numbers = _read_table(text, second, text_column, second_column)
    else:
        texts, seconds, numbers = _read_lines(text, second, text_column, second_column)
    methods = [*split_names(method or ())]
    for name in methods:  # a wrong name is refused before the model is opened
        find_method(name)
    chosen = None if feature is None else cast("ExplainedFeature", feature)
    pieces = pieces or feature == "token"
    check_files({"--html": html, "--out": out, "--json": json_file})
    explainer, explanations = opening.load(model, device), []
    with (
        progress_display(visible=len(texts) > 1) as progress,
        progress.task("texts", len(texts)) as step,
    ):
        for explanation in explainer.explain_each(
            texts,
            seconds,
            methods=methods or None,
            target=target,
            contrast=contrast,
            feature=chosen,
            workspace=workspace,
        ):
            explanations.append(explanation)
            step()
    if json_file is not None:
        records = [explanation.to_record() for explanation in explanations]
        content = json.dumps(records if is_file or text == "-" else records[0], indent=1) + "\n"
        write_file(json_file, content)
    if html is not None:
        write_file(html, explanations_page(explanations, pieces=pieces), "--html")
    if out is not None or (is_file and html is json_file is None):
        table = csv_text(explanations_frame(explanations, numbers, pieces=pieces))
        write_file(out, table, "--out") if out is not None else print_text(table)
    elif not is_file and not screen.quiet and STANDARD_OUTPUT not in (html, json_file):
        if not methods:
            say(f"Method: {explanations[0].rows[0].method} ({explanations[0].chosen_because}).")
        for number, explanation in enumerate(explanations):
            if number:
                say("")
            explanation.show(pieces=pieces)


def _read_table(
    path: str, second: str | None, text_column: str | None, second_column: str | None
) -> tuple[list[str], list[str] | None, list[int]]:
    """The texts of a table, the second texts of pairs, and the row of each."""
    from heedful.data.columns import TableColumns
    from heedful.data.table import read_texts
    from heedful.types import UserError

    if second is not None:
        raise UserError(f"{path} is a table; name the column with the second texts with --second-column")
    rows, numbers = read_texts(path, TableColumns(text_column, second_column))
    return [parts[0] for parts in rows], [parts[1] for parts in rows] if len(rows[0]) == 2 else None, numbers


def _read_lines(
    text: str, second: str | None, text_column: str | None, second_column: str | None
) -> tuple[list[str], list[str] | None, list[int]]:
    """The text, or those of standard input; the second texts of pairs, and the line of each."""
    from heedful.types import UserError

    if text_column is not None or second_column is not None:
        raise UserError("--text-column and --second-column need a table; give a file")
    lines = [text]
    if text == "-":
        try:
            lines = [line.strip() for line in sys.stdin]
        except UnicodeDecodeError as error:
            raise UserError("standard input is not in the encoding of this terminal; convert it to UTF-8") from error
    numbers = [number for number, line in enumerate(lines, start=1) if line or text != "-"]
    if not numbers:
        raise UserError("standard input is empty; give one text per line")
    texts = [lines[number - 1] for number in numbers]
    return texts, None if second is None else [second] * len(texts), numbers
