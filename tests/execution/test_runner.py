"""The runner: dependencies first, each recipe once, failures recorded while others go on, here and in a pool.

Starting processes is slow, so several tests look at one run with two of them.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pytest
import torch
from numpy.random import default_rng

from heedful import progress
from heedful.cli import guard
from heedful.execution.outcome import WORKER_DIED, Outcome
from heedful.execution.process_pool import MAX_WARNING_CHARACTERS, LocalPool
from heedful.execution.runner import OUT_OF_TIME, _Queue, recipes_from_file, run, topological_order
from heedful.progress import StepCallback
from heedful.store.atomic_write import WriteError, translate_write_errors
from heedful.store.recipe import Artefact, Json, Recipe, Resources
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import MAX_CACHED_MODELS, LoadedModel
from heedful.training.trained_model import TrainedModel
from heedful.trials.performance import Performance
from heedful.trials.permutation import Permutation
from heedful.types import DiskResource, UserError
from tests.tiny import subject

if TYPE_CHECKING:
    from heedful.execution.ray_pool import RayPool


@dataclass(frozen=True)
class Number(Recipe):
    """A number; writes a line to a file of the workspace when it is made."""

    value: int
    depends_on: tuple[Recipe, ...] = ()

    def make(self, workspace: Workspace) -> Artefact:
        with workspace.progress.task(f"number {self.value}", 2) as step:
            step(1, "half")
            step(1)
        write_down(str(self.value), workspace)
        return Artefact(table=pd.DataFrame({"value": [self.value]}))


@dataclass(frozen=True)
class Broken(Recipe):
    """A recipe with a bug, or with an error for the user."""

    user_error: bool = False

    def make(self, workspace: Workspace) -> Artefact:
        if self.user_error:
            raise UserError("no data; fetch it")
        raise ZeroDivisionError("by zero")


@dataclass(frozen=True)
class Exits(Recipe):
    """A recipe that ends the process, as a script may do."""

    status: object

    def make(self, workspace: Workspace) -> Artefact:
        sys.exit(self.status)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Deadly(Recipe):
    """A recipe whose process is killed this many times, as by the system when memory is short."""

    times: int
    depends_on: tuple[Recipe, ...] = ()

    def make(self, workspace: Workspace) -> Artefact:
        with workspace.progress.task(f"deadly {self.times}", 1):
            word = f"deadly-{self.times}"
            write_down(word, workspace)
            if made(workspace).count(word) <= self.times:
                os.kill(os.getpid(), signal.SIGKILL)
        return Artefact(table=pd.DataFrame({"value": [self.times]}))


@dataclass(frozen=True)
class Settings(Recipe):
    """A recipe that notes the settings of its workspace."""

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(notes={"settings": settings(workspace)})


def settings(workspace: Workspace) -> list[Json]:
    """What a user chose, wherever recipes are made."""
    return [workspace.batch_size, workspace.automatic_batch_size, str(workspace.data_dir), workspace.device]


def write_down(word: str, workspace: Workspace) -> None:
    with open(workspace.root / "made.txt", "a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def made(workspace: Workspace) -> list[str]:
    return (workspace.root / "made.txt").read_text(encoding="utf-8").split()


class RecordedProgress:
    """A progress that records all messages and the tasks that are still open."""

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


FRAGILE = """
import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from heedful.store import Artefact, Recipe

if multiprocessing.parent_process() is not None:
    mark = Path(__file__).with_name("first")
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        os.kill(os.getpid(), signal.SIGKILL)

@dataclass(frozen=True)
class Fragile(Recipe):
    number: int

    def make(self, workspace):
        return Artefact(notes={"number": self.number})

def recipes():
    return [Fragile(1), Fragile(2)]
"""
OWN = """
from dataclasses import dataclass

import pandas as pd
from neighbor import VALUE
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
ALWAYS = Deadly(times=9, depends_on=(ONCE,))
RECIPES: tuple[Recipe, ...] = (
    ONCE,
    Number(2, (LEAF,)),
    Number(3, (LEAF,)),
    Number(5, (Broken(),)),
    Broken(user_error=True),
    Number(6),
    Number(7, (ALWAYS,)),
)


@dataclass(frozen=True)
class Ran:
    """One run of many recipes with several workers: the outcomes, the progress messages and the warnings."""

    workspace: Workspace
    outcomes: dict[Recipe, Outcome]
    progress: RecordedProgress
    own: tuple[Recipe, ...]
    warnings: tuple[str, ...]

    def error(self, recipe: Recipe) -> str | None:
        return self.outcomes[recipe].error


