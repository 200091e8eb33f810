"""Images as patches, row by row from the top left.

Within a patch the order is channel, row, column, so entry `(c * patch + y) * patch + x` is the pixel `[c, y, x]`: a
convolution with kernel = stride = patch is the product of the flattened patches with `weight.flatten(1).T`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from heedful.data.tokenization import label_tensor, read_saved_number
from heedful.store.model_folder import read_model_settings
from heedful.types import Batch, Example, Tokenization, Tokenizer, UserError, user_path


def unfold(images: Tensor, patch_size: int) -> Tensor:
    """Flattened patches `[batch patch dim]` of images `[batch channel height width]`.

    >>> unfold(torch.arange(8.0).reshape(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    batch, channels, height, width = images.shape
    grid = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch_size * patch_size)


@dataclass(frozen=True)
class Patches(Tokenization):
    """Square patches of images `[channel height width]` with values in [0, 1].

    Args:
        patch_size: side of a patch in pixels.
        image_size: side that images are resized to (bilinear); None keeps their size.
        mean: per channel, subtracted before dividing by `std`; empty keeps the values.
        class_token: whether token 0 is a class token, given as zeros; a model puts its own vector there.
        registers: further special tokens behind the class token, such as registers or a distillation token.
    """

    patch_size: int
    image_size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_token: bool = True
    registers: int = 0

    def __post_init__(self) -> None:
        if self.patch_size < 1:
            raise UserError(f"patch_size is {self.patch_size}: it must be at least 1")
        if self.registers < 0 or (self.registers and not self.class_token):
            raise UserError(f"registers is {self.registers}: give a number from 0 on, and a class token before them")
        if len(self.mean) != len(self.std) or any(value <= 0 for value in self.std):
            raise UserError("mean and std need one number per channel, and std must be positive")

    def fit(self, examples: Sequence[Example]) -> PatchTokenizer:
        if not examples:
            raise UserError("no images to take the size from: give at least one example")
        channels, height, width = _image(examples[0]).shape
        return PatchTokenizer(self, (channels, self.image_size or height, self.image_size or width))

    def restore(self, saved: Mapping[str, object]) -> PatchTokenizer:
        channels, height, width = (read_saved_number(saved, name) for name in ("channels", "height", "width"))
        return PatchTokenizer(self, (channels, height, width))


def read_patches(source: str, patch_size: int, image_size: int) -> Patches:
    """The patches that a vision model in a folder or on the hub reads, as its preprocessor_config.json says."""
    from transformers.utils.hub import cached_file

    name, folder = "preprocessor_config.json", user_path(source)
    path = folder / name if folder.is_dir() else cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    if path is None or not Path(path).is_file():
        raise UserError(f"{source} reads images and has no {name}: save its image processor into the folder")
    settings = read_model_settings(Path(path))
    if settings.get("do_center_crop"):
        raise UserError(
            f"{source} crops its images (do_center_crop), which is not supported: use one that resizes them"
        )
    mean, std = (
        tuple(map(float, value))
        if isinstance(value := settings.get(key), list) and settings.get("do_normalize")
        else ()
        for key in ("image_mean", "image_std")
    )
    return Patches(patch_size, image_size if settings.get("do_resize", True) else None, mean, std)


class PatchTokenizer(Tokenizer):
    """Batches of flattened patches of images of one shape `[channel height width]`."""

    def __init__(self, tokenization: Patches, shape: tuple[int, int, int]) -> None:
        self._tokenization = tokenization
        self._shape = shape
        channels, height, width = shape
        if height % tokenization.patch_size or width % tokenization.patch_size:
            raise UserError(
                f"{height} x {width} pixels cannot be divided into patches of {tokenization.patch_size}: "
                "set patch_size or image_size"
            )
        if tokenization.mean and len(tokenization.mean) != channels:
            raise UserError(f"mean has {len(tokenization.mean)} numbers, the images have {channels} channels")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        images, mean, std = self._stack(examples), self._tokenization.mean, self._tokenization.std
        if mean:
            images = (images - images.new_tensor(mean).reshape(-1, 1, 1)) / images.new_tensor(std).reshape(-1, 1, 1)
        units = unfold(images, self._tokenization.patch_size)
        words = torch.arange(units.shape[1])
        special = self._tokenization.class_token + self._tokenization.registers
        units, words = functional.pad(units, (0, 0, special, 0)), functional.pad(words, (special, 0), value=-1)
        return Batch(
            uids=tuple(example.uid for example in examples),
            inputs=units,
            mask=torch.ones(units.shape[:2], dtype=torch.bool),
            segments=torch.zeros(units.shape[:2], dtype=torch.int64),
            words=words.repeat(len(examples), 1),
            labels=label_tensor(examples),
        )

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        columns = self._shape[2] // self._tokenization.patch_size
        rows = [words[:n] for words, n in zip(batch.words.tolist(), batch.lengths.tolist(), strict=True)]
        return [
            [
                f"{word // columns},{word % columns}" if word >= 0 else "<register>" if position else "<class>"
                for position, word in enumerate(row)
            ]
            for row in rows
        ]

    @property
    def tokenization(self) -> Patches:
        """The preprocessing that this tokenizer applies."""
        return self._tokenization

    def state(self) -> dict[str, object]:
        return dict(zip(("channels", "height", "width"), self._shape, strict=True))

    def definition(self) -> str:
        return f"{self._tokenization} {super().definition()}"

    def _stack(self, examples: Sequence[Example]) -> Tensor:
        """The images `[batch channel height width]`, resized if the tokenization says so."""
        images, side = [], self._tokenization.image_size
        for example in examples:
            image = _image(example)
            if side is not None:
                image = functional.interpolate(image.unsqueeze(0), size=(side, side), mode="bilinear").squeeze(0)
            if tuple(image.shape) != self._shape:
                actual, expected = (" x ".join(map(str, shape)) for shape in (image.shape, self._shape))
                raise UserError(f"image {example.uid} is {actual}, the training images are {expected}: set image_size")
            images.append(image)
        return torch.stack(images)


def _image(example: Example) -> Tensor:
    image = example.parts[0] if len(example.parts) == 1 else None
    if not isinstance(image, Tensor) or image.dim() != 3 or not image.is_floating_point():
        raise UserError(f"example {example.uid} is not one image [channel height width] of floats in [0, 1]")
    return image
