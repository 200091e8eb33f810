"""Recipes on a Ray cluster: the same artefacts, failures and warnings as here; nothing is lost with a node or a driver.

One local cluster serves the whole module; its nodes share the machine, and therefore the folder of the workspace.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from heedful import _ray_pool, cli, runner
from heedful._ray_pool import (
    RayPool,
    _Bar,
    _connection_error,
    _Job,
    _node_workspace,
    _ReportedProgress,
    _Reports,
    connect,
)
from heedful.attributions.gradient import Gradient
from heedful.outcome import Outcome
from heedful.runner import OUT_OF_TIME, recipes_from_file, run
from heedful.store.recipe import Artefact, Recipe, Resources
from heedful.store.workspace import MANIFEST, Workspace, WriteError
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_training import AtteFa
from heedful.types import UserError
from tests.test_runner import (
    ALWAYS,
    LEAF,
    ONCE,
    OWN,
    RECIPES,
    Doubtful,
    Full,
    Late,
    Number,
    RecordedProgress,
    failures_are_recorded,
    made,
)
from tests.tiny import subject

pytest.importorskip("ray", reason="Ray is not installed: pip install 'heedful[ray]'")
pytestmark = pytest.mark.slow

STEPS_SECONDS = 3.5


@dataclass(frozen=True)
class Cluster:
    """A head with two places and two nodes with one each; the second one has a GPU by name."""

    address: str
    add_node: Callable[[], object]
    kill_node: Callable[[object], None]
    raylet: Callable[[object], int]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    import ray
    from ray.cluster_utils import Cluster as LocalCluster

    options = {"include_dashboard": False, "object_store_memory": 80_000_000}
    nodes = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 2, **options})
    nodes.add_node(num_cpus=1, num_gpus=1, **options)

    def kill(node: object) -> None:
        nodes.remove_node(node, allow_graceful=False)

    def raylet(node: object) -> int:
        return int(node.all_processes["raylet"][0].process.pid)  # type: ignore[attr-defined]

    connect(f"ray://{nodes.address}")
    yield Cluster(nodes.address, lambda: nodes.add_node(num_cpus=1, **options), kill, raylet)
    ray.shutdown()
    nodes.shutdown()


@dataclass(frozen=True)
class Steps(Recipe):
    """A recipe that shows its progress for some seconds."""

    seconds: float

    def make(self, workspace: Workspace) -> Artefact:
        with workspace.progress.task("steps", 10) as step:
            for _ in range(10):
                time.sleep(self.seconds / 10)
                step(1, "a note")
        return Artefact(notes={"seconds": self.seconds})


@dataclass(frozen=True)
class Place(Recipe):
    """A recipe that writes down the process of its node, and waits."""

    number: int
    seconds: float = 0.0

    def make(self, workspace: Workspace) -> Artefact:
        (workspace.root / f"place-{self.number}-{os.getppid()}").touch()
        time.sleep(self.seconds)
        return Artefact(notes={"number": self.number})


@dataclass(frozen=True)
class OnGpu(Recipe):
    """A recipe that needs a part of a GPU, and notes which one it may see."""

    @property
    def resources(self) -> Resources:
        return Resources(gpus=0.5)

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(notes={"visible": os.environ["CUDA_VISIBLE_DEVICES"]})


@dataclass(frozen=True)
class Demanding(Recipe):
    """A recipe that no node has room for."""

    @property
    def resources(self) -> Resources:
        return Resources(cpus=1000.0)

    def make(self, workspace: Workspace) -> Artefact:
        raise AssertionError


@dataclass(frozen=True)
class Ran:
    """One run on the cluster."""

    workspace: Workspace
    outcomes: dict[Recipe, Outcome]
    progress: RecordedProgress
    own: tuple[Recipe, ...]
    warnings: tuple[str, ...]


@pytest.fixture(scope="module")
def ran(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    (folder / "neighbour.py").write_text("VALUE = 3\n", encoding="utf-8")
    (folder / "own_file_of_ray.py").write_text(OWN, encoding="utf-8")
    own = recipes_from_file(folder / "own_file_of_ray.py")
    for name in ("neighbour.py", "own_file_of_ray.py"):
        (folder / name).unlink()  # a node does not have them
    progress = RecordedProgress()
    workspace = Workspace(folder / "work", progress=progress)
    recipes = [*RECIPES, *own, Steps(STEPS_SECONDS), Doubtful(1), OnGpu()]
    with pytest.warns(UserWarning, match="a doubt") as seen:
        outcomes = run(recipes, workspace, where=f"ray://{cluster.address}")
    found = {outcome.recipe: outcome for outcome in outcomes}
    return Ran(workspace, found, progress, tuple(own), tuple(str(each.message) for each in seen))


def manifests(root: Path) -> dict[str, object]:
    """Size and SHA-256 of every file of every artefact."""
    return {path.parent.name: json.loads(path.read_bytes()) for path in root.glob(f"*/{MANIFEST}")}


def wait_for(ready: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_dependencies_failures_and_lost_workers_are_as_in_a_pool(ran: Ran) -> None:
    assert failures_are_recorded(ran.outcomes)
    numbers = [word for word in made(ran.workspace) if word.isdigit()]
    assert sorted(numbers) == ["1", "2", "3", "6"]
    assert numbers[0] == "1" or numbers.index("1") < min(numbers.index("2"), numbers.index("3"))
    assert [ran.outcomes[each].error for each in (LEAF, ONCE, Number(6))] == [None] * 3
    assert made(ran.workspace).count("deadly-1") == 2
    assert ran.outcomes[ALWAYS].error == _ray_pool.WORKER_DIED
    assert made(ran.workspace).count("deadly-9") == 2
    assert "skipped, because Deadly-" in (ran.outcomes[Number(7, (ALWAYS,))].error or "")


def test_the_users_file_and_its_neighbours_reach_nodes_that_do_not_have_them(ran: Ran) -> None:
    assert [ran.outcomes[each].error for each in ran.own] == [None, None]
    assert [ran.workspace.get(each).table["value"].tolist() for each in ran.own] == [[3], [6]]


def test_progress_is_shown_and_warnings_are_passed_on(ran: Ran) -> None:
    words = ran.progress.words
    assert f"all recipes of {len(ran.outcomes)}" in words
    assert sum(word.startswith("all recipes: 1") for word in words) == len(ran.outcomes)
    assert any("2 nodes" in word for word in words if word.startswith("all recipes: 0"))
    assert "steps of 10" in words
    shown = [int(word.split()[1]) for word in words if word.startswith("steps: ")]
    assert 1 <= sum(shown) <= 10
    assert ran.progress.open == []
    assert len([each for each in ran.warnings if each.startswith("a doubt")]) == 1


def test_a_recipe_gets_the_gpu_that_it_asks_for_and_only_a_node_that_has_one(ran: Ran) -> None:
    assert ran.workspace.get(OnGpu()).notes == {"visible": "0"}


def test_a_recipe_that_no_node_has_room_for_is_refused_before_any_work(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Demanding needs 1000 cores, and no node"):
        run([Number(1), Demanding()], Workspace(tmp_path), where="ray")
    assert not (tmp_path / "made.txt").exists()


def test_the_seeds_of_attefa_and_attributions_are_the_same_bytes_as_here(cluster: Cluster, tmp_path: Path) -> None:
    training = Training(2, 8, Adam(lr=0.02), EpochSelection(metric="deception"))
    recipes = [
        AtteFa(subject(), adversary_seeds=(1, 2, 3), adversary_training=training),
        AttributionTable(subject(), Gradient()),
    ]
    for folder, where in (("here", "here"), ("cluster", "ray")):
        outcomes = run(recipes, Workspace(tmp_path / folder), where=where)
        assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    assert len(outcomes) > 4
    assert manifests(tmp_path / "cluster") == manifests(tmp_path / "here")


def test_a_lost_node_costs_no_recipe(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.add_node()
    raylet = cluster.raylet(node)
    recipes = [Place(number, 1.0) for number in range(8)]

    def kill_when_at_work() -> None:
        wait_for(lambda: any(tmp_path.glob(f"place-*-{raylet}")))
        cluster.kill_node(node)

    killer = threading.Thread(target=kill_when_at_work)
    killer.start()
    outcomes = run(recipes, Workspace(tmp_path), where="ray")
    killer.join()
    assert [outcome.error for outcome in outcomes] == [None] * 8
    lost = {path.name.split("-")[1] for path in tmp_path.glob(f"place-*-{raylet}")}
    again = {path.name.split("-")[1] for path in tmp_path.glob("place-*") if not path.name.endswith(f"-{raylet}")}
    assert lost & again  # what the lost node was making was made by another
    assert len(Workspace(tmp_path).entries()) == 8


DRIVEN = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class Driven(Recipe):
    number: int

    def make(self, workspace):
        (workspace.root / f"begun-{self.number}-{os.getpid()}").touch()
        while self.number > 1 and not (workspace.root / "go").exists():
            time.sleep(0.05)
        return Artefact(notes={"number": self.number})

def recipes():
    return [Driven(number) for number in range(5)]
"""


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_driver_leaves_no_task_and_the_same_command_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "driven_file.py").write_text(DRIVEN, encoding="utf-8")
    words = ["run", "driven_file.py", "-q", "-w", "work", "--where", f"ray://{cluster.address}"]
    command = [sys.executable, "-c", "from heedful.cli import main; main()", *words]
    driver = subprocess.Popen(command, cwd=tmp_path)
    work = tmp_path / "work"
    wait_for(lambda: len(list(work.glob("begun-[234]-*"))) >= 2 and len(list(work.glob("Driven-*"))) == 2)
    begun = {int(path.name.split("-")[2]) for path in work.glob("begun-[234]-*")}
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not any(is_alive(process) for process in begun))  # and with them their locks
    first = manifests(work)
    (work / "go").touch()
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    assert len(manifests(work)) == 5
    assert first.items() <= manifests(work).items()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "go").touch()
    run(recipes_from_file(tmp_path / "driven_file.py"), Workspace(tmp_path / "here"))
    assert manifests(work) == manifests(tmp_path / "here")


