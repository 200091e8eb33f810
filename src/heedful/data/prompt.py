"""Prompts: the words around a user's text in which a language model reads it.

A prompt is tokenized together with the text, as the model would read it. Tokens of the text have words and can be
scored, deleted and replaced; tokens of the prompt are special, as a class token is. A text that is too long loses its
last tokens, the prompt none. A chat template of the tokenizer wraps the prompt as the turn of the user.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, cast

from heedful.data.subwords import (
    PretrainedTokenizer,
    load_tokenizer,
    max_positions,
    smallest_limit,
    word_ends,
    word_number,
)
from heedful.data.tokenization import (
    TRUNCATED,
    TokenizedExample,
    count_answers,
    drop_empty,
    read_saved_number,
    text_parts,
)
from heedful.data.words import UNKNOWN_SHARE
from heedful.store.model_folder import hash_model_source
from heedful.store.recipe import added_field
from heedful.types import (
    DiskResource,
    Example,
    Selection,
    Tokenization,
    UserError,
    first_line,
    shorten,
)

if TYPE_CHECKING:  # takes seconds to import
    from transformers import PreTrainedTokenizerBase

FIELDS = ("{text}", "{second}")
"""Where the texts of an example stand in a prompt."""
MASK_FIELD = "[MASK]"
"""Stands for the mask token of any tokenizer."""
NEUTRAL_TOKENS = ("pad_token", "eos_token", "bos_token", "unk_token")
"""Tokens that stand for a removed one, the first that a tokenizer has."""
_VISIBLE = re.compile(r"\S")


@dataclass(frozen=True)
class Prompt:
    """The words around a text, with `{text}` where it stands, and `{second}` for the second text of a pair.

    Args:
        turns: role and content of each turn of a chat; a plain prompt is one turn without a role.
        rendered: a chat in the template of its tokenizer, as `render_chat` makes it. A template may contain the date,
            so that rendering it again would be another prompt.
    """

    turns: tuple[tuple[str, str], ...]
    rendered: str = added_field("")

    def __post_init__(self) -> None:
        content = "".join(content for _, content in self.turns)
        if content.count(FIELDS[0]) != 1 or content.count(FIELDS[1]) > 1:
            raise UserError(
                f"the prompt has {content.count(FIELDS[0])} times {FIELDS[0]} and {content.count(FIELDS[1])} times "
                f"{FIELDS[1]}: write {FIELDS[0]} once where the text stands, {FIELDS[1]} only for pairs"
            )
        if len(self.fields) > 1 and content.index(FIELDS[1]) < content.index(FIELDS[0]):
            raise UserError(f"{FIELDS[1]} stands before {FIELDS[0]} in the prompt: write the first text first")

    @property
    def fields(self) -> tuple[str, ...]:
        """The texts that an example must have."""
        content = "".join(content for _, content in self.turns)
        return tuple(field for field in FIELDS if field in content)

    @property
    def is_chat(self) -> bool:
        """Whether a chat template wraps it."""
        return any(role for role, _ in self.turns)

    @property
    def summary(self) -> str:
        """The prompt in one line."""
        if self.rendered:
            return " ".join(self.rendered.split())
        return " / ".join(f"{role}: {content}" if role else content for role, content in self.turns)


_PROMPT_FORM = "give a text, or a list of messages, each with 'role' and 'content'"


def read_prompt(prompt: str | Sequence[Mapping[str, str]] | None, *, chat: bool = False) -> Prompt:
    """The prompt of a text, or of the messages of a chat with `role` and `content`; by default the text alone.

    >>> read_prompt("Review: {text}\\nSentiment:").fields
    ('{text}',)
    """
    if prompt is None or isinstance(prompt, str):
        return Prompt((("user" if chat else "", FIELDS[0] if prompt is None else prompt),))
    if not isinstance(prompt, Sequence):
        raise UserError(f"{shorten(prompt)} is not a prompt: {_PROMPT_FORM}")
    turns = []
    for message in prompt:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise UserError(f"{shorten(message)} is not a message of a prompt: {_PROMPT_FORM}")
        turns.append((message["role"], message["content"]))
    return Prompt(tuple(turns))


@dataclass(frozen=True)
class Prompted(Tokenization, DiskResource):
    """The tokens of a prompt with a text in it, by the tokenizer of a language model.

    Args:
        source: a folder with `tokenizer.json`, or the name of a model on the hub.
        masks: mask tokens in place of each `[MASK]`; 0 for a causal model.
        reserved: positions that label words of several tokens need behind the text.
    """

    source: str
    prompt: Prompt
    masks: int = 0
    reserved: int = 0

    def fit(self, examples: Sequence[Example]) -> PromptTokenizer:
        return self._make_tokenizer(count_answers(examples))

    def restore(self, saved: Mapping[str, object]) -> PromptTokenizer:
        return self._make_tokenizer(read_saved_number(saved, "answers"))

    def select(self, examples: Sequence[Example]) -> Selection:
        return drop_empty(examples)

    def digest(self, data: Path) -> str:
        return hash_model_source(self.source, with_weights=False)

    def _make_tokenizer(self, num_answers: int) -> PromptTokenizer:
        limit = max_positions(self.source)
        return PromptTokenizer(
            load_tokenizer(self.source),
            self.prompt,
            self.masks,
            None if limit is None else limit - self.reserved,
            num_answers=num_answers,
        )


class PromptTokenizer(PretrainedTokenizer):
    """Batches of prompts with texts in them.

    Args:
        masks: mask tokens in place of each `[MASK]`; 0 for a causal model.
        max_length: longest text with its prompt, in tokens; the limit of the tokenizer counts too.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Prompt,
        masks: int = 0,
        max_length: int | None = None,
        *,
        num_answers: int = 0,
    ) -> None:
        super().__init__(tokenizer, num_answers)
        prompt = render_chat(tokenizer, prompt)
        self.prompt, self.masks = prompt, masks
        self.max_length = smallest_limit(tokenizer.model_max_length, max_length)
        self._pad_id, self.neutral_token = _neutral_token(tokenizer)
        self._template = _insert_masks(tokenizer, prompt, masks)
        fixed = len(self._tokenize(tuple("x" for _ in prompt.fields)).ids) - len(prompt.fields)
        if self.max_length is not None and fixed + len(prompt.fields) > self.max_length:
            raise UserError(
                f"the prompt has {fixed} tokens, but the model reads at most {self.max_length} with the text: shorten "
                "the prompt"
            )

    def _tokenize_examples(self, examples: Sequence[Example], *, truncate: bool) -> list[TokenizedExample]:
        rows = [self._tokenize(self._parts(example)) for example in examples]
        return [self._truncate(row) for row in rows] if truncate else rows

    def count_unknown_words(self, examples: Sequence[Example]) -> tuple[int, int]:
        unknown = words = 0
        for row in self._tokenize_examples(examples, truncate=False):
            tokens = [(token, word) for token, word in zip(row.ids, row.words, strict=True) if word >= 0]
            numbers = {word for _, word in tokens}
            words += len(numbers)
            unknown += len(numbers - {word for token, word in tokens if token != self._tokenizer.unk_token_id})
        return unknown, words

    def preprocessing_notes(self, examples: Sequence[Example]) -> dict[str, int | float | str]:
        truncated, (unknown, words) = self.count_truncated(examples), self.count_unknown_words(examples)
        notes: dict[str, int | float | str] = {"prompt": self.prompt.summary}
        if truncated:
            notes[f"{TRUNCATED} at the end to {self.max_length} tokens with the prompt"] = truncated
        if unknown:
            notes[UNKNOWN_SHARE] = unknown / words
        if note := self.neutral_note:
            notes["no pad token"] = note
        return notes

    @property
    def neutral_note(self) -> str:
        """What stands for a removed token where the tokenizer has no pad token; empty where it has one."""
        if self._tokenizer.pad_token is not None:
            return ""
        return f"{self.neutral_token} stands for a removed token; set pad_token in tokenizer_config.json for another"

    def _names(self, number: int) -> tuple[str, str]:
        text, special = super()._names(number)
        return text, special if number in self._tokenizer.all_special_ids else f"<{text}>"

    def definition(self) -> str:
        return self._dump_definition(self.max_length, self._pad_id, self._template)

    def label_tokens(self, labels: Mapping[str, str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each label word behind the prompt, or in place of its mask tokens."""
        ids_by_label = []
        for name, word in labels.items():
            if not isinstance(word, str) or not word.strip():
                raise UserError(f"the label word of {name} is empty: give a word such as ' good'")
            spelled = self._tokenizer.encode(word, add_special_tokens=False) if self.masks else None
            ids = self._next_word(name, word) if spelled is None else tuple(spelled)
            unknown = self._tokenizer.unk_token_id
            if not ids or (unknown is not None and unknown in ids):
                raise UserError(f"the tokenizer does not know the label word {word!r} of {name}: choose another")
            ids_by_label.append(ids)
        for (first, first_ids), (second, second_ids) in combinations(zip(labels, ids_by_label, strict=True), 2):
            if first_ids[: len(second_ids)] == second_ids[: len(first_ids)]:
                raise UserError(
                    f"the label words {labels[first]!r} of {first} and {labels[second]!r} of {second} are the same "
                    "tokens, or one begins the other: choose words that differ"
                )
        return tuple(ids_by_label)

    def spell(self, tokens: tuple[int, ...]) -> str:
        """A label word as text."""
        return str(self._tokenizer.decode(list(tokens)))

    @property
    def mask_id(self) -> int | None:
        """The mask token that is read; None for a causal model."""
        number = self._tokenizer.mask_token_id
        return number if self.masks and isinstance(number, int) else None

    def _next_word(self, name: str, word: str) -> tuple[int, ...]:
        """The tokens that a word adds behind the prompt; spelled with the prompt, since spaces belong to words."""
        texts = tuple("x" for _ in self.prompt.fields)
        before, after = self._tokenize(texts).ids, self._tokenize(texts, word).ids
        if after[: len(before)] != before:
            raise UserError(
                f"the label word {word!r} of {name} merges with the end of the prompt: end the prompt without a space "
                f"and begin the word with one, {' ' + word.strip()!r}"
            )
        return tuple(after[len(before) :])

    def _parts(self, example: Example) -> tuple[str, ...]:
        texts = text_parts(example)
        if len(texts) != len(self.prompt.fields):
            raise UserError(
                f"example {example.uid} has {len(texts)} texts, but the prompt has "
                f"{' and '.join(self.prompt.fields)}: {FIELDS[1]} stands for the second text of a pair"
            )
        return texts

    def _tokenize(self, texts: tuple[str, ...], continuation: str = "") -> TokenizedExample:
        """All tokens of a prompt with these texts in it, nothing truncated."""
        whole, spans = _fill(self._template, texts)
        encoded = self._tokenizer(
            whole + continuation,
            add_special_tokens=not self.prompt.is_chat,
            truncation=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        ids, owners, offsets = encoded["input_ids"], encoded.sequence_ids(0), encoded["offset_mapping"]
        last = len(ids)
        while not self.masks and last and owners[last - 1] is None:
            last -= 1  # nothing may stand between the prompt and the word that follows it
        ends = word_ends(texts)
        row, part = TokenizedExample([], [], []), 0
        for number, owner, (start, end) in zip(ids[:last], owners, offsets, strict=False):
            visible = _VISIBLE.search(whole, start, end)
            offset = start if visible is None else visible.start()
            inside = [
                index for index, (first, stop) in enumerate(spans) if owner is not None and first <= offset < stop
            ]
            part = inside[0] if inside else part
            row.ids.append(number)
            row.segments.append(part)
            row.words.append(-1 if not inside else word_number(ends, part, offset - spans[part][0]))
        return row

    def _truncate(self, row: TokenizedExample) -> TokenizedExample:
        """The row without the last tokens of its texts, the longer text first, as far as the model reads no more."""
        kept_tokens = list(range(len(row.ids)))
        while self.max_length is not None and len(kept_tokens) > self.max_length:
            parts = [
                [index for index in kept_tokens if row.words[index] >= 0 and row.segments[index] == part]
                for part in (0, 1)
            ]
            longest = max(parts, key=len)
            if len(longest) <= 1:
                raise UserError(f"the prompt leaves no token of {self.max_length} for the text: shorten the prompt")
            others = min(map(len, parts))
            excess = max(1, min(len(kept_tokens) - self.max_length, len(longest) - max(1, others)))
            dropped = set(longest[-excess:])
            kept_tokens = [token_index for token_index in kept_tokens if token_index not in dropped]
        columns = (row.ids, row.segments, row.words)
        return TokenizedExample(*([values[index] for index in kept_tokens] for values in columns))


def _fill(template: str, texts: tuple[str, ...]) -> tuple[str, list[tuple[int, int]]]:
    """The template with the texts in it, and where they stand."""
    whole, spans, rest = "", [], template
    for field, text in zip(FIELDS, texts, strict=False):
        before, _, rest = rest.partition(field)
        whole += before
        spans.append((len(whole), len(whole) + len(text)))
        whole += text
    return whole + rest, spans


def _insert_masks(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, masks: int) -> str:
    """The prompt as text with its mask tokens."""
    template = prompt.rendered or prompt.turns[0][1]
    if not masks:
        return template
    mask = tokenizer.mask_token
    if not isinstance(mask, str):
        raise UserError("the tokenizer has no mask token: leave it out of the prompt of a causal model")
    template = template.replace(MASK_FIELD, mask)
    if template.count(mask) != 1:
        raise UserError(
            f"the prompt has {template.count(mask)} mask tokens: write {mask} once where the label word stands"
        )
    return template.replace(mask, mask * masks)


def render_chat(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> Prompt:
    """The prompt of a chat as text in the chat template of the tokenizer, rendered once; other prompts as they are."""
    if not prompt.is_chat or prompt.rendered:
        return prompt
    if not tokenizer.chat_template:
        raise UserError("the tokenizer has no chat template: leave chat out and write the prompt as a text")
    messages = [{"role": role or "user", "content": content} for role, content in prompt.turns]
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, and none by default
        raise _chat_template_error(first_line(error)) from error
    rendered = _run_chat_template({"messages": messages, "template": template, "tokens": tokenizer.special_tokens_map})
    if any(rendered.count(field) != 1 for field in prompt.fields):
        raise UserError("the chat template of the tokenizer leaves the text out: write the prompt as a text")
    return replace(prompt, rendered=rendered)


def _chat_template_error(reason: str) -> UserError:
    return UserError(
        f"the chat template of the tokenizer refuses the prompt ({reason}): change its turns, or write the prompt as a "
        "text without chat"
    )


MAX_CHAT_SECONDS = 60
"""Until a process that renders a chat template is ended; it limits itself to less where the system can do that."""


def _run_chat_template(request: Mapping[str, object]) -> str:
    """What a chat template makes of a request, in a process of its own: a template may take any time and memory."""
    program = Path(__file__).with_name("_chat_template.py")
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        completed = subprocess.run(
            [sys.executable, "-P", str(program)],
            input=json.dumps(request, default=str).encode(),
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            check=True,
            timeout=MAX_CHAT_SECONDS,
        )
        answer: dict[str, str] = json.loads(completed.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise _chat_template_error("it takes too much time or memory") from error
    if "text" not in answer:
        raise _chat_template_error(answer["error"])
    return answer["text"]


def has_mask_token(source: str | PreTrainedTokenizerBase, prompt: Prompt) -> bool:
    """Whether a prompt asks a masked model: it has `[MASK]` or the mask token of the tokenizer itself."""
    tokenizer = load_tokenizer(source) if isinstance(source, str) else source
    marks = {MASK_FIELD, *([tokenizer.mask_token] if isinstance(tokenizer.mask_token, str) else [])}
    return any(mark in content for _, content in prompt.turns for mark in marks)


def _neutral_token(tokenizer: PreTrainedTokenizerBase) -> tuple[int, str]:
    """The token that stands for a removed one."""
    for name in NEUTRAL_TOKENS:
        token: object = getattr(tokenizer, name, None)
        if isinstance(token, str):
            return int(cast("int", tokenizer.convert_tokens_to_ids(token))), token
    raise UserError("the tokenizer has no pad, eos, bos or unk token for a removed token: set tokenizer.pad_token")
