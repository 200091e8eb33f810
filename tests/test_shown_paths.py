"""What is passed on says nothing about whose disk it comes from: every command on absolute paths below a home."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heedful.store.recipe import Json
from heedful.store.shown_path import shown_path, shown_settings
from tests.cli.test_audit_command import rows
from tests.given import save_model
from tests.test_hostile_inputs import command

USER = "jane-doe-3141"


@pytest.fixture(scope="module")
def passed_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the commands write to be passed on."""
    home = tmp_path_factory.mktemp("home") / USER
    out, work = home / "out", home / "work"
    out.mkdir(parents=True)
    save_model(home / "model")
    texts = home / "texts.csv"
    texts.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows()))
    scores = home / "given.jsonl"
    lines = [
        json.dumps({"text": text, "tokens": text.split(), "scores": np.arange(len(text.split())).tolist()})
        for text, _ in rows()
    ]
    scores.write_text("\n".join(lines))
    few = ("--texts", 12, "--method", "leave-one-out", "--method", "gradient", "--only-methods", "--workers", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("USER", USER)
        for words in (
            ("audit", home / "model", texts, "-w", work, "--out", out / "pages", *few, "--attributions", scores,
             "--json", out / "audit.json", "--card", out / "card.md"),
            ("explain", home / "model", "a fine film", "-w", work, "--json", out / "e.json", "--html", out / "e.html",
             "--out", out / "e.csv"),
            ("models", home / "model", "--json", out / "models.json"),
            ("study", "build", "--from", out / "pages", "--methods", "leave-one-out,gradient", "--items", 5,
             "--per-person", 4, "--people", 3, "--checks", 1, "--repeats", 1, "--out", out / "study"),
        ):  # fmt: skip
            code, _, error = command(*words)
            assert code == 0, error
    return out


@pytest.mark.slow
def test_no_file_that_is_passed_on_names_a_home_or_its_owner(passed_on: Path) -> None:
    files = [path for path in passed_on.rglob("*") if path.is_file()]
    assert {"index.html", "audit.json", "card.md", "e.json", "e.html", "study.json"} <= {path.name for path in files}
    home = str(passed_on.parent).encode()
    assert [path.name for path in files if home in path.read_bytes() or USER.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_what_is_passed_on_still_says_what_it_is_about(passed_on: Path) -> None:
    audit = json.loads((passed_on / "audit.json").read_text())
    assert (audit["model"]["source"], audit["data"]["source"]) == ("model", "texts.csv")
    assert audit["model"]["digest"]
    assert audit["data"]["digest"]
    assert json.loads((passed_on / "study" / "study.json").read_text())["source"].endswith("(pages)")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/jane/films", "films"),
        (Path("/home/jane/films.csv"), "films.csv"),
        ("/", "/"),
        ("films", "films"),
        ("data/films.csv", "data/films.csv"),
        ("org/name", "org/name"),
        ("~jane/films", "films"),
        ("../../jane/films", "films"),
        ("gs://bucket/films", "gs://bucket/films"),
    ],
)
def test_absolute_paths_are_shown_by_their_last_part(path: str | Path, shown: str) -> None:
    assert shown_path(path) == shown


def test_settings_keep_everything_but_absolute_paths() -> None:
    settings: dict[str, Json] = {
        "path": "/home/jane/films.csv",
        "seed": 3,
        "names": ["a/b", "/home/jane/x"],
        "none": None,
    }
    assert shown_settings(settings) == {"path": "films.csv", "seed": 3, "names": ["a/b", "x"], "none": None}
