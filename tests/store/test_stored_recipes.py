"""From a stored artefact back to its recipe."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import ClassVar

import pytest

from heedful.papers.disagreement import DisagreementOptions
from heedful.papers.jain_wallace import JainWallaceOptions
from heedful.papers.wiegreffe_pinter import WiegreffePinterOptions
from heedful.store.recipe import Artefact, Json, Recipe, artefact_name, canonical_json, recipe_from_json
from heedful.store.workspace import Workspace
from heedful.types import UserError
from tests.tiny import subject


class Shape(Enum):
    ROUND = "round"


@dataclass(frozen=True)
class Holds(Recipe):
    """Every kind of value that a recipe may hold."""

    number: float = float("inf")
    shape: Shape = Shape.ROUND
    place: Path = Path("a/b")
    written: str | Path = "a/b"
    parts: tuple[Recipe, ...] = ()
    nothing: int | None = None

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(notes={"n": 1})


def canonical(recipe: Recipe) -> dict[str, Json]:
    form = canonical_json(recipe, None)
    assert isinstance(form, dict)
    return form


@pytest.mark.parametrize(
    "recipes",
    [
        [Holds(), Holds(1.0, parts=(Holds(2.0), Holds(float("-inf"))))],
        JainWallaceOptions(corpora=("sst", "babi-1")).recipes(),
        WiegreffePinterOptions(corpora=("sst",)).recipes(),
        DisagreementOptions(corpora=("sst", "known-xor")).recipes(),
    ],
    ids=["own", "jain-wallace", "wiegreffe-pinter", "disagreement"],
)
def test_a_recipe_comes_back_from_its_canonical_form(recipes: list[Recipe]) -> None:
    for recipe in recipes:
        again = recipe_from_json(canonical(recipe))
        assert again == recipe
        assert artefact_name(canonical(again)) == artefact_name(canonical(recipe))


def test_a_row_of_the_index_leads_to_its_model(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.get(subject(seed=3))
    (name,) = workspace.index()["name"]
    recipe = workspace.read_recipe(str(name))
    assert recipe == subject(seed=3)
    assert workspace.get(recipe).notes["about"] == workspace.get(subject(seed=3)).notes["about"]


def test_what_does_not_lead_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path)
    workspace.get(Holds())
    name = workspace.artefact_name(Holds())
    for absent in ("Holds-000000000000", "../x", ""):
        with pytest.raises(UserError, match="workspace list"):
            workspace.read_recipe(absent)
    monkeypatch.setattr(Holds, "revision", 2)
    with pytest.raises(UserError, match=name):
        workspace.read_recipe(name)


@pytest.mark.parametrize(
    "form",
    [
        *("text", 5, [], {}, {"type": 5}, {"type": "os.system"}, {"type": "heedful.nothing.Here"}),
        *({"type": "heedful.types.Example", "uid": "a"}, {"float": "many"}),
        {"type": "heedful.trials.performance.Performance", "subject": {"type": "antigravity.Model"}},
        {"type": "heedful.trials.performance.Performance"},
    ],
)
def test_nothing_is_imported_or_made_that_is_not_a_recipe(form: Json) -> None:
    with pytest.raises(UserError):
        recipe_from_json(form)
    assert "antigravity" not in sys.modules


@dataclass
class Mutable:
    """A dataclass that is imported, but cannot be part of a recipe."""

    made: ClassVar[list[str]] = []
    name: str = ""

    def __post_init__(self) -> None:
        self.made.append(self.name)


def test_a_form_that_is_nested_too_deeply_is_refused() -> None:
    form: Json = "text"
    for _ in range(5000):
        form = [form]
    with pytest.raises(UserError):
        recipe_from_json({"type": "heedful.trials.performance.Performance", "subject": form})


def test_no_constructor_is_called_that_is_not_of_a_frozen_dataclass() -> None:
    part: Json = {"type": f"{__name__}.Mutable", "name": "x"}
    with pytest.raises(UserError):
        recipe_from_json({"type": "heedful.trials.performance.Performance", "subject": part})
    assert Mutable.made == []


def test_another_seed_is_one_replacement_away(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.get(subject())
    recipe = workspace.read_recipe(workspace.artefact_name(subject()))
    assert replace(recipe, seed=7) == subject(seed=7)  # type: ignore[type-var]
