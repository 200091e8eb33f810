"""Image corpora: channels first in [0, 1], nothing unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.images import CIFAR10, Digits, FashionMNIST
from heedful.types import UserError
from tests.claimed_arrays import claiming
from tests.invented_corpora import prepared


def test_pixels_lie_between_0_and_1_with_channels_first(tmp_path: Path) -> None:
    for corpus, shape in ((CIFAR10(), (3, 32, 32)), (FashionMNIST(), (1, 28, 28)), (Digits(), (1, 8, 8))):
        data = tmp_path / corpus.name
        data.mkdir()
        splits = prepared(corpus, data).read(data)
        image = splits.test[0].parts[0]
        assert isinstance(image, torch.Tensor)
        assert tuple(image.shape) == shape
        assert 0 <= float(image.min()) < float(image.max()) <= 1


def test_a_colour_stays_at_its_place(tmp_path: Path) -> None:
    prepared(CIFAR10(), tmp_path)
    with np.load(tmp_path / "images" / "cifar10_tiny.npz") as archive:
        raw = archive["x_test"][3]
    image = CIFAR10().read(tmp_path).test[3].parts[0]
    assert isinstance(image, torch.Tensor)
    assert float(image[2, 5, 7]) == pytest.approx(int(raw[5, 7, 2]) / 255)


def test_an_image_archive_that_claims_far_too_much_is_refused(tmp_path: Path) -> None:
    prepared(CIFAR10(), tmp_path)
    path = tmp_path / "images" / "cifar10_tiny.npz"
    path.write_bytes(claiming((1 << 40,), "x_train", "y_train", "x_test", "y_test", "class_names"))
    with pytest.raises(UserError, match=str(1 << 40)):
        CIFAR10().read(tmp_path)


def test_pickles_inside_an_image_archive_are_refused(tmp_path: Path) -> None:
    prepared(CIFAR10(), tmp_path)
    path = tmp_path / "images" / "cifar10_tiny.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["class_names"] = np.array([{"a": 1}] * 10, dtype=object)
    np.savez(path, **arrays)
    with pytest.raises(UserError, match="delete the file and fetch it again"):
        CIFAR10().read(tmp_path)
