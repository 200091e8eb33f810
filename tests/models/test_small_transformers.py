"""Small vision transformers, truncated transformers and scalar mix pooling."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, nn
from torch.func import functional_call

from heedful.capabilities import LayerInput, mean_over_queries, read_heads, read_layers
from heedful.data.images import Digits
from heedful.data.patches import Patches
from heedful.data.splitting import SubsampledCorpus
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.small_transformers import ScalarMix, ScalarMixHead, SmallTransformer, SmallViT, TruncatedTransformer
from heedful.models.transformer import TransformerModel
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification
from heedful.testing.checks import check_model
from heedful.training.objectives import Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import AdamW, EpochSelection, Training
from heedful.types import UserError
from tests.networks import (
    FAMILIES,
    TinyTransformer,
    assert_close,
    batch_of,
    eager,
    images,
    library_inputs,
    pixels,
    texts,
    tiny,
)


def mixed(family: str, seed: int = 1) -> TransformerModel:
    plan = ScalarMix(TinyTransformer(family))
    return plan.build(MulticlassClassification(3), None, Generator().manual_seed(seed)).double()


def head_of(model: TransformerModel) -> ScalarMixHead:
    head = model.network.get_submodule("mix")
    assert isinstance(head, ScalarMixHead)
    return head


@pytest.mark.slow
@pytest.mark.parametrize("family", ["electra", "distilbert", "xlm-roberta", "vit"])
def test_the_model_laws_hold_under_a_scalar_mix(family: str) -> None:
    report = check_model(lambda seed: mixed(family, seed), batch_of(family))
    assert report, str(report)


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
    # The last normalisation of a ViT comes after all the states that are mixed.
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


def test_failed_and_concurrent_calls_leave_no_states_behind() -> None:
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


def test_a_truncated_transformer_can_be_mixed_and_notes_it() -> None:
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


def truncated(family: str, layers: int, seed: int = 1) -> TransformerModel:
    plan = TruncatedTransformer(TinyTransformer(family, layers=3), layers)
    return plan.build(MulticlassClassification(3), None, Generator().manual_seed(seed)).double()


def whole(family: str, seed: int = 1) -> TransformerModel:
    return (
        TinyTransformer(family, layers=3)
        .build(MulticlassClassification(3), None, Generator().manual_seed(seed))
        .double()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_that_are_kept_do_what_they_did_in_the_whole(family: str) -> None:
    batch = batch_of(family)
    long, cut = whole(family)(batch), truncated(family, 2)(batch)
    assert cut.attention.shape[1] == 2
    assert_close(cut.attention, long.attention[:, :2])
    assert long.scores is not None
    assert cut.scores is not None
    assert_close(cut.scores, long.scores[:, :2])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_head_reads_is_the_state_behind_the_last_layer_kept(family: str) -> None:
    batch, long = batch_of(family), whole(family)
    expected = eager(long)(**library_inputs(family, batch), output_hidden_states=True).hidden_states[2]
    if family == "vit":
        expected = long.network.base_model.get_submodule("layernorm")(expected)
    found = truncated(family, 2)(batch).hidden
    # The library's ViT rounds its attention to float32.
    torch.testing.assert_close(found[batch.mask], expected[batch.mask], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_kept_is_the_model_itself(family: str) -> None:
    batch = batch_of(family)
    assert torch.equal(truncated(family, 3)(batch).logits, whole(family)(batch).logits)


def test_weights_of_the_layers_left_out_are_gone_and_the_rest_is_untouched() -> None:
    kept, before = truncated("bert", 1).state_dict(), whole("bert").state_dict()
    gone = set(before) - set(kept)
    assert set(kept) < set(before)
    assert gone
    assert all(".layer.1." in name or ".layer.2." in name for name in gone)
    assert not any(".layer.1." in name for name in kept)
    assert all(torch.equal(kept[name], before[name]) for name in kept)


def test_the_model_laws_hold_for_a_truncated_transformer() -> None:
    report = check_model(lambda seed: truncated("distilbert", 2, seed), texts())
    assert report, str(report)


def test_a_small_transformer_on_word_vectors_can_be_truncated_too() -> None:
    table = torch.randn(50, 6, generator=Generator().manual_seed(1))
    plan = TruncatedTransformer(SmallTransformer(3, 2, 8, max_positions=16), 1)
    model = plan.build(MulticlassClassification(2), table, Generator().manual_seed(2))
    assert model(texts()).attention.shape[1:3] == (1, 2)
    assert "1 of 3 layers" in model.notes[-1]


def test_more_layers_than_there_are_and_other_models_are_refused() -> None:
    with pytest.raises(UserError, match="has 2 layers: it cannot be truncated to 3"):
        TruncatedTransformer(TinyTransformer(), 3).build(MulticlassClassification(2), None, Generator().manual_seed(0))
    pooled = TruncatedTransformer(Attentive(BiLSTM(4), Additive()), 1)
    with pytest.raises(UserError, match="Attentive is not a transformer"):
        pooled.build(MulticlassClassification(2), torch.zeros(9, 3), Generator().manual_seed(0))
    with pytest.raises(UserError, match="instead"):
        TruncatedTransformer(ScalarMix(TinyTransformer()), 1).build(
            MulticlassClassification(2), None, Generator().manual_seed(0)
        )


SMALL_VIT = SmallViT(image_shape=(1, 8, 8), patch_size=4, layers=2, heads=2, width=16)


def small_vit(seed: int = 1, plan: SmallViT = SMALL_VIT) -> TransformerModel:
    return plan.build(MulticlassClassification(3), None, Generator().manual_seed(seed))


def test_the_model_laws_hold_for_a_small_vision_transformer() -> None:
    report = check_model(lambda seed: small_vit(seed).double(), images())
    assert report, str(report)


def test_its_logits_are_those_of_the_librarys_own_network_on_the_pixels() -> None:
    model = small_vit()
    expected = eager(model)(pixel_values=pixels().float()).logits
    batch = images()
    torch.testing.assert_close(model(batch).logits, expected)


def test_weights_have_the_spread_that_was_asked_for_and_biases_start_at_zero() -> None:
    model = small_vit(plan=SmallViT(width=64, heads=4, layers=1, initializer_range=0.05))
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert len(linears) >= 6
    for linear in linears:
        assert 0.04 < float(linear.weight.detach().std()) < 0.06
        assert not linear.bias.any()


def test_dropout_falls_in_training_only_and_at_the_rate_that_was_asked_for() -> None:
    model, batch = small_vit(), images()
    assert {part.p for part in model.modules() if isinstance(part, nn.Dropout)} == {0.1}
    with torch.no_grad():
        assert torch.equal(model(batch).logits, model(batch).logits)
        model.train()
        assert not torch.equal(model(batch).logits, model(batch).logits)
    still = small_vit(plan=SmallViT((1, 8, 8), 4, 2, 2, 16, dropout=0.0)).train()
    with torch.no_grad():
        assert torch.equal(still(batch).logits, still(batch).logits)


def test_a_width_that_heads_cannot_share_and_a_patch_that_does_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="not divisible by 5 heads"):
        SmallViT(heads=5)
    with pytest.raises(UserError, match="not divisible into patches of 5"):
        SmallViT(patch_size=5)
    with pytest.raises(UserError, match="the images have 5 units of 16 numbers, but the model reads 50 of 16"):
        small_vit(plan=SmallViT())(images())


def test_it_can_be_truncated_and_pooled_by_a_scalar_mix() -> None:
    model = ScalarMix(TruncatedTransformer(SMALL_VIT, 1)).build(
        MulticlassClassification(3), None, Generator().manual_seed(1)
    )
    assert model(images()).attention.shape[1:3] == (1, 2)
    assert model.network.get_submodule("mix").get_parameter("weights").shape == (2,)


@pytest.mark.slow
def test_it_learns_digits_from_scratch(tmp_path: Path) -> None:
    subject = TrainedModel(
        corpus=SubsampledCorpus(Digits(), 400, 100, 200),
        tokenization=Patches(4, mean=(0.3,), std=(0.37,)),
        architecture=SmallViT(image_shape=(1, 8, 8), patch_size=4, layers=1, heads=2, width=32, dropout=0.0),
        training=Training(
            epochs=6,
            batch_size=16,
            optimizer=AdamW(lr=5e-3),
            selection=EpochSelection(),
            reduction="mean",
            max_grad_norm=1.0,
        ),
        objective=Supervised(balance_classes=False),
    )
    scores = Workspace(tmp_path).get(subject).notes["scores"]
    assert isinstance(scores, dict)
    test = scores["test"]
    assert isinstance(test, dict)
    assert float(str(test["accuracy"])) > 0.6, "chance is 0.1"
