"""Where everything of a mosaic lies, in tiles from the top left: pictures, shaded patches and names.

All patches of one shade are one path, whatever tile they lie in, so that the heads of a large model stay a small file.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from heedful.figures import ImageGrid, PatchScores, Pixels
from heedful.report.ink import replace_unprintable

SHADE_STEPS = 10
"""Shades of each hue."""
TILE_SIDE = 0.9
"""Side of a tile where the distance from one to the next is 1."""
_FEW_COLUMNS = 8
"""Columns up to which their names need room."""
_CHARS_PER_LINE = 14
_PICTURE_PIXELS = 160
"""Pixels of a picture as it is written: browsers blur what they must enlarge."""

TileBox = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def mosaic_size(chart: ImageGrid) -> tuple[float, float]:
    """Width and height: tiles as large as a text column allows, but never tiny."""
    side = _tile_inches(chart)
    return max(5.6, 1.4 + len(chart.columns) * side), 0.6 + len(chart.rows) * side


def _tile_inches(chart: ImageGrid) -> float:
    count = max(1, len(chart.columns))
    return min(1.25, max(0.85 if count <= _FEW_COLUMNS else 0.5, 4.2 / count))


def mosaic_labels(chart: ImageGrid) -> tuple[list[str], list[str], float]:
    """Names of rows and of columns in lines that fit, and the size of their letters."""
    across = _wrap_names(chart.columns, round(_CHARS_PER_LINE * _tile_inches(chart)))
    return _wrap_names(chart.rows, _CHARS_PER_LINE), across, 9.5 if len(chart.columns) <= _FEW_COLUMNS else 8


def _wrap_names(names: Iterable[str], letters: int) -> list[str]:
    return [textwrap.fill(replace_unprintable(name), letters, max_lines=3, placeholder="…") for name in names]


def tile_boxes(chart: ImageGrid) -> Iterator[tuple[Pixels | PatchScores, TileBox]]:
    """Every tile and where it lies."""
    for row, tiles in enumerate(chart.tiles):
        for column, tile in enumerate(tiles):
            yield tile, (column, row, column + TILE_SIDE, row + TILE_SIDE)


def picture_pixels(picture: Pixels) -> NDArray[np.uint8]:
    """The picture in bytes `[row column colour]`, every pixel repeated until it is large enough."""
    shares = np.nan_to_num(np.clip(np.asarray(picture.rows, dtype=float), 0.0, 1.0))
    times = max(1, _PICTURE_PIXELS // max(shares.shape[:2]))
    small: NDArray[np.uint8] = (255 * shares).round().astype(np.uint8)
    return small.repeat(times, 0).repeat(times, 1)


def patches_by_shade(chart: ImageGrid) -> dict[int, list[TileBox]]:
    """Patches by shade, from -10 (blue) to 10; what is too faint for a shade, and what is undefined, is left out."""
    found: dict[int, list[TileBox]] = {}
    for tile, (left, top, _, _) in tile_boxes(chart):
        if isinstance(tile, PatchScores):
            for step, corner in _tile_patches(tile, left, top):
                found.setdefault(step, []).append(corner)
    return dict(sorted(found.items()))


def _tile_patches(tile: PatchScores, left: float, top: float) -> Iterator[tuple[int, TileBox]]:
    values: NDArray[np.float64] = np.asarray(tile.values, dtype=float)
    height, width = (TILE_SIDE / count for count in values.shape)
    known = np.where(np.isfinite(values), values, 0.0)
    peak = float(np.abs(known).max(initial=0.0))
    steps = np.rint(known / (peak if peak and math.isfinite(peak) else 1.0) * SHADE_STEPS).astype(int)
    for down, across in zip(*np.nonzero(steps), strict=True):
        x, y = left + across * width, top + down * height
        yield int(steps[down, across]), (x, y, x + width, y + height)
