"""Rows of CSV, TSV, JSON, JSONL and Parquet files, and corpora that are read from files.

The data folder holds published corpora as `<folder>/<split>.jsonl.gz`, one JSON object per line. Every row knows its
file and line, so that an error message can name both.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import stat
import zipfile
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from importlib import metadata
from itertools import chain, islice
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from heedful.store.file_digest import FileState, file_state, hash_files
from heedful.types import Corpus, Split, Splits, UserError, check_choice, first_line, shorten, user_path

if TYPE_CHECKING:
    import pyarrow
    from _typeshed import DataclassInstance

MAX_LINE_SIZE = 1 << 26
"""Maximum bytes of a line and characters of a field; a file with longer ones is not a table."""
MAX_EXPANSION = 100
"""A compressed file may hold this many times its size; real texts reach 20."""
MAX_SMALL_EXPANSION = 8 << 20
"""Bytes that a compressed file of any size may hold."""
ROW_SIZE = 32
"""Bytes counted for a row of a Parquet file beside its values, so that a billion empty rows are not small."""
PARQUET_ROWS = 1024
"""Rows that are read at once."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        source: the file or dataset, for messages.
        line: line of a text file, or row of a Parquet file or dataset, counted from 1.
    """

    source: str
    line: int
    values: Mapping[str, object]
    line_name: Literal["line", "row"] = "line"

    @property
    def location(self) -> str:
        """File and line, for messages."""
        return f"{self.source}, {self.line_name} {self.line}"

    def value(self, column: str) -> object:
        """The value in a column; UserError lists the existing columns."""
        if column not in self.values:
            present = ", ".join(shorten_name(name) for name in islice(self.values, 20))
            more = f" and {len(self.values) - 20} more" if len(self.values) > 20 else ""
            raise UserError(f"{self.location}: no column {shorten(column)}; the columns are {present}{more}")
        value = self.values[column]
        if isinstance(value, str) and (broken := _SURROGATE.search(value)):
            raise UserError(
                f"{self.location}: column '{column}' contains an unpaired surrogate ({broken.group()!r} at "
                f"{broken.start()}); re-read the file with its original encoding"
            )
        return value

    def text(self, column: str) -> str:
        """The text in a column, which must not be blank."""
        value = self.value(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{self.location}: the text in column '{column}' is empty; fill it in or delete the row")
        if not isinstance(value, str):
            raise UserError(
                f"{self.location}: column '{column}' holds {shorten(value)}, not a text; choose a text column"
            )
        return value

    def number(self, column: str) -> float:
        """The number in a column."""
        value = self.value(column)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refuse(column, value, "not a number")
        try:
            return float(value)
        except OverflowError as error:
            raise self._refuse(column, value, "which is too large") from error

    def class_index(self, column: str, classes: Sequence[str]) -> int:
        """The class index in a column that holds class names or indices."""
        value = self.value(column)
        if isinstance(value, str) and value.strip() in classes:
            return classes.index(value.strip())
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(classes):
            return value
        raise UserError(
            f"{self.location}: {column} {shorten(value)} is not one of {', '.join(classes)}; fix or refetch the file"
        )

    def integers(self, column: str) -> tuple[int, ...]:
        """The integers in a column, nested lists flattened."""

        def flatten(value: object) -> Iterator[int]:
            if isinstance(value, list):
                for item in value:
                    yield from flatten(item)
                return
            if not isinstance(value, int) or isinstance(value, bool):
                raise self._refuse(column, value, "not an integer")
            yield value

        return tuple(flatten(self.value(column)))

    def _refuse(self, column: str, value: object, reason: str) -> UserError:
        return UserError(
            f"{self.location}: column '{column}' holds {shorten(value)}, {reason}; fix or refetch the file"
        )

    def word_mask(self, column: str, num_words: int) -> tuple[bool, ...]:
        """One entry per word, True at the word indices in a column of evidence."""
        marked = set(self.integers(column))
        outside = [index for index in marked if not 0 <= index < num_words]
        if outside:
            raise UserError(f"{self.location}: the rationale has word {outside[0]}, but the text has {num_words} words")
        return tuple(word in marked for word in range(num_words))


SplitRows = Mapping[Split, Sequence[Row]]


def shorten_name(name: object) -> str:
    """The name of a class or a column for a list in a message: as it is, if it is short."""
    return str(name) if len(str(name)) < 40 else shorten(name)


TEXT_OR_PATH = (str, Path)
_TYPE_NAMES: Mapping[type, str] = {NoneType: "None", Integral: "a whole number", Real: "a number"}


def check_types(name: str, fields: Mapping[str, tuple[object, type | tuple[type, ...]]]) -> None:
    """UserError unless each field has one of its types; True and False are not numbers here.

    >>> check_types("Table", {"path": (None, (str, Path))})
    Traceback (most recent call last):
    heedful.types.UserError: Table: path is None; give str or Path
    """
    for field, (value, kinds) in fields.items():
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(_TYPE_NAMES.get(kind, kind.__name__) for kind in kinds)
            raise UserError(f"{name}: {field} is {shorten(value)}; give {names}")


def check_fields(instance: DataclassInstance) -> None:
    """UserError unless each field of a dataclass, and each entry of its tuples, has the declared type."""
    owner, types = type(instance).__name__, get_type_hints(type(instance))
    for name in (entry.name for entry in fields(instance)):
        value, kind = getattr(instance, name), types[name]
        if get_origin(kind) is Literal:
            check_choice(name, value, kind)
        elif get_origin(kind) is tuple:
            check_types(owner, {name: (value, tuple)})
            check_types(owner, {f"{name}[{index}]": (entry, get_args(kind)[0]) for index, entry in enumerate(value)})
        else:
            check_types(owner, {name: (value, get_args(kind) or kind)})


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character: JSON can write it, UTF-8 cannot."""


