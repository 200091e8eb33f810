"""Rows of users' files in one form: plain tables, HateXplain's own `dataset.json`, ERASER's with its documents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heedful.data.io import Row, is_present, iterate_rows
from heedful.data.label_match import HATEXPLAIN_CLASSES
from heedful.types import UserError, shorten

MAX_DOCUMENT_SIZE = 1 << 24
DOCUMENTS = "docs"
"""Folder of ERASER's documents, beside the file of annotations."""
NO_LABEL = ("-", "-1")
"""How SNLI and the hub write that a row has no label."""

Layout = Literal["table", "hatexplain", "eraser"]
LAYOUT_NOTES: Mapping[Layout, str] = {
    "hatexplain": "the file has HateXplain's own form: a label is that of most annotators, none if no label has most; "
    "a word is marked if at least half of those who marked words marked it; normal posts have no rationale",
    "eraser": "the file has ERASER's form, with the documents in the folder docs beside it",
}


@dataclass(frozen=True)
class StandardRow:
    """A row as that of a plain table.

    Args:
        layout: the form of the file.
        annotators: lists of marks in HateXplain's form.
        wrong_lengths: the lengths of those that do not fit the post: one post of the published file has such a list.
    """

    row: Row
    layout: Layout = "table"
    annotators: int = 0
    wrong_lengths: tuple[int, ...] = ()


def standard_rows(path: Path) -> Iterator[StandardRow]:
    """The rows of a file as those of a plain table."""
    documents = path.parent / DOCUMENTS
    for row in iterate_rows(path):
        if "post_tokens" in row.values and "annotators" in row.values:
            yield _hatexplain_row(row)
        elif "evidences" in row.values and "annotation_id" in row.values and is_present(documents, "folder"):
            yield StandardRow(_eraser_row(row, documents), "eraser")
        else:
            yield StandardRow(row)


def files_of_table(path: Path) -> tuple[Path, ...]:
    """The files that `standard_rows` reads: also the documents of ERASER."""
    documents = path.parent / DOCUMENTS
    if not is_present(documents, "folder") or next(standard_rows(path)).layout != "eraser":
        return (path,)
    try:
        return (path, *sorted(document for document in documents.iterdir() if document.is_file()))
    except OSError as error:
        raise UserError(f"{documents}: {error.strerror}; check the folder and its permissions") from error


def _hatexplain_row(row: Row) -> StandardRow:
    """A post of HateXplain: joined words, the label of most annotators, and the words that half of them marked.

    Posts without a label of their own, and normal ones, have no rationale, as in the paper.
    """
    tokens = row.value("post_tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{row.location}: post_tokens is {shorten(tokens)}; give a list of words")
    label = _majority_label(row)
    lists = row.values.get("rationales") or []
    if not isinstance(lists, list):
        raise UserError(f"{row.location}: rationales is {shorten(lists)}; give one list of 0 and 1 per annotator")
    for flags in lists:
        if not isinstance(flags, list) or not all(isinstance(flag, int | float) and flag in (0, 1) for flag in flags):
            raise UserError(f"{row.location}: rationales has {shorten(flags)}; give one list of 0 and 1 per annotator")
    marks = [flags for flags in lists if len(flags) == len(tokens)]
    rationale: list[int] | None = None
    if marks and label not in (None, "normal"):
        votes = zip(tokens, (sum(column) for column in zip(*marks, strict=True)), strict=True)
        rationale = [int(2 * vote >= len(marks)) for token, vote in votes for _ in token.split()]
    uid = row.values.get("post_id", row.values.get("id"))
    values = {
        **({} if uid is None else {"id": uid}),
        "text": " ".join(tokens),
        "label": label,
        "rationale": rationale,
    }
    wrong = tuple(len(flags) for flags in lists if len(flags) != len(tokens))
    return StandardRow(Row(row.source, row.line, values, row.line_name), "hatexplain", len(lists), wrong)


def _majority_label(row: Row) -> str | None:
    """The label of most annotators; None if no label has more than the others."""
    annotators = row.value("annotators")
    labels: object = annotators.get("label") if isinstance(annotators, dict) else annotators
    if isinstance(annotators, list):
        labels = [entry.get("label") if isinstance(entry, dict) else entry for entry in annotators]
    if not isinstance(labels, list):
        raise UserError(f"{row.location}: annotators is {shorten(annotators)}; give a list with a label each")
    names = []
    for label in labels:
        if isinstance(label, int) and 0 <= label < len(HATEXPLAIN_CLASSES):
            label = HATEXPLAIN_CLASSES[label]
        if not isinstance(label, str):
            raise UserError(f"{row.location}: an annotator has the label {shorten(label)}; give a name")
        names.append(label)
    (first, votes), *others = [*Counter(names).most_common(2), (None, 0)][:2]
    return first if first is not None and all(count < votes for _, count in others) else None


def _eraser_row(row: Row, documents: Path) -> Row:
    """An annotation of ERASER with its document."""
    evidences = row.value("evidences")
    groups = evidences if isinstance(evidences, list) else []
    spans = [span for group in groups for span in (group if isinstance(group, list) else [group])]
    if not all(isinstance(span, dict) for span in spans) or not isinstance(evidences, list):
        raise UserError(f"{row.location}: evidences is {shorten(evidences)}; give lists of spans with start_token")
    ids = row.values.get("docids") or sorted({str(span.get("docid")) for span in spans}) or [row.value("annotation_id")]
    if not isinstance(ids, list) or len(ids) != 1 or not isinstance(ids[0], str):
        raise UserError(f"{row.location}: it has the documents {shorten(ids)}; only one document per text is read")
    name = ids[0]
    if Path(name).name != name or not is_present(documents / name, "file"):
        raise UserError(f"{row.location}: no document {shorten(name)} in {documents}; check the folder")
    values: dict[str, object] = {
        "id": row.value("annotation_id"),
        "document": _read_document(documents / name),
        "label": row.values.get("classification"),
        "rationale": spans,
    }
    query = row.values.get("query")
    if isinstance(query, str) and query.strip():
        values["question"] = query
    return Row(row.source, row.line, values, row.line_name)


def _read_document(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_DOCUMENT_SIZE:
            raise UserError(f"{path}: longer than {MAX_DOCUMENT_SIZE} bytes; is it a document?")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8; save the document as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the file and its permissions") from error


def text_of_row(row: Row, columns: tuple[str, ...]) -> tuple[str, ...] | None:
    """The texts of a row as they are, lists of words joined; None if one is missing or blank."""
    if any(is_blank(_join_words(row.values.get(column))) for column in columns):
        return None
    return required_text(row, columns)


def required_text(row: Row, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The texts of a row; UserError if one is missing or blank."""
    parts = []
    for column in columns:
        value = _join_words(row.value(column))
        # Text checks the type and half characters, which may also come from the words of a list.
        parts.append(Row(row.source, row.line, {column: value}, row.line_name).text(column))
    return tuple(parts)


def label_text(row: Row, column: str) -> str | None:
    """The label or id of a row as text, None if it has none; 1 and 1.0 are one class."""
    value = row.value(column)
    if is_blank(value):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{row.location}: column {shorten(column)} holds {shorten(value)}, neither a text nor a number; give one "
            "value per row"
        )
    return str(value).strip()


def _join_words(value: object) -> object:
    return " ".join(value) if isinstance(value, list) and all(isinstance(word, str) for word in value) else value


def is_blank(value: object) -> bool:
    """Whether a cell holds nothing."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # NaN is not itself


def finite_number(text: str) -> float | None:
    """The number that a text spells; None for another text, and for infinity."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
