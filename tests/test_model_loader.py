"""Opening a model is cheap: a text is explained without training and without hashing; changed files are noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from heedful.store.model_folder import FolderIdentity, KnownIdentity, hash_model_folder, identify_source
from heedful.types import UserError
from tests.given import save_model

EXPLAIN = """
import sys
from heedful.store import file_digest

hashed, plain = [], file_digest.file_sha256
file_digest.file_sha256 = lambda path: hashed.append(path) or plain(path)
from pathlib import Path
from heedful.cli import main

def explain():
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop
    return len(hashed)

before = explain()
assert not any(name.startswith(("heedful.training", "heedful.trials")) for name in sys.modules)
audits = Path(sys.argv[-1], ".audits")
audits.mkdir()
(audits / "0123456789abcdef-other-1.json").write_text("{}")
print(before, explain())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("given") / "model")


@pytest.mark.slow
def test_a_text_is_explained_without_training_and_hashed_only_if_there_is_an_audit(
    folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", EXPLAIN, "explain", str(folder), "the film", "--workspace", str(tmp_path)]
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=False
    )
    assert run.returncode == 0, run.stderr
    before, after = map(int, run.stdout.splitlines()[-1].split())
    assert before == 0 < after


def test_the_digest_of_a_folder_is_that_of_its_files_when_it_was_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first, second = identify_source(str(tmp_path)), identify_source(str(tmp_path))
    assert isinstance(first, FolderIdentity)
    assert isinstance(second, FolderIdentity)
    assert first.digest == hash_model_folder(tmp_path, with_weights=True)
    (tmp_path / "config.json").write_text('{"a": 1}')
    # Nobody knows any more what the second one was.
    for stale in (first.check, second.check, lambda: second.digest):
        with pytest.raises(UserError, match=tmp_path.name):
            stale()
    assert first.digest != identify_source(str(tmp_path)).digest
    (tmp_path / "config.json").write_text("{}")
    first.check()  # written again with the same content


def test_equal_digests_are_one_identity_and_the_reading_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = identify_source(str(tmp_path))
    assert files == KnownIdentity(files.digest)
    assert files.read_as(("bfloat16",)) == files.read_as(("bfloat16",)) != files
    assert identify_source("someone/model").digest == "someone/model"


def test_an_explanation_of_files_that_have_changed_has_no_digest(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "model"
    copied.mkdir()
    for path in folder.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    known, unknown = (heedful.load(copied).explain("the film", methods="gradient") for _ in range(2))
    assert known.model_digest == hash_model_folder(folder, with_weights=True)
    (copied / "config.json").write_text("{}")
    assert (known.to_record()["model_digest"], unknown.to_record()["model_digest"]) == (known.model_digest, "")
