"""Runs all benchmarks one after the other, prints the ratios, and writes results.json beside this file.

With names (`python -m benchmarks flow methods`) only those are run, and nothing is written: what is recorded comes
from one run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

ALL = (
    "correlation",
    "agreement",
    "counterfactual",
    "adversary",
    "deletion",
    "learning",
    "deceiving",
    "perturbation",
    "flow",
    "bilevel",
    "methods",
)
"""Modules by name: a worker process of a benchmark imports this file again, and shall not wait for all of them."""


def main(names: Sequence[str]) -> None:
    """One torch thread, so that ratios do not depend on the machine's cores."""
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; choose from {', '.join(ALL)}")
    results = list(_measured(names or ALL))
    if not names:
        path = Path(__file__).with_name("results.json")
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path}")


def _measured(names: Sequence[str]) -> Iterator[dict[str, str | float]]:
    import torch

    torch.set_num_threads(1)
    for name in names:
        for row in import_module(f"benchmarks.{name}").rows():
            found = row.described()
            ours, peer = f"{row.ours:.4f} {row.unit}", f"{row.peer:.4f} {row.unit}"
            print(f"{row.name}: {ours}, {peer} ({row.peer_name}), ratio {found['ratio']:.1f}", flush=True)
            yield found


if __name__ == "__main__":
    main(sys.argv[1:])
