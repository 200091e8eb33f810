"""The command: names, runs, reports, errors in one line, exit codes 0, 1, 2 and 130."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from heedful import __version__, cli, papers, runner
from heedful.data.planted import Mock
from heedful.recipes.fit import Fit
from heedful.trials.performance import Performance

FILE = """
from tests.tiny import subject
from heedful import Performance, Permutation

def recipes():
    return [Performance(subject()), Permutation(subject(), limit=10)]
"""
BROKEN = """
from dataclasses import dataclass
from heedful import Artefact, Performance, Recipe
from tests.tiny import subject

@dataclass(frozen=True)
class Broken(Recipe):
    def make(self, workspace):
        raise ZeroDivisionError("by zero")

def recipes():
    return [Broken(), Performance(subject())]
"""


def heedful(*words: str | Path) -> Result:
    """What the command says and its exit code."""
    return CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a file of recipes has been run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.py").write_text(FILE, encoding="utf-8")
    result = heedful("run", folder / "mine.py", "-w", folder / "work", "--json", folder / "out.json", "--workers", "1")
    assert result.exit_code == 0, result.output
    return folder


def test_the_version_is_told() -> None:
    assert heedful("--version").output.strip() == f"heedful {__version__}"


def test_the_list_names_everything_with_a_meaning() -> None:
    output = heedful("list").output
    for word in ("jain-wallace", "sst", "mock-1", "bilstm", "additive", "raw-attention", "permutation"):
        assert word in output


def test_a_run_of_a_file_writes_flat_results(finished: Path) -> None:
    results = json.loads((finished / "out.json").read_text(encoding="utf-8"))["results"]
    assert [result["trial"] for result in results] == ["performance", "permutation"]
    for result in results:
        assert {"corpus", "encoder", "attention", "seed", "n"} <= result.keys()
        assert all(value is None or isinstance(value, float) for value in result["summary"].values())
    assert [result["n"] for result in results] == [40, 10]


def test_a_second_run_makes_nothing(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "work").rglob("seal.json")}
    assert heedful("run", finished / "mine.py", "-w", finished / "work").exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in (finished / "work").rglob("seal.json")}


def test_the_report_is_one_page_about_the_finished_work(finished: Path, tmp_path: Path) -> None:
    result = heedful("report", "-w", finished / "work", "--out", tmp_path / "report")
    assert result.exit_code == 0
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Does it matter which words get the attention?" in page
    assert "10 of 40" in page
    assert "<svg" in page


def test_quiet_says_nothing(finished: Path) -> None:
    assert heedful("run", finished / "mine.py", "-w", finished / "work", "--quiet").output == ""


def test_a_failed_recipe_is_told_at_the_end_and_the_others_are_done(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    out = tmp_path / "out.json"
    result = heedful("run", tmp_path / "broken.py", "-w", tmp_path / "work", "--json", out, "--workers", "1")
    assert result.exit_code == 1
    assert "failed: Broken-" in result.output
    assert "ZeroDivisionError: by zero (traceback: " in result.output
    assert [each["trial"] for each in json.loads(out.read_text(encoding="utf-8"))["results"]] == ["performance"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "nobody"], "there is no paper 'nobody'; choose one of jain-wallace"),
        (["run", "absent.py"], "there is no file absent.py"),
        (["run", "jain-wallace", "--only", "sst2"], "there is no corpus 'sst2' in this paper; choose from sst"),
        (["run", "jain-wallace", "--only", "sst", "--encoder", "rnn"], "there is no encoder 'rnn'"),
        (["run", "jain-wallace", "--only", "sst"], "sst: no file train.jsonl.gz in the folder"),
        (["run", "jain-wallace", "--only", "sst", "--vectors", "nowhere"], "sst: no file train.jsonl.gz"),
        (["fetch", "nothing"], "nothing"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("HEEDFUL_WORKSPACE", str(tmp_path / "work"))
    result = heedful(*words)
    assert result.exit_code == 2
    assert result.output.startswith("heedful: ")
    assert complaint in result.output
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output


def test_an_unknown_option_is_exit_code_2() -> None:
    assert heedful("run", "jain-wallace", "--sedes", "3").exit_code == 2


def test_debug_shows_the_traceback() -> None:
    result = heedful("run", "nobody", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.output


def test_an_interrupt_keeps_what_is_finished_and_exits_with_130(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "attempt", interrupted)
    result = heedful("run", finished / "mine.py", "-w", finished / "work")
    assert result.exit_code == 130
    assert "what is finished is kept" in result.output


def test_a_file_without_recipes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n", encoding="utf-8")
    result = heedful("run", tmp_path / "empty.py")
    assert result.exit_code == 2
    assert "has no function recipes()" in result.output


def test_the_planted_demo_ends_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (performance, *_) = papers.demo(planted=True)
    assert isinstance(performance, Performance)
    assert isinstance(performance.subject.corpus, Mock)
    small = replace(performance.subject, corpus=Mock(informative=2, train=60, dev=20, test=20), fit=Fit(epochs=2))
    monkeypatch.setattr(papers, "demo", lambda *, planted: papers.examined(small) if planted else [])
    result = heedful("demo", "--planted", "-w", tmp_path / "work", "--out", tmp_path / "report")
    assert result.exit_code == 0
    assert "The report is in" in result.output
    assert (tmp_path / "report" / "index.html").stat().st_size > 10_000
