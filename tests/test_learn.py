"""`heedful learn`: an explainer for a user's model from texts alone, saved, described and loaded again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import PreTrainedModel
from typer.testing import CliRunner, Result

from heedful import cli, learn
from heedful.attributions.head_mix import HeadMix
from heedful.data.columns import TableColumns
from heedful.data.splitting import normalized_content
from heedful.data.subwords import Subwords
from heedful.data.table import Table
from heedful.learn import explainer_trial, open_teacher
from heedful.models.transformer import Transformer
from heedful.results import Statistic, summary_frame
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
from heedful.training.checkpoint import Checkpoint
from heedful.training.smat import SMaT
from heedful.trials.simulability import NO_EXPLANATION
from heedful.types import Example, UserError
from tests.networks import TinyTransformer, network
from tests.tiny import Sentences
from tests.training.test_checkpoint import fine_tuned, tokenizer

NOWHERE = Path("nowhere")


def written(path: Path, count: int = 60) -> Path:
    """A file of texts without labels."""
    texts = [example.parts[0] for example in Sentences(count).read(NOWHERE).train]
    path.write_text("\n".join(["said,again", *(f"{text},{text}" for text in texts)]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model `teacher` and a file `said.csv`."""
    here = tmp_path_factory.mktemp("learn")
    fine_tuned(here / "teacher")
    written(here / "said.csv")
    return here


def teacher(folder: Path) -> Checkpoint:
    return open_teacher(str(folder / "teacher"), str(folder / "said.csv"), TableColumns("said"))


@pytest.fixture(scope="module")
def learned(folder: Path) -> Result:
    """The command, run once."""
    return heedful(folder, "--json", str(folder / "out.json"))


def heedful(folder: Path, *words: str) -> Result:
    """`heedful learn` in the folder, in this process, for two epochs."""
    places = ("-w", str(folder / "work"), "--out", str(folder / "explainer"))
    asked = ("--teacher", str(folder / "teacher"), "--data", str(folder / "said.csv"), "--text-column", "said")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn, "QUICK_EPOCHS", 3)
        patch.setenv("HEEDFUL_DATA", str(folder / "data"))
        return CliRunner().invoke(
            cli.app,
            ["learn", *asked, "--quick", "--seeds", "2", "--audit-minutes", "0", "--where", "here", *places, *words],
        )


@pytest.mark.slow
def test_the_command_says_what_was_tested_learned_and_not_meant(learned: Result, folder: Path) -> None:
    assert learned.exit_code == 0, learned.output
    results = json.loads((folder / "out.json").read_text(encoding="utf-8"))["results"]
    assert [(result["trial"], result["n"]) for result in results] == [("simulability", 9)]
    assert "2 students of each kind" in learned.output
    assert "42 texts" in learned.output
    assert " of 4 heads have weight" in learned.output
    assert "Only 9 texts were tested" in learned.output
    assert "What it does not mean" in learned.output
    means = [
        row["value"] for row in results[0]["summary"] if row["metric"] == "mean" and row["method"] != NO_EXPLANATION
    ]
    assert len(means) == 2
    assert all(f"{mean:.1%}" in learned.output for mean in means)


@pytest.mark.slow
def test_the_saved_explainer_explains_the_users_model_and_refuses_another(
    learned: Result, folder: Path, tmp_path: Path
) -> None:
    mix = HeadMix.load(folder / "explainer")
    batch = Subwords(str(folder / "teacher")).fit([])([Example("a", ("good film",)), Example("b", ("a bad plot",))])
    model = Transformer(str(folder / "teacher")).build(MulticlassClassification(2), None, torch.Generator())
    scores = mix(model, batch, torch.zeros(2, dtype=torch.long)).scores
    torch.testing.assert_close(scores.sum(1), torch.ones(2, dtype=torch.float64))
    other = TinyTransformer("bert", layers=3).build(MulticlassClassification(2), None, torch.Generator())
    with pytest.raises(UserError, match="learn one for this model"):
        mix(other, batch, torch.zeros(2, dtype=torch.long))


@pytest.mark.slow
def test_a_second_time_nothing_is_made(learned: Result, folder: Path) -> None:
    def made() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (folder / "work").iterdir()}

    before = made()
    again = heedful(folder)
    assert again.stdout == learned.stdout
    assert made() == before


