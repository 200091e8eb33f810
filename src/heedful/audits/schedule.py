"""`audit`: do the work that fits into the minutes given, and put the result together.

A fixed core of methods is audited whatever the time: less time means fewer texts. What is finished is stored, so that
an interrupt, a deadline or another call with more minutes loses nothing and repeats nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Literal

import numpy as np
import pandas as pd
import torch

from heedful.attributions.registry import Methods, list_methods
from heedful.audits.audit_result import Audit
from heedful.audits.audit_run import AuditRun
from heedful.data.columns import TableColumns, detect_columns
from heedful.data.io import TEXT_OR_PATH, check_types
from heedful.data.table import EvaluationTable
from heedful.devices import Precision, check_device, is_same_device
from heedful.execution.runner import POOL, check_where
from heedful.explainer import ModelSource, load
from heedful.recommendation import AUDITS
from heedful.report.explorer import write_text_page
from heedful.report.html import check_report_folder
from heedful.store.atomic_write import replace_text, translate_write_errors
from heedful.store.workspace import Workspace
from heedful.types import Corpus, Method, UserError, check_choice, shorten, user_path

TEXTS_FOLDER, TEXTS_PAGE = "texts", "texts.html"
AuditedFeature = Literal["word", "sentence", "segment"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class AuditOptions:
    """What a user may choose about an audit.

    Args:
        minutes: time budget of this call; finished work of earlier calls is reused.
        methods: names of the catalogue or methods, audited in addition to `CORE_METHODS`.
        attributions: a file with scores made elsewhere, audited beside the others.
        columns: columns of the data; those that are not named are detected.
        workers: blocks at a time; by default two processes, or one block per core of a cluster.
        texts: stop at this many texts that represent the data (rounded up to a whole block) even if there is time left.
        train_data: texts for students, which show whether explanations teach; takes half of the time.
        required: names of methods that must be audited, and are not left out to save time.
        where: executor, as for `heedful.run`; a model in memory stays in this process.
        only_methods: audit the named methods and the scores made elsewhere alone, without `CORE_METHODS`.
        feature: what is explained and removed together: "segment" takes the words of a text of at most 40 words and
            about twenty runs of words of a longer one, which bounds the time that a text takes; or "sentence", "word".
    """

    minutes: float = 5.0
    methods: tuple[str | Method, ...] = ()
    attributions: str | None = None
    columns: TableColumns = field(default_factory=TableColumns)
    seed: int = 0
    workers: int | None = None
    texts: int | None = None
    train_data: str | None = None
    required: tuple[str, ...] = ()
    where: str = POOL
    only_methods: bool = False
    feature: AuditedFeature = "segment"

    def __post_init__(self) -> None:
        check_types(
            "AuditOptions",
            {
                "where": (self.where, str),
                "workers": (self.workers, (Integral, NoneType)),
                "texts": (self.texts, (Integral, NoneType)),
                "seed": (self.seed, Integral),
                "minutes": (self.minutes, Real),
                "methods": (self.methods, (tuple, list)),
                "columns": (self.columns, TableColumns),
                "attributions": (self.attributions, (*TEXT_OR_PATH, NoneType)),
                "train_data": (self.train_data, (*TEXT_OR_PATH, NoneType)),
                "only_methods": (self.only_methods, bool),
            },
        )
        check_where(self.where, self.workers)
        check_choice("feature", self.feature, AuditedFeature)
        if not 0 < self.minutes <= 60 * 24 * 7 or not math.isfinite(self.minutes):
            raise UserError(f"minutes is {self.minutes}; give a number above 0, at most a week")
        if self.texts is not None and self.texts < 1:
            raise UserError(f"texts is {self.texts}; give at least 1")
        if self.only_methods and not (self.methods or self.attributions):
            raise UserError("only_methods (--only-methods) needs methods; name them, or leave it out")


def audit(
    model: ModelSource,
    data: str | Path | Corpus | pd.DataFrame,
    *,
    minutes: float = 5.0,
    methods: Methods = (),
    workspace: Workspace | str | Path = "workspace",
    options: AuditOptions | None = None,
    out: str | Path | None = None,
    say: Say | None = None,
    device: str | None = None,
    precision: Precision = "float32",
    start: float | None = None,
) -> Audit:
    """Which explanations of this model may be shown? Several methods on the same texts, and a decision on each.

    Args:
        model: a folder, a hub id, `(network, tokenizer)`, or an `Explainer`.
        data: a CSV, TSV, JSONL, JSON or Parquet file; a DataFrame; or a corpus, whose test split is used.
        minutes: time budget; another call resumes and repeats nothing.
        methods: names of the catalogue, or methods, audited in addition to `CORE_METHODS`.
        options: all other options; with it, `minutes` and `methods` are read from there.
        out: folder for the pages: the answer, the evidence of each question, and all texts with their explanations.
        say: is called with each line about what was understood, planned and done; by default the lines are printed to
            the standard error.
        device: as in `load`; a `Workspace` computes on its own device.
        precision: as in `load`.
        start: when the minutes began, on the clock of `time.monotonic`; by default now. Give it where opening the model
            counts as well.
    """
    start = time.monotonic() if start is None else start
    check_types(
        "audit",
        {
            "start": (start, Real),
            "data": (data, (*TEXT_OR_PATH, pd.DataFrame, Corpus)),
            "workspace": (workspace, (Workspace, *TEXT_OR_PATH)),
            "options": (options, (AuditOptions, NoneType)),
            "out": (out, (*TEXT_OR_PATH, NoneType)),
        },
    )
    if say is not None and not callable(say):
        raise UserError(f"audit: say is {shorten(say)}; give a function that takes a line, for instance print")
    chosen = options or AuditOptions(minutes, list_methods(methods))
    folder = None if out is None else user_path(out)
    if isinstance(workspace, Workspace):
        if device is not None and not is_same_device(torch.device(workspace.device), check_device(device)):
            raise UserError(f"the workspace computes on {workspace.device}: leave device out, or open it on {device}")
        if isinstance(model, str | Path):
            device = workspace.device
    explainer = load(model, device=device, precision=precision)
    if not isinstance(workspace, Workspace):
        workspace = Workspace(workspace, device=str(explainer.device))
    explainer.check_folder()
    corpus, source = audited_corpus(data, explainer.class_names, chosen.columns, workspace)
    running = AuditRun(explainer, corpus, source, chosen, workspace, say or _print_line, start)
    analysis, result = running.run()
    if folder is not None:
        check_report_folder(folder / TEXTS_FOLDER)
        write_text_page(analysis.text_table(result), folder / TEXTS_FOLDER / TEXTS_PAGE)
        result.to_html(folder, texts=f"{TEXTS_FOLDER}/{TEXTS_PAGE}")
    return result


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")


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
