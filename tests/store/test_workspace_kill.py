"""Killed and racing processes: a rerun equals the undisturbed run bit for bit. kill_points.py does the killing."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

import pytest
import torch
from pandas.testing import assert_frame_equal

from heedful.store.recipe import Artefact, Recipe, canonical_json, json_digest
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification
from heedful.trials.permutation import Permutation
from tests.tiny import subject

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="forks")]


class Seen(TypedDict):
    end: int
    left: list[str]
    rerun: str
    finished: list[str]
    leftovers: list[str]


class Killed(TypedDict):
    expected: str
    seen: list[Seen]


class Race(TypedDict):
    ends: list[int]
    saw: list[str]
    children: list[int]
    makers: str


class Observed(TypedDict):
    every_line: Killed
    random_moments: Killed
    race: Race
    fingerprints: list[str | int]
    unpickling: list[str]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    script, root = Path(__file__).parents[1] / "kill_points.py", tmp_path_factory.mktemp("kill")
    run = subprocess.run(
        [sys.executable, str(script), str(root)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONHASHSEED": "4242"},
    )
    assert run.returncode == 0, run.stderr
    answer: Observed = json.loads(run.stdout)
    return answer


def test_a_kill_before_any_line_never_leaves_an_incomplete_artefact(observed: Observed) -> None:
    seen = observed["every_line"]["seen"]
    assert len(seen) > 40
    assert {each["end"] for each in seen[:-1]} == {-9}
    assert seen[-1]["end"] == 0
    assert {each["rerun"] for each in seen} == {observed["every_line"]["expected"]}
    assert {len(each["finished"]) for each in seen} == {1}


def test_a_kill_leaves_nothing_before_the_rename_and_everything_after_it(observed: Observed) -> None:
    seen = observed["every_line"]["seen"]
    there = [len(each["left"]) for each in seen]
    assert there == sorted(there)
    assert set(there) == {0, 1}
    # Only a process killed between rename and clearing up leaves partial work, for the next make to sweep up.
    assert all(not each["leftovers"] for each in seen if not each["left"])
    assert all(leftovers.startswith(".partial/Steps-") for each in seen for leftovers in each["leftovers"])


def test_a_rerun_completes_a_large_write_that_was_killed(observed: Observed) -> None:
    seen = observed["random_moments"]["seen"]
    assert {each["rerun"] for each in seen} == {observed["random_moments"]["expected"]}
    assert [len(each["finished"]) for each in seen] == [3] * 10
    assert sum(each["end"] == -9 and len(each["left"]) < 3 for each in seen) >= 3


def test_of_racing_processes_one_makes_the_artefact_and_the_others_wait(observed: Observed) -> None:
    race = observed["race"]
    assert race["ends"] == [0, 0, 0, 0]
    assert race["makers"] == "m"
    assert len(race["saw"]) == 1
    assert int(race["saw"][0]) in race["children"]


def test_fingerprints_and_seeds_do_not_depend_on_the_hash_seed(observed: Observed) -> None:
    here = json_digest(canonical_json(MulticlassClassification(3), Path()))
    seed = int.from_bytes(hashlib.sha256(b'[3,"r-1"]').digest()[:8], "big") // 2
    assert observed["fingerprints"] == [here, seed]


def test_nothing_is_ever_unpickled(observed: Observed) -> None:
    assert observed["unpickling"] == []


def test_a_storm_of_twenty_moments_loses_nothing(tmp_path: Path) -> None:
    """`make storm` has a thousand, and pools of workers."""
    command = [sys.executable, "-m", "tests.storm", "--moments", "20", "--pool-every", "1000"]
    root = Path(__file__).parents[2]
    places = {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=900, check=False, env=os.environ | places
    )
    assert run.returncode == 0, run.stdout + run.stderr
    figures = dict(line.rsplit(None, 1) for line in run.stdout.splitlines())
    assert (figures["moments"], figures["faults"]) == ("20", "0")


MOMENTS = 10
TRAINED = subject(epochs=6, count=120)
EXAMINED = Permutation(TRAINED, permutations=400)


def make(recipe: Recipe, root: Path) -> None:
    """The work of a child process."""
    torch.set_num_threads(1)
    Workspace(root, batch_size=2).get(recipe)


def run_for(recipe: Recipe, root: Path, seconds: float) -> bool:
    """Make the recipe in a new process and kill that after some seconds; whether it was still at work."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["heedful.trials.permutation", "tests.tiny"])
    child = context.Process(target=make, args=(recipe, root))
    child.start()
    child.join(seconds)
    alive = child.is_alive()
    if alive:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    return alive


def assert_equal(one: Artefact, other: Artefact) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors)
    assert_frame_equal(one.table, other.table, check_exact=True)
    assert one.notes == other.notes


def duration(recipe: Recipe, root: Path) -> float:
    """Seconds that a child needs for the whole recipe, its start included."""
    run_for(subject(epochs=2), root.with_name("warm"), 120)
    start = time.perf_counter()
    assert not run_for(recipe, root, 120)
    return time.perf_counter() - start


def prepared(root: Path, recipe: Recipe, whole: Workspace) -> Path:
    """A workspace in which only this recipe is missing."""
    if recipe is EXAMINED:
        shutil.copytree(whole.root / whole.artefact_name(TRAINED), root / whole.artefact_name(TRAINED))
    return root


@pytest.mark.parametrize("recipe", [TRAINED, EXAMINED], ids=["training", "trial"])
def test_a_rerun_after_kills_at_random_moments_equals_the_undisturbed_run(recipe: Recipe, tmp_path: Path) -> None:
    whole = Workspace(tmp_path / "whole", batch_size=2)
    expected = whole.get(recipe)
    seconds = duration(recipe, prepared(tmp_path / "timed", recipe, whole))
    moments = random.Random(7)
    killed = 0
    for number in range(4 * MOMENTS):
        if killed == MOMENTS:
            break
        root = prepared(tmp_path / f"killed-{number}", recipe, whole)
        killed += run_for(recipe, root, moments.uniform(0.05, 0.95) * seconds)
        workspace = Workspace(root, batch_size=2)
        for finished in workspace.entries():
            finished.load()
        assert_equal(workspace.get(recipe), expected)
    assert killed == MOMENTS, "the moments of the kills missed the work"
