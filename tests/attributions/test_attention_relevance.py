"""Attention times slope: the library's own autograd as oracle, closed forms of a linear decoder, laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.attributions._base import Output
from heedful.attributions.attention import AttentionXGradient, Relevance, attention_times_gradient, propagate_relevance
from heedful.models.transformer import FAMILIES
from heedful.types import Batch, Method, UserError
from tests.attention_laws import MODELS, check_laws, pooled, subject, targets
from tests.networks import batch_of, eager, library_inputs, texts, tiny


def library_products(family: str, batch: Batch, target: Tensor) -> Tensor:
    """a dy/da `[batch layer head query unit]` of the target's logit, by the library's eager attention and autograd."""
    plain = eager(tiny(family))
    for module in plain.modules():
        config = vars(module).get("config")
        if config is not None:
            config.output_attentions = True
    outputs = plain(**library_inputs(family, batch), output_attentions=True)
    total = outputs.logits.gather(1, target[:, None]).sum()
    slopes = torch.autograd.grad(total, outputs.attentions)
    return torch.stack([(a * g).detach() for a, g in zip(outputs.attentions, slopes, strict=True)], dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_products_are_those_of_the_librarys_own_autograd(family: str) -> None:
    batch = batch_of(family)
    target = targets(batch)
    expected = library_products(family, batch, target)
    torch.testing.assert_close(
        attention_times_gradient(tiny(family), batch, target, "logit"), expected, rtol=0, atol=1e-7
    )


def test_relevance_is_the_class_row_of_the_literal_recursion() -> None:
    model, batch = tiny("bert"), texts()
    target = targets(batch)
    expected = library_products("bert", batch, target)
    found = Relevance()(model, batch, target).scores
    for row, length in enumerate(batch.lengths.tolist()):
        relevance = torch.eye(length, dtype=torch.float64)
        for layer in range(2):
            part = expected[row, layer, :, :length, :length].clamp(min=0).mean(0)
            relevance = relevance + part @ relevance
        torch.testing.assert_close(found[row, 1:length], relevance[0, 1:], rtol=0, atol=1e-12)


def test_grad_sam_is_the_mean_positive_product_over_layers_heads_and_real_rows() -> None:
    model, batch = tiny("bert"), texts()
    target = targets(batch)
    expected = library_products("bert", batch, target)
    for positive in (True, False):
        found = AttentionXGradient(positive=positive)(model, batch, target).scores
        for row, length in enumerate(batch.lengths.tolist()):
            part = expected[row, :, :, :length, :length]
            part = part.clamp(min=0) if positive else part
            torch.testing.assert_close(found[row, 1:length], part.mean((0, 1, 2))[1:], rtol=0, atol=1e-12)


def test_a_slope_counts_what_later_layers_attend_to() -> None:
    model, batch = tiny("bert"), texts()
    attention = model(batch).attention.detach().requires_grad_()
    total = model(batch, attention=attention).logits.gather(1, targets(batch)[:, None]).sum()
    held = attention * torch.autograd.grad(total, attention)[0]
    found = attention_times_gradient(model, batch, targets(batch), "logit")
    torch.testing.assert_close(found[:, 1], held[:, 1].detach())
    assert (found[:, 0] - held[:, 0]).abs().max() > 1e-3


def test_on_a_linear_decoder_products_are_each_units_part_of_the_logit() -> None:
    model, batch = pooled(), texts()
    trace = model(batch)
    readout = model.decoder.get_submodule("output_layer")
    weight, bias = readout.get_parameter("weight"), readout.get_parameter("bias")
    parts = trace.attention[:, 0, 0, 0] * (trace.hidden @ weight[0])
    target = torch.tensor([1, 0, 1])
    sign = torch.tensor([[1.0], [-1.0], [1.0]])
    found = AttentionXGradient(positive=False)(model, batch, target).scores
    torch.testing.assert_close(found, (sign * parts).detach())
    torch.testing.assert_close(found.sum(1, keepdim=True), sign * (trace.logits - bias).detach())
    torch.testing.assert_close(Relevance()(model, batch, target).scores, (sign * parts).detach().clamp(min=0))


def test_a_probability_has_the_slope_of_its_sigmoid() -> None:
    model, batch = pooled(), texts()
    chance = model(batch).logits.sigmoid().detach()
    target = torch.ones(3, dtype=torch.int64)
    logit = AttentionXGradient(positive=False)(model, batch, target).scores
    probability = AttentionXGradient("probability", positive=False)(model, batch, target).scores
    torch.testing.assert_close(probability, logit * chance * (1 - chance))


def test_without_a_class_symbol_all_rows_are_averaged() -> None:
    model, batch = tiny("bert"), texts()
    batch = replace(batch, words=torch.arange(7).expand(3, 7).masked_fill(~batch.mask, -1))
    layers = attention_times_gradient(model, batch, targets(batch), "logit").clamp(min=0).mean(2)[1, :, :5, :5]
    full = (torch.eye(5) + layers[1]) @ (torch.eye(5) + layers[0]) - torch.eye(5)
    found = Relevance()(model, batch, targets(batch)).scores[1, :5]
    torch.testing.assert_close(found, full.mean(0), rtol=0, atol=1e-12)


def test_known_answer_of_propagation() -> None:
    layers = torch.tensor([[[[0.0, 0.5], [0.0, 0.0]], [[0.2, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
    # (1, 0)(I + E2) = (1.2, 0); times (I + E1) = (1.2, 0.6).
    assert propagate_relevance(layers, torch.tensor([[1.0, 0.0]]).double())[0].tolist() == pytest.approx([0.2, 0.6])


def test_layers_can_be_chosen() -> None:
    model, batch = tiny("bert"), texts()
    target = targets(batch)
    both = [AttentionXGradient(layer=layer)(model, batch, target).scores for layer in (0, 1)]
    torch.testing.assert_close((both[0] + both[1]) / 2, AttentionXGradient()(model, batch, target).scores)
    last = AttentionXGradient(layer=-1, row="class")(model, batch, target).scores
    torch.testing.assert_close(Relevance(start_layer=-1)(model, batch, target).scores, last)
    with pytest.raises(UserError, match="no layer 5"):
        Relevance(start_layer=5)(model, batch, target)


def test_an_output_or_row_that_is_not_there_is_named() -> None:
    wrong: Output = "margin"  # type: ignore[assignment]
    for make in (lambda: Relevance(wrong), lambda: AttentionXGradient(wrong)):
        with pytest.raises(UserError, match="margin"):
            make()
    with pytest.raises(UserError, match="row"):
        AttentionXGradient(row="top")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["SingleInput", "PairInput", "QuestionAnswering"])
def test_the_pooled_shapes_are_explained_through_their_attention(name: str) -> None:
    model, batch = subject(name)
    attention = model(batch).attention.detach().requires_grad_()
    sign = targets(batch)[:, None] * 2 - 1
    slopes = torch.autograd.grad((model(batch, attention=attention).logits * sign).sum(), attention)[0]
    expected = (attention * slopes).detach()[:, 0, 0].clamp(min=0).mean(1)
    torch.testing.assert_close(AttentionXGradient()(model, batch, targets(batch)).scores, expected)


@pytest.mark.parametrize("method", [AttentionXGradient(), Relevance()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_the_laws_hold(method: Method, name: str) -> None:
    check_laws(method, name)
