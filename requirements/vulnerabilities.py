"""List known vulnerabilities of every locked package with pip-audit; `make vulnerabilities` runs it.

Exit code 0: every package was looked up and none has a known vulnerability; 1: some have; 2: a package could not be
looked up, which is no finding either way (pip-audit itself ends with 0 then).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SERVICES = ("osv", "pypi")


def look_up(lock: Path, service: str) -> list[dict[str, object]]:
    """What a service knows of each package of a lock; empty if it does not answer."""
    with tempfile.NamedTemporaryFile() as out:
        options = ("--disable-pip", "--no-deps", "--format", "json", "--output", out.name, "--timeout", "20")
        command = (sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--vulnerability-service", service)
        subprocess.run((*command, *options), check=False, capture_output=True)
        content = Path(out.name).read_bytes()
    found: list[dict[str, object]] = json.loads(content)["dependencies"] if content else []
    return found


def main() -> int:
    """Ask the services in turn until one answers."""
    known: dict[str, object] = {}
    unknown: set[str] = set()
    for lock in sorted(FOLDER.glob("*.lock")):
        # A package that a service does not know is "skipped", and pip-audit calls the whole list clean.
        answers = max(
            (look_up(lock, service) for service in SERVICES), key=lambda found: sum("vulns" in e for e in found)
        )
        pins = {line.partition("==")[0] for line in lock.read_text().splitlines() if "==" in line}
        known |= {str(each["name"]): each["vulns"] for each in answers if "vulns" in each}
        unknown |= pins
    unknown -= known.keys()
    hit = {name: found for name, found in known.items() if found}
    for name, found in sorted(hit.items()):
        sys.stdout.write(f"{name}: {json.dumps(found)}\n")
    if unknown:
        sys.stdout.write(
            f"{len(unknown)} of {len(unknown) + len(known)} packages could not be looked up: no service of known "
            "vulnerabilities answers from here; nothing is known of them\n"
        )
    else:
        sys.stdout.write(f"{len(known)} packages looked up, {len(hit)} with known vulnerabilities\n")
    return 1 if hit else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
