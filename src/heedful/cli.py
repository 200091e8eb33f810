"""The command: `heedful demo | list | run | attefa | learn | report | fetch`. The only place that prints.

Errors are one line and exit code 2; an interrupt keeps what is finished and exits with 130; a recipe that failed is
listed at the end with its traceback file, the others having gone on, and the exit code is 1.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ParamSpec

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from heedful import __version__, catalogue, estimating, papers, results, runner
from heedful.attributions.keeping import check_folder
from heedful.core.types import UserError
from heedful.core.workspace import Progress, Recipe, Silent, Step, Workspace
from heedful.data.fetching import fetch as fetch_corpus
from heedful.data.tables import Reading
from heedful.options import (
    SELECTING,
    STARTING,
    BasesOption,
    DebugOption,
    JsonOption,
    OutOption,
    QuickOption,
    QuietOption,
    SecondOption,
    SelectOption,
    SizesOption,
    StartOption,
    StrengthsOption,
    TextOption,
    VectorsOption,
    WhatArgument,
    WhereOption,
    WorkersOption,
    WorkspaceOption,
    one_of,
)
from heedful.papers.learning import Wish, lessons
from heedful.papers.own import OwnData, cautions, own_attefa
from heedful.report.gathering import write_report
from heedful.trials.attefa import PAPER_SEEDS, AtteFa

app = typer.Typer(
    name="heedful",
    help="Does a model's attention, or any other token attribution, explain it?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
errors = Console(stderr=True, highlight=False, soft_wrap=True)
screen = Console(highlight=False, soft_wrap=True)
P = ParamSpec("P")

DEFAULT_WORKSPACE = Path("workspace")
DEFAULT_REPORT = Path("report")


def command(body: Callable[P, int | None]) -> Callable[P, None]:
    """A command whose errors are one line: exit code 2 for what the user can mend, 130 for an interrupt."""

    @functools.wraps(body)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        try:
            code = body(*args, **options)
        except UserError as error:
            if options.get("debug"):
                errors.print_exception()
            errors.print(f"heedful: {error}", markup=False)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stop:
            errors.print("heedful: interrupted; what is finished is kept, run the same command to go on", markup=False)
            raise typer.Exit(130) from stop
        raise typer.Exit(code or 0)

    return guarded


class ScreenProgress:
    """Progress bars with loss, score and remaining time; shown on a terminal only."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Step]:
        """One bar, removed when its task ends."""
        key = self.bars.add_task(title, total=total, note="")

        def step(advance: int = 1, note: str = "") -> None:
            self.bars.update(key, advance=advance, note=note)

        try:
            yield step
        finally:
            self.bars.remove_task(key)


class Remaining(TimeRemainingColumn):
    """The time that is left at a task's pace, unless its note tells it."""

    def render(self, task: Task) -> Text:
        """The time, or nothing."""
        return Text("") if task.fields["note"].endswith("left") else super().render(task)


@contextmanager
def showing(quiet: bool) -> Iterator[Progress]:
    """A progress display on a terminal, silence elsewhere."""
    if quiet or not errors.is_terminal:
        yield Silent()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TextColumn("{task.fields[note]}"), Remaining(), console=errors) as bars:
        yield ScreenProgress(bars)


