"""The memory of corpora of 10 000, 100 000 and 1 000 000 short rows, which must not grow with the rows.

Run `python -m benchmarks.large_corpus [--rows 10000 100000 1000000] [--work attributions audit] [--minutes 2]`. Every
size is a process of its own: (a) the attribution table of `Gradient` over all rows with a tiny BERT, (b) the command
`heedful audit`. Printed are seconds, the largest resident memory of any process, and the memory of the largest process
at ten moments of the run; exit code 1 if a size needs more than MAX_GROWTH times the memory of the smallest. What may
grow, and is within that, are 18 to 34 bytes per row while a file is read.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

MAX_GROWTH = 1.25
MOMENTS = 10
SAMPLE_SECONDS = 0.5
WORDS = tuple(f"word{number}" for number in range(500))
CLASSES = ("NEGATIVE", "POSITIVE")
COLUMNS = ("id", "text", "label")
FORMATS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet")
WORK = ("attributions", "audit", "read")
MEGABYTE = 2**20


def rows(count: int) -> Iterator[tuple[str, str, str]]:
    """Different texts of 4 to 9 words with an id and a label each."""
    draw = random.Random(0)
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randint(3, 8))
        yield f"id-{number}", " ".join((*words, f"row{number}")), CLASSES[number % 2]


def write_rows(path: Path, count: int) -> None:
    """A table in the format that its name says."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        schema = pyarrow.schema([(name, pyarrow.string()) for name in COLUMNS])
        left = rows(count)
        with pyarrow.parquet.ParquetWriter(path, schema) as file:
            while part := list(islice(left, 10_000)):
                file.write_table(pyarrow.table(list(zip(*part, strict=True)), schema=schema))
        return
    with gzip.open(path, "wb", 1) if path.suffix == ".gz" else path.open("wb") as raw, io.TextIOWrapper(raw) as file:
        if ".csv" in path.suffixes:
            csv.writer(file).writerows([COLUMNS])
            csv.writer(file).writerows(rows(count))
        else:
            file.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows(count))


def read_table(table: str) -> None:
    """Read all rows of a table, and look at each of them twice."""
    from heedful.data.evaluation_table import EvaluationTable, detect_columns

    examples = EvaluationTable(table, detect_columns(table, outputs=CLASSES), limit=None).read(Path())["test"]
    for _ in range(2):
        assert sum(1 for _ in examples) == len(examples)


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


def family(process: int) -> list[int]:
    """A process and all that descend from it, on Linux."""
    with suppress(OSError):  # it has just ended
        files = Path(f"/proc/{process}/task").glob("*/children")
        children = [int(child) for file in files for child in file.read_text().split()]
        return [process, *(each for child in children for each in family(child))]
    return []


def resident_megabytes(process: int) -> float:
    """The resident memory of a process; 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / MEGABYTE
    return 0.0


def watch(command: Sequence[str]) -> tuple[float, float, list[float]]:
    """Seconds, megabytes of the largest process at its largest, and at moments of equal distance."""
    start, samples = time.perf_counter(), []
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            found = max(map(resident_megabytes, family(process.pid)), default=0.0)
            samples += [found] if found else []
            time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - start
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)} ended with {process.returncode}: {errors.read().decode()[-2000:]}")
    places = [round(moment * (len(samples) - 1) / MOMENTS) for moment in range(1, MOMENTS + 1)]
    return seconds, max(samples), [samples[place] for place in places]


def command_line(work: str, model: Path, table: Path, workspace: Path, minutes: float) -> list[str]:
    """What is measured, as a command."""
    if work == "audit":
        options = ["--minutes", str(minutes), "--workspace", str(workspace), "--out", str(workspace / "pages"), "-q"]
        return [sys.executable, "-c", "from heedful.cli import main; main()", "audit", str(model), str(table), *options]
    return [sys.executable, "-m", "benchmarks.large_corpus", "--child", work, str(model), str(table), str(workspace)]


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--work", nargs="+", default=["attributions", "audit"], choices=WORK)
    parser.add_argument("--formats", nargs="+", default=["csv"], choices=FORMATS)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        work, *places = options.child
        read_table(places[1]) if work == "read" else tabulate_attributions(*places)
        return
    from tests.given import save_untrained

    grown = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = save_untrained(folder / "tiny", WORDS, CLASSES)
        for work in options.work:
            for ending in options.formats:
                smallest = 0.0
                for count in options.rows:
                    table = folder / f"rows{count}.{ending}"
                    if not table.exists():
                        write_rows(table, count)
                    given = command_line(work, model, table, folder / f"{work}-{ending}-{count}", options.minutes)
                    seconds, largest, line = watch(given)
                    smallest = smallest or largest
                    over_time = " ".join(f"{each:.0f}" for each in line)
                    print(
                        f"{work} of {count} rows ({ending}): {seconds:.0f} s, at most {largest:.0f} MB, "
                        f"{largest / smallest:.2f} times the first; over time {over_time}",
                        flush=True,
                    )
                    grown += [f"{work} of {count} rows ({ending})"] if largest > MAX_GROWTH * smallest else []
    if grown:
        sys.exit(f"memory grows with the rows: {', '.join(grown)}")


if __name__ == "__main__":
    main()
