"""The workspace under fire: killed processes, racing processes. The shooting is done by kill_points.py."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")


class Seen(TypedDict):
    end: int
    left: list[str]
    rerun: str
    finished: list[str]
    rubbish: list[str]


class Killed(TypedDict):
    expected: str
    seen: list[Seen]


class Race(TypedDict):
    ends: list[int]
    saw: list[str]
    children: list[int]
    makers: str


class Told(TypedDict):
    every_line: Killed
    random_moments: Killed
    race: Race
    fingerprints: list[str | int]
    unpickling: list[str]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
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
    answer: Told = json.loads(run.stdout)
    return answer


def test_kill_before_any_line_never_leaves_what_looks_complete_but_is_not(told: Told) -> None:
    seen = told["every_line"]["seen"]
    assert len(seen) > 40
    assert {each["end"] for each in seen[:-1]} == {-9}
    assert seen[-1]["end"] == 0
    assert {each["rerun"] for each in seen} == {told["every_line"]["expected"]}
    assert {len(each["finished"]) for each in seen} == {1}


def test_kill_leaves_nothing_before_the_rename_and_all_after_it(told: Told) -> None:
    seen = told["every_line"]["seen"]
    there = [len(each["left"]) for each in seen]
    assert there == sorted(there)
    assert set(there) == {0, 1}
    # Only a process killed between rename and clearing up leaves partial work, for the next make to sweep up.
    assert all(not each["rubbish"] for each in seen if not each["left"])
    assert all(rubbish.startswith(".partial/Steps-") for each in seen for rubbish in each["rubbish"])


def test_kill_at_random_moments_of_a_large_write_is_mended_by_a_rerun(told: Told) -> None:
    seen = told["random_moments"]["seen"]
    assert {each["rerun"] for each in seen} == {told["random_moments"]["expected"]}
    assert [len(each["finished"]) for each in seen] == [3] * 10
    assert sum(each["end"] == -9 and len(each["left"]) < 3 for each in seen) >= 3


def test_of_processes_that_race_one_makes_it_and_the_others_wait_and_read(told: Told) -> None:
    race = told["race"]
    assert race["ends"] == [0, 0, 0, 0]
    assert race["makers"] == "m"
    assert len(race["saw"]) == 1
    assert int(race["saw"][0]) in race["children"]


def test_another_process_with_a_fixed_hash_seed_gives_the_fingerprint_of_this_text(told: Told) -> None:
    text = b'{"parts":[{"count":1,"revision":1,"size":2,"type":"Steps"}],"revision":1,"type":"Whole"}'
    seed = int.from_bytes(hashlib.sha256(b'[3,"r-1"]').digest()[:8], "big") // 2
    assert told["fingerprints"] == [hashlib.sha256(text).hexdigest(), seed]


def test_nothing_is_ever_unpickled(told: Told) -> None:
    assert told["unpickling"] == []
