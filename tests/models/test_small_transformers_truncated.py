"""Transformers with fewer layers: the first ones, as they are, and nothing of the others."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import BiLSTM
from heedful.models.small_transformers import ScalarMix, TruncatedTransformer
from heedful.models.transformer import FAMILIES, SmallTransformer, TinyTransformer, TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.types import Model, UserError
from tests.model_laws import LAWS, TEXT_LAWS, Case, Law, assert_close, law_name, real_units
from tests.networks import batch_of, eager, library_inputs, texts


def short(family: str, layers: int, seed: int = 1) -> TransformerModel:
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
    long, cut = whole(family)(batch), short(family, 2)(batch)
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
    found = short(family, 2)(batch).hidden
    # The library's ViT rounds its attention to float32.
    torch.testing.assert_close(found[batch.mask], expected[batch.mask], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_kept_is_the_model_itself(family: str) -> None:
    batch = batch_of(family)
    assert torch.equal(short(family, 3)(batch).logits, whole(family)(batch).logits)


def test_weights_of_the_layers_left_out_are_gone_and_the_rest_is_untouched() -> None:
    kept, before = short("bert", 1).state_dict(), whole("bert").state_dict()
    gone = set(before) - set(kept)
    assert set(kept) < set(before)
    assert gone
    assert all(".layer.1." in name or ".layer.2." in name for name in gone)
    assert not any(".layer.1." in name for name in kept)
    assert all(torch.equal(kept[name], before[name]) for name in kept)


@pytest.mark.parametrize("law", [*LAWS, *TEXT_LAWS], ids=law_name)
def test_a_shortened_transformer_obeys(law: Law) -> None:
    def build(seed: int) -> Model:
        return short("distilbert", 2, seed)

    law(Case(build, texts(), real_units))


def test_a_small_transformer_on_word_vectors_can_be_shortened_too() -> None:
    table = torch.randn(50, 6, generator=Generator().manual_seed(1))
    plan = TruncatedTransformer(SmallTransformer(3, 2, 8, max_positions=16), 1)
    model = plan.build(MulticlassClassification(2), table, Generator().manual_seed(2))
    assert model(texts()).attention.shape[1:3] == (1, 2)
    assert "1 of 3 layers" in model.notes[-1]


def test_more_layers_than_there_are_none_at_all_and_other_models_are_refused() -> None:
    with pytest.raises(UserError, match="keep at least 1"):
        TruncatedTransformer(TinyTransformer(), 0)
    with pytest.raises(UserError, match="has 2 layers: it cannot be truncated to 3"):
        TruncatedTransformer(TinyTransformer(), 3).build(MulticlassClassification(2), None, Generator().manual_seed(0))
    pooled = TruncatedTransformer(Attentive(BiLSTM(4), Additive()), 1)
    with pytest.raises(UserError, match="Attentive is not a transformer"):
        pooled.build(MulticlassClassification(2), torch.zeros(9, 3), Generator().manual_seed(0))
    with pytest.raises(UserError, match="instead"):
        TruncatedTransformer(ScalarMix(TinyTransformer()), 1).build(
            MulticlassClassification(2), None, Generator().manual_seed(0)
        )