@pytest.mark.slow
def test_the_teacher_is_never_changed(learned: Result, folder: Path) -> None:
    fine_tuned(folder / "twin")
    for path in sorted((folder / "twin").iterdir()):
        assert (folder / "teacher" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--teacher", "none"), "none: no such folder; --teacher is a folder with config.json"),
        (("--data", "none.csv"), "none.csv: no such file"),
        (("--text-column", "text"), "no column 'text' (--text-column); the columns are 'said', 'again'"),
        (("--size", "43"), "has 42 training texts; choose 1 to 42"),
        (("--label-column", "mood"), "no column 'mood' (--label-column)"),
        (("--where", "cloud"), "--where is pool, here, ray"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: Sequence[str], complaint: str, folder: Path) -> None:
    result = heedful(folder, *words)
    assert result.exit_code == 2, result.output
    assert complaint in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(("option", "name"), [("--teacher", "trunk"), ("--out", "file")])
def test_a_model_without_a_head_and_a_file_as_output_are_refused_before_any_work(
    option: str, name: str, folder: Path, tmp_path: Path
) -> None:
    trunk = cast("PreTrainedModel", network("bert", vocab_size=16, max_position_embeddings=24).base_model)
    trunk.save_pretrained(tmp_path / "trunk")
    tokenizer().save_pretrained(tmp_path / "trunk")
    (tmp_path / "file").touch()
    result = heedful(folder, option, str(tmp_path / name), "-w", str(tmp_path / "work"))
    assert result.exit_code == 2
    assert str(tmp_path / name) in result.output
    assert not [path for path in (tmp_path / "work").iterdir() if path.name.startswith(("Student", "Maps"))]


def test_students_are_as_many_as_asked_for_half_as_deep_and_not_the_teacher(folder: Path) -> None:
    trial = explainer_trial(teacher(folder), NOWHERE, size=20, seeds=(7, 8), quick=True)
    assert [name for name, _ in trial.arms] == ["no explanation", "attention", "SMaT"]
    assert trial.controls == (), "the report shows them, and none of the arms is one"
    assert trial == explainer_trial(teacher(folder), NOWHERE, size=20, seeds=(7, 8), quick=True)
    students = dict(trial.arms)["SMaT"]
    assert [(student.seed, student.data.train_size) for student in students] == [(7, 20), (8, 20)]
    assert all(isinstance(student, SMaT) for student in students)
    network = students[0].architecture.build(MulticlassClassification(2), None, torch.Generator().manual_seed(0))
    assert "only the first 1 of 2 layers are kept" in network.notes
    assert any("new head" in note for note in network.notes)


def test_labels_are_used_only_to_score_the_teacher(folder: Path, tmp_path: Path) -> None:
    rows = [f"{example.parts[0]},{example.label}" for example in Sentences(60).read(NOWHERE).train]
    (tmp_path / "labelled.csv").write_text("\n".join(["said,mood", *rows]), encoding="utf-8")
    labelled = open_teacher(str(folder / "teacher"), str(tmp_path / "labelled.csv"), TableColumns("said"))
    assert labelled.corpus.read(NOWHERE).train[0].label is not None
    assert teacher(folder).corpus.read(NOWHERE).train[0].label is None


def test_a_regression_model_is_simulated_by_its_numbers(folder: Path, tmp_path: Path) -> None:
    fine_tuned(tmp_path / "one", labels=1)
    found = open_teacher(str(tmp_path / "one"), str(folder / "said.csv"), TableColumns("said", "again"))
    assert found.corpus.read(NOWHERE).task == Regression()
    trained = found.restore(Workspace(tmp_path / "work"))
    assert trained.model(trained.batch("test")).logits.shape == (9, 1)


def test_a_binary_model_with_one_output_needs_the_names_of_both_classes(folder: Path, tmp_path: Path) -> None:
    fine_tuned(tmp_path / "one", labels=1)
    config = tmp_path / "one" / "config.json"
    changed = {**json.loads(config.read_text()), "problem_type": "multi_label_classification"}
    config.write_text(json.dumps(changed))
    with pytest.raises(UserError, match="--label-column"):
        open_teacher(str(tmp_path / "one"), str(folder / "said.csv"), TableColumns("said")).corpus.read(NOWHERE)


def test_unlabelled_texts_are_split_without_a_text_in_two_parts(tmp_path: Path) -> None:
    lines = [f"text {number % 50}" for number in range(100)]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf-8")
    splits = Table(str(path), TableColumns(classes=("no", "yes"))).read(NOWHERE)
    parts = [{normalized_content(example) for example in part} for part in (splits.train, splits.dev, splits.test)]
    assert [len(part) for part in (splits.train, splits.dev, splits.test)] == [68, 16, 16]
    assert sum(len(part) for part in parts) == len(set.union(*parts)) == 50
    assert {example.label for example in splits.train} == {None}
    few = tmp_path / "few.csv"
    few.write_text("\n".join(["text", *(f"text {number}" for number in range(39))]), encoding="utf-8")
    with pytest.raises(UserError, match="39 different texts, but at least 40 are needed"):
        Table(str(few), TableColumns(task="regression")).read(NOWHERE)


def test_the_heads_with_the_largest_weights_are_listed() -> None:
    few = learn._heads_sentence(HeadMix((1.0, 0.6, -2.0, -2.0), 2, 2))
    assert "2 of 4 heads" in few
    assert "layer 0 head 0 (70%), layer 0 head 1 (30%)." in few
    assert "all 8 heads" in learn._heads_sentence(HeadMix.from_phi(torch.full((2, 4), 0.125)))
    many = learn._heads_sentence(HeadMix((0.2, 0.2, 0.0, 0.2, 0.0, 0.1, 0.1, 0.2), 4, 2, "none"))
    assert "6 of 8 heads" in many
    assert many.endswith("layer 3 head 1 (20%), layer 2 head 1 (10%), ....")


def test_few_texts_and_a_constant_model_are_warned_about() -> None:
    def warnings(commonest: float, tested: int) -> list[str]:
        return learn._warnings(summary_frame([Statistic("commonest", value=commonest)]), tested)

    assert warnings(0.6, 200) == []
    few, same = warnings(0.95, 20)
    assert "20" in few
    assert "95%" in same
    assert warnings(float("nan"), 300) == []


def test_the_comparison_has_both_means_and_the_verdict() -> None:
    def sentence(learned: float, low: float, high: float) -> str:
        rows = [
            Statistic("pearson", value=1.0),
            Statistic("margin", value=0.01),
            Statistic("size", subset="9 examples", value=9),
            Statistic("mean", "SMaT", "9 examples", learned),
            Statistic("mean", "attention", "9 examples", 0.75),
            Statistic("difference", "SMaT", "9 examples", 0.0, low, high, 2),
        ]
        return learn._comparison_sentence(summary_frame(rows), 9)

    undecided = sentence(0.5, -0.1, 0.1)
    assert all(word in undecided for word in ("0.500", "0.750", "gained nothing", "undecided"))
    better = sentence(0.8, 0.1, 0.2)
    assert "gained nothing" not in better
    assert "explanations help" in better
    assert "do not help" in sentence(0.5, -0.2, -0.1)
