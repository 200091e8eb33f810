"""Subjects: what their artefacts tell, that they come back as they were trained, and imposed attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from heedful.attributions.attention import RawAttention
from heedful.data.tokenization import Words
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Perceptron
from heedful.models.transformer import Transformer
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import FromModel, UniformAttention
from heedful.training.attribution_tables import AttributionTable
from heedful.training.objectives import ImposedAttention
from heedful.training.trainer import evaluate
from heedful.trials.performance import Performance
from heedful.types import UserError
from tests.tiny import subject


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def test_the_notes_tell_sizes_scores_and_the_chosen_epoch(workspace: Workspace) -> None:
    notes = workspace.get(subject()).notes
    assert notes["sizes"] == {split: {"negative": 20, "positive": 20} for split in ("train", "dev", "test")}
    assert notes["about"] == {"corpus": "sentences", "encoder": "bilstm", "attention": "additive", "seed": 0}
    assert notes["best_epoch"] in (2, 3)
    assert notes["selected_on"] == "dev"
    # table 16 x 6, BiLSTM 2 x 4 x 4 x (6 + 4 + 2), attention 8 x 4 + 4 + 4, decoder 8 + 1
    assert notes["parameters"] == 16 * 6 + 384 + 40 + 9


def test_a_restored_subject_scores_as_it_did(workspace: Workspace) -> None:
    trained = subject().restore(workspace)
    scores = workspace.get(subject()).notes["scores"]
    assert isinstance(scores, dict)
    assert evaluate(trained.model, trained.batch("test"), 64) == scores["test"]
    assert not trained.model.training


def test_a_subject_is_the_same_whatever_the_inference_batch_size(workspace: Workspace, tmp_path: Path) -> None:
    one, other = workspace.get(subject()), Workspace(tmp_path, batch_size=3).get(subject())
    assert all(torch.equal(one.tensors[key], other.tensors[key]) for key in one.tensors)


def test_uniform_attention_is_imposed_in_training_and_ever_after(workspace: Workspace) -> None:
    trained = replace(subject(), objective=ImposedAttention(UniformAttention())).restore(workspace)
    batch = trained.batch("test")
    attention = trained.model(batch).attention[:, 0, 0, 0]
    assert torch.allclose(attention, batch.content_mask / batch.content_mask.sum(1, keepdim=True))


def test_borrowed_attention_is_that_of_the_other_subject(workspace: Workspace) -> None:
    guided = replace(
        subject(), architecture=Attentive(Perceptron(4), Additive()), objective=ImposedAttention(FromModel(subject()))
    )
    assert subject() in guided.dependencies
    trained, base = guided.restore(workspace), subject().restore(workspace)
    batch = trained.batch("test")
    assert torch.equal(trained.model(batch).attention, base.model(batch).attention)
    assert not torch.equal(trained.model(batch).logits, base.model(batch).logits)


def test_a_split_that_preprocessing_empties_is_refused_in_plain_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no example of the train split is left \\(40 100 words or fewer\\)"):
        Workspace(tmp_path).get(replace(subject(), tokenization=Words(longer_than=100)))


def test_performance_has_a_row_per_test_instance_and_the_scores_of_the_subject(workspace: Workspace) -> None:
    artefact = workspace.get(Performance(subject()))
    scores = workspace.get(subject()).notes["scores"]
    assert isinstance(scores, dict)
    assert Performance.flat_summary(artefact.table) == pytest.approx(scores["test"])
    assert len(artefact.table) == 40
    assert "right on" in Performance.interpret_table(artefact.table)
    assert len(Performance.figures(artefact.table)) == 1


def test_attributed_keeps_units_and_weights_of_every_instance(workspace: Workspace) -> None:
    table = workspace.get(AttributionTable(subject(), RawAttention())).table
    row = table[table["uid"] == "test-3"].iloc[0]
    assert row["units"][0] == "<sos>"
    assert sum(row["scores"]) == pytest.approx(1.0)
    assert len(row["units"]) == len(row["scores"]) == len(row["scored"])
    assert row["scores"][0] == 0.0


def test_words_that_the_vocabulary_does_not_know_are_shown_as_written(workspace: Workspace) -> None:
    rare = replace(subject(), tokenization=Words(min_documents=30))
    table = workspace.get(AttributionTable(rare, RawAttention())).table
    words = {unit for units in table["units"] for unit in units}
    assert "<unk>" not in words
    assert {"good", "bad"} <= words


def test_the_history_is_the_table(workspace: Workspace) -> None:
    table = workspace.get(subject()).table
    assert isinstance(table, pd.DataFrame)
    assert table["epoch"].tolist() == [1, 2, 3]
    assert {"loss", "roc_auc", "accuracy"} <= set(table.columns)


def test_a_transformer_is_named_after_its_folder_or_the_one_around_it() -> None:
    assert Transformer("somewhere/tiny-bert").describe()["encoder"] == "tiny-bert"
    assert Transformer("somewhere/tiny-bert/model").describe()["encoder"] == "tiny-bert"
