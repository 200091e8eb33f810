"""Files of scores that other tools wrote: captum, shap, inseq, ferret, ERASER, and plain tables.

Nothing in a file is run or unpickled.
"""

from __future__ import annotations

import base64
import binascii
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from heedful.data.io import ArrayHeader, array_headers, file_type, iterate_rows, read_json
from heedful.data.rationales import parse_list
from heedful.types import UserError, shorten

MAX_NAME_LENGTH = 80
MAX_ARRAY_SIZE = 1 << 30
"""Bytes of all arrays of a file."""
MIN_CELLS = 1 << 20
"""Scores or tokens that a file may hold however few texts there are."""
MAX_TEXT_WIDTH = 32
"""Characters per token of an array of texts, on average."""
MAX_SCORE = 1e30
"""Size of a score: sums and squares of larger ones are not finite numbers."""
MAX_NESTING = 4
UID_NAMES = ("uid", "id", "annotation_id", "idx", "docid")
SCORE_NAMES = ("scores", "attributions", "attribution", "values")
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "bool")
Target: TypeAlias = str | int | None


@dataclass(frozen=True)
class ScoreRecord:
    """The scores of one text in a file.

    Args:
        location: file and row, for messages.
        method: empty for the name of the file.
        texts: the parts of the text, if the file has them.
        tokens: None if there is one score per whitespace word.
        target: name or index of the explained output; None if the file does not say.
        output: its place among the outputs of the file, for names that the model does not have.
        spans: words `[start, end)` with score 1, in place of scores.
    """

    location: str
    method: str = ""
    uid: str | None = None
    texts: tuple[str, ...] = ()
    tokens: tuple[str, ...] | None = None
    scores: tuple[float, ...] = ()
    target: Target = None
    output: int | None = None
    spans: tuple[tuple[int, int], ...] | None = None


def read_score_records(path: Path, max_cells: int = MIN_CELLS) -> Iterator[ScoreRecord]:
    """The scores in a file of any known form.

    Args:
        max_cells: numbers and texts that the arrays of the file may hold; their headers say how many they are.
    """
    kind = file_type(path)
    if kind == ".npz":
        yield from _batch_records(_read_arrays(path, max_cells), str(path))
    elif kind == ".json":
        value = read_json(path)
        _check_cells(str(path), _count_cells(value), max_cells)
        yield from _records(value, str(path))
    else:
        cells = 0
        for row in iterate_rows(path):
            cells += _count_cells(dict(row.values))
            _check_cells(row.location, cells, max_cells)
            yield from _records(dict(row.values), row.location)


def _count_cells(value: object) -> int:
    """The numbers in the encoded arrays of a JSON value, as their shapes say."""
    cells, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            shape = item.get("shape")
            if "__ndarray__" in item and isinstance(shape, list) and all(isinstance(size, int) for size in shape):
                cells += abs(math.prod(shape))
            waiting += item.values()
        elif isinstance(item, list):
            waiting += [part for part in item if isinstance(part, dict | list)]
    return cells


def _check_cells(location: str, cells: int, max_cells: int) -> None:
    if cells > max_cells:
        raise UserError(
            f"{location}: the arrays hold {cells} values, but these texts need at most {max_cells}; keep the texts of "
            "the data, and add scores up over the embeddings"
        )


def _records(value: object, location: str, depth: int = 0) -> Iterator[ScoreRecord]:
    """The records in a JSON value, by the keys that each tool writes."""
    value = _unwrap(value, location)
    if isinstance(value, list) and depth < MAX_NESTING:
        for number, row in enumerate(value, start=1):
            yield from _records(row, f"{location}, row {number}" if depth == 0 else location, depth + 1)
        return
    if not isinstance(value, dict):
        raise UserError(f"{location}: {shorten(value)} has no scores; see 'Scores made elsewhere' in docs/audit.md")
    if "sequence_attributions" in value:
        yield from _inseq_records(value, location)
    elif "values" in value and "data" in value:
        yield from _shap_records(value, location)
    elif isinstance(value.get("rationales"), list):
        yield from _eraser_records(value, location)
    elif isinstance(value.get("explanation"), dict):
        yield from _records(value["explanation"], location, depth + 1)
    else:
        yield from _batch_records(value, location)


