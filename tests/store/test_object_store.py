"""A workspace behind a URL: what one machine makes, others read; damage, failures and races lose nothing.

Machines are caches of their own. `memory://` shows the rules, a folder with the rules of an object store races between
processes, and a server for S3 (moto) is the real protocol.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from heedful import cli
from heedful.execution.runner import run
from heedful.recommendation import find_recommendation
from heedful.report import write_report
from heedful.store import leases, object_store
from heedful.store.artefact_files import CorruptArtefactError, CorruptArtefactWarning, object_keys
from heedful.store.atomic_write import WriteError
from heedful.store.leases import Lease
from heedful.store.model_folder import KnownIdentity
from heedful.store.object_store import ObjectStore, is_url
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.workspace import Workspace
from heedful.types import UserError
from tests.gcs_server import serve_gcs
from tests.s3_server import PACKAGES
from tests.small_shards import SIZE, Squares, small_shards
from tests.small_shards import made as numbers_made
from tests.stored import film_recipes

__all__ = ["small_shards"]

URL = "memory://experiments"
made: list[Recipe] = []  # in the order of making; emptied by the fixture
Machine = Callable[[str], Workspace]


@dataclass(frozen=True)
class Draw(Recipe):
    seed: int = 1

    def make(self, workspace: Workspace) -> Artefact:
        made.append(self)
        weights = torch.randn(5, generator=torch.Generator().manual_seed(self.seed))
        return Artefact({"weights": weights}, pandas.DataFrame({"uid": ["a", "b"]}), {"seed": self.seed})


@dataclass(frozen=True)
class Sum(Recipe):
    parts: tuple[Draw, ...]

    def make(self, workspace: Workspace) -> Artefact:
        made.append(self)
        return Artefact({"sum": sum((workspace.get(part).tensors["weights"] for part in self.parts), torch.zeros(5))})


@dataclass(frozen=True)
class Chance(Recipe):
    """Differs from one making to the next, as a sum in another order on another machine may."""

    def make(self, workspace: Workspace) -> Artefact:
        made.append(self)
        return Artefact(notes={"number": len(made)})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Opens the workspace as a machine of this name does, with a cache of its own."""
    made.clear()

    def open_workspace(name: str) -> Workspace:
        monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / name))
        return Workspace(URL, data_dir=tmp_path)

    yield open_workspace
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def objects(pattern: str = "") -> list[str]:
    return sorted(path for path in MemoryFileSystem.store if pattern in path)


def artefact_contents() -> dict[str, bytes]:
    """All objects but the records of when artefacts were made, which depend on the clock."""
    return {path: MemoryFileSystem().cat_file(path) for path in objects() if "/.made/" not in path}


def spoil(path: str, content: bytes | None) -> None:
    """Alter an object behind the store's back; None deletes it."""
    files = MemoryFileSystem()
    files.rm_file(path) if content is None else files.pipe_file(path, content)


def manifest_files(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in folder.glob("*/manifest.json")}


def test_what_one_machine_makes_others_read_with_the_bytes_of_a_local_run(machine: Machine, tmp_path: Path) -> None:
    recipe = Sum((Draw(1), Draw(2)))
    here, first, second = Workspace(tmp_path / "local", data_dir=tmp_path), machine("one"), machine("two")
    expected = here.get(recipe).tensors["sum"]
    assert torch.equal(first.get(recipe).tensors["sum"], expected)
    made.clear()
    assert not second.root.exists()
    assert torch.equal(second.get(recipe).tensors["sum"], expected)
    assert made == []
    assert manifest_files(first.root) == manifest_files(here.root)
    assert manifest_files(second.root) == {
        first.artefact_name(recipe): manifest_files(here.root)[here.artefact_name(recipe)]
    }
    assert not objects("/.locks/")
    names = {first.artefact_name(part) for part in (recipe, *recipe.parts)}
    assert {path.rpartition("/")[2] for path in objects("/manifests/")} == {f"{name}.json" for name in names}


