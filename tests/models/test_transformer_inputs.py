"""What a network reads of a batch: segments, positions and pixels arrive where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator
from transformers import ViTConfig

from heedful.models.transformer import TinyTransformer, TransformerModel, fold_images
from heedful.tasks import MulticlassClassification
from heedful.types import UserError
from tests.model_laws import assert_close, padded
from tests.networks import TEXT_FAMILIES, images, network, pixels, texts, tiny


def test_segments_reach_bert_and_are_clipped_where_there_is_one_type() -> None:
    batch = texts()
    other = replace(batch, segments=torch.zeros_like(batch.segments))
    bert = tiny("bert").eval()
    assert not torch.allclose(bert(batch).logits, bert(other).logits)
    one = TransformerModel.wrap(network(type_vocab_size=1)).eval()
    assert torch.equal(one(batch).logits, one(other).logits)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_a_real_unit_with_the_padding_id_keeps_its_position(family: str) -> None:
    model, batch = tiny(family).eval(), texts()
    batch.inputs[:, 1] = 1
    block = model.network.base_model.get_submodule("embeddings")
    row = batch.rows(torch.tensor([0]))
    expected = type(block).forward(
        block,
        input_ids=row.inputs,
        position_ids=torch.arange(2, 9)[None],
        token_type_ids=row.segments,
    )
    assert_close(model(batch).embeddings[:1], expected)


def test_bare_library_roberta_agrees_where_no_real_unit_has_the_padding_id() -> None:
    plain, batch = network("roberta"), texts()
    inputs = batch.inputs.masked_fill(~batch.mask, 1)
    expected = plain(input_ids=inputs, attention_mask=batch.mask, token_type_ids=batch.segments).logits
    found = TransformerModel.wrap(plain)(batch).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_images_are_folded_back_pixel_for_pixel() -> None:
    batch = images(channels=3, size=(8, 12))
    config = ViTConfig(num_channels=3, image_size=(8, 12), patch_size=4)
    original = pixels(channels=3, size=(8, 12))
    assert torch.equal(fold_images(batch, config), original)
    patch = batch.inputs[1, 1 + 4].reshape(3, 4, 4)
    assert torch.equal(patch, original[1, :, 4:8, 4:8]), "patch 4 is the second of the second row of three"


def test_a_blanked_patch_is_a_black_square() -> None:
    plain, batch = network("vit", image_size=8, patch_size=4, num_channels=1), images()
    blanked = pixels().float()
    blanked[:, :, 4:, :4] = 0
    kept = torch.ones(3, 5, dtype=torch.bool)
    kept[:, 3] = False
    found = TransformerModel.wrap(plain)(batch.keep_units(kept)).logits
    torch.testing.assert_close(found, plain(pixel_values=blanked).logits, rtol=0, atol=1e-5)


def test_wrong_inputs_are_named() -> None:
    bert, vit = tiny("bert"), tiny("vit")
    with pytest.raises(UserError, match="reads text, but the batch holds image patches"):
        bert(images())
    with pytest.raises(UserError, match="reads images, but the batch holds ids"):
        vit(texts())
    with pytest.raises(UserError, match="5 units of 48 numbers, but the model reads 5 of 16"):
        vit(images(channels=3))
    with pytest.raises(UserError, match=r"id 70 is outside the vocabulary .* which ends at 49"):
        bert(replace(texts(), inputs=torch.full((3, 7), 70)))


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_text_fills_all_positions_but_not_one_more(family: str) -> None:
    plan = replace(TinyTransformer(family), max_positions=7)
    model = plan.build(MulticlassClassification(2), None, Generator().manual_seed(1))
    assert model(padded(texts(), 3)).logits.shape == (3, 2), "padding beyond the positions does no harm"
    long = replace(padded(texts(), 1), mask=torch.ones(3, 8, dtype=torch.bool))
    with pytest.raises(UserError, match=r"a text has 8 tokens, but .* at most 7"):
        model(long)
