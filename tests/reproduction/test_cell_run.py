"""From the command to the ledger on an invented edition of SST: runs, records, experiments and repetitions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from heedful import cli
from heedful.models.encoders import Average
from heedful.papers.jain_wallace import JainWallaceOptions
from heedful.reproduction.cell_run import (
    is_same_number,
    parse_changes,
    read_experiments,
    replace_setting,
)
from heedful.reproduction.ledger import LedgerRecord, Measured, read_ledger
from heedful.trials.performance import Performance
from heedful.types import UserError

CELL = "jain-wallace/performance/sst/average/additive/accuracy"
PAPER = "jain-wallace"


def write_reviews(folder: Path) -> None:
    """Reviews of 6 to 10 words; the first word decides."""
    folder.mkdir(parents=True)
    for split, count in {"train": 40, "dev": 10, "test": 12}.items():
        rows = []
        for number in range(count):
            words = [("bad", "good")[number % 2], *["this", "film", "is", "what", "it", "is", "and", "more"]]
            rows.append({"id": f"{split}-{number}", "text": " ".join(words[: 6 + number % 4]), "label": number % 2})
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def heedful(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def records(folder: Path) -> dict[str, LedgerRecord]:
    return {record.id: record for record in read_ledger(folder, PAPER)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a workspace and a ledger, written by one run of the command."""
    folder = tmp_path_factory.mktemp("reproduction")
    write_reviews(folder / "data" / "sst")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_DATA", str(folder / "data"))
        words = ("--only", "sst", "--encoder", "average", "--attention", "additive", "--embeddings", "random")
        places = ("--workspace", folder / "workspace", "--ledger", folder / "ledger")
        done = heedful("run", PAPER, *words, "--limit", "4", "--where", "here", *places)
        assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(autouse=True)
def data(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_DATA", str(place / "data"))


def test_a_run_writes_its_cells_with_the_command_that_repeats_them(place: Path) -> None:
    record = records(place / "ledger")[CELL]
    assert record.ours is not None
    assert record.run is not None
    assert record.run.command.split()[:3] == ["heedful", "run", PAPER]
    assert record.run.settings == {
        "corpora": ["sst"],
        "encoders": ["average"],
        "attentions": ["additive"],
        "embeddings": "random",
    }
    run = {name for name, row in records(place / "ledger").items() if row.ours is not None}
    assert {name.split("/")[2] for name in run} == {"sst"}
    assert {name.split("/")[3] for name in run} == {"average", ""}
    assert "jain-wallace/corpus/sst///train" in run


def test_a_ledger_from_the_workspace_is_that_of_the_run(place: Path, tmp_path: Path) -> None:
    done = heedful("reproduce", PAPER, "--update", "--workspace", place / "workspace", "--ledger", tmp_path)
    assert done.exit_code == 0, done.output
    ours = {name: record.ours for name, record in records(place / "ledger").items()}
    assert {name: record.ours for name, record in records(tmp_path).items()} == ours


def test_one_cell_is_run_again_and_judged(place: Path) -> None:
    places = ("--workspace", place / "workspace", "--ledger", place / "ledger", "--where", "here")
    done = heedful("reproduce", "--cell", CELL, *places)
    assert done.exit_code == 0, done.output  # this cell has no tolerance
    ours = records(place / "ledger")[CELL].ours
    assert ours is not None
    assert f"{ours.value:.6g}" in done.output
    # The trial of invented texts is not that of the paper: some judged cell must be outside.
    outside = [name for name, record in records(place / "ledger").items() if record.verdict == "outside"]
    assert heedful("reproduce", "--cell", outside[0], *places).exit_code == 1


def test_an_experiment_is_recorded_with_both_numbers(place: Path) -> None:
    places = ("--workspace", place / "workspace", "--ledger", place / "ledger", "--where", "here")
    before = (place / "ledger" / "jain-wallace.jsonl").read_bytes()
    change = (
        "--with",
        "subject.training.epochs=2",
        "--cause",
        "Less <i>training</i>.",
        "--explains",
        "jain-wallace/*/sst/*",
    )
    done = heedful("reproduce", "--cell", CELL, *change, *places)
    assert done.exit_code == 0, done.output
    (experiment,) = read_experiments(place / "ledger")
    ours = records(place / "ledger")[CELL].ours
    assert ours is not None
    assert (experiment.before, experiment.changes) == (ours.value, {"subject.training.epochs": 2})
    assert experiment.after is not None
    assert experiment.explains("jain-wallace/agreement/sst/bilstm/additive/mean/attention~gradient")
    assert not experiment.explains("jain-wallace/agreement/imdb/bilstm/additive/mean/attention~gradient")
    # An experiment never replaces the number of the ledger.
    assert (place / "ledger" / "jain-wallace.jsonl").read_bytes() == before
    page = place / "ledger.html"
    assert heedful("reproduce", "--page", page, *places[2:4]).exit_code == 0
    html = page.read_text(encoding="utf-8")
    assert "Less &lt;i&gt;training&lt;/i&gt;." in html
    assert "<i>training" not in html


def test_cheap_cells_are_repeated_and_compared(place: Path, tmp_path: Path) -> None:
    places = ("--workspace", tmp_path / "new", "--where", "here")
    done = heedful("reproduce", PAPER, "--cheap", *places, "--ledger", place / "ledger")
    assert done.exit_code == 0, done.output
    lines = (place / "ledger" / "jain-wallace.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    ours = records(place / "ledger")[CELL].ours
    assert ours is not None
    row = next(number for number, line in enumerate(lines) if f'"id":"{CELL}"' in line)
    lines[row] = lines[row].replace(f'"value":{ours.value}', f'"value":{(ours.value or 0) + 0.01}', 1)
    (tmp_path / "jain-wallace.jsonl").write_text("".join(lines), encoding="utf-8")
    changed = heedful("reproduce", PAPER, "--cheap", *places, "--ledger", tmp_path)
    assert changed.exit_code == 1
    assert CELL in changed.output


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--cell", "jain-wallace/performance/sst"), "--list"),
        (("--cell", CELL, "--with", "embeddings"), "NAME=VALUE"),
        (("--cell", CELL, "--with", "subject.training.epoch=3"), "epochs"),
        (("--cell", CELL, "--with", "subject.training.epochs=many"), "epochs=many"),
        (("--cell", CELL, "--with", "embeddings=random"), "embeddings"),
        (("--cell", CELL, "--cause", "Why not."), "--with"),
        (("--cause", "Why not."), "--cell"),
    ],
)
def test_mistakes_are_one_line_with_the_remedy(words: tuple[str, ...], named: str, place: Path) -> None:
    done = heedful("reproduce", *words, "--workspace", place / "workspace", "--ledger", place / "ledger")
    assert done.exit_code == 2, done.output
    assert named in done.output


