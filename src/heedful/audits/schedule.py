"""`audit`: plan the work of an audit, fit it into the minutes given, run it, and put the result together.

A fixed core of methods is audited whatever the time: less time means fewer texts. A probe of the first texts times
every kind of work, and estimates are corrected by what work takes. The core examines `TARGET_TEXTS` texts first; then
further methods are added as the time allows, and then texts, the same ones for every method. What is finished is
stored, so that an interrupt, a deadline or another call with more minutes loses nothing and repeats nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Literal

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel

from heedful.attributions.controls import Random
from heedful.attributions.method import Baseline
from heedful.attributions.registry import METHODS, Methods, catalogue_name, list_methods, method_for_words
from heedful.audits.analysis import AuditAnalysis, assumptions, class_counts, note_lines, segment_note
from heedful.audits.audit_result import Audit
from heedful.audits.evidence import (
    BLOCK_TEXTS,
    FIRST_BLOCKS,
    POOL_SIZE,
    BlockAttributions,
    TextSample,
    block_range,
    read_block,
)
from heedful.audits.external_attributions import ExternalAttributions, external_methods
from heedful.audits.questions import ATTENTION_FINDINGS
from heedful.audits.work_list import CONTROL_METHODS, AuditPlan, FinishedWork, WorkItem
from heedful.data.columns import NO_COLUMN, TableColumns, detect_columns
from heedful.data.io import TEXT_OR_PATH, check_types
from heedful.data.table import EvaluationTable
from heedful.devices import Precision, arithmetic_notes, check_device, is_same_device
from heedful.execution.outcome import Outcome, attempt
from heedful.execution.runner import HERE, OUT_OF_TIME, POOL, check_where, count_workers, run
from heedful.explainer import Explainer, ModelSource, load
from heedful.learn import open_teacher, student_trial
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.models.transformer import TransformerModel
from heedful.recommendation import AUDITS
from heedful.report.explorer import write_text_page
from heedful.report.html import check_report_folder
from heedful.store.atomic_write import WriteError, replace_text, translate_write_errors
from heedful.store.journal import Journal
from heedful.store.recipe import canonical_json, json_digest
from heedful.store.shown_path import shown_path
from heedful.store.workspace import Workspace
from heedful.trials.simulability import Simulability
from heedful.types import Corpus, Method, NotApplicable, UserError, check_choice, shorten, user_path

CORE_METHODS = ("raw-attention", "input-x-gradient", "integrated-gradients", "lime")
"""Methods that every audit examines: less time means fewer texts, not fewer of these."""
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
"""The core examines so many texts before further methods are added."""
MAX_BLOCKS = len(FIRST_BLOCKS) + POOL_SIZE // BLOCK_TEXTS
MIN_SECONDS = 0.001
TIMED_AGAIN = 0.25
"""Scores that take fewer seconds are timed again: the first call of a method may load its code."""
PASS = "pass"
"""The cost of reading the first texts, by which the times of earlier calls are compared with this one."""
TIMED_PASSES = 5
MAX_ATTEMPTS_TO_RECORD = 100
"""As often other calls may record a look at the same moment."""
VERDICTS = "verdicts"
"""What is missing where there are too few texts for any."""
TEXTS_FOLDER, TEXTS_PAGE = "texts", "texts.html"
TAUGHT_METHODS = ("raw-attention", "integrated-gradients", "leave-one-out")
"""Methods that students are trained with if there are many; each takes several trainings."""
AuditedFeature = Literal["word", "sentence", "segment"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class AuditOptions:
    """What a user may choose about an audit.

    Args:
        minutes: time budget of this call; finished work of earlier calls is reused.
        methods: names of the catalogue or methods, audited in addition to `CORE_METHODS`.
        attributions: a file with scores made elsewhere, audited beside the others.
        columns: columns of the data; those that are not named are detected.
        workers: blocks at a time; by default two processes, or one block per core of a cluster.
        texts: stop at this many texts (rounded up to a whole block) even if there is time left.
        train_data: texts for students, which show whether explanations teach; takes half of the time.
        required: names of methods that must be audited, and are not left out to save time.
        where: executor, as for `heedful.run`; a model in memory stays in this process.
        only_methods: audit the named methods and the scores made elsewhere alone, without `CORE_METHODS`.
        feature: what is explained and removed together: "segment" takes the words of a text of at most 40 words and
            about twenty runs of words of a longer one, which bounds the time that a text takes; or "sentence", "word".
    """

    minutes: float = 5.0
    methods: tuple[str | Method, ...] = ()
    attributions: str | None = None
    columns: TableColumns = field(default_factory=TableColumns)
    seed: int = 0
    workers: int | None = None
    texts: int | None = None
    train_data: str | None = None
    required: tuple[str, ...] = ()
    where: str = POOL
    only_methods: bool = False
    feature: AuditedFeature = "segment"

    def __post_init__(self) -> None:
        check_types(
            "AuditOptions",
            {
                "where": (self.where, str),
                "workers": (self.workers, (Integral, NoneType)),
                "texts": (self.texts, (Integral, NoneType)),
                "seed": (self.seed, Integral),
                "minutes": (self.minutes, Real),
                "methods": (self.methods, (tuple, list)),
                "columns": (self.columns, TableColumns),
                "attributions": (self.attributions, (*TEXT_OR_PATH, NoneType)),
                "train_data": (self.train_data, (*TEXT_OR_PATH, NoneType)),
                "only_methods": (self.only_methods, bool),
            },
        )
        check_where(self.where, self.workers)
        check_choice("feature", self.feature, AuditedFeature)
        if not 0 < self.minutes <= 60 * 24 * 7 or not math.isfinite(self.minutes):
            raise UserError(f"minutes is {self.minutes}; give a number above 0, at most a week")
        if self.texts is not None and self.texts < 1:
            raise UserError(f"texts is {self.texts}; give at least 1")
        if self.only_methods and not (self.methods or self.attributions):
            raise UserError("only_methods (--only-methods) needs methods; name them, or leave it out")


def audit(
    model: ModelSource,
    data: str | Path | Corpus | pd.DataFrame,
    *,
    minutes: float = 5.0,
    methods: Methods = (),
    workspace: Workspace | str | Path = "workspace",
    options: AuditOptions | None = None,
    out: str | Path | None = None,
    say: Say | None = None,
    device: str | None = None,
    precision: Precision = "float32",
) -> Audit:
    """Which explanations of this model may be shown? Several methods on the same texts, and a decision on each.

    Args:
        model: a folder, a hub id, `(network, tokenizer)`, or an `Explainer`.
        data: a CSV, TSV, JSONL, JSON or Parquet file; a DataFrame; or a corpus, whose test split is used.
        minutes: time budget; another call resumes and repeats nothing.
        methods: names of the catalogue, or methods, audited in addition to `CORE_METHODS`.
        options: all other options; with it, `minutes` and `methods` are read from there.
        out: folder for the pages: the answer, the evidence of each question, and all texts with their explanations.
        say: is called with each line about what was understood, planned and done; by default the lines are printed to
            the standard error.
        device: as in `load`; a `Workspace` computes on its own device.
        precision: as in `load`.
    """
    check_types(
        "audit",
        {
            "data": (data, (*TEXT_OR_PATH, pd.DataFrame, Corpus)),
            "workspace": (workspace, (Workspace, *TEXT_OR_PATH)),
            "options": (options, (AuditOptions, NoneType)),
            "out": (out, (*TEXT_OR_PATH, NoneType)),
        },
    )
    if say is not None and not callable(say):
        raise UserError(f"audit: say is {shorten(say)}; give a function that takes a line, for instance print")
    chosen = options or AuditOptions(minutes, list_methods(methods))
    folder = None if out is None else user_path(out)
    if isinstance(workspace, Workspace):
        if device is not None and not is_same_device(torch.device(workspace.device), check_device(device)):
            raise UserError(f"the workspace computes on {workspace.device}: leave device out, or open it on {device}")
        if isinstance(model, str | Path):
            device = workspace.device
    start = time.monotonic()
    explainer = load(model, device=device, precision=precision)
    if not isinstance(workspace, Workspace):
        workspace = Workspace(workspace, device=str(explainer.device))
    running = _Audit(explainer, data, chosen, workspace, say or _print_line, start)
    analysis, result = running.run()
    if folder is not None:
        check_report_folder(folder / TEXTS_FOLDER)
        write_text_page(analysis.text_table(result), folder / TEXTS_FOLDER / TEXTS_PAGE)
        result.to_html(folder, texts=f"{TEXTS_FOLDER}/{TEXTS_PAGE}")
    return result


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@dataclass(frozen=True)
class Look:
    """One look at the results of an audit: the number of texts, and a digest of what was looked at."""

    texts: int
    evidence: str


class _Record(BaseModel):
    """What one call of an audit has recorded; `looks` are the fields of `Look`."""

    costs: dict[str, float]
    looks: list[tuple[int, str]]
    seconds: float


@dataclass
class _State:
    """What is known of the earlier calls of an audit.

    Args:
        costs: seconds per text of each kind of work.
        looks: in their order; None for one whose record is damaged or lost, which counts all the same: a look that is
            forgotten would let the next one err more often than it says.
        seconds: spent by the calls that added a look.
        records: how many records there are.
        damaged: documents of records that are damaged or lost.
    """

    costs: dict[str, float] = field(default_factory=dict)
    looks: list[Look | None] = field(default_factory=list)
    seconds: float = 0.0
    records: int = 0
    damaged: list[str] = field(default_factory=list)


class _Audit:
    """One call of `audit`."""

    def __init__(
        self,
        explainer: Explainer,
        data: str | Path | Corpus | pd.DataFrame,
        options: AuditOptions,
        workspace: Workspace,
        say: Say,
        start: float | None = None,
    ) -> None:
        self.start = time.monotonic() if start is None else start
        explainer.check_folder()
        self.explainer, self.options, self.workspace, self.say = explainer, options, workspace, say
        self.corpus: Corpus
        if isinstance(data, pd.DataFrame):
            self.corpus, source = self._table(_store_frame(data, workspace)), type(data).__name__
        elif isinstance(data, Corpus):
            self.corpus, source = data, data.name
        else:
            self.corpus, source = self._table(str(data)), str(data)
        methods = self._methods()
        external = tuple(method for method in methods.values() if isinstance(method, ExternalAttributions))
        sample = TextSample(explainer.recipe(self.corpus), options.seed, scores=external, feature=options.feature)
        self.plan = AuditPlan(explainer, self.corpus, source, sample, methods)
        if options.train_data is not None:
            self.plan.students = self._student_trial(options.train_data)
        self.interrupted = False
        self.model_digest, self.data_digest = explainer.digest, self.corpus.digest(workspace.data_dir)
        self.identity = self._identity()
        self.journal = Journal(workspace, AUDITS, f"state-{self.identity}")
        self.state = _read_state(self.journal)
        if self.state.damaged:
            warnings.warn(
                f"records of earlier looks at this audit are damaged or lost in {workspace}: "
                f"{', '.join(self.state.damaged)}. Each counts as a look, so that the tests err no more often than "
                "they say; another seed draws other texts and begins anew",
                stacklevel=2,
            )
        self.costs = dict(self.state.costs)
        self.overhead: float | None = None
        self.pace = 1.0
        self.write_error: WriteError | None = None
        self.evidence = ""
        """A digest of what was looked at, which names the stored result."""

    def _identity(self) -> str:
        """A digest of model, data, seed and scores made elsewhere, as they are now."""
        return json_digest(canonical_json(self.plan.sample, self.workspace.data_dir))[:16]

    def _check_unchanged(self) -> None:
        """UserError if data or model are not those that the audit began with: nothing that is finished fits then."""
        remedy = "the audit examined the former one and is of no use; run it again"
        if self.corpus.digest(self.workspace.data_dir) != self.data_digest:
            raise UserError(f"the data ({self.plan.source}) changed during the audit: {remedy}")
        in_memory = self.explainer.origin is None
        if (in_memory and self.explainer.given.is_changed(self.model_digest)) or self._identity() != self.identity:
            raise UserError(f"the model ({self.explainer.source}) changed during the audit: {remedy}")

    def _table(self, path: str) -> EvaluationTable:
        columns = detect_columns(path, outputs=self.explainer.class_names, columns=self.options.columns)
        return EvaluationTable(path, columns)

    def _known_requirements(self) -> list[str]:
        return [name for name in self.options.required if name in METHODS and name not in CONTROL_METHODS]

    def _methods(self) -> dict[str, Method]:
        """The methods that are audited whatever the time; sets those that are added if there is time."""
        only = self.options.only_methods
        chosen = (*(() if only else CORE_METHODS), *self.options.methods, *self._known_requirements())
        methods: dict[str, Method] = {}
        for name_or_method in chosen:
            method = method_for_words(name_or_method, self.options.feature)
            methods[catalogue_name(method)] = method
        further = () if only else FURTHER_METHODS
        self.further = {name: method_for_words(name, self.options.feature) for name in further if name not in methods}
        if self.options.attributions is not None:
            external = external_methods(self.options.attributions, self.corpus, self.workspace.data_dir)
            for name, method in external.items():
                for note in method.read().notes:
                    self.say(f"Scores of {name}: {note}.")
            methods |= external
        clash = sorted(methods.keys() & CONTROL_METHODS.keys())
        if clash:
            raise UserError(f"{clash[0]} is a control and part of every audit; leave it out")
        for name in self.options.required:
            if name not in methods.keys() | CONTROL_METHODS.keys():
                known = ", ".join([*methods, *CONTROL_METHODS])
                raise UserError(f"{name} is required but not among the methods of this audit ({known})")
        return methods

    # Running

    def run(self) -> tuple[AuditAnalysis, Audit]:
        """Understand, probe, plan, work, and put the result together.

        In a workspace that cannot be written, the result is that of the finished work.
        """
        try:
            self.workspace.check_writable()
        except WriteError as error:
            self.write_error = error
        self.workspace.model_cache = {}  # the model is loaded once for all work in this process
        try:
            sample = self.workspace.get(self.plan.sample)
            self.table, self.notes = sample.table, sample.notes
            self.plan.ways = self._deletion_ways()
            for line in self.understood():
                self.say(line)
            if self.write_error is not None:
                self._keep_finished(self.write_error)
            else:
                self._probe()
                self._work()
                self._teach()
        finally:
            self.workspace.model_cache = None
        analysis, result = self._result()
        if result.finished and self.write_error is None:
            # One document for each look: another audit of the model, with fewer texts or other data, replaces none.
            name = f"{self.model_digest[:16]}-{self.identity}-{self.evidence}"
            self.workspace.write_document(f"{AUDITS}/{name}.json", result.to_json())
        return analysis, result

    def _keep_finished(self, error: WriteError) -> None:
        """Leave out what is not finished, as nothing can be added: methods that have fewer texts than the others."""
        refused = f"it is not finished, and the workspace {self.workspace} cannot be written"
        plan = self.plan
        plan.methods |= self.further
        counts = dict.fromkeys(plan.answered, 0)
        for block in self._blocks():
            missing = {item.method for item in self._unfinished(block) if item.is_main}
            for name in [name for name in counts if counts[name] == block and name not in missing]:
                counts[name] += 1
        most = max((counts[name] for name in plan.methods), default=0)
        for name in [name for name in counts if counts[name] < most or not most]:
            plan.left_out[name] = refused
            plan.methods.pop(name, None)
        if not plan.methods:
            raise error
        if any(item.topic is ATTENTION_FINDINGS for item in self._unfinished(0)):
            plan.left_out[ATTENTION_FINDINGS.name] = refused
        if isinstance(plan.students, Simulability) and not self.workspace.has(plan.students):
            plan.students = refused
        self.say(f"The workspace {self.workspace} cannot be written: this is what is finished in it.")

    def _blocks(self) -> Iterator[int]:
        """The blocks that have texts."""
        return (block for block in range(MAX_BLOCKS) if block_range(block).start < self._text_limit())

    def _unfinished(self, block: int) -> Iterator[WorkItem]:
        return (item for item in self.plan.block_work(block) if not self.workspace.has(item.recipe))

    def understood(self) -> Iterator[str]:
        """What the audit understood of the model and the data, in lines."""
        names, corpus, notes = self.explainer.class_names, self.corpus, self.notes
        yield (f"Model: {self.explainer.source}, {notes['architecture']}; outputs: {', '.join(names) or 'a number'}.")
        if isinstance(corpus, EvaluationTable):
            yield f"Data: {self.plan.source}; {'; '.join(corpus.columns.notes)}."
        yield from (f"Assumption: {line}." for line in assumptions(corpus, self.table, names))
        counts = ", ".join(f"{name} {count}" for name, count in class_counts(self.table, names).items())
        yield (
            f"{self.plan.noun.capitalize()}: {notes['read']} of {notes['rows']} were read, {notes['too short']} of "
            f"them are too short to explain; predicted: {counts}."
        )
        if isinstance(corpus, EvaluationTable):
            yield f"Rows: {'; '.join(note_lines(notes['corpus']))}."
        if remarks := note_lines(notes["remarks"]):
            yield f"Tokenizer: {'; '.join(remarks)}."
        if segmented := segment_note(self.table, self.options.feature, self.plan.noun):
            yield f"{segmented[:1].upper()}{segmented[1:]}."
        for note in arithmetic_notes(self.workspace.device, self.explainer.precision):
            yield f"Arithmetic: {note}."

    def _deletion_ways(self) -> tuple[Baseline, ...]:
        """Two ways of deletion: close the gap, and the best replacement token that the tokenizer has."""
        if self.explainer.reads_images:
            model = self.explainer.model
            # Where embeddings are the pixels themselves, both ways are the same.
            is_same = isinstance(model, TransformerModel) and model.embeddings_at == "pixels"
            return ("pad",) if is_same or model.embedding_refusal is not None else ("pad", "zero")
        block = read_block(self.plan.sample, 0, self.workspace)
        replacement: Baseline = "pad"
        if block.batch.mask_id is not None:
            replacement = "mask"
        elif block.batch.unk_id is not None:
            replacement = "unk"
        return ("delete", replacement)

    def _probe(self) -> None:
        """Time every kind of work on the first texts, which is stored as well; leave out what fails."""
        refusal = self.explainer.model.attention_refusal
        if refusal is not None:
            self.plan.left_out[ATTENTION_FINDINGS.name] = str(NotApplicable(refusal))
        self._time_pass()
        self._time_items([item for item in self.plan.block_work(0) if item.is_main])

    def _time_pass(self) -> None:
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

    def _time_items(self, items: Sequence[WorkItem]) -> None:
        """Do this work of the first block and remember how long each kind takes."""
        texts = min(len(self.table), len(block_range(0)))
        seconds: dict[WorkItem, float] = {}
        tried: set[str] = set()
        with self.workspace.progress.task("probe", len(items)) as step:
            for item in items:
                step(note=item.label)
                # Erasures take the same time for every method.
                if item.owner in self.plan.left_out or item.label in tried or self._left() <= 0:
                    continue
                tried.add(item.label)
                start, is_known = time.monotonic(), self.workspace.has(item.recipe)
                outcome = attempt(item.recipe, self.workspace)
                took = time.monotonic() - start
                if outcome.error is not None:
                    self._leave_out(item, outcome)
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
            self.costs[item.label] = max(took - self.overhead, MIN_SECONDS) / texts

    def _leave_out(self, item: WorkItem, outcome: Outcome) -> None:
        """Go on without a method or a question whose work fails; UserError if nothing can be compared without it."""
        self._check_unchanged()
        plan = self.plan
        # A refusal without its remedy, because an audit tries other methods anyway.
        reason = str(outcome.error if outcome.refusal is None else NotApplicable(outcome.refusal.reason))
        if item.is_main and not item.method:
            raise UserError(f"the model cannot read texts without some of their words: {reason}")
        plan.left_out.setdefault(item.owner, reason)
        plan.methods.pop(item.owner, None)
        if not plan.methods:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.left_out.items())
            raise UserError(f"no method works on this model: {reasons}")

    # The time

    def _reserve(self) -> float:
        """Seconds for putting the result together and writing the pages."""
        methods = len(self.plan.answered)
        return RESERVED_SECONDS + RESERVED_PER_SCORES * methods * min(self._text_limit(), 2 * TARGET_TEXTS)

    def _end(self) -> float:
        """When work must end, on the clock of `time.monotonic`; students take the second half."""
        share = 1.0 if isinstance(self.plan.students, str) else 0.5
        return self.start + 60 * share * self.options.minutes - self._reserve()

    def _left(self) -> float:
        """Seconds that are left for work."""
        return self._end() - time.monotonic()

    def _workers(self) -> int:
        return count_workers(*self._place(), self.workspace.device)

    def _seconds(self, items: Iterable[WorkItem]) -> float:
        """Seconds that work will take with all workers, once they have started."""
        workers = self._workers()
        seconds = sum(item.seconds(self.costs) * self._count_texts(item.block) for item in items)
        return self.pace * seconds / (workers * POOL_EFFICIENCY if workers > 1 else 1)

    def _start_seconds(self) -> float:
        return START_SECONDS if self._workers() > 1 else 0.0

    def _count_texts(self, block: int) -> int:
        texts = block_range(block)
        return max(0, min(texts.stop, len(self.table)) - texts.start)

    def _minutes(self, seconds: float) -> int:
        """The minutes of another call for this much work."""
        return max(1, math.ceil((seconds + self._start_seconds() + self._reserve()) / 60))

    # The plan

    def _target_blocks(self) -> list[int]:
        """The blocks of the core's first texts: `TARGET_TEXTS` of them, or those that an earlier call has finished."""
        before = max((look.texts for look in self.state.looks if look is not None), default=0)
        return [block for block in self._blocks() if block_range(block).start < max(TARGET_TEXTS, before)]

    def _missing(self, blocks: Iterable[int]) -> list[WorkItem]:
        return [item for block in blocks for item in self._unfinished(block)]

    def _state_plan(self) -> None:
        """Say what the time is enough for."""
        plan, left, texts = self.plan, self._left() - self._start_seconds(), 0
        for block in self._blocks():
            left -= self._seconds(self._unfinished(block))
            if left < 0 and block:
                break
            texts += self._count_texts(block)
        self.say(
            f"Plan: about {texts} {plan.noun} in {self.options.minutes:g} minutes, {self._workers()} process(es); "
            f"methods: {', '.join(plan.methods)}."
        )
        for name, reason in plan.left_out.items():
            self.say(f"Left out: {name}: {reason}.")

    def _add_methods(self) -> list[str]:
        """Add the further methods that fit into the time for the first texts of the core; the others are left out."""
        plan, blocks, added = self.plan, self._target_blocks(), list[str]()
        for name, method in self.further.items():
            owned = self._with_method(name, method, blocks)
            if self._fits(owned):
                self._time_items([item for item in owned if item.block == 0 and item.is_main])
                owned = self._with_method(name, method, blocks) if name in plan.methods else []
            if name in plan.left_out:
                continue
            if self._fits(owned):
                added.append(name)
                continue
            plan.methods.pop(name, None)
            cost = sum(item.seconds(self.costs) for item in owned if item.block == blocks[0])
            plan.left_out[name] = (
                f"there was no time: it takes about {cost:.1f} s per text with its controls; about "
                f"{self._minutes(self._seconds(self._before_and(owned)))} more minutes would include it, or name it to "
                "include it first"
            )
            self.say(f"Left out: {name}: {plan.left_out[name]}.")
        return added

    def _with_method(self, name: str, method: Method, blocks: Sequence[int]) -> list[WorkItem]:
        """The unfinished work of a further method, which becomes a method of the plan."""
        self.plan.methods[name] = method
        self.costs.setdefault(f"{name} scores", self.costs.get(f"{FURTHER_METHODS[name]} scores", MIN_SECONDS))
        return [item for item in self._missing(blocks) if item.method == name]

    def _before_and(self, items: Sequence[WorkItem]) -> list[WorkItem]:
        """The unfinished work of the methods that come first on the first texts, and then this work."""
        names = {item.method for item in items}
        return [*(item for item in self._missing(self._target_blocks()) if item.method not in names), *items]

    def _fits(self, items: Sequence[WorkItem]) -> bool:
        """Whether there is time for this work after that of the methods that come first."""
        return not items or self._seconds(self._before_and(items)) < self._left() - self._start_seconds()

    def _place(self) -> tuple[str, int | None]:
        """Where blocks are made, and how many at a time."""
        where, workers = self.options.where, self.options.workers
        if self.explainer.origin is None:
            return HERE, None  # a model in memory cannot be sent to another process
        if where != POOL or workers is not None:
            return where, workers
        return where, min(2, count_workers(where, None, self.workspace.device))

    def _text_limit(self) -> int:
        return min(len(self.table), self.options.texts or len(self.table))

    def _work(self) -> None:
        """Work until the time is up: the core on the first texts, further methods on them, and all on more texts."""
        first = self._target_blocks()
        self._state_plan()
        self._run_items(self._missing(first))
        self._say_finished()
        if self.interrupted:
            return
        added = self._add_methods()
        if added:
            self.say(f"Added: {', '.join(added)}.")
        # The estimate is rough: the time decides, and a block that is begun is finished by the next call.
        items = self._missing(first)
        planned = self._seconds(items)
        for block in itertools.islice(self._blocks(), len(first), None):
            if planned > 2 * self._left():
                break
            more = self._missing([block])
            items, planned = items + more, planned + self._seconds(more)
        self._run_items(items)
        self._say_finished()

    def _say_finished(self) -> None:
        main, _ = self._finished_blocks()
        texts = sum(map(self._count_texts, main))
        self.say(f"Finished: {texts} {self.plan.noun} after {self._elapsed() / 60:.1f} minutes.")

    def _run_items(self, items: Sequence[WorkItem]) -> None:
        """Do this work in order until the time is up; an interrupt keeps what is finished."""
        if not items or self._left() <= 0:
            return
        try:
            if self._workers() > 1 or self._place()[0] not in (HERE, POOL):
                self._run_side_by_side(items)
            else:
                self._run_one_by_one(items)
        except KeyboardInterrupt:
            self.interrupted = True

    def _run_side_by_side(self, items: Sequence[WorkItem]) -> None:
        """Workers are stopped when the time is up; what they took is compared with the estimate."""
        estimate, start = self._seconds(items), time.monotonic()
        cache, self.workspace.model_cache = self.workspace.model_cache, None  # the workers load the model
        by_recipe = {item.recipe: item for item in items}
        where, workers = self._place()
        try:
            outcomes = run([*by_recipe], self.workspace, where=where, workers=workers, deadline=self._end())
        finally:
            self.workspace.model_cache = cache
        for outcome in outcomes:
            item = by_recipe.get(outcome.recipe)
            if outcome.error is not None and outcome.error != OUT_OF_TIME and outcome.cause is None and item:
                self._leave_out(item, outcome)
        if all(outcome.error is None for outcome in outcomes) and estimate > START_SECONDS:
            took = max(time.monotonic() - start - START_SECONDS, MIN_SECONDS)
            self.pace *= took / estimate

    def _run_one_by_one(self, items: Sequence[WorkItem]) -> None:
        """End before work that takes longer than the time that is left; estimates are corrected by what work took."""
        with self.workspace.progress.task("audit", len(items)) as step:
            for item in items:
                step(note=item.label)
                if item.owner in self.plan.left_out:
                    continue
                if self._seconds([item]) > self._left():
                    return
                start = time.monotonic()
                outcome = attempt(item.recipe, self.workspace)
                if outcome.error is not None:
                    self._leave_out(item, outcome)
                elif item.is_main and item.label in self.costs:
                    took = (time.monotonic() - start) / self._count_texts(item.block)
                    self.costs[item.label] = (self.costs[item.label] + took) / 2

    def _student_trial(self, path: str) -> Simulability | str:
        """Students that see the scores of some methods, random scores or nothing; or why there are none."""
        source = self.explainer.origin
        if self.explainer.precision != "float32":
            return "students are trained in single precision: leave the precision out"
        if not isinstance(source, str) or not user_path(source).is_dir():
            return "students start from a model folder: save the model with save_pretrained and give its folder"
        columns = replace(self.options.columns, label=NO_COLUMN, rationale=NO_COLUMN, uid=NO_COLUMN)
        teacher = open_teacher(source, path, columns)
        methods = {name: method for name, method in self.plan.recomputable.items() if name in self.plan.methods}
        taught = TAUGHT_METHODS if len(methods) > len(TAUGHT_METHODS) else tuple(methods)
        explanations = {**{name: methods[name] for name in taught if name in methods}, "random": Random()}
        return student_trial(teacher, explanations, self.workspace.data_dir)

    def _teach(self) -> None:
        """Train the students until the time is up; the next call goes on."""
        if isinstance(self.plan.students, str) or self.interrupted:
            return
        where, workers = self._place()
        end = self.start + 60 * self.options.minutes - self._reserve()
        try:
            outcomes = run([self.plan.students], self.workspace, where=where, workers=workers, deadline=end)
        except KeyboardInterrupt:
            self.interrupted = True
            return
        failed = next((each.error for each in outcomes if each.error is not None and each.cause is None), None)
        if failed is not None:
            done = sum(outcome.error is None for outcome in outcomes)
            self.plan.students = f"{failed} ({done} of {len(outcomes)} pieces are finished; another call resumes)"

    # The result

    def _finished_blocks(self) -> tuple[list[int], list[int]]:
        """The blocks from the first on whose main work is finished, and those of them where everything is.

        A further method that is not finished on the first texts of the core takes no text from the audit.
        """
        core_main, core_full = self._whole_blocks(self.further.keys())
        begun = [name for name in self.further if name in self.plan.methods]
        behind = []
        for name in begun:
            main, full = self._whole_blocks(self.further.keys() - {name})
            first = [block for block in self._target_blocks() if block in core_main]
            if not {*first} <= {*main} or not {*first} & {*core_full} <= {*full}:
                behind.append(name)
        return self._whole_blocks(behind)

    def _whole_blocks(self, without: Collection[str]) -> tuple[list[int], list[int]]:
        """As `_finished_blocks`, for all methods but some."""
        main, full = [], []
        for block in self._blocks():
            unfinished = [item for item in self._unfinished(block) if item.method not in without]
            if any(item.is_main for item in unfinished):
                break
            main.append(block)
            if not unfinished and not all(item.is_main for item in self.plan.block_work(block)):
                full.append(block)
        return main, full

    def _drop_unfinished(self, main: Sequence[int], full: Sequence[int]) -> None:
        """Leave out the further methods whose work on these blocks was not finished."""
        for name in [name for name in self.further if name in self.plan.methods]:
            missing = [
                item
                for block in main
                for item in self._unfinished(block)
                if item.method == name and (item.is_main or block in full)
            ]
            if missing:
                del self.plan.methods[name]
                self.plan.left_out[name] = (
                    f"it was not finished when the time was up; about {self._minutes(self._seconds(missing))} more "
                    "minutes would include it"
                )

    def _note_missing_texts(self, texts: int) -> None:
        """Where there are too few texts for any verdict: say how many minutes more would decide, and the command."""
        if texts >= min(MIN_EXAMPLES, self._text_limit()) or self.write_error is not None:
            if texts < MIN_EXAMPLES:
                self.say(f"{texts} {self.plan.noun} are too few for verdicts, which need {MIN_EXAMPLES}; add more.")
            return
        minutes = self._minutes(self._seconds(self._missing(self._target_blocks())))
        command = f"audit(model, data, minutes={minutes})"
        if isinstance(self.explainer.origin, str):
            source = shlex.join([shown_path(self.explainer.source), shown_path(self.plan.source)])
            command = f"heedful audit {source} --minutes {minutes}"
        note = (
            f"{texts} {self.plan.noun} are too few, {MIN_EXAMPLES} are needed; about {minutes} more minutes would "
            f"decide, because finished work is kept: {command}"
        )
        self.plan.left_out[VERDICTS] = note
        self.say(f"No verdicts yet: {note}")

    def _result(self) -> tuple[AuditAnalysis, Audit]:
        self._check_unchanged()
        main, full = self._finished_blocks()
        if not main and self.interrupted:
            raise KeyboardInterrupt
        if not main:
            raise UserError(
                f"minutes={self.options.minutes:g} is too short for a first text; allow more "
                "minutes, or choose fewer methods; finished work is kept"
            )
        self._drop_unfinished(main, full)
        texts = min(len(self.table), block_range(main[-1]).stop)
        self._note_missing_texts(texts)
        look = self._count_look(texts, sum(len(block_range(block)) for block in full))
        analysis = AuditAnalysis(FinishedWork(self.plan, self.workspace, main, full), self.costs, look)
        return analysis, analysis.result(
            minutes=self.options.minutes,
            seconds=self.state.seconds + self._elapsed(),
            finished=not self.interrupted,
        )

    def _count_look(self, texts: int, asked: int) -> int:
        """The number of this look, which is recorded before anybody sees its result; the same evidence is one look.

        Args:
            asked: texts of which all questions are asked.
        """
        evidence = hashlib.sha256(json.dumps([texts, asked, sorted(self.plan.methods)]).encode()).hexdigest()[:12]
        look, self.evidence = Look(texts, evidence), evidence
        known = self.state
        for _ in range(0 if self.write_error is not None else MAX_ATTEMPTS_TO_RECORD):
            if look in known.looks:
                break
            record = _Record(costs=self.costs, looks=[(texts, evidence)], seconds=self._elapsed())
            # Of two calls at the same moment the first one has the number, and the other looks again.
            self.journal.append(record.model_dump(mode="json"), known.records + 1)
            known = _read_state(self.journal)
        self.costs = {**known.costs, **self.costs}  # calls side by side measure some of them
        if look not in known.looks and self.write_error is None:
            raise WriteError(f"what is written in {self.workspace}/{AUDITS} cannot be read: check its permissions")
        if look not in known.looks:
            warnings.warn(
                f"this look at the audit cannot be remembered, because the workspace {self.workspace} cannot be "
                "written: copy the workspace before you go on with the audit",
                stacklevel=2,
            )
        return look_number(known.looks, look)

    def _elapsed(self) -> float:
        return time.monotonic() - self.start


