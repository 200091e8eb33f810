"""The command: runs, reports, refused options, errors in one line, exit codes 0, 1, 2 and 130."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from heedful import __version__, cli, papers
from heedful.cli import attefa_command, console, demo_command, run_command
from heedful.cli.options import MAX_ATTEFA_SEEDS
from heedful.data import download
from heedful.data.synthetic import Mock
from heedful.execution import runner
from heedful.papers import paper_options
from heedful.papers.jain_wallace import JainWallaceOptions, single_model_trials
from heedful.store.provenance import made_key
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Training
from heedful.trials.adversarial_training import PAPER_SEEDS, AdversarialTradeoff, AtteFa
from heedful.trials.performance import Performance
from heedful.types import UserError
from tests.given import save_model

FILE = """
from tests.tiny import subject
from heedful.trials import Performance, Permutation

def recipes():
    return [Performance(subject()), Permutation(subject(), limit=10)]
"""
BROKEN = """
from dataclasses import dataclass
from heedful.store import Artefact, Recipe
from heedful.trials import Performance
from tests.tiny import subject

@dataclass(frozen=True)
class Broken(Recipe):
    def make(self, workspace):
        raise ZeroDivisionError("by zero")

def recipes():
    return [Broken(), Performance(subject())]
"""


SEEDS = """
from tests.tiny import subject
from heedful.trials import Performance

def recipes():
    return [Performance(subject(seed=seed)) for seed in range(3)]
"""


def heedful(*words: str | Path) -> Result:
    """The output of the command and its exit code."""
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def refused(*words: str | Path) -> str:
    """The one line that the command prints with exit code 2."""
    result = heedful(*words)
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert result.output.startswith("heedful: ")
    return result.output


def recipe_file(folder: Path, source: str) -> Path:
    """A Python file with `recipes()`."""
    path = folder / f"recipes_{len(source)}.py"
    path.write_text(source, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a file of recipes has been run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.py").write_text(FILE, encoding="utf-8")
    result = heedful("run", folder / "mine.py", "-w", folder / "work", "--json", folder / "out.json", "--workers", "1")
    assert result.exit_code == 0, result.output
    return folder


def test_attefa_has_no_more_seeds_than_the_paper() -> None:
    assert len(PAPER_SEEDS) == MAX_ATTEFA_SEEDS


def test_the_version() -> None:
    assert heedful("--version").output.strip() == f"heedful {__version__}"


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("run", "--help")])
def test_help_and_version_import_nothing_heavy(words: tuple[str, ...]) -> None:
    heavy = ("torch", "transformers", "pandas", "numpy", "scipy", "sklearn", "PIL", "datasets", "pebble")
    code = (
        "import atexit, sys; from heedful.cli import main; sys.argv[0] = 'heedful'; "
        f"atexit.register(lambda: print([name for name in {heavy!r} if name in sys.modules])); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_list_names_everything_with_a_meaning() -> None:
    output = heedful("list").output
    for word in ("jain-wallace", "sst", "mock-1", "bilstm", "additive", "raw-attention", "permutation"):
        assert word in output


def test_a_run_of_a_file_writes_tidy_rows(finished: Path) -> None:
    results = json.loads((finished / "out.json").read_text(encoding="utf-8"))["results"]
    assert [result["trial"] for result in results] == ["performance", "permutation"]
    for result in results:
        assert {"corpus", "encoder", "attention", "seed", "n"} <= result.keys()
        assert result["summary"]
        for row in result["summary"]:
            assert row.keys() == {"metric", "method", "subset", "value", "low", "high", "n"}
            assert all(row[name] is None or isinstance(row[name], float) for name in ("value", "low", "high", "n"))
    assert [result["n"] for result in results] == [40, 10]
    assert [result["settings"] for result in results] == [
        {},
        {"permutations": 100, "seed": 0, "limit": 10, "layer": None, "head": None, "error": None},
    ]


def test_a_dry_run_counts_what_is_to_make_and_makes_nothing(tmp_path: Path) -> None:
    result = heedful("run", recipe_file(tmp_path, SEEDS), "-w", tmp_path / "work", "--dry-run", "--workers", "2")
    assert result.exit_code == 0
    for count in ("3 models", "3 trials", "0 of 6"):
        assert count in result.output
    assert "unknown" in result.output
    assert not (tmp_path / "work").exists()


def test_a_dry_run_expects_another_seed_to_take_as_long_as_the_finished_ones(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work")
    path = recipe_file(tmp_path, SEEDS)
    recipes = runner.recipes_from_file(path)
    workspace.get(recipes[0])
    for name, seconds in ((recipes[0], 50.0), (recipes[0].dependencies[0], 4000.0)):
        record = f'{{"date":"d","heedful":"0","seconds":{seconds},"torch":"2"}}'
        workspace.write_document(made_key(workspace.artefact_name(name)), record)
    result = heedful("run", path, "-w", tmp_path / "work", "--dry-run")
    # Two of three seeds are left: two models of 4000 seconds and two trials of 50.
    lines = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert "2 h 15 min" in lines["Expected"]
    assert "2 h 13 min" in lines["model"]
    assert "1 min 40 s" in lines["performance"]


VARIANTS = """
from tests.tiny import subject
from heedful.trials import AdversarialAttention

