"""Checksums of what a study stores: a flipped bit is noticed before it changes a result.

A checksum finds accidents. It protects from nobody who means harm: whoever can change the file can change both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

CHECKSUM = "checksum"
"""The key of the checksum in a JSON file."""


def row_checksum(*values: object) -> str:
    """The checksum of one row of a database."""
    return hashlib.sha256("\x1f".join(map(str, values)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def add_checksum(text: str) -> str:
    """A JSON object with its checksum as its first entry.

    >>> text = add_checksum('{"a": 1}')
    >>> text.replace(json.loads(text)["checksum"], "...")
    '{"checksum":"...","a": 1}'
    """
    return f'{{"{CHECKSUM}":"{_json_checksum(json.loads(text))}",{text[1:]}'


def find_damage(text: str | bytes, known: Collection[str]) -> str:
    """What is wrong with a JSON object: an entry that nobody wrote, or another checksum; empty if nothing is.

    Files of earlier versions have no checksum, and are taken as they are.

    >>> find_damage('{"a": 1}', ["a"]), find_damage(add_checksum('{"a": 1}'), ["a"])
    ('', '')
    >>> find_damage(add_checksum('{"a": 1}').replace("1}", "3}"), ["a"])
    'its checksum does not match'
    """
    content = json.loads(text)
    expected = content.pop(CHECKSUM, None)
    if unknown := sorted(content.keys() - set(known)):
        return f"unknown entry {unknown[0]!r}"
    return "its checksum does not match" if expected not in (None, _json_checksum(content)) else ""


def _json_checksum(content: object) -> str:
    return row_checksum(json.dumps(content, sort_keys=True))