def _unwrap(value: object, location: str) -> object:
    """The content of an object that inseq wrote with its class, or an encoded array."""
    if isinstance(value, dict) and "__instance_type__" in value and isinstance(value.get("attributes"), dict):
        return value["attributes"]
    return _decode_array(value, location) if isinstance(value, dict) and "__ndarray__" in value else value


def _decode_array(value: Mapping[str, object], location: str) -> object:
    """An array of json-tricks: nested lists, or bytes in base64 that may be compressed."""
    content, dtype, shape = value["__ndarray__"], value.get("dtype"), value.get("shape")
    if not isinstance(content, str):
        return content
    if dtype not in _DTYPES or not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise UserError(f"{location}: an array has the type {shorten(dtype)} and the shape {shorten(shape)}")
    size = math.prod(shape) * np.dtype(str(dtype)).itemsize
    header, _, text = content.partition(":")
    try:
        raw = base64.b64decode(text, validate=True)
        if header == "b64.gz" and size <= MAX_ARRAY_SIZE:
            raw = zlib.decompressobj(wbits=31).decompress(raw, size + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise UserError(f"{location}: an array cannot be decoded ({error}); save the file again") from error
    if len(raw) != size:
        raise UserError(f"{location}: an array of shape {shorten(shape)} has {len(raw)} bytes instead of {size}")
    decoded: object = np.frombuffer(raw, dtype=str(dtype)).reshape(shape).tolist()
    return decoded


def _read_arrays(path: Path, max_cells: int) -> dict[str, object]:
    """The arrays of an .npz file as lists; arrays of Python objects are refused, because they would be unpickled."""
    try:
        headers = array_headers(path)
        if sum(header.size for header in headers) > MAX_ARRAY_SIZE:
            raise UserError(f"{path}: holds more than {MAX_ARRAY_SIZE} bytes; give the sums over the embeddings")
        _check_cells(str(path), max(map(_array_cells, headers), default=0), max_cells)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: _sum_of_vectors(arrays[name]).tolist() for name in arrays.files}
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; check the path") from error
    except (
        *(OSError, ValueError, TypeError, EOFError, MemoryError, RuntimeError, NotImplementedError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{path}: not an .npz file of numbers and texts ({reason}); save tokens as an array of texts, not of "
            "objects"
        ) from error


def _array_cells(header: ArrayHeader) -> int:
    """The values of an array; vectors count as one, and long texts as several."""
    cells = math.prod(header.shape)
    if header.kind in "US":
        return max(cells, header.size // (np.dtype("U1").itemsize * MAX_TEXT_WIDTH))
    return math.prod(header.shape[:2]) if len(header.shape) == 3 else cells


def _sum_of_vectors(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Scores `[text token]` from scores of embeddings `[text token width]`, which captum gives."""
    return array.sum(-1, dtype=np.float64) if array.ndim == 3 and array.dtype.kind in "fiub" else array


def _batch_records(value: Mapping[str, object], location: str) -> Iterator[ScoreRecord]:
    """One row, or an object of columns with a list of tokens per text (captum)."""
    scores = next((value[name] for name in SCORE_NAMES if name in value), None)
    tokens = _as_list(value.get("tokens", value.get("words")), location)
    scores = _as_list(_unwrap(scores, location), location)
    if scores is None:
        raise UserError(
            f"{location}: no scores; the columns are {shorten(', '.join(map(str, value)))}, give uid or text, tokens "
            "or words, and scores"
        )
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], list):
        # One text as a batch of one, which is how captum writes it.
        if isinstance(scores, list) and len(scores) == 1 and isinstance(tokens, list) and len(tokens) > 1:
            scores = scores[0] if isinstance(scores[0], list) else scores
        yield _record(value, tokens, scores, location)
        return
    if not isinstance(scores, list) or len(scores) != len(tokens):
        count = len(scores) if isinstance(scores, list) else 1
        raise UserError(f"{location}: there are tokens of {len(tokens)} texts, but scores of {count}")
    for number, (text_tokens, text_scores) in enumerate(zip(tokens, scores, strict=True)):
        row = {
            name: column[number] if isinstance(column, list) and len(column) == len(tokens) else column
            for name, column in value.items()
        }
        yield _record(row, text_tokens, text_scores, f"{location}, text {number + 1}")


def _as_list(value: object, location: str) -> object:
    """The list that a cell of a CSV file spells; other values as they are."""
    return parse_list(value.strip(), location) if isinstance(value, str) else value


def _record(value: Mapping[str, object], tokens: object, scores: object, location: str) -> ScoreRecord:
    """A row with the names of the documented schema, or those of ferret."""
    target = value.get("target_pos_idx", value.get("target"))
    if isinstance(target, float) and target.is_integer():
        target = int(target)
    if not (target is None or isinstance(target, str | int)) or isinstance(target, bool):
        raise UserError(f"{location}: the target is {shorten(target)}; give the name or number of an output")
    method = value.get("method", value.get("explainer")) or ""
    if not isinstance(method, str) or len(method) > MAX_NAME_LENGTH:
        raise UserError(f"{location}: the method is {shorten(method)}; give a short name")
    texts = [value[name] for name in ("text", "second_text") if isinstance(value.get(name), str)]
    return ScoreRecord(
        location=location,
        method=" ".join(method.split()),
        uid=_uid(value),
        texts=tuple(str(text) for text in texts),
        tokens=None if tokens is None else _texts(tokens, location),
        scores=_numbers(scores, location),
        target=target.strip() or None if isinstance(target, str) else target,
    )


def _uid(value: Mapping[str, object]) -> str | None:
    uid = next((value[name] for name in UID_NAMES if value.get(name) not in (None, "")), None)
    if isinstance(uid, float) and uid.is_integer():
        uid = int(uid)
    return str(uid).strip() if isinstance(uid, str | int) else None


def _texts(value: object, location: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        raise UserError(f"{location}: the tokens are {shorten(value)}; give a list of texts")
    return tuple(value)


def _numbers(value: object, location: str, *, undefined: float | None = None) -> tuple[float, ...]:
    """Finite numbers, one per token; vectors are added up. `undefined` replaces NaN."""
    totals: list[float] = []
    for score in value if isinstance(value, list) else [None]:
        parts: list[object] = score if isinstance(score, list) else [score]
        numbers = [part for part in parts if isinstance(part, int | float)]
        if len(numbers) < len(parts):
            raise UserError(f"{location}: the scores are {shorten(value)}; give a list of numbers")
        if undefined is not None:
            numbers = [undefined if math.isnan(number) else number for number in numbers]
        try:
            total = math.fsum(numbers)
        except (OverflowError, ValueError):  # inf - inf
            total = math.nan
        totals.append(_checked_score(total, location, len(totals) + 1))
    return tuple(totals)


def _checked_score(score: float, location: str, token: int) -> float:
    if not math.isfinite(score):
        raise UserError(f"{location}: the score of token {token} is not a finite number")
    if abs(score) > MAX_SCORE:
        raise UserError(
            f"{location}: the score of token {token} is {score:g}; divide all scores: at most {MAX_SCORE:g}"
        )
    return score


def _shap_records(value: Mapping[str, object], location: str) -> Iterator[ScoreRecord]:
    """A `shap.Explanation`: `data` holds tokens, `values` one number per token, or one per token and output."""
    values, data = _unwrap(value["values"], location), _unwrap(value["data"], location)
    names = value.get("output_names")
    if not isinstance(values, list) or not isinstance(data, list) or len(values) != len(data):
        raise UserError(f"{location}: values and data of a shap.Explanation must be lists of the same length")
    if data and isinstance(data[0], str):  # one text
        values, data = [values], [data]
    uids = value.get("uid", value.get("instance_names"))
    for number, (tokens, rows) in enumerate(zip(data, values, strict=True)):
        text = f"{location}, text {number + 1}"
        uid = uids[number] if isinstance(uids, list) and len(uids) == len(data) else None
        whole = ScoreRecord(text, "shap", None if uid is None else str(uid), tokens=_texts(tokens, text))
        if not isinstance(rows, list):
            raise UserError(f"{text}: the values are {shorten(rows)}; give one number per token")
        if not rows or not isinstance(rows[0], list):
            yield replace(whole, scores=_numbers(rows, text), target=names if isinstance(names, str) else None)
            continue
        count = len(rows[0])
        if any(not isinstance(row, list) or len(row) != count for row in rows):
            raise UserError(f"{text}: some tokens have values for fewer outputs than others; save the file again")
        targets: Sequence[Target] = range(count)
        if isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names):
            targets = names
        for output, target in enumerate(targets):
            numbers = _numbers([row[output] for row in rows], text)
            yield replace(whole, scores=numbers, target=target, output=output)


def _inseq_records(value: Mapping[str, object], location: str) -> Iterator[ScoreRecord]:
    """A saved `FeatureAttributionOutput` of inseq: steps are added up, and vectors count with their length."""
    sequences, info = value["sequence_attributions"], _unwrap(value.get("info"), location)
    details = info if isinstance(info, dict) else {}
    name, texts = details.get("attribution_method"), details.get("input_texts")
    if not isinstance(sequences, list):
        raise UserError(f"{location}: sequence_attributions is {shorten(sequences)}; save the file again")
    for number, wrapped in enumerate(sequences):
        text, sequence = f"{location}, text {number + 1}", _unwrap(wrapped, location)
        if not isinstance(sequence, dict):
            raise UserError(f"{text}: {shorten(sequence)} is not the attribution of a sequence; save the file again")
        side = "source" if sequence.get("source_attributions") is not None else "target"
        tokens = sequence.get(side)
        scores = _unwrap(sequence.get(f"{side}_attributions"), text)
        if not isinstance(tokens, list) or not isinstance(scores, list):
            raise UserError(f"{text}: neither source_attributions nor target_attributions with their tokens")
        plain = [_unwrap(token, text) for token in tokens]
        known = isinstance(texts, list) and len(texts) == len(sequences) and isinstance(texts[number], str)
        yield ScoreRecord(
            location=text,
            method=name[:MAX_NAME_LENGTH] if isinstance(name, str) else "inseq",
            texts=(texts[number],) if known and isinstance(texts, list) else (),
            tokens=_texts([token.get("token") if isinstance(token, dict) else token for token in plain], text),
            scores=tuple(
                _checked_score(_step_sum(row, text), text, token) for token, row in enumerate(scores, start=1)
            ),
        )


def _step_sum(row: object, location: str) -> float:
    """The sum over generated tokens; later tokens have no score (NaN) for a step before them."""
    steps = row if isinstance(row, list) else [row]
    lengths = []
    for step in steps:
        numbers = _numbers(step if isinstance(step, list) else [step], location, undefined=0.0)
        lengths.append(math.hypot(*numbers) if isinstance(step, list) else numbers[0])
    return math.fsum(lengths)


def _eraser_records(value: Mapping[str, object], location: str) -> Iterator[ScoreRecord]:
    """A line of ERASER's predictions: soft scores of the words of a document, else hard spans with score 1."""
    rationales, target = value["rationales"], value.get("classification")
    documents = [each for each in rationales if isinstance(each, dict)] if isinstance(rationales, list) else []
    if len(documents) != 1:
        raise UserError(f"{location}: it has rationales of {len(documents)} documents; give one document per text")
    (rationale,) = documents
    uid = value.get("annotation_id", rationale.get("docid"))
    record = ScoreRecord(
        location, "", None if uid is None else str(uid), target=target if isinstance(target, str) else None
    )
    soft = rationale.get("soft_rationale_predictions")
    if soft is not None:
        yield replace(record, scores=_numbers(soft, location))
        return
    spans = []
    hard = rationale.get("hard_rationale_predictions")
    for span in hard if isinstance(hard, list) else [None]:
        start, end = (span.get(name) if isinstance(span, dict) else None for name in ("start_token", "end_token"))
        if not isinstance(start, int) or not isinstance(end, int):
            raise UserError(f"{location}: the prediction {shorten(span)} has no start_token and end_token")
        spans.append((start, end))
    yield replace(record, spans=tuple(spans))
