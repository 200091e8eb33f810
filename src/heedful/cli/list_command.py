"""`heedful list`: the names of everything."""

from __future__ import annotations

from heedful.cli.console import say
from heedful.cli.guard import command


@command
def list_names() -> None:
    """List all papers, corpora, encoders, attention mechanisms, methods and trials."""
    from heedful import catalogue, papers

    titles = {name: paper.title for name, paper in papers.PAPERS.items()}
    for kind, names in {"papers": titles, **catalogue.descriptions()}.items():
        say(kind, style="bold")
        for name, meaning in names.items():
            say(f"  {name:22} {meaning}")
