"""`python -m docs.builder.badges` writes badges as SVG files, from numbers that are looked up and not typed.

The number of tests is rounded down to a multiple of 500, so that it stays true while tests are added.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "badges"
LETTER, PADDING, HEIGHT = 6.6, 8, 20
"""Pixels of a letter of 11 px on average, beside a word, and of a badge."""
LABEL, VALUE = "#4a4a4a", "#1f5f8b"
"""Backgrounds; white on them has a contrast above 6."""


def badge(label: str, value: str) -> str:
    """A badge as an SVG image with a title for screen readers."""
    left, right = (round(len(word) * LETTER) + 2 * PADDING for word in (label, value))
    words = "".join(
        f'<text x="{middle:g}" y="14" textLength="{width - 2 * PADDING}">{escape(word)}</text>'
        for word, middle, width in ((label, left / 2, left), (value, left + right / 2, right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(label)}: {escape(value)}"><title>{escape(label)}: {escape(value)}</title>'
        f'<rect width="{left}" height="{HEIGHT}" fill="{LABEL}"/>'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="{VALUE}"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f"{words}</g></svg>\n"
    )


def count_tests() -> int:
    """How many tests pytest collects."""
    command = (
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-o",
        "addopts=--doctest-modules --strict-markers",
    )
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    collected = re.search(r"^(\d+) tests collected", output, re.MULTILINE)
    if collected is None:
        raise RuntimeError(f"pytest does not say how many tests it collects: {output[-200:]}")
    return int(collected[1])


def main() -> None:
    """Write all badges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = {
        "version": project["version"],
        "license": project["license"],
        "python": project["requires-python"],
        "tests": f"over {count_tests() // 500 * 500}",
    }
    FOLDER.mkdir(exist_ok=True)
    for label, value in facts.items():
        (FOLDER / f"{label}.svg").write_text(badge(label, value), encoding="utf-8")


if __name__ == "__main__":
    main()
