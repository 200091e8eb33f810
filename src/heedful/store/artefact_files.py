"""The files of an artefact: tensors, tables and notes in a folder, and a manifest with their sizes and SHA-256.

Nothing is believed that differs from the manifest, and no file format here can hold code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy
import pandas
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.store.atomic_write import flush_to_disk
from heedful.store.file_digest import content_sha256
from heedful.store.object_store import object_key
from heedful.store.provenance import Made
from heedful.store.recipe import Artefact, Json, artefact_name, dump_compact_json
from heedful.types import UserError

TENSORS, TABLE, SUMMARY = "tensors.safetensors", "table.parquet", "summary.parquet"
NOTES, RECIPE, INDEX, MANIFEST = "notes.json", "recipe.json", "index.json", "manifest.json"
FILES = (TENSORS, TABLE, SUMMARY, NOTES, RECIPE, INDEX)
"""All that an artefact may have beside its manifest."""
ALWAYS_THERE = (NOTES, RECIPE, INDEX)
"""What every artefact has: a manifest without them is damaged."""
LARGE_FILE = 2**26
"""Bytes of a file that readers of some parts of an artefact do not take into memory as a whole."""
_ROWS_AT_ONCE = 4096
_DAMAGE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, None)
"""Errors of reading that mean damage; pyarrow's own errors have no number."""
PARSE_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(pyarrow.ArrowException, SafetensorError),
)
_verified: dict[tuple[Path, bool], tuple[tuple[str, int, int, int], ...]] = {}
"""Artefacts whose bytes this process has verified, with name, inode, size and modification time of their files."""


