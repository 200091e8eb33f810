"""The commands of a study: `heedful study build | serve | erase | rate`; the heavy modules are imported inside them."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.console import check_files, check_folder, say, screen, write_file
from heedful.cli.guard import command
from heedful.cli.options import DEFAULT_WORKSPACE, JsonOption, SeedOption, WorkspaceOption

DEFAULT_STUDY = Path("study")
DATABASE_VARIABLE = "HEEDFUL_STUDY_DATABASE"
DatabaseOption = Annotated[
    str,
    typer.Option("--database", envvar=DATABASE_VARIABLE, help="URL of a PostgreSQL database for the answers."),
]
design_option = functools.partial(typer.Option, rich_help_panel="Design")
display_option = functools.partial(typer.Option, rich_help_panel="What people see")
CONNECTIONS_HELP = "Maximum number of connections per address; 0 is unlimited, for a proxy on another machine."

study_app = typer.Typer(no_args_is_help=True, help="Ask people: run a blind study of explanations.")


@study_app.command("build")
@command
def study_build(
    source: Annotated[str, typer.Option("--from", help="Workspace, or the folder of an audit or a report.")],
    methods: Annotated[list[str], typer.Option("--methods", help="Methods to compare, separated by commas.")],
    items: Annotated[int, design_option("--items", help="Number of texts or images that count.")] = 50,
    per_person: Annotated[int, design_option("--per-person", help="Number of answers per person.")] = 20,
    people: Annotated[int, design_option("--people", help="Number of people, each with a link.")] = 30,
    task: Annotated[
        str, design_option("--task", help="rank (order the heat-maps), simulate (guess the prediction) or both.")
    ] = "rank",
    items_by: Annotated[
        str,
        design_option(
            "--items-by", help="Draw items by predicted class (class) or where methods differ (disagreement)."
        ),
    ] = "class",
    max_words: Annotated[int, design_option("--max-words", help="Skip texts with more words.")] = 200,
    checks: Annotated[
        int | None, design_option("--checks", help="Number of attention checks per person (default: 1 in 10).")
    ] = None,
    repeats: Annotated[
        int | None, design_option("--repeats", help="Number of repeated items per person (default: 1 in 10).")
    ] = None,
    max_failed: Annotated[
        int | None,
        design_option("--max-failed-checks", help="Exclude people who fail more checks (default: half of them)."),
    ] = None,
    seed: SeedOption = 0,
    scores: Annotated[
        str, display_option("--scores", help="Scores to show: positive (for the prediction) or size (absolute).")
    ] = "positive",
    scale: Annotated[
        str, display_option("--scale", help="Shading: share (of the largest score) or rank (same for all methods).")
    ] = "share",
    title: Annotated[str, display_option("--title", help="Title of the pages.")] = "",
    url: Annotated[str, typer.Option("--url", help="Address where people reach the study.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option("--model", help="Part of the model's name, if several models are stored.")] = "",
    database: DatabaseOption = "",
    out: Annotated[Path, typer.Option("--out", help="Folder for the study.")] = DEFAULT_STUDY,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the design and its power, without writing it.")
    ] = False,
) -> None:
    """Draw items, assign them to people, and write a study with one link per person."""
    from heedful.study.design import (
        LINKS_FILE,
        StudyOptions,
        check_study_folder,
        describe_study,
        read_study,
        write_study,
    )
    from heedful.study.items import ItemChoice, build_study
    from heedful.study.power import describe_power

    options = StudyOptions(items, per_person, people, task, seed, checks, repeats, max_failed)
    choice = ItemChoice(items_by, scores, scale, max_words)
    if database:
        _check_study_extra()
        from heedful.study.database_url import parse_database_url

        parse_database_url(database)
    if not dry_run:
        check_folder(out)
        check_study_folder(out)
    study = build_study(source, methods, options, choice, model=model, title=title, database=database)
    for line in () if screen.quiet else [*describe_study(study), *(describe_power(study) if dry_run else [])]:
        say(line)
    if not dry_run:
        write_study(study, out, url)
        say(f"Study: {out.resolve()}; the links are in {LINKS_FILE}.")
        if read_study(out).database != database:
            say(f"The database password is not stored; set {DATABASE_VARIABLE} or PGPASSWORD when you serve the study.")
        say(f"Edit consent.md and instructions.md, then run: heedful study serve {out}")


@study_app.command("serve")
@command
def study_serve(
    study: Annotated[Path, typer.Argument(help="Folder of the study.")] = DEFAULT_STUDY,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    per_address: Annotated[
        int | None,
        typer.Option(
            "--connections-per-address",
            min=0,
            help=CONNECTIONS_HELP,
            show_default="256, unlimited from this machine",
        ),
    ] = None,
    database: DatabaseOption = "",
) -> None:
    """Serve a study until Ctrl-C; every answer is on disk before it is acknowledged."""
    _check_study_extra()
    from heedful.study.app import serve

    serve(study, host, port, database, say, per_address=per_address)


@study_app.command("erase")
@command
def study_erase(
    token: Annotated[str, typer.Argument(help="A person's link, or the token at its end.")],
    study: Annotated[Path, typer.Option("--study", help="Folder of the study.")] = DEFAULT_STUDY,
    database: DatabaseOption = "",
) -> None:
    """Delete all answers of one person and disable the link."""
    _check_study_extra()
    from heedful.study.storage import erase_person

    person, count = erase_person(study, token, database)
    say(f"{person}: deleted {count} answers and disabled the link.")


@study_app.command("rate")
@command
def study_rate(
    study: Annotated[
        Path, typer.Argument(help="Folder of the study, or its answers as exported JSON.")
    ] = DEFAULT_STUDY,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
    database: DatabaseOption = "",
) -> None:
    """Rate the methods by people's answers: order, gains and agreement. `heedful report` includes the rating."""
    _check_study_extra()
    from heedful.store.workspace import Workspace
    from heedful.study.rating import interpretation, rate_study, store_rating, write_rating_page
    from heedful.study.storage import load_answers, study_origin

    check_files({"--json": json_file})
    name, page = Path(os.path.realpath(study)).name, study / "rating.html"
    if study.is_file():
        name, page = study.stem, study.with_suffix(".rating.html")
    rating = rate_study(load_answers(study, database), name, seed=seed, origin=study_origin(study))
    store_rating(rating, Workspace(workspace))
    write_rating_page(rating, page)
    if json_file is not None:
        write_file(json_file, json.dumps(rating.to_record(), indent=1, allow_nan=False) + "\n")
    for sentence in interpretation(rating.summary):
        say(sentence)
    say(f"Rating: {page.resolve()}; the next report of the workspace {workspace} includes it.")


def _check_study_extra() -> None:
    """UserError if the packages of the extra `study` are missing."""
    from importlib.util import find_spec

    from heedful.types import UserError

    missing = [
        name
        for name in ("starlette", "uvicorn", "sqlalchemy", "markdown_it", "trueskill", "krippendorff")
        if find_spec(name) is None
    ]
    if missing:
        raise UserError(f"{missing[0]} is not installed: pip install 'heedful[study]'")
