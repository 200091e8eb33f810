"""Running one cell again, as recorded or with something changed, and the experiments that show the cause of a miss."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from heedful.papers import PAPERS
from heedful.papers.chapter import Measurement, flat_settings
from heedful.papers.published import protocol_differences
from heedful.papers.workspace_results import workspace_results
from heedful.reproduction.ledger import (
    LedgerEntry,
    LedgerRecord,
    LedgerVerdict,
    Measured,
    Settings,
    dump_records,
    locked_ledger,
    parse_line,
    read_lines,
)
from heedful.reproduction.measurements import make_options, round_number
from heedful.store.atomic_write import replace_text
from heedful.store.recipe import Json, describe_recipe
from heedful.store.workspace import Workspace
from heedful.trials.trial import Trial
from heedful.types import UserError

EXPERIMENTS_FILE = "experiments.jsonl"
SAME_NUMBER = 1e-6
"""Relative difference up to which two numbers are the same: other versions add in another order."""
CHEAP_MINUTES = 1.0
"""What a recorded cell may have taken to be run again by `make reproduce-cheap`."""


class Experiment(LedgerEntry):
    """A second number for a cell, with one thing changed: it shows the cause of a miss.

    Args:
        cells: ids or patterns of the cells that it explains, the first one measured.
        cause: one sentence.
        changes: what was changed, options of the paper or settings of the recipe by their dotted path.
        before: our recorded number.
        after: our number with the change.
        verdict: of the number with the change.
    """

    id: str
    cells: tuple[str, ...]
    cause: str
    changes: Settings
    command: str
    print: float
    before: float | None
    after: float | None
    verdict: LedgerVerdict

    def explains(self, cell: str) -> bool:
        """Whether it is about this cell."""
        return any(cell == pattern or fnmatchcase(cell, pattern) for pattern in self.cells)


def find_record(records: Sequence[LedgerRecord], cell: str) -> LedgerRecord:
    """The record of a cell; UserError with the remedy if there is none."""
    for record in records:
        if record.id == cell:
            return record
    raise UserError(f"unknown cell {cell!r}; `heedful reproduce PAPER --list` shows the ids")


def cell_settings(record: LedgerRecord) -> Settings:
    """The options that give a cell: those of the record, else the paper's defaults on its model."""
    if record.run is not None:
        return dict(record.run.settings)
    name = record.name
    known = {entry.name for entry in fields(PAPERS[name.paper].options)}
    settings: Settings = {"corpora": [name.corpus.replace("*", "1")]}
    if name.attention == "self":
        return {**settings, "checkpoints": ["minilm"]}
    if "encoders" in known and name.encoder and name.trial != "guided-model":
        settings["encoders"] = [name.encoder]
    if "attentions" in known and name.attention:
        settings["attentions"] = [name.attention]
    return settings


def cell_recipes(record: LedgerRecord, settings: Settings, workspace: Workspace) -> list[Trial]:
    """The trials of the paper that give a cell, one per seed; UserError if none does."""
    paper = record.name.paper
    options = make_options(paper, settings, workspace.data_dir)
    trials = [recipe for recipe in options.recipes() if isinstance(recipe, Trial) and recipe.name == record.trial]
    fitting = [trial for trial in trials if not protocol_differences(trial.name, paper, _flat(trial, workspace))]
    if not fitting:
        raise UserError(f"{record.id}: {record.obstacle or 'its recipe is not part of the command of the paper'}")
    return fitting


def _flat(trial: Trial, workspace: Workspace) -> dict[str, Json]:
    return flat_settings(dict(describe_recipe(trial, workspace.data_dir)))


def measure_cell(record: LedgerRecord, trials: Sequence[Trial], workspace: Workspace) -> Measured:
    """Our number of a cell from finished trials, by whatever protocol they were made."""
    papers = {workspace.artefact_name(trial): record.name.paper for trial in trials}
    (result,) = workspace_results(workspace.scan()[0], papers)
    measured = PAPERS[record.name.paper].measure(result)
    number = measured.get(record.name) or result.measurement(*record.name.key, minus=record.minus)
    return round_number(number or Measurement(None))


def parse_changes(paper: str, texts: Sequence[str]) -> Settings:
    """Changed options and settings from NAME=VALUE; values are read as JSON where they are JSON.

    >>> parse_changes("jain-wallace", ["embeddings=random", "subject.training.epochs=4", "encoders=bilstm"])
    {'embeddings': 'random', 'subject.training.epochs': 4, 'encoders': ['bilstm']}
    """
    lists = {entry.name for entry in fields(PAPERS[paper].options) if isinstance(entry.default, tuple)}
    changes: Settings = {}
    for text in texts:
        name, sign, written = text.partition("=")
        if not sign or not name:
            raise UserError(f"--with {text!r}: give NAME=VALUE, for instance --with embeddings=random")
        try:
            value = json.loads(written)
        except ValueError:
            value = written
        changes[name] = [value] if name in lists and not isinstance(value, list) else value
    return changes


