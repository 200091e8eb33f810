"""A given transformer of three classes in a folder of its own, and a corpus in which people marked the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Generator, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from heedful.data.subwords import SubwordTokenizer
from heedful.data.words import Words
from heedful.tasks import MulticlassClassification
from heedful.types import Corpus, Example, Splits
from tests.networks import network
from tests.subword_tokenizers import wrapped

CLASSES = ("awful", "middling", "splendid")
EVIDENCE = ("terrible", "passable", "wonderful")
OTHERS = ("film", "plot", "very", "the", "a", "scene", "actor", "long", "music", "end")
PIECES = ("terr", "##ible", "pass", "##able", "wonder", "##ful")


@dataclass(frozen=True)
class Verdicts(Corpus):
    """One word decides each class, and people marked it; every sixth text has the word of another class."""

    count: int = 60
    name: ClassVar[str] = "verdicts"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        train, dev, test = (self._part(split, seed) for seed, split in enumerate(("train", "dev", "test")))
        return Splits(MulticlassClassification(3), CLASSES, train, dev, test)

    def digest(self, data: Path) -> str:
        return "generated"

    def _part(self, split: str, seed: int) -> tuple[Example, ...]:
        generator = Generator().manual_seed(seed)
        examples = []
        for number in range(self.count):
            length = int(torch.randint(5, 11, (1,), generator=generator))
            words = [OTHERS[index] for index in torch.randint(len(OTHERS), (length,), generator=generator).tolist()]
            label = number % 3
            words[number % length] = EVIDENCE[(label + (number % 6 == 5)) % 3]
            rationale = tuple(word in EVIDENCE for word in words)
            examples.append(Example(f"{split}-{number}", (" ".join(words),), label, rationale))
        return tuple(examples)


def save_untrained(folder: Path, words: Sequence[str], classes: Sequence[str], positions: int = 40) -> Path:
    """A small BERT with random weights that knows these words and has a head for these classes."""
    model, tokenizer = _classifier(words, classes, positions)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _classifier(
    words: Sequence[str], classes: Sequence[str], positions: int = 40
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *words)
    words_tokenizer = Tokenizer(models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    words_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words_tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = wrapped(
        tokenizer_object=words_tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    changes = {"max_position_embeddings": positions, "num_labels": len(classes), "hidden_dropout_prob": 0.0}
    model = network("bert", vocab_size=len(names), **changes)
    model.config.id2label = dict(enumerate(classes))
    return model, tokenizer


def save_model(folder: Path) -> Path:
    """A small BERT that was fine-tuned elsewhere; the marked words have two tokens each, all others one."""
    model, tokenizer = _classifier((*PIECES, *OTHERS), CLASSES)
    batch = SubwordTokenizer(tokenizer)(Verdicts(90).read(Path()).train)
    assert batch.labels is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(25):
        logits = model(input_ids=batch.inputs, attention_mask=batch.mask.long()).logits
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
