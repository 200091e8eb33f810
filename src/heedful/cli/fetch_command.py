"""`heedful fetch`: public corpora."""

from __future__ import annotations

from typing import Annotated

import typer

from heedful.cli.console import say
from heedful.cli.guard import command

SOURCE_HELP = "Another hub id, or a folder with a saved dataset."


@command
def fetch(
    corpus: Annotated[str, typer.Argument(help="Name of a public corpus (see `heedful list`).")],
    source: Annotated[str | None, typer.Option("--source", help=SOURCE_HELP)] = None,
) -> None:
    """Download a public corpus to the data folder."""
    from heedful.data import download
    from heedful.store.workspace import default_data_dir

    say(f"Downloaded to {download.fetch(corpus, default_data_dir(), source=source)}")