class CorruptArtefactError(UserError):
    """An artefact on disk differs from its manifest; `name` is its folder."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class CorruptArtefactWarning(UserWarning):
    """A folder of the workspace is damaged; the message names it and says what was done."""


def _nothing() -> None:
    """Tensors on this disk need not be fetched, and nothing may be known about the making of an artefact."""


@dataclass(frozen=True)
class IndexEntry:
    """One artefact in the workspace index.

    Args:
        name: the folder name, `<ClassName>-<12 hex>`.
        kind: the role of the artefact, from `Recipe.kind`: "model", "attributions", "trial", ...
        recipe_class: the class name of its recipe.
        facts: what `Recipe.describe` said when it was made: corpus, encoder, attention, seed, method, ...
        settings: the plain fields of its recipe.
        links: artefact names of its dependencies by field, for instance `{"subject": ["TrainedModel-..."]}`.
        group: the same for artefacts whose recipes differ only in the seeds of their models.
        fetch_tensors: is called before tensors are read: those behind a URL are downloaded only then.
        device: the kind of device on which it was made; the last digits of numbers depend on it.
        read_made: reads the document behind `made`.
    """

    name: str
    kind: str
    recipe_class: str
    facts: Mapping[str, Json]
    settings: Mapping[str, Json]
    links: Mapping[str, list[str]]
    group: str
    path: Path
    fetch_tensors: Callable[[], object] = field(default=_nothing, repr=False, compare=False)
    device: str = "cpu"
    read_made: Callable[[], Made | None] = field(default=_nothing, repr=False, compare=False)

    @property
    def made(self) -> Made | None:
        """How long it took, when it was made and with which versions; None where that is not recorded."""
        return self.read_made()

    def link(self, name: str) -> str | None:
        """The artefact name of the first dependency in a field; None if there is none."""
        return next(iter(self.links.get(name, ())), None)

    def load(self, *, tensors: bool = True, table: bool = True) -> Artefact:
        """The artefact; CorruptArtefactError if its bytes differ from the manifest. Parts may be left out."""
        if tensors:
            self.fetch_tensors()
        return read_artefact(self.path, tensors=tensors, table=table)

    def open(self) -> StoredArtefact:
        """The artefact for readers of some of its parts; CorruptArtefactError if it has no intact manifest."""
        with translate_read_errors(self.path):
            return StoredArtefact(self.path, read_manifest(self.path))


INDEX_KEYS = frozenset({"kind", "recipe_class", "facts", "settings", "links", "group", "device"})
"""What the index file of an artefact holds; the device only where it is not the CPU."""
INDEX_MAPPINGS = frozenset({"facts", "settings", "links"})
"""Those of them that are objects; the others are texts."""


class Columns(Mapping[str, list[object]]):
    """The columns of a table, each read when it is first used; lists of numbers are arrays, missing fractions NaN."""

    def __init__(self, source: Path | pyarrow.BufferReader | pyarrow.Table) -> None:
        self._source = source if isinstance(source, pyarrow.Table) else open_table(source)
        is_table = isinstance(source, pyarrow.Table)
        self._cells: dict[str, list[object] | None] = dict.fromkeys(
            self._source.schema.names if is_table else self._source.schema_arrow.names
        )
        self.num_rows: int = self._source.num_rows if is_table else self._source.metadata.num_rows
        self._read: dict[str, pyarrow.ChunkedArray] = {}

    def __getitem__(self, name: str) -> list[object]:
        cells = self._cells[name]
        if cells is None:
            column = self._read.pop(name) if name in self._read else self._read_arrow([name]).column(0)
            cells = self._cells[name] = _column_cells(column)
        return cells

    def digest(self, *names: str) -> bytes:
        """A digest of the content of these columns, much quicker than their conversion to Python."""
        content = hashlib.blake2b()
        present = [name for name in names if name in self._cells]
        self._read |= zip(present, self._read_arrow(present).columns, strict=True)
        for name in present:
            content.update(f"{name} {self._read[name].type} {self._read[name].length()}".encode())
            for chunk in self._read[name].chunks:
                for buffer in chunk.buffers():
                    content.update(b"" if buffer is None else buffer)
        return content.digest()

    def __contains__(self, name: object) -> bool:
        return name in self._cells  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def to_frame(self) -> pandas.DataFrame:
        """The whole table."""
        return arrow_to_pandas(self._read_arrow([*self._cells]))

    def batches(self, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Some columns, a few thousand rows at a time."""
        if isinstance(self._source, pyarrow.Table):
            yield from self._source.select([*names]).to_batches(_ROWS_AT_ONCE)
        else:
            yield from self._source.iter_batches(_ROWS_AT_ONCE, columns=[*names], use_threads=False)

    def keep(self, uids: Collection[str]) -> Columns:
        """The rows of these texts; the others are never in memory together."""
        wanted = pyarrow.array(sorted(uids), pyarrow.string())
        names = [*self._cells]
        batches = [
            batch.filter(pyarrow.compute.is_in(batch.column("uid").cast(pyarrow.string()), value_set=wanted))
            for batch in self.batches(names)
        ]
        return Columns(pyarrow.Table.from_batches(batches).combine_chunks())

    def _read_arrow(self, names: Sequence[str]) -> pyarrow.Table:
        if isinstance(self._source, pyarrow.Table):
            return self._source.select([*names])
        return self._source.read([*names], use_threads=False)


