"""List known vulnerabilities of every locked package with pip-audit; `make vulnerabilities` runs it.

Exit code 0: every package was looked up and none has a known vulnerability; 1: some have; 2: a package could not be
looked up, which is no finding either way (pip-audit itself ends with 0 then).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FOLDER = Path(__file__).parent
SERVICES = ("osv", "pypi")
Pin = tuple[str, str]
"""Name and version of a package, both in their normal form."""


def as_pin(name: str, version: str) -> Pin:
    """A package however its name and version are spelled."""
    return canonicalize_name(name), str(Version(version))


def read_pins(lock: Path) -> set[Pin]:
    """The packages of a lock, also those for other systems and Pythons than the present ones."""
    pins = set()
    for line in lock.read_text().splitlines():
        if line[:1].isalnum():
            wanted = Requirement(line.removesuffix("\\"))
            (only,) = wanted.specifier
            pins.add(as_pin(wanted.name, only.version))
    return pins


def apart(pins: Iterable[Pin]) -> list[dict[str, str]]:
    """Versions by name, in parts that hold a name once: pip-audit refuses a list with two versions of a package."""
    parts: list[dict[str, str]] = []
    for name, version in sorted(pins):
        part = next((each for each in parts if name not in each), None)
        if part is None:
            part = {}
            parts.append(part)
        part[name] = version
    return parts


def ask(versions: dict[str, str], service: str) -> list[dict[str, object]]:
    """What a service says of each package; empty if it does not answer."""
    with tempfile.TemporaryDirectory() as folder:
        # The lock itself would not do: pip-audit leaves out packages whose marker does not fit this machine.
        asked, out = Path(folder) / "asked.txt", Path(folder) / "found.json"
        asked.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        options = ("--disable-pip", "--no-deps", "--format", "json", "--output", str(out), "--timeout", "20")
        command = (sys.executable, "-m", "pip_audit", "--requirement", str(asked), "--vulnerability-service", service)
        subprocess.run((*command, *options), check=False, capture_output=True)
        content = out.read_bytes() if out.exists() else b""
    found: list[dict[str, object]] = json.loads(content)["dependencies"] if content else []
    return found


def look_up(pins: Iterable[Pin], service: str) -> dict[Pin, object]:
    """The vulnerabilities of each package that a service knows."""
    # A package that a service does not know is "skipped", and pip-audit calls the whole list clean.
    return {
        as_pin(str(each["name"]), str(each["version"])): each["vulns"]
        for versions in apart(pins)
        for each in ask(versions, service)
        if "vulns" in each
    }


def main() -> int:
    """Ask the first service for all packages, and the next one for those that were not answered."""
    places: dict[Pin, list[str]] = {}
    for lock in sorted(FOLDER.glob("*.lock")):
        for pin in read_pins(lock):
            places.setdefault(pin, []).append(lock.name)
    known: dict[Pin, object] = {}
    for service in SERVICES:
        known |= look_up(places.keys() - known.keys(), service)
    hit = {pin for pin, found in known.items() if found}
    unknown = places.keys() - known.keys()
    # Where no service answers at all, a list of everything would say no more than its length.
    for pin in sorted(hit | unknown if known else ()):
        about = json.dumps(known[pin]) if pin in hit else "could not be looked up"
        sys.stdout.write(f"{' '.join(pin)} ({', '.join(places[pin])}): {about}\n")
    sys.stdout.write(f"{len(known)} of {len(places)} packages looked up, {len(hit)} with known vulnerabilities\n")
    if unknown:
        sys.stdout.write(f"nothing is known of the other {len(unknown)}: no service answered for them\n")
    return 1 if hit else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
