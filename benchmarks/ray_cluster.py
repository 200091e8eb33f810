"""Ray on this machine: the same bytes as in one process, what a lost node or driver costs, the speed, and what is sent.

    python -m benchmarks.ray_cluster

Prints every figure of docs/cluster.md and takes some minutes on two cores. Local nodes (`ray.cluster_utils`) are
processes of one machine: they show correctness, and with as many places as cores the efficiency.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heedful._ray_pool import RayPool
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import Mock
from heedful.data.tokenization import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.runner import run, topological_order
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import MANIFEST, Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_training import PAPER_SEEDS, AtteFa

EMPTY_RECIPES = 500
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir")
"""Events of Python's audit hooks; questions for the state of a file have none."""


@dataclass(frozen=True)
class Empty(Recipe):
    """A recipe that takes no time: what remains is the cost of running it."""

    number: int

    def make(self, workspace: Workspace) -> Artefact:
        """One number."""
        return Artefact(notes={"number": self.number})


def model(seed: int, epochs: int) -> TrainedModel:
    """A BiLSTM on a generated corpus."""
    corpus = Mock(informative=2, strength=3.0, shortest=8, longest=16, train=400, dev=50, test=100)
    training = Training(epochs, 16, Adam(lr=0.005))
    encoder = Attentive(BiLSTM(32), Additive())
    return TrainedModel(corpus, Words(), encoder, training, seed, embeddings=RandomEmbeddings(50))


def sweep() -> list[Recipe]:
    """AtteFa of nine seeds, and the attributions of its base model."""
    adversaries = Training(4, 16, Adam(lr=0.005), EpochSelection(metric="deception"))
    base = model(PAPER_SEEDS[0], 4)
    trial = AtteFa(base, PAPER_SEEDS, PAPER_SEEDS[1:3], adversary_training=adversaries)
    return [trial, AttributionTable(base, IntegratedGradients())]


def manifests(root: Path) -> dict[str, object]:
    """Size and SHA-256 of every file of every artefact."""
    return {path.parent.name: json.loads(path.read_bytes()) for path in root.glob(f"*/{MANIFEST}")}


class Nodes:
    """A local cluster with a number of nodes of some places each."""

    def __init__(self, count: int, places: int) -> None:
        from ray.cluster_utils import Cluster

        options = {"num_cpus": places, "include_dashboard": False, "object_store_memory": 80_000_000}
        self.cluster = Cluster(initialize_head=True, head_node_args=options)
        self.added = [self.cluster.add_node(**options) for _ in range(count - 1)]
        self.where = f"ray://{self.cluster.address}"

    def kill_one(self) -> None:
        """Kill all processes of a node that is not the head."""
        self.cluster.remove_node(self.added.pop(), allow_graceful=False)


@contextmanager
def local_nodes(count: int, places: int) -> Iterator[Nodes]:
    """A local cluster, ended afterwards."""
    import ray

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


def timed_run(recipes: Sequence[Recipe], root: Path, where: str) -> float:
    """Seconds of a run without failures."""
    start = time.perf_counter()
    outcomes = run(recipes, Workspace(root), where=where)
    seconds = time.perf_counter() - start
    failed = [each.error for each in outcomes if each.error is not None]
    assert not failed, failed
    return seconds


def compare_sweeps(folder: Path) -> None:
    """The sweep here, on 2 and on 4 nodes, with a lost node, and with a lost driver."""
    count = len(topological_order(sweep()))
    here = timed_run(sweep(), folder / "here", "here")
    right = manifests(folder / "here")
    print(f"AtteFa of {len(PAPER_SEEDS)} seeds and attributions, {count} recipes: {here:.1f} s here")

    def report(name: str, seconds: float, root: Path) -> None:
        same = "the same bytes" if manifests(root) == right else "OTHER BYTES"
        print(f"  {name}: {seconds:.1f} s, {len(manifests(root))} artefacts, {same}", flush=True)

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
            time.sleep(0.02)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        kept = finished(root)
        subprocess.run(command, check=True)
        report(f"2 nodes, driver killed when {kept} were finished, and again", time.perf_counter() - start, root)


