"""Recipes as tasks of a Ray cluster; the driver holds the order, the workspace holds the results.

The driver submits a recipe when its dependencies are stored, and hardly more recipes than the cluster has room for. A
task receives the recipe and its artefact name, and returns an error or nothing: artefacts pass through the workspace
alone. A node must have the driver's version of heedful and torch, see the same workspace and find the same data, or the
run ends with the remedy. Nothing that a recipe reads or stores is pickled; recipes are, between nodes that trust each
other.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, redirect_stdout, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType, TracebackType
from typing import Protocol

import torch

from heedful import __version__
from heedful.execution.outcome import MAX_ATTEMPTS, WORKER_DIED, Outcome, attempt, check_sendable, describe_exception
from heedful.progress import Bar, ProgressReports, ReportedProgress, StepCallback, TaskKey
from heedful.store.atomic_write import replace_text
from heedful.store.code_digest import is_user_module
from heedful.store.recipe import Recipe, Resources
from heedful.store.shard import Shard, ShardedRecipe
from heedful.store.workspace import Workspace, default_data_dir
from heedful.types import UserError

MAX_LOST_NODES = 20
"""A recipe is tried again when its node is lost, but not more often than this."""
MAX_SECONDS_WITHOUT_NODE = 600.0
LOOK_AHEAD = 1.25
"""Tasks in flight for each one that the cluster has room for: a free worker need not wait for the driver."""
NODES_SECONDS = 5.0
"""How often the driver asks which nodes there are."""
_POLL_SECONDS = 0.2
PROGRESS_SECONDS = 1.0
REPORTS_PER_SECOND = 500
"""Approximate limit of the reports that all workers together send to the actor."""
MAX_WARNINGS = 20
"""Different ones of one recipe that are passed on."""
REACH_SECONDS = 5.0
"""For a program to accept a connection at the address of the head."""
CONNECT_SECONDS = 90.0
"""For `ray.init`, which would try for many minutes where another program listens; a new cluster takes some seconds."""
NODES_LOST = f"its node was lost {MAX_LOST_NODES} times; look at the nodes, and run again"


def _quiet_ray() -> ModuleType:
    """Ray, without telemetry."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    module: ModuleType = ray
    return module


def connect(where: str) -> None:
    """Connect this process to a cluster for the rest of its life; UserError with the remedy where that fails.

    Args:
        where: "ray://HOST:PORT" is the cluster with this head; "ray" the one that this process is connected to, else
            the one that `RAY_ADDRESS` names, else the one that was started on this machine, else a new one of this
            machine alone that ends with this process.
    """
    with _connecting:
        _connect(where.removeprefix("ray").removeprefix("://") or os.environ.get("RAY_ADDRESS", ""))


_connecting = threading.Lock()
_ANY_CLUSTER = ("", "auto", "local")
"""Addresses that name no head."""
_asked: dict[str, str] = {}
"""For the head of each cluster that this process was connected to, the address that was asked for."""


def _connect(address: str) -> None:
    ray = _quiet_ray()
    if ray.is_initialized():
        head = ray.get_runtime_context().gcs_address
        if address not in (*_ANY_CLUSTER, head, _asked.get(head)):
            raise UserError(
                f"this process is connected to the Ray cluster {head}, not {address}; choose --where ray to use it, or "
                "start another process"
            )
        return
    if address.startswith("ray://"):
        raise UserError(
            f"RAY_ADDRESS is {address}, an address of Ray Client; give that of the head, such as HOST:6379, on a node "
            "of the cluster, or start the command there with `ray job submit`"
        )
    if address not in _ANY_CLUSTER:
        _check_reachable(address)
    try:
        _start_ray(address or None)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        if address:
            raise _connection_error(address, error) from error
        _start_ray("local")  # the cluster that was started on this machine is gone
    _asked[ray.get_runtime_context().gcs_address] = address


