"""The runner: needs first, each once, failures told and survived, here and on several processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from heedful import papers
from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Recipe, Step, Workspace
from heedful.runner import ordered, run


@dataclass(frozen=True)
class Number(Recipe):
    """A number; counts how often it is made in a file of the workspace."""

    value: int
    needed: tuple[Recipe, ...] = ()

    def make(self, workspace: Workspace) -> Artefact:
        with workspace.progress.task(f"number {self.value}", 2) as step:
            step(1, "half")
            step(1)
        with open(workspace.root / "made.txt", "a", encoding="utf-8") as file:
            file.write(f"{self.value}\n")
        return Artefact(table=pd.DataFrame({"value": [self.value]}))


@dataclass(frozen=True)
class Broken(Recipe):
    """A recipe with a bug in it, or with a complaint for the user."""

    plain: bool = False

    def make(self, workspace: Workspace) -> Artefact:
        if self.plain:
            raise UserError("the cup is empty; fill it")
        raise ZeroDivisionError("by zero")


def made(workspace: Workspace) -> list[str]:
    return (workspace.root / "made.txt").read_text(encoding="utf-8").split()


def test_needs_come_first_and_once() -> None:
    leaf = Number(1)
    left, right = Number(2, (leaf,)), Number(3, (leaf,))
    assert ordered([Number(4, (left, right)), right]) == [leaf, left, right, Number(4, (left, right))]


@pytest.mark.parametrize("workers", [1, 2])
def test_each_recipe_is_made_once(tmp_path: Path, workers: int) -> None:
    leaf = Number(1)
    recipes = [Number(2, (leaf,)), Number(3, (leaf,))]
    workspace = Workspace(tmp_path)
    outcomes = run(recipes, workspace, workers=workers)
    assert [outcome.error for outcome in outcomes] == [None, None, None]
    assert sorted(made(workspace)) == ["1", "2", "3"]
    run(recipes, workspace, workers=workers)
    assert len(made(workspace)) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_is_told_with_its_traceback_and_the_others_go_on(tmp_path: Path, workers: int) -> None:
    workspace = Workspace(tmp_path)
    outcomes = run([Number(5, (Broken(),)), Number(6), Broken(plain=True)], workspace, workers=workers)
    by_recipe = {outcome.recipe: outcome for outcome in outcomes}
    broken = by_recipe[Broken()]
    assert broken.error == "ZeroDivisionError: by zero"
    assert broken.trace is not None
    assert "ZeroDivisionError: by zero" in broken.trace.read_text(encoding="utf-8")
    assert "not tried, because Broken-" in (by_recipe[Number(5, (Broken(),))].error or "")
    assert by_recipe[Broken(plain=True)].error == "the cup is empty; fill it"
    assert by_recipe[Broken(plain=True)].trace is None
    assert made(workspace) == ["6"]
    assert [finished.kind for finished in workspace.finished()] == ["Number"]


class Heard:
    """A progress that writes down what it hears."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Step]:
        self.words.append(f"{title} of {total}")

        def step(advance: int = 1, note: str = "") -> None:
            self.words.append(f"{advance} {note}".strip())

        yield step
        self.words.append("end")


def test_workers_tell_their_progress_to_the_one_screen(tmp_path: Path) -> None:
    heard = Heard()
    run([Number(1), Number(2)], Workspace(tmp_path, progress=heard), workers=2)
    assert sorted(heard.words) == sorted(2 * ["1 half", "1", "end"] + ["number 1 of 2", "number 2 of 2"])


OWN = """
from dataclasses import dataclass

import pandas as pd
from beside import VALUE
from heedful import Artefact, Recipe

@dataclass(frozen=True)
class Own(Recipe):
    number: int

    def make(self, workspace):
        return Artefact(table=pd.DataFrame({"value": [self.number * VALUE]}))

def recipes():
    return [Own(1), Own(2)]
"""


def test_workers_know_the_classes_of_a_users_own_file_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3\n", encoding="utf-8")
    (tmp_path / "own_file.py").write_text(OWN, encoding="utf-8")
    recipes = papers.recipes(str(tmp_path / "own_file.py"), papers.Choice(), tmp_path)
    workspace = Workspace(tmp_path / "work")
    outcomes = run(recipes, workspace, workers=2)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert workspace.get(recipes[1]).table["value"].tolist() == [6]
