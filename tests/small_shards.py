"""Recipes with shards of a few examples, here and in worker processes, which import this module."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import dataclass

import pandas as pd
import pytest

from heedful.store import shard
from heedful.store.recipe import Artefact, Recipe
from heedful.store.shard import ShardedRecipe
from heedful.store.workspace import MANIFEST, TABLE, Workspace
from tests.tiny import Sentences

SIZE = 16
if multiprocessing.parent_process() is not None:
    shard.SHARD_ROWS = SIZE


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 16 examples in this process."""
    monkeypatch.setattr(shard, "SHARD_ROWS", SIZE)


@dataclass(frozen=True)
class ShardedSentences(Sentences):
    """Sentences whose module, when it is imported in a worker process, makes shards small there, too."""


@dataclass(frozen=True)
class Squares(ShardedRecipe):
    """The squares of the first whole numbers.

    Args:
        deadly: the process that computes this number is killed, unless the file `survive` exists.
        wrong: this number cannot be squared.
    """

    count: int
    limit: int | None = None
    deadly: int | None = None
    wrong: int | None = None

    def count_examples(self, workspace: Workspace) -> int:
        return self.count

    def tabulate(self, workspace: Workspace, rows: range) -> Artefact:
        numbers = list(range(self.count))[rows.start : rows.stop]
        if self.wrong in numbers:
            raise ZeroDivisionError("no square")
        if self.deadly in numbers and not (workspace.root / "survive").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        with open(workspace.root / "made.txt", "a", encoding="utf-8") as file:
            file.write(f"{numbers[0]}\n")
        # A column without values has no type of its own in the first shard.
        odd = [None if number < SIZE else number for number in numbers]
        return Artefact(table=pd.DataFrame({"number": numbers, "square": [[n, n * n] for n in numbers], "odd": odd}))

    def make(self, workspace: Workspace) -> Artefact:
        shards = self.shards(workspace)
        tables = [part.table for part in self.parts(workspace, shards)]
        return Artefact(table=pd.DataFrame() if shards else tables[0], shards=shards)


def made(workspace: Workspace) -> list[int]:
    """The first number of each computed table, in the order of computation."""
    return [int(line) for line in (workspace.root / "made.txt").read_text(encoding="utf-8").split()]


def table_digest(recipe: Recipe, workspace: Workspace) -> object:
    """Size and SHA-256 of the table of an artefact."""
    return json.loads((workspace.root / workspace.artefact_name(recipe) / MANIFEST).read_bytes())[TABLE]
