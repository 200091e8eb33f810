"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from itertools import chain, count
from pathlib import Path

import pytest

from heedful.store.atomic_write import atomic_path, replace_text, try_to_write


def test_text_is_replaced_whole_and_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target.txt"
    outside.mkdir()
    target.write_text("old")
    guesses = chain(["guessed"], map(str, count()))
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: guesses)
    (tmp_path / ".target.txt.guessed.draft").symlink_to(outside)
    replace_text(target, "new")
    assert target.read_text() == "new"
    assert list(outside.iterdir()) == []
    with pytest.raises(ZeroDivisionError):
        replace_text(target, (str(1 // number) for number in (1, 0)))
    assert target.read_text() == "new"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_failed_write_leaves_nothing_and_a_complete_one_nothing_else(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"

    def write(path: Path) -> None:
        if kind == "folder":
            path.mkdir()
        (path / "inside" if kind == "folder" else path).write_text("content")

    def write_and_fail() -> None:
        with atomic_path(target) as path:
            write(path)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert list(target.parent.iterdir()) == []
    with atomic_path(target) as path:
        write(path)
        assert not target.exists()
    assert list(target.parent.iterdir()) == [target]
    assert os.access(target, os.R_OK)


def test_a_folder_that_another_process_completed_first_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with atomic_path(target) as path:
        path.mkdir()
        target.mkdir()
        (target / "first").touch()
    assert [path.name for path in target.iterdir()] == ["first"]


def test_a_draft_that_a_killed_process_left_is_deleted_and_one_in_use_is_not(tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    for name, content in ((".target.txt.0.draft", "lock"), (".target.txt.1.draft", "target.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / content).touch()
    (tmp_path / ".target.txt.2.draft").mkdir()
    with atomic_path(target) as draft:
        draft.write_text("first")
        replace_text(target, "second")
        assert sorted(path.name for path in tmp_path.iterdir()) == [draft.parent.name, "target.txt"]
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "first"


def test_a_folder_that_is_tried_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its removal afterwards could hit another process that is about to write in it."""
    seen: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append((tmp_path / "new").exists()))
    try_to_write(tmp_path / "new" / "folder")
    assert seen == [False]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_kill_while_a_folder_is_tried_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        try_to_write(tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["loop", "nowhere"])
@pytest.mark.parametrize("below", [".", "deep/folder"])
def test_a_link_to_nothing_is_noticed_before_the_work(target: str, below: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / target)
    with pytest.raises(OSError, match="link"):
        try_to_write(tmp_path / "loop" / below)
