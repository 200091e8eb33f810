"""Recipes on a Ray cluster: the same artefacts, failures and warnings as here; nothing is lost with a node or a driver.

One local cluster serves the whole module; its nodes share the machine, and therefore the folder of the workspace.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from heedful import cli, progress
from heedful.attributions.gradient import Gradient
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.data.words import Words
from heedful.execution import ray_pool, runner
from heedful.execution.outcome import MAX_ATTEMPTS, Outcome
from heedful.execution.ray_pool import (
    RayPool,
    _connection_error,
    _Job,
    _node_workspace,
    connect,
)
from heedful.execution.runner import OUT_OF_TIME, recipes_from_file, run
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.progress import Bar, ProgressReports, ReportedProgress, TaskKey
from heedful.store.artefact_files import MANIFEST
from heedful.store.atomic_write import WriteError
from heedful.store.recipe import Artefact, Json, Recipe, Resources
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_training import AtteFa
from heedful.types import UserError
from tests.execution.test_runner import (
    COMMAND,
    INTERRUPTED,
    LEAF,
    Full,
    Late,
    Number,
    Ran,
    check_outcomes,
    check_settings_files_and_warnings_pass,
    errors,
    exits_are_failures,
    made,
    own_recipes,
    run_all,
    wait_for,
)
from tests.given import CLASSES, Verdicts, save_model
from tests.test_hostile_inputs import command as run_command
from tests.tiny import subject

pytest.importorskip("ray", reason="Ray is not installed: pip install 'heedful[ray]'")
pytestmark = pytest.mark.slow

STEPS_SECONDS = 3.5
PLACE_GPUS = 4
"""Only nodes that a test adds have so many."""


@dataclass(frozen=True)
class Cluster:
    """A head with two places, and a node with one place and a GPU by name; each has a cache folder of its own."""

    address: str
    caches: tuple[Path, Path]
    add_node: Callable[[], object]
    kill_node: Callable[[object], None]
    raylet: Callable[[object], int]


def ignore_signal(number: int, frame: object) -> None:
    """A handler that can be told from others."""


@pytest.fixture(scope="module")
def cluster(s3_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Ports are free ones, and Ray's own folder is removed; its path is short, because sockets in it must be."""
    import ray
    from ray.cluster_utils import Cluster as LocalCluster

    caches = (tmp_path_factory.mktemp("head"), tmp_path_factory.mktemp("node"))
    options = {"include_dashboard": False, "object_store_memory": 80_000_000}
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in {**s3_environment, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        patch.setenv("HEEDFUL_CACHE", str(caches[0]))  # a node has the environment in which it was started
        nodes = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 2, **options})
        patch.setenv("HEEDFUL_CACHE", str(caches[1]))
        nodes.add_node(num_cpus=1, num_gpus=1, **options)

        def kill(node: object) -> None:
            nodes.remove_node(node, allow_graceful=False)

        def raylet(node: object) -> int:
            return int(node.all_processes["raylet"][0].process.pid)  # type: ignore[attr-defined]

        def add_node() -> object:
            return nodes.add_node(num_cpus=1, num_gpus=PLACE_GPUS, **options)

        terminate = signal.signal(signal.SIGTERM, ignore_signal)
        connect(f"ray://{nodes.address}")
        handler = signal.signal(signal.SIGTERM, terminate)
        assert handler is ignore_signal  # Ray has its own, which would end a command in another way than Ctrl-C
        yield Cluster(nodes.address, caches, add_node, kill, raylet)
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
    """A recipe that only nodes have room for that a test adds; writes down the process of its node, and waits."""

    @property
    def resources(self) -> Resources:
        return Resources(gpus=PLACE_GPUS)

    def make(self, workspace: Workspace) -> Artefact:
        (workspace.root / f"place-{os.getppid()}").touch()
        while not (workspace.root / "go").exists():
            time.sleep(0.05)
        return Artefact()


@dataclass(frozen=True)
class Needing(Number):
    """A number with the needs of a test."""

    cpus: float = 1.0
    gpus: float | None = None

    @property
    def resources(self) -> Resources:
        return Resources(cpus=self.cpus, gpus=self.gpus)


