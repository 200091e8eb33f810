"""What the minutes of an audit are worth: is the budget kept, and does the answer depend on the clock?

Run `python -m benchmarks.audit_minutes FOLDER MODEL DATA [OPTION ...]` on a machine that does nothing else. It audits
the same model and data in 5 minutes, in 5 minutes beside two busy processes, and in 15 minutes, each in a new workspace
in FOLDER, and prints a line per audit and every contradiction: a method that may be shown by one of them and not by
another. Options after the data go to `heedful audit`. An audit that is in FOLDER is not run again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heedful.audits.audit_result import Audit
from heedful.results import Decision

BUSY_LOOP = "while True: pass"
REFUSED = (Decision.HIDE, Decision.MISLEADING, Decision.BEATEN, Decision.NOT_ALONE)


@dataclass(frozen=True)
class Budget:
    """A time budget, and the processes that keep the machine busy beside the audit."""

    name: str
    minutes: int
    busy: int = 0


BUDGETS = (Budget("idle", 5), Budget("busy", 5, busy=2), Budget("long", 15))


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """Processes that only count."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_audit(folder: Path, budget: Budget, sources: Sequence[str]) -> Audit:
    """The audit of a budget; its minutes on the clock are in the file `minutes` of its folder."""
    pages = folder / budget.name
    if not (pages / "minutes").is_file():
        command = [sys.executable, "-m", "heedful", "audit", *sources, "--minutes", str(budget.minutes)]
        command += ["--workspace", str(folder / f"{budget.name}-workspace"), "--out", str(pages)]
        with busy_machine(budget.busy), (folder / f"{budget.name}.log").open("w") as log:
            start = time.monotonic()
            subprocess.run(command, check=True, stdout=log, stderr=log)
            (pages / "minutes").write_text(f"{(time.monotonic() - start) / 60:.2f}")
    return Audit.from_json((pages / "audit.json").read_text(encoding="utf-8"))


def main(folder: Path, sources: Sequence[str]) -> None:
    """Run all audits and print them side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    audits = {budget.name: run_audit(folder, budget, sources) for budget in BUDGETS}
    for budget in BUDGETS:
        result, minutes = audits[budget.name], (folder / budget.name / "minutes").read_text()
        judged = [method for method in result.methods if method.decision is not None]
        sys.stdout.write(
            f"{budget.name}: {budget.minutes} minutes, took {minutes}; {result.data.texts} {result.data.noun}, "
            f"{len(judged)} methods, {60 * float(minutes) / result.data.texts:.1f} s per text\n"
        )
        for method in judged:
            share = f"{method.achievable:.0%} ({method.achievable_low:.0%} to {method.achievable_high:.0%})"
            sys.stdout.write(f"  {method.name:24} {share:22} {method.decision.value if method.decision else ''}\n")
    for name in {method.name for result in audits.values() for method in result.methods}:
        decisions = {
            budget: method.decision
            for budget, result in audits.items()
            for method in result.methods
            if method.name == name
        }
        if Decision.SHOW in decisions.values() and set(decisions.values()) & set(REFUSED):
            found = ", ".join(f"{budget}: {decision.value}" for budget, decision in decisions.items() if decision)
            sys.stdout.write(f"contradiction: {name} ({found})\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
