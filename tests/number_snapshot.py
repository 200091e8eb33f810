"""Write the summaries of every trial and of two audits to a file, or compare two such files number by number.

A restructuring must not move a number. Write a snapshot before and after it, then compare the two:

    python -m tests.number_snapshot write before.json
    python -m tests.number_snapshot compare before.json after.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

from benchmarks.planted_audits import MODELS, audit_planted
from heedful.store.workspace import Workspace
from tests.trials.test_trials import TRIALS

AUDITS = ("decorative", "shortcut")
SEED, TEXTS = 2, 28

UNSTABLE = ("reason", "seconds_per_text")
"""Columns of an audit that are prose or depend on the clock."""

Numbers = dict[str, object]


def snapshot() -> Numbers:
    """The summaries of all trials on tiny subjects and the statistics of two planted audits."""
    numbers: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        for name, trial in TRIALS.items():
            summary = workspace.get(trial).summary.sort_values(["metric", "method", "subset"])
            for row in summary.to_dict("records"):
                key = f"{name}/{row['metric']}/{row['method']}/{row['subset']}"
                numbers |= {f"{key}/{field}": row[field] for field in ("value", "low", "high", "n")}
    for name in AUDITS:
        (audit,) = audit_planted(MODELS[name](SEED), SEED, (TEXTS,))
        for answers in audit.to_frame().to_dict("records"):
            method = answers.pop("method")
            numbers |= {f"audit {name}/{method}/{field}": answers[field] for field in answers if field not in UNSTABLE}
        for row in audit.measurements_frame().to_dict("records"):
            key = f"audit {name}/{row['method']}/{row['metric']}/{row['subset']}"
            numbers |= {f"{key}/{field}": row[field] for field in ("value", "low", "high", "null", "n")}
    return numbers


def differences(before: Numbers, after: Numbers) -> list[str]:
    """Every key whose value differs, is missing or is new; NaN equals NaN."""
    lines = []
    for key in sorted({*before, *after}):
        old, new = before.get(key, "missing"), after.get(key, "missing")
        both_nan = isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new)
        if old != new and not both_nan:
            lines.append(f"{key}: {old} -> {new}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "write":
        arguments.files[0].write_text(json.dumps(snapshot(), indent=1, default=float))
        return
    before, after = (json.loads(path.read_text()) for path in arguments.files)
    lines = differences(before, after)
    sys.stdout.write("\n".join([*lines, f"{len(before)} numbers before, {len(after)} after, {len(lines)} differ", ""]))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
