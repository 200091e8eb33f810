"""Scalar mix pooling: the paper's formula on all layers, in a transformer that stays one."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import pytest
import torch
from torch import Generator, nn
from torch.func import functional_call

from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.small_transformers import ScalarMix, ScalarMixHead, TruncatedTransformer
from heedful.models.transformer import FAMILIES, TinyTransformer, TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.types import LayerInput, Model, UserError, mean_over_queries, read_heads, read_layers
from tests.model_laws import LAWS, TEXT_LAWS, Case, Law, assert_close, law_name, real_units
from tests.networks import batch_of, eager, library_inputs, texts, tiny


def mixed(family: str, seed: int = 1) -> TransformerModel:
    plan = ScalarMix(TinyTransformer(family))
    return plan.build(MulticlassClassification(3), None, Generator().manual_seed(seed)).double()


def head_of(model: TransformerModel) -> ScalarMixHead:
    head = model.network.get_submodule("mix")
    assert isinstance(head, ScalarMixHead)
    return head


def case(family: str) -> Case:
    def build(seed: int) -> Model:
        return mixed(family, seed)

    return Case(build, batch_of(family), real_units)


@pytest.mark.parametrize("law", LAWS, ids=law_name)
@pytest.mark.parametrize("family", ["electra", "distilbert", "vit"])
def test_every_family_obeys_under_a_scalar_mix(family: str, law: Law) -> None:
    law(case(family))


@pytest.mark.parametrize("law", TEXT_LAWS, ids=law_name)
@pytest.mark.parametrize("family", ["electra", "xlm-roberta"])
def test_every_text_family_obeys_under_a_scalar_mix(family: str, law: Law) -> None:
    law(case(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_formula_on_the_librarys_own_states(family: str) -> None:
    batch, model = batch_of(family), mixed(family)
    head = head_of(model)
    weights, gamma = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64), 1.7
    with torch.no_grad():
        head.weights.copy_(weights)
        head.gamma.fill_(gamma)
    plain = eager(tiny(family))  # same seed: the trunk of both has the same weights
    states = plain(**library_inputs(family, batch), output_hidden_states=True).hidden_states
    shares = weights.exp() / weights.exp().sum()
    rows = []
    for row in range(len(batch)):
        real = [unit for unit in range(batch.mask.shape[1]) if batch.mask[row, unit]]
        means = [sum(state[row, unit] for unit in real) / len(real) for state in states]
        rows.append(gamma * sum(share * mean for share, mean in zip(shares, means, strict=True)))
    # The library's ViT rounds its attention to float32.
    torch.testing.assert_close(model(batch).logits, head.head(torch.stack(rows)), rtol=0, atol=1e-6)


def test_it_starts_as_the_plain_mean_of_all_layers() -> None:
    head = head_of(mixed("bert"))
    assert torch.equal(head.weights.softmax(0), torch.full((3,), 1 / 3, dtype=torch.float64))
    assert head.gamma.item() == 1.0
    states = tuple(torch.full((1, 2, 16), value, dtype=torch.float64) for value in (1.0, 2.0, 6.0))
    mean = torch.full((1, 16), 3.0, dtype=torch.float64)
    assert_close(head(states, torch.ones(1, 2, dtype=torch.bool)), head.head(mean))


def test_heads_are_dense_activation_dropout_output_for_texts_and_linear_for_images() -> None:
    kinds = {
        family: [type(part) for part in head_of(mixed(family)).head.children()]
        for family in ("electra", "xlm-roberta", "distilbert", "vit")
    }
    assert kinds["electra"] == [nn.Linear, nn.GELU, nn.Dropout, nn.Linear]
    assert kinds["xlm-roberta"] == [nn.Linear, nn.Tanh, nn.Dropout, nn.Linear]
    assert kinds["distilbert"] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert kinds["vit"] == [nn.Linear]
    dense = head_of(mixed("electra")).head[0]  # type: ignore[index]
    assert dense.weight.shape == (16, 16)
    assert 0.15 < float(dense.weight.detach().std()) < 0.25, "TinyTransformer spreads its weights by 0.2"
    assert not dense.bias.any()


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_of_the_old_head_is_kept_and_every_weight_is_used(family: str) -> None:
    model, batch = mixed(family), batch_of(family)
    names = set(model.state_dict())
    assert not [name for name in names if "pooler" in name or "classifier" in name]
    model(batch).logits.square().sum().backward()  # type: ignore[no-untyped-call]
    # The last normalisation of a ViT stands behind all the states that are mixed.
    unused = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert unused == ({f"network.vit.layernorm.{part}" for part in ("weight", "bias")} if family == "vit" else set())


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_read_the_fast_way_with_the_logits_of_the_mix(family: str) -> None:
    model, batch = mixed(family), batch_of(family)
    trace, heads = model(batch), read_heads(model, batch)
    assert trace.scores is not None
    assert_close(heads.scores, mean_over_queries(trace.scores, batch.mask))
    assert_close(heads.logits, trace.logits)


def test_in_training_the_trunk_and_the_head_drop_and_gradients_of_gradients_reach_every_part() -> None:
    model, batch = mixed("electra"), texts()
    weights = {name: weight.detach().requires_grad_() for name, weight in model.named_parameters()}
    logits = functional_call(model, weights, (batch,)).logits
    name = "network.mix.weights"
    (first,) = torch.autograd.grad(logits.square().sum(), weights[name], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weights["network.electra.embeddings.word_embeddings.weight"])
    assert float(second.abs().max()) > 0
    model.train()
    assert all(module.training for module in model.modules())
    assert not torch.equal(model(batch).logits, model(batch).logits)


def test_a_copy_is_a_model_of_its_own() -> None:
    model, batch = mixed("bert"), texts()
    other, before = copy.deepcopy(model), model(batch).logits
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    assert torch.equal(model(batch).logits, before)
    assert not torch.allclose(other(batch).logits, before)


def test_a_call_that_fails_or_runs_beside_another_leaves_no_states_behind() -> None:
    model, batch = mixed("bert"), texts()
    expected = model(batch).logits
    with pytest.raises(ValueError, match="attention is"):
        model(batch, attention=torch.zeros(1))
    broken = replace(batch, mask=batch.mask[:, :5])
    with pytest.raises((RuntimeError, ValueError)):
        model(broken)
    assert torch.equal(model(batch).logits, expected)
    found: list[bool] = []

    def ask() -> None:
        found.extend(torch.equal(model(batch).logits, expected) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 60


def test_a_shortened_transformer_can_be_mixed_and_says_what_it_is() -> None:
    plan = ScalarMix(TruncatedTransformer(TinyTransformer("electra", layers=3), 1))
    model = plan.build(MulticlassClassification(2), None, Generator().manual_seed(0))
    assert head_of(model).weights.shape == (2,)
    assert model(texts()).attention.shape[1] == 1
    assert [("1 of 3 layers" in note, "new head" in note) for note in model.notes] == [(True, False), (False, True)]


def test_models_without_layers_and_a_mix_of_a_mix_are_refused() -> None:
    with pytest.raises(UserError, match="Attentive is not a transformer"):
        ScalarMix(Attentive(BiLSTM(4), Additive())).build(
            MulticlassClassification(2), torch.zeros(9, 3), Generator().manual_seed(0)
        )
    with pytest.raises(UserError, match="already has a scalar mix"):
        ScalarMix(ScalarMix(TinyTransformer())).build(MulticlassClassification(2), None, Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["electra", "vit"])
def test_a_layers_input_that_is_replaced_counts_in_the_mix_too(family: str) -> None:
    model, batch = mixed(family), batch_of(family)
    embeddings = model(batch).embeddings.detach()
    own = read_layers(model, batch, embeddings)
    assert len(own.inputs) == 2
    assert_close(own.logits, model(batch).logits)
    same = read_layers(model, batch, embeddings, LayerInput(1, own.inputs[1].detach()))
    assert_close(same.logits, own.logits)
    other = read_layers(model, batch, embeddings, LayerInput(1, own.inputs[1].detach() * 0.5))
    head = head_of(model)
    with torch.no_grad():
        head.weights.copy_(torch.tensor([-1e9, 0.0, -1e9]))
    alone = read_layers(model, batch, embeddings, LayerInput(1, own.inputs[1].detach() * 0.5))
    halved = torch.stack([own.inputs[1][row][real].mean(0) * 0.5 for row, real in enumerate(batch.mask)])
    assert_close(alone.logits, head.head(halved))
    assert not torch.allclose(other.logits, own.logits)
