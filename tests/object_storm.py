"""Several machines make the same artefacts behind one URL and are killed at random moments: nothing may be lost.

`python -m tests.object_storm --moments 50` uses a folder with the rules of an object store (no rename, creation on
condition); `--s3` a server for S3 at AWS_ENDPOINT_URL. In each round three processes with caches of their own make the
same artefacts, each is killed after a random time, and three others go on. Then every artefact must exist once, with
the bytes of a run on one machine. One process imports once and forks, so that a hundred rounds are quick.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from heedful.store import leases, object_store
from heedful.store.object_store import ObjectStore
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from tests.kill_points import Steps, Whole, ending, in_child

MACHINES = 3
BUCKET = "storm"


class ObjectFolder(LocalFileSystem):  # type: ignore[misc]
    """Files with the rules of an object store: they appear whole, and creation on condition is exclusive."""

    protocol = "objects"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("objects://")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        """Store an object."""
        draft = self._draft(path)
        draft.write_bytes(value)
        self._finish(draft, path, mode)

    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: object) -> None:
        """Store a file as an object."""
        draft = self._draft(rpath)
        draft.write_bytes(Path(lpath).read_bytes())
        self._finish(draft, rpath, mode)

    def _draft(self, path: str) -> Path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).parent / f".draft-{secrets.token_hex(8)}"

    def _finish(self, draft: Path, path: str, mode: str) -> None:
        try:
            os.link(draft, path) if mode == "create" else os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def ls(self, path: str, detail: bool = False, **_: object) -> list[object]:  # noqa: FBT001
        """The objects in a folder; a real store shows none that are not complete."""
        found = [each for each in super().ls(path, detail=False) if "/.draft-" not in each]
        return [{"name": each, "size": os.path.getsize(each)} for each in found] if detail else found


fsspec.register_implementation("objects", ObjectFolder, clobber=True)
object_store.SCHEMES["objects"] = ""


@dataclass(frozen=True)
class Round:
    """One race for the artefacts of some recipes behind a URL."""

    url: str
    caches: Path
    recipes: tuple[Recipe, ...]

    def make_all(self, machine: str, seed: int) -> None:
        """Make all artefacts in an order of this machine's own."""
        os.environ["HEEDFUL_CACHE"] = str(self.caches / machine)
        workspace = Workspace(self.url, data_dir=self.caches)
        order = [*self.recipes]
        random.Random(seed).shuffle(order)
        for recipe in order:
            workspace.get(recipe)


def manifests(workspace: Workspace) -> Iterator[tuple[str, str]]:
    """Name and manifest of every artefact, read from its bytes and verified."""
    for entry in workspace.entries():
        entry.load()
        yield entry.name, (entry.path / "manifest.json").read_text()


def storm(address: str, folder: Path, moments: int, seed: int) -> dict[str, object]:
    """Disturb rounds until there were so many moments; how it ended."""
    chance = random.Random(seed)
    parts = tuple(Steps(count, 1000) for count in range(1, 5))
    recipes: tuple[Recipe, ...] = (*parts, Whole(parts[:2]), Whole(parts))
    here = Workspace(folder / "local", data_dir=folder)
    for recipe in recipes:
        here.get(recipe)
    expected = dict(manifests(here))
    killed = rounds = faults = 0
    seconds = 2.0  # of an undisturbed round, as far as it is known
    while killed < moments:
        race = Round(f"{address}/round-{rounds}", folder / f"caches-{rounds}", recipes)
        begin = time.monotonic()
        children = [
            in_child(partial(race.make_all, str(machine), chance.randrange(10**6))) for machine in range(MACHINES)
        ]
        ends = sorted((chance.uniform(0, seconds), child) for child in children)
        for moment, child in ends:
            time.sleep(max(0.0, begin + moment - time.monotonic()))
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            killed += ending(child) == -signal.SIGKILL
        begin = time.monotonic()
        # One machine goes on with the cache of a killed process, the others with none.
        names = ("0", "new-1", "new-2")
        others = [in_child(partial(race.make_all, name, chance.randrange(10**6))) for name in names]
        faults += sum(ending(child) != 0 for child in others)
        seconds = min(seconds, time.monotonic() - begin)
        child = in_child(partial(check_round, race, expected))
        faults += ending(child) != 0
        rounds += 1
    return {"moments": killed, "rounds": rounds, "faults": faults, "artefacts": len(expected)}


def check_round(race: Round, expected: dict[str, str]) -> None:
    """Every artefact exists once behind the URL, with the bytes of the run on one machine; no lease is left."""
    os.environ["HEEDFUL_CACHE"] = str(race.caches / "check")
    found = dict(manifests(Workspace(race.url, data_dir=race.caches)))
    assert found == expected, (sorted(found), sorted(expected))
    store = ObjectStore(race.url)
    for name, manifest in expected.items():
        files = {f"{digest[:16]}-{file}" for file, (_, digest) in json.loads(manifest).items()}
        assert {*store.names(f"objects/{name}")} == files
    Workspace(race.url, data_dir=race.caches).delete_leftovers()


def main() -> None:
    """Run a storm and print its figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--s3", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Flushing protects against a power cut, not against a kill, and would take most of the time.
    setattr(os, "fsync", lambda descriptor: None)  # noqa: B010
    leases.LEASE_SECONDS, leases.HEARTBEAT_SECONDS, leases.MAX_POLL_SECONDS = 0.2, 0.05, 0.05
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address = f"s3://{BUCKET}/{secrets.token_hex(4)}" if given.s3 else f"objects://{folder / 'objects'}"
        if given.s3:
            assert ending(in_child(lambda: fsspec.filesystem("s3").mkdir(BUCKET))) == 0
        begin = time.monotonic()
        figures = storm(address, folder, given.moments, given.seed)
        sys.stdout.write(json.dumps({**figures, "seconds": round(time.monotonic() - begin, 1)}) + "\n")


if __name__ == "__main__":
    main()
