"""Whether a method shares out what it promises: the difference between the output and that of its reference.

DeepLIFT and integrated gradients promise it; an operation that no rule covers, or too few steps, leaves a gap.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from heedful.core.workspace import Json

MISSED = "missed"
"""The name in the notes of an attribution."""


def missed(table: pd.DataFrame) -> dict[str, Json]:
    """The `largest` and the `mean` |gap| over texts, as shares of the mean |difference|; nothing without a promise.

    The scores of a text sum to difference + gap. The mean difference is the measure of all, because single ones may be
    near 0. Where nothing is to be shared out, whatever is shared out counts as 1.

    >>> missed(pd.DataFrame({"scores": [[1.0, 1.5], [-1.0, -1.0]], "gap": [0.5, 0.0]}))
    {'missed': {'largest': 0.25, 'mean': 0.125}}
    """
    if "gap" not in table.columns:
        return {}
    gap = table["gap"].to_numpy(np.float64)
    shared_out = np.array([np.sum(scores) for scores in table["scores"]], dtype=np.float64)
    difference = float(np.abs(shared_out - gap).mean())
    shares = (gap != 0).astype(np.float64) if difference == 0 else np.abs(gap) / difference
    return {MISSED: {"largest": _finite(float(shares.max())), "mean": _finite(float(shares.mean()))}}


def _finite(value: float) -> float | None:
    """The number; None where a score was no finite number, which notes cannot hold."""
    return value if math.isfinite(value) else None