def _version(wanted: bool) -> None:
    if wanted:
        screen.print(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def heedful(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Does a model's attention, or any other token attribution, explain it?"""
    warnings.showwarning = lambda message, *_: errors.print(f"heedful: warning: {message}", markup=False)
    torch.set_num_threads(1)


@app.command()
@command
def demo(
    planted: Annotated[bool, typer.Option("--planted", help="Use a generated corpus instead of real text.")] = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: OutOption = DEFAULT_REPORT,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Train a small model, examine its attention, write a report."""
    recipes = papers.demo(planted=planted)
    if not quiet:
        text = "a generated corpus" if planted else "real film reviews"
        screen.print(f"Training a BiLSTM with attention on {text}, then putting its attention on trial.")
    code = _run(recipes, workspace, quiet=quiet)
    if code == 0:
        _write_report(workspace, out, quiet=quiet)
    return code


@app.command("list")
@command
def list_names(debug: DebugOption = False) -> None:
    """Show every paper, corpus, encoder, attention, method and trial by name."""
    titles = {name: paper.title for name, paper in papers.PAPERS.items()}
    for kind, names in {"papers": titles, **catalogue.listing()}.items():
        screen.print(f"[bold]{kind}[/bold]")
        for name, meaning in names.items():
            screen.print(f"  {name:22} ", end="")
            screen.print(meaning, markup=False)


@app.command()
@command
def run(
    what: WhatArgument,
    only: Annotated[list[str] | None, typer.Option("--only", help="This corpus only; may be repeated.")] = None,
    encoder: Annotated[list[str] | None, typer.Option("--encoder", help="This encoder only; may be repeated.")] = None,
    attention: Annotated[list[str] | None, typer.Option("--attention", help="This attention only.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds; default: the paper's.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many test instances.")] = None,
    sizes: SizesOption = None,
    vectors: VectorsOption = "auto",
    strengths: StrengthsOption = None,
    select: SelectOption = "dev",
    start: StartOption = "fresh",
    quick: QuickOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and how long, and stop.")] = False,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Reproduce a paper, or run the recipes of a file."""
    choice = papers.Choice(
        *(tuple(only or ()), tuple(encoder or ()), tuple(attention or ())),
        *(seeds, limit, vectors),
        quick=quick,
        strengths=tuple(strengths or ()),
        select=one_of("--select", select, SELECTING),
        sizes=tuple(sizes or ()),
        start=one_of("--start", start, STARTING),
    )
    recipes = papers.recipes(what, choice, _data())
    workers = _workers(where, workers)
    expected = {} if quiet else _foretold(recipes, workspace, workers)
    return 0 if dry_run else _run(recipes, workspace, expected, quiet=quiet, workers=workers, json_file=json_file)


@app.command()
@command
def attefa(
    data: Annotated[str, typer.Option("--data", help="A CSV, TSV, JSONL or Parquet file with a row per text.")],
    text: TextOption = "text",
    label: Annotated[str, typer.Option("--label-column", help="Column of the classes.")] = "label",
    second: SecondOption = None,
    dev: Annotated[str | None, typer.Option("--dev", help="File of the dev split; else it is carved.")] = None,
    test: Annotated[str | None, typer.Option("--test", help="File of the test split; else it is carved.")] = None,
    encoder: Annotated[str, typer.Option("--encoder", help="bilstm, gru, convolution or perceptron.")] = "bilstm",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=len(PAPER_SEEDS), help="How many adversaries.")] = 3,
    bases: BasesOption = 2,
    vectors: VectorsOption = "auto",
    start: StartOption = "fresh",
    quick: QuickOption = False,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: OutOption = DEFAULT_REPORT,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Say in one number whether attention on your own texts could as well be another one."""
    owned = OwnData(data, Reading(text, label, second), dev, test)
    begin = one_of("--start", start, STARTING)
    choice = papers.Choice(encoders=(encoder,), seeds=seeds, vectors=vectors, quick=quick, start=begin)
    recipes = own_attefa(owned, choice, _data(), bases)
    workers = _workers(where, workers)
    expected = {} if quiet else _foretold(recipes, workspace, workers)
    code = _run(recipes, workspace, expected, quiet=quiet, workers=workers, json_file=json_file)
    if code == 0:
        if not quiet:
            _caution(recipes[1], workspace)
        _write_report(workspace, out, quiet=quiet)
    return code


@app.command()
@command
def learn(
    teacher: Annotated[str, typer.Option("--teacher", help="Folder of a fine-tuned model with its tokenizer.")],
    data: Annotated[str, typer.Option("--data", help="A CSV, TSV, JSONL or Parquet file; labels are not needed.")],
    text: TextOption = "text",
    second: SecondOption = None,
    label: Annotated[str | None, typer.Option("--label-column", help="Classes, to score the model.")] = None,
    size: Annotated[int | None, typer.Option("--size", min=1, help="Texts that a student learns from.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first student.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Students of each kind.")] = 3,
    quick: QuickOption = False,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: Annotated[Path, typer.Option("--out", help="Folder of the explainer.")] = Path("explainer"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Learn which of your model's attention heads explain it to a student, and keep the explainer."""
    learned = lessons(Wish(teacher, data, text, second, label, size, seed, seeds, quick), _data())
    workers = _workers(where, workers)
    Workspace(workspace).get(learned.teacher)  # complaints about the model, and the folder, come before any work
    check_folder(out)
    code = _run(learned.recipes, workspace, quiet=quiet, workers=workers, json_file=json_file)
    if code == 0:
        learned.explainer(Workspace(workspace)).save(out)
        for sentence in () if quiet else (*learned.told(Workspace(workspace)), f"The explainer is in {out.resolve()}"):
            screen.print(sentence, markup=False)
    return code


@app.command()
@command
def report(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    out: OutOption = DEFAULT_REPORT,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a self-contained page about all finished work."""
    _write_report(workspace, out, quiet=quiet)


@app.command()
@command
def fetch(
    corpus: Annotated[str, typer.Argument(help="Name of a public corpus (see `heedful list`).")],
    source: Annotated[str | None, typer.Option("--source", help="Another hub id, or a saved dataset folder.")] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Obtain a public corpus and write it into the data folder."""
    folder = fetch_corpus(corpus, _data(), source=source)
    if not quiet:
        screen.print(f"written to {folder}", markup=False)


def _data() -> Path:
    return Workspace(DEFAULT_WORKSPACE).data


def _workers(where: str, workers: int | None) -> int | None:
    if where not in ("pool", "here"):
        raise UserError(f"--where is pool or here, not {where!r}")
    if where == "here" and workers not in (None, 1):
        raise UserError("--where here is one process: leave --workers out, or choose --where pool")
    return 1 if where == "here" else workers


def _foretold(recipes: Sequence[Recipe], root: Path, workers: int | None) -> Mapping[Recipe, float]:
    """Says what is to be done and how long it may take; gives the seconds of each training as far as known."""
    workspace = Workspace(root)
    try:
        plan = estimating.planned(recipes, workspace)
    except UserError:
        return {}  # the run itself says what is wrong with its data
    screen.print(plan.words, markup=False)
    if plan.worth_timing:
        screen.print("Timing some steps of each kind of training, for about half a minute at most ...", markup=False)
    estimate = estimating.estimated(plan, workspace, workers or os.cpu_count() or 1)
    if estimate is None:
        return {}
    screen.print(estimate.words, markup=False)
    return estimate.expected


def _run(
    recipes: Sequence[Recipe],
    root: Path,
    expected: Mapping[Recipe, float] | None = None,
    *,
    quiet: bool,
    workers: int | None = None,
    json_file: Path | None = None,
) -> int:
    processes = workers or os.cpu_count() or 1
    with showing(quiet) as progress:
        workspace = Workspace(root, progress=progress)
        if expected and not isinstance(progress, Silent):
            outcomes = runner.run(recipes, workspace, workers=processes, expected=expected)
        else:
            outcomes = runner.run(recipes, workspace, workers=processes)
    if json_file is not None:
        found = results.summaries(outcomes, workspace)
        json_file.write_text(json.dumps({"results": found}, indent=1) + "\n", encoding="utf-8")
    if not quiet:
        for line in results.lines(outcomes, workspace):
            screen.print(line, markup=False)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        where = f" (traceback: {outcome.trace})" if outcome.trace else ""
        errors.print(f"heedful: failed: {workspace.name(outcome.recipe)}: {outcome.error}{where}", markup=False)
    return 1 if failed else 0


def _caution(trial: AtteFa, root: Path) -> None:
    workspace = Workspace(root)
    if not workspace.has(trial):
        return
    accuracy = trial.summary(workspace.get(trial).table)["base_accuracy"]
    for sentence in cautions(trial.subject.corpus.read(workspace.data), accuracy):
        screen.print(sentence, markup=False)


def _write_report(root: Path, out: Path, *, quiet: bool) -> None:
    path = write_report(Workspace(root), out)
    if not quiet:
        screen.print(f"The report is in {path.resolve()}", markup=False)


def main() -> None:
    """The entry point of the command."""
    sys.exit(app())
