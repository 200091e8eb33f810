"""Ray on this machine: the same bytes as in one process, what a lost node or driver costs, the speed, and what is sent.

    python -m benchmarks.ray_cluster [speed|costs|sweeps]

Prints every figure of docs/cluster.md and every measured constant of benchmarks/cluster_simulation.py, and takes some
minutes on two cores, which must have nothing else to do. Local nodes (`ray.cluster_utils`) are processes of one
machine: they show correctness, and with as many places as cores the efficiency.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from heedful.attributions.gradient import Gradient
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.data.words import Words
from heedful.execution.ray_pool import RayPool, make_on_node
from heedful.execution.runner import run, topological_order
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.store.artefact_files import MANIFEST
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_training import PAPER_SEEDS, AtteFa
from tests.s3_server import running_server

MIN_EFFICIENCY = 0.9
"""Of as many places as cores, against one process, on trainings of several seconds; the median of all rounds."""
MAX_BUSY = 0.1
"""Share of the cores that may be at work before a measurement."""
MAX_EFFICIENCY = 1.1
"""More than all cores can give: the one process was disturbed."""
EPOCHS = (40, 120)
"""Of the trainings whose speed is measured: some seconds each, and three times as long."""
ROUNDS = 3
"""Of every measurement of speed."""
TEXTS = 9000
"""Of the sharded attribution: three shards."""
EMPTY_RECIPES = 500
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.link")
"""Events of Python's audit hooks; `os.stat` has none and is counted besides."""


@dataclass(frozen=True)
class Empty(Recipe):
    """A recipe that takes no time: what remains is the cost of running it."""

    number: int

    def make(self, workspace: Workspace) -> Artefact:
        """One number."""
        return Artefact(notes={"number": self.number})


def model(seed: int, epochs: int, texts: int = 100) -> TrainedModel:
    """A BiLSTM on a generated corpus with so many test texts."""
    corpus = Mock(informative=2, strength=3.0, shortest=8, longest=16, train=400, dev=50, test=texts)
    training = Training(epochs, 16, Adam(lr=0.005))
    encoder = Attentive(BiLSTM(32), Additive())
    return TrainedModel(corpus, Words(), encoder, training, seed, embeddings=RandomEmbeddings(50))


def sweep() -> list[Recipe]:
    """AtteFa of nine seeds, the attributions of its base model, and attributions of a corpus of three shards."""
    adversaries = Training(4, 16, Adam(lr=0.005), EpochSelection(metric="deception"))
    base = model(PAPER_SEEDS[0], 4)
    trial = AtteFa(base, PAPER_SEEDS, PAPER_SEEDS[1:3], adversary_training=adversaries)
    return [trial, AttributionTable(base, IntegratedGradients()), sharded()]


def sharded() -> AttributionTable:
    """Attributions of more texts than one shard has."""
    return AttributionTable(model(PAPER_SEEDS[0], 4, TEXTS), Gradient())


def manifests(root: Path) -> dict[str, object]:
    """Size and SHA-256 of every file of every artefact."""
    return {path.parent.name: json.loads(path.read_bytes()) for path in root.glob(f"*/{MANIFEST}")}


class Nodes:
    """A local cluster with a number of nodes of some places each."""

    def __init__(self, count: int, places: int) -> None:
        from ray.cluster_utils import Cluster

        self.options = {"num_cpus": places, "include_dashboard": False, "object_store_memory": 80_000_000}
        self.cluster = Cluster(initialize_head=True, head_node_args=self.options)
        self.added: list[object] = []
        for _ in range(count - 1):
            self.add_one()
        self.where = f"ray://{self.cluster.address}"

    def add_one(self) -> None:
        """Add a node with the environment of this moment."""
        self.added.append(self.cluster.add_node(**self.options))

    def kill_one(self) -> None:
        """Kill all processes of a node that is not the head."""
        self.cluster.remove_node(self.added.pop(), allow_graceful=False)


@contextmanager
def local_nodes(count: int, places: int) -> Iterator[Nodes]:
    """A local cluster, ended afterwards."""
    import ray

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # short, because of the sockets in it
        nodes = Nodes(count, places)
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.cluster.shutdown()


def finished(root: Path) -> int:
    return len(manifests(root))


