"""Leases: who makes an artefact behind a URL, so that no other machine makes it at the same time.

The holder of a lease, `.locks/<artefact>/<number>`, rewrites it every few seconds. Whoever has seen one content for
`LEASE_SECONDS` of its own clock creates the next number: no clocks are compared. Leases save work that would be done
twice; correctness does not depend on them. While a lease is held, checkpoints of the unfinished work are stored in
`.partial/<artefact>`, so that another machine can resume it.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from heedful.progress import Progress
from heedful.store.atomic_write import WriteError
from heedful.store.object_store import ObjectStore

LEASE_SECONDS = 60.0
"""A lease that has not changed for so long belongs to a dead process."""
HEARTBEAT_SECONDS = 10.0
CHECKPOINT_SECONDS = 60.0
"""Unfinished work is stored this often, so that another machine can continue it."""
MAX_POLL_SECONDS = 5.0
_CHECKPOINT = re.compile(r"\w[\w.-]*-[0-9a-f]{64}\.\w+")
"""A file of unfinished work that contains the digest of its content in its name: it is complete wherever it is."""


class Repetition:
    """A thread that does something at intervals until it is stopped; failures to reach the store are passed over."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds, self._action, self._end = seconds, action, threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, after an action that has begun."""
        self._end.set()
        self._thread.join()

    def _repeat(self) -> None:
        while not self._end.wait(self._seconds):
            with suppress(WriteError, OSError):
                self._action()


class Lease:
    """The right to make one artefact, which lasts as long as its holder rewrites an object.

    Args:
        owner: the same for processes that exclude each other by other means: one that finds a lease of its own owner
            takes it over at once, because the holder is dead.
    """

    def __init__(self, store: ObjectStore, name: str, owner: str) -> None:
        self.store, self.name, self.owner = store, name, owner
        self.folder = f".locks/{name}"
        self.token = secrets.token_hex(8)
        self.number: int | None = None
        self._seen: tuple[int, bytes | None] = (-1, None)
        self._since = 0.0
        self._beats = 0
        self._heart: Repetition | None = None

    def try_to_acquire(self) -> bool:
        """Take the lease if it is free, or if its holder has given no sign of life for `LEASE_SECONDS`."""
        numbers = sorted(int(name) for name in self.store.names(self.folder) if name.isdecimal())
        if numbers:
            content, now = self.store.read(self._key(numbers[-1])), time.monotonic()
            if (numbers[-1], content) != self._seen:
                self._seen, self._since = (numbers[-1], content), now
            is_dead = content is not None and content.startswith(f"{self.owner} ".encode())
            if not is_dead and now - self._since < LEASE_SECONDS:
                return False
        number = numbers[-1] + 1 if numbers else 0
        if not self.store.create(self._key(number), self._content()):
            return False
        self.number = number
        for old in numbers:
            self.store.delete(self._key(old))
        self._heart = Repetition(HEARTBEAT_SECONDS, self._beat)
        return True

    def acquire(self, is_needless: Callable[[], bool]) -> None:
        """Wait for the lease, or until it is needless; polls ever less often, at irregular intervals."""
        delay = MAX_POLL_SECONDS / 50
        while not self.try_to_acquire() and not is_needless():
            time.sleep(delay * (0.5 + secrets.randbelow(1000) / 1000))
            delay = min(delay * 1.5, MAX_POLL_SECONDS)

    def release(self) -> None:
        """Give the lease back."""
        if self._heart is not None and self.number is not None:
            self._heart.stop()
            with suppress(WriteError):  # it expires
                self.store.delete(self._key(self.number))

    def _beat(self) -> None:
        assert self.number is not None
        self._beats += 1
        self.store.write(self._key(self.number), self._content())

    def _content(self) -> bytes:
        return f"{self.owner} {self.token} {self._beats}".encode()

    def _key(self, number: int) -> str:
        return f"{self.folder}/{number}"


@contextmanager
def hold_lease(lease: Lease, progress: Progress) -> Iterator[None]:
    """Hold a lease, or proceed without it once its artefact exists; show progress while another machine has it."""
    try:
        if not lease.try_to_acquire():
            with progress.task(f"waiting for another machine that makes {lease.name}", 1) as step:
                lease.acquire(lambda: lease.store.read_manifest(lease.name) is not None)
                step()
        yield
    finally:
        lease.release()


def delete_leases(store: ObjectStore) -> None:
    """Delete the leases of artefacts that are complete: their holders were killed."""
    for name in store.names(".locks"):
        if store.is_known(name):
            for number in store.names(f".locks/{name}"):
                store.delete(f".locks/{name}/{number}")


@contextmanager
def saved_checkpoints(store: ObjectStore, name: str, folder: Path) -> Iterator[None]:
    """Store the checkpoints of unfinished work in a folder at intervals."""
    saver = Repetition(CHECKPOINT_SECONDS, partial(store_checkpoints, store, name, folder))
    try:
        yield
    finally:
        saver.stop()


def store_checkpoints(store: ObjectStore, name: str, folder: Path) -> None:
    """Store the checkpoints of unfinished work behind the URL, in place of earlier ones."""
    stored = _checkpoint_names(store, name)
    local = {path.name: path for path in folder.glob("*") if _CHECKPOINT.fullmatch(path.name)}
    new = {f".partial/{name}/{file}": path for file, path in local.items() if file not in stored}
    store.upload(new)
    for file in stored if new else ():
        store.delete(f".partial/{name}/{file}")


def download_checkpoints(store: ObjectStore, name: str, folder: Path) -> None:
    """Download the checkpoints of unfinished work into an empty folder."""
    sizes = {file: size for file, size in store.sizes(f".partial/{name}").items() if _CHECKPOINT.fullmatch(file)}
    store.download({f".partial/{name}/{file}": folder / file for file in sizes}, sum(sizes.values()))


def delete_checkpoints(store: ObjectStore, name: str) -> None:
    """Delete the checkpoints of work that is finished."""
    for file in _checkpoint_names(store, name):
        store.delete(f".partial/{name}/{file}")


def _checkpoint_names(store: ObjectStore, name: str) -> list[str]:
    return [*filter(_CHECKPOINT.fullmatch, store.names(f".partial/{name}"))]