@dataclass(frozen=True)
class OnGpu(Recipe):
    """A recipe that needs a part of a GPU, and notes which one it may see and what it was given."""

    depends_on: tuple[Recipe, ...] = ()

    @property
    def resources(self) -> Resources:
        return Resources(gpus=0.5)

    def make(self, workspace: Workspace) -> Artefact:
        values: list[Json] = [workspace.get(each).table["value"].tolist() for each in self.depends_on]
        return Artefact(notes={"visible": os.environ.get("CUDA_VISIBLE_DEVICES", "0"), "values": values})


@pytest.fixture(scope="module")
def ran(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    own = own_recipes(folder / "own_file_of_ray.py", keep=False)
    return run_all(folder, own, Steps(STEPS_SECONDS), OnGpu(), where=f"ray://{cluster.address}")


def manifests(root: Path) -> dict[str, object]:
    """Size and SHA-256 of every file of every artefact."""
    return {path.parent.name: json.loads(path.read_bytes()) for path in root.glob(f"*/{MANIFEST}")}


def test_failures_are_recorded_and_killed_workers_replaced(ran: Ran) -> None:
    check_outcomes(ran)


def test_a_recipe_that_ends_its_process_fails_alone(cluster: Cluster, tmp_path: Path) -> None:
    exits_are_failures(Workspace(tmp_path), where=f"ray://{cluster.address}", workers=2)


def test_settings_and_files_reach_nodes_that_do_not_have_them_and_progress_and_warnings_come_back(ran: Ran) -> None:
    check_settings_files_and_warnings_pass(ran)
    words = ran.progress.words
    assert any("2 nodes" in word for word in words if word.startswith("all recipes: 0"))
    assert "steps of 10" in words
    shown = [int(word.split()[1]) for word in words if word.startswith("steps: ")]
    assert 1 <= sum(shown) <= 10


def test_a_recipe_gets_the_gpu_that_it_asks_for_and_only_a_node_that_has_one(ran: Ran) -> None:
    assert ran.workspace.get(OnGpu()).notes == {"visible": "0", "values": []}


def test_a_recipe_that_no_node_has_room_for_is_refused_before_any_work(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Needing needs 1000 cores"):
        run([Number(1), Needing(2, cpus=1000.0)], Workspace(tmp_path), where="ray")
    assert not (tmp_path / "made.txt").exists()


def test_the_seeds_of_attefa_and_attributions_are_the_same_bytes_as_here(cluster: Cluster, tmp_path: Path) -> None:
    training = Training(2, 8, Adam(lr=0.02), EpochSelection(metric="deception"))
    recipes = [
        AtteFa(subject(), adversary_seeds=(1, 2, 3), adversary_training=training),
        AttributionTable(subject(), Gradient()),
    ]
    for folder, where in (("here", "here"), ("cluster", "ray")):
        assert {*errors(recipes, Workspace(tmp_path / folder), where=where)} == {None}
    assert len(manifests(tmp_path / "here")) > 4
    assert manifests(tmp_path / "cluster") == manifests(tmp_path / "here")


def test_a_corpus_of_several_shards_is_made_side_by_side_into_the_same_bytes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 000 texts are three shards of the real size; what is sent are the shards, and the whole before and after."""
    corpus = Mock(train=40, dev=10, test=9000, shortest=3, longest=5)
    encoder, embeddings = Attentive(BiLSTM(2), Additive()), RandomEmbeddings(4)
    recipe = AttributionTable(TrainedModel(corpus, Words(), encoder, Training(2), embeddings=embeddings), Gradient())
    run(recipe, Workspace(tmp_path / "here"))
    sent: list[Recipe] = []
    submit = RayPool.submit

    def recorded(pool: RayPool, recipe: Recipe) -> None:
        sent.append(recipe)
        submit(pool, recipe)

    monkeypatch.setattr(RayPool, "submit", recorded)
    outcomes = run(recipe, Workspace(tmp_path / "cluster"), where="ray")
    assert outcomes == [Outcome(recipe.subject), Outcome(recipe)]
    shards = recipe.shards(Workspace(tmp_path))
    assert [len(shards), *sent] == [3, recipe.subject, recipe, *shards, recipe]
    assert manifests(tmp_path / "cluster") == manifests(tmp_path / "here")
    assert len(manifests(tmp_path / "here")) == 2  # nothing is left of the shards


def test_nodes_that_share_only_an_object_store_make_the_same_bytes(
    cluster: Cluster, s3_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second recipe needs the GPU of a node whose cache does not have the first one: it comes from the store."""
    import fsspec

    for name, value in {**s3_environment, "HEEDFUL_CACHE": str(tmp_path / "driver")}.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    fsspec.filesystem("s3").mkdir("bucket-of-nodes")
    given = tuple(Needing(number, cpus=2.0) for number in range(3))
    training = Training(1, 8, Adam(lr=0.02), EpochSelection(metric="deception"))
    trial = AtteFa(subject(), adversary_seeds=(1, 2), adversary_training=training)
    recipes = [OnGpu(given), trial]
    workspace = Workspace("s3://bucket-of-nodes/experiments")
    assert {*errors(recipes, workspace, where="ray")} == {None}
    assert workspace.get(OnGpu(given)).notes["values"] == [[0], [1], [2]]
    head, node = ({path.parent.name for path in cache.glob(f"workspaces/*/*/{MANIFEST}")} for cache in cluster.caches)
    name = workspace.artefact_name(OnGpu(given))
    assert name in node
    assert name not in head
    assert {workspace.artefact_name(each) for each in given} <= node
    run(recipes, Workspace(tmp_path / "here"))
    assert workspace.store is not None
    stored = workspace.store.read_manifests(workspace.store.artefacts())
    assert {name: json.loads(content) for name, content in stored.items()} == manifests(tmp_path / "here")
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.mark.filterwarnings("ignore:the cluster lost")
def test_a_node_that_is_lost_again_and_again_costs_no_recipe(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe whose worker died twice has failed; one whose node was lost twice has not."""
    nodes = {cluster.raylet(node): node for node in [cluster.add_node() for _ in range(MAX_ATTEMPTS + 1)]}

    def at_work() -> list[int]:
        return [raylet for raylet in nodes if (tmp_path / f"place-{raylet}").exists()]

    def disturb() -> None:
        for _ in range(MAX_ATTEMPTS):
            wait_for(lambda: bool(at_work()))
            cluster.kill_node(nodes.pop(at_work()[0]))
        wait_for(lambda: bool(at_work()))
        (tmp_path / "go").touch()

    disturber = threading.Thread(target=disturb)
    disturber.start()
    workspace = Workspace(tmp_path)
    capsys.readouterr()
    found = errors([Number(1), Place()], workspace, where="ray")
    assert capsys.readouterr().out == ""  # Ray would print the log of the node
    disturber.join()
    cluster.kill_node(*nodes.values())
    wait_for(lambda: len(ray_pool._living_nodes()) == 2)
    assert found == [None, None]
    assert len(list(tmp_path.glob("place-*"))) == MAX_ATTEMPTS + 1
    assert len(workspace.entries()) == 2


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


def test_a_driver_that_ends_leaves_no_task_and_the_same_command_goes_on(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C goes to the whole group, and a kill warns nobody."""
    (tmp_path / "driven_file.py").write_text(DRIVEN, encoding="utf-8")
    where = ("--where", f"ray://{cluster.address}", "--workers", "2")
    command = [*COMMAND, "run", "driven_file.py", "-q", "-w", "work", *where]
    work = tmp_path / "work"
    ends: tuple[tuple[signal.Signals, int, str], ...] = (
        (signal.SIGINT, 130, INTERRUPTED),
        (signal.SIGKILL, -9, ""),
    )
    for sent, code, line in ends:
        driver = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while len(list(work.glob("begun-[234]-*"))) < 2 or len(manifests(work)) < 2:
            assert driver.poll() is None, driver.communicate()
            time.sleep(0.05)
        begun = {int(path.name.split("-")[2]): path for path in work.glob("begun-[234]-*")}
        os.killpg(driver.pid, sent) if sent == signal.SIGINT else driver.send_signal(sent)
        _, said = driver.communicate(timeout=60)
        assert (driver.returncode, said) == (code, line), sent
        wait_for(lambda begun=begun: not any(map(is_alive, begun)))  # type: ignore[misc]  # and with them their locks
        for path in work.glob("begun-[234]-*"):
            path.unlink()
        assert len(manifests(work)) == 2
    first = manifests(work)
    (work / "go").touch()
    monkeypatch.chdir(tmp_path)
    assert run_command(*command[len(COMMAND) :]) == (0, "", "")
    assert len(manifests(work)) == 5
    assert first.items() <= manifests(work).items()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "go").touch()
    run(recipes_from_file(tmp_path / "driven_file.py"), Workspace(tmp_path / "here"))
    assert manifests(work) == manifests(tmp_path / "here")


def test_an_audit_has_the_same_numbers_as_here(cluster: Cluster, tmp_path: Path) -> None:
    """For a fixed number of texts; seconds and the date are those of each call."""
    save_model(tmp_path / "model")
    rows = [(str(each.parts[0]), CLASSES[int(each.label or 0)]) for each in Verdicts(30).read(Path()).test]
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    found = []
    for where in ("here", "ray"):
        options = (
            "--texts",
            "12",
            "--method",
            "leave-one-out",
            "--method",
            "raw-attention",
            "--only-methods",
            "--where",
            where,
        )
        places = ("-w", tmp_path / where, "--out", tmp_path / f"{where}-pages", "--json", tmp_path / f"{where}.json")
        code, _, err = run_command("audit", tmp_path / "model", tmp_path / "texts.csv", *options, *places)
        assert (code, err) == (0, "")
        content = json.loads((tmp_path / f"{where}.json").read_bytes())
        del content["seconds"], content["date"]
        for each in content["methods"]:
            del each["seconds"]
        found.append(content)
    assert found[0]["data"]["texts"] == 12
    assert found[0] == found[1]
    # Artefacts that are not noted: seconds are measured in none of them.
    assert manifests(tmp_path / "here") == manifests(tmp_path / "ray")


def test_a_deadline_stops_tasks_at_once(cluster: Cluster, tmp_path: Path) -> None:
    start = time.monotonic()
    outcomes = run([Late(60.0), Late(0.01)], Workspace(tmp_path), where="ray", deadline=start + 3)
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


def test_a_refused_connection_is_one_line_with_the_first_cause() -> None:
    error = ConnectionError("Failed to connect")
    error.__cause__ = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.1")
    message = str(_connection_error("h:6379", error))
    assert "Ray: 2.1.0 Python: 3.9.1" in message
    assert "ray start --address=h:6379" in message
    assert "RAY_AUTH_TOKEN" in message
    assert "\n" not in message


def job(workspace: Workspace) -> _Job:
    identity = ray_pool._workspace_identity(workspace)
    versions = ray_pool._versions()
    return _Job(workspace.location, str(workspace.data_dir), "cpu", 8, True, os.getcwd(), identity, versions, 1.0)


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


def test_a_node_without_the_drivers_data_folder_takes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "own"))
    right = job(Workspace(tmp_path))
    assert _node_workspace(replace(right, data_dir=str(tmp_path))).data_dir == tmp_path
    assert _node_workspace(replace(right, data_dir="/no/such/folder")).data_dir == tmp_path / "own"


