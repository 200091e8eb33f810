"""`audit`: plan the work of an audit, fit it into the minutes given, run it, and put the result together.

A probe of a few texts times every piece of work; the rest of the time is filled with blocks of texts, the same texts
for every method. What is finished is stored, so that an interrupt, a deadline or another call with more minutes loses
nothing and repeats nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import UnionType

import numpy as np
import pandas as pd
import torch

from heedful.attributions._base import Baseline
from heedful.attributions.controls import Random
from heedful.audits.analysis import (
    CONTROL_METHODS,
    NULL_METHODS,
    RANDOMISED_SEED,
    TEACHES_UNTESTED,
    AuditAnalysis,
    assumptions,
    class_counts,
    format_note,
    has_weights,
    repeated_scores,
)
from heedful.audits.audit_result import Audit
from heedful.audits.evidence import (
    BLOCK_TEXTS,
    POOL_SIZE,
    BlockAttention,
    BlockAttributions,
    BlockErasure,
    BlockSearch,
    TextSample,
    block_range,
    read_block,
)
from heedful.audits.external_attributions import ExternalAttributions, external_methods
from heedful.audits.verdict_rules import NULL
from heedful.catalogue import METHODS
from heedful.data.evaluation_table import EvaluationTable, GivenColumns, detect_columns
from heedful.devices import Precision, arithmetic_notes, check_device, is_same_device
from heedful.explainer import (
    AUDITS,
    Explainer,
    Methods,
    ModelSource,
    catalogue_name,
    list_methods,
    load,
    method_for_words,
)
from heedful.learn import open_teacher, student_trial
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.models.transformer import TransformerModel
from heedful.outcome import attempt
from heedful.report.html import check_report_folder, write_atomically
from heedful.runner import HERE, OUT_OF_TIME, POOL, check_where, count_workers, run
from heedful.store.atomic_write import WriteError, replace_text, translate_write_errors
from heedful.store.journal import Journal
from heedful.store.recipe import Json, Recipe, canonical_json, json_digest
from heedful.store.workspace import Workspace
from heedful.trials.simulability import Simulability
from heedful.types import REFUSED, Corpus, Method, UserError, describe_refusal, shorten, user_path

DEFAULT_METHODS = (
    "raw-attention",
    "rollout",
    "attention-x-gradient",
    "gradient-norm",
    "input-x-gradient",
    "integrated-gradients",
    "leave-one-out",
    "lime",
    "kernel-shap",
)
"""Methods that are audited unless others are named; all of the catalogue can be."""
RESERVED_SECONDS = 12.0
"""Kept for putting the result together and writing the pages."""
START_SECONDS = 6.0
"""Until worker processes have started."""
POOL_EFFICIENCY = 0.7
"""Of two processes on two cores, measured with MiniLM: 420 s by the probe took 540."""
TARGET_TEXTS = 28
"""Methods are left out, the slowest first, until this many texts fit into the time."""
MAX_BLOCKS = 2 + POOL_SIZE // BLOCK_TEXTS
FULL_BLOCKS = 3
"""The questions beside faithfulness are asked of these first blocks, and then of every third one."""
MIN_METHODS = 3
"""Fewer methods are not left to fit into the time."""
MIN_SECONDS = 0.001
MAX_ATTEMPTS_TO_RECORD = 100
"""As often other calls may record a look at the same moment."""
TEXTS_FOLDER, TEXTS_PAGE = "texts", "texts.html"
TAUGHT_METHODS = ("raw-attention", "integrated-gradients", "leave-one-out")
"""Methods that students are trained with if there are many; each takes several trainings."""
SEARCH, ATTENTION = "search", "attention"
"""Work that belongs to no method."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class AuditOptions:
    """What a user may choose about an audit.

    Args:
        minutes: time for this call; finished work of earlier calls counts in addition.
        methods: names of the catalogue or methods; empty takes `DEFAULT_METHODS`.
        attributions: a file with scores made elsewhere, audited as further methods.
        columns: columns of the data; those that are not named are found.
        workers: blocks at a time; by default two processes, or one block per core of a cluster.
        texts: stop at this many texts (rounded up to a whole block) even if there is time left.
        train_data: texts for students, which show whether explanations teach; takes half of the time.
        required: names of methods that must be audited, and are not left out to save time.
        where: a place as `heedful.run` has them; a model in memory stays in this process.
    """

    minutes: float = 5.0
    methods: tuple[str | Method, ...] = ()
    attributions: str | None = None
    columns: GivenColumns = field(default_factory=GivenColumns)
    seed: int = 0
    workers: int | None = None
    texts: int | None = None
    train_data: str | None = None
    required: tuple[str, ...] = ()
    where: str = POOL

    def __post_init__(self) -> None:
        _check_type("where", self.where, str, "a place such as 'pool'")
        for name, count in (("workers", self.workers), ("texts", self.texts)):
            _check_type(name, count, Integral | None, "a whole number")
        _check_type("seed", self.seed, Integral, "a whole number")
        check_where(self.where, self.workers)
        _check_type("minutes", self.minutes, Real, "a number")
        if not 0 < self.minutes <= 60 * 24 * 7 or not math.isfinite(self.minutes):
            raise UserError(f"{self.minutes} minutes: give a number above 0, at most a week")
        if self.texts is not None and self.texts < 1:
            raise UserError(f"{self.texts} texts: give at least 1")
        _check_type("methods", self.methods, tuple | list, "names of the catalogue or methods")
        _check_type("columns", self.columns, GivenColumns, "GivenColumns(text=...)")
        for name, path in (("attributions", self.attributions), ("train_data", self.train_data)):
            _check_type(name, path, str | Path | None, "a file")


