"""`heedful reproduce`: the ledger of published numbers, and one of its cells at a time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.console import progress_of, say
from heedful.cli.guard import command
from heedful.cli.options import LedgerOption, PoolOptions, WorkspaceOptions, output_option
from heedful.cli.recipe_run import failure_lines

if TYPE_CHECKING:
    from heedful.reproduction.ledger import LedgerRecord, Measured
    from heedful.store.recipe import Recipe
    from heedful.store.workspace import Workspace
    from heedful.trials.trial import Trial

DEFAULT_LEDGER = Path("reproduction")
WITH_HELP = (
    "Run the cell with changes, as NAME=VALUE (repeatable): an option of the paper, such as embeddings=random, "
    "or a setting of the recipe such as subject.training.epochs=4."
)
EXPLAINS_HELP = "With --cause: id or pattern of further cells that the experiment explains (repeatable)."
UPDATE_HELP = "Write the numbers of the workspace, or of --cell, into the ledger."
CHEAP_HELP = "Run all recorded cells that took less than a minute again; exit code 1 if a number differs."


@dataclass(frozen=True)
class CellFilter:
    """Which cells are listed."""

    table: Annotated[str | None, typer.Option("--table", help="List cells of this table, such as 'Table 2'.")] = None
    corpus: Annotated[str | None, typer.Option("--only", help="List cells on this corpus.")] = None
    verdict: Annotated[
        str | None,
        typer.Option(
            "--verdict", help="List cells with this verdict: inside, outside, powerless, not judged, not run."
        ),
    ] = None

    def keeps(self, record: LedgerRecord) -> bool:
        """Whether a record is listed."""
        return (
            self.table in (None, record.table)
            and self.corpus in (None, record.name.corpus)
            and self.verdict in (None, record.verdict)
        )


@dataclass(frozen=True)
class ExperimentOptions:
    """What is changed, and what that shows."""

    changes: Annotated[list[str] | None, typer.Option("--with", help=WITH_HELP)] = None
    cause: Annotated[
        str | None,
        typer.Option("--cause", help="Record the changed run as an experiment: the cause in one sentence."),
    ] = None
    explains: Annotated[list[str] | None, typer.Option("--explains", help=EXPLAINS_HELP)] = None


@command
def reproduce(
    selection: CellFilter,
    experiment: ExperimentOptions,
    pool: PoolOptions,
    machine: WorkspaceOptions,
    paper: Annotated[str | None, typer.Argument(help="Name of a paper (default: all).")] = None,
    cell: Annotated[str | None, typer.Option("--cell", help="Id of the cell to run.")] = None,
    list_cells: Annotated[bool, typer.Option("--list", help="List the cells with their verdicts.")] = False,
    update: Annotated[bool, typer.Option("--update", help=UPDATE_HELP)] = False,
    cheap: Annotated[bool, typer.Option("--cheap", help=CHEAP_HELP)] = False,
    page: Annotated[
        Path | None, output_option("--page", help="Write the ledger as a self-contained HTML page.")
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
) -> int:
    """Show what is published and what we measured; run a published number again."""
    from heedful.papers import PAPERS, find_paper
    from heedful.reproduction.ledger import ledger_file, read_ledger
    from heedful.types import UserError

    names = list(PAPERS) if paper is None else [find_paper(paper).name]
    if cell is not None:
        return run_cell(cell, experiment, pool, machine, ledger, update=update)
    if experiment != ExperimentOptions():
        raise UserError("--with, --cause and --explains need --cell; give the id of a cell")
    if update:
        for name in names:
            update_from_workspace(name, machine.open(), ledger)
    elif not any(ledger_file(ledger, name).is_file() for name in names):
        raise UserError(f"no ledger in {ledger}: name the folder `reproduction` of the repository with --ledger")
    if cheap:
        return _run_cheap(names, pool, machine, ledger)
    records = {name: read_ledger(ledger, name) for name in names}
    if page is not None:
        from heedful.reproduction.ledger_page import write_ledger_page

        say(f"Ledger: {write_ledger_page(records, ledger, page).resolve()}")
    if list_cells or selection != CellFilter():
        for record in (record for name in names for record in records[name] if selection.keeps(record)):
            say(_line(record))
    _say_shares(records)
    return 0


def update_from_workspace(
    paper: str,
    workspace: Workspace,
    ledger: Path,
    settings: dict[str, object] | None = None,
    recipes: Sequence[Recipe] | None = None,
) -> None:
    """Write what a workspace has of a paper into the ledger, and say what could not be written.

    Args:
        settings: the options of the command that made the trials; by default they are derived.
        recipes: those to read, failed ones among them; by default all of the paper.
    """
    from heedful.reproduction.claim_records import update_claims
    from heedful.reproduction.ledger import read_settings, update_ledger
    from heedful.reproduction.measurements import measure_cells

    names = None if recipes is None else [workspace.artefact_name(recipe) for recipe in recipes]
    measured = measure_cells(paper, workspace, None if settings is None else read_settings(settings), names)
    update_ledger(ledger, paper, measured.cells)
    count = update_claims(ledger, paper, measured.results)
    say(f"{paper}: {len(measured.cells)} numbers and {count} tests of claims written to {ledger}.")
    for result in measured.unexplained:
        say(f"Left out, because no command of the paper gives it: {result.trial} on {result.model_label}.")


def _line(record: LedgerRecord) -> str:
    ours = "–" if record.ours is None or record.ours.value is None else f"{record.ours.value:.4g}"
    why = record.obstacle or record.reason
    return f"{record.id}: print {record.print:g}, ours {ours}, {record.verdict}{f' ({why})' if why else ''}"


def _say_shares(records: dict[str, list[LedgerRecord]]) -> None:
    from heedful.reproduction.ledger import share_inside

    for name, rows in records.items():
        say(f"{name}: {share_inside(rows)}.")


def run_cell(
    cell: str,
    experiment: ExperimentOptions,
    pool: PoolOptions,
    machine: WorkspaceOptions,
    ledger: Path,
    *,
    update: bool,
) -> int:
    """Run one cell, as recorded or with changes; 1 if the number is outside."""
    from heedful.papers import find_paper
    from heedful.reproduction import cell_run
    from heedful.reproduction.ledger import read_ledger
    from heedful.types import UserError

    paper = find_paper(cell.partition("/")[0]).name
    record = cell_run.find_record(read_ledger(ledger, paper), cell)
    workspace = machine.open()
    changes = cell_run.parse_changes(paper, experiment.changes or ())
    if experiment.cause is not None and not changes:
        raise UserError("--cause records an experiment; name what is changed with --with NAME=VALUE")
    settings = cell_run.cell_settings(record)
    trials = (
        cell_run.changed_recipes(record, changes, workspace)
        if changes
        else cell_run.cell_recipes(record, settings, workspace)
    )
    if not _make(trials, workspace, pool):
        return 1
    ours = cell_run.measure_cell(record, trials, workspace)
    verdict = cell_run.judge_number(record, ours)
    _say_comparison(record, ours, verdict)
    if experiment.cause is not None:
        words = ["heedful", "reproduce", paper, "--cell", cell]
        words += [word for text in experiment.changes or () for word in ("--with", text)]
        done = cell_run.make_experiment(
            record, changes, ours, experiment.cause, experiment.explains or (), shlex.join(words)
        )
        cell_run.add_experiment(ledger, done)
    elif update and not changes:
        update_from_workspace(paper, workspace, ledger, {**settings}, trials)
    return 1 if verdict in ("outside", "undefined") else 0


def _make(trials: Sequence[Trial], workspace: Workspace, pool: PoolOptions) -> bool:
    """Run trials; whether all of them are finished."""
    from heedful.cli.console import complain
    from heedful.execution import runner

    with progress_of(workspace):
        outcomes = runner.run(trials, workspace, where=pool.where, workers=pool.workers)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for line in failure_lines(failed, workspace):
        complain(f"failed: {line}")
    return not failed


def _say_comparison(record: LedgerRecord, ours: Measured, verdict: str) -> None:
    value = "undefined" if ours.value is None else f"{ours.value:.6g}"
    spread = "" if ours.std is None else f" (standard deviation {ours.std:.2g} over {ours.seeds} seeds)"
    if record.tolerance is not None:
        limit = f"tolerance {record.tolerance:g}"
    else:
        limit = f"expected {record.limit.band}" if record.limit.band is not None else record.reason
    say(f"{record.id}, {record.table}: print {record.print:g}, ours {value}{spread}, {limit}: {verdict}.")


def _run_cheap(names: Sequence[str], pool: PoolOptions, machine: WorkspaceOptions, ledger: Path) -> int:
    """Run the cheap recorded cells again; 1 if a number is not the recorded one."""
    from heedful.reproduction import cell_run
    from heedful.reproduction.ledger import read_ledger

    workspace, count, differing = machine.open(), 0, 0
    for name in names:
        for records in cell_run.cheap_runs(read_ledger(ledger, name)).values():
            trials = cell_run.cell_recipes(records[0], cell_run.cell_settings(records[0]), workspace)
            if not _make(trials, workspace, pool):
                return 1
            for record in records:
                ours, count = cell_run.measure_cell(record, trials, workspace), count + 1
                if not cell_run.is_same_number(record, ours):
                    differing += 1
                    say(f"{record.id}: recorded {record.ours and record.ours.value}, now {ours.value}.")
    say(f"Run again: {count} cells that took less than a minute; {differing} differ from the ledger.")
    return 1 if differing else 0