@pytest.mark.parametrize("words", [("--quick",), ("--data", "own.csv"), ("--checkpoint", "models/own")])
def test_only_runs_of_a_paper_that_others_can_repeat_are_written(words: tuple[str, ...], tmp_path: Path) -> None:
    done = heedful("run", "disagreement", *words, "--ledger", tmp_path / "ledger")
    assert done.exit_code == 2
    assert "--ledger" in done.output
    assert not (tmp_path / "ledger").exists()


def test_settings_are_replaced_by_their_path() -> None:
    (trial, *_) = JainWallaceOptions(corpora=("sst",), encoders=("average",), attentions=("dot",)).recipes()
    assert isinstance(trial, Performance)
    changed = replace_setting(trial, ["subject", "training", "optimizer", "lr"], 1)
    assert isinstance(changed, Performance)
    assert changed.subject.training.optimizer.lr == 1.0  # type: ignore[attr-defined]
    assert changed.subject.architecture.encoder == Average(128)  # type: ignore[attr-defined]
    assert trial.subject.training.optimizer.lr == 0.001  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="training"):
        replace_setting(trial, ["subject", "trainings"], 1)


def test_changes_are_read_as_json_and_lists_stay_lists() -> None:
    texts = ["embeddings=random", "subject.training.epochs=4", "encoders=bilstm", "error=0.5"]
    assert parse_changes(PAPER, texts) == {
        "embeddings": "random",
        "subject.training.epochs": 4,
        "encoders": ["bilstm"],
        "error": 0.5,
    }


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (Measured(value=0.5), 0.5000001, True),
        (Measured(value=0.5), 0.50001, False),
        (Measured(value=0.5, std=0.02, seeds=3), 0.519, True),
        (Measured(value=0.5, std=0.02, seeds=3), 0.521, False),
        (Measured(value=None), None, True),
        (Measured(value=0.5), None, False),
    ],
)
def test_a_repeated_number_is_the_recorded_one_or_within_its_deviation(
    old: Measured, new: float | None, *, same: bool, place: Path
) -> None:
    record = records(place / "ledger")[CELL].model_copy(update={"ours": old})
    assert is_same_number(record, Measured(value=new)) == same
