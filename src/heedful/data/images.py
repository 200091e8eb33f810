"""Images: small photographs, clothes and digits, as `[channel height width]` in [0, 1].

The arrays come from `images/<name>*.npz` (never unpickled) or from scikit-learn; what has no dev part gets
one carved from train.
"""

from __future__ import annotations

import hashlib
import zipfile
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from heedful.data.io import FileState, file_state, hash_files
from heedful.data.splitting import hold_out
from heedful.data.text_corpora import DEV_SHARE, finalize_splits
from heedful.data.tokenization import Patches
from heedful.tasks import MulticlassClassification
from heedful.types import Corpus, Example, Splits, UserError

ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test", "class_names")
Pixels = NDArray[np.generic]


class ImageCorpus(Corpus):
    """A corpus of one `.npz` file with uint8 arrays."""

    file_stem: ClassVar[str]

    @property
    @abstractmethod
    def class_count(self) -> int:
        """How many classes there are."""

    def path(self, data: Path) -> Path:
        """The whole corpus if it is there, else a part of it, such as `cifar10_5k_1k.npz`."""
        folder = data / "images"
        found = [folder / f"{self.file_stem}.npz", *sorted(folder.glob(f"{self.file_stem}_*.npz"))]
        for path in found:
            if path.is_file():
                return path
        raise UserError(
            f"{self.name}: no file {self.file_stem}.npz in the folder {folder}; run 'heedful fetch {self.name}' "
            "or set HEEDFUL_DATA to the data folder that holds 'images'"
        )

    def read(self, data: Path) -> Splits:
        path = self.path(data)
        return _read_images(self, path, file_state(path))

    def digest(self, data: Path) -> str:
        return hash_files([self.path(data)], type(self).__name__)


@lru_cache(maxsize=2)
def _read_images(corpus: ImageCorpus, path: Path, state: FileState) -> Splits:
    arrays = _load_arrays(path)
    classes = tuple(str(name) for name in arrays["class_names"])
    if len(classes) != corpus.class_count:
        raise UserError(f"{path}: {len(classes)} classes instead of {corpus.class_count}; fetch {corpus.name} again")
    train = _image_examples(f"{corpus.name}-train", arrays["x_train"], arrays["y_train"])
    test = _image_examples(f"{corpus.name}-test", arrays["x_test"], arrays["y_test"])
    return finalize_splits(
        corpus, Splits(MulticlassClassification(len(classes)), classes, train, (), test, {"file": path.name})
    )


def _load_arrays(path: Path) -> dict[str, Pixels]:
    try:
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in ARRAY_NAMES}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path}: not the arrays {', '.join(ARRAY_NAMES)} ({error}); delete the file and fetch it again"
        ) from error
    for part in ("train", "test"):
        if len(arrays[f"x_{part}"]) != len(arrays[f"y_{part}"]):
            raise UserError(f"{path}: images and labels of {part} differ in number; delete the file and fetch it again")
    return arrays


def _image_examples(prefix: str, pixels: Pixels, labels: Pixels, *, max_value: float = 255.0) -> tuple[Example, ...]:
    images = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)) / max_value
    images = images.permute(0, 3, 1, 2).contiguous() if images.dim() == 4 else images.unsqueeze(1)
    return tuple(
        Example(f"{prefix}-{place}", (image,), int(label))
        for place, (image, label) in enumerate(zip(images, labels, strict=True))
    )


@dataclass(frozen=True)
class CIFAR10(ImageCorpus):
    """Ten kinds of things, 32 x 32 colour photographs."""

    name: ClassVar[str] = "cifar10"
    tokenization: ClassVar[Patches] = Patches(4)
    file_stem: ClassVar[str] = "cifar10"

    @property
    def class_count(self) -> int:
        return 10


@dataclass(frozen=True)
class CIFAR100(ImageCorpus):
    """A hundred kinds of things, 32 x 32 colour photographs (what SMaT uses)."""

    name: ClassVar[str] = "cifar100"
    tokenization: ClassVar[Patches] = Patches(4)
    file_stem: ClassVar[str] = "cifar100"

    @property
    def class_count(self) -> int:
        return 100


@dataclass(frozen=True)
class FashionMNIST(ImageCorpus):
    """Ten kinds of clothes, 28 x 28 in grey."""

    name: ClassVar[str] = "fashion-mnist"
    tokenization: ClassVar[Patches] = Patches(4)
    file_stem: ClassVar[str] = "fashion_mnist"

    @property
    def class_count(self) -> int:
        return 10


@dataclass(frozen=True)
class Digits(Corpus):
    """The 1 797 handwritten digits of scikit-learn, 8 x 8 in grey; needs no file."""

    name: ClassVar[str] = "digits"
    tokenization: ClassVar[Patches] = Patches(2)

    def read(self, data: Path) -> Splits:
        pixels, labels = _load_digits()
        rest, test = hold_out(_image_examples("digits", pixels, labels, max_value=16.0), DEV_SHARE)
        classes = tuple("0123456789")
        return finalize_splits(
            self, Splits(MulticlassClassification(10), classes, rest, (), test, {"test carved": len(test)})
        )

    def digest(self, data: Path) -> str:
        pixels, labels = _load_digits()
        return hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()


@lru_cache(maxsize=1)
def _load_digits() -> tuple[Pixels, Pixels]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.asarray(found.images, dtype=np.float64), np.asarray(found.target, dtype=np.int64)
