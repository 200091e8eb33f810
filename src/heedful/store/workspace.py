"""The workspace: a folder of artefacts, each stored under the fingerprint of its recipe and made once.

An artefact is a folder of small files (`tensors.safetensors`, `table.parquet`, `summary.parquet`, `notes.json`,
`recipe.json`, `index.json`) and a manifest with their sizes and SHA-256. It is written to `.staging` and renamed into
place, so it is complete if and only if it exists; `.partial` holds unfinished work to resume from. Locks prevent two
processes from doing the same work; correctness does not depend on them. No file format here can hold code.

A workspace behind a URL (`s3://bucket/experiments`) is such a folder on this machine, a cache, in front of an
`ObjectStore`: what is made here is stored there, and what was made elsewhere is downloaded when it is asked for.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from pathlib import Path

import pandas
import torch
from filelock import FileLock, Timeout

from heedful.devices import arithmetic_of, check_device, free_cached_memory, is_out_of_memory
from heedful.progress import Progress, SilentProgress
from heedful.store.artefact_files import (
    INDEX,
    MANIFEST,
    NOTES,
    PARSE_ERRORS,
    RECIPE,
    TABLE,
    TENSORS,
    CorruptArtefactError,
    CorruptArtefactWarning,
    IndexEntry,
    arrow_to_pandas,
    check_download,
    is_complete,
    object_keys,
    open_table,
    parse_manifest,
    read_artefact,
    read_entry,
    read_manifest,
    stored_size,
    translate_read_errors,
    verify_files,
    write_artefact,
)
from heedful.store.atomic_write import (
    WriteError,
    draft_folder,
    flush_to_disk,
    replace_text,
    translate_write_errors,
    try_to_write,
)
from heedful.store.file_digest import count_file_changes
from heedful.store.leases import (
    Lease,
    delete_checkpoints,
    delete_leases,
    download_checkpoints,
    hold_lease,
    saved_checkpoints,
)
from heedful.store.object_store import (
    ARTEFACT_NAME,
    TOGETHER,
    ObjectStore,
    cache_folder,
    is_url,
    local_path,
    workspace_cache,
)
from heedful.store.provenance import MADE_FOLDER, Made, Stopwatch, dump_made, made_key, parse_made
from heedful.store.recipe import (
    Artefact,
    Json,
    Recipe,
    artefact_name,
    describe_recipe,
    linked_artefacts,
    plain_settings,
    recipe_from_json,
    seed_group,
)
from heedful.store.shard import SHARD_CLASS
from heedful.types import UserError, shorten, user_path

_SILENT = SilentProgress()
_in_progress: ContextVar[tuple[tuple[Path, Recipe], ...]] = ContextVar("_in_progress", default=())
"""The recipes that are being made, outermost first, with the folders they were given when that began."""


def default_data_dir() -> Path:
    """The folder of corpora unless another is given: `HEEDFUL_DATA`, else `data` in the cache folder."""
    if folder := os.environ.get("HEEDFUL_DATA"):
        return user_path(folder)
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
        if not isinstance(self.place, str | Path):
            raise UserError(f"{shorten(self.place)} is not a workspace; give a folder or s3://bucket/folder")
        if not isinstance(self.batch_size, int) or isinstance(self.batch_size, bool) or self.batch_size < 1:
            raise UserError(f"batch_size is {shorten(self.batch_size)}; give a positive number of texts")
        if isinstance(self.place, str) and is_url(self.place):
            self.store = ObjectStore(self.place)
            self.root = workspace_cache(self.store.url)
        else:
            self.root = local_path(self.place)
        self.data_dir = user_path(self.data_dir)
        self.device = str(check_device(self.device))

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
                return read_artefact(folder)
        with self._hold_lock(folder, recipe):
            if not self._is_intact(folder):
                self._make(recipe, description)
        return read_artefact(folder)

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
                read_entry(folder, tensors=self.store is None)
                return True
        return False

    def read_block(self, recipe: Recipe, number: int, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """The rows of one block of a recipe's table, some columns or all; a table without blocks is the only one."""
        folder = self._verified_folder(recipe)
        with translate_read_errors(folder), open_table(folder / TABLE) as file:
            return arrow_to_pandas(file.read_row_group(number, columns, use_threads=False))

    def read_notes(self, recipe: Recipe) -> Mapping[str, Json]:
        """The notes of a recipe's artefact; its table is not read."""
        folder = self._verified_folder(recipe)
        with translate_read_errors(folder):
            notes: dict[str, Json] = json.loads((folder / NOTES).read_bytes())
        return notes

    def _verified_folder(self, recipe: Recipe) -> Path:
        """The folder of an artefact, made first if it is missing; CorruptArtefactError if its bytes are damaged."""
        self.ensure(recipe)
        folder = self.root / self.artefact_name(recipe)
        with translate_read_errors(folder):
            verify_files(folder, tensors=False)
        return folder

    def has(self, recipe: Recipe) -> bool:
        """Whether the artefact is complete, judged by its manifest and file sizes; `get` verifies every byte.

        Behind a URL it is judged by its manifest. A few questions are answered as things are now, many within seconds
        from one listing, which may miss what others finished since.
        """
        name = self.artefact_name(recipe)
        return is_complete(self.root / name) if self.store is None else self.store.has(name)

    def find_missing(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Those recipes whose artefacts are not complete, as things are now; behind a URL by one listing of all."""
        if self.store is None:
            return [recipe for recipe in recipes if not self.has(recipe)]
        stored = {*self.store.artefacts()}
        return [recipe for recipe in recipes if self.artefact_name(recipe) not in stored]

    def read_recipe(self, name: str) -> Recipe:
        """The recipe of a stored artefact, as in the column `name` of `index`; `get` and `restore` take it.

        UserError if there is no such artefact, or if its code or data are others now, so that it would be made anew.
        """
        folder = self.root / name
        if not ARTEFACT_NAME.fullmatch(name) or not self._fetch(folder, tensors=False):
            raise UserError(f"no artefact {shorten(name)} in {self}; `heedful workspace list` shows all names")
        recipe = recipe_from_json({**read_entry(folder, tensors=False).open().recipe})
        if self.artefact_name(recipe) != name:
            raise UserError(f"{name}: its code, its data or the version of its class are others now; run it again")
        return recipe

    def artefact_name(self, recipe: Recipe) -> str:
        """The folder name of the recipe's artefact: `<ClassName>-<12 hex of its fingerprint>`."""
        return artefact_name(describe_recipe(recipe, self.data_dir))

    def partial_folder(self, recipe: Recipe) -> Path:
        """An existing folder for unfinished work on this recipe; survives a kill, removed on completion.

        UserError if the data changed since the making of the recipe began: work on the old data is never kept under the
        name of the new.
        """
        name = self.artefact_name(recipe)
        begun = [folder.name for folder, made in _in_progress.get() if made == recipe and folder.parent == self.root]
        if begun and begun[-1] != name:
            raise self._changed_data_error(begun[-1])
        folder = self.root / ".partial" / name
        with translate_write_errors(self.root):
            folder.mkdir(parents=True, exist_ok=True)
            self._resumable.add(name)
            if self.store is not None and not any(folder.iterdir()):
                download_checkpoints(self.store, name, folder)
        return folder

    def entries(self) -> list[IndexEntry]:
        """All complete artefacts by name; damaged and foreign folders are skipped with a warning."""
        entries, damages = self.scan()
        for damage in damages:
            warnings.warn(f"skipped: {damage}", CorruptArtefactWarning, stacklevel=2)
        return entries

    def scan(self) -> tuple[list[IndexEntry], list[CorruptArtefactError]]:
        """All complete artefacts by name, and what is wrong with damaged and foreign folders."""
        if self.store is not None:
            return self._scan_store(self.store)
        entries, damages = [], []
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                entries.append(replace(read_entry(folder), read_made=partial(self.read_made, folder.name)))
            except CorruptArtefactError as damage:
                damages.append(damage)
        return entries, damages

    def index(self) -> pandas.DataFrame:
        """All complete artefacts as a table: name, kind, recipe class, each fact, settings, links and path."""
        shown = [entry.name for entry in fields(IndexEntry) if entry.name not in ("fetch_tensors", "read_made")]
        rows = [{**{name: getattr(entry, name) for name in shown}, **entry.facts} for entry in self.entries()]
        return pandas.DataFrame(
            rows, columns=None if rows else ["name", "kind", "recipe_class", "settings", "links", "group", "path"]
        )

    def read_made(self, name: str) -> Made | None:
        """How the artefact of this name was made; None where that is not recorded."""
        return parse_made(self.read_document(made_key(name)))

    def read_all_made(self) -> dict[str, Made]:
        """How each artefact was made, by name, as far as it is recorded; a few requests behind a URL."""
        names = [file.removesuffix(".json") for file in self.list_documents(MADE_FOLDER)]
        if self.store is None:
            records = {name: self.read_made(name) for name in names}
        else:
            contents = self.store.read_many([made_key(name) for name in names])
            records = {name: parse_made(contents.get(made_key(name))) for name in names}
        return {name: made for name, made in records.items() if made is not None}

    def _is_intact(self, folder: Path) -> bool:
        """Whether a complete artefact is there; a damaged one is moved away with a warning."""
        if self.store is not None:
            return self._is_stored(self.store, folder)
        if not folder.exists():
            return False
        try:
            read_artefact(folder)
        except CorruptArtefactError as damage:
            aside = self.root / ".damaged" / f"{folder.name}.{secrets.token_hex(8)}"
            with translate_write_errors(self.root):
                aside.parent.mkdir(exist_ok=True)
                folder.rename(aside)
            warnings.warn(f"{damage} (it is made again now)", CorruptArtefactWarning, stacklevel=4)
            return False
        return True

    def _make(self, recipe: Recipe, description: dict[str, Json]) -> None:
        name, changes, stopwatch = artefact_name(description), count_file_changes(), Stopwatch()
        self.delete_leftovers(name)
        artefact = self._make_in_memory(recipe)
        if not isinstance(artefact, Artefact):
            raise TypeError(f"{type(recipe).__name__}.make returned a {type(artefact).__name__}, not an Artefact")
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
            index["device"] = self.device.partition(":")[0]
        # Last of all that reads the data: links and group hold its hash too.
        if self.artefact_name(recipe) != name or count_file_changes() != changes:
            raise self._changed_data_error(name)
        shard_folders = [self.root / self.artefact_name(shard) for shard in artefact.shards]
        for shard in artefact.shards:
            self.ensure(shard)  # it may have been made elsewhere
        staging = self.root / ".staging" / f"{name}.{secrets.token_hex(8)}"
        try:
            with translate_write_errors(self.root):
                staging.mkdir(parents=True)
                documents = {NOTES: artefact.notes, RECIPE: description, INDEX: index}
                write_artefact(staging, artefact, documents, shard_folders)
                is_ours = self._publish(staging, self.root / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if is_ours:
            shards_made = [self.read_made(folder.name) for folder in shard_folders]
            seconds = stopwatch.stop() + sum(made.seconds for made in shards_made if made is not None)
            with suppress(WriteError):  # the artefact is stored, and nothing depends on its record
                self.write_document(made_key(name), dump_made(seconds))
        for shard_folder in shard_folders:
            self.delete(shard_folder.name)
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
                        f"out of memory on {self.device} with a batch of {self.batch_size} texts; give a smaller "
                        "batch size, or auto, or shorter texts"
                    ) from error
            # Outside the handler, which keeps the tensors of the failed attempt.
            self.batch_size //= 2
            free_cached_memory(torch.device(self.device))
            warnings.warn(f"out of memory; continuing with a batch size of {self.batch_size}", stacklevel=2)

    def failure_file(self, name: str) -> Path:
        """Where the traceback of the recipe with this artefact name is written; removed when it succeeds."""
        return self.root / ".failures" / f"{name}.txt"

    def write_failure(self, name: str, text: str) -> Path:
        """Write the traceback of a recipe, behind a URL there too; its file on this machine."""
        file = self.failure_file(name)
        text = text.encode("utf-8", "backslashreplace").decode()
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

    def read_document(self, name: str) -> bytes | None:
        """A small file beside the artefacts, for instance `.audits/state.json`; None if it cannot be read."""
        if self.store is not None:
            return self.store.read(name)
        try:
            return (self.root / name).read_bytes()
        except OSError:
            return None

    def list_documents(self, folder: str) -> list[str]:
        """The names of the small files in a folder beside the artefacts, sorted; empty if the folder does not exist."""
        if self.store is not None:
            return self.store.names(folder)
        try:
            return sorted(path.name for path in (self.root / folder).iterdir() if path.is_file())
        except OSError:
            return []

    def write_document(self, name: str, text: str) -> None:
        """Write a small file beside the artefacts, completely or not at all."""
        if self.store is not None:
            self.store.write(name, text.encode())
            return
        with translate_write_errors(self.root):
            replace_text(self.root / name, text)

    def create_document(self, name: str, text: str) -> None:
        """Write a small file beside the artefacts unless it exists; of two writers the first one counts."""
        if self.store is not None:
            self.store.create(name, text.encode())
            return
        draft = self.root / f"{name}.{secrets.token_hex(8)}"
        with translate_write_errors(self.root):
            replace_text(draft, text)
            try:
                os.link(draft, self.root / name)
            except FileExistsError:
                pass
            except OSError:  # a filesystem without links
                if not (self.root / name).exists():
                    draft.rename(self.root / name)
            finally:
                draft.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete an artefact, if there is one, and the record of its making."""
        if self.store is not None:
            self.store.delete_artefact(name)
            self.store.delete(made_key(name))
        # Out of sight first: a folder without some of its files would be taken for a damaged artefact.
        staging = self.root / ".staging" / f"{name}.{secrets.token_hex(8)}"
        with translate_write_errors(self.root), suppress(FileNotFoundError):
            staging.parent.mkdir(exist_ok=True)
            (self.root / name).rename(staging)
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):  # as on a read-only disk
            (self.root / made_key(name)).unlink()

    def _changed_data_error(self, name: str) -> UserError:
        return UserError(f"the data changed while {name} was being made; run it again")

    def delete_leftovers(self, name: str = "") -> None:
        """Delete what killed processes left.

        Staging folders whose lock is free; shards, partial work, damaged copies and leases of complete artefacts. What
        cannot be deleted stays: finished work can be used on a read-only disk.

        Args:
            name: the artefact that this process is making, whose lock it holds.
        """
        if self.store is not None and not name:
            with suppress(WriteError):
                delete_leases(self.store)
                self._delete_stored_shards(self.store)
        for purpose in ("staging", "partial", "damaged"):
            parent = self.root / f".{purpose}"
            for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
                owner = folder.name if purpose == "partial" else folder.name.rpartition(".")[0]
                if purpose != "staging" and not is_complete(self.root / owner):
                    continue
                if owner == name:  # this process holds its lock
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                with suppress(OSError), self._lock(owner).acquire(timeout=0):  # in use, or on a read-only disk
                    shutil.rmtree(folder, ignore_errors=True)

        for folder in self.root.glob(f"{SHARD_CLASS}-*"):
            with suppress(CorruptArtefactError, WriteError):
                whole = read_entry(folder).link("whole")
                if whole is not None and is_complete(self.root / whole):
                    self.delete(folder.name)

    # Behind a URL

    def _delete_stored_shards(self, store: ObjectStore) -> None:
        """Delete the shards of artefacts that are complete: who joined them was killed before it could."""
        stored = store.artefacts()
        names = [name for name in stored if name.startswith(f"{SHARD_CLASS}-")]
        indexes: dict[str, str] = {}
        for name, written in store.read_manifests(names).items() if names else ():
            with suppress(CorruptArtefactError):
                manifest = parse_manifest(written, f"{store.url}/{name}")
                indexes[object_keys(f"{store.url}/{name}", manifest)[INDEX]] = name
        for key, content in store.read_many([*indexes]).items() if indexes else ():
            with suppress(*PARSE_ERRORS):  # damaged: whoever needs it makes it again
                if json.loads(content)["links"]["whole"][0] in stored:
                    self.delete(indexes[key])

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
                manifest = parse_manifest(content, f"{store.url}/{name}")
                if not tensors:
                    manifest.pop(TENSORS, None)
                objects |= {key: (name, file) for file, key in object_keys(f"{store.url}/{name}", manifest).items()}
                manifests[name] = manifest
            except CorruptArtefactError as damage:
                damages.append(damage)
        if not manifests:
            return damages
        with self._drafts() as drafts:
            for name in manifests:
                (drafts / name).mkdir()
                (drafts / name / MANIFEST).write_bytes(written[name])
            size = sum(stored_size(manifest) for manifest in manifests.values())
            store.download({key: drafts / name / file for key, (name, file) in objects.items()}, size)
            for name, manifest in manifests.items():
                try:
                    check_download(drafts / name, manifest, f"{store.url}/{name}")
                except CorruptArtefactError as damage:
                    damages.append(damage)
                else:
                    self._move_into_place(drafts / name, self.root / name)
        return damages

    def _download_tensors(self, store: ObjectStore, folder: Path) -> None:
        """Download the tensors of an artefact that is in the cache without them."""
        with translate_read_errors(folder):
            manifest = read_manifest(folder)
        if TENSORS in manifest and not (folder / TENSORS).exists():
            only = {TENSORS: manifest[TENSORS]}
            with self._drafts() as drafts:
                keys = object_keys(folder, only)
                store.download({key: drafts / file for file, key in keys.items()}, stored_size(only))
                check_download(drafts, only, f"{store.url}/{folder.name}")
                (drafts / TENSORS).replace(folder / TENSORS)

    @contextmanager
    def _drafts(self) -> Iterator[Path]:
        """A new folder for downloads; what a killed process left there is removed by the next one."""
        with translate_write_errors(self.root), draft_folder(self.root / ".downloads" / "artefacts") as drafts:
            yield drafts

    def _scan_store(self, store: ObjectStore) -> tuple[list[IndexEntry], list[CorruptArtefactError]]:
        """As `scan`; what is not in the cache is downloaded without its tensors, and so is what is damaged there."""
        (names, foreign), entries = store.list_manifests(), dict[str, IndexEntry]()
        damages = [
            CorruptArtefactError(f"{store.url}/manifests/{key} is not the manifest of an artefact; delete it", key)
            for key in foreign
        ]

        def read_cache(names: Iterable[str]) -> dict[str, CorruptArtefactError]:
            wrong = {}
            for name in names:
                folder = self.root / name
                try:
                    entry = read_entry(folder, tensors=False)
                    tensors, made = partial(self._fetch, folder), partial(self.read_made, name)
                    entries[name] = replace(entry, fetch_tensors=tensors, read_made=made)
                except CorruptArtefactError as damage:
                    wrong[name] = damage
            return wrong

        read_cache(names)
        absent = [name for name in names if name not in entries]
        for start in range(0, len(absent), TOGETHER):
            names_at_once = absent[start : start + TOGETHER]
            for name in names_at_once:
                shutil.rmtree(self.root / name, ignore_errors=True)
            damages += self._download(store, names_at_once, tensors=False)
        wrong = read_cache(name for name in absent if (self.root / name).exists())
        damages += wrong.values()
        return [entries[name] for name in names if name in entries], damages

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
                read_artefact(folder)
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
        files = {key: source / file for file, key in object_keys(folder, read_manifest(source)).items()}
        return store.publish(folder.name, files, written) or store.read_manifest(folder.name) == written

    def _publish(self, staging: Path, folder: Path) -> bool:
        """Store a finished artefact; False if another process was quicker, whose result is then in its place."""
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
                return False
        return self._move_into_place(staging, folder)

    def _unstored(self, folder: Path) -> Path:
        """The mark of an artefact that is in the cache only, because the store could not be reached."""
        return self.root / ".unstored" / folder.name

    def _move_into_place(self, draft: Path, folder: Path) -> bool:
        """Rename a draft; False if the folder exists."""
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            return False  # another process without our lock was quicker; its result is the same
        flush_to_disk(self.root)
        return True

    @contextmanager
    def _hold_lock(self, folder: Path, recipe: Recipe) -> Iterator[None]:
        """Hold the lock of one artefact; show progress while another process has it."""
        if any(folder == begun for begun, _ in _in_progress.get()):
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
            if self.store is None:
                yield
                return
            partial_folder = self.root / ".partial" / folder.name
            with hold_lease(Lease(self.store, folder.name, self._owner()), self.progress):
                with saved_checkpoints(self.store, folder.name, partial_folder):
                    yield
                if folder.name in self._resumable:
                    delete_checkpoints(self.store, folder.name)
        finally:
            _in_progress.reset(token)
            lock.release()

    def _owner(self) -> str:
        """A name for all processes that use this cache: they exclude each other by file locks."""
        with translate_write_errors(self.root):
            file = self.root / ".locks" / "owner"
            if not file.exists():
                replace_text(file, secrets.token_hex(8))
            return file.read_text()

    def _lock(self, name: str) -> FileLock:
        return FileLock(self.root / ".locks" / f"{name}.lock")
