"""Shards: the same artefact from shards that are made here, in processes, and after a kill; nothing of them remains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heedful.runner import run
from heedful.store.shard import SHARD_ROWS, Shard
from heedful.store.workspace import Workspace
from tests.small_shards import SIZE, Squares, made, small_shards

__all__ = ["small_shards"]
pytestmark = pytest.mark.usefixtures("small_shards")
FOUR = Squares(3 * SIZE + 5)


def test_a_recipe_has_shards_where_its_examples_exceed_one(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert Squares(SIZE).shards(workspace) == ()
    assert FOUR.shards(workspace) == tuple(Shard(FOUR, number, 4, SIZE) for number in range(4))
    assert Squares(100, limit=SIZE).shards(workspace) == ()
    assert SHARD_ROWS == 4096


def test_the_merged_table_has_all_rows_in_order_and_its_shards_are_deleted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    table = workspace.get(FOUR).table
    assert table["number"].tolist() == list(range(FOUR.count))
    assert table["square"].tolist() == [[n, n * n] for n in range(FOUR.count)]
    assert table["odd"].isna().sum() == SIZE
    assert [entry.recipe_class for entry in workspace.entries()] == ["Squares"]
    assert workspace.read_part(FOUR, 3)["number"].tolist() == list(range(3 * SIZE, FOUR.count))
    assert workspace.read_part(FOUR, 1, ["number"]).columns.tolist() == ["number"]


@pytest.mark.slow
def test_a_killed_run_makes_no_shard_twice(tmp_path: Path) -> None:
    doomed = Squares(FOUR.count, deadly=2 * SIZE)
    workspace = Workspace(tmp_path)
    program = (
        "import sys, tests.small_shards as own; from heedful.store import Workspace, shard; "
        f"shard.SHARD_ROWS = own.SIZE; Workspace(sys.argv[1]).get(own.{doomed})"
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
    workspace.ensure(Shard(FOUR, 1, 4, SIZE))
    other = Squares(3 * SIZE)
    workspace.ensure(Shard(other, 0, 3, SIZE))
    workspace.delete_leftovers()
    assert sorted(entry.name for entry in workspace.entries()) == sorted(
        [workspace.artefact_name(FOUR), workspace.artefact_name(Shard(other, 0, 3, SIZE))]
    )


def test_the_error_of_a_shard_is_that_of_the_recipe(tmp_path: Path) -> None:
    (outcome,) = run(Squares(FOUR.count, wrong=2 * SIZE), Workspace(tmp_path))
    assert outcome.error == "ZeroDivisionError: no square"
