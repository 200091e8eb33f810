"""Would a run scale to 1 000 nodes? A simulation by discrete events, from what was measured on one machine.

    python -m benchmarks.cluster_simulation

A run is a set of models, each with some trials that wait for it. Three things can be the limit: the cores, the driver,
which handles one recipe at a time (`driver_seconds`), and the workspace, which answers so many operations per second
(`store_rate`). A recipe goes through driver, core, workspace (reads), computation, workspace (writes) and driver again;
its dependents follow. The first recipe of a core waits until the worker process has started. Computation times are
log-normal with the given mean and a standard deviation of half of it, from a fixed seed.
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MIN_SHARE = 0.8
"""A run scales if without any costs it would take at least this share of its duration."""
BUSY = 0.5
"""Of the whole duration: what serves all and is so busy is the limit."""
CORES_PER_NODE = 16
NODES = (1, 10, 100, 1000)
RECIPE_SECONDS = (1.0, 10.0, 60.0, 600.0)


@dataclass(frozen=True)
class Costs:
    """What was measured or assumed.

    Args:
        driver_seconds: of the driver for one recipe: name, pickle, submit, take the outcome, find the next.
        has_seconds: to ask the workspace for one recipe before anything is run.
        latency: seconds between the driver's submission and the first line of the task, while a worker is free.
        start_seconds: until a new worker process has imported everything.
        reads: operations of the workspace before the computation; `writes`: after it.
        operation_seconds: duration of one operation; `store_rate`: operations per second of all nodes together.
        sent_bytes: of one recipe with its settings; `stored_bytes`: of one artefact.
    """

    driver_seconds: float
    has_seconds: float
    latency: float
    start_seconds: float
    reads: int
    writes: int
    operation_seconds: float
    store_rate: float
    sent_bytes: int
    stored_bytes: int


# Measured: `python -m benchmarks.ray_cluster costs sweeps` on two cores without other work. Assumed: what one machine
# cannot show.
SHARED_FOLDER = Costs(
    driver_seconds=0.0021,  # measured: costs, seconds of the driver's processor for 500 empty recipes
    has_seconds=0.00012,  # measured: costs, asking again for 500 finished recipes
    latency=0.006,  # measured: costs, an empty recipe there and back while a worker is free
    start_seconds=2.0,  # measured: costs, the first recipe
    reads=21,  # measured: sweeps, operations until a recipe with one dependency begins to compute
    writes=38,  # measured: sweeps, operations after that
    operation_seconds=0.001,  # assumed: a network file system in the same building
    store_rate=20_000.0,  # assumed: one server of a network file system; give the rate of yours
    sent_bytes=1_738,  # measured: costs, the mean of the sweep
    stored_bytes=115_454,  # measured: sweeps, the mean of the sweep
)
"""A network file system."""
OBJECT_STORE = replace(
    SHARED_FOLDER,
    reads=12,  # measured: sweeps, requests until the recipe begins to compute; its dependency is downloaded
    writes=6,  # measured: sweeps, requests after that
    operation_seconds=0.03,  # assumed: the first byte of a small object in the same region
    store_rate=3_500.0,  # assumed: what the documentation of S3 states for writes under one prefix
)
"""S3, or a store like it."""
FREE = Costs(0.0, 0.0, 0.0, 0.0, 0, 0, 0.0, 1e9, 0, 0)
"""No costs: what is left is the shape of the run."""


@dataclass(frozen=True)
class Load:
    """Models with `trials` recipes each that wait for their model; `seconds` is the mean of a recipe."""

    models: int
    trials: int
    seconds: float

    @property
    def count(self) -> int:
        """All recipes."""
        return self.models * (1 + self.trials)


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation; shares are of the whole duration."""

    seconds: float
    efficiency: float
    driver_share: float
    store_share: float

    def limit(self, ideal: Simulated) -> str:
        """What the run waits for, against the same run without costs, in which only its own shape leaves cores idle."""
        if ideal.seconds >= MIN_SHARE * self.seconds:
            return "none"
        busiest = max((self.driver_share, "driver"), (self.store_share, "workspace"))
        return busiest[1] if busiest[0] > BUSY else "startup, latency"


