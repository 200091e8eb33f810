"""Tiny language models in folders: a GPT-2 with byte-level BPE and no pad token, and a masked BERT."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import BertForMaskedLM, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from heedful.models.tiny_networks import tiny_config
from heedful.seeding import temporary_seed
from tests.subword_tokenizers import wrapped

WORDS = ("good", "bad", "film", "the", "is", "dull", "fine", "very", "Sentiment", "Review")
PROMPT = "Review: {text}\nSentiment:"
LABELS = {"negative": " bad", "positive": " good"}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and each word with and without the space before it as one token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names, merges = ["<|endoftext|>", *letters], list[tuple[str, str]]()
    for word in WORDS:
        left = word[0]
        for letter in word[1:]:
            if (left, letter) not in merges:
                merges.append((left, letter))
            left += letter
    merges += [("Ġ", word) for word in WORDS]
    names += [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    return wrapped(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end)


def bert_tokenizer() -> PreTrainedTokenizerFast:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ":", ".", "sent", "##iment", *(w.lower() for w in WORDS)]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return wrapped(tokenizer_object=tokenizer, mask_token="[MASK]", **names)


def gpt2(seed: int = 0, *, positions: int = 64) -> PreTrainedModel:
    config = tiny_config("gpt2")
    config.vocab_size, config.n_positions = len(gpt2_tokenizer()), positions
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    with temporary_seed(seed):
        made = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    nn.Module.train(made, mode=False)
    return made


def masked_bert(seed: int = 0) -> PreTrainedModel:
    with temporary_seed(seed):
        made: PreTrainedModel = BertForMaskedLM(tiny_config("bert"))  # type: ignore[no-untyped-call]
    nn.Module.train(made, mode=False)
    return made


def save(folder: Path, network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> str:
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
