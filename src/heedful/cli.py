"""Options of the command, each with its words of help, and the words that may be given for them.

Summaries of finished trials as plain values, for `--json` and for the screen.

The command: `heedful demo | list | run | attefa | learn | report | fetch`. The only place that prints.

Errors are one line and exit code 2; an interrupt keeps what is finished and exits with 130; a recipe that failed is
listed at the end with its traceback file, the others having gone on, and the exit code is 1.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from heedful import __version__, catalogue, papers, runner
from heedful.attributions.head_mix import check_explainer_folder
from heedful.data.download import fetch as fetch_corpus
from heedful.data.table import TableColumns
from heedful.learn import LearnOptions, learn_recipes
from heedful.papers._options import SelectionRule
from heedful.papers.attefa import UserData, data_warnings, user_data_attefa
from heedful.progress import Progress, SilentProgress, StepCallback
from heedful.report.gathering import write_report
from heedful.runner import Outcome
from heedful.store.recipe import Json, Recipe
from heedful.store.workspace import Workspace
from heedful.training.objectives import Initialization
from heedful.training.trained_model import TrainedModel
from heedful.trials._trial import Trial
from heedful.trials.adversarial_training import PAPER_SEEDS, AtteFa
from heedful.types import UserError

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
EmbeddingsOption = Annotated[
    str, typer.Option("--vectors", help="auto, random, packaged, a name in the data folder, or a file.")
]
SizesOption = Annotated[
    list[int] | None, typer.Option("--size", min=1, help="Examples that a student learns from; may be repeated.")
]
LambdasOption = Annotated[
    list[float] | None, typer.Option("--lambda", help="A lambda of the trained adversaries; may be repeated.")
]
TextColumnOption = Annotated[str, typer.Option("--text-column", help="Column of the texts.")]
SecondColumnOption = Annotated[str | None, typer.Option("--second-column", help="Column of a second text, for pairs.")]
PaperArgument = Annotated[
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
SELECTION_RULES: Mapping[str, SelectionRule] = {"dev": "dev", "paper": "paper", "code": "code"}
ADVERSARY_STARTS: Mapping[str, Initialization] = {"fresh": "fresh", "base": "base"}


def parse_choice(option: str, value: str, choices: Mapping[str, T]) -> T:
    """What a word stands for; other words are refused with those that there are."""
    if value not in choices:
        *first, last = choices
        raise UserError(f"{option} is {', '.join(first)} or {last}, not {value!r}")
    return choices[value]


def trial_summaries(outcomes: Iterable[Outcome], workspace: Workspace) -> list[dict[str, Json]]:
    """One entry per finished trial: trial, corpus, encoder, attention, seed, n, settings and a flat summary.

    Settings are the trial's own plain fields, such as an adversary's epsilon: they tell apart what else is alike.
    Numbers that are undefined are null, never left out.
    """
    return [
        summary_record(outcome.recipe, workspace)
        for outcome in outcomes
        if outcome.error is None and isinstance(outcome.recipe, Trial)
    ]


def summary_record(trial: Trial, workspace: Workspace) -> dict[str, Json]:
    """One finished trial's entry."""
    artefact = workspace.get(trial)
    about = artefact.notes["about"]
    assert isinstance(about, Mapping)
    summary = trial.flat_summary(artefact.table)
    return {
        "trial": trial.name,
        **about,
        "n": artefact.notes["n"],
        "settings": trial_settings(trial),
        "summary": {name: number if math.isfinite(number) else None for name, number in summary.items()},
    }


def trial_settings(trial: Trial) -> dict[str, Json]:
    """The fields of a trial that are plain values or tuples of them: neither its subject nor other recipes."""
    assert is_dataclass(trial)
    values = {field.name: getattr(trial, field.name) for field in fields(trial)}
    return {name: _to_json(value) for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _to_json(value: object) -> Json:
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    assert value is None or isinstance(value, bool | int | float | str)
    return value


def result_lines(outcomes: Iterable[Outcome], workspace: Workspace) -> list[str]:
    """A line per finished trial for the screen: what it was about, and what came out in plain words."""
    return [
        _result_line(outcome.recipe, workspace)
        for outcome in outcomes
        if outcome.error is None and isinstance(outcome.recipe, Trial)
    ]


def _result_line(trial: Trial, workspace: Workspace) -> str:
    artefact = workspace.get(trial)
    about = artefact.notes["about"]
    assert isinstance(about, Mapping)
    where = f"{about['corpus']}, {about['encoder']}, {about['attention']}, seed {about['seed']}"
    return f"{trial.name} ({where}): {trial.interpret_table(artefact.table)}"


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
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        """One bar, removed when its task ends."""
        key = self.bars.add_task(title, total=total, note="")

        def step(advance: int = 1, note: str = "") -> None:
            self.bars.update(key, advance=advance, note=note)

        try:
            yield step
        finally:
            self.bars.remove_task(key)


@contextmanager
def progress_display(quiet: bool) -> Iterator[Progress]:
    """A progress display on a terminal, silence elsewhere."""
    if quiet or not errors.is_terminal:
        yield SilentProgress()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TextColumn("{task.fields[note]}"), TimeRemainingColumn(), console=errors) as bars:
        yield ScreenProgress(bars)


