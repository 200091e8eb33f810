"""Shards: the same artefact from shards that are made here, in processes, and after a kill; nothing of them remains."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from heedful.execution.outcome import WORKER_DIED, Outcome, attempt
from heedful.execution.runner import run
from heedful.store.recipe import Resources
from heedful.store.shard import BLOCK_ROWS, SHARD_ROWS, Shard
from heedful.store.workspace import Workspace
from tests.small_shards import SIZE, Squares, made, makers, small_shards

__all__ = ["small_shards"]
pytestmark = pytest.mark.usefixtures("small_shards")
FOUR = Squares(3 * SIZE + 5)


def test_a_recipe_has_shards_where_its_examples_exceed_one(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert Squares(SIZE).shards(workspace) == ()
    assert FOUR.shards(workspace) == tuple(Shard(FOUR, number, FOUR.count, SIZE) for number in range(4))
    assert Squares(100, limit=SIZE).shards(workspace) == ()
    assert (BLOCK_ROWS, SHARD_ROWS) == (4096, 4096)


def test_the_merged_table_has_all_rows_in_order_and_its_shards_are_deleted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    table = workspace.get(FOUR).table
    assert table["number"].tolist() == list(range(FOUR.count))
    assert table["square"].tolist() == [[n, n * n] for n in range(FOUR.count)]
    assert table["odd"].isna().sum() == SIZE + 1
    assert table["odd"].tolist()[SIZE + 1 :] == list(range(SIZE + 1, FOUR.count))
    assert [entry.recipe_class for entry in workspace.entries()] == ["Squares"]
    assert workspace.read_block(FOUR, 3)["number"].tolist() == list(range(3 * SIZE, FOUR.count))
    assert workspace.read_block(FOUR, 1, ["number"]).columns.tolist() == ["number"]


@pytest.mark.slow
def test_a_killed_run_makes_no_shard_twice(tmp_path: Path) -> None:
    doomed = Squares(FOUR.count, deadly=2 * SIZE)
    workspace = Workspace(tmp_path)
    program = (
        "import sys, tests.small_shards as own; from heedful.store import Workspace, shard; "
        f"shard.BLOCK_ROWS = shard.SHARD_ROWS = own.SIZE; Workspace(sys.argv[1]).get(own.{doomed})"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -9
    assert [entry.kind for entry in workspace.entries()] == ["shard", "shard"]
    (tmp_path / "survive").touch()
    run(doomed, workspace)
    assert made(workspace) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    assert workspace.get(doomed).table["number"].tolist() == list(range(FOUR.count))


def test_shards_that_a_killed_process_left_beside_the_whole_are_deleted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.get(FOUR)
    workspace.ensure(Shard(FOUR, 1, FOUR.count, SIZE))
    other = Squares(3 * SIZE)
    workspace.ensure(Shard(other, 0, other.count, SIZE))
    workspace.delete_leftovers()
    assert sorted(entry.name for entry in workspace.entries()) == sorted(
        [workspace.artefact_name(FOUR), workspace.artefact_name(Shard(other, 0, other.count, SIZE))]
    )


@pytest.mark.slow
def test_workers_make_the_shards_of_one_recipe_at_the_same_time(tmp_path: Path) -> None:
    workspace, recipe = Workspace(tmp_path), replace(FOUR, together=True)
    (outcome,) = run(recipe, workspace, where="pool", workers=2)
    assert outcome.error is None
    assert sorted(made(workspace)) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    assert len(makers(workspace)) == 2
    assert os.getpid() not in makers(workspace)
    assert workspace.get(recipe).table["number"].tolist() == list(range(FOUR.count))
    assert [entry.recipe_class for entry in workspace.entries()] == ["Squares"]


@pytest.mark.slow
def test_a_shard_that_fails_or_kills_its_workers_fails_its_recipe_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    wrong, deadly = replace(FOUR, wrong=SIZE), replace(FOUR, deadly=3 * SIZE)
    errors = {
        outcome.recipe: outcome.error for outcome in run([wrong, deadly, FOUR], workspace, where="pool", workers=2)
    }
    assert errors == {wrong: "ZeroDivisionError: no square", deadly: WORKER_DIED, FOUR: None}
    (tmp_path / "survive").touch()
    (tmp_path / "made.txt").unlink()
    (outcome,) = run(deadly, workspace)
    assert outcome.error is None
    assert made(workspace) == [3 * SIZE]


def test_the_error_of_a_shard_is_that_of_the_recipe(tmp_path: Path) -> None:
    (outcome,) = run(Squares(FOUR.count, wrong=2 * SIZE), Workspace(tmp_path))
    assert outcome.error == "ZeroDivisionError: no square"


def test_a_worker_names_the_shards_that_are_missing_and_makes_the_recipe_when_there_is_at_most_one(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    assert attempt(FOUR, workspace, split=True).shards == FOUR.shards(workspace)
    for number in range(3):
        assert not workspace.has(FOUR)
        workspace.ensure(FOUR.shards(workspace)[number])
        assert len(FOUR.find_missing_shards(workspace)) == 3 - number
    assert attempt(FOUR, workspace, split=True) == Outcome(FOUR)
    assert workspace.has(FOUR)
    assert FOUR.find_missing_shards(workspace) == ()
    assert attempt(Squares(SIZE), workspace, split=True) == Outcome(Squares(SIZE))


def test_a_shard_takes_what_its_recipe_takes(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Wide(Squares):
        @property
        def resources(self) -> Resources:
            return Resources(cpus=3.0)

    assert Wide(100).shards(Workspace(tmp_path))[0].resources == Resources(cpus=3.0)


def test_a_corpus_without_texts_is_one_line(tmp_path: Path) -> None:
    (outcome,) = run(Squares(0), Workspace(tmp_path))
    assert outcome.error == "Squares has no texts: its split of the corpus is empty; choose another one"
    assert outcome.traceback_file is None


def test_shards_that_cannot_be_deleted_do_not_disturb_finished_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only disk."""
    workspace = Workspace(tmp_path)
    workspace.get(FOUR)
    workspace.ensure(Shard(FOUR, 1, FOUR.count, SIZE))

    def refuse(source: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    assert [outcome.error for outcome in run(FOUR, workspace)] == [None]
    assert len(workspace.entries()) == 2
