"""CSV exports: no cell is a formula, and numbers stay numbers."""

from __future__ import annotations

import ast
import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import heedful
from heedful.store.csv_text import csv_cell, csv_text

FORMULAS = [
    *("=1+1", "@SUM(A1)", "+x", "-", "--", "-1+1", "\t=1", "\r=1", "\n=1", "-x", "-.", "-1e"),
    "+1+cmd|' /C calc'!A0",
]
PLAIN = ["", "a=b", "-1", "+1.5", "-.5", "-2e-3", "1", " =1", "'=1", "-5."]


@pytest.mark.parametrize("text", FORMULAS + PLAIN)
def test_formulas_are_escaped_and_numbers_and_other_texts_stay(text: str) -> None:
    assert csv_cell(text) == (f"'{text}" if text in FORMULAS else text)


def test_only_texts_of_a_table_are_escaped() -> None:
    table = pd.DataFrame(
        {"=word": ["-", "fine"], "score": [-1.5, np.nan], "n": [-1, 2], "kind": pd.Categorical(["@x", "y"])}
    )
    rows = list(csv.reader(io.StringIO(csv_text(table))))
    assert rows == [["'=word", "score", "n", "kind"], ["'-", "-1.5", "-1", "'@x"], ["fine", "", "2", "y"]]


def test_every_csv_file_of_the_package_is_written_by_it() -> None:
    """`to_csv` is called in one place, and every other writer of CSV escapes its cells.

    A frame that an audit keeps in its workspace is read back and must stay as it is.
    """
    root = Path(heedful.__file__).parent
    calls: dict[str, set[str]] = {"to_csv": set(), "writer": set(), "DictWriter": set()}
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if name in calls and (name == "to_csv" or "import csv" in text):
                calls[name].add(path.relative_to(root).as_posix())
    assert calls == {
        "to_csv": {"store/csv_text.py", "audits/schedule.py"},
        "writer": {"study/storage.py"},
        "DictWriter": set(),
    }
