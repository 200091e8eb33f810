"""When an artefact was made, how long it took, and with which versions.

An artefact is the same, byte for byte, whenever and wherever it is made, and its manifest is compared between machines.
What depends on the clock is therefore in a document of its own beside the artefacts, `.made/NAME.json`, which no digest
covers and nothing is computed from.
"""

from __future__ import annotations

import datetime
import importlib
import json
import math
import time
from contextvars import ContextVar
from dataclasses import asdict, dataclass

import torch

from heedful.store.recipe import dump_compact_json

MADE_FOLDER = ".made"
_counted: ContextVar[float] = ContextVar("_counted", default=0.0)
"""Seconds that belong to artefacts whose making has ended."""


@dataclass(frozen=True)
class Made:
    """How an artefact was made.

    Args:
        seconds: of the call that finished it and of its shards, without those of other artefacts that were made
            meanwhile; what an interrupted call did before is not included.
        date: when it was finished, in UTC, as in 2026-01-31T12:00:00+00:00.
        heedful: the version of this package.
        torch: the version of PyTorch.
    """

    seconds: float
    date: str
    heedful: str
    torch: str


class Stopwatch:
    """Seconds since it was started, without those of other artefacts that were made meanwhile."""

    def __init__(self) -> None:
        self._start, self._before = time.perf_counter(), _counted.get()

    def stop(self) -> float:
        """The seconds; whoever is making another artefact around this one does not count them."""
        seconds = max(0.0, time.perf_counter() - self._start - (_counted.get() - self._before))
        _counted.set(_counted.get() + seconds)
        return seconds


def made_key(name: str) -> str:
    """The document about the making of an artefact."""
    return f"{MADE_FOLDER}/{name}.json"


def dump_made(seconds: float) -> str:
    """The document about an artefact that is finished now."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # For type checkers, an import of the package itself would be a cycle through everything that its stub names.
    version = str(importlib.import_module("heedful").__version__)
    return dump_compact_json({**asdict(Made(round(seconds, 3), date, version, str(torch.__version__)))})


def parse_made(written: bytes | None) -> Made | None:
    """What a document says; None if there is none or it is damaged."""
    try:
        match json.loads(written or b""):
            case {"seconds": float() | int() as seconds, "date": str(date), "heedful": str(ours), "torch": str(theirs)}:
                is_time = not isinstance(seconds, bool) and math.isfinite(seconds) and seconds >= 0
                return Made(float(seconds), date, ours, theirs) if is_time else None
    except (ValueError, RecursionError, OverflowError):
        return None
    return None
