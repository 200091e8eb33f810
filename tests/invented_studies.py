"""Pages of invented texts and images with known scores, from which studies are built."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np

from heedful.report.charts import png_base64
from heedful.report.explorer import write_text_page
from heedful.report.text_table import ScoreCell, ScoreColumn, TextRow, TextTable

METHODS = ("lime", "gradient", "attention", "random")
TEXT = "a quiet film with a fine slow ending that nobody in the small dull town will forget soon"


def text_page(path: Path, n: int = 40, words: tuple[str, ...] = tuple(TEXT.split()), classes: int = 2) -> Path:
    """A page of `n` texts; the larger the number of the method, the more its scores are noise."""
    rng = np.random.default_rng(0)
    texts = []
    for number in range(n):
        tokens = tuple(words[place] for place in rng.permutation(len(words))[: max(3, len(words) - number % 5)])
        truth = rng.random(len(tokens))
        rows = tuple(
            ScoreCell(truth + noise * rng.normal(size=len(tokens))) for noise in (0.05, 0.2, 0.5, 2.0)[: len(METHODS)]
        )
        texts.append(TextRow(f"t-{number}", tokens, (), 0, number % classes, 0.9, None, (), rows))
    names = tuple(["negative", "positive"] if classes == 2 else [f"class {number}" for number in range(classes)])
    return write_text_page(TextTable({"model": "invented"}, names, _rows(), (), texts=tuple(texts)), path)


def image_page(path: Path, n: int = 30) -> Path:
    """A page of `n` images of a bright square on a dark ground in 4 x 4 patches; scores as for texts."""
    rng = np.random.default_rng(1)
    names = tuple(f"{row},{column}" for row in range(4) for column in range(4))
    texts = []
    for number in range(n):
        pixels = np.full((32, 32, 3), 40, dtype=np.uint8)
        top, left = 8 * (number % 3), 8 * (number // 3 % 3)
        pixels[top : top + 16, left : left + 16] = (230, 180, 60)
        truth = np.array([float(p[top // 8 : top // 8 + 2, left // 8 : left // 8 + 2].any()) for p in _units()])
        rows = tuple(ScoreCell(truth + noise * rng.random(16)) for noise in (0.1, 0.4, 1.0, 9.0))
        image = png_base64(pixels)
        texts.append(TextRow(f"i-{number}", names, (), 0, number % 3, 0.9, None, (), rows, image=image))
    classes = ("cat", "dog", "owl")
    table = TextTable({"model": "squares"}, classes, _rows(), (), patches=(4, 4), texts=tuple(texts))
    return write_text_page(table, path)


def read_links(folder: Path) -> dict[str, str]:
    """By person the link to a study, and that of its owner as "admin"."""
    lines = (folder / "links.txt").read_text().splitlines()
    return dict(line.split("\t") for line in lines if "\t" in line)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _units() -> list[np.ndarray]:
    """Each patch as an image of patches."""
    return [np.eye(16)[place].reshape(4, 4) for place in range(16)]


def _rows() -> tuple[ScoreColumn, ...]:
    return tuple(ScoreColumn(name) for name in METHODS)
