"""What heedful is installed from and what it takes along: locks, the wheel, and no network where none is asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.distribution import REFUSE_SOCKETS, TINY_MODEL

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def pins(lock: Path) -> dict[str, tuple[str, str, list[str]]]:
    """Version, marker and hashes of each package of a lock."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for block in re.split(r"\n(?=\S)", lock.read_text().strip())[1:]:
        first, *rest = block.split(" \\\n")
        name, _, version = first.partition("==")
        number, _, marker = version.partition(" ; ")
        found[canonicalize_name(name)] = (number, marker, [line.strip() for line in rest])
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_of_a_lock_has_a_version_and_hashes_and_no_host(lock: Path) -> None:
    for name, (version, _, hashes) in pins(lock).items():
        assert re.fullmatch(r"\d[\w.!]*", version), name
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), name
    assert "://" not in lock.read_text()
    assert "find-links" not in lock.read_text()


def test_each_extra_has_a_lock_that_satisfies_the_ranges_of_the_project() -> None:
    for name in ("base", *EXTRAS):
        locked = pins(ROOT / "requirements" / f"{name}.lock")
        for text in (*PROJECT["dependencies"], *EXTRAS.get(name, ())):
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate():
                assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)][0]), (name, text)


def test_no_two_locks_pin_a_package_of_the_tests_differently() -> None:
    tested = pins(ROOT / "requirements" / "dev.lock")
    for lock in LOCKS:
        if lock.stem != "tools":  # an environment of its own
            own = {name: version for name, (version, *_) in pins(lock).items() if name in tested}
            assert own == {name: tested[name][0] for name in own}, lock.stem


def test_the_packages_of_cuda_are_apart() -> None:
    """The CPU build of torch must install from a lock without two gigabytes of CUDA."""
    apart = pins(ROOT / "requirements" / "cuda.lock").keys()
    assert apart
    for lock in LOCKS:
        if lock.stem != "cuda":
            assert not apart & pins(lock).keys(), lock.stem


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


def command_program(*words: str) -> str:
    return f"sys.argv = {['heedful', *words]!r}\nfrom heedful.cli import main\nmain()"


def test_a_connection_is_noticed(tmp_path: Path) -> None:
    done = run_without_network("import urllib.request\nurllib.request.urlopen('http://192.0.2.1')", tmp_path)
    assert done.returncode == 97


@pytest.mark.slow
def test_no_module_opens_a_connection_when_it_is_imported(tmp_path: Path) -> None:
    done = run_without_network(f"{IMPORT_ALL}\n{command_program('--help')}", tmp_path)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "audit" in done.stdout


AUDIT = ("--texts", "2", "--method", "leave-one-out", "--where", "here", "--out", "pages")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("explain", "tiny", "the film is very fine"), ("models", "tiny"), ("audit", "tiny", "texts.csv", *AUDIT)],
    ids=lambda words: words[0],
)
def test_no_command_on_a_local_folder_speaks_to_another_machine(words: tuple[str, ...], tmp_path: Path) -> None:
    """No update checks, no telemetry, no look at the hub."""
    texts = ("the film is very fine", "a very dull plot", "the plot is fine", "a dull film")
    (tmp_path / "texts.csv").write_text("\n".join(["text", *texts]) + "\n")
    made = run_without_network(TINY_MODEL, tmp_path)
    assert made.returncode == 0, made.stderr[-1000:]
    done = run_without_network(command_program(*words), tmp_path)
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stdout