def measure_speed(folder: Path) -> None:
    """An even load of recipes of some seconds in one process and on a cluster with one place per core."""
    cores = os.cpu_count() or 1
    seconds_of_one = timed_run([model(99, 8)], folder / "one", "here")
    recipes = [model(seed, 8) for seed in range(4 * cores)]
    here = timed_run(recipes, folder / "here", "here")
    with local_nodes(cores, 1) as nodes:
        cold = timed_run(recipes, folder / "cold", nodes.where)
        warm = timed_run(recipes, folder / "warm", nodes.where)
    pool = time.perf_counter()
    run(recipes, Workspace(folder / "pool"), where="pool", workers=cores)
    pool = time.perf_counter() - pool
    print(f"{len(recipes)} trainings of {seconds_of_one:.1f} s on {cores} cores: {here:.1f} s in one process")
    for name, found in (("workers that run", warm), ("new workers", cold), ("local pool, new workers", pool)):
        print(
            f"  {name}: {found:.1f} s, speed-up {here / found:.2f}, efficiency {here / found / cores:.2f}", flush=True
        )


def measure_costs(folder: Path) -> None:
    """What one recipe costs the driver, the network and the workspace."""
    import ray

    cores = os.cpu_count() or 1
    empty = [Empty(number) for number in range(EMPTY_RECIPES)]
    with local_nodes(1, cores) as nodes:
        start = timed_run([Empty(-1)], folder / "cost", nodes.where)
        latency = min(timed_run([Empty(-2 - number)], folder / "cost", nodes.where) for number in range(5))
        before = time.process_time()
        wall = timed_run(empty, folder / "cost", nodes.where)
        driver = time.process_time() - before
        before = time.perf_counter()
        timed_run(empty, folder / "cost", nodes.where)
        has = time.perf_counter() - before
        recipes = topological_order(sweep())
        with RayPool(recipes, Workspace(folder / "cost"), nodes.where, None) as pool:
            sent = [len(ray.cloudpickle.dumps((pool.job, each, "TrainedModel-0123456789ab", 0))) for each in recipes]
    print(f"{EMPTY_RECIPES} empty recipes on {cores} places: {wall:.2f} s, {EMPTY_RECIPES / wall:.0f} per second")
    print(f"  driver: {1e3 * driver / EMPTY_RECIPES:.2f} ms of its processor per recipe")
    print(
        f"  first recipe (connection, worker start): {start:.1f} s; one recipe when workers run: {1e3 * latency:.0f} ms"
    )
    print(f"  asking for a finished recipe: {1e3 * has / EMPTY_RECIPES:.2f} ms")
    print(f"  sent per recipe of the sweep: {min(sent)} to {max(sent)} bytes, mean {sum(sent) / len(sent):.0f}")


def measure_workspace(folder: Path) -> None:
    """Bytes that the sweep stores, and operations of the file system for one recipe."""
    root = folder / "operations"
    counts: Counter[str] = Counter()
    phase = ["reads"]

    def watch(event: str, args: tuple[object, ...]) -> None:
        if event in OPERATIONS and str(root) in "".join(str(each) for each in args):
            counts[phase[0]] += 1

    @dataclass(frozen=True)
    class Watched(Recipe):
        base: Empty

        def make(self, workspace: Workspace) -> Artefact:
            workspace.get(self.base)
            phase[0] = "writes"
            return Artefact(notes={"number": 1})

    workspace = Workspace(root)
    workspace.get(Empty(1))
    sys.addaudithook(watch)
    counts.clear()
    workspace.get(Watched(Empty(1)))
    seen = dict(counts)
    sizes = [sum(entry[0] for entry in each.values()) for each in manifests(folder / "here").values()]  # type: ignore[attr-defined]
    print(f"  operations of the workspace for one recipe with one dependency: {seen}")
    print(f"  stored per artefact of the sweep: mean {sum(sizes) / len(sizes):.0f} bytes, largest {max(sizes)}")


def main() -> None:
    """All figures."""
    if sys.argv[1:2] == ["--drive"]:
        timed_run(sweep(), Path(sys.argv[2]), sys.argv[3])
        return
    import torch

    torch.set_num_threads(1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure_speed(folder / "speed")
        measure_costs(folder / "costs")
        compare_sweeps(folder / "sweeps")
        measure_workspace(folder / "sweeps")
    print(f"all in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