@dataclass(frozen=True)
class StoredArtefact:
    """An artefact on disk without its tensors; each part is read when it is first used.

    The bytes that are parsed are those that were compared with the manifest: CorruptArtefactError if they differ, even
    if the file was damaged after the artefact was opened. A file of more than `LARGE_FILE` bytes is compared, and then
    read from disk in parts.
    """

    path: Path
    manifest: Mapping[str, Json] = field(default_factory=dict)

    @cached_property
    def notes(self) -> Mapping[str, Json]:
        """As in `Artefact`."""
        content = self._take(NOTES)
        notes: dict[str, Json] = {} if content is None else json.loads(content)
        return notes

    @cached_property
    def recipe(self) -> Mapping[str, Json]:
        """The canonical form of its recipe."""
        content = self._take(RECIPE)
        description: dict[str, Json] = {} if content is None else json.loads(content)
        return description

    @cached_property
    def columns(self) -> Mapping[str, list[object]]:
        """The cells of the table by column: quicker than a data frame."""
        if self._is_large(TABLE):
            self._verify_large(TABLE)
            with translate_read_errors(self.path):
                return Columns(self.path / TABLE)
        content = self._take(TABLE)
        return {} if content is None else Columns(pyarrow.BufferReader(content))

    @cached_property
    def table(self) -> pandas.DataFrame:
        """As in `Artefact`."""
        return self.columns.to_frame() if isinstance(self.columns, Columns) else pandas.DataFrame()

    @cached_property
    def summary(self) -> Mapping[str, list[object]]:
        """The cells of the summary by column."""
        content = self._take(SUMMARY)
        return {} if content is None else Columns(pyarrow.BufferReader(content))

    def verify(self) -> None:
        """CorruptArtefactError if any file but that of the tensors differs from the manifest."""
        for name in self.manifest.keys() - {TENSORS} - self._contents.keys():
            if self._is_large(name):
                self._verify_large(name)
                continue
            self._contents[name] = self._read(name)
            if name == RECIPE:
                _check_name(self.path, self._contents[name])

    def _is_large(self, name: str) -> bool:
        """Whether a file is read from disk, and not as verified bytes in memory."""
        match self.manifest.get(name):
            case [int(size), _]:
                return size > LARGE_FILE
        return False

    def _verify_large(self, name: str) -> None:
        with translate_read_errors(self.path):
            if _file_entry(self.path / name) != self.manifest[name]:
                raise corrupt_error(self.path, f"the content of {name} differs")

    @cached_property
    def _contents(self) -> dict[str, bytes]:
        """Verified bytes by file name, empty once they are parsed."""
        return {}

    def _take(self, name: str) -> bytes | None:
        """The verified bytes of a file, which is parsed once; None if the artefact has no such file."""
        content = self._contents.get(name) or (self._read(name) if name in self.manifest else None)
        self._contents[name] = b""
        return content

    def _read(self, name: str) -> bytes:
        with translate_read_errors(self.path):
            content = (self.path / name).read_bytes()
        if self.manifest[name] != [len(content), hashlib.sha256(content).hexdigest()]:
            raise corrupt_error(self.path, f"the content of {name} differs")
        return content


def write_artefact(
    folder: Path, artefact: Artefact, documents: Mapping[str, object], shards: Sequence[Path] = ()
) -> None:
    """Write an artefact into the empty `folder`, the manifest last, all flushed to disk; empty parts are left out.

    Args:
        shards: the folders of its shards.
    """
    if shards and not len(artefact.table.columns):
        _merge_tables(folder / TABLE, [shard / TABLE for shard in shards if (shard / TABLE).exists()])
    if artefact.tensors:
        save_file(_storable_tensors(artefact.tensors), folder / TENSORS)
    for name, table, blocks in ((TABLE, artefact.table, artefact.blocks), (SUMMARY, artefact.summary, ())):
        if len(table.columns):
            odd = [column for column in table.columns if not isinstance(column, str)]
            if odd:
                raise ValueError(f"column names of a table must be strings, not {odd[0]!r}")
            _write_table(folder / name, pyarrow.Table.from_pandas(table, preserve_index=False), blocks)
    for name, content in documents.items():
        (folder / name).write_text(dump_compact_json(_note_to_json(content, name.removesuffix(".json"))))
    files = sorted(path.name for path in folder.iterdir())
    (folder / MANIFEST).write_text(dump_compact_json({name: _file_entry(folder / name) for name in files}))
    for name in (*files, MANIFEST):
        flush_to_disk(folder / name)
    flush_to_disk(folder)