def own_recipes(path: Path, *, keep: bool = True) -> list[Recipe]:
    """The recipes of a user's file that imports its neighbor; both may be gone afterwards, as on another machine."""
    neighbor = path.with_name("neighbor.py")
    neighbor.write_text("VALUE = 3\n", encoding="utf-8")
    path.write_text(OWN, encoding="utf-8")
    recipes = recipes_from_file(path)
    if not keep:
        path.unlink()
        neighbor.unlink()
    return recipes


def run_all(folder: Path, own: Sequence[Recipe], *others: Recipe, where: str, workers: int | None = None) -> Ran:
    """Run the recipes of this file with settings that are not the usual ones."""
    (folder / "data").mkdir()
    progress = RecordedProgress()
    workspace = Workspace(
        folder / "work", progress=progress, data_dir=folder / "data", batch_size=7, automatic_batch_size=True
    )
    recipes = [*RECIPES, *own, Doubtful(1), Settings(), *others]
    with pytest.warns(UserWarning, match="a doubt") as seen:
        outcomes = run(recipes, workspace, where=where, workers=workers)
    messages = tuple(str(warning.message) for warning in seen)
    return Ran(workspace, {outcome.recipe: outcome for outcome in outcomes}, progress, tuple(own), messages)


def errors(recipes: Iterable[Recipe] | Recipe, workspace: Workspace, **options: Any) -> list[str | None]:
    """The errors of a run, dependencies first."""
    return [outcome.error for outcome in run(recipes, workspace, **options)]