def when(ready: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Do something as soon as a condition holds."""

    def watch() -> None:
        while not ready():
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def timed_run(recipes: Sequence[Recipe], root: Path | str, where: str) -> float:
    """Seconds of a run without failures."""
    start = time.perf_counter()
    outcomes = run(recipes, Workspace(root), where=where)
    seconds = time.perf_counter() - start
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert not failed, failed
    return seconds


def compare_sweeps(folder: Path) -> None:
    """The sweep here, on 2 and on 4 nodes, with a lost node, and with a lost driver."""
    count = len(topological_order(sweep()))
    here = timed_run(sweep(), folder / "here", "here")
    right = manifests(folder / "here")
    shards = len(sharded().shards(Workspace(folder / "here")))
    print(f"AtteFa of {len(PAPER_SEEDS)} seeds and attributions, {count} recipes, one of {shards} shards: {here:.1f} s")

    def report(name: str, seconds: float, root: Path, found: dict[str, object] | None = None) -> None:
        found = manifests(root) if found is None else found
        same = "the same bytes" if found == right else "OTHER BYTES"
        print(f"  {name}: {seconds:.1f} s, {len(found)} artefacts, {same}", flush=True)

    for number in (2, 4):
        with local_nodes(number, 1) as nodes:
            report(f"{number} nodes", timed_run(sweep(), folder / str(number), nodes.where), folder / str(number))
    with local_nodes(2, 1) as nodes:
        root = folder / "node"
        killer = when(lambda: finished(root) >= count // 3, nodes.kill_one)
        report("2 nodes, one killed after a third", timed_run(sweep(), root, nodes.where), root)
        killer.join()
    with local_nodes(2, 1) as nodes:
        root = folder / "driver"
        start = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.ray_cluster", "--drive", str(root), nodes.where]
        driver = subprocess.Popen(command)
        while finished(root) < count // 3:
            assert driver.poll() is None, "the driver ended by itself"
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        kept = finished(root)
        subprocess.run(command, check=True)
        report(f"2 nodes, driver killed after {kept} artefacts, then restarted", time.perf_counter() - start, root)
    with object_store(folder / "head"), local_nodes(1, 1) as nodes:
        os.environ["HEEDFUL_CACHE"] = str(folder / "node")  # a node has the environment of its start
        nodes.add_one()
        os.environ["HEEDFUL_CACHE"] = str(folder / "driver")
        workspace = Workspace("s3://experiments/sweep")
        seconds = timed_run(sweep(), workspace.location, nodes.where)
        assert workspace.store is not None
        stored = workspace.store.read_manifests(workspace.store.artefacts())
        report(
            "2 nodes that share only an s3:// workspace",
            seconds,
            folder,
            {name: json.loads(manifest) for name, manifest in stored.items()},
        )
        for node in ("head", "node", "driver"):
            made = len(list((folder / node).glob(f"workspaces/*/*/{MANIFEST}")))
            print(f"    in the cache of the {node}: {made} artefacts")


@contextmanager
def object_store(cache: Path) -> Iterator[None]:
    """An environment in which s3://experiments is a bucket of a server on this machine."""
    import fsspec

    before = dict(os.environ)
    with running_server() as environment:
        try:
            os.environ |= {**environment, "HEEDFUL_CACHE": str(cache)}
            fsspec.filesystem("s3").clear_instance_cache()
            fsspec.filesystem("s3").mkdir("experiments")
            yield
        finally:
            os.environ.clear()
            os.environ |= before


def measure_speed(folder: Path, epochs: int) -> None:
    """An even load of recipes of some seconds in one process and on a cluster with one place per core, in turn.

    A machine that others share is faster in one minute than in the next, by more than what is measured: each run on the
    cluster is compared with the mean of the run in one process before it and the one after it. What does not depend on
    the speed of the machine is the share of all cores' time that went into the processes that make recipes.
    """
    cores, busy = os.cpu_count() or 1, busy_share()
    recipes = [model(seed, epochs) for seed in range(4 * cores)]
    warm, bare, shares = [], [], []
    timed_run([model(99, 2)], folder / "one", "here")  # imports
    with local_nodes(cores, 1) as nodes:
        here = [timed_run(recipes, folder / "here", "here")]
        cold = timed_run(recipes, folder / "cold", nodes.where)
        for part in range(ROUNDS):
            bare.append(bare_processes(folder / f"bare-{part}", cores, epochs))
            before = worker_seconds()
            warm.append(timed_run(recipes, folder / f"warm-{part}", nodes.where))
            shares.append((worker_seconds() - before) / warm[-1] / cores)
            here.append(timed_run(recipes, folder / f"here-{part}", "here"))
    start = time.perf_counter()
    run(recipes, Workspace(folder / "pool"), where="pool", workers=cores)
    pool = time.perf_counter() - start
    around = [(before + after) / 2 for before, after in itertools.pairwise(here)]
    one = statistics.median(here)
    print(
        f"{len(recipes)} training runs of {one / len(recipes):.1f} s on {cores} cores, {ROUNDS} rounds: {one:.1f} s in "
        f"one process ({min(here):.1f} to {max(here):.1f})"
    )
    for name, found, compared in (
        ("Ray, running workers", warm, around),
        ("Ray, new workers", [cold], here[:1]),
        ("local pool, new workers", [pool], here[-1:]),
        ("bare processes without a pool, excluding imports: the best the machine can do", bare, around),
    ):
        rates = sorted(before / after / cores for before, after in zip(compared, found, strict=True))
        print(
            f"  {name}: {statistics.median(found):.1f} s, efficiency {statistics.median(rates):.2f} "
            f"({rates[0]:.2f} to {rates[-1]:.2f})"
        )
    print(f"  share of the cores' time in Ray's workers: {min(shares):.2f} to {max(shares):.2f}")
    efficiency = statistics.median(before / after / cores for before, after in zip(around, warm, strict=True))
    print(f"  efficiency of at least {MIN_EFFICIENCY}: {judge(efficiency, busy)}", flush=True)


def worker_seconds() -> float:
    """Seconds of processor time of all worker processes of Ray on this machine, without the actor; on Linux."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            title = (process / "cmdline").read_bytes()
            if title.startswith((b"ray::IDLE", f"ray::{make_on_node.__name__}".encode())):
                found += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return found / os.sysconf("SC_CLK_TCK")


def busy_share(seconds: float = 3.0) -> float:
    """The share of all cores' time that other processes take while this one sleeps."""

    def read() -> tuple[int, int]:
        times = [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(times), times[3] + times[4]  # idle, and idle while a disk works

    before = read()
    time.sleep(seconds)
    total, idle = (after - first for after, first in zip(read(), before, strict=True))
    return 1 - idle / total


def judge(efficiency: float, busy: float) -> str:
    """Whether the efficiency is high enough; nothing is judged on a machine that had other work before."""
    if busy > MAX_BUSY or efficiency > MAX_EFFICIENCY:
        return f"NOT JUDGED: the machine has other work ({busy:.0%} of its time before); run it on a quiet one"
    return "reached" if efficiency >= MIN_EFFICIENCY else "NOT REACHED"


def bare_processes(folder: Path, cores: int, epochs: int) -> float:
    """Seconds of the same trainings in processes that know nothing of each other, of the slowest."""
    command = [sys.executable, "-m", "benchmarks.ray_cluster", "--train"]
    started = [
        subprocess.Popen(
            [*command, str(folder / f"bare-{part}"), str(part), str(cores), str(epochs)], stdout=subprocess.PIPE
        )
        for part in range(cores)
    ]
    return max(float(process.communicate()[0]) for process in started)


def round_trip(root: Path, where: str) -> float:
    """Seconds from the submission of an empty recipe to its outcome, the median of 30, one after the other."""
    recipes, seconds = [Empty(-2 - number) for number in range(30)], []
    with RayPool(recipes, Workspace(root), where, None) as pool:
        for recipe in recipes:
            start = time.perf_counter()
            pool.submit(recipe)
            while not pool.wait():
                pass
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_costs(folder: Path) -> None:
    """What one recipe costs the driver, the network and the workspace."""
    import ray

    cores = os.cpu_count() or 1
    empty = [Empty(number) for number in range(EMPTY_RECIPES)]
    with local_nodes(1, cores) as nodes:
        start = timed_run([Empty(-1)], folder / "cost", nodes.where)
        latency = round_trip(folder / "cost", nodes.where)
        before = time.process_time()
        wall = timed_run(empty, folder / "cost", nodes.where)
        driver = time.process_time() - before
        before = time.perf_counter()
        timed_run(empty, folder / "cost", nodes.where)
        has = time.perf_counter() - before
        recipes = topological_order(sweep())
        with RayPool(recipes, Workspace(folder / "cost"), nodes.where, None) as pool:
            sent = [
                len(ray.cloudpickle.dumps((pool.job, recipe, "TrainedModel-0123456789ab", (0, 0))))
                for recipe in recipes
            ]
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    print(f"{EMPTY_RECIPES} empty recipes on {cores} places: {wall:.2f} s, {EMPTY_RECIPES / wall:.0f} per second")
    print(f"  driver_seconds={driver / EMPTY_RECIPES:.4f} of its processor per recipe")
    print(
        f"  start_seconds={start:.1f} (first recipe: connection, worker start); latency={latency:.3f} (an empty "
        "recipe, there and back, when a worker is free)"
    )
    print(f"  has_seconds={has / EMPTY_RECIPES:.5f} (asking for a finished recipe)")
    print(f"  sent_bytes={sum(sent) / len(sent):.0f} per recipe of the sweep, {min(sent)} to {max(sent)}")


@dataclass(frozen=True)
class Watched(Recipe):
    """A recipe with one dependency that tells when it has read and begins to write."""

    base: Empty

    def make(self, workspace: Workspace) -> Artefact:
        """One number."""
        workspace.get(self.base)
        PHASE[0] = "writes"
        return Artefact(notes={"number": 1})


PHASE = ["reads"]


def count_operations(workspace: Workspace, counts: Counter[str]) -> dict[str, int]:
    """Operations that `counts` has seen while one recipe with one stored dependency is made."""
    Workspace(workspace.place).get(Empty(1))
    if workspace.store is not None:
        shutil.rmtree(workspace.root)  # as on another node
    counts.clear()
    PHASE[0] = "reads"
    workspace.get(Watched(Empty(1)))
    return dict(counts)


def measure_workspace(folder: Path) -> None:
    """Bytes that the sweep stores, operations of the file system for one recipe, and requests to an object store."""
    s3fs = importlib.import_module("s3fs")
    root, counts = folder / "operations", Counter[str]()

    def watch(event: str, args: tuple[object, ...]) -> None:
        if event in OPERATIONS and str(root) in "".join(str(argument) for argument in args):
            counts[PHASE[0]] += 1

    stat, request = os.stat, s3fs.S3FileSystem._call_s3

    def counted_stat(path: str | int | os.PathLike[str], **options: bool) -> os.stat_result:
        watch(OPERATIONS[0], (path,))
        return stat(path, **options)

    async def counted_request(files: object, *given: object, **options: object) -> object:
        counts[PHASE[0]] += 1
        return await request(files, *given, **options)

    sys.addaudithook(watch)
    os.stat = counted_stat  # type: ignore[assignment]
    seen = count_operations(Workspace(root), counts)
    os.stat = stat
    print(f"  shared folder: {seen} operations for one recipe with one dependency")
    s3fs.S3FileSystem._call_s3 = counted_request
    with object_store(folder / "requests"):
        seen = count_operations(Workspace("s3://experiments/requests"), counts)
    s3fs.S3FileSystem._call_s3 = request
    print(f"  object store: {seen} requests for one recipe with one dependency that is not in the cache")
    sizes = [sum(entry[0] for entry in files.values()) for files in manifests(folder / "here").values()]  # type: ignore[attr-defined]
    print(f"  stored_bytes={sum(sizes) / len(sizes):.0f} per artefact of the sweep, largest {max(sizes)}")


def main() -> None:
    """All figures."""
    if sys.argv[1:2] == ["--drive"]:
        timed_run(sweep(), Path(sys.argv[2]), sys.argv[3])
        return
    import torch

    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--train"]:
        part, cores, epochs = (int(word) for word in sys.argv[3:6])
        timed_run([model(99, 2)], sys.argv[2], "here")
        print(timed_run([model(seed, epochs) for seed in range(4 * cores)[part::cores]], sys.argv[2], "here"))
        return
    wanted = sys.argv[1:] or ["speed", "costs", "sweeps"]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "speed" in wanted:
            for epochs in EPOCHS:
                measure_speed(folder / f"speed-{epochs}", epochs)
        if "costs" in wanted:
            measure_costs(folder / "costs")
        if "sweeps" in wanted:
            compare_sweeps(folder / "sweeps")
            measure_workspace(folder / "sweeps")
    print(f"all in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