def _start_ray(address: str | None) -> None:
    """Call `ray.init`; UserError if it does not return in time.

    It runs in a thread, which is left behind then. In the main thread Ray would also replace the handler of SIGTERM,
    and a command that is told to end would not end as by Ctrl-C.
    """
    connected: Future[None] = Future()

    def start() -> None:
        try:
            _quiet_ray().init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            connected.set_exception(error)
        else:
            connected.set_result(None)
            threading.Event().wait()  # the processes of a new cluster end with the thread that started them

    threading.Thread(target=start, name="ray.init", daemon=True).start()
    if not wait([connected], CONNECT_SECONDS).done:
        raise UserError(
            f"no Ray cluster answered at {address or 'this machine'} within {CONNECT_SECONDS:.0f} seconds; give the "
            "address that `ray start --head` printed, such as ray://HOST:6379"
        )
    connected.result()


def _check_reachable(address: str) -> None:
    """UserError unless a program listens at the address: Ray itself would print warnings for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({describe_exception(error)}); give the address that "
            "`ray start --head` printed, such as ray://HOST:6379"
        ) from error


def _connection_error(address: str, error: BaseException) -> UserError:
    """One line with the first cause of an error of Ray, and what a node needs."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return UserError(
        f"the Ray cluster at {address} did not accept the connection ({describe_exception(cause)}); run the command on "
        f"one of its nodes (`ray start --address={address}` joins it), with the Ray and Python versions of its head, "
        "and with its token in RAY_AUTH_TOKEN and RAY_AUTH_MODE=token if it asks for one"
    )


@dataclass(frozen=True)
class _Job:
    """What every task of a run must know.

    Args:
        data_dir: the driver's; a node without this folder has its data in its own `HEEDFUL_DATA`.
        identity: the content of a file in the workspace, which shows that a node sees the same workspace.
        versions: of heedful and torch, which must be the driver's.
        interval: seconds between two reports of one worker.
    """

    location: str
    data_dir: str
    device: str
    batch_size: int
    automatic_batch_size: bool
    folder: str
    identity: str
    versions: str
    interval: float


@dataclass(frozen=True)
class _Reply:
    """What a task returns: the error of its recipe, if any, and its warnings.

    Args:
        shards: number, examples of the whole and size of the shards that are to be made first, side by side.
    """

    error: str | None = None
    has_traceback: bool = False
    warnings: tuple[str, ...] = ()
    shards: tuple[tuple[int, int, int], ...] = ()


class _RemoteMethod(Protocol):
    """A method of an actor, which is called without waiting."""

    def remote(self, *arguments: object) -> object: ...


class _Actor(Protocol):
    """The handle of the `ProgressReports` of a driver."""

    report: _RemoteMethod
    read: _RemoteMethod
    close: _RemoteMethod


@dataclass(eq=False)
class _Running:
    """A recipe in flight."""

    recipe: Recipe
    needed: Resources
    task: object


class _Ending(Enum):
    """How a task without a reply ended."""

    TASK_FAILED = "an exception outside of the recipe's own code"
    CLUSTER_FAILED = "Ray itself does not work"
    WORKER_DIED = "its process was killed"
    NODE_LOST = "its node is gone, or the network between"


_RETRIES = {_Ending.WORKER_DIED: (MAX_ATTEMPTS, WORKER_DIED), _Ending.NODE_LOST: (MAX_LOST_NODES, NODES_LOST)}
"""How often a task may end in this way, and the error of its recipe then."""


def _classify(error: BaseException) -> _Ending:
    exceptions = _quiet_ray().exceptions
    if isinstance(error, exceptions.WorkerCrashedError | exceptions.OutOfMemoryError):
        return _Ending.WORKER_DIED
    if isinstance(error, exceptions.RayTaskError):
        return _Ending.TASK_FAILED
    if isinstance(error, exceptions.RaySystemError | exceptions.RuntimeEnvSetupError):
        return _Ending.CLUSTER_FAILED
    return _Ending.NODE_LOST


@dataclass(eq=False)
class _OpenBar:
    context: AbstractContextManager[StepCallback]
    step: StepCallback
    done: int = 0


