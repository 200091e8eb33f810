"""The answers of a study on disk: SQLite in the study's folder, or PostgreSQL by URL.

An answer is acknowledged only when its transaction is committed and flushed to disk (WAL with `synchronous=FULL`;
PostgreSQL's default). A person has one answer per page, which is changed only by a request that names its revision: a
double click, or a request that is repeated after a lost connection, is one answer. What is stored are positions on the
page, not methods, and times to the minute; nothing about who a person is. Every answer has a checksum: one that is
damaged is not counted, and its page is shown to the person again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from heedful.store.csv_text import csv_cell
from heedful.study.answers import Ranking, Simulation, StudyAnswers
from heedful.study.checksum import row_checksum
from heedful.study.database_url import parse_database_url
from heedful.study.design import (
    CONTROL,
    KEYS_FILE,
    Slot,
    Study,
    StudyKeys,
    StudyTask,
    read_keys,
    read_study,
    token_digest,
)
from heedful.types import UserError, user_path

DATABASE_FILE = "answers.sqlite"
MAX_SECONDS = 3600.0
"""Longer times on a page are not times of work."""
THREADS = 32
"""Requests that are worked on at a time; answers among them share their wait for the disk."""
_WRITES = "heedful_writes"
_schema = sql.MetaData()
_people = sql.Table(
    "heedful_people",
    _schema,
    sql.Column("study", sql.String(16), primary_key=True),
    sql.Column("person", sql.String(16), primary_key=True),
    sql.Column("consented", sql.Integer, nullable=True),
    sql.Column("seen", sql.Integer, nullable=True),
    sql.Column("erased", sql.Boolean, nullable=False),
)
_answers = sql.Table(
    "heedful_answers",
    _schema,
    sql.Column("study", sql.String(16), primary_key=True),
    sql.Column("person", sql.String(16), primary_key=True),
    sql.Column("slot", sql.Integer, primary_key=True),
    sql.Column("content", sql.Text, nullable=False),
    sql.Column("seconds", sql.Float, nullable=False),
    sql.Column("revision", sql.Integer, nullable=False),
    sql.Column("minute", sql.Integer, nullable=False),
    sql.Column("checksum", sql.String(32), nullable=True),
)
_CHECKSUM_COLUMN = "checksum"
"""The column that databases of earlier versions do not have; it is added to them."""
_RECORD = sql.text(
    "INSERT INTO heedful_answers (study, person, slot, content, seconds, revision, minute, checksum) "
    "VALUES (:study, :person, :slot, :content, :seconds, :revision, :minute, :checksum) "
    "ON CONFLICT (study, person, slot) DO UPDATE SET content = excluded.content, seconds = excluded.seconds, "
    "revision = excluded.revision, minute = excluded.minute, checksum = excluded.checksum"
)
# Two first requests of one person may come at once.
_JOIN = sql.text(
    "INSERT INTO heedful_people (study, person, consented, seen, erased) "
    "VALUES (:study, :person, :consented, :consented, :erased) ON CONFLICT DO NOTHING"
)
_ANSWER_QUERY = "SELECT person, slot, content, seconds, revision, minute, checksum FROM heedful_answers"
_ANSWER = sql.text(f"{_ANSWER_QUERY} WHERE study = :study AND person = :person AND slot = :slot")
_ANSWERS = sql.text(f"{_ANSWER_QUERY} WHERE study = :study")
_PERSON_QUERY = "SELECT consented, seen, erased FROM heedful_people WHERE study = :study AND person = :person"
_PERSON, _LOCKED = sql.text(_PERSON_QUERY), sql.text(f"{_PERSON_QUERY} FOR UPDATE")
_STATE = sql.text(
    "SELECT p.consented, p.seen, p.erased, a.person, a.slot, a.content, a.seconds, a.revision, a.minute, a.checksum "
    "FROM heedful_people p LEFT JOIN heedful_answers a ON a.study = p.study AND a.person = p.person "
    "WHERE p.study = :study AND p.person = :person"
)
_Row = sql.Row[tuple[object, ...]]


class Recorded(Enum):
    """What became of an answer."""

    STORED = "stored"
    KNOWN = "known"
    """The same answer is stored already."""
    KEPT = "kept"
    """Another answer to this page was stored before, and was kept."""
    REFUSED = "refused"
    """The person has not consented, or has withdrawn."""


@dataclass(frozen=True)
class StoredAnswer:
    """One answer of one person: the ranks in the order of the page, or a guess."""

    content: str
    seconds: float
    revision: int
    minute: int = 0

    @property
    def ranks(self) -> list[int]:
        stored = json.loads(self.content).get("ranks", [])
        return [int(rank) for rank in stored]

    @property
    def guess(self) -> str:
        return str(json.loads(self.content).get("guess", ""))


@dataclass
class _PendingAnswer:
    """An answer on its way to the disk, and what became of it."""

    values: Mapping[str, str | int | float]
    result: Recorded | None = None
    error: SQLAlchemyError | None = None


@dataclass(frozen=True)
class PersonState:
    """How far a person is: consent, the answers by page, and the minute of the last request that wrote something.

    Args:
        damaged: number of stored answers whose checksum does not match; they are not among the answers.
    """

    consented: bool = False
    erased: bool = False
    seen: int | None = None
    answers: Mapping[int, StoredAnswer] = field(default_factory=dict)
    damaged: int = 0


class AnswerStore:
    """The answers of one study in a database.

    Args:
        study: distinguishes the studies of one database.
    """

    def __init__(self, url: str, study: str) -> None:
        self.study = study
        self._engine = _open(url)
        # SQLite has one writer: waiting here is fair and quick, waiting in SQLite is a loop of sleeps.
        self._turn = threading.Lock() if self._engine.dialect.name == "sqlite" else nullcontext()
        self._pending: list[_PendingAnswer] = []
        self._pending_lock = threading.Lock()
        with _one_line():
            self._prepare()

    def _prepare(self) -> None:
        """Create the tables, or add what an earlier version did not have; UserError if they are not of a study."""
        with self._engine.connect() as connection:
            _check_integrity(connection)
            layouts = {table.name: _layout(connection, table) for table in _schema.sorted_tables}
        if set(layouts.values()) != {_Layout.CURRENT}:
            with self._writing() as connection:
                if _layout(connection, _answers) is _Layout.WITHOUT_CHECKSUMS:
                    _add_checksums(connection)
                _schema.create_all(connection)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sql.Connection]:
        with self._engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sql.Connection]:
        with self._turn, self._transaction() as connection:
            yield connection

    def consent(self, person: str) -> bool:
        """Remember that a person agreed; False after a withdrawal."""
        new = {"study": self.study, "person": person, "consented": _minute(), "erased": False}
        with self._writing() as connection:
            connection.execute(_JOIN, new)
            state = self._person(connection, person)
            return state is not None and not state.erased

    def record(self, person: str, slot: int, content: str, seconds: float, revision: int = 0) -> Recorded:
        """Store an answer; when this returns it is on disk.

        Args:
            revision: of the answer that is changed; 0 for a first answer.
        """
        values: dict[str, str | int | float] = {
            "study": self.study,
            "person": person,
            "slot": slot,
            "content": content,
            "seconds": round(min(max(seconds, 0.0), MAX_SECONDS), 1),
            "minute": _minute(),
            "expected": revision,
        }
        if self._engine.dialect.name != "sqlite":
            with self._writing() as connection:
                return self._record(connection, values)
        return self._record_together(_PendingAnswer(values))

    def _record_together(self, answer: _PendingAnswer) -> Recorded:
        """Store what several threads want to store in one transaction: one wait for the disk serves them all.

        Whoever gets the turn stores all that is pending; who waited for it finds its own answer stored. Nobody returns
        before the transaction is committed.
        """
        with self._pending_lock:
            self._pending.append(answer)
        with self._turn:
            if answer.result is None and answer.error is None:
                with self._pending_lock:
                    batch, self._pending = self._pending, []
                self._store_batch(batch)
        if answer.error is not None:
            raise answer.error
        assert answer.result is not None
        return answer.result

    def _store_batch(self, batch: Sequence[_PendingAnswer]) -> None:
        try:
            with self._transaction() as connection:
                results = [self._record(connection, answer.values) for answer in batch]
        except SQLAlchemyError as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for answer in batch:  # one that cannot be stored does not keep the others out
                self._store_batch([answer])
        else:
            for answer, result in zip(batch, results, strict=True):
                answer.result = result

    def _record(self, connection: sql.Connection, values: Mapping[str, str | int | float]) -> Recorded:
        person = str(values["person"])
        state = self._person(connection, person, lock=True)
        if state is None or state.erased or state.consented is None:
            return Recorded.REFUSED
        # The person's row is locked (SQLite: everything): what is read here is what is replaced.
        stored = connection.execute(_ANSWER, values).one_or_none()
        seconds, revision = values["seconds"], 1
        if stored is not None and _is_intact(self.study, stored):
            if stored.content == values["content"]:
                return Recorded.KNOWN
            if stored.revision != values["expected"]:
                return Recorded.KEPT
            seconds, revision = round(stored.seconds + float(values["seconds"]), 1), stored.revision + 1
        row = {**values, "seconds": seconds, "revision": revision}
        checksum = row_checksum(self.study, person, row["slot"], row["content"], seconds, revision, row["minute"])
        connection.execute(_RECORD, {**row, _CHECKSUM_COLUMN: checksum})
        if state.seen != values["minute"]:
            connection.execute(_people.update().where(*self._key(person)).values(seen=values["minute"]))
        return Recorded.STORED

    def erase(self, person: str) -> int:
        """Delete all answers and times of a person, whose link ends; the number of answers that there were."""
        with self._writing() as connection:
            connection.execute(_JOIN, {"study": self.study, "person": person, "consented": None, "erased": True})
            # The row of the person is locked before the answers are deleted: none comes in between.
            connection.execute(
                _people.update().where(*self._key(person)).values(erased=True, consented=None, seen=None)
            )
            of_person = (_answers.c.study == self.study, _answers.c.person == person)
            count = connection.execute(_answers.delete().where(*of_person)).rowcount
        if self._engine.dialect.name == "sqlite":  # the log would keep the old pages for a while
            with self._turn, self._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def state(self, person: str) -> PersonState:
        """How far a person is."""
        with self._engine.connect() as connection:
            rows = connection.execute(_STATE, {"study": self.study, "person": person}).all()
        if not rows:
            return PersonState()
        answers, damaged = self._intact([row for row in rows if row.slot is not None])
        return PersonState(rows[0].consented is not None, bool(rows[0].erased), rows[0].seen, answers, damaged)

    def states(self) -> dict[str, PersonState]:
        """How far everybody is who has begun; also of whom there is nothing but a damaged answer."""
        rows: dict[str, list[_Row]] = {}
        with self._engine.connect() as connection:
            people = connection.execute(sql.select(_people).where(_people.c.study == self.study)).all()
            for row in connection.execute(_ANSWERS, {"study": self.study}):
                rows.setdefault(str(row.person), []).append(row)
        by_person = {person: PersonState(damaged=self._intact(those)[1]) for person, those in rows.items()}
        for row in people:
            answers, damaged = self._intact(rows.get(row.person, []))
            by_person[row.person] = PersonState(row.consented is not None, row.erased, row.seen, answers, damaged)
        return by_person

    def _intact(self, rows: Sequence[_Row]) -> tuple[dict[int, StoredAnswer], int]:
        """By page the answers whose checksum matches, and the number of the others."""
        intact = [row for row in rows if _is_intact(self.study, row)]
        answers = {row.slot: StoredAnswer(row.content, row.seconds, row.revision, row.minute) for row in intact}
        return answers, len(rows) - len(intact)

    def _key(self, person: str) -> tuple[sql.ColumnElement[bool], sql.ColumnElement[bool]]:
        return _people.c.study == self.study, _people.c.person == person

    def _person(self, connection: sql.Connection, person: str, *, lock: bool = False) -> _Row | None:
        # SQLite has locked everything already, PostgreSQL locks the row until the transaction ends.
        locks = lock and self._engine.dialect.name != "sqlite"
        return connection.execute(_LOCKED if locks else _PERSON, {"study": self.study, "person": person}).one_or_none()


def _is_intact(study: str, row: _Row) -> bool:
    expected = row_checksum(study, row.person, row.slot, row.content, row.seconds, row.revision, row.minute)
    return bool(row.checksum == expected)


class _Layout(Enum):
    """How a table of the database is laid out."""

    MISSING = "missing"
    WITHOUT_CHECKSUMS = "without checksums"
    CURRENT = "current"


def _layout(connection: sql.Connection, table: sql.Table) -> _Layout:
    """UserError if the table has other columns or keys than any version of heedful gave it."""
    inspector = sql.inspect(connection)
    if not inspector.has_table(table.name):
        return _Layout.MISSING
    columns = {column["name"] for column in inspector.get_columns(table.name)}
    expected = {column.name for column in table.columns}
    keys = {column.name for column in table.primary_key}
    different = sorted(columns ^ expected | set(inspector.get_pk_constraint(table.name)["constrained_columns"]) ^ keys)
    if not different:
        return _Layout.CURRENT
    if different == [_CHECKSUM_COLUMN] and table is _answers and _CHECKSUM_COLUMN not in columns:
        return _Layout.WITHOUT_CHECKSUMS
    raise UserError(
        f"--database: its table {table.name} has another schema (column {different[0]}): name another database, or use "
        "the version of heedful that made it"
    )


def _add_checksums(connection: sql.Connection) -> None:
    """Add the checksums to a database of a version that had none: its answers are taken as they are."""
    connection.exec_driver_sql(f"ALTER TABLE {_answers.name} ADD COLUMN {_CHECKSUM_COLUMN} VARCHAR(32)")
    for row in connection.execute(sql.text(f"SELECT * FROM {_answers.name}")).all():
        values = (row.slot, row.content, row.seconds, row.revision, row.minute)
        key = (_answers.c.study == row.study, _answers.c.person == row.person, _answers.c.slot == row.slot)
        checksum = row_checksum(row.study, row.person, *values)
        connection.execute(_answers.update().where(*key).values(checksum=checksum))


def _check_integrity(connection: sql.Connection) -> None:
    """UserError if the file of a SQLite database is damaged."""
    if connection.dialect.name == "sqlite":
        result = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        if result != "ok":
            reason = " ".join(result.split())
            raise UserError(f"the database is damaged ({reason}): restore its file from a backup")


def _minute() -> int:
    return int(time.time()) // 60 * 60


def _open(url: str) -> sql.Engine:
    """The database, set up so that what is committed is on disk."""
    parsed = parse_database_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite":
        _create_private_file(Path(str(parsed.database).removeprefix("file:")))
    try:
        engine = sql.create_engine(
            parsed, pool_pre_ping=parsed.get_backend_name() != "sqlite", pool_size=THREADS, max_overflow=THREADS
        )
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise UserError(f"--database: {parsed.drivername} is not a known driver; write postgresql://...") from error
    except ModuleNotFoundError as error:
        raise UserError("PostgreSQL needs a driver: pip install 'heedful[postgresql]'") from error
    if engine.dialect.name == "sqlite":
        sql.event.listen(engine, "connect", _set_up_sqlite)
        sql.event.listen(engine, "begin", _begin_sqlite)
    else:
        sql.event.listen(engine, "begin", _begin_postgresql)
    return engine


def _create_private_file(path: Path) -> None:
    """Create the file of a database, if there is none, so that only its owner can read it.

    SQLite gives its write-ahead log and its shared memory the same permissions.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise UserError(f"--database: cannot write {path} ({error.strerror}); name another file") from error


