"""The data of an audit as a corpus, of which recipes know the path of a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from heedful.data.columns import TableColumns, detect_columns
from heedful.data.table import EvaluationTable
from heedful.recommendation import AUDITS
from heedful.store.atomic_write import replace_text, translate_write_errors
from heedful.store.workspace import Workspace
from heedful.types import Corpus, UserError


def audited_corpus(
    data: str | Path | Corpus | pd.DataFrame, classes: Sequence[str], columns: TableColumns, workspace: Workspace
) -> tuple[Corpus, str]:
    """The corpus that is audited, and where it is from, in words.

    Args:
        classes: names of the model's outputs.
        columns: that the user named.
    """
    if isinstance(data, Corpus):
        return data, data.name
    if isinstance(data, pd.DataFrame):
        path, source = _store_frame(data, workspace), type(data).__name__
    else:
        path, source = str(data), str(data)
    return EvaluationTable(path, detect_columns(path, outputs=tuple(classes), columns=columns)), source


def _store_frame(frame: pd.DataFrame, workspace: Workspace) -> str:
    """The path of a CSV file in the workspace with the rows of a DataFrame; its folder is named by the content."""
    if frame.empty:
        raise UserError("the DataFrame has no rows or no columns; give one row per text")
    if frame.columns.nlevels > 1 or not frame.columns.is_unique:
        raise UserError("the DataFrame has several columns of one name; rename them")
    try:
        text = frame.map(_cell_text).to_csv(index=False, lineterminator="\n")
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the DataFrame cannot be written as a table ({error}): give texts, numbers or lists"
        ) from error
    path = workspace.root / AUDITS / f"frame-{digest}" / "frame.csv"
    if not path.is_file():
        with translate_write_errors(workspace.root):
            replace_text(path, text)
    return str(path)


def _cell_text(value: object) -> object:
    """A cell of a table as CSV files have it: lists as JSON."""
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return json.dumps(plain) if isinstance(plain, list | tuple | dict) else plain