@pytest.mark.parametrize("place", ["{}/folder", "memory://identities/{}"])
def test_drivers_that_begin_at_the_same_time_agree_on_the_identity_of_a_workspace(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is none."""
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    workspace = Workspace(place.format(tmp_path if place.startswith("{") else tmp_path.name))
    (tmp_path / "folder").mkdir()
    workspace.create_document(ray_pool._IDENTITY, "first")
    workspace.create_document(ray_pool._IDENTITY, "second")
    assert ray_pool._workspace_identity(workspace) == "first"
    assert [path.name for path in (tmp_path / "folder").iterdir()] in ([], [ray_pool._IDENTITY])


class Sent:
    """What was sent to the actor."""

    def __init__(self) -> None:
        self.reports = ProgressReports()

    def remote(self, key: TaskKey, bars: Mapping[int, Bar]) -> None:
        self.reports.report(key, bars)


def test_workers_report_at_intervals_and_the_actor_shows_a_few_and_forgets_the_finished() -> None:
    sent = Sent()
    assert sent.reports.read(7, []) == {}
    keys = [(7, number) for number in range(100)]
    for key in keys:
        with ReportedProgress(key, 0.0, sent).task("epochs", 5) as step:
            step(2, "loss 1")
            assert sent.reports.latest[7][key] == {0: Bar("epochs", 5, 2, "loss 1")}
        assert sent.reports.latest[7][key] == {}  # the task has ended
    assert len(sent.reports.latest[7]) == 100
    shown = sent.reports.read(7, keys[:50])
    assert [*shown] == keys[50 : 50 + progress.MAX_BARS]
    assert len(sent.reports.latest[7]) == 50
    seldom = Sent()
    seldom.reports.read(7, [])
    with ReportedProgress((7, 0), 3600.0, seldom).task("epochs", 5) as step:
        step()
    assert seldom.reports.latest == {7: {}}


def test_reports_of_one_run_are_not_read_by_another_and_end_with_it() -> None:
    reports, bars = ProgressReports(), {0: Bar("epochs", 5)}
    for run_number in (1, 2):
        reports.read(run_number, [])
        reports.report((run_number, 0), bars)
    reports.report((3, 0), bars)  # nobody reads it
    assert reports.read(1, []) == {(1, 0): bars}
    assert reports.read(2, [(1, 0)]) == {(2, 0): bars}
    reports.close(1)
    reports.report((1, 0), bars)  # a worker that was ended with its run may have sent one more
    assert reports.latest == {2: {(2, 0): bars}}


def test_runs_of_one_driver_share_the_actor_and_leave_nothing_in_it(cluster: Cluster, tmp_path: Path) -> None:
    import ray

    actors = []
    for number in range(2):
        with RayPool([Number(number)], Workspace(tmp_path), f"ray://{cluster.address}", None) as pool:
            actors.append(pool.reports)
            ray.get(pool.reports.read.remote(pool.run, []))
            ray.get(pool.reports.report.remote((pool.run, 0), {0: Bar("epochs", 5)}))
            assert [*ray.get(pool.reports.read.remote(pool.run, []))] == [(pool.run, 0)]
        assert ray.get(pool.reports.read.remote(pool.run, [])) == {}
    assert actors[0] is actors[1]


def test_a_connected_process_stays_with_its_cluster(cluster: Cluster, tmp_path: Path) -> None:
    for where in ("ray", f"ray://{cluster.address}"):
        assert errors(Number(1), Workspace(tmp_path), where=where) == [None]
    with pytest.raises(UserError, match=cluster.address) as caught:
        run(Number(2), Workspace(tmp_path), where="ray://192.0.2.8:6379")
    assert "192.0.2.8:6379" in str(caught.value)


def test_a_recipe_whose_last_node_is_gone_before_it_is_submitted_ends_the_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nodes() -> list[Mapping[str, float]]:
        is_gone = (tmp_path / "made.txt").exists()  # the first recipe is finished
        return [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 0.0 if is_gone else float(PLACE_GPUS)}]

    monkeypatch.setattr(ray_pool, "_living_nodes", nodes)
    monkeypatch.setattr(ray_pool, "NODES_SECONDS", 0.0)
    monkeypatch.setattr(ray_pool, "MAX_SECONDS_WITHOUT_NODE", 1.0)
    recipe = Needing(2, (Number(1),), gpus=float(PLACE_GPUS))
    with pytest.raises(UserError, match="ten minutes"):
        run(recipe, Workspace(tmp_path), where="ray", deadline=time.monotonic() + 60)


def test_the_traceback_of_a_second_failure_replaces_that_of_the_first(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path))
    workspace = Workspace(f"memory://tracebacks/{tmp_path.name}")
    name = workspace.artefact_name(Number(1))
    with RayPool([Number(1)], workspace, "ray", None) as pool:
        for text in ("first", "second"):
            assert workspace.store is not None
            workspace.store.write(f".failures/{name}.txt", text.encode())  # by a node
            assert pool._traceback_file(Number(1)).read_text() == text


def run_alone(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that is not connected to the cluster of this module."""
    root = Path(__file__).parents[2]
    variables = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "HOME": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True)


