"""Examples of a corpus that is larger than the memory: on disk in the Arrow format, read in chunks when they are used.

The file has no name and disappears with the process. It is read and not mapped into memory, so that the resident memory
of a process does not grow with the corpus.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from heedful.store.atomic_write import refuse_write_errors
from heedful.types import Example, Number

CHUNK_ROWS = 1024
"""Examples that are read at once."""
CACHED_CHUNKS = 8
_LISTS = ("rationale", "candidates", "ground_truth")


class _ExampleFile:
    """Examples in an Arrow file without a name."""

    def __init__(self, stream: BinaryIO) -> None:
        import pyarrow

        self._stream = stream
        self._reader = pyarrow.ipc.open_file(pyarrow.PythonFile(stream, mode="r"))
        self.chunk = lru_cache(maxsize=CACHED_CHUNKS)(self._read_chunk)

    def _read_chunk(self, number: int) -> list[Example]:
        rows = self._reader.get_batch(number).to_pylist()
        return [
            Example(
                row["uid"],
                tuple(row["parts"]),
                row["whole"] if row["real"] is None else row["real"],
                *(None if row[name] is None else tuple(row[name]) for name in _LISTS),
            )
            for row in rows
        ]


@dataclass(frozen=True, eq=False)
class StoredExamples(Sequence[Example]):
    """Examples on disk, in the order of `places`.

    Args:
        places: in the file.
        changes: functions that are applied to each example when it is read.
    """

    _file: _ExampleFile = field(repr=False)
    places: NDArray[np.int64] | range
    changes: tuple[Callable[[Example], Example], ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> StoredExamples: ...
    def __getitem__(self, index: int | slice) -> Example | StoredExamples:
        if isinstance(index, slice):
            return replace(self, places=self.places[index])
        row_number = int(self.places[index])
        example = self._file.chunk(row_number // CHUNK_ROWS)[row_number % CHUNK_ROWS]
        for change in self.changes:
            example = change(example)
        return example

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def take(self, places: NDArray[np.int64]) -> StoredExamples:
        """The examples at these places of this sequence."""
        return replace(self, places=np.asarray(self.places)[places])

    def change(self, function: Callable[[Example], Example]) -> StoredExamples:
        """The same examples, each changed by a function when it is read."""
        return replace(self, changes=(*self.changes, function))


class ExampleWriter:
    """Writes texts to a file without a name, a chunk at a time; images cannot be written."""

    def __init__(self) -> None:
        import pyarrow

        kinds = (pyarrow.bool_(), pyarrow.int64(), pyarrow.float64())
        self._schema = pyarrow.schema(
            [
                ("uid", pyarrow.string()),
                ("parts", pyarrow.list_(pyarrow.string())),
                ("whole", pyarrow.int64()),
                ("real", pyarrow.float64()),
                *((name, pyarrow.list_(kind)) for name, kind in zip(_LISTS, kinds, strict=True)),
            ]
        )
        self._stream = tempfile.TemporaryFile(prefix="heedful-")  # noqa: SIM115 - it lives as long as the examples
        self._writer = pyarrow.ipc.new_file(pyarrow.PythonFile(self._stream, mode="w"), self._schema)
        self._waiting: list[Example] = []
        self._count = 0

    def add(self, example: Example) -> None:
        """Write one more example."""
        self._waiting.append(example)
        self._count += 1
        if len(self._waiting) == CHUNK_ROWS:
            self._write()

    def finish(self) -> StoredExamples:
        """The examples that were written; nothing can be added to them."""
        if self._waiting:
            self._write()
        with refuse_write_errors(f"the texts to {tempfile.gettempdir()}", "set TMPDIR to a folder with room"):
            self._writer.close()
            self._stream.flush()
        return StoredExamples(_ExampleFile(self._stream), range(self._count))

    def _write(self) -> None:
        import pyarrow

        with refuse_write_errors(f"the texts to {tempfile.gettempdir()}", "set TMPDIR to a folder with room"):
            self._writer.write_batch(pyarrow.record_batch(_columns(self._waiting), schema=self._schema))
        self._waiting = []


def _columns(examples: Sequence[Example]) -> list[list[object]]:
    labels: list[Number | None] = [example.label for example in examples]
    return [
        [example.uid for example in examples],
        [list(example.parts) for example in examples],
        [label if isinstance(label, int) else None for label in labels],
        [label if isinstance(label, float) else None for label in labels],
        *([getattr(example, name) for example in examples] for name in _LISTS),
    ]


def keep_examples(examples: Sequence[Example], is_kept: NDArray[np.bool_]) -> Sequence[Example]:
    """The examples where `kept` is True; those of a large corpus stay on disk."""
    if isinstance(examples, StoredExamples):
        return examples if bool(is_kept.all()) else examples.take(np.flatnonzero(is_kept))
    return tuple(compress(examples, is_kept.tolist()))


def change_examples(examples: Sequence[Example], function: Callable[[Example], Example]) -> Sequence[Example]:
    """Each example changed by a function; those of a large corpus when they are read."""
    if isinstance(examples, StoredExamples):
        return examples.change(function)
    return tuple(map(function, examples))
