"""From examples to batches: whole words, the subwords of a Hugging Face tokenizer, or image patches.

`Words` is the pipeline of Jain & Wallace (2019). Its ids are PAD 0, UNK 1, SOS 2, EOS 3, then the words of the training
split in alphabetical order; SOS and EOS frame every part of an example, and the parts follow one another on the one
token axis. Each token knows the whitespace word it comes from, so that rationales, tokenizers and models count the same
words. All word tokenizers split one whitespace word at a time.

`Subwords` leaves ids, special tokens and truncation to the tokenizer and adds the part and the whitespace word of every
token; padding is on the right. A token belongs to the word of its first visible character.

`Patches` cuts images into patches, row by row from the top left. Within a patch the order is channel, row, column, so
entry `(c * patch + y) * patch + x` is the pixel `[c, y, x]`: a convolution with kernel = stride = patch is the product
of the flattened patches with `weight.flatten(1).T`.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from heedful.data.stored_examples import keep_examples
from heedful.types import (
    Batch,
    DiskResource,
    Example,
    Selection,
    Tokenization,
    Tokenizer,
    UserError,
    check_choice,
    check_model_code,
    hash_model_folder,
    read_adapter_base,
    read_model_settings,
    shorten,
    user_path,
)

if TYPE_CHECKING:  # takes seconds to import, which models of words need not wait for
    from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

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
class TokenizedExample:
    """One example before padding: the id, the part and the word of each token (word -1 for special tokens)."""

    ids: list[int]
    segments: list[int]
    words: list[int]


def text_parts(example: Example) -> tuple[str, ...]:
    """The one or two parts of an example, which must be text."""
    texts = tuple(part for part in example.parts if isinstance(part, str))
    if not texts or len(texts) != len(example.parts):
        raise UserError(f"example {example.uid} has a part that is not text: use Patches for images")
    if len(texts) > 2:
        raise UserError(f"example {example.uid} has {len(texts)} parts: give one or two texts")
    return texts


def drop_empty(examples: Sequence[Example]) -> Selection:
    """The examples of which every part has words."""
    has_words = (all(text.strip() for text in text_parts(example)) for example in examples)
    kept = keep_examples(examples, np.fromiter(has_words, np.bool_, len(examples)))
    dropped = len(examples) - len(kept)
    return Selection(kept, {"no words in the text": dropped} if dropped else {})


def _drop_by_length(texts: Selection, lengths: Iterable[int], lower: int | None, upper: int | None) -> Selection:
    """The examples of more than `lower` and fewer than `upper` words."""
    words = np.fromiter(lengths, np.int64, len(texts.examples))
    short = words <= (-1 if lower is None else lower)
    long = ~short & (words >= (np.inf if upper is None else upper))
    reasons = {f"{lower} words or fewer": int(short.sum()), f"{upper} words or more": int(long.sum())}
    dropped = {**texts.num_dropped, **{reason: count for reason, count in reasons.items() if count}}
    return Selection(keep_examples(texts.examples, ~short & ~long), dropped)


def label_tensor(examples: Sequence[Example]) -> Tensor | None:
    """Labels `[batch]`, int64 if all are integers, else float32; None if an example has none."""
    labels = [example.label for example in examples if example.label is not None]
    if not labels or len(labels) < len(examples):
        return None
    whole = all(isinstance(label, int) for label in labels)
    return torch.tensor(labels, dtype=torch.int64 if whole else torch.float32)


def check_labels(examples: Sequence[Example]) -> None:
    """UserError if some examples have labels and others do not: training and trials need all of them, or none."""
    unlabelled = next((example.uid for example in examples if example.label is None), None)
    if unlabelled is not None and any(example.label is not None for example in examples):
        raise UserError(f"example {unlabelled} has no label, but others have one: label it or leave it out")


def count_answers(examples: Iterable[Example]) -> int:
    """Number of possible answers: the largest class index + 1; 0 without candidates."""
    has_candidates, largest = False, -1
    for example in examples:
        has_candidates |= example.candidates is not None
        seen = (*(example.candidates or ()), *([example.label] if isinstance(example.label, int) else ()))
        largest = max(largest, *seen, -1)
    return largest + 1 if has_candidates else 0


def candidate_mask(examples: Sequence[Example], num_answers: int) -> Tensor | None:
    """The candidate answers `[batch output]`; all of them for an example without candidates."""
    if all(example.candidates is None for example in examples):
        return None
    width = max([num_answers, *(max(example.candidates, default=-1) + 1 for example in examples if example.candidates)])
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        mask[row, slice(None) if example.candidates is None else list(example.candidates)] = True
    return mask


def pad_batch(rows: Sequence[TokenizedExample], examples: Sequence[Example], *, pad_id: int, num_answers: int) -> Batch:
    """One left-aligned batch with the labels and candidates of the examples."""
    width = max((len(row.ids) for row in rows), default=0)
    lengths = torch.tensor([len(row.ids) for row in rows], dtype=torch.int64)
    return Batch(
        uids=tuple(example.uid for example in examples),
        inputs=_pad_lists([row.ids for row in rows], width, pad_id),
        mask=torch.arange(width) < lengths.unsqueeze(1),
        segments=_pad_lists([row.segments for row in rows], width, 0),
        words=_pad_lists([row.words for row in rows], width, -1),
        labels=label_tensor(examples),
        candidates=candidate_mask(examples, num_answers),
        pad_id=pad_id,
    )


def _pad_lists(lists: Sequence[list[int]], width: int, pad_value: int) -> Tensor:
    full = [values + [pad_value] * (width - len(values)) for values in lists]
    return torch.tensor(full, dtype=torch.int64).reshape(len(lists), width)


def read_saved_number(saved: Mapping[str, object], name: str) -> int:
    """An integer in the saved state of a tokenizer."""
    value = saved.get(name)
    if not isinstance(value, int):
        raise UserError(f"the saved tokenizer has no number {name!r}: delete this artefact and make it again")
    return value


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
        return _drop_by_length(texts, lengths, lower, upper)


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

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        tokens = [token for e in examples for text in text_parts(e) for token, _ in self._split(text)]
        share = sum(token not in self._ids for token in tokens) / max(1, len(tokens))
        return {UNKNOWN_SHARE: share} if share else {}

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
        tokens = ("qqq" if tokenization.digits == "qqq" and _DIGIT.search(each) else each for each in split(word))
        return tuple(token.lower() if tokenization.lowercase else token for token in tokens)

    return lambda text: [(token, index) for index, word in enumerate(text.split()) for token in tokens_of(word)]


_NON_SPACE = re.compile(r"\S+")
NO_LIMIT = 1_000_000
"""transformers writes a number near 1e30 where a tokenizer has no limit."""
_VOCABULARY_FILE = re.compile(r"tokenizer\.json|vocab.*|.+\.model|.+\.spm|.+\.tiktoken|bpe\.codes|tekken\.json")
UNKNOWN_SHARE = "share of words that are not in the vocabulary"
TRUNCATED = "texts truncated"
"""Remarks of tokenizers on texts, with numbers."""
N_CHECKED_TEXTS, MIN_CHECKED_WORDS, MAX_UNKNOWN_SHARE = 200, 20, 0.9
"""A tokenizer that knows next to no word of the first texts does not belong to them."""
Encoding = tuple["BatchEncoding", int, tuple[str, ...]]
"""An encoded list of texts, an index into it, and the text (or pair) at that index."""


@dataclass(frozen=True)
class Subwords(Tokenization, DiskResource):
    """The tokens of a pretrained tokenizer.

    Args:
        source: a folder with `tokenizer.json`, or the name of a model on the hub.
        max_length: maximum number of tokens, special tokens included; None takes the limit of the tokenizer, or else
            of the model's configuration.
        shorter_than: texts of that many whitespace words or more are left out.
    """

    source: str
    max_length: int | None = None
    shorter_than: int | None = None

    def fit(self, examples: Sequence[Example]) -> SubwordTokenizer:
        tokenizer = self._make_tokenizer(count_answers(examples))
        sample = examples[:N_CHECKED_TEXTS]
        unknown, words = tokenizer.count_unknown_words(sample)
        if words >= MIN_CHECKED_WORDS and unknown > MAX_UNKNOWN_SHARE * words:
            raise UserError(
                f"the tokenizer of {self.source} knows {words - unknown} of the {words} words in the first "
                f"{len(sample)} texts: give the tokenizer that belongs to the model and to the language of the texts"
            )
        return tokenizer

    def restore(self, saved: Mapping[str, object]) -> SubwordTokenizer:
        return self._make_tokenizer(read_saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        texts = drop_empty(examples)
        if self.shorter_than is None:
            return texts
        lengths = (max(len(text.split()) for text in text_parts(example)) for example in texts.examples)
        return _drop_by_length(texts, lengths, None, self.shorter_than)

    def digest(self, data: Path) -> str:
        """A hash of all files in a folder but the weights, or the name of a hub model."""
        folder = user_path(self.source)
        return hash_model_folder(folder, with_weights=False) if folder.is_dir() else self.source

    def _make_tokenizer(self, num_answers: int) -> SubwordTokenizer:
        tokenizer = load_tokenizer(self.source)
        limit = self.max_length
        if limit is None and tokenizer.model_max_length > NO_LIMIT:
            limit = max_positions(self.source)
        return SubwordTokenizer(tokenizer, limit, num_answers=num_answers)


class SubwordTokenizer(Tokenizer):
    """Batches of subword ids from a Hugging Face tokenizer.

    Args:
        max_length: None takes the limit of the tokenizer; without one, nothing is truncated.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, *, num_answers: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._num_answers = num_answers
        if not tokenizer.is_fast:
            raise UserError(
                f"{type(tokenizer).__name__} has no character offsets: "
                "use the fast version of this tokenizer (a folder with tokenizer.json)"
            )
        if not isinstance(tokenizer.pad_token_id, int):
            raise UserError("the tokenizer has no padding token: set tokenizer.pad_token, for example to its eos_token")
        self._pad_id = tokenizer.pad_token_id
        own = tokenizer.model_max_length if tokenizer.model_max_length <= NO_LIMIT else None
        self.max_length = own if max_length is None else max_length
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if self.max_length is not None and self.max_length < least:
            raise UserError(f"max_length is {self.max_length}: it must be at least {least} to hold a pair of texts")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        rows = [_tokenized_example(*encoded) for encoded in self._encode(examples, limit=self.max_length)]
        batch = pad_batch(rows, examples, pad_id=self._pad_id, num_answers=self._num_answers)
        return replace(batch, unk_id=self._tokenizer.unk_token_id, mask_id=self._tokenizer.mask_token_id)

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        truncated = lost = marked = 0
        # A thousand examples at a time: encodings with offsets of a whole corpus would fill the memory.
        for chunk in (examples[start : start + 1000] for start in range(0, len(examples), 1000)):
            for example, encoded in zip(chunk, self._encode(chunk, limit=None), strict=True):
                exceeds = self.max_length is not None and len(encoded[0]["input_ids"][encoded[1]]) > self.max_length
                truncated += exceeds
                evidence = {word for word, mark in enumerate(example.rationale or ()) if mark}
                if evidence:
                    kept = self._encode([example], limit=self.max_length)[0] if exceeds else encoded
                    marked += len(evidence)
                    lost += len(evidence.difference(_tokenized_example(*kept).words))
        end = "beginning" if self._tokenizer.truncation_side == "left" else "end"
        limit = f"{self.max_length} tokens with special tokens, the longer part first"
        notes: dict[str, int | float | str] = {f"{TRUNCATED} at the {end} to {limit}": truncated} if truncated else {}
        return notes | ({"rationale words without a token": f"{lost} of {marked}"} if lost else {})

    def count_unknown_words(self, examples: Sequence[Example]) -> tuple[int, int]:
        """Number of words without a known token, and of all words; nothing is truncated."""
        rows = [_tokenized_example(*encoded) for encoded in self._encode(examples, limit=None)]
        # A sentencepiece model has a token for the space before a word that it does not know.
        empty = {
            number
            for number in {n for row in rows for n in row.ids}
            if not str(self._tokenizer.decode([number])).strip()
        }
        empty.add(self._tokenizer.unk_token_id)
        known = [{word for number, word in zip(row.ids, row.words, strict=True) if number not in empty} for row in rows]
        words = sum(len(text.split()) for example in examples for text in text_parts(example))
        return words - sum(len(row - {-1}) for row in known), words

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        names = {number: unit_names(self._tokenizer, number) for number in set(batch.inputs.flatten().tolist())}
        rows = zip(batch.inputs.tolist(), batch.words.tolist(), batch.lengths.tolist(), strict=True)
        return [
            [names[number][0 if word >= 0 else 1] for number, word in zip(ids[:n], words[:n], strict=True)]
            for ids, words, n in rows
        ]

    def state(self) -> dict[str, object]:
        return {"answers": self._num_answers}

    def definition(self) -> str:
        own = self._tokenizer
        rules = json.loads(cast("PreTrainedTokenizerFast", own).backend_tokenizer.to_str())
        # Every call sets truncation and padding anew, so that these say nothing.
        rules = {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")}
        return json.dumps([self.max_length, own.truncation_side, own.pad_token_id, rules], sort_keys=True)

    def _encode(self, examples: Sequence[Example], *, limit: int | None) -> list[Encoding]:
        """The encodings in the order of the examples; a tokenizer takes single texts or pairs, not both at once."""
        texts = [text_parts(example) for example in examples]
        encodings: dict[int, Encoding] = {}
        for num_parts in (1, 2):
            indices = [index for index, parts in enumerate(texts) if len(parts) == num_parts]
            if indices:
                try:
                    encoding: BatchEncoding = self._tokenizer(
                        *([texts[index][part] for index in indices] for part in range(num_parts)),
                        truncation=False if limit is None else "longest_first",
                        max_length=limit,
                        return_offsets_mapping=True,
                        verbose=False,
                    )
                except Exception as error:
                    if type(error) is not Exception:  # the tokenizers library has no class of its own
                        raise
                    raise UserError(
                        f"the tokenizer cannot read the texts ({error}): save it again with save_pretrained"
                    ) from error
                encodings |= {index: (encoding, number, texts[index]) for number, index in enumerate(indices)}
        return [encodings[index] for index in range(len(texts))]


def unit_names(tokenizer: PreTrainedTokenizerBase, number: int) -> tuple[str, str]:
    """The name of a token as text, and as a special token."""
    token = str(tokenizer.convert_ids_to_tokens(number))
    special = token if token.startswith("<") else f"<{token.strip('[]').lower()}>"
    return str(tokenizer.decode([number])).strip() or token, special


def wrap_tokenizer(tokenizer: object, max_length: int | None) -> SubwordTokenizer:
    """Batches from a tokenizer of the user, which stays unchanged; texts end at `max_length` or its own limit."""
    own = copy_tokenizer(tokenizer)
    limits = [limit for limit in (own.model_max_length, max_length) if limit is not None and limit <= NO_LIMIT]
    return SubwordTokenizer(own, min(limits, default=None))


def copy_tokenizer(tokenizer: object) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer of the user, because every call leaves its truncation in it."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(
            f"expected a tokenizer of transformers or heedful, got {type(tokenizer).__name__}; give the tokenizer that "
            "belongs to the model"
        )
    own = copy.deepcopy(tokenizer)
    _check_tokenizer(own, type(tokenizer).__name__)
    return own


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise a `UserError` for a tokenizer whose settings do not work: transformers takes them as they are."""
    limit: object = tokenizer.model_max_length
    is_unlimited = isinstance(limit, float) and limit > NO_LIMIT
    if isinstance(limit, bool) or not (isinstance(limit, int) or is_unlimited):
        raise UserError(
            f"model_max_length of the tokenizer {name} is {shorten(limit)}: set it to a number of tokens in "
            "tokenizer_config.json, or leave it out"
        )
    try:
        special = [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "mask", "eos", "bos")]
        tokenizer("a text", verbose=False)["input_ids"]
    except Exception as error:  # settings decide which lines of the library fail, and how
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the tokenizer {name} cannot read a text ({reason}): correct its tokenizer_config.json, or save it again "
            "with save_pretrained"
        ) from error
    if not all(isinstance(number, int | None) for number in special):
        raise UserError(f"the tokenizer {name} has a special token without a number: correct its tokenizer_config.json")


def _tokenized_example(encoded: BatchEncoding, number: int, texts: tuple[str, ...]) -> TokenizedExample:
    """The tokens of one example; special tokens belong to the part that they follow, as in BERT."""
    ends = [[match.end() for match in _NON_SPACE.finditer(text)] for text in texts]
    before = (0, len(ends[0]))
    segments, words, part = [], [], 0
    owners = encoded.sequence_ids(number)
    for owner, (start, _) in zip(owners, encoded["offset_mapping"][number], strict=True):
        part = part if owner is None else owner
        segments.append(part)
        # The word with the first visible character at or after `start`, else the last word.
        word = 0 if owner is None else max(0, min(bisect_right(ends[owner], start), len(ends[owner]) - 1))
        words.append(-1 if owner is None else before[owner] + word)
    return TokenizedExample(list(encoded["input_ids"][number]), segments, words)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder or on the hub, never with code of its own."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    folder = user_path(source)
    if folder.is_dir():
        base = read_adapter_base(folder)
        if base is not None and not _has_vocabulary(folder):
            return load_tokenizer(base)
        check_tokenizer_folder(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else source, trust_remote_code=False)
    except Exception as error:  # the libraries raise any kind, even plain Exception, for a damaged file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "give a folder with tokenizer.json or a hub name"
        raise UserError(f"no tokenizer could be read from {source!r} ({reason}): {remedy}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(f"{source!r} holds no tokenizer for text")
    check_model_code(source, tokenizer.init_kwargs)
    _check_tokenizer(tokenizer, source)
    return tokenizer


def check_tokenizer_folder(folder: Path) -> None:
    """Raise a `UserError` unless the folder holds a vocabulary; transformers would make one up from config.json."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): check its permissions") from error
    for name in ("config.json", "tokenizer_config.json"):
        if name in names:
            read_model_settings(folder / name)
    if not _has_vocabulary(folder):
        raise UserError(
            f"{folder} has no tokenizer (tokenizer.json, vocab.txt, vocab.json or a sentencepiece model): save it into "
            "the folder with tokenizer.save_pretrained"
        )