class RayPool:
    """The workers of a Ray cluster, the recipes in flight, and their progress bars."""

    def __init__(self, waiting: Sequence[Recipe], workspace: Workspace, where: str, workers: int | None) -> None:
        connect(where)
        ray = _quiet_ray()
        self.ray, self.workspace, self.workers = ray, workspace, workers
        self.nodes: list[Mapping[str, float]] = []
        self.nodes_time, self.without_node = -math.inf, time.monotonic()
        for needed, recipe in {recipe.resources: recipe for recipe in waiting}.items():
            if not self._slots(needed):
                raise UserError(
                    f"{type(recipe).__name__} needs {self._describe(needed)}, and no node of the cluster has it"
                )
        interval = max(PROGRESS_SECONDS, self._slots(Resources(cpus=1.0, gpus=0.0)) / REPORTS_PER_SECOND)
        self.job = _Job(
            workspace.location,
            str(workspace.data_dir.resolve()),
            workspace.device.partition(":")[0],
            workspace.batch_size,
            workspace.automatic_batch_size,
            os.getcwd(),
            _workspace_identity(workspace),
            _versions(),
            interval,
        )
        self.make = ray.remote(max_retries=0)(make_on_node)
        self.running: dict[TaskKey, _Running] = {}
        self.counts: Counter[Resources] = Counter()
        self.split: set[Recipe] = set()
        """Recipes whose shards are known."""
        self.endings: Counter[tuple[Recipe, _Ending]] = Counter()
        self.done: SimpleQueue[tuple[TaskKey, Future[_Reply]]] = SimpleQueue()
        self.run, self.numbers, self.finished = next(_runs), count(), list[TaskKey]()
        self.bars: dict[tuple[TaskKey, int], _OpenBar] = {}
        self.progress_time = time.monotonic()
        self.reading: object = None
        self.stack = ExitStack()
        for module in _user_modules(waiting):
            ray.cloudpickle.register_pickle_by_value(module)
        for recipe in {type(recipe): recipe for recipe in waiting}.values():
            check_sendable(recipe, ray.cloudpickle.dumps, "let its module hold no open files or locks")
        context = ray.get_runtime_context()
        self.reports = _progress_actor(context.get_node_id(), context.get_job_id())

    def __enter__(self) -> RayPool:
        if threading.current_thread() is threading.main_thread():
            # Ray prints the death of a node to the standard output, where results are.
            self.stack.enter_context(redirect_stdout(sys.stderr))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for running in self.running.values():
            with suppress(Exception):  # it has just ended, or the cluster is gone
                self.ray.cancel(running.task, force=True)
        with suppress(Exception):
            self.reports.close.remote(self.run)
        for key in list(self.bars):
            self._close_bar(key)
        self.stack.close()

    @property
    def status(self) -> str:
        """How many recipes are in flight on how many nodes."""
        return f"{len(self.running)} submitted, {len(self.nodes)} node{'s' * (len(self.nodes) != 1)}"

    def has_room(self, needed: Resources) -> bool:
        """Whether the cluster has room for one more such recipe, or nearly so.

        One may always wait for a node: `_check_nodes` ends the run if none comes.
        """
        if not self.running:
            return True
        if self.workers is not None and len(self.running) >= self.workers:
            return False
        slots = self._slots(needed)
        return self.counts[needed] < (slots if self.workers is not None else math.ceil(slots * LOOK_AHEAD))

    def submit(self, recipe: Recipe) -> None:
        """Send a recipe to the cluster."""
        needed = recipe.resources
        key = (self.run, next(self.numbers))
        gpus = self._gpus(needed)
        options = self.make.options(num_cpus=needed.cpus, num_gpus=gpus, memory=needed.memory)
        name, split = self.workspace.artefact_name(recipe), recipe not in self.split
        # A task that asks for no GPU sees none.
        job = self.job if gpus else replace(self.job, device="cpu")
        task = options.remote(job, recipe, name, key, self.reports, split=split)
        self.running[key] = _Running(recipe, needed, task)
        self.counts[needed] += 1
        task.future().add_done_callback(lambda future: self.done.put((key, future)))

    def wait(self) -> list[Outcome]:
        """Wait for a moment, show the progress of the nodes, and return the outcomes of recipes that are done."""
        outcomes: list[Outcome] = []
        with suppress(Empty):
            arrived = self.done.get(timeout=_POLL_SECONDS)
            while True:
                outcome = self._outcome(*arrived)
                if outcome is not None:
                    outcomes.append(outcome)
                arrived = self.done.get_nowait()
        self._check_nodes()
        self._show_progress()
        return outcomes

    def _outcome(self, key: TaskKey, future: Future[_Reply]) -> Outcome | None:
        """The outcome of a task that has ended; None where its recipe is submitted again."""
        recipe, error = self._remove_task(key), future.exception()
        if error is None:
            return self._read_reply(recipe, future.result())
        ending = _classify(error)
        if ending is _Ending.TASK_FAILED:
            return Outcome(recipe, _task_error(error))
        if ending is _Ending.CLUSTER_FAILED:
            raise UserError(
                f"Ray failed ({describe_exception(error)}); look at its logs in /tmp/ray, and run again"
            ) from error
        self.endings[recipe, ending] += 1
        limit, message = _RETRIES[ending]
        if self.endings[recipe, ending] == limit:
            return Outcome(recipe, message)
        self.nodes_time = -math.inf  # one of them may be gone
        self.submit(recipe)
        return None

    def _remove_task(self, key: TaskKey) -> Recipe:
        """Forget a task that has ended, and its bars; the recipe that it was to make."""
        task = self.running.pop(key)
        self.counts[task.needed] -= 1
        self.finished.append(key)
        for bar in [bar for bar in self.bars if bar[0] == key]:
            self._close_bar(bar)
        return task.recipe

    def _read_reply(self, recipe: Recipe, reply: _Reply) -> Outcome:
        """The outcome that a node has told, with its warnings passed on."""
        for message in reply.warnings:
            warnings.warn(message, stacklevel=2)
        if reply.shards:
            assert isinstance(recipe, ShardedRecipe)
            self.split.add(recipe)
            return Outcome(recipe, shards=tuple(Shard(recipe, *shard) for shard in reply.shards))
        return Outcome(recipe, reply.error, self._traceback_file(recipe) if reply.has_traceback else None)

    def _traceback_file(self, recipe: Recipe) -> Path:
        """The file with the traceback of a node, on this machine."""
        name = self.workspace.artefact_name(recipe)
        file = self.workspace.failure_file(name)
        is_elsewhere = self.workspace.store is not None or not file.exists()
        if is_elsewhere and (text := self.workspace.read_document(f".failures/{name}.txt")) is not None:
            replace_text(file, text.decode())
        return file

    # Nodes

    def _slots(self, needed: Resources) -> int:
        """How many such recipes fit on the nodes that are alive."""
        now = time.monotonic()
        if now - self.nodes_time > NODES_SECONDS:
            before, self.nodes = len(self.nodes), _living_nodes()
            self.nodes_time = now
            if (lost := before - len(self.nodes)) > 0:
                self._check_own_node()
                warnings.warn(
                    f"the cluster lost {lost} of {before} nodes; what they were making is made again", stacklevel=2
                )
        return sum(_fit(node, needed, self._gpus(needed)) for node in self.nodes)

    def _check_own_node(self) -> None:
        """UserError if the node of the driver is gone, as after `ray stop`: Ray would soon end this process."""
        driver_node = self.ray.get_runtime_context().get_node_id()
        if all(node["NodeID"] != driver_node for node in self.ray.nodes() if node["Alive"]):
            raise UserError(
                "the cluster was stopped, at least on the machine of this command; finished work is kept: start it and "
                "run the same command"
            )

    def _gpus(self, needed: Resources) -> float:
        return _gpu_count(needed, self.workspace.device)

    def _describe(self, needed: Resources) -> str:
        gpus = self._gpus(needed)
        memory = "" if needed.memory is None else f", {needed.memory / 2**30:.1f} GiB of memory"
        return f"{needed.cpus:g} cores{memory}{f', {gpus:g} GPUs' if gpus else ''}"

    def _check_nodes(self) -> None:
        """UserError if for a long time there was no node for what is in flight."""
        now = time.monotonic()
        if not self.running or any(self._slots(needed) for needed, number in self.counts.items() if number):
            self.without_node = now
        elif now - self.without_node > MAX_SECONDS_WITHOUT_NODE:
            raise UserError(
                "for ten minutes no node of the cluster could run the remaining recipes; finished work is kept: add "
                "nodes and run the same command"
            )

    # Progress

    def _show_progress(self) -> None:
        """Show the last reports and ask for the next, without waiting."""
        if self.reading is not None:
            if not self.ray.wait([self.reading], timeout=0)[0]:
                return
            with suppress(self.ray.exceptions.RayError):  # the actor is being started again
                self._show(self.ray.get(self.reading))
            self.reading = None
        now = time.monotonic()
        if now - self.progress_time >= PROGRESS_SECONDS:
            self.progress_time = now
            self.reading = self.reports.read.remote(self.run, self.finished)
            self.finished = []

    def _show(self, shown: Mapping[TaskKey, Mapping[int, Bar]]) -> None:
        self.finished += [key for key in shown if key not in self.running]
        wanted = {
            (key, number): bar for key, bars in shown.items() if key in self.running for number, bar in bars.items()
        }
        for key in self.bars.keys() - wanted.keys():
            self._close_bar(key)
        for key, bar in wanted.items():
            if key not in self.bars:
                context = self.workspace.progress.task(bar.title, bar.total)
                self.bars[key] = _OpenBar(context, context.__enter__())
            opened = self.bars[key]
            opened.step(bar.done - opened.done, bar.note)
            opened.done = bar.done

    def _close_bar(self, key: tuple[TaskKey, int]) -> None:
        self.bars.pop(key).context.__exit__(None, None, None)


