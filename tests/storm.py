"""`make storm`: the real command, killed at random moments, with damaged files and changed data, loses nothing.

    python -m tests.storm --moments 1000 --seed 0

Each round starts a new workspace, kills the command a few times and lets it finish. After every moment each artefact
must equal that of an undisturbed run byte for byte, all that was finished must still be there and no process may be
left; after the last run all artefacts and the report must equal the undisturbed ones. Most commands are forks of this
process, which has imported everything; every tenth round starts the command anew, with a pool of two workers.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch

from heedful import cli
from heedful.store.workspace import CorruptArtefactError, CorruptArtefactWarning, IndexEntry, Workspace

RECIPES = """
from dataclasses import replace

from heedful.data.table import Table
from heedful.trials import Performance, Permutation
from tests.tiny import subject

MODELS = [replace(subject(seed=seed, epochs=6), corpus=Table("texts.csv")) for seed in range(2)]

def recipes():
    return [trial for model in MODELS for trial in (Performance(model), Permutation(model, permutations=20))]
"""
THINGS = ("soup", "room", "staff", "view", "bed", "lift", "breakfast", "garden", "bath", "key")
WORDS = {"pleased": ("was lovely", "was a delight"), "cross": ("was broken", "was a nuisance")}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
POOL_EVERY = 10
MAX_KILLS = 4
SECONDS_TO_END = 60.0
SECONDS_TO_FINISH = 600.0
HIDDEN = (".staging", ".partial", ".damaged", ".failures")

Files = dict[str, str]
"""SHA-256 by file name."""


def texts(*, changed: bool) -> str:
    """The table of the runs; the changed one has its classes swapped."""
    moods = list(WORDS)[:: -1 if changed else 1]
    rows = [
        f"the {thing} {said},{mood}"
        for mood, words in zip(moods, WORDS.values(), strict=True)
        for said in words
        for thing in THINGS
    ]
    return "\n".join(["text,label", *rows]) + "\n"


def read_files(folder: Path) -> Files:
    """All files of a folder with their hashes; a file that vanishes meanwhile is left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = sha256(path.read_bytes()).hexdigest()
    return found


def artefacts(root: Path) -> dict[str, Files]:
    """The files of every artefact of a workspace by its name."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return {folder.name: read_files(folder) for folder in folders if not folder.name.startswith(".")}


def living(group: int) -> list[int]:
    """Process ids of a group, zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@dataclass
class Command:
    """`heedful run` and `heedful report` under way in a process group of its own."""

    process: int
    folder: Path

    @classmethod
    def start(cls, folder: Path, *, pool: bool) -> Command:
        lines = cls.lines(pool=pool)
        if not pool:
            return cls(cls._fork(folder, lines), folder)
        script = f"import sys; from tests.storm import run_commands; sys.exit(run_commands({lines!r}))"
        with (folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", script],
                cwd=folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, (".", "src")))},
            )
        process.returncode = 0  # this script waits for it itself
        return cls(process.pid, folder)

    @staticmethod
    def lines(*, pool: bool) -> list[list[str]]:
        """The arguments of `heedful run` and of `heedful report`."""
        run = ["run", "recipes.py", "-w", "work", "-q", "--json", "out.json"]
        where = ["--where", "pool", "--workers", "2"] if pool else ["--where", "here"]
        return [[*run, *where], ["report", "-w", "work", "-q"]]

    @staticmethod
    def _fork(folder: Path, lines: list[list[str]]) -> int:
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = run_commands(lines)
        except KeyboardInterrupt:
            code = 130
        finally:
            os._exit(code)

    def ended(self, seconds: float) -> int | None:
        """The exit code, or minus the signal, if the command ends within this time."""
        with_end = os.pidfd_open(self.process)
        try:
            select.select([with_end], [], [], max(0.0, seconds))
            done, status = os.waitpid(self.process, os.WNOHANG)
        finally:
            os.close(with_end)
        return os.waitstatus_to_exitcode(status) if done else None

    def workers(self) -> list[int]:
        """The other processes of its group, multiprocessing's resource tracker left out."""
        found = []
        for process in living(self.process):
            try:
                words = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                continue
            if process != self.process and b"resource_tracker" not in words:
                found.append(process)
        return found


