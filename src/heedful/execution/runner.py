"""Run recipes in the order of their dependencies, each once: in this process, in a pool of processes, or on Ray.

A recipe of a large corpus is made in shards, side by side where there are several workers.
A recipe that fails is recorded with its traceback; what depends on it is skipped and all other recipes go on. A recipe
whose worker process dies is tried once more. An interrupt keeps everything that is finished.
"""

from __future__ import annotations

import heapq
import importlib.util
import inspect
import math
import os
import pickle
import re
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from heedful.execution.outcome import Outcome, attempt, check_sendable, describe_exception
from heedful.progress import StepCallback, raise_lost_interrupt
from heedful.store.recipe import Recipe, RecipeError, Resources, check_recipe
from heedful.store.shard import Shard, ShardedRecipe
from heedful.store.workspace import Workspace
from heedful.types import UserError, shorten, user_path

OUT_OF_TIME = "not finished when the time was up"
HERE, POOL, RAY = "here", "pool", "ray"
MAX_PROCESSES = 256
"""Of a pool on this machine."""
MAX_PORT = 65535
_RAY_ADDRESS = re.compile(r"ray(://([^\s:/\[\]]+|\[[0-9a-fA-F:]+\]):(\d{1,5}))?")


def topological_order(recipes: Iterable[Recipe] | Recipe) -> list[Recipe]:
    """The recipes and all their dependencies, each once, dependencies first."""
    order: dict[Recipe, None] = {}

    def visit(recipe: Recipe) -> None:
        check_recipe(recipe)
        if recipe not in order:
            for dependency in recipe.dependencies:
                visit(dependency)
            order[recipe] = None

    if isinstance(recipes, Recipe) or not isinstance(recipes, Iterable):
        recipes = [recipes]  # anything but a recipe is refused by name
    for recipe in recipes:
        visit(recipe)
    return list(order)


def check_where(where: str, workers: int | None) -> None:
    """UserError unless `where` is a place to run recipes and `workers` a number that it can have."""
    address = _RAY_ADDRESS.fullmatch(str(where))
    if where not in (HERE, POOL) and (address is None or int(address[3] or 0) > MAX_PORT):
        raise UserError(f"--where is pool, here, ray or ray://HOST:PORT, not {where!r}")
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise UserError(f"{shorten(workers)} workers: give a positive whole number")
    if where == HERE and workers not in (None, 1):
        raise UserError("--where here is one process: leave --workers out, or choose --where pool")
    if where == POOL and workers is not None and workers > MAX_PROCESSES:
        raise UserError(f"{workers} workers: one machine has at most {MAX_PROCESSES}; --where ray has more")
    if where.startswith(RAY) and find_spec("ray") is None:
        raise UserError("--where ray needs Ray: pip install 'heedful[ray]', or choose --where pool")


def check_shared(workspace: Workspace, where: str) -> None:
    """UserError if the processes of this place cannot see what the others store."""
    if where != HERE and workspace.store is not None and workspace.store.is_in_memory:
        raise UserError(f"{workspace} lives in one process: choose --where here, or a folder or s3:// for several")


def _check_resources(recipe: Recipe) -> None:
    """UserError unless the recipe says what it needs: the code may be the user's own."""
    name = type(recipe).__name__
    try:
        resources = recipe.resources
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{name}.resources failed ({describe_exception(error)}); correct it") from error
    if not isinstance(resources, Resources):
        raise UserError(f"{name}.resources returned a {type(resources).__name__}; return Resources(...)")


def count_workers(where: str, workers: int | None, device: str = "cpu") -> int:
    """How many recipes are made at a time; connects to the cluster if the place is one.

    Processes of one machine would share the memory of its GPU: on a device that is not the CPU there is one, unless
    more are asked for.
    """
    check_where(where, workers)
    if where == HERE:
        return 1
    if where == POOL:
        return workers or (1 if device.partition(":")[0] != "cpu" else os.cpu_count() or 1)
    from heedful.execution import ray_pool

    slots = ray_pool.count_slots(where, device)
    return max(1, slots if workers is None else min(slots, workers))


