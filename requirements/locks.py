"""Write the lock files: every package of an extra with the hashes of all its files, for Linux, macOS and Windows.

`make lock` runs it; `make lock UPGRADE=--upgrade` takes the newest versions. Packages that only the CUDA build of torch
needs stand in `cuda.lock`, so that the CPU build installs without them. Local builds of torch (`torch-2.13.0+cpu`, in
a folder of pip's `find-links`) are other files of the same version: their hashes are added. pip prefers a file whose
hash an index names to one in a folder, so `torch.lock` has torch alone: it is installed first, without an index.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parent / "pyproject.toml"
PYTHON = "3.11"
CUDA = re.compile(r"(nvidia-|cuda-|triton)")
HEADER = "# Written by `make lock`: pip install --require-hashes -r requirements/{name}{cuda}\n"
BASE = "base"
IN_DEV = ("adapters", "demo", "postgresql", "ray", "s3", "study")
"""Extras whose packages the tests need."""
ALONE = {"mutants": ("dev",), "tools": ()}
"""Locks of their own, from `NAME.in`, and the locks that they are installed beside."""


def split_packages(text: str) -> dict[str, list[str]]:
    """The blocks of each package in a lock: more than one if its version differs between systems or Pythons."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text.strip()):
        if block:
            found.setdefault(block.partition("==")[0], []).append(block)
    return found


def compile_lock(sources: Iterable[str], name: str, options: Iterable[str]) -> dict[str, list[str]]:
    """The blocks of each package, with the versions of the present lock as far as they fit."""
    # What was taken out of a lock is in that of CUDA: without it uv would choose the newest versions every time.
    present = [path.read_text() for path in (FOLDER / f"{name}.lock", FOLDER / "cuda.lock") if path.exists()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lock"
        out.write_text("\n".join(present))
        command = ("pip", "compile", *sources, "--universal", "--generate-hashes", "--python-version", PYTHON)
        plain = ("--no-annotate", "--no-header", "--quiet", "--output-file", str(out))
        subprocess.run((sys.executable, "-m", "uv", *command, *plain, *options), check=True, stdout=subprocess.DEVNULL)
        return split_packages(out.read_text())


def with_local_builds(block: str, present: str) -> str:
    """A block of torch with the hashes of its local builds, also those of the present lock of the same version."""
    version, digest = block.partition("==")[2].split()[0], r"sha256:([0-9a-f]{64})"
    before = re.search(rf"^torch=={re.escape(version)} .*?(?=^\S|\Z)", present, re.M | re.S)
    own = {*re.findall(digest, block), *(re.findall(digest, before[0]) if before else ())}
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in sorted(Path(folder).glob(f"torch-{version}+*.whl")):
            own.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    first = block.partition(" \\\n")[0]
    return " \\\n".join([first, *(f"    --hash=sha256:{each}" for each in sorted(own))])


def write_lock(name: str, packages: dict[str, list[str]], cuda: dict[str, list[str]]) -> None:
    """A lock file; packages of CUDA are taken out of it and collected."""
    path, needs_cuda = FOLDER / f"{name}.lock", any(CUDA.match(package) for package in packages)
    present = path.read_text() if path.exists() else ""
    cuda.update({package: blocks for package, blocks in packages.items() if CUDA.match(package)})
    kept = [
        with_local_builds(block, present) if package == "torch" else block
        for package, blocks in packages.items()
        if not CUDA.match(package)
        for block in blocks
    ]
    extra = " (-r requirements/cuda.lock too, for the CUDA build of torch)" if needs_cuda else ""
    header = HEADER.format(name=f"{name}.lock", cuda=extra)
    path.write_text(header + "\n".join(kept) + "\n")


def main(options: list[str]) -> None:
    """Write all locks; those of single extras keep to the versions of `dev.lock`."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    cuda: dict[str, list[str]] = {}
    chosen = [part for extra in ("dev", *IN_DEV) for part in ("--extra", extra)]
    write_lock("dev", compile_lock([str(PROJECT)], "dev", [*chosen, *options]), cuda)
    beside = ["--constraints", str(FOLDER / "dev.lock")]
    for name in (BASE, *sorted(extras.keys() - {"dev"})):
        chosen = [] if name == BASE else ["--extra", name]
        write_lock(name, compile_lock([str(PROJECT)], name, [*chosen, *beside, *options]), cuda)
    for name, others in ALONE.items():
        limits = [part for other in others for part in ("--constraints", str(FOLDER / f"{other}.lock"))]
        write_lock(name, compile_lock([str(FOLDER / f"{name}.in")], name, [*limits, *options]), cuda)
    torch = split_packages((FOLDER / "dev.lock").read_text())["torch"]
    header = HEADER.format(name="torch.lock", cuda=" --no-deps")
    (FOLDER / "torch.lock").write_text(header + "\n".join(torch) + "\n")
    header = HEADER.format(name="torch.lock -r requirements/cuda.lock", cuda="")
    (FOLDER / "cuda.lock").write_text(header + "\n".join(block for name in sorted(cuda) for block in cuda[name]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
