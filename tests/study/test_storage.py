"""Storage: one answer per page whatever is repeated, nothing lost in a kill, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from heedful.results import get_statistic
from heedful.study.answers import Occasion
from heedful.study.design import CONTROL, StudyOptions, StudyTask, read_keys, read_study, write_study
from heedful.study.items import build_study
from heedful.study.rating import rate_study
from heedful.study.storage import (
    AnswerStore,
    Recorded,
    _PendingAnswer,
    answers_csv,
    collect_answers,
    erase_person,
    load_answers,
    open_store,
)
from heedful.types import UserError
from tests.invented_studies import text_page


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server that lives for these tests."""
    pytest.importorskip("psycopg", reason="no driver of PostgreSQL: pip install 'heedful[postgresql]'")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not binaries:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = tmp_path_factory.mktemp("pg")
    become: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no runuser")
        become = ["runuser", "-u", "postgres", "--"]
        for path in (folder, *folder.parents):
            if path != Path("/") and path.owner() == "root" and str(path) != "/tmp":
                path.chmod(path.stat().st_mode | 0o055)
        shutil.chown(folder, "postgres")
    binary, data = binaries[-1].parent, folder / "data"
    quiet = {"check": True, "capture_output": True, "cwd": folder}
    subprocess.run([*become, str(binary / "initdb"), "-D", str(data), "-N", "-A", "trust", "-U", "h"], **quiet)  # type: ignore[call-overload]
    control = [*become, str(binary / "pg_ctl"), "-D", str(data), "-w"]
    started = ["-o", f"-c listen_addresses= -k {folder}", "-l", str(folder / "log"), "start"]
    subprocess.run([*control, *started], **quiet)  # type: ignore[call-overload]
    yield f"postgresql://h@/postgres?host={folder}"
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet)  # type: ignore[call-overload]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnswerStore]:
    url = f"sqlite:///{tmp_path / 'a.sqlite'}" if request.param == "sqlite" else request.getfixturevalue("postgresql")
    found = AnswerStore(url, tmp_path.name[-16:])
    yield found
    found.close()


def test_repeated_requests_are_one_answer(store: AnswerStore) -> None:
    assert store.record("p1", 0, '{"ranks":[1,2]}', 3.0) is Recorded.REFUSED  # no consent yet
    assert store.consent("p1")
    assert store.consent("p1")
    assert store.record("p1", 0, '{"ranks":[1,2]}', 3.0) is Recorded.STORED
    assert store.record("p1", 0, '{"ranks":[1,2]}', 9.0) is Recorded.KNOWN
    assert store.record("p1", 0, '{"ranks":[2,1]}', 9.0) is Recorded.KEPT
    answer = store.state("p1").answers[0]
    assert (answer.ranks, answer.seconds, answer.revision) == ([1, 2], 3.0, 1)
    # A change names the revision that it was made from; the same change twice is one change.
    assert store.record("p1", 0, '{"ranks":[2,1]}', 4.0, revision=1) is Recorded.STORED
    assert store.record("p1", 0, '{"ranks":[2,1]}', 4.0, revision=1) is Recorded.KNOWN
    assert store.record("p1", 0, '{"ranks":[1,1]}', 4.0, revision=1) is Recorded.KEPT
    answer = store.state("p1").answers[0]
    assert (answer.ranks, answer.seconds, answer.revision) == ([2, 1], 7.0, 2)