def look_number(looks: Sequence[Look | None], look: Look) -> int:
    """The number of a look among those that decide something; 1 for a look at too few texts, which spends no error.

    Args:
        looks: all that are known, in their order; None for one whose record is damaged.

    >>> early, first, second = Look(10, "a"), Look(30, "b"), Look(50, "c")
    >>> [look_number([early, first, None], look) for look in (early, first, second)]
    [1, 1, 3]
    """
    deciding = [known for known in looks if known is None or known.texts >= MIN_EXAMPLES]
    if look.texts < MIN_EXAMPLES:
        return 1
    return deciding.index(look) + 1 if look in deciding else len(deciding) + 1


def _read_state(journal: Journal) -> _State:
    """What the records of an audit say."""
    state, records = _State(), journal.read()
    for number, record in enumerate(records, start=1):
        try:
            known = _Record.model_validate(record)
        except ValueError:
            state.damaged.append(journal.place(number))
            state.looks.append(None)
            continue
        looks = [Look(*look) for look in known.looks]
        state.costs |= known.costs
        state.seconds += known.seconds
        state.looks += [look for look in looks if look not in state.looks]
    state.records = len(records)
    return state


def _store_frame(frame: pd.DataFrame, workspace: Workspace) -> str:
    """The path of a CSV file in the workspace with the rows of a DataFrame; its folder is named by the content."""
    if frame.empty:
        raise UserError("the DataFrame has no rows or no columns; give one row per text")
    if frame.columns.nlevels > 1 or not frame.columns.is_unique:
        raise UserError("the DataFrame has several columns of one name; rename them")
    try:
        text = frame.map(_cell_text).to_csv(index=False, lineterminator="\n")
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the DataFrame cannot be written as a table ({error}): give texts, numbers or lists"
        ) from error
    path = workspace.root / AUDITS / f"frame-{digest}" / "frame.csv"
    if not path.is_file():
        with translate_write_errors(workspace.root):
            replace_text(path, text)
    return str(path)


def _cell_text(value: object) -> object:
    """A cell of a table as CSV files have it: lists as JSON."""
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return json.dumps(plain) if isinstance(plain, list | tuple | dict) else plain
