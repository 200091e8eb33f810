"""`python -m docs.builder [FOLDER]` builds the site into a folder, by default `site`; exit code 1 for any fault."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import build_main

from docs.builder.api_pages import write_api_pages
from docs.builder.checks import check_site
from docs.builder.command_pages import write_commands_page
from docs.builder.examples import example_explainer
from docs.builder.gallery import gallery_text, make_audits, make_pages
from docs.builder.navigation import write_navigation
from docs.builder.notebooks import NOTEBOOK_LINK, notebook_page, run_notebook
from docs.builder.reference_pages import (
    gather_facts,
    write_bibliography,
    write_measure_pages,
    write_method_pages,
    write_question_pages,
    write_trial_pages,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
REPOSITORY_PAGES = re.compile(r"\]\((?:\.\./|docs/)")
README = re.compile(r"\]\(README\.md(#[^)]*)?\)")


def copy_pages(source: Path) -> None:
    """The Markdown files of the repository, all in one folder; links between them follow."""
    for path in (*DOCS.glob("*.md"), *(ROOT / name for name in PROJECT_PAGES)):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            text = NOTEBOOK_LINK.sub(r"](tutorials/\1.md)", README.sub("](index.md)", REPOSITORY_PAGES.sub("](", text)))
        (source / path.name).write_text(text, encoding="utf-8")
    for path in (path for suffix in ("png", "svg", "json") for path in DOCS.glob(f"*.{suffix}")):
        shutil.copy(path, source)
    shutil.copytree(DOCS / "_static", source / "_static", dirs_exist_ok=True)


def write_notebook_pages(source: Path, build: Path) -> None:
    """The notebooks, run, with the files themselves for download."""
    (source / "tutorials").mkdir()
    (source / "_static" / "notebooks").mkdir()
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        shutil.copy(path, source / "_static" / "notebooks")
        text = notebook_page(run_notebook(path, build / "notebooks" / path.stem), f"../_static/notebooks/{path.name}")
        (source / "tutorials" / f"{path.stem}.md").write_text(text, encoding="utf-8")


def write_sources(source: Path, build: Path) -> None:
    """Everything that Sphinx reads."""
    copy_pages(source)
    gallery = source / "_gallery" / "gallery"
    gallery.mkdir(parents=True)
    explainer = example_explainer(build)
    audits = make_audits(build, gallery)
    pages = make_pages(build, gallery, explainer)
    (source / "gallery.md").write_text(gallery_text(pages), encoding="utf-8")
    facts = gather_facts(explainer, (DOCS / "models.md").read_text(encoding="utf-8"))
    children = {
        "methods/index": write_method_pages(source / "methods", explainer, facts, audits),
        "questions/index": write_question_pages(source / "questions", source / "_static" / "questions", audits),
        "trials/index": write_trial_pages(source / "trials"),
        "measures/index": write_measure_pages(source / "measures"),
        "api/index": write_api_pages(source / "api"),
    }
    write_commands_page(source / "commands.md")
    write_bibliography(source / "bibliography.md")
    write_notebook_pages(source, build)
    write_navigation(source, children)


def main() -> int:
    """Write the sources, run Sphinx with warnings as errors, check the pages."""
    parser = argparse.ArgumentParser(prog="python -m docs.builder")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument(
        "--again", action="store_true", help="Keep the sources of the last call, to try the configuration."
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "site", help="Folder for models and sources.")
    arguments = parser.parse_args()
    begun, build, source = time.perf_counter(), arguments.build.resolve(), arguments.build.resolve() / "source"
    shutil.rmtree(arguments.folder, ignore_errors=True)
    os.environ.setdefault("HEEDFUL_DATA", str(build / "data"))
    if not arguments.again:
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir(parents=True)
        write_sources(source, build)
    written = time.perf_counter()
    os.environ["HEEDFUL_SITE_SOURCE"] = str(source)
    words = ["-b", "html", "-W", "--keep-going", "-q", "-E", "-j", "2", "-c", str(DOCS), "-d", str(build / "doctrees")]
    if build_main([*words, str(source), str(arguments.folder)]):
        return 1
    built = time.perf_counter()
    faults = check_site(arguments.folder)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    count = len(list(arguments.folder.rglob("*.html")))
    sys.stdout.write(
        f"{count} pages in {arguments.folder}: sources {written - begun:.0f} s, Sphinx {built - written:.0f} s, "
        f"{len(faults)} faults\n"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
