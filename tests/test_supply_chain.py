"""What heedful is installed from and what it takes along: locks, the wheel, and no network where none is asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements import locks, matrix, vulnerabilities
from tests.distribution import REFUSE_SOCKETS, TINY_MODEL

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def pins(lock: Path) -> dict[str, dict[str, list[str]]]:
    """The versions of each package of a lock, mostly one, and the hashes of each."""
    found: dict[str, dict[str, list[str]]] = {}
    for block in re.split(r"\n(?=\S)", lock.read_text().strip())[1:]:
        first, *rest = block.split(" \\\n")
        name, _, version = first.partition("==")
        number = version.partition(" ; ")[0]
        found.setdefault(canonicalize_name(name), {})[number] = [line.strip() for line in rest]
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_of_a_lock_has_a_version_and_hashes_and_no_host(lock: Path) -> None:
    pairs = [(name, *pair) for name, versions in pins(lock).items() for pair in versions.items()]
    for name, version, hashes in pairs:
        assert re.fullmatch(r"\d[\w.!]*", version), name
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in hashes), name
    assert "://" not in lock.read_text()
    assert "find-links" not in lock.read_text()


def test_each_extra_has_a_lock_that_satisfies_the_ranges_of_the_project() -> None:
    for name in ("base", *EXTRAS):
        locked = pins(ROOT / "requirements" / f"{name}.lock")
        for text in (*PROJECT["dependencies"], *EXTRAS.get(name, ())):
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate():
                versions = locked[canonicalize_name(wanted.name)]
                assert all(wanted.specifier.contains(version) for version in versions), (name, text)


def test_no_two_locks_pin_a_package_of_the_tests_differently() -> None:
    tested = pins(ROOT / "requirements" / "dev.lock")
    for lock in LOCKS:
        if lock.stem != "tools":  # an environment of its own
            for name, versions in pins(lock).items():
                assert name not in tested or versions.keys() <= tested[name].keys(), (lock.stem, name)


def test_the_packages_of_cuda_are_apart() -> None:
    """The CPU build of torch must install from a lock without two gigabytes of CUDA."""
    apart = pins(ROOT / "requirements" / "cuda.lock").keys()
    assert apart
    for lock in LOCKS:
        if lock.stem != "cuda":
            assert not apart & pins(lock).keys(), lock.stem


LOCKED = """\
numpy==2.3.5 ; python_full_version < '3.12' \\
    --hash=sha256:aa
numpy==2.4.1 ; python_full_version >= '3.12' \\
    --hash=sha256:bb
nvidia-nccl==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:cc
nvidia-nccl==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
torch==2.13.0 \\
    --hash=sha256:ee