def _print_version(wanted: bool) -> None:
    if wanted:
        screen.print(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def heedful(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and stop.")
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
    recipes = papers.demo(synthetic=planted)
    if not quiet:
        text = "a generated corpus" if planted else "real film reviews"
        screen.print(f"Training a BiLSTM with attention on {text}, then putting its attention on trial.")
    code = _run_recipes(recipes, workspace, quiet=quiet)
    if code == 0:
        _write_report(workspace, out, quiet=quiet)
    return code


@app.command("list")
@command
def list_names(debug: DebugOption = False) -> None:
    """Show every paper, corpus, encoder, attention, method and trial by name."""
    titles = {name: paper.title for name, paper in papers.PAPERS.items()}
    for kind, names in {"papers": titles, **catalogue.descriptions()}.items():
        screen.print(f"[bold]{kind}[/bold]")
        for name, meaning in names.items():
            screen.print(f"  {name:22} ", end="")
            screen.print(meaning, markup=False)


@app.command()
@command
def run(
    what: PaperArgument,
    only: Annotated[list[str] | None, typer.Option("--only", help="This corpus only; may be repeated.")] = None,
    encoder: Annotated[list[str] | None, typer.Option("--encoder", help="This encoder only; may be repeated.")] = None,
    attention: Annotated[list[str] | None, typer.Option("--attention", help="This attention only.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds; default: the paper's.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many test instances.")] = None,
    sizes: SizesOption = None,
    embeddings: EmbeddingsOption = "auto",
    lambdas: LambdasOption = None,
    select: SelectOption = "dev",
    start: StartOption = "fresh",
    quick: QuickOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what is to make; make nothing.")] = False,
    where: WhereOption = "pool",
    workers: WorkersOption = None,
    json_file: JsonOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Reproduce a paper, or run the recipes of a file."""
    choice = papers.PaperOptions(
        *(tuple(only or ()), tuple(encoder or ()), tuple(attention or ())),
        *(seeds, limit, embeddings),
        quick=quick,
        lambdas=tuple(lambdas or ()),
        select=parse_choice("--select", select, SELECTION_RULES),
        student_sizes=tuple(sizes or ()),
        start=parse_choice("--start", start, ADVERSARY_STARTS),
    )
    recipes = papers.find_recipes(what, choice, _data_folder())
    workers = _worker_count(where, workers)
    if not quiet:
        _print_plan(recipes, workspace)
    return 0 if dry_run else _run_recipes(recipes, workspace, quiet=quiet, workers=workers, json_file=json_file)


@app.command()
@command
def attefa(
    data: Annotated[str, typer.Option("--data", help="A CSV, TSV, JSONL or Parquet file with a row per text.")],
    text_column: TextColumnOption = "text",
    label_column: Annotated[str, typer.Option("--label-column", help="Column of the classes.")] = "label",
    second_column: SecondColumnOption = None,
    dev: Annotated[str | None, typer.Option("--dev", help="File of the dev split; else it is carved.")] = None,
    test: Annotated[str | None, typer.Option("--test", help="File of the test split; else it is carved.")] = None,
    encoder: Annotated[str, typer.Option("--encoder", help="bilstm, gru, convolution or perceptron.")] = "bilstm",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=len(PAPER_SEEDS), help="How many adversaries.")] = 3,
    bases: BasesOption = 2,
    embeddings: EmbeddingsOption = "auto",
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
    owned = UserData(data, TableColumns(text_column, label_column, second_column), dev, test)
    begin = parse_choice("--start", start, ADVERSARY_STARTS)
    choice = papers.PaperOptions(encoders=(encoder,), n_seeds=seeds, embeddings=embeddings, quick=quick, start=begin)
    recipes = user_data_attefa(owned, choice, _data_folder(), bases)
    workers = _worker_count(where, workers)
    if not quiet:
        _print_plan(recipes, workspace)
    code = _run_recipes(recipes, workspace, quiet=quiet, workers=workers, json_file=json_file)
    if code == 0:
        if not quiet:
            _print_cautions(recipes[1], workspace)
        _write_report(workspace, out, quiet=quiet)
    return code


@app.command()
@command
def learn(
    teacher: Annotated[str, typer.Option("--teacher", help="Folder of a fine-tuned model with its tokenizer.")],
    data: Annotated[str, typer.Option("--data", help="A CSV, TSV, JSONL or Parquet file; labels are not needed.")],
    text_column: TextColumnOption = "text",
    second_column: SecondColumnOption = None,
    label_column: Annotated[str | None, typer.Option("--label-column", help="Classes, to score the model.")] = None,
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
    learned = learn_recipes(
        LearnOptions(teacher, data, text_column, second_column, label_column, size, seed, seeds, quick), _data_folder()
    )
    workers = _worker_count(where, workers)
    Workspace(workspace).get(learned.teacher)  # complaints about the model, and the folder, come before any work
    check_explainer_folder(out)
    code = _run_recipes(learned.recipes, workspace, quiet=quiet, workers=workers, json_file=json_file)
    if code == 0:
        learned.explainer(Workspace(workspace)).save(out)
        for sentence in (
            () if quiet else (*learned.sentences(Workspace(workspace)), f"The explainer is in {out.resolve()}")
        ):
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
    folder = fetch_corpus(corpus, _data_folder(), source=source)
    if not quiet:
        screen.print(f"written to {folder}", markup=False)


def _data_folder() -> Path:
    return Workspace(DEFAULT_WORKSPACE).data_dir


def _worker_count(where: str, workers: int | None) -> int | None:
    if where not in ("pool", "here"):
        raise UserError(f"--where is pool or here, not {where!r}")
    if where == "here" and workers not in (None, 1):
        raise UserError("--where here is one process: leave --workers out, or choose --where pool")
    return 1 if where == "here" else workers


def _print_plan(recipes: Sequence[Recipe], root: Path) -> None:
    """Print how many models, trials and other recipes there are to make."""
    workspace = Workspace(root)
    try:
        plan = runner.topological_order(recipes)
        waiting = [recipe for recipe in plan if not workspace.has(recipe)]
    except UserError:
        return  # the run itself reports what is wrong with the data
    if not waiting:
        screen.print(f"Everything is finished already ({len(plan)} recipes).", markup=False)
        return
    trials = sum(isinstance(recipe, Trial) for recipe in waiting)
    models = sum(isinstance(recipe, TrainedModel) for recipe in waiting)
    counts = {"model": models, "trial": trials, "other recipe": len(waiting) - models - trials}
    parts = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count)
    finished = len(plan) - len(waiting)
    screen.print(f"To make: {parts}; finished already: {finished} of {len(plan)} recipes.", markup=False)


def _run_recipes(
    recipes: Sequence[Recipe],
    root: Path,
    *,
    quiet: bool,
    workers: int | None = None,
    json_file: Path | None = None,
) -> int:
    processes = workers or os.cpu_count() or 1
    with progress_display(quiet) as progress:
        workspace = Workspace(root, progress=progress)
        outcomes = runner.run(recipes, workspace, workers=processes)
    if json_file is not None:
        found = trial_summaries(outcomes, workspace)
        json_file.write_text(json.dumps({"results": found}, indent=1) + "\n", encoding="utf-8")
    if not quiet:
        for line in result_lines(outcomes, workspace):
            screen.print(line, markup=False)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        where = f" (traceback: {outcome.traceback_file})" if outcome.traceback_file else ""
        errors.print(
            f"heedful: failed: {workspace.artefact_name(outcome.recipe)}: {outcome.error}{where}", markup=False
        )
    return 1 if failed else 0


def _print_cautions(trial: AtteFa, root: Path) -> None:
    workspace = Workspace(root)
    if not workspace.has(trial):
        return
    accuracy = trial.flat_summary(workspace.get(trial).table)["base_accuracy"]
    for sentence in data_warnings(trial.subject.corpus.read(workspace.data_dir), accuracy):
        screen.print(sentence, markup=False)


def _write_report(root: Path, out: Path, *, quiet: bool) -> None:
    path = write_report(Workspace(root), out)
    if not quiet:
        screen.print(f"The report is in {path.resolve()}", markup=False)


def main() -> None:
    """The entry point of the command."""
    sys.exit(app())
