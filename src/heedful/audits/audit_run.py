"""One call of `audit`: understand the data, do the work that fits into the time, and put the result together.

Each call looks at the results, and each look that decides something spends error probability. A look is recorded before
anybody sees its result. One whose record is damaged or lost counts all the same.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import BaseModel

from heedful.attributions.controls import Random
from heedful.attributions.registry import METHODS, catalogue_name, method_for_words
from heedful.audits.analysis import AuditAnalysis, assumptions, note_lines, segment_note
from heedful.audits.audit_result import Audit
from heedful.audits.evidence import TextSample, block_range
from heedful.audits.external_attributions import ExternalAttributions, external_methods
from heedful.audits.questions import ATTENTION_FINDINGS
from heedful.audits.rare_classes import count_representative
from heedful.audits.time_budget import FURTHER_METHODS, TimeBudget
from heedful.audits.topics import VERDICTS
from heedful.audits.work_list import CONTROL_METHODS, AuditPlan, FinishedWork, WorkItem
from heedful.data.columns import NO_COLUMN
from heedful.data.table import EvaluationTable
from heedful.devices import arithmetic_notes
from heedful.execution.outcome import Outcome, attempt
from heedful.execution.runner import HERE, OUT_OF_TIME, POOL, run
from heedful.explainer import Explainer
from heedful.formatting import more_minutes
from heedful.learn import open_teacher, student_trial
from heedful.measures.bootstrap import MIN_EXAMPLES
from heedful.recommendation import AUDITS
from heedful.store.atomic_write import WriteError
from heedful.store.journal import Journal
from heedful.store.recipe import canonical_json, json_digest
from heedful.store.workspace import Workspace
from heedful.trials.simulability import Simulability
from heedful.types import Corpus, Method, NotApplicable, UserError, user_path

if TYPE_CHECKING:  # it imports this module
    from heedful.audits.schedule import AuditOptions

CORE_METHODS = ("raw-attention", "input-x-gradient", "integrated-gradients", "lime")
"""Methods that every audit examines: less time means fewer texts, not fewer of these."""
TAUGHT_METHODS = ("raw-attention", "integrated-gradients", "leave-one-out")
"""Methods that students are trained with if there are many; each takes several trainings."""

MAX_ATTEMPTS_TO_RECORD = 100
"""As often other calls may record a look at the same moment."""


@dataclass(frozen=True)
class Look:
    """One look at the results of an audit: the number of texts that represent the data, and a digest of all of it."""

    texts: int
    evidence: str


class _Record(BaseModel):
    """What one call of an audit has recorded.

    Args:
        looks: the fields of `Look`.
        failed: question, method and reason of work that failed.
    """

    costs: dict[str, float]
    looks: list[tuple[int, str]]
    seconds: float
    failed: list[tuple[str, str, str]] = []


@dataclass
class AuditState:
    """What is known of the earlier calls of an audit.

    Args:
        costs: seconds per text of each kind of work.
        looks: in their order; None for one whose record is damaged or lost, which counts all the same: a look that is
            forgotten would let the next one err more often than it says.
        seconds: spent by the calls that added a look.
        records: how many records there are.
        damaged: documents of records that are damaged or lost.
        failed: why work failed, by question and method.
    """

    costs: dict[str, float] = field(default_factory=dict)
    looks: list[Look | None] = field(default_factory=list)
    seconds: float = 0.0
    records: int = 0
    damaged: list[str] = field(default_factory=list)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def texts(self) -> int:
        """The most texts that a look was at."""
        return max((look.texts for look in self.looks if look is not None), default=0)


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


def read_state(journal: Journal) -> AuditState:
    """What the records of an audit say."""
    state, records = AuditState(), journal.read()
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
        state.failed |= {(topic, method): reason for topic, method, reason in known.failed}
        state.looks += [look for look in looks if look not in state.looks]
    state.records = len(records)
    return state


class LookJournal:
    """The records of one audit in a workspace.

    Attributes:
        state: what they said when this call began.
    """

    def __init__(self, workspace: Workspace, identity: str) -> None:
        self.workspace = workspace
        self.journal = Journal(workspace, AUDITS, f"state-{identity}")
        self.state = read_state(self.journal)
        if self.state.damaged:
            warnings.warn(
                f"records of earlier looks at this audit are damaged or lost in {workspace}: "
                f"{', '.join(self.state.damaged)}. Each counts as a look, so that the tests err no more often than "
                "they say; another seed draws other texts and begins anew",
                stacklevel=3,
            )

    def count(
        self,
        look: Look,
        costs: Mapping[str, float],
        seconds: float,
        failed: Mapping[tuple[str, str], str],
        *,
        writable: bool,
    ) -> tuple[int, dict[str, float]]:
        """The number of a look, which is recorded if it is a new one, and the costs known after it.

        Args:
            costs: that this call measured.
            seconds: that this call spent.
            failed: why work failed in this call, by question and method.
            writable: whether the workspace can be written.
        """
        known = self.state
        for _ in range(MAX_ATTEMPTS_TO_RECORD if writable else 0):
            if look in known.looks:
                break
            reasons = [(*key, reason) for key, reason in failed.items()]
            looks = [(look.texts, look.evidence)]
            record = _Record(costs=dict(costs), looks=looks, seconds=seconds, failed=reasons)
            # Of two calls at the same moment the first one has the number, and the other looks again.
            self.journal.append(record.model_dump(mode="json"), known.records + 1)
            known = read_state(self.journal)
        if look not in known.looks and writable:
            raise WriteError(f"what is written in {self.workspace}/{AUDITS} cannot be read: check its permissions")
        if look not in known.looks:
            warnings.warn(
                f"this look at the audit cannot be remembered, because the workspace {self.workspace} cannot be "
                "written: copy the workspace before you go on with the audit",
                stacklevel=2,
            )
        # Calls side by side measure some of them.
        return look_number(known.looks, look), {**known.costs, **costs}


class AuditRun:
    """One call of `audit`.

    Args:
        source: where the data are from, in words.
    """

    def __init__(
        self,
        explainer: Explainer,
        corpus: Corpus,
        source: str,
        options: AuditOptions,
        workspace: Workspace,
        say: Callable[[str], None],
        start: float | None = None,
    ) -> None:
        start = time.monotonic() if start is None else start
        self.explainer, self.options, self.workspace, self.say = explainer, options, workspace, say
        self.corpus = corpus
        methods = self._methods()
        external = tuple(method for method in methods.values() if isinstance(method, ExternalAttributions))
        sample = TextSample(explainer.recipe(self.corpus), options.seed, scores=external, feature=options.feature)
        self.plan = AuditPlan(explainer, self.corpus, source, sample, methods)
        if options.train_data is not None:
            self.plan.students = self._student_trial(options.train_data)
        self.interrupted = False
        self.model_digest, self.data_digest = explainer.digest, self.corpus.digest(workspace.data_dir)
        self.identity = self._identity()
        self.looks = LookJournal(workspace, self.identity)
        self.budget = TimeBudget(
            self.plan,
            workspace,
            start,
            options.minutes,
            dict(self.looks.state.costs),
            self.looks.state.texts,
            options.texts,
            options.where,
            options.workers,
        )
        self.write_error: WriteError | None = None
        self.failed: dict[tuple[str, str], str] = {}
        """Why work failed in this call, by question and method."""
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

    def _methods(self) -> dict[str, Method]:
        """The methods that are audited whatever the time; sets those that are added if there is time."""
        only = self.options.only_methods
        required = [name for name in self.options.required if name in METHODS and name not in CONTROL_METHODS]
        chosen = (*(() if only else CORE_METHODS), *self.options.methods, *required)
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
            self.table, self.notes, self.plan.turns = sample.table, sample.notes, sample.table["turn"]
            self.budget.take_sample(sample.table["words"].tolist())
            self.plan.ways = self.plan.deletion_ways(self.workspace)
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
        self._leave_out_again()
        plan.methods |= self.further
        counts = dict.fromkeys(plan.scored, 0)
        for block in self.budget.blocks():
            missing = {item.method for item in self.budget.unfinished(block) if item.is_main}
            for name in [name for name in counts if counts[name] == block and name not in missing]:
                counts[name] += 1
        most = max((counts[name] for name in plan.methods), default=0)
        for name in [name for name in counts if counts[name] < most or not most]:
            plan.left_out[name] = refused
            plan.methods.pop(name, None)
        if not plan.methods:
            raise error
        if any(item.topic is ATTENTION_FINDINGS for item in self.budget.unfinished(0)):
            plan.left_out[ATTENTION_FINDINGS.name] = refused
        if isinstance(plan.students, Simulability) and not self.workspace.has(plan.students):
            plan.students = refused
        self.say(f"The workspace {self.workspace} cannot be written: this is what is finished in it.")

    def understood(self) -> Iterator[str]:
        """What the audit understood of the model and the data, in lines."""
        names, corpus, notes = self.explainer.class_names, self.corpus, self.notes
        yield (f"Model: {self.explainer.source}, {notes['architecture']}; outputs: {', '.join(names) or 'a number'}.")
        if isinstance(corpus, EvaluationTable):
            yield f"Data: {self.plan.source}; {'; '.join(corpus.columns.notes)}."
        right, labeled = (int(str(notes[name])) for name in ("right", "labeled"))
        yield from (f"Assumption: {line}." for line in assumptions(corpus, right, labeled, names))
        drawn = notes["predicted"] if isinstance(notes["predicted"], list) else []
        counts = ", ".join(f"{name} {count}" for name, count in zip(names or ("numbers",), drawn, strict=True))
        yield (
            f"{self.plan.noun.capitalize()}: {notes['read']} of {notes['rows']} were read, {notes['too short']} of "
            f"them are too short to explain; predicted: {counts}."
        )
        if notes["rare"]:
            yield f"Rarely predicted classes: {notes['rare']} {self.plan.noun} of them were found among further ones."
        if notes["without scores"]:
            yield f"Without scores for the predicted class: {notes['without scores']} {self.plan.noun}, left out."
        if isinstance(corpus, EvaluationTable):
            yield f"Rows: {'; '.join(note_lines(notes['corpus']))}."
        if remarks := note_lines(notes["remarks"]):
            yield f"Tokenizer: {'; '.join(remarks)}."
        if segmented := segment_note(self.table, self.options.feature, self.plan.noun):
            yield f"{segmented[:1].upper()}{segmented[1:]}."
        for note in arithmetic_notes(self.workspace.device, self.explainer.precision):
            yield f"Arithmetic: {note}."

    def _probe(self) -> None:
        """Time every kind of work on the first texts, which is stored as well; leave out what fails."""
        refusal = self.explainer.model.attention_refusal
        if refusal is not None:
            self.plan.left_out[ATTENTION_FINDINGS.name] = str(NotApplicable(refusal))
        self.budget.time_pass()
        main = [item for item in self.plan.block_work(0) if item.is_main]
        self.budget.time_items(main, self.leave_out)
        if self.budget.fits(self.budget.missing(self.budget.target_blocks())):
            others = [item for item in self.plan.block_work(0) if item.timed_as not in self.budget.costs]
            self.budget.time_items(others, self.leave_out)

    def leave_out(self, item: WorkItem, outcome: Outcome) -> None:
        """Go on without a method or a question whose work fails; UserError if nothing can be compared without it."""
        self._check_unchanged()
        # A refusal without its remedy, because an audit tries other methods anyway.
        reason = str(outcome.error if outcome.refusal is None else NotApplicable(outcome.refusal.reason))
        self.failed[item.topic.name, item.method] = reason
        self._go_on_without(item, reason)

    def _leave_out_again(self) -> None:
        """Leave out what failed on texts that an earlier call has looked at, if there was no time to try it again."""
        for block in self.budget.target_blocks():
            for item in self.budget.unfinished(block) if block_range(block).start < self.budget.earlier else ():
                reason = self.looks.state.failed.get((item.topic.name, item.method))
                if reason is not None and not self.plan.is_left_out(item):
                    self._go_on_without(item, reason)

    def _go_on_without(self, item: WorkItem, reason: str) -> None:
        plan = self.plan
        if not item.is_main:
            plan.refuse(item, reason)
            return
        if not item.method:
            raise UserError(f"the model cannot read texts without some of their words: {reason}")
        plan.left_out.setdefault(item.method, reason)
        plan.methods.pop(item.method, None)
        if not plan.methods:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.left_out.items())
            raise UserError(f"no method works on this model: {reasons}")

    # The plan

    def _state_plan(self) -> None:
        """Say what the time is enough for."""
        plan, budget = self.plan, self.budget
        texts = budget.planned_texts(self.further)
        self.say(
            f"Plan: about {texts} {plan.noun[:-1] if texts == 1 else plan.noun} in {self.options.minutes:g} minutes, "
            f"{budget.count_workers()} process(es); methods: {', '.join(plan.methods)}."
        )
        for name, reason in plan.left_out.items():
            self.say(f"Left out: {name}: {reason}.")

    def _work(self) -> None:
        """Work until the time is up: the core on the first texts, further methods on them, and all on more texts."""
        budget = self.budget
        first = budget.target_blocks()
        self._state_plan()
        # Without the main work there is no verdict at all, so that it does not wait for the other questions.
        self._run_items(sorted(budget.missing(first), key=lambda item: not item.is_main))
        self._say_finished()
        if self.interrupted:
            return
        added = budget.add_methods(self.further, self.leave_out, self.say)
        if added:
            self.say(f"Added: {', '.join(added)}; about {budget.planned_texts({})} {self.plan.noun} with them.")
        # The estimate is rough: the time decides, and a block that is begun is finished by the next call.
        items = budget.missing(first)
        planned = budget.seconds(items)
        for block in itertools.islice(budget.blocks(), len(first), None):
            if planned > 2 * budget.left():
                break
            more = budget.missing([block])
            items, planned = items + more, planned + budget.seconds(more)
        if items and budget.left() > 0:
            self._run_items(items)
            self._say_finished()

    def _say_finished(self) -> None:
        main, _ = self.budget.finished_blocks(self.further)
        texts = sum(map(self.budget.count_texts, main))
        self.say(f"Finished: {texts} {self.plan.noun} after {self.budget.elapsed() / 60:.1f} minutes.")

    def _run_items(self, items: Sequence[WorkItem]) -> None:
        """Do this work in order until the time is up; an interrupt keeps what is finished."""
        if not items or self.budget.left() <= 0:
            return
        try:
            if self.budget.count_workers() > 1 or self.budget.place()[0] not in (HERE, POOL):
                self._run_side_by_side(items)
            else:
                self._run_one_by_one(items)
        except KeyboardInterrupt:
            self.interrupted = True

    def _run_side_by_side(self, items: Sequence[WorkItem]) -> None:
        """Workers are stopped when the time is up; what they took is compared with the estimate."""
        estimate, start = self.budget.seconds(items), time.monotonic()
        cache, self.workspace.model_cache = self.workspace.model_cache, None  # the workers load the model
        by_recipe = {item.recipe: item for item in items}
        where, workers = self.budget.place()
        try:
            outcomes = run([*by_recipe], self.workspace, where=where, workers=workers, deadline=self.budget.work_end())
        finally:
            self.workspace.model_cache = cache
        for outcome in outcomes:
            item = by_recipe.get(outcome.recipe)
            if outcome.error is not None and outcome.error != OUT_OF_TIME and outcome.cause is None and item:
                self.leave_out(item, outcome)
        if all(outcome.error is None for outcome in outcomes):
            self.budget.learn_pace(estimate, time.monotonic() - start)

    def _run_one_by_one(self, items: Sequence[WorkItem]) -> None:
        """End before work that takes longer than the time that is left; estimates are corrected by what work took."""
        with self.workspace.progress.task("audit", len(items)) as step:
            for item in items:
                step(note=item.label)
                if self.plan.is_left_out(item):
                    continue
                if self.budget.seconds([item]) > self.budget.left():
                    return
                start = time.monotonic()
                outcome = attempt(item.recipe, self.workspace)
                if outcome.error is not None:
                    self.leave_out(item, outcome)
                else:
                    self.budget.learn(item, time.monotonic() - start)

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
        where, workers = self.budget.place()
        try:
            outcomes = run(
                [self.plan.students], self.workspace, where=where, workers=workers, deadline=self.budget.end()
            )
        except KeyboardInterrupt:
            self.interrupted = True
            return
        failed = next((each.error for each in outcomes if each.error is not None and each.cause is None), None)
        if failed is not None:
            done = sum(outcome.error is None for outcome in outcomes)
            self.plan.students = f"{failed} ({done} of {len(outcomes)} pieces are finished; another call resumes)"

    # The result

    def _note_missing_texts(self, texts: int) -> None:
        """Where there are too few texts for any verdict: say how many minutes more would decide, and the command.

        Args:
            texts: that represent the data and were examined.
        """
        most = count_representative(self.table["turn"][: self.budget.text_limit])
        few = f"1 {self.plan.noun[:-1]} is" if texts == 1 else f"{texts} {self.plan.noun} are"
        if texts >= MIN_EXAMPLES or self.write_error is not None:
            return
        if most < MIN_EXAMPLES:
            is_limited = self.budget.text_limit < self.budget.texts
            note = (
                f"{few} too few, {MIN_EXAMPLES} are needed: {'allow more with --texts' if is_limited else 'add more'}"
            )
            self.say(f"No verdicts: {note}")
            if texts < most:
                self.plan.left_out[VERDICTS] = note
            return
        minutes = self.budget.minutes_of(self.budget.seconds(self.budget.missing(self.budget.target_blocks())))
        note = (
            f"{few} too few, {MIN_EXAMPLES} are needed; about {more_minutes(minutes)} would "
            f"decide: repeat the command with --minutes {minutes} (in Python, minutes={minutes}); finished work is kept"
        )
        self.plan.left_out[VERDICTS] = note
        self.say(f"No verdicts yet: {note}")

    def _result(self) -> tuple[AuditAnalysis, Audit]:
        self._check_unchanged()
        self._leave_out_again()
        main, full = self.budget.finished_blocks(self.further)
        if not main and self.interrupted:
            raise KeyboardInterrupt
        if not main:
            raise UserError(
                f"minutes={self.options.minutes:g} is too short for a first text; allow more "
                "minutes, or choose fewer methods; finished work is kept"
            )
        self.budget.drop_unfinished(main, full, self.further)
        texts = count_representative(self.table["turn"][: block_range(main[-1]).stop])
        self._note_missing_texts(texts)
        look = self.count_look(texts, sum(len(block_range(block)) for block in full))
        seconds = self.looks.state.seconds + self.budget.elapsed()
        analysis = AuditAnalysis(FinishedWork(self.plan, self.workspace, main, full), self.budget.costs, look, seconds)
        return analysis, analysis.result(minutes=self.options.minutes, finished=not self.interrupted)

    def count_look(self, texts: int, asked: int) -> int:
        """The number of this look, which is recorded before anybody sees its result; the same evidence is one look.

        Args:
            texts: that represent the data: no verdict is possible without enough of them.
            asked: texts of which all questions are asked.
        """
        evidence = hashlib.sha256(json.dumps([texts, asked, sorted(self.plan.methods)]).encode()).hexdigest()[:12]
        self.evidence = evidence
        number, self.budget.costs = self.looks.count(
            Look(texts, evidence),
            self.budget.costs,
            self.budget.elapsed(),
            self.failed,
            writable=self.write_error is None,
        )
        return number
