"""A workspace behind a URL: artefacts as objects of S3, Google Cloud Storage or another store of `SCHEMES`.

Objects are never renamed. The files of an artefact are objects whose names contain a digest of their
content (`objects/<artefact>/<digest>-table.parquet`); when all are stored, its manifest (`manifests/<artefact>.json`)
is created on the condition that there is none. An artefact exists if and only if its manifest does, and of two writers
the second takes what the first has stored. Where a filesystem has no conditional creation, two writers at the same
moment may both store a manifest: the later one stays, and the objects of both are there. What folders
and stores have in common is in `workspace`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.exceptions import FSTimeoutError

from heedful.store.atomic_write import WriteError
from heedful.types import UserError, user_path

_T = TypeVar("_T")
LISTING_SECONDS = 30.0
MAX_SINGLE_QUESTIONS = 20
"""More questions for artefacts within `LISTING_SECONDS` are answered by one listing of all."""
TOGETHER = 200
"""Objects that are asked for in one go; asynchronous filesystems fetch them at the same time."""
CONFLICT_DELAYS = (0.1, 0.4)
"""Seconds before retrying a conditional creation that failed although the object does not exist."""
DIGEST_CHARACTERS = 16
MAX_SHOWN = 100
"""Characters of a place that a message repeats."""
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "", "abfs": "", "memory": ""}
"""Protocols that a workspace may have, each with the extra of this package that it needs.

