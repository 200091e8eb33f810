"""Recipes as tasks of a Ray cluster; the driver holds the order, the workspace holds the results.

The driver submits a recipe when its dependencies are stored, and hardly more recipes than the cluster has room for. A
task receives the recipe and its artefact name, and returns an error or nothing: artefacts pass through the workspace
alone. A node must have the driver's version of heedful and torch, see the same workspace and find the same data, or the
run ends with the remedy. Nothing that a recipe reads or stores is pickled; recipes are, between nodes that trust each
other.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Protocol

import torch

from heedful import __version__
from heedful.outcome import MAX_ATTEMPTS, Outcome, attempt, describe_exception
from heedful.progress import Bar, Key, ProgressReports, ReportedProgress, SendReport, StepCallback
from heedful.store.atomic_write import replace_text
from heedful.store.recipe import Recipe, Resources, is_user_module
from heedful.store.shard import Shard, ShardedRecipe
from heedful.store.workspace import Workspace, default_data_dir
from heedful.types import UserError

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_LOST_NODES = 20
"""A recipe is tried again when its node is lost, but not more often than this."""
MAX_SECONDS_WITHOUT_NODE = 600.0
LOOK_AHEAD = 1.25
"""Tasks in flight for each one that the cluster has room for: a free worker need not wait for the driver."""
NODES_SECONDS = 5.0
"""How often the driver asks which nodes there are."""
POLL_SECONDS = 0.2
PROGRESS_SECONDS = 1.0
REPORTS_PER_SECOND = 500
"""All workers together send the actor hardly more reports than this."""
MAX_WARNINGS = 20
"""Different ones of one recipe that are passed on."""
CONNECT_SECONDS = 5.0
WORKER_DIED = (
    "its worker process died twice, perhaps out of memory: let its `resources` say how much memory it needs, or give "
    "the nodes fewer cores"
)
NODES_LOST = f"its node was lost {MAX_LOST_NODES} times; look at the nodes, and run again"


def _quiet_ray() -> ModuleType:
    """Ray, without telemetry."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    found: ModuleType = ray
    return found


def connect(where: str) -> None:
    """Connect this process to a cluster for the rest of its life; UserError with the remedy where that fails.

    Args:
        where: "ray://HOST:PORT" is the cluster with this head; "ray" the one that `RAY_ADDRESS` names, else the one
            that was started on this machine, else a new one of this machine alone that ends with this process.
    """
    with _connecting:
        _connect(where.removeprefix("ray").removeprefix("://") or os.environ.get("RAY_ADDRESS", ""))


_connecting = threading.Lock()


def _connect(address: str) -> None:
    ray = _quiet_ray()
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if address not in ("", "auto", "local") and not _is_same_head(address, current):
            raise UserError(f"this process is connected to the Ray cluster {current}, not {address}; start another one")
        return
    if address.startswith("ray://"):
        raise UserError(
            f"RAY_ADDRESS is {address}, an address of Ray Client; give that of the head, such as HOST:6379, on a node "
            "of the cluster, or start the command there with `ray job submit`"
        )
    if address not in ("", "auto", "local"):
        _check_reachable(address)
    try:
        _start_ray(address or None)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        if not address:  # what was started here before is gone
            _start_ray("local")
            return
        raise _connection_error(address, error) from error


def _start_ray(address: str | None) -> None:
    with _own_sigterm_handler():
        _quiet_ray().init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # Ray prints the death of a node and the end of its log to the standard output, where results are; `_slots` warns.
    internal = sys.modules.get("ray._private.worker")
    if internal is not None and "print_to_stdstream" in vars(internal):
        vars(internal)["print_to_stdstream"] = _print_nothing