IMPATIENT = """
import sys
from heedful.cli import main
from heedful.execution import ray_pool

ray_pool.CONNECT_SECONDS = 3.0
sys.argv[1:] = ["run", "recipes_file.py", "-w", "work", "--where", "ray://ADDRESS"]
main()
"""


def test_another_program_at_the_address_ends_the_command(tmp_path: Path) -> None:
    """Ray would wait for it, and print, for minutes."""
    (tmp_path / "recipes_file.py").write_text(
        "from tests.execution.test_runner import Number\n\n\ndef recipes():\n    return [Number(1)]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        done = run_alone(IMPATIENT.replace("ADDRESS", address), tmp_path)
    assert time.monotonic() - start < 60
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("heedful: ")]  # Ray logs lines of its own
    assert address in line


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        ("WorkerCrashedError", "WORKER_DIED"),
        ("OutOfMemoryError", "WORKER_DIED"),
        ("RayTaskError", "TASK_FAILED"),
        ("RaySystemError", "CLUSTER_FAILED"),
        ("RuntimeEnvSetupError", "CLUSTER_FAILED"),
        ("NodeDiedError", "NODE_LOST"),
        ("ObjectLostError", "NODE_LOST"),
    ],
)
def test_the_ends_of_tasks_are_told_apart(error: str, ending: str) -> None:
    import ray

    kind = getattr(ray.exceptions, error)
    assert ray_pool._classify(kind.__new__(kind)).name == ending


