"""Small tokenizers of three families: WordPiece (BERT), byte-level BPE (RoBERTa) and Unigram (XLM-R)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

wrapped: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast


def bert() -> PreTrainedTokenizerFast:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "un", "##for", "##get", "dull", ",", "is", "?"]
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
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁the", "▁film", "▁un", "for", "get", "▁dull", ",", "▁is", "?"]
    scores = [(piece, 0.0 if i < 4 else -1.0 - i / 100) for i, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return wrapped(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def save_two_pieces(folder: Path, words: Sequence[str]) -> str:
    """The folder of a tokenizer that reads most of these words in two pieces."""
    halves = [*(word[:2] for word in words), *(f"##{word[2:]}" for word in words)]
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *halves])
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    wrapped(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return str(folder)
