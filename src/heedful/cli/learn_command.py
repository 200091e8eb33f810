"""`heedful learn`: the attention heads that explain a model to a student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.console import check_folder, progress_of, say, screen
from heedful.cli.guard import command
from heedful.cli.options import (
    MAX_SEEDS,
    JsonOption,
    PoolOptions,
    QuickOption,
    SeedOption,
    TableOptions,
    WorkspaceOptions,
    output_option,
)
from heedful.cli.recipe_run import run_recipes, say_columns

LEARN_AUDIT_TEXTS = 60
DATA_HELP = "Table of texts (CSV, TSV, JSON, JSONL or Parquet); labels are optional."
SEEDS_HELP = "Number of students of each kind, with consecutive seeds."
AUDIT_MINUTES_HELP = "Time budget in minutes for an audit of the learned explainer; 0 skips it."


@command
def learn(
    teacher: Annotated[str, typer.Option("--teacher", help="Folder of a fine-tuned model with its tokenizer.")],
    data: Annotated[str, typer.Option("--data", help=DATA_HELP)],
    table: TableOptions,
    pool: PoolOptions,
    machine: WorkspaceOptions,
    size: Annotated[
        int | None, typer.Option("--size", min=1, help="Number of texts that a student learns from.")
    ] = None,
    seed: SeedOption = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MAX_SEEDS, help=SEEDS_HELP)] = 3,
    quick: QuickOption = False,
    audit_minutes: Annotated[float, typer.Option("--audit-minutes", min=0, help=AUDIT_MINUTES_HELP)] = 3.0,
    json_file: JsonOption = None,
    out: Annotated[Path, output_option("--out", help="Folder for the explainer.")] = Path("explainer"),
) -> int:
    """Learn which attention heads best explain your model to a student model, and save the explainer."""
    from heedful.attributions.head_mix import check_explainer_folder
    from heedful.audits.schedule import AuditOptions
    from heedful.audits.schedule import audit as run_audit
    from heedful.execution.runner import check_where
    from heedful.learn import describe_result, explainer_trial, learned_explainer, open_teacher
    from heedful.trials.performance import Performance

    workspace = machine.open()
    model = open_teacher(teacher, data, table.columns())
    trial = explainer_trial(model, workspace.data_dir, size=size, seeds=range(seed, seed + seeds), quick=quick)
    check_where(pool.where, pool.workers)
    check_folder(out)
    workspace.get(model)  # errors in the model or the output folder come before any training
    check_explainer_folder(out)
    if not screen.quiet:
        say_columns(model.corpus, workspace.data_dir)
    has_labels = model.corpus.read(workspace.data_dir).test[0].label is not None
    code = run_recipes([Performance(model), trial] if has_labels else [trial], workspace, pool, json_file)
    if code:
        return code
    explainer = learned_explainer(trial, workspace)
    explainer.save(out)
    if not screen.quiet:
        for sentence in describe_result(trial, workspace):
            say(sentence)
    say(f"Explainer: {out.resolve()}")
    if audit_minutes:
        options = AuditOptions(
            minutes=audit_minutes,
            methods=(explainer, "raw-attention", "integrated-gradients"),
            columns=table.columns(),
            workers=pool.workers,
            texts=LEARN_AUDIT_TEXTS,
            where=pool.where,
            only_methods=True,
        )
        say("Auditing the explainer against raw attention and integrated gradients.")
        with progress_of(workspace):
            result = run_audit(teacher, data, options=options, workspace=workspace, out=out / "audit", say=say)
        if not screen.quiet:
            result.show()
        say(f"Answer page: {(out / 'audit' / 'index.html').resolve()}")
    return code
