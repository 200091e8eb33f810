"""The ledger: one record per published number in `reproduction/PAPER.jsonl`, in the order of the published tables.

Records are written by commands only. Every writing derives tolerances and judgements anew from the package's tables.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from heedful.papers.published import CellName
from heedful.papers.published_cells import PublishedCell, published_cells
from heedful.papers.tolerances import Limit
from heedful.store.atomic_write import refuse_write_errors, replace_text
from heedful.table_view import Band
from heedful.types import UserError

Settings = dict[str, bool | int | float | str | list[str | int | float]]
"""Options of a paper by name."""
LEDGER_FOLDER = Path("reproduction")
NOT_RUN_YET = "not run yet"
LedgerVerdict = Literal["inside", "outside", "powerless", "undefined", "not judged", "not run"]


OUR_TRIALS = {
    "agreement-table-2": "agreement",
    "attefa-seeds": "attefa",
    "corpus": "performance",
    "simulability-normalizers": "simulability",
}
"""The trials that measure what is published under other names."""


class LedgerEntry(BaseModel):
    """A value of the ledger: unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_Line = TypeVar("_Line", bound=LedgerEntry)


class Measured(LedgerEntry):
    """Our number.

    Args:
        value: the mean over seeds; None where it is undefined.
        std: the standard deviation over seeds; None for a single seed.
        seeds: models that were trained for it.
        n: observations behind it, most often texts.
        reference: our number of the method that is subtracted before a band applies.
    """

    value: float | None = None
    std: float | None = None
    seeds: int = 1
    n: float | None = None
    reference: float | None = None


class MeasuredRun(LedgerEntry):
    """How a number of ours was made.

    Args:
        settings: the options of the paper that give its recipes, without defaults.
        trial: the trial that measured it.
        artefacts: names of its artefacts in the workspace, which are fingerprints of recipe and data.
        commit: of the code that wrote the record; "+changes" if files differed from it.
        data: the first digits of the digest of the corpus.
        minutes: of the trial and of the models and attributions that it needs, where that was recorded.
    """

    command: str
    settings: Settings
    trial: str
    artefacts: tuple[str, ...]
    commit: str | None = None
    data: str | None = None
    embeddings: str | None = None
    minutes: float | None = None
    date: str | None = None
    heedful: str | None = None
    torch: str | None = None


class LedgerRecord(LedgerEntry):
    """One published number, with ours where it was run.

    Args:
        id: paper, trial, corpus, encoder, attention, metric, method and subset.
        tolerance: the largest acceptable difference from the print.
        low: lower bound of a band in place of a tolerance; None if it is open.
        minus: the method whose number is subtracted before the band applies.
        source: the check of our specification that fixed the tolerance or band.
        reason: why the number is not judged.
        obstacle: why it was not run.
    """

    id: str
    table: str
    print: float
    tolerance: float | None = None
    low: float | None = None
    high: float | None = None
    minus: str = ""
    source: str = ""
    reason: str = ""
    verdict: LedgerVerdict
    obstacle: str = ""
    ours: Measured | None = None
    run: MeasuredRun | None = None

    @property
    def name(self) -> CellName:
        """The parts of the id."""
        return CellName(*self.id.split("/"))

    @property
    def trial(self) -> str:
        """The trial of ours that measures the number."""
        return OUR_TRIALS.get(self.name.trial, self.name.trial)

    @property
    def row(self) -> str:
        """The model and the part of its texts."""
        name = self.name
        return ", ".join(filter(None, (name.corpus, name.encoder, name.attention, name.subset)))

    @property
    def column(self) -> str:
        """What was measured, and the method."""
        return " ".join(filter(None, (self.name.metric, self.name.method)))

    @property
    def limit(self) -> Limit:
        """The tolerance or band."""
        bounds = {side: value for side, value in (("low", self.low), ("high", self.high)) if value is not None}
        return Limit(self.tolerance, Band(**bounds) if bounds else None, self.minus, self.source, self.reason)

    def judge(self) -> LedgerVerdict:
        """The verdict that follows from the numbers."""
        if self.ours is None:
            return "not run"
        if not self.limit.is_judged:
            return "not judged"
        comparison = self.limit.compare(self.ours.value, self.print, self.ours.reference)
        return comparison.judgement or "undefined"


