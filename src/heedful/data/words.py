"""Whole words as tokens, the pipeline of Jain & Wallace (2019).

Ids are PAD 0, UNK 1, SOS 2, EOS 3, then the words of the training split in alphabetical order; SOS and EOS frame every
part of an example. All word tokenizers split one whitespace word at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from heedful.data.tokenization import (
    TokenizedExample,
    count_answers,
    drop_by_length,
    drop_empty,
    pad_batch,
    read_saved_number,
    text_parts,
)
from heedful.types import Batch, Example, Selection, Tokenization, Tokenizer, UserError, check_choice

WordTokenizerName = Literal["space", "english", "spacy"]
DigitRule = Literal["keep", "qqq"]


@cache
def word_splitter(name: WordTokenizerName) -> Callable[[str], tuple[str, ...]]:
    """The function that splits one whitespace word into tokens, which joined give the word."""
    if name == "space":
        return lambda word: (word,)
    if name == "english":
        return split_english
    if find_spec("spacy") is None:
        raise UserError("the tokenizer 'spacy' needs the spaCy library: pip install 'heedful[spacy]'")
    tokenizer = import_module("spacy").blank("en").tokenizer
    return lru_cache(maxsize=1 << 18)(lambda word: tuple(token.text for token in tokenizer(word)))


_ABBREVIATION_LIST = """
    Adm. Apr. Aug. Ave. Bros. Co. Corp. Dec. Dr. Feb. Gen. Gov. Inc. Jan. Jr. Jul. Jun. Lt. Ltd. Maj. Mar.
    Messrs. Mr. Mrs. Ms. Mt. Nov. Oct. Ph.D. Prof. Rep. Rev. Sen. Sep. Sept. Sgt. Sr. St. Ala. Ariz. Ark.
    Calif. Colo. Conn. Del. Fla. Ga. Ia. Ill. Ind. Kan. Kans. Ky. La. Mass. Md. Mich. Minn. Miss. Mo. Mont.
    Neb. Nebr. Nev. Okla. Ore. Pa. Penn. Tenn. Va. Wash. Wis. vs. v.s. e.g. i.e. a.m. p.m. ph.d. o'clock
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
# Longer than any real word: kept whole, so that a wall of symbols takes no time.
_MAX_WORD_LENGTH = 200
_EMOTICON = re.compile(r"[:;=8][-o^']?[)(\]\[DPp/|3*]+|<3+|\^_+\^")
_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.)\S+"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?:[a-z0-9][a-z0-9-]*\.)+(?:com|org|net|edu|gov|info|biz|co\.uk|uk|de|fr|jp|cn|in|au|ca|ru|tv|us|eu|io)(?:/\S*)?",
    re.IGNORECASE,
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.){2,}|[A-Za-z]\.|['’](?:s|re|ve|ll|d|m|em)|n['’]t", re.IGNORECASE)
_PREFIX = re.compile(r"''|\.{2,}|…|US\$|C\$|A\$|[-–—]+(?=[^\W\d_])|[\[\](){}<>,;:!?*#&=%+§¥$£€¢\"“”„'`‘’«»/|~_•·…]")
_SUFFIX = re.compile(r"(?:''|\.{2,}|…|--+|[\[\](){}<>,;:!?*#&=$£€¢%\"“”„`«»/|~_•·…'‘’]|[—–])$")
_POSSESSIVE = re.compile(r"(?<=.)['’]s$", re.IGNORECASE)
_FULL_STOP = re.compile(r"(?<=[a-z0-9à-ÿ%²\-+'\"“”)\];:])\.$|(?<=[A-Z]{2})\.$")
_MEASUREMENT_UNIT = re.compile(
    r"(?<=\d)(?:km|kg|mg|gb|mb|kb|tb|mm|cm|nm|ghz|mhz|khz|hz|mph|kph|km/h|lb|oz|ml|mph|yds?|ft|am|pm|a\.m\.|p\.m\.|m|g|t|%)$",
    re.IGNORECASE,
)
_CONTRACTION = re.compile(r"(?<=\w)(n['’]t|['’](?:re|ve|ll|d|m|s))$", re.IGNORECASE)
_INFIX = re.compile(
    r"(\.{2,}|…|--+|[—–]"
    r"|(?<=[^\W_])[-~](?=[^\W\d_])"
    r"|(?<=[^\W_])[:<>=/](?=[^\W\d_])"
    r"|(?<=[^\W\d_]),(?=[^\W\d_])"
    r"|(?<=[0-9])[+*^-](?=[0-9-])"
    r"|(?<=[a-zà-ÿ\"'])\.(?=[A-ZÀ-Ý])"
    r"|(?<=[^\W\d_])[()\[\]\"“”](?=[^\W_]))"
)


