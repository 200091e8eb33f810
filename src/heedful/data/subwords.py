"""From texts to batches of subword ids, by a Hugging Face tokenizer.

The tokenizer decides on ids, special symbols and where to cut; we add what the trials need: the part and the
whitespace word of every unit, and padding on the right whatever the tokenizer's own habit is. A unit belongs
to the word that its first visible character falls into.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase

from heedful.core.recipe import LATER
from heedful.core.types import Batch, Batcher, Batching, Content, Example, Selection, UserError
from heedful.data.batching import Row, answers_of, counted, padded, saved_number, texts_of, without_empty

_VISIBLE = re.compile(r"\S+")
# transformers writes a number near 1e30 where a tokenizer knows no limit.
_NO_LIMIT = 1_000_000
Encoded = tuple[BatchEncoding, int, tuple[str, ...]]
"""An encoded list of texts, a place in it, and the text (or pair) at that place."""


@dataclass(frozen=True)
class Subwords(Batching, Content):
    """The units of a pretrained tokenizer.

    Args:
        source: a folder with `tokenizer.json`, or the name of a model on the hub.
        max_length: units of a text, special symbols included; None takes the limit that the tokenizer, or
            else the model's configuration, states.
        shorter_than: texts of so many whitespace words or more are left out.
    """

    source: str
    max_length: int | None = None
    shorter_than: int | None = field(default=None, metadata=LATER)

    def fit(self, examples: Sequence[Example]) -> SubwordBatcher:
        return self._batcher(answers_of(examples))

    def restore(self, saved: Mapping[str, object]) -> SubwordBatcher:
        return self._batcher(saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        spoken = without_empty(examples)
        if self.shorter_than is None:
            return spoken
        kept = tuple(e for e in spoken.examples if _most_words(e) < self.shorter_than)
        reason = {f"{self.shorter_than} words or more": len(spoken.examples) - len(kept)}
        return Selection(kept, {**spoken.left_out, **counted(reason)})

    def digest(self, data: Path) -> str:
        """A hash of the tokenizer's files in a folder; a hub name stands for itself."""
        folder = Path(self.source).expanduser()
        if not folder.is_dir():
            return self.source
        content = hashlib.sha256()
        for file in sorted(folder.glob("*token*")) + sorted(folder.glob("vocab*")):
            content.update(file.name.encode() + b"\0" + file.read_bytes())
        return content.hexdigest()

    def _batcher(self, answers: int) -> SubwordBatcher:
        tokenizer = _loaded(self.source)
        limit = self.max_length
        if limit is None and tokenizer.model_max_length > _NO_LIMIT:
            limit = _positions(self.source)
        return SubwordBatcher(tokenizer, limit, answers=answers)