def _print_nothing(*_: object, **__: object) -> None:
    """In place of a function of Ray that prints."""


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Put the handler of SIGTERM back, which Ray replaces: a command that is told to end must end as by Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _check_reachable(address: str) -> None:
    """UserError unless something that may be the head of a cluster answers: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    is_encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as opened:
            if not is_encrypted:
                opened.sendall(_HTTP2_GREETING)
                with opened.makefile("rb") as answer:
                    if answer.read(4)[3:] != _HTTP2_SETTINGS:
                        raise ConnectionError("another program listens there")
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({describe_exception(error)}); give the address that "
            "`ray start --head` printed, such as ray://HOST:6379"
        ) from error


_HTTP2_SETTINGS = b"\x04"
"""The type of the first frame that either side of HTTP/2, and so of gRPC, sends; after its length in three bytes."""
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _HTTP2_SETTINGS + bytes(5)


def _is_same_head(address: str, current: str) -> bool:
    """Whether an address with a name, such as localhost, is that of the head whose number Ray tells."""
    host, _, port = address.rpartition(":")
    head, _, head_port = current.rpartition(":")
    try:
        numbers = {str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return False
    if any(ip_address(number).is_loopback for number in numbers):  # this machine
        numbers.add(str(_quiet_ray().util.get_node_ip_address()))
    return port == head_port and head.strip("[]") in numbers


def _connection_error(address: str, error: BaseException) -> UserError:
    reasons = " ".join(describe_exception(each) for each in _causes(error))
    if "ersion mismatch" in reasons:
        return UserError(
            f"the cluster at {address} has another version of Ray or Python ({_mismatch(reasons)}); install the same "
            "on all nodes and here"
        )
    if "RAY_AUTH" in reasons or "AuthToken" in reasons:
        return UserError(
            f"the Ray cluster at {address} asks for a token: set RAY_AUTH_MODE=token, and give the token of its head "
            "(`ray get-auth-token` prints it there) in RAY_AUTH_TOKEN or in the file ~/.ray/auth_token"
        )
    if "aylet" in reasons or "this node" in reasons.lower():
        return UserError(
            f"this machine is no node of the Ray cluster at {address}; run the command on one of its nodes, or join it "
            f"first: ray start --address={address}"
        )
    return UserError(
        f"the Ray cluster at {address} did not accept the connection ({describe_exception(error)}); give the address "
        "that `ray start --head` printed, such as ray://HOST:6379"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _mismatch(reasons: str) -> str:
    return reasons.partition("ersion mismatch:")[2].partition(";")[0].strip()


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


class _Read(Protocol):
    def remote(self, run: int, finished: Sequence[Key]) -> object: ...


class _Close(Protocol):
    def remote(self, run: int) -> object: ...


class _Actor(Protocol):
    """The handle of the `ProgressReports` of a driver, whose methods are called without waiting."""

    @property
    def report(self) -> SendReport: ...

    @property
    def read(self) -> _Read: ...

    @property
    def close(self) -> _Close: ...


@dataclass(eq=False)
class _Running:
    """A recipe in flight."""

    recipe: Recipe
    needed: Resources
    task: object


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
        self.by_value = _user_modules(waiting)
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
        self.running: dict[Key, _Running] = {}
        self.counts: Counter[Resources] = Counter()
        self.split: set[Recipe] = set()
        """Recipes whose shards are known."""
        self.deaths: Counter[Recipe] = Counter()
        self.losses: Counter[Recipe] = Counter()
        self.done: SimpleQueue[tuple[Key, Future[_Reply]]] = SimpleQueue()
        self.run, self.numbers, self.finished = next(_runs), count(), list[Key]()
        self.bars: dict[tuple[Key, int], _OpenBar] = {}
        self.progress_time = time.monotonic()
        self.reading: object = None
        with _registering:
            for module in self.by_value:
                if not _registered[module]:
                    ray.cloudpickle.register_pickle_by_value(module)
                _registered[module] += 1
        try:
            for recipe in {type(recipe): recipe for recipe in waiting}.values():
                _check_sendable(recipe)
            context = ray.get_runtime_context()
            self.reports = _progress_actor(context.get_node_id(), context.get_job_id())
        except BaseException:
            self._forget_modules()
            raise

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for running in self.running.values():
            with suppress(Exception):  # it has just ended, or the cluster is gone
                self.ray.cancel(running.task, force=True)
        with suppress(Exception):
            self.reports.close.remote(self.run)
        for key in list(self.bars):
            self._close_bar(key)
        self._forget_modules()

    def _forget_modules(self) -> None:
        with _registering:
            for module in self.by_value:
                _registered[module] -= 1
                if not _registered[module]:
                    self.ray.cloudpickle.unregister_pickle_by_value(module)

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
        found: list[Outcome] = []
        with suppress(Empty):
            arrived = self.done.get(timeout=POLL_SECONDS)
            while True:
                outcome = self._outcome(*arrived)
                if outcome is not None:
                    found.append(outcome)
                arrived = self.done.get_nowait()
        self._check_nodes()
        self._show_progress()
        return found

    def _outcome(self, key: Key, future: Future[_Reply]) -> Outcome | None:
        """The outcome of a task; None where the recipe is tried again."""
        running = self.running.pop(key)
        recipe, failures = running.recipe, self.ray.exceptions
        self.counts[running.needed] -= 1
        self.finished.append(key)
        for each in [each for each in self.bars if each[0] == key]:
            self._close_bar(each)
        error = future.exception()
        if error is None:
            reply = future.result()
            for message in reply.warnings:
                warnings.warn(message, stacklevel=2)
            if reply.shards:
                assert isinstance(recipe, ShardedRecipe)
                self.split.add(recipe)
                return Outcome(recipe, shards=tuple(Shard(recipe, *each) for each in reply.shards))
            return Outcome(recipe, reply.error, self._traceback_file(recipe) if reply.has_traceback else None)
        if isinstance(error, failures.WorkerCrashedError | failures.OutOfMemoryError):
            self.deaths[recipe] += 1
            if self.deaths[recipe] == MAX_ATTEMPTS:
                return Outcome(recipe, WORKER_DIED)
        elif isinstance(error, failures.RayTaskError):
            return Outcome(recipe, _task_error(error))
        elif isinstance(error, failures.RaySystemError | failures.RuntimeEnvSetupError):
            raise UserError(
                f"Ray failed ({describe_exception(error)}); look at its logs in /tmp/ray, and run again"
            ) from error
        else:  # the node is gone, or the network between
            self.losses[recipe] += 1
            if self.losses[recipe] == MAX_LOST_NODES:
                return Outcome(recipe, NODES_LOST)
        self.nodes_time = -math.inf  # one of them may be gone
        self.submit(recipe)
        return None

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
        own = self.ray.get_runtime_context().get_node_id()
        if all(node["NodeID"] != own for node in self.ray.nodes() if node["Alive"]):
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
                "the cluster has lost all nodes that could go on, for ten minutes; finished work is kept: add nodes "
                "and run the same command"
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

    def _show(self, shown: Mapping[Key, Mapping[int, Bar]]) -> None:
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

    def _close_bar(self, key: tuple[Key, int]) -> None:
        self.bars.pop(key).context.__exit__(None, None, None)


_runs = count()
"""Numbers of the runs of this process."""
_registering = threading.Lock()
_registered: Counter[ModuleType] = Counter()
"""How many runs of this process, perhaps in several threads, send a module of the user."""


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
    found = cause if isinstance(cause, BaseException) else error
    if isinstance(found, UserError):
        raise found
    if "failed to import on the worker" in str(found) or "No module named 'heedful" in str(found):
        raise UserError(
            f"a node has no heedful, or another one ({describe_exception(found)[-200:]}); install heedful[ray] "
            f"{__version__} on all nodes"
        ) from error
    return describe_exception(found)


def _check_sendable(recipe: Recipe) -> None:
    try:
        _quiet_ray().cloudpickle.dumps(recipe)
    except Exception as error:
        code = inspect.unwrap(type(recipe).make).__code__
        raise UserError(
            f"{code.co_filename}, line {code.co_firstlineno}: {type(recipe).__name__} cannot be sent to another "
            f"machine ({describe_exception(error)}); let its module hold no open files or locks, or run with "
            "--where here"
        ) from error


def _user_modules(recipes: Sequence[Recipe]) -> list[ModuleType]:
    """The user's modules that define parts of recipes, and their neighbours, which no node has: they are sent."""
    names = [name for name in _module_names(recipes) if name in sys.modules and is_user_module(name)]
    folders = tuple(
        {f"{file.parent}{os.sep}" for name in names if (file := _module_file(sys.modules[name])) is not None}
    )
    if not folders:
        return []
    # Classes of the main module are sent in any case; what is no module is a package's own.
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
    found: set[str] = set()
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
            found.add(type(value).__module__)
        elif is_dataclass(value):
            found.add(type(value).__module__)
            left.extend(getattr(value, each.name) for each in fields(value))
    return found


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
    for file in sorted(Path(__file__).parent.rglob("*.py")):
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
        found = workspace.artefact_name(recipe)
    except UserError as error:
        raise UserError(f"{here}: {error}") from error
    if found != name:
        raise UserError(
            f"{here} {name} would be {found}, because its data or code differ there; give all nodes the same data in "
            f"{workspace.data_dir}, and the same files"
        )


def make_on_node(job: _Job, recipe: Recipe, name: str, key: Key, reports: _Actor, *, split: bool) -> _Reply:
    """Make one recipe in a worker process of Ray, or name its shards."""
    workspace = _node_workspace(job)
    workspace.progress = ReportedProgress(key, job.interval, reports.report)
    with warnings.catch_warnings(record=True) as seen:
        _check_name(recipe, name, workspace)
        outcome = attempt(recipe, workspace, split=split)
    messages = tuple(dict.fromkeys(str(each.message) for each in seen))[:MAX_WARNINGS]
    shards = tuple((each.number, each.count, each.size) for each in outcome.shards)
    return _Reply(outcome.error, outcome.traceback_file is not None, messages, shards)
