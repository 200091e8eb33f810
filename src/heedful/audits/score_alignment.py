"""The scores of a tokenizer's tokens as scores of whitespace words, aligned by what the tokens spell."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate

MAX_ALIGNMENT_STEPS = 1 << 20
_SPECIAL = re.compile(r"\[(?:CLS|SEP|PAD|MASK|BOS|EOS)\]|</?(?:s|pad|mask|cls|sep|bos|eos)>|<\|[^|]*\|>", re.IGNORECASE)
_UNKNOWN = re.compile(r"\[UNK\]|<unk>", re.IGNORECASE)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>", re.IGNORECASE)
_IDEOGRAPH = re.compile(r".?[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


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
    for token, score in zip(token_texts(tokens), scores, strict=True):
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
    edges = {0, *ends, *(end for end in range(1, len(text)) if _is_edge(text[end - 1], text[end]))}

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


def token_texts(tokens: Sequence[str]) -> Iterator[str | None]:
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