_runs = count()
"""Numbers of the runs of this process."""


@lru_cache(maxsize=1)
def _progress_actor(node: str, job: str) -> _Actor:
    """The actor of one connection to a cluster, on the node of the driver, with which it ends.

    The runs of a driver share it: its process takes most of a second of a core to start.

    Args:
        node: of the driver; a cluster that is started again has other nodes, but the same first job.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node, soft=True)
    kind = _quiet_ray().remote(ProgressReports).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
    actor: _Actor = kind.remote()
    return actor


def count_slots(where: str, device: str) -> int:
    """How many recipes with the usual needs the cluster makes at a time."""
    connect(where)
    return sum(_fit(node, Resources(), _gpu_count(Resources(), device)) for node in _living_nodes())


def _living_nodes() -> list[Mapping[str, float]]:
    """The resources of every node."""
    return [node["Resources"] for node in _quiet_ray().nodes() if node["Alive"]]


def _gpu_count(needed: Resources, device: str) -> float:
    if needed.gpus is not None:
        return needed.gpus
    return 0.0 if device.partition(":")[0] == "cpu" else 1.0


def _fit(node: Mapping[str, float], needed: Resources, gpus: float) -> int:
    """How many recipes with these needs fit on a node.

    >>> _fit({"CPU": 8.0, "GPU": 1.0}, Resources(cpus=2.0), 0.25)
    4
    >>> _fit({"CPU": 8.0}, Resources(), 1.0)
    0
    """
    wanted = {"CPU": needed.cpus, "GPU": gpus, "memory": float(needed.memory or 0)}
    return min((int(node.get(name, 0.0) / amount) for name, amount in wanted.items() if amount), default=0)


def _task_error(error: BaseException) -> str:
    """The error of a recipe whose task failed outside of its own code; what concerns all recipes is raised."""
    cause = vars(error).get("cause")
    exception = cause if isinstance(cause, BaseException) else error
    if isinstance(exception, UserError):
        raise exception
    if "failed to import on the worker" in str(exception) or "No module named 'heedful" in str(exception):
        raise UserError(
            f"a node has no heedful, or another one ({describe_exception(exception)[-200:]}); install heedful[ray] "
            f"{__version__} on all nodes"
        ) from error
    return describe_exception(exception)


def _user_modules(recipes: Sequence[Recipe]) -> list[ModuleType]:
    """The user's modules that define parts of recipes, and their neighbours, which no node has: they are sent."""
    names = [name for name in _module_names(recipes) if name in sys.modules and is_user_module(name)]
    folders = tuple(
        {f"{file.parent}{os.sep}" for name in names if (file := _module_file(sys.modules[name])) is not None}
    )
    if not folders:
        return []
    # Classes of the main module are always sent. Some packages put other objects than modules into sys.modules.
    return [
        module
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__")
        and isinstance(module, ModuleType)
        and is_user_module(name)
        and (file := _module_file(module)) is not None
        and str(file).startswith(folders)
    ]