def test_a_cluster_that_is_stopped_where_the_command_runs_ends_the_run_with_one_line(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"Resources": {"CPU": 1.0}, "Alive": True, "NodeID": "another"}]
    with RayPool([Number(1)], Workspace(tmp_path), "ray", None) as pool:
        monkeypatch.setattr("ray.nodes", lambda: nodes)
        pool.nodes_time = -math.inf
        with pytest.raises(UserError, match="the cluster was stopped, at least on the machine of this command"):
            pool._slots(Resources())


def test_two_threads_may_run_the_users_recipes_at_the_same_time(cluster: Cluster, tmp_path: Path) -> None:
    recipes = own_recipes(tmp_path / "own_file_of_threads.py")

    def make(number: int) -> list[str | None]:
        return errors(recipes, Workspace(tmp_path / str(number)), where="ray")

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(make, range(2))] == [[None, None], [None, None]]


class SentTasks:
    """In place of the remote function: keeps the devices that tasks are given."""

    def __init__(self) -> None:
        self.devices: list[str] = []

    def options(self, **_: object) -> SentTasks:
        return self

    def remote(self, job: _Job, *_: object, split: bool) -> SentTasks:
        self.devices.append(job.device)
        return self

    def future(self) -> Future[None]:
        return Future()


def test_a_recipe_that_asks_for_no_gpu_is_made_on_the_cpu(cluster: Cluster, tmp_path: Path) -> None:
    pool, sent = RayPool([Number(1)], Workspace(tmp_path), "ray", None), SentTasks()
    with pool:
        pool.make, pool.job = sent, replace(pool.job, device="cuda")
        pool.workspace.device = "cuda"
        for recipe in (Number(1), OnGpu(), Needing(2, gpus=0.0)):
            pool.submit(recipe)
        pool.running.clear()
    assert sent.devices == ["cuda", "cuda", "cpu"]


