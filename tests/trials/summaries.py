"""Tidy summaries in the form that tests compare."""

from __future__ import annotations

import pandas as pd


def values(summary: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """The value of each metric, method and subset."""
    rows = summary[["metric", "method", "subset", "value"]].itertuples(index=False, name=None)
    return {(metric, method, subset): value for metric, method, subset, value in rows}