def test_a_deadline_stops_tasks_at_once(cluster: Cluster, tmp_path: Path) -> None:
    start = time.monotonic()
    outcomes = run([Place(1, 60.0), Late(0.01)], Workspace(tmp_path), where="ray", deadline=start + 3)
    assert outcomes[0].error == OUT_OF_TIME
    assert time.monotonic() - start < 15


def test_a_full_disk_ends_the_run_and_keeps_what_is_finished(cluster: Cluster, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(WriteError, match="No space left on device; make room there"):
        run([Number(1), *(Full(number, (LEAF,)) for number in range(9))], workspace, where="ray")
    assert workspace.has(LEAF)


# Without a cluster


@pytest.mark.parametrize(
    ("where", "complaint"),
    [("ray://127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"), ("ray://nowhere", "--where is"), ("ray:x", "is")],
)
def test_a_wrong_address_is_one_line_with_the_remedy(
    where: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match=complaint) as caught:
        run([Number(1)], Workspace(tmp_path), where=where)
    assert "\n" not in str(caught.value)


def test_without_ray_the_remedy_is_its_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'heedful\[ray\]'"):
        run([Number(1)], Workspace(tmp_path), where="ray")


def test_another_version_and_another_machine_are_told_apart() -> None:
    mismatch = "Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.1\nThis process ..."
    error = ConnectionError("Failed to connect")
    error.__cause__ = RuntimeError(mismatch)
    assert "Ray: 2.1.0 Python: 3.9.1" in str(_connection_error("h:6379", error))
    error.__cause__ = RuntimeError("Can't find a `node_ip_address.json` file; is there a raylet on this machine?")
    assert "ray start --address=h:6379" in str(_connection_error("h:6379", error))


def job(workspace: Workspace) -> _Job:
    identity = _ray_pool._workspace_identity(workspace)
    versions = _ray_pool._versions()
    return _Job(workspace.location, str(workspace.data_dir), "cpu", 8, os.getcwd(), identity, versions, 1.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda job: replace(job, versions="heedful 9.9.9"), "on the driver heedful 9.9.9; install the same"),
        (lambda job: replace(job, identity="another"), "is not the driver's workspace; give a folder that all"),
        (lambda job: replace(job, location="/no/such/folder"), "/no/such/folder is not the driver's workspace"),
    ],
)
def test_a_node_that_cannot_take_part_says_why(change: Callable[[_Job], _Job], complaint: str, tmp_path: Path) -> None:
    right = job(Workspace(tmp_path))
    assert _node_workspace(right).root == tmp_path
    with pytest.raises(UserError, match=complaint):
        _node_workspace(change(right))


