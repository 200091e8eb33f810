"""The normalised layout under the data folder: `<folder>/<split>.jsonl.gz`, one JSON object a line.

Rows know where they stand, so that a complaint can name file and line. Files are hashed once per process and
state; they are written aside and renamed, so a folder that exists is complete.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from heedful.types import UserError

FileState = tuple[str, int, int]


@dataclass(frozen=True)
class JsonRow:
    """One JSON object and where it stands."""

    path: Path
    line: int
    values: Mapping[str, object]

    @property
    def location(self) -> str:
        """File and line, for people."""
        return f"{self.path}, line {self.line}"

    def text(self, field: str) -> str:
        """The text in a field; numbers are refused, blank texts too."""
        value = self.values.get(field)
        if not isinstance(value, str) or not value.strip():
            raise UserError(
                f"{self.location}: field '{field}' is missing, empty or not a text; mend or refetch the file"
            )
        return value

    def number(self, field: str) -> float:
        """The number in a field."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{self.location}: field '{field}' is missing or not a number; mend or refetch the file")
        return float(value)

    def integers(self, field: str) -> tuple[int, ...]:
        """The whole numbers in a field, lists in lists flattened; an absent field holds none."""
        return tuple(self._flatten(self.values.get(field, []), field))

    def class_index(self, field: str, classes: Sequence[str]) -> int:
        """The class index in a field: a class name, or already its index."""
        value = self.values.get(field)
        if isinstance(value, str) and value in classes:
            return classes.index(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(classes):
            return value
        raise UserError(f"{self.location}: {field} {value!r} is none of {', '.join(classes)}; mend or refetch the file")

    def _flatten(self, value: object, field: str) -> Iterator[int]:
        if isinstance(value, list):
            for item in value:
                yield from self._flatten(item, field)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield value
        else:
            raise UserError(f"{self.location}: field '{field}' holds {value!r}, which is no word number")


def read_rows(path: Path) -> list[JsonRow]:
    """The rows of one `.jsonl.gz` file."""
    found: list[JsonRow] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                found.append(JsonRow(path, number, _parse_object(line, path, number)))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        line_number = len(found) + 1
        raise UserError(
            f"{path}, line {line_number}: unreadable ({error}); delete the folder and fetch it again"
        ) from error
    if not found:
        raise UserError(f"{path}: the file holds no rows; delete the folder and fetch it again")
    return found


def _parse_object(line: str, path: Path, number: int) -> dict[str, object]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number}: not JSON ({error.msg}); mend or refetch the file") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}, line {number}: not a JSON object; mend or refetch the file")
    return value


def rationale_mask(count: int, indices: Iterable[int], row: JsonRow) -> tuple[bool, ...]:
    """One entry per word, True at the indices: how a list of evidence becomes a rationale."""
    chosen = set(indices)
    outside = [index for index in chosen if not 0 <= index < count]
    if outside:
        raise UserError(f"{row.location}: the rationale names word {outside[0]}, but the text has {count} words")
    return tuple(word in chosen for word in range(count))


def file_state(path: Path) -> FileState:
    """What tells that a file was not touched: path, time and size."""
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def hash_files(paths: Iterable[Path], *words: str) -> str:
    """The sha256 of the bytes of the files, in order, and of the words that belong to them."""
    whole = hashlib.sha256("\n".join(words).encode())
    for path in paths:
        whole.update(f"{path.name}:{_file_sha256(file_state(path))}".encode())
    return whole.hexdigest()


@lru_cache(maxsize=1024)
def _file_sha256(file: FileState) -> str:
    with open(file[0], "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_rows(path: Path, lines: Iterable[Mapping[str, object]]) -> int:
    """Writes one file of the layout and gives back the number of rows; the bytes depend on the rows alone."""
    count = 0
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
        for line in lines:
            stream.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
            count += 1
    return count


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its place when all went well, and vanishes when not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)
        try:
            os.rename(folder, target)
        except OSError:
            # Another process was faster with the same work: then the target is there, complete.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
