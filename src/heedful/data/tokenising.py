"""Splitting whitespace words into tokens: not at all, by our own rules for English, or by spaCy's.

All three look at one whitespace word at a time (so does spaCy's tokenizer), hence every token knows its word.
The English rules follow the Penn tradition as spaCy carries it on: brackets, quotes, currency and closing
punctuation stand alone, so do hyphens and slashes between letters; contractions part (do n't, she 's);
abbreviations, initials, numbers and addresses stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from heedful.core.types import UserError

TokeniserName = Literal["space", "english", "spacy"]
Splitter = Callable[[str], tuple[str, ...]]
"""The tokens of one word that has no whitespace inside; joined they give the word back."""


@cache
def splitter(name: TokeniserName) -> Splitter:
    """The tokeniser of this name."""
    known: dict[TokeniserName, Callable[[], Splitter]] = {
        "space": lambda: _whole,
        "english": lambda: english,
        "spacy": _spacy,
    }
    return known[name]()


def _whole(word: str) -> tuple[str, ...]:
    return (word,)


def _spacy() -> Splitter:
    if find_spec("spacy") is None:
        raise UserError("the tokeniser 'spacy' needs the spaCy library: pip install 'heedful[spacy]'")
    tokenizer = import_module("spacy").blank("en").tokenizer

    @lru_cache(maxsize=1 << 18)
    def split(word: str) -> tuple[str, ...]:
        return tuple(token.text for token in tokenizer(word))

    return split


_ABBREVIATED = """
    Adm. Apr. Aug. Ave. Bros. Co. Corp. Dec. Dr. Feb. Gen. Gov. Inc. Jan. Jr. Jul. Jun. Lt. Ltd. Maj. Mar.
    Messrs. Mr. Mrs. Ms. Mt. Nov. Oct. Ph.D. Prof. Rep. Rev. Sen. Sep. Sept. Sgt. Sr. St. Ala. Ariz. Ark.
    Calif. Colo. Conn. Del. Fla. Ga. Ia. Ill. Ind. Kan. Kans. Ky. La. Mass. Md. Mich. Minn. Miss. Mo. Mont.
    Neb. Nebr. Nev. Okla. Ore. Pa. Penn. Tenn. Va. Wash. Wis. vs. v.s. e.g. i.e. a.m. p.m. ph.d. o'clock
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
# Longer than any word of the language: kept whole, so that a wall of symbols cannot hold up the work.
_LONGEST = 200
_EMOTICON = re.compile(r"[:;=8][-o^']?[)(\]\[DPp/|3*]+|<3+|\^_+\^")
_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.)\S+"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?:[a-z0-9][a-z0-9-]*\.)+(?:com|org|net|edu|gov|info|biz|co\.uk|uk|de|fr|jp|cn|in|au|ca|ru|tv|us|eu|io)(?:/\S*)?",
    re.IGNORECASE,
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.){2,}|[A-Za-z]\.|['’](?:s|re|ve|ll|d|m|em)|n['’]t", re.IGNORECASE)
_OPENING = re.compile(r"''|\.{2,}|…|US\$|C\$|A\$|[-–—]+(?=[^\W\d_])|[\[\](){}<>,;:!?*#&=%+§¥$£€¢\"“”„'`‘’«»/|~_•·…]")
_CLOSING = re.compile(r"(?:''|\.{2,}|…|--+|[\[\](){}<>,;:!?*#&=$£€¢%\"“”„`«»/|~_•·…'‘’]|[—–])$")
_OWNER = re.compile(r"(?<=.)['’]s$", re.IGNORECASE)
_FULL_STOP = re.compile(r"(?<=[a-z0-9à-ÿ%²\-+'\"“”)\];:])\.$|(?<=[A-Z]{2})\.$")
_UNIT = re.compile(
    r"(?<=\d)(?:km|kg|mg|gb|mb|kb|tb|mm|cm|nm|ghz|mhz|khz|hz|mph|kph|km/h|lb|oz|ml|mph|yds?|ft|am|pm|a\.m\.|p\.m\.|m|g|t|%)$",
    re.IGNORECASE,
)
_CONTRACTION = re.compile(r"(?<=\w)(n['’]t|['’](?:re|ve|ll|d|m|s))$", re.IGNORECASE)
_INSIDE = re.compile(
    r"(\.{2,}|…|--+|[—–]"
    r"|(?<=[^\W_])[-~](?=[^\W\d_])"
    r"|(?<=[^\W_])[:<>=/](?=[^\W\d_])"
    r"|(?<=[^\W\d_]),(?=[^\W\d_])"
    r"|(?<=[0-9])[+*^-](?=[0-9-])"
    r"|(?<=[a-zà-ÿ\"'])\.(?=[A-ZÀ-Ý])"
    r"|(?<=[^\W\d_])[()\[\]\"“”](?=[^\W_]))"
)


@lru_cache(maxsize=1 << 18)
def english(word: str) -> tuple[str, ...]:
    """The tokens of one English whitespace word.

    >>> english("(don't,"), english("half-hearted"), english("U.S.")
    (('(', 'do', "n't", ','), ('half', '-', 'hearted'), ('U.S.',))
    """
    if len(word) > _LONGEST:
        return (word,)
    opening: list[str] = []
    closing: list[str] = []
    core = word
    while core and not _is_whole(core):
        if len(core) > 1 and (match := _OPENING.match(core)) and match.end() < len(core):
            opening.append(match.group())
            core = core[match.end() :]
        elif (end := _closing(core)) is not None:
            closing.append(core[end:])
            core = core[:end]
        else:
            break
    return (*opening, *_inner(core), *reversed(closing))


def _is_whole(core: str) -> bool:
    return (
        core in _ABBREVIATIONS
        or _INITIALS.fullmatch(core) is not None
        or _EMOTICON.fullmatch(core) is not None
        or (_ADDRESS.fullmatch(core) is not None and _closing(core) is None)
    )


def _closing(core: str) -> int | None:
    """Where the last closing token of the word begins, if it has one."""
    for pattern in (_OWNER, _CLOSING, _FULL_STOP, _UNIT):
        match = pattern.search(core)
        if match and match.start() > 0 and core.rpartition("-")[2] not in _ABBREVIATIONS:
            return match.start()
    return None


def _inner(core: str) -> tuple[str, ...]:
    if not core or _is_whole(core):
        return (core,) if core else ()
    pieces = [piece for piece in _INSIDE.split(core) if piece]
    return tuple(token for piece in pieces for token in _parted(piece))


def _parted(piece: str) -> tuple[str, ...]:
    if piece.lower() in ("cannot", "gonna", "gotta"):
        return piece[:3], piece[3:]
    match = _CONTRACTION.search(piece)
    if match is None:
        return (piece,)
    return (*_parted(piece[: match.start()]), match.group())
