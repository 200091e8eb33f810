"""Run the core tests under each Python and with the lowest and highest versions of the dependencies; `make matrix`.

Each combination has an environment of its own in `.matrix/`, in which heedful is installed as a wheel. Interpreters are
those on the path and those of pyenv; one that is not there is named and left out. Lowest are the lower bounds of
`pyproject.toml`; the tools of the tests are always the newest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
EXTRAS = ("study", "adapters", "postgresql", "demo")
CORE = (
    *("tests/measures", "tests/store", "tests/attributions", "tests/models", "tests/data", "tests/trials"),
    *("tests/test_types.py", "tests/test_seeding.py", "tests/test_cli.py", "tests/test_explainer.py"),
)
SHOWN = ("torch", "transformers", "numpy", "pandas", "scipy", "scikit-learn")


def find_interpreter(version: str) -> str | None:
    """The interpreter of a version on the path, else of pyenv."""
    found = shutil.which(f"python{version}")
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    return str(own[-1]) if own else found


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


def try_versions(python: str, resolution: str, wheel: Path, tests: list[str]) -> str:
    """One line about a combination: its versions, and how many tests passed in which time."""
    name = f"{python}-{resolution}"
    log, place, chosen = FOLDER / f"{name}.log", FOLDER / name, FOLDER / f"{name}.txt"
    log.unlink(missing_ok=True)
    interpreter = find_interpreter(python)
    if interpreter is None:
        return f"{name}: there is no Python {python} here"
    uv, links = [sys.executable, "-m", "uv"], os.environ.get("PIP_FIND_LINKS", "").split()
    own = str(place / "bin" / "python")
    sources = [part for folder in links for part in ("--find-links", folder)]
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    wanted = ["--resolution", RESOLUTIONS[resolution], "--python", interpreter, "--quiet", "--output-file", str(chosen)]
    steps = (
        [*uv, "venv", "--clear", "--quiet", "--python", interpreter, str(place)],
        [*uv, "pip", "compile", "pyproject.toml", *extras, *wanted, *sources],
        [*uv, "pip", "install", "--quiet", "--python", own, "-r", str(chosen), *sources],
        [*uv, "pip", "install", "--quiet", "--python", own, "--constraints", str(chosen), f"{wheel}[dev]", *sources],
    )
    for step in steps:
        if not run(step, log):
            return f"{name}: the installation fails, see {log}"
    listed = subprocess.run([*uv, "pip", "freeze", "--python", own], capture_output=True, text=True, check=True).stdout
    versions = dict(line.split("==") for line in listed.splitlines() if "==" in line)
    about = ", ".join(f"{each} {versions[each]}" for each in SHOWN)
    start = time.monotonic()
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not browser", "-W", "ignore"]
    run([own, "-m", "pytest", *options, *tests], log, OMP_NUM_THREADS="1")
    last = log.read_text().strip().splitlines()[-1].strip("= ")
    return f"{name}: {about}: {last} ({time.monotonic() - start:.0f} s)"


def main() -> None:
    """Every combination, or those that are asked for, one after the other."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--python", action="append", help="3.11 to 3.14; default: all")
    reader.add_argument("--resolution", action="append", choices=[*RESOLUTIONS], help="default: both")
    reader.add_argument("--test", action="append", help="test files; default: the core")
    asked = reader.parse_args()
    FOLDER.mkdir(exist_ok=True)
    wheel = build_wheel(FOLDER / "build.log")
    for python in asked.python or PYTHONS:
        for resolution in asked.resolution or RESOLUTIONS:
            sys.stdout.write(try_versions(python, resolution, wheel, asked.test or list(CORE)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
