"""Journals: writers side by side lose nothing, and damage is seen and still counts."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heedful.store.journal import Journal
from heedful.store.workspace import Workspace

WRITERS, RECORDS = 4, 5


@pytest.mark.parametrize("place", ["{}/folder", "memory://journals/{}"])
def test_writers_side_by_side_lose_no_record(place: str, tmp_path: Path) -> None:
    location = place.format(tmp_path if place.startswith("{}") else secrets.token_hex(4))

    def write(writer: int) -> None:
        journal = Journal(Workspace(location), "notes", "mine")
        for number in range(RECORDS):
            while not journal.append({"writer": writer, "number": number}, len(journal.read()) + 1):
                pass

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    records = Journal(Workspace(location), "notes", "mine").read()
    assert len(records) == WRITERS * RECORDS
    for writer in range(WRITERS):
        numbers = [record["number"] for record in records if record is not None and record["writer"] == writer]
        assert numbers == [*range(RECORDS)]


def test_a_record_that_is_damaged_or_missing_is_still_a_record(tmp_path: Path) -> None:
    journal = Journal(Workspace(tmp_path), "notes", "mine")
    for number in range(1, 4):
        assert journal.append({"number": number, "text": "ä"}, number)
    assert not journal.append({"number": 4}, 3)
    (tmp_path / journal.place(1)).unlink()
    second = tmp_path / journal.place(2)
    second.write_bytes(second.read_bytes().replace(b'"number":2', b'"number":3'))
    Journal(Workspace(tmp_path), "notes", "mine-1").append({"number": 0}, 1)  # another one
    (tmp_path / "notes" / "mine-9.json.draft").write_text("")
    assert journal.read() == [None, None, {"number": 3, "text": "ä"}]
    assert Journal(Workspace(tmp_path), "nothing", "mine").read() == []