class Sent:
    """What was sent to the actor."""

    def __init__(self) -> None:
        self.reports = _Reports()

    def remote(self, key: int, bars: Mapping[int, _Bar]) -> None:
        self.reports.report(key, bars)


def test_workers_report_at_intervals_and_the_actor_shows_a_few_and_forgets_the_finished() -> None:
    sent = Sent()
    for key in range(100):
        with _ReportedProgress(key, 0.0, sent).task("epochs", 5) as step:
            step(2, "loss 1")
            assert sent.reports.latest[key] == {0: _Bar("epochs", 5, 2, "loss 1")}
        assert sent.reports.latest[key] == {}  # the task has ended
    assert len(sent.reports.latest) == 100
    shown = sent.reports.read(range(50))
    assert [*shown] == [*range(50, 50 + _ray_pool.MAX_BARS)]
    assert len(sent.reports.latest) == 50
    seldom = Sent()
    with _ReportedProgress(0, 3600.0, seldom).task("epochs", 5) as step:
        step()
    assert seldom.reports.latest == {}


def test_room_is_counted_by_the_scarcest_resource(cluster: Cluster, tmp_path: Path) -> None:
    pool = RayPool([Number(1)], Workspace(tmp_path), f"ray://{cluster.address}", None)
    with pool:
        assert pool._slots(Resources()) == 3
        assert pool._slots(Resources(cpus=2.0)) == 1
        assert pool._slots(Resources(gpus=0.25)) == 1
        assert pool._slots(Resources(cpus=0.25, gpus=0.25)) == 4


def test_the_command_refuses_a_place_that_does_not_exist() -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(cli.app, ["run", "attefa", "--only", "mock-1", "--quick", "--where", "ray://h"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
