"""`make storm`: the real commands, disturbed at random moments, lose nothing.

    python -m tests.storm --moments 1000 --seed 0

Each round starts a new folder, disturbs a command a few times and lets it finish. The rounds go through `heedful run`
with a report, `learn`, `attefa`, `report` and `fetch`, and through four kinds of disturbance: signals to one process;
two to four processes at work in one folder, of which some are killed; a small disk that is full or becomes read-only;
and a pool of two workers, started anew, where signals go to the driver, to a worker or, as Ctrl-C does, to all of them.
Between them bits of artefacts and checkpoints are flipped and the data is changed under way.

After every moment each artefact must equal that of an undisturbed run byte for byte, all that was finished must still
be there, no output may be half, no process may be left; the exit code and the output must be as documented, without a
traceback. After the last run the whole folder must equal the undisturbed one. Commands are forks of this process, which
has imported everything, except those with a pool. Trainings are short: their length is no part of the test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from heedful import cli, learn
from heedful.papers import paper_options
from heedful.store.artefact_files import CorruptArtefactError, CorruptArtefactWarning, IndexEntry
from heedful.store.workspace import Workspace
from tests.tiny import Sentences

RECIPES = """
from dataclasses import replace

from heedful.data.table import Table
from heedful.trials import Performance, Permutation
from tests.tiny import subject

MODELS = [replace(subject(seed=seed, epochs=4), corpus=Table("texts.csv")) for seed in range(2)]

def recipes():
    return [trial for model in MODELS for trial in (Performance(model), Permutation(model, permutations=20))]
"""
MAIN = "import sys; from heedful.cli import main; sys.exit(main())"
N_TEXTS, N_FETCHED = 40, 2000
EPOCHS = 3
"""Epochs of the students of `learn`; the trainings of `attefa` have a few more."""
POOL_EVERY = 25
MAX_KILLS = 8
MAX_SLOWNESS = 20.0
"""Seconds that a second of CPU time may take on a busy machine."""
SECONDS_TO_END = 60.0
SECONDS_TO_FINISH = 600.0
DISK_BYTES = 64 << 20
BLOCK = 4096
END_CODES = {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {128 + signal.SIGTERM, -signal.SIGTERM, 130},
    signal.SIGINT: {130, -signal.SIGINT},
}
"""The signals, and how a command may end after each: a signal ends it by itself before Python has its handlers."""

Files = dict[str, str]
"""SHA-256 by file name."""
Line = Sequence[str]
"""The arguments of one call of heedful."""


@dataclass(frozen=True)
class Job:
    """Command lines that are run one after the other in a folder.

    Args:
        reads_table: whether texts.csv may be changed under way.
        makes: whether damaged artefacts are made again, so that bits may be flipped.
    """

    name: str
    lines: tuple[Line, ...]
    reads_table: bool = True
    makes: bool = True


UNEQUAL = ("work/.locks/", "work/.made/")
"""Folders that differ between two runs: locks, and the records of when and how long artefacts were made."""
KEPT = ("-w", "work", "-q")
HERE = (*KEPT, "--json", "out.json", "--where", "here")
RUN = ("run", "recipes.py", *KEPT, "--json", "out.json")
REPORT = ("report", *KEPT)
LEARN = (
    "learn", "--teacher", "teacher", "--data", "texts.csv", "--quick", "--seeds", "1", "--audit-minutes", "0", *HERE,
)  # fmt: skip
SMALL = ("--quick", "--seeds", "1", "--bases", "1", "--embeddings", "random", "--encoder", "perceptron")
JOBS = (
    Job("run", ((*RUN, "--where", "here"), REPORT)),
    Job("learn", (LEARN,)),
    Job("attefa", (("attefa", "--data", "texts.csv", *SMALL, *HERE),)),
    Job("report", (REPORT,), reads_table=False, makes=False),
    Job("fetch", (("fetch", "sst", "--source", "saved", "-q"),), reads_table=False),
)
IN_POOL = (*RUN, "--where", "pool", "--workers", "2")


def texts(*, changed: bool) -> str:
    """The table of the runs; the changed one has its classes swapped."""
    moods = ("pleased", "cross") if changed else ("cross", "pleased")
    rows = [f"{each.parts[0]},{moods[int(each.label or 0)]}" for each in Sentences(N_TEXTS).read(Path()).train]
    return "\n".join(["text,label", *rows]) + "\n"


def read_files(folder: Path) -> Files:
    """All files of a folder with their hashes; a file that vanishes meanwhile is left out."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError, IsADirectoryError):
            hashes[path.relative_to(folder).as_posix()] = sha256(path.read_bytes()).hexdigest()
    return hashes


