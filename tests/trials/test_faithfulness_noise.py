"""Shaken models: every method reads them as it reads the model itself, also the layers of a transformer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heedful import catalogue
from heedful.attributions.attention import AttentionXGradient, KobayashiNorm, RawAttention, Relevance, ValueNorm
from heedful.attributions.controls import RandomizedModel, randomize_weights
from heedful.models.transformer import TinyTransformer
from heedful.store.workspace import Workspace
from heedful.trials.faithfulness import Faithfulness, NoisyTransformer, add_embedding_noise, scores_under_noise
from heedful.types import Method
from tests.small_models import subject as model_and_batch
from tests.small_models import targets
from tests.tiny import subject

LAYERED: tuple[Method, ...] = (Relevance(), AttentionXGradient(), ValueNorm(), KobayashiNorm())


@pytest.mark.parametrize("method", [name for name in catalogue.METHODS if name != "randomised"])
@pytest.mark.parametrize("name", ["SingleInput", "bert", "vit"])
def test_a_model_shaken_by_nothing_is_explained_as_the_model_itself(name: str, method: str) -> None:
    model, batch = model_and_batch(name)
    explain = catalogue.METHODS[method]()
    expected = explain(model, batch, targets(batch)).scores.double()
    found = explain(add_embedding_noise(model, seed=5, radius=0.0), batch, targets(batch)).scores.double()
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)


def test_the_model_with_redrawn_weights_is_shaken_not_drawn_again() -> None:
    model, batch = model_and_batch("bert")
    found = scores_under_noise(RandomizedModel(RawAttention(), seed=3), model, batch, targets(batch), (1, 2))
    expected = scores_under_noise(RawAttention(), randomize_weights(model, 3), batch, targets(batch), (1, 2))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_what_layers_carry_is_what_they_carry_under_the_noise(name: str) -> None:
    model, batch = model_and_batch(name)
    moved = add_embedding_noise(model, seed=5)
    assert isinstance(moved, NoisyTransformer)
    trace, carried = moved(batch), moved.read_values(batch)
    assert torch.allclose(carried.logits, trace.logits, atol=1e-9)
    real = batch.mask[:, None, None, :, None] & batch.mask[:, None, None, None]
    assert torch.allclose(torch.stack(carried.attention, 1) * real, trace.attention * real, atol=1e-9)
    assert not torch.allclose(carried.logits, model(batch).logits, atol=1e-6)


def test_methods_that_read_layers_are_shaken_by_the_trial(tmp_path: Path) -> None:
    plain = subject(count=12, epochs=2)
    layered = replace(plain, architecture=TinyTransformer("bert", vocab_size=40), embeddings=None)
    trial = Faithfulness(layered, LAYERED, limit=4, steps=2, samples=2, sensitivity_samples=1)
    found = Workspace(tmp_path).get(trial).table
    moved = found[~found["null"]].groupby("method")["sensitivity"].max()
    assert len(moved) == len(LAYERED)
    assert np.isfinite(moved).all()
    assert (moved > 0).all()