def _check_type(name: str, value: object, kind: type | UnionType, wanted: str) -> None:
    """UserError unless a value has this type; a truth value is no number."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{name} is {shorten(value)}: give {wanted}")


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
        minutes: time for this call; another call goes on from here and repeats nothing.
        methods: names of the catalogue, or methods.
        options: everything else; `minutes` and `methods` are taken from it if it is given.
        out: folder for the pages: the answer, the evidence of each question, and all texts with their explanations.
        say: is called with each line about what was understood, planned and done.
        device: as in `load`; a `Workspace` has its own, which is taken.
        precision: as in `load`.
    """
    _check_type("data", data, str | Path | Corpus | pd.DataFrame, "a file, a DataFrame, or a corpus")
    _check_type("workspace", workspace, Workspace | str | Path, "a Workspace, a folder or a URL")
    _check_type("options", options, AuditOptions | None, "AuditOptions(...), or leave it out")
    _check_type("out", out, str | Path | None, "a folder")
    if say is not None and not callable(say):
        raise UserError(f"say is {shorten(say)}: give a function that takes a line, for instance print")
    chosen = options or AuditOptions(minutes, list_methods(methods))
    folder = None if out is None else user_path(out)
    if isinstance(workspace, Workspace):
        if device is not None and not is_same_device(torch.device(workspace.device), check_device(device)):
            raise UserError(f"the workspace computes on {workspace.device}: leave device out, or open it on {device}")
        if isinstance(model, str | Path):
            device = workspace.device
    explainer = load(model, device=device, precision=precision)
    place = workspace
    if not isinstance(place, Workspace):
        place = Workspace(place, device=str(explainer.device))
    running = _Audit(explainer, data, chosen, place, say or (lambda _: None))
    analysis, result = running.run()
    if folder is not None:
        check_report_folder(folder / TEXTS_FOLDER)
        write_atomically([analysis.texts_page(result)], folder / TEXTS_FOLDER / TEXTS_PAGE)
        result.to_html(folder, texts=f"{TEXTS_FOLDER}/{TEXTS_PAGE}")
    return result


@dataclass(frozen=True)
class _Work:
    """One recipe, whose method and part of the audit it is."""

    recipe: Recipe
    label: str
    method: str
    main: bool


