"""bAbI and CNN questions: answers, candidates and supporting facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.io import write_rows
from heedful.data.text_corpora import CNN, Babi
from heedful.types import UserError
from tests.invented_corpora import clozes, written


def test_babi_answers_are_all_training_words_of_the_tasks_that_are_there(tmp_path: Path) -> None:
    written("babi-1", tmp_path)
    alone, before = Babi(1).read(tmp_path), Babi(1).digest(tmp_path)
    words = {"Ida", "ran", "to", "the", "attic", "barn", ".", "Otto", "slept", "very", "long", "Where", "is"}
    assert alone.class_names == tuple(sorted(words))
    example = alone.train[0]
    assert alone.class_names[int(example.label or 0)] == "attic"
    assert example.candidates is None
    assert example.rationale == (True,) * 5 + (False,) * 4 + (False,) * 3
    folder = tmp_path / "babi_qa2"
    folder.mkdir()
    write_rows(
        folder / "train.jsonl.gz",
        [{"id": "0", "document": "Xaver sang", "question": "Who", "answer": "Xaver"}],
    )
    assert set(Babi(1).read(tmp_path).class_names) - set(alone.class_names) == {"Xaver", "sang", "Who"}
    assert Babi(1).digest(tmp_path) != before
    assert Babi(1).read(tmp_path).notes["answers are words of"] == "babi_qa1, babi_qa2"


def test_only_three_babi_tasks_exist() -> None:
    with pytest.raises(UserError, match="task 4"):
        Babi(4)
    with pytest.raises(UserError, match="task 3 only"):
        Babi(2, version="v1-1")


def test_cnn_admits_the_entities_of_the_story_that_training_knows(tmp_path: Path) -> None:
    folder = written("cnn", tmp_path)
    rows = clozes("test")
    rows[0]["document"] = "@entity0 met @entity99"
    rows.append({"id": "lost", "document": "@entity98 sang", "question": "@placeholder sang", "answer": "@entity98"})
    write_rows(folder / "test.jsonl.gz", rows)
    splits = CNN().read(tmp_path)
    assert splits.class_names == ("@entity0", "@entity1", "@entity2", "@entity3", "@entity4")
    assert splits.train[2].candidates == (2, 3)
    assert splits.test[0].candidates == (0,)
    assert len(splits.test) == 4
    assert splits.notes["questions left out, answer unseen in train"] == 1
    assert splits.notes["stories with candidates unseen in train"] == 2
