"""Prompts: which tokens belong to the user's text, what a long text loses, and the tokens of label words."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import cast

import pytest
from transformers import PreTrainedTokenizerFast

import heedful
from heedful.data.prompt import Prompt, PromptTokenizer, read_prompt, render_chat
from heedful.types import Example, UserError
from tests.language_models import CHAT_TEMPLATE, LABELS, PROMPT, bert_tokenizer, gpt2, gpt2_tokenizer
from tests.subword_tokenizers import roberta

TEXT = "the  film is très fine"


def tokens(tokenizer: PreTrainedTokenizerFast, prompt: Prompt, *texts: str, **options: int) -> list[tuple[str, int]]:
    """Each token as the tokenizer spells it, with its word."""
    batch = PromptTokenizer(tokenizer, prompt, **options)([Example("0", texts)])
    names = tokenizer.convert_ids_to_tokens(batch.inputs[0].tolist())
    return list(zip(names, batch.words[0].tolist(), strict=True))


def chat_tokenizer(template: str) -> PreTrainedTokenizerFast:
    chatty = gpt2_tokenizer()
    chatty.chat_template = template
    return chatty


def test_only_tokens_of_the_text_have_words() -> None:
    pairs = tokens(gpt2_tokenizer(), read_prompt(PROMPT), TEXT)
    assert [name for name, word in pairs if word < 0] == ["Review", ":", "Ċ", "Sentiment", ":"]
    # The space before the text is the prompt's, but its token is the first word's.
    assert [pair for pair in pairs if pair[1] >= 0][:4] == [("Ġthe", 0), ("Ġ", 1), ("Ġfilm", 1), ("Ġis", 2)]
    assert sorted({word for _, word in pairs}) == [-1, 0, 1, 2, 3, 4]
    assert pairs[-3:] == [("Ċ", -1), ("Sentiment", -1), (":", -1)]


def test_the_ids_are_those_of_the_whole_text() -> None:
    tokenizer = gpt2_tokenizer()
    batch = PromptTokenizer(tokenizer, read_prompt(PROMPT))([Example("0", (TEXT,)), Example("1", ("fine",))])
    assert batch.inputs[0].tolist() == tokenizer(PROMPT.replace("{text}", TEXT))["input_ids"]
    assert batch.mask[1].tolist() == [True] * 6 + [False] * (batch.mask.shape[1] - 6)


def test_beginnings_are_kept_and_ends_are_cut_off_where_a_word_follows() -> None:
    pairs = tokens(roberta(), read_prompt("film: {text}:"), "the film")
    assert pairs[0] == ("<s>", -1)
    assert pairs[-1] == (":", -1)
    masked = tokens(bert_tokenizer(), read_prompt("{text} . [MASK]"), "the film", masks=2)
    assert masked == [("[CLS]", -1), ("the", 0), ("film", 1), (".", -1), ("[MASK]", -1), ("[MASK]", -1), ("[SEP]", -1)]


def test_a_mask_token_in_the_text_itself_is_a_word() -> None:
    pairs = tokens(bert_tokenizer(), read_prompt("{text} . [MASK]"), "the [MASK]", masks=1)
    assert [pair for pair in pairs if pair[0] == "[MASK]"] == [("[MASK]", 1), ("[MASK]", -1)]


def test_pairs_have_two_parts() -> None:
    prompt = read_prompt("{text} is {second}:")
    batch = PromptTokenizer(gpt2_tokenizer(), prompt)([Example("0", ("the film", "very fine"))])
    assert [word for word in batch.words[0].tolist() if word >= 0][-2:] == [2, 3]
    assert batch.segments[0][batch.words[0] >= 2].tolist() == [1, 1]


def test_long_texts_lose_their_last_tokens_and_are_counted() -> None:
    tokenizer = PromptTokenizer(gpt2_tokenizer(), read_prompt(PROMPT), max_length=8)
    long, short = Example("0", ("the film is very very fine",)), Example("1", ("fine",))
    batch = tokenizer([long, short])
    assert batch.lengths.tolist() == [8, 6]
    assert batch.words[0].tolist() == [-1, -1, 0, 1, 2, -1, -1, -1]
    notes = tokenizer.preprocessing_notes([long, short])
    assert [value for name, value in notes.items() if "truncated" in name] == [1]


def test_the_token_in_place_of_a_missing_pad_token_is_named() -> None:
    tokenizer = PromptTokenizer(gpt2_tokenizer(), read_prompt(PROMPT))
    assert tokenizer([Example("0", ("fine",))]).pad_id == 0
    assert "<|endoftext|>" in tokenizer.neutral_note
    assert PromptTokenizer(bert_tokenizer(), read_prompt("{text}"), masks=0).neutral_note == ""


@pytest.mark.slow
def test_a_chat_is_the_turn_of_a_user() -> None:
    chatty, prompt = chat_tokenizer(CHAT_TEMPLATE), read_prompt("Review: {text}", chat=True)
    plain = chatty("<|user|>Review: fine\n<|assistant|>")["input_ids"]
    assert prompt == read_prompt([{"role": "user", "content": "Review: {text}"}])
    assert PromptTokenizer(chatty, prompt)([Example("0", ("fine",))]).inputs[0].tolist() == plain


def test_label_words_are_spelled_as_they_stand_behind_the_prompt() -> None:
    tokenizer = PromptTokenizer(gpt2_tokenizer(), read_prompt(PROMPT))
    plain = gpt2_tokenizer()
    assert tokenizer.label_tokens(LABELS) == tuple(
        (plain.convert_tokens_to_ids(f"Ġ{word}"),) for word in ("bad", "good")
    )
    assert [len(word) for word in tokenizer.label_tokens({"a": " very good", "b": " dull"})] == [2, 1]


def labels(prompt: str = PROMPT, **words: str) -> None:
    PromptTokenizer(gpt2_tokenizer(), read_prompt(prompt)).label_tokens(words)


@pytest.mark.parametrize(
    "make",
    [
        lambda: read_prompt("no text"),
        lambda: read_prompt("{text} and {text}"),
        lambda: read_prompt("{second} {text}"),
        lambda: read_prompt([{"role": "user"}]),
        lambda: read_prompt(cast("str", 5)),
        lambda: read_prompt(cast("str", b"Review: {text}")),
        lambda: read_prompt(cast("str", {"role": "user", "content": "{text}"})),
        lambda: read_prompt([cast("dict[str, str]", "{text}")]),
        lambda: read_prompt([]),
        lambda: heedful.load((gpt2(), gpt2_tokenizer()), prompt=cast("str", 5), labels=LABELS),
        lambda: labels(a=" good", b=" good"),
        lambda: labels(a=" good", b=" goodfilm"),
        lambda: labels(a=" good", b=""),
        lambda: labels(a=" good", b="  "),
        lambda: labels("Review: {text} ", a="good", b="bad"),
        lambda: PromptTokenizer(bert_tokenizer(), read_prompt("{text} [MASK]"), 1).label_tokens({"a": "zebra"}),
        lambda: PromptTokenizer(bert_tokenizer(), read_prompt("{text} [MASK] [MASK]"), 1),
        lambda: PromptTokenizer(gpt2_tokenizer(), read_prompt("{text} [MASK]"), 1),
        lambda: PromptTokenizer(gpt2_tokenizer(), read_prompt("{text}", chat=True)),
        lambda: PromptTokenizer(gpt2_tokenizer(), read_prompt("the " * 20 + "{text}"), max_length=10),
        lambda: PromptTokenizer(gpt2_tokenizer(), read_prompt(PROMPT))([Example("0", ("a", "b"))]),
    ],
)
def test_prompts_and_words_that_cannot_be_read_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{{ messages | length }} {{ messages[0].role | upper }}: {{ messages[0].content | trim }}\n",
        "{%- for message in messages %}\n    {{ message.role }}\n{%- endfor %}{{ messages[0] | tojson }} été",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ tools }}{{ strftime_now('%y') }}",
        "{% for message in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ message.content }}{% endfor %}",
    ],
)
def test_a_chat_is_rendered_as_the_library_does(template: str) -> None:
    chatty, message = chat_tokenizer(template), {"role": "user", "content": " Review: {text} "}
    expected = chatty.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert render_chat(chatty, read_prompt([message])).rendered == expected


@pytest.mark.slow
def test_a_chat_is_rendered_once() -> None:
    dated = chat_tokenizer("{{ strftime_now('%f') }} {{ messages[0].content }}")
    prompt = render_chat(dated, read_prompt("{text}", chat=True))
    again = PromptTokenizer(chat_tokenizer("another {{ messages[0].content }}"), prompt)
    assert again.prompt == prompt
    assert (
        again([Example("0", ("fine",))]).inputs[0].tolist()
        == gpt2_tokenizer()(prompt.rendered.replace("{text}", "fine"))["input_ids"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**10 }}{{ messages[0].content }}",
        "{{ 'x' * 10**7 }}{{ messages[0].content }}",
        "{{ 10 ** (10 ** 10) }}{{ messages[0].content }}",
        "{{ '%10000000000d' % 5 }}{{ messages[0].content }}",
        "{{ 'x' | center(10**11) }}{{ messages[0].content }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}",
        "{% set n = namespace(s='ab') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}{{ messages[0].content }}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ raise_exception('no') }}",
        "nothing",
        "{{ messages[0]['content'] }}{{ messages[0]['content'] }}",
    ],
)
def test_a_chat_template_without_end_that_fails_or_that_loses_the_text_is_refused(template: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as refused:
        PromptTokenizer(chat_tokenizer(template), read_prompt("{text}", chat=True))
    assert "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
