"""Killed and racing processes: a rerun equals the undisturbed run bit for bit. kill_points.py does the killing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heedful.store.recipe import canonical_json, json_digest
from heedful.tasks import MulticlassClassification

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="forks")]


Observed = dict[str, Any]
"""What `kill_points.py` writes, by scene."""


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
    assert {kill["end"] for kill in seen[:-1]} == {-9}
    assert seen[-1]["end"] == 0
    assert {kill["rerun"] for kill in seen} == {observed["every_line"]["expected"]}
    assert {len(kill["finished"]) for kill in seen} == {1}


def test_a_kill_leaves_nothing_before_the_rename_and_everything_after_it(observed: Observed) -> None:
    seen = observed["every_line"]["seen"]
    counts = [len(kill["left"]) for kill in seen]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1}
    # Only a process killed between rename and clearing up leaves partial work, for the next make to sweep up.
    assert all(not kill["leftovers"] for kill in seen if not kill["left"])
    assert all(leftovers.startswith(".partial/Steps-") for kill in seen for leftovers in kill["leftovers"])


def test_a_rerun_completes_a_large_write_that_was_killed(observed: Observed) -> None:
    seen = observed["random_moments"]["seen"]
    assert {kill["rerun"] for kill in seen} == {observed["random_moments"]["expected"]}
    assert [len(kill["finished"]) for kill in seen] == [3] * 10
    assert sum(kill["end"] == -9 and len(kill["left"]) < 3 for kill in seen) >= 3


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
    """All commands, one or several processes, small disks; `make storm` has a thousand, and pools of workers."""
    command = [sys.executable, "-m", "tests.storm", "--moments", "20", "--pool-every", "1000"]
    root = Path(__file__).parents[2]
    places = {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=900, check=False, env=os.environ | places
    )
    assert run.returncode == 0, run.stdout + run.stderr
    figures = dict(line.rsplit(None, 1) for line in run.stdout.splitlines())
    # The last round may disturb several processes at once.
    assert int(figures["moments"]) >= 20
    assert figures["faults"] == "0"
