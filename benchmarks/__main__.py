"""Runs all benchmarks one after the other, prints the ratios, and writes results.json beside this file."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks import (
    adversary,
    agreement,
    bilevel,
    correlation,
    counterfactual,
    deceiving,
    deletion,
    flow,
    learning,
    methods,
    perturbation,
)

ALL = (
    correlation,
    agreement,
    counterfactual,
    adversary,
    deletion,
    learning,
    deceiving,
    perturbation,
    flow,
    bilevel,
    methods,
)


def main() -> None:
    """One torch thread, so that ratios do not depend on the machine's cores."""
    torch.set_num_threads(1)
    results = []
    for benchmark in ALL:
        for row in benchmark.rows():
            found = row.described()
            results.append(found)
            ours, peer = f"{row.ours:.4f} {row.unit}", f"{row.peer:.4f} {row.unit}"
            print(f"{row.name}: {ours}, {peer} ({row.peer_name}), ratio {found['ratio']:.1f}")
    path = Path(__file__).with_name("results.json")
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
