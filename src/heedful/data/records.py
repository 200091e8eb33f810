"""Rows of a user's table with the place where they stand, out of CSV, TSV, JSONL or Parquet.

Everything that can be wrong with a file as such is said here, in one line with file, line and remedy.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heedful.core.types import UserError

LONGEST_FIELD = 1 << 30


@dataclass(frozen=True)
class Record:
    """One row of a table.

    Args:
        source: the file, for people.
        line: line of a text file, row of a Parquet file or dataset, counted from 1.
    """

    source: str
    line: int
    values: Mapping[str, object]
    unit: str = "line"

    @property
    def where(self) -> str:
        """File and line, for people."""
        return f"{self.source}, {self.unit} {self.line}"

    def value(self, column: str) -> object:
        """What stands in a column; complains with the columns that there are."""
        if column not in self.values:
            present = ", ".join(str(name) for name in self.values)
            raise UserError(f"{self.where}: no column '{column}'; the columns are {present}")
        return self.values[column]

    def text(self, column: str) -> str:
        """The text in a column; complains if there is none."""
        value = self.value(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{self.where}: the text in column '{column}' is empty; fill it in or delete the row")
        if not isinstance(value, str):
            raise UserError(
                f"{self.where}: column '{column}' holds {value!r}, not a text; name the column of the texts"
            )
        return value.strip()


def records(path: Path) -> list[Record]:
    """The rows of a file whose name says what it is."""
    reader = _READERS.get(_kind(path))
    if reader is None:
        raise UserError(f"{path}: unknown kind of file; known are {', '.join(sorted(_READERS))} (also .gz)")
    if not path.is_file():
        raise UserError(f"{path}: no such file; check the path")
    found = list(reader(path))
    if not found:
        raise UserError(f"{path}: the file is empty or has no rows; give one row per example")
    return found


def is_table(name: str) -> bool:
    """Whether the name of a file promises a table that `records` can read."""
    return _kind(Path(name)) in _READERS


def _kind(path: Path) -> str:
    return path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _text(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: unreadable ({error}); check the file") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8, "
            f"for instance: iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from error


def _separated(separator: str) -> Callable[[Path], Iterator[Record]]:
    def read(path: Path) -> Iterator[Record]:
        limit = csv.field_size_limit(LONGEST_FIELD)
        try:
            lines = csv.reader(io.StringIO(_text(path), newline=""), delimiter=separator, strict=True)
            yield from _rows(path, lines)
        except csv.Error as error:
            raise UserError(f"{path}, line {lines.line_num}: {error}; check the quotes on this line") from error
        finally:
            csv.field_size_limit(limit)

    return read


def _rows(path: Path, lines: _Lines) -> Iterator[Record]:
    header = [name.strip() for name in next(lines, [])]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise UserError(f"{path}, line 1: the column '{twice[0]}' stands there twice; rename one of them")
    line = lines.line_num + 1
    for fields in lines:
        if fields and len(fields) != len(header):
            raise UserError(
                f"{path}, line {line}: {len(fields)} fields, but the header has {len(header)}; "
                "put quotes around texts that hold the separator"
            )
        if fields:
            yield Record(str(path), line, dict(zip(header, fields, strict=True)))
        line = lines.line_num + 1


def _json_lines(path: Path) -> Iterator[Record]:
    for line, content in enumerate(_text(path).split("\n"), start=1):
        if not content.strip():
            continue
        try:
            value = json.loads(content)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {line}: not JSON ({error.msg}); give one JSON object per line") from error
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {line}: not a JSON object; give one JSON object per line")
        yield Record(str(path), line, value)


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a Parquet file ({reason}); check the file") from error
    for line, values in enumerate(table.to_pylist(), start=1):
        yield Record(str(path), line, values, unit="row")


class _Lines(Protocol):
    """The part of `csv.reader` that is used here."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_lines,
    ".parquet": _parquet,
}