def run(
    recipes: Iterable[Recipe] | Recipe,
    workspace: Workspace,
    *,
    where: str = HERE,
    workers: int | None = None,
    deadline: float | None = None,
) -> list[Outcome]:
    """Make the recipes and all their dependencies; one outcome for each, dependencies first.

    `WriteError` if the workspace cannot be written, at once or when its disk is full; what is finished is kept.

    Args:
        where: "here" in this process; "pool" in processes of this machine; "ray" on the cluster that `RAY_ADDRESS`
            names or that runs on this machine, else on a new one of this machine alone; "ray://HOST:PORT" on the
            cluster with this head.
        workers: at most so many recipes at a time; by default one per core, of this machine or of the cluster, and one
            on a GPU.
        deadline: on the clock of `time.monotonic`; recipes that are not finished by then have the error `OUT_OF_TIME`.
            Workers are stopped at that moment, this process after the recipe that it is making.
    """
    if not isinstance(workspace, Workspace):
        raise UserError(f"give a workspace, for instance run(recipes, Workspace({str(workspace)!r}))")
    if deadline is not None and (not isinstance(deadline, int | float) or math.isnan(deadline)):
        raise UserError(f"deadline is {shorten(deadline)}: give a time of time.monotonic(), or leave it out")
    check_where(where, workers)
    check_shared(workspace, where)
    plan = topological_order(recipes)
    if where != HERE:
        for recipe in plan:
            _check_resources(recipe)
    outcomes = {recipe: Outcome(recipe) for recipe in plan if workspace.has(recipe)}
    waiting = [recipe for recipe in plan if recipe not in outcomes]
    workspace.delete_leftovers()
    if waiting:
        workspace.check_writable()
    end = math.inf if deadline is None else deadline
    cache = workspace.model_cache
    workspace.model_cache = {} if cache is None else cache  # the caller may have loaded the model
    try:
        with workspace.progress.task("all recipes", len(waiting)) as step:
            pool = _open_pool(waiting, workspace, where, workers) if time.monotonic() < end else None
            if pool is None:
                finished = _run_here(waiting, outcomes, workspace, end)
            else:
                finished = _run_in_pool(pool, waiting, outcomes, workspace, step, end)
            with closing(finished):  # ends the workers
                for outcome in finished:
                    outcomes[outcome.recipe] = outcome
                    step()
                    raise_lost_interrupt()
    finally:
        workspace.model_cache = cache
    return [outcomes.get(recipe, Outcome(recipe, OUT_OF_TIME)) for recipe in plan]


class _Pool(AbstractContextManager["_Pool"], Protocol):
    """Workers, and the recipes that they are making."""

    @property
    def running(self) -> Sized:
        """The recipes that were submitted and are not finished."""
        ...

    def has_room(self, needed: Resources) -> bool:
        """Whether there is capacity for another recipe with these requirements."""
        ...

    def submit(self, recipe: Recipe) -> None:
        """Let the next free worker make this recipe."""
        ...

    def wait(self) -> Sequence[Outcome]:
        """Wait for a moment, show the progress of the workers, and return the outcomes of recipes that are done."""
        ...

    @property
    def status(self) -> str:
        """What the workers are doing, in a few words; empty if the bars say it."""
        ...


def _open_pool(waiting: Sequence[Recipe], workspace: Workspace, where: str, workers: int | None) -> _Pool | None:
    """The workers that make the recipes; None if this process does."""
    if where.startswith(RAY):
        from heedful.execution import ray_pool

        return ray_pool.RayPool(waiting, workspace, where, workers) if waiting else None
    count = count_workers(where, workers, workspace.device)
    if len(waiting) < count:
        count = min(count, sum(_count_parts(recipe, workspace) for recipe in waiting))
    if count < 2:
        return None
    from heedful.execution import process_pool

    for recipe in waiting:
        check_sendable(recipe, pickle.dumps, "define it at the top level of the file")
    return process_pool.LocalPool(workspace, count, {type(recipe).__module__ for recipe in waiting})


def _count_parts(recipe: Recipe, workspace: Workspace) -> int:
    """How many workers can make a recipe at the same time."""
    if isinstance(recipe, ShardedRecipe):
        with suppress(Exception, SystemExit):  # shown when the recipe is made
            return max(1, len(recipe.shards(workspace)))
    return 1


