"""The runner: needs first, each once, failures told and survived, here and on several processes.

Starting processes is slow, so one run on two of them is looked at from all sides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch

from heedful.progress import StepCallback
from heedful.runner import WORKER_DIED, Outcome, recipes_from_file, run, topological_order
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import MAX_CACHED_MODELS, LoadedModel
from heedful.training.trained_model import TrainedModel
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.types import UserError
from tests.tiny import subject


@dataclass(frozen=True)
class Number(Recipe):
    """A number; counts how often it is made in a file of the workspace."""

    value: int
    needed: tuple[Recipe, ...] = ()

    def make(self, workspace: Workspace) -> Artefact:
        with workspace.progress.task(f"number {self.value}", 2) as step:
            step(1, "half")
            step(1)
        write_down(str(self.value), workspace)
        return Artefact(table=pd.DataFrame({"value": [self.value]}))


@dataclass(frozen=True)
class Broken(Recipe):
    """A recipe with a bug in it, or with a complaint for the user."""

    plain: bool = False

    def make(self, workspace: Workspace) -> Artefact:
        if self.plain:
            raise UserError("the cup is empty; fill it")
        raise ZeroDivisionError("by zero")


@dataclass(frozen=True)
class Deadly(Recipe):
    """A recipe under which the process is killed as the system kills when memory is short."""

    times: int
    needed: tuple[Recipe, ...] = ()

    def make(self, workspace: Workspace) -> Artefact:
        with workspace.progress.task(f"deadly {self.times}", 1):
            word = f"deadly-{self.times}"
            write_down(word, workspace)
            if made(workspace).count(word) <= self.times:
                os.kill(os.getpid(), signal.SIGKILL)
        return Artefact(table=pd.DataFrame({"value": [self.times]}))


def write_down(word: str, workspace: Workspace) -> None:
    with open(workspace.root / "made.txt", "a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def made(workspace: Workspace) -> list[str]:
    return (workspace.root / "made.txt").read_text(encoding="utf-8").split()


class Heard:
    """A progress that writes down what it hears, and knows which tasks are still open."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.open: list[str] = []

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[StepCallback]:
        self.words.append(f"{title} of {total}")
        self.open.append(title)

        def step(advance: int = 1, note: str = "") -> None:
            self.words.append(f"{title}: {advance} {note}".strip())

        try:
            yield step
        finally:
            self.open.remove(title)


OWN = """
from dataclasses import dataclass

import pandas as pd
from beside import VALUE
from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class Own(Recipe):
    number: int

    def make(self, workspace):
        return Artefact(table=pd.DataFrame({"value": [self.number * VALUE]}))

def recipes():
    return [Own(1), Own(2)]
"""
LEAF = Number(1)
ONCE = Deadly(times=1)
ALWAYS = Deadly(times=9, needed=(ONCE,))
ASKED: tuple[Recipe, ...] = (
    ONCE,
    Number(2, (LEAF,)),
    Number(3, (LEAF,)),
    Number(5, (Broken(),)),
    Broken(plain=True),
    Number(6),
    Number(7, (ALWAYS,)),
)


@dataclass(frozen=True)
class Ran:
    """One run on two processes: what became of each recipe, and what was heard of it."""

    workspace: Workspace
    outcomes: dict[Recipe, Outcome]
    heard: Heard
    own: tuple[Recipe, ...]

    def error(self, recipe: Recipe) -> str | None:
        return self.outcomes[recipe].error


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    (folder / "beside.py").write_text("VALUE = 3\n", encoding="utf-8")
    (folder / "own_file.py").write_text(OWN, encoding="utf-8")
    own = recipes_from_file(folder / "own_file.py")
    heard = Heard()
    workspace = Workspace(folder / "work", progress=heard)
    outcomes = run([*ASKED, *own], workspace, workers=2)
    return Ran(workspace, {outcome.recipe: outcome for outcome in outcomes}, heard, tuple(own))


def test_needs_come_first_and_once() -> None:
    leaf = Number(1)
    left, right = Number(2, (leaf,)), Number(3, (leaf,))
    assert topological_order([Number(4, (left, right)), right]) == [leaf, left, right, Number(4, (left, right))]


def test_each_recipe_is_made_once_here(tmp_path: Path) -> None:
    recipes = [Number(2, (LEAF,)), Number(3, (LEAF,))]
    workspace = Workspace(tmp_path)
    assert [outcome.error for outcome in run(recipes, workspace)] == [None, None, None]
    assert made(workspace) == ["1", "2", "3"]
    run(recipes, workspace)
    assert len(made(workspace)) == 3


def test_each_recipe_is_made_once_on_two_processes_though_neighbours_are_killed(ran: Ran) -> None:
    numbers = [word for word in made(ran.workspace) if word.isdigit()]
    assert sorted(numbers) == ["1", "2", "3", "6"]
    assert numbers.index("1") < min(numbers.index("2"), numbers.index("3"))
    assert [ran.error(recipe) for recipe in (LEAF, ASKED[1], ASKED[2], Number(6))] == [None] * 4


