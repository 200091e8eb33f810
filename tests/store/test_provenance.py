"""Records of making: whose seconds they are, that they stay out of artefacts, and that nothing depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from heedful import __version__
from heedful.store import Artefact, Recipe, Workspace
from heedful.store.provenance import Made, made_key, parse_made

clock = [0.0]
"""Seconds that recipes let pass."""


@dataclass(frozen=True)
class Brew(Recipe):
    """Takes so many seconds, on the clock of the tests."""

    seconds: float
    parts: tuple[Recipe, ...] = ()
    are_shards: bool = False

    def make(self, workspace: Workspace) -> Artefact:
        clock[0] += self.seconds
        for part in self.parts:
            workspace.get(part)
        return Artefact(notes={"n": 1}, shards=self.parts if self.are_shards else ())


@pytest.fixture(params=["folder", "memory://records"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setattr("heedful.store.provenance.time.perf_counter", lambda: clock[0])
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    yield Workspace(tmp_path / "work" if request.param == "folder" else request.param)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def seconds_of(workspace: Workspace) -> dict[str, float]:
    """Seconds by the number in the recipe, of every artefact that is stored."""
    return {str(entry.settings["seconds"]): entry.made.seconds for entry in workspace.entries() if entry.made}


def test_a_record_has_the_time_and_the_versions(workspace: Workspace) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    workspace.get(Brew(3.5))
    (entry,) = workspace.entries()
    assert entry.made is not None
    assert (entry.made.seconds, entry.made.heedful, entry.made.torch) == (3.5, __version__, str(torch.__version__))
    assert before <= datetime.fromisoformat(entry.made.date) <= datetime.now(UTC)
    assert workspace.read_all_made() == {entry.name: entry.made}


def test_what_is_made_within_another_recipe_counts_once(workspace: Workspace) -> None:
    workspace.get(Brew(2.0, (Brew(7.0, (Brew(0.25),)), Brew(1.0))))
    assert seconds_of(workspace) == {"2.0": 2.0, "7.0": 7.0, "0.25": 0.25, "1.0": 1.0}


def test_shards_count_for_the_whole_and_leave_no_record(workspace: Workspace) -> None:
    workspace.get(Brew(5.0))  # by another process
    workspace.get(Brew(2.0, (Brew(5.0), Brew(4.0)), are_shards=True))
    assert seconds_of(workspace) == {"2.0": 11.0}
    assert len(workspace.read_all_made()) == 1


def test_a_record_goes_with_its_artefact_and_nothing_depends_on_it(workspace: Workspace) -> None:
    name = workspace.artefact_name(Brew(1.0))
    workspace.get(Brew(1.0))
    workspace.write_document(made_key(name), "spoiled")
    passed = clock[0]
    assert workspace.get(Brew(1.0)).notes == {"n": 1}
    assert (clock[0], workspace.read_made(name), workspace.read_all_made()) == (passed, None, {})
    assert workspace.entries()[0].made is None
    workspace.delete(name)
    assert workspace.read_document(made_key(name)) is None


@pytest.mark.parametrize(
    "written",
    [
        *(b"", b"[]", b"5", b"{}", b"[" * 100_000, b'{"seconds":1}', b"\xff"),
        b'{"date":"d","heedful":"h","seconds":true,"torch":"t"}',
        b'{"date":"d","heedful":"h","seconds":-1,"torch":"t"}',
        b'{"date":"d","heedful":"h","seconds":NaN,"torch":"t"}',
        b'{"date":5,"heedful":"h","seconds":1,"torch":"t"}',
    ],
)
def test_a_damaged_record_says_nothing(written: bytes) -> None:
    assert parse_made(written) is None
    assert parse_made(b'{"date":"d","heedful":"h","seconds":1,"torch":"t"}') == Made(1.0, "d", "h", "t")


def test_two_runs_differ_in_their_records_alone(tmp_path: Path) -> None:
    contents = []
    for folder in ("one", "two"):
        Workspace(tmp_path / folder).get(Brew(0.5))
        files = (path for path in (tmp_path / folder).rglob("*") if path.is_file() and ".locks" not in path.parts)
        contents.append({str(path.relative_to(tmp_path / folder)): path.read_bytes() for path in files})
    differing = {name for name in contents[0] if contents[0][name] != contents[1][name]}
    assert contents[0].keys() == contents[1].keys()
    assert len(contents[0]) == 5
    assert differing <= {name for name in contents[0] if name.startswith(".made")}
