"""How often predicted classes are right: for trials whose tables keep classes, not probabilities."""

from __future__ import annotations

import math

import pandas as pd


def right(answered: pd.Series[int], label: pd.Series[int]) -> dict[str, float]:
    """Accuracy, and F1 of class 1 (undefined where there are more than two classes, or class 1 never occurs)."""
    accuracy = float((answered == label).mean())
    if max(int(answered.max()), int(label.max())) > 1:
        return {"accuracy": accuracy, "f1": math.nan}
    hits = int(((answered == 1) & (label == 1)).sum())
    claimed = int((answered == 1).sum()) + int((label == 1).sum())
    return {"accuracy": accuracy, "f1": 2 * hits / claimed if claimed else math.nan}