def recipes():
    return [AdversarialAttention(subject(), epsilon, limit=4) for epsilon in (0.05, 0.01)]
"""


def test_results_name_what_distinguishes_them_and_the_end_names_time_and_next_command(tmp_path: Path) -> None:
    result = heedful("run", recipe_file(tmp_path, VARIANTS), "-w", tmp_path / "my work", "--workers", "1")
    lines = [line for line in result.output.splitlines() if line.startswith("adversarial-attention")]
    assert ["epsilon 0.05" in line.partition(":")[0] for line in lines] == [True, False]
    assert ["epsilon 0.01" in line.partition(":")[0] for line in lines] == [False, True]
    assert "exact" not in "".join(lines)  # the same for both
    assert result.output.splitlines()[-1].endswith(f"heedful report --workspace '{tmp_path / 'my work'}'")


def test_a_redirected_run_prints_lines_about_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LineProgress", partial(console.LineProgress, interval=0.0))
    words = ("run", recipe_file(tmp_path, SEEDS), "--workers", "1", "--json", tmp_path / "out.json")
    lines = [line for line in heedful(*words, "-w", tmp_path / "work").stderr.splitlines() if "all recipes" in line]
    assert [f"{count} of 6" in lines[-1] for count in (5, 6)] == [False, True]
    assert len(lines) > 6  # the epochs of models are steps, too
    assert "all recipes" not in heedful(*words, "-w", tmp_path / "other", "--quiet").stderr


def test_no_line_is_printed_before_its_time(capfd: pytest.CaptureFixture[str]) -> None:
    progress = console.LineProgress(interval=60.0)
    with progress.task("work", 2) as step:
        step()
        assert capfd.readouterr().err == ""
        progress.last -= 61
        step(1, "loss 0.5")
        step()
    assert capfd.readouterr().err.count("work 2 of 2 (loss 0.5)") == 1


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_the_help_of_a_paper_has_its_options_and_defaults_only(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = {field.name for field in fields(papers.PAPERS[paper].options)}
    group = cast(TyperGroup, get_command(cli.app))
    flags = {str(option.name): option.opts[0] for option in group.commands["run"].params}
    shown = heedful("run", paper, "--help")
    assert shown.exit_code == 0
    for field in fields(run_command.PaperChoice):
        assert (f" {flags[field.name]} " in shown.output) == (field.name in options), field.name
    assert all(corpus in shown.output for corpus in papers.PAPERS[paper].options.default_corpora())
    general = heedful("run", "--help").output
    assert all(f" {flags[field.name]} " in general for field in fields(run_command.PaperChoice))


def test_what_a_paper_does_by_default_is_what_its_help_says() -> None:
    for paper in papers.PAPERS.values():
        defaults = paper.options.defaults()
        lists = ("encoders", "attentions", "checkpoints", "normalizers")
        named: dict[str, Any] = {name: defaults[name] for name in ("n_seeds", "n_bases", *lists) if defaults.get(name)}
        corpus = {"scaffold": "fashion-mnist", "attefa": "mock-1"}.get(paper.name, "sst")
        options = paper.options(corpora=(corpus,))
        if paper.name != "disagreement":
            named.pop("checkpoints", None)
        assert paper.options(corpora=(corpus,), **named).recipes() == options.recipes()


def test_without_the_control_half_of_the_models_are_trained() -> None:
    every, fewer = (
        runner.topological_order(JainWallaceOptions(corpora=("sst",), without_control=off).recipes())
        for off in (False, True)
    )
    assert [sum(isinstance(recipe, TrainedModel) for recipe in plan) for plan in (every, fewer)] == [12, 6]


@pytest.mark.parametrize(
    ("paper", "words"),
    [
        ("jain-wallace", ("--only", "SST,imdb", "--encoder", "Perceptron", "--attention", "ADDITIVE")),
        ("Jain_Wallace", ("--only", "sst", "--only", "imdb", "--encoder", "average", "--attention", "additive")),
    ],
)
def test_names_are_understood_in_any_case_and_with_commas(
    paper: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned: list[Recipe] = []
    monkeypatch.setattr(papers, "paper_recipes", lambda options: options.recipes())
    monkeypatch.setattr(run_command, "print_plan", lambda recipes, workspace, in_detail: planned.extend(recipes))
    assert heedful("run", paper, *words, "--dry-run", "-w", tmp_path).exit_code == 0
    options = JainWallaceOptions(("sst", "imdb"), data_dir=Workspace(tmp_path).data_dir, encoders=("average",))
    assert planned == replace(options, attentions=("additive",)).recipes()


def test_a_second_run_makes_nothing(finished: Path) -> None:
    def made() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (finished / "work").rglob("recipe.json")}

    before = made()
    assert len(before) == 3
    assert "All 3" in heedful("run", finished / "mine.py", "-w", finished / "work", "--dry-run").output
    assert heedful("run", finished / "mine.py", "-w", finished / "work").exit_code == 0
    assert made() == before


def test_the_report_is_one_page_about_the_finished_work(finished: Path, tmp_path: Path) -> None:
    result = heedful("report", "-w", finished / "work", "--out", tmp_path / "report")
    assert result.exit_code == 0
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<svg" in page


def test_quiet_says_nothing(finished: Path) -> None:
    assert heedful("run", finished / "mine.py", "-w", finished / "work", "--quiet").output == ""


def test_a_failed_recipe_is_listed_at_the_end_and_the_others_are_done(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = heedful("run", recipe_file(tmp_path, BROKEN), "-w", tmp_path / "work", "--json", out, "--workers", "1")
    assert result.exit_code == 1
    for word in ("Broken-", "ZeroDivisionError: by zero", str(tmp_path / "work")):
        assert word in result.output
    assert [result["trial"] for result in json.loads(out.read_text(encoding="utf-8"))["results"]] == ["performance"]


EXITS = """
import sys
from dataclasses import dataclass
from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class Exits(Recipe):
    status: int

    def make(self, workspace):
        if self.status < 0:
            return Artefact()
        sys.exit(self.status)

