"""Splitting whitespace words into tokens: not at all, by our own rules for English, or by spaCy's.

All three look at one whitespace word at a time (so does spaCy's tokenizer), hence every token knows its word.
The English rules follow the Penn tradition as spaCy carries it on: brackets, quotes, currency and closing
punctuation stand alone, so do hyphens and slashes between letters; contractions part (do n't, she 's);
abbreviations, initials, numbers and addresses stay whole.

From examples to batches of word ids: the pipeline of Jain & Wallace (2019) as one frozen value, `Words`.

Ids: PAD 0, UNK 1, SOS 2, EOS 3, then the words of the training split in alphabetical order. SOS and EOS frame
every part of an example, and the parts stand one after the other on the one unit axis. A unit's *word* is the
whitespace word that its token came from, so that rationales, tokenisers and models speak of the same words.
Also here: the pieces that every batcher shares (padding, labels, candidates, empty texts).

From texts to batches of subword ids, by a Hugging Face tokenizer.

The tokenizer decides on ids, special symbols and where to cut; we add what the trials need: the part and the
whitespace word of every unit, and padding on the right whatever the tokenizer's own habit is. A unit belongs
to the word that its first visible character falls into.

From images to batches of patches, the units of a vision transformer.

Layout: patches run row by row from the top left; inside a patch the order is channel, row, column, so entry
`(c * patch + y) * patch + x` is the pixel `[c, y, x]` of that patch. A convolution with kernel = stride =
patch is then the product of the flattened patches with `weight.flatten(1).T`. `fold` is the exact inverse of
`unfold`.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase

from heedful.store.recipe import OMIT_IF_DEFAULT
from heedful.types import Batch, DiskResource, Example, Selection, Tokenization, Tokenizer, UserError

WordTokenizerName = Literal["space", "english", "spacy"]
WordSplitter = Callable[[str], tuple[str, ...]]
"""The tokens of one word that has no whitespace inside; joined they give the word back."""


@cache
def word_splitter(name: WordTokenizerName) -> WordSplitter:
    """The tokeniser of this name."""
    known: dict[WordTokenizerName, Callable[[], WordSplitter]] = {
        "space": lambda: _keep_whole,
        "english": lambda: split_english,
        "spacy": _spacy_splitter,
    }
    return known[name]()


def _keep_whole(word: str) -> tuple[str, ...]:
    return (word,)


def _spacy_splitter() -> WordSplitter:
    if find_spec("spacy") is None:
        raise UserError("the tokeniser 'spacy' needs the spaCy library: pip install 'heedful[spacy]'")
    tokenizer = import_module("spacy").blank("en").tokenizer

    @lru_cache(maxsize=1 << 18)
    def split(word: str) -> tuple[str, ...]:
        return tuple(token.text for token in tokenizer(word))

    return split


_ABBREVIATION_LIST = """
    Adm. Apr. Aug. Ave. Bros. Co. Corp. Dec. Dr. Feb. Gen. Gov. Inc. Jan. Jr. Jul. Jun. Lt. Ltd. Maj. Mar.
    Messrs. Mr. Mrs. Ms. Mt. Nov. Oct. Ph.D. Prof. Rep. Rev. Sen. Sep. Sept. Sgt. Sr. St. Ala. Ariz. Ark.
    Calif. Colo. Conn. Del. Fla. Ga. Ia. Ill. Ind. Kan. Kans. Ky. La. Mass. Md. Mich. Minn. Miss. Mo. Mont.
    Neb. Nebr. Nev. Okla. Ore. Pa. Penn. Tenn. Va. Wash. Wis. vs. v.s. e.g. i.e. a.m. p.m. ph.d. o'clock
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
# Longer than any word of the language: kept whole, so that a wall of symbols cannot hold up the work.
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
    """The tokens of one English whitespace word.

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
    return (*opening, *_split_infixes(core), *reversed(closing))


def _is_unsplittable(core: str) -> bool:
    return (
        core in _ABBREVIATIONS
        or _INITIALS.fullmatch(core) is not None
        or _EMOTICON.fullmatch(core) is not None
        or (_ADDRESS.fullmatch(core) is not None and _suffix_start(core) is None)
    )


def _suffix_start(core: str) -> int | None:
    """Where the last closing token of the word begins, if it has one."""
    for pattern in (_POSSESSIVE, _SUFFIX, _FULL_STOP, _MEASUREMENT_UNIT):
        match = pattern.search(core)
        if match and match.start() > 0 and core.rpartition("-")[2] not in _ABBREVIATIONS:
            return match.start()
    return None


def _split_infixes(core: str) -> tuple[str, ...]:
    if not core or _is_unsplittable(core):
        return (core,) if core else ()
    pieces = [piece for piece in _INFIX.split(core) if piece]
    return tuple(token for piece in pieces for token in _split_contraction(piece))


def _split_contraction(piece: str) -> tuple[str, ...]:
    if piece.lower() in ("cannot", "gonna", "gotta"):
        return piece[:3], piece[3:]
    match = _CONTRACTION.search(piece)
    if match is None:
        return (piece,)
    return (*_split_contraction(piece[: match.start()]), match.group())


SPECIAL_TOKENS = ("<pad>", "<unk>", "<sos>", "<eos>")
PAD, UNK, SOS, EOS = range(4)
EMPTY_TEXT_REASON = "no words in the text"
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class TokenizedExample:
    """One example before padding: for each unit its id, its part and its word (-1 for special symbols)."""

    ids: list[int]
    segments: list[int]
    words: list[int]


def text_parts(example: Example) -> tuple[str, ...]:
    """The parts of an example that must be text."""
    texts = tuple(part for part in example.parts if isinstance(part, str))
    if not texts or len(texts) != len(example.parts):
        raise UserError(f"example {example.uid} has a part that is not text: use Patches for images")
    if len(texts) > 2:
        raise UserError(f"example {example.uid} has {len(texts)} parts: one or two texts are understood")
    return texts


def is_empty(example: Example) -> bool:
    """Whether a part of the example has no words at all."""
    return any(not text.strip() for text in text_parts(example))


def drop_empty(examples: Sequence[Example]) -> Selection:
    """The examples whose parts all have words."""
    kept = tuple(example for example in examples if not is_empty(example))
    return Selection(kept, nonzero_counts({EMPTY_TEXT_REASON: len(examples) - len(kept)}))


def nonzero_counts(reasons: Mapping[str, int]) -> dict[str, int]:
    """The reasons that left something out."""
    return {reason: count for reason, count in reasons.items() if count}


def label_tensor(examples: Sequence[Example]) -> Tensor | None:
    """Labels `[batch]`, int64 where all are whole numbers, else float32; None where nobody knows any."""
    labels = [example.label for example in examples if example.label is not None]
    if not labels:
        return None
    if len(labels) < len(examples):
        uid = next(example.uid for example in examples if example.label is None)
        raise UserError(f"example {uid} has no label, others have one: give it a label or leave it out")
    whole = all(isinstance(label, int) for label in labels)
    return torch.tensor(labels, dtype=torch.int64 if whole else torch.float32)


def count_answers(examples: Iterable[Example]) -> int:
    """How many answers there are to choose from: the largest class index seen + 1; 0 without candidates."""
    examples = tuple(examples)
    if all(example.candidates is None for example in examples):
        return 0
    seen = [index for example in examples for index in example.candidates or ()]
    seen += [example.label for example in examples if isinstance(example.label, int)]
    return max(seen, default=-1) + 1


def candidate_mask(examples: Sequence[Example], num_answers: int) -> Tensor | None:
    """Admitted answers `[batch output]`; a row without candidates admits all."""
    if all(example.candidates is None for example in examples):
        return None
    width = max([num_answers, *(max(example.candidates, default=-1) + 1 for example in examples if example.candidates)])
    admitted = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        admitted[row, slice(None) if example.candidates is None else list(example.candidates)] = True
    return admitted


def pad_batch(rows: Sequence[TokenizedExample], examples: Sequence[Example], *, pad_id: int, num_answers: int) -> Batch:
    """The rows as one left-aligned batch with the labels and candidates of their examples."""
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
    """A whole number out of what `Batcher.saved` gave."""
    value = saved.get(name)
    if not isinstance(value, int):
        raise UserError(f"the saved batcher has no number {name!r}: delete this artefact and make it again")
    return value


@dataclass(frozen=True)
class Words(Tokenization):
    """Whole words as units, the vocabulary taken from the training split.

    Fit on the whole training split, before `select`, as Jain & Wallace did (SST: 13 826 ids, not 13 705).

    Args:
        digits: "qqq" turns every token that contains a digit into the token `qqq`.
        min_documents: a word needs to occur in that many training texts; each part of an example is a text.
        longer_than: keep n > this, n being the tokens of the first part; "shortest" is the least n of the
            split, so that its shortest texts are always dropped; None sets no bound.
        shorter_than: keep n < this; "longest" is the greatest n of the split; None sets no bound.
    """

    tokenizer: WordTokenizerName = "space"
    lowercase: bool = False
    digits: Literal["keep", "qqq"] = "keep"
    min_documents: int = 1
    longer_than: int | Literal["shortest"] | None = None
    shorter_than: int | Literal["longest"] | None = None

    def __post_init__(self) -> None:
        if self.tokenizer not in ("space", "english", "spacy"):
            raise UserError(f"unknown tokeniser {self.tokenizer!r}: choose space, english or spacy")
        if self.digits not in ("keep", "qqq"):
            raise UserError(f"unknown digit rule {self.digits!r}: choose keep or qqq")
        if self.min_documents < 1:
            raise UserError(f"min_documents is {self.min_documents}: it must be at least 1")

    def fit(self, examples: Sequence[Example]) -> WordTokenizer:
        reader = _TextSplitter(self)
        documents: Counter[str] = Counter()
        for example in examples:
            for text in text_parts(example):
                documents.update({token for token, _ in reader.tokens(text)})
        words = sorted(word for word, count in documents.items() if count >= self.min_documents)
        return WordTokenizer(self, tuple(words), count_answers(examples))

    def restore(self, saved: Mapping[str, object]) -> WordTokenizer:
        words = saved.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError("the saved batcher has no list of words: delete this artefact and make it again")
        return WordTokenizer(self, tuple(words), read_saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        spoken = drop_empty(examples)
        if self.longer_than is None and self.shorter_than is None:
            return spoken
        reader = _TextSplitter(self)
        lengths = [len(reader.tokens(text_parts(example)[0])) for example in spoken.examples]
        least = min(lengths, default=0) if self.longer_than == "shortest" else self.longer_than
        most = max(lengths, default=0) if self.shorter_than == "longest" else self.shorter_than
        short = [least is not None and length <= least for length in lengths]
        long = [most is not None and length >= most for length in lengths]
        kept = tuple(e for e, s, g in zip(spoken.examples, short, long, strict=True) if not s and not g)
        reasons = {f"{least} words or fewer": sum(short)}
        reasons[f"{most} words or more"] = sum(g and not s for s, g in zip(short, long, strict=True))
        return Selection(kept, {**spoken.num_dropped, **nonzero_counts(reasons)})


class WordTokenizer(Tokenizer):
    """Batches of word ids; made by `Words`."""

    def __init__(self, tokenization: Words, words: tuple[str, ...], num_answers: int = 0) -> None:
        self._words = words
        self._num_answers = num_answers
        self._splitter = _TextSplitter(tokenization)
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

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return SPECIAL_TOKENS + self._words

    def unknown_share(self, examples: Sequence[Example]) -> float:
        """The share of tokens that the vocabulary does not know; 0 where there are no tokens."""
        tokens = [token for e in examples for text in text_parts(e) for token, _ in self._splitter.tokens(text)]
        return sum(token not in self._ids for token in tokens) / max(1, len(tokens))

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        share = self.unknown_share(examples)
        return {"share of words that training never saw often enough": share} if share else {}

    def _tokenize(self, texts: tuple[str, ...]) -> TokenizedExample:
        row = TokenizedExample([], [], [])
        before = 0
        for part, text in enumerate(texts):
            tokens = self._splitter.tokens(text)
            row.ids.extend([SOS, *(self._ids.get(token, UNK) for token, _ in tokens), EOS])
            row.segments.extend([part] * (len(tokens) + 2))
            row.words.extend([-1, *(before + word for _, word in tokens), -1])
            before += len(text.split())
        return row


class _TextSplitter:
    """Text -> (token, whitespace word) by the rules of one recipe."""

    def __init__(self, tokenization: Words) -> None:
        self._split: WordSplitter = word_splitter(tokenization.tokenizer)
        self._lower = tokenization.lowercase
        self._digits = tokenization.digits
        # A corpus repeats its words: each is split and normalised once.
        self._cached_tokens = lru_cache(maxsize=1 << 18)(self._tokens_of)

    def tokens(self, text: str) -> list[tuple[str, int]]:
        return [(token, word) for word, chunk in enumerate(text.split()) for token in self._cached_tokens(chunk)]

    def _tokens_of(self, chunk: str) -> tuple[str, ...]:
        return tuple(self._normalize(token) for token in self._split(chunk))

    def _normalize(self, token: str) -> str:
        if self._digits == "qqq" and _DIGIT.search(token):
            return "qqq"
        return token.lower() if self._lower else token


_NON_SPACE = re.compile(r"\S+")
# transformers writes a number near 1e30 where a tokenizer knows no limit.
_NO_LIMIT = 1_000_000
Encoding = tuple[BatchEncoding, int, tuple[str, ...]]
"""An encoded list of texts, a place in it, and the text (or pair) at that place."""


@dataclass(frozen=True)
class Subwords(Tokenization, DiskResource):
    """The units of a pretrained tokenizer.

    Args:
        source: a folder with `tokenizer.json`, or the name of a model on the hub.
        max_length: units of a text, special symbols included; None takes the limit that the tokenizer, or
            else the model's configuration, states.
        shorter_than: texts of so many whitespace words or more are left out.
    """

    source: str
    max_length: int | None = None
    shorter_than: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)

    def fit(self, examples: Sequence[Example]) -> SubwordTokenizer:
        return self._make_tokenizer(count_answers(examples))

    def restore(self, saved: Mapping[str, object]) -> SubwordTokenizer:
        return self._make_tokenizer(read_saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        spoken = drop_empty(examples)
        if self.shorter_than is None:
            return spoken
        kept = tuple(e for e in spoken.examples if _max_words(e) < self.shorter_than)
        reason = {f"{self.shorter_than} words or more": len(spoken.examples) - len(kept)}
        return Selection(kept, {**spoken.num_dropped, **nonzero_counts(reason)})

    def digest(self, data: Path) -> str:
        """A hash of the tokenizer's files in a folder; a hub name stands for itself."""
        folder = Path(self.source).expanduser()
        if not folder.is_dir():
            return self.source
        content = hashlib.sha256()
        for file in sorted(folder.glob("*token*")) + sorted(folder.glob("vocab*")):
            content.update(file.name.encode() + b"\0" + file.read_bytes())
        return content.hexdigest()

    def _make_tokenizer(self, num_answers: int) -> SubwordTokenizer:
        tokenizer = _load_tokenizer(self.source)
        limit = self.max_length
        if limit is None and tokenizer.model_max_length > _NO_LIMIT:
            limit = _max_positions(self.source)
        return SubwordTokenizer(tokenizer, limit, num_answers=num_answers)