@dataclass(frozen=True)
class Look:
    """One look at the results of an audit: the number of texts, and a digest of what was looked at."""

    texts: int
    evidence: str


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
    ) -> None:
        self.start = time.monotonic()
        explainer.check_folder()
        self.explainer, self.options, self.workspace, self.say = explainer, options, workspace, say
        self.corpus: Corpus
        if isinstance(data, pd.DataFrame):
            self.corpus, self.source = self._table(_store_frame(data, workspace)), type(data).__name__
        elif isinstance(data, Corpus):
            self.corpus, self.source = data, data.name
        else:
            self.corpus, self.source = self._table(str(data)), str(data)
        self.methods = self._methods()
        external = tuple(each for each in self.methods.values() if isinstance(each, ExternalAttributions))
        self.sample = TextSample(explainer.recipe(self.corpus), options.seed, scores=external)
        self.noun = "images" if explainer.reads_images else "texts"
        self.left_out: dict[str, str] = {}
        self.students: Simulability | str = TEACHES_UNTESTED
        self.interrupted = False
        if options.train_data is not None:
            self.students = self._student_trial(options.train_data)
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
        self.write_error: WriteError | None = None

    def _identity(self) -> str:
        """A digest of model, data, seed and scores made elsewhere, as they are now."""
        return json_digest(canonical_json(self.sample, self.workspace.data_dir))[:16]

    def _check_unchanged(self) -> None:
        """UserError if data or model are not those that the audit began with: nothing that is finished fits then."""
        remedy = "the audit examined the former one and is of no use; run it again"
        if self.corpus.digest(self.workspace.data_dir) != self.data_digest:
            raise UserError(f"the data ({self.source}) changed during the audit: {remedy}")
        in_memory = self.explainer.origin is None
        if (in_memory and self.explainer.given.is_changed(self.model_digest)) or self._identity() != self.identity:
            raise UserError(f"the model ({self.explainer.source}) changed during the audit: {remedy}")

    def _table(self, path: str) -> EvaluationTable:
        columns = detect_columns(path, outputs=self.explainer.class_names, given=self.options.columns)
        return EvaluationTable(path, columns)

    def _known_requirements(self) -> list[str]:
        return [name for name in self.options.required if name in METHODS and name not in CONTROL_METHODS]

    def _methods(self) -> dict[str, Method]:
        given = self.options.methods or (() if self.options.attributions else DEFAULT_METHODS)
        found: dict[str, Method] = {}
        for each in (*given, *(() if self.options.methods else self._known_requirements())):
            method = method_for_words(each)
            found[catalogue_name(method)] = method
        if self.options.attributions is not None:
            external = external_methods(self.options.attributions, self.corpus, self.workspace.data_dir)
            for name, method in external.items():
                for note in method.read().notes:
                    self.say(f"Scores of {name}: {note}.")
            found |= external
        clash = sorted(found.keys() & CONTROL_METHODS.keys())
        if clash:
            raise UserError(f"{clash[0]} is a control and part of every audit: leave it out")
        for name in self.options.required:
            if name not in found.keys() | CONTROL_METHODS.keys():
                known = ", ".join([*found, *CONTROL_METHODS])
                raise UserError(f"{name} is required, but it is not among the methods of this audit ({known})")
        return found

    # Running

    def run(self) -> tuple[AuditAnalysis, Audit]:
        """Understand, probe, plan, work, and put the result together.

        In a workspace that cannot be written, the result is that of the finished work.
        """
        try:
            self.workspace.check_writable()
        except WriteError as error:
            self.write_error = error
        self.workspace.model_cache = {}
        try:
            self.table = self.workspace.get(self.sample).table
            self.notes = self.workspace.get(self.sample).notes
            self.ways = self._deletion_ways()
            for line in self.understood():
                self.say(line)
            blocks = self._prepare() if self.write_error is None else ()
        finally:
            self.workspace.model_cache = None
        if self.write_error is not None:
            self._keep_finished(self.write_error)
        else:
            self._work(blocks)
            self._teach()
        analysis, result = self._result()
        if result.finished and self.write_error is None:
            # One document for each look: another audit of the model, with fewer texts or other data, replaces none.
            name = f"{self.model_digest[:16]}-{self.identity}-{result.look}"
            self.workspace.write_document(f"{AUDITS}/{name}.json", result.to_json())
        return analysis, result

    def _prepare(self) -> Sequence[int]:
        self._probe()
        return self._plan()

    def _keep_finished(self, error: WriteError) -> None:
        """Leave out what is not finished, as nothing can be added: methods that have fewer texts than the others."""
        refused = f"it is not finished, and the workspace {self.workspace} cannot be written"
        everything = {**self.methods, **CONTROL_METHODS}
        counts = dict.fromkeys(everything, 0)
        for block in range(MAX_BLOCKS if len(everything) else 0):
            if block_range(block).start >= self._text_limit():
                break
            missing = {work.method for work in self._block_work(block) if work.main and not self._has(work)}
            for name in [name for name in counts if counts[name] == block and name not in missing]:
                counts[name] += 1
        most = max((counts[name] for name in self.methods), default=0)
        for name in [name for name in counts if counts[name] < most or not most]:
            self.left_out[name] = refused
            self.methods.pop(name, None)
        if not self.methods:
            raise error
        if not all(self._has(work) for work in self._block_work(0) if work.label == ATTENTION):
            self.left_out[ATTENTION] = refused
        if isinstance(self.students, Simulability) and not self.workspace.has(self.students):
            self.students = refused
        self.say(f"The workspace {self.workspace} cannot be written: this is what is finished in it.")

    def _has(self, work: _Work) -> bool:
        return self.workspace.has(work.recipe)

    def understood(self) -> Iterator[str]:
        """What the audit understood of the model and the data, in lines."""
        outputs = ", ".join(self.explainer.class_names) or "a number"
        yield f"Model: {self.explainer.source}, {self.notes['architecture']}; outputs: {outputs}."
        corpus = self.corpus
        if isinstance(corpus, EvaluationTable):
            yield f"Data: {self.source}; {'; '.join(corpus.columns.notes)}."
        yield from (f"Assumption: {line}." for line in assumptions(corpus, self.table, self.explainer.class_names))
        counts = ", ".join(
            f"{name} {count}" for name, count in class_counts(self.table, self.explainer.class_names).items()
        )
        yield (
            f"{self.noun.capitalize()}: {self.notes['read']} of {self.notes['rows']} were read, "
            f"{self.notes['too short']} of them are too short to explain; predicted: {counts}."
        )
        rows = self.notes["corpus"]
        if isinstance(rows, dict) and isinstance(corpus, EvaluationTable):
            yield f"Rows: {'; '.join(f'{name}: {format_note(value)}' for name, value in rows.items())}."
        remarks = self.notes["remarks"]
        if isinstance(remarks, dict) and remarks:
            yield f"Tokenizer: {'; '.join(f'{name}: {format_note(value)}' for name, value in remarks.items())}."
        for note in arithmetic_notes(self.workspace.device, self.explainer.precision):
            yield f"Arithmetic: {note}."

    def _deletion_ways(self) -> tuple[Baseline, ...]:
        """Two ways of deletion: close the gap, and the best replacement token that the tokenizer has."""
        if self.explainer.reads_images:
            model = self.explainer.model
            # Where embeddings are the pixels themselves, both ways are the same.
            is_same = isinstance(model, TransformerModel) and model.embeddings_at == "pixels"
            return ("pad",) if is_same or model.embedding_refusal is not None else ("pad", "zero")
        block = read_block(self.sample, 0, self.workspace)
        replacement: Baseline = "pad"
        if block.batch.mask_id is not None:
            replacement = "mask"
        elif block.batch.unk_id is not None:
            replacement = "unk"
        return ("delete", replacement)

    def _block_work(self, block: int) -> Iterator[_Work]:
        """Everything that is done for one block, the most informative first."""
        sample, external = self.sample, ExternalAttributions
        controls = {name: method for name, method in CONTROL_METHODS.items() if name not in self.left_out}
        everything = {**self.methods, **controls}
        named = [*everything.items(), *((f"{NULL} {seed}", each) for seed, each in enumerate(NULL_METHODS))]
        for name, method in named:
            scores = BlockAttributions(sample, method, block)
            yield _Work(scores, f"{name} scores", name, main=True)
            yield _Work(BlockErasure(scores, self.ways), "erasure", name, main=True)
        yield _Work(BlockSearch(sample, block, self.ways), SEARCH, "", main=True)
        if block >= FULL_BLOCKS and block % 3:
            return
        if ATTENTION not in self.left_out:
            yield _Work(BlockAttention(sample, block), ATTENTION, "", main=False)
        for name, method in everything.items():
            if isinstance(method, external):
                continue
            if has_weights(self.explainer.model):
                randomised = BlockAttributions(sample, method, block, randomised=RANDOMISED_SEED)
                yield _Work(randomised, f"{name} scores", name, main=False)
            repeated = repeated_scores(sample, method, block, images=self.explainer.reads_images)
            if repeated is not None:
                yield _Work(repeated, f"{name} scores", name, main=False)

    def _probe(self) -> None:
        """Do the main work of the first block and remember how long each piece takes; leave out what fails."""
        texts = min(len(self.table), len(block_range(0)))
        refusal = self.explainer.model.attention_refusal
        if refusal is not None:
            self.left_out[ATTENTION] = f"{REFUSED} {refusal}"
        work = [each for each in self._block_work(0) if each.main]
        seconds: dict[str, float] = {}
        tried: set[str] = set()
        with self.workspace.progress.task("probe", len(work)) as step:
            for each in work:
                step(note=each.label)
                # Erasures take the same time for every method.
                if each.method in self.left_out or each.label in tried or self._late():
                    continue
                tried.add(each.label)
                start, known = time.monotonic(), self.workspace.has(each.recipe)
                outcome = attempt(each.recipe, self.workspace)
                if outcome.error is not None:
                    self._leave_out(each.method or each.label, outcome.error)
                elif not known:
                    seconds[each.label] = time.monotonic() - start
        # Random scores cost next to nothing: what they take is reading and writing, once per block.
        overhead = min((took for label, took in seconds.items() if label.endswith(" scores")), default=0.0)
        for label, took in seconds.items():
            self.costs[label] = max(took - overhead, MIN_SECONDS) / texts
        if SEARCH in self.costs:
            self.costs[ATTENTION] = self.costs[SEARCH] / 8

    def _leave_out(self, name: str, reason: str) -> None:
        """Go on without a method or a piece of work that fails; UserError if nothing can be compared without it."""
        self._check_unchanged()
        if name == SEARCH or name.startswith(NULL):
            raise UserError(f"texts without some of their words cannot be read by this model: {reason}")
        self.left_out.setdefault(name, describe_refusal(self.explainer.model, reason))
        self.methods.pop(name, None)
        if not self.methods:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            raise UserError(f"no method works on this model: {reasons}")

    def _late(self) -> bool:
        return self._elapsed() > 60 * self.options.minutes - RESERVED_SECONDS

    def _plan(self) -> list[int]:
        """The blocks to work on; methods that do not fit into the time are left out, the slowest first."""
        # A slow method must not take texts away that an earlier call has finished.
        before = max((look.texts for look in self.state.looks if look is not None), default=0)
        workers, wanted = (
            count_workers(*self._place(), self.workspace.device),
            min(max(TARGET_TEXTS, before), self._text_limit()),
        )
        blocks, kept = self._blocks_in_time(workers), dict(self.methods)
        costs = {name: self._cost_of(name) for name, each in kept.items() if not isinstance(each, ExternalAttributions)}
        for slowest in () if self.options.methods else sorted(costs, key=lambda name: -costs[name])[:-MIN_METHODS]:
            if slowest in self.options.required:
                continue
            if block_range(blocks[-1]).stop >= wanted:
                break
            del self.methods[slowest]
            self.left_out[slowest] = (
                f"it takes {costs[slowest]:.1f} s per text with its controls: give more minutes, or name it"
            )
            blocks = self._blocks_in_time(workers)
        texts = block_range(blocks[-1]).stop
        texts = min(texts, len(self.table))
        names = ", ".join(self.methods)
        self.say(
            f"Plan: about {texts} {self.noun} in {self.options.minutes:g} minutes, {workers} process(es); methods: "
            f"{names}."
        )
        for name, reason in self.left_out.items():
            self.say(f"Left out: {name}: {reason}.")
        if texts < MIN_EXAMPLES:
            remedy = f"which need {MIN_EXAMPLES}: give more minutes or {self.noun}"
            self.say(f"{texts} {self.noun} are too few for intervals, {remedy}.")
        return blocks

    def _place(self) -> tuple[str, int | None]:
        """Where blocks are made, and how many at a time."""
        where, workers = self.options.where, self.options.workers
        if self.explainer.origin is None:
            return HERE, None  # a model in memory cannot be sent to another process
        if where != POOL or workers is not None:
            return where, workers
        return where, min(2, count_workers(where, None, self.workspace.device))

    def _cost_of(self, name: str) -> float:
        """Seconds per text of a method with its controls: scored three times, erased in every way."""
        costs = self.costs
        return 3 * costs.get(f"{name} scores", 0.0) + costs.get("erasure", 0.0)

    def _blocks_in_time(self, workers: int) -> list[int]:
        """The blocks whose unfinished work fits into the rest of the time; at least the first."""
        left = 60 * self.options.minutes - RESERVED_SECONDS - self._elapsed()
        left = (left - START_SECONDS) * workers * POOL_EFFICIENCY if workers > 1 else left
        blocks = [0]
        for block in range(1, MAX_BLOCKS):
            places = block_range(block)
            if places.start >= self._text_limit():
                break
            cost = sum(
                self.costs.get(work.label, 0.0) * len(places)
                for work in self._block_work(block)
                if not self.workspace.has(work.recipe)
            )
            if cost > left:
                break
            left -= cost
            blocks.append(block)
        return blocks

    def _text_limit(self) -> int:
        return min(len(self.table), self.options.texts or len(self.table))

    def _work(self, blocks: Sequence[int]) -> None:
        """Run the blocks in order until they are finished or the time is up; an interrupt keeps what is finished."""
        # The estimate of the probe is rough: the time decides, and a block that is begun is finished by the next call.
        last = min(MAX_BLOCKS, 2 * blocks[-1] + 2)
        tried = [block for block in range(last + 1) if block_range(block).start < self._text_limit()]
        owners = {work.recipe: work.method or work.label for block in tried for work in self._block_work(block)}
        recipes = list(owners)
        share = 1.0 if isinstance(self.students, str) else 0.5
        deadline = self.start + 60 * share * self.options.minutes - RESERVED_SECONDS
        try:
            where, workers = self._place()
            outcomes = run(recipes, self.workspace, where=where, workers=workers, deadline=deadline)
        except KeyboardInterrupt:
            self.interrupted = True
            return
        for outcome in outcomes:
            name = owners.get(outcome.recipe, "")
            if outcome.error is not None and outcome.error != OUT_OF_TIME and outcome.cause is None and name:
                self._leave_out(name, outcome.error)

    def _student_trial(self, path: str) -> Simulability | str:
        """Students that see the scores of some methods, random scores or nothing; or why there are none."""
        source = self.explainer.origin
        if self.explainer.precision != "float32":
            return "students are trained in single precision: leave the precision out"
        if not isinstance(source, str) or not user_path(source).is_dir():
            return "students start from a model folder: save the model with save_pretrained and give its folder"
        columns = detect_columns(path, outputs=self.explainer.class_names, given=self.options.columns)
        teacher = open_teacher(source, path, columns.text, columns.second_text)
        own = {name: each for name, each in self.methods.items() if not isinstance(each, ExternalAttributions)}
        names = list(own) if len(own) <= len(TAUGHT_METHODS) else [name for name in TAUGHT_METHODS if name in own]
        taught = {name: own[name] for name in names}
        explanations = {**taught, "random": Random()}
        return student_trial(teacher, explanations, self.workspace.data_dir)

    def _teach(self) -> None:
        """Train the students until the time is up; the next call goes on."""
        if isinstance(self.students, str) or self.interrupted:
            return
        deadline = self.start + 60 * self.options.minutes - RESERVED_SECONDS
        try:
            where, workers = self._place()
            outcomes = run([self.students], self.workspace, where=where, workers=workers, deadline=deadline)
        except KeyboardInterrupt:
            self.interrupted = True
            return
        failed = next((each.error for each in outcomes if each.error is not None and each.cause is None), None)
        if failed is not None:
            done = sum(each.error is None for each in outcomes)
            self.students = f"{failed} ({done} of {len(outcomes)} pieces are finished; another call goes on from there)"

    # The result

    def _finished_blocks(self) -> tuple[list[int], list[int]]:
        """The blocks from the first on whose main work is finished, and those of them where everything is."""
        main, full = [], []
        for block in range(MAX_BLOCKS):
            if block_range(block).start >= self._text_limit():
                break
            work = list(self._block_work(block))
            if not all(self.workspace.has(each.recipe) for each in work if each.main):
                break
            main.append(block)
            side = [each for each in work if not each.main]
            if side and all(self.workspace.has(each.recipe) for each in side):
                full.append(block)
        return main, full

    def _result(self) -> tuple[AuditAnalysis, Audit]:
        self._check_unchanged()
        main, full = self._finished_blocks()
        if not main and self.interrupted:
            raise KeyboardInterrupt
        if not main:
            raise UserError(
                f"minutes={self.options.minutes:g} is too short for the first {len(block_range(0))} texts: give more "
                "minutes, or fewer methods; what is finished is kept"
            )
        texts = min(len(self.table), block_range(main[-1]).stop)
        look = self._count_look(texts, sum(len(block_range(block)) for block in full))
        analysis = AuditAnalysis(
            self.explainer, self.corpus, self.source, self.sample, self.methods, self.ways, self.left_out, main, full,
            self.costs, self.students, look, self.workspace,
        )  # fmt: skip
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
        evidence = hashlib.sha256(json.dumps([texts, asked, sorted(self.methods)]).encode()).hexdigest()[:12]
        look = Look(texts, evidence)
        known = self.state
        for _ in range(0 if self.write_error is not None else MAX_ATTEMPTS_TO_RECORD):
            if look in known.looks:
                break
            looks: Json = [[texts, evidence]]
            record: dict[str, Json] = {"costs": {**self.costs}, "looks": looks, "seconds": self._elapsed()}
            # Of two calls at the same moment the first one has the number, and the other looks again.
            self.journal.append(record, known.records + 1)
            known = _read_state(self.journal)
        self.costs = {**known.costs, **self.costs}  # calls side by side measure some of them
        if look not in known.looks and self.write_error is None:
            raise WriteError(f"what is written in {self.workspace}/{AUDITS} cannot be read: check its permissions")
        if look not in known.looks:
            warnings.warn(
                f"this is look {len(known.looks) + 1} of the audit, and the workspace {self.workspace} cannot be "
                "written to remember it: copy the workspace before you go on with the audit",
                stacklevel=2,
            )
            return len(known.looks) + 1
        return known.looks.index(look) + 1

    def _elapsed(self) -> float:
        return time.monotonic() - self.start


