"""Rollout and single heads: the known answers of the paper's check, slow twins, laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.attributions.attention import (
    HeadAttention,
    RawAttention,
    Rollout,
    query_weights,
    residual_attention,
    roll_out,
)
from heedful.types import Method, UserError
from tests.attention_laws import MODELS, check_laws, subject, targets
from tests.networks import texts, tiny

FIRST = [[0.2, 0.8, 0], [0, 0.5, 0.5], [0.3, 0.3, 0.4]]
SECOND = [[0.1, 0.2, 0.7], [0.6, 0.2, 0.2], [0, 1, 0]]


def rolled(attention: Tensor) -> list[float]:
    """Rollout of head-averaged layers `[layer query unit]` from unit 0."""
    start = torch.eye(attention.shape[-1], dtype=torch.float64)[:1]
    return roll_out(residual_attention(attention[None, :, None]), start)[0].tolist()


def test_known_answers_of_rollout() -> None:
    assert rolled(torch.full((6, 10, 10), 0.1)) == pytest.approx([0.1140625] + [0.0984375] * 9, abs=1e-8)
    assert rolled(torch.eye(4).expand(6, 4, 4)) == [1, 0, 0, 0]
    both = torch.tensor([FIRST, SECOND], dtype=torch.float64)
    assert rolled(both) == pytest.approx([0.3825, 0.3475, 0.27], abs=1e-12)


def test_rollout_of_a_transformer_is_the_class_row_of_the_literal_matrix_product() -> None:
    model, batch = tiny("bert"), texts()
    attention = model(batch).attention.detach()
    found = Rollout()(model, batch, targets(batch)).scores
    for row, length in enumerate(batch.lengths.tolist()):
        product = torch.eye(length, dtype=torch.float64)
        for layer in range(attention.shape[1]):
            mean = attention[row, layer, :, :length, :length].mean(0) + torch.eye(length)
            product = (mean / mean.sum(1, keepdim=True)) @ product
        expected = product[0] * batch.content_mask[row, :length]
        torch.testing.assert_close(found[row, :length], expected, rtol=0, atol=1e-12)


def test_without_a_class_symbol_all_rows_are_averaged() -> None:
    model, batch = tiny("bert"), texts()
    batch = replace(batch, words=torch.arange(7).expand(3, 7).masked_fill(~batch.mask, -1))
    layers = residual_attention(model(batch).attention.detach())[1, :, :5, :5]
    found = Rollout()(model, batch, targets(batch)).scores[1, :5]
    torch.testing.assert_close(found, (layers[1] @ layers[0]).mean(0), rtol=0, atol=1e-12)
    assert found.sum() == pytest.approx(1)


def test_start_layer_leaves_out_the_layers_below_it() -> None:
    model, batch = tiny("bert"), texts()
    last = residual_attention(model(batch).attention.detach())[:, 1, 0].masked_fill(~batch.content_mask, 0)
    torch.testing.assert_close(Rollout(start_layer=1)(model, batch, targets(batch)).scores, last)
    with pytest.raises(UserError, match="no layer 2"):
        Rollout(start_layer=2)(model, batch, targets(batch))


def test_rollout_without_a_residual_is_the_product_of_attention_and_a_share_must_be_one() -> None:
    model, batch = tiny("bert"), texts()
    mean = model(batch).attention.detach()[0].mean(1)
    found = Rollout(residual=0)(model, batch, targets(batch)).scores[0]
    torch.testing.assert_close(found, (mean[1] @ mean[0])[0] * batch.content_mask[0])
    with pytest.raises(UserError, match="residual"):
        Rollout(residual=1.0)


def test_a_head_is_read_in_the_class_row_or_over_all_rows() -> None:
    model, batch = tiny("bert"), texts()
    attention = model(batch).attention.detach()
    row = HeadAttention(layer=0, head=1)(model, batch, targets(batch)).scores
    torch.testing.assert_close(row, attention[:, 0, 1, 0].masked_fill(~batch.content_mask, 0))
    last = HeadAttention()(model, batch, targets(batch)).scores
    torch.testing.assert_close(last, attention[:, -1, :, 0].mean(1).masked_fill(~batch.content_mask, 0))
    everything = HeadAttention(layer=None, row="mean")(model, batch, targets(batch)).scores
    torch.testing.assert_close(everything, RawAttention()(model, batch, targets(batch)).scores)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (HeadAttention(layer=2), "no layer 2"),
        (HeadAttention(head=-3), "no head -3"),
        (RawAttention(layer=7), "no layer 7"),
    ],
)
def test_a_layer_or_head_that_is_not_there_is_named(method: Method, words: str) -> None:
    with pytest.raises(UserError, match=words):
        method(tiny("bert"), texts(), targets(texts()))


def test_rows_must_be_known() -> None:
    with pytest.raises(UserError, match="row"):
        HeadAttention(row="last")  # type: ignore[arg-type]


def test_readers_are_distributions_over_real_rows() -> None:
    batch = texts()
    assert query_weights(batch, "class").tolist() == [[1, 0, 0, 0, 0, 0, 0]] * 3
    assert query_weights(batch, "mean")[2].tolist() == pytest.approx([1 / 3] * 3 + [0] * 4)


@pytest.mark.parametrize("method", [Rollout(), HeadAttention()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_the_laws_hold(method: Method, name: str) -> None:
    check_laws(method, name)


@pytest.mark.parametrize("name", ["SingleInput", "PairInput", "QuestionAnswering"])
def test_a_pooled_model_is_answered_by_its_attention(name: str) -> None:
    model, batch = subject(name)
    expected = RawAttention()(model, batch, targets(batch)).scores
    for method in (Rollout(), HeadAttention()):
        assert torch.equal(method(model, batch, targets(batch)).scores, expected)
