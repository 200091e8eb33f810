"""The subwords of a Hugging Face tokenizer.

Ids, special tokens and truncation are left to the tokenizer; the part and the whitespace word of every token are added.
Padding is on the right. A token belongs to the word of its first visible character.
"""

from __future__ import annotations

import copy
import json
import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from heedful.data.tokenization import (
    TRUNCATED,
    TokenizedExample,
    count_answers,
    drop_by_length,
    drop_empty,
    pad_batch,
    read_saved_number,
    text_parts,
)
from heedful.store.model_folder import check_model_code, hash_model_source, read_adapter_base, read_model_settings
from heedful.types import (
    Batch,
    DiskResource,
    Example,
    Selection,
    Tokenization,
    Tokenizer,
    UserError,
    first_line,
    shorten,
    user_path,
)

if TYPE_CHECKING:  # takes seconds to import, which models of words need not wait for
    from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast


_NON_SPACE = re.compile(r"\S+")
NO_LIMIT = 1_000_000
"""transformers writes a number near 1e30 where a tokenizer has no limit."""
_VOCABULARY_FILE = re.compile(r"tokenizer\.json|vocab.*|.+\.model|.+\.spm|.+\.tiktoken|bpe\.codes|tekken\.json")
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
        return drop_by_length(texts, lengths, None, self.shorter_than)

    def digest(self, data: Path) -> str:
        return hash_model_source(self.source, with_weights=False)

    def _make_tokenizer(self, num_answers: int) -> SubwordTokenizer:
        tokenizer = load_tokenizer(self.source)
        limit = self.max_length
        if limit is None and tokenizer.model_max_length > NO_LIMIT:
            limit = max_positions(self.source)
        return SubwordTokenizer(tokenizer, limit, num_answers=num_answers)


