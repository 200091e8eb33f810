"""The laws of attributions, over every method of the catalogue, and what each method says on a model known by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from heedful import catalogue
from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import PairInput
from heedful.models.transformer import TinyTransformer
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Method, Model
from tests.failing import failures
from tests.trials.test_permutation import some_batch

METHODS = sorted(catalogue.METHODS)


def models() -> dict[str, Model]:
    generator = Generator().manual_seed(0)
    table = torch.randn(30, 5, generator=generator)
    return {
        "pooled": Attentive(BiLSTM(3), Additive()).build(BinaryClassification(), table, generator).eval(),
        "transformer": TinyTransformer("bert", vocab_size=30).build(BinaryClassification(), None, generator).eval(),
    }


@pytest.fixture(params=["pooled", "transformer"])
def model(request: pytest.FixtureRequest) -> Model:
    return models()[str(request.param)]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return catalogue.METHODS[str(request.param)]()


BATCH = some_batch((5, 3, 7))
TARGET = torch.tensor([0, 1, 1])


def test_scores_stand_on_scored_units_only(model: Model, method: Method) -> None:
    found = method(model, BATCH, TARGET)
    assert found.scores.shape == BATCH.mask.shape
    assert torch.equal(found.mask, BATCH.content_mask)
    assert (found.scores[~BATCH.content_mask] == 0).all()
    assert torch.isfinite(found.scores).all()
    assert found.scores.abs().sum() > 0


def test_the_same_call_gives_the_same_scores(model: Model, method: Method) -> None:
    assert torch.equal(method(model, BATCH, TARGET).scores, method(model, BATCH, TARGET).scores)


def test_one_by_one_equals_batched(model: Model, method: Method) -> None:
    together = method(model, BATCH, TARGET).scores
    for row in range(len(BATCH)):
        alone = method(model, BATCH.rows(torch.tensor([row])), TARGET[row : row + 1]).scores[0]
        assert torch.allclose(alone, together[row, : len(alone)], atol=1e-6)


@pytest.mark.parametrize("failing", [False, True])
def test_the_model_is_left_untouched(model: Model, method: Method, failing: bool) -> None:  # noqa: FBT001
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    generator_state = torch.get_rng_state()

    def check() -> None:
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
        assert not any(module.training for module in model.modules())
        assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
        assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
        assert torch.equal(torch.get_rng_state(), generator_state)
        assert torch.is_grad_enabled()

    if not failing:
        method(model, BATCH, TARGET)
        check()
        return
    places = []
    for place in failures(model, lambda: method(model, BATCH, TARGET)):
        check()
        places.append(place)
    assert bool(places) == (not isinstance(method, Random))


def test_raw_attention_of_a_pooled_model_is_its_attention() -> None:
    model = models()["pooled"]
    expected = model(BATCH).attention[:, 0, 0, 0]
    assert torch.allclose(RawAttention()(model, BATCH, TARGET).scores, expected)


def test_raw_attention_of_a_transformer_is_the_mean_over_heads_layers_and_real_rows() -> None:
    model = models()["transformer"]
    attention = model(BATCH).attention.detach()
    found = RawAttention()(model, BATCH, TARGET).scores
    one_head = RawAttention(layer=1, head=0)(model, BATCH, TARGET).scores
    for row, length in enumerate(BATCH.lengths.tolist()):
        for unit in range(length):
            if BATCH.content_mask[row, unit]:
                assert found[row, unit] == pytest.approx(float(attention[row, :, :, :length, unit].mean()), abs=1e-6)
                literal = float(attention[row, 1, 0, :length, unit].mean())
                assert one_head[row, unit] == pytest.approx(literal, abs=1e-6)


def test_raw_attention_of_a_compared_pair_puts_both_texts_on_one_axis() -> None:
    generator = Generator().manual_seed(0)
    model = Attentive(BiLSTM(3), Additive(), input_format=PairInput()).build(
        BinaryClassification(), torch.randn(30, 5, generator=generator), generator
    )
    batch = some_batch((7,))
    batch = Batch(batch.uids, batch.inputs, batch.mask, torch.tensor([[0] * 4 + [1] * 5]), batch.words)
    scores = RawAttention()(model, batch, TARGET[:1]).scores
    assert scores[0, :4].sum() == pytest.approx(0.5)
    assert scores[0, 4:].sum() == pytest.approx(0.5)


def test_random_scores_differ_between_seeds_and_examples() -> None:
    model = models()["pooled"]
    null = catalogue.METHODS["random"]()
    scores = null(model, some_batch((5, 5)), TARGET[:2]).scores
    assert not torch.equal(scores[0], scores[1])
    assert (scores <= 1).all()