@pytest.mark.parametrize("key", ["...json", ".json", "..json", "Draw-0123456789ab", "..\\..\\x-0123456789ab.json"])
def test_an_object_with_a_foreign_name_deletes_nothing_and_is_named(key: str, machine: Machine) -> None:
    """Whoever may write in a bucket must not be able to delete folders of those who read it."""
    workspace = machine("one")
    workspace.get(Draw())
    kept = workspace.root.parent / "another-workspace" / "work"
    kept.parent.mkdir()
    kept.touch()
    spoil(f"/experiments/manifests/{key}", b"{}")
    entries, damages = Workspace(URL).scan()
    assert [entry.name for entry in entries] == [workspace.artefact_name(Draw())]
    assert [damage.name for damage in damages] == [key]
    assert kept.exists()
    assert workspace.get(Draw()).notes == {"seed": 1}
    assert made == [Draw()]


@pytest.mark.parametrize("file", ["../x", "C:x.bat", "x\\..\\y", ".hidden", "code.py"])
def test_a_manifest_with_another_file_than_an_artefact_has_is_damage(file: str) -> None:
    entry: list[Json] = [1, "ab" * 32]
    assert object_keys("s3://bucket/Draw-0123456789ab", {"table.parquet": entry}).keys() == {"table.parquet"}
    with pytest.raises(CorruptArtefactError, match="no valid entry"):
        object_keys("s3://bucket/Draw-0123456789ab", {file: entry})


