"""kill -9 at random moments of a training and of a trial: the rerun equals the undisturbed run bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from pandas.testing import assert_frame_equal

from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.trials.permutation import Permutation
from tests.tiny import subject

MOMENTS = 10
TRAINED = subject(epochs=6, count=120)
EXAMINED = Permutation(TRAINED, permutations=400)


def make(recipe: Recipe, root: Path) -> None:
    """What a child process does until it is killed."""
    torch.set_num_threads(1)
    Workspace(root, batch_size=2).get(recipe)


def run_for(recipe: Recipe, root: Path, seconds: float) -> bool:
    """Starts a process that makes the recipe, kills it after a while, and tells whether it was still at work."""
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
    """Seconds that a child needs for the whole recipe in this folder, its start included."""
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
