"""Mixes of layers: completeness of every layer, slow twins, temperature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator

from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.layer_mix import LayerMix
from heedful.capabilities import LayerInput, read_heads, read_layers
from heedful.models.small_transformers import ScalarMix
from heedful.tasks import MulticlassClassification
from heedful.types import UserError
from tests.networks import FAMILIES, TinyTransformer, batch_of, texts, tiny
from tests.small_models import pooled

TARGET = torch.tensor([0, 1, 2])


@pytest.mark.parametrize("family", ["bert", "electra", "vit"])
def test_the_shares_of_every_layer_add_up_to_the_change_of_the_output(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    method = LayerMix(n_steps=60, special_tokens=True)
    maps, missing = method.maps(model, batch, TARGET)
    blank = replace(batch, inputs=torch.zeros_like(batch.inputs))
    with torch.no_grad():
        change = (model(batch).logits - model(blank).logits).gather(1, TARGET[:, None])
    torch.testing.assert_close(maps.sum(2), change.expand(3, 2), rtol=0, atol=1e-9)
    assert missing.abs().max() < 1e-9
    assert LayerMix(n_steps=1).maps(model, batch, TARGET)[1].abs().max() > 1e-6


def test_at_the_first_layer_shares_are_integrated_gradients_of_the_embeddings() -> None:
    target = torch.tensor([0, 1, 1])
    for model, method in ((tiny("bert"), LayerMix((1.0, 0.0), "none", n_steps=7)), (pooled(), LayerMix(n_steps=7))):
        expected = IntegratedGradients(n_steps=7, output="logit")(model, texts(), target)
        torch.testing.assert_close(method(model, texts(), target).scores, expected.scores)


def test_in_a_layer_shares_are_the_mean_gradient_times_the_path_step_by_step() -> None:
    model, batch = tiny("bert"), texts().rows(torch.tensor([1]))
    blank = replace(batch, inputs=batch.inputs.masked_fill(batch.content_mask, 0))
    with torch.no_grad():
        embeddings, others = model(batch).embeddings, model(blank).embeddings
        text, reference = (read_layers(model, batch, start).inputs[1] for start in (embeddings, others))
    total = torch.zeros_like(text)
    steps = 60
    for step in range(steps):
        at = (reference + (step + 0.5) / steps * (text - reference)).requires_grad_()
        logit = read_layers(model, batch, embeddings, LayerInput(1, at)).logits[0, 2]
        total += torch.autograd.grad(logit, at)[0] / steps
    literal = (total * (text - reference)).sum(-1).masked_fill(~batch.content_mask, 0)
    found = LayerMix(n_steps=30).maps(model, batch, TARGET[2:])[0][:, 1]
    torch.testing.assert_close(found, literal, rtol=0, atol=1e-5)


def test_the_input_of_a_layer_can_be_put_back_and_decides_all_above_it() -> None:
    for family in FAMILIES:
        model, batch = tiny(family), batch_of(family)
        with torch.no_grad():
            trace = model(batch)
            own = read_layers(model, batch, trace.embeddings)
            assert len(own.inputs) == 2
            torch.testing.assert_close(own.logits, trace.logits)
            for layer in (0, 1):
                same = read_layers(model, batch, trace.embeddings, LayerInput(layer, own.inputs[layer].clone()))
                torch.testing.assert_close(same.logits, trace.logits)
            flipped = read_layers(model, batch, trace.embeddings.flip(0)).inputs[1].clone()
            found = read_layers(model, batch, trace.embeddings, LayerInput(1, flipped)).logits
        assert not torch.allclose(found, trace.logits, atol=1e-3)
        assert torch.equal(model(batch).embeddings, trace.embeddings)


def test_a_head_over_all_layers_sees_the_replaced_input_too() -> None:
    plan = ScalarMix(TinyTransformer("bert"))
    model = plan.build(MulticlassClassification(3), None, Generator().manual_seed(1)).double()
    maps, missing = LayerMix(n_steps=40).maps(model, texts(), TARGET)
    assert missing.abs().max() < 1e-9
    assert maps[:, 1].abs().max() > 1e-3
    heads = read_heads(model, texts())
    torch.testing.assert_close(heads.logits, model(texts()).logits)


def test_a_layer_mix_weighs_layers_and_divides_by_its_temperature() -> None:
    model, batch = tiny("bert"), texts()
    start = LayerMix(n_steps=3)
    maps, _ = start.maps(model, batch, TARGET)
    torch.testing.assert_close(start(model, batch, TARGET).scores, maps.mean(1))
    learned = start.with_parameters(torch.tensor([1.0, 0.0, np.log(0.5)]), model)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(0)
    expected = 2 * torch.einsum("l,blu->bu", weights, maps)
    torch.testing.assert_close(learned(model, batch, TARGET).scores, expected)
    shown = replace(learned, score_type="distribution")(model, batch, TARGET).scores
    for row in range(3):
        scored = batch.content_mask[row]
        torch.testing.assert_close(shown[row, scored], expected[row, scored].softmax(0))


def test_settings_that_make_no_layer_mix_are_refused() -> None:
    with pytest.raises(UserError, match="temperature=0"):
        LayerMix(temperature=0)
    with pytest.raises(UserError, match="n_steps=0"):
        LayerMix(n_steps=0)
    with pytest.raises(UserError, match="not finite"):
        LayerMix((float("inf"),))
    with pytest.raises(UserError, match="weights for 3 layers, but the model has 2"):
        LayerMix((1.0, 1.0, 1.0), n_steps=1)(tiny("bert"), texts(), TARGET)