@lru_cache(maxsize=1 << 18)
def split_english(word: str) -> tuple[str, ...]:
    """The tokens of one English whitespace word, in the Penn tradition as spaCy continues it.

    Brackets, quotes, currency signs, closing punctuation, and hyphens and slashes between letters are tokens of their
    own; contractions are split; abbreviations, initials, numbers and addresses stay whole.

    >>> split_english("(don't,"), split_english("half-hearted"), split_english("U.S.")
    (('(', 'do', "n't", ','), ('half', '-', 'hearted'), ('U.S.',))
    """
    if len(word) > _MAX_WORD_LENGTH:
        return (word,)
    opening: list[str] = []
    closing: list[str] = []
    core = word
    while core and not _is_unsplittable(core):
        if len(core) > 1 and (match := _PREFIX.match(core)) and match.end() < len(core):
            opening.append(match.group())
            core = core[match.end() :]
        elif (end := _suffix_start(core)) is not None:
            closing.append(core[end:])
            core = core[:end]
        else:
            break
    middle: Iterable[str] = [core]
    if not _is_unsplittable(core):
        middle = (token for piece in _INFIX.split(core) for token in _split_contraction(piece) if token)
    return (*opening, *middle, *reversed(closing))


def _is_unsplittable(core: str) -> bool:
    return (
        core in _ABBREVIATIONS
        or _INITIALS.fullmatch(core) is not None
        or _EMOTICON.fullmatch(core) is not None
        or (_ADDRESS.fullmatch(core) is not None and _suffix_start(core) is None)
    )


def _suffix_start(core: str) -> int | None:
    """Start of the last closing token of the word, if there is one."""
    for pattern in (_POSSESSIVE, _SUFFIX, _FULL_STOP, _MEASUREMENT_UNIT):
        match = pattern.search(core)
        if match and match.start() > 0 and core.rpartition("-")[2] not in _ABBREVIATIONS:
            return match.start()
    return None


def _split_contraction(piece: str) -> tuple[str, ...]:
    if piece.lower() in ("cannot", "gonna", "gotta"):
        return piece[:3], piece[3:]
    match = _CONTRACTION.search(piece)
    if match is None:
        return (piece,)
    return (*_split_contraction(piece[: match.start()]), match.group())


