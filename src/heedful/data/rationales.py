"""Rationales in a table: which words of a text people marked, from the usual ways to write that down.

A column has one form, which is found from all its cells: `[0, 1]` alone may be two flags or two word numbers. Words are
the whitespace words of all parts of an example, in order. Lists in cells of CSV files are JSON or Python literals.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heedful.types import UserError, shorten

RationaleForm = Literal["flags", "annotators", "grades", "indices", "spans", "tokens", "phrases", "marks"]
FORM_NAMES: Mapping[RationaleForm, str] = {
    "flags": "one 0 or 1 per word",
    "annotators": "one list of 0 and 1 per annotator, a word is marked if at least half of the lists mark it",
    "grades": "one grade per word, a word is marked if its grade is above 0 for at least half of the annotators",
    "indices": "word numbers from 0",
    "spans": "spans of characters [start, end)",
    "tokens": "spans of words with start_token and end_token",
    "phrases": "marked words or phrases, wherever the text has them",
    "marks": "the text again with marks around words",
}
MAX_CELL_LENGTH = 1 << 20
"""Characters of a list in a cell; flags of 300 000 words."""
MAX_PHRASES = 1000
CHECKED_CELLS = 20_000
"""Cells from which the form of a column is found."""
_NUMBERS = re.compile(r"\d{1,9}(?:[\s,]+\d{1,9})*|\[\s*\d{1,9}(?:[\s,]+\d{1,9})*\s*\]")
"""Also without brackets, and with spaces alone between numbers, as numpy prints them."""
_NUMBER = re.compile(r"\d{1,9}")
_MARKS = (("**", "**"), ("<mark>", "</mark>"), ("[", "]"), ("<b>", "</b>"), ("<em>", "</em>"), ("*", "*"))
_WORD = re.compile(r"\S+")
_EDGE = re.compile(r"^\W+|\W+$")
_SEPARATORS = ("[;|\n]", "[;|\n,]")

CellKind = Literal["empty", "numbers", "nested", "spans", "tokens", "strings", "string"]


@dataclass(frozen=True)
class RationaleCell:
    """The content of one cell of a column of rationales, in one of few shapes.

    Args:
        location: file and row, for messages.
        numbers: lists of whole numbers: one, one per annotator, or one per span.
        strings: marked phrases, or one text.
        parts: the texts of the row.
        bare: a number alone, which may be a property of the whole row.
    """

    location: str
    kind: CellKind
    parts: tuple[str, ...]
    numbers: tuple[tuple[int, ...], ...] = ()
    strings: tuple[str, ...] = ()
    bare: bool = False

    @property
    def num_words(self) -> int:
        return sum(len(part.split()) for part in self.parts)


def read_rationale_cell(value: object, parts: tuple[str, ...], location: str) -> RationaleCell:
    """The shape of a value: a list, or a text that may be a list in JSON or as a Python literal."""
    bare = _whole(value) is not None
    if isinstance(value, str):
        bare = _NUMBER.fullmatch(value.strip()) is not None
        value = parse_list(value.strip(), location)
    elif bare:
        value = [value]
    if isinstance(value, tuple | set | frozenset):
        value = list(value)
    if isinstance(value, Mapping):
        value = _rows_of_mapping(value)
    if value is None or value != value or value == []:
        return RationaleCell(location, "empty", parts)
    if isinstance(value, str):
        return RationaleCell(location, "string", parts, strings=(value,))
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return RationaleCell(location, "strings", parts, strings=tuple(item for item in value if item.strip()))
        numbers = [_whole(item) for item in value]
        if None not in numbers:
            whole = tuple(item for item in numbers if item is not None)
            return RationaleCell(location, "numbers", parts, (whole,), bare=bare)
        lists = [list(item) if isinstance(item, list | tuple) else [item] for item in value]
        flat = [item for items in lists for item in items]
        if not flat:
            return RationaleCell(location, "empty", parts)
        if all(isinstance(item, Mapping) for item in flat):
            return _span_cell([item for item in flat if isinstance(item, Mapping)], parts, location)
        nested = [[_whole(item) for item in items] for items in lists]
        if not any(number is None for items in nested for number in items):
            indices = tuple(tuple(item for item in items if item is not None) for items in nested)
            return RationaleCell(location, "nested", parts, indices)
    raise UserError(
        f"{location}: the rationale {shorten(value)} is neither a list of numbers, nor of spans, nor of words; "
        "see 'Rationales' in docs/audit.md, or do without with --rationale-column none"
    )


def parse_list(text: str, location: str) -> object:
    """The list that a text spells in JSON, as a Python literal or as whole numbers, or the text; nothing is run."""
    if not text:
        return None
    if text[0] in "[({" or _NUMBERS.fullmatch(text[:MAX_CELL_LENGTH]):
        if len(text) > MAX_CELL_LENGTH:
            raise UserError(f"{location}: a list has more than {MAX_CELL_LENGTH} characters; is it one?")
        if _NUMBERS.fullmatch(text):
            return [int(number) for number in re.findall(r"\d+", text)]
        for parse in (json.loads, ast.literal_eval):
            try:
                value: object = parse(text)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            return value
    return text


def _rows_of_mapping(value: Mapping[object, object]) -> list[object]:
    """One span `{"start", "end"}`, or the spans of a dataset of the hub, `{"start": [...], "end": [...]}`."""
    lists = [column for column in value.values() if isinstance(column, list)]
    if lists and len(lists) == len(value) and len({len(column) for column in lists}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*lists, strict=True)]
    return [value] if value else []


def _span_cell(spans: Sequence[Mapping[object, object]], parts: tuple[str, ...], location: str) -> RationaleCell:
    """Spans of words if they have `start_token`, else of characters."""
    kind: Literal["tokens", "spans"] = "tokens" if all("start_token" in span for span in spans) else "spans"
    first, last = ("start_token", "end_token") if kind == "tokens" else ("start", "end")
    numbers = []
    for span in spans:
        start, end = _whole(span.get(first)), _whole(span.get(last))
        if start is None or end is None:
            raise UserError(f"{location}: the span {shorten(span)} has no whole numbers '{first}' and '{last}'")
        numbers.append((start, end))
    return RationaleCell(location, kind, parts, tuple(numbers))


def _whole(value: object) -> int | None:
    """A whole number; None for anything else."""
    if isinstance(value, bool | int):
        return int(value)
    return int(value) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else None


@dataclass(frozen=True)
class RationaleReading:
    """The form of a column, and whether it is assumed, because another form fits all of its cells."""

    form: RationaleForm
    is_assumed: bool = False


class _NumberFacts:
    """What holds for all lists of numbers of a column."""

    def __init__(self) -> None:
        self.binary = self.one_per_word = self.pairs = self.word_numbers = self.in_text = self.starts = True
        self.repeated = self.repeated_per_word = False
        self.not_binary = ""

    def add(self, cell: RationaleCell) -> None:
        words, starts = cell.num_words, {match.start() for match in _WORD.finditer(cell.parts[0])}
        for numbers in cell.numbers:
            repeated, per_word = len(set(numbers)) < len(numbers), len(numbers) == words
            graded = next((number for number in numbers if number not in (0, 1)), None)
            if self.binary and graded is not None:
                self.binary, self.not_binary = False, f"{cell.location}: the rationale has the entry {graded}"
            self.one_per_word &= per_word
            self.repeated |= repeated
            self.repeated_per_word |= repeated and per_word
            self.pairs &= len(numbers) == 2 and numbers[0] < numbers[1]
            self.word_numbers &= all(number < words for number in numbers)
            self.in_text &= all(number <= len(cell.parts[0]) for number in numbers)
            self.starts &= not numbers or numbers[0] in starts

    def reading(self, column: str, *, nested: bool) -> RationaleReading:
        """The form that fits all lists; UserError if it cannot be decided."""
        if self.binary and (self.repeated or self.one_per_word):
            return RationaleReading("annotators" if nested else "flags", not self.repeated)
        if self.repeated_per_word or self.one_per_word:
            raise UserError(
                f"{self.not_binary}, and column {shorten(column)} has one number per word, which may be grades or word "
                "numbers; give one 0 or 1 per word, name the form with --rationale-form (grades: a word is marked if "
                "its grade is above 0; indices: word numbers from 0), or do without with --rationale-column none"
            )
        # Pairs are spans of characters if they go beyond the words, or all begin where a word begins.
        if self.pairs and (not self.word_numbers or (self.starts and nested)):
            return RationaleReading("spans", self.word_numbers)
        return RationaleReading("indices", self.pairs and self.in_text)


def find_rationale_form(cells: Iterable[RationaleCell], column: str) -> RationaleReading | None:
    """The form of a column from its cells; None if it holds no rationales."""
    seen: Counter[CellKind] = Counter()
    facts = _NumberFacts()
    marked, phrased, examined, bare = 0, 0, 0, True
    for cell in cells:
        if cell.kind == "empty":
            continue
        seen[cell.kind] += 1
        examined += 1
        bare &= cell.bare
        if len(seen) > 1 and not set(seen) <= {"numbers", "nested"}:
            kinds = " and ".join(sorted(seen))
            raise UserError(
                f"{cell.location}: column {shorten(column)} mixes {kinds}; give all rationales in one form, or do "
                "without with --rationale-column none"
            )
        if cell.kind in ("numbers", "nested"):
            facts.add(cell)
        elif cell.kind in ("string", "strings"):
            marked += cell.kind == "string" and _find_marks(cell) is not None
            phrased += _find_phrases(cell) is not None
        if examined == CHECKED_CELLS:
            break
    # One number per row, such as a flag or a count, says something about the row, not about words.
    if not seen or bare:
        return None
    if "spans" in seen or "tokens" in seen:
        return RationaleReading("spans" if "spans" in seen else "tokens")
    if "string" in seen or "strings" in seen:
        form: RationaleForm | None = "phrases" if 2 * phrased >= examined else None
        form = "marks" if 2 * marked >= examined else form
        return None if form is None else RationaleReading(form)
    return facts.reading(column, nested="nested" in seen)


def read_rationale(cell: RationaleCell, form: RationaleForm) -> tuple[bool, ...] | None:
    """One entry per word of all parts; None where nothing is marked, or the marked phrase is not in the text."""
    if cell.kind == "empty":
        return None
    if form in ("phrases", "marks"):
        if cell.kind not in ("string", "strings"):
            raise UserError(f"{cell.location}: the rationale is not a text, but those of other rows are; use one form")
        return _find_marks(cell) if form == "marks" else _find_phrases(cell)
    if cell.kind in ("string", "strings"):
        raise UserError(
            f"{cell.location}: the rationale {shorten(cell.strings)} is not a list of numbers, but those of other rows "
            "are; use one form"
        )
    if cell.kind in ("spans", "tokens") and form != cell.kind:
        raise UserError(f"{cell.location}: the rationale has spans, but the form of the column is {form}; use one form")
    if form in ("flags", "annotators", "grades"):
        lists = [_flags(cell, numbers, graded=form == "grades") for numbers in cell.numbers]
        return tuple(2 * sum(marks) >= len(lists) for marks in zip(*lists, strict=True))
    if form == "spans":
        return _words_of_spans(cell)
    num_words = cell.num_words
    if form == "indices":
        marks = {number for numbers in cell.numbers for number in numbers}
    else:
        _check_spans(cell, num_words, "words")
        marks = {number for start, end in cell.numbers for number in range(start, end)}
    outside = next((number for number in marks if not 0 <= number < num_words), None)
    if outside is not None:
        raise UserError(f"{cell.location}: the rationale has word {outside}, but the text has {num_words} words")
    return tuple(word in marks for word in range(num_words))


def _flags(cell: RationaleCell, numbers: Sequence[int], *, graded: bool) -> tuple[bool, ...]:
    """Flags of all words; flags of the first part alone leave the second one unmarked."""
    num_words, first = cell.num_words, len(cell.parts[0].split())
    if len(numbers) not in (first, num_words):
        raise UserError(
            f"{cell.location}: the rationale has {len(numbers)} entries, but the text has {num_words} words; "
            f"give one {'grade' if graded else '0 or 1'} per whitespace word, or name the form with --rationale-form"
        )
    wrong = next((number for number in numbers if number not in (0, 1)), None)
    if wrong is not None and not graded:
        raise UserError(f"{cell.location}: the rationale has the entry {wrong}; give one 0 or 1 per whitespace word")
    return tuple(number > 0 for number in numbers) + (False,) * (num_words - len(numbers))


def _words_of_spans(cell: RationaleCell) -> tuple[bool, ...]:
    """The words of the first part that share a character with a span."""
    text = cell.parts[0]
    _check_spans(cell, len(text), "characters")
    return _overlap(text, cell.numbers) + (False,) * (cell.num_words - len(text.split()))


def _check_spans(cell: RationaleCell, length: int, unit: str) -> None:
    wrong = next((span for span in cell.numbers if len(span) != 2 or not 0 <= span[0] < span[1] <= length), None)
    if wrong is not None:
        raise UserError(
            f"{cell.location}: the rationale has the span {shorten(list(wrong))}, but the text has {length} {unit}"
        )


def _overlap(text: str, spans: Iterable[Sequence[int]]) -> tuple[bool, ...]:
    """Which words of a text share a character with a span."""
    inside = bytearray(len(text))
    for start, end in spans:
        inside[start:end] = b"\1" * (end - start)
    return tuple(any(inside[match.start() : match.end()]) for match in _WORD.finditer(text))


def _find_phrases(cell: RationaleCell) -> tuple[bool, ...] | None:
    """The words of every occurrence of each phrase; None if a phrase occurs nowhere.

    A text may list several phrases with semicolons, bars, new lines or commas between them.
    """
    if cell.kind == "strings":
        return _occurrences(cell, cell.strings)
    (text,) = cell.strings
    for phrases in ([text], *(re.split(separator, text) for separator in _SEPARATORS)):
        marks = _occurrences(cell, [phrase for phrase in phrases if phrase.strip()])
        if marks is not None:
            return marks
    return None


def _occurrences(cell: RationaleCell, phrases: Sequence[str]) -> tuple[bool, ...] | None:
    if len(phrases) > MAX_PHRASES:
        raise UserError(f"{cell.location}: the rationale has {len(phrases)} phrases; give at most {MAX_PHRASES}")
    words = [[_normal_word(word) for word in part.split()] for part in cell.parts]
    marks = [[False] * len(part) for part in words]
    for phrase in phrases:
        wanted = [_normal_word(word) for word in phrase.split()]
        places = [(part, start) for part, part_words in enumerate(words) for start in _positions(part_words, wanted)]
        for part, start in places:
            marks[part][start : start + len(wanted)] = [True] * len(wanted)
        if not places:  # a part of a word
            within = [_parts_of_words(text, phrase.strip()) for text in cell.parts]
            if not any(any(part_marks) for part_marks in within):
                return None
            marks = [[a or b for a, b in zip(*pair, strict=True)] for pair in zip(marks, within, strict=True)]
    return tuple(mark for part in marks for mark in part)


def _positions(words: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    """Where a sequence of words begins in a text."""
    if wanted:
        for start in range(len(words) - len(wanted) + 1):
            if words[start] == wanted[0] and words[start : start + len(wanted)] == wanted:
                yield start


def _parts_of_words(text: str, phrase: str) -> tuple[bool, ...]:
    lowered = text.lower()
    if len(lowered) != len(text):  # some capitals have two small letters
        lowered = text
    spans = [match.span() for match in re.finditer(re.escape(phrase.lower()), lowered)] if phrase else []
    return _overlap(text, spans)


def _normal_word(word: str) -> str:
    """A word without case and without punctuation around it."""
    return (_EDGE.sub("", word) or word).casefold()


def _find_marks(cell: RationaleCell) -> tuple[bool, ...] | None:
    """The words inside marks, if the text without the marks is the text of the row."""
    if cell.kind != "string":
        return None
    marked = cell.strings[0]
    for opening, closing in _MARKS:
        letters = _strip_marks(marked, opening, closing)
        if letters is None:
            continue
        for parts in (cell.parts[:1], cell.parts):
            words = [word for part in parts for word in part.split()]
            if "".join(words) == "".join(letter for letter, _ in letters):
                marks, offset = [], 0
                for word in words:
                    marks.append(any(inside for _, inside in letters[offset : offset + len(word)]))
                    offset += len(word)
                return tuple(marks) + (False,) * (cell.num_words - len(marks))
    return None


def _strip_marks(text: str, opening: str, closing: str) -> list[tuple[str, bool]] | None:
    """Each visible character without the marks, and whether it was inside; None for marks that do not match."""
    inside, letters = False, []
    for piece in re.split(f"({re.escape(opening)}|{re.escape(closing)})", text):
        if piece in (opening, closing):
            if piece != (closing if inside else opening):
                return None
            inside = not inside
        else:
            letters += [(letter, inside) for letter in piece if not letter.isspace()]
    return None if inside else letters
