"""Transformers obey the model laws and agree with the library's eager attention, also in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor
from torch.func import functional_call

from heedful.models.transformer import FAMILIES, SmallTransformer, TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.types import Model, UserError
from tests.model_laws import LAWS, TEXT_LAWS, Case, Law, assert_close, law_name, real_units
from tests.networks import TEXT_FAMILIES, batch_of, eager, library_inputs, network, texts, tiny


def case(family: str) -> Case:
    def build(seed: int) -> Model:
        return tiny(family, seed)

    return Case(build, batch_of(family), real_units)


@pytest.mark.parametrize("law", LAWS, ids=law_name)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_obeys(family: str, law: Law) -> None:
    law(case(family))


@pytest.mark.parametrize("law", TEXT_LAWS, ids=law_name)
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_every_text_family_obeys(family: str, law: Law) -> None:
    law(case(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_real_queries_are_distributions_on_real_units_and_rows_of_padding_are_zero(family: str) -> None:
    batch = batch_of(family)
    trace = tiny(family)(batch)
    sums = batch.mask[:, None, None, :].double().expand(trace.attention.shape[:-1])
    assert_close(trace.attention.sum(-1), sums)
    assert bool((trace.attention >= 0).all())
    off = ~(real_units(batch) & batch.mask[:, None, None, :, None]).expand_as(trace.attention)
    assert trace.scores is not None
    assert int(torch.count_nonzero(trace.attention[off])) == int(torch.count_nonzero(trace.scores[off])) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_states_and_attention_are_those_of_the_eager_library(family: str) -> None:
    batch, model = batch_of(family), tiny(family).eval()
    expected = eager(model)(**library_inputs(family, batch), output_attentions=True, output_hidden_states=True)
    trace = model(batch)
    # The library's ViT rounds its attention to float32.
    near = 1e-6 if family == "vit" else 1e-12
    torch.testing.assert_close(trace.logits, expected.logits, rtol=0, atol=near)
    attention = torch.stack(expected.attentions, 1) * batch.mask[:, None, None, :, None]
    torch.testing.assert_close(trace.attention, attention, rtol=0, atol=near)
    if family != "vit":
        torch.testing.assert_close(trace.hidden[batch.mask], expected.hidden_states[-1][batch.mask])


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_the_softmax_of_the_scores_over_real_units(family: str) -> None:
    batch = batch_of(family)
    trace = tiny(family)(batch)
    assert trace.scores is not None
    weights = trace.scores.exp() * real_units(batch)
    expected = weights / weights.sum(-1, keepdim=True) * batch.mask[:, None, None, :, None]
    assert_close(trace.attention, expected)
    spread = (trace.attention.amax(-1)[0] - trace.attention.amin(-1)[0]).detach()
    assert float(spread.mean()) > 0.02, "a uniform attention would prove nothing"


def test_scores_are_queries_times_keys_over_the_root_of_the_head_size() -> None:
    model, batch = tiny("bert").eval(), texts()
    trace = model(batch)
    layer = model.network.get_submodule("bert.encoder.layer.0.attention.self")
    states = trace.embeddings[0]
    query, key = (layer.get_submodule(name)(states)[:, :8] for name in ("query", "key"))
    assert trace.scores is not None
    assert_close(trace.scores[0, 0, 0], query @ key.T / 8**0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_training_dropout_falls_as_in_the_library(family: str) -> None:
    batch, model = batch_of(family), tiny(family).train()
    library = eager(model)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(11)
        ours = model(batch)
        torch.default_generator.manual_seed(11)
        expected = library(**library_inputs(family, batch)).logits
        torch.default_generator.manual_seed(12)
        other = model(batch).logits
    torch.testing.assert_close(ours.logits, expected)
    assert family == "vit" or not torch.allclose(ours.logits, other), "without dropout this proves nothing"
    sums = ours.attention.detach().sum(-1) - batch.mask[:, None, None, :].double()
    assert float(sums.abs().max()) < 1e-8, "attention must be shown before dropout"


def test_no_dropout_falls_on_a_given_attention() -> None:
    batch = texts()
    model = TransformerModel.wrap(network(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.9))
    given = model.eval()(batch).attention
    still = model(batch, attention=given).logits
    model.train()
    assert torch.equal(model(batch, attention=given).logits, still)
    assert not torch.allclose(model(batch).logits, still)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_gradients_exist_and_are_those_of_finite_differences(family: str) -> None:
    batch, model = batch_of(family), tiny(family).eval()
    start = model(batch).embeddings.detach()
    step = torch.randn(start.shape, generator=Generator().manual_seed(8), dtype=start.dtype)

    def gradient(embeddings: Tensor) -> Tensor:
        trace = model(batch, embeddings=embeddings)
        assert trace.scores is not None
        value = trace.logits.square().sum() + trace.scores.square().sum() + trace.attention.square().sum()
        return torch.autograd.grad(value, embeddings, create_graph=True)[0]

    point = start.requires_grad_()
    (curved,) = torch.autograd.grad((gradient(point) * step).sum(), point)
    ahead, behind = ((start + sign * 1e-5 * step).detach().requires_grad_() for sign in (1, -1))
    torch.testing.assert_close(curved, (gradient(ahead) - gradient(behind)).detach() / 2e-5, rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients_reach_the_weights_through_a_functional_call() -> None:
    model, batch = tiny("bert").eval(), texts()
    weights = {name: weight.detach().requires_grad_() for name, weight in model.named_parameters()}
    name = "network.bert.encoder.layer.0.attention.self.query.weight"
    scores = functional_call(model, weights, (batch,)).scores
    (first,) = torch.autograd.grad(scores.square().sum(), weights[name], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weights[name])
    assert float(second.abs().max()) > 0


def test_embeddings_that_are_given_are_not_computed_again() -> None:
    model, batch = tiny("bert").eval(), texts()
    trace = model(batch)
    with torch.no_grad():
        model.get_parameter("network.bert.embeddings.word_embeddings.weight").fill_(torch.nan)
    assert bool(model(batch).logits.isnan().all())
    assert torch.equal(model(batch, embeddings=trace.embeddings).logits, trace.logits)


def test_one_layer_can_be_replaced_by_composing_the_whole() -> None:
    model, batch = tiny("bert").eval(), texts()
    own = model(batch)
    changed = own.attention.clone()
    changed[:, 1] = changed[:, 1].flip(1)
    trace = model(batch, attention=changed)
    assert not torch.allclose(trace.logits, own.logits)
    same = changed.clone()
    same[:, 1] = own.attention[:, 1]
    assert_close(model(batch, attention=same).logits, own.logits)


def test_attention_of_another_shape_is_refused() -> None:
    model, batch = tiny("bert"), texts()
    attention = model(batch).attention
    for wrong in (attention[:, :1], attention[:, :, :1], attention[..., :5], attention[:2]):
        with pytest.raises(ValueError, match="need \\(3, 2, 2, 7, 7\\)"):
            model(batch, attention=wrong)
    with pytest.raises(ValueError, match="embeddings are"):
        model(batch, embeddings=torch.zeros(3, 6, 16))


def test_a_row_without_a_real_unit_is_finite_and_attends_to_nothing() -> None:
    batch = texts()
    batch.mask[2] = False
    model = tiny("bert").eval()
    trace = model(batch)
    assert bool(trace.logits.isfinite().all())
    assert int(torch.count_nonzero(trace.attention[2])) == 0
    assert_close(trace.logits[:2], model(texts()).logits[:2])


def test_candidates_that_are_not_admitted_get_minus_infinity() -> None:
    admitted = torch.tensor([[True, False, True]] * 3)
    model = tiny("bert").eval()
    logits = model(replace(texts(), candidates=admitted)).logits
    assert torch.equal(logits.isinf(), ~admitted)
    assert torch.equal(logits[admitted], model(texts()).logits[admitted])


def test_a_small_transformer_starts_at_the_word_vectors_and_reads_texts_in_any_company_alike() -> None:
    table = torch.randn(50, 6, generator=Generator().manual_seed(1))
    model = SmallTransformer(1, 2, 8, max_positions=16).build(
        MulticlassClassification(3), table, Generator().manual_seed(2)
    )
    words = model.network.get_input_embeddings().get_parameter("weight")
    assert torch.equal(words[1:], table[1:])
    assert not words[0].any()
    batch = texts()
    alone = model(batch.rows(torch.tensor([2])))
    torch.testing.assert_close(model(batch).logits[2:], alone.logits)
    assert alone.attention.shape[1:3] == (1, 2)
    again = SmallTransformer(1, 2, 8, max_positions=16).build(
        MulticlassClassification(3), table, Generator().manual_seed(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_a_small_transformer_needs_vectors_and_heads_that_divide_its_width() -> None:
    with pytest.raises(UserError, match="word vectors"):
        SmallTransformer().build(MulticlassClassification(2), None, Generator())
    with pytest.raises(UserError, match="not divisible"):
        SmallTransformer(heads=3, width=64)
