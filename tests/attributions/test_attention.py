"""Attention-based methods: known answers, the library's own layers and autograd as oracles, slow twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from heedful.attributions.attention import (
    AttentionXGradient,
    Flow,
    HeadAttention,
    KobayashiNorm,
    RawAttention,
    Relevance,
    Rollout,
    ValueNorm,
    attention_times_gradient,
    largest_weights,
    propagate_relevance,
    residual_attention,
    roll_out,
    row_weights,
    transformed_values,
)
from heedful.attributions.method import Output
from heedful.capabilities import ExposesValues, ValueTrace
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.input_forms import PairInput
from heedful.models.transformer import TransformerModel
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Method, Model, Trace, UserError
from tests.games import words
from tests.networks import FAMILIES, batch_of, eager, library_inputs, network, texts, tiny
from tests.small_models import pooled, small_models, some_batch, subject, targets

BATCH = some_batch((5, 3, 7))


TARGET = torch.tensor([0, 1, 1])


def test_raw_attention_of_a_pooled_model_is_its_attention() -> None:
    model = small_models()["pooled"]
    expected = model(BATCH).attention[:, 0, 0, 0]
    assert torch.allclose(RawAttention()(model, BATCH, TARGET).scores, expected)


def test_raw_attention_of_a_transformer_is_the_mean_over_heads_layers_and_real_rows() -> None:
    model = small_models()["transformer"]
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


def test_rollout_without_a_class_token_averages_all_rows() -> None:
    model, batch = tiny("bert"), texts()
    batch = replace(batch, words=torch.arange(7).expand(3, 7).masked_fill(~batch.mask, -1))
    layers = residual_attention(model(batch).attention.detach())[1, :, :5, :5]
    found = Rollout()(model, batch, targets(batch)).scores[1, :5]
    torch.testing.assert_close(found, (layers[1] @ layers[0]).mean(0), rtol=0, atol=1e-12)
    assert found.sum() == pytest.approx(1)


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
        (HeadAttention(layer=2), "layer 2"),
        (HeadAttention(head=-3), "head -3"),
        (RawAttention(layer=7), "layer 7"),
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
    assert row_weights(batch, "class", 7).tolist() == [[1, 0, 0, 0, 0, 0, 0]] * 3
    assert row_weights(batch, "mean", 7)[2].tolist() == pytest.approx([1 / 3] * 3 + [0] * 4)


@pytest.mark.parametrize("name", ["SingleInput", "PairInput", "QuestionAnswering"])
def test_a_pooled_model_is_explained_by_its_attention(name: str) -> None:
    model, batch = subject(name)
    expected = RawAttention()(model, batch, targets(batch)).scores
    for method in (Rollout(), HeadAttention()):
        assert torch.equal(method(model, batch, targets(batch)).scores, expected)


PLACES = {"distilbert": "attention.out_lin", "vit": "attention.o_proj"}


def given_out(carried: ValueTrace, layer: int) -> Tensor:
    """What the attention of a layer gives out `[batch query width]`, unit by unit and head by head, and its offset."""
    return (
        torch.einsum("bhqu,bhuw->bqw", carried.attention[layer], transformed_values(carried, layer))
        + carried.offsets[layer]
    )


def projections(network: nn.Module, family: str) -> list[nn.Module]:
    """The output projections of the library's layers, from the first up."""
    place = PLACES.get(family, "attention.output.dense")
    return [module for name, module in network.named_modules() if name.endswith(place)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_library_is_rebuilt_from_what_units_carry(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    plain, inputs = eager(model), library_inputs(family, batch)
    theirs: list[Tensor] = []
    places = projections(plain, family)
    assert len(places) == 2
    handles = [place.register_forward_hook(lambda *seen: theirs.append(seen[2])) for place in places]
    expected = plain(**inputs).logits.detach()
    for handle in handles:
        handle.remove()
    carried = model.read_values(batch)
    ours = [given_out(carried, layer) for layer in range(2)]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine[batch.mask], other[batch.mask], rtol=0, atol=1e-5)
    for place, mine in zip(places, ours, strict=True):
        place.register_forward_hook(replacing(mine))
    torch.testing.assert_close(plain(**inputs).logits.detach(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(carried.logits.detach(), expected, rtol=0, atol=1e-5)


def replacing(output: Tensor) -> Callable[..., Tensor]:
    return lambda *_: output


def test_the_rebuilt_layer_would_notice_another_attention() -> None:
    model, batch = tiny("bert"), texts()
    plain, inputs = eager(model), library_inputs("bert", batch)
    before = plain(**inputs).logits.detach()
    projections(plain, "bert")[1].register_forward_hook(replacing(given_out(model.read_values(batch), 0)))
    assert (plain(**inputs).logits - before).abs().max() > 1e-2


def test_kobayashi_norms_are_the_lengths_of_the_vectors_that_units_add() -> None:
    with torch.no_grad():
        carried = tiny("bert").read_values(texts())
    found = KobayashiNorm().pair_norms(carried, 1).detach()
    vectors = transformed_values(carried, 1).detach()
    for row, query, unit in ((0, 0, 3), (0, 6, 1), (1, 2, 4), (2, 1, 1)):
        added = sum(carried.attention[1][row, head, query, unit] * vectors[row, head, unit] for head in range(2))
        assert float(found[row, query, unit]) == pytest.approx(float(torch.as_tensor(added).norm()), abs=1e-10)


@pytest.mark.parametrize("row", ["mean", "class"])
def test_scores_are_means_over_layers_and_rows(row: str) -> None:
    model, batch = tiny("bert"), texts()
    target = targets(batch)
    with torch.no_grad():
        carried = model.read_values(batch)
    kobayashi = KobayashiNorm(row="mean" if row == "mean" else "class")(model, batch, target).scores
    lengths = ValueNorm(row="mean" if row == "mean" else "class")(model, batch, target).scores
    for place, length in enumerate(batch.lengths.tolist()):
        rows = slice(0, length if row == "mean" else 1)
        for unit in range(1, length):
            both = [
                float(KobayashiNorm().pair_norms(carried, layer).detach()[place, rows, unit].mean())
                for layer in range(2)
            ]
            assert float(kobayashi[place, unit]) == pytest.approx(sum(both) / 2, abs=1e-10)
            weighed = [
                float(
                    carried.attention[layer][place, head, rows, unit].mean()
                    * carried.values[layer][place, head, unit].norm()
                )
                for layer in range(2)
                for head in range(2)
            ]
            assert float(lengths[place, unit]) == pytest.approx(sum(weighed) / 4, abs=1e-10)


def test_one_layer_can_be_chosen_and_a_missing_one_is_named() -> None:
    model, batch = tiny("bert"), texts()
    target = targets(batch)
    for kind in (KobayashiNorm, ValueNorm):
        first, last = kind(layer=0)(model, batch, target).scores, kind(layer=-1)(model, batch, target).scores
        torch.testing.assert_close((first + last) / 2, kind()(model, batch, target).scores)
        assert not torch.allclose(first, last)
        with pytest.raises(UserError, match="layer 2"):
            kind(layer=2)(model, batch, target)
    with pytest.raises(UserError, match="row"):
        ValueNorm(row="top")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["SingleInput", "PairInput", "QuestionAnswering"])
@pytest.mark.parametrize("method", [ValueNorm(), KobayashiNorm()], ids=lambda method: type(method).__name__)
def test_a_pooled_model_weighs_its_hidden_states(method: Method, name: str) -> None:
    model, batch = subject(name)
    lengths = model(batch).hidden.norm(dim=-1)
    expected = RawAttention()(model, batch, targets(batch)).scores * lengths
    torch.testing.assert_close(method(model, batch, targets(batch)).scores, expected.detach())


def test_only_models_of_self_attention_show_what_they_carry() -> None:
    assert isinstance(tiny("bert"), ExposesValues)
    assert not isinstance(pooled(), ExposesValues)


def test_a_frozen_network_lets_its_attention_take_a_gradient_and_no_graph_is_kept_without() -> None:
    model, batch = tiny("bert"), texts()
    model.requires_grad_(requires_grad=False)
    assert all(weights.requires_grad for weights in model.read_values(batch).attention)
    with torch.no_grad():
        assert not model.read_values(batch).logits.requires_grad


def test_a_family_that_hides_its_projection_is_refused_by_name() -> None:
    model = tiny("bert")
    assert model.maps is not None
    model.maps = replace(model.maps, projections=("", ""))
    with pytest.raises(UserError, match="no linear map follows the attention of BertForSequenceClassification"):
        model.read_values(texts())


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


def test_a_gradient_counts_what_later_layers_attend_to() -> None:
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


def test_a_probability_has_the_gradient_of_its_sigmoid() -> None:
    model, batch = pooled(), texts()
    chance = model(batch).logits.sigmoid().detach()
    target = torch.ones(3, dtype=torch.int64)
    logit = AttentionXGradient(positive=False)(model, batch, target).scores
    probability = AttentionXGradient("probability", positive=False)(model, batch, target).scores
    torch.testing.assert_close(probability, logit * chance * (1 - chance))


def test_relevance_without_a_class_token_averages_all_rows() -> None:
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
    with pytest.raises(UserError, match="layer 5"):
        AttentionXGradient(layer=5)(model, batch, target)


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


@pytest.mark.parametrize("family", ["albert", "modernbert"])
def test_attention_times_gradient_is_that_of_attention_that_is_passed_in(family: str) -> None:
    model, batch = TransformerModel.wrap(network(family, num_labels=3)), texts()
    target = torch.tensor([0, 1, 2])
    found = AttentionXGradient(positive=False, special_tokens=True)(model, batch, target).scores
    # By hand: attention is passed in whole, and its gradient is that of all layers at once.
    with torch.no_grad():
        attention = model(batch).attention
    for layer in range(2):
        only = AttentionXGradient(positive=False, layer=layer, special_tokens=True)(model, batch, target).scores
        found = found - only / 2
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-9, rtol=0)
    weights = attention.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(model(batch, attention=weights).logits.gather(1, target[:, None]).sum(), weights)
    top = (weights * slopes)[:, 1].mean(1).detach().double()
    rows = batch.mask.double() / batch.mask.sum(1, keepdim=True)
    torch.testing.assert_close(only, torch.einsum("bq,bqu->bu", rows, top), atol=1e-6, rtol=1e-4)
    for method in (Relevance(), ValueNorm(), KobayashiNorm()):
        assert bool(method(model, batch, target).scores.isfinite().all())


def test_the_largest_weight_is_that_of_a_texts_own_words() -> None:
    """The second text ends where the first one has words: `<sos> w w w <eos>` and `<sos> w <eos>`."""
    attention = torch.tensor([[0.1, 0.2, 0.3, 0.15, 0.25], [0.0, 0.3, 0.7, 0.0, 0.0]])[:, None, None, None]
    assert largest_weights(attention, some_batch((3, 1))).tolist() == pytest.approx([0.3, 0.3])


class Stacked(Model):
    """One layer of two heads, or more layers, over three tokens."""

    def __init__(self, layers: int, heads: int) -> None:
        super().__init__()
        self.task = BinaryClassification()
        self.scores = nn.Parameter(torch.arange(9.0 * layers * heads).reshape(1, layers, heads, 3, 3).sin())

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        attention = self.scores.softmax(-1).expand(len(batch), -1, -1, -1, -1) if attention is None else attention
        embeddings = torch.ones(len(batch), 3, 1) if embeddings is None else embeddings
        return Trace(embeddings, embeddings, attention, (attention.mean((1, 2, 3)) * torch.arange(3.0)).sum(-1, True))


class Fixed(Model):
    """Attention as given `[layer query unit]`, with one head; the head of the model reads the last token."""

    def __init__(self, attention: Tensor) -> None:
        super().__init__()
        self.task, self.weights = BinaryClassification(), attention
        self.deciding_row = "last"

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        states = torch.ones(len(batch), self.weights.shape[-1], 1)
        return Trace(states, states, self.weights[None, :, None].expand(len(batch), -1, -1, -1, -1), states[:, 0])


def test_rollout_and_flow_of_a_causal_model_follow_the_past_of_its_last_token() -> None:
    """By hand: B1 = [1], [.25 .75], [.1 .15 .75] and B2 = [1], [.2 .8], [.05 .2 .75], with zeros above the diagonal."""
    lower = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    upper = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.1, 0.4, 0.5]])
    batch, target = words((1, 2, 3)), torch.tensor([1])
    model = Fixed(torch.stack([lower, upper]))
    # .05 (1, 0, 0) + .2 (.25, .75, 0) + .75 (.1, .15, .75)
    assert Rollout()(model, batch, target).scores[0].tolist() == pytest.approx([0.175, 0.2625, 0.5625])
    # The smaller capacity of each path: .05 + .2 + .1, .2 + .15 and .75.
    assert Flow()(model, batch, target).scores[0].tolist() == pytest.approx([0.35, 0.35, 0.75])
    # The last token looks at itself only: the past reaches it in the lower layer.
    alone = Fixed(torch.stack([lower, torch.eye(3)]))
    assert Rollout()(alone, batch, target).scores[0].tolist() == pytest.approx([0.1, 0.15, 0.75])
    shut = Fixed(torch.stack([torch.eye(3), torch.eye(3)]))
    for method in (Rollout(), Flow()):
        assert method(shut, batch, target).scores[0].tolist() == pytest.approx([0.0, 0.0, 1.0])


def test_layers_are_counted_apart_from_heads() -> None:
    batch, target = words((1, 2, 3), (3, 2, 1)), torch.tensor([1, 0])
    model = Stacked(layers=1, heads=2)
    for method in (HeadAttention, AttentionXGradient, RawAttention):
        last, only = (
            method(layer=layer)(model, batch, target).scores for layer in (-1 if method is HeadAttention else 0, 0)
        )
        assert torch.equal(last, only)
        assert float(only.abs().sum()) > 0
        with pytest.raises(UserError, match="layer 1"):
            method(layer=1)(model, batch, target)


def test_layers_that_a_model_does_not_expose_are_not_multiplied_by_gradients() -> None:
    with pytest.raises(UserError, match="does not expose its layers"):
        AttentionXGradient()(Stacked(layers=2, heads=1), words((1, 2, 3)), torch.tensor([1]))