def wait_for(ready: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    return run_all(folder, own_recipes(folder / "own_file.py"), where="pool", workers=2)


def test_dependencies_come_first_and_once() -> None:
    leaf = Number(1)
    left, right = Number(2, (leaf,)), Number(3, (leaf,))
    assert topological_order([Number(4, (left, right)), right]) == [leaf, left, right, Number(4, (left, right))]


@dataclass(frozen=True)
class Large(Number):
    """A number that needs two cores."""

    @property
    def resources(self) -> Resources:
        return Resources(cpus=2.0)


class Places:
    """A pool that has room for some recipes of each kind and finishes them in the order of a generator."""

    def __init__(self, rooms: Mapping[Resources, int]) -> None:
        self.rooms, self.running = dict(rooms), list[Recipe]()

    def has_room(self, needed: Resources) -> bool:
        return sum(each.resources == needed for each in self.running) < self.rooms[needed]


@pytest.mark.parametrize("seed", range(20))
def test_the_queue_takes_the_first_recipe_of_the_plan_that_is_ready_and_fits(seed: int) -> None:
    """As a slow twin that looks through all recipes every time."""
    random = default_rng(seed)
    plan: list[Recipe] = []
    for value in range(30):
        needs = random.choice(value, min(value, int(random.integers(3))), replace=False)
        plan.append((Number, Large)[int(random.integers(2))](value, tuple(plan[index] for index in needs)))
    finished = set(topological_order(plan[:5]))
    left = [each for each in plan if each not in finished]
    queue, pool = _Queue(left, finished), Places({Resources(): 3, Resources(cpus=2.0): 1})
    while left or pool.running:
        fit = (each for each in left if finished.issuperset(each.dependencies) and pool.has_room(each.resources))
        expected = next(fit, None)
        taken = queue.take(cast("RayPool", pool))
        assert taken == expected
        if taken is None:
            done = pool.running.pop(int(random.integers(len(pool.running))))
            finished.add(done)
            queue.finish(done)
        else:
            left.remove(taken)
            pool.running.append(taken)
    assert not queue


def test_each_recipe_is_made_once_here(tmp_path: Path) -> None:
    recipes = [Number(2, (LEAF,)), Number(3, (LEAF,))]
    workspace = Workspace(tmp_path)
    assert errors(recipes, workspace) == [None, None, None]
    assert made(workspace) == ["1", "2", "3"]
    run(recipes, workspace)
    assert len(made(workspace)) == 3


def check_outcomes(ran: Ran) -> None:
    """Each recipe is made once, dependencies first; failures are recorded; a killed worker costs one more attempt."""
    check_failures(ran.outcomes)
    numbers = [word for word in made(ran.workspace) if word.isdigit()]
    assert sorted(numbers) == ["1", "2", "3", "6"]
    assert numbers.index("1") < min(numbers.index("2"), numbers.index("3"))
    assert [ran.error(recipe) for recipe in (LEAF, RECIPES[1], RECIPES[2], Number(6), ONCE)] == [None] * 5
    assert made(ran.workspace).count("deadly-1") == 2
    assert ran.workspace.get(ONCE).table["value"].tolist() == [1]
    assert ran.error(ALWAYS) == WORKER_DIED
    assert made(ran.workspace).count("deadly-9") == 2
    assert not ran.workspace.has(ALWAYS)
    assert ran.outcomes[Number(7, (ALWAYS,))].cause == ALWAYS


def check_settings_files_and_warnings_pass(ran: Ran) -> None:
    """Between this process and its workers: the user's code and settings there, progress and warnings back."""
    assert ran.workspace.get(Settings()).notes == {"settings": settings(ran.workspace)}
    assert [ran.error(recipe) for recipe in ran.own] == [None, None]
    assert [ran.workspace.get(recipe).table["value"].tolist() for recipe in ran.own] == [[3], [6]]
    assert ran.progress.words[0] == f"all recipes of {len(ran.outcomes)}"
    assert sum(word.startswith("all recipes: 1") for word in ran.progress.words) == len(ran.outcomes)
    assert ran.progress.open == []
    assert len([message for message in ran.warnings if message.startswith("a doubt")]) == 1


@pytest.mark.slow
def test_failures_are_recorded_and_killed_workers_replaced(ran: Ran) -> None:
    check_outcomes(ran)


@pytest.mark.slow
def test_settings_and_files_reach_the_workers_and_warnings_come_back(ran: Ran) -> None:
    check_settings_files_and_warnings_pass(ran)
    assert all(len(message) <= MAX_WARNING_CHARACTERS for message in ran.warnings)


def check_failures(outcomes: dict[Recipe, Outcome]) -> None:
    """Both broken recipes have their error, and what depends on one was skipped."""
    broken, plain = outcomes[Broken()], outcomes[Broken(user_error=True)]
    assert broken.error == "ZeroDivisionError: by zero"
    assert broken.traceback_file is not None
    assert "ZeroDivisionError: by zero" in broken.traceback_file.read_text(encoding="utf-8")
    assert (plain.error, plain.traceback_file) == ("no data; fetch it", None)
    assert outcomes[Number(5, (Broken(),))].cause == Broken()
    assert outcomes[Number(6)].error is None


def test_a_failure_has_a_traceback_and_the_others_go_on_here(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    outcomes = run([Number(5, (Broken(),)), Number(6), Broken(user_error=True)], workspace)
    check_failures({outcome.recipe: outcome for outcome in outcomes})
    assert made(workspace) == ["6"]


@pytest.mark.slow
def test_the_progress_of_workers_is_shown_and_killed_workers_leave_no_bar(ran: Ran) -> None:
    words = ran.progress.words
    for number in (1, 2, 3, 6):
        start = words.index(f"number {number} of 2")
        assert f"number {number}: 1 half" in words[start:]
        assert words.count(f"number {number}: 1") == 1
    assert words.count("deadly 9 of 1") == 2


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_starts_costs_only_a_restart(tmp_path: Path) -> None:
    (tmp_path / "fragile_file.py").write_text(FRAGILE, encoding="utf-8")
    recipes = recipes_from_file(tmp_path / "fragile_file.py")
    assert errors(recipes, Workspace(tmp_path / "work"), where="pool", workers=2) == [None, None]
    assert (tmp_path / "first").exists()


@pytest.mark.slow
def test_a_pool_that_ends_while_its_workers_start_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An interrupt of the whole group, as a terminal sends it, does not reach them either."""
    for tenths in (1, 3, 6, 10, 15):
        with LocalPool(Workspace(tmp_path), 2, ()) as pool:
            pool.submit(Number(1))
            time.sleep(tenths / 10)
            for process in multiprocessing.active_children():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGINT)
            time.sleep(min(tenths, 3) / 10)
    assert multiprocessing.active_children() == []
    assert capfd.readouterr().err == ""


EXITS = (0, 3, None, "gone")


def exits_are_failures(workspace: Workspace, *, where: str, workers: int | None) -> None:
    """Recipes that call `sys.exit` fail by themselves, with a traceback; all others are made."""
    recipes = [*map(Exits, EXITS), Number(1), Number(2, (Exits(0),))]
    outcomes = run(recipes, workspace, where=where, workers=workers)
    errors = {outcome.recipe: outcome.error for outcome in outcomes}
    assert errors[Number(1)] is None
    for code in EXITS:
        assert str(errors[Exits(code)]).startswith("SystemExit")
    assert str(3) in str(errors[Exits(3)])
    assert next(outcome for outcome in outcomes if outcome.recipe == Number(2, (Exits(0),))).cause == Exits(0)
    files = [outcome.traceback_file for outcome in outcomes if isinstance(outcome.recipe, Exits)]
    assert all(file is not None and "sys.exit" in file.read_text() for file in files)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_recipe_that_ends_the_process_fails_alone(workers: int, tmp_path: Path) -> None:
    exits_are_failures(Workspace(tmp_path), where="pool", workers=workers)


@dataclass(frozen=True)
class Interrupted(Recipe):
    """Is interrupted in code that then fails itself."""

    def make(self, workspace: Workspace) -> Artefact:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("trying to pop from empty mode stack")


def test_an_error_that_arises_from_an_interrupt_is_no_failure_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run([Interrupted(), Number(1)], Workspace(tmp_path))
    assert [entry.name for entry in Workspace(tmp_path).entries()] == []
    assert not (tmp_path / ".failures").exists()


@dataclass(frozen=True)
class Swallowed(Recipe):
    """Receives SIGTERM in code that swallows what is raised, and then fails or ends well."""

    fails: bool

    def make(self, workspace: Workspace) -> Artefact:
        before = signal.signal(signal.SIGTERM, guard._interrupt)
        with suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        if self.fails:
            raise ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'")
        return Artefact(notes={"value": 1})


@pytest.mark.parametrize("fails", [True, False])
def test_an_interrupt_that_a_library_swallows_ends_the_run(
    *, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_interrupts", [])
    with pytest.raises(guard._TerminatedError):
        run([Swallowed(fails), Number(1)], Workspace(tmp_path))
    assert len(Workspace(tmp_path).entries()) == (0 if fails else 1)
    assert not (tmp_path / ".failures").exists()


@dataclass(frozen=True)
class Full(Recipe):
    """A recipe that finds the disk full."""

    number: int
    depends_on: tuple[Recipe, ...] = ()

    def make(self, workspace: Workspace) -> Artefact:
        write_down(f"full-{self.number}", workspace)
        with translate_write_errors(workspace.root):
            raise OSError(errno.ENOSPC, "")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_ends_the_run_at_once_and_keeps_what_is_finished(workers: int, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(WriteError, match="No space left on device; make room there"):
        run([Number(1), *(Full(number, (LEAF,)) for number in range(9))], workspace, where="pool", workers=workers)
    assert workspace.has(LEAF)
    assert len(made(workspace)) <= 1 + workers


@dataclass(frozen=True)
class Late(Recipe):
    """A recipe that takes this many seconds."""

    seconds: float

    def make(self, workspace: Workspace) -> Artefact:
        write_down(f"late-{self.seconds}", workspace)
        time.sleep(self.seconds)
        return Artefact(notes={"seconds": self.seconds})


def test_a_deadline_ends_a_run_here_after_the_recipe_that_is_being_made(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    recipes = [Number(1), Late(1.2), Number(2), Number(3, (Number(2),))]
    expected = [None, None, OUT_OF_TIME, OUT_OF_TIME]
    assert errors(recipes, workspace, deadline=time.monotonic() + 1) == expected
    assert made(workspace) == ["1", "late-1.2"]
    # Finished recipes are no work, and a deadline in the past allows none.
    assert errors(recipes, workspace, deadline=time.monotonic() - 1) == expected
    assert workspace.model_cache is None
    assert errors(recipes, workspace, deadline=time.monotonic() + 60) == [None] * 4
    assert made(workspace) == ["1", "late-1.2", "2", "3"]


@pytest.mark.slow
def test_a_deadline_stops_workers_at_once(tmp_path: Path) -> None:
    start = time.monotonic()
    options = {"where": "pool", "workers": 2, "deadline": start + 0.5}
    assert errors([Late(60.0), Late(61.0)], Workspace(tmp_path), **options) == [OUT_OF_TIME, OUT_OF_TIME]
    assert time.monotonic() - start < 20
    assert not [process for process in multiprocessing.active_children() if "Worker" in type(process).__name__]


def test_a_workspace_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="Not a directory"):
        run([Number(1), Number(2)], Workspace(tmp_path / "file" / "work"))


def test_a_run_with_nothing_to_make_deletes_what_a_killed_one_left(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    run([LEAF], workspace)
    name = workspace.artefact_name(LEAF)
    for left in (f".damaged/{name}.01", f".partial/{name}", f".staging/{name}.02", ".partial/Other-012345678901"):
        (tmp_path / left).mkdir(parents=True)
    run([LEAF], workspace)
    left_over = [path.name for hidden in (".damaged", ".partial", ".staging") for path in (tmp_path / hidden).iterdir()]
    assert left_over == ["Other-012345678901"]
    assert made(workspace) == ["1"]


@dataclass(frozen=True)
class Survivor(Recipe):
    """A recipe that is at work until another worker has died twice."""

    def make(self, workspace: Workspace) -> Artefact:
        write_down("survivor", workspace)
        end = time.monotonic() + 120  # without an assertion, which pytest rewrites: workers would have other code
        while made(workspace).count("deadly-9") < 2 and time.monotonic() < end:
            time.sleep(0.02)
        return Artefact(notes={"deaths": made(workspace).count("deadly-9")})


@pytest.mark.slow
def test_a_crashed_worker_does_not_affect_the_recipe_of_another(tmp_path: Path) -> None:
    """The other worker goes on with the recipe that it is making, which is not begun again; with the pool of Python's
    standard library it would be lost with the pool."""
    workspace = Workspace(tmp_path)
    assert errors([Survivor(), Deadly(9)], workspace, where="pool", workers=2) == [None, WORKER_DIED]
    assert workspace.get(Survivor()).notes["deaths"] == 2
    assert made(workspace).count("survivor") == 1


@dataclass(frozen=True)
class Repaired(Recipe):
    """Fails until a file is there."""

    def make(self, workspace: Workspace) -> Artefact:
        if not (workspace.root / "repaired").exists():
            raise ZeroDivisionError("by zero")
        return Artefact()


def test_the_traceback_of_a_recipe_is_deleted_when_it_succeeds(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    (outcome,) = run([Repaired()], workspace)
    assert outcome.traceback_file is not None
    assert outcome.traceback_file.exists()
    (tmp_path / "repaired").touch()
    assert errors(Repaired(), workspace) == [None]
    assert not (tmp_path / ".failures").exists()


@dataclass(frozen=True)
class Doubtful(Recipe):
    """A recipe that warns."""

    number: int

    def make(self, workspace: Workspace) -> Artefact:
        warnings.warn("a doubt " + "é" * 2000, stacklevel=1)
        return Artefact()


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
    assert errors([Performance(model), Permutation(model, permutations=2, limit=5)], workspace) == [None] * 3
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


INTERRUPTED = "heedful: interrupted; finished work is kept, run the same command to continue\n"
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from heedful.cli import main; main()"
COMMAND = (sys.executable, "-c", START)
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


def living_processes(group: int) -> list[Path]:
    """The folders of the processes of a group, without zombies."""
    folders = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group and fields[0] != "Z":
                folders.append(folder)
    return folders


def count_workers(group: int, *, importing: bool) -> int:
    """The worker processes of a group, all or those that have loaded a library of an installed package."""
    count = 0
    for folder in living_processes(group):
        with suppress(OSError):
            is_worker = b"spawn_main" in (folder / "cmdline").read_bytes()
            count += is_worker and (not importing or "site-packages" in (folder / "maps").read_text())
    return count


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("sent", "moment"),
    [(signal.SIGINT, "at work"), (signal.SIGINT, "while workers start"), (signal.SIGKILL, "while workers import")],
)
def test_a_signal_is_at_most_one_line_keeps_what_is_finished_and_leaves_no_process(
    sent: signal.Signals, moment: str, tmp_path: Path
) -> None:
    """Ctrl-C goes to the whole group; a kill of the main process must not make its workers complain.

    In the moment before a worker has got its first message, Python itself complains of a kill.
    """
    (tmp_path / "slow_file.py").write_text(SLOW_FILE, encoding="utf-8")
    process = subprocess.Popen(
        [*COMMAND, "run", "slow_file.py", "-q", "-w", "work", "--workers", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def finished() -> int:
        return len(list((tmp_path / "work").glob("Slow-*")))

    def is_time() -> bool:
        if moment == "at work":
            return finished() > 0
        if moment == "while workers import":
            return count_workers(process.pid, importing=True) == 2
        return count_workers(process.pid, importing=False) > 0

    wait_for(is_time)
    (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    assert said == (INTERRUPTED if sent == signal.SIGINT else "")
    assert finished() == (moment == "at work")
    wait_for(lambda: not living_processes(process.pid))


TERMINATED_FILE = """
import os
import signal
import time

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

{line}
time.sleep(40)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("line", ["os.kill(os.getpid(), signal.SIGTERM)", "Finalized()"])
def test_a_termination_while_the_users_file_is_read_or_a_finalizer_runs_ends_the_command(
    line: str, tmp_path: Path
) -> None:
    """It is no mistake of the file, and not lost although Python ignores exceptions of finalizers."""
    (tmp_path / "terminated_file.py").write_text(TERMINATED_FILE.replace("{line}", line), encoding="utf-8")
    start = time.monotonic()
    process = subprocess.run(
        [*COMMAND, "run", "terminated_file.py", "-w", "work"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() < start + 30
    assert process.returncode == 128 + signal.SIGTERM
    assert process.stderr == INTERRUPTED


@dataclass(frozen=True)
class Source(DiskResource):
    """A file of the data folder."""

    def digest(self, data: Path) -> str:
        if not (data / "source.txt").exists():
            raise UserError("there is no source.txt")
        return "x"


@dataclass(frozen=True)
class Unprintable(Recipe):
    """A recipe whose failure is hard to write down.

    Args:
        way: "message" has a character that no file can hold, "representation" raises, "data" is gone when it fails.
    """

    way: str
    source: Source | None = None

    def __repr__(self) -> str:
        if self.way == "representation":
            raise ValueError("no representation")
        return "Unprintable"

    def make(self, workspace: Workspace) -> Artefact:
        if self.way == "data":
            (workspace.data_dir / "source.txt").unlink()
        raise RuntimeError("\ud800")


@pytest.mark.parametrize("way", ["message", "representation", "data"])
def test_a_failure_that_is_hard_to_write_down_ends_no_other_recipe(way: str, tmp_path: Path) -> None:
    (tmp_path / "source.txt").touch()
    workspace = Workspace(tmp_path / "work", data_dir=tmp_path)
    failing = Unprintable(way, Source() if way == "data" else None)
    outcomes = run([Number(2, (failing,)), Number(1)], workspace)
    assert str(outcomes[0].error).startswith("RuntimeError")
    assert outcomes[1].cause is outcomes[0].recipe
    assert outcomes[2] == Outcome(Number(1))
    assert len([*(workspace.root / ".failures").iterdir()]) == 1


@dataclass(frozen=True)
class Needy(Number):
    """A recipe whose needs are said wrongly.

    Args:
        way: "dict" is of another type, "raises" fails, "negative" cannot be.
    """

    way: str = ""

    @property
    def resources(self) -> Resources:
        if self.way == "negative":
            return Resources(cpus=-1)
        if self.way == "raises":
            raise KeyError("cpus")
        return cast(Resources, {"cpus": 1})


@pytest.mark.parametrize(
    ("way", "complaint"),
    [
        ("dict", r"Needy.resources .*dict.*Resources"),
        ("raises", "Needy.resources failed \\(KeyError"),
        ("negative", r"Resources\(cpus=-1\): give a number above 0"),
    ],
)
def test_needs_that_are_said_wrongly_are_one_line_before_any_work(way: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        run([Number(1), Needy(2, way=way)], Workspace(tmp_path), where="pool", workers=2)
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.parametrize("options", [{"gpus": -0.5}, {"gpus": float("nan")}, {"memory": 0}, {"cpus": float("inf")}])
def test_resources_that_no_node_can_have_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"Resources\\({next(iter(options))}="):
        Resources(**options)  # type: ignore[arg-type]


def test_a_workspace_in_memory_is_refused_where_there_are_several_processes() -> None:
    with pytest.raises(UserError, match="memory://several lives in one process: choose --where here"):
        run(Number(1), Workspace("memory://several"), where="pool", workers=2)


def test_a_mistake_in_a_file_that_is_given_from_here_has_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_mistake.py").write_text("x = 1\n\n1 / 0\n", encoding="utf-8")
    Path("own_syntax.py").write_text("x = = 1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"own_mistake\.py, line 3: ZeroDivisionError"):
        recipes_from_file("own_mistake.py")
    with pytest.raises(UserError, match=r"own_syntax\.py, line 1: SyntaxError"):
        recipes_from_file("own_syntax.py")


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="--where is pool, here, ray or ray://HOST:PORT"):
        run(Number(1), Workspace("unused"), where="ray://localhost:99999")
