"""`heedful audit`: pages, JSON, model card and requirements with their exit codes, and a table of bad inputs.

A bad input is one line and exit code 2, and leaves the finished audit beside it as it is.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from heedful.audits import schedule
from heedful.audits.audit_result import Audit
from heedful.audits.evidence import BlockSearch
from heedful.audits.questions import QUESTIONS
from heedful.cli.options import ModelOptions
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.types import UserError
from tests.claimed_arrays import claiming
from tests.given import CLASSES, Verdicts, save_model
from tests.networks import network
from tests.test_hostile_inputs import command

TEXTS = 30
METHOD = "leave-one-out"


@dataclass(frozen=True)
class Place:
    """A folder with a model, texts, and a finished audit in `work` and `pages`."""

    folder: Path

    @property
    def base(self) -> tuple[object, ...]:
        return (*self.source, "-w", self.folder / "work", "--out", self.folder / "pages", *FEW)

    @property
    def source(self) -> tuple[object, object, object]:
        return ("audit", self.folder / "model", self.folder / "texts.csv")

    def state(self) -> dict[Path, tuple[int, int]]:
        """Size and time of every file of the finished audit."""
        files = [path for name in ("work", "pages", "model") for path in (self.folder / name).rglob("*")]
        files = [path for path in files if path.is_file() and ".locks" not in path.parts]
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


FEW = ("--texts", "2", "--method", METHOD, "--only-methods", "--workers", "1")


def rows() -> list[tuple[str, str]]:
    return [(str(example.parts[0]), CLASSES[int(example.label or 0)]) for example in Verdicts(TEXTS).read(Path()).test]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("audited")
    save_model(folder / "model")
    (folder / "texts.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows()))
    finished = Place(folder)
    code, out, err = command(*finished.base, "--json", folder / "audit.json", "--card", folder / "card.md")
    assert (code, err) == (0, ""), err
    assert "Model:" in out
    return finished


# What it writes


def test_an_audit_writes_pages_json_and_a_card_of_the_same_result(audited: Place) -> None:
    result = Audit.from_json((audited.folder / "audit.json").read_bytes())
    assert result.data.texts == 2
    assert result.data.columns == {"text": "text", "label": "label"}
    page = (audited.folder / "pages" / "index.html").read_text()
    card = (audited.folder / "card.md").read_text()
    for method in result.methods:
        assert method.name in page
        assert method.name in card or method.control
    assert "<script" not in card
    assert (audited.folder / "pages" / "texts").is_dir()


def test_a_requirement_that_is_not_met_is_exit_code_3_with_the_reason(audited: Place, tmp_path: Path) -> None:
    required = (f"{METHOD}: faithful, plausible, shown", "random: shown")
    asked = [part for each in required for part in ("--require", each)]
    code, _, err = command(*audited.base[:5], "--out", tmp_path / "p", *FEW, "-q", *asked)
    lines = err.splitlines()
    assert code == 3
    # Faithfulness asks for dependence on the model as well.
    for line, named in zip(lines, (METHOD, METHOD, METHOD, METHOD, "random"), strict=True):
        assert named in line
    assert "faithful" in lines[0]
    assert "plausible" in lines[1]
    assert "model-dependent" in lines[2]
    assert (tmp_path / "p" / "index.html").is_file(), "the pages are written all the same"


def test_a_requirement_that_is_met_is_exit_code_0(
    audited: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two texts cannot support is supported by changing the verdicts of the stored result."""
    original = schedule.audit

    def supported(*arguments: object, **options: object) -> Audit:
        plain = original(*arguments, **options).to_json()  # type: ignore[arg-type]
        content = json.loads(plain)
        for method in content["methods"]:
            for answer in method["answers"]:
                answer["verdict"] = "supported"
            method["decision"] = "may be shown" if not method["control"] else None
        return Audit.from_json(json.dumps(content))

    monkeypatch.setattr(schedule, "audit", supported)
    asked = f"{METHOD}: {', '.join(question.name for question in QUESTIONS)}, shown"
    code, out, err = command(*audited.base[:5], "--out", tmp_path / "p", *FEW, "-q", "--require", asked)
    assert (code, out, err) == (0, "", "")