def _set_up_sqlite(connection: object, _: object) -> None:
    import sqlite3

    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # SQLAlchemy begins transactions itself, see below
    connection.text_factory = lambda text: text.decode("utf-8", "replace")  # a damaged text does not hide the others
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",  # every commit waits for the disk
        "busy_timeout=10000",
        "secure_delete=ON",  # what is erased is overwritten
    ):
        connection.execute(f"PRAGMA {setting}").close()


def _begin_postgresql(connection: sql.Connection) -> None:
    """Commits wait for the disk, whatever the server's own setting."""
    connection.exec_driver_sql("SET LOCAL synchronous_commit = on")


def _begin_sqlite(connection: sql.Connection) -> None:
    """Writers take the lock at once: a reader that becomes a writer could fail."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _one_line() -> Iterator[None]:
    """Errors of the database as one line."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise UserError(f"the database cannot be used: {reason}; check --database and whether it runs") from error


def open_store(folder: Path, study: Study, keys: StudyKeys, database: str = "") -> AnswerStore:
    """The answers of a study: of the given URL, of the one in the study, or of the file in its folder."""
    if set(keys.people.values()) != set(study.plans):
        raise UserError(f"{folder / KEYS_FILE} has the keys of another study: restore it from a backup")
    url = database or study.database
    if not url:
        path = (folder / DATABASE_FILE).resolve()
        _make_private(path)
        url = f"sqlite:///{path}"
    return AnswerStore(url, keys.admin[:16])


