"""`heedful study`: what is written, what is said, and errors in one line."""

from __future__ import annotations

import importlib.util
import json
import socket
import sqlite3
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from heedful import cli
from heedful.study.design import StudyKeys, read_study
from tests.invented_studies import text_page


def study(*words: str | Path | int) -> Result:
    return CliRunner().invoke(cli.app, ["study", *map(str, words)])


@pytest.fixture
def built(tmp_path: Path) -> Path:
    page = text_page(tmp_path / "p.html")
    result = study(
        "build", "--from", page, "--methods", "lime,random", "--methods", "gradient", "--items", 20, "--per-person", 10,
        "--people", 4, "--task", "both", "--url", "https://lab.example/", "--out", tmp_path / "study",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return tmp_path / "study"


def test_build_writes_a_study_with_links(built: Path) -> None:
    assert read_study(built).methods == ("lime", "random", "gradient")
    links = [line for line in (built / "links.txt").read_text().splitlines() if "\t" in line]
    assert sum("https://lab.example/s/" in line for line in links) == 4
    assert sum("https://lab.example/admin/" in line for line in links) == 1


def test_a_dry_run_says_the_design_and_its_power_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "study"
    words = ("--methods", "lime,random", "--items", 20, "--per-person", 10, "--people", 4, "--out", out, "--dry-run")
    result = study("build", "--from", text_page(tmp_path / "p.html"), *words)
    assert result.exit_code == 0
    assert " 4 " in result.output
    assert not out.exists()


def test_erase_ends_one_link(built: Path) -> None:
    link = (built / "links.txt").read_text().splitlines()[1].split("\t")[1]
    result = study("erase", link, "--study", built)
    assert result.exit_code == 0
    assert result.output.startswith("p1: ")


def other_schema(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE heedful_answers (person TEXT, answer TEXT)")
    connection.close()
    return path


@pytest.mark.parametrize("content", ["{}", '{"people": {}, "admin": "", "form_key": ""}', "", "\x00\x00"])
def test_damaged_keys_are_one_line_with_code_2(content: str, built: Path) -> None:
    (built / "keys.json").write_text(content)
    for words in (("serve", built), ("rate", built), ("erase", "x", "--study", built)):
        result = study(*words)
        assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
        assert "keys.json" in result.output


def test_keys_of_another_study_are_refused(built: Path) -> None:
    keys = StudyKeys({"a" * 64: "p1"}, "b" * 64, "c" * 64)
    content = asdict(keys)
    (built / "keys.json").write_text(json.dumps(content))
    result = study("serve", built)
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert "keys.json" in result.output


def test_the_password_of_a_database_is_not_stored_and_build_says_so(tmp_path: Path) -> None:
    out = tmp_path / "study"
    words = ("--methods", "lime,random", "--items", 20, "--per-person", 10, "--people", 4, "--out", out)
    result = study(
        "build", "--from", text_page(tmp_path / "p.html"), *words, "--database", "postgresql://me:secret@h/x"
    )
    assert result.exit_code == 0
    assert read_study(out).database == "postgresql://me@h/x"
    assert "HEEDFUL_STUDY_DATABASE" in result.output
    assert "secret" not in result.output
    shown = CliRunner().invoke(
        cli.app, ["study", "serve", "--help"], env={"HEEDFUL_STUDY_DATABASE": "postgresql://me:secret@h/x"}
    )
    assert "secret" not in shown.output


def test_mistakes_are_one_line_with_code_2(built: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        build = ("build", "--from", tmp_path / "p.html", "--methods")
        for words, named in (
            (("build", "--from", tmp_path / "nix", "--methods", "a,b"), str(tmp_path / "nix")),
            ((*build, "lime,random", "--out", built), str(built)),
            ((*build, "lime,nix", "--dry-run"), "nix"),
            (("serve", tmp_path), "heedful study build"),
            (("serve", built, "--port", port), "--port"),
            (("serve", built, "--host", "nowhere.invalid", "--port", 0), "--host"),
            (("serve", built, "--host", ""), "0.0.0.0"),
            (("serve", built, "--host", " "), "0.0.0.0"),
            (("serve", built, "--database", "mysql://x/y"), "postgresql"),
            (("serve", built, "--database", f"sqlite:///{other_schema(tmp_path / 'other.sqlite')}"), "heedful_answers"),
            ((*build, "lime,random", "--items", 20, "--database", "nix", "--out", tmp_path / "new"), "--database"),
            (("erase", "nobody", "--study", built), "no person"),
        ):
            result = study(*words)
            assert result.exit_code == 2, words
            assert named in result.output
            assert result.output.count("\n") == 1


def test_without_the_extra_one_line_says_what_to_install(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "starlette" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    result = study("serve", built)
    assert result.exit_code == 2
    assert "pip install 'heedful[study]'" in result.output
