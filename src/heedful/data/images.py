"""Image corpora: `[channel height width]` in [0, 1], from `images/<name>*.npz` or from scikit-learn."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.data.io import FileCorpus, check_arrays
from heedful.data.patches import Patches
from heedful.data.splitting import DEV_SHARE, finalize_splits, hold_out
from heedful.tasks import MulticlassClassification
from heedful.types import Corpus, Example, Splits, UserError

ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test", "class_names")
_Pixels = NDArray[np.generic]


class ImageCorpus(FileCorpus):
    """A corpus in one `.npz` file of uint8 arrays; dev is held out from train."""

    tokenization: ClassVar[Patches] = Patches(4)
    num_classes: ClassVar[int]

    def files(self, data: Path) -> tuple[Path, ...]:
        """The complete corpus if it is there, else a part of it, such as `cifar10_5k_1k.npz`."""
        folder, stem = data / "images", self.name.replace("-", "_")
        for path in (folder / f"{stem}.npz", *sorted(folder.glob(f"{stem}_*.npz"))):
            if path.is_file():
                return (path,)
        raise UserError(
            f"{self.name}: no file {stem}.npz in the folder {folder}; run 'heedful fetch {self.name}' "
            "or set HEEDFUL_DATA to the data folder that holds 'images'"
        )

    def load(self, data: Path) -> Splits:
        (path,) = self.files(data)
        remedy = "delete the file and fetch it again"
        try:
            check_arrays(path)
            with np.load(path) as archive:
                arrays = {name: archive[name] for name in ARRAY_NAMES}
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile) as error:
            raise UserError(f"{path}: not the arrays {', '.join(ARRAY_NAMES)} ({error}); {remedy}") from error
        for split in ("train", "test"):
            if len(arrays[f"x_{split}"]) != len(arrays[f"y_{split}"]):
                raise UserError(f"{path}: {split} has more or fewer images than labels; {remedy}")
        classes = tuple(str(name) for name in arrays["class_names"])
        if len(classes) != self.num_classes:
            raise UserError(f"{path}: {len(classes)} classes instead of {self.num_classes}; fetch {self.name} again")
        train, test = (
            _image_examples(f"{self.name}-{split}", arrays[f"x_{split}"], arrays[f"y_{split}"], max_value=255)
            for split in ("train", "test")
        )
        task = MulticlassClassification(len(classes))
        return finalize_splits(self.name, Splits(task, classes, train, (), test, {"file": path.name}))


def _image_examples(prefix: str, pixels: _Pixels, labels: _Pixels, *, max_value: float) -> tuple[Example, ...]:
    images = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)) / max_value
    images = images.permute(0, 3, 1, 2).contiguous() if images.dim() == 4 else images.unsqueeze(1)
    return tuple(
        Example(f"{prefix}-{index}", (image,), int(label))
        for index, (image, label) in enumerate(zip(images, labels, strict=True))
    )


class CIFAR10(ImageCorpus):
    """Color photographs of ten classes, 32 x 32 pixels."""

    name: ClassVar[str] = "cifar10"
    num_classes: ClassVar[int] = 10


class CIFAR100(ImageCorpus):
    """Color photographs of a hundred classes, 32 x 32 pixels; used by SMaT."""

    name: ClassVar[str] = "cifar100"
    num_classes: ClassVar[int] = 100


class FashionMNIST(ImageCorpus):
    """Gray-scale images of ten classes of clothes, 28 x 28 pixels."""

    name: ClassVar[str] = "fashion-mnist"
    num_classes: ClassVar[int] = 10


@dataclass(frozen=True)
class Digits(Corpus):
    """The 1 797 handwritten digits of scikit-learn, 8 x 8 pixels in gray scale; needs no file."""

    name: ClassVar[str] = "digits"
    tokenization: ClassVar[Patches] = Patches(2)

    def read(self, data: Path) -> Splits:
        pixels, labels = _load_digits()
        rest, test = hold_out(_image_examples("digits", pixels, labels, max_value=16), DEV_SHARE)
        notes = {"test held out from train": len(test)}
        return finalize_splits(
            self.name, Splits(MulticlassClassification(10), tuple("0123456789"), rest, (), test, notes)
        )

    def digest(self, data: Path) -> str:
        pixels, labels = _load_digits()
        return hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()


@lru_cache(maxsize=1)
def _load_digits() -> tuple[_Pixels, _Pixels]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.asarray(digits.images, dtype=np.float64), np.asarray(digits.target, dtype=np.int64)
