"""Tables as CSV that spreadsheets show and do not execute."""

from __future__ import annotations

import re

import pandas as pd

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def csv_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula: an apostrophe comes before it if it could be one.

    >>> [csv_cell(value) for value in ("=1+1", "@x", "-", "-1.5", "+2e3", -1.5, "a=b", None)]
    ["'=1+1", "'@x", "'-", '-1.5', '+2e3', -1.5, 'a=b', None]
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA_STARTS) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def csv_text(table: pd.DataFrame) -> str:
    """A table with its header; exact texts are in the JSON or Parquet file of the same numbers."""
    safe = table.apply(lambda column: column.map(csv_cell) if column.dtype.kind in "OTU" else column)
    return str(safe.rename(columns=csv_cell).to_csv(index=False, lineterminator="\n"))
