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

from heedful.core.tasks import Classes
from heedful.core.types import Corpus, Example, Splits, UserError
from heedful.data.carving import carve
from heedful.data.layout import Stamp, digest, stamp
from heedful.data.patches import Patches
from heedful.data.published import DEV_SHARE, settled

ARRAYS = ("x_train", "y_train", "x_test", "y_test", "class_names")
Pixels = NDArray[np.generic]


class Pictures(Corpus):
    """A corpus of one `.npz` file with uint8 arrays."""

    stem: ClassVar[str]

    @property
    @abstractmethod
    def count(self) -> int:
        """How many classes there are."""

    def path(self, data: Path) -> Path:
        """The whole corpus if it is there, else a part of it, such as `cifar10_5k_1k.npz`."""
        folder = data / "images"
        found = [folder / f"{self.stem}.npz", *sorted(folder.glob(f"{self.stem}_*.npz"))]
        for path in found:
            if path.is_file():
                return path
        raise UserError(
            f"{self.name}: no file {self.stem}.npz in the folder {folder}; run 'heedful fetch {self.name}' "
            "or set HEEDFUL_DATA to the data folder that holds 'images'"
        )

    def read(self, data: Path) -> Splits:
        path = self.path(data)
        return _read(self, path, stamp(path))

    def digest(self, data: Path) -> str:
        return digest([self.path(data)], type(self).__name__)


@lru_cache(maxsize=2)
def _read(corpus: Pictures, path: Path, state: Stamp) -> Splits:
    arrays = _arrays(path)
    classes = tuple(str(name) for name in arrays["class_names"])
    if len(classes) != corpus.count:
        raise UserError(f"{path}: {len(classes)} classes instead of {corpus.count}; fetch {corpus.name} again")
    train = _examples(f"{corpus.name}-train", arrays["x_train"], arrays["y_train"])
    test = _examples(f"{corpus.name}-test", arrays["x_test"], arrays["y_test"])
    return settled(corpus, Splits(Classes(len(classes)), classes, train, (), test, {"file": path.name}))


def _arrays(path: Path) -> dict[str, Pixels]:
    try:
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path}: not the arrays {', '.join(ARRAYS)} ({error}); delete the file and fetch it again"
        ) from error
    for part in ("train", "test"):
        if len(arrays[f"x_{part}"]) != len(arrays[f"y_{part}"]):
            raise UserError(f"{path}: images and labels of {part} differ in number; delete the file and fetch it again")
    return arrays


def _examples(prefix: str, pixels: Pixels, labels: Pixels, *, top: float = 255.0) -> tuple[Example, ...]:
    images = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)) / top
    images = images.permute(0, 3, 1, 2).contiguous() if images.dim() == 4 else images.unsqueeze(1)
    return tuple(
        Example(f"{prefix}-{place}", (image,), int(label))
        for place, (image, label) in enumerate(zip(images, labels, strict=True))
    )


@dataclass(frozen=True)
class CIFAR10(Pictures):
    """Ten kinds of things, 32 x 32 colour photographs."""

    name: ClassVar[str] = "cifar10"
    batching: ClassVar[Patches] = Patches(4)
    stem: ClassVar[str] = "cifar10"

    @property
    def count(self) -> int:
        return 10


@dataclass(frozen=True)
class CIFAR100(Pictures):
    """A hundred kinds of things, 32 x 32 colour photographs (what SMaT uses)."""

    name: ClassVar[str] = "cifar100"
    batching: ClassVar[Patches] = Patches(4)
    stem: ClassVar[str] = "cifar100"

    @property
    def count(self) -> int:
        return 100


@dataclass(frozen=True)
class FashionMNIST(Pictures):
    """Ten kinds of clothes, 28 x 28 in grey."""

    name: ClassVar[str] = "fashion-mnist"
    batching: ClassVar[Patches] = Patches(4)
    stem: ClassVar[str] = "fashion_mnist"

    @property
    def count(self) -> int:
        return 10


@dataclass(frozen=True)
class Digits(Corpus):
    """The 1 797 handwritten digits of scikit-learn, 8 x 8 in grey; needs no file."""

    name: ClassVar[str] = "digits"
    batching: ClassVar[Patches] = Patches(2)

    def read(self, data: Path) -> Splits:
        pixels, labels = _digits()
        rest, test = carve(_examples("digits", pixels, labels, top=16.0), DEV_SHARE)
        classes = tuple("0123456789")
        return settled(self, Splits(Classes(10), classes, rest, (), test, {"test carved": len(test)}))

    def digest(self, data: Path) -> str:
        pixels, labels = _digits()
        return hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()


@lru_cache(maxsize=1)
def _digits() -> tuple[Pixels, Pixels]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.asarray(found.images, dtype=np.float64), np.asarray(found.target, dtype=np.int64)