TWO_CLUSTERS = """
import ray
from heedful import Workspace, run
from tests.execution.test_runner import Number

for number in (1, 2):
    [outcome] = run(Number(number), Workspace("work"), where="ray")
    print(outcome.error)
    ray.shutdown()
"""


def test_a_process_that_disconnects_may_connect_to_another_cluster(tmp_path: Path) -> None:
    """In a process of its own: a handle of the first cluster would end it with a signal."""
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        done = run_alone(TWO_CLUSTERS, tmp_path, RAY_ADDRESS="local", RAY_TMPDIR=folder)
    assert (done.returncode, done.stdout) == (0, "None\nNone\n"), done.stderr[-2000:]
    assert made(Workspace(tmp_path / "work")) == ["1", "2"]


def test_room_is_counted_by_the_scarcest_resource_and_a_lost_node_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = RayPool([Number(1)], Workspace(tmp_path), f"ray://{cluster.address}", None)
    with pool:
        assert pool._slots(Resources()) == 3
        assert pool._slots(Resources(cpus=2.0)) == 1
        assert pool._slots(Resources(gpus=0.25)) == 1
        assert pool._slots(Resources(cpus=0.25, gpus=0.25)) == 4
        monkeypatch.setattr(ray_pool, "_living_nodes", lambda: [{"CPU": 1.0}])
        pool.nodes_time = -math.inf
        with pytest.warns(UserWarning, match="the cluster lost 1 of 2 nodes"):
            assert pool._slots(Resources()) == 1


def test_the_command_refuses_a_place_that_does_not_exist() -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(cli.app, ["run", "attefa", "--only", "mock-1", "--quick", "--where", "ray://h"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