Others of fsspec are caches in front of a store, read-only, or show an object before it is whole.
"""
ANSWER_SECONDS = 30.0
"""A store that has not answered a request for so long, repetitions included, is out of reach."""
LISTING_ANSWER_SECONDS = 60.0
"""The same for a listing, which is one request for each thousand objects."""
SLOW_LINE = 16_000
"""Bytes in a second, below which a store is out of reach as well."""
MAX_TRANSFER_SECONDS = 7 * 24 * 3600.0
RECOVERY_SECONDS = 30.0
"""For so long nothing more is asked of a store that was out of reach: cleaning up does not wait for it again."""
OPTIONS = {"s3": {"max_concurrency": 2}}
"""Options of the filesystem of an extra. Parts of 50 MB of one file that are in memory at a time: by default 10."""
ARTEFACT_NAME = re.compile(r"\w+-[0-9a-f]{12}")
_LOCAL = ("file", "local")
_BROKEN_URL = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)|(s3|gs|gcs|memory)//(.*)", re.IGNORECASE | re.DOTALL)
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)
_SECRETS = re.compile(r"(?<=//)[^/@\s]+@|\?[^\s'\"]+")
"""User names and passwords, and queries, in the addresses that an error message may contain."""


def is_url(text: str) -> bool:
    """Whether a text is the URL of an object store and not a path; `file://` is one.

    >>> is_url("s3://bucket/experiments"), is_url("C:/experiments"), is_url("file:///experiments")
    (True, False, False)
    """
    match = _URL.match(text)
    return match is not None and match[1].lower() not in _LOCAL


def local_path(workspace: Path | str) -> Path:
    """The folder that a path or a `file://` URL names; UserError for any other URL, and for one with a slip.

    >>> local_path("file:///experiments").as_posix(), local_path("C:/experiments").as_posix()
    ('/experiments', 'C:/experiments')
    """
    match, broken = _URL.match(str(workspace)), _BROKEN_URL.fullmatch(str(workspace))
    if broken is not None and isinstance(workspace, Path):
        raise UserError(f"{workspace} is a URL; pass it as a string, not as a Path")
    if broken is not None:
        raise UserError(
            f"{workspace} is not a valid URL; write {broken[1] or broken[3]}://{broken[2] or broken[4]}, or "
            f"./{workspace} for a folder"
        )
    scheme = _SCHEME.match(workspace) if match is None and isinstance(workspace, str) else None
    if scheme is not None and ("://" in str(workspace) or scheme[1].lower() in fsspec.available_protocols()):
        raise _unsupported_error(str(workspace), scheme[1])
    folder = workspace if match is None else match[2]
    if folder == "":
        raise UserError("the name of the workspace is empty; give a folder, or . for this one")
    found_path = user_path(folder)
    try:
        str(found_path.absolute()).encode()
    except UnicodeEncodeError as error:  # not every format of a file can be opened there
        raise UserError(f"{str(workspace)!a}: the name of the workspace is not UTF-8; choose another folder") from error
    return found_path


def _unsupported_error(workspace: str, scheme: str) -> UserError:
    shown = workspace[:MAX_SHOWN]
    return UserError(
        f"{shown}: a workspace cannot have the scheme {scheme!r}; give a folder or a URL such as s3://bucket/folder "
        f"(schemes: {', '.join(SCHEMES)}), or ./{shown} for a folder of this name"
    )


class ObjectStore:
    """The objects of one workspace; every failure is a `WriteError` of one line, without credentials."""

    def __init__(self, url: str) -> None:
        self.url = _checked_url(url)
        protocol = self.url.partition("://")[0]
        try:
            options = OPTIONS.get(SCHEMES[protocol], {})
            self._files, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **options)
        except ImportError as error:
            extra = SCHEMES[protocol]
            remedy = f"pip install 'heedful[{extra}]'" if extra else f"install the package for it ({error})"
            raise UserError(f"{self.url}: the package for {protocol}:// is not installed: {remedy}") from error
        except Exception as error:  # the libraries behind fsspec have exceptions of their own
            raise self._error("open", error) from error
        self._root = self._root.rstrip("/")
        self._known: set[str] = set()
        self._listed, self._questions, self._asked = -LISTING_SECONDS, 0, -LISTING_SECONDS
        self._out_of_reach_until = -math.inf

    # Objects

    def read(self, key: str) -> bytes | None:
        """The content of an object; None if there is none."""
        with self._one_line_errors("read"):
            try:
                content: bytes = self._wait(partial(self._files.cat_file, self._path(key)))
            except (FileNotFoundError, IsADirectoryError):
                return None
            return content

    def read_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The contents of those objects that exist, fetched at the same time where the filesystem can do that."""
        paths = {self._path(key): key for key in keys}
        contents: dict[str, bytes] = {}
        for start in range(0, len(paths), TOGETHER):
            with self._one_line_errors("read"):
                answers = self._wait(partial(self._files.cat, [*paths][start : start + TOGETHER], on_error="return"))
                for path, answer in answers.items():
                    if isinstance(answer, bytes):
                        contents[paths[path]] = answer
                    elif not isinstance(answer, FileNotFoundError):
                        raise answer
        return contents

    def write(self, key: str, content: bytes) -> None:
        """Store an object, in place of an earlier one."""
        with self._one_line_errors("write in"):
            self._wait(partial(self._files.pipe_file, self._path(key), content), len(content))

    def create(self, key: str, content: bytes) -> bool:
        """Store an object if there is none of its name; whether that was so."""
        with self._one_line_errors("write in"):
            for delay in (*CONFLICT_DELAYS, None):
                try:
                    self._wait(partial(self._files.pipe_file, self._path(key), content, mode="create"), len(content))
                except FileExistsError:
                    return False
                except OSError:  # some servers have another name for it, or refuse two requests at once
                    if self.read(key) is not None:
                        return False
                    if delay is None:
                        raise
                    time.sleep(delay)
                else:
                    return True
        raise AssertionError  # the last attempt has ended

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        with self._one_line_errors("write in"), suppress(FileNotFoundError):
            self._wait(partial(self._files.rm_file, self._path(key)))

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, sorted: one request for each thousand."""
        return sorted(path.rpartition("/")[2] for path in self._list(folder, detail=False))

    def sizes(self, folder: str) -> dict[str, int]:
        """The sizes of the objects in a folder by their names."""
        return {entry["name"].rpartition("/")[2]: entry["size"] or 0 for entry in self._list(folder, detail=True)}

    def _list(self, folder: str, *, detail: bool) -> list[Any]:
        with self._one_line_errors("read"):
            try:
                listing = partial(self._files.ls, self._path(folder), detail=detail)
                answer: list[Any] = self._wait(listing, seconds=LISTING_ANSWER_SECONDS)
            except FileNotFoundError:
                return []
        return answer

    def download(self, files: Mapping[str, Path], size: int) -> None:
        """Download objects into files, many at once; an object that does not exist leaves no file.

        Args:
            size: bytes of all of them together, which decide how long it may take.
        """
        pairs = [(self._path(key), str(path)) for key, path in files.items()]
        for start in range(0, len(pairs), TOGETHER):
            pairs_at_once = pairs[start : start + TOGETHER]
            with self._one_line_errors("read"):
                try:
                    remotes, locals_ = ([*side] for side in zip(*pairs_at_once, strict=True))
                    self._wait(partial(self._files.get, remotes, locals_), size)
                except FileNotFoundError:
                    for remote, local in pairs_at_once:
                        try:
                            self._wait(partial(self._files.get_file, remote, local), size)
                        except FileNotFoundError:
                            Path(local).unlink(missing_ok=True)

    def upload(self, files: Mapping[str, Path]) -> None:
        """Store files as objects, many at once."""
        with self._one_line_errors("write in"):
            put = partial(self._files.put, [str(path) for path in files.values()], [self._path(key) for key in files])
            self._wait(put, sum(path.stat().st_size for path in files.values()))

    # Artefacts

    def has(self, name: str) -> bool:
        """Whether there is a manifest of this artefact.

        A few questions are one request each. Many are answered by a listing, which does not see what others store in
        the next seconds (`LISTING_SECONDS`).
        """
        if name in self._known:
            return True
        now = time.monotonic()
        if now - self._listed < LISTING_SECONDS:
            return False
        if now - self._asked >= LISTING_SECONDS:
            self._questions, self._asked = 0, now
        self._questions += 1
        if self._questions > MAX_SINGLE_QUESTIONS:
            return name in self.artefacts()
        return self.read_manifest(name) is not None

    def is_known(self, name: str) -> bool:
        """Whether this process has seen that an artefact exists; asks nobody."""
        return name in self._known

    def artefacts(self) -> list[str]:
        """The names of all artefacts, as they are listed now."""
        return self.list_manifests()[0]

    def list_manifests(self) -> tuple[list[str], list[str]]:
        """The names of all artefacts, as they are listed now, and objects among the manifests that are none.

        Names become names of folders on this machine: nothing else than the name of an artefact may.
        """
        names_by_key = {key: key.removesuffix(".json") for key in self.names("manifests")}
        names = [name for key, name in names_by_key.items() if name != key and ARTEFACT_NAME.fullmatch(name)]
        self._known, self._listed = set(names), time.monotonic()
        return names, [key for key, name in names_by_key.items() if name not in self._known]

    def read_manifest(self, name: str) -> bytes | None:
        """The manifest of an artefact, as it is now; None if there is none."""
        content = self.read(manifest_key(name))
        (self._known.discard if content is None else self._known.add)(name)
        return content

    def read_manifests(self, names: Sequence[str]) -> dict[str, bytes]:
        """The manifests of those artefacts that exist now."""
        contents = self.read_many([manifest_key(name) for name in names])
        manifests = {name: contents[manifest_key(name)] for name in names if manifest_key(name) in contents}
        self._known = (self._known - {*names}) | manifests.keys()
        return manifests

    def publish(self, name: str, files: Mapping[str, Path], manifest: bytes) -> bool:
        """Store the objects of an artefact, then its manifest; False if another process was quicker with that."""
        self.upload(files)
        is_first = self.create(manifest_key(name), manifest)
        self._known.add(name)
        return is_first

    def withdraw(self, name: str) -> None:
        """Delete the manifest of a damaged artefact, which is made again."""
        self._known.discard(name)
        self.delete(manifest_key(name))

    def delete_artefact(self, name: str) -> None:
        """Delete an artefact, if there is one: its manifest first."""
        if self.read_manifest(name) is not None:
            self.withdraw(name)
            for file in self.names(f"objects/{name}"):
                self.delete(f"objects/{name}/{file}")

    def check_writable(self) -> None:
        """`WriteError` unless an object can be stored and deleted."""
        key = f".locks/check-{secrets.token_hex(8)}"
        self.write(key, b"")
        self.delete(key)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @property
    def is_in_memory(self) -> bool:
        """Whether other processes see other objects under the same URL."""
        return self.url.startswith("memory://")

    def _wait(self, request: Callable[..., _T], size: int = 0, seconds: float = ANSWER_SECONDS) -> _T:
        """The answer to a request; `WriteError` if it takes too long for `size` bytes.

        The libraries behind fsspec notice a server that sends nothing, after a while and several attempts, but not one
        that sends a byte now and then. Filesystems in this process answer at once and know no timeout.
        """
        if not self._files.async_impl:
            return request()
        limit = min(seconds + max(size, 0) // SLOW_LINE, MAX_TRANSFER_SECONDS)
        try:
            if time.monotonic() < self._out_of_reach_until:
                raise FSTimeoutError
            return request(timeout=limit)
        except FSTimeoutError:
            now = time.monotonic()
            if now >= self._out_of_reach_until:
                self._out_of_reach_until = now + RECOVERY_SECONDS
            raise self._error("reach", TimeoutError(f"no answer within {limit:.0f} seconds")) from None

    @contextmanager
    def _one_line_errors(self, verb: str) -> Iterator[None]:
        """Turn whatever a filesystem raises into a `WriteError`."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # the libraries behind fsspec have exceptions of their own
            raise self._error(verb, error) from error

    def _error(self, verb: str, error: Exception) -> WriteError:
        reason = _SECRETS.sub("", " ".join(str(error).split())) or type(error).__name__
        return WriteError(
            f"cannot {verb} the workspace {self.url}: {reason.rstrip('.')}; check its address, your credentials and "
            "the network"
        )