def changed_recipes(record: LedgerRecord, changes: Settings, workspace: Workspace) -> list[Trial]:
    """The trials of a cell with changed options (plain names) and changed settings (dotted paths)."""
    known = {entry.name for entry in fields(PAPERS[record.name.paper].options)}
    options = {name: value for name, value in changes.items() if name in known}
    base = cell_settings(record)
    paper = record.name.paper
    names = {workspace.artefact_name(trial) for trial in cell_recipes(record, base, workspace)}
    trials = [
        recipe
        for recipe in make_options(paper, {**base, **options}, workspace.data_dir).recipes()
        if isinstance(recipe, Trial) and recipe.name == record.trial
    ]
    # An option may change what the published protocol fixes; of several variants of a trial, those that fit are taken.
    fitting = [trial for trial in trials if not protocol_differences(trial.name, paper, _flat(trial, workspace))]
    changed = [
        _with_settings(trial, {name: value for name, value in changes.items() if name not in known})
        for trial in fitting or trials
    ]
    if {workspace.artefact_name(trial) for trial in changed} <= names:
        raise UserError(f"--with {', '.join(changes)}: changes nothing for {record.id}; name another setting")
    return changed


def _with_settings(trial: Trial, changes: Settings) -> Trial:
    for path, value in changes.items():
        changed = replace_setting(trial, path.split("."), tuple(value) if isinstance(value, list) else value)
        assert isinstance(changed, Trial)
        trial = changed
    return trial


def replace_setting(owner: object, path: Sequence[str], value: object) -> object:
    """A recipe with one setting replaced; UserError if there is no such setting, or one of another type.

    Args:
        path: names of fields from the outermost to the innermost, for instance `["subject", "training", "epochs"]`.
    """
    name, *rest = path
    if not is_dataclass(owner) or isinstance(owner, type) or name not in {entry.name for entry in fields(owner)}:
        known = ", ".join(entry.name for entry in fields(owner)) if is_dataclass(owner) else "none"
        raise UserError(f"--with: unknown setting {name!r}; choose from {known}")
    old = getattr(owner, name)
    if rest:
        return replace(owner, **{name: replace_setting(old, rest, value)})
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if old is not None and value is not None and type(value) is not type(old):
        raise UserError(f"--with {name}={value}: give a value like {old!r}")
    return replace(owner, **{name: value})


def judge_number(record: LedgerRecord, ours: Measured) -> LedgerVerdict:
    """What the ledger would say about another number of ours."""
    return record.model_copy(update={"ours": ours}).judge()


def make_experiment(
    record: LedgerRecord, changes: Settings, after: Measured, cause: str, explained: Sequence[str], command: str
) -> Experiment:
    """The record of an experiment on a cell."""
    changed = ",".join(f"{name}={value}" for name, value in changes.items())
    return Experiment(
        id=f"{record.id} with {changed}",
        cells=tuple(dict.fromkeys((record.id, *explained))),
        cause=cause,
        changes=changes,
        command=command,
        print=record.print,
        before=None if record.ours is None else record.ours.value,
        after=after.value,
        verdict=judge_number(record, after),
    )


def read_experiments(folder: Path) -> list[Experiment]:
    """All experiments of a ledger."""
    path = folder / EXPERIMENTS_FILE
    return [parse_line(Experiment, line, path, number) for number, line in read_lines(path)]


def add_experiment(folder: Path, experiment: Experiment) -> None:
    """Add an experiment to the ledger, in place of an earlier one with the same id."""
    path = folder / EXPERIMENTS_FILE
    with locked_ledger(folder, path):
        kept = {entry.id: entry for entry in read_experiments(folder)} | {experiment.id: experiment}
        replace_text(path, dump_records(entry for _, entry in sorted(kept.items())))


def is_same_number(record: LedgerRecord, ours: Measured) -> bool:
    """Whether a repeated run gave the recorded number.

    The same recipe gives the same bytes on one machine. Another machine adds in another order, which a training
    amplifies: there, a number within the recorded standard deviation over seeds counts as the same.
    """
    old = record.ours
    if old is None or old.value is None or ours.value is None:
        return old is not None and old.value == ours.value
    return math.isclose(old.value, ours.value, rel_tol=SAME_NUMBER, abs_tol=max(SAME_NUMBER, old.std or 0.0))


def cheap_runs(records: Sequence[LedgerRecord]) -> dict[tuple[str, ...], list[LedgerRecord]]:
    """The recorded cells that took less than a minute, by the artefacts that have their numbers."""
    runs: dict[tuple[str, ...], list[LedgerRecord]] = {}
    for record in records:
        if record.run is not None and record.run.minutes is not None and record.run.minutes < CHEAP_MINUTES:
            runs.setdefault(record.run.artefacts, []).append(record)
    return runs
