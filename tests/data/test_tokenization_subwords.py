"""Subwords: three families of tokenizers, built here, must give the same words, parts and padding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BertConfig, ByT5Tokenizer, PreTrainedTokenizerFast, RobertaConfig

from heedful.data.tokenization import Subwords, SubwordTokenizer
from heedful.types import Batch, Example, UserError

wrapped: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast


def bert() -> PreTrainedTokenizerFast:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "the",
        "film",
        "un",
        "##for",
        "##get",
        "dull",
        ",",
        "is",
        "?",
    ]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return wrapped(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        padding_side="left",
    )


def roberta(*, trim: bool = True) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("f", "i"), ("l", "m"), ("fi", "lm"), ("Ġ", "film"), ("t", "h"), ("th", "e"), ("Ġ", "the")]
    names = ["<s>", "<pad>", "</s>", *letters, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trim, add_prefix_space=False
    )
    return wrapped(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", cls_token="<s>")


def xlmr() -> PreTrainedTokenizerFast:
    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "▁",
        "▁the",
        "▁film",
        "▁un",
        "for",
        "get",
        "▁dull",
        ",",
        "▁is",
        "?",
    ]
    scores = [(piece, 0.0 if i < 4 else -1.0 - i / 100) for i, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return wrapped(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")


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
def test_every_word_has_a_unit_and_company_changes_nothing_but_padding(
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
    assert batcher.count_truncated([pair, exact, longer]) == 2
    assert batcher.truncation_note == "cut at the end to 8 units, special symbols included; the longer part first"


def test_the_limit_comes_from_the_recipe_the_tokenizer_or_the_configuration(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "bare")
    assert Subwords(str(tmp_path / "bare")).fit([]).max_length is None
    assert Subwords(str(tmp_path / "bare")).fit([]).count_truncated([Example("1", ("the " * 5000,))]) == 0
    BertConfig(max_position_embeddings=40).save_pretrained(tmp_path / "bare")
    assert Subwords(str(tmp_path / "bare")).fit([]).max_length == 40
    assert Subwords(str(tmp_path / "bare"), 12).fit([]).max_length == 12
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


def test_the_digest_follows_the_tokenizer_files_and_not_the_weights(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    bert().save_pretrained(folder)
    recipe = Subwords(str(folder))
    before = recipe.digest(tmp_path)
    (folder / "model.safetensors").write_bytes(b"weights")
    assert recipe.digest(tmp_path) == before
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"dull"', '"dulled"'))
    assert recipe.digest(tmp_path) != before


def test_texts_without_words_are_left_out_and_counted() -> None:
    selection = Subwords("anything").select([Example("1", ("a",)), Example("2", (" \n",)), Example("3", ("a", ""))])
    assert [e.uid for e in selection.examples] == ["1"]
    assert selection.num_dropped == {"no words in the text": 2}


def test_texts_of_too_many_words_are_left_out_by_words_and_counted() -> None:
    texts = [
        Example("1", ("one two",)),
        Example("2", ("one, two... three",)),
        Example("3", ("a", "one two three four")),
    ]
    selection = Subwords("anything", shorter_than=3).select([*texts, Example("4", ("",))])
    assert [e.uid for e in selection.examples] == ["1"]
    assert selection.num_dropped == {"no words in the text": 1, "3 words or more": 2}
    assert Subwords("anything").select(texts).examples == tuple(texts)


def test_an_empty_batch_and_an_empty_text_do_not_crash() -> None:
    batcher = SubwordTokenizer(bert())
    assert len(batcher([])) == 0
    assert row(batcher([Example("1", ("",))])) == ([-1, -1], [0, 0])


def test_a_symbol_written_in_the_text_is_a_word_of_the_text() -> None:
    batch = SubwordTokenizer(bert())([Example("1", ("film [SEP] film",))])
    assert row(batch)[0] == [-1, 0, 1, 2, -1]


def test_missing_folders_padding_symbols_and_room_get_one_plain_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer could be read"):
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
    with pytest.raises(UserError, match="no padding symbol"):
        SubwordTokenizer(tokenizer)
    with pytest.raises(UserError, match="max_length is 4: it must be at least 5"):
        SubwordTokenizer(bert(), 4)
    with pytest.raises(UserError, match="not text"):
        SubwordTokenizer(bert())([Example("1", (torch.zeros(1, 2, 2),))])
