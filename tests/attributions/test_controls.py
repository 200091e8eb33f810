"""Controls: random scores, permuted attention and randomized models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Generator

from heedful.attributions import controls
from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random, RandomizedModel, randomize_weights
from heedful.attributions.gradient import Gradient
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.types import Model
from tests.networks import tiny
from tests.small_models import pooled, some_batch, subject, targets
from tests.tiny import subject as trained


@pytest.mark.parametrize("name", ["SingleInput", "bert"])
def test_a_method_that_reads_the_model_changes_and_one_that_does_not_stays(name: str) -> None:
    model, batch = subject(name)
    target = targets(batch)
    for method in (RawAttention(), Gradient()):
        found = RandomizedModel(method)(model, batch, target).scores
        assert not torch.allclose(found, method(model, batch, target).scores, atol=1e-3)
        assert not torch.allclose(found, RandomizedModel(method, seed=1)(model, batch, target).scores, atol=1e-3)
    assert torch.equal(RandomizedModel(Random())(model, batch, target).scores, Random()(model, batch, target).scores)


def test_scores_are_those_of_the_method_on_the_redrawn_model() -> None:
    model, batch = subject("bert")
    expected = Gradient()(randomize_weights(model, 3), batch, targets(batch)).scores
    assert torch.equal(RandomizedModel(Gradient(), seed=3)(model, batch, targets(batch)).scores, expected)


def test_fresh_weights_have_the_mean_and_spread_of_the_old_and_share_nothing_with_them() -> None:
    model = tiny("bert")
    old, new = model.state_dict(), randomize_weights(model, 0).state_dict()
    name = "network.bert.encoder.layer.0.intermediate.dense.weight"
    count = old[name].numel()
    assert float(new[name].std()) == pytest.approx(float(old[name].std()), rel=5 / (2 * count) ** 0.5)
    assert float(new[name].mean()) == pytest.approx(
        float(old[name].mean()), abs=5 * float(old[name].std()) / count**0.5
    )
    together = torch.stack((old[name].flatten(), new[name].flatten()))
    assert abs(float(torch.corrcoef(together)[0, 1])) < 5 / count**0.5
    assert all(old[key].data_ptr() != new[key].data_ptr() for key in old)


def test_a_copy_is_the_same_in_every_precision() -> None:
    model, single = tiny("bert"), tiny("bert").float()
    weights = dict(randomize_weights(model, 7).named_parameters())
    for name, copied in randomize_weights(single, 7).named_parameters():
        torch.testing.assert_close(copied.double(), weights[name].double(), atol=1e-6, rtol=1e-5)
    name, own = max(model.named_parameters(), key=lambda entry: entry[1].numel())
    drawn = torch.randn(own.shape, generator=Generator().manual_seed(derive_seed("randomised", 7, name)))
    expected = (own.mean() + own.std(correction=0) * drawn).masked_fill(own == 0, 0)  # padding stays 0
    assert torch.allclose(weights[name], expected.to(own.dtype), atol=1e-7)


def test_padding_stays_zero() -> None:
    table = randomize_weights(pooled(), 0).get_parameter("embedding_tables.0.weight")
    assert (table[0] == 0).all()
    assert (table[1:] != 0).all()


def test_weights_are_drawn_once_for_all_batches_of_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(model: Model, seed: int) -> Model:
        drawn.append(seed)
        return randomize_weights(model, seed)

    monkeypatch.setattr(controls, "randomize_weights", counted)
    recipe = AttributionTable(trained(), RandomizedModel(Gradient(), seed=3))
    small = Workspace(tmp_path, batch_size=8).get(recipe).table
    assert drawn == [3]
    subject = trained().restore(Workspace(tmp_path))
    batch = subject.batch("test")
    target = torch.tensor(small.set_index("uid").loc[list(batch.uids), "predicted"].tolist())
    expected = Gradient()(randomize_weights(subject.model, 3), batch, target).scores
    for row, uid in enumerate(batch.uids):
        found = torch.tensor(small.set_index("uid").loc[uid, "scores"])
        assert torch.allclose(found, expected[row, : len(found)].to(found), atol=1e-6)


def test_random_scores_differ_between_seeds_and_examples() -> None:
    model, null = pooled(), Random()
    scores = null(model, some_batch((5, 5)), torch.tensor([0, 1])).scores
    assert not torch.equal(scores[0], scores[1])
    assert (scores <= 1).all()