def _module_file(module: ModuleType) -> Path | None:
    file = vars(module).get("__file__")
    return Path(file).resolve() if isinstance(file, str) else None


def _module_names(recipes: Sequence[Recipe]) -> set[str]:
    """The modules of the classes of recipes and of everything in their fields."""
    modules: set[str] = set()
    seen: set[int] = set()
    left: list[object] = list(recipes)
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tuple):
            left.extend(value)
        elif isinstance(value, Enum):
            modules.add(type(value).__module__)
        elif is_dataclass(value):
            modules.add(type(value).__module__)
            left.extend(getattr(value, entry.name) for entry in fields(value))
    return modules


_IDENTITY = ".identity"


def _workspace_identity(workspace: Workspace) -> str:
    """A random text in a file of the workspace, written once; a folder elsewhere with the same name has another."""
    if not _read_identity(workspace):
        workspace.create_document(_IDENTITY, secrets.token_hex(16))
    return _read_identity(workspace)


def _read_identity(workspace: Workspace) -> str:
    return (workspace.read_document(_IDENTITY) or b"").decode("ascii", "replace")


@lru_cache(maxsize=1)
def _versions() -> str:
    """Of heedful, with a digest of its code, and of torch: other code may give another result under the same name."""
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(file.read_bytes())
    return f"heedful {__version__} (code {code.hexdigest()[:8]}) with torch {torch.__version__.partition('+')[0]}"


