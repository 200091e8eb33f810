"""The workspace in one process: what goes in comes out, damage is noticed, failures leave no trace."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas
import pytest
import torch
from filelock import FileLock

from heedful.data.words import Words
from heedful.progress import SilentProgress
from heedful.store import artefact_files
from heedful.store.artefact_files import CorruptArtefactWarning
from heedful.store.code_digest import code_digest
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.types import Corpus, Splits, UserError

FILES = ("tensors.safetensors", "table.parquet", "notes.json", "recipe.json", "index.json", "manifest.json")
made: list[Recipe] = []  # in the order of making; emptied by the fixture


@dataclass(frozen=True)
class Bake(Recipe):
    seed: int = 1
    size: int = 3

    def make(self, workspace: Workspace) -> Artefact:
        made.append(self)
        weights = torch.randn(self.size, generator=torch.Generator().manual_seed(self.seed))
        table = pandas.DataFrame({"uid": ["a", "b"], "taste": [0.5, float("nan")]})
        return Artefact({"weights": weights}, table, {"loaves": self.size})


@dataclass(frozen=True)
class Dinner(Recipe):
    breads: tuple[Bake, ...]

    def make(self, workspace: Workspace) -> Artefact:
        made.append(self)
        return Artefact({"sum": sum((workspace.get(b).tensors["weights"] for b in self.breads), torch.zeros(3))})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made.clear()
    return Workspace(tmp_path / "work", data_dir=tmp_path)


def same(one: Artefact, two: Artefact) -> bool:
    tensors = one.tensors.keys() == two.tensors.keys() and all(
        torch.equal(one.tensors[name], two.tensors[name]) for name in one.tensors
    )
    return tensors and one.table.equals(two.table) and one.notes == two.notes


def test_second_get_makes_nothing_and_gives_the_same(workspace: Workspace) -> None:
    first, second = workspace.get(Bake()), workspace.get(Bake())
    assert made == [Bake()]
    assert same(first, second)
    for hidden in (".staging", ".locks", ".made"):
        shutil.rmtree(workspace.root / hidden)
    assert same(Workspace(workspace.root, data_dir=workspace.data_dir).get(Bake()), first)
    assert [path.name for path in workspace.root.iterdir()] == [workspace.artefact_name(Bake())]
    assert made == [Bake()]


def test_make_may_get_what_it_needs_and_each_is_made_once(workspace: Workspace) -> None:
    dinner = Dinner((Bake(1), Bake(2), Bake(1)))
    total = workspace.get(dinner).tensors["sum"]
    expected = 2 * workspace.get(Bake(1)).tensors["weights"] + workspace.get(Bake(2)).tensors["weights"]
    torch.testing.assert_close(total, expected)
    assert made == [dinner, Bake(1), Bake(2)]


def test_a_recipe_that_depends_on_itself_fails_instead_of_waiting_forever(workspace: Workspace) -> None:
    @dataclass(frozen=True)
    class Snake(Recipe):
        def make(self, workspace: Workspace) -> Artefact:
            return workspace.get(replace(self))

    with pytest.raises(RuntimeError, match=r"Snake-[0-9a-f]{12} depends on itself"):
        workspace.get(Snake())


def test_device_batch_size_and_progress_leave_the_name_alone(tmp_path: Path) -> None:
    plain = Workspace(tmp_path)
    other = Workspace(tmp_path, batch_size=7, progress=SilentProgress())
    other.device = "meta"
    assert plain.artefact_name(Bake()) == other.artefact_name(Bake())
    assert (other.device, other.batch_size, plain.device, plain.batch_size) == ("meta", 7, "cpu", 256)


def test_data_folder_is_given_or_from_the_environment_or_in_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", "/somewhere/data")
    assert Workspace(Path("w")).data_dir == Path("/somewhere/data")
    assert Workspace(Path("w"), data_dir=Path("mine")).data_dir == Path("mine")
    monkeypatch.delenv("HEEDFUL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert Workspace(Path("w")).data_dir == Path("/cache/heedful/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/anna")
    assert Workspace(Path("w")).data_dir == Path("/home/anna/.cache/heedful/data")


def test_altering_a_tensor_in_memory_does_not_reach_the_disk(workspace: Workspace) -> None:
    first = workspace.get(Bake()).tensors["weights"]
    kept = first.clone()
    first.add_(1)
    assert torch.equal(workspace.get(Bake()).tensors["weights"], kept)


def spoil(path: Path, way: str) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    path.unlink()
    if way != "missing":
        spoilt = {"flipped": flipped, "truncated": content[:-1], "emptied": b"", "garbled": b"\xff{[NaN"}
        path.write_bytes(spoilt[way])


@pytest.mark.parametrize("way", ["flipped", "truncated", "missing", "emptied", "garbled"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_artefact_is_made_again(workspace: Workspace, file: str, way: str) -> None:
    whole = workspace.get(Bake())
    folder = workspace.root / workspace.artefact_name(Bake())
    spoil(folder / file, way)
    with pytest.warns(CorruptArtefactWarning, match=f"{folder} is damaged: "):
        repaired = workspace.get(Bake())
    assert same(repaired, whole)
    assert made == [Bake(), Bake()]
    assert not (workspace.root / ".damaged").exists()
    assert same(workspace.get(Bake()), whole)
    assert len(made) == 2


def test_folder_under_a_wrong_name_is_damage(workspace: Workspace) -> None:
    workspace.get(Bake(1))
    shutil.copytree(
        workspace.root / workspace.artefact_name(Bake(1)), workspace.root / workspace.artefact_name(Bake(2))
    )
    with pytest.warns(CorruptArtefactWarning, match=f"it holds {workspace.artefact_name(Bake(1))}"):
        workspace.get(Bake(2))
    assert made == [Bake(1), Bake(2)]


def test_finished_lists_complete_artefacts_and_warns_about_the_rest(workspace: Workspace) -> None:
    assert workspace.entries() == []
    dinner = Dinner((Bake(1),))
    workspace.get(dinner)
    workspace.get(Bake(2))
    workspace.partial_folder(Bake(3))
    (workspace.root / "holiday").mkdir()
    (workspace.root / "file.txt").write_text("x")
    (workspace.root / workspace.artefact_name(Bake(2)) / "table.parquet").unlink()
    with pytest.warns(CorruptArtefactWarning) as caught:
        entries = workspace.entries()
    assert [entry.name for entry in entries] == [workspace.artefact_name(Bake(1)), workspace.artefact_name(dinner)]
    assert [entry.recipe_class for entry in entries] == ["Bake", "Dinner"]
    assert json.loads((entries[1].path / "recipe.json").read_text())["breads"] == [
        {"type": f"{__name__}.Bake", "revision": 1, "seed": 1, "size": 3, "code": code_digest(Bake)}
    ]
    assert same(entries[0].load(), workspace.get(Bake(1)))
    messages = sorted(str(warning.message) for warning in caught)
    assert len(messages) == 2
    assert workspace.artefact_name(Bake(2)) in messages[0]
    assert "holiday" in messages[1]


def test_has_is_true_only_for_complete_artefacts(workspace: Workspace) -> None:
    assert not workspace.has(Bake())
    workspace.get(Bake())
    assert workspace.has(Bake())
    assert not workspace.has(Bake(2))
    spoil(workspace.root / workspace.artefact_name(Bake()) / "tensors.safetensors", "truncated")
    assert not workspace.has(Bake())


@dataclass(frozen=True)
class Stumble(Recipe):
    def make(self, workspace: Workspace) -> Artefact:
        progress = workspace.partial_folder(self) / "progress"
        if not progress.exists():
            progress.write_text("half")
            raise ZeroDivisionError("stumbled")
        return Artefact(notes={"resumed": progress.read_text()})


def test_failure_in_make_propagates_frees_the_lock_and_keeps_partial_work(workspace: Workspace) -> None:
    with pytest.raises(ZeroDivisionError, match=r"^stumbled$"):
        workspace.get(Stumble())
    assert not workspace.has(Stumble())
    assert [path.name for path in workspace.partial_folder(Stumble()).iterdir()] == ["progress"]
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(workspace.get, Stumble()).result(timeout=30).notes == {"resumed": "half"}
    assert list((workspace.root / ".partial").iterdir()) == []


def test_threads_that_race_make_it_once(workspace: Workspace) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(workspace.get, [Bake(size=50_000)] * 8))
    assert all(same(result, results[0]) for result in results)
    assert made == [Bake(size=50_000)]


@dataclass(frozen=True)
class Overtaken(Recipe):
    """While the slow workspace makes it, somebody who ignores the lock puts the same work in place."""

    def make(self, workspace: Workspace) -> Artefact:
        if workspace.root.name == "work":
            quick = Workspace(workspace.root.parent / "quick", data_dir=workspace.data_dir)
            quick.get(self)
            shutil.copytree(quick.root / quick.artefact_name(self), workspace.root / workspace.artefact_name(self))
        return Artefact(notes={"by": workspace.root.name})


def test_lost_rename_is_harmless(workspace: Workspace) -> None:
    assert workspace.get(Overtaken()).notes == {"by": "quick"}
    assert list((workspace.root / ".staging").iterdir()) == []


@dataclass(frozen=True)
class Diary(Corpus):
    name: ClassVar[str] = "diary"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        raise NotImplementedError

    def digest(self, data: Path) -> str:
        return (data / "diary.txt").read_text()


@dataclass(frozen=True)
class Entry(Recipe):
    corpus: Diary = Diary()

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


@pytest.mark.parametrize("is_in_make", [True, False])
def test_data_that_changes_in_make_or_while_the_index_is_made_is_not_kept_under_the_old_name(
    is_in_make: object, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(*_: object) -> Artefact | dict[str, list[str]]:
        (workspace.data_dir / "diary.txt").write_text("tuesday")
        return Artefact() if is_in_make else {}

    (workspace.data_dir / "diary.txt").write_text("monday")
    if is_in_make:
        monkeypatch.setattr(Entry, "make", edit)
    else:
        monkeypatch.setattr("heedful.store.workspace.linked_artefacts", edit)
    with pytest.raises(UserError, match=r"changed while Entry-.* was being made; run it again"):
        workspace.get(Entry())
    assert workspace.entries() == []


def test_staging_folders_without_a_lock_holder_are_deleted(workspace: Workspace) -> None:
    workspace.get(Bake(1))
    staging = workspace.root / ".staging"
    held, abandoned = "Bake-0123456789ab", "Bake-ba9876543210"
    for name in (held, abandoned, workspace.artefact_name(Bake(2))):
        (staging / f"{name}.0011223344556677" / "deep").mkdir(parents=True)
    with FileLock(workspace.root / ".locks" / f"{held}.lock"):
        workspace.get(Bake(2))
    assert {folder.name.split(".")[0] for folder in staging.iterdir()} == {held}


def test_partial_work_of_a_complete_artefact_is_swept_up(workspace: Workspace) -> None:
    workspace.get(Bake(1))
    left, needed = workspace.partial_folder(Bake(1)), workspace.partial_folder(Bake(2))
    workspace.get(Bake(3))
    assert (left.exists(), needed.exists()) == (False, True)


def test_root_that_cannot_be_written_is_one_line_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    closed = Workspace(tmp_path / "file" / "work")
    for verb in (closed.get, closed.partial_folder):
        with pytest.raises(UserError, match=r"^cannot write in the workspace \(.*work\): Not a directory; [^\n]*$"):
            verb(Bake())


def test_a_damaged_artefact_is_deleted_when_it_is_made_again(workspace: Workspace) -> None:
    workspace.get(Bake(1))
    folder = workspace.root / workspace.artefact_name(Bake(1))
    spoil(folder / "tensors.safetensors", "truncated")
    (workspace.root / ".damaged" / f"{workspace.artefact_name(Bake(2))}.0011").mkdir(parents=True)
    with pytest.warns(CorruptArtefactWarning, match="it is made again now"):
        workspace.get(Bake(1))
    assert len(list((workspace.root / ".damaged").iterdir())) == 1
    workspace.get(Bake(2))
    assert not (workspace.root / ".damaged").exists()


def test_finished_work_is_there_in_milliseconds(workspace: Workspace) -> None:
    workspace.get(Bake(size=5_000_000))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        workspace.get(Bake(size=5_000_000))
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.2  # 17 ms on a quiet machine, all but 2 of it the checksum


@dataclass(frozen=True)
class Indexed(Recipe):
    """A recipe with facts, plain settings, links and a summary."""

    bread: Bake
    rest: tuple[Bake, ...] = ()
    threshold: float = 0.5
    kind: ClassVar[str] = "trial"

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(table=pandas.DataFrame({"x": [1.0, 3.0]}))

    def describe(self) -> dict[str, str | int]:
        return {"corpus": "flour", "seed": 7}

    def summarize(self, artefact: Artefact) -> pandas.DataFrame:
        return pandas.DataFrame({"metric": ["mean"], "value": [artefact.table["x"].mean()]})


def test_index_has_facts_settings_and_links_and_the_summary_is_stored(workspace: Workspace) -> None:
    recipe = Indexed(Bake(1), (Bake(2), Bake(1)))
    workspace.get(Bake(1))
    assert workspace.get(recipe).summary.to_dict("records") == [{"metric": "mean", "value": 2.0}]
    [entry] = [entry for entry in workspace.entries() if entry.kind == "trial"]
    first, second = workspace.artefact_name(Bake(1)), workspace.artefact_name(Bake(2))
    assert (entry.facts, entry.settings) == ({"corpus": "flour", "seed": 7}, {"threshold": 0.5})
    assert entry.links == {"bread": [first], "rest": [second, first]}
    assert (entry.link("bread"), entry.link("nothing")) == (first, None)
    rows = {row["name"]: row for row in workspace.index().to_dict("records")}
    assert [rows[entry.name][fact] for fact in ("kind", "corpus", "seed")] == ["trial", "flour", 7]
    assert rows[first]["kind"] == "other"


def test_bytes_are_verified_once_per_process_and_again_after_a_change(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    original = artefact_files._file_entry

    def record(path: Path) -> object:
        hashed.append(path.name)
        return original(path)

    monkeypatch.setattr(artefact_files, "_file_entry", record)
    workspace.get(Bake())
    hashed.clear()
    workspace.get(Bake())
    workspace.entries()[0].load()
    assert "tensors.safetensors" not in hashed
    path = workspace.root / workspace.artefact_name(Bake()) / "tensors.safetensors"
    path.write_bytes(path.read_bytes())
    workspace.get(Bake())
    assert hashed.count("tensors.safetensors") == 1