def read_settings(options: Mapping[str, object]) -> Settings:
    """The options of a command as a record holds them."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return TypeAdapter(Settings).validate_python(plain)


def make_record(cell: PublishedCell, ours: Measured | None = None, run: MeasuredRun | None = None) -> LedgerRecord:
    """The record of a published cell with our number, if there is one."""
    limit = cell.limit
    band = limit.band or Band()
    bounds = {side: value for side, value in (("low", band.low), ("high", band.high)) if abs(value) != float("inf")}
    record = LedgerRecord(
        id=cell.id,
        table=cell.table,
        print=cell.printed,
        tolerance=limit.tolerance,
        low=bounds.get("low"),
        high=bounds.get("high"),
        minus=limit.minus,
        source=limit.source,
        reason=limit.reason,
        verdict="not run",
        obstacle="" if ours is not None else cell.obstacle or NOT_RUN_YET,
        ours=ours,
        run=run,
    )
    return record.model_copy(update={"verdict": record.judge()})


def ledger_file(folder: Path, paper: str) -> Path:
    """The file of a paper."""
    return folder / f"{paper}.jsonl"


def read_ledger(folder: Path, paper: str) -> list[LedgerRecord]:
    """The records of a paper; those of an empty ledger if the file is missing."""
    path = ledger_file(folder, paper)
    if not path.exists():
        return [make_record(cell) for cell in published_cells(paper)]
    return [parse_line(LedgerRecord, line, path, number) for number, line in read_lines(path)]


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The numbered lines of a file of records; none if the file is missing."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); restore it from the repository") from error
    return [*enumerate(text.splitlines(), start=1)]


def parse_line(kind: type[_Line], line: str, path: Path, number: int) -> _Line:
    """A record from its line; UserError with the place of a mistake."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        what = error.errors()[0]
        where = ".".join(map(str, what["loc"]))
        raise UserError(
            f"{path}, line {number}: {where}: {what['msg']}; restore the file from the repository"
        ) from error


@contextmanager
def locked_ledger(folder: Path, path: Path) -> Iterator[None]:
    """Hold the lock of a ledger while one of its files is written; disk errors become one line."""
    with refuse_write_errors(f"the ledger to {path}", "choose another folder with --ledger"):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            yield


def update_ledger(folder: Path, paper: str, measured: Mapping[str, tuple[Measured, MeasuredRun]]) -> list[LedgerRecord]:
    """Replace the records of the measured cells (by id), keep our numbers of all others, and write the file.

    Two commands may write at the same time: the second one waits, and merges into what the first has written.
    """
    path = ledger_file(folder, paper)
    with locked_ledger(folder, path):
        kept = {record.id: record for record in read_ledger(folder, paper)}
        records = []
        for cell in published_cells(paper):
            old = kept.get(cell.id)
            ours, run = measured.get(cell.id, (None, None) if old is None else (old.ours, old.run))
            records.append(make_record(cell, ours, run))
        replace_text(path, dump_records(records))
    return records


def dump_records(records: Iterable[BaseModel]) -> str:
    """One line of compact JSON per record, without empty fields."""
    contents = (record.model_dump(mode="json", exclude_defaults=True) for record in records)
    return "".join(json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n" for content in contents)


def count_verdicts(records: Sequence[LedgerRecord]) -> Counter[str]:
    """How many records have each verdict."""
    return Counter(record.verdict for record in records)


def share_inside(records: Sequence[LedgerRecord]) -> str:
    """How many of the numbers that were run and can fail are inside, in words."""
    counts = count_verdicts(records)
    judged = counts["inside"] + counts["outside"] + counts["undefined"]
    run = len(records) - counts["not run"]
    return f"{counts['inside']} of {judged} inside ({run} of {len(records)} published numbers run)"
