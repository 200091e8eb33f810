"""Patches: the layout is that of a strided convolution, folding back is exact, and bad images are named."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional

from heedful.data.tokenization import Patches, fold, unfold
from heedful.types import Example, UserError


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_folding_back_is_exact_also_for_oblong_images() -> None:
    images = image(2, 3, 4, 6)
    patches = unfold(images, 2)
    assert patches.shape == (2, 6, 12)
    assert torch.equal(fold(patches, 4, 6, 2), images)


def test_entry_c_y_x_of_a_patch_is_that_pixel() -> None:
    images, patch = image(1, 3, 6, 9), 3
    patches = unfold(images, patch)
    for unit, (c, y, x) in [(0, (0, 0, 0)), (1, (2, 1, 0)), (4, (1, 2, 2)), (5, (2, 0, 1))]:
        top, left = unit // 3 * patch, unit % 3 * patch
        assert patches[0, unit, (c * patch + y) * patch + x] == images[0, c, top + y, left + x]


def test_a_convolution_with_stride_patch_is_a_product_with_its_flattened_weight() -> None:
    images, weight = image(2, 3, 8, 8).double(), image(5, 3, 4, 4, seed=1).double()
    expected = functional.conv2d(images, weight, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(unfold(images, 4) @ weight.flatten(1).T, expected)


def test_unit_zero_is_the_class_symbol_and_patches_are_numbered_row_by_row() -> None:
    examples = [Example("1", (image(1, 4, 6),), 3), Example("2", (image(1, 4, 6, seed=1),), 0)]
    batcher = Patches(2).fit(examples)
    batch = batcher(examples)
    assert batch.inputs.shape == (2, 7, 4)
    assert bool((batch.inputs[:, 0] == 0).all())
    assert batch.words.tolist() == [[-1, 0, 1, 2, 3, 4, 5]] * 2
    assert bool(batch.mask.all())
    assert batch.labels is not None
    assert batch.labels.tolist() == [3, 0]
    assert batcher.unit_texts(batch)[0] == ["<class>", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    plain = Patches(2, class_token=False).fit(examples)(examples)
    assert torch.equal(plain.inputs, batch.inputs[:, 1:])
    assert plain.words.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_each_channel_is_normalised_by_its_own_mean_and_deviation() -> None:
    flat = torch.stack([torch.full((2, 2), value) for value in (0.5, 0.25)])
    recipe = Patches(2, mean=(0.25, 0.75), std=(0.5, 0.25), class_token=False)
    batch = recipe.fit([Example("1", (flat,))])([Example("1", (flat,))])
    assert batch.inputs.tolist() == [[[0.5] * 4 + [-2.0] * 4]]


def test_resizing_gives_one_shape_and_keeps_a_constant_image_constant() -> None:
    examples = [Example("1", (torch.full((1, 5, 7), 0.5),)), Example("2", (torch.full((1, 3, 3), 0.25),))]
    batch = Patches(2, image_size=4, class_token=False).fit(examples)(examples)
    assert batch.inputs.tolist() == [[[0.5] * 4] * 4, [[0.25] * 4] * 4]


def test_blanking_a_patch_leaves_the_others_as_they_were() -> None:
    example = Example("1", (image(1, 4, 4),))
    batch = Patches(2).fit([example])([example])
    units = torch.tensor([[True, True, False, True, True]])
    kept = batch.keep_units(units)
    assert bool((kept.inputs[0, 2] == 0).all())
    assert torch.equal(kept.inputs[0, [1, 3, 4]], batch.inputs[0, [1, 3, 4]])


def test_a_batcher_comes_back_from_json() -> None:
    recipe = Patches(2)
    example = Example("1", (image(3, 4, 6),), 1)
    fitted = recipe.fit([example])
    again = recipe.restore(json.loads(json.dumps(fitted.state())))
    assert torch.equal(again([example]).inputs, fitted([example]).inputs)
    assert again.unit_texts(again([example])) == fitted.unit_texts(fitted([example]))


def test_bad_images_and_recipes_get_one_plain_line() -> None:
    with pytest.raises(UserError, match="5 x 4 pixels do not part into patches of 2"):
        Patches(2).fit([Example("1", (image(1, 5, 4),))])
    batcher = Patches(2).fit([Example("1", (image(1, 4, 4),))])
    with pytest.raises(UserError, match="image 2 is 1 x 4 x 6, the training images are 1 x 4 x 4"):
        batcher([Example("2", (image(1, 4, 6),))])
    with pytest.raises(UserError, match="example 3 is not one image"):
        batcher([Example("3", ("a text",))])
    with pytest.raises(UserError, match="mean has 3 numbers, the images have 1 channels"):
        Patches(2, mean=(0.5,) * 3, std=(0.5,) * 3).fit([Example("1", (image(1, 4, 4),))])
    with pytest.raises(UserError, match="std must be positive"):
        Patches(2, mean=(0.5,), std=(0.0,))
    with pytest.raises(UserError, match="at least 1"):
        Patches(0)
    with pytest.raises(UserError, match="no images"):
        Patches(2).fit([])
