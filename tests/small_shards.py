"""Recipes with shards of a few examples, here and in worker processes, which import this module."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass

import pandas as pd
import pytest

from heedful.store import shard
from heedful.store.artefact_files import MANIFEST
from heedful.store.recipe import Artefact, Recipe
from heedful.store.shard import ShardedRecipe
from heedful.store.workspace import Workspace
from tests.tiny import Sentences

SIZE = 16
SHARD_SIZE = "TEST_SHARD_ROWS"
"""Environment variable: the examples of a shard in worker processes."""
if multiprocessing.parent_process() is not None:
    shard.BLOCK_ROWS, shard.SHARD_ROWS = SIZE, int(os.environ.get(SHARD_SIZE, SIZE))


def set_shards(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Blocks of 16 examples and shards of so many, a multiple, in this process and in workers."""
    monkeypatch.setattr(shard, "BLOCK_ROWS", SIZE)
    monkeypatch.setattr(shard, "SHARD_ROWS", rows)
    monkeypatch.setenv(SHARD_SIZE, str(rows))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and shards of 16 examples."""
    set_shards(monkeypatch, SIZE)


@dataclass(frozen=True)
class ShardedSentences(Sentences):
    """Sentences whose module, when it is imported in a worker process, makes shards small there, too."""


@dataclass(frozen=True)
class Squares(ShardedRecipe):
    """The squares of the first whole numbers.

    Args:
        deadly: the process that computes this number is killed, unless the file `survive` exists.
        wrong: this number cannot be squared.
        together: wait until two processes compute at the same time.
    """

    count: int
    limit: int | None = None
    deadly: int | None = None
    wrong: int | None = None
    together: bool = False

    def count_examples(self, workspace: Workspace) -> int:
        return self.count

    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        numbers = list(range(self.count))[block.start : block.stop]
        if self.wrong in numbers:
            raise ZeroDivisionError("no square")
        if self.deadly in numbers and not (workspace.root / "survive").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        with open(workspace.root / "made.txt", "a", encoding="utf-8") as file:
            file.write(f"{numbers[0]} {os.getpid()}\n")
        end = time.monotonic() + 60
        while self.together and len(makers(workspace)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        # A column without values has no type of its own in the first shard, and holds fractions in the second.
        odd = [None if number <= SIZE else number for number in numbers]
        table = pd.DataFrame({"number": numbers, "square": [[n, n * n] for n in numbers], "odd": odd})
        return Artefact(table=table, notes={"n": len(table)})

    def make(self, workspace: Workspace) -> Artefact:
        shards = self.shards(workspace)
        *_, last = self.parts(workspace, shards)
        return Artefact(shards=shards) if shards else last


def made(workspace: Workspace) -> list[int]:
    """The first number of each computed table, in the order of computation."""
    lines = (workspace.root / "made.txt").read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines]


def makers(workspace: Workspace) -> set[int]:
    """The processes that computed tables."""
    lines = (workspace.root / "made.txt").read_text(encoding="utf-8").splitlines()
    return {int(line.split()[1]) for line in lines}


def file_digests(recipe: Recipe, workspace: Workspace) -> dict[str, object]:
    """Size and SHA-256 of each file of an artefact."""
    manifest: dict[str, object] = json.loads((workspace.root / workspace.artefact_name(recipe) / MANIFEST).read_bytes())
    return manifest