def recipes_from_file(path: Path | str) -> list[Recipe]:
    """The recipes that the function `recipes()` of a Python file returns; UserError with the line of a mistake."""
    path = user_path(path)
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file; check the path")
    if path.stem in sys.modules and path.stem not in _imported_files:
        raise UserError(f"{path.name} has the name of a module that is already imported; rename the file")
    if "." in path.stem:
        raise UserError(f"{path.name}: a module's name has no dot; rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Worker processes import the file by its name, and the file may import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    _imported_files.add(path.stem)
    with _mistakes_of(path):
        spec.loader.exec_module(module)
    function = vars(module).get("recipes")
    if not callable(function):
        raise UserError(f"{path} has no function recipes(); write one that returns a list of recipes")
    with _mistakes_of(path):
        returned = function()
        if inspect.iscoroutine(returned):
            returned.close()
        recipes = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if not recipes:
        raise UserError(
            f"{path}: recipes() returned {shorten(returned)}; it must return a list of recipes, at least one"
        )
    for recipe in recipes:
        try:
            check_recipe(recipe)
        except RecipeError as error:
            raise UserError(f"{path}: recipes() returned a list with a mistake: {error}") from error
    return recipes


@contextmanager
def _mistakes_of(path: Path) -> Iterator[None]:
    """Whatever the code of a user's file raises, as one line with the file and its line number."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        user_file = os.path.abspath(path)  # as Python names it, also where it was given from here
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == user_file]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == user_file else (lines or [None])[-1]
        where = f"{path}, line {line}" if line is not None else str(path)
        raise UserError(f"{where}: {describe_exception(error)}; correct the file") from error


_imported_files: set[str] = set()
"""Module names of users' files; another file of the same name may replace them."""


class _Queue:
    """Recipes that wait for others, and those that are ready, which come in the order of the plan.

    Finding the next recipe costs the same whatever the number of recipes: a cluster takes hundreds in a second.
    """

    def __init__(self, waiting: Sequence[Recipe], finished: Container[Recipe]) -> None:
        self.order: dict[Recipe, tuple[int, int]] = {}
        self.missing: dict[Recipe, int] = {}
        self.wholes: dict[Recipe, Recipe] = {}
        """The recipes that were split, by their shards."""
        self.dependents: defaultdict[Recipe, list[Recipe]] = defaultdict(list)
        self.ready: defaultdict[Resources, list[tuple[tuple[int, int], Recipe]]] = defaultdict(list)
        for position, recipe in enumerate(waiting):
            missing = {dependency for dependency in recipe.dependencies if dependency not in finished}
            self.order[recipe], self.missing[recipe] = (position, -1), len(missing)
            for dependency in missing:
                self.dependents[dependency].append(recipe)
            if not missing:
                self._make_ready(recipe)

    def __bool__(self) -> bool:
        return any(self.ready.values())

    def take(self, pool: _Pool) -> Recipe | None:
        """The first recipe of the plan that is ready and for which there is room; None if there is none."""
        queues = [queue for needed, queue in self.ready.items() if queue and pool.has_room(needed)]
        return heapq.heappop(min(queues, key=lambda queue: queue[0][0]))[1] if queues else None

    def finish(self, recipe: Recipe) -> None:
        """Make those ready that waited for this recipe alone."""
        for dependent in self.dependents.pop(recipe, ()):
            self.missing[dependent] -= 1
            if not self.missing[dependent]:
                self._make_ready(dependent)

    def split(self, recipe: Recipe, shards: Sequence[Shard]) -> None:
        """Let a recipe that was taken wait for its shards, which are ready and have its place in the plan."""
        self.missing[recipe] = len(shards)
        for shard in shards:
            self.order[shard], self.wholes[shard] = (self.order[recipe][0], shard.number), recipe
            self.dependents[shard].append(recipe)
            self._make_ready(shard)

    def _make_ready(self, recipe: Recipe) -> None:
        heapq.heappush(self.ready[recipe.resources], (self.order[recipe], recipe))


def _run_here(
    waiting: Sequence[Recipe], outcomes: Mapping[Recipe, Outcome], workspace: Workspace, end: float
) -> Generator[Outcome, None, None]:
    for recipe in waiting:
        if time.monotonic() >= end:
            return
        yield _failed_dependency(recipe, outcomes, workspace) or attempt(recipe, workspace)


def _run_in_pool(
    pool: _Pool,
    waiting: Sequence[Recipe],
    outcomes: Mapping[Recipe, Outcome],
    workspace: Workspace,
    step: StepCallback,
    end: float,
) -> Generator[Outcome, None, None]:
    """Submit hardly more recipes than there are workers, so that a model's trials come before the next model.

    A worker that is given a recipe with several shards names them; they are made first, and the recipe has the error of
    the first one that fails.
    """
    queue, status = _Queue(waiting, outcomes), ""
    failures: dict[Recipe, Outcome] = {}
    with pool:
        while (queue or pool.running) and time.monotonic() < end:
            while (recipe := queue.take(pool)) is not None:
                whole = queue.wholes.get(recipe)
                failed = failures.get(recipe if whole is None else whole) or _failed_dependency(
                    recipe, outcomes, workspace
                )
                if failed is None:
                    pool.submit(recipe)
                    continue
                if whole is None:
                    yield failed
                queue.finish(recipe)
            for outcome in pool.wait():
                if outcome.shards:
                    queue.split(outcome.recipe, outcome.shards)
                    continue
                whole = queue.wholes.get(outcome.recipe)
                if whole is None:
                    yield outcome
                elif outcome.error is not None:
                    failures.setdefault(whole, replace(outcome, recipe=whole))
                queue.finish(outcome.recipe)
            if pool.status != status:
                status = pool.status
                step(0, status)


def _failed_dependency(recipe: Recipe, outcomes: Mapping[Recipe, Outcome], workspace: Workspace) -> Outcome | None:
    for dependency in recipe.dependencies:
        if (failed := outcomes[dependency]).error is not None:
            cause = failed.cause or dependency
            name = type(cause).__name__
            with suppress(UserError):  # its data is gone
                name = workspace.artefact_name(cause)
            return Outcome(recipe, f"skipped, because {name} failed", cause=cause)
    return None
