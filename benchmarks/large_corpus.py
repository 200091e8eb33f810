"""The memory of corpora of 10 000, 100 000 and 1 000 000 short rows, which must not grow with the rows.

Run `python -m benchmarks.large_corpus [--rows 10000 100000 1000000] [--work attributions audit] [--minutes 2]`. Every
size is a process of its own:

- `attributions`: the attribution table of `Gradient` over all rows with a tiny BERT;
- `audit`: the command `heedful audit`;
- `read`: a table in each of `--formats` alone, read twice;
- `report`: the command `heedful report` on invented scores of three methods and permutations of all rows;
- `trials`: agreement, faithfulness and permutation of all rows.

Printed are seconds, the largest resident memory of any process, and that of the largest process at ten moments of the
run. Exit code 1 if a size needs more than MAX_GROWTH times the memory of the smallest, except for reports and trials:
some columns of the tables of trials are in memory for summaries, and all of them for charts. Within that are 18 to 34
bytes per row while a file is read. On Linux.
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
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.shard import ShardedRecipe
from heedful.store.workspace import Workspace

MAX_GROWTH = 1.25
MOMENTS = 10
SAMPLE_SECONDS = 0.5
WORDS = tuple(f"word{number}" for number in range(500))
CLASSES = ("NEGATIVE", "POSITIVE")
COLUMNS = ("id", "text", "label")
FORMATS = ("csv", "csv.gz", "jsonl", "jsonl.gz", "parquet")
WORK = ("attributions", "audit", "read", "report", "trials")
MAY_GROW = ("report", "trials")
MEGABYTE = 2**20
MODULE = (sys.executable, "-m", "benchmarks.large_corpus")


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
    from heedful.data import EvaluationTable, detect_columns

    examples = EvaluationTable(table, detect_columns(table, outputs=CLASSES), limit=None).read(Path())["test"]
    for _ in range(2):
        assert sum(1 for _ in examples) == len(examples)


def make_recipes(work: str, model: str, table: str, workspace: str) -> None:
    """The attributions of all rows, or three trials on them, stored in a workspace."""
    import torch

    from heedful.attributions.attention import RawAttention
    from heedful.attributions.gradient import Gradient
    from heedful.data import EvaluationTable, detect_columns
    from heedful.execution.runner import run
    from heedful.training.attribution_tables import AttributionTable
    from heedful.training.checkpoint import checkpoint
    from heedful.trials.agreement import Agreement
    from heedful.trials.faithfulness import Faithfulness
    from heedful.trials.permutation import Permutation

    torch.set_num_threads(1)
    subject = checkpoint(model, EvaluationTable(table, detect_columns(table, outputs=CLASSES), limit=None))
    recipes: tuple[Recipe, ...] = (AttributionTable(subject, Gradient()),)
    if work == "trials":
        few = Faithfulness(subject, (Gradient(),), steps=2, samples=2)
        recipes = (Agreement(subject, (RawAttention(), Gradient())), few, Permutation(subject, permutations=5))
    for outcome in run(recipes, Workspace(Path(workspace))):
        if outcome.error is not None:
            sys.exit(outcome.error)


@dataclass(frozen=True)
class InventedModel(Recipe):
    """A model that nobody trained."""

    kind: ClassVar[str] = "model"

    def make(self, workspace: Workspace) -> Artefact:
        """Its classes."""
        return Artefact(notes={"classes": [*CLASSES]})

    def describe(self) -> dict[str, Json]:
        """As a trained one."""
        return {"corpus": "rows", "encoder": "bilstm", "attention": "additive", "seed": 0, "quick": False}


@dataclass(frozen=True)
class InventedTable(ShardedRecipe):
    """Scores of a method, or permutations, drawn at random."""

    subject: InventedModel
    count: int
    limit: int | None = None

    def count_examples(self, workspace: Workspace) -> int:
        """All."""
        return self.count

    def make(self, workspace: Workspace) -> Artefact:
        """From its shards."""
        shards = self.shards(workspace)
        last = Artefact()
        for last in self.parts(workspace, shards):  # noqa: B007 - no part is kept
            pass
        return Artefact(shards=shards, notes={"n": self.count, "of": self.count}) if shards else last

    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        """Texts of six words."""
        places = [*block][: max(0, self.count - block.start)]
        draw = np.random.default_rng(block.start)
        columns = {"uid": [f"id-{row}" for row in places], "predicted": [row % 2 for row in places]}
        table = pd.DataFrame({**columns, **self.columns(draw, len(places))})
        return Artefact(table=table, notes={"n": len(places), "of": self.count})

    @abstractmethod
    def columns(self, draw: np.random.Generator, count: int) -> dict[str, list[object]]:
        """All other columns of so many texts."""


@dataclass(frozen=True)
class InventedScores(InventedTable):
    """As of an `AttributionTable`."""

    kind: ClassVar[str] = "attributions"
    method: str = "attention"

    def describe(self) -> dict[str, Json]:
        """As an `AttributionTable`."""
        return {**self.subject.describe(), "method": self.method, "split": "test", "limit": None}

    def columns(self, draw: np.random.Generator, count: int) -> dict[str, list[object]]:
        """Units, scores and what else there is."""
        lists = {"scored": [True] * 6, "words": [*range(6)], "segments": [0] * 6}
        return {
            "units": draw.choice(WORDS, (count, 6)).tolist(),
            "scores": draw.random((count, 6)).tolist(),
            "probability": draw.random(count).tolist(),
            "label": draw.integers(0, 2, count).tolist(),
            **{name: [value] * count for name, value in lists.items()},
        }


@dataclass(frozen=True)
class InventedPermutation(InventedTable):
    """As of `Permutation`, with its summary."""

    kind: ClassVar[str] = "trial"

    def describe(self) -> dict[str, Json]:
        """As `Permutation`."""
        return {**self.subject.describe(), "trial": "permutation", "paper": "jain-wallace"}

    def columns(self, draw: np.random.Generator, count: int) -> dict[str, list[object]]:
        """Changes of the output."""
        numbers = {name: draw.random(count).tolist() for name in ("maximum_attention", "median_change")}
        return {"length": [6] * count, **numbers}

    def summarize(self, artefact: Artefact) -> pd.DataFrame:
        """Of one text in a thousand: the report shows it, and does not compute it."""
        from heedful.trials.permutation import Permutation

        return Permutation.summary(self.tabulate(Workspace("unused"), range(self.count // 1000)).table)


def invent(rows: int, workspace: str) -> None:
    """A workspace for a report."""
    from heedful.execution.runner import run

    model = InventedModel()
    scores = [InventedScores(model, rows, method=name) for name in ("attention", "gradient", "leave-one-out")]
    for outcome in run([*scores, InventedPermutation(model, rows)], Workspace(workspace)):
        if outcome.error is not None:
            sys.exit(outcome.error)


def family(process: int) -> list[int]:
    """A process and all that descend from it, on Linux."""
    with suppress(OSError):  # it has just ended
        files = Path(f"/proc/{process}/task").glob("*/children")
        children = [int(child) for file in files for child in file.read_text().split()]
        return [process, *(descendant for child in children for descendant in family(child))]
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
    return seconds, max(samples), [samples[index] for index in places]


def command_line(work: str, model: Path, table: Path, workspace: Path, minutes: float) -> list[str]:
    """What is measured, as a command."""
    if work == "audit":
        options = ["--minutes", str(minutes), "--workspace", str(workspace), "--out", str(workspace / "pages"), "-q"]
        return [sys.executable, "-c", "from heedful.cli import main; main()", "audit", str(model), str(table), *options]
    if work == "report":
        options = ["--workspace", str(workspace), "--out", str(workspace / "pages")]
        return [sys.executable, "-c", "from heedful.cli import main; main()", "report", *options]
    return [*MODULE, "--child", work, str(model), str(table), str(workspace)]


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--work", nargs="+", default=["attributions", "audit"], choices=WORK)
    parser.add_argument("--formats", nargs="+", default=["csv"], choices=FORMATS)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--child", nargs=4)
    parser.add_argument("--invent", nargs=2)
    options = parser.parse_args()
    if options.invent:
        invent(int(options.invent[0]), options.invent[1])
        return
    if options.child:
        work, *places = options.child
        read_table(places[1]) if work == "read" else make_recipes(work, *places)
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
                    if work == "report":
                        watch([*MODULE, "--invent", str(count), str(folder / f"{work}-{ending}-{count}")])
                    seconds, largest, line = watch(given)
                    smallest = smallest or largest
                    over_time = " ".join(f"{megabytes:.0f}" for megabytes in line)
                    print(
                        f"{work} of {count} rows ({ending}): {seconds:.0f} s, at most {largest:.0f} MB, "
                        f"{largest / smallest:.2f} times the first; over time {over_time}",
                        flush=True,
                    )
                    is_flat = largest <= MAX_GROWTH * smallest or work in MAY_GROW
                    grown += [] if is_flat else [f"{work} of {count} rows ({ending})"]
    if grown:
        sys.exit(f"memory grows with the rows: {', '.join(grown)}")


if __name__ == "__main__":
    main()