def recipes():
    return [Exits(0), Exits(3), Exits(-1)]
"""


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_recipe_that_calls_exit_is_a_failed_recipe(workers: str, tmp_path: Path) -> None:
    result = heedful("run", recipe_file(tmp_path, EXITS), "-w", tmp_path / "work", "--workers", workers)
    assert result.exit_code == 1
    assert result.output.count(" Exits-") == 2
    assert len(Workspace(tmp_path / "work").entries()) == 1


MANY = """
from dataclasses import dataclass
from heedful.store import Artefact, Recipe
from heedful.types import UserError

@dataclass(frozen=True)
class NoVectors(Recipe):
    number: int

    def make(self, workspace):
        raise UserError(f"{workspace.artefact_name(self)}: no vectors;\\nfetch them")

@dataclass(frozen=True)
class Needs(Recipe):
    part: Recipe

    def make(self, workspace):
        return Artefact()

def recipes():
    return [Needs(Needs(NoVectors(number))) for number in range(30)]
"""


def test_one_cause_is_one_line(tmp_path: Path) -> None:
    result = heedful("run", recipe_file(tmp_path, MANY), "-w", tmp_path / "work", "--workers", "1", "-q")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    for word in (" 29 ", "no vectors; fetch them", " 60\n"):
        assert word in result.output


DOUBTFUL = """
import warnings
from dataclasses import dataclass
from heedful.store import Artefact, Recipe