def told_and_survived(outcomes: dict[Recipe, Outcome]) -> bool:
    """Whether both broken recipes were told as they should be, and what needs one was not tried."""
    broken, plain = outcomes[Broken()], outcomes[Broken(plain=True)]
    assert broken.traceback_file is not None
    return (
        broken.error == "ZeroDivisionError: by zero"
        and "ZeroDivisionError: by zero" in broken.traceback_file.read_text(encoding="utf-8")
        and (plain.error, plain.traceback_file) == ("the cup is empty; fill it", None)
        and "skipped, because Broken-" in (outcomes[Number(5, (Broken(),))].error or "")
        and outcomes[Number(6)].error is None
    )


def test_a_failure_is_told_with_its_traceback_and_the_others_go_on_here(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    outcomes = run([Number(5, (Broken(),)), Number(6), Broken(plain=True)], workspace)
    assert told_and_survived({outcome.recipe: outcome for outcome in outcomes})
    assert made(workspace) == ["6"]


def test_a_failure_is_told_with_its_traceback_and_the_others_go_on_on_two_processes(ran: Ran) -> None:
    assert told_and_survived(ran.outcomes)


def test_a_recipe_whose_worker_was_killed_once_is_made_by_another(ran: Ran) -> None:
    assert ran.error(ONCE) is None
    assert made(ran.workspace).count("deadly-1") == 2
    assert ran.workspace.get(ONCE).table["value"].tolist() == [1]


def test_a_recipe_that_kills_its_worker_twice_has_failed_in_plain_words(ran: Ran) -> None:
    assert ran.error(ALWAYS) == WORKER_DIED
    assert made(ran.workspace).count("deadly-9") == 2
    assert not ran.workspace.has(ALWAYS)
    assert "skipped, because Deadly-" in (ran.error(Number(7, (ALWAYS,))) or "")


def test_workers_tell_their_progress_to_the_one_screen_and_the_killed_leave_no_bar(ran: Ran) -> None:
    words = ran.heard.words
    for number in (1, 2, 3, 6):
        start = words.index(f"number {number} of 2")
        assert f"number {number}: 1 half" in words[start:]
        assert words.count(f"number {number}: 1") == 1
    assert words.count("deadly 9 of 1") == 2
    assert ran.heard.open == []


def test_one_bar_counts_all_recipes(ran: Ran) -> None:
    assert ran.heard.words[0] == f"all recipes of {len(ran.outcomes)}"
    assert sum(word.startswith("all recipes: 1") for word in ran.heard.words) == len(ran.outcomes)


def test_workers_know_the_classes_of_a_users_own_file_and_its_neighbours(ran: Ran) -> None:
    assert [ran.error(recipe) for recipe in ran.own] == [None, None]
    assert [ran.workspace.get(recipe).table["value"].tolist() for recipe in ran.own] == [[3], [6]]


def test_two_trials_on_one_model_load_it_once_and_a_changed_model_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    load = TrainedModel.load_model

    def counted(recipe: TrainedModel, workspace: Workspace) -> LoadedModel:
        loads.append(recipe)
        return load(recipe, workspace)

    monkeypatch.setattr(TrainedModel, "load_model", counted)
    workspace, model = Workspace(tmp_path), subject()
    outcomes = run([Performance(model), Permutation(model, permutations=2, limit=5)], workspace)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert len(loads) == 1
    assert workspace.model_cache is None
    workspace.model_cache = {}
    first = model.restore(workspace).model
    assert model.restore(workspace).model is first
    assert not first.training
    with torch.no_grad():
        next(first.parameters()).add_(1.0)
    second = model.restore(workspace).model
    assert second is not first
    second.requires_grad_(False)
    assert model.restore(workspace).model is not second
    for seed in range(1, 6):
        subject(seed=seed, epochs=2).restore(workspace)
    assert len(workspace.model_cache) == MAX_CACHED_MODELS


SLOW_FILE = """
import time
from dataclasses import dataclass

from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class Slow(Recipe):
    number: int

    def make(self, workspace):
        with workspace.progress.task(f"slow {self.number}", 600) as step:
            for _ in range(600 * (self.number > 0)):
                time.sleep(0.1)
                step()
        return Artefact(notes={"number": self.number})

def recipes():
    return [Slow(number) for number in range(4)]
"""


def living_processes(group: int) -> list[str]:
    """The processes of a group that are no zombies."""
    stats = [path.read_text().rsplit(")", 1)[1].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return [fields[0] for fields in stats if int(fields[2]) == group and fields[0] != "Z"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_keeps_what_is_finished_and_leaves_no_process_and_no_leaked_semaphore(tmp_path: Path) -> None:
    (tmp_path / "slow_file.py").write_text(SLOW_FILE, encoding="utf-8")
    command = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from heedful.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command, "run", "slow_file.py", "-w", "work", "--workers", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "work").glob("Slow-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "leaked" not in errors
    assert len(list((tmp_path / "work").glob("Slow-*"))) == 1
    while (left := living_processes(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