class _Server:
    """Serves one request after the other."""

    def __init__(self) -> None:
        self.free, self.busy = 0.0, 0.0

    def serve(self, now: float, seconds: float) -> float:
        """When a request that arrives now is served."""
        self.free = max(now, self.free) + seconds
        self.busy += seconds
        return self.free


def simulate(load: Load, slots: int, costs: Costs, look_ahead: float = 1.25) -> Simulated:
    """The duration of a run on so many cores."""
    spread = float(np.sqrt(np.log(1.25)))
    draws = np.random.default_rng(0).lognormal(np.log(load.seconds) - spread**2 / 2, spread, load.count)
    driver, store = _Server(), _Server()
    plan = driver.serve(0.0, costs.has_seconds * load.count)
    ready: deque[int] = deque(range(load.models))  # recipe numbers: models first, then the trials of each
    queued: deque[int] = deque()
    events: list[tuple[float, int, int]] = []
    idle, new, flying, end = 0, slots, 0, 0.0
    arrival, stored, freed, done = range(4)

    def start(now: float, recipe: int, begin: float) -> None:
        read = store.serve(now + begin, costs.reads / costs.store_rate) + costs.reads * costs.operation_seconds
        heapq.heappush(events, (read + draws[recipe], stored, recipe))

    def submit(now: float) -> None:
        nonlocal flying
        while ready and flying < slots * look_ahead:
            flying += 1
            sent = driver.serve(now, costs.driver_seconds / 2)
            heapq.heappush(events, (sent + costs.latency, arrival, ready.popleft()))

    submit(plan)
    while events:
        now, kind, recipe = heapq.heappop(events)
        if kind == arrival:
            queued.append(recipe)
        elif kind == stored:
            served = store.serve(now, costs.writes / costs.store_rate) + costs.writes * costs.operation_seconds
            heapq.heappush(events, (served, freed, recipe))
        elif kind == freed:
            idle += 1
            heapq.heappush(events, (driver.serve(now, costs.driver_seconds / 2), done, recipe))
        else:
            end = now
            flying -= 1
            if recipe < load.models:
                first = load.models + recipe * load.trials
                ready.extendleft(reversed(range(first, first + load.trials)))
            submit(now)
        while queued and idle + new:
            begin = costs.latency if idle else costs.start_seconds
            idle, new = (idle - 1, new) if idle else (idle, new - 1)
            start(now, queued.popleft(), begin)
    return Simulated(end, float(draws.sum()) / (slots * end), driver.busy / end, store.busy / end)


def table(costs: Costs, per_slot: int, trials: int) -> list[str]:
    """A row for each number of nodes and duration of a recipe."""
    rows = [
        "| nodes | cores | time per recipe | recipes | run | efficiency "
        "| without overhead | driver | workspace | bottleneck |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for nodes in NODES:
        slots = nodes * CORES_PER_NODE
        for seconds in RECIPE_SECONDS:
            load = Load(max(1, per_slot * slots // (1 + trials)), trials, seconds)
            found, ideal = simulate(load, slots, costs), simulate(load, slots, FREE)
            cells = (
                f"{nodes}", f"{slots}", f"{seconds:.0f} s", f"{load.count}", f"{found.seconds / 60:.1f} min",
                f"{found.efficiency:.2f}", f"{ideal.efficiency:.2f}", f"{found.driver_share:.2f}",
                f"{found.store_share:.2f}", found.limit(ideal),
            )  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Print a table for a shared folder and one for an object store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-core", type=int, default=10, help="recipes for each core")
    parser.add_argument("--trials", type=int, default=9, help="recipes that wait for each model")
    given = parser.parse_args(words)
    for name, costs in (("shared folder", SHARED_FOLDER), ("object store", OBJECT_STORE)):
        print(f"{name}: {costs}")
        for row in table(costs, given.per_core, given.trials):
            print(row)
        print()


if __name__ == "__main__":
    main()