"""


def test_a_package_that_is_listed_twice_keeps_both_lines() -> None:
    """A version for older Pythons beside one for newer: without the first the lock would not install on the older."""
    found = locks.split_packages(LOCKED)
    assert [*found] == ["numpy", "nvidia-nccl", "torch"]
    assert [line.partition(" \\")[0] for line in found["numpy"]] == [
        "numpy==2.3.5 ; python_full_version < '3.12'",
        "numpy==2.4.1 ; python_full_version >= '3.12'",
    ]
    assert "\n".join(block for blocks in found.values() for block in blocks) + "\n" == LOCKED


def test_a_lock_is_written_with_both_lines_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    digests = [f"    --hash=sha256:{letter * 64}" for letter in "abcdef"]
    torch = [f"torch==2.{minor}.0 ; os_name == '{minor}' \\\n{digest}" for minor, digest in enumerate(digests[:2])]
    numpy = [f"numpy==2.{minor}.0 ; os_name == '{minor}' \\\n{digest}" for minor, digest in enumerate(digests[2:4])]
    nccl = [f"nvidia-nccl==2.{minor} \\\n{digest}" for minor, digest in enumerate(digests[4:])]
    cuda: dict[str, list[str]] = {}
    locks.write_lock("made", locks.split_packages("\n".join([*numpy, *nccl, *torch])), cuda)
    assert (tmp_path / "made.lock").read_text().splitlines()[1:] == "\n".join([*numpy, *torch]).splitlines()
    assert cuda == {"nvidia-nccl": nccl}


@dataclass
class FakeAudit:
    """pip-audit with services that know some packages, by name and version, and their vulnerabilities."""

    services: dict[str, dict[tuple[str, str], list[str]]]
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def run(self, command: Sequence[str], **_: object) -> None:
        """Write what pip-audit would; like it, nothing for a service that is away or a package listed twice."""
        option = dict(pairwise(command))
        service, lines = option["--vulnerability-service"], Path(option["--requirement"]).read_text().split("\n")[:-1]
        self.asked.append((service, lines))
        pairs = [(str(name), version) for name, version in (line.split("==") for line in lines)]
        if service in self.services and len(dict(pairs)) == len(pairs):
            known = self.services[service]
            answer: list[dict[str, object]] = [
                {"name": name, "version": version, "vulns": [{"id": each} for each in known[name, version]]}
                if (name, version) in known
                else {"name": name, "skip_reason": "not found"}
                for name, version in pairs
            ]
            Path(option["--output"]).write_text(json.dumps({"dependencies": answer, "fixes": []}))


def audit(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: dict[str, list[str]],
    services: dict[str, dict[tuple[str, str], list[str]]],
) -> tuple[int, FakeAudit]:
    """The exit code for made-up locks and services, and what the services were asked."""
    for name, lines in made.items():
        blocks = [f"{line} \\\n    --hash=sha256:{'0' * 64}\n" for line in lines]
        (folder / f"{name}.lock").write_text("".join(["# written by hand == here\n", *blocks]))
    fake = FakeAudit(services)
    monkeypatch.setattr(vulnerabilities, "FOLDER", folder)
    monkeypatch.setattr(subprocess, "run", fake.run)
    return vulnerabilities.main(), fake


def test_a_clean_version_in_another_lock_does_not_hide_a_vulnerable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"base": ["dates==2.9.0"], "dev": ["dates==2.9.0"], "tools": ["dates==4.0.0"]}
    first = {("dates", "2.9.0"): ["X-1"], ("dates", "4.0.0"): []}
    code, fake = audit(tmp_path, monkeypatch, made, {"osv": first})
    assert code == 1
    assert fake.asked == [("osv", ["dates==2.9.0"]), ("osv", ["dates==4.0.0"])]
    (hit,) = [line for line in capsys.readouterr().out.splitlines() if "X-1" in line]
    assert hit.startswith("dates 2.9.0 (base.lock, dev.lock): ")


def test_two_versions_in_one_lock_are_both_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"dev": ["dates==2.9.0 ; os_name == 'nt'", "dates==4.0.0 ; os_name != 'nt'"]}
    services = {"osv": {("dates", "2.9.0"): list[str](), ("dates", "4.0.0"): []}}
    assert audit(tmp_path, monkeypatch, made, services)[0] == 0


def test_names_and_versions_match_however_they_are_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = {"osv": {("typing-extensions", "4.16"): list[str]()}}
    assert audit(tmp_path, monkeypatch, {"dev": ["Typing_Extensions[all]==v4.16"]}, services)[0] == 0
    answer = [{"name": "Typing.extensions", "version": "4.16", "vulns": []}]
    monkeypatch.setattr(vulnerabilities, "ask", lambda versions, service: answer)
    assert vulnerabilities.main() == 0


def test_a_package_that_the_first_service_skips_is_asked_of_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"dev": ["one==1.0", "two==2.0"]}
    first = {("one", "1.0"): list[str]()}
    code, fake = audit(tmp_path, monkeypatch, made, {"osv": first, "pypi": {("two", "2.0"): []}})
    assert code == 0
    assert fake.asked == [("osv", ["one==1.0", "two==2.0"]), ("pypi", ["two==2.0"])]
    code, _ = audit(tmp_path, monkeypatch, made, {"osv": first, "pypi": {("two", "2.0"): ["X-1"]}})
    assert code == 1
    capsys.readouterr()
    code, _ = audit(tmp_path, monkeypatch, made, {"osv": first, "pypi": {}})
    assert code == 2
    assert "two 2.0 (dev.lock): " in capsys.readouterr().out


def test_an_answered_package_is_asked_of_one_service_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = {("one", "1.0"): list[str]()}
    code, fake = audit(
        tmp_path, monkeypatch, {"base": ["one==1.0"], "dev": ["one==1.0"]}, {"osv": clean, "pypi": clean}
    )
    assert (code, fake.asked) == (0, [("osv", ["one==1.0"])])


def test_no_answer_is_no_clean_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, fake = audit(tmp_path, monkeypatch, {"dev": ["one==1.0"]}, {})
    assert (code, [service for service, _ in fake.asked]) == (2, ["osv", "pypi"])


def test_versions_are_compared_by_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text 2.9 comes after 2.13, and Python 3.11.9 after 3.11.10."""
    for version in ("2.9.1+cpu", "2.13.0+cpu", "2.9.0"):
        (tmp_path / f"torch-{version}-cp311-cp311-linux_x86_64.whl").touch()
    (tmp_path / "torch-3.0.0-cp312-cp312-linux_x86_64.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert matrix.local_torch("3.11") == ["torch==2.13.0+cpu"]
    assert matrix.local_torch("3.13") == []
    versions = ["3.14.0", "3.14.10", "3.14.1-debug", "3.14.9", "3.14.0rc1"]
    order = ["3.14.1-debug", "3.14.0rc1", "3.14.0", "3.14.9", "3.14.10"]
    assert sorted(versions, key=matrix.as_version) == order


def test_the_newest_interpreter_of_pyenv_is_taken_before_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: f"/path/{name}")
    assert matrix.find_interpreter("3.11") == "/path/python3.11"
    for version in ("3.11.9", "3.11.10"):
        place = tmp_path / ".pyenv" / "versions" / version / "bin"
        place.mkdir(parents=True)
        (place / "python3.11").touch()
    assert matrix.find_interpreter("3.11") == str(tmp_path / ".pyenv/versions/3.11.10/bin/python3.11")
    assert matrix.find_interpreter("3.12") == "/path/python3.12"


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [((True, None), 0), ((None, None), 0), ((False, True), 1), ((True, False), 1), ((None, False), 1)],
)
def test_the_matrix_fails_if_a_combination_that_was_tried_fails(
    outcomes: tuple[bool | None, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(outcomes)
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    monkeypatch.setattr(matrix, "build_wheel", lambda log: tmp_path / "made.whl")
    monkeypatch.setattr(matrix, "try_versions", lambda *_: matrix.Outcome("made up", next(left)))
    assert matrix.main(["--python", "3.11"]) == code


@pytest.mark.parametrize(
    ("missing", "failing", "expected"),
    [
        ("find_interpreter", "", None),
        ("local_torch", "", None),
        ("", "venv", False),
        ("", "compile", False),
        ("", "install", False),
        ("", "pytest", False),
        ("", "", True),
    ],
)
def test_a_combination_fails_with_its_installation_or_its_tests_and_is_left_out_without_what_it_needs(
    missing: str, failing: str, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], log: Path, **_: str) -> bool:
        log.write_text("1 passed in 1.00s\n")
        (tmp_path / "3.11-lowest.txt").write_text("numpy==2.0\n")
        return failing not in command

    def freeze(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, "".join(f"{name}==1.0\n" for name in matrix.SHOWN))

    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    monkeypatch.setattr(matrix, "find_interpreter", lambda _: "/path/python3.11")
    monkeypatch.setattr(matrix, "local_torch", lambda _: ["torch==2.13.0"])
    if missing:
        monkeypatch.setattr(matrix, missing, lambda _: None if missing == "find_interpreter" else [])
    monkeypatch.setattr(matrix, "run", run)
    monkeypatch.setattr(subprocess, "run", freeze)
    assert matrix.try_versions("3.11", "lowest", tmp_path / "made.whl", ["tests"], "local").passed is expected


IMPORT_ALL = """
import importlib, pkgutil, heedful
for module in pkgutil.walk_packages(heedful.__path__, "heedful."):
    importlib.import_module(module.name)
"""


def run_without_network(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of Python in a process that ends with code 97 at the first connection to another machine."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return subprocess.run(
        [sys.executable, "-c", f"{REFUSE_SOCKETS}\n{program}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


def command_program(*commands: tuple[str, ...]) -> str:
    """A program that runs commands one after the other."""
    program = ["from heedful.cli import main"]
    for words in commands:
        program += [
            f"sys.argv = {['heedful', *words]!r}",
            "try: main()",
            "except SystemExit as stop: assert not stop.code",
        ]
    return "\n".join(program)


def test_a_connection_is_noticed(tmp_path: Path) -> None:
    done = run_without_network("import urllib.request\nurllib.request.urlopen('http://192.0.2.1')", tmp_path)
    assert done.returncode == 97


@pytest.mark.slow
def test_no_module_opens_a_connection_when_it_is_imported(tmp_path: Path) -> None:
    done = run_without_network(f"{IMPORT_ALL}\n{command_program(('--help',))}", tmp_path)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "audit" in done.stdout


AUDIT = ("--texts", "2", "--method", "leave-one-out", "--only-methods", "--where", "here", "--out", "pages")


@pytest.mark.slow
def test_no_command_on_a_local_folder_speaks_to_another_machine(tmp_path: Path) -> None:
    """No update checks, no telemetry, no look at the hub."""
    texts = ("the film is very fine", "a very dull plot", "the plot is fine", "a dull film")
    (tmp_path / "texts.csv").write_text("\n".join(["text", *texts]) + "\n")
    commands = (("explain", "tiny", texts[0]), ("models", "tiny"), ("audit", "tiny", "texts.csv", *AUDIT))
    done = run_without_network(f"{TINY_MODEL}\n{command_program(*commands)}", tmp_path)
    assert done.returncode == 0, done.stderr[-1000:]
    for word in ("Method: ", "Attention: ", "Answer page: "):
        assert word in done.stdout