SPECIAL_TOKENS = ("<pad>", "<unk>", "<sos>", "<eos>")
PAD, UNK, SOS, EOS = range(4)
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Words(Tokenization):
    """Whole words as tokens, with a vocabulary from the training split.

    Fit on the whole training split, before `select`, as Jain & Wallace do (SST: 13 826 ids, not 13 705).

    Args:
        tokenizer: "space" keeps whitespace words whole, "english" is `split_english`, "spacy" uses spaCy's rules.
        digits: "qqq" replaces every token that contains a digit by `qqq`.
        min_documents: minimum number of training texts that contain a word; each part of an example is a text.
        longer_than: keep n > this, where n counts the tokens of the first part; "shortest" is the smallest n of the
            split, so that its shortest texts are dropped; None sets no bound.
        shorter_than: keep n < this; "longest" is the largest n of the split; None sets no bound.
    """

    tokenizer: WordTokenizerName = "space"
    lowercase: bool = False
    digits: DigitRule = "keep"
    min_documents: int = 1
    longer_than: int | Literal["shortest"] | None = None
    shorter_than: int | Literal["longest"] | None = None

    def __post_init__(self) -> None:
        check_choice("tokenizer", self.tokenizer, WordTokenizerName)
        check_choice("digit rule", self.digits, DigitRule)
        if self.min_documents < 1:
            raise UserError(f"min_documents is {self.min_documents}: it must be at least 1")

    def fit(self, examples: Sequence[Example]) -> WordTokenizer:
        split = _text_splitter(self)
        documents: Counter[str] = Counter()
        for example in examples:
            for text in text_parts(example):
                documents.update({token for token, _ in split(text)})
        words = sorted(word for word, count in documents.items() if count >= self.min_documents)
        return WordTokenizer(self, tuple(words), count_answers(examples))

    def restore(self, saved: Mapping[str, object]) -> WordTokenizer:
        words = saved.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError("the saved tokenizer has no list of words: delete this artefact and make it again")
        return WordTokenizer(self, tuple(words), read_saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        texts = drop_empty(examples)
        if self.longer_than is None and self.shorter_than is None:
            return texts
        split = _text_splitter(self)
        lengths = [len(split(text_parts(example)[0])) for example in texts.examples]
        lower = min(lengths, default=0) if self.longer_than == "shortest" else self.longer_than
        upper = max(lengths, default=0) if self.shorter_than == "longest" else self.shorter_than
        return drop_by_length(texts, lengths, lower, upper)


class WordTokenizer(Tokenizer):
    """Batches of word ids, with the vocabulary that `Words` collected."""

    def __init__(self, tokenization: Words, words: tuple[str, ...], num_answers: int = 0) -> None:
        self._tokenization = tokenization
        self._words = words
        self._num_answers = num_answers
        self._split = _text_splitter(tokenization)
        self._ids = {word: number for number, word in enumerate(words, start=len(SPECIAL_TOKENS))}

    def __call__(self, examples: Sequence[Example]) -> Batch:
        rows = [self._tokenize(text_parts(example)) for example in examples]
        return replace(pad_batch(rows, examples, pad_id=PAD, num_answers=self._num_answers), unk_id=UNK)

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        names = self.vocabulary
        return [
            [names[number] for number in row[:length]]
            for row, length in zip(batch.inputs.tolist(), batch.lengths.tolist(), strict=True)
        ]

    def state(self) -> dict[str, object]:
        return {"words": list(self._words), "answers": self._num_answers}

    def definition(self) -> str:
        return f"{self._tokenization} {super().definition()}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return SPECIAL_TOKENS + self._words

    def count_unknown_words(self, examples: Sequence[Example]) -> tuple[int, int]:
        tokens = [token for e in examples for text in text_parts(e) for token, _ in self._split(text)]
        return sum(token not in self._ids for token in tokens), len(tokens)

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        unknown, tokens = self.count_unknown_words(examples)
        return {UNKNOWN_SHARE: unknown / tokens} if unknown else {}

    def _tokenize(self, texts: tuple[str, ...]) -> TokenizedExample:
        row = TokenizedExample([], [], [])
        before = 0
        for part, text in enumerate(texts):
            tokens = self._split(text)
            row.ids.extend([SOS, *(self._ids.get(token, UNK) for token, _ in tokens), EOS])
            row.segments.extend([part] * (len(tokens) + 2))
            row.words.extend([-1, *(before + word for _, word in tokens), -1])
            before += len(text.split())
        return row


def _text_splitter(tokenization: Words) -> Callable[[str], list[tuple[str, int]]]:
    """A function from a text to its tokens, each with the index of its whitespace word."""
    split = word_splitter(tokenization.tokenizer)

    # A corpus repeats its words: each is split and normalised once.
    @lru_cache(maxsize=1 << 18)
    def tokens_of(word: str) -> tuple[str, ...]:
        tokens = ("qqq" if tokenization.digits == "qqq" and _DIGIT.search(token) else token for token in split(word))
        return tuple(token.lower() if tokenization.lowercase else token for token in tokens)

    return lambda text: [(token, index) for index, word in enumerate(text.split()) for token in tokens_of(word)]


UNKNOWN_SHARE = "share of words that are not in the vocabulary"
