"""Trained models: their notes, restoring, imposed attention, other data, and the facts for the index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from heedful.data.splitting import SubsampledCorpus
from heedful.data.table import Table
from heedful.data.words import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Perceptron
from heedful.models.transformer import Transformer
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.tasks import Regression
from heedful.training import trained_model
from heedful.training.attention_sources import FromModel, UniformAttention
from heedful.training.objectives import ImposedAttention
from heedful.training.trained_model import OnOtherData, PreparedCorpus
from heedful.training.trainer import evaluate, predict
from heedful.trials import performance
from heedful.trials.performance import Performance
from heedful.types import SPLITS, Splits, UserError
from tests.tiny import Sentences, subject


def test_the_notes_have_sizes_parameters_and_the_best_epoch(workspace: Workspace) -> None:
    notes = workspace.get(subject()).notes
    assert notes["sizes"] == {split: {"negative": 20, "positive": 20} for split in ("train", "dev", "test")}
    assert notes["about"] == {"corpus": "sentences", "encoder": "bilstm", "attention": "additive", "seed": 0}
    assert notes["best_epoch"] in (2, 3)
    assert notes["selected_on"] == "dev"
    # table 16 x 6, BiLSTM 2 x 4 x 4 x (6 + 4 + 2), attention 8 x 4 + 4 + 4, decoder 8 + 1
    assert notes["parameters"] == 16 * 6 + 384 + 40 + 9


def test_a_restored_model_has_the_stored_scores(workspace: Workspace) -> None:
    trained = subject().restore(workspace)
    scores = workspace.get(subject()).notes["scores"]
    assert isinstance(scores, dict)
    assert evaluate(trained.model, trained.batch("test"), 64) == scores["test"]
    assert not trained.model.training


@dataclass(frozen=True)
class HalfLabelled(Sentences):
    """Every second test sentence has no label."""

    def read(self, data: Path) -> Splits:
        whole = super().read(data)
        test = tuple(replace(example, label=None) if n % 2 else example for n, example in enumerate(whole.test))
        return replace(whole, test=test)


def test_examples_without_labels_are_left_out_of_scores_and_refused_in_training(workspace: Workspace) -> None:
    trained, recipe = subject().restore(workspace), replace(subject(), corpus=HalfLabelled())
    corpus = PreparedCorpus(recipe, workspace)
    labelled = [example for example in corpus.examples["test"] if example.label is not None]
    assert 0 < len(labelled) < len(corpus.examples["test"])
    scores = corpus.evaluate(trained.model, workspace)["test"]
    assert scores == evaluate(trained.model, corpus.tokenizer(labelled), 64)
    with pytest.raises(UserError, match="has no label"):
        workspace.get(recipe)


def test_the_inference_batch_size_changes_no_weight(workspace: Workspace, tmp_path: Path) -> None:
    one, other = workspace.get(subject()), Workspace(tmp_path, batch_size=3).get(subject())
    assert all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors)


def test_imposed_uniform_attention_stays_after_restoring(workspace: Workspace) -> None:
    trained = replace(subject(), objective=ImposedAttention(UniformAttention())).restore(workspace)
    batch = trained.batch("test")
    attention = trained.model(batch).attention[:, 0, 0, 0]
    assert torch.allclose(attention, batch.content_mask / batch.content_mask.sum(1, keepdim=True))


def test_attention_from_a_model_is_that_of_the_model(workspace: Workspace) -> None:
    guided = replace(
        subject(), architecture=Attentive(Perceptron(4), Additive()), objective=ImposedAttention(FromModel(subject()))
    )
    assert subject() in guided.dependencies
    trained, base = guided.restore(workspace), subject().restore(workspace)
    batch = trained.batch("test")
    assert torch.equal(trained.model(batch).attention, base.model(batch).attention)
    assert not torch.equal(trained.model(batch).logits, base.model(batch).logits)


def test_a_split_that_preprocessing_empties_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no example of the train split is left \\(40 100 words or fewer\\)"):
        Workspace(tmp_path).get(replace(subject(), tokenization=Words(longer_than=100)))


def test_performance_has_a_row_per_test_example_and_the_scores_of_the_model(workspace: Workspace) -> None:
    artefact = workspace.get(Performance(subject()))
    scores = workspace.get(subject()).notes["scores"]
    assert isinstance(scores, dict)
    assert dict(zip(artefact.summary["metric"], artefact.summary["value"], strict=True)) == pytest.approx(
        scores["test"]
    )
    assert len(artefact.table) == 40
    assert len(Performance.figures(artefact.table)) == 1


def test_the_history_is_the_table(workspace: Workspace) -> None:
    table = workspace.get(subject()).table
    assert isinstance(table, pd.DataFrame)
    assert table["epoch"].tolist() == [1, 2, 3]
    assert {"loss", "roc_auc", "accuracy"} <= set(table.columns)


def test_a_transformer_is_named_after_its_folder_or_the_parent_of_a_generic_one() -> None:
    assert Transformer("somewhere/tiny-bert").describe()["encoder"] == "tiny-bert"
    assert Transformer("somewhere/tiny-bert/model").describe()["encoder"] == "tiny-bert"


@dataclass(frozen=True)
class Renamed(Sentences):
    """The same sentences with other class names, or for regression."""

    classes: tuple[str, ...] = ("Negative", "POSITIVE")

    def read(self, data: Path) -> Splits:
        splits = Sentences(self.count).read(data)
        return replace(splits, class_names=self.classes, task=splits.task if self.classes else Regression())


def test_a_model_on_other_data_has_its_own_weights_and_the_other_examples(workspace: Workspace) -> None:
    moved = OnOtherData(subject(), Renamed(10), merge_splits=True)
    here, home = moved.restore(workspace), subject().restore(workspace)
    assert [len(here.examples(split)) for split in SPLITS] == [0, 0, 30]
    assert all(torch.equal(value, here.model.state_dict()[name]) for name, value in home.model.state_dict().items())
    artefact = workspace.get(moved)
    assert not artefact.tensors
    assert artefact.notes["scores"] == {}
    assert artefact.notes["trained_on"] == subject().about
    assert moved.dependencies == (subject(),)
    assert len(OnOtherData(subject(), Renamed(10)).restore(workspace).examples("test")) == 10


@pytest.mark.parametrize(
    ("classes", "message"), [(("positive", "negative"), "has the classes positive, negative"), ((), "same task")]
)
def test_other_data_must_have_the_same_task_and_classes(
    classes: tuple[str, ...], message: str, workspace: Workspace
) -> None:
    with pytest.raises(UserError, match=message):
        OnOtherData(subject(), Renamed(10, classes)).restore(workspace)


def test_the_facts_for_the_index_have_model_data_and_objective() -> None:
    about = {"corpus": "sentences", "encoder": "bilstm", "attention": "additive", "seed": 0}
    facts = {**about, "embeddings": "random", "quick": False}
    assert subject().describe() == {**facts, "objective": "supervised"}
    uniform = replace(subject(), objective=ImposedAttention(UniformAttention()), corpus=SubsampledCorpus(Sentences()))
    assert uniform.describe() == {**facts, "quick": True, "objective": "imposed UniformAttention"}
    assert OnOtherData(subject(), Sentences(10)).describe() == {**facts, "objective": "supervised"}
    assert {recipe.kind for recipe in (subject(), OnOtherData(subject(), Sentences(10)))} == {"model"}


def write_reviews(path: Path, words: tuple[str, str]) -> None:
    """A table with the first of these words in the texts of class 0, the second in those of class 1."""
    topics = [f"{first} {second}" for first in ("bread", "rust", "mint", "snow") for second in ("bus", "bell", "door")]
    rows = [{"text": f"the {topic} {word}", "label": label} for topic in topics for label, word in enumerate(words)]
    pd.DataFrame(rows).to_csv(path, index=False)


@pytest.mark.slow
@pytest.mark.parametrize("back", ["before its end", "after it"])
def test_a_trial_never_keeps_the_rows_of_a_file_that_changes_and_changes_back(
    back: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, get = tmp_path / "texts.csv", Workspace.get
    write_reviews(path, ("dull", "fine"))
    trial = Performance(replace(subject(), corpus=Table(str(path))))
    workspace = Workspace(tmp_path / "workspace", model_cache={})
    workspace.get(trial.subject)

    def get_and_change(self: Workspace, recipe: Recipe) -> Artefact:
        artefact = get(self, recipe)
        write_reviews(path, ("fine", "dull"))
        return artefact

    def change_back(*given: object) -> object:
        if back == "before its end":
            write_reviews(path, ("dull", "fine"))
        return predict(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "get", get_and_change)
        patch.setattr(performance, "predict", change_back)
        with pytest.raises(UserError, match=r"changed while .*; run it again"):
            get(workspace, trial)
    write_reviews(path, ("dull", "fine"))
    again, clean = workspace.get(trial), Workspace(tmp_path / "clean").get(trial)
    assert_frame_equal(again.table, clean.table)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["build_model", "evaluate"], ids=["before the first epoch", "after the last"])
def test_a_model_is_never_made_of_the_rows_that_its_file_had_before(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "texts.csv"
    write_reviews(path, ("dull", "fine"))
    recipe = replace(subject(), corpus=Table(str(path)))
    workspace, kept = Workspace(tmp_path / "workspace"), vars(trained_model)[moment]

    def save_again(*given: object) -> object:
        monkeypatch.setattr(trained_model, moment, kept)
        write_reviews(path, ("fine", "dull"))
        return kept(*given)

    monkeypatch.setattr(trained_model, moment, save_again)
    with pytest.raises(UserError, match=r"changed while .*; run it again"):
        workspace.get(recipe)
    for words in (("fine", "dull"), ("dull", "fine")):
        write_reviews(path, words)
        one, other = workspace.get(recipe), Workspace(tmp_path / f"clean-{words[0]}").get(recipe)
        assert all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors)
        assert one.notes == other.notes


def test_a_quick_model_is_quick_on_other_data() -> None:
    quick = replace(subject(), corpus=SubsampledCorpus(Sentences(), 30, 20, 20))
    assert OnOtherData(quick, Sentences()).describe()["quick"] is True
    assert OnOtherData(subject(), Sentences()).describe()["quick"] is False
    assert OnOtherData(subject(), Sentences()).describe()["objective"] == "supervised"
