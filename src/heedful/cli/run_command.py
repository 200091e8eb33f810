"""`heedful run`: a paper, or the recipes in a Python file."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperOption

from heedful.cli.console import complain, say, screen
from heedful.cli.guard import command
from heedful.cli.options import (
    BASES_HELP,
    EMBEDDINGS_HELP,
    MAX_ATTEFA_SEEDS,
    MAX_SEEDS,
    START_HELP,
    JsonOption,
    PoolOptions,
    QuickOption,
    TableOptions,
    WorkspaceOptions,
    output_option,
)
from heedful.cli.recipe_run import print_plan, run_recipes, say_columns, say_end
from heedful.cli.reproduce_command import update_from_workspace

if TYPE_CHECKING:
    from heedful.papers.paper_options import PaperOptions

DATA_HELP = "Table of your own texts (CSV, TSV, JSON, JSONL or Parquet) instead of the paper's corpora."
ERROR_HELP = (
    "Target standard error of a text's normalized infidelity or change under permutation; replaces a fixed number of "
    "samples."
)
SELECT_HELP = (
    "Checkpoint selection: dev (dev split), paper (test split) or code (as in the published code: test score for base "
    "models, training loss for adversaries)."
)
LEDGER_HELP = "Write our numbers into the ledger in this folder, usually `reproduction`."
SAMPLING_HELP = "Training examples of students: fixed for all seeds, as in the paper, or redrawn per seed."
CONTROL_HELP = (
    "Leave out the attention of another seed, a control that the paper lacks and that takes a second training."
)
WHAT_HELP = "Name of a paper (see `heedful list`), or a Python file with recipes()."
HELP_WANTED = "heedful.help"
HELP_HELP = "Show this message, or after the name of a paper its options and defaults, and exit."
NAME_LISTS = ("corpora", "encoders", "attentions", "normalizers")
"""Options with names that have no commas."""
AS_IN_THE_PAPER = "as in the paper"
DIVIDE_DEV_HELP = (
    "Train explainers on one half of the dev split and stop students on the other half; the paper uses the whole "
    "split for both."
)
paper_option = functools.partial(
    typer.Option, rich_help_panel="Options of specific papers", show_default=AS_IN_THE_PAPER
)


@dataclass(frozen=True)
class PaperChoice:
    """What to run of a paper; the fields have the names that `PaperOptions` and its subclasses give them."""

    corpora: Annotated[
        list[str] | None,
        typer.Option("--only", help="Corpora, separated by commas (repeatable).", show_default=AS_IN_THE_PAPER),
    ] = None
    n_seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=MAX_SEEDS, help="Number of seeds.", show_default=AS_IN_THE_PAPER),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of test instances.")] = None
    quick: QuickOption = False
    encoders: Annotated[
        list[str] | None, paper_option("--encoder", help="Encoders, separated by commas (repeatable).")
    ] = None
    attentions: Annotated[
        list[str] | None, paper_option("--attention", help="Attention mechanisms, separated by commas (repeatable).")
    ] = None
    embeddings: Annotated[str | None, paper_option("--embeddings", help=EMBEDDINGS_HELP, show_default="auto")] = None
    without_control: Annotated[bool, paper_option("--no-control", help=CONTROL_HELP, show_default=False)] = False
    error: Annotated[float | None, paper_option("--error", help=ERROR_HELP, show_default=False)] = None
    lambdas: Annotated[
        list[float] | None, paper_option("--lambda", help="Lambda of the trained adversaries (repeatable).")
    ] = None
    select: Annotated[str | None, paper_option("--select", help=SELECT_HELP)] = None
    start: Annotated[str | None, paper_option("--start", help=START_HELP, show_default="fresh")] = None
    n_bases: Annotated[int | None, paper_option("--bases", min=1, max=MAX_ATTEFA_SEEDS, help=BASES_HELP)] = None
    student_sizes: Annotated[
        list[int] | None, paper_option("--size", min=1, help="Number of training examples of a student (repeatable).")
    ] = None
    checkpoints: Annotated[
        list[str] | None, paper_option("--checkpoint", help="Pretrained model: minilm or a model folder (repeatable).")
    ] = None
    normalizers: Annotated[
        list[str] | None,
        paper_option("--normalizer", help="Normalizers of the head weights in SMaT, separated by commas (repeatable)."),
    ] = None
    sampling: Annotated[str | None, paper_option("--sampling", help=SAMPLING_HELP, show_default="fixed")] = None
    divide_dev: Annotated[bool, paper_option("--divide-dev", help=DIVIDE_DEV_HELP, show_default=False)] = False

    def settings(self) -> dict[str, object]:
        """The fields that the user set, with tuples for lists, which may be given with commas."""
        from heedful.names import split_names

        named = {
            name: split_names(value) for name, value in vars(self).items() if name in NAME_LISTS and value is not None
        }
        chosen = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in (chosen | named).items()}


def _note_help(context: typer.Context, wanted: bool) -> None:
    """Remember that the help is asked for: whose help it is depends on the argument, which is parsed later."""
    context.meta[HELP_WANTED] = wanted


def _check_what(context: typer.Context, what: str | None) -> str | None:
    """What to run; prints the help instead if it is asked for."""
    if context.meta.get(HELP_WANTED):
        if what is not None and not what.endswith(".py"):
            _take_options_of_paper(context, what)
        context.get_help()
        raise typer.Exit
    if what is None and not context.resilient_parsing:
        complain("name a paper or a Python file with recipes(); `heedful list` shows all papers")
        raise typer.Exit(2)
    return what


def _take_options_of_paper(context: typer.Context, name: str) -> None:
    """Let the help have the options of one paper only, with what the paper does by default; all if there is none."""
    from heedful import papers
    from heedful.types import UserError

    try:
        paper = papers.find_paper(name)
    except UserError as error:
        complain(str(error))
        return
    command, defaults = copy.copy(context.command), paper.options.defaults()
    command.params = [
        _option_of_paper(option, defaults) if isinstance(option, TyperOption) else option for option in command.params
    ]
    command.help = f"{paper.title}\n\n{paper.question}"
    context.command = command


def _option_of_paper(option: TyperOption, defaults: Mapping[str, object]) -> TyperOption:
    """An option as a paper has it: with its default, or hidden if the paper lacks it."""
    if option.name not in {field.name for field in fields(PaperChoice)}:
        return option
    shown = copy.copy(option)
    default = defaults.get(str(option.name))
    values = default if isinstance(default, tuple) else (default,)
    if shown.rich_help_panel is not None:
        shown.rich_help_panel = "Options of this paper"
    shown.hidden = option.name not in defaults
    shown.show_default = False if default in (None, (), False) else ", ".join(map(str, values))
    return shown


@command
def run(
    context: typer.Context,
    choice: PaperChoice,
    table: TableOptions,
    pool: PoolOptions,
    machine: WorkspaceOptions,
    data: Annotated[str | None, typer.Option("--data", help=DATA_HELP)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would run and how long it takes, without running it.")
    ] = False,
    json_file: JsonOption = None,
    ledger: Annotated[Path | None, output_option("--ledger", help=LEDGER_HELP)] = None,
    what: Annotated[str | None, typer.Argument(help=WHAT_HELP, is_eager=True, callback=_check_what)] = None,
    help_wanted: Annotated[
        bool,
        typer.Option("--help", "-h", is_eager=True, expose_value=False, callback=_note_help, help=HELP_HELP),
    ] = False,
) -> int:
    """Reproduce a paper on its corpora or on your own texts, or run the recipes in a Python file.

    `heedful run PAPER --help` shows the options of one paper and its defaults.
    """
    from heedful import papers
    from heedful.execution import runner
    from heedful.types import UserError

    assert what is not None
    workspace = machine.open()
    if data is None and table != TableOptions():
        raise UserError("--text-column and the other column options need --data; give a file")
    if data is not None and choice.corpora:
        raise UserError("--only selects corpora of the paper, --data your own texts; leave one of them out")
    if ledger is not None and (data is not None or choice.quick or what.endswith(".py")):
        raise UserError("--ledger compares a paper's corpora with print; leave out --data, --quick and Python files")
    if ledger is not None and any("/" in name or "\\" in name for name in choice.checkpoints or ()):
        raise UserError("--ledger would name a folder of this machine; give --checkpoint by name, such as minilm")
    settings = choice.settings()
    if data is not None:
        settings["user_data"] = papers.UserData(data, table.columns())
    flags = {"user_data": "--data"} | {str(option.name): option.opts[0] for option in context.command.params}
    paper = "" if what.endswith(".py") else papers.find_paper(what).name
    if what.endswith(".py"):
        if settings:
            names = ", ".join(flags[name] for name in settings)
            raise UserError(f"{names}: not available for a Python file; set it in the recipes() of {what}")
        recipes = runner.recipes_from_file(what)
        runner.check_where(pool.where, pool.workers)
    else:
        options = _paper_options(paper, settings, flags)(data_dir=workspace.data_dir, **settings)
        recipes = papers.paper_recipes(options)
        runner.check_where(pool.where, pool.workers)
        if options.user_data is not None and not screen.quiet:
            say_columns(options.user_data.corpus, workspace.data_dir)
        if missing := options.missing_corpora():
            say(f"Skipped, because they are not in {options.data_dir}: {', '.join(missing)}.")
    if not screen.quiet:
        print_plan(recipes, workspace, in_detail=dry_run)
    if dry_run:
        return 0
    code = run_recipes(recipes, workspace, pool, json_file, paper=paper)
    if ledger is not None:
        update_from_workspace(paper, workspace, ledger, settings, recipes)
    say_end(workspace)
    return code


def _paper_options(name: str, settings: Mapping[str, object], flags: Mapping[str, str]) -> Callable[..., PaperOptions]:
    """The class of a paper's options; UserError if it lacks one of the settings."""
    from heedful import papers
    from heedful.types import UserError

    options = papers.find_paper(name).options
    known = {field.name for field in fields(options)}
    if unknown := [flags[setting] for setting in settings if setting not in known]:
        available = ", ".join(flag for setting, flag in flags.items() if setting in known)
        raise UserError(f"{name} has no option {', '.join(unknown)}; choose from {available}")
    return options