def _read_state(journal: Journal) -> _State:
    """What the records of an audit say."""
    state, records = _State(), journal.read()
    former = f"{journal.folder}/{journal.name}.json"
    if (written := journal.workspace.read_document(former)) is not None:
        _add_record(state, _read_former(written), former)
    for number, record in enumerate(records, start=1):
        _add_record(state, record, journal.place(number))
    state.records = len(records)
    return state


def _read_former(written: bytes) -> Mapping[str, Json] | None:
    """The one record that an audit of an earlier version of heedful has; None if it is damaged."""
    with suppress(ValueError, RecursionError):
        content = json.loads(written)
        return content if isinstance(content, dict) else None
    return None


def _read_look(entry: Json) -> Look:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ValueError("no look")
    return Look(int(str(entry[0])), str(entry[1]))


def _add_record(state: _State, record: Mapping[str, Json] | None, place: str) -> None:
    try:
        if record is None or not isinstance(costs := record["costs"], dict) or not isinstance(record["looks"], list):
            raise ValueError("damaged")
        seconds, known = float(str(record["seconds"])), {label: float(str(cost)) for label, cost in costs.items()}
        looks = [_read_look(entry) for entry in record["looks"]]
    except (ValueError, KeyError, TypeError):
        state.damaged.append(place)
        state.looks.append(None)
        return
    state.costs |= known
    state.seconds += seconds
    state.looks += [look for look in looks if look not in state.looks]


def _store_frame(frame: pd.DataFrame, workspace: Workspace) -> str:
    """The path of a CSV file in the workspace with the rows of a DataFrame; its folder is named by the content."""
    if frame.empty:
        raise UserError("the DataFrame has no rows or no columns: give one row per text")
    if frame.columns.nlevels > 1 or not frame.columns.is_unique:
        raise UserError("the DataFrame has several columns of one name: give each column one name of its own")
    try:
        text = frame.map(_cell_text).to_csv(index=False, lineterminator="\n")
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the DataFrame cannot be written as a table ({error}): give texts, numbers or lists"
        ) from error
    place = f"{AUDITS}/frame-{digest}/frame.csv"
    path = workspace.root / place
    if not path.is_file():
        with translate_write_errors(workspace.root):
            replace_text(path, text)
    return str(path)


def _cell_text(value: object) -> object:
    """A cell of a table as CSV files have it: lists as JSON."""
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return json.dumps(plain) if isinstance(plain, list | tuple | dict) else plain
