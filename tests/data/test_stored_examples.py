"""Examples on disk are those that were written, in every order; a table read to disk is the one in memory."""

from __future__ import annotations

import csv
import errno
import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data import stored_examples, table
from heedful.data.columns import DetectedColumns
from heedful.data.io import read_rows
from heedful.data.stored_examples import ExampleWriter, StoredExamples, change_examples, keep_examples
from heedful.data.subwords import Subwords
from heedful.data.tokenization import count_answers, drop_empty
from heedful.data.words import Words
from heedful.types import Example, UserError

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=12)
EXAMPLES = st.builds(
    Example,
    uid=TEXTS,
    parts=st.lists(TEXTS, min_size=1, max_size=2).map(tuple),
    label=st.none() | st.integers(0, 3) | st.floats(allow_nan=False),
    rationale=st.none() | st.lists(st.booleans(), max_size=3).map(tuple),
    candidates=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ground_truth=st.none() | st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
)


def stored(examples: list[Example]) -> StoredExamples:
    writer = ExampleWriter()
    for example in examples:
        writer.add(example)
    return writer.finish()


@given(st.lists(EXAMPLES, max_size=9), st.data())
@settings(deadline=None, max_examples=60)
def test_examples_on_disk_are_those_that_were_written(examples: list[Example], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_examples, "CHUNK_ROWS", 4)
        patch.setattr(stored_examples, "CACHED_CHUNKS", 1)
        on_disk = stored(examples)
        assert [*on_disk] == examples
        assert len(on_disk) == len(examples)
        # repr tells 1 from 1.0 and True from 1.
        assert repr([*on_disk]) == repr(examples)
        cut = data.draw(st.slices(len(examples)))
        assert [*on_disk[cut]] == examples[cut]
        kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(examples), max_size=len(examples))), bool)
        assert [*keep_examples(on_disk, kept)] == [*keep_examples(tuple(examples), kept)]
        changed = change_examples(on_disk[cut], lambda example: replace(example, label=7))
        assert [*changed] == [replace(example, label=7) for example in examples[cut]]
        assert [*drop_empty(on_disk).examples] == [*drop_empty(examples).examples]
        assert count_answers(on_disk) == count_answers(examples)


def test_a_tokenization_keeps_the_same_examples_on_disk() -> None:
    examples = [Example(str(n), (" ".join(["word"] * (n % 5)),), n % 2) for n in range(50)]
    for tokenization in (Words(longer_than="shortest", shorter_than="longest"), Subwords("any", shorter_than=3)):
        there, here = tokenization.select(stored(examples)), tokenization.select(tuple(examples))
        assert isinstance(there.examples, StoredExamples)
        assert [*there.examples] == [*here.examples]
        assert there.num_dropped == here.num_dropped


CELLS = st.sampled_from(["", " ", "fine", "fine film", 'a "quoted" film', "two\nlines", "naïve 映画 🎬", "comma, film"])
ROWS = st.lists(st.tuples(CELLS, st.sampled_from(["0", "1", "-", ""]), st.sampled_from(["a", "b", "", "c#2"])))


@given(rows=ROWS, limit=st.integers(1, 4), has_ids=st.booleans())
@settings(deadline=None, max_examples=80)
def test_a_table_on_disk_is_the_table_in_memory(*, rows: list[tuple[str, str, str]], limit: int, has_ids: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "table.csv")
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label", "id"), *rows, ("last text", "1", "z")])
        columns = DetectedColumns(
            "text",
            label="label",
            uid="id" if has_ids else None,
            outputs=("no", "yes"),
            label_index=(("0", 0), ("1", 1)),
            matching="order",
        )
        for most in (limit, 100):
            sampled = table.EvaluationTable(str(path), columns, most).load(Path(folder))
            assert isinstance(sampled.test, tuple)
            patch.setattr(table, "MAX_TEXTS", 0)
            streamed = table.EvaluationTable(str(path), columns, most).load(Path(folder))
            patch.undo()
            assert isinstance(streamed.test, StoredExamples)
            assert [*streamed.test] == [*sampled.test]
            assert streamed.notes == sampled.notes
        everything = table.EvaluationTable(str(path), columns, None).load(Path(folder))
        assert [*everything.test] == [*sampled.test]


def test_ids_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Constant:
        def digest(self) -> bytes:
            return bytes(8)

    monkeypatch.setattr(hashlib, "blake2b", lambda *_, digest_size: Constant())
    path = tmp_path / "table.csv"
    path.write_text("text,id\none text,a\nother text,b\nthird text,a\n", encoding="utf-8")
    assert len(read_rows(path)) == 3
    splits = table.EvaluationTable(str(path), DetectedColumns("text", uid="id"), None).load(tmp_path)
    assert [example.uid for example in splits.test] == ["a", "b", "a#4"]


class FullDisk:
    def write_batch(self, batch: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ExampleWriter()
    monkeypatch.setattr(stored_examples, "CHUNK_ROWS", 1)
    monkeypatch.setattr(writer, "_writer", FullDisk())
    with pytest.raises(UserError, match="No space left"):
        writer.add(Example("a", ("text",)))
