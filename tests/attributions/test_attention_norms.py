"""Norms of what attention carries: the library's layer rebuilt from our parts, slow twins, laws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heedful.attributions.attention import (
    KobayashiNorm,
    RawAttention,
    ValueNorm,
    contribution_norms,
    transformed_values,
)
from heedful.models._attention_hooks import AttentionRecorder
from heedful.models.transformer import FAMILIES, collect_value_trace
from heedful.types import ExposesValues, Method, UserError, ValueTrace
from tests.attention_laws import MODELS, check_laws, pooled, subject, targets
from tests.networks import batch_of, eager, library_inputs, texts, tiny

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
    found = contribution_norms(carried, 1).detach()
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
            both = [float(contribution_norms(carried, layer).detach()[place, rows, unit].mean()) for layer in range(2)]
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
        with pytest.raises(UserError, match="no layer 2"):
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
    module = model.network.get_submodule("bert.embeddings")
    with pytest.raises(UserError, match=r"BertForSequenceClassification was not found beside bert\.embeddings"):
        collect_value_trace(
            model.network, AttentionRecorder(values=[(module, torch.zeros(1, 2, 3, 4))]), torch.zeros(1, 2)
        )


@pytest.mark.parametrize("method", [ValueNorm(), KobayashiNorm()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_the_laws_hold(method: Method, name: str) -> None:
    check_laws(method, name)