def _write_table(target: Path, table: pyarrow.Table, blocks: Sequence[int]) -> None:
    """Write a table, its blocks as row groups."""
    if not blocks:
        pyarrow.parquet.write_table(table, target.absolute())
        return
    # As files that are merged, because a type that was stored differs in the names of its parts from one that was not.
    files, start = [], 0
    for size in blocks:
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(table.slice(start, size), sink)
        files.append(sink.getvalue())
        start += size
    _merge_tables(target, files)


def _merge_tables(target: Path, files: Sequence[Path | pyarrow.Buffer]) -> None:
    """Write tables one below the other, each block as a row group; one at a time is in memory."""
    if not files:
        return
    # A column that is empty in one shard has no type there, or is not there, and one with missing whole numbers holds
    # fractions. Texts may be of two types, which depends on what else was in memory with them.
    sources = [file if isinstance(file, Path) else pyarrow.BufferReader(file) for file in files]
    schemas = []
    for source in sources:
        with open_table(source) as file:
            schemas.append(file.schema_arrow.remove_metadata())
    schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
    for position, column in enumerate(schema):
        if pyarrow.types.is_large_string(column.type):
            schema = schema.set(position, column.with_type(pyarrow.string()))
    with pyarrow.parquet.ParquetWriter(target.absolute(), schema) as writer:
        for source in sources:
            with open_table(source) as file:
                for block in range(file.num_row_groups):
                    table = file.read_row_group(block, use_threads=False)
                    if table.schema.names != schema.names:
                        table = pyarrow.concat_tables((schema.empty_table(), table), promote_options="permissive")
                    writer.write_table(table.cast(schema))


def _file_entry(path: Path) -> Json:
    return [path.stat().st_size, content_sha256(path)]


def read_artefact(folder: Path, *, tensors: bool = True, table: bool = True) -> Artefact:
    """The artefact in `folder`; its bytes are verified once per process, and again if a file was modified."""
    with translate_read_errors(folder):
        manifest = verify_files(folder, tensors=tensors)
        try:
            weights = load_file(folder / TENSORS) if TENSORS in manifest else {}
            rows, summary = (
                _read_table(folder / name) if wanted and name in manifest else pandas.DataFrame()
                for name, wanted in ((TABLE, table), (SUMMARY, True))
            )
            notes = json.loads((folder / NOTES).read_bytes())
        except PARSE_ERRORS as error:  # it was damaged after it had been verified
            raise corrupt_error(folder, "its content differs") from error
    return Artefact({name: weights[name] for name in sorted(weights)}, rows, notes, summary)


def verify_files(folder: Path, *, tensors: bool) -> dict[str, Json]:
    """The manifest, weights left out on request; CorruptArtefactError unless all its files are as it says."""
    manifest = read_manifest(folder)
    if not tensors:
        manifest.pop(TENSORS, None)
    stats = ((name, (folder / name).stat()) for name in sorted((*manifest, MANIFEST)))
    state = tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    if _verified.get((folder.resolve(), tensors)) != state:
        for name, entry in manifest.items():
            if _file_entry(folder / name) != entry:
                raise corrupt_error(folder, f"the content of {name} differs")
        _check_documents(folder, folder)
        _verified[folder.resolve(), tensors] = state
    return manifest


def _check_name(location: Path | str, recipe: bytes) -> None:
    """CorruptArtefactError if the folder holds the artefact of another recipe."""
    try:
        name = artefact_name(json.loads(recipe))
    except PARSE_ERRORS as error:
        raise corrupt_error(location, f"{RECIPE} does not describe a recipe") from error
    if name != Path(location).name:
        raise corrupt_error(location, f"it holds {name}")


def _check_documents(folder: Path, location: Path | str) -> None:
    """CorruptArtefactError if recipe, index or notes in a folder have another form than those of this artefact."""
    _check_name(location, (folder / RECIPE).read_bytes())
    _parse_index((folder / INDEX).read_bytes(), folder, location)
    try:
        dict(json.loads((folder / NOTES).read_bytes()))
    except PARSE_ERRORS as error:
        raise corrupt_error(location, f"{NOTES} is not a JSON object") from error