def test_an_interrupt_writes_what_is_finished_and_is_130(
    audited: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(self: BlockSearch, workspace: Workspace) -> Artefact:
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockSearch, "make", make)
    words = ("--texts", "12", *FEW[2:], "--json", tmp_path / "a.json", "-q")
    code, _, err = command(*audited.source, "-w", audited.folder / "work", "--out", tmp_path / "p", *words)
    assert code == 130
    assert err.count("\n") == 1
    assert "interrupted" in err
    assert Audit.from_json((tmp_path / "a.json").read_bytes()).data.texts == 2
    assert (tmp_path / "p" / "index.html").is_file()
    code, _, err = command(*audited.source, "-w", tmp_path / "w", "--out", tmp_path / "q", *words)
    assert code == 130
    assert err.count("\n") == 1


def test_opening_the_model_counts_in_the_minutes(
    audited: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, opened, original = list[float](), list[float](), ModelOptions.load

    def load(self: ModelOptions, *arguments: object) -> object:
        opened.append(time.monotonic())
        return original(self, *arguments)  # type: ignore[arg-type]

    def audit(*_: object, start: float, **__: object) -> Audit:
        starts.append(start)
        raise UserError("enough")

    monkeypatch.setattr(ModelOptions, "load", load)
    monkeypatch.setattr(schedule, "audit", audit)
    before = time.monotonic()
    assert command(*audited.base[:5], "--out", tmp_path / "p", *FEW)[0] == 2
    assert before <= starts[0] <= opened[0]


# Bad inputs

Words = tuple[object, ...]
Bad = Callable[[Place, Path], Words]
"""The words of a command, from the place of the finished audit and a folder for the bad input."""


def data(name: str, content: str | bytes, *more: object) -> Bad:
    """Other texts."""

    def words(audited: Place, folder: Path) -> Words:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return ("audit", audited.folder / "model", folder / name, *audited.base[3:], *more)

    return words


def model(make: Callable[[Path, Path], object]) -> Bad:
    """Another model: `make(good, bad)` writes the folder `bad`."""

    def words(audited: Place, folder: Path) -> Words:
        make(audited.folder / "model", folder / "bad")
        return ("audit", folder / "bad", *audited.base[2:])

    return words


def option(*more: object) -> Bad:
    return lambda audited, _: (*audited.base, *more)


def file(name: str, content: str | bytes, flag: str, below: str = "") -> Bad:
    """A file that is given with an option, or a path below it."""

    def words(audited: Place, folder: Path) -> Words:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return (*audited.base, flag, folder / name / below)

    return words


def occupied(flag: str) -> Bad:
    """A folder where a file is expected."""
    return lambda audited, folder: (*audited.base, flag, folder)


def copied(good: Path, bad: Path, without: str = "", **contents: bytes) -> None:
    """A copy of the model without some files, and with others instead."""
    bad.mkdir()
    for path in good.iterdir():
        if not without or without not in path.name:
            (bad / path.name).write_bytes(path.read_bytes())
    for name, content in contents.items():
        (bad / name.replace("__", ".")).write_bytes(content)


def without_head(good: Path, bad: Path) -> None:
    copied(good, bad, "model.safetensors")
    config = network("bert", vocab_size=20, max_position_embeddings=40, num_labels=3).config
    AutoModel.from_config(config).save_pretrained(bad)  # type: ignore[no-untyped-call]


def scores(count: int, **changes: object) -> str:
    """A file of scores for the first texts."""
    lines = [{"text": text, "scores": [0.5] * len(text.split()), "method": "mine"} for text, _ in rows()[:count]]
    return "\n".join(json.dumps({**line, **changes}) for line in lines)


SENTENCES = "".join(f"{text},{label}\n" for text, label in rows())
BAD: dict[str, tuple[Bad, str]] = {
    # The model
    "no model": (model(lambda _, bad: None), "bad"),
    "a file as model": (model(lambda _, bad: bad.write_text("weights")), "folder"),
    "an empty folder as model": (model(lambda _, bad: bad.mkdir()), "config.json"),
    "a model without a head": (model(without_head), "bad"),
    "a model without a tokenizer": (model(lambda good, bad: copied(good, bad, "tokenizer")), "tokenizer"),
    "a model without weights": (model(lambda good, bad: copied(good, bad, "safetensors")), "safetensors"),
    "a broken configuration": (model(lambda good, bad: copied(good, bad, config__json=b"{")), "config.json"),
    "damaged weights": (model(lambda good, bad: copied(good, bad, model__safetensors=b"\0" * 99)), "model"),
    # The texts
    "no data": (lambda audited, folder: (*audited.source[:2], folder / "no.csv", *audited.base[3:]), "no."),
    "a folder as data": (lambda audited, folder: (*audited.source[:2], folder, *audited.base[3:]), "unknown"),
    "empty data": (data("a.csv", ""), "a.csv"),
    "only a header": (data("a.csv", "text,label\n"), "a.csv"),
    "a spreadsheet": (data("a.xlsx", "spread"), "unknown"),
    "not UTF-8": (data("a.csv", b"text\ncaf\xe9 is a long film\n"), "UTF-8"),
    "broken JSON": (data("a.json", '[{"text": '), "a.json"),
    "JSON without rows": (data("a.json", "3"), "a.json"),
    "numbers as texts": (data("a.csv", "a,b\n1,2\n3,4\n"), "--text-column"),
    "two texts": (data("a.csv", "text,review\na long film,the plot\nthe end,a scene\n"), "--text-column"),
    "two labels": (data("a.csv", "text,label,class\na film,awful,splendid\nan end,splendid,awful\n"), "--label-column"),
    "strange labels": (data("a.csv", "text,label\na long film,good\nthe end is long,bad\na plot,ugly\n"), "label"),
    "no such text column": (option("--text-column", "body"), "'body'"),
    "no such label column": (option("--label-column", "grade"), "'grade'"),
    "no such second column": (option("--second-column", "other"), "'other'"),
    "no such rationale column": (option("--rationale-column", "marks"), "'marks'"),
    "an unknown form of rationales": (option("--rationale-form", "stars"), "indices"),
    "a form without rationales": (option("--rationale-form", "flags"), "--rationale-column"),
    "no such id column": (option("--id-column", "number"), "'number'"),
    "a column twice": (data("a.csv", "text,text\na long film,the plot\n"), "text"),
    "short texts": (data("a.csv", "text\na film\nthe end\nplot\n"), "3"),
    "blank texts": (data("a.csv", 'text,label\n" ",awful\n"",awful\n', "--text-column", "text"), "text"),
    "an open quote": (data("a.csv", "text,label\n" + SENTENCES + '"open,awful\n'), "a.csv"),
    # Options
    "an unknown method": (option("--method", "integrated-gradient"), "integrated-gradients"),
    "a control as method": (option("--method", "random"), "random"),
    "no minutes": (option("--minutes", "0"), "minutes"),
    "minutes that are no number": (option("--minutes", "nan"), "minutes"),
    "negative minutes": (option("--minutes", "-1"), "minutes"),
    "endless minutes": (option("--minutes", "1e99"), "minutes"),
    "too few minutes": (
        lambda audit, folder: (*audit.source, "-w", folder / "w", "--out", folder / "o", *FEW, "--minutes", "0.001"),
        "minutes",
    ),
    "a requirement without words": (option("--require", METHOD), "--require"),
    "a requirement without a method": (option("--require", ": faithful"), "--require"),
    "a requirement of an unknown method": (option("--require", "attenton: faithful"), "attenton"),
    "an unknown requirement": (option("--require", f"{METHOD}: splendid"), "'splendid'"),
    "another place": (option("--where", "elsewhere"), "--where"),
    "two processes here": (option("--where", "here", "--workers", "2"), "--where here"),
    # Scores made elsewhere
    "no scores": (lambda audited, folder: (*audited.base, "--attributions", folder / "no.jsonl"), "no."),
    "empty scores": (file("s.jsonl", "", "--attributions"), "s.jsonl"),
    "scores of other texts": (file("s.jsonl", scores(20, text="another text"), "--attributions"), "s.jsonl"),
    "scores of few texts": (file("s.jsonl", scores(3), "--attributions"), "s.jsonl"),
    "too many scores": (file("s.jsonl", scores(20, scores=[1.0] * 99), "--attributions"), "99"),
    "scores that are words": (file("s.jsonl", scores(20, scores=["high"] * 5), "--attributions"), "s.jsonl"),
    "scores that are no numbers": (file("s.jsonl", scores(20, scores=[float("nan")] * 5), "--attributions"), "s.jsonl"),
    "an unknown target": (file("s.jsonl", scores(20, target="superb"), "--attributions"), "superb"),
    "scores of 1e308": (file("s.jsonl", scores(20, scores=[1e308] * 5), "--attributions"), "1e+308"),
    "line numbers alone": (file("s.jsonl", scores(20, text=None, uid=3), "--attributions"), "20"),
    "an array of 8 TiB": (file("s.npz", claiming((1 << 40,), "scores"), "--attributions"), str(1 << 40)),
    "pickled scores": (file("s.pkl", pickle.dumps({"scores": [1.0]}), "--attributions"), "unknown"),
    "an array that is none": (file("s.npz", b"PK\3\4 nothing", "--attributions"), "s.npz"),
    # What it writes
    "a file as pages": (file("out", "mine", "--out"), "out"),
    "a folder as JSON": (occupied("--json"), "--json"),
    "a folder as card": (occupied("--card"), "--card"),
    "a file as workspace": (file("w", "mine", "-w"), "w"),
    "a workspace below a file": (file("w", "mine", "-w", below="x"), "w"),
    "JSON below a file": (file("j", "mine", "--json", below="x.json"), "--json"),
    "a card below a file": (file("c", "mine", "--card", below="x.md"), "--card"),
    "pages below a file": (file("o", "mine", "--out", below="x"), "o"),
    # Students
    "no texts for students": (lambda audited, folder: (*audited.base, "--train-data", folder / "no.csv"), "no."),
    "texts for students without a text": (file("t.csv", "a,b\n1,2\n3,4\n", "--train-data"), "--text-column"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_one_line_and_exit_code_2(name: str, audited: Place, tmp_path: Path) -> None:
    make, word = BAD[name]
    words = make(audited, tmp_path)
    before = audited.state()
    code, out, err = command(*words)
    assert (code, err.count("\n")) == (2, 1), (code, out, err)
    assert err.startswith("heedful: ")
    assert word in err
    assert "Traceback" not in out
    assert before.items() <= audited.state().items()


def test_there_are_forty_bad_inputs() -> None:
    assert len(BAD) >= 40


def test_arrays_of_objects_are_not_unpickled(audited: Place, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", scores=np.array([{"a": 1}], dtype=object))
    code, _, err = command(*audited.base, "--attributions", tmp_path / "s.npz")
    assert (code, err.count("\n")) == (2, 1)


def test_the_finished_audit_is_still_finished_after_all_this(audited: Place, tmp_path: Path) -> None:
    """Nothing is made again, and a quiet command says nothing."""

    def made() -> dict[Path, tuple[int, int]]:
        return {path: when for path, when in audited.state().items() if path.name == "recipe.json"}

    before = made()
    words = (*FEW, "--json", tmp_path / "a.json", "-q")
    outcome = command(*audited.source, "-w", audited.folder / "work", "--out", tmp_path / "p", *words)
    assert outcome == (0, "", "")
    assert made() == before
    first, again = (Audit.from_json(path.read_bytes()) for path in (audited.folder / "audit.json", tmp_path / "a.json"))
    assert [method.achievable for method in first.methods] == [method.achievable for method in again.methods]