def _make_private(path: Path) -> None:
    """Take the files of a database that an earlier version created from the eyes of others."""
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(OSError):  # there is none, or it belongs to somebody else
            if name.stat().st_mode & 0o077:
                name.chmod(0o600)


def study_origin(path: Path) -> str:
    """Tells a study apart from others of its name: its keys, or where its exported answers are."""
    if path.is_file():
        return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return read_keys(path).admin[:16]


def load_answers(folder: str | Path, database: str = "") -> StudyAnswers:
    """Everything that people answered, for the statistics.

    Args:
        folder: of the study; a file that was exported as JSON is read as it is.
        database: URL, if the answers are not in the study's own database.
    """
    path = user_path(folder)
    if path.is_file():
        return StudyAnswers.from_json(path.read_bytes())
    study = read_study(path)
    store = open_store(path, study, read_keys(path), database)
    try:
        with _one_line():
            return collect_answers(study, store.states())
    finally:
        store.close()


def collect_answers(study: Study, states: Mapping[str, PersonState]) -> StudyAnswers:
    """The stored positions as ranks of methods, and the guesses with what the model predicted."""
    predicted = {item.uid: item.predicted for item in study.items}
    rankings, simulations = [], []
    for person, slot, answer in _paired(study, states):
        if slot.task is StudyTask.RANK:
            ranks = {str(method): rank for method, rank in zip(slot.maps, answer.ranks, strict=True)}
            worst = CONTROL if CONTROL in ranks else None
            rankings.append(Ranking(person, slot.item, slot.occasion, ranks, answer.seconds, worst))
        else:
            right = predicted[slot.item] if slot.asked is None else slot.asked
            method, guess = slot.maps[0], answer.guess
            simulations.append(Simulation(person, slot.item, slot.occasion, method, guess, right, answer.seconds))
    damaged = sum(state.damaged for state in states.values() if not state.erased)
    return StudyAnswers(study.methods, tuple(rankings), tuple(simulations), study.max_failed_checks, damaged)