def _has_vocabulary(folder: Path) -> bool:
    return any(_VOCABULARY_FILE.fullmatch(path.name) for path in folder.iterdir() if path.is_file())


def max_positions(source: str) -> int | None:
    """Number of positions of the model; None where the configuration does not say."""
    from transformers import AutoConfig

    folder = user_path(source)
    if not (folder / "config.json").is_file() and (base := read_adapter_base(folder)) is not None:
        return max_positions(base)
    try:
        found = AutoConfig.from_pretrained(str(folder) if folder.is_dir() else source, trust_remote_code=False)
        config = found.get_text_config()
    except Exception:  # noqa: BLE001 - a damaged configuration is reported where the model is loaded
        return None
    # Asked by name: GPT-2 and others write these numbers under names of their own.
    positions, pad_id = (getattr(config, name, None) for name in ("max_position_embeddings", "pad_token_id"))
    if not isinstance(positions, int) or positions <= 0:
        return None
    if any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta", "rope_scaling")):
        return positions
    # The RoBERTa family (whose padding id is not 0) counts positions from the padding id + 1.
    first = pad_id + 1 if isinstance(pad_id, int) and pad_id > 0 else 0
    return positions - first if first < positions else positions


def unfold(images: Tensor, patch_size: int) -> Tensor:
    """Flattened patches `[batch patch dim]` of images `[batch channel height width]`.

    >>> unfold(torch.arange(8.0).reshape(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    batch, channels, height, width = images.shape
    grid = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch_size * patch_size)


@dataclass(frozen=True)
class Patches(Tokenization):
    """Square patches of images `[channel height width]` with values in [0, 1].

    Args:
        patch_size: side of a patch in pixels.
        image_size: side that images are resized to (bilinear); None keeps their size.
        mean: per channel, subtracted before dividing by `std`; empty keeps the values.
        class_token: whether token 0 is a class token, given as zeros; a model puts its own vector there.
        registers: further special tokens behind the class token, such as registers or a distillation token.
    """

    patch_size: int
    image_size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_token: bool = True
    registers: int = 0

    def __post_init__(self) -> None:
        if self.patch_size < 1:
            raise UserError(f"patch_size is {self.patch_size}: it must be at least 1")
        if self.registers < 0 or (self.registers and not self.class_token):
            raise UserError(f"registers is {self.registers}: give a number from 0 on, and a class token before them")
        if len(self.mean) != len(self.std) or any(value <= 0 for value in self.std):
            raise UserError("mean and std need one number per channel, and std must be positive")

    def fit(self, examples: Sequence[Example]) -> PatchTokenizer:
        if not examples:
            raise UserError("no images to take the size from: give at least one example")
        channels, height, width = _image(examples[0]).shape
        return PatchTokenizer(self, (channels, self.image_size or height, self.image_size or width))

    def restore(self, saved: Mapping[str, object]) -> PatchTokenizer:
        channels, height, width = (read_saved_number(saved, name) for name in ("channels", "height", "width"))
        return PatchTokenizer(self, (channels, height, width))


def read_patches(source: str, patch_size: int, image_size: int) -> Patches:
    """The patches that a vision model in a folder or on the hub reads, as its preprocessor_config.json says."""
    from transformers.utils.hub import cached_file

    name, folder = "preprocessor_config.json", user_path(source)
    path = folder / name if folder.is_dir() else cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    if path is None or not Path(path).is_file():
        raise UserError(f"{source} reads images and has no {name}: save its image processor into the folder")
    settings = read_model_settings(Path(path))
    if settings.get("do_center_crop"):
        raise UserError(
            f"{source} crops its images (do_center_crop), which is not supported: use one that resizes them"
        )
    mean, std = (
        tuple(map(float, value))
        if isinstance(value := settings.get(key), list) and settings.get("do_normalize")
        else ()
        for key in ("image_mean", "image_std")
    )
    return Patches(patch_size, image_size if settings.get("do_resize", True) else None, mean, std)


class PatchTokenizer(Tokenizer):
    """Batches of flattened patches of images of one shape `[channel height width]`."""

    def __init__(self, tokenization: Patches, shape: tuple[int, int, int]) -> None:
        self._tokenization = tokenization
        self._shape = shape
        channels, height, width = shape
        if height % tokenization.patch_size or width % tokenization.patch_size:
            raise UserError(
                f"{height} x {width} pixels cannot be divided into patches of {tokenization.patch_size}: "
                "set patch_size or image_size"
            )
        if tokenization.mean and len(tokenization.mean) != channels:
            raise UserError(f"mean has {len(tokenization.mean)} numbers, the images have {channels} channels")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        images, mean, std = self._stack(examples), self._tokenization.mean, self._tokenization.std
        if mean:
            images = (images - images.new_tensor(mean).reshape(-1, 1, 1)) / images.new_tensor(std).reshape(-1, 1, 1)
        units = unfold(images, self._tokenization.patch_size)
        words = torch.arange(units.shape[1])
        special = self._tokenization.class_token + self._tokenization.registers
        units, words = functional.pad(units, (0, 0, special, 0)), functional.pad(words, (special, 0), value=-1)
        return Batch(
            uids=tuple(example.uid for example in examples),
            inputs=units,
            mask=torch.ones(units.shape[:2], dtype=torch.bool),
            segments=torch.zeros(units.shape[:2], dtype=torch.int64),
            words=words.repeat(len(examples), 1),
            labels=label_tensor(examples),
        )

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        columns = self._shape[2] // self._tokenization.patch_size
        rows = [words[:n] for words, n in zip(batch.words.tolist(), batch.lengths.tolist(), strict=True)]
        return [
            [
                f"{word // columns},{word % columns}" if word >= 0 else "<register>" if place else "<class>"
                for place, word in enumerate(row)
            ]
            for row in rows
        ]

    @property
    def tokenization(self) -> Patches:
        """The preprocessing that this tokenizer applies."""
        return self._tokenization

    def state(self) -> dict[str, object]:
        return dict(zip(("channels", "height", "width"), self._shape, strict=True))

    def definition(self) -> str:
        return f"{self._tokenization} {super().definition()}"

    def _stack(self, examples: Sequence[Example]) -> Tensor:
        """The images `[batch channel height width]`, resized if the tokenization says so."""
        images, side = [], self._tokenization.image_size
        for example in examples:
            image = _image(example)
            if side is not None:
                image = functional.interpolate(image.unsqueeze(0), size=(side, side), mode="bilinear").squeeze(0)
            if tuple(image.shape) != self._shape:
                actual, expected = (" x ".join(map(str, shape)) for shape in (image.shape, self._shape))
                raise UserError(f"image {example.uid} is {actual}, the training images are {expected}: set image_size")
            images.append(image)
        return torch.stack(images)


def _image(example: Example) -> Tensor:
    image = example.parts[0] if len(example.parts) == 1 else None
    if not isinstance(image, Tensor) or image.dim() != 3 or not image.is_floating_point():
        raise UserError(f"example {example.uid} is not one image [channel height width] of floats in [0, 1]")
    return image
