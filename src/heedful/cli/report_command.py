"""`heedful report`: a page about all finished work."""

from __future__ import annotations

from heedful.cli.console import check_folder, say
from heedful.cli.guard import command
from heedful.cli.options import DEFAULT_REPORT, DEFAULT_WORKSPACE, ReportOption, WorkspaceOption


@command
def report(workspace: WorkspaceOption = DEFAULT_WORKSPACE, out: ReportOption = DEFAULT_REPORT) -> None:
    """Write a self-contained HTML report of all finished work."""
    from heedful.report import write_report
    from heedful.report.html import check_report_folder
    from heedful.store.workspace import Workspace

    check_folder(out)
    check_report_folder(out)
    say(f"Report: {write_report(Workspace(workspace), out).resolve()}")
