"""Artefacts on disk: what goes in comes out, what cannot is refused by name, a full disk leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas
import pyarrow.parquet
import pytest
import torch

from heedful.store import artefact_files
from heedful.store.artefact_files import CorruptArtefactError
from heedful.store.recipe import Artefact, Json, Recipe, dump_compact_json
from heedful.store.workspace import Workspace
from heedful.types import UserError

Serve = Callable[[Artefact], Artefact]
FILES = ("tensors.safetensors", "table.parquet", "notes.json", "recipe.json", "index.json", "manifest.json")


@dataclass(frozen=True)
class Given(Recipe):
    """Gives back what the test put on the table beforehand."""

    served: ClassVar[Artefact] = Artefact()
    plate: int = 0

    def make(self, workspace: Workspace) -> Artefact:
        return self.served


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "work", data_dir=tmp_path)


@pytest.fixture
def serve(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Stores an artefact and reads it."""

    def store(artefact: Artefact) -> Artefact:
        monkeypatch.setattr(Given, "served", artefact)
        return workspace.get(Given())

    return store


def test_tensors_of_every_dtype_and_shape_come_back(serve: Serve) -> None:
    kinds = [torch.bool, torch.uint8, torch.int64, torch.int16, torch.float16, torch.bfloat16, torch.float64]
    tensors = {f"{kind}": torch.tensor([[0, 1], [2, 3]]).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 4)}
    back = serve(Artefact(tensors)).tensors
    assert list(back) == sorted(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_views_tied_weights_and_parameters_are_kept_contiguous(serve: Serve) -> None:
    table = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    tensors = {
        "table": table,
        "tied": table,
        "turned": table.T,
        "column": table[:, 1],
        "wide": torch.ones(1).expand(4),
    }
    back = serve(Artefact(tensors)).tensors
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in back.values())
    assert back["tied"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert back["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (back["column"].tolist(), back["wide"].tolist()) == ([1, 4], [1, 1, 1, 1])


def test_empty_artefact_comes_back_empty(serve: Serve) -> None:
    back = serve(Artefact())
    assert (dict(back.tensors), back.table.shape, dict(back.notes)) == ({}, (0, 0), {})


def test_table_with_lists_comes_back_without_its_index(serve: Serve) -> None:
    columns = {
        "uid": ["a", "b", "ç<script>"],
        "n": [1, 2, 3],
        "sure": [True, False, True],
        "tokens": [["the", "cat"], [], ["x"]],
        "scores": [[0.5, -1.0], [], [1e-300]],
        "pairs": [[[1, 2], [3]], [], [[]]],
    }
    table = pandas.DataFrame(columns, index=pandas.Index([7, 8, 9], name="row"))
    back = serve(Artefact(table=table)).table
    assert {name: back[name].tolist() for name in back} == columns
    assert list(back.index) == [0, 1, 2]
    assert back.dtypes["n"] == "int64"


def test_missing_numbers_in_a_table_stay_missing(serve: Serve) -> None:
    table = pandas.DataFrame({"tau": [0.5, float("nan")], "list": [[1.0, float("nan")], None]})
    back = serve(Artefact(table=table)).table
    assert back["tau"].isna().tolist() == [False, True]
    assert str(back["list"].tolist()) == "[[1.0, nan], None]"


def test_table_with_a_column_that_has_no_word_for_a_name_is_refused(serve: Serve) -> None:
    with pytest.raises(ValueError, match="must be strings, not 0"):
        serve(Artefact(table=pandas.DataFrame([[1, 2]])))


def test_notes_come_back_as_valid_json(workspace: Workspace, serve: Serve) -> None:
    notes: dict[str, Json] = {"a": [1, 2.5, None, True], "b": {"ü\ud800": "x\n"}, "big": 2**80}
    assert serve(Artefact(notes=notes)).notes == notes
    assert json.loads((workspace.root / workspace.artefact_name(Given()) / "notes.json").read_text()) == notes


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_number_that_is_not_finite_is_refused_by_its_key(workspace: Workspace, serve: Serve, number: float) -> None:
    with pytest.raises(ValueError, match=r"^notes\.epochs\[1\]\.loss is -?(nan|inf)"):
        serve(Artefact(notes={"epochs": [{"loss": 1.0}, {"loss": number}]}))
    assert not workspace.has(Given())


@pytest.mark.parametrize("alien", [torch.tensor(1.0), b"x", {1: 2}])
def test_note_that_is_not_json_is_refused_by_its_key(serve: Serve, alien: Json) -> None:
    with pytest.raises(TypeError, match=r"^notes\.odd "):
        serve(Artefact(notes={"odd": alien}))


def test_make_that_gives_no_artefact_is_refused(serve: Serve) -> None:
    with pytest.raises(TypeError, match=r"Given\.make .*dict"):
        serve({})  # type: ignore[arg-type]


@pytest.mark.parametrize("file", FILES)
def test_every_flipped_bit_is_detected(workspace: Workspace, serve: Serve, file: str) -> None:
    table = pandas.DataFrame({"uid": ["a", "b"], "score": [0.5, 1.5]})
    serve(Artefact({"w": torch.arange(9.0)}, table, {"note": "kept"}))
    [found] = workspace.entries()
    content = (found.path / file).read_bytes()
    for index in range(0, len(content), max(1, len(content) // 150)):
        flipped = bytearray(content)
        flipped[index] ^= 1 << (index % 8)
        (found.path / file).write_bytes(flipped)
        with pytest.raises(CorruptArtefactError):
            found.load()
    (found.path / file).write_bytes(content)
    found.load()


@pytest.mark.parametrize("part", ["tensors", "table", "notes"])
def test_disk_that_is_full_is_one_line_and_leaves_nothing(workspace: Workspace, serve: Serve, part: str) -> None:
    big = {
        "tensors": Artefact(tensors={"w": torch.zeros(400_000)}),
        "table": Artefact(table=pandas.DataFrame({"x": torch.rand(200_000).numpy()})),
        "notes": Artefact(notes={"x": "y" * 1_500_000}),
    }[part]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(UserError, match=r"^cannot write in the workspace \([^)]*work\): .*File too large[^\n]*$"):
            serve(big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert workspace.entries() == []
    assert list((workspace.root / ".staging").iterdir()) == []
    serve(big)
    assert workspace.has(Given())


def test_everything_is_on_the_disk_before_the_name_is(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split(".")[0])
        fsync(descriptor)

    def note_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    workspace.get(Given())
    folder = workspace.artefact_name(Given())
    # The record of its making comes last; nothing depends on it.
    assert events == ["index", "notes", "recipe", "manifest", folder, "rename", "work", folder]


@dataclass(frozen=True)
class _Weights(Recipe):
    """A model with a seed."""

    kind: ClassVar[str] = "model"
    seed: int = 0
    width: int = 2

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact({"w": torch.zeros(self.width)}, notes={"seed": self.seed})


@dataclass(frozen=True)
class _Test(Recipe):
    """A trial with a seed of its own."""

    subject: _Weights
    seed: int = 0

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact()


def test_artefacts_that_differ_only_in_seeds_of_models_have_one_group(workspace: Workspace) -> None:
    for recipe in (_Test(_Weights(0)), _Test(_Weights(1)), _Test(_Weights(0, width=3)), _Test(_Weights(0), seed=1)):
        workspace.get(recipe)
    groups = {entry.name: entry.group for entry in workspace.entries()}
    base, other_seed, other_width, other_trial = (
        groups.get(workspace.artefact_name(recipe))
        for recipe in (_Test(_Weights(0)), _Test(_Weights(1)), _Test(_Weights(0, width=3)), _Test(_Weights(0), seed=1))
    )
    assert base == other_seed
    assert len({base, other_width, other_trial}) == 3


def test_an_entry_loads_without_weights_and_does_not_read_them(workspace: Workspace) -> None:
    workspace.get(_Weights(seed=4))
    [entry] = workspace.entries()
    tensors = entry.path / "tensors.safetensors"
    tensors.write_bytes(bytes(tensors.stat().st_size))
    assert entry.load(tensors=False).notes == {"seed": 4}
    with pytest.raises(CorruptArtefactError):
        entry.load()


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        ('{"kind":"other","recipe_class":"Given","facts":{},"settings":{},"links":{},"group":"g","memory":1}', 1),
        ('{"kind":"other"}', 0),
        ("[1]", 0),
        ("no JSON", 0),
    ],
)
def test_an_index_file_may_have_more_than_is_known_and_else_is_damage(
    content: str, entries: int, workspace: Workspace, serve: Serve
) -> None:
    serve(Artefact())
    [folder] = (path for path in workspace.root.iterdir() if not path.name.startswith("."))
    (folder / "index.json").write_text(content)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["index.json"] = [len(content), hashlib.sha256(content.encode()).hexdigest()]
    (folder / "manifest.json").write_text(dump_compact_json(manifest))
    entries_found, damages = workspace.scan()
    assert (len(entries_found), len(damages)) == (entries, 1 - entries)
    assert all("index.json" in str(damage) for damage in damages)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (({"a": ["x"], "b": [1]}, {"a": ["y"]}), {"a": ["x", "y"], "b": [1, None]}),
        (({"a": [None]}, {"a": ["y"]}), {"a": [None, "y"]}),
        (({"a": ["x"]}, {"a": [None]}), {"a": ["x", None]}),
    ],
)
def test_tables_that_lack_a_column_or_its_type_are_merged_as_those_in_memory(
    tables: tuple[dict[str, list[object]], ...], expected: dict[str, list[object]], tmp_path: Path
) -> None:
    frames, files = [pandas.DataFrame(columns) for columns in tables], []
    for number, frame in enumerate(frames):
        (tmp_path / str(number)).mkdir()
        artefact_files.write_artefact(tmp_path / str(number), Artefact(table=frame), {})
        files.append(tmp_path / str(number))
    (tmp_path / "empty").mkdir()  # a shard whose table has no columns
    for name in ("merged", "whole"):
        (tmp_path / name).mkdir()
    artefact_files.write_artefact(tmp_path / "merged", Artefact(), {}, [*files, tmp_path / "empty"])
    whole = Artefact(table=pandas.concat(frames, ignore_index=True), blocks=(1, 1))
    artefact_files.write_artefact(tmp_path / "whole", whole, {})
    merged = pyarrow.parquet.read_table(tmp_path / "merged" / "table.parquet")
    assert merged.to_pydict() == expected
    if len(tables[0]) == len(tables[1]):
        assert (tmp_path / "merged" / "table.parquet").read_bytes() == (
            tmp_path / "whole" / "table.parquet"
        ).read_bytes()
