"""The ledger as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from heedful.reproduction.ledger import Record


def write_ledger_page(records: Mapping[str, Sequence[Record]], ledger: Path, page: Path) -> Path:
    """Write the page of a ledger; returns its path."""
    raise NotImplementedError
