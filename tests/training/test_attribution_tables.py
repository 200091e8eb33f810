"""Attribution tables: units and scores of each example, the completeness error, limits, and images."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest

from heedful.attributions.attention import RawAttention
from heedful.attributions.gradient import Gradient
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.method import SampledAttribution
from heedful.data.words import Words
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import (
    AttributionTable,
    ImageSample,
    attribution_rows,
    completeness_error,
    sample_places,
    sample_rows,
)
from heedful.training.trainer import inference_batches
from heedful.types import Method, Splits, UserError
from tests.small_shards import SIZE, ShardedSentences, set_shards, small_shards
from tests.tiny import Sentences, subject

__all__ = ["small_shards"]


def test_a_table_has_units_and_scores_of_every_example(workspace: Workspace) -> None:
    table = workspace.get(AttributionTable(subject(), RawAttention())).table
    row = table[table["uid"] == "test-3"].iloc[0]
    assert row["units"][0] == "<sos>"
    assert sum(row["scores"]) == pytest.approx(1.0)
    assert len(row["units"]) == len(row["scores"]) == len(row["scored"])
    assert row["scores"][0] == 0.0


def test_rows_have_the_labels_of_the_examples_that_have_one(workspace: Workspace) -> None:
    loaded = subject().restore(workspace)
    some = loaded.examples("test")[:4]
    mixed = {example.uid: replace(example, label=example.label if n % 2 else None) for n, example in enumerate(some)}
    rows = list(attribution_rows(loaded, loaded.tokenizer(tuple(mixed.values())), RawAttention(), mixed))
    assert [row["label"] for row in rows] == [None, some[1].label, None, some[3].label]


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


def test_a_table_has_the_samples_and_the_posterior_errors_of_a_method_that_samples(workspace: Workspace) -> None:
    artefact = workspace.get(AttributionTable(subject(), Lime(60, error=0.2), limit=4))
    loaded = subject().restore(workspace)
    batch = sample_rows(loaded.batch("test"), 4)
    table = artefact.table.set_index("uid").loc[list(batch.uids)].reset_index()
    target = loaded.model.task.probabilities(loaded.model.read_logits(batch)).argmax(-1)
    assert table["predicted"].tolist() == target.tolist()
    found = Lime(60, error=0.2)(loaded.model, batch, target)
    assert isinstance(found, SampledAttribution)
    assert table["samples"].tolist() == found.samples.tolist()
    for row, errors in enumerate(table["posterior_errors"]):
        assert len(errors) == len(table["scores"][row])
        assert list(errors) == pytest.approx(found.posterior_errors[row][batch.mask[row]].tolist(), abs=1e-6)
    largest = max(max(errors) for errors in table["posterior_errors"])
    assert artefact.notes["sampling"] == {
        "mean samples": table["samples"].mean(),
        "largest posterior error": pytest.approx(largest),
    }
    assert "samples" not in workspace.get(AttributionTable(subject(), Lime(60), limit=4)).table


def test_a_limit_takes_the_same_examples_for_every_model_in_order(workspace: Workspace) -> None:
    one, other = (subject(seed=seed).restore(workspace).batch("test") for seed in (0, 1))
    drawn = sample_rows(one, 7)
    assert drawn.uids == sample_rows(other, 7).uids
    assert list(drawn.uids) == sorted(drawn.uids, key=one.uids.index)
    assert sample_rows(one, 99) is one
    with pytest.raises(UserError, match="limit=0"):
        sample_rows(one, 0)


def test_facts_have_the_method_and_the_split() -> None:
    facts = AttributionTable(subject(), RawAttention(), "dev", 5).describe()
    assert facts == {**subject().describe(), "method": "attention", "split": "dev", "limit": 5}


def test_texts_are_no_images(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="not an image"):
        workspace.get(ImageSample(subject()))


def sharded(method: Method, limit: int | None = None) -> AttributionTable:
    """A table of 40 texts in shards of 16."""
    return AttributionTable(replace(subject(), corpus=ShardedSentences()), method, limit=limit)


@pytest.mark.usefixtures("small_shards")
def test_the_table_of_shards_has_the_rows_of_each_shard_alone(workspace: Workspace) -> None:
    recipe = sharded(IntegratedGradients(n_steps=4))
    artefact = workspace.get(recipe)
    loaded = recipe.subject.restore(workspace)
    examples = loaded.examples("test")
    expected: list[dict[str, object]] = []
    for start in range(0, len(examples), SIZE):
        own = {each.uid: each for each in examples[start : start + SIZE]}
        batch = loaded.tokenizer(tuple(own.values()))
        for rows, part in inference_batches(batch, workspace.batch_size):
            assert len(rows) == len(own)
            expected += attribution_rows(loaded, part, recipe.method, own)
    assert artefact.table.to_dict("records") == expected
    assert (artefact.notes["n"], artefact.notes["of"]) == (40, 40)
    assert artefact.notes["missed"] == completeness_error(pd.DataFrame(expected))["missed"]
    assert "shard" not in {entry.kind for entry in workspace.entries()}


def test_one_batch_and_shards_differ_by_rounding_only(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = sharded(Gradient())
    whole = recipe.tabulate(workspace, range(40)).table.set_index("uid")
    set_shards(monkeypatch, SIZE)
    parts = workspace.get(recipe).table.set_index("uid").loc[whole.index]
    assert parts["predicted"].tolist() == whole["predicted"].tolist()
    for one, other in zip(parts["scores"], whole["scores"], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-7)


@pytest.mark.usefixtures("small_shards")
def test_a_limit_takes_the_same_examples_from_shards(workspace: Workspace) -> None:
    drawn = sample_places(40, 20)
    examples = subject().restore(workspace).examples("test")
    table = workspace.get(sharded(RawAttention(), 20)).table
    assert {*table["uid"][:SIZE]} == {examples[place].uid for place in drawn[:SIZE]}
    assert {*table["uid"]} == {examples[place].uid for place in drawn}
    assert len(table) == 20


@dataclass(frozen=True)
class OneTextChanged(Sentences):
    """The same sentences but for one of the test split."""

    def read(self, data: Path) -> Splits:
        splits = super().read(data)
        changed = replace(splits.test[20], parts=("a good word",))
        return replace(splits, test=(*splits.test[:20], changed, *splits.test[21:]))


@pytest.mark.usefixtures("small_shards")
def test_a_changed_text_changes_the_bits_of_its_own_block_only(workspace: Workspace) -> None:
    corpora = Sentences(), OneTextChanged()
    recipes = (AttributionTable(replace(subject(), corpus=corpus), Gradient()) for corpus in corpora)
    one, other = (workspace.get(recipe).table for recipe in recipes)
    assert one.iloc[:SIZE].equals(other.iloc[:SIZE])
    assert one.iloc[2 * SIZE :].equals(other.iloc[2 * SIZE :])
    assert not one.iloc[SIZE : 2 * SIZE].equals(other.iloc[SIZE : 2 * SIZE])
