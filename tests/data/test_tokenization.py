"""Words, subwords and patches: ids, word numbers, filters, truncation, and the vocabularies of the papers."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from torch.nn import functional
from transformers import BertConfig, ByT5Tokenizer, LlamaConfig, PreTrainedTokenizerFast, RobertaConfig

from heedful.data.patches import Patches, unfold
from heedful.data.subwords import Subwords, SubwordTokenizer
from heedful.data.tokenization import check_labels, count_answers, with_breaks
from heedful.data.words import EOS, PAD, SOS, UNK, Words, WordTokenizer, split_english, word_splitter
from heedful.types import Batch, Example, UserError
from tests.subword_tokenizers import bert, roberta, xlmr

DATA = Path(os.environ.get("HEEDFUL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def text(uid: str, *parts: str, label: int | float | None = None) -> Example:
    return Example(uid, parts, label)


def lengths_kept(words: Words, lengths: Sequence[int]) -> list[int]:
    kept = words.select([text(str(n), " ".join(["x"] * n)) for n in lengths]).examples
    return [len(str(example.parts[0]).split()) for example in kept]


def corpus(name: str, split: str, *fields: str) -> list[Example]:
    file = DATA / name / f"{split}.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"real data: {name}/{split}.jsonl.gz is not under HEEDFUL_DATA")
    with gzip.open(file, "rt", encoding="utf8") as stream:
        rows = [json.loads(line) for line in stream]
    return [Example(row["id"], tuple(row[f] for f in fields), row.get("label")) for row in rows]


def test_ids_are_alphabetical_from_four_and_frames_and_padding_are_as_in_the_paper() -> None:
    batcher = Words().fit([text("1", "the cat sat"), text("2", "a cat")])
    assert batcher.vocabulary == ("<pad>", "<unk>", "<sos>", "<eos>", "a", "cat", "sat", "the")
    batch = batcher([text("1", "the cat sat", label=1), text("2", "a dog", label=0)])
    assert batch.inputs.tolist() == [[SOS, 7, 5, 6, EOS], [SOS, 4, UNK, EOS, PAD]]
    assert batch.mask.tolist() == [[True] * 5, [True] * 4 + [False]]
    assert batch.words.tolist() == [[-1, 0, 1, 2, -1], [-1, 0, 1, -1, -1]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0]
    assert batch.labels.dtype == torch.int64
    assert batch.uids == ("1", "2")
    assert batcher.unit_texts(batch) == [["<sos>", "the", "cat", "sat", "<eos>"], ["<sos>", "a", "<unk>", "<eos>"]]


def test_two_parts_stand_on_one_axis_and_words_are_numbered_over_both() -> None:
    batcher = Words().fit([text("1", "b a", "c")])
    batch = batcher([text("1", "b a", "c")])
    assert batch.inputs.tolist() == [[SOS, 5, 4, EOS, SOS, 6, EOS]]
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert batch.words.tolist() == [[-1, 0, 1, -1, -1, 2, -1]]


def test_tokens_of_one_whitespace_word_share_its_number_also_in_the_second_part() -> None:
    batcher = Words(tokenizer="english", lowercase=True).fit([text("1", "Don't stop!", "Why not?")])
    batch = batcher([text("1", "Don't stop!", "Why not?")])
    assert batcher.unit_texts(batch)[0] == (
        ["<sos>", "do", "n't", "stop", "!", "<eos>", "<sos>", "why", "not", "?", "<eos>"]
    )
    assert batch.words.tolist() == [[-1, 0, 0, 1, 1, -1, -1, 2, 3, 3, -1]]


def test_a_token_with_any_digit_becomes_qqq() -> None:
    batcher = Words(digits="qqq", lowercase=True).fit([text("1", "In 1984 the B52 flew 3rd")])
    assert batcher.vocabulary[4:] == ("flew", "in", "qqq", "the")


def test_the_document_frequency_counts_texts_and_not_occurrences() -> None:
    examples = [text("1", "rare rare rare b", "b"), text("2", "b c", "c")]
    assert Words(min_documents=2).fit(examples).vocabulary[4:] == ("b", "c")
    assert Words(min_documents=3).fit(examples).vocabulary[4:] == ("b",)


@given(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1), min_size=1), st.integers(1, 3))
def test_the_vocabulary_is_that_of_a_count_vectorizer(documents: list[list[str]], least: int) -> None:
    joined = [" ".join(document) for document in documents]
    ours = Words(min_documents=least).fit([text(str(i), d) for i, d in enumerate(joined)]).vocabulary[4:]
    oracle = CountVectorizer(tokenizer=str.split, token_pattern=None, lowercase=False).fit(joined)
    counts = (oracle.transform(joined) > 0).sum(0).A1
    names = oracle.get_feature_names_out()
    assert list(ours) == [name for name, count in zip(names, counts, strict=True) if count >= least]


def test_the_length_filter_is_strict_on_both_sides() -> None:
    assert lengths_kept(Words(longer_than=2, shorter_than=5), [1, 2, 3, 4, 5, 6]) == [3, 4]
    assert lengths_kept(Words(longer_than=2), [2, 3, 99]) == [3, 99]
    assert lengths_kept(Words(shorter_than=3), [1, 2, 3]) == [1, 2]
    assert lengths_kept(Words(), [1, 2, 3]) == [1, 2, 3]


def test_a_bound_that_is_observed_drops_all_the_shortest_and_all_the_longest_texts() -> None:
    assert lengths_kept(Words(longer_than="shortest", shorter_than="longest"), [2, 2, 3, 4, 7, 7]) == [3, 4]
    assert lengths_kept(Words(longer_than=3, shorter_than="longest"), [2, 4, 5, 9]) == [4, 5]
    assert lengths_kept(Words(longer_than="shortest", shorter_than="longest"), []) == []


def test_the_length_filter_looks_at_the_tokens_of_the_first_part_only() -> None:
    examples = [text("1", "a b c", "q"), text("2", "a", "q r s t u")]
    assert [e.uid for e in Words(longer_than=1).select(examples).examples] == ["1"]
    contracted = [text("3", "don't"), text("4", "do")]
    assert [e.uid for e in Words(tokenizer="english", longer_than=1).select(contracted).examples] == ["3"]


def test_what_is_left_out_is_counted_by_reason_and_empty_texts_do_not_set_the_bound() -> None:
    examples = [text("1", " "), text("2", "a"), text("3", "a b"), text("4", "a b c"), text("5", "a", "")]
    selection = Words(longer_than="shortest", shorter_than="longest").select(examples)
    assert [e.uid for e in selection.examples] == ["3"]
    assert selection.num_dropped == {
        "no words in the text": 2,
        "1 words or fewer": 1,
        "3 words or more": 1,
    }
    assert Words().select(examples[1:4]).num_dropped == {}


def test_an_empty_text_that_reaches_the_batcher_is_two_frames() -> None:
    batch = Words().fit([text("1", "a")])([text("2", ""), text("1", "a")])
    assert batch.inputs.tolist() == [[SOS, EOS, PAD], [SOS, 4, EOS]]


def test_a_batcher_comes_back_from_json_and_batches_alike() -> None:
    recipe = Words(tokenizer="english", lowercase=True, digits="qqq")
    examples = [text("1", "It's 5 o'clock.", label=0), text("2", "The end", label=1)]
    batcher = recipe.fit(examples)
    again = recipe.restore(json.loads(json.dumps(batcher.state())))
    assert again.vocabulary == batcher.vocabulary
    assert torch.equal(again(examples).inputs, batcher(examples).inputs)
    with pytest.raises(UserError, match="words"):
        recipe.restore({"answers": 0})
    with pytest.raises(UserError, match="answers"):
        recipe.restore({"words": []})


def test_a_word_that_looks_like_a_special_symbol_is_an_ordinary_word() -> None:
    batcher = Words().fit([text("1", "<pad> <eos>")])
    batch = batcher([text("1", "<pad> <eos>")])
    assert batch.inputs.tolist() == [[SOS, 5, 4, EOS]]
    assert batch.content_mask.tolist() == [[False, True, True, False]]


def test_real_labels_are_floats_and_a_batch_with_an_unknown_one_has_none() -> None:
    batcher = Words().fit([text("1", "a")])
    labels = batcher([text("1", "a", label=0.5), text("2", "a", label=1)]).labels
    assert labels is not None
    assert labels.dtype == torch.float32
    assert labels.tolist() == [0.5, 1.0]
    assert batcher([text("1", "a")]).labels is None
    partly_labelled = [text("1", "a", label=1), text("2", "a")]
    assert batcher(partly_labelled).labels is None
    with pytest.raises(UserError, match="example 2 has no label"):
        check_labels(partly_labelled)
    check_labels([text("1", "a"), text("2", "a")])
    check_labels([text("1", "a", label=1)])


def test_candidates_become_a_mask_as_wide_as_the_answers_of_the_training_split() -> None:
    train = [Example("1", ("a", "b"), 4, candidates=(0, 2)), Example("2", ("a", "b"), 1)]
    assert count_answers(train) == 5
    batch = Words().fit(train)(train)
    assert batch.candidates is not None
    assert batch.candidates.tolist() == [[True, False, True, False, False], [True] * 5]
    assert Words().fit(train)([train[1]]).candidates is None


def test_the_share_of_unknown_tokens_is_reported() -> None:
    batcher = Words().fit([text("1", "a b")])
    assert list(batcher.preprocessing_notes([text("2", "a z", "b y")]).values()) == [0.5]
    assert batcher.preprocessing_notes([]) == {}


def test_bad_recipes_and_bad_parts_get_one_plain_line() -> None:
    with pytest.raises(UserError, match="french"):
        Words(tokenizer="french")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown digit rule"):
        Words(digits="drop")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="min_documents is 0"):
        Words(min_documents=0)
    with pytest.raises(UserError, match="example 7 has a part that is not text"):
        Words().fit([Example("7", (torch.zeros(1, 2, 2),))])
    with pytest.raises(UserError, match="3 parts"):
        Words().fit([text("8", "a", "b", "c")])


@pytest.mark.parametrize(
    ("word", "tokens"),
    [
        ("isn't", ["is", "n't"]),
        ("CAN'T", ["CA", "N'T"]),
        ("they’ve", ["they", "’ve"]),
        ("cannot", ["can", "not"]),
        ("Mary's", ["Mary", "'s"]),
        ("'s", ["'s"]),
        ("dogs'", ["dogs", "'"]),
        ('("Stop!")', ["(", '"', "Stop", "!", '"', ")"]),
        ("wait...", ["wait", "..."]),
        ("end.", ["end", "."]),
        ("NATO.", ["NATO", "."]),
        ("U.S.", ["U.S."]),
        ("Dr.", ["Dr."]),
        ("R-Fla.,", ["R", "-", "Fla.", ","]),
        ("$3.50", ["$", "3.50"]),
        ("1,000,000", ["1,000,000"]),
        ("45%", ["45", "%"]),
        ("10km", ["10", "km"]),
        ("6-4", ["6", "-", "4"]),
        ("well-known", ["well", "-", "known"]),
        ("either/or", ["either", "/", "or"]),
        ("www.example.org/a-b", ["www.example.org/a-b"]),
        ("someone@example.com,", ["someone@example.com", ","]),
        (":-)", [":-)"]),
        ("-", ["-"]),
    ],
)
def test_english_words_part_as_in_the_penn_tradition(word: str, tokens: list[str]) -> None:
    assert list(split_english(word)) == tokens


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=30))
def test_english_tokens_are_never_empty_and_join_to_the_word(word: str) -> None:
    assert "".join(split_english(word)) == word
    assert all(split_english(word))


def test_a_wall_of_symbols_is_one_token() -> None:
    assert split_english("(" * 100_000) == ("(" * 100_000,)


def test_english_agrees_with_spacy_on_invented_news() -> None:
    pytest.importorskip("spacy", reason="spaCy is an extra: pip install 'heedful[spacy]'")
    invented = (
        "TOKYO (Wire) - The yen's 3.5% slide didn't worry Mr. Tanaka, who'd said: "
        '"It\'s a long-awaited move." Shares in Acme Corp. rose $2.10 to $45.75 on Wednesday; '
        "analysts weren't surprised... The U.S. team won 6-4, 7-5 before 12,000 fans, "
        "and the coach couldn't hide her joy!"
    )
    spacy, ours = word_splitter("spacy"), word_splitter("english")
    assert [ours(word) for word in invented.split()] == [spacy(word) for word in invented.split()]


def test_without_spacy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.data.words.find_spec", lambda name: None)
    word_splitter.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'heedful\[spacy\]'"):
        Words(tokenizer="spacy").fit([text("1", "a")])


def test_sst_has_the_sizes_the_length_and_the_vocabulary_of_the_paper() -> None:
    recipe = Words(longer_than=5, shorter_than="longest")
    train = corpus("sst", "train", "text")
    assert len(recipe.fit(train).vocabulary) == 13826
    expected = {"train": (3034, 3321), "dev": (397, 424), "test": (863, 862)}
    for split, sizes in expected.items():
        kept = recipe.select(corpus("sst", split, "text")).examples
        assert (sum(e.label == 0 for e in kept), sum(e.label == 1 for e in kept)) == sizes
    kept = recipe.select(train).examples
    assert round(sum(len(str(e.parts[0]).split()) for e in kept) / len(kept), 2) == 18.70


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields", "least", "size"),
    [
        ("imdb_jw", ("text",), 10, 12487),
        ("babi_qa1", ("document", "question"), 1, 24),
        ("babi_qa2", ("document", "question"), 1, 38),
        ("babi_qa3", ("document", "question"), 1, 39),
        ("20news_sports", ("text",), 2, 7066),
    ],
)
def test_vocabularies_have_the_known_sizes_special_symbols_included(
    name: str, fields: tuple[str, ...], least: int, size: int
) -> None:
    batcher = Words(min_documents=least).fit(corpus(name, "train", *fields))
    assert isinstance(batcher, WordTokenizer)
    assert len(batcher.vocabulary) == size


def test_english_agrees_with_spacy_on_more_than_99_of_100_agnews_tokens() -> None:
    pytest.importorskip("spacy", reason="spaCy is an extra: pip install 'heedful[spacy]'")
    examples = corpus("agnews_wb", "test", "text")[:1500]
    words = [word for example in examples for word in str(example.parts[0]).split()]
    spacy, ours = word_splitter("spacy"), word_splitter("english")
    agreeing = sum(len(ours(word)) for word in words if ours(word) == spacy(word))
    assert agreeing / sum(len(ours(word)) for word in words) > 0.99


def row(batch: Batch, number: int = 0) -> tuple[list[int], list[int]]:
    n = int(batch.lengths[number])
    return batch.words[number, :n].tolist(), batch.segments[number, :n].tolist()


def test_word_pieces_carry_their_whitespace_word_and_punctuation_that_of_its_neighbour() -> None:
    batcher = SubwordTokenizer(bert())
    batch = batcher([Example("1", ("the  unforget, film",), 1)])
    assert batcher.unit_texts(batch) == [["<cls>", "the", "un", "##for", "##get", ",", "film", "<sep>"]]
    assert row(batch) == ([-1, 0, 1, 1, 1, 1, 2, -1], [0] * 8)


def test_bert_pairs_have_the_segments_that_bert_was_trained_with() -> None:
    tokenizer = bert()
    batch = SubwordTokenizer(tokenizer)([Example("1", ("the film", "is dull ?"))])
    encoded = tokenizer("the film", "is dull ?", return_token_type_ids=True)
    assert batch.inputs.tolist() == [encoded["input_ids"]]
    assert row(batch) == ([-1, 0, 1, -1, 2, 3, 4, -1], encoded["token_type_ids"])


@pytest.mark.parametrize("trim", [True, False])
def test_byte_pairs_with_and_without_trimmed_offsets_belong_to_the_word_after_the_blank(trim: bool) -> None:  # noqa: FBT001
    batcher = SubwordTokenizer(roberta(trim=trim))
    batch = batcher([Example("1", ("the film né", "film"))])
    # <s> the Ġfilm Ġ n Ã © </s> </s> film </s>
    assert row(batch) == ([-1, 0, 1, 2, 2, 2, 2, -1, -1, 3, -1], [0] * 9 + [1] * 2)
    assert batcher.unit_texts(batch)[0][:5] == ["<s>", "the", "film", "Ġ", "n"]


def test_sentence_pieces_begin_on_the_blank_and_yet_belong_to_the_word_behind_it() -> None:
    batcher = SubwordTokenizer(xlmr())
    batch = batcher([Example("1", (" the  unforget, ", "is it ? "))])
    tokens = batcher.unit_texts(batch)[0]
    # Lone blanks go to the word that follows, at the end of a text to the last one.
    assert tokens[:8] == ["<s>", "the", "▁", "un", "for", "get", ",", "▁"]
    words, segments = row(batch)
    assert words[:8] == [-1, 0, 1, 1, 1, 1, 1, 1]
    second = [word for word, segment in zip(words, segments, strict=True) if segment == 1 and word >= 0]
    assert sorted(set(second)) == [2, 3, 4]
    assert second == sorted(second)


@pytest.mark.parametrize("tokenizer", [bert(), roberta(), xlmr()], ids=["bert", "roberta", "xlmr"])
def test_every_word_has_a_unit_and_other_rows_change_only_padding(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    batcher = SubwordTokenizer(tokenizer)
    examples = [
        Example("1", ("the film , is dull",), 0),
        Example("2", ("unforget film", "is the film dull ? the"), 1),
        Example("3", ("dull",), 1),
    ]
    together = batcher(examples)
    assert together.pad_id == tokenizer.pad_token_id
    assert bool((together.inputs[~together.mask] == together.pad_id).all())
    for number, example in enumerate(examples):
        alone, n = batcher([example]), int(together.lengths[number])
        assert bool(alone.mask.all())
        assert alone.inputs[0].tolist() == together.inputs[number, :n].tolist()
        assert row(alone) == row(together, number)
        count = sum(len(str(part).split()) for part in example.parts)
        assert set(row(alone)[0]) == set(range(-1, count))
        # The right end is padding although BERT's tokenizer here asks for padding on the left.
        assert together.mask[number].tolist() == [True] * n + [False] * (together.mask.shape[1] - n)


def test_long_texts_are_cut_longest_part_first_and_counted() -> None:
    batcher = SubwordTokenizer(bert(), 8)
    pair = Example("1", ("the film the film the film", "is dull"))
    assert row(batcher([pair])) == ([-1, 0, 1, 2, -1, 6, 7, -1], [0] * 5 + [1] * 3)
    exact = Example("2", ("the film the film the film",))
    longer = Example("3", ("the film the film the film dull",))
    ((note, count),) = batcher.preprocessing_notes([pair, exact, longer]).items()
    assert (note[:39], count) == ("texts truncated at the end to 8 tokens ", 2)


def test_the_limit_comes_from_the_recipe_the_tokenizer_or_the_configuration(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "bare")
    assert Subwords(str(tmp_path / "bare")).fit([]).max_length is None
    assert Subwords(str(tmp_path / "bare")).fit([]).preprocessing_notes([Example("1", ("the " * 5000,))]) == {}
    BertConfig(max_position_embeddings=40).save_pretrained(tmp_path / "bare")
    assert Subwords(str(tmp_path / "bare")).fit([]).max_length == 40
    assert Subwords(str(tmp_path / "bare"), 12).fit([]).max_length == 12
    LlamaConfig(max_position_embeddings=4096, pad_token_id=2004, vocab_size=3000).save_pretrained(tmp_path / "bare")
    assert Subwords(str(tmp_path / "bare")).fit([]).max_length == 4096, "rotary positions are counted from 0"
    roberta().save_pretrained(tmp_path / "roberta")
    RobertaConfig(max_position_embeddings=514).save_pretrained(tmp_path / "roberta")
    assert Subwords(str(tmp_path / "roberta")).fit([]).max_length == 512
    tokenizer = bert()
    tokenizer.model_max_length = 16
    assert SubwordTokenizer(tokenizer).max_length == 16


def test_a_tokenizer_from_a_folder_batches_like_the_one_in_memory_and_comes_back(tmp_path: Path) -> None:
    for name, tokenizer in (("bert", bert()), ("roberta", roberta()), ("xlmr", xlmr())):
        tokenizer.save_pretrained(tmp_path / name)
        recipe = Subwords(str(tmp_path / name), 32)
        examples = [Example("1", ("the film", "is dull"), 1, candidates=(0, 2))]
        fitted = recipe.fit(examples)
        again = recipe.restore(json.loads(json.dumps(fitted.state())))
        for batcher in (fitted, again):
            batch = batcher(examples)
            assert torch.equal(batch.inputs, SubwordTokenizer(tokenizer)(examples).inputs)
            assert batch.candidates is not None
            assert batch.candidates.tolist() == [[True, False, True]]
        assert fitted.vocabulary == ()


def test_texts_without_words_or_of_too_many_are_left_out_by_words_and_counted() -> None:
    texts = [
        Example("1", ("one two",)),
        Example("2", ("one, two... three",)),
        Example("3", ("a", "one two three four")),
    ]
    without_words = [Example("4", (" \n",)), Example("5", ("a", ""))]
    selection = Subwords("anything", shorter_than=3).select([*texts, *without_words])
    assert [e.uid for e in selection.examples] == ["1"]
    assert selection.num_dropped == {"no words in the text": 2, "3 words or more": 2}
    assert Subwords("anything").select(texts).examples == tuple(texts)


def test_an_empty_batch_and_an_empty_text_do_not_crash() -> None:
    batcher = SubwordTokenizer(bert())
    assert len(batcher([])) == 0
    assert row(batcher([Example("1", ("",))])) == ([-1, -1], [0, 0])


def test_a_symbol_written_in_the_text_is_a_word_of_the_text() -> None:
    batch = SubwordTokenizer(bert())([Example("1", ("film [SEP] film",))])
    assert row(batch)[0] == [-1, 0, 1, 2, -1]


@pytest.mark.parametrize("config", [BertConfig(), RobertaConfig()])
def test_a_model_folder_without_its_tokenizer_is_refused(config: BertConfig | RobertaConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    # What save_pretrained writes beside the vocabulary is not a vocabulary.
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"has no tokenizer .*tokenizer.save_pretrained") as complaint:
        Subwords(str(tmp_path)).fit([Example("1", ("a fine film",))])
    assert "\n" not in str(complaint.value)


@pytest.mark.parametrize("make", [bert, roberta, xlmr])
def test_a_tokenizer_that_knows_next_to_no_word_is_refused(
    make: Callable[[], PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path)
    strange, known = Example("1", ("зима " * 50,)), Example("2", ("the film " * 4,))
    assert SubwordTokenizer(make()).count_unknown_words([strange, known]) == ((0 if make is roberta else 50), 58)
    recipe = Subwords(str(tmp_path))
    assert recipe.fit([strange, known]), "8 of 58 words are known"
    if make is not roberta:  # bytes can spell every word
        with pytest.raises(UserError, match=r"knows 2 of the 52 words in the first 2 texts: give the tokenizer"):
            recipe.fit([strange, Example("2", ("the film",))])
    assert recipe.fit([Example("1", ("зима",))]), "one strange text is no evidence"


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "merges.txt", "spiece.model", "added_tokens.json", "config.json", "bpe.codes"]
)
def test_the_digest_follows_every_file_that_a_tokenizer_may_read(name: str, tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    recipe, digests = Subwords(str(tmp_path)), set()
    digests.add(recipe.digest(tmp_path))
    for content in ("a b", "b a"):
        (tmp_path / name).write_text(content)
        digests.add(recipe.digest(tmp_path))
    assert len(digests) == 3
    weights = ("model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin")
    for unread in (*weights, "README.md", "optimizer.pt", ".hidden"):
        (tmp_path / unread).write_text("anything")
    (tmp_path / "checkpoint-7").mkdir()
    assert recipe.digest(tmp_path) in digests


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_tokenizer_folder_never_runs_and_nobody_is_asked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder, witness = tmp_path / "folder", tmp_path / "witness"
    bert().save_pretrained(folder)
    (folder / "own.py").write_text(f"open({str(witness)!r}, 'w').close()\nOwn = OwnConfig = object")
    names = {"AutoTokenizer": [None, "own.Own"], "AutoConfig": "own.OwnConfig"}
    (folder / name).write_text(json.dumps({"model_type": "own", "tokenizer_class": "Own", "auto_map": names}))
    with pytest.raises(UserError, match=r"names code of its own \(auto_map\), which is never run") as complaint:
        Subwords(str(folder)).fit([])
    assert "\n" not in str(complaint.value)
    assert not witness.exists()


def test_missing_folders_padding_symbols_and_room_get_one_plain_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no tokenizer"):
        Subwords(str(tmp_path)).fit([])
    bert().save_pretrained(tmp_path)
    for damage in ("", "[]", "{}"):
        (tmp_path / "tokenizer.json").write_text(damage)
        with pytest.raises(UserError, match="no tokenizer could be read"):
            Subwords(str(tmp_path)).fit([])
    with pytest.raises(UserError, match="use the fast version"):
        SubwordTokenizer(ByT5Tokenizer())
    tokenizer = bert()
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="no padding token"):
        SubwordTokenizer(tokenizer)
    with pytest.raises(UserError, match="max_length is 4: it must be at least 5"):
        SubwordTokenizer(bert(), 4)
    with pytest.raises(UserError, match="not text"):
        SubwordTokenizer(bert())([Example("1", (torch.zeros(1, 2, 2),))])


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_folding_back_is_exact_also_for_oblong_images() -> None:
    images = image(2, 3, 4, 6)
    patches = unfold(images, 2)
    assert patches.shape == (2, 6, 12)
    assert torch.equal(functional.fold(patches.transpose(1, 2), (4, 6), 2, stride=2), images)


def test_entry_c_y_x_of_a_patch_is_that_pixel() -> None:
    images, patch = image(1, 3, 6, 9), 3
    patches = unfold(images, patch)
    for unit, (c, y, x) in [(0, (0, 0, 0)), (1, (2, 1, 0)), (4, (1, 2, 2)), (5, (2, 0, 1))]:
        top, left = unit // 3 * patch, unit % 3 * patch
        assert patches[0, unit, (c * patch + y) * patch + x] == images[0, c, top + y, left + x]


def test_a_convolution_with_stride_patch_is_a_product_with_its_flattened_weight() -> None:
    images, weight = image(2, 3, 8, 8).double(), image(5, 3, 4, 4, seed=1).double()
    expected = functional.conv2d(images, weight, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(unfold(images, 4) @ weight.flatten(1).T, expected)


def test_unit_zero_is_the_class_symbol_and_patches_are_numbered_row_by_row() -> None:
    examples = [Example("1", (image(1, 4, 6),), 3), Example("2", (image(1, 4, 6, seed=1),), 0)]
    batcher = Patches(2).fit(examples)
    batch = batcher(examples)
    assert batch.inputs.shape == (2, 7, 4)
    assert bool((batch.inputs[:, 0] == 0).all())
    assert batch.words.tolist() == [[-1, 0, 1, 2, 3, 4, 5]] * 2
    assert bool(batch.mask.all())
    assert batch.labels is not None
    assert batch.labels.tolist() == [3, 0]
    assert batcher.unit_texts(batch)[0] == ["<class>", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    plain = Patches(2, class_token=False).fit(examples)(examples)
    assert torch.equal(plain.inputs, batch.inputs[:, 1:])
    assert plain.words.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_each_channel_is_normalised_by_its_own_mean_and_deviation() -> None:
    flat = torch.stack([torch.full((2, 2), value) for value in (0.5, 0.25)])
    recipe = Patches(2, mean=(0.25, 0.75), std=(0.5, 0.25), class_token=False)
    batch = recipe.fit([Example("1", (flat,))])([Example("1", (flat,))])
    assert batch.inputs.tolist() == [[[0.5] * 4 + [-2.0] * 4]]


def test_resizing_gives_one_shape_and_keeps_a_constant_image_constant() -> None:
    examples = [Example("1", (torch.full((1, 5, 7), 0.5),)), Example("2", (torch.full((1, 3, 3), 0.25),))]
    batch = Patches(2, image_size=4, class_token=False).fit(examples)(examples)
    assert batch.inputs.tolist() == [[[0.5] * 4] * 4, [[0.25] * 4] * 4]


def test_blanking_a_patch_leaves_the_others_as_they_were() -> None:
    example = Example("1", (image(1, 4, 4),))
    batch = Patches(2).fit([example])([example])
    units = torch.tensor([[True, True, False, True, True]])
    kept = batch.keep_units(units)
    assert bool((kept.inputs[0, 2] == 0).all())
    assert torch.equal(kept.inputs[0, [1, 3, 4]], batch.inputs[0, [1, 3, 4]])


def test_a_batcher_comes_back_from_json() -> None:
    recipe = Patches(2)
    example = Example("1", (image(3, 4, 6),), 1)
    fitted = recipe.fit([example])
    again = recipe.restore(json.loads(json.dumps(fitted.state())))
    assert torch.equal(again([example]).inputs, fitted([example]).inputs)
    assert again.unit_texts(again([example])) == fitted.unit_texts(fitted([example]))


def test_bad_images_and_recipes_get_one_plain_line() -> None:
    with pytest.raises(UserError, match="5 x 4 pixels cannot be divided into patches of 2"):
        Patches(2).fit([Example("1", (image(1, 5, 4),))])
    batcher = Patches(2).fit([Example("1", (image(1, 4, 4),))])
    with pytest.raises(UserError, match="image 2 is 1 x 4 x 6, the training images are 1 x 4 x 4"):
        batcher([Example("2", (image(1, 4, 6),))])
    with pytest.raises(UserError, match="example 3 is not one image"):
        batcher([Example("3", ("a text",))])
    with pytest.raises(UserError, match="mean has 3 numbers, the images have 1 channels"):
        Patches(2, mean=(0.5,) * 3, std=(0.5,) * 3).fit([Example("1", (image(1, 4, 4),))])
    with pytest.raises(UserError, match="std must be positive"):
        Patches(2, mean=(0.5,), std=(0.0,))
    with pytest.raises(UserError, match="at least 1"):
        Patches(0)
    with pytest.raises(UserError, match="no images"):
        Patches(2).fit([])


@pytest.mark.parametrize("length", [3, 60])
def test_word_numbers_beyond_the_words_of_a_text_are_one_line(length: int) -> None:
    """A user's tokenizer that counts its own words, not those between spaces."""
    example = Example("r7", (" ".join(["word,"] * length),))
    words = torch.arange(2 * length).unsqueeze(0)
    batch = Batch(("r7",), torch.ones_like(words), words >= 0, torch.zeros_like(words), words)
    with pytest.raises(UserError, match=rf"r7.*{2 * length - 1}.*{length} words") as error:
        with_breaks(batch, [example])
    assert "\n" not in str(error.value)
    fitting = replace(batch, words=words // 2)
    assert with_breaks(fitting, [example]).breaks is not None
