"""Scores that were made elsewhere, as a method: files of captum, shap, inseq, ferret and ERASER, and plain tables.

Scores of tokens are aligned with the whitespace words of a text by their characters and added up per word. Texts are
matched by uid, by text, or by what the tokens spell. Nothing in a file is run or unpickled.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import math
import re
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.catalogue import METHODS
from heedful.data.evaluation_table import EvaluationTable
from heedful.data.io import ArrayHeader, array_headers, file_type, find_path, iterate_rows, read_json
from heedful.data.label_match import CERTAIN_MATCHES, match_labels
from heedful.data.rationales import parse_list
from heedful.types import (
    Attribution,
    Batch,
    Corpus,
    DiskResource,
    Example,
    FileState,
    Model,
    UserError,
    file_state,
    hash_files,
    shorten,
)

MIN_TEXTS = 10
"""Texts that must be matched, or all if there are fewer."""
MAX_METHODS, MAX_NAME_LENGTH = 50, 80
MAX_ARRAY_SIZE = 1 << 30
"""Bytes of all arrays of a file."""
MIN_CELLS = 1 << 20
"""Scores or tokens that a file may hold however few texts there are."""
MAX_TEXT_WIDTH = 32
"""Characters per token of an array of texts, on average."""
MAX_SCORE = 1e30
"""Size of a score: sums and squares of larger ones are not finite numbers."""
MAX_ALIGNMENT_STEPS = 1 << 20
MAX_NESTING = 4
UID_NAMES = ("uid", "id", "annotation_id", "idx", "docid")
SCORE_NAMES = ("scores", "attributions", "attribution", "values")
_SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD|MASK|BOS|EOS)\]|</?(?:s|pad|mask|cls|sep|bos|eos)>|<\|[^|]*\|>", re.IGNORECASE)
_UNKNOWN = re.compile(r"\[UNK\]|<unk>", re.IGNORECASE)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>", re.IGNORECASE)
_IDEOGRAPH = re.compile(r".?[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
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


# Readers


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
        for number, each in enumerate(value, start=1):
            place = f"{location}, row {number}" if depth == 0 else location
            yield from _records(each, place, depth + 1)
        return
    if not isinstance(value, dict):
        raise UserError(
            f"{location}: {shorten(value)} is no row of scores; see 'Scores made elsewhere' in docs/audit.md"
        )
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
        # One text as a batch of one, which is how captum gives it.
        batch_of_one = isinstance(scores, list) and len(scores) == 1 and isinstance(scores[0], list)
        unpack = batch_of_one and isinstance(tokens, list) and isinstance(scores, list) and len(tokens) > 1
        yield _record(value, tokens, scores[0] if unpack and isinstance(scores, list) else scores, location)
        return
    if not isinstance(scores, list) or len(scores) != len(tokens):
        count = len(scores) if isinstance(scores, list) else 1
        raise UserError(f"{location}: there are tokens of {len(tokens)} texts, but scores of {count}")
    for number, (some, each) in enumerate(zip(tokens, scores, strict=True)):
        own: dict[str, object] = {}
        for name, column in value.items():
            whole = isinstance(column, list) and len(column) == len(tokens)
            own[name] = column[number] if whole and isinstance(column, list) else column
        yield _record(own, some, each, f"{location}, text {number + 1}")


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
    found = next((value[name] for name in UID_NAMES if value.get(name) not in (None, "")), None)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    return str(found).strip() if isinstance(found, str | int) else None


def _texts(value: object, location: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UserError(f"{location}: the tokens are {shorten(value)}; give a list of texts")
    return tuple(value)


def _numbers(value: object, location: str, *, undefined: float | None = None) -> tuple[float, ...]:
    """Finite numbers, one per token; vectors are added up. `undefined` replaces NaN."""
    found: list[float] = []
    for each in value if isinstance(value, list) else [None]:
        parts: list[object] = each if isinstance(each, list) else [each]
        numbers = [part for part in parts if isinstance(part, int | float)]
        if len(numbers) < len(parts):
            raise UserError(f"{location}: the scores are {shorten(value)}; give a list of numbers")
        if undefined is not None:
            numbers = [undefined if math.isnan(number) else number for number in numbers]
        try:
            total = math.fsum(numbers)
        except (OverflowError, ValueError):  # inf - inf
            total = math.nan
        found.append(_checked_score(total, location, len(found) + 1))
    return tuple(found)


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
    for number, (some, each) in enumerate(zip(data, values, strict=True)):
        place = f"{location}, text {number + 1}"
        tokens = _texts(some, place)
        own = uids[number] if isinstance(uids, list) and len(uids) == len(data) else None
        whole = ScoreRecord(place, "shap", None if own is None else str(own), tokens=tokens)
        if not isinstance(each, list):
            raise UserError(f"{place}: the values are {shorten(each)}; give one number per token")
        if not each or not isinstance(each[0], list):
            yield replace(whole, scores=_numbers(each, place), target=names if isinstance(names, str) else None)
            continue
        count = len(each[0])
        if any(not isinstance(row, list) or len(row) != count for row in each):
            raise UserError(f"{place}: the values of some tokens have fewer outputs than those of others")
        targets: Sequence[Target] = range(count)
        if isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names):
            targets = names
        for output, target in enumerate(targets):
            numbers = _numbers([row[output] for row in each], place)
            yield replace(whole, scores=numbers, target=target, output=output)


def _inseq_records(value: Mapping[str, object], location: str) -> Iterator[ScoreRecord]:
    """A saved `FeatureAttributionOutput` of inseq: steps are added up, and vectors count with their length."""
    sequences, info = value["sequence_attributions"], _unwrap(value.get("info"), location)
    details = info if isinstance(info, dict) else {}
    name, texts = details.get("attribution_method"), details.get("input_texts")
    if not isinstance(sequences, list):
        raise UserError(f"{location}: sequence_attributions is {shorten(sequences)}; save the file again")
    for number, each in enumerate(sequences):
        place, sequence = f"{location}, text {number + 1}", _unwrap(each, location)
        if not isinstance(sequence, dict):
            raise UserError(f"{place}: {shorten(sequence)} is no attribution of a sequence; save the file again")
        side = "source" if sequence.get("source_attributions") is not None else "target"
        tokens = sequence.get(side)
        scores = _unwrap(sequence.get(f"{side}_attributions"), place)
        if not isinstance(tokens, list) or not isinstance(scores, list):
            raise UserError(f"{place}: neither source_attributions nor target_attributions with their tokens")
        plain = [_unwrap(token, place) for token in tokens]
        known = isinstance(texts, list) and len(texts) == len(sequences) and isinstance(texts[number], str)
        yield ScoreRecord(
            location=place,
            method=name[:MAX_NAME_LENGTH] if isinstance(name, str) else "inseq",
            texts=(texts[number],) if known and isinstance(texts, list) else (),
            tokens=_texts([each.get("token") if isinstance(each, dict) else each for each in plain], place),
            scores=tuple(
                _checked_score(_step_sum(row, place), place, token) for token, row in enumerate(scores, start=1)
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
    found = [each for each in rationales if isinstance(each, dict)] if isinstance(rationales, list) else []
    if len(found) != 1:
        raise UserError(f"{location}: it has rationales of {len(found)} documents; only one document per text is read")
    (rationale,) = found
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


# Alignment


def spell(text: str) -> str:
    """The characters of a text without case, accents, spaces and control characters: all tokenizers spell it alike.

    >>> spell("Un Café…")
    'uncafe...'
    """
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in decomposed if unicodedata.category(char)[0] not in "CMZ" and char != "\ufffd")


class Exclusion(Enum):
    """Why a row of a file of scores is not used, as the end of a sentence."""

    NO_TEXT = "belong to no text of the data"
    SEVERAL_TEXTS = "fit several texts of the data: add the text as it is in the data"
    LINE_NUMBERS = "have a uid alone, but the data have no id column to compare it with: add the text or the tokens"
    OTHER_TOKENS = "have tokens that do not spell the text"
    AMBIGUOUS = "have unknown tokens that fit more than one word of the text: give one score per word"
    SECOND_ROW = "are second rows of a text"


def align_scores(tokens: Sequence[str], scores: Sequence[float], words: Sequence[str]) -> tuple[float, ...] | Exclusion:
    """The sum of the scores of each word's tokens, or why there is none.

    A token over several words is divided by characters. Special tokens do not count, and what follows the last token
    (a text that was cut off) has score 0. An unknown token stands for at least one whole word, or what signs separate
    inside a word; if the text cannot be spelled in this way, for some characters of one word. If these rules leave a
    choice between words, there are no scores.

    >>> align_scores(["[CLS]", "un", "##kind", "words", "[SEP]"], [9.0, 1.0, 2.0, 4.0, 9.0], ["Unkind", "words"])
    (3.0, 4.0)
    >>> align_scores(["[UNK]", "a"], [5.0, 1.0], ["banana", "a"])
    (5.0, 1.0)
    """
    if list(tokens) == list(words):
        return tuple(scores)
    pieces = _spelled_pieces(tokens, scores)
    spelled = [spell(word) for word in words]
    if len(pieces) == len(words) and all(
        piece in (None, word) for (piece, _), word in zip(pieces, spelled, strict=True)
    ):
        return tuple(score for _, score in pieces)
    letters = [piece for piece, _ in pieces]
    # A text that is spelled to its end comes before one that was cut off.
    for whole_words, to_end in ((True, True), (False, True), (True, False)):
        places = _place_pieces(letters, spelled, whole_words=whole_words, to_end=to_end) if pieces else None
        if isinstance(places, Exclusion):
            return places
        if places is not None:
            sums = [0.0] * len(words)
            for counts, (_, score) in zip(places, pieces, strict=True):
                for word, count in counts.items():
                    sums[word] += score * (count / counts.total())
            return tuple(sums)
    return Exclusion.OTHER_TOKENS


def _spelled_pieces(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str | None, float]]:
    """What each token spells (None: unknown) and its score; the score of a blank goes to the next token."""
    pieces: list[tuple[str | None, float]] = []
    carried = 0.0
    for token, score in zip(_token_texts(tokens), scores, strict=True):
        letters = None if token is None else spell(token)
        if letters == "":  # a special token, or the space before the next token
            carried += score if token else 0.0
            continue
        pieces.append((letters, score + carried))
        carried = 0.0
    if pieces and carried:
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + carried)
    return pieces


def _place_pieces(
    pieces: Sequence[str | None], words: Sequence[str], *, whole_words: bool, to_end: bool
) -> list[Counter[int]] | Exclusion | None:
    """The number of characters that each piece has in each word; None if the pieces do not spell the words.

    Args:
        whole_words: an unknown piece begins and ends where a word, a sign, or a run of letters does.
        to_end: the pieces spell all words.
    """
    text = "".join(words)
    owner = [word for word, letters in enumerate(words) for _ in letters]
    ends = list(accumulate(map(len, words)))
    edges = {0, *ends, *(place for place in range(1, len(text)) if _is_edge(text[place - 1], text[place]))}

    def next_places(piece: str | None, start: int) -> Iterator[int]:
        if piece is not None:
            if text.startswith(piece, start):
                yield start + len(piece)
        elif start < len(text) and (not whole_words or start in edges):
            for end in range(start + 1, ends[owner[start]] + 1):
                if not whole_words or end in edges:
                    yield end

    reached: list[set[int]] = [{0}]
    steps = 0
    for piece in pieces:
        following: set[int] = set()
        for start in reached[-1]:
            for end in next_places(piece, start):
                following.add(end)
                steps += 1
            if steps > MAX_ALIGNMENT_STEPS:
                return Exclusion.AMBIGUOUS
        reached.append(following)
    alive = reached.pop() & {len(text)} if to_end else reached.pop()
    if not alive:
        return None
    placed: list[Counter[int]] = []
    for piece, starts in zip(reversed(pieces), reversed(reached), strict=True):
        spans = [(start, end) for start in starts for end in next_places(piece, start) if end in alive]
        counts = Counter(owner[slice(*spans[0])])
        for start, end in spans:
            # An unknown piece belongs to its word, however many of the characters it stands for.
            same = owner[start] == owner[spans[0][0]] if piece is None else Counter(owner[start:end]) == counts
            if not same:
                return Exclusion.AMBIGUOUS
        placed.append(counts)
        alive = {start for start, _ in spans}
    return placed[::-1]


def _is_edge(left: str, right: str) -> bool:
    """Whether tokenizers that know whole words separate two characters: signs, and Chinese characters."""
    return not (left.isalnum() and right.isalnum()) or _IDEOGRAPH.match(left + right) is not None


def _token_texts(tokens: Sequence[str]) -> Iterator[str | None]:
    """The text of each token without the marks of its tokenizer: empty for special tokens, None for unknown ones."""
    byte_level = any("\u0120" in token or "\u010a" in token for token in tokens)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        stripped = token.strip()
        if _SPECIAL.fullmatch(stripped):
            yield ""
        elif _UNKNOWN.fullmatch(stripped):
            yield None
        elif byte := _BYTE.fullmatch(stripped):
            yield decoder.decode(bytes.fromhex(byte[1])) or " "
        elif byte_level and all(char in _BYTES for char in token):
            # The first bytes of a character have no text of their own: their score goes with the last one.
            yield decoder.decode(bytes(_BYTES[char] for char in token)) or " "
        else:
            text = stripped.replace("\u2581", " ").removesuffix("</w>")
            text = text.removesuffix("@@") if len(text) > 2 else text
            yield text[2:] if text.startswith("##") and len(text) > 2 else text


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES: Mapping[str, int] = _byte_characters()


# Texts and their scores


@dataclass(frozen=True)
class ExternalScores:
    """The scores of one method of a file for the texts of a corpus.

    Args:
        scores: uid to explained output to one score per word; the output is None where the file does not say.
        notes: how many texts have scores, and what was left out and why.
    """

    scores: Mapping[str, Mapping[int | None, tuple[float, ...]]]
    notes: tuple[str, ...]

    def find(self, uid: str, target: int) -> tuple[float, ...] | None:
        """The scores of the words of a text for an output; None if the file has none."""
        found = self.scores.get(uid, {})
        return found.get(target, found.get(None))


def read_external(
    path: Path, examples: Sequence[Example], outputs: Sequence[str] = (), *, line_numbers: bool = False
) -> dict[str, ExternalScores]:
    """The scores of each method in a file for these examples, by name.

    Rows that belong to no example or whose tokens do not spell its text are counted; too few matches are an error.

    Args:
        outputs: names of the model's outputs, for the targets.
        line_numbers: the uids only count lines, which other tools count in other ways: a uid alone proves nothing.
    """
    index = _ExampleIndex(examples, line_numbers=line_numbers)
    records = list(read_score_records(path, _max_cells(examples)))
    targets = _target_index(path, records, outputs)
    found: dict[str, dict[str, dict[int | None, tuple[float, ...]]]] = {}
    lost: dict[str, Counter[Exclusion]] = {}
    for record in records:
        name = record.method or path.stem.split(".")[0] or "given"
        name = f"{name} (given)" if name in METHODS else name
        scores, counts = found.setdefault(name, {}), lost.setdefault(name, Counter())
        if len(found) > MAX_METHODS:
            raise UserError(f"{path}: more than {MAX_METHODS} methods; is the column of methods right?")
        matched = _match_record(record, index)
        if isinstance(matched, Exclusion):
            counts[matched] += 1
            continue
        uid, words = matched
        own = scores.setdefault(uid, {})
        if targets[record.target] in own:
            counts[Exclusion.SECOND_ROW] += 1
        else:
            own[targets[record.target]] = words
    if not records:
        raise UserError(f"{path}: the file has no scores; give one row per text")
    return {
        name: ExternalScores(*_check_matches(path, name, scores, lost[name], len(examples)))
        for name, scores in found.items()
    }


def _check_matches(
    path: Path,
    name: str,
    scores: Mapping[str, Mapping[int | None, tuple[float, ...]]],
    lost: Counter[Exclusion],
    total: int,
) -> tuple[Mapping[str, Mapping[int | None, tuple[float, ...]]], tuple[str, ...]]:
    kept = {uid: own for uid, own in scores.items() if own}
    reasons = [f"{count} rows {reason.value}" for reason, count in lost.items()]
    notes = (f"{name}: {path.name} has scores of {len(kept)} of {total} texts", *reasons)
    if len(kept) < min(MIN_TEXTS, total):
        raise UserError(
            f"{'; '.join(notes)}; at least {min(MIN_TEXTS, total)} texts are needed: give the text of each row as in "
            "the data, or its id in the id column of the data"
        )
    return kept, notes


class _ExampleIndex:
    """Examples by uid, by text, and by what their words spell."""

    def __init__(self, examples: Sequence[Example], *, line_numbers: bool) -> None:
        self._line_numbers = line_numbers
        self._by_uid = {example.uid: example for example in examples}
        self._by_text: dict[tuple[str, ...], Example] = {}
        self._by_letters: dict[str, list[Example]] = {}
        for example in examples:
            parts = tuple(part for part in example.parts if isinstance(part, str))
            if len(parts) != len(example.parts):
                raise UserError("scores made elsewhere are read for texts only, and the data are images")
            self._by_text.setdefault(tuple(part.strip() for part in parts), example)
            self._by_letters.setdefault(self._letters(example), []).append(example)

    @staticmethod
    def _letters(example: Example) -> str:
        return spell("".join(part for part in example.parts if isinstance(part, str)))

    def find(self, record: ScoreRecord) -> Example | Exclusion:
        """The example that a record belongs to: the text decides, then the tokens, then the uid."""
        named = self._by_uid.get(record.uid) if record.uid is not None else None
        matches = self._spelled(record)
        # A uid may count rows in another way than the data do, so that it only chooses between texts that fit.
        if record.texts:
            exact = self._by_text.get(tuple(text.strip() for text in record.texts))
            if named is not None and self._letters(named).startswith(spell("".join(record.texts))):
                return named
            matches = [exact] if exact else matches
        elif record.tokens is None:
            if self._line_numbers:
                return Exclusion.LINE_NUMBERS
            matches = [named] if named else []
        elif named is not None and (named in matches or not matches):
            # The tokens of a text that was cut off, or that has unknown words, are compared when they are aligned.
            is_known = not self._line_numbers or any(_token_texts(record.tokens))
            return named if is_known else Exclusion.LINE_NUMBERS
        elif record.uid is not None and named is None and not self._line_numbers:
            matches = []  # an id of a text that is not in the data
        if len(matches) > 1:
            return Exclusion.SEVERAL_TEXTS
        return matches[0] if matches else Exclusion.NO_TEXT

    def _spelled(self, record: ScoreRecord) -> list[Example]:
        """The examples that the text of a record spells, or all its tokens together."""
        texts: Sequence[str | None] = record.texts or list(_token_texts(record.tokens or ()))
        letters = "".join(text for text in texts if text is not None)
        return self._by_letters.get(spell(letters), []) if None not in texts else []


def _max_cells(examples: Sequence[Example]) -> int:
    """Scores that a file needs at most: one per character of each text, padded to the longest, and special tokens."""
    longest = max(
        (sum(len(part) for part in example.parts if isinstance(part, str)) for example in examples), default=0
    )
    return max(MIN_CELLS, len(examples) * (longest + 64))


def _target_index(path: Path, records: Sequence[ScoreRecord], outputs: Sequence[str]) -> dict[Target, int | None]:
    """The output of each target that the records name: by its number, its name, or its place in the file."""
    places = {record.target: record.output for record in records if record.target is not None}
    found: dict[Target, int | None] = {None: None}
    if not outputs:  # the model gives one number
        return found | dict.fromkeys(places)
    names = [target for target in places if isinstance(target, str)]
    matched = match_labels(names, outputs)
    index = dict(matched[1]) if matched is not None and matched[0] in CERTAIN_MATCHES else {}
    for target, place in places.items():
        number = target if isinstance(target, int) else index.get(str(target), place)
        if number is None or not 0 <= number < len(outputs):
            raise UserError(
                f"{path}: the target {shorten(target)} is no output of the model ({shorten(', '.join(outputs[:6]))}); "
                "give its name or number"
            )
        found[target] = number
    return found


def _match_record(record: ScoreRecord, index: _ExampleIndex) -> tuple[str, tuple[float, ...]] | Exclusion:
    """The uid of the text of a record and the scores of its words, or why there are none."""
    example = index.find(record)
    if isinstance(example, Exclusion):
        return example
    words = _word_scores(record, example)
    return words if isinstance(words, Exclusion) else (example.uid, words)


def _word_scores(record: ScoreRecord, example: Example) -> tuple[float, ...] | Exclusion:
    """One score per word of all parts, or why the tokens have none."""
    parts = [part.split() for part in example.parts if isinstance(part, str)]
    words = [word for part in parts for word in part]
    if record.spans is not None:
        wrong = next((span for span in record.spans if not 0 <= span[0] < span[1] <= len(words)), None)
        if wrong is not None:
            raise UserError(
                f"{record.location}: words {wrong[0]} to {wrong[1]} are predicted, but the text has {len(words)} words"
            )
        marked = {word for start, end in record.spans for word in range(start, end)}
        return tuple(float(word in marked) for word in range(len(words)))
    if record.tokens is None:
        if len(record.scores) not in (len(words), len(parts[0])):
            raise UserError(
                f"{record.location}: there are {len(record.scores)} scores, but the text has {len(words)} words; give "
                "one score per word, or the tokens"
            )
        return record.scores + (0.0,) * (len(words) - len(record.scores))
    if len(record.tokens) != len(record.scores):
        raise UserError(
            f"{record.location}: there are {len(record.tokens)} tokens, but {len(record.scores)} scores; give one each"
        )
    return align_scores(record.tokens, record.scores, words)


# The method


@dataclass(frozen=True)
class ExternalAttributions(DiskResource):
    """The scores that a file has for the texts of a corpus, under one name; the content of the file is its digest.

    The score of a word is divided among its units. A text without scores has no scored unit and zeros: leave it out
    with `covered_uids`.

    Args:
        path: the file.
        name: of the method in the file.
        corpus: the texts, whose test split is explained.
        folder: the data folder of file and corpus; both may also be given by their own paths.
    """

    revision: ClassVar[int] = 2

    path: str
    name: str
    corpus: Corpus
    folder: str = "."

    @property
    def display_name(self) -> str:
        """The name in the file."""
        return self.name

    def digest(self, data: Path) -> str:
        """A hash of the file; the corpus is a field with a digest of its own."""
        return hash_files([find_path(self.path, Path(self.folder))])

    def read(self) -> ExternalScores:
        """The scores by uid, read once per process unless a file changes."""
        return _read_once(self.path, self.corpus, self.folder)[self.name]

    def covered_uids(self, predicted: Mapping[str, int] | None = None) -> frozenset[str]:
        """The texts that have scores; with the predicted outputs by uid, those with scores for the predicted one."""
        table = self.read()
        if predicted is None:
            return frozenset(table.scores)
        return frozenset(uid for uid, target in predicted.items() if table.find(uid, target) is not None)

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """The scores of the file for each text and target."""
        table = self.read()
        scores = torch.zeros(batch.words.shape, dtype=torch.float64)
        mask = batch.content_mask.cpu().clone()
        words = batch.words.cpu()
        for row, (uid, output) in enumerate(zip(batch.uids, target.tolist(), strict=True)):
            found = table.find(uid, int(output))
            if found is None:
                mask[row] = False
                continue
            own = words[row][mask[row]]
            if len(own) and int(own.max()) >= len(found):
                raise UserError(f"{self.path}: text {uid} has more words than scores; its text has changed")
            units = torch.bincount(own, minlength=len(found)).clamp(min=1)
            scores[row, mask[row]] = (torch.tensor(found, dtype=torch.float64) / units)[own]
        return Attribution(scores.to(batch.words.device), mask.to(batch.words.device))


def external_methods(path: str | Path, corpus: Corpus, data: Path) -> dict[str, ExternalAttributions]:
    """The methods in a file of scores for the texts of a corpus, by name."""
    folder = "."
    try:
        find_path(path, Path(folder))
        corpus.digest(Path(folder))
    except UserError:
        folder = str(data)
    found = _read_once(str(path), corpus, folder)
    return {name: ExternalAttributions(str(path), name, corpus, folder) for name in found}


def _read_once(path: str, corpus: Corpus, folder: str) -> Mapping[str, ExternalScores]:
    file = find_path(path, Path(folder))
    return _read_cached(file, file_state(file), corpus, corpus.digest(Path(folder)), folder)


@lru_cache(maxsize=4)
def _read_cached(
    path: Path, state: FileState, corpus: Corpus, digest: str, folder: str
) -> Mapping[str, ExternalScores]:
    splits = corpus.read(Path(folder))
    line_numbers = isinstance(corpus, EvaluationTable) and corpus.columns.uid is None
    return read_external(path, splits.test, splits.class_names, line_numbers=line_numbers)
