"""`heedful attefa`: how faithful attention is on your own texts, in one number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from heedful.cli.console import check_folder, say, screen
from heedful.cli.guard import command
from heedful.cli.options import (
    BASES_HELP,
    DEFAULT_REPORT,
    EMBEDDINGS_HELP,
    MAX_ATTEFA_SEEDS,
    START_HELP,
    JsonOption,
    PoolOptions,
    QuickOption,
    ReportOption,
    TableOptions,
    WorkspaceOptions,
)
from heedful.cli.recipe_run import print_plan, run_recipes, say_columns

if TYPE_CHECKING:
    from heedful.training.objectives import Initialization

DATA_HELP = "Table of your texts (CSV, TSV, JSON, JSONL or Parquet), one row per text."
SEEDS_HELP = "Number of adversaries."


@command
def attefa(
    data: Annotated[str, typer.Option("--data", help=DATA_HELP)],
    table: TableOptions,
    pool: PoolOptions,
    machine: WorkspaceOptions,
    dev: Annotated[str | None, typer.Option("--dev", help="Table of the dev split (default: part of --data).")] = None,
    test: Annotated[
        str | None, typer.Option("--test", help="Table of the test split (default: part of --data).")
    ] = None,
    encoder: Annotated[
        str, typer.Option("--encoder", help="Encoder: bilstm, gru, convolution or average (also: perceptron).")
    ] = "bilstm",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MAX_ATTEFA_SEEDS, help=SEEDS_HELP)] = 3,
    bases: Annotated[int, typer.Option("--bases", min=1, max=MAX_ATTEFA_SEEDS, help=BASES_HELP)] = 2,
    embeddings: Annotated[str, typer.Option("--embeddings", help=EMBEDDINGS_HELP)] = "auto",
    start: Annotated[str, typer.Option("--start", help=START_HELP)] = "fresh",
    quick: QuickOption = False,
    json_file: JsonOption = None,
    out: ReportOption = DEFAULT_REPORT,
) -> int:
    """Measure how faithful attention is on your own texts, in one number; checkpoints are selected on the dev split."""
    from heedful.execution.runner import check_where
    from heedful.papers import paper_recipes
    from heedful.papers.attefa import AttefaOptions, data_warnings
    from heedful.papers.paper_options import UserData
    from heedful.report import write_report
    from heedful.report.html import check_report_folder
    from heedful.results import value_of
    from heedful.trials.adversarial_training import AtteFa

    workspace = machine.open()
    texts = UserData(data, table.columns(), dev, test)
    # This measures a user's own texts and does not reproduce a paper: the test split selects nothing.
    options = AttefaOptions(
        user_data=texts,
        encoders=(encoder,),
        n_seeds=seeds,
        n_bases=bases,
        select="dev",
        embeddings=embeddings,
        quick=quick,
        start=cast("Initialization", start),  # checked by AttefaOptions
        data_dir=workspace.data_dir,
    )
    recipes = paper_recipes(options)
    check_where(pool.where, pool.workers)
    check_folder(out)
    check_report_folder(out)
    if not screen.quiet:
        say_columns(texts.corpus, workspace.data_dir)
        print_plan(recipes, workspace)
    code = run_recipes(recipes, workspace, pool, json_file)
    if code == 0:
        trial = next(recipe for recipe in recipes if isinstance(recipe, AtteFa))
        if not screen.quiet and workspace.has(trial):
            accuracy = value_of(workspace.get(trial).summary, "base_accuracy")
            for sentence in data_warnings(trial.subject.corpus.read(workspace.data_dir), accuracy):
                say(sentence)
        say(f"Report: {write_report(workspace, out).resolve()}")
    return code
