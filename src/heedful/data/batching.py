"""From examples to batches of word ids: the pipeline of Jain & Wallace (2019) as one frozen value, `Words`.

Ids: PAD 0, UNK 1, SOS 2, EOS 3, then the words of the training split in alphabetical order. SOS and EOS frame
every part of an example, and the parts stand one after the other on the one unit axis. A unit's *word* is the
whitespace word that its token came from, so that rationales, tokenisers and models speak of the same words.
Also here: the pieces that every batcher shares (padding, labels, candidates, empty texts).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from heedful.core.types import Batch, Batcher, Batching, Example, Selection, UserError
from heedful.data.tokenising import Splitter, TokeniserName, splitter

SPECIALS = ("<pad>", "<unk>", "<sos>", "<eos>")
PAD, UNK, SOS, EOS = range(4)
NO_WORDS = "no words in the text"
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Row:
    """One example before padding: for each unit its id, its part and its word (-1 for special symbols)."""

    ids: list[int]
    segments: list[int]
    words: list[int]


def texts_of(example: Example) -> tuple[str, ...]:
    """The parts of an example that must be text."""
    texts = tuple(part for part in example.parts if isinstance(part, str))
    if not texts or len(texts) != len(example.parts):
        raise UserError(f"example {example.uid} has a part that is not text: use Patches for images")
    if len(texts) > 2:
        raise UserError(f"example {example.uid} has {len(texts)} parts: one or two texts are understood")
    return texts


def is_empty(example: Example) -> bool:
    """Whether a part of the example has no words at all."""
    return any(not text.strip() for text in texts_of(example))


def without_empty(examples: Sequence[Example]) -> Selection:
    """The examples whose parts all have words."""
    kept = tuple(example for example in examples if not is_empty(example))
    return Selection(kept, counted({NO_WORDS: len(examples) - len(kept)}))


def counted(reasons: Mapping[str, int]) -> dict[str, int]:
    """The reasons that left something out."""
    return {reason: count for reason, count in reasons.items() if count}


def labels_of(examples: Sequence[Example]) -> Tensor | None:
    """Labels `[batch]`, int64 where all are whole numbers, else float32; None where nobody knows any."""
    labels = [example.label for example in examples if example.label is not None]
    if not labels:
        return None
    if len(labels) < len(examples):
        uid = next(example.uid for example in examples if example.label is None)
        raise UserError(f"example {uid} has no label, others have one: give it a label or leave it out")
    whole = all(isinstance(label, int) for label in labels)
    return torch.tensor(labels, dtype=torch.int64 if whole else torch.float32)


def answers_of(examples: Iterable[Example]) -> int:
    """How many answers there are to choose from: the largest class index seen + 1; 0 without candidates."""
    examples = tuple(examples)
    if all(example.candidates is None for example in examples):
        return 0
    seen = [index for example in examples for index in example.candidates or ()]
    seen += [example.label for example in examples if isinstance(example.label, int)]
    return max(seen, default=-1) + 1


def candidates_of(examples: Sequence[Example], answers: int) -> Tensor | None:
    """Admitted answers `[batch output]`; a row without candidates admits all."""
    if all(example.candidates is None for example in examples):
        return None
    width = max([answers, *(max(example.candidates, default=-1) + 1 for example in examples if example.candidates)])
    admitted = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        admitted[row, slice(None) if example.candidates is None else list(example.candidates)] = True
    return admitted


def padded(rows: Sequence[Row], examples: Sequence[Example], *, filler: int, answers: int) -> Batch:
    """The rows as one left-aligned batch with the labels and candidates of their examples."""
    width = max((len(row.ids) for row in rows), default=0)
    lengths = torch.tensor([len(row.ids) for row in rows], dtype=torch.int64)
    return Batch(
        uids=tuple(example.uid for example in examples),
        inputs=_filled([row.ids for row in rows], width, filler),
        mask=torch.arange(width) < lengths.unsqueeze(1),
        segments=_filled([row.segments for row in rows], width, 0),
        words=_filled([row.words for row in rows], width, -1),
        labels=labels_of(examples),
        candidates=candidates_of(examples, answers),
        filler=filler,
    )


def _filled(lists: Sequence[list[int]], width: int, filler: int) -> Tensor:
    full = [values + [filler] * (width - len(values)) for values in lists]
    return torch.tensor(full, dtype=torch.int64).reshape(len(lists), width)


def saved_number(saved: Mapping[str, object], name: str) -> int:
    """A whole number out of what `Batcher.saved` gave."""
    value = saved.get(name)
    if not isinstance(value, int):
        raise UserError(f"the saved batcher has no number {name!r}: delete this artefact and make it again")
    return value


@dataclass(frozen=True)
class Words(Batching):
    """Whole words as units, the vocabulary taken from the training split.

    Fit on the whole training split, before `select`, as Jain & Wallace did (SST: 13 826 ids, not 13 705).

    Args:
        digits: "qqq" turns every token that contains a digit into the token `qqq`.
        min_documents: a word needs to occur in that many training texts; each part of an example is a text.
        longer_than: keep n > this, n being the tokens of the first part; "shortest" is the least n of the
            split, so that its shortest texts are always dropped; None sets no bound.
        shorter_than: keep n < this; "longest" is the greatest n of the split; None sets no bound.
    """

    tokeniser: TokeniserName = "space"
    lower: bool = False
    digits: Literal["keep", "qqq"] = "keep"
    min_documents: int = 1
    longer_than: int | Literal["shortest"] | None = None
    shorter_than: int | Literal["longest"] | None = None

    def __post_init__(self) -> None:
        if self.tokeniser not in ("space", "english", "spacy"):
            raise UserError(f"unknown tokeniser {self.tokeniser!r}: choose space, english or spacy")
        if self.digits not in ("keep", "qqq"):
            raise UserError(f"unknown digit rule {self.digits!r}: choose keep or qqq")
        if self.min_documents < 1:
            raise UserError(f"min_documents is {self.min_documents}: it must be at least 1")

    def fit(self, examples: Sequence[Example]) -> WordBatcher:
        reader = _Reader(self)
        documents: Counter[str] = Counter()
        for example in examples:
            for text in texts_of(example):
                documents.update({token for token, _ in reader.tokens(text)})
        words = sorted(word for word, count in documents.items() if count >= self.min_documents)
        return WordBatcher(self, tuple(words), answers_of(examples))

    def restore(self, saved: Mapping[str, object]) -> WordBatcher:
        words = saved.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError("the saved batcher has no list of words: delete this artefact and make it again")
        return WordBatcher(self, tuple(words), saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        spoken = without_empty(examples)
        if self.longer_than is None and self.shorter_than is None:
            return spoken
        reader = _Reader(self)
        lengths = [len(reader.tokens(texts_of(example)[0])) for example in spoken.examples]
        least = min(lengths, default=0) if self.longer_than == "shortest" else self.longer_than
        most = max(lengths, default=0) if self.shorter_than == "longest" else self.shorter_than
        short = [least is not None and length <= least for length in lengths]
        long = [most is not None and length >= most for length in lengths]
        kept = tuple(e for e, s, g in zip(spoken.examples, short, long, strict=True) if not s and not g)
        reasons = {f"{least} words or fewer": sum(short)}
        reasons[f"{most} words or more"] = sum(g and not s for s, g in zip(short, long, strict=True))
        return Selection(kept, {**spoken.left_out, **counted(reasons)})


class WordBatcher(Batcher):
    """Batches of word ids; made by `Words`."""

    def __init__(self, recipe: Words, words: tuple[str, ...], answers: int = 0) -> None:
        self._words = words
        self._answers = answers
        self._reader = _Reader(recipe)
        self._ids = {word: number for number, word in enumerate(words, start=len(SPECIALS))}

    def __call__(self, examples: Sequence[Example]) -> Batch:
        rows = [self._row(texts_of(example)) for example in examples]
        return replace(padded(rows, examples, filler=PAD, answers=self._answers), unknown=UNK)

    def texts(self, batch: Batch) -> list[list[str]]:
        names = self.vocabulary
        return [
            [names[number] for number in row[:length]]
            for row, length in zip(batch.inputs.tolist(), batch.lengths.tolist(), strict=True)
        ]

    def saved(self) -> dict[str, object]:
        return {"words": list(self._words), "answers": self._answers}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return SPECIALS + self._words

    def unknown(self, examples: Sequence[Example]) -> float:
        """The share of tokens that the vocabulary does not know; 0 where there are no tokens."""
        tokens = [token for e in examples for text in texts_of(e) for token, _ in self._reader.tokens(text)]
        return sum(token not in self._ids for token in tokens) / max(1, len(tokens))

    def remarks(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        share = self.unknown(examples)
        return {"share of words that training never saw often enough": share} if share else {}

    def _row(self, texts: tuple[str, ...]) -> Row:
        row = Row([], [], [])
        before = 0
        for part, text in enumerate(texts):
            tokens = self._reader.tokens(text)
            row.ids.extend([SOS, *(self._ids.get(token, UNK) for token, _ in tokens), EOS])
            row.segments.extend([part] * (len(tokens) + 2))
            row.words.extend([-1, *(before + word for _, word in tokens), -1])
            before += len(text.split())
        return row


class _Reader:
    """Text -> (token, whitespace word) by the rules of one recipe."""

    def __init__(self, recipe: Words) -> None:
        self._split: Splitter = splitter(recipe.tokeniser)
        self._lower = recipe.lower
        self._digits = recipe.digits
        # A corpus repeats its words: each is split and normalised once.
        self._known = lru_cache(maxsize=1 << 18)(self._tokens_of)

    def tokens(self, text: str) -> list[tuple[str, int]]:
        return [(token, word) for word, chunk in enumerate(text.split()) for token in self._known(chunk)]

    def _tokens_of(self, chunk: str) -> tuple[str, ...]:
        return tuple(self._normal(token) for token in self._split(chunk))

    def _normal(self, token: str) -> str:
        if self._digits == "qqq" and _DIGIT.search(token):
            return "qqq"
        return token.lower() if self._lower else token