def read_entry(folder: Path, *, tensors: bool = True) -> IndexEntry:
    """The index entry of a folder, checked by file sizes and the checksum of the index file only."""
    with translate_read_errors(folder):
        manifest = read_manifest(folder)
        if not tensors:
            manifest.pop(TENSORS, None)
        for name, entry in manifest.items():
            if not isinstance(entry, list) or (folder / name).stat().st_size != entry[0]:
                raise corrupt_error(folder, f"the size of {name} differs")
        if INDEX not in manifest or _file_entry(folder / INDEX) != manifest[INDEX]:
            raise corrupt_error(folder, f"the content of {INDEX} differs")
        content = (folder / INDEX).read_bytes()
    return _parse_index(content, folder, folder)


def _parse_index(content: bytes, folder: Path, location: Path | str) -> IndexEntry:
    try:
        # What a later version of heedful may add is left out.
        known = {key: value for key, value in json.loads(content).items() if key in INDEX_KEYS}
        if any(not isinstance(value, dict if key in INDEX_MAPPINGS else str) for key, value in known.items()):
            raise TypeError
        return IndexEntry(folder.name, path=folder, **known)
    except PARSE_ERRORS as error:
        raise corrupt_error(location, f"{INDEX} lacks a field, or a field has another type") from error


def read_manifest(folder: Path) -> dict[str, Json]:
    path = folder / MANIFEST
    if path.exists() and not path.is_file():  # a pipe would never end
        raise corrupt_error(folder, f"{MANIFEST} is not a file")
    return parse_manifest(path.read_bytes(), folder)


def parse_manifest(written: bytes, location: Path | str) -> dict[str, Json]:
    try:
        content = json.loads(written)
        if isinstance(content, dict) and dump_compact_json(content).encode("ascii") == written:
            missing = [name for name in ALWAYS_THERE if name not in content]
            if not missing:
                return content
            raise corrupt_error(location, f"{MANIFEST} has no entry for {missing[0]!r}")
    except (ValueError, RecursionError) as error:
        raise corrupt_error(location, f"{MANIFEST} is not valid JSON") from error
    raise corrupt_error(location, f"{MANIFEST} was altered")


def object_keys(location: Path | str, manifest: Mapping[str, Json]) -> dict[str, str]:
    """The object of each file of an artefact; CorruptArtefactError for other files, which might lie elsewhere."""
    keys, name = {}, Path(location).name
    for file, entry in manifest.items():
        match entry:
            case [int(), str(digest)] if file in FILES and digest.isalnum():
                keys[file] = object_key(name, file, digest)
            case _:
                raise corrupt_error(location, f"{MANIFEST} has no valid entry for {file!r}")
    return keys


def stored_size(manifest: Mapping[str, Json]) -> int:
    """The bytes of all files of a manifest whose entries `object_keys` has checked."""
    return sum(entry[0] for entry in manifest.values() if isinstance(entry, list) and isinstance(entry[0], int))


def check_download(folder: Path, manifest: Mapping[str, Json], location: str) -> None:
    """CorruptArtefactError unless these files are in the folder as the manifest says."""
    for name, entry in manifest.items():
        if not (folder / name).exists():
            raise corrupt_error(location, f"{name} is missing")
        if _file_entry(folder / name) != entry:
            raise corrupt_error(location, f"the content of {name} differs")
    if RECIPE in manifest:
        _check_documents(folder, location)


def is_complete(folder: Path) -> bool:
    try:
        read_entry(folder)
    except CorruptArtefactError:
        return False
    return True


