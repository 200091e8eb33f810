"""Run by test_workspace_kill: forks children that make artefacts, and kills them at chosen moments.

One process imports once and has one thread, so that a hundred forks are quick and safe. It writes its observations to
standard output as JSON; the test checks them.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pandas
import torch

from heedful.progress import StepCallback
from heedful.store.artefact_files import CorruptArtefactWarning
from heedful.store.recipe import Artefact, Recipe, canonical_json, derive_seed, json_digest
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification

if TYPE_CHECKING:
    from _typeshed import TraceFunction


@dataclass(frozen=True)
class Steps(Recipe):
    """Adds up numbers in steps that it keeps as partial work, as a training does with epochs."""

    count: int = 3
    size: int = 1000

    def make(self, workspace: Workspace) -> Artefact:
        folder = workspace.partial_folder(self)
        done = [int(file.stem) for file in folder.glob("*.done")]
        for step in range(len(done), self.count):
            (folder / f"{step}.new").write_text("finished")
            (folder / f"{step}.new").rename(folder / f"{step}.done")
        weights = torch.randn(self.size, generator=torch.Generator().manual_seed(self.count))
        table = pandas.DataFrame({"step": range(self.count), "words": [["a"] * n for n in range(self.count)]})
        return Artefact({"weights": weights}, table, {"steps": len(list(folder.glob("*.done")))})


@dataclass(frozen=True)
class Whole(Recipe):
    parts: tuple[Steps, ...]

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact({str(part.count): workspace.get(part).tensors["weights"] for part in self.parts})


def digest(artefact: Artefact) -> str:
    """A hash of the whole content of an artefact."""
    tensors = {name: sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in artefact.tensors.items()}
    rest = [artefact.table.to_dict("records"), dict(artefact.notes)]
    return sha256(json.dumps([tensors, rest], sort_keys=True).encode()).hexdigest()


def in_child(work: Callable[[], object]) -> int:
    """The process id of a fork that does this work and exits."""
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # no orphan waits for ever if a lock fails
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ending(child: int) -> int:
    """Exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(line: int, work: Callable[[], object]) -> Callable[[], object]:
    """The work, killed before it runs the line with this number, counted over what changes the disk."""
    left = line

    def watch(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal left
        if frame.f_code.co_name not in {
            "_hold_lock",
            "partial_folder",
            "_make",
            "delete_leftovers",
            "write_artefact",
            "_publish",
        }:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return watch

    def watched() -> None:
        sys.settrace(watch)
        work()
        sys.settrace(None)

    return watched


def aftermath(root: Path, recipe: Recipe) -> dict[str, object]:
    """What a kill left on disk, and the result of an undisturbed rerun."""
    workspace = Workspace(root, data_dir=root)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CorruptArtefactWarning)
        left = [found.load() and found.name for found in workspace.entries()]
        rerun = digest(workspace.get(recipe))
        again = [found.load() and found.name for found in workspace.entries()]
    leftovers = [f"{hidden}/{each.name}" for hidden in (".staging", ".partial") for each in _listed(root / hidden)]
    return {"left": left, "rerun": rerun, "finished": again, "leftovers": leftovers}


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def every_line(root: Path) -> object:
    """Kill at each line of ours in turn until a child gets through."""
    recipe, seen, line = Steps(), [], 0
    expected = digest(Workspace(root / "undisturbed", data_dir=root).get(recipe))
    while True:
        place = root / str(line)
        end = ending(in_child(dying_at(line, partial(Workspace(place, data_dir=root).get, recipe))))
        seen.append(aftermath(place, recipe) | {"end": end})
        if end == 0:
            return {"expected": expected, "seen": seen}
        line += 1


def random_moments(root: Path) -> object:
    """Kill after random times, most of which fall into the writing of two large files."""
    recipe, seen, chance = Whole((Steps(1, 1_000_000), Steps(2, 1_000_000))), [], random.Random(7)
    start = time.perf_counter()
    expected = digest(Workspace(root / "undisturbed", data_dir=root).get(recipe))
    duration = time.perf_counter() - start
    for number in range(10):
        reader, writer = os.pipe()
        child = in_child(partial(Workspace(root / str(number), data_dir=root).get, recipe))
        os.close(writer)
        select.select([reader], [], [], chance.uniform(0.0, duration))
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        seen.append({"end": ending(child)} | aftermath(root / str(number), recipe))
    return {"expected": expected, "seen": seen}


class AnnouncedWaits:
    """A progress that writes to a pipe when a process waits for the lock."""

    def __init__(self, writer: int) -> None:
        self.writer = writer

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        assert title.startswith("waiting for another process that makes Contested-"), title
        os.write(self.writer, b"w")
        yield lambda advance=1, note="": None


@dataclass(frozen=True)
class Contested(Recipe):
    """Finishes only when all other processes wait for it."""

    reader: int
    others: int

    def make(self, workspace: Workspace) -> Artefact:
        with (workspace.data_dir / "makers").open("a") as file:
            file.write("m")
        for _ in range(self.others):
            os.read(self.reader, 1)
        return Artefact(notes={"maker": os.getpid()})


def race(root: Path) -> object:
    """Four processes ask for one artefact at the same time."""
    reader, writer = os.pipe()
    recipe = Contested(reader, others=3)

    def run() -> None:
        notes = Workspace(root / "work", data_dir=root, progress=AnnouncedWaits(writer)).get(recipe).notes
        (root / f"{os.getpid()}.saw").write_text(str(notes["maker"]))

    children = [in_child(run) for _ in range(4)]
    ends = [ending(child) for child in children]
    saw = sorted({(root / f"{child}.saw").read_text() for child in children})
    return {"ends": ends, "saw": saw, "children": children, "makers": (root / "makers").read_text()}


def fingerprints(root: Path) -> object:
    """What must not depend on Python's hash seed (the test sets one)."""
    return [json_digest(canonical_json(MulticlassClassification(3), root)), derive_seed(3, "r-1")]


def unpickling(root: Path) -> object:
    """Classes that any unpickler looked up while an artefact was written and read."""
    found: list[str] = []
    sys.addaudithook(lambda event, _: found.append(event) if event == "pickle.find_class" else None)
    for _ in range(2):
        Workspace(root, data_dir=root).get(Whole((Steps(),)))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Flushing protects against a power cut, not against a kill, and would take most of the time.
    setattr(os, "fsync", lambda descriptor: None)  # noqa: B010
    results = {}
    for scene in (every_line, random_moments, race, fingerprints, unpickling):
        (place := Path(sys.argv[1]) / scene.__name__).mkdir()
        results[scene.__name__] = scene(place)
    sys.stdout.write(json.dumps(results))
