"""`heedful audit`: which explanations of a model can be shown."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, cast

import typer

from heedful.cli.console import check_files, check_folder, command_start, complain, progress_of, say, screen, write_file
from heedful.cli.guard import command
from heedful.cli.options import (
    TO_STDOUT,
    JsonOption,
    ModelArgument,
    ModelOptions,
    PoolOptions,
    SeedOption,
    TableOptions,
    WorkspaceOptions,
    output_option,
)

REQUIREMENT_CODE = 3
"""Exit code of an audit that does not support what --require asks for."""
DATA_HELP = "Table of texts (CSV, TSV, JSON, JSONL or Parquet); labels are optional."
METHOD_HELP = "Methods to audit in addition to the core, separated by commas (repeatable; see `heedful list`)."
ONLY_HELP = "Audit only the methods named with --method, and scores from --attributions."
TEXTS_HELP = "Stop after this many texts, rounded up to a full block; texts of rare classes come on top."
ATTRIBUTIONS_HELP = "File with attribution scores computed elsewhere, to audit as well."
TRAIN_DATA_HELP = "Table of texts to train student models on."
REQUIRE_HELP = "Exit with code 3 unless the audit supports this, for instance 'lime: faithful, stable' (repeatable)."
FEATURE_HELP = "What is explained: segment (words; about 20 runs of words in a longer text), sentence or word."
CARD_HELP = f"Write a model card section to this file {TO_STDOUT}."


@command
def audit(
    model: ModelArgument,
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    table: TableOptions,
    opening: ModelOptions,
    machine: WorkspaceOptions,
    pool: PoolOptions,
    minutes: Annotated[float, typer.Option("--minutes", help="Time budget in minutes. A later call resumes.")] = 5.0,
    texts: Annotated[int | None, typer.Option("--texts", min=1, help=TEXTS_HELP)] = None,
    method: Annotated[list[str] | None, typer.Option("--method", "-m", help=METHOD_HELP)] = None,
    only_methods: Annotated[bool, typer.Option("--only-methods", help=ONLY_HELP)] = False,
    attributions: Annotated[str | None, typer.Option("--attributions", help=ATTRIBUTIONS_HELP)] = None,
    train_data: Annotated[str | None, typer.Option("--train-data", help=TRAIN_DATA_HELP)] = None,
    require: Annotated[list[str] | None, typer.Option("--require", help=REQUIRE_HELP)] = None,
    feature: Annotated[str, typer.Option("--feature", help=FEATURE_HELP)] = "segment",
    seed: SeedOption = 0,
    out: Annotated[Path, output_option("--out", help="Folder for the pages.")] = Path("audit"),
    json_file: JsonOption = None,
    card: Annotated[Path | None, output_option("--card", help=CARD_HELP)] = None,
) -> int:
    """Test which explanations of your model you can show, and write a page with the answer."""
    from heedful.audits.audit_result import Requirement
    from heedful.audits.model_card import model_card
    from heedful.audits.schedule import AuditedFeature, AuditOptions
    from heedful.audits.schedule import audit as run_audit
    from heedful.names import split_names
    from heedful.report.html import check_report_folder

    workspace = machine.open()
    requirements = [Requirement.parse(text) for text in require or ()]
    options = AuditOptions(
        minutes=minutes,
        methods=split_names(method or ()),
        attributions=attributions,
        columns=table.columns(),
        seed=seed,
        workers=pool.workers,
        texts=texts,
        train_data=train_data,
        required=tuple(requirement.method for requirement in requirements),
        where=pool.where,
        only_methods=only_methods,
        feature=cast("AuditedFeature", feature),
    )
    check_folder(out)
    check_report_folder(out)
    check_files({"--json": json_file, "--card": card})
    with progress_of(workspace):
        explainer = opening.load(model, machine.device)
        result = run_audit(
            explainer, data, options=options, workspace=workspace, out=out, say=say, start=command_start.get()
        )
    if json_file is not None:
        write_file(json_file, result.to_json() + "\n")
    if card is not None:
        write_file(card, model_card(result), "--card")
    if not screen.quiet:
        result.show()
    say(f"Answer page: {(out / 'index.html').resolve()}")
    for line in (line for requirement in requirements for line in requirement.caveats(result)):
        complain(f"note: {line}")
    unmet = [line for requirement in requirements for line in requirement.unmet(result)]
    for line in unmet:
        complain(f"requirement not met: {line}")
    if not result.finished:
        complain("interrupted; finished work is kept, run the same command to continue")
        return 128 + signal.SIGINT
    return REQUIREMENT_CODE if unmet else 0