@contextmanager
def translate_read_errors(folder: Path) -> Iterator[None]:
    """Tell damage (a missing file, a disk error) from missing permissions."""
    try:
        yield
    except OSError as error:
        reason = f"{Path(error.filename or folder).name}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in _DAMAGE_ERRNOS:
            raise corrupt_error(folder, reason) from error
        raise UserError(f"cannot read the artefact {folder} ({reason}); check its permissions") from error


def corrupt_error(location: Path | str, reason: str) -> CorruptArtefactError:
    return CorruptArtefactError(
        f"the artefact {location} is damaged: {reason}; run its recipe again or delete the folder", Path(location).name
    )


def _storable_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors needs them: on the CPU, contiguous, none sharing memory (tied weights)."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        stored[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return stored


def open_table(source: Path | pyarrow.BufferReader) -> pyarrow.parquet.ParquetFile:
    """A file to read without threads, which slow down small tables and prevent forks."""
    # A relative path with a colon would be a URL.
    return pyarrow.parquet.ParquetFile(source.absolute() if isinstance(source, Path) else source, pre_buffer=False)


def _column_cells(column: pyarrow.ChunkedArray) -> list[object]:
    kind = column.type
    if pyarrow.types.is_list(kind) and not pyarrow.types.is_nested(kind.value_type):
        return _list_column(column.combine_chunks(), arrays=True)
    cells: list[object] = column.to_numpy().tolist() if pyarrow.types.is_floating(kind) else column.to_pylist()
    return cells


def _read_table(source: Path | pyarrow.BufferReader) -> pandas.DataFrame:
    with open_table(source) as file:
        return arrow_to_pandas(file.read(use_threads=False))


def arrow_to_pandas(arrow: pyarrow.Table) -> pandas.DataFrame:
    kinds = dict(zip(arrow.schema.names, arrow.schema.types, strict=True))
    lists = [
        name
        for name, kind in kinds.items()
        if pyarrow.types.is_list(kind) and not pyarrow.types.is_nested(kind.value_type)
    ]
    # The metadata only serves to restore an index, and these tables have none.
    table: pandas.DataFrame = arrow.drop_columns(lists).to_pandas(use_threads=False, ignore_metadata=True)
    for position, (name, kind) in enumerate(kinds.items()):
        if name in lists:
            cells = _list_column(arrow.column(name).combine_chunks())
            table.insert(position, name, pandas.Series(cells, dtype=object))
        elif pyarrow.types.is_nested(kind):
            table[name] = pandas.Series([_arrays_to_lists(cell) for cell in table[name]], dtype=object)
    return table


def _list_column(column: pyarrow.ListArray, *, arrays: bool = False) -> list[object]:
    """The lists of a column, cut from one conversion of all their values: ten times faster than cell by cell."""
    values = column.values.to_numpy(zero_copy_only=False)
    if not arrays or values.dtype == object:
        values = values.tolist()
    offsets = column.offsets.to_pylist()
    missing = column.is_null().to_pylist()
    cuts = zip(offsets[:-1], offsets[1:], missing, strict=True)
    return [None if absent else values[start:end] for start, end, absent in cuts]


def _arrays_to_lists(cell: object) -> object:
    """Nested arrays as lists: `==` of an array has no truth value."""
    if isinstance(cell, numpy.ndarray):
        return [_arrays_to_lists(item) for item in cell] if cell.dtype == object else cell.tolist()
    return cell


def _note_to_json(value: object, key_path: str) -> Json:
    """The value as plain JSON; ValueError or TypeError names the key of anything else."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"{key_path} is {value}: notes hold only finite numbers; leave it out or write it in words"
            )
        return float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_note_to_json(item, f"{key_path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str)]
        if not odd:
            return {key: _note_to_json(item, f"{key_path}.{key}") for key, item in value.items()}
        raise TypeError(f"{key_path} has the key {odd[0]!r}: keys of notes are strings")
    raise TypeError(f"{key_path} is a {type(value).__name__}: notes hold plain JSON values only")