def _paired(study: Study, states: Mapping[str, PersonState]) -> Iterator[tuple[str, Slot, StoredAnswer]]:
    """Each answer with its page, by person and page."""
    for person, plan in study.plans.items():
        state = states.get(person)
        if state is not None and not state.erased:
            for number, slot in enumerate(plan):
                if number in state.answers:
                    yield person, slot, state.answers[number]


def answers_csv(answers: StudyAnswers) -> str:
    """One row per map that was ranked and per guess."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["task", "person", "item", "occasion", "method", "rank", "guess", "predicted", "worst", "seconds"])
    for ranking in answers.rankings:
        about = ["rank", ranking.person, ranking.item, ranking.occasion.value]
        for method, rank in ranking.ranks.items():
            writer.writerow([*map(csv_cell, [*about, method, rank, "", "", ranking.worst or ""]), ranking.seconds])
    for guess in answers.simulations:
        cells = ["simulate", guess.person, guess.item, guess.occasion.value, guess.method or "none", ""]
        writer.writerow([*map(csv_cell, [*cells, guess.guess, guess.predicted, ""]), guess.seconds])
    return buffer.getvalue()


def erase_person(folder: Path, token: str, database: str = "") -> tuple[str, int]:
    """Delete the answers of the person with this link; the person's number and how many answers there were."""
    study, keys = read_study(folder), read_keys(folder)
    person = keys.people.get(token_digest(token.strip().rstrip("/").rpartition("/")[2]))
    if person is None:
        raise UserError(
            "no person of this study has this link: copy it from links.txt, or name the folder with --study"
        )
    store = open_store(folder, study, keys, database)
    try:
        with _one_line():
            return person, store.erase(person)
    finally:
        store.close()