def run_commands(lines: list[list[str]]) -> int:
    """Run command lines of heedful one after the other; the first exit code that is not 0."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for words in lines:
        try:
            cli.app(words)
        except SystemExit as end:
            if end.code:
                return int(end.code)
    return 0


@dataclass
class Storm:
    """All rounds: what was done and what went wrong."""

    root: Path
    moments: int
    chance: random.Random
    pool_every: int = POOL_EVERY
    figures: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    expected: dict[str, Files] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    report: Files = field(default_factory=dict)
    seconds: dict[bool, float] = field(default_factory=dict)

    def run(self) -> None:
        """Rounds until there were enough moments."""
        self._undisturbed()
        number = 0
        while self.figures["moments"] < self.moments:
            number += 1
            _Round(self, self._new_folder(f"round-{number}"), pool=number % self.pool_every == 0).run()
            self.figures["rounds"] += 1
            shutil.rmtree(self.root / f"round-{number}")

    def fault(self, words: str) -> None:
        """Something that must not happen."""
        self.faults.append(words)
        sys.stdout.write(f"FAULT: {words}\n")

    def _new_folder(self, name: str, *, changed: bool = False) -> Path:
        folder = self.root / name
        folder.mkdir()
        (folder / "recipes.py").write_text(RECIPES)
        (folder / "texts.csv").write_text(texts(changed=changed))
        return folder

    def _import(self) -> None:
        """Run the commands in this process, so that the forks have imported everything."""
        here, folder = Path.cwd(), self._new_folder("import")
        os.chdir(folder)
        try:
            if code := run_commands(Command.lines(pool=False)):
                raise SystemExit(f"the first run ended with {code}")
        finally:
            os.chdir(here)

    def _undisturbed(self) -> None:
        """What the runs must give, on the first table and on the changed one; how long they take."""
        self._import()
        for changed, pool in (
            (True, False),
            (False, False),
            *([(False, True)] if self.pool_every <= self.moments else []),
        ):
            folder = self._new_folder(f"whole-{changed}-{pool}", changed=changed)
            start = time.perf_counter()
            code = Command.start(folder, pool=pool).ended(SECONDS_TO_FINISH)
            if code != 0:
                raise SystemExit(f"the undisturbed run ended with {code}: {(folder / 'output.txt').read_text()}")
            self.seconds[pool] = time.perf_counter() - start
            found = artefacts(folder / "work")
            if not changed and self.wanted and found != {name: self.expected[name] for name in self.wanted}:
                self.fault("the pool's artefacts differ from those made here")
            self.expected |= found
            if not changed:
                self.wanted, self.report = set(found), read_files(folder / "report")


@dataclass
class _Round:
    storm: Storm
    folder: Path
    pool: bool
    finished: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    changed: bool = False

    def run(self) -> None:
        """Disturb the command a few times, then let it finish."""
        storm, chance = self.storm, self.storm.chance
        for _ in range(chance.randint(1, MAX_KILLS)):
            if storm.figures["moments"] >= storm.moments or self._disturb() == 0:
                break
        self._write_table(changed=False)
        self._finish()

    def _disturb(self) -> int | None:
        """Start the command, send signals until it ends, look at what is left; its exit code."""
        storm, chance = self.storm, self.storm.chance
        command = Command.start(self.folder, pool=self.pool)
        code = None
        while code is None:
            code = command.ended(chance.uniform(0.0, storm.seconds[self.pool]))
            if code is not None:
                break
            if chance.random() < 0.1:
                self._write_table(changed=not self.changed)
                storm.figures["data changed under way"] += 1
                continue
            workers = command.workers()
            victim = chance.choice(workers) if workers and chance.random() < 0.5 else command.process
            sent = chance.choice(SIGNALS)
            try:
                os.kill(victim, sent)
            except ProcessLookupError:
                continue
            who = "driver" if victim == command.process else "worker"
            storm.figures["moments"] += 1
            storm.figures[f"{sent.name} to the {who}"] += 1
            if who == "driver":
                code = command.ended(SECONDS_TO_END)
                if code is None:
                    storm.fault(f"{self.folder.name}: alive {SECONDS_TO_END:.0f} s after {sent.name}")
                    os.kill(command.process, signal.SIGKILL)
                    code = command.ended(SECONDS_TO_END)
        self._check_processes(command)
        self._check_artefacts()
        if chance.random() < 0.3:
            self._flip_bit()
        return code

    def _write_table(self, *, changed: bool) -> None:
        if changed != self.changed:
            (self.folder / "new.csv").write_text(texts(changed=changed))
            os.replace(self.folder / "new.csv", self.folder / "texts.csv")
            self.changed = changed

    def _check_processes(self, command: Command) -> None:
        deadline = time.monotonic() + SECONDS_TO_END
        while (left := living(command.process)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            self.storm.fault(f"{self.folder.name}: {len(left)} processes left")
            os.killpg(command.process, signal.SIGKILL)

    def _check_artefacts(self) -> None:
        """Every artefact is complete and equals the undisturbed one; none that was finished has gone."""
        found = artefacts(self.folder / "work")
        for name, files in found.items():
            if files == self.storm.expected.get(name):
                self.damaged.discard(name)
                self.storm.figures["artefacts compared"] += 1
            elif name not in self.damaged:
                self.storm.fault(f"{self.folder.name}: {name} is incomplete or differs")
        for name in self.finished - found.keys() - self.damaged:
            self.storm.fault(f"{self.folder.name}: {name} is lost")
        self.finished |= found.keys()

    def _flip_bit(self) -> None:
        """Damage one bit of an artefact or of a checkpoint."""
        work = self.folder / "work"
        kinds = {
            "checkpoints": list(work.glob(".partial/*/*")),
            "artefacts": [path for name in self.finished - self.damaged for path in (work / name).glob("*")],
        }
        kind = self.storm.chance.choice([kind for kind, paths in kinds.items() if paths] or [""])
        if not kind:
            return
        path = self.storm.chance.choice(sorted(kinds[kind]))
        content = bytearray(path.read_bytes())
        place = self.storm.chance.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        if kind == "artefacts":
            self.damaged.add(path.parent.name)
        self.storm.figures[f"bits flipped in {kind}"] += 1

    def _finish(self) -> None:
        """Let the command finish; everything is there, nothing else, and damage that no one has read is known."""
        storm, work = self.storm, self.folder / "work"
        for _ in range(3):
            command = Command.start(self.folder, pool=self.pool)
            code = command.ended(SECONDS_TO_FINISH)
            self._check_processes(command)
            if code != 0:
                storm.fault(f"{self.folder.name}: the last run ended with {code}: {self._last_lines()}")
                return
            self._check_artefacts()
            unread = [name for name in self.damaged if (work / name).exists()]
            if not unread:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CorruptArtefactWarning)
                loaded = [each.name for each in Workspace(work).entries() if each.name in unread and _loads(each)]
            for name in loaded:
                storm.fault(f"{self.folder.name}: the damage of {name} is not seen")
            for name in unread:
                storm.figures["damaged artefacts that no one had read"] += 1
                shutil.rmtree(work / name)
        found = artefacts(work)
        if missing := storm.wanted - found.keys():
            storm.fault(f"{self.folder.name}: missing at the end: {', '.join(missing)}")
        left = [
            each
            for hidden in HIDDEN
            for each in self._listed(work / hidden)
            if each in storm.wanted or hidden != ".partial"
        ]
        if left:
            storm.fault(f"{self.folder.name}: left behind: {', '.join(left)}")
        if found.keys() == storm.wanted and read_files(self.folder / "report") != storm.report:
            storm.fault(f"{self.folder.name}: the report differs")
        if "Traceback" in (self.folder / "output.txt").read_text():
            storm.fault(f"{self.folder.name}: traceback: {self._last_lines()}")

    def _listed(self, folder: Path) -> Iterator[str]:
        yield from (each.name.partition(".")[0] for each in folder.iterdir()) if folder.is_dir() else ()

    def _last_lines(self) -> str:
        return " | ".join((self.folder / "output.txt").read_text().splitlines()[-4:])


def _loads(entry: IndexEntry) -> bool:
    try:
        entry.load()
    except CorruptArtefactError:
        return False
    return True


def main() -> int:
    """Run the storm, print its figures; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pool-every", type=int, default=POOL_EVERY, help="every so many rounds use a pool")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    root = Path(tempfile.mkdtemp(prefix="heedful-storm-"))
    storm = Storm(root, given.moments, random.Random(given.seed), given.pool_every)
    try:
        storm.run()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    storm.figures["seconds"] = round(time.perf_counter() - start)
    storm.figures["faults"] = len(storm.faults)
    width = max(map(len, storm.figures))
    sys.stdout.writelines(f"{name:{width}}  {count:>7}\n" for name, count in storm.figures.items())
    return 1 if storm.faults else 0


if __name__ == "__main__":
    sys.exit(main())