def test_many_at_once_store_each_answer_once(store: AnswerStore) -> None:
    results: list[Recorded] = []

    def work(person: str) -> None:
        store.consent(person)
        for slot in range(5):
            results.append(store.record(person, slot, f'{{"guess":"{slot}"}}', 1.0))

    threads = [threading.Thread(target=work, args=(f"p{number % 4}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == sorted(map(str, [Recorded.STORED] * 20 + [Recorded.KNOWN] * 20))
    assert {person: len(state.answers) for person, state in store.states().items()} == dict.fromkeys(
        ("p0", "p1", "p2", "p3"), 5
    )


def test_an_answer_that_cannot_be_stored_does_not_keep_the_others_of_its_transaction_out(tmp_path: Path) -> None:
    store = AnswerStore(f"sqlite:///{tmp_path / 'a.sqlite'}", "s")
    store.consent("p1")
    good = {"study": "s", "person": "p1", "content": "{}", "seconds": 1.0, "minute": 0, "expected": 0}
    batch = [_PendingAnswer({**good, "slot": slot, **({"seconds": None} if slot == 1 else {})}) for slot in range(3)]  # type: ignore[dict-item]
    store._store_batch(batch)
    assert [each.result for each in batch] == [Recorded.STORED, None, Recorded.STORED]
    assert isinstance(batch[1].error, IntegrityError)
    assert sorted(store.state("p1").answers) == [0, 2]
    store.close()


def test_who_is_erased_leaves_nothing_and_cannot_come_back(store: AnswerStore) -> None:
    for person in ("p1", "p2"):
        store.consent(person)
        store.record(person, 0, '{"guess":"secret"}', 1.0)
    assert store.erase("p1") == 1
    assert store.erase("p1") == 0
    assert not store.consent("p1")
    assert store.record("p1", 1, '{"guess":"again"}', 1.0) is Recorded.REFUSED
    states = store.states()
    assert states["p1"].erased
    assert not states["p1"].answers
    assert states["p1"].seen is None
    assert len(states["p2"].answers) == 1
    assert store.erase("p3") == 0  # before the first visit
    assert not store.consent("p3")


def test_the_bytes_of_erased_answers_are_gone(tmp_path: Path) -> None:
    store = AnswerStore(f"sqlite:///{tmp_path / 'a.sqlite'}", "s")
    store.consent("p1")
    store.record("p1", 0, '{"guess":"unmistakable"}', 1.0)
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    store.erase("p1")
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    store.close()
    assert b"unmistakable" in held
    assert b"unmistakable" not in left


def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    store = AnswerStore(f"sqlite:///{tmp_path / 'a.sqlite'}", "s")
    with store._writing() as connection:
        modes = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    store.close()
    assert modes == ["wal", 2]


def _write_forever(url: str, out: Connection) -> None:
    store = AnswerStore(url, "s")
    store.consent("p")
    for slot in range(100_000):
        store.record("p", slot, "{}", 1.0)
        out.send(slot)


@pytest.mark.slow
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path, context = tmp_path / "a.sqlite", multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    writer = context.Process(target=_write_forever, args=(f"sqlite:///{path}", sender))
    writer.start()
    sender.close()
    acknowledged = 0
    with suppress(EOFError):
        while True:
            receiver.recv()
            acknowledged += 1
            if acknowledged == 40:
                writer.kill()
    writer.join()
    connection = sqlite3.connect(path)
    stored = connection.execute("SELECT count(*), count(DISTINCT slot) FROM heedful_answers").fetchone()
    connection.close()
    assert stored[0] == stored[1]
    assert 40 <= acknowledged <= stored[0] <= acknowledged + 1


def test_positions_become_methods(tmp_path: Path) -> None:
    options = StudyOptions(items=8, per_person=8, people=2, task="both", checks=2, repeats=2)
    study = build_study(text_page(tmp_path / "p.html"), ["lime", "gradient", "random"], options)
    keys = write_study(study, tmp_path / "study", "http://x")
    store = open_store(tmp_path / "study", study, keys)
    person, plan = next(iter(study.plans.items()))
    store.consent(person)
    for number, slot in enumerate(plan):
        content = '{"ranks":[1,2,3]}' if slot.task is StudyTask.RANK else '{"guess":"positive"}'
        store.record(person, number, content, 2.0)
    answers = load_answers(tmp_path / "study")
    assert answers == collect_answers(study, store.states())
    ranked = [slot for slot in plan if slot.task is StudyTask.RANK]
    for each, slot in zip(answers.rankings, ranked, strict=True):
        assert each.ranks == dict(zip(slot.maps, (1, 2, 3), strict=True))
        assert each.worst == (CONTROL if slot.occasion is Occasion.CHECK else None)
    checks = [each for each in answers.simulations if each.occasion is Occasion.CHECK]
    assert [each.predicted for each in checks] == [slot.asked for slot in plan if slot.asked]
    (tmp_path / "export.json").write_text(answers.to_json())
    assert load_answers(tmp_path / "export.json") == answers
    lines = answers_csv(answers).splitlines()
    assert len(lines) == 1 + 3 * len(ranked) + len(answers.simulations)
    store.close()


def test_erase_by_link_and_what_is_no_link(tmp_path: Path) -> None:
    options = StudyOptions(items=8, per_person=5, people=2)
    folder = tmp_path / "study"
    write_study(build_study(text_page(tmp_path / "p.html"), ["lime", "random"], options), folder, "http://x")
    line = (folder / "links.txt").read_text().splitlines()[1]
    store = open_store(folder, read_study(folder), read_keys(folder))
    store.consent("p1")
    store.record("p1", 0, '{"ranks":[1,2]}', 1.0)
    store.close()
    assert erase_person(folder, line.split("\t")[1] + "\n") == ("p1", 1)
    assert load_answers(folder).rankings == ()
    with pytest.raises(UserError, match="no person"):
        erase_person(folder, "x" * 24)


def change_rows(store: AnswerStore, assignment: str, where: str) -> None:
    """Damage rows behind the back of the store."""
    with store._writing() as connection:
        statement = f"UPDATE heedful_answers SET {assignment} WHERE study = '{store.study}' AND {where}"
        assert connection.exec_driver_sql(statement).rowcount == 1


@pytest.mark.parametrize(
    "assignment",
    ["content = '{\"ranks\":[2,1]}'", "seconds = 4.5", "revision = 3", "minute = minute + 64", "person = 'p2'",
     "slot = 5", "checksum = NULL"],
)  # fmt: skip
def test_a_damaged_answer_is_counted_left_out_and_asked_for_again(store: AnswerStore, assignment: str) -> None:
    store.consent("p1")
    for slot in range(2):
        store.record("p1", slot, '{"ranks":[1,2]}', 3.0)
    change_rows(store, assignment, "slot = 0")
    states = store.states()
    assert sum(state.damaged for state in states.values()) == 1
    assert list(states["p1"].answers) == [1]
    if "person" not in assignment:
        assert (store.state("p1").damaged, list(store.state("p1").answers)) == (1, [1])
    assert store.record("p1", 0, '{"ranks":[2,1]}', 2.0) is Recorded.STORED
    answer = store.state("p1").answers[0]
    assert (answer.ranks, answer.seconds, answer.revision) == ([2, 1], 2.0, 1)


def test_a_flipped_bit_in_the_file_does_not_change_the_rating_silently(tmp_path: Path) -> None:
    """1 is 0x31, 3 is 0x33: one bit turns the ranking 1 2 3 into 3 2 3 or 1 2 1."""
    options, folder = StudyOptions(items=8, per_person=5, people=2, checks=0, repeats=0, practice=0), tmp_path / "study"
    study = build_study(text_page(tmp_path / "p.html"), ["lime", "gradient", "random"], options)
    store = open_store(folder, study, write_study(study, folder, "http://x"))
    for person in study.plans:
        store.consent(person)
        for slot in range(5):
            store.record(person, slot, '{"ranks":[1,2,3]}', 2.0)
    store.close()
    path = folder / "answers.sqlite"
    data = path.read_bytes()
    assert data.count(b"[1,2,3]") == 10
    path.write_bytes(data.replace(b"[1,2,3]", b"[3,2,3]", 1))
    answers = load_answers(folder)
    assert (len(answers.rankings), answers.damaged) == (9, 1)
    path.write_bytes(data.replace(b"[1,2,3]", b"[\xb1,2,3]", 1))
    assert load_answers(folder).damaged == 1, "not even a text"
    summary = rate_study(load_answers(folder), "tested").summary
    assert get_statistic(summary, "answers_damaged").value == 1
    assert get_statistic(summary, "answers", "", "rankings").value == 9


def old_database(url: str, study: str) -> None:
    """The tables as the first version made them, with an answer."""
    engine = sql.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in (
            "DROP TABLE IF EXISTS heedful_people",
            "DROP TABLE IF EXISTS heedful_answers",
            "CREATE TABLE heedful_people (study VARCHAR(16) NOT NULL, person VARCHAR(16) NOT NULL, consented INTEGER, "
            "seen INTEGER, erased BOOLEAN NOT NULL, PRIMARY KEY (study, person))",
            "CREATE TABLE heedful_answers (study VARCHAR(16) NOT NULL, person VARCHAR(16) NOT NULL, slot INTEGER NOT "
            "NULL, content TEXT NOT NULL, seconds FLOAT NOT NULL, revision INTEGER NOT NULL, minute INTEGER NOT NULL, "
            "PRIMARY KEY (study, person, slot))",
            f"INSERT INTO heedful_people VALUES ('{study}', 'p1', 60, 60, FALSE)",
            f"INSERT INTO heedful_answers VALUES ('{study}', 'p1', 0, '{{\"ranks\":[1,2]}}', 3.1, 1, 60)",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_database_without_checksums_gets_them(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite'}" if kind == "sqlite" else request.getfixturevalue("postgresql")
    old_database(url, "s")
    for _ in range(2):
        store = AnswerStore(url, "s")
        state = store.state("p1")
        assert (state.answers[0].ranks, state.answers[0].seconds, state.damaged) == ([1, 2], 3.1, 0)
        store.close()
    store = AnswerStore(url, "s")
    assert store.record("p1", 0, '{"ranks":[2,1]}', 1.0, revision=1) is Recorded.STORED
    assert store.state("p1").answers[0].seconds == 4.1
    change_rows(store, "content = '{}'", "slot = 0")
    assert store.state("p1").damaged == 1
    store.close()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE heedful_answers RENAME COLUMN content TO answer", "answer"),
        ("ALTER TABLE heedful_answers ADD COLUMN mood TEXT", "mood"),
        ("ALTER TABLE heedful_people DROP COLUMN erased", "erased"),
        ("CREATE TABLE x AS SELECT * FROM heedful_people; DROP TABLE heedful_people; "
         "ALTER TABLE x RENAME TO heedful_people", "person"),
    ],
)  # fmt: skip
def test_a_database_of_another_schema_is_refused(statement: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    AnswerStore(f"sqlite:///{path}", "s").close()
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    with pytest.raises(UserError, match=named) as error:
        AnswerStore(f"sqlite:///{path}", "s")
    assert "--database" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_file_of_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    store = AnswerStore(f"sqlite:///{path}", "study-0123")
    store.consent("p1")
    for slot in range(200):
        store.record("p1", slot, '{"ranks":[1,2]}', 1.0)
    store.close()
    data = path.read_bytes()
    # In the index of the table, not in the table: the row would be looked for in vain.
    place = data.rindex(b"study-0123p1")
    path.write_bytes(data[:place] + b"S" + data[place + 1 :])
    with pytest.raises(UserError, match="backup") as error:
        AnswerStore(f"sqlite:///{path}", "study-0123")
    assert "\n" not in str(error.value)


def test_nobody_else_can_read_the_files_of_the_database(tmp_path: Path) -> None:
    options, folder = StudyOptions(items=8, per_person=5, people=2), tmp_path / "study"
    folder.mkdir(mode=0o755)
    study = build_study(text_page(tmp_path / "p.html"), ["lime", "random"], options)
    keys = write_study(study, folder, "http://x")
    before = os.umask(0o022)
    try:
        for _ in range(2):
            store = open_store(folder, study, keys)
            store.consent("p1")
            files = [path for path in folder.iterdir() if path.name.startswith("answers.sqlite")]
            assert len(files) == 3, "with log and shared memory"
            assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
            store.close()
            (folder / "answers.sqlite").chmod(0o644)  # as an earlier version left it
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "mysql://x/y",
        "sqlite:////nowhere/at/all/a.sqlite",
        "postgresql://h@127.0.0.1:1/x",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
        "postgresql://h:secret@127.0.0.1:1/x",
        "postgresql://h:secret@127.0.0.1:secret/x",
        "postgresql+nix://h:secret@127.0.0.1/x",
        "nix://h:secret@127.0.0.1/x",
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(url: str) -> None:
    with pytest.raises(UserError) as error:
        AnswerStore(url, "s")
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
