"""One way of timing for all benchmarks: the best of a few runs, one torch thread, ours and the peer's in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Row:
    """Seconds of ours and of a named peer for the same work, or what else `unit` says."""

    unit: ClassVar[str] = "s"

    name: str
    ours: float
    peer: float
    peer_name: str

    def described(self) -> dict[str, str | float]:
        """The row as it stands in results.json; `ratio` says how many times longer the peer takes."""
        return {
            "name": self.name,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "ratio": self.peer / self.ours,
            "unit": self.unit,
        }


def compared(name: str, ours: Callable[[], object], peer: Callable[[], object], peer_name: str, runs: int = 3) -> Row:
    """The best of `runs` timings of each, taken in turn so that both meet the same machine."""
    ours_seconds, peer_seconds = [], []
    for _ in range(runs):
        ours_seconds.append(_seconds(ours))
        peer_seconds.append(_seconds(peer))
    return Row(name, min(ours_seconds), min(peer_seconds), peer_name)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_megabytes() -> float:
    """Peak memory of this process since it began; not `ru_maxrss`, which it inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
