"""`heedful demo`: a small model, its audit and its report."""

from __future__ import annotations

from typing import Annotated

import typer

from heedful.cli.console import check_folder, progress_of, say, screen
from heedful.cli.guard import command
from heedful.cli.options import DEFAULT_REPORT, PoolOptions, ReportOption, WorkspaceOptions
from heedful.cli.recipe_run import run_recipes

DEMO_MINUTES, DEMO_TEXTS = 2.0, 76


@command
def demo(
    machine: WorkspaceOptions,
    planted: Annotated[bool, typer.Option("--planted", help="Use a generated corpus instead of real text.")] = False,
    out: ReportOption = DEFAULT_REPORT,
) -> int:
    """Train a small model, audit its explanations, test the claims of the papers, and write both reports."""
    from heedful import papers
    from heedful.audits.schedule import AuditOptions
    from heedful.audits.schedule import audit as run_audit
    from heedful.report import write_report
    from heedful.report.html import check_report_folder

    workspace = machine.open()
    check_folder(out)
    check_report_folder(out)
    check_report_folder(out / "audit")
    corpus = "a generated corpus" if planted else "real movie reviews"
    say(f"Training a BiLSTM with attention on {corpus}, then testing which of its explanations you can show.")
    code = run_recipes(papers.demo(synthetic=planted), workspace, PoolOptions(), show_results=False)
    if code == 0:
        write_report(workspace, out)
        subject = papers.demo_model(synthetic=planted)
        options = AuditOptions(minutes=DEMO_MINUTES, texts=DEMO_TEXTS)
        with progress_of(workspace):
            result = run_audit(
                (subject, workspace), subject.corpus, options=options, workspace=workspace, out=out / "audit", say=say
            )
        if not screen.quiet:
            result.show()
        say(f"Which explanations you can show: {(out / 'audit' / 'index.html').resolve()}")
        say(f"Whether attention explains this model: {(out / 'index.html').resolve()}")
    return code