def manifest_key(name: str) -> str:
    """The name of the object that says that an artefact exists, and of what it consists."""
    return f"manifests/{name}.json"


def object_key(name: str, file: str, digest: str) -> str:
    """The name of the object of one file of an artefact; another content has another name."""
    return f"objects/{name}/{digest[:DIGEST_CHARACTERS]}-{file}"


def _checked_url(url: str) -> str:
    """The URL without a slash at its end; UserError for one that could hold credentials or names no folder."""
    match = _URL.match(url)
    assert match is not None
    protocol, rest = match[1].lower(), match[2].rstrip("/")
    shown = f"{protocol}://{_SECRETS.sub('', f'//{rest}')[2:]}"
    if protocol not in SCHEMES:
        raise _unsupported_error(shown, protocol)
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise UserError(
            f"{shown}: a URL of a workspace is written down in several places and must not hold a user name, a "
            "password or a query; give credentials in the environment or in the files of the provider"
        )
    if {*rest} & {*"*[]{}"} or "//" in rest or any(segment in (".", "..") for segment in rest.split("/")):
        raise UserError(f"{shown}: write the URL of a workspace without *, [, ], {{, }}, // and parts such as ..")
    if not rest:
        raise UserError(f"{shown}: the bucket is missing; write for instance {protocol}://bucket/experiments")
    return f"{protocol}://{rest}"


def cache_folder() -> Path:
    """Where heedful keeps downloads: `HEEDFUL_CACHE`, else `heedful` in the user's cache folder."""
    if folder := os.environ.get("HEEDFUL_CACHE"):
        return user_path(folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    return user_path(cache or "~/.cache") / "heedful"


def workspace_cache(url: str) -> Path:
    """The folder with the local copy of a workspace behind a URL."""
    readable = re.sub(r"[^A-Za-z0-9-]+", "-", url.rpartition("/")[2])[:40]
    return cache_folder() / "workspaces" / f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
