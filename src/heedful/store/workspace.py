"""The workspace: a folder of artefacts, each stored under the fingerprint of its recipe and made once.

An artefact is a folder of small files (`tensors.safetensors`, `table.parquet`, `summary.parquet`, `notes.json`,
`recipe.json`, `index.json`) and a manifest with their sizes and SHA-256. It is written to `.staging` and renamed into
place, so it is complete if and only if it exists; `.partial` holds unfinished work to resume from. Locks prevent two
processes from doing the same work; correctness does not depend on them. No file format here can hold code.

A workspace behind a URL (`s3://bucket/experiments`) is such a folder on this machine, a cache, in front of an
`ObjectStore`: what is made here is stored there, and what was made elsewhere is downloaded when it is asked for.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path

import numpy
import pandas
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.devices import arithmetic_of, check_device, free_cached_memory, is_out_of_memory
from heedful.progress import Progress, SilentProgress
from heedful.store.object_store import (
    CHECKPOINT_SECONDS,
    TOGETHER,
    Lease,
    ObjectStore,
    Repetition,
    cache_folder,
    is_url,
    local_path,
    object_key,
    workspace_cache,
)
from heedful.store.object_store import WriteError as WriteError
from heedful.store.recipe import (
    Artefact,
    Json,
    Recipe,
    artefact_name,
    describe_recipe,
    dump_compact_json,
    linked_artefacts,
    plain_settings,
    seed_group,
)
from heedful.store.shard import SHARD_CLASS
from heedful.types import UserError, count_file_changes

TENSORS, TABLE, SUMMARY = "tensors.safetensors", "table.parquet", "summary.parquet"
NOTES, RECIPE, INDEX, MANIFEST = "notes.json", "recipe.json", "index.json", "manifest.json"
LARGE_FILE = 2**26
"""Bytes of a file that readers of some parts of an artefact do not take into memory as a whole."""
_ROWS_AT_ONCE = 4096
_CHECKPOINT = re.compile(r"\w.*-[0-9a-f]{64}\.\w+")
"""A file of unfinished work that contains the digest of its content in its name: it is complete wherever it is."""
_DAMAGE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, None)
"""Errors of reading that mean damage; pyarrow's own errors have no number."""
_PARSE_ERRORS = (ValueError, KeyError, TypeError, pyarrow.ArrowException, SafetensorError)
_SILENT = SilentProgress()
_in_progress: ContextVar[tuple[tuple[Path, Recipe], ...]] = ContextVar("_in_progress", default=())
"""The recipes that are being made, outermost first, with the folders they were given when that began."""
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
    """Tensors on this disk need not be fetched."""


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

    def link(self, name: str) -> str | None:
        """The artefact name of the first dependency in a field; None if there is none."""
        return next(iter(self.links.get(name, ())), None)

    def load(self, *, tensors: bool = True, table: bool = True) -> Artefact:
        """The artefact; CorruptArtefactError if its bytes differ from the manifest. Parts may be left out."""
        if tensors:
            self.fetch_tensors()
        return _read_artefact(self.path, tensors=tensors, table=table)

    def open(self) -> StoredArtefact:
        """The artefact for readers of some of its parts; CorruptArtefactError if it has no intact manifest."""
        with _translate_read_errors(self.path):
            return StoredArtefact(self.path, _read_manifest(self.path))


class Columns(Mapping[str, list[object]]):
    """The columns of a table, each read when it is first used; lists of numbers are arrays, missing fractions NaN."""

    def __init__(self, source: Path | pyarrow.BufferReader | pyarrow.Table) -> None:
        self._source = source if isinstance(source, pyarrow.Table) else _open_table(source)
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
        found = hashlib.blake2b()
        present = [name for name in names if name in self._cells]
        self._read |= zip(present, self._read_arrow(present).columns, strict=True)
        for name in present:
            found.update(f"{name} {self._read[name].type} {self._read[name].length()}".encode())
            for chunk in self._read[name].chunks:
                for buffer in chunk.buffers():
                    found.update(b"" if buffer is None else buffer)
        return found.digest()

    def __contains__(self, name: object) -> bool:
        return name in self._cells  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def to_frame(self) -> pandas.DataFrame:
        """The whole table."""
        return _arrow_to_pandas(self._read_arrow([*self._cells]))

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
        found = [
            part.filter(pyarrow.compute.is_in(part.column("uid").cast(pyarrow.string()), value_set=wanted))
            for part in self.batches(names)
        ]
        return Columns(pyarrow.Table.from_batches(found).combine_chunks())

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
        found: dict[str, Json] = {} if content is None else json.loads(content)
        return found

    @cached_property
    def columns(self) -> Mapping[str, list[object]]:
        """The cells of the table by column: quicker than a data frame."""
        if self._is_large(TABLE):
            self._verify_large(TABLE)
            with _translate_read_errors(self.path):
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
        with _translate_read_errors(self.path):
            if _file_entry(self.path / name) != self.manifest[name]:
                raise _corrupt_error(self.path, f"the content of {name} differs")

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
        with _translate_read_errors(self.path):
            content = (self.path / name).read_bytes()
        if self.manifest[name] != [len(content), hashlib.sha256(content).hexdigest()]:
            raise _corrupt_error(self.path, f"the content of {name} differs")
        return content