class SubwordTokenizer(Tokenizer):
    """Batches of subword ids from a tokenizer that is at hand, for instance beside its model.

    Args:
        max_length: None takes the tokenizer's own limit; where it has none either, nothing is cut.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, *, num_answers: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self._num_answers = num_answers
        self._pad_id = _require_pad_id(tokenizer)
        own = tokenizer.model_max_length if tokenizer.model_max_length <= _NO_LIMIT else None
        self.max_length = own if max_length is None else max_length
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if self.max_length is not None and self.max_length < least:
            raise UserError(f"max_length is {self.max_length}: it must be at least {least} to hold a pair of texts")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        rows = [_tokenized_example(*encoded) for encoded in self._encode(examples, limit=self.max_length)]
        batch = pad_batch(rows, examples, pad_id=self._pad_id, num_answers=self._num_answers)
        return replace(
            batch, unk_id=_token_id(self._tokenizer.unk_token_id), mask_id=_token_id(self._tokenizer.mask_token_id)
        )

    def count_truncated(self, examples: Sequence[Example]) -> int:
        """How many examples are longer than the model can read; `cut_note` says what happens to them."""
        if self.max_length is None:
            return 0
        return sum(
            len(encoded["input_ids"][number]) > self.max_length
            for some in _chunks(examples)
            for encoded, number, _ in self._encode(some, limit=None)
        )

    def count_lost_rationale_words(self, examples: Sequence[Example]) -> tuple[int, int]:
        """Words that people marked as evidence and that have no unit, and how many people marked in all."""
        lost = marked = 0
        for some in _chunks([example for example in examples if any(example.rationale or ())]):
            for example, encoded in zip(some, self._encode(some, limit=self.max_length), strict=True):
                evidence = {word for word, mark in enumerate(example.rationale or ()) if mark}
                marked += len(evidence)
                lost += len(evidence.difference(_tokenized_example(*encoded).words))
        return lost, marked

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        count, (lost, marked) = self.count_truncated(examples), self.count_lost_rationale_words(examples)
        found: dict[str, int | float | str] = {f"texts {self.truncation_note}": count} if count else {}
        return found | ({"words of rationales that no unit stands for": f"{lost} of {marked}"} if lost else {})

    @property
    def truncation_note(self) -> str:
        """How texts beyond the limit are cut, in plain words."""
        if self.max_length is None:
            return "nothing is cut: the tokenizer states no limit"
        end = "beginning" if self._tokenizer.truncation_side == "left" else "end"
        return f"cut at the {end} to {self.max_length} units, special symbols included; the longer part first"

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        names = {number: self._unit_names(number) for number in set(batch.inputs.flatten().tolist())}
        rows = zip(batch.inputs.tolist(), batch.words.tolist(), batch.lengths.tolist(), strict=True)
        return [
            [names[number][0 if word >= 0 else 1] for number, word in zip(ids[:n], words[:n], strict=True)]
            for ids, words, n in rows
        ]

    def state(self) -> dict[str, object]:
        return {"answers": self._num_answers}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ()

    def _encode(self, examples: Sequence[Example], *, limit: int | None) -> list[Encoding]:
        """The encodings in the order of the examples; a tokenizer takes single texts or pairs, no mixture."""
        texts = [text_parts(example) for example in examples]
        found: dict[int, Encoding] = {}
        for parts in (1, 2):
            places = [place for place, some in enumerate(texts) if len(some) == parts]
            if places:
                encoding = self._tokenize([texts[place] for place in places], limit=limit)
                found |= {place: (encoding, number, texts[place]) for number, place in enumerate(places)}
        return [found[place] for place in range(len(texts))]

    def _tokenize(self, texts: Sequence[tuple[str, ...]], *, limit: int | None) -> BatchEncoding:
        encoding: BatchEncoding = self._tokenizer(
            [parts[0] for parts in texts],
            [parts[1] for parts in texts] if len(texts[0]) == 2 else None,
            padding=False,
            truncation=False if limit is None else "longest_first",
            max_length=limit,
            return_offsets_mapping=True,
            verbose=False,
        )
        return encoding

    def _unit_names(self, number: int) -> tuple[str, str]:
        """How a unit reads as text, and as a special symbol."""
        token = str(self._tokenizer.convert_ids_to_tokens(number))
        special = token if token.startswith("<") else f"<{token.strip('[]').lower()}>"
        return str(self._tokenizer.decode([number])).strip() or token, special


def _max_words(example: Example) -> int:
    return max(len(_NON_SPACE.findall(text)) for text in text_parts(example))


def _chunks(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    """A thousand at a time: encodings with offsets of a whole corpus would fill the memory."""
    return (examples[start : start + 1000] for start in range(0, len(examples), 1000))


def _tokenized_example(encoded: BatchEncoding, number: int, texts: tuple[str, ...]) -> TokenizedExample:
    """The units of one example: special symbols belong to the part that they follow, as in BERT."""
    ends = [[match.end() for match in _NON_SPACE.finditer(text)] for text in texts]
    before = (0, len(ends[0]))
    segments, words, part = [], [], 0
    owners = encoded.sequence_ids(number)
    for owner, (start, _) in zip(owners, encoded["offset_mapping"][number], strict=True):
        part = part if owner is None else owner
        segments.append(part)
        words.append(-1 if owner is None else before[owner] + _word_at(start, ends[owner]))
    return TokenizedExample(list(encoded["input_ids"][number]), segments, words)


def _word_at(start: int, ends: Sequence[int]) -> int:
    """The word with the first visible character at or after `start`; the last word where none follows."""
    return max(0, min(bisect_right(ends, start), len(ends) - 1))


def _load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    folder = Path(source).expanduser()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else source)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "give a folder with tokenizer.json or a hub name"
        raise UserError(f"no tokenizer could be read from {source!r} ({reason}): {remedy}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(f"{source!r} holds no tokenizer for text")
    return tokenizer


def _max_positions(source: str) -> int | None:
    """Units that the model's position table has room for; None where the configuration does not say."""
    try:
        config = AutoConfig.from_pretrained(source).to_dict()
    except (OSError, ValueError):
        return None
    positions, filler = config.get("max_position_embeddings"), config.get("pad_token_id")
    if not isinstance(positions, int) or positions <= 0:
        return None
    # The RoBERTa family (whose padding id is not 0) counts positions from the padding id + 1.
    return positions - (filler + 1 if isinstance(filler, int) and filler > 0 else 0)


