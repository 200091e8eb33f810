"""The memory of corpora of 10 000, 100 000 and 1 000 000 short rows, which must not grow with the rows.

Run `python -m benchmarks.large_corpus [--rows 10000 100000 1000000] [--work attributions audit] [--minutes 2]`. Every
size is a process of its own: (a) the attribution table of `Gradient` over all rows with a tiny BERT, (b) the command
`heedful audit`. Printed are seconds and the largest resident memory of any process; exit code 1 if a size needs more
than MAX_GROWTH times the memory of the size before it.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_GROWTH = 1.2
WORDS = tuple(f"word{number}" for number in range(500))
CLASSES = ("NEGATIVE", "POSITIVE")
COLUMNS = ("text", "label")


def write_rows(path: Path, count: int) -> None:
    """Different texts of 4 to 9 words with a label each."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(count):
            words = draw.choices(WORDS, k=draw.randint(3, 8))
            writer.writerow((" ".join((*words, f"row{number}")), CLASSES[number % 2]))


def tabulate_attributions(model: str, table: str, workspace: str) -> None:
    """The attributions of all rows, stored in a workspace."""
    import torch

    from heedful.attributions.gradient import Gradient
    from heedful.data.evaluation_table import EvaluationTable, detect_columns
    from heedful.runner import run
    from heedful.store.workspace import Workspace
    from heedful.training.attribution_tables import AttributionTable
    from heedful.training.checkpoint import checkpoint

    torch.set_num_threads(1)
    corpus = EvaluationTable(table, detect_columns(table, outputs=CLASSES), limit=None)
    (*_, outcome) = run(AttributionTable(checkpoint(model, corpus), Gradient()), Workspace(Path(workspace)))
    if outcome.error is not None:
        sys.exit(outcome.error)


def measure(work: str, model: Path, table: Path, workspace: Path, minutes: float) -> tuple[float, float]:
    """Seconds, and megabytes of the largest process."""
    command = [sys.executable, "-m", "benchmarks.large_corpus", "--child", str(model), str(table), str(workspace)]
    if work == "audit":
        options = ["--minutes", str(minutes), "--workspace", str(workspace), "--out", str(workspace / "pages"), "-q"]
        program = "from heedful.cli import main; main()"
        command = [sys.executable, "-c", program, "audit", str(model), str(table), *options]
    program = (
        "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(json.dumps([done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True, text=True)
    code, kilobytes = json.loads(done.stdout)
    if code:
        sys.exit(f"{' '.join(command)} ended with {code}: {done.stderr[-2000:]}")
    return time.perf_counter() - start, kilobytes / 1024


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--work", nargs="+", default=["attributions", "audit"], choices=("attributions", "audit"))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        tabulate_attributions(*options.child)
        return
    from tests.given import save_untrained

    grown = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = save_untrained(folder / "tiny", WORDS, CLASSES)
        for work in options.work:
            before = 0.0
            for count in options.rows:
                table = folder / f"rows{count}.csv"
                write_rows(table, count)
                seconds, megabytes = measure(work, model, table, folder / f"{work}-{count}", options.minutes)
                growth = f", {megabytes / before:.2f} times the size before" if before else ""
                print(f"{work}: {count} rows in {seconds:.0f} s, at most {megabytes:.0f} MB{growth}", flush=True)
                grown += [f"{work} of {count} rows"] if before and megabytes > MAX_GROWTH * before else []
                before = megabytes
    if grown:
        sys.exit(f"memory grows with the rows: {', '.join(grown)}")


if __name__ == "__main__":
    main()