# On a node


@lru_cache(maxsize=1)
def _node_workspace(job: _Job) -> Workspace:
    """The workspace of this worker process, with its cache of models; UserError if the node cannot take part."""
    torch.set_num_threads(1)
    here = f"on the node {socket.gethostname()}"
    if _versions() != job.versions:
        raise UserError(f"{here} there is {_versions()}, on the driver {job.versions}; install the same on all nodes")
    if Path(job.folder).is_dir():
        os.chdir(job.folder)  # recipes may name files from there
    workspace = Workspace(
        job.location,
        data_dir=Path(job.data_dir) if Path(job.data_dir).is_dir() else default_data_dir(),
        device=job.device,
        batch_size=job.batch_size,
        automatic_batch_size=job.automatic_batch_size,
        model_cache={},
    )
    if _read_identity(workspace) != job.identity:
        raise UserError(f"{here} {job.location} is not the driver's workspace; give a folder that all nodes share")
    return workspace


def _check_name(recipe: Recipe, name: str, workspace: Workspace) -> None:
    """UserError if this node would store the recipe under another name, or lacks its data."""
    here = f"on the node {socket.gethostname()}"
    try:
        name_here = workspace.artefact_name(recipe)
    except UserError as error:
        raise UserError(f"{here}: {error}") from error
    if name_here != name:
        raise UserError(
            f"{here} {name} would be {name_here}, because its data or code differ there; give all nodes the same data "
            f"in {workspace.data_dir}, and the same files"
        )


def make_on_node(job: _Job, recipe: Recipe, name: str, key: TaskKey, reports: _Actor, *, split: bool) -> _Reply:
    """Make one recipe in a worker process of Ray, or name its shards."""
    workspace = _node_workspace(job)
    workspace.progress = ReportedProgress(key, job.interval, reports.report)
    with warnings.catch_warnings(record=True) as seen:
        _check_name(recipe, name, workspace)
        outcome = attempt(recipe, workspace, split=split)
    messages = tuple(dict.fromkeys(str(warning.message) for warning in seen))[:MAX_WARNINGS]
    shards = tuple((shard.number, shard.count, shard.size) for shard in outcome.shards)
    return _Reply(outcome.error, outcome.traceback_file is not None, messages, shards)