def read_rows(path: Path) -> list[Row]:
    """All rows of a table whose file name says its type."""
    return list(iterate_rows(path))


def iterate_rows(path: Path) -> Iterator[Row]:
    """The rows of a table one after the other, for tables that may be larger than the memory."""
    reader = _READERS.get(file_type(path))
    if reader is None:
        raise UserError(f"{path}: unknown file type; known are {', '.join(sorted(_READERS))} (also .gz)")
    if not is_present(path, "file"):
        raise UserError(f"{path}: no such file; check the path")
    empty = True
    for row in reader(path):
        empty = False
        yield row
    if empty:
        raise UserError(f"{path}: the file is empty or has no rows; give one row per example")


def is_table(name: str) -> bool:
    """Whether a file name has a type that `read_rows` reads."""
    return file_type(Path(name)) in _READERS


def file_type(path: Path) -> str:
    """The ending of a file name in lower case, without that of compression."""
    return path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _read_lines(path: Path) -> Generator[str, None, None]:
    """The lines of a text file in UTF-8, plain or compressed, one at a time."""
    zipped = path.suffix.lower() == ".gz"
    line, encoding = 0, "utf-8-sig"
    try:
        if zipped:
            _check_expansion(path)
        with gzip.open(path) if zipped else open(path, "rb") as stream:
            while raw := stream.readline(MAX_LINE_SIZE):
                line += 1
                if len(raw) == MAX_LINE_SIZE:
                    raise UserError(f"{path}, line {line}: longer than {MAX_LINE_SIZE} bytes; is the file a table?")
                if line == 1 and (raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:4]):
                    raise UserError(f"{path}: not UTF-8 but UTF-16; {_iconv(path, 'UTF-16')}")
                try:
                    yield raw.decode(encoding)
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{error.object[error.start]:02x}"
                    raise UserError(f"{path}, line {line}: not UTF-8 ({byte}); {_iconv(path, 'LATIN1')}") from error
                encoding = "utf-8"
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: unreadable ({error}); check the file or fetch it again") from error


def _check_expansion(path: Path) -> None:
    """UserError for a gzip file that holds far more than texts would; nothing of it is kept in memory."""
    size, allowed = 0, _allowed_size(path)
    with gzip.open(path) as stream:
        while chunk := stream.read(1 << 20):
            size += len(chunk)
            if size > allowed:
                raise _too_large(path)


def _iconv(path: Path, encoding: str) -> str:
    return f"save the file as UTF-8, for instance: iconv -f {encoding} -t UTF-8 {path.name}"


def _allowed_size(path: Path) -> int:
    """Bytes that a compressed file may hold."""
    return max(MAX_SMALL_EXPANSION, MAX_EXPANSION * path.stat().st_size)


def _too_large(path: Path) -> UserError:
    return UserError(
        f"{path}: holds more than {MAX_EXPANSION} times its size, which no table of texts or numbers does; "
        "if it is one, give it uncompressed"
    )