def artefacts(root: Path) -> dict[str, Files]:
    """The files of every artefact of a workspace by its name."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return {folder.name: read_files(folder) for folder in folders if not folder.name.startswith(".")}


def is_whole(path: Path) -> bool:
    """Whether an output file has its end."""
    if path.suffix == ".html":
        return path.read_bytes().rstrip().endswith(b"</html>")
    with suppress(ValueError):
        return path.suffix == ".json" and json.loads(path.read_bytes()) is not None
    return False


def living(group: int) -> list[int]:
    """Process ids of a group, zombies left out."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            processes.append(int(path.parent.name))
    return processes


def mount(*words: str) -> bool:
    """Call the mount command; whether it succeeded."""
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@dataclass
class Command:
    """Calls of heedful under way in a process group of their own.

    Args:
        codes: the exit codes that are in order, minus the signal where one ended it.
    """

    process: int
    output: Path
    has_workers: bool = False
    codes: set[int] = field(default_factory=lambda: {0})
    code: int | None = None

    @classmethod
    def fork(cls, folder: Path, lines: Sequence[Line], output: Path) -> Command:
        """Run the lines in a copy of this process."""
        output.write_bytes(b"")
        sys.stdout.flush()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, END_CODES.keys() - {signal.SIGKILL})
        child = os.fork()
        if child:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            return cls(child, output)
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            file = os.open(output, os.O_WRONLY)
            os.dup2(file, 1)
            os.dup2(file, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            code = run_lines(lines)
        except KeyboardInterrupt:
            code = 130
        except BaseException:  # noqa: BLE001 - what escapes from the command is shown, as Python would
            traceback.print_exc()
        finally:
            os._exit(code)

    @classmethod
    def begin(cls, folder: Path, line: Line, output: Path) -> Command:
        """Run one line in a new process."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", MAIN, *line],
                cwd=folder,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, (".", "src")))},
            )
        process.returncode = 0  # this script waits for it itself
        return cls(process.pid, output, has_workers=True)

    def wait(self, seconds: float) -> bool:
        """Whether the command ends within this time."""
        if self.code is None:
            end = os.pidfd_open(self.process)
            try:
                select.select([end], [], [], max(0.0, seconds))
                done, status = os.waitpid(self.process, os.WNOHANG)
            finally:
                os.close(end)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code is not None

    def wait_for_work(self, seconds: float) -> bool:
        """Whether the command ends before its processes have used this CPU time: a busy machine moves no moment."""
        latest = time.monotonic() + MAX_SLOWNESS * (seconds + 1)
        end = self._cpu_seconds() + seconds
        while not self.wait(0.002):
            if self._cpu_seconds() >= end or time.monotonic() > latest:
                return False
        return True

    def _cpu_seconds(self) -> float:
        """CPU time of the living processes of the group."""
        total = 0.0
        for process in [self.process, *(self.workers() if self.has_workers else ())]:
            with suppress(OSError):
                total += time.clock_gettime(~process << 3 | 2)  # as clock_getcpuclockid(3) numbers it
        return total

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

    def complaint(self) -> str:
        """What is wrong with its exit code and output; nothing if all is as documented."""
        lines = self.output.read_text(errors="replace").splitlines()
        last = " | ".join(lines[-6:])
        if self.code == -signal.SIGINT and "/heedful/" not in "".join(lines):
            return ""  # interrupted before the first line of heedful
        if self.code not in self.codes:
            return f"ended with {self.code}, not with {sorted(self.codes)}: {last}"
        failures = [line for line in lines if line.startswith("heedful: failed: ")]
        one_line = [line for line in lines if line.startswith("heedful: ")]
        allowed = failures if self.code == 1 else one_line[:1] if self.code else []
        if lines != allowed or (self.code in (1, 2) and not lines):
            return f"ended with {self.code} and printed: {last}"
        return ""


def run_lines(lines: Sequence[Line]) -> int:
    """Run command lines of heedful one after the other; the first exit code that is not 0."""
    for words in lines:
        sys.argv = ["heedful", *words]
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                return int(end.code)
    return 0


@dataclass
class Undisturbed:
    """What a job gives when nothing happens.

    Args:
        whole: all files of its folder.
        made: the artefacts, also those of the changed table.
        added: bytes on disk that it adds to its inputs.
    """

    whole: Files
    made: dict[str, Files]
    seconds: float
    added: int

    @property
    def wanted(self) -> set[str]:
        """The artefacts of the unchanged table."""
        return {name for name in self.made if f"work/{name}/manifest.json" in self.whole}


@dataclass
class Storm:
    """All rounds: what was done and what went wrong."""

    root: Path
    moments: int
    chance: random.Random
    pool_every: int = POOL_EVERY
    figures: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    undisturbed: dict[str, Undisturbed] = field(default_factory=dict)
    pool_seconds: float = 0.0

    def run(self) -> None:
        """Rounds until there were enough moments."""
        kinds: list[type[_OneProcess]] = [
            _OneProcess,
            _SeveralProcesses,
            _OneProcess,
            _SmallDisk,
            _OneProcess,
            _SeveralProcesses,
        ]
        if not self._can_mount():
            sys.stdout.write("no tmpfs can be mounted here: full and read-only disks are left out\n")
            kinds.remove(_SmallDisk)
        for job in JOBS:
            self._write_inputs(job)
            self._run_undisturbed(job)
        number = 0
        while self.figures["moments"] < self.moments:
            number += 1
            kind = _WorkerPool if number % self.pool_every == 0 else kinds[number % len(kinds)]
            job = JOBS[0] if kind is _WorkerPool else JOBS[number % len(JOBS)]
            kind(self, job, self.root / f"round-{number}").run()
            self.figures["rounds"] += 1

    def fault(self, words: str) -> None:
        """Something that must not happen."""
        self.faults.append(words)
        sys.stdout.write(f"FAULT: {words}\n")
        sys.stdout.flush()

    def copy_inputs(self, job: Job, folder: Path) -> None:
        """Fill the folder of a round."""
        shutil.copytree(self.root / f"inputs-{job.name}", folder, dirs_exist_ok=True)

    def _can_mount(self) -> bool:
        folder = self.root / "trial"
        folder.mkdir()
        return mount("-t", "tmpfs", "tmpfs", str(folder)) and not subprocess.call(["umount", str(folder)])

    def _write_inputs(self, job: Job) -> None:
        folder = self.root / f"inputs-{job.name}"
        folder.mkdir()
        if job.reads_table:
            (folder / "texts.csv").write_text(texts(changed=False))
        if job.name == "run":
            (folder / "recipes.py").write_text(RECIPES)
        elif job.name == "learn":
            from tests.training.test_checkpoint import fine_tuned

            fine_tuned(folder / "teacher")
        elif job.name == "report":
            shutil.copytree(self.root / "whole-run" / "work", folder / "work", ignore=shutil.ignore_patterns(".*"))
        elif job.name == "fetch":
            from datasets import Dataset, DatasetDict

            rows = {"text": [f"film number {n}" for n in range(N_FETCHED)], "label": [n % 2 for n in range(N_FETCHED)]}
            splits = {name: Dataset.from_dict(rows) for name in ("train", "validation", "test")}
            DatasetDict(splits).save_to_disk(folder / "saved")

    def _run_undisturbed(self, job: Job) -> None:
        """Run a job in this process, so that the forks have imported everything, and then in a fork."""
        here, folder = Path.cwd(), self.root / f"whole-{job.name}"
        self.copy_inputs(job, folder)
        before = disk_usage(folder)
        os.chdir(folder)
        try:
            if code := run_lines(job.lines):
                raise SystemExit(f"the undisturbed {job.name} ended with {code}")
        finally:
            os.chdir(here)
        again = self.root / f"again-{job.name}"
        self.copy_inputs(job, again)
        if job.reads_table:
            (again / "texts.csv").write_text(texts(changed=True))
        start = children_seconds()
        command = Command.fork(again, job.lines, self.root / "output.txt")
        if not command.wait(SECONDS_TO_FINISH) or command.complaint():
            raise SystemExit(f"the undisturbed {job.name}: {command.complaint()}")
        seconds = children_seconds() - start
        files = read_files(folder)
        if not job.reads_table and read_files(again) != files:
            raise SystemExit(f"{job.name} is not the same in a fork")
        made = artefacts(folder / "work") | artefacts(again / "work")
        whole = {name: digest for name, digest in files.items() if not name.startswith(UNEQUAL)}
        self.undisturbed[job.name] = Undisturbed(whole, made, seconds, disk_usage(folder) - before)
        self.figures[f"milliseconds of {job.name}"] = round(1000 * seconds)


def children_seconds() -> float:
    """CPU time of all children that have ended: other processes on this machine do not change it."""
    times = os.times()
    return times.children_user + times.children_system


def disk_usage(folder: Path) -> int:
    """Bytes of all files, in whole blocks."""
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in folder.rglob("*") if path.is_file())


@dataclass
class _OneProcess:
    """One process at a time in one folder, with signals."""

    storm: Storm
    job: Job
    folder: Path
    finished: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    changed: bool = False
    attempts: int = 0
    kind: ClassVar[str] = "one process"

    @property
    def known(self) -> Undisturbed:
        return self.storm.undisturbed[self.job.name]

    @property
    def seconds(self) -> float:
        """How long the command takes in a new folder."""
        return self.known.seconds

    def moment(self) -> float:
        """CPU seconds to the next disturbance: random, and shorter where less work is left."""
        return self.storm.chance.uniform(0.0, self.seconds / self.attempts)

    def run(self) -> None:
        """Disturb the command a few times, then let it finish."""
        storm, chance = self.storm, self.storm.chance
        with self.place():
            storm.copy_inputs(self.job, self.folder)
            for _ in range(chance.randint(1, MAX_KILLS)):
                self.attempts += 1
                if storm.figures["moments"] >= storm.moments or self.disturb():
                    break
                if self.job.makes and chance.random() < 0.3:
                    self._flip_bit()
            self._write_table(changed=False)
            self.finish()

    @contextmanager
    def place(self) -> Iterator[None]:
        """The folder of the round."""
        self.folder.mkdir()
        yield
        shutil.rmtree(self.folder)

    def start(self, number: int = 0) -> Command:
        """Start the command; `number` tells processes at the same time apart."""
        return Command.fork(self.folder, self.job.lines, self.storm.root / f"output-{number}.txt")

    def disturb(self) -> bool:
        """Start the command, send signals until it ends, look at what is left; whether it had finished."""
        command = self.start()
        while not command.wait_for_work(self.moment()):
            self.strike(command, [command])
        return self.check([command])

    def strike(self, command: Command, running: Sequence[Command]) -> None:
        """Change the data under way, or send a signal."""
        storm, chance = self.storm, self.storm.chance
        if self.job.reads_table and chance.random() < 0.1:
            self._write_table(changed=not self.changed)
            storm.figures["data changed under way"] += 1
            for each in running:
                each.codes |= {1, 2}
            return
        sent, who, workers = self.choose_signal(command)
        try:
            if who == "group":
                os.killpg(command.process, sent)
            else:
                os.kill(command.process if who == "driver" else chance.choice(workers), sent)
        except ProcessLookupError:
            return
        for name in ("", f" in {self.job.name}", f" with {self.kind}", f": {sent.name} to the {who}"):
            storm.figures[f"moments{name}"] += 1
        if who != "worker":
            command.codes |= END_CODES[sent]
            self.expect_end(command, SECONDS_TO_END, f"after {sent.name}")

    def choose_signal(self, command: Command) -> tuple[signal.Signals, str, list[int]]:
        """The next signal, to whom, and the worker processes."""
        return self.storm.chance.choice(list(END_CODES)), "driver", []

    def expect_end(self, command: Command, seconds: float, when: str) -> None:
        """Wait for the end; a command that does not end is a fault."""
        if not command.wait(seconds):
            os.kill(command.process, signal.SIGABRT)  # it writes where it is
            command.wait(1.0)
            place = command.output.read_text(errors="replace")
            self.storm.fault(f"{self.folder.name}, {self.job.name}: alive {seconds:.0f} s {when}: {place}")
            with suppress(ProcessLookupError):
                os.killpg(command.process, signal.SIGKILL)
            command.wait(SECONDS_TO_END)

    def check(self, commands: Sequence[Command]) -> bool:
        """Check exit codes, output, processes and files after the end; whether all commands had finished."""
        where = f"{self.folder.name}, {self.job.name}"
        for command in commands:
            deadline = time.monotonic() + SECONDS_TO_END
            while (left := living(command.process)) and time.monotonic() < deadline:
                time.sleep(0.02)
            if left:
                self.storm.fault(f"{where}: {len(left)} processes left")
                os.killpg(command.process, signal.SIGKILL)
            if complaint := command.complaint():
                self.storm.fault(f"{where}: {complaint}")
        self._check_artefacts()
        self._check_outputs()
        return all(command.code == 0 for command in commands)

    def _write_table(self, *, changed: bool) -> None:
        if changed != self.changed:
            (self.folder / "new.csv").write_text(texts(changed=changed))
            os.replace(self.folder / "new.csv", self.folder / "texts.csv")
            self.changed = changed

    def _check_artefacts(self) -> None:
        """Every artefact is complete and equals the undisturbed one; none that was finished has gone."""
        found, where = artefacts(self.folder / "work"), f"{self.folder.name}, {self.job.name}"
        for name, files in found.items():
            if files == self.known.made.get(name):
                self.damaged.discard(name)
                self.storm.figures["artefacts compared"] += 1
            elif name not in self.damaged:
                self.storm.fault(f"{where}: {name} is incomplete or differs")
        for name in self.finished - found.keys() - self.damaged:
            self.storm.fault(f"{where}: {name} is lost")
        self.finished |= found.keys()

    def _check_outputs(self) -> None:
        """Every output file is as in the undisturbed run or at least whole, and a fetched corpus has all its files."""
        for top in ("out.json", "report", "explainer", "data"):
            place = self.folder / top
            for path in [place] if place.is_file() else sorted(place.rglob("*")):
                inside = path.relative_to(self.folder)
                if not path.is_file() or any(part.startswith(".") for part in inside.parts):
                    continue
                same = sha256(path.read_bytes()).hexdigest() == self.known.whole.get(inside.as_posix())
                if not same and (top == "data" or not is_whole(path)):
                    self.storm.fault(f"{self.folder.name}, {self.job.name}: {inside} is half")
        if (self.folder / "data" / "sst").exists():
            for name in self.known.whole:
                if name.startswith("data/") and not (self.folder / name).exists():
                    self.storm.fault(f"{self.folder.name}, {self.job.name}: {name} is missing")

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
        if not content:
            return  # a checkpoint that was being written
        place = self.storm.chance.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        if kind == "artefacts":
            self.damaged.add(path.parent.name)
        self.storm.figures[f"bits flipped in {kind}"] += 1

    def finish(self) -> None:
        """Let the command finish; everything is there, nothing else, and damage that no one has read is known."""
        storm, work = self.storm, self.folder / "work"
        for _ in range(3):
            command = self.start()
            self.expect_end(command, SECONDS_TO_FINISH, "after the last start")
            if not self.check([command]):
                return
            unread = [name for name in self.damaged if (work / name).exists()]
            if not unread:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CorruptArtefactWarning)
                loaded = [entry.name for entry in Workspace(work).entries() if entry.name in unread and _loads(entry)]
            for name in loaded:
                storm.fault(f"{self.folder.name}, {self.job.name}: the damage of {name} is not seen")
            for name in unread:
                storm.figures["damaged artefacts that no one had read"] += 1
                shutil.rmtree(work / name)
                self.deleted.add(name)  # made again if it is needed
        self._compare()

    def _compare(self) -> None:
        """The whole folder equals the undisturbed one, but for work on the changed table and unread damage."""
        others = artefacts(self.folder / "work").keys() - self.known.wanted
        found = {}
        for name, digest in read_files(self.folder).items():
            top, second, third = (*Path(name).parts, "", "", "")[:3]
            aside = f"{top}/{second}/" in UNEQUAL or second in others
            if second in (".partial", ".damaged"):
                aside = third.partition(".")[0] not in self.known.wanted
            if top != "work" or not aside:
                found[name] = digest
        gone = tuple(f"work/{name}/" for name in self.deleted if not (self.folder / "work" / name).exists())
        expected = {name: digest for name, digest in self.known.whole.items() if not name.startswith(gone)}
        differing = sorted(name for name in found | expected if found.get(name) != expected.get(name))
        if others:  # they are in the report
            differing = [name for name in differing if not name.startswith("report/")]
        if differing:
            words = ", ".join(f"{name} ({'missing' if name not in found else 'other'})" for name in differing[:5])
            self.storm.fault(f"{self.folder.name}, {self.job.name}: {len(differing)} files differ at the end: {words}")


@dataclass
class _SeveralProcesses(_OneProcess):
    """Two to four processes at work in one folder, of which some are killed."""

    kind = "several processes"

    def disturb(self) -> bool:
        """Start the commands, send signals to some, let the others finish."""
        chance = self.storm.chance
        commands = [self.start(number) for number in range(chance.randint(2, 4))]
        self.storm.figures["processes at the same time"] += len(commands)
        running = commands
        while running:
            chance.choice(running).wait_for_work(self.moment())
            running = [each for each in running if not each.wait(0.0)]
            if running and chance.random() < 0.8:
                self.strike(chance.choice(running), running)
                continue
            for each in running:
                self.expect_end(each, SECONDS_TO_FINISH, "beside others")
        return self.check(commands)


@dataclass
class _WorkerPool(_OneProcess):
    """A new process with a pool of two workers.

    One worker of each command is killed: its work is made again, and the command ends as if nothing had happened. A
    recipe whose workers died twice would not be tried again.
    """

    kind = "a pool"
    spared: set[int] = field(default_factory=set)
    """Commands that lost a worker already."""

    @property
    def seconds(self) -> float:
        """How long the command takes; measured at the first use."""
        if not self.storm.pool_seconds:
            folder = self.storm.root / "whole-pool"
            self.storm.copy_inputs(self.job, folder)
            start = children_seconds()
            command = Command.begin(folder, IN_POOL, self.storm.root / "output.txt")
            if not command.wait(SECONDS_TO_FINISH) or command.complaint():
                raise SystemExit(f"the undisturbed pool: {command.complaint()}")
            self.storm.pool_seconds = children_seconds() - start
            self.storm.figures["milliseconds of run in a pool"] = round(1000 * self.storm.pool_seconds)
            if artefacts(folder / "work") != {name: self.known.made[name] for name in self.known.wanted}:
                self.storm.fault("the pool's artefacts differ from those made here")
        return self.storm.pool_seconds

    def moment(self) -> float:
        """CPU seconds to the next disturbance: those of workers do not end the command."""
        return self.storm.chance.uniform(0.0, self.seconds / 2)

    def choose_signal(self, command: Command) -> tuple[signal.Signals, str, list[int]]:
        """Mostly SIGKILL to a worker, once for each command; then any signal to the driver, or Ctrl-C to all."""
        chance, workers = self.storm.chance, command.workers()
        if workers and command.process not in self.spared and chance.random() < 0.8:
            self.spared.add(command.process)
            return chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)), "worker", workers
        if workers and chance.random() < 0.4:
            return signal.SIGINT, "group", workers
        return super().choose_signal(command)

    def start(self, number: int = 0) -> Command:
        """Start `heedful run` anew."""
        return Command.begin(self.folder, IN_POOL, self.storm.root / f"output-{number}.txt")

    def finish(self) -> None:
        """Finish with the pool; then the run without it finds nothing to make, and the report is written."""
        command = self.start()
        self.expect_end(command, SECONDS_TO_FINISH, "after the last start")
        if self.check([command]):
            _OneProcess(self.storm, self.job, self.folder, self.finished, self.damaged).finish()


@dataclass
class _SmallDisk(_OneProcess):
    """A tmpfs that is too small or becomes read-only."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """The folder, on a disk of its own."""
        self.folder.mkdir()
        if not mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.folder)):
            raise SystemExit("the disk cannot be mounted")
        try:
            yield
        finally:
            subprocess.call(["umount", "-l", str(self.folder)])
            self.folder.rmdir()

    def disturb(self) -> bool:
        """Limit the disk, before the start or under way; the command ends with one line, or had no need of the disk."""
        chance, figures = self.storm.chance, self.storm.figures
        kind, under_way = chance.choice(("full", "read-only")), chance.random() < 0.6
        if not under_way:
            self._limit(kind)
        command = self.start()
        command.codes |= {2}
        if under_way and not command.wait_for_work(self.moment()):
            while not self._limit(kind) and not command.wait(0.002):
                pass  # a file is open
        self.expect_end(command, SECONDS_TO_FINISH, f"on a {kind} disk")
        finished = self.check([command])
        if not mount("-o", f"remount,rw,size={DISK_BYTES}", str(self.folder)):
            raise SystemExit("the disk cannot be enlarged")
        figures[f"disks {kind}"] += 1
        figures[f"disks {kind}: ended with one line"] += command.code == 2
        return finished

    def _limit(self, kind: str) -> bool:
        """Make the disk read-only or nearly full; False if it is too busy for that."""
        if kind == "read-only":
            return mount("-o", "remount,ro", str(self.folder))
        state = os.statvfs(self.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        room = int(self.storm.chance.uniform(0.0, self.known.added))
        return mount("-o", f"remount,size={used + room}", str(self.folder))


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
    os.environ |= {"HEEDFUL_DATA": "data", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    # Its own lock is shared with forked processes: one that is killed would keep it from all others.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0
    vars(learn)["QUICK_EPOCHS"], vars(paper_options)["MIN_EPOCH_STEPS"] = EPOCHS, 1
    torch.set_num_threads(1)
    start = time.perf_counter()
    root = Path(tempfile.mkdtemp(prefix="heedful-storm-"))
    storm = Storm(root, given.moments, random.Random(given.seed), given.pool_every)
    try:
        storm.run()
    except KeyboardInterrupt:
        storm.fault("interrupted")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    storm.figures["seconds"] = round(time.perf_counter() - start)
    storm.figures["faults"] = len(storm.faults)
    width = max(map(len, storm.figures))
    sys.stdout.writelines(f"{name:{width}}  {count:>7}\n" for name, count in storm.figures.items())
    return 1 if storm.faults else 0


if __name__ == "__main__":
    sys.exit(main())