def _token_id(number: object) -> int | None:
    """The id of a symbol; None where the tokenizer has none."""
    return number if isinstance(number, int) else None


def _require_pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} cannot say which characters a unit covers: "
            "use the fast version of this tokenizer (a folder with tokenizer.json)"
        )
    filler = tokenizer.pad_token_id
    if not isinstance(filler, int):
        raise UserError("the tokenizer has no padding symbol: set tokenizer.pad_token, for example to its eos_token")
    return filler


def unfold(images: Tensor, patch_size: int) -> Tensor:
    """Flattened patches `[batch unit dim]` of images `[batch channel height width]`.

    >>> unfold(torch.arange(8.0).reshape(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    batch, channels, height, width = images.shape
    cut = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch_size * patch_size)


def fold(patches: Tensor, height: int, width: int, patch_size: int) -> Tensor:
    """The images `[batch channel height width]` that `unfold` cut up."""
    batch, _, dim = patches.shape
    channels = dim // (patch_size * patch_size)
    cut = patches.reshape(batch, height // patch_size, width // patch_size, channels, patch_size, patch_size)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)


@dataclass(frozen=True)
class Patches(Tokenization):
    """Square patches of images `[channel height width]` with values in [0, 1].

    Args:
        patch: side of a patch in pixels.
        size: side that images are resized to (bilinear); None takes them as they are.
        mean: per channel, taken off before dividing by `std`; empty leaves the values as they are.
        class_unit: whether unit 0 is a class symbol, given as zeros; a model puts its own vector there.
    """

    patch_size: int
    image_size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_token: bool = True

    def __post_init__(self) -> None:
        if self.patch_size < 1:
            raise UserError(f"a patch of {self.patch_size} pixels is not possible: give at least 1")
        if len(self.mean) != len(self.std) or any(value <= 0 for value in self.std):
            raise UserError("mean and std need one number for each channel, and std must be positive")

    def fit(self, examples: Sequence[Example]) -> PatchTokenizer:
        if not examples:
            raise UserError("there are no images to learn the size from")
        channels, height, width = _image(examples[0]).shape
        shape = (channels, self.image_size or height, self.image_size or width)
        return PatchTokenizer(self, shape, count_answers(examples))

    def restore(self, saved: Mapping[str, object]) -> PatchTokenizer:
        channels, height, width = (read_saved_number(saved, name) for name in ("channels", "height", "width"))
        return PatchTokenizer(self, (channels, height, width), read_saved_number(saved, "answers"))


class PatchTokenizer(Tokenizer):
    """Batches of flattened patches of images of one shape `[channel height width]`; made by `Patches`."""

    def __init__(self, tokenization: Patches, shape: tuple[int, int, int], num_answers: int = 0) -> None:
        self._tokenization = tokenization
        self._shape = shape
        self._num_answers = num_answers
        channels, height, width = shape
        if height % tokenization.patch_size or width % tokenization.patch_size:
            raise UserError(
                f"{height} x {width} pixels do not part into patches of {tokenization.patch_size}: set patch or size"
            )
        if tokenization.mean and len(tokenization.mean) != channels:
            raise UserError(f"mean has {len(tokenization.mean)} numbers, the images have {channels} channels")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        images = torch.stack([self._resize(example) for example in examples])
        units = unfold(self._normalize(images), self._tokenization.patch_size)
        words = torch.arange(units.shape[1])
        if self._tokenization.class_token:
            units = functional.pad(units, (0, 0, 1, 0))
            words = functional.pad(words, (1, 0), value=-1)
        return Batch(
            uids=tuple(example.uid for example in examples),
            inputs=units,
            mask=torch.ones(units.shape[:2], dtype=torch.bool),
            segments=torch.zeros(units.shape[:2], dtype=torch.int64),
            words=words.repeat(len(examples), 1),
            labels=label_tensor(examples),
            candidates=candidate_mask(examples, self._num_answers),
        )

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        columns = self._shape[2] // self._tokenization.patch_size
        rows = [words[:n] for words, n in zip(batch.words.tolist(), batch.lengths.tolist(), strict=True)]
        return [["<class>" if word < 0 else f"{word // columns},{word % columns}" for word in row] for row in rows]

    def state(self) -> dict[str, object]:
        return {
            **dict(zip(("channels", "height", "width"), self._shape, strict=True)),
            "answers": self._num_answers,
        }

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ()

    def _resize(self, example: Example) -> Tensor:
        image = _image(example)
        if self._tokenization.image_size is not None:
            side = (self._tokenization.image_size, self._tokenization.image_size)
            image = functional.interpolate(image.unsqueeze(0), size=side, mode="bilinear").squeeze(0)
        if tuple(image.shape) != self._shape:
            found, wanted = (" x ".join(map(str, shape)) for shape in (image.shape, self._shape))
            raise UserError(f"image {example.uid} is {found}, the training images are {wanted}: set size")
        return image

    def _normalize(self, images: Tensor) -> Tensor:
        if not self._tokenization.mean:
            return images
        mean, std = (
            images.new_tensor(values).reshape(1, -1, 1, 1)
            for values in (self._tokenization.mean, self._tokenization.std)
        )
        return (images - mean) / std


def _image(example: Example) -> Tensor:
    image = example.parts[0] if len(example.parts) == 1 else None
    if not isinstance(image, Tensor) or image.dim() != 3 or not image.is_floating_point():
        raise UserError(f"example {example.uid} is not one image [channel height width] of real numbers in [0, 1]")
    return image