def _read_delimited(path: Path, *, delimiter: str) -> Iterator[Row]:
    limit = csv.field_size_limit(MAX_LINE_SIZE)
    # Lines may also end with a carriage return alone.
    pieces = (
        piece for line in _read_lines(path) for piece in (io.StringIO(line, newline="") if "\r" in line else (line,))
    )
    lines = csv.reader(pieces, delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        _check_repeated(path, header)
        # A quoted field may span several lines: a row is named by its first one.
        line = lines.line_num + 1
        for fields in lines:
            if fields and len(fields) != len(header):
                raise UserError(
                    f"{path}, line {line}: {len(fields)} fields, but the header has {len(header)}; "
                    "put quotes around texts that contain the separator"
                )
            if fields:
                yield Row(str(path), line, dict(zip(header, fields, strict=True)))
            line = lines.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {lines.line_num}: {error}; check the quotes on this line") from error
    finally:
        csv.field_size_limit(limit)


def _check_repeated(path: Path, header: Sequence[str]) -> None:
    repeated = next((name for name, count in Counter(header).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"{path}, line 1: two columns are called {shorten(repeated)}; rename one of them")


def _read_json_lines(path: Path) -> Iterator[Row]:
    for line, content in enumerate(_read_lines(path), start=1):
        if not content.strip():
            continue
        value = _parse_json(content, path, "one JSON object per line", line)
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {line}: not a JSON object; give one JSON object per line")
        yield Row(str(path), line, value)


def _parse_json(content: str, path: Path, form: str, line: int | None = None) -> object:
    """The value of a JSON text: of one line, or of a whole file."""
    location = str(path) if line is None else f"{path}, line {line}"
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {line or error.lineno}: not JSON ({error.msg}); give {form}") from error
    except ValueError as error:
        raise UserError(f"{location}: a number has too many digits; put it in quotes") from error
    except RecursionError as error:
        raise UserError(f"{location}: lists or objects are nested too deeply; give {form}, and flat ones") from error


def read_json(path: Path) -> object:
    """The value of a JSON file, plain or compressed, which may not be longer than a line of a table.

    One object per line, as in `.jsonl`, is a list of objects; an empty file is None.
    """
    if _is_json_lines(path):
        return [dict(row.values) for row in _read_json_lines(path)]
    lines, size = [], 0
    for line in _read_lines(path):
        size += len(line)
        if size > MAX_LINE_SIZE:
            raise UserError(f"{path}: longer than {MAX_LINE_SIZE} characters; give one JSON object per line (.jsonl)")
        lines.append(line)
    content = "".join(lines)
    return _parse_json(content, path, "one list of JSON objects") if content.strip() else None


def _is_json_lines(path: Path) -> bool:
    with closing(_read_lines(path)) as lines:
        first, second = islice(chain((line.strip() for line in lines if line.strip()), ("", "")), 2)
    return first.startswith("{") and first.endswith("}") and second.startswith("{")


def _read_json(path: Path) -> Iterator[Row]:
    """A list of objects, an object of rows or of columns, or one object per line as in `.jsonl`."""
    if _is_json_lines(path):
        yield from _read_json_lines(path)
        return
    for number, values in enumerate(_json_records(path, read_json(path)), start=1):
        if not isinstance(values, dict):
            raise UserError(f"{path}, row {number}: not a JSON object; give a list of JSON objects")
        yield Row(str(path), number, values, line_name="row")


def _json_records(path: Path, value: object) -> Iterable[object]:
    """The rows in a JSON value."""
    if value is None or isinstance(value, list):
        return value or ()
    if not isinstance(value, dict):
        raise UserError(f"{path}, line 1: not a JSON object; give a list of JSON objects")
    members = list(value.values())
    objects = [member for member in members if isinstance(member, dict)]
    if objects and len(objects) == len(members):
        if all(key.isdigit() for member in objects for key in member):  # pandas: {column: {row: value}}
            keys = list(dict.fromkeys(key for member in objects for key in member))
            return [{name: member.get(key) for name, member in value.items()} for key in keys]
        return [{"id": key, **member} for key, member in value.items()]  # HateXplain: {id: row}
    lists = [member for member in members if isinstance(member, list)]
    tables = [member for member in lists if member and all(isinstance(record, dict) for record in member)]
    if len(tables) == 1 and len(lists) == 1:  # {"data": [rows]}
        return tables[0]
    if lists and len(lists) == len(members) and len({len(member) for member in lists}) == 1:
        return [dict(zip(value, record, strict=True)) for record in zip(*lists, strict=True)]
    return [value]


def _read_parquet(path: Path) -> Iterator[Row]:
    from pyarrow import parquet

    line, size = 0, 0
    try:
        with parquet.ParquetFile(path) as file:
            header = file.schema_arrow.names
            _check_repeated(path, header)
            if ROW_SIZE * file.metadata.num_rows > _allowed_size(path):
                raise _too_large(path)
            for batch in file.iter_batches(PARQUET_ROWS):
                size += batch.nbytes + ROW_SIZE * batch.num_rows
                if size > _allowed_size(path):
                    raise _too_large(path)
                columns = [
                    _parquet_values(column, name, path, line) for name, column in zip(header, batch, strict=True)
                ]
                for values in zip(*columns, strict=True):
                    line += 1
                    yield Row(str(path), line, dict(zip(header, values, strict=True)), line_name="row")
    except UserError:
        raise
    except Exception as error:  # pyarrow has no common error for damaged files: names that are not UTF-8 are one
        raise UserError(f"{path}: not a Parquet file ({first_line(error)}); check the file") from error


@dataclass(frozen=True)
class ArrayHeader:
    """What an .npz file says about one of its arrays.

    Args:
        kind: numpy's letter for the type of the values.
        size: bytes of the values.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    size: int


def array_headers(path: Path) -> tuple[ArrayHeader, ...]:
    """The headers of the arrays in an .npz file; the values are not read.

    ValueError for arrays of objects, and for a header that claims more or fewer bytes than the file holds.
    """
    import numpy as np

    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    headers = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                if version not in readers:
                    raise ValueError(f"{member.filename} has version {version}")
                shape, _, dtype = readers[version](stream)
                size = member.file_size - stream.tell()
            if dtype.hasobject or dtype.kind not in "biufUS":
                raise ValueError(f"{member.filename} holds {dtype}")
            if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != size:
                raise ValueError(f"{member.filename} has the shape {shorten(shape)}, but {size} bytes")
            headers.append(ArrayHeader(member.filename, shape, dtype.kind, size))
    return tuple(headers)


def check_arrays(path: Path) -> None:
    """UserError for an .npz file that holds far more than its size, ValueError for headers that are wrong."""
    if sum(header.size for header in array_headers(path)) > _allowed_size(path):
        raise _too_large(path)


def declared_classes(path: Path) -> dict[str, tuple[str, ...]]:
    """The class names that the `datasets` library wrote into a Parquet file, by column; empty if there are none."""
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        named = {str(column): feature["names"] for column, feature in features.items() if "names" in feature}
    except Exception:  # noqa: BLE001 - without readable metadata the numbers speak for themselves
        return {}
    return {
        column: tuple(names)
        for column, names in named.items()
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
    }


def _parquet_values(column: pyarrow.Array, name: str, path: Path, line: int) -> list[object]:
    """The values of a column, from the row after `line` on."""
    try:
        values: list[object] = column.to_pylist()
    except Exception as error:
        raise UserError(
            f"{path}, rows {line + 1} to {line + len(column)}: column {shorten(name)} holds a value that cannot be "
            f"read ({first_line(error)}); correct or drop the column"
        ) from error
    return values


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": partial(_read_delimited, delimiter=","),
    ".tsv": partial(_read_delimited, delimiter="\t"),
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


def find_path(name: str | Path, data: Path, kind: Literal["file", "folder"] = "file") -> Path:
    """A file or folder by its path, or by its path in the data folder."""
    path, name = user_path(name), str(name)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name!a}: the name of the {kind} is not UTF-8; rename it") from error
    candidates = (path, data / name)
    for candidate in candidates:
        if is_present(candidate, kind):
            return candidate
    other_kind: Literal["file", "folder"] = "folder" if kind == "file" else "file"
    if any(is_present(candidate, other_kind) for candidate in candidates):
        raise UserError(f"{name}: is a {other_kind}, but a {kind} is needed; check the path")
    raise UserError(f"{name}: no such {kind}, neither here nor in the data folder {data}; check the path")


def is_present(path: Path, kind: Literal["file", "folder"]) -> bool:
    """Whether there is such a file or folder; UserError if that cannot be found out."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise UserError(f"{shorten(str(path))}: {error.strerror}; check the path and its permissions") from error
    return stat.S_ISREG(mode) if kind == "file" else stat.S_ISDIR(mode)


@lru_cache(maxsize=64)
def packaged_file(package: str, name: str, remedy: str) -> Path:
    """A file of an installed package, found through its metadata, once: nothing of the package is imported."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError as error:
        raise UserError(f"the package {package} is not installed: {remedy}") from error
    for file in files:
        path = Path(str(file.locate()))
        if file.name == name and path.is_file():
            return path
    raise UserError(f"the package {package} has no file {name}: {remedy}")


@dataclass(frozen=True)
class FileCorpus(Corpus):
    """A corpus in files: loaded once per process unless a file changes; its digest is a hash of the files.

    A subclass that adds fields must also be a frozen dataclass.
    """

    @abstractmethod
    def files(self, data: Path) -> tuple[Path, ...]:
        """Every file that `load` reads; UserError with the remedy if one is missing."""

    @abstractmethod
    def load(self, data: Path) -> Splits:
        """The examples in the files."""

    def read(self, data: Path) -> Splits:
        data = Path(data)  # may be a plain string
        return _load_once(self, data, tuple(file_state(path) for path in self.files(data)))

    def digest(self, data: Path) -> str:
        return hash_files(self.files(Path(data)))


@lru_cache(maxsize=8)
def _load_once(corpus: FileCorpus, data: Path, states: tuple[FileState, ...]) -> Splits:
    return corpus.load(data)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Write a `.jsonl.gz` file and return the number of rows; the bytes depend on the rows alone."""
    count = 0
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
        for row in rows:
            stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
            count += 1
    return count
