"""What the minutes of an audit are enough for: the work that is missing, in blocks of texts, and the time it takes.

A probe of the first text times every kind of work, and estimates are corrected by what work takes. Work on a text takes
about as long as it has words, beside reading and storing a block. The core examines `TARGET_TEXTS` texts first; then
further methods are added as the time allows, and then texts.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from heedful.audits.evidence import (
    BLOCK_TEXTS,
    FIRST_BLOCKS,
    POOL_SIZE,
    BlockAttributions,
    block_range,
    read_block,
)
from heedful.audits.work_list import COPY, AuditPlan, WorkItem
from heedful.execution.outcome import Outcome, attempt
from heedful.execution.runner import HERE, POOL, count_workers
from heedful.formatting import more_minutes
from heedful.store.recipe import Recipe
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
OVERHEAD = "block"
"""The cost of reading and storing a block, which belongs to no method and is paid for each piece of work."""
LeaveOut = Callable[[WorkItem, Outcome], None]
"""Goes on without a method or a question whose work fails."""


@dataclass
class TimeBudget:
    """The time of one call of `audit`.

    Args:
        start: of the call, on the clock of `time.monotonic`.
        costs: seconds of each kind of work for a text of average length, as far as they are known.
        earlier: texts that an earlier call has looked at.
        limit: texts that are examined at most, or None. Both count texts that represent the data until the sample is
            taken, and then all of them.
        where: executor; `workers`: processes at a time, or None.
        texts: that there are; `words`: of each of them, once they are known.
        target: texts that the core examines first, which are more than `TARGET_TEXTS` if some are of rare classes.
        pace: seconds that work takes, relative to the estimate.
        guesses: costs of further methods that are not known yet.
        stored: recipes that are known to be stored.
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
    words: Sequence[int] = ()
    target: int = TARGET_TEXTS
    pace: float = 1.0
    guesses: dict[str, float] = field(default_factory=dict)
    stored: set[Recipe] = field(default_factory=set)

    # What is missing

    def take_sample(self, words: Sequence[int]) -> None:
        """Once the lengths of the texts are known: count texts of rare classes with those that represent the data."""
        first, self.texts, self.words = self.plan.first_texts, len(words), words
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

    def relative_length(self, texts: range) -> float:
        """The words of these texts, as so many texts of average length."""
        places = range(texts.start, min(texts.stop, self.texts))
        words = self.words[places.start : places.stop]
        return sum(words) * len(self.words) / sum(self.words) if self.words else float(len(places))

    def unfinished(self, block: int) -> Iterator[WorkItem]:
        """The work of a block that is not stored."""
        for item in self.plan.block_work(block):
            # What is stored stays: each of thousands of pieces is looked up once.
            if item.recipe not in self.stored:
                if not self.workspace.has(item.recipe):
                    yield item
                    continue
                self.stored.add(item.recipe)

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
        workers, items = self.count_workers(), list(items)
        # Each worker makes its own copy.
        copies = workers * len({item.randomized for item in items if item.randomized is not None})
        seconds = sum(map(self.cost, items)) + copies * self.costs.get(COPY, 0.0)
        return self.pace * seconds / (workers * POOL_EFFICIENCY if workers > 1 else 1)

    def cost(self, item: WorkItem) -> float:
        """Seconds of one piece of work, without a copy of the model."""
        place, texts = item.randomized, block_range(item.block)
        length = self.relative_length(texts if place is None else range(place, place + 1))
        return self.costs.get(OVERHEAD, 0.0) + item.seconds({**self.guesses, **self.costs}) * length

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
        """Do this work of the first block and remember how long each kind takes; what is stored is timed if need be."""
        seconds: dict[WorkItem, float] = {}
        tried: set[str] = set()
        with self.workspace.progress.task("probe", len(items)) as step:
            for item in items:
                step(note=item.label)
                # Erasures take the same time for every method.
                if self.plan.is_left_out(item) or item.timed_as in tried or self.left() <= 0:
                    continue
                tried.add(item.timed_as)
                start, is_known = time.monotonic(), self.workspace.has(item.recipe)
                outcome = attempt(item.recipe, self.workspace)
                took = time.monotonic() - start
                if outcome.error is not None:
                    leave_out(item, outcome)
                elif not is_known or item.timed_as not in self.costs:
                    is_short = took < TIMED_AGAIN and isinstance(item.recipe, BlockAttributions)
                    if is_known or (is_short and item.timed_as != COPY):
                        start = time.monotonic()
                        item.recipe.make(self.workspace)
                        again = time.monotonic() - start
                        took = again if is_known else min(took, again)
                    seconds[item] = took
        # Random scores cost next to nothing: what they take is reading the texts, once per block.
        scores = [took for item, took in seconds.items() if isinstance(item.recipe, BlockAttributions)]
        if scores:
            self.costs[OVERHEAD] = min(*scores, self.costs.get(OVERHEAD, math.inf))
        for item, took in seconds.items():
            is_copy = item.timed_as == COPY
            self.costs[item.timed_as] = max(took - self.cost(item), 0.0) if is_copy else self._per_text(item, took)

    def _per_text(self, item: WorkItem, seconds: float) -> float:
        """The seconds of work for a text of average length."""
        length = self.relative_length(block_range(item.block))
        return max(seconds - self.costs.get(OVERHEAD, 0.0), MIN_SECONDS) / length

    def learn(self, item: WorkItem, seconds: float) -> None:
        """Correct the estimate of this kind of work by what it took."""
        if item.is_main and item.label in self.costs:
            self.costs[item.label] = (self.costs[item.label] + self._per_text(item, seconds)) / 2

    def learn_pace(self, estimate: float, seconds: float) -> None:
        """Correct all estimates by what work took that workers did from their start on."""
        if estimate > START_SECONDS:
            self.pace *= max(seconds - START_SECONDS, MIN_SECONDS) / estimate

    # What fits

    def planned_texts(self, further: Mapping[str, Method]) -> int:
        """The texts whose main work fits into the time, with the further methods that fit; at least the first block's.

        As the work is done: first the main work of the core on its first texts, and what is done beside it last.
        """
        left, texts, methods = self.left() - self.start_seconds(), 0, self.plan.methods
        self.plan.methods = {**methods, **further}
        for name in further:
            self._guess(name)
        target = self.target_blocks()
        first = self.missing(target)
        core = [item for item in first if item.method not in further]
        for block in target:
            left -= self.seconds(item for item in core if item.is_main and item.block == block)
            if left < 0 and block:
                break
            texts += self.count_texts(block)
        left -= self.seconds(item for item in core if not item.is_main)
        for name in further:
            seconds = self.seconds(item for item in first if item.method == name)
            if seconds < left:
                left -= seconds
            else:
                del self.plan.methods[name]
        for block in itertools.islice(self.blocks(), len(target), None):
            left -= self.seconds(self.unfinished(block))
            if left < 0:
                break
            texts += self.count_texts(block)
        self.plan.methods = methods
        return texts

    def with_method(self, name: str, method: Method) -> list[WorkItem]:
        """The unfinished work of a further method, which becomes a method of the plan, on the first texts."""
        self.plan.methods[name] = method
        self._guess(name)
        return [item for item in self.missing(self.target_blocks()) if item.method == name]

    def _guess(self, name: str) -> None:
        """Expect a further method to take as long as the method of the core that it is like."""
        self.guesses[f"{name} scores"] = self.costs.get(f"{FURTHER_METHODS[name]} scores", MIN_SECONDS)

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
            cost = sum(item.seconds({**self.guesses, **self.costs}) for item in owned if item.block == 0)
            minutes = self.minutes_of(self.seconds(self.before_and(owned)))
            plan.left_out[name] = (
                f"not enough time: it takes about {cost:.1f} s per text, with all questions; about "
                f"{more_minutes(minutes)} would include it, or name it with --method to run it first"
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
