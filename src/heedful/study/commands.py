"""The commands of a study: `heedful study build | serve | erase | rate`; the heavy modules are imported inside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from heedful.command_line import (
    DEFAULT_WORKSPACE,
    MAX_SEED,
    DebugOption,
    QuietOption,
    WorkspaceOption,
    check_files,
    check_folder,
    command,
    say,
    write_file,
)

DEFAULT_STUDY = Path("study")
DATABASE_VARIABLE = "HEEDFUL_STUDY_DATABASE"
DatabaseOption = Annotated[
    str,
    typer.Option("--database", envvar=DATABASE_VARIABLE, help="URL of a PostgreSQL database for the answers."),
]

study_app = typer.Typer(no_args_is_help=True, help="Ask people: a blind study of explanations.")


@study_app.command("build")
@command
def study_build(
    source: Annotated[str, typer.Option("--from", help="Workspace, or the folder of an audit or a report.")],
    methods: Annotated[list[str], typer.Option("--methods", help="Methods to compare: names with commas between.")],
    items: Annotated[int, typer.Option("--items", help="Texts or images that count.")] = 50,
    per_person: Annotated[int, typer.Option("--per-person", help="Answers of each person.")] = 20,
    people: Annotated[int, typer.Option("--people", help="How many links are made.")] = 30,
    task: Annotated[str, typer.Option("--task", help="rank maps, simulate the model (guess), or both.")] = "rank",
    items_by: Annotated[str, typer.Option("--items-by", help="class: by predicted class; disagreement.")] = "class",
    scores: Annotated[str, typer.Option("--scores", help="positive: what speaks for a prediction; size.")] = "positive",
    scale: Annotated[str, typer.Option("--scale", help="share: of the largest score; rank: alike for all.")] = "share",
    max_words: Annotated[int, typer.Option("--max-words", help="Longer texts are left out.")] = 200,
    checks: Annotated[int | None, typer.Option("--checks", help="Attention checks; default: 1 in 10.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Repeated items; default: 1 in 10.")] = None,
    max_failed: Annotated[int | None, typer.Option("--max-failed-checks", help="Default: half of them.")] = None,
    model: Annotated[str, typer.Option("--model", help="Part of the model's name, if there are several.")] = "",
    title: Annotated[str, typer.Option("--title", help="Title of the pages.")] = "",
    url: Annotated[str, typer.Option("--url", help="Address under which people reach it.")] = "http://127.0.0.1:8000",
    database: DatabaseOption = "",
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the design.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder of the study.")] = DEFAULT_STUDY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the design and its power; write nothing.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Draw items and assign them to people; write a study with one link per person."""
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
    if not quiet:
        for line in [*describe_study(study), *(describe_power(study) if dry_run else [])]:
            say(line)
    if not dry_run:
        write_study(study, out, url)
        if not quiet:
            say(f"The study is in {out.resolve()}, the links in {LINKS_FILE}.")
            if read_study(out).database != database:
                say(
                    f"The password of the database is not stored: set {DATABASE_VARIABLE} or PGPASSWORD when you serve."
                )
            say(f"Edit consent.md and instructions.md, then run: heedful study serve {out}")


@study_app.command("serve")
@command
def study_serve(
    study: Annotated[Path, typer.Argument(help="Folder of the study.")] = DEFAULT_STUDY,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8000,
    per_address: Annotated[
        int | None,
        typer.Option(
            "--connections-per-address",
            min=0,
            help="Connections of one address at a time; 0: any number, for a proxy on another machine.",
            show_default="256, any number from this machine",
        ),
    ] = None,
    database: DatabaseOption = "",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve a study to people until Ctrl-C; every answer is on disk before it is acknowledged."""
    _check_study_extra()
    from heedful.study.app import serve

    serve(study, host, port, database, None if quiet else say, per_address=per_address)


@study_app.command("erase")
@command
def study_erase(
    token: Annotated[str, typer.Argument(help="The link of a person, or the token at its end.")],
    study: Annotated[Path, typer.Option("--study", help="Folder of the study.")] = DEFAULT_STUDY,
    database: DatabaseOption = "",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete all answers of one person, whose link ends."""
    _check_study_extra()
    from heedful.study.storage import erase_person

    person, count = erase_person(study, token, database)
    if not quiet:
        say(f"{person}: {count} answers are deleted, and the link has ended.")


@study_app.command("rate")
@command
def study_rate(
    study: Annotated[
        Path, typer.Argument(help="Folder of the study, or its answers as exported JSON.")
    ] = DEFAULT_STUDY,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - prints it.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Seed of the bootstrap.")] = 0,
    database: DatabaseOption = "",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Rate the methods from people's answers: order, gains and agreement with intervals; also for `heedful report`."""
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
    if not quiet:
        for sentence in interpretation(rating.summary):
            say(sentence)
        say(f"All numbers are in {page.resolve()}, and in the next report of the workspace {workspace}.")


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
