"""`heedful workspace`: what is stored, how large it is, and that nothing goes that something else was made from."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from heedful import cli
from heedful.store.inventory import Inventory
from heedful.store.recipe import Artefact, Json, Recipe
from heedful.store.workspace import Workspace


@dataclass(frozen=True)
class Grain(Recipe):
    kind = "grain"
    seed: int = 0

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact({"weights": torch.zeros(5000)})

    def describe(self) -> dict[str, Json]:
        return {"corpus": "rye", "seed": self.seed}


@dataclass(frozen=True)
class Bread(Recipe):
    kind = "bread"
    grain: Grain

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return (self.grain,)

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(notes={"grains": len(workspace.get(self.grain).tensors["weights"])})


@dataclass(frozen=True)
class Toast(Recipe):
    kind = "toast"
    bread: Bread

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return (self.bread,)

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(notes={**workspace.get(self.bread).notes, "brown": True})


TOAST = Toast(Bread(Grain()))
OTHER = Bread(Grain(1))


@pytest.fixture
def stored(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "work", data_dir=tmp_path)
    for recipe in (TOAST, OTHER):
        workspace.get(recipe)
    return workspace


def call(workspace: Workspace, *words: str) -> Result:
    return CliRunner().invoke(cli.app, ["workspace", *words, "-w", str(workspace.root)], env={"COLUMNS": "200"})


def name(workspace: Workspace, recipe: Recipe) -> str:
    return workspace.artefact_name(recipe)


def test_sizes_are_those_of_the_files_without_the_manifest(stored: Workspace) -> None:
    inventory = Inventory(stored)
    for item in inventory.items.values():
        files = [path for path in item.entry.path.iterdir() if path.name != "manifest.json"]
        assert item.size == sum(path.stat().st_size for path in files)
        assert datetime.date.fromisoformat(item.date[:10]) >= datetime.date.today() - datetime.timedelta(1)
    kinds = inventory.sizes
    assert {kind: count for kind, (count, _) in kinds.items()} == {"grain": 2, "bread": 2, "toast": 1}
    assert next(iter(kinds)) == "grain"  # the tensors
    assert sum(size for _, size in kinds.values()) == sum(item.size for item in inventory.items.values())


def test_what_was_made_from_an_artefact_is_known_over_all_steps(stored: Workspace) -> None:
    inventory = Inventory(stored)
    grain, bread, toast = (name(stored, recipe) for recipe in (Grain(), TOAST.bread, TOAST))
    assert inventory.items[grain].needed_by == (bread,)
    assert inventory.dependents([grain]) == sorted([bread, toast])
    assert inventory.dependents([grain, bread]) == [toast]
    assert inventory.dependents([toast]) == []


def test_list_has_every_artefact_and_can_be_narrowed(stored: Workspace) -> None:
    result = call(stored, "list")
    assert result.exit_code == 0
    assert all(name(stored, recipe) in result.output for recipe in (Grain(), Grain(1), TOAST.bread, TOAST, OTHER))
    grains = call(stored, "list", "--kind", "grain", "--sort", "size").output
    assert grains.count("rye") == 2
    assert "seed 1" in grains
    assert "Toast" not in grains
    for wrong in (("--kind", "cake"), ("--sort", "taste")):
        refused = call(stored, "list", *wrong)
        assert refused.exit_code == 2
        assert wrong[1] in refused.output


def test_show_says_what_it_was_made_from_and_what_needs_it(stored: Workspace) -> None:
    bread = name(stored, TOAST.bread)
    output = call(stored, "show", bread[:-1]).output
    assert name(stored, Grain()) in output
    assert name(stored, TOAST) in output
    assert '"grain"' in output
    ambiguous = call(stored, "show", "Bread-")
    assert ambiguous.exit_code == 2
    assert name(stored, OTHER) in ambiguous.output
    assert call(stored, "show", "Cake-000000000000").exit_code == 2


def test_nothing_is_removed_that_something_else_was_made_from(stored: Workspace) -> None:
    grain = name(stored, Grain())
    refused = call(stored, "remove", grain)
    assert refused.exit_code == 2
    assert name(stored, TOAST) in refused.output or name(stored, TOAST.bread) in refused.output
    assert all(map(stored.has, (Grain(), TOAST.bread, TOAST)))
    planned = call(stored, "remove", grain, "--with-dependents", "--dry-run")
    assert planned.exit_code == 0
    assert name(stored, TOAST) in planned.output
    assert stored.has(TOAST)
    assert call(stored, "remove", grain, "--with-dependents").exit_code == 0
    assert [stored.has(recipe) for recipe in (Grain(), TOAST.bread, TOAST, Grain(1), OTHER)] == [False] * 3 + [True] * 2


def test_an_empty_workspace_is_no_error(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "nothing", data_dir=tmp_path)
    assert call(workspace, "list", "--kind", "model").exit_code == 0
    assert call(workspace, "size").exit_code == 0
    assert not workspace.root.exists()
