"""What the minutes of an audit are enough for: the work that is missing, in blocks of texts, and the time it takes.

A probe of the first texts times every kind of work, and estimates are corrected by what work takes. The core examines
`TARGET_TEXTS` texts first; then further methods are added as the time allows, and then texts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from heedful.audits.evidence import (
    BLOCK_TEXTS,
    FIRST_BLOCKS,
    POOL_SIZE,
    BlockAttributions,
    block_range,
    read_block,
)
from heedful.audits.work_list import AuditPlan, WorkItem
from heedful.execution.outcome import Outcome, attempt
from heedful.execution.runner import HERE, POOL, count_workers
from heedful.formatting import more_minutes
from heedful.store.workspace import Workspace
from heedful.types import Method

FURTHER_METHODS: Mapping[str, str] = {
    "gradient-norm": "input-x-gradient",
    "attention-x-gradient": "input-x-gradient",
    "rollout": "raw-attention",
    "leave-one-out": "lime",
    "kernel-shap": "lime",
}
"""Methods that are added, in this order, if `TARGET_TEXTS` texts fit into the time with them; each with a method of the
core that takes about as long or longer, until its own time is known."""
RESERVED_SECONDS, RESERVED_PER_SCORES = 4.0, 0.012
"""Kept for putting the result together and writing the pages: in all, and for each text and method."""
START_SECONDS = 6.0
"""Until worker processes have started."""
POOL_EFFICIENCY = 0.7
"""Of two processes on two cores, measured with MiniLM: 420 s by the probe took 540."""
TARGET_TEXTS = 28
"""The core examines so many texts that represent the data before further methods are added."""
MAX_BLOCKS = len(FIRST_BLOCKS) + POOL_SIZE // BLOCK_TEXTS
MIN_SECONDS = 0.001
TIMED_AGAIN = 0.25
"""Scores that take fewer seconds are timed again: the first call of a method may load its code."""
PASS = "pass"
"""The cost of reading the first texts, by which the times of earlier calls are compared with this one."""
TIMED_PASSES = 5
LeaveOut = Callable[[WorkItem, Outcome], None]
"""Goes on without a method or a question whose work fails."""


@dataclass
class TimeBudget:
    """The time of one call of `audit`.

    Args:
        start: of the call, on the clock of `time.monotonic`.
        costs: seconds per text of each kind of work, as far as they are known.
        earlier: texts that an earlier call has looked at.
        limit: texts that are examined at most, or None. Both count texts that represent the data until the sample is
            taken, and then all of them.
        where: executor; `workers`: processes at a time, or None.
        texts: that there are.
        target: texts that the core examines first, which are more than `TARGET_TEXTS` if some are of rare classes.
        pace: seconds that work takes, relative to the estimate.
        overhead: seconds of reading a block, which belong to no method.
    """

    plan: AuditPlan
    workspace: Workspace
    start: float
    minutes: float
    costs: dict[str, float]
    earlier: int = 0
    limit: int | None = None
    where: str = POOL
    workers: int | None = None
    texts: int = 0
    target: int = TARGET_TEXTS
    pace: float = 1.0
    overhead: float | None = None

    # What is missing

    def take_sample(self, texts: int) -> None:
        """Once the texts are known: count those of rare classes with those that represent the data."""
        first, self.texts = self.plan.first_texts, texts
        self.target, self.earlier = int(first(self.target)), int(first(self.earlier))
        self.limit = None if self.limit is None else int(first(self.limit))

    @property
    def text_limit(self) -> int:
        """The texts that are examined at most."""
        return min(self.texts, self.limit or self.texts)

    def blocks(self) -> Iterator[int]:
        """The blocks that have texts."""
        return (block for block in range(MAX_BLOCKS) if block_range(block).start < self.text_limit)

    def target_blocks(self) -> list[int]:
        """The blocks of the core's first texts: the target, or those that an earlier call has finished."""
        return [block for block in self.blocks() if block_range(block).start < max(self.target, self.earlier)]

    def count_texts(self, block: int) -> int:
        """The texts of a block."""
        texts = block_range(block)
        return max(0, min(texts.stop, self.texts) - texts.start)

    def unfinished(self, block: int) -> Iterator[WorkItem]:
        """The work of a block that is not stored."""
        return (item for item in self.plan.block_work(block) if not self.workspace.has(item.recipe))

    def missing(self, blocks: Iterable[int]) -> list[WorkItem]:
        """The work of these blocks that is not stored."""
        return [item for block in blocks for item in self.unfinished(block)]

    def finished_blocks(self, further: Collection[str]) -> tuple[list[int], list[int]]:
        """The blocks from the first on whose main work is finished, and those of them where everything is.

        A further method that is not finished on the first texts of the core takes no text from the audit.
        """
        core_main, core_full = self._whole_blocks(further)
        begun = [name for name in further if name in self.plan.methods]
        behind = []
        for name in begun:
            main, full = self._whole_blocks({*further} - {name})
            first = [block for block in self.target_blocks() if block in core_main]
            if not {*first} <= {*main} or not {*first} & {*core_full} <= {*full}:
                behind.append(name)
        return self._whole_blocks(behind)

    def _whole_blocks(self, without: Collection[str]) -> tuple[list[int], list[int]]:
        """As `finished_blocks`, for all methods but some."""
        main, full = [], []
        for block in self.blocks():
            unfinished = [item for item in self.unfinished(block) if item.method not in without]
            if any(item.is_main for item in unfinished):
                break
            main.append(block)
            if not unfinished and not all(item.is_main for item in self.plan.block_work(block)):
                full.append(block)
        return main, full

    # The time

    def elapsed(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self.start

    def reserve(self) -> float:
        """Seconds for putting the result together and writing the pages."""
        methods = len(self.plan.answered)
        return RESERVED_SECONDS + RESERVED_PER_SCORES * methods * min(self.text_limit, 2 * self.target)

    def end(self, share: float = 1.0) -> float:
        """When work must end that has this share of the minutes, on the clock of `time.monotonic`."""
        return self.start + 60 * share * self.minutes - self.reserve()

    def work_end(self) -> float:
        """When all work but that of students must end; these take the second half."""
        return self.end(1.0 if isinstance(self.plan.students, str) else 0.5)

    def left(self) -> float:
        """Seconds that are left for work."""
        return self.work_end() - time.monotonic()

    def place(self) -> tuple[str, int | None]:
        """Where blocks are made, and how many at a time."""
        if self.plan.explainer.origin is None:
            return HERE, None  # a model in memory cannot be sent to another process
        if self.where != POOL or self.workers is not None:
            return self.where, self.workers
        return self.where, min(2, count_workers(self.where, None, self.workspace.device))

    def count_workers(self) -> int:
        """How many blocks are made at a time."""
        return count_workers(*self.place(), self.workspace.device)

    def start_seconds(self) -> float:
        """Seconds until the workers have started."""
        return START_SECONDS if self.count_workers() > 1 else 0.0

    def seconds(self, items: Iterable[WorkItem]) -> float:
        """Seconds that work will take with all workers, once they have started."""
        workers = self.count_workers()
        seconds = sum(item.seconds(self.costs) * self.count_texts(item.block) for item in items)
        return self.pace * seconds / (workers * POOL_EFFICIENCY if workers > 1 else 1)

    def minutes_of(self, seconds: float) -> int:
        """The minutes of another call for this much work."""
        return max(1, math.ceil((seconds + self.start_seconds() + self.reserve()) / 60))

    # The probe

    def time_pass(self) -> None:
        """Read the first texts, and scale the times of earlier calls, whose machine may have been busier or idler."""
        block, seconds = read_block(self.plan.sample, 0, self.workspace), []
        for _ in range(1 + TIMED_PASSES):  # the first one warms up
            start = time.monotonic()
            with torch.no_grad():
                block.loaded.model.read_logits(block.batch)
            seconds.append(time.monotonic() - start)
        now = max(statistics.median(seconds[1:]), MIN_SECONDS / 100)
        pace = now / self.costs.get(PASS, now)
        self.costs = {label: pace * cost for label, cost in self.costs.items()} | {PASS: now}

    def time_items(self, items: Sequence[WorkItem], leave_out: LeaveOut) -> None:
        """Do this work of the first block and remember how long each kind takes."""
        seconds: dict[WorkItem, float] = {}
        tried: set[str] = set()
        with self.workspace.progress.task("probe", len(items)) as step:
            for item in items:
                step(note=item.label)
                # Erasures take the same time for every method.
                if self.plan.is_left_out(item) or item.label in tried or self.left() <= 0:
                    continue
                tried.add(item.label)
                start, is_known = time.monotonic(), self.workspace.has(item.recipe)
                outcome = attempt(item.recipe, self.workspace)
                took = time.monotonic() - start
                if outcome.error is not None:
                    leave_out(item, outcome)
                elif not is_known:
                    if took < TIMED_AGAIN and isinstance(item.recipe, BlockAttributions):
                        start = time.monotonic()
                        item.recipe.make(self.workspace)
                        took = min(took, time.monotonic() - start)
                    seconds[item] = took
        # Random scores cost next to nothing: what they take is reading the texts, once per block.
        scores = [took for item, took in seconds.items() if isinstance(item.recipe, BlockAttributions)]
        self.overhead = min([*scores, *([] if self.overhead is None else [self.overhead])], default=0.0)
        for item, took in seconds.items():
            self.costs[item.label] = max(took - self.overhead, MIN_SECONDS) / self.count_texts(0)

    def learn(self, item: WorkItem, seconds: float) -> None:
        """Correct the estimate of this kind of work by what it took."""
        if item.is_main and item.label in self.costs:
            self.costs[item.label] = (self.costs[item.label] + seconds / self.count_texts(item.block)) / 2

    def learn_pace(self, estimate: float, seconds: float) -> None:
        """Correct all estimates by what work took that workers did from their start on."""
        if estimate > START_SECONDS:
            self.pace *= max(seconds - START_SECONDS, MIN_SECONDS) / estimate

    # What fits

    def planned_texts(self) -> int:
        """The texts whose work fits into the time; at least those of the first block."""
        left, texts = self.left() - self.start_seconds(), 0
        for block in self.blocks():
            left -= self.seconds(self.unfinished(block))
            if left < 0 and block:
                break
            texts += self.count_texts(block)
        return texts

    def with_method(self, name: str, method: Method) -> list[WorkItem]:
        """The unfinished work of a further method, which becomes a method of the plan, on the first texts."""
        self.plan.methods[name] = method
        self.costs.setdefault(f"{name} scores", self.costs.get(f"{FURTHER_METHODS[name]} scores", MIN_SECONDS))
        return [item for item in self.missing(self.target_blocks()) if item.method == name]

    def before_and(self, items: Sequence[WorkItem]) -> list[WorkItem]:
        """The unfinished work of the methods that come first on the first texts, and then this work."""
        names = {item.method for item in items}
        return [*(item for item in self.missing(self.target_blocks()) if item.method not in names), *items]

    def fits(self, items: Sequence[WorkItem]) -> bool:
        """Whether there is time for this work after that of the methods that come first."""
        return not items or self.seconds(self.before_and(items)) < self.left() - self.start_seconds()

    def add_methods(self, further: Mapping[str, Method], leave_out: LeaveOut, say: Callable[[str], None]) -> list[str]:
        """Add the methods that fit into the time for the first texts of the core; the others are left out."""
        plan, added = self.plan, list[str]()
        for name, method in further.items():
            owned = self.with_method(name, method)
            if self.fits(owned):
                self.time_items([item for item in owned if item.block == 0 and item.is_main], leave_out)
                owned = self.with_method(name, method) if name in plan.methods else []
            if name in plan.left_out:
                continue
            if self.fits(owned):
                added.append(name)
                continue
            plan.methods.pop(name, None)
            cost = sum(item.seconds(self.costs) for item in owned if item.block == 0)
            minutes = self.minutes_of(self.seconds(self.before_and(owned)))
            plan.left_out[name] = (
                f"there was no time: it takes about {cost:.1f} s per text with its controls; about "
                f"{more_minutes(minutes)} would include it, or name it to include it first"
            )
            say(f"Left out: {name}: {plan.left_out[name]}.")
        return added

    def drop_unfinished(self, main: Sequence[int], full: Sequence[int], further: Iterable[str]) -> None:
        """Leave out the further methods whose work on these blocks was not finished."""
        for name in [name for name in further if name in self.plan.methods]:
            missing = [
                item
                for block in main
                for item in self.unfinished(block)
                if item.method == name and (item.is_main or block in full)
            ]
            if missing:
                del self.plan.methods[name]
                self.plan.left_out[name] = (
                    "it was not finished when the time was up; about "
                    f"{more_minutes(self.minutes_of(self.seconds(missing)))} would include it"
                )
