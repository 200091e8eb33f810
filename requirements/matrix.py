"""Run the core tests under each Python and with the lowest and highest versions of the dependencies; `make matrix`.

Each combination has an environment of its own in `.matrix/`, in which heedful is installed as a wheel. Interpreters are
those on the path and those of pyenv; one that is not there is named and left out. Lowest are the lower bounds of
`pyproject.toml`; the tools of the tests are always the newest.

A build of torch for the CPU in a folder of `PIP_FIND_LINKS` is taken for both, where it fits the interpreter: builds of
the registry bring gigabytes of CUDA. `--torch registry` takes those, and with them the lower bound of torch.
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


def local_torch(python: str) -> list[str]:
    """The version of torch for this Python in a folder of `PIP_FIND_LINKS`, as a constraint; empty if there is none."""
    tag = f"cp{python.replace('.', '')}"
    folders = [Path(name) for name in os.environ.get("PIP_FIND_LINKS", "").split()]
    wheels = sorted(wheel.name for folder in folders for wheel in folder.glob(f"torch-*-{tag}-{tag}-*.whl"))
    return [f"torch=={wheels[-1].split('-')[1]}"] if wheels else []


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


def try_versions(python: str, resolution: str, wheel: Path, tests: list[str], torch: str) -> str:
    """One line about a combination: its versions, and how many tests passed in which time."""
    name = f"{python}-{resolution}"
    log, place, chosen = FOLDER / f"{name}.log", FOLDER / name, FOLDER / f"{name}.txt"
    log.unlink(missing_ok=True)
    interpreter = find_interpreter(python)
    if interpreter is None:
        return f"{name}: there is no Python {python} here"
    fixed = FOLDER / f"{name}.in"
    fixed.write_text("\n".join(local_torch(python) if torch == "local" else []) + "\n")
    if torch == "local" and not fixed.read_text().strip():
        return f"{name}: no build of torch for the CPU in PIP_FIND_LINKS; --torch registry takes one with CUDA"
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
            return f"{name}: the installation fails, see {log}"
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
    run([own, "-m", "pytest", *options, *tests], log, OMP_NUM_THREADS="1")
    counts = re.findall(r"^(\d+ (?:failed|passed|error).*) in [\d.]+s", log.read_text(), re.M)
    found = counts[-1] if counts else "the tests did not end"
    return f"{name}: {about}: {found} ({time.monotonic() - start:.0f} s)"


def main() -> None:
    """Every combination, or those that are asked for, one after the other."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--python", action="append", help="3.11 to 3.14; default: all")
    reader.add_argument("--resolution", action="append", choices=[*RESOLUTIONS], help="default: both")
    reader.add_argument("--test", action="append", help="test files; default: the core")
    reader.add_argument("--torch", choices=("local", "registry"), default="local", help="which builds of torch")
    asked = reader.parse_args()
    FOLDER.mkdir(exist_ok=True)
    wheel = build_wheel(FOLDER / "build.log")
    for python in asked.python or PYTHONS:
        for resolution in asked.resolution or RESOLUTIONS:
            sys.stdout.write(try_versions(python, resolution, wheel, asked.test or list(CORE), asked.torch) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
