"""Sentences and segments: where the sentences and clauses of a text end, and how a long text is cut into runs of words.

Both are runs of whole whitespace words, and never cross the two texts of a pair. Only the ends of words matter, so that
a batch knows its sentences without its texts: `word_breaks` says what ends behind each word, `group_words` numbers
sentences or segments by that.

The rules are those of Unicode's sentence boundaries (UAX #29) as far as the ends of words decide them:

- `!`, `?` and the sentence ends of other scripts (`。`, `؟`, `।`, ...) end a sentence; a full stop does unless the next
  word begins in lower case, or the word is an initial or one of a few abbreviations (`ABBREVIATIONS`). In a text
  without capitals, and of a full stop that stands alone, the case of the next word says nothing.
- Closing quotes and brackets belong to their sentence, also if they stand alone.
- A blank line or an HTML line break ends a sentence; so does a line break, unless the next line begins in lower case.
- Commas, semicolons, colons, dashes and brackets end a clause.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Literal

import torch
from torch import Tensor

MAX_WORDS = 40
"""In a text of up to so many words each word is a segment."""
SEGMENTS = 20
"""Segments of a longer text."""
FULL_STOPS = ".․．…"
SENTENCE_ENDS = "!?։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿‼‽⁇⁈⁉⳹⳺⳻⸮⸼⹓⹔⹠⹡。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫︒︕︖﹒﹖﹗！？｡"
"""Marks with which sentences end, besides full stops: those of Unicode's basic plane."""
CLAUSE_ENDS = ",;:—–，、；：､،؛՝፣፤፥།༎"
ABBREVIATIONS = frozenset({"mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "vs.", "cf.", "fig.", "e.g.", "i.e.", "a.k.a."})
"""Words with a full stop that rarely end a sentence; in lower case."""
Group = Literal["sentence", "segment"]

_GAP = re.compile(r"\s+")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")
_HTML_BREAK = re.compile(r"<br$|<br/?>$|^/>$", re.IGNORECASE)


class Break(IntEnum):
    """What ends behind a word, the strongest last; `UNREAD` is a word that the model does not read."""

    UNREAD = -1
    NONE = 0
    CLAUSE = 1
    SENTENCE = 2
    PART = 3


def word_breaks(text: str) -> list[int]:
    """What ends behind each whitespace word of a text; behind the last one the text itself.

    >>> word_breaks("Well, “it works.” Dr. No said (to me) so")
    [1, 0, 2, 0, 0, 1, 0, 1, 3]
    """
    words = text.split()
    # Most texts have one line, and behind most words nothing ends.
    gaps = _GAP.findall(text.strip()) if len(text.splitlines()) > 1 else [" "] * len(words)
    has_capitals = text != text.lower()
    breaks = [
        0
        if gap == " " and word[-1].isalnum() and following[0].isalnum() and word[-3:].lower() != "<br"
        else int(_break_after(word, gap, following, has_capitals=has_capitals))
        for gap, (word, following) in zip(gaps, pairwise(words), strict=False)
    ]
    # Quotes, brackets and marks that stand alone belong to the word before them.
    for place, word in enumerate(words[1:]):
        if breaks[place] and not word[0].isalnum() and _is_tail(word):
            following = breaks[place + 1 : place + 2]
            breaks[place : place + 2] = [0, *(max(breaks[place], strength) for strength in following)]
    return [*breaks, int(Break.PART)] if words else []


def _break_after(word: str, gap: str, following: str, *, has_capitals: bool) -> Break:
    """What ends between two words of a text."""
    core = word
    while core and _is_closing(core[-1]):
        core = core[:-1]
    last, lines = core[-1:] or " ", len(f"{gap}.".splitlines()) - 1
    if _HTML_BREAK.search(following):
        return Break.NONE
    if _HTML_BREAK.search(word):
        return Break.SENTENCE
    if lines > 1 or last in SENTENCE_ENDS:
        return Break.SENTENCE
    if lines or last in FULL_STOPS:
        continues = has_capitals and next((letter for letter in following if letter.isalpha()), "A").islower()
        plain = core.lstrip("([{\"'“‘«").lower()
        is_short = plain in ABBREVIATIONS or _INITIALS.fullmatch(plain) is not None
        if word == "." or not (continues or (is_short and not lines)):
            return Break.SENTENCE
    is_clause = last in CLAUSE_ENDS or last == "…" or unicodedata.category(word[-1]) == "Pe"
    return Break.CLAUSE if is_clause or unicodedata.category(following[0]) == "Ps" else Break.NONE


def _is_closing(character: str) -> bool:
    return character in "\"'" or unicodedata.category(character) in ("Pe", "Pf", "Pi")


def _is_tail(word: str) -> bool:
    """Whether a word consists of marks that end a sentence or close it; a straight quote may also open one."""
    return word not in "\"'" and all(
        character in FULL_STOPS
        or character in SENTENCE_ENDS
        or character == "'"
        or unicodedata.category(character) in ("Pe", "Pf")
        for character in word
    )


def read_breaks(texts: Sequence[str], read: Collection[int]) -> list[int]:
    """What ends behind each word of one or two texts, of which the model reads some words, numbered over both texts.

    >>> read_breaks(["One. Two three", "Four. Five six."], {1, 2, 3})
    [-1, 0, 3, 3, -1, -1]
    """
    breaks: list[int] = []
    for text in texts:
        part = word_breaks(text)
        places = [place for place in range(len(part)) if len(breaks) + place in read]
        first, last = (places[0], places[-1]) if places else (0, -1)
        inside = [*part[first:last], int(Break.PART)] if places else []
        unread = int(Break.UNREAD)
        breaks += [*[unread] * first, *inside, *[unread] * (len(part) - last - 1)]
    return breaks


def group_words(breaks: Tensor, kind: Group) -> Tensor:
    """The sentence or the segment of each word `[batch word]`, numbered from 0 in each row.

    A word that is not read belongs to the group of the word before it, else of the first one that is read; -1 where
    none is.

    Args:
        breaks: what ends behind each word `[batch word]`.
    """
    numbers = [_numbers(tuple(row), kind) for row in breaks.tolist()]
    return torch.tensor(numbers, dtype=torch.int64, device=breaks.device).reshape(breaks.shape)


@lru_cache(maxsize=4096)
def _numbers(breaks: tuple[int, ...], kind: Group) -> tuple[int, ...]:
    """
    >>> _numbers((0, 2, -1, 1, 3, -1), "sentence"), _numbers((0, 2, -1, 1, 3, -1), "segment")
    ((0, 0, 0, 1, 1, 1), (0, 1, 1, 2, 3, 3))
    """
    read = [place for place, strength in enumerate(breaks) if strength >= 0]
    if not read:
        return (-1,) * len(breaks)
    strengths = [breaks[place] for place in read]
    starts = {read[start] for start, _ in (_sentences(strengths) if kind == "sentence" else _segments(strengths))}
    numbers, number = [], -1
    for place in range(len(breaks)):
        number += place in starts
        numbers.append(max(number, 0))
    return tuple(numbers)


def _sentences(breaks: Sequence[int]) -> list[tuple[int, int]]:
    """Where each sentence starts and ends.

    >>> _sentences([0, 2, 1, 3, 3])
    [(0, 2), (2, 4), (4, 5)]
    """
    ends = [place + 1 for place, strength in enumerate(breaks) if strength >= Break.SENTENCE]
    return list(pairwise(dict.fromkeys((0, *ends, len(breaks)))))


def _segments(breaks: Sequence[int]) -> list[tuple[int, int]]:
    """Where each segment starts and ends: `SEGMENTS` of them if there are more than `MAX_WORDS` words.

    Sentences come first. The longest is halved, near its middle and if possible at the end of a clause, while it is
    longer than two segments of equal size or there are too few; the two shortest neighbors are joined while there are
    too many.
    """
    count = len(breaks)
    if count <= MAX_WORDS:
        return [(place, place + 1) for place in range(count)]
    pieces = _sentences(breaks)

    def length(place: int) -> int:
        return pieces[place][1] - pieces[place][0]

    while True:
        longest = max(range(len(pieces)), key=length)
        if len(pieces) >= SEGMENTS and length(longest) * SEGMENTS <= 2 * count:
            break
        start, end = pieces[longest]
        cut = _middle(breaks, start, end)
        pieces[longest : longest + 1] = [(start, cut), (cut, end)]
    while len(pieces) > SEGMENTS:
        # A pair of texts has one border that is not crossed.
        joined = [place for place in range(len(pieces) - 1) if breaks[pieces[place][1] - 1] < Break.PART]
        if not joined:
            break
        first = min(joined, key=lambda place: length(place) + length(place + 1))
        pieces[first : first + 2] = [(pieces[first][0], pieces[first + 1][1])]
    return pieces


def _middle(breaks: Sequence[int], start: int, end: int) -> int:
    """Where a run of words is cut in two: at the end of a clause in its middle half, the nearest to its middle.

    >>> _middle([0, 0, 0, 0, 1, 0, 0, 3], 0, 8), _middle([1, 0, 0, 0, 0, 0, 0, 3], 0, 8)
    (5, 4)
    """
    middle, quarter = (start + end) / 2, (end - start) / 4
    clauses = [cut for cut in range(start + 1, end) if breaks[cut - 1] >= Break.CLAUSE and abs(cut - middle) <= quarter]
    return min(clauses or range(start + 1, end), key=lambda cut: (abs(cut - middle), cut))


def texts_of_groups(words: Sequence[str], groups: Sequence[int]) -> list[str]:
    """The words of each group in order, groups in the order of their first word; those of group -1 are left out.

    >>> texts_of_groups(["One", "two.", "Three", "four"], [0, 0, 1, -1])
    ['One two.', 'Three']
    """
    pairs = groupby(zip(groups, words, strict=True), key=lambda pair: pair[0])
    return [" ".join(word for _, word in run) for group, run in pairs if group >= 0]
