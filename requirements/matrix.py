"""Run the core tests under each Python and with the lowest and highest versions of the dependencies; `make matrix`.

Each combination has an environment of its own in `.matrix/`, in which heedful is installed as a wheel. Interpreters are
those of pyenv and those on the path; one that is not there is named and left out. Lowest are the lower bounds of
`pyproject.toml`; the tools of the tests are always the newest.

A build of torch for the CPU in a folder of `PIP_FIND_LINKS` is taken for both, where it fits the interpreter: builds of
the registry bring gigabytes of CUDA. `--torch registry` takes those, and with them the lower bound of torch.

Exit code 1: an installation or a test failed. What was left out is no failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
EXTRAS = ("study", "adapters", "postgresql", "demo")
CORE = (
    *("tests/measures", "tests/store", "tests/attributions", "tests/models", "tests/data", "tests/trials"),
    *("tests/test_types.py", "tests/test_seeding.py", "tests/cli/test_commands.py", "tests/test_explainer.py"),
)
SHOWN = ("torch", "transformers", "numpy", "pandas", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Outcome:
    """One line about a combination, and whether it passed; None: it was left out."""

    line: str
    passed: bool | None


def as_version(text: str) -> Version:
    """A version that sorts by its numbers; what is none (`3.12.1-debug` of pyenv) comes before all others."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0.dev0")


def find_interpreter(version: str) -> str | None:
    """The newest interpreter of a version in pyenv, else the one on the path."""
    own = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")
    newest = max(own, key=lambda path: as_version(path.parents[1].name), default=None)
    return shutil.which(f"python{version}") if newest is None else str(newest)


def local_torch(python: str) -> list[str]:
    """The newest torch for this Python in a folder of `PIP_FIND_LINKS`, as a constraint; empty if there is none."""
    tag = f"cp{python.replace('.', '')}"
    folders = [Path(name) for name in os.environ.get("PIP_FIND_LINKS", "").split()]
    wheels = [wheel.name for folder in folders for wheel in folder.glob(f"torch-*-{tag}-{tag}-*.whl")]
    versions = sorted((name.split("-")[1] for name in wheels), key=as_version)
    return [f"torch=={each}" for each in versions[-1:]]


def own_pins(chosen: Path) -> list[str]:
    """The pins of the packages that `pyproject.toml` names; those below them are left to the tools of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(each for extra in EXTRAS for each in project["optional-dependencies"][extra])]
    names = {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in named}
    pins = [line.strip() for line in chosen.read_text().splitlines() if re.match(r"[\w.-]+(\[\w+\])?==", line)]
    return [pin for pin in pins if re.split(r"[\[=]", pin)[0].lower() in names]


def run(command: list[str], log: Path, **environment: str) -> bool:
    """Whether a command succeeds; its output is added to the log."""
    with log.open("a") as opened:
        opened.write(f"$ {' '.join(command)}\n")
        opened.flush()
        done = subprocess.run(
            command, cwd=ROOT, stdout=opened, stderr=subprocess.STDOUT, env={**os.environ, **environment}, check=False
        )
    return done.returncode == 0


def build_wheel(log: Path) -> Path:
    """The wheel of the present sources."""
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(FOLDER), str(ROOT)], log)
    return next(FOLDER.glob("*.whl"))


def try_versions(python: str, resolution: str, wheel: Path, tests: list[str], torch: str) -> Outcome:
    """How a combination fares: its versions, and how many tests passed in which time."""
    name = f"{python}-{resolution}"
    log, place, chosen = FOLDER / f"{name}.log", FOLDER / name, FOLDER / f"{name}.txt"
    log.unlink(missing_ok=True)
    interpreter = find_interpreter(python)
    if interpreter is None:
        return Outcome(f"{name}: there is no Python {python} here", None)
    fixed = FOLDER / f"{name}.in"
    fixed.write_text("\n".join(local_torch(python) if torch == "local" else []) + "\n")
    if torch == "local" and not fixed.read_text().strip():
        line = f"{name}: no build of torch for the CPU in PIP_FIND_LINKS; --torch registry takes one with CUDA"
        return Outcome(line, None)
    uv, links = [sys.executable, "-m", "uv"], os.environ.get("PIP_FIND_LINKS", "").split()
    own = str(place / "bin" / "python")
    sources = [part for folder in links for part in ("--find-links", folder)]
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    wanted = ["--resolution", RESOLUTIONS[resolution], "--python", interpreter, "--quiet", "--output-file", str(chosen)]
    limits, wanted_wheel = FOLDER / f"{name}-limits.txt", f"{wheel}[{','.join((*EXTRAS, 'dev'))}]"
    steps = (
        [*uv, "venv", "--clear", "--quiet", "--python", interpreter, str(place)],
        [*uv, "pip", "compile", "pyproject.toml", *extras, *wanted, *sources, "--constraints", str(fixed)],
        [*uv, "pip", "install", "--quiet", "--python", own, "--constraints", str(limits), wanted_wheel, *sources],
    )
    for number, step in enumerate(steps):
        if number == len(steps) - 1:
            limits.write_text("\n".join(own_pins(chosen)) + "\n")
        if not run(step, log):
            return Outcome(f"{name}: the installation fails, see {log}", passed=False)
    listed = subprocess.run([*uv, "pip", "freeze", "--python", own], capture_output=True, text=True, check=True).stdout
    versions = dict(line.split("==") for line in listed.splitlines() if "==" in line)
    about = ", ".join(f"{each} {versions[each]}" for each in SHOWN)
    start = time.monotonic()
    options = [
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not browser",
        "-W",
        "ignore",
    ]
    passed = run([own, "-m", "pytest", *options, *tests], log, OMP_NUM_THREADS="1")
    counts = re.findall(r"^(\d+ (?:failed|passed|error).*) in [\d.]+s", log.read_text(), re.M)
    found = counts[-1] if counts else "the tests did not end"
    where = "" if passed else f", see {log}"
    return Outcome(f"{name}: {about}: {found} ({time.monotonic() - start:.0f} s){where}", passed)


def main(words: Sequence[str]) -> int:
    """Every combination, or those that are asked for, one after the other; 1 if one of them failed."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--python", action="append", help="3.11 to 3.14; default: all")
    reader.add_argument("--resolution", action="append", choices=[*RESOLUTIONS], help="default: both")
    reader.add_argument("--test", action="append", help="test files; default: the core")
    reader.add_argument("--torch", choices=("local", "registry"), default="local", help="which builds of torch")
    asked = reader.parse_args(words)
    FOLDER.mkdir(exist_ok=True)
    wheel = build_wheel(FOLDER / "build.log")
    passed = []
    for python in asked.python or PYTHONS:
        for resolution in asked.resolution or RESOLUTIONS:
            outcome = try_versions(python, resolution, wheel, asked.test or list(CORE), asked.torch)
            passed.append(outcome.passed)
            sys.stdout.write(f"{outcome.line}\n")
            sys.stdout.flush()
    counts = f"{passed.count(True)} passed, {passed.count(False)} failed, {passed.count(None)} left out"
    sys.stdout.write(f"{len(passed)} combinations: {counts}\n")
    return 1 if False in passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
