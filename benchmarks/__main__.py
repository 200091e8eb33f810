"""Run all benchmarks one after the other, print the ratios, and write results.json beside this file.

With names (`python -m benchmarks attention_flow methods`) only those run and nothing is written: recorded numbers come
from one run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

BENCHMARKS = (
    "rank_correlation",
    "agreement",
    "permutation",
    "adversarial_attention",
    "leave_one_out",
    "training_loop",
    "adversarial_training",
    "perturbation",
    "attention_flow",
    "hypergradient",
    "methods",
    "speed",
    "sampling_error",
)
"""Module names: worker processes import this file again and must not import every benchmark."""


def main(names: Sequence[str]) -> None:
    """One torch thread, so that ratios do not depend on the machine's cores."""
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    results = list(_measure(names or BENCHMARKS))
    if not names:
        path = Path(__file__).with_name("results.json")
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path}")


def _measure(names: Sequence[str]) -> Iterator[dict[str, str | float]]:
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
