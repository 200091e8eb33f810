"""Attribution tables: units and scores of each example, the completeness error, limits, and images."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from heedful.attributions.attention import RawAttention
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.data.tokenization import Words
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable, ImageSample, completeness_error, sample_rows
from heedful.types import UserError
from tests.tiny import subject


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def test_a_table_has_units_and_scores_of_every_example(workspace: Workspace) -> None:
    table = workspace.get(AttributionTable(subject(), RawAttention())).table
    row = table[table["uid"] == "test-3"].iloc[0]
    assert row["units"][0] == "<sos>"
    assert sum(row["scores"]) == pytest.approx(1.0)
    assert len(row["units"]) == len(row["scores"]) == len(row["scored"])
    assert row["scores"][0] == 0.0


def test_words_outside_the_vocabulary_are_shown_as_written(workspace: Workspace) -> None:
    rare = replace(subject(), tokenization=Words(min_documents=30))
    table = workspace.get(AttributionTable(rare, RawAttention())).table
    words = {unit for units in table["units"] for unit in units}
    assert "<unk>" not in words
    assert {"good", "bad"} <= words


def test_the_notes_have_the_completeness_error_of_the_table(workspace: Workspace) -> None:
    artefact = workspace.get(AttributionTable(subject(), IntegratedGradients(n_steps=4), limit=8))
    error = completeness_error(artefact.table)["missed"]
    assert artefact.notes["missed"] == error
    sums = [sum(scores) for scores in artefact.table["scores"]]
    difference = sum(abs(total - gap) for total, gap in zip(sums, artefact.table["gap"], strict=True)) / 8
    assert isinstance(error, dict)
    assert error["largest"] == pytest.approx(artefact.table["gap"].abs().max() / difference)


def test_a_gap_without_a_difference_counts_as_one_and_an_undefined_one_is_null() -> None:
    nothing = pd.DataFrame({"scores": [[0.5], [0.0]], "gap": [0.5, 0.0]})
    assert completeness_error(nothing) == {"missed": {"largest": 1.0, "mean": 0.5}}
    assert completeness_error(nothing.assign(gap=math.nan)) == {"missed": {"largest": None, "mean": None}}
    assert completeness_error(nothing.drop(columns="gap")) == {}


def test_a_limit_takes_the_same_examples_for_every_model_in_order(workspace: Workspace) -> None:
    one, other = (subject(seed=seed).restore(workspace).batch("test") for seed in (0, 1))
    drawn = sample_rows(one, 7)
    assert drawn.uids == sample_rows(other, 7).uids
    assert list(drawn.uids) == sorted(drawn.uids, key=one.uids.index)
    assert sample_rows(one, 99) is one
    for make in (lambda: sample_rows(one, 0), lambda: AttributionTable(subject(), RawAttention(), limit=0)):
        with pytest.raises(UserError, match="limit must be above 0"):
            make()


def test_facts_have_the_method_and_the_split() -> None:
    facts = AttributionTable(subject(), RawAttention(), "dev", 5).describe()
    assert facts == {**subject().describe(), "method": "attention", "split": "dev", "limit": 5}


def test_texts_are_no_images(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="not an image"):
        workspace.get(ImageSample(subject()))