def default_data_dir() -> Path:
    """The folder of corpora unless another is given: `HEEDFUL_DATA`, else `data` in the cache folder."""
    if given := os.environ.get("HEEDFUL_DATA"):
        return Path(given).expanduser()
    return cache_folder() / "data"


@dataclass(eq=False)
class Workspace:
    """A folder of artefacts, and what making them needs from this machine.

    Nothing is written before the first artefact is made: finished work can be read from a read-only disk.

    Args:
        place: its folder, which is made when it is needed, or a URL such as `s3://bucket/experiments`.
        data_dir: the folder of corpora; by default `HEEDFUL_DATA`, else `~/.cache/heedful/data`.
        device: where models run: `cpu`, `cuda`, `cuda:1`, `mps`; no part of a recipe.
        batch_size: texts that are read at once; results do not depend on it.
        automatic_batch_size: halve the batch size whenever memory runs out.
        model_cache: loaded models by artefact name, while `run` is at work; None loads a model at every use.
    """

    place: Path | str
    _: KW_ONLY
    root: Path = field(init=False, repr=False)
    store: ObjectStore | None = field(init=False, default=None, repr=False)
    data_dir: Path = field(default_factory=default_data_dir)
    device: str = "cpu"
    batch_size: int = 256
    automatic_batch_size: bool = False
    progress: Progress = _SILENT
    model_cache: dict[str, object] | None = field(default=None, repr=False)
    _resumable: set[str] = field(init=False, default_factory=set, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.place, str) and is_url(self.place):
            self.store = ObjectStore(self.place)
            self.root = workspace_cache(self.store.url)
        else:
            self.root = local_path(self.place)
        self.data_dir = Path(self.data_dir)
        check_device(self.device)

    def __str__(self) -> str:
        return str(self.root) if self.store is None else self.store.url

    @property
    def location(self) -> str:
        """What opens the same workspace in another process or on another machine: a URL or an absolute path."""
        return str(self.root.absolute()) if self.store is None else self.store.url

    def get(self, recipe: Recipe) -> Artefact:
        """The artefact of a recipe, read from disk; made first if it is missing or damaged."""
        description = describe_recipe(recipe, self.data_dir)
        folder = self.root / artefact_name(description)
        with suppress(CorruptArtefactError):  # checked again below, under the lock
            if self._fetch(folder):
                return _read_artefact(folder)
        with self._hold_lock(folder, recipe):
            if not self._is_intact(folder):
                self._make(recipe, description)
        return _read_artefact(folder)

    def ensure(self, recipe: Recipe) -> None:
        """Make the artefact if it is missing; unlike `get` this reads no table into memory."""
        description = describe_recipe(recipe, self.data_dir)
        folder = self.root / artefact_name(description)
        if self._is_here(folder):
            return
        with self._hold_lock(folder, recipe):
            if not self._is_here(folder) and not self._is_intact(folder):
                self._make(recipe, description)

    def _is_here(self, folder: Path) -> bool:
        """Whether the artefact is complete on this machine, but perhaps for tensors behind a URL."""
        with suppress(CorruptArtefactError):
            if self.store is None or self._fetch(folder, tensors=False):
                _read_entry(folder, tensors=self.store is None)
                return True
        return False

    def read_block(self, recipe: Recipe, number: int, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """The rows of one block of a recipe's table, some columns or all; a table without blocks is the only one."""
        folder = self._verified_folder(recipe)
        with _translate_read_errors(folder), _open_table(folder / TABLE) as file:
            return _arrow_to_pandas(file.read_row_group(number, columns, use_threads=False))

    def read_notes(self, recipe: Recipe) -> Mapping[str, Json]:
        """The notes of a recipe's artefact; its table is not read."""
        folder = self._verified_folder(recipe)
        with _translate_read_errors(folder):
            notes: dict[str, Json] = json.loads((folder / NOTES).read_bytes())
        return notes

    def _verified_folder(self, recipe: Recipe) -> Path:
        """The folder of an artefact, made first if it is missing; CorruptArtefactError if its bytes are damaged."""
        self.ensure(recipe)
        folder = self.root / self.artefact_name(recipe)
        with _translate_read_errors(folder):
            _verify_files(folder, tensors=False)
        return folder

    def has(self, recipe: Recipe) -> bool:
        """Whether the artefact is complete, judged by its manifest and file sizes; `get` verifies every byte.

        Behind a URL it is judged by its manifest. A few questions are answered as things are now, many within seconds
        from one listing, which may miss what others finished since.
        """
        name = self.artefact_name(recipe)
        return _is_complete(self.root / name) if self.store is None else self.store.has(name)

    def find_missing(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Those recipes whose artefacts are not complete, as things are now; behind a URL by one listing of all."""
        if self.store is None:
            return [recipe for recipe in recipes if not self.has(recipe)]
        stored = {*self.store.artefacts()}
        return [recipe for recipe in recipes if self.artefact_name(recipe) not in stored]

    def artefact_name(self, recipe: Recipe) -> str:
        """The folder name of the recipe's artefact: `<ClassName>-<12 hex of its fingerprint>`."""
        return artefact_name(describe_recipe(recipe, self.data_dir))

    def partial_folder(self, recipe: Recipe) -> Path:
        """An existing folder for unfinished work on this recipe; survives a kill, removed on completion.

        UserError if the data changed since the making of the recipe began: work on the old data is never kept under the
        name of the new.
        """
        name = self.artefact_name(recipe)
        begun = [folder.name for folder, each in _in_progress.get() if each == recipe and folder.parent == self.root]
        if begun and begun[-1] != name:
            raise self._changed_data_error(begun[-1])
        folder = self.root / ".partial" / name
        with translate_write_errors(self.root):
            folder.mkdir(parents=True, exist_ok=True)
            self._resumable.add(name)
            if self.store is not None and not any(folder.iterdir()):
                self.store.download({f".partial/{name}/{file}": folder / file for file in self._checkpoints(name)})
        return folder

    def _checkpoints(self, name: str) -> list[str]:
        """The names of the files of unfinished work behind the URL."""
        return [] if self.store is None else [*filter(_CHECKPOINT.fullmatch, self.store.names(f".partial/{name}"))]

    def _store_checkpoints(self, name: str) -> None:
        """Store the checkpoints of unfinished work behind the URL, in place of earlier ones."""
        assert self.store is not None
        here = {path.name: path for path in (self.root / ".partial" / name).glob("*")}
        there = self._checkpoints(name)
        new = {file: path for file, path in here.items() if _CHECKPOINT.fullmatch(file) and file not in there}
        self.store.upload({f".partial/{name}/{file}": path for file, path in new.items()})
        for file in there if new else ():
            self.store.delete(f".partial/{name}/{file}")

    def entries(self) -> list[IndexEntry]:
        """All complete artefacts by name; damaged and foreign folders are skipped with a warning."""
        found, damages = self.scan()
        for damage in damages:
            warnings.warn(f"skipped: {damage}", CorruptArtefactWarning, stacklevel=2)
        return found

    def scan(self) -> tuple[list[IndexEntry], list[CorruptArtefactError]]:
        """All complete artefacts by name, and what is wrong with damaged and foreign folders."""
        if self.store is not None:
            return self._scan_store(self.store)
        found, damages = [], []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                found.append(_read_entry(folder))
            except CorruptArtefactError as damage:
                damages.append(damage)
        return found, damages

    def index(self) -> pandas.DataFrame:
        """All complete artefacts as a table: name, kind, recipe class, each fact, settings, links and path."""
        shown = [each.name for each in fields(IndexEntry) if each.name != "fetch_tensors"]
        rows = [{**{name: getattr(each, name) for name in shown}, **each.facts} for each in self.entries()]
        return pandas.DataFrame(
            rows, columns=None if rows else ["name", "kind", "recipe_class", "settings", "links", "group", "path"]
        )

    def _is_intact(self, folder: Path) -> bool:
        """Whether a complete artefact is there; a damaged one is moved away with a warning."""
        if self.store is not None:
            return self._is_stored(self.store, folder)
        if not folder.exists():
            return False
        try:
            _read_artefact(folder)
        except CorruptArtefactError as damage:
            aside = self.root / ".damaged" / f"{folder.name}.{secrets.token_hex(8)}"
            with translate_write_errors(self.root):
                aside.parent.mkdir(exist_ok=True)
                folder.rename(aside)
            warnings.warn(f"{damage} (it is made again now)", CorruptArtefactWarning, stacklevel=4)
            return False
        return True

    def _make(self, recipe: Recipe, description: dict[str, Json]) -> None:
        name, changes = artefact_name(description), count_file_changes()
        self.delete_leftovers(name)
        artefact = self._make_in_memory(recipe)
        if not isinstance(artefact, Artefact):
            raise TypeError(f"{type(recipe).__name__}.make gave a {type(artefact).__name__}, not an Artefact")
        summary = recipe.summarize(artefact)
        artefact = replace(artefact, summary=summary, notes={**artefact.notes, **recipe.explain(summary)})
        index: dict[str, object] = {
            "kind": recipe.kind,
            "recipe_class": type(recipe).__name__,
            "facts": recipe.describe(),
            "settings": plain_settings(recipe),
            "links": linked_artefacts(recipe, self.data_dir),
            "group": seed_group(recipe, self.data_dir),
        }
        if self.device != "cpu":
            index["device"] = self.device
        # Last of all that reads the data: links and group hold its hash too.
        if self.artefact_name(recipe) != name or count_file_changes() != changes:
            raise self._changed_data_error(name)
        parts = [self.root / self.artefact_name(shard) for shard in artefact.shards]
        for shard in artefact.shards:
            self.ensure(shard)  # it may have been made elsewhere
        staging = self.root / ".staging" / f"{name}.{secrets.token_hex(8)}"
        try:
            with translate_write_errors(self.root):
                staging.mkdir(parents=True)
                _write_artefact(staging, artefact, {NOTES: artefact.notes, RECIPE: description, INDEX: index}, parts)
                self._publish(staging, self.root / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        for part in parts:
            self.delete(part.name)
        shutil.rmtree(self.root / ".partial" / name, ignore_errors=True)
        for damaged in (self.root / ".damaged").glob(f"{name}.*"):
            shutil.rmtree(damaged, ignore_errors=True)
        self.failure_file(name).unlink(missing_ok=True)
        if self.store is not None:
            self.store.delete(f".failures/{name}.txt")
        for emptied in (".damaged", ".failures"):
            with suppress(OSError):  # it does not exist or holds something else
                (self.root / emptied).rmdir()

    def _make_in_memory(self, recipe: Recipe) -> Artefact:
        """Make a recipe; with an automatic batch size again with half of it, whenever memory runs out."""
        while True:
            try:
                with arithmetic_of(self.device):
                    return recipe.make(self)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self.automatic_batch_size or self.batch_size == 1:
                    raise UserError(
                        f"the memory of {self.device} is too small for {self.batch_size} texts at once: give a smaller "
                        "batch size, or auto, or shorter texts"
                    ) from error
            # Outside the handler, which keeps the tensors of the failed attempt.
            self.batch_size //= 2
            free_cached_memory(torch.device(self.device))
            warnings.warn(f"memory ran out: going on with {self.batch_size} texts at once", stacklevel=2)

    def failure_file(self, name: str) -> Path:
        """Where the traceback of the recipe with this artefact name is written; removed when it succeeds."""
        return self.root / ".failures" / f"{name}.txt"

    def write_failure(self, name: str, text: str) -> Path:
        """Write the traceback of a recipe, behind a URL there too; its file on this machine."""
        file = self.failure_file(name)
        with translate_write_errors(self.root):
            replace_text(file, text)
        if self.store is not None:
            self.store.write(f".failures/{name}.txt", text.encode())
        return file

    def check_writable(self) -> None:
        """`WriteError` if nothing can be written in the workspace: it is read-only, or its disk is full."""
        with translate_write_errors(self.root):
            try_to_write(self.root)
        if self.store is not None:
            self.store.check_writable()

    def read_document(self, place: str) -> bytes | None:
        """A small file beside the artefacts, for instance `.audits/state.json`; None if it cannot be read."""
        if self.store is not None:
            return self.store.read(place)
        try:
            return (self.root / place).read_bytes()
        except OSError:
            return None

    def write_document(self, place: str, text: str) -> None:
        """Write a small file beside the artefacts, completely or not at all."""
        if self.store is not None:
            self.store.write(place, text.encode())
            return
        with translate_write_errors(self.root):
            replace_text(self.root / place, text)

    def create_document(self, place: str, text: str) -> None:
        """Write a small file beside the artefacts unless it exists; of two writers the first one counts."""
        if self.store is not None:
            self.store.create(place, text.encode())
            return
        draft = self.root / f"{place}.{secrets.token_hex(8)}"
        with translate_write_errors(self.root):
            replace_text(draft, text)
            try:
                os.link(draft, self.root / place)
            except FileExistsError:
                pass
            except OSError:  # a filesystem without links
                if not (self.root / place).exists():
                    draft.rename(self.root / place)
            finally:
                draft.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete an artefact, if there is one."""
        if self.store is not None:
            self.store.delete_artefact(name)
        # Out of sight first: a folder without some of its files would be taken for a damaged artefact.
        staging = self.root / ".staging" / f"{name}.{secrets.token_hex(8)}"
        with translate_write_errors(self.root), suppress(FileNotFoundError):
            staging.parent.mkdir(exist_ok=True)
            (self.root / name).rename(staging)
        shutil.rmtree(staging, ignore_errors=True)

    def _changed_data_error(self, name: str) -> UserError:
        return UserError(f"the data changed while {name} was being made; run it again")

    def delete_leftovers(self, name: str = "") -> None:
        """Delete what killed processes left.

        Staging folders whose lock is free; shards, partial work, damaged copies and leases of complete artefacts.

        Args:
            name: the artefact that this process is making, whose lock it holds.
        """
        if self.store is not None and not name:
            self._delete_leases(self.store)
            self._delete_stored_shards(self.store)
        for purpose in ("staging", "partial", "damaged"):
            parent = self.root / f".{purpose}"
            for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
                owner = folder.name if purpose == "partial" else folder.name.rpartition(".")[0]
                if purpose != "staging" and not _is_complete(self.root / owner):
                    continue
                if owner == name:  # this process holds its lock
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                with suppress(OSError), self._lock(owner).acquire(timeout=0):  # in use, or on a read-only disk
                    shutil.rmtree(folder, ignore_errors=True)

        for folder in self.root.glob(f"{SHARD_CLASS}-*"):
            with suppress(CorruptArtefactError):
                whole = _read_entry(folder).link("whole")
                if whole is not None and _is_complete(self.root / whole):
                    self.delete(folder.name)

    # Behind a URL

    def _delete_stored_shards(self, store: ObjectStore) -> None:
        """Delete the shards of artefacts that are complete: who joined them was killed before it could."""
        found = store.names("manifests")
        names = [name.removesuffix(".json") for name in found if name.startswith(f"{SHARD_CLASS}-")]
        indexes: dict[str, str] = {}
        for name, written in store.read_manifests(names).items() if names else ():
            with suppress(CorruptArtefactError):
                manifest = _parse_manifest(written, f"{store.url}/{name}")
                indexes[_object_keys(f"{store.url}/{name}", manifest)[INDEX]] = name
        for key, content in store.read_many([*indexes]).items() if indexes else ():
            with suppress(*_PARSE_ERRORS):  # damaged: whoever needs it makes it again
                if f"{json.loads(content)['links']['whole'][0]}.json" in found:
                    self.delete(indexes[key])

    def _delete_leases(self, store: ObjectStore) -> None:
        """Delete the leases of artefacts that are complete: their holders were killed."""
        for name in store.names(".locks"):
            if store.is_known(name):
                for number in store.names(f".locks/{name}"):
                    store.delete(f".locks/{name}/{number}")

    def _fetch(self, folder: Path, *, tensors: bool = True) -> bool:
        """Whether the artefact exists; behind a URL it is then in the cache. CorruptArtefactError if it is damaged."""
        if self.store is None:
            return folder.exists()
        if not folder.exists():
            damages = self._download(self.store, [folder.name], tensors=tensors)
            if damages:
                raise damages[0]
            return folder.exists()
        if self._unstored(folder).exists() or not self.store.has(folder.name):
            return False  # what is in the cache only is stored under the lock
        if tensors:
            self._download_tensors(self.store, folder)
        return True

    def _download(self, store: ObjectStore, names: Sequence[str], *, tensors: bool) -> list[CorruptArtefactError]:
        """Download those of the artefacts that exist into the cache; what is wrong with damaged ones."""
        damages = []
        manifests: dict[str, dict[str, Json]] = {}
        objects: dict[str, tuple[str, str]] = {}
        written = store.read_manifests(names)
        for name, content in written.items():
            try:
                manifest = _parse_manifest(content, f"{store.url}/{name}")
                if not tensors:
                    manifest.pop(TENSORS, None)
                objects |= {key: (name, file) for file, key in _object_keys(f"{store.url}/{name}", manifest).items()}
                manifests[name] = manifest
            except CorruptArtefactError as damage:
                damages.append(damage)
        if not manifests:
            return damages
        with self._drafts() as drafts:
            for name in manifests:
                (drafts / name).mkdir()
                (drafts / name / MANIFEST).write_bytes(written[name])
            store.download({key: drafts / name / file for key, (name, file) in objects.items()})
            for name, manifest in manifests.items():
                try:
                    _check_download(drafts / name, manifest, f"{store.url}/{name}")
                except CorruptArtefactError as damage:
                    damages.append(damage)
                else:
                    self._move_into_place(drafts / name, self.root / name)
        return damages

    def _download_tensors(self, store: ObjectStore, folder: Path) -> None:
        """Download the tensors of an artefact that is in the cache without them."""
        with _translate_read_errors(folder):
            manifest = _read_manifest(folder)
        if TENSORS in manifest and not (folder / TENSORS).exists():
            only = {TENSORS: manifest[TENSORS]}
            with self._drafts() as drafts:
                store.download({key: drafts / file for file, key in _object_keys(folder, only).items()})
                _check_download(drafts, only, f"{store.url}/{folder.name}")
                (drafts / TENSORS).replace(folder / TENSORS)

    @contextmanager
    def _drafts(self) -> Iterator[Path]:
        """A new folder for downloads; what a killed process left there is removed by the next one."""
        with translate_write_errors(self.root), _draft_folder(self.root / ".downloads" / "artefacts") as drafts:
            yield drafts

    def _scan_store(self, store: ObjectStore) -> tuple[list[IndexEntry], list[CorruptArtefactError]]:
        """As `scan`; what is not in the cache is downloaded without its tensors, and so is what is damaged there."""
        names, found, damages = store.artefacts(), {}, []

        def read_cache(names: Iterable[str]) -> None:
            for name in names:
                folder = self.root / name
                with suppress(CorruptArtefactError):
                    entry = _read_entry(folder, tensors=False)
                    found[name] = replace(entry, fetch_tensors=partial(self._fetch, folder))

        read_cache(names)
        absent = [name for name in names if name not in found]
        for start in range(0, len(absent), TOGETHER):
            part = absent[start : start + TOGETHER]
            for name in part:
                shutil.rmtree(self.root / name, ignore_errors=True)
            damages += self._download(store, part, tensors=False)
        read_cache(absent)
        return [found[name] for name in names if name in found], damages

    def _is_stored(self, store: ObjectStore, folder: Path) -> bool:
        """Whether a complete artefact is behind the URL, and then in the cache.

        A damaged copy in the cache is downloaded again, and a damaged original is withdrawn, both with a warning. What
        is in the cache only is stored: the network may have failed when it was made.
        """
        if folder.exists():
            try:
                stored = store.read_manifest(folder.name)
                if stored == (folder / MANIFEST).read_bytes():
                    self._download_tensors(store, folder)
                _read_artefact(folder)
                # Of another machine's result of the same recipe the last bits may differ: all use the stored one.
                if (stored is None and self._upload(store, folder, folder)) or (
                    stored == (folder / MANIFEST).read_bytes()
                ):
                    self._unstored(folder).unlink(missing_ok=True)
                    return True
            except CorruptArtefactError as damage:
                warnings.warn(f"{damage} (it is downloaded or made again now)", CorruptArtefactWarning, stacklevel=5)
            with translate_write_errors(self.root):
                shutil.rmtree(folder)
                self._unstored(folder).unlink(missing_ok=True)
        with suppress(CorruptArtefactError):  # perhaps only on its way
            return self._fetch(folder)
        try:
            return self._fetch(folder)
        except CorruptArtefactError as damage:
            warnings.warn(f"{damage} (it is made again now)", CorruptArtefactWarning, stacklevel=5)
            store.withdraw(folder.name)
            return False

    def _upload(self, store: ObjectStore, source: Path, folder: Path) -> bool:
        """Store an artefact; False if there is another one of its name."""
        written = (source / MANIFEST).read_bytes()
        files = {key: source / file for file, key in _object_keys(folder, _read_manifest(source)).items()}
        return store.publish(folder.name, files, written) or store.read_manifest(folder.name) == written

    def _publish(self, staging: Path, folder: Path) -> None:
        if self.store is not None:
            try:
                is_ours = self._upload(self.store, staging, folder)
            except WriteError:
                with suppress(OSError):
                    # It is stored by the next run, unless another machine was quicker by then.
                    self._unstored(folder).parent.mkdir(exist_ok=True)
                    self._unstored(folder).touch()
                    staging.rename(folder)
                raise
            if not is_ours:  # another machine without our lease was quicker, and others may have used its result
                self._fetch(folder)
                return
        self._move_into_place(staging, folder)

    def _unstored(self, folder: Path) -> Path:
        """The mark of an artefact that is in the cache only, because the store could not be reached."""
        return self.root / ".unstored" / folder.name

    def _move_into_place(self, draft: Path, folder: Path) -> None:
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            return  # another process without our lock was quicker; its result is the same
        flush_to_disk(self.root)

    @contextmanager
    def _hold_lock(self, folder: Path, recipe: Recipe) -> Iterator[None]:
        """Hold the lock of one artefact; show progress while another process has it."""
        if any(folder == other for other, _ in _in_progress.get()):
            raise RuntimeError(f"the recipe {folder.name} depends on itself")
        lock = self._lock(folder.name)
        with translate_write_errors(self.root):
            (self.root / ".locks").mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                with self.progress.task(f"waiting for another process that makes {folder.name}", 1) as step:
                    lock.acquire()
                    step()
        token = _in_progress.set((*_in_progress.get(), (folder, recipe)))
        try:
            with self._hold_lease(folder.name):
                yield
        finally:
            _in_progress.reset(token)
            lock.release()

    @contextmanager
    def _hold_lease(self, name: str) -> Iterator[None]:
        """Behind a URL, hold the lease of one artefact; show progress while another machine has it."""
        if self.store is None:
            yield
            return
        store, lease = self.store, Lease(self.store, name, self._owner())
        try:
            if not lease.try_to_acquire():
                with self.progress.task(f"waiting for another machine that makes {name}", 1) as step:
                    lease.acquire(lambda: store.read_manifest(name) is not None)
                    step()
            saver = Repetition(CHECKPOINT_SECONDS, partial(self._store_checkpoints, name))
            try:
                yield
            finally:
                saver.stop()
            for file in self._checkpoints(name) if name in self._resumable else ():
                store.delete(f".partial/{name}/{file}")
        finally:
            lease.release()

    def _owner(self) -> str:
        """A name for all processes that use this cache: they exclude each other by file locks."""
        with translate_write_errors(self.root):
            file = self.root / ".locks" / "owner"
            if not file.exists():
                replace_text(file, secrets.token_hex(8))
            return file.read_text()

    def _lock(self, name: str) -> FileLock:
        return FileLock(self.root / ".locks" / f"{name}.lock")


def _write_artefact(
    folder: Path, artefact: Artefact, documents: Mapping[str, object], parts: Sequence[Path] = ()
) -> None:
    """Write an artefact into the empty `folder`, the manifest last, all flushed to disk; empty parts are left out.

    Args:
        parts: the folders of its shards.
    """
    if parts and not len(artefact.table.columns):
        _merge_tables(folder / TABLE, [part / TABLE for part in parts])
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
        pyarrow.parquet.write_table(table, target)
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
    # A column that is empty in one shard has no type there, and one with missing whole numbers holds fractions.
    sources = [each if isinstance(each, Path) else pyarrow.BufferReader(each) for each in files]
    schemas = []
    for source in sources:
        with _open_table(source) as file:
            schemas.append(file.schema_arrow.remove_metadata())
    schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
    with pyarrow.parquet.ParquetWriter(target, schema) as writer:
        for source in sources:
            with _open_table(source) as file:
                for block in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(block, use_threads=False).cast(schema))


def _file_entry(path: Path) -> Json:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _read_artefact(folder: Path, *, tensors: bool = True, table: bool = True) -> Artefact:
    """The artefact in `folder`; its bytes are verified once per process, and again if a file was modified."""
    with _translate_read_errors(folder):
        manifest = _verify_files(folder, tensors=tensors)
        try:
            weights = load_file(folder / TENSORS) if TENSORS in manifest else {}
            rows, summary = (
                _read_table(folder / name) if wanted and name in manifest else pandas.DataFrame()
                for name, wanted in ((TABLE, table), (SUMMARY, True))
            )
            notes = json.loads((folder / NOTES).read_bytes())
        except _PARSE_ERRORS as error:  # it was damaged after it had been verified
            raise _corrupt_error(folder, "its content differs") from error
    return Artefact({name: weights[name] for name in sorted(weights)}, rows, notes, summary)


def _verify_files(folder: Path, *, tensors: bool) -> dict[str, Json]:
    """The manifest, weights left out on request; CorruptArtefactError unless all its files are as it says."""
    manifest = _read_manifest(folder)
    if not tensors:
        manifest.pop(TENSORS, None)
    stats = ((name, (folder / name).stat()) for name in sorted((*manifest, MANIFEST)))
    state = tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    if _verified.get((folder.resolve(), tensors)) != state:
        for name, entry in manifest.items():
            if _file_entry(folder / name) != entry:
                raise _corrupt_error(folder, f"the content of {name} differs")
        _check_name(folder, (folder / RECIPE).read_bytes())
        _verified[folder.resolve(), tensors] = state
    return manifest


def _check_name(place: Path | str, recipe: bytes) -> None:
    """CorruptArtefactError if the folder holds the artefact of another recipe."""
    name = artefact_name(json.loads(recipe))
    if name != Path(place).name:
        raise _corrupt_error(place, f"it holds {name}")


def _read_entry(folder: Path, *, tensors: bool = True) -> IndexEntry:
    """The index entry of a folder, checked by file sizes and the checksum of the index file only."""
    with _translate_read_errors(folder):
        manifest = _read_manifest(folder)
        if not tensors:
            manifest.pop(TENSORS, None)
        for name, entry in manifest.items():
            if not isinstance(entry, list) or (folder / name).stat().st_size != entry[0]:
                raise _corrupt_error(folder, f"the size of {name} differs")
        if INDEX not in manifest or _file_entry(folder / INDEX) != manifest[INDEX]:
            raise _corrupt_error(folder, f"the content of {INDEX} differs")
        content = json.loads((folder / INDEX).read_bytes())
    return IndexEntry(folder.name, path=folder, **content)


def _read_manifest(folder: Path) -> dict[str, Json]:
    return _parse_manifest((folder / MANIFEST).read_bytes(), folder)


def _parse_manifest(written: bytes, place: Path | str) -> dict[str, Json]:
    try:
        content = json.loads(written)
        if isinstance(content, dict) and dump_compact_json(content).encode("ascii") == written:
            return content
    except ValueError as error:
        raise _corrupt_error(place, f"{MANIFEST} is not valid JSON") from error
    raise _corrupt_error(place, f"{MANIFEST} was altered")


def _object_keys(place: Path | str, manifest: Mapping[str, Json]) -> dict[str, str]:
    """The object of each file of an artefact; CorruptArtefactError for names that are no names of files."""
    keys, name = {}, Path(place).name
    for file, entry in manifest.items():
        match entry:
            case [int(), str(digest)] if not file.startswith(".") and not {*file} & {*"/\\"} and digest.isalnum():
                keys[file] = object_key(name, file, digest)
            case _:
                raise _corrupt_error(place, f"{MANIFEST} has no valid entry for {file!r}")
    return keys


def _check_download(folder: Path, manifest: Mapping[str, Json], place: str) -> None:
    """CorruptArtefactError unless these files are in the folder as the manifest says."""
    for name, entry in manifest.items():
        if not (folder / name).exists():
            raise _corrupt_error(place, f"{name} is missing")
        if _file_entry(folder / name) != entry:
            raise _corrupt_error(place, f"the content of {name} differs")
    if RECIPE in manifest:
        _check_name(place, (folder / RECIPE).read_bytes())


def _is_complete(folder: Path) -> bool:
    try:
        _read_entry(folder)
    except CorruptArtefactError:
        return False
    return True


@contextmanager
def translate_write_errors(folder: Path) -> Iterator[None]:
    """Turn disk errors into a `WriteError` of one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise WriteError(
            f"cannot write in the workspace ({folder}): {' '.join(reason.split())}; "
            "make room there or choose another workspace"
        ) from error


def try_to_write(folder: Path) -> None:
    """Write one block to a file without a name; OSError if that is impossible. Nothing stays behind.

    A folder that does not exist is not created, because another process may be about to write in it: the file is
    written where it would be created.
    """
    there = next(each for each in (folder, *folder.parents) if each.exists())
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """A path to write a file or folder to; renamed to `target` on success, removed on failure.

    It lies in a new folder with a random name, under a lock: what a killed process left is removed by the next one that
    writes to the same target.
    """
    with _draft_folder(target) as folder:
        draft = folder / target.name
        yield draft
        try:
            draft.replace(target)
        except OSError:
            if not (draft.is_dir() and target.is_dir()):
                raise  # else another process completed the same folder first


@contextmanager
def _draft_folder(target: Path) -> Iterator[Path]:
    """A new folder beside the target, under a lock; earlier ones of killed processes are removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    delete_drafts(target)
    lock = _new_draft(target)
    folder = Path(lock.lock_file).parent
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


_DRAFT = ".draft"


def _draft_prefix(target: Path) -> str:
    return f".{target.name[:50]}."


def _new_draft(target: Path) -> FileLock:
    """The lock, held, of a new folder for a draft."""
    while True:
        folder = tempfile.mkdtemp(prefix=_draft_prefix(target), suffix=_DRAFT, dir=target.parent)
        lock = FileLock(Path(folder) / "lock")
        try:
            lock.acquire()
        except OSError:
            if Path(folder).exists():
                shutil.rmtree(folder, ignore_errors=True)
                raise
            continue  # another process took it for one that a killed process left
        return lock


def delete_drafts(target: Path) -> None:
    """Delete drafts of this target that killed processes left: those whose lock is free."""
    prefix = _draft_prefix(target)
    for left in [*os.scandir(target.parent)] if target.parent.is_dir() else ():
        if left.name.startswith(prefix) and left.name.endswith(_DRAFT) and left.is_dir(follow_symlinks=False):
            with suppress(OSError), FileLock(Path(left) / "lock", timeout=0):
                shutil.rmtree(left, ignore_errors=True)


def replace_text(target: Path, text: str | Iterable[str]) -> None:
    """Write a text file completely or not at all."""
    with atomic_path(target) as draft, draft.open("x", encoding="utf-8", newline="\n") as file:
        file.writelines([text] if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _translate_read_errors(folder: Path) -> Iterator[None]:
    """Tell damage (a missing file, a disk error) from missing permissions."""
    try:
        yield
    except OSError as error:
        reason = f"{Path(error.filename or folder).name}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in _DAMAGE_ERRNOS:
            raise _corrupt_error(folder, reason) from error
        raise UserError(f"cannot read the artefact {folder} ({reason}); check its permissions") from error


def _corrupt_error(place: Path | str, reason: str) -> CorruptArtefactError:
    return CorruptArtefactError(
        f"the artefact {place} is damaged: {reason}; run its recipe again or delete the folder", Path(place).name
    )


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that a power cut does not leave a name without its content."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _open_table(source: Path | pyarrow.BufferReader) -> pyarrow.parquet.ParquetFile:
    """A file to read without threads, which slow down small tables and prevent forks."""
    return pyarrow.parquet.ParquetFile(source, pre_buffer=False)


def _column_cells(column: pyarrow.ChunkedArray) -> list[object]:
    kind = column.type
    if pyarrow.types.is_list(kind) and not pyarrow.types.is_nested(kind.value_type):
        return _list_column(column.combine_chunks(), arrays=True)
    cells: list[object] = column.to_numpy().tolist() if pyarrow.types.is_floating(kind) else column.to_pylist()
    return cells


def _read_table(source: Path | pyarrow.BufferReader) -> pandas.DataFrame:
    with _open_table(source) as file:
        return _arrow_to_pandas(file.read(use_threads=False))


def _arrow_to_pandas(arrow: pyarrow.Table) -> pandas.DataFrame:
    kinds = dict(zip(arrow.schema.names, arrow.schema.types, strict=True))
    lists = [
        name
        for name, kind in kinds.items()
        if pyarrow.types.is_list(kind) and not pyarrow.types.is_nested(kind.value_type)
    ]
    # There is no index to restore, which is all that the metadata is for.
    table: pandas.DataFrame = arrow.drop_columns(lists).to_pandas(use_threads=False, ignore_metadata=True)
    for place, (name, kind) in enumerate(kinds.items()):
        if name in lists:
            cells = _list_column(arrow.column(name).combine_chunks())
            table.insert(place, name, pandas.Series(cells, dtype=object))
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
        return [_arrays_to_lists(part) for part in cell] if cell.dtype == object else cell.tolist()
    return cell


def _note_to_json(value: object, place: str) -> Json:
    """The value as plain JSON; ValueError or TypeError names the key of anything else."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}: notes hold finite numbers only; leave it out or write it in words")
        return float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_note_to_json(part, f"{place}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str)]
        if not odd:
            return {key: _note_to_json(part, f"{place}.{key}") for key, part in value.items()}
        raise TypeError(f"{place} has the key {odd[0]!r}: keys of notes are strings")
    raise TypeError(f"{place} is a {type(value).__name__}: notes hold plain JSON values only")
