"""The rows of the trial `agreement`, against a loop over instances and pairs of methods with SciPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.timing import Row, compared
from heedful.measures.rank_correlation import kendall_matrix
from heedful.trials import agreement

METHODS, INSTANCES = 6, 500
SHORTEST, LONGEST = 20, 50


def rows() -> Iterator[Row]:
    """One row: from six tables of attributions to the table of the trial, values, p-values and ties."""
    tables = {f"method {number}": _attributed(number) for number in range(METHODS)}

    def ours() -> object:
        return agreement.correlate_attributions(tables, kendall_matrix, absolute=True)

    def peer() -> list[tuple[float, float]]:
        return [
            tuple(stats.kendalltau(np.abs(x), np.abs(y)))
            for one, other in combinations(tables.values(), 2)
            for x, y in zip(one["scores"], other["scores"], strict=True)
        ]

    name = f"agreement of {METHODS} methods on {INSTANCES} texts of {SHORTEST} to {LONGEST} units"
    yield compared(name, ours, peer, "scipy.stats.kendalltau in a loop over texts and pairs")


def _attributed(seed: int) -> pd.DataFrame:
    """A table as `Attributed` makes it; all methods have the same texts."""
    lengths = np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, INSTANCES)
    numbers = np.random.default_rng(seed + 1)
    return pd.DataFrame(
        {
            "uid": [f"text-{number}" for number in range(INSTANCES)],
            "scores": [numbers.normal(size=length).tolist() for length in lengths],
            "scored": [[True] * length for length in lengths],
            "segments": [[0] * length for length in lengths],
            "predicted": [number % 2 for number in range(INSTANCES)],
        }
    )