MANIFESTS = {
    "object": b"{}",
    "list": b"[]",
    "null": b"null",
    "empty": b"",
    "cut": b'{"index.json":[5,"ab',
    "numbers": b'{"index.json":5,"notes.json":5,"recipe.json":5}',
    "huge": b'{"index.json":[' + b"9" * 4000 + b',"ab"],"notes.json":[1,"ab"],"recipe.json":[1,"ab"]}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_damaged_manifest_stops_no_machine(kind: str, machine: Machine) -> None:
    """It is noticed in the listing and in the cleaning up, and its artefact is made again."""
    first, shard = machine("one"), "Shard-0123456789ab"
    expected = first.get(Draw()).tensors["weights"]
    for name in (first.artefact_name(Draw()), shard):
        spoil(f"/experiments/manifests/{name}.json", MANIFESTS[kind])
    second = machine("two")
    assert {damage.name for damage in second.scan()[1]} == {first.artefact_name(Draw()), shard}
    with pytest.warns(CorruptArtefactWarning):
        assert [outcome.error for outcome in run([Sum((Draw(),))], second)] == [None, None]
    assert torch.equal(second.get(Draw()).tensors["weights"], expected)
    assert made == [Draw(), Sum((Draw(),)), Draw()] or made == [Draw(), Draw(), Sum((Draw(),))]
    assert torch.equal(machine("three").get(Draw()).tensors["weights"], expected)
    assert [damage.name for damage in machine("three").scan()[1]] == [shard]


@pytest.mark.parametrize("where", ["url", "folder"])
@pytest.mark.parametrize(
    ("file", "content"),
    [
        *[("index.json", content) for content in ("[]", "null", '{"kind": 5}', "[" * 100_000)],
        ("index.json", '{"kind":"x","recipe_class":"Draw","facts":[],"settings":{},"links":{},"group":"g"}'),
        *[("recipe.json", content) for content in ("[]", "{}", "5", "[" * 100_000)],
        *[("notes.json", content) for content in ("5", "null")],
    ],
)
def test_a_file_of_another_form_is_damage_even_with_the_right_checksum(
    where: str, file: str, content: str, machine: Machine, tmp_path: Path
) -> None:
    workspace = machine("one") if where == "url" else Workspace(tmp_path / "local", data_dir=tmp_path)
    workspace.get(Draw())
    folder = workspace.root / workspace.artefact_name(Draw())
    (folder / file).write_text(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[file] = [len(content), hashlib.sha256(content.encode()).hexdigest()]
    (folder / "manifest.json").write_text(json.dumps(manifest, separators=(",", ":"), sort_keys=True))
    if where == "url":
        store = workspace.store
        assert store is not None
        spoil(f"/experiments/manifests/{folder.name}.json", (folder / "manifest.json").read_bytes())
        key = object_keys(folder, {file: manifest[file]})[file]
        spoil(f"/experiments/{key}", content.encode())
        workspace = machine("two")
    if file == "index.json":
        assert [damage.name for damage in workspace.scan()[1]] == [folder.name]
    with pytest.warns(CorruptArtefactWarning):
        assert workspace.get(Draw()).notes == {"seed": 1}
    assert made == [Draw(), Draw()]
    assert workspace.scan()[1] == []


def test_leftovers_that_may_not_be_deleted_do_not_disturb_finished_work(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with credentials for reading alone."""
    machine("one").get(Draw())

    def refuse(store: ObjectStore, key: str) -> None:
        raise WriteError("no permission")

    monkeypatch.setattr(ObjectStore, "delete", refuse)
    spoil(f"/experiments/.locks/{machine('one').artefact_name(Draw())}/0", b"x")
    workspace = machine("two")
    assert [outcome.error for outcome in run(Draw(), workspace)] == [None]


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("s3:/bucket/f", "write s3://bucket/f, or ./s3:/bucket/f"),
        ("s3//bucket/f", "write s3://bucket/f"),
        ("gs:/b", "write gs://b"),
        *[
            (place, f"./{place}")
            for place in (
                *("simplecache::s3://b/x", "filecache::memory://x", "data:,x", "dir:///x", "reference://x", "zip::x"),
                *("http://h/x", "sftp://h/x", "local::x", "cache::b://c"),
            )
        ],
        ("~nosuch/x", "./~nosuch/x"),
        ("file://~nosuch/x", "nosuch"),
        ("", "folder"),
        ("file://", "folder"),
        ("caf\udce9", "not UTF-8"),
    ],
)
def test_a_url_with_a_slip_makes_no_folder(place: str, remedy: str) -> None:
    with pytest.raises(UserError, match=re.escape(remedy)):
        Workspace(place)


@pytest.mark.parametrize(
    ("place", "size", "word"),
    [
        *((place, 256, "folder") for place in (None, 5, 1.5, b"x", [], object())),
        *(("unused", size, "batch_size") for size in (0, -1, 1.5, "8", True, None)),
    ],
)
def test_a_place_or_a_batch_size_of_another_type_is_refused(place: Any, size: Any, word: str) -> None:
    with pytest.raises(UserError, match=word):
        Workspace(place, batch_size=size)


@pytest.mark.parametrize("place", ["exp:1", "C:\\work", "C:/work", "./data:,x", "./s3:/bucket", "a/s3:x", "a:b/c"])
def test_a_folder_may_have_a_colon_in_its_name(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made.clear()
    workspace = Workspace(place)
    assert (workspace.store, workspace.root) == (None, Path(place))
    assert workspace.get(Draw()).table["uid"].tolist() == ["a", "b"]
    assert workspace.read_block(Draw(), 0)["uid"].tolist() == ["a", "b"]
    assert workspace.entries()[0].open().table["uid"].tolist() == ["a", "b"]
    assert made == [Draw()]


def test_objects_are_named_by_their_content_and_nothing_is_stored_twice(machine: Machine) -> None:
    workspace = machine("one")
    workspace.get(Draw())
    name = workspace.artefact_name(Draw())
    stored = objects("/objects/")
    assert len(stored) == 6 - 1  # of the files of an artefact with tensors and table, all but the manifest
    for path in stored:
        content = MemoryFileSystem().cat_file(path)
        digest, _, file = path.rpartition("/")[2].partition("-")
        assert digest == hashlib.sha256(content).hexdigest()[:16]
        assert content == (workspace.root / name / file).read_bytes()


def test_the_listing_is_that_of_the_url_and_brings_no_tensors(machine: Machine) -> None:
    first, second = machine("one"), machine("two")
    for recipe in (Draw(1), Draw(2)):
        first.get(recipe)
    second.get(Draw(2))
    second.delete(second.artefact_name(Draw(2)))
    (entry,) = second.entries()
    assert (entry.name, entry.settings) == (first.artefact_name(Draw(1)), {"seed": 1})
    assert not (entry.path / "tensors.safetensors").exists()
    assert list(entry.open().columns["uid"]) == ["a", "b"]
    assert list(second.index()["name"]) == [entry.name]
    assert "fetch_tensors" not in second.index()
    assert torch.equal(entry.load().tensors["weights"], first.get(Draw(1)).tensors["weights"])
    made.clear()
    assert torch.equal(machine("two").get(Draw(1)).tensors["weights"], entry.load().tensors["weights"])
    assert made == []


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
@pytest.mark.parametrize("part", ["table.parquet", "tensors.safetensors", "recipe.json", "/manifests/"])
def test_a_damaged_object_is_noticed_and_made_again(machine: Machine, part: str, content: bytes | None) -> None:
    first, second, third = machine("one"), machine("two"), machine("three")
    expected = first.get(Draw())
    before = artefact_contents()
    spoil(objects(part)[0], content)
    withdrawn = part == "/manifests/" and content is None  # then there is no artefact, and no damage
    entries, damages = third.scan()
    tensors_only = part == "tensors.safetensors"  # which no listing reads
    assert (len(entries), len(damages)) == ((1, 0) if tensors_only else (0, 0) if withdrawn else (0, 1))
    made.clear()
    if withdrawn:
        again = second.get(Draw())
    else:
        with pytest.warns(CorruptArtefactWarning, match=URL):
            again = second.get(Draw())
    assert made == [Draw()]
    assert torch.equal(again.tensors["weights"], expected.tensors["weights"])
    assert artefact_contents() == before
    made.clear()
    assert torch.equal(third.get(Draw()).tensors["weights"], expected.tensors["weights"])
    assert made == []


def test_an_altered_manifest_writes_nowhere_else(machine: Machine, tmp_path: Path) -> None:
    workspace, other = machine("one"), machine("two")
    workspace.get(Draw())
    (path,) = objects("/manifests/")
    manifest = json.loads(MemoryFileSystem().cat_file(path))
    manifest["../../../planted"] = manifest["table.parquet"]
    spoil(path, json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    with pytest.warns(CorruptArtefactWarning, match="no valid entry"):
        other.get(Draw())
    assert not [*tmp_path.rglob("planted")]


def test_a_damaged_copy_in_the_cache_is_downloaded_again(machine: Machine) -> None:
    workspace = machine("one")
    expected = workspace.get(Draw()).tensors["weights"].clone()
    (workspace.root / workspace.artefact_name(Draw()) / "tensors.safetensors").write_bytes(b"damaged")
    made.clear()
    with pytest.warns(CorruptArtefactWarning):
        assert torch.equal(workspace.get(Draw()).tensors["weights"], expected)
    (workspace.root / workspace.artefact_name(Draw()) / "table.parquet").write_bytes(b"")
    assert len(workspace.entries()) == 1
    assert made == []


def test_what_is_in_the_cache_only_is_stored(machine: Machine) -> None:
    workspace = machine("one")
    expected = workspace.get(Draw()).tensors["weights"].clone()
    for path in objects():
        spoil(path, None)
    made.clear()
    again = machine("one")
    assert not again.has(Draw())
    assert torch.equal(again.get(Draw()).tensors["weights"], expected)
    assert torch.equal(machine("two").get(Draw()).tensors["weights"], expected)
    assert made == []


class Fault(Exception):
    """What a library behind fsspec may raise: no OSError, a message of two lines, an address with a password."""

    def __str__(self) -> str:
        return "Could not connect to https://me:secret@host/b?token=secret\n(timed out)."


@pytest.mark.parametrize("position", range(6))
def test_a_failure_of_any_put_leaves_no_artefact_and_no_work_is_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    puts: list[str] = []
    original, original_file = MemoryFileSystem.pipe_file, MemoryFileSystem.put_file

    def count(path: str) -> None:
        if "/objects/" in path or "/manifests/" in path:
            puts.append(path)
            if len(puts) == position + 1:
                raise Fault

    def pipe_file(self: MemoryFileSystem, path: str, value: bytes, mode: str = "overwrite") -> None:
        count(path)
        original(self, path, value, mode=mode)

    def put_file(self: MemoryFileSystem, lpath: str, rpath: str, **options: object) -> None:
        count(rpath)
        original_file(self, lpath, rpath, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
    workspace = machine("one")
    with pytest.raises(WriteError) as raised:
        workspace.get(Draw())
    message = str(raised.value)
    assert "\n" not in message
    assert URL in message
    assert "secret" not in message
    assert not objects("/manifests/")
    assert not objects("/.locks/")
    assert not machine("two").has(Draw())
    workspace.get(Draw())
    assert made == [Draw()]  # the cache kept it
    machine("two").get(Draw())
    assert made == [Draw()]


def test_what_could_not_be_stored_gives_way_to_what_another_machine_stored_since(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machine("one"), machine("two")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", unreachable)
        with pytest.raises(WriteError):
            first.get(Chance())
    assert second.get(Chance()).notes == {"number": 2}
    assert machine("one").get(Chance()).notes == {"number": 2}
    assert machine("three").get(Chance()).notes == {"number": 2}
    assert len(made) == 2
    assert not [*(first.root / ".unstored").iterdir()]


def unreachable(*_: object, **__: object) -> None:
    raise Fault


@pytest.mark.parametrize("failures", [1, 9])
def test_a_creation_that_a_server_refuses_for_a_moment_is_tried_again(
    failures: int, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    """S3 answers 409 to one of two conditional requests at the same time, also when the other one fails."""
    left, original = [failures], MemoryFileSystem.pipe_file
    monkeypatch.setattr(object_store, "CONFLICT_DELAYS", (0.0, 0.0))

    def pipe_file(self: MemoryFileSystem, path: str, value: bytes, mode: str = "overwrite") -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("ConditionalRequestConflict")
        original(self, path, value, mode=mode)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    store = ObjectStore(URL)
    if failures < 3:
        assert store.create("one", b"1")
        assert not store.create("one", b"2")
        assert store.read("one") == b"1"
    else:
        with pytest.raises(WriteError, match="ConditionalRequestConflict"):
            store.create("one", b"1")
        assert left[0] == failures - 3


def test_shards_are_shared_and_those_beside_their_whole_are_deleted(machine: Machine, small_shards: None) -> None:
    first, second = machine("one"), machine("two")
    recipe = Squares(3 * SIZE + 5)
    shards = recipe.shards(first)
    for workspace in (first, second):
        workspace.root.mkdir(parents=True)
    first.ensure(shards[2])
    second.ensure(shards[0])
    table = second.get(recipe).table
    assert table["number"].tolist() == list(range(recipe.count))
    assert (len(numbers_made(first)), len(numbers_made(second))) == (1, 3)
    assert [entry.kind for entry in second.entries()] == ["other"]
    assert not objects("Shard-")
    second.ensure(shards[1])  # as if it had been killed before it could delete it
    assert len(objects("/manifests/")) == 2
    run(recipe, machine("three"))
    assert not objects("Shard-")
    assert [entry.kind for entry in first.entries()] == ["other"]
    unfinished = Squares(2 * SIZE)
    second.ensure(unfinished.shards(second)[0])
    run(recipe, machine("three"))
    assert len(objects("/manifests/Shard-")) == 1


def test_of_two_writers_the_second_takes_what_the_first_has_stored(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "try_to_acquire", lambda self: True)
    first, second = machine("one"), machine("two")

    @dataclass(frozen=True)
    class Overtaken(Recipe):
        def make(self, workspace: Workspace) -> Artefact:
            made.append(self)
            number = len(made)
            if workspace is first:
                second.get(self)
            return Artefact(notes={"number": number})

    assert first.get(Overtaken()).notes == {"number": 2}
    assert second.get(Overtaken()).notes == {"number": 2}
    assert machine("three").get(Overtaken()).notes == {"number": 2}
    assert len(made) == 2


def test_a_listing_that_lags_costs_no_work(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = machine("one"), machine("two")
    first.get(Chance())
    monkeypatch.setattr(ObjectStore, "names", lambda self, folder: [])
    monkeypatch.setattr(object_store, "MAX_SINGLE_QUESTIONS", 0)
    assert not second.has(Chance())
    assert second.get(Chance()).notes == {"number": 1}
    assert second.has(Chance())
    (outcome,) = run(Chance(), machine("three"))
    assert outcome.error is None
    assert len(made) == 1


def test_many_questions_are_one_listing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    for name in ("cat_file", "ls"):
        original = getattr(MemoryFileSystem, name)

        def counted(self: object, path: str, *args: object, _call: Callable = original, **options: object) -> object:
            requests.append(path)
            return _call(self, path, *args, **options)

        monkeypatch.setattr(MemoryFileSystem, name, counted)
    first = machine("one")
    for seed in range(5):
        first.get(Draw(seed))
    store = ObjectStore(URL)
    requests.clear()
    names = [first.artefact_name(Draw(seed)) for seed in range(1000)]
    assert sum(store.has(name) for name in names) == 5
    assert len(requests) == object_store.MAX_SINGLE_QUESTIONS + 1
    requests.clear()
    assert [store.has(name) for name in names[:5]] == [True] * 5
    assert requests == []
    monkeypatch.setattr(time, "monotonic", lambda: float("inf"))  # later, the questions are asked anew
    assert not store.has(names[9])
    assert len(requests) == 1


# Leases


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The seconds of this machine's clock; no heart beats by itself."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 1e6)
    yield now
    MemoryFileSystem.store.clear()


def test_a_lease_is_taken_over_when_it_has_not_changed_for_its_time(clock: list[float]) -> None:
    store = ObjectStore(URL)
    holder, waiting, late = (Lease(store, "Draw-1", owner) for owner in ("a", "b", "c"))
    assert holder.try_to_acquire()
    assert not waiting.try_to_acquire()
    clock[0] = leases.LEASE_SECONDS - 1
    assert not waiting.try_to_acquire()
    holder._beat()
    clock[0] += 2
    assert not waiting.try_to_acquire()  # it has changed
    assert not late.try_to_acquire()
    clock[0] += leases.LEASE_SECONDS
    assert waiting.try_to_acquire()
    assert not late.try_to_acquire()  # another number: its time begins anew
    assert store.names(".locks/Draw-1") == ["1"]
    holder.release()  # it was only slow
    assert store.names(".locks/Draw-1") == ["1"]
    waiting.release()
    assert store.names(".locks/Draw-1") == []
    assert late.try_to_acquire()
    late.release()


def test_a_process_of_the_same_cache_takes_a_lease_over_at_once(clock: list[float]) -> None:
    killed, next_one = (Lease(ObjectStore(URL), "Draw-1", "one cache") for _ in range(2))
    assert killed.try_to_acquire()
    assert next_one.try_to_acquire()
    assert next_one.number == 1
    next_one.release()
    killed.release()


def test_nobody_waits_for_a_lease_of_an_artefact_that_exists(machine: Machine) -> None:
    workspace = machine("one")
    workspace.get(Draw())
    killed = Lease(ObjectStore(URL), workspace.artefact_name(Draw()), "killed")
    assert killed.try_to_acquire()
    start = time.monotonic()
    other = machine("two")
    assert [outcome.error for outcome in run([Sum((Draw(),))], other)] == [None, None]
    assert time.monotonic() - start < leases.LEASE_SECONDS / 4
    run([Draw()], other)
    assert not objects("/.locks/")
    killed.release()


def test_a_killed_training_goes_on_at_another_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that contain the digest of their content are stored while they are worked on."""

    @dataclass(frozen=True)
    class Training(Recipe):
        epochs: int

        def make(self, workspace: Workspace) -> Artefact:
            folder = workspace.partial_folder(self)
            epochs = [int(path.name.split("-")[1]) for path in folder.glob("epoch-*")]
            for epoch in range(max(epochs, default=0) + 1, self.epochs + 1):
                made.append(self)
                for old in folder.iterdir():
                    old.unlink()
                content = f"weights {epoch}".encode()
                (folder / f"epoch-{epoch}-{hashlib.sha256(content).hexdigest()}.safetensors").write_bytes(content)
                (folder / "new-1.safetensors").write_bytes(b"half")
                assert workspace.store is not None
                leases.store_checkpoints(workspace.store, workspace.artefact_name(self), folder)
                if epoch == 2 and not epochs:
                    raise KeyboardInterrupt
            return Artefact(notes={"resumed at": [*epochs]})

    with pytest.raises(KeyboardInterrupt):
        machine("one").get(Training(3))
    (stored,) = objects("/.partial/")
    assert "/epoch-2-" in stored
    assert machine("two").get(Training(3)).notes == {"resumed at": [2]}
    assert len(made) == 3
    assert not objects("/.partial/")


# URLs, errors and commands


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("s3://me:secret@bucket/x", "credentials in the environment"),
        ("s3://bucket/x?token=secret", "credentials in the environment"),
        ("s3://", "s3://bucket/experiments"),
        ("s3://bucket/a*", "without"),
        ("s3://bucket/../x", "without"),
        ("nothing://bucket/x", "s3://bucket/folder"),
        ("gs://bucket/x", "pip install 'heedful[gcs]'"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_one_line(
    url: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError) as raised:
        Workspace(url)
    assert remedy in str(raised.value)
    assert "secret" not in str(raised.value)
    result = CliRunner().invoke(cli.app, ["report", "--workspace", url, "--out", str(tmp_path / "report")])
    assert result.exit_code == 2
    assert "secret" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


def test_locations_open_the_same_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    assert Workspace("work").location == str(tmp_path / "work")
    assert Workspace(f"file://{tmp_path}/work").location == str(tmp_path / "work")
    remote = Workspace("memory://bucket/experiments/")
    assert remote.location == Workspace(remote.location).location == "memory://bucket/experiments"
    assert remote.root == Workspace(remote.location).root
    assert remote.root != Workspace("memory://bucket/others").root
    assert (is_url("C:/work"), is_url("C://work")) == (False, False)


OWN = """
from dataclasses import dataclass
from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class {name}(Recipe):
    def make(self, workspace):
        {body}

def recipes():
    return [{name}()]
"""


def test_commands_take_a_url(machine: Machine, tmp_path: Path) -> None:
    machine("one")
    file = tmp_path / "own_recipe.py"
    file.write_text(OWN.format(name="Own", body="return Artefact(notes={'n': 1})"))
    words = ["run", str(file), "--where", "here", "--workspace", URL]
    for _ in range(2):
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 0, result.output
    assert "All " in result.output
    assert len(objects("/manifests/Own-")) == 1
    result = CliRunner().invoke(cli.app, ["report", "--workspace", URL, "--out", str(tmp_path / "report")])
    assert result.exit_code == 2
    assert f"no finished trial in the workspace {URL}" in result.stderr
    file = tmp_path / "own_failure.py"
    file.write_text(OWN.format(name="Fails", body="raise ValueError('x')"))
    result = CliRunner().invoke(cli.app, ["run", str(file), "--where", "here", "--workspace", URL])
    assert result.exit_code == 1
    (failure,) = objects("/.failures/Fails-")
    assert b"ValueError: x" in MemoryFileSystem().cat_file(failure)


def test_audits_are_kept_behind_the_url(machine: Machine) -> None:
    content = {"methods": [], "recommended": ["lime"], "date": "today", "finished": True, "data": {"texts": 30}}
    machine("one").write_document(".audits/0123456789abcdef-one-1.json", json.dumps(content))
    machine("two")
    recommendation = find_recommendation(KnownIdentity("0123456789abcdef0"), URL)
    assert recommendation is not None
    assert recommendation.methods == ("lime",)
    assert find_recommendation(KnownIdentity("another"), URL) is None


def test_the_report_of_a_url_is_that_of_a_folder(machine: Machine, tmp_path: Path) -> None:
    pages: list[str] = []
    for workspace in (Workspace(tmp_path / "experiments", data_dir=tmp_path), machine("one")):
        for recipe in film_recipes():
            workspace.get(recipe)
        pages.append(write_report(workspace, tmp_path / f"report-{len(pages)}").read_text())
    pages.append(write_report(machine("two"), tmp_path / "report-2").read_text())
    assert pages[1] == pages[0]
    assert pages[2] == pages[0]


# A real protocol


@pytest.fixture
def s3(s3_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new bucket."""
    import fsspec

    for name, value in {**s3_environment, "HEEDFUL_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    made.clear()
    fsspec.filesystem("s3").clear_instance_cache()
    bucket = f"bucket-{tmp_path.name.lower().replace('_', '-')}"[:60]
    fsspec.filesystem("s3").mkdir(bucket)
    yield f"s3://{bucket}/experiments"
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The URL of a bucket of Google on a server of this machine, and the uploads that it has seen."""
    gcsfs = pytest.importorskip("gcsfs", reason="gcsfs is not installed: pip install 'heedful[gcs]'")
    made.clear()
    with serve_gcs() as (address, uploads):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield "gs://bucket/experiments", uploads
        gcsfs.GCSFileSystem.clear_instance_cache()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_real_protocol_creates_on_condition_and_holds_a_workspace(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, uploads = request.getfixturevalue("gcs") if kind == "gcs" else (request.getfixturevalue("s3"), None)
    store = ObjectStore(url)
    with ThreadPoolExecutor(8) as pool:
        won = [*pool.map(lambda number: store.create("manifests/one.json", str(number).encode()), range(8))]
    assert sum(won) == 1
    assert store.read("manifests/one.json") == str(won.index(True)).encode()
    assert uploads is None or {*uploads} == {"experiments/manifests/one.json 0"}
    store.write("manifests/one.json", b"new")
    assert store.read("manifests/one.json") == b"new"
    store.delete("manifests/one.json")
    store.delete("manifests/one.json")
    assert (store.read("manifests/one.json"), store.names("manifests")) == (None, [])
    recipe = Sum((Draw(1), Draw(2)))
    here = Workspace(tmp_path / "local", data_dir=tmp_path)
    expected = here.get(recipe).tensors["sum"]
    first = Workspace(url, data_dir=tmp_path)
    assert [outcome.error for outcome in run([recipe], first)] == [None] * 3
    if uploads is not None:
        assert len([upload for upload in uploads if "/manifests/Draw" in upload and upload.endswith(" 0")]) == 2
    assert manifest_files(first.root) == manifest_files(here.root)
    assert len(first.entries()) == 3
    made.clear()
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "other"))
    second = Workspace(url, data_dir=tmp_path)
    assert [second.has(part) for part in (recipe, *recipe.parts, Draw(3))] == [True, True, True, False]
    assert torch.equal(second.get(recipe).tensors["sum"], expected)
    assert len(second.entries()) == 3
    assert made == []
    name = second.artefact_name(Draw(1))
    (tensors,) = (file for file in store.names(f"objects/{name}") if file.endswith("safetensors"))
    store.write(f"objects/{name}/{tensors}", b"damaged")
    with pytest.warns(CorruptArtefactWarning):
        assert torch.equal(second.get(Draw(1)).tensors["weights"], first.get(Draw(1)).tensors["weights"])
    assert made == [Draw(1)]
    assert store.names(".locks") == []


@pytest.mark.slow
def test_s3_holds_a_large_file_that_is_sent_in_parts(s3: str, tmp_path: Path) -> None:
    store, given, back = ObjectStore(s3), tmp_path / "given", tmp_path / "back"
    parts = [bytes([number]) * 2**20 for number in range(101)]
    given.write_bytes(b"".join(parts))
    store.upload({"objects/large": given})
    store.download({"objects/large": back, "objects/absent": tmp_path / "absent"}, 101 * 2**20)
    assert not (tmp_path / "absent").exists()
    with given.open("rb") as one, back.open("rb") as other:
        assert hashlib.file_digest(one, "sha256").digest() == hashlib.file_digest(other, "sha256").digest()
    assert store._files.info(store._path("objects/large"))["ETag"].strip('"').endswith("-3")  # of three parts


def hold_connections(server: socket.socket, kind: str, connections: list[socket.socket]) -> None:
    """Accept connections and answer nothing, or an answer whose bytes come one by one, or end in the middle."""

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(1 << 16) and kind != "silent":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n")
                if kind == "dying":
                    connection.close()
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.2)

    with suppress(OSError):
        while True:
            connections.append(server.accept()[0])
            threading.Thread(target=serve, args=(connections[-1],), daemon=True).start()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "dripping", "dying"])
def test_a_store_that_stops_answering_is_one_line_in_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is given up, and what follows does not wait again: cleaning up takes no time of its own."""
    for package in PACKAGES:
        pytest.importorskip(package)
    import fsspec

    connections: list[socket.socket] = []
    monkeypatch.setattr(object_store, "LISTING_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(ObjectStore._wait, "__defaults__", (0, 1.0))
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hold_connections, args=(server, kind, connections), daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
        fsspec.filesystem("s3").clear_instance_cache()
        workspace = Workspace("s3://bucket/experiments", data_dir=tmp_path)
        assert workspace.store is not None
        begin = time.monotonic()
        with pytest.raises(WriteError, match="s3://bucket/experiments"):
            workspace.store.read("manifests/x.json")
        for attempt in (workspace.check_writable, lambda: workspace.get(Draw()), lambda: workspace.scan()):
            with pytest.raises(WriteError, match="s3://bucket/experiments"):
                attempt()
        limit = 6.0 if kind != "dying" else 60.0  # connections that end are tried again, quickly
        assert time.monotonic() - begin < limit
        for connection in connections:
            with closing(connection):
                pass
        fsspec.filesystem("s3").clear_instance_cache()


@pytest.mark.slow
def test_s3_errors_are_one_line(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Workspace("s3://no-such-bucket/experiments", data_dir=tmp_path)
    with pytest.raises(WriteError, match="no-such-bucket"):
        run([Draw()], absent)
    assert made == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    result = CliRunner().invoke(cli.app, ["report", "--workspace", "s3://bucket/unreachable"])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "s3://bucket/unreachable" in result.stderr


# Storms


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize(("store", "moments"), [("folder", 12), ("s3", 3)])
def test_machines_that_are_killed_lose_nothing(store: str, moments: int, request: pytest.FixtureRequest) -> None:
    root = Path(__file__).parents[2]
    places = {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment = request.getfixturevalue("s3_environment") if store == "s3" else {}
    words = [*(["--s3"] if store == "s3" else []), "--moments", str(moments)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.object_storm", *words],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | places | environment,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["moments"] >= moments
    assert figures["faults"] == 0