class SubwordBatcher(Batcher):
    """Batches of subword ids from a tokenizer that is at hand, for instance beside its model.

    Args:
        max_length: None takes the tokenizer's own limit; where it has none either, nothing is cut.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, *, answers: int = 0) -> None:
        self._tokenizer = tokenizer
        self._answers = answers
        self._filler = _checked_filler(tokenizer)
        own = tokenizer.model_max_length if tokenizer.model_max_length <= _NO_LIMIT else None
        self.max_length = own if max_length is None else max_length
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if self.max_length is not None and self.max_length < least:
            raise UserError(f"max_length is {self.max_length}: it must be at least {least} to hold a pair of texts")

    def __call__(self, examples: Sequence[Example]) -> Batch:
        rows = [_row(*encoded) for encoded in self._encoded(examples, limit=self.max_length)]
        batch = padded(rows, examples, filler=self._filler, answers=self._answers)
        return replace(
            batch, unknown=_symbol(self._tokenizer.unk_token_id), masker=_symbol(self._tokenizer.mask_token_id)
        )

    def cut(self, examples: Sequence[Example]) -> int:
        """How many examples are longer than the model can read; `cut_note` says what happens to them."""
        if self.max_length is None:
            return 0
        return sum(
            len(encoded["input_ids"][number]) > self.max_length
            for some in _slices(examples)
            for encoded, number, _ in self._encoded(some, limit=None)
        )

    def lost(self, examples: Sequence[Example]) -> tuple[int, int]:
        """Words that people marked as evidence and that have no unit, and how many people marked in all."""
        lost = marked = 0
        for some in _slices([example for example in examples if any(example.rationale or ())]):
            for example, encoded in zip(some, self._encoded(some, limit=self.max_length), strict=True):
                evidence = {word for word, mark in enumerate(example.rationale or ()) if mark}
                marked += len(evidence)
                lost += len(evidence.difference(_row(*encoded).words))
        return lost, marked

    def remarks(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        count, (lost, marked) = self.cut(examples), self.lost(examples)
        found: dict[str, int | float | str] = {f"texts {self.cut_note}": count} if count else {}
        return found | ({"words of rationales that no unit stands for": f"{lost} of {marked}"} if lost else {})

    @property
    def cut_note(self) -> str:
        """How texts beyond the limit are cut, in plain words."""
        if self.max_length is None:
            return "nothing is cut: the tokenizer states no limit"
        end = "beginning" if self._tokenizer.truncation_side == "left" else "end"
        return f"cut at the {end} to {self.max_length} units, special symbols included; the longer part first"

    def texts(self, batch: Batch) -> list[list[str]]:
        names = {number: self._name(number) for number in set(batch.inputs.flatten().tolist())}
        rows = zip(batch.inputs.tolist(), batch.words.tolist(), batch.lengths.tolist(), strict=True)
        return [
            [names[number][0 if word >= 0 else 1] for number, word in zip(ids[:n], words[:n], strict=True)]
            for ids, words, n in rows
        ]

    def saved(self) -> dict[str, object]:
        return {"answers": self._answers}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return ()

    def _encoded(self, examples: Sequence[Example], *, limit: int | None) -> list[Encoded]:
        """The encodings in the order of the examples; a tokenizer takes single texts or pairs, no mixture."""
        texts = [texts_of(example) for example in examples]
        found: dict[int, Encoded] = {}
        for parts in (1, 2):
            places = [place for place, some in enumerate(texts) if len(some) == parts]
            if places:
                encoding = self._tokenized([texts[place] for place in places], limit=limit)
                found |= {place: (encoding, number, texts[place]) for number, place in enumerate(places)}
        return [found[place] for place in range(len(texts))]

    def _tokenized(self, texts: Sequence[tuple[str, ...]], *, limit: int | None) -> BatchEncoding:
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

    def _name(self, number: int) -> tuple[str, str]:
        """How a unit reads as text, and as a special symbol."""
        token = str(self._tokenizer.convert_ids_to_tokens(number))
        special = token if token.startswith("<") else f"<{token.strip('[]').lower()}>"
        return str(self._tokenizer.decode([number])).strip() or token, special


def _most_words(example: Example) -> int:
    return max(len(_VISIBLE.findall(text)) for text in texts_of(example))


def _slices(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    """A thousand at a time: encodings with offsets of a whole corpus would fill the memory."""
    return (examples[start : start + 1000] for start in range(0, len(examples), 1000))


def _row(encoded: BatchEncoding, number: int, texts: tuple[str, ...]) -> Row:
    """The units of one example: special symbols belong to the part that they follow, as in BERT."""
    ends = [[match.end() for match in _VISIBLE.finditer(text)] for text in texts]
    before = (0, len(ends[0]))
    segments, words, part = [], [], 0
    owners = encoded.sequence_ids(number)
    for owner, (start, _) in zip(owners, encoded["offset_mapping"][number], strict=True):
        part = part if owner is None else owner
        segments.append(part)
        words.append(-1 if owner is None else before[owner] + _word_at(start, ends[owner]))
    return Row(list(encoded["input_ids"][number]), segments, words)


def _word_at(start: int, ends: Sequence[int]) -> int:
    """The word with the first visible character at or after `start`; the last word where none follows."""
    return max(0, min(bisect_right(ends, start), len(ends) - 1))


def _loaded(source: str) -> PreTrainedTokenizerBase:
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


def _positions(source: str) -> int | None:
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


def _symbol(number: object) -> int | None:
    """The id of a symbol; None where the tokenizer has none."""
    return number if isinstance(number, int) else None


def _checked_filler(tokenizer: PreTrainedTokenizerBase) -> int:
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} cannot say which characters a unit covers: "
            "use the fast version of this tokenizer (a folder with tokenizer.json)"
        )
    filler = tokenizer.pad_token_id
    if not isinstance(filler, int):
        raise UserError("the tokenizer has no padding symbol: set tokenizer.pad_token, for example to its eos_token")
    return filler