@dataclass(frozen=True)
class Doubtful(Recipe):
    number: int

    def make(self, workspace):
        warnings.warn("a doubt")
        return Artefact()

def recipes():
    return [Doubtful(1), Doubtful(2)]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "option"), [("1", "--workspace=w"), ("1", "--quiet"), ("2", "--workspace=w")])
def test_warnings_are_one_line_each_and_quiet_leaves_them_out(workers: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "doubts.py").write_text(DOUBTFUL, encoding="utf-8")
    command = [sys.executable, "-c", "from heedful.cli import main; main()", "run", "doubts.py", "--workers", workers]
    result = subprocess.run([*command, option], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {*result.stderr.splitlines()} == (set() if option == "--quiet" else {"heedful: warning: a doubt"})
    assert (result.stdout == "") == (option == "--quiet")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "seeds.py", "--json", "file/out.json"],
        ["run", "seeds.py", "--json", "folder"],
        ["run", "seeds.py", "-w", "file/work"],
        ["run", "seeds.py", "-w", "file"],
        ["demo", "--planted", "--out", "file/report"],
        ["demo", "--planted", "--out", "file"],
        ["demo", "--planted", "--out", "folder"],
        ["attefa", "--data", "hotel.csv", "--text-column", "remark", "--label-column", "mood", "--out", "file"],
        ["fetch", "imdb"],
    ],
    ids=" ".join,
)
def test_places_that_cannot_be_written_are_refused_before_the_work(
    words: list[str], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*args: object, **options: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(runner, "attempt", work)
    monkeypatch.setattr(download, "load_from_hub", work)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_DATA", "file")
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "index.html").mkdir(parents=True)
    (tmp_path / "seeds.py").write_text(SEEDS, encoding="utf-8")
    refused(*words, *([] if words[0] == "fetch" or "-w" in words else ["-w", "work"]), "-q")
    assert not (tmp_path / "work").exists() or not list((tmp_path / "work").iterdir())


