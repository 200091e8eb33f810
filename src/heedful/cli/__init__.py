"""The command `heedful`: its subcommands are `explain`, `audit`, `run` and those that `heedful --help` lists.

Errors are one line with exit code 2. An interrupt keeps finished work and exits with 130, at any moment. Recipes that
fail are listed at the end with their traceback files, and the exit code is 1. Heavy modules are imported inside the
commands, so that `--help` and `--version` do not wait for torch.
"""

from __future__ import annotations

import sys
from typing import Annotated

try:
    import typer

    from heedful import __version__
    from heedful.cli.attefa_command import attefa
    from heedful.cli.audit_command import audit
    from heedful.cli.console import say
    from heedful.cli.demo_command import demo
    from heedful.cli.explain_command import explain
    from heedful.cli.fetch_command import fetch
    from heedful.cli.guard import run_app
    from heedful.cli.learn_command import learn
    from heedful.cli.list_command import list_names
    from heedful.cli.models_command import models
    from heedful.cli.report_command import report
    from heedful.cli.reproduce_command import reproduce
    from heedful.cli.run_command import run
    from heedful.cli.study_commands import study_app
    from heedful.cli.workspace_commands import workspace_app
except KeyboardInterrupt:
    sys.stderr.write("heedful: interrupted\n")
    raise SystemExit(130) from None

app = typer.Typer(
    name="heedful",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(study_app, name="study")
app.add_typer(workspace_app, name="workspace")
app.command()(explain)
app.command()(audit)
app.command()(models)
app.command()(demo)
app.command("list")(list_names)
app.command(add_help_option=False)(run)
app.command()(attefa)
app.command()(learn)
app.command()(report)
app.command()(reproduce)
app.command()(fetch)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def heedful(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Does a model's attention, or any other token attribution, explain its predictions?"""


def main() -> None:
    """The entry point of the command."""
    run_app(app)
