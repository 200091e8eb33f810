"""From images to batches of patches, the units of a vision transformer.

Layout: patches run row by row from the top left; inside a patch the order is channel, row, column, so entry
`(c * patch + y) * patch + x` is the pixel `[c, y, x]` of that patch. A convolution with kernel = stride =
patch is then the product of the flattened patches with `weight.flatten(1).T`. `fold` is the exact inverse of
`unfold`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from heedful.core.types import Batch, Batcher, Batching, Example, UserError
from heedful.data.batching import answers_of, candidates_of, labels_of, saved_number


def unfold(images: Tensor, patch: int) -> Tensor:
    """Flattened patches `[batch unit dim]` of images `[batch channel height width]`.

    >>> unfold(torch.arange(8.0).reshape(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    batch, channels, height, width = images.shape
    cut = images.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch * patch)


def fold(patches: Tensor, height: int, width: int, patch: int) -> Tensor:
    """The images `[batch channel height width]` that `unfold` cut up."""
    batch, _, dim = patches.shape
    channels = dim // (patch * patch)
    cut = patches.reshape(batch, height // patch, width // patch, channels, patch, patch)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)


@dataclass(frozen=True)
class Patches(Batching):
    """Square patches of images `[channel height width]` with values in [0, 1].

    Args:
        patch: side of a patch in pixels.
        size: side that images are resized to (bilinear); None takes them as they are.
        mean: per channel, taken off before dividing by `std`; empty leaves the values as they are.
        class_unit: whether unit 0 is a class symbol, given as zeros; a model puts its own vector there.
    """

    patch: int
    size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_unit: bool = True

    def __post_init__(self) -> None:
        if self.patch < 1:
            raise UserError(f"a patch of {self.patch} pixels is not possible: give at least 1")
        if len(self.mean) != len(self.std) or any(value <= 0 for value in self.std):
            raise UserError("mean and std need one number for each channel, and std must be positive")

    def fit(self, examples: Sequence[Example]) -> PatchBatcher:
        if not examples:
            raise UserError("there are no images to learn the size from")
        channels, height, width = _image(examples[0]).shape
        shape = (channels, self.size or height, self.size or width)
        return PatchBatcher(self, shape, answers_of(examples))

    def restore(self, saved: Mapping[str, object]) -> PatchBatcher:
        channels, height, width = (saved_number(saved, name) for name in ("channels", "height", "width"))
        return PatchBatcher(self, (channels, height, width), saved_number(saved, "answers"))


class PatchBatcher(Batcher):
    """Batches of flattened patches of images of one shape `[channel height width]`; made by `Patches`."""

    def __init__(self, recipe: Patches, shape: tuple[int, int, int], answers: int = 0) -> None:
        self._recipe = recipe
        self._shape = shape
        self._answers = answers
        channels, height, width = shape
        if height % recipe.patch or width % recipe.patch:
            raise UserError(f"{height} x {width} pixels do not part into patches of {recipe.patch}: set patch or size")
        if recipe.mean and len(recipe.mean) != channels:
            raise UserError(f"mean has {len(recipe.mean)} numbers, the images have {channels} channels")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        images = torch.stack([self._sized(example) for example in examples])
        units = unfold(self._normalised(images), self._recipe.patch)
        words = torch.arange(units.shape[1])
        if self._recipe.class_unit:
            units = functional.pad(units, (0, 0, 1, 0))
            words = functional.pad(words, (1, 0), value=-1)
        return Batch(
            uids=tuple(example.uid for example in examples),
            inputs=units,
            mask=torch.ones(units.shape[:2], dtype=torch.bool),
            segments=torch.zeros(units.shape[:2], dtype=torch.int64),
            words=words.repeat(len(examples), 1),
            labels=labels_of(examples),
            candidates=candidates_of(examples, self._answers),
        )

    def texts(self, batch: Batch) -> list[list[str]]:
        columns = self._shape[2] // self._recipe.patch
        rows = [words[:n] for words, n in zip(batch.words.tolist(), batch.lengths.tolist(), strict=True)]
        return [["<class>" if word < 0 else f"{word // columns},{word % columns}" for word in row] for row in rows]

    def saved(self) -> dict[str, object]:
        return {
            **dict(zip(("channels", "height", "width"), self._shape, strict=True)),
            "answers": self._answers,
        }

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ()

    def _sized(self, example: Example) -> Tensor:
        image = _image(example)
        if self._recipe.size is not None:
            side = (self._recipe.size, self._recipe.size)
            image = functional.interpolate(image.unsqueeze(0), size=side, mode="bilinear").squeeze(0)
        if tuple(image.shape) != self._shape:
            found, wanted = (" x ".join(map(str, shape)) for shape in (image.shape, self._shape))
            raise UserError(f"image {example.uid} is {found}, the training images are {wanted}: set size")
        return image

    def _normalised(self, images: Tensor) -> Tensor:
        if not self._recipe.mean:
            return images
        mean, std = (images.new_tensor(values).reshape(1, -1, 1, 1) for values in (self._recipe.mean, self._recipe.std))
        return (images - mean) / std


def _image(example: Example) -> Tensor:
    image = example.parts[0] if len(example.parts) == 1 else None
    if not isinstance(image, Tensor) or image.dim() != 3 or not image.is_floating_point():
        raise UserError(f"example {example.uid} is not one image [channel height width] of real numbers in [0, 1]")
    return image