def test_the_json_file_gets_its_folder_and_replaces_an_old_one(finished: Path, tmp_path: Path) -> None:
    for _ in range(2):
        out = tmp_path / "new" / "deep" / "out.json"
        assert heedful("run", finished / "mine.py", "-w", finished / "work", "--json", out).exit_code == 0
    assert [path.name for path in out.parent.iterdir()] == ["out.json"]
    assert json.loads(out.read_text(encoding="utf-8"))["results"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "unknown"], "jain-wallace"),
        (["run", "jainwallace"], "did you mean jain-wallace"),
        (["run", "absent.py"], "absent.py"),
        (["run", "jain-wallace", "--only", "sst2"], "'sst2'"),
        (["run", "jain-wallace", "--only", "sst", "--encoder", "rnn"], "'rnn'"),
        (["run", "jain-wallace", "--only", "sst"], "train.jsonl.gz"),
        (["run", "jain-wallace", "--only", "sst", "--embeddings", "nowhere"], "train.jsonl.gz"),
        (["run", "mine.py", "--limit", "3", "--quick"], "--limit, --quick"),
        (["run", "mine.py", "--encoder", "gru"], "--encoder"),
        (["run", "attefa", "--text-column", "review"], "--data"),
        (["run", "attefa", "--data", "mine.csv", "--only", "sst"], "--only"),
        (["run", "scaffold", "--lambda", "0.1"], "--lambda"),
        (["run", "jain-wallace", "--select", "dev", "--size", "9"], "--select, --size"),
        (["explain", "absent", "a text", "-m", "lime(error=0.05),gradeint"], "did you mean gradient"),
        (["run", "attefa", "--start", "warm"], "'warm'"),
        (["attefa", "--data", "absent.csv", "--start", "warm"], "'warm'"),
        (["run", "attefa", "--select", "best"], "'best'"),
        (["fetch", "nothing"], "nothing"),
        (["report", "--workspace", "absent"], "--workspace"),
        (["run", "attefa", "--only", "mock-1", "--quick", "--where", "cloud"], "--where"),
        (["run", "attefa", "--only", "mock-1", "--quick", "--where", "here", "--workers", "2"], "--where"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("HEEDFUL_WORKSPACE", str(tmp_path / "work"))
    assert named in refused(*words)


def test_an_unknown_option_is_exit_code_2() -> None:
    assert heedful("run", "jain-wallace", "--sedes", "3").exit_code == 2


def test_debug_shows_the_traceback() -> None:
    result = heedful("run", "unknown", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.output


def test_an_interrupt_keeps_what_is_finished_and_exits_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "attempt", interrupted)
    result = heedful("run", recipe_file(tmp_path, SEEDS), "-w", tmp_path / "work", "--workers", "1")
    assert result.exit_code == 130


@pytest.mark.parametrize("kind", [UserError, OSError, RuntimeError])
def test_an_error_that_a_library_makes_of_an_interrupt_is_an_interrupt(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise kind("trying to pop from empty mode stack")

    monkeypatch.setattr("heedful.report.write_report", interrupted)
    result = heedful("report", "-w", tmp_path)
    assert result.exit_code == 130
    assert "stack" not in result.output


def test_a_file_without_recipes_is_refused(tmp_path: Path) -> None:
    assert "recipes()" in refused("run", recipe_file(tmp_path, "x = 1\n"))


@pytest.mark.slow
def test_the_planted_demo_ends_with_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (performance, *_) = papers.demo(synthetic=True)
    assert isinstance(performance, Performance)
    assert isinstance(performance.subject, TrainedModel)
    assert isinstance(performance.subject.corpus, Mock)
    small = replace(
        performance.subject, corpus=Mock(informative=2, train=60, dev=20, test=20), training=Training(epochs=2)
    )
    monkeypatch.setattr(papers, "demo", lambda *, synthetic: single_model_trials(small) if synthetic else [])
    monkeypatch.setattr(papers, "demo_model", lambda *, synthetic: small)
    monkeypatch.setattr(demo_command, "DEMO_TEXTS", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    result = heedful("demo", "--planted", "-w", tmp_path / "work", "--out", tmp_path / "report")
    assert result.exit_code == 0
    assert (tmp_path / "report" / "audit" / "index.html").is_file()
    assert (tmp_path / "report" / "index.html").stat().st_size > 10_000


THINGS = ("soup", "room", "staff", "view", "bed", "lift", "breakfast", "garden", "bath", "key")
REMARKS = {"pleased": ("was lovely", "was a delight"), "cross": ("was broken", "was a nuisance")}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Remarks of hotel guests with a mood, a real number and a single class."""
    path = tmp_path / "hotel.csv"
    rows = [(f"the {thing} {said}", mood) for mood in REMARKS for said in REMARKS[mood] for thing in THINGS]
    lines = [f"{text},{mood},{place / 7:.3f},guest,{text}" for place, (text, mood) in enumerate(rows)]
    path.write_text("\n".join(["remark,mood,stars,who,again", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "split", "metric"),
    [
        (("attefa", "--encoder", "bilstm"), "dev", "deception"),
        (("run", "attefa", "--encoder", "bilstm"), "test", "deception"),
        (("run", "attefa", "--encoder", "bilstm", "--select", "dev"), "dev", "deception"),
        (("run", "wiegreffe-pinter"), "test", "training_loss"),
        (("run", "wiegreffe-pinter", "--select", "dev"), "dev", "deception"),
    ],
)
def test_papers_select_epochs_by_their_own_rule_and_the_number_for_own_texts_by_dev(
    words: tuple[str, ...], split: str, metric: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "empty"))
    planned: list[Recipe] = []

    def plan(recipes: list[Recipe], *_: object, **__: object) -> int:
        planned.extend(recipes)
        return 1

    for module in (attefa_command, run_command):
        monkeypatch.setattr(module, "run_recipes", plan)
    columns = ("--text-column", "remark", "--label-column", "mood")
    result = heedful(*words, "--data", table, *columns, "--seeds", "1", "-w", tmp_path / "work")
    assert result.exit_code == 1, result.output
    (trial,) = (recipe for recipe in planned if isinstance(recipe, AtteFa | AdversarialTradeoff))
    assert trial.subject.training.selection.split == split
    assert trial.adversary_training.selection.metric == metric


@pytest.mark.slow
def test_attefa_on_a_users_table_prints_its_number_with_floor_and_collapse(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_options, "MIN_EPOCH_STEPS", 10)
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "empty"))
    columns = ("--text-column", "remark", "--label-column", "mood")
    places = ("-w", tmp_path / "work", "--out", tmp_path / "report", "--json", tmp_path / "out.json")
    words = ("attefa", "--data", table, *columns, "--encoder", "perceptron", "--seeds", "1", "--quick", *places)
    result = heedful(*words, "--workers", "1")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"][1]
    assert (record["trial"], record["n"], record["settings"]["adversary_seeds"]) == ("attefa", 6, [10])
    values = {row["metric"]: row["value"] for row in record["summary"]}
    for name in ("attefa", "floor", "collapse"):
        assert f" {values[name]:.3f}" in result.output
    assert " 6 " in result.output
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (("remark", "moods"), "'moods'"),
        (("remarks", "mood"), "'remarks'"),
        (("remark", "stars"), "stars"),
        (("remark", "who"), "'guest'"),
    ],
)
def test_a_users_table_without_classes_is_refused_in_one_line(
    columns: tuple[str, str], named: str, table: Path, tmp_path: Path
) -> None:
    text, label = columns
    words = ("--text-column", text, "--label-column", label, "-w", tmp_path / "work", "--out", tmp_path / "report")
    assert named in refused("attefa", "--data", table, *words)
    assert not (tmp_path / "work").exists()


def test_an_empty_file_and_an_absent_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    for name in ("empty.csv", "none.csv"):
        assert name in refused("attefa", "--data", tmp_path / name)


GIVEN = """
from heedful.training import checkpoint
from heedful.trials import Performance
from tests.given import Verdicts

def recipes():
    return [Performance(checkpoint({folder!r}, Verdicts(12)))]
"""


def test_a_result_on_a_given_model_is_printed_without_a_seed(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "opinions")
    recipes = recipe_file(tmp_path, GIVEN.format(folder=str(folder)))
    words = ("-w", tmp_path / "work", "--where", "here", "--json", tmp_path / "out.json")
    result = heedful("run", recipes, *words)
    assert result.exit_code == 0, result.output
    assert "verdicts, opinions, self" in result.output
    assert "seed" not in result.output
    [record] = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert "seed" not in record
    assert record["embeddings"] is None


def test_json_on_standard_output_is_all_that_is_there(finished: Path) -> None:
    """Everything else goes to standard error, so that a pipe can read it."""
    result = heedful("run", finished / "mine.py", "-w", finished / "work", "--json", "-", "--workers", "1")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((finished / "out.json").read_text())
    assert "performance" in result.stderr
    assert "performance" in heedful("run", finished / "mine.py", "-w", finished / "work", "--workers", "1").stdout


EXPLAIN = ("explain", "absent", "a text")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (EXPLAIN, ("--json", "x", "--html", "x")),
        (EXPLAIN, ("--json", "x", "--out", "./x")),
        (EXPLAIN, ("--html", "a/../x", "--out", "x")),
        (EXPLAIN, ("--json", "-", "--html", "-")),
        (EXPLAIN, ("--json", "link", "--out", "x")),
        (("audit", "absent", "absent.csv"), ("--json", "x", "--card", "x")),
        (("models", "--all"), ("--json", "x", "--out", "x")),
        (("audit", "absent", "absent.csv"), ("--out", "-")),
        (("demo",), ("--out", "-")),
        (("report",), ("--out", "-")),
        (("attefa", "--data", "good.csv"), ("--out", "-")),
        (("study", "build", "--from", "w", "--methods", "a,b"), ("--out", "-")),
    ],
)
def test_one_file_for_two_options_and_a_folder_on_standard_output_are_refused(
    words: tuple[str, ...], files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "x").touch()
    (tmp_path / "good.csv").write_text("text,label\n" + "".join(f"good {n},yes\nbad {n},no\n" for n in range(30)))
    said = refused(*words, *files)
    assert all(option in said for option in files[::2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "good.csv", "link", "x"]


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "~nosuch/x", "a text"),
        ("explain", "absent", "a text", "--html", "~nosuch/x"),
        ("audit", "~nosuch/x", "absent.csv"),
        ("audit", "absent", "absent.csv", "--card", "~nosuch/x"),
        ("models", "~nosuch/x"),
        ("run", "~nosuch/x.py"),
        ("run", "jain-wallace", "--data", "~nosuch/x.csv"),
        ("run", "jain-wallace", "--only", "mock-1", "--embeddings", "~nosuch/x"),
        ("run", "disagreement", "--only", "mock-1", "--checkpoint", "~nosuch/x"),
        ("attefa", "--data", "~nosuch/x.csv"),
        ("learn", "--teacher", "~nosuch/x", "--data", "absent.csv"),
        ("demo", "-w", "~nosuch/x"),
        ("demo", "--out", "~nosuch/x"),
        ("report", "-w", "~nosuch/x"),
        ("fetch", "sst", "--source", "~nosuch/x"),
        ("study", "build", "--from", "~nosuch/x", "--methods", "a,b"),
        ("study", "serve", "~nosuch/x"),
        ("study", "rate", "~nosuch/x"),
        ("study", "erase", "token", "--study", "~nosuch/x"),
    ],
)
def test_the_home_of_an_unknown_user_is_refused_as_any_path(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEEDFUL_DATA", str(tmp_path / "data"))
    assert "~nosuch" in refused(*words)
    assert not [*tmp_path.iterdir()]


def test_a_home_folder_in_an_option_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves the ~ of --workspace=~/x as it is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "mine.py").write_text(FILE, encoding="utf-8")
    words = ("run", "mine.py", "--workspace=~/work", "--json=~/out.json", "--where", "here", "-q")
    assert heedful(*words).exit_code == 0
    assert {"work", "out.json"} <= {path.name for path in (tmp_path / "home").iterdir()}
    assert not [path for path in tmp_path.iterdir() if "~" in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["head -c 1", "true"])
def test_a_reader_that_ends_early_gets_no_traceback(reader: str, tmp_path: Path) -> None:
    program = "from heedful.cli import main; main()"
    line = f"'{sys.executable}' -c '{program}' list | {reader}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""


@pytest.mark.slow
def test_a_terminal_without_these_characters_shows_their_numbers(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from heedful.cli import main; main()", "report", "-w", "日本"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1:strict", "PYTHONUTF8": "0"}
    done = subprocess.run(program, capture_output=True, check=False, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert rb"\u65e5\u672c" in done.stderr
    assert b"Traceback" not in done.stderr