class PretrainedTokenizer(Tokenizer):
    """What batches of texts and of prompts from a tokenizer of transformers have in common."""

    max_length: int | None
    _pad_id: int

    def __init__(self, tokenizer: PreTrainedTokenizerBase, num_answers: int) -> None:
        self._tokenizer, self._num_answers = tokenizer, num_answers
        if not tokenizer.is_fast:
            raise UserError(
                f"{type(tokenizer).__name__} has no character offsets: "
                "use the fast version of this tokenizer (a folder with tokenizer.json)"
            )

    @abstractmethod
    def _tokenize_examples(self, examples: Sequence[Example], *, truncate: bool) -> list[TokenizedExample]:
        """The tokens of each example, all of them or as many as the model reads."""

    def __call__(self, examples: Sequence[Example]) -> Batch:
        rows = self._tokenize_examples(examples, truncate=True)
        batch = pad_batch(rows, examples, pad_id=self._pad_id, num_answers=self._num_answers)
        return replace(batch, unk_id=self._tokenizer.unk_token_id, mask_id=self._tokenizer.mask_token_id)

    def count_truncated(self, examples: Sequence[Example]) -> int:
        limit = self.max_length
        if limit is None:
            return 0
        return sum(len(row.ids) > limit for row in self._tokenize_examples(examples, truncate=False))

    def unit_texts(self, batch: Batch) -> list[list[str]]:
        names = {number: self._names(number) for number in set(batch.inputs.flatten().tolist())}
        rows = zip(batch.inputs.tolist(), batch.words.tolist(), batch.lengths.tolist(), strict=True)
        return [
            [names[number][0 if word >= 0 else 1] for number, word in zip(ids[:n], words[:n], strict=True)]
            for ids, words, n in rows
        ]

    def state(self) -> dict[str, object]:
        return {"answers": self._num_answers}

    def _names(self, number: int) -> tuple[str, str]:
        """The name of a token of the text, and of the same token outside the text."""
        token = str(self._tokenizer.convert_ids_to_tokens(number))
        special = token if token.startswith("<") else f"<{token.strip('[]').lower()}>"
        return str(self._tokenizer.decode([number])).strip() or token, special

    def _dump_definition(self, *settings: object) -> str:
        """The settings and the rules of the tokenizer as text."""
        rules = json.loads(cast("PreTrainedTokenizerFast", self._tokenizer).backend_tokenizer.to_str())
        # Every call sets truncation and padding anew, so that these say nothing.
        rules = {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")}
        return json.dumps([*settings, rules], sort_keys=True)


class SubwordTokenizer(PretrainedTokenizer):
    """Batches of subword ids from a Hugging Face tokenizer.

    Args:
        max_length: None takes the limit of the tokenizer; without one, nothing is truncated.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, *, num_answers: int = 0
    ) -> None:
        super().__init__(tokenizer, num_answers)
        if not isinstance(tokenizer.pad_token_id, int):
            raise UserError("the tokenizer has no padding token: set tokenizer.pad_token, for example to its eos_token")
        self._pad_id = tokenizer.pad_token_id
        self.max_length = smallest_limit(tokenizer.model_max_length) if max_length is None else max_length
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if self.max_length is not None and self.max_length < least:
            raise UserError(f"max_length is {self.max_length}: it must be at least {least} to hold a pair of texts")

    def _tokenize_examples(self, examples: Sequence[Example], *, truncate: bool) -> list[TokenizedExample]:
        limit = self.max_length if truncate else None
        return [_tokenized_example(*encoded) for encoded in self._encode(examples, limit=limit)]

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        truncated = lost = marked = 0
        # A thousand examples at a time: encodings with offsets of a whole corpus would fill the memory.
        for chunk in (examples[start : start + 1000] for start in range(0, len(examples), 1000)):
            for example, encoded in zip(chunk, self._encode(chunk, limit=None), strict=True):
                exceeds = self.max_length is not None and len(encoded[0]["input_ids"][encoded[1]]) > self.max_length
                truncated += exceeds
                evidence = {word for word, mark in enumerate(example.rationale or ()) if mark}
                if evidence:
                    limited = self._encode([example], limit=self.max_length)[0] if exceeds else encoded
                    marked += len(evidence)
                    lost += len(evidence.difference(_tokenized_example(*limited).words))
        end = "beginning" if self._tokenizer.truncation_side == "left" else "end"
        limit = f"{self.max_length} tokens with special tokens, the longer part first"
        notes: dict[str, int | float | str] = {f"{TRUNCATED} at the {end} to {limit}": truncated} if truncated else {}
        return notes | ({"rationale words without a token": f"{lost} of {marked}"} if lost else {})

    def count_unknown_words(self, examples: Sequence[Example]) -> tuple[int, int]:
        rows = self._tokenize_examples(examples, truncate=False)
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

    def definition(self) -> str:
        return self._dump_definition(self.max_length, self._tokenizer.truncation_side, self._pad_id)

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


def smallest_limit(*limits: int | None) -> int | None:
    """The number of tokens that all limits allow; None without a limit."""
    return min((limit for limit in limits if limit is not None and limit <= NO_LIMIT), default=None)


def wrap_tokenizer(tokenizer: object, max_length: int | None) -> SubwordTokenizer:
    """Batches from a tokenizer of the user, which stays unchanged; texts end at `max_length` or its own limit."""
    copied = copy_tokenizer(tokenizer)
    return SubwordTokenizer(copied, smallest_limit(copied.model_max_length, max_length))


def copy_tokenizer(tokenizer: object) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer of the user, because every call leaves its truncation in it."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(
            f"expected a tokenizer of transformers or heedful, got {type(tokenizer).__name__}; give the tokenizer that "
            "belongs to the model"
        )
    copied = copy.deepcopy(tokenizer)
    _check_tokenizer(copied, type(tokenizer).__name__)
    return copied


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
        raise UserError(
            f"the tokenizer {name} cannot read a text ({first_line(error)}): correct its tokenizer_config.json, or "
            "save it again with save_pretrained"
        ) from error
    if not all(isinstance(number, int | None) for number in special):
        raise UserError(f"the tokenizer {name} has a special token without a number: correct its tokenizer_config.json")


def _tokenized_example(encoded: BatchEncoding, number: int, texts: tuple[str, ...]) -> TokenizedExample:
    """The tokens of one example; special tokens belong to the part that they follow, as in BERT."""
    ends = word_ends(texts)
    segments, words, part = [], [], 0
    owners = encoded.sequence_ids(number)
    for owner, (start, _) in zip(owners, encoded["offset_mapping"][number], strict=True):
        part = part if owner is None else owner
        segments.append(part)
        words.append(-1 if owner is None else word_number(ends, owner, start))
    return TokenizedExample(list(encoded["input_ids"][number]), segments, words)


def word_ends(texts: Sequence[str]) -> list[list[int]]:
    """Where the whitespace words of each part end."""
    return [[match.end() for match in _NON_SPACE.finditer(text)] for text in texts]


def word_number(ends: list[list[int]], part: int, offset: int) -> int:
    """The word with the first visible character at or after an offset in a part, else its last; over all parts."""
    word_index = max(0, min(bisect_right(ends[part], offset), len(ends[part]) - 1))
    return word_index + sum(map(len, ends[:part]))


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
        remedy = "give a folder with tokenizer.json or a hub name"
        raise UserError(f"no tokenizer could be read from {source!r} ({first_line(error)}): {remedy}") from error
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
        model_config = AutoConfig.from_pretrained(str(folder) if folder.is_dir() else source, trust_remote_code=False)
        config = model_config.get_text_config()
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
